"""Count the arithmetic of a step, and measure how fast this machine can do it.

Counted floor: each real token of x, y and x∘y passes every layer once, words are scored at masked positions only;
padding, word negatives and memory cost nothing; matrix products run at the speed of the best shape that occurs.
AdamW streams 28 bytes a parameter: weight, gradient and two moments in, weight and moments out. Least floor: in the
last layer tokens whose states are not used have keys and values only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from measure import seconds_of
from torch import nn
from workload import Size

from hictl_hf import HictlConfig

ADAMW_BYTES = 28
STREAMED = 30_000_000  # parameters that AdamW's speed is measured on: 480 MB in four arrays, beyond the caches
SCORED_WORDS = 2**14  # of the vocabulary at a time, when the speed of the head is measured


@dataclass(frozen=True)
class Rates:
    """What the machine can do: floating-point operations and bytes in a second, as usual: of seven calls the median."""

    fp32: float
    bf16: float | None
    """`None` where nothing is measured in it."""
    stream: float


def floor_by_part(
    size: Size, config: HictlConfig, parameters: int, rates: Rates, bf16: bool = False, least: bool = False
) -> dict[str, float]:
    """Seconds of each part of the ideal step."""
    rate = rates.bf16 if bf16 else rates.fp32
    assert rate is not None
    seconds = {part: operations / rate for part, operations in count_operations(size, config, least).items()}
    return seconds | {"optimiser": ADAMW_BYTES * parameters / rates.stream}


def count_operations(size: Size, config: HictlConfig, least: bool) -> dict[str, float]:
    """Floating-point operations: 2 for each multiply-add, and each product of the forward pass makes two backward."""
    d, layers = config.hidden_size, config.num_hidden_layers
    keys_and_values = 2 * d * d  # weights of a layer
    others = 2 * d * d + 2 * d * config.intermediate_size  # query, output, and feed-forward
    attention = 2 * d * size.squared_lengths  # multiply-adds of a layer: q·k and the weighted sum of v
    layer = (keys_and_values + others) * size.tokens + attention
    last = keys_and_values * size.tokens + others * size.read_tokens if least else layer
    similarities = size.sentences**2 * d
    return {
        "encoder": 6 * ((layers - 1) * layer + last),
        "head": 6 * size.masked_words * (config.vocab_size + d) * d,
        "sentence level": 6 * (size.sentences * d * (config.projection_size or d) + similarities),
    }


def measure_rates(size: Size, config: HictlConfig, bf16: bool = True, device: str = "cpu") -> Rates:
    """Matrix products of the shapes of a batch, and AdamW on an array that fits no cache."""
    d, inner = config.hidden_size, config.intermediate_size
    shapes = [
        (size.tokens, d, inner),
        (size.tokens, inner, d),
        (size.masked_words, d, SCORED_WORDS),
        (SCORED_WORDS, size.masked_words, d),
    ]
    if device == "cuda":
        shapes.append((8192, 8192, 8192))
    fp32, *in_bf16 = (
        max(product_rate(shape, dtype, device) for shape in shapes) for dtype in ("float32", "bfloat16")[: 1 + bf16]
    )
    return Rates(fp32, in_bf16[0] if bf16 else None, stream_rate(device))


def product_rate(shape: tuple[int, int, int], dtype: str, device: str) -> float:
    rows, inner, columns = shape
    left = torch.randn(rows, inner, dtype=getattr(torch, dtype), device=device)
    right = torch.randn(inner, columns, dtype=left.dtype, device=device)
    result = torch.empty(rows, columns, dtype=left.dtype, device=device)
    return 2 * rows * inner * columns / usual_seconds(lambda: torch.mm(left, right, out=result), device)


def stream_rate(device: str) -> float:
    array = nn.Parameter(torch.zeros(STREAMED, device=device))
    array.grad = torch.ones_like(array)
    return ADAMW_BYTES * STREAMED / usual_seconds(torch.optim.AdamW([array], fused=True).step, device)


def usual_seconds(action: Callable[[], object], device: str) -> float:
    """Median seconds of seven calls, after one that is not timed; of the process where it computes itself."""
    action()
    seconds = [seconds_of(action, device) for _ in range(7)]
    return median(each.wall if device == "cuda" else each.cpu for each in seconds)
