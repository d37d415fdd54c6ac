"""Arguments that all training runs share, and their checks; each command adds its own dataclass."""

import json
import math
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments, get_scheduler
from transformers.integrations import get_available_reporting_integrations
from transformers.trainer_utils import HubStrategy, SchedulerType
from transformers.utils import is_liger_kernel_available

from ..errors import BadInput

UNUSED = {  # arguments of HF's Trainer that have no effect here, and why
    "neftune_noise_alpha": "no noise is added to embeddings",
    "data_seed": "--seed decides the order of examples, too",
    "dataloader_drop_last": "all examples are trained on",
    "remove_unused_columns": "the collator reads all columns",
    "save_only_model": "an interrupted run is continued exactly, with its optimiser",
    "ignore_data_skip": "an interrupted run is continued exactly, with the examples not seen yet",
    "full_determinism": "a GPU has no deterministic cumulative sum, which draws words; on a CPU runs are deterministic",
}
RANGES = {  # least value, and what the value must be below; HF's Trainer checks these late or not at all
    "learning_rate": (0, math.inf), "weight_decay": (0, math.inf), "adam_beta1": (0, 1), "adam_beta2": (0, 1),
    "adam_epsilon": (0, math.inf), "max_grad_norm": (0, math.inf), "num_train_epochs": (0, math.inf),
    "logging_steps": (0, math.inf), "eval_steps": (0, math.inf), "save_steps": (0, math.inf),
    "dataloader_num_workers": (0, math.inf), "seed": (0, 2**32),
}  # fmt: skip


@dataclass
class RunArguments(TrainingArguments):
    """HF's training arguments under their newest names, in every supported release of transformers."""

    if "activation_checkpointing" not in {known.name for known in fields(TrainingArguments)}:  # before 5.23
        activation_checkpointing: bool = field(
            default=False, metadata={"help": "Recompute activations in the backward pass instead of storing them."}
        )
        activation_checkpointing_kwargs: dict[str, Any] | str | None = field(
            default=None, metadata={"help": "Arguments of torch.utils.checkpoint, as JSON."}
        )

    def __post_init__(self) -> None:
        if "activation_checkpointing" not in {known.name for known in fields(TrainingArguments)}:
            self.gradient_checkpointing |= self.activation_checkpointing
            self.activation_checkpointing = self.gradient_checkpointing
            given = self.activation_checkpointing_kwargs or vars(self)["gradient_checkpointing_kwargs"]
            self.activation_checkpointing_kwargs = read_dictionary("activation_checkpointing_kwargs", given) or None
            self.gradient_checkpointing_kwargs = self.activation_checkpointing_kwargs
        super().__post_init__()


def read_dictionary(name: str, value: dict[str, Any] | str | None) -> dict[str, Any]:
    """Return a dictionary that is given as such, as JSON, or not at all."""
    try:
        result = json.loads(value) if isinstance(value, str) else value or {}
    except json.JSONDecodeError as error:
        raise BadInput(f"{name} is not JSON: {value!r} ({error}); write for example '{{\"key\": 1}}'") from error
    if not isinstance(result, dict):
        raise BadInput(f"{name} is {result!r}; it must be a JSON object, for example '{{\"key\": 1}}'")
    return result


def read_dictionaries(arguments: Any, settings: Mapping[str, type[Any]]) -> None:
    """Parse these arguments as dictionaries, whose keys must be fields with a default of the given classes."""
    for name, kind in settings.items():
        given = read_dictionary(name, getattr(arguments, name))
        setattr(arguments, name, given)
        refuse_unknown_keys(name, given, fields_with_default(kind))


def fields_with_default(kind: type[Any]) -> set[str]:
    """The names of the fields of a dataclass that may be left out."""
    return {item.name for item in fields(kind) if (item.default, item.default_factory) != (MISSING, MISSING)}


def refuse_unknown_keys(name: str, given: Mapping[str, Any], known: Set[str]) -> None:
    """Raise `BadInput` for keys of a dictionary that have no effect."""
    if unknown := sorted(given.keys() - known):
        raise BadInput(f"{name} has no field {', '.join(unknown)}; it has {', '.join(sorted(known))}")


def refuse_unused(args: TrainingArguments, reasons: Mapping[str, str]) -> None:
    """Raise `BadInput` if one of these arguments differs from its default.

    Args:
        reasons: by argument, why it has no effect.
    """
    for item in fields(args):
        if item.name in reasons and (value := getattr(args, item.name)) != item.default:
            raise BadInput(f"{item.name} is {value}, which has no effect here: {reasons[item.name]}; leave it out")


def refuse_impossible(args: TrainingArguments) -> None:
    """Raise `BadInput` for numbers out of range, FSDP and a `report_to` that is not installed; `ImportError` for
    optimisers that are not installed."""
    if args.max_steps == 0:
        raise BadInput("max_steps is 0; allowed is 1 or more, or -1, with which num_train_epochs decides")
    if args.num_train_epochs == 0 and args.max_steps < 0:
        raise BadInput("num_train_epochs is 0; allowed is more than 0, or any with max_steps of 1 or more")
    for name, (least, bound) in RANGES.items():
        value = getattr(args, name)
        if value is not None and not least <= value < bound:
            below = f" and below {bound}" if bound < math.inf else ""
            raise BadInput(f"{name} is {value}; allowed is {least} or more{below}")
    if args.fsdp:
        raise BadInput(
            f"fsdp is {args.fsdp}; allowed is none: a step needs complete word embeddings; leave it out, or in "
            "pre-training give --shard_parameters true"
        )
    here = get_available_reporting_integrations()
    if missing := [name for name in args.report_to if name not in here]:
        raise BadInput(
            f"report_to is {', '.join(missing)}, which is not installed; allowed here are {', '.join(['none', *here])}"
        )
    with suppress(ValueError):  # raised for optimisers that need the model
        Trainer.get_optimizer_cls_and_kwargs(args)
    refuse_failing_parts(args)


def refuse_failing_parts(args: TrainingArguments) -> None:
    """Raise `BadInput` for settings that a part of the Trainer would refuse, by making that part of nothing.

    HF's Trainer makes it after the data was read, and ends in a traceback.
    """
    nothing: Any = [0]
    workers = {"num_workers": args.dataloader_num_workers, "persistent_workers": args.dataloader_persistent_workers}
    with refused("dataloader_", {**workers, "prefetch_factor": args.dataloader_prefetch_factor}):
        DataLoader(nothing, prefetch_factor=args.dataloader_prefetch_factor, **workers)
    kind, settings = SchedulerType(args.lr_scheduler_type), args.lr_scheduler_kwargs
    with refused("lr_scheduler_", {"type": kind.value, "kwargs": settings}):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        get_scheduler(kind, optimizer, 1, 10, settings)
    if args.fp16 and not torch.accelerator.is_available():
        raise BadInput("fp16 is true, which needs a GPU; allowed here are bf16 and fp32; leave it out, or give --bf16")
    if args.torch_compile:
        with refused("torch_compile_", {"backend": args.torch_compile_backend, "mode": args.torch_compile_mode}):
            torch.compile(torch.nn.Identity(), backend=args.torch_compile_backend, mode=args.torch_compile_mode)
    if args.use_liger_kernel and not is_liger_kernel_available():
        raise BadInput("use_liger_kernel is true, but liger-kernel is not installed; install it, or leave it out")


@contextmanager
def refused(prefix: str, settings: Mapping[str, Any]) -> Iterator[None]:
    """Turn an exception of a library into `BadInput` with the settings that it was given."""
    try:
        yield
    except Exception as error:  # torch has several types
        given = ", ".join(f"{prefix}{name} {value!r}" for name, value in settings.items())
        raise BadInput(f"{given}: do not work ({' '.join(str(error).split())}); change one, or leave it out") from error


def repository_to_publish_to(args: TrainingArguments) -> str | None:
    """Return the repository to push to when the run has ended, and turn off HF's own pushing, which would push
    unfinished models with another card."""
    if args.hub_token:
        raise BadInput(
            "hub_token was given, which would be stored and published with the command of the run; log in by "
            "`hf auth login`, or set HF_TOKEN"
        )
    if not args.push_to_hub:
        return None
    if not args.hub_model_id:
        raise BadInput("push_to_hub needs the name of the repository; give --hub_model_id your-name/model")
    if args.hub_revision:
        raise BadInput(f"hub_revision is {args.hub_revision}; allowed is none: a run is pushed to main; leave it out")
    if HubStrategy(args.hub_strategy) in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
        raise BadInput(f"hub_strategy is {args.hub_strategy}; allowed is end: a run is pushed once, when it has ended")
    args.push_to_hub = False
    return str(args.hub_model_id)


def plain_settings(args: TrainingArguments) -> dict[str, Any]:
    """Return all arguments by name, as values that JSON can represent."""
    settings: dict[str, Any] = json.loads(json.dumps(args.to_dict(), default=str))
    return settings
