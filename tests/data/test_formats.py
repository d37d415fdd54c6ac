"""Every format gives the same rows; everything broken is counted or refused, with a place and a fix."""

import csv
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import polib
import pyarrow
import pyarrow.parquet
import pytest
from toy_files import (
    FLAT_LINES,
    GOOD,
    PAIRS,
    TAB_LINES,
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

from hictl_hf.data.languages import language_code
from hictl_hf.data.records import Cursor, Row
from hictl_hf.data.sources import list_shards, read_rows, read_shard
from hictl_hf.errors import BadInput


def write_table(path: Path, header: list[str], rows: list[list[str]]) -> Path:
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def write_parquet(path: Path, rows: list[dict]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


TRANSLATION_LINES = [json.dumps({"translation": pair, "score": 1}) for pair in TRANSLATIONS]
WRITERS: dict[str, Callable[[Path], object]] = {
    "jsonl": lambda at: write_lines(at / "a.jsonl", TRANSLATION_LINES),
    "flat jsonl": lambda at: write_lines(at / "a.jsonl", FLAT_LINES),
    "json": lambda at: write_lines(at / "a.json", FLAT_LINES),
    "jsonl.gz": lambda at: write_lines(at / "a.jsonl.gz", FLAT_LINES),
    "json.gz": lambda at: write_lines(at / "a.JSON.gz", FLAT_LINES),
    "byte order mark": lambda at: write_lines(at / "a.jsonl", FLAT_LINES, start=b"\xef\xbb\xbf"),
    "carriage returns": lambda at: moses(at, "", end="\r\n"),
    "carriage returns in a table": lambda at: write_lines(at / "a.tsv", TAB_LINES, end="\r\n"),
    "blank lines": lambda at: write_lines(at / "a.jsonl", FLAT_LINES, end="\n\n"),
    "blank lines in a table": lambda at: write_lines(at / "a.tsv", ["", *TAB_LINES], end="\n\n"),
    "csv": lambda at: write_table(at / "a.csv", ["en", "de"], [list(pair) for pair in PAIRS]),
    "csv.gz": lambda at: write_lines(
        at / "a.csv.gz", write_table(at / "a.csv", ["en", "de"], [list(pair) for pair in PAIRS]).read_text().split("\n")
    ),
    "tsv": lambda at: write_lines(at / "a.tsv", TAB_LINES),
    "tsv.gz": lambda at: write_lines(at / "a.tsv.gz", TAB_LINES),
    "parquet": lambda at: write_parquet(at / "a.parquet", [{"translation": pair, "n": 1} for pair in TRANSLATIONS]),
    "flat parquet": lambda at: write_parquet(at / "a.parquet", TRANSLATIONS),
    "moses": lambda at: moses(at, ""),
    "moses.gz": lambda at: moses(at, ".gz"),
    "mo by path": lambda at: saved(at / "locale/de/LC_MESSAGES/a.mo", catalogue()),
    "po by header": lambda at: saved(at / "a.po", catalogue("de")),
    "folder": lambda at: write_lines(at / "deep/er/a.jsonl", FLAT_LINES).parents[2],
    "pattern": lambda at: write_lines(at / "part-1.jsonl", FLAT_LINES).with_name("part-*.jsonl"),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_every_format_gives_the_same_rows(write: Callable[[Path], object], tmp_path: Path) -> None:
    assert texts(write(tmp_path)) == TRANSLATIONS


def test_the_source_language_of_a_catalogue_is_english_or_that_of_its_header(tmp_path: Path) -> None:
    file = catalogue("en_GB")
    file.metadata["X-Source-Language"] = "de_DE"  # as Poedit writes it
    assert texts(saved(tmp_path / "a.po", file)) == [{"de-DE": en, "en-GB": de} for en, de in PAIRS]
    file.metadata |= {"X-Source-Language": "en_US", "Language": "fr"}
    assert texts(saved(tmp_path / "b.po", file)) == [{"en": en, "fr": de} for en, de in PAIRS]
    for locale in ("C", "POSIX", "C.UTF-8"):  # of programs without translations; in catalogues of GNOME
        file.metadata["X-Source-Language"] = locale
        assert texts(saved(tmp_path / "b.po", file)) == [{"en": en, "fr": de} for en, de in PAIRS]
    file.metadata["X-Source-Language"] = "German"
    with pytest.raises(BadInput, match="c.po: has 'German' as its X-Source-Language; allowed are codes"):
        texts(saved(tmp_path / "c.po", file))


def test_the_origin_of_a_row_is_its_file_and_line(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.csv", ["en", "de"], [["two\nlines", "zwei"], ["next", "weiter"]])
    # Line 1 is the header; the first row covers lines 2 and 3.
    assert list(read_rows(str(path), Skips())) == [
        Row({"en": "two\nlines", "de": "zwei"}, f"{path}:2"),
        Row({"en": "next", "de": "weiter"}, f"{path}:4"),
    ]


def test_a_quote_left_open_costs_its_own_row_alone(tmp_path: Path) -> None:
    """Up to the next quote all is one cell, which is no CSV: the lines in it are rows of their own."""
    rows = [f"good {number},gut {number}" for number in range(2, 30)]
    rows[5], rows[20], rows[21] = '"open,gut', '"a ""b"" c","d', 'e"'  # lines 7; 22 and 23
    path, skips = write_lines(tmp_path / "a.csv", ["en,de", *rows]), Skips()
    found = {row.origin: tuple(row.texts.values()) for row in read_rows(str(path), skips)}
    expected = {f"{path}:{at}": tuple(row.split(",")) for at, row in enumerate(rows, start=2) if '"' not in row}
    assert len(expected) == 25 and found == expected | {f"{path}:22": ('a "b" c', "d\ne")}
    assert skips.counts == {"broken": 1} and skips.messages[0].startswith(f"{path}:7: is not CSV")
    ((shard),) = list_shards(str(path))
    again = [row.origin for rows in read_shard(shard, Cursor(), Skips()) for row in rows]
    assert again == [*found]


@pytest.mark.parametrize(
    ("name", "header", "found"),
    [
        ("a.csv", "en;de", r"separated by ';', 'en;de'; allowed are commas in .csv and tabs in .tsv. Write it with"),
        ("a.csv", ";en;de", r"separated by ';', ';en;de'; allowed are commas in .csv"),  # pandas, with its index
        ("a.csv", '"en"|"de"', r"separated by '\|', .*Write it with commas"),
        ("a.csv", "en\tde", r"separated by '\\t', .*Rename it: it has to end in .tsv"),
        ("a.tsv", "text,lang,url", "separated by ',', .*Rename it: it has to end in .csv"),
        ("a.csv", "\ufeffNo;English;Hindi;Remark (old)", "separated by ';', .*Write it with commas"),
        ("a.tsv", "Good morning, to you all.", "is no language; .* can be read as en.de:SOURCE"),
        ("a.csv", "en,de\rThe cat,Die Katze\r", "a carriage return alone, as of old Macs: tr"),
    ],
)
def test_a_table_with_another_delimiter_is_refused_with_it(name: str, header: str, found: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(f"{header}\nx,y\n", "utf-8", newline="")
    with pytest.raises(BadInput, match=f"{name}:1: .*{found}"):
        texts(path)


def test_a_quote_is_an_ordinary_character_between_tabs(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.tsv", ["en\tde", '"Go\t„Geh', '"Stop"\t"Halt"'])
    assert texts(path) == [{"en": '"Go', "de": "„Geh"}, {"en": '"Stop"', "de": '"Halt"'}]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r\r\n"])  # the last is a file in text mode on Windows
def test_only_a_line_feed_ends_a_row_of_a_table(end: str, tmp_path: Path) -> None:
    """The csv module before Python 3.13, so pandas, too, writes a carriage return alone without quotes."""
    for name, lines in (
        ("a.tsv", ["en\tde", "two\rlines\tzwei", "a\tb"]),
        ("a.csv", ["en,de", "two\rlines,zwei", '"a","b"']),
    ):
        rows = texts(write_lines(tmp_path / name, lines, end))
        assert [[text.strip() for text in row.values()] for row in rows] == [["two\rlines", "zwei"], ["a", "b"]]


@pytest.mark.parametrize(
    "write",
    [
        lambda at: write_lines(
            at / "a.jsonl", ['{"text": "Habari", "lang": "sw"}', '{"translation": {"sw": "Asante"}}']
        ),
        lambda at: write_table(at / "a.csv", ["lang", "text", "id"], [["sw", "Habari", "1"], ["sw", "Asante", "2"]]),
        lambda at: write_parquet(at / "a.parquet", [{"text": text, "lang": "sw"} for text in ("Habari", "Asante")]),
        lambda at: f"sw:{write_lines(at / 'a.txt', ['Habari', 'Asante'])}",
        lambda at: f"sw:{write_lines(at / 'a.txt.gz', ['Habari', 'Asante']).parent}",
    ],
    ids=["jsonl", "csv", "parquet", "txt", "folder of txt.gz"],
)
def test_texts_without_translation_are_read_from(write: Callable[[Path], object], tmp_path: Path) -> None:
    assert texts(write(tmp_path)) == [{"sw": "Habari"}, {"sw": "Asante"}]


def test_a_translation_into_many_languages_pairs_the_first_with_each_other(tmp_path: Path) -> None:
    rows = [
        {"translation": {"en": "yes", "de": "ja", "fr": "oui"}},
        {"translation": {"en": "no", "de": None, "fr": "non"}},
    ]
    skips = Skips()
    read = [row.texts for row in read_rows(str(write_parquet(tmp_path / "a.parquet", rows)), skips)]
    assert read == [{"en": "yes", "de": "ja"}, {"en": "yes", "fr": "oui"}, {"en": "no", "fr": "non"}]
    assert skips.counts == {"untranslated": 1}


def test_a_catalogue_counts_what_is_not_translated_and_takes_the_first_plural(tmp_path: Path) -> None:
    file = catalogue()
    file += [
        polib.POEntry(msgid="untranslated"),
        polib.POEntry(msgid="doubtful", msgstr="zweifelhaft", flags=["fuzzy"]),
        polib.POEntry(msgid="old", msgstr="alt", obsolete=True),
        polib.POEntry(msgid="%d file", msgid_plural="%d files", msgstr_plural={0: "%d Datei", 1: "%d Dateien"}),
    ]
    skips = Skips()
    read = [row.texts for row in read_rows(str(saved(tmp_path / "locale/de/a.po", file)), skips)]
    assert sorted(read, key=str) == sorted([*TRANSLATIONS, {"en": "%d file", "de": "%d Datei"}], key=str)
    assert skips.counts == {"untranslated": 3}
    compiled = texts(saved(tmp_path / "locale/de/LC_MESSAGES/a.mo", file))  # holds neither fuzzy nor obsolete entries
    assert {"en": "%d file", "de": "%d Datei"} in compiled


@pytest.mark.parametrize(
    ("folder", "header", "language"),
    [
        ("locale/pt_BR/LC_MESSAGES", "", "pt-BR"),
        ("locale/zh_Hans", "", "zh-Hans"),
        ("usr/sr@latin/LC_MESSAGES", "de", "sr-Latn"),
        ("po", "pt_BR.UTF-8", "pt-BR"),
        ("locale/app", "de", "de"),  # all languages of an application
        ("locale/de", "German", "de"),
        ("program/resource/br/LC_MESSAGES", "", "br"),
        ("locale/ca_ES.UTF-8@valencia/LC_MESSAGES", "", "ca-ES-valencia"),
        ("locale/sr@ijekavianlatin/LC_MESSAGES", "", "sr-Latn-ijekavsk"),
    ],
)
def test_a_catalogue_knows_its_language(folder: str, header: str, language: str, tmp_path: Path) -> None:
    path = saved(tmp_path / folder / "a.po", catalogue(header))
    assert {tuple(pair) for pair in texts(path)} == {("en", language)}


@pytest.mark.parametrize("language", ["en", "en_GB", "en@shaw"])
def test_a_catalogue_of_english_is_not_a_pair(language: str, tmp_path: Path) -> None:
    skips = Skips()
    assert not list(read_rows(str(saved(tmp_path / f"locale/{language}/a.po", catalogue())), skips))
    assert skips.counts == {"untranslated": len(PAIRS)}


def test_a_catalogue_that_lacks_a_quote_or_its_end_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.po", catalogue("de"))
    written = path.read_text("utf-8")
    for content, line in (
        (written.rstrip()[:-4], 'msgstr "Die Katze schlä'),  # cut off
        (written.replace('"Hallo, Welt!"', "Hallo, Welt!"), "msgstr Hallo, Welt!"),
        (written.replace('"Hallo, Welt!"', '""\n"Hallo, \n"Welt!"'), '"Hallo, '),
    ):
        path.write_text(content, "utf-8")
        with pytest.raises(BadInput, match=f"a.po: cannot be read .*line [0-9]+ is '{line}', without quotes.*msgfmt"):
            texts(path)
    path.write_text(written.replace("\n", " \r\n"), "utf-8", newline="")
    assert texts(path) == TRANSLATIONS
    path.write_text(written.replace('msgid "', 'msgid  \t "'), "utf-8")
    assert texts(path) == TRANSLATIONS
    for is_big_endian in (False, True):
        compiled = saved(tmp_path / "de/LC_MESSAGES/a.mo", catalogue())
        content = compiled.read_bytes()
        if is_big_endian:
            start = int.from_bytes(content[32:36], "little")  # of the first text, behind header and tables
            content = b"".join(content[at : at + 4][::-1] for at in range(0, start, 4)) + content[start:]
            compiled.write_bytes(content)
        assert texts(compiled) == TRANSLATIONS
        for cut in (2, 8, 30):
            compiled.write_bytes(content[:-cut])
            with pytest.raises(BadInput, match="a.mo: cannot be read .*within a text.*msgunfmt"):
                texts(compiled)


def test_underscores_in_a_language_become_hyphens_everywhere(tmp_path: Path) -> None:
    assert texts(write_lines(tmp_path / "a.jsonl", ['{"en": "a", "pt_BR": "b"}'])) == [{"en": "a", "pt-BR": "b"}]
    assert language_code("zh_Hans") == "zh-Hans"


TEXT = "Write a text or remove the row"
# The broken row is in line 2 of the file or (tables) in line 3; all others are good.
BROKEN_ROWS = {
    "half JSON": ("a.jsonl", GOOD + b'{"en": "x",\n' + GOOD, 2, "is not JSON", "Correct or remove the line"),
    "deep JSON": ("a.jsonl", GOOD + b"[" * 99999 + b"\n", 2, "is not JSON", "Correct or remove the line"),
    "a list": ("a.jsonl", GOOD + b'["x", "y"]\n', 2, "['x', 'y']", "Correct the line"),
    "other columns": ("a.jsonl", GOOD + b'{"english": "x", "german": "y"}\n', 2, "['english', 'german']", "Rename"),
    "no columns": ("a.jsonl", GOOD + b"{}\n", 2, "columns []", "Rename the columns"),
    "text without lang": ("a.jsonl", GOOD + b'{"text": "x"}\n', 2, "['text']", "Rename the columns"),
    "a number": ("a.jsonl", GOOD + b'{"en": "x", "de": 12}\n', 2, "12 as its de text", TEXT),
    "null text": ("a.jsonl", GOOD + b'{"en": "x", "de": null}\n', 2, "None as its de text", TEXT),
    "null alone": ("a.jsonl", GOOD + b'{"text": null, "lang": "sw"}\n', 2, "None as its sw text", TEXT),
    "null lang": ("a.jsonl", GOOD + b'{"text": "x", "lang": null}\n', 2, "language None", "Correct the code"),
    "null translation": ("a.jsonl", GOOD + b'{"translation": null}\n', 2, "None as", 'Write {"translation"'),
    "empty translation": ("a.jsonl", GOOD + b'{"translation": {}}\n', 2, "{} as", 'Write {"translation"'),
    "unknown language": ("a.jsonl", GOOD + b'{"translation": {"en": "x", "German": "y"}}\n', 2, "'German'", "Correct"),
    "language twice": ("a.jsonl", GOOD + b'{"pt_BR": "x", "pt-BR": "y"}\n', 2, "twice", "Remove one"),
    "a key twice": ("a.jsonl", GOOD + b'{"en": "x", "de": "y", "de": "z"}\n', 2, "the key 'de' twice", "Remove one"),
    "a key twice within": (
        "a.jsonl",
        GOOD + b'{"translation": {"en": "x", "en": "y"}}\n',
        2,
        "'en' twice",
        "Remove one",
    ),
    "a row number": ("a.jsonl", GOOD + b'{"id": "1", "en": "x"}\n', 2, "'id' as its first", "Drop the row number"),
    "NUL byte": ("a.jsonl", GOOD + b'{"en": "x", "de": "y\\u0000"}\n', 2, "a NUL byte", "Remove the NUL byte"),
    "invalid UTF-8": ("a.jsonl", GOOD + b'{"en": "x", "de": "\xe4"}\n', 2, "invalid UTF-8", "iconv"),
    "half a surrogate": ("a.jsonl", GOOD + b'{"en": "x", "de": "\\ud83d"}\n', 2, "invalid UTF-8", "remove the row"),
    "broken in gzip": ("a.json.gz", gzip.compress(GOOD + b"oops\n"), 2, "is not JSON", "Correct or remove the line"),
    "missing cell": ("a.csv", b"en,de\ngood,gut\nx\n", 3, "has 1 columns", "or add one"),
    "extra cell": (
        "a.csv",
        b"en,de\ngood,gut\nx,y,z\n",
        3,
        "has 3 columns",
        "Remove the extra delimiter (.csv: or quote",
    ),
    "quote within": ("a.csv", b'en,de\ngood,gut\n"x"y,z\ngood,gut\n', 3, "is not CSV", "Correct the quotes"),
    "extra tab": (
        "a.tsv",
        b"en\tde\ngood\tgut\nx\ty\tz\n",
        3,
        "has 3 columns",
        "Remove the extra delimiter (.csv: or quote",
    ),
    "Latin-1 in a table": ("a.csv", b"en,de\ngood,gut\nx,\xfc\n", 3, "invalid UTF-8", "iconv"),
    "null in Parquet": (
        "a.parquet",
        parquet_with({"en": ["good", "x"], "de": ["gut", None]}),
        2,
        "None as its de",
        TEXT,
    ),
    "unknown lang": ("a.csv", b"text,lang\ngood,en\nx,english\n", 3, "'english'", "Correct the code"),
}


@pytest.mark.parametrize(("name", "content", "line", "found", "fix"), BROKEN_ROWS.values(), ids=BROKEN_ROWS)
def test_a_broken_row_is_counted_and_named(
    name: str, content: bytes, line: int, found: str, fix: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    skips = Skips()
    rows = list(read_rows(str(path), skips))
    assert rows and all(next(iter(row.texts.values())) == "good" for row in rows)
    assert skips.counts == {"broken": 1}
    message = skips.messages[0]
    assert message.startswith(f"{path}:{line}: ") and found in message and "allowed" in message and fix in message
    with pytest.raises(BadInput, match=re.escape(message)):
        list(read_rows(str(path), Skips(strict=True)))


# --- from a place on, and in parts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [131_071, 131_073, 400_000])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz"])
def test_a_cell_may_have_any_length(name: str, length: int, tmp_path: Path) -> None:
    cell, delimiter = "ä" * length, "\t" if ".tsv" in name else ","
    lines = delimiter.join(("en", "de")) + "\n" + delimiter.join(("a", cell)) + "\n"
    (tmp_path / name).write_bytes(gzip.compress(lines.encode()) if name.endswith(".gz") else lines.encode())
    assert texts(tmp_path / name) == [{"en": "a", "de": cell}]


PLACED: dict[str, Callable[[Path], object]] = WRITERS | {
    "rows of two lines": lambda at: write_table(at / "a.csv", ["en", "de"], [[f"{n}\n", f"_{n}"] for n in range(9)]),
    "row groups": lambda at: (
        pyarrow.parquet.write_table(
            pyarrow.table({"sw": [str(number) for number in range(25)]}), at / "a.parquet", row_group_size=4
        )
        or at / "a.parquet"
    ),
    "string views": lambda at: (
        pyarrow.parquet.write_table(
            pyarrow.table({"sw": pyarrow.array(map(str, range(25)), pyarrow.string_view())}), at / "a.parquet"
        )
        or at / "a.parquet"
    ),
    "many batches": lambda at: write_parquet(at / "a.parquet", [{"sw": str(number)} for number in range(2500)]),
    "text": lambda at: f"sw:{write_lines(at / 'a.txt', ['one', '', 'two', 'three'])}",
}


@pytest.mark.parametrize("write", PLACED.values(), ids=PLACED)
def test_reading_goes_on_from_the_place_after_any_record(write: Callable[[Path], object], tmp_path: Path) -> None:
    source, skips = write(tmp_path), Skips()
    whole = records_of(source, Cursor(), skips)
    assert [row for rows, _, _ in whole for row in rows] == list(read_rows(str(source), Skips()))
    for number, (_, line, offsets) in enumerate(whole[:: len(whole) // 25 + 1]):
        assert records_of(source, Cursor(line, list(offsets)), skips) == whole[number * (len(whole) // 25 + 1) + 1 :]
    assert len(whole) >= 3 and not skips.counts


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("write", PLACED.values(), ids=PLACED)
def test_parts_hold_each_record_once_and_go_on_too(write: Callable[[Path], object], parts: int, tmp_path: Path) -> None:
    source, skips = write(tmp_path), Skips()
    whole, together = records_of(source, Cursor(), skips), []
    for part in range(parts):
        own = records_of(source, Cursor(part=part, parts=parts), skips)
        for number, (_, line, offsets) in enumerate(own[:9]):
            assert records_of(source, Cursor(line, list(offsets), part, parts), skips) == own[number + 1 :]
        together += own
    assert sorted(together, key=lambda record: record[1]) == whole


def test_the_lines_that_others_read_are_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    monkeypatch.setattr("hictl_hf.data.formats.json.loads", lambda line, **_: parsed.append(line) or {"en": line})
    path = write_lines(tmp_path / "a.jsonl", [f'"{number}"' for number in range(1, 10)])
    records_of(path, Cursor(part=1, parts=4), Skips())
    assert parsed == ['"1"', '"5"', '"9"']


@pytest.mark.parametrize(("name", "content", "line", "found", "fix"), BROKEN_ROWS.values(), ids=BROKEN_ROWS)
def test_a_message_has_the_right_line_after_a_seek(
    name: str, content: bytes, line: int, found: str, fix: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    skips, after = Skips(), Skips()
    (_, number, offsets), *_ = records_of(tmp_path / name, Cursor(), skips)
    records_of(tmp_path / name, Cursor(number, offsets), after)
    assert after.messages == skips.messages and f"{name}:{line}: " in after.messages[0]


def test_every_example_in_the_document_is_read(tmp_path: Path) -> None:
    document = (Path(__file__).parents[2] / "docs" / "data_formats.md").read_text(encoding="utf-8")
    examples = dict(re.findall(r"^`([\w./]+)`[^\n]*:\n\n```\w*\n(.*?)```", document, flags=re.MULTILINE | re.DOTALL))
    assert len(examples) == 5
    for name, content in examples.items():
        write_lines(tmp_path / name, content.splitlines())
    expected = [{"en": "Good morning.", "de": "Guten Morgen."}, {"en": "The cat sleeps.", "de": "Die Katze schläft."}]
    for source in ("pairs.jsonl", "pairs.csv", "news.{en,de}", "locale"):
        assert texts(tmp_path / source) == expected
