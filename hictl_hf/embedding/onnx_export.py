"""An encoder for ONNX, by PyTorch's own exporter: token ids in, sentence vectors of length 1 out, those of
`embed_sentences` at the same pooling. Layers above the one that is read are left out.

    hictl export-onnx --model runs/demo/checkpoint --output runs/demo-onnx

In the folder are `model.onnx`, its weights in `model.onnx.data`, and the tokenizer, which cuts sentences as
`embed_sentences` does. The vectors of some sentences, without PyTorch:

    session = onnxruntime.InferenceSession("runs/demo-onnx/model.onnx")
    batch = tokenizer(sentences, padding=True, truncation=True, return_tensors="np")
    vectors = session.run(["sentence_embedding"], dict(batch))[0]

The ONNX back-end of sentence-transformers is another thing: it needs optimum, which does not yet accept transformers 5.
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
    """(n, T) ids and their mask to (n, d) vectors of length 1."""

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
    """Write the encoder for ONNX, opset 18, into a folder, which must be new or empty; returns the path of the model.

    Args:
        model: in float32, on a CPU.
        pooling: the model's own without it.
    """
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise BadInput("ONNX needs packages that are not installed: pip install 'hictl_hf[onnx]'") from error
    folder = new_folder(folder)
    encoder = SentenceEncoder(model, pooling or own_pooling(model.config)).eval()
    tokenizer = deepcopy(tokenizer)
    tokenizer.padding_side = "right"  # the first token is read in the first column
    batch = tokenizer(["a", "a b c d"], padding=True, return_tensors="pt")
    shape = {0: torch.export.Dim("sentences"), 1: torch.export.Dim("tokens")}
    log = logging.getLogger("torch.onnx._internal.exporter._registration")  # warns that torchvision is missing
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
