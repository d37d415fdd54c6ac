"""Reader of gettext catalogues, .po and .mo: the source text of each entry with its translation."""

import gettext
import os
import re
import struct
import tempfile
from contextlib import suppress

import polib

from ..errors import BadInput, BrokenRow, as_bad_input, short_repr
from .languages import exact_tag, is_code, language_code, main_part
from .lines import check_kind
from .records import Cursor, Records, skip_to_cursor

# A line of a .po file whose text is not between quotes; the parser would drop its first and last character.
UNQUOTED = re.compile(
    rb'^[ \t]*(?:msg(?:ctxt|id|id_plural|str(?:\[\d+\])?)[ \t]++|(?="))(?!".*"[ \t]*\r?$).*', re.MULTILINE
)
LITTLE_ENDIAN = b"\xde\x12\x04\x95"  # the magic number of a .mo file
PLURAL = re.compile(r"\bplural\s*=\s*([^;]+)")  # in the header Plural-Forms
# What msgfmt reads and polib does not: flags, obsolete entries and keywords without a space after them.
WITHOUT_SPACE = re.compile(
    rb'^([ \t]*(?:#,|#~(?!\|)|msg(?:ctxt|id|id_plural|str(?:\[\d+\])?)(?=")))(?=\S)', re.MULTILINE
)


def read_catalogue(path: str, cursor: Cursor, strict: bool = True) -> Records:
    """Read the entries of a gettext catalogue, .po or .mo; unless strict, one that cannot be read is a `BrokenRow`."""
    try:
        yield from skip_to_cursor(cursor, read_entries(path))
    except BadInput as problem:
        if strict:
            raise
        yield from skip_to_cursor(cursor, iter([(1, BrokenRow(str(problem).removeprefix(f"{path}: ")))]))


def read_entries(path: str) -> Records:
    """Yield the source, English unless the header X-Source-Language names another, with its translation for each entry;
    of plurals the singular and the form for one. Catalogues of British or other English are untranslated."""
    check_kind(path, may_be_compressed=False)
    with as_bad_input(path, "a gettext catalogue", "Check it with msgfmt -c (.po) or msgunfmt (.mo)."):
        check_complete(path)
        catalogue = polib.mofile(path) if path.lower().endswith(".mo") else parse_text(path)
    language = catalogue_language(path, catalogue.metadata.get("Language", ""))
    source = source_language(path, catalogue.metadata.get("X-Source-Language", ""))
    same = main_part(language) == "en" if source == "en" else exact_tag(language) == exact_tag(source)
    form = form_for_one(catalogue.metadata.get("Plural-Forms", ""))
    for number, entry in enumerate(catalogue, start=1):
        text = entry.msgstr_plural.get(form) if entry.msgid_plural else entry.msgstr
        doubtful = entry.obsolete or getattr(entry, "fuzzy", False)  # compiled entries have no flags and no line
        pair = {"translation": {source: entry.msgid, language: text}}
        is_translated = text and not doubtful and not same
        yield getattr(entry, "linenum", number), pair if is_translated else None


def parse_text(path: str) -> polib.POFile:
    """Parse a .po file, also one that leaves out spaces which polib needs."""
    with open(path, "rb") as file:
        content = file.read()
    if (spaced := WITHOUT_SPACE.sub(rb"\1 ", content)) == content:
        return polib.pofile(path)
    with tempfile.NamedTemporaryFile(suffix=".po") as copy:  # polib ends lines of a text in memory at U+2028, too
        copy.write(spaced)
        copy.flush()
        return polib.pofile(copy.name)


def form_for_one(header: str) -> int:
    """Return which plural form is that for one thing, such as that of "1 file", by the header Plural-Forms; 0 if it
    does not say.

    >>> form_for_one("nplurals=6; plural=n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : 3;"), form_for_one("")
    (1, 0)
    """
    with suppress(ValueError, ZeroDivisionError):
        if found := PLURAL.search(header):
            return int(gettext.c2py(found[1])(1))
    return 0


def check_complete(path: str) -> None:
    """Raise an exception for a catalogue that was cut off or lacks a quote, of which polib reads a part of a text."""
    with open(path, "rb") as file:
        content = file.read()
    if not path.lower().endswith(".mo"):
        if found := UNQUOTED.search(content):
            line = content.count(b"\n", 0, found.start()) + 1
            raise ValueError(f"line {line} is {short_repr(found[0].decode('utf-8', 'replace'))}, without quotes around")
        return
    order = "<" if content.startswith(LITTLE_ENDIAN) else ">"
    number, *tables = struct.unpack_from(f"{order}3I", content, 8)
    for table in tables:
        for length, start in struct.iter_unpack(f"{order}2I", content[table : table + 8 * number]):
            if start + length >= len(content):  # a zero byte ends each text
                raise ValueError(f"it ends at {len(content)} bytes, within a text")


def catalogue_language(path: str, header: str) -> str:
    """Return the language of a catalogue: the first code among the folder in .../de/LC_MESSAGES/x.mo, the `Language:`
    header, and the folder in .../locale/de/x.po."""
    folders = os.path.abspath(path).replace(os.sep, "/")
    in_messages = re.search(r"/([^/]+)/LC_MESSAGES/[^/]+$", folders)
    in_locale = re.search(r"/locales?/([^/]+)/[^/]+$", folders)
    names = [in_messages[1] if in_messages else "", header.strip(), in_locale[1] if in_locale else ""]
    names = [re.sub(r"\.[^@]*", "", name) for name in names if name]  # without the encoding: pt_BR.UTF-8
    if language := next(filter(is_code, names), None):
        return language_code(language)
    found = f"has {short_repr(next(iter(names), ''))} as its language; allowed are codes such as de, pt_BR or zh_Hans"
    raise BadInput(f"{path}: {found}. Set its 'Language:' header or move it to locale/<language>/LC_MESSAGES/.")


def source_language(path: str, header: str) -> str:
    """Return the language of the texts of a catalogue: English unless the header X-Source-Language names another."""
    name = re.sub(r"\.[^@]*", "", header.strip())
    if name in ("", "C", "POSIX"):  # locales without translations
        return "en"
    if not is_code(name):
        found = f"has {short_repr(name)} as its X-Source-Language; allowed are codes such as de, pt_BR or zh_Hans"
        raise BadInput(f"{path}: {found}. Correct or remove the header.")
    return "en" if main_part(name) == "en" else language_code(name)
