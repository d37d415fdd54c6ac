"""Embed lines: of files, of standard input, or of a column of a table; this module decides how a text of any size goes
through memory that is not, and how work that was stopped goes on.

    hictl embed --model runs/demo/checkpoint --input news.de.txt --output news.npy
    hictl embed --model runs/demo/checkpoint --input pairs.jsonl.gz --column translation.de --output news.parquet
    cat news.de.txt | hictl embed --model xlm-roberta-base --pooling mean --layer 8 --output news.npy

Row i of the output is line i of the input, an empty line included. Lines go through the model in blocks; the vectors of
a block are kept in the folder OUTPUT.partial, which becomes the output when all are there. The same command, started
again after it was stopped, goes on behind the last whole block, once it has seen that lines, model and settings are
those of before, and its output is the same to the byte.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray
from tqdm.auto import tqdm
from transformers import HfArgumentParser, PreTrainedModel, PreTrainedTokenizerBase

from ..data.formats import READ_AHEAD, Cursor, checked_text, ending_of, read_cells, read_json_lines
from ..data.lines import check_output, partial_file, read_texts
from ..embedding.encoder import LONGEST, POOLINGS, Pooling, check_device, embed_sentences, load_encoder, own_pooling
from ..errors import BadInput, BrokenRow, as_bad_input, short_repr
from ..files import flush, write_json
from ..parsing import parse_flags
from ..training.fingerprint import CONTINUE_OR_REMOVE, refuse_changes, with_version

logger = logging.getLogger(__name__)

LINES_AT_ONCE = 8192
CHARACTERS_AT_ONCE = 2**26
OUTPUTS = (".npy", ".parquet")
STORED = ("float32", "float16")
TABLES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
REMEMBERED = ("column", "normalize", "precision", "stored", "max_length", "max_tokens", "lines_at_once")
PROBE = "Do these vectors come from the same model?"


@dataclass
class EmbedArguments:
    """Settings of `hictl embed`."""

    model: str = field(metadata={"help": "Folder or Hub name of a HiCTL or XLM-R encoder."})
    output: str = field(
        metadata={"help": "File to write: .npy, an array (lines, d), or .parquet, with the columns text and vector."}
    )
    input: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Files of one sentence a line, .gz too, or tables (.jsonl, .csv, .tsv, .parquet) with --column; "
            "standard input without it."
        },
    )
    column: str | None = field(
        default=None, metadata={"help": "Column of the tables that holds the text; a.b is b within a."}
    )
    layer: int | None = field(default=None, metadata={"help": "Layer read, 0: the embeddings; the model's own."})
    pooling: str | None = field(
        default=None, metadata={"help": f"One of {', '.join(POOLINGS)}; the model's own without it."}
    )
    normalize: bool = field(default=True, metadata={"help": "Make vectors of length 1, so that products are cosines."})
    precision: str = field(
        default="fp32", metadata={"help": "fp32, bf16, or int8 on a CPU: faster, and less and less exact."}
    )
    stored: str = field(default="float32", metadata={"help": f"Numbers of the output: {' or '.join(STORED)}."})
    max_length: int = field(
        default=LONGEST, metadata={"help": "Tokens of a line that are read, special tokens included."}
    )
    max_tokens: int | None = field(
        default=None, metadata={"help": "Tokens of a batch, padding included; 32768 on a GPU, else 1024."}
    )
    lines_at_once: int = field(
        default=LINES_AT_ONCE, metadata={"help": "Lines of a block, which are sorted by length and kept together."}
    )
    device: str | None = field(default=None, metadata={"help": "cpu, cuda, ...; a GPU where there is one without it."})

    def __post_init__(self) -> None:
        if not self.output.endswith(OUTPUTS):
            raise BadInput(f"output is {self.output}; allowed are names that end in {' or '.join(OUTPUTS)}")
        if self.stored not in STORED:
            raise BadInput(f"stored is {self.stored!r}; allowed are {', '.join(STORED)}")
        for name, least in (("lines_at_once", 1), ("max_length", 3), ("max_tokens", 1)):
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise BadInput(f"{name} is {getattr(self, name)}; allowed is {least} or more")
        for path in self.input:
            if (is_table := is_a_table(path)) != (self.column is not None):
                raise BadInput(
                    f"{path}: is {'a table' if is_table else 'no table'} by its name, and column is {self.column}; "
                    f"allowed are tables ({', '.join(TABLES)}) with --column, or files of lines without"
                )
        check_device(self.device)


def is_a_table(path: str) -> bool:
    return ending_of(path).removesuffix(".gz") in TABLES


def main(argv: Sequence[str] | None = None) -> None:
    """Run with these arguments, those of the command line by default."""
    parser = HfArgumentParser(EmbedArguments, description="Turn lines of text into vectors.")
    args = parse_flags(parser, argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hictl_hf").setLevel(logging.INFO)
    check_output(args.output, args.input)
    total = sum(1 for _ in read(args)) if args.input else None  # faults are found before the work, not after hours
    model, tokenizer = load_encoder(args.model, args.precision, args.device)
    own = own_pooling(model.config)
    last = model.config.num_hidden_layers
    pooling = args.pooling or own.mode
    layer = args.layer if args.layer is not None else last if pooling == "projection" else own.layer
    embed_texts(model, tokenizer, read(args), args, Pooling(pooling, layer), total)


def embed_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterator[str],
    args: EmbedArguments,
    pooling: Pooling,
    total: int | None = None,
) -> None:
    """Write the vectors of texts to `args.output`, in blocks, behind those of a former call that was stopped."""

    def embed(block: Sequence[str]) -> NDArray[np.floating]:
        vectors = embed_sentences(
            model, tokenizer, block, pooling, normalize=args.normalize, max_tokens=args.max_tokens,
            max_length=args.max_length, progress=True,
        )  # fmt: skip
        return vectors.astype(args.stored)

    whole = Path(args.output).resolve()
    settings = {name: value for name, value in asdict(args).items() if name in REMEMBERED}
    settings |= {
        "pooling": list(pooling),
        "model": f"one whose vectors are {hashlib.blake2b(embed([PROBE]).tobytes()).hexdigest()}",
    }
    unfinished = PartialOutput(partial_file(whole), whole.suffix, settings)
    with tqdm(total=total, desc="lines", unit=" lines", disable=None) as bar:
        bar.update(unfinished.skip(texts))
        for block in blocks(texts, args.lines_at_once):
            unfinished.add(block, embed(block))
            bar.update(len(block))
    unfinished.finish(whole)


# --- what was done before ---------------------------------------------------------------------------------------------


class PartialOutput:
    """The vectors of the blocks embedded so far, a file each, in a folder that says by which settings they came about.

    Args:
        folder: is made where there is none.
        ending: of the files, ".npy" or ".parquet".
        settings: those which the vectors depend on; with others `BadInput` is raised.
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
            raise BadInput(f"{folder}: is nothing that hictl embed could go on with; remove it")
        folder.mkdir(parents=True, exist_ok=True)

    def skip(self, texts: Iterator[str]) -> int:
        """Take from the texts those that are done, which must be what they were; their number."""
        for lines in self.done["lines"]:
            self.digest.update(as_bytes(islice(texts, lines)))
        if self.digest.hexdigest() != self.done["digest"]:
            raise BadInput(f"{self.folder}: was begun with other lines; give those, or remove the folder to begin anew")
        number = sum(self.done["lines"])
        if number:
            logger.info("%s: going on behind line %s", self.folder, f"{number:,}")
        return number

    def add(self, block: list[str], vectors: NDArray[np.floating]) -> None:
        """Keep the vectors of the next block; the state counts it once its file is whole."""
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
        return self.folder / f"{number:06}{self.ending}"

    def finish(self, whole: Path) -> None:
        """Put the blocks together as the output, and remove them."""
        lines = self.done["lines"]
        if not lines:
            self.folder.rmdir()
            raise BadInput("the input holds no line; allowed is one or more")
        parts, draft = list(map(self.part, range(len(lines)))), self.folder / f"whole{self.ending}"
        if self.ending == ".npy":
            join_arrays(parts, sum(lines), draft)
        else:
            join_tables(parts, draft)
        os.replace(draft, whole)
        shutil.rmtree(self.folder)


def join_arrays(parts: Sequence[Path], lines: int, whole: Path) -> None:
    first = np.load(parts[0], mmap_mode="r")
    joined = np.lib.format.open_memmap(whole, "w+", first.dtype, (lines, first.shape[1]))
    start = 0
    for part in map(np.load, parts):
        joined[start : start + len(part)] = part
        start += len(part)
    joined.flush()


def join_tables(parts: Sequence[Path], whole: Path) -> None:
    with pyarrow.parquet.ParquetWriter(whole, pyarrow.parquet.read_schema(parts[0])) as writer:
        for part in parts:
            writer.write_table(pyarrow.parquet.read_table(part))


def as_table(texts: list[str], vectors: NDArray[np.floating]) -> pyarrow.Table:
    flat = pyarrow.array(vectors.ravel())
    return pyarrow.table({"text": texts, "vector": pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])})


def as_bytes(block: Iterable[str]) -> bytes:
    return "".join(f"{len(text)} {text}\n" for text in block).encode()


def blocks(texts: Iterator[str], lines: int) -> Iterator[list[str]]:
    """So many texts at a time, fewer where they are very long."""
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


# --- reading ----------------------------------------------------------------------------------------------------------


def read(args: EmbedArguments) -> Iterator[str]:
    """The lines of all input, or the texts of a column."""
    if args.column is None:
        return read_texts(args.input)
    return chain.from_iterable(read_column(path, args.column) for path in args.input)


def read_column(path: str, column: str) -> Iterator[str]:
    """The texts of a column of a table, one of each row."""
    for number, record in read_records(path, column):
        try:
            if isinstance(record, BrokenRow):
                raise record
            yield checked_text(f"{column!r}", value_at(record, column))
        except BrokenRow as problem:
            raise BadInput(f"{path}:{number}: {problem}") from problem


def read_records(path: str, column: str) -> Iterator[tuple[int, Mapping[str, Any] | BrokenRow]]:
    """Numbered rows by the names of columns; of Parquet this column alone is read."""
    ending = ending_of(path).removesuffix(".gz")
    if ending == ".parquet":
        with as_bad_input(
            path, f"a complete Parquet file with a column {column!r}", "Write it again, or name another."
        ):
            yield from read_parquet_column(path, column)
    elif ending in (".csv", ".tsv"):
        cells = read_cells(path, Cursor())
        first, header = next(cells, (1, []))
        if isinstance(header, BrokenRow):
            raise BadInput(f"{path}:{first}: {header}")
        if header.count(column) > 1:
            raise BadInput(
                f"{path}:{first}: has {header.count(column)} columns {column!r}; allowed is one. Rename one."
            )
        for number, row in cells:
            if isinstance(row, BrokenRow):
                yield number, row
            elif len(row or [""]) == len(header):
                yield number, dict(zip(header, row or [""]))
            elif row:
                yield number, BrokenRow(f"has {len(row)} columns; allowed are {len(header)}, as in the header.")
    else:
        for number, record in read_json_lines(path, Cursor()):
            if record is not None:
                yield number, record


def read_parquet_column(path: str, column: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=READ_AHEAD) as file:
        name = column if column in file.schema_arrow.names else column.split(".")[0]
        batches = file.iter_batches(1000, columns=[name])
        rows = chain.from_iterable(batch.to_pylist(maps_as_pydicts="strict") for batch in batches)
        yield from enumerate(rows, start=1)


def value_at(record: Mapping[str, Any], column: str) -> Any:
    """What a column holds, `a.b` being b within a unless a column has that name."""
    if column in record:
        return record[column]
    value: Any = record
    for name in column.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise BrokenRow(
                f"has the columns {short_repr(list(record))}; allowed are rows with {column!r}. Name another."
            )
        value = value[name]
    return value
