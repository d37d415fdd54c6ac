"""A submission is scored as by XTREME's own evaluate.py: a small one worked by hand, and one that it was run on."""

import json
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from toy_files import write

from hictl_hf.errors import BadInput
from hictl_hf.xtreme.scores import MissingFile, score_submission
from hictl_hf.xtreme.tasks import TASKS

LABELS = {  # files of every kind, and predictions for them; worked by hand in VALUES
    "xnli": "neutral\nentailment\nentailment\ncontradiction\n",
    "pawsx": "1\n0\n",
    "udpos": "NOUN\nNOUN\nVERB\n\nSCONJ\nSCONJ\n\n",
    "panx": "B-PER\nI-PER\nO\n\nI-LOC\n\n",
    "xquad": {"a": ["the red house", "house"], "b": ["दिल्ली।"]},
    "mlqa": {"a": ["red house"], "b": ["x"]},
    "tydiqa": {"a": ["red house"], "b": ["x"]},
    "bucc2018": "de-1\ten-1\nde-2\ten-2\n",
    "tatoeba": "1\n0\n2\n",
}
PREDICTIONS = {
    "xnli": "neutral  \r\nentailment\r\nneutral\r\ncontradiction",
    "pawsx": "1.0\n0\n",
    "udpos": "NOUN\nVERB\nVERB\n\nSCONJ\nSCONJ\n",
    "panx": "B-PER\nI-PER\nO\n\nB-LOC\n\n",
    "xquad": {"a": "a house", "b": "दिल्ली"},
    "mlqa": {"a": "house?"},
    "tydiqa": {"a": "red house", "c": "x"},
    "bucc2018": "de-2\ten-2\nde-1\ten-2\nde-2\ten-2\n",
    "tatoeba": "1\n0\n0\n",
}
VALUES: dict[str, dict[str, float]] = {
    "xnli": {"accuracy": 75},
    "pawsx": {"accuracy": 50},
    "udpos": {"f1": 50, "precision": 50, "recall": 50},  # NOUN NOUN and VERB are wrong, each SCONJ is right
    "panx": {"f1": 100, "precision": 100, "recall": 100},
    "xquad": {"f1": 50, "exact_match": 50},
    "mlqa": {"f1": 100 / 3, "exact_match": 0},
    "tydiqa": {"f1": 50, "exact_match": 50},
    "bucc2018": {"f1": 50, "precision": 50, "recall": 50},
    "tatoeba": {"accuracy": 200 / 3},
}
MEANS = {name: values.get("f1", values.get("accuracy", 0)) for name, values in VALUES.items()} | {"mlqa": 50 / 3}


def squad(answers: dict[str, list[str]]) -> str:
    questions = [
        {"id": name, "question": "?", "answers": [{"answer_start": 0, "text": text} for text in texts]}
        for name, texts in answers.items()
    ]
    return json.dumps({"data": [{"paragraphs": [{"context": "c", "qas": questions}]}]})


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Predictions and labels of all tasks, the same in every language."""
    for task in TASKS:
        for language in task.languages:
            name, label, prediction = f"test-{language}.{task.format.ending}", LABELS[task.name], PREDICTIONS[task.name]
            write(tmp_path / "labels" / task.name / name, label if isinstance(label, str) else squad(label))
            text = prediction if isinstance(prediction, str) else json.dumps(prediction)
            write(tmp_path / "predictions" / task.name / name, text)
    return tmp_path / "predictions", tmp_path / "labels"


def test_only_the_chosen_tasks_are_scored_and_looked_for(folders: tuple[Path, Path]) -> None:
    (folders[0] / "xnli/test-ar.tsv").unlink()
    chosen = [task for task in TASKS if task.name == "pawsx"]
    assert list(score_submission(*folders, chosen)["detailed"]) == ["pawsx"]


def test_a_submission_worked_by_hand(folders: tuple[Path, Path]) -> None:
    scores = score_submission(*folders)
    assert list(scores) == ["overall", "detailed"] and len(scores["detailed"]) == 9
    for task in TASKS:
        found = scores["detailed"][task.name]
        for metric, value in VALUES[task.name].items():
            assert found[metric] == pytest.approx(dict.fromkeys(task.languages, value))
            assert found[f"avg_{metric}"] == pytest.approx(value)
        assert found["avg_metric"] == pytest.approx(MEANS[task.name])
        assert set(found) == {*VALUES[task.name], *(f"avg_{metric}" for metric in VALUES[task.name]), "avg_metric"}
    groups = {"classification": 62.5, "tagging": 75, "qa": 350 / 9, "retrieval": 175 / 3}
    assert scores["overall"] == pytest.approx({"all_task": fmean(MEANS.values()), **groups})
    assert json.loads(json.dumps(scores)) == scores


def test_languages_count_equally(folders: tuple[Path, Path]) -> None:
    predictions, labels = folders
    shutil.copy(labels / "pawsx" / "test-ko.tsv", predictions / "pawsx" / "test-ko.tsv")
    scores = score_submission(predictions, labels)["detailed"]["pawsx"]
    assert scores["accuracy"] == {**dict.fromkeys(["de", "en", "es", "fr", "ja", "zh"], 50), "ko": 100}
    assert scores["avg_accuracy"] == scores["avg_metric"] == pytest.approx(50 + 50 / 7)


@pytest.mark.parametrize("missing", [0, 1], ids=["predictions", "labels"])
def test_a_task_that_is_missing_leaves_out_its_group_and_the_overall_mean(
    folders: tuple[Path, Path], missing: int
) -> None:
    complete = score_submission(*folders)
    shutil.rmtree(folders[missing] / "bucc2018")
    scores = score_submission(*folders)
    assert list(scores["overall"]) == ["classification", "tagging", "qa"]
    assert set(complete["detailed"]) - set(scores["detailed"]) == {"bucc2018"}
    assert all(complete["detailed"][name] == values for name, values in scores["detailed"].items())


@pytest.mark.parametrize("missing", [0, 1], ids=["predictions", "labels"])
def test_a_language_that_is_missing_is_an_error(folders: tuple[Path, Path], missing: int) -> None:
    path = folders[missing] / "panx" / "test-my.tsv"
    path.unlink()
    with pytest.raises(FileNotFoundError) as caught:  # what the official code raises
        score_submission(*folders)
    assert isinstance(caught.value, BadInput) and isinstance(caught.value, MissingFile)
    assert str(caught.value).startswith(f"{path}: does not exist; allowed is a file for every language")
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    with pytest.raises(MissingFile, match=r"test-ar.tsv: does not exist \(and 39 others\)"):
        score_submission(*folders)


def test_all_files_are_looked_for_before_one_is_read(folders: tuple[Path, Path]) -> None:
    write(folders[0] / "xnli" / "test-ar.tsv", "")
    (folders[1] / "tatoeba" / "test-zh.tsv").unlink()
    with pytest.raises(MissingFile, match="tatoeba"):
        score_submission(*folders)


def test_other_files_and_folders_are_ignored(folders: tuple[Path, Path]) -> None:
    complete = score_submission(*folders)
    for folder in folders:
        write(folder / "xnli" / "test-xx.tsv", "")
        write(folder / "xcopa" / "test-en.tsv", "")
    assert score_submission(str(folders[0]), str(folders[1])) == complete


def test_folders_without_a_task_in_common_are_an_error(folders: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"^{tmp_path}: has no folder of a task that .*; allowed are xnli, pawsx"):
        score_submission(tmp_path, folders[1])


# What does not fit its labels: the official code has an AssertionError for the first three, a ValueError for the last.
@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("predictions/xnli/test-de.tsv", "neutral\nneutral\nneutral\nneutral\n\n", "has 5 examples, but .* has 4"),
        ("predictions/tatoeba/test-de.tsv", "1\n0\n", "has 2 examples, but .* has 3"),
        ("predictions/panx/test-de.tsv", "O\nO\nO\n\n", "has 1 examples, but .* has 2"),
        ("labels/mlqa/test-de.json", squad({"a": ["x"], "b": []}), "cannot be scored: question 'b' has no gold"),
        ("labels/pawsx/test-de.tsv", "a\tb\t1\nc\td\t0\n", r"has the label 'a\\tb\\t1'; allowed are 0, 1"),
        ("labels/panx/test-de.tsv", "O\nB-MISC\n\nO\n", "has the label 'B-MISC'; allowed are B-LOC"),
    ],
)
def test_what_does_not_fit_its_labels_is_an_error(
    folders: tuple[Path, Path], tmp_path: Path, path: str, text: str, message: str
) -> None:
    write(tmp_path / path, text)
    with pytest.raises(BadInput, match=f"^{tmp_path / path}: {message}"):
        score_submission(*folders)


def test_predictions_that_cannot_be_right_and_tasks_left_out_are_logged(
    folders: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    write(folders[0] / "xnli" / "test-de.tsv", "2\n1\nneutral\n0\n")
    shutil.rmtree(folders[1] / "bucc2018")
    scores = score_submission(*folders)["detailed"]
    assert scores["xnli"]["accuracy"]["de"] == 0 and scores["tydiqa"]["f1"]["en"] == 50
    logged = [record.getMessage().replace(f"{folders[0].parent}/", "") for record in caplog.records]
    wrong = "count as wrong, such as"
    assert logged[0] == "bucc2018: not scored, there is no folder labels/bucc2018"
    count = f"predictions/xnli/test-de.tsv: 3 of 4 predictions are no label of the task and {wrong} '2'; "
    assert f"{count}allowed are contradiction, entailment, neutral" in logged
    count = f"predictions/tydiqa/test-en.json: has no answer to 1 of 2 questions, which {wrong} 'b'; "
    assert f"{count}1 answers are to others" in logged
    assert not any("xquad" in line or "udpos" in line for line in logged)


def test_a_chosen_task_that_neither_folder_has_is_logged(
    folders: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    for folder in folders:
        shutil.rmtree(folder / "panx")
    score_submission(*folders, [task for task in TASKS if task.name in ("panx", "xquad")])
    assert [record.getMessage() for record in caplog.records] == [
        f"panx: not scored, there is no folder {folders[0]}/panx and no {folders[1]}/panx"
    ]


def test_a_truncated_sentence_is_scored_and_logged(
    folders: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = folders[0] / "panx" / "test-de.tsv"
    write(path, "B-PER\nI-PER\n\nB-LOC\n\n")
    scores = score_submission(*folders)["detailed"]["panx"]
    assert scores["f1"]["de"] == 50 and scores["f1"]["en"] == 100  # of what follows the place is another
    [logged] = [message for message in caplog.messages if message.startswith(str(path))]
    assert logged.startswith(
        f"{path}:1: has 2 tags in sentence 1; allowed is one for each of its 3 words; as officially"
    )
    caplog.clear()
    write(path, "B-PER\nI-PER\nO\n\nB-LOC\nO\n\n")
    score_submission(*folders)
    assert f"{path}:5: has 2 tags in sentence 2; allowed is one for each of its 1 words" in caplog.text


OFFICIAL: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "xtreme_cases" / "submission.json").read_text("utf-8")
)


def test_a_submission_gets_the_scores_of_the_official_code(tmp_path: Path) -> None:
    for side, files in OFFICIAL["files"].items():
        for name, text in files.items():
            write(tmp_path / side / name, text)
    scores = score_submission(tmp_path / "predictions", tmp_path / "labels")
    assert scores["overall"] == pytest.approx(OFFICIAL["overall"], abs=1e-9)
    assert scores["detailed"].keys() == OFFICIAL["detailed"].keys() and len(scores["detailed"]) > 2
    for task, expected in OFFICIAL["detailed"].items():
        assert scores["detailed"][task].keys() == expected.keys()
        for name, values in expected.items():
            assert scores["detailed"][task][name] == pytest.approx(values, abs=1e-9)
