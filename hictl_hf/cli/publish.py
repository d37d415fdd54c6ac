"""`hictl publish`: push a finished run to the Hugging Face Hub (`hub.publishing.push`).

hictl publish runs/demo me/hictl-demo
hictl publish runs/demo me/hictl-demo --dry_run true
hictl publish runs/demo me/hictl-demo --license cc-by-4.0 --private true --encoder_repository me/hictl-demo-encoder
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..hub.publishing import push
from ..parsing import CommandParser, parse_flags

GROUPS = {"repository": ("encoder_repository", "private", "dry_run"), "model card": ("license",)}


@dataclass
class PublishArguments:
    """Optional arguments of `hictl publish RUN REPOSITORY`."""

    encoder_repository: str | None = field(
        default=None, metadata={"help": "Separate repository for the plain encoder; default: the subfolder encoder/."}
    )
    license: str | None = field(
        default=None,
        metadata={"help": "Licence of the weights by its Hub name, such as apache-2.0; default: the cards name none."},
    )
    private: bool | None = field(
        default=None, metadata={"help": "Whether a new repository is private; default: the setting of your account."}
    )
    dry_run: bool = field(
        default=False, metadata={"help": "Push nothing; print the files that would be pushed, and the cards."}
    )


def make_parser() -> CommandParser:
    parser = CommandParser(PublishArguments, "Push a finished run to the Hugging Face Hub.", GROUPS, __doc__)
    parser.add_argument("run", help="output folder of a pre-training or translation run")
    parser.add_argument("repository", help="name of the repository, your-name/model; created if it does not exist")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; `argv` defaults to the command line."""
    settings, positional = parse_flags(make_parser(), argv)
    print(push(positional.run, positional.repository, **vars(settings)))
