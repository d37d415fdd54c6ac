# mypy: disable-error-code="no-untyped-def"
"""Attention within packed rows of some 10 to 100 tokens on a GPU, with dropout, as Triton kernels.

The kernels of libraries compute blocks of 128 × 128 scores, of which a sentence of 30 tokens fills a twentieth. Here
blocks are small, and the CPU, which knows the lengths, lists those that exist (`blocks_of`).

The output is softmax(q kᵀ · scaling) v with dropout on the weights, as by FlashAttention-2 (Dao, 2023): a running
softmax, and scores computed again in the backward pass. Dropout is a function of a seed and of the places of query and
key (Philox of 7 rounds; Salmon et al., 2011), so it is the same in each pass and for blocks of any size.
Shapes: k queries, n keys, h heads, d dimensions of a head.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

try:  # in this form transformers does not ask for the package where it copies this file to
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError("the kernels for short rows need Triton, which PyTorch for a GPU brings along") from error

BLOCK = 16  # queries, or keys
LAUNCH = {"num_warps": 1, "num_stages": 2}  # with BLOCK the fastest of nine combinations on an H200
LOG2_E = 1.4426950408889634


def attend_in_short_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_ends: Tensor,
    key_ends: Tensor,
    query_blocks: Tensor,
    key_blocks: Tensor,
    dropout: float,
    scaling: float,
) -> Tensor:
    """(k, h, d) attention of each row to itself.

    Args:
        query: (k, h, d), half or single precision, d adjacent numbers.
        key, value: (n, h, d) of the same dtype.
        query_ends, key_ends: (rows + 1,) int32, where the queries and keys of each row end.
        query_blocks, key_blocks: `blocks_of` them, on the device.
    """
    return ShortRows.apply(  # type: ignore[no-untyped-call]
        query, key, value, query_ends, key_ends, query_blocks, key_blocks, dropout, scaling
    )


def blocks_of(counts: Tensor) -> Tensor:
    """(blocks, 2) int32, row and number within it of each block of `BLOCK` tokens, given the tokens (rows,) of each."""
    blocks = (counts + BLOCK - 1) // BLOCK
    row = torch.arange(len(counts)).repeat_interleave(blocks)
    return torch.stack([row, torch.arange(len(row)) - (blocks.cumsum(0) - blocks)[row]], 1).int()


class ShortRows(torch.autograd.Function):
    """`attend_in_short_rows`."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_ends: Tensor,
        key_ends: Tensor,
        query_blocks: Tensor,
        key_blocks: Tensor,
        dropout: float,
        scaling: float,
    ) -> Tensor:
        number, heads, size = query.shape
        query, key, value = (
            states if states.stride(-1) == 1 else states.contiguous() for states in (query, key, value)
        )
        seed = torch.randint(2**31 - 1, (1,), device=query.device) if dropout else query_ends
        output = query.new_empty(number, heads, size)
        sums = query.new_empty(number, heads, dtype=torch.float32)  # log2 of those of the exponentials
        ctx.numbers = (
            scaling * LOG2_E,
            dropout,
            *(stride for states in (query, key, value) for stride in states.stride()[:2]),
        )
        ctx.settings = {
            "HEADS": heads, "SIZE": size, "PADDED": max(triton.next_power_of_2(size), 16), "BLOCK": BLOCK,
            "DROPS": dropout > 0, **LAUNCH,
        }  # fmt: skip
        rows = query_ends, key_ends, seed
        with torch.cuda.device_of(query):  # Triton launches on the current device
            forward_of_queries[len(query_blocks), heads](
                query, key, value, output, sums, query_blocks, *rows, *ctx.numbers, **ctx.settings
            )
        ctx.save_for_backward(query, key, value, output, sums, query_blocks, key_blocks, *rows)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, sums, query_blocks, key_blocks, *rows = ctx.saved_tensors
        upstream, means = upstream.contiguous(), torch.empty_like(sums)
        by_query, by_key, by_value = (
            torch.empty(states.shape, dtype=states.dtype, device=states.device) for states in (query, key, value)
        )
        heads = query.shape[1]
        with torch.cuda.device_of(query):
            backward_of_queries[len(query_blocks), heads](
                query, key, value, output, sums, upstream, means, by_query, query_blocks, *rows, *ctx.numbers,
                **ctx.settings,
            )  # fmt: skip
            backward_of_keys[len(key_blocks), heads](
                query, key, value, sums, upstream, means, by_key, by_value, key_blocks, *rows, *ctx.numbers,
                **ctx.settings,
            )  # fmt: skip
        return by_query, by_key, by_value, *[None] * 6


# With scores s = q kᵀ · scaling, weights p = softmax(s), those that dropout left p' (0, or p / (1 - dropout)) and the
# output o = p' v:   ∂v = p'ᵀ ∂o,   ∂p' = ∂o vᵀ,   ∂s = p (∂p - o·∂o), where ∂p is ∂p' / (1 - dropout), or 0.
# Scores are in powers of 2; 1.4426950408889634 is LOG2_E, as kernels read no numbers of a module. `means` holds o·∂o.


@triton.jit
def forward_of_queries(
    query, key, value, output, sums, blocks, query_ends, key_ends, seed, scale, dropout,
    q_stride, q_head, k_stride, k_head, v_stride, v_head,
    HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    head, seed = tl.program_id(1), tl.load(seed)
    row, start, end = place_of_block(blocks, query_ends, BLOCK)
    at = start + tl.arange(0, BLOCK)
    q = states_at(query, at, end, head, q_stride, q_head, SIZE, PADDED)
    highest = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    weighted = tl.zeros([BLOCK, PADDED], tl.float32)
    last = tl.load(key_ends + row + 1)
    for first in range(tl.load(key_ends + row), last, BLOCK):
        others = first + tl.arange(0, BLOCK)
        k = states_at(key, others, last, head, k_stride, k_head, SIZE, PADDED)
        v = states_at(value, others, last, head, v_stride, v_head, SIZE, PADDED)
        scores = tl.where((others < last)[None, :], tl.dot(q, tl.trans(k)) * scale, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights, shrink = tl.exp2(scores - higher[:, None]), tl.exp2(highest - higher)
        total = total * shrink + tl.sum(weights, 1)
        if DROPS:
            weights = tl.where(are_kept(seed, at, others, head, dropout), weights, 0.0)
        weighted = weighted * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        highest = higher
    weighted = weighted / (total * (1 - dropout))[:, None]
    write_states(output, weighted, at, end, head, HEADS, SIZE, PADDED)
    tl.store(sums + at * HEADS + head, highest + tl.log2(total), mask=at < end)


@triton.jit
def backward_of_queries(
    query, key, value, output, sums, upstream, means, by_query, blocks, query_ends, key_ends, seed, scale, dropout,
    q_stride, q_head, k_stride, k_head, v_stride, v_head,
    HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    head, seed = tl.program_id(1), tl.load(seed)
    row, start, end = place_of_block(blocks, query_ends, BLOCK)
    at = start + tl.arange(0, BLOCK)
    q = states_at(query, at, end, head, q_stride, q_head, SIZE, PADDED)
    by_output = states_at(upstream, at, end, head, HEADS * SIZE, SIZE, SIZE, PADDED)
    attended = states_at(output, at, end, head, HEADS * SIZE, SIZE, SIZE, PADDED)
    mean = tl.sum(by_output.to(tl.float32) * attended.to(tl.float32), 1)
    tl.store(means + at * HEADS + head, mean, mask=at < end)
    total = tl.load(sums + at * HEADS + head, mask=at < end, other=float("inf"))
    gradient = tl.zeros([BLOCK, PADDED], tl.float32)
    last = tl.load(key_ends + row + 1)
    for first in range(tl.load(key_ends + row), last, BLOCK):
        others = first + tl.arange(0, BLOCK)
        k = states_at(key, others, last, head, k_stride, k_head, SIZE, PADDED)
        v = states_at(value, others, last, head, v_stride, v_head, SIZE, PADDED)
        scores = tl.where((others < last)[None, :], tl.dot(q, tl.trans(k)) * scale, -float("inf"))
        weights = tl.exp2(scores - total[:, None])
        by_weights = tl.dot(by_output, tl.trans(v))
        if DROPS:
            by_weights = tl.where(are_kept(seed, at, others, head, dropout), by_weights / (1 - dropout), 0.0)
        gradient += tl.dot((weights * (by_weights - mean[:, None])).to(k.dtype), k)
    write_states(by_query, gradient * (scale / 1.4426950408889634), at, end, head, HEADS, SIZE, PADDED)


@triton.jit
def backward_of_keys(
    query, key, value, sums, upstream, means, by_key, by_value, blocks, query_ends, key_ends, seed, scale, dropout,
    q_stride, q_head, k_stride, k_head, v_stride, v_head,
    HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    head, seed = tl.program_id(1), tl.load(seed)
    row, start, end = place_of_block(blocks, key_ends, BLOCK)
    at = start + tl.arange(0, BLOCK)
    k = states_at(key, at, end, head, k_stride, k_head, SIZE, PADDED)
    v = states_at(value, at, end, head, v_stride, v_head, SIZE, PADDED)
    key_gradient = tl.zeros([BLOCK, PADDED], tl.float32)
    value_gradient = tl.zeros([BLOCK, PADDED], tl.float32)
    last = tl.load(query_ends + row + 1)
    for first in range(tl.load(query_ends + row), last, BLOCK):
        others = first + tl.arange(0, BLOCK)
        q = states_at(query, others, last, head, q_stride, q_head, SIZE, PADDED)
        by_output = states_at(upstream, others, last, head, HEADS * SIZE, SIZE, SIZE, PADDED)
        mean = tl.load(means + others * HEADS + head, mask=others < last, other=0.0)
        total = tl.load(sums + others * HEADS + head, mask=others < last, other=float("inf"))
        # transposed: (keys, queries)
        weights = tl.exp2(tl.dot(k, tl.trans(q)) * scale - total[None, :])
        by_weights = tl.dot(v, tl.trans(by_output))
        left = weights
        if DROPS:
            kept = tl.trans(are_kept(seed, others, at, head, dropout))
            left = tl.where(kept, weights / (1 - dropout), 0.0)
            by_weights = tl.where(kept, by_weights / (1 - dropout), 0.0)
        value_gradient += tl.dot(left.to(by_output.dtype), by_output)
        key_gradient += tl.dot((weights * (by_weights - mean[None, :])).to(q.dtype), q)
    write_states(by_key, key_gradient * (scale / 1.4426950408889634), at, end, head, HEADS, SIZE, PADDED)
    write_states(by_value, value_gradient, at, end, head, HEADS, SIZE, PADDED)


@triton.jit
def place_of_block(blocks, ends, BLOCK: tl.constexpr):
    """The row of this program's block, where the block begins in the buffer, and where its row ends."""
    row = tl.load(blocks + 2 * tl.program_id(0))
    start = tl.load(ends + row) + BLOCK * tl.load(blocks + 2 * tl.program_id(0) + 1)
    return row, start, tl.load(ends + row + 1)


@triton.jit
def states_at(base, at, end, head, stride, head_stride, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """(block, PADDED) states of one head, 0 from the end of the row on."""
    number = tl.arange(0, PADDED)
    place = at.to(tl.int64)[:, None] * stride + head * head_stride + number[None, :]
    return tl.load(base + place, mask=(at < end)[:, None] & (number < SIZE)[None, :], other=0.0)


@triton.jit
def write_states(base, values, at, end, head, HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """Store (block, PADDED) states of one head in a contiguous (…, h, d) tensor."""
    number = tl.arange(0, PADDED)
    place = at.to(tl.int64)[:, None] * (HEADS * SIZE) + head * SIZE + number[None, :]
    tl.store(base + place, values.to(base.dtype.element_ty), mask=(at < end)[:, None] & (number < SIZE)[None, :])


@triton.jit
def are_kept(seed, queries, keys, head, dropout):
    """(queries, keys) bool, the weights that dropout keeps."""
    counter = queries[:, None] + 0 * keys[None, :]
    random, _, _, _ = tl.philox(seed, counter, 0 * counter + keys[None, :], 0 * counter + head, 0 * counter, 7)
    return tl.uint_to_uniform_float(random) >= dropout
