"""The nine tasks of XTREME: data, fine-tuning, predictions, scores, report."""
