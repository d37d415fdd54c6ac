"""Embed a text of any size to a file, in constant memory; an interrupted run continues and gives the same bytes.

    embed_to_file(model, tokenizer, read_texts(["news.de.txt"]), "news.npy", own_pooling(model.config))

Lines are embedded in blocks; the vectors of each block are a part in the folder OUTPUT.partial until all are done. The
same call after an interruption checks that lines, model and settings are the same, and makes the missing parts. Several
processes (`processes.join`) share the blocks.
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray
from tqdm.auto import tqdm
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..data.tokenization import list_of_texts
from ..errors import BadInput, short_repr
from ..files import partial_file
from ..processes import ALONE, Processes, hides_progress
from ..training.partial_output import PartialOutput, blocks, joining_part
from .encoder import embed_sentences
from .pooling import Pooling, chosen_prompt, own_max_length, own_normalize

logger = logging.getLogger(__name__)

LINES_AT_ONCE = 8192
OUTPUTS = (".npy", ".parquet")
STORED = ("float32", "float16")
PROBE = "Do these vectors come from the same model?"


@dataclass(frozen=True)
class VectorFileConfig:
    """Settings of the vectors in a file."""

    normalize: bool | None = None
    """Make vectors of length 1; `None`: as the model says, by default yes."""
    stored: str = "float32"
    """The dtype in the file, one of `STORED`."""
    max_length: int | None = None
    """Tokens of a line, special tokens included; the rest is cut. `None`: the model's, by default 256."""
    prompt: str | None = None
    """Text that is put before each line, "" for none; `None`: the model's default prompt."""
    max_tokens: int | None = None
    """Tokens of a batch, padding included; `None`: the default of `embed_sentences`."""
    lines_at_once: int = LINES_AT_ONCE
    """Lines of a block, which are sorted by length and stored together."""

    def __post_init__(self) -> None:
        if self.stored not in STORED:  # integers would be 0
            raise BadInput(f"stored is {self.stored!r}; allowed are {', '.join(STORED)}")


def embed_to_file(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterator[str],
    output: str | Path,
    pooling: Pooling,
    config: VectorFileConfig = VectorFileConfig(),
    *,
    remembered: Mapping[str, Any] | None = None,
    total: int | None = None,
    processes: Processes = ALONE,
) -> None:
    """Write the vectors of texts to a file, continuing an interrupted call with the same arguments.

    Args:
        output: .npy, an array (lines, d), or .parquet, with the columns text and vector.
        remembered: other facts that must be the same to continue, such as the precision of the model.
        total: number of texts, for the progress bar.
        processes: that share the blocks; each of them makes the same call.

    Raises:
        BadInput: OUTPUT.partial was begun with other texts, another model or other settings; or there is no text; or
            the output has another ending.
    """
    config, output = resolved(config, model.config), Path(output).resolve()
    if output.suffix not in OUTPUTS:
        raise BadInput(f"output is {output}; allowed are names that end in {' or '.join(OUTPUTS)}")
    if isinstance(texts, str):
        list_of_texts(texts)  # refuses it: its characters would be the texts
    is_array = output.suffix == ".npy"

    def embed(block: Sequence[str]) -> NDArray[np.floating]:
        vectors = embed_sentences(
            model, tokenizer, block, pooling, prompt=config.prompt or "", normalize=config.normalize,
            max_tokens=config.max_tokens, max_length=config.max_length, progress=processes.is_main,
        )  # fmt: skip
        return as_stored(vectors, block, config.stored)

    def write_part(block: list[str], path: Path) -> None:
        if is_array:
            with path.open("wb") as file:
                np.save(file, embed(block))
        else:
            pyarrow.parquet.write_table(as_table(block, embed(block)), path)

    settings = asdict(config) | dict(remembered or {})
    settings |= {"pooling": list(pooling), "model": hash_of_vectors(embed([PROBE]))}
    partial = PartialOutput(partial_file(output), output.suffix, settings, "hictl embed", processes)
    with tqdm(total=total, desc="lines", unit=" lines", disable=hides_progress()) as bar:
        partial.write(blocks(texts, config.lines_at_once), write_part, bar.update)

    def join(parts: Sequence[Path], draft: Path) -> None:
        if not parts:
            raise BadInput("the input has no line; allowed is one or more")
        if is_array:
            join_arrays(parts, partial.lines, draft)
        else:
            join_tables(parts, draft)

    partial.finish(output, join)
    logger.info("%s: %s vectors", output, f"{partial.lines:,}")


def resolved(config: VectorFileConfig, model: PreTrainedConfig) -> VectorFileConfig:
    """The settings with the model's own values where they are `None`; `prompt` stays `None` without a prompt."""
    return replace(
        config,
        normalize=own_normalize(model) if config.normalize is None else config.normalize,
        max_length=config.max_length or own_max_length(model),
        prompt=chosen_prompt(model, config.prompt) or None,
    )


def as_stored(vectors: NDArray[np.float32], texts: Sequence[str], dtype: str) -> NDArray[np.floating]:
    """Vectors of texts in this dtype; `BadInput` names the first text whose vector has infinity or NaN in it."""
    with np.errstate(over="ignore"):
        stored: NDArray[np.floating] = vectors.astype(dtype)
    broken = ~np.isfinite(stored).all(1)
    if broken.any():
        first = int(broken.argmax())
        fix = "Store float32, or normalize." if np.isfinite(vectors[first]).all() else "Check the model's weights."
        text = "a sentence that tries the model" if texts[first] == PROBE else short_repr(texts[first])
        raise BadInput(f"the vector of {text} has infinity or NaN in {dtype}; allowed are finite numbers. {fix}")
    return stored


def hash_of_vectors(vectors: NDArray[np.floating]) -> str:
    """What stands for a model among settings: a hash of its vectors of `PROBE`, in words."""
    return f"one whose vectors are {hashlib.blake2b(vectors.tobytes()).hexdigest()}"


def join_arrays(parts: Sequence[Path], lines: int, output: Path) -> None:
    """Concatenate arrays of vectors in files, one in memory at a time."""
    with output.open("wb") as joined:  # not a memory map, for which a full disk is a bus error
        for file in parts:
            with joining_part(file):
                part = np.load(file)
            if not joined.tell():
                header = np.lib.format.header_data_from_array_1_0(part)
                np.lib.format.write_array_header_1_0(joined, header | {"shape": (lines, part.shape[1])})
            joined.write(part.data)


def join_tables(parts: Sequence[Path], output: Path) -> None:
    """Concatenate Parquet files, one in memory at a time."""
    with joining_part(parts[0]):
        schema = pyarrow.parquet.read_schema(parts[0])
    with pyarrow.parquet.ParquetWriter(output, schema) as writer:
        for part in parts:
            with joining_part(part):
                table = pyarrow.parquet.read_table(part)
            writer.write_table(table)


def as_table(texts: list[str], vectors: NDArray[np.floating]) -> pyarrow.Table:
    """Texts and vectors as a table with the columns text and vector."""
    flat = pyarrow.array(vectors.ravel())
    return pyarrow.table({"text": texts, "vector": pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])})
