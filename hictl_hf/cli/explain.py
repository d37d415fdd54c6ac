"""`hictl explain`: print the words and sentences nearest to a sentence (`embedding.nearest_words`).

hictl explain "The house is small." --model runs/demo/checkpoint
hictl explain "The house is small." --model runs/demo/checkpoint --language_texts en:news.en.txt de:news.de.txt
hictl explain "The house is small." --model runs/demo/checkpoint --among news.de.txt --words 0
hictl explain "The house is small." --model xlm-roberta-base --among news.de.txt --words 0 --pooling mean --layer 8
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..embedding.arguments import ExplainerArguments
from ..embedding.nearest_words import sentence_table, word_table
from ..errors import BadInput
from ..parsing import CommandParser, parse_flags
from .logs import log_to_terminal

GROUPS = {
    "input": ("model", "among", "language_texts", "translation"),
    "vectors": ("layer", "pooling"),
    "output": ("words", "sentences", "json"),
}

SENTENCES = 10  # shown


@dataclass
class ExplainArguments(ExplainerArguments):
    """Arguments of `hictl explain`."""

    translation: str | None = field(
        default=None,
        metadata={"help": "Translation y of the sentence x: show the words nearest to x and y, encoded as one input."},
    )
    words: int = field(default=10, metadata={"help": "Number of words per language, 0 for none."})
    sentences: int = field(default=SENTENCES, metadata={"help": "Number of sentences of --among."})
    json: bool = field(default=False, metadata={"help": "Print JSON instead of tables."})

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("words", "sentences"):
            if getattr(self, name) < 0:
                raise BadInput(f"{name} is {getattr(self, name)}; allowed is 0 or more")
        if not self.words and not (self.among and self.sentences):
            found = "among is not given" if not self.among else "sentences is 0"
            raise BadInput(f"words is 0 and {found}: nothing to show; give --words or --among")
        for name in ("translation", "language_texts"):
            if getattr(self, name) and not self.words:
                raise BadInput(f"{name} is given, which has no effect with --words 0; leave out one of them")
        if self.sentences not in (0, SENTENCES) and not self.among:
            raise BadInput(f"sentences is {self.sentences}, and among is not given; give --among, or leave it out")


def make_parser() -> CommandParser:
    parser = CommandParser(ExplainArguments, "Show the words and sentences nearest to a sentence.", GROUPS, __doc__)
    parser.add_argument("sentence", help="a sentence, in quotes")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; `argv` defaults to the command line."""
    args, given = parse_flags(make_parser(), argv)
    log_to_terminal()
    explainer = args.load()
    words = explainer.words(given.sentence, args.translation, args.words) if args.words else {}
    sentences = explainer.sentences(given.sentence, args.sentences)
    if args.json:
        found = {
            "sentence": given.sentence,
            "caution": explainer.caution,
            "words": {name: [near._asdict() for near in group] for name, group in words.items()},
            "sentences": [near._asdict() for near in sentences],
        }
        print(json.dumps(found, ensure_ascii=False))
        return
    if words:
        print(explainer.caution, word_table(words).text(), sep="\n\n" if explainer.caution else "")
    if sentences:
        print(sentence_table(sentences).text())
