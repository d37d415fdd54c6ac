"""The paper's translation corpora: each row from raw files as they are published, counted, refused or overridden."""

import gzip
import hashlib
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from parsers import parse_translation_arguments

from hictl_hf.cli.prepare_translation import main
from hictl_hf.errors import BadInput
from hictl_hf.translation.paper_corpora import CORPORA, PaperCorpus
from hictl_hf.translation.prepare import TOLERANCE, clean, deviations, preparation_signature, prepare
from hictl_hf.translation.report import PAPER

RECIPES = Path(__file__).parents[2] / "recipes" / "translation"
RAW_LINES = 50
ROMANIAN = "Ţară şi ţară, Însă când"


def sentence(language: str, number: int) -> str:
    return f"{'Însă' if language == 'ro' else 'The'} cat’s {number} {language} sees."


def content(name: str, language: str, other: str) -> str:
    """What is in a raw file of this name: 50 sentences, of talks with a title and a description, and tags."""
    lines = [sentence(language, number) for number in range(RAW_LINES)]
    if name.endswith((".xml", ".sgm")):
        segments = "\n".join(f'<seg id="{number}"> {line} </seg>' for number, line in enumerate(lines, start=1))
        return f'<?xml version="1.0"?>\n<mteval><doc docid="1">\n<title>x</title>\n{segments}\n</doc></mteval>\n'
    if name.startswith("train.tags."):
        talk = f"<url>x</url>\n<keywords>a</keywords>\n<talkid>1</talkid>\n<title>Title {language}</title>\n"
        return f"{talk}<description>Description {language}</description>\n" + "\n".join(lines) + "\n"
    if name.endswith((".tsv", ".txt")):
        columns = re.findall(r"\b([a-z]{2})-([a-z]{2})\b", name)[0]
        return (
            "\n".join("\t".join(sentence(column, number) for column in columns) for number in range(RAW_LINES)) + "\n"
        )
    return "\n".join(lines) + "\n"


def write_raw(folder: Path, corpus: PaperCorpus) -> None:
    """All raw files of a row, each in a folder of its own, every other one packed."""
    sets = [(corpus.pair, patterns) for patterns in (corpus.train, corpus.validation, corpus.test) if patterns != 23]
    sets += [((language, corpus.target), patterns) for language, patterns in corpus.more_tests.items()]
    for (source, target), patterns in sets:
        assert not isinstance(patterns, int)
        for number, pattern in enumerate(patterns):
            for language, other, role in ((source, target, "src"), (target, source, "ref")):
                name = pattern.format(language=language, other=other, role=role).replace("*", "7")
                inner = "/".join(["dev_test"] * ("dev_test" in name) + [name.removeprefix("dev_test/")])
                path = folder / f"archive {language}-{number}" / inner if "{language}" in pattern else folder / inner
                path.parent.mkdir(parents=True, exist_ok=True)
                text = content(path.name, language, other).encode()
                packed = number % 2 == 1
                path.with_name(path.name + ".gz" * packed).write_bytes(gzip.compress(text) if packed else text)


def read(path: Path) -> list[str]:
    return path.read_text("utf-8").removesuffix("\n").split("\n")


def small(name: str, **changes: Any) -> PaperCorpus:
    """The row, with numbers that a small folder can have."""
    return replace(CORPORA[name], exact_lines={}, rounded_train=RAW_LINES, **changes)


# --- each row -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CORPORA)
def test_each_row_is_made_from_raw_files_and_refused_without_an_override(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, raw, output = CORPORA[name], tmp_path / "raw", tmp_path / "data" / name
    write_raw(raw, corpus)
    command = [str(RECIPES / f"{name}.json"), str(raw), str(output)]
    with pytest.raises(
        BadInput, match=rf"is not the data of {name}: .*train has \d+ lines where .* --allow_other_counts"
    ):
        main(command)
    assert not output.exists() and list(output.parent.iterdir()) == []

    record = main([*command, "--allow_other_counts"])
    talks = 2 * any("tags" in pattern for pattern in corpus.train)
    kept = len(corpus.train) * RAW_LINES + talks
    every = corpus.validation if isinstance(corpus.validation, int) else 0
    validation = kept // every if every else len(corpus.validation) * RAW_LINES  # type: ignore[arg-type]
    expected = {"train": kept - (validation if every else 0), "validation": validation}
    expected["test"] = len(corpus.test) * RAW_LINES
    expected |= {f"test-{language}": RAW_LINES for language in corpus.more_tests}
    assert record["lines"] == expected and record == json.loads((output / "preparation.json").read_text("utf-8"))
    for split, number in expected.items():
        source = split.removeprefix("test-") if "-" in split else corpus.source
        sides = [read(output / f"{split}.{language}") for language in (source, corpus.target)]
        assert [len(side) for side in sides] == [number, number]
        for language, side in zip((source, corpus.target), sides):  # sides are aligned, and each in its language
            numbers = [int(line.split()[2]) for line in side if " sees." in line]
            assert len(numbers) > 1 and all(f" {language} " in line for line in side if " sees." in line)
            assert numbers == [int(line.split()[2]) for line in sides[0] if " sees." in line]
    assert len(record["sha256"]) == 2 * len(expected)
    apostrophe = "'" if corpus.straight_apostrophes else "’"
    assert all(f"cat{apostrophe}s" in line for line in read(output / f"test.{corpus.target}"))
    assert all("cat’s" in line for line in read(output / f"train.{corpus.target}")[2:])
    printed = capsys.readouterr().out
    assert f"train         {expected['train']:>12,}" in printed and "not the paper's: train has" in printed

    pair = f"{corpus.source},{corpus.target}"
    signature = preparation_signature(f"{output}/test.{{{pair}}}")
    assert signature["override"] == "; ".join(record["other_counts"]) and f"train has {expected['train']}" in str(
        signature
    )
    assert signature["data"].startswith(f"{name} test ")
    with pytest.raises(BadInput, match="exists already; allowed is a new folder"):
        main([*command, "--allow_other_counts"])


@pytest.mark.parametrize("name", CORPORA)
def test_a_row_of_the_papers_size_is_taken(name: str, tmp_path: Path) -> None:
    write_raw(tmp_path / "raw", CORPORA[name])
    first = prepare(CORPORA[name], tmp_path / "raw", tmp_path / "first", allow_other_counts=True)
    fitting = replace(CORPORA[name], rounded_train=first["lines"]["train"], exact_lines=first["lines"])
    record = prepare(fitting, tmp_path / "raw", tmp_path / "second")
    assert record["other_counts"] == [] and record["sha256"] == first["sha256"]
    assert "override" not in preparation_signature(str(tmp_path / "second" / f"test.{fitting.target}"))


# --- English and German talks, by hand ------------------------------------------------------------------------------


def test_german_talks_worked_by_hand(tmp_path: Path) -> None:
    pairs = [(f"Sentence {number} here", f"Satz {number} Hier") for number in range(1, 25)]
    pairs += [
        ("a b c d e f", "A B C D"),
        ("a b c d e f", "A B C"),
        ("now.", "x y"),
        ("", "leer"),
        ("It’s", "Es ist so"),
    ]
    pairs += [(" ".join(["w"] * 175), " ".join(["w"] * 175)), (" ".join(["w"] * 176), " ".join(["w"] * 176))]
    corpus = small("iwslt14-en-de")
    for at, language in enumerate(("en", "de")):
        (tmp_path / f"train.tags.de-en.{language}").write_text("".join(f"{pair[at]}\n" for pair in pairs), "utf-8")
        for pattern in corpus.test:
            number = corpus.test.index(pattern)
            text = f'<seg id="1"> It’s SET {number} {language} </seg>\n'
            (tmp_path / pattern.format(language=language)).write_text(text, "utf-8")
    record = prepare(replace(corpus, rounded_train=27), tmp_path, tmp_path / "out")
    # 1.5 times as many words are allowed, twice as many are not; "now." is two words; 175 words are, 176 are not
    assert record["skipped"] == {"length ratio": 1, "empty": 1, "too long": 1}
    assert record["lines"] == {"train": 27, "validation": 1, "test": 5}
    assert read(tmp_path / "out/validation.en") == ["sentence 23 here"]
    train = list(zip(read(tmp_path / "out/train.en"), read(tmp_path / "out/train.de")))
    assert train[:2] == [("sentence 1 here", "satz 1 hier"), ("sentence 2 here", "satz 2 hier")]
    assert train[22:26] == [
        ("sentence 24 here", "satz 24 hier"),
        ("a b c d e f", "a b c d"),
        ("now.", "x y"),
        ("it’s", "es ist so"),
    ]
    assert read(tmp_path / "out/test.en") == [f"it's set {number} en" for number in range(5)]  # in the test set alone
    assert re.fullmatch(r"sacremoses [\d.]+ -l en", record["words"])
    back = prepare(replace(corpus, source="de", target="en", rounded_train=27), tmp_path, tmp_path / "back")
    assert back["sha256"] == record["sha256"]


def test_lengths_are_of_moses_words_and_text_stays_as_it_was() -> None:
    corpus = small("wmt14-en-fr", longest=6, ratio=1.5)
    pairs = [("It's (well) so.", "C'est (bien) ici, oui."), ("a-b-c d e", "a b c d e f"), ("one two", "un")]
    skipped: Counter[str] = Counter()
    # It &apos;s ( well ) so . is seven words, though three are parted by spaces
    assert list(clean(iter(pairs), corpus, None, skipped)) == [] and skipped == {"too long": 1, "length ratio": 2}
    assert list(clean(iter(pairs), replace(corpus, longest=11, ratio=2), None, skipped)) == pairs


def test_pairs_that_are_empty_or_broken_are_counted_and_left_out(tmp_path: Path) -> None:
    corpus = small("wmt16-ro-en")
    write_raw(tmp_path / "raw", corpus)
    (europarl,) = (tmp_path / "raw").glob("*/europarl-v8.ro-en.en")
    lines = europarl.read_bytes().split(b"\n")
    lines[3], lines[5], lines[7] = b" ", b"\xff\xfe broken", b"NUL \0"
    europarl.write_bytes(b"\n".join(lines))
    record = prepare(corpus, tmp_path / "raw", tmp_path / "out", allow_other_counts=True)
    assert record["skipped"] == {"empty": 1, "broken": 2} and record["lines"]["train"] == 2 * RAW_LINES - 3
    train = list(zip(read(tmp_path / "out/train.ro"), read(tmp_path / "out/train.en")))
    assert [tuple(line.split()[2] for line in pair) for pair in train[:6]] == [(n, n) for n in "012468"]
    assert record["words"] is None  # nobody counted them


def test_a_broken_line_of_a_test_set_is_an_error_and_an_empty_one_stays(tmp_path: Path) -> None:
    corpus = small("wmt16-ro-en")
    write_raw(tmp_path / "raw", corpus)
    (test,) = (tmp_path / "raw").glob("*/newstest2016-roen-ref.en.sgm")
    whole = test.read_bytes()
    test.write_bytes(whole.replace(sentence("en", 4).encode(), b""))
    record = prepare(corpus, tmp_path / "raw", tmp_path / "out", allow_other_counts=True)
    assert read(tmp_path / "out/test.en")[4] == "" and record["lines"]["test"] == RAW_LINES
    test.write_bytes(whole.replace(b"cat", b"c\xfft", 3))
    with pytest.raises(BadInput, match="test.en would have .* in line 1; allowed is UTF-8"):
        prepare(corpus, tmp_path / "raw", tmp_path / "other", allow_other_counts=True)
    assert not (tmp_path / "other").exists()


# --- Romanian, options, counts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("romanian", "expected"),
    [("keep", ROMANIAN), ("normalise", "Țară și țară, Însă când"), ("strip", "Tara si tara, Insa cand")],
)
def test_romanian_is_kept_normalised_or_stripped(romanian: str, expected: str, tmp_path: Path) -> None:
    corpus = small("wmt16-ro-en")
    write_raw(tmp_path / "raw", corpus)
    for path in (tmp_path / "raw").rglob("*src.ro.sgm"):
        path.write_text(path.read_text("utf-8").replace("cat’s", ROMANIAN), "utf-8")
    for path in (tmp_path / "raw").rglob("*ref.en.sgm"):
        path.write_text(path.read_text("utf-8").replace("cat’s", ROMANIAN), "utf-8")
    prepare(corpus, tmp_path / "raw", tmp_path / "out", romanian=romanian, allow_other_counts=True)
    assert expected in read(tmp_path / "out/test.ro")[0] and ROMANIAN in read(tmp_path / "out/test.en")[0]
    signature = preparation_signature(f"{tmp_path}/out/test.{{ro,en}}")
    assert signature.get("romanian", "keep") == romanian


def test_counts_differ_by_three_percent_of_the_papers_or_not_at_all() -> None:
    corpus = replace(CORPORA["wmt16-ro-en"], rounded_train=600_000)
    lines = {"train": 618_000, "validation": 1_999, "test": 1_999}
    assert TOLERANCE == 0.03 and deviations(corpus, lines) == deviations(corpus, lines | {"train": 582_000}) == []
    assert deviations(corpus, lines | {"train": 618_001}) == ["train has 618001 lines where the paper has about 600000"]
    assert len(deviations(corpus, lines | {"train": 581_999})) == 1
    assert deviations(corpus, lines | {"test": 2_000}) == ["test has 2000 lines where its public recipe has 1999"]
    german = CORPORA["iwslt14-de-en"]
    exact = {"train": 160_239, "validation": 7_283, "test": 6_750}
    assert deviations(german, exact) == [] and len(deviations(german, exact | {"train": 160_240, "test": 6_749})) == 2


def test_the_published_numbers_fit_the_papers_rounded_ones() -> None:
    """Sizes of raw corpora as their publishers print them; so that a row is not refused by a slip of the pen."""
    published = {
        "wmt16-ro-en": 610_320, "iwslt17-en-fr": 232_825, "iwslt17-en-zh": 231_266, "wmt14-en-de": 4_508_785,
        "iwslt14-en-de": 160_239, "iwslt14-de-en": 160_239,
    }  # fmt: skip
    for name, number in published.items():
        assert abs(number - CORPORA[name].rounded_train) <= TOLERANCE * CORPORA[name].rounded_train


def test_only_the_czech_row_takes_those_files_that_are_there(tmp_path: Path) -> None:
    assert [corpus.name for corpus in CORPORA.values() if corpus.any_train] == ["transfer-cs-en"]
    corpus = small("transfer-cs-en")
    write_raw(tmp_path / "raw", corpus)
    for name in ("wikititles", "czeng", "bicleaner"):
        for path in (tmp_path / "raw").rglob(f"*{name}*"):
            path.unlink()
    record = prepare(corpus, tmp_path / "raw", tmp_path / "out", allow_other_counts=True)
    assert record["lines"]["train"] == 3 * RAW_LINES


def test_what_is_missing_is_found_before_anything_is_read(tmp_path: Path) -> None:
    corpus = small("wmt16-ro-en")
    write_raw(tmp_path / "raw", corpus)
    (test,) = (tmp_path / "raw").glob("*/newstest2016-roen-ref.en.sgm")
    test.unlink()
    (train,) = (tmp_path / "raw").glob("*/europarl-v8.ro-en.en")
    train.write_text("")
    with pytest.raises(BadInput, match="has no newstest2016-roen-ref.en.sgm"):
        prepare(corpus, tmp_path / "raw", tmp_path / "out")


def test_options_that_are_not_known_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="recipe is wmt99; allowed are iwslt14-en-de, iwslt14-de-en,"):
        main(["wmt99", str(tmp_path), str(tmp_path / "out")])
    with pytest.raises(BadInput, match="romanian is 'drop'; allowed are keep, normalise, strip"):
        main(["wmt16-ro-en", str(tmp_path), str(tmp_path / "out"), "--romanian", "drop"])
    with pytest.raises(BadInput, match="romanian is strip, and iwslt14-en-de has no Romanian; leave it out"):
        main(["iwslt14-en-de", str(tmp_path), str(tmp_path / "out"), "--romanian", "strip"])


# --- what a score says ----------------------------------------------------------------------------------------------


def test_a_signature_has_the_hashes_of_both_sides_and_files_that_changed_are_refused(tmp_path: Path) -> None:
    write_raw(tmp_path / "raw", CORPORA["wmt16-ro-en"])
    output = tmp_path / "out"
    prepare(CORPORA["wmt16-ro-en"], tmp_path / "raw", output, allow_other_counts=True)
    hashes = [hashlib.sha256((output / f"test.{name}").read_bytes()).hexdigest()[:8] for name in ("en", "ro")]
    both = preparation_signature(f"{output}/test.{{ro,en}}")
    assert both["data"] == f"wmt16-ro-en test {' '.join(hashes)}"
    assert preparation_signature(str(output / "test.en")) == both
    with (output / "test.en").open("a") as file:
        file.write("one more\n")
    with pytest.raises(BadInput, match=r"test.en: is not the file that .*preparation.json lists; .*Prepare it again"):
        preparation_signature(f"{output}/test.{{ro,en}}")
    assert preparation_signature(f"{output}/validation.{{ro,en}}")["data"].startswith("wmt16-ro-en validation")


def test_of_other_data_nothing_is_known(tmp_path: Path) -> None:
    for source in (f"{tmp_path}/test.{{de,en}}", str(tmp_path / "x.jsonl"), "hub:wmt/wmt14:de-en:test"):
        assert preparation_signature(source) == {}


# --- recipes --------------------------------------------------------------------------------------------------------

FILES = sorted(RECIPES.glob("*.json"))


def test_every_row_has_a_recipe() -> None:
    names = {path.stem for path in FILES}
    assert names >= CORPORA.keys()
    assert {name.removeprefix("step1-").removeprefix("zero-shot-") for name in names - CORPORA.keys()} == {
        "low-resource", "high-resource", "transfer-cs-en", "transfer-hi-en", "cs-en", "hi-en",
    }  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.usefixtures("models_may_be_missing")
def test_every_recipe_parses_and_reads_what_is_prepared(path: Path) -> None:
    settings = json.loads(path.read_text("utf-8"))
    arguments = parse_translation_arguments([str(path), "--bf16", "false"])
    assert arguments.output_dir == settings["output_dir"] == f"runs/translation/{path.stem}"
    splits = {
        "train": arguments.train_file, "validation": arguments.validation_file, "test": arguments.test_file,
    }  # fmt: skip
    used = set()
    for split, sources in splits.items():
        for source in sources:
            found = re.fullmatch(r"data/([\w-]+)/([\w-]+)\.\{(\w+),(\w+)\}", source)
            assert found, source
            corpus = CORPORA[found[1]]
            source_language = found[2].removeprefix("test-") if "-" in found[2] else corpus.source
            assert (found[3], found[4]) == (source_language, corpus.target)
            assert found[2] == split or (split == "test" and source_language in corpus.more_tests)
            used.add((found[3], found[4]))
    directions = set(map(tuple, arguments.directions))
    assert used <= directions and {frozenset(pair) for pair in directions} >= {frozenset(pair) for pair in used}
    if arguments.step == 2 or not arguments.train_file:
        maker = Path(arguments.model_name_or_path).parent.name
        assert (RECIPES / f"{maker}.json").is_file()
    if arguments.step == 2 and arguments.train_file:
        corpus = CORPORA[path.stem]
        assert directions == {corpus.pair} and arguments.learning_rate == 2e-5 and not arguments.freeze_encoder
    assert arguments.lr_scheduler_type == "inverse_sqrt" and arguments.label_smoothing_factor == 0.1


def test_scores_and_beams_are_the_papers() -> None:
    found = {path.stem: json.loads(path.read_text("utf-8")) for path in FILES if path.stem in CORPORA}
    beams = {
        (settings["num_beams"], settings["length_penalty"]) for name, settings in found.items() if name != "wmt14-en-de"
    }
    assert beams == {(5, 1.0)} and (found["wmt14-en-de"]["num_beams"], found["wmt14-en-de"]["length_penalty"]) == (
        4,
        0.6,
    )
    tokenised = {name for name, settings in found.items() if settings["metric"] == "multi-bleu"}
    assert tokenised == {"iwslt14-en-de", "iwslt14-de-en", "wmt16-ro-en", "wmt14-en-de", "wmt14-en-fr"}
    assert all(settings["metric"] == "sacrebleu" for name, settings in found.items() if name not in tokenised)


def test_each_row_is_in_the_first_step_that_its_recipe_begins_with() -> None:
    for path in FILES:
        if path.stem in CORPORA:
            first = Path(json.loads(path.read_text("utf-8"))["model_name_or_path"]).parent.name
            sources = json.loads((RECIPES / f"{first}.json").read_text("utf-8"))["train_file"]
            pair = set(CORPORA[path.stem].pair)
            assert any(f"/{path.stem}/" in source or pair == set(re.findall(r"\w+", source)[-2:]) for source in sources)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("transformer/*.json")), ids=lambda path: path.stem)
@pytest.mark.usefixtures("models_may_be_missing")
def test_the_papers_transformers_need_no_checkpoint_and_are_trained_on_the_data_of_their_row(path: Path) -> None:
    """Vaswani et al.: base 512, 2048 and 8 heads, big 1024, 4096 and 16, six layers each; the paper: base for IWSLT."""
    arguments = parse_translation_arguments([str(path), "--bf16", "false"])
    row = parse_translation_arguments([str(RECIPES / path.name), "--bf16", "false"])
    for name in ("train_file", "validation_file", "test_file", "metric", "num_beams", "length_penalty", "directions"):
        assert getattr(arguments, name) == getattr(row, name)
    big = path.stem.startswith("wmt14")
    found = [arguments.encoder_config[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads")]
    assert found == ([1024, 4096, 16] if big else [512, 2048, 8])
    assert arguments.encoder_config["num_hidden_layers"] == arguments.decoder_layers == 6
    assert arguments.random_encoder and not arguments.freeze_encoder and arguments.step == 1
    assert arguments.cls_bias == "none" and arguments.output_dir == f"runs/translation/transformer-{path.stem}"


def test_every_row_of_tables_4_and_5_has_its_transformer() -> None:
    names = {path.stem for path in RECIPES.glob("transformer/*.json")}
    assert names == {row["data"] for row in PAPER["rows"] if row["table"] < 6}
