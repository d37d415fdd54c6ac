"""Attention of packed rows to themselves, by the fastest kernel that there is for a device, a dtype and these lengths.

Shapes: h heads of d dimensions, k tokens that attend.
"""

import logging
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import compress, groupby
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.utils import is_flash_attn_2_available

from .gpu import on_device

logger = logging.getLogger(__name__)

SHORT = 96
"""Tokens of the row of a token, on average, up to which ours is the fastest kernel.

On an H200, 100,000 tokens in 12 heads of 64, forward and backward: 0.6 of the time of flash attention with rows of 64,
1.7 with rows of 128, 0.3 with those of a batch of sentences (mean 33, most 233).
"""


class Limits(NamedTuple):
    """By what kernels find the rows that have a query.

    Args:
        queries, keys: (rows + 1,) int32, where those of each row end.
        most_queries, most_keys: of a row.
        blocks: (blocks, 2) int32 of queries and of keys, where `are_short`.
    """

    queries: Tensor
    keys: Tensor
    most_queries: int
    most_keys: int
    blocks: tuple[Tensor, ...]


def limits_of(lengths: list[int], attending: list[int], query: Tensor) -> Limits:
    """The limits of rows of such lengths, of which so many tokens attend, for queries such as this one."""
    device = query.device
    counts = torch.tensor([[count for count in attending if count], [m for n, m in zip(attending, lengths) if n]])
    queries, keys = on_device(F.pad(counts.cumsum(1, dtype=torch.int32), (1, 0)), device)
    blocks: tuple[Tensor, ...] = ()
    if kernel_of(query, 0.0, short=True) == "short rows" and are_short(lengths, device):
        from .short_rows import blocks_of

        parts = [blocks_of(each) for each in counts]
        blocks = on_device(torch.cat(parts), device).split([len(part) for part in parts])
    return Limits(queries, keys, max(attending, default=0), int(counts[1].max()), blocks)


def are_short(lengths: list[int], device: torch.device) -> bool:
    """Whether the kernel for short rows is the fastest for rows of these lengths, and works on this GPU."""
    return sum(n * n for n in lengths) <= SHORT * sum(lengths) and triton_works(device)


@cache
def triton_works(device: torch.device) -> bool:
    """Whether Triton is installed and can compile a kernel; logs a warning if it is and cannot.

    It needs a C compiler and Python's headers.
    """
    if find_spec("triton") is None:
        return False
    from .short_rows import attend_in_short_rows

    state, ends = torch.zeros(1, 1, 16, dtype=torch.float16, device=device), torch.arange(2, device=device).int()
    block = torch.zeros(1, 2, dtype=torch.int32, device=device)
    try:
        with torch.no_grad():
            attend_in_short_rows(state, state, state, ends, ends, block, block, 0.0, 1.0)
    except Exception as error:  # of many kinds: compilers, drivers, releases of Triton
        message = "Triton cannot compile here, so short rows take another kernel, which is slower: %s: %s"
        logger.warning(message, type(error).__name__, str(error).strip().splitlines()[0][:200] if str(error) else "")
        return False
    return True


def rows_with_queries(lengths: list[int], attending: list[int], states: Tensor) -> Tensor:
    """The keys or values (tokens, h, d) of rows with a query; kernels for variable lengths are given no others."""
    if 0 not in attending:
        return states
    runs = groupby(zip(attending, lengths), lambda counts: counts[0] > 0)
    busy, tokens = zip(*((has_query, sum(length for _, length in rows)) for has_query, rows in runs))
    return torch.cat(list(compress(states.split(tokens), busy)))


def kernel_of(
    query: Tensor, dropout: float, short: bool = False
) -> Literal["short rows", "flash_attn", "aten", "by length"]:
    """The attention kernel for packed rows of (tokens, h, d) that exists on this device, for this dtype and size.

    Ours where rows `are_short`; flash-attn's; PyTorch's; else one call for all rows of a length.
    """
    size = query.shape[-1]
    if not query.is_cuda or query.dtype not in (torch.float16, torch.bfloat16) or size % 8 or size > 256:
        return "by length"
    capability = torch.cuda.get_device_capability(query.device)
    if capability < (8, 0):  # before Ampere
        return "by length"
    if short:
        return "short rows"
    if has_no_wide_backward(capability) and size > 192 and (dropout or size <= 224):
        return "by length"
    if is_flash_attn_2_available():
        return "flash_attn"
    if not torch.backends.cuda.is_flash_attention_available():  # how this PyTorch was built
        return "by length"
    return "aten"


def has_no_wide_backward(capability: tuple[int, int]) -> bool:
    """Whether a GPU has too little shared memory for all backward passes of flash attention with heads above 192.

    It has none of heads up to 224, nor with dropout. These are GPUs for consumers: RTX 3090, 4090, 5090, and others.
    """
    return (8, 6) <= capability <= (8, 9) or capability >= (12, 0)


@torch.compiler.disable
def attend_within_rows(
    lengths: list[int],
    attending: list[int],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float,
    scaling: float,
    limits: Limits | None = None,
    window: int | None = None,
) -> Tensor:
    """(k, h, d) attention of each row to itself, by the fastest kernel for device and dtype.

    Args:
        lengths: of the rows, each at least 1.
        attending: how many tokens of each row attend; their sum is k.
        query: (k, h, d).
        key, value: (tokens, h, d).
        limits: `limits_of` these rows on a GPU.
        window: tokens attend to those at a smaller distance than this; `None`: to all of their row. `attending` is then
            `lengths`.
    """
    window = window if window is not None and max(lengths) > window else None
    if limits is None and query.is_cuda:
        limits = limits_of(lengths, attending, query)
    kernel = kernel_of(query, dropout, short=window is None and limits is not None and bool(limits.blocks))
    if kernel == "by length":
        if query.device.type == "cpu" and query.dtype == torch.bfloat16:  # its backward pass is several times slower
            with torch.autocast("cpu", enabled=False):
                states = query.float(), key.float(), value.float()
                return attend_by_length(lengths, attending, *states, dropout, scaling, window).to(query.dtype)
        return attend_by_length(lengths, attending, query, key, value, dropout, scaling, window)
    assert limits is not None
    key, value = (rows_with_queries(lengths, attending, states) for states in (key, value))
    if kernel == "short rows":
        from .short_rows import attend_in_short_rows

        query_blocks, key_blocks = limits.blocks
        places = limits.queries, limits.keys, query_blocks, key_blocks
        return attend_in_short_rows(query, key, value, *places, dropout, scaling)
    numbers = limits[:4]
    if kernel == "flash_attn":
        # no import statement: without the package, transformers would refuse a copy of this code
        attention: Any = import_module("flash_attn").flash_attn_varlen_func
        settings: dict[str, Any] = {} if window is None else {"window_size": (window - 1, window - 1)}
        attended: Tensor = attention(query, key, value, *numbers, dropout_p=dropout, softmax_scale=scaling, **settings)
        return attended
    near = {} if window is None else {"window_size_left": window - 1, "window_size_right": window - 1}
    # private: `varlen_attn`, which wraps it, has no dropout and prefers cuDNN from PyTorch 2.14 on, which plans anew
    # for each shape; nested tensors cost more
    operator = torch.ops.aten._flash_attention_forward
    return operator(query, key, value, *numbers, dropout, False, False, scale=scaling, **near)[0]


def attend_by_length(
    lengths: list[int],
    attending: list[int],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float,
    scaling: float,
    window: int | None = None,
) -> Tensor:
    """`attend_within_rows` by one call for neighbouring rows of equal counts, over views of the buffer."""
    groups = [(*counts, len(list(equal))) for counts, equal in groupby(zip(attending, lengths))]
    queries = query.split([count * rows for count, _, rows in groups])
    keys, values = (part.split([length * rows for _, length, rows in groups]) for part in (key, value))
    outputs = []
    for (count, length, rows), *states in zip(groups, queries, keys, values):
        if count == 0:
            continue
        near = None
        if window is not None and length > window:
            number = torch.arange(length, device=query.device)
            near = (number - number[:, None]).abs() < window
        q, k, v = (part.unflatten(0, (rows, -1)).transpose(1, 2) for part in states)
        output = F.scaled_dot_product_attention(q, k, v, attn_mask=near, dropout_p=dropout, scale=scaling)
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)
