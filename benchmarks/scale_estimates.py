"""Memory and time of pre-training on many GPUs, computed: prints the tables of docs/scale.md.

    python benchmarks/scale_estimates.py

A pair has 25 tokens on each side, so with special tokens x, y and x∘y are 108. With `max_length` 256 a monolingual
text takes 768: x, its reordering, and x masked. Activations are 42 · d bytes a token and layer, counted from the code
for CUDA autocast with flash-attention: seven bf16 vectors of size d (inputs of q, k and v, these, and the output of
attention), two fp32 ones before the layer norms, two dropout masks, 18 · d of the feed-forward part. With checkpointing
one fp32 vector a layer stays, and one layer is recomputed at a time. The sentence level holds 10 bytes an entry of its
matrix: two fp32 matrices and two of booleans. The all-reduce of the word embeddings cannot overlap with the backward
pass, because their gradient is complete only at its end.
"""

from collections.abc import Sequence
from typing import Any

WORDS, PAIR, LONGEST = 250_002, (27, 27, 54), (256, 256, 256)  # tokens of x, y and x∘y
MODELS = {"base": (12, 768), "large": (24, 1024)}  # layers, d
XL = {"XL": (36, 2560)}
GPUS = {  # FLOP/s in bf16 and in fp32, bytes/s of memory: the makers' peaks; the share of FLOP/s assumed
    "A100": (312e12, 19.5e12, 2.0e12, 0.5),
    "H100": (989e12, 67e12, 3.35e12, 0.4),
}


def sizes(model: str) -> tuple[int, int, int]:
    """Parameters of the layers, of the word embeddings, of the model."""
    layers, d = (MODELS | XL)[model]
    encoder = layers * (12 * d * d + 13 * d)
    return encoder, WORDS * d, encoder + WORDS * (d + 1) + 2 * d * d + 520 * d


def gigabytes(model: str, row: Sequence[int], pairs: int = 128, gpus: int = 8) -> list[float]:
    """Gigabytes on one GPU: state, E and head, activations without and with checkpointing, sentence level."""
    layers, d = (MODELS | XL)[model]
    _, embeddings, everything = sizes(model)
    tokens, sentences = pairs * sum(row), 2 * pairs * gpus
    copied = 4 if gpus > 1 else 0  # by DDP
    state = (4 + 4 + 8 + copied) * everything  # weights, gradients, moments, DDP's buckets
    # gradient of E before DDP's bucket, bf16 copies; a block of logits
    head = (copied + 2 + 2 + 4) * embeddings + (4 + 4 + 2) * 2**28
    activations = 42 * d * layers * tokens, (4 * layers + 42) * d * tokens
    return [number / 1e9 for number in (state, head, *activations, 10 * sentences**2)]


def gigabytes_in_shards(model: str, row: Sequence[int], pairs: int = 128, gpus: int = 8) -> list[float]:
    """Gigabytes on one GPU with shards: share of the state, E and head, layers, activations, sentence level."""
    encoder, _, everything = sizes(model)
    _, head, _, checkpointed, level = gigabytes(model, row, pairs, gpus)
    share = (4 + 4 + 8) * everything / gpus / 1e9  # weights, gradients, moments
    head += (4 + 4) * (everything - encoder) / 1e9  # gathered; its gradient while that is divided
    layer = (2 * (4 + 4) + 4 + 4) * encoder / (XL | MODELS)[model][0] / 1e9  # two gathered, one gradient, buffers
    return [share, head, layer, checkpointed, level]


def milliseconds(model: str, gpu: str, pairs: int = 128, gpus: int = 8, bandwidth: float = 200e9) -> list[float]:
    """Milliseconds of a step: encoder and head, sentence level, AdamW, all-reduce after the backward pass."""
    layers, d = MODELS[model]
    encoder, embeddings, everything = sizes(model)
    bf16, fp32, memory, share = GPUS[gpu]
    attention = 12 * layers * d * sum(length**2 for length in PAIR)
    head = 6 * 0.25 * 50 * (embeddings + d * d)  # a quarter of 50 words is masked
    compute = pairs * (6 * encoder * sum(PAIR) + attention + head) / (share * bf16)
    # 4 d FLOP and 240 bytes of memory traffic an entry of the Gram matrix, counted on a CPU
    contrast = (2 * pairs * gpus) ** 2 * (4 * d / (share * fp32) + 240 / memory)
    reduce = 2 * (gpus - 1) / gpus * 4 / bandwidth  # of one parameter
    late = reduce * embeddings + max(0, reduce * (everything - embeddings) - 2 / 3 * compute)
    return [1e3 * seconds for seconds in (compute, contrast, 28 * everything / memory, late)]


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
            parts = gigabytes_in_shards("XL", row, gpus=gpus)
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
