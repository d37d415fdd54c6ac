"""A source stands for its files in order; what is no source, or is broken as a whole, is refused with a fix."""

import bz2
import gzip
import io
import json
import lzma
import re
import tarfile
import zipfile
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from toy_files import (
    FLAT_LINES,
    GOOD,
    PAIRS,
    TRANSLATIONS,
    Skips,
    catalogue,
    moses,
    parquet_with,
    records_of,
    saved,
    texts,
    write_lines,
)

from hictl_hf.data.lines import read_texts
from hictl_hf.data.records import Cursor
from hictl_hf.data.sources import check_unchanged, list_shards, read_rows, read_shard
from hictl_hf.errors import BadInput

LATIN = pyarrow.array([b"\xe4"]).view(pyarrow.utf8())
MANY = gzip.compress(GOOD * 1000)
ENDINGS = "allowed here are .jsonl"
# Files to write, the source below their folder, the place the message names, what it says was found, and the fix.
BROKEN_SOURCES = {
    "missing file": ({}, "a.jsonl", "a.jsonl: does not exist", ENDINGS, "Check the path"),
    "empty file": ({"a.jsonl": b""}, "a.jsonl", "a.jsonl: is empty", "one row or more", "Fill it or leave it out"),
    "blank file": ({"a.jsonl": b"\n\n"}, "a.jsonl", "a.jsonl: holds no rows", "one or more", "Fill it"),
    "empty gzip": ({"a.csv.gz": gzip.compress(b"")}, "a.csv.gz", "a.csv.gz: holds no rows", "", "Fill it"),
    "only a header": ({"a.csv": b"en,de\n"}, "a.csv", "a.csv: holds no rows", "one or more", "Fill it"),
    "folder without data": ({"d/x.md": b"x"}, "d", "d: has no file we can read", ENDINGS, "Check the path"),
    "folder of plain text": ({"d/x.txt": b"x"}, "d", "d: has no file we can read", ENDINGS, "sw:folder"),
    "pattern without match": ({}, "*.csv", "*.csv: matches no file", ENDINGS, "Check the path"),
    "unknown ending": ({"a.xlsx": b"x"}, "a.xlsx", "a.xlsx: has the ending '.xlsx'", ENDINGS, "Rename or convert"),
    "text without language": ({"a.txt": b"x"}, "a.txt", "a.txt: has the ending '.txt'", ENDINGS, "sw:file.txt"),
    "truncated gzip": ({"a.jsonl.gz": MANY[:-30]}, "a.jsonl.gz", "a.jsonl.gz: cannot be read", "EOFError", "Copy"),
    "not gzip": ({"a.jsonl.gz": GOOD}, "a.jsonl.gz", "a.jsonl.gz: is not", "text compressed with gzip", "without .gz"),
    "hidden gzip": ({"a.jsonl": MANY}, "a.jsonl", "a.jsonl: is compressed", "if it ends in .gz", "Rename it"),
    "truncated parquet": (
        {"a.parquet": parquet_with({"en": ["x"]})[:-20]},
        "a.parquet",
        "a.parquet: cannot",
        "ArrowInvalid",
        "again",
    ),
    "Latin-1 parquet": ({"a.parquet": parquet_with({"en": LATIN})}, "a.parquet", "a.parquet: cannot", "UTF-8", "write"),
    "parquet columns": (
        {"a.parquet": parquet_with({"src": [1], "target": [2]})},
        "a.parquet",
        "",
        "'target'",
        "Rename",
    ),
    "UTF-16": ({"a.csv": "en,de\nx,y\n".encode("utf-16")}, "a.csv", "a.csv: is UTF-16", "allowed is UTF-8", "iconv"),
    "UTF-16 without mark": ({"a.csv": "en,de\nx,y\n".encode("utf-16-be")}, "a.csv", "a.csv: is UTF-16", "", "iconv"),
    "table without header": ({"a.csv": b"Hello,Hallo\n"}, "a.csv", "a.csv:1: has the columns", "'Hello'", "Rename"),
    "column twice": ({"a.tsv": b"en\ten\nx\ty\n"}, "a.tsv", "a.tsv:1: has the columns", "each name once", "Rename one"),
    "open quote": ({"a.csv": b'en,de\nx,y\n"x,y\nx,y\n'}, "a.csv", "a.csv:3: opens a quote", "closed", "Close it"),
    "JSON lists": ({"a.jsonl": b'["x", "y"]'}, "a.jsonl", "a.jsonl:1: is an array of texts", "one object", "de: .[1]"),
    "JSON array": ({"a.json": b'[{"en": "x"}]'}, "a.json", "a.json:1: is one JSON array", "one object a line", "jq"),
    "Moses lengths": (
        {"c.en": b"1\n2\n", "c.de": b"1\n"},
        "c.{en,de}",
        "c.en has 2 lines",
        "c.de has 1 lines",
        "Align",
    ),
    "Moses side missing": ({"c.en": b"1\n"}, "c.{en,de}", "c.de: does not exist", "each of en, de", "Check the path"),
    "Moses languages": (
        {"c.en": b"1\n"},
        "c.{en,German}",
        "c.German: ",
        "en, German, of which German is no language",
        "Name the languages, with their codes: en:",
    ),
    "damaged mo": ({"de/LC_MESSAGES/a.mo": b"\0" * 40}, "de", "de/LC_MESSAGES/a.mo: cannot be read", "", "msgunfmt"),
    "damaged po": ({"a.po": b'msgid "x"\nnonsense\n'}, "a.po", "a.po: cannot be read", "line 2", "msgfmt -c"),
    "po without language": (
        {"a.po": b'msgid "x"\nmsgstr "y"\n'},
        "a.po",
        "a.po: has '' as its language",
        "en",
        "header",
    ),
}


def test_a_table_under_a_language_is_to_be_written_alone(tmp_path: Path) -> None:
    """Beside other languages' it was taken for a Moses file."""
    for language in ("en", "sw"):
        write_lines(tmp_path / f"{language}.jsonl", [json.dumps({"text": language, "lang": language})])
    path = tmp_path / "sw.jsonl"
    with pytest.raises(BadInput, match=f"has the ending '.jsonl'; .* Write {path} alone: such a file names its"):
        texts(f"sw:{path}")
    assert texts(path) == [{"sw": "sw"}]


def test_parquet_of_texts_under_a_language_is_to_be_read_as_a_data_set(tmp_path: Path) -> None:
    """OSCAR and CC-100 are exported so. The fix named was to rename the file to .parquet."""
    (tmp_path / "a.parquet").write_bytes(parquet_with({"text": ["habari"]}))
    with pytest.raises(BadInput, match="has the ending '.parquet'; .* only a column 'text', write (.*), with") as error:
        texts(f"sw:{tmp_path}/a.parquet")
    source = re.search(r"write (\S+), with the code", str(error.value))
    assert source and texts(source[1]) == [{"sw": "habari"}]


def test_a_pattern_and_a_folder_are_read_in_order_of_names(tmp_path: Path) -> None:
    for name in ("b", "c", "a"):
        write_lines(tmp_path / f"{name}.jsonl", [json.dumps({"text": name, "lang": "sw"})])
    write_lines(tmp_path / "notes.md", ["not data"])
    expected = [{"sw": "a"}, {"sw": "b"}, {"sw": "c"}]
    assert texts(tmp_path) == expected
    assert texts(tmp_path / "*.jsonl") == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("hub:owner/books", ("owner/books", None, "train")),
        ("hub:books:de-en", ("books", "de-en", "train")),
        ("hub:books::dev", ("books", None, "dev")),
        ("hub:books:de-en:dev", ("books", "de-en", "dev")),
    ],
)
def test_a_hub_dataset_is_streamed(source: str, expected: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(name: str, config: str | None, split: str, streaming: bool) -> list[dict]:
        asked.append((name, config, split))
        assert streaming
        return [{"translation": pair, "id": 1} for pair in TRANSLATIONS]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert texts(source) == TRANSLATIONS
    assert asked == [expected]


@pytest.mark.parametrize(("split", "numbers"), [("train[1:]", "12"), ("train[:50%]", "01"), ("test+train[:1]", "30")])
def test_a_hub_dataset_is_cut_and_joined_as_datasets_does(split: str, numbers: str, tmp_path: Path) -> None:
    for name, texts_of in (("train", "012"), ("test", "3")):
        write_lines(tmp_path / f"{name}.jsonl", [json.dumps({"text": text, "lang": "sw"}) for text in texts_of])
    assert texts(f"hub:{tmp_path}::{split}") == [{"sw": number} for number in numbers]


def test_a_hub_dataset_of_one_language_is_named_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": "0", "text": "habari"}, {"id": "1"}, {"id": "2", "text": "asante"}]
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: rows)
    skips = Skips()
    assert [row.texts for row in read_rows("sw:hub:cc100:sw", skips)] == [{"sw": "habari"}, {"sw": "asante"}]
    assert len(skips.messages) == 1 and "sw:hub:cc100:sw:2" in skips.messages[0]


@pytest.mark.parametrize("row", [{"en": "a cat", "de": "eine Katze"}, {"translation": {"en": "a cat", "de": "eine"}}])
def test_a_hub_dataset_named_with_a_language_is_not_read_in_those_of_its_columns(
    row: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: [row])
    skips = Skips()
    assert list(read_rows("sw:hub:books", skips)) == []
    assert skips.counts == {"broken": 1} and "allowed is a column 'text', in sw." in skips.messages[0]


def test_a_package_is_read_by_its_catalogues_without_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("raise ImportError('reading must not run code')")
    write_lines(tmp_path / "shop" / "rows.jsonl", ['{"en": "not", "de": "nicht"}'])
    for language in ("de", "pt_BR"):
        saved(tmp_path / "shop" / "locale" / language / "LC_MESSAGES" / "django.mo", catalogue())
    monkeypatch.syspath_prepend(tmp_path)
    languages = [list(row.texts)[1] for row in read_rows("package:shop", Skips())]
    assert languages == ["de"] * len(PAIRS) + ["pt-BR"] * len(PAIRS)
    for name in ("no_such_package", "json.decoder", "../shop", "json", "transformers"):  # which has no catalogue
        with pytest.raises(BadInput, match=re.escape(name)):
            list(read_rows(f"package:{name}", Skips()))


def test_of_several_catalogues_those_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    odd = {"de/LC_MESSAGES/damaged.mo": b"\0" * 40, "de/LC_MESSAGES/empty.mo": b"", "languages/a.po": b'msgid "x"\n'}
    for name, content in odd.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    saved(tmp_path / "br" / "LC_MESSAGES" / "app.mo", catalogue())
    skips = Skips()
    assert [row.is_catalogue_entry for row in read_rows(str(tmp_path), skips)] == [True] * len(PAIRS)
    assert skips.counts == {"broken": 3}
    for name, message in zip(odd, skips.messages, strict=True):
        assert message.startswith(f"{tmp_path}/{name}:1: ") and message.count(name) == 1
    with pytest.raises(BadInput, match=r"a\.po: has '' as its language"):
        list(read_rows(str(tmp_path / "languages"), Skips()))


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("en-de.train.jsonl", "en-de.dev.jsonl", "en-de.TEST.jsonl"), ["en-de.TEST.jsonl"]),
        (("train-00000-of-00001.parquet", "validation-00000-of-00001.parquet"), ["validation-00000-of-00001.parquet"]),
        (("train/a.jsonl", "test/a.jsonl"), ["test/a.jsonl"]),
        (("train/test.jsonl", "train/b.jsonl"), []),
        (("dev.jsonl", "test.jsonl"), []),
        (("train.jsonl", "latest.jsonl", "devices.jsonl", "europarl.jsonl"), []),
    ],
)
def test_files_of_dev_and_test_among_those_of_train_are_logged_once(
    names: tuple[str, ...], told: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder of a dataset has all of its splits, and a run would train on what it is scored by later."""
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    for _ in range(2):
        assert len(list(list_shards(str(tmp_path)))) == len(names)
    assert len(caplog.messages) == len(told)
    assert all(f"such as {tmp_path / name}, and are read" in caplog.text for name in told)


def test_a_file_is_read_once_whatever_links_to_it(tmp_path: Path) -> None:
    """A link to a folder above it leads through itself, 40 times."""
    place = tmp_path / "data"
    place.mkdir()
    for path in (place / "b.jsonl", tmp_path / "elsewhere.jsonl"):
        path.write_text('{"en": "1", "de": "1"}\n', "utf-8")
    (place / "latest").symlink_to(place)
    (place / "a.jsonl").symlink_to("b.jsonl")
    for name in ("c.jsonl", "d.jsonl"):
        (place / name).symlink_to(tmp_path / "elsewhere.jsonl")
    assert [shard.name for shard in list_shards(place)] == [f"{place}/b.jsonl", f"{place}/c.jsonl"]
    assert [shard.name for shard in list_shards(f"{place}/a.*")] == [f"{place}/a.jsonl"]


def test_files_that_are_there_compressed_and_not_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.jsonl", "a.jsonl.GZ", "b.jsonl.gz", "b.csv"):
        (tmp_path / name).write_text("x", "utf-8")
    for _ in range(2):
        assert len(list(list_shards(tmp_path))) == 4
    (message,) = caplog.messages
    assert "1 of its files are there without compression, too, such as " in message and "a.jsonl.GZ" in message


def test_nothing_is_opened_before_the_first_row_is_asked_for() -> None:
    rows = read_rows("missing.jsonl", Skips())
    with pytest.raises(BadInput, match="missing.jsonl"):
        next(rows)


def test_a_hub_dataset_goes_on_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: [{"translation": pair} for pair in TRANSLATIONS])
    whole = records_of("hub:books", Cursor(), Skips())
    assert records_of("hub:books", Cursor(*whole[0][1:]), Skips()) == whole[1:]
    assert records_of("hub:books", Cursor(part=1, parts=2), Skips()) == whole[::2]


def test_shards_are_listed_with_the_bytes_of_their_files(tmp_path: Path) -> None:
    sizes = []
    for number in range(3):
        sizes.append({str(write_lines(tmp_path / f"{number}.jsonl", FLAT_LINES * (number + 1))): 0})
        sizes[-1] = {path: Path(path).stat().st_size for path in sizes[-1]}
    assert [shard.sizes for shard in list_shards(str(tmp_path))] == sizes
    (both,) = list_shards(moses(tmp_path, ""))
    assert both.sizes == {str(path): path.stat().st_size for path in (tmp_path / "corpus.en", tmp_path / "corpus.de")}
    (hub,) = list_shards("hub:books")
    assert not hub.sizes


def test_a_file_that_changed_since_it_was_listed_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", FLAT_LINES)
    (shard,) = list_shards(str(path))
    check_unchanged(shard)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(
        BadInput, match=f"a.jsonl: has {size - 9} bytes, but had {size} when .*; allowed .* Put it back"
    ):
        check_unchanged(shard)
    path.unlink()
    with pytest.raises(BadInput, match="a.jsonl: no such file; allowed is a file that stays"):
        check_unchanged(shard)


@pytest.mark.parametrize("sides", [(5, 4), (4, 5), (5, 3)])
@pytest.mark.parametrize("parts", [1, 2])
def test_line_aligned_files_of_unequal_length_are_refused_by_some_reader(
    sides: tuple[int, int], parts: int, tmp_path: Path
) -> None:
    for name, length in zip(("en", "de"), sides):
        write_lines(tmp_path / f"c.{name}", [str(number) for number in range(length)])
    (shard,) = list_shards(f"{tmp_path}/c.{{en,de}}")
    shorter, longer = ("c.en", "c.de") if sides[0] < sides[1] else ("c.de", "c.en")
    for part in range(parts):
        rows = 0
        with pytest.raises(BadInput) as refused:
            for _ in read_shard(shard, Cursor(part=part, parts=parts), Skips()):
                rows += 1
        message = str(refused.value)
        assert f"{shorter} has {min(sides)} lines" in message and f"{longer} has more lines" in message
        assert rows == sum(number % parts == part for number in range(1, min(sides) + 1))


@pytest.mark.parametrize(("files", "source", "place", "found", "fix"), BROKEN_SOURCES.values(), ids=BROKEN_SOURCES)
def test_a_broken_source_is_refused(
    files: dict[str, bytes], source: str, place: str, found: str, fix: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput) as refused:
        list(read_rows(f"{tmp_path}/{source}", Skips()))
    message = str(refused.value)
    assert f"{tmp_path}/{place}" in message and found in message and "allowed" in message and fix in message


def test_variables_and_lists_with_commas_are_answered_with_what_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a recipe, or between single quotes, no shell replaces a variable."""
    paths = [write_lines(tmp_path / name, ["{}"]) for name in ("a.jsonl", "b.jsonl")]
    monkeypatch.setenv("CORPORA", str(tmp_path))
    for source, fix in (
        ("$CORPORA/a.jsonl", f"Did you mean {paths[0]}? Variables"),
        (f"{paths[0]},{paths[1]}", f"Did you mean {paths[0]} {paths[1]}, with spaces between them?"),
    ):
        with pytest.raises(BadInput, match=re.escape(fix)):
            [*list_shards(source)]


def test_a_folder_of_save_to_disk_is_told_as_such(tmp_path: Path) -> None:
    """Its Arrow files would be left out without a word, and its JSON files read as rows."""
    rows = datasets.Dataset.from_list([{"en": "a cat", "de": "eine Katze"}])
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=rows).save_to_disk(tmp_path / "several")
    for name, fix in (("one", r"load_from_disk\(folder\).to_parquet"), ("several", r"folder\)\['train'\].to_parquet")):
        with pytest.raises(BadInput, match=f"{name}: was written by datasets.save_to_disk, .*{fix}"):
            [*list_shards(str(tmp_path / name))]
    (tmp_path / "pairs.jsonl").write_text('{"en": "a cat", "de": "eine Katze"}\n')
    with pytest.raises(BadInput, match="one: was written by datasets.save_to_disk"):
        [*list_shards(tmp_path)]


# The files of a Moses corpus, one of them as the shell makes it of braces without quotes, and the source to write.
CORPORA = {
    "endings": (["a.en", "a.de"], "a.de", "a.{de,en}"),
    "capitals": (["b.EN", "b.DE"], "b.EN", "b.{DE,EN}"),
    "regions": (["c.pt_BR", "c.en", "c.md"], "c.en", "c.{en,pt_BR}"),
    "in the middle": (["d.en.tok", "d.de.tok", "d.en.log"], "d.de.tok", "d.{de,en}.tok"),
    "after another pair": (["e.de-en.de", "e.de-en.en"], "e.de-en.en", "e.de-en.{de,en}"),
    "compressed": (["f_en.raw.gz", "f_de.raw.gz"], "f_de.raw.gz", "f_{de,en}.raw.gz"),
    "three": (["g.en", "g.de", "g.fra"], "g.fra", "g.{de,en,fra}"),
    "folders": (["en/x", "de/x"], "en/x", "{de,en}/x"),
    "numbered regions": (["n.es-419", "n.en"], "n.es-419", "n.{en,es-419}"),
    "modifiers": (["h.sr@latin", "h.en"], "h.sr@latin", "h.{en,sr@latin}"),
    "scripts and regions": (["x.zh-Hans-CN", "x.en"], "x.zh-Hans-CN", "x.{en,zh-Hans-CN}"),
    "a word after it": (["w.en-clean", "w.de-clean"], "w.en-clean", "w.{de,en}-clean"),
    "with references": (["r.en", "r.de", "r.ref"], "r.de", "r.{de,en}"),
    "tables without a header": (["i.de.tsv", "i.en.tsv"], "i.de.tsv", "i.{de,en}.tsv"),
}


@pytest.mark.parametrize(("files", "given", "source"), CORPORA.values(), ids=CORPORA)
def test_braces_without_quotes_are_answered_with_what_works(
    files: list[str], given: str, source: str, tmp_path: Path
) -> None:
    for number, name in enumerate(files):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        text = f"line {number}\n".encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    with pytest.raises(BadInput, match=re.escape(f"'{tmp_path}/{source}' with its quotes")):
        list(read_rows(f"{tmp_path}/{given}", Skips()))
    assert texts(f"{tmp_path}/{source}")


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv.gz", "po", "parquet"])
def test_files_that_name_their_languages_are_not_lines_of_texts(ending: str, tmp_path: Path) -> None:
    for language in ("de", "fr"):
        rows = [f'{{"en": "a", "{language}": "b"}}'] if ending == "jsonl" else [f"en,{language}", "a,b"]
        rows = [row.replace(",", "\t") for row in rows] if ending == "tsv.gz" else rows
        write_lines(tmp_path / f"{language}.{ending}", rows)
    for source in ("{0}/{{de,fr}}.{1}", "de:{0}/de.{1}+fr:{0}/fr.{1}"):
        allowed = f"allowed are line-aligned files of plain text. Name each alone, .*: {tmp_path}/de.{ending} "
        with pytest.raises(BadInput, match=f"de.{ending}: has the ending '.{ending}'; {allowed}"):
            list(read_rows(source.format(tmp_path, ending), Skips()))


def test_files_of_other_splits_in_an_archive_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        for name in ("c/train.de", "c/train.en", "c/test.de", "c/test.en"):
            file.writestr(name, "a text\n")
    assert len(texts(tmp_path / "a.zip")) == 2
    assert "a.zip: 1 of its files are of another split than train by their names, such as" in caplog.text


@pytest.mark.parametrize("given", ["o.en", "o.de.gz", "o.{en,de}"])
def test_moses_files_of_which_one_is_compressed_are_named_one_by_one(given: str, tmp_path: Path) -> None:
    for name in ("o.en", "o.de.gz"):
        write_lines(tmp_path / name, ["x"])
    order = ("en:{0}/o.en", "de:{0}/o.de.gz") if "{" in given else ("de:{0}/o.de.gz", "en:{0}/o.en")
    source = "+".join(order).format(tmp_path)
    with pytest.raises(BadInput, match=re.escape(source)):
        list(list_shards(f"{tmp_path}/{given}"))
    assert texts(source)


@pytest.mark.parametrize("source", ["Swahili:{0}/a.txt", "swahili:{0}", "en:{0}/a.txt+swahili:{0}/b.txt"])
def test_the_name_of_a_language_is_not_taken_for_a_path(source: str, tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        write_lines(tmp_path / name, ["x"])
    with pytest.raises(BadInput, match="has the language '[Ss]wahili'; allowed are codes"):
        list(list_shards(source.format(tmp_path)))
    write_lines(tmp_path / "part:a.jsonl", ['{"en": "x", "de": "y"}'])
    assert len(texts(f"{tmp_path}/part:a.jsonl")) == 1


def test_a_name_in_the_wrong_case_is_answered_with_the_right_one(tmp_path: Path) -> None:
    for name in ("a.EN", "a.De"):
        write_lines(tmp_path / name, ["x"])
    with pytest.raises(BadInput, match="a.en: does not exist.*There is a.EN: write its name as it is"):
        list(list_shards(f"{tmp_path}/a.{{en,de}}"))
    assert texts(f"{tmp_path}/a.{{EN,De}}") == [{"en": "x", "de": "x"}]


def archived(mode: str) -> bytes:
    """A file of two lines in a tar archive, of this compression."""
    archive, text = io.BytesIO(), b"one\ntwo\n" * 300
    with tarfile.open(fileobj=archive, mode=mode) as file:
        member = tarfile.TarInfo("a/de.txt")
        member.size = len(text)
        file.addfile(member, io.BytesIO(text))
    return archive.getvalue()


def zipped() -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("de.txt", "one\ntwo\n")
    return archive.getvalue()


TEXT = b"Guten Morgen, liebe Leute von heute.\n" * 40
KINDS = {  # content, what it is
    "xz": (lzma.compress(TEXT), "compressed with xz"),
    "lzma": (lzma.compress(TEXT, lzma.FORMAT_ALONE), "compressed with lzma"),
    "bzip2": (bz2.compress(TEXT), "compressed with bzip2"),
    "zstd": (b"\x28\xb5\x2f\xfd" + TEXT, "compressed with zstd"),
    "zip": (zipped(), "a zip archive"),
    "7z": (b"7z\xbc\xaf\x27\x1c\0\4" + TEXT, "a 7z archive"),
    "tar": (archived("w"), "a tar archive"),
    "tar.gz": (archived("w:gz"), "a tar archive"),
    "tar.bz2": (archived("w:bz2"), "compressed with bzip2"),
    "Parquet": (parquet_with({"en": ["x"]}), "a Parquet file"),
    "gzip twice": (gzip.compress(gzip.compress(TEXT)), "compressed with gzip"),
    "zip in gzip": (gzip.compress(zipped()), "a zip archive"),
}
ENDINGS_OF_KINDS = ("a.txt.gz", "a.jsonl", "a.csv", "a.tsv.gz", "a.de", "a.de.xz", "a.zip", "a.tgz")


@pytest.mark.parametrize(("content", "kind"), KINDS.values(), ids=KINDS)
def test_an_archive_is_named_for_what_it_is(content: bytes, kind: str, tmp_path: Path) -> None:
    for name in ENDINGS_OF_KINDS:
        if name.endswith(".xz") and kind == "compressed with xz":
            continue  # it is what its name says
        path = tmp_path / name
        path.write_bytes(content)
        is_gzip = content.startswith(b"\x1f\x8b")
        for read in (
            lambda path=path: list(read_rows(str(path), Skips())),
            lambda path=path: list(read_texts([str(path)])),
        ):
            with pytest.raises(BadInput) as refused:
                read()
            message = str(refused.value)
            assert kind in message or is_gzip and "compressed with gzip" in message, message
            assert str(path) in message and "UTF-16" not in message and "NUL" not in message


def office_file() -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("[Content_Types].xml", "<Types/>")
    return archive.getvalue()


TGZ, UNPACK = archived("w:gz"), "is a tar archive, compressed with {}; .*Unpack it: tar -xf"
OTHER_KINDS = {  # name, content, what is said
    "tgz": ("a.tgz", TGZ, UNPACK.format("gzip")),
    "tbz2": ("a.tbz2", archived("w:bz2"), UNPACK.format("bzip2")),
    "txz": ("a.txz", archived("w:xz"), UNPACK.format("xz")),
    "a tar.gz named as a table": ("b.csv", TGZ, UNPACK.format("gzip")),
    "a tar.gz named as text": ("b.txt", TGZ, UNPACK.format("gzip")),
    "gzip twice": ("h.csv.gz", gzip.compress(gzip.compress(TEXT)), "Decompress it once more: gzip -d"),
    "gzip as .po": ("a.po", gzip.compress(TEXT), "is compressed with gzip; allowed is what .*Decompress it: gzip -d"),
    "gzip as .tmx": ("a.tmx", gzip.compress(TEXT), "is compressed with gzip; .*it has to end in .gz"),
    "bzip2 as .parquet": ("a.parquet", bz2.compress(TEXT), "is compressed with bzip2; .*Decompress it: bzip2 -d"),
    "zip as .xlf": ("a.xlf", zipped(), "is a zip archive; .*Name it with the ending .zip, or unpack"),
    "xlsx": ("a.xlsx", office_file(), "is an Office file .*Export its table as CSV in UTF-8"),
    "xls": ("a.csv", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "is an Office file .*Export its table as CSV"),
    "lz4, legacy": ("a.tsv", b"\x02\x21\x4c\x18" + bytes(99), "is compressed with lz4"),
    "Avro": ("a.jsonl", b"Obj\x01" + bytes(99), "is an Avro file"),
    "Arrow stream": ("a.jsonl", b"\xff\xff\xff\xff\x10\1" + bytes(99), "is an Arrow stream"),
    "zip in parts": ("a.csv", b"PK\x07\x08PK\x03\x04" + bytes(99), "is a zip archive"),
    "npy": ("a.csv", b"\x93NUMPY\1" + bytes(99), "is an array of NumPy"),
    "other": ("a.csv", b"\1\2\3" + bytes(99), "is no text but binary"),
    "UTF-32": ("a.csv", "en,de\n".encode("utf-32-be"), "is UTF-16 or UTF-32"),
}


@pytest.mark.parametrize(("name", "content", "said"), OTHER_KINDS.values(), ids=OTHER_KINDS)
def test_a_file_is_not_taken_for_what_its_name_says(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=said) as refused:
        list(read_rows(f"{tmp_path}/{name}", Skips()))
    assert "allowed" in str(refused.value) and ("UTF-16" in said) == ("UTF-16" in str(refused.value))


def test_zstandard_may_begin_with_any_skippable_frame(tmp_path: Path) -> None:
    compress = pytest.importorskip("backports.zstd").compress
    for first in range(0x50, 0x60):
        (tmp_path / "a.jsonl.zst").write_bytes(bytes([first]) + b"\x2a\x4d\x18\1\0\0\0x" + compress(GOOD))
        assert len(texts(tmp_path / "a.jsonl.zst")) == 1


@pytest.mark.parametrize(
    ("source", "place", "fix"),
    [
        (
            "{0}d.{{src,tgt}}",
            "d.src: has the languages src, tgt",
            "languages, with their codes: en:{0}d.src+de:{0}d.tgt.",
        ),
        ("src:{0}d.src+tgt:{0}d.tgt", "d.src: has the languages src, tgt", "en:{0}d.src+de:{0}d.tgt."),
        ("{0}d.{{english,german}}", "d.english: has the languages", "en:{0}d.english+de:{0}d.german."),
        ("{0}d.{{en,german}}", "d.german: has the languages en, german", "en:{0}d.en+de:{0}d.german."),
        ("{0}d.{{de,hyp,ref}}", "d.hyp: has the languages", "de:{0}d.de+en:{0}d.hyp+fr:{0}d.ref."),
        ("{0}d.{{en,de,url}}", "d.url: has the languages", "Leave out url: en:{0}d.en+de:{0}d.de."),
        ("{0}d.{{en_tok,de_tok}}", "d.en_tok: has", "en:{0}d.en_tok+de:{0}d.de_tok."),
        ("{0}d.{{en,en}}", "d.en: has the languages en; allowed are two", "'corpus.{{en,de}}'."),
        (
            "src+tgt:{0}d.tsv",
            "d.tsv: has the columns 'src+tgt'",
            "Write en+de:{0}d.tsv with the codes of its languages",
        ),
        ("1.04+en+tgt:{0}d.tsv", "d.tsv: has the columns", "Write 1.04+en+de:{0}d.tsv with the codes"),
        ("tatoeba:src+deu:{0}", "has the columns 'src+deu'", "Write tatoeba:en+deu:{0} with the codes"),
    ],
)
def test_files_and_columns_without_languages_are_refused_before_they_are_read(
    source: str, place: str, fix: str, tmp_path: Path
) -> None:
    for name in ("src", "tgt", "english", "german", "en", "de", "hyp", "ref", "url", "en_tok", "de_tok"):
        write_lines(tmp_path / f"d.{name}", ["x"])
    write_lines(tmp_path / "d.tsv", ["x\ty"])
    with pytest.raises(BadInput) as refused:
        next(list_shards(source.format(f"{tmp_path}/")))
    message = str(refused.value)
    assert place in message and "; allowed are two" in message and fix.format(f"{tmp_path}/") in message, message


@pytest.mark.parametrize("language", ["url", "src", "REF", "tgt"])
def test_a_language_that_is_the_name_of_a_side_or_file_is_refused(language: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.txt", ["x"])
    fix = f"Write en:{path} with the code of its language"
    with pytest.raises(BadInput, match=f"has the language '{language}'.*; allowed are codes such as .*{fix}"):
        next(list_shards(f"{language}:{path}"))
    assert texts(f"key:{path}") == [{"key": "x"}] and texts(f"src-Latn:{path}") == [{"src-Latn": "x"}]


@pytest.mark.parametrize("source", ["hub:", "hub:a:b:c:d", "hub:a:b:c[:1]:d", "hub:no/such"])
def test_a_hub_dataset_that_does_not_load_is_refused(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: object, **__: object) -> None:
        raise FileNotFoundError("no such dataset")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(BadInput, match=f"^{re.escape(source)}: .*; allowed is .*(Check its name|Write it so)"):
        list(read_rows(source, Skips()))


def test_a_path_of_line_aligned_files_may_have_a_plus(tmp_path: Path) -> None:
    (tmp_path / "C++").mkdir()
    for name, text in (("en+de.en", "x"), ("en+de.de@latin", "y")):
        (tmp_path / "C++" / name).write_text(f"{text}\n", "utf-8")
    assert texts(f"en:{tmp_path}/C++/en+de.en+de:{tmp_path}/C++/en+de.de@latin") == [{"en": "x", "de": "y"}]


def test_a_language_of_line_aligned_files_is_named_once(tmp_path: Path) -> None:
    for name in ("a.en", "b.en", "a.de"):
        (tmp_path / name).write_text("x\n", "utf-8")
    named = f"en:{tmp_path}/a.en+en:{tmp_path}/b.en+de:{tmp_path}/a.de"
    with pytest.raises(BadInput, match="names the language en twice; allowed is each once"):
        [*list_shards(named)]
    with pytest.raises(BadInput, match="has the languages en; allowed are two or more codes. Name the languages"):
        [*list_shards(f"{tmp_path}/a.{{en,en}}")]
