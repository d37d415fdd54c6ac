"""Blocks of vectors: joined they are the vectors of all lines; partial output continues only where it was."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from transformers import XLMRobertaConfig

from hictl_hf.embedding import to_file
from hictl_hf.embedding.to_file import (
    PartialOutput,
    VectorFileConfig,
    as_bytes,
    as_table,
    blocks,
    join_arrays,
    join_tables,
    resolved,
)
from hictl_hf.errors import BadInput

LINES = [f"line {number}" for number in range(7)]
VECTORS = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
SETTINGS = {"model": "a", "max_length": 128}


def write_blocks(folder: Path, ending: str, *sizes: int) -> PartialOutput:
    """Partial output with blocks of these sizes."""
    partial, start = PartialOutput(folder, ending, SETTINGS), 0
    for size in sizes:
        partial.add(LINES[start : start + size], VECTORS[start : start + size])
        start += size
    return partial


@pytest.mark.parametrize("lines", [1, 2, 3, 7, 100])
def test_blocks_are_the_texts_in_order_and_full_but_for_the_last(lines: int) -> None:
    found = list(blocks(iter(LINES), lines))
    assert [line for block in found for line in block] == LINES
    assert all(len(block) == lines for block in found[:-1]) and 0 < len(found[-1]) <= lines


def test_long_texts_make_smaller_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(to_file, "CHARACTERS_AT_ONCE", 4)
    assert list(blocks(iter(["ab", "c", "de", "long text", "x"]), 100)) == [["ab", "c", "de"], ["long text"], ["x"]]
    assert list(blocks(iter([]), 100)) == []


def test_bytes_tell_apart_where_a_text_ends() -> None:
    texts = (["ab"], ["a", "b"], ["a\n1 b"], ["ab", ""], ["", "ab"])
    assert len({as_bytes(block) for block in texts}) == len(texts)


def test_joined_files_are_those_joined_in_memory(tmp_path: Path) -> None:
    arrays, tables = [tmp_path / f"{part}.npy" for part in "abc"], [tmp_path / f"{part}.parquet" for part in "abc"]
    for part, array, table in zip((slice(0, 3), slice(3, 4), slice(4, 7)), arrays, tables):
        np.save(array, VECTORS[part])
        pyarrow.parquet.write_table(as_table(LINES[part], VECTORS[part]), table)
    join_arrays(arrays, 7, tmp_path / "all.npy")
    join_tables(tables, tmp_path / "all.parquet")
    assert np.array_equal(np.load(tmp_path / "all.npy"), VECTORS)
    joined = pyarrow.parquet.read_table(tmp_path / "all.parquet").to_pydict()
    assert joined["text"] == LINES and np.array_equal(np.array(joined["vector"], np.float32), VECTORS)


def test_what_is_left_to_the_model_is_filled_in_so_that_it_is_compared() -> None:
    plain = XLMRobertaConfig(max_position_embeddings=130)
    assert resolved(VectorFileConfig(), plain) == VectorFileConfig(normalize=True, max_length=128, prompt=None)
    stated = XLMRobertaConfig(embedding_prompt="query: ", embedding_normalize=False, embedding_max_length=50)
    expected = VectorFileConfig(normalize=False, max_length=50, prompt="query: ", stored="float16")
    assert resolved(VectorFileConfig(stored="float16"), stated) == expected
    assert resolved(VectorFileConfig(prompt="", normalize=True, max_length=9), stated) == VectorFileConfig(
        True, max_length=9
    )


@pytest.mark.parametrize("ending", [".npy", ".parquet"])
def test_partial_output_continues_and_the_output_does_not_depend_on_it(ending: str, tmp_path: Path) -> None:
    write_blocks(tmp_path / "all.partial", ending, 3, 4).finish(tmp_path / f"all{ending}")
    write_blocks(tmp_path / "two.partial", ending, 3)
    texts = iter(LINES)
    partial = PartialOutput(tmp_path / "two.partial", ending, SETTINGS)
    assert partial.skip(texts) == 3
    partial.add(list(texts), VECTORS[3:])
    partial.finish(tmp_path / f"two{ending}")
    assert (tmp_path / f"two{ending}").read_bytes() == (tmp_path / f"all{ending}").read_bytes()
    assert not list(tmp_path.glob("*.partial"))


def test_a_block_without_its_state_is_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "a.partial"
    write_blocks(folder, ".npy", 3)
    np.save(folder / "000001.npy", np.zeros((4, 3), np.float32))  # killed before its state was written
    partial = PartialOutput(folder, ".npy", SETTINGS)
    assert partial.skip(iter(LINES)) == 3
    partial.add(LINES[3:], VECTORS[3:])
    partial.finish(tmp_path / "a.npy")
    assert np.array_equal(np.load(tmp_path / "a.npy"), VECTORS)


def test_other_lines_settings_or_files_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "a.partial"
    write_blocks(folder, ".npy", 3)
    with pytest.raises(BadInput, match="was begun with other lines"):
        PartialOutput(folder, ".npy", SETTINGS).skip(iter([*LINES[:2], "other"]))
    with pytest.raises(BadInput, match="was begun with other lines"):
        PartialOutput(folder, ".npy", SETTINGS).skip(iter(LINES[:2]))
    with pytest.raises(BadInput, match="max_length was 128 and is 64"):
        PartialOutput(folder, ".npy", {**SETTINGS, "max_length": 64})
    (tmp_path / "b.partial").mkdir()
    (tmp_path / "b.partial" / "letter.txt").write_text("mine")
    with pytest.raises(BadInput, match="is not partial output of hictl embed"):
        PartialOutput(tmp_path / "b.partial", ".npy", SETTINGS)
    assert json.loads((folder / "state.json").read_text())["done"]["lines"] == [3]


def test_no_line_gives_no_output(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no line"):
        PartialOutput(tmp_path / "a.partial", ".npy", SETTINGS).finish(tmp_path / "a.npy")
    assert not list(tmp_path.iterdir())
