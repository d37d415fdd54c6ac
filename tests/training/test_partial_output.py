"""Parts of an output: however many processes write them, and wherever they stop, the joined output is the same."""

import errno
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hictl_hf.errors import BadInput
from hictl_hf.processes import ALONE, Processes
from hictl_hf.training import partial_output
from hictl_hf.training.partial_output import PartialOutput, as_bytes, blocks

LINES = [f"line {number}" for number in range(23)]
SETTINGS = {"model": "a", "max_length": 128}


class Killed(Exception):
    """Raised where a process is killed."""


def shout(block: list[str], path: Path) -> None:
    path.write_text("".join(f"{line.upper()}\n" for line in block))


def join(parts: Sequence[Path], output: Path) -> None:
    if not parts:
        raise BadInput("no line")
    output.write_text("".join(part.read_text() for part in parts))


def write(
    folder: Path, processes: Processes = ALONE, lines: Sequence[str] = LINES, parts: int | None = None, **changes: Any
) -> list[int]:
    """Write the shouted lines in blocks of 3 to the file `all`; kill the process after this many parts."""
    partial = PartialOutput(folder / "all.partial", ".txt", {**SETTINGS, **changes}, "hictl shout", processes)
    made = []

    def write_part(block: list[str], path: Path) -> None:
        if len(made) == parts:
            raise Killed
        time.sleep(0.02 * processes.index)  # the main process joins what the others write
        shout(block, path)
        made.append(LINES.index(block[0]) // 3)

    partial.write(blocks(iter(lines), 3), write_part)
    partial.finish(folder / "all", join)
    return made


def test_blocks_are_the_texts_in_order_and_full_but_for_the_last() -> None:
    for lines in (1, 2, 3, 23, 100):
        found = list(blocks(iter(LINES), lines))
        assert [line for block in found for line in block] == LINES
        assert all(len(block) == lines for block in found[:-1]) and 0 < len(found[-1]) <= lines


def test_long_texts_make_smaller_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_output, "CHARACTERS_AT_ONCE", 4)
    assert list(blocks(iter(["ab", "c", "de", "long text", "x"]), 100)) == [["ab", "c", "de"], ["long text"], ["x"]]
    assert list(blocks(iter([]), 100)) == []


def test_bytes_tell_apart_where_a_text_ends() -> None:
    texts = (["ab"], ["a", "b"], ["a\n1 b"], ["ab", ""], ["", "ab"])
    assert len({as_bytes(block) for block in texts}) == len(texts)


@pytest.mark.parametrize("number", [1, 2, 3, 10])
def test_processes_share_the_parts_and_the_output_is_that_of_one(
    number: int, shared_by: Callable[..., list[Any]], tmp_path: Path
) -> None:
    made = shared_by(number, lambda processes: write(tmp_path, processes))
    assert made == [list(range(8))[index::number] for index in range(number)]
    assert (tmp_path / "all").read_text() == "".join(f"{line.upper()}\n" for line in LINES)
    assert [path.name for path in tmp_path.iterdir()] == ["all"]


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (3, 1), (3, 2)])
def test_any_number_of_processes_makes_what_is_missing(
    before: int, after: int, shared_by: Callable[..., list[Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Killed):
        shared_by(before, lambda processes: write(tmp_path, processes, parts=1))
    folder = tmp_path / "all.partial"
    done = {int(path.name[:6]) for path in folder.glob("0*.txt")}
    (folder / f".{'0' * 6}-{'0' * 16}.txt.1").write_text("half of a part")
    # a process may be killed by the end of another one before its first part is there
    assert not (tmp_path / "all").exists() and set() < done <= {*range(before)}
    with caplog.at_level(logging.INFO):
        made = shared_by(after, lambda processes: write(tmp_path, processes))
    assert sorted(sum(made, [])) == sorted({*range(8)} - done) and f"with {len(done)} part" in caplog.text
    assert max(map(len, made)) - min(map(len, made)) <= 1
    assert (tmp_path / "all").read_text() == "".join(f"{line.upper()}\n" for line in LINES)
    assert not folder.exists()


def test_what_is_missing_is_shared_evenly(shared_by: Callable[..., list[Any]], tmp_path: Path) -> None:
    with pytest.raises(Killed):
        write(tmp_path, parts=7)
    for number in (1, 3, 5):  # as of one of two processes
        (part,) = (tmp_path / "all.partial").glob(f"{number:06}-*.txt")
        part.unlink()
    assert shared_by(2, lambda processes: write(tmp_path, processes)) == [[1, 5], [3, 7]]


def test_a_part_and_its_hash_are_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    replace = os.replace

    def note_replace(draft: Path, path: Path) -> None:
        done.append(f"becomes {path.name}")
        replace(draft, path)

    monkeypatch.setattr(partial_output, "flush", lambda path: done.append(path.name))
    monkeypatch.setattr(os, "replace", note_replace)
    partial = PartialOutput(tmp_path / "all.partial", ".txt", SETTINGS, "hictl shout")
    partial.write([LINES[:3]], shout)
    (part,) = (path.name for path in partial.parts)
    assert done == ["becomes state.json", f".{part}.{os.getpid()}", f"{part}.hash", f"becomes {part}"]


def test_parts_of_release_0_10_are_kept(tmp_path: Path) -> None:
    """A hash of all lines so far in state.json, and parts that are named by their number."""
    folder = tmp_path / "all.partial"
    folder.mkdir()
    digest = partial_output.hashlib.blake2b(as_bytes(LINES[:6])).hexdigest()
    state = {"settings": SETTINGS, "done": {"lines": [3, 3], "digest": digest}}
    (folder / "state.json").write_text(json.dumps(state))
    for number in (0, 1):
        shout(LINES[3 * number : 3 * number + 3], folder / f"{number:06}.txt")
    (folder / "000002.txt").write_text("killed before its state was written")
    for lines in (["other", *LINES[1:]], LINES[:5], LINES[:3]):
        with pytest.raises(BadInput, match="was begun with other lines"):
            write(tmp_path, lines=lines)
    with pytest.raises(Killed):
        write(tmp_path, parts=2)
    assert write(tmp_path) == [4, 5, 6, 7]
    assert (tmp_path / "all").read_text() == "".join(f"{line.upper()}\n" for line in LINES)


def test_other_lines_settings_or_files_are_refused(tmp_path: Path, shared_by: Callable[..., list[Any]]) -> None:
    with pytest.raises(Killed):
        write(tmp_path, parts=2)
    kept = sorted(path.name for path in (tmp_path / "all.partial").iterdir())
    for lines in (["other", *LINES[1:]], [*LINES[:4], "other", *LINES[5:]], LINES[:3], LINES[:5]):
        with pytest.raises(BadInput, match="was begun with other lines"):
            write(tmp_path, lines=lines)
    for number in (1, 2):
        with pytest.raises(BadInput, match="max_length was 128 and is 64"):
            shared_by(number, lambda processes: write(tmp_path, processes, max_length=64))
    assert sorted(path.name for path in (tmp_path / "all.partial").iterdir()) == kept
    (tmp_path / "other").mkdir()
    (tmp_path / "other/all.partial").mkdir()
    (tmp_path / "other/all.partial/letter.txt").write_text("mine")
    with pytest.raises(BadInput, match="is not partial output of hictl shout"):
        write(tmp_path / "other")
    assert os.listdir(tmp_path / "other/all.partial") == ["letter.txt"]


@pytest.mark.parametrize("written", ["", "[]", "{}", '{"settings": '])
def test_a_state_that_is_damaged_is_named(tmp_path: Path, written: str) -> None:
    with pytest.raises(Killed):
        write(tmp_path, parts=2)
    (tmp_path / "all.partial/state.json").write_text(written, "utf-8")
    with pytest.raises(BadInput, match="state.json: cannot be read .*hictl shout as JSON. Remove .* to begin anew"):
        write(tmp_path)


def test_parts_stay_where_they_cannot_be_joined(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        write(tmp_path, parts=2)

    def refuse(parts: Sequence[Path], output: Path) -> None:
        raise BadInput(f"{parts[0]}: cannot be read")

    partial = PartialOutput(tmp_path / "all.partial", ".txt", SETTINGS, "hictl shout")
    partial.write(blocks(iter(LINES), 3), shout)
    with pytest.raises(BadInput, match="cannot be read"):
        partial.finish(tmp_path / "all", refuse)
    assert write(tmp_path) == []


def test_a_second_command_is_refused_while_the_first_writes(tmp_path: Path) -> None:
    def write_part(block: list[str], path: Path) -> None:
        with pytest.raises(BadInput, match="all.partial: another run .* writes into it; .* choose another --output$"):
            write(tmp_path)
        shout(block, path)

    partial = PartialOutput(tmp_path / "all.partial", ".txt", SETTINGS, "hictl shout")
    partial.write(blocks(iter(LINES), 3), write_part)
    assert write(tmp_path) == []


def test_a_full_disk_while_the_parts_are_joined_keeps_them_and_nothing_else(tmp_path: Path) -> None:
    def fill(parts: Sequence[Path], output: Path) -> None:
        output.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    partial = PartialOutput(tmp_path / "all.partial", ".txt", SETTINGS, "hictl shout")
    partial.write(blocks(iter(LINES), 3), shout)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path / 'all'}'"):
        partial.finish(tmp_path / "all", fill)
    names = {path.name.partition("-")[0] for path in (tmp_path / "all.partial").iterdir()}
    assert names == {"state.json", *(f"{number:06}" for number in range(len(partial.parts)))}
    assert write(tmp_path) == []


@pytest.mark.parametrize("damage", [b"", b"LINE 3\nLINE 4\n", b"LINE 3\nLINE 5\nLINE 5\n", b"LINE 0\nLINE 1\nLINE 2\n"])
def test_a_part_that_was_damaged_is_named_and_made_again(tmp_path: Path, damage: bytes) -> None:
    with pytest.raises(Killed):
        write(tmp_path, parts=2)
    (part,) = (tmp_path / "all.partial").glob("000001-*.txt")
    part.write_bytes(damage)
    with pytest.raises(BadInput, match=f"{part}: cannot be read .* Remove it, and run the same command again"):
        write(tmp_path)
    assert not (tmp_path / "all").exists()
    part.unlink()
    assert write(tmp_path) == [1]
    assert (tmp_path / "all").read_text() == "".join(f"{line.upper()}\n" for line in LINES)


def test_parts_of_a_release_without_their_hashes_are_kept(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        write(tmp_path, parts=2)
    for file in (tmp_path / "all.partial").glob("*.hash"):
        file.unlink()
    assert write(tmp_path) == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 4])
def test_a_folder_whose_removal_was_interrupted_is_no_obstacle(
    kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(path: str | Path, **settings: Any) -> None:
        removed.append(path)
        if len(removed) > kept:
            raise Killed
        real(path, **settings)

    removed, real = [], os.unlink
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(os, "unlink", remove)
        write(tmp_path, lines=LINES[:6])  # two parts, their hashes and the settings
    assert (tmp_path / "all").exists() and (tmp_path / "all.partial").exists()
    write(tmp_path, lines=LINES[:6])
    assert [*tmp_path.iterdir()] == [tmp_path / "all"]


def test_a_process_that_was_killed_while_it_wrote_the_settings_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "all.partial").mkdir()
    (tmp_path / "all.partial" / ".state.json.123").write_text("{")
    write(tmp_path)
    assert [*tmp_path.iterdir()] == [tmp_path / "all"]


def test_no_line_gives_no_output(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no line"):
        write(tmp_path, lines=[])
    assert not list(tmp_path.iterdir())
