"""A corpus is loaded from any sources and never stale."""

import json
from pathlib import Path

import datasets
import pytest

from hictl_hf.data.cleaning import Cleaning, CorpusReport
from hictl_hf.data.corpus import load_corpus, sample_rows, spread
from hictl_hf.data.sources import read_rows
from hictl_hf.errors import BadInput

COLUMNS = ["x", "y", "x_lang", "y_lang"]


def write(path: Path, rows: list[object]) -> str:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_a_corpus_is_loaded_from_many_sources_with_its_losses(tmp_path: Path) -> None:
    pairs = write(tmp_path / "a.jsonl", [{"en": "cat", "de": "Katze"}, "oops\n", {"en": "cat", "de": "Katze"}])
    swahili = write(tmp_path / "b.txt", ["paka\n", "\n", "mbwa\n"])
    corpus, report = load_corpus([pairs, f"sw:{swahili}"], cache_dir=tmp_path / "cache")
    assert isinstance(corpus, datasets.Dataset) and corpus.column_names == COLUMNS
    assert [tuple(row.values()) for row in corpus] == [
        ("cat", "Katze", "en", "de"),
        ("paka", None, "sw", None),
        ("mbwa", None, "sw", None),
    ]
    assert report.kept == {"en-de": 1, "sw": 2}
    assert report.skipped == {"broken": 1, "duplicate": 1, "empty": 1}
    assert report.messages[0].startswith(f"{pairs}:2: is not JSON")


def test_wanted_languages_are_paired_though_a_record_begins_with_another(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", [{"translation": {"bg": "да", "de": "ja", "en": "yes"}}])
    corpus, report = load_corpus([source], Cleaning(languages=("en", "de")), cache_dir=tmp_path / "cache")
    assert [tuple(row.values()) for row in corpus] == [("ja", "yes", "de", "en")]
    assert report.skipped == {"other language": 1}


def test_a_changed_source_is_never_served_stale_and_an_equal_one_fills_the_disk_once(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    source = write(tmp_path / "a.jsonl", [{"text": "paka", "lang": "sw"}])
    first, report = load_corpus([source], cache_dir=cache)
    (file,), named = cache.iterdir(), report.hash
    written = file.stat().st_ino
    again, report = load_corpus([source], cache_dir=cache)
    assert report.kept == {"sw": 1} and first.cache_files == again.cache_files and file.stat().st_ino == written
    assert report.hash == named != "" and named in file.name
    write(tmp_path / "a.jsonl", [{"text": "mbwa", "lang": "sw"}])
    changed, report = load_corpus([source], cache_dir=cache)
    assert report.hash != named
    assert (first["x"][:], changed["x"][:]) == (["paka"], ["mbwa"])
    assert len(list(cache.iterdir())) == 2


def test_rows_survive_the_borders_of_chunks(tmp_path: Path) -> None:
    source = write(tmp_path / "a.txt", [f"neno {number}\n" for number in range(10_001)])
    corpus, report = load_corpus([f"sw:{source}"], cache_dir=tmp_path)
    assert corpus["x"][9_998:] == ["neno 9998", "neno 9999", "neno 10000"]
    assert len(corpus) == report.kept["sw"] == 10_001


def test_strict_loading_raises_at_the_first_broken_row_and_leaves_no_file(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", [{"text": "paka", "lang": "sw"}, "oops\n"])
    with pytest.raises(BadInput, match="a.jsonl:2: is not JSON"):
        load_corpus([source], strict=True, cache_dir=tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_a_corpus_of_which_nothing_is_left_is_refused_with_its_summary(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", [{"en": "Berlin", "de": "Berlin"}, "oops\n"])
    with pytest.raises(BadInput, match=r"(?s)a.jsonl: no row is left.*equal sides +1\n.*a.jsonl:2: is not JSON"):
        load_corpus([source], cache_dir=tmp_path)


PAIRS = datasets.Dataset.from_list([{"en": "the house", "de": "das Haus"}])


@pytest.mark.parametrize("sources", [[], "a.jsonl", PAIRS, PAIRS.to_pandas(), [*PAIRS], [PAIRS], None])
def test_sources_are_a_list_of_names(sources: object, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="allowed is a list"):
        load_corpus(sources, cache_dir=tmp_path)  # type: ignore[arg-type]


def test_a_source_may_be_a_path(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("en\tde\nthe house\tdas Haus\n")
    rows, _ = load_corpus([path], cache_dir=tmp_path / "cache")
    assert rows["x"][:] == ["the house"] and len([*read_rows(path, CorpusReport())]) == 1


def test_the_example_in_the_document_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = (Path(__file__).parents[2] / "docs" / "data_formats.md").read_text(encoding="utf-8")
    example = document.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: [{"translation": {"de": "Hund", "en": "dog"}}])
    write(tmp_path / "pairs.jsonl", [{"en": f"cat {number}", "de": f"Katze {number}"} for number in range(8)])
    for name, content in {"news.en": "sun\n", "news.de": "Sonne\n", "swahili.txt": "jua\n"}.items():
        write(tmp_path / name, [content])
    (tmp_path / "locale" / "de").mkdir(parents=True)
    write(tmp_path / "locale" / "de" / "a.po", ['msgid "Close"\nmsgstr "Schließen"\n'])
    names: dict[str, object] = {}
    exec(example, names)
    assert names["report"].kept == {"en-de": 10, "de-en": 1, "sw": 1}
    assert {name: len(part) for name, part in names["parts"].items()} == {"train": 7, "dev": 3, "test": 2}


@pytest.mark.parametrize(("examples", "wanted"), [(1, 1), (5, 5), (7, 3), (1000, 999), (10**9, 4)])
def test_a_sample_is_spread_over_all_examples(examples: int, wanted: int) -> None:
    chosen = spread(examples, wanted).tolist()
    assert len({*chosen}) == wanted and chosen == sorted(chosen) and chosen[-1] < examples
    assert chosen == [number * examples // wanted for number in range(wanted)]


def test_a_sample_has_each_language_where_their_rows_alternate(tmp_path: Path) -> None:
    """Rows of a file in more than two languages alternate: every second row was in one language."""
    write(tmp_path / "a.jsonl", [{"translation": {"en": f"text {at}", "de": "Wort", "fr": "mot"}} for at in range(6)])
    corpus, report = load_corpus([str(tmp_path / "a.jsonl")], cache_dir=tmp_path)
    before = report.hash
    taken = sample_rows(corpus, 6, report)
    assert [text[-1] for text in taken["x"]] == [*"002244"] and report.kept == {"en-de": 3, "en-fr": 3}
    assert report.hash != before, "a run that was begun with other rows is not continued"
    alone, hashed = corpus.select(range(0, 12, 2)), report.hash
    assert len(sample_rows(alone, 3, report)) == 3 and report.hash == hashed


def test_rows_beyond_the_sample_are_counted() -> None:
    rows = [{"x": str(number), "y": None if number < 3 else "y", "x_lang": "en"} for number in range(6)]
    corpus = datasets.Dataset.from_list([{**row, "y_lang": row["y"] and "de"} for row in rows])
    report = CorpusReport()
    report.kept.update({"en": 3, "en-de": 5})  # two pairs of these are held out
    taken = sample_rows(corpus, 2, report)
    assert taken["x"] == ["0", "3"] and report.kept == {"en": 1, "en-de": 3}
    assert report.skipped == {"beyond max_train_samples": 4} and "beyond max_train_samples" in report.summary()
    assert sample_rows(corpus, 6, report) is sample_rows(corpus, None, report) is corpus
