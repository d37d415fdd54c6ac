"""TMX and XLIFF give the pairs that the tools wrote, as text; what is no pair is counted, another file refused."""

import logging
import tracemalloc
from pathlib import Path

import pytest
from toy_files import PAIRS, Skips, texts, write_lines

from hictl_hf.data.records import Cursor
from hictl_hf.data.sources import list_shards, read_rows, read_shard
from hictl_hf.errors import BadInput

TMX = '<tmx version="1.4"><header srclang="en"/><body>{}</body></tmx>'
XLIFF = (
    '<xliff xmlns="urn:oasis:names:tc:xliff:document:1.2" version="1.2">'
    '<file source-language="en" target-language="de"><body>{}</body></file></xliff>'
)
XLIFF_2 = (
    '<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" trgLang="zh-hans"><file id="f">'
    "{}</file></xliff>"
)


def tu(**variants: str) -> str:
    written = (f'<tuv xml:lang="{language}"><seg>{text}</seg></tuv>' for language, text in variants.items())
    return f"<tu>{''.join(written)}</tu>"


def unit(source: str, target: str, state: str = "", translate: str = "yes") -> str:
    state = f' state="{state}"' if state else ""
    texts = f"<source>{source}</source><target{state}>{target}</target>"
    return f'<trans-unit id="1" translate="{translate}">{texts}</trans-unit>'


# --- files of the tools -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("module", "name", "ending"), [("tmx", "tmxfile", "tmx"), ("xliff", "xlifffile", "xlf")])
def test_files_of_translate_toolkit_hold_its_pairs(module: str, name: str, ending: str, tmp_path: Path) -> None:
    storage = pytest.importorskip(f"translate.storage.{module}")
    store = getattr(storage, name)(sourcelanguage="en", targetlanguage="de")
    for source, target in [*PAIRS, ("<s> & </s>", "&lt;s&gt; {0}")]:
        added = store.addsourceunit(source) if ending == "xlf" else store.UnitClass(source)
        if ending == "tmx":
            store.addunit(added)
            added.settarget(target, "de")
        else:
            added.target = target
    store.savefile(str(tmp_path / f"a.{ending}"))
    assert texts(tmp_path / f"a.{ending}") == [
        {"en": source, "de": target} for source, target in [*PAIRS, ("<s> & </s>", "&lt;s&gt; {0}")]
    ]


# --- TMX --------------------------------------------------------------------------------------------------------------


def test_the_source_language_is_first_and_tags_have_the_usual_case(tmp_path: Path) -> None:
    three = '<tuv xml:lang="PT-BR"><seg>Oi</seg></tuv><tuv xml:lang="EN"><seg>Hi</seg></tuv>'
    three += '<tuv lang="zh-hant-tw"><seg>嗨</seg></tuv>'
    path = write_lines(tmp_path / "a.tmx.gz", [TMX.format(f"<tu>{three}</tu>")])
    assert texts(path) == [{"en": "Hi", "pt-BR": "Oi"}, {"en": "Hi", "zh-Hant-TW": "嗨"}]


@pytest.mark.parametrize(
    ("source", "codes", "wanted"),
    [
        ("en", ("de-DE", "en-US"), ["en-US", "de-DE"]),
        ("en-US", ("de", "en"), ["en", "de"]),
        ("EN-us", ("fr", "en-GB", "en-US"), ["en-US", "fr", "en-US", "en-GB"]),
        ("deu", ("en", "de"), ["de", "en"]),
        ("*all*", ("de", "en"), ["de", "en"]),
    ],
)
def test_the_source_language_may_be_written_with_or_without_its_region(
    source: str, codes: tuple[str, ...], wanted: list[str], tmp_path: Path
) -> None:
    units = TMX.replace('"en"', f'"{source}"').format(tu(**{code: f"in {code}" for code in codes}))
    path = write_lines(tmp_path / "a.tmx", [units])
    assert [language for pair in texts(path) for language in pair] == wanted


def test_utf_16_is_read_as_xml_says_it(tmp_path: Path) -> None:
    declared = '<?xml version="1.0" encoding="UTF-16"?>' + TMX.format(tu(en="the cat", de="die Kätze"))
    (tmp_path / "a.tmx").write_bytes(declared.encode("utf-16"))
    assert texts(tmp_path / "a.tmx") == [{"en": "the cat", "de": "die Kätze"}]


def test_native_code_is_left_out_marked_text_is_not_and_both_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inline = (
        'Press <bpt i="1">&lt;b&gt;</bpt><hi>OK</hi><ept i="1">&lt;/b&gt;</ept><!-- x --> or <ph>{0}<sub>y</sub></ph>.'
    )
    path = write_lines(tmp_path / "a.tmx", [TMX.format(tu(en=inline, de="OK, &lt;b&gt;!"))])
    caplog.set_level(logging.INFO, "hictl_hf")
    assert texts(path) == [{"en": "Press OK or .", "de": "OK, <b>!"}]
    assert f"{path}: left out the inline codes of 1 of 2 texts" in caplog.text


@pytest.mark.parametrize(
    "code",
    [
        '<ph x="1">&lt;br/&gt;</ph>', '<ph type="lb"/>', '<it pos="begin">&lt;/p&gt;</it>', "<ph>\\tab </ph>",
        '<x id="LINE_BREAK" ctype="lb" equiv-text="&lt;br/&gt;"/>', '<ph id="1" subType="xlf:lb"/>', '<cp hex="0009"/>',
    ],
)  # fmt: skip
def test_a_line_break_is_a_space(code: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.tmx", [TMX.format(tu(en=f"first line{code}second", de="erste"))])
    assert texts(path) == [{"en": "first line second", "de": "erste"}]


@pytest.mark.parametrize(
    "code",
    [
        '<ph id="9">{0}</ph>',
        '<bpt i="1">&lt;p&gt;</bpt>',
        '<x id="tabs" ctype="x-b"/>',
        "<ph>&lt;b&gt;</ph>",
        '<cp hex="1F"/>',
    ],
)
def test_other_code_is_nothing(code: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.tmx", [TMX.format(tu(en=f"foot{code}ball", de="Ball"))])
    assert texts(path) == [{"en": "football", "de": "Ball"}]


def test_what_tracked_changes_deleted_is_not_read(tmp_path: Path) -> None:
    changed = '<mrk mtype="x-sdl-deleted">alte</mrk><mrk mtype="x-sdl-added">neue</mrk>'
    target = f'<mrk mtype="seg" mid="1">Das {changed} Haus.</mrk>'
    path = write_lines(tmp_path / "a.sdlxliff", [XLIFF.format(unit("The new house.", target))])
    assert texts(path) == [{"en": "The new house.", "de": "Das neue Haus."}]


def test_elements_may_be_nested_to_any_depth(tmp_path: Path) -> None:
    nested = "<hi>the " * 5000 + "cat" + "</hi>." * 5000
    path = write_lines(tmp_path / "a.tmx", [TMX.format(tu(en=nested, de="die Katze"))])
    assert texts(path) == [{"en": "the " * 5000 + "cat" + "." * 5000, "de": "die Katze"}]


def test_a_unit_in_one_language_is_untranslated_and_one_with_a_language_twice_broken(tmp_path: Path) -> None:
    twice = "<tu>" + '<tuv xml:lang="de"><seg>x</seg></tuv>' * 2 + "</tu>"
    no_code = tu(en="x").replace("<tu>", '<tu><tuv xml:lang="Klingon"><seg>y</seg></tuv>')
    path, skips = (
        write_lines(tmp_path / "a.tmx", [TMX.format(tu(en="x") + twice + no_code + tu(en="a", de="b"))]),
        Skips(),
    )
    assert [row.texts for row in read_rows(str(path), skips)] == [{"en": "a", "de": "b"}]
    assert skips.counts == {"untranslated": 1, "broken": 2}
    assert (
        skips.messages[1].startswith(f"{path}:2: has two texts in de; allowed is one")
        and "Klingon" in skips.messages[2]
    )


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for units in (300, 2_400):
        path = write_lines(tmp_path / f"{units}.tmx", [TMX.format(tu(en="the cat " * 9, de="die Katze") * units)])
        tracemalloc.start()
        assert sum(1 for _ in read_rows(str(path), Skips())) == units
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


# --- XLIFF ------------------------------------------------------------------------------------------------------------


def test_only_finished_translations_of_xliff_are_pairs(tmp_path: Path) -> None:
    other = "<alt-trans><source>old</source><target>alt</target></alt-trans>"
    units = unit("a", "x").replace("</trans-unit>", f"{other}</trans-unit>") + unit(
        "b", "y", "needs-review-translation"
    )
    units += (
        unit("c", "z", "new")
        + unit("d", " ")
        + unit("e", "e", translate="no")
        + unit("f <g><mrk>g</mrk></g><x/>", "ü", "final")
    )
    units += "<trans-unit><source>h</source></trans-unit>"
    path, skips = write_lines(tmp_path / "a.xliff", [XLIFF.format(units)]), Skips()
    assert [row.texts for row in read_rows(str(path), skips)] == [{"en": "a", "de": "x"}, {"en": "f g", "de": "ü"}]
    assert skips.counts == {"untranslated": 5}


def test_what_a_group_or_file_says_of_translating_holds_for_the_units_in_it(tmp_path: Path) -> None:
    plain = unit("a", "x").replace(' translate="yes"', "")
    units = f'<group translate="no"><group>{plain}</group>{unit("b", "y")}</group>{plain.replace("a<", "c<")}'
    path, skips = write_lines(tmp_path / "a.xlf", [XLIFF.format(units)]), Skips()
    assert [row.texts for row in read_rows(str(path), skips)] == [{"en": "b", "de": "y"}, {"en": "c", "de": "x"}]
    assert skips.counts == {"untranslated": 1}
    segment = '<unit id="1"><segment><source>a</source><target>甲</target></segment></unit>'
    written = XLIFF_2.format(segment).replace('id="f"', 'id="f" translate="no"')
    assert list(read_rows(str(write_lines(tmp_path / "b.xlf", [written])), skips)) == []
    assert skips.counts == {"untranslated": 2}


def test_files_of_trados_are_xliff(tmp_path: Path) -> None:
    marked = '<seg-source><mrk mtype="seg" mid="1">Hi.</mrk></seg-source>'
    translated = unit("Hi.", '<mrk mtype="seg" mid="1">Hallo.</mrk>').replace("<target>", f"{marked}<target>")
    path = write_lines(tmp_path / "a.sdlxliff", [XLIFF.format(f"<group>{translated}</group>")], start=b"\xef\xbb\xbf")
    assert texts(path) == [{"en": "Hi.", "de": "Hallo."}]


def test_of_a_unit_in_marked_segments_each_is_a_pair_of_which_some_may_be_untranslated(tmp_path: Path) -> None:
    """As Trados and other tools write a paragraph; each definition has the state of a segment."""

    def mark(*texts: str) -> str:
        return " ".join(f'<mrk mtype="seg" mid="{at}">{text}</mrk>' for at, text in enumerate(texts, 1))

    defined = "".join(f'<sdl:seg id="{at}" conf="{state}"/>' for at, state in enumerate(("Translated", "Draft"), 2))
    defined = f'<sdl:seg-defs xmlns:sdl="http://sdl.com/FileTypes/SdlXliff/1.0">{defined}</sdl:seg-defs>'
    written = unit("One. Two. Three. Four.", f"<g>{mark('Eins.', 'Zwei.', 'Drei.', '')}</g>")
    marked = f"<seg-source>{mark('One.', 'Two.', 'Three.', 'Four.')}</seg-source><target>"
    units = written.replace("<target>", marked).replace("</trans-unit>", f"{defined}</trans-unit>")
    units += unit(mark("Five.", "Six."), mark("Fünf."))
    units += unit("Seven. <mrk mtype='x'>Eight.</mrk>", "Sieben. Acht.") + unit(mark("Nine.", "Ten."), "Neun. Zehn.")
    path, skips = write_lines(tmp_path / "a.sdlxliff", [XLIFF.format(units)]), Skips()
    assert [tuple(row.texts.values()) for row in read_rows(str(path), skips)] == [
        ("One.", "Eins."), ("Two.", "Zwei."), ("Five.", "Fünf."), ("Seven. Eight.", "Sieben. Acht."),
        ("Nine. Ten.", "Neun. Zehn."),
    ]  # fmt: skip
    assert skips.counts == {"untranslated": 3}


def test_segments_of_xliff_2_are_pairs(tmp_path: Path) -> None:
    segments = '<segment><source>a<pc id="1">b</pc><ph id="2"/></source><target>甲</target></segment>'
    segments += '<segment state="initial"><source>c</source><target>乙</target></segment>'
    path, skips = write_lines(tmp_path / "a.xlf", [XLIFF_2.format(f'<unit id="1">{segments}</unit>')]), Skips()
    assert [row.texts for row in read_rows(str(path), skips)] == [{"en": "ab", "zh-Hans": "甲"}]
    assert skips.counts == {"untranslated": 1}
    assert texts(write_lines(tmp_path / "none.xlf", [XLIFF_2.format("")])) == []  # a file may have nothing to translate


def test_a_file_without_target_language_is_broken(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.xlf", [XLIFF.format(unit("a", "x")).replace(' target-language="de"', "")])
    skips = Skips()
    assert [*read_rows(str(path), skips)] == [] and "from en to no language; allowed is" in skips.messages[0]


# --- both -------------------------------------------------------------------------------------------------------------

BOMB = '<!DOCTYPE tmx [<!ENTITY a "aaaaaaaaaa">{}]>'.format(
    "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefghi", "bcdefghij"))
)


@pytest.mark.parametrize(
    ("name", "written", "found"),
    [
        ("a.tmx", TMX.format(tu(en="x"))[:-9], "ParseError: "),
        ("a.tmx", TMX.format("<tu>&nbsp;</tu>"), "undefined entity"),
        ("a.tmx", "<html></html>", "the root is <html>"),
        ("a.xlf", TMX.format(""), "the root is <tmx>"),
        ("a.tmx", BOMB + TMX.format(tu(en="&j;", de="x")), "ParseError"),
    ],
    ids=["truncated", "entity", "html", "another format", "entities of entities"],
)
def test_what_is_no_such_file_is_one_line(name: str, written: str, found: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / name, [written])
    with pytest.raises(BadInput, match=found) as raised:
        texts(path)
    assert str(raised.value).startswith(f"{path}: cannot be read") and "xmllint" in str(raised.value)


def test_reading_resumes_and_is_shared_between_readers(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.tmx", [TMX.format("".join(tu(en=str(n), de="x") for n in range(7)))])
    (shard,) = list_shards(str(path))
    both = [
        [row.texts["en"] for rows in read_shard(shard, Cursor(3, part=part, parts=2), Skips()) for row in rows]
        for part in (0, 1)
    ]
    assert both == [["3", "5"], ["4", "6"]]
