"""Compressed files and members of zip archives, read and written as streams by their ending."""

import bz2
import gzip
import lzma
import os
import sys
from collections.abc import Callable, Collection
from importlib import import_module
from io import SEEK_CUR, SEEK_END, SEEK_SET, BufferedReader, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZipFile

from ..errors import BadInput
from .file_kinds import COMPRESSED

COMPRESSIONS = tuple(COMPRESSED)
IN_STREAMS = {".bz2": bz2.BZ2Decompressor, ".xz": lzma.LZMADecompressor}
BYTES_AT_ONCE = 2**16


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
                    f"{path}: Zstandard needs a package that is not installed. Install it: "
                    "pip install 'hictl_hf[zstd]', or use .gz, .bz2 or .xz (zstd -d FILE decompresses)"
                ) from error
    return open


class Streams(RawIOBase):
    """Decompressed bytes of all streams of a file, as pbzip2 and cat make them.

    `bz2.open` and `lzma.open` end without an error at whatever follows a stream and is none, as a damaged one is.
    """

    def __init__(self, file: BinaryIO, new: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]) -> None:
        self.file, self.new = file, new
        self.decompressor, self.place = new(), 0
        self.padding = b"\0" * (new is lzma.LZMADecompressor)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b""
        while not data:
            given = b""
            if self.decompressor.eof:
                given = self.decompressor.unused_data.lstrip(self.padding)
                while not given:
                    if not (read := self.file.read(BYTES_AT_ONCE)):
                        return 0
                    given = read.lstrip(self.padding)
                self.decompressor = self.new()
            elif self.decompressor.needs_input and not (given := self.file.read(BYTES_AT_ONCE)):
                raise EOFError("the file ends within a compressed stream")
            data = self.decompressor.decompress(given, len(buffer))
        buffer[: len(data)] = data
        self.place += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        """Read up to an offset, from the beginning if it lies behind; the end is known once it is reached."""
        if whence == SEEK_END:
            while self.read(BYTES_AT_ONCE):
                pass
        wanted = max(offset + self.place * (whence in (SEEK_CUR, SEEK_END)), 0)
        if wanted < self.place:
            self.file.seek(0)
            self.decompressor, self.place = self.new(), 0
        while self.place < wanted and self.read(min(BYTES_AT_ONCE, wanted - self.place)):
            pass
        return self.place

    def close(self) -> None:
        self.file.close()
        super().close()


def open_bytes(path: str) -> BinaryIO:
    """Open a file, or a member of a zip archive ("corpus.zip/corpus.de"), decompressed if it is compressed."""
    archive, member = split_member(path)
    ending = compression_of(path)
    file: Any = None
    if member:
        with ZipFile(archive) as opened:  # stays open until the member is closed
            file = opened.open(member)
    if ending in IN_STREAMS:
        return BufferedReader(Streams(file or open(path, "rb"), IN_STREAMS[ending]))
    return file if file and not ending else opener(path)(file or path, "rb")


def split_member(path: str) -> tuple[str, str]:
    """Return the archive and the name of the member that a path stands for, "" if it is no member of an archive."""
    at = path.lower().find(".zip/")
    if at < 0 or Path(path).exists() or not Path(path[: at + 4]).is_file():
        return path, ""
    return path[: at + 4], path[at + 5 :]
