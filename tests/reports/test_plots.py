"""The pictures of a run, and the few numbers printed in them."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hictl_hf.reports import plots as plotting

pytest.importorskip("matplotlib")

HISTORY: list[dict[str, Any]] = [
    {"step": step, "loss": 9.0 / step, "lm_loss": 5.0 / step, "p_avg": 1 - 1 / step, "hard_negative_lambda": 0.9}
    for step in range(1, 80)
]
LANGUAGES = {"de": {"untrained": 10.0, "hictl": 50.0}, "sw": {"untrained": 8.0, "hictl": 5.0}}
LAYERS: dict[str, list[float | None]] = {"mean": [10.0, 30.0, 20.0], "projection": [None, None, 40.0]}


def is_picture(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


def test_the_floor_of_the_sentence_loss_is_as_worked_out_by_hand() -> None:
    # Eight pairs leave 14 negatives at cosine -1: log(1 + 14 e^-2) = log(1 + 1.8947) = 1.0629.
    assert plotting.sentence_loss_floor(8, 1.0) == pytest.approx(1.0629, abs=1e-4)
    assert plotting.sentence_loss_floor(1, 1.0) == 0.0
    assert 0 < plotting.sentence_loss_floor(1024, 0.05) < 1e-12


def test_the_floor_is_the_loss_of_perfect_cosines() -> None:
    pairs, temperature = 32, 0.7
    scores = np.array([1.0] + [-1.0] * (2 * pairs - 2)) / temperature
    loss = -math.log(math.exp(scores[0]) / np.exp(scores).sum())
    assert plotting.sentence_loss_floor(pairs, temperature) == pytest.approx(loss)


def test_lambda_at_the_floor_is_as_worked_out_by_hand() -> None:
    # p_avg = 1 / (1 + 14 e^-2) = 0.3455, and 0.5^(0.9 * 0.3455) = 0.806.
    assert plotting.lambda_at_floor(8, 1.0) == pytest.approx(0.806, abs=1e-3)
    assert plotting.lambda_at_floor(1, 1.0) == pytest.approx(0.5**0.9)
    assert plotting.lambda_at_floor(8, 1.0, zeta=0.0) == 1.0


def test_a_running_mean_is_shorter_at_the_ends() -> None:
    assert plotting.smooth(np.array([0.0, 3.0, 6.0, 0.0]), 3).tolist() == [1.5, 3.0, 3.0, 3.0]
    assert plotting.smooth(np.array([4.0, 2.0]), 1).tolist() == [4.0, 2.0]


def test_the_share_of_neighbours_with_the_same_meaning_is_as_worked_out_by_hand() -> None:
    # Directions in degrees: de 0 and 90, en 10 and 40. The nearest to de 0 is en 10, its translation, and back; the
    # nearest to en 40 is en 10 and the nearest to de 90 is en 40: yes, yes, no, yes. Lengths play no part.
    def towards(degrees: float, length: float = 1.0) -> list[float]:
        return [length * math.cos(math.radians(degrees)), length * math.sin(math.radians(degrees))]

    german, english = np.array([towards(0), towards(90, 5.0)]), np.array([towards(10, 3.0), towards(40)])
    assert plotting.same_meaning_share({"de": german, "en": english}) == 0.75
    assert plotting.same_meaning_share({"en": english, "de": german}) == 0.75


def test_every_picture_is_written_and_follows_its_data(tmp_path: Path) -> None:
    longer = [*HISTORY, {"step": 80, "loss": 3.0}]
    better = {**LANGUAGES, "sw": {"untrained": 8.0, "hictl": 9.0}}
    pictures = [
        (plotting.plot_losses(HISTORY, tmp_path / "a.png"), plotting.plot_losses(longer, tmp_path / "b.png")),
        (plotting.plot_retrieval(LANGUAGES, tmp_path / "c.png"), plotting.plot_retrieval(better, tmp_path / "d.png")),
        (plotting.plot_layers(LAYERS, tmp_path / "e.png"), plotting.plot_layers({"mean": [1.0]}, tmp_path / "f.png")),
    ]
    for first, second in pictures:
        assert is_picture(first) and is_picture(second)
        assert first.read_bytes() != second.read_bytes()


def test_the_map_of_sentences_is_repeatable(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    random = np.random.default_rng(3)
    before = {language: random.normal(size=(5, 8)) for language in ("de", "en", "sw")}
    after = {language: before["en"] + 0.1 * rows for language, rows in before.items()}
    first = plotting.plot_tsne(before, after, tmp_path / "first.png", seed=1)
    again = plotting.plot_tsne(before, after, tmp_path / "again.png", seed=1)
    other = plotting.plot_tsne(before, before, tmp_path / "other.png", seed=1)
    assert is_picture(first)
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()


@pytest.mark.parametrize("value", [0.0, 0.1])
def test_sentences_that_all_have_one_vector_are_drawn_as_one_point(value: float, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")  # which would end the process at such points
    same = {language: np.full((5, 8), value, np.float32) for language in ("de", "en", "sw")}
    random = np.random.default_rng(3)
    other = {language: random.normal(size=(5, 8)) for language in same}
    first = plotting.plot_tsne(same, other, tmp_path / "first.png")
    assert is_picture(first)
    assert first.read_bytes() != plotting.plot_tsne(other, same, tmp_path / "second.png").read_bytes()


def test_the_map_of_sentences_refuses_what_cannot_be_read(tmp_path: Path) -> None:
    many = {f"l{number}": np.eye(4) for number in range(7)}
    with pytest.raises(ValueError, match="up to 6 languages"):
        plotting.plot_tsne(many, many, tmp_path / "map.png")
    with pytest.raises(ValueError, match="row = meaning"):
        plotting.plot_tsne({"de": np.eye(4)}, {"de": np.eye(3)}, tmp_path / "map.png")


@pytest.mark.parametrize("languages", [0, 1, 100])
def test_any_number_of_languages_is_drawn(languages: int, tmp_path: Path) -> None:
    rows = {f"l{number}": {"hictl": float(number)} for number in range(languages)}
    assert is_picture(plotting.plot_retrieval(rows, tmp_path / "retrieval.png"))


SCORES: dict[str, dict[str, dict[str, float | None]]] = {
    "classification": {"XNLI": {"en": 80.0, "sw": 50.0, "ur": None}},
    "retrieval": {"BUCC": {"de": 90.0, "sw": 10.0}, "Tatoeba": {"de": 60.0, "ja": 40.0}},
}


def test_each_score_has_its_tile_and_languages_come_best_first_worked_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Means 65, 50, 50; ahead of them: de (40 + 10) / 2, en 15, ja -10, sw (-15 - 40) / 2, ur not scored.
    tiles: dict[tuple[float, float], float | None] = {}
    draw = plotting._tile

    def record(axes: Any, x: float, y: float, score: float | None, bold: bool = False) -> None:
        tiles[x, y] = score
        draw(axes, x, y, score, bold)

    monkeypatch.setattr(plotting, "_tile", record)
    assert is_picture(plotting.plot_languages_and_tasks(SCORES, tmp_path / "map.png", "toy"))
    first, second, third = 0.0, 1 + plotting.GROUP_GAP, 2 + plotting.GROUP_GAP
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
    monkeypatch.setattr(plotting, "_headline", lambda figure, words: said.append(words))
    scores: dict[str, float | None] = {f"l{number}": 10.0 * number for number in range(1, 7)}
    plotting.plot_languages_and_tasks({"g": {"T": {**scores, "none": None}}}, tmp_path / "map.png", "toy")
    assert said == ["toy: strongest in l6, l5, l4, weakest in l3, l2, l1"]


@pytest.mark.parametrize("languages", [0, 1, 60])
def test_any_number_of_languages_has_its_row(languages: int, tmp_path: Path) -> None:
    rows: dict[str, float | None] = {f"l{number}": 1.0 + number for number in range(languages)}
    first = plotting.plot_languages_and_tasks({"g": {"T": rows}}, tmp_path / "a.png", "toy").read_bytes()
    other = plotting.plot_languages_and_tasks(
        {"g": {"T": {**rows, "l0": None}}}, tmp_path / "b.png", "toy"
    ).read_bytes()
    assert is_picture(tmp_path / "a.png") and is_picture(tmp_path / "b.png") and first != other


def test_a_map_without_a_task_says_so(tmp_path: Path) -> None:
    assert is_picture(plotting.plot_languages_and_tasks({}, tmp_path / "map.png", "toy"))


def test_scores_by_step_follow_their_data(tmp_path: Path) -> None:
    scores = {"BLEU": {"de": [(1.0, 5.0), (2.0, 9.0)], "fr": [(1.0, 4.0)]}, "COMET": {"de": [(1.0, 0.5)]}}
    plain = plotting.plot_scores_by_step(scores, tmp_path / "a.png").read_bytes()
    changed = plotting.plot_scores_by_step(scores, tmp_path / "b.png", change=1.5).read_bytes()
    other = plotting.plot_scores_by_step({**scores, "COMET": {"de": [(1.0, 0.6)]}}, tmp_path / "c.png").read_bytes()
    assert is_picture(tmp_path / "a.png") and len({plain, changed, other}) == 3
    assert is_picture(plotting.plot_scores_by_step({}, tmp_path / "empty.png"))


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
    assert is_picture(plotting.plot_attention(weights, ["<s>", "a", "b", "</s>"], ["x", "</s>"], tmp_path / "a.png"))
    assert is_picture(plotting.plot_attention(weights[:, :2], ["<s>", "</s>"], ["x", "y"], tmp_path / "b.png"))
    assert darkest == [0.3, 0.7]


@pytest.mark.filterwarnings("error")
def test_any_text_can_be_drawn(tmp_path: Path) -> None:
    texts = [r"$\frac$", "$x^2$", "▁猫", "नमस्ते", "سلام", "\t", ""]
    assert is_picture(plotting.plot_attention(np.eye(7), texts, texts, tmp_path / "a.png"))


def test_the_picture_of_layers_names_what_was_measured(tmp_path: Path) -> None:
    plain = plotting.plot_layers(LAYERS, tmp_path / "a.png").read_bytes()
    assert plotting.plot_layers(LAYERS, tmp_path / "b.png", "BUCC F1 on dev (%)").read_bytes() != plain


def test_missing_and_undefined_values_are_left_out(tmp_path: Path) -> None:
    assert is_picture(plotting.plot_losses([], tmp_path / "empty.png"))
    assert is_picture(plotting.plot_layers({"mean": [None, math.nan]}, tmp_path / "layers.png"))
    plain = plotting.plot_losses([{"step": 1, "loss": 2.0}], tmp_path / "plain.png").read_bytes()
    broken: list[dict[str, Any]] = [
        {"step": 1, "loss": 2.0},
        {"step": 2, "loss": math.nan, "lm_loss": None},
        {"loss": 1.0},
    ]
    assert plotting.plot_losses(broken, tmp_path / "broken.png").read_bytes() == plain


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        plotting.plot_layers(LAYERS, tmp_path / "layers.png")


def test_the_figure_of_the_documentation_is_drawn_from_the_command_line(tmp_path: Path) -> None:
    script = Path(plotting.__file__)
    subprocess.run([sys.executable, script, tmp_path / "lambda.png"], check=True)
    assert is_picture(tmp_path / "lambda.png")
    usage = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert usage.returncode == 1 and "usage" in usage.stderr
