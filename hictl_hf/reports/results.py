"""Typed results of a run, and `results.json`, the file of them.

`RunResults` reads and writes the file; each kind of run adds its fields in a subclass.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from importlib.metadata import version
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, Union, get_args, get_origin, get_type_hints

from ..errors import BadInput, short_repr
from ..files import write_json
from ..former_names import with_names_of_today
from ..version import __version__

NO_RESULTS = (
    "A run writes it at its end: continue it by the same command, pre-training with --resume_from_checkpoint true, or "
    "start one, such as `hictl demo`."
)
RESULTS_FILE = "results.json"
ARGUMENT_GROUPS = ("training", "run")  # of the settings: those with the arguments of the run


@dataclass(kw_only=True)
class RunResults:
    """Results of a run. Fields of subclasses are JSON values, dataclasses, named tuples, and lists and dictionaries of
    these.

    JSON has no NaN: it is written as null, so a number that can be NaN is `float | None`. A field whose default is
    `None` is not written while it is `None`.

    Attributes:
        settings: group -> settings, for example of the groups "config" (of the model) and "training".
        versions: library -> version.
        data_hash: hash of the training data.
        command: the command line of the run.
        train_seconds: of training, on the clock; `train_cpu_seconds`: CPU time of the first process meanwhile.
    """

    SCHEMA_VERSION: ClassVar[int] = 1  # increase it when the fields change incompatibly
    WRITTEN_BY: ClassVar[str] = "a training script"  # for messages

    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    seed: int | None = None
    data_hash: str | None = None
    command: str = ""
    train_seconds: float | None = None
    train_cpu_seconds: float | None = None

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read `results.json` from its path or from the folder of the run.

        Raises:
            BadInput: the file cannot be read, or a field is missing or has another type.
        """
        file = Path(path) / RESULTS_FILE if Path(path).is_dir() else Path(path)
        try:
            values = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise BadInput(
                f"{file}: cannot be read ({error}); allowed is the {RESULTS_FILE} of {cls.WRITTEN_BY}"
            ) from error
        return cls.from_dict(values, str(file))

    @classmethod
    def from_dict(cls, values: Any, place: str = RESULTS_FILE) -> Self:
        """Make results from the parsed JSON; `place` is the name of the file for messages."""
        if not isinstance(values, Mapping):
            raise BadInput(f"{place}: is {short_repr(values)}; allowed is an object, the results of {cls.WRITTEN_BY}")
        version = values.get("schema_version")
        if version is None:
            values, place = cls.upgrade(values), f"{place} (no schema_version: of hictl_hf 0.7.5 or older)"
        elif version != cls.SCHEMA_VERSION:
            raise BadInput(
                f"{place}: schema_version is {short_repr(version)}; allowed is {cls.SCHEMA_VERSION}. "
                f"Read it with the release that wrote it; its versions are {short_repr(values.get('versions'))}"
            )
        try:
            results = from_json(cls, values)
        except MismatchedValue as error:
            raise BadInput(
                f"{place}: {error}. Give the {RESULTS_FILE} of {cls.WRITTEN_BY}, or repeat the run."
            ) from error
        for group, values in results.setting_groups().items():
            if group in ARGUMENT_GROUPS:
                results.settings[group] = with_names_of_today(values)
        return results

    @classmethod
    def upgrade(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Rename the fields of a file of 0.7.5 or older, which has no schema version; subclasses override it."""
        return values

    def as_dict(self) -> dict[str, Any]:
        """Return the contents of `results.json`: the fields of the subclass, then those of all runs."""
        values: dict[str, Any] = to_json(self)
        shared = {item.name: values.pop(item.name) for item in fields(RunResults) if item.name in values}
        return {"schema_version": self.SCHEMA_VERSION, **values, **shared}

    def write(self, folder: str | Path) -> Path:
        """Write `results.json` to the folder of the run atomically; return its path."""
        return write_json(Path(folder) / RESULTS_FILE, self.as_dict())

    def setting_groups(self) -> dict[str, dict[str, Any]]:
        """Return the settings by group, without empty groups."""
        return {name: values for name, values in self.settings.items() if isinstance(values, dict) and values}

    def signature(self) -> str:
        """Return versions, seed and data hash in one line: with the settings, they identify a number."""
        parts = [f"{name} {version}" for name, version in self.versions.items()]
        parts += [f"seed {self.seed}"] * (self.seed is not None) + [f"data {self.data_hash}"] * bool(self.data_hash)
        return " · ".join(parts)


def place_of_run(file: Path, files: Iterable[Path]) -> Path:
    """Return the folder of a results file; the file itself if another one of the files is in that folder.

    >>> files = [Path("a/results.json"), Path("a/old.json"), Path("b/results.json")]
    >>> [str(place_of_run(file, files)) for file in files]
    ['a/results.json', 'a/old.json', 'b']
    """
    return file if len({each for each in files if each.parent == file.parent}) > 1 else file.parent


def names_of_runs(files: Sequence[Path]) -> list[str]:
    """Return the names of the folders of results files; where some are the same, `place_of_run`.

    >>> names_of_runs([Path("a/results.json"), Path("b/c/results.json"), Path("d/c/results.json")])
    ['a', 'b/c', 'd/c']
    """
    names = [file.absolute().parent.name for file in files]
    return [name if names.count(name) == 1 else str(place_of_run(file, files)) for name, file in zip(names, files)]


def library_versions() -> dict[str, str]:
    """The versions that a number depends on, for `RunResults.versions`."""
    return {"hictl_hf": __version__, **{name: version(name) for name in ("torch", "transformers")}}


# --- dataclasses as JSON ----------------------------------------------------------------------------------------------


class MismatchedValue(ValueError):
    """A JSON value has another type than its field; the message names the field, the value and the allowed type."""


JSON_NAMES: dict[Any, str] = {
    str: "a string", int: "an integer", float: "a number", bool: "true or false", dict: "an object", list: "a list",
    NoneType: "null",
}  # fmt: skip


def to_json(value: Any) -> Any:
    """Convert dataclasses and named tuples to dictionaries, recursively."""
    if is_dataclass(value):
        given = ((item, getattr(value, item.name)) for item in fields(value))
        return {item.name: to_json(found) for item, found in given if found is not None or item.default is not None}
    if hasattr(value, "_asdict"):
        return to_json(value._asdict())
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    return [to_json(item) for item in value] if isinstance(value, list | tuple) else value


def from_json(kind: Any, value: Any, name: str = "") -> Any:
    """Convert parsed JSON to a value of this type, the inverse of `to_json`. Unknown fields are ignored.

    Args:
        kind: a dataclass, a named tuple, `list[...]`, `dict[str, ...]`, `... | None`, `Any`, or a JSON type.
        name: dotted path of the field, for messages.

    Raises:
        MismatchedValue: a field is missing or has another type.
    """
    arguments, plain = get_args(kind), get_origin(kind) or kind
    if plain in (Union, UnionType):
        [inner] = (each for each in arguments if each is not NoneType)
        return None if value is None else from_json(inner, value, name)
    if kind is Any or (plain is float and type(value) is int):
        return value
    is_record = is_dataclass(plain) or hasattr(plain, "_fields")
    expected = dict if is_record else plain
    if not isinstance(value, expected) or (isinstance(value, bool) and plain is not bool):
        raise MismatchedValue(f"{name or 'it'} is {short_repr(value)}; allowed is {_json_name(kind)}")
    if is_record:
        return _record_from_json(kind, value, name)
    if plain is dict:
        return {key: from_json(arguments[1], item, f"{name}.{key}") for key, item in value.items()}
    if plain is list:
        return [from_json(arguments[0], item, f"{name}[{number}]") for number, item in enumerate(value)]
    return value


def _record_from_json(kind: Any, value: Mapping[str, Any], name: str) -> Any:
    types = get_type_hints(kind)
    given = {}
    for item in fields(kind) if is_dataclass(kind) else kind._fields:
        key, required = (item.name, _is_required(item)) if isinstance(item, Field) else (item, True)
        path = f"{name}.{key}" if name else key
        if key in value:
            given[key] = from_json(types[key], value[key], path)
        elif required:
            raise MismatchedValue(f"{path} is missing; allowed is {_json_name(types[key])}")
    return kind(**given)


def _json_name(kind: Any) -> str:
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(_json_name, get_args(kind)))
    return JSON_NAMES.get(get_origin(kind) or kind, "an object")


def _is_required(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def refuse_other_results(folder: str | Path, key: str) -> None:
    """Raise `BadInput` if a folder has a `results.json` without this key, so of another kind, which would be lost."""
    file = Path(folder) / RESULTS_FILE
    if not file.exists():
        return
    with suppress(OSError, ValueError, TypeError):
        if key in dict(json.loads(file.read_text("utf-8"))):
            return
    raise BadInput(f"{folder}: has the {RESULTS_FILE} of something else, which would be replaced; choose another one")


def duration(seconds: float) -> str:
    """Return a duration in hours, minutes or seconds, such as "2.5 hours"."""
    for unit, length in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} second{'s' * (round(seconds) != 1)}"
