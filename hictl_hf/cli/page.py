"""`hictl page`: the tables of `hictl explain` on a local page in the browser (`embedding.page`).

hictl page --model runs/demo/checkpoint --among news.de.txt
hictl page --model runs/demo/checkpoint --compare_with xlm-roberta-base --among news.de.txt
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..embedding.arguments import ExplainerArguments
from ..embedding.page import make_page, serve
from ..errors import BadInput
from ..parsing import CommandParser, parse_flags
from .logs import log_to_terminal

GROUPS = {
    "input": ("model", "compare_with", "among", "language_texts"),
    "vectors": ("layer", "pooling"),
    "page": ("port",),
}


@dataclass
class PageArguments(ExplainerArguments):
    """Arguments of `hictl page`."""

    compare_with: str | None = field(
        default=None, metadata={"help": "A second encoder, shown side by side with the first."}
    )
    port: int | None = field(
        default=None, metadata={"help": "Port of 127.0.0.1; default: the first free one from 7860 on."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.port is not None and not 1 <= self.port < 2**16:
            raise BadInput(f"port is {self.port}; allowed are 1 to {2**16 - 1}")


def make_parser() -> CommandParser:
    return CommandParser(PageArguments, "Show the tables of `hictl explain` on a local page.", GROUPS, __doc__)


def main(argv: Sequence[str] | None = None) -> None:
    """Serve the page until Ctrl-C; `argv` defaults to the command line."""
    args = parse_flags(make_parser(), argv)
    log_to_terminal()
    names = [args.model, args.compare_with] if args.compare_with else [args.model]
    serve(make_page(*map(args.load, names), names=names if args.compare_with else ()), args.port)
