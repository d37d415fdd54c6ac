"""The command `hictl`: the sub-command NAME is `main` of the module `cli.NAME`, imported when it runs.

hictl --help
hictl embed --help
hictl pretrain recipes/demo.json
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType

from ..errors import run
from ..version import __version__

COMMANDS = {
    "pretrain": "pre-train an encoder, from XLM-R or from scratch",
    "xtreme": "fine-tune and score an encoder on XTREME",
    "train-translation": "train a translation model on an encoder, and score it",
    "compare": "compare runs of one of these three kinds",
    "translate": "translate lines of text",
    "score": "score translations against references",
    "embed": "turn lines of text into vectors",
    "mine": "find translations in two texts, filter pairs, remove near-duplicates",
    "mteb": "score an encoder on the bitext-mining tasks of MTEB",
    "explain": "show the words and sentences nearest to a sentence",
    "page": "the same on a local page in the browser",
    "publish": "share a run on the Hugging Face Hub",
    "export-onnx": "write the plain encoder as ONNX",
    "export-ctranslate2": "write a translation model for CTranslate2",
    "prepare-xtreme": "convert treebanks or WikiAnn to XTREME's files",
    "prepare-translation": "prepare the paper's translation corpora",
    "completion": "print the script that completes hictl in a shell",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the sub-command that the first argument names with the other arguments."""
    argv = sys.argv[1:] if argv is None else list(argv)
    name = make_parser().parse_args(argv[:1] or ["--help"]).command
    sys.argv = [f"hictl {name}", *argv[1:]]  # the program's name in the usage line of the sub-command
    run(main_of(name), argv[1:])


def make_parser() -> ArgumentParser:
    """The parser of the sub-command's name."""
    rows = "\n".join(f"  {name:20} {purpose}" for name, purpose in COMMANDS.items())
    parser = ArgumentParser(
        "hictl", usage="hictl [-h] [--version] COMMAND ...", formatter_class=RawDescriptionHelpFormatter,
        description="Pre-train, evaluate and use multilingual encoders.",
        epilog=f"commands:\n{rows}\n\n`hictl COMMAND --help` lists the arguments of a command.",
    )  # fmt: skip
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    parser.add_argument("--version", action="version", version=f"hictl_hf {__version__}")
    return parser


def main_of(name: str) -> Callable[..., object]:
    """The function that runs this sub-command."""
    return module_of(name).main


def parser_of(name: str) -> ArgumentParser:
    """The parser of this sub-command's arguments."""
    return module_of(name).make_parser()


def module_of(name: str) -> ModuleType:
    return import_module(f"hictl_hf.cli.{name.replace('-', '_')}")
