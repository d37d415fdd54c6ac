"""What is trained on shares no text with what is held out or guarded."""

import json
from pathlib import Path

import pytest

from hictl_hf.errors import BadInput
from hictl_hf.pretraining.arguments import parse_arguments
from hictl_hf.pretraining.corpora import Corpora, read_corpora


def write(path: Path, *languages: str, number: int = 12, word: str = "sentence") -> str:
    rows = [
        {"en": f"{word} {at}", language: f"{language} {word} {at}"} for language in languages for at in range(number)
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


def read(source: str, *flags: str) -> Corpora:
    return read_corpora(parse_arguments(["--train_file", source, "--held_out_sentences", "2", *flags]))


def test_guard_languages_leave_the_training_data_with_the_english_of_their_held_out_pairs(tmp_path: Path) -> None:
    corpora = read(write(tmp_path / "a.jsonl", "de", "sw"), "--guard_languages", "sw")
    assert corpora.train is not None and corpora.dev is not None
    assert corpora.guard_dev is not None and corpora.guard_test is not None
    assert {*corpora.train["y_lang"]} == {*corpora.dev["y_lang"]} == {"de"}
    assert {*corpora.guard_dev["y_lang"], *corpora.guard_test["y_lang"]} == {"sw"}
    assert len(corpora.guard_dev) == len(corpora.guard_test) == 2
    guarded = {*corpora.guard_dev["x"], *corpora.guard_test["x"]}
    assert guarded.isdisjoint({*corpora.train["x"], *corpora.dev["x"]})


def test_guard_data_is_of_any_language_and_never_trained_on(tmp_path: Path) -> None:
    guard = write(tmp_path / "guard.jsonl", "fr", number=4)  # English sides that train has, too
    corpora = read(
        write(tmp_path / "a.jsonl", "de"), "--guard_data", guard, "--cleaning", '{"languages": ["en", "de"]}'
    )
    assert corpora.train is not None and corpora.guard_dev is not None and corpora.guard_test is not None
    guarded = {*corpora.guard_dev["x"], *corpora.guard_test["x"]}
    assert len(guarded) == 4 and guarded.isdisjoint(corpora.train["x"])
    assert {*corpora.guard_dev["y_lang"]} == {"fr"}  # the languages of the training data are no limit


def test_a_sample_is_taken_of_what_is_left_to_train_on(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", "de", "sw")
    whole, sample = read(source), read(source, "--max_train_samples", "6")
    assert whole.train is not None and sample.train is not None and len(whole.train) > 6 == len(sample.train)
    assert {*sample.train["y_lang"]} == {"de", "sw"} and {*sample.train["x"]} <= {*whole.train["x"]}
    assert sample.report.skipped["beyond max_train_samples"] == len(whole.train) - 6
    assert sample.dev is not None and whole.dev is not None and sample.dev["x"] == whole.dev["x"]


def test_both_guards_are_one(tmp_path: Path) -> None:
    guard = write(tmp_path / "guard.jsonl", "fr", number=4, word="other")
    source = write(tmp_path / "a.jsonl", "de", "sw")
    corpora = read(source, "--guard_data", guard, "--guard_languages", "sw")
    assert corpora.guard_dev is not None and {*corpora.guard_dev["y_lang"]} == {"fr", "sw"}


def test_the_guard_changes_the_hash_of_the_data(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", "de")
    guard = write(tmp_path / "guard.jsonl", "fr", number=4, word="other")
    assert read(source).hash != read(source, "--guard_data", guard).hash


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        (["xx"], "guard_languages has xx, not in train_file; allowed are de, en, sw"),
        (["en"], "leaves no pairs to train on"),
        (["de", "sw"], "leaves no pairs to train on"),
    ],
)
def test_guard_languages_that_cannot_be_taken_out_are_refused(
    tmp_path: Path, languages: list[str], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        read(write(tmp_path / "a.jsonl", "de", "sw"), "--guard_languages", *languages)


def test_a_guard_needs_pairs_to_choose_by_and_others_to_score(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="guard_data is .*has no sentence pair to choose by"):
        read(write(tmp_path / "a.jsonl", "de"), "--guard_data", write(tmp_path / "g.jsonl", "fr", number=1))
