"""From a source to rows: this module decides which files and formats we read, where a row's languages come from, and
what counts as broken. A broken *row* is counted and left out; a broken *source* always raises `BadInput`. Which rows
are worth training on (lengths, duplicates, held-out sentences) is left to `corpus.py`."""

import csv
import glob
import gzip
import importlib.util
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any, Literal, Protocol

import datasets
import polib
import pyarrow
import pyarrow.parquet

from ..errors import BadInput, BrokenRow, as_bad_input, short_repr

LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]{2,8})*")
MOSES = re.compile(r"(?P<before>.*)\{(?P<languages>[^{}]*,[^{}]*)\}(?P<after>[^{}]*)")
PLAIN_TEXT = re.compile(rf"(?P<language>{LANGUAGE.pattern}):(?P<place>.+)")
LONGEST_LINE = 2**28  # bytes; an archive can hold one that is longer than the memory
READ_AHEAD = 2**20  # bytes of a Parquet column; without it whole row groups are held
COLUMNS = "'translation' (a mapping from language to text), 'text' + 'lang', or nothing but language codes"


@dataclass(frozen=True)
class Row:
    """One text with its language, or a pair; `origin` is "file:line" (for catalogues without lines: the entry)."""

    texts: dict[str, str]
    origin: str


class SkipCounter(Protocol):
    """What reading needs of a report: it counts, and raises `BadInput` for a broken row if it is strict."""

    def skip(self, reason: Literal["broken", "untranslated"], message: str = "") -> None: ...


# What a format gives: a line number and columns, a broken row, or None for a catalogue entry without a translation.
Records = Iterator[tuple[int, Mapping[str, Any] | BrokenRow | None]]


@dataclass
class Cursor:
    """Where reading a shard begins; it moves along, and at each record tells where reading can go on after it.

    Only rows whose number leaves the rest `part` when divided by `parts` are read: one reader's share of a shard.
    """

    number: int = 0
    """Of the last record (in text: line) gone by; no two records have the same."""
    offsets: list[int] = field(default_factory=lambda: [0])
    """Byte at which the next line of each file begins, of what is unpacked in gzip; of no use in other formats."""
    part: int = 0
    parts: int = 1

    def wants(self, number: int) -> bool:
        return number % self.parts == self.part


@dataclass(frozen=True)
class Shard:
    """What a source is read by: a file, the files of a Moses corpus, or a Hub dataset."""

    name: str
    """As messages name it."""
    read: Callable[[Cursor], Records]
    sizes: Mapping[str, int]
    """Bytes of each of its files; there are none of a Hub dataset."""


def read_rows(source: str, report: SkipCounter) -> Iterator[Row]:
    """The rows of a source in order; a translation into many languages gives a row for each language but the first."""
    for shard in list_shards(source):
        if len(shard.sizes) > 1:
            compare_lengths(shard.sizes)
        for rows in read_shard(shard, Cursor(), report):
            yield from rows


def read_shard(shard: Shard, cursor: Cursor, report: SkipCounter) -> Iterator[list[Row]]:
    """The rows of each record from the cursor on, none of one that was skipped; the cursor is then after that record.

    Lines of plain files are found by their offset, rows of Parquet by their row group; a file in gzip is unpacked, a
    Hub dataset or a catalogue is read up to the cursor again.
    """
    empty = cursor == Cursor() and not shard.name.endswith((".mo", ".po"))  # these may have a header and no entry
    for number, record in shard.read(cursor):
        empty = False
        yield rows_of_record(record, f"{shard.name}:{number}", report)
    if empty:
        raise BadInput(f"{shard.name}: holds no rows; allowed is one or more. Fill it or leave it out.")


def rows_of_record(record: Mapping[str, Any] | BrokenRow | None, origin: str, report: SkipCounter) -> list[Row]:
    """One row, one for each language but the first, or none where the report has counted why."""
    if record is None:
        report.skip("untranslated")
        return []
    try:
        texts, gaps = checked_texts(record)
    except BrokenRow as problem:
        report.skip("broken", f"{origin}: {problem}")
        return []
    for _ in range(gaps):
        report.skip("untranslated")
    (language, text), *others = texts.items()
    if not others:
        return [Row({language: text}, origin)]
    return [Row({language: text, other: translation}, origin) for other, translation in others]


def list_shards(source: str) -> Iterator[Shard]:
    """Each shard of a source in order of names; nothing is opened before its rows are asked for."""
    if source.startswith("hub:"):
        yield Shard(source, partial(read_hub, source), {})
    elif (one_language := PLAIN_TEXT.fullmatch(source)) and one_language["place"].startswith("hub:"):
        read_column = partial(read_hub_column, one_language["place"], one_language["language"])
        yield Shard(source, read_column, {})
    elif source.startswith("package:"):
        catalogues = {ending: FORMATS[ending] for ending in (".mo",)}
        yield from list_files(package_folder(source.removeprefix("package:")), catalogues)
    elif plain_text := PLAIN_TEXT.fullmatch(source):
        read = partial(read_plain_text, language=plain_text["language"])
        yield from list_files(plain_text["place"], dict.fromkeys((".txt", ".txt.gz"), read))
    elif moses := MOSES.fullmatch(source):
        languages = [language.strip() for language in moses["languages"].split(",")]
        paths = {language: moses["before"] + language + moses["after"] for language in languages}
        check_moses(paths)
        yield Shard(source, partial(read_moses, paths), {path: os.path.getsize(path) for path in paths.values()})
    else:
        yield from list_files(source, FORMATS)


def check_unchanged(shard: Shard) -> None:
    """Refuses a shard whose files are gone or have another size than when it was listed."""
    for path, size in shard.sizes.items():
        with as_bad_input(path, "a file that stays as it was when the run began", "Put it back."):
            found = os.path.getsize(path)
        if found != size:
            raise BadInput(
                f"{path}: has {found} bytes, but had {size} when the run began; allowed is a file that stays as it is. "
                "Put it back, or begin a new run."
            )


def package_folder(package: str) -> str:
    """Where an installed package lies, without importing it."""
    specification = importlib.util.find_spec(package) if package.isidentifier() else None
    if specification is None or not specification.submodule_search_locations:
        raise BadInput(
            f"package:{package}: no such package is installed; allowed are packages with message catalogues. Install "
            "it, and write the name it is imported by (package:rest_framework, not djangorestframework)."
        )
    return specification.submodule_search_locations[0]


def read_hub_column(source: str, language: str, cursor: Cursor) -> Records:
    """Rows of a column `text` whose language only the source tells."""
    for number, record in read_hub(source, cursor):
        if isinstance(record, Mapping) and "text" in record:
            record = {"text": record["text"], "lang": language}
        yield number, record


def list_files(place: str, formats: Mapping[str, Callable[[str, Cursor], Records]]) -> Iterator[Shard]:
    for path in files_at(place, formats):
        if (ending := ending_of(path)) not in formats:
            raise BadInput(
                f"{path}: has the ending '{ending}'; allowed here are {', '.join(formats)}. Rename or convert it; "
                "plain text is named with its language as sw:file.txt, Moses files together as corpus.{en,de}."
            )
        if (size := os.path.getsize(path)) == 0:
            raise BadInput(f"{path}: is empty; allowed is one row or more. Fill it or leave it out.")
        yield Shard(path, partial(formats[ending], path), {path: size})


def files_at(place: str, endings: Collection[str]) -> list[str]:
    """The file itself, all readable files under a folder, or all files a pattern matches, sorted."""
    if os.path.isfile(place):
        return [place]
    is_folder, is_pattern = os.path.isdir(place), glob.has_magic(place)
    pattern = os.path.join(glob.escape(place), "**") if is_folder else place
    paths = sorted(filter(os.path.isfile, glob.glob(pattern, recursive=True)))
    paths = [path for path in paths if ending_of(path) in endings] if is_folder else paths
    if not paths:
        found = "has no file we can read" if is_folder else "matches no file" if is_pattern else "does not exist"
        raise BadInput(
            f"{place}: {found}; allowed here are {', '.join(endings)}. Check the path; plain text is named with its "
            "language as sw:folder, Moses files together as corpus.{en,de}, a Hub dataset as hub:name:config:split."
        )
    return paths


def ending_of(path: str) -> str:
    """The ending that tells the format, with .gz where there is one: "a.b.JSONL.gz" -> ".jsonl.gz"."""
    stem, ending = os.path.splitext(os.path.basename(path).lower())
    return os.path.splitext(stem)[1] + ending if ending == ".gz" else ending


def columns_used(names: Collection[str]) -> list[str]:
    """The columns that hold texts and languages; all others are ignored."""
    if "translation" in names:
        return ["translation"]
    if "text" in names and "lang" in names:
        return ["text", "lang"]
    if not names or not all(LANGUAGE.fullmatch(name) for name in names):
        raise BrokenRow(
            f"has the columns {short_repr(list(names))}; allowed are {COLUMNS}. Rename the columns, drop the others."
        )
    if next(iter(names)) == "id":
        raise BrokenRow(
            "has 'id' as its first column, which may be a row number or Indonesian; allowed are unmistakable columns. "
            "Drop the row number, or move Indonesian behind another language."
        )
    return list(names)


def checked_texts(record: Mapping[str, Any] | BrokenRow) -> tuple[dict[str, str], int]:
    """The texts of one record by language, and how many languages were left empty (null) in a row of three or more."""
    if isinstance(record, BrokenRow):
        raise record
    texts: Any = {name: record[name] for name in columns_used(record)}
    if "translation" in texts:
        texts = texts["translation"]
        if not isinstance(texts, Mapping) or not texts:
            raise BrokenRow(
                f'has {short_repr(texts)} as "translation"; allowed is a mapping from language to text. Write '
                '{"translation": {"en": "Hello", "de": "Hallo"}} or remove the row.'
            )
    elif "lang" in texts:
        texts = {language_code(texts["lang"]): texts["text"]}
    present = {name: text for name, text in texts.items() if text is not None}
    kept = present if len(present) > 1 else texts
    checked = {language_code(name): checked_text(name, text) for name, text in kept.items()}
    if len(checked) < len(kept):
        raise BrokenRow(f"names a language twice in {list(kept)}; allowed is each once. Remove one of them.")
    return checked, len(texts) - len(kept)


def language_code(name: object) -> str:
    """The code with hyphens (pt_BR -> pt-BR)."""
    if not isinstance(name, str) or not LANGUAGE.fullmatch(name):
        raise BrokenRow(
            f"has the language {short_repr(name)}; allowed are codes such as en, pt-BR or zh_Hans. Correct the code."
        )
    return name.replace("_", "-")


def main_part(language: str) -> str:
    """The language of a code, without script and region.

    >>> main_part("zh_Hant-TW")
    'zh'
    """
    return re.split("[-_]", language)[0]


def checked_text(language: object, text: object) -> str:
    if not isinstance(text, str):
        found, fix = f"{short_repr(text)} as its {language} text", "Write a text or remove the row."
    elif "\0" in text:
        found, fix = f"a NUL byte in its {language} text", "Remove the NUL byte."
    elif not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        found, fix = f"invalid UTF-8 in its {language} text", "Convert the file with iconv or remove the row."
    else:
        return text
    raise BrokenRow(f"has {found}; allowed are strings of valid Unicode. {fix}")


def read_lines(path: str, cursor: Cursor) -> Iterator[tuple[int, str]]:
    """Numbered lines without their ends; only a line feed ends a line. Bytes that are not UTF-8 become surrogates."""
    opened = gzip.open if path.lower().endswith(".gz") else open
    fix = "Copy or compress the file again."
    with as_bad_input(path, "UTF-8 text, with gzip if it ends in .gz", fix), opened(path, "rb") as file:
        if cursor.offsets[0]:  # a pipe is read from its beginning alone
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
                line = line.removeprefix(b"\xef\xbb\xbf")
            if cursor.wants(number):
                yield number, line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "surrogateescape")


def check_encoding(path: str, line: bytes) -> None:
    """Recognises by its first line a file of which no line could be read."""
    if line.startswith((b"\xff\xfe", b"\xfe\xff")) or line.count(0) * 4 > len(line):
        raise BadInput(f"{path}: is UTF-16 or UTF-32; allowed is UTF-8. Convert it: iconv -f UTF-16 -t UTF-8.")
    if line.startswith(b"\x1f\x8b"):
        raise BadInput(f"{path}: is compressed with gzip; allowed is that only with the ending .gz. Rename it.")


def read_plain_text(path: str, cursor: Cursor, language: str) -> Records:
    for number, line in read_lines(path, cursor):
        yield number, {"text": line, "lang": language}


def read_json_lines(path: str, cursor: Cursor) -> Records:
    """One JSON object a line; blank lines are no rows."""
    for number, line in read_lines(path, cursor):
        if number == 1 and line.lstrip().startswith("["):
            raise BadInput(f"{path}:1: is one JSON array; allowed is one object a line. Convert it: jq -c '.[]'.")
        if line and not line.isspace():
            yield number, parse_json(line)


def parse_json(line: str) -> Mapping[str, Any] | BrokenRow:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BrokenRow(f"is not JSON ({error}); allowed is one object a line. Correct or remove the line.")
    is_object = isinstance(record, dict)
    return (
        record if is_object else BrokenRow(f"is {short_repr(record)}; allowed is an object {{...}}. Correct the line.")
    )


def read_table(path: str, cursor: Cursor) -> Records:
    """The first line names the columns; it is read again whatever the cursor."""
    begin = Cursor()
    number, cells = next(read_cells(path, begin), (1, None))
    if cells is None:
        return
    if isinstance(cells, BrokenRow):
        raise BadInput(f"{path}:{number}: {cells}")
    header = [name.strip() for name in cells]
    check_columns(f"{path}:{number}", header)
    if cursor.number < begin.number:
        cursor.number, cursor.offsets = begin.number, begin.offsets
    for number, cells in read_cells(path, cursor):
        if not cursor.wants(number):
            continue
        if isinstance(cells, BrokenRow):
            yield number, cells
        elif len(cells) == len(header):
            yield number, dict(zip(header, cells, strict=True))
        elif cells:
            found = f"has {len(cells)} columns; allowed are {len(header)}, as in the header"
            yield number, BrokenRow(f"{found}. Quote or remove the extra delimiter, or add the missing one.")


def read_cells(path: str, cursor: Cursor) -> Iterator[tuple[int, list[str] | BrokenRow]]:
    """CSV with quotes and TSV without (there a quote is an ordinary character), with the first line of each row. Rows
    that nobody wants are read too, since only so it is known where one ends."""
    position = Cursor(cursor.number, list(cursor.offsets))  # after the last line read
    second = deepcopy(position)  # after the first line of the row

    def rows() -> Iterator[list[str]]:
        lines = (line for _, line in read_lines(path, position))
        if ".tsv" in ending_of(path):
            return (line.split("\t") if line else [] for line in lines)
        return csv.reader((f"{line}\n" for line in noted(lines)), strict=True)

    def noted(lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            if position.number == number:
                second.number, second.offsets = number, list(position.offsets)
            yield line

    reader = rows()
    while True:
        number = position.number + 1
        try:
            cells: list[str] | BrokenRow = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "unexpected end" in str(error):
                raise BadInput(f"{path}:{number}: opens a quote; allowed are closed ones. Close it.") from error
            cells = BrokenRow(f"is not CSV ({error}); allowed are quotes around whole cells. Correct the quotes.")
            if position.number > number:  # the lines that a quote left open has taken in are rows of their own
                position = deepcopy(second)
                reader = rows()
        cursor.number, cursor.offsets[0] = position.number, position.offsets[0]
        yield number, cells


def check_columns(place: str, names: list[str]) -> None:
    """Tables name their columns once, so wrong names make the whole source unreadable."""
    try:
        columns_used(names)
    except BrokenRow as problem:
        raise BadInput(f"{place}: {problem}") from problem
    if len(set(names)) < len(names):
        raise BadInput(f"{place}: has the columns {names}; allowed is each name once. Rename one of them.")


def read_parquet(path: str, cursor: Cursor) -> Records:
    fix = "Download or write the file again."
    with (
        as_bad_input(path, "a complete Parquet file with UTF-8 strings", fix),
        pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=READ_AHEAD) as file,
    ):
        check_columns(path, file.schema_arrow.names)
        groups, number = list(range(file.num_row_groups)), 0
        while groups and number + (rows := file.metadata.row_group(groups[0]).num_rows) <= cursor.number:
            number += rows
            groups.pop(0)
        for batch in file.iter_batches(1000, groups, columns_used(file.schema_arrow.names)) if groups else ():
            numbers = range(number + 1, number + 1 + len(batch))
            wanted = [at for at in numbers if at > cursor.number and cursor.wants(at)]
            if len(wanted) < len(batch):
                batch = batch.take(pyarrow.array([at - numbers.start for at in wanted], pyarrow.int64()))
            for at, row in zip(wanted, batch.to_pylist(maps_as_pydicts="strict"), strict=True):
                cursor.number = at
                yield at, row
            number = numbers.stop - 1


def check_moses(paths: Mapping[str, str]) -> None:
    for language, path in paths.items():
        if len(paths) < 2 or not LANGUAGE.fullmatch(language):
            found = f"the languages {', '.join(paths)}"
            raise BadInput(f"{path}: has {found}; allowed are two or more codes. Write them as corpus.{{en,de}}.")
        if not os.path.isfile(path):
            raise BadInput(f"{path}: does not exist; allowed is a file for each of {', '.join(paths)}. Check the path.")


def compare_lengths(paths: Collection[str]) -> None:
    """Counts the lines of line-aligned files before the first row is given out."""
    refuse_unequal({path: str(sum(1 for _ in read_lines(path, Cursor()))) for path in paths})


def refuse_unequal(counts: Mapping[str, str]) -> None:
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{path} has {count} lines" for path, count in counts.items())
        raise BadInput(f"{found}; allowed are files of equal length. Align them again, line by line.")


def read_moses(paths: Mapping[str, str], cursor: Cursor) -> Records:
    """Line-aligned files, one for each language; a file that is shorter than another is noticed at its end."""
    offsets = cursor.offsets if cursor.number else [0] * len(paths)
    sides = [Cursor(cursor.number, [offset], cursor.part, cursor.parts) for offset in offsets]
    for lines in zip_longest(*map(read_lines, paths.values(), sides)):
        if None in lines:
            break
        cursor.number, cursor.offsets = sides[0].number, [side.offsets[0] for side in sides]
        yield cursor.number, {"translation": dict(zip(paths, (line for _, line in lines), strict=True))}
    counts = {path: side.number for path, side in zip(paths.values(), sides, strict=True)}
    shortest = min(counts.values())
    refuse_unequal({path: str(count) if count == shortest else "more" for path, count in counts.items()})


def not_before(cursor: Cursor, records: Records) -> Records:
    """The records after the cursor that it wants, of a format that can only be read from its beginning."""
    for count, record in enumerate(records, start=1):
        if count > cursor.number and cursor.wants(count):
            cursor.number = count
            yield record


def read_catalogue(path: str, cursor: Cursor) -> Records:
    return not_before(cursor, read_entries(path))


def read_entries(path: str) -> Records:
    """English and its translation in a gettext catalogue; of plural forms the singular and the first form."""
    with as_bad_input(path, "a gettext catalogue", "Check it with msgfmt -c (.po) or msgunfmt (.mo)."):
        catalogue = polib.mofile(path) if path.lower().endswith(".mo") else polib.pofile(path)
    language = catalogue_language(path, catalogue.metadata.get("Language", ""))
    for number, entry in enumerate(catalogue, start=1):
        text = entry.msgstr_plural.get(0) if entry.msgid_plural else entry.msgstr
        doubtful = entry.obsolete or getattr(entry, "fuzzy", False)  # compiled entries have no flags and no line
        pair = {"translation": {"en": entry.msgid, language: text}}
        yield getattr(entry, "linenum", number), pair if text and not doubtful and language != "en" else None


def catalogue_language(path: str, header: str) -> str:
    """The first of these that is one: the folder in .../de/LC_MESSAGES/x.mo, the header, that in .../locale/de/x.po."""
    folders = os.path.abspath(path).replace(os.sep, "/")
    in_messages = re.search(r"/([^/]+)/LC_MESSAGES/[^/]+$", folders)
    in_locale = re.search(r"/locales?/([^/]+)/[^/]+$", folders)
    names = [in_messages[1] if in_messages else "", header.strip(), in_locale[1] if in_locale else ""]
    names = [name.split(".")[0].replace("@", "-") for name in names if name]  # de_DE.UTF-8, sr@latin
    if language := next(filter(LANGUAGE.fullmatch, names), None):
        return language_code(language)
    found = f"has {short_repr(next(iter(names), ''))} as its language; allowed are codes such as de, pt_BR or zh_Hans"
    raise BadInput(f"{path}: {found}. Set its 'Language:' header or move it to locale/<language>/LC_MESSAGES/.")


def read_hub(source: str, cursor: Cursor) -> Records:
    return not_before(cursor, read_stream(source))


def read_stream(source: str) -> Records:
    """The rows of hub:name[:config[:split]] as a stream; the split is train unless named."""
    parts = source.split(":")[1:]
    if not parts[0] or len(parts) > 3:
        raise BadInput(f"{source}: is no Hub name; allowed is hub:name[:config[:split]]. Write it so.")
    name, config, split = (*parts, "", "")[:3]
    with as_bad_input(source, "a dataset on the Hub", "Check its name, config and split on huggingface.co/datasets."):
        stream = datasets.load_dataset(name, config or None, split=split or "train", streaming=True)
        yield from enumerate(stream, start=1)


FORMATS: Mapping[str, Callable[[str, Cursor], Records]] = {
    **dict.fromkeys((".jsonl", ".jsonl.gz", ".json", ".json.gz"), read_json_lines),
    **dict.fromkeys((".csv", ".csv.gz", ".tsv", ".tsv.gz"), read_table),
    ".parquet": read_parquet,
    **dict.fromkeys((".mo", ".po"), read_catalogue),
}
