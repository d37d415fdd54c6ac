"""Text of gettext catalogues as users see it on the screen: without mnemonics and invisible layout characters.

The rules see one entry at a time: an English text and its translation. `sources` decides which rows are entries,
`cleaning` which of them are kept.
"""

import re
import unicodedata
from enum import IntEnum
from functools import cache
from typing import Literal, NamedTuple

from .languages import LETTERS_PER_CHARACTER, script_of

Change = Literal["mnemonics", "soft hyphens", "layout characters"]

MARKS = "_&~"
PLACEHOLDERS = (
    r"</[^<>]*>|<[^<>]*/>|<\w+\s+[\w:-]+=[^<>]*>|<(\w+)>(?=.*</\1>)",  # tags; "<none>" is text
    r"&#?\w+;|&(?:amp|lt|gt|quot|nbsp)\b",
    r"\{\{.*?\}\}|\{%.*?%\}|\{[^{}\s]*\}",  # {{ name }}, {% url %}, {0}, {name}
    r"\$\([^()]*\)|\$\{[^{}]*\}|\$\[[^\[\]]*\]|\$[A-Za-z]\w*\$?",  # $(ARG1), ${x}, $[officename], $name
    r"%\([^()]*\)[#0+-]*\d*(?:\.\d+)?[A-Za-z]",  # %(name)s
    r"%[A-Z_]{2,}%?",  # %PRODUCTNAME
    r"%(?:\d+\$)?[#0+'-]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|L|z|j|t|q)?[A-Za-z%]|%\d+",  # %s, %1$-5.2f, %1
    r"(?<![A-Za-z])~[asdASD](?![A-Za-z'’])|~%",  # of Lisp
    r"#[A-Z]+#|@[a-z_]+@",  # #PAGENUMBER#, @name@
)
PLACEHOLDER = re.compile("|".join(PLACEHOLDERS))
NO_MNEMONIC_IN = re.compile(
    "|".join(
        (
            *PLACEHOLDERS,
            r"<\w+>",
            r"[A-Za-z][A-Za-z0-9+.-]*://\S+|www\.\S+",
            r"[\w.+-]+@[\w-]+\.[\w.-]+",  # an e-mail address
            r"(?<![^\s\"'“«„(=])(?:~|\.{1,2})?/[\w.~-]+/\S*|~/\S*",  # a path
            r"[A-Za-z0-9]+_\w*\.[a-z]{1,4}\d?\b|\.[A-Za-z0-9]+_[A-Za-z0-9]+",  # my_file.txt, module.some_name
            r"\w+\(\)",
            r"(?<!\w)_[^_]+_(?!\w)",  # emphasis, __init__
        )
    )
)
MASKED = "\ue000"
IN_BRACKETS = re.compile(r"\s*[(（\[]\s*[_&~]\w\s*[)）\]]")
DOUBLED = re.compile(r"(?<=\s)([_&~])\1(?=\s)")
BEFORE_MNEMONIC = "(>-"
PERHAPS_BEFORE_MNEMONIC = "<[{/:|–—…+\"'“”„«»‘’‚‹›「『（。، "
NAMES = frozenset({"AT&T", "Drag&drop"})
SHORT_WORDS = frozenset({"at", "by", "do", "id", "in", "is", "no", "of", "on", "to", "up"})  # parts of names

SOFT_HYPHEN, ZERO_WIDTH_SPACE = "\u00ad", "\u200b"
# Direction marks, word joiner, byte order mark; not U+200C and U+200D, which Persian and Hindi are spelled with.
LAYOUT = dict.fromkeys((0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), 0x2060, *range(0x2066, 0x206A), 0xFEFF))
UNSPACED_SCRIPTS = frozenset({"KHMER", "LAO", "MYANMAR", "THAI", "TIBETAN"})  # U+200B separates their words


class Evidence(IntEnum):
    """What speaks for a mark being a mnemonic, from weak to strong."""

    POSSIBLE = 0
    """In front of a digit or capital within a word, or misplaced."""
    UNSURE = 1
    """Elsewhere within a word, or in front of one after a quote, bracket or slash."""
    WORD_PART = 2
    """Separates one or two letters from a word."""
    BEFORE_WORD = 3
    IN_BRACKETS = 4


class Mark(NamedTuple):
    """A mark that may be a mnemonic: its place in the text (with the brackets, if any), and the word around it."""

    start: int
    end: int
    evidence: Evidence
    word: str = ""


def clean_entry(english: str, translation: str) -> tuple[list[str], list[Change]]:
    """Return both texts as their users see them, and a change for each text and kind; white space is collapsed.

    >>> clean_entry("_Save file", "_Datei spei\u00adchern")
    (['Save file', 'Datei speichern'], ['soft hyphens', 'mnemonics', 'mnemonics'])
    """
    changes: list[Change] = []
    visible = []
    for text in (english, translation):
        text, found = without_layout(text)
        visible.append(text)
        changes += found
    texts = without_mnemonics(*visible)
    for before, after in zip(visible, texts, strict=True):
        if before != after:
            changes.append("mnemonics")
    return [" ".join(text.split()) for text in texts], changes


def has_words(text: str) -> bool:
    """Whether a text has a letter outside of placeholders and tags.

    >>> [has_words(text) for text in ("%d %s", "<b>{0}</b>: 12", "%d cm", "<none>", "%(size)s を開く")]
    [False, False, True, True, True]
    """
    return any(map(str.isalpha, PLACEHOLDER.sub("", text)))


# --- invisible characters ---------------------------------------------------------------------------------------------


def without_layout(text: str) -> tuple[str, list[Change]]:
    """Remove soft hyphens, direction marks and joiners of layout, but not U+200C and U+200D, nor U+200B where it
    separates words."""
    if text.isascii():
        return text, []
    changes: list[Change] = []
    unhyphenated = text.replace(SOFT_HYPHEN, "")
    if unhyphenated != text:
        changes.append("soft hyphens")
    cleaned = unhyphenated.translate(LAYOUT)
    if ZERO_WIDTH_SPACE in cleaned and not any(script_of(character) in UNSPACED_SCRIPTS for character in cleaned):
        cleaned = cleaned.replace(ZERO_WIDTH_SPACE, "")
    if cleaned != unhyphenated:
        changes.append("layout characters")
    return cleaned, changes


# --- mnemonics --------------------------------------------------------------------------------------------------------


def without_mnemonics(english: str, translation: str) -> tuple[str, str]:
    """Remove the marks of keyboard shortcuts: `_File`, `&File`, `~File`, `文件(_F)`.

    Sure is a mark

    - in brackets with one character; the brackets are removed, too;
    - in front of a letter (but Han, Kana and Hangul) or digit, at the start or after white space, `(`, `>`, `-`, a tag;
    - that separates one or two letters from a word ("E_xit"), or one capital from others ("H_TTPS"), if the other text
      has no such mark.

    Removed if the other text has a sure one: a mark in front of a capital or digit within a word ("Auto_Width"), and in
    a translation a mark behind a word. Removed if both texts have one: a mark elsewhere within a word, if the English
    word is capitalised ("Den_ominator"), and in front of words after a quote, bracket or slash.

    Never removed: marks in placeholders, tags, entities, URLs, addresses, paths, file names and calls; `&` between two
    capitals ("R&D") or in front of a capital of a lower-case word ("Date&Time"); marks in a lower-case word that both
    texts have ("tree_view"). Of several marks in a text only the one with the strongest evidence counts, and none if
    there are two of these; that is repeated until nothing changes. A doubled mark between spaces becomes a single one.
    """
    before = None
    texts = (english, translation)
    while texts != before:
        before = texts
        texts = _remove_once(*texts)
    return texts


def _remove_once(x: str, y: str) -> tuple[str, str]:
    if not any(mark in text for mark in MARKS for text in (x, y)):
        return x, y
    x, y = (DOUBLED.sub(r"\1", text) for text in (x, y))
    in_x, in_y = _find(x, y), _find(y, x)
    if in_x and not in_y:
        in_y = _find_misplaced(y, x[in_x.start : in_x.end])
    if in_x and in_y and _confirm_each_other(in_x, in_y):
        return _without(x, in_x), _without(y, in_y)
    if in_x and _is_sure(in_x, x, y):
        x = _without(x, in_x)
    if in_y and _is_sure(in_y, y, x):
        y = _without(y, in_y)
    return x, y


def _without(text: str, mark: Mark) -> str:
    return text[: mark.start] + text[mark.end :]


def _is_sure(mark: Mark, text: str, other: str) -> bool:
    """Whether a mark is a mnemonic though the other text may have none."""
    if mark.evidence == Evidence.WORD_PART:
        return text[mark.start] not in other
    return mark.evidence > Evidence.WORD_PART


def _confirm_each_other(in_x: Mark, in_y: Mark) -> bool:
    """Whether the marks that both texts have are mnemonics, not parts of names such as `tree_view`."""
    weakest, strongest = sorted((in_x.evidence, in_y.evidence))
    if strongest > Evidence.WORD_PART or weakest == Evidence.POSSIBLE:
        return strongest >= Evidence.WORD_PART
    letters = re.sub(f"[{MARKS}]", "", in_x.word)
    if letters.isupper() or (letters.isalpha() and letters.istitle()):
        return True
    parts = [re.split(f"[{MARKS}]", mark.word) for mark in (in_x, in_y)]
    if parts[0] == parts[1] or any(x == y and len(x) > 2 for x, y in zip(*parts, strict=True)):
        return False
    return strongest == Evidence.WORD_PART or not (parts[0][0] or parts[1][0])


def _find(text: str, other: str) -> Mark | None:
    """Return the mark with the strongest evidence, if there is exactly one."""
    text = NO_MNEMONIC_IN.sub(_masked, text)
    found = [
        Mark(*brackets.span(), Evidence.IN_BRACKETS)
        for brackets in IN_BRACKETS.finditer(text)
        if brackets[0].strip() not in other
    ]
    found += [mark for place in re.finditer(f"[{MARKS}]", text) if (mark := _classify(text, place.start()))]
    strongest = max((mark.evidence for mark in found), default=None)
    best = [mark for mark in found if mark.evidence == strongest]
    return best[0] if len(best) == 1 else None


def _masked(found: re.Match[str]) -> str:
    """Return characters that are no mark, of the same length; a mnemonic may follow a tag."""
    return (">" if found[0].startswith("<") else MASKED) * len(found[0])


def _classify(text: str, place: int) -> Mark | None:
    """Return the mark at a place with the evidence for it, or None if it is no mnemonic."""
    begin, end = place, place + 1
    while begin and _is_word(text[begin - 1]):
        begin -= 1
    while end < len(text) and _is_word(text[end]):
        end += 1
    mark, before, after = text[place], text[begin:place], text[place + 1 : end]
    if not after or _is_dense(after[0]) or mark in (text[begin - 1 : begin], text[end : end + 1]):
        return None
    if before:
        evidence = _evidence_within(before, mark, after)
        return None if evidence is None else Mark(place, place + 1, evidence, before + mark + after)
    if mark == "~" and not after[0].isalpha():
        return None
    previous = text[place - 1] if place else " "
    if previous.isspace() or previous in BEFORE_MNEMONIC:
        return Mark(place, place + 1, Evidence.BEFORE_WORD)
    return Mark(place, place + 1, Evidence.UNSURE, mark + after) if previous in PERHAPS_BEFORE_MNEMONIC else None


def _evidence_within(before: str, mark: str, after: str) -> Evidence | None:
    """Return the evidence for a mark within a word."""
    short, long = sorted((before, after), key=len)
    if after[0].isdigit():
        return Evidence.POSSIBLE
    is_upper = (before + after).isupper()
    if _is_dense(before[-1]) or f"{before}{mark}{after}" in NAMES or (mark == "&" and is_upper and len(long) == 1):
        return None
    if mark == "~":
        return Evidence.WORD_PART
    if after[0].isupper():
        if is_upper and len(short) == 1:
            return Evidence.WORD_PART
        return Evidence.POSSIBLE if mark == "_" or is_upper else None
    if len(short) <= 2 < len(before + after) and short.lower() not in SHORT_WORDS:
        return Evidence.WORD_PART
    return Evidence.UNSURE


def _find_misplaced(text: str, mnemonic: str) -> Mark | None:
    """Return the only mark of the kind that the English text has, where a translator or a right-to-left script has
    moved it behind a word or in front of a space."""
    text = NO_MNEMONIC_IN.sub(_masked, text)
    mark = next(character for character in mnemonic if character in MARKS)
    if text.count(mark) != 1:
        return None
    place = text.index(mark)
    before, after = text[place - 1] if place else " ", text[place + 1 : place + 2] or " "
    stands_alone = place > 0 and before.isspace() and after.isspace()
    if (mark != "_" and stands_alone) or (_is_word(before) and _is_word(after) and not _is_dense(after)):
        return None
    return Mark(place, place + 1, Evidence.POSSIBLE)


def _is_word(character: str) -> bool:
    return character.isalnum() or unicodedata.category(character)[0] == "M" or character in "\u200c\u200d"


@cache
def _is_dense(character: str) -> bool:
    return script_of(character) in LETTERS_PER_CHARACTER
