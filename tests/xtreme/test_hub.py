"""Every task comes from the Hub as from files, whatever the Hub did to it; what it does not have is refused."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value

from hictl_hf.errors import BadInput
from hictl_hf.retrieval.bitext import Bitext
from hictl_hf.xtreme.data import DataSource, Splits, TaskData, read_task
from hictl_hf.xtreme.hub import (
    TATOEBA_CODES,
    TYDIQA_LANGUAGES,
    UDPOS_LANGUAGES,
    load_bucc,
    load_mlqa,
    load_panx,
    load_pawsx,
    load_squad,
    load_tatoeba,
    load_tydiqa,
    load_udpos,
    load_xnli,
    load_xquad,
)
from hictl_hf.xtreme.tasks import TASKS

TEXT = Value("string")
TAGS = List(ClassLabel(names=["O", "B-PER", "I-PER"]))
NATIONAL_TAGS = List(ClassLabel(names=["NOUN", "X"]))


def questions(name: str, *answers: tuple[str, int], context: str = "A dog barks.") -> dict[str, Any]:
    texts, starts = [text for text, _ in answers], [start for _, start in answers]
    return {"id": name, "question": "?", "context": context, "answers": {"answer_start": starts, "text": texts}}


QUESTIONS = [
    questions("english-1-0", ("dog", 1), ("A dog", 0)),
    questions("korean-1-0", ("barks", 6)),
    questions("english-2-0", ("dog", 2)),
]
XNLI = [{"language": language, "sentence1": "a", "sentence2": language, "gold_label": "neutral"} for language in "abab"]
PAIR = {"premise": "a", "hypothesis": "b", "label": 2}
HUB: dict[tuple[str, str, str], Dataset] = {
    ("google/xtreme", "XNLI", "validation"): Dataset.from_list(XNLI),
    ("google/xtreme", "XNLI", "test"): Dataset.from_list([{**XNLI[0], "gold_label": "contradiction"}]),
    ("facebook/xnli", "de", "train"): Dataset.from_list(
        [PAIR, {**PAIR, "label": 0}],
        Features(premise=TEXT, hypothesis=TEXT, label=ClassLabel(names=["entailment", "neutral", "contradiction"])),
    ),
    ("facebook/xnli", "fr", "train"): Dataset.from_list([PAIR, {**PAIR, "label": 1}]),
    ("facebook/xnli", "es", "train"): Dataset.from_list(
        [PAIR, PAIR],
        Features(premise=TEXT, hypothesis=TEXT, label=ClassLabel(names=["contradiction", "entailment", "neutral"])),
    ),
    ("google-research-datasets/paws-x", "de", "validation"): Dataset.from_list(
        [{"id": 1, "sentence1": "a", "sentence2": "b", "label": 1}],
        Features(id=Value("int32"), sentence1=TEXT, sentence2=TEXT, label=ClassLabel(names=["0", "1"])),
    ),
    **{
        ("google-research-datasets/paws-x", language, split): Dataset.from_list(
            [{"sentence1": "a", "sentence2": language, "label": "0"}]
        )
        for language, split in (("en", "train"), ("en", "validation"), ("de", "train"), ("de", "test"))
    },
    ("google/xtreme", "udpos.Persian", "test"): Dataset.from_list(
        [{"tokens": ["a", "b"], "pos_tags": [1, 0]}], Features(tokens=List(TEXT), pos_tags=NATIONAL_TAGS)
    ),
    ("google/xtreme", "PAN-X.de", "test"): Dataset.from_list(
        [
            {"tokens": ["Ada", "L."], "ner_tags": [1, 2], "langs": ["de", "de"]},
            {"tokens": [], "ner_tags": [], "langs": []},
        ],
        Features(tokens=List(TEXT), ner_tags=TAGS, langs=List(TEXT)),
    ),
    ("google/xtreme", "XQuAD.de", "validation"): Dataset.from_list(QUESTIONS),
    ("google/xtreme", "MLQA.zh.zh", "validation"): Dataset.from_list(QUESTIONS[:1]),
    ("google/xtreme", "MLQA.zh.zh", "test"): Dataset.from_list(QUESTIONS[1:]),
    ("google/xtreme", "tydiqa", "train"): Dataset.from_list(QUESTIONS),
    ("google/xtreme", "tydiqa", "validation"): Dataset.from_list(QUESTIONS),
    ("google/xtreme", "SQuAD", "train"): Dataset.from_list([*QUESTIONS, questions("x", ("cow", 0))]),
    ("google/xtreme", "SQuAD", "validation"): Dataset.from_list(QUESTIONS[:2]),
    ("google/xtreme", "tatoeba.cmn", "validation"): Dataset.from_list(
        [{"source_sentence": f"{number}\n", "target_sentence": f" {word}\n"} for number, word in enumerate("bCa")]
    ),
}


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """`load_dataset` gives what `HUB` holds."""

    def load_dataset(name: str, config: str, split: str) -> Dataset:
        if (name, config, split) not in HUB:
            raise ConnectionError(f"Couldn't reach '{name}' on the Hub")
        return HUB[name, config, split]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)


def columns(dataset: Dataset, *names: str) -> list[list]:
    return [list(dataset[name]) for name in names]


# --- tasks ----------------------------------------------------------------------------------------------------------


def test_xnli_gives_the_rows_of_its_language_with_words_as_labels() -> None:
    assert columns(load_xnli("b", "dev"), "first", "second", "label") == [
        ["a"] * 2,
        ["b"] * 2,
        ["neutral"] * 2,
    ]
    assert columns(load_xnli("a", "test"), "second", "label") == [["a"], ["contradiction"]]


@pytest.mark.parametrize(
    ("language", "labels"),
    [("de", ["contradiction", "entailment"]), ("fr", ["contradiction", "neutral"]), ("es", ["neutral", "neutral"])],
)
def test_xnli_is_trained_on_another_dataset_whose_labels_are_numbers(language: str, labels: list[str]) -> None:
    rows = load_xnli(language, "train")
    assert columns(rows, "first", "second", "label") == [["a"] * 2, ["b"] * 2, labels]


def test_pawsx_comes_from_the_dataset_that_lost_no_rows() -> None:
    assert list(load_pawsx("de", "dev")) == [{"first": "a", "second": "b", "label": "1"}]
    assert columns(load_pawsx("en", "train"), "label") == [["0"]]


def test_tags_are_words_and_parts_of_speech_come_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert list(load_panx("de", "test")) == [
        {"words": ["Ada", "L."], "tags": ["B-PER", "I-PER"]},
        {"words": [], "tags": []},
    ]
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert list(load_udpos("fa", "test")) == [{"words": ["a", "b"], "tags": ["X", "NOUN"]}]
    assert "the words of treebanks" in caplog.text


def test_questions_keep_their_ids_and_answers_are_put_right() -> None:
    rows = load_xquad("de", "test")
    assert columns(rows, "id") == [[row["id"] for row in QUESTIONS]]
    assert rows[0]["answers"] == [{"text": "dog", "start": 2}, {"text": "A dog", "start": 0}]
    assert columns(load_mlqa("zh", "dev"), "id") == [["english-1-0"]]
    assert columns(load_mlqa("zh", "test"), "id") == [["korean-1-0", "english-2-0"]]


@pytest.mark.parametrize("form", ["lists in a dictionary", "dictionaries in a list"])
def test_both_forms_of_answers_are_read(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"text": ["dog", "A dog"], "answer_start": [2, 0]}
    if form == "dictionaries in a list":
        answers = [{"text": "dog", "answer_start": 2}, {"answer_start": 0, "text": "A dog"}]
    rows = Dataset.from_list([{**QUESTIONS[0], "answers": answers}, {**QUESTIONS[1], "answers": answers}])
    assert isinstance(rows[0]["answers"], dict if form == "lists in a dictionary" else list)
    monkeypatch.setitem(HUB, ("google/xtreme", "XQuAD.el", "validation"), rows)
    found = load_xquad("el", "test")
    assert found[1]["answers"] == [{"text": "dog", "start": 2}, {"text": "A dog", "start": 0}]


def test_tydiqa_has_all_languages_in_one_config_and_no_dev_set() -> None:
    assert columns(load_tydiqa("ko", "test"), "id") == [["korean-1-0"]]
    assert columns(load_tydiqa("en", "test"), "id") == [["english-1-0", "english-2-0"]]
    assert columns(load_tydiqa("en", "train"), "id") == [["0", "1"]]


def test_squad_is_read_for_training_and_for_choosing_a_model() -> None:
    assert columns(load_squad("en", "train"), "id") == [["0", "1", "2"]]  # of 4, one without its answer
    assert columns(load_squad("en", "dev"), "id") == [["english-1-0", "korean-1-0"]]


def test_tatoeba_is_sorted_as_xtreme_sorts_it() -> None:
    gold = frozenset({("0", "1"), ("1", "2"), ("2", "0")})
    ids = ["0", "1", "2"]
    assert load_tatoeba("zh", "test") == Bitext(["C", "a", "b"], ["0", "1", "2"], ids, ids, gold)


def test_every_language_has_one_name() -> None:
    for names, number in ((TYDIQA_LANGUAGES, 9), (UDPOS_LANGUAGES, 33)):
        assert len(names) == len(set(names.values())) == number
    assert len(TATOEBA_CODES) == len(set(TATOEBA_CODES.values())) == 36


# --- a run ----------------------------------------------------------------------------------------------------------


def read_for_a_run(task: str, language: str, setting: str = "zero-shot") -> TaskData:
    (row,) = (row for row in TASKS if row.name == task)
    return read_task(row, DataSource(None), setting, Splits(), [language], "english", None)


def test_the_translated_training_set_of_the_hub_is_read() -> None:
    data = read_for_a_run("pawsx", "de", "translate-train-all")
    assert {language: columns(rows, "second") for language, rows in data.train.items()} == {
        "en": [["en"]],
        "de": [["de"]],
    }
    assert list(data.test) == ["de"] and list(data.dev) == ["en"] and not data.missing


def test_what_the_hub_does_not_have_is_missing_and_ends_no_run() -> None:
    translated = read_for_a_run("panx", "de", "translate-train")
    assert not translated.test and "hub: has no split of PAN-X 'translated'" in translated.missing["de"]
    mined = read_for_a_run("bucc2018", "zh")
    assert not mined.test and "has the gold pairs alone" in mined.missing["zh"]
    answered = read_for_a_run("tydiqa", "ko")
    assert list(answered.test) == ["ko"] and answered.dev == {} == answered.missing  # or it would be chosen on the test
    searched = read_for_a_run("tatoeba", "zh")
    assert list(searched.test) == ["zh"] and searched.dev == {} == searched.missing  # Tatoeba has no dev set


# --- what is refused ------------------------------------------------------------------------------------------------

Load = Callable[[str, str], object]
REFUSED: dict[str, tuple[Load, str, str, str]] = {
    "bucc": (load_bucc, "zh", "test", ":google/xtreme:bucc18.zh: has the gold pairs alone; allowed are all"),
    "offline": (load_panx, "en", "test", ":google/xtreme:PAN-X.en:test: cannot be read (ConnectionError"),
    "xnli language": (load_xnli, "c", "dev", ":google/xtreme:XNLI:validation: has no row in 'c'; allowed are a,"),
    "xnli split": (load_xnli, "a", "dev2", ": has no split of XNLI 'dev2'; allowed are train, dev, test."),
    "pawsx split": (load_pawsx, "de", "valid", ": has no split of PAWS-X 'valid'; allowed are train, dev"),
    "udpos language": (load_udpos, "sw", "test", ": has no language of UD-POS 'sw'; allowed are af, ar, bg"),
    "udpos split": (load_udpos, "fa", "all", ": has no split of UD-POS 'all'; allowed are train, dev, test."),
    "panx split": (load_panx, "de", "validation", ": has no split of PAN-X 'validation'; allowed are train"),
    "squad language": (load_squad, "de", "train", ": has no language of SQuAD 'de'; allowed are en."),
    "squad split": (load_squad, "en", "test", ": has no split of SQuAD 'test'; allowed are train, dev."),
    "xquad split": (load_xquad, "de", "dev", ": has no split of XQuAD 'dev'; allowed are test."),
    "mlqa split": (load_mlqa, "zh", "train", ": has no split of MLQA 'train'; allowed are dev, test."),
    "tydiqa language": (load_tydiqa, "de", "train", ": has no language of TyDiQA-GoldP 'de'; allowed are ar"),
    "tydiqa split": (load_tydiqa, "ko", "dev", ": has no split of TyDiQA-GoldP 'dev'; allowed are train, test."),
    "tydiqa rows": (load_tydiqa, "sw", "test", ":google/xtreme:tydiqa:validation: has no row in 'swahi"),
    "tatoeba language": (load_tatoeba, "yo", "test", ": has no language of Tatoeba 'yo'; allowed are af, ar"),
    "tatoeba split": (load_tatoeba, "zh", "dev", ": has no split of Tatoeba 'dev'; allowed are test."),
}  # fmt: skip


@pytest.mark.parametrize(("load", "language", "split", "found"), REFUSED.values(), ids=REFUSED)
def test_what_the_hub_does_not_have_is_refused(load: Load, language: str, split: str, found: str) -> None:
    with pytest.raises(BadInput) as refused:
        load(language, split)
    assert str(refused.value).startswith(f"hub{found}") and "allowed" in str(refused.value)


CHANGED: dict[str, tuple[Load, tuple[str, str, str], list[dict], str]] = {
    "column": (
        lambda language, _: load_panx(language, "test"),
        ("google/xtreme", "PAN-X.de", "test"),
        [{"words": ["a"], "tags": [0]}],
        "hub:google/xtreme:PAN-X.de:test: has the columns ['words', 'tags']; allowed are tokens, ner_tags",
    ),
    "language": (
        lambda language, _: load_xnli(language, "dev"),
        ("google/xtreme", "XNLI", "validation"),
        [{"sentence1": "a", "sentence2": "b", "gold_label": "neutral"}],
        "hub:google/xtreme:XNLI:validation: has the columns ['sentence1', 'sentence2', 'gold_label']; allowed are",
    ),
    "label": (
        lambda language, _: load_pawsx(language, "dev"),
        ("google-research-datasets/paws-x", "de", "validation"),
        [{"sentence1": "a", "sentence2": "b", "label": label} for label in (1, -1)],
        "hub:google-research-datasets/paws-x:de:validation, row 1: has '-1' as its label; allowed are 0, 1",
    ),
    "sentence": (
        lambda language, _: load_pawsx(language, "dev"),
        ("google-research-datasets/paws-x", "de", "validation"),
        [{"sentence1": "a", "sentence2": text, "label": 1} for text in ("b", None)],
        "hub:google-research-datasets/paws-x:de:validation, row 1: has None as its sentence2 text; allowed are strings",
    ),
    "tag": (
        lambda language, _: load_panx(language, "test"),
        ("google/xtreme", "PAN-X.de", "test"),
        [{"tokens": ["a"], "ner_tags": [1]}],
        "hub:google/xtreme:PAN-X.de:test, row 0: has 1 as a tag; allowed are words, or numbers of the 0 tags",
    ),
    "id": (
        lambda language, _: load_xquad(language, "test"),
        ("google/xtreme", "XQuAD.de", "validation"),
        [QUESTIONS[0], QUESTIONS[0]],
        "hub:google/xtreme:XQuAD.de:validation, row 1 (id 'english-1-0'): has the id 'english-1-0' again",
    ),
    "answer": (
        lambda language, _: load_xquad(language, "test"),
        ("google/xtreme", "XQuAD.de", "validation"),
        [questions("a", ("cow", 0))],
        "hub:google/xtreme:XQuAD.de:validation, row 0 (id 'a'): has the answer 'cow'",
    ),
}


@pytest.mark.parametrize(("load", "name", "rows", "found"), CHANGED.values(), ids=CHANGED)
def test_a_dataset_that_changed_is_refused(
    load: Load, name: tuple[str, str, str], rows: list[dict], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(HUB, name, Dataset.from_list(rows))
    with pytest.raises(BadInput) as refused:
        load("de", "")
    assert str(refused.value).startswith(found)


def test_tags_may_be_words_and_a_hidden_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        HUB, ("google/xtreme", "PAN-X.de", "test"), Dataset.from_list([{"tokens": ["a"], "ner_tags": ["B-PER"]}])
    )
    assert load_panx("de", "test")["tags"][:] == [["B-PER"]]
    hidden = Dataset.from_dict({"tokens": [["a"]], "ner_tags": [[-1]]}).cast_column("ner_tags", TAGS)
    monkeypatch.setitem(HUB, ("google/xtreme", "PAN-X.de", "test"), hidden)
    with pytest.raises(BadInput, match="row 0: has -1 as a tag; allowed are words, or numbers of the 3 tags"):
        load_panx("de", "test")


# --- the real loader ------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder google/xtreme that is laid out as the dataset is on the Hub, and the real `load_dataset`."""
    monkeypatch.undo()
    folder, configs = tmp_path / "google" / "xtreme", {}
    for (name, config, split), rows in HUB.items():
        if name == "google/xtreme":
            (folder / config).mkdir(parents=True, exist_ok=True)
            rows.to_parquet(folder / config / f"{split}-00000-of-00001.parquet")
            configs.setdefault(config, []).append(split)
    lines = ["---", "configs:"]
    for config, splits in configs.items():
        lines += [f"- config_name: {config}", "  data_files:"]
        lines += [f"  - split: {split}\n    path: {config}/{split}-*" for split in splits]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    yield


@pytest.mark.usefixtures("repository")
def test_a_repository_of_parquet_files_gives_the_same_examples() -> None:
    assert columns(load_xnli("b", "dev"), "second", "label") == [["b"] * 2, ["neutral"] * 2]
    assert load_panx("de", "test")[0] == {"words": ["Ada", "L."], "tags": ["B-PER", "I-PER"]}
    assert load_xquad("de", "test")[0]["answers"] == [
        {"text": "dog", "start": 2},
        {"text": "A dog", "start": 0},
    ]
    assert load_tatoeba("zh", "test").queries == ["C", "a", "b"]
    with pytest.raises(
        BadInput, match="^hub:google/xtreme:PAN-X.en:test: cannot be read .*PAN-X.en.*; allowed is a data"
    ):
        load_panx("en", "test")
