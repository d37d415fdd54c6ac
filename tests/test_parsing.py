"""A recipe says what flags say: the same values, refused in the same way, by the name of the file."""

import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from parsers import parse_arguments, parse_translation_arguments, parse_xtreme_arguments, write_recipes
from transformers import Trainer, TrainingArguments

from hictl_hf.cli import explain, mine, xtreme
from hictl_hf.cli.embed import EmbedArguments
from hictl_hf.cli.mine import MineArguments
from hictl_hf.cli.translate import TranslateArguments
from hictl_hf.errors import BadInput
from hictl_hf.former_names import ARGUMENTS
from hictl_hf.other_names import ELSEWHERE, REASONS
from hictl_hf.parsing import CommandParser, parse_flags, read_overrides
from hictl_hf.pretraining.arguments import PretrainingArguments
from hictl_hf.training import arguments as settings
from hictl_hf.translation.arguments import TranslationArguments
from hictl_hf.xtreme.arguments import XtremeArguments

XTREME: dict[str, Any] = {"model_name_or_path": "x"}
PRETRAINING: dict[str, Any] = {"train_file": ["x"]}


def parsed(parse: Callable[[list[str]], Any], recipe: dict[str, Any], folder: Path) -> Any:
    path = folder / "recipe.json"
    path.write_text(json.dumps(recipe), "utf-8")
    return parse([str(path)])


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("seed", 1, [1]),
        ("learning_rate", ["3e-5", 1], [3e-5, 1.0]),  # PyYAML takes 3e-5 for a text
        ("tasks", "panx", ["panx"]),
        ("bf16", 1, True),
        ("size", None, None),
    ],
)
def test_one_is_as_good_as_a_list_of_one_and_numbers_may_be_texts(
    name: str, value: Any, wanted: Any, tmp_path: Path
) -> None:
    assert getattr(parsed(parse_xtreme_arguments, XTREME | {name: value}, tmp_path), name) == wanted


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("train_file", "pairs.jsonl", ["pairs.jsonl"]),
        ("evaluate_layers", 2, [2]),
        ("config_overrides", {"vocab_size": 9}, {"vocab_size": 9}),
        ("activation_checkpointing_kwargs", {"use_reentrant": False}, {"use_reentrant": False}),
        ("report_to", ["tensorboard", "wandb"], ["tensorboard", "wandb"]),
        ("resume_from_checkpoint", True, "true"),
        ("save_total_limit", None, None),
    ],
)
def test_hf_s_arguments_keep_their_types(
    name: str, value: Any, wanted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "get_available_reporting_integrations", lambda: ["tensorboard", "wandb"])
    recipe = PRETRAINING | {"activation_checkpointing": True, name: value}
    assert getattr(parsed(parse_arguments, recipe, tmp_path), name) == wanted


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"seed": "x"}, "seed is 'x'; allowed is a list, each an integer"),
        ({"tasks": None}, "tasks is None; allowed is a list, each a string"),
        ({"bf16": "maybe"}, "bf16 is 'maybe'; allowed is true or false"),
        ({"num_train_epochs": [1]}, r"num_train_epochs is \[1\]; allowed is a number or null"),
        ({"labels": {"a": 1}}, "labels .*no such folder"),
        ({"seed": -1}, r"seed is \[-1\]; allowed are one or more numbers from 0 to"),
        ({"learning_rate": -1}, r"learning_rate is \[-1.0\]; allowed are numbers above 0"),
        ({"learning_rate": "nan"}, r"learning_rate is \[nan\]; allowed are numbers above 0"),
    ],
)
def test_other_values_are_refused_by_name(recipe: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        parsed(parse_xtreme_arguments, XTREME | recipe, tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("log_level", "warn", "log_level is 'warn'; allowed is detail or debug"),
        ("lr_scheduler_type", "linaer", "lr_scheduler_type is 'linaer'; allowed is linear"),
        ("save_steps", "inf", "save_steps is inf; allowed is 0 or more and finite"),
    ],
)
def test_values_of_hf_s_arguments_are_refused_as_those_of_flags(
    name: str, value: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises((BadInput, SystemExit)):
        parse_arguments(["--train_file", "x", f"--{name}={value}"])
    with pytest.raises(BadInput, match=message):
        parsed(parse_arguments, PRETRAINING | {name: value}, tmp_path)


def test_an_optimiser_whose_package_is_missing_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(args: TrainingArguments, model: Any = None) -> None:
        raise ImportError("You need to install `bitsandbytes`")

    monkeypatch.setattr(Trainer, "get_optimizer_cls_and_kwargs", missing)
    with pytest.raises(BadInput, match="You need to install `bitsandbytes`"):
        parse_arguments(["--train_file", "x", "--optim", "adamw_bnb_8bit"])


def test_an_old_name_is_answered_with_the_new_one(tmp_path: Path) -> None:
    message = "pair_mask_rate.* pair_mask_rate is called tlm_probability since release 0.8; --help"
    with pytest.raises(BadInput, match=message):
        parse_arguments(["--train_file", "x", "--pair_mask_rate", "0.2"])
    (tmp_path / "recipe.yaml").write_text("train_file: [x]\npair_mask_rate: 0.2\n", "utf-8")
    with pytest.raises(BadInput, match=message):
        parse_arguments([str(tmp_path / "recipe.yaml")])


@pytest.mark.parametrize(
    ("parse", "flag", "told"),
    [
        (parse_arguments, "--encoder", "encoder is called model_name_or_path since release 0.11"),
        (parse_arguments, "--train_data=a", "train_data is called train_file since release 0.11"),
        (parse_arguments, "--held-out-data", "held_out_data is called validation_file since release 0.11"),
        (parse_arguments, "--max_seq_len", "max_seq_len is called max_seq_length here"),
        (parse_arguments, "--lr", "lr is called learning_rate here"),
        (parse_arguments, "--overwrite_output_dir", "no folder is written over"),
        (parse_arguments, "--max_eval_samples", "max_eval_samples: held_out_sentences is the number of pairs of each"),
        (parse_arguments, "--source_lang", "source_lang: all languages of train_file are trained on; --cleaning"),
        (parse_arguments, "--num_beams", "num_beams: pre-training writes no translations"),
        (parse_arguments, "--task_name", "task_name: hictl xtreme fine-tunes on tasks"),
        (parse_arguments, "--temperature", "temperature: --config_overrides has sentence_temperature and word_"),
        (parse_arguments, "--include_tokens_per_second", "tokens_per_second is in the logs, always"),
        (parse_arguments, "--word_weight", "word_weight is a key of --config_overrides '{\"word_weight\": ...}'"),
        (parse_arguments, "--max_characters", "max_characters is a key of --cleaning '{\"max_characters\": ...}'"),
        (parse_translation_arguments, "--streaming", "streaming: the corpus is tokenized once"),
        (parse_translation_arguments, "--validation_split_percentage", "give a --validation_file"),
        (parse_xtreme_arguments, "--predict_with_generate", "predict_with_generate: no task of XTREME"),
        (parse_xtreme_arguments, "--low_cpu_mem_usage", "low_cpu_mem_usage: weights are always loaded so"),
        (parse_translation_arguments, "--model", "model is called model_name_or_path since release 0.11"),
        (parse_translation_arguments, "--test", "test is called test_file since release 0.11"),
        (parse_translation_arguments, "--beams", "beams is called num_beams since release 0.11"),
        (parse_translation_arguments, "--batch_size", "batch_size: batches have as many tokens as --max_tokens says"),
        (parse_xtreme_arguments, "--batch_size", "is called per_device_train_batch_size since release 0.11"),
        (parse_xtreme_arguments, "--epochs", "epochs is called num_train_epochs since release 0.11"),
        (parse_xtreme_arguments, "--max_train_samples", "max_train_samples: --train_split"),
    ],
)
def test_former_names_and_those_of_other_tools_are_answered_with_todays(
    parse: Callable[[list[str]], Any], flag: str, told: str
) -> None:
    with pytest.raises(BadInput, match=f"unknown argument; .*{told}"):
        parse([flag, "x"])


def test_a_negative_number_with_an_exponent_is_refused_as_a_number() -> None:
    with pytest.raises(BadInput, match="learning_rate is -0.0001; allowed is 0 or more"):
        parse_arguments(["--train_file", "pairs.tsv", "--learning_rate", "-1e-4"])


def test_they_are_answered_in_a_recipe_and_stand_for_arguments_that_exist(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="unknown settings: train_data; train_data is called train_file since release"):
        parsed(parse_arguments, {"train_data": "x"}, tmp_path)
    kinds = (
        PretrainingArguments,
        TranslationArguments,
        XtremeArguments,
        MineArguments,
        EmbedArguments,
        TranslateArguments,
    )
    known = {item.name for kind in kinds for item in fields(kind)}
    named = {name for names in ELSEWHERE.values() for name in names} | {*ARGUMENTS.values()}
    assert named | {name for reasons in REASONS.values() for name in reasons if name} <= known


# --- recipes based on others ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("a=1,b=2", {"a": 1, "b": 2}),
        (" a = 0.5 , b=True, c=none_of_these, d=null", {"a": 0.5, "b": True, "c": "none_of_these", "d": None}),
        ('{"a": "b=1"}', '{"a": "b=1"}'),
        ({"a": 1}, {"a": 1}),
        (None, None),
    ],
)
def test_overrides_are_json_or_pairs(given: Any, wanted: Any) -> None:
    assert read_overrides(given) == wanted


@pytest.mark.parametrize("given", ['{"word_weight": 2, "lm_weight": 3}', "word_weight=2,lm_weight=3"])
def test_a_dictionary_of_a_flag_changes_the_keys_it_names(given: str, tmp_path: Path) -> None:
    overrides, cleaning = {"lm_weight": 0, "vocab_size": 99}, {"languages": ["de"]}
    write_recipes(tmp_path, a={"train_file": ["x"], "config_overrides": overrides, "cleaning": cleaning})
    args = parse_arguments([str(tmp_path / "a.json"), "--config_overrides", given])
    assert args.config_overrides == {"lm_weight": 3, "vocab_size": 99, "word_weight": 2}
    assert args.cleaning == cleaning
    args = parse_arguments([str(tmp_path / "a.json"), '--cleaning={"max_characters": 9}'])
    assert args.cleaning == {"languages": ["de"], "max_characters": 9}
    assert args.config_overrides == overrides


def test_the_home_folder_is_found_where_no_shell_looks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    model = tmp_path / "start"
    model.mkdir()
    write_recipes(tmp_path, a={"train_file": ["~/a.tsv", "en:~/b.txt+de:~/c.txt"], "model_name_or_path": "~/start"})
    flags = ["--validation_file", "~/corpus.{en,de}", "--output_dir=~/out"]
    args = parse_arguments(["~/a.json", *flags])
    assert args.train_file == [f"{tmp_path}/a.tsv", f"en:{tmp_path}/b.txt+de:{tmp_path}/c.txt"]
    assert args.validation_file == [f"{tmp_path}/corpus.{{en,de}}"]
    assert (args.output_dir, args.model_name_or_path) == (f"{tmp_path}/out", str(model))
    assert parse_arguments(["--train_file", "x", "--prompt", "say ~/b: "]).prompt == "say ~/b: "


@pytest.mark.parametrize("given", ["{word", "[1]", "word_weight=2,lm_weight"])
def test_a_flag_that_is_no_dictionary_is_refused_with_a_recipe_as_without(given: str, tmp_path: Path) -> None:
    write_recipes(tmp_path, a={"train_file": ["x"], "config_overrides": {"lm_weight": 0}})
    with pytest.raises(BadInput, match=f"^config_overrides is .*{re.escape(given[:4])}"):
        parse_arguments([str(tmp_path / "a.json"), "--config_overrides", given])


@pytest.mark.parametrize(
    ("flags", "name", "wanted"),
    [
        (["--seed", "1,2", "3"], "seed", [1, 2, 3]),
        (["--learning_rate", "1e-5, 2e-5"], "learning_rate", [1e-5, 2e-5]),
        (["--tasks", "xnli,panx"], "tasks", ["xnli", "panx"]),
        (["--languages", '["de", "fr"]'], "languages", ["de", "fr"]),
        (["--micro_batches", "1e1"], "micro_batches", 10),
        (["--per_device_eval_batch_size", "8.0"], "per_device_eval_batch_size", 8),
    ],
)
def test_lists_with_commas_and_integers_with_exponents_are_read(
    flags: list[str], name: str, wanted: Any, tmp_path: Path
) -> None:
    assert getattr(parse_xtreme_arguments(["--model_name_or_path", "x", *flags]), name) == wanted
    values = flags[1] if len(flags) == 2 else flags[1:]
    assert getattr(parsed(parse_xtreme_arguments, XTREME | {name: values}, tmp_path), name) == wanted


@pytest.mark.parametrize(("flag", "value"), [("--seed", "1.5"), ("--micro_batches", "1,000"), ("--seed", "1,b")])
def test_what_is_no_integer_is_refused_with_what_is_allowed(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_xtreme_arguments(["--model_name_or_path", "x", flag, value])
    assert "; allowed are " in capsys.readouterr().err


def test_a_flag_that_may_be_unset_needs_no_true() -> None:
    parser = CommandParser(EmbedArguments, "", {})
    required = ["--model", "m", "--output", "x.npy"]
    assert [parse_flags(parser, [*required, *given]).normalize for given in ([], ["--normalize"])] == [None, True]


def test_files_with_commas_in_braces_stay_one_source() -> None:
    assert parse_arguments(["--train_file", "corpus.{en,de}"]).train_file == ["corpus.{en,de}"]


def test_of_a_list_of_files_that_is_given_twice_the_last_counts_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for first in (["--train_file", "a.jsonl"], ["--train-file=a.jsonl"]):
        caplog.clear()
        found = parse_arguments([*first, "--max_steps", "3", "--train_file", "b.jsonl"])
        assert found.train_file == ["b.jsonl"]
        assert "is given 2 times, and the last replaces the others; to read all, name them behind" in caplog.text
    caplog.clear()
    others = ["--max_steps", "3", "--max_steps", "4", "--guard_languages", "de", "--guard_languages", "fr"]
    found = parse_arguments(["--train_file", "a", "b", *others])
    assert found.max_steps == 4 and found.guard_languages == ["fr"] and not caplog.messages


@pytest.mark.parametrize(
    "name", ["model_name_or_path", "config_name", "tokenizer_name", "output_dir", "resume_from_checkpoint"]
)
def test_a_name_that_is_empty_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=f"{name} is empty; allowed is a name or a path. Is the variable set"):
        parse_arguments(["--train_file", "x", f"--{name}", ""])
    assert parse_arguments(["--train_file", "x", "--prompt", ""]).prompt == ""


@pytest.mark.parametrize(
    ("parser", "given", "name"),
    [
        (xtreme.make_parser(), "--model_name_or_path x", "labels"),
        (xtreme.make_parser(), "--model_name_or_path x", "score"),
        (mine.make_parser(), "a b --model x --output y", "gold"),
        (mine.make_parser(), "a b --model x --output y", "x_vectors"),
        (explain.make_parser(), "text --model x", "among"),
    ],
)
def test_a_file_whose_name_is_empty_is_not_left_out(parser: CommandParser, given: str, name: str) -> None:
    with pytest.raises(BadInput, match=f"{name} is empty; allowed is a name or a path"):
        parse_flags(parser, [*given.split(), f"--{name}", ""])


def test_a_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("x")
    with pytest.raises(BadInput, match="model.safetensors: is a file; allowed is the folder of a model"):
        parse_arguments(["--train_file", "x", "--model_name_or_path", str(tmp_path / "model.safetensors")])


def test_help_of_a_flag_that_switches_off_is_not_that_of_the_one_that_switches_on() -> None:
    shown = " ".join(CommandParser(PretrainingArguments, "", {}).format_help().split())
    assert shown.count("Take negatives from the sentences of all processes.") == 1
    assert "--no_gather_sentences, --no-gather-sentences The same as --gather_sentences false." in shown


def test_help_of_a_refused_flag_says_why_and_not_what_it_would_do() -> None:
    shown = " ".join(CommandParser(PretrainingArguments, "", {}).format_help().split())
    assert "Refused: liger-kernel has no kernels for XLM-R; losses over the" in shown
    assert "Increases throughput by ~20%" not in shown and "Enable PyTorch Fully Sharded" not in shown
    assert "--no_dataloader_in_order, --no-dataloader-in-order The same as --dataloader_in_order false." in shown
