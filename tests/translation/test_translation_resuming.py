"""A translation run goes on with the settings of its folder, also where 0.7.5 began it."""

import json
from pathlib import Path
from typing import Any

import pytest
from parsers import parse_translation_arguments

from hictl_hf.errors import BadInput
from hictl_hf.translation.corpus import Direction, Pair
from hictl_hf.translation.resuming import (
    DECISIVE,
    NEW,
    RENAMED,
    decisive_settings,
    is_finished,
    record_settings,
    settings_of,
)


def arguments(folder: Path, *more: str) -> Any:
    pairs = ["--train_file", "a.{en,de}", "--source_lang", "en", "--target_lang", "de"]
    return parse_translation_arguments(["--model_name_or_path", "x", *pairs, "--output_dir", str(folder), *more])


OF_0_10 = {  # today's names of arguments -> those until 0.10; it had two for a model, of which one was None
    "model_name_or_path": "encoder", "config_overrides": "model_config", "train_file": "train",
    "validation_file": "validation", "test_file": "test", "max_seq_length": "max_length", "num_beams": "beams",
}  # fmt: skip
ADDED = ("tokenizer_name", "model_revision", "dataset_name", "dataset_config_name", "max_train_samples")


def of_0_10(folder: Path, *more: str) -> dict[str, Any]:
    """`settings.json` as release 0.10 wrote it."""
    today = settings_of(arguments(folder, *more))
    return {"model": None, **{OF_0_10.get(name, name): today[name] for name in today if name not in {*ADDED, *NEW}}}


def of_0_7_5(folder: Path, *more: str) -> dict[str, Any]:
    """`settings.json` as release 0.7.5 wrote it with transformers before 5.23, which knew one of two names."""
    return {name: value for name, value in of_0_10(folder, *more).items() if name not in {*RENAMED, *NEW}}


def test_a_run_that_0_10_began_is_continued_with_its_settings_only(tmp_path: Path) -> None:
    before = of_0_10(tmp_path)
    assert before["encoder"] == "x" and before["beams"] == 5 and "model_name_or_path" not in before
    (tmp_path / "settings.json").write_text(json.dumps(before), "utf-8")
    assert not is_finished(arguments(tmp_path))
    assert not is_finished(arguments(tmp_path, "--do_train", "--preprocessing_num_workers", "2"))
    for more, told in (
        (["--max_seq_length", "60"], "max_seq_length was 512 and is 60"),
        (["--max_train_samples", "9"], "max_train_samples was None and is 9"),
        (["--model_revision", "v1"], "model_revision was 'main' and is 'v1'"),
        (["--model_name_or_path", "y"], "model_name_or_path was 'x' and is 'y'"),
    ):
        with pytest.raises(BadInput, match=f"other settings, by hictl_hf 0.7 or older: {told}; continue"):
            is_finished(arguments(tmp_path, *more))
    (tmp_path / "settings.json").write_text(json.dumps({**before, "encoder": None, "model": "x"}), "utf-8")
    assert not is_finished(arguments(tmp_path))


def test_a_run_that_0_7_5_began_is_continued_with_its_settings_only(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(json.dumps(of_0_7_5(tmp_path)), "utf-8")
    assert not is_finished(arguments(tmp_path)) and not is_finished(arguments(tmp_path, "--save_total_limit", "9"))
    with pytest.raises(BadInput, match=r"by hictl_hf 0\.7 or older: num_beams was 5 and is 4"):
        is_finished(arguments(tmp_path, "--num_beams", "4"))


def test_steps_that_have_no_effect_may_be_others(tmp_path: Path) -> None:
    best = ("--validation_file", "b.{en,de}", "--eval_strategy", "steps", "--save_strategy", "best")
    record_settings(arguments(tmp_path, *best))
    before = json.loads((tmp_path / "settings.json").read_text("utf-8"))
    (tmp_path / "settings.json").write_text(json.dumps({**before, "save_steps": 50}), "utf-8")  # as 0.19 recorded it
    assert not is_finished(arguments(tmp_path, *best))


def test_a_recorded_run_is_finished_when_it_has_results(tmp_path: Path) -> None:
    record_settings(arguments(tmp_path))
    assert not is_finished(arguments(tmp_path))
    (tmp_path / "results.json").write_text("{}", "utf-8")
    assert is_finished(arguments(tmp_path))


@pytest.mark.parametrize("written", ["", "[]", '{"source_lang": 5}', '{"seed": '])
def test_settings_that_are_damaged_are_named(tmp_path: Path, written: str) -> None:
    (tmp_path / "settings.json").write_text(written, "utf-8")
    with pytest.raises(BadInput, match="settings.json: cannot be read .*; allowed is the settings of a run as JSON"):
        is_finished(arguments(tmp_path))


def test_the_folder_of_another_kind_of_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}", "utf-8")
    with pytest.raises(BadInput, match="holds the files of another kind of run"):
        is_finished(arguments(tmp_path))


def test_a_folder_that_is_no_part_of_a_run_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.py").write_text("", "utf-8")
    with pytest.raises(BadInput, match="model: is there, and the run would replace it; choose another"):
        is_finished(arguments(tmp_path))
    args = arguments(tmp_path)
    args.train_file = []
    assert not is_finished(args)  # a run that only tests saves no model
    record_settings(arguments(tmp_path))
    assert not is_finished(arguments(tmp_path))  # of a run that ended while it was saved


def test_languages_are_the_same_however_they_are_written(tmp_path: Path) -> None:
    record_settings(arguments(tmp_path))
    before = json.loads((tmp_path / "settings.json").read_text("utf-8"))
    assert before["source_lang"] == ["en"]
    (tmp_path / "settings.json").write_text(json.dumps({**before, "source_lang": ["eng"]}), "utf-8")
    assert not is_finished(arguments(tmp_path))
    assert not is_finished(arguments(tmp_path, "--source_lang", "eng"))
    with pytest.raises(BadInput, match=r"source_lang was \[.en.\] and is \[.fr.\]"):
        is_finished(arguments(tmp_path, "--source_lang", "fr"))


def test_a_checkpoint_is_resumed_with_what_its_best_state_was_chosen_by_if_there_is_one(tmp_path: Path) -> None:
    pairs = [Pair("a", "A", Direction("en", "de"), "x:1")]
    plain = decisive_settings(arguments(tmp_path), pairs)
    assert plain.keys() == {*DECISIVE, "processes"}
    assert decisive_settings(arguments(tmp_path, "--metric", "chrf", "--num_beams", "2"), []) == plain
    best = ("--validation_file", "b.{en,de}")
    found = decisive_settings(arguments(tmp_path, *best), pairs)
    assert found.keys() - plain.keys() == {"metric", "search", "hash of the validation pairs"}
    for more, name in (
        (["--metric", "chrf"], "metric"),
        (["--multi_bleu", '{"lowercase": true}'], "metric"),
        (["--num_beams", "2"], "search"),
    ):
        other = decisive_settings(arguments(tmp_path, *best, *more), pairs)
        assert [key for key in found if found[key] != other[key]] == [name]
    for changed in ({"source": "b"}, {"target": "B"}):
        other = decisive_settings(arguments(tmp_path, *best), [pairs[0]._replace(**changed)])
        assert [key for key in found if found[key] != other[key]] == ["hash of the validation pairs"]
