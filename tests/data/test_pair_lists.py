"""Lists of pairs are read as the source names their columns; Tatoeba's exports are joined by their links."""

import gzip
import json
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from toy_files import Skips, records_of, texts, write_lines

from hictl_hf.data.corpus import load_corpus
from hictl_hf.data.records import Cursor
from hictl_hf.data.sources import check_unchanged, list_shards, read_rows
from hictl_hf.errors import BadInput

WIKIMATRIX = [
    "1.2\tDer Hund.\tThe dog.",
    "1.04\tDie Katze.\tThe cat.",
    "1.0399\tDas Haus.\tA tree.",
]  # LASER's margin first
BITEXTOR = ["http://a\thttp://b\tThe dog.\tDer Hund.\t0.7", "http://a\thttp://b\tThe cat.\tDer Baum.\t0.1"]


def test_pairs_of_a_list_are_named_by_the_source(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "pairs.txt", ['"The dog.\tDer „Hund“.', "The <s> cat.\tDie Katze."])
    expected = [{"en": '"The dog.', "de": "Der „Hund“."}, {"en": "The <s> cat.", "de": "Die Katze."}]
    assert texts(f"en+de:{path}") == texts(f"en+de:{path.parent}") == expected
    two = write_lines(tmp_path / "x/source.txt", ["a", "b"]), write_lines(tmp_path / "x/target.xz", ["c", "d"])
    two[1].write_bytes(two[1].read_bytes())
    two = two[0], write_lines(tmp_path / "x/target.txt", ["c", "d"])
    assert texts(f"en:{two[0]}+sr-Latn:{two[1]}") == [{"en": "a", "sr-Latn": "c"}, {"en": "b", "sr-Latn": "d"}]


@pytest.mark.parametrize(
    ("layout", "lines", "kept", "low"),
    [
        ("1.04+de+en", WIKIMATRIX, ["The dog.", "The cat."], 1),
        ("1.04+de+en", ["nan\tx\ty", "2\tDer Hund.\tThe dog."], ["The dog."], 1),
        ("_+de+en", WIKIMATRIX, ["The dog.", "The cat.", "A tree."], 0),
        ("_+_+en+de+0.5", BITEXTOR, ["The dog."], 1),
        ("-1+de+en", WIKIMATRIX[:1], ["The dog."], 0),
    ],
)
def test_pairs_below_the_threshold_are_counted(
    layout: str, lines: list[str], kept: list[str], low: int, tmp_path: Path
) -> None:
    path, skips = write_lines(tmp_path / "scored.tsv.gz", lines), Skips()
    assert [row.texts["en"] for row in read_rows(f"{layout}:{path}", skips)] == kept
    assert skips.counts.total() == skips.counts["low score"] == low


@pytest.mark.parametrize("name", ["a.tsv", "en+de:b.tsv"])
def test_cells_quoted_as_in_csv_are_texts_and_logged_once_a_file(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As pandas writes them with tabs, where nothing says whether they are quotes of the text."""
    lines = ['He said "no".\tEr sagte ""nein"".', '"He said ""no""."\tEr sagte nein.', '"""No"", he said."\t"Nein."']
    head = ["en\tde"] if name == "a.tsv" else []
    path = write_lines(tmp_path / name.rpartition(":")[2], head + lines)
    found = texts(name.replace(path.name, str(path)))
    assert [pair["en"] for pair in found] == [line.split("\t")[0] for line in lines]
    logged = [record.getMessage() for record in caplog.records if "as CSV has them" in record.getMessage()]
    assert len(logged) == 1 and logged[0].startswith(f"{path}:{len(head) + 2}: has cells in quotes")


@pytest.mark.parametrize(("score", "texts_in_quotes"), [("", 10), ("1.05\t", 10), ("", 9)])
def test_a_file_of_quoted_cells_is_logged_and_a_dialogue_is_not(
    score: str, texts_in_quotes: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """csv.QUOTE_ALL and R's write.table quote each cell; a few lines of dialogue may be in quotes, too."""
    lines = [f'{score}"Go {number}."\t"Geh {number}."' for number in range(texts_in_quotes + 1)] + [f"{score}Go.\tGeh."]
    path = write_lines(tmp_path / "a.tsv", lines)
    assert len(texts(f"{'0+' * bool(score)}en+de:{path}")) == len(lines)
    assert ("has cells in quotes, as CSV has them" in caplog.text) == (texts_in_quotes == 10)


def test_the_report_of_a_corpus_has_the_pairs_of_low_score(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "scored.tsv", WIKIMATRIX)
    report = load_corpus([f"1.1+de+en:{path}"], cache_dir=tmp_path / "cache")[1]
    assert report.skipped == {"low score": 2} and report.kept == {"de-en": 1}


def test_lines_that_are_no_pair_are_broken(tmp_path: Path) -> None:
    path, skips = write_lines(tmp_path / "a.tsv", ["high\tx\ty", "1\tx", "1\tx\ty\tz", "2\tx\ty"]), Skips()
    assert [row.texts for row in read_rows(f"1+en+de:{path}", skips)] == [{"en": "x", "de": "y"}]
    assert skips.messages[0] == f"{path}:1: has 'high' as its score; allowed is a number. Correct the line."
    assert "has 2 columns separated by tabs; allowed are 3, as named in 1+en+de" in skips.messages[1]
    assert len(skips.messages) == 3


@pytest.mark.parametrize("layout", ["en+en", "en+1.0", "1+2+en+de", "en+German", "en+_", "en+de+"])
def test_a_layout_without_two_languages_is_refused(layout: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.tsv", ["x\ty"])
    with pytest.raises(BadInput, match=re.escape(f"{layout}:{path}: has the columns {layout!r}; allowed are two")):
        texts(f"{layout}:{path}")


@pytest.mark.parametrize(
    ("layout", "line"),
    [
        ("en+de", "en\tde"), ("de+en", "en\tde"), ("en+de", "en_US\tde-DE"), ("_+deu+en", "id\tDE \teng"),
        ("0.5+en+de", "1\ten\tde"),
    ],
)  # fmt: skip
def test_names_of_columns_are_no_pair(tmp_path: Path, layout: str, line: str) -> None:
    path = write_lines(tmp_path / "a.tsv", [line, "1\tThe cat.\tDie Katze."])
    with pytest.raises(
        BadInput, match=r"a.tsv:1: is .*, the names of the columns; .* name a .tsv without .*: before it"
    ):
        texts(f"{layout}:{path}")
    path = write_lines(tmp_path / "b.tsv", ["en\tan", "de\tvon"])
    assert len(texts(f"fr+de:{path}")) == 2


# --- rows whose columns have other names ------------------------------------------------------------------------------


NAMED = {"anchor": "The dog.", "positive": "Der Hund.", "score": 0.9}, {"score": 0.1, "positive": "A", "anchor": "B"}


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "folder of the Hub"])
def test_rows_with_other_names_of_columns_are_named_by_the_source(ending: str, tmp_path: Path) -> None:
    """As sentence-transformers has them: anchor and positive, sentence1 and sentence2, english and non_english."""
    path = tmp_path / f"train.{ending}"
    if ending == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(NAMED), path)
    else:
        path = write_lines(tmp_path / "train.jsonl", [*map(json.dumps, NAMED)])
    source = f"hub:{tmp_path}" if ending.startswith("folder") else str(path)
    assert texts(f"en+de+_:{source}") == [{"en": "The dog.", "de": "Der Hund."}, {"en": "B", "de": "A"}]
    skips = Skips()
    assert [row.texts for row in read_rows(f"en+de+0.5:{source}", skips)] == [{"en": "The dog.", "de": "Der Hund."}]
    assert skips.counts == {"low score": 1}
    complete = records_of(f"en+de+_:{source}", Cursor(), Skips())
    assert records_of(f"en+de+_:{source}", Cursor(*complete[0][1:]), Skips()) == complete[1:]
    with pytest.raises(
        BadInput, match=r"has the columns \['anchor', 'positive', 'score'\]; allowed are 2, .* Name each"
    ):
        texts(f"en+de:{source}")


def test_names_in_another_order_than_in_the_first_file_are_the_same_columns(tmp_path: Path) -> None:
    rows = {"a": {"anchor": "the cat", "positive": "die Katze"}, "b": {"positive": "der Hund", "anchor": "the dog"}}
    for name, row in rows.items():
        write_lines(tmp_path / f"{name}.jsonl", [json.dumps(row)])
    write_lines(tmp_path / "c.csv", ["source,target", "a bird,ein Vogel"])
    found = texts(f"en+de:{tmp_path}")
    assert found == [
        {"en": f"{x}", "de": y} for x, y in (("the cat", "die Katze"), ("the dog", "der Hund"), ("a bird", "ein Vogel"))
    ]


@pytest.mark.parametrize(
    ("layout", "first", "is_logged"),
    [
        ("en+de", "anchor,positive", False),
        ("en+de", "Question,Answer", False),
        ("en+de", "en,deu", False),
        ("en+de", "dog,Hund", True),
        ("_+en+de", ",sentence1,sentence2", False),
        ("_+en+de", "The number.,left,right", True),
        ("en+de+0.5", "english,non_english,A score", False),
    ],
)
def test_the_first_line_of_csv_names_the_columns_and_unusual_names_are_logged(
    layout: str, first: str, is_logged: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cells = {"en": '"The dog, 1"', "de": "Der Hund.", "_": "7", "0.5": "0.9"}
    line = ",".join(cells[name] for name in layout.split("+"))
    path = write_lines(tmp_path / "a.csv", [first, line, line])
    assert texts(f"{layout}:{path}") == [{"en": "The dog, 1", "de": "Der Hund."}] * 2
    complete = records_of(f"{layout}:{path}", Cursor(), Skips())
    assert records_of(f"{layout}:{path}", Cursor(*complete[0][1:]), Skips()) == complete[1:]
    message = f"{path}: its first line, {first!r}, is read as the names of the columns, not as a pair"
    assert [record.getMessage() for record in caplog.records] == [message] * is_logged, "once"


@pytest.mark.parametrize(
    ("layout", "lines", "message"),
    [
        ("en+de", ["The dog.,Der Hund.", "x,y"], "begins with the line 'The dog.,Der Hund.', which may be a pair;"),
        ("en+de", ["Good morning,Hallo", "x,y"], "which may be a pair; allowed is a line with a name for each"),
        ("en+zh", ["Hello,你好", "x,y"], "begins with the line 'Hello,你好', which may be a pair"),
        ("en+de", [",Hallo", "x,y"], "which may be a pair"),
        ("en+de", ["anchor,positive,negative", "x,y,z"], "has the columns .*; allowed are 2, as named in en"),
        ("de+en", ["en,de", "x,y"], "has the column 'en', which .* names de; allowed is its own language"),
        ("en+de", ["text,text", "x,y"], "allowed is each name once"),
        ("en+de", ["anchor;positive", "x;y"], "has columns separated by ';'"),
    ],
)
def test_a_first_line_of_csv_that_may_be_a_pair_is_refused(
    layout: str, lines: list[str], message: str, tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "a.csv", lines)
    with pytest.raises(BadInput, match=f"a.csv.*{message}"):
        texts(f"{layout}:{path}")


@pytest.mark.parametrize(
    ("layout", "first", "is_pair"),
    [
        ("en+de", "anchor\tpositive", False),
        ("_+en+0.5+de", "number\tSource \tscore\tTarget", False),
        ("en+de", "text\tText", True),
        ("en+de", "dog\tHund", True),
        ("en+de", "source\tQuelle", True),
    ],
)
def test_usual_names_in_the_first_line_of_a_list_are_no_pair(
    layout: str, first: str, is_pair: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cells = {"en": "anchor", "de": "positive", "_": "7", "0.5": "0.9"}
    path = write_lines(tmp_path / "a.tsv", [first, "\t".join(cells[name] for name in layout.split("+"))])
    found = texts(f"{layout}:{path}")
    assert len(found) == 1 + is_pair and found[-1] == {"en": "anchor", "de": "positive"}, "on the second line a pair"
    assert ("is read as the names of the columns, not as a pair" in caplog.text) != is_pair


@pytest.mark.parametrize(("first", "is_doubtful"), [("Good morning!,Guten Morgen", True), ("source,target", False)])
def test_a_pair_in_place_of_names_is_warned_of_in_a_folder_that_datasets_reads(
    first: str, is_doubtful: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "train.csv").write_text(f"{first}\nthe cat,die Katze\n")
    for _ in range(2):
        assert texts(f"en+de:hub:{tmp_path}") == [{"en": "the cat", "de": "die Katze"}]
    message = (
        f"hub:{tmp_path}: has columns called ['Good morning!', 'Guten Morgen']; if that is the first pair of a CSV"
    )
    assert [message in record.getMessage() for record in caplog.records if "columns" in record.msg] == [
        True
    ] * is_doubtful


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (
            {"anchor": "a", "negative": "b"},
            "has the columns .*'negative'.*; allowed are .*'positive'.*, as in the first",
        ),
        ({"anchor": "a"}, "has the columns .*; allowed are"),
        ({"anchor": "a", "positive": ["b"]}, "has .*b.*; allowed"),
    ],
)
def test_a_row_that_differs_from_the_first_is_skipped(row: dict, problem: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [*map(json.dumps, [{"anchor": "x", "positive": "y"}, row])])
    skips = Skips()
    assert [row.texts for row in read_rows(f"en+de:{path}", skips)] == [{"en": "x", "de": "y"}]
    assert skips.counts == {"broken": 1} and re.search(f"a.jsonl:2: {problem}", skips.messages[0])


@pytest.mark.parametrize(
    ("names", "layout", "is_refused"),
    [
        ("en de", "de+en", True),
        ("eng deu", "en+de", False),
        ("en de", "en-GB+de-AT", False),
        ("text de", "en+fr", True),
    ],
)
def test_a_column_that_names_its_language_is_not_called_otherwise(
    names: str, layout: str, is_refused: bool, tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [json.dumps(dict.fromkeys(names.split(), "Hotel"))])
    if is_refused:
        with pytest.raises(
            BadInput, match="a.jsonl: has the column '(en|de)', which .* names (de|fr); allowed is its own"
        ):
            texts(f"{layout}:{path}")
    else:
        assert len(texts(f"{layout}:{path}")) == 1


# --- Tatoeba ----------------------------------------------------------------------------------------------------------


def tatoeba(folder: Path) -> Path:
    """The weekly export: tab-separated in spite of .csv, links in both directions."""
    sentences = ["1\teng\tThe cat.", "2\tdeu\tDie Katze.", "3\tfra\tLe chat.", "5\teng\tA cat.", '7\tdeu\t"Na, Katze?"']
    write_lines(folder / "sentences.csv", sentences)
    write_lines(folder / "links.csv", ["1\t2", "2\t1", "1\t3", "3\t1", "5\t2", "2\t5", "7\t9", "1\t5", "5\t7"])
    return folder


def test_linked_sentences_are_pairs_once(tmp_path: Path) -> None:
    folder = tatoeba(tmp_path / "t")
    expected = [("The cat.", "Die Katze."), ("A cat.", "Die Katze."), ("A cat.", '"Na, Katze?"')]
    assert texts(f"tatoeba:eng+deu:{folder}") == [{"eng": eng, "deu": deu} for eng, deu in expected]
    assert texts(f"tatoeba:deu+fra+eng:{folder}") == [{"deu": deu, "eng": eng} for eng, deu in expected]
    assert texts(f"tatoeba:fra+eng:{folder}") == [{"fra": "Le chat.", "eng": "The cat."}]
    (shard,) = list_shards(f"tatoeba:eng+deu:{folder}")
    check_unchanged(shard)
    assert sorted(Path(path).name for path in shard.sizes) == ["links.csv", "sentences.csv"]


def test_files_by_language_and_pair_are_read_too(tmp_path: Path) -> None:
    write_lines(tmp_path / "eng_sentences.tsv.gz", ["1\teng\tThe cat."])
    write_lines(tmp_path / "deu_sentences_detailed.tsv", ["2\tdeu\tDie Katze.\tTom\t\\N\t\\N"])
    write_lines(tmp_path / "deu-eng_links.tsv", ["2\t1"])
    assert texts(f"tatoeba:eng+deu:{tmp_path}") == [{"eng": "The cat.", "deu": "Die Katze."}]
    pairs = write_lines(
        tmp_path / "Sentence pairs in English-German.tsv", ["1\tThe cat.\t2\tDie Katze."], start=b"\xef\xbb\xbf"
    )
    assert texts(f"_+eng+_+deu:{pairs}") == [{"eng": "The cat.", "deu": "Die Katze."}]


def test_what_is_missing_of_tatoeba_is_told_with_the_command(tmp_path: Path) -> None:
    folder = tatoeba(tmp_path / "t")
    with pytest.raises(BadInput, match=r"has no sentence in swh; allowed are Tatoeba's own codes"):
        texts(f"tatoeba:eng+swh:{folder}")
    (folder / "links.csv").rename(folder / "links.tar.bz2")
    with pytest.raises(BadInput, match=r"has no links; allowed is .* tar -C \S+ -xjf \S+/links.tar.bz2\.$"):
        texts(f"tatoeba:eng+deu:{folder}")
    write_lines(folder / "links.csv", ["1\t2", "x"])
    skips = Skips()
    assert len([*read_rows(f"tatoeba:eng+deu:{folder}", skips)]) == 1 and "'x' (" in skips.messages[0]
    (folder / "sentences.csv").write_bytes(gzip.compress(b"1\teng\tx\n"))
    with pytest.raises(BadInput, match="sentences.csv: is compressed with gzip"):
        texts(f"tatoeba:eng+deu:{folder}")
