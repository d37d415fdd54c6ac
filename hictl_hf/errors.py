"""Errors that users see: one clear message with the place, the value found, what is allowed and the fix."""

import os
import signal
import sys
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

TRACEBACK = "--traceback"


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


def add_traceback(parser: ArgumentParser) -> None:
    """Add `--traceback`, which `run` looks for."""
    parser.add_argument(
        TRACEBACK, action="store_true", default=SUPPRESS, help="Show the Python traceback of an error, not one line."
    )


def run(main: Callable[..., object], argv: Sequence[str] | None = None, **settings: str) -> None:
    """Call `main` with these arguments, by default those of the command line. Input that cannot be used, and a file
    that cannot be opened, end the program with one line; with `--traceback` the exception is raised instead."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        main(argv, **settings)
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except (BadInput, OSError) as error:
        message = in_one_line(error)
        if message is None or TRACEBACK in argv:
            raise
        sys.exit(f"error: {message}")


def in_one_line(error: BadInput | OSError) -> str | None:
    """The message for the user, without the traceback of a worker process; `None` for an error without a path."""
    if isinstance(error, BadInput):
        return str(error).rpartition("BadInput: ")[2]
    if error.errno is None or error.filename is None:
        return None
    place = error.filename2 or error.filename
    return f"{place}: {error.strerror}; allowed is what can be read or written there. Check the path."
