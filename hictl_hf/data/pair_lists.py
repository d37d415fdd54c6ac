"""Readers of pairs whose files do not say which languages they have: tab-separated lists, rows with columns of other
names, Tatoeba's exports.

The name of the source says it: `en+de:pairs.txt`, `1.04+en+de:WikiMatrix.de-en.tsv.gz`, `en+de:anchor-positive.jsonl`,
`tatoeba:eng+deu:folder`.
"""

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..errors import BadInput, BrokenRow, short_repr
from .compression import with_compressions
from .language_names import is_language, not_languages, with_codes
from .languages import find_language, main_part, wanted_language
from .lines import noting_quotes, read_lines
from .records import Cursor, Declared, LowScore, Records, skip_to_cursor

logger = logging.getLogger(__name__)

IGNORED = "_"
NUMBER = re.compile(r"-?\d+(\.\d+)?")
NAME = re.compile(r"[A-Za-z][\w.-]{0,29}", re.ASCII)  # of a column, in the first line of a CSV
USUAL_NAMES = frozenset({  # of columns of pairs; no two different ones are translations of each other
    "anchor", "answer", "english", "hypothesis", "input", "negative", "non_english", "output", "positive", "premise",
    "query", "question", "sentence1", "sentence2", "sentence_1", "sentence_2", "sentence_a", "sentence_b", "source",
    "source_sentence", "source_text", "src", "src_text", "target", "target_sentence", "target_text", "text", "text1",
    "text2", "text_a", "text_b", "tgt", "tgt_text", "translation", "trg",
})  # fmt: skip
PAIR_LISTS = with_compressions(".txt", ".tsv", ".sent")
CSV = tuple(with_compressions(".csv"))
TATOEBA = re.compile(r"(\w+(-\w+)?_)?(?P<kind>sentences(_detailed)?|links)\.(csv|tsv)(\.(gz|bz2|xz|zst))?")


@dataclass(frozen=True)
class Layout:
    """Columns of a list of pairs in order: languages, `_` for a column that is not read, and at most one number: the
    least score, in the column that has the scores."""

    columns: Sequence[str]

    @classmethod
    def parse(cls, written: str, source: str) -> "Layout":
        """Parse a layout such as "1.04+en+de"; `BadInput` unless it has two languages or more."""
        columns = written.split("+")
        scores = [name for name in columns if NUMBER.fullmatch(name)]
        languages = [name for name in columns if name != IGNORED and name not in scores]
        others = not_languages(languages, are_declared=True)
        if others or len(set(languages)) < max(2, len(languages)) or len(scores) > 1:
            example = "en+de:pairs.txt, 1.04+en+de:scored.tsv or _+en+_+de:export.tsv"
            if others and all(columns) and len(languages) > 1:
                codes = with_codes(languages)
                instead = source.replace(written, "+".join(codes.get(name, name) for name in columns), 1)
                example = f"{instead} with the codes of its languages, or {IGNORED}, instead of {', '.join(others)}"
            raise BadInput(
                f"{source}: has the columns {short_repr(written)}; allowed are two different languages, {IGNORED} for "
                f"a column to ignore, and the least score for a column of scores. Write {example}."
            )
        return cls(columns)

    def is_header(self, line: str) -> bool:
        """Whether a line names the languages of the columns, in any order, maybe with regions, as a header does."""
        found = [wanted_language(cell.strip(), self.columns) for cell in self.texts_of(line.split("\t"))]
        return sorted(found) == sorted(filter(self.is_language, self.columns))

    def has_usual_names(self, cells: Sequence[str]) -> bool:
        """Whether the columns of texts hold different names of `USUAL_NAMES`, so that the line is no pair.

        >>> [Layout(["_", "en", "de"]).has_usual_names(["id", *names]) for names in (("src", "TGT"), ("text", "Text"))]
        [True, False]
        """
        names = [cell.strip().lower() for cell in self.texts_of(cells)]
        return len(cells) == len(self.columns) and {*names} <= USUAL_NAMES and len({*names}) == len(names)

    def texts_of(self, cells: Sequence[str]) -> list[str]:
        """Return the cells in columns of texts."""
        return [cell for name, cell in zip(self.columns, cells) if self.is_language(name)]

    @staticmethod
    def is_language(column: str) -> bool:
        return column != IGNORED and not NUMBER.fullmatch(column)

    def record(self, cells: Sequence[Any]) -> dict[str, Declared] | BrokenRow | LowScore:
        """Return the texts of a row by language."""
        if len(cells) != len(self.columns):
            return BrokenRow(
                f"has {len(cells)} columns separated by tabs; allowed are {len(self.columns)}, as named in "
                f"{'+'.join(self.columns)}. Correct the line, or name each column of the file."
            )
        texts = Declared()
        for name, cell in zip(self.columns, cells):
            if NUMBER.fullmatch(name):
                try:
                    score = float(cell)
                except (TypeError, ValueError):
                    return BrokenRow(f"has {short_repr(cell)} as its score; allowed is a number. Correct the line.")
                if not score >= float(name):  # also NaN
                    return LowScore()
            elif name != IGNORED:
                texts[name] = cell
        return {"translation": texts}


def read_pair_list(path: str, cursor: Cursor, layout: Layout) -> Records:
    """Read one pair a line, in columns separated by tabs, below usual names if there are any; a quote is an ordinary
    character."""
    for number, line in noting_quotes(path, read_lines(path, cursor)):
        if number == 1 and layout.is_header(line):
            raise BadInput(
                f"{path}:1: is {short_repr(line)}, the names of the columns; allowed are lines of texts. Remove the "
                f"line, or name a .tsv without {'+'.join(layout.columns)}: before it, as a table."
            )
        if number == 1 and layout.has_usual_names(line.split("\t")):
            log_first_line(path, line)
            continue
        yield number, layout.record(line.split("\t"))


@cache
def log_first_line(path: str, line: str) -> None:
    """Log once that the first line of a file is no pair."""
    logger.warning("%s: its first line, %s, is read as the names of the columns, not as a pair", path, short_repr(line))


@cache
def log_doubtful_names(source: str, names: str) -> None:
    """Log once that the names of the columns may be the first pair of a CSV without names."""
    logger.warning(
        "%s: has columns called %s; if that is the first pair of a CSV without names, it is not read. Add names",
        source,
        names,
    )


def check_first_line(source: str, names: Sequence[str], layout: Layout) -> None:
    """Raise `BadInput` for a first line of a CSV that may be a pair, not names; log what are no usual names."""
    found = layout.texts_of(names)
    if not all(map(NAME.fullmatch, found)):
        raise BadInput(
            f"{source}: begins with the line {short_repr(','.join(names))}, which may be a pair; allowed is a line "
            "with a name for each column of texts, one word of letters without accents, such as source,target. Put it "
            "before the line, or if that has names, in its place."
        )
    if not layout.has_usual_names(names) and not all(map(is_language, found)):
        log_first_line(source, ",".join(names))


def first_names(records: Records) -> list[str]:
    """Return the names of the columns in the first row, in its order."""
    return list(next((row for _, row in records if isinstance(row, Mapping)), {}))


def read_columns(
    source: str,
    cursor: Cursor,
    read: Callable[[str, Cursor], Records],
    layout: Layout,
    like: Callable[[Cursor], Records] | None = None,
) -> Records:
    """Read rows of JSON lines, Parquet, CSV or the Hub, whose columns the layout names in the order of the first row or
    line; that of another file (`like`) if it has the same names."""
    names = first_names(read(source, Cursor()))
    if like and sorted(others := first_names(like(Cursor()))) == sorted(names):
        names = others
    if names and len(names) != len(layout.columns):
        raise BadInput(
            f"{source}: has the columns {short_repr(names)}; allowed are {len(layout.columns)}, as named in "
            f"{'+'.join(layout.columns)}. Name each in this order, {IGNORED} for a column to ignore."
        )
    if names and source.lower().endswith(CSV):
        check_first_line(source, names, layout)
    elif source.startswith("hub:") and not all(map(NAME.fullmatch, layout.texts_of(names))):
        log_doubtful_names(source, short_repr(names))
    for name, column in zip(names, layout.columns):
        if layout.is_language(column) and is_language(name) and not find_language(main_part(name), [main_part(column)]):
            raise BadInput(
                f"{source}: has the column {name!r}, which {'+'.join(layout.columns)} names {column}; allowed is its "
                f"own language. Name the columns in the order of the first row, or write {source} alone."
            )
    for number, row in read(source, cursor):
        if isinstance(row, Mapping):
            if {*row} == {*names}:
                row = layout.record([row[name] for name in names])
            else:
                row = BrokenRow(
                    f"has the columns {short_repr(list(row))}; allowed are {short_repr(names)}, as in the first row. "
                    "Correct or remove it."
                )
        yield number, row


# --- Tatoeba ----------------------------------------------------------------------------------------------------------


def tatoeba_files(folder: str) -> tuple[list[str], list[str]]:
    """Return the files of sentences and of links in a folder; `BadInput` unless it has both."""
    if not os.path.isdir(folder):
        raise BadInput(f"{folder}: is no folder; allowed is one with Tatoeba's sentences and links. Check the path.")
    found: dict[str, list[str]] = {"sentences": [], "links": []}
    for name in sorted(os.listdir(folder)):
        if match := TATOEBA.fullmatch(name):
            found[match["kind"].partition("_")[0]].append(os.path.join(folder, name))
    if missing := [kind for kind, paths in found.items() if not paths]:
        archives = [f"{folder}/{kind}.tar.bz2" for kind in missing if os.path.exists(f"{folder}/{kind}.tar.bz2")]
        fix = f"Unpack it: tar -C {folder} -xjf {archives[0]}." if archives else "Download them from tatoeba.org."
        raise BadInput(
            f"{folder}: has no {' and no '.join(missing)}; allowed is a folder with sentences.csv and links.csv, or "
            f"deu_sentences.tsv, eng_sentences.tsv and deu-eng_links.tsv, also compressed. {fix}"
        )
    return found["sentences"], found["links"]


def read_tatoeba(folder: str, languages: Sequence[str], cursor: Cursor) -> Records:
    """Read the linked sentences of Tatoeba's exports: the first language with each other one.

    The sentences of these languages, and the numbers of the pairs, are held in memory.
    """
    return skip_to_cursor(cursor, tatoeba_pairs(folder, languages))


def tatoeba_pairs(folder: str, languages: Sequence[str]) -> Records:
    """Yield each linked pair once, in the order of the links."""
    sentences, links = tatoeba_files(folder)
    texts = read_sentences(sentences, languages)
    if missing := set(languages) - {language for language, _ in texts.values()}:
        raise BadInput(
            f"{folder}: has no sentence in {', '.join(sorted(missing))}; allowed are Tatoeba's own codes, such as eng, "
            "deu and cmn. Correct the code, or download its sentences."
        )
    seen, number = set[tuple[int, int]](), 0
    for path in links:
        for pair in read_numbers(path):
            number += 1
            if isinstance(pair, BrokenRow):
                yield number, pair
                continue
            if any(each not in texts for each in pair):
                continue
            first, other = sorted(pair, key=lambda each: texts[each][0] != languages[0])
            if texts[first][0] == languages[0] != texts[other][0] and (first, other) not in seen:
                seen.add((first, other))
                yield number, {"translation": dict([texts[first], texts[other]])}


def read_sentences(paths: Sequence[str], languages: Sequence[str]) -> dict[int, tuple[str, str]]:
    """Return language and text of each sentence in these languages, by its number."""
    texts = {}
    for path in paths:
        for at, line in read_lines(path, Cursor()):
            number, language, text = (*line.split("\t"), "", "")[:3]
            if not number.isdecimal():
                raise BadInput(
                    f"{path}:{at}: begins with {short_repr(number)}; allowed are Tatoeba's columns: number, language, "
                    "text. Download the file again."
                )
            if language in languages:
                texts[int(number)] = (language, text)
    return texts


def read_numbers(path: str) -> Iterator[tuple[int, int] | BrokenRow]:
    """Yield the two numbers of each line of a file of links."""
    for at, line in read_lines(path, Cursor()):
        cells = line.split("\t")
        if len(cells) == 2 and all(map(str.isdecimal, cells)):
            yield int(cells[0]), int(cells[1])
        else:
            yield BrokenRow(f"{short_repr(line)} ({path}:{at}) is no link; allowed are two numbers. Correct the line.")
