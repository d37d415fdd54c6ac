"""The pictures of mined pairs and of accuracy by language follow their data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import is_picture

from hictl_hf.retrieval.plots import SentenceMap, plot_precision_and_recall, plot_retrieval, plot_sentence_sets


def test_precision_by_recall_follows_its_data(tmp_path: Path) -> None:
    recall, best = np.array([10.0, 50.0]), {"precision": 50.0, "recall": 50.0, "f1": 50.0}
    first = plot_precision_and_recall(recall, np.array([90.0, 50.0]), best, tmp_path / "a.png")
    other = plot_precision_and_recall(recall, np.array([80.0, 50.0]), best, tmp_path / "b.png")
    assert is_picture(first) and is_picture(other) and first.read_bytes() != other.read_bytes()


def test_accuracy_by_language_follows_its_data(tmp_path: Path) -> None:
    worse = {"de": (10.0, 50.0), "sw": (8.0, 5.0)}
    first = plot_retrieval(worse, tmp_path / "a.png")
    other = plot_retrieval({**worse, "sw": (8.0, 9.0)}, tmp_path / "b.png")
    assert is_picture(first) and is_picture(other) and first.read_bytes() != other.read_bytes()


@pytest.mark.parametrize("languages", [0, 1, 100])
def test_any_number_of_languages_is_drawn(languages: int, tmp_path: Path) -> None:
    rows = {f"l{number}": (None, float(number)) for number in range(languages)}
    assert is_picture(plot_retrieval(rows, tmp_path / "retrieval.png"))


def test_long_names_of_languages_have_room(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """As of test sets named with their files: matplotlib gives up a layout whose names leave no room for the axes."""
    rows = {f"{'file/' * 24}{number}": (1.0, float(number)) for number in range(45)}
    assert is_picture(plot_retrieval(rows, tmp_path / "retrieval.png"))
    assert not [warning for warning in recwarn if "layout" in str(warning.message)]


def test_the_long_name_of_a_map_has_several_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one line it would cover the name of the next map."""
    from matplotlib.axes import Axes

    titles, write = [], Axes.set_title

    def record(axes: Any, text: str, **how: Any) -> Any:
        titles.append(text)
        return write(axes, text, **how)

    monkeypatch.setattr(Axes, "set_title", record)
    places = {"de": np.eye(4)[:, :2], "en": np.eye(4)[:, 2:]}
    names = [f"runs/{'folder/' * 20}{number}" for number in range(2)]
    maps = [SentenceMap(name, places, 1.0) for name in names]
    assert is_picture(plot_sentence_sets(maps, 2, tmp_path / "maps.png"))
    lines = [title.splitlines() for title in titles]
    assert ["".join(name) for *name, _ in lines] == names and max(len(line) for each in lines for line in each) == 60
