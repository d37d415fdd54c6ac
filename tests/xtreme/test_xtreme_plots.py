"""The picture of scores has a tile for each, best languages first."""

from pathlib import Path
from typing import Any

import pytest
from pictures import is_picture

from hictl_hf.xtreme import plots

SCORES: dict[str, dict[str, dict[str, float | None]]] = {
    "classification": {"XNLI": {"en": 80.0, "sw": 50.0, "ur": None}},
    "retrieval": {"BUCC": {"de": 90.0, "sw": 10.0}, "Tatoeba": {"de": 60.0, "ja": 40.0}},
}


def test_each_score_has_its_tile_and_languages_come_best_first_worked_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Means 65, 50, 50; ahead of them: de (40 + 10) / 2, en 15, ja -10, sw (-15 - 40) / 2, ur not scored.
    tiles: dict[tuple[float, float], float | None] = {}
    draw = plots._tile

    def record(axes: Any, x: float, y: float, score: float | None, bold: bool = False) -> None:
        tiles[x, y] = score
        draw(axes, x, y, score, bold)

    monkeypatch.setattr(plots, "_tile", record)
    assert is_picture(plots.plot_languages_and_tasks(SCORES, tmp_path / "map.png", "toy"))
    first, second, third = 0.0, 1 + plots.GROUP_GAP, 2 + plots.GROUP_GAP
    means = {(place, row): score for (place, row), score in tiles.items() if row < 0}
    assert {place: score for (place, _), score in means.items()} == {first: 65.0, second: 50.0, third: 50.0}
    assert {place: score for place, score in tiles.items() if place not in means} == {
        (first, 1): 80.0,
        (first, 3): 50.0,
        (first, 4): None,
        (second, 0): 90.0,
        (second, 3): 10.0,
        (third, 0): 60.0,
        (third, 2): 40.0,
    }


def test_the_headline_of_many_languages_names_the_first_and_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(plots, "set_headline", lambda figure, words: said.append(words))
    scores: dict[str, float | None] = {f"l{number}": 10.0 * number for number in range(1, 7)}
    plots.plot_languages_and_tasks({"g": {"T": {**scores, "none": None}}}, tmp_path / "map.png", "toy")
    assert said == ["toy: strongest in l6, l5, l4, weakest in l3, l2, l1"]


@pytest.mark.parametrize("languages", [0, 1, 60])
def test_any_number_of_languages_has_its_row(languages: int, tmp_path: Path) -> None:
    rows: dict[str, float | None] = {f"l{number}": 1.0 + number for number in range(languages)}
    first = plots.plot_languages_and_tasks({"g": {"T": rows}}, tmp_path / "a.png", "toy").read_bytes()
    other = plots.plot_languages_and_tasks({"g": {"T": {**rows, "l0": None}}}, tmp_path / "b.png", "toy").read_bytes()
    assert is_picture(tmp_path / "a.png") and is_picture(tmp_path / "b.png") and first != other


def test_a_map_without_a_task_says_so(tmp_path: Path) -> None:
    assert is_picture(plots.plot_languages_and_tasks({}, tmp_path / "map.png", "toy"))
