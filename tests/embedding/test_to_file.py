"""Files of vectors: joined parts are the vectors of all lines; what is left to the model is filled in."""

import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from transformers import XLMRobertaConfig

from hictl_hf.embedding.pooling import Pooling
from hictl_hf.embedding.to_file import (
    VectorFileConfig,
    as_stored,
    as_table,
    embed_to_file,
    join_arrays,
    join_tables,
    resolved,
)
from hictl_hf.errors import BadInput

FULL = Path("/dev/full")
LINES = [f"line {number}" for number in range(7)]
VECTORS = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)


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


def test_joined_vectors_are_written_not_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is an error for a file, and for a memory map the end of the process by SIGBUS."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(mmap, "mmap", refuse)
    np.save(tmp_path / "a.npy", VECTORS)
    join_arrays([tmp_path / "a.npy"] * 2, 14, tmp_path / "all.npy")
    np.save(tmp_path / "expected.npy", np.concatenate([VECTORS] * 2))
    assert (tmp_path / "all.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()


def test_a_full_disk_is_not_blamed_on_the_parts(tmp_path: Path) -> None:
    array, table = tmp_path / "a.npy", tmp_path / "a.parquet"
    np.save(array, VECTORS)
    pyarrow.parquet.write_table(as_table(LINES, VECTORS), table)
    with pytest.raises(OSError, match="No space left"):
        join_arrays([array], 7, FULL)
    with pytest.raises(OSError, match="No space left"):
        join_tables([table], FULL)


@pytest.mark.parametrize("content", [b"", b"null", b"\x93NUMPY\x01\x00"])
@pytest.mark.parametrize("at", [0, 1])
def test_a_damaged_part_is_named(content: bytes, at: int, tmp_path: Path) -> None:
    arrays, tables = [tmp_path / f"{part}.npy" for part in "ab"], [tmp_path / f"{part}.parquet" for part in "ab"]
    for array, table in zip(arrays, tables):
        np.save(array, VECTORS)
        pyarrow.parquet.write_table(as_table(LINES, VECTORS), table)
    for parts in (arrays, tables):
        parts[at].write_bytes(content)
    with pytest.raises(BadInput, match=rf"{arrays[at]}: cannot be read .*Remove it, and run the same command again"):
        join_arrays(arrays, 14, tmp_path / "all.npy")
    with pytest.raises(BadInput, match=rf"{tables[at]}: cannot be read .*Remove it, and run the same command again"):
        join_tables(tables, tmp_path / "all.parquet")


def test_a_vector_that_is_no_number_is_refused_with_its_text() -> None:
    large, broken = VECTORS.copy(), VECTORS.copy()
    large[2, 1], broken[4, 0] = 70_000, np.nan
    assert np.array_equal(as_stored(large, LINES, "float32"), large)
    assert as_stored(VECTORS, LINES, "float16").dtype == np.float16
    with pytest.raises(BadInput, match="the vector of 'line 2' has infinity or NaN in float16; .* Store float32"):
        as_stored(large, LINES, "float16")
    with pytest.raises(BadInput, match="the vector of 'line 4' has infinity or NaN in float32; .* Check the model's w"):
        as_stored(broken, LINES, "float32")


def test_what_would_be_another_file_than_asked_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="stored is 'int8'; allowed are float32, float16"):
        VectorFileConfig(stored="int8")
    model: Any = SimpleNamespace(config=XLMRobertaConfig(max_position_embeddings=130))
    for output, texts, found in (
        ("a.csv", iter(LINES), "output is .*a.csv; allowed are names that end in .npy or .parquet"),
        ("a.npy", "line", "sentences is 'line', of type str; allowed is a list of texts"),
    ):
        with pytest.raises(BadInput, match=found):
            embed_to_file(model, model, texts, tmp_path / output, Pooling("mean", 1))  # type: ignore[arg-type]
        assert not any(tmp_path.iterdir())


def test_what_is_left_to_the_model_is_filled_in_so_that_it_is_compared() -> None:
    plain = XLMRobertaConfig(max_position_embeddings=130)
    assert resolved(VectorFileConfig(), plain) == VectorFileConfig(normalize=True, max_length=128, prompt=None)
    stated = XLMRobertaConfig(embedding_prompt="query: ", embedding_normalize=False, embedding_max_length=50)
    expected = VectorFileConfig(normalize=False, max_length=50, prompt="query: ", stored="float16")
    assert resolved(VectorFileConfig(stored="float16"), stated) == expected
    assert resolved(VectorFileConfig(prompt="", normalize=True, max_length=9), stated) == VectorFileConfig(
        True, max_length=9
    )
