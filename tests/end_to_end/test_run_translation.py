"""`run_translation.py` on a made-up language pair: both steps, killed and continued, and what it refuses.

The translation of a sentence has its syllables in Greek, or in Cyrillic: which of them tells the language.
"""

import hashlib
import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from accelerate import Accelerator
from parsers import parse_translation_arguments
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    RobertaConfig,
    RobertaModel,
    TrainerState,
)

import hictl_hf.translation.run
from hictl_hf import HictlConfig, HictlForPreTraining, HictlModel
from hictl_hf.data.tokenization import train_tokenizer
from hictl_hf.errors import BadInput
from hictl_hf.files import only_writer
from hictl_hf.models.modeling_hictl_translation import HictlForConditionalGeneration
from hictl_hf.training.checkpoints import newest_first
from hictl_hf.translation.arguments import TranslationArguments
from hictl_hf.translation.pipeline import load_translator
from hictl_hf.translation.setup import new_decoder
from hictl_hf.translation.trainer import TranslationTrainer, is_due
from run_translation import main

SCRIPT = Path(__file__).parents[2] / "run_translation.py"
SYLLABLES = ("ba", "ko", "mi", "tu", "ne", "sa", "ri", "lo", "pe", "gu", "di", "ma", "ru", "so", "ki", "na")
SCRIPTS = {
    "en": str.maketrans({}),
    "el": str.maketrans("abdegiklmnoprstu", "αβδεγικλμνοπρστυ"),
    "ru": str.maketrans("abdegiklmnoprstu", "абдегиклмнопрсту"),
}
SIZES = {"train": 500, "dev": 20, "test": 30}
TWO_TARGETS = ["--source_lang", "en", "--target_lang", "el", "ru"]
QUIET = ["--disable_tqdm", "true"]


def sentences(number: int) -> list[str]:
    """As many different ones of 2 to 6 words."""
    choose, found = random.Random(0), dict[str, None]()
    while len(found) < number:
        found[" ".join(choose.choices(SYLLABLES, k=choose.randint(2, 6)))] = None
    return list(found)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, model_for_text: Callable[..., PreTrainedModel]) -> Path:
    """A folder with train, dev and test in three scripts, and an encoder that was trained for nothing."""
    folder, texts = tmp_path_factory.mktemp("world"), sentences(sum(SIZES.values()))
    written = {language: [text.translate(letters) for text in texts] for language, letters in SCRIPTS.items()}
    begin = 0
    for split, size in SIZES.items():
        for language, lines in written.items():
            (folder / f"{split}.{language}").write_text("".join(f"{x}\n" for x in lines[begin : begin + size]), "utf-8")
        begin += size
    tokenizer = train_tokenizer([text for lines in written.values() for text in lines], 200, 62)
    config = {"hidden_size": 64, "intermediate_size": 128, "initializer_range": 0.1}
    model_for_text(HictlForPreTraining, vocab_size=len(tokenizer), **config).save_pretrained(folder / "encoder")
    tokenizer.save_pretrained(folder / "encoder")
    return folder


def pairs(world: Path, split: str, *languages: str) -> list[str]:
    return [f"{world}/{split}.{{en,{language}}}" for language in languages or ("el", "ru")]


def step_one(world: Path, output: Path, *more: str) -> list[str]:
    """The arguments of step 1, into two languages."""
    data = [
        "--train_file",
        *pairs(world, "train"),
        "--validation_file",
        *pairs(world, "dev"),
        "--test_file",
        *pairs(world, "test"),
    ]
    how = ["--decoder_layers", "2", "--max_tokens", "200", "--num_train_epochs", "8", "--learning_rate", "3e-3"]
    how += [
        "--model_name_or_path",
        str(world / "encoder"),
        "--eval_strategy",
        "steps",
        "--eval_steps",
        "80",
        "--save_strategy",
    ]
    return [*how, "steps", "--save_steps", "80", *data, *TWO_TARGETS, *QUIET, "--output_dir", str(output), *more]


def step_two(world: Path, model: Path, output: Path, *more: str) -> list[str]:
    """The arguments of step 2, of one pair."""
    data = [
        f"--{name}={pairs(world, split, 'el')[0]}" for name, split in (("train_file", "train"), ("test_file", "test"))
    ]
    how = [
        "--step",
        "2",
        "--model_name_or_path",
        str(model),
        "--max_steps",
        "10",
        "--max_tokens",
        "200",
        "--save_strategy",
        "no",
    ]
    return [*how, *data, "--source_lang", "en", "--target_lang", "el", *QUIET, "--output_dir", str(output), *more]


def short(world: Path, output: Path, *more: str) -> list[str]:
    """A few steps of step 1, into one language."""
    data = [
        f"--{name}={pairs(world, split, 'el')[0]}" for name, split in (("train_file", "train"), ("test_file", "test"))
    ]
    how = [
        "--model_name_or_path",
        str(world / "encoder"),
        "--max_steps",
        "4",
        "--max_tokens",
        "200",
        "--save_strategy",
        "no",
    ]
    how += ["--decoder_layers", "1", "--num_beams", "2"]
    return [*how, *data, "--source_lang", "en", "--target_lang", "el", *QUIET, "--output_dir", str(output), *more]


def read_results(output: Path) -> dict[str, Any]:
    return json.loads((output / "results.json").read_text("utf-8"))


def weights_of(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="session")
def first(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished step 1."""
    output = tmp_path_factory.mktemp("first") / "run"
    with pytest.MonkeyPatch.context() as context:
        context.setattr(datasets.config, "HF_DATASETS_CACHE", world / "cache")
        main(step_one(world, output, "--average_checkpoints", "2"))
    return output


@pytest.fixture(autouse=True)
def cache(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", world / "cache")


# --- the two steps ----------------------------------------------------------------------------------------------------


def test_step_one_learns_both_languages_and_each_start_token_means_its_own(world: Path, first: Path) -> None:
    results = read_results(first)
    for direction in ("en-el", "en-ru"):
        scores = results["test"][direction]
        assert scores["sacrebleu"]["value"] > 50 and scores["chrf"]["value"] > 50
        assert "tok:13a" in scores["sacrebleu"]["signature"]
    lines = (first / "generated_predictions.txt").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in (first / "predictions.jsonl").read_text("utf-8").splitlines()]
    assert len(lines) == len(rows) == 2 * SIZES["test"] and [row["translation"] for row in rows] == lines
    expected = [
        line for language in ("el", "ru") for line in (world / f"test.{language}").read_text("utf-8").splitlines()
    ]
    assert [row["target"] for row in rows] == expected
    for row, line in zip(rows, lines):
        language = row["direction"].partition("-")[2]
        letters = set(map(chr, SCRIPTS[language].values()))
        assert {*line} - {" "} <= letters and row["score"] < 0
    assert sum(line == target for line, target in zip(lines, expected)) > SIZES["test"]  # each in its place


def test_step_one_leaves_the_encoder_as_it_was(world: Path, first: Path) -> None:
    before, after = weights_of(world / "encoder"), weights_of(first / "model")
    encoder = [name for name in after if name.startswith("roberta.")]
    assert len(encoder) > 30 and all(after[name].equal(before[name]) for name in encoder)


def test_the_model_of_a_run_is_used_like_any_other(world: Path, first: Path) -> None:
    model, tokenizer = (kind.from_pretrained(first / "model") for kind in (AutoModelForSeq2SeqLM, AutoTokenizer))
    source = tokenizer(["ba ko mi"], return_tensors="pt")
    said = {
        language: tokenizer.batch_decode(model.generate(**source, target_language=language), skip_special_tokens=True)
        for language in ("el", "ru")
    }
    assert said == {language: ["ba ko mi".translate(SCRIPTS[language])] for language in ("el", "ru")}
    assert model.config.decoder_layers == 2 and model.generation_config.num_beams == 5


def test_greedy_search_is_saved_as_what_a_model_does(world: Path, tmp_path: Path) -> None:
    main(replaced(short(world, tmp_path / "run", "--length_penalty", "0.6"), num_beams="1"))
    model, tokenizer = load_translator(str(tmp_path / "run/model"))
    assert model.generation_config.num_beams == 1 and read_results(tmp_path / "run")["decoding"]["num_beams"] == 1
    assert model.generate(**tokenizer(["ba ko mi"], return_tensors="pt"), max_length=9).shape[1] <= 9


def test_what_a_run_tells(world: Path, first: Path) -> None:
    results = read_results(first)
    assert results["rows"] == {
        split: {"en-el": size, "en-ru": size} for split, size in zip(("train", "validation", "test"), SIZES.values())
    }
    assert results["skipped"] == {} and results["cut_sources"] == {"validation": 0, "test": 0}
    vocabulary = results["target_vocabulary"]
    assert vocabulary["unknown_tokens"] == {"el": 0, "ru": 0} and min(vocabulary["tokens"].values()) > 1000
    assert 4 < vocabulary["size"] == results["settings"]["config"]["decoder_vocab_size"]
    assert results["decoding"]["num_beams"] == 5 and results["decoding"]["length_penalty"] == 1
    arguments = shlex.join(step_one(world, first, "--average_checkpoints", "2"))
    assert results["command"] == f"hictl train-translation {arguments}"
    evaluations = [entry["eval_sacrebleu"] for entry in results["evaluations"]]
    assert len(evaluations) >= 3 and evaluations[-1] > evaluations[0]
    assert results["chosen"]["validation"] >= max(evaluations)
    losses = [entry["loss"] for entry in results["history"]]
    assert losses[-1] < losses[0] / 2
    assert results["settings"]["training"]["target_lang"] == ["el", "ru"]
    assert "en-el" in (first / "report.html").read_text("utf-8")


def test_step_two_tunes_all_of_it_for_a_pair(world: Path, first: Path, tmp_path: Path) -> None:
    results = main(step_two(world, first / "model", tmp_path))
    assert results["test"]["en-el"]["sacrebleu"]["value"] > 50 and list(results["test"]) == ["en-el"]
    before, after = weights_of(first / "model"), weights_of(tmp_path / "model")
    assert before.keys() == after.keys()
    for part in ("roberta.encoder", "roberta.embeddings.word", "decoder.", "cls_bias_scale"):
        moved = [not before[name].equal(after[name]) for name in before if name.startswith(part)]
        assert moved and all(moved), part
    assert after["target_token_ids"].equal(before["target_token_ids"])
    training = results["settings"]["training"]
    assert training["learning_rate"] == 2e-5 and training["lr_scheduler_type"] == "inverse_sqrt"
    assert results["settings"]["config"]["target_languages"] == ["el", "ru"]


def test_a_model_is_tested_without_training(world: Path, first: Path, tmp_path: Path) -> None:
    """Of sources that the model was not trained on, which it takes for what they are: other text."""
    for end in ("en", "el"):
        shutil.copy(world / f"test.{end}", tmp_path / f"t.{end.replace('en', 'xx')}")
    arguments = [
        "--model_name_or_path",
        str(first / "model"),
        "--test_file",
        f"{tmp_path}/t.{{xx,el}}",
        *QUIET,
        "--metric",
        "multi-bleu",
    ]
    arguments += ["--multi_bleu", '{"lowercase": true}', "--source_lang", "xx", "--target_lang", "el"]
    results = main([*arguments, "--output_dir", str(tmp_path / "out")])
    assert results["test"]["xx-el"]["multi-bleu"]["value"] > 50 and results["chosen"]["state"].startswith("that of ")
    assert "-l el lc" in results["test"]["xx-el"]["multi-bleu"]["signature"]
    assert not (tmp_path / "out/model").exists() and len(results["test"]["xx-el"]) == 3
    protocol = (tmp_path / "out/report.md").read_text("utf-8").split("## Protocol")[1].split("\n## ")[0]
    assert results["step"] is None and "| began with" in protocol and "| step" not in protocol


def test_the_same_command_again_does_nothing_but_say_so(
    world: Path, first: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError

    files = {path: path.stat().st_mtime_ns for path in first.rglob("*")}
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", refuse)
    caplog.set_level("INFO", logger="hictl_hf")
    assert main(step_one(world, first, "--average_checkpoints", "2", "--dataloader_num_workers", "1"))["test"]
    assert "this run is finished; its files were not read again, there is nothing to do" in caplog.text
    assert {path: path.stat().st_mtime_ns for path in first.rglob("*")} == files
    (first / "report.html").unlink()  # as if it had been ended just before
    main(step_one(world, first, "--average_checkpoints", "2"))
    assert "sacrebleu" in (first / "report.html").read_text("utf-8").lower()
    with pytest.raises(BadInput, match=r"begun with .*average_checkpoints was 2 and is 3; .*another --output_dir"):
        main(step_one(world, first, "--average_checkpoints", "3"))
    monkeypatch.setattr(TranslationArguments, "world_size", 2)
    with pytest.raises(BadInput, match=r"begun with .*processes was 1 and is 2; continue with the settings it"):
        main(step_one(world, first, "--average_checkpoints", "2"))


# --- interrupted runs -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_with_the_same_bits(world: Path, tmp_path: Path) -> None:
    more = ["--max_steps", "24", "--save_strategy", "steps", "--save_steps", "3", "--eval_strategy", "steps"]
    more += ["--eval_steps", "3", "--validation_file", *pairs(world, "dev", "el"), "--logging_steps", "3"]
    main(short(world, tmp_path / "whole", *more))
    output = tmp_path / "killed"
    command = [sys.executable, str(SCRIPT), *short(world, output, *more)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while len(newest_first(output)) < 2:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    done = max(int(path.name.split("-")[1]) for path in newest_first(output))
    assert 0 < done < 24 and not (output / "results.json").exists()
    main(command[2:])
    for name in ("model/model.safetensors", "generated_predictions.txt", "predictions.jsonl"):
        assert (output / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    whole, killed = (read_results(folder) for folder in (tmp_path / "whole", output))
    assert [log["loss"] for log in whole["history"]] == [log["loss"] for log in killed["history"]]
    assert len(whole["history"]) == 8 and whole["test"] == killed["test"]
    assert {**whole["chosen"], "seconds": 0} == {**killed["chosen"], "seconds": 0}


def test_a_run_that_died_while_it_translated_is_not_trained_again_nor_gone_on_with_other_pairs(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise RuntimeError("died")

    copies = {language: shutil.copy(world / f"train.{language}", tmp_path) for language in ("en", "el")}
    arguments = short(world, tmp_path, "--save_strategy", "steps", "--save_steps", "2")
    arguments += ["--train_file", f"{tmp_path}/train.{{en,el}}"]
    with monkeypatch.context() as context, pytest.raises(RuntimeError, match="died"):
        context.setattr(TranslationTrainer, "translate", die)
        main(arguments)
    assert not (tmp_path / "generated_predictions.txt").exists() and not (tmp_path / "results.json").exists()
    monkeypatch.setattr(TranslationTrainer, "training_step", die)
    before = {path: Path(path).read_text("utf-8") for path in copies.values()}
    for path, text in before.items():
        Path(path).write_text(text + "ναι\n", "utf-8")
    with pytest.raises(BadInput, match=r"hash of the training examples was .* give the same settings and data"):
        main(arguments)
    for path, text in before.items():
        Path(path).write_text(text, "utf-8")
    assert main(arguments)["chosen"]["state"] == "step 4, the last"


def test_a_checkpoint_goes_on_with_its_batches_and_its_validation_pairs_only(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its position is a number of batches, and its best score is that of the pairs it was measured on."""

    def die(*_: Any, **__: Any) -> None:
        raise RuntimeError("died")

    for language in ("en", "el"):
        shutil.copy(world / f"dev.{language}", tmp_path)
    steps = ["--save_strategy", "steps", "--save_steps", "2", "--eval_strategy", "steps", "--eval_steps", "2"]
    steps += ["--validation_file", f"{tmp_path}/dev.{{en,el}}"]
    with monkeypatch.context() as context, pytest.raises(RuntimeError, match="died"):
        context.setattr(hictl_hf.translation.run, "score_directions", die)
        main(short(world, tmp_path / "run", *steps))
    elsewhere = [*steps, "--resume_from_checkpoint", str(tmp_path / "run/checkpoint-2")]
    for changed, told in (
        (["--max_tokens", "300"], "max_tokens was 200 and is 300"),
        (["--seed", "7"], "seed was 42 and is 7"),
        (["--gradient_accumulation_steps", "2"], "gradient_accumulation_steps was 1 and is 2"),
        (["--cls_bias", "none"], "cls_bias was None and is 'none'"),
    ):
        with pytest.raises(BadInput, match=told):
            main(short(world, tmp_path / changed[0], *elsewhere, *changed))
    assert main(short(world, tmp_path / "longer", *elsewhere, "--max_steps", "5"))["chosen"]["state"][:4] == "step"
    for language in ("en", "el"):
        path = tmp_path / f"dev.{language}"
        path.write_text("".join(path.read_text("utf-8").splitlines(keepends=True)[:5]), "utf-8")
    with pytest.raises(BadInput, match="hash of the validation pairs was .* and is "):
        main(short(world, tmp_path / "run", *steps))


def test_the_best_state_is_found_where_the_run_was_moved_to(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise RuntimeError("died")

    scores = iter([1.0, 3.0, 2.0])
    monkeypatch.setattr(TranslationTrainer, "validate", lambda _: {"sacrebleu": next(scores), "chrf": 0.0})
    more = ["--validation_file", *pairs(world, "dev", "el"), "--max_steps", "3", "--eval_strategy", "steps"]
    more += ["--eval_steps", "1", "--save_strategy", "steps", "--save_steps", "1"]
    with monkeypatch.context() as context, pytest.raises(RuntimeError, match="died"):
        context.setattr(TranslationTrainer, "translate", die)
        context.chdir(tmp_path)
        main(short(world, Path("here"), *more))
    (tmp_path / "here").rename(tmp_path / "there")
    best = weights_of(tmp_path / "there/checkpoint-2")
    saved = json.loads((tmp_path / "there/checkpoint-3/trainer_state.json").read_text("utf-8"))
    chosen = main(short(world, tmp_path / "there", *more))["chosen"]
    assert (chosen["state"], chosen["validation"]) == ("step 2, the best on validation", 3.0)
    assert chosen["seconds"] >= saved["stateful_callbacks"]["TrainingTime"]["args"]["seconds"] > 0  # all of both parts
    found = weights_of(tmp_path / "there/model")
    assert found.keys() == best.keys() and all(found[name].equal(weight) for name, weight in best.items())
    shutil.rmtree(tmp_path / "there/checkpoint-2")
    (tmp_path / "there/results.json").unlink()
    with pytest.raises(BadInput, match="checkpoint-2: is missing, and holds the best state of the run"):
        main(short(world, tmp_path / "there", *more))


def test_of_equal_states_the_later_one_is_the_best(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TranslationTrainer, "validate", lambda _: {"sacrebleu": 0.0, "chrf": 1.0})
    more = ["--validation_file", *pairs(world, "dev", "el"), "--save_strategy", "best", "--eval_strategy", "steps"]
    results = main(short(world, tmp_path, *more, "--eval_steps", "1", "--max_steps", "3"))
    assert results["chosen"]["state"] == "step 3, the best on validation"


def test_with_the_best_states_alone_saved_another_is_of_sigterm() -> None:
    state = TrainerState(global_step=6, max_steps=6, best_global_step=4)
    assert not is_due(state, "best") and is_due(state, "steps")
    state.best_global_step = 6
    assert is_due(state, "best")


def test_sigterm_ends_a_run_with_143_and_the_same_command_goes_on(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = TranslationTrainer.training_step

    def send(trainer: TranslationTrainer, *given: Any, **how: Any) -> Tensor:
        if trainer.state.global_step == 2:
            signal.raise_signal(signal.SIGTERM)
        return before(trainer, *given, **how)

    with monkeypatch.context() as context, pytest.raises(SystemExit) as ended:
        context.setattr(TranslationTrainer, "training_step", send)
        main(short(world, tmp_path))
    assert ended.value.code == 143 and newest_first(tmp_path)[0].name == "checkpoint-3"
    results = main(short(world, tmp_path))
    assert results["chosen"]["state"] == "step 4, the last"


def test_two_runs_do_not_write_into_one_folder(world: Path, tmp_path: Path) -> None:
    """The second one would go on from a checkpoint of the first, and remove those that it needs."""
    with only_writer(tmp_path / "out"), pytest.raises(BadInput, match="out: another run that has not ended writes"):
        main(short(world, tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    main(short(world, tmp_path / "out", "--max_steps", "1"))  # the first one has ended


@pytest.mark.parametrize("schedule", [("steps", "2"), ("epoch", "2")], ids=["steps", "epochs"])
def test_what_sigterm_saved_is_not_among_the_checkpoints_of_the_mean(
    schedule: tuple[str, str], world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended in the midst of the schedule, and again, so that the checkpoints kept are as many without its own."""
    before, (strategy, steps) = TranslationTrainer.training_step, schedule
    more = ["--average_checkpoints", "2", "--save_strategy", strategy, "--save_steps", steps, "--max_tokens", "2000"]
    more += ["--max_steps", "-1", "--num_train_epochs", "4"] if strategy == "epoch" else ["--max_steps", "7"]
    whole = main(short(world, tmp_path / "whole", *more))
    last = int(whole["chosen"]["state"].split()[-1])

    def send(trainer: TranslationTrainer, *given: Any, **how: Any) -> Tensor:
        if trainer.state.global_step in ends:
            ends.remove(trainer.state.global_step)
            signal.raise_signal(signal.SIGTERM)
        return before(trainer, *given, **how)

    monkeypatch.setattr(TranslationTrainer, "training_step", send)
    ends = [2, last - 3, last - 2] if strategy == "epoch" else [2, 4]  # after which a step is not due
    for _ in list(ends):
        with pytest.raises(SystemExit):
            main(short(world, tmp_path / "ended", *more))
    ended = main(short(world, tmp_path / "ended", *more))
    assert ended["chosen"]["state"] == whole["chosen"]["state"]
    folders = (tmp_path / "whole", tmp_path / "ended")
    assert len({(folder / "model/model.safetensors").read_bytes() for folder in folders}) == 1
    names = [[path.name for path in newest_first(folder)] for folder in folders]
    assert names[0][:2] == names[1][:2] and {*names[0]} >= {*names[1]}  # nothing is left of what SIGTERM saved


def test_fewer_checkpoints_than_were_to_be_averaged_and_a_run_that_validates_nothing_are_told(
    world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saving = ["--max_steps", "4", "--save_strategy", "steps", "--save_steps", "2"]
    main(short(world, tmp_path / "mean", *saving, "--average_checkpoints", "3"))
    assert f"average_checkpoints is 3, and {tmp_path}/mean has 2 complete ones: the mean is of these" in caplog.text
    evaluating = ["--eval_strategy", "steps", "--eval_steps", "2", "--eval_delay", "9"]
    more = [*saving, "--validation_file", *pairs(world, "dev", "el"), *evaluating]
    assert main(short(world, tmp_path / "late", *more))["chosen"]["state"] == "step 4, the last"
    assert "nothing was validated, so the last state is kept: eval_delay or eval_steps is beyond" in caplog.text


def test_no_process_waits_for_an_upload(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may last longer than `ddp_timeout`, after which NCCL ends all processes."""
    done: list[str] = []
    monkeypatch.setattr(hictl_hf.translation.run, "publish", lambda args: done.append("published"))
    monkeypatch.setattr(Accelerator, "wait_for_everyone", lambda self: done.append("waited"))
    main(short(world, tmp_path, "--max_steps", "1"))
    assert done[-2:] == ["waited", "published"]


@pytest.mark.slow
def test_runs_are_the_same_whatever_the_hash_seed_of_python(world: Path, tmp_path: Path) -> None:
    found = []
    for seed in ("0", "1"):
        arguments = step_one(world, tmp_path / seed, "--max_steps", "6")
        command = [sys.executable, "-m", "hictl_hf", "train-translation", *arguments]
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, timeout=300)
        model, text = "model/model.safetensors", "generated_predictions.txt"
        found.append([(tmp_path / seed / name).read_bytes() for name in (model, text)])
    assert found[0] == found[1]


@pytest.mark.slow
def test_two_processes_leave_one_result(world: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    more = ["--ddp_backend", "gloo", "--max_steps", "40", "--eval_steps", "20", "--save_steps", "20"]
    launch = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(port), str(SCRIPT)]
    arguments = step_one(world, tmp_path / "out", *more, "--average_checkpoints", "2")
    for _ in range(2):  # the second time it is finished
        subprocess.run([sys.executable, *launch, *arguments], check=True, timeout=300)
    assert len((tmp_path / "out/generated_predictions.txt").read_text("utf-8").splitlines()) == 2 * SIZES["test"]
    assert read_results(tmp_path / "out")["evaluations"][-1]["step"] == 40


# --- choices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "state"), [((1.0, 3.0, 2.0, 4.0), "mean of steps 4, 6"), ((1.0, 3.0, 2.0, 3.0), "step 4")]
)
def test_the_mean_of_the_last_checkpoints_is_taken_where_it_is_better(
    scores: tuple[float, ...], state: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = iter(scores)
    monkeypatch.setattr(TranslationTrainer, "validate", lambda trainer: {"sacrebleu": next(values)})
    more = ["--max_steps", "6", "--validation_file", *pairs(world, "dev", "el"), "--average_checkpoints", "2"]
    more += [
        f"--{name}_{what}={value}" for name in ("eval", "save") for what, value in (("strategy", "steps"), ("steps", 2))
    ]
    results = main(short(world, tmp_path, *more))
    assert results["chosen"]["state"].startswith(state) and next(values, None) is None
    found = weights_of(tmp_path / "model")
    four, six = (weights_of(tmp_path / f"checkpoint-{step}") for step in (4, 6))
    name = "decoder.encoder.layer.0.output.dense.weight"
    if state.startswith("mean"):
        assert found[name].allclose((four[name] + six[name]) / 2) and not found[name].equal(four[name])
        assert results["chosen"]["validation"] == 4.0
    else:
        assert all(found[name].equal(four[name]) for name in found)
        assert results["chosen"]["validation"] == results["chosen"]["validation_of_mean"] == 3.0  # not better


def test_without_validation_the_mean_is_taken_as_it_is(world: Path, tmp_path: Path) -> None:
    more = ["--save_strategy", "steps", "--save_steps", "1", "--average_checkpoints", "3"]
    assert main(short(world, tmp_path, *more))["chosen"]["state"] == "mean of steps 2, 3, 4"


def test_a_random_encoder_has_the_same_sizes_and_other_weights(world: Path, tmp_path: Path) -> None:
    main(short(world, tmp_path / "random", "--random_encoder", "true"))
    main(short(world, tmp_path / "trained"))
    random, trained = (weights_of(tmp_path / name / "model") for name in ("random", "trained"))
    assert {name: value.shape for name, value in random.items()} == {
        name: value.shape for name, value in trained.items()
    }
    words = "roberta.embeddings.word_embeddings.weight"
    assert trained[words].equal(weights_of(world / "encoder")[words]) and not random[words].equal(trained[words])


def test_a_transformer_from_a_configuration_and_a_tokenizer_alone(world: Path, tmp_path: Path) -> None:
    """The recipes of recipes/translation/transformer: no weights are read, sizes are given, all weights are trained."""
    alone = tmp_path / "alone"
    shutil.copytree(world / "encoder", alone, ignore=shutil.ignore_patterns("*.safetensors"))
    sizes = {
        "num_hidden_layers": 3,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_attention_heads": 2,
        "hidden_act": "relu",
    }
    baseline = ["--random_encoder", "true", "--freeze_encoder", "false", "--cls_bias", "none"]
    more = [*baseline, "--encoder_config", json.dumps(sizes), "--model_name_or_path", str(alone)]
    main(short(world, tmp_path / "run", *more))
    config = json.loads((tmp_path / "run/model/config.json").read_text("utf-8"))
    assert {name: config[name] for name in sizes} == sizes and config["decoder_layers"] == 1
    weights = weights_of(tmp_path / "run/model")
    assert weights["roberta.encoder.layer.2.intermediate.dense.weight"].shape == (40, 24)
    with pytest.raises(BadInput, match="encoder_config gives a random encoder its sizes; add --random_encoder true"):
        main(short(world, tmp_path / "other", "--encoder_config", json.dumps(sizes)))
    with pytest.raises(BadInput, match="alone"):
        main(short(world, tmp_path / "other", "--model_name_or_path", str(alone)))


@pytest.mark.parametrize(("asked", "size"), [("off", None), ("36", 36)])
def test_a_vocabulary_is_as_large_as_asked(asked: str, size: int | None, world: Path, tmp_path: Path) -> None:
    results = main(short(world, tmp_path, "--trim_target_vocab", asked))
    assert results["settings"]["config"]["decoder_vocab_size"] == size
    words = results["target_vocabulary"]
    assert words["size"] == (size or HictlConfig.from_pretrained(world / "encoder").vocab_size)
    assert (words["unknown_tokens"]["el"] > 0) == (asked == "36")


def test_choices_reach_the_model(world: Path, tmp_path: Path) -> None:
    more = ["--cls_bias", "cosine", "--cls_bias_scale", "fixed", "--config_overrides", '{"hidden_dropout_prob": 0.3}']
    config = main(short(world, tmp_path, *more, "--freeze_encoder", "false"))["settings"]["config"]
    assert (config["cls_bias"], config["cls_bias_scale"], config["hidden_dropout_prob"]) == ("cosine", "fixed", 0.3)
    before, after = weights_of(world / "encoder"), weights_of(tmp_path / "model")
    assert not all(after[name].equal(before[name]) for name in before if name in after)


def test_a_large_encoder_gets_the_layers_of_the_paper() -> None:
    given = ["--model_name_or_path", "x", "--train_file", "y", "--source_lang", "de", "--target_lang", "en"]
    large, base = HictlConfig(num_hidden_layers=24), HictlConfig(num_hidden_layers=12)
    assert new_decoder(parse_translation_arguments(given), large) == {"decoder_layers": 6}
    assert new_decoder(parse_translation_arguments(given), base) == {} and base.decoder_layers == 4
    assert new_decoder(parse_translation_arguments([*given, "--decoder_layers", "3"]), large) == {"decoder_layers": 3}


# --- odd and broken input ---------------------------------------------------------------------------------------------


def test_odd_rows_are_counted_and_test_lines_stay_in_their_places(world: Path, tmp_path: Path) -> None:
    text, greek = ("ba ko", "ba ko".translate(SCRIPTS["el"]))
    long = " ".join(SYLLABLES * 5)
    rows = [{"en": text, "el": greek}] * 30 + [
        {"en": "", "el": greek},
        {"en": text, "el": " "},
        {"en": long, "el": greek},
    ]
    rows += [{"en": text, "fr": "ba"}, {"text": text, "lang": "en"}, {"en": text, "el": 3}, {"en": text, "E-L": greek}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "{\n", "utf-8")
    tests = [(text, greek), ("", ""), (long, greek), ("  ", greek), (text, greek)]
    for side, language in enumerate(("en", "el")):
        (tmp_path / f"t.{language}").write_text("".join(f"{row[side]}\n" for row in tests), "utf-8")
    more = ["--train_file", str(tmp_path / "train.jsonl"), "--test_file", f"{tmp_path}/t.{{en,el}}"]
    results = main(short(world, tmp_path / "out", *more))
    assert results["rows"]["train"] == {"en-el": 30}
    assert results["skipped"] == {"broken": 3, "empty": 2, "too long": 1, "other language": 1, "untranslated": 1}
    assert len(results["messages"]) == 4 and "train.jsonl:36: has 3 as its el text" in results["messages"][0]
    assert results["messages"][3].startswith("3 of the 5 pairs of test are in train, too")
    assert results["cut_sources"] == {"validation": 0, "test": 1} and results["empty_lines"] == {
        "source": 2,
        "reference": 1,
    }
    lines = (tmp_path / "out/generated_predictions.txt").read_text("utf-8").split("\n")
    assert len(lines) == 6 and lines[1] == lines[3] == lines[5] == "" and lines[0] == lines[4] != ""
    with pytest.raises(BadInput, match=r"train.jsonl:36: has 3 as its el text"):
        main(short(world, tmp_path / "strict", *more, "--strict", "true"))


def test_prepared_data_is_named_in_the_signature_and_refused_when_it_has_changed(
    world: Path, first: Path, tmp_path: Path
) -> None:
    for end in ("en", "el"):
        shutil.copy(world / f"test.{end}", tmp_path / f"test.{end}")
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tmp_path.iterdir()}
    record = {"recipe": "made-up", "sha256": digests, "other_counts": ["test has 30 lines"], "romanian": "keep"}
    (tmp_path / "preparation.json").write_text(json.dumps(record), "utf-8")
    tests = [f"{tmp_path}/test.{{en,el}}", *pairs(world, "test", "ru")]
    arguments = [
        "--model_name_or_path",
        str(first / "model"),
        "--test_file",
        *tests,
        *TWO_TARGETS,
        *QUIET,
        "--output_dir",
    ]
    scores = main([*arguments, str(tmp_path / "out")])["test"]
    signature = scores["en-el"]["sacrebleu"]["signature"]
    assert "data:made-up test " in signature and "override:test has 30 lines" in signature
    assert "data:" not in scores["en-ru"]["sacrebleu"]["signature"]
    (tmp_path / "test.el").write_text((tmp_path / "test.el").read_text("utf-8").replace("α", "ω"), "utf-8")
    with pytest.raises(BadInput, match="test.el: is not .*preparation.json"):
        main([*arguments, str(tmp_path / "again")])


def replaced(arguments: list[str], **changes: str | None) -> list[str]:
    """Other values of some flags."""
    for name, value in changes.items():
        at = next(at for at, given in enumerate(arguments) if given.split("=")[0] == f"--{name}")
        end = at + 1 if "=" in arguments[at] else at + 2
        arguments = arguments[:at] + ([] if value is None else [f"--{name}={value}"]) + arguments[end:]
    return arguments


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_name_or_path": "nowhere"}, "--model_name_or_path nowhere: neither an encoder that HiCTL trains"),
        ({"model_name_or_path": "{tmp}"}, "neither an encoder that HiCTL trains, nor a translation model"),
        ({"model_name_or_path": "{tmp}/roberta"}, "nor a translation .* is a model of type 'roberta'; HiCTL's classes"),
        ({"model_name_or_path": "{tmp}/bare"}, "bare: holds no tokenizer that loads"),
        ({"model_name_or_path": "{tmp}/list"}, "list: neither an encoder that HiCTL trains, nor a translation model"),
        ({"model_name_or_path": "{tmp}/small"}, r"its tokenizer has \d+ ids, its model 20; they do"),
        ({"model_name_or_path": None}, "there is no model; give --model_name_or_path: an encoder"),
        ({"train_file": None}, "encoder has no decoder, and a new one has to be trained: give --train_file"),
        ({"train_file": "nowhere.jsonl"}, "nowhere.jsonl: does not exist"),
        ({"test_file": "nowhere.jsonl"}, "nowhere.jsonl: does not exist"),
        ({"source_lang": "fr"}, r"no row has fr as its source, .*, here en-el \(30\)"),
        ({"target_lang": "en"}, "two that differ, such as --source_lang de"),
        ({"max_tokens": "3"}, r"no pair is left: 0 have a side without a token, 500 one of more than 3 tokens"),
        ({"decoder_layers": "0"}, "decoder_layers is 0; it must be at least 1"),
        ({"num_beams": "0"}, "num_beams is 0; allowed is 1 or more"),
        ({"+per_device_train_batch_size": "4"}, "size is 4, which has no effect here: batches have as many tokens as"),
        ({"+save_only_model": "true"}, "save_only_model is True, which has no effect here: .* is continued exactly"),
        ({"+resume_from_checkpoint": "false"}, "_checkpoint is 'false'; a run goes on by itself .* --output_dir"),
        ({"max_steps": "-1", "+num_train_epochs": "0"}, "num_train_epochs is 0; allowed is more than 0"),
        ({"+weight_decay": "-1"}, "weight_decay is -1.0; allowed is 0 or more"),
        ({"+metric_for_best_model": "loss"}, "metric_for_best_model is loss, which has no effect here: --metric"),
        ({"+average_checkpoints": "2"}, "average_checkpoints needs checkpoints; give --save_strategy steps"),
        ({"+validation_file": "x"}, "save_strategy is no and eval_strategy epoch: .*--save_strategy epoch, or --ev"),
        (
            {"save_strategy": "epoch", "+eval_strategy": "steps", "+validation_file": "x"},
            "save_strategy is epoch and eval_strategy steps: .*--save_strategy steps, or --eval_strategy no",
        ),
        ({"+cls_bias": "sine"}, "cls_bias is 'sine'; it must be one of 'none', 'dot', 'cosine'"),
        ({"+step": "3"}, "step is 3; allowed are 1, 2"),
        ({"+metric": "bleu"}, "metric is 'bleu'; allowed are sacrebleu, multi-bleu, chrf, comet"),
        ({"+trim_target_vocab": "some"}, "trim_target_vocab is 'some'; allowed are auto, off, or a number"),
        ({"+trim_target_vocab": "10"}, r"trim_target_vocab\): the special tokens and the characters of GREEK are"),
        ({"+cleaning": '{"nothing": 1}'}, "cleaning has no field nothing"),
        ({"+max_length_b": "0"}, "max_length_a, max_length_b and max_length are 1.2, 0 and 200; allowed are 0, 1"),
        ({"target_lang": "cn"}, "the language is 'cn'; allowed are codes of ISO 639, such as de or pt-BR. Write zh"),
        ({"+multi_bleu": '{"language": "fr"}'}, "multi_bleu has no field language; it has aggressive, lowercase"),
        ({"+length_penalty": "nan"}, "length_penalty is nan; allowed are numbers from -50"),
        ({"+label_smoothing_factor": "1"}, "label_smoothing_factor is 1.0; allowed is 0 to below 1"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_clear_error(changes: dict[str, str], message: str, world: Path, tmp_path: Path) -> None:
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    RobertaModel(RobertaConfig(vocab_size=20, **small)).save_pretrained(tmp_path / "roberta")
    HictlModel(HictlConfig(vocab_size=20, **small)).save_pretrained(tmp_path / "bare")
    HictlModel(HictlConfig(vocab_size=20, **small)).save_pretrained(tmp_path / "small")
    AutoTokenizer.from_pretrained(world / "encoder").save_pretrained(tmp_path / "small")
    (tmp_path / "list").mkdir()
    (tmp_path / "list/config.json").write_text("[]", "utf-8")
    named = {
        name: value and value.format(tmp=tmp_path) if "{tmp}" in str(value) else value
        for name, value in changes.items()
    }
    added = [f"--{name[1:]}={value}" for name, value in named.items() if name.startswith("+")]
    arguments = replaced(short(world, tmp_path / "out"), **{n: v for n, v in named.items() if not n.startswith("+")})
    with pytest.raises(BadInput, match=message):
        main([*arguments, *added])
    assert not (tmp_path / "out").exists()  # a wrong argument does not occupy the folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_name_or_path": "{world}/unnamed"}, "unnamed: names no target language; .* train one from an encoder"),
        ({"model_name_or_path": "nowhere"}, "nowhere: neither an encoder that HiCTL trains, nor a translation model"),
        ({"+tokenizer_name": "nowhere"}, "nowhere: holds no tokenizer that loads"),
        ({"+model_revision": "v1"}, "model_revision is v1, and model_name_or_path .*model a folder; allowed is"),
        ({"+predict_with_generate": "false"}, "predict_with_generate is false, but scores are those of translations"),
        ({"+do_eval": "true"}, "do_eval is true, but there is no --validation_file; give one"),
        ({"+do_eval": "true", "+validation_file": "x"}, "do_eval chooses the best state of a training; add --do_tra"),
        ({"target_lang": "en"}, "--target_lang en: the model translates into el, ru"),
        (
            {"+decoder_layers": "2"},
            "decoder_layers is decided when a decoder is made, and .*model has one: leave it out",
        ),
        (
            {"train_file": None, "+validation_file": "x"},
            "--validation_file chooses among the states of a training; give --train_file",
        ),
        (
            {"train_file": "{world}/swapped.jsonl"},
            r"target vocabulary of \d+ ids lacks \d+% of the el tokens; allowed are 10%",
        ),
    ],
)
def test_wrong_input_of_step_two_is_one_clear_error(
    changes: dict[str, str], message: str, world: Path, first: Path, tmp_path: Path
) -> None:
    english = (world / "train.en").read_text("utf-8").splitlines()[:50]
    lines = "".join(json.dumps({"en": text, "el": text}) + "\n" for text in english)
    unnamed = HictlForConditionalGeneration.from_encoder(str(world / "encoder"), decoder_layers=1)
    unnamed.save_pretrained(world / "unnamed")
    (world / "swapped.jsonl").write_text(lines, "utf-8")  # a vocabulary of Greek and Cyrillic cannot say it
    named = {name: value and value.format(world=world) for name, value in changes.items()}
    added = [f"--{name[1:]}={value}" for name, value in named.items() if name.startswith("+")]
    arguments = step_two(world, first / "model", tmp_path / "out")
    if named.get("target_lang") == "en":
        named["source_lang"] = "el"
    arguments = replaced(arguments, **{n: v for n, v in named.items() if not n.startswith("+")})
    with pytest.raises(BadInput, match=message):
        main([*arguments, *added])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("language", "flags", "message"),
    [
        (
            "ja",
            [],
            r'sacreBLEU has no tokenizer for ja .*: pip install "sacrebleu\[ja\]", .*leave en-ja out of --test_file',
        ),
        (
            "el",
            ["--metric=multi-bleu", '--multi_bleu={"moses_dir": "/no"}'],
            "^/no: .* Correct moses_dir in --multi_bleu",
        ),
        ("el", ["--metric=comet"], "unbabel-comet cannot be imported .* Choose another --metric, .* in a separate"),
    ],
)
def test_a_metric_that_cannot_be_computed_is_missed_before_training(
    language: str, flags: list[str], message: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("MeCab", "comet"):
        monkeypatch.setitem(sys.modules, module, None)
    for split in ("train", "test"):
        shutil.copy(world / f"{split}.el", world / f"{split}.ja")
    data = {f"{split}_file": f"{world}/{split}.{{en,{language}}}" for split in ("train", "test")}
    arguments = replaced(short(world, tmp_path / "out"), target_lang=language, **data)
    with pytest.raises(BadInput, match=message):
        main([*arguments, *flags])
    assert not (tmp_path / "out").exists()
    untested = replaced(arguments, test_file=None) + ["--max_steps=1"]
    if language == "ja":  # neither tested nor validated: nothing is to be computed
        assert main([*untested, f"--validation_file={data['test_file']}", "--eval_strategy=no"])["test"] == {}


def test_the_command_ends_with_one_line_and_no_traceback(world: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), *replaced(short(world, tmp_path / "out"), model_name_or_path="nowhere")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith(
        "error: --model_name_or_path nowhere: neither an encoder that HiCTL trains"
    )
    assert "Traceback" not in done.stderr


def test_a_folder_with_other_results_is_left_alone(world: Path, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"pairs": 1}', "utf-8")  # as `hictl mine` leaves them
    with pytest.raises(BadInput, match="holds the files of another kind of run; choose another --output_dir"):
        main(short(world, tmp_path))


def test_a_folder_with_other_checkpoints_is_left_alone(world: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoint-5").mkdir()
    with pytest.raises(BadInput, match="holds the files of another kind of run; choose another --output_dir"):
        main(short(world, tmp_path))


def test_a_recipe_is_a_file_of_settings_that_flags_change(world: Path, tmp_path: Path) -> None:
    recipe = {
        "model_name_or_path": str(world / "encoder"),
        "train_file": pairs(world, "train", "el"),
        "source_lang": "en",
    }
    recipe |= {"target_lang": ["el"], "num_beams": 4, "length_penalty": 0.6, "trim_target_vocab": 40, "step": 2}
    recipe |= {"multi_bleu": {"aggressive": True}}
    (tmp_path / "recipe.json").write_text(json.dumps(recipe), "utf-8")
    args = parse_translation_arguments([str(tmp_path / "recipe.json"), "--num_beams", "3", "--max_length_a", "2"])
    assert args.beam.limits(torch.tensor([7])).tolist() == [2 * 7 + 10]
    assert (args.beam.num_beams, args.beam.length_penalty, args.source_lang) == (3, 0.6, ["en"])
    assert (args.trim_target_vocab, args.learning_rate, args.freeze_encoder) == ("40", 2e-5, False)
    assert args.multi_bleu == {"aggressive": True} and [str(each) for each in args.directions] == ["en-el"]
    (tmp_path / "recipe.json").write_text(json.dumps({**recipe, "beam": 3}), "utf-8")
    with pytest.raises(
        BadInput, match="unknown settings: beam; beam is called num_beams here; --help lists all settings"
    ):
        parse_translation_arguments([str(tmp_path / "recipe.json")])


def test_languages_are_written_as_rows_have_them_and_each_once() -> None:
    given = ["--model_name_or_path", "x", "--train_file", "y", "--source_lang", "en", "--target_lang"]
    assert list(map(str, parse_translation_arguments([*given, "pt_BR", "de"]).directions)) == ["en-pt-BR", "en-de"]
    with pytest.raises(BadInput, match="target_lang is pt-BR pt-BR; allowed is each language once"):
        parse_translation_arguments([*given, "pt_BR", "pt-BR"])


def test_checkpoints_are_saved_when_the_model_is_validated() -> None:
    given = ["--model_name_or_path", "x", "--train_file", "y", "--source_lang", "de", "--target_lang", "en"]
    by_steps = ["--eval_strategy", "steps", "--eval_steps", "80"]

    def saving(*more: str) -> tuple[Any, ...]:
        args = parse_translation_arguments([*given, *more])
        return str(args.save_strategy.value), args.save_steps, args.load_best_model_at_end

    assert saving() == ("epoch", 500, False) and saving("--validation_file", "z") == ("epoch", 500, True)
    assert saving("--validation_file", "z", *by_steps) == ("steps", 80, True)
    assert saving("--validation_file", "z", *by_steps[:2], "--logging_steps", "30") == (
        "steps",
        30,
        True,
    )  # HF's eval_steps
    assert saving("--validation_file", "z", *by_steps, "--save_steps", "160") == ("steps", 160, True)
    assert saving("--validation_file", "z", "--eval_strategy", "no") == ("epoch", 500, False)
    assert saving("--save_strategy", "no") == ("no", 500, False)  # --eval_strategy has its default


@pytest.mark.parametrize(("limit", "kept"), [(None, 6), ("2", 6), ("5", 6), ("9", 9), ("0", 0)])
def test_as_many_checkpoints_are_kept_as_a_mean_needs(limit: str | None, kept: int) -> None:
    given = ["--model_name_or_path", "x", "--train_file", "y", "--source_lang", "de", "--target_lang", "en"]
    given += ["--save_total_limit", limit] if limit else []
    assert parse_translation_arguments([*given, "--average_checkpoints", "5"]).save_total_limit == kept
    assert parse_translation_arguments(given).save_total_limit == (int(limit) if limit else 2)  # without a mean


def test_the_learning_rate_rises_and_falls_as_worked_by_hand(world: Path, tmp_path: Path) -> None:
    """10 steps, 2 of them to rise to 5e-4, then 5e-4 / sqrt(step / 2)."""
    results = main(short(world, tmp_path, "--max_steps", "10", "--warmup_steps", "0.2", "--logging_steps", "1"))
    rates = [entry["learning_rate"] for entry in results["history"]]
    expected = [0, 2.5e-4, *(5e-4 / (step / 2) ** 0.5 for step in range(2, 10))]
    assert rates == pytest.approx(expected) and torch.get_num_threads() == 1
