from .configuration_hictl import HictlConfig
from .encoder_export import export_encoder
from .losses import sentence_contrast, word_contrast
from .modeling_hictl import (
    HictlForMaskedLM,
    HictlForMultipleChoice,
    HictlForPreTraining,
    HictlForQuestionAnswering,
    HictlForSequenceClassification,
    HictlForTokenClassification,
    HictlModel,
)
from .modeling_hictl_translation import HictlForConditionalGeneration
from .negatives import in_batch_negatives, interpolate_hard_negatives
from .word_sampling import sample_words

__all__ = [
    "HictlConfig",
    "HictlForConditionalGeneration",
    "HictlForMaskedLM",
    "HictlForMultipleChoice",
    "HictlForPreTraining",
    "HictlForQuestionAnswering",
    "HictlForSequenceClassification",
    "HictlForTokenClassification",
    "HictlModel",
    "export_encoder",
    "in_batch_negatives",
    "interpolate_hard_negatives",
    "sample_words",
    "sentence_contrast",
    "word_contrast",
]
