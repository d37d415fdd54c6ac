"""The evidence of docs/results.md and docs/translation.md: what was run, on what, and what was found."""
