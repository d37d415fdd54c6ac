"""Copies to a GPU that it is not waited for, and products in TF32."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@torch.compiler.disable
def on_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the CPU to a device, without waiting for the GPU."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


@contextmanager
def products_in_tf32(allowed: bool) -> Iterator[None]:
    """Let a GPU multiply fp32 numbers in TF32, unless the user has said how (`--tf32`).

    It has 10 bits after the point, where the states of a model in bf16 have 7; cosines of 768 dimensions come out exact
    to about 2e-5.
    """
    switch = torch.backends.cuda.matmul
    before = switch.fp32_precision
    switch.fp32_precision = "tf32" if allowed and before == "none" else before
    try:
        yield
    finally:
        switch.fp32_precision = before
