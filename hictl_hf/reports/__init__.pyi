from .results import RunResults
from .tables import Cell, Table

__all__ = ["Cell", "RunResults", "Table"]
