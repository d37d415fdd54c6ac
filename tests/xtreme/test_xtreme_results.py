"""Typed results of XTREME keep what a run writes, and read the files of 0.7.5."""

import json
from typing import Any

import pytest

from hictl_hf.errors import BadInput
from hictl_hf.reports.results import from_json, to_json
from hictl_hf.xtreme.results import Candidate, LayerSweep, ModelChoice, XtremeResults

CANDIDATE = {
    "folder": "00-lr2e-05-batch32-seed42", "learning_rate": 2e-05, "batch_size": 32, "epochs": 10, "max_length": 128,
    "seed": 42, "dev": 83.25, "trained_on": {"languages": ["en"], "rows": 24},
}  # fmt: skip
CHOICE = {"chosen": CANDIDATE, "candidates": [CANDIDATE], "languages": ["en"], "rows": 24, "select_on": "english dev"}
OF_0_7_5: dict[str, Any] = {  # as release 0.7.5 wrote it
    "encoder": "xlm-roberta-base", "setting": "zero-shot", "size": "base", "version": "0.7.5",
    "command": "python run_xtreme.py --model_name_or_path xlm-roberta-base", "seed": [1, 2],
    "tasks": {
        "panx": {
            "title": "NER", "group": "tagging", "metrics": ["f1"],
            "languages": {"en": {"f1": 80.5, "precision": 80.0, "recall": None}, "de": None},
            "signatures": {"en": "task:panx|language:en"}, "missing": {"zh": "no file panx/test-XX.tsv"},
            "train": "en, 24 rows", "model_selection": "english dev", "candidates": [CANDIDATE], "chosen": CANDIDATE,
        },
        "pawsx": {
            "title": "PAWS-X", "group": "classification", "metrics": ["accuracy"],
            "languages": {"en": {"accuracy": 90.0}}, "signatures": {}, "missing": {}, "note": "trial: scored on dev",
            "train": "en, 24 rows; de, 24 rows", "model_selection": "last state",
            "models": {"pawsx-en": CHOICE, "pawsx-de": CHOICE | {"select_on": None}},
        },
        "tatoeba": {
            "title": "Tatoeba", "group": "retrieval", "metrics": ["accuracy"], "languages": {"de": {"accuracy": 50.0}},
            "signatures": {"de": "task:tatoeba|pooling:first token"}, "missing": {},
            "sweep": {"split": "test", "languages": {"de": {"mean": [1.0, 50.0], "first token": [2.0, None]}}},
            "layers": {"mean": [1.0, 50.0], "first token": [2.0, None]}, "other_direction": {"de": 48.5},
        },
    },
}  # fmt: skip


def test_results_of_0_7_5_are_read_with_todays_names_of_poolings() -> None:
    results = XtremeResults.from_dict(OF_0_7_5)
    assert results.name == "xlm-roberta-base, zero-shot" and results.seed == [1, 2]
    tatoeba, pawsx = results.tasks["tatoeba"], results.tasks["pawsx"]
    assert tatoeba.layers == {"mean": [1.0, 50.0], "cls": [2.0, None]}
    assert tatoeba.sweep and tatoeba.sweep.languages == {"de": tatoeba.layers} and tatoeba.sweep.mean == tatoeba.layers
    assert pawsx.models and pawsx.models["pawsx-de"].select_on is None and pawsx.candidates is None


def test_keys_and_values_stay_as_they_were_written() -> None:
    written = json.loads(json.dumps(XtremeResults.from_dict(OF_0_7_5).as_dict()))
    assert written["schema_version"] == XtremeResults.SCHEMA_VERSION
    for key in OF_0_7_5.keys() - {"tasks"}:
        assert written[key] == OF_0_7_5[key]
    for name in ("panx", "pawsx"):
        assert written["tasks"][name] == OF_0_7_5["tasks"][name]
    assert written["tasks"]["tatoeba"].keys() == OF_0_7_5["tasks"]["tatoeba"].keys()
    assert XtremeResults.from_dict(written).as_dict() == written


def test_a_record_of_a_model_is_read_as_it_was_written() -> None:
    assert to_json(from_json(ModelChoice, CHOICE)) == CHOICE
    candidate = from_json(Candidate, CANDIDATE)
    numbers = {"learning_rate": 2e-05, "batch_size": 32, "epochs": 10, "max_length": 128, "seed": 42, "dev": 83.25}
    assert candidate.numbers == numbers and list(candidate.numbers) == list(numbers)


def test_layers_are_means_over_languages_worked_by_hand() -> None:
    languages = {"de": {"mean": [None, 50.0, 1.0]}, "fr": {"mean": [3.0, 70.0, 2.0]}}
    assert LayerSweep(split="dev", languages=languages).mean == {"mean": [None, 60.0, 1.5]}  # type: ignore[arg-type]


def test_a_later_schema_is_refused() -> None:
    with pytest.raises(BadInput, match="schema_version is 2; allowed is 1"):
        XtremeResults.from_dict(XtremeResults.from_dict(OF_0_7_5).as_dict() | {"schema_version": 2})
