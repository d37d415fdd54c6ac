"""Readers of the files of CAT tools, TMX and XLIFF 1.2 and 2: one record a unit, parsed as a stream.

Inline elements: what marks or holds text is read (`g`, `hi`, `mrk`, `pc`, ...), native code is not (`bpt`, `ept`, `it`,
`ph`, `ut` with all that is in them, empty elements), nor what tracked changes deleted; a line break or tab is a space.
How many texts had native code is logged at the end of a file.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Set
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from ..errors import BrokenRow, as_bad_input
from .compression import open_bytes
from .languages import is_code, language_code, parse_tag
from .lines import check_kind
from .records import Cursor, Declared, Records, skip_to_cursor

logger = logging.getLogger(__name__)

STANDALONE_CODE = {"it", "ph", "ut", "x", "cp"}  # which may be a line break; the others begin or end something
NATIVE_CODE = {"bpt", "ept", "it", "ph", "ut", "x", "bx", "ex", "sc", "ec", "cp"}
NOT_TRANSLATED = ("new", "needs-", "initial", "Draft", "Rejected")  # beginnings of states; two of Trados'
XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
# What says of a code that it is a line break, paragraph or tab: its type, Angular's name, or markup of HTML or RTF.
WHITE_SPACE = re.compile(
    r"^(?:(?:xlf:|x-)?(?:lb|tab)|LINE_BREAK(?:_\d+)?)$|</?(?:br|p)\b|\\(?:line|par|tab)\b", re.IGNORECASE
)
DELETED = ("x-sdl-deleted", "x-sdl-feedback-deleted")  # marks of Trados' tracked changes
FIX = "Export it again; xmllint --noout names the place."


def read_tmx(path: str, cursor: Cursor) -> Records:
    """Read the translation units of a TMX file; the header's source language comes first."""
    return skip_to_cursor(cursor, tmx_units(path))


def read_xliff(path: str, cursor: Cursor) -> Records:
    """Read the translation units (XLIFF 1.2), or the segments of a file, where it has them; those without a finished
    translation are untranslated."""
    return skip_to_cursor(cursor, xliff_units(path))


# --- TMX --------------------------------------------------------------------------------------------------------------


def tmx_units(path: str) -> Records:
    """Yield the texts of each unit by language."""
    source, codes, number = "", Codes(), 0
    for name, element in read_elements(path, "tmx", {"header"}, {"tu"}):
        if name == "header":
            source = source_code(element)
        else:
            number += 1
            yield number, tmx_record(element, source, codes)
    codes.log(path)


def tmx_record(unit: Element, source: str, codes: "Codes") -> Mapping[str, Any] | BrokenRow | None:
    """Return the texts of a unit, that of the source language first; `None` for a unit in one language."""
    source, texts = source_code(unit) or source, dict[str, str]()
    for variant in children(unit, "tuv"):
        try:
            language = language_code(variant.get(XML_LANG) or variant.get("lang") or "")
        except BrokenRow as problem:
            return problem
        if language in texts:
            return BrokenRow(f"has two texts in {language}; allowed is one text a language. Remove one of them.")
        texts[language] = "".join(codes.text_of(segment) for segment in children(variant, "seg"))
    first = min(texts, key=lambda language: distance(language, source), default="")
    ordered = Declared(sorted(texts.items(), key=lambda text: text[0] != first))  # stable: the others stay in order
    return {"translation": ordered} if len(ordered) > 1 else None


def distance(language: str, source: str) -> int:
    """Return 0 for the source language, 1 for it with another region, script or code, else 2.

    >>> distance("en", "en"), distance("en-US", "en"), distance("en-GB", "eng"), distance("de", "en")
    (0, 1, 1, 2)
    """
    if language == source:
        return 0
    return 1 if source and parse_tag(language).language == parse_tag(source).language else 2


def source_code(element: Element) -> str:
    """Return the language code of the attribute `srclang`, "" if it is missing or "*all*"."""
    name = element.get("srclang")
    return language_code(name) if is_code(name) else ""


# --- XLIFF ------------------------------------------------------------------------------------------------------------


def xliff_units(path: str) -> Records:
    """Yield source and target of each unit, or of each segment of a unit that has several."""
    languages: tuple[str | None, str | None] = (None, None)
    codes, number = Codes(), 0
    for name, element in read_elements(path, "xliff", {"xliff", "file"}, {"trans-unit", "unit"}):
        if name in ("xliff", "file"):
            given = (element.get("srcLang") or element.get("source-language"),
                     element.get("trgLang") or element.get("target-language"))  # fmt: skip
            languages = given if any(given) else languages  # of XLIFF 2 in <xliff>, of 1.2 in <file>
            continue
        units = [element] if name == "trans-unit" else [*children(element, "segment")]
        translatable = element.get("translate") != "no"
        for unit in units:
            for source, target in marked_segments(unit) or [sides(unit)]:
                number += 1
                state = state_of(unit, target)
                yield number, xliff_record(source, target, state, languages, codes) if translatable else None
    codes.log(path)


def sides(unit: Element) -> tuple[Element | None, Element | None]:
    """Return source and target of a unit."""
    return next(children(unit, "source"), None), next(children(unit, "target"), None)


def marked_segments(unit: Element) -> list[tuple[Element | None, Element | None]]:
    """Return source and target of each segment of a unit that has several (XLIFF 1.2: `mrk mtype="seg"`); some may have
    no target. Empty for other units, and where the marks of both sides do not agree."""
    source, target = sides(unit)
    sources, targets = marked(next(children(unit, "seg-source"), source)), marked(target)
    if len(sources) < 2 or not targets or not targets.keys() <= sources.keys():
        return []
    return [(segment, targets.get(name)) for name, segment in sources.items()]


def marked(side: Element | None) -> dict[str, Element]:
    """Return the segments marked in a source or target by their ids; none if an id is missing or not unique."""
    marks = [] if side is None else [each for each in side.iter() if local_name(each) == "mrk"]
    segments = [(each.get("mid", ""), each) for each in marks if each.get("mtype") == "seg"]
    by_id = dict(segments)
    return by_id if len(by_id) == len(segments) and "" not in by_id else {}


def state_of(unit: Element, target: Element | None) -> str:
    """Return the state of a translation, of XLIFF or of Trados: there each segment that is marked has a definition."""
    defined = {each.get("id"): each.get("conf", "") for each in unit.iter() if local_name(each) == "seg"}
    names = [each.get("mid") for each in target.iter() if local_name(each) == "mrk"] if target is not None else []
    found = [*(defined.get(name, "") for name in names), *(each.get("state", "") for each in children(unit, "target"))]
    return next((state for state in found if state.startswith(NOT_TRANSLATED)), unit.get("state", ""))


def xliff_record(
    source: Element | None,
    target: Element | None,
    state: str,
    languages: tuple[str | None, str | None],
    codes: "Codes",
) -> Mapping[str, Any] | BrokenRow | None:
    """Return the texts of a unit or segment by language; `None` without a finished translation."""
    if source is None or target is None:
        return None
    texts = codes.text_of(source), codes.text_of(target)
    if not texts[1].strip() or state.startswith(NOT_TRANSLATED):
        return None
    if not all(languages) or languages[0] == languages[1]:
        return BrokenRow(
            f"is from {languages[0] or 'no language'} to {languages[1] or 'no language'}; allowed is a file that names "
            "its source and target language. Set them in the CAT tool, and export the file again."
        )
    return {"translation": {str(name): text for name, text in zip(languages, texts)}}


# --- XML --------------------------------------------------------------------------------------------------------------


class Codes:
    """Text of elements without native code, and counts of both."""

    def __init__(self) -> None:
        self.texts = self.with_code = 0

    def text_of(self, element: Element) -> str:
        """Return the text of an element and of the elements in it, without native code."""
        self.texts += 1
        self.with_code += any(local_name(each) in NATIVE_CODE for each in element.iter())
        return "".join(pieces(element))

    def log(self, path: str) -> None:
        """Log how many texts had native code."""
        if self.with_code:
            logger.info("%s: left out the inline codes of %d of %d texts", path, self.with_code, self.texts)


def pieces(element: Element) -> Iterator[str]:
    """Yield the text in an element, without native code and comments; elements may be nested to any depth."""
    rest: list[Element | str] = [element]
    while rest:
        each = rest.pop()
        if isinstance(each, str):
            yield each
            continue
        yield each.text or ""
        for child in reversed(each):
            name = local_name(child)
            if name in STANDALONE_CODE and is_white_space(child):
                rest += [child.tail or "", " "]
            elif name and name not in NATIVE_CODE and child.get("mtype") not in DELETED:
                rest += [child.tail or "", child]
            else:
                rest += [child.tail or ""]


def is_white_space(code: Element) -> bool:
    """Whether an element of native code stands for a line break, a paragraph or a tab."""
    if local_name(code) == "cp":
        return code.get("hex", "").lstrip("0").upper() in ("9", "A", "D")
    return any(map(WHITE_SPACE.search, [*code.attrib.values(), "".join(code.itertext())]))


def read_elements(path: str, root: str, frames: Set[str], units: Set[str]) -> Iterator[tuple[str, Element]]:
    """Yield the elements of these names in order: frames at their start, with attributes alone, and complete units.

    A unit is then removed from its parent, so memory does not grow with the file.
    """
    check_kind(path, may_be_compressed=root == "tmx")
    with as_bad_input(path, f"well-formed XML in <{root}>", FIX), open_bytes(path) as file:
        parents: list[Element] = []
        for event, element in ElementTree.iterparse(file, ("start", "end")):
            name = local_name(element)
            if event == "start":
                if not parents and name != root:
                    raise ValueError(f"the root is <{name}>")
                parents.append(element)
                if name in frames:
                    yield name, element
                continue
            parents.pop()
            if name in units and parents:
                given = (each.get("translate") for each in (element, *reversed(parents)))  # of a file or group for all
                element.set("translate", next(filter(None, given), "yes"))
                yield name, element
                del parents[-1][:]


def children(element: Element, name: str) -> Iterator[Element]:
    """Yield the direct children of a name, in any namespace."""
    return (child for child in element if local_name(child) == name)


def local_name(element: Element) -> str:
    """Return the name of an element without its namespace; "" for comments."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""
