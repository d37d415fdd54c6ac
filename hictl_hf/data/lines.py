"""Lines of text as commands take them, from files or as they come, and give them: a file that is written has its name
once it is whole, and stands beside it as NAME.partial before."""

import gzip
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from ..errors import BadInput, BrokenRow
from ..files import check_place
from .formats import Cursor, checked_text, read_lines

logger = logging.getLogger(__name__)

TYPED = "standard input"


def check_output(output: str | None, inputs: Sequence[str]) -> None:
    """Raise `BadInput` if the output cannot be written, or writing it would destroy an input."""
    if output is not None:
        whole = Path(output).resolve()
        for path in inputs:
            if Path(path).resolve() in (whole, partial_file(whole)):
                raise BadInput(f"{output}: {path}, which writing it would destroy, is an input; name another output")
        check_place(output)


def check_inputs(inputs: Sequence[str]) -> None:
    """Raise `BadInput` if one of several files is not there, before the first is worked on."""
    for path in inputs:
        if Path(path).is_dir() or not os.access(path, os.R_OK):
            raise BadInput(f"{path}: no file that can be read; allowed is UTF-8 text. Name another input.")


@contextmanager
def open_output(path: str | None) -> Iterator[TextIO]:
    """Standard output, in UTF-8, without a path; else a file that has its name, and an older one's place, after the
    block alone."""
    if path is None:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        yield sys.stdout
        return
    whole = Path(path).resolve()
    if whole.exists() and not whole.is_file():  # a pipe or a terminal, whose reader waits
        with whole.open("w", encoding="utf-8", newline="\n") as output:
            yield output
        return
    partial = partial_file(whole)
    partial.parent.mkdir(parents=True, exist_ok=True)
    try:
        opened: Any = gzip.open if whole.suffix == ".gz" else open
        with opened(partial, "wt", encoding="utf-8", newline="\n") as output:
            yield output
        os.replace(partial, whole)
    except BaseException:
        if partial.exists() and partial.stat().st_size:
            logger.warning("%s: not written; the lines translated so far are in %s", path, partial)
        else:
            partial.unlink(missing_ok=True)
        raise


def partial_file(whole: Path) -> Path:
    return whole.with_name(f"{whole.name}.partial")


def read_texts(paths: Sequence[str]) -> Iterator[str]:
    """The lines of files in their order, or of standard input as they come; only a line feed ends a line."""
    sources = [(path, read_lines(path, Cursor())) for path in paths] or [(TYPED, read_standard_input())]
    for name, lines in sources:
        for number, line in lines:
            try:
                yield checked_text("source", line)
            except BrokenRow as problem:
                raise BadInput(f"{name}:{number}: {problem}") from problem


def read_standard_input() -> Iterator[tuple[int, str]]:
    for number, line in enumerate(sys.stdin.buffer, start=1):
        yield number, line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "surrogateescape")
