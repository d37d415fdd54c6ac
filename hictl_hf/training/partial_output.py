"""The folder OUTPUT.partial: the parts of an output that are done, from which the same command continues.

An output is made from blocks of lines, a part each, by one process or several. A part is a file that is written
atomically, and its name has the hash of its lines. So any number of processes can continue, and the joined output
depends neither on their number nor on interruptions. A file next to each part has the hash of its content.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from ..errors import BadInput, as_bad_input
from ..files import atomic_file, digest, flush, is_unused, only_writer, remove_partial, write_json
from ..processes import ALONE, Processes
from .fingerprint import CONTINUE_OR_REMOVE, refuse_changes, with_version

logger = logging.getLogger(__name__)

CHARACTERS_AT_ONCE = 2**26
PART = re.compile(r"(\d{6,})-([0-9a-f]{16})")


class PartialOutput:
    """Parts of an output and the settings they are made with.

    Args:
        folder: created if it does not exist.
        ending: of the parts.
        settings: everything that the parts depend on.
        command: for messages.
        processes: that make the parts; each of them makes this object.

    Raises:
        BadInput: the folder was begun with other settings, or holds something else.
    """

    def __init__(
        self, folder: Path, ending: str, settings: Mapping[str, Any], command: str, processes: Processes = ALONE
    ) -> None:
        self.folder, self.ending, self.settings, self.processes = folder, ending, settings, processes
        self.state, self.command = folder / "state.json", command
        self.former: dict[str, Any] = {"lines": [], "digest": ""}  # parts of 0.10 and older, whose names have no hash
        self.done, self.former = processes.on_main(self._begin)
        self.former_digest = hashlib.blake2b()
        self.parts: list[Path] = []
        self.lines = 0

    def _begin(self) -> tuple[dict[int, str], dict[str, Any]]:
        """Check or make the folder; the hash of each part that is done, and what an older release has done."""
        if self.state.is_file():
            kind = f"the settings of {self.command} as JSON"
            with as_bad_input(str(self.state), kind, f"Remove {self.folder} to begin anew."):
                before = json.loads(self.state.read_text("utf-8"))
                refuse_changes(self.folder, before["settings"], self.settings, CONTINUE_OR_REMOVE)
            done = [match for path in self.folder.iterdir() if (match := PART.fullmatch(path.stem))]
            former = before.get("done", self.former)
            logger.info("%s: continuing, with %d parts done", self.folder, len(done) + len(former["lines"]))
            return {int(match[1]): match[2] for match in done}, former
        if not is_unused(self.folder, self.state):
            raise BadInput(f"{self.folder}: is not partial output of {self.command}; move or remove it")
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.state, {"settings": with_version(self.settings)})
        return {}, self.former

    def write(
        self,
        blocks: Iterable[list[str]],
        write_part: Callable[[list[str], Path], None],
        progress: Callable[[int], object] = lambda lines: None,
    ) -> None:
        """Write this process's share of the parts that are missing, while no other command does.

        Args:
            blocks: of lines, the same in all processes; each block is one part.
            write_part: writes the part of a block to a path.
            progress: called with the number of lines of each block that is done, in whichever process.

        Raises:
            BadInput: a part was made from other lines, or another command writes parts.
        """
        missing = 0
        with only_writer(self.folder, "--output") if self.processes.is_main else nullcontext():
            for number, block in enumerate(blocks):
                is_done = self._is_done(number, block)
                if not is_done and missing % self.processes.number == self.processes.index:
                    with atomic_file(self.parts[number]) as draft:
                        write_part(block, draft)
                        flush(draft)
                        record = hash_of(self.parts[number])
                        record.write_text(digest(draft), encoding="utf-8")
                        flush(record)
                missing += not is_done
                self.lines += len(block)
                progress(len(block))
        if len(self.parts) < max((len(self.former["lines"]), *(number + 1 for number in self.done))):
            self._refuse_lines()

    def _is_done(self, number: int, block: list[str]) -> bool:
        """Whether a part is done; adds its path to `parts`."""
        content, former = as_bytes(block), self.former["lines"]
        if number < len(former):  # its release stored one hash of all lines
            self.parts.append(self.folder / f"{number:06}{self.ending}")
            self.former_digest.update(content)
            is_last, same = number == len(former) - 1, self.former_digest.hexdigest() == self.former["digest"]
            if is_last and not same:
                self._refuse_lines()
            return True
        digest = hashlib.blake2b(content, digest_size=8).hexdigest()
        self.parts.append(self.folder / f"{number:06}-{digest}{self.ending}")
        if self.done.get(number, digest) != digest:
            self._refuse_lines()
        return number in self.done

    def _refuse_lines(self) -> None:
        fix = "give the same lines, or remove the folder to begin anew"
        raise BadInput(f"{self.folder}: was begun with other lines; {fix}")

    def finish(self, output: Path, join: Callable[[Sequence[Path], Path], None]) -> None:
        """Join the parts of all processes into the output, which the main process does, and remove the folder.

        Args:
            join: writes the output from the parts to a path; if it raises `BadInput`, the folder is only removed if
                there are no parts.
        """
        self.processes.wait()
        self.processes.on_main(lambda: self._join(output, join))

    def _join(self, output: Path, join: Callable[[Sequence[Path], Path], None]) -> None:
        draft = self.folder / f"joined{output.suffix}"
        try:
            for part in self.parts:
                with joining_part(part):
                    check_hash(part)
            with atomic_file(output, draft):
                join(self.parts, draft)
        except BadInput:
            if not self.parts:
                remove_partial(self.folder, self.state)
            raise
        remove_partial(self.folder, self.state)


def hash_of(part: Path) -> Path:
    """The file with the hash of a part, written before the part; parts of 0.21 and older have none."""
    return part.with_name(f"{part.name}.hash")


def check_hash(part: Path) -> None:
    """Raise `ValueError` if a part is not what was written."""
    record = hash_of(part)
    if record.exists() and record.read_text("utf-8") != digest(part):
        raise ValueError("it was changed or damaged since")


def joining_part(file: Path) -> AbstractContextManager[None]:
    """Like `reading_part`, of a part that can be made again alone."""
    return as_bad_input(str(file), "what the interrupted command wrote", "Remove it, and run the same command again.")


def reading_part(file: Path) -> AbstractContextManager[None]:
    """Raise `BadInput` with a file of partial output, such as one damaged by a crash of the machine, and the fix."""
    return as_bad_input(str(file), "what the interrupted command wrote", f"Remove {file.parent} to begin anew.")


def as_bytes(block: Iterable[str]) -> bytes:
    """Texts as bytes to hash; their lengths keep the borders between them unambiguous."""
    return "".join(f"{len(text)} {text}\n" for text in block).encode()


def blocks(texts: Iterator[str], lines: int) -> Iterator[list[str]]:
    """Yield blocks of at most `lines` texts, and about `CHARACTERS_AT_ONCE` characters."""
    block: list[str] = []
    characters = 0
    for text in texts:
        block.append(text)
        characters += len(text)
        if len(block) == lines or characters >= CHARACTERS_AT_ONCE:
            yield block
            block, characters = [], 0
    if block:
        yield block
