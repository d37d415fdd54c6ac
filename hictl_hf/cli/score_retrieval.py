"""`hictl score-retrieval`: how often encoders find the translation of a sentence, on the same pairs
(`retrieval.comparison`).

    hictl score-retrieval runs/demo/checkpoint --test_file 'test.{en,de}'
    hictl score-retrieval intfloat/multilingual-e5-base runs/adapted/encoder --prompt "query: " --test_file test.jsonl
    hictl score-retrieval e5 adapted/encoder --prompt "query: " --test_file 'tatoeba.bre-eng.{eng,bre}' --output runs/b

Each source (docs/data_formats.md) is a test set, and every row counts. Other encoders are compared with the first one.
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..embedding.arguments import VectorArguments
from ..embedding.encoder import load_encoder
from ..embedding.pooling import chosen_prompt
from ..files import check_place
from ..parsing import CommandParser, parse_flags, refuse_missing, refuse_run
from ..reports.results import refuse_other_results
from ..retrieval.comparison import Comparison, as_table, find_hits, read_pairs, reading_table, write_comparison
from .logs import log_to_terminal

GROUPS = {
    "input and output": ("test_file", "output"),
    "vectors": ("layer", "pooling", "prompt", "prompt_name", "max_seq_length"),
    "computation": ("precision", "device"),
}


@dataclass
class ScoreRetrievalArguments(VectorArguments):
    """Arguments of `hictl score-retrieval`."""

    test_file: list[str] = field(
        metadata={"help": "Sources of sentence pairs (docs/data_formats.md), such as test.jsonl or 'test.{en,de}'."}
    )
    output: str | None = field(
        default=None, metadata={"help": "Folder for results.json, report.html and a picture; default: only print."}
    )


def make_parser() -> CommandParser:
    parser = CommandParser(
        ScoreRetrievalArguments, "Score encoders on sentence pairs: who finds the translations?", GROUPS, __doc__
    )
    parser.add_argument("models", nargs="+", metavar="MODEL", help="folders or Hub names of encoders")
    return parser


def main(argv: Sequence[str] | None = None) -> Comparison:
    """Run the command and return what each encoder found; `argv` defaults to the command line."""
    argv = sys.argv[1:] if argv is None else list(argv)
    args, given = parse_flags(make_parser(), argv)
    log_to_terminal()
    for name in given.models:
        refuse_missing(name)  # before any is read
        refuse_run(name)
    if args.output:
        check_place(args.output, folder=True)
        refuse_other_results(args.output, "encoders")
    pairs = read_pairs(args.test_file)
    encoders = []
    for name in given.models:
        model, tokenizer = load_encoder(name, args.chosen_precision, args.device)
        pooling = args.chosen_pooling(model)
        prompt = chosen_prompt(model.config, args.prompt, args.prompt_name)
        encoders.append(find_hits(name, model, tokenizer, pairs, pooling, prompt, args.max_seq_length))
    comparison = Comparison(encoders, pairs)
    table = as_table(comparison)
    print(f"{reading_table(encoders).text()}\n\n{table.title}. {table.caption}\n\n{table.text()}")
    if args.output:
        command = shlex.join(["hictl", "score-retrieval", *argv])
        print(write_comparison(args.output, comparison, command))
    return comparison
