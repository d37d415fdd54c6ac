"""Style and helpers of plots: fonts, colours, a figure written to a file, a running mean.

The plots of a task are in its package (`pretraining.plots`, `xtreme.plots`, ...). Needs matplotlib, but no display.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadInput
from ..files import atomic_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.floating[Any]]
GREY, BLUE, ORANGE, GREEN, PURPLE = "#7B818A", "#0072B2", "#D55E00", "#009E73", "#B0568F"  # after Okabe and Ito
LANGUAGE_MARKERS = "os^Dvp"
STYLE: Any = {
    "font.size": 10,
    "text.parse_math": False,  # a name may have $
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


@contextmanager
def figure_at(path: str | Path, width: float, height: float, dpi: int = 150) -> Iterator["Figure"]:
    """Yield a figure in `STYLE`, its size in inches, and write it to `path` at the end of the block.

    Without pyplot, which keeps open figures in global state.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install matplotlib scikit-learn") from error
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        with atomic_file(Path(path).resolve()) as draft:  # what a link names
            figure.savefig(draft, dpi=dpi, bbox_inches="tight", format=Path(path).suffix[1:].lower())


def check_picture(path: str | Path) -> None:
    """Raise `BadInput` for a name whose ending is that of no format of pictures."""
    from matplotlib.backend_bases import FigureCanvasBase

    allowed = [f".{ending}" for ending in FigureCanvasBase.get_supported_filetypes()]
    if Path(path).suffix.lower() not in allowed:
        raise BadInput(f"output is {path}; allowed are names that end in {', '.join(allowed)}")


def set_headline(figure: "Figure", text: str) -> None:
    """Set the title of a figure, left-aligned."""
    figure.suptitle(text, x=0.01, ha="left")


def write_notice(axes: "Axes", text: str) -> None:
    """Write a text in place of a plot without data."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", color=GREY, transform=axes.transAxes)


def smooth(values: Array, width: int) -> Array:
    """Return the centred running mean over `width` values, an odd number; at the ends, over fewer values."""
    window = np.ones(width)
    padded = np.convolve(values, window, mode="full")[width // 2 : width // 2 + len(values)]
    counts = np.convolve(np.ones(len(values)), window, mode="full")[width // 2 : width // 2 + len(values)]
    return np.asarray(padded / counts, dtype=float)


def tsne_places(points: Array, perplexity: float, seed: int) -> Array | None:
    """Return (points, 2) coordinates in a t-SNE of cosines; `None` if all points are equal, which would crash it."""
    try:
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits
    except ImportError as error:
        raise ImportError("this picture needs scikit-learn: pip install matplotlib scikit-learn") from error
    if (points == points[0]).all():
        return None
    tsne = TSNE(perplexity=min(perplexity, (len(points) - 1) / 3), init="pca", random_state=seed, metric="cosine")
    with threadpool_limits(1):  # faster for few points, and reproducible
        return np.asarray(tsne.fit_transform(points))


def plot_layers(
    by_layer: Mapping[str, Sequence[float | None]],
    path: str | Path,
    measure: str = "accuracy (%)",
    chosen: tuple[str, int] | None = None,
) -> Path:
    """Plot a score by layer, one line per pooling (a dot if only one layer was measured); return `path`.

    Args:
        chosen: pooling and layer to mark among those with the best score.
    """
    measured = [
        (score, layer, pooling)
        for pooling, scores in by_layer.items()
        for layer, score in enumerate(scores)
        if score is not None and math.isfinite(score)
    ]
    with figure_at(path, 7.5, 4.0) as figure:
        axes = figure.add_subplot()
        if not measured:
            write_notice(axes, "no layer was measured")
            return Path(path)
        for (pooling, scores), colour in zip(
            by_layer.items(), cycle((ORANGE, BLUE, GREEN, PURPLE, GREY)), strict=False
        ):
            heights = [math.nan if score is None else score for score in scores]
            axes.plot(heights, "o-", color=colour, markersize=6, linewidth=2, label=pooling)
        best, layer, pooling = max(measured, key=lambda each: (each[0], (each[2], each[1]) == chosen, each[1:]))
        axes.plot(layer, best, "o", markersize=14, markerfacecolor="none", markeredgecolor="#30343B")
        axes.annotate(f"{best:.1f}", (layer, best), (0, 10), textcoords="offset points", ha="center", weight="bold")
        layers = max(len(scores) for scores in by_layer.values())
        axes.set_xticks(range(0, layers, math.ceil(layers / 16)))
        axes.set(xlim=(-0.3, layers - 0.7), xlabel="layer (0: the embeddings)", ylabel=measure)
        axes.set_ylim(0, 1.12 * best or 1)
        axes.legend(ncols=len(by_layer), loc="upper left", bbox_to_anchor=(0, 1.12))
        set_headline(figure, f"Best retrieval: {pooling} at layer {layer}")
    return Path(path)
