"""The published numbers of `paper.json` and how tables show them: marked where they are from memory."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..reports.tables import FROM_MEMORY, NONE, Cell

PAPER: Mapping[str, Any] = json.loads(Path(__file__).with_name("paper.json").read_text("utf-8"))
COLUMNS: Mapping[str, Mapping[str, Any]] = {column["task"]: column for column in PAPER["columns"]}
SETTINGS = ("zero-shot", "translate-train", "translate-train-all")


def paper_rows(kind: str, sizes: Iterable[str | None], setting: str) -> list[Mapping[str, Any]]:
    """Published rows of a setting for these encoder sizes; for all sizes if one of them is neither base nor large.

    Args:
        kind: "rows", a score for each task, or "per_language".
        sizes: of the runs that are compared with the paper.
    """
    wanted = set(sizes)
    all_sizes = not wanted <= {"base", "large"}
    return [
        row
        for row in PAPER[kind]
        if row["setting"] == setting and (all_sizes or row["size"] is None or row["size"] in wanted)
    ]


def paper_name(row: Mapping[str, Any]) -> str:
    return f"{row['model']}, {row['size']}" if row["size"] else str(row["model"])


def paper_notes(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The sources of the numbers of a row, for the notes below a table."""
    source = PAPER["sources"][row["source"]]
    if "table" in row:
        tables = f"Table {row['table']}" if isinstance(row["table"], int) else f"Tables {row['table']}"
        source = f"{source}, {tables}"
    first = f"As printed in {source}." if row["verified"] else f"{FROM_MEMORY} From memory, to be checked in {source}."
    return (first, row["note"]) if row.get("note") else (first,)


def paper_cell(row: Mapping[str, Any], numbers: Sequence[float] | None) -> Cell:
    return Cell(NONE if numbers is None else join_numbers(numbers) + ("" if row["verified"] else FROM_MEMORY))


def join_numbers(numbers: Sequence[float]) -> str:
    """Several metrics of a task as one text.

    >>> join_numbers([64.46, -0.01])
    '64.5/0.0'
    """
    return "/".join(f"{number:z.1f}" for number in numbers)
