"""Every row is kept or counted; the dataset is never stale; held-out sentences never leak into train."""

import json
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, get_args

import datasets
import pytest

from hictl_hf.data.corpus import (
    Cleaning,
    CorpusReport,
    Reason,
    clean_rows,
    comparable,
    load_corpus,
    split_held_out,
    weighted_length,
)
from hictl_hf.data.formats import Row
from hictl_hf.errors import BadInput

COLUMNS = ["x", "y", "x_lang", "y_lang"]


def write(path: Path, rows: list[object]) -> str:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def cleaned(pairs: list[dict[str, str]], **settings: object) -> tuple[list[tuple], CorpusReport]:
    report = CorpusReport()
    rows = [Row(pair, f"test:{number}") for number, pair in enumerate(pairs)]
    return [tuple(row.values()) for row in clean_rows(rows, Cleaning(**settings), report)], report


# --- cleaning -------------------------------------------------------------------------------------------------------


def test_cleaning_counts_agree_with_those_worked_by_hand() -> None:
    rows, report = cleaned(
        [
            {"en": "  one \t cat\n", "de": "eine\u00a0Katze"},  # kept, white space collapsed
            {"en": "one cat", "de": "eine Katze"},  # duplicate of the collapsed row
            {"en": "one cat", "fr": "eine Katze"},  # kept: another language
            {"en": "one cat"},  # kept: no translation
            {"en": "one cat"},  # duplicate
            {"en": "cat", "de": " \u2028\u200b\u00ad"},  # empty
            {"sw": ""},  # empty
            {"en": "Berlin", "de": "Berlin "},  # equal sides
            {"en": "a" * 1001, "de": "b" * 1001},  # too long
            {"en": "a" * 1000, "de": "b" * 1000},  # kept: just short enough
            {"en": "a" * 21, "de": "bbbbb"},  # length ratio: 21 > 4 * 5
            {"en": "a" * 20, "de": "bbbbb"},  # kept: 20 = 4 * 5
            {"en": "a" * 19, "de": "b"},  # kept: both under 20
        ]
    )
    assert rows[:3] == [
        ("one cat", "eine Katze", "en", "de"),
        ("one cat", "eine Katze", "en", "fr"),
        ("one cat", None, "en", None),
    ]
    assert report.kept == {"en-de": 4, "en-fr": 1, "en": 1}
    assert report.skipped == {"duplicate": 2, "empty": 2, "equal sides": 1, "too long": 1, "length ratio": 1}
    assert len(rows) == report.kept.total()


@pytest.mark.parametrize(
    ("text", "length"), [("the cat", 7), ("猫猫", 6.4), ("ねコ", 4.8), ("한국", 4), ("ü猫", 4.2), ("कि", 2), ("", 0)]
)
def test_dense_scripts_weigh_more(text: str, length: float) -> None:
    assert weighted_length(text) == pytest.approx(length)


def test_the_weights_decide_what_an_unbalanced_pair_is() -> None:
    # 10 Han characters weigh 32: 128 letters are 4.0 times as long, 129 are more. Unweighted both would be dropped.
    kept, report = cleaned([{"en": "a" * 128, "zh": "猫" * 10}, {"en": "a" * 129, "zh": "猫" * 10}])
    assert [len(row[0]) for row in kept] == [128]
    assert report.skipped == {"length ratio": 1}


@pytest.mark.parametrize(
    ("setting", "rows"),
    [
        ({"drop_equal_sides": False}, [{"en": "Berlin", "de": "Berlin"}]),
        ({"drop_duplicates": False}, [{"en": "a", "de": "b"}] * 2),
        ({"max_characters": 2000}, [{"en": "a" * 1001}]),
        ({"max_length_ratio": 5.0}, [{"en": "a" * 25, "de": "bbbbb"}]),
    ],
)
def test_each_setting_changes_what_is_kept(setting: dict, rows: list[dict[str, str]]) -> None:
    assert len(cleaned(rows, **setting)[0]) == len(rows) > len(cleaned(rows)[0])


@pytest.mark.parametrize("languages", ["de", ["en", "german"], ["en", ""]])
def test_what_is_no_list_of_codes_is_refused(languages: Any) -> None:
    with pytest.raises(BadInput, match=r"allowed is a list of codes, with English where pairs have it"):
        Cleaning(languages=languages)


def test_wanted_languages_take_their_regions_but_no_other_script() -> None:
    languages = ["pt", "pt-BR", "zh", "zh-Hans", "zh-CN", "zh-TW", "zh-Hant", "sr-Latn", "de", "en-GB", "no", "iw"]
    pairs = [{"en": f"text {at}", language: f"{language} {at}"} for at, language in enumerate(languages)]
    rows, report = cleaned(pairs, languages=["en", "pt", "zh", "sr", "nb", "he"])
    assert [y_lang for *_, y_lang in rows] == ["pt", "pt", "zh", "zh", "zh", "nb", "he"]
    assert report.skipped == {"other language": 5}  # zh-TW zh-Hant sr-Latn de en-GB
    rows, report = cleaned(pairs, languages=["en", "zh-Hant"])
    assert [y_lang for *_, y_lang in rows] == ["zh-Hant", "zh-Hant"]


def test_every_row_is_kept_or_counted_once() -> None:
    draw = random.Random(0)
    pairs = [{"en": "a" * draw.randrange(60), "ja": draw.choice("aねb") * draw.randrange(40)} for _ in range(500)]
    rows, report = cleaned(pairs, max_characters=50)
    assert len(rows) + report.skipped.total() == 500
    assert set(report.skipped) == {"empty", "equal sides", "too long", "length ratio", "duplicate"}


# --- report ---------------------------------------------------------------------------------------------------------


def test_a_report_keeps_five_messages_and_counts_all() -> None:
    report = CorpusReport()
    for line in range(7):
        report.skip("broken", f"a.jsonl:{line}: oops")
    assert report.skipped["broken"] == 7
    assert report.messages == [f"a.jsonl:{line}: oops" for line in range(5)]
    assert report.as_dict() == {"kept": {}, "skipped": {"broken": 7}, "messages": report.messages}
    assert json.loads(json.dumps(report.as_dict())) == report.as_dict()


def test_a_summary_is_aligned_with_the_largest_counts_first() -> None:
    report = CorpusReport(kept=Counter({"sw": 5, "en-de": 1200}), skipped=Counter(duplicate=3, broken=1))
    report.messages.append("a.jsonl:2: oops")
    assert report.summary().splitlines() == [
        "kept                   1,205",
        "  en-de                1,200",
        "  sw                       5",
        "skipped                    4",
        "  duplicate                3",
        "  broken                   1",
        "  a.jsonl:2: oops",
    ]


def test_a_report_knows_a_closed_set_of_reasons() -> None:
    with pytest.raises(ValueError, match="'ugly' is no reason .* allowed are broken, empty"):
        CorpusReport().skip("ugly")  # type: ignore[arg-type]


def test_the_document_lists_exactly_the_reasons_that_are_counted() -> None:
    document = (Path(__file__).parents[2] / "docs" / "data_formats.md").read_text(encoding="utf-8")
    table = document.split("## Cleaning")[1].split("## Broken input")[0]
    listed = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(listed) == sorted(get_args(Reason))


# --- loading --------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("sources", [[], "a.jsonl"])
def test_sources_are_a_list(sources: object, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="allowed is a list"):
        load_corpus(sources, cache_dir=tmp_path)  # type: ignore[arg-type]


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


# --- held-out sentences ---------------------------------------------------------------------------------------------


def table(rows: list[tuple]) -> datasets.Dataset:
    columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
    return datasets.Dataset.from_dict({name: list(values) for name, values in columns.items()})


def tuples(part: datasets.Dataset) -> list[tuple]:
    return [tuple(row[name] for name in COLUMNS) for row in part]


def noisy_corpus(seed: int) -> list[tuple]:
    """Four languages, sw small; x has one or two y and differs in case and punctuation; y is shared by many x."""
    draw = random.Random(seed)
    rows = set()
    for number in range(300):
        for language in ("de", "fr", "ja", "sw"):
            for _ in range(draw.choice([1, 2]) if draw.random() < (0.05 if language == "sw" else 0.6) else 0):
                x = draw.choice(["Text {}", "text {}.", "TEXT, {}!"]).format(number)
                rows.add((x, f"{language} {draw.randrange(280)}{draw.choice(['', '?'])}", "en", language))
    rows |= {(f"Text {number}", None, "en", None) for number in range(0, 400, 7)}
    rows |= {(f"ja {number}!", None, "ja", None) for number in range(0, 400, 5)}
    rows |= {(f"de {number}", f"pl {number}", "de", "pl") for number in range(50)}
    return draw.sample(sorted(rows, key=str), len(rows))


def all_texts(rows: list[tuple]) -> set[str]:
    return {comparable(text) for row in rows for text in row[:2] if text is not None}


def by_pair(rows: list[tuple]) -> dict[str, list[tuple]]:
    grouped = defaultdict(list)
    for row in rows:
        if row[3]:
            grouped[f"{row[2]}-{row[3]}"].append(row)
    return grouped


def test_held_out_texts_are_those_in_most_languages_with_all_that_share_a_text() -> None:
    # "One" is in two languages, so it is tried first. With it, the same x in other spelling, its y with another x, and
    # both as text without translation leave train. "de" loses 3 of 6 rows, so no other text may be held out there.
    rows = [
        ("One", "Eins", "en", "de"),
        ("One", "Un", "en", "fr"),
        ("one!", "EINS", "en", "de"),
        ("Single", "eins", "en", "de"),
        ("ONE", None, "en", None),
        ("Eins.", None, "de", None),
        ("Two", "Zwei", "en", "de"),
        ("Three", "Drei", "en", "de"),
        ("Four", "Vier", "en", "de"),
        ("Five", "Cinq", "en", "fr"),
    ]
    parts = split_held_out(table(rows), per_language=5, seed=0)
    assert sorted(map(len, parts.values())) == [0, 2, 4]
    (held_out,) = [tuples(parts[name]) for name in ("dev", "test") if len(parts[name])]
    assert rows[1] in held_out and (rows[0] in held_out or rows[2] in held_out)
    assert tuples(parts["train"])[-4:] == rows[6:]


def test_of_data_that_is_held_out_as_a_whole_nothing_is_kept_for_training() -> None:
    rows = table([(f"one {number}", f"eins {number}", "en", "de") for number in range(7)])
    sizes = {
        keep: [len(part) for part in split_held_out(rows, 5, 0, keep_half=keep).values()] for keep in (True, False)
    }
    assert sizes == {True: [4, 2, 1], False: [0, 4, 3]}


@pytest.mark.parametrize("seed", range(5))
def test_no_text_of_a_part_is_in_another(seed: int) -> None:
    rows = noisy_corpus(seed)
    parts = {name: tuples(part) for name, part in split_held_out(table(rows), per_language=20, seed=seed).items()}
    assert all(parts.values()) and set(parts["train"] + parts["dev"] + parts["test"]) < set(rows)
    for one, other in (("train", "dev"), ("train", "test"), ("dev", "test")):
        assert all_texts(parts[one]).isdisjoint(all_texts(parts[other]))
    naive = all_texts([row for row in rows if row not in parts["dev"]])  # what merely leaving out the rows would leak
    assert not naive.isdisjoint(all_texts(parts["dev"]))


@pytest.mark.parametrize("seed", range(5))
def test_each_language_has_its_share_of_distinct_sentences(seed: int) -> None:
    rows = noisy_corpus(seed)
    parts = split_held_out(table(rows), per_language=20, seed=seed)
    before, train = by_pair(rows), by_pair(tuples(parts["train"]))
    for name in ("dev", "test"):
        held_out = by_pair(tuples(parts[name]))
        assert all(len(held_out[pair]) == 20 for pair in ("en-de", "en-fr", "en-ja"))
        assert 0 < len(held_out["en-sw"]) < 20  # too small for its share, but not left out
        for pair in held_out.values():
            assert len({comparable(row[0]) for row in pair}) == len({comparable(row[1]) for row in pair}) == len(pair)
    assert all(2 * len(train[pair]) >= len(before[pair]) for pair in before)


def test_few_texts_serve_all_languages() -> None:
    rows = [(f"x{number}", f"{to}{number}", "en", to) for number in range(1, 200) for to in ("de", "fr") if number % 3]
    rows += [(f"only {to} {number}", f"{to} y{number}", "en", to) for number in range(200) for to in ("de", "fr")]
    parts = split_held_out(table(rows), per_language=30, seed=1)
    for name in ("dev", "test"):
        assert len(parts[name]) == 60 and len(set(parts[name]["x"])) == 30


def test_the_choice_depends_on_the_seed_and_not_on_the_order_of_rows() -> None:
    rows = noisy_corpus(0)
    first = split_held_out(table(rows), per_language=20, seed=1)
    shuffled = split_held_out(table(random.Random(9).sample(rows, len(rows))), per_language=20, seed=1)
    for name in ("dev", "test"):
        assert tuples(first[name]) == tuples(shuffled[name])
    train = set(tuples(first["train"]))
    assert train == set(tuples(shuffled["train"]))
    assert tuples(first["train"]) == [row for row in rows if row in train]  # order is kept
    other = split_held_out(table(rows), per_language=20, seed=2)
    assert set(tuples(other["dev"])) != set(tuples(first["dev"]))


def test_a_pair_of_one_row_stays_in_train() -> None:
    rows = [("One", "Moja", "en", "sw"), *[(f"x{number}", f"y{number}", "en", "de") for number in range(10)]]
    parts = split_held_out(table([*rows, ("One", "Eins", "en", "de")]), per_language=3, seed=0)
    assert ("One", "Moja", "en", "sw") in tuples(parts["train"]) and len(parts["dev"]) + len(parts["test"]) == 5


def test_texts_without_translation_are_never_held_out() -> None:
    rows = [(f"neno {number}", None, "sw", None) for number in range(9)]
    parts = split_held_out(table(rows), per_language=3, seed=0)
    assert {name: len(part) for name, part in parts.items()} == {"train": 9, "dev": 0, "test": 0}


def test_parts_can_be_named() -> None:
    assert list(split_held_out(table(noisy_corpus(0)), 3, seed=0, parts=("validation",))) == ["train", "validation"]


def test_nothing_to_hold_out_is_refused() -> None:
    with pytest.raises(ValueError, match="per_language is 0; allowed is 1 or more"):
        split_held_out(table(noisy_corpus(0)), per_language=0, seed=0)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Hello, World!", "hello world", True),
        ("« Bonjour »", "bonjour", True),
        ("猫。", "猫", True),
        ("a\u00a0b\u3000c", "abc", True),
        ("कि", "का", False),  # they differ in a vowel sign only
        ("?!", "...", False),  # nothing but punctuation: compared as written
        ("cat", "cats", False),
    ],
)
def test_texts_are_compared_without_case_punctuation_and_spaces(one: str, other: str, same: bool) -> None:
    assert (comparable(one) == comparable(other)) is same
