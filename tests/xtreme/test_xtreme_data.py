"""The examples of a task: which splits are read, which languages are missing, and what a model may see of them."""

from pathlib import Path

import pytest
from datasets import Dataset

from hictl_hf.errors import BadInput
from hictl_hf.retrieval.bitext import Bitext
from hictl_hf.xtreme.data import (
    DataSource,
    Missing,
    Splits,
    contents,
    cut,
    read_task,
    references_of,
    without_references,
)
from hictl_hf.xtreme.tasks import TASKS

TABLE = {task.name: task for task in TASKS}
ROWS = Dataset.from_dict({"words": [["a"], ["b"], ["c"], ["d"]], "tags": [["O"]] * 4})
BITEXT = Bitext(["a"], ["b"], ["0"], ["0"], frozenset({("0", "0")}))


@pytest.mark.parametrize(("spec", "expected"), [("dev", "abcd"), ("dev[:50%]", "ab"), ("dev[1:3]", "bc")])
def test_a_specification_names_examples(spec: str, expected: str) -> None:
    assert [words[0] for words in cut(ROWS, spec, "panx en")["words"]] == list(expected)


def test_a_specification_without_examples_is_refused() -> None:
    with pytest.raises(BadInput, match="panx en: 'dev.9:.' names none of its 4 rows"):
        cut(ROWS, "dev[9:]", "panx en")
    with pytest.raises(BadInput, match="names a part of two corpora; allowed is a complete split, such as 'dev'"):
        cut(BITEXT, "dev[:1]", "tatoeba de")


def test_a_model_does_not_see_references() -> None:
    seen = without_references(BITEXT)
    assert isinstance(seen, Bitext) and seen.gold is None
    tagged = without_references(ROWS)
    assert isinstance(tagged, Dataset) and tagged.column_names == ["words"]


def test_references_come_from_the_folder_of_labels_or_from_the_examples(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bare = ROWS.remove_columns("tags").add_column("tags", [None] * 4)
    assert references_of(TABLE["panx"], ROWS, "de", None) == [["O"]] * 4
    assert references_of(TABLE["panx"], bare, "de", None) is None and not caplog.text
    assert references_of(TABLE["panx"], bare, "de", tmp_path) is None
    place = tmp_path / "panx/test-de.tsv"
    assert f"panx, de: will not be scored: there is no file of labels {place}" in caplog.text
    (tmp_path / "panx").mkdir()
    (tmp_path / "panx/test-de.tsv").write_text("B-LOC\n\n" * 4, "utf-8")
    assert references_of(TABLE["panx"], bare, "de", tmp_path) == [["B-LOC"]] * 4


def test_a_language_without_files_is_missing_with_the_reason(xtreme_folder: Path) -> None:
    source = DataSource(xtreme_folder)
    data = read_task(TABLE["panx"], source, "zero-shot", Splits(), ["en", "de", "fi"], "english", None)
    assert [*data.test] == ["en", "de"] and [*data.train] == ["en"] == [*data.dev]
    assert data.missing == {"fi": "no file panx/test-XX.tsv"} and data.references["de"]
    data = read_task(TABLE["panx"], source, "translate-train", Splits(), ["en", "de"], "english", None)
    assert [*data.test] == ["en"] and data.missing == {"de": "no file translate-train/translate_train.panx.txt"}
    with pytest.raises(Missing, match="panx, fi: no file panx/test-XX.tsv; add the file"):
        source.read(TABLE["panx"], "test", "fi")


@pytest.mark.parametrize(
    ("splits", "logged"),
    [
        (Splits("train[4:]", "train[:4]", "test"), []),
        (Splits("train[4:]", "dev", "train[:4]"), []),
        (Splits("train", "train[:4]", "test"), ["4 of the 4 examples to choose by, 'train[:4]', are also among"]),
        (
            Splits("train[:6]", "train[4:8]", "train[:9]"),
            ["2 of the 4 examples", "6 of the 9 examples"],
        ),
    ],
)
def test_examples_that_are_trained_on_and_chosen_by_or_scored_are_logged(
    splits: Splits, logged: list[str], xtreme_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read_task(TABLE["panx"], DataSource(xtreme_folder), "zero-shot", splits, ["en"], "english", None)
    messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(messages) == len(logged) and all(part in text for part, text in zip(logged, messages))


def test_a_question_is_the_same_by_whatever_id() -> None:
    """Those that are trained on are numbered."""
    one, other = (Dataset.from_dict({"id": [name], "question": ["?"], "context": ["a"]}) for name in ("0", "56be"))
    assert [*contents(one)] == [*contents(other)]


def test_parts_of_two_corpora_are_not_chosen_by_and_that_is_logged(
    xtreme_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, given = DataSource(xtreme_folder), ("zero-shot", Splits(select="dev[:50%]"), ["de"], "english", None)
    data = read_task(TABLE["bucc2018"], source, *given)
    assert caplog.messages[-1] == "bucc2018: all of dev is used, not 'dev[:50%]': there are no parts of two corpora"
    dev = data.dev["de"]
    assert isinstance(dev, Bitext) and len(dev.queries) == 12
    read_task(TABLE["tatoeba"], source, *given)  # has no dev
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
