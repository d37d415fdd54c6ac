"""`hictl completion`: print the completion script of a shell.

hictl completion bash > ~/.local/share/bash-completion/completions/hictl
hictl completion zsh > ~/.zfunc/_hictl    # a folder of $fpath

`make completions` writes the scripts into the package from the parsers of all commands, so printing one imports neither
PyTorch nor transformers.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

from ..errors import add_debug
from .main import COMMANDS, parser_of

SCRIPTS = {shell: Path(__file__).parent / "completions" / f"hictl.{shell}" for shell in ("bash", "zsh")}
# In shtab's script for bash: after a flag that takes files, such as --train_file, no other flag was completed.
FLAGS_UNLESS_FILES = """ &&
        ( -z "$current_action_compgen" || "$current_action_is_positional" = true )"""


def make_parser() -> ArgumentParser:
    parser = ArgumentParser(
        "hictl completion", description="Print the completion script of a shell.",
        epilog=str(__doc__).split("\n\n")[1], formatter_class=RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("shell", choices=tuple(SCRIPTS))
    add_debug(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; `argv` defaults to the command line."""
    print(SCRIPTS[make_parser().parse_args(argv).shell].read_text("utf-8"), end="")


def write_scripts() -> None:
    """Write the scripts of all shells into the package."""
    for shell, path in SCRIPTS.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(make_script(shell), "utf-8")


def make_script(shell: str) -> str:
    """Return the completion script of all commands for a shell."""
    import shtab

    parser = ArgumentParser("hictl")
    commands = parser.add_subparsers(dest="command")
    for name, purpose in COMMANDS.items():
        given = parser_of(name)
        command = commands.add_parser(name, help=purpose, parents=[given], add_help=False)
        if "RECIPE" in (given.usage or ""):
            command.add_argument("recipe", nargs="?", help="JSON or YAML file of settings")
        for action in command._actions:
            if action.type in (None, str, Path) and action.choices is None and action.nargs != 0:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(parser, shell).replace(FLAGS_UNLESS_FILES, "")
