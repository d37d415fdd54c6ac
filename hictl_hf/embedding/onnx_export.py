"""Export an encoder to ONNX with PyTorch's exporter: from token ids to the unit vectors of `embed_sentences`.

    hictl export-onnx --model runs/demo/checkpoint --output runs/demo-onnx

The folder has `model.onnx`, its weights in `model.onnx.data`, and the tokenizer, with the `max_length` of
`embed_sentences`. Layers above the pooled one are not exported. To embed sentences without PyTorch:

    session = onnxruntime.InferenceSession("runs/demo-onnx/model.onnx")
    batch = tokenizer(sentences, padding=True, truncation=True, return_tensors="np")
    vectors = session.run(["sentence_embedding"], dict(batch))[0]

This is not the ONNX backend of sentence-transformers: that needs optimum, which does not support transformers 5 yet.
"""

import logging
import warnings
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import BadInput
from ..files import new_folder
from .encoder import LONGEST, Pooling, check_poolings, encoder_of, own_pooling, pool, projection_of

OPSET = 18
INPUTS = ("input_ids", "attention_mask")


class SentenceEncoder(nn.Module):
    """Encoder and pooling as one module: (n, T) ids and attention mask to (n, d) unit vectors."""

    def __init__(self, model: PreTrainedModel, pooling: Pooling) -> None:
        super().__init__()
        check_poolings(model, [pooling])
        self.encoder = deepcopy(encoder_of(model))
        self.encoder.encoder.layer = self.encoder.encoder.layer[: pooling.layer]
        self.projection = deepcopy(projection_of(model))
        self.pooling = pooling.mode

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        if self.pooling == "mean without special tokens":
            position, last = attention_mask.cumsum(1), attention_mask.sum(1, keepdim=True)  # positions count from 1
            attention_mask = attention_mask * (position > 1) * (position < last)
        return nn.functional.normalize(pool(self, hidden, attention_mask, self.pooling), dim=-1)


def export_onnx(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: str | Path, pooling: Pooling | None = None
) -> Path:
    """Export the encoder to ONNX (opset 18) in a new or empty folder; returns the path of the model.

    Args:
        model: in float32, on a CPU.
        tokenizer: a copy padded on the right is saved.
        pooling: `None`: that of the model's configuration.

    Raises:
        BadInput: a package is missing, the folder is not empty, or the model lacks the pooling.
    """
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise BadInput("ONNX needs packages that are not installed: pip install 'hictl_hf[onnx]'") from error
    folder = new_folder(folder)
    encoder = SentenceEncoder(model, pooling or own_pooling(model.config)).eval()
    tokenizer = deepcopy(tokenizer)
    tokenizer.padding_side = "right"  # so the first column holds the first tokens
    batch = tokenizer(["a", "a b c d"], padding=True, return_tensors="pt")
    shape = {0: torch.export.Dim("sentences"), 1: torch.export.Dim("tokens")}
    log = logging.getLogger("torch.onnx._internal.exporter._registration")  # warns if torchvision is missing
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                encoder, tuple(batch[name] for name in INPUTS), folder / "model.onnx", input_names=list(INPUTS),
                output_names=["sentence_embedding"], opset_version=OPSET, dynamo=True, dynamic_shapes=(shape, shape),
                verbose=False,
            )  # fmt: skip
    finally:
        log.setLevel(level)
    tokenizer.model_max_length = min(LONGEST, model.config.max_position_embeddings - 2)
    tokenizer.save_pretrained(folder)
    return folder / "model.onnx"
