"""p_avg, the mean probability of the positives, which sets the strength of hard negatives."""

import torch
from torch import Tensor, nn


class SentenceProbability(nn.Module):
    """p_avg, the mean of exp(-L_S) over the last steps, as buffers that are saved with the model; λ depends on it.

    Args:
        window: number of optimiser steps.
    """

    recent: Tensor
    steps: Tensor

    def __init__(self, window: int) -> None:
        super().__init__()
        self.register_buffer("recent", torch.zeros(window))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def record(self, sentence_loss: Tensor, counts: Tensor | None = None) -> None:
        """Add one optimiser step, given L_S of its complete batch; a full window drops the oldest.

        Args:
            counts: () bool, whether to add it, which need not be known on the CPU; `None`: yes.
        """
        oldest = (self.steps % len(self.recent)).view(1)
        value = torch.exp(-sentence_loss).to(self.recent.dtype).view(1)
        self.recent.index_copy_(0, oldest, value if counts is None else value.where(counts, self.recent[oldest]))
        self.steps += 1 if counts is None else counts

    def mean(self) -> Tensor:
        """() p_avg; 0 before the first step, so that λ = 1."""
        return self.recent.float().sum() / self.steps.clamp(1, len(self.recent))
