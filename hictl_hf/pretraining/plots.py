"""Pictures of a pre-training run: losses, shares of the trained weights, the t-SNE map of sentence embeddings.
Input is plain dictionaries and arrays. Needs matplotlib and, for the map, scikit-learn.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..reports.plots import (
    BLUE,
    GREEN,
    GREY,
    LANGUAGE_MARKERS,
    ORANGE,
    PURPLE,
    Array,
    figure_at,
    set_headline,
    smooth,
    tsne_places,
    write_notice,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Embeddings = Mapping[str, Array]  # language -> (sentences, dimensions), one meaning per row
LOSSES = {
    "loss": ("total loss", "#30343B"),
    "lm_loss": ("language model", BLUE),
    "sentence_loss": ("sentence contrast", ORANGE),
    "word_loss": ("word contrast", GREEN),
}
MEANING_COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#882255", "#117733"),
    *("#332288", "#999933", "#AA4499", "#44AA99", "#661100", "#6699CC", "#888888"),
)


def plot_losses(history: Sequence[Mapping[str, Any]], path: str | Path) -> Path:
    """Draw a panel for each loss in the history, and one for p_avg and the mean λ; returns the path."""
    losses = [key for key in LOSSES if len(_series(history, key)[0])]
    strengths = [("p_avg", "p_avg", PURPLE), ("hard_negative_lambda", "mean λ", BLUE)]
    strengths = [row for row in strengths if len(_series(history, row[0])[0])]
    panels = max(1, len(losses) + bool(strengths))
    columns = 2 if panels == 4 else min(3, panels)
    rows = math.ceil(panels / columns)
    with figure_at(path, 3.9 * columns, 2.9 * rows + 0.6) as figure:
        grid = figure.add_gridspec(rows, columns)
        for index, key in enumerate(losses):
            axes = figure.add_subplot(grid[index // columns, index % columns])
            name, colour = LOSSES[key]
            first, last = _curve(axes, history, key, colour)
            axes.set(title=f"{name}: {first:.2f} → {last:.2f}", xlabel="step" if index // columns == rows - 1 else "")
        if strengths:
            row, column = divmod(len(losses), columns)
            axes = figure.add_subplot(grid[row, column:])
            ends = [
                f"{name} ends at {_curve(axes, history, key, shade, name)[1]:.2f}" for key, name, shade in strengths
            ]
            axes.set(ylim=(-0.03, 1.03), title=", ".join(ends), xlabel="step")
            axes.legend(ncols=2, handlelength=1.2)
        if not figure.axes:
            write_notice(figure.add_subplot(grid[0, 0]), "no loss was logged")
        averaged = any(_width(_series(history, key)[1]) > 1 for key in losses)
        set_headline(figure, "Losses by step" + " (faint: as logged, bold: running mean)" * averaged)
    return Path(path)


def plot_shares(grid: Sequence[Mapping[str, float | None]], chosen: float, path: str | Path) -> Path:
    """Draw the accuracy on dev, and on the guard's, by the share of the trained weights; returns the path."""
    with figure_at(path, 7.5, 4.0) as figure:
        axes = figure.add_subplot()
        for name, label, colour in (("dev", "held-out pairs", BLUE), ("guard", "guard", ORANGE)):
            points = [(row["share"], row[name]) for row in grid if row.get(name) is not None]
            if points:
                axes.plot(*zip(*points), "o-", color=colour, markersize=6, linewidth=2, label=label)
        axes.axvline(chosen, color=GREY, linestyle="--", linewidth=1)
        axes.set(xlabel="share of the trained weights (0: the start)", ylabel="accuracy (%)")
        axes.legend()
        set_headline(figure, f"Chosen: {chosen:g} of the trained weights, {1 - chosen:g} of the start")
    return Path(path)


def plot_tsne(before: Embeddings, after: Embeddings, path: str | Path, seed: int = 42) -> Path:
    """Draw t-SNE of translations before and after training: colour is meaning, marker is language; returns the path."""
    languages, sentences = list(before), len(next(iter(before.values())))
    if list(after) != languages or any(len(rows) != sentences for rows in (*before.values(), *after.values())):
        raise ValueError(f"before and after must hold the same languages, {sentences} rows each: row = meaning")
    if len(languages) > len(LANGUAGE_MARKERS) or not 2 <= sentences <= len(MEANING_COLOURS):
        allowed = f"up to {len(LANGUAGE_MARKERS)} languages and 2 to {len(MEANING_COLOURS)} sentences"
        raise ValueError(f"the map stays readable for {allowed}, not {len(languages)} and {sentences}: pass fewer")
    labels = ("before training", "after training")
    chance = (len(languages) - 1) / (len(languages) * sentences - 1)
    with figure_at(path, 11, 5.9) as figure:
        shares = [same_meaning_share(embeddings) for embeddings in (before, after)]
        for axes, embeddings, label, share in zip(figure.subplots(1, 2), (before, after), labels, shares, strict=True):
            _draw_meanings(axes, embeddings, seed)
            axes.set_title(f"{label}\n{share:.0%} of points lie nearest to a translation (chance {chance:.0%})")
        legend = figure.legend(
            *figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(languages)
        )
        legend.set_title(f"{sentences} sentences, one colour each, in {len(languages)} languages, one shape each")
        set_headline(figure, f"The nearest point is a translation: {shares[0]:.0%} → {shares[1]:.0%}")
    return Path(path)


def same_meaning_share(embeddings: Embeddings) -> float:
    """Return the share of points whose nearest other point, by cosine in the original space, is a translation."""
    points, meanings = _points(embeddings)
    directions = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)
    similarity = directions @ directions.T  # (points, points)
    np.fill_diagonal(similarity, -np.inf)
    return float(np.mean(meanings[similarity.argmax(axis=1)] == meanings))


def _series(history: Sequence[Mapping[str, Any]], key: str) -> tuple[Array, Array]:
    kept = [(row["step"], row[key]) for row in history if "step" in row and row.get(key) is not None]
    steps, values = np.array(kept, dtype=float).reshape(-1, 2).T
    finite = np.isfinite(values)
    return steps[finite], values[finite]


def _curve(
    axes: "Axes", history: Sequence[Mapping[str, Any]], key: str, colour: str, label: str | None = None
) -> tuple[float, float]:
    steps, values = _series(history, key)
    averaged = smooth(values, _width(values))
    axes.plot(steps, values, color=colour, alpha=0.28, linewidth=1)
    axes.plot(steps, averaged, color=colour, linewidth=2.2, label=label, marker="o" if len(values) == 1 else "")
    return float(averaged[0]), float(averaged[-1])


def _width(values: Array) -> int:
    """Logs in a running mean; 1 where they are few."""
    return 2 * (len(values) // 30) + 1


def _draw_meanings(axes: "Axes", embeddings: Embeddings, seed: int) -> None:
    points, meanings = _points(embeddings)
    positions = tsne_places(points, 10.0, seed)  # (points, 2)
    if positions is None:
        positions = np.zeros((len(points), 2))
        axes.text(0.5, 0.4, "all sentences have the same vector", ha="center", color=GREY, transform=axes.transAxes)
    colours = np.array(MEANING_COLOURS)[meanings]
    for meaning in np.unique(meanings):
        centre = positions[meanings == meaning].mean(axis=0)
        for position in positions[meanings == meaning]:
            axes.plot(
                *zip(centre, position, strict=True), color=MEANING_COLOURS[meaning], alpha=0.3, linewidth=1, zorder=1
            )
    sentences = len(meanings) // len(embeddings)
    for number, language in enumerate(embeddings):
        rows = slice(number * sentences, (number + 1) * sentences)
        marker = LANGUAGE_MARKERS[number]
        x, y = positions[rows].T
        axes.scatter(x, y, s=48, c=colours[rows], marker=marker, edgecolors="white", linewidths=0.7)
        axes.scatter([], [], s=48, c="#5A6068", marker=marker, label=language)
    axes.set(xticks=[], yticks=[])
    axes.spines[["top", "right"]].set_visible(True)


def _points(embeddings: Embeddings) -> tuple[Array, NDArray[np.intp]]:
    """(languages · sentences, d) all embeddings, and the index of the meaning of each."""
    points = np.concatenate([np.asarray(rows, dtype=float) for rows in embeddings.values()])
    return points, np.concatenate([np.arange(len(rows)) for rows in embeddings.values()])
