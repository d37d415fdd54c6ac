"""How a model's configuration says that its sentences are read, and how hidden states become their vectors.

`embedding_pooling` and `embedding_layer` say what is read, `embedding_max_length` where a sentence is cut,
`embedding_prompt` what is put before it, `embedding_prompts` the prompts by name, `embedding_lower_case` whether it is
lower-cased, `embedding_normalize` whether its vector has length 1. `load_encoder` sets them from the files of
sentence-transformers, if the folder has them.
"""

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from tokenizers import normalizers
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from ..errors import BadInput, short_repr
from ..models.families import longest_input

logger = logging.getLogger(__name__)

POOLINGS = ("cls", "mean", "mean without special tokens", "projection")
LONGEST = 256  # tokens, where the model states no other number; longer sentences are cut


class Pooling(NamedTuple):
    """Pooling mode ("cls", "mean", "mean without special tokens", "projection") and layer (0: embeddings)."""

    mode: str
    layer: int


class DenseLayers(nn.Sequential):
    """Dense layers that a sentence-transformers folder puts on the first token ("cls") or on the mean of the tokens.

    They are read by the pooling "projection".
    """

    def __init__(self, pooling: str, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.pooling = pooling


def all_poolings(layers: Sequence[int], last_layer: int, projection: bool) -> list[Pooling]:
    """First token and mean of each layer, and the projection r of the last layer if there is one.

    Of the embeddings only the mean: their first token is the same for every sentence.
    """
    poolings = [Pooling(pooling, layer) for layer in layers for pooling in ("cls", "mean")]
    poolings = [pooling for pooling in poolings if pooling != Pooling("cls", 0)]
    return poolings + ([Pooling("projection", last_layer)] if projection else [])


# --- what the configuration says --------------------------------------------------------------------------------------


def own_pooling(config: PreTrainedConfig) -> Pooling:
    """The pooling of a model's configuration (`embedding_pooling`, else `sentence_pooling`; `embedding_layer`), by
    default the mean of the last layer, as for a plain XLM-R."""
    pooling = getattr(config, "embedding_pooling", None) or getattr(config, "sentence_pooling", None)
    layer = getattr(config, "embedding_layer", None)
    if pooling is None:
        log_default_pooling()
    if pooling == "first token":  # in encoders exported before 0.8
        pooling = "cls"
    return Pooling(pooling or "mean", config.num_hidden_layers if layer is None else layer)


def chosen_pooling(config: PreTrainedConfig, mode: str | None = None, layer: int | None = None) -> Pooling:
    """The model's own pooling, with another mode or layer if given; the projection reads the last layer by default."""
    if mode is not None and layer is not None:
        return Pooling(mode, layer)
    own = own_pooling(config)
    mode = mode or own.mode
    usual = config.num_hidden_layers if mode == "projection" else own.layer
    return Pooling(mode, usual if layer is None else layer)


@cache
def log_default_pooling() -> None:
    """Log once that the checkpoint names no pooling, so the mean of the last layer is used."""
    logger.info("the checkpoint names no pooling; the mean of its last layer is used")


def own_max_length(config: PreTrainedConfig) -> int:
    """Tokens of a sentence that are read, special tokens included: `embedding_max_length`, by default 256.

    It is never more than the model's positions, unless these are relative: then any number works.
    """
    stated = getattr(config, "embedding_max_length", None)
    relative = getattr(config, "rope_parameters", None) or not getattr(config, "position_biased_input", True)
    return int(stated) if stated and relative else min(stated or LONGEST, longest_input(config))


def length_read(config: PreTrainedConfig, max_length: int | None = None) -> int:
    """Tokens of a sentence that are read where `max_length` are asked for; `None`: the model's own number."""
    own = own_max_length(config)
    return min(max_length or own, max(own, longest_input(config)))


def own_normalize(config: PreTrainedConfig) -> bool:
    """Whether vectors are scaled to length 1: `embedding_normalize`, by default they are."""
    return getattr(config, "embedding_normalize", None) is not False


def own_text(config: PreTrainedConfig, text: str) -> str:
    """A text as the model reads it: lower-cased if `embedding_lower_case` is set, as sentence-transformers does."""
    lower_case = getattr(config, "embedding_lower_case", False)
    return str(normalizers.Lowercase().normalize_str(text)) if lower_case else text


def chosen_prompt(config: PreTrainedConfig, prompt: str | None = None, name: str | None = None) -> str:
    """The text to put before each sentence: `prompt`, the prompt of this name, or by default `embedding_prompt`.

    Raises:
        BadInput: the model has no prompt of this name, both are given, or the model pools without its prompts.
    """
    if prompt is not None and name is not None:
        raise BadInput(f"prompt is {short_repr(prompt)} and prompt_name {short_repr(name)}; allowed is one of them.")
    prompts = getattr(config, "embedding_prompts", None) or {}
    if name is not None and name not in prompts:
        allowed = ", ".join(map(repr, prompts)) or "none, as the model has no prompts"
        raise BadInput(f"prompt_name is {short_repr(name)}; allowed are {allowed}. Give the text itself as prompt.")
    if prompt is None:
        prompt = prompts[name] if name is not None else getattr(config, "embedding_prompt", None) or ""
    if prompt and getattr(config, "embedding_include_prompt", None) is False:
        raise BadInput(
            f"prompt is {short_repr(prompt)}, and the model pools without the tokens of a prompt (include_prompt is "
            "false), which is not supported; allowed is no prompt. Leave it out, or use sentence-transformers."
        )
    return prompt


# --- from hidden states to vectors ------------------------------------------------------------------------------------


def pool(model: Any, hidden: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """(n, d) one vector per sentence of hidden states (n, T, d); tokens masked by 0 are left out of a mean."""
    projection = projection_of(model) if pooling == "projection" else None
    if isinstance(projection, DenseLayers):
        pooling = projection.pooling
    if pooling.startswith("mean"):
        weights = mask.unsqueeze(-1).float()
        pooled = (hidden.float() * weights).sum(1) / weights.sum(1).clamp_min(1)
    else:
        pooled = hidden[:, 0].clone()  # a view would keep all of the hidden states
    return pooled if projection is None else projection(pooled.to(next(projection.parameters()).dtype))


def projection_of(model: Any) -> Any:
    """f of a model, in an exported plain encoder its pooler; `None` if there is none."""
    if hasattr(model, "projection"):
        config, projection = getattr(model, "config", None), model.projection
        is_read = getattr(config, "embedding_pooling", None) == "projection"  # a dense layer of sentence-transformers
        of_mean = getattr(config, "sentence_pooling", "cls") == "mean" and not is_read
        return None if of_mean or isinstance(projection, nn.Identity) else projection  # it reads the first token
    stated = getattr(model.config, "embedding_pooling", None)
    pooler = getattr(encoder_of(model), "pooler", None)
    if stated is None or pooler is None or model.config.model_type != "xlm-roberta":
        return None
    weight = pooler.dense.weight
    if torch.equal(weight, torch.eye(len(weight), dtype=weight.dtype, device=weight.device)):  # exported without f
        return None
    exported = stated == "projection" or not torch.any(pooler.dense.bias)  # the bias of an exported projection is 0
    return pooler.dense if exported else None


def vector_size(model: PreTrainedModel, pooling: str | None = None) -> int:
    """Size of the vectors at a pooling; `None`: the model's own."""
    mode = pooling or own_pooling(model.config).mode
    projection = projection_of(model) if mode == "projection" else None
    if projection is None:
        return int(model.config.hidden_size)
    return len(list(projection.parameters())[-1])  # (r, d) weight or (r) bias of the last linear layer


def check_is_encoder(model: Any) -> None:
    """Raise `BadInput` for a model that is not one of transformers, such as sentence-transformers' own or a wrapper."""
    if not isinstance(encoder_of(model), PreTrainedModel):
        raise BadInput(
            f"model is a {type(model).__name__}; allowed is a model of transformers, such as load_encoder returns. "
            "Load a folder of sentence-transformers by load_encoder; give the inner model of a wrapper (model.module)."
        )


def check_poolings(model: PreTrainedModel, poolings: Sequence[Pooling]) -> None:
    """Raise `BadInput` for a pooling or layer that the model does not have."""
    last = model.config.num_hidden_layers
    for pooling in poolings:
        if not isinstance(pooling, Pooling):
            raise BadInput(f'the pooling is {short_repr(pooling)}; allowed is one such as Pooling("mean", {last}).')
        if pooling.mode not in POOLINGS:
            raise BadInput(f"the pooling is {short_repr(pooling.mode)}; allowed are {', '.join(POOLINGS)}.")
        if pooling.mode == "projection" and projection_of(model) is None:
            raise BadInput(
                "the pooling is the projection, which this model does not have; allowed are 'cls' and 'mean', "
                "or a complete checkpoint: load_encoder, or HictlForPreTraining.from_pretrained."
            )
        least = last if pooling.mode == "projection" else 0
        if not least <= pooling.layer <= last:
            raise BadInput(f"the layer read for {pooling.mode!r} is {pooling.layer}; allowed is {least} to {last}.")


def encoder_of(model: PreTrainedModel) -> Any:
    """The encoder of a model, or the model itself; of peft's, with the adapter in its layers."""
    model = getattr(model, "get_base_model", lambda: model)()
    return getattr(model, "base_model", model)
