"""Parse the arguments of a command into its dataclass: from flags, or from a recipe file and flags that override it."""

import json
import logging
import re
import sys
from argparse import Action, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from textwrap import fill
from types import NoneType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

import torch
import yaml
from transformers import HfArgumentParser, TrainingArguments
from transformers.utils import CONFIG_NAME

from .dtypes import warn_where_slow
from .errors import DEBUG, DEBUG_HELP, BadInput, add_debug, nearest_name, short_repr
from .files import check_place
from .former_names import ARGUMENTS

logger = logging.getLogger(__name__)

RECIPE = "The first argument may be a recipe, a JSON or YAML file with these settings; flags override it."
BASED_ON = "based_on"  # key of a recipe: other recipes, by paths relative to it, whose settings it changes
OF_TRANSFORMERS = "Hugging Face's TrainingArguments"
EXAMPLE = re.compile(r"^ *((?:cat .*)?hictl .*)", re.MULTILINE)  # a line of a docstring that can be typed
RECIPES = Path(__file__).parent / "recipes"  # of this package, a link to the folder of the repository
RENAMED = {"text_mask_rate": "mlm_probability", "pair_mask_rate": "tlm_probability"}  # 0.7 -> 0.8
ELSEWHERE = {  # wrong spellings, and names of other tools -> ours, one of which a command has
    "model": ("model_name_or_path",), "model_name": ("model_name_or_path", "model"),
    "model_path": ("model_name_or_path", "model"), "model_name_or_path": ("model",),
    "pretrained_model_name_or_path": ("model_name_or_path", "model"), "tokenizer_path": ("tokenizer_name",),
    "config": ("config_name",), "config_file": ("config_name",), "train_files": ("train_file",),
    "training_file": ("train_file",), "training_data": ("train_file",), "train_data_file": ("train_file",),
    "train_path": ("train_file",), "data_file": ("train_file",), "data_dir": ("data", "train_file"),
    "data": ("train_file",), "guard_file": ("guard_data",),
    "dataset": ("dataset_name", "data"), "dataset_config": ("dataset_config_name",), "dev_file": ("validation_file",),
    "valid_file": ("validation_file",), "eval_file": ("validation_file",), "eval_data_file": ("validation_file",),
    "validation_data": ("validation_file",), "predict_file": ("test_file",), "max_length": ("max_seq_length",),
    "max_seq_len": ("max_seq_length",), "max_sequence_length": ("max_seq_length",),
    "block_size": ("max_seq_length",), "max_source_length": ("max_seq_length",), "beam_size": ("num_beams",),
    "beam": ("num_beams",), "beams": ("num_beams",), "n_beams": ("num_beams",), "lr": ("learning_rate",),
    "train_batch_size": ("per_device_train_batch_size",), "per_gpu_train_batch_size": ("per_device_train_batch_size",),
    "eval_batch_size": ("per_device_eval_batch_size",), "num_epochs": ("num_train_epochs",),
    "n_epochs": ("num_train_epochs",), "warmup_ratio": ("warmup_steps",), "out_dir": ("output_dir",),
    "output_path": ("output_dir", "output"),
    "output_dir": ("output",), "output": ("output_dir",), "output_file": ("output",), "input_file": ("input",),
    "tgt_lang": ("target_lang",), "src_lang": ("source_lang",), "target_language": ("target_lang",),
    "source_language": ("source_lang",), "num_workers": ("preprocessing_num_workers",), "revision": ("model_revision",),
    "evaluation_strategy": ("eval_strategy",), "evaluate_during_training": ("eval_strategy",),
    "approximate": ("index",),
    "gradient_checkpointing": ("activation_checkpointing",), "push_to_hub_model_id": ("hub_model_id",),
    "cpu": ("use_cpu",), "no_cuda": ("use_cpu",), "task_name": ("tasks",), "task": ("tasks",),
    "language": ("languages",), "encoder": ("model",),
}  # fmt: skip
IN_A_FOLDER = "XTREME's files are in the folder --data"
REASONS = {  # what transformers' example scripts have -> why a command has not; the first whose argument it has, or ""
    "overwrite_output_dir": {"": "no folder is written over; choose another --output_dir"},
    "cache_dir": {"": "set the environment variable HF_HOME"},
    "overwrite_cache": {"": "a cached result has the hash of its input in its name, so it is never stale"},
    "trust_remote_code": {"": "no code of a checkpoint is run"},
    "token": {"": "it would be stored with the command; log in by `hf auth login`, or set HF_TOKEN"},
    "use_auth_token": {"": "log in by `hf auth login`, or set HF_TOKEN"},
    "use_fast_tokenizer": {"": "tokenizers are fast ones"},
    "model_type": {
        "config_name": "a new model is a HiCTL model, an XLM-R; --config_overrides and --config_name give its sizes",
        "": "it is read from the checkpoint",
    },
    "config_name": {
        "random_encoder": "for an encoder of the sizes of a checkpoint give --random_encoder true, else leave it out",
        "": "it is read from the checkpoint",
    },
    "ignore_mismatched_sizes": {"": "a head of another size is new anyway; other weights must fit"},
    "line_by_line": {"max_seq_length": "each line is one example, always"},
    "pad_to_max_length": {"": "batches are padded to their longest example, which is faster"},
    "validation_split_percentage": {"held_out_sentences": "held_out_sentences is a number of pairs of each language"},
    "max_eval_samples": {
        "held_out_sentences": "held_out_sentences is the number of pairs of each language to choose by, and to score",
        "select_split": "--select_split dev[:1000] takes as many",
        "validation_file": "all of validation_file is translated; give a shorter one",
    },
    "max_predict_samples": {
        "score_split": "--score_split test[:1000] takes as many",
        "held_out_sentences": "held_out_sentences is the number of pairs of each language to choose by, and to score",
        "test_file": "all of test_file is translated; give a shorter one",
    },
    "max_train_samples": {"train_split": "--train_split train[:1000] takes as many"},
    "test_file": {
        "held_out_sentences": "one half of the held-out pairs is the test; validation_file gives both halves",
        "select_split": IN_A_FOLDER,
    },
    **dict.fromkeys(("train_file", "validation_file"), {"select_split": IN_A_FOLDER}),
    **dict.fromkeys(
        ("dataset_name", "dataset_config_name"), {"select_split": "--data hub reads the tasks from the Hub"}
    ),
    "preprocessing_num_workers": {"select_split": "the examples of a task are tokenized in seconds"},
    **dict.fromkeys(
        ("max_seq_length", "max_steps", "warmup_steps", "weight_decay", "lr_scheduler_type", "config_overrides"),
        {"select_split": "each task has the value of XTREME's own script"},
    ),
    **dict.fromkeys(
        (
            "eval_strategy", "eval_steps", "save_strategy", "save_steps", "save_total_limit", "load_best_model_at_end",
            "metric_for_best_model", "logging_steps",
        ),
        {"select_split": "the state that is best on dev by the task's metric is kept, as XTREME's scripts do"},
    ),
    **dict.fromkeys(
        ("report_to", "push_to_hub", "hub_model_id", "hub_private_repo"),
        {"select_split": "a benchmark is neither tracked nor published; its report is in --output_dir"},
    ),
    "torch_compile": {"select_split": "models are fine-tuned for minutes; --bf16 and --similar_lengths are faster"},
    "resume_from_checkpoint": {"select_split": "the same command goes on where it was interrupted"},
    "text_column_name": {"": "columns are found by their names (docs/data_formats.md); hictl embed has --column"},
    "label_column_name": {"": "XTREME's files have their own layout; see docs/xtreme.md"},
    "label_all_tokens": {"": "the first token of a word has its label, as in XTREME"},
    "return_entity_level_metrics": {"": "F1 is over all entities, as in XTREME"},
    "do_lower_case": {"": "the tokenizer's own setting is used"},
    "max_target_length": {
        "max_seq_length": "max_seq_length is the limit of both sides; max_length_a and _b when decoding"
    },
    "val_max_target_length": {"max_length_b": "max_length_a * source tokens + max_length_b is the limit when decoding"},
    "ignore_pad_token_for_loss": {"": "padding is never part of the loss"},
    "source_prefix": {
        "prompt": "--prompt is put before each text of both languages, also where the vectors are used",
        "num_beams": "the decoder begins with the target language; no prefix is needed",
    },
    "forced_bos_token": {"": "the decoder begins with the target language"},
    "source_lang": {"target_lang": "a model reads all languages of its encoder; leave it out"},
    "fp16": {"micro_batches": "--bf16 true computes in bf16"},
    "train_language": {"setting": "--setting translate-train trains on the translations of each language"},
    "batch_size": {"max_tokens": "batches have as many tokens as --max_tokens says"},
    "gradient_accumulation_steps": {"micro_batches": "--micro_batches divides the batch instead of multiplying it"},
}  # fmt: skip
PARTS_OF_A_RUN = ("checkpoint", "encoder", "model")


class CommandParser(HfArgumentParser):
    """Parser of a command: the fields of a dataclass as flags in titled groups, and `--debug`.

    Args:
        kind: the dataclass of the arguments. If it is an HF `TrainingArguments`, which has a field `debug`, a bare
            `--debug` shows the traceback and `--debug underflow_overflow` sets the field.
        description: the first sentence of `--help`.
        groups: title -> names of fields; other fields of HF's `TrainingArguments` come last, in one group.
        examples: the docstring of the command, whose lines that begin with `hictl` end `--help`.
        recipe: whether the first argument may be a recipe (`parse_flags_or_recipe`).
    """

    def __init__(
        self, kind: type[Any], description: str, groups: Mapping[str, Sequence[str]], examples: str | None = None,
        recipe: bool = False,
    ) -> None:  # fmt: skip
        rest = {OF_TRANSFORMERS: [item.name for item in fields(kind)]} if issubclass(kind, TrainingArguments) else {}
        self.title_of = {name: title for title, names in {**rest, **groups}.items() for name in names}
        self.titles, self.groups = [*groups, *rest], dict[str, Any]()
        settings = {"usage": "%(prog)s [RECIPE] [--ARGUMENT VALUE ...]"} if recipe else {}
        self.examples = [" ".join(example.split()) for example in EXAMPLE.findall(examples or "")]
        epilog = "\n  ".join(["examples:", *self.examples]) if self.examples else None
        super().__init__(
            kind, description=fill(f"{description} {RECIPE if recipe else ''}", 80), epilog=epilog,
            formatter_class=RawDescriptionHelpFormatter, **settings,
        )  # fmt: skip
        if not any(DEBUG in action.option_strings for action in self._actions):
            add_debug(self)

    def add_argument(self, *names: str, **settings: Any) -> Action:
        """Add an argument to the group of its field; one that is not a field, outside all groups."""
        if not self.groups:
            self.groups = {title: self.add_argument_group(title) for title in self.titles}
        if names == (DEBUG,) and settings.get("action") is None:  # the field of HF's TrainingArguments
            settings |= {"nargs": "*", "help": f"{DEBUG_HELP} With a value: {settings['help']}"}
        if settings.get("help") and "action" not in settings and names[0].startswith("-"):
            default = "" if settings.get("default") in (None, []) else " (default: %(default)s)"
            settings["help"] += " (required)" if settings.get("required") else default
        title = self.title_of.get(settings.get("dest") or names[0].lstrip("-"))
        if title is None:
            return super().add_argument(*names, **settings)
        return self.groups[title].add_argument(*names, **settings)

    def error(self, message: str) -> NoReturn:
        """End with the message and an example instead of a list of all arguments."""
        example = f"; for example: {self.examples[0]}" if self.examples else ""
        print(f"error: {self.prog}: {message}{example}\n--help lists all arguments", file=sys.stderr)
        sys.exit(2)


def names_of(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of the arguments of a dataclass, as a group of `--help`."""
    return tuple(item.name for item in fields(kind))


def parse_flags(parser: HfArgumentParser, argv: Sequence[str] | None = None) -> Any:
    """Parse flags into the parser's dataclass; with positional arguments, also return a namespace of them.

    Raises:
        BadInput: an unknown flag, contradicting values, the folder of a run in place of a model, or an output that
            cannot be written.
    """
    known = [flag for action in parser._actions for flag in action.option_strings]
    flags = [word for word in (sys.argv[1:] if argv is None else argv) if word.startswith("--")]
    unknown = [flag for flag in flags if flag.partition("=")[0] not in known]
    meant = answer(unknown, {flag.lstrip("-") for flag in known})  # argparse may take it for the beginning of a flag
    if not meant:
        unknown = parser.parse_known_args(argv)[1]
    if unknown:
        nearest = get_close_matches(unknown[0].partition("=")[0], known, 1, cutoff=0.75)
        meant = meant or (f"did you mean {nearest[0]}? " if nearest else "")
        if not unknown[0].startswith("-"):
            meant = "".join(f"files are named by {flag}; " for flag in ("--input", "--train_file") if flag in known)
        raise BadInput(f"{' '.join(unknown)}: unknown argument; {meant}--help lists all arguments")
    try:
        settings, *rest = parser.parse_args_into_dataclasses(argv, look_for_args_file=False)
    except (ValueError, ImportError) as error:  # contradicting values, a missing library: one line
        raise BadInput(str(error)) from error
    for name in ("model", "model_name_or_path"):
        refuse_missing(getattr(settings, name, None) or "")
        refuse_run(getattr(settings, name, None) or "")
    if getattr(settings, "bf16", False) and not torch.accelerator.is_available():
        warn_where_slow("bf16", torch.device("cpu"))
    if folder := getattr(settings, "output_dir", None):
        check_place(folder, folder=True)
    for namespace in rest:
        vars(namespace).pop("debug", None)  # `errors.run` reads it
    rest = [namespace for namespace in rest if vars(namespace)]
    return (settings, *rest) if rest else settings


def answer(given: Iterable[str], known: Collection[str]) -> str:
    """Say what unknown arguments are called among the known ones, or why there are none; else empty.

    >>> answer(["--train_data=a.jsonl", "--src_lang"], ["train_file", "source_lang"])
    'train_data is called train_file since release 0.11; src_lang is called source_lang here; '
    """
    answers = []
    for name in (word.lstrip("-").partition("=")[0].replace("-", "_") for word in given):
        elsewhere = next((each for each in ELSEWHERE.get(name, ()) if each in known), None)
        reason = next((text for each, text in REASONS.get(name, {}).items() if not each or each in known), None)
        if reason:
            answers.append(f"{name}: {reason}; ")
        elif ARGUMENTS.get(name) in known:
            answers.append(f"{name} is called {ARGUMENTS[name]} since release 0.11; ")
        elif RENAMED.get(name) in known:
            answers.append(f"{name} is called {RENAMED[name]} since release 0.8; ")
        elif elsewhere:
            answers.append(f"{name} is called {elsewhere} here; ")
    return "".join(answers)


def refuse_missing(model: str) -> None:
    """Raise `BadInput` for a folder that does not exist, if the name cannot be one on the Hub."""
    if not model or Path(model).exists():
        return
    nearest = nearest_name(model)
    if model.count("/") > 1 or model.startswith((".", "/", "~")):
        raise BadInput(
            f"{model}: does not exist; allowed is the folder of a model, or its name on the Hub. {nearest}Check the "
            "path. `hictl demo` makes runs/demo/checkpoint and runs/demo/encoder, `hictl pretrain` the same in its "
            "--output_dir, `hictl train-translation` model; an interrupted run is continued by "
            "--resume_from_checkpoint true."
        )
    if nearest:
        logger.warning("%s: no such folder here, so it is looked for on the Hub. %s", model, nearest.strip())


def refuse_run(model: str) -> None:
    """Raise `BadInput` if `model` is the folder of a run; the message names the models in it."""
    parts = [str(Path(model, part)) for part in PARTS_OF_A_RUN if Path(model, part, CONFIG_NAME).is_file()]
    if model and parts and not Path(model, CONFIG_NAME).is_file():
        raise BadInput(f"{model}: is the folder of a run; allowed is a model in it. Did you mean {' or '.join(parts)}?")


def parse_flags_or_recipe(argv: Sequence[str], kind: type[Any], parser: CommandParser | None = None) -> Any:
    """Parse arguments into a `kind`: flags, or a recipe and flags that override it. A dictionary is JSON in a flag.

    Args:
        parser: the parser of `kind`; by default one without groups.
    """
    parser = parser or CommandParser(kind, "", {}, recipe=True)
    if argv and not argv[0].startswith("-"):
        path, *argv = argv
        recipe, kinds = read_recipe(path, kind), get_type_hints(kind)
        for action in parser._actions:
            if (name := action.dest) in recipe:
                try:
                    recipe[name] = as_after_flag(action, kinds[name], recipe[name])
                except (TypeError, ValueError, ArgumentTypeError) as error:
                    allowed = " or ".join(map(str, action.choices or [type_name(kinds[name])]))
                    raise BadInput(
                        f"{path}: {name} is {short_repr(recipe[name])}; allowed is {allowed}. Correct or remove it."
                    ) from error
        parser.set_defaults(**recipe)
    return parse_flags(parser, argv)


def as_after_flag(action: Action, kind: Any, value: Any) -> Any:
    """Convert a value of a recipe as the parser converts a flag; a list may be given as its only item."""
    kinds = (kind, *get_args(kind))
    if value is None and NoneType in kinds:
        return None
    if isinstance(value, dict) and str in kinds:
        return json.dumps(value)
    if any(get_origin(each) is list for each in kinds) and (action.nargs in ("+", "*") or isinstance(value, list)):
        return [as_word(action, each) for each in (value if isinstance(value, list) else [value])]
    return as_word(action, value)


def as_word(action: Action, value: Any) -> Any:
    """Convert one value of a recipe as argparse converts one word; `TypeError` for null, a list or an object."""
    if value is None or isinstance(value, list | dict):
        raise TypeError
    convert: Any = action.type or str
    return convert(value if isinstance(value, str) else json.dumps(value))


def type_name(kind: Any) -> str:
    """Return the name of a type for a message."""
    names = {bool: "true or false", int: "an integer", float: "a number", str: "a string", NoneType: "null"}
    if get_origin(kind) is list:
        return f"a list, each {type_name(get_args(kind)[0])}"
    return names.get(kind) or " or ".join(map(type_name, get_args(kind))) or kind.__name__


def recipe_file(path: str) -> Path:
    """Return the file of a recipe; `recipes/NAME`, if there is no such file here, is the package's own."""
    file, own = Path(path), RECIPES.parent / path
    if not file.is_file() and file.parts[:1] == ("recipes",) and own.is_file():
        return own
    if not file.is_file():
        names = ", ".join(f"recipes/{each.name}" for each in sorted(RECIPES.glob("*.json")))
        raise BadInput(
            f"{path}: no such file; allowed is a recipe (JSON or YAML) or flags, which begin with --. Check the path; "
            f"the package has {names}."
        )
    return file


def read_recipe(path: str, kind: type[Any], within: Sequence[Path] = ()) -> dict[str, Any]:
    """Read a recipe file, whose keys must be fields of `kind`, over those that its key `based_on` names, in order.

    A later recipe overrides an earlier one, dictionaries key by key.

    Args:
        within: the recipes that this one was reached through.
    """
    file = recipe_file(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
        recipe = json.loads(text) if path.endswith(".json") else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: not JSON or YAML: {error}") from error
    if not isinstance(recipe, dict):
        raise BadInput(f"{path}: holds {type(recipe).__name__}; allowed is an object of settings, see recipes/")
    names, place = recipe.pop(BASED_ON, []), file.resolve()
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadInput(f"{path}: {BASED_ON} is {short_repr(names)}; allowed is a list of recipes, by relative paths")
    if place in within:
        raise BadInput(f"{path}: {BASED_ON} leads back to this recipe; leave it out")
    if unknown := sorted(recipe.keys() - {item.name for item in fields(kind) if item.init}):
        meant = answer(unknown, {item.name for item in fields(kind)})
        raise BadInput(f"{path}: unknown settings: {', '.join(unknown)}; {meant}--help lists all settings")
    below = [read_recipe(str(file.parent / name), kind, (*within, place)) for name in names]
    return reduce(overridden, [*below, recipe], {})


def overridden(settings: dict[str, Any], by: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with others over them, dictionaries key by key.

    >>> overridden({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": 4}, "d": 5})
    {'a': {'b': 1, 'c': 4}, 'd': 5}
    """
    merged = {
        name: {**settings[name], **value} if isinstance(value, dict) and isinstance(settings.get(name), dict) else value
        for name, value in by.items()
    }
    return {**settings, **merged}
