"""Compressed files and zip archives are read as what is in them, and named for what they are under another ending."""

import bz2
import gzip
import lzma
import sys
import tarfile
import zipfile
from io import SEEK_CUR, SEEK_END
from pathlib import Path

import pytest
from toy_files import FLAT_LINES, PAIRS, TAB_LINES, TRANSLATIONS, Skips, texts, write_lines

from hictl_hf.data.compression import open_bytes
from hictl_hf.data.corpus import load_corpus
from hictl_hf.data.lines import check_output, open_output, read_texts
from hictl_hf.data.records import Cursor
from hictl_hf.data.sources import list_shards, read_rows, read_shard
from hictl_hf.errors import BadInput

LINES = "".join(f"{line}\n" for line in FLAT_LINES).encode()
COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def compressed(ending: str, content: bytes) -> bytes:
    if ending == ".zst":
        return pytest.importorskip("backports.zstd").compress(content)
    return COMPRESS[ending](content)


@pytest.mark.parametrize("ending", [*COMPRESS, ".zst"])
def test_every_compression_is_read_resumed_and_written(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    half = LINES.index(b"\n") + 1
    path.write_bytes(compressed(ending, LINES[:half]) + compressed(ending, LINES[half:]))  # as pzstd or cat make it
    assert texts(path) == texts(tmp_path) == TRANSLATIONS
    ((shard),) = list_shards(str(path))
    assert [row.texts for rows in read_shard(shard, Cursor(1, [half]), Skips()) for row in rows] == TRANSLATIONS[1:]
    path.write_bytes(compressed(ending, LINES * 500)[:-9])
    with pytest.raises(BadInput, match=f"a.jsonl{ending}: cannot be read .*Copy or compress the file again"):
        texts(path)
    path.rename(tmp_path / "b.jsonl")
    with pytest.raises(BadInput, match=f"b.jsonl: is compressed with .*; allowed is UTF-8 text.* end in {ending}."):
        texts(tmp_path / "b.jsonl")
    with open_output(str(tmp_path / f"out.txt{ending}")) as output:
        output.write("the cat\n")
    assert (tmp_path / f"out.txt{ending}").read_bytes() != b"the cat\n"
    assert [*read_texts([str(tmp_path / f"out.txt{ending}")])] == ["the cat"]


@pytest.mark.parametrize("ending", [*COMPRESS, ".zst"])
def test_a_compressed_file_is_sought_in_as_any_other(ending: str, tmp_path: Path) -> None:
    path, half = tmp_path / f"a{ending}", len(LINES) // 2
    path.write_bytes(compressed(ending, LINES[:half]) + compressed(ending, LINES[half:]))
    with open_bytes(str(path)) as file:
        assert file.read(5) == LINES[:5] and file.seek(3, SEEK_CUR) == 8 and file.read(4) == LINES[8:12]
        assert file.seek(-7, SEEK_END) == len(LINES) - 7 and file.read() == LINES[-7:]
        assert file.seek(0, SEEK_END) == file.tell() == len(LINES) and file.read() == b""
        assert file.seek(2) == 2 and file.read() == LINES[2:]


@pytest.mark.parametrize("ending", [*COMPRESS, ".zst"])
def test_what_follows_a_stream_and_is_none_is_refused(ending: str, tmp_path: Path) -> None:
    half, path = LINES.index(b"\n") + 1, tmp_path / f"a.jsonl{ending}"
    first, second = compressed(ending, LINES[:half]), compressed(ending, LINES[half:])
    for rest in (b"\x01" + second[1:], second + b"garbage"):
        path.write_bytes(first + rest)
        with pytest.raises(BadInput, match=f"a.jsonl{ending}: cannot be read .*Copy or compress the file again"):
            texts(path)
    if ending in (".gz", ".xz"):  # may be padded with zeros
        path.write_bytes(first + bytes(8) + second + bytes(4))
        assert texts(path) == TRANSLATIONS


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("backports.zstd", "compression.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd")
    with pytest.raises(BadInput, match=r"a.jsonl.zst: .*pip install 'hictl_hf\[zstd\]', or use .gz"):
        texts(path)
    with pytest.raises(BadInput, match=r"out.de.zst: .*pip install 'hictl_hf\[zstd\]'"):  # before hours of translating
        check_output(str(tmp_path / "out.de.zst"), [])


# --- zip --------------------------------------------------------------------------------------------------------------


def archive(path: Path, **members: str | list[str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, lines in members.items():
            file.writestr(name, "".join(f"{line}\n" for line in lines))
    return path


def side(at: int) -> list[str]:
    return [pair[at] for pair in PAIRS]


def test_an_archive_of_opus_is_read_as_downloaded(tmp_path: Path) -> None:
    """de-en.txt.zip of Books: both sides, sentence ids, README and LICENSE."""
    members = {"README": ["x"], "LICENSE": ["x"], "Books.de-en.de": side(1), "Books.de-en.en": side(0)}
    path = archive(tmp_path / "de-en.txt.zip", **members, **{"Books.de-en.xml": ["<x/>"], "Books.de-en.ids": ["1"]})
    expected = [{"de": de, "en": en} for en, de in PAIRS]
    assert texts(path) == texts(tmp_path) == expected
    ((shard),) = list_shards(str(path))
    assert shard.name == f"{path}/Books.de-en.{{de,en}}" and shard.sizes == {str(path): path.stat().st_size}
    cursor = Cursor()
    first = next(read_shard(shard, cursor, Skips()))
    assert first[0].origin == f"{path}/Books.de-en.{{de,en}}:1"
    assert [row.texts for rows in read_shard(shard, cursor, Skips()) for row in rows] == expected[1:]


def test_files_of_moses_and_tables_in_an_archive_are_read(tmp_path: Path) -> None:
    members = {"data/train.cs": ["a"], "data/train.en": ["b"], "data/dev.cs": ["c"], "data/dev.en": ["d"]}
    path = archive(tmp_path / "a.zip", **members, **{"more.tsv": TAB_LINES, "notes.pdf": ["x"]})
    assert texts(path) == [{"cs": "c", "en": "d"}, {"cs": "a", "en": "b"}, *TRANSLATIONS]


def test_of_the_files_in_an_archive_those_that_are_no_language_are_left_out(tmp_path: Path) -> None:
    members = {f"c.{name}": ["x"] for name in ("en", "de", "url", "score", "pdf", "ids")}
    assert texts(archive(tmp_path / "a.zip", **members)) == [{"de": "x", "en": "x"}]
    path = archive(tmp_path / "b.zip", **{f"news.{name}": ["x"] for name in ("src", "ref", "hyp")})
    with pytest.raises(BadInput, match="without a file that can be read.*name the files with their languages: en:FILE"):
        texts(path)


def test_members_that_are_hidden_are_left_out_and_those_not_read_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hidden = {"__MACOSX/._x.de": ["\0"], "__MACOSX/._x.en": ["\0", "\0"], ".x.jsonl": ["{"], "a/.git/x.tsv": ["x"]}
    shown = {"x.de": ["Katze"], "x.en": ["cat"]}
    path = archive(tmp_path / "a.zip", **shown, **hidden, **{"b.parquet": ["PAR1"], "README": ["x"]})
    with caplog.at_level("INFO"):
        assert texts(path) == [{"de": "Katze", "en": "cat"}]
    assert caplog.messages == [f"{path}: not read: README, b.parquet"]


@pytest.mark.parametrize(("language", "name"), [("", "a.jsonl"), ("en+de:", "a.jsonl"), ("sw:", "a.txt")])
def test_files_of_a_folder_that_are_not_read_are_logged(
    language: str, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for each in ("x.de", "x.en", name):
        write_lines(tmp_path / each, FLAT_LINES)
    with caplog.at_level("INFO"):
        assert len(texts(f"{language}{tmp_path}")) == len(TRANSLATIONS)
    assert caplog.messages == [f"{tmp_path}: not read: 2 files with other endings, such as {tmp_path / 'x.de'}"]


@pytest.mark.parametrize("ending", [*COMPRESS, ".zst"])
def test_compressed_members_are_read(ending: str, tmp_path: Path) -> None:
    path, half = tmp_path / "a.zip", LINES.index(b"\n") + 1
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"a.jsonl{ending}", compressed(ending, LINES[:half]) + compressed(ending, LINES[half:]))
    assert texts(path) == TRANSLATIONS
    ((shard),) = list_shards(str(path))
    assert [row.texts for rows in read_shard(shard, Cursor(1, [half]), Skips()) for row in rows] == TRANSLATIONS[1:]


def test_an_encrypted_archive_is_to_be_unpacked_with_its_password(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", **{"x.de": ["x"], "x.en": ["x"]})
    content = bytearray(path.read_bytes())
    for magic, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flags of members, also in the list
        start = -1
        while (start := content.find(magic, start + 1)) >= 0:
            content[start + at] |= 1
    path.write_bytes(content)
    with pytest.raises(BadInput, match="a.zip: has x.de, which is encrypted; allowed is .*Unpack it with its password"):
        texts(path)


@pytest.mark.parametrize(
    ("members", "found"),
    [
        (
            {"README": ["x"], "a.pdf": ["y"]},
            r"a.zip: is a zip archive without a file that can be read in it \(README, a.pdf\); allowed",
        ),
        (
            {"a.de": ["x", "y"], "a.en": ["x"]},
            r"a.zip/a.de has 2 lines, .*a.zip/a.en has 1 lines; allowed are files of equal",
        ),
        ({}, "it is empty"),
    ],
)
def test_an_archive_without_a_corpus_is_one_line(members: dict[str, list[str]], found: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=found):
        texts(archive(tmp_path / "a.zip", **members))


def test_a_damaged_archive_is_one_line_and_an_archive_is_called_so(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", **{"a.jsonl": FLAT_LINES * 99})
    damaged = bytearray(path.read_bytes())
    damaged[60:90] = b"\xff" * 30
    (tmp_path / "b.zip").write_bytes(damaged)
    with pytest.raises(BadInput, match="b.zip/a.jsonl: cannot be read"):
        [*read_rows(str(tmp_path / "b.zip"), Skips())]
    (tmp_path / "c.zip").write_bytes(path.read_bytes()[:-30])
    with pytest.raises(BadInput, match="c.zip: cannot be read .*BadZipFile.* Download it again"):
        texts(tmp_path / "c.zip")
    path.rename(tmp_path / "d.jsonl")
    with pytest.raises(BadInput, match=r"d.jsonl: is a zip archive; allowed is UTF-8 text.* with the ending .zip,"):
        texts(tmp_path / "d.jsonl")


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.xz"])
def test_an_archive_of_tar_is_to_be_unpacked(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{ending}"
    with tarfile.open(path, f"w:{ending.removeprefix('.tar').removeprefix('.')}") as file:
        file.add(write_lines(tmp_path / "a.en", ["x"]), "a.en")
    with pytest.raises(BadInput, match=f"a{ending}: is a tar archive; allowed is UTF-8 text.*Unpack it: tar -xf"):
        texts(path)


@pytest.mark.parametrize("ending", [*COMPRESS, ".zst"])
def test_an_ending_that_promises_another_compression_is_told(ending: str, tmp_path: Path) -> None:
    other = gzip.compress(LINES) if ending != ".gz" else bz2.compress(LINES)
    (tmp_path / f"a.jsonl{ending}").write_bytes(other)
    kind = "gzip" if ending != ".gz" else "bzip2"
    with pytest.raises(BadInput, match=f"is compressed with {kind}; allowed with the ending {ending} is text comp"):
        texts(tmp_path / f"a.jsonl{ending}")


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.csv", "a.parquet", "a.zip"])
def test_a_pointer_in_place_of_a_file_is_to_be_fetched(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(BadInput, match=r"is a pointer of Git LFS; .*git lfs pull"):
        [*read_rows(str(path), Skips())]


def test_an_empty_archive_is_empty(tmp_path: Path) -> None:
    (tmp_path / "a.zip").touch()
    with pytest.raises(BadInput, match=r"a.zip: is empty; allowed is one row"):
        [*read_rows(str(tmp_path / "a.zip"), Skips())]


def test_all_formats_are_one_corpus(tmp_path: Path) -> None:
    """As `hictl pretrain --train_file` reads them: archive, lists, scored ones too, Tatoeba, TMX, XLIFF, tables."""
    pairs = [(f"sentence {number}", f"Satz {number}") for number in range(7)]
    tmx = '<tmx version="1.4"><header srclang="en"/><body><tu>{}</tu></body></tmx>'
    variants = '<tuv xml:lang="EN"><seg>sentence 4</seg></tuv><tuv xml:lang="DE"><seg>Satz 4</seg></tuv>'
    xliff = '<xliff><file source-language="en" target-language="de"><body>{}</body></file></xliff>'
    unit = "<trans-unit><source>sentence 5</source><target>Satz 5</target></trans-unit>"
    write_lines(tmp_path / "t/sentences.csv", ["1\ten\tsentence 3", "2\tde\tSatz 3"])
    write_lines(tmp_path / "t/links.csv", ["1\t2", "2\t1"])
    sources = [
        str(archive(tmp_path / "en-de.txt.zip", **{"X.en-de.en": [pairs[0][0]], "X.en-de.de": [pairs[0][1]]})),
        f"en+de:{write_lines(tmp_path / 'pairs.txt', [chr(9).join(pairs[1])])}",
        f"1.04+en+de:{write_lines(tmp_path / 'scored.tsv.gz', ['1.1' + chr(9) + chr(9).join(pairs[2])])}",
        f"tatoeba:en+de:{tmp_path / 't'}",
        str(write_lines(tmp_path / "a.tmx", [tmx.format(variants)])),
        str(write_lines(tmp_path / "a.xlf", [xliff.format(unit)])),
        str(write_lines(tmp_path / "a.tsv.gz", ["en\tde", "\t".join(pairs[6])])),
    ]
    corpus, report = load_corpus(sources, cache_dir=tmp_path / "cache")
    assert sorted(zip(corpus["x"], corpus["y"])) == pairs
    assert report.kept == {"en-de": 7} and not report.skipped
