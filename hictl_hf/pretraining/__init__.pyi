from .arguments import PretrainingArguments
from .dry_run import RunPlan, plan
from .results import PretrainingResults
from .run import pretrain
from .trainer import HictlTrainer

__all__ = ["HictlTrainer", "PretrainingArguments", "PretrainingResults", "RunPlan", "plan", "pretrain"]
