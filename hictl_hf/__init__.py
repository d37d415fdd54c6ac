"""HiCTL for the Hugging Face ecosystem: universal representations across languages (Wei et al., ICLR 2021)."""

from .configuration_hictl import HictlConfig
from .modeling_hictl import (
    HictlForMaskedLM,
    HictlForPreTraining,
    HictlForQuestionAnswering,
    HictlForSequenceClassification,
    HictlForTokenClassification,
    HictlModel,
    export_encoder,
)
from .modeling_hictl_translation import HictlForConditionalGeneration
from .translation_pipeline import translation_pipeline
from .version import __version__

__all__ = [
    "HictlConfig",
    "HictlForConditionalGeneration",
    "HictlForMaskedLM",
    "HictlForPreTraining",
    "HictlForQuestionAnswering",
    "HictlForSequenceClassification",
    "HictlForTokenClassification",
    "HictlModel",
    "__version__",
    "export_encoder",
    "translation_pipeline",
]
