"""The script from files to report: what it leaves behind, from where it starts, how it goes on, what it refuses."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from parsers import parse_arguments
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    ElectraConfig,
    ElectraModel,
    PreTrainedTokenizerFast,
    XLMRobertaForMaskedLM,
    pipeline,
)

from hictl_hf import HictlForMaskedLM
from hictl_hf.embedding import embed_sentences, load_encoder
from hictl_hf.embedding.sentence_transformers_files import write_sentence_transformers_files
from hictl_hf.errors import BadInput
from hictl_hf.pretraining.run import pretrain
from hictl_hf.training.checkpoints import newest_first, verify_checkpoint
from run_pretraining import main

MODEL = {
    "vocab_size": 160, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 66, "type_vocab_size": 1, "word_negatives": 16, "initializer_range": 0.1,
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, sentences: dict[str, list[str]]) -> dict[str, str]:
    """Pairs of English with three languages, and Swahili text."""
    folder = tmp_path_factory.mktemp("corpus")
    pairs = [
        {"en": en, lang: text} for lang in ("de", "sw", "zh") for en, text in zip(sentences["en"], sentences[lang])
    ]
    (folder / "pairs.jsonl").write_text("\n".join(json.dumps(pair) for pair in pairs), encoding="utf-8")
    (folder / "text.txt").write_text("\n".join(f"{text} sana" for text in sentences["sw"]), encoding="utf-8")
    return {"pairs": str(folder / "pairs.jsonl"), "text": f"sw:{folder / 'text.txt'}"}


def flags(files: dict[str, str], folder: Path, *changes: str, model: dict[str, Any] | None = None) -> list[str]:
    settings = {
        "train_file": [*files.values()],
        "config_overrides": json.dumps(MODEL if model is None else model),
        "output_dir": str(folder), "held_out_sentences": 8, "max_seq_length": 60, "max_steps": 6, "logging_steps": 2,
        "per_device_train_batch_size": 8, "learning_rate": 0.003, "warmup_steps": 1, "eval_strategy": "steps",
        "eval_steps": 3, "save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "seed": 5,
    }  # fmt: skip
    argv: list[str] = []
    for name, value in settings.items():
        argv += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return argv + list(changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, files: dict[str, str]) -> tuple[Path, dict[str, Any]]:
    """One finished run that the tests below look at."""
    folder = tmp_path_factory.mktemp("run") / "out"
    return folder, main(flags(files, folder))


def test_a_run_leaves_checkpoint_encoder_results_and_report(run: tuple[Path, dict[str, Any]]) -> None:
    folder, results = run
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    wanted = [
        "results.json",
        "report.html",
        "checkpoint/README.md",
        "checkpoint/model.safetensors",
        "encoder/config.json",
    ]
    assert left.issuperset(wanted)
    assert not any("unfinished" in name or name.endswith(".bin") for name in left)
    assert json.loads((folder / "results.json").read_text("utf-8"))["retrieval"] == results["retrieval"]
    page = (folder / "report.html").read_text("utf-8")
    assert page.count("data:image/png;base64") == 4  # retrieval, losses, t-SNE, layers
    assert all(language in page for language in ("de", "sw", "zh"))


def test_results_hold_the_protocol_and_consistent_means(run: tuple[Path, dict[str, Any]]) -> None:
    _, results = run
    scores = results["retrieval"]["per_language"]
    assert set(scores) == {"de", "sw", "zh"} and {row["sentences"] for row in scores.values()} == {8}
    for name in ("untrained", "hictl"):
        assert results["retrieval"][name] == pytest.approx(sum(row[name] for row in scores.values()) / 3)
    assert results["pairs"] == 3 * (48 - 16) and results["texts"] == 48 and results["languages"] == 4
    training = results["settings"]["training"]
    assert results["examples"] == 6 * training["per_device_train_batch_size"] * training["gradient_accumulation_steps"]
    assert {row["step"] for row in results["history"]} == {2, 4, 6}
    assert {row["step"] for row in results["evaluations"]} == {3, 6}
    assert set(results["history"][0]) >= {"lm_loss", "sentence_loss", "word_loss", "p_avg", "hard_negative_lambda"}
    assert results["settings"]["training"]["model_name_or_path"] is None and results["versions"]["hictl_hf"]
    protocol = results["retrieval"]["protocol"]
    assert protocol["selected_on"] == "dev" and set(protocol["hictl"]) == {"mode", "layer"}


def test_the_checkpoint_serves_auto_classes_and_pipelines(run: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = run
    tokenizer = AutoTokenizer.from_pretrained(folder / "checkpoint")
    tokens = tokenizer("the cat sees the house", return_tensors="pt")
    hidden = AutoModel.from_pretrained(folder / "checkpoint").eval()(**tokens).last_hidden_state
    plain = AutoModel.from_pretrained(folder / "encoder").eval()
    assert type(plain).__name__ == "XLMRobertaModel"
    torch.testing.assert_close(plain(**tokens).last_hidden_state, hidden, rtol=0, atol=1e-6)
    assert isinstance(AutoModelForMaskedLM.from_pretrained(folder / "checkpoint"), HictlForMaskedLM)
    guesses = pipeline("fill-mask", model=str(folder / "checkpoint"))("the <mask> sees the house")
    assert len(guesses) == 5 and sum(guess["score"] for guess in guesses) <= 1


WITHOUT_THE_PACKAGE = """
import sys, torch
from transformers import AutoTokenizer, AutoModel, pipeline
folder = sys.argv[1]
sys.modules["hictl_hf"] = None  # as if it were not installed
tokenizer = AutoTokenizer.from_pretrained(folder + "/checkpoint", trust_remote_code=True)
tokens = tokenizer("the cat sees the house", return_tensors="pt")
hidden = AutoModel.from_pretrained(folder + "/checkpoint", trust_remote_code=True).eval()(**tokens).last_hidden_state
plain = AutoModel.from_pretrained(folder + "/encoder").eval()(**tokens).last_hidden_state
torch.testing.assert_close(plain, hidden)
print(pipeline("fill-mask", model=folder + "/checkpoint", trust_remote_code=True)("the <mask> sees")[0]["token_str"])
"""


def test_the_checkpoint_serves_processes_without_the_package(run: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE, str(run[0])]
    environment = {**os.environ, "HF_HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_same_command_gives_the_same_weights(files: dict[str, str], tmp_path: Path, run: tuple[Path, Any]) -> None:
    main(flags(files, tmp_path / "again"))
    for more in (("--seed", "6"), ("--resume_from_checkpoint", "true")):  # there is no checkpoint to resume from
        with pytest.raises(BadInput, match="again: holds a run that has ended; choose another --output_dir"):
            main(flags(files, tmp_path / "again", *more))
    was, now = (load_file(folder / "checkpoint" / "model.safetensors") for folder in (run[0], tmp_path / "again"))
    assert all(torch.equal(was[name], now[name]) for name in was)
    main(flags(files, tmp_path / "other", "--seed", "6"))
    other = load_file(tmp_path / "other" / "checkpoint" / "model.safetensors")
    assert not torch.equal(was["projection.weight"], other["projection.weight"])


def test_an_interrupted_run_goes_on_and_ends_with_the_same_bits(
    files: dict[str, str], tmp_path: Path, run: tuple[Path, Any], caplog: pytest.LogCaptureFixture
) -> None:
    class Interrupt(Exception):
        pass

    saving = ("--save_strategy", "steps", "--save_steps", "2", "--dataloader_num_workers", "2")
    args = parse_arguments(flags(files, tmp_path / "cut", *saving))
    from hictl_hf.pretraining.trainer import HictlTrainer

    steps = HictlTrainer.finish_step

    def finish_step(self: HictlTrainer, step: dict[str, Any]) -> None:
        steps(self, step)
        if self.state.global_step == 5:
            raise Interrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupt):
        patch.setattr(HictlTrainer, "finish_step", finish_step)
        pretrain(args)
    with pytest.raises(BadInput, match="resume_from_checkpoint true"):
        main(flags(files, tmp_path / "cut", *saving))
    for change in (("--train_file", files["pairs"]), ("--held_out_sentences", "9"), ("--seed", "6")):
        of_other_rows = flags(files, tmp_path / "cut", *saving, "--resume_from_checkpoint", "true", *change)
        with pytest.raises(
            BadInput,
            match=r"hash of the training examples was '\w+' and is '\w+'; give the same .* another --output_dir",
        ):
            main(of_other_rows)
    for change, told in (
        (("--learning_rate", "1e-4"), r"learning_rate was 0\.\d+ and is 0\.0001;"),
        (("--gradient_accumulation_steps", "3"), r"pairs of a step was \d+ and is \d+;"),
    ):
        with pytest.raises(
            BadInput,
            match=rf"checkpoint-4: was begun with other settings, by hictl_hf [\d.]+: {told} give the same",
        ):
            main(flags(files, tmp_path / "cut", *saving, "--resume_from_checkpoint", "true", *change))
    [seconds] = {
        json.loads((folder / "trainer_state.json").read_text("utf-8"))["stateful_callbacks"]["TrainingTime"]["args"][
            "seconds"
        ]
        for folder in newest_first(tmp_path / "cut")[:1]
    }
    results = main(flags(files, tmp_path / "cut", *saving, "--resume_from_checkpoint", "true"))
    assert results["train_seconds"] > seconds > 0  # the time before it was interrupted counts
    assert results["train_cpu_seconds"] > 0
    was, now = (load_file(folder / "checkpoint" / "model.safetensors") for folder in (run[0], tmp_path / "cut"))
    assert all(torch.equal(was[name], now[name]) for name in was)
    assert [row["step"] for row in results["history"]] == [2, 4, 6]
    assert "missing keys" not in caplog.text  # a tied weight is not missing
    longer = flags(files, tmp_path / "cut", *saving, "--resume_from_checkpoint", "true", "--max_steps", "8")
    assert [row["step"] for row in main(longer)["history"]] == [2, 4, 6, 8]


def test_a_run_starts_from_any_xlm_r_checkpoint(files: dict[str, str], tmp_path: Path, run: tuple[Path, Any]) -> None:
    AutoTokenizer.from_pretrained(run[0] / "checkpoint").save_pretrained(tmp_path / "xlm-r")
    config = AutoModel.from_pretrained(run[0] / "encoder").config
    XLMRobertaForMaskedLM(config).save_pretrained(tmp_path / "xlm-r")
    start = flags(
        files, tmp_path / "run", "--model_name_or_path", str(tmp_path / "xlm-r"), model={"sentence_temperature": 0.1}
    )
    results = main(start)
    assert results["before_label"] == "starting checkpoint"
    saved = json.loads((tmp_path / "run" / "checkpoint" / "config.json").read_text("utf-8"))
    assert saved["model_type"] == "hictl" and saved["sentence_temperature"] == 0.1


def test_a_model_of_another_kind_is_refused(files: dict[str, str], tmp_path: Path, run: tuple[Path, Any]) -> None:
    """XLM-R's class would load it, with new weights in place of those that it does not know."""
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    ElectraModel(ElectraConfig(vocab_size=160, **small)).save_pretrained(tmp_path / "electra")
    AutoTokenizer.from_pretrained(run[0] / "checkpoint").save_pretrained(tmp_path / "electra")
    with pytest.raises(BadInput, match="electra: is a model of type 'electra'; allowed are hictl, .*EuroBERT"):
        main(flags(files, tmp_path / "run", "--model_name_or_path", str(tmp_path / "electra"), model={}))


def test_processes_look_for_unused_parameters_only_where_there_are_some(
    files: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = {}
    for weight in (0.0, 1.0):
        settings = {**MODEL, "sentence_weight": weight}
        more = ("--held_out_sentences", "0", "--load_best_model_at_end", "true", "--save_strategy", "steps")
        args = parse_arguments(flags(files, tmp_path / str(weight), *more, "--save_steps", "3", model=settings))
        pretrain(args)
        found[weight] = args.ddp_find_unused_parameters
    assert found == {0.0: True, 1.0: False}
    assert "no pairs are held out: nothing is evaluated, and the last state is kept" in caplog.text


@pytest.mark.parametrize(("name", "was"), [("hard_negative_window", 100), ("projection_size", None)])
def test_what_a_checkpoint_holds_in_a_shape_keeps_it(
    files: dict[str, str], tmp_path: Path, run: tuple[Path, Any], name: str, was: Any
) -> None:
    given = ("--model_name_or_path", str(run[0] / "checkpoint"), "--config_overrides", json.dumps({name: 50}))
    with pytest.raises(BadInput, match=f"{name} is 50, but .*checkpoint was trained with {was}, .* plain encoder"):
        main(flags(files, tmp_path / "run", *given))


def test_held_out_files_leave_the_training_data(
    files: dict[str, str], tmp_path: Path, sentences: dict[str, list[str]]
) -> None:
    held = [{"en": en, "de": de} for en, de in zip(sentences["en"][:32], sentences["de"][:32])]
    (tmp_path / "held.jsonl").write_text("\n".join(map(json.dumps, held)), encoding="utf-8")
    more = ("--validation_file", str(tmp_path / "held.jsonl"), "--held_out_sentences", "12")
    results = main(flags(files, tmp_path / "run", *more))
    assert {name: row["sentences"] for name, row in results["retrieval"]["per_language"].items()} == {"de": 12}
    assert results["pairs"] == 3 * (48 - 32)  # all 32 English texts leave with their translations, 24 are scored
    (tmp_path / "one.jsonl").write_text(json.dumps(held[0]), encoding="utf-8")
    everything = ("--validation_file", files["pairs"], "--held_out_sentences", "99")
    with pytest.raises(BadInput, match="with which all 144 rows of train_file share a text; give other pairs"):
        main(flags({**files, "text": files["pairs"]}, tmp_path / "nothing", *everything))
    with pytest.raises(BadInput, match="one.jsonl, which has no sentence pair to choose by .* give two or more pairs"):
        main(flags(files, tmp_path / "other", "--validation_file", str(tmp_path / "one.jsonl")))


def test_corpora_without_a_common_sentence_are_drawn_without_a_map(
    files: dict[str, str], tmp_path: Path, sentences: dict[str, list[str]]
) -> None:
    for name, places in {"de": range(24), "sw": range(24, 48)}.items():
        rows = [json.dumps({"en": sentences["en"][at], name: sentences[name][at]}) for at in places]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    sources = ("--train_file", str(tmp_path / "de.jsonl"), str(tmp_path / "sw.jsonl"), "--held_out_sentences", "4")
    results = main(flags(files, tmp_path / "run", *sources))
    assert set(results["retrieval"]["per_language"]) == {"de", "sw"}
    assert not (tmp_path / "run" / "pictures" / "tsne.png").exists()


def test_what_is_never_drawn_is_not_told_as_trained_on(files: dict[str, str], tmp_path: Path) -> None:
    short = ("--max_steps", "1", "--held_out_sentences", "0", "--text_share")
    results = [main(flags(files, tmp_path / share, *short, share)) for share in ("0", "1")]
    assert [(each["pairs"] > 0, each["texts"] > 0) for each in results] == [(True, False), (False, True)]


def test_monolingual_text_alone_trains_without_retrieval(files: dict[str, str], tmp_path: Path) -> None:
    results = main(flags({**files, "pairs": files["text"]}, tmp_path / "run"))
    assert "retrieval" not in results and results["texts"] == 48 and results["pairs"] == 0
    assert all(name in results["history"][-1] for name in ("lm_loss", "sentence_loss", "word_loss"))
    assert (tmp_path / "run" / "report.html").exists()


def test_a_stream_trains_and_is_measured_on_held_out_files(
    files: dict[str, str], tmp_path: Path, run: tuple[Path, Any], sentences: dict[str, list[str]]
) -> None:
    held = [{"en": f"{en} now", "de": f"{de} jetzt"} for en, de in zip(sentences["en"], sentences["de"])]
    (tmp_path / "held.jsonl").write_text("\n".join(map(json.dumps, held)), encoding="utf-8")
    tokenizer = str(run[0] / "checkpoint")
    streaming = (
        "--streaming",
        "true",
        "--validation_file",
        str(tmp_path / "held.jsonl"),
        "--tokenizer_name",
        tokenizer,
    )
    results = main(flags(files, tmp_path / "run", *streaming, "--stream_shares", "3", "1"))
    assert results["settings"]["training"]["ignore_data_skip"] is False  # what the user said, not what a stream needs
    assert results["history"][-1]["step"] == 6 and results["retrieval"]["per_language"]["de"]["sentences"] == 8
    assert results["examples"] == 6 * 8 and "language_codes" not in results  # of files it has not looked at
    assert "are counted in the log" in results["corpus"]["messages"][0]


def test_a_stream_of_a_folder_mixes_and_names_the_languages_of_its_files(
    files: dict[str, str], tmp_path: Path, run: tuple[Path, Any], sentences: dict[str, list[str]]
) -> None:
    folder = tmp_path / "train"
    folder.mkdir()
    for language in ("de", "zh"):
        rows = [{"en": en, language: other} for en, other in zip(sentences["en"], sentences[language])]
        (folder / f"{language}.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    held = [{"en": f"{en} now", "sw": f"{sw} sasa"} for en, sw in zip(sentences["en"], sentences["sw"])]
    (tmp_path / "held.jsonl").write_text("\n".join(map(json.dumps, held)), "utf-8")
    streaming = ("--streaming", "true", "--validation_file", str(tmp_path / "held.jsonl"))
    tokenizer = ("--tokenizer_name", str(run[0] / "checkpoint"), "--train_file", str(folder))
    saving = ("--save_strategy", "steps", "--save_steps", "6")
    results = main([*flags(files, tmp_path / "run", *streaming), *tokenizer, *saving])
    assert results["language_codes"] == ["de", "en", "zh"] and results["languages"] == 3
    position = json.loads((tmp_path / "run/checkpoint-6/stream_0.json").read_text("utf-8"))
    assert position["settings"]["files of source 2"] == 1 and position["settings"]["source 2"] == str(folder)
    card = (tmp_path / "run/checkpoint/README.md").read_text("utf-8")
    assert "Trained on 48 examples of a stream in 3 languages for" in card and "| languages | rows |" not in card


@pytest.mark.parametrize("objective", ["lm", "sentence", "word"])
def test_every_objective_can_be_switched_off(files: dict[str, str], tmp_path: Path, objective: str) -> None:
    results = main(flags(files, tmp_path / "run", model={**MODEL, f"{objective}_weight": 0}))
    assert {name for name in results["history"][-1] if name in ("lm_loss", "sentence_loss", "word_loss")} == {
        f"{name}_loss" for name in ("lm", "sentence", "word") if name != objective
    }


PAPER = json.loads((Path(__file__).parents[2] / "recipes/paper-base.json").read_text("utf-8"))


def test_the_papers_settings_train_together(files: dict[str, str], tmp_path: Path) -> None:
    """All that recipes/paper-base.json changes of the defaults but sizes and the optimiser, with λ's gradient."""
    names = ("reordering", "join_reordered", "pair_separators", "load_best_model_at_end")
    changes = [word for name in names for word in (f"--{name}", str(PAPER[name]))]
    model = MODEL | PAPER["config_overrides"] | {"hard_negative_lambda_gradient": True, "word_negatives": 16}
    results = main(flags(files, tmp_path / "run", *changes, model=model))
    losses = [entry[f"{name}_loss"] for entry in results["history"] for name in ("lm", "sentence", "word")]
    assert len(losses) == 9 and all(0 < loss < 10 for loss in losses)
    assert results["history"][-1]["hard_negative_lambda"] < 1
    config = json.loads((tmp_path / "run/checkpoint/config.json").read_text("utf-8"))
    assert config["word_level_input"] == "clean" and config["hard_negative_lambda_gradient"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"join_reordered": "true"}, "join_reordered is true, but word_level_input is 'masked'"),
        ({"pair_separators": "3"}, "pair_separators is 3; allowed are 1 and 2"),
        (
            {"config_overrides": json.dumps(MODEL | {"hard_negative_zeta": 1.5})},
            "hard_negative_zeta is 1.5; it must be above 0",
        ),
    ],
)
def test_settings_beyond_the_papers_are_refused(
    changes: dict[str, str], message: str, files: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=message):
        main(flags(files, tmp_path / "run", *(word for name in changes for word in (f"--{name}", changes[name]))))


def test_the_best_checkpoint_is_kept(files: dict[str, str], tmp_path: Path) -> None:
    keep = ("--save_strategy", "steps", "--save_steps", "3", "--load_best_model_at_end", "true", "--learning_rate", "1")
    main(flags(files, tmp_path / "run", *keep))
    states = [
        json.loads(path.read_text("utf-8")) for path in (tmp_path / "run").glob("checkpoint-*/trainer_state.json")
    ]
    scores = {
        entry["step"]: entry["eval_retrieval"] for entry in states[-1]["log_history"] if "eval_retrieval" in entry
    }
    best = tmp_path / "run" / f"checkpoint-{max(scores, key=lambda step: scores[step])}"
    weights, kept = load_file(best / "model.safetensors"), load_file(tmp_path / "run/checkpoint/model.safetensors")
    assert all(torch.equal(weights[name], kept[name]) for name in weights)


REFUSED = {
    "no data": (("recipes/base.json",), "train_file is empty"),
    "a missing file": (("--train_file", "nowhere.jsonl"), "nowhere.jsonl: does not exist"),
    "no JSON": (("--config_overrides", "{vocab"), "config_overrides is not JSON"),
    "JSON of another kind": (("--config_overrides", "[1]"), "must be a JSON object"),
    "an unknown cleaning": (("--cleaning", '{"max_words": 3}'), "cleaning has no field max_words"),
    "no vocabulary size": (("--config_overrides", "{}"), "needs the size of its vocabulary"),
    "too long inputs": (("--max_seq_length", "99"), "the model reads 64 tokens"),
    "a rate above one": (("--tlm_probability", "15"), "tlm_probability is 15.0; it must be between 0 and 1"),
    "inputs without room": (("--max_seq_length", "5"), "max_seq_length is 5; allowed is 6 or more"),
    "no pairs in a batch": (("--per_device_train_batch_size", "0"), "per_device_train_batch_size is 0; allowed is 1"),
    "another sampler": (("--train_sampling_strategy", "sequential"), "sequential, which has no effect here: languages"),
    "a metric that is not measured": (
        (
            "--eval_strategy",
            "steps",
            "--eval_steps",
            "2",
            "--save_strategy",
            "steps",
            "--save_steps",
            "2",
            "--load_best_model_at_end",
            "true",
            "--metric_for_best_model",
            "loss",
        ),
        "metric_for_best_model is 'loss'; allowed are retrieval, ",
    ),
    "no effect": (("--label_smoothing_factor", "0.5"), "label_smoothing_factor is 0.5, which has no effect here"),
    "another order": (("--data_seed", "7"), "--seed decides the order of examples, too; leave it out"),
    "a secret": (("--hub_token", "hf_secret"), "hub_token was given, which would be stored"),
    "a cleaning of another type": (
        ("--cleaning", '{"max_characters": "9"}'),
        "max_characters is '9'; allowed is a num",
    ),
    "a vocabulary in letters": (
        ("--config_overrides", '{"vocab_size": "abc"}'),
        "vocab_size is 'abc'; allowed is an integer",
    ),
    "an unknown activation": (
        ("--config_overrides", '{"vocab_size": 160, "hidden_act": "gelux"}'),
        "nothing called 'gelux'",
    ),
    "heads that do not fit": (
        ("--config_overrides", '{"vocab_size": 160, "hidden_size": 30, "num_attention_heads": 4}'),
        "config_overrides ",
    ),
    "an unknown reordering": (("--reordering", "chaos"), "must be one of words, subwords, local"),
    "another micro-batch without the cache": (("--auto_find_batch_size", "true"), "add --gradient_cache true"),
    "an endless stream": (("--streaming", "true", "--max_steps", "-1"), "give --max_steps and --validation_file"),
    "an unknown setting of the model": (("--config_overrides", '{"vocab_size": 160, "tau": 1}'), "has no field tau"),
    "a wrong temperature": (
        ("--config_overrides", '{"vocab_size": 160, "word_temperature": 0}'),
        "word_temperature is 0",
    ),
    "a contradiction among HF's flags": (("--load_best_model_at_end", "true"), "save and eval strategy"),
    "held-out files for nothing": (
        ("--validation_file", "x.jsonl", "--held_out_sentences", "0"),
        "held_out_sentences is 0",
    ),
    "fewer than no sentences": (("--held_out_sentences", "-1"), "held_out_sentences is -1"),
    "a rate below zero": (("--learning_rate", "-1"), "learning_rate is -1.0; allowed is 0 or more"),
    "a moment of one": (("--adam_beta2", "1"), "adam_beta2 is 1.0; allowed is 0 or more and below 1"),
    "steps that are no number": (("--logging_steps", "nan"), "logging_steps is nan; allowed is 0 or more"),
    "no step": (("--max_steps", "0"), "allowed is 1 or more, or -1, with which num_train_epochs decides"),
    "a tracker that is not here": (("--report_to", "nonesuch"), "nonesuch, which is not installed; allowed here are"),
    "random words that stay so": (("--freeze_word_embeddings", "true"), "those of a new model are random; give"),
    "similar pairs of a stream": (
        ("--streaming", "true", "--validation_file", "x.jsonl", "--group_by_similarity", "words"),
        "group_by_similarity looks among examples that are read before training",
    ),
    "similar by something else": (
        ("--group_by_similarity", "true"),
        "group_by_similarity is 'true'; it must be one of no, sentences, words",
    ),
    "similar vectors of a new model": (
        ("--group_by_similarity", "sentences"),
        "the start, a new model, is not used for sentence vectors; give words",
    ),
    "a missing recipe": (("recipes/none.json",), "no such file; allowed is a recipe"),
}


def test_a_tokenizer_without_a_token_that_is_needed_is_refused(files: dict[str, str], tmp_path: Path) -> None:
    words = {name: number for number, name in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"))}
    named = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    for left_out in ("", "mask_token"):
        given = {name: token for name, token in named.items() if name != left_out}
        tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **given).save_pretrained(tmp_path / "other")
        message = (
            "has no mask_token to hide words" if left_out else "no token before a text; allowed is one with a first"
        )
        with pytest.raises(BadInput, match=message):
            main(flags(files, tmp_path / "run", "--tokenizer_name", str(tmp_path / "other")))


@pytest.mark.parametrize("case", REFUSED)
def test_bad_settings_give_one_clear_error(files: dict[str, str], tmp_path: Path, case: str) -> None:
    changes, message = REFUSED[case]
    argv = list(changes) if changes[0].startswith("recipes") else flags(files, tmp_path / "run", *changes)
    with pytest.raises(BadInput, match="(?s).*") as refusal:
        main(argv)
    assert message in str(refusal.value)


def test_a_recipe_is_changed_by_flags_and_refuses_unknown_settings(tmp_path: Path) -> None:
    for name, text in {
        "a.json": '{"train_file": ["x"], "learning_rate": 1e-06}',
        "a.yaml": "train_file: [x]\nlearning_rate: 1e-6",
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        args = parse_arguments([str(tmp_path / name), "--max_steps", "7", "--use_cpu", "true"])
        assert (args.learning_rate, args.max_steps, args.train_file) == (1e-6, 7, ["x"])
    (tmp_path / "b.json").write_text('{"learning_rat": 1}', encoding="utf-8")
    with pytest.raises(BadInput, match="unknown settings: learning_rat"):
        parse_arguments([str(tmp_path / "b.json")])


def test_half_precision_is_accepted_wherever_the_training_runs() -> None:
    assert parse_arguments(["--train_file", "pairs.jsonl", "--bf16", "true"]).bf16


def test_a_stream_draws_nothing_of_what_has_no_share(
    files: dict[str, str], tmp_path: Path, run: tuple[Path, Any]
) -> None:
    held_out = tmp_path / "held.jsonl"
    held_out.write_text("\n".join(Path(files["pairs"]).read_text("utf-8").splitlines()[:24]), encoding="utf-8")
    start = str(run[0] / "checkpoint")
    more = "--streaming", "true", "--validation_file", str(held_out), "--model_name_or_path", start
    results = main(flags(files, tmp_path / "run", *more, "--text_share", "0", model={}))
    assert results["history"]


# --- ended by SIGTERM -------------------------------------------------------------------------------------------------

SCRIPT = Path(__file__).parents[2] / "run_pretraining.py"
LONG = ("--max_steps", "20", "--eval_steps", "20", "--save_strategy", "steps", "--save_steps", "2")
STREAM = (
    "--streaming", "true", "--stream_shares", "3", "1", "--stream_buffer", "20", "--dataloader_num_workers", "2",
    "--gradient_accumulation_steps", "2", "--gradient_cache", "true", "--per_device_train_batch_size", "4",
)  # fmt: skip


def run_script(argv: Sequence[str], folder: Path, end: bool = False, launcher: Sequence[str] = ()) -> tuple[int, str]:
    """Exit code and output of the script in a process of its own; it can get SIGTERM after the first checkpoint."""
    command = [sys.executable, *launcher, str(SCRIPT), *argv]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while end and not list(folder.glob("checkpoint-[0-9]*")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    if end:
        process.terminate()
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def test_the_other_processes_wait_until_all_is_saved(
    tmp_path: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr("hictl_hf.pretraining.run.report", lambda *_: done.append("reported"))
    monkeypatch.setattr(Accelerator, "wait_for_everyone", lambda _: done.append("waited"))
    main(flags(files, tmp_path / "out", "--max_steps", "1"))
    assert done[-2:] == ["reported", "waited"]


@pytest.fixture
def stream_flags(run: tuple[Path, Any], sentences: dict[str, list[str]], tmp_path: Path) -> tuple[str, ...]:
    """What a stream needs beside its sources."""
    held = [{"en": f"{en} now", "de": f"{de} jetzt"} for en, de in zip(sentences["en"], sentences["de"])]
    (tmp_path / "held.jsonl").write_text("\n".join(map(json.dumps, held)), encoding="utf-8")
    return (*STREAM, "--validation_file", str(tmp_path / "held.jsonl"), "--tokenizer_name", str(run[0] / "checkpoint"))


def weights_of_run(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoint" / "model.safetensors")


@pytest.mark.parametrize("streaming", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["stream", "map-style"])
def test_sigterm_leaves_a_whole_checkpoint_and_the_run_goes_on_though_that_is_damaged_later(
    streaming: bool,
    files: dict[str, str],
    stream_flags: tuple[str, ...],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hictl_hf.pretraining.run.report", lambda *_: None)  # it takes longer than the training
    changes = (*LONG, *(stream_flags if streaming else ()))
    main(flags(files, tmp_path / "whole", *changes, "--save_strategy", "no"))
    expected, ended = weights_of_run(tmp_path / "whole"), tmp_path / "ended"
    code, output = run_script(flags(files, ended, *changes), ended, end=True)
    newest, older, *_ = newest_first(ended)
    step = int(newest.name.split("-")[1])
    assert code == 143 and 2 < step < 20, output
    assert output.count(f"SIGTERM: saving step {step} and ending") == 1 and "Traceback" not in output
    assert verify_checkpoint(newest) is None and not (ended / "results.json").exists()
    damaged = shutil.copytree(ended, tmp_path / "damaged")
    model = damaged / newest.name / "model.safetensors"
    os.truncate(model, model.stat().st_size // 2)
    for folder in (ended, damaged):
        caplog.clear()
        results = main(flags(files, folder, *changes, "--resume_from_checkpoint", "true"))
        told = [record.getMessage() for record in caplog.records if "not a complete checkpoint" in record.getMessage()]
        assert len(told) == (folder == damaged)
        assert all(f"used instead: {damaged / older.name}" in message for message in told)
        now = weights_of_run(folder)
        assert not [name for name in expected if not expected[name].equal(now[name])]
        assert [row["step"] for row in results["history"]] == list(range(2, 21, 2))


# --- from a sentence encoder ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sentence_encoder(run: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain XLM-R encoder without a language-model head, read at the mean of its last layer, with a prompt."""
    folder = tmp_path_factory.mktemp("start")
    encoder = AutoModel.from_pretrained(run[0] / "encoder", add_pooling_layer=False)
    encoder.config.embedding_pooling, encoder.config.embedding_layer = "mean", None
    encoder.config.embedding_prompt = "the: "
    encoder.save_pretrained(folder)
    AutoTokenizer.from_pretrained(run[0] / "encoder").save_pretrained(folder)
    write_sentence_transformers_files(folder, encoder.config)
    return folder


def test_a_sentence_encoder_is_adapted_at_its_own_vector_and_averaged_with_the_start(
    tmp_path: Path, files: dict[str, str], sentence_encoder: Path
) -> None:
    given = ["--model_name_or_path", str(sentence_encoder), "--guard_languages", "zh", "--keep_start", "auto"]
    results = main(flags(files, tmp_path / "out", *given, "--held_out_sentences", "6", model={}))
    assert results["start"] == {
        "kind": "sentence encoder", "pooling": {"mode": "mean", "layer": 2}, "prompt": "the: "
    }  # fmt: skip
    assert [row["share"] for row in results["interpolation"]["grid"]] == [0, 0.25, 0.5, 0.75, 1]
    assert results["guard"]["per_language"].keys() == {"zh"} and "zh" not in results["retrieval"]["per_language"]
    assert results["interpolation"]["grid"][0]["guard"] <= next(
        row["guard"] for row in results["interpolation"]["grid"] if row["share"] == results["interpolation"]["share"]
    )
    assert results["retrieval"]["protocol"]["hictl"] == {"mode": "mean", "layer": 2}
    assert results["settings"]["training"]["learning_rate"] == 0.003
    assert results["settings"]["config"]["sentence_pooling"] == "mean"
    page = (tmp_path / "out/report.html").read_text("utf-8")
    assert page.count("data:image/png;base64") == 5  # also the guard and the shares; no layers, as one is read
    assert "Guard pairs, not trained on" in (tmp_path / "out/checkpoint/README.md").read_text("utf-8")


def test_half_of_the_start_is_half_of_each_weight(
    tmp_path: Path, files: dict[str, str], sentence_encoder: Path
) -> None:
    given = ["--model_name_or_path", str(sentence_encoder)]
    for name, more in {"whole": [], "half": ["--keep_start", "0.5"], "start": ["--keep_start", "1"]}.items():
        main(flags(files, tmp_path / name, *given, *more, model={}))
    start = load_file(sentence_encoder / "model.safetensors")
    whole, half, kept = (
        load_file(tmp_path / name / "encoder/model.safetensors") for name in ("whole", "half", "start")
    )
    assert whole.keys() == half.keys() == start.keys() | {"pooler.dense.weight", "pooler.dense.bias"}
    for name, weight in start.items():
        torch.testing.assert_close(half[name], (weight + whole[name]) / 2)
        assert torch.equal(kept[name], weight)
    assert any(not torch.equal(whole[name], weight) for name, weight in start.items())


@pytest.mark.parametrize(
    "more", [[], ["--gradient_cache", "true", "--gradient_accumulation_steps", "2", "--gradient_checkpointing", "true"]]
)
def test_frozen_word_embeddings_stay_as_they_are_and_all_other_weights_are_trained(
    more: list[str], files: dict[str, str], tmp_path: Path, run: tuple[Path, dict[str, Any]]
) -> None:
    start = load_file(run[0] / "checkpoint/model.safetensors")
    given = ["--model_name_or_path", str(run[0] / "checkpoint"), "--freeze_word_embeddings", "true"]
    saved = ["--save_strategy", "steps", "--save_steps", "3", "--weight_decay", "0.1"]
    main(flags(files, tmp_path / "out", *given, *more, *saved, model={}))
    trained = load_file(tmp_path / "out/checkpoint/model.safetensors")
    kept = {name for name, weight in trained.items() if torch.equal(weight, start[name])}
    assert kept == {"roberta.embeddings.word_embeddings.weight"}
    shutil.rmtree(tmp_path / "out/checkpoint")
    with pytest.raises(BadInput, match="freeze_word_embeddings was True and is None"):
        main(flags(files, tmp_path / "out", *given[:2], *more, *saved, "--resume_from_checkpoint",
                   str(tmp_path / "out/checkpoint-3"), model={}))  # fmt: skip
    (tmp_path / "out/results.json").unlink()
    shutil.rmtree(tmp_path / "out/checkpoint-6")
    main(flags(files, tmp_path / "out", *given, *more, *saved, "--resume_from_checkpoint", "true", model={}))
    again = load_file(tmp_path / "out/checkpoint/model.safetensors")
    assert all(torch.equal(again[name], weight) for name, weight in trained.items())


@pytest.mark.parametrize("by", ["sentences", "words"])
def test_batches_of_similar_pairs_are_the_same_ones_in_a_resumed_run(
    by: str, files: dict[str, str], tmp_path: Path, sentence_encoder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = ["--model_name_or_path", str(sentence_encoder), "--save_strategy", "steps", "--save_steps", "3"]
    grouped = [*given, "--group_by_similarity", by]
    main(flags(files, tmp_path / "random", *given, model={}))
    main(flags(files, tmp_path / "out", *grouped, model={}))
    random, trained = (load_file(tmp_path / name / "encoder/model.safetensors") for name in ("random", "out"))
    assert any(not torch.equal(random[name], weight) for name, weight in trained.items())
    shutil.rmtree(tmp_path / "out/encoder")
    shutil.rmtree(tmp_path / "out/checkpoint-6")
    (tmp_path / "out/results.json").unlink()
    with pytest.raises(BadInput, match=f"group_by_similarity was '{by}' and is None"):
        main(flags(files, tmp_path / "out", *given, "--resume_from_checkpoint", "true", model={}))
    main(flags(files, tmp_path / "out", *grouped, "--resume_from_checkpoint", "true", model={}))
    again = load_file(tmp_path / "out/encoder/model.safetensors")
    assert all(torch.equal(again[name], weight) for name, weight in trained.items())
    assert "grouped anew" not in caplog.text
    if by == "words":
        longer = ["--resume_from_checkpoint", "true", "--max_steps", "7"]
        main(flags(files, tmp_path / "out", *grouped, *longer, model={}))
        assert "checkpoint-6 is of a run of 6 steps, this one has 7" in caplog.text and "grouped anew" in caplog.text


@pytest.mark.slow
def test_runs_are_the_same_whatever_the_hash_seed_of_python(
    tmp_path: Path, sentences: dict[str, list[str]], sentence_encoder: Path
) -> None:
    """Sets of texts have another order in each process; of two languages none is more common than the other."""
    table = zip(["en", *sentences["en"]], ["de", *sentences["de"]])
    (tmp_path / "pairs.tsv").write_text("\n".join(map("\t".join, table)), encoding="utf-8")
    two = {"pairs": str(tmp_path / "pairs.tsv")}
    given, found = ["--model_name_or_path", str(sentence_encoder), "--group_by_similarity", "sentences"], []
    for seed in ("0", "1"):
        arguments = flags(two, tmp_path / seed, *given, model={"hard_negatives": True})
        command = [sys.executable, "-m", "hictl_hf", "pretrain", *arguments]
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, timeout=300)
        results = json.loads((tmp_path / seed / "results.json").read_text("utf-8"))
        weights = (tmp_path / seed / "checkpoint/model.safetensors").read_bytes()
        found.append((weights, results["retrieval"]["per_language"], results["history"][-1]["loss"]))
    assert found[0] == found[1]


@pytest.mark.parametrize("keep_start", ["0", "1"])
def test_a_dense_layer_with_bias_and_tanh_such_as_that_of_labse_is_trained_and_kept(
    tmp_path: Path, files: dict[str, str], sentence_encoder: Path, sentences: dict[str, list[str]], keep_start: str
) -> None:
    shutil.copytree(sentence_encoder, start := tmp_path / "start")
    config = AutoModel.from_pretrained(start).config
    config.update({"embedding_pooling": "projection", "projection_activation": "tanh"})
    dense = torch.nn.Linear(config.hidden_size, 20)
    torch.nn.init.normal_(dense.bias, generator=torch.Generator().manual_seed(1))
    write_sentence_transformers_files(start, config, dense)
    given = ["--model_name_or_path", str(start), "--keep_start", keep_start]
    for field, value in (("projection_size", 21), ("projection_bias", False), ("projection_activation", "linear")):
        with pytest.raises(BadInput, match=rf"config_overrides: {field} is {value}, but .* has .*; leave it out"):
            main(flags(files, tmp_path / "out", *given, model={field: value}))
    results = main(flags(files, tmp_path / "out", *given, model={}))
    assert results["settings"]["config"]["projection_activation"] == "tanh"
    assert results["start"]["pooling"] == {"mode": "projection", "layer": 2}
    before = embed_sentences(*load_encoder(start), sentences["de"])
    for name in ("checkpoint", "encoder"):
        folder = tmp_path / "out" / name
        trained = load_file(folder / "2_Dense/model.safetensors")
        assert torch.equal(trained["linear.bias"], dense.bias) == (keep_start == "1")
        vectors = embed_sentences(*load_encoder(folder), sentences["de"])
        assert np.allclose(vectors, before, atol=1e-6) == (keep_start == "1")
        library = pytest.importorskip("sentence_transformers")
        reader = library.SentenceTransformer(str(folder), device="cpu", trust_remote_code=name == "checkpoint")
        np.testing.assert_allclose(reader.encode(sentences["de"]), vectors, rtol=0, atol=1e-5)


def test_an_adapted_encoder_is_read_with_its_prompt_everywhere(
    tmp_path: Path, files: dict[str, str], sentence_encoder: Path, sentences: dict[str, list[str]]
) -> None:
    main(flags(files, tmp_path / "out", "--model_name_or_path", str(sentence_encoder), model={}))
    folders = [tmp_path / "out" / name for name in ("checkpoint", "encoder")]
    vectors = [embed_sentences(*load_encoder(folder), sentences["de"]) for folder in folders]
    plain = embed_sentences(*load_encoder(folders[0]), sentences["de"], prompt="")
    by_hand = embed_sentences(*load_encoder(folders[0]), [f"the: {text}" for text in sentences["de"]], prompt="")
    assert np.allclose(vectors[0], vectors[1], atol=1e-6) and np.allclose(vectors[0], by_hand, atol=1e-6)
    assert not np.allclose(vectors[0], plain, atol=1e-3)
