from .bitext import Bitext, retrieval_accuracy
from .held_out import RetrievalAccuracy, best_pooling, evaluate_retrieval
from .mining import MiningConfig, mine
from .mining_files import deduplicate_lines, filter_pairs, mine_files
from .nearest_neighbours import Neighbours, search_both

__all__ = [
    "Bitext",
    "MiningConfig",
    "Neighbours",
    "RetrievalAccuracy",
    "best_pooling",
    "deduplicate_lines",
    "evaluate_retrieval",
    "filter_pairs",
    "mine",
    "mine_files",
    "retrieval_accuracy",
    "search_both",
]
