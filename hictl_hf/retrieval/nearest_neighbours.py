"""Exact k nearest neighbours between two sets of vectors by inner product, in both directions at once.

All inner products are computed once in low precision (bfloat16 where that is faster), tile by tile. The error of such a
product is bounded from the rounding of the given vectors (`Shard.errors`). A pair is a candidate of its row and of its
column unless that bound excludes it, and only candidates are computed again in the precision of the vectors. So low
precision loses no neighbour, however close they lie. For cosines pass unit vectors.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..dtypes import times_fp32

Vectors = NDArray[np.floating]
Rows = NDArray[np.int64]
Precision = Literal["auto", "bf16", "fp32"]
COARSE: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp32": torch.float32}
AS_INTEGERS = {torch.bfloat16: torch.int16, torch.float32: torch.int32}  # positive numbers keep their order

GROUP = 32  # scores of a tile that are first compared by their maximum
SPLITS = 3  # coarse numbers whose sum has 24 bits
PADDING = -1e30  # a score below all others
AT_ONCE = 2**19  # numbers converted, or products computed again, at a time
GROUPS_AT_ONCE = 2**12  # whose scores are compared one by one at a time
CROWDED = 1 / 4  # share of candidate groups above which a complete tile is computed again
MEMORY = 2**31  # bytes
SWITCHING = Lock()  # PyTorch's switches are those of all threads


class Source(Protocol):
    """Rows that are read in slices: an array, a memory map, or an object that computes them."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> Vectors: ...


def as_rows(vectors: Source | Tensor) -> Source:
    """The same, a tensor as an array on the CPU; bfloat16, which NumPy lacks, as fp32."""
    if not isinstance(vectors, Tensor):
        return vectors
    rows: Vectors = (vectors.float() if vectors.dtype == torch.bfloat16 else vectors).numpy(force=True)
    return rows


class Neighbours(NamedTuple):
    """The nearest rows of the other side, nearest first, and their similarities; both (rows, k)."""

    rows: Rows
    similarities: Vectors


@dataclass(frozen=True)
class Plan:
    """Sizes of shards and tiles; the neighbours found do not depend on them."""

    x: int
    y: int
    """Rows of each side that are held at once."""
    tile: tuple[int, int]
    """Rows of x and y compared at once."""
    memory: int = 0
    """Bytes the search needs in addition to the given vectors."""


def plan_search(x: Source, y: Source, k: int, max_memory: int = MEMORY, device: str | torch.device = "cpu") -> Plan:
    """The largest shards for which a search needs at most `max_memory` bytes; ValueError if that is too little."""
    width, kind = x.shape[1], fine_kind(x, y).itemsize
    rows, columns = (1024, 4096) if torch.device(device).type == "cpu" else (8192, 16384)
    tile = min(rows, padded(len(x))), min(columns, padded(len(y)))
    found = 2 * (8 + kind) * (len(x) * min(k, len(y)) + len(y) * min(k, len(x)))  # at the end, once more in NumPy
    working = tile[0] * tile[1] * (4 + 2 * kind) + 6 * AT_ONCE * 8 + GROUPS_AT_ONCE * GROUP * 64
    of_a_row = width * kind + (width + 2 * SPLITS) * 4 + 64  # fine, coarse, and its numbers in `Shard`
    least = found + working + of_a_row * sum(tile)
    if max_memory < least:
        raise ValueError(
            f"max_memory is {max_memory} bytes; allowed are {least} or more to find {k} neighbours among {len(x)} and "
            f"{len(y)} vectors of {width} numbers. Raise it, or search fewer neighbours."
        )
    both = (max_memory - found - working) // of_a_row // GROUP * GROUP
    shard_x = min(padded(len(x)), both // 2 // GROUP * GROUP)
    shard_y = min(padded(len(y)), both - shard_x)
    shard_x = min(padded(len(x)), both - shard_y)
    return Plan(shard_x, shard_y, tile, found + working + of_a_row * (shard_x + shard_y))


def search_both(
    x: Source | Tensor,
    y: Source | Tensor,
    k: int,
    precision: Precision = "auto",
    max_memory: int = MEMORY,
    device: str | torch.device = "cpu",
) -> tuple[Neighbours, Neighbours]:
    """For each row of x the k rows of y with the highest inner product, and for each row of y those of x.

    Ties are ordered by row.

    Args:
        x, y: (rows, d), arrays or tensors, one or more rows on each side, not necessarily equally many. Half precision
            is read as fp32; if one side is fp64, the other is converted to it.
        k: number of neighbours; fewer if the other side has fewer rows.
        precision: of the coarse products; it changes the time, not the result. "auto" is the faster one.
        max_memory: bytes the search may need in addition to x and y.

    >>> forward, backward = search_both(np.array([[0.0, 2], [1, 0]]), np.array([[3.0, 0], [1, 1], [0, 4]]), k=1)
    >>> forward.rows.tolist(), forward.similarities.tolist(), backward.rows.tolist()
    ([[2], [0]], [[8.0], [3.0]], [[1], [0], [0]])
    """
    x, y = as_rows(x), as_rows(y)
    search = Search(x, y, k, plan_search(x, y, k, max_memory, device), precision, device)
    for _ in search.strips():
        pass
    return search.neighbours()


# With rounded vectors a', b' of a, b and the bound |a·b - a'·b'| <= e (`Shard.errors`):
#   known_k   the k-th highest exact product of row a found so far, so the final k-th highest is >= known_k
#   candidate a·b can only be among the k highest if a·b >= known_k, hence only if a'·b' >= known_k - e
# All pairs of a tile with a'·b' >= known_k - e are computed again exactly, the others are skipped. Before k neighbours
# are known, the k-th highest of the group maxima minus e takes the place of known_k: k pairs are at least that high.
# Coarse products lack the constant m·n of the mean rows (`Shard`), which is added where both kinds are compared.
class Search:
    """A search that can be interrupted after any of its `strips` and resumed in another process by `load`.

    Args:
        only_earlier: x and y are the same, and of each row only lower rows are neighbours; nothing is found for y.
    """

    def __init__(
        self,
        x: Source,
        y: Source,
        k: int,
        plan: Plan,
        precision: Precision = "auto",
        device: str | torch.device = "cpu",
        only_earlier: bool = False,
    ) -> None:
        if not len(x) or not len(y) or k < 1:
            raise ValueError(f"{k} neighbours among {len(x)} and {len(y)} vectors; allowed are 1 or more of each.")
        if x.shape[1] != y.shape[1]:
            raise ValueError(f"x has vectors of {x.shape[1]} numbers, y of {y.shape[1]}; give those of one model.")
        self.x, self.y, self.plan, self.device, self.only_earlier = x, y, plan, torch.device(device), only_earlier
        self.fine = fine_kind(x, y)
        self.coarse = COARSE[faster_precision(self.device) if precision == "auto" else precision]
        self._rounding = 2 * torch.finfo(self.coarse).eps
        self._means = self._mean(x), self._mean(y)
        self._common = self._means[0] @ self._means[1]  # that coarse products lack, see `Shard`
        self.forward, self.backward = self._none_yet(len(x), min(k, len(y))), self._none_yet(len(y), min(k, len(x)))
        self.done = np.zeros(self.count_strips(), bool)

    def strips(self, some: Collection[int] | None = None) -> Iterator[None]:
        """Continue the search; yield after each strip of x has been compared with a shard of y.

        Args:
            some: numbers of the strips to compare; `None`: all that are left.
        """
        number, x, y = -1, None, None
        for x_start in range(0, len(self.x), self.plan.x):
            for y_start in range(0, len(self.y), self.plan.y):
                for strip in range(0, min(self.plan.x, padded(len(self.x) - x_start)), self.plan.tile[0]):
                    number += 1
                    if self.done[number] or some is not None and number not in some:
                        continue
                    if x is None or x.start != x_start:
                        x = y = None  # before others are read
                        x = Shard(self, self.x, x_start, self.plan.x, self._means)
                    if y is None or y.start != y_start:
                        y = None
                        y = Shard(self, self.y, y_start, self.plan.y, self._means[::-1], right=True)
                    self._compare(x, y, strip)
                    self.done[number] = True
                    yield

    def count_strips(self) -> int:
        """The total number of `strips`."""
        shards = [padded(min(self.plan.x, len(self.x) - start)) for start in range(0, len(self.x), self.plan.x)]
        strips = sum(-(-rows // self.plan.tile[0]) for rows in shards)
        return strips * -(-len(self.y) // self.plan.y)

    def neighbours(self) -> tuple[Neighbours, Neighbours]:
        """The neighbours found so far, for x and for y."""
        forward, backward = ([part.cpu().numpy() for part in side] for side in (self.forward, self.backward))
        return Neighbours(*forward), Neighbours(*backward)

    def save(self) -> dict[str, NDArray[Any]]:
        """The arrays that `load` needs, by name."""
        sides = {"forward": self.forward, "backward": self.backward}
        found = {f"{name} {part}": getattr(side, part).cpu().numpy() for name, side in sides.items() for part in FOUND}
        return {"done": self.done, **found}

    def load(self, saved: Mapping[str, NDArray[Any]]) -> None:
        """Add what a search with the same vectors and plan has saved, unless all its strips are done here.

        Raises:
            ValueError: some of its strips are done here, others are not.
        """
        done = saved["done"]
        if done.ndim == 0:  # before 0.11 the number of strips done
            done = np.arange(len(self.done)) < int(done)
        if (done & self.done).any():
            if (done & ~self.done).any():
                raise ValueError("two saved searches have strips in common; remove them to search again.")
            return
        for name, side in {"forward": self.forward, "backward": self.backward}.items():
            rows, similarities = (saved[f"{name} {part}"] for part in FOUND)
            at_once = max(1, AT_ONCE // rows.shape[1])
            for start in range(0, len(rows), at_once):
                some = torch.from_numpy(rows[start : start + at_once])
                own, place = (some >= 0).nonzero(as_tuple=True)
                near = torch.from_numpy(similarities[start : start + at_once])[own, place]
                found = (start + own, some[own, place], near)
                side.add(*(each.to(self.device) for each in found))
        self.done |= done

    def _mean(self, side: Source) -> Tensor:
        """(d,) approximate mean row: any vector is correct, but the closer to the mean, the smaller the rounding."""
        some = np.asarray(side[:: -(-len(side) // 4096)], np.float64)
        return torch.from_numpy(some.mean(0)).to(self.device)

    def _none_yet(self, rows: int, k: int) -> "Found":
        similarities = torch.full((rows, k), -torch.inf, dtype=self.fine, device=self.device)
        return Found(torch.full((rows, k), -1, device=self.device), similarities)

    def _compare(self, x: "Shard", y: "Shard", i: int) -> None:
        """Compare a strip of x's rows, from its row i on, with all of y."""
        rows, columns = self.plan.tile
        errors_x, errors_y = x.errors(y), y.errors(x)
        for j in range(0, len(y.coarse), columns):
            if self.only_earlier and y.start + j >= x.start + i + rows:
                break
            with full_precision():
                scores = x.coarse[i : i + rows] @ y.coarse[j : j + columns].T  # (rows, columns)
            if self.only_earlier:
                scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(x.start + i - y.start - j), PADDING)
            else:
                self._take_in(self.backward, y, x, j, i, scores.T, errors_y)
            self._take_in(self.forward, x, y, i, j, scores, errors_x)

    def _take_in(
        self, found: "Found", own: "Shard", other: "Shard", i: int, j: int, scores: Tensor, errors: Tensor
    ) -> None:
        """Add the neighbours of a tile (own rows from i on, other rows from j on) to those found."""
        scores, errors = scores[: own.rows - i], errors[i : i + len(scores)]
        here, k = slice(own.start + i, own.start + i + len(scores)), found.rows.shape[1]
        # (rows, groups); compared as integers, the maximum of a group without positive scores is any of them
        best = highest_of_groups(scores.view(AS_INTEGERS[self.coarse])).view(self.coarse)
        lowest = self._lowest(found.similarities[here, -1], best, k, errors)
        if (lowest <= 0).any():
            best = highest_of_groups(scores)
        row, group = (best >= lowest[:, None]).nonzero(as_tuple=True)
        if len(row) > max(CROWDED * best.numel(), GROUPS_AT_ONCE):
            row, column = first_best(own.fine[i : i + len(scores)], other.fine[j : j + scores.shape[1]], scores, k)
            similarities = inner_products(own.fine, other.fine, i + row, j + column)
            found.add(here.start + row, other.start + j + column, similarities)
            return
        members = torch.arange(GROUP, device=self.device) * best.shape[1]
        for some_rows, some_groups in zip(row.split(GROUPS_AT_ONCE), group.split(GROUPS_AT_ONCE)):
            columns = some_groups[:, None] + members  # (groups, GROUP)
            looked = scores[some_rows[:, None], columns]
            inside, member = (looked >= lowest[some_rows, None]).nonzero(as_tuple=True)
            near, column, coarse = some_rows[inside], columns[inside, member], looked[inside, member].double()
            similarities = inner_products(own.fine, other.fine, i + near, j + column)
            off = (coarse + self._common - similarities.double()).abs()
            if (off > errors[near] + coarse.abs() * self._rounding).any():
                raise RuntimeError(
                    f"a product in {self.coarse} is off by {off.max().item():.2g}, which is more than rounding can be; "
                    "search with precision fp32, and please report this machine."
                )
            found.add(here.start + near, other.start + j + column, similarities)

    def _lowest(self, known: Tensor, best: Tensor, k: int, errors: Tensor) -> Tensor:
        """(rows,) the lowest coarse score that may belong to one of the k highest products of its row."""
        highest = known.double() - self._common  # (rows,) what the k-th highest score is at least
        if known.isneginf().any() and best.shape[1] >= k:
            coarse = best.topk(k, dim=1).values[:, -1].double()  # of k groups each has a score that high
            highest = torch.maximum(highest, coarse - coarse.abs() * self._rounding - errors)
        lowest = highest - errors
        return (lowest - lowest.abs() * self._rounding).clamp_min(PADDING / 10).to(self.coarse)


class Found(NamedTuple):
    """`Neighbours` during a search; row -1 with similarity -inf is an empty slot."""

    rows: Tensor
    similarities: Tensor

    def add(self, own: Tensor, others: Tensor, similarities: Tensor) -> None:
        """Add neighbours (pairs,) in any order, none of which was added before."""
        better = similarities >= self.similarities[own, -1]
        own, others, similarities = own[better], others[better], similarities[better]
        if not len(own):
            return
        touched, own = own.unique(return_inverse=True)
        numbers, k = torch.arange(len(touched), device=own.device), self.rows.shape[1]
        own = torch.cat([numbers.repeat_interleave(k), own])
        others = torch.cat([self.rows[touched].flatten(), others])
        similarities = torch.cat([self.similarities[touched].flatten(), similarities])
        order = others.argsort(stable=True)
        order = order[similarities[order].argsort(descending=True, stable=True)]
        order = order[own[order].argsort(stable=True)]  # by own row, then similarity, then the other's row
        kept = order[torch.searchsorted(own[order], numbers)[:, None] + torch.arange(k, device=own.device)]
        self.rows[touched], self.similarities[touched] = others[kept], similarities[kept]


FOUND = Found._fields


class Shard:
    """Some rows of one side: exact, in low precision, and the rounding error of each.

    With m and n the mean rows of both sides, x·y = (x - m)·(y - n) + (x - m)·n + m·(y - n) + m·n. Coarse rows of x are
    x - m, (x - m)·n in `SPLITS` numbers, and ones; those of y are y - n, ones, and m·(y - n): their product is
    x·y - m·n. So the part that all rows share, most of a sentence vector, is not rounded.
    """

    def __init__(
        self, search: Search, source: Source, start: int, rows: int, means: tuple[Tensor, Tensor], right: bool = False
    ) -> None:
        mean, other = means
        self.start, self.rows = start, min(rows, len(source) - start)
        width, device = len(mean), mean.device
        self.fine = torch.empty(self.rows, width, dtype=search.fine, device=device)
        self.coarse = torch.zeros(padded(self.rows), width + 2 * SPLITS, dtype=search.coarse, device=device)
        self.norm, self.size, self.lost, self.length, self.rest = torch.empty(
            5, self.rows, dtype=torch.float64, device=device
        )
        splits, ones = (range(width + at, width + at + SPLITS) for at in ((SPLITS, 0) if right else (0, SPLITS)))
        self.coarse[:, ones.start : ones.stop] = 1
        self.coarse[self.rows :, splits.start] = PADDING
        at_once = max(1, AT_ONCE // width)
        for begin in range(0, self.rows, at_once):
            here = slice(begin, min(begin + at_once, self.rows))
            given = source[start + here.start : start + here.stop]
            given = np.require(given, given.dtype.newbyteorder("="), ["C", "W"])  # as PyTorch takes them
            fine, coarse = self.fine[here].copy_(torch.from_numpy(given)), self.coarse[here]
            if not fine.isfinite().all():
                raise ValueError("a vector has infinity or NaN; allowed are finite numbers.")
            exact = fine.double() - mean
            self.norm[here] = fine.double().norm(dim=1)
            coarse[:, :width] = exact
            rest = exact @ other
            for split in splits:
                coarse[:, split] = rest
                rest -= coarse[:, split].double()
            rounded = coarse.double()
            self.length[here], self.rest[here] = rounded.norm(dim=1), rest.abs()
            self.size[here] = exact.norm(dim=1)
            self.lost[here] = exact.sub_(rounded[:, :width]).norm(dim=1)

    def errors(self, other: "Shard") -> Tensor:
        """(rows,) bound on the error of the coarse products of a row with all of the other's, before they are rounded.

        By Cauchy and Schwarz, |a·b - a'·b'| <= |a - a'| |b'| + |a| |b - b'|. Sums of K products have an error of
        at most K roundings, which on some hardware are four times as large as IEEE 754 allows, in either precision.
        """
        terms, exact = self.coarse.shape[1], torch.finfo(self.fine.dtype).eps * self.fine.shape[1]
        summed = self.length * other.length.max() * terms * torch.finfo(torch.float32).eps * 2
        again = self.norm * other.norm.max() * exact
        lost = self.lost * (other.size + other.lost).max() + self.size * other.lost.max()
        return lost + self.rest + other.rest.max() + summed + again


def inner_products(own: Tensor, other: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """(pairs,) inner products of rows in their precision; equal vectors give bitwise equal products."""
    at_once = max(1, AT_ONCE // own.shape[1])
    pairs = zip(row.split(at_once), column.split(at_once))
    return torch.cat([(own[some] * other[others]).sum(1) for some, others in pairs])


def first_best(own: Tensor, other: Tensor, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Row and column (pairs,) of the k highest products of each row; ties go to the lower column."""
    with full_precision():
        exact = own @ other.T  # (rows, columns)
    exact[scores[:, : len(other)] < PADDING / 2] = -torch.inf
    numbers, rows, columns = torch.arange(len(own), device=own.device), [], []
    for _ in range(min(k, len(other))):
        best, column = exact.max(1)
        there = best > -torch.inf
        rows.append(numbers[there])
        columns.append(column[there])
        exact[numbers, column] = -torch.inf
    return torch.cat(rows), torch.cat(columns)


def highest_of_groups(scores: Tensor) -> Tensor:
    """(rows, groups) maxima; group g of a row is its columns g, g + groups, ..., so the reduction runs along memory."""
    if scores.stride(0) < scores.stride(1):
        return scores.T.unflatten(0, (GROUP, -1)).amax(0).T
    return scores.unflatten(1, (GROUP, -1)).amax(1)


def padded(rows: int) -> int:
    """The next multiple of `GROUP`."""
    return -(-rows // GROUP) * GROUP


def fine_kind(x: Source, y: Source) -> torch.dtype:
    return torch.float64 if "d" in (x.dtype.char, y.dtype.char) else torch.float32  # of any byte order


def faster_precision(device: torch.device) -> Precision:
    """The precision that multiplies faster on this device."""
    return "bf16" if times_fp32(torch.bfloat16, device) < 1 else "fp32"


@contextmanager
def full_precision() -> Iterator[None]:
    """Accumulate products in full fp32, which on a GPU is not the default."""
    switches = torch.backends.cuda.matmul  # transformers sets `fp32_precision`; reading `allow_tf32` would then raise
    with SWITCHING:
        before = switches.allow_bf16_reduced_precision_reduction, switches.fp32_precision
        switches.allow_bf16_reduced_precision_reduction, switches.fp32_precision = False, "ieee"
        try:
            yield
        finally:
            switches.allow_bf16_reduced_precision_reduction, switches.fp32_precision = before
