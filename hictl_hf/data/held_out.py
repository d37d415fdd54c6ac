"""Split a corpus into train and held-out parts that share no text, on either side, in any language."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import groupby

import datasets
import numpy as np
import numpy.typing as npt

from .corpus import FEATURES

Integers = npt.NDArray[np.int64]
# Marks stay: without its vowel signs a Hindi word is another word. Unicode has no punctuation above 0x20000.
PUNCTUATION_AND_SPACE = dict.fromkeys(
    code for code in range(0x20000) if chr(code).isspace() or unicodedata.category(chr(code)).startswith("P")
)


def split_held_out(
    dataset: datasets.Dataset,
    per_language: int,
    seed: int,
    parts: Sequence[str] = ("dev", "test"),
    keep_half: bool = True,
) -> dict[str, datasets.Dataset]:
    """Return train and held-out parts that share no text (compared by `comparable`), on either side, in any language.

    Texts x are held out with all their translations: those in the most languages first, ties broken by a seeded hash,
    so the choice does not depend on the order of rows. Each part has at most `per_language` rows for a pair of
    languages, with distinct x and distinct y; fewer if train would lose more than half of that pair, unless `keep_half`
    is false.
    """
    if per_language < 1:
        raise ValueError(f"per_language is {per_language}; allowed is 1 or more. To hold out nothing, do not split.")
    in_train, chosen = choose_held_out(*hashed_rows(dataset, seed), per_language, parts, keep_half)
    held_out = {part: dataset.select(rows) for part, rows in chosen.items()}
    return {"train": dataset.select(np.flatnonzero(in_train)), **held_out}


def comparable(text: str) -> str:
    """Return the text in lower case without punctuation and spaces; as it is if it has nothing else."""
    return text.lower().translate(PUNCTUATION_AND_SPACE) or text


def hashed_rows(dataset: datasets.Dataset, seed: int) -> tuple[Integers, Integers, Integers, Integers]:
    """Return four seeded hashes of each row, each (rows,): its pair of languages (0 without y), comparable x and y, the
    row as written."""
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
    """Return which rows stay in train, and the rows of each part. Once a row is held out, all rows that share a text
    with it leave train; rows taken from train later therefore share no text with any part."""
    order = np.lexsort((row_hash, pair, x))
    groups = [list(rows) for _, rows in groupby(order[pair[order] != 0].tolist(), key=x.tolist().__getitem__)]
    groups.sort(key=lambda rows: len(set(pair[rows].tolist())), reverse=True)
    find_rows, in_train = rows_by_text(x, y), np.ones(len(pair), dtype=bool)
    counts = Counter(pair.tolist())
    spare = {
        name: count // 2 if name and keep_half else count for name, count in counts.items()
    }  # 0 means no pair: all may go
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
    """Return a function from hashes of texts to all rows with one of them on either side."""
    texts = np.concatenate([x, y])
    order = np.argsort(texts)
    texts = texts[order]

    def find_rows(wanted: Integers) -> Integers:
        starts, ends = (np.searchsorted(texts, np.unique(wanted), side=side) for side in ("left", "right"))
        found = np.concatenate([order[start:end] for start, end in zip(starts, ends, strict=True)])
        return np.unique(found % len(x))

    return find_rows
