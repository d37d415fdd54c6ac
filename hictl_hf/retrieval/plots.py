"""The pictures of mined pairs and of sets of sentences. Needs matplotlib."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..reports.plots import BLUE, GREY, LANGUAGE_MARKERS, ORANGE, Array, figure_at, set_headline


class SentenceMap(NamedTuple):
    """The map of a checkpoint: t-SNE coordinates (sentences, 2) by language, and the mean rank of a translation."""

    name: str
    places: Mapping[str, Array]
    mean_rank: float


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


def plot_sentence_sets(maps: Sequence[SentenceMap], size: int, path: str | Path) -> Path:
    """Draw maps next to each other, the colour of a point being its set and its marker the language; returns the path.

    Args:
        size: sentences of a set in each language; sets follow each other.
    """
    with figure_at(path, 5.5 * len(maps), 5.8) as figure:
        for axes, drawn in zip(np.ravel(figure.subplots(1, len(maps))), maps, strict=True):
            for (language, points), marker in zip(drawn.places.items(), LANGUAGE_MARKERS):
                colours = np.arange(len(points)) // size
                axes.scatter(*points.T, s=12, c=colours, cmap="tab10", vmin=0, vmax=9, marker=marker)
                axes.scatter([], [], c=GREY, marker=marker, label=language)
            axes.set(xticks=[], yticks=[])
            axes.set_title(f"{drawn.name}\na translation has mean rank {drawn.mean_rank:.1f} of {len(points)}")
        sets = len(points) // size
        legend = figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(drawn.places))
        legend.set_title(f"marker: language; colour: one of {sets} sets of {size} sentences in each language")
    return Path(path)
