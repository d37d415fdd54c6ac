"""Parse the arguments of a command into its dataclass: from flags, or from a recipe file and flags that override it."""

import json
import logging
import math
import re
import sys
from argparse import Action, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from itertools import chain
from pathlib import Path
from textwrap import fill
from types import NoneType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

import torch
from transformers import HfArgumentParser, TrainingArguments
from transformers.hf_argparser import string_to_bool
from transformers.utils import CONFIG_NAME

from .dtypes import warn_where_slow
from .errors import DEBUG, DEBUG_HELP, BadInput, add_debug, nearest_name, short_repr
from .files import check_place, with_home
from .other_names import DASHES, answer, nearest_flag
from .recipe_files import BASED_ON, SUFFIXES, read_recipe

logger = logging.getLogger(__name__)

RECIPE = (
    "The first argument may be a recipe, a JSON or YAML file with these settings; flags override it, dictionaries "
    "key by key."
)
OF_TRANSFORMERS = "Hugging Face's TrainingArguments"
EXAMPLE = re.compile(r"^ *((?:cat .*)?hictl .*)", re.MULTILINE)  # a line of a docstring that can be typed
# Lists of words without a comma, so "de,fr" is two of them; files such as corpus.{en,de} have commas.
LISTS_OF_WORDS = ("guard_languages", "languages", "source_lang", "subsets", "target_lang", "tasks")
NEGATIVE = re.compile(r"-(\d+\.?\d*|\.\d+)e[-+]?\d+|-inf", re.IGNORECASE)  # argparse takes these for flags
NAMES = (  # never empty: an empty one would count as not given
    "model", "model_name_or_path", "config_name", "tokenizer_name", "output", "output_dir", "resume_from_checkpoint",
    "score", "labels", "pairs", "gold", "x_vectors", "y_vectors", "index", "among", "compare_with",
    "encoder_repository",
)  # fmt: skip
PARTS_OF_A_RUN = ("checkpoint", "encoder", "model")


class ListOfWords(Action):
    """Store the items of all words, of which one can have several (`several`)."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, list(chain.from_iterable(values)))


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
        rest = {OF_TRANSFORMERS: names_of(kind)} if issubclass(kind, TrainingArguments) else {}
        self.title_of = {name: title for title, names in {**rest, **groups}.items() for name in names}
        self.refused: Mapping[str, str] = getattr(kind, "REFUSED", {})
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
        if settings.get("action") == "store_false":  # --no_x, to which HF gives the help of --x
            settings["help"] = f"The same as --{settings['dest']} false."
        elif reason := self.refused.get(names[0].lstrip("-")):  # what HF says of it is not so here
            settings["help"] = f"Refused: {reason}."
        if settings.get("help") and "action" not in settings and names[0].startswith("-"):
            default = "" if settings.get("default") in (None, []) else " (default: %(default)s)"
            settings["help"] += " (required)" if settings.get("required") else default
        title = self.title_of.get(settings.get("dest") or names[0].lstrip("-"))
        if settings.get("type") is int:
            settings["type"] = integer
        if settings.get("type") is string_to_bool and settings.get("nargs") is None:  # of bool | None
            settings |= {"nargs": "?", "const": True}
        kind, is_list = settings.get("type"), settings.get("nargs") in ("+", "*") and "action" not in settings
        if is_list and (kind in (integer, float) or names[0].lstrip("-") in LISTS_OF_WORDS):
            settings |= {"type": partial(several, kind or str), "action": ListOfWords}
        if title is None:
            return super().add_argument(*names, **settings)
        return self.groups[title].add_argument(*names, **settings)

    def error(self, message: str) -> NoReturn:
        """End with the message and an example instead of a list of all arguments."""
        example = f"; for example: {self.examples[0]}" if self.examples else ""
        print(f"error: {self.prog}: {message}{example}\n--help lists all arguments", file=sys.stderr)
        sys.exit(2)


def integer(text: str) -> int:
    """Return an integer, also of "1e6" and "2.0"; `ArgumentTypeError` for anything else."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number.is_integer():
        raise ArgumentTypeError(f"is {text!r}; allowed are integers, such as 1000 or 1e3")
    return int(number)


def several(kind: Callable[[str], Any], text: str) -> list[Any]:
    """Return the items of a list that is one word, or the only item.

    >>> several(int, "1,2"), several(str, '["de", "fr"]'), several(str, "de")
    ([1, 2], ['de', 'fr'], ['de'])
    """
    words = [word.strip(" \"'") for word in text.strip().removeprefix("[").removesuffix("]").split(",")]
    try:
        return list(map(kind, [word for word in words if word] or [text]))
    except ValueError as error:
        raise ArgumentTypeError(f"is {text!r}; allowed are numbers, separated by spaces or commas") from error


def names_of(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of the arguments of a dataclass, as a group of `--help`."""
    return tuple(item.name for item in fields(kind))


def parse_flags(parser: HfArgumentParser, argv: Sequence[str] | None = None) -> Any:
    """Parse flags into the parser's dataclass; with positional arguments, also return a namespace of them.

    Raises:
        BadInput: an unknown flag, contradicting values, the folder of a run in place of a model, a name that is empty,
            or an output that cannot be written.
    """
    known = [flag for action in parser._actions for flag in action.option_strings]
    argv = [with_home(word) for word in with_negative_numbers(sys.argv[1:] if argv is None else argv)]
    flags = [word for word in argv if word.startswith("--")]
    unknown = [flag for flag in flags if flag.partition("=")[0] not in known]
    meant = answer(unknown, {flag.lstrip("-") for flag in known})  # argparse may take it for the beginning of a flag
    if not meant:
        unknown = unknown_words(parser, argv)
    warn_of_replaced(parser, flags)
    if unknown:
        nearest = nearest_flag(unknown[0], known)
        meant = meant or (f"did you mean {nearest}? " if nearest else "")
        if not (DASHES.match(unknown[0]) or nearest and "=" in unknown[0]):
            meant = "".join(f"files are named by {flag}; " for flag in ("--input", "--train_file") if flag in known)
            if "RECIPE" in (parser.usage or "") and unknown[0].endswith(SUFFIXES):
                meant = "a recipe is the first argument; "
        raise BadInput(f"{' '.join(unknown)}: unknown argument; {meant}--help lists all arguments")
    try:
        settings, *rest = parser.parse_args_into_dataclasses(argv, look_for_args_file=False)
    except (ValueError, OverflowError, ImportError) as error:  # contradicting values, a missing library: one line
        raise BadInput(str(error)) from error
    for name in NAMES:
        if getattr(settings, name, None) == "":
            raise BadInput(f"{name} is empty; allowed is a name or a path. Is the variable set that it comes from?")
    for name in ("model", "model_name_or_path"):
        refuse_missing(getattr(settings, name, None) or "")
        refuse_run(getattr(settings, name, None) or "")
    if getattr(settings, "bf16", False):
        on_gpu = torch.cuda.is_available() and not getattr(settings, "use_cpu", False)
        warn_where_slow("bf16", torch.device("cuda" if on_gpu else "cpu"))
    if folder := getattr(settings, "output_dir", None):
        check_place(folder, folder=True)
    for namespace in rest:
        vars(namespace).pop("debug", None)  # `errors.run` reads it
    rest = [namespace for namespace in rest if vars(namespace)]
    return (settings, *rest) if rest else settings


def unknown_words(parser: HfArgumentParser, argv: Sequence[str]) -> list[str]:
    """Return the words that are no arguments, whatever is missing: of --modle, argparse would say that --model is."""
    required = [action for action in parser._actions if action.required]
    for action in required:
        action.required = False
    try:
        return parser.parse_known_args(argv)[1]
    finally:
        for action in required:
            action.required = True


def warn_of_replaced(parser: HfArgumentParser, flags: Sequence[str]) -> None:
    """Log each list of files that is given twice, of which the last counts, as of two numbers."""
    for action in parser._actions:
        given = [flag.partition("=")[0] for flag in flags if flag.partition("=")[0] in action.option_strings]
        is_list = action.nargs in ("+", "*") and not isinstance(action, ListOfWords)
        if is_list and len(given) > 1 and action.dest not in ("debug", "report_to"):
            message = "%s is given %d times, and the last replaces the others; to read all, name them behind one %s"
            logger.warning(message, given[0], len(given), given[0])


def with_negative_numbers(argv: Sequence[str]) -> list[str]:
    """Return the words with each negative number that has an exponent joined to its flag.

    >>> with_negative_numbers(["--learning_rate", "-1e-4", "--seed", "-1"])
    ['--learning_rate=-1e-4', '--seed', '-1']
    """
    words: list[str] = []
    for word in argv:
        if words and words[-1].startswith("--") and "=" not in words[-1] and NEGATIVE.fullmatch(word):
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


def refuse_missing(model: str) -> None:
    """Raise `BadInput` for a file, and for a folder that does not exist, if the name cannot be one on the Hub."""
    if model and Path(model).is_file():
        raise BadInput(
            f"{model}: is a file; allowed is the folder of a model, or its name on the Hub. Give its folder."
        )
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
    """Parse arguments into a `kind`: flags, or a recipe and flags that override it, dictionaries key by key.

    A dictionary is JSON in a flag.

    Args:
        parser: the parser of `kind`; by default one without groups.
    """
    parser = parser or CommandParser(kind, "", {}, recipe=True)
    if argv and not argv[0].startswith("-"):
        path, *argv = with_home(argv[0]), *argv[1:]
        if argv and Path(argv[0]).suffix in SUFFIXES:
            raise BadInput(
                f"{argv[0]}: a second recipe; allowed is one. Name {path} in its key {BASED_ON}, and give it alone; if "
                "it is data, name it by its flag."
            )
        recipe, kinds = read_recipe(path, kind), get_type_hints(kind)
        for action in parser._actions:
            if (name := action.dest) in recipe:
                if isinstance(recipe[name], dict):
                    action.type = partial(over, recipe[name])
                try:
                    recipe[name] = as_after_flag(action, kinds[name], recipe[name])
                except (TypeError, ValueError, ArgumentTypeError) as error:
                    allowed = " or ".join(map(str, action.choices or [type_name(kinds[name])]))
                    raise BadInput(
                        f"{path}: {name} is {short_repr(recipe[name])}; allowed is {allowed}. Correct or remove it."
                    ) from error
        parser.set_defaults(**recipe)
    return parse_flags(parser, argv)


def over(recipe: Mapping[str, Any], text: str) -> str:
    """Return the JSON of a flag's dictionary over that of a recipe, key by key; a text that is none as it is.

    >>> over({"a": 1, "b": 2}, '{"b": 3}'), over({"a": 1}, "b=3")
    ('{"a": 1, "b": 3}', '{"a": 1, "b": 3}')
    """
    try:
        given = read_overrides(text)
        given = json.loads(given) if isinstance(given, str) else given
    except ValueError:  # who reads the argument says what is wrong
        return text
    return json.dumps({**recipe, **given}) if isinstance(given, dict) else text


def read_overrides(value: dict[str, Any] | str | None) -> dict[str, Any] | str | None:
    """Return "a=1,b=2", as transformers' examples write `config_overrides`, as a dictionary; others as they are.

    >>> read_overrides("hidden_size=8,hidden_act=gelu,tie_word_embeddings=true")
    {'hidden_size': 8, 'hidden_act': 'gelu', 'tie_word_embeddings': True}
    """
    if not isinstance(value, str) or "=" not in value or value.lstrip().startswith(("{", "[", '"')):
        return value
    pairs = [part.partition("=") for part in value.split(",")]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise BadInput(f"config_overrides is {value!r}; allowed is a=1,b=2, or JSON, which also has lists")
    return {name.strip(): read_value(text.strip()) for name, _, text in pairs}


def read_value(text: str) -> Any:
    """A number, true, false or null as JSON has them, else the text."""
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false", "null") else text)
    except json.JSONDecodeError:
        return text


def as_after_flag(action: Action, kind: Any, value: Any) -> Any:
    """Convert a value of a recipe as the parser converts a flag; a list may be given as its only item."""
    kinds = (kind, *get_args(kind))
    if value is None and NoneType in kinds:
        return None
    if isinstance(value, dict) and str in kinds:
        return json.dumps(value)
    if any(get_origin(each) is list for each in kinds) and (action.nargs in ("+", "*") or isinstance(value, list)):
        items = [as_word(action, each) for each in (value if isinstance(value, list) else [value])]
        return list(chain.from_iterable(items)) if isinstance(action, ListOfWords) else items
    return as_word(action, value)


def as_word(action: Action, value: Any) -> Any:
    """Convert one value of a recipe as argparse converts one word; `TypeError` for null, a list or an object."""
    if value is None or isinstance(value, list | dict):
        raise TypeError
    convert: Any = action.type or str
    converted = convert(with_home(value) if isinstance(value, str) else json.dumps(value))
    if action.choices and converted not in action.choices:
        raise ValueError
    return converted


def type_name(kind: Any) -> str:
    """Return the name of a type for a message."""
    names = {bool: "true or false", int: "an integer", float: "a number", str: "a string", NoneType: "null"}
    if get_origin(kind) is list:
        return f"a list, each {type_name(get_args(kind)[0])}"
    return names.get(kind) or " or ".join(map(type_name, get_args(kind))) or kind.__name__
