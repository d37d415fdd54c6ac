"""Errors for the user: one line with the place, the value found, the values allowed and the fix; `--debug`."""

import errno
import os
import re
import signal
import sys
import time
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from io import TextIOWrapper
from itertools import islice
from pathlib import Path

DEBUG = "--debug"
DEBUG_HELP = "Show the Python traceback of an error instead of one line."
OF_LAUNCHERS = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
GRACE = 20.0  # seconds in which the first of several processes can tell an error of all
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_RIGHTS = (errno.EACCES, errno.EPERM, errno.EROFS)
SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")  # NumPy's of a full disk, without a number
LOST_PROCESS = re.compile(r"gloo.*by peer", re.DOTALL)  # in a process that waited for one that ended
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # without tab and line feed
HF_DEBUG = ("underflow_overflow", "tpu_metrics_debug")  # values of `--debug` of HF's TrainingArguments


class BadInput(ValueError):
    """Invalid input; the message names the place, the value found, the values allowed and the fix."""


class BrokenRow(Exception):
    """An invalid row; the message names the value found, the values allowed and the fix. The reader adds the place."""


def short_repr(value: object) -> str:
    """Return the `repr` of a value for a message, at most 60 characters."""
    written = repr(value)
    return written if len(written) <= 60 else f"{written[:57]}..."


def without_controls(text: str) -> str:
    """Return a text with escapes for control characters, which would act on a terminal: a name in an archive has any.

    >>> print(without_controls("a\x1b[2J.txt"))
    a\\x1b[2J.txt
    """
    return CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


def nearest_name(place: str | Path) -> str:
    """Return a question for the file or folder whose name is most like that of a missing one, also with the values of
    its variables, or for several with commas between them; else empty."""
    written = os.path.expandvars(os.path.expanduser(place))
    if written != str(place) and os.path.exists(written):
        return f"Did you mean {written}? Variables and ~ are not replaced here. "
    if os.path.exists(place):
        return ""
    if os.path.islink(place):
        return f"It is a link to {os.readlink(place)}, which does not exist. "
    if all(part and os.path.exists(part) for part in str(place).split(",")):
        return f"Did you mean {str(place).replace(',', ' ')}, with spaces between them? "
    names: list[str] = []
    with suppress(OSError):  # a folder that cannot be read
        names = [each.name for each in islice(Path(place).parent.glob("*"), 1000)]
    nearest = get_close_matches(Path(place).name, names, 1, cutoff=0.7)
    return f"Did you mean {Path(place).with_name(nearest[0])}? " if nearest else ""


@contextmanager
def as_bad_input(place: str, kind: str, fix: str) -> Iterator[None]:
    """Turn any exception of a library that reads `place` into one `BadInput`; polib and pyarrow raise many types.

    Args:
        kind: what is allowed there.
    """
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        if isinstance(error, FileNotFoundError) and str(error.filename) == str(place):
            raise BadInput(f"{place}: no such file; allowed is {kind}. {nearest_name(place)}Check the path.") from error
        found = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise BadInput(f"{place}: cannot be read ({found}); allowed is {kind}. {fix}") from error


def add_debug(parser: ArgumentParser) -> None:
    """Add the flag `--debug`, which `run` reads."""
    parser.add_argument(DEBUG, action="store_true", default=SUPPRESS, help=DEBUG_HELP)


def unset_empty() -> None:
    """Unset what a launcher sets and a shell has set to nothing: libraries would read a number."""
    for name in OF_LAUNCHERS:
        if not os.environ.get(name, "").strip():
            os.environ.pop(name, None)


def run(main: Callable[..., object], argv: Sequence[str] | None = None, **settings: str) -> None:
    """Call `main` with these arguments, by default those of the command line.

    `BadInput`, and an `OSError` that names a file, end the program with one line; with `--debug` they are raised. Of
    several processes that a launcher started the first one tells an error of all, and one that waited for a process
    that ended says so.
    """
    argv = sys.argv[1:] if argv is None else argv
    unset_empty()
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: where it is ASCII or Latin-1
    if sys.stdin is None:  # closed by the shell: nothing to read
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  # until the end of the process
    if sys.stderr is None:  # progress bars of libraries write to it
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    try:
        main(argv, **settings)
        leave_process_group()
        if sys.stdout:  # None if the shell closed it
            sys.stdout.flush()  # Python itself does it after all handlers
    except BrokenPipeError:  # the reader of stdout has closed it
        drop_stdout()
        sys.exit(128 + signal.SIGPIPE)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except (BadInput, OSError) as error:
        message = in_one_line(error)
        if message is None or shows_traceback(argv):
            raise
        drop_stdout()  # on a full disk
        if int(os.environ.get("RANK") or 0):
            time.sleep(GRACE)  # the launcher ends this process when the first one fails for the same reason
        sys.exit(f"error: {without_controls(message)}")
    except RuntimeError as error:
        if not LOST_PROCESS.search(str(error)) or shows_traceback(argv):
            raise
        sys.exit("error: another process of this run has ended; its own message, or the launcher's, has the reason")


def drop_stdout() -> None:
    """Drop what standard output cannot take, which would end Python with status 120 and another message."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def leave_process_group() -> None:
    """End the process group that a training joined; NCCL warns of one that stays until Python ends."""
    distributed = sys.modules.get("torch.distributed")  # importing it here would slow down every command
    if distributed and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def shows_traceback(argv: Sequence[str]) -> bool:
    """Whether `--debug` is given without a value of HF's `--debug`.

    >>> shows_traceback(["--debug", "--seed", "1"]), shows_traceback(["--debug", "underflow_overflow"])
    (True, False)
    """
    return any(word == DEBUG and value not in HF_DEBUG for word, value in zip(argv, [*argv[1:], ""]))


def in_one_line(error: BadInput | OSError) -> str | None:
    """Return the message, without the traceback of a worker process; `None` for an `OSError` without a path, except
    that of a full disk, which libraries raise without one."""
    if isinstance(error, BadInput):
        return str(error).rpartition("BadInput: ")[2]
    if is_full_disk(error):
        place = f"{error.filename}: " if error.filename else ""
        return (
            f"{place}{error.strerror or error}; allowed is a disk with room for the output, the caches and temporary "
            "files. Free space, or move them: --output, HF_HOME, HF_DATASETS_CACHE, TMPDIR."
        )
    if error.errno is None or error.filename is None:
        return None
    place = error.filename2 or error.filename
    fix = f"{nearest_name(place)}Check the path."
    if error.errno in NO_RIGHTS and is_in_cache(place):
        fix = "Hugging Face's cache is there; set HF_HOME to a folder that can be written to."
    return f"{place}: {error.strerror}; allowed is a path that can be read or written. {fix}"


def is_full_disk(error: OSError) -> bool:
    """Whether a write failed because the disk or a quota is full, or the file larger than allowed."""
    written = error.strerror or str(error)
    return error.errno in FULL_DISK or error.errno is None and bool(SHORT_WRITE.fullmatch(written))


def is_in_cache(place: str) -> bool:
    """Whether a path is within Hugging Face's cache, or a folder above it, which is made with it."""
    from huggingface_hub.constants import HF_HOME  # importing it above would slow down every command

    return Path(place).is_relative_to(HF_HOME) or Path(HF_HOME).is_relative_to(place)
