"""A stream mixes languages as a run that reads all of the data does, with bytes in place of rows."""

import json
import logging
import os
import zipfile
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from test_streaming import WRITERS, Letters, lines, write

from hictl_hf.data import stream_parts as mixture
from hictl_hf.data.cleaning import Cleaning
from hictl_hf.data.sampling import language_shares
from hictl_hf.data.stream_parts import source_shares, stream_parts
from hictl_hf.data.streaming import StreamedBatches
from hictl_hf.errors import BadInput


def shares_of(sources: list[str], *settings: Any, **mixing: Any) -> list[float]:
    return source_shares(stream_parts(sources, *settings, **mixing))


def test_an_archive_of_several_corpora_has_its_bytes_once(tmp_path: Path) -> None:
    for name, corpora in (("three.zip", "abc"), ("one.zip", "d")):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for corpus, language in product(corpora, ("de", "en")):
                lines = (f"{corpus} {language} {number} a house that is old\n" for number in range(600 // len(corpora)))
                archive.writestr(f"{corpus}.{language}", "".join(lines))
    shares = shares_of([str(tmp_path / "three.zip"), str(tmp_path / "one.zip")])
    assert shares == pytest.approx([0.5, 0.5], abs=0.02)


def test_languages_are_mixed_by_the_bytes_of_their_files(tmp_path: Path) -> None:
    def text(name: str, language: str, size: int) -> str:
        return write(tmp_path / f"{name}.jsonl", json.dumps({"text": "7 " * size, "lang": language}))

    sources = [text("a", "sw", 99), text("b", "en", 400), text("c", "sw", 300), WRITERS["parquet"](tmp_path)]
    a, b, c, d = map(os.path.getsize, sources)
    by_language = language_shares({("sw", None): a + c, ("en", None): b, ("en", "de"): d}, 0.3, 0.7, 0.4)
    sw = by_language["sw", None]
    expected = [sw * a / (a + c), by_language["en", None], sw * c / (a + c), 0.6]
    assert shares_of(sources, text_share=0.4) == pytest.approx(expected)
    assert shares_of(sources, text_alpha=1, text_share=None) == pytest.approx(
        [share / (a + b + c + d) for share in (a, b, c, d)]
    )


def test_the_language_of_a_source_is_that_of_its_first_clean_row(tmp_path: Path) -> None:
    rows = [{"en": "same", "de": "same"}, {"text": "1", "lang": "pt-BR"}]
    sources = [write(tmp_path / "a.jsonl", lines(rows)), f"en:{write(tmp_path / 'b.txt', '1')}"]
    assert sum(shares_of(sources, Cleaning(languages=("pt", "en")))) == pytest.approx(1)  # both text, no pairs
    with pytest.raises(BadInput, match="b.txt: no row is left after cleaning .1 other language.*relax"):
        shares_of(sources, Cleaning(languages=("pt",)))


# --- sources of several languages -------------------------------------------------------------------------------------


def folder_of(folder: Path, **sizes: int) -> str:
    """A folder with a file for each language, and so many pairs with English in it."""
    for language, size in sizes.items():
        rows = [{"en": f"en {number}", language: f"{language} {number}"} for number in range(size)]
        write(folder / f"{language}.jsonl", lines(rows))
    return str(folder)


def stream(parts: list[mixture.StreamPart], **settings: Any) -> StreamedBatches:
    sources, shares = [part.source for part in parts], [part.share for part in parts]
    return StreamedBatches(sources, shares, Letters(), 100, seed=3, parts=parts, **settings)


def drawn(batches: StreamedBatches, count: int) -> Counter[str]:
    """How often each language was drawn in so many batches."""
    found = Counter[str]()
    for _, batch in zip(range(count), batches):
        found.update("".join(map(chr, row["y"][:2])) for row in batch["rows"])
        batches.consumed(batch)
    return found


def test_a_folder_is_mixed_as_its_files_are_one_by_one(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "all", de=400, fr=100, sw=20)
    parts = stream_parts([folder], pair_alpha=0.5)
    files = [str(tmp_path / f"all/{language}.jsonl") for language in ("de", "fr", "sw")]
    one_by_one = source_shares(stream_parts(files, pair_alpha=0.5))
    assert [part.share for part in parts] == pytest.approx(one_by_one) and source_shares(parts) == pytest.approx([1])
    counts = drawn(stream(parts), 30)
    assert [counts[part.languages[1] or ""] / 3000 for part in parts] == pytest.approx(one_by_one, abs=0.04)


def test_text_that_is_to_be_left_out_is_not_read_from_a_folder_that_has_pairs_too(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, de=60)
    write(tmp_path / "text.jsonl", lines([{"text": f"en {number}", "lang": "en"} for number in range(600)]))
    pairs, text = stream_parts([folder], text_share=0)
    assert (pairs.languages, pairs.share, text.languages, text.share) == (("en", "de"), 1, ("en", None), 0)
    assert str(text) == f"{folder} (en)"


def test_an_archive_of_two_languages_is_divided_with_its_bytes(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name, language in (("a", "de"), ("b", "de"), ("c", "fr")):
            for code in (language, "en"):
                archive.writestr(f"{name}.{code}", "".join(f"{code} {number}\n" for number in range(50)))
    parts = stream_parts([str(tmp_path / "a.zip")])
    size = (tmp_path / "a.zip").stat().st_size
    assert [part.size for part in parts] == pytest.approx([size * 2 / 3, size / 3])


def test_files_that_begin_without_a_clean_row_are_still_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixture, "LOOKED_AT", 3)
    folder = folder_of(tmp_path, de=5, fr=5)
    late = [*({"en": "same", "sw": "same"} for _ in range(4)), {"en": "late", "sw": "sw"}]
    write(tmp_path / "a.jsonl", lines(late))
    german, french = stream_parts([folder])
    assert [shard.name for shard in german.shards] == [f"{folder}/de.jsonl", f"{folder}/a.jsonl"]
    assert [part.size for part in (german, french)] == [
        os.path.getsize(f"{folder}/{name}.jsonl") for name in ("de", "fr")
    ]
    (only,) = stream_parts([f"{folder}/a.jsonl"])
    assert only.languages == ("en", "sw")


def test_a_file_of_two_languages_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"text": f"en {number}", "lang": "en"} for number in range(9)] + [{"en": "en 1", "de": "de 1"}]
    mixed = write(tmp_path / "mixed.jsonl", lines(rows))
    both = write(tmp_path / "both.jsonl", lines([{"en": "a b", "de": "c d"}, {"de": "e f", "en": "g h"}]))
    with caplog.at_level(logging.WARNING, "hictl_hf"):
        for _, batch in zip(range(3), (batches := stream(stream_parts([mixed, both])))):
            batches.consumed(batch)
        (message,) = caplog.messages
        assert message.startswith(f"{mixed}: a file that begins in en also has en-de: its rows come as they are in it")
        caplog.clear()
        next(iter(StreamedBatches([mixed], [1], Letters(), 100, seed=3)))  # shares of the user's own
        assert not caplog.messages


def test_bytes_of_compressed_files_and_others_are_compared_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder_of(tmp_path, de=50)
    text = write(tmp_path / "fr.jsonl.gz", lines([{"en": "a cat", "fr": "un chat"}]))
    with caplog.at_level(logging.WARNING, "hictl_hf"):
        stream_parts([text])
        stream_parts([str(tmp_path / "de.jsonl")] * 2)
        assert not caplog.messages
        stream_parts([str(tmp_path)])
    (message,) = caplog.messages
    assert "where" in message and "de.jsonl and" in message and "fr.jsonl.gz are of different kinds" in message


def test_a_stream_of_0_31_0_goes_on_with_the_files_of_a_source_together(tmp_path: Path) -> None:
    """Until then a source had one language; its rows, and their order, stay what they were."""
    folder = folder_of(tmp_path / "all", de=40, fr=10)
    other = folder_of(tmp_path / "other", sw=10)

    def until_then() -> StreamedBatches:
        return StreamedBatches([folder, other], [3, 1], Letters(), 7, seed=3, buffer=9)

    def ids(batches: StreamedBatches, count: int) -> list[Any]:
        rows = []
        for _, batch in zip(range(count), batches):
            rows.append([(row["x"], row["y"], row["seed"]) for row in batch["rows"]])
            batches.consumed(batch)
        return rows

    begun = until_then()
    expected = ids(until_then(), 12)
    ids(begun, 4)
    state = json.loads(json.dumps(begun.state_dict()))
    parts = stream_parts([folder, other])
    sources, shares = [part.source for part in parts], [part.share for part in parts]
    now = StreamedBatches(sources, shares, Letters(), 7, seed=3, buffer=9, parts=parts)
    now.load_state_dict(state)
    assert ids(now, 8) == expected[4:] and now.settings() == state["settings"]


def test_a_file_is_of_its_first_wanted_languages(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", json.dumps({"translation": {"bg": "да", "de": "ja", "en": "yes"}}))
    (part,) = stream_parts([source], cleaning=Cleaning(languages=("en", "de")))
    assert part.languages == ("de", "en")
