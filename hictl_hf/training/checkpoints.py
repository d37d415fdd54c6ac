"""Whether a folder is a whole checkpoint: the last thing written into one is a list of its files, and only a folder
that agrees with its list is used. Also how a folder is written whole, or removed and the full disk told. What is in a
checkpoint, when one is written and which old ones go is left to `trainer`."""

import json
import logging
import os
import shutil
from pathlib import Path

from ..errors import BadInput
from ..files import digest, flush

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"  # {"path of a file in the folder": [bytes, blake2b digest]}


def write_manifest(folder: str | Path) -> None:
    """Bring the files of a folder to the disk, then list them; the list appears whole or not at all."""
    folder = Path(folder)
    inside = [path for path in sorted(folder.rglob("*")) if path != folder / MANIFEST]
    files = {}
    for path in inside:
        flush(path)
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = [path.stat().st_size, digest(path)]
    flush(folder)
    draft = folder / f".{MANIFEST}"
    draft.write_text(json.dumps(files, indent=1), encoding="utf-8")
    flush(draft)
    os.replace(draft, folder / MANIFEST)
    flush(folder)
    flush(folder.parent)


def verify_checkpoint(checkpoint: str | Path, contents: bool = True) -> str | None:
    """What is wrong with a checkpoint, `None` if it is whole; without contents, by names and sizes alone."""
    folder = Path(checkpoint)
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name, (size, written) in files.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != size:
                return f"{name} has {path.stat().st_size} bytes, {size} were written"
            if contents and digest(path) != written:
                return f"{name} is not what was written, its blake2b digest differs"
    except FileNotFoundError:
        return f"it has no {MANIFEST}, which is written last"
    except OSError as error:
        return f"it cannot be read: {error}"
    except (ValueError, TypeError, AttributeError):
        return f"{MANIFEST} is damaged"
    return None


def check_checkpoint(checkpoint: str | Path) -> None:
    """Raise `BadInput` if this is not a whole checkpoint."""
    if fault := verify_checkpoint(checkpoint):
        raise BadInput(
            f"{checkpoint}: not a whole checkpoint: {fault}; name another one, or take the newest that is whole by "
            "--resume_from_checkpoint true"
        )


def last_whole_checkpoint(folder: str | Path) -> str | None:
    """The newest whole `checkpoint-N` of a folder; those passed over are told, with what is wrong."""
    faults: dict[Path, str] = {}
    whole = None
    for checkpoint in newest_first(folder):
        if fault := verify_checkpoint(checkpoint):
            faults[checkpoint] = fault
        else:
            whole = str(checkpoint)
            break
    for checkpoint, fault in faults.items():
        instead = whole or "nothing, as no older one is whole"
        logger.warning("%s: not a whole checkpoint: %s; used instead: %s", checkpoint, fault, instead)
    return whole


def newest_first(folder: str | Path) -> list[Path]:
    """The folders `checkpoint-N` of a folder, whole or not, largest N first."""
    numbers = {path: path.name.removeprefix("checkpoint-") for path in Path(folder).glob("checkpoint-*")}
    numbered = {path: int(number) for path, number in numbers.items() if number.isdecimal() and path.is_dir()}
    return sorted(numbered, key=lambda path: -numbered[path])


def remove_broken_checkpoints(folder: str | Path) -> None:
    """Remove each `checkpoint-N` whose saving or removal was cut short, as names and sizes tell."""
    for checkpoint in newest_first(folder):
        if verify_checkpoint(checkpoint, contents=False):
            shutil.rmtree(checkpoint, ignore_errors=True)
