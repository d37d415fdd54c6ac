"""A stream without a length, such as one of `datasets`, is read pass after pass, also by a resumed run."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from torch.utils.data import IterableDataset
from toy_trainer import SETTINGS, weights_of
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from hictl_hf.data.collator import PretrainingCollator
from hictl_hf.pretraining.trainer import HictlTrainer
from hictl_hf.training.passes import Passes

ROWS, BATCH, STEPS = 20, 8, 6  # of two micro-batches each; a pass has three


class Recording(HictlTrainer):
    """Keeps the seeds of the micro-batches of each step, and where it was."""

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], *args: Any
    ) -> tuple[list[Any], dict[str, Tensor] | None]:
        batches, items = super().get_batch_samples(epoch_iterator, *args)
        self.seeds = [*getattr(self, "seeds", ()), [batch["example_seeds"].tolist() for batch in batches]]
        return batches, items


class Drawn(IterableDataset[dict[str, Any]]):
    """Rows in an order that PyTorch's generator gives anew in each pass."""

    def __init__(self, rows: Dataset) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self.rows[at] for at in torch.randperm(len(self.rows)).tolist())


@pytest.fixture
def trainer(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, tokens: Dataset, tmp_path: Path
) -> Callable[..., Recording]:
    def make(drawn: bool = False, **settings: Any) -> Recording:
        rows = tokens.select(range(ROWS)).select_columns(["x", "y"]).add_column("seed", [*range(ROWS)])
        stream = Drawn(rows) if drawn else rows.to_iterable_dataset(num_shards=2).shuffle(seed=1, buffer_size=5)
        plan = {"gradient_accumulation_steps": 2, "max_steps": STEPS, "save_strategy": "steps", "save_steps": 2}
        args = TrainingArguments(str(tmp_path), **{**SETTINGS, **plan, **settings})
        collator = PretrainingCollator(tokenizer, max_length=62)
        return Recording(model_for_text(), args, train_dataset=stream, data_collator=collator)

    return make


@pytest.mark.parametrize("step", [2, 4])  # in the second pass, and in the third
def test_a_resumed_run_reads_on_where_it_was(step: int, trainer: Callable[..., Recording], tmp_path: Path) -> None:
    complete = trainer()
    complete.train()
    micro_batches = [seeds for batches in complete.seeds for seeds in batches]
    assert [len(batches) for batches in complete.seeds] == [2] * STEPS
    for start in range(0, 2 * STEPS, 3):
        assert sorted(sum(micro_batches[start : start + 3], [])) == [*range(ROWS)]
    assert micro_batches[:3] != micro_batches[3:6], "each pass is shuffled anew"
    resumed = trainer()
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    assert resumed.seeds == complete.seeds[step:] and not resumed.args.ignore_data_skip
    assert [log["epoch"] for log in resumed.state.log_history] == [log["epoch"] for log in complete.state.log_history]
    found, expected = weights_of(resumed), weights_of(complete)
    assert all(found[name].equal(expected[name]) for name in expected)


def test_a_pass_in_an_order_that_pytorch_drew_is_resumed_in_this_order(
    trainer: Callable[..., Recording], tmp_path: Path
) -> None:
    complete = trainer(drawn=True, save_steps=1)
    complete.train()
    resumed = trainer(drawn=True, save_steps=1)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert resumed.seeds == complete.seeds[1:]


def test_what_is_due_at_the_end_of_a_pass_is_done(trainer: Callable[..., Recording], tmp_path: Path) -> None:
    trainer(save_strategy="epoch", gradient_accumulation_steps=1).train()
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-6"]


class Drawing:
    """A loader of passes of these lengths, each in an order that PyTorch draws."""

    def __init__(self, *lengths: int) -> None:
        self.lengths, self.number = lengths, -1

    def set_epoch(self, number: int) -> None:
        self.number = number

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((self.number, place) for place in torch.randperm(self.lengths[self.number]).tolist())


def passes(resumed_from: Path | None = None, step: int = 0) -> Passes:
    """Passes of 3, 9 and no micro-batches, two in a step."""

    def load_rng_state(path: Path) -> None:
        assert path == resumed_from
        torch.manual_seed(9)

    trainer: Any = SimpleNamespace(
        state=SimpleNamespace(global_step=step), args=SimpleNamespace(gradient_accumulation_steps=2),
        _load_rng_state=load_rng_state,
    )  # fmt: skip
    torch.manual_seed(5)
    return Passes(Drawing(3, 9, 0, 4), trainer, resumed_from)  # type: ignore[arg-type]


def test_passes_follow_each_other_until_one_is_empty() -> None:
    found = list(passes())
    assert [number for number, _ in found] == [0] * 3 + [1] * 9
    assert sorted(found) == [(number, place) for number, length in ((0, 3), (1, 9)) for place in range(length)]


def test_a_resumed_run_has_the_orders_of_before_and_then_the_random_state_of_its_checkpoint() -> None:
    complete, resumed = list(passes()), passes(Path("checkpoint-2"), step=2)
    torch.rand(3)  # as for new weights
    batches = iter(resumed)
    assert torch.rand(()) == torch.rand((), generator=torch.Generator().manual_seed(9))
    assert list(batches) == complete[4:]
