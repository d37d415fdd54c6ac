"""Arguments that cannot work are refused before anything is trained, with the value, what is allowed, and the fix."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hictl_hf.errors import BadInput
from hictl_hf.training.arguments import (
    RunArguments,
    plain_settings,
    read_dictionaries,
    read_dictionary,
    refuse_impossible,
    refuse_several_gpus,
    refuse_unknown_keys,
    refuse_unsupported_devices,
    repository_to_publish_to,
)
from hictl_hf.training.fields import UNUSED, refuse_optimizer, refuse_unused


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path)


def arguments(folder: str, **settings: Any) -> RunArguments:
    return RunArguments(folder, use_cpu=True, report_to="none", **settings)


def test_a_dictionary_is_given_as_such_as_json_or_not_at_all() -> None:
    assert read_dictionary("beam", {"size": 5}) == read_dictionary("beam", '{"size": 5}') == {"size": 5}
    assert read_dictionary("beam", None) == {}
    with pytest.raises(BadInput, match=r"beam is not JSON: 'size=5' .*; write for example"):
        read_dictionary("beam", "size=5")
    with pytest.raises(BadInput, match=r"beam is \[5\]; it must be a JSON object"):
        read_dictionary("beam", "[5]")


def test_the_keys_of_dictionaries_are_fields_with_a_default() -> None:
    @dataclass
    class Beam:
        source: str
        size: int = 4
        words: list[str] = field(default_factory=list)

    class Given:
        beam: Any = '{"size": 5}'

    given = Given()
    read_dictionaries(given, {"beam": Beam})
    assert given.beam == {"size": 5}
    given.beam = {"source": "a", "depth": 1}
    with pytest.raises(BadInput, match=r"beam has no field word; did you mean words\? it has size, words"):
        refuse_unknown_keys("beam", {"word": 1}, {"size", "words"})
    with pytest.raises(BadInput, match="beam has no field depth, source; it has size, words"):
        read_dictionaries(given, {"beam": Beam})


def test_arguments_without_effect_are_refused(folder: str) -> None:
    refuse_unused(arguments(folder), UNUSED)
    with pytest.raises(BadInput, match="data_seed is 3, which has no effect here: .*; leave it out"):
        refuse_unused(arguments(folder, data_seed=3), UNUSED)
    with pytest.raises(BadInput, match="full_determinism is True.*: a GPU has no deterministic cumulative sum"):
        refuse_unused(arguments(folder, full_determinism=True), UNUSED)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_steps": 0}, "max_steps is 0; allowed is 1 or more, or -1"),
        ({"num_train_epochs": 0}, "num_train_epochs is 0; allowed is more than 0"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0; allowed is 0 or more"),
        ({"adam_beta2": 1.0}, "adam_beta2 is 1.0; allowed is 0 or more and below 1"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"warmup_steps": float("nan")}, "warmup_steps is nan; allowed is 0 or more"),
        ({"warmup_steps": float("inf")}, "warmup_steps is inf; allowed is 0 or more"),
        ({"save_steps": float("inf")}, "save_steps is inf; allowed is 0 or more and finite"),
        ({"logging_steps": float("inf")}, "logging_steps is inf; allowed is 0 or more and finite"),
        ({"eval_strategy": "steps", "eval_steps": float("inf")}, "eval_steps is inf; allowed is 0 or more and finite"),
        ({"eval_delay": -1}, "eval_delay is -1; allowed is 0 or more"),
        ({"early_stopping_threshold": float("nan")}, "early_stopping_threshold is nan; allowed is 0 or more"),
        ({"save_total_limit": -1}, "save_total_limit is -1; allowed is 0 or more"),
        ({"max_steps": -5}, "max_steps is -5; allowed is 1 or more, or -1"),
        ({"seed": -1}, "seed is -1; allowed is 0 or more and below 4294967296"),
        ({"seed": 2**32}, "seed is 4294967296; allowed is 0 or more and below 4294967296"),
        ({"early_stopping_patience": 1}, "early_stopping_patience is 1 and eval_strategy no; allowed is 1 or more"),
        ({"ddp_static_graph": True, "auto_find_batch_size": True}, "ddp_static_graph is true with several micro-b"),
        ({"ddp_timeout": 60}, "ddp_timeout is 60, which transformers does not pass on without a GPU; leave it out"),
    ],
)
def test_impossible_numbers_are_refused(folder: str, settings: dict[str, Any], message: str) -> None:
    refuse_impossible(arguments(folder))
    with pytest.raises(BadInput, match=message):
        refuse_impossible(arguments(folder, **settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dataloader_persistent_workers": True}, "dataloader_persistent_workers True.*num_workers > 0"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "lr_scheduler_type.*min_lr"),
        ({"lr_scheduler_kwargs": {"no_such": 1}}, "lr_scheduler_kwargs {'no_such': 1}.*no_such"),
        ({"lr_scheduler_type": "warmup_stable_decay"}, "lr_scheduler_type.*warmup_stable_decay.*num_decay_steps"),
        ({"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": "x"}}, "lr_scheduler_kwargs {'power'"),
        ({"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": "x"}}, "num_cycles"),
        ({"lr_scheduler_type": "polynomial", "max_steps": 4, "warmup_steps": 4}, "warmup_steps 4: .* by zero"),
        ({"lr_scheduler_kwargs": "no_such=1"}, "lr_scheduler_kwargs is not JSON: 'no_such=1'"),
        ({"lr_scheduler_kwargs": "5"}, "lr_scheduler_kwargs is 5; it must be a JSON object"),
        ({"optim": "sgd", "optim_args": "momentum=x"}, "optim 'sgd', optim_args 'momentum=x': do not work .*'x'"),
        ({"optim": "sgd", "optim_args": "momentum=-1"}, "optim 'sgd', .*Invalid momentum"),
        ({"activation_checkpointing": True, "activation_checkpointing_kwargs": {"no_such": 1}}, "_kwargs .*no_such"),
        (
            {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"every_n_layers": 0}},
            "every_n_layers",
        ),
        ({"gradient_checkpointing": True, "gradient_checkpointing_kwargs": "no_such"}, "_kwargs is not JSON: 'no_such"),
        ({"adam_epsilon": 0}, "adam_epsilon is 0"),  # 0 / 0 of weights without a gradient
        ({"dataloader_prefetch_factor": 0, "dataloader_num_workers": 1}, "dataloader_prefetch_factor is 0; .* 1 or"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps is 0; allowed is 1 or more"),
        ({"gradient_accumulation_steps": -1}, "gradient_accumulation_steps is -1; allowed is 1 or more"),
        ({"dataloader_prefetch_factor": -1, "dataloader_num_workers": 2}, "dataloader_prefetch_factor is -1; .* 1 or"),
        ({"torch_compile_backend": "no_such_backend"}, "torch_compile_backend 'no_such_backend'"),
        ({"torch_compile": True, "torch_compile_mode": "no_such_mode"}, "torch_compile_mode|no_such_mode"),
    ],
    ids=str,
)
def test_what_the_trainer_would_refuse_later_is_refused_first(
    folder: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        refuse_impossible(arguments(folder, **settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"dataloader_persistent_workers": True, "dataloader_num_workers": 1, "dataloader_prefetch_factor": 3},
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-6}},
        {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"},  # by the loss
        {"lr_scheduler_type": "inverse_sqrt"},
        {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": '{"power": 2}'},
        {"lr_scheduler_type": "polynomial", "max_steps": 4, "warmup_steps": 0.75},
        {"lr_scheduler_type": "polynomial", "warmup_steps": 0.999},
        {"lr_scheduler_type": "linear", "max_steps": 1, "warmup_steps": 10_000},
        {"optim": "sgd", "optim_args": "momentum=0.9, dampening=0.1"},
        {"learning_rate": 0.0, "seed": 2**32 - 1},
        {"num_train_epochs": 0, "max_steps": 1},
        {"early_stopping_patience": 1, "eval_strategy": "epoch"},
        {
            "lr_scheduler_type": "reduce_lr_on_plateau",
            "eval_strategy": "epoch",
            "greater_is_better": True,
            "lr_scheduler_kwargs": {"mode": "max"},
        },
        {"activation_checkpointing": True, "activation_checkpointing_kwargs": '{"use_reentrant": true}'},
        {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"every_n_layers": 2, "offload": False}},
        {"torch_compile": True},
    ],
    ids=str,
)
def test_what_works_is_let_pass(folder: str, settings: dict[str, Any]) -> None:
    refuse_impossible(arguments(folder, **settings))


@pytest.mark.parametrize(("better", "given", "right"), [(True, {}, "max"), (False, {"mode": "max"}, "min")])
def test_a_learning_rate_that_would_fall_where_the_metric_gets_better_is_refused(
    better: bool, given: dict[str, str], right: str, folder: str
) -> None:
    settings = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch", "lr_scheduler_kwargs": given}
    mode = given.get("mode", "min")
    with pytest.raises(BadInput, match=f'whose mode is {mode}, and .* in accuracy; give .*"mode": "{right}"'):
        refuse_impossible(arguments(folder, metric_for_best_model="accuracy", greater_is_better=better, **settings))


@pytest.mark.parametrize("optimizer", ["galore_adamw", "apollo_adamw", "adamw_torch"])
def test_targets_are_those_of_the_optimizers_that_read_them(optimizer: str, folder: str) -> None:
    args = arguments(folder, optim=optimizer, optim_target_modules="all-linear")
    refused = pytest.raises(BadInput, match="optim_target_modules is all-linear, which adamw_torch does not read")
    with refused if optimizer == "adamw_torch" else nullcontext():
        refuse_optimizer(args)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without a GPU")
def test_offload_without_a_gpu_is_refused(folder: str) -> None:
    settings = {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"offload": True}}
    with pytest.raises(BadInput, match="activation_checkpointing_kwargs has offload, .* there is no GPU; leave it out"):
        refuse_impossible(arguments(folder, **settings))


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("name", ["eval", "save"])
def test_an_evaluation_or_checkpoint_every_0_steps_is_refused(name: str, folder: str) -> None:
    """HF's Trainer would evaluate every `logging_steps`, and save the last step alone."""
    settings = {f"{name}_strategy": "steps", f"{name}_steps": 0}
    with pytest.raises(BadInput, match=f"{name}_steps is 0; allowed is more than 0, .* for none: --{name}_strategy no"):
        arguments(folder, **settings)
    arguments(folder, **{f"{name}_strategy": "no", f"{name}_steps": 0})


def test_trackers_are_also_listed_in_one_word(folder: str) -> None:
    trackers = RunArguments(folder, use_cpu=True, report_to="tensorboard, wandb").report_to
    assert trackers == RunArguments(folder, use_cpu=True, report_to=["tensorboard,wandb"]).report_to
    assert trackers == ["tensorboard", "wandb"]


def test_half_precision_without_a_gpu_is_refused(folder: str) -> None:
    with pytest.raises(BadInput, match="fp16 is true, which needs a GPU"):
        refuse_impossible(arguments(folder, fp16=True))


def test_reports_to_what_is_not_installed_are_refused(folder: str) -> None:
    args = arguments(folder)
    args.report_to = ["elsewhere"]
    with pytest.raises(BadInput, match="report_to is elsewhere, which is not installed; allowed here are none"):
        refuse_impossible(args)


def test_fsdp_is_refused_before_anything_is_made(folder: str) -> None:
    args = arguments(folder)
    args.fsdp = "full_shard"
    with pytest.raises(BadInput, match="fsdp is full_shard; allowed is none: .* --shard_parameters true"):
        refuse_impossible(args)


def test_the_repository_is_taken_out_of_the_hands_of_the_trainer(folder: str) -> None:
    args = arguments(folder, push_to_hub=True, hub_model_id="me/model")
    assert repository_to_publish_to(args) == "me/model" and not args.push_to_hub
    assert repository_to_publish_to(arguments(folder)) is None
    for settings, message in (
        ({"hub_token": "secret"}, "hub_token was given"),
        ({"push_to_hub": True}, "push_to_hub needs the name"),
        ({"push_to_hub": True, "hub_model_id": "me/a", "hub_revision": "dev"}, "hub_revision is dev; allowed is none"),
        ({"push_to_hub": True, "hub_model_id": "me/a", "hub_always_push": True}, "add --hub_strategy every_save"),
    ):
        with pytest.raises(BadInput, match=message):
            repository_to_publish_to(arguments(folder, **settings))


def test_settings_are_values_that_json_knows(folder: str) -> None:
    settings = plain_settings(arguments(folder, seed=3))
    assert settings["seed"] == 3 and settings["lr_scheduler_type"] == "linear"


def test_activation_checkpointing_has_its_newest_name_in_every_release(folder: str) -> None:
    args = arguments(folder, activation_checkpointing=True)
    assert args.activation_checkpointing


@pytest.mark.parametrize(
    ("launcher", "flags", "bf16", "fp16"),
    [
        ("bf16", {}, True, False),
        ("fp16", {}, False, True),
        ("no", {}, False, False),
        ("fp16", {"bf16": True}, True, False),
        ("bf16", {"fp16": True}, False, True),
    ],
)
def test_the_precision_of_the_launcher_is_that_of_the_run_unless_a_flag_gives_one(
    folder: str, launcher: str, flags: dict[str, Any], bf16: bool, fp16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is recorded, and what is refused or described by precision is so here, too."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launcher)
    args = arguments(folder, **flags)
    assert (args.bf16, args.fp16) == (bf16, fp16)
    assert args.mixed_precision == ("bf16" if bf16 else "fp16" if fp16 else "no")
    if fp16:
        with pytest.raises(BadInput, match="fp16 is true, which needs a GPU"):
            refuse_impossible(args)


def test_a_precision_of_the_launcher_that_training_does_not_have_is_refused(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    with pytest.raises(BadInput, match="mixed_precision of accelerate is fp8; allowed are no, fp16 and bf16"):
        arguments(folder)


def test_the_launcher_may_choose_the_cpu(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert RunArguments(folder, report_to="none").use_cpu


def test_fp16_on_the_cpu_is_refused_also_next_to_a_gpu(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    with pytest.raises(BadInput, match="fp16 is true, which needs a GPU"):
        refuse_impossible(arguments(folder, fp16=True))


@pytest.mark.usefixtures("on_apple")
def test_an_accelerator_without_cuda_is_not_used_and_that_is_said(
    folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As Apple's, which has no numbers in double precision."""
    assert arguments(folder).use_cpu and not caplog.messages
    args = RunArguments(folder, report_to="none", bf16=True)
    assert args.use_cpu and args.device.type == "cpu"
    assert caplog.messages == ["training runs on the CPU: it uses GPUs of CUDA or ROCm, and this machine has mps"]


@pytest.mark.parametrize("number", [1, 2])
def test_a_process_that_would_split_its_batches_over_gpus_is_refused(number: int) -> None:
    told = pytest.raises(BadInput, match="one process sees 2 GPUs and would split its batches .*CUDA_VISIBLE_DEVICES")
    with told if number > 1 else nullcontext():
        refuse_several_gpus(number)


@pytest.mark.parametrize("number", [0, 1])
def test_a_process_that_does_not_see_its_gpu_is_told_before_data_is_read(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `srun --gpus-per-task=1`: accelerate gives DDP the GPU of the number in LOCAL_RANK."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    device = torch.device("cuda", 0)
    args: Any = SimpleNamespace(n_gpu=1, device=device, world_size=8, local_process_index=number)
    told = pytest.raises(BadInput, match="process 1 of its machine sees 1 GPU, .*; where each sees its own alone, set")
    with told if number else nullcontext():
        refuse_unsupported_devices(args, "")
