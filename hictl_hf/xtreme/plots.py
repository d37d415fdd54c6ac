"""The picture of XTREME's scores by language and task. Needs matplotlib."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ..reports.plots import GREY, figure_at, set_headline, write_notice

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GROUP_GAP = 0.25  # between groups of tasks, in columns


def plot_languages_and_tasks(
    groups: Mapping[str, Mapping[str, Mapping[str, float | None]]], path: str | Path, name: str
) -> Path:
    """Draw scores (%) of languages (rows) in tasks (columns), by group of tasks; returns the path.

    Languages are sorted by how far their scores lie above the means of their tasks. A score of `None` was not measured;
    a language missing in a task is not part of it.
    """
    tasks = [(group, title, scores) for group, titles in groups.items() for title, scores in titles.items()]
    means = [_mean_of_known(scores.values()) for _, _, scores in tasks]
    ahead = _ahead([scores for _, _, scores in tasks], means)
    languages = sorted(ahead, key=lambda language: ahead[language], reverse=True)
    with figure_at(path, max(6.0, 0.78 * len(tasks) + 1.0), 0.235 * len(languages) + 2.2) as figure:
        axes = figure.add_subplot()
        if not languages:
            write_notice(axes, "no task was run")
            return Path(path)
        left, centres = 0.0, []
        for number, (group, title, scores) in enumerate(tasks):
            left += GROUP_GAP if number and group != tasks[number - 1][0] else 0.0
            centres.append(left + number)
            axes.text(
                centres[-1], -2.2, title, ha="center", va="bottom", weight="bold", color="#4A4F57", linespacing=1.1
            )
            _tile(axes, centres[-1], -1.4, means[number], bold=True)
            for row, language in enumerate(languages):
                if language in scores:
                    _tile(axes, centres[-1], row, scores[language])
                else:
                    axes.add_patch(_rectangle(centres[-1], row, "#F4F5F6"))
        top = -2.5 - 0.9 * max(1 + title.count("\n") for _, title, _ in tasks)
        for group in groups:
            columns = [centre for centre, task in zip(centres, tasks) if task[0] == group]
            axes.plot([columns[0] - 0.48, columns[-1] + 0.48], [top, top], color="#B4B8BE", linewidth=0.8)
            axes.text(
                (columns[0] + columns[-1]) / 2, top - 0.2, group, ha="center", va="bottom", color=GREY, fontsize=9
            )
        words = "dash: no score      pale: no such language in the task"
        axes.text(-0.5, len(languages) - 0.3, words, va="top", color=GREY, fontsize=8.5)
        axes.set(xlim=(-0.5, centres[-1] + 0.5), ylim=(len(languages) + 0.3, top - 1.2), xticks=[])
        axes.set_yticks([-1.4, *range(len(languages))], ["mean", *languages])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.grid(visible=False)
        known = [language for language in languages if math.isfinite(ahead[language])]
        ends = f": strongest in {', '.join(known[:3])}, weakest in {', '.join(known[-3:])}" if len(known) > 5 else ""
        set_headline(figure, f"{name}{ends}")
    return Path(path)


def _ahead(tasks: Sequence[Mapping[str, float | None]], means: Sequence[float | None]) -> dict[str, float]:
    """Return the mean distance of each language from the means of its tasks; minus infinity without a score."""
    distances: dict[str, list[float]] = {language: [] for scores in tasks for language in scores}
    for scores, task_mean in zip(tasks, means):
        for language, score in scores.items():
            if score is not None and task_mean is not None:
                distances[language].append(score - task_mean)
    return {language: fmean(found) if found else -math.inf for language, found in distances.items()}


def _mean_of_known(scores: Iterable[float | None]) -> float | None:
    known = [score for score in scores if score is not None]
    return fmean(known) if known else None


def _tile(axes: "Axes", x: float, y: float, score: float | None, bold: bool = False) -> None:
    """Draw one score: its number on its colour, a dash on grey if there is none."""
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
