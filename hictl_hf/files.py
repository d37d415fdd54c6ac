"""Atomic writes of files and folders, and checks of output paths."""

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .errors import BadInput, is_full_disk

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]


HOME = re.compile(r"(?<![^:+=])~(?=/)")  # at the beginning of a path, also of en:~/a.txt+de:~/b.txt
NAMED = re.compile(r"(--[\w-]+=)?([\w.+@-]+:)*~/")  # what a flag's word or a source begins with
STANDARD_OUTPUT = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/fd/(\d+)")  # a file that the shell opened, which may be in the middle
UNFINISHED = ".unfinished"  # the folder of `atomic_directory`
FAILED_WRITES = (  # in messages of failed writes whose exception is no OSError
    "(os error", "I/O error",  # safetensors and tokenizers, which are written in Rust
    "inline_container", "iostream", "Parent directory",  # torch.save: a RuntimeError
)  # fmt: skip


def with_home(word: str) -> str:
    """Return a path, source or flag with the home folder for ~, which no shell expands in quotes, after = or in a file.

    >>> with_home("--prompt=a ~/b"), with_home("en+de:~/a.tsv") == "en+de:" + os.path.expanduser("~/a.tsv")
    ('--prompt=a ~/b', True)
    """
    return HOME.sub(lambda _: os.path.expanduser("~"), word) if NAMED.match(word) else word


def is_stream(path: str | Path) -> bool:
    """Whether an output is written as it comes, in place of a file that is named once it is complete: standard output
    ("-"), a pipe, a terminal or another device."""
    named = str(path)
    if named in STANDARD_OUTPUT or named == "/dev/stderr" or DESCRIPTOR.fullmatch(named):
        return True
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def check_place(path: str | Path, folder: bool = False) -> None:
    """Raise `BadInput` unless a file (or a folder) can be written at this path."""
    if is_stream(path):
        allowed = f"allowed is the path of a {'folder' if folder else 'file'}. Choose another output."
        raise BadInput(f"{path}: is standard output, a pipe or a device; {allowed}")
    allowed = f"allowed is a path where a {'folder' if folder else 'file'} can be written. Choose another output."
    if folder and str(path) != str(path).encode(errors="ignore").decode():  # where tokenizers save nothing
        raise BadInput(f"{path}: is no name in UTF-8; {allowed}")
    output = Path(os.path.realpath(path))
    for link in (output, *((Path(path), *Path(path).parents) if folder else ())):  # mkdir makes no folder of a link
        if link.is_symlink() and not link.exists():
            raise BadInput(f"{path}: {link} is a link to {os.readlink(link)}, which does not exist; {allowed}")
    existing = next(each for each in (output, *output.parents) if each.exists())
    if existing.is_dir() != (folder or existing != output):
        found = "is" if existing == output else f"{existing} is"
        raise BadInput(f"{path}: {found} a {'folder' if existing.is_dir() else 'file'}; {allowed}")
    if not os.access(existing.parent if existing.is_file() else existing, os.W_OK):
        raise BadInput(f"{path}: {existing} cannot be written to; {allowed}")


def new_folder(path: str | Path) -> Path:
    """Return the path of a folder for `atomic_directory`; `BadInput` if it is not empty or cannot be created."""
    check_place(path, folder=True)
    folder = Path(path)
    if folder.exists() and not _is_empty(folder):
        raise BadInput(f"{folder}: is not empty; allowed is a new folder. Remove it or choose another one.")
    return folder


def _is_empty(folder: Path) -> bool:
    """Whether a folder has nothing but what a killed `atomic_directory` left in it."""
    return {path.name for path in folder.iterdir()} <= {UNFINISHED}


def write_json(path: str | Path, value: Any) -> Path:
    """Write a value as JSON atomically and return the path. Keys keep their order; NaN and infinity become null."""
    return write_text(Path(path), json.dumps(_without_nan(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, list | tuple) else value


def write_text(path: Path, text: str) -> Path:
    """Write a text file atomically and return its path; a byte of a file's name that is not UTF-8 becomes an escape,
    which is JSON's for it, too."""
    with atomic_file(path) as draft:
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


@contextmanager
def atomic_file(path: Path, draft: Path | None = None, keep_draft: bool = False) -> Iterator[Path]:
    """Yield a draft file that replaces `path` at the end of the block; if the block fails, `path` is unchanged and the
    draft is removed.

    Args:
        draft: path of the draft; by default a hidden file next to `path`, with the process id in its name.
        keep_draft: whether to keep a non-empty draft after a failure.
    """
    draft = draft or path.with_name(f".{path.name}.{os.getpid()}")
    draft.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield draft
        os.replace(draft, path)
    except BaseException as error:
        if not (keep_draft and draft.exists() and draft.stat().st_size):
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None and is_full_disk(error):
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error  # of which file
        raise


def partial_file(path: Path) -> Path:
    """Return the path of an incomplete output: NAME.partial next to it."""
    return path.with_name(f"{path.name}.partial")


def is_unused(folder: Path, state: Path) -> bool:
    """Whether nothing is at the path of a folder of partial output, or no more than what was left by a process that was
    killed while it wrote the first file, `state`, by `atomic_file`."""
    if folder.is_dir():
        return all(path.name.startswith(f".{state.name}.") for path in folder.iterdir())
    return not folder.exists()


def remove_partial(folder: Path, state: Path) -> None:
    """Remove a folder of partial output; the file `state` is last, without which no command can continue."""
    for path in {*folder.iterdir()} - {state}:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.rmtree(folder)


@contextmanager
def atomic_directory(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces `folder` at the end of the block; if the block fails, it is removed.

    An empty `folder` stays, and what is in the yielded one moves into it: it may be a mount, or the current folder.
    """
    stays = folder.is_dir() and _is_empty(folder)
    unfinished = folder / UNFINISHED if stays else folder.with_name(folder.name + UNFINISHED)
    with writing(unfinished, "free space or make it writable, then resume from the last checkpoint or run again"):
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        yield unfinished
        let_others_read(unfinished)
    if stays:
        for path in unfinished.iterdir():
            path.rename(folder / path.name)
        unfinished.rmdir()
    else:
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)


def let_others_read(folder: Path) -> None:
    """Give weights in a new folder the mode of any other new file: safetensors 0.8 writes them for their owner alone,
    whatever the umask, which the mode of the folder has."""
    for file in folder.rglob("*.safetensors"):
        with suppress(OSError):  # a file system without modes, or of another owner
            file.chmod(file.stat().st_mode | folder.stat().st_mode & 0o666)


_HELD: set[int] = set()  # folders of `only_writer`, opened


@contextmanager
def only_writer(folder: str | Path, argument: str = "--output_dir") -> Iterator[None]:
    """Hold an output folder, which is made, and if new removed while empty; `BadInput` if another run holds it.

    Args:
        argument: that names another one.
    """
    folder = Path(folder)
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(held)
        raise BadInput(
            f"{folder}: another run that has not ended writes into it; allowed is one run in a folder; wait for its "
            f"end, or choose another {argument}"
        ) from error
    except OSError:  # a file system without locks
        pass
    _HELD.add(held)
    try:
        yield
    finally:
        _HELD.remove(held)
        os.close(held)
        with suppress(OSError):
            if is_new:
                folder.rmdir()


def _release() -> None:
    """In a process that was forked, such as a DataLoader worker: it may end after the run that holds a folder."""
    for held in _HELD:
        os.close(held)
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release)


@contextmanager
def writing(folder: Path, fix: str) -> Iterator[None]:
    """Remove `folder` if the block that writes it fails; a failed write becomes `BadInput` with the free disk space."""
    try:
        yield
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if not isinstance(error, OSError) and not any(text in str(error) for text in FAILED_WRITES):
            raise
        free = shutil.disk_usage(next(parent for parent in folder.parents if parent.exists())).free >> 20
        raise BadInput(f"{folder}: cannot be saved, with {free} MiB free on its disk: {error}; {fix}") from error


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest(path: Path) -> str:
    """Return the blake2b hash of a file: 16 bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def readable(size: int) -> str:
    """A number of bytes in the largest unit of which there is one.

    >>> readable(999), readable(1_500_000_000)
    ('999 B', '1.5 GB')
    """
    units = ("B", "KB", "MB", "GB", "TB")
    power = min(max(len(str(size)) - 1, 0) // 3, len(units) - 1)
    return f"{size / 1000**power:.{1 if power else 0}f} {units[power]}"
