"""The texts of a run: what is trained on, what is held out of it, and the guard outside it."""

import logging
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain, compress

import numpy as np
import pyarrow.compute
from datasets import Dataset, concatenate_datasets
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from ..data.cleaning import Cleaning, CorpusReport
from ..data.collator import PretrainingCollator
from ..data.corpus import column, load_corpus, sample_rows
from ..data.doubts import LOOKED_AT
from ..data.held_out import comparable, rows_without, split_held_out
from ..data.languages import wanted_language
from ..data.sampling import TemperatureSampler
from ..data.tokenization import tokenize_rows
from ..errors import BadInput
from .arguments import PretrainingArguments

logger = logging.getLogger(__name__)

IN_THE_LOG = "of a stream, the rows that a pass kept and left out are counted in the log, at its end"
MANY_REPEATS = 20  # of each text or pair in an epoch


@dataclass
class Corpora:
    """The texts of a run.

    Attributes:
        train: `None` for a stream.
        dev: pairs to choose the pooling by, and `test` pairs to score; `None` if none are held out.
        guard_dev, guard_test: the same of languages and domains that are not trained on; `None` without a guard.
        unused: pairs of `validation_file` and `guard_data` beyond `held_out_sentences`: not scored, not trained on.
        same_ids: rows that `leave_out_same_ids` left out.
        report: what was read and what was skipped.
    """

    train: Dataset | None
    dev: Dataset | None
    test: Dataset | None
    report: CorpusReport
    guard_dev: Dataset | None = None
    guard_test: Dataset | None = None
    unused: list[Dataset] = field(default_factory=list)
    same_ids: int = 0

    @property
    def held_out(self) -> list[Dataset]:
        """The parts that are not trained on."""
        parts = self.dev, self.test, self.guard_dev, self.guard_test, *self.unused
        return [part for part in parts if part is not None]

    @property
    def hash(self) -> str:
        """Hash of the training data and of the held-out pairs, which follow from the rows read and the split."""
        digest = blake2b(self.report.hash.encode(), digest_size=16)
        for pairs in self.held_out:
            for text in filter(None, chain(pairs["x"], pairs["y"])):  # monolingual text has no y
                digest.update(text.encode() + b"\0")
        if self.same_ids:
            digest.update(b"%d" % self.same_ids)
        return digest.hexdigest()


def read_corpora(args: PretrainingArguments) -> Corpora:
    """Read, clean and split the sources; the numbers of rows kept and skipped are logged."""
    cleaning = args.cleaning_rules
    held_out = read_held_out(args, "validation_file", cleaning)
    guard = read_held_out(args, "guard_data", replace(cleaning, languages=()))
    unused = [part.pop("unused") for part in (held_out, guard) if part]
    if args.streaming:
        dev, test, guard_dev, guard_test = (part.get(name) for part in (held_out, guard) for name in ("dev", "test"))
        report = CorpusReport(messages=[IN_THE_LOG])
        return Corpora(None, dev, test, report, guard_dev, guard_test, unused)
    train, corpus_report = load_corpus(args.train_file, cleaning, args.strict)
    if args.guard_languages:
        train, guard = with_guard_languages(args, train, guard)
    if outside := [*held_out.values(), *guard.values(), *unused]:
        read = len(train)
        train = without_texts(train, *outside)
        logger.info("%d of %d rows share a text with held-out data and are not trained on", read - len(train), read)
        if not len(train):
            names = ("validation_file", "guard_data", "guard_languages")
            given = [f"{name} is {', '.join(getattr(args, name))}" for name in names if getattr(args, name)]
            raise BadInput(
                f"{' and '.join(given)}, with which all {read} rows of train_file share a text; give other pairs, or "
                "hold out fewer by --held_out_sentences"
            )
    parts = {"train": train, **held_out}
    if not held_out and args.held_out_sentences:
        parts = split_held_out(train, args.held_out_sentences, args.seed)
        logger.info(
            "held out: %d pairs to choose by, %d to score; %d rows share a text with them and are not trained on",
            len(parts["dev"]), len(parts["test"]), len(train) - sum(map(len, parts.values())),
        )  # fmt: skip
    parts["train"] = sample_rows(parts["train"], args.max_train_samples, corpus_report)
    logger.info("%s", corpus_report.summary())
    dev, test = (parts.get(name) or None for name in ("dev", "test"))
    if guard and not (dev and test):
        raise BadInput(
            "a guard is scored by the pooling that is best on held-out pairs, and there are none; give "
            "--validation_file or --held_out_sentences, or leave out guard_data and guard_languages"
        )
    return Corpora(parts["train"], dev, test, corpus_report, guard.get("dev"), guard.get("test"), unused)


def read_held_out(args: PretrainingArguments, name: str, cleaning: Cleaning) -> dict[str, Dataset]:
    """The parts "dev", "test" and "unused" of the sources of an argument, not trained on; empty without sources."""
    sources = getattr(args, name)
    if not sources:
        return {}
    pairs, report = load_corpus(sources, cleaning, args.strict)
    if report.skipped:
        logger.info("%s:\n%s", name, report.summary())
    return dev_and_test(f"{name} is {', '.join(sources)}", pairs, args)


def dev_and_test(place: str, pairs: Dataset, args: PretrainingArguments) -> dict[str, Dataset]:
    """Pairs to choose by (dev), others to score (test), and the rest (unused); `BadInput` if none is dev or test."""
    parts = split_held_out(pairs, max(args.held_out_sentences, 1), args.seed, keep_half=False)
    if not (len(parts["dev"]) and len(parts["test"])):
        raise BadInput(
            f"{place}, which has no sentence pair to choose by (dev) and another to score (test); give two or more "
            "pairs that share no text"
        )
    return {"dev": parts["dev"], "test": parts["test"], "unused": parts["train"]}


def with_guard_languages(
    args: PretrainingArguments, train: Dataset, guard: dict[str, Dataset]
) -> tuple[Dataset, dict[str, Dataset]]:
    """The training rows without the guard languages, and the guard with the pairs of these."""
    numbers: dict[tuple[str, str | None], int] = {}  # of each pair of languages; lists of strings would be huge
    both = zip(column(train, "x_lang"), column(train, "y_lang"))
    number = np.fromiter((numbers.setdefault(pair, len(numbers)) for pair in both), np.int32, len(train))
    known = {language for pair in numbers for language in pair if language}
    guarded = {language: wanted_language(language, args.guard_languages) for language in known}
    if unknown := sorted({*args.guard_languages} - {*guarded.values()}):
        raise BadInput(
            f"guard_languages has {', '.join(unknown)}, not in train_file; allowed are {', '.join(sorted(known))}"
        )
    is_guard = np.array([any(language and guarded[language] for language in pair) for pair in numbers])[number]
    is_pair = np.array([y_lang is not None for _, y_lang in numbers])[number]
    if is_guard[is_pair].all():
        raise BadInput(f"guard_languages is {', '.join(args.guard_languages)}, which leaves no pairs to train on")
    pairs = train.select(np.flatnonzero(is_guard & is_pair))
    found = dev_and_test(f"guard_languages is {', '.join(args.guard_languages)}", pairs, args)
    del found["unused"]  # their English may be trained on with other languages
    logger.info(
        "guard_languages %s: %d of %d rows are not trained on, of which %d pairs are the guard",
        ", ".join(args.guard_languages), is_guard.sum(), len(train), sum(map(len, found.values())),
    )  # fmt: skip
    guard = {part: concatenate_datasets([*filter(None, [guard.get(part)]), rows]) for part, rows in found.items()}
    return train.select(np.flatnonzero(~is_guard)), guard


def leave_out_same_ids(
    corpora: Corpora, tokens: Dataset, tokenizer: PreTrainedTokenizerBase, space: str = ""
) -> Dataset:
    """Leave out what has the token ids of a held-out text: training rows, and pairs of `test` that `dev` has.

    Args:
        tokens: the training rows as ids.
        space: as they were tokenized with.

    Returns:
        The rows of `tokens` that stay.
    """
    assert corpora.train is not None
    if corpora.dev is not None and corpora.test is not None:
        parts = (tokenize_rows(part[:], tokenizer, space) for part in (corpora.dev, corpora.test))
        dev, test = map(Dataset.from_dict, parts)
        corpora.test = corpora.test.select(rows_without(dev[:], of=test))
        if lost := len(test) - len(corpora.test):
            logger.info("%d of %d test pairs have the token ids of dev pairs: not scored", lost, len(test))
        if not len(corpora.test):
            raise BadInput("all test pairs have the token ids of dev pairs; hold out other ones, or more")
    keep = rows_without(*(tokenize_rows(part[:], tokenizer, space) for part in corpora.held_out), of=tokens)
    if len(keep) == len(tokens):
        return tokens
    corpora.same_ids = len(tokens) - len(keep)
    logger.info("%d of %d rows have the token ids of held-out texts: not trained on", corpora.same_ids, len(tokens))
    if not len(keep):
        raise BadInput("all training rows have the token ids of held-out texts; hold out other ones, or fewer")
    corpora.train = corpora.train.select(keep)
    return tokens.select(keep)


def first_tokens(tokens: Dataset) -> dict[str, list[int]]:
    """The ids of the first texts of each language.

    Args:
        tokens: rows as ids.
    """
    found: dict[str, list[int]] = {}
    for side in ("x", "y"):
        languages = tokens.select_columns([f"{side}_lang"]).to_pandas()
        for language, rows in languages.groupby(f"{side}_lang").indices.items():
            first = tokens.select_columns([side])[rows[:LOOKED_AT]][side]
            found.setdefault(str(language), []).extend(chain.from_iterable(first))
    return found


def warn_of_repeats(sampler: TemperatureSampler, text_share: float) -> None:
    """Warn of texts, or pairs, so few that `text_share` repeats each many times an epoch: a pair that lacks a side in
    the file is monolingual text."""
    sizes = {languages: len(rows) for languages, rows in sampler.groups.items()}
    for kind, is_text in (("monolingual texts", True), ("pairs", False)):
        own = [(y_lang is None) is is_text for _, y_lang in sizes]
        rows, draws = sum(compress(sizes.values(), own)), int(sampler.draws[own].sum())
        if draws > MANY_REPEATS * rows:
            logger.warning(
                "text_share is %g, and there are only %d %s, which are %d of the %d examples of an epoch; set it to "
                "their share, or leave them out", text_share, rows, kind, draws, len(sampler.lengths),
            )  # fmt: skip


def comparable_texts(*held_out: Dataset) -> set[str]:
    """The texts of both sides of pairs, and monolingual ones, as they are compared."""
    texts = (text for pairs in held_out for side in ("x", "y") for text in column(pairs, side))
    return {comparable(text) for text in texts if text is not None}


def without_texts(train: Dataset, *held_out: Dataset) -> Dataset:
    """The training rows that share no text with the held-out pairs, on either side."""
    texts = comparable_texts(*held_out)
    sides = zip(column(train, "x"), column(train, "y"), strict=True)
    keep = [comparable(x) not in texts and (y is None or comparable(y) not in texts) for x, y in sides]
    return train.select(np.flatnonzero(keep))


def log_cut_rows(examples: Dataset, lengths: NDArray[np.integer], collator: PretrainingCollator) -> None:
    """Log of how many rows the collator cuts x∘y or, if no loss reads that, a sentence.

    Args:
        examples: columns `x` and `y` of token ids.
        lengths: (rows,) tokens of x∘y.
    """
    if {*collator.objectives} != {"sentence"}:
        cut, what = int((lengths > collator.max_length).sum()), "x and y joined"
    else:
        cut, what = 0, "one of their sentences"
        for rows in examples.with_format("arrow").iter(10_000):
            x, y = (pyarrow.compute.list_value_length(rows[name]).fill_null(0).to_numpy() for name in ("x", "y"))
            cut += int((np.maximum(x, y) > collator.room - len(collator.prompt)).sum())
    if cut:
        logger.info("%d of %d rows, %s, are cut to %d tokens", cut, len(examples), what, collator.max_length)
