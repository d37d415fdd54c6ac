"""Loading checkpoints safely, model cards, publishing."""
