"""How the arguments of a command become settings: flags, or a recipe file and flags that change it. Which settings
there are is left to the dataclass of the command."""

import json
from argparse import Action, ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import torch
import yaml
from transformers import HfArgumentParser, TrainingArguments
from transformers.utils import CONFIG_NAME

from .dtypes import warn_where_slow
from .errors import BadInput, add_traceback, short_repr
from .files import check_place

RECIPE = "All of this may also be in a recipe (JSON or YAML), the first argument; flags after it change it."
OF_TRANSFORMERS = "Hugging Face's TrainingArguments"
PARTS_OF_A_RUN = ("checkpoint", "encoder", "model")


class CommandParser(HfArgumentParser):
    """The parser of a command: the fields of a dataclass as flags in titled groups, and `--traceback`.

    Args:
        kind: the dataclass of the arguments.
        description: the first sentence of `--help`.
        groups: title -> names of fields; other fields of HF's `TrainingArguments` come last, in one group.
        recipe: whether a file of arguments may come first (`parse_flags_or_recipe`).
    """

    def __init__(
        self, kind: type[Any], description: str, groups: Mapping[str, Sequence[str]], recipe: bool = False
    ) -> None:
        rest = {OF_TRANSFORMERS: [item.name for item in fields(kind)]} if issubclass(kind, TrainingArguments) else {}
        self.title_of = {name: title for title, names in {**rest, **groups}.items() for name in names}
        self.titles, self.groups = [*groups, *rest], dict[str, Any]()
        settings = {"usage": "%(prog)s [RECIPE] [--ARGUMENT VALUE ...]"} if recipe else {}
        super().__init__(kind, description=f"{description} {RECIPE if recipe else ''}".strip(), **settings)
        add_traceback(self)

    def add_argument(self, *names: str, **settings: Any) -> Action:
        """Add an argument to the group of its field, or outside all groups."""
        if not self.groups:
            self.groups = {title: self.add_argument_group(title) for title in self.titles}
        title = self.title_of.get(settings.get("dest") or names[0].lstrip("-"))
        if title is None:
            return super().add_argument(*names, **settings)
        return self.groups[title].add_argument(*names, **settings)


def parse_flags(parser: HfArgumentParser, argv: Sequence[str] | None = None) -> Any:
    """The settings, and a namespace of what else the parser knows; `BadInput` where nothing is called so."""
    unknown = parser.parse_known_args(argv)[1]
    if unknown:
        known = [flag for action in parser._actions for flag in action.option_strings]
        nearest = get_close_matches(unknown[0].partition("=")[0], known, 1, cutoff=0.75)
        meant = f"did you mean {nearest[0]}? " if nearest else ""
        raise BadInput(f"{' '.join(unknown)}: no argument is called so; {meant}--help lists them all")
    try:
        settings, *rest = parser.parse_args_into_dataclasses(argv, look_for_args_file=False)
    except (ValueError, ImportError) as error:  # what contradicts what, or is not installed: no traceback for that
        raise BadInput(str(error)) from error
    for name in ("model", "encoder"):
        refuse_run(getattr(settings, name, None) or "")
    if getattr(settings, "bf16", False) and not torch.accelerator.is_available():
        warn_where_slow("bf16", torch.device("cpu"))
    if folder := getattr(settings, "output_dir", None):
        check_place(folder, folder=True)
    for namespace in rest:
        vars(namespace).pop("traceback", None)  # which `errors.run` reads
    rest = [namespace for namespace in rest if vars(namespace)]
    return (settings, *rest) if rest else settings


def refuse_run(model: str) -> None:
    """Raise `BadInput` where the folder of a run is given for a model that is in it."""
    parts = [str(Path(model, part)) for part in PARTS_OF_A_RUN if Path(model, part, CONFIG_NAME).is_file()]
    if model and parts and not Path(model, CONFIG_NAME).is_file():
        raise BadInput(f"{model}: is the folder of a run; allowed is a model in it. Did you mean {' or '.join(parts)}?")


def parse_flags_or_recipe(argv: Sequence[str], kind: type[Any], parser: CommandParser | None = None) -> Any:
    """The arguments as a `kind`, from flags, or from a recipe and flags that change it; objects are JSON in a flag.

    Args:
        parser: the command's parser of `kind`, by default one without groups.
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
    """A value of a recipe as it would be after a flag; one is as good as a list of one."""
    kinds = (kind, *get_args(kind))
    if value is None and NoneType in kinds:
        return None
    if isinstance(value, dict) and str in kinds:
        return json.dumps(value)
    if any(get_origin(each) is list for each in kinds) and (action.nargs == "+" or isinstance(value, list)):
        return [as_word(action, each) for each in (value if isinstance(value, list) else [value])]
    return as_word(action, value)


def as_word(action: Action, value: Any) -> Any:
    """One value of a recipe, converted as the word after a flag is."""
    if value is None or isinstance(value, list | dict):
        raise TypeError
    convert: Any = action.type or str
    return convert(value if isinstance(value, str) else json.dumps(value))


def type_name(kind: Any) -> str:
    """A type in words."""
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", NoneType: "null"}
    if get_origin(kind) is list:
        return f"a list, each {type_name(get_args(kind)[0])}"
    return names.get(kind) or " or ".join(map(type_name, get_args(kind))) or kind.__name__


def read_recipe(path: str, kind: type[Any]) -> dict[str, Any]:
    """The settings in a recipe file for arguments of this class."""
    if not Path(path).is_file():
        raise BadInput(f"{path}: no such recipe; give a JSON or YAML file, or flags that begin with --")
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        recipe = json.loads(text) if path.endswith(".json") else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: neither JSON nor YAML: {error}") from error
    if not isinstance(recipe, dict):
        raise BadInput(f"{path}: holds {type(recipe).__name__}; a recipe is an object of settings, see recipes/")
    if unknown := sorted(recipe.keys() - {item.name for item in fields(kind) if item.init}):
        raise BadInput(f"{path}: no setting is called {', '.join(unknown)}; --help lists them all")
    return recipe
