"""gettext catalogues: which form of a plural is read, and what msgfmt takes and the parser does not."""

from pathlib import Path

import pytest
from toy_files import Skips, texts, write_lines

from hictl_hf.data.catalogues import form_for_one
from hictl_hf.data.sources import read_rows

HEADER = ('msgid ""', 'msgstr ""', '"Content-Type: text/plain; charset=UTF-8\\n"')
ARABIC = "nplurals=6; plural=n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5;"
SLOVENIAN = "nplurals=4; plural=(n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0);"


def catalogue(path: Path, language: str, *lines: str, **header: str) -> Path:
    fields = {"Language": language, **{name.replace("_", "-"): value for name, value in header.items()}}
    return write_lines(path, [*HEADER, *(f'"{name}: {value}\\n"' for name, value in fields.items()), "", *lines])


@pytest.mark.parametrize(
    ("header", "form"),
    [
        (ARABIC, 1), (SLOVENIAN, 1), ("nplurals=2; plural=(n != 1);", 0), ("nplurals=1; plural=0;", 0), ("", 0),
        ("nplurals=2; plural=n ? 1 : 0", 1), ("nplurals=INTEGER; plural=EXPRESSION;", 0), ("plural=n%0;", 0),
    ],
)  # fmt: skip
def test_the_form_for_one_is_that_of_the_header(header: str, form: int) -> None:
    assert form_for_one(header) == form


def test_of_a_plural_the_singular_has_the_form_for_one(tmp_path: Path) -> None:
    forms = [f'msgstr[{number}] "{text}"' for number, text in enumerate(("none", "one", "two", "few", "many", "other"))]
    entry = ('msgid "%d result"', 'msgid_plural "%d results"', *forms)
    assert texts(catalogue(tmp_path / "ar.po", "ar", *entry, Plural_Forms=ARABIC)) == [{"en": "%d result", "ar": "one"}]
    assert texts(catalogue(tmp_path / "de.po", "de", *entry)) == [{"en": "%d result", "de": "none"}]


def test_spaces_that_msgfmt_does_not_need_may_be_left_out(tmp_path: Path) -> None:
    path = catalogue(
        tmp_path / "a.po", "de", 'msgid"the cat\u2028sees"', 'msgstr"die #,Katze"', "", "#,fuzzy", 'msgid "a"',
        'msgstr "x"', "", '#~msgid "b"', '#~msgstr "y"', "", '#~| msgid "c"', 'msgid "d"', 'msgstr "z"',
    )  # fmt: skip
    skips = Skips()
    rows = [row.texts for row in read_rows(str(path), skips)]
    assert rows == [{"en": "the cat\u2028sees", "de": "die #,Katze"}, {"en": "d", "de": "z"}]
    assert skips.counts == {"untranslated": 2}


def test_varieties_of_a_language_are_a_pair_but_for_english(tmp_path: Path) -> None:
    entry = ('msgid "ficheiro"', 'msgstr "arquivo"')
    path = catalogue(tmp_path / "a.po", "pt_BR", *entry, X_Source_Language="pt_PT")
    assert texts(path) == [{"pt-PT": "ficheiro", "pt-BR": "arquivo"}]
    for language, source in (("pt_PT", "pt_PT"), ("en_GB", "en_US")):
        skips = Skips()
        path = catalogue(tmp_path / "b.po", language, *entry, X_Source_Language=source)
        assert not list(read_rows(str(path), skips)) and skips.counts == {"untranslated": 1}
