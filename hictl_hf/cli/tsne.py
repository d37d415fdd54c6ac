"""`hictl tsne`: the paper's figure 4, t-SNE of sentences of two checkpoints (`retrieval.sentence_sets`).

hictl tsne runs/lm/checkpoint runs/demo/checkpoint --sentences 'wmt.{en,fr,de,ru,es}' --output tsne.png
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..embedding.arguments import PoolingArguments
from ..embedding.encoder import check_reading
from ..errors import BadInput
from ..files import check_place
from ..parsing import CommandParser, parse_flags, refuse_missing, refuse_run
from ..reports.plots import check_picture
from ..reports.tables import Table
from ..retrieval.plots import SentenceMap
from ..retrieval.sentence_sets import draw_sentence_sets
from .logs import log_to_terminal

GROUPS = {
    "input": ("sentences", "sets", "per_set"),
    "vectors": ("layer", "pooling"),
    "output": ("output", "seed"),
}


@dataclass
class TsneArguments(PoolingArguments):
    """Arguments of `hictl tsne`."""

    sentences: list[str] = field(
        metadata={
            "help": "Sources with each sentence in all languages: corpus.{en,fr,de,ru,es} (docs/data_formats.md)."
        }
    )
    output: str = field(metadata={"help": "Picture to write; its ending names the format."})
    sets: int = field(default=10, metadata={"help": "Sets of sentences that follow each other; the paper: 10."})
    per_set: int = field(
        default=100, metadata={"help": "Sentences of a set, all languages together; the paper: 100 in 5 languages."}
    )
    seed: int = field(default=42, metadata={"help": "Seed of t-SNE."})

    def __post_init__(self) -> None:
        check_picture(self.output)
        check_reading(pooling=self.pooling)
        if not 0 <= self.seed < 2**32:
            raise BadInput(f"seed is {self.seed}; allowed are 0 to {2**32 - 1}, those of NumPy")


def make_parser() -> CommandParser:
    parser = CommandParser(TsneArguments, "Draw t-SNE of the sentence vectors of two checkpoints.", GROUPS, __doc__)
    parser.add_argument("first", help="folder or Hub name of an encoder")
    parser.add_argument("second", help="folder or Hub name of another")
    return parser


def main(argv: Sequence[str] | None = None) -> list[SentenceMap]:
    """Run the command and return the maps; `argv` defaults to the command line."""
    args, given = parse_flags(make_parser(), argv)
    log_to_terminal()
    check_place(args.output)
    models = [given.first, given.second]
    for name in models:
        refuse_missing(name)  # before any is read
        refuse_run(name)
    maps = draw_sentence_sets(
        models, args.sentences, args.output, args.sets, args.per_set, args.seed, args.pooling, args.layer
    )
    rows = [[drawn.name, f"{drawn.mean_rank:.2f}"] for drawn in maps]
    print(Table.of(["checkpoint", "mean rank of a translation"], rows).text())
    return maps
