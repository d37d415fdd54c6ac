"""Export an encoder to ONNX with PyTorch's exporter: from token ids to the vectors of `embed_sentences`.

The folder has `model.onnx`, its weights in `model.onnx.data`, the tokenizer, with the `max_length` of
`embed_sentences`, and `embedding.json`, which says how sentences are read. Layers above the pooled one are not
exported. Text is no part of the graph: put the `prompt` of `embedding.json` before each sentence, and lower-case it if
`lower_case` is true. To embed sentences without PyTorch:

    session = onnxruntime.InferenceSession("runs/demo-onnx/model.onnx")
    batch = tokenizer(sentences, padding=True, truncation=True, return_tensors="np")
    vectors = session.run(["sentence_embedding"], dict(batch))[0]

A tokenizer alone reads "</s>" in a text as a special token, which is text in `embed_sentences`.

This is not the ONNX backend of sentence-transformers: that needs optimum, which does not support transformers 5 yet.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.text_encoding import special_tokens_around
from ..data.tokenization import save_tokenizer
from ..errors import BadInput
from ..files import atomic_directory, new_folder, write_json
from .pooling import (
    Pooling,
    check_poolings,
    chosen_prompt,
    encoder_of,
    own_max_length,
    own_normalize,
    own_pooling,
    pool,
    projection_of,
)

logger = logging.getLogger(__name__)

OPSET = 18
INPUTS = ("input_ids", "attention_mask")
READING = "embedding.json"


class SentenceEncoder(nn.Module):
    """Encoder, pooling and normalisation as one module: (n, T) ids and attention mask to (n, d) vectors.

    Args:
        around: special tokens before and after a text.
    """

    def __init__(self, model: PreTrainedModel, pooling: Pooling, around: tuple[int, int] = (1, 1)) -> None:
        super().__init__()
        self.before, self.after = around
        check_poolings(model, [pooling])
        self.encoder, self.layer = deepcopy(encoder_of(model)), pooling.layer
        self.projection = deepcopy(projection_of(model))
        self.pooling, self.normalize = pooling.mode, own_normalize(model.config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        # the export leaves out the layers above, which nothing reads
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True)
        hidden = states.hidden_states[self.layer]
        if self.pooling == "mean without special tokens":
            position, last = attention_mask.cumsum(1), attention_mask.sum(1, keepdim=True)  # positions count from 1
            attention_mask = attention_mask * (position > self.before) * (position <= last - self.after)
        vectors = pool(self, hidden, attention_mask, self.pooling)
        return nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors


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
    check_packages()
    folder, pooling = new_folder(folder), pooling or own_pooling(model.config)
    encoder = SentenceEncoder(model, pooling, special_tokens_around(tokenizer)).eval()
    tokenizer = deepcopy(tokenizer)
    tokenizer.padding_side = "right"  # so the first column holds the first tokens
    tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = list(INPUTS)  # BERT's token types are 0
    batch = tokenizer(["a", "a b c d"], padding=True, return_tensors="pt")
    shape = {0: torch.export.Dim("sentences"), 1: torch.export.Dim("tokens")}
    tokenizer.model_max_length = own_max_length(model.config)
    with atomic_directory(folder) as draft:
        with without_warnings():
            torch.onnx.export(
                encoder, tuple(batch[name] for name in INPUTS), draft / "model.onnx", input_names=list(INPUTS),
                output_names=["sentence_embedding"], opset_version=OPSET, dynamo=True, dynamic_shapes=(shape, shape),
                verbose=False,
            )  # fmt: skip
        save_tokenizer(tokenizer, draft)
        write_reading(draft, model, pooling)
    return folder / "model.onnx"


@contextmanager
def without_warnings() -> Iterator[None]:
    """Silence the exporter of PyTorch, whose log also warns if torchvision is missing."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def check_packages() -> None:
    """Raise `BadInput` if the exporter of PyTorch lacks a package."""
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise BadInput("ONNX needs packages that are not installed: pip install 'hictl_hf[onnx]'") from error


def write_reading(folder: Path, model: PreTrainedModel, pooling: Pooling) -> None:
    """Write `embedding.json`: how sentences are read; log what the graph does not do: prompt, lower-casing."""
    prompt, prompts = chosen_prompt(model.config), getattr(model.config, "embedding_prompts", None) or {}
    lower_case = getattr(model.config, "embedding_lower_case", False)
    reading = {
        **pooling._asdict(), "max_length": own_max_length(model.config), "normalize": own_normalize(model.config),
        "lower_case": lower_case, "prompt": prompt, "prompts": prompts,
    }  # fmt: skip
    write_json(folder / READING, reading)
    if prompt:
        logger.warning("%s: a prompt is no part of the graph; put %r before each sentence", READING, prompt)
    if lower_case:
        logger.warning("%s: lower-casing is no part of the graph; lower-case each sentence", READING)
