"""Embed a text of any size to a file, in constant memory; an interrupted run continues and gives the same bytes.

    embed_to_file(model, tokenizer, read_texts(["news.de.txt"]), "news.npy", own_pooling(model.config))

Lines are embedded in blocks; the vectors of each block are stored in the folder OUTPUT.partial until all blocks are
done. The same call after an interruption checks that lines, model and settings are the same, and continues after the
last complete block.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray
from tqdm.auto import tqdm
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..errors import BadInput
from ..files import flush, partial_file, write_json
from ..training.fingerprint import CONTINUE_OR_REMOVE, refuse_changes, with_version
from .encoder import embed_sentences
from .pooling import Pooling, chosen_prompt, own_max_length, own_normalize

logger = logging.getLogger(__name__)

LINES_AT_ONCE = 8192
CHARACTERS_AT_ONCE = 2**26
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
) -> None:
    """Write the vectors of texts to a file, continuing an interrupted call with the same arguments.

    Args:
        output: .npy, an array (lines, d), or .parquet, with the columns text and vector.
        remembered: other facts that must be the same to continue, such as the precision of the model.
        total: number of texts, for the progress bar.

    Raises:
        BadInput: OUTPUT.partial was begun with other texts, another model or other settings; or there is no text.
    """

    config = resolved(config, model.config)

    def embed(block: Sequence[str]) -> NDArray[np.floating]:
        vectors = embed_sentences(
            model, tokenizer, block, pooling, prompt=config.prompt or "", normalize=config.normalize,
            max_tokens=config.max_tokens, max_length=config.max_length, progress=True,
        )  # fmt: skip
        return vectors.astype(config.stored)

    output = Path(output).resolve()
    settings = {**asdict(config), **(remembered or {})}
    settings |= {
        "pooling": list(pooling),
        "model": f"one whose vectors are {hashlib.blake2b(embed([PROBE]).tobytes()).hexdigest()}",
    }
    partial = PartialOutput(partial_file(output), output.suffix, settings)
    with tqdm(total=total, desc="lines", unit=" lines", disable=None) as bar:
        bar.update(partial.skip(texts))
        for block in blocks(texts, config.lines_at_once):
            partial.add(block, embed(block))
            bar.update(len(block))
    partial.finish(output)


def resolved(config: VectorFileConfig, model: PreTrainedConfig) -> VectorFileConfig:
    """The settings with the model's own values where they are `None`; `prompt` stays `None` without a prompt."""
    return replace(
        config,
        normalize=own_normalize(model) if config.normalize is None else config.normalize,
        max_length=config.max_length or own_max_length(model),
        prompt=chosen_prompt(model, config.prompt) or None,
    )


class PartialOutput:
    """A folder with the blocks of vectors embedded so far, a file each, and the settings they were made with.

    Args:
        folder: created if it does not exist.
        ending: of the files, ".npy" or ".parquet".
        settings: everything that the vectors depend on.

    Raises:
        BadInput: the folder was begun with other settings, or holds something else.
    """

    def __init__(self, folder: Path, ending: str, settings: Mapping[str, Any]) -> None:
        self.folder, self.ending, self.settings = folder, ending, settings
        self.state, self.digest = folder / "state.json", hashlib.blake2b()
        self.done: dict[str, Any] = {"lines": [], "digest": self.digest.hexdigest()}  # lines of each block
        if self.state.is_file():
            former = json.loads(self.state.read_text("utf-8"))
            refuse_changes(folder, former["settings"], settings, CONTINUE_OR_REMOVE)
            self.done = former["done"]
        elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadInput(f"{folder}: is not partial output of hictl embed; move or remove it")
        folder.mkdir(parents=True, exist_ok=True)

    def skip(self, texts: Iterator[str]) -> int:
        """Skip the texts that are done, and check that they are the same as before; returns their number."""
        for lines in self.done["lines"]:
            self.digest.update(as_bytes(islice(texts, lines)))
        if self.digest.hexdigest() != self.done["digest"]:
            fix = "give the same lines, or remove the folder to begin anew"
            raise BadInput(f"{self.folder}: was begun with other lines; {fix}")
        number = sum(self.done["lines"])
        if number:
            logger.info("%s: continuing after line %s", self.folder, f"{number:,}")
        return number

    def add(self, block: list[str], vectors: NDArray[np.floating]) -> None:
        """Write the next block of vectors, then the state: an incomplete file is never counted."""
        path, lines = self.part(len(self.done["lines"])), self.done["lines"]
        if self.ending == ".npy":
            np.save(path, vectors)
        else:
            pyarrow.parquet.write_table(as_table(block, vectors), path)
        flush(path)
        self.digest.update(as_bytes(block))
        self.done = {"lines": [*lines, len(block)], "digest": self.digest.hexdigest()}
        write_json(self.state, {"settings": with_version(self.settings), "done": self.done})

    def part(self, number: int) -> Path:
        """The file of a block."""
        return self.folder / f"{number:06}{self.ending}"

    def finish(self, output: Path) -> None:
        """Join the blocks into the output file and remove the folder; `BadInput` if there is no block."""
        lines = self.done["lines"]
        if not lines:
            self.folder.rmdir()
            raise BadInput("the input has no line; allowed is one or more")
        parts, draft = list(map(self.part, range(len(lines)))), self.folder / f"joined{self.ending}"
        if self.ending == ".npy":
            join_arrays(parts, sum(lines), draft)
        else:
            join_tables(parts, draft)
        os.replace(draft, output)
        shutil.rmtree(self.folder)


def join_arrays(parts: Sequence[Path], lines: int, output: Path) -> None:
    """Concatenate arrays of vectors in files, one in memory at a time."""
    first = np.load(parts[0], mmap_mode="r")
    joined = np.lib.format.open_memmap(output, "w+", first.dtype, (lines, first.shape[1]))
    start = 0
    for part in map(np.load, parts):
        joined[start : start + len(part)] = part
        start += len(part)
    joined.flush()


def join_tables(parts: Sequence[Path], output: Path) -> None:
    """Concatenate Parquet files, one in memory at a time."""
    with pyarrow.parquet.ParquetWriter(output, pyarrow.parquet.read_schema(parts[0])) as writer:
        for part in parts:
            writer.write_table(pyarrow.parquet.read_table(part))


def as_table(texts: list[str], vectors: NDArray[np.floating]) -> pyarrow.Table:
    """Texts and vectors as a table with the columns text and vector."""
    flat = pyarrow.array(vectors.ravel())
    return pyarrow.table({"text": texts, "vector": pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])})


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
