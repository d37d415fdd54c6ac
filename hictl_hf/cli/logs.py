"""Logging of commands to the terminal."""

import logging


def log_to_terminal(ours: int = logging.INFO, others: int = logging.WARNING) -> None:
    """Log to the terminal: this package from level `ours` on, other libraries from level `others` on."""
    logging.basicConfig(level=others, format="%(message)s")
    logging.getLogger("hictl_hf").setLevel(ours)
