"""Arguments that `hictl explain` and `hictl page` share: the encoder, and the texts to search in."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..data.cleaning import CorpusReport
from ..data.columns import refuse_tables
from ..data.lines import read_texts
from ..data.sources import read_rows
from ..errors import BadInput
from .encoder import load_encoder
from .nearest_words import Explainer


@dataclass
class ExplainerArguments:
    """Arguments of an `Explainer`; `load` reads the files."""

    model: str = field(metadata={"help": "Folder or Hub name of a HiCTL or XLM-R encoder."})
    among: str | None = field(
        default=None,
        metadata={"help": "File of sentences to search, one per line, may be compressed; its vectors stay in memory."},
    )
    language_texts: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Sources of texts by language (docs/data_formats.md): de:news.txt, corpus.{en,de}. A word belongs "
            "to the language in whose texts it is most frequent; default: words are grouped by script."
        },
    )

    def load(self, model: str = "") -> Explainer:
        """Load a model, by default `self.model`, and read the files; `BadInput` names the file and the line that cannot
        be used."""
        refuse_tables([self.among] if self.among else [], "Write the sentences to a text file")
        among = list(read_texts([self.among])) if self.among else []
        if self.among and not any(map(str.strip, among)):
            raise BadInput(f"{self.among}: has no line with text; allowed is one or more")
        return Explainer(*load_encoder(model or self.model), rows=self._rows(), among=among)

    def _rows(self) -> Iterator[dict[str, str]]:
        report = CorpusReport(strict=True)
        return (row.texts for source in self.language_texts for row in read_rows(source, report))
