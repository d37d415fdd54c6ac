"""The most used flags of transformers' example scripts: the same here, or answered with our name or a reason.

`run_mlm.py` is compared with pre-training, `run_translation.py` with our translation, `run_xnli.py` and `run_ner.py`
with XTREME.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from parsers import parse_arguments, parse_translation_arguments, parse_xtreme_arguments

from hictl_hf.cli import pretrain, train_translation, xtreme
from hictl_hf.errors import BadInput
from hictl_hf.parsing import CommandParser
from hictl_hf.pretraining.arguments import PretrainingArguments
from hictl_hf.translation.arguments import TranslationArguments

SAME, REASON, NONE = "same", "reason", ""  # a reason: it is no argument, and the answer says why
REFUSED = "refused"  # an argument of HF's TrainingArguments whose use is refused with a reason

TABLE = [  # flags; in pre-training, translation and XTREME: `NONE` where that example script has not got them
    ("model_name_or_path", SAME, SAME, SAME),
    ("config_name", SAME, REASON, REASON),
    ("config_overrides", SAME, SAME, REASON),
    ("tokenizer_name", SAME, SAME, SAME),
    ("model_type", REASON, NONE, NONE),
    ("cache_dir", REASON, REASON, REASON),
    ("model_revision", SAME, SAME, SAME),
    ("token", REASON, REASON, REASON),
    ("trust_remote_code", REASON, REASON, REASON),
    ("use_fast_tokenizer", REASON, REASON, REASON),
    ("dataset_name dataset_config_name", SAME, SAME, REASON),
    ("train_file validation_file", SAME, SAME, REASON),
    ("test_file", REASON, SAME, REASON),
    ("text_column_name label_column_name", NONE, NONE, REASON),
    ("source_lang target_lang", NONE, SAME, NONE),
    ("source_prefix", REASON, REASON, NONE),
    ("max_seq_length", SAME, SAME, REASON),
    ("max_source_length", NONE, "max_seq_length", NONE),
    ("max_target_length val_max_target_length", NONE, REASON, NONE),
    ("preprocessing_num_workers", SAME, SAME, REASON),
    ("overwrite_cache", REASON, REASON, REASON),
    ("max_train_samples", SAME, SAME, REASON),
    ("max_eval_samples max_predict_samples", REASON, REASON, REASON),
    ("mlm_probability", SAME, NONE, NONE),
    ("line_by_line pad_to_max_length", REASON, NONE, NONE),
    ("validation_split_percentage", REASON, NONE, NONE),
    ("streaming", SAME, NONE, NONE),
    ("num_beams", NONE, SAME, NONE),
    ("predict_with_generate", NONE, SAME, NONE),
    ("do_train do_eval", SAME, SAME, SAME),
    ("do_predict", REFUSED, SAME, SAME),
    ("output_dir seed learning_rate num_train_epochs", SAME, SAME, SAME),
    ("per_device_train_batch_size", SAME, REFUSED, SAME),
    ("gradient_accumulation_steps max_steps warmup_steps weight_decay lr_scheduler_type", SAME, SAME, REASON),
    ("eval_strategy eval_steps save_strategy save_steps save_total_limit logging_steps", SAME, SAME, REASON),
    ("load_best_model_at_end", SAME, SAME, REASON),
    ("metric_for_best_model", SAME, REFUSED, REASON),
    ("report_to push_to_hub hub_model_id hub_private_repo", SAME, SAME, REASON),
    ("bf16", SAME, SAME, SAME),
    ("fp16 torch_compile resume_from_checkpoint", SAME, SAME, REASON),
    ("overwrite_output_dir", REASON, REASON, REASON),
    ("torch_dtype dtype fp16_backend half_precision_backend fp16_opt_level", REASON, REASON, REASON),
    ("group_by_length logging_dir save_safetensors adafactor", REASON, REASON, REASON),
    ("use_mps_device tpu_num_cores use_ipex jit_mode_eval ray_scope mp_parameters past_index", REASON, REASON, REASON),
    ("push_to_hub_organization push_to_hub_token include_inputs_for_metrics split_batches", REASON, REASON, REASON),
    ("fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap attn_implementation", REASON, REASON, REASON),
    ("evaluation_strategy", "eval_strategy", "eval_strategy", REASON),
    ("no_cuda", "use_cpu", "use_cpu", REASON),
    ("warmup_ratio num_warmup_steps", "warmup_steps", "warmup_steps", REASON),
    ("per_gpu_eval_batch_size", *["per_device_eval_batch_size"] * 3),
    ("adam_beta1 optim max_grad_norm gradient_checkpointing dataloader_num_workers", SAME, SAME, REASON),
    ("keep_linebreaks", REASON, NONE, NONE),
    ("generation_max_length generation_config sortish_sampler", NONE, REASON, NONE),
    ("generation_num_beams", NONE, "num_beams", NONE),
    ("doc_stride n_best_size max_answer_length", NONE, NONE, REASON),
]
COMMANDS: dict[str, tuple[CommandParser, Callable[[list[str]], Any], list[str]]] = {
    "pretrain": (pretrain.make_parser(), parse_arguments, ["--train_file", "x"]),
    "train-translation": (
        train_translation.make_parser(), parse_translation_arguments,
        ["--model_name_or_path", "x", "--train_file", "y", "--source_lang", "de", "--target_lang", "en"],
    ),
    "xtreme": (xtreme.make_parser(), parse_xtreme_arguments, ["--model_name_or_path", "x"]),
}  # fmt: skip
VALUES = {"do_predict": "true", "per_device_train_batch_size": "2", "metric_for_best_model": "loss"}
PAIR = ["--model_name_or_path", "x", "--source_lang", "de", "--target_lang", "en"]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_table_is_what_the_parsers_do(command: str) -> None:
    parser, parse, needed = COMMANDS[command]
    known = {action.dest for action in parser._actions}
    column = 1 + [*COMMANDS].index(command)
    for flag, told in ((flag, row[column]) for row in TABLE for flag in row[0].split()):
        if told in (SAME, REFUSED):
            assert flag in known, flag
        if told == REFUSED:
            with pytest.raises(BadInput, match=f"{flag} is "):
                parse([*needed, f"--{flag}", VALUES[flag]])
        elif told not in (SAME, NONE):
            answer = f"{flag}: " if told == REASON else f"{flag} is called {told} here"
            with pytest.raises(BadInput, match=f"^--{flag}.*: unknown argument; {answer}") as refused:
                parse([*needed, f"--{flag}", "1"])
            assert len(str(refused.value)) < 240, "one line"


def test_help_has_a_group_for_each_of_three_dataclasses() -> None:
    for command, kind in (("pretrain", PretrainingArguments), ("train-translation", TranslationArguments)):
        data, model, training = kind.__bases__
        assert data.__name__.endswith("DataArguments") and model.__name__.endswith("ModelArguments")
        assert training.__name__ == "RunArguments"
        groups = COMMANDS[command][0]._action_groups
        found = {action.dest: group.title for group in groups for action in group._group_actions}
        names = ("model_name_or_path", "model_revision", "train_file", "max_seq_length", "do_train", "learning_rate")
        assert [found[name] for name in names] == ["model"] * 2 + ["data"] * 2 + ["training"] * 2


# --- values -----------------------------------------------------------------------------------------------------------


def test_overrides_in_pairs_are_checked_as_json_is() -> None:
    given = ["--train_file", "x", "--config_overrides"]
    found = parse_arguments([*given, "vocab_size=9,sentence_temperature=1"]).config_overrides
    assert found == {"vocab_size": 9, "sentence_temperature": 1}
    for value, told in (("tau=1", "has no field tau"), ("vocab_size=9,tau", "allowed is a=1,b=2, or JSON")):
        with pytest.raises(BadInput, match=told):
            parse_arguments([*given, value])


def test_a_dataset_is_the_source_of_its_name() -> None:
    given = ["--dataset_name", "opus_books", "--dataset_config_name", "de-en"]
    found = parse_arguments(given)
    assert (found.train_file, found.dataset_name) == (["hub:opus_books:de-en"], None)
    assert parse_arguments(given[:2]).train_file == ["hub:opus_books"]
    all_three = parse_translation_arguments([*PAIR, *given, "--do_train", "--do_eval", "--do_predict"])
    sources = [*all_three.train_file, *all_three.validation_file, *all_three.test_file]
    assert sources == ["hub:opus_books:de-en", "hub:opus_books:de-en:validation", "hub:opus_books:de-en:test"]
    own = ["--do_train", "--do_eval", "--do_predict", "--validation_file", "a", "--test_file", "b"]
    files = parse_translation_arguments([*PAIR, *given, *own])
    assert (files.validation_file, files.test_file) == (["a"], ["b"])  # not those of the dataset
    without = parse_translation_arguments([*PAIR, *given[:2], "--do_train", "--do_predict", "--validation_file", "a"])
    assert (without.test_file, without.validation_file) == (["hub:opus_books::test"], ["a"])
    for more, told in (
        ([*given, "--train_file", "a"], "dataset_name is opus_books and train_file a; allowed is one of them"),
        (given[2:], "dataset_config_name needs a dataset"),
    ):
        with pytest.raises(BadInput, match=told):
            parse_arguments(more)


@pytest.mark.parametrize(
    ("asked", "read"),
    [
        ([], "abc"),
        (["--do_train"], "ab"),
        (["--do_train", "--do_eval", "--do_predict"], "abc"),
        (["--do_predict"], "c"),
        (["--do_train", "false"], "c"),
        (["--do_eval", "false"], "ac"),
        (["--do_predict", "false"], "ab"),
        (["--do_train", "--do_eval", "false"], "a"),
    ],
)
def test_with_a_do_flag_only_what_is_asked_for_is_done(asked: list[str], read: str) -> None:
    files = ["--train_file", "a", "--validation_file", "b", "--test_file", "c"]
    found = parse_translation_arguments([*PAIR, *files, *asked])
    assert "".join([*found.train_file, *found.validation_file, *found.test_file]) == read


@pytest.mark.parametrize(
    ("parse", "flags", "told"),
    [
        (parse_arguments, "--do_train", "train_file is empty"),
        (parse_arguments, "--train_file x --do_eval", "do_eval is true without do_train"),
        (
            parse_arguments,
            "--train_file x --do_train false",
            "do_train is false, but pre-training trains; leave it out",
        ),
        (parse_arguments, "--train_file x --do_eval false", "do_eval is false, but held-out pairs are scored"),
        (parse_translation_arguments, f"{' '.join(PAIR)} --train_file a --do_train false", "neither --train_file nor"),
        (parse_arguments, "--train_file x --do_train --do_eval --held_out_sentences 0", "so no pairs are held out"),
        (parse_arguments, "--train_file x --max_train_samples 0", "max_train_samples is 0; allowed is 1 or more"),
        (
            parse_arguments,
            "--streaming --train_file x --validation_file y --max_steps 1 --max_train_samples 9",
            "max_train_samples has no effect on a stream",
        ),
        (
            parse_arguments,
            "--train_file x --config_name a --model_name_or_path b",
            "config_name is a and model_name_or",
        ),
        (parse_arguments, "--train_file x --model_name_or_path . --model_revision a", "model_name_or_path . a folder"),
        (parse_xtreme_arguments, "--model_name_or_path x --do_eval false", "do_eval is false, but a task is trained"),
    ],
)
def test_what_would_have_no_effect_is_refused(parse: Callable[[list[str]], Any], flags: str, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        parse(flags.split())


def test_the_step_follows_from_what_the_folder_is(tmp_path: Path) -> None:
    pair = ["--source_lang", "de", "--target_lang", "en", "--model_name_or_path", str(tmp_path)]
    train, test = ["--train_file", "a"], ["--test_file", "a"]
    (tmp_path / "config.json").write_text('{"model_type": "xlm-roberta"}', "utf-8")
    assert parse_translation_arguments([*pair, *train]).step == 1
    assert parse_translation_arguments([*pair, *train, "--step", "2"]).step == 2  # all weights, and a new decoder
    with pytest.raises(BadInput, match="has no decoder, and a new one has to be trained"):
        parse_translation_arguments([*pair, *test])
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "hictl", "is_encoder_decoder": True}), "utf-8")
    continued = parse_translation_arguments([*pair, *train])
    assert (continued.step, continued.learning_rate, continued.freeze_encoder) == (2, 2e-5, False)
    assert parse_translation_arguments([*pair, *test]).step == 1  # as releases until 0.10 recorded a test
    with pytest.raises(BadInput, match="decoder_layers is decided when a decoder is made, and .* has one"):
        parse_translation_arguments([*pair, *train, "--decoder_layers", "2"])
