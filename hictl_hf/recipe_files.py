"""Read a recipe: a JSON or YAML file of the settings of a command, over the recipes that it is based on."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml

from .errors import BadInput, short_repr
from .other_names import answer, nearest_flag

BASED_ON = "based_on"  # key of a recipe: other recipes, by paths relative to it, whose settings it changes
SUFFIXES = (".json", ".yaml", ".yml")
WITH_EXPONENT = re.compile(r"[-+]?\d+\.?\d*e[-+]?\d+$", re.IGNORECASE)  # 1e-4, which YAML 1.1 takes for a word
RECIPES = Path(__file__).parent / "recipes"  # of this package, a link to the folder of the repository


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


class Word(str):
    """A word that YAML 1.1 takes for another value, and that may be a word: `no` is Norwegian, 007 a name.

    Attributes:
        value: what YAML takes it for.
    """

    value: bool | int | float


class RecipeLoader(yaml.SafeLoader):
    """Loader of YAML that keeps the words behind values, reads 1e-4 as JSON does, and refuses a key given twice."""


def construct_word(loader: RecipeLoader, node: yaml.ScalarNode) -> bool | Word:
    word = Word(loader.construct_scalar(node))
    word.value = yaml.SafeLoader.yaml_constructors[node.tag](loader, node)
    return bool(word.value) if word.lower() in ("true", "false") else word


def construct_date(loader: RecipeLoader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))  # no setting is a date


def construct_object(loader: RecipeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    once_each([(key.value, None) for key, _ in node.value if isinstance(key.value, str)])
    return loader.construct_mapping(node, deep=True)


for each in ("bool", "int", "float"):
    RecipeLoader.add_constructor(f"tag:yaml.org,2002:{each}", construct_word)
RecipeLoader.add_implicit_resolver("tag:yaml.org,2002:float", WITH_EXPONENT, "+-0123456789")
RecipeLoader.add_constructor("tag:yaml.org,2002:timestamp", construct_date)
RecipeLoader.add_constructor("tag:yaml.org,2002:map", construct_object)


def once_each(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return keys and values as a dictionary; `ValueError` for a key given twice, of which one would be lost."""
    keys = [key for key, _ in pairs]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ValueError(f"{twice[0]} is given twice")
    return dict(pairs)


def as_meant(value: Any, kind: Any = None) -> Any:
    """Return a value of a recipe with each `Word` as an argument of this type has it.

    Within a dictionary types are not known: words are values there, and in lists `no` and `yes` languages.

    >>> no = yaml.load("no", RecipeLoader)
    >>> as_meant(no, str), as_meant(no, bool), as_meant({"languages": [no], "a": no})
    ('no', False, {'languages': ['no'], 'a': False})
    """
    if isinstance(value, Word):
        kinds = {kind, *get_args(kind), *chain.from_iterable(map(get_args, get_args(kind)))}
        values = {bool} if isinstance(value.value, bool) else {int, float, object}
        return value.value if kind is None or kinds & values else str(value)
    if isinstance(value, dict):
        return {str(key) if isinstance(key, Word) else key: as_meant(each) for key, each in value.items()}
    return [as_meant(each, kind or object) for each in value] if isinstance(value, list) else value


def read_recipe(path: str, kind: type[Any], within: Sequence[Path] = ()) -> dict[str, Any]:
    """Read a recipe file, whose keys must be fields of `kind`, over those that its key `based_on` names, in order.

    A later recipe overrides an earlier one, dictionaries key by key.

    Args:
        within: the recipes that this one was reached through.
    """
    file = recipe_file(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
        if path.endswith(".json"):
            recipe = json.loads(text, object_pairs_hook=once_each)
        else:
            recipe = yaml.load(text, RecipeLoader)  # which makes no other objects, either
    except (ValueError, yaml.YAMLError) as error:
        raise BadInput(f"{path}: not JSON or YAML: {error}") from error
    if not isinstance(recipe, dict):
        held = type(as_meant(recipe)).__name__
        raise BadInput(f"{path}: holds {held}; allowed is an object of settings, see recipes/")
    recipe = {name: as_meant(value, get_type_hints(kind).get(name)) for name, value in recipe.items()}
    names, place = recipe.pop(BASED_ON, []), file.resolve()
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadInput(f"{path}: {BASED_ON} is {short_repr(names)}; allowed is a list of recipes, by relative paths")
    if place in within:
        raise BadInput(f"{path}: {BASED_ON} leads back to this recipe; leave it out")
    known = [item.name for item in fields(kind) if item.init]
    if unknown := sorted(map(str, recipe.keys() - set(known))):
        nearest = nearest_flag(unknown[0], known)
        meant = answer(unknown, known) or (f"did you mean {nearest}? " if nearest else "")
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
