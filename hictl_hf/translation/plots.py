"""Pictures of a translation run: scores by step, and attention of a decoder. Need matplotlib."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle, product
from pathlib import Path
from typing import Any
from warnings import catch_warnings

from ..reports.plots import BLUE, GREEN, GREY, LANGUAGE_MARKERS, ORANGE, PURPLE, Array, figure_at, write_notice

FONTS_FOR_TEXT = (  # those that are installed; for text in any script
    *("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Arial Unicode MS"),
    *("Noto Sans Devanagari", "Noto Sans Gujarati", "Noto Sans Sinhala", "Noto Sans Thai", "Noto Sans Tamil"),
)
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GREY)
NAMES_INSIDE = len(COLOURS)  # a longer legend stands next to the panels
NAMES_OF_A_COLUMN = 13


def plot_scores_by_step(
    scores: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], path: str | Path, change: float | None = None
) -> Path:
    """Draw a panel for each measure, in it a line of (step, score) points for each name; returns the path.

    Args:
        change: the step where the second step of training began.
    """
    most = max(map(len, scores.values()), default=0)
    columns = math.ceil(most / NAMES_OF_A_COLUMN) if most > NAMES_INSIDE else 0  # of the legend
    with figure_at(path, 4.6 * max(1, len(scores)) + 1.2 * columns, 3.5) as figure:
        panels = figure.subplots(1, max(1, len(scores)), squeeze=False)[0]
        if not scores:
            write_notice(panels[0], "nothing was scored")
            return Path(path)
        for axes, (measure, lines) in zip(panels, scores.items()):
            styles = cycle(product(("-", "--", ":"), LANGUAGE_MARKERS, COLOURS))
            for (name, points), (dashes, marker, colour) in zip(lines.items(), styles, strict=False):
                style: dict[str, Any] = {"linestyle": dashes, "marker": marker, "color": colour}
                axes.plot(*zip(*points), **style, linewidth=2, markersize=4, label=name)
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
        if columns:
            figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", ncols=columns)
        else:
            panels[0].legend(loc="lower right")
    return Path(path)


def plot_attention(weights: Array, sources: Sequence[str], targets: Sequence[str], path: str | Path) -> Path:
    """Draw the attention of each target (row) to each source (column); returns the path.

    A box stands for a character that none of `FONTS_FOR_TEXT` has.

    Args:
        weights: (targets, sources). The darkest colour is the largest weight between the first and the last source:
            `<s>` and `</s>` draw most of the attention wherever no word matters.
    """
    from matplotlib.font_manager import get_font_names

    inner = weights[:, 1:-1] if weights.shape[1] > 2 else weights
    fonts = [name for name in FONTS_FOR_TEXT if name in set(get_font_names())]
    labels: dict[str, Any] = {"fontfamily": fonts, "parse_math": False}  # a text may have $
    size = max(6.0, 0.36 * len(sources) + 1.8), 0.27 * len(targets) + 1.4
    with catch_warnings(action="ignore", category=UserWarning), figure_at(path, *size) as figure:
        axes = figure.add_subplot()
        axes.imshow(weights, cmap="Blues", vmin=0, vmax=float(inner.max()), aspect="auto")
        axes.set_xticks(range(len(sources)), sources, rotation=60, ha="left", rotation_mode="anchor", **labels)
        axes.set_yticks(range(len(targets)), targets, **labels)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.grid(visible=False)
    return Path(path)
