"""The text of catalogues is what their users see; what is no mnemonic stays."""

import random
from pathlib import Path

import polib
import pytest

from hictl_hf.data import Cleaning, load_corpus
from hictl_hf.data.catalogue_text import MARKS, clean_entry, has_words, without_layout

# English, translation, and what is left of both.
MNEMONICS = [
    # in front of a word
    ("_File", "_Datei", "File", "Datei"),
    ("~Close & Return to ", "~Serriñ & distreiñ da ", "Close & Return to", "Serriñ & distreiñ da"),
    ("Save &as…", "&Speichern unter…", "Save as…", "Speichern unter…"),
    ("Show changes in _spreadsheet:", "Ajusta a l'_alçada:", "Show changes in spreadsheet:", "Ajusta a l'alçada:"),
    ("Re-_center", "_Centrér igen", "Re-center", "Centrér igen"),
    ("Low (_640 × 480)", "Isel (_640 × 480)", "Low (640 × 480)", "Isel (640 × 480)"),
    ("<b>_Encodings</b>", "<b>_Codages</b>", "<b>Encodings</b>", "<b>Codages</b>"),
    ("Date &amp; _Time", "Data i _czas", "Date &amp; Time", "Data i czas"),
    ("Zip/_Postal code", "Zip/_Postleittaal", "Zip/Postal code", "Zip/Postleittaal"),
    ("_Copy %(file_name)s to ~/.config", "%(file_name)s na ~/.config _kopieren",
     "Copy %(file_name)s to ~/.config", "%(file_name)s na ~/.config kopieren"),
    # within a word
    ("Den_ominator places", "Nen_ner", "Denominator places", "Nenner"),
    ("E_xit", "Beend&en", "Exit", "Beenden"),
    ("H_TTPS Proxy", "Proxy H_TTPS", "HTTPS Proxy", "Proxy HTTPS"),
    ("Colo_r:", "Colo_r :", "Color:", "Color :"),
    ("Auto_Width", "_AwtoLled", "AutoWidth", "AwtoLled"),
    ("Copy U&RL", "&URL kopieren", "Copy URL", "URL kopieren"),
    ("For_mat", "S_teuñv", "Format", "Steuñv"),
    ("Form control~s", "Rialtái~n fhoirme", "Form controls", "Rialtáin fhoirme"),
    ("Always R_eplace", "I g_Cónaí", "Always Replace", "I gCónaí"),
    # in brackets, where the script has no letter to press
    ("_Open…", "打开(_O)…", "Open…", "打开…"),
    ("&Find:", "検索 (&F):", "Find:", "検索:"),
    ("~Edit", "편집（~E）", "Edit", "편집"),
    ("_Undo History", "(_H) மீள்செய் வரலாறு", "Undo History", "மீள்செய் வரலாறு"),
    ("IPv_4", "IPv4 (_4)", "IPv4", "IPv4"),
    ("(s&emitones) [-12]", "(半音 [&E]) [-12]", "(semitones) [-12]", "(半音) [-12]"),
    # of another kind, or misplaced, or on one side only
    ("_Adjacent Cells:", "Kelligoù &kefin:", "Adjacent Cells:", "Kelligoù kefin:"),
    ("_Edit", "سمون_", "Edit", "سمون"),
    ("&Open...", "& كۆپ", "Open...", "كۆپ"),
    ("Use &dotfiles", "&'дотфилес'", "Use dotfiles", "'дотфилес'"),
    ("&New Window", "&新建窗口", "New Window", "新建窗口"),
    ("Crea_te field", "Krouiñ ur vaezienn", "Create field", "Krouiñ ur vaezienn"),
    ("Select...", "_Dewis...", "Select...", "Dewis..."),
    ("Replace", "置換(_R)", "Replace", "置換"),
    # two: the one with the stronger evidence, then the other one
    ("Select _All", "_ሁሉንም ምረጡ (_A)", "Select All", "ሁሉንም ምረጡ"),
    ("_Set snake_case_name", "snake_case_name se_tzen", "Set snake_case_name", "snake_case_name setzen"),
    # doubled
    ("Drag && drop files", "Dra && släpp filer", "Drag & drop files", "Dra & släpp filer"),
    ("Ig_nore ~~ at the end", "Déan _neamhshuim ar ~~ ag deireadh",
     "Ignore ~ at the end", "Déan neamhshuim ar ~ ag deireadh"),
]  # fmt: skip
UNCHANGED = [
    ("R&D and Q&A", "F&E und Q&A"),
    ("AT&T", "AT&T (Téléphone)"),
    ("Date&Time", "Data e ora"),
    ("Drag&Drop disabled", "Vedä&Pudota ei käytössä"),
    ("Black & white", "Du & gwenn"),
    ("[in&out]", "[imewnacallan]"),
    ("grid major/major&minor/off", "mór-ais ⁊ mion-ais / as"),
    ("Topics &amp; how-to's, &#1234; &nbsp;x", "Tema &amp; si-të, &#1234; &nbsp;x"),
    ("the snake_case option", "die Option snake_case"),
    ("can_view", "kann_ansehen"),
    ("set tree_view or time_t", "tree_view oder time_t setzen"),
    ("mime_type is needed", "mime_type est requis"),
    ("node_modules", "node_модули"),
    ("America/Puerto_Rico", "Amerika/Porto_Riko"),
    ("KP_Left", "KP_Links"),
    ("a VIDEO_TS folder", "un dossier VIDEO_TS"),
    ("Luma_y470", "Luma_y470f"),
    ("__init__ and _emphasis_", "__init__ und _Betonung_"),
    ("~/.config", "Ordner ~/.config"),
    ("~50 items, 1~5", "~50 Dinge, 1~5"),
    ("Copy from", "~에서 복사"),
    ("Monday to Friday", "월~금"),
    ("Building '~a' report.~%", "Bygger rapport »~a«.~%"),
    ("The option is ~a.", "オプションは~aまで"),
    ("Mail some_one@example.org", "some_one@example.org schreiben"),
    ("Open my_file.txt, see os.path_sep", "my_file.txt öffnen, siehe os.path_sep"),
    ("See https://example.org/a_b?c&d=1", "Siehe https://example.org/a_b?c&d=1"),
    ("Look in /usr/lib/_private", "In /usr/lib/_private"),
    ("Value of get_length()", "get_length() Wert"),
    ("%(model_name)s – {max_length}", "%(model_name)s: {max_length}"),
    ("%EXTENSION_NAME, ${file_name}, $file_name, $(FILE_A)", "%EXTENSION_NAME; ${file_name}; $file_name; $(FILE_A)"),
    ('<a href="x_y" target="_blank">Help</a>', '<a href="x_y" target="_blank">Hilfe</a>'),
    ("Number", "Numèro_seria"),
    ("letters, digits and @/./+/-/_ only", "문자나 @/./+/-/_기호만"),
    ("_Two _marks", "Deux marques"),
    ("Save… to:", "Speichern… nach:"),
]  # fmt: skip
LAYOUT = [
    ("Mynd i'r ad\u00adran", "Mynd i'r adran", ["soft hyphens"]),
    ("\u00ad_Dewislen", "_Dewislen", ["soft hyphens"]),
    ("\u200e%H:%M\u200f \u202aabc\u202c \u2066d\u2069\ufeff", "%H:%M abc d", ["layout characters"]),
    ("a\u200bb\u2060c\u00ad", "abc", ["soft hyphens", "layout characters"]),
    ("می\u200cخواهم", "می\u200cخواهم", []),  # Persian: "I want" has a non-joiner
    ("र\u200dक", "र\u200dक", []),
    ("ជា\u200bកន្លឹះ", "ជា\u200bកន្លឹះ", []),  # Khmer separates words so
    ("\u200eថេប\u200bថេប", "ថេប\u200bថេប", ["layout characters"]),
]
WORDLESS = [
    "",
    "%s",
    "%d %%",
    "12,5 – 13",
    "%1$s: {0}",
    "{name} (%(count)d)",
    "<b>%s</b>",
    "$(ARG1)…",
    "&nbsp;",
    "१, २",
]
WORDLESS += [
    "%PRODUCTNAME %PRODUCTVERSION",
    "%A, %B %e, %Y",
    "~a: ~s",
    "${x} × ${y}",
    "#PAGENUMBER#",
    "→",
    "<>",
    "<br/>",
]
WITH_WORDS = [
    "%d cm",
    "<none>",
    "<All Files>",
    "%s files",
    "<b>Bold</b> {0}",
    "猫 %d",
    "Ω",
    "{0}th",
    "$(ARG1) kB",
    "N/A",
]


@pytest.mark.parametrize(("english", "translation", "x", "y"), MNEMONICS)
def test_mnemonics_are_removed(english: str, translation: str, x: str, y: str) -> None:
    texts, changes = clean_entry(english, translation)
    assert texts == [x, y]
    changed = [before.strip() != after for before, after in zip((english, translation), texts, strict=True)]
    assert changes == ["mnemonics"] * sum(changed)


@pytest.mark.parametrize(("english", "translation"), UNCHANGED)
def test_what_is_no_mnemonic_stays(english: str, translation: str) -> None:
    assert any(mark in english + translation for mark in MARKS) or "…" in english
    assert clean_entry(english, translation) == ([english, translation], [])


@pytest.mark.parametrize(("text", "cleaned", "changes"), LAYOUT)
def test_invisible_characters_of_layout_are_removed(text: str, cleaned: str, changes: list[str]) -> None:
    assert without_layout(text) == (cleaned, changes)


def test_each_changed_text_and_kind_is_counted() -> None:
    assert clean_entry("_Men\u00adu", "\u00ad_Dewis\u200elen") == (
        ["Menu", "Dewislen"],
        ["soft hyphens", "soft hyphens", "layout characters", "mnemonics", "mnemonics"],
    )


@pytest.mark.parametrize("text", WORDLESS)
def test_placeholders_digits_and_punctuation_are_no_words(text: str) -> None:
    assert not has_words(text)


@pytest.mark.parametrize("text", WITH_WORDS)
def test_letters_outside_of_placeholders_are_words(text: str) -> None:
    assert has_words(text)


def test_cleaning_twice_changes_nothing_more() -> None:
    entries = [(x, y) for x, y, *_ in [*MNEMONICS, *UNCHANGED]] + [(text, text) for text, *_ in LAYOUT]
    draw = random.Random(0)
    pieces = [
        *MARKS,
        *"aeBX1 %./();",
        "&&",
        "__",
        "(_F)",
        "word",
        "Wort",
        "猫",
        "ا",
        "\u00ad",
        "\u200b",
        "ជា",
        "%s",
        "<b>",
    ]
    entries += [["".join(draw.choices(pieces, k=draw.randrange(12))) for _ in range(2)] for _ in range(5_000)]
    changed = 0
    for english, translation in entries:
        texts, changes = clean_entry(english, translation)
        assert clean_entry(*texts) == (texts, [])
        changed += len(changes)
    assert changed > 2_000  # otherwise this would prove nothing


# --- from a file to the counts ----------------------------------------------------------------------------------------

ENTRIES = [
    ("_File", "_Datei"),
    ("Exit", "Be\u00adenden"),
    ("%d %%", "%d %%"),
    ("<b>%s</b>", "(<b>%s</b>)"),
    ("&Help", "&Hilfe"),
    ("Help", "Hilfe"),
    ("_OK", "OK"),
    ("_Untranslated", ""),
]
KEPT = [("Exit", "Beenden"), ("File", "Datei"), ("Help", "Hilfe")]
SKIPPED = {"no words": 2, "duplicate": 1, "equal sides": 1}


def catalogue(folder: Path, ending: str) -> str:
    file = polib.POFile()
    file.metadata = {"Content-Type": "text/plain; charset=UTF-8", "Language": "de"}
    for number, (english, german) in enumerate(ENTRIES):
        file.append(polib.POEntry(msgid=english, msgstr=german, msgctxt=f"dialog{number}"))
    path = folder / "de" / "LC_MESSAGES" / f"app{ending}"
    path.parent.mkdir(parents=True)
    file.save_as_mofile(str(path)) if ending == ".mo" else file.save(str(path))
    return str(path)


@pytest.mark.parametrize("ending", [".mo", ".po"])
def test_a_catalogue_is_cleaned_and_counted(ending: str, tmp_path: Path) -> None:
    corpus, report = load_corpus([catalogue(tmp_path, ending)], cache_dir=tmp_path)
    assert sorted(zip(corpus["x"], corpus["y"])) == KEPT
    assert report.kept == {"en-de": 3} and report.changed == {"mnemonics": 4, "soft hyphens": 1}
    untranslated = report.skipped.pop("untranslated", 0)  # compiled catalogues leave these entries out
    assert untranslated == (ending == ".po") and report.skipped == SKIPPED


def test_the_text_of_other_formats_and_of_a_switched_off_cleaning_is_kept(tmp_path: Path) -> None:
    corpus, report = load_corpus(
        [catalogue(tmp_path, ".po")], Cleaning(drop_equal_sides=False, catalogue_text=False), cache_dir=tmp_path
    )
    assert list(zip(corpus["x"], corpus["y"])) == [pair for pair in ENTRIES if all(pair)]
    assert not report.changed and report.skipped == {"untranslated": 1}
    (tmp_path / "a.tsv").write_text("en\tde\n_File\t_Datei\n%s\t%s.\n", encoding="utf-8")
    corpus, report = load_corpus([str(tmp_path / "a.tsv")], cache_dir=tmp_path)
    assert corpus["x"][:] == ["_File", "%s"] and not report.changed and not report.skipped
