"""Logging of commands to the terminal."""

import logging
from typing import TYPE_CHECKING

from huggingface_hub.utils.logging import disable_propagation

from ..errors import without_controls
from ..processes import hide_bars, is_first

if TYPE_CHECKING:
    from transformers import TrainingArguments


class PlainFormatter(logging.Formatter):
    """Formats what is logged, without control characters, which would act on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return without_controls(super().format(record))


def level_of(args: "TrainingArguments") -> int:
    """From which level on this package logs in a process of a run: by default INFO in the main one, else WARNING."""
    level, given = (logging.INFO, args.log_level) if args.should_log else (logging.WARNING, args.log_level_replica)
    return level if given == "passive" else max(level, args.get_process_log_level())


def log_to_terminal(ours: int = logging.INFO, others: int = logging.WARNING) -> None:
    """Log to the terminal: this package from level `ours` on, other libraries from level `others` on."""
    disable_propagation()  # of the Hub's client, which prints its warnings itself
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("%(message)s"))
    logging.basicConfig(level=others, handlers=[handler])
    logging.getLogger("hictl_hf").setLevel(ours)
    if not is_first():
        hide_bars()
