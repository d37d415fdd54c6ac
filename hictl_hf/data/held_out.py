"""Split a corpus into train and held-out parts that share no text, on either side, in any language."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise

import datasets
import numpy as np
import numpy.typing as npt
import sentencepiece

from .corpus import FEATURES

Integers = npt.NDArray[np.int64]
# Marks stay: without its vowel signs a Hindi word is another word. Unicode has no punctuation above 0x20000.
PUNCTUATION_AND_SPACE = dict.fromkeys(
    code for code in range(0x20000) if chr(code).isspace() or unicodedata.category(chr(code)).startswith("P")
)
CONTROL_AND_FORMAT = dict.fromkeys(code for code in range(0x20000) if unicodedata.category(chr(code)) in ("Cc", "Cf"))
# Letters and marks that have no width: joiners and fillers, variation selectors, tags.
WITHOUT_WIDTH = dict.fromkeys(
    [0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x3164, 0xFFA0]
    + [*range(0xFE00, 0xFE10), *range(0xE0000, 0xE01F0)]
)
IGNORED = PUNCTUATION_AND_SPACE | CONTROL_AND_FORMAT | WITHOUT_WIDTH
ROWS_AT_ONCE = 10_000
NORMALIZER = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc")  # of XLM-R and of new vocabularies


def split_held_out(
    dataset: datasets.Dataset,
    per_language: int,
    seed: int,
    parts: Sequence[str] = ("dev", "test"),
    keep_half: bool = True,
) -> dict[str, datasets.Dataset]:
    """Return train and held-out parts that share no text, as `comparable` compares texts.

    A text x is held out with all its translations. Texts in the most languages come first, ties are broken by a seeded
    hash, so the choice does not depend on the order of the examples.

    Args:
        per_language: most examples of each part for a pair of languages, with distinct x and distinct y.
        parts: names of the held-out parts.
        keep_half: hold out fewer where train would lose more than half of a pair of languages.
    """
    if per_language < 1:
        raise ValueError(f"per_language is {per_language}; allowed is 1 or more. To hold out nothing, do not split.")
    if isinstance(parts, str) or "train" in parts or not 0 < len(parts) == len({*parts}):
        raise ValueError(f"parts is {parts!r}; allowed are names of held-out parts, each once; train is what is left")
    in_train, chosen = choose_held_out(*example_hashes(dataset, seed), per_language, parts, keep_half)
    held_out = {part: dataset.select(indices) for part, indices in chosen.items()}
    return {"train": dataset.select(np.flatnonzero(in_train)), **held_out}


def comparable(text: str) -> str:
    r"""Return a text such that texts with the same token ids are equal, and those that differ in case or punctuation.

    The text is normalised as XLM-R's tokenizer does it (NFKC and more), without signs that have no width, in lower
    case, without punctuation and spaces; with them if nothing else is in it.

    >>> comparable("ﬁne, １２") == comparable("Fine\u200b 12")
    True
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", NORMALIZER.Normalize(text).replace("\u2581", " ").strip())
    return text.lower().translate(IGNORED) or text


def rows_without(*held_out: Mapping[str, Sequence[Sequence[int] | None]], of: datasets.Dataset) -> Integers:
    """Return the rows of a tokenised corpus that have, on neither side, the token ids of a held-out text.

    `comparable` makes texts equal that XLM-R's normalisation does. Other tokenizers ignore more (accents, for example),
    and all have one id for characters that they do not know.

    Args:
        held_out, of: ids in `x` and `y`, as from `tokenize_rows`.
    """
    sides = (ids for part in held_out for side in ("x", "y") for ids in part[side])
    found = {np.asarray(ids, dtype=np.int32).tobytes() for ids in sides if ids}
    keep = np.ones(len(of), dtype=bool)
    for start in range(0, len(of) if found else 0, ROWS_AT_ONCE):
        part = of.with_format("arrow")[start : start + ROWS_AT_ONCE]
        for side in ("x", "y"):
            column = part[side].combine_chunks()
            ids, ends = column.values.to_numpy().astype(np.int32, copy=False), column.offsets.to_numpy()
            for row, (first, last) in enumerate(pairwise(ends.tolist())):
                if ids[first:last].tobytes() in found:
                    keep[start + row] = False
    return np.flatnonzero(keep)


def as_in_0_9(text: str) -> str:
    """What `comparable` was until 0.9; the order of examples follows it, so that runs begun then can be resumed."""
    return text.lower().translate(PUNCTUATION_AND_SPACE) or text


def example_hashes(dataset: datasets.Dataset, seed: int) -> tuple[Integers, Integers, Integers, Integers, Integers]:
    """Return five seeded hashes of each example, (examples,) each.

    Of its pair of languages (0 without y), of x and of y as `comparable` gives them, of both texts unchanged, and of x
    as 0.9 compared it.
    """
    secret, hashes = str(seed).encode(), bytearray()
    for batch in dataset.iter(batch_size=10_000):
        for x, y, x_lang, y_lang in zip(*(batch[name] for name in FEATURES), strict=True):
            of_x, of_y = comparable(x), comparable(x if y is None else y)
            for text in (f"{x_lang}-{y_lang}", of_x, of_y, f"{x}\0{y}", as_in_0_9(x)):
                hashes += blake2b(text.encode(), digest_size=8, key=secret).digest()
            if y is None:
                hashes[-40:-32] = bytes(8)
    pair, x, y, example, before = np.frombuffer(hashes, dtype=np.int64).reshape(-1, 5).T
    return pair, x, y, example, before


def choose_held_out(
    pair: Integers,
    x: Integers,
    y: Integers,
    example: Integers,
    before: Integers,
    per_language: int,
    parts: Sequence[str],
    keep_half: bool,
) -> tuple[npt.NDArray[np.bool_], dict[str, list[int]]]:
    """Return which examples stay in train, (examples,), and the indices of those of each part.

    When an example is held out, all examples that share a text with it leave train; examples chosen from train later
    therefore share no text with any part. Hashes as in `example_hashes`.
    """
    find_examples, in_train = examples_by_text(x, y), np.ones(len(pair), dtype=bool)
    counts = dict(zip(*map(np.ndarray.tolist, np.unique(pair, return_counts=True))))
    # How many examples train can lose: of monolingual text, whose pair is 0, all.
    spare = {name: count // 2 if name and keep_half else count for name, count in counts.items()}
    room = {part: dict.fromkeys(counts, per_language) for part in parts}
    chosen: dict[str, list[int]] = {part: [] for part in parts}
    for group in groups_by_text(pair, x, example, before):
        first = {int(pair[index]): index for index in reversed(group) if in_train[index]}  # one for each pair
        gains = {part: [index for name, index in first.items() if room[part][name]] for part in parts}
        part = max(parts, key=lambda name: (len(gains[name]), -len(chosen[name])))
        if not gains[part]:
            continue
        lost = find_examples(np.concatenate([x[gains[part]], y[gains[part]]]))
        lost = lost[in_train[lost]]
        losses = Counter(pair[lost].tolist())
        if any(count > spare[name] for name, count in losses.items()):
            continue
        in_train[lost] = False
        chosen[part] += gains[part]
        for name, count in losses.items():
            spare[name] -= count
        for index in gains[part]:
            room[part][int(pair[index])] -= 1
    return in_train, chosen


def groups_by_text(pair: Integers, x: Integers, example: Integers, before: Integers) -> Iterator[list[int]]:
    """Yield the indices of the pairs that share an x, those in the most languages first; never lists of all at once,
    which would take hundreds of bytes an example. Hashes as in `example_hashes`."""
    order = np.lexsort((example, pair, x))
    order = order[pair[order] != 0]
    if not len(order):
        return
    begins = np.diff(x[order], prepend=~x[order[:1]]) != 0
    starts = np.flatnonzero(begins)
    languages = np.add.reduceat(begins | (np.diff(pair[order], prepend=0) != 0), starts, dtype=np.int64)
    ends = np.append(starts[1:], len(order))
    for group in np.lexsort((np.minimum.reduceat(before[order], starts), -languages)):
        yield order[starts[group] : ends[group]].tolist()


def examples_by_text(x: Integers, y: Integers) -> Callable[[Integers], Integers]:
    """Return a function from hashes of texts to the indices of all examples with one of them on either side."""
    texts = np.concatenate([x, y])
    order = np.argsort(texts)
    texts = texts[order]

    def find_examples(wanted: Integers) -> Integers:
        starts, ends = (np.searchsorted(texts, np.unique(wanted), side=side) for side in ("left", "right"))
        found = np.concatenate([order[start:end] for start, end in zip(starts, ends, strict=True)])
        return np.unique(found % len(x))

    return find_examples
