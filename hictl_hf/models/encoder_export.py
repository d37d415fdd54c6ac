"""Export the encoder of a pre-training model as a plain XLM-R checkpoint."""

from pathlib import Path
from typing import Any

import torch
from transformers import XLMRobertaConfig, XLMRobertaModel

from .configuration_hictl import HictlConfig


def has_pooler(model: Any) -> bool:
    """Whether the projection of a `HictlForPreTraining` can be the pooler of a plain encoder."""
    return model.config.projects_first_token and model.projection.out_features == model.config.hidden_size


def export_encoder(model: Any, folder: str | Path) -> None:
    """Write the encoder as a plain `xlm-roberta` directory, which loads without this package.

    If the projection reads the first token and keeps the hidden size, it becomes the pooler of the exported model:
    `pooler_output` is tanh(r). The configuration keeps how sentence vectors are read: layer, pooling, length, prompts,
    normalisation.

    Args:
        model: a `HictlForPreTraining`.
    """
    known = XLMRobertaConfig().to_dict().keys() - {"model_type", "architectures", "transformers_version"}
    known |= {name for name in HictlConfig.__annotations__ if name.startswith("embedding_")}
    config = XLMRobertaConfig(**{name: value for name, value in model.config.to_dict().items() if name in known})
    pooled = has_pooler(model)
    encoder = XLMRobertaModel(config, add_pooling_layer=pooled).to(dtype=model.dtype)
    weights = model.roberta.state_dict()
    if pooled:
        weight = model.projection.weight.detach()
        weights |= {"pooler.dense.weight": weight, "pooler.dense.bias": torch.zeros_like(weight[0])}
    encoder.load_state_dict(weights)
    encoder.save_pretrained(folder)
