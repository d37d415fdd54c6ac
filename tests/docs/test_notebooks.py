"""The notebooks run from top to bottom, and what they show is what their cells print and draw."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.fixture(scope="module")
def functions() -> dict[str, Any]:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    return run_path(str(ROOT / "docs/run_notebooks.py"))


@pytest.fixture(scope="module")
def ran(functions: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Any]:
    """A notebook after it was run, once, in a new folder; an error in a cell is raised."""
    return cache(lambda path: functions["without_noise"](functions["run"](path, tmp_path_factory.mktemp(path.stem))))


def printed(notebook: Any) -> str:
    return "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom_and_keeps_what_its_cells_show(
    path: Path, ran: Callable[[Path], Any]
) -> None:
    import nbformat

    def kinds(notebook: Any) -> list[list[str]]:
        return [
            [output.get("name", output.output_type) for output in cell.get("outputs", [])] for cell in notebook.cells
        ]

    now, kept = ran(path), nbformat.read(path, as_version=4)
    assert kinds(now) == kinds(kept) and sum(map(len, kinds(now))) > 5, "python docs/run_notebooks.py docs/notebooks/*"
    assert [cell.source for cell in now.cells] == [cell.source for cell in kept.cells]


@pytest.mark.slow
def test_german_finds_swahili_without_pairs_of_the_two(ran: Callable[[Path], Any]) -> None:
    found = re.search(r"(\d+)% of all German sentences", printed(ran(FOLDER / "from_pairs_to_an_encoder.ipynb")))
    assert found and int(found[1]) > 50


@pytest.mark.slow
def test_mined_pairs_are_translations_and_near_words_are_those_of_the_sentence(ran: Callable[[Path], Any]) -> None:
    text = printed(ran(FOLDER / "mine_and_look_inside.ipynb"))
    best = re.findall(r"^\d\.\d{3} .*", text, re.MULTILINE)[:5]
    assert sum(line.endswith("translation") for line in best) >= 3
    near = dict(line.split(maxsplit=1) for line in re.findall(r"^(?:en|sw) .*", text, re.MULTILINE))
    assert "sister" in near["en"] and "anachora" in near["sw"]  # draws
