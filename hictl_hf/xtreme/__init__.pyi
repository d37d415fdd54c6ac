from .arguments import XtremeArguments
from .fine_tuning import FineTuningConfig, fine_tune, predict_logits
from .results import XtremeResults
from .run import run_xtreme
from .scores import score_submission
from .tasks import TASKS, XtremeTask

__all__ = [
    "FineTuningConfig",
    "TASKS",
    "XtremeArguments",
    "XtremeResults",
    "XtremeTask",
    "fine_tune",
    "predict_logits",
    "run_xtreme",
    "score_submission",
]
