"""Check that a resumed run on XTREME has the examples and the encoder that the files in its folder were made from."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput, as_bad_input
from ..training.fingerprint import SETTINGS_FILE

EXAMPLES_FILE = "rows.json"  # by name of `Derived`, the hash of what its files were made from


@dataclass(frozen=True)
class Derived:
    """Files that were made from examples, by which a later call recognises them.

    Attributes:
        name: of a model or of predictions.
        paths: files or folders; those that exist are kept by a later call.
        hash: of the examples they are made from.
        source: what is hashed, if it is not examples.
        unlabelled: the hash without the labels that may come later or be corrected; the files are then made again.
    """

    name: str
    paths: tuple[Path, ...]
    hash: str
    source: str = "examples"
    unlabelled: str = ""


def labels_of_run(folder: Path) -> str | None:
    """The folder of labels that a run was scored with, if it had one."""
    labels: str | None = json.loads((folder / SETTINGS_FILE).read_text("utf-8")).get("labels")
    return labels


def refuse_other_examples(folder: Path, derived: Iterable[Derived]) -> dict[str, str]:
    """Hashes of the examples by name, for `EXAMPLES_FILE`; removes files that are to be made again.

    Raises:
        BadInput: a file that is kept was made from other examples.
    """
    record = folder / EXAMPLES_FILE
    hashes: dict[str, str] = {}
    if record.exists():
        with as_bad_input(str(record), "the hashes of a run as JSON", f"Remove {folder} to begin anew."):
            hashes = dict(json.loads(record.read_text("utf-8")))
    outdated: list[Path] = []
    for each in derived:
        kept = [path for path in each.paths if path.exists()]
        texts, before = f"{each.name} without labels", hashes.get(each.name)
        if each.unlabelled and each.unlabelled in (before, hashes.get(texts)) and before != each.hash:
            outdated += kept
        elif kept and hashes.get(each.name, each.hash) != each.hash:
            found = f"the {each.source} of {each.name} are not those that it was made from"
            raise BadInput(
                f"{kept[0]}: {found} (hash {each.hash}, not {hashes[each.name]}): the files changed; give the same "
                "files, or choose another --output_dir"
            )
        hashes |= {each.name: each.hash} | ({texts: each.unlabelled} if each.unlabelled else {})
    for path in outdated:
        path.unlink(missing_ok=True)
    return hashes
