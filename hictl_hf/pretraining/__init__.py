"""Pre-training as in the paper: arguments, trainer, run, report."""
