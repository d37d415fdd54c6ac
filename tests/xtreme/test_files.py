"""XTREME's files are read as they are and written as the official scorer reads them; broken ones are refused."""

import csv
import gzip
import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from hictl_hf.errors import BadInput
from hictl_hf.retrieval.bitext import Bitext
from hictl_hf.xtreme import files as xtreme_files

LABELS = ("contradiction", "entailment", "neutral")
# As in the official pre-processing of PAWS-X: rows, and the file that XTREME writes of them.
RAW_PAIRS = [
    ['He said "hi".', "He said: hi", "1"],
    ["plain", "plain  two  spaces", "0"],
    ['"Quoted start', 'end"', "1"],
    ["tab free , comma", "semi;colon", "0"],
    ["Ünï “curly”", "中文\u2028\u0085", "0"],
]
DOG = [{"text": "dog", "answer_start": 2}]
FIVE = [{"text": "5", "answer_start": 0}, {"text": "at 5", "answer_start": 12}]  # "5" is at 15
BARKS = [{"id": "1", "question": "Who barks?", "answers": DOG}, {"id": "2", "question": "When?", "answers": FIVE}]
SLEEPS = [{"id": "3", "question": "誰?", "answers": []}]
ARTICLES = [
    {"title": "A", "paragraphs": [{"context": "A dog barks at 5.", "qas": BARKS}]},
    {"paragraphs": [{"context": "猫が寝る。", "qas": SLEEPS}]},
]


def write(path: Path, content: str | bytes | object) -> Path:
    if not isinstance(content, str | bytes):
        content = json.dumps(content)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def columns(dataset: Dataset, *names: str) -> list[list]:
    return [list(dataset[name]) for name in names]


# --- text -----------------------------------------------------------------------------------------------------------


def test_only_line_feeds_end_a_line_with_or_without_carriage_returns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "\ufeffa\u2028b\r\n\r\nc\u0085\nd")
    assert xtreme_files.lines_of(path) == ["a\u2028b", "", "c\u0085", "d"]
    assert xtreme_files.lines_of(write(tmp_path / "b.tsv", "a\n\n")) == ["a", ""]
    assert xtreme_files.lines_of(write(tmp_path / "c.tsv", "")) == []


READERS: dict[str, tuple[Callable[[Path], object], bytes]] = {
    "pairs": (xtreme_files.read_pair_examples, b"a\tb\tc\n"),
    "tagged": (xtreme_files.read_tagged_examples, b"a\tO\n"),
    "translations": (xtreme_files.read_translations, b"a\tde\tb\n"),
    "questions": (xtreme_files.read_question_examples, json.dumps({"data": ARTICLES}).encode()),
    "sentences": (lambda path: xtreme_files.read_bucc(path, path), b"1\ta\n"),
    "values": (xtreme_files.read_values, b"a\n"),
    "tags": (xtreme_files.read_tags, b"O\n"),
    "answers": (xtreme_files.read_answers, b'{"1": "a"}'),
    "gold answers": (xtreme_files.read_reference_answers, json.dumps(ARTICLES).encode()),
}
UNREADABLE: dict[str, tuple[Callable[[bytes], bytes | None], str]] = {
    "missing": (lambda good: None, ": no such file; allowed is "),
    "Latin-1": (
        lambda good: good + b"\n\n\xe9",
        ":{line}: has b'\\xe9', which is not UTF-8; allowed is UTF-8. Convert",
    ),
    "UTF-16": (lambda good: good.decode().encode("utf-16"), ": is UTF-16"),
    "UTF-16 without mark": (lambda good: good.decode().encode("utf-16-le"), ": is UTF-16"),
    "NUL": (lambda good: good + b" " * 9 + b"\n\0", ":{line}: has a NUL byte; allowed is text. Remove"),
    "gzip": (gzip.compress, ": is compressed with gzip; allowed is plain text. Unpack"),
}


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(("broken", "found"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_cannot_be_read_is_refused(
    read: str, broken: Callable[[bytes], bytes | None], found: str, tmp_path: Path
) -> None:
    reader, good = READERS[read]
    reader(write(tmp_path / "good", good))
    path = tmp_path / "bad"
    if (content := broken(good)) is not None:
        write(path, content)
        found = found.format(line=content.count(b"\n") + 1)
    with pytest.raises(BadInput) as refused:
        reader(path)
    assert str(refused.value).startswith(f"{path}{found}") and "allowed" in str(refused.value)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("content", ["", "\n \r\n"])
def test_an_empty_file_is_refused(read: str, content: str, tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match="empty: is empty; allowed is one row|empty:.: is not JSON .* allowed is one JSON"
    ):
        READERS[read][0](write(tmp_path / "empty", content))


# --- sentence pairs -------------------------------------------------------------------------------------------------


def written_by_xtreme(path: Path, pairs: list[list[str]]) -> Path:
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t").writerows(pairs)
    return path


@pytest.mark.parametrize("labelled", [True, False])
def test_sentences_come_back_as_they_were_before_quoting(labelled: bool, tmp_path: Path) -> None:
    path = written_by_xtreme(tmp_path / "a.tsv", [row[: 2 + labelled] for row in RAW_PAIRS])
    found = xtreme_files.read_pair_examples(path, ("0", "1"))
    assert columns(found, "first", "second") == [[row[side] for row in RAW_PAIRS] for side in (0, 1)]
    assert columns(found, "label") == [[row[2] if labelled else None for row in RAW_PAIRS]]


def test_compat_keeps_the_quotes_that_the_official_reader_sees(tmp_path: Path) -> None:
    found = xtreme_files.read_pair_examples(written_by_xtreme(tmp_path / "a.tsv", RAW_PAIRS), compat=True)
    firsts, seconds = columns(found, "first", "second")
    assert firsts[:3] == ['"He said ""hi""."', "plain", '"""Quoted start"']
    assert seconds[:3] == ["He said: hi", "plain  two  spaces", '"end"""']


@pytest.mark.parametrize(
    "sentence",
    ['"Go!"', '"Go," he said, "now!"', '"', '""', 'a "" b', '""Go""', '"Go!', 'Go!"', '"a"b""', '"""', "‘a’"],
)
def test_a_sentence_that_no_writer_quoted_keeps_its_quotes(sentence: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", f"{sentence}\tx\n")
    assert xtreme_files.read_pair_examples(path)[0] == {"first": sentence, "second": "x", "label": None}


def test_any_sentence_survives_being_written_by_csv(tmp_path: Path) -> None:
    chance = random.Random(0)
    pairs = [["".join(chance.choices('"a ,', k=chance.randrange(1, 9))) for _ in range(2)] for _ in range(300)]
    found = xtreme_files.read_pair_examples(written_by_xtreme(tmp_path / "a.tsv", pairs))
    assert sum(sentence.startswith('"') for pair in pairs for sentence in pair) > 50
    assert list(map(list, zip(*columns(found, "first", "second")))) == pairs


def test_a_translated_set_gives_the_translations_and_one_name_for_a_label(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "a\tb\tmt a\tmt b\tcontradictory\nc\td\tmt c\t\tneutral\n")
    assert list(xtreme_files.read_pair_examples(path, LABELS)) == [
        {"first": "mt a", "second": "mt b", "label": "contradiction"},
        {"first": "mt c", "second": "", "label": "neutral"},
    ]


BROKEN_PAIRS = {
    "label": ("a\tb\tneutral\na\tb\t1\n", ":2: has '1' as its label; allowed are contradiction, entailment, neutral."),
    "no label": ("a\tb\tneutral\na\tb\t\n", ":2: has '' as its label; allowed are contradiction,"),
    "blank line": ("a\tb\tneutral\n\na\tb\n", ":2: has 1 columns; allowed are 3, as in line 1. Remove the line"),
    "column missing": ("a\tb\tneutral\na\tb\n", ":2: has 2 columns; allowed are 3, as in line 1. Add or remove a tab"),
    "first has no label": ("a\tb\n" + "a\tb\tneutral\n" * 2, ":1: has 2 columns; allowed are 3, as in line 2. Add or"),
    "one has a label": ("a\tb\n" * 2 + "a\tb\tneutral\n", ":3: has 3 columns; allowed are 2, as in line 1. Add or"),
    "line ends of old Macs": ("a\tb\r" * 2, ": has carriage returns and no line feed, as files of old Macs"),
    "one column": ("a b neutral\n", ":1: has 1 columns; allowed are sentence TAB sentence TAB label"),
    "names of columns": ("Premise\thypothesis\na\tb\n", ":1: has the names of columns; allowed are sentences. Remove"),
    "four columns": ("1\ta\tb\tneutral\n", ":1: has 4 columns; allowed are sentence TAB sentence TAB label"),
}


@pytest.mark.parametrize(("content", "found"), BROKEN_PAIRS.values(), ids=BROKEN_PAIRS)
def test_a_broken_pair_is_refused_with_its_line(content: str, found: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", content)
    with pytest.raises(BadInput) as refused:
        xtreme_files.read_pair_examples(path, LABELS)
    assert str(refused.value).startswith(f"{path}{found}")


# --- tagged words ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_a_blank_line_ends_a_sentence(end: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", f"Ada\tB-PER\nL.\tI-PER\r\n \r\n\u200b\tO\n\n\nx y\tO{end}")
    assert list(xtreme_files.read_tagged_examples(path)) == [
        {"words": ["Ada", "L."], "tags": ["B-PER", "I-PER"]},
        {"words": ["\u200b"], "tags": ["O"]},
        {"words": [], "tags": []},
        {"words": ["x y"], "tags": ["O"]},
    ]


def test_tags_after_spaces_are_refused_and_words_with_spaces_are_not(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "in O\nUlm B-LOC\n\nja O \n")
    with pytest.raises(BadInput, match=r"a.tsv:1: has spaces between its columns; allowed is word TAB tag"):
        xtreme_files.read_tagged_examples(path, ("O", "B-LOC"))
    path = write(tmp_path / "b.tsv", "in O\nà la\n")
    assert xtreme_files.read_tagged_examples(path, ("O", "B-LOC"))["words"][:] == [["in O", "à la"]]


def test_a_raw_file_of_panx_is_refused_and_words_with_colons_are_not(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "de:Ulm\tB-LOC\nde:in\tO\n\nde:ja\tO\n")
    with pytest.raises(BadInput, match="a.tsv: has 'de:' before every word; .* by hictl prepare-xtreme panx"):
        xtreme_files.read_tagged_examples(path)
    others = ("de:Ulm\tO\nfr:Ulm\tO\n", "de:Ulm\tO\n12:30\tO\n", ":\tO\n:\tO\n", "12:30\tO\n12:31\tO\n")
    for content in (*others, "https://a.org\tO\n"):
        assert len(xtreme_files.read_tagged_examples(write(tmp_path / "b.tsv", content))) == 1


def test_words_alone_have_no_tags(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "Ada\nL.\n\nx\n")
    assert list(xtreme_files.read_tagged_examples(path, ("O",))) == [
        {"words": ["Ada", "L."], "tags": None},
        {"words": ["x"], "tags": None},
    ]


BROKEN_TAGS = {
    "no tag": ("a\tO\n\nb\nc\tO\n", ":3: has 1 columns; allowed are 2, word TAB tag, as most lines have. Add"),
    "first has no tag": ("a\nb\tO\n", ":1: has 1 columns; allowed are 2"),
    "one has a tag": ("a\nb\nc\tO\n", ":3: has 2 columns; allowed is 1, the word, as most lines have. Add or"),
    "two tags": ("a\tO\nb\tO\tO\n", ":2: has 3 columns; allowed are 2"),
    "wrong tag": ("a\tO\n\nb\tNOUN\n", ":3: has 'NOUN' as its label; allowed are O, B-PER. Correct"),
    "empty tag": ("a\tO\nb\t\n", ":2: has '' as its label"),
}


@pytest.mark.parametrize(("content", "found"), BROKEN_TAGS.values(), ids=BROKEN_TAGS)
def test_a_broken_tag_is_refused_with_its_line(content: str, found: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", content)
    with pytest.raises(BadInput) as refused:
        xtreme_files.read_tagged_examples(path, ("O", "B-PER"))
    assert str(refused.value).startswith(f"{path}{found}")


def test_translations_of_tagged_sentences_are_read_with_and_without_alignment(tmp_path: Path) -> None:
    path = write(tmp_path / "translate_train.panx.txt", "a b\tde\tc  d e\t0/1 1/0\na b\tzh-CN\t猫\n")
    assert list(xtreme_files.read_translations(path)) == [
        {"source_words": ["a", "b"], "language": "de", "words": ["c", "d", "e"]},
        {"source_words": ["a", "b"], "language": "zh", "words": ["猫"]},
    ]


@pytest.mark.parametrize(
    "line", ["a b\tde", "a\tde\tb\tc\td", " \tde\tb", "a\t\tb", "a\tde\t ", "a\tthe language\tb", ""]
)
def test_a_broken_translation_is_refused_with_its_line(line: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", f"a\tde\tb\n{line}\na\tde\tb\n")
    with pytest.raises(BadInput) as refused:
        xtreme_files.read_translations(path)
    found = str(refused.value)
    assert found.startswith(f"{path}:2: has {line!r}; allowed is sentence TAB language TAB translation")


# --- questions ------------------------------------------------------------------------------------------------------


def test_questions_are_read_in_order_with_answers_that_stand_in_the_context(tmp_path: Path) -> None:
    found = xtreme_files.read_question_examples(write(tmp_path / "q.json", {"version": "1.1", "data": ARTICLES}))
    answers = [[{"text": "dog", "start": 2}], [{"text": "5", "start": 15}, {"text": "at 5", "start": 12}], []]
    assert columns(found, "id", "answers") == [["1", "2", "3"], answers]
    assert found[2] == {"id": "3", "question": "誰?", "context": "猫が寝る。", "answers": []}
    for row in found:
        for answer in row["answers"]:
            assert row["context"][answer["start"] :].startswith(answer["text"])
    trained = xtreme_files.read_question_examples(tmp_path / "q.json", training=True)
    assert columns(trained, "id", "answers") == [["0", "1"], answers[:2]]


def changed(**changes: Any) -> dict[str, list]:
    """The articles with another first question."""
    articles = json.loads(json.dumps(ARTICLES))
    articles[0]["paragraphs"][0]["qas"][0].update(changes)
    return {"data": articles}


BROKEN_FILES = {
    "no JSON": ('{"data": [\n}', ":2: is not JSON (Expecting value", "allowed is one JSON document. Download"),
    "no data": ({"rows": []}, ": has None as 'data'", "allowed is a list"),
    "no paragraphs": ({"data": [{"title": "A"}]}, ": has None as 'paragraphs'", "allowed is a list"),
    "no questions": ({"data": [{"paragraphs": [{"context": "c"}]}]}, ": paragraph 1: has None as 'qas'", "allowed"),
    "no context": ({"data": [{"paragraphs": [{"qas": []}]}]}, ": paragraph 1: has None as its context text", "allowed"),
    "no row": ({"data": []}, ": has no row to use", "allowed is a question"),
    "span": (
        changed(answers=[{"text": "cow", "answer_start": 2}]),
        ": paragraph 1, question 1 (id '1'): has the answer 'cow'",
        "allowed are answers that occur in the context",
    ),
    "repeated id": (
        changed(id="3"),
        ": paragraph 2, question 1 (id '3'): has the id '3' again",
        "paragraph 1, question 1 (id '3') has it",
    ),
}


@pytest.mark.parametrize(("content", "found", "allowed"), BROKEN_FILES.values(), ids=BROKEN_FILES)
def test_a_broken_file_of_questions_is_refused(content: object, found: str, allowed: str, tmp_path: Path) -> None:
    path = write(tmp_path / "q.json", content)
    with pytest.raises(BadInput) as refused:
        xtreme_files.read_question_examples(path)
    assert str(refused.value).startswith(f"{path}{found}") and allowed in str(refused.value)


# --- retrieval ------------------------------------------------------------------------------------------------------


def bucc(
    folder: Path, foreign: str = "zh-1\t一\nzh-2\t二\n", english: str = "en-9\tone\ttwo\nen-8\ttwo \n"
) -> list[Path]:
    return [write(folder / "zh-en.dev.zh", foreign), write(folder / "zh-en.dev.en", english)]


def test_sentences_to_mine_keep_their_ids_and_their_order(tmp_path: Path) -> None:
    gold = write(tmp_path / "gold", "zh-2\ten-9\nzh-1\ten-8\nzh-1\ten-8")
    texts = (["一", "二"], ["one\ttwo", "two "], ["zh-1", "zh-2"], ["en-9", "en-8"])
    assert xtreme_files.read_bucc(*bucc(tmp_path)) == Bitext(*texts, None)
    pairs = frozenset({("zh-2", "en-9"), ("zh-1", "en-8")})
    assert xtreme_files.read_bucc(*bucc(tmp_path), gold) == Bitext(*texts, pairs)


BROKEN_BUCC = {
    "no id": ({"foreign": "zh-1\t一\n二\n"}, "zh-en.dev.zh:2: has '二'; allowed is id TAB sentence"),
    "empty id": ({"english": "\tone\n"}, "zh-en.dev.en:1: has '\\tone'; allowed is id TAB sentence"),
    "id twice": (
        {"foreign": "a\tx\nb\tx\na\ty\n"},
        "zh-en.dev.zh:3: has the id 'a' again; allowed is each id once, and ",
    ),
}


@pytest.mark.parametrize(("files", "found"), BROKEN_BUCC.values(), ids=BROKEN_BUCC)
def test_broken_sentences_to_mine_are_refused(files: dict[str, str], found: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        xtreme_files.read_bucc(*bucc(tmp_path, **files))
    assert str(refused.value).startswith(f"{tmp_path}/{found}")


@pytest.mark.parametrize("line", ["zh-2\ten-7", "zh-3\ten-8", "en-8\tzh-2", "zh-2", "zh-2\ten-8\t1.0", ""])
def test_a_gold_pair_of_unknown_sentences_is_refused(line: str, tmp_path: Path) -> None:
    gold = write(tmp_path / "gold", f"zh-1\ten-8\n{line}\nzh-1\ten-8\n")
    with pytest.raises(BadInput) as refused:
        xtreme_files.read_bucc(*bucc(tmp_path), gold)
    assert str(refused.value).startswith(f"{gold}:2: has {line!r}; allowed is foreign id TAB English id")


ENGLISH, FOREIGN = [" b", "C", "a "], ["b1", " c1", "a1"]


def test_laser_and_xtreme_name_the_same_tatoeba(tmp_path: Path) -> None:
    laser = xtreme_files.read_tatoeba(
        write(tmp_path / "tatoeba.deu-eng.deu", "\n".join(FOREIGN)),
        write(tmp_path / "tatoeba.deu-eng.eng", "\r\n".join(ENGLISH)),
    )
    ids = ["0", "1", "2"]
    pairs = frozenset({("0", "1"), ("1", "2"), ("2", "0")})  # "C" stood at 1, "a" at 2, "b" at 0
    assert laser == Bitext(["C", "a", "b"], ["b1", "c1", "a1"], ids, ids, pairs)
    own = write(tmp_path / "de-en.de", "\n".join(FOREIGN)), write(tmp_path / "de-en.en", "C\na\nb\n")
    assert xtreme_files.read_tatoeba(*own) == Bitext(laser.queries, laser.candidates, ids, ids, None)
    assert xtreme_files.read_tatoeba(*own, write(tmp_path / "test-de.tsv", "1\n2\n0\n")) == laser


BROKEN_TATOEBA = {
    "lengths": (
        "de-en.en",
        "a\nb\n",
        "",
        "x.de has 3 lines, .*de-en.en has 2 lines; allowed are files of equal length",
    ),
    "not sorted": (
        "de-en.en",
        "a\nc\nb\n",
        "",
        "de-en.en: is neither named like LASER's .* nor sorted like XTREME's own",
    ),
    "another name": (
        "english.txt",
        "a\nb\nc\n",
        "",
        "english.txt: is neither named like LASER.*; allowed is one of them",
    ),
    "labels": ("de-en.en", "a\nb\nc\n", "1\n2\n", "test-de.tsv has 2 lines, .*de-en.en has 3 lines; allowed are files"),
    "label": (
        "de-en.en",
        "a\nb\nc\n",
        "0\n1\n3\n",
        "test-de.tsv:3: has '3' as its label; allowed .*x.de, 0 to 2. Corr",
    ),
    "no label": (
        "de-en.en",
        "a\nb\nc\n",
        "0\n\n2\n",
        "test-de.tsv:2: has '' as its label; allowed .*x.de, 0 to 2. Corr",
    ),
}


@pytest.mark.parametrize(("name", "english", "labels", "found"), BROKEN_TATOEBA.values(), ids=BROKEN_TATOEBA)
def test_a_broken_tatoeba_is_refused(name: str, english: str, labels: str, found: str, tmp_path: Path) -> None:
    paths = write(tmp_path / "x.de", "1\n2\n3\n"), write(tmp_path / name, english)
    gold = write(tmp_path / "test-de.tsv", labels) if labels else None
    with pytest.raises(BadInput, match=found):
        xtreme_files.read_tatoeba(*paths, gold)


# --- submissions ----------------------------------------------------------------------------------------------------

PAIR_LINES = "a\t7\nb\t6\nc\t5\nd\t4\ne\t3\nf\t2\ng\t1\nh\t0\n"
SUBMISSIONS: dict[str, tuple[Callable[[Path, Any], Path], Callable[[Path], Any], Any, str]] = {
    "values": (xtreme_files.write_values, xtreme_files.read_values, ["1", "", "10"], "1\n\n10\n"),
    "last value is blank": (xtreme_files.write_values, xtreme_files.read_values, ["1", ""], "1\n\n"),
    "tags": (xtreme_files.write_tags, xtreme_files.read_tags, [["O", "B-PER"], [], ["O"], []], "O\nB-PER\n\n\nO\n\n\n"),
    "answers": (
        xtreme_files.write_answers,
        xtreme_files.read_answers,
        {"b": 'two\nlines "猫"', "a": ""},
        '{\n "b": "two\\nlines \\"猫\\"",\n "a": ""\n}\n',
    ),
    "pairs": (xtreme_files.write_id_pairs, xtreme_files.read_id_pairs, {*zip("hgfedcba", "01234567")}, PAIR_LINES),
    "no pairs": (xtreme_files.write_id_pairs, xtreme_files.read_id_pairs, set(), ""),
}


@pytest.mark.parametrize(("save", "read", "values", "content"), SUBMISSIONS.values(), ids=SUBMISSIONS)
def test_a_submission_is_read_as_it_was_written(
    save: Callable[[Path, Any], Path], read: Callable[[Path], Any], values: Any, content: str, tmp_path: Path
) -> None:
    path = tmp_path / "panx" / "test-de.tsv"
    assert save(path, values) == path and path.read_text("utf-8") == content
    assert read(path) == values
    assert [file.name for file in path.parent.iterdir()] == ["test-de.tsv"]


def test_values_are_compared_without_white_space_around_them_and_blank_lines_count(tmp_path: Path) -> None:
    assert xtreme_files.read_values(write(tmp_path / "a", "1  \r\n\r\n 2\t\n\n")) == ["1", "", "2", ""]
    assert xtreme_files.read_tags(write(tmp_path / "b", "O \r\n\r\nB-PER")) == [["O"], ["B-PER"]]
    assert xtreme_files.read_tags(write(tmp_path / "b", "\tO\nin\t \n")) == [["O", "in"]]
    wrong = write(tmp_path / "c", "a\tb\n\na\tb\t1.0\na\tb \n")
    assert xtreme_files.read_id_pairs(wrong) == {("a", "b"), ("",), ("a", "b", "1.0")}


@pytest.mark.parametrize(
    "save", [xtreme_files.write_values, lambda path, lines: xtreme_files.write_tags(path, [lines])]
)
@pytest.mark.parametrize("line", ["a\nb", "a\r"])
def test_nothing_is_written_that_would_be_read_as_another_line(
    save: Callable[[Path, list[str]], Path], line: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.tsv"
    with pytest.raises(ValueError, match="allowed are lines without line ends"):
        save(path, ["x", line])
    assert not path.exists()


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = xtreme_files.write_values(tmp_path / "a.tsv", ["old"])
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            xtreme_files.write_values(path, ["new"])
    assert path.read_text() == "old\n" and list(tmp_path.iterdir()) == [path]


BROKEN_ANSWERS = {
    "a list": ("[1]", ": has [1]; allowed is {"),
    "a number": ('{"a": "x", "b": 3}', ": has 3 as its b text; allowed are strings"),
    "an id twice": ('{"a": "x", "b": "y", "a": "z"}', ": entry 3: has the id 'a' again; allowed is each id once"),
    "no JSON": ("a\tx\n", ":1: is not JSON"),
}


@pytest.mark.parametrize(("content", "found"), BROKEN_ANSWERS.values(), ids=BROKEN_ANSWERS)
def test_broken_answers_are_refused(content: str, found: str, tmp_path: Path) -> None:
    path = write(tmp_path / "test-de.json", content)
    with pytest.raises(BadInput) as refused:
        xtreme_files.read_answers(path)
    assert str(refused.value).startswith(f"{path}{found}")


def test_gold_answers_need_not_stand_in_the_context(tmp_path: Path) -> None:
    path = write(tmp_path / "test-de.json", changed(answers=[{"text": "cow", "answer_start": 0}]))
    assert xtreme_files.read_reference_answers(path) == {"1": ["cow"], "2": ["5", "at 5"], "3": []}


def test_gold_without_answers_or_with_an_id_twice_is_refused(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty.json", {"data": [{"paragraphs": [{"context": "c", "qas": [
        {"id": "1", "question": "?", "answers": [{"text": "", "answer_start": 0}]}]}]}]})  # fmt: skip
    with pytest.raises(
        BadInput, match="empty.json: has no gold answer; allowed is one or more. Score with the published"
    ):
        xtreme_files.read_reference_answers(empty)
    assert xtreme_files.read_question_examples(empty)[0]["answers"] == []
    with pytest.raises(BadInput, match="paragraph 2, .* has the id '3' again; .* paragraph 1"):
        xtreme_files.read_reference_answers(write(tmp_path / "twice.json", changed(id="3")))


# --- the hash of data -----------------------------------------------------------------------------------------------


def test_a_hash_is_that_of_the_content_however_it_is_held() -> None:
    rows = [{"words": ["a", "猫"], "tags": ["O", "O"]}, {"words": [], "tags": []}]
    content = '{"tags": ["O", "O"], "words": ["a", "猫"]}\n{"tags": [], "words": []}\n'.encode()
    expected = hashlib.sha256(content).hexdigest()[:8]
    assert xtreme_files.data_hash(Dataset.from_list(rows)) == xtreme_files.data_hash(rows) == expected
    pairs = [(str(number), str(-number)) for number in range(50)]
    assert xtreme_files.data_hash(set(pairs)) == xtreme_files.data_hash(frozenset(pairs[::-1]))
    bitext = Bitext(["a"], ["b"], ["0"], ["0"], frozenset(pairs))
    assert xtreme_files.data_hash(bitext) == xtreme_files.data_hash(
        Bitext(("a",), ["b"], ["0"], ["0"], frozenset(pairs[::-1]))
    )


@pytest.mark.parametrize(
    "values",
    [
        ["b", "a"],
        ["a"],
        ["ab"],
        {"a": "b"},
        {"a": "", "b": ""},
        {("a", "b")},
        [["a"], ["b"]],
        [["a", "b"]],
        [],
        ["a\nb"],
    ],
)
def test_other_content_has_another_hash(values: Any) -> None:
    assert xtreme_files.data_hash(values) != xtreme_files.data_hash(["a", "b"])


def test_gold_and_order_of_a_bitext_count() -> None:
    texts = (["a", "b"], ["c"], ["0", "1"], ["0"])
    hashes = {xtreme_files.data_hash(Bitext(*texts, gold)) for gold in (None, frozenset(), frozenset({("0", "0")}))}
    assert len(hashes | {xtreme_files.data_hash(Bitext(["b", "a"], *texts[1:], None))}) == 4
