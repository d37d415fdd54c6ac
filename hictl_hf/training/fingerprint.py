"""Compare the settings of a resumed run with those it was begun with, and refuse to mix two runs.

The settings are a dictionary of plain values, which may include hashes of the input. They are stored as JSON: in a file
of the output folder, or by `callbacks.RunFingerprint` in each checkpoint.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import BadInput, as_bad_input, short_repr
from ..files import write_json
from ..former_names import with_names_of_today
from ..version import __version__

SETTINGS_FILE = "settings.json"  # in the folder of a run
VERSION = "hictl_hf version"  # stored among the settings, never compared
WITHOUT_VERSION = "0.7 or older"  # releases that stored none
RENAMED = {  # names and values that releases 0.7 stored
    "text_mask_rate": "mlm_probability", "pair_mask_rate": "tlm_probability", "readout": "pooling",
    "first token": "cls",
}  # fmt: skip
CONTINUE_OR_REMOVE = "continue with what it was begun with, or remove the folder to begin anew"
CONTINUE_OR_MOVE = "continue with the settings it was begun with, or choose another --output_dir"

Settings = Mapping[str, Any]


def with_version(settings: Settings) -> dict[str, Any]:
    """The settings to store, with the release that stores them."""
    return {**settings, VERSION: __version__}


def remember_settings(file: str | Path, settings: Settings) -> None:
    """Write the settings of a run to a JSON file."""
    write_json(file, with_version(settings))


def refuse_other_settings(
    file: str | Path, settings: Settings, fix: str = CONTINUE_OR_MOVE, upgrade: Callable[[Any], Settings] = dict
) -> bool:
    """Return whether a file has stored settings; `BadInput` if they, under today's names (`upgrade`), differ."""
    file = Path(file)
    if not file.exists():
        return False
    with as_bad_input(str(file), "the settings of a run as JSON", f"Remove {file.parent} to begin anew."):
        before = upgrade(json.loads(file.read_text("utf-8")))
        refuse_changes(file.parent, before, settings, fix)
    return True


def refuse_changes(place: str | Path, before: Settings, settings: Settings, fix: str = CONTINUE_OR_MOVE) -> None:
    """Raise `BadInput` if one of these settings differs from the stored ones.

    Args:
        place: folder of the run, for the message.
        before: the stored settings; those that are not in `settings` are ignored.
        fix: the last sentence of the message.
    """
    known, now = with_names_of_today(upgraded(before), settings.keys()), upgraded(settings)
    if changed := list(differences({name: known.get(name) for name in now}, now)):
        release = before.get(VERSION, WITHOUT_VERSION)
        raise BadInput(f"{place}: was begun with other settings, by hictl_hf {release}: {'; '.join(changed)}; {fix}")


def differences(before: Settings, now: Settings, within: str = "") -> Iterator[str]:
    """Describe each value that differs, also in nested dictionaries.

    >>> list(differences({"seed": 1, "beam": {"size": 5}}, {"seed": 1, "beam": {"size": 4}}))
    ['beam.size was 5 and is 4']
    """
    for name in dict.fromkeys([*before, *now]):
        if name == VERSION:
            continue
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from differences(old, new, f"{within}{name}.")
        elif plain(old) != plain(new):
            yield f"{within}{name} was {short_repr(old)} and is {short_repr(new)}"


def upgraded(value: Any) -> Any:
    """A stored value under the names of this release."""
    if isinstance(value, Mapping):
        return {RENAMED.get(name, name): upgraded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(upgraded, value))
    return RENAMED.get(value, value) if isinstance(value, str) else value


def plain(value: Any) -> Any:
    """Convert a value as JSON would, so that tuples equal lists."""
    return json.loads(json.dumps(value, default=str))
