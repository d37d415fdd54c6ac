"""Doubts about the first texts of each language: a column such as "to" or "so" is read as Tongan or Somali by its name,
and its texts may say that it is none. Doubts are logged; real corpora are odd, too, so nothing is refused."""

import logging
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import combinations

from .languages import is_code, parse_tag, script_of

logger = logging.getLogger(__name__)
LOOKED_AT, LEAST = 500, 20  # texts of a language that are kept, and with fewer of which there is no doubt
LETTERS_OF = {  # script of ISO 15924 -> its names in Unicode
    "Arab": ("ARABIC",), "Armn": ("ARMENIAN",), "Beng": ("BENGALI",), "Cyrl": ("CYRILLIC",), "Deva": ("DEVANAGARI",),
    "Ethi": ("ETHIOPIC",), "Geor": ("GEORGIAN",), "Grek": ("GREEK",), "Gujr": ("GUJARATI",), "Guru": ("GURMUKHI",),
    "Hans": ("CJK",), "Hant": ("CJK",), "Hebr": ("HEBREW",), "Jpan": ("CJK", "HIRAGANA", "KATAKANA"),
    "Khmr": ("KHMER",), "Knda": ("KANNADA",), "Kore": ("HANGUL", "CJK"), "Laoo": ("LAO",), "Latn": ("LATIN",),
    "Mlym": ("MALAYALAM",), "Mymr": ("MYANMAR",), "Orya": ("ORIYA",), "Sinh": ("SINHALA",), "Taml": ("TAMIL",),
    "Telu": ("TELUGU",), "Thai": ("THAI",), "Tibt": ("TIBETAN",),
}  # fmt: skip
IN_SEVERAL_SCRIPTS = {
    "az", "bs", "cnr", "crh", "ha", "jv", "kaa", "kk", "ks", "ku", "ky", "mn", "ms", "pa", "sd", "sh", "sr", "tg", "tk",
    "tt", "ug", "uz",
}  # fmt: skip
ENGLISH = re.compile(r"\b(the|and|you|with|this|that|from|have)\b", re.IGNORECASE)
LIKE_ENGLISH = {"en", "enm", "ang", "sco", "jam", "pcm", "kri", "srn", "icr"}
WORDS = {"am", "an", "as", "be", "he", "hi", "id", "in", "is", "it", "my", "no", "or", "so", "to"}
SELDOM_LANGUAGES = {"so", "to"}  # in Latin letters, so that the script gives no sign


class Doubts:
    """The first texts of each language of a source, and what is odd in them."""

    def __init__(self) -> None:
        self.languages: set[str] = set()
        self.logged: set[str] = set()
        self.forget()

    def forget(self) -> None:
        """Begin with another source."""
        self.texts: dict[str, list[str]] = {}
        self.second: dict[str, list[str]] = {}
        """The same of the second side of pairs: the first side repeats where a record has more than two languages."""
        self.pairs: set[tuple[str, str]] = set()

    def add(self, languages: Sequence[str], texts: Sequence[str]) -> None:
        """Look at a row that is kept."""
        self.languages.update(languages)
        for language, text in zip(languages, texts):
            if len(kept := self.texts.setdefault(language, [])) < LOOKED_AT:
                kept.append(text)
        if len(languages) > 1:
            self.pairs.add((languages[0], languages[1]))
            if len(kept := self.second.setdefault(languages[1], [])) < LOOKED_AT:
                kept.append(texts[1])

    def log(self, source: str) -> None:
        """Log what is odd in a source, each sentence for the first of them, and begin with another one."""
        for doubt in self.sentences():
            if (about := re.sub(r"\b\d+\b", "", doubt)) not in self.logged:  # of each block of a stream are others
                logger.warning("%s: %s; drop or rename the column if it is no such language", source, doubt)
            self.logged.add(about)
        self.forget()

    def sentences(self) -> Iterator[str]:
        """Yield a sentence for each doubt."""
        for language, texts in self.texts.items():
            if len(texts) >= LEAST and is_code(language):
                yield from self.about_letters(language, texts)
        for language, texts in self.second.items():
            if len(texts) >= LEAST and 10 * (number := len({*texts})) <= len(texts):
                yield f"the first {len(texts)} texts in '{language}' are {number} different ones, as of a category"
        for pair in sorted(self.pairs):
            if {*pair} <= WORDS and {*pair} & SELDOM_LANGUAGES:
                yield f"'{pair[0]}' and '{pair[1]}' are read as languages, and are English words, too"

    def about_letters(self, language: str, texts: Sequence[str]) -> Iterator[str]:
        """Yield a sentence for texts that are in other letters than the language is, or in English."""
        scripts = [{*map(script_of, text[:200])} - {""} for text in texts]
        written = [found for found in scripts if found]
        tag = parse_tag(language)
        wanted = () if tag.language in IN_SEVERAL_SCRIPTS else LETTERS_OF.get(tag.script, ())
        as_wanted = sum(not found.isdisjoint(wanted) for found in written)
        if wanted and len(written) >= LEAST and 10 * as_wanted < len(written):
            most = Counter(name for found in written for name in found).most_common(1)[0][0].title()
            yield f"the first {len(texts)} texts in '{language}' are in {most} letters, not in {wanted[0].title()}"
        elif tag.language not in LIKE_ENGLISH and 2 * sum(map(bool, map(ENGLISH.search, texts))) > len(texts):
            yield f"the first {len(texts)} texts in '{language}' are mostly English"


def named_twice(languages: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each two names of one language.

    >>> [sentence.partition(";")[0] for sentence in named_twice(["de", "en", "deu", "de-AT"])]
    ["'de' and 'deu' are one language, and counted as two"]
    """
    for one, other in combinations(sorted(filter(is_code, languages)), 2):
        if parse_tag(one) == parse_tag(other):
            fix = 'write one of them everywhere, or name all languages in the cleaning: {"languages": [...]}'
            yield f"'{one}' and '{other}' are one language, and counted as two; {fix}"
