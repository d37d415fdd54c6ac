"""Mine translations among two texts, score given pairs the same way, and find near-duplicates in one text.

The input is sentences or their vectors, and memory is bounded. The search is exact, or approximate (FAISS) for texts
too large for that.

    from hictl_hf.embedding.encoder import load_encoder
    from hictl_hf.retrieval.mining import mine
    for score, german, english in mine(german_sentences, english_sentences, *load_encoder("runs/demo/encoder")):
        ...
"""

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..embedding.encoder import embed_sentences
from ..errors import BadInput
from .bitext import MARGINS, Direction, Margin, UnitRows, blocks, check_ways, one_to_one, pair_neighbours
from .nearest_neighbours import MEMORY, Neighbours, Rows, Search, Source, Vectors, plan_search

Approximation = Literal["ivf", "hnsw"]
SAVED_EVERY = 60.0  # seconds
LISTS_SEARCHED = 32  # of an inverted file
GRAPH_NEIGHBOURS, GRAPH_CANDIDATES = 32, 128  # of HNSW


@dataclass(frozen=True)
class MiningConfig:
    """Settings of a search: how pairs are scored and chosen (`bitext.pair_neighbours`)."""

    margin: Margin = "ratio"
    direction: Direction = "max"
    neighbours: int = 4
    threshold: float = -math.inf
    """Pairs that score more are kept."""
    one_to_one: bool = False
    """Also for "forward" and "backward" keep each sentence in one pair at most, as the other directions always do."""
    approximate: Approximation | None = None
    max_memory: int = MEMORY
    """Bytes that an exact search may need in addition to the vectors, which may be memory maps."""
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_ways(self.margin, self.direction)
        if self.approximate not in (None, *get_args(Approximation)):
            raise ValueError(f"{self.approximate!r} is no way to search; allowed are ivf, hnsw.")
        if self.neighbours < 1:
            raise ValueError(f"neighbours is {self.neighbours}; allowed is 1 or more.")


class ScoredPair(NamedTuple):
    """A sentence of each text and their margin score."""

    score: float
    x: str
    y: str


def mine(
    x: Sequence[str],
    y: Sequence[str],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: MiningConfig = MiningConfig(),
) -> list[ScoredPair]:
    """Mine likely translations, the best first; repeated sentences are used once."""
    x, y = list(dict.fromkeys(x)), list(dict.fromkeys(y))
    vectors_x, vectors_y = (embed_sentences(model, tokenizer, side, progress=True) for side in (x, y))
    pairs, scores = mine_vectors(vectors_x, vectors_y, settings)
    return [ScoredPair(score, x[i], y[j]) for (i, j), score in zip(pairs.tolist(), scores.tolist())]


def mine_vectors(
    x: Source, y: Source, settings: MiningConfig = MiningConfig(), kept: Path | None = None
) -> tuple[Rows, Vectors]:
    """(pairs, 2) rows of x and y, and (pairs,) their scores, the best first.

    Args:
        x, y: (sentences, d), of any norm, one or more on each side; may be memory maps.
        kept: file in which the search is saved, and from which it is resumed.
    """
    found = find_neighbours(UnitRows(x), UnitRows(y), settings, kept)
    pairs, scores = pair_neighbours(*found, settings.margin, settings.direction, settings.threshold)
    if settings.one_to_one:
        pairs, scores = one_to_one(pairs, scores)
    order = np.argsort(-scores, kind="stable")
    return pairs[order], scores[order]


def score_pairs(
    x: Source, y: Source, pairs: Rows, settings: MiningConfig = MiningConfig(), kept: Path | None = None
) -> Vectors:
    """(pairs,) the margin scores of given pairs (pairs, 2) of rows, among the neighbours in x and y.

    Args:
        kept: as in `mine_vectors`.
    """
    x, y = UnitRows(x), UnitRows(y)
    step = 4096
    parts = [pairs[start : start + step] for start in range(0, len(pairs), step)]
    cosines = [(rows_at(x, part[:, 0]) * rows_at(y, part[:, 1])).sum(1) for part in parts]
    cosine: Vectors = np.concatenate(cosines)
    if settings.margin == "absolute":
        return cosine
    mean_x, mean_y = (side.similarities.mean(1) for side in find_neighbours(x, y, settings, kept))
    return MARGINS[settings.margin](cosine, (mean_x[pairs[:, 0]] + mean_y[pairs[:, 1]]) / 2)


def find_distinct(x: Source, above: float, settings: MiningConfig = MiningConfig(), kept: Path | None = None) -> Rows:
    """The rows without an earlier row, kept or not, whose cosine with them is above the number; always exact."""
    rows = UnitRows(x)
    plan = plan_search(rows, rows, 1, settings.max_memory, settings.device)
    search = Search(rows, rows, 1, plan, device=settings.device, only_earlier=True)
    run(search, kept)
    return np.flatnonzero(search.neighbours()[0].similarities[:, 0] <= above)


def find_neighbours(
    x: UnitRows, y: UnitRows, settings: MiningConfig, kept: Path | None = None
) -> tuple[Neighbours, Neighbours]:
    """The neighbours of x among y, and of y among x."""
    if settings.approximate:
        return (
            search_approximately(x, y, settings.neighbours, settings.approximate),
            search_approximately(y, x, settings.neighbours, settings.approximate),
        )
    plan = plan_search(x, y, settings.neighbours, settings.max_memory, settings.device)
    search = Search(x, y, settings.neighbours, plan, device=settings.device)
    run(search, kept)
    return search.neighbours()


def describe(x: Source, y: Source, settings: MiningConfig, only_earlier: bool = False) -> str:
    """Describe the cost of a search in words, from the sizes of x and y."""
    if settings.approximate and not only_earlier:
        links = 8 * GRAPH_NEIGHBOURS if settings.approximate == "hnsw" else 8
        memory = (4 * x.shape[1] + links) * max(len(x), len(y))
        return f"approximate search ({settings.approximate}) of {len(x):,} x {len(y):,} vectors: {in_words(memory)}"
    plan = plan_search(x, y, 1 if only_earlier else settings.neighbours, settings.max_memory, settings.device)
    comparisons = len(x) * len(y) // (2 if only_earlier else 1)
    return (
        f"exact search of {len(x):,} x {len(y):,} vectors of {x.shape[1]} numbers: {comparisons:,} comparisons, at "
        f"most {in_words(plan.memory)} in addition to the vectors ({min(plan.x, len(x)):,} x {min(plan.y, len(y)):,} "
        "at a time)"
    )


def in_words(size: int) -> str:
    """
    >>> in_words(3_210_000_000)
    '3.21 GB'
    """
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def run(search: Search, kept: Path | None) -> None:
    """Run the search to its end, resumed from the file if it exists; save it there every `SAVED_EVERY` seconds."""
    if kept is not None and kept.exists():
        with np.load(kept) as saved:
            search.load(saved)
    last = time.monotonic()
    with tqdm(desc="search", total=search.count_strips(), initial=search.done, disable=None, leave=False) as bar:
        for _ in search.strips():
            bar.update()
            if kept is not None and time.monotonic() - last >= SAVED_EVERY:
                keep(search.save(), kept)
                last = time.monotonic()


def keep(saved: dict[str, NDArray[Any]], path: Path) -> None:
    """Write arrays to a file atomically."""
    draft = path.with_name(f".{path.name}")
    with draft.open("wb") as file:
        np.savez(file, allow_pickle=False, **saved)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def rows_at(vectors: UnitRows, rows: Rows) -> Vectors:
    return UnitRows(SomeRows(vectors.vectors, rows))[:]


class SomeRows:
    """Some rows of vectors, in any order, read on access."""

    def __init__(self, vectors: Source, rows: Rows) -> None:
        self.vectors, self.rows = vectors, rows
        self.shape, self.dtype = (len(rows), vectors.shape[1]), vectors.dtype

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, some: slice, /) -> Vectors:
        rows: Vectors = self.vectors[self.rows[some]]  # type: ignore[index]  # arrays take rows, too
        return rows


def search_approximately(queries: UnitRows, keys: UnitRows, k: int, way: Approximation) -> Neighbours:
    """Approximate neighbours by FAISS: by an inverted file ("ivf") or an HNSW graph; some are missed.

    If fewer than k are found, the first one fills the other slots.
    """
    try:
        import faiss
    except ImportError as error:
        raise BadInput(
            "approximate search needs FAISS, which is not installed; allowed without it is exact search. "
            "Install it: pip install 'hictl_hf[mining]'."
        ) from error
    width, k = keys.shape[1], min(k, len(keys))
    if way == "hnsw":
        index: Any = faiss.IndexHNSWFlat(width, GRAPH_NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efSearch = max(GRAPH_CANDIDATES, k)
    else:
        lists = max(1, min(int(4 * len(keys) ** 0.5), len(keys) // 39))  # FAISS wants 39 vectors for each
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, lists, faiss.METRIC_INNER_PRODUCT)
        index.nprobe = LISTS_SEARCHED
        index.train(keys[:: max(1, len(keys) // (256 * lists))].astype(np.float32))  # all that FAISS would look at
    for rows in blocks(keys):
        index.add(rows.astype(np.float32))
    similarities, found = map(
        np.concatenate, zip(*(index.search(rows.astype(np.float32), k) for rows in blocks(queries)))
    )
    missed = found < 0
    found = np.where(missed, found[:, :1], found)
    similarities = np.where(missed, similarities[:, :1], similarities)
    if (found < 0).any():
        raise RuntimeError("FAISS found no neighbour of some vectors; search exactly.")
    return Neighbours(found, similarities)
