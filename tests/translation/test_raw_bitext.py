"""Raw files of translation corpora: found anywhere, read as each of them is written, refused where sides differ."""

from pathlib import Path

import pytest
from toy_files import write

from hictl_hf.errors import BadInput
from hictl_hf.translation.raw_bitext import find_files, read_pairs, sentences

ENGLISH_GERMAN = ("en", "de")


def test_files_are_found_anywhere_by_language_role_and_release(tmp_path: Path) -> None:
    for name in (
        "a/b/news-src.en.sgm", "news-ref.de.sgm", "c/en-de/t.en-de.en.xml", "c/de-en/t.de-en.de.xml", "x/S2.en",
        "S2.de",
    ):  # fmt: skip
        write(tmp_path / name, "x\n")
    patterns = ["news-{role}.{language}.sgm", "t.{language}-{other}.{language}.xml", "S*.{language}"]
    found = find_files(tmp_path, patterns, ENGLISH_GERMAN)
    assert [[path.name for path in pair] for pair in found] == [
        ["news-src.en.sgm", "news-ref.de.sgm"],
        ["t.en-de.en.xml", "t.de-en.de.xml"],
        ["S2.en", "S2.de"],
    ]
    (packed,) = find_files(write(tmp_path / "y/z.tsv.gz", "x\n").parent, ["z.tsv"], ENGLISH_GERMAN)
    assert packed[0] == packed[1] == tmp_path / "y/z.tsv.gz"


def test_a_file_that_is_missing_or_there_twice_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.en", "x\n")
    with pytest.raises(BadInput, match="has no a.de, nor a.de.gz; .*docs/translation_data.md says what to download"):
        find_files(tmp_path, ["a.{language}"], ENGLISH_GERMAN)
    with pytest.raises(BadInput, match="has only one of a.en and a.de; allowed are both. Add the other"):
        find_files(tmp_path, ["a.{language}"], ENGLISH_GERMAN, optional=True)
    with pytest.raises(BadInput, match="has none of b.{language}, c.tsv; allowed is one or more"):
        find_files(tmp_path, ["b.{language}", "c.tsv"], ENGLISH_GERMAN, optional=True)
    write(tmp_path / "sub" / "a.en.gz", "x\n")
    with pytest.raises(BadInput, match=r"has a.en 2 times \(a.en, sub/a.en.gz\); allowed is once. Remove all but"):
        find_files(tmp_path, ["a.{language}"], ENGLISH_GERMAN)


def test_what_is_optional_and_not_there_is_passed_over(tmp_path: Path) -> None:
    for name in ("b.en", "b.de"):
        write(tmp_path / name, "x\n")
    found = find_files(tmp_path, ["a.tsv", "b.{language}"], ENGLISH_GERMAN, optional=True)
    assert found == [(tmp_path / "b.en", tmp_path / "b.de")]


TALK = """<url>http://www.ted.com/talks/1</url>
<keywords>talks, cats</keywords>
<speaker>Ada {language}</speaker>
<talkid>1</talkid>
<title>Cats {language}</title>
<description>TED Talk: cats {language} .</description>
 The  cat\u00a0sees it. {language}
I < 3 cats. {language}
<reviewer href="http://x">A B {language}</reviewer>
<translator>C</translator>
"""
XML = """<?xml version="1.0" encoding="UTF-8"?>
<mteval>\n<refset setid="iwslt" srclang="german" trglang="english" refid="1">
<doc docid="7" genre="lectures">\n<title>Cats</title>\n<description>About cats.</description>
<seg id="1"> The cat’s   here. {language} </seg>
<seg id="2"></seg>
  <hl>\n<seg id="3">R&amp;D <b>x</b> {language}</seg>\n</hl>
</doc>\n</refset>\n</mteval>
"""
CASES = {
    "train.tags.de-en.{language}": (
        TALK, ["Cats {}", "TED Talk: cats {} .", "The cat sees it. {}", "I < 3 cats. {}"],
    ),
    "IWSLT14.TED.tst2010.de-en.{language}.xml": (XML, ["The cat’s here. {}", "", "R&amp;D <b>x</b> {}"]),
    "newstest2014-deen-{role}.{language}.sgm": (
        XML.replace('id="1"', "id=1"), ["The cat’s here. {}", "", "R&amp;D <b>x</b> {}"],
    ),
    "europarl-v7.de-en.{language}": ("a  {language}\r\n\n<seg id= {language}\n", ["a {}", "", "<seg id= {}"]),
    "giga.{language}.gz": ("a\u2028b {language}\nc", ["a b {}", "c"]),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "expected"), [(name, *case) for name, case in CASES.items()], ids=CASES)
def test_sentences_are_read_as_the_file_is_written(
    name: str, content: str, expected: list[str], tmp_path: Path
) -> None:
    for language, role in zip(ENGLISH_GERMAN, ("src", "ref")):
        write(tmp_path / name.format(language=language, role=role), content.replace("{language}", language))
    files = find_files(tmp_path, [name.removesuffix(".gz")], ENGLISH_GERMAN)
    assert list(read_pairs(files, ENGLISH_GERMAN)) == [(line.format("en"), line.format("de")) for line in expected]


def test_tags_that_are_kept_are_lines(tmp_path: Path) -> None:
    for language in ENGLISH_GERMAN:
        write(tmp_path / f"train.tags.de-en.{language}", TALK.replace("{language}", language))
    files = find_files(tmp_path, ["train.tags.de-en.{language}"], ENGLISH_GERMAN)
    lines = [english for english, _ in read_pairs(files, ENGLISH_GERMAN, kept_tags=("<speaker",))]
    assert lines[0] == "<speaker>Ada en</speaker>" and len(lines) == 5


def test_a_table_has_its_columns_in_the_order_of_its_name(tmp_path: Path) -> None:
    for name in ("europarl-v9.de-en.tsv", "en-de.bicleaner07.txt.gz"):
        first, second = ("de", "en") if "v9" in name else ("en", "de")
        write(tmp_path / name, f"{first}  1\t{second} 1\tmore\n{first} 2\n\t{second} 3\n")
        files = find_files(tmp_path, [name.removesuffix(".gz")], ENGLISH_GERMAN)
        # a line without both sides is a pair without text, as an empty line of other files is
        found = list(read_pairs(files, ENGLISH_GERMAN))
        alone = [("", "de 2"), ("en 3", "")] if first == "de" else [("en 2", ""), ("", "de 3")]
        assert found == [("en 1", "de 1"), *alone]
    other = write(tmp_path / "europarl-v9.cs-en.tsv", "a\tb\n")
    with pytest.raises(
        BadInput, match="does not have both languages in its name; allowed is .* en-de or de-en. Rename it"
    ):
        list(read_pairs([(other, other)], ENGLISH_GERMAN))


def test_sides_of_unequal_length_are_refused_with_the_shorter_ones_lines(tmp_path: Path) -> None:
    english, german = write(tmp_path / "a.en", "1\n2\n3\n"), write(tmp_path / "a.de", "1\n2\n")
    for files, languages in (((english, german), ENGLISH_GERMAN), ((german, english), ("de", "en"))):
        with pytest.raises(
            BadInput, match=r"a.de has 2 lines, .*a.en has more lines; allowed are files of equal length"
        ):
            list(read_pairs([files], languages))


def test_a_file_without_sentences_and_a_broken_segment_are_refused(tmp_path: Path) -> None:
    files = [(write(tmp_path / "a.en.sgm", "<doc>\n</doc>\n"), write(tmp_path / "a.de.sgm", "<doc>\n"))]
    with pytest.raises(BadInput, match="a.en.sgm: holds no sentence; allowed is one or more"):
        list(read_pairs(files, ENGLISH_GERMAN))
    write(tmp_path / "a.de.sgm", "<seg id" + ">" * 300_000)  # took the square of its length
    with pytest.raises(BadInput, match="a.de.sgm:1: has '<seg id>>"):
        list(sentences(tmp_path / "a.de.sgm", ()))
    write(tmp_path / "a.en.sgm", '<doc>\n<seg id="1">open\n</seg>\n')
    with pytest.raises(BadInput, match=r"a.en.sgm:2: has '<seg id=\"1\">open'; allowed is <seg id=\"1\">text</seg> on"):
        list(read_pairs(files, ENGLISH_GERMAN))


def test_all_files_of_a_set_follow_one_another(tmp_path: Path) -> None:
    for name in "ab":
        for language in ENGLISH_GERMAN:
            write(tmp_path / f"{name}.{language}", f"{name} {language}\n")
    files = find_files(tmp_path, ["b.{language}", "a.{language}"], ENGLISH_GERMAN)
    assert list(read_pairs(files, ENGLISH_GERMAN)) == [("b en", "b de"), ("a en", "a de")]
