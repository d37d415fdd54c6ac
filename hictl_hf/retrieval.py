"""Nearest neighbours among sentence vectors: how often a sentence finds its translation."""

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.floating]


def retrieval_accuracy(x: Vectors, y: Vectors, block: int = 1024) -> tuple[float, float]:
    """Percent of rows of x whose nearest row of y, by cosine, is the one of the same number; and the other way round.

    A tie with a wrong row counts as an error.

    Args:
        x, y: (sentences, d), row i of one being the translation of row i of the other.
        block: rows compared at a time, which bounds the memory to block × sentences.

    >>> retrieval_accuracy(np.eye(2), np.array([[1.0, 0.1], [1.0, 0.2]]))
    (100.0, 50.0)
    """
    x, y = (v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-12) for v in (x, y))
    return one_direction(x, y, block), one_direction(y, x, block)


def one_direction(queries: Vectors, keys: Vectors, block: int) -> float:
    """Percent of unit rows of `queries` that are nearest to the same row of `keys`."""
    right = 0
    for start in range(0, len(queries), block):
        scores = queries[start : start + block] @ keys.T  # (block, sentences)
        own = np.arange(len(scores))
        partner = scores[own, own + start].copy()
        scores[own, own + start] = -np.inf
        right += int((partner > scores.max(1)).sum())
    return 100 * right / len(queries)
