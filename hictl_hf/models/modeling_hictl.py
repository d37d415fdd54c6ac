"""HiCTL's model classes for XLM-R: its own under another name, and the pre-training model; loading for all families.

`objective` has the losses of pre-training, `modeling_hictl_families` the classes of other encoders.
"""

from typing import Any

from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    XLMRobertaForMaskedLM,
    XLMRobertaForMultipleChoice,
    XLMRobertaForQuestionAnswering,
    XLMRobertaForSequenceClassification,
    XLMRobertaForTokenClassification,
    XLMRobertaModel,
)

from .configuration_hictl import HictlConfig, LoadsItsFamily, model_type_of
from .encoder_export import export_encoder
from .families import FAMILIES, OURS, Family, family_of
from .head_loss import divide_by_items
from .modeling_hictl_families import ENCODER_CLASSES, OF_A_TRANSLATION_MODEL, OF_PRETRAINING, PRETRAINING_CLASSES
from .objective import HictlObjective
from .outputs import HictlForPreTrainingOutput
from .supported_versions import require_parameters

require_parameters(XLMRobertaModel.forward, "attention_mask", "position_ids", "inputs_embeds")


class HictlModel(LoadsItsFamily, XLMRobertaModel):
    """The encoder M: XLM-R's, by default without its pooler, which HiCTL does not train."""

    config: HictlConfig
    config_class = HictlConfig
    _keys_to_ignore_on_load_unexpected = [*OF_PRETRAINING, *OF_A_TRANSLATION_MODEL]

    def __init__(self, config: HictlConfig, add_pooling_layer: bool = False) -> None:
        super().__init__(config, add_pooling_layer=add_pooling_layer)


class HictlForMaskedLM(LoadsItsFamily, XLMRobertaForMaskedLM):
    """The encoder with its language-model head, for `fill-mask` and further masked training."""

    config: HictlConfig
    config_class = HictlConfig
    accepts_loss_kwargs = True  # the Trainer passes `num_items_in_batch`
    forward = divide_by_items(XLMRobertaForMaskedLM.forward)
    _keys_to_ignore_on_load_unexpected = OF_PRETRAINING


class HictlForSequenceClassification(LoadsItsFamily, XLMRobertaForSequenceClassification):
    """The encoder with a classifier on the first token (XNLI, PAWS-X)."""

    config: HictlConfig
    config_class = HictlConfig
    accepts_loss_kwargs = True
    forward = divide_by_items(XLMRobertaForSequenceClassification.forward)
    _keys_to_ignore_on_load_unexpected = [*OF_PRETRAINING, r"lm_head"]


class HictlForTokenClassification(LoadsItsFamily, XLMRobertaForTokenClassification):
    """The encoder with a classifier on each token (POS, NER)."""

    config: HictlConfig
    config_class = HictlConfig
    accepts_loss_kwargs = True
    forward = divide_by_items(XLMRobertaForTokenClassification.forward)
    _keys_to_ignore_on_load_unexpected = [*OF_PRETRAINING, r"lm_head"]


class HictlForQuestionAnswering(LoadsItsFamily, XLMRobertaForQuestionAnswering):
    """The encoder with scores for the start and the end of an answer (XQuAD, MLQA, TyDiQA)."""

    config: HictlConfig
    config_class = HictlConfig
    accepts_loss_kwargs = False  # the Trainer has no `labels` to count, and divides the mean
    _keys_to_ignore_on_load_unexpected = [*OF_PRETRAINING, r"lm_head"]


class HictlForMultipleChoice(LoadsItsFamily, XLMRobertaForMultipleChoice):
    """The encoder with a score for each of several answers, of which one is right (XCOPA)."""

    config: HictlConfig
    config_class = HictlConfig
    accepts_loss_kwargs = True
    forward = divide_by_items(XLMRobertaForMultipleChoice.forward)
    _keys_to_ignore_on_load_unexpected = [r"lm_head", r"projection", r"sentence_probability"]


class HictlForPreTraining(HictlObjective, XLMRobertaForMaskedLM):
    """XLM-R with a linear sentence projection f and the objective L = L_LM + L_S + L_W.

    `from_pretrained` loads any checkpoint of XLM-R, and of the other families of `families.FAMILIES`, each with its
    class.

    Example:
        >>> from hictl_hf import HictlConfig, HictlForPreTraining
        >>> model = HictlForPreTraining(HictlConfig(vocab_size=99, hidden_size=32, num_hidden_layers=1,
        ...     num_attention_heads=2, intermediate_size=64))
        >>> model.projection.weight.shape
        torch.Size([32, 32])
    """

    config: HictlConfig
    config_class = HictlConfig
    family = FAMILIES["xlm-roberta"]

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, config: Any = None, **kwargs: Any) -> Any:
        """Load a checkpoint of HiCTL, or a plain encoder, with the class of its family."""
        name = pretrained_model_name_or_path
        family = family_of(model_type_of(name, config, **kwargs))
        if cls is HictlForPreTraining and family is not None and family.own_type != OURS:
            return PRETRAINING_CLASSES[family.model_type].from_pretrained(name, *args, config=config, **kwargs)
        return super().from_pretrained(name, *args, config=config, **kwargs)


PRETRAINING_CLASSES["xlm-roberta"], ENCODER_CLASSES["xlm-roberta"] = HictlForPreTraining, HictlModel


def new_model(config: Any) -> Any:
    """A new pre-training model of a HiCTL configuration of any family, with random weights."""
    return PRETRAINING_CLASSES[config.family.model_type](config)


def encoder_class(family: Family) -> type[Any]:
    """The class of the encoder of a family."""
    return ENCODER_CLASSES[family.model_type]


for auto, cls in {
    AutoModel: HictlModel,
    AutoModelForPreTraining: HictlForPreTraining,
    AutoModelForMaskedLM: HictlForMaskedLM,
    AutoModelForSequenceClassification: HictlForSequenceClassification,
    AutoModelForTokenClassification: HictlForTokenClassification,
    AutoModelForQuestionAnswering: HictlForQuestionAnswering,
    AutoModelForMultipleChoice: HictlForMultipleChoice,
}.items():
    auto.register(HictlConfig, cls)
    cls.register_for_auto_class(auto.__name__)

__all__ = [
    "HictlForMaskedLM",
    "HictlForMultipleChoice",
    "HictlForPreTraining",
    "HictlForPreTrainingOutput",
    "HictlForQuestionAnswering",
    "HictlForSequenceClassification",
    "HictlForTokenClassification",
    "HictlModel",
    "encoder_class",
    "export_encoder",
    "new_model",
]
