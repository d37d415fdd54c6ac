"""Read the texts of one column of a table: JSON lines, CSV or TSV, also compressed, or Parquet."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow.parquet

from ..errors import BadInput, BrokenRow, as_bad_input, short_repr
from .compression import compression_of
from .formats import READ_AHEAD, check_delimiter, check_parquet, ending_of, read_cells, read_json_lines, rows_below
from .lines import read_numbered_texts
from .records import Cursor, checked_text

TABLES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")


def is_a_table(path: str) -> bool:
    """Whether the file name ends like that of a table."""
    return ending_of(path).removesuffix(compression_of(path)) in TABLES


def check_column(paths: Sequence[str], column: str | None) -> None:
    """Raise `BadInput` for a table without `--column`, and for another file, or standard input, with it."""
    if column is not None and not paths:
        raise BadInput(f"column is {column}, and input is not given; allowed with --column are tables. Name them.")
    for path in paths:
        if (is_table := is_a_table(path)) != (column is not None):
            raise BadInput(
                f"{path}: is {'a table' if is_table else 'no table'} by its name, and column is {column}; "
                f"allowed are tables ({', '.join(TABLES)}) with --column, or files of lines without"
            )


def refuse_tables(paths: Sequence[str], fix: str) -> None:
    """Raise `BadInput` for a table where lines of text are read."""
    if tables := list(filter(is_a_table, paths)):
        raise BadInput(f"{tables[0]}: is a table by its name; allowed are files of one sentence per line. {fix}.")


def read_lines_or_column(paths: Sequence[str], column: str | None) -> Iterator[str]:
    """Yield the lines of files (without files: of standard input), or the texts of a column of tables."""
    return (text for _, text in read_numbered(paths, column))


def read_numbered(paths: Sequence[str], column: str | None) -> Iterator[tuple[str, str]]:
    """Yield what `read_lines_or_column` yields, each with its place ("file:line")."""
    if column is None:
        return read_numbered_texts(paths)
    return chain.from_iterable(read_numbered_column(path, column) for path in paths)


def read_numbered_column(path: str, column: str) -> Iterator[tuple[str, str]]:
    """Yield the text of each row in this column with its place ("file:row"); `a.b` is the field b of column a.

    Raises:
        BadInput: a row is broken or has no text there; the message has its number.
    """
    for number, record in read_records(path, column):
        try:
            if isinstance(record, BrokenRow):
                raise record
            yield f"{path}:{number}", checked_text(f"{column!r}", value_at(record, column))
        except BrokenRow as problem:
            raise BadInput(f"{path}:{number}: {problem}") from problem


def read_records(path: str, column: str) -> Iterator[tuple[int, Mapping[str, Any] | BrokenRow]]:
    """Yield numbered rows, or why a row is broken; of Parquet only this column is read."""
    ending = ending_of(path).removesuffix(compression_of(path))
    if ending == ".parquet":
        with as_bad_input(
            path, f"a complete Parquet file with a column {column!r}", "Write it again, or name another."
        ):
            yield from read_parquet_column(path, column)
    elif ending in (".csv", ".tsv"):
        cells = read_cells(path, Cursor())
        first, header = next((row for row in cells if row[1]), (1, []))
        if isinstance(header, BrokenRow):
            raise BadInput(f"{path}:{first}: {header}")
        header = [name.strip() for name in header]
        if column not in header:
            check_delimiter(f"{path}:{first}", header)
        if header.count(column) > 1:
            raise BadInput(
                f"{path}:{first}: has {header.count(column)} columns {column!r}; allowed is one. Rename one."
            )
        blank = [""] if len(header) == 1 else []  # an empty text, or no row
        yield from rows_below(header, ((number, row or blank) for number, row in cells))
    else:
        for number, record in read_json_lines(path, Cursor()):
            if isinstance(record, BrokenRow | Mapping):
                yield number, record


def read_parquet_column(path: str, column: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield numbered rows with this column alone, read batch by batch."""
    check_parquet(path)
    with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=READ_AHEAD) as file:
        names = file.schema_arrow.names
        if (name := column if column in names else column.split(".")[0]) not in names:
            raise BadInput(
                f"{path}: has the columns {short_repr(names)}; allowed is a file with {column!r}. Name another."
            )
        batches = file.iter_batches(1000, columns=[name])
        rows = chain.from_iterable(batch.to_pylist(maps_as_pydicts="strict") for batch in batches)
        yield from enumerate(rows, start=1)


def value_at(record: Mapping[str, Any], column: str) -> Any:
    """Return the value of a column; `a.b` is the field b of column a unless a column has that name."""
    if column in record:
        return record[column]
    value: Any = record
    for name in column.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise BrokenRow(
                f"has the columns {short_repr(list(record))}; allowed are rows with {column!r}. Name another."
            )
        value = value[name]
    return value
