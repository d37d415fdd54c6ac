"""Parallel text as IWSLT, WMT, IITB and FLoRes publish it: find the raw files below a folder, read their sentences."""

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from ..data.formats import refuse_unequal
from ..data.lines import read_lines
from ..data.records import Cursor
from ..errors import BadInput, short_repr

Pair = tuple[str, str]
Files = list[tuple[Path, Path]]
SEGMENT = re.compile(r"<seg id[^>]*>(.*)</seg>")
TALK_TAGS = ("<url", "<talkid", "<keywords", "<speaker", "<reviewer", "<translator", "<doc", "</doc")
TALK_MARKUP = re.compile("</?(?:title|description)>")
TABLE_LANGUAGES = re.compile(r"\b([a-z]{2})-([a-z]{2})\b")
GUIDE = "docs/translation_data.md says what to download"


def find_files(raw: Path, patterns: Sequence[str], languages: Pair, optional: bool = False) -> Files:
    """The two files of each pattern; a table of both sides twice."""
    found: Files = []
    for pattern in patterns:
        source_name, target_name = (
            pattern.format(language=language, other=other, role=role)
            for language, other, role in ((*languages, "src"), (*languages[::-1], "ref"))
        )
        source, target = find_file(raw, source_name, optional), find_file(raw, target_name, optional)
        if source and target:
            found.append((source, target))
        elif source or target:
            raise BadInput(f"{raw}: has only one of {source_name} and {target_name}; allowed are both. Add the other.")
    if not found:
        raise BadInput(f"{raw}: has none of {', '.join(patterns)}; allowed is one or more. {GUIDE}.")
    return found


def find_file(raw: Path, name: str, optional: bool) -> Path | None:
    """The only file of this name, or of it and .gz, anywhere below a folder; `None` only if it is optional."""
    paths = sorted(path for ending in ("", ".gz") for path in raw.rglob(name + ending) if path.is_file())
    if len(paths) > 1:
        places = ", ".join(str(path.relative_to(raw)) for path in paths)
        raise BadInput(
            f"{raw}: has {name} {len(paths)} times ({places}); allowed is once. Remove all but the right one."
        )
    if not paths and not optional:
        raise BadInput(f"{raw}: has no {name}, nor {name}.gz; allowed is a folder with it anywhere below. {GUIDE}.")
    return paths[0] if paths else None


def read_pairs(files: Files, languages: Pair, kept_tags: Collection[str] = ()) -> Iterator[Pair]:
    """The sentence pairs of all files, one after another, with single spaces."""
    for source, target in files:
        if source == target:
            yield from read_table(source, languages)
            continue
        number = 0
        both = zip_longest(sentences(source, kept_tags), sentences(target, kept_tags))
        for number, (first, second) in enumerate(both, start=1):
            if first is None or second is None:
                few, many = (source, target) if first is None else (target, source)
                refuse_unequal({str(few): str(number - 1), str(many): "more"})
            else:
                yield first, second
        if not number:
            raise BadInput(f"{source}: holds no sentence; allowed is one or more. {GUIDE}.")


def sentences(path: Path, kept_tags: Collection[str]) -> Iterator[str]:
    """The segments of XML and SGML, the lines of `train.tags` files that are no tags, all lines of other files."""
    name = path.name.removesuffix(".gz")
    for number, line in read_lines(str(path), Cursor()):
        if name.endswith((".xml", ".sgm")):
            if "<seg id" not in line:
                continue
            segment = SEGMENT.search(line)
            if segment is None:
                allowed = 'allowed is <seg id="1">text</seg> on one line'
                raise BadInput(f"{path}:{number}: has {short_repr(line)}; {allowed}. Download the file again.")
            line = segment[1]
        elif name.startswith("train.tags."):
            if any(tag in line for tag in TALK_TAGS if tag not in kept_tags):
                continue
            line = TALK_MARKUP.sub("", line)
        yield " ".join(line.split())


def read_table(path: Path, languages: Pair) -> Iterator[Pair]:
    """Sentences separated by a tab, in the order of the languages in the file's name; missing ones are empty."""
    named = TABLE_LANGUAGES.search(path.name)
    if named is None or set(named.groups()) != set(languages):
        allowed = f"allowed is the order of its columns, {'-'.join(languages)} or {'-'.join(languages[::-1])}"
        raise BadInput(f"{path}: does not have both languages in its name; {allowed}. Rename it.")
    for _, line in read_lines(str(path), Cursor()):
        columns = dict(zip(named.groups(), (" ".join(cell.split()) for cell in line.split("\t"))))
        yield columns.get(languages[0], ""), columns.get(languages[1], "")
