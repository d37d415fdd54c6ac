"""Load an encoder with fewer bits: python examples/load_quantised.py runs/demo/encoder

Prints, for each way, how many bytes the weights take and the least cosine between its vectors and those in fp32. Our
bf16 and int8 convert the layers and leave the word embeddings, most of a small XLM-R, as they are. torchao's int8 needs
`pip install torchao`; what it made can be saved.
"""

import sys
from importlib.util import find_spec
from io import BytesIO
from tempfile import TemporaryDirectory

import torch
from transformers import AutoModel, PreTrainedModel, TorchAoConfig

from hictl_hf.embedding.encoder import embed_sentences, load_encoder

SENTENCES = ["the house", "das Haus", "the cat sees the house and the house is red", "paka anaona nyumba"]


def main(folder: str) -> dict[str, tuple[int, float]]:
    """Bytes and least cosine of each way that works here."""
    model, tokenizer = load_encoder(folder)
    expected = embed_sentences(model, tokenizer, SENTENCES)
    models: dict[str, PreTrainedModel] = {"fp32": model}
    models["bf16, everything"] = AutoModel.from_pretrained(folder, dtype=torch.bfloat16)
    models |= {f"{precision} layers": load_encoder(folder, precision)[0] for precision in ("bf16", "int8")}
    if find_spec("torchao"):
        from torchao.quantization import Int8WeightOnlyConfig

        settings = TorchAoConfig(Int8WeightOnlyConfig())
        models["int8 layers of torchao"] = AutoModel.from_pretrained(folder, quantization_config=settings)
        with TemporaryDirectory() as saved:
            models["int8 layers of torchao"].save_pretrained(saved)
            models["the same, saved and loaded"] = AutoModel.from_pretrained(saved)
    found = {}
    for name, quantised in models.items():
        vectors = embed_sentences(quantised, tokenizer, SENTENCES)
        found[name] = size(quantised), float((vectors * expected).sum(1).min())
    return found


def size(model: PreTrainedModel) -> int:
    """Bytes of the weights, however they are kept."""
    torch.save(model.state_dict(), buffer := BytesIO())
    return buffer.tell()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for name, (size_in_bytes, cosine) in main(*sys.argv[1:]).items():
        print(f"{name:28} {size_in_bytes / 1e6:8.1f} MB   cosine {cosine:.4f}")
