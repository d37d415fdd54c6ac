"""The model classes and what they compute: exactly the files that travel to the Hub with a checkpoint."""
