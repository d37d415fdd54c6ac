"""Words of Moses: by sacremoses, and by a perl script in the place of Moses' own."""

import shutil
from pathlib import Path

import pytest

from hictl_hf.errors import BadInput
from hictl_hf.translation.moses import SCRIPT, MosesTokenizer

needs_perl = pytest.mark.skipif(shutil.which("perl") is None, reason="perl is not installed")
# says how it was called, and parts full stops
SPEAKING = r"""
binmode(STDIN, ":utf8"); binmode(STDOUT, ":utf8"); my $flags = join("", @ARGV) =~ tr/-/+/r;
while (<STDIN>) { s/\./ ./g; print "$flags $_"; }
"""


def moses(folder: Path, script: str = SPEAKING) -> Path:
    (folder / SCRIPT).parent.mkdir(parents=True)
    (folder / SCRIPT).write_text(script, "utf-8")
    return folder


def test_words_are_parted_and_special_characters_escaped() -> None:
    lines = ['Er sagte: "Es ist nicht wert", 5,5 Mrd. €.', "A|B [c] <d> & e"]
    assert MosesTokenizer("de").tokenize(lines) == [
        "Er sagte : &quot; Es ist nicht wert &quot; , 5,5 Mrd. € .",
        "A &#124; B &#91; c &#93; &lt; d &gt; &amp; e",
    ]


@pytest.mark.parametrize(
    ("language", "words"), [("en", "it &apos;s"), ("fr", "it&apos; s"), ("de", "it &apos; s")], ids=["en", "fr", "de"]
)
def test_apostrophes_are_parted_as_the_language_does(language: str, words: str) -> None:
    assert MosesTokenizer(language).tokenize(["it's"]) == [words]
    region = MosesTokenizer(f"{language}-CA")
    assert region.tokenize(["it's"]) == [words] and region.signature == MosesTokenizer(language).signature


def test_hyphens_stay_unless_they_are_to_part_words() -> None:
    line = ["Das E-Mail-Programm, a-b-c - x"]
    assert MosesTokenizer("de").tokenize(line) == ["Das E-Mail-Programm , a-b-c - x"]
    aggressive = "Das E @-@ Mail @-@ Programm , a @-@ b @-@ c - x"
    assert MosesTokenizer("de", aggressive=True).tokenize(line) == [aggressive]
    # as of perl's s///g: the b of a-b has gone by when -c is looked at
    compounds = "Das E ##AT##-##AT## Mail ##AT##-##AT## Programm , a ##AT##-##AT## b-c - x"
    assert MosesTokenizer("de", split_compounds=True).tokenize(line) == [compounds]
    assert MosesTokenizer("de", aggressive=True, split_compounds=True).tokenize(line) != [aggressive]  # @-@ has one


def test_capitals_of_all_alphabets_are_lowered_on_demand() -> None:
    assert MosesTokenizer("de").tokenize(["ÄRZTE Und"]) == ["ÄRZTE Und"]
    assert MosesTokenizer("de", lowercase=True).tokenize(["ÄRZTE Und ΑΒ"]) == ["ärzte und αβ"]


@needs_perl
def test_the_script_is_called_with_language_and_flags(tmp_path: Path) -> None:
    folder = moses(tmp_path)
    assert MosesTokenizer("de", folder).tokenize(["Öl.", "", "b"]) == ["+q+lde Öl .", "+q+lde", "+q+lde b"]
    given = MosesTokenizer("fr", folder, aggressive=True, split_compounds=True, lowercase=True)
    assert given.tokenize(["Ä.x-y"]) == ["+q+lfr+a ä .x ##AT##-##AT## y"]
    assert MosesTokenizer("de", folder).tokenize([]) == []


@needs_perl
def test_line_ends_within_a_line_make_no_other_line(tmp_path: Path) -> None:
    lines = ["a\nb", "c\u2028d\u0085e", " \u00a0f\r"]
    assert MosesTokenizer("de", moses(tmp_path)).tokenize(lines) == ["+q+lde a b", "+q+lde c d e", "+q+lde f"]
    assert MosesTokenizer("de").tokenize(lines) == ["a b", "c d e", "f"]


def test_the_signature_says_which_program_it_was_and_its_flags(tmp_path: Path) -> None:
    assert MosesTokenizer("de", tmp_path, aggressive=True).signature == "tokenizer.perl -l de -a"
    name, version, *flags = MosesTokenizer("en", split_compounds=True, lowercase=True).signature.split()
    assert (name, flags) == ("sacremoses", ["-l", "en", "compounds", "lc"]) and version[0].isdecimal()


@needs_perl
@pytest.mark.parametrize(
    ("script", "found"),
    [
        ('while (<STDIN>) { print "$_\n"; }', "made 4 lines of 2; allowed is one of each"),
        ('print STDERR "first\n"; die "no prefixes";', "cannot be run .*no prefixes.*; allowed is a script that perl"),
    ],
    ids=["other lines", "dies"],
)
def test_a_script_that_fails_is_refused(script: str, found: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=found):
        MosesTokenizer("de", moses(tmp_path, script)).tokenize(["a", "b"])


def test_a_folder_without_the_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"has no {SCRIPT}; allowed is a copy of .* Correct --moses_dir"):
        MosesTokenizer("de", tmp_path).tokenize(["a"])


@pytest.mark.parametrize(
    ("code", "same"), [("deu", "de"), ("fra_Latn", "fr"), ("ita", "it"), ("lvs", "lv"), ("yue", "yue")]
)
def test_a_code_of_three_letters_has_the_rules_of_its_language(code: str, same: str) -> None:
    lines = ["L'homme d'à côté, z.B. Hr. Meier wohnt am 3. Mai in Nr. 5.", "C'est l'été qu'il préfère."]
    assert MosesTokenizer(code).tokenize(lines) == MosesTokenizer(same).tokenize(lines)
    assert MosesTokenizer(code).signature.endswith(f"-l {same}")
