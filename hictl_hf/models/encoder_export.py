"""Export the encoder of a pre-training model as a plain checkpoint of its family."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import transformers

from .families import OURS, refuse_adapters

OF_THE_MODEL = {"model_type", "architectures", "transformers_version", "auto_map", "is_encoder_decoder"}


def has_pooler(model: Any) -> bool:
    """Whether a model has a projection that can be the pooler of a plain encoder; XLM-R's alone is used so."""
    config = model.config
    if config.family.own_type != OURS or config.has_dense_layer or not hasattr(model, "projection"):
        return False
    return config.projects_first_token and model.projection.out_features == config.hidden_size


def pooling_of_encoder(model: Any) -> str:
    """The pooling of the exported encoder: the model's, or if that is a projection which the model does not have, as a
    fine-tuned one, `sentence_pooling`."""
    pooling: str = model.config.embedding_pooling or model.config.sentence_pooling
    lacks_it = pooling == "projection" and not hasattr(model, "projection")
    return model.config.sentence_pooling if lacks_it else pooling


def export_encoder(model: Any, folder: str | Path) -> None:
    """Write the encoder as a directory of its family, such as plain `xlm-roberta`, which loads without this package.

    In XLM-R, if the projection is linear, reads the first token and keeps the hidden size, it becomes the pooler of the
    exported model: `pooler_output` is tanh(r). Else a pooler is the identity: transformers reports a missing one, and
    without it sentence-transformers cannot load its own checkpoints to resume. The configuration keeps how sentence
    vectors are read: layer, pooling, length, prompts, normalisation.

    Args:
        model: a `HictlForPreTraining`, or a fine-tuned `HictlForSequenceClassification` and the like, of any family.

    Raises:
        ValueError: an adapter, such as LoRA's, is not merged, or the model is of another library.
    """
    if not hasattr(model.config, "family"):
        raise ValueError(
            f"model is a {type(model).__name__}; allowed are HictlForPreTraining and other classes of hictl_hf, whose "
            "from_pretrained(folder) also reads a plain encoder"
        )
    refuse_adapters(model)
    family = model.config.family
    plain_config, plain_model = (getattr(transformers, family.prefix + kind) for kind in ("Config", "Model"))
    ours = {field.name for field in fields(model.config)} - {field.name for field in fields(plain_config)}
    ours = {name for name in ours if not name.startswith("embedding_")} | OF_THE_MODEL
    if family.token_types:  # where it is ours
        ours.add("sep_token_id")
    config = plain_config(**{name: value for name, value in model.config.to_dict().items() if name not in ours})
    if family.model_type == "modernbert":  # for transformers 4, which would take its defaults and give other vectors
        theta = {kind: rope["rope_theta"] for kind, rope in config.rope_parameters.items()}
        config.global_rope_theta, config.local_rope_theta = theta["full_attention"], theta["sliding_attention"]
        full = [layer for layer, kind in enumerate(config.layer_types) if kind == "full_attention"]
        config.global_attn_every_n_layers = full[1] if len(full) > 1 else config.num_hidden_layers
    config.embedding_pooling = pooling_of_encoder(model)
    encoder = plain_model(config).to(dtype=model.dtype)
    weights = model.base_model.state_dict()
    if family.pooler:
        identity = torch.eye(config.hidden_size, dtype=model.dtype)
        weight = model.projection.weight.detach() if has_pooler(model) else identity
        weights |= {"pooler.dense.weight": weight, "pooler.dense.bias": torch.zeros_like(weight[0])}
    encoder.load_state_dict(weights)
    encoder.save_pretrained(folder)
