"""Logging of commands to the terminal."""

import logging

from huggingface_hub.utils.logging import disable_propagation


def log_to_terminal(ours: int = logging.INFO, others: int = logging.WARNING) -> None:
    """Log to the terminal: this package from level `ours` on, other libraries from level `others` on."""
    disable_propagation()  # of the Hub's client, which prints its warnings itself
    logging.basicConfig(level=others, format="%(message)s")
    logging.getLogger("hictl_hf").setLevel(ours)
