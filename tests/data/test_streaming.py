"""A stream goes on exactly where it was, gives every row once a pass, and takes neither more memory nor more time."""

import gzip
import json
import logging
import os
import random
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from hictl_hf.data import compression, formats
from hictl_hf.data.cleaning import Cleaning
from hictl_hf.data.collator import PretrainingCollator
from hictl_hf.data.sampling import example_seed
from hictl_hf.data.stream_parts import stream_parts
from hictl_hf.data.streaming import StreamedBatches, collate_streamed, read_batches
from hictl_hf.errors import BadInput

Batch = dict[str, Any]


class Numbers:
    """A tokenizer of texts that are numbers: "7 1" -> [7, 1]. So the ids of a row say which one it is."""

    unk_token_id = 999

    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[int(word) for word in text.split()] for text in texts]}

    def num_special_tokens_to_add(self, pair: bool) -> int:
        return 4 if pair else 2


class Letters(Numbers):
    """A tokenizer to the code points of the characters."""

    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [list(map(ord, text)) for text in texts]}


def pairs(first: int, last: int) -> list[dict[str, str]]:
    return [{"en": f"{number} 1", "de": f"{number} 2"} for number in range(first, last)]


def write(path: Path, content: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return str(path)


def lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def parquet(path: Path, rows: list[dict[str, str]], row_group_size: int = 5) -> str:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=row_group_size)
    return str(path)


def moses(folder: Path, rows: list[dict[str, str]]) -> str:
    for name in ("en", "de"):
        write(folder / f"corpus.{name}", "".join(row[name] + "\n" for row in rows))
    return f"{folder}/corpus.{{en,de}}"


def files(folder: Path, rows: list[Any], number: int) -> str:
    """A folder of so many files, some of them longer by a row."""
    for place in range(number):
        write(folder / f"{place}.jsonl", lines(rows[place::number]))
    return str(folder)


def archive(path: Path, rows: list[dict[str, str]]) -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("en", "de"):
            file.writestr(f"Books.en-de.{name}", "".join(row[name] + "\n" for row in rows))
    return str(path)


TMX = '<tmx version="1.4"><header srclang="en"/><body>{}</body></tmx>'


def unit(row: dict[str, str]) -> str:
    variants = (f'<tuv xml:lang="{name}"><seg>{text}</seg></tuv>' for name, text in row.items())
    return f"<tu>{''.join(variants)}</tu>"


def scored(row: dict[str, str]) -> str:
    """A pair, after some of them one of a low score."""
    pair = f"0.9\t{row['en']}\t{row['de']}\n"
    return pair + "0.1\t1\t2\n" if int(row["en"].split()[0]) % 3 == 0 else pair


def table(rows: list[dict[str, str]], delimiter: str) -> str:
    return "".join(delimiter.join(row) + "\n" for row in (["en", "de"], *(list(row.values()) for row in rows)))


ROWS = pairs(100, 123)
# Each holds the same 23 rows.
WRITERS: dict[str, Callable[[Path], str]] = {
    "jsonl": lambda at: write(at / "a.jsonl", lines(ROWS)),
    "jsonl.gz": lambda at: write(at / "a.jsonl.gz", lines(ROWS)),
    "tsv": lambda at: write(at / "a.tsv", table(ROWS, "\t")),
    "csv of two lines a row": lambda at: write(
        at / "a.csv", table(ROWS, ',"').replace(" 2", '\n2"').replace('"de', "de")
    ),
    "parquet": lambda at: parquet(at / "a.parquet", ROWS),
    "moses": lambda at: moses(at, ROWS),
    "text": lambda at: f"sw:{write(at / 'a.txt', ''.join(row['en'] + chr(10) for row in ROWS))}",
    "archive": lambda at: archive(at / "de-en.txt.zip", ROWS),
    "tmx": lambda at: write(at / "a.tmx.gz", TMX.format("".join(map(unit, ROWS)))),
    "scored list": lambda at: f"0.5+en+de:{write(at / 'a.tsv', ''.join(map(scored, ROWS)))}",
    "five files": lambda at: files(at / "five", ROWS, 5),
}


def stream_of(sources: list[str], shares: list[float] | None = None, **settings: Any) -> StreamedBatches:
    defaults = {"tokenizer": Numbers(), "batch_size": 3, "seed": 5, "buffer": 7}
    return StreamedBatches(sources, shares or [1.0] * len(sources), **{**defaults, **settings})


def read(stream: StreamedBatches, count: int, workers: int = 0, collate: Any = None) -> list[tuple[Batch, str]]:
    """So many batches, each with the state after it, written as JSON."""
    loader = iter(DataLoader(stream, batch_size=None, num_workers=workers, collate_fn=collate))
    batches = []
    for batch in islice(loader, count):
        stream.consumed(batch)
        batches.append((batch, json.dumps(stream.state_dict())))
    return batches


def rows_of(stream: StreamedBatches, count: int) -> list[Batch]:
    """The rows of so many batches of the only reader."""
    return [row for batch in islice(stream, count) for row in batch["rows"]]


def resumed(make: Callable[[], StreamedBatches], state: str) -> StreamedBatches:
    stream = make()
    stream.load_state_dict(json.loads(state))
    return stream


# --- going on -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 2)])
@pytest.mark.parametrize("write_source", WRITERS.values(), ids=WRITERS)
def test_a_stream_goes_on_after_every_batch_as_if_it_had_not_stopped(
    write_source: Callable[[Path], str], rank: int, world_size: int, tmp_path: Path
) -> None:
    make = partial(stream_of, [write_source(tmp_path)], rank=rank, world_size=world_size)
    whole = read(make(), 24)
    places = [json.loads(state)["states"][0]["sources"][0] for _, state in whole]
    # otherwise nothing would be proved about these
    assert any(place["given"] for place in places) and any(place["block"] and not place["given"] for place in places)
    assert places[-1]["passes"] >= 3 and any(place["passes"] and not place["block"] for place in places)
    for number, (_, state) in enumerate(whole[:-3]):
        assert read(resumed(make, state), 3) == whole[number + 1 : number + 4]


@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 2)])
def test_workers_go_on_too_though_they_had_run_ahead(
    rank: int, world_size: int, tmp_path: Path, tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]]
) -> None:
    texts = [{"text": text, "lang": "sw"} for text in sentences["sw"]]
    aligned = [{"en": en, "de": de} for en, de in zip(sentences["en"], sentences["de"])]
    sources = [write(tmp_path / "a.jsonl", lines(texts)), files(tmp_path / "three", aligned, 3)]
    settings = {"tokenizer": tokenizer, "readers": 2, "rank": rank, "world_size": world_size}
    make = partial(stream_of, sources, [0.3, 0.7], **settings)
    collate = partial(collate_streamed, collator=PretrainingCollator(tokenizer))
    whole = read(make(), 20, workers=2, collate=collate)
    for number in (0, 1, 2, 7, 12, 15):
        after = read(resumed(make, whole[number][1]), 4, workers=2, collate=collate)
        for (batch, state), (expected, expected_state) in zip(after, whole[number + 1 : number + 5], strict=True):
            assert state == expected_state and batch.keys() == expected.keys()
            assert all(torch.equal(batch[name], expected[name]) for name in batch)
    assert len({batch["input_ids"].numpy().tobytes() for batch, _ in whole}) == len(whole)


def test_what_workers_give_is_what_their_readers_give_in_turn(tmp_path: Path) -> None:
    make = partial(stream_of, [WRITERS["jsonl"](tmp_path)], readers=2)
    turns = [read_batches(make(), reader, None) for reader in (0, 1)]
    expected = [next(turns[number % 2])["rows"] for number in range(8)]
    assert [batch["rows"] for batch, _ in read(make(), 8, workers=2)] == expected


def test_a_second_iteration_goes_on_after_what_was_consumed(tmp_path: Path) -> None:
    source = WRITERS["parquet"](tmp_path)
    whole, halves = stream_of([source]), stream_of([source])
    expected = [batch for batch, _ in read(whole, 8)]
    assert [batch for count in (5, 3) for batch, _ in read(halves, count)] == expected


class CountingFile:
    """A file that counts the lines that are read of it."""

    count = 0

    def __init__(self, *arguments: Any) -> None:
        self.file = open(*arguments)  # noqa: SIM115
        self.seek = self.file.seek

    def __enter__(self) -> "CountingFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def readline(self, most: int) -> bytes:
        CountingFile.count += 1
        return self.file.readline(most)

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self.readline(-1), b"")


@pytest.mark.parametrize("name", ["jsonl", "tsv", "moses", "text"])
def test_going_on_reads_one_block_of_lines_however_far_the_run_has_come(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pairs(1000, 2000)
    write_source = {
        "jsonl": lambda: write(tmp_path / "a.jsonl", lines(rows)),
        "tsv": lambda: write(tmp_path / "a.tsv", table(rows, "\t")),
        "moses": lambda: moses(tmp_path, rows),
        "text": lambda: f"sw:{write(tmp_path / 'a.txt', ''.join(row['en'] + chr(10) for row in rows))}",
    }[name]
    make = partial(stream_of, [write_source()], buffer=20)
    whole = read(make(), 300)
    monkeypatch.setattr(compression, "open", CountingFile, raising=False)
    for number in (10, 30, 100, 299):  # after 33, 93, 303 and 900 rows; each but the last within a block
        monkeypatch.setattr(CountingFile, "count", 0)
        next(iter(resumed(make, whole[number - 1][1] if number == 299 else whole[number][1])))
        assert CountingFile.count == {"jsonl": 20, "tsv": 20 + 1, "moses": 2 * 20, "text": 20}[name]  # a header in tsv


def test_going_on_decodes_one_block_and_one_row_group_of_parquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = partial(stream_of, [parquet(tmp_path / "a.parquet", pairs(0, 8000), row_group_size=500)], buffer=20)
    whole, decoded = read(make(), 2600), Counter[int]()

    class CountingParquet(pyarrow.parquet.ParquetFile):  # type: ignore[misc]
        def iter_batches(self, *arguments: Any) -> Iterator[Any]:
            for batch in super().iter_batches(*arguments):
                decoded[number] += len(batch)
                yield batch

    monkeypatch.setattr(pyarrow.parquet, "ParquetFile", CountingParquet)
    for number in (10, 250, 2500):
        next(iter(resumed(make, whole[number][1])))
    assert len(decoded) == 3 and max(decoded.values()) <= 2 * 1000  # that many rows are decoded together


# --- which rows -----------------------------------------------------------------------------------------------------


def passes_of(sources: list[str], readers: int, passes: int) -> list[list[tuple[int, Batch]]]:
    """Of each of so many ranks, the rows of its first passes, each with the number of its pass."""
    found = []
    for rank in range(readers):
        stream, rows = stream_of(sources, batch_size=1, rank=rank, world_size=readers), list[tuple[int, Batch]]()
        known = {example_seed(5, n, shard, line, 0): n for n in range(9) for shard in range(9) for line in range(40)}
        for batch in islice(stream, 200):
            (row,) = batch["rows"]
            if known[row["seed"]] >= passes:
                break
            rows.append((known[row["seed"]], row))
        found.append(rows)
    return found


@pytest.mark.parametrize("readers", [1, 2, 3, 4])
@pytest.mark.parametrize("shards", [1, 2, 3, 5])
def test_every_row_comes_once_in_each_pass_over_all_readers(readers: int, shards: int, tmp_path: Path) -> None:
    by_rank = passes_of([files(tmp_path / "a", ROWS, shards)], readers, passes=readers)
    for number in range(readers):
        rows = [row["x"][0] for rank in by_rank for n, row in rank if n == number]
        assert sorted(rows) == list(range(100, 123))
    for rank in by_rank:  # and to each reader once in as many passes as there are readers
        assert sorted(row["x"][0] for _, row in rank) == list(range(100, 123))


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "text"])
def test_every_format_is_shared_by_readers_without_loss(name: str, tmp_path: Path) -> None:
    source, found = WRITERS[name](tmp_path), []
    for rank in range(3):
        stream = stream_of([source], batch_size=1, rank=rank, world_size=3, buffer=1000)
        for batch in stream:
            found += [(tuple(row["x"]), tuple(row["y"])) for row in batch["rows"]]
            if batch["state"]["sources"][0]["passes"]:
                break
    assert sorted(found) == [((number, 1), (number, 2)) for number in range(100, 123)]


def test_a_row_has_the_seed_of_its_pass_shard_line_and_language_whoever_reads_it(tmp_path: Path) -> None:
    many = [{"en": f"{number} 1", "de": f"{number} 2", "fr": f"{number} 3"} for number in range(4)]
    sources = [files(tmp_path / "a", ROWS, 2), write(tmp_path / "b.jsonl", lines(many))]
    for world_size in (1, 3):
        seeds = {}
        for rank in range(world_size):
            for row in rows_of(stream_of(sources, rank=rank, world_size=world_size), 60):
                seeds[row["seed"]] = (row["x"][0], row["y"][1])
        for n in (0, 1):
            for shard in (0, 1):  # rows 100, 102, ... and 101, 103, ...
                for line in range(1, 12):
                    assert seeds[example_seed(5, n, shard, line, 0)] == (100 + shard + 2 * (line - 1), 2)
            for line in range(1, 5):
                for language in (0, 1):
                    assert seeds[example_seed(5, n, 2, line, language)] == (line - 1, 2 + language)


def test_blocks_are_shuffled_each_by_itself_and_anew_in_each_pass(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", lines(pairs(0, 40)))
    rows = [row["x"][0] for row in rows_of(stream_of([source], buffer=10, batch_size=1), 80)]
    blocks = [rows[begin : begin + 10] for begin in range(0, 80, 10)]
    assert [sorted(block) for block in blocks] == 2 * [list(range(begin, begin + 10)) for begin in range(0, 40, 10)]
    assert len({tuple(np.argsort(block)) for block in blocks}) == 8
    assert [sorted(block) for block in blocks] != blocks


def test_shards_come_in_another_order_in_each_pass(tmp_path: Path) -> None:
    rows = rows_of(stream_of([files(tmp_path / "a", pairs(0, 6), 6)], buffer=1, batch_size=1), 6 * 8)
    orders = [tuple(row["x"][0] for row in rows[begin : begin + 6]) for begin in range(0, 48, 6)]
    assert len(set(orders)) == 8 and all(sorted(order) == list(range(6)) for order in orders)


def test_the_seed_alone_decides_and_no_global_state(tmp_path: Path) -> None:
    sources = [write_source(tmp_path / name) for name, write_source in WRITERS.items() if name in ("jsonl", "text")]
    expected = rows_of(stream_of(sources), 20)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert rows_of(stream_of(sources), 20) == expected
    assert rows_of(stream_of(sources, seed=6), 20) != expected
    state = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    rows_of(stream_of(sources), 3)
    assert state == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


def test_many_languages_in_a_record_are_not_torn_by_the_end_of_a_block(tmp_path: Path) -> None:
    rows = [{name: f"{number} {place}" for place, name in enumerate(("en", "de", "fr", "sw"))} for number in range(5)]
    make = partial(stream_of, [write(tmp_path / "a.jsonl", lines(rows))], buffer=4, batch_size=1)
    whole = read(make(), 30)
    given = [(batch["rows"][0]["x"][0], batch["rows"][0]["y"][1]) for batch, _ in whole[:15]]
    assert sorted(given) == [(number, place) for number in range(5) for place in (1, 2, 3)]
    for number, (_, state) in enumerate(whole[:-1]):
        assert read(resumed(make, state), 1)[0] == whole[number + 1]


# --- shares ---------------------------------------------------------------------------------------------------------


def test_sources_are_drawn_by_their_shares(tmp_path: Path) -> None:
    shares = [1.0, 4.0, 15.0]
    sources = [write(tmp_path / f"{n}.jsonl", lines(pairs(100 * n, 100 * n + 9))) for n in (1, 2, 3)]
    rows = rows_of(stream_of(sources, shares, batch_size=50), 100)
    for number, share in zip((1, 2, 3), shares):
        expected = 5000 * share / 20
        bound = 5 * (expected * (1 - share / 20)) ** 0.5  # five standard deviations: by chance once in a million
        assert abs(sum(row["x"][0] // 100 == number for row in rows) - expected) < bound


def test_the_buffer_is_shared_by_sources_as_they_are_drawn(tmp_path: Path) -> None:
    stream = stream_of([WRITERS["jsonl"](tmp_path), WRITERS["text"](tmp_path)], [1.0, 3.0], buffer=8, batch_size=1)
    states = [batch["state"]["sources"] for batch in islice(stream, 20)]
    for source, block_size in enumerate((2, 6)):
        places = {state[source]["place"][0] for state in states if not state[source]["passes"]}
        assert len(places) > 1 and all(place % block_size == 0 for place in places) and block_size in places


def test_each_rank_draws_sources_by_itself(tmp_path: Path) -> None:
    sources = [write(tmp_path / f"{n}.jsonl", lines(pairs(100 * n, 100 * n + 9))) for n in (1, 2)]
    draws = [
        tuple(row["x"][0] // 100 for row in rows_of(stream_of(sources, rank=rank, world_size=2, batch_size=30), 1))
        for rank in (0, 1)
    ]
    assert draws[0] != draws[1]


# --- what is lost ---------------------------------------------------------------------------------------------------


def test_what_is_skipped_is_counted_over_a_pass_and_told_though_the_run_was_resumed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="hictl_hf.data.streaming")
    rows = [*pairs(0, 5), {"en": 3}, {"en": "same", "de": "same"}, *pairs(5, 10), "oops", *pairs(10, 12)]
    source = write(tmp_path / "a.jsonl", lines(rows))
    make = partial(stream_of, [source], batch_size=1, buffer=2)
    whole = read(make(), 25)
    told = [record.getMessage() for record in caplog.records if record.levelname == "INFO"]
    assert len(told) == 2 and told[0].startswith(f"read {source}, pass 0, reader 0 of 1\nkept")
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [message.split(": ")[1] for message in warned] == [f"{source}:6", f"{source}:13"] * 2
    for number in range(11):
        caplog.clear()
        read(resumed(make, whole[number][1]), 12 - number)
        summary = caplog.records[-1].getMessage()
        for name, count in {"kept": 12, "en-de": 12, "skipped": 3, "broken": 2, "equal sides": 1}.items():
            assert f"{name} {count}" in " ".join(summary.split()), number


def messages(folder: Path) -> str:
    """A catalogue of ten entries with a mnemonic in both texts."""
    entries = "".join(f'msgid "_Go to {number}"\nmsgstr "_Mont da {number}"\n\n' for number in range(10))
    return write(folder / "br" / "LC_MESSAGES" / "app.po", entries)


def test_changed_texts_are_counted_over_a_pass_though_the_run_was_resumed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="hictl_hf.data.streaming")
    make = partial(stream_of, [messages(tmp_path)], tokenizer=Letters(), batch_size=1, buffer=2)
    whole = read(make(), 11)
    assert {"".join(map(chr, batch["rows"][0]["y"]))[:-1] for batch, _ in whole} == {"Mont da "}
    for number in range(9):
        caplog.clear()
        read(resumed(make, whole[number][1]), 11 - number)
        assert "changed 20 mnemonics 20 skipped 0" in " ".join(caplog.records[-1].getMessage().split()), number


def test_duplicates_stay(tmp_path: Path) -> None:
    stream = stream_of([write(tmp_path / "a.jsonl", lines(pairs(1, 2) * 9))], batch_size=9)
    assert len({row["seed"] for row in rows_of(stream, 1)}) == 9


# --- errors ---------------------------------------------------------------------------------------------------------


def test_a_strict_stream_stops_at_a_broken_row(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="a.jsonl:2: is not JSON"):
        rows_of(stream_of([write(tmp_path / "a.jsonl", '{"en": "1"}\noops\n')], strict=True), 1)


@pytest.mark.parametrize("shares", [[], [1.0], [1.0, 0.0], [1.0, -1.0], [1.0, float("nan")], [1.0, float("inf")]])
def test_shares_are_positive_and_one_for_each_source(shares: list[float], tmp_path: Path) -> None:
    source = WRITERS["jsonl"](tmp_path)
    with pytest.raises(BadInput, match=r"^stream_shares is \[.*; allowed is a positive number for each of 2 sources"):
        StreamedBatches([source, source], shares, Numbers(), 3, 5)  # type: ignore[arg-type]


def test_a_hub_dataset_needs_shares_and_then_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="^hub:books: has no size .*Give stream_shares"):
        stream_parts([WRITERS["jsonl"](tmp_path), "hub:books"])
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: ROWS)
    make = partial(stream_of, ["hub:books"], rank=1, world_size=2)
    whole = read(make(), 12)
    assert {row["x"][0] for batch, _ in whole[:3] for row in batch["rows"]} <= set(range(100, 123))
    assert read(resumed(make, whole[5][1]), 6) == whole[6:]


@pytest.mark.parametrize("sizes", [(1, 23), (24,)])
def test_two_workers_read_each_row_of_a_hub_dataset_once_a_pass(sizes: tuple[int, ...], tmp_path: Path) -> None:
    """`datasets` divides the files among the workers of a DataLoader, and would do so before we divide the rows."""
    for name, (first, size) in enumerate(zip((100, 101), sizes)):
        write(tmp_path / "rows" / f"{name}.jsonl", lines(pairs(first, first + size)))
    found = read(stream_of([f"hub:{tmp_path / 'rows'}"], readers=2), 8, workers=2)
    assert Counter(row["x"][0] for batch, _ in found for row in batch["rows"]) == dict.fromkeys(range(100, 124), 1)


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_source_without_a_clean_row_is_refused_once_each_reader_has_read_all_of_it(
    world_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "a.jsonl", lines([{"en": "same", "de": "same"}, {"en": 1}, "oops", "oops"]))
    parsed, parse = Counter[int](), formats.parse_json
    for rank in range(world_size):
        monkeypatch.setattr(formats, "parse_json", lambda line: parsed.update([rank]) or parse(line))  # noqa: B023
        with pytest.raises(BadInput, match="a.jsonl: no row is left after cleaning .*allowed is one or more. Correct"):
            rows_of(stream_of([source], rank=rank, world_size=world_size), 1)
    assert parsed == dict.fromkeys(range(world_size), 4)


def test_a_source_with_fewer_rows_than_readers_is_read_by_all(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", lines(pairs(7, 8)))
    for rank in range(3):
        assert {row["x"][0] for row in rows_of(stream_of([source], rank=rank, world_size=3), 3)} == {7}


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "gone": (lambda path: path.unlink(), "no such file"),
    "cut": (lambda path: os.truncate(path, path.stat().st_size // 2), "bytes, but had"),
    "grown": (lambda path: path.write_bytes(path.read_bytes() + b'{"en": "1"}\n'), "bytes, but had"),
}


@pytest.mark.parametrize("name", ["jsonl", "jsonl.gz", "tsv", "csv of two lines a row", "parquet", "moses"])
@pytest.mark.parametrize(("change", "found"), CHANGES.values(), ids=CHANGES)
def test_a_shard_that_changes_while_it_is_read_is_named(
    name: str, change: Callable[[Path], None], found: str, tmp_path: Path
) -> None:
    stream = stream_of([WRITERS[name](tmp_path)], batch_size=1)
    batches = iter(stream)
    next(batches)
    (path, *_) = (Path(path) for path in stream.shards[0][0].sizes)
    change(path)
    with pytest.raises(BadInput, match=f"^{path}") as refused:
        list(islice(batches, 22))  # to the end of the pass
    message = str(refused.value)
    assert "allowed " in message and any(text in message for text in (found, "cannot be read", "has more lines"))


def test_no_row_comes_of_a_file_that_is_not_the_one_that_was_listed(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", lines(ROWS))
    stream = stream_of([source], buffer=1, batch_size=1)
    write(tmp_path / "a.jsonl", lines(ROWS * 2))
    with pytest.raises(BadInput, match="a.jsonl: has .* bytes, but had"):
        next(iter(stream))


def test_line_aligned_files_of_unequal_length_are_refused_where_one_ends(tmp_path: Path) -> None:
    source = moses(tmp_path, ROWS)
    write(tmp_path / "corpus.de", "1 2\n" * 20)
    for rank in (0, 1):
        stream = stream_of([source], buffer=1, batch_size=1, rank=rank, world_size=2)
        batches = iter(stream)
        assert len(list(islice(batches, 10))) == 10  # nothing is counted through before
        with pytest.raises(
            BadInput, match="corpus.en has more lines, .*corpus.de has 20 lines; allowed are files of eq"
        ):
            next(batches)


@pytest.mark.slow  # after an error torch waits five seconds for the worker
def test_an_error_in_a_worker_ends_with_the_clear_message(tmp_path: Path) -> None:
    stream = stream_of([write(tmp_path / "a.jsonl", '{"en": "1"}\noops\n')], strict=True)
    with pytest.raises(BadInput) as refused:
        read(stream, 3, workers=1)
    assert f"BadInput: {tmp_path}/a.jsonl:2: is not JSON" in str(refused.value).strip().splitlines()[-1]


OTHER_RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "world size": ({"world_size": 3}, "world_size was 2, is 3"),
    "rank": ({"rank": 1}, "rank was 0, is 1"),
    "readers": ({"readers": 2}, "readers was 1, is 2"),
    "seed": ({"seed": 6}, "seed was 5, is 6"),
    "batch size": ({"batch_size": 4}, "batch_size was 3, is 4"),
    "buffer": ({"buffer": 8}, "buffer was 7, is 8"),
    "cleaning": ({"cleaning": Cleaning(max_characters=9)}, "cleaning max_characters was '1000', is '9'"),
    "languages": ({"cleaning": Cleaning(languages=["en"])}, "cleaning languages was '()', is "),
    "shares": ({"shares": [1.0, 3.0]}, "share of source 2 was 0.5, is 0.75"),
}


@pytest.mark.parametrize(("change", "found"), OTHER_RUNS.values(), ids=OTHER_RUNS)
def test_the_state_of_another_run_is_refused(change: dict[str, Any], found: str, tmp_path: Path) -> None:
    sources = [WRITERS["jsonl"](tmp_path), WRITERS["tsv"](tmp_path)]
    settings = {"sources": sources, "world_size": 2}
    ((_, state),) = read(stream_of(**settings), 1)
    with pytest.raises(
        BadInput, match="the stream cannot go on where it was: .*; |.* Allowed is what it was begun"
    ) as no:
        resumed(partial(stream_of, **{**settings, **change}), state)
    assert found in str(no.value)


def test_a_state_of_0_8_which_did_not_clean_catalogues_goes_on_without_that(tmp_path: Path) -> None:
    uncleaned = Cleaning(catalogue_text=False)
    ((_, state),) = read(stream_of([WRITERS["jsonl"](tmp_path)]), 1)
    assert "catalogue_text" not in state
    settings = {"sources": [messages(tmp_path)], "tokenizer": Letters()}
    ((batch, state),) = read(stream_of(**settings, cleaning=uncleaned), 1)
    assert "catalogue_text" not in state and all(row["x"][0] == ord("_") for row in batch["rows"])
    resumed(partial(stream_of, **settings, cleaning=uncleaned), state)
    with pytest.raises(BadInput, match="cleaning catalogue_text was None, is 'True'"):
        resumed(partial(stream_of, **settings), state)


def test_a_state_of_0_16_which_had_no_least_length_goes_on_without_one(tmp_path: Path) -> None:
    source = WRITERS["jsonl"](tmp_path)
    ((_, state),) = read(stream_of([source]), 1)
    assert "min_characters" not in state
    resumed(partial(stream_of, [source]), state)
    with pytest.raises(BadInput, match="cleaning min_characters was None, is '2'"):
        resumed(partial(stream_of, [source], cleaning=Cleaning(min_characters=2)), state)


def test_a_space_is_put_before_texts_where_that_of_the_prompt_is_a_part_of_them(tmp_path: Path) -> None:
    rows = rows_of(stream_of([WRITERS["jsonl"](tmp_path)], tokenizer=Letters(), space=" "), 9)
    assert {row[side][0] for row in rows for side in "xy" if row[side]} == {ord(" ")}


def test_languages_that_the_tokenizer_does_not_know_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"en": f"{number} 1", "zgh": f"999 999 {number}"} for number in range(100, 130)]
    sources = [files(tmp_path / name, rows, 1) for name in ("a", "b")]
    with caplog.at_level(logging.WARNING):
        read(stream_of(sources, buffer=100), 40)
    assert [message[:60] for message in caplog.messages if "unknown" in message] == [
        "67 % of the tokens of the first texts in 'zgh' are unknown t"
    ]


def test_rows_with_a_held_out_text_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    source = write(tmp_path / "a.jsonl", lines(pairs(0, 9)))
    stream = stream_of([source], held_out={"31", "72"})  # of x of row 3, and y of row 7
    read_of_it = {row["x"][0] for row in rows_of(stream, 14)}
    assert read_of_it == {0, 1, 2, 4, 5, 6, 8}
    assert re.search(r"kept +7\n.*\nskipped +2\n +held out +2", caplog.text)
    ((_, place),) = read(stream_of([source], held_out={"31", "72"}), 1)
    with pytest.raises(BadInput, match="held-out texts was '.*', is '.*'"):
        resumed(lambda: stream_of([source], held_out={"31"}), place)


def test_a_state_of_0_14_which_read_held_out_texts_too_goes_on_with_them(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", lines(pairs(0, 9)))
    begun = read(stream_of([source]), 5)
    again = resumed(lambda: stream_of([source], held_out={"31"}), begun[1][1])
    assert read(again, 3) == begun[2:]


def test_the_state_of_other_sources_is_refused(tmp_path: Path) -> None:
    sources = [WRITERS["five files"](tmp_path), WRITERS["tsv"](tmp_path)]
    ((_, state),) = read(stream_of(sources), 1)
    with pytest.raises(BadInput, match="source 1 was .*five', is .*a.tsv'"):
        resumed(lambda: stream_of(sources[::-1]), state)
    with pytest.raises(BadInput, match="source 2 was '.*a.tsv', is None"):
        resumed(lambda: stream_of(sources[:1]), state)
    write(tmp_path / "five" / "5.jsonl", lines(ROWS[:1]))
    with pytest.raises(BadInput, match="files of source 1 was 5, is 6; bytes of source 1 was"):
        resumed(lambda: stream_of(sources), state)


def test_readers_are_as_many_as_workers_and_take_turns(tmp_path: Path) -> None:
    stream = stream_of([WRITERS["jsonl"](tmp_path)], readers=2)
    with pytest.raises(ValueError, match="has 2 readers, but 1 of the DataLoader"):
        next(iter(stream))
    with pytest.raises(ValueError, match="came from reader 1 of 2"):
        stream.consumed(next(read_batches(stream, 1, None)))


# --- memory ---------------------------------------------------------------------------------------------------------

# getrusage would tell the peak of the process that started this one, where that is higher
RESIDENT = """
import sys
sys.path[:0] = ["tests", "tests/data"]
from test_streaming import stream_of
rows, batches = int(sys.argv[2]), iter(stream_of([sys.argv[1]], batch_size=50, buffer=1000))
for _ in range(rows // 50):
    next(batches)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells a process its peak of memory")
@pytest.mark.parametrize("name", ["jsonl", "parquet"])
def test_a_stream_of_twenty_times_the_rows_takes_the_same_memory(name: str, tmp_path: Path) -> None:
    drawn = random.Random(0)
    rows = [{"en": " ".join(str(drawn.getrandbits(53)) for _ in range(50))} for _ in range(100_000)]  # 90 MB
    write_rows = {"jsonl": lambda: write(tmp_path / "a.jsonl", lines(rows))}
    write_rows["parquet"] = lambda: parquet(tmp_path / "a.parquet", rows, row_group_size=100_000)
    source = write_rows[name]()

    def resident(count: int) -> int:
        command = [sys.executable, "-c", RESIDENT, source, str(count)]
        return int(subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[2]).stdout)

    few, many = resident(5_000), resident(100_000)  # kilobytes
    assert many < 1.2 * few and many - few < 45_000  # half of the file


def test_wanted_languages_are_paired_though_a_record_begins_with_another(tmp_path: Path) -> None:
    row = json.dumps({"translation": {"bg": "1", "de": "2", "en": "3"}})
    stream = stream_of([write(tmp_path / "a.jsonl", f"{row}\n" * 3)], cleaning=Cleaning(languages=("en", "de")))
    ((batch, _),) = read(stream, 1)
    assert len(batch["rows"]) == 3 and all(each["y"] is not None for each in batch["rows"])
