"""The command `hictl`: which sub-commands there are, and which module runs each. What a command takes, does and prints
is left to `main` of its module, which is imported when the command runs.

    hictl --help
    hictl embed --help
    hictl pretrain recipes/demo.json
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple

from ..errors import run
from ..version import __version__


class Command(NamedTuple):
    """A module of the package with `main(argv)`, and what it does in one line."""

    module: str
    help: str


COMMANDS = {
    "pretrain": Command("pretraining.run", "pre-train an encoder, from XLM-R or from scratch"),
    "xtreme": Command("xtreme.run", "fine-tune and score an encoder on XTREME"),
    "train-translation": Command("translation.run", "train a translation model on an encoder, and score it"),
    "translate": Command("cli.translate", "translate lines of text"),
    "score": Command("cli.score", "score translations against references"),
    "embed": Command("cli.embed", "turn lines of text into vectors"),
    "mine": Command("cli.mine", "find translations in two texts, filter pairs, remove near-duplicates"),
    "mteb": Command("embedding.mteb_evaluation", "score an encoder on the bitext-mining tasks of MTEB"),
    "explain": Command("cli.explain", "look inside: the words and the sentences that are near to a sentence"),
    "page": Command("cli.page", "the same on a local page in the browser"),
    "publish": Command("hub.publishing", "share a run on the Hugging Face Hub"),
    "export-onnx": Command("embedding.onnx_export", "write the plain encoder as ONNX"),
    "completion": Command("cli.completion", "print what makes a shell complete all this"),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the sub-command that the first argument names with the rest of them."""
    argv = sys.argv[1:] if argv is None else list(argv)
    name = make_parser().parse_args(argv[:1] or ["--help"]).command
    sys.argv = [f"hictl {name}", *argv[1:]]  # as which the command's own parser names itself
    run(main_of(name), argv[1:])


def make_parser() -> ArgumentParser:
    """The parser of what stands before the arguments of a sub-command."""
    rows = "\n".join(f"  {name:18} {command.help}" for name, command in COMMANDS.items())
    parser = ArgumentParser(
        "hictl", usage="hictl [-h] [--version] COMMAND ...", formatter_class=RawDescriptionHelpFormatter,
        description="Pre-train, evaluate and use multilingual encoders.",
        epilog=f"commands:\n{rows}\n\n`hictl COMMAND --help` lists what a command takes.",
    )  # fmt: skip
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    parser.add_argument("--version", action="version", version=f"hictl_hf {__version__}")
    return parser


def main_of(name: str) -> Callable[..., object]:
    """The function that runs this sub-command."""
    return import_module(f"hictl_hf.{COMMANDS[name].module}").main


if __name__ == "__main__":
    main()
