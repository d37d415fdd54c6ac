from .checkpoints import last_complete_checkpoint, verify_checkpoint
from .trainer import RobustTrainer

__all__ = ["RobustTrainer", "last_complete_checkpoint", "verify_checkpoint"]
