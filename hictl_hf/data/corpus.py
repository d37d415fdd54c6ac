"""From rows to a clean Arrow dataset with the columns x, y, x_lang, y_lang: this module decides which rows are worth
training on, counts every loss by its reason, and chooses the held-out sentences. How files are read is left to
`formats.py`; how languages are mixed and sentences tokenized, to the modules that train."""

import logging
import os
import re
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal, get_args

import datasets
import numpy as np
import numpy.typing as npt
import pyarrow
from tqdm.auto import tqdm

from ..errors import BadInput
from .formats import LANGUAGE, Row, read_rows

logger = logging.getLogger(__name__)

Reason = Literal[
    "broken", "empty", "equal sides", "too long", "length ratio", "duplicate", "untranslated", "other language"
]
Integers = npt.NDArray[np.int64]
FEATURES = datasets.Features({name: datasets.Value("string") for name in ("x", "y", "x_lang", "y_lang")})
# One character of these scripts says as much as so many letters.
SCRIPT_WEIGHTS = (
    (re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"), 3.2),  # Han
    (re.compile("[\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f]"), 2.4),  # Kana
    (re.compile("[\uac00-\ud7a3]"), 2.0),  # Hangul
)
OTHER_NAMES = {"zh-Hans": "zh", "zh-TW": "zh-Hant", "zh-HK": "zh-Hant", "no": "nb", "iw": "he", "in": "id"}
SHORT = 20  # weighted characters; the lengths of two texts below this say nothing about their meaning
# Marks stay: without its vowel signs a Hindi word is another word. Unicode has no punctuation above 0x20000.
PUNCTUATION_AND_SPACE = dict.fromkeys(
    code for code in range(0x20000) if chr(code).isspace() or unicodedata.category(chr(code)).startswith("P")
)


@dataclass(frozen=True)
class Cleaning:
    """Which rows are kept; lengths are in characters after white space has been collapsed."""

    max_characters: int = 1000
    """Of either side, unweighted."""
    max_length_ratio: float = 4.0
    """Longer side over shorter side; Han, Kana and Hangul characters are weighted, short texts are exempt."""
    drop_equal_sides: bool = True
    """A text that equals its translation was not translated."""
    drop_duplicates: bool = True
    """Same languages and same texts as an earlier row, by a hash of 8 bytes."""
    languages: Sequence[str] = ()
    """Keep these alone, and pairs of two of these, under these names: "pt" is also "pt-BR", "zh" also "zh-Hans", but
    not "zh-Hant" or "zh-TW"."""

    def __post_init__(self) -> None:
        for name in ("max_characters", "max_length_ratio"):
            if not isinstance(value := getattr(self, name), int | float) or value <= 0:
                raise BadInput(f"cleaning: {name} is {value!r}; allowed is a number above 0")
        for name in ("drop_equal_sides", "drop_duplicates"):
            if not isinstance(value := getattr(self, name), bool):
                raise BadInput(f"cleaning: {name} is {value!r}; allowed is true or false")
        if isinstance(self.languages, str) or not all(LANGUAGE.fullmatch(name) for name in self.languages):
            raise BadInput(
                f"cleaning: languages is {self.languages!r}; allowed is a list of codes, with English where pairs have "
                'it: ["en", "de"]'
            )


DEFAULT_CLEANING = Cleaning()


@dataclass
class CorpusReport:
    """What was kept and what was lost; raises at the first broken row if it is strict."""

    strict: bool = False
    kept: Counter[str] = field(default_factory=Counter)
    """Rows by language ("sw") or pair of languages ("en-de")."""
    skipped: Counter[Reason] = field(default_factory=Counter)
    messages: list[str] = field(default_factory=list)
    """Of the first five broken rows."""
    hash: str = ""
    """Of what was kept, rows and order; empty where nobody has gone through all of them."""

    def skip(self, reason: Reason, message: str = "") -> None:
        if reason not in get_args(Reason):
            raise ValueError(f"'{reason}' is no reason to skip a row; allowed are {', '.join(get_args(Reason))}.")
        if reason == "broken" and self.strict:
            raise BadInput(message)
        self.skipped[reason] += 1
        if reason == "broken" and len(self.messages) < 5:
            self.messages.append(message)

    def summary(self) -> str:
        """Aligned lines for a person: rows kept by language, rows skipped by reason, the first broken rows."""
        lines = []
        for title, counts in (("kept", self.kept), ("skipped", self.skipped)):
            lines.append(f"{title:<16}{counts.total():>12,}")
            lines += [f"  {name:<14}{count:>12,}" for name, count in counts.most_common()]
        return "\n".join(lines + [f"  {message}" for message in self.messages])

    def as_dict(self) -> dict[str, Any]:
        return {"kept": dict(self.kept), "skipped": dict(self.skipped), "messages": list(self.messages)}


def load_corpus(
    sources: Sequence[str],
    cleaning: Cleaning = DEFAULT_CLEANING,
    strict: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
) -> tuple[datasets.Dataset, CorpusReport]:
    """All rows of all sources, memory-mapped, and what was lost on the way; sources are read anew at each call."""
    report = CorpusReport(strict)
    rows = clean_rows(rows_of(sources, report), cleaning, report)
    folder = Path(cache_dir or Path(datasets.config.HF_DATASETS_CACHE) / "hictl_hf")
    path, report.hash = write_arrow(tqdm(rows, desc="reading", unit=" rows", disable=None), folder)
    if not report.kept:
        found = f"{', '.join(sources)}: no row is left after cleaning; at least one is needed"
        raise BadInput(f"{found}. Correct the sources by the reasons here, or relax the cleaning.\n{report.summary()}")
    return datasets.Dataset.from_file(str(path)), report


def rows_of(sources: Sequence[str], report: CorpusReport) -> Iterator[Row]:
    if isinstance(sources, str) or not sources:
        raise BadInput(f"sources is {sources!r}; allowed is a list of one or more sources. Write ['corpus.jsonl'].")
    for source in sources:
        yield from read_rows(source, report)


def write_arrow(rows: Iterable[dict[str, str | None]], folder: Path) -> tuple[Path, str]:
    """Writes rows in chunks to a file named by their content: never stale, and the same rows fill the disk once.

    Returns:
        The file, and the hash in its name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    digest, rows, schema = blake2b(digest_size=16), iter(rows), FEATURES.arrow_schema
    with tempfile.TemporaryDirectory(dir=folder) as unfinished:
        path = Path(unfinished) / "rows.arrow"
        with pyarrow.ipc.new_stream(str(path), schema) as writer:
            while chunk := list(islice(rows, 10_000)):
                batch = pyarrow.RecordBatch.from_pylist(chunk, schema=schema)
                digest.update(batch.serialize())
                writer.write_batch(batch)
        finished = folder / f"corpus-{digest.hexdigest()}.arrow"
        if not finished.exists():
            path.replace(finished)
    return finished, digest.hexdigest()


def clean_rows(rows: Iterable[Row], cleaning: Cleaning, report: CorpusReport) -> Iterator[dict[str, str | None]]:
    """Rows worth training on, as columns; y and y_lang are None for a text without translation."""
    seen: set[bytes] = set()
    for row in rows:
        languages, texts = list(row.texts), [" ".join(text.split()) for text in row.texts.values()]
        if cleaning.languages:
            languages = [wanted_language(language, cleaning.languages) for language in languages]
            if not all(languages) or len(set(languages)) < len(languages):  # en and en-GB are no pair
                report.skip("other language")
                continue
        reason = reason_to_skip(texts, cleaning)
        if reason is None and cleaning.drop_duplicates:
            key = blake2b("\0".join(languages + texts).encode(), digest_size=8).digest()
            reason = "duplicate" if key in seen else None
            seen.add(key)
        if reason is not None:
            report.skip(reason)
            continue
        report.kept["-".join(languages)] += 1
        (x, y), (x_lang, y_lang) = (*texts, None)[:2], (*languages, None)[:2]
        yield {"x": x, "y": y, "x_lang": x_lang, "y_lang": y_lang}


def wanted_language(language: str, wanted: Sequence[str]) -> str:
    """The wanted language that this one is, or is a region of; "" where there is none.

    >>> [wanted_language(language, ["pt", "zh"]) for language in ("pt", "pt-BR", "zh-Hans", "zh-TW", "sr-Latn")]
    ['pt', 'pt', 'zh', '', '']
    """
    usual = OTHER_NAMES.get(language, language)
    base, *parts = usual.split("-")
    other_script = any(len(part) > 3 for part in parts)
    return next((name for name in (language, usual, "" if other_script else base) if name in wanted), "")


def reason_to_skip(texts: Sequence[str], cleaning: Cleaning) -> Reason | None:
    if not all(map(is_written, texts)):
        return "empty"
    if cleaning.drop_equal_sides and len(texts) > 1 and texts[0] == texts[1]:
        return "equal sides"
    if max(map(len, texts)) > cleaning.max_characters:
        return "too long"
    lengths = [weighted_length(text) for text in texts]
    if max(lengths) >= SHORT and max(lengths) > cleaning.max_length_ratio * min(lengths):
        return "length ratio"
    return None


def is_written(text: str) -> bool:
    """Whether there is something to read: more than blanks and signs without a width, such as U+200B.

    >>> [is_written(text) for text in ("", "\\u200b\\u00ad", "!", "क")]
    [False, False, True, True]
    """
    return any(not character.isspace() and unicodedata.category(character) not in ("Cc", "Cf") for character in text)


def weighted_length(text: str) -> float:
    """Characters, where one of a dense script counts as many: "the cat" is 7, "猫猫" is 6.4."""
    if text.isascii():
        return len(text)
    return len(text) + sum((weight - 1) * len(script.findall(text)) for script, weight in SCRIPT_WEIGHTS)


def split_held_out(
    dataset: datasets.Dataset,
    per_language: int,
    seed: int,
    parts: Sequence[str] = ("dev", "test"),
    keep_half: bool = True,
) -> dict[str, datasets.Dataset]:
    """Train and held-out parts that share no text (compared by `comparable`), on either side, in any language.

    Texts x are held out with all their translations, those in most languages first, equals by a seeded hash; so the
    choice does not depend on the order of rows. Each part has at most `per_language` rows for a pair of languages,
    with distinct x and distinct y, and fewer where train would otherwise lose more than half of that pair, unless
    `keep_half` is false.
    """
    if per_language < 1:
        raise ValueError(f"per_language is {per_language}; allowed is 1 or more. To hold out nothing, do not split.")
    in_train, chosen = choose_held_out(*hashed_rows(dataset, seed), per_language, parts, keep_half)
    held_out = {part: dataset.select(rows) for part, rows in chosen.items()}
    return {"train": dataset.select(np.flatnonzero(in_train)), **held_out}


def comparable(text: str) -> str:
    """The text in lower case without punctuation and spaces, unless nothing else is in it."""
    return text.lower().translate(PUNCTUATION_AND_SPACE) or text


def hashed_rows(dataset: datasets.Dataset, seed: int) -> tuple[Integers, Integers, Integers, Integers]:
    """Four seeded hashes of each row: its pair of languages (0 without y), comparable x and y, the row as written."""
    secret, hashes = str(seed).encode(), bytearray()
    for batch in dataset.iter(batch_size=10_000):
        for x, y, x_lang, y_lang in zip(*(batch[name] for name in FEATURES), strict=True):
            for text in (f"{x_lang}-{y_lang}", comparable(x), comparable(x if y is None else y), f"{x}\0{y}"):
                hashes += blake2b(text.encode(), digest_size=8, key=secret).digest()
            if y is None:
                hashes[-32:-24] = bytes(8)
    pair, x, y, row = np.frombuffer(hashes, dtype=np.int64).reshape(-1, 4).T  # (rows,) each
    return pair, x, y, row


def choose_held_out(
    pair: Integers,
    x: Integers,
    y: Integers,
    row_hash: Integers,
    per_language: int,
    parts: Sequence[str],
    keep_half: bool,
) -> tuple[npt.NDArray[np.bool_], dict[str, list[int]]]:
    """Which rows stay in train, and the rows of each part. Once a row is held out, all others that share a text with it
    leave train; what is taken from train later therefore shares no text with any part."""
    order = np.lexsort((row_hash, pair, x))
    groups = [list(rows) for _, rows in groupby(order[pair[order] != 0].tolist(), key=x.tolist().__getitem__)]
    groups.sort(key=lambda rows: len(set(pair[rows].tolist())), reverse=True)
    find_rows, in_train = rows_by_text(x, y), np.ones(len(pair), dtype=bool)
    counts = Counter(pair.tolist())
    spare = {name: count // 2 if name and keep_half else count for name, count in counts.items()}  # 0: no pair
    room = {part: dict.fromkeys(counts, per_language) for part in parts}
    chosen: dict[str, list[int]] = {part: [] for part in parts}
    for group in groups:
        first = {name: row for row, name in reversed([(row, int(pair[row])) for row in group if in_train[row]])}
        gains = {part: [row for name, row in first.items() if room[part][name]] for part in parts}
        part = max(parts, key=lambda name: (len(gains[name]), -len(chosen[name])))
        if not gains[part]:
            continue
        lost = find_rows(np.concatenate([x[gains[part]], y[gains[part]]]))
        lost = lost[in_train[lost]]
        losses = Counter(pair[lost].tolist())
        if any(count > spare[name] for name, count in losses.items()):
            continue
        in_train[lost] = False
        chosen[part] += gains[part]
        for name, count in losses.items():
            spare[name] -= count
        for row in gains[part]:
            room[part][int(pair[row])] -= 1
    return in_train, chosen


def rows_by_text(x: Integers, y: Integers) -> Callable[[Integers], Integers]:
    """A function from hashes of texts to all rows with one of them on either side."""
    texts = np.concatenate([x, y])
    order = np.argsort(texts)
    texts = texts[order]

    def find_rows(wanted: Integers) -> Integers:
        starts, ends = (np.searchsorted(texts, np.unique(wanted), side=side) for side in ("left", "right"))
        found = np.concatenate([order[start:end] for start, end in zip(starts, ends, strict=True)])
        return np.unique(found % len(x))

    return find_rows
