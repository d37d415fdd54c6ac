"""Language codes, the scripts of characters, and lengths that take the density of a script into account."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache

from ..errors import BrokenRow, short_repr

LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]{2,8})*")
OTHER_NAMES = {"zh-Hans": "zh", "zh-TW": "zh-Hant", "zh-HK": "zh-Hant", "no": "nb", "iw": "he", "in": "id"}
# A character of these scripts says as much as this many letters of an alphabet.
LETTERS_PER_CHARACTER = {"CJK": 3.2, "HIRAGANA": 2.4, "KATAKANA": 2.4, "KATAKANA-HIRAGANA": 2.4, "HANGUL": 2.0}
DENSE_WEIGHTS = tuple(dict.fromkeys(LETTERS_PER_CHARACTER.values()))


# --- codes ------------------------------------------------------------------------------------------------------------


def language_code(name: object) -> str:
    """Return the code with hyphens (pt_BR -> pt-BR); `BrokenRow` for anything that is not a code."""
    if not isinstance(name, str) or not LANGUAGE.fullmatch(name):
        raise BrokenRow(
            f"has the language {short_repr(name)}; allowed are codes such as en, pt-BR or zh_Hans. Correct the code."
        )
    return name.replace("_", "-")


def main_part(language: str) -> str:
    """Return the language of a code, without script and region.

    >>> main_part("zh_Hant-TW")
    'zh'
    """
    return re.split("[-_]", language)[0]


def wanted_language(language: str, wanted: Sequence[str]) -> str:
    """Return the wanted language that this one is, or is a regional variety of; "" if there is none.

    >>> [wanted_language(language, ["pt", "zh"]) for language in ("pt", "pt-BR", "zh-Hans", "zh-TW", "sr-Latn")]
    ['pt', 'pt', 'zh', '', '']
    """
    usual = OTHER_NAMES.get(language, language)
    base, *parts = usual.split("-")
    other_script = any(len(part) > 3 for part in parts)
    return next((name for name in (language, usual, "" if other_script else base) if name in wanted), "")


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
