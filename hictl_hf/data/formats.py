"""Readers of each file format: from a path and a position to numbered records. `FORMATS` maps file endings to readers.

A reader is a function `(path, cursor)` that yields `(number, columns)` for each record after the cursor that the cursor
wants, and advances it. A record that cannot be parsed is yielded as `BrokenRow`; a file that cannot be read raises
`BadInput`. Which files a source has is decided in `sources`.
"""

import csv
import glob
import json
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import chain, zip_longest
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet

from ..errors import BadInput, BrokenRow, as_bad_input, nearest_name, short_repr
from .catalogues import read_catalogue
from .compression import COMPRESSIONS, compression_of, with_compressions
from .language_names import is_language, none_of_languages, not_languages, with_codes
from .languages import LANGUAGE
from .lines import LONGEST_LINE, check_kind, count_lines, first_bytes, noting_quotes, read_lines
from .records import Cursor, Declared, Records, columns_used, skip_to_cursor
from .translation_memories import read_tmx, read_xliff

# A language in the name of a file; the longest is tried first: es-419, then es.
PARTS_OF_NAMES = [
    re.compile(rf"(?<![^\W_]){pattern}(?![^\W_])")
    for pattern in (LANGUAGE.pattern, "[A-Za-z]{2,3}(?:[-_][A-Za-z]{2,4})?", "[A-Za-z]{2,3}")
]
DELIMITERS = {  # of a table under the ending of another -> what to do
    ",": "Rename it: it has to end in .csv", "\t": "Rename it: it has to end in .tsv",
    ";": "Write it with commas", "|": "Write it with commas",
}  # fmt: skip
COLUMN_NAME = re.compile(r"\w[\w ()/-]{0,29}")  # of a column of a spreadsheet, not the first words of a text
RETURN = "\udc0d"  # stands for a carriage return, where the csv module ends a row; decoding yields it for no bytes
READ_AHEAD = 2**20  # bytes of a Parquet column; without it complete row groups are held in memory


def ending_of(path: str) -> str:
    """Return the ending that determines the format, with that of a compression: "a.b.JSONL.gz" -> ".jsonl.gz"."""
    stem, ending = os.path.splitext(os.path.basename(path).lower())
    return os.path.splitext(stem)[1] + ending if ending in COMPRESSIONS else ending


# --- lines ------------------------------------------------------------------------------------------------------------


def read_plain_text(path: str, cursor: Cursor, language: str) -> Records:
    """Read one sentence a line, all in one language."""
    for number, line in read_lines(path, cursor):
        yield number, {"text": line, "lang": language}


def read_json_lines(path: str, cursor: Cursor) -> Records:
    """Read one JSON object a line; blank lines are skipped."""
    for number, line in read_lines(path, cursor):
        if number == 1 and line.lstrip().startswith("["):
            found, fix = ("an array of texts", "{en: .[0], de: .[1]}") if is_texts(line) else ("one JSON array", ".[]")
            raise BadInput(f"{path}:1: is {found}; allowed is one object a line. Convert it: jq -c '{fix}'.")
        if line and not line.isspace():
            yield number, parse_json(line)


def is_texts(line: str) -> bool:
    """Whether a line is a JSON array of texts, such as a pair."""
    try:
        return all(isinstance(text, str) for text in json.loads(line))
    except (ValueError, RecursionError):
        return False


def parse_json(line: str) -> Mapping[str, Any] | BrokenRow:
    """Parse a line that has to be one JSON object."""
    try:
        record = json.loads(line, object_pairs_hook=without_repeated_keys)
    except BrokenRow as problem:
        return problem
    except (ValueError, RecursionError) as error:
        return BrokenRow(f"is not JSON ({error}); allowed is one object a line. Correct or remove the line.")
    if isinstance(record, dict):
        return record
    return BrokenRow(f"is {short_repr(record)}; allowed is an object {{...}}. Correct the line.")


def without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dictionary; `BrokenRow` for a key given twice, of which one is lost."""
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BrokenRow(f"has the key {short_repr(twice)} twice; allowed is each once. Remove one of them.")
    return record


# --- tables -----------------------------------------------------------------------------------------------------------


def read_table(path: str, cursor: Cursor, any_columns: bool = False) -> Records:
    """Read CSV or TSV. The first line that is not blank names the columns; it is read again wherever the cursor is."""
    begin = Cursor()
    number, cells = next((row for row in read_cells(path, begin) if row[1]), (1, None))
    if cells is None:
        return
    if isinstance(cells, BrokenRow):
        check_delimiter(f"{path}:{number}", [next(read_lines(path, Cursor()))[1]])
        raise BadInput(f"{path}:{number}: {cells}")
    header = [name.strip() for name in cells]
    check_delimiter(f"{path}:{number}", header)
    check_columns(f"{path}:{number}", header, any_columns)
    if cursor.number < begin.number:
        cursor.number, cursor.offsets = begin.number, begin.offsets
    yield from rows_below(header, (row for row in read_cells(path, cursor) if cursor.wants(row[0])))


def rows_below(
    header: Sequence[str], rows: Iterable[tuple[int, list[str] | BrokenRow]]
) -> Iterator[tuple[int, Mapping[str, str] | BrokenRow]]:
    """Yield the cells of each numbered row by the names of its columns; blank rows are skipped."""
    for number, cells in rows:
        if isinstance(cells, BrokenRow):
            yield number, cells
        elif cells and len(cells) == len(header):
            yield number, dict(zip(header, cells, strict=True))
        elif cells:
            found = f"has {len(cells)} columns; allowed are {len(header)}, as in the header"
            yield number, BrokenRow(f"{found}. Remove the extra delimiter (.csv: or quote its cell), or add one.")


def read_cells(path: str, cursor: Cursor) -> Iterator[tuple[int, list[str] | BrokenRow]]:
    """Yield the cells of each row with the number of its first line: CSV with quotes, TSV without (a quote is an
    ordinary character there). Cells have any length. Unwanted rows are parsed too: a quoted cell can hold line feeds,
    so only that finds where a row ends."""
    csv.field_size_limit(LONGEST_LINE)  # for the process, whose default is 131,072 characters
    position = Cursor(cursor.number, list(cursor.offsets))  # after the last line read
    second_line = deepcopy(position)  # after the first line of the row

    def rows() -> Iterator[list[str]]:
        is_tsv, numbered = ".tsv" in ending_of(path), read_lines(path, position)
        lines = (line for _, line in (noting_quotes(path, numbered) if is_tsv else numbered))
        if is_tsv:
            return (line.split("\t") if line else [] for line in lines)
        hidden = (line.rstrip("\r").replace("\r", RETURN) for line in remember_second_line(lines))
        return csv.reader((f"{line}\n" for line in hidden), strict=True)

    def remember_second_line(lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            if position.number == number:
                second_line.number, second_line.offsets = number, list(position.offsets)
            yield line

    reader = rows()
    while True:
        number = position.number + 1
        try:
            row = [cell.replace(RETURN, "\r") for cell in next(reader)]
            if number == 1 and any("\r" in cell.strip() for cell in row):
                raise csv.Error("has a carriage return alone, as of old Macs: tr '\\r' '\\n'")
            cells: list[str] | BrokenRow = row
        except StopIteration:
            return
        except csv.Error as error:
            if "unexpected end" in str(error):
                raise BadInput(f"{path}:{number}: opens a quote; allowed are closed ones. Close it.") from error
            cells = BrokenRow(f"is not CSV ({error}); allowed are quotes around complete cells. Correct the quotes.")
            if position.number > number:  # parse the lines that an open quote has swallowed as rows again
                position = deepcopy(second_line)
                reader = rows()
        cursor.number, cursor.offsets[0] = position.number, position.offsets[0]
        yield number, cells


def check_delimiter(path: str, names: list[str]) -> None:
    """Raise `BadInput` if the first line of a table names columns that another delimiter separates."""
    for delimiter, fix in DELIMITERS.items():
        found = [name.strip(' "') for name in names[0].split(delimiter)] if len(names) == 1 else []
        found = found[found[:1] == [""] :]  # without the name of an index, which pandas leaves empty
        if len(found) > 1 and (not not_languages(found) or all(map(COLUMN_NAME.fullmatch, found))):
            raise BadInput(
                f"{path}: has columns separated by {delimiter!r}, {short_repr(names[0])}; allowed are commas in .csv "
                f"and tabs in .tsv. {fix}."
            )


def check_columns(path: str, names: list[str], any_columns: bool = False) -> None:
    """Raise `BadInput` for columns of a table that cannot be used: they hold for every row."""
    try:
        if not any_columns:
            columns_used(names)
    except BrokenRow as problem:
        moses = in_braces(re.sub(r":\d+$", "", path))
        fix = f" If it is a file of a Moses corpus, its files are named together: {moses}." if moses else ""
        raise BadInput(f"{path}: {problem}{fix}") from problem
    if len(set(names)) < len(names):
        raise BadInput(f"{path}: has the columns {names}; allowed is each name once. Rename one of them.")


# --- Parquet ----------------------------------------------------------------------------------------------------------


def check_parquet(path: str) -> None:
    """Raise `BadInput` for a file that is not Parquet, which says what it is."""
    if os.path.isfile(path) and not (head := first_bytes(path)).startswith(b"PAR1"):
        check_kind(path, may_be_compressed=False)
        found = ("is text" if head.isascii() and 0 not in head else "is no Parquet file") if head else "is empty"
        fix = "Name it with the ending of its format, such as .jsonl or .csv, or download it again"
        raise BadInput(f"{path}: {found}; allowed with the ending .parquet is a complete Parquet file. {fix}.")


def read_parquet(path: str, cursor: Cursor, any_columns: bool = False) -> Records:
    """Read Parquet, the columns of texts or all; row groups before the cursor are not decoded."""
    check_parquet(path)
    fix = "Download or write the file again."
    with (
        as_bad_input(path, "a complete Parquet file with UTF-8 strings", fix),
        pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=READ_AHEAD) as file,
    ):
        if not any_columns:
            check_columns(path, file.schema_arrow.names)
        columns = None if any_columns else columns_used(file.schema_arrow.names)
        groups, number = list(range(file.num_row_groups)), 0
        while groups and number + (rows := file.metadata.row_group(groups[0]).num_rows) <= cursor.number:
            number += rows
            groups.pop(0)
        for batch in file.iter_batches(1000, groups, columns) if groups else ():
            for row in batch.to_pylist(maps_as_pydicts="strict"):  # `take` has no string views, as Polars writes
                number += 1
                if number > cursor.number and cursor.wants(number):
                    cursor.number = number
                    yield number, row


# --- Moses: line-aligned files ----------------------------------------------------------------------------------------


def check_moses(paths: Mapping[str, str]) -> None:
    """Raise `BadInput` unless there are two or more languages with an existing file each."""
    others = not_languages(paths, are_declared=True)
    if others or len(paths) < 2:
        languages, codes = [name for name in paths if name not in others], with_codes(paths)
        kept = languages if len(languages) > 1 else list(paths)
        fix = (
            f"Leave out {', '.join(others)}" if others and kept == languages else "Name the languages, with their codes"
        )
        named = "+".join(f"{codes[name]}:{paths[name]}" for name in kept) if len(paths) > 1 else "'corpus.{en,de}'"
        raise BadInput(
            f"{paths[[*others, *paths][0]]}: has the languages {', '.join(paths)}{none_of_languages(others)}; allowed "
            f"are two or more codes. {fix}: {named}."
        )
    for path in paths.values():
        if not os.path.isfile(path):
            allowed, fix = f"a file for each of {', '.join(paths)}", "Check the path"
            if compressed := next((path + each for each in COMPRESSIONS if os.path.isfile(path + each)), ""):
                named = "+".join(f"{name}:{compressed if each == path else each}" for name, each in paths.items())
                raise BadInput(f"{path}: does not exist, but {compressed} does; allowed is {allowed}. Write {named}.")
            if similar := same_but_for_case(path):
                fix = f"There is {similar}: write its name as it is"
            raise BadInput(f"{path}: does not exist; allowed is {allowed}. {nearest_name(path)}{fix}.")
        if names_its_languages(path):
            raise BadInput(
                f"{path}: has the ending '{ending_of(path)}'; allowed are line-aligned files of plain text. Name each "
                f"alone, as such files name their languages themselves: {' '.join(paths.values())}. Plain text ends in "
                ".txt."
            )


def names_its_languages(path: str) -> bool:
    """Whether a file names the languages of its texts by its format, such as JSON lines, or a table in its header."""
    ending = ending_of(path)
    if ending not in with_compressions(".csv", ".tsv"):
        return ending in FORMATS
    cells = next(read_cells(path, Cursor()), (1, []))[1]
    try:
        return isinstance(cells, list) and len(cells) > 1 and bool(columns_used(cells))
    except BrokenRow:
        return False


def in_braces(path: str) -> str:
    """Return how to name the Moses corpus that a file belongs to, such as 'corpus.{de,en}' with its quotes: files that
    differ in a language, and maybe in their compression.

    "" if there is no other file, or the name has no language.
    """
    for part in chain.from_iterable(reversed(list(names.finditer(path))) for names in PARTS_OF_NAMES):
        before, after = path[: part.start()], path[part.end() :].removesuffix(compression_of(path))
        found = dict[str, str]()  # language -> file; those compressed as the path is come last
        for compression in sorted(("", *COMPRESSIONS), key=compression_of(path).__eq__):
            for file in sorted(glob.glob(f"{glob.escape(before)}*{glob.escape(after + compression)}")):
                found[file[len(before) : len(file) - len(after + compression)]] = file
        languages = {name: found[name] for name in sorted(found) if is_language(name)}
        if part[0] in languages and len(languages) > 1:
            after += compression_of(path)
            if all(file == before + name + after for name, file in languages.items()):
                corpus = shlex.quote(f"{before}{{{','.join(languages)}}}{after}")
                return f"{corpus} with its quotes: without them the shell makes several names of it"
            return shlex.quote("+".join(f"{name}:{file}" for name, file in languages.items()))
    return ""


def same_but_for_case(path: str) -> str:
    """Return a file in the same folder whose name differs in case only; "" if there is none."""
    folder, name = os.path.split(path)
    names = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
    return next((other for other in sorted(names) if other.lower() == name.lower()), "")


def compare_lengths(paths: Collection[str]) -> None:
    """Raise `BadInput` unless line-aligned files have equally many lines, before the first row is read."""
    refuse_unequal({path: str(count_lines(path)) for path in paths})


def refuse_unequal(counts: Mapping[str, str]) -> None:
    """Raise `BadInput` unless the counts of lines by file are equal."""
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{path} has {count} lines" for path, count in counts.items())
        raise BadInput(f"{found}; allowed are files of equal length. Align them again, line by line.")


def read_moses(paths: Mapping[str, str], cursor: Cursor) -> Records:
    """Read line-aligned files, one for each language; `BadInput` where the shortest ends."""
    offsets = cursor.offsets if cursor.number else [0] * len(paths)
    sides = [Cursor(cursor.number, [offset], cursor.part, cursor.parts) for offset in offsets]
    for lines in zip_longest(*map(read_lines, paths.values(), sides)):
        if None in lines:
            break
        cursor.number, cursor.offsets = sides[0].number, [side.offsets[0] for side in sides]
        texts = zip(paths, (line for _, line in lines), strict=True)
        yield cursor.number, {"translation": Declared(texts)}
    counts = {path: side.number for path, side in zip(paths.values(), sides, strict=True)}
    shortest = min(counts.values())
    refuse_unequal({path: str(count) if count == shortest else "more" for path, count in counts.items()})


# --- the Hub ----------------------------------------------------------------------------------------------------------


def read_hub(source: str, cursor: Cursor) -> Records:
    """Read a Hub dataset, named hub:name[:config[:split]]."""
    return skip_to_cursor(cursor, read_stream(source))


def read_hub_column(source: str, language: str, cursor: Cursor) -> Records:
    """Read the column `text` of a Hub dataset, all in one language."""
    for number, record in read_hub(source, cursor):
        if isinstance(record, Mapping) and "text" in record:
            record = {"text": record["text"], "lang": language}
        elif isinstance(record, Mapping):  # what it has may be in other languages
            record = BrokenRow(
                f"has the columns {short_repr(list(record))}; allowed is a column 'text', in {language}. Correct or "
                "remove it; columns of pairs can be read as en+de:SOURCE."
            )
        yield number, record


def read_stream(source: str) -> Records:
    """Yield the rows of a Hub dataset; the split is train unless named, or as `train[:5%]` or `train+dev`."""
    _, name, config, split = (*source.split(":", 3), "", "")[:4]
    if not name or ":" in re.sub(r"\[.*?\]", "", split):
        raise BadInput(f"{source}: is no Hub name; allowed is hub:name[:config[:split]]. Write it so.")
    streaming = not set(split) & {"[", "+"}  # datasets cuts and joins only what it has downloaded
    with as_bad_input(source, "a dataset on the Hub", "Check its name, config and split on huggingface.co/datasets."):
        rows = datasets.load_dataset(name, config or None, split=split or "train", streaming=streaming)
        if isinstance(rows, datasets.IterableDataset):  # of which `iter` of a DataLoader's worker has some files only
            rows = ({name: value for name, (value,) in one.items()} for one in rows.iter(1))
        yield from enumerate(rows, start=1)


FORMATS: Mapping[str, Callable[[str, Cursor], Records]] = {
    **dict.fromkeys(with_compressions(".jsonl", ".json"), read_json_lines),
    **dict.fromkeys(with_compressions(".csv", ".tsv"), read_table),
    ".parquet": read_parquet,
    **dict.fromkeys((".mo", ".po"), read_catalogue),
    **dict.fromkeys(with_compressions(".tmx"), read_tmx),
    **dict.fromkeys((".xlf", ".xliff", ".sdlxliff"), read_xliff),
}
