"""An endless stream of training examples, read while training and resumed exactly: the rows of each process, their
order, and the state from which a resumed run continues with the next row.

There are `world_size · readers` readers. In each pass over a source, its shards (files) are distributed among them; the
remainder is shared row by row. The assignment rotates from pass to pass, so over as many passes as there are readers
each reader reads every row once. A reader shuffles in blocks: it reads some rows, yields all of them in random order,
then reads on. A position is therefore the start of the block and the number of its rows already yielded, and resuming
reads one block per source again, however long the run is. (A gzip shard is decompressed, one on the Hub read from its
beginning.) All randomness follows from the seed, the reader and counts.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, replace
from hashlib import blake2b
from itertools import chain
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerBase

from ..errors import BadInput
from .catalogue_text import Change
from .cleaning import DEFAULT_CLEANING, Cleaning, CorpusReport, Reason, clean_rows
from .doubts import LEAST
from .formats import compare_lengths
from .held_out import comparable
from .records import Cursor
from .sampling import example_seed
from .sources import check_unchanged, list_shards, read_shard
from .stream_parts import StreamPart, bytes_of, normalized_shares, nothing_left
from .text_encoding import encode_texts
from .tokenization import tokenize_rows, warn_of_unknown_tokens

logger = logging.getLogger(__name__)

BUFFER = 20_000  # rows that a reader shuffles together, over all sources
TOKENIZED_TOGETHER = 256  # rows


class Text(NamedTuple):
    """A clean row with its seed; y is None for monolingual text."""

    x: str
    y: str | None
    seed: int


class Progress(NamedTuple):
    """A reader's resumable position in a source: current shuffle block, its start, rows already yielded."""

    passes: int = 0
    """Completed passes."""
    block: int = 0
    given: int = 0
    shard: int = 0
    """Shard where the block starts, in the order of the pass; `place` is the number and offsets of a `Cursor`."""
    place: Sequence[int] = (0, 0)
    kept: Mapping[str, int] = {}
    """Rows kept in this pass before the block, by language; `skipped` counts the others by reason."""
    skipped: Mapping[Reason, int] = {}
    changed: Mapping[Change, int] = {}
    """Texts changed in these rows, by kind."""
    empty_passes: int = 0
    """Consecutive passes without a clean row."""


class StreamReport(CorpusReport):
    """Counts of rows that logs the first broken rows at once: the end of a pass may be far."""

    def skip(self, reason: Reason, message: str = "") -> None:
        super().skip(reason, message)
        if reason == "broken" and self.skipped["broken"] <= 5:
            logger.warning("left out: %s", message)


class StreamedBatches(IterableDataset[dict[str, Any]]):
    """Endless batches of tokenised examples for `DataLoader(..., batch_size=None, num_workers=...)`.

    A batch is `{"rows": [{"x": ids, "y": ids or None, "seed": int}, ...], "reader": int, "state": dict}`, all from
    one reader; a process has `readers`, which take turns. Call `consumed` with each batch that was trained on.

    Args:
        shares: relative sampling rate of each source.
        batch_size: examples per batch of this process.
        cleaning: its `drop_duplicates` is ignored: it would need all rows in memory.
        strict: stop at the first broken row instead of counting it.
        buffer: rows that a reader holds and shuffles, divided among sources by their shares.
        readers: number of DataLoader workers; 1 without workers.
        rank, world_size: of this process and of all.
        held_out: texts as `comparable` gives them; rows with one of them on either side are left out.
        space: put before each text, by `space_of`.
        parts: with which the sources, one for each, were mixed by language; `None`: each has all of its files.
    """

    def __init__(
        self,
        sources: Sequence[str],
        shares: Sequence[float],
        tokenizer: PreTrainedTokenizerBase,
        batch_size: int,
        seed: int,
        cleaning: Cleaning = DEFAULT_CLEANING,
        strict: bool = False,
        buffer: int = BUFFER,
        readers: int = 1,
        rank: int = 0,
        world_size: int = 1,
        held_out: Set[str] = frozenset(),
        space: str = "",
        parts: Sequence[StreamPart] | None = None,
    ) -> None:
        self.shares, self.sources = normalized_shares(shares, sources), list(sources)
        self.shards = [part.shards for part in parts] if parts else [list(list_shards(source)) for source in sources]
        self.languages = [part.languages for part in parts] if parts else None
        self.tokenizer, self.batch_size, self.seed, self.buffer = tokenizer, batch_size, seed, buffer
        self.cleaning, self.strict = replace(cleaning, drop_duplicates=False), strict
        self.readers, self.rank, self.world_size = readers, rank, world_size
        self.held_out, self.space = held_out, space
        self.looked_at: set[str] = set()  # languages of which it was logged if the tokenizer does not know them
        self.mixed_files: set[int] = set()  # sources of which it was logged that their files are in several languages
        self.batches, self.states = 0, list[dict[str, Any] | None]([None] * readers)

    def refuse_unequal_files(self) -> None:
        """Raise `BadInput` if line-aligned files, of which each process counts some, are of unequal length.

        Reading finds it where the shorter one ends, and then each pair after a line that is missing was a wrong one.
        """
        aligned = [shard.aligned for shards in self.shards for shard in shards if shard.aligned]
        for paths in aligned[self.rank :: self.world_size]:
            logger.info("counting the lines of %s", ", ".join(paths))
            compare_lengths(paths)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        if workers != self.readers:
            raise ValueError(f"the stream has {self.readers} readers, but {workers} of the DataLoader read it")
        reader = (self.batches + number) % self.readers
        return read_batches(self, reader, self.states[reader])

    def consumed(self, batch: dict[str, Any]) -> None:
        """Remove `reader` and `state` from a batch; `state_dict` is then the position after it."""
        reader, state = batch.pop("reader"), batch.pop("state")
        if reader != self.batches % self.readers:
            raise ValueError(f"batch {self.batches} came from reader {reader} of {self.readers}; some came out of turn")
        self.states[reader] = state
        self.batches += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last consumed batch of this process, as JSON can hold it."""
        return {"settings": self.settings(), "batches": self.batches, "states": list(self.states)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; `BadInput` unless settings and files are the same."""
        if "held-out texts" not in state["settings"]:
            self.held_out = frozenset()  # as in streams until 0.14, which read them too
        if f"source {len(self.sources)}" not in state["settings"]:
            self.read_sources_undivided(state["settings"])
        was, now = state["settings"], self.settings()
        changed = [name for name in {**was, **now} if was.get(name) != now.get(name)]
        if changed:
            found = "; ".join(f"{name} was {was.get(name)!r}, is {now.get(name)!r}" for name in changed)
            raise BadInput(
                f"the stream cannot go on where it was: {found}. Allowed is what it was begun with. Set it so, or "
                "begin a new run."
            )
        self.batches, self.states = state["batches"], list(state["states"])

    def read_sources_undivided(self, settings: Mapping[str, Any]) -> None:
        """Read sources of several languages as streams until 0.31.0 did: all files of one together, with its share."""
        self.sources, self.languages = list(dict.fromkeys(self.sources)), None
        self.shards = [list(list_shards(source)) for source in self.sources]
        self.shares = [settings.get(f"share of source {number}", 0.0) for number, _ in enumerate(self.sources, start=1)]

    def settings(self) -> dict[str, Any]:
        """Return everything that determines the order of rows."""
        names = ("seed", "batch_size", "buffer", "readers", "rank", "world_size")
        settings = {name: getattr(self, name) for name in names}
        cleaning = asdict(self.cleaning)
        if not (self.cleaning.catalogue_text and any(shard.is_catalogue for shards in self.shards for shard in shards)):
            del cleaning["catalogue_text"]  # as in streams of 0.8, which did not have it
        if cleaning["min_characters"] == DEFAULT_CLEANING.min_characters:
            del cleaning["min_characters"]  # as in streams until 0.16
        settings |= {f"cleaning {name}": repr(value) for name, value in cleaning.items()}
        if self.held_out:
            settings["held-out texts"] = blake2b("\0".join(sorted(self.held_out)).encode(), digest_size=8).hexdigest()
        for number, (source, shards, share) in enumerate(zip(self.sources, self.shards, self.shares), start=1):
            settings |= {f"source {number}": source, f"files of source {number}": len(shards)}
            settings |= {f"bytes of source {number}": bytes_of(shards), f"share of source {number}": share}
        return settings


def read_batches(stream: StreamedBatches, reader: int, state: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield the batches of one reader from its state on; each row of a batch is from a source drawn at random."""
    index = stream.rank * stream.readers + reader  # among the readers of all processes
    batches, progress = (state["batches"], state["sources"]) if state else (0, [{}] * len(stream.sources))
    sources = [SourceReader(stream, source, index, Progress(**known)) for source, known in enumerate(progress)]
    while True:
        random = np.random.default_rng(example_seed(stream.seed, index, batches))
        draws = random.choice(len(sources), stream.batch_size, p=stream.shares).tolist()
        rows = [next(sources[draw].rows) for draw in draws]
        batches += 1
        state = {"batches": batches, "sources": [source.progress._asdict() for source in sources]}
        yield {"rows": rows, "reader": reader, "state": state}


class SourceReader:
    """One reader's endless `rows` of one source; `progress` is the position after the last row yielded."""

    def __init__(self, stream: StreamedBatches, source: int, reader: int, progress: Progress) -> None:
        self.stream, self.source, self.reader, self.progress = stream, source, reader, progress
        self.readers, self.shards = stream.world_size * stream.readers, stream.shards[source]
        self.first_shard = sum(map(len, stream.shards[:source]))  # its number over all sources
        self.block_size = ceil(stream.buffer * stream.shares[source])
        self.rows = self.shuffle_blocks()

    def shuffle_blocks(self) -> Iterator[dict[str, Any]]:
        """Yield tokenised rows, block by block in random order."""
        for block, following in self.read_blocks():
            order = self.permutation(len(block), self.progress.passes, self.progress.block)
            for begin in range(self.progress.given, len(block), TOKENIZED_TOGETHER):
                texts = [block[index] for index in order[begin : begin + TOKENIZED_TOGETHER]]
                columns: dict[str, list[Any]] = {"x": [text.x for text in texts], "y": [text.y for text in texts]}
                tokens = tokenize_rows(columns, self.stream.tokenizer, self.stream.space)
                for x, y, text in zip(tokens["x"], tokens["y"], texts, strict=True):
                    given = self.progress.given + 1
                    self.progress = following if given == len(block) else self.progress._replace(given=given)
                    yield {"x": x, "y": y, "seed": text.seed}
            block.clear()  # frees the memory before the next block is read

    def read_blocks(self) -> Iterator[tuple[list[Text], Progress]]:
        """Yield the blocks from `progress` on, each with the start of the next one; a block ends with its pass."""
        while True:
            begun, block = self.progress, list[Text]()
            number = begun.block
            counters = Counter(begun.kept), Counter(begun.skipped), Counter(begun.changed)
            report = StreamReport(self.stream.strict, *counters)
            for shard, cursor, texts in self.read_pass(begun, report):
                block += texts
                if len(block) >= self.block_size:
                    number += 1
                    place = [cursor.number, *cursor.offsets]
                    counts = (dict(report.kept), dict(report.skipped), dict(report.changed))
                    self.log_doubts(begun, report)
                    yield block, Progress(begun.passes, number, 0, shard, place, *counts)
                    block = []
            self.log_doubts(begun, report)
            empty_passes = 0 if report.kept else begun.empty_passes + 1
            if empty_passes == self.readers:  # by now this reader has read all of the source
                raise nothing_left(self.stream.sources[self.source], report)
            names = self.stream.sources[self.source], begun.passes, self.reader, self.readers
            logger.info("read %s, pass %d, reader %d of %d\n%s", *names, report.summary())
            following = Progress(begun.passes + 1, empty_passes=empty_passes)
            if block:
                yield block, following
            else:
                self.progress = following

    def log_doubts(self, begun: Progress, report: CorpusReport) -> None:
        """Log what is odd in the texts of a block, by one reader in its first pass."""
        if self.reader == begun.passes == 0:
            stream = self.stream
            for language, texts in report.doubts.texts.items():
                if len(texts) >= LEAST and language not in stream.looked_at:
                    stream.looked_at.add(language)
                    spaced = [stream.space + text for text in texts]
                    ids = encode_texts(stream.tokenizer, spaced, add_special_tokens=False)["input_ids"]
                    warn_of_unknown_tokens({language: [*chain.from_iterable(ids)]}, stream.tokenizer)
            report.doubts.log(stream.sources[self.source])
            self.log_other_languages(report)

    def log_other_languages(self, report: CorpusReport) -> None:
        """Log once that languages follow each other as in the files of a source, if they were to be mixed."""
        stream, source = self.stream, self.source
        if stream.languages and source not in stream.mixed_files:
            expected = [code for code in stream.languages[source] if code]
            names = {"-".join(expected), "-".join(reversed(expected))}
            if others := sorted(report.kept.keys() - names):
                stream.mixed_files.add(source)
                logger.warning(
                    "%s: a file that begins in %s also has %s: its rows come as they are in it, and text_alpha, "
                    "pair_alpha and text_share hold for what files begin in. Write a file for each, or mix the rows "
                    "yourself and give --stream_shares",
                    stream.sources[source], "-".join(expected), ", ".join(others),
                )  # fmt: skip

    def read_pass(self, begin: Progress, report: CorpusReport) -> Iterator[tuple[int, Cursor, list[Text]]]:
        """Yield the clean rows of each record of the pass from `begin` on, with the position after it."""
        seed, cleaning, held_out = self.stream.seed, self.stream.cleaning, self.stream.held_out
        is_held_out = (lambda text: comparable(text) in held_out) if held_out else None
        for index, (shard, part, parts) in enumerate(self.deal_shards(begin.passes)):
            if index < begin.shard:
                continue
            number, *offsets = begin.place if index == begin.shard else (0, 0)
            cursor = Cursor(number, offsets, part, parts)
            check_unchanged(self.shards[shard])
            for rows in read_shard(self.shards[shard], cursor, report, cleaning.languages):
                position = (begin.passes, self.first_shard + shard, cursor.number)
                yield index, cursor, [
                    Text(str(clean["x"]), clean["y"], example_seed(seed, *position, language))
                    for language, row in enumerate(rows)
                    for clean in clean_rows([row], cleaning, report, is_held_out)
                ]  # fmt: skip
            check_unchanged(self.shards[shard])

    def deal_shards(self, passes: int) -> list[tuple[int, int, int]]:
        """Return this reader's shards in a pass in random order: their numbers, and which part of how many it reads."""
        part, divisible = (self.reader + passes) % self.readers, len(self.shards) // self.readers * self.readers
        dealt = [(shard, 0, 1) for shard in range(part, divisible, self.readers)]
        dealt += [(shard, part, self.readers) for shard in range(divisible, len(self.shards))]
        return [dealt[index] for index in self.permutation(len(dealt), passes)]

    def permutation(self, size: int, *position: int) -> list[int]:
        """Return a random order that depends only on the seed, source, reader and position (pass, block)."""
        random = np.random.default_rng(example_seed(self.stream.seed, self.source, self.reader, *position))
        return random.permutation(size).tolist()


def collate_streamed(
    streamed: dict[str, Any], collator: Callable[[Sequence[dict[str, Any]]], dict[str, Any]]
) -> dict[str, Any]:
    """Collate the rows of a streamed batch; keeps the `reader` and `state` that `StreamedBatches.consumed` needs."""
    return {**collator(streamed["rows"]), "reader": streamed["reader"], "state": streamed["state"]}
