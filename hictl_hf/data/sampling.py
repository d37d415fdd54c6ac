"""In which order rows are seen: languages mixed by smoothed sampling, batches of similar length, a seed for each row.

One epoch has as many rows as the corpus. Which rows, in which order and with which seeds follows from (seed, epoch)
alone, so that a resumed run sees what an uninterrupted one would have seen. What happens to a row is decided by
`collators`.
"""

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Sampler

BATCHES_SORTED_TOGETHER = (
    50  # lengths are sorted within this many batches: little padding, still a new order each epoch
)
Languages = tuple[str, str | None]  # ("en", "sw") of pairs, ("sw", None) of monolingual text


class Draw(NamedTuple):
    """One row as it comes up in an epoch; `repeat` counts how often the epoch had it before."""

    row: int
    epoch: int
    repeat: int


def row_seed(seed: int, *place: int) -> int:
    """62 bits that depend on the seed and on the place of a row (epoch, row, repeat) alone."""
    digest = blake2b(repr((seed, *map(int, place))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2


def language_shares(
    rows: Mapping[Languages, int], text_alpha: float = 0.3, pair_alpha: float = 0.7, text_share: float | None = 0.5
) -> dict[Languages, float]:
    """Share of each language, and each language pair, in what is drawn: p^alpha, p its share of the rows of its kind.

    Args:
        rows: number of rows of each language or language pair.
        text_share: share of monolingual text in all where there are both; `None`: its share of the rows.

    >>> language_shares({("en", None): 900, ("sw", None): 100}, text_alpha=0.5)
    {('en', None): 0.75, ('sw', None): 0.25}
    """
    text = {languages: number for languages, number in rows.items() if languages[1] is None}
    pairs = {languages: number for languages, number in rows.items() if languages[1] is not None}
    if text_share is None or not text or not pairs:
        text_share = sum(text.values()) / sum(rows.values())
    shares: dict[Languages, float] = {}
    for kind, alpha, kind_share in ((text, text_alpha, text_share), (pairs, pair_alpha, 1 - text_share)):
        powers = {languages: (number / sum(kind.values())) ** alpha for languages, number in kind.items()}
        shares |= {languages: kind_share * power / sum(powers.values()) for languages, power in powers.items()}
    return shares


class TemperatureSampler(Sampler[NDArray[np.int64]]):
    """The draws of one epoch after another, in batches of similar length, each a (rows, 3) array of `Draw`s. It is the
    `batch_sampler` of a `DataLoader`, which gives an array as it is to `PretrainingRows.__getitems__`.

    A language drawn more often than it has rows is gone through again in a new order; one drawn less often gives a new
    random part of its rows each epoch. A batch is given out in micro-batches, and each of those to all processes, as
    evenly as its rows allow; of a last batch too small for that, rows fewer than the processes are left out.

    Args:
        lengths: (rows,) tokens of each row.
        groups: the row numbers of each language or language pair.
        shares: from `language_shares`.
        batch_size: rows of an optimiser step, over its micro-batches and all processes.
        micro_batches: in how many parts a process gets its share of a batch.
        process, processes: whose rows are given out.
    """

    def __init__(
        self,
        lengths: NDArray[np.integer[Any]],
        groups: Mapping[Languages, NDArray[np.integer[Any]]],
        shares: Mapping[Languages, float],
        batch_size: int,
        seed: int,
        micro_batches: int = 1,
        process: int = 0,
        processes: int = 1,
    ) -> None:
        self.lengths, self.groups, self.batch_size, self.seed, self.epoch = lengths, groups, batch_size, seed, 0
        self.micro_batches, self.process, self.processes = micro_batches, process, processes
        exact = np.array([shares[languages] for languages in groups]) * len(lengths)
        self.draws = np.floor(exact).astype(int)
        self.draws[np.argsort(self.draws - exact, kind="stable")[: len(lengths) - self.draws.sum()]] += 1

    def __len__(self) -> int:
        whole, rest = divmod(len(self.lengths), self.batch_size)
        return whole * self.micro_batches + self.parts(rest)

    def parts(self, rows: int) -> int:
        """How many micro-batches a batch of so many rows is given out in."""
        return min(self.micro_batches, rows // self.processes)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration goes through; the Trainer calls it."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        draws = self.draws_of_epoch()
        for start in range(0, len(draws), self.batch_size):
            batch = draws[start : start + self.batch_size]
            parts = self.parts(len(batch))
            for part in range(parts):  # slices, made without looking at a row: a resumed run passes over many at once
                yield batch[part + parts * self.process :: parts * self.processes]

    def draws_of_epoch(self) -> NDArray[np.int64]:
        """(draws, 3) all draws of the epoch in order."""
        random = np.random.default_rng([self.seed, self.epoch])
        chosen, repeats = [], []
        for members, number in zip(self.groups.values(), self.draws):
            rounds = -(-number // len(members))
            permuted = [random.permutation(members) for _ in range(rounds)] or [members[:0]]
            chosen.append(np.concatenate(permuted)[:number])
            repeats.append(np.arange(number) // len(members))
        rows = np.concatenate(chosen)
        draws = np.stack([rows, np.full_like(rows, self.epoch), np.concatenate(repeats)], 1)
        return draws[self.in_batches_of_similar_length(rows, random)]

    def in_batches_of_similar_length(self, rows: NDArray[np.integer[Any]], random: np.random.Generator) -> NDArray[Any]:
        """(draws,) an order of the draws: sorted by length within pools of batches, full batches in random order."""
        order = shuffle_by_length(self.lengths[rows], random, self.batch_size * BATCHES_SORTED_TOGETHER)
        batches = np.split(order, range(self.batch_size, len(order), self.batch_size))
        full = len(order) // self.batch_size  # a last, smaller batch stays the last
        return np.concatenate([batches[number] for number in [*random.permutation(full), *range(full, len(batches))]])


def shuffle_by_length(
    lengths: NDArray[np.integer[Any]], random: np.random.Generator, pool: int | None = None
) -> NDArray[np.int64]:
    """(examples,) indices in random order, sorted by length within pools; examples of equal length stay shuffled.

    Args:
        lengths: (examples,) tokens, or another key to sort by.
        pool: consecutive examples that are sorted together; `None`: all.
    """
    order = random.permutation(len(lengths))
    pools = [order] if pool is None else np.split(order, range(pool, len(order), pool))
    return np.concatenate([part[np.argsort(lengths[part], kind="stable")] for part in pools])


class PretrainingExamples(TorchDataset[dict[str, Any]]):
    """Tokenised rows, each with the seed of its draw.

    Args:
        dataset: columns `x` and `y` of token ids without special tokens, `y` empty (`None`) for monolingual text.
        seed: of the run.
    """

    def __init__(self, dataset: Dataset, seed: int) -> None:
        self.dataset, self.seed = dataset.select_columns(["x", "y"]), seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, draws: NDArray[np.int64]) -> list[dict[str, Any]]:
        """The rows of a batch of `Draw`s, (rows, 3)."""
        rows = self.dataset[draws[:, 0]]
        seeds = [row_seed(self.seed, draw.epoch, draw.row, draw.repeat) for draw in map(Draw._make, draws.tolist())]
        return [{"x": x, "y": y, "seed": seed} for x, y, seed in zip(rows["x"], rows["y"], seeds)]
