"""Docstrings for the site: set doctests as code, and read `Args (...):` as `Args:`."""

import re
from typing import Any

from griffe import Extension, Object

DOCTEST = re.compile(r"(?:^ *>>> .*\n?)(?:^ *\S.*\n?)*", re.MULTILINE)


class DocstringExamples(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            text = re.sub(r"^( *Args) \(.*\):$", r"\1:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = DOCTEST.sub(lambda test: f"```pycon\n{test[0].rstrip()}\n```\n", text)
