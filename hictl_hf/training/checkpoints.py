"""Verify checkpoints: a manifest of all files is written last, and only a folder that agrees with it is used."""

import json
import logging
import shutil
from pathlib import Path

from ..errors import BadInput
from ..files import atomic_file, digest, flush

logger = logging.getLogger(__name__)

SPELLINGS = dict.fromkeys(("true", "yes", "t", "y", "1"), True)  # as HF's parser reads flags of true and false
SPELLINGS |= dict.fromkeys(("false", "no", "f", "n", "0", "none", ""), False)
MANIFEST = "manifest.json"  # {"path of a file in the folder": [bytes, blake2b digest]}


def write_manifest(folder: str | Path) -> None:
    """Flush the files of a folder to the disk, then list them in its manifest, which is written atomically."""
    folder = Path(folder)
    inside = [path for path in sorted(folder.rglob("*")) if path != folder / MANIFEST]
    files = {}
    for path in inside:
        flush(path)
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = [path.stat().st_size, digest(path)]
    flush(folder)
    with atomic_file(folder / MANIFEST, folder / f".{MANIFEST}") as draft:
        draft.write_text(json.dumps(files, indent=1), encoding="utf-8")
        flush(draft)
    flush(folder)
    flush(folder.parent)


def verify_checkpoint(checkpoint: str | Path, contents: bool = True) -> str | None:
    """Return what is wrong with a checkpoint, or `None`.

    Args:
        contents: compare the digests of the files, too, not only names and sizes.
    """
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


def resume_choice(text: str | None) -> bool | str | None:
    """What `--resume_from_checkpoint` asks for: `True`, the last one; `False`, none; a folder; `None`: not given.

    >>> resume_choice("yes"), resume_choice("F"), resume_choice("runs/a/checkpoint-5")
    (True, False, 'runs/a/checkpoint-5')
    """
    return SPELLINGS.get(text.lower(), text) if text is not None else None


def check_checkpoint(checkpoint: str | Path, contents: bool = True) -> None:
    """Raise `BadInput` if this is not a complete checkpoint; `contents` as of `verify_checkpoint`."""
    if fault := verify_checkpoint(checkpoint, contents):
        raise BadInput(
            f"{checkpoint}: not a complete checkpoint: {fault}; name another one, or use the newest complete one by "
            "--resume_from_checkpoint true"
        )


def last_complete_checkpoint(folder: str | Path) -> str | None:
    """Return the newest complete `checkpoint-N` of a folder; log newer ones, with what is wrong with them."""
    faults: dict[Path, str] = {}
    complete = None
    for checkpoint in newest_first(folder):
        if fault := verify_checkpoint(checkpoint):
            faults[checkpoint] = fault
        else:
            complete = str(checkpoint)
            break
    for checkpoint, fault in faults.items():
        instead = complete or "nothing, as no older one is complete"
        logger.warning("%s: not a complete checkpoint: %s; used instead: %s", checkpoint, fault, instead)
    return complete


def newest_first(folder: str | Path) -> list[Path]:
    """Return all folders `checkpoint-N` of a folder, complete or not, largest N first."""
    numbers = {path: path.name.removeprefix("checkpoint-") for path in Path(folder).glob("checkpoint-*")}
    numbered = {path: int(number) for path, number in numbers.items() if number.isdecimal() and path.is_dir()}
    return sorted(numbered, key=lambda path: -numbered[path])


def remove_broken_checkpoints(folder: str | Path) -> None:
    """Remove each `checkpoint-N` that lacks files, because its saving or removal was interrupted."""
    for checkpoint in newest_first(folder):
        if verify_checkpoint(checkpoint, contents=False):
            shutil.rmtree(checkpoint, ignore_errors=True)
