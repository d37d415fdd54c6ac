"""A run that is ended, killed or fed with broken numbers goes on as if nothing had happened, or says why it cannot.

As a script, this file trains in processes of their own: see `SCRIPTS` at its end.
"""

import datetime
import errno
import itertools
import json
import logging
import logging.handlers
import math
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from toy_trainer import differing, moments_of, trained, weights_of
from transformers import (
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
    set_seed,
)
from two_processes import found_by_two

import hictl_hf.training.checkpoints
import hictl_hf.training.trainer
from hictl_hf.errors import BadInput
from hictl_hf.training.callbacks import ReadsCheckpoints, TrainingTime
from hictl_hf.training.checkpoints import (
    MANIFEST,
    last_complete_checkpoint,
    newest_first,
    verify_checkpoint,
    write_manifest,
)
from hictl_hf.training.trainer import RobustTrainer, nan_unless_finite, signals_that_end

VOCABULARY, ROWS, LENGTH = 60, 24, 8
STEPS, EPOCH = 12, 6  # optimiser steps of a run, and of an epoch
SETTINGS = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "max_steps": STEPS,
    "learning_rate": 1e-2,
    "logging_steps": 1,
    "save_strategy": "steps",
    "save_steps": 2,
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
    "remove_unused_columns": False,
    "seed": 5,
}


def toy_trainer(
    folder: Path,
    kind: type[RobustTrainer] = RobustTrainer,
    callbacks: Sequence[TrainerCallback] = (),
    vocabulary: int = VOCABULARY,
    processing_class: Any = None,
    **settings: Any,
) -> RobustTrainer:
    """A new masked language model with dropout, and random rows that it learns to copy."""
    arguments = TrainingArguments(output_dir=str(folder), **{**SETTINGS, **settings})
    set_seed(arguments.seed)
    config = XLMRobertaConfig(
        vocab_size=vocabulary, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=LENGTH + 2, type_vocab_size=1, initializer_range=0.2,
    )  # fmt: skip
    assert config.hidden_dropout_prob == 0.1
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, vocabulary, (ROWS, LENGTH), generator=generator)
    rows = [{"input_ids": row, "labels": row, "example_seeds": 100 + at} for at, row in enumerate(ids)]
    return kind(
        XLMRobertaForMaskedLM(config), arguments, train_dataset=rows, eval_dataset=rows[:2],
        callbacks=list(callbacks), processing_class=processing_class,
    )  # fmt: skip


class AtStep(TrainerCallback):
    """Does something at the end, or another event, of each of these steps."""

    def __init__(self, steps: Sequence[int], do: Callable[..., object], event: str = "on_step_end") -> None:
        def call(args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            begun = event in ("on_step_begin", "on_pre_optimizer_step")
            if state.global_step + begun in steps:
                do(**kwargs)

        setattr(self, event, call)


def send_sigterm(**_: Any) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def state_of(trainer: RobustTrainer) -> dict[str, Tensor]:
    """All parameters and buffers, all the optimiser knows of them, and the learning rate."""
    rate = {"learning rate": torch.tensor(trainer.lr_scheduler.get_last_lr())}
    return weights_of(trainer) | moments_of(trainer) | rate


def logs_of(trainer: RobustTrainer, *without: str) -> list[dict[str, Any]]:
    """All that was logged in training and evaluation, but for the time it took."""
    logs = [log for log in trainer.state.log_history if "train_runtime" not in log]
    timed = ("runtime", "per_second", *without)
    return [{name: value for name, value in log.items() if not name.endswith(timed)} for log in logs]


def checkpoints(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in newest_first(folder))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The end of a run that was left alone: its state and its logs."""
    trainer = trained(toy_trainer(tmp_path_factory.mktemp("uninterrupted"), save_strategy="no"))
    assert trainer.state.global_step == STEPS and not trainer.terminated and trainer.skipped_steps == 0
    return state_of(trainer), logs_of(trainer)


# --- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_weights_of_a_checkpoint_have_the_mode_of_its_other_files(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        trained(toy_trainer(tmp_path, max_steps=2))
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "checkpoint-2").iterdir() if path.is_file()]
    assert "model.safetensors" in [path.name for path in files] and verify_checkpoint(files[0].parent) is None
    assert {path.stat().st_mode & 0o777 for path in files} == {mode}


def test_a_run_that_saves_ends_as_one_that_does_not_and_all_it_saved_is_whole(
    tmp_path: Path, uninterrupted: tuple[Any, ...]
) -> None:
    trainer = trained(toy_trainer(tmp_path))
    assert not differing(state_of(trainer), uninterrupted[0])
    assert checkpoints(tmp_path) == [2, 4, 6, 8, 10, 12]
    assert [verify_checkpoint(path) for path in newest_first(tmp_path)] == [None] * 6
    files = json.loads((tmp_path / "checkpoint-4" / MANIFEST).read_text())
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"} <= files.keys()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that kept all its checkpoints, and will not be written to."""
    folder = tmp_path_factory.mktemp("saved")
    trained(toy_trainer(folder))
    return folder


@pytest.mark.parametrize("step", [4, EPOCH, 10])
def test_a_resumed_run_ends_with_the_same_bits(
    tmp_path: Path, saved: Path, uninterrupted: tuple[Any, ...], step: int
) -> None:
    """With another seed only the order of rows is the same, so that dropout is seen to come from the checkpoint."""
    trainer = trained(toy_trainer(tmp_path, seed=6, data_seed=5), f"{saved}/checkpoint-{step}")
    assert not differing(state_of(trainer), uninterrupted[0])
    assert logs_of(trainer) == uninterrupted[1]


def test_a_run_goes_on_from_a_checkpoint_that_is_older_than_one_of_its_callbacks(tmp_path: Path, saved: Path) -> None:
    shutil.copytree(saved / "checkpoint-4", tmp_path / "checkpoint-4")
    trained(toy_trainer(tmp_path, callbacks=[TrainingTime()]), resume=True)
    state = json.loads((tmp_path / f"checkpoint-{STEPS}" / "trainer_state.json").read_text("utf-8"))
    assert state["stateful_callbacks"]["TrainingTime"]["args"]["seconds"] > 0


def test_a_run_that_was_killed_after_its_last_checkpoint_is_not_trained_further(tmp_path: Path) -> None:
    ended = trained(toy_trainer(tmp_path, max_steps=10))  # within an epoch
    resumed = trained(toy_trainer(tmp_path, max_steps=10), resume=True)
    assert resumed.state.global_step == 10 and checkpoints(tmp_path)[-1] == 10
    assert not differing(state_of(resumed), state_of(ended))


def test_without_the_random_state_a_run_would_end_otherwise(
    tmp_path: Path, saved: Path, uninterrupted: tuple[Any, ...]
) -> None:
    shutil.copytree(saved / "checkpoint-4", tmp_path / "checkpoint-4")
    (tmp_path / "checkpoint-4" / "rng_state.pth").unlink()
    with pytest.raises(BadInput, match="checkpoint-4: not a complete checkpoint: rng_state.pth is missing"):
        trained(toy_trainer(tmp_path), f"{tmp_path}/checkpoint-4")
    write_manifest(tmp_path / "checkpoint-4")
    trainer = trained(toy_trainer(tmp_path, seed=6, data_seed=5), f"{tmp_path}/checkpoint-4")
    assert differing(state_of(trainer), uninterrupted[0])


def test_older_checkpoints_go_only_when_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    def note_and_write(folder: Path) -> None:
        found.append((checkpoints(tmp_path), last_complete_checkpoint(tmp_path)))
        write_manifest(folder)

    monkeypatch.setattr(hictl_hf.training.trainer, "write_manifest", note_and_write)
    trainer = trained(toy_trainer(tmp_path, max_steps=6, save_total_limit=1))
    assert found == [([2], None), ([2, 4], f"{tmp_path}/checkpoint-2"), ([4, 6], f"{tmp_path}/checkpoint-4")]
    assert checkpoints(tmp_path) == [6]
    assert trainer.args.save_total_limit == 1


@pytest.mark.parametrize(("copied", "kept"), [((4, 6, 8), [6, 8, 10]), ((4, 8, 12), [4, 8, 10])])
def test_the_steps_of_checkpoints_say_which_are_older_also_in_a_copy(
    copied: tuple[int, ...], kept: list[int], tmp_path: Path, saved: Path
) -> None:
    """One run was copied, the other goes on from before its last checkpoint."""
    for age, step in enumerate(copied):
        shutil.copytree(saved / f"checkpoint-{step}", folder := tmp_path / f"checkpoint-{step}")
        os.utime(folder, (age := time.time() - 1000 - 100 * age, age))  # the last was copied first
    trained(toy_trainer(tmp_path, save_total_limit=3, max_steps=10), f"{tmp_path}/checkpoint-8")
    assert checkpoints(tmp_path) == kept


def test_what_a_killed_attempt_left_is_not_in_the_checkpoint(tmp_path: Path) -> None:
    left = tmp_path / "checkpoint-4"
    left.mkdir()
    (left / "rng_state_7.pth").write_text("half")
    trained(toy_trainer(tmp_path, max_steps=4))
    assert verify_checkpoint(left) is None
    assert not (left / "rng_state_7.pth").exists()


@pytest.mark.parametrize("limit", [None, 1, 2])
def test_damaged_checkpoints_do_no_harm_to_a_resumed_run(
    tmp_path: Path, saved: Path, uninterrupted: tuple[Any, ...], limit: int | None
) -> None:
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    for step, lost in ((2, "model.safetensors"), (6, "optimizer.pt"), (8, MANIFEST), (10, "scheduler.pt")):
        (tmp_path / f"checkpoint-{step}" / lost).unlink()  # a folder that loses a file becomes the latest changed
    shutil.rmtree(tmp_path / "checkpoint-12")
    (tmp_path / "checkpoint-99").mkdir()
    trainer = trained(toy_trainer(tmp_path, save_total_limit=limit), resume=True)
    assert trainer.state.log_history[4]["step"] == 5
    assert not differing(state_of(trainer), uninterrupted[0])
    whole = [path for path in newest_first(tmp_path) if verify_checkpoint(path) is None]
    assert last_complete_checkpoint(tmp_path) == str(tmp_path / "checkpoint-12")
    if limit is None:
        assert checkpoints(tmp_path) == [2, 4, 6, 8, 10, 12, 99] and len(whole) == 5
    else:
        assert checkpoints(tmp_path) == [10, 12][-limit:] and len(whole) == limit


def test_a_run_without_whole_checkpoints_is_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-2").mkdir()
    with pytest.raises(BadInput, match="holds no complete checkpoint"):
        trained(toy_trainer(tmp_path), resume=True)


class Scored(RobustTrainer):
    """Evaluation gives the scores of a list, by step."""

    scores = {2: 3.0, 4: 1.0, 6: 2.0, 8: 5.0, 10: 4.0, 12: 6.0}

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        return self.finish_evaluation({"eval_loss": self.scores[self.state.global_step]})


BEST = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2}


@pytest.mark.parametrize(("save_steps", "kept"), [(2, [4]), (8, [4, STEPS])])  # evaluated every second step
def test_the_best_checkpoint_is_kept_and_loaded_also_between_saves(
    save_steps: int, kept: list[int], tmp_path: Path
) -> None:
    at_four: list[dict[str, Tensor]] = []
    note = AtStep([4], lambda **_: at_four.append(state_of(trainer)))
    trainer = toy_trainer(tmp_path, Scored, [note], save_total_limit=len(kept), save_steps=save_steps, **BEST)
    trained(trainer)
    assert checkpoints(tmp_path) == kept
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-4")
    assert verify_checkpoint(tmp_path / "checkpoint-4") is None
    parameters = dict(trainer.model.named_parameters())
    assert all(at_four[0][name].equal(value) for name, value in parameters.items())


# --- SIGTERM --------------------------------------------------------------------------------------------------------

STRATEGIES: dict[str, dict[str, Any]] = {
    "never": {"save_strategy": "no"},
    "steps": {"save_strategy": "steps", "save_steps": 4, "save_total_limit": 1},
    "epochs": {"save_strategy": "epoch", "eval_strategy": "epoch", "logging_strategy": "epoch"},
    "steps, evaluated by epochs": {"save_strategy": "steps", "save_steps": 3, "eval_strategy": "epoch"},
    "best": {
        "save_strategy": "best",
        "eval_strategy": "steps",
        "eval_steps": 3,
        "metric_for_best_model": "loss",
        "greater_is_better": True,  # so that only the first is ever saved as the best
    },  # fmt: skip
}


ALWAYS = (
    ("never", 3), ("steps", 4), ("best", EPOCH), ("epochs", 4), ("epochs", EPOCH), ("steps, evaluated by epochs", EPOCH)
)  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "step"),
    [
        pytest.param(*case, marks=[] if case in ALWAYS else pytest.mark.slow)
        for case in itertools.product(STRATEGIES, (3, 4, EPOCH))
    ],
)
def test_sigterm_saves_the_running_step_and_the_resumed_run_is_as_one_that_was_left_alone(
    tmp_path: Path, strategy: str, step: int
) -> None:
    settings = STRATEGIES[strategy]
    expected = trained(toy_trainer(tmp_path / "expected", **settings))
    handler = signal.getsignal(signal.SIGTERM)
    folder = tmp_path / "terminated"
    saved: list[int] = []

    class Saves(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            saved.append(state.global_step)

    terminate = AtStep([step], send_sigterm, "on_step_begin")
    trainer = trained(toy_trainer(folder, callbacks=[terminate, Saves()], **settings))
    assert trainer.terminated and trainer.state.global_step == step
    assert signal.getsignal(signal.SIGTERM) == handler
    assert saved.count(step) == 1
    assert last_complete_checkpoint(folder) == str(folder / f"checkpoint-{step}")
    resumed = trained(toy_trainer(folder, **settings), resume=True)
    assert not resumed.terminated and resumed.state.global_step == STEPS
    assert not differing(state_of(resumed), state_of(expected))
    if strategy != "epochs":  # HF forgets the losses between the last log and a checkpoint
        assert logs_of(resumed) == logs_of(expected)
    for name in ("loss", "eval_loss"):
        steps = [[log["step"] for log in logs_of(each) if name in log] for each in (resumed, expected)]
        assert steps[0] == steps[1]
    assert resumed.state.best_metric == expected.state.best_metric


def test_a_last_step_within_an_epoch_is_evaluated_though_sigterm_ends_it(tmp_path: Path) -> None:
    settings = {**STRATEGIES["epochs"], "max_steps": EPOCH + 2}
    trained(toy_trainer(tmp_path, callbacks=[AtStep([EPOCH + 2], send_sigterm, "on_step_begin")], **settings))
    resumed = trained(toy_trainer(tmp_path, **settings), resume=True)
    assert [log["step"] for log in logs_of(resumed) if "eval_loss" in log] == [EPOCH, EPOCH + 2]


def test_a_second_sigterm_while_saving_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt_and_write(folder: Path) -> None:
        send_sigterm()
        write_manifest(folder)
        send_sigterm()

    monkeypatch.setattr(hictl_hf.training.trainer, "write_manifest", interrupt_and_write)
    trainer = trained(toy_trainer(tmp_path, callbacks=[AtStep([3], send_sigterm)], save_strategy="no"))
    assert trainer.terminated and checkpoints(tmp_path) == [3] and verify_checkpoint(tmp_path / "checkpoint-3") is None


def test_what_sigterm_saved_stays_where_only_the_best_checkpoint_may(tmp_path: Path) -> None:
    terminate = AtStep([7], send_sigterm)
    trainer = trained(toy_trainer(tmp_path, Scored, [terminate], save_total_limit=1, **BEST))
    assert checkpoints(tmp_path) == [4, 7]
    assert trainer.args.load_best_model_at_end and trainer.args.save_total_limit == 1
    trainer = trained(toy_trainer(tmp_path, Scored, save_total_limit=1, **BEST), resume=True)
    assert checkpoints(tmp_path) == [4] and trainer.state.global_step == STEPS


def test_a_sigterm_after_the_last_step_acts_as_it_did_before(tmp_path: Path) -> None:
    received = []
    before = signal.signal(signal.SIGTERM, lambda *_: received.append("SIGTERM"))
    try:
        late = AtStep([4], send_sigterm, "on_train_end")
        trainer = trained(toy_trainer(tmp_path, callbacks=[late], max_steps=4))
        assert received == ["SIGTERM"] and not trainer.terminated
        trained(toy_trainer(tmp_path, callbacks=[AtStep([3], send_sigterm)], max_steps=4))
        assert received == ["SIGTERM"]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("save_steps", "told"),
    [(2, "the newest checkpoint is .*/checkpoint-2; continue with --resume_from_checkpoint"), (9, "nothing was saved")],
)
def test_ctrl_c_tells_what_is_saved(
    save_steps: int, told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupt(**_: Any) -> None:
        raise KeyboardInterrupt

    trainer = toy_trainer(tmp_path, callbacks=[AtStep([3], interrupt)], max_steps=4, save_steps=save_steps)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert re.search(f"Ctrl-C after step 3: {told}", caplog.text)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_the_workers_that_load_rows_outlive_sigterm(
    tmp_path: Path, uninterrupted: tuple[Any, ...], name: str, request: pytest.FixtureRequest
) -> None:
    """SIGHUP is sent to all processes of a terminal that is closed."""
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_DFL)  # `nohup pytest` ignores SIGHUP
    request.addfinalizer(lambda: signal.signal(number, before))

    def terminate_all(**_: Any) -> None:
        processes = [*(worker.pid for worker in multiprocessing.active_children()), os.getpid()]
        assert len(processes) == 3
        # of another process, as PyTorch's workers end quietly when their parent sends it
        kill = f"import os; [os.kill(process, {number:d}) for process in {processes}]"
        subprocess.run([sys.executable, "-c", kill], check=True)
        time.sleep(0.2)  # their death would be an exception here

    terminate = AtStep([2], terminate_all)
    trainer = trained(toy_trainer(tmp_path, callbacks=[terminate], dataloader_num_workers=2, save_strategy="no"))
    assert trainer.terminated and checkpoints(tmp_path) == [2]
    assert not multiprocessing.active_children()
    resumed = trained(toy_trainer(tmp_path, dataloader_num_workers=2), resume=True)
    assert not differing(state_of(resumed), uninterrupted[0])


def test_nohup_is_not_undone() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signals_that_end() == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_training_outside_the_main_thread_leaves_signals_alone(tmp_path: Path, uninterrupted: tuple[Any, ...]) -> None:
    trainer = toy_trainer(tmp_path, save_strategy="no")
    thread = threading.Thread(target=trained, args=[trainer])
    thread.start()
    thread.join()
    assert not differing(state_of(trainer), uninterrupted[0])


# --- loss or gradient that is not finite ----------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_has_gradients_that_are_not() -> None:
    for value in (1.5, -0.0, 1e-40):
        weight = torch.tensor(0.3, requires_grad=True)
        loss = nan_unless_finite(weight + value)
        assert loss.equal(weight + value)
        loss.backward()
        assert weight.grad is not None and weight.grad.equal(torch.tensor(1.0))
    for value in (math.inf, -math.inf, math.nan):
        weight = torch.tensor(0.3, requires_grad=True)
        (weight + value).backward()
        assert weight.grad is not None and weight.grad.equal(torch.tensor(1.0))  # nothing to be seen here
        weight.grad = None
        nan_unless_finite(weight + value).backward()
        assert weight.grad is not None and weight.grad.isnan()


class Poison(TrainerCallback):
    """Makes the loss, or the gradient alone, of the first micro-batch of some steps not finite."""

    def __init__(self, steps: Sequence[int], kind: str = "nan") -> None:
        self.steps, self.kind, self.left = steps, kind, 0
        self.skipped: list[int] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        model.register_forward_hook(self.poison)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.left = int(state.global_step + 1 in self.steps)

    def poison(self, model: Any, inputs: Any, output: Any) -> None:
        if self.left:
            self.left = 0
            if self.kind == "gradient":
                output.loss.register_hook(lambda gradient: gradient * math.inf)
            else:
                output.loss = output.loss + float(self.kind)


@pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
@pytest.mark.parametrize("kind", ["nan", "inf", "gradient"])
def test_a_step_that_is_not_finite_has_no_effect(tmp_path: Path, kind: str, max_grad_norm: float) -> None:
    settings = {"max_grad_norm": max_grad_norm, "save_strategy": "no", "weight_decay": 0.1}
    forget = AtStep([1, 5, 6], lambda model, **_: model.zero_grad(set_to_none=True), "on_pre_optimizer_step")
    expected = trained(toy_trainer(tmp_path, callbacks=[forget], **settings))
    healthy = trained(toy_trainer(tmp_path, **settings))
    seen = []
    note = AtStep(range(STEPS + 1), lambda **_: seen.append(trainer.step_was_skipped))
    trainer = toy_trainer(tmp_path, callbacks=[Poison([1, 5, 6], kind), note], **settings)
    trained(trainer)
    assert not differing(state_of(trainer), state_of(expected))
    assert differing(state_of(trainer), state_of(healthy))
    assert seen == [step in (1, 5, 6) for step in range(1, STEPS + 1)]
    assert trainer.skipped_steps == 3


@pytest.mark.parametrize("filtered", [True, False])
def test_logs_of_losses_leave_out_skipped_steps_and_tell_how_many_they_were(tmp_path: Path, filtered: bool) -> None:
    settings = {"logging_nan_inf_filter": filtered, "save_steps": 7}
    poisoned = [1, 5, 6, 9, 11]
    by_one, by_three = (
        trained(toy_trainer(tmp_path, callbacks=[Poison(poisoned)], logging_steps=steps, **settings))
        for steps in (1, 3)
    )
    losses = {log["step"]: log["loss"] for log in by_one.state.log_history if "loss" in log}
    assert losses.keys() == set(range(1, 13)) - set(poisoned)
    logs = [log for log in by_three.state.log_history if "loss" in log]
    assert [log["step"] for log in logs] == [3, 6, 9, 12]
    for log, steps in zip(logs, ([2, 3], [4], [7, 8], [10, 12])):
        assert log["loss"] == pytest.approx(sum(losses[step] for step in steps) / len(steps), rel=1e-5)
    assert [log["skipped_steps"] for log in logs] == [1, 3, 4, 5]
    told = {log["step"]: log["skipped_steps"] for log in by_three.state.log_history if log.keys() >= {"skipped_steps"}}
    assert told == {1: 1, 3: 1, 5: 2, 6: 3, 9: 4, 11: 5, 12: 5}
    for trainer in (by_one, by_three):
        assert "NaN" not in json.dumps(trainer.state.log_history)
        mean = sum(losses.values()) / len(losses)
        assert trainer.state.log_history[-1]["train_loss"] == pytest.approx(mean, rel=1e-5)
    resumed = trained(toy_trainer(tmp_path, callbacks=[Poison([9, 11])], **settings), f"{tmp_path}/checkpoint-7")
    assert resumed.skipped_steps == 5
    mean = sum(losses[step] for step in (8, 10, 12)) / 3
    if not hasattr(Trainer, "loss_is_scaled_for_ga"):  # before 5.19 transformers divides by all steps that count
        mean *= 3 / 10
    assert resumed.state.log_history[-1]["train_loss"] == pytest.approx(mean, rel=1e-5)
    assert "NaN" not in (tmp_path / "checkpoint-12" / "trainer_state.json").read_text()


def test_too_many_in_a_row_end_the_run_and_leave_the_rows_of_the_last(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    poison = Poison(range(4, 99), "inf")
    trainer = toy_trainer(
        tmp_path, callbacks=[poison], vocabulary=len(tokenizer), processing_class=tokenizer, save_total_limit=2
    )
    path = tmp_path / "non_finite_step_8_rank0.jsonl"
    with pytest.raises(BadInput, match=f"step 8: .* 5 steps in a row; .*{path}; .*--resume_from_checkpoint true"):
        trainer.train()
    assert last_complete_checkpoint(tmp_path) == str(tmp_path / "checkpoint-6")
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [(line["micro_batch"], line["row"]) for line in lines] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [line["loss"] for line in lines[:2]] == ["nan"] * 2
    assert all(0 < float(line["loss"]) < 99 for line in lines[2:])
    assert lines[0].keys() == {"micro_batch", "loss", "row", "input_ids", "example_seeds"}
    for line in lines:
        row = trainer.train_dataset[line["example_seeds"] - 100]
        assert line["input_ids"] == tokenizer.decode(row["input_ids"])
    assert len({line["example_seeds"] for line in lines}) == 4


def test_a_finite_step_in_between_starts_the_count_again(tmp_path: Path) -> None:
    class Strict(RobustTrainer):
        max_skipped_steps = 2

    assert trained(toy_trainer(tmp_path, Strict, [Poison([1, 3, 5, 7])])).skipped_steps == 4
    with pytest.raises(BadInput, match="step 6: .* 2 steps in a row"):
        trained(toy_trainer(tmp_path, Strict, [Poison([1, 3, 5, 6])]))
    lines = (tmp_path / "non_finite_step_6_rank0.jsonl").read_text().splitlines()
    assert len(json.loads(lines[0])["input_ids"]) == LENGTH  # ids where there is no tokenizer


def test_a_run_of_which_no_step_was_made_is_no_success(tmp_path: Path) -> None:
    """Fewer steps than are skipped in a row before a run ends."""
    trainer = toy_trainer(tmp_path, callbacks=[Poison(range(99))], max_steps=3, save_steps=2)
    with pytest.raises(
        BadInput, match="not finite in each of the 3 steps, so nothing was trained; .* lower learning_rate"
    ):
        trainer.train()
    resumed = toy_trainer(tmp_path / "o", callbacks=[Poison(range(99))], max_steps=4)
    with pytest.raises(BadInput, match="in each of the 4 steps"):
        resumed.train(str(tmp_path / "checkpoint-2"))
    assert trained(toy_trainer(tmp_path / "n", callbacks=[Poison([1, 2])], max_steps=3)).skipped_steps == 2


def test_the_loss_of_a_training_leaves_out_its_own_skipped_steps_alone(tmp_path: Path) -> None:
    poison = Poison([1, 2])
    trainer = toy_trainer(tmp_path, callbacks=[poison], max_steps=4, save_strategy="no")
    for skipped in (2, 0):  # the second training of the same trainer is a new one
        output = trainer.train()
        losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
        assert len(losses) == 4 - skipped and trainer.skipped_steps == skipped
        assert output.training_loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)
        assert trainer.args.logging_nan_inf_filter, "the arguments are as before"
        poison.steps = []


def test_sigterm_before_a_step_was_made_is_no_error(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path, callbacks=[Poison(range(99)), AtStep([2], send_sigterm)], save_strategy="no")
    assert trained(trainer).terminated and trainer.skipped_steps == 2 and checkpoints(tmp_path) == [2]


def test_rows_are_written_with_all_their_texts(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """A batch as that of HiCTL, of two rows and four sentences."""
    trainer = toy_trainer(tmp_path, processing_class=tokenizer)
    sentences = tokenizer(["the cat", "die Katze", "a dog", "ein Hund"], padding=True, return_tensors="pt")
    joined = tokenizer(["the cat", "a dog"], ["die Katze", "ein Hund"], padding=True, return_tensors="pt")
    trainer.step_batches = [
        {
            "input_ids": joined.input_ids,
            "sentence_input_ids": sentences.input_ids,
            "example_seeds": torch.tensor([7, 8]),
        }
        | {"kept": object(), "sentence_attention_mask": sentences.attention_mask}
    ]
    trainer.step_losses = [torch.tensor(2.0)]
    trainer.write_examples_of_step(tmp_path / "rows.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text("utf-8").splitlines()]
    assert [line.get("example_seeds") for line in lines] == [7, 8, None, None]
    assert ["Katze" in line["sentence_input_ids"] for line in lines] == [False, True, False, False]
    assert "the cat" in lines[0]["input_ids"] and "die Katze" in lines[0]["input_ids"]


def test_a_scaler_of_float16_may_look_for_its_scale(tmp_path: Path) -> None:
    """Its first steps overflow, more of them than are skipped otherwise; it skips and counts them as its own."""
    trainer = toy_trainer(tmp_path, save_strategy="no", max_steps=20)
    trainer.accelerator.state._mixed_precision = "fp16"  # which accelerate leaves to GPUs
    trainer.accelerator.native_amp = True
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**28)
    before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    skipped: list[bool] = []
    same: list[bool] = []

    def note(model: Any, **_: Any) -> None:
        skipped.append(trainer.step_was_skipped)
        same.append(all(before[name].equal(value) for name, value in model.named_parameters()))

    trainer.add_callback(AtStep(range(99), note))
    trained(trainer)
    assert sum(skipped) == trainer.skipped_steps > trainer.max_skipped_steps
    first = skipped.index(False)
    assert same == [True] * first + [False] * (20 - first) and first > trainer.max_skipped_steps
    assert trainer.accelerator.scaler.get_scale() == 2.0 ** (28 - sum(skipped))


# --- disks that are full, folders that cannot be written --------------------------------------------------------------


@pytest.fixture
def limited_files() -> Iterator[Callable[[int], None]]:
    """`limited_files(bytes)`: a file that grows longer is an error of writing, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.parametrize("cut", ["model.safetensors", "optimizer.pt", "training_args.bin"])
def test_a_full_disk_is_one_clear_error_and_costs_no_checkpoint(
    tmp_path: Path, limited_files: Callable[[int], None], cut: str, uninterrupted: tuple[Any, ...]
) -> None:
    def fill_disk(**_: Any) -> None:
        size = (tmp_path / "checkpoint-2" / cut).stat().st_size
        limited_files(size - 1 if cut != "training_args.bin" else 3000)
        if cut == "training_args.bin":  # shorter than the model, which is let pass
            trainer._save = lambda folder, **_: (os.makedirs(folder), torch.save([0] * 9999, f"{folder}/{cut}"))  # type: ignore[method-assign]

    trainer = toy_trainer(tmp_path, callbacks=[AtStep([4], fill_disk)], save_total_limit=1)
    error = (
        "checkpoint-4: cannot be saved, with .* MiB free on its disk: .*; free space .*--resume_from_checkpoint true"
    )
    with pytest.raises(BadInput, match=error) as raised:
        trainer.train()
    limited_files(resource.RLIM_INFINITY)
    assert not isinstance(raised.value.__cause__, OSError)  # or this proves nothing about safetensors and torch.save
    assert checkpoints(tmp_path) == [2] and verify_checkpoint(tmp_path / "checkpoint-2") is None
    resumed = trained(toy_trainer(tmp_path, save_total_limit=1), resume=True)
    assert not differing(state_of(resumed), uninterrupted[0])


def test_errors_of_the_system_are_told_with_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> None:
        if folder.name == "checkpoint-4":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_manifest(folder)

    monkeypatch.setattr(hictl_hf.training.trainer, "write_manifest", fail)
    with pytest.raises(BadInput, match="checkpoint-4: cannot be saved, .* No space left on device"):
        trained(toy_trainer(tmp_path, save_total_limit=1))
    assert checkpoints(tmp_path) == [2] and verify_checkpoint(tmp_path / "checkpoint-2") is None


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-2").write_text("a file where the folder is to be")
    with pytest.raises(BadInput, match="checkpoint-2: cannot be saved, .*[Nn]ot a directory"):
        trained(toy_trainer(tmp_path))


def test_other_errors_are_not_taken_for_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(RobustTrainer, "_save_scaler", fail)
    with pytest.raises(RuntimeError, match="^CUDA error"):
        trained(toy_trainer(tmp_path))


# --- two processes ----------------------------------------------------------------------------------------------------


def test_other_processes_than_the_main_one_read_no_checkpoint_to_check_it(
    tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 processes would read the same gigabytes from a disk that all machines share."""

    def fail(path: Path) -> str:
        raise AssertionError(f"{path} was read")

    monkeypatch.setattr(hictl_hf.training.checkpoints, "digest", fail)
    monkeypatch.setattr(RobustTrainer, "is_world_process_zero", lambda self: False)
    trainer = toy_trainer(tmp_path, save_strategy="no")
    trainer.train(resume_from_checkpoint=str(saved / "checkpoint-10"))
    assert trainer.state.global_step == STEPS
    found = str(saved / "checkpoint-10")  # by the main process
    trainer = toy_trainer(saved, save_strategy="no")
    monkeypatch.setattr(trainer, "from_main", lambda value: found)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.resumed_from == Path(found)


class Presence(TrainerCallback):
    """Slow steps, and a file that says which process this rank is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        (self.folder / f"process-of-rank-{args.process_index}").write_text(str(os.getpid()))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        time.sleep(0.1)


def train_as_a_rank(folder: Path) -> int:
    """Train, or go on, under torchrun; returns what the process exits with."""
    folder.mkdir(exist_ok=True)
    trainer = toy_trainer(folder, callbacks=[Presence(folder)], gradient_accumulation_steps=1, ddp_backend="gloo")
    assert trainer.args.world_size == 2
    trained(trainer, resume=last_complete_checkpoint(folder))
    if trainer.is_world_process_zero() and not trainer.terminated:
        torch.save(state_of(trainer), folder / "state.pt")
    return 143 if trainer.terminated else 0


def launch(folder: Path) -> subprocess.Popen[str]:
    """Start two ranks of this file."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = ["torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(port)]
    return run_this_file("two processes", folder, launcher)


def run_this_file(script: str, folder: Path, launcher: Sequence[str] = ()) -> subprocess.Popen[str]:
    command = [sys.executable, *(["-m", *launcher] if launcher else []), __file__, script, str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHELASTIC_ERROR_FILE": "", "PYTHONFAULTHANDLER": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)  # with the folders of tests
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_a_run_that_is_made_longer_goes_on_with_the_rate_of_the_longer_schedule(tmp_path: Path) -> None:
    """The checkpoint of a finished run has a rate of 0, and HF would make a step with it."""

    def rates(folder: Path, steps: int, resume: bool = False) -> list[float]:
        trainer = toy_trainer(folder, max_steps=steps)
        trainer.train(resume_from_checkpoint=resume)
        return [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]

    longer = rates(tmp_path / "longer", 8)
    assert rates(tmp_path, 4) != longer[:4]
    assert rates(tmp_path, 8, resume=True)[4:] == longer[4:]


class LongUpload(ReadsCheckpoints):
    """Reads each checkpoint of the main process for longer than the others may wait."""

    until = 0.0

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.until = time.monotonic() + 5 if state.is_world_process_zero else 0.0

    def is_reading(self) -> bool:
        return time.monotonic() < self.until


def trained_with_long_uploads(folder: Path) -> bool:
    torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=3))
    upload = LongUpload()
    trainer = toy_trainer(folder, callbacks=[upload], max_steps=2, save_steps=1, save_total_limit=1)
    trainer.train()
    trainer.accelerator.wait_for_everyone()  # as what follows a training does
    return not upload.is_reading()


@pytest.mark.slow
def test_an_upload_may_last_longer_than_processes_wait_for_each_other(tmp_path: Path) -> None:
    assert found_by_two(tmp_path, trained_with_long_uploads, tmp_path) == [True, True]
    assert [path.name for path in newest_first(tmp_path)] == ["checkpoint-2"]


def weights_after_a_prediction(folder: Path) -> dict[str, Tensor]:
    trainer = toy_trainer(folder, max_steps=2, save_strategy="no")
    trainer.predict(trainer.eval_dataset)
    trainer.train()
    return weights_of(trainer)


@pytest.mark.slow
def test_processes_that_predict_before_they_train_learn_the_same_weights(tmp_path: Path) -> None:
    """accelerate takes the model for prepared then, and each process would train its own."""
    first, second = found_by_two(tmp_path, weights_after_a_prediction, tmp_path)
    assert all(weight.equal(second[name]) for name, weight in first.items())


def warnings_with_separate_folders(folder: Path) -> list[str]:
    """The warnings of a process that writes to another folder than the others, as on a disk of its machine."""
    said = logging.handlers.BufferingHandler(1000)
    logging.getLogger("hictl_hf").addHandler(said)
    for name, both in (("one", False), ("each", True)):
        place = folder / os.environ["RANK"] / name
        trained(toy_trainer(place, max_steps=2, save_steps=2, save_on_each_node=both))
    return [record.getMessage() for record in said.buffer if record.levelno >= logging.WARNING]


@pytest.mark.slow
def test_a_process_that_saves_its_state_in_another_folder_is_told_of(tmp_path: Path) -> None:
    first, second = found_by_two(tmp_path, warnings_with_separate_folders, tmp_path)
    assert len(first) == 1 and not second
    assert "0/one/checkpoint-2: lacks rng_state_1.pth" in first[0] and "all machines share" in first[0]


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """The end of a run of two processes that was left alone."""
    folder = tmp_path_factory.mktemp("two")
    process = launch(folder)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return torch.load(folder / "state.pt")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_the_death_of_one_process_ends_all_and_the_run_goes_on_from_its_last_checkpoint(
    tmp_path: Path, two_processes: dict[str, Tensor], name: str
) -> None:
    process = launch(tmp_path)
    deadline = time.monotonic() + 300
    while not (tmp_path / "checkpoint-4" / MANIFEST).exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    os.kill(int((tmp_path / "process-of-rank-1").read_text()), getattr(signal, name))
    output, _ = process.communicate(timeout=300)
    assert process.returncode != 0, output
    assert not (tmp_path / "state.pt").exists()
    whole = last_complete_checkpoint(tmp_path)
    assert whole is not None and int(whole.split("-")[-1]) >= 4
    if name == "SIGTERM":
        assert "143" in output and whole == str(newest_first(tmp_path)[0])
    process = launch(tmp_path)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert not differing(torch.load(tmp_path / "state.pt"), two_processes)


# --- kill -9 ----------------------------------------------------------------------------------------------------------

KILLS, LONG_RUN = 30, 40
FILE_EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")  # of Python's audit hooks


class Messages(TrainerCallback):
    """Tells the parent, through a pipe, when training begins and which steps are saved."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        os.write(self.pipe, f"began {state.global_step}\n".encode())

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        time.sleep(0.003)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        os.write(self.pipe, f"saved {state.global_step}\n".encode())


def train_as_a_child(folder: Path, pipe: int, kill_at_event: int | None) -> None:
    """Go on from the last whole checkpoint; killed when so many files have been touched in training, if at all."""
    trainer = toy_trainer(folder, callbacks=[Messages(pipe)], max_steps=LONG_RUN, save_total_limit=2)
    left = [kill_at_event]

    def count(event: str, _: Any) -> None:
        if left[0] is not None and event in FILE_EVENTS and trainer.is_in_train:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    trained(trainer, resume=last_complete_checkpoint(folder))
    torch.save(state_of(trainer), folder / "state.pt")


def live(folder: Path, delay: float | None, kill_at_event: int | None) -> tuple[bool, list[tuple[str, int]]]:
    """Train in a child that is killed so many seconds after it began, or by itself; whether it was, what it told."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            train_as_a_child(folder, writing, kill_at_event)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        lines = [pipe.readline()]
        if delay is not None:
            time.sleep(delay)
            os.kill(child, signal.SIGKILL)
        lines += pipe.readlines()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    told = [(word, int(step)) for word, step in (line.split() for line in lines if line.endswith("\n"))]
    return status != 0, told


def kill_again_and_again(folder: Path) -> int:
    """Kill children at random until there were enough kills and the last run has come to its end; prints what was."""
    chance = random.Random(0)
    (folder / "expected").mkdir()
    live(folder / "expected", None, None)
    expected = torch.load(folder / "expected" / "state.pt")
    kills = runs = cut_short = went_on = 0
    place, last_saved = folder / "0", 0
    while kills < KILLS or last_saved:
        by_time = chance.random() < 0.5
        delay = chance.uniform(0, 0.5) if by_time else None
        event = None if by_time else chance.randint(1, 250)
        killed, told = live(place, delay, event) if kills < KILLS else live(place, None, None)
        kills += killed
        saved = [step for word, step in told if word == "saved"]
        for word, step in told:
            if word == "began":
                assert step >= last_saved, f"step {last_saved} was saved, the run went on at {step}"
                went_on += step > 0
        last_saved = max([last_saved, *saved])
        if killed:
            newest = newest_first(place)
            cut_short += bool(newest) and last_complete_checkpoint(place) != str(newest[0])
        else:
            assert not differing(torch.load(place / "state.pt"), expected)
            assert len(newest_first(place)) in (2, 3)  # one more by a kill between the last checkpoint and the rotation
            runs, last_saved = runs + 1, 0
            shutil.rmtree(place)
            place = folder / str(runs)
    print(json.dumps({"kills": kills, "runs": runs, "cut short": cut_short, "went on": went_on}))
    return 0


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(tmp_path: Path) -> None:
    process = run_this_file("killed", tmp_path)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    seen = json.loads(output.splitlines()[-1])
    assert seen["kills"] == KILLS and seen["runs"] >= 1
    assert seen["cut short"] >= 5 and seen["went on"] >= 10  # kills in the midst of saving, and runs that lived on


SCRIPTS: dict[str, Callable[[Path], int]] = {"two processes": train_as_a_rank, "killed": kill_again_and_again}

if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    code = SCRIPTS[sys.argv[1]](Path(sys.argv[2]))
    sys.stdout.flush()
    os._exit(code)  # without tearing down torch's threads, which once in a while ended in SIGABRT after all was done
