from .arguments import XtremeArguments
from .results import XtremeResults
from .run import run_xtreme
from .scores import score_submission
from .tasks import TASKS, XtremeTask

__all__ = ["TASKS", "XtremeArguments", "XtremeResults", "XtremeTask", "run_xtreme", "score_submission"]
