"""`hictl prepare-translation`: prepare the train, validation and test sets of a row of the paper's translation tables
from the raw files (`translation.prepare.prepare`).

hictl prepare-translation iwslt14-en-de raw data/iwslt14-en-de --moses_dir mosesdecoder
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import BadInput, add_debug
from ..translation.paper_corpora import CORPORA
from ..translation.prepare import prepare


def make_parser() -> ArgumentParser:
    parser = ArgumentParser("hictl prepare-translation", description="Prepare the paper's translation corpora.")
    parser.add_argument("recipe", help=f"one of {', '.join(CORPORA)}, or its file in recipes/translation")
    parser.add_argument("raw", type=Path, help="folder of the raw files, searched recursively")
    parser.add_argument("output", type=Path, help="folder to write; it must not exist")
    group = parser.add_argument_group("preparation")
    group.add_argument("--moses_dir", help="clone of mosesdecoder, to use its tokenizer.perl; default: sacremoses")
    group.add_argument("--romanian", default="keep", help="Romanian diacritics: keep, normalise or strip")
    group.add_argument(
        "--allow_other_counts", action="store_true", help="accept data of another size; every score records it"
    )
    add_debug(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the command and return the contents of `preparation.json`; `argv` defaults to the command line."""
    args = make_parser().parse_args(argv)
    name = Path(args.recipe).name.removesuffix(".json")
    if name not in CORPORA:
        raise BadInput(f"recipe is {args.recipe}; allowed are {', '.join(CORPORA)}. Choose one of them.")
    record = prepare(CORPORA[name], args.raw, args.output, args.moses_dir, args.romanian, args.allow_other_counts)
    for title in ("lines", "skipped"):
        print("\n".join([title, *(f"  {split:<14}{count:>12,}" for split, count in record[title].items())]))
    print("\n".join(f"not the paper's: {found}" for found in record["other_counts"]) or "counts: the paper's")
    return record
