"""Sentence pairs to batches: read them in the wanted directions (`load_pairs`), tokenize them (`tokenize_pairs`), batch
them by similar length (`TokenBudgetBatchSampler`), and pad them (`TranslationCollator`)."""

import copy
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
from datasets import Dataset, Features, List, Value, concatenate_datasets
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Sampler
from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerBase

from ..data.cleaning import Cleaning, CorpusReport
from ..data.corpus import load_corpus, rows_of, spread
from ..data.languages import wanted_language
from ..data.layout import end_of_text
from ..data.sampling import shuffle_by_length
from ..data.text_encoding import encode_texts
from ..data.tokenization import releases
from ..errors import BadInput
from ..processes import ALONE, Processes

logger = logging.getLogger(__name__)

# parallel corpora are not cleaned: the paper's corpora are prepared before, and lengths are limited in tokens
ONLY_WHOLE = Cleaning(2**31, float("inf"), drop_equal_sides=False, drop_duplicates=False, catalogue_text=False)

LOOKED_UP = 100_000  # pairs of train at a time


class Direction(NamedTuple):
    """From which language into which."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


class Pair(NamedTuple):
    """A text, its translation, the direction, and the place in its source ("file:line")."""

    source: str
    target: str
    direction: Direction
    origin: str


def directions_between(sources: Sequence[str], targets: Sequence[str]) -> list[Direction]:
    """Each source language into each other target language.

    >>> list(map(str, directions_between(["en", "de"], ["de", "fr"])))
    ['en-de', 'en-fr', 'de-fr']
    """
    return [Direction(source, target) for source, target in product(sources, targets) if source != target]


def load_pairs(
    sources: Sequence[str],
    directions: Sequence[Direction],
    cleaning: Cleaning = ONLY_WHOLE,
    strict: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
) -> tuple[dict[Direction, Dataset], CorpusReport]:
    """Load all pairs of all sources for training, and count those left out.

    Returns:
        For each direction the columns `source` and `target`, memory-mapped; and the counts, `kept` by direction.
    """
    corpus, report = load_corpus(sources, cleaning, strict, cache_dir)
    found, report.kept = dict(report.kept), Counter()
    languages = corpus.select_columns(["x_lang", "y_lang"]).to_pandas().fillna("")
    parts: dict[Direction, list[Dataset]] = {}
    for (x_lang, y_lang), numbers in languages.groupby(["x_lang", "y_lang"]).indices.items():
        rows = corpus.select(numbers)
        matching = {direction: columns for direction in directions if (columns := sides(direction, x_lang, y_lang))}
        for direction, (source, target) in matching.items():
            named = rows.rename_columns({source: "source", target: "target"}).select_columns(["source", "target"])
            parts.setdefault(direction, []).append(named)
        if not matching:
            report.skipped["other language" if y_lang else "untranslated"] += len(rows)
    pairs = {direction: concatenate_datasets(parts[direction]) for direction in directions if direction in parts}
    report.kept.update({str(direction): len(rows) for direction, rows in pairs.items()})
    refuse_missing(sources, directions, found, pairs)
    return pairs, report


def sample_pairs(pairs: dict[Direction, Dataset], wanted: int | None, report: CorpusReport) -> dict[Direction, Dataset]:
    """Take at most this many pairs, of all directions together; the others are counted as skipped."""
    total = sum(map(len, pairs.values()))
    if wanted is None or wanted >= total:
        return pairs
    chosen, begin = spread(total, wanted), 0
    taken: dict[Direction, Dataset] = {}
    for direction, rows in pairs.items():
        own = chosen[(begin <= chosen) & (chosen < begin + len(rows))] - begin
        if not len(own):
            raise BadInput(f"max_train_samples is {wanted}, which leaves no pair of {direction}; give more")
        taken[direction], begin = rows.select(own), begin + len(rows)
    report.skipped["beyond max_train_samples"] += total - wanted
    return taken


def sides(direction: Direction, x_lang: str, y_lang: str) -> tuple[str, str] | None:
    """The columns of source and target in this direction; `None` for other languages ("pt-BR" matches "pt")."""
    x, y = (wanted_language(language, direction) if language else "" for language in (x_lang, y_lang))
    return ("x", "y") if (x, y) == direction else ("y", "x") if (y, x) == direction else None


def refuse_missing(
    sources: Sequence[str], directions: Sequence[Direction], found: Mapping[str, int], kept: Iterable[Direction]
) -> None:
    """Raise `BadInput` if a source or target language has no pair."""
    kept = list(kept)
    for side in ("source", "target"):
        there = {getattr(direction, side) for direction in kept}
        missing = {name: 0 for direction in directions if (name := getattr(direction, side)) not in there}
        if missing:
            pairs = ", ".join(f"{pair} ({number:,})" for pair, number in found.items())
            raise BadInput(
                f"{', '.join(sources)}: no row has {', '.join(missing)} as its {side}, with one of the other side's "
                f"languages; allowed are languages that occur, here {pairs or 'none'}. Correct the tags of the rows, "
                "or --source_lang and --target_lang"
            )


def read_pairs(sources: Sequence[str], directions: Sequence[Direction]) -> list[Pair]:
    """Read all pairs of validation or test sets in these directions, in order; log how many rows have others.

    Raises:
        BadInput: a row is broken or has no translation, or no row has one of the languages.
    """
    pairs, found, others = [], Counter[str](), Counter[str]()
    for row in rows_of(sources, report := CorpusReport(strict=True)):
        found["-".join(row.texts)] += 1
        if len(row.texts) == 1:
            raise BadInput(
                f"{row.origin}: has no translation to score with; allowed are rows of two languages. Complete the row, "
                "or translate texts without references by hictl translate"
            )
        texts = dict(zip(("x", "y"), row.texts.values(), strict=True))
        matching = {direction: columns for direction in directions if (columns := sides(direction, *row.texts))}
        pairs += [Pair(texts[x], texts[y], direction, row.origin) for direction, (x, y) in matching.items()]
        others["-".join(row.texts)] += not matching
    refuse_missing(sources, directions, found, {pair.direction for pair in pairs})
    if unread := [f"{name} ({number:,})" for name, number in (others + report.skipped).items()]:
        logger.warning("%s: rows that are not read: %s", ", ".join(sources), ", ".join(unread))
    return pairs


def found_in_train(held_out: Iterable[Pair], train: Mapping[Direction, Dataset]) -> int:
    """The number of pairs of validation or test whose two texts are also a pair of train, in the same direction."""
    wanted: dict[Direction, dict[tuple[str, str], int]] = defaultdict(Counter)
    for pair in held_out:  # white space as of train
        source, target = " ".join(pair.source.split()), " ".join(pair.target.split())
        wanted[pair.direction][source, target] += 1
    number = 0
    for direction in wanted.keys() & train.keys():
        sources = pa.array({source for source, _ in wanted[direction]}, pa.string())
        found: set[tuple[str, str]] = set()
        for batch in train[direction].with_format("arrow").iter(LOOKED_UP):
            some = batch.filter(pyarrow.compute.is_in(batch["source"], sources))
            found.update(zip(some["source"].to_pylist(), some["target"].to_pylist()))
        number += sum(wanted[direction][pair] for pair in found & wanted[direction].keys())
    return number


# --- token ids --------------------------------------------------------------------------------------------------------


def tokenize_pairs(
    pairs: Mapping[Direction, Dataset],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    report: CorpusReport,
    workers: int | None = None,
) -> Dataset:
    """Tokenize the pairs of all directions; pairs with an empty or too long side are left out and counted.

    Args:
        max_length: tokens of the longer side, special tokens included.
        workers: processes that tokenize; `None`: this one.

    Returns:
        `input_ids` (`<s> … </s>`), `labels` (`… </s>`; the decoder adds a start token) and `target_language`.
    """
    ids, parts = List(Value("int32")), []
    for direction, rows in pairs.items():
        tokens = rows.map(
            partial(tokenize_batch, tokenizer=tokenizer, target_language=direction.target, made_by=releases()),
            batched=True, remove_columns=rows.column_names, num_proc=workers, desc=f"tokenize {direction}",
            features=Features({"input_ids": ids, "labels": ids, "target_language": Value("string")}),
        )  # fmt: skip
        empty, too_long = (int(faulty.sum()) for faulty in find_faulty(*side_lengths(tokens), max_length))
        report.skipped.update({"empty": empty, "too long": too_long})
        report.kept[str(direction)] = len(tokens) - empty - too_long
        if empty + too_long:  # written again: selected rows would be read one by one
            tokens = tokens.with_format("arrow").map(
                drop_faulty, batched=True, fn_kwargs={"max_length": max_length}, features=tokens.features,
                desc=f"leave out {direction}",
            ).with_format(None)  # fmt: skip
        parts.append(tokens)
    if not report.kept.total():
        raise BadInput(
            f"no pair is left: {report.skipped['empty']} have a side without a token, {report.skipped['too long']} one "
            f"of more than {max_length} tokens; split them into sentences, or raise --max_seq_length and --max_tokens"
        )
    return concatenate_datasets(parts)


def tokenize_batch(
    batch: dict[str, list[str]], tokenizer: PreTrainedTokenizerBase, target_language: str, made_by: str = ""
) -> dict[str, list[Any]]:
    """Tokenize a batch of pairs; `made_by`, as of `releases`, only names the cached result."""
    source = encode_texts(tokenizer, batch["source"])["input_ids"]
    target = encode_texts(tokenizer, batch["target"], add_special_tokens=False)["input_ids"]
    end = end_of_text(tokenizer)
    labels = [[*ids, end] for ids in target]
    return {"input_ids": source, "labels": labels, "target_language": [target_language] * len(labels)}


def find_faulty(
    source: NDArray[np.int64], target: NDArray[np.int64], max_length: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(examples,) which examples have an empty side, and which of the others a side that is too long."""
    empty = (source <= 2) | (target <= 1)  # also text without tokens, such as a zero-width space
    return empty, ~empty & (np.maximum(source, target) > max_length)


def drop_faulty(batch: pa.Table, max_length: int) -> pa.Table:
    """The examples of a batch that can be trained on."""
    empty, too_long = find_faulty(*lengths_of(batch), max_length)
    return batch.filter(pa.array(~empty & ~too_long))


def side_lengths(tokens: Dataset) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(examples,) tokens of the source and of the target of each example."""
    return lengths_of(tokens.with_format("arrow")[:])


def lengths_of(columns: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`side_lengths` of an Arrow table."""
    source, target = (pyarrow.compute.list_value_length(columns[name]).to_numpy() for name in ("input_ids", "labels"))
    return source.astype(np.int64), target.astype(np.int64)


class TranslationCollator:
    """Pads examples to tensors: `input_ids`, `attention_mask`, `labels` (−100 is padding) and `start_ids` (examples,).

    Args:
        start_ids: the decoder's start token for each target language.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, start_ids: Mapping[str, Tensor]) -> None:
        tokenizer = copy.copy(tokenizer)
        tokenizer.padding_side = "right"  # labels begin at the first position
        self.pad, self.start_ids = DataCollatorForSeq2Seq(tokenizer), start_ids

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        starts = [{"start_ids": int(self.start_ids[row["target_language"]])} for row in rows]
        sides = [{name: row[name] for name in ("input_ids", "labels")} for row in rows]
        return dict(self.pad([side | start for side, start in zip(sides, starts)]))


# --- batches ----------------------------------------------------------------------------------------------------------


class TokenBudgetBatchSampler(Sampler[NDArray[np.int64]]):
    """Every example once an epoch, in batches of similar length; their order depends on (seed, epoch) only.

    The lengths, sorted, are divided into batches once. Each epoch shuffles examples of equal lengths, which does not
    change the lengths of a batch, and then the batches; so all epochs have equally many. Processes take batches in
    turn; the largest batches are halved until all processes have equally many.

    Args:
        source, target: (examples,) tokens of each side.
        max_tokens: of a batch on its longer side, padding included: examples times the longest text of either side.
        processes: with the index of that whose batches are yielded.
    """

    def __init__(
        self,
        source: NDArray[np.int64],
        target: NDArray[np.int64],
        max_tokens: int,
        seed: int,
        processes: Processes = ALONE,
    ) -> None:
        self.widths = np.maximum(source, target)
        self.processes = processes
        if len(source) < processes.number or self.widths.max() > max_tokens:
            raise self.refusal(max_tokens)
        self.sort_keys = (self.widths << 40) | (source << 20) | target  # by width, then source, then target
        self.seed, self.epoch = seed, 0
        self.borders = self.cut(np.sort(self.widths), max_tokens)

    def refusal(self, max_tokens: int) -> BadInput:
        return BadInput(
            f"{len(self.widths)} rows of up to {self.widths.max()} tokens cannot be divided into batches of "
            f"{max_tokens} tokens for {self.processes.number} processes; add rows, raise max_tokens, or start fewer "
            "processes"
        )

    def cut(self, widths: NDArray[np.int64], max_tokens: int) -> NDArray[np.int64]:
        """(batches + 1,) where each batch of the sorted examples begins."""
        borders = [0]
        while borders[-1] < len(widths):
            begun = widths[borders[-1] : borders[-1] + max_tokens]
            fits = begun * np.arange(1, len(begun) + 1) <= max_tokens  # true, then false: widths ascend
            borders.append(borders[-1] + int(fits.sum()))
        while (len(borders) - 1) % self.processes.number:
            largest = int(np.diff(borders).argmax())
            if borders[largest + 1] - borders[largest] < 2:  # all have one row
                raise self.refusal(max_tokens)
            borders.insert(largest + 1, (borders[largest] + borders[largest + 1]) // 2)
        return np.array(borders)

    def __len__(self) -> int:
        return (len(self.borders) - 1) // self.processes.number

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; the Trainer calls it."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        random = np.random.default_rng([self.seed, self.epoch])
        order = shuffle_by_length(self.sort_keys, random)
        batches = random.permutation(len(self.borders) - 1)
        for number in self.processes.share(batches.tolist()):
            yield order[self.borders[number] : self.borders[number + 1]]
