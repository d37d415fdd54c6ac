"""Lines of text: numbered lines of files, and input and output of commands. An output file gets its name once it is
complete; until then it is NAME.partial next to it."""

import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO, TextIO

from ..errors import BadInput, BrokenRow, as_bad_input, nearest_name
from ..files import DESCRIPTOR, STANDARD_OUTPUT, atomic_file, check_place, is_stream, partial_file
from .compression import compression_of, open_bytes, opener
from .file_kinds import COMPRESSED, LONGEST, SKIPPABLE, is_tar, is_utf_16, kind_of
from .records import Cursor, checked_text

logger = logging.getLogger(__name__)

LONGEST_LINE = 2**28  # bytes; an archive can hold a line that is longer than the memory
BLOCK = 2**20  # bytes
AS_NAMED = "with gzip if it ends in .gz, likewise .bz2, .xz and .zst"
STANDARD_INPUT = "standard input"
QUOTED_CELL = re.compile(r'"[^"]*(""[^"]*)+"')
ALL_QUOTED = re.compile(r'([-\d.]+\t)*("[^"\t]*"\t)+"[^"\t]*"')  # all cells, but for numbers
QUOTED: set[str] = set()  # files of which it was logged


# --- files ------------------------------------------------------------------------------------------------------------


def read_lines(path: str, cursor: Cursor) -> Iterator[tuple[int, str]]:
    """Yield numbered lines without their ends; only a line feed ends a line. Invalid UTF-8 becomes surrogates."""
    with open_text(path) as file:
        if cursor.offsets[0]:  # a pipe can only be read from its beginning
            file.seek(cursor.offsets[0])
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), start=cursor.number + 1):
            if len(line) > LONGEST_LINE:
                raise BadInput(
                    f"{path}:{number}: the line has more than {LONGEST_LINE:,} bytes; allowed is text in lines"
                )
            cursor.number = number
            cursor.offsets[0] += len(line)
            if number == 1:
                check_encoding(path, line)
                check_line_ends(path, line)
                line = line.removeprefix(b"\xef\xbb\xbf")
            if cursor.wants(number):
                yield number, _decode(line)


def count_lines(path: str) -> int:
    """Return how many lines `read_lines` yields, ten times as fast."""
    number, end = 0, b""
    with open_text(path) as file:
        while block := file.read(BLOCK):
            if not end:  # of the block before
                line = block[: block.find(b"\n") + 1] or block
                check_encoding(path, line)
                check_line_ends(path, line)
            number, end = number + block.count(b"\n"), block[-1:]
    return number + (end not in (b"", b"\n"))


@contextmanager
def open_text(path: str) -> Iterator[BinaryIO]:
    """Open a file, decompressed; `BadInput` if it is damaged, or not compressed as its ending says."""
    check_compression(path)
    fix = "Copy or compress the file again."
    with as_bad_input(path, "UTF-8 text, compressed as its ending says", fix), open_bytes(path) as file:
        yield file


def noting_quotes(path: str, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield lines of cells separated by tabs; log once a file that cells were quoted as in CSV: one with quotes in it,
    or all cells of lines 2 to 11."""
    all_quoted = 0
    for number, line in lines:
        all_quoted += 1 < number < 12 and ALL_QUOTED.fullmatch(line) is not None
        may_be_quoted = path not in QUOTED and (all_quoted == 10 or '""' in line)
        if may_be_quoted and (all_quoted == 10 or any(map(QUOTED_CELL.fullmatch, line.split("\t")))):
            QUOTED.add(path)
            logger.warning(
                "%s:%d: has cells in quotes, as CSV has them; in columns separated by tabs a quote is a character of "
                "the text. If it is none, write the file again: pandas with quoting=3",
                path, number,
            )  # fmt: skip
        yield number, line


def one_line(text: str) -> str:
    """Return the text with a space for each line break of any kind, such as those that byte-level decoders generate.

    >>> one_line("a\\r\\nb\\u2028c"), one_line("a b ")
    ('a b c', 'a b ')
    """
    return " ".join(text.splitlines())


def first_bytes(path: str) -> bytes:
    """Return the first 512 bytes of a file; none of a pipe, which can be read only once."""
    if not os.path.isfile(path):
        return b""
    with open(path, "rb") as file:
        return file.read(LONGEST)


def check_compression(path: str) -> None:
    """Raise `BadInput` for a file that is not compressed as its ending says."""
    ending = compression_of(path)
    program, magic = COMPRESSED.get(ending, ("", b""))
    head = first_bytes(path) if ending else b""
    if head and not head.startswith((magic, *SKIPPABLE) if ending == ".zst" else magic):
        kind, fix = kind_of_file(path, head) or ("not compressed", f"Name it without {ending}")
        allowed = f"allowed with the ending {ending} is text compressed with {program}"
        raise BadInput(f"{path}: is {kind}; {allowed}. {fix}.")


def kind_of_file(path: str, head: bytes, may_be_compressed: bool = True) -> tuple[str, str] | None:
    """Return what the first bytes of a file, after the decompression its ending names, show it to be, and what to do;
    `None` for text and unknown files."""
    found = kind_of(head)
    for ending, (program, _) in COMPRESSED.items():
        if found and found[0] == f"compressed with {program}":
            if first_bytes(path).startswith(head[:LONGEST]) and is_tar(decompressed_bytes(path, ending)):
                return f"a tar archive, {found[0]}", "Unpack it: tar -xf"
            if compression_of(path) or not may_be_compressed:
                more = " once more" if compression_of(path) == ending else ""
                return found[0], f"Decompress it{more}: {program} -d"
    return found


def decompressed_bytes(path: str, ending: str) -> bytes:
    """Return the first 512 bytes of a file with the compression of this ending; none if it is damaged."""
    try:
        with opener(f"x{ending}")(path, "rb") as file:
            return bytes(file.read(LONGEST))
    except Exception:  # the libraries raise many types
        return b""


def check_kind(path: str, may_be_compressed: bool = True) -> None:
    """Raise `BadInput` for an archive, or a compressed file that cannot be read, before its ending is refused or a
    library parses it."""
    check_compression(path)
    head = first_bytes(path)
    if head and compression_of(path):
        with as_bad_input(path, "a complete file", "Copy or compress it again."), open_bytes(path) as file:
            head = file.read(LONGEST)
    if found := kind_of_file(path, head, may_be_compressed):
        allowed = f"UTF-8 text, {AS_NAMED}" if may_be_compressed else "what its ending says, not compressed"
        raise BadInput(f"{path}: is {found[0]}; allowed is {allowed}. {found[1]}.")


def check_encoding(path: str, line: bytes) -> None:
    """Raise `BadInput` if the first line shows that none of the file can be read: an archive, UTF-16 and the like."""
    if found := kind_of_file(path, line[:LONGEST]):
        inside = "holds what is" if compression_of(path) else "is"
        raise BadInput(f"{path}: {inside} {found[0]}; allowed is UTF-8 text, {AS_NAMED}. {found[1]}.")
    if is_utf_16(line):
        raise BadInput(f"{path}: is UTF-16 or UTF-32; allowed is UTF-8. Convert it: iconv -f UTF-16 -t UTF-8.")
    if line.count(0) * 4 > len(line):
        raise BadInput(f"{path}: is no text but binary; allowed is UTF-8 text, {AS_NAMED}. Export it as text.")


def check_line_ends(path: str, line: bytes) -> None:
    """Raise `BadInput` if the first line is all of a file, whose lines end as on old Macs."""
    if line.count(b"\r") > 1 and b"\n" not in line:
        found = "has carriage returns and no line feed, as files of old Macs"
        raise BadInput(f"{path}: {found}; allowed are lines that end with LF or CRLF. Convert it: tr '\\r' '\\n'.")


def _decode(line: bytes) -> str:
    return line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "surrogateescape")


# --- commands ---------------------------------------------------------------------------------------------------------


def check_output(output: str | None, inputs: Sequence[str], may_be_stream: bool = False) -> None:
    """Raise `BadInput` if the output cannot be written, or if writing it would overwrite an input.

    Args:
        may_be_stream: whether the command can write to a pipe or a device.
    """
    if output is not None and not (may_be_stream and is_stream(output)):
        check_place(output)
        complete = Path(output).resolve()
        for path in inputs:
            if Path(path).resolve() in (complete, partial_file(complete)):
                raise BadInput(f"{output}: {path}, which writing it would destroy, is an input; name another output")
        opener(output)  # may need a package


def check_inputs(inputs: Sequence[str]) -> None:
    """Raise `BadInput` if one of several files cannot be read, before the first is processed."""
    for path in inputs:
        if Path(path).is_dir() or not os.access(path, os.R_OK):
            fix = "Leave the input out to read standard input." if path == "-" else nearest_name(path)
            fix = fix or "Name another input."
            raise BadInput(f"{path}: no file that can be read; allowed is UTF-8 text. {fix.strip()}")


@contextmanager
def open_output(path: str | None) -> Iterator[TextIO]:
    """Open an output for writing: standard output in UTF-8 for None; another stream; else a file that gets its name,
    and replaces an older one, at the end of the block. If that fails, the lines written so far stay in NAME.partial."""
    if path is None or path in STANDARD_OUTPUT:
        if sys.stdout is None:
            raise BadInput("standard output is closed; allowed is one that can be written to. Open it, or name a file.")
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        yield sys.stdout
        return
    if is_stream(path):  # a reader may be waiting
        named = DESCRIPTOR.fullmatch(path)
        place = os.dup(int(named[1])) if named else path
        with opener(Path(path).name)(place, "wt", encoding="utf-8", newline="\n") as output:
            yield output
        return
    complete = Path(path).resolve()
    partial, opened = partial_file(complete), opener(complete.name)
    try:
        with (
            atomic_file(complete, partial, keep_draft=True),
            opened(partial, "wt", encoding="utf-8", newline="\n") as output,
        ):
            yield output
    except BaseException:
        if partial.exists():
            logger.warning("%s: not written; the lines translated so far are in %s", path, partial)
        raise


def read_texts(paths: Sequence[str]) -> Iterator[str]:
    """Yield the lines of files in order, or of standard input as they arrive; only a line feed ends a line."""
    return (text for _, text in read_numbered_texts(paths))


def read_numbered_texts(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what `read_texts` yields, each with its place ("file:line")."""
    sources = [(path, read_lines(path, Cursor())) for path in paths] or [(STANDARD_INPUT, read_standard_input())]
    for name, lines in sources:
        for number, line in lines:
            try:
                yield f"{name}:{number}", checked_text("source", line)
            except BrokenRow as problem:
                raise BadInput(f"{name}:{number}: {problem}") from problem


def read_standard_input() -> Iterator[tuple[int, str]]:
    """Yield numbered lines of standard input as they arrive."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        if number == 1:
            check_encoding(STANDARD_INPUT, line)
            check_line_ends(STANDARD_INPUT, line)
            line = line.removeprefix(b"\xef\xbb\xbf")
        yield number, _decode(line)
