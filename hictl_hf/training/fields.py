"""What becomes of each field of HF's `TrainingArguments`: it works, or it is refused with a reason.

`tests/training/test_fields.py` names the test of each field. A field that a later release of transformers adds is
refused until it is listed here.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields

import transformers
from transformers import TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig

from ..errors import BadInput

# fields that work, or that `arguments` refuses with more to say (fsdp, hub_token, hub_revision); by what they are about
HANDLED_NAMES = """
    per_device_train_batch_size num_train_epochs max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs
    warmup_steps optim optim_args optim_target_modules weight_decay adam_beta1 adam_beta2 adam_epsilon
    gradient_accumulation_steps max_grad_norm label_smoothing_factor seed auto_find_batch_size

    bf16 fp16 tf32 activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing
    gradient_checkpointing_kwargs torch_compile torch_compile_backend torch_compile_mode torch_empty_cache_steps
    use_cpu

    dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor
    dataloader_multiprocessing_context

    logging_strategy logging_steps logging_first_step log_on_each_node log_level log_level_replica disable_tqdm
    include_num_input_tokens_seen skip_memory_metrics report_to run_name project trackio_space_id
    trackio_bucket_id trackio_static_space_id debug

    eval_strategy eval_steps eval_delay eval_on_start output_dir save_strategy save_steps save_total_limit
    load_best_model_at_end metric_for_best_model greater_is_better resume_from_checkpoint

    push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision

    ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout
    fsdp

    do_train do_eval do_predict
"""
HANDLED = frozenset(HANDLED_NAMES.split())
ALL_ITEMS = "losses are means over the items of all processes"
NO_PREDICTIONS = "evaluation retrieves or translates sentences, and collects no predictions of batches"
SHARED = "the machines of a run share the file system of output_dir, where one process saves"
BY_LENGTH = "the lengths of examples are known"
NO_SLICES = "a step needs complete word embeddings; allowed are DDP and, in pre-training, --shard_parameters true"
UNUSED = {  # fields that have no effect in any run, and why
    "neftune_noise_alpha": "no noise is added to embeddings",
    "data_seed": "--seed decides the order of examples, too",
    "dataloader_drop_last": "all examples are trained on",
    "dataloader_in_order": "an interrupted run is continued exactly, as the order of examples depends on --seed alone",
    "remove_unused_columns": "the collator reads all columns",
    "length_column_name": BY_LENGTH,
    "label_names": NO_PREDICTIONS,
    "save_only_model": "an interrupted run is continued exactly, with its optimiser",
    "ignore_data_skip": "an interrupted run is continued exactly, with the examples not seen yet",
    "restore_callback_states_from_checkpoint": "a resumed run always restores the state of its callbacks",
    "full_determinism": "a GPU has no deterministic cumulative sum, which draws words; on a CPU runs are deterministic",
    "enable_jit_checkpoint": "SIGTERM always saves the step that runs, and ends",
    "save_on_each_node": SHARED,
    "average_tokens_across_devices": ALL_ITEMS,
    "logging_nan_inf_filter": "steps whose loss is not finite are skipped, and counted as skipped_steps in the logs",
    "use_cache": "training keeps no keys and values; use_cache in the model's generation_config.json is for generate()",
    "use_liger_kernel": "liger-kernel has no kernels for XLM-R; losses over the vocabulary have their own here",
    "liger_kernel_config": "liger-kernel has no kernels for XLM-R",
    "bf16_full_eval": "evaluation has the precision of the training: give --bf16",
    "fp16_full_eval": "evaluation has the precision of the training: give --fp16",
    "prediction_loss_only": NO_PREDICTIONS,
    "eval_do_concat_batches": NO_PREDICTIONS,
    "eval_use_gather_object": NO_PREDICTIONS,
    "eval_accumulation_steps": NO_PREDICTIONS,
    "include_for_metrics": NO_PREDICTIONS,
    "batch_eval_metrics": NO_PREDICTIONS,
    "accelerator_config": "batches are made for each process here; give --gradient_accumulation_steps",
    "parallelism_config": NO_SLICES,
    "fsdp_config": NO_SLICES,
    "deepspeed": "DeepSpeed is set up by accelerate launch --config_file recipes/accelerate/deepspeed-zero1.yaml",
    "local_rank": "start processes by torchrun or accelerate launch, which set LOCAL_RANK",
}
IN_BACKWARD = "it changes weights in the backward pass, before a step that is not finite can be skipped"
AVERAGED = "evaluations and checkpoints would have its weights of training, not those that it averages"
REFUSED_OPTIMIZERS = {"lomo": IN_BACKWARD, "layerwise": IN_BACKWARD, "schedule_free": AVERAGED}  # parts of their names
OPTIM_ARGS = {  # optimizer -> keys of optim_args that it reads; others read those of their package
    "adamw_torch": (), "adamw_torch_fused": (), "adafactor": (), "sgd": ("momentum", "dampening", "nesterov"),
    "adagrad": ("lr_decay", "eps"), "rmsprop": ("momentum", "alpha", "eps", "centered"),
}  # fmt: skip
ALSO_DEFAULT = {  # what the parser of flags, and TrainingArguments, make of a default
    "include_num_input_tokens_seen": (False,), "accelerator_config": (AcceleratorConfig(),),
    "save_steps": (500,),  # `TranslationArguments`
}  # fmt: skip
OF_TRACKIO = ("project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id")
OF_THE_HUB = ("hub_model_id", "hub_private_repo", "hub_strategy", "hub_always_push", "hub_revision")
BY_METRIC = ("reduce_lr_on_plateau", "greedy")  # learning rates that follow the metric


def differs(args: TrainingArguments, name: str) -> bool:
    """Whether a field has another value than its default; one that this release of transformers lacks has not."""
    for item in fields(args):
        if item.name == name:
            default = item.default if item.default_factory is MISSING else item.default_factory()
            return getattr(args, name) not in (default, *ALSO_DEFAULT.get(name, ()))
    return False


def refuse_unused(args: TrainingArguments, reasons: Mapping[str, str] = UNUSED) -> None:
    """Raise `BadInput` if a field that has no effect, or that is not known here, differs from its default.

    Args:
        reasons: by field, why it has no effect.
    """
    new = f"transformers {transformers.__version__} has it, and this release of hictl_hf does not know it"
    unknown = {item.name: new for item in fields(TrainingArguments) if item.name not in HANDLED | UNUSED.keys()}
    for name, reason in {**unknown, **reasons}.items():
        if differs(args, name):
            raise BadInput(f"{name} is {getattr(args, name)}, which has no effect here: {reason}; leave it out")


def refuse_lonely(args: TrainingArguments) -> None:
    """Raise `BadInput` for a field that only has an effect together with another one, in arguments that were made."""
    trackers = args.report_to or []
    checkpointing = args.gradient_checkpointing or getattr(args, "activation_checkpointing", False)
    needs = {
        "run_name": ({*trackers} - {"tensorboard"}, "--report_to wandb, or another with names"),
        "activation_checkpointing_kwargs": (checkpointing, "--activation_checkpointing true"),
        "gradient_checkpointing_kwargs": (checkpointing, "--activation_checkpointing true"),
        "early_stopping_threshold": (getattr(args, "early_stopping_patience", 1), "--early_stopping_patience"),
        **dict.fromkeys(OF_TRACKIO, ("trackio" in trackers, "--report_to trackio")),
    }
    for name, (given, fix) in needs.items():
        if not given and differs(args, name):
            raise BadInput(f"{name} is {getattr(args, name)}, which has no effect alone; add {fix}, or leave it out")

    if args.save_strategy == "best" and args.eval_strategy == "no":
        raise BadInput("save_strategy is best, and nothing is evaluated; give --eval_strategy steps")
    if args.load_best_model_at_end and args.eval_strategy == "no":
        raise BadInput(
            "load_best_model_at_end is true, and nothing is evaluated; give --eval_strategy and --save_strategy steps, "
            "or leave it out"
        )


def idle_steps(args: TrainingArguments) -> list[str]:
    """A sentence for each length that is given and has no effect; a recipe may have it for other flags."""
    kinds = {"eval_steps": "eval_strategy", "save_steps": "save_strategy", "logging_steps": "logging_strategy"}
    chosen = {kind: getattr(strategy := getattr(args, kind), "value", strategy) for kind in kinds.values()}
    because = {name: f"--{kind} {chosen[kind]}" for name, kind in kinds.items() if chosen[kind] != "steps"}
    if args.max_steps > 0:
        because["num_train_epochs"] = f"--max_steps {args.max_steps}"
    if (schedule := args.lr_scheduler_type.value) in ("constant", *BY_METRIC):
        because["warmup_steps"] = f"--lr_scheduler_type {schedule}"
    if chosen["eval_strategy"] == "no":
        because["eval_delay"] = "--eval_strategy no"
    given = [name for name in because if differs(args, name)]
    return [f"{name} is {getattr(args, name):g}, which has no effect with {because[name]}" for name in given]


def refuse_optimizer(args: TrainingArguments) -> None:
    """Raise `BadInput` for an optimizer that cannot work here, and for settings that it does not read."""
    name = str(args.optim.value)
    for part, reason in REFUSED_OPTIMIZERS.items():
        if part in name:
            raise BadInput(f"optim is {name}: {reason}; allowed are adamw_torch_fused, adafactor, sgd and others")
    given = [each.partition("=")[0].strip() for each in (args.optim_args or "").split(",") if each.strip()]
    allowed = OPTIM_ARGS.get(name, given)
    if unread := [key for key in given if key not in allowed]:
        known = f"allowed are {', '.join(allowed)}" if allowed else "it reads none"
        raise BadInput(f"optim_args is {args.optim_args}: {name} does not read {', '.join(unread)}; {known}")
    if args.optim_target_modules is not None and not name.startswith(("galore", "apollo")):
        raise BadInput(
            f"optim_target_modules is {args.optim_target_modules}, which {name} does not read; allowed with galore and "
            "apollo; leave it out"
        )


def refuse_wrong_mode(args: TrainingArguments) -> None:
    """Raise `BadInput` for a learning rate that would take a rising metric for a falling one, or the reverse, and for
    settings that it does not read."""
    kind = args.lr_scheduler_type.value
    if args.lr_scheduler_kwargs and kind.startswith("constant"):
        raise BadInput(f"lr_scheduler_kwargs is {args.lr_scheduler_kwargs}, which {kind} does not read; leave it out")
    mode, right = (args.lr_scheduler_kwargs or {}).get("mode", "min"), "max" if args.greater_is_better else "min"
    if kind in BY_METRIC and mode != right:
        better = "more" if args.greater_is_better else "less"
        raise BadInput(
            f"lr_scheduler_type is {kind}, whose mode is {mode}, and {better} is better in "
            f"{args.metric_for_best_model}; "
            f'give --lr_scheduler_kwargs \'{{"mode": "{right}"}}\''
        )
