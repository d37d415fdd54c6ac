"""`hictl prepare-xtreme`: from treebanks or WikiAnn to XTREME's file of a task, language and split (`xtreme.prepare`).

hictl prepare-xtreme udpos udpos/test-es.tsv UD_Spanish-*/es_*-test.conllu --language es
hictl prepare-xtreme panx panx/test-de.tsv de-test
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from ..errors import BadInput, add_traceback
from ..xtreme.prepare import read_raw, write_tagged

TASKS = ("udpos", "panx")


def make_parser() -> ArgumentParser:
    parser = ArgumentParser("hictl prepare-xtreme", description="Convert raw tagged text to a file of XTREME's.")
    parser.add_argument("task", choices=TASKS, help="what the files are: treebanks in CoNLL-U, or WikiAnn (PAN-X)")
    parser.add_argument("output", type=Path, help="file to write, with tags, such as udpos/test-es.tsv")
    parser.add_argument("files", type=Path, nargs="+", help="raw files of one language and split")
    group = parser.add_argument_group("udpos")
    group.add_argument("--language", help="language of the treebanks, such as es: decides the tag of contractions")
    add_traceback(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command with these arguments, by default those of the command line."""
    args = make_parser().parse_args(argv)
    if (args.task == "udpos") != (args.language is not None):
        raise BadInput(f"language is {args.language}; allowed is a language for udpos, none for {TASKS[1]}")
    examples = read_raw(args.task, args.files, args.language or "")
    print(f"{write_tagged(args.output, examples)}: {len(examples)} sentences")
