"""Typed results, report pages, and tables as text, Markdown, LaTeX and HTML; independent of tasks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
