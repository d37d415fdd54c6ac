"""The pictures of the study."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.manifold import TSNE
from study_runs import Runs

from hictl_hf.plotting import BLUE, GREEN, GREY, LANGUAGE_MARKERS, ORANGE, PURPLE, STYLE, smooth
from hictl_hf.retrieval import unit_rows

SET = 100  # sentences of a set of the t-SNE figure
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GREY)


def draw_pictures(runs: Mapping[str, Runs], labels: Mapping[str, str], folder: Path) -> Iterator[tuple[Path, str]]:
    """Each picture with its description."""
    folder.mkdir(parents=True, exist_ok=True)
    for before, after in (("lm", "full"), ("start", "continued-full")):
        if before in runs and after in runs:
            path = folder / f"tsne-{after}.png"
            ranks = draw_map(runs[before], runs[after], (labels[before], labels[after]), path)
            yield path, f"t-SNE of 100 NTREX sentences in five languages; mean rank {ranks[0]:.1f} and {ranks[1]:.1f}"
    if "full" in runs:
        yield draw_hard_negatives(runs, labels, folder / "hard-negatives.png"), "λ and p_avg over the steps"
        yield draw_layers(runs, labels, folder / "layers.png"), "dev accuracy by layer and pooling"
    if "lm" in runs and "full" in runs:
        yield (
            draw_languages(runs["lm"], runs["full"], folder / "languages.png"),
            "Tatoeba by language, LM only and full",
        )


def draw_map(before: Runs, after: Runs, titles: tuple[str, str], path: Path) -> list[float]:
    """The paper's figure, a set of parallel sentences in five languages, of the first seeds; returns the mean ranks."""
    ranks = []
    with rc_context(STYLE):
        figure = Figure(figsize=(11, 5.2), layout="constrained")
        for axes, runs, title in zip(figure.subplots(1, 2), (before, after), titles):
            stored = np.load(runs.folders[min(runs.folders)] / "vectors.npz")
            vectors = {language: unit_rows(stored[language].astype(np.float32)) for language in stored.files}
            ranks.append(mean_rank(vectors))
            points = np.concatenate([rows[:SET] for rows in vectors.values()])
            places = TSNE(init="pca", random_state=0, metric="cosine").fit_transform(points)
            for number, language in enumerate(vectors):
                own = places[number * SET : (number + 1) * SET]
                axes.scatter(*own.T, s=12, color=COLOURS[number], marker=LANGUAGE_MARKERS[number], label=language)
            axes.set_title(f"{title}: a translation has mean rank {ranks[-1]:.1f} of {SET}")
            axes.set_xticks([]), axes.set_yticks([])
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(vectors))
        figure.savefig(path, dpi=130)
    return ranks


def mean_rank(vectors: Mapping[str, NDArray[np.floating]]) -> float:
    """Of a sentence's translation among a set of 100 of each other language, 1 the best; over all sets and pairs."""
    ranks = []
    for one, x in vectors.items():
        for other, y in vectors.items():
            for start in range(0, len(x) - SET + 1, SET) if one != other else ():
                scores = x[start : start + SET] @ y[start : start + SET].T
                ranks.append((scores >= np.diag(scores)[:, None]).sum(1).mean())
    return float(np.mean(ranks))


def draw_hard_negatives(runs: Mapping[str, Runs], labels: Mapping[str, str], path: Path) -> Path:
    """Mean λ and p_avg of the first seed of what has hard negatives."""
    with rc_context(STYLE):
        figure = Figure(figsize=(11, 3.8), layout="constrained")
        for axes, key, title in zip(
            figure.subplots(1, 2), ("hard_negative_lambda", "p_avg"), ("mean λ: 1 moves nothing", "p_avg")
        ):
            shown = [name for name in ("full", "temperature-1", "raw", "sentence-hard", "batch-1024") if name in runs]
            for name, colour in zip(shown, COLOURS):
                history = next(iter(runs[name].read("results.json").values()))["history"]
                rows = [(row["step"], row[key]) for row in history if row.get(key) is not None]
                if rows:
                    steps, values = np.array(rows).T
                    axes.plot(steps / steps.max(), smooth(values, 5), color=colour, label=labels[name])
            axes.set_title(title)
            axes.set_xlabel("share of the run")
        axes.legend(fontsize=8)
        figure.savefig(path, dpi=130)
    return path


def draw_layers(runs: Mapping[str, Runs], labels: Mapping[str, str], path: Path) -> Path:
    """Dev accuracy at each layer: mean solid, first token dashed."""
    with rc_context(STYLE):
        figure = Figure(figsize=(7, 3.8), layout="constrained")
        axes = figure.subplots()
        for name, colour in zip([name for name in ("full", "lm", "sentence", "word") if name in runs], COLOURS):
            dev = next(iter(runs[name].read("scores.json").values()))["dev"]
            for pooling, line in (("mean", "-"), ("first token", "--")):
                start = f"{pooling}, layer "
                values = {int(place.removeprefix(start)): dev[place] for place in dev if place.startswith(start)}
                axes.plot([*values], [*values.values()], line, color=colour, label=f"{labels[name]}: {pooling}")
        axes.set_xlabel("layer, 0: embeddings")
        axes.set_ylabel("dev accuracy, %")
        axes.legend(fontsize=8)
        figure.savefig(path, dpi=130)
    return path


def draw_languages(baseline: Runs, full: Runs, path: Path) -> Path:
    """Tatoeba by language, mean over seeds and directions."""

    def by_language(runs: Runs) -> dict[str, float]:
        found: dict[str, list[float]] = {}
        for scores in runs.read("scores.json").values():
            for name, value in scores["languages"].items():
                if name.startswith("tatoeba/"):
                    found.setdefault(name.split("/")[1], []).append(value)
        return {language: float(np.mean(values)) for language, values in found.items()}

    before, after = by_language(baseline), by_language(full)
    order = sorted(after, key=lambda language: after[language])
    with rc_context(STYLE):
        figure = Figure(figsize=(7, 4.6), layout="constrained")
        axes = figure.subplots()
        for row, language in enumerate(order):
            axes.plot([before[language], after[language]], [row, row], color="#C3C8CF", linewidth=3, zorder=1)
        axes.scatter([before[name] for name in order], range(len(order)), color=GREY, label="LM only", zorder=2)
        axes.scatter([after[name] for name in order], range(len(order)), color=BLUE, label="full HiCTL", zorder=2)
        axes.set_yticks(range(len(order)), order)
        axes.set_xlabel("Tatoeba accuracy, both directions, %")
        axes.legend()
        figure.savefig(path, dpi=130)
    return path
