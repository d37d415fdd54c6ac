"""Passes over a dataset of unknown length, such as a stream of `datasets`, one after another."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import Trainer
from transformers.trainer_utils import has_length


def knows_no_end(trainer: Trainer) -> bool:
    """Whether nobody knows how long a pass over the training examples is, and nothing is to happen at its end."""
    args = trainer.args
    at_end = "epoch" in (args.eval_strategy, args.save_strategy, args.logging_strategy)
    return not has_length(trainer.train_dataset) and not at_end


class Passes:
    """A loader of one pass after another, which HF's Trainer takes for a single epoch of all steps.

    Without it HF's Trainer looks for the examples of a resumed run in the first pass alone; and where a pass ends
    within a step, it adds the micro-batches to the next step at full weight.

    Args:
        loader: of a pass.
        resumed_from: the checkpoint whose step the first micro-batch follows, if any.
    """

    def __init__(self, loader: DataLoader[Any], trainer: Trainer, resumed_from: Path | None) -> None:
        self.loader, self.trainer, self.resumed_from = loader, trainer, resumed_from
        self.random_state = torch.get_rng_state()  # a collator may draw from it

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: each pass is an epoch of the dataset."""

    def __iter__(self) -> Iterator[Any]:
        batches = self.all_passes()
        if self.resumed_from is not None:
            torch.set_rng_state(self.random_state)
            for _ in range(self.trainer.state.global_step * self.trainer.args.gradient_accumulation_steps):
                next(batches, None)
            self.trainer._load_rng_state(self.resumed_from)
        return batches

    def all_passes(self) -> Iterator[Any]:
        """Yield the micro-batches of all passes; end after a pass without any."""
        for number in count():
            if hasattr(self.loader, "set_epoch"):
                self.loader.set_epoch(number)
            is_empty = True
            for batch in self.loader:
                is_empty = False
                yield batch
            if is_empty:
                return
