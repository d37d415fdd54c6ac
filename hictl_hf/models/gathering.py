"""Gather the sentences of all processes, or of all micro-batches, into one contrastive batch.

Every process computes the loss of the complete batch from the same gathered sentences and keeps the gradient of its
own sentences. The gradient is exactly that of a single process, and the backward pass needs no communication.
`negatives` chooses which of the sentences are contrasted.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed


def stack_pairs(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Concatenate parts of a batch, each x_1 … x_n, y_1 … y_n, with all x before all y.

    Returns:
        (N, ...) the rows, and (N,) the index of the part that each row comes from.
    """
    parts_of_rows = [torch.full((len(part),), number, device=part.device) for number, part in enumerate(parts)]
    return x_before_y(parts), x_before_y(parts_of_rows)


def x_before_y(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate the first halves of all parts, then the second halves."""
    return torch.cat([part.chunk(2)[half] for half in (0, 1) for part in parts if len(part)])


def gather_texts(texts: Tensor) -> Tensor:
    """(N,) text hashes of the sentences of all processes, all x before all y."""
    return stack_pairs(gather_rows(texts))[0]


def gather_sentences(sentences: Tensor) -> Tensor:
    """(N, r) sentences of all processes, all x before all y; the number per process may differ.

    Compute the same loss in every process and divide it by the number of processes. The sum over the processes is then
    that loss, and the summed gradients are its gradient.
    """
    return GatherSentences.apply(sentences)  # type: ignore[no-untyped-call]


class GatherSentences(torch.autograd.Function):
    """`gather_sentences` and its gradient: the upstream gradient is the same in all processes, so none is sent."""

    @staticmethod
    def forward(ctx: Any, sentences: Tensor) -> Tensor:
        gathered, process = stack_pairs(gather_rows(sentences))
        ctx.own = process == distributed.get_rank()
        return gathered

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        # the loss was divided by the number of processes W and is equal in all: times W this is ∂L of our sentences
        return upstream[ctx.own] * distributed.get_world_size()


@torch.no_grad()
def gather_rows(rows: Tensor) -> list[Tensor]:
    """Gather the rows (any number, ...) of each process, in the order of the processes."""
    number = torch.tensor([len(rows)], device=rows.device)
    numbers = [torch.empty_like(number) for _ in range(distributed.get_world_size())]
    distributed.all_gather(numbers, number)
    longest = int(torch.cat(numbers).max())
    padded = rows.new_zeros(longest, *rows.shape[1:])
    padded[: len(rows)] = rows
    gathered = [torch.empty_like(padded) for _ in numbers]
    distributed.all_gather(gathered, padded)
    return [part[: int(number)] for part, number in zip(gathered, numbers)]
