"""`hictl prepare-xtreme`: convert treebanks or WikiAnn to the XTREME file of a language and split (`xtreme.prepare`).

hictl prepare-xtreme udpos udpos/test-es.tsv UD_Spanish-*/es_*-test.conllu --language es
hictl prepare-xtreme panx panx/test-de.tsv de-test
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from ..data.languages import is_code
from ..data.lines import check_output
from ..errors import BadInput, add_debug
from ..xtreme.prepare import read_raw, write_tagged
from ..xtreme.tasks import TASKS as XTREME_TASKS

TASKS = ("udpos", "panx")


def make_parser() -> ArgumentParser:
    parser = ArgumentParser("hictl prepare-xtreme", description="Convert treebanks or WikiAnn to an XTREME file.")
    parser.add_argument("task", choices=TASKS, help="udpos: treebanks in CoNLL-U; panx: WikiAnn")
    parser.add_argument("output", type=Path, help="tagged file to write, such as udpos/test-es.tsv")
    parser.add_argument("files", type=Path, nargs="+", help="raw files of one language and split")
    group = parser.add_argument_group("udpos")
    group.add_argument(
        "--language", help="language of the treebanks, such as es; the tags of contractions depend on it"
    )
    add_debug(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; `argv` defaults to the command line."""
    args = make_parser().parse_args(argv)
    if (args.task == "udpos") != (args.language is not None):
        raise BadInput(f"language is {args.language}; allowed is a language for udpos and none for {TASKS[1]}")
    if args.language and not is_code(args.language):
        raise BadInput(f"language is {args.language!r}; allowed are codes of languages, such as es")
    check_output(str(args.output), [str(file) for file in args.files])
    if args.output.exists() and args.output.suffix != ".tsv":  # a raw file, where the output was forgotten
        raise BadInput(f"{args.output}: exists and does not end in .tsv; name the output, then the raw files")
    labels = next(task.labels for task in XTREME_TASKS if task.name == args.task)
    examples = read_raw(args.task, args.files, args.language or "", labels)
    print(f"{write_tagged(args.output, examples)}: {len(examples)} sentences")
