"""Files and folders: check where output may go; write it completely or not at all."""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import BadInput


def check_place(path: str | Path, folder: bool = False) -> None:
    """Raise `BadInput` unless a file (or a folder) can be written at this path."""
    output = Path(path).resolve()
    existing = next(each for each in (output, *output.parents) if each.exists())
    allowed = f"allowed is a {'folder' if folder else 'file'} where one can be written. Name another output."
    if existing.is_dir() != (folder or existing != output):
        found = "is" if existing == output else f"{existing} is"
        raise BadInput(f"{path}: {found} a {'folder' if existing.is_dir() else 'file'}; {allowed}")
    if not os.access(existing.parent if existing.is_file() else existing, os.W_OK):
        raise BadInput(f"{path}: {existing} cannot be written to; {allowed}")


def new_folder(path: str | Path) -> Path:
    """Make a folder and return it; `BadInput` if it is not empty or cannot be made."""
    check_place(path, folder=True)
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise BadInput(f"{folder}: is not empty; allowed is a new folder. Remove it or choose another one.")
    return folder


def write_json(path: str | Path, value: Any) -> Path:
    """Write a value as JSON atomically, keys in their order, NaN and infinity as null; returns the path."""
    return write_text(Path(path), json.dumps(_without_nan(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> Path:
    """Write a text file atomically; returns its path."""
    with atomic_file(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return path


@contextmanager
def atomic_file(path: Path, draft: Path | None = None, keep_draft: bool = False) -> Iterator[Path]:
    """Yield a draft to write to, which replaces `path` at the end of the block; if the block fails, `path` stays as it
    was and the draft is removed.

    Args:
        draft: where to write; a hidden file of this process next to `path` by default.
        keep_draft: after a failure keep a draft that is not empty.
    """
    draft = draft or path.with_name(f".{path.name}.{os.getpid()}")
    draft.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield draft
        os.replace(draft, path)
    except BaseException:
        if not (keep_draft and draft.exists() and draft.stat().st_size):
            draft.unlink(missing_ok=True)
        raise


def partial_file(path: Path) -> Path:
    """Return where an output is written until it is complete: NAME.partial next to it."""
    return path.with_name(f"{path.name}.partial")


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, list | tuple) else value


# Text in errors of failed writes that are no OSError.
FAILED_WRITES = (
    "(os error", "I/O error",  # safetensors and tokenizers, which are Rust, raise exceptions of their own
    "inline_container", "iostream", "Parent directory",  # torch.save raises RuntimeError
)  # fmt: skip


@contextmanager
def atomic_directory(folder: Path) -> Iterator[Path]:
    """Yield a folder to write to, which replaces `folder` at the end of the block."""
    unfinished = folder.with_name(folder.name + ".unfinished")
    with writing(unfinished, "free space or make it writable, then resume from the last checkpoint, or run again"):
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        yield unfinished
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


@contextmanager
def writing(folder: Path, fix: str) -> Iterator[None]:
    """Remove the folder if the block that writes it fails; `BadInput` with the free disk space for a failed write."""
    try:
        yield
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        if not isinstance(error, OSError) and not any(text in str(error) for text in FAILED_WRITES):
            raise
        free = shutil.disk_usage(next(parent for parent in folder.parents if parent.exists())).free >> 20
        raise BadInput(f"{folder}: cannot be saved, with {free} MiB free on its disk: {error}; {fix}") from error


def flush(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest(path: Path) -> str:
    """Return the hash of a file: 16 bytes of blake2b, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
