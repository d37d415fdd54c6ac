"""A folder in which anything is missing, cut or changed is no checkpoint, and the newest whole one is found."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import SafetensorError

import hictl_hf.training.checkpoints
from hictl_hf.errors import BadInput
from hictl_hf.files import atomic_directory
from hictl_hf.training.checkpoints import (
    MANIFEST,
    check_checkpoint,
    last_complete_checkpoint,
    newest_first,
    remove_broken_checkpoints,
    resume_choice,
    verify_checkpoint,
    write_manifest,
)


def save(folder: Path, step: int) -> Path:
    """A whole checkpoint of three files, one of them a folder deeper."""
    checkpoint = folder / f"checkpoint-{step}"
    (checkpoint / "deeper").mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(bytes(range(200)) * step)
    (checkpoint / "deeper" / "optimizer.pt").write_bytes(b"moments")
    (checkpoint / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
    write_manifest(checkpoint)
    return checkpoint


@pytest.mark.parametrize("word", ["no", "N", "0", "f", "False", "none", ""])
def test_every_spelling_of_false_is_false(word: str) -> None:
    assert resume_choice(word) is False and resume_choice(None) is None


@pytest.mark.parametrize("word", ["yes", "Y", "1", "t", "True"])
def test_every_spelling_of_true_is_true_and_other_words_are_folders(word: str) -> None:
    assert resume_choice(word) is True and resume_choice("runs/yes") == "runs/yes"


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def empty(checkpoint: Path) -> None:
    for file in sorted(checkpoint.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda folder: os.truncate(folder / "model.safetensors", 399), "399 bytes, 400 were written"),
    "longer": (lambda folder: os.truncate(folder / "model.safetensors", 401), "401 bytes, 400 were written"),
    "missing": (lambda folder: (folder / "trainer_state.json").unlink(), "trainer_state.json is missing"),
    "missing deeper": (lambda folder: (folder / "deeper" / "optimizer.pt").unlink(), "deeper/optimizer.pt is missing"),
    "flipped": (lambda folder: flip_a_byte(folder / "model.safetensors"), "model.safetensors is not what was written"),
    "no manifest": (lambda folder: (folder / MANIFEST).unlink(), f"has no {MANIFEST}"),
    "cut manifest": (lambda folder: os.truncate(folder / MANIFEST, 60), f"{MANIFEST} is damaged"),
    "other manifest": (lambda folder: (folder / MANIFEST).write_text("[1, 2]"), f"{MANIFEST} is damaged"),
    "no sizes": (lambda folder: (folder / MANIFEST).write_text('{"model.safetensors": 1}'), f"{MANIFEST} is damaged"),
    "a folder for a file": (
        lambda folder: ((folder / MANIFEST).unlink(), (folder / MANIFEST).mkdir()),
        "cannot be read",
    ),
    "empty": (empty, f"has no {MANIFEST}"),
    "half deleted": (
        lambda folder: [(folder / name).unlink() for name in (MANIFEST, "model.safetensors")],
        f"has no {MANIFEST}",
    ),
}


def test_a_checkpoint_as_it_was_saved_is_whole_and_says_what_is_in_it(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 2)
    assert verify_checkpoint(checkpoint) is None
    check_checkpoint(checkpoint)
    files = json.loads((checkpoint / MANIFEST).read_text())
    # what `b2sum --length 128` says of the seven bytes
    assert files["deeper/optimizer.pt"] == [7, "2a4fd9f197de10fbfa1846b6ba0dffc0"]
    assert files.keys() == {"model.safetensors", "trainer_state.json", "deeper/optimizer.pt"}
    (checkpoint / "notes.txt").write_text("added by hand")
    assert verify_checkpoint(checkpoint) is None


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_it_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    change, fault = DAMAGES[damage]
    older, newer = save(tmp_path, 1), save(tmp_path, 2)
    assert last_complete_checkpoint(tmp_path) == str(newer)
    change(newer)
    with pytest.raises(BadInput, match=f"{newer}: not a complete checkpoint: .*{fault}.*--resume_from_checkpoint true"):
        check_checkpoint(newer)
    with caplog.at_level(logging.WARNING):
        assert last_complete_checkpoint(tmp_path) == str(older)
    [record] = caplog.records
    assert record.levelname == "WARNING" and "\n" not in record.message
    for said in (str(newer), fault, str(older)):
        assert said in record.message


def test_a_checkpoint_may_be_checked_by_the_names_and_sizes_of_its_files(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 2)
    flip_a_byte(checkpoint / "model.safetensors")
    check_checkpoint(checkpoint, contents=False)
    os.truncate(checkpoint / "model.safetensors", 399)
    with pytest.raises(BadInput, match="399 bytes, 400 were written"):
        check_checkpoint(checkpoint, contents=False)


def test_a_damaged_checkpoint_that_is_not_the_newest_does_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    empty(save(tmp_path, 1))
    newer = save(tmp_path, 2)
    assert last_complete_checkpoint(tmp_path) == str(newer)
    assert not caplog.records


def test_checkpoints_are_ordered_by_number_and_other_names_are_none_of_them(tmp_path: Path) -> None:
    for step in (9, 100, 20):
        save(tmp_path, step)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "checkpoint-999").write_text("a file")
    assert [path.name for path in newest_first(tmp_path)] == ["checkpoint-100", "checkpoint-20", "checkpoint-9"]
    assert last_complete_checkpoint(tmp_path) == str(tmp_path / "checkpoint-100")


def test_where_no_checkpoint_is_whole_there_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert last_complete_checkpoint(tmp_path / "nowhere") is None and last_complete_checkpoint(tmp_path) is None
    assert not caplog.records
    for step in (1, 2):
        empty(save(tmp_path, step))
    assert last_complete_checkpoint(tmp_path) is None
    assert ["checkpoint-2" in caplog.messages[0], "checkpoint-1" in caplog.messages[1]] == [True, True]
    assert all("nothing" in message for message in caplog.messages)


def test_files_are_on_the_disk_before_they_are_listed_and_the_list_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    replace = os.replace

    def note_flush(path: Path) -> None:
        done.append(path.name)

    def note_replace(draft: Path, path: Path) -> None:
        done.append(f"{draft.name} becomes {path.name}")
        replace(draft, path)

    monkeypatch.setattr(hictl_hf.training.checkpoints, "flush", note_flush)
    monkeypatch.setattr(os, "replace", note_replace)
    save(tmp_path, 1)
    files = ["deeper", "optimizer.pt", "model.safetensors", "trainer_state.json", "checkpoint-1"]
    assert done[:5] == files
    assert done[5:] == [f".{MANIFEST}", f".{MANIFEST} becomes {MANIFEST}", "checkpoint-1", tmp_path.name]


def test_what_was_cut_short_is_removed_and_nothing_else(tmp_path: Path) -> None:
    whole, unfinished, half_deleted = (save(tmp_path, step) for step in (1, 2, 3))
    (unfinished / MANIFEST).unlink()
    (half_deleted / "deeper" / "optimizer.pt").unlink()
    (tmp_path / "checkpoint-of-mine").mkdir()
    flip_a_byte(save(tmp_path, 4) / "model.safetensors")  # not read, which may take minutes
    remove_broken_checkpoints(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-4", "checkpoint-of-mine"]
    assert verify_checkpoint(whole) is None
    write_manifest(whole)  # again, as after a save that was interrupted
    assert verify_checkpoint(whole) is None


# --- other folders ----------------------------------------------------------------------------------------------------


def test_a_whole_folder_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    for text in ("old", "new"):
        with atomic_directory(tmp_path / "model") as place:
            (place / "a.txt").write_text(text)
            assert not (tmp_path / "model").exists() or (tmp_path / "model/a.txt").read_text() == "old"
    assert (tmp_path / "model/a.txt").read_text() == "new" and [*tmp_path.iterdir()] == [tmp_path / "model"]


FULL = OSError(28, "No space left on device"), SafetensorError("I/O error: No space left on device")


def test_a_written_folder_that_cannot_be_renamed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="Input/output"), atomic_directory(tmp_path / "model") as place:
        (place / "a.txt").write_text("a")
    assert (tmp_path / "model.unfinished/a.txt").read_text() == "a"


@pytest.mark.parametrize("error", [*FULL, ZeroDivisionError()], ids=lambda error: type(error).__name__)
def test_a_folder_that_cannot_be_written_leaves_the_one_before(error: Exception, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    message, expected = None, type(error)
    if error in FULL:
        message, expected = "model/.unfinished: cannot be saved, with .* free on its disk: .*No space.*free", BadInput
    with pytest.raises(expected, match=message), atomic_directory(tmp_path / "model") as place:
        (place / "a.txt").write_text("a")
        raise error
    assert [*tmp_path.iterdir()] == [tmp_path / "model"] and not [*(tmp_path / "model").iterdir()]
