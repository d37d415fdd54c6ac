"""What commands log to the terminal."""

import logging


def log_to_terminal(ours: int = logging.INFO, others: int = logging.WARNING) -> None:
    """Print log messages of this package and of other libraries from these levels on."""
    logging.basicConfig(level=others, format="%(message)s")
    logging.getLogger("hictl_hf").setLevel(ours)
