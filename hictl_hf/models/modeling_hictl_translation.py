"""HiCTL's translation models: the class for XLM-R, and those made from the rows of `families.FAMILIES`.

`translation_model` has what they compute.
"""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel, XLMRobertaPreTrainedModel

from .configuration_decoder import SPECIALS
from .configuration_hictl import CONFIGS, HictlConfig, model_type_of
from .families import FAMILIES, OURS, Family, families_named, family_of
from .modeling_hictl import encoder_class
from .supported_versions import warn_if_untested
from .target_ids import checked_target_ids
from .translation_model import TranslationModel

MAX_TRANSLATION_LENGTH = 200  # tokens, by default


class HictlForConditionalGeneration(TranslationModel, XLMRobertaPreTrainedModel):
    """The translation model with an encoder of XLM-R.

    Create a new model, of any family, with `from_encoder`. `from_pretrained` is for saved translation models, of any
    family: from a masked language model it would load the output bias of the language-model head.

    Example:
        >>> from hictl_hf import HictlConfig, HictlForConditionalGeneration
        >>> model = HictlForConditionalGeneration(HictlConfig(vocab_size=99, hidden_size=32, num_hidden_layers=1,
        ...     num_attention_heads=2, intermediate_size=64, decoder_layers=1, target_languages=["de", "fr"]))
        >>> model.start_ids_of(["fr", "de"]).tolist()
        [100, 99]
    """

    config: HictlConfig
    config_class = HictlConfig
    family = FAMILIES["xlm-roberta"]

    @classmethod
    def from_encoder(
        cls,
        encoder: str | Path | PreTrainedModel,
        target_token_ids: Sequence[int] | None = None,
        target_languages: Sequence[str] | None = None,
        **settings: Any,
    ) -> Any:
        """Create a translation model in fp32 from the weights of an encoder, with the class of its family.

        The decoder's layers are initialised at random, its word embeddings copied from the encoder.

        Args:
            encoder: folder or Hub name of a checkpoint, or a model.
            target_token_ids: tokenizer ids that the decoder can generate: those of the tokens begin, padding, end and
                unknown, then others, ascending; `translation.choose_target_ids` makes them. `None`: all of XLM-R.
            target_languages: languages to translate into; `None`: one without a name.
            settings: fields of the configuration, such as `decoder_layers` or `cls_bias`.

        Raises:
            TypeError: a setting is no field of the configuration.
            ValueError: the encoder is of no family that HiCTL trains, or the ids are not a valid target vocabulary.
            OSError: the weights of the encoder are not in safetensors.
        """
        source, family = encoder_and_family(encoder)
        made = cls if family is cls.family else TRANSLATION_CLASSES[family.model_type]
        known = {field.name for field in fields(made.config_class)} | {"attn_implementation"}
        if unknown := sorted(settings.keys() - known):  # a configuration would take any name, without effect
            fix = f"allowed are the fields of {made.config_class.__name__}"
            raise TypeError(f"from_encoder() got unexpected arguments {', '.join(unknown)}; {fix}")
        ids = checked_target_ids(target_token_ids, family, source.config.vocab_size)
        inherited = source.config.to_dict()
        for name in ("model_type", "architectures", "transformers_version", "auto_map", "dtype", "is_encoder_decoder"):
            inherited.pop(name, None)
        chosen = {
            "tie_word_embeddings": True,  # of the decoder
            "decoder_vocab_size": None if target_token_ids is None else len(ids),
            # of one text, such as "de", a list would be its letters; the configuration refuses it
            "target_languages": target_languages if isinstance(target_languages, str | None) else [*target_languages],
        }
        model = made(made.config_class(**{**inherited, **chosen, **settings}))
        weights = source.state_dict()
        model.base_model.load_state_dict({name: weights[name] for name in weights if not name.startswith("pooler.")})
        with torch.no_grad():
            model.target_token_ids.copy_(torch.tensor(ids))
            model.decoder.get_input_embeddings().weight.copy_(source.get_input_embeddings().weight[ids])
        unwanted = sorted({*model.config.never_translated()} & {*ids[SPECIALS:]})
        model.generation_config.update(
            num_beams=5,
            length_penalty=1.0,
            early_stopping=True,
            max_length=min(MAX_TRANSLATION_LENGTH, model.decoder.config.max_position_embeddings - model.first_position),
            suppress_tokens=[model.padding_id, *model.target_ids(torch.tensor(unwanted, dtype=torch.long)).tolist()],
        )
        return model.eval()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, config: Any = None, **kwargs: Any) -> Any:
        """Load a saved translation model with the class of its family."""
        name = pretrained_model_name_or_path
        family = family_of(kind := model_type_of(name, config, **kwargs))
        if cls is HictlForConditionalGeneration and family is not None and kind == family.own_type != OURS:
            return TRANSLATION_CLASSES[family.model_type].from_pretrained(name, *args, config=config, **kwargs)
        return super().from_pretrained(name, *args, config=config, **kwargs)


def encoder_and_family(encoder: str | Path | PreTrainedModel) -> tuple[Any, Family]:
    """An encoder, loaded in fp32 if it is a place, and its family; `ValueError` if it is of none that HiCTL trains."""
    if not isinstance(encoder, PreTrainedModel):
        family = family_of(kind := model_type_of(encoder))
        if family is None:
            raise ValueError(f"{encoder} is a model of type {kind!r}; allowed are encoders of {families_named()}")
        # no pickles, which can hold code
        return encoder_class(family).from_pretrained(encoder, dtype=torch.float32, use_safetensors=True), family
    source: Any = encoder.base_model
    family = family_of(source.config.model_type)
    if family is None or not isinstance(source, getattr(transformers, f"{family.prefix}Model")):
        raise ValueError(f"the encoder is a {type(encoder).__name__}; allowed are encoders of {families_named()}")
    return source, family


def make_class(family: Family) -> type[Any]:
    """The translation model with an encoder of a family."""
    members = {
        "__module__": __name__,
        "__doc__": f"The translation model with an encoder of {family.title}.",
        "config_class": CONFIGS[family.model_type],
        "family": family,
    }
    parent = getattr(transformers, f"{family.prefix}PreTrainedModel")
    return type(family.class_name("ForConditionalGeneration"), (TranslationModel, parent), members)


TRANSLATION_CLASSES: dict[str, type[Any]] = {
    name: HictlForConditionalGeneration if family.own_type == OURS else make_class(family)
    for name, family in FAMILIES.items()
}
"""By transformers' `model_type`."""

warn_if_untested()
for _class in TRANSLATION_CLASSES.values():
    globals()[_class.__name__] = _class  # saved code and pickles find classes by name
    AutoModelForSeq2SeqLM.register(_class.config_class, _class)
    _class.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = ["HictlForConditionalGeneration"]
