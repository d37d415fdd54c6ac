"""`hictl compare` recognises the kind of run; tables of XTREME and of translation are tested with their reports."""

import json
from pathlib import Path
from typing import Any

import pytest

from hictl_hf.cli.compare import main
from hictl_hf.errors import BadInput


def saved(folder: Path, results: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(results), "utf-8")
    return folder


def pretraining(before: float, after: float) -> dict[str, Any]:
    return {"retrieval": {"untrained": before, "hictl": after}, "history": [], "corpus": {}}


def test_runs_of_pretraining_by_the_names_of_their_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [saved(tmp_path / name, pretraining(1, after)) for name, after in (("a", 3), ("b/run", 4), ("c/run", 5))]
    main([str(folders[0]), *(str(folder / "results.json") for folder in folders[1:])])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert lines == [
        ["a", "1.0", "3.0", "+2.0"],
        [str(folders[1]), "1.0", "4.0", "+3.0"],
        [str(folders[2]), "1.0", "5.0", "+4.0"],
    ]


def test_two_results_files_of_one_folder_are_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "a", pretraining(1, 3))
    (folder / "old.json").write_text(json.dumps(pretraining(1, 2)), "utf-8")
    main([str(folder), str(folder / "old.json")])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [line[0] for line in lines] == [f"{folder}/results.json", f"{folder}/old.json"]


def test_a_run_without_held_out_pairs_has_no_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [saved(tmp_path / "a", pretraining(1, 3)), saved(tmp_path / "b", {"history": [], "corpus": {}})]
    main(list(map(str, folders)))
    assert [line.split() for line in capsys.readouterr().out.splitlines()[3:]] == [["b", "–", "–", "–"]]


def test_a_run_without_results_is_told_how_it_gets_them(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput,
        match=r"results.json: cannot be read .* by the same command, pre-training with --resume_from_checkpoint true, ",
    ):
        main([str(tmp_path)])


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({"protocol": {}}, r"other/results\.json: holds protocol; allowed is the results.json of translation, XTREME"),
        ([], "holds nothing; allowed is"),
        ([1, 2], r"other/results\.json: cannot be read"),
        ({"test": {}, "decoding": {}}, "is a run of translation, and .* of pre-training; allowed are runs of one kind"),
    ],
)
def test_what_is_no_run_of_the_same_kind_is_refused(results: Any, message: str, tmp_path: Path) -> None:
    folders = [saved(tmp_path / "a", pretraining(1, 2)), saved(tmp_path / "other", results)]
    with pytest.raises(BadInput, match=message):
        main(list(map(str, folders)))
