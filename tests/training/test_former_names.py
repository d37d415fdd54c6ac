"""Checkpoints of 0.7.5: their fingerprints are found under today's names, so other settings are refused."""

from types import SimpleNamespace
from typing import Any

import pytest

from hictl_hf.errors import BadInput
from hictl_hf.training.former_names import FormerNames
from hictl_hf.training.trainer import ExamplesFingerprint, SettingsFingerprint


def resume(saved: dict[str, Any], settings: dict[str, Any], rows: str = "abc") -> None:
    """What happens at the beginning of a training that resumes from a state with these callbacks."""
    args: Any = SimpleNamespace(output_dir="run")
    state = SimpleNamespace(stateful_callbacks=saved)
    renamed = FormerNames({"text_mask_rate": "mlm_probability"})
    for callback in (renamed, ExamplesFingerprint(rows), SettingsFingerprint(settings)):
        callback.on_train_begin(args, state, None)


def saved_by_0_7_5() -> dict[str, Any]:
    settings = {"text_mask_rate": 0.15, "seed": 5}
    return {
        "SameRows": {"args": {"rows": "abc"}, "attributes": {}},
        "SameSettings": {"args": {"settings": settings}, "attributes": {}},
    }


def test_a_run_of_0_7_5_is_continued_with_the_same_settings_only() -> None:
    resume(saved_by_0_7_5(), {"mlm_probability": 0.15, "seed": 5})
    with pytest.raises(BadInput, match="mlm_probability 0.15, not 0.5"):
        resume(saved_by_0_7_5(), {"mlm_probability": 0.5, "seed": 5})
    with pytest.raises(BadInput, match="seed 5, not 6"):
        resume(saved_by_0_7_5(), {"mlm_probability": 0.15, "seed": 6})
    with pytest.raises(BadInput, match="not those of its checkpoints .hash other, not abc"):
        resume(saved_by_0_7_5(), {"mlm_probability": 0.15, "seed": 5}, rows="other")


def test_a_state_of_today_and_a_new_run_are_left_as_they_are() -> None:
    today = {"SettingsFingerprint": {"args": {"settings": {"mlm_probability": 0.15}}, "attributes": {}}}
    resume(today, {"mlm_probability": 0.15})
    resume(saved := {}, {"mlm_probability": 0.15})
    assert saved == {}
