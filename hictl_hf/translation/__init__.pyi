from .arguments import TranslationArguments
from .beam_search import BeamSearchConfig
from .ctranslate2_export import export_ctranslate2
from .decoding import Translation, translate
from .pipeline import TranslationPipeline, load_translator, translation_pipeline
from .results import TranslationResults
from .run import run_translation
from .scores import paired_bootstrap, score_translations

__all__ = [
    "BeamSearchConfig",
    "Translation",
    "TranslationArguments",
    "TranslationPipeline",
    "TranslationResults",
    "export_ctranslate2",
    "load_translator",
    "paired_bootstrap",
    "run_translation",
    "score_translations",
    "translate",
    "translation_pipeline",
]
