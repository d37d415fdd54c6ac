"""The study of adaptation: its rows, data and budgets; all of it on a toy encoder in one process."""

import inspect
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polib
import pytest
import torch
from parsers import parse_arguments
from test_pretraining_study import data as data  # the fixture
from test_pretraining_study import pairs_of, sentence
from toy_files import write_lines
from transformers import XLMRobertaConfig, XLMRobertaModel

from hictl_hf.cli import pretrain
from hictl_hf.data.held_out import comparable
from hictl_hf.data.tokenization import train_tokenizer
from hictl_hf.files import write_json
from hictl_hf.pretraining.corpora import read_corpora
from hictl_hf.pretraining.setup import load_or_make_model, load_or_train_tokenizer, make_trainer
from hictl_hf.pretraining.start import recognise
from hictl_hf.training.callbacks import TrainingTime
from studies import adaptation, adaptation_data, adaptation_report, adaptation_systems, adaptation_training
from studies.adaptation_data import (
    GUARD,
    Material,
    distinct_pairs,
    drawn_pairs,
    in_order,
    prepare,
    read_pairs,
    without_repetitions,
)
from studies.adaptation_report import marks
from studies.adaptation_scores import AveragedEncoder
from studies.adaptation_systems import (
    MINED,
    OTHERS,
    REFERENCE,
    SIMILAR,
    START,
    SYSTEMS,
    recipe_of,
    repeats_ours,
    settings_of,
)

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 130, "type_vocab_size": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def source(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of the other study, with XNLI, a language of NTREX without pairs, and a low-resource language."""
    folder = tmp_path_factory.mktemp("adaptation") / "data"
    shutil.copytree(data, folder)
    for language in ("en", *GUARD):
        lines = [f"{sentence(n, language)}\t{sentence(n + 1, language)}\tneutral" for n in range(700, 710)]
        write_lines(folder / f"xtreme/xnli/dev-{language}.tsv", lines)
    write_lines(folder / "ntrex/newstest2019-ref.tha.txt", [sentence(n, "th") for n in range(1000, 1100)])
    for side, language in (("bre", "br"), ("eng", "en")):
        write_lines(folder / f"tatoeba_low/tatoeba.bre-eng.{side}", [sentence(n, language) for n in range(800, 820)])
    catalogue = polib.POFile()
    for n in [*range(60), 805, 700]:  # a test and a guard sentence
        catalogue.append(polib.POEntry(msgid=sentence(n, "en"), msgstr=sentence(n, "br")))
    catalogue.append(polib.POEntry(msgid="short text", msgstr="testenn verr"))
    for language in ("br", "xx"):
        (folder / f"locale/{language}/LC_MESSAGES").mkdir(parents=True)
        catalogue.save(str(folder / f"locale/{language}/LC_MESSAGES/program.po"))
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A toy encoder without a language-model head."""
    folder = tmp_path_factory.mktemp("start")
    texts = [f"query: {sentence(n, language)}" for n in range(300) for language in ("en", "de", "fr", "ru", "es", "br")]
    tokenizer = train_tokenizer(texts, 400, 128)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    model = XLMRobertaModel(XLMRobertaConfig(vocab_size=len(tokenizer), **SIZES), add_pooling_layer=False)
    model.save_pretrained(folder)
    return str(folder)


# --- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in SYSTEMS if name != START])
def test_the_recipe_of_each_row_is_one_of_run_pretraining(name: str, tmp_path: Path, encoder: str) -> None:
    study = adaptation.Study(Material(tmp_path), encoder, tmp_path, prompt="query: ")
    recipe = study.recipe(name, 3)
    assert ("max_steps" in recipe) == (name == "published")
    arguments = parse_arguments([str(write_json(tmp_path / "recipe.json", recipe))])
    system = SYSTEMS[name]
    assert (arguments.seed, arguments.prompt, arguments.keep_start, arguments.held_out_sentences) == (
        3, "query: ", None, 0,
    )  # fmt: skip
    assert (arguments.config_overrides or {}).items() >= system.config_overrides.items() and not arguments.bf16
    sizes = {"st-cached": 64, "published": 16}
    assert arguments.max_seq_length == 128 and arguments.train_batch_size == sizes.get(name, 32)
    assert (system.section == OTHERS) == bool(system.loss)


def test_losses_of_sentence_transformers_take_the_arguments_of_their_rows() -> None:
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    for system in SYSTEMS.values():
        if system.loss:
            known = inspect.signature(getattr(losses, system.loss)).parameters
            assert system.loss_settings.keys() <= known.keys()


@pytest.mark.parametrize(
    ("config", "repeated"),
    [
        ({"lm_weight": 0, "word_weight": 0}, {"no-hard-negatives"}),
        ({"lm_weight": 0, "word_weight": 0, "hard_negatives": True}, {"hard-negatives"}),
        ({}, {"with-lm", "with-word", "all-losses", "no-hard-negatives"}),
    ],
)
def test_rows_that_repeat_the_recipe_are_not_run(
    config: Mapping[str, Any], repeated: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("recipes/adapt.json", "studies/recipes/at_random.json"):
        write_json(tmp_path / name, {"config_overrides": config, "max_steps": 600})
    write_json(tmp_path / "studies/recipes/continued.json", {"max_steps": 400})
    monkeypatch.setattr(adaptation_systems, "ROOT", tmp_path)
    assert {name for name in SYSTEMS if repeats_ours(name)} == repeated
    assert "max_steps" not in recipe_of("ours") and recipe_of("published")["max_steps"] == 400
    planned = adaptation.planned(None, None)
    assert planned[:3] == [(START, 0), ("similar-other-side", 1), ("similar-pairs", 1)] and ("ours", 3) in planned
    assert {name for name, _ in planned} == SYSTEMS.keys() - repeated
    assert adaptation.planned([START, "ours"], [5]) == [(START, 0), ("ours", 5)]


def test_similar_pairs_and_negatives_of_one_side_are_all_that_distinguishes_the_two_recipes() -> None:
    similar, random = recipe_of("similar-pairs"), recipe_of("ours")
    assert recipe_of("similar-other-side")["config_overrides"].pop("same_side_negatives") is False
    assert similar["config_overrides"].pop("same_side_negatives") is True  # by default, as in "ours"
    assert similar == random | {"group_by_similarity": "sentences"}
    for name in ("st-similar", "st-mined"):
        assert settings_of(name) == settings_of(REFERENCE) | {"harder": SYSTEMS[name].harder}
    without_dropout = settings_of("st-similar-1e-4") | {"encoder_dropout": 0.0}
    assert settings_of("st-similar-1e-4-no-dropout") == without_dropout


# --- data -------------------------------------------------------------------------------------------------------------


def test_no_sentence_of_a_test_of_dev_or_of_the_guard_is_trained_on(source: Path, tmp_path: Path) -> None:
    """Of each of four languages 300 pairs stay; number 305 is a test."""
    counts = prepare(Material(source), tmp_path)
    assert counts["languages"] == dict.fromkeys(("de", "es", "fr", "ru"), 300) and counts["left out"] == 4
    dev, guard = (read_pairs(tmp_path / f"{name}.json") for name in ("dev", "guard"))
    assert dev.keys() == {"de", "fr", "ru", "es"} and len(dev["de"][0]) == 10
    assert guard.keys() == {*GUARD} and guard["th"][1] == [sentence(n, "th") for n in range(700, 711)]
    (tmp_path / "pairs.jsonl.gz").unlink()
    assert prepare(Material(source), tmp_path) == counts and not (tmp_path / "pairs.jsonl.gz").exists(), "only once"


def test_a_sentence_of_dev_is_not_trained_on(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "data")
    write_lines(tmp_path / "data/bitext/de.dev.jsonl.gz", pairs_of("de", range(290, 310)))
    counts = prepare(Material(tmp_path / "data"), tmp_path / "out")
    assert counts["languages"] == dict.fromkeys(("de", "es", "fr", "ru"), 290), "English is in all of them"


def test_low_resource_pairs_come_from_catalogues_in_the_languages_asked_for(source: Path, tmp_path: Path) -> None:
    material = Material(source, ("bre",), (str(source / "locale"),))
    counts = prepare(material, tmp_path)
    dev = read_pairs(tmp_path / "dev.json")
    assert dev.keys() == {"br"} and counts["languages"].keys() == {"br"}
    assert len(dev["br"][0]) + counts["pairs"] == 61, "the test and the guard sentence are in neither"
    assert material.tests.keys() == {"low", "tatoeba"} and material.tests["low"]["bre"][1][0] == sentence(800, "br")
    texts = {comparable(text) for text in dev["br"][0]}
    assert comparable(sentence(805, "en")) not in texts and comparable(sentence(700, "en")) not in texts
    longer = prepare(replace(material, min_characters=11), tmp_path / "longer")
    assert longer["pairs"] == counts["pairs"] - 1, "without 'short text'"


def test_pairs_are_distinct_on_both_sides() -> None:
    rows = [("a", "x"), ("a", "y"), ("b", "x"), ("b", "z")]
    assert [*distinct_pairs(rows)] == [("a", "x"), ("b", "z")]


def test_a_pair_that_repeats_a_text_of_its_batch_goes_to_the_next() -> None:
    """a, a, b, c, a, d, e in batches of two: (a b), (a c), (a d); e is alone."""
    pairs = [{"en": text, "de": f"{text}{number}"} for number, text in enumerate("aabcade")]
    ordered = [pair["en"] for pair in without_repetitions(pairs, 2)]
    assert ordered == ["a", "b", "a", "c", "a", "d"]
    assert [pair["en"] for pair in without_repetitions(pairs, 1)] == [*"aabcade"]


def test_others_train_on_the_pairs_of_hictl_hf_in_its_order(
    source: Path, encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = adaptation.Study(Material(source), encoder, tmp_path)
    study.prepare()
    monkeypatch.setattr(adaptation_data, "LEAST_DRAWN", 1500)
    recipe = write_json(tmp_path / "recipe.json", study.recipe("st-mnrl", 2))
    drawn = drawn_pairs(recipe, 100, tmp_path / "drawn")
    args = parse_arguments([str(recipe), "--learning_rate", "1e-4", "--output_dir", str(tmp_path / "out")])
    corpora, start = read_corpora(args), recognise(encoder)
    tokenizer = load_or_train_tokenizer(args, corpora.train)
    trainer = make_trainer(args, load_or_make_model(args, tokenizer, start)[0], tokenizer, corpora, TrainingTime())
    seen: list[str] = []
    for batch in trainer.get_train_dataloader():
        texts = tokenizer.batch_decode(batch["sentence_input_ids"], skip_special_tokens=True)
        seen += [text for pair in zip(texts[: len(texts) // 2], texts[len(texts) // 2 :]) for text in pair]
        if len(seen) >= 200:
            break
    assert {*map(comparable, seen[:64])} == {comparable(text) for pair in drawn[:32] for text in pair.values()}
    assert [*map(comparable, seen[:200:2])] == [comparable(next(iter(pair.values()))) for pair in drawn]
    assert len((tmp_path / "drawn/2-32.jsonl").read_text("utf-8").splitlines()) == 1500, "a second epoch, too"
    (tmp_path / "data/pairs.jsonl.gz").unlink()
    assert drawn_pairs(recipe, 50, tmp_path / "drawn") == drawn[:50], "drawn once"


def test_others_train_on_batches_of_similar_pairs(encoder: str) -> None:
    """English sentences and sequences of digits in turn: no batch of 2 mixes them."""
    pytest.importorskip("sentence_transformers")
    pairs = [
        {"en": sentence(n, "en") if n % 2 else f"{n} 1 2 3 4 5 6 7 8 9", "de": sentence(n, "de")} for n in range(20)
    ]
    model = adaptation_training.sentence_encoder(encoder, 128)
    job, run = {"loss": "", "harder": SIMILAR, "steps": 10}, {"per_device_train_batch_size": 2, "seed": 1}
    columns = adaptation_training.columns_of(job, run, pairs, model)
    digits = [text[0].isdigit() for text in columns["english"]]
    assert len(digits) == 20 and digits[::2] == digits[1::2] and {*digits} == {True, False}
    assert columns.keys() == {"english", "translation"}
    assert {*zip(columns["english"], columns["translation"])} <= {*map(in_order, pairs)}
    with pytest.raises(RuntimeError, match="pairs for 50 steps of 2: SPARE is too small"):
        adaptation_training.columns_of(job | {"steps": 50}, run, pairs, model)


def test_others_train_without_dropout_where_a_row_says_so(encoder: str) -> None:
    pytest.importorskip("sentence_transformers")

    def same_twice(dropout: float | None) -> bool:
        model = adaptation_training.sentence_encoder(encoder, 128, dropout).train()
        features = model.tokenize(["a sentence of several words"])
        first, second = (model(dict(features))["sentence_embedding"] for _ in range(2))
        return torch.equal(first, second)

    assert same_twice(0.0) and not same_twice(None)


def test_mined_negatives_are_the_nearest_that_the_margin_allows(encoder: str) -> None:
    pytest.importorskip("sentence_transformers")
    number = 101  # sentence-transformers before 6 needs more texts than range_max
    pairs = [{"en": sentence(n, "en"), "de": sentence(n, "de")} for n in range(number)]
    model = adaptation_training.sentence_encoder(encoder, 128)
    job, run = {"loss": "", "harder": MINED, "steps": 2}, {"per_device_train_batch_size": 4, "seed": 1}
    columns = adaptation_training.columns_of(job, run, pairs, model)
    english, german = zip(*map(in_order, pairs))
    x, y = (model.encode([*texts], normalize_embeddings=True) for texts in (english, german))
    similarities = x @ y.T
    for text, translation, negative in zip(*columns.values(), strict=True):
        row = similarities[english.index(text)]
        positive = row[german.index(translation)]
        allowed = np.where(row < 0.95 * positive, row, -1)
        assert negative == german[allowed.argmax()] and allowed.max() > -1
    assert len(columns["negative"]) == 8


# --- budgets ----------------------------------------------------------------------------------------------------------


def test_the_first_three_steps_are_not_measured() -> None:
    """Begun at 10 s; steps of 5, 4, 3, then 2 and 1 s: 1.5 s a step, in 25 minutes 1,000 of them."""
    times = [10.0, 15.0, 19.0, 22.0, 24.0, 25.0]
    assert adaptation_training.seconds_per_step(times) == 1.5
    assert adaptation_training.steps_in(25, 1.5) == 1000 and adaptation_training.steps_in(0.001, 1.5) == 1
    with pytest.raises(ValueError, match="3 steps; allowed are 4 or more"):
        adaptation_training.seconds_per_step(times[:4])


def test_the_time_of_the_teacher_counts() -> None:
    clock = adaptation_training.StepTimes()
    clock.times, clock.seconds = [0.0, 5.0, 9.0, 12.0, 14.0, 15.0], 15.5
    expected = {"steps": 5, "train_cpu_seconds": 25.5, "seconds_per_step": 1.5 + 10 / 5}
    assert adaptation_training.record(clock, before=10.0) == expected


# --- all of it --------------------------------------------------------------------------------------------------------


def call_here(script: str, settings: dict[str, Any], folder: Path, *flags: str) -> dict[str, Any]:
    """`pretraining.call` in this process."""
    file = write_json(folder / "recipe.json", settings | {"output_dir": str(folder)})
    (pretrain if script == "run_pretraining.py" else adaptation_training).main([str(file), *flags])
    return {"command": f"python {script}", "cpu_minutes": 0.1}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings of three steps, in this process, without the report of hictl_hf."""
    monkeypatch.setattr(adaptation, "call", call_here)
    monkeypatch.setattr(adaptation, "steps_in", lambda *_: 3)
    monkeypatch.setattr(adaptation, "CALIBRATION_STEPS", 4)
    monkeypatch.setitem(adaptation.SYSTEMS, "st-distill", replace(SYSTEMS["st-distill"], score_trained=True))
    monkeypatch.setattr(adaptation_data, "LEAST_DRAWN", 100)
    monkeypatch.setattr("hictl_hf.pretraining.run.report", lambda *_: None)


def test_a_tiny_study_from_the_data_to_the_page(
    source: Path, encoder: str, tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sentence_transformers")
    output = tmp_path / "study"
    argv = ["--data", str(source), "--encoder", encoder, "--seeds", "1", "--output", str(output)]
    adaptation.main([*argv, "--systems", "ours", "similar-pairs", START, REFERENCE, "st-distill"])
    runs = {name: json.loads((output / f"{name}/{seed}/run.json").read_text("utf-8")) for name, seed in
            {START: 0, "ours": 1, "similar-pairs": 1, REFERENCE: 1, "st-distill": 1}.items()}  # fmt: skip
    for name, run in runs.items():
        assert run["study"]["prompt"] == "query: " and run["encoders"]["chosen"]["share"] == run["share"]
        tests = run["encoders"]["chosen"]["scores"].keys()
        assert {"tatoeba", "tatoeba, with pairs", "ntrex, without pairs", "in domain"} <= tests
        assert ("bucc" in tests) == (name != "st-distill" or run["share"] == 0)  # then it is the start
        if name != START:
            assert run["steps"] == 3 and run["train_cpu_seconds"] > 0 and run["calibration"]["seconds_per_step"] > 0
            assert [row["share"] for row in run["shares"]] == [0, 0.25, 0.5, 0.75, 1]
            assert [run["shares"][0]] == runs[START]["shares"], "the start is measured once, at share 0"
        assert ("trained" in run["encoders"]) == (name == "st-distill")
        assert ("sentence-transformers" in run["versions"]) == name.startswith("st-")
    page = (output / "results.md").read_text("utf-8")
    assert page.count("both directions") == 1
    assert not (output / "ours/1/training/checkpoint").exists()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("what exists is made again")

    monkeypatch.setattr(adaptation, "call", refuse)
    monkeypatch.setattr(adaptation, "score", refuse)
    adaptation.main([*argv, "--systems", "ours", START])
    (output / "ours/1/run.json").unlink()
    adaptation.main([*argv, "--systems", "ours"])
    assert (output / "results.md").read_text("utf-8") == page
    with pytest.raises(SystemExit, match=r"other settings \(prompt\)"):
        adaptation.main([*argv, "--prompt", ""])
    monkeypatch.setattr(adaptation, "settings_of", lambda _: {"learning_rate": 1.0})
    with pytest.raises(SystemExit, match=r"ours/1: was trained with another recipe; remove it"):
        adaptation.main([*argv, "--systems", "ours"])


def test_share_0_is_the_start_and_share_1_the_trained_encoder(encoder: str, tmp_path: Path) -> None:
    trained = XLMRobertaModel.from_pretrained(encoder)  # with a new pooler
    torch.manual_seed(1)
    trained.encoder.layer[0].output.dense.weight.data.normal_()
    trained.config.embedding_prompt = "another: "
    trained.save_pretrained(tmp_path)
    shutil.copy(Path(encoder) / "tokenizer.json", tmp_path)
    shutil.copy(Path(encoder) / "tokenizer_config.json", tmp_path)
    both, alone = (
        AveragedEncoder(encoder, str(tmp_path), "query: ", 128),
        AveragedEncoder(encoder, None, "query: ", 128),
    )
    of_trained = AveragedEncoder(str(tmp_path), None, "query: ", 128)
    texts = [sentence(n, "de") for n in range(5)]
    start, half, end = (both.at(share)(texts) for share in (0.0, 0.5, 1.0))
    np.testing.assert_allclose(start, alone.at(0)(texts), atol=1e-6)
    np.testing.assert_allclose(end, of_trained.at(0)(texts), atol=1e-6)
    assert np.abs(start - end).max() > 0.01 and np.abs(half - end).max() > 0.001
    model = alone.model
    model.eval()
    with torch.inference_mode():
        ids = alone.tokenizer([f"query: {texts[0]}"], return_tensors="pt")
        mean = model(**ids).last_hidden_state[0].mean(0)
    np.testing.assert_allclose(start[0], mean / mean.norm(), atol=1e-5)


def test_a_tiny_low_resource_study(
    source: Path, encoder: str, tmp_path: Path, tiny: None, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "study"
    low = ["--languages", "bre", "--train_file", str(source / "locale")]
    argv = ["--data", str(source), "--encoder", encoder, "--output", str(output), *low]
    adaptation.main([*argv, "--systems", START, "ours", "--seeds", "1"])
    scores = json.loads((output / "ours/1/run.json").read_text("utf-8"))["encoders"]["chosen"]["scores"]
    assert {"low", "bre", "tatoeba"} <= scores.keys() and "bucc" not in scores
    page = (output / "results.md").read_text("utf-8")
    assert page.startswith(marks("-low")[0]) and "| mean | Breton | Tatoeba, 18 others |" in page
    with pytest.raises(SystemExit):
        adaptation.main([*argv[:6], "--languages", "bre"])
    assert "--languages and --train_file are given together" in capsys.readouterr().err


@pytest.mark.slow
def test_a_tiny_study_in_separate_processes(
    source: Path, encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sentence_transformers")
    monkeypatch.setattr(adaptation, "steps_in", lambda *_: 3)
    monkeypatch.setattr(adaptation, "CALIBRATION_STEPS", 4)
    argv = ["--data", str(source), "--encoder", encoder, "--seeds", "1", "--output", str(tmp_path)]
    adaptation.main([*argv, "--systems", START, "similar-pairs", "st-cached"])
    for name, command in {
        "similar-pairs": "python run_pretraining.py ",
        "st-cached": "python -m studies.adaptation_training ",
    }.items():
        run = json.loads((tmp_path / name / "1/run.json").read_text("utf-8"))
        assert run["command"].startswith(command) and run["cpu_minutes"] > 0 and run["steps"] == 3
    assert adaptation_report.find_encoders(tmp_path).keys() == {START, "similar-pairs", "st-cached"}


@pytest.mark.parametrize(("name", "expected"), [("with-lm", 2.5), ("st-gte", 1.5), ("ours", 2.5)])
def test_a_row_of_a_faster_machine_has_the_time_that_the_steps_of_its_reference_take_there(
    name: str, expected: float, tmp_path: Path
) -> None:
    for reference, seconds in (("ours", 5.0), (REFERENCE, 3.0)):
        write_json(tmp_path / f"{reference}/1/run.json", {"calibration": {"seconds_per_step": seconds, "steps": 9}})
    study = adaptation.Study(Material(tmp_path), "e5", tmp_path)
    assert replace(study, reference_seconds=2.0).slowdown(name) == expected
    assert study.slowdown(name) == 1.0
    shutil.rmtree(tmp_path / (REFERENCE if name.startswith("st-") else "ours"))
    with pytest.raises(SystemExit, match="has no run of .* to compare with; run it"):
        replace(study, reference_seconds=2.0).slowdown(name)
