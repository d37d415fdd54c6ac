"""The configurations of HiCTL's models: `HictlConfig` for XLM-R, and one made for each other family of encoders."""

import copy
from typing import Any, ClassVar

import transformers
from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig, XLMRobertaConfig

from .configuration_decoder import DecoderConfig
from .configuration_objective import ObjectiveConfig
from .families import FAMILIES, OURS, Family, families_named, family_of

KINDS = {  # of Auto classes, and what the names of model classes end with
    "AutoModel": "Model",
    "AutoModelForPreTraining": "ForPreTraining",
    "AutoModelForMaskedLM": "ForMaskedLM",
    "AutoModelForSequenceClassification": "ForSequenceClassification",
    "AutoModelForTokenClassification": "ForTokenClassification",
    "AutoModelForQuestionAnswering": "ForQuestionAnswering",
    "AutoModelForMultipleChoice": "ForMultipleChoice",
}


def code_on_the_hub(family: Family) -> dict[str, str]:
    """The `auto_map` of a family: where its classes are in the code that is saved with a model."""
    module = "modeling_hictl" if family.own_type == OURS else "modeling_hictl_families"
    there = {
        auto: f"{module}.{family.class_name(kind)}"
        for auto, kind in KINDS.items()
        if kind == "ForPreTraining" or hasattr(transformers, family.prefix + kind)  # EuroBERT has fewer
    }
    return {"AutoConfig": f"configuration_hictl.{family.class_name('Config')}", **there}


CODE_ON_THE_HUB = code_on_the_hub(FAMILIES["xlm-roberta"])


@strict
class HictlConfig(DecoderConfig, XLMRobertaConfig):
    """XLM-R's configuration with HiCTL's objectives (`ObjectiveConfig`) and the sizes of a decoder (`DecoderConfig`).

    Example:
        >>> from hictl_hf import HictlConfig
        >>> HictlConfig(vocab_size=1000, sentence_temperature=1.0).special_token_ids
        [0, 1, 2, 3, 999]
    """

    model_type = OURS
    family: ClassVar[Family] = FAMILIES["xlm-roberta"]
    code_on_the_hub: ClassVar[dict[str, str]] = CODE_ON_THE_HUB

    def default_special_ids(self) -> list[int]:
        """`<s> <pad> </s> <unk>` and `<mask>`, the last id."""
        return [0, 1, 2, 3, self.vocab_size - 1]

    def like_the_decoder(self) -> "HictlConfig":
        """A copy: the decoder's layers are the encoder's."""
        return copy.deepcopy(self)


def make_config_class(family: Family) -> type[Any]:
    """The configuration of a family: that of transformers with the fields of `DecoderConfig`."""
    members = {
        "__module__": __name__,
        "__doc__": f"transformers' configuration of {family.models} with HiCTL's fields (`DecoderConfig`).",
        "model_type": family.own_type,
        "family": family,
        "code_on_the_hub": code_on_the_hub(family),
    }
    bases = (DecoderConfig, getattr(transformers, f"{family.prefix}Config"))
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


def model_type_of(name: Any, config: Any = None, **kwargs: Any) -> str | None:
    """The `model_type` of the configuration that `from_pretrained` loads with these arguments."""
    if isinstance(config, PreTrainedConfig):
        return str(config.model_type)
    kwargs.pop("trust_remote_code", None)  # only Auto classes know it; it would be warned of
    found, _ = PreTrainedConfig.get_config_dict(name if config is None else config, **kwargs)
    return found.get("model_type")


class LoadsItsFamily:
    """Mixin of model classes: a configuration, or weights, of another family are refused."""

    config_class: ClassVar[Any]
    reads_own_fields: ClassVar[bool] = False
    """If true, a configuration of transformers is refused: it lacks the fields of ours."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        own, family = family_of(self.config_class.model_type), family_of(config.model_type)
        name = self.config_class.__name__
        found = f"{type(self).__name__} got a {type(config).__name__}; allowed is a {name}"
        if family not in (own, None):  # and no isinstance: code from the Hub has each class several times
            raise ValueError(f"{found}. from_config of transformers' Auto classes finds the class of a configuration")
        if self.reads_own_fields and family is not None and type(config).model_type == family.model_type:
            raise ValueError(f"{found}. {name}.from_pretrained reads that of a plain encoder, too; or leave config out")
        parent: Any = super()
        parent.__init__(config, *args, **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, config: Any = None, **kwargs: Any) -> Any:
        """Load a checkpoint; `ValueError` if the configuration that it was saved with is of another family."""
        name = pretrained_model_name_or_path
        if name is not None and isinstance(config, PreTrainedConfig):
            try:
                saved = model_type_of(name, **kwargs)
            except OSError:  # weights without a configuration
                saved = None
            if saved is not None and family_of(saved) != family_of(config.model_type):
                raise ValueError(
                    f"{name} is a model of type {saved!r}; the configuration given is a {type(config).__name__}"
                )
        parent: Any = super()
        return parent.from_pretrained(name, *args, config=config, **kwargs)


def load_config(name: Any, **kwargs: Any) -> Any:
    """The HiCTL configuration of a checkpoint, of any family; `ValueError` for another architecture."""
    model_type = model_type_of(name, **kwargs)
    return (config_class(model_type) if family_of(model_type) else HictlConfig).from_pretrained(name, **kwargs)


__all__ = ["HictlConfig", "LoadsItsFamily", "ObjectiveConfig", "config_class", "load_config", "model_type_of"]
