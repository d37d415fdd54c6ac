"""Predictions from sentence vectors, and references of files that do not fit their examples."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset

from hictl_hf.errors import BadInput
from hictl_hf.retrieval.bitext import Bitext
from hictl_hf.xtreme.predictions import (
    ANSWERS,
    LINES,
    MINED,
    TAGS,
    VALUES,
    check_answers,
    check_pairs,
    check_tags,
    check_values,
    translations_into,
)

BITEXT = Bitext(["a", "b"], ["x", "y"], ["0", "1"], ["0", "1"], frozenset({("0", "1"), ("1", "0")}))
VECTORS = np.eye(2, dtype=np.float32)


def test_lines_are_those_of_the_nearest_candidates_worked_by_hand() -> None:
    assert LINES.retrieve is not None and LINES.other_direction is not None
    embedded = (BITEXT, VECTORS, VECTORS[::-1].copy())  # the nearest of "a" is "y"
    assert LINES.retrieve(embedded, None) == ["1", "0"] == LINES.references(BITEXT)
    assert LINES.other_direction(embedded) == 100
    assert LINES.other_direction((BITEXT, VECTORS, VECTORS)) == 0


def test_the_other_direction_searches_queries_by_candidates() -> None:
    assert LINES.other_direction is not None
    gold = replace(BITEXT, gold=frozenset({("0", "0"), ("1", "1")}))
    embedded = (gold, VECTORS, np.array([[1, 0], [1, 0.5]], np.float32))  # each query finds its own, "y" finds "a"
    assert LINES.retrieve is not None and LINES.retrieve(embedded, None) == ["0", "1"]
    assert LINES.other_direction(embedded) == 50


def test_the_threshold_of_mined_pairs_is_that_of_dev() -> None:
    """Pairs of the unit vectors score 2 and 2, the others 1.48 and 1.33."""
    assert MINED.retrieve is not None
    both, one = (replace(BITEXT, gold=frozenset(pairs)) for pairs in ([("0", "0"), ("1", "1")], [("0", "0")]))
    others = np.array([[1, 0], [1, 1]], np.float32)
    assert MINED.retrieve((both, VECTORS, others), (both, VECTORS, VECTORS)) == set()
    assert MINED.retrieve((one, VECTORS, VECTORS), (one, VECTORS, others)) == both.gold
    assert MINED.retrieve((both, VECTORS, others), (one, VECTORS, others)) == one.gold


def test_mined_pairs_need_references_of_dev() -> None:
    assert MINED.tuned_on_dev and MINED.references(BITEXT) == BITEXT.gold
    assert MINED.references(Bitext(["a"], ["x"], ["0"], ["0"], None)) is None


def test_unlabelled_examples_have_no_references() -> None:
    pairs = Dataset.from_dict({"first": ["a"], "second": ["b"], "label": ["1"]})
    assert VALUES.references(pairs) == ["1"]
    tagged = Dataset.from_dict({"words": [["a"], ["b"]], "tags": [["O"], None]})
    assert TAGS.references(tagged) is None
    assert TAGS.labelled is not None
    assert TAGS.labelled(tagged, [["B"], ["O"]])[:] == {"words": [["a"], ["b"]], "tags": [["B"], ["O"]]}
    asked = Dataset.from_dict({"id": ["a", "b"], "answers": [[], []]})
    assert ANSWERS.references(asked) is None


def test_translations_are_found_by_what_their_codes_mean(tmp_path: Path) -> None:
    lines = ["a\tiw\tA", "a\tHE\tB", "a\tzh-CN\tC", "a\tzh-TW\tD", "a\tgerman\tE"]
    (tmp_path / "a.txt").write_text("\n".join(lines), "utf-8")
    found = {code: translations_into(code, tmp_path / "a.txt")["words"][:] for code in ("he", "zh", "de")}
    assert found == {"he": [["A"], ["B"]], "zh": [["C"]], "de": []}


def test_answers_to_some_of_the_questions_are_refused() -> None:
    asked = Dataset.from_dict({"id": ["a", "b"], "answers": [[{"text": "x", "start": 0}], []]})
    with pytest.raises(BadInput, match="the question 'b' has no answer, as 1 of 2; allowed is an answer to each"):
        ANSWERS.references(asked)


def test_references_that_do_not_fit_are_refused() -> None:
    tagged = Dataset.from_dict({"words": [["a", "b"]], "tags": [["O", "O"]]})
    check_tags("f", [["O", "O"]], tagged, ("O",))
    with pytest.raises(BadInput, match="f:1: has 1 tags in sentence 1; allowed is one for each of its 2 words"):
        check_tags("f", [["O"]], tagged, ("O",))
    with pytest.raises(BadInput, match="f: has 1 labels; allowed is one for each of the 2 examples"):
        check_values("f", ["0"], BITEXT, ())
    with pytest.raises(BadInput, match=r"f: has \('0', '7'\); allowed are two ids"):
        check_pairs("f", {("0", "7")}, BITEXT, ())
    asked = Dataset.from_dict({"id": ["a"]})
    with pytest.raises(BadInput, match="f: has the question 'b'; allowed are answers to each of the 1 that are asked"):
        check_answers("f", {"a": ["x"], "b": ["y"]}, asked, ())
    with pytest.raises(BadInput, match="f: has no answer to the question 'a'"):
        check_answers("f", {"a": []}, asked, ())
