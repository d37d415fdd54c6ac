"""What differs between the families of encoders that HiCTL trains: one row each in `FAMILIES`.

To add a family, add a row and, if its language-model head is like none here, a function for it. The configuration and
the model classes are made from the row (`configuration_hictl`, `modeling_hictl_families`).
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.nn import Module
from transformers.activations import gelu

OURS = "hictl"
Head = tuple[Tensor, Tensor, Tensor | None]
"""States (m, d) before the output layer, and the weight (V, d) and bias (V,) of that layer."""


# --- language-model heads ---------------------------------------------------------------------------------------------


def weight_and_bias(layer: Any) -> tuple[Tensor, Tensor | None]:
    """Those of an output layer; peft's wrapper for `trainable_token_indices` passes on the weight only.

    Raises:
        ValueError: the layer has an adapter such as LoRA's, which is no part of its weight.
    """
    refuse_adapter("the output layer of the language model", layer)
    return layer.weight, (layer if hasattr(layer, "bias") else layer.original_module).bias


def refuse_adapter(name: str, layer: Any) -> None:
    """Raise `ValueError` for a layer with an adapter such as LoRA's: it is no part of the weight that is read here."""
    if isinstance(getattr(layer, "base_layer", None), Module):
        raise ValueError(
            f"{name} has an adapter that is not merged, and its weight is read here without it; call "
            "merge_and_unload(), or to train leave the layer out of target_modules, or name it in modules_to_save"
        )


def refuse_adapters(model: Module) -> None:
    """Raise `ValueError` for a model in which an adapter is not merged, where its weights are written or quantized."""
    for name, layer in model.named_modules():
        refuse_adapter(name, layer)


def roberta_head(model: Any, hidden: Tensor) -> Head:
    head = model.lm_head
    return head.layer_norm(gelu(head.dense(hidden))), *weight_and_bias(head.decoder)


def bert_head(model: Any, hidden: Tensor) -> Head:
    head = model.cls.predictions
    return head.transform(hidden), *weight_and_bias(head.decoder)


def modernbert_head(model: Any, hidden: Tensor) -> Head:
    return model.head(hidden), *weight_and_bias(model.decoder)


def eurobert_head(model: Any, hidden: Tensor) -> Head:
    return hidden, *weight_and_bias(model.lm_head)


def deberta_head(model: Any, hidden: Tensor) -> Head:
    """That of DeBERTa-v3 if `config.legacy` is false; else BERT's, as transformers gives it by default."""
    if model.legacy:
        return bert_head(model, hidden)
    head = model.lm_predictions.lm_head
    hidden = head.LayerNorm(head.transform_act_fn(head.dense(hidden)))
    return hidden, model.get_input_embeddings().weight, head.bias


# --- families ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """A family of encoders in transformers.

    Attributes:
        model_type: in its `config.json`.
        prefix: of the names of its classes.
        title: its name in prose.
        models: published models, for messages.
        lm_head: the states before the output layer, and that layer.
        head_weights: what names of weights begin with that only a language-model head has; the first decides.
        layers: attribute of the encoder that holds its layers.
        positions_after_padding: positions begin after the id of padding, not at 0.
        token_types: the second text of a pair has token type 1.
        pooler: the encoder has a pooler, which HiCTL does not train.
        packs: rows travel through it without padding.
        packed_masks: what it takes for `attention_mask` with packed rows, so that it makes no mask itself.
        special_ids: ids of the tokens begin, padding, end and unknown, where all models of the family have the same.
        decoder_sizes: for fields of XLM-R, of which a translation decoder is made, their names in its configuration,
            where they differ. What it does not have, such as dropout, is XLM-R's default.
    """

    model_type: str
    prefix: str
    title: str
    models: str
    lm_head: Callable[[Any, Tensor], Head]
    head_weights: tuple[str, ...]
    layers: str = "encoder.layer"
    positions_after_padding: bool = False
    token_types: bool = False
    pooler: bool = False
    packs: bool = True
    packed_masks: dict[str, None] | None = None
    special_ids: tuple[int, ...] | None = None
    decoder_sizes: Mapping[str, str] = field(default_factory=dict)

    @property
    def own_type(self) -> str:
        """The `model_type` of its HiCTL models."""
        return OURS if self.model_type == "xlm-roberta" else f"{OURS}-{self.model_type}"

    def class_name(self, kind: str) -> str:
        """The name of HiCTL's class of a kind, such as "Config" or "ForPreTraining"."""
        return f"Hictl{'' if self.own_type == OURS else self.prefix}{kind}"

    def first_position(self, config: Any) -> int:
        """The position of the first token."""
        return config.pad_token_id + 1 if self.positions_after_padding else 0

    def has_head(self, config: Any, weights: Iterable[str]) -> bool:
        """Whether the names of weights include a trained language-model head of a configuration."""
        head = "cls.predictions." if getattr(config, "legacy", False) else self.head_weights[0]  # DeBERTa has two kinds
        return any(name.startswith(head) for name in weights)


FAMILIES = {
    row.model_type: row
    for row in (
        Family(
            "xlm-roberta", "XLMRoberta", "XLM-R", "XLM-R, E5, BGE-M3", roberta_head, ("lm_head.",),
            positions_after_padding=True, pooler=True, special_ids=(0, 1, 2, 3),
        ),
        Family(
            "xlm-roberta-xl", "XLMRobertaXL", "XLM-R XL", "XLM-R XL, XXL", roberta_head, ("lm_head.",),
            positions_after_padding=True, pooler=True, special_ids=(0, 1, 2, 3),
        ),
        Family(
            "bert", "Bert", "BERT", "mBERT", bert_head, ("cls.predictions.",), token_types=True, pooler=True,
        ),
        Family(
            "modernbert", "ModernBert", "ModernBERT", "mmBERT, ModernBERT", modernbert_head, ("decoder.", "head."),
            layers="layers", packed_masks={"full_attention": None, "sliding_attention": None},
            decoder_sizes={"hidden_act": "hidden_activation", "layer_norm_eps": "norm_eps"},
        ),
        Family(
            "eurobert", "EuroBert", "EuroBERT", "EuroBERT", eurobert_head, ("lm_head.",), layers="layers",
            decoder_sizes={"layer_norm_eps": "rms_norm_eps"},
        ),
        Family(
            "deberta-v2", "DebertaV2", "DeBERTa-v3", "mDeBERTa-v3", deberta_head,
            ("lm_predictions.", "cls.predictions."), packs=False,
        ),
    )
}  # fmt: skip
BY_OWN_TYPE = {family.own_type: family for family in FAMILIES.values()}


def family_of(model_type: Any) -> Family | None:
    """The family of a `model_type`, transformers' or ours; `None` for others."""
    return BY_OWN_TYPE.get(model_type) or FAMILIES.get(model_type)


def family_recorded(config: Mapping[str, Any] | None) -> Family:
    """The family of a recorded configuration; results of releases before 0.11 are of XLM-R."""
    return family_of((config or {}).get("model_type")) or FAMILIES["xlm-roberta"]


def families_named() -> str:
    """The families for messages: model type and models."""
    return ", ".join(f"{family.model_type} ({family.models})" for family in FAMILIES.values())


def longest_input(config: Any) -> int:
    """The most tokens that an encoder reads: its positions, in XLM-R without those up to the id of padding.

    Encoders of other families are taken for RoBERTa-like ones, the more careful guess; without positions they read any
    number.
    """
    family = family_of(config.model_type)
    return int(getattr(config, "max_position_embeddings", sys.maxsize)) - (
        family.first_position(config) if family else 2
    )
