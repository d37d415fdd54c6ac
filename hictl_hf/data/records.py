"""One record of a source: its position, its texts by language, and the checks that a record has to pass. A broken
record is counted and skipped (`BrokenRow`); a broken source raises `BadInput`."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ..errors import BrokenRow, short_repr
from .language_names import COLUMN, DOUBTFUL, doubtful_part, has_role, none_of_languages, not_languages
from .languages import exact_tag, is_code, language_code, main_part, wanted_language

COLUMNS = "'translation' (a mapping from language to text), 'text' + 'lang', or nothing but language codes"
AMONG_MANY = {"mt": ("machine translation", "Maltese", "mlt"), "cat": ("a category", "Catalan", "ca")}
IDENTIFIER = re.compile(r"[\W\d_]*|\S*[\d_/]\S*")  # no letter, or one word with a digit or the like
# Numbers, and words such as doc_17 or a/b#3, in columns of any name.
NUMBER = re.compile(r"(?=.*\d)[\W\d_]+|[-+]?\d+(\.\d*)?[eE][-+]?\d+|(?=\S*\d)(?=\S*[_/#:])[!-~]+")

BOOLEANS = ("true", "false")
INDEX = re.compile(r"|Unnamed: 0|__index_level_\d+__")  # the names that pandas gives to its row numbers


@dataclass(frozen=True)
class Row:
    """A text with its language, or a pair; `origin` is "file:line" (in catalogues without lines: the entry)."""

    texts: dict[str, str]
    origin: str
    is_catalogue_entry: bool = False
    """Whether it is an entry of a gettext catalogue: English and its translation."""


class Declared(dict[str, str]):
    """Texts by language, whose names are known to be languages: from the user, or a format that has codes."""


class LowScore:
    """A pair whose score is below the threshold of its source."""


# What a format reader yields: a line number and columns, a broken row, a pair of a low score, or None for an
# untranslated entry.
Records = Iterator[tuple[int, Mapping[str, Any] | BrokenRow | LowScore | None]]


@dataclass
class Cursor:
    """Position in a shard. A reader starts there and advances it; after each record, reading can resume from it.

    With `parts` readers per shard, this reader yields only the records whose number leaves the remainder `part` when
    divided by `parts`.
    """

    number: int = 0
    """Number of the last record (in text: line) passed; numbers are unique within a shard."""
    offsets: list[int] = field(default_factory=lambda: [0])
    """Byte offset of the next line in each file, after decompression for gzip; unused by the other formats."""
    part: int = 0
    parts: int = 1

    def wants(self, number: int) -> bool:
        """Whether this reader yields the record of this number."""
        return number % self.parts == self.part


def skip_to_cursor(cursor: Cursor, records: Records) -> Records:
    """Yield the wanted records after the cursor, of a format that can only be read from its beginning."""
    for count, record in enumerate(records, start=1):
        if count > cursor.number and cursor.wants(count):
            cursor.number = count
            yield record


class SkipCounter(Protocol):
    """The part of a report that reading needs: count a skip; if strict, raise `BadInput` for a broken row."""

    def skip(self, reason: Literal["broken", "untranslated", "low score"], message: str = "") -> None: ...


def rows_of_record(
    record: Mapping[str, Any] | BrokenRow | LowScore | None,
    origin: str,
    report: SkipCounter,
    is_catalogue_entry: bool = False,
    wanted: Sequence[str] = (),
) -> list[Row]:
    """Return one row, or one for each language after the first; none if the record is skipped and counted.

    Args:
        wanted: languages of which one comes first if the record has any; without them the record's own first one.
    """
    if record is None or isinstance(record, LowScore):
        report.skip("untranslated" if record is None else "low score")
        return []
    try:
        texts, gaps = checked_texts(record)
    except BrokenRow as problem:
        report.skip("broken", f"{origin}: {problem}")
        return []
    for _ in range(gaps):
        report.skip("untranslated")
    if gaps and len(texts) == 1:  # all translations are null
        return []
    in_order = sorted(texts.items(), key=lambda each: bool(wanted) and not wanted_language(each[0], wanted))  # stable
    (language, text), *others = in_order
    if not others:
        return [Row({language: text}, origin, is_catalogue_entry)]
    return [Row({language: text, other: translation}, origin, is_catalogue_entry) for other, translation in others]


def columns_used(names: Collection[str]) -> list[str]:
    """Return the columns that hold texts and languages; the others are ignored."""
    if "translation" in names:
        return ["translation"]
    if "text" in names and "lang" in names:
        return ["text", "lang"]
    if len(without_index := [name for name in names if not INDEX.fullmatch(name)]) > 1:
        names = without_index
    refused = not_languages(names)
    others = [name for name in names if name in refused or not COLUMN.match(name)]
    if not names or others:
        found = none_of_languages([*map(short_repr, others)])
        raise BrokenRow(
            f"has the columns {short_repr(list(names))}{found}; allowed are {COLUMNS}. Rename the columns, drop the "
            "others; JSON lines, Parquet, CSV, Hub datasets and lists without a first line of names can be read as "
            "en+de:SOURCE."
        )
    first = str(next(iter(names)))
    if first.lower() == "id":
        raise BrokenRow(
            "has 'id' as its first column, which may be a row number or Indonesian; allowed are unmistakable columns. "
            "Drop the row number, or call Indonesian ind."
        )
    has_short_codes = any(len(main_part(name)) == 2 for name in names)  # then Catalan is ca
    doubtful = [name for name in names if name.lower() == "mt" or name.lower() == "cat" and has_short_codes]
    if len(names) > 2 and doubtful:
        other, language, code = AMONG_MANY[doubtful[0].lower()]
        raise BrokenRow(
            f"has {doubtful[0]!r} among more than two columns, which may be {other} or {language}; allowed are "
            f"unmistakable columns. Drop it, or call {language} {code}."
        )
    return list(names)


def check_not_numbers(texts: Mapping[str, Any], are_declared: bool = False) -> None:
    """Raise `BrokenRow` for columns named by codes of which one holds row numbers, identifiers or true and false.

    Args:
        are_declared: Whether the names are known to be languages: texts may be numbers then, except in the first.
    """
    first = next(iter(texts))
    for name, text in texts.items():
        if not isinstance(text, str):
            continue
        stripped, doubtful = text.strip(), doubtful_part(name)
        others = sum(has_letter(other) for language, other in texts.items() if language != name)
        is_number = name == first and stripped.isdecimal() and others > 0
        is_number |= not are_declared and others > 1 and NUMBER.fullmatch(stripped) is not None
        is_boolean = not are_declared and others > 1 and stripped.lower() in BOOLEANS  # in the column "is"
        if is_boolean and main_part(name) not in ("en", "eng") and [*texts.values()].count(text) == 1:
            raise BrokenRow(
                f"has {short_repr(text)} in its column {name!r}, where the others have texts; allowed are texts. Drop "
                "the column."
            )
        if is_number or doubtful and IDENTIFIER.fullmatch(stripped):
            fix = f", or call the language {DOUBTFUL[doubtful]}" if doubtful == name.lower() else ""
            raise BrokenRow(
                f"has {short_repr(text)} in its column {name!r}, a row number or identifier; allowed are texts. Drop "
                f"the column{fix}."
            )


def has_letter(text: object) -> bool:
    return isinstance(text, str) and any(map(str.isalpha, text))


def checked_texts(record: Mapping[str, Any] | BrokenRow) -> tuple[dict[str, str], int]:
    """Return the texts of a record by language, and how many of three or more languages, or of a translation, are
    null."""
    if isinstance(record, BrokenRow):
        raise record
    texts: Any = {name: record[name] for name in columns_used(record)}
    is_translation = "translation" in texts
    if is_translation:
        texts = texts["translation"]
        if not isinstance(texts, Mapping) or not texts:
            raise BrokenRow(
                f'has {short_repr(texts)} as "translation"; allowed is a mapping from language to text. Write '
                '{"translation": {"en": "Hello", "de": "Hallo"}} or remove the row.'
            )
        are_declared = isinstance(texts, Declared)
        if others := [*filter(is_code, not_languages(texts, are_declared or len(texts) == 2))]:
            raise BrokenRow(
                f"has the languages {short_repr(list(texts))}, of which {', '.join(others)} is none; allowed is a "
                "mapping from language to text. Put it outside of 'translation'."
            )
        if len(texts) > 2:  # two are what was asked for: Moses files can have numbers as lines
            check_not_numbers(texts, are_declared)
    elif "lang" in texts:
        if has_role(texts["lang"]):
            raise BrokenRow(
                f"has the language {short_repr(texts['lang'])}, the name of a side or file; allowed are codes such as "
                f"en, pt-BR or zh_Hans. Correct the code; of a language called so write the script, too: src-Latn."
            )
        texts = {language_code(texts["lang"]): texts["text"]}
    else:
        check_not_numbers(texts)
    present = {name: text for name, text in texts.items() if text is not None}
    kept = present if len(present) > 1 or (present and is_translation) else texts
    checked = {language_code(name): checked_text(name, text) for name, text in kept.items()}
    if len(set(map(exact_tag, checked))) < len(kept):  # de and ger are one
        raise BrokenRow(f"names a language twice in {list(kept)}; allowed is each once. Remove one of them.")
    return checked, len(texts) - len(kept)


def checked_text(language: object, text: object) -> str:
    """Return the text; `BrokenRow` if it is no string, or has a NUL byte or invalid UTF-8 (surrogates)."""
    if not isinstance(text, str):
        found, fix = f"{short_repr(text)} as its {language} text", "Write a text or remove the row."
    elif "\0" in text:
        found, fix = f"a NUL byte in its {language} text", "Remove the NUL byte."
    elif not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        found, fix = f"invalid UTF-8 in its {language} text", "Convert the file with iconv or remove the row."
    else:
        return text
    raise BrokenRow(f"has {found}; allowed are strings of valid Unicode. {fix}")
