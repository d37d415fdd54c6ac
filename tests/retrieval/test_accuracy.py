"""Precision, recall and F1 of pairs agree with cases worked by hand and with their definitions."""

from itertools import product

import pytest

from hictl_hf.retrieval.accuracy import overlap, pair_f1


def test_a_case_worked_by_hand() -> None:
    # 2 of 4 predictions are right, of 3 references: F1 = 2 * 0.5 * 2/3 / (0.5 + 2/3) = 4/7.
    scores = overlap({"a", "b", "x", "y"}, {"a", "b", "c"})
    assert scores == pytest.approx({"f1": 400 / 7, "precision": 50, "recall": 200 / 3})


def test_repeated_pairs_count_once() -> None:
    right, wrong = ("de-1", "en-1"), ("de-1", "en-2")
    assert pair_f1([right, right, wrong], [right]) == pair_f1({right, wrong}, {right})


@pytest.mark.parametrize(("right", "wrong", "missed"), product((0, 1, 5), repeat=3))
def test_f1_is_twice_the_right_over_all_predictions_and_references(right: int, wrong: int, missed: int) -> None:
    hits = {("hit", at) for at in range(right)}
    scores = overlap(hits | {("wrong", at) for at in range(wrong)}, hits | {("missed", at) for at in range(missed)})
    total = 2 * right + wrong + missed
    assert scores["f1"] == pytest.approx(100 * 2 * right / total if total else 0)
    exchanged = overlap(hits | {("missed", at) for at in range(missed)}, hits | {("wrong", at) for at in range(wrong)})
    assert exchanged == {"f1": scores["f1"], "precision": scores["recall"], "recall": scores["precision"]}
