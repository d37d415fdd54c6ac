from .checkpoints import last_whole_checkpoint, verify_checkpoint
from .trainer import RobustTrainer

__all__ = ["RobustTrainer", "last_whole_checkpoint", "verify_checkpoint"]
