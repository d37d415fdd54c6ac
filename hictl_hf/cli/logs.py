"""Logging of commands to the terminal."""

import logging

from huggingface_hub.utils.logging import disable_propagation

from ..errors import without_controls


class PlainFormatter(logging.Formatter):
    """Formats what is logged, without control characters, which would act on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return without_controls(super().format(record))


def log_to_terminal(ours: int = logging.INFO, others: int = logging.WARNING) -> None:
    """Log to the terminal: this package from level `ours` on, other libraries from level `others` on."""
    disable_propagation()  # of the Hub's client, which prints its warnings itself
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("%(message)s"))
    logging.basicConfig(level=others, handlers=[handler])
    logging.getLogger("hictl_hf").setLevel(ours)
