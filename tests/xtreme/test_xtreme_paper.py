"""The published numbers are consistent: averages with the scores, rows with the columns; all have a source."""

from statistics import fmean

import pytest

from hictl_hf.reports.tables import FROM_MEMORY, NONE
from hictl_hf.xtreme.paper import COLUMNS, PAPER, SETTINGS, paper_cell, paper_name, paper_notes, paper_rows


def test_printed_averages_are_those_of_nine_task_scores() -> None:
    checked = 0
    for row in PAPER["rows"]:
        if row["average"] is None:
            assert set(row["scores"]) != set(COLUMNS)
            continue
        average = fmean(fmean(row["scores"][name]) for name in COLUMNS)
        assert average == pytest.approx(row["average"], abs=0.1), row["model"]
        checked += 1
    assert checked == 10


def test_published_numbers_by_language_average_to_those_printed() -> None:
    checked = set()
    for row in PAPER["per_language"]:
        column = COLUMNS[row["task"]]
        assert set(row["scores"]) <= set(column["languages"])
        if set(row["scores"]) == set(column["languages"]):
            means = [fmean(numbers) for numbers in zip(*row["scores"].values())]
            assert means == pytest.approx(row["average"], abs=0.15 if row["task"] == "tatoeba" else 0.1), row
            checked.add(row["task"])
    assert checked == {*COLUMNS}


@pytest.mark.parametrize("kind", ["rows", "per_language"])
def test_every_published_row_is_complete_and_has_its_source(kind: str) -> None:
    for row in PAPER[kind]:
        assert row["setting"] in SETTINGS and row["size"] in ("base", "large", None)
        assert row["source"] in PAPER["sources"] and isinstance(row["verified"], bool)
        for name, numbers in row["scores"].items():
            column = COLUMNS[row["task"] if kind == "per_language" else name]
            assert len(numbers) == len(column["metrics"])
            assert all(0 < number < 100 and number == round(number, 1) for number in numbers)


@pytest.mark.parametrize(
    ("size", "sizes"),
    [("base", {"base"}), ("large", {"large"}), ("small", {"base", "large"}), (None, {"base", "large"})],
)
def test_published_rows_are_those_of_the_size_or_of_all_next_to_a_size_the_paper_lacks(
    size: str | None, sizes: set[str]
) -> None:
    for kind in ("rows", "per_language"):
        found = paper_rows(kind, [size], "zero-shot")
        assert {row["setting"] for row in found} == {"zero-shot"} or kind == "per_language" and not found
        assert {row["size"] for row in found} - {None} <= sizes
    names = [row["model"] for row in paper_rows("rows", [size], "zero-shot")]
    assert names[:2] == ["mBERT", "XLM"] and len(names) == 2 + 2 * len(sizes)


def test_a_number_from_memory_is_marked_in_its_cell_and_in_the_notes() -> None:
    row = {"model": "A", "size": "base", "source": next(iter(PAPER["sources"])), "verified": True}
    assert paper_cell(row, [50.0, 49.96]).text == "50.0/50.0" and paper_cell(row, None).text == NONE
    assert paper_name(row) == "A, base" and paper_name({**row, "size": None}) == "A"
    (note,) = paper_notes(row)
    assert note.startswith("As printed in ")
    guessed = {**row, "verified": False, "note": "Of five seeds."}
    assert paper_cell(guessed, [50.0]).text == f"50.0{FROM_MEMORY}"
    first, second = paper_notes(guessed)
    assert first.startswith(f"{FROM_MEMORY} From memory") and second == "Of five seeds."
