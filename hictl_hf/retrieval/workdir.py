"""The folder of an unfinished `hictl mine`: vectors and neighbours, from which the same command continues, and another
search of the same vectors."""

import hashlib
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..embedding.encoder import Precision, embed_sentences, load_encoder
from ..embedding.pooling import Pooling, chosen_pooling, chosen_prompt, length_read, own_pooling, vector_size
from ..embedding.sentence_transformers_settings import settings_files
from ..embedding.to_file import PROBE, VectorFileConfig, embed_to_file, hash_of_vectors
from ..errors import BadInput, as_bad_input
from ..files import digest, is_stream, is_unused, only_writer, partial_file, remove_partial
from ..processes import ALONE, Processes
from ..training.fingerprint import (
    CONTINUE_OR_REMOVE,
    SETTINGS_FILE,
    differences,
    refuse_other_settings,
    remember_settings,
)
from ..training.partial_output import as_bytes, reading_part
from .bitext import SomeRows, UnitRows
from .mining import MiningConfig, describe, make_search, run, share_index_search
from .nearest_neighbours import Source

logger = logging.getLogger(__name__)

ROWS_AT_ONCE = 2**14  # of a file of vectors
OF_THE_SEARCH = ("neighbours", "index", "index_parameters", "max_memory", "device")  # no vector depends on them
VECTORS = "an array (lines, d) of floating-point numbers of 16, 32 or 64 bits in .npy"


@dataclass(frozen=True)
class VectorSource:
    """The source of the vectors of one or two texts: an encoder, files, or both."""

    model: str | None = None
    """Folder or Hub name of the encoder that embeds texts without a file of vectors."""
    precision: Precision = "fp32"
    device: str | None = None
    """`None`: a GPU if there is one."""
    files: tuple[str | None, ...] = (None, None)
    """Files of vectors (.npy), for example of `hictl embed`: one for each text, row i for line i, or `None`."""
    prompt: str | None = None
    """Text that the encoder reads before each line, "" for none; `None`: the model's default prompt."""
    prompt_name: str | None = None
    """Name of a prompt of the model, instead of its text."""
    pooling: str | None = None
    """One of `pooling.POOLINGS`; `None`: the model's."""
    layer: int | None = None
    """Layer to pool, 0: the embeddings; `None`: the model's."""
    max_length: int | None = None
    """Tokens of a line, special tokens included; the rest is cut. `None`: the model's, by default 256."""

    @property
    def search_device(self) -> str:
        """The device on which neighbours are searched."""
        return self.device or ("cuda" if torch.cuda.is_available() else "cpu")


class Side:
    """The distinct nonempty lines of one file; the numbers of empty and repeated ones are logged.

    Attributes:
        name: name of the file in messages.
        given: number of all lines.
        sentences: the distinct nonempty lines, in the order of their first occurrence.
        rows: (sentences,) the index of the first occurrence of each, from 0.

    Raises:
        BadInput: there is no line with text.
    """

    def __init__(self, name: str, lines: Sequence[str]) -> None:
        self.name, self.given = name, len(lines)
        first: dict[str, int] = {}
        for row, line in enumerate(lines):
            if line.strip():
                first.setdefault(line, row)
        self.sentences = list(first)
        self.rows: NDArray[np.int64] = np.array(list(first.values()), np.int64)
        if not first:
            raise BadInput(f"{name}: has no line with text; allowed is one or more")
        empty = sum(not line.strip() for line in lines)
        repeated = len(lines) - empty - len(first)
        for number, what in ((empty, "empty lines are left out"), (repeated, "repeated lines are read once")):
            if number:
                logger.info("%s: %s %s", name, f"{number:,}", what)


@contextmanager
def only_command(output: str | Path, processes: Processes = ALONE) -> Iterator[None]:
    """Hold the folder of partial output; `BadInput` in all processes if another command with this output holds it."""
    with ExitStack() as held:
        if not is_stream(output):
            folder = partial_file(Path(output).resolve())
            processes.on_main(lambda: held.enter_context(only_writer(folder, "--output")))
        yield


class MiningWorkdir:
    """The folder OUTPUT.partial with vectors and neighbours, in which only the same command on the same files resumes;
    with other settings of the search, its vectors are kept.

    Args:
        output: output file of the command.
        files: all text files that the command reads.
        source: source of the vectors.
        config: settings of the search.
        task: other settings that vectors or neighbours depend on.
        processes: that share the work; each of them makes this object.

    Raises:
        BadInput: the folder was begun with other settings or files, or holds other files.
    """

    def __init__(
        self, output: str | Path, files: Sequence[str], source: VectorSource, config: MiningConfig,
        task: Mapping[str, Any], processes: Processes = ALONE,
    ) -> None:  # fmt: skip
        self.source, self.config, self.processes = source, config, processes
        self.prints = None
        if is_stream(output):  # nothing can resume
            self.temporary = tempfile.TemporaryDirectory(prefix="hictl-mine-")  # removed with this object
            self.folder, self.prints = Path(self.temporary.name), sys.stderr
        else:
            self.folder = partial_file(Path(output).resolve())
        self.neighbours, self.state = self.folder / "neighbours.npz", self.folder / SETTINGS_FILE
        self.searched = {name: getattr(config, name) for name in OF_THE_SEARCH}
        self.settings = {"model": source.model, "precision": source.precision, **task, "digests": {}}
        processes.on_main(lambda: self._check(files))

    def _check(self, files: Sequence[str]) -> None:
        """Refuse a folder that was begun with other settings or files, or that holds something else."""
        source = self.source
        weights = sorted(Path(source.model or "").glob("*.safetensors")) if source.model else []
        reading = settings_files(source.model) if source.model else []
        for file in map(str, (*files, *filter(None, source.files), *weights, *reading)):
            with as_bad_input(file, "a file", "Check the path."):
                self.settings["digests"][file] = digest(Path(file))
        if refuse_other_settings(self.state, self.settings, CONTINUE_OR_REMOVE):
            before, now = list(json.loads(self.state.read_text("utf-8"))["digests"]), list(self.settings["digests"])
            if now != before:  # vectors and neighbours belong to a side
                order = f"was begun with the files {', '.join(before)} in this order, now {', '.join(now)}"
                raise BadInput(f"{self.folder}: {order}; {CONTINUE_OR_REMOVE}")
            self._continue()
        elif not is_unused(self.folder, self.state):
            raise BadInput(f"{self.folder}: is not partial output of hictl mine; move or remove it")

    def _continue(self) -> None:
        """Keep the vectors of the folder, and what was found so far unless that search had other settings."""
        before = json.loads(self.state.read_text("utf-8"))
        changed = list(differences({name: before.get(name) for name in self.searched}, self.searched))
        if not changed:
            logger.info("%s: continuing with its vectors and neighbours", self.folder)
            return
        logger.info("%s: continuing with its vectors; the search begins anew: %s", self.folder, "; ".join(changed))
        for file in self.folder.glob(f"{self.neighbours.stem}*"):
            file.unlink()
        for index in self.folder.glob("index-*"):
            shutil.rmtree(index)

    def _check_lines(self, sides: Sequence[Side]) -> None:
        """Refuse a folder that was begun with other lines of a pipe, which has been read and so has no digest."""
        if all(Path(file).is_file() for file in self.settings["digests"]):
            return
        hashes = [hashlib.blake2b(digest_size=16) for _ in sides]
        for digested, side in zip(hashes, sides):
            for sentence in side.sentences:
                digested.update(as_bytes([sentence]))
        self.settings["lines"] = [digested.hexdigest() for digested in hashes]
        refuse_other_settings(self.state, self.settings, CONTINUE_OR_REMOVE)

    def _check_reading(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pooling: Pooling) -> None:
        """Refuse a folder begun with a model that is read otherwise; until 0.17 only the prompt was stored."""
        length = self.source.max_length
        probe = embed_sentences(model, tokenizer, [PROBE], pooling, prompt="", max_length=length)
        own = {"pooling": list(own_pooling(model.config)), "max_length": length_read(model.config)}
        reading = {
            "pooling": list(pooling),
            "max_length": length_read(model.config, length),
            "encoder": hash_of_vectors(probe),
        }
        before = json.loads(self.state.read_text("utf-8")) if self.state.exists() else reading
        self.settings |= {
            name: value for name, value in reading.items() if name in before or value != own.get(name, value)
        }
        refuse_other_settings(self.state, self.settings, CONTINUE_OR_REMOVE)

    def vectors(self, sides: Sequence[Side]) -> list[Source]:
        """Read or embed the vectors of each side's distinct lines, after printing the cost of the search."""
        self.processes.on_main(lambda: self._check_lines(sides))
        given = [vectors_in_file(side, file) for side, file in zip(sides, self.source.files)]
        self.processes.on_main(lambda: refuse_no_numbers(given, self.source.files))
        if any(vectors is None for vectors in given):
            if not self.source.model:
                raise BadInput("model is not given; allowed without it are vectors for all files. Name a model.")
            model, tokenizer = load_encoder(self.source.model, self.source.precision, self.source.device)
            pooling = chosen_pooling(model.config, self.source.pooling, self.source.layer)
            width = vector_size(model, pooling.mode)
            prompt = chosen_prompt(model.config, self.source.prompt, self.source.prompt_name)
            self.settings["prompt"] = prompt or None
            self.processes.on_main(lambda: self._check_reading(model, tokenizer, pooling))
        widths = {vectors.shape[1] if vectors is not None else width for vectors in given}
        if len(widths) > 1:
            raise BadInput(f"vectors have {' and '.join(map(str, widths))} numbers; allowed are those of one model")
        like = [np.broadcast_to(np.float32(0), (len(side.sentences), *widths)) for side in sides]
        if self.processes.is_main:
            print(describe(like[0], like[-1], self.config, only_earlier=len(sides) == 1), file=self.prints, flush=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            remember_settings(self.state, self.settings | self.searched)
        found: list[Source] = []
        for letter, side, vectors in zip("xy", sides, given):
            path = self.folder / f"{letter}.npy"
            if vectors is None and not self.processes.from_main(path.exists()):
                embed_to_file(
                    model, tokenizer, iter(side.sentences), path, pooling,
                    VectorFileConfig(prompt=prompt, max_length=self.source.max_length),
                    remembered={"precision": self.source.precision}, total=len(side.sentences),
                    processes=self.processes,
                )  # fmt: skip
            with reading_part(path):
                found.append(np.load(path, mmap_mode="r") if vectors is None else vectors)
        return found

    def share_search(self, x: Source, y: Source, only_earlier: bool = False) -> bool:
        """Find neighbours with the other processes, if there are any; whether this one goes on with what is found."""
        if self.processes.number > 1:
            if self.config.index and not only_earlier:
                share_index_search(UnitRows(x), UnitRows(y), self.config, self.neighbours, self.processes)
            else:
                run(make_search(UnitRows(x), UnitRows(y), self.config, only_earlier), self.neighbours, self.processes)
        return self.processes.is_main

    def remove(self) -> None:
        """Remove the folder, when the output has been written."""
        remove_partial(self.folder, self.state)


def vectors_in_file(side: Side, file: str | None) -> SomeRows | None:
    """The vectors of a side's distinct lines, from a file with a vector for each line; `None` without a file."""
    if file is None:
        return None
    with as_bad_input(file, VECTORS, "Make them by hictl embed."):
        vectors = np.load(file, mmap_mode="r", allow_pickle=False)
        if vectors.ndim != 2 or vectors.dtype.kind != "f" or vectors.itemsize > 8:
            raise BadInput(f"{file}: is an array {vectors.shape} of {vectors.dtype}; allowed is {VECTORS}.")
    if len(vectors) != side.given:
        found = f"has {len(vectors):,} vectors, and {side.name} {side.given:,} lines"
        raise BadInput(f"{file}: {found}; allowed is one for each line. Embed that file again.")
    return SomeRows(vectors, side.rows)


def refuse_no_numbers(vectors: Sequence[SomeRows | None], files: Sequence[str | None]) -> None:
    """Raise `BadInput` for infinity or NaN in the vectors of a file, before the other side is embedded."""
    for rows, file in zip(vectors, files):
        for start in range(0, len(rows) if rows is not None else 0, ROWS_AT_ONCE):
            assert rows is not None
            found = ~np.isfinite(rows[start : start + ROWS_AT_ONCE]).all(1)
            if found.any():
                line = rows.rows[start + int(found.argmax())] + 1
                fix = f"Embed line {line:,} again, or stored as float32 if its numbers are too large for float16."
                raise BadInput(f"{file}: vector {line:,} has infinity or NaN; allowed are finite numbers. {fix}")
