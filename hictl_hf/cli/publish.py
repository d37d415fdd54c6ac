"""`hictl publish`: share a finished run on the Hugging Face Hub (`hub.publishing.push`).

hictl publish runs/demo me/hictl-demo
hictl publish runs/demo me/hictl-demo --license cc-by-4.0 --private true --encoder_repository me/hictl-demo-encoder
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..hub.publishing import push
from ..parsing import CommandParser, parse_flags

GROUPS = {"repository": ("encoder_repository", "private"), "model card": ("license",)}


@dataclass
class PublishArguments:
    """Settings of `hictl publish RUN REPOSITORY`."""

    encoder_repository: str | None = field(
        default=None, metadata={"help": "Repository of its own for the plain encoder; encoder/ without it."}
    )
    license: str | None = field(
        default=None,
        metadata={
            "help": "Of the weights, by the Hub's name (apache-2.0, cc-by-4.0, ...); the cards name none without."
        },
    )
    private: bool | None = field(
        default=None, metadata={"help": "Whether a new repository is private; as your account says without it."}
    )


def make_parser() -> CommandParser:
    parser = CommandParser(PublishArguments, "Share a finished run on the Hugging Face Hub.", GROUPS)
    parser.add_argument("run", help="output folder of a pre-training or translation run")
    parser.add_argument("repository", help="your-name/model; created if it does not exist")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command with these arguments, by default those of the command line."""
    settings, positional = parse_flags(make_parser(), argv)
    print(push(positional.run, positional.repository, **vars(settings)))
