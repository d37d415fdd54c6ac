"""Zip archives as OPUS and others publish them: the line-aligned files, tables and TMX files in them, read in place."""

import logging
import os
import re
from collections.abc import Callable, Collection, Iterator
from functools import partial
from zipfile import ZipFile

from ..errors import BadInput, as_bad_input
from .compression import listed
from .formats import FORMATS, ending_of, read_moses
from .language_names import is_language, not_languages
from .languages import LANGUAGE
from .lines import check_kind, first_bytes
from .records import Cursor, Records

logger = logging.getLogger(__name__)

OPUS = re.compile(rf"(.*\.)?(?P<x>{LANGUAGE.pattern})-(?P<y>{LANGUAGE.pattern})")  # Books.de-en, of Books.de-en.de
NOT_IN_ARCHIVES = (".parquet", ".po", ".mo")  # their libraries read files, not streams
NO_LANGUAGES = {"ids", "log", "dtd", "gz", "xz"}  # further endings that have the form of a code


def archive_corpora(path: str) -> Iterator[tuple[str, Callable[[Cursor], Records], Collection[str]]]:
    """Yield name, reader and line-aligned members of each corpus in a zip archive: first those of such members.

    Raises:
        BadInput: the archive is damaged, or has no corpus.
    """
    if not first_bytes(path).startswith(b"PK"):
        check_kind(path)
    with as_bad_input(path, "a complete zip archive", "Download it again."), ZipFile(path) as file:
        if encrypted := [each.filename for each in file.infolist() if each.flag_bits & 1]:
            raise BadInput(
                f"{path}: has {encrypted[0]}, which is encrypted; allowed is an archive without a password. Unpack it "
                "with its password: unzip."
            )
        names = sorted(each.filename for each in file.infolist() if not each.is_dir() and each.file_size)
    names = [name for name in names if not is_hidden(name)]
    corpora = aligned(names)
    for stem, languages in corpora.items():
        members = {language: f"{path}/{stem}.{language}" for language in languages}
        yield f"{path}/{stem}.{{{','.join(languages)}}}", partial(read_moses, members), [*members.values()]
    formats = {ending: read for ending, read in FORMATS.items() if ending not in NOT_IN_ARCHIVES}
    others = [name for name in names if ending_of(name) in formats]
    for name in others:
        yield f"{path}/{name}", partial(formats[ending_of(name)], f"{path}/{name}"), ()
    read = {*others, *(f"{stem}.{language}" for stem, languages in corpora.items() for language in languages)}
    if unread := [name for name in names if name not in read]:
        logger.info("%s: not read: %s%s", path, ", ".join(unread[:5]), " and others" * (len(unread) > 5))
    if not corpora and not others:
        found = ", ".join(names[:5]) or "it is empty"
        raise BadInput(
            f"{path}: is a zip archive without a file that can be read in it ({found}); allowed are line-aligned files "
            f"such as a.de and a.en, and {listed(formats)}. Unpack it, and name the files with their "
            "languages: en:FILE+de:FILE."
        )


def is_hidden(name: str) -> bool:
    """Whether a member is hidden, as in a folder, or of what macOS adds.

    >>> [is_hidden(name) for name in ("./a.de", "data/.a.de.swp", "__MACOSX/data/._a.de")]
    [False, True, True]
    """
    return any(part == "__MACOSX" or part[:1] == "." != part for part in name.split("/"))


def aligned(names: list[str]) -> dict[str, list[str]]:
    """Return the languages of each line-aligned corpus by the beginning of its files' names.

    >>> aligned(["LICENSE", "Books.de-en.de", "Books.de-en.en", "Books.de-en.xml"])
    {'Books.de-en': ['de', 'en']}
    >>> aligned(["data/train.cs", "data/train.en", "data/train.ids", "readme.md"])
    {'data/train': ['cs', 'en']}
    >>> aligned(["a.en", "a.de", "a.url", "b.src", "b.ref"])
    {'a': ['en', 'de']}
    """
    found: dict[str, list[str]] = {}
    for name in names:
        stem, _, language = name.rpartition(".")
        if stem and language not in NO_LANGUAGES and is_language(language):
            found.setdefault(stem, []).append(language)
    for stem, languages in found.items():
        found[stem] = languages = [name for name in languages if name not in not_languages(languages)]
        if (opus := OPUS.fullmatch(os.path.basename(stem))) and {opus["x"], opus["y"]} <= set(languages):
            found[stem] = [opus["x"], opus["y"]]
    return {stem: languages for stem, languages in found.items() if len(languages) > 1}
