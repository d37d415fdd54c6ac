"""Mine translations among two texts, score given pairs the same way, and find near-duplicates in one text.

The input is sentences or their vectors, and memory is bounded. The search is exact, or in an index (FAISS) for texts
too large for that.

    from hictl_hf.embedding.encoder import load_encoder
    from hictl_hf.retrieval.mining import mine
    for score, german, english in mine(german_sentences, english_sentences, *load_encoder("runs/demo/encoder")):
        ...
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.tokenization import list_of_texts
from ..embedding.encoder import embed_sentences
from ..embedding.pooling import Pooling
from ..files import readable
from ..processes import ALONE, Processes, hides_progress
from ..training.partial_output import reading_part
from .bitext import (
    MARGINS,
    Direction,
    Margin,
    UnitRows,
    check_ways,
    one_to_one,
    pair_neighbours,
    rows_at,
    warn_of_ratios,
)
from .index_search import IndexSearch, check_index, keep
from .nearest_neighbours import MEMORY, Neighbours, Rows, Search, Source, Vectors, plan_search

SAVED_EVERY = 60.0  # seconds


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
    index: str | None = None
    """Factory string of the FAISS index of an approximate search (`index_search`); `None`: the search is exact."""
    index_parameters: str | None = None
    """Parameters of the search in the index, such as "nprobe=64"."""
    max_memory: int = MEMORY
    """Bytes that a search may need in addition to the vectors, which may be memory maps; with an index, of a shard."""
    device: str = "cpu"
    """Where an exact search runs; an index is searched on the CPU."""

    def __post_init__(self) -> None:
        check_ways(self.margin, self.direction, self.threshold)
        if self.index_parameters and not self.index:
            raise ValueError("index_parameters is given without an index; allowed is both, or none of them.")
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
    pooling: Pooling | None = None,
    *,
    prompt: str | None = None,
    max_length: int | None = None,
) -> list[ScoredPair]:
    """Mine likely translations, the best first; repeated sentences are used once.

    Args:
        pooling, prompt, max_length: as in `embedding.embed_sentences`.
    """
    x, y = (list(dict.fromkeys(list_of_texts(side))) for side in (x, y))
    vectors_x, vectors_y = (
        embed_sentences(model, tokenizer, side, pooling, prompt=prompt, max_length=max_length, progress=True)
        for side in (x, y)
    )
    pairs, scores = mine_vectors(vectors_x, vectors_y, settings)
    return [ScoredPair(score, x[i], y[j]) for (i, j), score in zip(pairs.tolist(), scores.tolist())]


def mine_vectors(
    x: Source | Tensor, y: Source | Tensor, settings: MiningConfig = MiningConfig(), kept: Path | None = None
) -> tuple[Rows, Vectors]:
    """(pairs, 2) rows of x and y, and (pairs,) their scores, the best first.

    Args:
        x, y: (sentences, d), of any norm, one or more on each side; may be memory maps or tensors.
        kept: file in which the search is saved, and from which it is resumed.
    """
    found = find_neighbours(UnitRows(x), UnitRows(y), settings, kept)
    pairs, scores = pair_neighbours(*found, settings.margin, settings.direction, settings.threshold)
    if settings.one_to_one:
        pairs, scores = one_to_one(pairs, scores)
    order = np.argsort(-scores, kind="stable")
    return pairs[order], scores[order]


def score_pairs(
    x: Source | Tensor,
    y: Source | Tensor,
    pairs: Rows,
    settings: MiningConfig = MiningConfig(),
    kept: Path | None = None,
) -> Vectors:
    """(pairs,) the margin scores of given pairs (pairs, 2) of rows, among the neighbours in x and y.

    Args:
        kept: as in `mine_vectors`.
    """
    x, y = UnitRows(x), UnitRows(y)
    if not len(pairs):
        return np.zeros(0, np.float32)
    step = 4096
    parts = [pairs[start : start + step] for start in range(0, len(pairs), step)]
    cosines = [(rows_at(x, part[:, 0]) * rows_at(y, part[:, 1])).sum(1) for part in parts]
    cosine: Vectors = np.concatenate(cosines)
    if settings.margin == "absolute":
        return cosine
    mean_x, mean_y = (side.similarities.mean(1) for side in find_neighbours(x, y, settings, kept))
    warn_of_ratios(settings.margin, mean_x, mean_y)
    return MARGINS[settings.margin](cosine, (mean_x[pairs[:, 0]] + mean_y[pairs[:, 1]]) / 2)


def find_distinct(
    x: Source | Tensor, above: float, settings: MiningConfig = MiningConfig(), kept: Path | None = None
) -> Rows:
    """The rows without an earlier row, kept or not, whose cosine with them is above the number; always exact."""
    rows = UnitRows(x)
    search = make_search(rows, rows, settings, only_earlier=True)
    run(search, kept)
    return np.flatnonzero(search.neighbours()[0].similarities[:, 0] <= above)


def find_neighbours(
    x: UnitRows, y: UnitRows, settings: MiningConfig, kept: Path | None = None
) -> tuple[Neighbours, Neighbours]:
    """The neighbours of x among y, and of y among x."""
    if settings.index:
        with TemporaryDirectory() as temporary:
            place = kept or Path(temporary, "neighbours.npz")
            share_index_search(x, y, settings, place)
            forward, backward = (search.neighbours() for search in index_searches(x, y, settings, place))
            return forward, backward
    search = make_search(x, y, settings)
    run(search, kept)
    return search.neighbours()


def make_search(x: UnitRows, y: UnitRows, settings: MiningConfig, only_earlier: bool = False) -> Search:
    """An exact search that needs at most the memory of the settings; with `only_earlier` for the nearest row alone."""
    k = 1 if only_earlier else settings.neighbours
    plan = plan_search(x, y, k, settings.max_memory, settings.device)
    return Search(x, y, k, plan, device=settings.device, only_earlier=only_earlier)


def index_searches(x: UnitRows, y: UnitRows, settings: MiningConfig, kept: Path) -> tuple[IndexSearch, IndexSearch]:
    """The searches of x's neighbours and of y's, in folders next to a file."""
    assert settings.index is not None
    k, index, parameters, memory = settings.neighbours, settings.index, settings.index_parameters, settings.max_memory
    return (
        IndexSearch(x, y, k, index, kept.with_name("index-y"), parameters, memory),
        IndexSearch(y, x, k, index, kept.with_name("index-x"), parameters, memory),
    )


def share_index_search(
    x: UnitRows, y: UnitRows, settings: MiningConfig, kept: Path, processes: Processes = ALONE
) -> None:
    """Search both directions, this process's share of it, in folders next to a file."""
    for search in index_searches(x, y, settings, kept):
        search.run(processes)


def describe(x: Source, y: Source, settings: MiningConfig, only_earlier: bool = False) -> str:
    """Describe the cost of a search in words, from the sizes of x and y."""
    if settings.index and not only_earlier:
        check_index(settings.index, settings.index_parameters, x.shape[1], min(len(x), len(y)))
        return (
            f"search of {len(x):,} x {len(y):,} vectors of {x.shape[1]} numbers in FAISS's index {settings.index}, in "
            f"shards of at most {readable(settings.max_memory)}"
        )
    plan = plan_search(x, y, 1 if only_earlier else settings.neighbours, settings.max_memory, settings.device)
    comparisons = len(x) * len(y) // (2 if only_earlier else 1)
    return (
        f"exact search of {len(x):,} x {len(y):,} vectors of {x.shape[1]} numbers: {comparisons:,} comparisons, at "
        f"most {readable(plan.memory)} in addition to the vectors ({min(plan.x, len(x)):,} x {min(plan.y, len(y)):,} "
        "at a time)"
    )


def run(search: Search, kept: Path | None, processes: Processes = ALONE) -> None:
    """Run the search to its end, or this process's share of it, and load all that is saved before and afterwards.

    It is saved in the file every `SAVED_EVERY` seconds; the other processes than the main one have a file each next to
    it. Only the main process knows all neighbours afterwards.
    """
    if kept is None:
        own, left = None, list(range(len(search.done)))
    else:
        own = kept if processes.is_main else kept.with_name(f"{kept.stem}-{processes.index}{kept.suffix}")
        left = processes.on_main(lambda: load_all(search, kept))
    some = processes.share(left)
    last = time.monotonic()
    with tqdm(desc="search", total=len(some), disable=hides_progress(), leave=False) as bar:
        for _ in search.strips({*some}):
            bar.update()
            if own is not None and time.monotonic() - last >= SAVED_EVERY:
                keep(search.save(), own)
                last = time.monotonic()
    if kept is not None and processes.number > 1:
        if not processes.is_main:
            keep(search.save(), own or kept)
        processes.wait()
        processes.on_main(lambda: load_all(search, kept))


def load_all(search: Search, kept: Path) -> list[int]:
    """Load what the processes have saved, and keep it in one file; the numbers of the strips that are left."""
    files = sorted(kept.parent.glob(f"{kept.stem}*{kept.suffix}"), key=lambda file: file != kept)
    for file in files:  # the main process's first, which may have what is in the others
        with reading_part(file), np.load(file) as saved:
            search.load(saved)
    if any(file != kept for file in files):
        keep(search.save(), kept)
        for file in files:
            if file != kept:
                file.unlink()
    return np.flatnonzero(~search.done).tolist()
