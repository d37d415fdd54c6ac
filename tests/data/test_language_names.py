"""Names of columns, keys and files are languages, unless they are words for something else."""

import pytest

from hictl_hf.data.language_names import has_role, is_language, not_languages

LANGUAGES = [
    "en", "de", "zh_Hans", "pt_BR", "pt_br", "sr@latin", "sr_Latn", "zh-CN", "zh_tw", "es-419", "kmr", "nb",
    "nb_NO", "iw", "ca-valencia", "ca@valencia", "tt@iqtelif", "uz@cyrillic", "sr@ijekavianlatin", "be@tarask",
    "en-GB-oxendict", "de-AT", "mo", "sh", "in", "ji", "cmn", "zho_Hant", "eng_Latn", "arb_Arab", "ckb_Arab",
    "min_Latn", "min", "max_Latn", "src_Latn", "bat_smg", "roa_rup", "zh_yue", "zh_min_nan", "cbk_zam", "fiu_vro",
    "nds_nl", "map_bms", "my_zaw", "hi_rom", "ze_en", "ze_zh", "tok", "cb_IQ", "cx_PH", "zz_TR", "kab", "ber",
    "swc", "no", "id", "mt", "nr", "sn", "es_PE", "ro_MD", "ur_PK", "tk_TM", "id_ID", "mt_MT", "nn_NO", "jv_ID",
    "qaa", "cat", "ZH_CN", "EN", "yue", "ar-arb", "ms_zsm", "sr_ME",
]  # fmt: skip
OTHERS = [
    "url", "src", "tgt", "ref", "hyp", "seg", "avg", "max", "set", "job", "typ", "xml", "lm", "qe", "dom", "bpe",
    "raw", "doc-id", "doc_id", "seg_id", "row_id", "src_id", "de_comet", "de_bleu", "en_score", "src_lang",
    "tgt_lang", "src_text", "text_en", "en_text", "en_len", "de_clean", "de_raw", "en_tok", "en_bpe", "en_tc_src",
    "de_ref", "en_out", "de_sys", "en_lower", "en_norm", "en_orig", "en_sent", "en_word", "de_google", "de_human",
    "zh_tok", "zh_raw", "ar_ref", "en_cat", "en_v1", "de_lm", "de_qe", "name", "text",
    "loc", "dir", "lic", "vid", "wmt", "old", "tmp",
]  # fmt: skip


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_code_of_a_standard_or_corpus_is_a_language(name: str) -> None:
    assert is_language(name) and is_language(name, is_declared=True)
    assert not_languages(["fr", "ja", name]) == []


@pytest.mark.parametrize("name", OTHERS)
def test_a_word_for_something_else_is_no_language(name: str) -> None:
    assert not_languages(["en", name]) == [name]


@pytest.mark.parametrize("name", ["de_mt", "de_MT", "EN_ID", "en-id", "en_no", "fr_nr", "de_pe", "DE_PE", "de_md"])
def test_among_three_a_region_that_is_also_a_word_is_no_language(name: str) -> None:
    assert not_languages(["en", name]) == [] and not_languages(["en", "de", name]) == [name]


def test_a_language_that_is_named_need_not_be_assigned() -> None:
    assert is_language("xx", is_declared=True) and not is_language("xx")
    for word in ("src", "en_tok", "de_ref"):
        assert not is_language(word, is_declared=True)


def test_a_language_named_on_purpose_is_refused_only_as_the_name_of_a_side_or_file() -> None:
    assert all(map(has_role, ("src", "tgt", "url", "REF")))
    assert not any(map(has_role, ("key", "sn", "en", "tok", "src-Latn", "", None)))
