"""Linear layers in int8, the device of a model, the dtypes that a device is fast in, and a warning about others: a
processor without instructions for bf16 or int8 emulates them and takes many times as long as in fp32."""

import logging
import time
from functools import cache
from typing import Any

import torch
from accelerate.utils import has_offloaded_params
from torch import Tensor, nn

from .errors import BadInput

SLOW = 1.5  # times the seconds of fp32; above it a warning is logged
NAMES = {"bf16": torch.bfloat16, "int8": torch.int8}
logger = logging.getLogger(__name__)


def has_fast_bf16(device: torch.device | str) -> bool:
    """Whether this is a GPU with instructions for bf16 (compute capability 8.0 and newer)."""
    return torch.device(device).type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


@cache
def times_fp32(kind: torch.dtype, device: torch.device) -> float:
    """Ratio of the seconds of a matrix product in this dtype to those in fp32, measured once a process."""
    return best_seconds(kind, device) / best_seconds(torch.float32, device)


def best_seconds(kind: torch.dtype, device: torch.device) -> float:
    """The shortest of three products of (256, 384) with (384, 2048)."""
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
    """Warn once if a dtype of `NAMES` is slower than fp32 on this processor, or emulated by this GPU."""
    if device.type == "cuda" and name == "bf16" and not has_fast_bf16(device):
        logger.warning("this GPU has no instructions for bf16 and emulates it; leave bf16 out, train with --fp16 true")
    if device.type == "cpu" and name in NAMES and (times := times_fp32(NAMES[name], device)) > SLOW:
        logger.warning(
            "this processor multiplies %.0f times slower in %s than in fp32; leave %s out", times, name, name
        )


def device_of(model: Any) -> torch.device:
    """The device that a model computes on, also of one whose weights accelerate keeps elsewhere (`device_map`).

    Raises:
        BadInput: the model has no weights.
    """
    if model.device.type != "meta":
        return torch.device(model.device)
    for module in model.modules():
        if has_offloaded_params(module):
            return torch.device(module._hf_hook.execution_device)  # accelerate has no public way to ask
    raise BadInput('the model is on the device "meta", without weights; load it by from_pretrained, or load_encoder.')


class QuantizedLinear(nn.Module):
    """A linear layer in int8 on a CPU: one scale per output for the weights, one per token for the inputs.

    PyTorch's dynamic quantisation has one scale for all tokens of a batch: less exact, and the result for a sentence
    depends on the other sentences of its batch. The integers are not called `weight`: a saved model would be read as
    one of linear layers, without the scales.
    """

    scales: Tensor
    quantized: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, self.bias = linear.weight.detach().float(), linear.bias
        scales = (weight.abs().amax(1) / 127).clamp_min(1e-12)
        self.register_buffer("scales", scales)
        self.register_buffer("quantized", (weight / scales.unsqueeze(1)).round().to(torch.int8))

    def forward(self, states: Tensor) -> Tensor:
        rows = states.flatten(0, -2)  # (tokens, inputs)
        scales = (rows.abs().amax(1, keepdim=True) / 127).clamp_min(1e-12)
        products = torch._int_mm((rows / scales).round_().to(torch.int8), self.quantized.T) * scales
        outputs = products.mul_(self.scales) if self.bias is None else products.mul_(self.scales).add_(self.bias)
        return outputs.view(*states.shape[:-1], -1)


def with_int8_linear_layers(module: nn.Module) -> Any:
    """Replace the linear layers of a module by `QuantizedLinear`, in place; returns the module."""
    for name, child in module.named_children():
        setattr(module, name, QuantizedLinear(child) if type(child) is nn.Linear else with_int8_linear_layers(child))
    return module
