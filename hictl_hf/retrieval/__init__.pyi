from .bitext import Bitext, retrieval_accuracy
from .held_out import best_pooling, evaluate_retrieval
from .mining import MiningConfig, mine
from .nearest_neighbours import search_both
from .plots import SentenceMap
from .sentence_sets import draw_sentence_sets

__all__ = [
    "Bitext",
    "MiningConfig",
    "SentenceMap",
    "best_pooling",
    "draw_sentence_sets",
    "evaluate_retrieval",
    "mine",
    "retrieval_accuracy",
    "search_both",
]
