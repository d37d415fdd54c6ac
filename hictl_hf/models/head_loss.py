"""The loss of transformers' heads under gradient accumulation.

A head returns the mean over the labels of one call. HF's Trainer divides a batch into micro-batches and passes
`num_items_in_batch`, the number of labels in all of them, but most heads of transformers ignore it. The mean of their
means differs from the mean over all labels where micro-batches have different numbers of masked or tagged words.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

IGNORED = -100  # the label of a position without a loss


def has_labels(forward: Callable[..., Any]) -> bool:
    """True for a `forward` with `labels`, which HF's Trainer counts; question answering has positions instead."""
    return "labels" in inspect.signature(forward).parameters


def divide_by_items(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Make the loss of a head's `forward` its sum over the labels divided by `num_items_in_batch`, where that is given.

    The losses of a step's micro-batches then sum to the mean over all their labels. Without labels the loss is 0.
    """
    place = list(inspect.signature(forward).parameters).index("labels") - 1  # among the arguments without `self`

    @functools.wraps(forward)
    def divided(self: Any, *args: Any, num_items_in_batch: Any = None, **kwargs: Any) -> Any:
        output = forward(self, *args, **kwargs)
        labels = args[place] if place < len(args) else kwargs.get("labels")
        if labels is None or num_items_in_batch is None:
            return output
        mean = output[0]  # on the last device of a model on several, labels on the first
        items = (labels != IGNORED).sum().to(mean.device)
        divisor = torch.as_tensor(num_items_in_batch, device=mean.device)
        loss = torch.where(items > 0, mean * (items / divisor), torch.zeros_like(mean))  # fp16 holds no large sum
        if isinstance(output, tuple):
            return (loss, *output[1:])
        output["loss"] = loss
        return output

    return divided
