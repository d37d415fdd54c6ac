"""The texts of a column: equal from every kind of table, in order; a wrong row is named by its number."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from hictl_hf.data.cleaning import CorpusReport
from hictl_hf.data.columns import is_a_table, read_lines_or_column, value_at
from hictl_hf.data.sources import read_rows
from hictl_hf.errors import BadInput, BrokenRow

TEXTS = ["das Haus", "", "猫", "a; b, c", "last"]
ROWS = [{"id": str(number), "text": text} for number, text in enumerate(TEXTS)]


def as_json_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def as_cells(separator: str, quote: str) -> bytes:
    lines = [("id", "text"), *((row["id"], f"{quote}{row['text']}{quote}") for row in ROWS)]
    return "".join(f"{separator.join(cells)}\n" for cells in lines).encode()


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink, row_group_size=2)
    return bytes(sink.getvalue())


TABLES: dict[str, Callable[[], bytes]] = {
    "a.jsonl": lambda: as_json_lines(ROWS),
    "a.json": lambda: as_json_lines(ROWS),
    "a.csv": lambda: as_cells(",", '"'),
    "a.tsv": lambda: as_cells("\t", ""),
    "a.parquet": lambda: as_parquet(ROWS),
    "a.jsonl.gz": lambda: gzip.compress(as_json_lines(ROWS)),
    "blank.csv": lambda: b"\n\r\n" + as_cells(",", '"'),
    "a.csv.gz": lambda: gzip.compress(as_cells(",", '"')),
    "a.tsv.gz": lambda: gzip.compress(as_cells("\t", "")),
}


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_gives_the_same_texts(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, TABLES[name]())
    assert is_a_table(path) and list(read_lines_or_column([path], "text")) == TEXTS


def test_tables_follow_one_another_and_without_a_column_lines_are_read(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, TABLES[name]()) for name in ("a.csv", "a.parquet")]
    assert list(read_lines_or_column(paths, "id")) == [row["id"] for row in ROWS] * 2
    text = write(tmp_path / "a.txt", b"one\n\ntwo\n")
    assert not is_a_table(text) and list(read_lines_or_column([text], None)) == ["one", "", "two"]


@pytest.mark.parametrize(("name", "encode"), [("a.jsonl", as_json_lines), ("a.parquet", as_parquet)])
def test_a_dot_leads_to_a_field_unless_a_column_has_that_name(
    name: str, encode: Callable[[list[dict[str, Any]]], bytes], tmp_path: Path
) -> None:
    path = write(tmp_path / name, encode([{"text": {"de": "eins"}}, {"text": {"de": "zwei"}}]))
    assert list(read_lines_or_column([path], "text.de")) == ["eins", "zwei"]
    path = write(tmp_path / name, encode([{"text.de": "drei", "text": {"de": "eins"}}]))
    assert list(read_lines_or_column([path], "text.de")) == ["drei"]


def test_a_missing_field_is_a_broken_row() -> None:
    assert value_at({"a": {"b": {"c": 5}}}, "a.b.c") == 5
    for record in ({"a": {"x": 1}}, {"a": "text"}, {}):
        with pytest.raises(BrokenRow, match="allowed are rows with 'a.b'"):
            value_at(record, "a.b")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": 3}\n', "a.jsonl:2: .*text"),
        ("a.jsonl", b'{"text": "a"}\n\n{"other": "b"}\n', "a.jsonl:3: has the columns"),
        ("a.jsonl", b'{"text": "a"\n', "a.jsonl:1: "),
        ("a.csv", b"id,text\n1,a\n2\n", "a.csv:3: has 1 columns; allowed are 2"),
        ("a.csv", b"id;text\n1;Yes, sir\n", "a.csv:1: has columns separated by ';'.*Write it with commas"),
        ("a.tsv", b"text\ttext\na\tb\n", "a.tsv:1: has 2 columns 'text'"),
        ("a.parquet", b"not a table", "a.parquet: .*complete Parquet file"),
        ("a.parquet", as_parquet([{"en": "a"}]), r"a.parquet: has the columns \['en'\]"),
    ],
)
def test_a_wrong_row_is_named(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        list(read_lines_or_column([write(tmp_path / name, content)], "text"))


def test_rows_before_a_wrong_one_are_read(tmp_path: Path) -> None:
    texts = read_lines_or_column([write(tmp_path / "a.jsonl", b'{"text": "a"}\n{"text": null}\n')], "text")
    assert next(texts) == "a"
    with pytest.raises(BadInput, match="a.jsonl:2: "):
        next(texts)


def test_spaces_around_the_name_of_a_column_do_not_count(tmp_path: Path) -> None:
    assert [*read_lines_or_column([write(tmp_path / "a.csv", b"id, text\n1,das Haus\n")], "text")] == ["das Haus"]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (as_json_lines(ROWS), "is text; allowed with the ending .parquet is a complete Parquet file. Name it with"),
        (gzip.compress(as_parquet(ROWS)), "is compressed with gzip"),
        (b"", "is empty"),
        (b"\x00\x01\xff", "is no Parquet file"),
    ],
)
def test_what_is_no_parquet_file_is_called_what_it_is(content: bytes, found: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", content)
    for read in (lambda: [*read_lines_or_column([path], "text")], lambda: [*read_rows(path, CorpusReport())]):
        with pytest.raises(BadInput, match=re.escape(f"{path}: {found}")):
            read()
