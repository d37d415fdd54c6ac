"""Callbacks of a training run: its end on SIGTERM, the choice of the best state, the check that a resumed run has the
settings and examples of its checkpoint, and the training time."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from time import process_time, time
from typing import Any, Protocol

from torch.optim.lr_scheduler import LambdaLR
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState, TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, IntervalStrategy

from ..errors import BadInput
from .fingerprint import Settings, differences, refuse_changes, with_version
from .passes import Passes

logger = logging.getLogger(__name__)

EXAMPLES = "hash of the training examples"
SAME_RUN = (
    "give the same settings and data (files, cleaning, held-out pairs), or begin a new run from the model of this one "
    "in another --output_dir"
)


class GuardedTrainer(Protocol):
    """Interface of `RobustTrainer` for `StepGuard`, which that module imports."""

    terminated: bool
    step_was_skipped: bool
    skipped_steps: int
    skipped_in_a_row: int
    ties_go_to_the_later: bool
    resumed_from: Path | None

    def stop_requested(self) -> bool: ...

    def log(self, logs: dict[str, float]) -> None: ...


class StepGuard(TrainerCallback):
    """Save and stop on SIGTERM, save each new best state, log skipped steps."""

    def __init__(self, trainer: GuardedTrainer) -> None:
        self.trainer = trainer
        self.saved_step = -1
        self.changed_arguments: dict[str, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.saved_step = -1
        if state.global_step > state.max_steps:
            raise BadInput(
                f"{self.trainer.resumed_from}: has {state.global_step} steps, and this run is to have "
                f"{state.max_steps}; allowed are as many or more. Give more --max_steps or --num_train_epochs, or an "
                "earlier checkpoint by --resume_from_checkpoint"
            )
        state.compute_steps(args, state.max_steps)  # HF counts by save_steps and others of the checkpoint
        self.find_best_checkpoint(args, state)
        counts = [log["skipped_steps"] for log in state.log_history if "skipped_steps" in log]
        self.trainer.skipped_steps, self.trainer.skipped_in_a_row = max(counts, default=0), 0
        if self.trainer.resumed_from is not None:
            take_rate_of_schedule(kwargs.get("lr_scheduler"))

    def find_best_checkpoint(self, args: Any, state: Any) -> None:
        """Look for the best checkpoint next to the resumed one: the run may have been moved, or begun in another
        working directory."""
        resumed_from = self.trainer.resumed_from
        if resumed_from is None or not args.load_best_model_at_end or not state.best_global_step:
            return
        best = resumed_from.parent / f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}"
        if not best.is_dir():
            raise BadInput(
                f"{best}: is missing, and holds the best state of the run so far; put it back, or begin in another "
                "--output_dir"
            )
        state.best_model_checkpoint = str(best)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if isinstance(kwargs.get("train_dataloader"), Passes):
            state.epoch = state.global_step / state.max_steps  # HF counts from where it resumed
        if self.trainer.step_was_skipped:
            should_log = control.should_log
            self.trainer.log({"skipped_steps": self.trainer.skipped_steps})  # which also resets should_log
            control.should_log = should_log
        if self.trainer.stop_requested():
            if state.is_world_process_zero:
                logger.warning("SIGTERM: saving step %d and ending", state.global_step)
            self.trainer.terminated = control.should_training_stop = control.should_save = True
            # what is due at the end of the epoch, or of the run, must come before the checkpoint is saved
            if state.epoch % 1 == 0 or state.global_step >= state.max_steps:
                control.should_log |= args.logging_strategy == IntervalStrategy.EPOCH
                control.should_evaluate |= args.eval_strategy == IntervalStrategy.EPOCH

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """Save a new best state also between the steps of regular saves, so that it can be loaded at the end."""
        name = f"eval_{str(args.metric_for_best_model).removeprefix('eval_')}"
        value = (metrics or {}).get(name)
        if value is None:
            return
        if self.trainer.ties_go_to_the_later and value == state.best_metric:
            state.best_metric = None  # HF compares after this event
        sign = 1 if args.greater_is_better else -1
        best = -math.inf if state.best_metric is None else sign * state.best_metric
        control.should_save |= args.load_best_model_at_end and sign * value > best

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After SIGTERM keep the last checkpoint: HF would load the best state and, with `save_total_limit=1`, remove
        the last one before `on_train_end`."""
        self.saved_step = state.global_step
        if self.trainer.terminated:
            for name, value in {"load_best_model_at_end": False, "save_total_limit": None}.items():
                self.changed_arguments.setdefault(name, getattr(args, name))
                setattr(args, name, value)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the state after SIGTERM where `save_strategy="best"` would not; HF calls this after every last step."""
        if self.trainer.terminated:
            control.should_log = control.should_evaluate = False
            control.should_save = self.saved_step != state.global_step

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for name, value in self.changed_arguments.items():
            setattr(args, name, value)
        self.changed_arguments = {}


def take_rate_of_schedule(scheduler: Any) -> None:
    """Set the learning rate of the next step by the schedule: a checkpoint has that of its own number of steps, which
    is 0 where a run that has ended is continued."""
    if not isinstance(scheduler, LambdaLR):
        return
    rates = [rate * factor(scheduler.last_epoch) for rate, factor in zip(scheduler.base_lrs, scheduler.lr_lambdas)]
    for group, rate in zip(scheduler.optimizer.param_groups, rates):
        group["lr"] = rate
    scheduler._last_lr = rates


class RunFingerprint(TrainerCallback, ExportableState):
    """Refuse to resume a checkpoint with other settings or other training examples; each checkpoint stores both.

    The examples matter because a checkpoint's position among them is a number.

    Args:
        settings: what decides the result of the training, as plain values.
        examples: hash of the training examples.
        newer: more settings, which checkpoints of earlier releases may not have stored.
    """

    def __init__(self, settings: Settings, examples: str, newer: Settings | None = None) -> None:
        self.newer = dict(newer or {})
        self.settings = with_version({**settings, **self.newer, EXAMPLES: examples})

    def check(self, checkpoint: Path) -> None:
        """Raise `BadInput` if a checkpoint has stored other settings or examples; before its weights are loaded."""
        callbacks = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME)).stateful_callbacks
        refuse_changes(checkpoint, self.stored_settings(callbacks), self.settings, SAME_RUN)

    def check_processes(self, of_main: Settings, process: int) -> None:
        """Raise `BadInput` if this process has other settings or examples than the main one: it would take other
        examples as its share, and another number of steps, in which the others would wait for it."""
        if found := list(differences(of_main, self.settings)):
            raise BadInput(
                f"process {process} has other settings or examples than process 0: {'; '.join(found)}; all machines "
                "must have the same files and the same command"
            )

    def stored_settings(self, callbacks: Mapping[str, Any]) -> Settings:
        """The settings stored in a checkpoint; the current ones if it has none."""
        if stored := callbacks.get(type(self).__name__):
            before = stored["args"]["settings"]
        else:  # releases 0.7 had two callbacks
            before = dict(callbacks.get("SameSettings", {"args": {"settings": {}}})["args"]["settings"])
            if rows := callbacks.get("SameRows"):
                before[EXAMPLES] = rows["args"]["rows"]
        return {**self.newer, **before} if before else self.settings

    def state(self) -> dict[str, Any]:
        return {"args": {"settings": self.settings}, "attributes": {}}


class EarlyStopping(EarlyStoppingCallback):
    """HF's callback, whose count of evaluations in a row without a better one is kept when a run is resumed."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        saved = state.stateful_callbacks.get(type(self).__name__) if state.global_step else None
        counted = (saved or {}).get("attributes", {})
        self.early_stopping_patience_counter = counted.get("early_stopping_patience_counter", 0)
        if self.early_stopping_patience_counter >= self.early_stopping_patience:
            control.should_training_stop = True

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
        super().on_evaluate(args, state, control, metrics, **kwargs)
        if control.should_training_stop and state.is_world_process_zero:
            count = self.early_stopping_patience_counter
            logger.info("step %d: early stopping after %d evaluations without a better one", state.global_step, count)


def early_stopping(patience: int | None, threshold: float) -> list[TrainerCallback]:
    """The callback of a run with these settings; none without patience."""
    return [] if patience is None else [EarlyStopping(patience, threshold)]


class ReadsCheckpoints(TrainerCallback):
    """A callback that reads checkpoints in the background.

    The trainer waits until it reads none before it removes any, and at the end; if `always`, also before each save.
    """

    always = False

    def is_reading(self) -> bool:
        """Whether a checkpoint is being read by this process."""
        return False


class TrainingTime(TrainerCallback, ExportableState):
    """Seconds of training, on the clock and of this process's CPU time, including those before the checkpoint that a
    run was resumed from."""

    def __init__(self) -> None:
        self.began, self.cpu_began = time(), process_time()  # earlier by the time before a resumed checkpoint
        self.seconds, self.cpu_seconds = 0.0, 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # at step 0 HF has stored the time since this object was made, such as that of scoring the start
        stored = state.stateful_callbacks.get(type(self).__name__, {"args": {}})["args"]
        saved = stored if state.global_step else {}
        self.began = time() - saved.get("seconds", 0.0)
        self.cpu_began = process_time() - saved.get("cpu_seconds", 0.0)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seconds, self.cpu_seconds = self.state()["args"].values()

    def state(self) -> dict[str, Any]:
        past = {"seconds": time() - self.began, "cpu_seconds": process_time() - self.cpu_began}
        return {"args": past, "attributes": {}}
