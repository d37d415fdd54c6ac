"""Training that loses no step: HF's Trainer with checkpoints that are whole or not used, an orderly end on SIGTERM,
and steps without effect where loss or gradient is not finite. What is trained is left to subclasses; what makes a
checkpoint whole, to `checkpoints`."""

import json
import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from time import time
from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, IntervalStrategy, TrainOutput, rotate_checkpoints

from ..errors import BadInput
from ..files import writing
from ..models.supported_versions import overrides_private, warn_if_untested
from .arguments import refuse_changes
from .checkpoints import check_checkpoint, last_whole_checkpoint, remove_broken_checkpoints, write_manifest
from .sharding import ShardedTrainer

warn_if_untested()
logger = logging.getLogger(__name__)

TERMINATED = 128 + signal.SIGTERM  # the exit status of a process that it ended


def nan_unless_finite(loss: Tensor) -> Tensor:
    """The same loss and gradient, bit for bit, where it is finite; else NaN and gradients of NaN.

    An infinite loss can have finite gradients. Gradients of NaN tell every process, as they are summed over them.
    """
    return loss * (1 + (loss - loss).detach())


class RobustTrainer(ShardedTrainer):
    """A Trainer whose runs can be ended or killed at any moment and continued without a difference.

    A subclass that overrides `compute_loss` passes its loss through `nan_unless_finite`.

    Attributes:
        terminated: whether SIGTERM ended the training; its last step is saved, and the caller exits with 143.
        skipped_steps: how many optimiser steps had no effect because loss or gradient was not finite.
        step_was_skipped: whether that happened to the running step.
        max_skipped_steps: after so many in a row training ends with `BadInput`.
        resumed_from: the checkpoint that the running training went on from, if any.
    """

    control: TrainerControl
    going_on = "continue with --resume_from_checkpoint true"  # as messages tell how
    max_skipped_steps = 5
    resumed_from: Path | None = None
    loss_is_scaled_for_ga: bool | None = None  # as of the Trainer

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.args.n_gpu > 1:
            raise BadInput(
                f"one process sees {self.args.n_gpu} GPUs and would split its batches between them; start one process "
                "for each (accelerate launch, torchrun), or choose one GPU by CUDA_VISIBLE_DEVICES"
            )
        if self.loss_is_scaled_for_ga and not hasattr(Trainer, "loss_is_scaled_for_ga"):
            self.model_accepts_loss_kwargs = True  # before transformers 5.19, which has no other way to say the same
        self.terminated = self.sigterm_received = self.step_was_skipped = False
        self.skipped_steps = self.skipped_in_a_row = 0
        self.training = RawValue("b", False)  # which the workers that load rows see
        self.step_batches: list[dict[str, Any]] = []
        self.step_losses: list[Tensor] = []
        self._tr_loss = torch.zeros((), device=self.args.device)  # as when a training begins
        self.add_callback(StepGuard(self))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_whole_checkpoint(self.args.output_dir)
            if resume_from_checkpoint is None:
                raise BadInput(f"{self.args.output_dir}: holds no whole checkpoint; start without resuming")
        elif resume_from_checkpoint:
            check_checkpoint(resume_from_checkpoint)
        self.resumed_from = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        with self.noting_sigterm():
            return super().train(resume_from_checkpoint, *args, **kwargs)

    @overrides_private(Trainer)
    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Train no step after the last one: resumed from the last checkpoint, HF looks whether it is done only after
        one step more, and no callback comes before that step."""
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*args, **kwargs)
        else:
            self.control.should_training_stop = True

    @overrides_private(Trainer)
    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Do not warn of weights that are saved under the name of the one they are tied to: HF reports them as missing
        and offers no other place to say that they are not."""
        missing = load_result.missing_keys
        missing[:] = [name for name in missing if name not in self.model.all_tied_weights_keys]
        super()._issue_warnings_after_load(load_result)

    # --- SIGTERM ------------------------------------------------------------------------------------------------------

    @contextmanager
    def noting_sigterm(self) -> Iterator[None]:
        """SIGTERM is noted for the end of the running step; one that came after the last step acts as before."""
        self.terminated = self.sigterm_received = False
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(*_: Any) -> None:
            self.sigterm_received = True

        before = signal.signal(signal.SIGTERM, note)
        self.training.value = True
        try:
            yield
        finally:
            self.training.value = False
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
        if self.sigterm_received and not self.terminated:
            signal.raise_signal(signal.SIGTERM)

    def stop_requested(self) -> bool:
        """Whether any process got SIGTERM; all processes ask at the end of each step."""
        if self.args.world_size == 1:
            return self.sigterm_received
        received = torch.tensor(float(self.sigterm_received), device=self.args.device)
        return bool(self.accelerator.reduce(received, "sum"))

    def make_loader(self, **how: Any) -> DataLoader[Any]:
        """A loader of what is this process's own already, so that nobody else divides it."""
        args = self.args
        loader: DataLoader[Any] = DataLoader(
            self.train_dataset, num_workers=args.dataloader_num_workers, pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers, prefetch_factor=args.dataloader_prefetch_factor,
            worker_init_fn=partial(outlive_sigterm, training=self.training), **how,
        )  # fmt: skip
        return prepare_data_loader(
            loader, args.device, num_processes=1, process_index=0, put_on_device=True, dispatch_batches=False
        )

    def get_train_dataloader(self) -> DataLoader[Any]:
        """HF's, with workers that ignore SIGTERM while a step runs."""
        loader = super().get_train_dataloader()
        inner = getattr(loader, "base_dataloader", loader)  # accelerate's loaders are shells around PyTorch's
        inner.worker_init_fn = partial(outlive_sigterm, training=self.training, start=inner.worker_init_fn)
        return loader

    @overrides_private(Trainer)
    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Save a new best state, and the one that SIGTERM ends with, whenever they come: HF asks this method alone
        whether `save_strategy="best"` saves, after all callbacks."""
        is_best = super()._determine_best_metric(metrics, trial)
        self.control.should_save |= is_best and self.args.load_best_model_at_end  # also between the steps of all saves
        return is_best or self.terminated  # saves, with save_strategy "best" too

    @overrides_private(Trainer)
    def _finalize_training(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Keep the last checkpoint after SIGTERM: HF would load the best state and, with `save_total_limit=1`, remove
        the last one, before it calls `on_train_end`."""
        if not self.terminated:
            return super()._finalize_training(*args, **kwargs)
        with self.changed_arguments(load_best_model_at_end=False, save_total_limit=None):
            return super()._finalize_training(*args, **kwargs)

    @contextmanager
    def changed_arguments(self, **changes: Any) -> Iterator[None]:
        """Other training arguments for a while."""
        before = {name: getattr(self.args, name) for name in changes}
        try:
            for name, value in changes.items():
                setattr(self.args, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(self.args, name, value)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    @overrides_private(Trainer)
    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Save a checkpoint that is complete or not used, and only then remove older ones: HF rotates before the
        callback that follows a save."""
        run = self._get_output_dir(trial)
        folder = Path(run) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ExportableState):  # HF cannot save one that an older checkpoint did not know
                self.state.stateful_callbacks.setdefault(type(callback).__name__, {})
        fix = f"older checkpoints are as they were; free space or make it writable, then {self.going_on}"
        with writing(folder, fix):
            if self.args.should_save and folder.exists():
                shutil.rmtree(folder)  # what an attempt that was killed has left
            self.accelerator.wait_for_everyone()
            with self.changed_arguments(save_total_limit=None):  # older ones are needed until this one is whole
                super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                write_manifest(folder)
        if self.args.should_save and self.args.save_total_limit:
            remove_broken_checkpoints(run)
            rotate_checkpoints(run, self.args.save_total_limit, self.state.best_model_checkpoint, use_mtime=True)
        self.accelerator.wait_for_everyone()  # or a launcher would end this process because others are done

    # --- loss or gradient that is not finite --------------------------------------------------------------------------

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
        batches, items = super().get_batch_samples(*args, **kwargs)
        self.step_was_skipped, self.step_batches, self.step_losses = False, batches, []
        self.loss_before_step = self._tr_loss.clone()
        return batches, items

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        loss = nan_unless_finite(loss)
        return (loss, outputs) if return_outputs else loss

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        self.step_losses.append(super().training_step(*args, **kwargs))
        return self.step_losses[-1]

    @overrides_private(Trainer)
    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Skip the step if the norm of its gradient is not finite: callbacks do not see the norm."""
        norm = super()._get_grad_norm(model, grad_norm)  # of the gradient of all processes, before clipping
        if norm is None or torch.as_tensor(norm).isfinite():
            self.skipped_in_a_row = 0
            return norm
        self.skip_step(model)
        return None

    def skip_step(self, model: nn.Module) -> None:
        """Let the optimiser see no gradient and the logs no loss of this step; `BadInput` when it is one too many."""
        model.zero_grad(set_to_none=True)
        self._tr_loss.copy_(self.loss_before_step)
        self._globalstep_last_logged += 1  # what is logged is divided by the steps since
        self.step_was_skipped = True
        self.skipped_steps += 1
        scaler = self.accelerator.scaler
        if scaler is None or scaler.get_scale() <= 1:  # else a scaler of float16 is still looking for its scale
            self.skipped_in_a_row += 1
        step = self.state.global_step + 1
        if self.is_world_process_zero():
            logger.warning("step %d: loss or gradient is not finite; the step has no effect", step)
        if self.skipped_in_a_row >= self.max_skipped_steps:
            path = Path(self.args.output_dir) / f"non_finite_step_{step}_rank{self.args.process_index}.jsonl"
            self.write_rows_of_step(path)
            raise BadInput(
                f"step {step}: loss or gradient was not finite in {self.skipped_in_a_row} steps in a row; the rows of "
                f"this one are in {path}; mend them if they are broken, else lower learning_rate or train in more "
                f"precise numbers, then {self.going_on}"
            )

    def write_rows_of_step(self, path: Path) -> None:
        """One line for each row of each micro-batch of this process: its texts, its numbers, its micro-batch's loss."""
        decode = getattr(self.processing_class, "batch_decode", Tensor.tolist)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            for number, (batch, loss) in enumerate(zip(self.step_batches, self.step_losses, strict=True)):
                columns = {name: decode(ids) for name, ids in batch.items() if name.endswith("input_ids")}
                numbers = {name: values for name, values in batch.items() if isinstance(values, Tensor)}
                columns |= {name: values.tolist() for name, values in numbers.items() if values.ndim == 1}
                for row in range(max(map(len, columns.values()))):
                    line = {"micro_batch": number, "loss": str(float(loss)), "row": row}
                    line |= {name: values[row] for name, values in columns.items() if row < len(values)}
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self.skipped_steps:
            logs["skipped_steps"] = self.skipped_steps
        super().log(logs, start_time)


def outlive_sigterm(worker: int, training: Any, start: Callable[[int], None] | None = None) -> None:
    """The `worker_init_fn` of workers that ignore SIGTERM as long as `training.value` is true: schedulers send it to
    all processes, and a worker that dies is an exception in the step that is to be saved. Later on the parent sends it
    to workers that an error has left over, and waits for their end."""
    signal.signal(signal.SIGTERM, lambda *_: training.value or os._exit(0))
    if start is not None:
        start(worker)


class StepGuard(TrainerCallback):
    """Ends a run on SIGTERM, and logs skipped steps."""

    def __init__(self, trainer: RobustTrainer) -> None:
        self.trainer, self.saves_with_epoch = trainer, False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.find_best_checkpoint(args, state)
        counts = [log["skipped_steps"] for log in state.log_history if "skipped_steps" in log]
        self.trainer.skipped_steps, self.trainer.skipped_in_a_row = max(counts, default=0), 0

    def find_best_checkpoint(self, args: Any, state: Any) -> None:
        """The best checkpoint is the one next to that which is resumed: a run may have been moved, or was begun in
        another working directory."""
        resumed_from = self.trainer.resumed_from
        if resumed_from is None or not args.load_best_model_at_end or not state.best_global_step:
            return
        best = resumed_from.parent / f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}"
        if not best.is_dir():
            raise BadInput(
                f"{best}: holds the best state until now, which is to be kept, and is gone; put it back, or begin "
                "in another --output_dir"
            )
        state.best_model_checkpoint = str(best)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.step_was_skipped:
            should_log = control.should_log
            self.trainer.log({"skipped_steps": self.trainer.skipped_steps})  # which also says that a log is done
            control.should_log = should_log
        if self.trainer.stop_requested():
            if state.is_world_process_zero:
                logger.warning("SIGTERM: saving step %d and ending", state.global_step)
            self.trainer.terminated = control.should_training_stop = True
            # what is due at the end of an epoch, if this is one, belongs into the checkpoint
            due = (args.logging_strategy, args.eval_strategy, args.save_strategy)
            self.saves_with_epoch = state.epoch % 1 == 0 and IntervalStrategy.EPOCH in due
            control.should_save = not self.saves_with_epoch

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.terminated and self.saves_with_epoch:
            control.should_save = True
        elif self.trainer.terminated:  # HF calls this after any last step
            control.should_log = control.should_evaluate = control.should_save = False


class ExamplesFingerprint(TrainerCallback, ExportableState):
    """Refuses to go on with other rows than those that a checkpoint was trained on: its place in them is a number.

    Args:
        rows: their hash, which is saved with each checkpoint.
    """

    def __init__(self, rows: str) -> None:
        self.rows = rows

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        before = state.stateful_callbacks.get(type(self).__name__, self.state())["args"]["rows"]
        if before != self.rows:
            raise BadInput(
                f"{args.output_dir}: the rows to train on are not those of its checkpoints (hash {self.rows}, not "
                f"{before}): files, cleaning, or what is held out changed; give the same files and settings, or begin "
                "a new run from the model of this one in another --output_dir"
            )

    def state(self) -> dict[str, Any]:
        return {"args": {"rows": self.rows}, "attributes": {}}


class SettingsFingerprint(TrainerCallback, ExportableState):
    """Refuses to go on with other settings than those that a checkpoint was trained with.

    Args:
        settings: those that decide what is learned, as plain values, which are saved with each checkpoint.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = dict(settings)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        before = state.stateful_callbacks.get(type(self).__name__, self.state())["args"]["settings"]
        refuse_changes(args.output_dir, before, self.settings)

    def state(self) -> dict[str, Any]:
        return {"args": {"settings": self.settings}, "attributes": {}}


class TrainingTime(TrainerCallback, ExportableState):
    """Seconds of training, those before the checkpoint that a run went on from among them."""

    def __init__(self) -> None:
        self.before, self.began, self.seconds = 0.0, time(), 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        saved = state.stateful_callbacks.get(type(self).__name__, {"args": {}})
        self.before, self.began = saved["args"].get("seconds", 0.0), time()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seconds = self.state()["args"]["seconds"]

    def state(self) -> dict[str, Any]:
        return {"args": {"seconds": self.before + time() - self.began}, "attributes": {}}
