"""Raw treebanks and raw PAN-X become XTREME's files, word for word and tag for tag."""

import itertools
import random
from pathlib import Path

import pytest
from datasets import Dataset

from hictl_hf.cli.main import main as hictl
from hictl_hf.cli.prepare_xtreme import main
from hictl_hf.errors import BadInput
from hictl_hf.xtreme.data import references_of
from hictl_hf.xtreme.files import read_tagged_examples
from hictl_hf.xtreme.prepare import ancestors, read_conllu, read_raw_panx, tagged_words, write_tagged
from hictl_hf.xtreme.tasks import TASKS

COLUMNS = "{id}\t{form}\t_\t{tag}\t_\t_\t{head}\t_\t{deps}\t_"


def conllu(*words: str) -> str:
    """Of "id form tag head [deps]" a sentence; "id form" is a multi-word token."""
    rows = []
    for word in words:
        number, form, tag, head, deps = (*word.split(" "), "_", "_", "_")[:5]
        rows.append(COLUMNS.format(id=number, form=form.replace("~", " "), tag=tag, head=head, deps=deps))
    return "\n".join(["# a comment", *rows, "", ""])


def convert(path: Path, content: str, language: str = "en") -> list[tuple[str, str]]:
    path.write_text(content, encoding="utf-8")
    return [(" ".join(row["words"]), " ".join(row["tags"])) for row in read_conllu(path, language)]


def test_a_multi_word_token_has_the_tag_of_its_highest_word(tmp_path: Path) -> None:
    # al = a (below mar) + el (below mar) are as high as each other, and ADP stands before DET; of don't only "do" is
    # below know, n't below do.
    spanish = conllu("1 voy VERB 0", "2-3 al", "2 a ADP 4", "3 el DET 4", "4 mar NOUN 1")
    assert convert(tmp_path / "a.conllu", spanish, "es") == [("voy al mar", "VERB ADP NOUN")]
    english = conllu("1-2 don't", "1 do AUX 3", "2 n't PART 1", "3 know VERB 0")
    assert convert(tmp_path / "a.conllu", english) == [("don't know", "AUX VERB")]
    last = conllu("1-3 dámelo", "1 me PRON 3", "2 lo PRON 3", "3 da VERB 0")
    assert convert(tmp_path / "a.conllu", last, "es") == [("dámelo", "VERB")]


@pytest.mark.parametrize(
    ("language", "tags", "expected"),
    [
        ("en", "AUX NOUN", "NOUN"),
        ("es", "AUX NOUN", "AUX"),
        ("es", "NOUN DET", "DET"),  # a tag that is in no list comes last
        ("fr", "ADP DET", "ADP"),
        ("fr", "NOUN PRON", "PRON"),
        ("it", "PRON ADV", "ADV"),
        ("de", "PRON ADV", "PRON"),
        ("de", "SYM _", "SYM"),
        ("de", "_ SYM", "_"),
    ],
)
def test_of_words_as_high_as_each_other_a_list_of_the_language_decides(
    language: str, tags: str, expected: str, tmp_path: Path
) -> None:
    first, second = tags.split()
    sentence = conllu("1-2 xy", f"1 x {first} 3", f"2 y {second} 3", "3 z VERB 0")
    assert convert(tmp_path / "a.conllu", sentence, language) == [("xy z", f"{expected} VERB")]


def test_enhanced_dependencies_make_a_word_lower(tmp_path: Path) -> None:
    # Both are below 3; by its enhanced dependencies the first is below 4 as well. An empty node is nobody's head.
    for deps, expected in (("3:x|4:y", "DET"), ("3:x|8.1:y", "ADP"), ("0:root", "ADP"), ("_", "ADP")):
        words = ("1-2 xy", f"1 x ADP 3 {deps}", "2 y DET 3", "3 z VERB 0", "4 w NOUN 3", "4.1 v NOUN")
        assert convert(tmp_path / "a.conllu", conllu(*words), "es") == [("xy z w", f"{expected} VERB NOUN")]


def test_ancestors_are_those_of_paths_even_in_circles() -> None:
    chance = random.Random(0)
    for _ in range(200):
        heads = {word: {chance.randrange(7) for _ in range(chance.randrange(1, 3))} for word in range(1, 7)}
        reached = {(word, head) for word, found in heads.items() for head in found}
        for _ in range(7):  # join paths until none is new
            reached |= {(a, d) for (a, b), (c, d) in itertools.product(reached, reached) if b == c}
        for word in heads:
            assert ancestors(word, heads) == {head for below, head in reached if below == word} - {word}


def test_empty_nodes_spaces_and_joiners_are_gone(tmp_path: Path) -> None:
    words = conllu("1 10~000 NUM 0", "1.1 gone VERB", "2 می\u200cرود VERB 1", "3 a\u00a0b X 1")
    assert convert(tmp_path / "a.conllu", words) == [("10000 میرود a\u00a0b", "NUM VERB X")]


@pytest.mark.parametrize(
    ("forms", "kept"),
    [("_", False), ("__", False), ("a_", False), ("a__", False), ("ab_", True), ("ab__", True), ("a", True)],
)
def test_a_sentence_of_underscores_is_left_out(forms: str, kept: bool, tmp_path: Path) -> None:
    sentence = conllu(*(f"{number} {form} X 0" for number, form in enumerate(forms, start=1)))
    other = conllu("1 a X 0", "2 b X 0")
    found = convert(tmp_path / "a.conllu", sentence + other)
    assert [words for words, _ in found] == [" ".join(forms)] * kept + ["a b"]


BROKEN_CONLLU = {
    "columns": ("1\tx\tx\tX\n", ":1: has 4 columns, the first '1'; allowed are the 10 of CoNLL-U. Download"),
    "no id": (conllu("x y X 0"), ":2: has 10 columns, the first 'x'; allowed are the 10"),
    "no word": (
        conllu("1-3 xyz", "1 x X 0", "2 y X 0"),
        ":2: has 'xyz' for the words 1 to 3, some of which are missing",
    ),
    "overlap": (conllu("1-2 a", "2-3 b", "1 x X 0", "2 y X 1", "3 z X 2"), ":3: has 'b' for the words 2 to 3, some of"),
    "backwards": (
        conllu("2-1 xy", "1 x X 0", "2 y X 1"),
        ":2: has 'xy' for the words 2 to 1, some of which are missing",
    ),
    "twice": (conllu("1 x X 0", "1 y X 0"), ":3: has the word 1 again; allowed is each number once in a sentence."),
    "no tag": (conllu("1 x ~ 0").replace("~", ""), ":2: has '' as its label; allowed are all but empty ones."),
    "no sentence": ("# a comment\n\n", ": has no sentence with words; allowed is one or more."),
}


@pytest.mark.parametrize(("content", "found"), BROKEN_CONLLU.values(), ids=BROKEN_CONLLU)
def test_a_broken_treebank_is_refused_with_its_line(content: str, found: str, tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    with pytest.raises(BadInput) as refused:
        convert(path, content)
    assert str(refused.value).startswith(f"{path}{found}")


def test_words_are_those_of_a_hand_made_sentence() -> None:
    lines = ["1-2 du _ _ _ _ _ _ _ _", "1 de _ ADP _ _ 2 _ _ _", "2 le _ DET _ _ 0 _ _ _"]
    rows = [("a:1", line.split()) for line in lines]
    assert tagged_words(rows, ["ADP", "DET"]) == [("du", "DET")]


def test_raw_panx_loses_its_language_and_a_line_without_a_tag_ends_a_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "de-test"
    path.write_text("de:Ada\tB-PER\nde::\tO\n\nde: a:b\t O \nde:x\nde:Öl \tB-ORG\n\n", encoding="utf-8")
    assert list(read_raw_panx(path)) == [
        {"words": ["Ada", ":"], "tags": ["B-PER", "O"]},
        {"words": ["a:b"], "tags": ["O"]},
        {"words": ["Öl"], "tags": ["B-ORG"]},
    ]
    assert caplog.messages == [f"{path}:5: this and 0 other lines are not language:word TAB tag, and end a sentence"]
    path.write_text("\nde:Ada B-PER\nde:x O\n", encoding="utf-8")
    with pytest.raises(
        BadInput, match="de-test:2: has 'de:Ada B-PER', and no line has a tag; allowed is language:word"
    ):
        read_raw_panx(path)
    path.write_text("de:Ada\tB-PER\nAda\tB-PER\n", encoding="utf-8")
    with pytest.raises(BadInput, match="de-test:2: has .*Ada.*; allowed is language:word TAB tag. Download"):
        read_raw_panx(path)


def test_what_is_written_has_no_blank_line_at_its_end_and_is_read_back(tmp_path: Path) -> None:
    examples = [{"words": ["a", "b"], "tags": ["X", "O"]}, {"words": [], "tags": []}, {"words": ["c"], "tags": ["X"]}]
    path = write_tagged(tmp_path / "a.tsv", examples)
    assert path.read_text() == "a\tX\nb\tO\n\n\nc\tX\n"
    assert list(read_tagged_examples(path)) == examples


def test_the_command_joins_treebanks_in_order_of_their_names(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for folder, name in (("a", "fr_sequoia-test.conllu"), ("b", "fr_gsd-test.conllu")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(conllu(f"1 {name} X 0"), encoding="utf-8")
    output, inputs = tmp_path / "udpos" / "test-fr.tsv", sorted(map(str, tmp_path.glob("*/*.conllu")))
    main(["udpos", str(output), *inputs, "--language", "fr"])
    assert output.read_text() == "fr_gsd-test.conllu\tX\n\nfr_sequoia-test.conllu\tX\n"
    assert capsys.readouterr().out == f"{output}: 2 sentences\n"
    (tmp_path / "raw").write_text("de:Ada\tB-PER\n", encoding="utf-8")
    main(["panx", str(tmp_path / "test-de.tsv"), str(tmp_path / "raw")])
    assert (tmp_path / "test-de.tsv").read_text() == "Ada\tB-PER\n"


@pytest.mark.parametrize(
    ("task", "content", "more"),
    [("udpos", conllu("1 a NOUNS 0"), ["--language", "es"]), ("panx", "de:a\tNOUNS\n", [])],
)
def test_the_command_refuses_tags_that_the_task_lacks(task: str, content: str, more: list[str], tmp_path: Path) -> None:
    (tmp_path / "raw").write_text(content, encoding="utf-8")
    with pytest.raises(BadInput, match="raw:[12]: has 'NOUNS' as its label; allowed are .*, "):
        main([task, str(tmp_path / "out.tsv"), str(tmp_path / "raw"), *more])
    assert not (tmp_path / "out.tsv").exists()


def test_what_the_command_writes_can_be_given_as_labels(tmp_path: Path) -> None:
    """As docs/xtreme.md has it; the words are passed over."""
    (tmp_path / "de-test").write_text("de:Ada\tB-PER\nde:Byron\tI-PER\n\nde:ja\tO\n", encoding="utf-8")
    main(["panx", str(tmp_path / "panx/test-de.tsv"), str(tmp_path / "de-test")])
    task = next(task for task in TASKS if task.name == "panx")
    unlabelled = Dataset.from_dict({"words": [["Ada", "Byron"], ["ja"]], "tags": [None, None]})
    assert references_of(task, unlabelled, "de", tmp_path) == [["B-PER", "I-PER"], ["O"]]
    (tmp_path / "panx/test-de.tsv").write_text("de\tAda\tB-PER\n", encoding="utf-8")
    with pytest.raises(BadInput, match="test-de.tsv:1: has 3 columns; allowed are 1, the tag, or 2, word TAB tag"):
        references_of(task, unlabelled, "de", tmp_path)


@pytest.mark.parametrize("arguments", [[], ["udpos"], ["udpos", "x.tsv"], ["panx", "x.tsv"], ["ner", "x", "y", "z"]])
def test_the_command_explains_itself(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert "usage: hictl prepare-xtreme" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["udpos", "x.tsv", "y"], ["panx", "x.tsv", "y", "--language", "de"]])
def test_a_language_is_for_treebanks(arguments: list[str]) -> None:
    with pytest.raises(BadInput, match="language is .*; allowed is a language for udpos and none for panx"):
        main(arguments)


def test_a_language_is_what_its_code_means(tmp_path: Path) -> None:
    lines = ["1-2 dalo _ _", "1 da NOUN 3", "2 lo AUX 3", "3 bien ADV 0"]  # by the list of Spanish AUX comes first
    path = tmp_path / "es.conllu"
    path.write_text(conllu(*lines), encoding="utf-8")
    tags = {code: read_conllu(path, code)[0]["tags"][0] for code in ("es", "ES", "spa", "es-MX", "pt")}
    assert tags == {"es": "AUX", "ES": "AUX", "spa": "AUX", "es-MX": "AUX", "pt": "NOUN"}
    with pytest.raises(BadInput, match="language is 'Spanish'; allowed are codes of languages, such as es"):
        main(["udpos", str(tmp_path / "x.tsv"), str(path), "--language", "Spanish"])


def test_an_input_is_not_overwritten(tmp_path: Path) -> None:
    """Where the output was forgotten, the first treebank stands in its place."""
    paths = [tmp_path / name for name in ("es_gsd.conllu", "es_pud.conllu")]
    for path in paths:
        path.write_text(conllu("1 ja X 0"), encoding="utf-8")
    with pytest.raises(BadInput, match=r"es_gsd.conllu: .*, which writing it would destroy, is an input"):
        main(["udpos", *map(str, (paths[0], *paths)), "--language", "es"])
    with pytest.raises(BadInput, match=r"es_gsd.conllu: exists and does not end in .tsv; name the output"):
        main(["udpos", *map(str, paths), "--language", "es"])
    assert paths[0].read_text("utf-8") == conllu("1 ja X 0")


def test_the_command_ends_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["hictl"])
    with pytest.raises(SystemExit, match="^error: nowhere: no such file"):
        hictl(["prepare-xtreme", "panx", "x.tsv", "nowhere"])
