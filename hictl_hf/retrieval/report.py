"""Report of mined pairs against the true ones: precision and recall at each threshold, as JSON, plot and page."""

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..files import write_json
from ..reports.page import OF_SENTENCES, Listing, Picture, write_sections
from ..reports.results import RESULTS_FILE
from ..reports.tables import Table
from .accuracy import pair_f1
from .bitext import IdPair, best_threshold, extract_pairs
from .nearest_neighbours import Vectors
from .plots import plot_precision_and_recall

logger = logging.getLogger(__name__)

ROWS_SHOWN = 15  # of a table
OF_THRESHOLDS = (
    "In percent, of the pairs that score the threshold or more. The argument --threshold of hictl mine keeps pairs "
    "that score more than it: give it a little less."
)


class Curve(NamedTuple):
    """Precision and recall, in percent, of the pairs that score each threshold or more; the highest threshold first."""

    thresholds: Vectors
    precision: Vectors
    recall: Vectors

    @property
    def f1(self) -> Vectors:
        total = self.precision + self.recall
        return np.divide(2 * self.precision * self.recall, total, out=np.zeros_like(total), where=total > 0)


def precision_and_recall(scores: Mapping[IdPair, float], gold: Collection[IdPair]) -> Curve:
    """
    >>> curve = precision_and_recall({("a", "1"): 1.5, ("b", "9"): 1.25, ("b", "2"): 1.0}, {("a", "1"), ("b", "2")})
    >>> curve.thresholds.tolist(), curve.precision.round(1).tolist(), curve.recall.tolist()
    ([1.5, 1.25, 1.0], [100.0, 50.0, 66.7], [50.0, 50.0, 100.0])
    """
    pairs = sorted(scores, key=lambda pair: -scores[pair])
    thresholds = np.array([scores[pair] for pair in pairs])
    right = np.cumsum([pair in gold for pair in pairs])
    last = np.flatnonzero(np.diff(thresholds, append=-np.inf))  # pairs of equal scores are taken together
    taken = last + 1
    return Curve(thresholds[last], 100 * right[last] / taken, 100 * right[last] / len(gold))


def write_mining_report(
    folder: str | Path,
    scores: Mapping[IdPair, float],
    gold: Collection[IdPair],
    facts: Sequence[tuple[str, str]],
    command: str,
) -> Path:
    """Write `report.html`, `report.md`, `results.json` and the picture; returns the path of the page.

    Args:
        scores: of each mined pair of sentences.
        gold: all true pairs; every other pair counts as wrong.
        facts: numbers of the search, each with its label.
        command: that reproduces the result.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    curve, threshold = precision_and_recall(scores, gold), best_threshold(scores, gold)
    best = pair_f1(extract_pairs(scores, threshold), gold)
    picture = plot_precision_and_recall(curve.recall, curve.precision, best, folder / "precision_and_recall.png")
    write_json(
        folder / RESULTS_FILE,
        {
            "threshold": threshold,
            "best": best,
            "all": pair_f1(list(scores), gold),
            "mined": len(scores),
            "gold": len(gold),
            "command": command,
            "curve": {name: values.tolist() for name, values in curve._asdict().items()},
        },
    )
    caption = (
        "A mined pair that is not among the given ones counts as wrong, although it may be a translation. The best "
        "threshold is chosen on these same pairs; with one that was chosen before, F1 is usually lower."
    )
    numbers = [(f"{best['f1']:.1f}%", "best F1"), (f"{threshold:.4f}", "at this threshold"), *facts]
    page = write_sections(
        folder,
        f"Mined pairs: F1 {best['f1']:.1f}% at the best threshold",
        numbers,
        {
            "Precision and recall": [Picture("Precision and recall", caption, picture)],
            "Thresholds": [threshold_table(curve)],
            "Wrong at the best threshold": [wrong_pairs(scores, gold, threshold)],
            "Command": [Listing("Command", command)],
        },
        f"{len(scores):,} mined pairs, {len(gold):,} given ones.",
        OF_SENTENCES,
    )
    logger.info("%s: best F1 %.1f, of pairs that score %.4f or more", page, best["f1"], threshold)
    return page


def threshold_table(curve: Curve) -> Table:
    """Thresholds at about equal steps of recall, and the last."""
    steps = np.linspace(0, curve.recall.max(initial=0), ROWS_SHOWN)
    last = range(max(0, len(curve.recall) - 1), len(curve.recall))
    rows = sorted({*np.searchsorted(curve.recall, steps - 1e-9).tolist(), *last} & {*range(len(curve.recall))})
    columns = (curve.precision, curve.recall, curve.f1)
    body = [[f"{curve.thresholds[row]:.4f}", *(f"{column[row]:.1f}" for column in columns)] for row in rows]
    return Table.of(["threshold", "precision", "recall", "F1"], body, "Thresholds", OF_THRESHOLDS)


def wrong_pairs(scores: Mapping[IdPair, float], gold: Collection[IdPair], threshold: float) -> Table:
    """The pairs with the highest scores that are not among the true ones."""
    wrong = [pair for pair in extract_pairs(scores, threshold) if pair not in gold]
    wrong.sort(key=lambda pair: -scores[pair])
    body = [[f"{scores[pair]:.4f}", *pair] for pair in wrong[:ROWS_SHOWN]]
    caption = f"{len(body)} of {len(wrong)}, the highest scores first."
    return Table.of(["score", "x", "y"], body, "Wrong at the best threshold", caption)
