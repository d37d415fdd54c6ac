"""Data of the adaptation study: training pairs, dev and guard pairs to choose by, and tests, without common sentences.

`Material` reads one of two sets: the 16 languages of bitext/, or languages of tatoeba_low/ with training pairs from
gettext catalogues. `drawn_pairs` gives any system the pairs that hictl_hf trains on, in its order.
"""

import fcntl
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from datasets import Dataset

from hictl_hf.data.cleaning import Cleaning
from hictl_hf.data.corpus import load_corpus
from hictl_hf.data.held_out import comparable, split_held_out
from hictl_hf.files import atomic_file, write_json, write_text
from hictl_hf.parsing import parse_flags_or_recipe
from hictl_hf.pretraining.arguments import PretrainingArguments
from hictl_hf.pretraining.corpora import read_corpora
from hictl_hf.pretraining.setup import examples_and_sampler, load_or_train_tokenizer

from .pretraining import rows_of
from .scoring import Sides, StudyTests, lines_of

DEV_SENTENCES = 100  # of each language, to choose the share of the trained weights by
TEST_SENTENCES = 500  # of each language of NTREX and in domain; Tatoeba and BUCC are complete
GUARD = ("bg", "th", "ur", "de", "sw", "zh")  # of XNLI; the first three are not in bitext/
WITH_PAIRS = {  # languages of bitext/, as Tatoeba and NTREX name them
    "ara", "arb", "cmn", "zho-CN", "deu", "ell", "fin", "fra", "hin", "jpn", "kor", "pol", "por", "rus", "spa", "swa",
    "swh", "tur", "vie",
}  # fmt: skip
LOW = {  # languages of tatoeba_low/: code in catalogues, name
    "bre": ("br", "Breton"),
    "gle": ("ga", "Irish"),
    "cym": ("cy", "Welsh"),
    "oci": ("oc", "Occitan"),
    "ast": ("ast", "Asturian"),
    "fry": ("fy", "Frisian"),
}
LEAST_DRAWN = 20_000  # pairs drawn at once, so that systems with more steps find them drawn
Pair = dict[str, str]  # English and one other language
Pairs = dict[str, Sides]  # by language, for an equal number of English sentences and translations


@dataclass(frozen=True)
class Material:
    """The sentences of a study.

    Args:
        source: folder of bitext/, ntrex/ and xtreme/, or with `languages` of tatoeba_low/ and xtreme/.
        languages: keys of `LOW` that are trained on and tested; empty: those of bitext/.
        train_file: with `languages`, sources of their pairs, such as folders of catalogues.
        min_characters: with `languages`, of the shorter side of a training pair.
        max_characters: of a training sentence.
    """

    source: Path
    languages: tuple[str, ...] = ()
    train_file: tuple[str, ...] = ()
    min_characters: int = 1
    max_characters: int = 200

    @cached_property
    def studied(self) -> StudyTests:
        return StudyTests(self.source)

    @cached_property
    def tests(self) -> dict[str, Pairs]:
        """Sentences by test and language, without BUCC."""
        if not self.languages:
            pairs = self.studied.pairs
            return {name: pairs[name] if name == "tatoeba" else first_ones(pairs[name]) for name in pairs}
        low = {}
        for language in self.languages:
            path = self.source / f"tatoeba_low/tatoeba.{language}-eng.eng"
            low[language] = lines_of(path), lines_of(path.with_suffix(f".{language}"))
        return {"low": low, "tatoeba": self.studied.pairs["tatoeba"]}

    def guard(self) -> Pairs:
        """Return premises and hypotheses of XNLI's dev files, as many distinct ones of each language as of dev."""
        found = {}
        for language in GUARD:
            english, foreign = (self.xnli(name) for name in ("en", language))
            distinct = distinct_pairs(zip(english, foreign, strict=True))
            found[language] = sides_of(islice(distinct, DEV_SENTENCES))
        return found

    def xnli(self, language: str) -> list[str]:
        rows = [line.split("\t") for line in lines_of(self.source / f"xtreme/xnli/dev-{language}.tsv")]
        return [text for premise, hypothesis, _ in rows for text in (premise, hypothesis)]

    def forbidden(self) -> set[str]:
        """Return the sentences that must not be trained on, as `comparable` compares them, without dev."""
        texts = texts_of(*self.tests.values(), self.guard())
        if not self.languages:
            texts = chain(texts, self.studied.sentences())
        return {comparable(text) for text in texts}

    def dev_and_training(self, forbidden: set[str]) -> tuple[Pairs, Iterator[Pair]]:
        """Return the pairs to choose by, and all training pairs, of which `forbidden` ones are still to be removed."""
        if not self.languages:
            return self.studied.bitext("dev", DEV_SENTENCES), (row for row in rows_of(self.source) if len(row) == 2)
        codes = ["en", *(LOW[language][0] for language in self.languages)]
        cleaning = Cleaning(self.max_characters, languages=codes, min_characters=self.min_characters)
        corpus, _ = load_corpus(self.train_file, cleaning)
        pairs = (row for row in corpus if row["y"] is not None)
        allowed = [row for row in pairs if forbidden.isdisjoint(map(comparable, pair_of(row).values()))]
        parts = split_held_out(Dataset.from_list(allowed), DEV_SENTENCES, 0, parts=("dev",))
        dev: dict[str, list[tuple[str, str]]] = {}
        for pair in map(pair_of, parts["dev"]):
            dev.setdefault(other_language(pair), []).append(in_order(pair))
        return {name: sides_of(rows) for name, rows in dev.items()}, map(pair_of, parts["train"])


# --- files ------------------------------------------------------------------------------------------------------------


def prepare(material: Material, folder: Path) -> dict[str, Any]:
    """Write pairs.jsonl.gz, dev.json and guard.json, unless they exist; return the counts and hash of data.json."""
    with one_at_a_time(folder / "lock"):
        if not (folder / "data.json").exists():
            forbidden = material.forbidden()
            dev, rows = material.dev_and_training(forbidden)
            forbidden |= {comparable(text) for text in texts_of(dev)}
            counts = write_pairs(rows, forbidden, folder / "pairs.jsonl.gz")
            for name, pairs in (("dev", dev), ("guard", material.guard())):
                write_json(folder / f"{name}.json", pairs)
            write_json(folder / "data.json", counts)
    found: dict[str, Any] = json.loads((folder / "data.json").read_text("utf-8"))
    return found


@contextmanager
def one_at_a_time(lock: Path) -> Iterator[None]:
    """Let other processes wait at this lock until the block ends."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_pairs(rows: Iterable[Pair], forbidden: set[str], path: Path) -> dict[str, Any]:
    """Write the pairs without forbidden sentences; return how many, by language, and their hash."""
    counts: dict[str, int] = {}
    left_out, digest = 0, blake2b(digest_size=8)
    with atomic_file(path) as draft, gzip.open(draft, "wt", encoding="utf-8") as file:
        for row in rows:
            if any(comparable(text) in forbidden for text in row.values()):
                left_out += 1
                continue
            line = json.dumps(row, ensure_ascii=False, sort_keys=True)
            digest.update(line.encode())
            print(line, file=file)
            counts[other_language(row)] = counts.get(other_language(row), 0) + 1
    sizes = dict(sorted(counts.items()))
    return {"pairs": sum(sizes.values()), "languages": sizes, "left out": left_out, "hash": digest.hexdigest()}


def read_pairs(path: Path) -> Pairs:
    """Return the pairs of dev.json or guard.json."""
    return {name: (x, y) for name, (x, y) in json.loads(path.read_text("utf-8")).items()}


# --- training pairs in the order of hictl_hf --------------------------------------------------------------------------


def drawn_pairs(recipe: Path, number: int, folder: Path) -> list[Pair]:
    """Return the first pairs that a run of hictl_hf trains on, in its order; they are drawn once and kept.

    Args:
        recipe: of the run; its seed and pairs a step decide.
        number: of pairs; the examples are repeated as in further epochs if there are fewer.
        folder: of the files of drawn pairs.
    """
    args: PretrainingArguments = parse_flags_or_recipe([str(recipe)], PretrainingArguments)
    path = folder / f"{args.seed}-{args.train_batch_size}.jsonl"
    with one_at_a_time(folder / f"{path.name}.lock"):
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        if len(lines) < number:
            drawn = islice(examples_in_order(args), max(number, LEAST_DRAWN))
            lines = [json.dumps(pair, ensure_ascii=False) for pair in drawn]
            write_text(path, "".join(f"{line}\n" for line in lines))
    return [json.loads(line) for line in lines[:number]]


def examples_in_order(args: PretrainingArguments) -> Iterator[Pair]:
    """Yield the examples of all steps of a run, epoch after epoch, without end."""
    corpora = read_corpora(args)
    _, sampler = examples_and_sampler(args, load_or_train_tokenizer(args, corpora.train), corpora)
    train = corpora.train
    assert train is not None
    for epoch in count():
        sampler.set_epoch(epoch)
        for batch in sampler:
            yield from map(pair_of, train.select(batch[:, 0]))


def without_repetitions(pairs: Iterable[Pair], size: int) -> list[Pair]:
    """Return the pairs in batches without a repeated text, as sentence-transformers advises for in-batch negatives.

    A pair that would repeat a text of its batch goes to the next one. Incomplete batches at the end are left out.
    """
    ordered, unfinished = list[Pair](), list[list[Pair]]()
    for pair in pairs:
        batch = next((batch for batch in unfinished if not shares_text(batch, pair)), None)
        if batch is None:
            unfinished.append(batch := [])
        batch.append(pair)
        if len(batch) == size:
            unfinished.remove(batch)
            ordered += batch
    return ordered


def shares_text(batch: Iterable[Pair], pair: Pair) -> bool:
    return any(text in other.values() for other in batch for text in pair.values())


# --- pairs ------------------------------------------------------------------------------------------------------------


def pair_of(row: Mapping[str, Any]) -> Pair:
    """Return the texts by language of a row of a corpus."""
    return {row["x_lang"]: row["x"], row["y_lang"]: row["y"]}


def other_language(pair: Pair) -> str:
    return next(name for name in pair if name != "en")


def in_order(pair: Pair) -> tuple[str, str]:
    """Return English first, then the translation."""
    return pair["en"], pair[other_language(pair)]


def first_ones(pairs: Pairs) -> Pairs:
    """Return the first `TEST_SENTENCES` pairs of each language."""
    return {name: (x[:TEST_SENTENCES], y[:TEST_SENTENCES]) for name, (x, y) in pairs.items()}


def sides_of(pairs: Iterable[tuple[str, str]]) -> Sides:
    english, foreign = zip(*pairs)
    return list(english), list(foreign)


def distinct_pairs(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of which neither side was in an earlier one."""
    seen: tuple[set[str], set[str]] = set(), set()
    for pair in pairs:
        if all(text not in texts for text, texts in zip(pair, seen)):
            for text, texts in zip(pair, seen):
                texts.add(text)
            yield pair


def texts_of(*tests: Mapping[str, Sequence[Sequence[str]]]) -> Iterator[str]:
    """Yield all sentences of some tests."""
    yield from chain.from_iterable(chain(*sides) for test in tests for sides in test.values())
