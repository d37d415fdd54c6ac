"""Look inside an encoder: the words and the sentences that are near to a sentence. What is near is left to
`explanation`; this module decides what is read and printed.

    hictl explain "The house is small." --model runs/demo/checkpoint
    hictl explain "The house is small." --model runs/demo/checkpoint --language_texts en:news.en.txt de:news.de.txt
    hictl explain "The house is small." --model runs/demo/checkpoint --among news.de.txt --words 0
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..data.cleaning import CorpusReport
from ..data.lines import read_texts
from ..data.sources import read_rows
from ..embedding.encoder import load_encoder
from ..embedding.nearest_words import Explainer, sentence_table, word_table
from ..errors import BadInput
from ..parsing import CommandParser, parse_flags
from .logs import log_to_terminal

GROUPS = {
    "input": ("model", "among", "language_texts", "translation"),
    "output": ("words", "sentences", "json"),
}


@dataclass
class ExplainerArguments:
    """What `hictl explain` and `hictl page` look into."""

    model: str = field(metadata={"help": "Folder or Hub name of a HiCTL or XLM-R encoder."})
    among: str | None = field(
        default=None, metadata={"help": "File to search in, of one sentence a line, .gz too; its vectors are held."}
    )
    language_texts: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Texts that tell which language a word belongs to: de:news.txt, corpus.{en,de} and all that can be "
            "trained on (docs/data_formats.md). Without them words are grouped by script."
        },
    )

    def load(self) -> Explainer:
        """The model, with the files read."""
        among = list(read_texts([self.among])) if self.among else []
        return Explainer(*load_encoder(self.model), rows=self.rows(), among=among)

    def rows(self) -> Iterator[dict[str, str]]:
        report = CorpusReport(strict=True)
        return (row.texts for source in self.language_texts for row in read_rows(source, report))


@dataclass
class ExplainArguments(ExplainerArguments):
    """Settings of `hictl explain`."""

    translation: str | None = field(
        default=None, metadata={"help": "A translation y: the words are then near to x and y, read together."}
    )
    words: int = field(default=10, metadata={"help": "Words shown of each language, 0 for none."})
    sentences: int = field(default=10, metadata={"help": "Sentences of --among shown."})
    json: bool = field(default=False, metadata={"help": "Print JSON."})

    def __post_init__(self) -> None:
        for name in ("words", "sentences"):
            if getattr(self, name) < 0:
                raise BadInput(f"{name} is {getattr(self, name)}; allowed is 0 or more")
        if not self.words and not self.among:
            raise BadInput("words is 0 and there is no --among, so that there is nothing to show; give one of them")


def make_parser() -> CommandParser:
    parser = CommandParser(ExplainArguments, "Show the words and sentences nearest to a sentence.", GROUPS)
    parser.add_argument("sentence", help="in quotes")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command with these arguments, by default those of the command line."""
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
