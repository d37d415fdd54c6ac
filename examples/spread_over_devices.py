"""Load an encoder that one device cannot hold: python examples/spread_over_devices.py runs/demo/encoder

On a machine with GPUs `device_map="auto"` fills them one after the other, then the memory of the CPU, then the disk.
Here the embeddings stay in memory, and each layer is read from the disk at its turn: slow, and the same vectors.
"""

import sys
from tempfile import TemporaryDirectory

import torch
from transformers import AutoModel, AutoTokenizer

import hictl_hf  # noqa: F401  the Auto classes know our checkpoints by it

SENTENCES = ["the house", "das Haus", "the cat sees the house and the house is red"]


def main(folder: str) -> tuple[dict[str, str], float]:
    """Where the parts of the encoder are, and how far its vectors are from those of the encoder in memory."""
    batch = AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    whole = AutoModel.from_pretrained(folder).eval()
    places = {name: "cpu" if name == "embeddings" else "disk" for name, part in whole.named_children()}
    with TemporaryDirectory() as offload, torch.no_grad():
        spread = AutoModel.from_pretrained(folder, device_map=places, offload_folder=offload).eval()
        vectors, expected = (model(**batch).last_hidden_state[:, 0] for model in (spread, whole))
    return spread.hf_device_map, float((vectors - expected).abs().max())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(*main(*sys.argv[1:]))
