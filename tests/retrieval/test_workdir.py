"""The distinct lines of a side and their vectors; partial output continues only with the same files and settings."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hictl_hf.errors import BadInput
from hictl_hf.retrieval.mining import MiningConfig, mine_vectors
from hictl_hf.retrieval.workdir import MiningWorkdir, Side, VectorSource, vectors_in_file

LINES = ["b", "", "a", "b", " ", "c", "a"]
VECTORS = np.arange(21, dtype=np.float32).reshape(7, 3)
TASK = {"pairs": None, "deduplicate": None}
CONFIG = MiningConfig()


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A text and its vectors."""
    (tmp_path / "x.txt").write_text("".join(f"{line}\n" for line in LINES))
    np.save(tmp_path / "x.npy", VECTORS)
    return str(tmp_path / "x.txt"), str(tmp_path / "x.npy")


def workdir(files: tuple[str, str], config: MiningConfig = CONFIG, **task: float) -> MiningWorkdir:
    output = Path(files[0]).with_name("out.tsv")
    return MiningWorkdir(output, [files[0]], VectorSource(files=(files[1],)), config, {**TASK, **task})


def test_a_side_has_the_first_of_equal_lines_and_counts_the_others(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        side = Side("x.txt", LINES)
    assert (side.given, side.sentences, side.rows.tolist()) == (7, ["b", "a", "c"], [0, 2, 5])
    assert caplog.messages == ["x.txt: 2 empty lines are left out", "x.txt: 2 repeated lines are read once"]
    with pytest.raises(BadInput, match="x.txt: has no line with text"):
        Side("x.txt", ["", " "])


def test_vectors_are_those_of_the_distinct_lines(files: tuple[str, str]) -> None:
    side, work = Side(files[0], LINES), workdir(files)
    (vectors,) = work.vectors([side])
    assert np.array_equal(vectors[:], VECTORS[[LINES.index(sentence) for sentence in side.sentences]])
    assert work.folder.name == "out.tsv.partial" and work.state.is_file()
    work.remove()
    assert not work.folder.exists()
    assert vectors_in_file(side, None) is None


@pytest.mark.parametrize(
    ("vectors", "message"),
    [(VECTORS[:6], "has 6 vectors, and .* 7 lines"), (VECTORS[0], "is an array"), (VECTORS.astype(int), "of int64")],
)
def test_other_arrays_are_refused(vectors: np.ndarray, message: str, files: tuple[str, str]) -> None:
    np.save(files[1], vectors)
    with pytest.raises(BadInput, match=message):
        workdir(files).vectors([Side(files[0], LINES)])


def test_only_the_same_files_and_settings_continue(files: tuple[str, str], caplog: pytest.LogCaptureFixture) -> None:
    workdir(files).vectors([Side(files[0], LINES)])
    with caplog.at_level(logging.INFO):
        workdir(files, MiningConfig(threshold=1.5))  # of the choice of pairs, not of the search
    assert "continuing with its vectors and neighbours" in caplog.text
    with pytest.raises(BadInput, match="deduplicate was None and is 0.9"):
        workdir(files, deduplicate=0.9)
    np.save(files[1], VECTORS + 1)
    with pytest.raises(BadInput, match="digests"):
        workdir(files)


def test_files_in_another_order_do_not_continue(files: tuple[str, str]) -> None:
    """The vectors and neighbours of one side would be taken for those of the other."""
    other = Path(files[0]).with_name("y.txt")
    other.write_text("d\n")

    def begun(*texts: str) -> MiningWorkdir:
        return MiningWorkdir(other.with_name("out.tsv"), texts, VectorSource(files=(files[1],)), CONFIG, TASK)

    begun(files[0], str(other)).vectors([Side(files[0], LINES)])
    begun(files[0], str(other))
    with pytest.raises(BadInput, match=r"begun with the files \S*x.txt, \S*y.txt, .*order, now \S*y.txt, \S*x.txt"):
        begun(str(other), files[0])


def test_another_search_continues_with_the_vectors_alone(
    files: tuple[str, str], saved_model: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as with less memory, or in an index, after the first one has taken too long."""
    source, side = VectorSource(str(saved_model(tmp_path / "model")), device="cpu"), Side(files[0], LINES)

    def begin(**settings: Any) -> MiningWorkdir:
        return MiningWorkdir(tmp_path / "out.tsv", [files[0]], source, MiningConfig(**settings), TASK)

    work = begin()
    (vectors,) = work.vectors([side])
    mine_vectors(vectors, vectors, work.config, work.neighbours)
    (work.folder / "index-x").mkdir()
    marked = np.load(work.folder / "x.npy") + 1
    np.save(work.folder / "x.npy", marked)  # or they would equal those of a second embedding
    with caplog.at_level(logging.INFO):
        other = begin(neighbours=2, max_memory=2**26)
    assert "the search begins anew: neighbours was 4 and is 2; max_memory was" in caplog.text
    assert {path.name for path in work.folder.iterdir()} == {"x.npy", "settings.json"}
    assert np.array_equal(other.vectors([side])[0], marked)
    with caplog.at_level(logging.INFO):
        begin(neighbours=2, max_memory=2**26)
    assert "continuing with its vectors and neighbours" in caplog.text


@pytest.mark.parametrize("content", [b"", b"null", b"\x93NUMPY\x01\x00"])
def test_damaged_vectors_are_named(content: bytes, saved_model: Callable[..., Path], tmp_path: Path) -> None:
    source = VectorSource(str(saved_model(tmp_path / "model")), device="cpu")
    work = MiningWorkdir(tmp_path / "out.tsv", [], source, CONFIG, TASK)
    work.folder.mkdir()
    (work.folder / "x.npy").write_bytes(content)
    with pytest.raises(BadInput, match=rf"x.npy: cannot be read .*; allowed .* Remove {work.folder} to begin anew"):
        work.vectors([Side("x.txt", LINES)])


def test_a_folder_with_other_files_is_refused(files: tuple[str, str]) -> None:
    folder = Path(files[0]).with_name("out.tsv.partial")
    folder.mkdir()
    (folder / "letter.txt").write_text("mine")
    with pytest.raises(BadInput, match="is not partial output of hictl mine"):
        workdir(files)


def test_without_vectors_a_model_is_needed(files: tuple[str, str], tmp_path: Path) -> None:
    work = MiningWorkdir(tmp_path / "out.tsv", [files[0]], VectorSource(), CONFIG, TASK)
    with pytest.raises(BadInput, match="model is not given"):
        work.vectors([Side(files[0], LINES), Side(files[0], LINES)])
