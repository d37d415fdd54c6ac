"""The version of the package, in the one place that packaging and reports read."""

__version__ = "0.31.2"
