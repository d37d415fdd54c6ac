"""What a run says at its end: the file, the table, and results for the tests of the page and the card."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from hictl_hf.files import write_json
from hictl_hf.reports.results import comparison_table, retrieval_table

RESULTS: dict[str, Any] = {
    "retrieval": {
        "untrained": 9.0,
        "hictl": 52.5,
        "per_language": {
            "sw": {"untrained": 10.0, "hictl": 5.0, "sentences": 250},
            "de": {"untrained": 8.0, "hictl": 100.0, "sentences": 1000},
        },
        "protocol": {
            "metric": "nearest-neighbour accuracy",
            "untrained": {"layer": 0, "mode": "mean"},
            "hictl": {"layer": 4, "mode": "projection"},
            "selected_on": "dev",
        },
    },
    "pairs": 91234,
    "languages": 2,
    "language_codes": ["de", "en", "sw"],
    "train_seconds": 341.2,
    "history": [{"step": 10, "lm_loss": 3.25, "negatives_per_anchor": 126}, {"step": 20, "lm_loss": 2.125}],
    "evaluations": [{"step": 10, "retrieval": 20.1}],
    "corpus": {"kept": {"en-de": 90000, "en-sw": 1234}, "skipped": {"duplicate": 12}},
    "settings": {
        "config": {"lm_weight": 1.0, "word_weight": 0, "sentence_temperature": 0.05},
        "training": {"seed": 42},
    },
    "versions": {"torch": "2.13.0"},
    "seed": 42,
    "command": "python run_pretraining.py --corpus corpus.jsonl",
    "data_hash": "sha256:abc",
}
INCOMPLETE: dict[str, dict[str, Any]] = {
    missing: {key: value for key, value in RESULTS.items() if key != missing} for missing in RESULTS
} | {"all": {}}
ATTACK = '"><script>alert(1)</script>'
ATTACKED: dict[str, Any] = {
    **RESULTS,
    "retrieval": {"hictl": 1.0, "per_language": {ATTACK: {"untrained": 1.0, "hictl": 1.0}}},
    "corpus": {"kept": {ATTACK: 1}, "skipped": {ATTACK: 1}},
    "settings": {ATTACK: {ATTACK: ATTACK}},
    "versions": {ATTACK: ATTACK},
    "command": ATTACK,
    "before_label": ATTACK,
    "data_hash": ATTACK,
}


def test_json_keeps_the_order_of_keys_and_writes_nan_as_null(tmp_path: Path) -> None:
    path = write_json(tmp_path / "new" / "results.json", {"b": [1.5, math.nan], "a": {"λ": -math.inf}})
    assert path.read_text(encoding="utf-8").startswith('{\n  "b"')
    assert json.loads(path.read_text(encoding="utf-8")) == {"b": [1.5, None], "a": {"λ": None}}


def test_a_value_that_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = write_json(tmp_path / "results.json", {"score": 1})
    with pytest.raises(TypeError):
        write_json(path, {"score": object()})
    assert json.loads(path.read_text()) == {"score": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_json(tmp_path / "results.json", {"score": 1})

    def fail(*paths: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("hictl_hf.files.os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_json(path, {"score": 2})
    assert json.loads(path.read_text()) == {"score": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_the_table_is_aligned_best_first_and_ends_with_the_mean() -> None:
    assert retrieval_table(RESULTS).splitlines() == [
        "language  sentences  before  after   gain",
        "-----------------------------------------",
        "de            1,000     8.0  100.0  +92.0",
        "sw              250    10.0    5.0   -5.0",
        "-----------------------------------------",
        "mean          1,250     9.0   52.5  +43.5",
    ]


def test_the_mean_is_taken_over_languages_when_it_was_not_recorded() -> None:
    retrieval = {"per_language": RESULTS["retrieval"]["per_language"]}
    assert retrieval_table({"retrieval": retrieval}) == retrieval_table(RESULTS)


def test_runs_are_compared_by_their_means_in_the_order_given() -> None:
    runs = {"hictl": RESULTS, "lm": {"retrieval": {"untrained": 9.0, "hictl": 4.5}}}
    assert comparison_table(runs).splitlines() == [
        "run    before   after    gain",
        "hictl     9.0    52.5   +43.5",
        "lm        9.0     4.5    -4.5",
    ]


@pytest.mark.parametrize("missing", INCOMPLETE)
def test_the_table_survives_a_missing_key(missing: str) -> None:
    assert retrieval_table(INCOMPLETE[missing])
