"""Runs on a device: resumed ones go on as if never interrupted, fp16 finds its scale, two processes are one."""

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from devices import GPU, SLOWLY, TWO_GPUS, on_gpu
from test_gathering import largest_error
from torch import Tensor
from toy_trainer import gradients_of, logs_of, trained, trainer_of, weights_of
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from two_processes import found_by_two

from hictl_hf.pretraining.trainer import HictlTrainer
from hictl_hf.training.checkpoints import write_manifest
from hictl_hf.training.sharding import gather

MakeModel = Callable[..., PreTrainedModel]
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
SHAPE = {"hidden_size": 64, "num_attention_heads": 2, "initializer_range": 0.1}
# Adam of so large an ε does not blow up the rounding of gradients near 0, which differs from run to run on a GPU.
ADAM = {"optim": "adamw_torch_fused", "learning_rate": 0.01, "adam_epsilon": 0.01, "max_grad_norm": 1.0}


@pytest.fixture
def train(
    model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase, tokens: Dataset, tmp_path: Path
) -> Callable[..., HictlTrainer]:
    """`train(device, folder, resume=None, seed=0, callbacks=(), **settings)`: a trainer that has trained."""

    def make(
        device: str, folder: str, resume: Path | None = None, seed: int = 0,
        callbacks: tuple[TrainerCallback, ...] = (), **settings: Any,
    ) -> HictlTrainer:  # fmt: skip
        model = model_for_text(seed=seed, **SHAPE, **DROPOUT)
        place = tmp_path / folder
        trainer = trainer_of(model, tokenizer, tokens, place, **{**ADAM, "use_cpu": device == "cpu", **settings})
        for callback in callbacks:
            trainer.add_callback(callback)
        return trained(trainer, str(resume) if resume else None)

    return make


def weights_on_cpu(trainer: HictlTrainer) -> dict[str, Tensor]:
    return {name: value.cpu().double() for name, value in weights_of(trainer).items()}


# --- resuming ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [SLOWLY, GPU])
@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_a_resumed_run_goes_on_with_its_moments_and_random_numbers(
    device: str, bf16: bool, train: Callable[..., HictlTrainer], tmp_path: Path
) -> None:
    """Not to the bit on a GPU, whose sums have no fixed order; lost random numbers would show ten times as much."""
    settings = {
        "max_steps": 6, "bf16": bf16, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4,
        "gradient_cache": True,
    }  # fmt: skip
    alone = train(device, "alone", save_strategy="steps", save_steps=3, **settings)
    saved = tmp_path / "alone" / "checkpoint-3"
    forgetful = tmp_path / "forgetful" / "checkpoint-3"
    shutil.copytree(saved, forgetful)
    for file in forgetful.glob("rng_state*"):
        file.unlink()
    write_manifest(forgetful)
    resumed = train(device, "resumed", saved, seed=9, **settings)
    without_random_numbers = train(device, "forgetful", forgetful, seed=9, **settings)
    expected, found, other = map(weights_on_cpu, (alone, resumed, without_random_numbers))
    assert alone.model.device.type == device and resumed.state.global_step == 6
    error, visible = largest_error(found, expected), largest_error(other, expected)
    assert error < (1e-2 if bf16 else 1e-3) and visible > 10 * error, (error, visible)


# --- fp16 -------------------------------------------------------------------------------------------------------------


class Scales(TrainerCallback):
    """The scale of the loss, and how many steps were skipped, after each step."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []
        self.trainer: HictlTrainer | None = None

    def on_step_end(self, *_: Any, **__: Any) -> None:
        assert self.trainer is not None
        self.seen.append((self.trainer.accelerator.scaler.get_scale(), self.trainer.skipped_steps))


@on_gpu
def test_the_scale_of_fp16_settles(
    device: str, model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase, tokens: Dataset, tmp_path: Path
) -> None:
    scales = Scales()
    settings = {**ADAM, "use_cpu": device == "cpu", "fp16": True, "max_steps": 60, "adam_epsilon": 1e-6}
    model = model_for_text(**SHAPE, **DROPOUT)
    trainer = scales.trainer = trainer_of(model, tokenizer, tokens, tmp_path, **{**settings, "learning_rate": 1e-3})
    trainer.add_callback(scales)
    trained(trainer)
    assert len(scales.seen) == 60
    (scale, skipped), (middle, skipped_before) = scales.seen[-1], scales.seen[29]
    assert skipped == skipped_before < 20 and scale >= middle >= 1
    losses = [log["lm_loss"] for log in logs_of(trainer)]
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])
    assert all(weight.isfinite().all() for weight in trainer.model.parameters())


# --- two processes ----------------------------------------------------------------------------------------------------

ROWS = 8  # of a step
CASES: dict[str, dict[str, Any]] = {
    "DDP": {"per_device_train_batch_size": 4},
    "DDP, sentences of all micro-batches": {
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "gradient_cache": True,
    },
    "in shards": {"per_device_train_batch_size": 4, "shard_parameters": True},
    "in shards, activation checkpointing": {
        "per_device_train_batch_size": 4, "shard_parameters": True, "activation_checkpointing": True,
    },
}  # fmt: skip


def learn(
    device: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tokens: Dataset, folder: Path,
    shard_parameters: bool = False, **settings: Any,
) -> tuple[list[dict[str, Tensor]], list[dict[str, Any]]]:  # fmt: skip
    """Gradients and logs of two steps that change no weight: a step would go on with what it rounded off."""
    model = copy.deepcopy(model)
    model.sentence_probability.recent.fill_(0.5)
    model.sentence_probability.steps.fill_(3)
    settings = {"use_cpu": device == "cpu", "learning_rate": 0.0, "max_steps": 2, **settings}
    trainer = trainer_of(model, tokenizer, tokens, folder, **settings)
    trainer.shard_parameters = shard_parameters
    trained(trainer)
    assert trainer.args.device.type == device
    steps = [
        {name.removeprefix("module."): gather(value, keep=True) for name, value in sorted(step.items())}
        for step in gradients_of(trainer)
    ]
    return steps, logs_of(trainer)


def learn_as_one_of_two(device: str, *material: Any) -> dict[str, Any]:
    backend = {"ddp_backend": "nccl" if device == "cuda" else "gloo", "ddp_find_unused_parameters": False}
    return {name: learn(device, *material, **backend, **settings) for name, settings in CASES.items()}


@pytest.mark.parametrize("device", [SLOWLY, TWO_GPUS])
def test_two_processes_are_one_with_all_examples(
    device: str, model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase, tokens: Dataset, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    material = model_for_text(**SHAPE), tokenizer, tokens, tmp_path
    found = found_by_two(tmp_path, learn_as_one_of_two, device, *material)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # else one process would be refused
    expected, logs = learn(device, *material, per_device_train_batch_size=ROWS)
    apart, _ = learn(device, *material, per_device_train_batch_size=ROWS // 2, gradient_accumulation_steps=2)
    assert largest_error(apart[0], expected[0]) > 0.01, "fewer negatives would be seen"
    for name in CASES:
        for steps, _ in (each[name] for each in found):
            for one, other in zip(steps, expected, strict=True):
                assert largest_error(one, other) < 1e-4, name
        for log, other in zip(found[0][name][1], logs, strict=True):
            for loss in ("loss", "lm_loss", "sentence_loss", "word_loss", "negatives_per_anchor"):
                assert log[loss] == pytest.approx(other[loss], rel=1e-4), (name, loss)
