"""The settings of a run, whatever it trains: dictionaries among them, the repository it is pushed to, and that a run is
continued as it was begun. Which settings there are is left to the dataclass of the command, how they are given to
`parsing`."""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from transformers import Trainer, TrainingArguments
from transformers.integrations import get_available_reporting_integrations
from transformers.trainer_utils import HubStrategy

from ..errors import BadInput

UNUSED = {  # what HF's Trainer knows and none of ours does, and why
    "neftune_noise_alpha": "no noise is added to embeddings",
    "data_seed": "--seed decides the order of rows, too",
    "dataloader_drop_last": "all rows are trained on",
    "remove_unused_columns": "the collator reads all columns",
    "save_only_model": "a run that was interrupted goes on exactly, with its optimiser",
    "ignore_data_skip": "a run that was interrupted goes on exactly, with the rows that are left",
}
FROM_AND_BELOW = {  # allowed numbers, which HF's Trainer does not check, or not before it trains
    "learning_rate": (0, math.inf), "weight_decay": (0, math.inf), "adam_beta1": (0, 1), "adam_beta2": (0, 1),
    "adam_epsilon": (0, math.inf), "max_grad_norm": (0, math.inf), "num_train_epochs": (0, math.inf),
    "logging_steps": (0, math.inf), "eval_steps": (0, math.inf), "save_steps": (0, math.inf),
    "dataloader_num_workers": (0, math.inf), "seed": (0, 2**32),
}  # fmt: skip


@dataclass
class RunArguments(TrainingArguments):
    """HF's training arguments, of every supported transformers under their newest names."""

    if "activation_checkpointing" not in {known.name for known in fields(TrainingArguments)}:  # before 5.23
        activation_checkpointing: bool = field(
            default=False, metadata={"help": "Compute activations again in the backward pass instead of keeping them."}
        )
        activation_checkpointing_kwargs: dict[str, Any] | str | None = field(
            default=None, metadata={"help": "How, as JSON: what torch.utils.checkpoint takes."}
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
    """A dictionary given as such, as JSON, or not at all."""
    try:
        result = json.loads(value) if isinstance(value, str) else value or {}
    except json.JSONDecodeError as error:
        raise BadInput(f"{name} is no JSON: {value!r} ({error}); write for example '{{\"key\": 1}}'") from error
    if not isinstance(result, dict):
        raise BadInput(f"{name} is {result!r}; it must be a JSON object, for example '{{\"key\": 1}}'")
    return result


def read_dictionaries(arguments: Any, settings: Mapping[str, type[Any]]) -> None:
    """Make dictionaries of these arguments, whose keys must be fields with a default of the classes they are for."""
    for name, kind in settings.items():
        given = read_dictionary(name, getattr(arguments, name))
        known = {item.name for item in fields(kind) if (item.default, item.default_factory) != (MISSING, MISSING)}
        setattr(arguments, name, given)
        if unknown := sorted(given.keys() - known):
            raise BadInput(f"{name} has no field {', '.join(unknown)}; it has {', '.join(sorted(known))}")


def refuse_unused(args: TrainingArguments, reasons: Mapping[str, str]) -> None:
    """Raise `BadInput` where one of these arguments, each with why it changes nothing, is not as it is by default."""
    for item in fields(args):
        if item.name in reasons and (value := getattr(args, item.name)) != item.default:
            raise BadInput(f"{item.name} is {value}, which has no effect here: {reasons[item.name]}; leave it out")


def refuse_impossible(args: TrainingArguments) -> None:
    """Raise `BadInput` for numbers that are none of their kind and reports to what is not installed, `ImportError` for
    optimisers that are not."""
    if args.max_steps == 0:
        raise BadInput("max_steps is 0; allowed is 1 or more, or -1, with which num_train_epochs decides")
    if args.num_train_epochs == 0 and args.max_steps < 0:
        raise BadInput("num_train_epochs is 0; allowed is more than 0, or max_steps of 1 or more beside it")
    for name, (least, bound) in FROM_AND_BELOW.items():
        value = getattr(args, name)
        if value is not None and not least <= value < bound:
            below = f" and below {bound}" if bound < math.inf else ""
            raise BadInput(f"{name} is {value}; allowed is {least} or more{below}")
    here = get_available_reporting_integrations()
    if missing := [name for name in args.report_to if name not in here]:
        raise BadInput(
            f"report_to is {', '.join(missing)}, which is not installed; allowed here are {', '.join(['none', *here])}"
        )
    with suppress(ValueError):  # of optimisers that have to see the model
        Trainer.get_optimizer_cls_and_kwargs(args)


def repository_to_publish_to(args: TrainingArguments) -> str | None:
    """Where a run is to be pushed when it has ended. HF's Trainer is told to push nothing: what it would push of a run
    that goes on is no finished model, and a card of its own."""
    if args.hub_token:
        raise BadInput(
            "hub_token was given, which would stand in the command that a run keeps and publishes; log in by "
            "`hf auth login`, or set HF_TOKEN"
        )
    if not args.push_to_hub:
        return None
    if not args.hub_model_id:
        raise BadInput("push_to_hub needs the name of the repository; give --hub_model_id your-name/model")
    if args.hub_revision:
        raise BadInput(f"hub_revision is {args.hub_revision}; allowed is none: a run goes to main; leave it out")
    if HubStrategy(args.hub_strategy) in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
        raise BadInput(f"hub_strategy is {args.hub_strategy}; allowed is end: a run is pushed whole, when it has ended")
    args.push_to_hub = False
    return str(args.hub_model_id)


def plain_settings(args: TrainingArguments) -> dict[str, Any]:
    """All of them by name, as values that JSON knows."""
    settings: dict[str, Any] = json.loads(json.dumps(args.to_dict(), default=str))
    return settings
