from .encoder import embed_sentences, load_encoder
from .mteb_evaluation import evaluate_mteb, load_task
from .nearest_words import Explainer
from .onnx_export import export_onnx
from .pooling import Pooling, all_poolings, own_pooling
from .sentence_transformers_files import save_sentence_encoder
from .to_file import VectorFileConfig, embed_to_file

__all__ = [
    "Explainer",
    "Pooling",
    "VectorFileConfig",
    "all_poolings",
    "embed_sentences",
    "embed_to_file",
    "evaluate_mteb",
    "export_onnx",
    "load_encoder",
    "load_task",
    "own_pooling",
    "save_sentence_encoder",
]
