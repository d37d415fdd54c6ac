"""Load an encoder with fewer bits: python examples/load_quantised.py runs/demo/encoder

Prints the size of the weights and the lowest cosine to fp32 for each way. bf16 and int8 of this package convert the
layers, not the word embeddings, most of a small XLM-R. torchao's int8 needs `pip install torchao` and can be saved.
"""

import sys
from importlib.util import find_spec
from io import BytesIO
from tempfile import TemporaryDirectory

import torch
from transformers import AutoModel, PreTrainedModel, TorchAoConfig

from hictl_hf.embedding import embed_sentences, load_encoder

SENTENCES = ["the house", "das Haus", "the cat sees the house and the house is red", "paka anaona nyumba"]


def main(folder: str) -> dict[str, tuple[int, float]]:
    """Return bytes and lowest cosine of each way that works here."""
    model, tokenizer = load_encoder(folder)
    expected = embed_sentences(model, tokenizer, SENTENCES)
    models: dict[str, PreTrainedModel] = {"fp32": model}
    models["bf16, everything"] = AutoModel.from_pretrained(folder, dtype=torch.bfloat16)
    models |= {f"{precision} layers": load_encoder(folder, precision)[0] for precision in ("bf16", "int8")}
    if find_spec("torchao"):
        from torchao.quantization import Int8WeightOnlyConfig

        config = TorchAoConfig(Int8WeightOnlyConfig())
        models["int8 layers of torchao"] = AutoModel.from_pretrained(folder, quantization_config=config)
        with TemporaryDirectory() as saved:
            models["int8 layers of torchao"].save_pretrained(saved)
            models["the same, saved and loaded"] = AutoModel.from_pretrained(saved)
    reading = {name: value for name, value in model.config.to_dict().items() if name.startswith("embedding_")}
    found = {}
    for name, quantised in models.items():
        quantised.config.update(reading)  # AutoModel does not read the pooling of a sentence-transformers folder
        vectors = embed_sentences(quantised, tokenizer, SENTENCES)
        found[name] = size(quantised), float((vectors * expected).sum(1).min())
    return found


def size(model: PreTrainedModel) -> int:
    """Return the size of the saved weights in bytes."""
    torch.save(model.state_dict(), buffer := BytesIO())
    return buffer.tell()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for name, (size_in_bytes, cosine) in main(*sys.argv[1:]).items():
        print(f"{name:28} {size_in_bytes / 1e6:8.1f} MB   cosine {cosine:.4f}")
