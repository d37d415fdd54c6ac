"""Each field of HF's `TrainingArguments` works by a test that is named here, or is refused with a reason, in every run.

A field that is new in a release of transformers is in neither, fails here, and is refused by a run until it is judged.
"""

import ast
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from parsers import parse_arguments, parse_translation_arguments
from transformers import TrainingArguments

import hictl_hf.training.fields
from hictl_hf.errors import BadInput
from hictl_hf.pretraining.arguments import OF_DDP, PretrainingArguments
from hictl_hf.pretraining.arguments import UNUSED_HERE as UNUSED_IN_PRETRAINING
from hictl_hf.training.arguments import RunArguments, refuse_impossible, repository_to_publish_to
from hictl_hf.training.fields import HANDLED, UNUSED, idle_steps, refuse_unused
from hictl_hf.translation.arguments import UNUSED_HERE as UNUSED_IN_TRANSLATION
from hictl_hf.translation.arguments import TranslationArguments

TESTS = Path(__file__).parents[1]
FEATURES = "end_to_end/test_training_features.py"
BOTH, PRETRAINING, TRANSLATION = "pre-training, translation", "pre-training", "translation"
PROOFS: list[tuple[str, str, str, str]] = [  # runs, file, test, fields
    (BOTH, FEATURES, "test_logs_come_when_asked",
     "max_steps logging_steps logging_first_step torch_empty_cache_steps disable_tqdm"),
    (BOTH, FEATURES, "test_an_epoch_has_one_log_and_the_last_one_is_as_long_as_asked",
     "num_train_epochs logging_strategy"),
    (TRANSLATION, FEATURES, "test_source_tokens_are_counted", "include_num_input_tokens_seen"),
    (BOTH, FEATURES, "test_levels_of_logs_are_those_of_the_arguments", "log_level log_level_replica log_on_each_node"),
    (PRETRAINING, FEATURES, "test_numbers_out_of_range_are_found", "debug"),
    (BOTH, FEATURES, "test_the_optimizer_has_its_settings",
     "optim optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon"),
    (BOTH, FEATURES, "test_the_schedule_has_its_settings",
     "learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps"),
    (BOTH, FEATURES, "test_a_step_is_as_long_as_the_clipped_gradient_and_its_memory_is_logged",
     "max_grad_norm skip_memory_metrics"),
    (BOTH, FEATURES, "test_checkpointing_computes_some_layers_again_and_changes_no_loss",
     "activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing gradient_checkpointing_kwargs"),
    (BOTH, FEATURES, "test_a_compiled_model_has_the_same_losses",
     "torch_compile torch_compile_backend torch_compile_mode"),
    (BOTH, FEATURES, "test_a_step_in_bf16_computes_in_it", "bf16 use_cpu"),
    (BOTH, FEATURES, "test_workers_load_as_asked_and_change_nothing",
     ("dataloader_num_workers dataloader_persistent_workers dataloader_prefetch_factor "
      "dataloader_multiprocessing_context")),
    (BOTH, FEATURES, "test_evaluations_come_when_asked_and_a_resumed_run_does_not_repeat_the_first",
     "output_dir eval_strategy eval_steps eval_delay eval_on_start save_strategy save_steps resume_from_checkpoint"),
    (PRETRAINING, FEATURES, "test_the_worst_state_is_kept_where_less_is_better",
     "load_best_model_at_end greater_is_better metric_for_best_model"),
    (BOTH, FEATURES, "test_a_run_is_pushed_while_it_trains",
     "push_to_hub hub_model_id hub_strategy hub_always_push save_total_limit"),
    (BOTH, FEATURES, "test_processes_are_started_with_the_backend_and_patience_of_the_arguments",
     "ddp_backend ddp_timeout"),
    (BOTH, FEATURES, "test_ddp_is_made_with_its_settings", "ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph"),
    (BOTH, FEATURES, "test_weights_and_biases_write_a_run_without_a_network", "report_to run_name"),
    (PRETRAINING, "hub/test_publishing.py", "test_a_pre_training_run_is_pushed_once_when_it_has_ended",
     "hub_private_repo"),
    (TRANSLATION, "end_to_end/test_run_translation.py", "test_the_same_command_again_does_nothing_but_say_so", "seed"),
    (PRETRAINING, "end_to_end/test_run_pretraining.py", "test_the_same_command_gives_the_same_weights", "seed"),
    (PRETRAINING, "end_to_end/test_run_pretraining.py",
     "test_processes_look_for_unused_parameters_only_where_there_are_some", "ddp_find_unused_parameters"),
    (PRETRAINING, "pretraining/test_pretraining_trainer.py",
     "test_gradient_accumulation_changes_neither_language_model_nor_word_level",
     "per_device_train_batch_size gradient_accumulation_steps"),
    (TRANSLATION, "translation/test_translation_trainer.py",
     "test_a_step_has_the_loss_of_its_target_tokens_however_it_is_divided", "gradient_accumulation_steps"),
    (TRANSLATION, "translation/test_translation_trainer.py", "test_smoothing_is_what_the_arguments_say",
     "label_smoothing_factor"),
    (TRANSLATION, "translation/test_translation_trainer.py",
     "test_the_best_state_is_kept_and_loaded_also_between_saves", "load_best_model_at_end"),
    (PRETRAINING, "pretraining/test_batch_size.py", "test_it_is_halved_until_the_longest_rows_fit",
     "auto_find_batch_size"),
]  # fmt: skip
WITH_A_GPU = "fp16 tf32 dataloader_pin_memory"  # not run here: without one fp16 and tf32 are refused, nothing is pinned
WITH_A_PACKAGE = "optim_target_modules project trackio_space_id trackio_bucket_id trackio_static_space_id"  # not run:
# of GaLore, Apollo and Trackio; refused without these
OF_THE_EXAMPLE_SCRIPTS = "do_train do_eval do_predict"
REFUSED_WITH_MORE_TO_SAY = {BOTH: "fsdp hub_token hub_revision", PRETRAINING: "", TRANSLATION: "debug"}
COMMANDS: dict[str, tuple[Callable[[list[str]], Any], str, dict[str, str]]] = {
    PRETRAINING: (parse_arguments, "--train_file x", UNUSED_IN_PRETRAINING),
    TRANSLATION: (
        parse_translation_arguments, "--train_file x --model_name_or_path y --source_lang de --target_lang en",
        UNUSED_IN_TRANSLATION,
    ),
}  # fmt: skip
EXISTING = {item.name for item in fields(TrainingArguments)}


def proven(run: str) -> list[str]:
    return [name for runs, _, _, names in PROOFS if run in runs for name in names.split()]


@pytest.mark.parametrize("run", COMMANDS)
def test_each_field_is_proven_or_refused_and_none_is_both(run: str) -> None:
    elsewhere = f"{REFUSED_WITH_MORE_TO_SAY[BOTH]} {REFUSED_WITH_MORE_TO_SAY[run]}".split()
    refused, works = {*COMMANDS[run][2], *elsewhere}, {*proven(run)}
    apart = {*f"{WITH_A_GPU} {WITH_A_PACKAGE} {OF_THE_EXAMPLE_SCRIPTS}".split()}
    if run == TRANSLATION:
        works.add("hub_private_repo")  # as in pre-training
    assert not refused & works and not apart & (refused | works)
    assert EXISTING - (refused | works | apart) == set()
    assert (refused | works | apart) - HANDLED - UNUSED.keys() - COMMANDS[run][2].keys() == set()
    assert len(proven(run)) == len({*proven(run)})


@pytest.mark.parametrize(("file", "test"), sorted({(file, test) for _, file, test, _ in PROOFS}))
def test_the_proofs_are_there(file: str, test: str) -> None:
    tree = ast.parse((TESTS / file).read_text("utf-8"))
    assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("run", COMMANDS)
def test_what_has_no_effect_is_refused_with_its_reason(run: str, tmp_path: Path) -> None:
    reasons = COMMANDS[run][2]
    for name in reasons.keys() & EXISTING:
        other = RunArguments(str(tmp_path), use_cpu=True)
        setattr(other, name, "another value")
        with pytest.raises(BadInput, match=f"^{name} is another value, which has no effect here: .*; leave it out$"):
            refuse_unused(other, {name: reasons[name]})
    assert min(map(len, reasons.values())) > 20


@pytest.mark.parametrize("run", COMMANDS)
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--enable_jit_checkpoint true", "enable_jit_checkpoint is True, which has no effect here: SIGTERM always"),
        ("--average_tokens_across_devices false", "average_tokens_across_devices is False"),
        ("--include_for_metrics loss", r"include_for_metrics is \['loss'\], which has no effect"),
        ("--optim lomo", "optim is lomo: it changes weights in the backward pass"),
        ("--optim_args momentum=0.9", "adamw_torch_fused does not read momentum; it reads none"),
        ("--optim sgd --optim_args momentum=0.9,foo=1", "sgd does not read foo; allowed are momentum, damp"),
        ("--optim_target_modules all-linear", "optim_target_modules is .*which adamw_torch_fused does not read"),
        ("--lr_scheduler_type constant --lr_scheduler_kwargs {\"a\":1}", "which constant does not read; leave it out"),
        ("--run_name mine", "run_name is mine, which has no effect alone; add --report_to wandb"),
        ("--hub_model_id me/x", "hub_model_id: has no effect alone; add --push_to_hub true"),
        ("--push_to_hub true --hub_model_id me/x --hub_always_push true", "add --hub_strategy every_save"),
        ("--push_to_hub true --hub_model_id me/x --hub_strategy often", "hub_strategy is often; allowed are end, "),
        ("--activation_checkpointing_kwargs {\"every_n_layers\":2}", "no effect alone; add --activation_checkpointing"),
        ("--early_stopping_patience 0", "early_stopping_patience is 0"),
        ("--deepspeed zero2.json", "deepspeed is zero2.json, which has no effect here: .*accelerate launch"),
        ("--tf32 true", "tf32 requires Ampere"),
        ("--debug tpu_metrics_debug", "debug is tpu_metrics_debug, which needs a TPU"),
        ("--dataloader_multiprocessing_context spawn", "multiprocessing_context 'spawn'.*do not work"),
        ("--save_on_each_node true", "share the file system"),
        ("--ddp_static_graph true --gradient_accumulation_steps 2", "static_graph is true with several micro-batches"),
    ],
)  # fmt: skip
def test_a_command_refuses_what_it_would_ignore(run: str, flags: str, message: str) -> None:
    parse, needed, _ = COMMANDS[run]
    with pytest.raises(BadInput, match=message):
        parse([*needed.split(), *flags.split()])


@pytest.mark.parametrize("run", [*COMMANDS])
def test_no_number_of_steps_is_named_that_was_not_given(run: str) -> None:
    parse, needed, _ = COMMANDS[run]
    assert idle_steps(parse(needed.split())) == []


def test_numbers_of_steps_without_effect_are_named() -> None:
    parse, needed, _ = COMMANDS[PRETRAINING]
    flags = "--eval_steps 5 --save_steps 7 --save_strategy no --logging_steps 3 --logging_strategy epoch"
    assert idle_steps(parse([*needed.split(), *flags.split()])) == [
        "eval_steps is 5, which has no effect with --eval_strategy no",
        "save_steps is 7, which has no effect with --save_strategy no",
        "logging_steps is 3, which has no effect with --logging_strategy epoch",
    ]
    assert not idle_steps(parse([*needed.split(), "--eval_strategy", "steps", *flags.split()[:2], "--save_steps", "7"]))
    with pytest.raises(BadInput, match="save_strategy is best, and nothing is evaluated; give --eval_strategy steps"):
        parse([*needed.split(), "--save_strategy", "best"])


@pytest.mark.parametrize("run", [*COMMANDS])
def test_lengths_that_another_argument_replaces_are_named(run: str) -> None:
    parse, needed, _ = COMMANDS[run]
    flags = "--max_steps 7 --num_train_epochs 2 --warmup_steps 9 --lr_scheduler_type constant --eval_delay 4"
    assert idle_steps(parse([*needed.split(), *flags.split()])) == [
        "num_train_epochs is 2, which has no effect with --max_steps 7",
        "warmup_steps is 9, which has no effect with --lr_scheduler_type constant",
        "eval_delay is 4, which has no effect with --eval_strategy no",
    ]
    read = "--num_train_epochs 2 --warmup_steps 9 --lr_scheduler_type constant_with_warmup"
    assert not idle_steps(parse([*needed.split(), *read.split()]))


def test_the_best_state_is_not_asked_for_where_nothing_is_evaluated() -> None:
    parse, needed, _ = COMMANDS[PRETRAINING]
    with pytest.raises(
        BadInput, match="load_best_model_at_end is true, and nothing is evaluated; give --eval_strategy"
    ):
        parse([*needed.split(), "--load_best_model_at_end", "true", "--save_strategy", "no"])


def test_ddp_has_no_settings_where_the_model_is_in_shards() -> None:
    for name in OF_DDP:
        value = "7" if name.endswith("mb") else "true"
        with pytest.raises(BadInput, match=f"{name} is .*: --shard_parameters replaces DDP"):
            parse_arguments(["--train_file", "x", "--shard_parameters", "true", f"--{name}", value])


def test_translation_says_what_it_decides_itself() -> None:
    parse, needed, _ = COMMANDS[TRANSLATION]
    for flags, message in (
        ("--eval_strategy steps", "eval_strategy is steps, but there are no pairs to validate on"),
        ("--load_best_model_at_end true", "load_best_model_at_end is True, and eval_strategy no"),
        (
            "--validation_file z --load_best_model_at_end false",
            "load_best_model_at_end is False, and eval_strategy epoch",
        ),
        ("--eval_on_start true", "eval_on_start is true, and nothing is evaluated"),
        ("--ddp_find_unused_parameters true", "each step uses all parameters"),
        ("--debug underflow_overflow", "cannot read the boolean masks"),
    ):
        with pytest.raises(BadInput, match=message):
            parse([*needed.split(), *flags.split()])
    assert parse([*needed.split(), "--validation_file", "z"]).load_best_model_at_end


def test_a_field_of_a_later_transformers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = COMMANDS[PRETRAINING][1].split()
    monkeypatch.setattr(hictl_hf.training.fields, "HANDLED", HANDLED - {"logging_first_step"})
    assert not parse_arguments(needed).logging_first_step  # its default is no harm
    with pytest.raises(
        BadInput, match="logging_first_step is True, .*transformers 5.* has it, and this release of hictl"
    ):
        parse_arguments([*needed, "--logging_first_step", "true"])
    with pytest.raises(BadInput, match="does not know it"):
        TranslationArguments(
            model_name_or_path="y", train_file=["x"], source_lang=["de"], target_lang=["en"], logging_first_step=True
        )


def test_defaults_are_refused_nowhere(tmp_path: Path) -> None:
    args = RunArguments(str(tmp_path), use_cpu=True, remove_unused_columns=True)
    assert repository_to_publish_to(args) is None
    refuse_unused(args)
    refuse_impossible(args)
    given = PretrainingArguments(train_file=["x"]), parse_arguments(["--train_file", "x"])
    assert json.dumps(given[0].to_dict(), default=str) == json.dumps(given[1].to_dict(), default=str)
