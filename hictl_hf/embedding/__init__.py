"""From texts to vectors, and what an encoder looks like inside."""
