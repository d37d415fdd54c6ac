"""A trainer of the toy model, and what it logged and learned."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, set_seed

from hictl_hf.data.collator import PretrainingCollator
from hictl_hf.data.sampling import PretrainingExamples, TemperatureSampler, language_shares
from hictl_hf.embedding.pooling import Pooling
from hictl_hf.pretraining.trainer import HictlTrainer
from hictl_hf.training.arguments import RunArguments
from hictl_hf.training.trainer import RobustTrainer

Run = TypeVar("Run", bound=RobustTrainer)
EVERY_POOLING = [Pooling("cls", 2), Pooling("mean", 1), Pooling("projection", 2)]
SEED = 5
BATCH = 8  # rows of an optimiser step
SETTINGS = {
    "optim": "sgd",  # a gradient that differs shows as much as it differs
    "learning_rate": 0.1,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.0,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
    "remove_unused_columns": False,
    "per_device_train_batch_size": BATCH,
    "max_steps": 3,
    "seed": SEED,
}


class Gradients(TrainerCallback):
    """Keeps the gradients of each optimiser step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Tensor]] = []

    def on_pre_optimizer_step(self, *_: Any, model: PreTrainedModel, **__: Any) -> None:
        found = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        self.steps.append({name: gradient.clone() for name, gradient in found.items()})


def trainer_of(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tokens: Dataset,
    folder: Path,
    objectives: Sequence[str] = ("lm", "sentence", "word"),
    eval_dataset: Dataset | None = None,
    gather_sentences: bool = True,
    gradient_cache: bool = False,
    **settings: Any,
) -> HictlTrainer:
    """A trainer of text and pairs, mixed and in an order that depends on the seed alone."""
    languages = list(zip(tokens["x_lang"], tokens["y_lang"]))
    groups = {name: np.array([at for at, found in enumerate(languages) if found == name]) for name in set(languages)}
    groups = dict(sorted(groups.items(), key=str))  # sets have another order in another process
    shares = language_shares({name: len(members) for name, members in groups.items()})
    arguments = RunArguments(output_dir=str(folder), **{**SETTINGS, **settings})
    set_seed(arguments.seed)
    micro_batches, processes = arguments.gradient_accumulation_steps, arguments.world_size
    batch = arguments.per_device_train_batch_size * micro_batches * processes
    return HictlTrainer(
        model=model.train(),
        args=arguments,
        train_dataset=PretrainingExamples(tokens, SEED),
        data_collator=PretrainingCollator(tokenizer, max_length=62, objectives=objectives),
        processing_class=tokenizer,
        eval_dataset=eval_dataset,
        poolings=EVERY_POOLING,
        batches=TemperatureSampler(
            np.asarray(tokens["length"]), groups, shares, batch, SEED, micro_batches, arguments.process_index, processes
        ),
        gather_sentences=gather_sentences,
        gradient_cache=gradient_cache,
        callbacks=[Gradients()],
    )


def trained(trainer: Run, resume: str | bool | None = None) -> Run:
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def logs_of(trainer: HictlTrainer, name: str = "loss") -> list[dict[str, Any]]:
    """The logs of training steps (or of evaluations), one for each."""
    return [log for log in trainer.state.log_history if name in log]


def gradients_of(trainer: HictlTrainer) -> list[dict[str, Tensor]]:
    return next(callback.steps for callback in trainer.callback_handler.callbacks if isinstance(callback, Gradients))


def weights_of(trainer: RobustTrainer) -> dict[str, Tensor]:
    """All parameters and buffers."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    return {name: value.detach().clone() for name, value in [*model.named_parameters(), *model.named_buffers()]}


def moments_of(trainer: RobustTrainer) -> dict[str, Tensor]:
    """All that the optimiser knows of the parameters."""
    states = trainer.optimizer.state_dict()["state"]
    return {
        f"{number} {name}": torch.as_tensor(value).clone()
        for number, moments in states.items()
        for name, value in moments.items()
    }


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> set[str]:
    assert one and one.keys() == other.keys()
    return {name for name in one if not one[name].equal(other[name])}
