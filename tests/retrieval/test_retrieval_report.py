"""Precision and recall of mined pairs: worked by hand, and on the page."""

import json
from pathlib import Path

import numpy as np
import pytest

from hictl_hf.retrieval.accuracy import pair_f1
from hictl_hf.retrieval.bitext import extract_pairs
from hictl_hf.retrieval.report import ROWS_SHOWN, precision_and_recall, threshold_table, write_mining_report

SCORES = {("a", "1"): 1.5, ("b", "2"): 1.25, ("c", "9"): 1.25, ("d", "4"): 1.1, ("e", "8"): 1.0}
GOLD = {("a", "1"), ("b", "2"), ("d", "4"), ("f", "6")}


def test_equal_scores_are_taken_together() -> None:
    # right 1 of 1, 2 of 3, 3 of 4, 3 of 5, of four true pairs
    curve = precision_and_recall(SCORES, GOLD)
    assert curve.thresholds.tolist() == [1.5, 1.25, 1.1, 1.0]
    assert curve.precision == pytest.approx([100, 200 / 3, 75, 60])
    assert curve.recall == pytest.approx([25, 50, 75, 75])
    assert curve.f1 == pytest.approx([40, 400 / 7, 75, 200 / 3])
    for threshold, *numbers in zip(curve.thresholds, curve.precision, curve.recall, curve.f1):
        expected = pair_f1(extract_pairs(SCORES, threshold), GOLD)
        assert numbers == pytest.approx([expected[name] for name in ("precision", "recall", "f1")])


def test_thresholds_are_shown_at_steps_of_recall_and_the_last() -> None:
    many = {(str(number), str(number)): 2 - number / 1000 for number in range(1000)}
    curve = precision_and_recall(many, {pair for pair in many if int(pair[0]) < 100})
    rows = [[cell.text for cell in row] for row in threshold_table(curve).sections[""]]
    assert len(rows) == ROWS_SHOWN + 1 and [row[1] for row in rows] == ["100.0"] * ROWS_SHOWN + ["10.0"]
    assert rows[0] == ["2.0000", "100.0", "1.0", "2.0"] and rows[-2][2] == "100.0"


def test_nothing_right_is_no_division_by_zero() -> None:
    curve = precision_and_recall({("a", "2"): 1.0}, GOLD)
    assert curve.f1.tolist() == [0] and np.isfinite(curve).all()


def test_the_page_has_curve_numbers_and_what_was_wrong(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "hictl_hf")
    page = write_mining_report(tmp_path / "report", SCORES, GOLD, [("7", "lines in x.txt")], "hictl mine x y")
    text = (tmp_path / "report" / "report.md").read_text("utf-8")
    assert page.name == "report.html" and "data:image/png;base64," in page.read_text("utf-8")
    assert "th, td { text-align: left; unicode-bidi: plaintext;" in page.read_text("utf-8")  # sentences, not numbers
    assert "report.html: best F1 75.0, of pairs that score 1.0500 or more" in caplog.text
    assert (
        "Mined pairs: F1 75.0% at the best threshold" in text
        and "chosen on these same pairs" in text
        and "hictl mine x y" in text
    )
    assert "| 1.1000 | 75.0 | 75.0 | 75.0 |" in text
    assert "of the pairs that score the threshold or more. The argument --threshold" in text
    assert "| 1.2500 | c | 9 |" in text and "| e | 8 |" not in text
    results = json.loads((tmp_path / "report" / "results.json").read_text("utf-8"))
    assert results["threshold"] == pytest.approx(1.05) and results["best"]["f1"] == 75
    assert results["all"]["recall"] == 75 and len(results["curve"]["thresholds"]) == 4


def test_no_pair_at_all_has_a_page_too(tmp_path: Path) -> None:
    assert write_mining_report(tmp_path, {}, GOLD, [], "hictl mine").is_file()
    assert json.loads((tmp_path / "results.json").read_text("utf-8"))["best"]["f1"] == 0
