"""Fault-tolerant Trainer: atomic, verified checkpoints; save and exit on SIGTERM; steps with a non-finite loss or
gradient are skipped. Losses and data are defined by subclasses, complete checkpoints by `checkpoints`."""

import json
import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from time import sleep
from typing import Any, cast

import torch
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Trainer, TrainerControl
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

from ..errors import BadInput
from ..files import let_others_read, writing
from ..models.supported_versions import overrides_private, warn_if_untested
from .arguments import refuse_unsupported_devices
from .callbacks import ReadsCheckpoints, RunFingerprint, StepGuard
from .checkpoints import (
    check_checkpoint,
    last_complete_checkpoint,
    newest_first,
    remove_broken_checkpoints,
    write_manifest,
)
from .fields import idle_steps
from .passes import Passes, knows_no_end

warn_if_untested()
logger = logging.getLogger(__name__)

READERS_ARE_ASKED_EVERY = 0.5  # seconds
TERMINATED = 128 + signal.SIGTERM  # exit status of a process that SIGTERM ended
PREPARED = "_is_accelerate_prepared"  # accelerate's mark of a model, which it prepares once


def nan_unless_finite(loss: Tensor) -> Tensor:
    """Return a finite loss unchanged, bit for bit, with its gradient; else NaN with gradients of NaN.

    An infinite loss can have finite gradients. Gradients of NaN reach every process, as gradients are summed over them.
    """
    return loss * (1 + (loss - loss).detach())


def add_tied_weights(model: PreTrainedModel, state: dict[str, Tensor], *_: Any) -> None:
    """Add tied weights, which are saved once, to those that a model loads: else they would be reported as missing."""
    for name, source in model.all_tied_weights_keys.items():
        if source in state:
            state.setdefault(name, state[source])


class RobustTrainer(Trainer):
    """A Trainer whose runs can be interrupted or killed at any moment and continued with the same result.

    A subclass that overrides `compute_loss` passes its loss through `nan_unless_finite`.

    Attributes:
        terminated: whether SIGTERM ended the training; its last step is saved, and the caller exits with 143.
        skipped_steps: number of optimiser steps skipped because loss or gradient was not finite.
        step_was_skipped: whether the running step is one of them.
        max_skipped_steps: consecutive skipped steps after which training ends with `BadInput`.
        resumed_from: the checkpoint that the running training was resumed from, if any.
        skip_to: the same, unless examples are not to be skipped.
        ties_go_to_the_later: whether the later of equally good states is the best (HF keeps the earlier one).
        count_items: the items of a micro-batch of which the loss is a mean; `None`: as the Trainer counts.
        how_to_continue: the fix that messages end with.
        how_to_save_memory: what messages offer instead of FSDP and ZeRO-3.
    """

    model: PreTrainedModel
    control: TrainerControl
    how_to_continue = "continue with --resume_from_checkpoint true"
    how_to_save_memory = "activation_checkpointing and more gradient_accumulation_steps"
    max_skipped_steps = 5
    ties_go_to_the_later = False
    resumed_from: Path | None = None
    skip_to: Path | None = None
    count_items: Callable[[dict[str, Any]], int | Tensor] | None = None
    loss_is_scaled_for_ga: bool | None = None  # as of the Trainer

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        refuse_unsupported_devices(self.args, self.how_to_save_memory, self.is_fsdp_enabled)
        if self.model_init is None:
            self.prepare_model(self.model)
        if self.loss_is_scaled_for_ga and not hasattr(Trainer, "loss_is_scaled_for_ga"):
            self.model_accepts_loss_kwargs = True  # before transformers 5.19, which has no other way to say the same
        self.terminated = self.sigterm_received = self.step_was_skipped = False
        self.skipped_steps = self.skipped_in_a_row = self.skipped_since_begin = 0
        self.training = RawValue("b", False)  # shared with the workers of the data loader
        self.step_batches: list[dict[str, Any]] = []
        self.step_losses: list[Tensor] = []
        self._tr_loss = torch.zeros((), device=self.args.device)  # as when a training begins
        self.add_callback(StepGuard(self))

    def create_accelerator_and_postprocess(self) -> None:
        """Like the parent, which each trial of a search calls again; copies to a GPU from pinned memory do not wait."""
        super().create_accelerator_and_postprocess()
        self.accelerator.dataloader_config.non_blocking |= self.args.dataloader_pin_memory

    def prepare_model(self, model: PreTrainedModel) -> None:
        """Make a model ready to be trained: the one given, or each that `model_init` makes."""
        # accelerate marks a model that a Trainer before this one trained, and would leave out autocast and compiling
        vars(model).pop(PREPARED, None)
        if hasattr(model, "all_tied_weights_keys"):
            model.register_load_state_dict_pre_hook(add_tied_weights)

    def call_model_init(self, trial: Any = None) -> nn.Module:
        model: Any = super().call_model_init(trial)
        self.prepare_model(model)
        return model

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        is_main = self.is_world_process_zero()  # it alone reads all of a checkpoint to check it
        if resume_from_checkpoint is True:
            found: str | None = self.from_main(is_main and last_complete_checkpoint(self.args.output_dir))
            if found is None:
                raise BadInput(f"{self.args.output_dir}: holds no complete checkpoint; start without resuming")
            resume_from_checkpoint = found
        elif resume_from_checkpoint:
            check_checkpoint(resume_from_checkpoint, contents=is_main)
        self.resumed_from = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, RunFingerprint):
                callback.check_processes(self.from_main(callback.settings), self.args.process_index)
                if self.resumed_from:
                    callback.check(self.resumed_from)
        if is_main:
            for sentence in idle_steps(self.args):
                logger.warning(sentence)
        changed = ("logging_nan_inf_filter", "eval_on_start", "ignore_data_skip")
        before = {name: getattr(self.args, name) for name in changed}
        self.args.logging_nan_inf_filter = False  # waits for a GPU; `skip_step` keeps such losses from the log
        self.args.eval_on_start &= not resume_from_checkpoint  # a resumed run did so
        self.skip_to = None if self.args.ignore_data_skip else self.resumed_from
        self.args.ignore_data_skip |= knows_no_end(self)  # `Passes` do so
        if self.args.world_size > 1 and self.model_wrapped is self.model:  # `predict` marks it: DDP would be left out
            vars(self.model).pop(PREPARED, None)
        try:
            with self.noting_sigterm():
                self.skipped_since_begin = 0
                output = super().train(resume_from_checkpoint, *args, **kwargs)
                output = output._replace(training_loss=output.metrics["train_loss"])  # as `log` has changed it
                self.wait_for(self.checkpoint_readers())
        except KeyboardInterrupt:
            if is_main:
                newest = next(iter(newest_first(self.args.output_dir)), None)
                saved = f"the newest checkpoint is {newest}; {self.how_to_continue}" if newest else "nothing was saved"
                logger.warning("Ctrl-C after step %d: %s. SIGTERM (kill) saves the step", self.state.global_step, saved)
            raise
        finally:
            for name, value in before.items():
                setattr(self.args, name, value)
        if 0 < self.state.global_step <= self.skipped_steps and not self.terminated and not self.scale_is_open():
            raise BadInput(
                f"loss or gradient was not finite in each of the {self.state.global_step} steps, so "
                "nothing was trained; check the weights of the start and the examples, else lower learning_rate or "
                "train in higher precision"
            )
        return output

    @overrides_private(Trainer)
    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Train no step after the last one, nor after early stopping: resumed from there, HF tests whether it is done
        only after one more step, and no event before that step can end the epoch."""
        if self.state.global_step < self.state.max_steps and not self.control.should_training_stop:
            super()._run_epoch(*args, **kwargs)
        else:
            self.control.should_training_stop = True

    # --- SIGTERM ------------------------------------------------------------------------------------------------------

    @contextmanager
    def noting_sigterm(self) -> Iterator[None]:
        """Handle SIGTERM, and SIGHUP of a terminal that is closed, at the end of the running step; one after the last
        step is raised again, as SIGTERM, for the previous handler."""
        self.terminated = self.sigterm_received = False
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

        def note(number: int, _: Any) -> None:
            self.sigterm_received = True
            for descriptor in terminals if number == signal.SIGHUP else ():  # closed: each write would be an error
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)

        before = {number: signal.signal(number, note) for number in signals_that_end()}
        self.training.value = True
        try:
            yield
        finally:
            self.training.value = False
            for number, handler in before.items():
                signal.signal(number, handler or signal.SIG_DFL)
        if self.sigterm_received and not self.terminated:
            signal.raise_signal(signal.SIGTERM)

    def stop_requested(self) -> bool:
        """Whether any process received SIGTERM; all processes call this at the end of each step."""
        if self.args.world_size == 1:
            return self.sigterm_received
        received = torch.tensor(float(self.sigterm_received), device=self.args.device)
        return bool(self.accelerator.reduce(received, "sum"))

    def from_main(self, value: Any) -> Any:
        """The value of the main process, for all: GPUs may round otherwise, and a process that decides otherwise than
        the rest, such as to stop or to save, would let them wait for it."""
        return broadcast_object_list([value])[0]

    def make_loader(self, **how: Any) -> DataLoader[Any]:
        """A loader of examples that are divided among the processes already, so that accelerate does not divide them
        again."""
        args = self.args
        if args.dataloader_persistent_workers:  # such a loader draws a random number at its first start alone, and
            how.setdefault("generator", torch.Generator())  # that of a resumed run starts in another epoch
        loader: DataLoader[Any] = DataLoader(
            self.train_dataset, num_workers=args.dataloader_num_workers, pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers, prefetch_factor=args.dataloader_prefetch_factor,
            multiprocessing_context=args.dataloader_multiprocessing_context,
            worker_init_fn=partial(outlive_sigterm, training=self.training), **how,
        )  # fmt: skip
        return prepare_data_loader(
            loader, args.device, num_processes=1, process_index=0, put_on_device=True, dispatch_batches=False,
            non_blocking=args.dataloader_pin_memory,
        )  # fmt: skip

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Like the parent, with workers that ignore SIGTERM while a step runs; of all passes if none has a length."""
        loader = super().get_train_dataloader()
        inner = getattr(loader, "base_dataloader", loader)  # accelerate's loaders wrap PyTorch's
        inner.worker_init_fn = partial(outlive_sigterm, training=self.training, start=inner.worker_init_fn)
        return cast("DataLoader[Any]", Passes(loader, self, self.skip_to)) if knows_no_end(self) else loader

    # --- checkpoints --------------------------------------------------------------------------------------------------

    @overrides_private(Trainer)
    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Save a checkpoint that is complete or not used, and only then remove older ones: HF removes them before the
        only event of a save."""
        run, limit = self._get_output_dir(trial), self.args.save_total_limit
        folder = Path(run) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ExportableState):  # HF cannot save one that an older checkpoint did not know
                self.state.stateful_callbacks.setdefault(type(callback).__name__, {})
        fix = f"older checkpoints are unchanged; free space or make it writable, then {self.how_to_continue}"
        with writing(folder, fix):
            if self.args.should_save and folder.exists():
                shutil.rmtree(folder)  # left by an attempt that was killed
            self.accelerator.wait_for_everyone()
            self.args.save_total_limit = None  # older ones are needed until this one is complete
            try:
                super()._save_checkpoint(model, trial)
                self.save_process_state(folder)
            finally:
                self.args.save_total_limit = limit
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                self.warn_of_missing_states(folder)
                let_others_read(folder)
                write_manifest(folder)
        readers = self.checkpoint_readers()
        if limit or any(reader.always for reader in readers):
            self.wait_for(readers)
        if self.args.should_save:
            self.remove_old_checkpoints(run, limit)
        self.accelerator.wait_for_everyone()  # or a launcher would end this process because others are done

    def checkpoint_readers(self) -> list[ReadsCheckpoints]:
        """The callbacks that read checkpoints in the background."""
        return [callback for callback in self.callback_handler.callbacks if isinstance(callback, ReadsCheckpoints)]

    def wait_for(self, readers: Sequence[ReadsCheckpoints]) -> None:
        """Wait until the main process reads no checkpoint, in all processes and in short steps: in one long wait the
        others would give up after `ddp_timeout`."""
        while readers and self.from_main(any(reader.is_reading() for reader in readers)):
            sleep(READERS_ARE_ASKED_EVERY)

    def warn_of_missing_states(self, folder: Path) -> None:
        """Warn of processes that write to a folder of their own machine, from which the run cannot be resumed."""
        number = 0 if self.args.save_only_model or self.args.save_on_each_node else self.args.world_size
        states = [f"rng_state_{process}.pth" for process in range(number)] if number > 1 else []
        if missing := [name for name in states if not (folder / name).exists()]:
            logger.warning(
                "%s: lacks %s, so the run may not be resumable from it; is output_dir on a file system that all "
                "machines share?", folder, ", ".join(missing[:3]),
            )  # fmt: skip

    def save_process_state(self, folder: Path) -> None:
        """Add the state of this process to a checkpoint that is not complete yet; each process calls this."""

    def remove_old_checkpoints(self, run: str, limit: int | None) -> None:
        """Remove broken checkpoints, and all but the newest `limit` and the best one; no limit: none.

        The newest by their steps, as a copied run has the times of copying. Later steps than this one are the oldest:
        they are of a run that was resumed before them.
        """
        if not limit:
            return
        remove_broken_checkpoints(run)
        this, best = (
            f"{PREFIX_CHECKPOINT_DIR}-{step}" for step in (self.state.global_step, self.state.best_global_step)
        )
        names = [path.name for path in newest_first(run)]
        names = names[names.index(this) :] + names[: names.index(this)]
        others = [name for name in names if name not in (this, best)]
        for name in others[max(limit - (len(names) - len(others)), 0) :]:
            shutil.rmtree(Path(run, name), ignore_errors=True)

    # --- loss or gradient that is not finite --------------------------------------------------------------------------

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        """The micro-batches of one optimizer step, and the number of items in all of them on all processes."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self.step_was_skipped, self.step_batches, self.step_losses = False, batches, []
        self.loss_before_step = self._tr_loss.clone()
        if self.count_items is not None:
            own = torch.as_tensor(sum(map(self.count_items, batches)), device=device)
            items = self.accelerator.reduce(own, "sum")
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
        """Skip the step if the norm of its gradient is not finite: no event gives the norm, or can keep it from the
        logs."""
        norm = super()._get_grad_norm(model, grad_norm)  # of the gradient of all processes, before clipping
        if norm is None or torch.as_tensor(norm).isfinite():
            self.skipped_in_a_row = 0
            return norm
        self.skip_step(model)
        return None

    def skip_step(self, model: nn.Module) -> None:
        """Drop gradient and logged loss of this step; `BadInput` after `max_skipped_steps` in a row."""
        model.zero_grad(set_to_none=True)
        self._tr_loss.copy_(self.loss_before_step)
        self._globalstep_last_logged += 1  # the logged loss is divided by the steps since then
        self.step_was_skipped = True
        self.skipped_steps += 1
        self.skipped_since_begin += 1
        if not self.scale_is_open():
            self.skipped_in_a_row += 1
        step = self.state.global_step + 1
        if self.is_world_process_zero():
            logger.warning("step %d: loss or gradient is not finite; the step is skipped", step)
        if self.skipped_in_a_row >= self.max_skipped_steps:
            path = Path(self.args.output_dir) / f"non_finite_step_{step}_rank{self.args.process_index}.jsonl"
            self.write_examples_of_step(path)
            raise BadInput(
                f"step {step}: loss or gradient was not finite in {self.skipped_in_a_row} steps in a row; its "
                f"examples are in {path}; correct them if they are broken, else lower learning_rate or train in higher "
                f"precision, then {self.how_to_continue}"
            )

    def scale_is_open(self) -> bool:
        """Whether the loss scaler of float16 may still find a scale at which steps are finite."""
        scaler = self.accelerator.scaler
        return scaler is not None and scaler.get_scale() > 1

    def write_examples_of_step(self, path: Path) -> None:
        """Write each example of each micro-batch of this process as a JSON line: texts, numbers, and the micro-batch's
        loss."""
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

    def finish_evaluation(self, metrics: dict[str, float]) -> dict[str, float]:
        """Log the metrics and give them to the callbacks, as the Trainer's `evaluate` ends."""
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self.skipped_steps:
            logs["skipped_steps"] = self.skipped_steps
        if "train_loss" in logs and self.skipped_since_begin:
            # HF divides by all steps of this call, older transformers by all steps of the run
            steps = self.state.global_step - getattr(self, "_initial_global_step", 0)
            logs["train_loss"] *= steps / max(steps - self.skipped_since_begin, 1)
        super().log(logs, start_time)


def signals_that_end() -> list[signal.Signals]:
    """SIGTERM, and SIGHUP where it would end the process: `nohup` ignores it."""
    hangs_up = signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    return [signal.SIGTERM, signal.SIGHUP] if hangs_up else [signal.SIGTERM]


def outlive_sigterm(worker: int, training: Any, start: Callable[[int], None] | None = None) -> None:
    """`worker_init_fn` of workers that ignore SIGTERM while `training.value` is true.

    Schedulers send SIGTERM to all processes, and a worker that dies raises an exception in the step that is to be
    saved. After training the parent ends the workers that an error has left with SIGTERM, and waits for them.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):  # the latter is the parent's handler, or nohup's
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: training.value or os._exit(0))
    if start is not None:
        start(worker)
