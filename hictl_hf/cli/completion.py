"""What makes a shell complete `hictl`, made by shtab from the very parsers that the commands use.

hictl completion bash > ~/.local/share/bash-completion/completions/hictl
hictl completion zsh > ~/.zfunc/_hictl    # a folder of $fpath
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from typing import Any, NoReturn
from unittest.mock import patch

import shtab

from .main import COMMANDS, main_of


class ParserFound(Exception):
    """Ends a command when it is about to parse its arguments."""


def main(argv: Sequence[str] | None = None) -> None:
    """Print the completion of the shell that is named."""
    parser = ArgumentParser(
        description="Print what makes a shell complete hictl.", epilog=str(__doc__).split("\n\n")[1],
        formatter_class=RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("shell", choices=("bash", "zsh"))
    shell = parser.parse_args(argv).shell
    print(shtab.complete(whole_parser(), shell))


def whole_parser() -> ArgumentParser:
    """One parser of all commands."""
    parser = ArgumentParser("hictl")
    commands = parser.add_subparsers(dest="command")
    for name, command in COMMANDS.items():
        own = commands.add_parser(name, help=command.help, parents=[parser_of(main_of(name))], add_help=False)
        for action in own._actions:
            if action.type in (None, str) and action.choices is None and action.nargs != 0:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return parser


def parser_of(main: Callable[..., object]) -> ArgumentParser:
    """The parser that a command makes; it is called, and goes no further than to its arguments."""

    def stop(parser: ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        raise ParserFound(parser)

    with patch.object(ArgumentParser, "parse_known_args", stop):
        try:
            main([])
        except ParserFound as found:
            return found.args[0]
    raise AssertionError(f"{main.__module__}.main parses no arguments")
