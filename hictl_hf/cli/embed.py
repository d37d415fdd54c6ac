"""`hictl embed`: lines of files or of standard input, or a column of tables, to a file of vectors
(`embedding.to_file.embed_to_file`).

    hictl embed --model runs/demo/checkpoint --input news.de.txt --output news.npy
    hictl embed --model runs/demo/checkpoint --input pairs.jsonl.gz --column translation.de --output news.parquet
    cat news.de.txt | hictl embed --model xlm-roberta-base --pooling mean --layer 8 --output news.npy

Row i of the output is line i of the input, empty lines included. The same command continues one that was interrupted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ..data.columns import TABLES, is_a_table, read_lines_or_column
from ..data.lines import check_output
from ..embedding.encoder import LONGEST, POOLINGS, Pooling, check_device, load_encoder, own_pooling
from ..embedding.to_file import LINES_AT_ONCE, OUTPUTS, STORED, VectorFileConfig, embed_to_file
from ..errors import BadInput
from ..parsing import CommandParser, parse_flags
from .logs import log_to_terminal

GROUPS = {
    "input and output": ("model", "input", "column", "output", "stored"),
    "vectors": ("layer", "pooling", "normalize", "max_length"),
    "computation": ("precision", "max_tokens", "lines_at_once", "device"),
}


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


def make_parser() -> CommandParser:
    return CommandParser(EmbedArguments, "Turn lines of text into vectors.", GROUPS)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command with these arguments, by default those of the command line."""
    args: EmbedArguments = parse_flags(make_parser(), argv)
    log_to_terminal()
    check_output(args.output, args.input)
    # reading all once finds broken lines before the work begins
    total = sum(1 for _ in read_lines_or_column(args.input, args.column)) if args.input else None
    precision: Any = args.precision  # which `load_encoder` checks
    model, tokenizer = load_encoder(args.model, precision, args.device)
    own, last = own_pooling(model.config), model.config.num_hidden_layers
    mode = args.pooling or own.mode
    layer = args.layer if args.layer is not None else last if mode == "projection" else own.layer
    config = VectorFileConfig(**{item.name: getattr(args, item.name) for item in fields(VectorFileConfig)})
    remembered = {"column": args.column, "precision": args.precision}
    texts = read_lines_or_column(args.input, args.column)
    embed_to_file(
        model, tokenizer, texts, args.output, Pooling(mode, layer), config, remembered=remembered, total=total
    )
