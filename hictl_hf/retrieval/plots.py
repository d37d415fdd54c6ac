"""The picture of mined pairs. Needs matplotlib."""

from collections.abc import Mapping
from pathlib import Path

from ..reports.plots import BLUE, ORANGE, Array, figure_at, set_headline


def plot_precision_and_recall(recall: Array, precision: Array, best: Mapping[str, float], path: str | Path) -> Path:
    """Draw precision by recall, in percent, with the point of the best F1; returns the path.

    Args:
        best: "precision", "recall" and "f1" at one threshold.
    """
    with figure_at(path, 6.4, 4.6) as figure:
        axes = figure.add_subplot()
        axes.plot(recall, precision, color=BLUE, linewidth=2.2)
        axes.plot(best["recall"], best["precision"], "o", color=ORANGE, markersize=8)
        words = f"F1 {best['f1']:.1f}%"
        axes.annotate(words, (best["recall"], best["precision"]), (-8, -14), textcoords="offset points", ha="right")
        axes.set(xlim=(0, 102), ylim=(0, 102), xlabel="recall (%)", ylabel="precision (%)")
        point = f"precision {best['precision']:.1f}% at recall {best['recall']:.1f}%"
        set_headline(figure, f"Mined pairs: {point}")
    return Path(path)
