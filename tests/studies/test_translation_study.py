"""The study of translation: its rows are runs of run_translation.py; slowly, some of them on a tiny model."""

import gzip
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
from parsers import parse_translation_arguments
from transformers import XLMRobertaConfig, XLMRobertaModel

from hictl_hf.cli import train_translation as translation
from hictl_hf.data.tokenization import train_tokenizer
from hictl_hf.files import write_json
from studies import translation as translation_study
from studies.report import BEGIN, END

WORDS = {
    "en": ["the", "red", "house", "is", "here", "and", "old"],
    "de": ["das", "rote", "Haus", "ist", "hier", "und", "alt"],
    "fr": ["la", "maison", "rouge", "est", "ici", "et", "vieille"],
    "es": ["la", "casa", "roja", "está", "aquí", "y", "vieja"],
    "ru": ["этот", "красный", "дом", "здесь", "и", "стар", "там"],
    "ar": ["البيت", "الأحمر", "هنا", "وهو", "قديم", "جدا", "الآن"],
    "zh": ["房子", "红色", "在", "这里", "老", "和", "是"],
}


def write_pairs(path: Path, language: str, numbers: Iterable[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for number in numbers:
        chosen = np.random.default_rng(number).permutation(7)[:4]
        texts = {name: " ".join(WORDS[name][word] for word in chosen) for name in ("en", language)}
        rows.append(json.dumps({"translation": texts}, ensure_ascii=False))
    path.write_bytes(gzip.compress(("\n".join(rows) + "\n").encode()))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for language in ("de", "fr"):
        for part, numbers in (("train", range(30)), ("val", range(30, 34)), ("test_2016_flickr", range(34, 40))):
            write_pairs(folder / f"multi30k/en-{language}.{part}.jsonl.gz", language, numbers)
    for language in translation_study.SCRIPTS:
        for part, numbers in (("train", range(20)), ("dev", range(20, 23)), ("test", range(23, 27))):
            write_pairs(folder / f"bitext/en-{language}.{part}.jsonl.gz", language, numbers)
    (folder / "xtreme/tatoeba").mkdir(parents=True)
    for side, language in (("spa", "es"), ("eng", "en")):
        (folder / f"xtreme/tatoeba/tatoeba.spa-eng.{side}").write_text("\n".join(WORDS[language]) + "\n", "utf-8")
    return folder


def test_the_script_of_a_text_is_that_of_most_letters() -> None:
    texts = {"de": "Das ist, 1 кот!", "ru": "Это OK, да", "ar": "البيت x", "zh": "房子 ab 很老了"}
    assert {name: translation_study.script_of_most(text) for name, text in texts.items()} == translation_study.SCRIPTS
    assert translation_study.script_of_most("12 !") == ""


def test_pairs_with_a_long_sentence_are_left_out_and_no_more_are_taken_than_asked_for(tmp_path: Path) -> None:
    longest = translation_study.LONGEST
    texts = [{"en": "a", "es": "b" * longest}, {"en": "a" * (longest + 1), "es": "b"}, {"en": "c", "es": "é"}]
    lines = "".join(json.dumps({"translation": each}) + "\n" for each in [*texts, {"en": "d", "es": "d"}])
    (tmp_path / "en-es.test.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    path = translation_study.first_pairs(tmp_path, "es", "test", 2, tmp_path)
    found = [json.loads(line)["translation"] for line in Path(path).read_text("utf-8").splitlines()]
    assert found == [texts[0], texts[2]]


@pytest.mark.parametrize("name", translation_study.ROWS)
@pytest.mark.usefixtures("models_may_be_missing")
def test_each_row_is_a_recipe_of_run_translation(name: str, data: Path, tmp_path: Path, monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(translation_study, "call", lambda script, settings, folder: calls.append(settings) or {})
    monkeypatch.setattr(translation_study, "write_run", lambda folder, cost: None)
    translation_study.run(name, 2, data, "encoder", tmp_path)
    row = translation_study.ROWS[name]
    assert len(calls) == (2 if row.after else 1) and (row.baseline or name) in translation_study.ROWS
    for settings in calls:
        file = tmp_path / "recipe.json"
        file.write_text(json.dumps(settings | {"output_dir": str(tmp_path / "run")}), "utf-8")
        arguments = parse_translation_arguments([str(file)])
        assert arguments.seed == 2 and all(
            Path(path).exists() for path in (*arguments.train_file, *arguments.test_file)
        )
    assert calls[-1]["step"] == (2 if row.after else 1)


def test_a_row_is_made_again_where_its_model_is_needed_and_was_not_kept(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    monkeypatch.setattr(translation_study, "call", lambda script, settings, folder: made.append(folder.parent.name))
    monkeypatch.setattr(translation_study, "write_run", lambda folder, cost: None)
    kept = tmp_path / "dot-learned/1"
    kept.mkdir(parents=True)
    (kept / "run.json").write_text("{}", "utf-8")
    translation_study.run("dot-learned", 1, data, "encoder", tmp_path)
    assert made == []
    translation_study.run("en-de", 1, data, "encoder", tmp_path)
    assert made == ["dot-learned", "en-de"]
    (kept / "model").mkdir()
    translation_study.run("en-de", 1, data, "encoder", tmp_path)
    assert made == ["dot-learned", "en-de", "en-de"]


def write_finished(folder: Path, direction: str, translations: list[str], references: list[str]) -> float:
    """What run_translation.py leaves of the test, and from it run.json; returns BLEU."""
    folder.mkdir(parents=True)
    rows = [{"direction": direction, "translation": x, "target": y} for x, y in zip(translations, references)]
    (folder / "predictions.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", "utf-8")
    tokenize = "zh" if direction.endswith("zh") else "13a"
    value = sacrebleu.corpus_bleu(translations, [references], tokenize=tokenize).score
    test = {direction: {metric: {"value": value} for metric in translation_study.METRICS}}
    found = {"test": test, "data_hash": "d", "versions": {}, "skipped": {}, "evaluations": []}
    (folder / "results.json").write_text(json.dumps(found), "utf-8")
    translation_study.write_run(folder, {"command": "", "cpu_minutes": 7.0})
    return value


def cells_of(label: str, folder: Path) -> list[str]:
    """The cells of a line of the table that is made of some runs."""
    translation_study.write_tables(folder / "runs", folder / "page.md")
    (line,) = [line for line in (folder / "page.md").read_text("utf-8").splitlines() if label in line]
    return [cell.strip() for cell in line.split("|")]


SENTENCES = [f"a b c d e f{number} g" for number in range(40)]
EVERY_SECOND = ["x y z" if number % 2 else text for number, text in enumerate(SENTENCES)]


def test_a_gain_is_over_the_baseline_and_its_interval_is_paired(tmp_path: Path) -> None:
    """The row translates all sentences as the references, its baseline every second one as something else."""
    theirs = write_finished(tmp_path / "runs/none/1", "en-de", EVERY_SECOND, SENTENCES)
    write_finished(tmp_path / "runs/dot-learned/1", "en-de", SENTENCES, SENTENCES)
    cells = cells_of("dot, scale learned", tmp_path)
    gain, low, high = map(float, re.findall(r"[-+][\d.]+", cells[5]))
    assert cells[4] == "100.0 (100.0 to 100.0)" and gain == round(100 - theirs, 1)
    assert 0 < low < gain < high and cells[9] == "7"
    run = json.loads((tmp_path / "runs/dot-learned/1/run.json").read_text("utf-8"))
    assert run["in the right script"] == {"en-de": 1.0}


def test_a_gain_is_that_of_the_seeds_both_have(tmp_path: Path) -> None:
    write_finished(tmp_path / "runs/none/1", "en-de", SENTENCES, SENTENCES)
    write_finished(tmp_path / "runs/dot-learned/1", "en-de", SENTENCES, SENTENCES)
    other = write_finished(tmp_path / "runs/dot-learned/2", "en-de", EVERY_SECOND, SENTENCES)
    cells = cells_of("dot, scale learned", tmp_path)
    assert cells[4].startswith(f"{50 + other / 2:.1f} ") and cells[5] == "+0.0 (+0.0 to +0.0)"
    write_finished(tmp_path / "runs/dot-fixed/2", "en-de", SENTENCES, SENTENCES)
    assert cells_of("dot, times 1", tmp_path)[5] == "–"


def test_an_interval_is_of_the_score_beside_it_in_every_language(tmp_path: Path) -> None:
    references = [f"第{number}间房子是红色的而且很老" for number in range(40)]
    translations = [text if number % 2 else "这里有一只猫" for number, text in enumerate(references)]
    value = write_finished(tmp_path / "runs/scripts/1", "en-zh", translations, references)
    told, low, high = map(float, re.findall(r"[\d.]+", cells_of("four languages", tmp_path)[4]))
    assert told == round(value, 1) and 0 < low < value < high


def test_the_page_of_translation_is_made_of_the_evidence(tmp_path: Path) -> None:
    page, kept = tmp_path / "translation.md", (translation_study.ROOT / "docs/translation.md").read_text("utf-8")
    page.write_text(re.sub(f"{BEGIN}.*{END}", f"{BEGIN}\n{END}", kept, flags=re.DOTALL), "utf-8")
    translation_study.main(["--report", str(page), "--output", str(tmp_path / "no runs")])
    assert page.read_text("utf-8") == kept


@pytest.mark.slow
def test_a_tiny_study_from_the_data_to_the_table(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = [" ".join(words) for words in WORDS.values()] * 20
    tokenizer = train_tokenizer(sentences, 120, 64)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = XLMRobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=66, type_vocab_size=1, **shape)
    encoder = tmp_path / "encoder"
    XLMRobertaModel(config).save_pretrained(encoder)
    tokenizer.save_pretrained(encoder)

    def call_here(_: str, settings: dict[str, Any], folder: Path) -> dict[str, Any]:
        folder.mkdir(parents=True)
        recipe = write_json(folder / "recipe.json", settings | {"output_dir": str(folder)})
        translation.main([str(recipe)])
        return {"command": "", "cpu_minutes": 1.0}

    monkeypatch.setattr(translation_study, "call", call_here)
    real = translation_study.read_recipe
    small = {"num_train_epochs": 1, "max_tokens": 256}
    monkeypatch.setattr(translation_study, "read_recipe", lambda name: real(name) | small)
    output, page = tmp_path / "runs", tmp_path / "page.md"
    page.write_text(f"# Before\n{BEGIN}\n{END}\nafter\n", "utf-8")
    rows = ["en-de", "scripts", "others-random", "others"]
    arguments = ["--data", str(data), "--encoder", str(encoder), "--output", str(output), "--seeds", "1"]
    translation_study.main([*arguments, "--rows", *rows])
    report = ["--report", str(page), "--evidence", str(tmp_path / "evidence"), "--output"]
    translation_study.main([*report, str(output)])
    text = page.read_text("utf-8")
    lines = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    tests = [(cells[0].removeprefix("| "), cells[1]) for cells in lines]
    assert ("the same, other sources", "fr-en") in tests and ("one decoder for four languages", "en-zh") in tests
    assert ("en-de, step 1, dot, scale learned", "en-de") in tests, "what step 2 goes on with is a row of its own"
    assert text.endswith(f"{END}\nafter\n")

    def refuse(*_: object) -> None:
        raise AssertionError("a run that is there is made again")

    monkeypatch.setattr(translation_study, "call", refuse)
    translation_study.main([*arguments, "--rows", *rows])
    page.write_text(f"# Before\n{BEGIN}\n{END}\nafter\n", "utf-8")
    translation_study.main([*report, str(tmp_path / "nothing")])
    assert page.read_text("utf-8") == text, "written again from the evidence"
    assert {path.suffix for path in (tmp_path / "evidence").rglob("*.*")} == {".json"}
