"""The pictures of a pre-training run follow their data, and the numbers printed in them."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import is_picture

from hictl_hf.pretraining import plots

HISTORY: list[dict[str, Any]] = [
    {"step": step, "loss": 9.0 / step, "lm_loss": 5.0 / step, "p_avg": 1 - 1 / step, "hard_negative_lambda": 0.9}
    for step in range(1, 80)
]
SHARES = [{"share": share, "dev": 50 + 9 * share, "guard": 70 - share} for share in (0.0, 0.5, 1.0)]


def test_the_share_of_neighbours_with_the_same_meaning_is_as_worked_out_by_hand() -> None:
    # Directions in degrees: de 0 and 90, en 10 and 40. The nearest to de 0 is en 10, its translation, and back; the
    # nearest to en 40 is en 10 and the nearest to de 90 is en 40: yes, yes, no, yes. Lengths play no part.
    def towards(degrees: float, length: float = 1.0) -> list[float]:
        return [length * math.cos(math.radians(degrees)), length * math.sin(math.radians(degrees))]

    german, english = np.array([towards(0), towards(90, 5.0)]), np.array([towards(10, 3.0), towards(40)])
    assert plots.same_meaning_share({"de": german, "en": english}) == 0.75
    assert plots.same_meaning_share({"en": english, "de": german}) == 0.75


def test_every_picture_is_written_and_follows_its_data(tmp_path: Path) -> None:
    longer = [*HISTORY, {"step": 80, "loss": 3.0}]
    pictures = [
        (plots.plot_losses(HISTORY, tmp_path / "a.png"), plots.plot_losses(longer, tmp_path / "b.png")),
        (plots.plot_shares(SHARES, 0.5, tmp_path / "e.png"), plots.plot_shares(SHARES[:2], 0.5, tmp_path / "f.png")),
    ]
    for first, second in pictures:
        assert is_picture(first) and is_picture(second)
        assert first.read_bytes() != second.read_bytes()


def test_a_running_mean_is_announced_where_one_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    monkeypatch.setattr(plots, "set_headline", lambda _, text: found.append(text))
    for steps in (29, 30):
        plots.plot_losses(HISTORY[:steps], tmp_path / "a.png")
    assert found == ["Losses by step", "Losses by step (faint: as logged, bold: running mean)"]


def test_no_text_of_the_losses_shows_the_marks_of_a_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures, begin = [], plots.figure_at

    @contextmanager
    def recorded(*args: Any) -> Iterator[Any]:
        with begin(*args) as figure:
            yield figure
        figures.append(figure)

    monkeypatch.setattr(plots, "figure_at", recorded)
    plots.plot_losses(HISTORY, tmp_path / "a.png")
    last = figures[0].axes[-1]
    assert last.get_title(loc="left") == "p_avg ends at 0.99, mean λ ends at 0.90"
    assert [text.get_text() for text in last.get_legend().get_texts()] == ["p_avg", "mean λ"]


def test_the_map_of_sentences_is_repeatable(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    random = np.random.default_rng(3)
    before = {language: random.normal(size=(5, 8)) for language in ("de", "en", "sw")}
    after = {language: before["en"] + 0.1 * rows for language, rows in before.items()}
    first = plots.plot_tsne(before, after, tmp_path / "first.png", seed=1)
    again = plots.plot_tsne(before, after, tmp_path / "again.png", seed=1)
    other = plots.plot_tsne(before, before, tmp_path / "other.png", seed=1)
    assert is_picture(first)
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()


@pytest.mark.parametrize("value", [0.0, 0.1])
def test_sentences_that_all_have_one_vector_are_drawn_as_one_point(value: float, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")  # which would end the process at such points
    same = {language: np.full((5, 8), value, np.float32) for language in ("de", "en", "sw")}
    random = np.random.default_rng(3)
    other = {language: random.normal(size=(5, 8)) for language in same}
    first = plots.plot_tsne(same, other, tmp_path / "first.png")
    assert is_picture(first)
    assert first.read_bytes() != plots.plot_tsne(other, same, tmp_path / "second.png").read_bytes()


def test_the_map_of_sentences_refuses_what_cannot_be_read(tmp_path: Path) -> None:
    many = {f"l{number}": np.eye(4) for number in range(7)}
    with pytest.raises(ValueError, match="up to 6 languages"):
        plots.plot_tsne(many, many, tmp_path / "map.png")
    with pytest.raises(ValueError, match="row = meaning"):
        plots.plot_tsne({"de": np.eye(4)}, {"de": np.eye(3)}, tmp_path / "map.png")


def test_missing_and_undefined_losses_are_left_out(tmp_path: Path) -> None:
    assert is_picture(plots.plot_losses([], tmp_path / "empty.png"))
    plain = plots.plot_losses([{"step": 1, "loss": 2.0}], tmp_path / "plain.png").read_bytes()
    broken: list[dict[str, Any]] = [
        {"step": 1, "loss": 2.0},
        {"step": 2, "loss": math.nan, "lm_loss": None},
        {"loss": 1.0},
    ]
    assert plots.plot_losses(broken, tmp_path / "broken.png").read_bytes() == plain
