from .bitext import Bitext, retrieval_accuracy
from .held_out import best_pooling, evaluate_retrieval
from .mining import MiningConfig, mine
from .nearest_neighbours import search_both

__all__ = ["Bitext", "MiningConfig", "best_pooling", "evaluate_retrieval", "mine", "retrieval_accuracy", "search_both"]
