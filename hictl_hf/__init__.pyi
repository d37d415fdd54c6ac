from .errors import BadInput
from .models.configuration_hictl import HictlConfig
from .models.encoder_export import export_encoder
from .models.modeling_hictl import (
    HictlForMaskedLM,
    HictlForMultipleChoice,
    HictlForPreTraining,
    HictlForQuestionAnswering,
    HictlForSequenceClassification,
    HictlForTokenClassification,
    HictlModel,
)
from .models.modeling_hictl_translation import HictlForConditionalGeneration
from .translation.pipeline import translation_pipeline
from .version import __version__

__all__ = [
    "BadInput",
    "HictlConfig",
    "HictlForConditionalGeneration",
    "HictlForMaskedLM",
    "HictlForMultipleChoice",
    "HictlForPreTraining",
    "HictlForQuestionAnswering",
    "HictlForSequenceClassification",
    "HictlForTokenClassification",
    "HictlModel",
    "__version__",
    "export_encoder",
    "translation_pipeline",
]
