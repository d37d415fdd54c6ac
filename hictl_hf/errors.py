"""Errors that users see: one clear message with the place, the value found, what is allowed and the fix."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


class BadInput(ValueError):
    """The input cannot be used; the message names the place, what was found, what is allowed and the fix."""


class BrokenRow(Exception):
    """One row cannot be used; the message says what was found, what is allowed and the fix, but not yet where."""


def short_repr(value: object) -> str:
    """The value as a message quotes it, cut to one short line."""
    written = repr(value)
    return written if len(written) <= 60 else f"{written[:57]}..."


@contextmanager
def as_bad_input(place: str, kind: str, fix: str) -> Iterator[None]:
    """Turns whatever a library raises about a source into one `BadInput`; polib and pyarrow raise nearly anything."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        found = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise BadInput(f"{place}: cannot be read ({found}); allowed is {kind}. {fix}") from error


def run(main: Callable[..., object], *arguments: Sequence[str], **settings: str) -> None:
    """Call `main`; input that cannot be used, and a file that cannot be opened, end the program with one line, without
    the traceback of a worker."""
    try:
        main(*arguments, **settings)
    except BadInput as error:
        sys.exit(f"error: {str(error).rpartition('BadInput: ')[2]}")
    except BrokenPipeError:  # who reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except OSError as error:
        if error.errno is None or error.filename is None:
            raise
        place = error.filename2 or error.filename
        sys.exit(f"error: {place}: {error.strerror}; allowed is what can be read or written there. Check the path.")
