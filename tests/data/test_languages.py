"""Codes are told from other words, and one detector knows the script of every character."""

import re
import sys
import unicodedata

import pytest

from hictl_hf.data.languages import find_language, language_code, main_part, script_of, wanted_language, weighted_length
from hictl_hf.errors import BrokenRow


@pytest.mark.parametrize(("name", "code"), [("en", "en"), ("zh_Hans", "zh-Hans"), ("sr-Latn-RS", "sr-Latn-RS")])
def test_a_code_has_hyphens(name: str, code: str) -> None:
    assert language_code(name) == code and main_part(name) == code[:2]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        *(("EN", "en"), ("zh_tw", "zh-TW"), ("zh_hant_hk", "zh-Hant-HK"), ("SR-LATN", "sr-Latn"), ("es-419", "es-419")),
        *(("sr@latin", "sr-Latn"), ("uz_UZ@cyrillic", "uz-Cyrl-UZ"), ("ca@valencia", "ca-valencia"), ("deu", "deu")),
    ],
)  # fmt: skip
def test_case_and_underscores_of_a_code_do_not_matter(name: str, code: str) -> None:
    assert language_code(name) == code


@pytest.mark.parametrize("name", ["", "ENGL", "english", "de-", "d", "zh-TW-Hant", 3, None])
def test_other_words_are_no_codes(name: object) -> None:
    with pytest.raises(BrokenRow, match="allowed are codes such as en"):
        language_code(name)


def test_old_codes_and_regions_are_the_language_they_mean() -> None:
    assert [wanted_language(old, ["nb", "he", "id", "zh-Hant"]) for old in ("no", "iw", "in", "zh-TW", "sv")] == [
        *("nb", "he", "id", "zh-Hant", ""),
    ]


@pytest.mark.parametrize(
    ("language", "wanted", "is_wanted"),
    [
        *(("zh_tw", "zh", False), ("zh-MO", "zh", False), ("zh_hk", "zh", False), ("zh-SG", "zh", True)),
        *(("ZH-hans-sg", "zh", True), ("zh_Hant_MO", "zh-hant", True), ("zh-HK", "zh-TW", False), ("zho", "zh", True)),
        *(("cmn_Hans", "zh", True), ("zho_Hant", "zh_Hant", True), ("pt-BR", "pt_br", True), ("pt", "pt-BR", False)),
        *(("sr-Cyrl-RS", "sr", True), ("sr_ME", "sr", False), ("sr@latin", "sr_Latn", True), ("pa-PK", "pa", False)),
        *(("en-Latn", "en", True), ("eng", "en", True), ("de", "deu", True), ("nor", "nb", True), ("NO", "nb", True)),
        *(("ca-valencia", "ca", False), ("az-Arab", "az", False), ("uz_Latn_UZ", "uz", True), ("es-419", "es", True)),
        *(("kor_Hang", "ko", True), ("ko", "ko-Kore", True), ("acm_Arab", "acm", True), ("acm", "acm_Arab", True)),
        *(("acm_Latn", "acm_Arab", False), ("azb_Arab", "azb", True), ("jpn_Jpan", "ja", True)),
        *(("ar-EG", "ar", True), ("arb", "ar", True), ("swh", "sw", True), ("nn", "nb", False), ("yue", "zh", False)),
    ],
)  # fmt: skip
def test_codes_of_any_standard_are_compared_by_what_they_mean(language: str, wanted: str, is_wanted: bool) -> None:
    assert wanted_language(language, ["en-Shaw", wanted]) == (wanted if is_wanted else "")


def test_a_wanted_region_comes_before_its_language() -> None:
    assert wanted_language("pt_br", ["pt", "pt-BR"]) == "pt-BR"
    assert find_language("pt-PT", ["pt", "pt-BR"]) == "" and wanted_language("pt-PT", ["pt", "pt-BR"]) == "pt"


@pytest.mark.parametrize(
    ("text", "length"), [("the cat", 7), ("猫猫", 6.4), ("ねコ", 4.8), ("한국", 4), ("ü猫", 4.2), ("कि", 2), ("", 0)]
)
def test_dense_scripts_weigh_more(text: str, length: float) -> None:
    assert weighted_length(text) == pytest.approx(length)


def test_weights_agree_with_ranges_of_characters() -> None:
    """An independent version by code points; they differ in radicals, strokes, one sign of half width, archaic Kana."""
    ranges = {
        3.2: re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"),
        2.4: re.compile("[\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f]"),
        2.0: re.compile("[\uac00-\ud7a3]"),
    }
    seen = 0
    for character in map(chr, range(0x80, sys.maxunicode + 1)):
        if unicodedata.category(character) in ("Cn", "Cs", "Co"):
            continue
        expected = next((weight for weight, found in ranges.items() if found.match(character)), 1.0)
        if weighted_length(character) != pytest.approx(expected):
            name = unicodedata.name(character)
            known = re.match("CJK (RADICAL|STROKE)|HALFWIDTH KATAKANA MIDDLE DOT", name)
            assert known or ord(character) > 0x1AFEF, name
        seen += expected > 1
    assert seen > 80_000


def test_scripts_of_letters_and_marks() -> None:
    assert [script_of(character) for character in "aαж猫カ한ー" + "・3 !"] == [
        *("LATIN", "GREEK", "CYRILLIC", "CJK", "KATAKANA", "HANGUL", "KATAKANA-HIRAGANA"),
        *("", "", "", ""),
    ]
