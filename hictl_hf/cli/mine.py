"""`hictl mine`: mine translation pairs from two files, score and filter the pairs of a file, or remove near-duplicates
from a file (`retrieval.mining_files`).

    hictl mine news.de news.en --model runs/demo/encoder --output pairs.tsv
    hictl mine news.de news.en --model runs/demo/encoder --output pairs.tsv --threshold 1.06 --gold gold.tsv
    hictl mine --pairs crawled.tsv --model runs/demo/encoder --threshold 1.0 --output clean.tsv
    hictl mine news.de --deduplicate 0.95 --model runs/demo/encoder --output distinct.de

Mined pairs are lines "score<TAB>x<TAB>y", best first; filtered pairs keep their order, repeated ones, too. Empty lines
are left out and repeated ones read once; both are counted. To resume after an interruption, run the same command.
"""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..data.columns import refuse_tables
from ..data.compression import compression_of
from ..data.lines import check_output
from ..embedding.arguments import VectorArguments
from ..errors import BadInput
from ..files import check_place, is_stream
from ..parsing import CommandParser, parse_flags
from ..processes import current, refuse_streams
from ..retrieval.mining import MiningConfig
from ..retrieval.mining_files import deduplicate_lines, filter_pairs, mine_files, report_folder
from ..retrieval.nearest_neighbours import MEMORY
from ..retrieval.workdir import VectorSource
from .logs import log_to_terminal

# arguments without effect with --pairs, and with --deduplicate; no neighbours are searched for the cosines of pairs
MINING_ONLY: tuple[str, ...] = ("direction", "one_to_one")
SEARCH = ("neighbours", "index", "index_parameters")
MARGIN_ONLY = (*MINING_ONLY, "margin", "threshold", *SEARCH)
GROUPS = {
    "input and output": ("output", "model", "x_vectors", "y_vectors", "gold"),
    "vectors": ("layer", "pooling", "prompt", "prompt_name", "max_seq_length"),
    "instead of mining": ("pairs", "deduplicate"),
    "scores": ("margin", "neighbours", "threshold", "direction", "one_to_one"),
    "computation": ("index", "index_parameters", "max_memory", "precision", "device"),
}


@dataclass
class MineArguments(VectorArguments):
    """Arguments of `hictl mine`."""

    output: str = field(
        metadata={"help": "File to write, or - for stdout: pairs with their scores, or the lines kept."}
    )
    model: str | None = field(
        default=None,
        metadata={"help": "Folder or Hub name of an encoder that HiCTL trains; not needed if all vectors are given."},
    )
    margin: str = field(
        default="ratio",
        metadata={
            "help": "Score of a pair, m being the mean cosine to the nearest neighbours of both sentences: cosine / m "
            "(ratio), cosine - m (distance) or the cosine (absolute)."
        },
    )
    direction: str = field(
        default="max",
        metadata={
            "help": "Candidates: the best y of each x (forward), the best x of each y (backward), pairs in both "
            "(intersect), or the best pairs of both with each sentence used once (max)."
        },
    )
    one_to_one: bool = field(
        default=False,
        metadata={"help": "Use each sentence once with forward and backward too; the better pair is kept."},
    )
    threshold: float | None = field(
        default=None, metadata={"help": "Keep pairs with a score above this; default: all."}
    )
    neighbours: int = field(default=4, metadata={"help": "Number of nearest neighbours k of the margin."})
    index: str | None = field(
        default=None,
        metadata={
            "help": "Search in a FAISS index on disk, by its factory string: Flat, HNSW32, IVF1024,PQ32np, ...; finds "
            "nearly all neighbours, and their scores are exact; default: an exact search."
        },
    )
    index_parameters: str | None = field(
        default=None,
        metadata={"help": "Parameters of FAISS for the search in the index, such as nprobe=64 (32 by default)."},
    )
    max_memory: int = field(
        default=MEMORY,
        metadata={
            "help": "Memory of the search in bytes, of each process, not counting the vectors, which are on disk; of a "
            "shard of the index."
        },
    )
    pairs: str | None = field(
        default=None, metadata={"help": 'Score the pairs of this file instead: lines "x<TAB>y" or "score<TAB>x<TAB>y".'}
    )
    deduplicate: float | None = field(
        default=None,
        metadata={
            "help": "Remove near-duplicates from one file instead: lines with a cosine above this to an earlier line."
        },
    )
    gold: str | None = field(
        default=None,
        metadata={"help": 'True pairs, lines "x<TAB>y": also write a report, pairs-report/report.html for pairs.tsv.'},
    )
    x_vectors: str | None = field(
        default=None, metadata={"help": "Vectors of the first file (.npy), for example of hictl embed."}
    )
    y_vectors: str | None = field(default=None, metadata={"help": "Vectors of the second file (.npy)."})

    def __post_init__(self) -> None:
        if self.deduplicate is not None and not -1 <= self.deduplicate < 1:
            raise BadInput(f"deduplicate is {self.deduplicate}; allowed are cosines from -1 to less than 1")
        if self.gold and (self.pairs or self.deduplicate is not None):
            raise BadInput(
                "gold is given with --pairs or --deduplicate; allowed is --gold when mining. Omit one of them."
            )
        if self.threshold is not None and math.isnan(self.threshold):
            raise BadInput("threshold is nan; allowed are numbers")
        if ending := compression_of(self.output):
            raise BadInput(f"output is {self.output}; allowed are names without {ending}: the output is plain text")
        if not self.model and (self.prompt or self.prompt_name):
            raise BadInput("a prompt is given without a model; allowed is a prompt with --model. Omit it.")
        super().__post_init__()

    def check(self, files: Sequence[str]) -> None:
        """Raise `BadInput` unless the files and arguments fit the mode: mining, --pairs or --deduplicate."""
        wanted = 0 if self.pairs else 1 if self.deduplicate is not None else 2
        if self.pairs and self.deduplicate is not None:
            raise BadInput("pairs and deduplicate are both given; allowed is one of them. Omit the other.")
        mode, idle = "--deduplicate", MARGIN_ONLY if self.deduplicate is not None else ()
        if self.pairs:
            mode, idle = "--pairs", MINING_ONLY
            if self.margin == "absolute":
                mode, idle = f"{mode} and --margin absolute", (*MINING_ONLY, *SEARCH)
        if given := [name for name in idle if name in chosen(self)]:
            raise BadInput(f"{', '.join(given)} is given, which has no effect with {mode}; leave it out")
        if len(files) != wanted:
            raise BadInput(
                f"{len(files)} files are given; allowed are two to mine, one with --deduplicate, none with --pairs"
            )
        refuse_tables(files, "Write the sentences of each language to a text file")
        unused = [name for name, vectors in zip("xy", (self.x_vectors, self.y_vectors)) if vectors]
        if unused and (self.pairs or self.deduplicate is not None and "y" in unused):
            raise BadInput(f"{unused[-1]}_vectors is given; allowed are vectors of the files given")
        embeds = len(unused) < max(wanted, 1)
        if not self.model and embeds:
            raise BadInput("model is not given; allowed without it are vectors for all files. Name a model.")
        of_encoder = [name for name in (*GROUPS["vectors"], "precision") if getattr(self, name) is not None]
        if of_encoder and not embeds:
            raise BadInput(f"{', '.join(of_encoder)} is given, which has no effect on vectors from files; leave it out")

    @property
    def source(self) -> VectorSource:
        """The encoder or the files that the vectors come from."""
        files = (self.x_vectors, self.y_vectors)
        reading = (self.prompt, self.prompt_name, self.pooling, self.layer, self.max_seq_length)
        return VectorSource(self.model, self.chosen_precision, self.device, files, *reading)

    @property
    def config(self) -> MiningConfig:
        """The settings of the search, the scores and the choice of pairs."""
        names = ("margin", "direction", "neighbours", "one_to_one", "index", "index_parameters", "max_memory")
        values: dict[str, Any] = {name: getattr(self, name) for name in names}
        threshold = -math.inf if self.threshold is None else self.threshold
        return MiningConfig(**values, threshold=threshold, device=self.source.search_device)


def make_parser() -> CommandParser:
    description = "Mine translation pairs from two files, filter pairs, or remove near-duplicates."
    parser = CommandParser(MineArguments, description, GROUPS, __doc__)
    parser.add_argument(
        "files", nargs="*", help="files x and y, one sentence per line, may be compressed; one file with --deduplicate"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; `argv` defaults to the command line."""
    args, positional = parse_flags(make_parser(), argv)
    files = positional.files
    log_to_terminal()
    args.check(files)
    processes = current()
    inputs = [path for path in (*files, args.pairs, args.gold, args.x_vectors, args.y_vectors) if path]
    refuse_streams(processes, input=inputs, output=args.output)
    check_output(args.output, inputs, may_be_stream=True)
    if args.gold and is_stream(args.output):
        raise BadInput(
            f"gold is given, and output is {args.output}; allowed with --gold is a file, as the report lies next to it"
        )
    if args.gold:
        check_place(report_folder(args.output), folder=True)
    try:
        if args.pairs:
            filter_pairs(args.pairs, args.output, args.source, args.config, processes)
        elif args.deduplicate is not None:
            deduplicate_lines(files[0], args.output, args.deduplicate, args.source, args.config, processes)
        else:
            given = (f"--{name} {shlex.quote(str(value))}" for name, value in chosen(args).items())
            command = " ".join(["hictl mine", shlex.join(files), *given])
            x, y = files
            mine_files(
                x, y, args.output, args.source, args.config, gold=args.gold, command=command, processes=processes
            )
    except ValueError as error:
        raise BadInput(str(error)) from error
    processes.wait()  # or a launcher might end the main process because the others are done


def chosen(args: MineArguments) -> dict[str, Any]:
    """Return the arguments that differ from their defaults."""
    defaults = MineArguments(output="")
    return {name: value for name, value in vars(args).items() if value != getattr(defaults, name)}
