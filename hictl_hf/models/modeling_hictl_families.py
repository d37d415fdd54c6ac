"""HiCTL's model classes for the families of encoders other than XLM-R, made from the rows of `families.FAMILIES`.

Each is transformers' class of that family under another name, `HictlBertForTokenClassification` for example, with the
family's HiCTL configuration; `...ForPreTraining` is its masked language model with the objective.
"""

from typing import Any

import transformers

from .configuration_hictl import CONFIGS, KINDS, LoadsItsFamily
from .families import FAMILIES, OURS, Family
from .head_loss import divide_by_items, has_labels
from .objective import HictlObjective

PRETRAINING_CLASSES: dict[str, type[Any]] = {}
ENCODER_CLASSES: dict[str, type[Any]] = {}
"""Both by transformers' `model_type`; `modeling_hictl` adds XLM-R's."""
OF_PRETRAINING = [r"pooler", r"projection", r"sentence_probability"]  # weights that models with other heads lack
OF_A_TRANSLATION_MODEL = [r"^decoder\.", r"^lm_head\.", r"^start_embeddings", r"^target_token_ids", r"^cls_bias_scale"]


def init_without_pooler(self: Any, config: Any, add_pooling_layer: bool = False) -> None:
    """`__init__` of an encoder: by default without its pooler, which HiCTL does not train."""
    LoadsItsFamily.__init__(self, config, add_pooling_layer=add_pooling_layer)


def uses_its_initialization(cls: type[Any]) -> bool:
    """`is_custom_code` is false: of custom code transformers initialises only modules that hold weights themselves, and
    ModernBERT initialises those of a module's parts."""
    return False


def make_class(family: Family, kind: str) -> type[Any]:
    """HiCTL's class of a family: `kind` is what its name ends with, such as "Model" or "ForPreTraining"."""
    config = CONFIGS[family.model_type]
    name = family.prefix + ("ForMaskedLM" if kind == "ForPreTraining" else kind)
    parent = getattr(transformers, name)
    members: dict[str, Any] = {
        "__module__": __name__,
        "__doc__": f"transformers' `{name}` with HiCTL's configuration.",
        "config_class": config,
        "accepts_loss_kwargs": False,
        "is_custom_code": classmethod(uses_its_initialization),
    }
    unexpected = parent._keys_to_ignore_on_load_unexpected or []
    if kind == "ForPreTraining":
        own = HictlObjective._keys_to_ignore_on_load_unexpected or []
        members |= {"family": family, "_keys_to_ignore_on_load_unexpected": [*unexpected, *own]}
        return type(family.class_name(kind), (HictlObjective, parent), members)
    if has_labels(parent.forward):
        members |= {"forward": divide_by_items(parent.forward), "accepts_loss_kwargs": True}
    heads = [] if kind == "ForMaskedLM" else [f"^{prefix}" for prefix in family.head_weights]
    members["_keys_to_ignore_on_load_unexpected"] = [*unexpected, *OF_PRETRAINING, *heads]
    if kind == "Model":
        members["_keys_to_ignore_on_load_unexpected"] += OF_A_TRANSLATION_MODEL
        if family.pooler:
            members["__init__"] = init_without_pooler
    return type(family.class_name(kind), (LoadsItsFamily, parent), members)


def register(family: Family) -> None:
    """Make the classes of a family, and make transformers' Auto classes know them."""
    config = CONFIGS[family.model_type]
    for auto, place in config.code_on_the_hub.items():
        if auto != "AutoConfig":
            made = make_class(family, KINDS[auto])
            globals()[made.__name__] = made  # saved code and pickles find classes by name
            getattr(transformers, auto).register(config, made)
            made.register_for_auto_class(auto)
            assert place.endswith(f".{made.__name__}")
    PRETRAINING_CLASSES[family.model_type] = globals()[family.class_name("ForPreTraining")]
    ENCODER_CLASSES[family.model_type] = globals()[family.class_name("Model")]


for _family in FAMILIES.values():
    if _family.own_type != OURS:
        register(_family)
