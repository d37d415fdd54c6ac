"""Translations among the lines of two files; pairs of a file scored and filtered; near-duplicates of a file removed.

    hictl mine news.de news.en --model runs/demo/encoder --output pairs.tsv
    hictl mine news.de news.en --model runs/demo/encoder --output pairs.tsv --threshold 1.06 --gold gold.tsv
    hictl mine --pairs crawled.tsv --model runs/demo/encoder --threshold 1.0 --output clean.tsv
    hictl mine news.de --deduplicate 0.95 --model runs/demo/encoder --output distinct.de

Mined pairs are lines "score<TAB>x<TAB>y", the best first; given pairs keep their order. Empty and repeated lines are
left out and counted. This module decides about files, and what is kept for a command that was stopped and is started
again: vectors and neighbours found so far, in the folder OUTPUT.partial, until the output is whole. The search itself
is `mining`, vectors are made as `embed` makes them.
"""

import logging
import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import HfArgumentParser

from ..data.lines import check_output, partial_file, read_texts
from ..embedding.encoder import check_device, load_encoder, own_pooling
from ..errors import BadInput, as_bad_input, short_repr
from ..files import check_place, digest, write_text
from ..parsing import parse_flags
from ..retrieval.bitext import IdPair
from ..retrieval.mining import MiningConfig, SomeRows, describe, find_distinct, mine_vectors, score_pairs
from ..retrieval.nearest_neighbours import MEMORY, Source
from ..retrieval.report import write_mining_report
from ..training.fingerprint import CONTINUE_OR_REMOVE, SETTINGS_FILE, refuse_other_settings, remember_settings
from .embed import EmbedArguments, embed_texts, is_a_table

logger = logging.getLogger(__name__)

VECTORS = "an array (lines, d) of floating-point numbers in .npy"
OF_MINING, OF_SCORES = ("direction", "one_to_one"), ("margin", "threshold", "neighbours", "approximate")


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
    neighbours: int = field(default=4, metadata={"help": "Of a sentence on the other side, over which the mean is."})
    approximate: str | None = field(
        default=None,
        metadata={"help": "Search by FAISS, ivf (inverted file) or hnsw (graph), which misses some neighbours."},
    )
    max_memory: int = field(
        default=MEMORY, metadata={"help": "Bytes that an exact search may take beside the vectors, which are on disk."}
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
        metadata={"help": 'True pairs, lines "x<TAB>y": writes a report beside the output, OUTPUT-report/report.html.'},
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


def main(argv: Sequence[str] | None = None) -> None:
    """Run with these arguments, those of the command line by default."""
    description = "Find translations in two files, filter pairs, or remove near-duplicates from a file."
    parser = HfArgumentParser(MineArguments, description=description)
    parser.add_argument("files", nargs="*", help="x and y, of a sentence a line, .gz too; one with --deduplicate")
    args, rest = parse_flags(parser, argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hictl_hf").setLevel(logging.INFO)
    args.check(rest.files)
    inputs = [path for path in (*rest.files, args.pairs, args.gold, args.x_vectors, args.y_vectors) if path]
    check_output(args.output, inputs)
    if args.gold:
        check_place(report_folder(args), folder=True)
    with one_error():
        if args.pairs:
            lines, work = filter_pairs(args)
        elif args.deduplicate is not None:
            lines, work = deduplicate(args, *rest.files)
        else:
            lines, work = mine_pairs(args, rest.files)
        write_text(Path(args.output).resolve(), "".join(f"{line}\n" for line in lines))
    work.remove()


def mine_pairs(args: MineArguments, files: Sequence[str]) -> tuple[list[str], "MiningWorkdir"]:
    gold = frozenset(read_pairs(args.gold)) if args.gold else None
    if gold is not None and not gold:
        raise BadInput(f"{args.gold}: has no pair; allowed is one or more")
    sides = [Side(file, list(read_texts([file]))) for file in files]
    settings, work = settings_of(args), MiningWorkdir(args, files)
    x, y = work.vectors(sides, settings)
    pairs, scores = mine_vectors(x, y, settings, work.neighbours)
    found = [(sides[0].sentences[i], sides[1].sentences[j]) for i, j in pairs.tolist()]
    logger.info("%s: %s pairs", args.output, f"{len(found):,}")
    if gold is not None:
        facts = [(f"{side.given:,}", f"lines in {Path(side.name).name}") for side in sides]
        command = " ".join(["hictl mine", *files, *(f"--{name} {value}" for name, value in chosen(args).items())])
        page = write_mining_report(report_folder(args), dict(zip(found, scores.tolist())), gold, facts, command)
        logger.info("%s: precision and recall", page)
    return [written(score, *pair) for score, pair in zip(scores, found)], work


def filter_pairs(args: MineArguments) -> tuple[list[str], "MiningWorkdir"]:
    given = list(read_pairs(str(args.pairs)))
    if not given:
        raise BadInput(f"{args.pairs}: has no pair; allowed is one or more")
    x, y = zip(*given)
    sides = [Side(f"{args.pairs}, x", x), Side(f"{args.pairs}, y", y)]
    settings, work = settings_of(args), MiningWorkdir(args, [str(args.pairs)])
    vectors = work.vectors(sides, settings)
    row_x, row_y = ({sentence: row for row, sentence in enumerate(side.sentences)} for side in sides)
    rows = np.array([(row_x[one], row_y[other]) for one, other in given], np.int64)
    scores = score_pairs(vectors[0], vectors[1], rows, settings, work.neighbours)
    lines = [written(score, *pair) for score, pair in zip(scores, given) if score > settings.threshold]
    logger.info("%s: %s of %s pairs are kept", args.output, f"{len(lines):,}", f"{len(given):,}")
    return lines, work


def deduplicate(args: MineArguments, file: str) -> tuple[list[str], "MiningWorkdir"]:
    side = Side(file, list(read_texts([file])))
    settings, work = settings_of(args), MiningWorkdir(args, [file])
    (vectors,) = work.vectors([side], settings)
    kept = find_distinct(vectors, float(args.deduplicate or 0), settings, work.neighbours)
    logger.info("%s: %s of %s lines are kept", args.output, f"{len(kept):,}", f"{side.given:,}")
    return [side.sentences[row] for row in kept], work


class Side:
    """The distinct lines of one text, and the row that each has in the vectors of all; the others are counted."""

    def __init__(self, name: str, lines: Sequence[str]) -> None:
        self.name, self.given = name, len(lines)
        first: dict[str, int] = {}
        for row, line in enumerate(lines):
            if line.strip():
                first.setdefault(line, row)
        self.sentences, self.rows = list(first), np.array(list(first.values()), np.int64)
        if not first:
            raise BadInput(f"{name}: has no line with text; allowed is one or more")
        empty = sum(not line.strip() for line in lines)
        for number, kind in ((empty, "empty"), (len(lines) - empty - len(first), "repeated")):
            if number:
                logger.info("%s: %s %s lines are left out", name, f"{number:,}", kind)


class MiningWorkdir:
    """The folder OUTPUT.partial, and what is done with its help; it is for the same files and settings only."""

    def __init__(self, args: MineArguments, files: Sequence[str]) -> None:
        self.args, self.folder = args, partial_file(Path(args.output).resolve())
        self.neighbours = self.folder / "neighbours.npz"
        read = [*files, *(file for file in (args.x_vectors, args.y_vectors) if file)]
        weights = sorted(Path(args.model or "").glob("*.safetensors")) if args.model else []
        names = ("model", "precision", "neighbours", "approximate", "max_memory", "pairs", "deduplicate")
        settings = {name: getattr(args, name) for name in names}
        settings["device"] = device_of(args)
        settings["digests"] = {}
        for file in map(str, (*read, *weights)):
            with as_bad_input(file, "a file", "Check the path."):
                settings["digests"][file] = digest(Path(file))
        state = self.folder / SETTINGS_FILE
        if refuse_other_settings(state, settings, CONTINUE_OR_REMOVE):
            logger.info("%s: going on with what was found", self.folder)
        elif self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise BadInput(f"{self.folder}: is nothing that hictl mine could go on with; remove it")
        self.settings = settings

    def vectors(self, sides: Sequence[Side], settings: MiningConfig) -> list[Source]:
        """The vectors of each side's distinct lines, given or made; what the search will take is said before."""
        given = [self._given(side, file) for side, file in zip(sides, (self.args.x_vectors, self.args.y_vectors))]
        precision: Any = self.args.precision
        if any(vectors is None for vectors in given):
            if not self.args.model:
                raise BadInput("model is not given; allowed without it are vectors for all files. Name a model.")
            model, tokenizer = load_encoder(self.args.model, precision, self.args.device)
            width = model.config.hidden_size
        widths = {vectors.shape[1] if vectors is not None else width for vectors in given}
        if len(widths) > 1:
            raise BadInput(f"vectors have {' and '.join(map(str, widths))} numbers; allowed are those of one model")
        like = [np.broadcast_to(np.float32(0), (len(side.sentences), *widths)) for side in sides]
        print(describe(like[0], like[-1], settings, only_earlier=len(sides) == 1), flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        remember_settings(self.folder / SETTINGS_FILE, self.settings)
        found: list[Source] = []
        for letter, side, vectors in zip("xy", sides, given):
            path = self.folder / f"{letter}.npy"
            if vectors is None and not path.exists():
                arguments = EmbedArguments(model=str(self.args.model), output=str(path), precision=self.args.precision)
                pooling = own_pooling(model.config)
                embed_texts(model, tokenizer, iter(side.sentences), arguments, pooling, len(side.sentences))
            found.append(np.load(path, mmap_mode="r") if vectors is None else vectors)
        return found

    def remove(self) -> None:
        shutil.rmtree(self.folder)

    def _given(self, side: Side, file: str | None) -> Source | None:
        if file is None:
            return None
        with as_bad_input(file, VECTORS, "Make them by hictl embed."):
            vectors = np.load(file, mmap_mode="r", allow_pickle=False)
            if vectors.ndim != 2 or vectors.dtype.kind != "f":
                raise BadInput(f"{file}: is an array {vectors.shape} of {vectors.dtype}; allowed is {VECTORS}.")
        if len(vectors) != side.given:
            found = f"has {len(vectors):,} vectors, and {side.name} {side.given:,} lines"
            raise BadInput(f"{file}: {found}; allowed is one for each line. Embed that file again.")
        return SomeRows(vectors, side.rows)


@contextmanager
def one_error() -> Iterator[None]:
    """What a search refuses is refused here in the same words."""
    try:
        yield
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(str(error)) from error


def settings_of(args: MineArguments) -> MiningConfig:
    names = ("margin", "direction", "neighbours", "one_to_one", "approximate", "max_memory")
    threshold = -math.inf if args.threshold is None else args.threshold
    return MiningConfig(**{name: getattr(args, name) for name in names}, threshold=threshold, device=device_of(args))


def report_folder(args: MineArguments) -> str:
    return f"{Path(args.output).with_suffix('')}-report"


def device_of(args: MineArguments) -> str:
    return args.device or ("cuda" if torch.cuda.is_available() else "cpu")


def chosen(args: MineArguments) -> dict[str, Any]:
    """The settings that are not the default."""
    defaults = MineArguments(output="")
    return {name: value for name, value in vars(args).items() if value != getattr(defaults, name)}


def read_pairs(path: str) -> Iterator[IdPair]:
    """The last two columns of each line, of which there are two, or three after a score; pairs with an empty side are
    left out."""
    empty = 0
    for number, line in enumerate(read_texts([path]), start=1):
        cells = line.split("\t")
        if not 2 <= len(cells) <= 3:
            found = f'{path}:{number}: has {len(cells)} columns; allowed are "x<TAB>y" and "score<TAB>x<TAB>y"'
            raise BadInput(f"{found}. Correct or remove the line.")
        if len(cells) == 3 and not is_number(cells[0]):
            found = (
                f"{path}:{number}: has {short_repr(cells[0])} as its score; allowed is a number, first of three columns"
            )
            raise BadInput(f"{found}. Put the score before x and y, or leave it out.")
        x, y = cells[-2:]
        if x.strip() and y.strip():
            yield x, y
        else:
            empty += 1
    if empty:
        logger.info("%s: %s pairs with an empty side are left out", path, f"{empty:,}")


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def written(score: float, x: str, y: str) -> str:
    return "\t".join([f"{score:.6f}", x.replace("\t", " "), y.replace("\t", " ")])
