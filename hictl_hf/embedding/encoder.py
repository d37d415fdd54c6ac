"""Sentences to vectors: which layer and pooling a model is read at, in which numbers it is computed, and how sentences
share a batch. What the vectors are compared for is left to `retrieval` and `mining`, files to `embed`.

    from hictl_hf.embedding.encoder import embed_sentences, load_encoder
    model, tokenizer = load_encoder("runs/demo/checkpoint")
    vectors = embed_sentences(model, tokenizer, ["the house", "das Haus"])
"""

import copy
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    RobertaModel,
    XLMRobertaModel,
)
from transformers.masking_utils import create_bidirectional_mask
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from ..data.tokenization import list_of_texts, token_batches
from ..dtypes import warn_where_slow
from ..errors import BadInput, as_bad_input, short_repr
from ..hub.loading import check_sizes, weights_of
from ..models.modeling_hictl import HictlForPreTraining
from ..parsing import refuse_run

logger = logging.getLogger(__name__)

Precision = Literal["fp32", "bf16", "int8"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
MODEL_TYPES = ("hictl", "xlm-roberta")
KIND = "a folder or Hub name of a HiCTL or XLM-R model, its weights in safetensors"
POOLINGS = ("cls", "mean", "mean without special tokens", "projection")
NEEDED = re.compile(r"embeddings\.|encoder\.layer\.|projection\.")
LONGEST = 256  # tokens of a sentence that are read
DENSE = "2_Dense/model.safetensors"
CHARACTERS = 100  # read of a text for each token that is; a word of XLM-R has 16 at most, a text any number
BY_LAYER = (XLMRobertaModel, RobertaModel, BertModel)  # and HictlModel: whose layers are called one by one
TOKENS_AT_ONCE = {"cpu": 1024, "cuda": 32768}  # on a CPU more is slower, its caches being small


class Pooling(NamedTuple):
    """Where a sentence vector is read: by which pooling ("cls", "mean", "mean without special tokens",
    "projection") of which layer (0: embeddings)."""

    mode: str
    layer: int


def all_poolings(layers: Sequence[int], last_layer: int, projection: bool) -> list[Pooling]:
    """First token and mean of each layer, and the projection r, which reads the last layer, where there is one. Of the
    embeddings the mean alone: their first token is the same for every sentence."""
    poolings = [Pooling(pooling, layer) for layer in layers for pooling in ("cls", "mean")]
    poolings = [pooling for pooling in poolings if pooling != Pooling("cls", 0)]
    return poolings + ([Pooling("projection", last_layer)] if projection else [])


def own_pooling(config: PreTrainedConfig) -> Pooling:
    """What a model says of itself in `embedding_pooling` and `embedding_layer`; of one that does not, a plain XLM-R,
    the mean of the last layer."""
    pooling, layer = getattr(config, "embedding_pooling", None), getattr(config, "embedding_layer", None)
    if pooling is None:
        tell_of_the_mean()
    if pooling == "first token":  # as encoders exported before 0.8 say it
        pooling = "cls"
    return Pooling(pooling or "mean", config.num_hidden_layers if layer is None else layer)


@cache
def tell_of_the_mean() -> None:
    """Once."""
    logger.info("the model does not say how it is to be read; read is the mean of its last layer")


def load_encoder(
    name_or_folder: str | Path, precision: Precision = "fp32", device: str | torch.device | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A HiCTL or XLM-R model, ready to embed, and its tokenizer. Weights are read from safetensors alone, and no code
    that comes with them is run.

    Args:
        name_or_folder: of a checkpoint of ours, a plain encoder, or on the Hub.
        precision: "int8" is for CPUs.
        device: a GPU where there is one without it, but for int8.
    """
    check_device(device)
    device = torch.device(device or ("cuda" if torch.cuda.is_available() and precision != "int8" else "cpu"))
    name = str(name_or_folder)
    refuse_run(name)
    with as_bad_input(name, KIND, "Check the name; write other weights anew by model.save_pretrained(folder)."):
        values = check_model_type(name)
        if not weights_of(name):
            raise BadInput(f"{name}: has no weights in safetensors, and pickles can hold code; allowed is {KIND}.")
        check_sizes(name)
        whole = "HictlForPreTraining" in (values.get("architectures") or ())
        with without_load_report():
            model, report = (HictlForPreTraining if whole else AutoModel).from_pretrained(
                name, dtype=torch.float32, use_safetensors=True, output_loading_info=True, trust_remote_code=False
            )
        if "pooler.dense.weight" in report["missing_keys"]:
            encoder_of(model).pooler = None  # its random weights are no projection
        if not whole and values.get("embedding_pooling") == "projection" and (weight := dense_weight(name)) is not None:
            model.projection = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
            model.projection.weight = nn.Parameter(weight)
        if lacking := [weight for weight in sorted(report["missing_keys"]) if NEEDED.search(weight)]:
            raise BadInput(f"{name}: has no weights for {len(lacking)} parts, such as {lacking[0]}; allowed is {KIND}.")
        model, tokenizer = model.to(device).eval(), AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    encoder = encoder_of(model)
    encoder.encoder.layer = converted(encoder.encoder.layer, precision)
    return model, tokenizer


def dense_weight(name: str) -> Tensor | None:
    """(r, d) f as the folder has it for sentence-transformers, whose trainer changes it there and not in the pooler."""
    path = cached_file(name, DENSE, _raise_exceptions_for_missing_entries=False)
    return None if path is None else load_file(path)["linear.weight"]


def check_model_type(name: str) -> dict[str, Any]:
    """The configuration of a model; `BadInput` where it is none of HiCTL's or XLM-R's."""
    values, _ = PreTrainedConfig.get_config_dict(name)
    if (found := values.get("model_type")) not in MODEL_TYPES:
        raise BadInput(f"{name}: is a model of type {short_repr(found)}; allowed is {KIND}.")
    return values


def check_device(device: str | torch.device | None) -> None:
    """Raise `BadInput` for a device that is not there."""
    try:
        torch.empty(0, device=device)
    except Exception as error:  # of a PyTorch without CUDA an AssertionError
        found = f"device is {short_repr(str(device))}, which cannot be used ({' '.join(str(error).split())[:200]})"
        allowed = "allowed are cpu and cuda" if torch.cuda.is_available() else "allowed here is cpu"
        raise BadInput(f"{found}; {allowed}. Choose that, or leave it out.") from error


@contextmanager
def without_load_report() -> Iterator[None]:
    """Of heads and poolers that the weights have or lack, and that are not read."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)


def embed_sentences(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Iterable[str],
    pooling: Pooling | None = None,
    *,
    normalize: bool = True,
    precision: Precision | None = None,
    max_tokens: int | None = None,
    max_length: int = LONGEST,
    progress: bool = False,
) -> NDArray[np.float32]:
    """A vector for each sentence.

    Args:
        model: a HiCTL or XLM-R encoder, or a model with such an encoder in `roberta`; "projection" needs
            `HictlForPreTraining`. Other encoders are called whole, which takes longer where an inner layer is read.
        sentences: texts, in any order; each distinct text is encoded once.
        pooling: the model's own without it.
        normalize: to length 1, so that products are cosines.
        precision: of the layers: "fp32", "bf16" or, on a CPU, "int8"; as the model is without it. Each call converts a
            copy of the layers; `load_encoder` converts them once.
        max_tokens: of a batch, padding included; 32768 on a GPU, else 1024.
        max_length: in tokens, the two special ones included, at least 3; the rest of a sentence is not read.
        progress: show a bar.

    Returns:
        (sentences, d), rows in the order given.
    """
    pooling = pooling or own_pooling(model.config)
    vectors = embed_at_poolings(
        model, tokenizer, sentences, [pooling], precision=precision, max_tokens=max_tokens, max_length=max_length,
        progress=progress,
    )[pooling]  # fmt: skip
    if normalize:
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return vectors


@torch.inference_mode()
def embed_at_poolings(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Iterable[str],
    poolings: Sequence[Pooling],
    *,
    precision: Precision | None = None,
    max_tokens: int | None = None,
    max_length: int = LONGEST,
    progress: bool = False,
) -> dict[Pooling, NDArray[np.float32]]:
    """Sentences read at several places in one pass: for each an array (sentences, d), not normalised.

    Other arguments are those of `embed_sentences`. Layers above the highest that is read are not computed.
    """
    if not (sentences := list_of_texts(sentences)):
        raise BadInput("there is no sentence to embed; give at least one.")
    for name, limit, least in (("max_length", max_length, 3), ("max_tokens", max_tokens, 1)):
        if limit is not None and limit < least:
            raise BadInput(f"{name} is {limit}; allowed is {least} or more.")
    check_poolings(model, poolings)
    encoder, training, device = encoder_of(model), model.training, model.device
    distinct = list(dict.fromkeys(sentences))
    longest = min(max_length, model.config.max_position_embeddings - 2)  # XLM-R's positions start at 2
    heads = [text[: longest * CHARACTERS] for text in distinct]
    tokens = tokenizer(heads, truncation=True, max_length=longest, return_attention_mask=False)["input_ids"]
    batches = list(token_batches(list(map(len, tokens)), max_tokens or TOKENS_AT_ONCE.get(device.type, 1024)))
    parts: dict[Pooling, list[Tensor]] = {pooling: [] for pooling in poolings}
    model.eval()
    try:
        layers = layers_of(encoder, max(pooling.layer for pooling in poolings), precision)
        with tqdm(total=len(distinct), desc="embed", disable=None if progress else True, leave=False) as bar:
            for batch in batches:
                rows = [torch.tensor(tokens[number]) for number in batch]
                ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=encoder.config.pad_token_id)
                lengths = torch.tensor([[len(row)] for row in rows])
                number = torch.arange(ids.shape[1])  # of a token in its row
                masks = {"mean without special tokens": ((number > 0) & (number < lengths - 1)).to(device)}
                mask = (number < lengths).to(device)
                for layer, hidden in enumerate(hidden_states(encoder, layers, ids.to(device), mask)):
                    for pooling in poolings:
                        if pooling.layer == layer:
                            taking_part = masks.get(pooling.mode, mask)
                            parts[pooling].append(pool(model, hidden, taking_part, pooling.mode).float())
                bar.update(len(batch))
    finally:
        model.train(training)
    position = {distinct[number]: row for row, number in enumerate(number for batch in batches for number in batch)}
    wanted = [position[text] for text in sentences]
    return {pooling: torch.cat(part).cpu().numpy()[wanted] for pooling, part in parts.items()}


def hidden_states(encoder: PreTrainedModel, layers: nn.ModuleList, ids: Tensor, mask: Tensor) -> Iterator[Tensor]:
    """(n, T, d) the embeddings of padded rows (n, T), then what each layer makes of them."""
    if not isinstance(encoder, BY_LAYER):
        yield from layers[0](input_ids=ids, attention_mask=mask.long(), output_hidden_states=True).hidden_states
        return
    hidden = encoder.embeddings(input_ids=ids)
    yield hidden
    if layers:
        hidden = hidden.to(dtype_of(layers))
    attention_mask = None if mask.all() else create_bidirectional_mask(encoder.config, hidden, mask)
    for layer in layers:
        hidden = layer(hidden, attention_mask)
        yield hidden


def pool(model: PreTrainedModel, hidden: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """(n, d) one vector for each row of hidden states (n, T, d); what is masked by 0 takes no part in a mean."""
    if pooling.startswith("mean"):
        weights = mask.unsqueeze(-1).float()
        return (hidden.float() * weights).sum(1) / weights.sum(1).clamp_min(1)
    first = hidden[:, 0].clone()  # a view would keep all of the hidden states
    if pooling != "projection":
        return first
    projection = projection_of(model)
    return projection(first.to(projection.weight.dtype))


def projection_of(model: PreTrainedModel) -> Any:
    """f of a model, which a plain encoder that we exported has in its pooler; `None` where there is none."""
    if hasattr(model, "projection"):
        return model.projection
    ours = model.config.model_type == "xlm-roberta" and hasattr(model.config, "embedding_pooling")
    pooler = getattr(encoder_of(model), "pooler", None) if ours else None
    return None if pooler is None else pooler.dense


def check_poolings(model: PreTrainedModel, poolings: Sequence[Pooling]) -> None:
    """Raise `BadInput` for a pooling that the model does not have."""
    last = model.config.num_hidden_layers
    for pooling in poolings:
        if pooling.mode not in POOLINGS:
            raise BadInput(f"the pooling is {short_repr(pooling.mode)}; allowed are {', '.join(POOLINGS)}.")
        if pooling.mode == "projection" and projection_of(model) is None:
            raise BadInput(
                "the pooling is the projection, which this model does not have; allowed are 'cls' and 'mean', "
                "or a whole checkpoint: load_encoder, or HictlForPreTraining.from_pretrained."
            )
        least = last if pooling.mode == "projection" else 0
        if not least <= pooling.layer <= last:
            raise BadInput(f"the layer read for {pooling.mode!r} is {pooling.layer}; allowed is {least} to {last}.")


def encoder_of(model: PreTrainedModel) -> Any:
    """The encoder of a model, which may be all of it."""
    return getattr(model, "roberta", model)


# --- number formats ---------------------------------------------------------------------------------------------------


class QuantizedLinear(nn.Module):
    """A linear layer in int8: its weights with a scale for each output, its inputs, rounded as they come, with one for
    each token. PyTorch's dynamic quantisation has one scale for all tokens of a batch: less exact, and what is computed
    for a sentence depends on those beside it."""

    scales: Tensor
    weight: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, self.bias = linear.weight.detach().float(), linear.bias
        scales = (weight.abs().amax(1) / 127).clamp_min(1e-12)
        self.register_buffer("scales", scales)
        self.register_buffer("weight", (weight / scales.unsqueeze(1)).round().to(torch.int8))

    def forward(self, states: Tensor) -> Tensor:
        rows = states.flatten(0, -2)  # (tokens, inputs)
        scales = (rows.abs().amax(1, keepdim=True) / 127).clamp_min(1e-12)
        products = torch._int_mm((rows / scales).round_().to(torch.int8), self.weight.T) * scales
        outputs = products.mul_(self.scales) if self.bias is None else products.mul_(self.scales).add_(self.bias)
        return outputs.view(*states.shape[:-1], -1)


def layers_of(encoder: Any, last: int, precision: Precision | None) -> nn.ModuleList:
    """The layers up to the last that is read, in this number format; of an encoder that is called whole, itself."""
    by_layer = isinstance(encoder, BY_LAYER)
    if precision == "int8" and not by_layer:
        known = ", ".join(kind.__name__ for kind in BY_LAYER)
        raise BadInput(
            f"precision is int8 and the model a {type(encoder).__name__}; allowed are {known}, or fp32 and bf16."
        )
    layers = encoder.encoder.layer[:last] if by_layer else nn.ModuleList([encoder])
    return layers if precision is None else converted(layers, precision)


def converted(layers: nn.ModuleList, precision: Precision) -> nn.ModuleList:
    """The layers in this number format: themselves if they are in it, else a copy."""
    if precision not in get_args(Precision):
        raise BadInput(f"precision is {short_repr(precision)}; allowed are {', '.join(get_args(Precision))}.")
    found = set(map(format_of, layers))
    if found <= {precision}:
        return layers
    if "int8" in found:
        raise BadInput(f"precision is {precision}, and the model is in int8; load it anew.")
    device = next(layers.parameters()).device
    warn_where_slow(precision, device)
    if precision != "int8":
        return copy.deepcopy(layers).to(DTYPES[precision])
    if device.type != "cpu":
        raise BadInput(f"precision is int8 and the device {device}; allowed is int8 on a CPU. Use bf16 on a GPU.")
    return quantized(copy.deepcopy(layers).float())


def format_of(layer: nn.Module) -> str:
    if any(isinstance(module, QuantizedLinear) for module in layer.modules()):
        return "int8"
    return next((name for name, dtype in DTYPES.items() if dtype == dtype_of(layer)), "another")


def quantized(module: nn.Module) -> Any:
    """The module with `QuantizedLinear` in place of its linear layers."""
    for name, child in module.named_children():
        setattr(module, name, QuantizedLinear(child) if type(child) is nn.Linear else quantized(child))
    return module


def dtype_of(layer: nn.Module) -> torch.dtype:
    return next(layer.parameters()).dtype
