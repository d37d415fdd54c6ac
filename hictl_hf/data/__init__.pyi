from .cleaning import Cleaning, CorpusReport
from .collator import PretrainingCollator
from .corpus import load_corpus
from .held_out import split_held_out
from .layout import words_never_sampled
from .sampling import TemperatureSampler
from .sources import read_rows
from .tokenization import tokenize_corpus, train_tokenizer

__all__ = [
    "Cleaning",
    "CorpusReport",
    "PretrainingCollator",
    "TemperatureSampler",
    "load_corpus",
    "read_rows",
    "split_held_out",
    "tokenize_corpus",
    "train_tokenizer",
    "words_never_sampled",
]
