"""Files and folders: where output may go, and writing it completely or not at all."""

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
    """Raise `BadInput` where there can be no such output, a file or a folder."""
    place = Path(path).resolve()
    there = next(each for each in (place, *place.parents) if each.exists())
    allowed = f"allowed is a {'folder' if folder else 'file'} where one can be written. Name another output."
    if there.is_dir() != (folder or there != place):
        found = "is" if there == place else f"{there} is"
        raise BadInput(f"{path}: {found} a {'folder' if there.is_dir() else 'file'}; {allowed}")
    if not os.access(there.parent if there.is_file() else there, os.W_OK):
        raise BadInput(f"{path}: {there} cannot be written to; {allowed}")


def new_folder(path: str | Path) -> Path:
    """The folder, made; `BadInput` for one that holds anything, or cannot be."""
    check_place(path, folder=True)
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise BadInput(f"{folder}: is not empty; allowed is a new folder. Remove it or choose another one.")
    return folder


def write_json(path: str | Path, value: Any) -> Path:
    """Write a value as JSON, keys in their order and NaN as null; a value that cannot be written changes no file."""
    return write_text(Path(path), json.dumps(_without_nan(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> Path:
    """Write a file that appears whole or not at all; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, list | tuple) else value


FAILED_WRITES = (
    "(os error", "I/O error",  # safetensors and tokenizers, which are Rust, raise exceptions of their own
    "inline_container", "iostream", "Parent directory",  # torch.save raises RuntimeError
)  # fmt: skip


@contextmanager
def atomic_directory(folder: Path) -> Iterator[Path]:
    """A folder to write to, which takes the place of `folder` once it is complete."""
    unfinished = folder.with_name(folder.name + ".unfinished")
    with writing(unfinished, "free space or make it writable, then resume from the last checkpoint, or run again"):
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        yield unfinished
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


@contextmanager
def writing(folder: Path, fix: str) -> Iterator[None]:
    """Remove a folder that is not written whole; `BadInput` with the space on its disk where it cannot be."""
    try:
        yield
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        if not isinstance(error, OSError) and not any(text in str(error) for text in FAILED_WRITES):
            raise
        free = shutil.disk_usage(next(place for place in folder.parents if place.exists())).free >> 20
        raise BadInput(f"{folder}: cannot be saved, with {free} MiB free on its disk: {error}; {fix}") from error


def flush(path: Path) -> None:
    """Have the system write a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest(path: Path) -> str:
    """16 bytes of blake2b of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
