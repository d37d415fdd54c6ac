"""The pictures of the study."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from hictl_hf.reports.plots import BLUE, GREEN, GREY, LANGUAGE_MARKERS, ORANGE, PURPLE, figure_at, smooth

from .runs import CURVES, Runs
from .scoring import RANKED, SET, SETS

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GREY)


def draw_pictures(runs: Mapping[str, Runs], labels: Mapping[str, str], folder: Path) -> Iterator[tuple[Path, str]]:
    """Draw the pictures; yield each with its description."""
    for before, after in (("lm", "full"), ("start", "continued-full")):
        if before in runs and after in runs:
            path = folder / f"tsne-{after}.png"
            shown = runs[before], runs[after]
            if all(map_file(each).exists() for each in shown):
                draw_map(*shown, (labels[before], labels[after]), path)
            if path.exists():  # drawn now, or earlier from arrays that were not kept
                ranks = " and ".join(f"{mean_rank_of(each):.1f}" for each in shown)
                yield path, f"t-SNE of ten sets of NTREX sentences in five languages; mean rank {ranks}"
    if "full" in runs:
        yield draw_hard_negatives(runs, labels, folder / "hard-negatives.png"), "λ and p_avg over the steps"
        yield draw_layers(runs, labels, folder / "layers.png"), "dev accuracy by layer and pooling"
    if "lm" in runs and "full" in runs:
        yield (
            draw_languages(runs["lm"], runs["full"], folder / "languages.png"),
            "Tatoeba by language, LM only and full",
        )


def map_file(runs: Runs) -> Path:
    """Return the t-SNE coordinates of the first seed."""
    return runs.folders[runs.first] / "map.npz"


def mean_rank_of(runs: Runs) -> float:
    """Return the mean rank of a translation, first seed."""
    return float(runs.found[runs.first]["mean rank"])


def draw_map(before: Runs, after: Runs, titles: tuple[str, str], path: Path) -> None:
    """Draw the paper's figure for the first seeds: colours for sets of sentences, markers for languages."""
    with figure_at(path, 11, 5.4, dpi=130) as figure:
        for axes, runs, title in zip(figure.subplots(1, 2), (before, after), titles):
            places = np.load(map_file(runs))
            sets = np.arange(SETS).repeat(SET)
            for language, marker in zip(places.files, LANGUAGE_MARKERS):
                points = places[language]
                axes.scatter(*points.T, s=12, c=sets[: len(points)], cmap="tab10", marker=marker)
            axes.set_title(f"{title}: a translation has mean rank {mean_rank_of(runs):.1f} of {RANKED}")
            axes.set_xticks([]), axes.set_yticks([])
        handles = [
            Line2D([], [], color=GREY, linestyle="", marker=marker) for marker in LANGUAGE_MARKERS[: len(places.files)]
        ]
        title = "language; colours are ten sets of sentences that follow each other"
        figure.legend(handles, places.files, title=title, loc="outside lower center", ncols=len(places.files))


def draw_hard_negatives(runs: Mapping[str, Runs], labels: Mapping[str, str], path: Path) -> Path:
    """Draw mean λ and p_avg, first seed, of variants with hard negatives."""
    with figure_at(path, 11, 3.8, dpi=130) as figure:
        for axes, key, title in zip(
            figure.subplots(1, 2), ("hard_negative_lambda", "p_avg"), ("mean λ: 1 moves nothing", "p_avg")
        ):
            shown = [name for name in ("full", "temperature-1", "raw", "sentence-hard", "batch-1024") if name in runs]
            for name, colour in zip(shown, COLOURS):
                curves = [dict(zip(CURVES, row)) for row in runs[name].found[runs[name].first]["curves"]]
                rows = [(row["step"], row[key]) for row in curves if row[key] is not None]
                if rows:
                    steps, values = np.array(rows).T
                    axes.plot(steps / steps.max(), smooth(values, 5), color=colour, label=labels[name])
            axes.set_title(title)
            axes.set_xlabel("share of the run")
        axes.legend(fontsize=8)
    return path


def draw_layers(runs: Mapping[str, Runs], labels: Mapping[str, str], path: Path) -> Path:
    """Draw dev accuracy at each layer: mean solid, first token dashed."""
    with figure_at(path, 7, 3.8, dpi=130) as figure:
        axes = figure.subplots()
        for name, colour in zip([name for name in ("full", "lm", "sentence", "word") if name in runs], COLOURS):
            dev = runs[name].found[runs[name].first]["dev"]
            for pooling, line in (("mean", "-"), ("cls", "--")):
                start = f"{pooling}, layer "
                values = {int(place.removeprefix(start)): dev[place] for place in dev if place.startswith(start)}
                axes.plot([*values], [*values.values()], line, color=colour, label=f"{labels[name]}: {pooling}")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("layer, 0: embeddings")
        axes.set_ylabel("dev accuracy, %")
        axes.legend(fontsize=8)
    return path


def draw_languages(baseline: Runs, full: Runs, path: Path) -> Path:
    """Draw Tatoeba by language, mean over seeds and directions."""

    def by_language(runs: Runs) -> dict[str, float]:
        found: dict[str, list[float]] = {}
        for run in runs.found.values():
            for name, value in run["languages"].items():
                if name.startswith("tatoeba/"):
                    found.setdefault(name.split("/")[1], []).append(value)
        return {language: float(np.mean(values)) for language, values in found.items()}

    before, after = by_language(baseline), by_language(full)
    order = sorted(after, key=lambda language: after[language])
    with figure_at(path, 7, 4.6, dpi=130) as figure:
        axes = figure.subplots()
        for row, language in enumerate(order):
            axes.plot([before[language], after[language]], [row, row], color="#C3C8CF", linewidth=3, zorder=1)
        axes.scatter([before[name] for name in order], range(len(order)), color=GREY, label="LM only", zorder=2)
        axes.scatter([after[name] for name in order], range(len(order)), color=BLUE, label="full HiCTL", zorder=2)
        axes.set_yticks(range(len(order)), order)
        axes.set_xlabel("Tatoeba accuracy, both directions, %")
        axes.legend()
    return path
