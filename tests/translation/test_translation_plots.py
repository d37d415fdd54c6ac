"""The pictures of a translation run follow their data; any text can be drawn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import is_picture

from hictl_hf.translation import plots


def test_scores_by_step_follow_their_data(tmp_path: Path) -> None:
    scores = {"BLEU": {"de": [(1.0, 5.0), (2.0, 9.0)], "fr": [(1.0, 4.0)]}, "COMET": {"de": [(1.0, 0.5)]}}
    plain = plots.plot_scores_by_step(scores, tmp_path / "a.png").read_bytes()
    changed = plots.plot_scores_by_step(scores, tmp_path / "b.png", change=1.5).read_bytes()
    other = plots.plot_scores_by_step({**scores, "COMET": {"de": [(1.0, 0.6)]}}, tmp_path / "c.png").read_bytes()
    assert is_picture(tmp_path / "a.png") and len({plain, changed, other}) == 3
    assert is_picture(plots.plot_scores_by_step({}, tmp_path / "empty.png"))


@pytest.mark.filterwarnings("error")  # matplotlib warns where a legend leaves no room for the panels
def test_many_directions_have_a_line_of_their_own_next_to_the_legend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.axes import Axes

    styles, draw = [], Axes.plot

    def record(axes: Any, *points: Any, **how: Any) -> Any:
        if "label" in how:
            styles.append((how["linestyle"], how["marker"], how["color"]))
        return draw(axes, *points, **how)

    monkeypatch.setattr(Axes, "plot", record)
    lines = {f"en-x{number}": [(1.0, number), (2.0, number + 0.5)] for number in range(20)}
    assert is_picture(plots.plot_scores_by_step({"chrF": lines}, tmp_path / "a.png"))
    assert len({*styles}) == 20


def test_the_darkest_attention_is_between_the_ends_worked_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # <s> and </s> have 0.7 and 0.6; of the words between them 0.3 is the most.
    from matplotlib.axes import Axes

    weights, darkest, draw = np.array([[0.7, 0.2, 0.1, 0.0], [0.0, 0.1, 0.3, 0.6]]), [], Axes.imshow

    def record(axes: Any, image: Any, **how: Any) -> Any:
        darkest.append(how["vmax"])
        return draw(axes, image, **how)

    monkeypatch.setattr(Axes, "imshow", record)
    assert is_picture(plots.plot_attention(weights, ["<s>", "a", "b", "</s>"], ["x", "</s>"], tmp_path / "a.png"))
    assert is_picture(plots.plot_attention(weights[:, :2], ["<s>", "</s>"], ["x", "y"], tmp_path / "b.png"))
    assert darkest == [0.3, 0.7]


@pytest.mark.filterwarnings("error")
def test_any_text_can_be_drawn(tmp_path: Path) -> None:
    texts = [r"$\frac$", "$x^2$", "▁猫", "नमस्ते", "سلام", "\t", ""]
    assert is_picture(plots.plot_attention(np.eye(7), texts, texts, tmp_path / "a.png"))
