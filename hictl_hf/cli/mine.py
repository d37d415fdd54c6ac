"""`hictl mine`: translations among the lines of two files; pairs of a file scored and filtered; near-duplicates of a
file removed (`retrieval.mining_files`).

    hictl mine news.de news.en --model runs/demo/encoder --output pairs.tsv
    hictl mine news.de news.en --model runs/demo/encoder --output pairs.tsv --threshold 1.06 --gold gold.tsv
    hictl mine --pairs crawled.tsv --model runs/demo/encoder --threshold 1.0 --output clean.tsv
    hictl mine news.de --deduplicate 0.95 --model runs/demo/encoder --output distinct.de

Mined pairs are lines "score<TAB>x<TAB>y", the best first; filtered pairs keep their order. Empty and repeated lines are
left out and counted. The same command continues one that was interrupted.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..data.columns import is_a_table
from ..data.lines import check_output
from ..embedding.encoder import check_device
from ..errors import BadInput
from ..files import check_place
from ..parsing import CommandParser, parse_flags
from ..retrieval.mining import MiningConfig
from ..retrieval.mining_files import deduplicate_lines, filter_pairs, mine_files, report_folder
from ..retrieval.nearest_neighbours import MEMORY
from ..retrieval.workdir import VectorSource
from .logs import log_to_terminal

OF_MINING, OF_SCORES = ("direction", "one_to_one"), ("margin", "threshold", "neighbours", "approximate")
GROUPS = {
    "input and output": ("output", "model", "x_vectors", "y_vectors", "gold"),
    "instead of mining": ("pairs", "deduplicate"),
    "scores": ("margin", "neighbours", "threshold", "direction", "one_to_one"),
    "computation": ("approximate", "max_memory", "precision", "device"),
}


@dataclass
class MineArguments:
    """Settings of `hictl mine`."""

    output: str = field(metadata={"help": "File to write: pairs with their scores, or the lines that are kept."})
    model: str | None = field(
        default=None, metadata={"help": "Folder or Hub name of a HiCTL or XLM-R encoder; for vectors not given."}
    )
    margin: str = field(
        default="ratio",
        metadata={
            "help": "Score: the cosine divided by its mean over the neighbours of both sentences (ratio), that mean "
            "taken from it (distance), or the cosine (absolute)."
        },
    )
    direction: str = field(
        default="max",
        metadata={
            "help": "Pairs in which a sentence is the best for each of x (forward), of y (backward), for both "
            "(intersect), or the best of both directions in which no sentence is taken twice (max)."
        },
    )
    one_to_one: bool = field(
        default=False, metadata={"help": "Take no sentence twice, of forward and backward too: the better pair stays."}
    )
    threshold: float | None = field(default=None, metadata={"help": "Keep pairs that score more; all without it."})
    neighbours: int = field(default=4, metadata={"help": "Nearest neighbours over which the mean is taken."})
    approximate: str | None = field(
        default=None,
        metadata={"help": "Search by FAISS, ivf (inverted file) or hnsw (graph), which misses some neighbours."},
    )
    max_memory: int = field(
        default=MEMORY, metadata={"help": "Bytes of memory of an exact search, without the vectors, which are on disk."}
    )
    pairs: str | None = field(
        default=None, metadata={"help": 'Score these pairs instead, lines "x<TAB>y" or as this command writes them.'}
    )
    deduplicate: float | None = field(
        default=None,
        metadata={"help": "Keep the lines of one file to which no earlier line has a cosine above this, instead."},
    )
    gold: str | None = field(
        default=None,
        metadata={"help": 'True pairs, lines "x<TAB>y": writes a report, OUTPUT-report/report.html.'},
    )
    x_vectors: str | None = field(
        default=None, metadata={"help": "Vectors of the lines of the first file (.npy), for example of hictl embed."}
    )
    y_vectors: str | None = field(default=None, metadata={"help": "Vectors of the lines of the second file."})
    precision: str = field(default="fp32", metadata={"help": "Of the encoder: fp32, bf16, or int8 on a CPU."})
    device: str | None = field(default=None, metadata={"help": "cpu, cuda, ...; a GPU where there is one without it."})

    def __post_init__(self) -> None:
        if self.deduplicate is not None and not -1 <= self.deduplicate < 1:
            raise BadInput(f"deduplicate is {self.deduplicate}; allowed are cosines from -1 to less than 1")
        if self.gold and (self.pairs or self.deduplicate is not None):
            raise BadInput("gold is given; allowed is that for mined pairs, without --pairs and --deduplicate")
        if self.threshold is not None and math.isnan(self.threshold):
            raise BadInput("threshold is nan; allowed are numbers")
        if self.output.endswith(".gz"):
            raise BadInput(f"output is {self.output}; allowed are names without .gz: it is written as plain text")
        check_device(self.device)

    def check(self, files: Sequence[str]) -> None:
        """Raise `BadInput` for a number of files that does not fit what is to be done."""
        wanted = 0 if self.pairs else 1 if self.deduplicate is not None else 2
        if self.pairs and self.deduplicate is not None:
            raise BadInput("pairs and deduplicate are both given; allowed is one of them")
        idle = OF_MINING if self.pairs else (*OF_MINING, *OF_SCORES) if self.deduplicate is not None else ()
        if given := [name for name in idle if name in chosen(self)]:
            mode = "pairs" if self.pairs else "deduplicate"
            raise BadInput(f"{', '.join(given)} is given, which has no effect with --{mode}; leave it out")
        if len(files) != wanted:
            raise BadInput(
                f"{len(files)} files are given; allowed are two to mine, one with --deduplicate, none with --pairs"
            )
        if tables := list(filter(is_a_table, files)):
            fix = "Write the sentences of each language to a file"
            raise BadInput(f"{tables[0]}: is a table by its name; allowed are files of a sentence a line. {fix}.")
        unused = [name for name, vectors in zip("xy", (self.x_vectors, self.y_vectors)) if vectors]
        if unused and (self.pairs or self.deduplicate is not None and "y" in unused):
            raise BadInput(f"{unused[-1]}_vectors is given; allowed are vectors for each file that is given")

    @property
    def source(self) -> VectorSource:
        """Where vectors come from."""
        precision: Any = self.precision  # which `load_encoder` checks
        return VectorSource(self.model, precision, self.device, (self.x_vectors, self.y_vectors))

    @property
    def config(self) -> MiningConfig:
        """How pairs are searched, scored and chosen."""
        names = ("margin", "direction", "neighbours", "one_to_one", "approximate", "max_memory")
        values: dict[str, Any] = {name: getattr(self, name) for name in names}
        threshold = -math.inf if self.threshold is None else self.threshold
        return MiningConfig(**values, threshold=threshold, device=self.source.search_device)


def make_parser() -> CommandParser:
    description = "Find translations in two files, filter pairs, or remove near-duplicates from a file."
    parser = CommandParser(MineArguments, description, GROUPS)
    parser.add_argument("files", nargs="*", help="x and y, of a sentence a line, .gz too; one with --deduplicate")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command with these arguments, by default those of the command line."""
    args, positional = parse_flags(make_parser(), argv)
    files = positional.files
    log_to_terminal()
    args.check(files)
    inputs = [path for path in (*files, args.pairs, args.gold, args.x_vectors, args.y_vectors) if path]
    check_output(args.output, inputs)
    if args.gold:
        check_place(report_folder(args.output), folder=True)
    with as_bad_input():
        if args.pairs:
            filter_pairs(args.pairs, args.output, args.source, args.config)
        elif args.deduplicate is not None:
            deduplicate_lines(files[0], args.output, args.deduplicate, args.source, args.config)
        else:
            given = (f"--{name} {value}" for name, value in chosen(args).items())
            command = " ".join(["hictl mine", *files, *given])
            x, y = files
            mine_files(x, y, args.output, args.source, args.config, gold=args.gold, command=command)


@contextmanager
def as_bad_input() -> Iterator[None]:
    """Turn a `ValueError` of the search into `BadInput` with the same message."""
    try:
        yield
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(str(error)) from error


def chosen(args: MineArguments) -> dict[str, Any]:
    """The arguments that are not the default."""
    defaults = MineArguments(output="")
    return {name: value for name, value in vars(args).items() if value != getattr(defaults, name)}
