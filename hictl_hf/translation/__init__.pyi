from .arguments import TranslationArguments
from .beam_search import BeamSearchConfig
from .ctranslate2_export import export_ctranslate2
from .decoding import translate
from .pipeline import translation_pipeline
from .results import TranslationResults
from .run import run_translation
from .scores import paired_bootstrap, score_translations
from .target_vocabulary import choose_target_ids

__all__ = [
    "BeamSearchConfig",
    "TranslationArguments",
    "TranslationResults",
    "choose_target_ids",
    "export_ctranslate2",
    "paired_bootstrap",
    "run_translation",
    "score_translations",
    "translate",
    "translation_pipeline",
]
