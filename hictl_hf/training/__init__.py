"""The fault-tolerant Trainer and what makes a checkpoint complete; it knows no task."""
