"""The sentences of all processes, or of all micro-batches, as one contrastive batch.

Every process computes the loss of the whole batch from the same gathered sentences and keeps the gradient of its own:
as exact as one process, and nothing is communicated backwards. Which sentences are then contrasted with which is
decided by `negatives`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed


def stack_pairs(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Parts of a batch, each x_1 … x_n, y_1 … y_n, as one: all x, then all y; and (N,) which part a row is from."""
    parts_of_rows = [torch.full((len(part),), number, device=part.device) for number, part in enumerate(parts)]
    return x_before_y(parts), x_before_y(parts_of_rows)


def x_before_y(parts: Sequence[Tensor]) -> Tensor:
    """The first halves of all parts, then the second halves."""
    return torch.cat([part.chunk(2)[half] for half in (0, 1) for part in parts if len(part)])


def gather_texts(texts: Tensor) -> Tensor:
    """(N,) the texts of the sentences of all processes, all x before all y."""
    return stack_pairs(gather_rows(texts))[0]


def gather_sentences(sentences: Tensor) -> Tensor:
    """(N, r) the sentences of all processes, all x before all y; their numbers may differ.

    A loss of the result must be the same in every process and be divided by their number: then the sum over the
    processes is that loss, and so is its gradient.
    """
    return GatherSentences.apply(sentences)  # type: ignore[no-untyped-call]


class GatherSentences(torch.autograd.Function):
    """`gather_sentences`; what the processes would send back is equal, so none has to wait for the others."""

    @staticmethod
    def forward(ctx: Any, sentences: Tensor) -> Tensor:
        everyone, process = stack_pairs(gather_rows(sentences))
        ctx.own = process == distributed.get_rank()
        return everyone

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        return upstream[ctx.own] * distributed.get_world_size()


@torch.no_grad()
def gather_rows(rows: Tensor) -> list[Tensor]:
    """The rows (any number, ...) of each process, in the order of the processes."""
    number = torch.tensor([len(rows)], device=rows.device)
    numbers = [torch.empty_like(number) for _ in range(distributed.get_world_size())]
    distributed.all_gather(numbers, number)
    longest = int(torch.cat(numbers).max())
    padded = rows.new_zeros(longest, *rows.shape[1:])
    padded[: len(rows)] = rows
    everyone = [torch.empty_like(padded) for _ in numbers]
    distributed.all_gather(everyone, padded)
    return [part[: int(number)] for part, number in zip(everyone, numbers)]
