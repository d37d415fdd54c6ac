"""Columns whose names are codes of languages, and words, too: what their texts say of them is logged."""

import logging
from pathlib import Path

import pytest
from test_streaming import Letters
from toy_files import write_lines

from hictl_hf.data.cleaning import Cleaning
from hictl_hf.data.corpus import load_corpus
from hictl_hf.data.doubts import LEAST, Doubts
from hictl_hf.data.stream_parts import stream_parts
from hictl_hf.data.streaming import StreamedBatches

GERMAN = [f"Der Hund {at} sieht die Katze." for at in range(60)]
ENGLISH = [f"The dog {at} sees the cat." for at in range(60)]
RUSSIAN = [f"Собака {at} видит кошку." for at in range(60)]


def doubts(first: list[str], second: list[str], *languages: str) -> list[str]:
    found = Doubts()
    for texts in zip(first, second):
        found.add(languages, texts)
    return [*found.sentences()]


@pytest.mark.parametrize(
    ("texts", "languages", "told"),
    [
        ((ENGLISH, GERMAN), ("en", "be"), "first 60 texts in 'be' are in Latin letters, not in Cyrillic"),
        ((RUSSIAN, ENGLISH), ("en", "ru"), "first 60 texts in 'en' are in Cyrillic letters, not in Latin"),
        ((GERMAN, ENGLISH), ("de", "it"), "first 60 texts in 'it' are mostly English"),
        ((ENGLISH, ["tatoeba", "bible"] * 30), ("en", "so"), "first 60 texts in 'so' are 2 different ones, as of a"),
        ((GERMAN[:2], GERMAN[:2]), ("to", "id"), "'to' and 'id' are read as languages, and are English words, too"),
    ],
)
def test_what_the_texts_of_a_column_say_of_its_name(
    texts: tuple[list[str], list[str]], languages: tuple[str, str], told: str
) -> None:
    assert any(told in sentence for sentence in doubts(*texts, *languages))


@pytest.mark.parametrize(
    ("texts", "languages"),
    [
        ((ENGLISH, GERMAN), ("en", "de")),
        ((GERMAN, ENGLISH), ("deu", "eng_Latn")),
        ((RUSSIAN, GERMAN), ("ru", "id")),
        ((GERMAN, GERMAN), ("it", "no")),  # and is, id: languages that do meet
        ((ENGLISH, GERMAN), ("en", "to")),
        ((["the cat"] * 60, GERMAN), ("en", "de")),  # of a record in many languages
        ((GERMAN[: LEAST - 1], ENGLISH[: LEAST - 1]), ("ru", "be")),
        ((RUSSIAN, GERMAN), ("sr", "sr-Latn")),
        ((["17", "..."] * 30, [*map(str, range(60))]), ("ru", "de")),  # without letters
    ],
)
def test_real_languages_leave_no_doubt(texts: tuple[list[str], list[str]], languages: tuple[str, str]) -> None:
    assert doubts(*texts, *languages) == []


def test_doubts_are_logged_with_the_sources(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_lines(tmp_path / "a.csv", ["to,id", "Bob Smith,Dear Bob", "Ann Lee,Hello Ann"])
    with caplog.at_level(logging.WARNING, "hictl_hf"):
        assert len(load_corpus([str(path)], cache_dir=tmp_path)[0]) == 2
    assert f"{path}: 'to' and 'id' are read as languages, and are English words, too; drop or rename" in caplog.text


def test_each_source_is_looked_at_and_a_sentence_about_several_comes_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first file of a language is right, and would hide all others; a hundred files are not a hundred warnings."""
    rows = [f"{english},{german}" for english, german in zip(ENGLISH, GERMAN)]
    paths = [write_lines(tmp_path / f"{at}.csv", [("en,de", "de,en")[at > 0], *rows]) for at in range(3)]
    with caplog.at_level(logging.WARNING, "hictl_hf"):
        load_corpus([*map(str, paths)], Cleaning(drop_duplicates=False), cache_dir=tmp_path)
    (told,) = [message for message in caplog.messages if "mostly English" in message]
    assert told.startswith(f"{paths[1]}: the first 60 texts in 'de' are mostly English")


def test_a_stream_logs_them_with_its_first_blocks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [f"{english},{german}" for english, german in zip(ENGLISH, GERMAN)]
    path = str(write_lines(tmp_path / "a.csv", ["de,en", *rows]))
    for rank, told in ((0, 1), (1, 0)):
        caplog.clear()
        stream = StreamedBatches([path], [1.0], Letters(), 2, 1, buffer=50, rank=rank, world_size=2)
        batches = iter(stream)
        next(batches)
        assert doubts_of(caplog) == told
        read = [next(batches) for _ in range(60)]  # more than two passes
        assert len(read) == 60 and doubts_of(caplog) == told


def test_a_doubt_is_logged_once_though_its_numbers_are_others_in_the_next_block(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = Doubts()
    for categories in (["tatoeba", "bible"], ["tatoeba", "bible", "news"]):
        for english, category in zip(ENGLISH, categories * 20):
            found.add(["en", "so"], [english, category])
        found.log("a.tsv")
    (message,) = caplog.messages
    assert message.startswith("a.tsv: the first 40 texts in 'so' are 2 different ones")


def doubts_of(caplog: pytest.LogCaptureFixture) -> int:
    return sum("texts in 'de' are mostly English" in message for message in caplog.messages)


def test_one_language_under_two_names_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = [
        str(write_lines(tmp_path / f"{code}.csv", [f"en,{code}", *(f"{code} {at}, {at} {code}" for at in range(3))]))
        for code in ("de", "deu", "fr", "de-AT")
    ]
    told = "'de' and 'deu' are one language, and counted as two"
    with caplog.at_level(logging.WARNING, "hictl_hf"):
        load_corpus(paths, cache_dir=tmp_path)
        assert [message.partition(";")[0] for message in caplog.messages] == [told]
        stream_parts(paths)
        assert [message.partition(";")[0] for message in caplog.messages] == [told] * 2
        corpus, _ = load_corpus(paths, Cleaning(languages=["en", "de", "fr"]), cache_dir=tmp_path)
        assert {*corpus["y_lang"]} == {"de", "fr"} and len(caplog.messages) == 2
