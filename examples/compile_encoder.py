"""Compile an encoder: python examples/compile_encoder.py runs/demo/encoder

The first batch waits for PyTorch's inductor, which needs a C++ compiler on a CPU. `dynamic=True` makes one program
for all batch sizes.
"""

import sys

import torch
from transformers import AutoModel, AutoTokenizer

import hictl_hf  # noqa: F401  registers our classes with the Auto classes

BATCHES = [["the house"], ["the house", "das Haus und die Katze"], ["a house"] * 5]


def main(folder: str) -> float:
    """Return the largest difference between the vectors of the compiled and the plain encoder."""
    tokenizer, encoder = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    compiled, farthest = torch.compile(encoder, dynamic=True), 0.0
    with torch.no_grad():
        for sentences in BATCHES:
            batch = tokenizer(sentences, padding=True, return_tensors="pt")
            vectors, expected = (model(**batch).last_hidden_state[:, 0] for model in (compiled, encoder))
            farthest = max(farthest, float((vectors - expected).abs().max()))
    return farthest


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print("largest difference:", main(*sys.argv[1:]))
