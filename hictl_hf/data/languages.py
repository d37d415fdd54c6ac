"""Language codes, the scripts of characters, and lengths that take the density of a script into account."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from langcodes import Language, standardize_tag
from langcodes.data_dicts import LIKELY_SUBTAGS
from langcodes.tag_parser import LanguageTagError

from ..errors import BrokenRow, short_repr

LANGUAGE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*(@[A-Za-z]{2,20})?")
MODIFIERS = {  # of locales -> script and variant, which has at most 8 characters
    "latin": ("Latn", ""), "cyrillic": ("Cyrl", ""), "devanagari": ("Deva", ""), "ijekavian": ("", "ijekavsk"),
    "ijekavianlatin": ("Latn", "ijekavsk"),
}  # fmt: skip
PARTS_OF_SCRIPTS = {"Hang": "Kore"}  # Korean is tagged with both: kor_Hang in FLORES
# A character of these scripts says as much as this many letters of an alphabet.
LETTERS_PER_CHARACTER = {"CJK": 3.2, "HIRAGANA": 2.4, "KATAKANA": 2.4, "KATAKANA-HIRAGANA": 2.4, "HANGUL": 2.0}
DENSE_WEIGHTS = tuple(dict.fromkeys(LETTERS_PER_CHARACTER.values()))


# --- codes ------------------------------------------------------------------------------------------------------------


@cache
def language_code(name: object) -> str:
    """Return a code with hyphens and the case of BCP 47 (pt_br -> pt-BR); `BrokenRow` for anything that is none.

    >>> [language_code(name) for name in ("EN", "zh_hant_tw", "sr@latin", "deu")]
    ['en', 'zh-Hant-TW', 'sr-Latn', 'deu']
    """
    if isinstance(name, str) and LANGUAGE.fullmatch(name):
        tag, _, modifier = name.partition("@")
        script, variant = MODIFIERS.get(modifier.lower(), ("", modifier))
        language, *others = re.split("[-_]", tag)
        tag = "-".join(filter(None, (language, script, *others, variant)))
        try:
            return Language.get(tag, normalize=False).to_tag()
        except LanguageTagError:
            pass
    raise BrokenRow(
        f"has the language {short_repr(name)}; allowed are codes such as en, pt-BR or zh_Hans. Correct the code."
    )


def is_code(name: object) -> bool:
    """Whether `language_code` accepts this."""
    try:
        return bool(language_code(name))
    except BrokenRow:
        return False


def main_part(language: str) -> str:
    """Return the language of a code, without script and region.

    >>> main_part("zh_Hant-TW")
    'zh'
    """
    return re.split("[-_@]", language)[0].lower()


class Tag(NamedTuple):
    """A code as any standard writes it: "zh_tw" is ("zh", "Hant", "TW", ()), "deu" is ("de", "Latn", "", ())."""

    language: str
    script: str
    """The script that the code names, or the usual one of its language and region; "" if that is not known."""
    region: str
    variants: tuple[str, ...]


@cache
def standard_code(language: str) -> str:
    """Return the usual code of a language, for deprecated and longer ones, too.

    >>> [standard_code(language) for language in ("iw", "zho_Hant", "cmn", "no", "pt_br")]
    ['he', 'zh-Hant', 'zh', 'nb', 'pt-BR']
    """
    return re.sub(r"^no\b", "nb", standardize_tag(language_code(language), macro=True), count=1)


@cache
def parse_tag(language: str) -> Tag:
    """Return the parts of a code."""
    tag = Language.get(standard_code(language))
    others = (*(tag.variants or ()), *(tag.extensions or ()), *filter(None, [tag.private]))
    is_known = tag.script or tag.language in LIKELY_SUBTAGS  # of others `maximize` says what English has
    script = (tag.maximize().script or "") if is_known else ""
    return Tag(str(tag.language), PARTS_OF_SCRIPTS.get(script, script), tag.territory or "", others)


@cache
def exact_tag(language: str) -> tuple[str, Tag]:
    """Return what the codes of one language have in common; a macrolanguage is another one than its part.

    >>> exact_tag("de") == exact_tag("ger"), exact_tag("no") == exact_tag("nb"), exact_tag("ar") == exact_tag("arb")
    (True, False, False)
    """
    return standardize_tag(language).partition("-")[0], parse_tag(language)


def is_same(tag: Tag, other: Tag) -> bool:
    """Whether two codes mean the same language, where any script is the usual one if that is not known.

    >>> is_same(parse_tag("acm"), parse_tag("acm_Arab")), is_same(parse_tag("sr"), parse_tag("sr_Latn"))
    (True, False)
    """
    return tag._replace(script="") == other._replace(script="") and "" in (tag.script, other.script) or tag == other


def find_language(language: str, known: Sequence[str]) -> str:
    """Return the known code that means this language, as it is written there; "" if there is none.

    >>> [find_language(language, ["pt-BR", "zh"]) for language in ("pt_br", "zh-Hans", "zho", "pt", "zh-TW")]
    ['pt-BR', 'zh', 'zh', '', '']
    """
    if language in known or not is_code(language):
        return language if language in known else ""
    return next((name for name in known if is_code(name) and is_same(parse_tag(name), parse_tag(language))), "")


def wanted_language(language: str, wanted: Sequence[str]) -> str:
    """Return the wanted language that this one is, or is a regional variety of; "" if there is none.

    Codes are compared by BCP 47: another usual script is another language, so "zh-TW", "zh-MO" and "zh-Hant" are not in
    "zh", but in "zh-Hant".

    >>> [wanted_language(language, ["pt", "zh"]) for language in ("pt", "pt-BR", "zh-Hans", "zh-TW", "sr-Latn")]
    ['pt', 'pt', 'zh', '', '']
    """
    return _wanted_language(language, tuple(wanted))


@cache
def _wanted_language(language: str, wanted: tuple[str, ...]) -> str:
    if (found := find_language(language, wanted)) or not is_code(language):
        return found
    everywhere = parse_tag(language)._replace(region="")
    return next((name for name in wanted if is_code(name) and is_same(parse_tag(name), everywhere)), "")


# --- scripts ----------------------------------------------------------------------------------------------------------


@cache
def script_of(character: str) -> str:
    """Return the script of a letter or mark, the first word of its Unicode name; "" for every other character.

    >>> [script_of(character) for character in "aЖ猫ひ́3!"]
    ['LATIN', 'CYRILLIC', 'CJK', 'HIRAGANA', 'COMBINING', '', '']
    """
    return _first_word_of_name(character) if unicodedata.category(character)[0] in "LM" else ""


def weighted_length(text: str) -> float:
    """Return the length in characters, where one of a dense script counts as several: "the cat" is 7, "猫猫" is 6.4."""
    if text.isascii():
        return len(text)
    counts = Counter(map(_letters_per_character, text))
    return len(text) + sum((weight - 1) * counts[weight] for weight in DENSE_WEIGHTS)


@cache
def _letters_per_character(character: str) -> float:
    """Return how many letters a character is worth; punctuation of a script, such as "・", counts as its letters."""
    script = _first_word_of_name(character)
    if script == "HANGUL" and "SYLLABLE" not in unicodedata.name(character):  # a jamo is one letter
        return 1.0
    return LETTERS_PER_CHARACTER.get(script, 1.0)


def _first_word_of_name(character: str) -> str:
    if 0x20000 <= ord(character) < 0x40000:  # Han alone; Python's Unicode tables may be older than the text
        return "CJK"
    name = unicodedata.name(character, "").removeprefix("HALFWIDTH ").removeprefix("COMBINING KATAKANA-")
    return name.partition(" ")[0]
