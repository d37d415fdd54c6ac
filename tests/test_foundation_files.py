"""Files and folders appear complete or not at all (hictl_hf/files.py)."""

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hictl_hf.errors import BadInput
from hictl_hf.files import (
    atomic_directory,
    atomic_file,
    check_place,
    digest,
    new_folder,
    partial_file,
    write_json,
    write_text,
)


def test_a_file_replaces_the_old_one_at_the_end(tmp_path: Path) -> None:
    path = write_text(tmp_path / "new" / "a.txt", "old")
    with atomic_file(path) as draft:
        draft.write_text("new")
        assert draft.parent == path.parent and path.read_text() == "old"
    assert path.read_text() == "new" and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("text", ["", "half"])
def test_a_failure_leaves_the_old_file_and_a_draft_only_where_it_is_asked_for(
    keep: bool, text: str, tmp_path: Path
) -> None:
    path = write_text(tmp_path / "a.txt", "old")
    with pytest.raises(KeyboardInterrupt), atomic_file(path, partial_file(path), keep) as draft:
        draft.write_text(text)
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert partial_file(path).exists() is (keep and bool(text))


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), OSError("8 requested and 4 written")])
def test_a_full_disk_names_the_file(error: OSError, tmp_path: Path) -> None:
    with pytest.raises(OSError) as raised, atomic_file(tmp_path / "a.txt"):
        raise error
    assert raised.value.filename == str(tmp_path / "a.txt") and not [*tmp_path.iterdir()]
    assert (raised.value.errno, raised.value.strerror) == (error.errno, error.strerror or str(error))


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full", "other"), OSError(errno.EINVAL, "x"), OSError("x")])
def test_other_errors_stay_as_they_are(error: OSError, tmp_path: Path) -> None:
    with pytest.raises(OSError) as raised, atomic_file(tmp_path / "a.txt"):
        raise error
    assert raised.value is error


def test_a_name_that_is_not_utf_8_is_the_same_when_json_is_read(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    assert json.loads(write_json(tmp_path / "a.json", {"path": name}).read_text("utf-8")) == {"path": name}


def test_a_folder_replaces_the_old_one_at_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for name in ("a", "b"):
        with atomic_directory(folder) as draft:
            (draft / name).write_text("x")
    assert [path.name for path in folder.iterdir()] == ["b"] and list(tmp_path.iterdir()) == [folder]
    message = r"run.unfinished: cannot be saved, with \d+ MiB free on its disk: full"
    with pytest.raises(BadInput, match=message), atomic_directory(folder):
        raise OSError("full")
    assert [path.name for path in folder.iterdir()] == ["b"] and list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
@pytest.mark.parametrize("is_there", [False, True])
def test_weights_have_the_mode_of_any_other_new_file(is_there: bool, umask: int, mode: int, tmp_path: Path) -> None:
    """safetensors 0.8 writes them with mode 0600."""
    if is_there:
        (tmp_path / "run").mkdir()
    before = os.umask(umask)
    try:
        with atomic_directory(tmp_path / "run") as draft:
            (draft / "2_Dense").mkdir()
            for name in ("model.safetensors", "2_Dense/model.safetensors"):
                save_file({"a": torch.ones(1)}, draft / name)
            (draft / "config.json").touch()
            (draft / "secret").touch(0o600)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert modes == {"model.safetensors": mode, "config.json": mode, "secret": 0o600}
    assert (tmp_path / "run" / "2_Dense" / "model.safetensors").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("link", [False, True])
def test_an_empty_folder_stays_and_gets_the_files(link: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a mount, or the current folder."""
    place = tmp_path / "place"
    (place / ".unfinished" / "old").mkdir(parents=True)  # left by a run that was killed
    monkeypatch.chdir(place)
    folder = tmp_path / "link" if link else Path()
    if link:
        folder.symlink_to(place)
    with pytest.raises(ZeroDivisionError), atomic_directory(folder) as draft:
        raise ZeroDivisionError
    with atomic_directory(folder) as draft:
        (draft / "a").mkdir()
        (draft / "a" / "b").write_text("x")
        assert [*place.iterdir()] == [place / ".unfinished"]
    assert Path("a/b").read_text() == "x" and [*place.iterdir()] == [place / "a"]


def test_a_new_folder_is_empty(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "a" / "b")
    assert not folder.exists()
    folder.mkdir(parents=True)
    (folder / ".unfinished").mkdir()  # left by a run that was killed
    assert new_folder(folder) == folder
    (folder / "x").touch()
    with pytest.raises(BadInput, match="b: is not empty; allowed is a new folder"):
        new_folder(folder)


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    check_place(tmp_path / "new" / "a.txt")
    check_place(tmp_path, folder=True)
    check_place(tmp_path / "a\udcff.txt")
    with pytest.raises(BadInput, match="is no name in UTF-8"):
        check_place(tmp_path / "a\udcff", folder=True)
    file = write_text(tmp_path / "file", "x")
    for path, folder, found in (
        (tmp_path, False, "is a folder"),
        (file, True, "is a file"),
        (file / "a", False, "file is a"),
    ):
        with pytest.raises(
            BadInput, match=f"{found}.*; allowed is a path where a {'folder' if folder else 'file'} can"
        ):
            check_place(path, folder)
    if os.geteuid():
        tmp_path.chmod(0o500)
        with pytest.raises(BadInput, match="cannot be written to"):
            check_place(tmp_path / "a.txt")


@pytest.mark.parametrize("folder", [False, True])
def test_a_link_to_itself_is_refused(folder: bool, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("a")
    with pytest.raises(BadInput, match="a: .*/a is a link to a, which does not exist; allowed"):
        check_place(tmp_path / "a", folder)


@pytest.mark.parametrize("name", ["runs", "runs/a"])
def test_a_folder_is_not_made_where_a_link_names_none(name: str, tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to("scratch")
    check_place(tmp_path / name / "a.npy")
    with pytest.raises(BadInput, match=f"{name}: .*/runs is a link to scratch, which does not exist; allowed"):
        check_place(tmp_path / name, folder=True)
    (tmp_path / "scratch").mkdir()
    check_place(tmp_path / name, folder=True)


def test_equal_files_have_equal_hashes(tmp_path: Path) -> None:
    one, same, other = (write_text(tmp_path / name, text) for name, text in (("a", "x"), ("b", "x"), ("c", "y")))
    assert digest(one) == digest(same) != digest(other) and len(digest(one)) == 32
