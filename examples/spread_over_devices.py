"""Load an encoder that one device cannot hold: python examples/spread_over_devices.py runs/demo/encoder

On a machine with GPUs `device_map="auto"` fills the GPUs, then CPU memory, then the disk. Here the embeddings stay
in memory, and each layer is read from disk when it is needed: slow, with equal vectors.
"""

import sys
from tempfile import TemporaryDirectory

import torch
from transformers import AutoModel, AutoTokenizer

import hictl_hf  # noqa: F401  registers our classes with the Auto classes

SENTENCES = ["the house", "das Haus", "the cat sees the house and the house is red"]


def main(folder: str) -> tuple[dict[str, str], float]:
    """Return where the parts of the encoder are, and the largest difference to the encoder in memory."""
    batch = AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    encoder = AutoModel.from_pretrained(folder).eval()
    devices = {name: "cpu" if name == "embeddings" else "disk" for name, part in encoder.named_children()}
    with TemporaryDirectory() as offload, torch.no_grad():
        spread = AutoModel.from_pretrained(folder, device_map=devices, offload_folder=offload).eval()
        vectors, expected = (model(**batch).last_hidden_state[:, 0] for model in (spread, encoder))
    return spread.hf_device_map, float((vectors - expected).abs().max())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(*main(*sys.argv[1:]))
