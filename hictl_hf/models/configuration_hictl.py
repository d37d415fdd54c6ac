"""The configurations of HiCTL's models: `HictlConfig` for XLM-R, and one made for each other family of encoders."""

import copy
from typing import Any, ClassVar

import transformers
from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig, XLMRobertaConfig

from .configuration_objective import CHOICES, LEAST, TEMPERATURES, ZETA, ObjectiveConfig
from .families import FAMILIES, OURS, Family, families_named, family_of

KINDS = {  # of Auto classes, and what the names of model classes end with
    "AutoModel": "Model",
    "AutoModelForPreTraining": "ForPreTraining",
    "AutoModelForMaskedLM": "ForMaskedLM",
    "AutoModelForSequenceClassification": "ForSequenceClassification",
    "AutoModelForTokenClassification": "ForTokenClassification",
    "AutoModelForQuestionAnswering": "ForQuestionAnswering",
}


def code_on_the_hub(family: Family) -> dict[str, str]:
    """The `auto_map` of a family: where its classes are in the code that is saved with a model."""
    module = "modeling_hictl" if family.own_type == OURS else "modeling_hictl_families"
    there = {
        auto: f"{module}.{family.class_name(kind)}"
        for auto, kind in KINDS.items()
        if kind == "ForPreTraining" or hasattr(transformers, family.prefix + kind)  # EuroBERT answers no questions
    }
    return {"AutoConfig": f"configuration_hictl.{family.class_name('Config')}", **there}


CODE_ON_THE_HUB = code_on_the_hub(FAMILIES["xlm-roberta"])


@strict
class HictlConfig(ObjectiveConfig, XLMRobertaConfig):
    """XLM-R's configuration with the contrastive objectives of HiCTL (Wei et al., 2021) and the sizes of a decoder.

    Args (in addition to those of `ObjectiveConfig`):
        decoder_layers: layers of the decoder of a translation model (paper: 4, or 6 with an encoder of 24).
        decoder_attention_heads, decoder_ffn_dim: other sizes of the decoder; `None`: the encoder's.
        decoder_vocab_size: W, the number of tokens the decoder can generate; `None`: all tokens of the encoder.
        target_languages: languages to translate into, each with a separate start token; `None`: one unnamed language
            with the start token `</s>`.
        cls_bias: what is added to the logit of a target word: nothing ("none"), or the similarity of its embedding to
            the encoder's `[CLS]` state, as a product ("dot") or as a cosine over a temperature ("cosine", the paper).
        cls_bias_scale: γ, the factor of the similarity: "learned" from 0, or "fixed" at 1 (the paper).
        cls_bias_temperature: τ of the cosine; `None`: `word_temperature`.

    Example:
        >>> from hictl_hf import HictlConfig
        >>> HictlConfig(vocab_size=1000, sentence_temperature=1.0).special_token_ids
        [0, 1, 2, 3, 999]
    """

    model_type = OURS
    family: ClassVar[Family] = FAMILIES["xlm-roberta"]
    choices: ClassVar[dict[str, tuple[str, ...]]] = {
        **CHOICES,
        "cls_bias": ("none", "dot", "cosine"),
        "cls_bias_scale": ("learned", "fixed"),
    }
    temperatures: ClassVar[tuple[str, ...]] = (*TEMPERATURES, "cls_bias_temperature")
    least: ClassVar[dict[str, int]] = {
        **LEAST,
        **dict.fromkeys(("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"), 1),
        "decoder_vocab_size": 4,  # <s> <pad> </s> <unk>
    }
    code_on_the_hub: ClassVar[dict[str, str]] = CODE_ON_THE_HUB

    decoder_layers: int = 4
    decoder_attention_heads: int | None = None
    decoder_ffn_dim: int | None = None
    decoder_vocab_size: int | None = None
    target_languages: list[str] | None = None
    cls_bias: str = "dot"
    cls_bias_scale: str = "learned"
    cls_bias_temperature: float | int | None = None

    def default_special_ids(self) -> list[int]:
        """`<s> <pad> </s> <unk>` and `<mask>`, the last id."""
        return [0, 1, 2, 3, self.vocab_size - 1]

    def validate_architecture(self) -> None:
        """Raise `ValueError` for a value that the objectives or the decoder do not support."""
        super().validate_architecture()
        languages = self.target_languages
        if languages is not None and not 0 < len(set(languages)) == len(languages):
            raise ValueError(f"target_languages is {languages}; it must name at least one language, and none twice")

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> "HictlConfig":
        """Return this configuration; with `decoder=True`, as in `generate`, that of a translation model's decoder."""
        if not decoder or encoder or not self.is_encoder_decoder:
            return self
        config = copy.deepcopy(self)
        config.is_decoder, config.add_cross_attention, config.is_encoder_decoder = True, True, False
        config.num_hidden_layers = self.decoder_layers
        config.num_attention_heads = self.decoder_attention_heads or self.num_attention_heads
        config.intermediate_size = self.decoder_ffn_dim or self.intermediate_size
        config.vocab_size = self.decoder_vocab_size or self.vocab_size
        return config


def make_config_class(family: Family) -> type[Any]:
    """The configuration of a family: that of transformers with the fields of `ObjectiveConfig`."""
    members = {
        "__module__": __name__,
        "__doc__": f"transformers' configuration of {family.models} with HiCTL's fields (`ObjectiveConfig`).",
        "model_type": family.own_type,
        "family": family,
        "code_on_the_hub": code_on_the_hub(family),
    }
    bases = (ObjectiveConfig, getattr(transformers, f"{family.prefix}Config"))
    return strict(type(family.class_name("Config"), bases, members))


CONFIGS: dict[str, type[Any]] = {
    name: HictlConfig if family.own_type == OURS else make_config_class(family) for name, family in FAMILIES.items()
}
"""By transformers' `model_type`."""

for _config in CONFIGS.values():
    globals()[_config.__name__] = _config  # saved code and pickles find classes by name
    AutoConfig.register(_config.model_type, _config)
    _config.register_for_auto_class()


def config_class(model_type: str | None) -> type[Any]:
    """The HiCTL configuration of a `model_type`, transformers' or ours; `None`: XLM-R's.

    Raises:
        ValueError: it is of no family that HiCTL trains.
    """
    family = FAMILIES["xlm-roberta"] if model_type is None else family_of(model_type)
    if family is None:
        raise ValueError(f"the model type is {model_type!r}; allowed are {OURS}, {families_named()}")
    return CONFIGS[family.model_type]


def load_config(name: Any, **kwargs: Any) -> Any:
    """The HiCTL configuration of a checkpoint, of any family; `ValueError` for another architecture."""
    model_type = PreTrainedConfig.get_config_dict(name, **dict(kwargs))[0].get("model_type")
    return (config_class(model_type) if family_of(model_type) else HictlConfig).from_pretrained(name, **kwargs)


__all__ = ["HictlConfig", "ObjectiveConfig", "ZETA", "config_class", "load_config"]
