"""Whether a run on XTREME may go on in its folder: with the same settings, and from the same examples."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..training.arguments import SETTINGS_FILE, refuse_changes
from .results import POOLINGS_OF_0_7

EXAMPLES_FILE = "rows.json"  # by name of `Derived`, the hash of the examples that its files were made from


@dataclass(frozen=True)
class Derived:
    """Files that were made from examples, by which a later call recognises them.

    Attributes:
        name: of a model or of predictions.
        paths: files or folders; those that exist are kept by a later call.
        hash: of the examples they are made from.
    """

    name: str
    paths: tuple[Path, ...]
    hash: str


def refuse_other_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Raise `BadInput` if the folder holds a run with other settings; settings of 0.7.5 are understood."""
    record = folder / SETTINGS_FILE
    if record.exists():
        refuse_changes(folder, upgrade_settings(json.loads(record.read_text("utf-8"))), settings)


def upgrade_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as 0.7.5 recorded them, with today's names of poolings."""
    pooling = settings.get("pooling")
    return {**settings, "pooling": POOLINGS_OF_0_7.get(pooling, pooling) if isinstance(pooling, str) else pooling}


def refuse_other_examples(folder: Path, derived: Iterable[Derived]) -> dict[str, str]:
    """Hashes of the examples by name, for `EXAMPLES_FILE`.

    Raises:
        BadInput: a file that is kept was made from other examples.
    """
    record = folder / EXAMPLES_FILE
    hashes: dict[str, str] = json.loads(record.read_text("utf-8")) if record.exists() else {}
    for each in derived:
        kept = [path for path in each.paths if path.exists()]
        if kept and hashes.get(each.name, each.hash) != each.hash:
            raise BadInput(
                f"{kept[0]}: the examples of {each.name} are not those that it was made from (hash {each.hash}, not "
                f"{hashes[each.name]}): the files changed; give the same files, or choose another --output_dir"
            )
        hashes[each.name] = each.hash
    return hashes
