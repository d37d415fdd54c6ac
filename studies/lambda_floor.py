"""How low the sentence loss, and with it λ, can go at each batch size and temperature: the figure of docs/choices.md.

python -m studies.lambda_floor PICTURE.png
"""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hictl_hf.reports.plots import BLUE, GREEN, ORANGE, figure_at, set_headline


def sentence_loss_floor(pairs: float, temperature: float) -> float:
    """Return the least sentence loss that n pairs attain: cosine 1 within pairs, -1/(n-1) between any two, a simplex.

    All 2n-2 negatives of each sentence cannot have the cosine -1: they are not opposite to each other, too.

    >>> round(sentence_loss_floor(1024, 1.0), 2)
    6.62
    """
    return math.log1p((2 * pairs - 2) * math.exp((-1 - 1 / (pairs - 1)) / temperature)) if pairs > 1 else 0.0


def lambda_at_floor(pairs: float, temperature: float, distance_ratio: float = 0.5, zeta: float = 0.9) -> float:
    """Return the least λ = (d⁺/d⁻)^(ζ·p_avg) that the floor of the sentence loss allows, p_avg = exp(-floor).

    >>> round(lambda_at_floor(1024, 1.0), 3)
    0.999
    """
    return float(distance_ratio ** (zeta * math.exp(-sentence_loss_floor(pairs, temperature))))


def plot_lambda_floor(path: str | Path) -> Path:
    """Draw the least sentence loss and the least λ by batch size, for some temperatures; returns the path."""
    pairs = np.unique(np.geomspace(2, 2048, 120).round())
    rows = [(1.0, BLUE, "-"), (0.1, ORANGE, "-"), (0.05, GREEN, (0, (2, 2)))]
    with figure_at(path, 11, 4.0) as figure:
        left, right = figure.subplots(1, 2)
        for temperature, colour, dashes in rows:
            style: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": 2.4}
            name = f"τ = {temperature:g}"
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
        title = r"Least sentence loss: $\log(1+(2n-2)\,e^{-(1+1/(n-1))/\tau})$"
        left.set_title(title, parse_math=True)
        title = r"Least $\lambda$ at $d^+/d^-=0.5$: $0.5^{\,0.9\,p_{avg}}$, $p_{avg}=e^{-\mathrm{loss}}$"
        right.set_title(title, parse_math=True)
        for axes, height in ((left, sentence_loss_floor(1024, 0.1)), (right, lambda_at_floor(1024, 0.1))):
            axes.annotate(
                f"{height:.2f}", (1024, height), (0, 8), textcoords="offset points", fontsize=9, color=ORANGE,
                ha="center",
            )  # fmt: skip
        right.set_ylim(0.48, 1.04)
        right.annotate(
            "1: hard negatives stay where they are", (2, 1.0), (0, 4), textcoords="offset points", fontsize=9
        )
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xticks([2, 8, 32, 128, 512, 2048], ["2", "8", "32", "128", "512", "2048"])
            axes.set_xlabel("sentence pairs in the batch, n")
            axes.legend(loc="center right", bbox_to_anchor=(1, 0.36))
        set_headline(figure, "Without a temperature, a large batch leaves hard negatives almost untouched")
    return Path(path)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m studies.lambda_floor PICTURE.png")
    plot_lambda_floor(sys.argv[1])
