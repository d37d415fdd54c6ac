"""`hictl embed`: embed lines of files, of stdin or of a table column into a file of vectors
(`embedding.to_file.embed_to_file`).

    hictl embed --model runs/demo/checkpoint --input news.de.txt --output news.npy
    hictl embed --model runs/demo/checkpoint --input pairs.jsonl.gz --column translation.de --output news.parquet
    cat news.de.txt | hictl embed --model xlm-roberta-base --pooling mean --layer 8 --output news.npy

Row i of the output is line i of the input, empty lines included. To resume after an interruption, run the same command.
Several processes share the blocks of lines (`processes`).
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..data.columns import check_column, read_lines_or_column
from ..data.lines import check_inputs, check_output
from ..embedding.arguments import VectorArguments
from ..embedding.encoder import load_encoder
from ..embedding.pooling import chosen_prompt
from ..embedding.to_file import LINES_AT_ONCE, OUTPUTS, STORED, VectorFileConfig, embed_to_file
from ..errors import BadInput
from ..parsing import CommandParser, parse_flags
from ..processes import current, refuse_streams
from .logs import log_to_terminal

GROUPS = {
    "input and output": ("model", "input", "column", "output", "stored"),
    "vectors": ("layer", "pooling", "prompt", "prompt_name", "normalize", "max_seq_length"),
    "computation": ("precision", "max_tokens", "lines_at_once", "device"),
}


@dataclass
class EmbedArguments(VectorArguments):
    """Arguments of `hictl embed`."""

    model: str = field(metadata={"help": "Folder or Hub name of an encoder that HiCTL trains."})
    output: str = field(
        metadata={"help": "File to write: .npy, an array (lines, d), or .parquet with the columns text and vector."}
    )
    input: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Files of one sentence per line, may be compressed, or tables (.jsonl, .csv, .tsv, .parquet) with "
            "--column; default: stdin."
        },
    )
    column: str | None = field(default=None, metadata={"help": "Text column of the tables; a.b is key b of column a."})
    normalize: bool | None = field(
        default=None,
        metadata={"help": "Scale vectors to length 1: inner products are cosines; default: the model's, or true."},
    )
    stored: str = field(default="float32", metadata={"help": f"Dtype of the output: {' or '.join(STORED)}."})
    max_tokens: int | None = field(
        default=None, metadata={"help": "Tokens per batch, padding included; default: 32768 on a GPU, 1024 on a CPU."}
    )
    lines_at_once: int = field(
        default=LINES_AT_ONCE, metadata={"help": "Lines per block; a block is sorted by length and written at once."}
    )

    def __post_init__(self) -> None:
        if not self.output.endswith(OUTPUTS):
            raise BadInput(f"output is {self.output}; allowed are names that end in {' or '.join(OUTPUTS)}")
        if self.stored not in STORED:
            raise BadInput(f"stored is {self.stored!r}; allowed are {', '.join(STORED)}")
        super().__post_init__()
        for name in ("lines_at_once", "max_tokens"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise BadInput(f"{name} is {value}; allowed is 1 or more")
        check_column(self.input, self.column)


def make_parser() -> CommandParser:
    return CommandParser(EmbedArguments, "Turn lines of text into vectors.", GROUPS, __doc__)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; `argv` defaults to the command line."""
    args: EmbedArguments = parse_flags(make_parser(), argv)
    log_to_terminal()
    processes = current()
    refuse_streams(processes, input=args.input)
    check_inputs(args.input)
    check_output(args.output, args.input)
    # a first pass finds invalid lines before the model is loaded; standard input and pipes can be read only once
    read_twice = bool(args.input) and all(map(os.path.isfile, args.input)) and processes.is_main
    total = sum(1 for _ in read_lines_or_column(args.input, args.column)) if read_twice else None
    if total == 0:
        raise BadInput(f"{', '.join(args.input)}: has no line; allowed is one or more")
    model, tokenizer = load_encoder(args.model, args.chosen_precision, args.device)
    pooling = args.chosen_pooling(model)
    prompt = chosen_prompt(model.config, args.prompt, args.prompt_name)
    names = ("normalize", "stored", "max_tokens", "lines_at_once")
    config = VectorFileConfig(
        prompt=prompt, max_length=args.max_seq_length, **{name: getattr(args, name) for name in names}
    )
    remembered = {"column": args.column, "precision": args.chosen_precision}
    texts = read_lines_or_column(args.input, args.column)
    embed_to_file(
        model, tokenizer, texts, args.output, pooling, config, remembered=remembered, total=total,
        processes=processes,
    )  # fmt: skip
