"""Compressed files and members of zip archives, read and written as streams by their ending."""

import bz2
import gzip
import lzma
import os
import sys
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZipFile

from ..errors import BadInput
from .file_kinds import COMPRESSED

COMPRESSIONS = tuple(COMPRESSED)


def compression_of(path: str) -> str:
    """Return the ending of a compressed file, else "".

    >>> compression_of("news.de.TXT.XZ"), compression_of("news.de")
    ('.xz', '')
    """
    ending = os.path.splitext(f"x{path}")[1].lower()
    return ending if ending in COMPRESSIONS else ""


def with_compressions(*endings: str) -> list[str]:
    """Return each ending alone and with each compression.

    >>> with_compressions(".csv")
    ['.csv', '.csv.gz', '.csv.bz2', '.csv.xz', '.csv.zst']
    """
    return [ending + compression for ending in endings for compression in ("", *COMPRESSIONS)]


def listed(endings: Collection[str]) -> str:
    """Return endings for a message.

    >>> listed(with_compressions(".csv", ".tsv") + [".po"])
    '.csv, .tsv, .po (.csv, .tsv also with .gz, .bz2, .xz, .zst)'
    """
    plain = dict.fromkeys(ending.removesuffix(compression_of(ending)) for ending in endings)
    both = [ending for ending in plain if f"{ending}.gz" in endings]
    return ", ".join(plain) + f" ({', '.join(both)} also with {', '.join(COMPRESSIONS)})" * bool(both)


def opener(path: str) -> Any:
    """Return `open`, or the function with its arguments for a compressed file.

    Raises:
        BadInput: the package for Zstandard is not installed.
    """
    match compression_of(path):
        case ".gz":
            return gzip.open
        case ".bz2":
            return bz2.open
        case ".xz":
            return lzma.open
        case ".zst":
            try:
                return import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd").open
            except ImportError as error:
                raise BadInput(
                    f"{path}: is compressed with Zstandard, which needs a package that is not installed. Install it: "
                    f"pip install 'hictl_hf[zstd]', or decompress the file: zstd -d {path}"
                ) from error
    return open


def open_bytes(path: str) -> BinaryIO:
    """Open a file, decompressed if it is compressed, or a member of a zip archive ("corpus.zip/corpus.de")."""
    archive, member = split_member(path)
    if not member:
        return opener(path)(path, "rb")
    with ZipFile(archive) as file:  # stays open until the member is closed
        return file.open(member)  # type: ignore[return-value]


def split_member(path: str) -> tuple[str, str]:
    """Return the archive and the name of the member that a path stands for, "" if it is no member of an archive."""
    at = path.lower().find(".zip/")
    if at < 0 or Path(path).exists() or not Path(path[: at + 4]).is_file():
        return path, ""
    return path[: at + 4], path[at + 5 :]
