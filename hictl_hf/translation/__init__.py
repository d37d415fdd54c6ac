"""Machine translation with the encoder: data, training, beam search, scores, report."""
