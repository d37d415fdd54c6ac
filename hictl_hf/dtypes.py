"""Number formats that are slow: a processor without instructions for bf16 or int8 imitates them, and takes many times
as long as in fp32."""

import logging
import time
from functools import cache
from typing import Any

import torch

SLOW = 1.5  # times the seconds of fp32, from which on it is told
NAMES = {"bf16": torch.bfloat16, "int8": torch.int8}
logger = logging.getLogger(__name__)


@cache
def times_fp32(kind: torch.dtype, device: torch.device) -> float:
    """Seconds of a matrix product in this format, over those in fp32, measured here once."""
    return best_seconds(kind, device) / best_seconds(torch.float32, device)


def best_seconds(kind: torch.dtype, device: torch.device) -> float:
    """Of three products of (256, 384) with (384, 2048)."""
    multiply: Any = torch._int_mm if kind == torch.int8 else torch.mm
    x, y = (torch.ones(rows, 384, dtype=kind, device=device) for rows in (256, 2048))
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        multiply(x, y.T)[0, 0].item()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


@cache
def warn_where_slow(name: str, device: torch.device) -> None:
    """Tell once that a format of `NAMES` is slower than fp32 on this processor."""
    if device.type == "cpu" and name in NAMES and (times := times_fp32(NAMES[name], device)) > SLOW:
        logger.warning(
            "this processor multiplies %.0f times slower in %s than in fp32; leave %s out", times, name, name
        )
