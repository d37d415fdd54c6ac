"""Precision, recall and F1 of mined pairs."""

from collections.abc import Collection
from typing import Any


def pair_f1(predictions: Collection[tuple[str, ...]], references: Collection[tuple[str, ...]]) -> dict[str, float]:
    """F1, precision and recall of pairs of sentence ids, in percent; repeated pairs count once (BUCC 2018).

    >>> pair_f1({("de-1", "en-1"), ("de-2", "en-3")}, {("de-1", "en-1")})["precision"]
    50.0
    """
    return overlap(set(predictions), set(references))


def overlap(predicted: set[Any], reference: set[Any]) -> dict[str, float]:
    """F1, precision and recall of a predicted set, in percent; 0 where undefined."""
    right = len(predicted & reference)
    precision = right / len(predicted) if predicted else 0.0
    recall = right / len(reference) if reference else 0.0
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    return {"f1": f1 * 100, "precision": precision * 100, "recall": recall * 100}
