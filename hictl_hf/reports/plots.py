"""Pictures of a run. This module decides how a run looks: its losses, its retrieval accuracy by language and by layer,
the paper's map of sentence embeddings, the scores of languages in tasks, the scores of translations by step, and where
a decoder looks. It reads plain dictionaries and numpy arrays, never a model; what was measured is decided by whoever
filled them, and the report modules put the pictures on a page. Everything here needs matplotlib and, for the map,
scikit-learn; none needs a display.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.floating[Any]]
Embeddings = Mapping[str, Array]  # language -> (sentences, dimensions), one meaning per row

GREY, BLUE, ORANGE, GREEN, PURPLE = "#7B818A", "#0072B2", "#D55E00", "#009E73", "#B0568F"  # after Okabe and Ito
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
LANGUAGE_MARKERS = "os^Dvp"
ROWS_PER_COLUMN = 40
GROUP_GAP = 0.25  # between groups of tasks, in columns
FONTS_FOR_TEXT = (  # those that are installed; for text in any script
    *("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Arial Unicode MS"),
    *("Noto Sans Devanagari", "Noto Sans Gujarati", "Noto Sans Sinhala", "Noto Sans Thai", "Noto Sans Tamil"),
)
STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#B4B8BE",
    "axes.labelcolor": "#4A4F57",
    "xtick.color": "#4A4F57",
    "ytick.color": "#4A4F57",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E8EAED",
    "legend.frameon": False,
    "figure.titlesize": 13,
    "figure.titleweight": "bold",
}


def plot_losses(history: Sequence[Mapping[str, Any]], path: str | Path) -> Path:
    """One small panel for each loss in the history, then p_avg and the mean λ; returns the path written."""
    losses = [key for key in LOSSES if len(_series(history, key)[0])]
    strengths = [("p_avg", "$p_{avg}$", PURPLE), ("hard_negative_lambda", r"mean $\lambda$", BLUE)]
    strengths = [row for row in strengths if len(_series(history, row[0])[0])]
    panels = max(1, len(losses) + bool(strengths))
    columns = 2 if panels == 4 else min(3, panels)
    rows = math.ceil(panels / columns)
    with _figure(path, 3.9 * columns, 2.9 * rows + 0.6) as figure:
        grid = figure.add_gridspec(rows, columns)
        for place, key in enumerate(losses):
            axes = figure.add_subplot(grid[place // columns, place % columns])
            name, colour = LOSSES[key]
            first, last = _curve(axes, history, key, colour)
            axes.set(title=f"{name}: {first:.2f} → {last:.2f}", xlabel="step" if place // columns == rows - 1 else "")
        if strengths:
            row, column = divmod(len(losses), columns)
            axes = figure.add_subplot(grid[row, column:])
            ends = [
                f"{name} ends at {_curve(axes, history, key, shade, name)[1]:.2f}" for key, name, shade in strengths
            ]
            axes.set(ylim=(-0.03, 1.03), title=", ".join(ends), xlabel="step")
            axes.legend(ncols=2, handlelength=1.2)
        if not figure.axes:
            _say(figure.add_subplot(grid[0, 0]), "no loss was logged")
        _headline(figure, "Losses by step (faint: as logged, bold: running mean)")
    return Path(path)


def plot_retrieval(
    per_language: Mapping[str, Mapping[str, float]], path: str | Path, labels: tuple[str, str] = ("before", "after")
) -> Path:
    """Accuracy before → after for each language, best first, with both means; returns the path written."""
    measured = {language: row for language, row in per_language.items() if row.get("hictl") is not None}
    scores = [(language, row.get("untrained"), float(row["hictl"])) for language, row in measured.items()]
    scores.sort(key=lambda score: score[2], reverse=True)
    columns = max(1, math.ceil(len(scores) / ROWS_PER_COLUMN))
    rows = math.ceil(len(scores) / columns)
    with _figure(path, 8.5 if columns == 1 else 5.2 * columns, 0.225 * rows + 1.5) as figure:
        panels = figure.subplots(1, columns, squeeze=False)[0]
        if not scores:
            _say(panels[0], "no language was measured")
            return Path(path)
        compared = [(before, after) for _, before, after in scores if before is not None]
        means = [(_mean([after for _, _, after in scores]), labels[1], BLUE)]
        if compared:
            means.insert(0, (_mean([before for before, _ in compared]), labels[0], GREY))
        largest = max(max(after, before or 0.0) for _, before, after in scores) or 1.0
        for place, axes in enumerate(panels):
            _dumbbells(axes, scores[place * rows : (place + 1) * rows], means)
            axes.set(xlim=(-0.09 * largest, 1.09 * largest), ylim=(rows - 0.4, -0.6), xlabel="accuracy (%)")
        change = " → ".join(f"{mean:.1f}" for mean, _, _ in means)
        gains = sum(after > before for before, after in compared)
        won = f": {gains} of {len(compared)} languages gain" if compared else f" over {len(scores)} languages"
        _headline(figure, f"Mean retrieval accuracy {change}%{won}")
    return Path(path)


def plot_layers(
    by_layer: Mapping[str, Sequence[float | None]], path: str | Path, measure: str = "accuracy (%)"
) -> Path:
    """A score by layer, one line per pooling and a lone dot where only one layer was measured; returns the path."""
    measured = [
        (score, layer, pooling)
        for pooling, scores in by_layer.items()
        for layer, score in enumerate(scores)
        if score is not None and math.isfinite(score)
    ]
    with _figure(path, 7.5, 4.0) as figure:
        axes = figure.add_subplot()
        if not measured:
            _say(axes, "no layer was measured")
            return Path(path)
        for (pooling, scores), colour in zip(
            by_layer.items(), cycle((ORANGE, BLUE, GREEN, PURPLE, GREY)), strict=False
        ):
            heights = [math.nan if score is None else score for score in scores]
            axes.plot(heights, "o-", color=colour, markersize=6, linewidth=2, label=pooling)
        best, layer, pooling = max(measured)
        axes.plot(layer, best, "o", markersize=14, markerfacecolor="none", markeredgecolor="#30343B")
        axes.annotate(f"{best:.1f}", (layer, best), (0, 10), textcoords="offset points", ha="center", weight="bold")
        layers = max(len(scores) for scores in by_layer.values())
        axes.set_xticks(range(0, layers, math.ceil(layers / 16)))
        axes.set(xlim=(-0.3, layers - 0.7), xlabel="layer (0: the embeddings)", ylabel=measure)
        axes.set_ylim(0, 1.12 * best or 1)
        axes.legend(ncols=len(by_layer), loc="upper left", bbox_to_anchor=(0, 1.12))
        _headline(figure, f"Sentences are best found by {pooling} at layer {layer}")
    return Path(path)


def plot_languages_and_tasks(
    groups: Mapping[str, Mapping[str, Mapping[str, float | None]]], path: str | Path, name: str
) -> Path:
    """Scores (%) of languages (rows) in tasks (columns), by group of tasks; returns the path written.

    Languages come in the order of how far their scores lie above the means of their tasks. A score of `None` is one
    that was not measured; a language that a task does not name is one the task does not have.
    """
    tasks = [(group, title, scores) for group, titles in groups.items() for title, scores in titles.items()]
    means = [_mean_of_known(scores.values()) for _, _, scores in tasks]
    ahead = _ahead([scores for _, _, scores in tasks], means)
    languages = sorted(ahead, key=lambda language: ahead[language], reverse=True)
    with _figure(path, max(6.0, 0.78 * len(tasks) + 1.0), 0.235 * len(languages) + 2.2) as figure:
        axes = figure.add_subplot()
        if not languages:
            _say(axes, "no task was run")
            return Path(path)
        left, places = 0.0, []
        for number, (group, title, scores) in enumerate(tasks):
            left += GROUP_GAP if number and group != tasks[number - 1][0] else 0.0
            places.append(left + number)
            axes.text(
                places[-1], -2.2, title, ha="center", va="bottom", weight="bold", color="#4A4F57", linespacing=1.1
            )
            _tile(axes, places[-1], -1.4, means[number], bold=True)
            for row, language in enumerate(languages):
                if language in scores:
                    _tile(axes, places[-1], row, scores[language])
                else:
                    axes.add_patch(_rectangle(places[-1], row, "#F4F5F6"))
        top = -2.5 - 0.9 * max(1 + title.count("\n") for _, title, _ in tasks)
        for group in groups:
            columns = [place for place, task in zip(places, tasks) if task[0] == group]
            axes.plot([columns[0] - 0.48, columns[-1] + 0.48], [top, top], color="#B4B8BE", linewidth=0.8)
            axes.text(
                (columns[0] + columns[-1]) / 2, top - 0.2, group, ha="center", va="bottom", color=GREY, fontsize=9
            )
        words = "dash: no score      pale: no such language in the task"
        axes.text(-0.5, len(languages) - 0.3, words, va="top", color=GREY, fontsize=8.5)
        axes.set(xlim=(-0.5, places[-1] + 0.5), ylim=(len(languages) + 0.3, top - 1.2), xticks=[])
        axes.set_yticks([-1.4, *range(len(languages))], ["mean", *languages])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.grid(visible=False)
        known = [language for language in languages if math.isfinite(ahead[language])]
        ends = f": strongest in {', '.join(known[:3])}, weakest in {', '.join(known[-3:])}" if len(known) > 5 else ""
        _headline(figure, f"{name}{ends}")
    return Path(path)


def plot_scores_by_step(
    scores: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], path: str | Path, change: float | None = None
) -> Path:
    """A panel for each measure, in it a line for each name of (step, score) points; returns the path written.

    Args:
        change: the step where another kind of training began.
    """
    with _figure(path, 4.6 * max(1, len(scores)), 3.5) as figure:
        panels = figure.subplots(1, max(1, len(scores)), squeeze=False)[0]
        if not scores:
            _say(panels[0], "nothing was scored")
            return Path(path)
        for axes, (measure, lines) in zip(panels, scores.items()):
            for (name, points), colour in zip(lines.items(), cycle((BLUE, ORANGE, GREEN, PURPLE, GREY)), strict=False):
                axes.plot(*zip(*points), "o-", color=colour, linewidth=2, markersize=4, label=name)
                step, best = max(points, key=lambda point: point[1])
                axes.plot(step, best, "o", markersize=12, markerfacecolor="none", markeredgecolor=colour)
                axes.annotate(
                    f"{best:.1f}" if best > 1 else f"{best:.3f}", (step, best), (0, 9), textcoords="offset points",
                    ha="center", weight="bold", color=colour,
                )  # fmt: skip
            axes.margins(y=0.15)
            axes.set(xlabel="step", title=measure)
            if change is not None:
                axes.axvline(change, color=GREY, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
                text = axes.text(change, 0.02, " step 2 ", transform=axes.get_xaxis_transform())
                text.set(color=GREY, fontsize=9)
        panels[0].legend(loc="lower right")
    return Path(path)


def plot_attention(weights: Array, sources: Sequence[str], targets: Sequence[str], path: str | Path) -> Path:
    """How much each target (rows) looks at each source (columns); returns the path written.

    A box stands for a character that is in none of `FONTS_FOR_TEXT`.

    Args:
        weights: (targets, sources). What is darkest is the most that any target looks between the first and the last
            source, `<s>` and `</s>`, where decoders look when there is nothing to see.
    """
    from matplotlib.font_manager import get_font_names

    inner = weights[:, 1:-1] if weights.shape[1] > 2 else weights
    fonts = [name for name in FONTS_FOR_TEXT if name in set(get_font_names())]
    labels: dict[str, Any] = {"fontfamily": fonts, "parse_math": False}  # a text may have $
    size = max(6.0, 0.36 * len(sources) + 1.8), 0.27 * len(targets) + 1.4
    with catch_warnings(action="ignore", category=UserWarning), _figure(path, *size) as figure:
        axes = figure.add_subplot()
        axes.imshow(weights, cmap="Blues", vmin=0, vmax=float(inner.max()), aspect="auto")
        axes.set_xticks(range(len(sources)), sources, rotation=60, ha="left", rotation_mode="anchor", **labels)
        axes.set_yticks(range(len(targets)), targets, **labels)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.grid(visible=False)
    return Path(path)


def plot_precision_and_recall(recall: Array, precision: Array, best: Mapping[str, float], path: str | Path) -> Path:
    """Precision by recall, in percent, with the point of the best F1; returns the path written.

    Args:
        best: "precision", "recall" and "f1" at one threshold.
    """
    with _figure(path, 6.4, 4.6) as figure:
        axes = figure.add_subplot()
        axes.plot(recall, precision, color=BLUE, linewidth=2.2)
        axes.plot(best["recall"], best["precision"], "o", color=ORANGE, markersize=8)
        words = f"F1 {best['f1']:.1f}%"
        axes.annotate(words, (best["recall"], best["precision"]), (-8, -14), textcoords="offset points", ha="right")
        axes.set(xlim=(0, 102), ylim=(0, 102), xlabel="recall (%)", ylabel="precision (%)")
        point = f"precision {best['precision']:.1f}% at recall {best['recall']:.1f}%"
        _headline(figure, f"Mined pairs: {point}")
    return Path(path)


def plot_tsne(before: Embeddings, after: Embeddings, path: str | Path, seed: int = 42) -> Path:
    """t-SNE of translations before and after training: colour is meaning, marker is language; returns the path."""
    languages, sentences = list(before), len(next(iter(before.values())))
    if list(after) != languages or any(len(rows) != sentences for rows in (*before.values(), *after.values())):
        raise ValueError(f"before and after must hold the same languages, {sentences} rows each: row = meaning")
    if len(languages) > len(LANGUAGE_MARKERS) or not 2 <= sentences <= len(MEANING_COLOURS):
        allowed = f"up to {len(LANGUAGE_MARKERS)} languages and 2 to {len(MEANING_COLOURS)} sentences"
        raise ValueError(f"the map stays readable for {allowed}, not {len(languages)} and {sentences}: pass fewer")
    labels = ("before training", "after training")
    chance = (len(languages) - 1) / (len(languages) * sentences - 1)
    with _figure(path, 11, 5.9) as figure:
        shares = [same_meaning_share(embeddings) for embeddings in (before, after)]
        for axes, embeddings, label, share in zip(figure.subplots(1, 2), (before, after), labels, shares, strict=True):
            _meanings(axes, embeddings, seed)
            axes.set_title(f"{label}\n{share:.0%} of points lie nearest to a translation (chance {chance:.0%})")
        legend = figure.legend(
            *figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(languages)
        )
        legend.set_title(f"{sentences} sentences, one colour each, in {len(languages)} languages, one shape each")
        _headline(figure, f"The nearest point is a translation: {shares[0]:.0%} → {shares[1]:.0%}")
    return Path(path)


def same_meaning_share(embeddings: Embeddings) -> float:
    """Share of points whose nearest other point, by cosine in the original space, is a translation of it."""
    points, meanings = _points(embeddings)
    directions = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)
    similarity = directions @ directions.T  # (points, points)
    np.fill_diagonal(similarity, -np.inf)
    return float(np.mean(meanings[similarity.argmax(axis=1)] == meanings))


def plot_lambda_floor(path: str | Path) -> Path:
    """How low the sentence loss, and with it λ, can go at each batch size and temperature; returns the path written."""
    pairs = np.unique(np.geomspace(2, 2048, 120).round())
    rows = [(1.0, BLUE, "-"), (0.1, ORANGE, "-"), (0.05, GREEN, (0, (2, 2)))]
    with _figure(path, 11, 4.0) as figure:
        left, right = figure.subplots(1, 2)
        for temperature, colour, dashes in rows:
            style: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": 2.4}
            name = rf"$\tau$ = {temperature:g}"
            left.plot(pairs, [sentence_loss_floor(n, temperature) for n in pairs], **style, label=name)
            right.plot(pairs, [lambda_at_floor(n, temperature) for n in pairs], **style, label=name)
        for n in (8, 32, 128, 1024):
            for axes, height in ((left, sentence_loss_floor(n, 1.0)), (right, lambda_at_floor(n, 1.0))):
                axes.plot(n, height, "o", color=BLUE, markersize=5)
                offset = (-4, 6) if axes is left else (12, -14)
                text = f"{height:.2f}" if height < 0.99 or axes is left else f"{height:.3f}"
                axes.annotate(
                    text, (n, height), offset, textcoords="offset points", fontsize=9, color=BLUE, ha="center"
                )
        left.set_title(r"Least sentence loss: $\log(1+(2n-2)\,e^{-2/\tau})$")
        right.set_title(r"Least $\lambda$ at $d^+/d^-=0.5$: $0.5^{\,0.9\,p_{avg}}$, $p_{avg}=e^{-\mathrm{loss}}$")
        for axes, height, words in (
            (left, 0.0, "0"),
            (right, lambda_at_floor(2, 0.1), f"{lambda_at_floor(2, 0.1):.2f}"),
        ):
            axes.annotate(
                words, (1024, height), (0, 6), textcoords="offset points", fontsize=9, color=ORANGE, ha="center"
            )
        right.set_ylim(0.48, 1.04)
        right.annotate(
            "1: hard negatives stay where they are", (2, 1.0), (0, 4), textcoords="offset points", fontsize=9
        )
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xticks([2, 8, 32, 128, 512, 2048], ["2", "8", "32", "128", "512", "2048"])
            axes.set_xlabel("sentence pairs in the batch, n")
            axes.legend(loc="center right", bbox_to_anchor=(1, 0.36))
        _headline(figure, "Without a temperature, a large batch leaves hard negatives almost untouched")
    return Path(path)


def sentence_loss_floor(pairs: float, temperature: float) -> float:
    """Least sentence loss of n pairs: cosine 1 with the positive and -1 with each of the 2n-2 negatives.

    >>> round(sentence_loss_floor(1024, 1.0), 2)
    5.63
    """
    return math.log1p((2 * pairs - 2) * math.exp(-2 / temperature))


def lambda_at_floor(pairs: float, temperature: float, distance_ratio: float = 0.5, zeta: float = 0.9) -> float:
    """Least λ = (d⁺/d⁻)^(ζ·p_avg) that the floor of the sentence loss allows, with p_avg = exp(-floor).

    >>> round(lambda_at_floor(1024, 1.0), 3)
    0.998
    """
    return float(distance_ratio ** (zeta * math.exp(-sentence_loss_floor(pairs, temperature))))


def smooth(values: Array, width: int) -> Array:
    """Centred running mean over an odd number of values; at the ends, over those that exist."""
    window = np.ones(width)
    padded = np.convolve(values, window, mode="full")[width // 2 : width // 2 + len(values)]
    counts = np.convolve(np.ones(len(values)), window, mode="full")[width // 2 : width // 2 + len(values)]
    return np.asarray(padded / counts, dtype=float)


def _series(history: Sequence[Mapping[str, Any]], key: str) -> tuple[Array, Array]:
    kept = [(row["step"], row[key]) for row in history if "step" in row and row.get(key) is not None]
    steps, values = np.array(kept, dtype=float).reshape(-1, 2).T
    finite = np.isfinite(values)
    return steps[finite], values[finite]


def _curve(
    axes: "Axes", history: Sequence[Mapping[str, Any]], key: str, colour: str, label: str | None = None
) -> tuple[float, float]:
    steps, values = _series(history, key)
    averaged = smooth(values, 2 * (len(values) // 30) + 1)
    axes.plot(steps, values, color=colour, alpha=0.28, linewidth=1)
    axes.plot(steps, averaged, color=colour, linewidth=2.2, label=label, marker="o" if len(values) == 1 else "")
    return float(averaged[0]), float(averaged[-1])


def _dumbbells(
    axes: "Axes", scores: Sequence[tuple[str, float | None, float]], means: Sequence[tuple[float, str, str]]
) -> None:
    for mean, label, colour in means:
        side = "right" if len(means) > 1 and label == min(means)[1] else "left"
        axes.axvline(mean, color=colour, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
        text = axes.text(mean, 1.005, f" {label} {mean:.1f} ", transform=axes.get_xaxis_transform())
        text.set(color=colour, ha=side, va="bottom", weight="bold", fontsize=9)
    for row, (_, before, after) in enumerate(scores):
        fell = before is not None and after < before
        colour, sign = (ORANGE, -1) if fell else (BLUE, 1)
        if before is not None:
            axes.plot([before, after], [row, row], color=colour, alpha=0.35, linewidth=2.6, solid_capstyle="round")
            axes.plot(before, row, "o", color=GREY, markersize=6)
            _beside(axes, before, row, -sign, GREY)
        axes.plot(after, row, "o", color=colour, markersize=7)
        _beside(axes, after, row, sign, colour)
    axes.set_yticks(range(len(scores)), [language for language, _, _ in scores])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)


def _beside(axes: "Axes", x: float, y: float, side: int, colour: str) -> None:
    text = axes.annotate(f"{x:.1f}", (x, y), (7 * side, 0), textcoords="offset points", color=colour, fontsize=8)
    text.set(ha="left" if side > 0 else "right", va="center")
    text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.8})


def _ahead(tasks: Sequence[Mapping[str, float | None]], means: Sequence[float | None]) -> dict[str, float]:
    """Mean distance of each language from the means of its tasks; minus infinity without a score."""
    distances: dict[str, list[float]] = {language: [] for scores in tasks for language in scores}
    for scores, mean in zip(tasks, means):
        for language, score in scores.items():
            if score is not None and mean is not None:
                distances[language].append(score - mean)
    return {language: _mean(found) if found else -math.inf for language, found in distances.items()}


def _mean_of_known(scores: Iterable[float | None]) -> float | None:
    known = [score for score in scores if score is not None]
    return _mean(known) if known else None


def _tile(axes: "Axes", x: float, y: float, score: float | None, bold: bool = False) -> None:
    """One score: its number on its colour, a dash on grey where there is none."""
    from matplotlib import colormaps

    colour = (0.87, 0.88, 0.89, 1.0) if score is None else colormaps["YlGnBu"](score / 100)
    red, green, blue, _ = colour
    axes.add_patch(_rectangle(x, y, colour))
    dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
    text = axes.text(x, y, "–" if score is None else f"{score:.1f}", ha="center", va="center", fontsize=8.5)
    text.set(color="white" if dark else "#1D2127", weight="bold" if bold else "normal")


def _rectangle(x: float, y: float, colour: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white", linewidth=1.2)


def _meanings(axes: "Axes", embeddings: Embeddings, seed: int) -> None:
    try:
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits
    except ImportError as error:
        raise ImportError("this picture needs scikit-learn: pip install matplotlib scikit-learn") from error
    points, meanings = _points(embeddings)
    perplexity = min(10.0, (len(points) - 1) / 3)
    tsne = TSNE(perplexity=perplexity, metric="cosine", init="pca", random_state=seed)
    if (points == points[0]).all():  # which end scikit-learn, and the process
        places = np.zeros((len(points), 2))
        axes.text(0.5, 0.4, "all sentences have the same vector", ha="center", color=GREY, transform=axes.transAxes)
    else:
        with threadpool_limits(1):  # so few points only wait for each other, and one thread repeats itself exactly
            places = tsne.fit_transform(points)  # (points, 2)
    colours = np.array(MEANING_COLOURS)[meanings]
    for meaning in np.unique(meanings):
        centre = places[meanings == meaning].mean(axis=0)
        for place in places[meanings == meaning]:
            axes.plot(
                *zip(centre, place, strict=True), color=MEANING_COLOURS[meaning], alpha=0.3, linewidth=1, zorder=1
            )
    sentences = len(meanings) // len(embeddings)
    for number, language in enumerate(embeddings):
        rows = slice(number * sentences, (number + 1) * sentences)
        marker = LANGUAGE_MARKERS[number]
        x, y = places[rows].T
        axes.scatter(x, y, s=48, c=colours[rows], marker=marker, edgecolors="white", linewidths=0.7)
        axes.scatter([], [], s=48, c="#5A6068", marker=marker, label=language)
    axes.set(xticks=[], yticks=[])
    axes.spines[["top", "right"]].set_visible(True)


def _points(embeddings: Embeddings) -> tuple[Array, NDArray[np.intp]]:
    points = np.concatenate(
        [np.asarray(rows, dtype=float) for rows in embeddings.values()]
    )  # (languages * sentences, d)
    return points, np.concatenate([np.arange(len(rows)) for rows in embeddings.values()])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _say(axes: "Axes", words: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, words, ha="center", va="center", color=GREY, transform=axes.transAxes)


def _headline(figure: "Figure", words: str) -> None:
    figure.suptitle(words, x=0.01, ha="left")


@contextmanager
def _figure(path: str | Path, width: float, height: float) -> Iterator["Figure"]:
    """A figure in our style, written to the path at the end; without pyplot there is nothing global to close."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install matplotlib scikit-learn") from error
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, bbox_inches="tight")
