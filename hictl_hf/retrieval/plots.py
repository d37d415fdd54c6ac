"""The pictures of retrieval accuracy, of mined pairs and of sets of sentences. Needs matplotlib."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..reports.plots import (
    BLUE,
    GREY,
    LANGUAGE_MARKERS,
    ORANGE,
    Array,
    figure_at,
    set_headline,
    write_notice,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS_PER_COLUMN = 40
NAME_WIDTH = 60  # characters of a line above a map
SHORT_NAME, LETTER = 20, 0.085  # characters of a language that a column has room for; inches of each more


class SentenceMap(NamedTuple):
    """The map of a checkpoint: t-SNE coordinates (sentences, 2) by language, and the mean rank of a translation."""

    name: str
    places: Mapping[str, Array]
    mean_rank: float


def plot_retrieval(
    per_language: Mapping[str, tuple[float | None, float]],
    path: str | Path,
    labels: tuple[str, str] = ("before", "after"),
) -> Path:
    """Draw accuracy before → after for each language, best first, with both means; returns the path.

    Args:
        per_language: percent before, `None` if it was not measured, and after.
        labels: of the means.
    """
    scores = [(language, before, after) for language, (before, after) in per_language.items()]
    scores.sort(key=lambda score: score[2], reverse=True)
    columns = max(1, math.ceil(len(scores) / ROWS_PER_COLUMN))
    rows = math.ceil(len(scores) / columns)
    names = columns * LETTER * max((len(language) - SHORT_NAME for language in per_language), default=0)
    width = (8.5 if columns == 1 else 5.2 * columns) + max(names, 0)
    with figure_at(path, width, 0.225 * rows + 1.5) as figure:
        panels = figure.subplots(1, columns, squeeze=False)[0]
        if not scores:
            write_notice(panels[0], "no language was measured")
            return Path(path)
        compared = [(before, after) for _, before, after in scores if before is not None]
        means = [(fmean([after for _, _, after in scores]), labels[1], BLUE)]
        if compared:
            means.insert(0, (fmean([before for before, _ in compared]), labels[0], GREY))
        largest = max(max(after, before or 0.0) for _, before, after in scores) or 1.0
        for column, axes in enumerate(panels):
            _dumbbells(axes, scores[column * rows : (column + 1) * rows], means)
            axes.set(xlim=(-0.09 * largest, 1.09 * largest), ylim=(rows - 0.4, -0.6), xlabel="accuracy (%)")
        change = " → ".join(f"{value:.1f}" for value, _, _ in means)
        gains = sum(after > before for before, after in compared)
        won = f": {gains} of {len(compared)} languages gain" if compared else f" over {len(scores)} languages"
        set_headline(figure, f"Mean retrieval accuracy {change}%{won}")
    return Path(path)


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
        set_headline(figure, f"Mined pairs: {point}, the best threshold")
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
            name = "\n".join(wrap(drawn.name, NAME_WIDTH))  # a title that is too long covers the next one
            axes.set_title(f"{name}\na translation has mean rank {drawn.mean_rank:.1f} of {len(points)}")
        sets = len(points) // size
        legend = figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(drawn.places))
        legend.set_title(f"marker: language; colour: one of {sets} sets of {size} sentences in each language")
    return Path(path)


def _dumbbells(
    axes: "Axes", scores: Sequence[tuple[str, float | None, float]], means: Sequence[tuple[float, str, str]]
) -> None:
    for value, label, colour in means:
        side = "right" if len(means) > 1 and label == min(means)[1] else "left"
        axes.axvline(value, color=colour, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
        text = axes.text(value, 1.005, f" {label} {value:.1f} ", transform=axes.get_xaxis_transform())
        text.set(color=colour, ha=side, va="bottom", weight="bold", fontsize=9)
    for row, (_, before, after) in enumerate(scores):
        fell = before is not None and after < before
        colour, sign = (ORANGE, -1) if fell else (BLUE, 1)
        if before is not None:
            axes.plot([before, after], [row, row], color=colour, alpha=0.35, linewidth=2.6, solid_capstyle="round")
            axes.plot(before, row, "o", color=GREY, markersize=6)
            _write_next_to(axes, before, row, -sign, GREY)
        axes.plot(after, row, "o", color=colour, markersize=7)
        _write_next_to(axes, after, row, sign, colour)
    axes.set_yticks(range(len(scores)), [language for language, _, _ in scores])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)


def _write_next_to(axes: "Axes", x: float, y: float, side: int, colour: str) -> None:
    text = axes.annotate(f"{x:.1f}", (x, y), (7 * side, 0), textcoords="offset points", color=colour, fontsize=8)
    text.set(ha="left" if side > 0 else "right", va="center")
    text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.8})
