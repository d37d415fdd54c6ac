"""A run is continued with the settings it was begun with, whichever release stored them, or refused in one line."""

import json
from pathlib import Path

import pytest

from hictl_hf.errors import BadInput
from hictl_hf.training.fingerprint import (
    VERSION,
    differences,
    refuse_changes,
    refuse_other_settings,
    remember_settings,
)
from hictl_hf.version import __version__


def test_settings_that_were_stored_are_the_same_and_others_are_named(tmp_path: Path) -> None:
    file = tmp_path / "run" / "settings.json"
    settings = {"seed": 1, "layers": (1, 2), "model": {"size": 4}, "name": None}
    assert not refuse_other_settings(file, settings)
    remember_settings(file, settings)
    assert json.loads(file.read_text()) == {**settings, "layers": [1, 2], VERSION: __version__}
    assert refuse_other_settings(file, settings)
    assert refuse_other_settings(file, {"seed": 1})  # what is no longer asked for is not compared
    with pytest.raises(BadInput) as refused:
        refuse_other_settings(file, {"seed": 2, "layers": [1, 3], "model": {"size": 4, "deep": True}, "new": 5}, "stop")
    assert str(refused.value) == (
        f"{file.parent}: was begun with other settings, by hictl_hf {__version__}: seed was 1 and is 2; "
        "layers was [1, 2] and is [1, 3]; model.deep was None and is True; new was None and is 5; stop"
    )


def test_differences_within_dictionaries_are_named_by_their_place() -> None:
    assert [*differences({"a": {"b": {"c": 1, "d": 2}}}, {"a": {"b": {"c": 1}}})] == ["a.b.d was 2 and is None"]
    assert [*differences({"a": {"b": 1}}, {"a": None})] == ["a was {'b': 1} and is None"]
    [long] = differences({"a": ""}, {"a": "x" * 99})
    assert long == f"a was '' and is '{'x' * 56}..."


def test_settings_of_an_older_release_are_compared_under_the_names_of_this_one() -> None:
    stored = {"text_mask_rate": 0.2, "pair_mask_rate": 0.3, "pooling": ["first token", 2], "seed": 1}
    now = {"mlm_probability": 0.2, "tlm_probability": 0.3, "pooling": ("cls", 2), "seed": 1}
    refuse_changes("runs/a", stored, now)
    old, new = ({"model_config": {"embedding_pooling": name}} for name in ("first token", "cls"))
    refuse_changes("runs/a", old, new)
    refuse_changes("runs/a", old, old)
    with pytest.raises(BadInput, match="by hictl_hf 0.7 or older: mlm_probability was 0.2 and is 0.15; continue with"):
        refuse_changes("runs/a", stored, {**now, "mlm_probability": 0.15})


def test_arguments_of_0_10_are_compared_under_todays_names() -> None:
    """In pre-training; the other commands are in their own tests. Mining has a setting "model" today."""
    stored = {"model_config": {"vocab_size": 9}, "max_length": 60, "seed": 1, VERSION: "0.10.0"}
    now = {"config_overrides": {"vocab_size": 9}, "max_seq_length": 60, "config_name": None, "seed": 1}
    refuse_changes("runs/a", stored, now)
    for name, value, told in (
        ("max_seq_length", 61, "max_seq_length was 60 and is 61"),
        ("config_overrides", {}, r"config_overrides.vocab_size was 9 and is None"),
        ("config_name", "a", "config_name was None and is 'a'"),
    ):
        with pytest.raises(BadInput, match=f"by hictl_hf 0.10.0: {told}; continue"):
            refuse_changes("runs/a", stored, {**now, name: value})
    with pytest.raises(BadInput, match="model was 'a' and is 'b'; continue"):
        refuse_changes("runs/a", {"model": "a"}, {"model": "b"})


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    for text in ("{", "[1]"):
        file.write_text(text)
        with pytest.raises(BadInput, match=r"settings.json: cannot be read .* Remove .* to begin anew"):
            refuse_other_settings(file, {"seed": 1})
