"""A translation run goes on with the settings of its folder, also where 0.7.5 began it."""

import json
from pathlib import Path
from typing import Any

import pytest

from hictl_hf.errors import BadInput
from hictl_hf.translation.arguments import parse_translation_arguments
from hictl_hf.translation.resuming import NEW, RENAMED, is_finished, record_settings, settings_of


def arguments(folder: Path, *more: str) -> Any:
    pairs = ["--train", "a.{en,de}", "--source_lang", "en", "--target_lang", "de"]
    return parse_translation_arguments(["--encoder", "x", *pairs, "--output_dir", str(folder), *more])


def of_0_7_5(folder: Path, *more: str) -> dict[str, Any]:
    """`settings.json` as release 0.7.5 wrote it with transformers before 5.23, which knew one of two names."""
    return {
        name: value for name, value in settings_of(arguments(folder, *more)).items() if name not in {*RENAMED, *NEW}
    }


def test_a_run_that_0_7_5_began_is_continued_with_its_settings_only(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(json.dumps(of_0_7_5(tmp_path)), "utf-8")
    assert not is_finished(arguments(tmp_path)) and not is_finished(arguments(tmp_path, "--save_total_limit", "9"))
    with pytest.raises(BadInput, match=r"by hictl_hf 0\.7 or older: beams was 5 and is 4"):
        is_finished(arguments(tmp_path, "--beams", "4"))


def test_a_recorded_run_is_finished_when_it_has_results(tmp_path: Path) -> None:
    record_settings(arguments(tmp_path))
    assert not is_finished(arguments(tmp_path))
    (tmp_path / "results.json").write_text("{}", "utf-8")
    assert is_finished(arguments(tmp_path))


def test_the_folder_of_another_kind_of_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}", "utf-8")
    with pytest.raises(BadInput, match="holds the files of another kind of run"):
        is_finished(arguments(tmp_path))
