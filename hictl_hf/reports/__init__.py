"""Typed results, and tables as text, Markdown, LaTeX and HTML; knows no task."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
