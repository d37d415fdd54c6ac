"""Gather the sentences of all processes, or of all micro-batches, into one contrastive batch.

Every process computes the loss of the complete batch from the same gathered sentences and keeps the gradient of its
own sentences. The gradient is exactly that of a single process, and the backward pass needs no communication.
`negatives` chooses which of the sentences are contrasted.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed


def stack_pairs(parts: Sequence[Tensor]) -> Tensor:
    """(N, ...) the rows of parts of a batch, each x_1 … x_n, y_1 … y_n, with all x before all y."""
    return torch.cat([part.chunk(2)[half] for half in (0, 1) for part in parts if len(part)])


def unstack_pairs(rows: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Split stacked rows (N, ...) into the parts of these lengths."""
    halves = [half.split([length // 2 for length in lengths]) for half in rows.chunk(2)]
    return [torch.cat([x, y]) for x, y in zip(*halves)]


def count_rows(rows: Tensor) -> list[int]:
    """How many rows each process has, in the order of the processes; waits for all of them."""
    number = torch.full((1,), len(rows), device=rows.device)
    numbers = [torch.empty_like(number) for _ in range(distributed.get_world_size())]
    distributed.all_gather(numbers, number)
    return torch.cat(numbers).tolist()


def gather_texts(texts: Tensor, counts: Sequence[int]) -> Tensor:
    """(N,) text hashes of the sentences of all processes, all x before all y, given `count_rows` of them."""
    return stack_pairs(gather_rows(texts, counts))


def gather_sentences(sentences: Tensor, counts: Sequence[int]) -> Tensor:
    """(N, r) sentences of all processes, all x before all y; the number per process may differ.

    Compute the same loss in every process and divide it by the number of processes. The sum over the processes is then
    that loss, and the summed gradients are its gradient.
    """
    return GatherSentences.apply(sentences, counts)  # type: ignore[no-untyped-call]


class GatherSentences(torch.autograd.Function):
    """`gather_sentences` and its gradient: the upstream gradient is the same in all processes, so none is sent."""

    @staticmethod
    def forward(ctx: Any, sentences: Tensor, counts: Sequence[int]) -> Tensor:
        ctx.counts = counts
        return stack_pairs(gather_rows(sentences, counts))

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        # the loss was divided by the number of processes W and is equal in all: times W this is ∂L of our sentences
        own = unstack_pairs(upstream, ctx.counts)[distributed.get_rank()]
        return own * distributed.get_world_size(), None


@torch.no_grad()
def gather_rows(rows: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """Gather the rows (any number, ...) of each process, in the order of the processes."""
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: len(rows)] = rows
    gathered = [torch.empty_like(padded) for _ in counts]
    distributed.all_gather(gathered, padded)
    return [part[:number] for part, number in zip(gathered, counts)]
