"""The command `hictl`: sub-command NAME runs `main` of `cli.NAME`, which is imported only then.

hictl --help
hictl doctor
hictl embed --help
hictl pretrain recipes/demo.json
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType

from ..errors import run
from ..processes import is_first, join
from ..version import __version__

COMMANDS = {
    "demo": "train a small model on real sentence pairs in minutes, write a report",
    "doctor": "check versions, device, threads, free space; say what is slow and why",
    "pretrain": "pre-train an encoder, from XLM-R or from scratch",
    "xtreme": "fine-tune and score an encoder on XTREME",
    "train-translation": "train a translation model on an encoder and score it",
    "compare": "compare runs of pre-training, XTREME or translation",
    "translate": "translate lines of text",
    "score": "score translations against references",
    "embed": "embed lines of text",
    "mine": "mine translation pairs, filter pairs, remove near-duplicates",
    "score-retrieval": "score and compare encoders on sentence pairs",
    "mteb": "score an encoder on the bitext-mining tasks of MTEB",
    "explain": "show the words and sentences nearest to a sentence",
    "tsne": "draw t-SNE of the sentence vectors of two checkpoints",
    "page": "show the tables of explain on a local page in the browser",
    "publish": "push a run to the Hugging Face Hub",
    "export-onnx": "export the plain encoder to ONNX",
    "export-ctranslate2": "export a translation model to CTranslate2",
    "prepare-xtreme": "convert treebanks or WikiAnn to XTREME's file format",
    "prepare-translation": "prepare the paper's translation corpora",
    "completion": "print the completion script of a shell",
}

SHARED = ("embed", "mine", "translate", "xtreme")  # by the processes of a launcher
TRAINED = ("demo", "pretrain", "train-translation")  # by HF's Trainer, which joins them itself


def main(argv: Sequence[str] | None = None) -> None:
    """Run the sub-command named by the first argument with the other arguments; `argv` defaults to the command line."""
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = make_parser()
    name = (argv or ["--help"])[0]
    if name not in COMMANDS and not name.startswith("-"):
        nearest = "".join(f"did you mean hictl {each}? " for each in get_close_matches(name, COMMANDS, 1))
        parser.error(f"{name!r} is no command; {nearest}The commands are {', '.join(COMMANDS)}.")
    name = parser.parse_args([name]).command
    sys.argv = [f"hictl {name}", *argv[1:]]  # the program's name in the usage line of the sub-command
    if name in SHARED:
        join()
    elif name not in TRAINED and not is_first():
        print(f"hictl {name}: done by the first process alone; this one ends", file=sys.stderr)
        return
    run(lambda given: main_of(name)(given), argv[1:])  # Ctrl-C while it is imported is no traceback either


def make_parser() -> ArgumentParser:
    """Return the parser of the first argument, the name of the sub-command."""
    rows = "\n".join(f"  {name:20} {purpose}" for name, purpose in COMMANDS.items())
    parser = ArgumentParser(
        "hictl", usage="hictl [-h] [--version] COMMAND ...", formatter_class=RawDescriptionHelpFormatter,
        description="Pre-train, evaluate and use multilingual encoders.",
        epilog=f"commands:\n{rows}\n\n`hictl COMMAND --help` lists the arguments of a command.",
    )  # fmt: skip
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of the commands below")
    parser.add_argument("--version", action="version", version=f"hictl_hf {__version__}")
    return parser


def main_of(name: str) -> Callable[..., object]:
    """Return the function that runs a sub-command."""
    return module_of(name).main


def parser_of(name: str) -> ArgumentParser:
    """Return the parser of a sub-command."""
    return module_of(name).make_parser()


def module_of(name: str) -> ModuleType:
    """Import the module of a sub-command."""
    return import_module(f"hictl_hf.cli.{name.replace('-', '_')}")
