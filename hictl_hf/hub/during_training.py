"""Push a run while it trains: after each checkpoint the model, and with it the last checkpoint or all of them.

HF's Trainer pushes from within `_save_checkpoint`, before the checkpoint is complete, and all of the output folder.
This callback pushes after the save, in the background, each time in one commit. The end of the run replaces the model
and its card (`publishing.push`); checkpoints stay.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy

from ..training.callbacks import ReadsCheckpoints
from .publishing import LAST_CHECKPOINT, Contents, commit

logger = logging.getLogger(__name__)

TO_RESUME = (  # of a checkpoint, not of its model
    "*.pt", "*.pth", "*.bin", "trainer_state.json", "manifest.json", "stream_*.json",
)  # fmt: skip
CARD = """Step {step} of {steps} of a run that has not ended. The model card follows when it has.
"""


class PushDuringTraining(ReadsCheckpoints):
    """Pushes after each save; a push that fails is logged, and the next one repeats it.

    Args:
        repository: "your-name/model", which exists.
        strategy: every_save, checkpoint (also as `last-checkpoint/`) or all_checkpoints (also as `checkpoint-N/`).
        always: a save waits for a push that has not ended; else that save is not pushed.
    """

    def __init__(self, repository: str, strategy: str, always: bool = False) -> None:
        self.repository, self.strategy, self.always = repository, HubStrategy(strategy), always
        self.push: Future[str] | None = None

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero or state.is_hyper_param_search:
            return
        if self.is_reading():
            logger.info("step %d: not pushed, as the last push has not ended", state.global_step)
            return
        folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        contents = self.contents_of(folder, CARD.format(step=state.global_step, steps=state.max_steps))
        message = f"Training in progress, step {state.global_step}"
        self.push = HfApi().run_as_future(commit, self.repository, contents, message)
        self.push.add_done_callback(report)

    def is_reading(self) -> bool:
        return self.push is not None and not self.push.done()

    def contents_of(self, checkpoint: Path, card: str) -> Contents:
        """The files of a push by their paths in the repository."""
        files = {path.relative_to(checkpoint).as_posix(): path for path in checkpoint.rglob("*") if path.is_file()}
        contents: Contents = {"README.md": card.encode()}
        contents |= {name: path for name, path in files.items() if not any(fnmatch(name, part) for part in TO_RESUME)}
        folders = {HubStrategy.CHECKPOINT: LAST_CHECKPOINT, HubStrategy.ALL_CHECKPOINTS: checkpoint.name}
        if place := folders.get(self.strategy):
            contents |= {f"{place}/{name}": path for name, path in files.items()}
        return contents


def report(job: Future[str]) -> None:
    """Log a push that failed; the training goes on."""
    if error := job.exception():
        logger.warning("a checkpoint was not pushed (%s: %s); the training goes on", type(error).__name__, error)


def push_during_training(repository: str | None, strategy: str, always: bool) -> Sequence[PushDuringTraining]:
    """The callback of a run with these settings; none if it is pushed at its end or not at all."""
    if repository is None or HubStrategy(strategy) == HubStrategy.END:
        return []
    return [PushDuringTraining(repository, strategy, always)]
