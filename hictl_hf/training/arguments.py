"""Arguments that all training runs share, and their checks; each command adds its own dataclass."""

import inspect
import json
import logging
import math
import os
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from typing import Any, ClassVar

import torch
from accelerate.utils import parse_flag_from_env
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Trainer, TrainingArguments, get_scheduler
from transformers.debug_utils import DebugOption
from transformers.integrations import get_available_reporting_integrations, is_deepspeed_zero3_enabled
from transformers.trainer_utils import HubStrategy, IntervalStrategy, SchedulerType

from ..errors import BadInput
from .fields import OF_THE_HUB, OPTIM_ARGS, differs, refuse_lonely, refuse_optimizer, refuse_wrong_mode
from .fingerprint import plain

logger = logging.getLogger(__name__)

RANGES = {  # least value, and what the value must be below; HF's Trainer checks these late or not at all
    "learning_rate": (0, math.inf), "weight_decay": (0, math.inf), "adam_beta1": (0, 1), "adam_beta2": (0, 1),
    "adam_epsilon": (1e-38, math.inf), "max_grad_norm": (0, math.inf), "num_train_epochs": (0, math.inf),
    "logging_steps": (0, math.inf), "eval_steps": (0, math.inf), "save_steps": (0, math.inf),
    "dataloader_num_workers": (0, math.inf), "dataloader_prefetch_factor": (1, math.inf),
    "seed": (0, 2**32), "warmup_steps": (0, math.inf), "gradient_accumulation_steps": (1, math.inf),
    "eval_delay": (0, math.inf), "early_stopping_threshold": (0, math.inf), "save_total_limit": (0, math.inf),
}  # fmt: skip

BEFORE_5_23 = "activation_checkpointing" not in {known.name for known in fields(TrainingArguments)}
DICTIONARIES = ("lr_scheduler_kwargs", "activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")


@dataclass
class RunArguments(TrainingArguments):
    """HF's training arguments under their newest names, in every supported release of transformers."""

    REFUSED: ClassVar[Mapping[str, str]] = {}  # field -> why, for `--help`

    hub_strategy: str = field(
        default=HubStrategy.END.value,
        metadata={
            "help": "When to push: end, once and complete; every_save, at each checkpoint too; checkpoint and "
            "all_checkpoints, with the last or each checkpoint."
        },
    )
    do_train: bool | None = field(default=None, metadata={"help": "Train; by default where there are sources for it."})
    do_eval: bool | None = field(default=None, metadata={"help": "Evaluate; by default where there are pairs for it."})
    do_predict: bool | None = field(
        default=None, metadata={"help": "Translate the test set; by default where there is one."}
    )
    early_stopping_patience: int | None = field(
        default=None,
        metadata={
            "help": "End the training after so many evaluations in a row without a better metric_for_best_model."
        },
    )
    early_stopping_threshold: float = field(
        default=0.0, metadata={"help": "How much more than the best value is better, for early_stopping_patience."}
    )

    if BEFORE_5_23:  # transformers calls it gradient checkpointing
        activation_checkpointing: bool = field(
            default=False, metadata={"help": "Recompute activations in the backward pass instead of storing them."}
        )
        activation_checkpointing_kwargs: dict[str, Any] | str | None = field(
            default=None, metadata={"help": "Arguments of torch.utils.checkpoint, as JSON."}
        )

    def __post_init__(self) -> None:
        choose_precision_and_device(self)
        if BEFORE_5_23:
            self.gradient_checkpointing |= self.activation_checkpointing
            self.activation_checkpointing = self.gradient_checkpointing
            given = self.activation_checkpointing_kwargs or vars(self)["gradient_checkpointing_kwargs"]
            self.activation_checkpointing_kwargs = read_dictionary("activation_checkpointing_kwargs", given) or None
            self.gradient_checkpointing_kwargs = self.activation_checkpointing_kwargs
        for name in DICTIONARIES:
            if isinstance(value := getattr(self, name, None), str):
                setattr(self, name, read_dictionary(name, value))
        trackers: Any = vars(self)["report_to"] or []
        trackers = [trackers] if isinstance(trackers, str) else trackers
        if any("," in name for name in trackers):
            self.report_to = [name.strip() for names in trackers for name in names.split(",")]
        refuse_zero_steps(self)
        refuse_out_of_range(self)
        super().__post_init__()


def refuse_zero_steps(args: Any) -> None:
    """Raise `BadInput` for evaluations or checkpoints every 0 steps, which HF's Trainer reads as every `logging_steps`
    and as the last step alone."""
    for name, kind in (("eval_steps", "eval_strategy"), ("save_steps", "save_strategy")):
        if getattr(args, name) == 0 and getattr(args, kind) == "steps":
            raise BadInput(f"{name} is 0; allowed is more than 0, below 1 a share of all steps; for none: --{kind} no")


def refuse_out_of_range(args: Any) -> None:
    """Raise `BadInput` for a number out of its range."""
    for name, (least, bound) in RANGES.items():
        value = getattr(args, name, None)
        if value is not None and not least <= value < bound:
            below = f" and below {bound}" if bound < math.inf else " and finite" * (not math.isfinite(value))
            raise BadInput(f"{name} is {value}; allowed is {least} or more{below}")


def choose_precision_and_device(args: Any) -> None:
    """Take the precision and the CPU that accelerate's configuration gives, and the CPU where there is no CUDA."""
    precision = precision_of_launcher()
    if not (args.bf16 or args.fp16):  # flags win
        args.bf16, args.fp16 = precision == "bf16", precision == "fp16"
    if not args.use_cpu:
        warn_of_other_accelerators()
    args.use_cpu |= not gpu_is_used()  # or HF takes another accelerator, and refuses bf16 where there is none


def gpu_is_used() -> bool:
    """Whether training uses a GPU: one of CUDA or ROCm, unless accelerate's configuration asks for the CPU."""
    return torch.cuda.is_available() and not parse_flag_from_env("ACCELERATE_USE_CPU")


def warn_of_other_accelerators() -> None:
    """Log an accelerator that training does not use, unless accelerate's configuration asks for the CPU anyway."""
    on_purpose = parse_flag_from_env("ACCELERATE_USE_CPU")
    if torch.accelerator.is_available() and not torch.cuda.is_available() and not on_purpose:
        kind = torch.accelerator.current_accelerator()
        logger.warning("training runs on the CPU: it uses GPUs of CUDA or ROCm, and this machine has %s", kind)


def precision_of_launcher() -> str:
    """The precision that accelerate's configuration, or its flag `--mixed_precision`, gives a process."""
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in ("no", "fp16", "bf16"):
        raise BadInput(f"mixed_precision of accelerate is {precision}; allowed are no, fp16 and bf16; choose one there")
    return precision


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


def refuse_unknown_keys(name: str, given: Mapping[str, Any], known: Set[str], where: str = "") -> None:
    """Raise `BadInput` for keys of a dictionary that have no effect; the message says `where`."""
    if unknown := sorted(given.keys() - known):
        nearest = "".join(f"did you mean {each}? " for each in get_close_matches(unknown[0], sorted(known), 1, 0.75))
        raise BadInput(f"{name} has no field {', '.join(unknown)}{where}; {nearest}it has {', '.join(sorted(known))}")


def refuse_unknown_fields(
    encoder: str, config: Any, settings: Mapping[str, Any], argument: str = "config_overrides"
) -> None:
    """Raise `BadInput` for settings, of an argument, that the configuration of this family does not have."""
    refuse_unknown_keys(argument, settings, {item.name for item in fields(config)}, f" with {encoder}")


def refuse_impossible(args: TrainingArguments) -> None:
    """Raise `BadInput` for a training without a step, FSDP and a `report_to` that is not installed; `ImportError` for
    optimisers that are not installed."""
    if args.max_steps == 0 or args.max_steps < -1:
        raise BadInput(
            f"max_steps is {args.max_steps}; allowed is 1 or more, or -1, with which num_train_epochs decides"
        )
    if args.num_train_epochs == 0 and args.max_steps < 0:
        raise BadInput("num_train_epochs is 0; allowed is more than 0, or any with max_steps of 1 or more")
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
    refuse_optimizer(args)
    with suppress(ValueError):  # raised for optimisers that need the model
        Trainer.get_optimizer_cls_and_kwargs(args)
    refuse_wrong_mode(args)
    refuse_lonely(args)
    patience = getattr(args, "early_stopping_patience", None)
    if patience is not None and (patience < 1 or args.eval_strategy == IntervalStrategy.NO):
        raise BadInput(
            f"early_stopping_patience is {patience} and eval_strategy {args.eval_strategy.value}; allowed is 1 or more "
            "evaluations; give --eval_strategy steps or epoch and pairs to evaluate on, or leave it out"
        )
    several = args.gradient_accumulation_steps > 1 or args.auto_find_batch_size
    if args.ddp_static_graph and several:
        raise BadInput(
            "ddp_static_graph is true with several micro-batches a step (gradient_accumulation_steps, or "
            "auto_find_batch_size), with which PyTorch ends in an internal error; allowed is one; leave it out"
        )
    if args.use_cpu and differs(args, "ddp_timeout"):
        raise BadInput(
            f"ddp_timeout is {args.ddp_timeout}, which transformers does not pass on without a GPU; leave it out"
        )
    if DebugOption.TPU_METRICS_DEBUG in args.debug:
        raise BadInput("debug is tpu_metrics_debug, which needs a TPU; allowed is underflow_overflow")
    refuse_failing_parts(args)


def refuse_unsupported_devices(args: TrainingArguments, how_to_save_memory: str, fsdp: bool = False) -> None:
    """Raise `BadInput` for several GPUs in one process, one without its GPU, and for launchers that spread the word
    embeddings.

    Args:
        how_to_save_memory: what the message offers instead of FSDP and ZeRO-3.
        fsdp: whether Accelerate was found to use FSDP; before it starts, its environment says so.
    """
    refuse_several_gpus(args.n_gpu)
    if args.device.type == "cuda" and args.world_size > 1:
        refuse_hidden_gpu(args.local_process_index, torch.cuda.device_count())
    if fsdp or parse_flag_from_env("ACCELERATE_USE_FSDP") or is_deepspeed_zero3_enabled():
        raise BadInput(
            "Accelerate's FSDP (--fsdp) and DeepSpeed ZeRO-3 spread the word embeddings over processes, but a step "
            f"needs them complete; use DDP or ZeRO-1 or 2, with {how_to_save_memory} to save memory"
        )


def refuse_several_gpus(number: int) -> None:
    """Raise `BadInput` if a process that trains sees several GPUs, for which HF's Trainer takes `nn.DataParallel`."""
    if number > 1:
        raise BadInput(
            f"one process sees {number} GPUs and would split its batches between them; start one process for each "
            "(accelerate launch, torchrun), or choose one GPU by CUDA_VISIBLE_DEVICES"
        )


def refuse_hidden_gpu(number: int, visible: int) -> None:
    """Raise `BadInput` if the process of this number on its machine does not see the GPU that accelerate gives to DDP
    and to barriers, the one of its number: CUDA would end the run at its first step, after the data was read."""
    if number >= visible:
        raise BadInput(
            f"process {number} of its machine sees {visible} GPU{'s' * (visible > 1)}, and its own would be number "
            f"{number}, from 0; start as many processes as a machine has GPUs, and let each see all of them (srun: "
            "--gpus-per-node, no --gpus-per-task); where each sees its own alone, set LOCAL_RANK=0 in all"
        )


def refuse_failing_parts(args: TrainingArguments) -> None:
    """Raise `BadInput` for settings that a part of the Trainer would refuse, by making that part of nothing.

    HF's Trainer makes it after the data was read, and ends in a traceback.
    """
    nothing: Any = [0]
    names = ("num_workers", "persistent_workers", "prefetch_factor", "multiprocessing_context")
    workers = {name: getattr(args, f"dataloader_{name}") for name in names}
    with refused("dataloader_", workers):
        DataLoader(nothing, **workers)
    kind, settings = SchedulerType(args.lr_scheduler_type), args.lr_scheduler_kwargs
    # without max_steps the examples decide how many there are
    steps, warmup = (args.max_steps, args.get_warmup_steps(args.max_steps)) if args.max_steps > 0 else (10, 1)
    given = {"lr_scheduler_type": kind.value, "lr_scheduler_kwargs": settings, "max_steps": args.max_steps}
    with refused("", {**given, "warmup_steps": args.warmup_steps}):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        scheduler = get_scheduler(kind, optimizer, warmup, steps, settings)
        for rate in getattr(scheduler, "lr_lambdas", ()):
            [*map(rate, (0, 1, warmup, steps - 1, steps))]  # some read their settings only in a later step
    if str(args.optim.value) in OPTIM_ARGS:
        with refused("optim", {"": args.optim.value, "_args": args.optim_args}):
            make, values = Trainer.get_optimizer_cls_and_kwargs(args)
            make([torch.zeros(1, requires_grad=True)], **{**values, "lr": 0.1})
    recompute = args.gradient_checkpointing_kwargs or getattr(args, "activation_checkpointing_kwargs", None)
    if recompute:
        enable = getattr(
            PreTrainedModel, "activation_checkpointing_enable", PreTrainedModel.gradient_checkpointing_enable
        )
        of_transformers = inspect.signature(enable).parameters  # what it does not pass on to PyTorch
        passed_on = {name: value for name, value in recompute.items() if name not in of_transformers}
        with refused("activation_checkpointing_", {"kwargs": recompute}):
            checkpoint(torch.nn.Identity(), torch.zeros(1, requires_grad=True), **{"use_reentrant": False, **passed_on})
            range(0, 1, recompute.get("every_n_layers", 1))
    if args.fp16 and args.device.type == "cpu":
        raise BadInput("fp16 is true, which needs a GPU; allowed here are bf16 and fp32; leave it out, or give --bf16")
    if (recompute or {}).get("offload") and not torch.accelerator.is_available():
        raise BadInput(
            "activation_checkpointing_kwargs has offload, which moves activations from a GPU to memory, and there is "
            "no GPU; leave it out"
        )
    if args.torch_compile:
        with refused("torch_compile_", {"backend": args.torch_compile_backend, "mode": args.torch_compile_mode}):
            torch.compile(torch.nn.Identity(), backend=args.torch_compile_backend, mode=args.torch_compile_mode)


@contextmanager
def refused(prefix: str, settings: Mapping[str, Any]) -> Iterator[None]:
    """Turn an exception of a library into `BadInput` with the settings that it was given."""
    try:
        yield
    except Exception as error:  # torch has several types
        given = ", ".join(f"{prefix}{name} {value!r}" for name, value in settings.items())
        raise BadInput(f"{given}: do not work ({' '.join(str(error).split())}); change one, or leave it out") from error


def repository_to_publish_to(args: TrainingArguments) -> str | None:
    """Return the repository to push to, and turn off HF's own pushing: it would push checkpoints that are not complete
    yet, other files of output_dir, and no card (`hub.during_training` pushes instead)."""
    if args.hub_token:
        raise BadInput(
            "hub_token was given, which would be stored and published with the command of the run; log in by "
            "`hf auth login`, or set HF_TOKEN"
        )
    if not args.push_to_hub:
        if alone := [name for name in OF_THE_HUB if differs(args, name)]:
            raise BadInput(f"{', '.join(alone)}: has no effect alone; add --push_to_hub true, or leave it out")
        return None
    if not args.hub_model_id:
        raise BadInput("push_to_hub needs the name of the repository; give --hub_model_id your-name/model")
    if args.hub_revision:
        raise BadInput(f"hub_revision is {args.hub_revision}; allowed is none: a run is pushed to main; leave it out")
    allowed = [each.value for each in HubStrategy]
    if args.hub_strategy not in allowed:
        raise BadInput(f"hub_strategy is {args.hub_strategy}; allowed are {', '.join(allowed)}")
    if args.hub_always_push and args.hub_strategy == HubStrategy.END:
        raise BadInput("hub_always_push is true, and a run is pushed once; add --hub_strategy every_save")
    args.push_to_hub = False
    return str(args.hub_model_id)


def plain_settings(args: TrainingArguments) -> dict[str, Any]:
    """Return all arguments by name, as values that JSON can represent."""
    return plain(args.to_dict())
