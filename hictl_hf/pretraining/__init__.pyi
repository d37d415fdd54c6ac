from .arguments import PretrainingArguments
from .results import PretrainingResults
from .run import pretrain
from .trainer import HictlTrainer

__all__ = ["HictlTrainer", "PretrainingArguments", "PretrainingResults", "pretrain"]
