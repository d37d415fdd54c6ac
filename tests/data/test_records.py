"""A record gives rows, or says why it cannot; a cursor shares records among readers."""

import pytest

from hictl_hf.data.records import Cursor, Row, checked_text, checked_texts, columns_used, rows_of_record
from hictl_hf.errors import BrokenRow


class Counts(dict[str, int]):
    def skip(self, reason: str, message: str = "") -> None:
        self[reason] = self.get(reason, 0) + 1


def test_a_record_in_many_languages_pairs_the_first_with_each_other() -> None:
    counts = Counts()
    record = {"translation": {"en": "yes", "de": "ja", "fr": None, "pt_BR": "sim"}}
    assert rows_of_record(record, "a:1", counts) == [
        Row({"en": "yes", "de": "ja"}, "a:1"),
        Row({"en": "yes", "pt-BR": "sim"}, "a:1"),
    ]
    assert rows_of_record({"text": "jua", "lang": "sw"}, "a:2", counts) == [Row({"sw": "jua"}, "a:2")]
    assert rows_of_record(None, "a:3", counts) == rows_of_record({}, "a:4", counts) == []
    assert counts == {"untranslated": 2, "broken": 1}


def test_the_first_wanted_language_is_paired_with_the_others() -> None:
    record = {"translation": {"bg": "да", "de": "ja", "en_GB": "yes", "fr": "oui"}}
    for wanted, expected in ((["en", "de"], ["de-en-GB", "de-bg", "de-fr"]), (["sw"], ["bg-de", "bg-en-GB", "bg-fr"])):
        rows = rows_of_record(record, "a:1", Counts(), wanted=wanted)
        assert ["-".join(row.texts) for row in rows] == expected


def test_a_translation_that_is_null_is_untranslated() -> None:
    """Parquet has null where JSON lines lack a language."""
    for texts, counts in (({"en": "a", "de": None}, "untranslated"), ({"en": None, "de": None}, "broken")):
        found = Counts()
        assert rows_of_record({"translation": texts}, "a:1", found) == [] and found == {counts: 1}
    assert rows_of_record({"translation": {"en": "a"}}, "a:1", Counts()) == [Row({"en": "a"}, "a:1")]
    found = Counts()
    assert rows_of_record({"en": "a", "de": None}, "a:1", found) == [] and found == {"broken": 1}


@pytest.mark.parametrize("names", [("en", "de", "ger"), ("deu", "de"), ("zh", "zho_Hans")])
def test_two_codes_of_one_language_are_refused(names: tuple[str, ...]) -> None:
    for record in (dict.fromkeys(names, "a text"), {"translation": dict.fromkeys(names, "a text")}):
        with pytest.raises(BrokenRow, match="names a language twice in .*; allowed is each once. Remove one of them"):
            checked_texts(record)
    for different in (("zh", "zh_TW", "en", "en_GB"), ("en", "no", "nb", "nn")):
        assert len(checked_texts(dict.fromkeys(different, "a text"))[0]) == 4


def test_other_columns_are_ignored_next_to_named_ones() -> None:
    assert columns_used(["id", "translation"]) == ["translation"]
    assert columns_used(["text", "n", "lang"]) == ["text", "lang"]
    assert checked_texts({"en": "a", "de": "b"}) == ({"en": "a", "de": "b"}, 0)
    for names in ([], ["en", "score"], ["id", "en"]):
        with pytest.raises(BrokenRow, match="allowed are"):
            columns_used(names)


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "__index_level_0__"])
def test_row_numbers_of_pandas_are_ignored_next_to_two_languages(name: str) -> None:
    for number in ("0", 0):
        assert checked_texts({name: number, "en": "a", "de": "b"}) == ({"en": "a", "de": "b"}, 0)
    assert columns_used(["en", "de", name]) == ["en", "de"]
    for names in ([name, "de"], [name, "en", "score"]):
        with pytest.raises(BrokenRow, match="allowed are"):
            columns_used(names)


@pytest.mark.parametrize(
    "record",
    [
        *(
            {"en": "Good morning", "de": "Guten Morgen", name: "http://a.b/c"}
            for name in ["url", "uri", "src", "ref", "doc"]
        ),
        *(
            {"en": "Good morning", "de": "Guten Morgen", name: "17"}
            for name in ["idx", "key", "row", "sid", "ter", "no", "nr", "id"]
        ),
        {"no": "1", "en": "Good morning", "de": "Guten Morgen"},
        {"nr": " 12 ", "en": "Good morning"},
        {"sn": "3", "en": "Good morning", "de": "Guten Morgen"},  # Shona, or a serial number
        {"en": "Good morning", "de": "Guten Morgen", "id": "news/17"},
        {"en": "Good morning", "mt": "Guten Morgen", "pe": "Guten Tag"},
        {"en": "Good morning", "de": "Guten Morgen", "mt": "Guten Morgn"},
        {"EN": "Good morning", "DE": "Guten Morgen", "URL": "x"},
        {"Yes": "Good morning", "No": "Guten Morgen"},
        {"en": "Good morning", "de": "Guten Morgen", "doc_id": "doc_17"},
        {"doc_id": "doc_17", "en": "Good morning"},
        {"en": "Good morning", "de": "Guten Morgen", "seg_id": "3"},
        {"en": "Good morning", "de": "Guten Morgen", "de_comet": "0.87"},
        {"en": "Good morning", "en_score": "0.87"},
        {"en": "Good morning", "de": "Guten Morgen", "qe": "0.87"},
        {"en": "Good morning", "de": "Guten Morgen", "dom": "news"},
        {"en": "Good morning", "de": "Guten Morgen", "cat": "news"},
        {"en": "Good morning", "de": "Guten Morgen", "min": "0.1"},
        {"en": "Good morning", "de": "Guten Morgen", "de_mt": "Guter Morgen"},
        {"en": "Good morning", "de": "Guten Morgen", "de_tok": "Guten Morgen ."},
        {"src_lang": "en", "tgt_lang": "de"},
        {"src_text": "Good morning", "tgt_text": "Guten Morgen"},
        {"en": "Good morning", "de": "Guten Morgen", "sn": "2"},
        {"en": "Good morning", "17": "x"},
        *(
            {"en": "Good morning", "de": "Guten Morgen", "fr": text}
            for text in ("0.87", "12", "1e-05", "doc_17", "a/b#3")
        ),
        *(
            {"translation": {"en": "Good morning", "de": "Guten Morgen", "fr": text}}
            for text in ("0.87", "12", "a/b#3")
        ),
        {"translation": {"en": "Good morning", "url": "http://a.b/c"}},
        {"translation": {"en": "Good morning", "de": "Guten Morgen", "doc_id": "a/b#3"}},
        {"translation": {"en": "Good morning", "de": "Guten Morgen", "de_mt": "Guter Morgen"}},
        {"translation": {"en": "Good morning", "de": "Guten Morgen", "de_google": "Guter Morgen"}},
        {"text": "Good morning", "lang": "src"},
        {"text": "http://a.b/c", "lang": "url"},
        {"translation": {"en": "Good morning", "de": "Guten Morgen", "url": "http://a.b/c"}},
        {"translation": {"en": "Good morning", "de": "Guten Morgen", "no": "4"}},
    ],
    ids=str,
)
def test_what_is_no_language_never_becomes_a_translation(record: dict) -> None:
    with pytest.raises(BrokenRow, match="allowed (is|are) .*(Drop|Rename|Put it outside|Correct the code)"):
        checked_texts(record)


@pytest.mark.parametrize(
    "record",
    [
        {"en": "Good morning", "no": "God morgen"},
        {"en": "house", "no": "hus"},
        {"en": "Good morning", "mt": "L-għodwa t-tajba"},
        {"en": "Good morning", "de": "Guten Morgen", "id": "Selamat pagi"},
        {"EN": "Good morning", "zh_CN": "早上好"},
        {"en": "1984", "de": "1984"},
        {"en": "Room 4", "de": "4"},
        {"translation": {"en": "2019", "no": "2019"}},
        {"lang": "key", "text": "a text in Kupia"},
        {"lang": "src-Latn", "text": "unu testu in sardu"},
        {"en": "Good morning", "de": "Guten Morgen", "nb_NO": "God morgen"},
        {"en": "2019", "de": "2019", "nb_NO": "2019"},
        {"en": "COVID-19", "de": "COVID-19", "zh_Hans": "2019冠状病毒病"},
        {"en": "The MP3 of 2019", "de": "Die MP3 von 2019", "zh": "2019年的MP3"},
        {"en": "Four", "de": "4", "fr": "4"},
        {"eng": "morning", "deu": "Morgen", "cat": "matí"},
        {"en": "Good morning", "cat": "Bon dia"},
        {"en": "Good morning", "de": "Guten Morgen", "sn": "Mangwanani"},
        {"en": "Good morning", "de": "Guten Morgen", "min_Latn": "Salamaik pagi"},
        {"translation": {"en": "Good morning", "ze_zh": "Good morning 早上好"}},
        {"translation": {"en": "Good morning", "de": "Guten Morgen", "mt": "L-għodwa t-tajba"}},
    ],
    ids=str,
)
def test_languages_whose_code_is_also_another_word_are_read(record: dict) -> None:
    texts, _ = checked_texts(record)
    assert len(texts) == (1 if "lang" in record else len(record.get("translation", record)))


@pytest.mark.parametrize("text", [None, 1, "a\0b", "\udc80"])
def test_what_is_no_text_is_broken(text: object) -> None:
    assert checked_text("en", "ä猫") == "ä猫"
    with pytest.raises(BrokenRow, match="in its en text|as its en text"):
        checked_text("en", text)


def test_readers_share_records_by_their_numbers() -> None:
    wanted = [[number for number in range(1, 8) if Cursor(part=part, parts=3).wants(number)] for part in range(3)]
    assert wanted == [[3, 6], [1, 4, 7], [2, 5]]


def test_true_and_false_among_texts_are_no_translation() -> None:
    for texts in ({"en": "a cat", "de": "eine Katze", "is": "true"}, {"en": "a cat", "fi": "False", "de": "Katze"}):
        for record in (texts, {"translation": texts}):
            with pytest.raises(BrokenRow, match=r"has '(true|False)' in its column '(is|fi)', where the others have"):
                checked_texts(record)
    for kept in ({"en": "true", "de": "wahr", "fr": "vrai"}, {"de": "True", "fr": "True", "is": "satt"}):
        assert checked_texts(kept) == (kept, 0)
