"""From the name of a source to a batch: formats, cleaning, sampling, tokenization, collators."""
