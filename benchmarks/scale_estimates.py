"""Memory and time of pre-training on many GPUs, computed: prints the tables of docs/scale.md.

    python benchmarks/scale_estimates.py

The formulas are in `hictl_hf.pretraining.estimates`. With `max_length` 256 a monolingual text takes 768 tokens: x, its
reordering, and x masked.
"""

from collections.abc import Sequence
from typing import Any

from hictl_hf.pretraining import estimates
from hictl_hf.pretraining.estimates import GPUS, PAIR, Shape

WORDS = 250_002
LONGEST = (256, 256, 256)  # tokens of x, y and x∘y
MODELS = {"base": (12, 768), "large": (24, 1024)}  # layers, d
XL = {"XL": (36, 2560)}


def shape_of(model: str) -> Shape:
    layers, d = (MODELS | XL)[model]
    return Shape(layers, d, 4 * d, WORDS)


def sizes(model: str) -> tuple[int, int, int]:
    """Parameters of the layers, of the word embeddings, of the model."""
    shape = shape_of(model)
    return shape.encoder, shape.embeddings, shape.parameters


def gigabytes(model: str, row: Sequence[int], pairs: int = 128, gpus: int = 8) -> list[float]:
    return estimates.gigabytes(shape_of(model), row, pairs, gpus)


def gigabytes_in_shards(model: str, row: Sequence[int], gpus: int) -> list[float]:
    """Gigabytes on one GPU with shards: share of the state, E and head, layers, activations, sentence level."""
    encoder, _, everything = sizes(model)
    _, head, _, checkpointed, level = gigabytes(model, row, gpus=gpus)
    share = (4 + 4 + 8) * everything / gpus / 1e9  # weights, gradients, moments
    head += (4 + 4) * (everything - encoder) / 1e9  # gathered; its gradient while that is divided
    layer = (2 * (4 + 4) + 4 + 4) * encoder / (XL | MODELS)[model][0] / 1e9  # two gathered, one gradient, buffers
    return [share, head, layer, checkpointed, level]


def milliseconds(model: str, gpu: str, pairs: int = 128, gpus: int = 8, bandwidth: float = 200e9) -> list[float]:
    return estimates.milliseconds(shape_of(model), gpu, pairs, gpus, bandwidth)


def line(*cells: Any) -> str:
    """Return a row of a Markdown table."""
    shown = [f"{cell:,.{0 if cell >= 100 else 1}f}" if isinstance(cell, float) else f"{cell}" for cell in cells]
    return f"| {' | '.join(shown)} |"


def make_tables() -> dict[str, list[str]]:
    """Return the rows of each table of docs/scale.md."""
    tables: dict[str, list[str]] = {"memory": [], "shards": [], "time": [], "plan": [], "checkpoints": []}
    for model in MODELS:
        for name, row in {"pairs": PAIR, "longest texts": LONGEST}.items():
            state, head, plain, checkpointed, level = gigabytes(model, row)
            sums = state + head + plain + level, state + head + checkpointed + level
            tables["memory"].append(line(model, name, state, head, plain, checkpointed, *sums))
        for gpu in GPUS:
            step = sum(parts := milliseconds(model, gpu))
            tables["time"].append(line(model, gpu, *parts, step, 1024e3 / step, 200_000 * step / 3.6e6))
        size = 12 * sizes(model)[2] / 1e9  # weights and moments
        tables["checkpoints"].append(line(model, size, 2 * size, 3 * size))
    for gpus in (8, 64):
        for name, row in {"pairs": PAIR, "longest texts": LONGEST}.items():
            parts = gigabytes_in_shards("XL", row, gpus)
            state, head, _, checkpointed, level = gigabytes("XL", row, gpus=gpus)
            sums = sum(parts), state + head + checkpointed + level
            tables["shards"].append(line("XL", gpus, name, *parts, *sums))
    for model, gpus, batch in [
        ("base", 8, 1024),
        ("base", 64, 1024),
        ("base", 16, 8192),
        ("base", 32, 8192),
        ("base", 64, 8192),
        ("base", 64, 32768),
        ("large", 64, 8192),
    ]:
        parts = milliseconds(model, "H100", batch // gpus, gpus, 200e9 if gpus == 8 else 100e9)
        step, level = sum(parts), 10 * (2 * batch) ** 2 / 1e9
        cells = 1e9 / batch, parts[0], parts[1], level, parts[3], step, 1e9 / batch * step / 3.6e6
        tables["plan"].append(line(model, gpus, f"{batch:,}", *cells, f"{100 * parts[0] / step:.0f} %"))
    return tables


if __name__ == "__main__":
    for name, rows in make_tables().items():
        print(name, *rows, sep="\n", end="\n\n")
