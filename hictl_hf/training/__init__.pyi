from .trainer import RobustTrainer

__all__ = ["RobustTrainer"]
