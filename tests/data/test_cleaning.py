"""Every row is kept or counted under one reason."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest

from hictl_hf.data.catalogue_text import Change
from hictl_hf.data.cleaning import Cleaning, CorpusReport, Reason, clean_rows
from hictl_hf.data.records import Row
from hictl_hf.errors import BadInput


def cleaned(pairs: list[dict[str, str]], **settings: object) -> tuple[list[tuple], CorpusReport]:
    report = CorpusReport()
    rows = [Row(pair, f"test:{number}") for number, pair in enumerate(pairs)]
    return [tuple(row.values()) for row in clean_rows(rows, Cleaning(**settings), report)], report


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


def test_entries_of_catalogues_that_are_much_too_long_are_not_searched_for_marks() -> None:
    """The time would grow with the square of the length: minutes for this one."""
    report, row = CorpusReport(), Row({"en": "ab_" * 100_000, "de": "b"}, "test", is_catalogue_entry=True)
    assert list(clean_rows([row], Cleaning(), report)) == [] and report.skipped == {"too long": 1}


def test_the_weights_decide_what_an_unbalanced_pair_is() -> None:
    # 10 Han characters weigh 32: 128 letters are 4.0 times as long, 129 are more. Unweighted both would be dropped.
    kept, report = cleaned([{"en": "a" * 128, "zh": "猫" * 10}, {"en": "a" * 129, "zh": "猫" * 10}])
    assert [len(row[0]) for row in kept] == [128]
    assert report.skipped == {"length ratio": 1}


def test_short_sides_are_left_out_by_weighted_length() -> None:
    # 15 letters, and 5 Han characters that weigh 16, are enough; 14 letters on one side, or 4 Han (12.8), are not.
    rows = [
        {"en": "a" * 15, "de": "b" * 15}, {"en": "a" * 16, "zh": "猫" * 5}, {"sw": "c" * 15},
        {"en": "a" * 15, "de": "b" * 14}, {"en": "a" * 16, "zh": "猫" * 4}, {"sw": "c" * 14},
    ]  # fmt: skip
    kept, report = cleaned(rows, min_characters=15)
    assert [row[3] for row in kept] == ["de", "zh", None]
    assert report.skipped == {"too short": 3}


def test_a_least_length_above_the_longest_is_refused() -> None:
    with pytest.raises(BadInput, match="min_characters is 15, above max_characters, 10; nothing would be kept"):
        Cleaning(min_characters=15, max_characters=10)


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


@pytest.mark.parametrize("name", ["drop_equal_sides", "drop_duplicates", "catalogue_text"])
def test_a_switch_is_true_or_false(name: str) -> None:
    with pytest.raises(BadInput, match=f"{name} is 'yes'; allowed is true or false"):
        Cleaning(**{name: "yes"})


@pytest.mark.parametrize("name", ["min_characters", "max_characters", "max_length_ratio"])
@pytest.mark.parametrize("value", [0, True, float("nan"), "5", None])
def test_a_length_is_a_number_above_zero(name: str, value: Any) -> None:
    allowed = "above 0" if name == "min_characters" else "of 1 or more"
    with pytest.raises(BadInput, match=f"cleaning: {name} is {value!r}; allowed is a number {allowed}"):
        Cleaning(**{name: value})


@pytest.mark.parametrize("name", ["max_characters", "max_length_ratio"])
def test_a_limit_that_nothing_can_keep_is_refused(name: str) -> None:
    """A text alone has the ratio 1, and a pair no less."""
    with pytest.raises(BadInput, match=f"cleaning: {name} is 0.5; allowed is a number of 1 or more"):
        Cleaning(**{name: 0.5})
    assert len(cleaned([{"en": "a" * 30, "de": "b" * 30}, {"en": "a" * 30}], max_length_ratio=1)[0]) == 2


@pytest.mark.parametrize("languages", ["de", ["en", "german"], ["en", ""], None, 5, [["en"]], {"en": "de"}])
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


# --- report -----------------------------------------------------------------------------------------------------------


def test_a_report_keeps_five_messages_and_counts_all() -> None:
    report = CorpusReport()
    for line in range(7):
        report.skip("broken", f"a.jsonl:{line}: oops")
    assert report.skipped["broken"] == 7
    assert report.messages == [f"a.jsonl:{line}: oops" for line in range(5)]
    assert report.as_dict() == {"kept": {}, "skipped": {"broken": 7}, "changed": {}, "messages": report.messages}
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


def test_changed_texts_are_listed_if_there_are_any() -> None:
    report = CorpusReport(kept=Counter({"en-br": 5}), changed=Counter({"soft hyphens": 1, "mnemonics": 1234}))
    assert report.summary().splitlines()[2:] == [
        "changed                1,235",
        "  mnemonics            1,234",
        "  soft hyphens             1",
        "skipped                    0",
    ]
    assert report.as_dict()["changed"] == {"soft hyphens": 1, "mnemonics": 1234}


def test_a_report_knows_a_closed_set_of_reasons() -> None:
    with pytest.raises(ValueError, match="'ugly' is no reason .* allowed are broken, empty"):
        CorpusReport().skip("ugly")  # type: ignore[arg-type]


def test_the_document_lists_exactly_the_reasons_and_changes_that_are_counted() -> None:
    document = (Path(__file__).parents[2] / "docs" / "data_formats.md").read_text(encoding="utf-8")
    parts = document.split("## Cleaning")[1].split("## Broken input")[0].split("### Text of catalogues")
    for table, counted in zip(parts, (Reason, Change), strict=True):
        listed = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
        assert sorted(listed) == sorted(get_args(counted))
