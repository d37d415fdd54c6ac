"""Filter the rows of a corpus: each is kept, or skipped and counted under the first reason that applies."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, get_args

from ..errors import BadInput
from .catalogue_text import Change, clean_entry, has_words
from .doubts import Doubts
from .languages import is_code, wanted_language, weighted_length
from .records import Row

Reason = Literal[
    "broken", "empty", "no words", "equal sides", "too short", "too long", "length ratio", "duplicate", "untranslated",
    "other language", "low score", "beyond max_train_samples", "held out",
]  # fmt: skip
SHORT = 20  # weighted characters; below, the ratio of two lengths says nothing about the meaning


@dataclass(frozen=True)
class Cleaning:
    """Settings of cleaning; lengths are in characters after collapsing white space."""

    max_characters: int = 1000
    """Longest side, unweighted."""
    max_length_ratio: float = 4.0
    """Longer side over shorter side; Han, Kana and Hangul characters are weighted, short texts exempt."""
    drop_equal_sides: bool = True
    """Skip texts that equal their translation: they were not translated."""
    drop_duplicates: bool = True
    """Skip rows with the languages and texts of an earlier row, by a hash of 8 bytes."""
    languages: Sequence[str] = ()
    """Keep only these languages and pairs of two of them, under these names: "pt" includes "pt-BR", "zh" includes
    "zh-Hans" but not "zh-Hant", "zh-TW" or "zh-MO". Empty: all."""
    catalogue_text: bool = True
    """Clean the text of gettext catalogues: remove mnemonics ("_File"), soft hyphens and invisible layout characters;
    skip entries without words."""
    min_characters: int = 1
    """Shortest side; Han, Kana and Hangul characters are weighted. 15 leaves out labels of one or two words."""

    def __post_init__(self) -> None:
        for name, least in (("min_characters", 0), ("max_characters", 1), ("max_length_ratio", 1)):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not value >= least or value == 0:  # NaN is not more, either
                allowed = f"of {least} or more" if least else "above 0"
                raise BadInput(f"cleaning: {name} is {value!r}; allowed is a number {allowed}")
        if self.min_characters > self.max_characters:
            raise BadInput(
                f"cleaning: min_characters is {self.min_characters}, above max_characters, {self.max_characters}; "
                "nothing would be kept"
            )
        for name in ("drop_equal_sides", "drop_duplicates", "catalogue_text"):
            if not isinstance(value := getattr(self, name), bool):
                raise BadInput(f"cleaning: {name} is {value!r}; allowed is true or false")
        named = self.languages
        if not isinstance(named, list | tuple) or not all(isinstance(name, str) and is_code(name) for name in named):
            raise BadInput(
                f"cleaning: languages is {self.languages!r}; allowed is a list of codes, with English where pairs have "
                'it: ["en", "de"]'
            )


DEFAULT_CLEANING = Cleaning()


@dataclass
class CorpusReport:
    """Counts of rows kept and skipped, and of texts changed; raises at the first broken row if strict."""

    strict: bool = False
    kept: Counter[str] = field(default_factory=Counter)
    """Rows by language ("sw") or pair of languages ("en-de")."""
    skipped: Counter[Reason] = field(default_factory=Counter)
    changed: Counter[Change] = field(default_factory=Counter)
    """Texts of kept rows that were changed, by kind of change."""
    messages: list[str] = field(default_factory=list)
    """One for each of the first five broken rows."""
    hash: str = ""
    """Hash of the kept rows in order; empty unless all of them were read."""
    doubts: Doubts = field(default_factory=Doubts, repr=False, compare=False)

    def skip(self, reason: Reason, message: str = "") -> None:
        """Count a skipped row."""
        if reason not in get_args(Reason):
            raise ValueError(f"'{reason}' is no reason to skip a row; allowed are {', '.join(get_args(Reason))}.")
        if reason == "broken" and self.strict:
            raise BadInput(message)
        self.skipped[reason] += 1
        if reason == "broken" and len(self.messages) < 5:
            self.messages.append(message)

    def summary(self) -> str:
        """Return aligned lines: rows kept by language, texts changed by kind, rows skipped by reason, the first broken
        rows."""
        lines = []
        for title, counts in (("kept", self.kept), ("changed", self.changed), ("skipped", self.skipped)):
            if counts or title != "changed":
                lines.append(f"{title:<16}{counts.total():>12,}")
            lines += [f"  {name:<14}{count:>12,}" for name, count in counts.most_common()]
        return "\n".join(lines + [f"  {message}" for message in self.messages])

    def as_dict(self) -> dict[str, Any]:
        """Return the counts and messages as JSON can hold them."""
        counts = {name: dict(getattr(self, name)) for name in ("kept", "skipped", "changed")}
        return {**counts, "messages": list(self.messages)}


def clean_rows(
    rows: Iterable[Row], cleaning: Cleaning, report: CorpusReport, is_held_out: Callable[[str], bool] | None = None
) -> Iterator[dict[str, str | None]]:
    """Yield the rows that pass all filters, as columns; y and y_lang are None for monolingual text."""
    seen: set[bytes] = set()
    for row in rows:
        languages, texts = list(row.texts), [" ".join(text.split()) for text in row.texts.values()]
        if cleaning.languages:
            languages = [wanted_language(language, cleaning.languages) for language in languages]
            # en and en-GB become the same language: no pair
            if not all(languages) or len(set(languages)) < len(languages):
                report.skip("other language")
                continue
        is_entry = cleaning.catalogue_text and row.is_catalogue_entry
        if is_entry and max(map(len, texts)) > 2 * cleaning.max_characters:  # marks take the square of it
            report.skip("too long")
            continue
        texts, changes = clean_entry(*texts) if is_entry else (texts, [])
        reason = reason_to_skip(texts, cleaning, is_entry)
        if reason is None and cleaning.drop_duplicates:
            key = blake2b("\0".join(languages + texts).encode(), digest_size=8).digest()
            reason = "duplicate" if key in seen else None
            seen.add(key)
        if reason is None and is_held_out and any(map(is_held_out, texts)):
            reason = "held out"
        if reason is not None:
            report.skip(reason)
            continue
        report.kept["-".join(languages)] += 1
        report.changed.update(changes)
        report.doubts.add(languages, texts)
        (x, y), (x_lang, y_lang) = (*texts, None)[:2], (*languages, None)[:2]
        yield {"x": x, "y": y, "x_lang": x_lang, "y_lang": y_lang}


def reason_to_skip(texts: Sequence[str], cleaning: Cleaning, needs_words: bool = False) -> Reason | None:
    """Return the first reason to skip a row that its texts give."""
    if not all(map(is_written, texts)):
        return "empty"
    if needs_words and not all(map(has_words, texts)):
        return "no words"
    if cleaning.drop_equal_sides and len(texts) > 1 and texts[0] == texts[1]:
        return "equal sides"
    lengths = [weighted_length(text) for text in texts]
    if min(lengths) < cleaning.min_characters:
        return "too short"
    if max(map(len, texts)) > cleaning.max_characters:
        return "too long"
    if max(lengths) >= SHORT and max(lengths) > cleaning.max_length_ratio * min(lengths):
        return "length ratio"
    return None


def is_written(text: str) -> bool:
    """Whether the text has a character other than white space, control and format characters (such as U+200B).

    >>> [is_written(text) for text in ("", "\\u200b\\u00ad", "!", "क")]
    [False, False, True, True]
    """
    return any(not character.isspace() and unicodedata.category(character) not in ("Cc", "Cf") for character in text)
