from .results import RunResults

__all__ = ["RunResults"]
