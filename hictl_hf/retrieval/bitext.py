"""Retrieval accuracy and bitext mining by margin (Artetxe and Schwenk, ACL 2019) from sentence vectors.

All results are exact, and memory is linear in the number of sentences.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .nearest_neighbours import Neighbours, Rows, Source, Vectors, as_rows, search_both

logger = logging.getLogger(__name__)

IdPair = tuple[str, str]  # ids of a query and a candidate
Margin = Literal["ratio", "distance", "absolute"]
Direction = Literal["max", "intersect", "forward", "backward"]
MARGINS: dict[Margin, Callable[[Vectors, Vectors], Vectors]] = {
    "ratio": lambda similarity, mean: similarity / mean,
    "distance": lambda similarity, mean: similarity - mean,
    "absolute": lambda similarity, mean: similarity,
}
TIE = 1e-12  # cosines that differ by less are treated as equal: rounding


@dataclass(frozen=True)
class Bitext:
    """Two sets of sentences with ids, to mine translations from; `gold` has the true pairs if they are known."""

    queries: Sequence[str]
    candidates: Sequence[str]
    query_ids: Sequence[str]
    candidate_ids: Sequence[str]
    gold: frozenset[IdPair] | None = None


def retrieval_accuracy(x: Vectors | Tensor, y: Vectors | Tensor, block: int = 1024) -> tuple[float, float]:
    """Percent of rows of x whose nearest row of y, by cosine, has the same index; and the same from y to x.

    Computed in double precision. A tie with a wrong row counts as an error, and so does a pair with infinity or NaN in
    a vector; the number of such pairs is logged as a warning.

    Args:
        x, y: (sentences, d), arrays or tensors, rows i are translations of each other.
        block: rows compared at a time; memory is proportional to block × sentences.

    >>> retrieval_accuracy(np.eye(2), np.array([[1.0, 0.1], [1.0, 0.2]]))
    (100.0, 50.0)
    """
    forward, backward = retrieval_hits(x, y, block).sum(1).tolist()
    return 100 * forward / len(x), 100 * backward / len(x)


def retrieval_hits(x: Vectors | Tensor, y: Vectors | Tensor, block: int = 1024) -> NDArray[np.bool_]:
    """(2, sentences) whether each row of x finds its row of y, and each row of y that of x, as in `retrieval_accuracy`.

    >>> retrieval_hits(np.eye(2), np.array([[1.0, 0.1], [1.0, 0.2]])).tolist()
    [[True, True], [True, False]]
    """
    x, y = (np.asarray(as_rows(side), np.float64) for side in (x, y))
    if x.shape != y.shape:
        raise ValueError(f"x is {x.shape}, y {y.shape}; allowed are vectors of one model, of as many translations.")
    if not len(x):
        raise ValueError("x and y have no row; allowed is one or more. Give the vectors of some translations.")
    if broken := int((~(np.isfinite(x).all(1) & np.isfinite(y).all(1))).sum()):
        logger.warning("%d of %d pairs have a vector with infinity or NaN and count as not found", broken, len(x))
    with np.errstate(invalid="ignore"):  # infinite by infinite
        unit_x, unit_y = (v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-12) for v in (x, y))
    return np.stack([hits_in_one_direction(unit_x, unit_y, block), hits_in_one_direction(unit_y, unit_x, block)])


def hits_in_one_direction(queries: Vectors, keys: Vectors, block: int) -> NDArray[np.bool_]:
    """(queries,) whether the nearest row of `keys` to each unit row of `queries` has the same index."""
    hits = np.empty(len(queries), bool)
    for start in range(0, len(queries), block):
        scores = queries[start : start + block] @ keys.T  # (block, sentences)
        scores[np.isnan(scores)] = -np.inf
        own = np.arange(len(scores))
        partner = scores[own, own + start]  # a copy
        scores[own, own + start] = -np.inf
        hits[start : start + block] = partner > scores.max(1) + TIE
    return hits


def nearest(queries: Vectors, candidates: Vectors, block: int = 1024) -> Rows:
    """(queries,) the row of `candidates` nearest to each query by cosine, in double precision; ties go to the first.

    Args:
        queries, candidates: (sentences, d), of any norm; one or more on each side, not necessarily equally many.
        block: queries compared at a time; memory is proportional to block × candidates.

    >>> nearest(np.array([[0.0, 2], [1, 0]]), np.array([[3.0, 0], [1, 1], [0, 1], [0, 4]])).tolist()
    [2, 0]
    """
    keys = unit_rows(candidates.astype(np.float64))
    found = []
    for start in range(0, len(queries), block):
        scores = unit_rows(queries[start : start + block].astype(np.float64)) @ keys.T  # (block, candidates)
        found.append((scores > scores.max(1, keepdims=True) - TIE).argmax(1))
    return np.concatenate(found)


def unit_rows(vectors: Vectors) -> Vectors:
    """Scale rows to length 1, except zero rows; half precision becomes single. `ValueError` for infinity or NaN."""
    vectors = np.asarray(vectors, np.result_type(vectors, np.float32))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(lengths).all():
        raise ValueError("a vector has infinity or NaN; allowed are finite numbers.")
    return vectors / np.maximum(lengths, 1e-12)


# --- mining -----------------------------------------------------------------------------------------------------------


class UnitRows:
    """Vectors that are scaled to length 1 on access."""

    def __init__(self, vectors: Source | Tensor) -> None:
        vectors = as_rows(vectors)
        self.vectors, self.shape = vectors, (len(vectors), vectors.shape[1])
        self.dtype = np.result_type(vectors.dtype, np.float32)

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, some: slice, /) -> Vectors:
        return unit_rows(self.vectors[some])


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


def rows_at(vectors: UnitRows, rows: Rows) -> Vectors:
    """(rows,) some of the unit rows, in any order."""
    return UnitRows(SomeRows(vectors.vectors, rows))[:]


def mine_bitext(
    x: Source | Tensor,
    y: Source | Tensor,
    margin: Margin = "ratio",
    direction: Direction = "max",
    neighbours: int = 4,
    threshold: float = 0.0,
) -> tuple[Rows, Vectors]:
    """Mine likely translations: (pairs, 2) rows of x and y, and (pairs,) their scores (`pair_neighbours`).

    Computed in single precision unless x or y is double. The vectors are read block by block and may be memory maps.

    Args:
        x, y: (sentences, d), of any norm; one or more on each side, not necessarily equally many.
        margin, direction, threshold: as in `pair_neighbours`.
        neighbours: k, over whose cosines the margin averages; fewer if the other side has fewer sentences.
    """
    check_ways(margin, direction, threshold)
    return pair_neighbours(*search_both(UnitRows(x), UnitRows(y), neighbours), margin, direction, threshold)


def check_ways(margin: str, direction: str, threshold: float) -> None:
    """Raise `ValueError` for an unknown margin or direction, and for a threshold that no score is above."""
    for value, allowed in ((margin, get_args(Margin)), (direction, get_args(Direction))):
        if value not in allowed:
            raise ValueError(f"{value!r} is no way to mine; allowed are {', '.join(allowed)}.")
    if math.isnan(threshold):
        raise ValueError("threshold is nan; allowed are numbers, and -inf for all pairs.")


def pair_neighbours(
    forward: Neighbours, backward: Neighbours, margin: Margin, direction: Direction, threshold: float = 0.0
) -> tuple[Rows, Vectors]:
    """Score neighbours by margin and choose pairs: (pairs, 2) rows of x and y, and (pairs,) scores above the threshold.

    With c the cosine of a sentence and a neighbour, and m the mean cosine of both with their k neighbours, the score is
    c / m ("ratio"), c - m ("distance") or c ("absolute"). Each sentence keeps its neighbour with the highest score.
    Where m is not positive, ratios mean nothing, which is logged. The direction then chooses among these pairs:

    - max: of both directions, greedily from the highest score down, each sentence in one pair at most; ties in the
      order of x's, then of y's sentences.
    - intersect: those in both directions, in the order of x.
    - forward: those of each x, in the order of x; backward: those of each y, in the order of y (XTREME's code fails on
      both).

    Args:
        forward: neighbours of each x among y.
        backward: neighbours of each y among x.
    """
    mean_x, mean_y = (side.similarities.mean(1) for side in (forward, backward))
    warn_of_ratios(margin, mean_x, mean_y)
    best_y, scores_x = best_neighbours(forward, mean_x, mean_y, margin)
    best_x, scores_y = best_neighbours(backward, mean_y, mean_x, margin)
    from_x = np.stack([np.arange(len(best_y)), best_y], 1)  # (x, 2)
    from_y = np.stack([best_x, np.arange(len(best_x))], 1)  # (y, 2)
    if direction == "max":
        pairs, scores = one_to_one(np.concatenate([from_x, from_y]), np.concatenate([scores_x, scores_y]))
    elif direction == "intersect":
        mutual = best_x[best_y] == np.arange(len(best_y))
        pairs, scores = from_x[mutual], scores_x[mutual]
    else:
        pairs, scores = (from_x, scores_x) if direction == "forward" else (from_y, scores_y)
    kept = scores > threshold
    return pairs[kept], scores[kept]


def warn_of_ratios(margin: Margin, *means: Vectors) -> None:
    """Log how many sentences have a mean cosine with their neighbours that is not positive; ratios to it mean nothing.

    Args:
        means: (sentences,) mean cosines of each side.
    """
    lost, total = (sum(map(count, means)) for count in (lambda side: int((side <= 0).sum()), len))
    if margin == "ratio" and lost:
        logger.warning(
            "%s of %s sentences have a mean cosine of 0 or less with their neighbours; the ratios of their pairs mean "
            "nothing, and the highest scores may be wrong pairs; use the margin distance",
            f"{lost:,}",
            f"{total:,}",
        )


def best_neighbours(own: Neighbours, mean: Vectors, other_mean: Vectors, margin: Margin) -> tuple[Rows, Vectors]:
    """(rows,) the neighbour of each row with the highest margin score, and (rows,) that score."""
    scores = MARGINS[margin](own.similarities, (mean[:, None] + other_mean[own.rows]) / 2)  # (rows, k)
    number, best = np.arange(len(scores)), scores.argmax(1)
    return own.rows[number, best], scores[number, best]


def one_to_one(pairs: Rows, scores: Vectors) -> tuple[Rows, Vectors]:
    """Greedily keep pairs from the highest score down, each sentence in one pair at most."""
    order = np.argsort(-scores, kind="stable")
    seen_x, seen_y, kept = set(), set(), []
    for number, (x, y) in zip(order.tolist(), pairs[order].tolist()):
        if x not in seen_x and y not in seen_y:
            seen_x.add(x)
            seen_y.add(y)
            kept.append(number)
    return pairs[kept], scores[kept]


# --- BUCC 2018 --------------------------------------------------------------------------------------------------------


def mine_id_pairs(bitext: Bitext, queries: Vectors, candidates: Vectors) -> dict[IdPair, float]:
    """Margin score by pair of ids, mined with the defaults of `mine_bitext`, like XTREME for BUCC.

    Of a sentence that is repeated on its side only the last vector is searched, and its pairs are then dropped.

    Args:
        queries, candidates: (sentences, d) of the bitext's two sides.
    """
    sides = ((bitext.queries, queries), (bitext.candidates, candidates))
    for sentences, vectors in sides:
        if len(sentences) != len(vectors):
            raise ValueError(f"{len(vectors)} vectors for {len(sentences)} sentences; allowed is one for each.")
    x, y = (last_occurrences(sentences) for sentences, _ in sides)
    pairs, scores = mine_bitext(queries[x], candidates[y])
    mined = zip(x[pairs[:, 0]].tolist(), y[pairs[:, 1]].tolist(), scores.tolist())
    return scores_by_ids(bitext, ((bitext.queries[i], bitext.candidates[j], score) for i, j, score in mined))


def last_occurrences(sentences: Sequence[str]) -> Rows:
    """The row of the last occurrence of each sentence, in the order of the first ones.

    >>> last_occurrences(["a", "b", "a", "c"]).tolist()
    [2, 1, 3]
    """
    return np.array(list({sentence: row for row, sentence in enumerate(sentences)}.values()), np.int64)


def scores_by_ids(bitext: Bitext, mined: Iterable[tuple[str, str, float]]) -> dict[IdPair, float]:
    """Score by pair of ids, from mined (query, candidate, score) in their order; repeated pairs keep the highest score.

    Sentences are compared without surrounding white space. Sentences that the bitext lacks, or repeats on their side,
    are dropped.
    """
    query_ids = ids_of_single_sentences(bitext.queries, bitext.query_ids)
    candidate_ids = ids_of_single_sentences(bitext.candidates, bitext.candidate_ids)
    scores: dict[IdPair, float] = {}
    for query, candidate, score in mined:
        query, candidate = query.strip(), candidate.strip()
        if query in query_ids and candidate in candidate_ids:
            pair = query_ids[query], candidate_ids[candidate]
            scores[pair] = max(score, scores.get(pair, score))
    return scores


def ids_of_single_sentences(sentences: Iterable[str], ids: Iterable[str]) -> dict[str, str]:
    """The ids of the sentences, without surrounding white space, that occur once."""
    stripped = [sentence.strip() for sentence in sentences]
    times = Counter(stripped)
    return {sentence: name for sentence, name in zip(stripped, ids, strict=True) if times[sentence] == 1}


def best_threshold(scores: Mapping[IdPair, float], gold: Collection[IdPair]) -> float:
    """The threshold of the scores with the highest F1 against `gold`; 0 if no pair is right.

    As in XTREME's code, pairs are added one by one from the highest score down, ties in the order given, and the
    threshold is the mean of the score at the first highest F1 and the next score. If these two are equal, the threshold
    includes both, and its F1 may be lower. If F1 is highest with all pairs, the threshold is the last score; XTREME's
    code fails there.

    >>> best_threshold({("a", "1"): 1.5, ("b", "2"): 1.25, ("c", "9"): 0.75}, {("a", "1"), ("b", "2"), ("c", "3")})
    1.0
    """
    pairs = sorted(scores, key=lambda pair: -scores[pair])
    right, best_f1, threshold = 0, 0.0, 0.0
    for number, pair in enumerate(pairs, start=1):
        right += pair in gold
        precision, recall = right / number, right / max(len(gold), 1)
        f1 = 2 * precision * recall / (precision + recall) if right else 0.0
        if f1 > best_f1:
            following = pairs[number] if number < len(pairs) else pair
            best_f1, threshold = f1, (scores[pair] + scores[following]) / 2
    return threshold


def extract_pairs(scores: Mapping[IdPair, float], threshold: float) -> list[IdPair]:
    """The pairs with a score of at least the threshold, in the order given.

    >>> extract_pairs({("a", "1"): 1.5, ("b", "2"): 1.0, ("c", "3"): 0.5}, 1.0)
    [('a', '1'), ('b', '2')]
    """
    return [pair for pair, score in scores.items() if score >= threshold]
