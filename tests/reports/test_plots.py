"""The style and helpers of pictures, and scores by layer."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from pictures import is_picture

from hictl_hf.reports import plots

LAYERS: dict[str, list[float | None]] = {"mean": [10.0, 30.0, 20.0], "projection": [None, None, 40.0]}


def test_a_running_mean_is_shorter_at_the_ends() -> None:
    assert plots.smooth(np.array([0.0, 3.0, 6.0, 0.0]), 3).tolist() == [1.5, 3.0, 3.0, 3.0]
    assert plots.smooth(np.array([4.0, 2.0]), 1).tolist() == [4.0, 2.0]


def test_scores_by_layer_follow_their_data(tmp_path: Path) -> None:
    first = plots.plot_layers(LAYERS, tmp_path / "a.png")
    second = plots.plot_layers({"mean": [1.0]}, tmp_path / "b.png")
    assert is_picture(first) and is_picture(second)
    assert first.read_bytes() != second.read_bytes()


def test_a_name_with_dollars_is_no_formula(tmp_path: Path) -> None:
    with plots.figure_at(tmp_path / "a.png", 2, 2) as figure:
        plots.set_headline(figure, r"runs/a$\frac$")
    assert (tmp_path / "a.png").exists()


def test_the_picture_of_layers_names_what_was_measured(tmp_path: Path) -> None:
    plain = plots.plot_layers(LAYERS, tmp_path / "a.png").read_bytes()
    assert plots.plot_layers(LAYERS, tmp_path / "b.png", "BUCC F1 on dev (%)").read_bytes() != plain


@pytest.mark.parametrize(("chosen", "named"), [(None, "mean at layer 1"), (("cls", 0), "cls at layer 0")])
def test_of_equal_layers_the_chosen_one_is_marked(
    chosen: tuple[str, int] | None, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(plots, "set_headline", lambda figure, text: said.append(text))
    plots.plot_layers({"mean": [None, 5.0], "cls": [5.0, 5.0]}, tmp_path / "a.png", chosen=chosen)
    assert said == [f"Best retrieval: {named}"]


def test_layers_without_a_score_are_left_out(tmp_path: Path) -> None:
    assert is_picture(plots.plot_layers({"mean": [None, math.nan]}, tmp_path / "layers.png"))
    assert is_picture(plots.plot_layers({}, tmp_path / "none.png"))


def test_a_picture_that_is_interrupted_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def savefig(figure: object, path: Path, **_: object) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    old = plots.plot_layers(LAYERS, tmp_path / "a.png").read_bytes()
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", savefig)
    with pytest.raises(KeyboardInterrupt):
        plots.plot_layers({}, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == old and [*tmp_path.iterdir()] == [tmp_path / "a.png"]


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        plots.plot_layers(LAYERS, tmp_path / "layers.png")
