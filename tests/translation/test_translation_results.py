"""Typed results of a translation run keep what it writes, and read the files of 0.7.5."""

import json
from typing import Any

import pytest

from hictl_hf.errors import BadInput
from hictl_hf.translation.beam_search import BeamSearchConfig
from hictl_hf.translation.results import ChosenState, TranslationResults

OF_0_7_5: dict[str, Any] = {  # as release 0.7.5 wrote it
    "step": 2, "encoder": None, "model": "step1/model", "random_encoder": False,
    "rows": {"train": {"de-en": 160239}, "validation": {"de-en": 7283}, "test": {"de-en": 3}},
    "skipped": {"too long": 12}, "messages": ["train.de:7: empty"], "data_hash": "0123",
    "cut_sources": {"validation": 0, "test": 4}, "empty_lines": {"source": 1, "reference": 0},
    "target_vocabulary": {"size": 16123, "unknown_tokens": {"en": 5}, "tokens": {"en": 99}},
    "chosen": {"state": "step 20, the best on validation", "seconds": 7200.0, "validation": 31.0},
    "test": {"de-en": {"chrf": {"value": None, "signature": "x"}, "sacrebleu": {"value": 36.5, "signature": "y"}}},
    "decoding": {
        "beams": 5, "length_penalty": 1.0, "best": 1, "max_length_a": 1.2, "max_length_b": 10, "max_length": 200,
    },
    "history": [{"loss": 2.5, "step": 10}], "evaluations": [{"step": 10, "eval_sacrebleu": 30.0}],
    "settings": {"config": {"cls_bias": "dot"}, "training": {"metric": "multi-bleu", "target_lang": ["zh-Hans"]}},
    "versions": {"torch": "2.13.0"}, "seed": 42,
    "command": "python run_translation.py --model_name_or_path step1/model",
}  # fmt: skip


def test_results_of_0_7_5_are_read() -> None:
    results = TranslationResults.from_dict(OF_0_7_5)
    assert results.began_from == "step1/model" and results.metric == "multi-bleu"
    assert results.target_language("en-zh-Hans") == "zh-Hans" and results.target_language("en-de") == "de"
    assert results.rows.train == {"de-en": 160239} and results.test["de-en"]["sacrebleu"].value == 36.5
    assert results.chosen == ChosenState(state="step 20, the best on validation", seconds=7200.0, validation=31.0)
    assert results.decoding == BeamSearchConfig()


def test_keys_and_values_stay_as_they_were_written() -> None:
    written = json.loads(json.dumps(TranslationResults.from_dict(OF_0_7_5).as_dict()))
    decoding = {{"beams": "num_beams"}.get(name, name): value for name, value in OF_0_7_5["decoding"].items()}
    assert written == {**OF_0_7_5, "decoding": decoding, "schema_version": TranslationResults.SCHEMA_VERSION}
    assert TranslationResults.from_dict(written).as_dict() == written


def test_a_later_schema_is_refused() -> None:
    with pytest.raises(BadInput, match="schema_version is 2; allowed is 1"):
        TranslationResults.from_dict({**OF_0_7_5, "schema_version": 2})
