"""Arguments that commands share: how vectors are read; of `hictl explain` and `hictl page` also encoder and texts."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedModel

from ..data.cleaning import CorpusReport
from ..data.columns import refuse_tables
from ..data.lines import read_texts
from ..data.sources import read_rows
from ..errors import BadInput
from .encoder import Precision, check_device, check_reading, default_precision, load_encoder
from .nearest_words import Explainer
from .pooling import POOLINGS, Pooling, check_poolings, chosen_pooling


@dataclass(kw_only=True)
class PoolingArguments:
    """Where vectors are read, if not where the model says."""

    layer: int | None = field(
        default=None, metadata={"help": "Layer to pool, 0: the embeddings; default: the model's."}
    )
    pooling: str | None = field(default=None, metadata={"help": f"One of {', '.join(POOLINGS)}; default: the model's."})

    def chosen_pooling(self, model: PreTrainedModel) -> Pooling:
        """The pooling of a model; `BadInput` for one that it does not have."""
        pooling = chosen_pooling(model.config, self.pooling, self.layer)
        check_poolings(model, [pooling])
        return pooling


@dataclass(kw_only=True)
class VectorArguments(PoolingArguments):
    """How an encoder reads sentences: its pooling, and prompt, length, precision and device."""

    prompt: str | None = field(
        default=None,
        metadata={"help": 'Text to put before each sentence, "" for none; default: the model\'s default prompt.'},
    )
    prompt_name: str | None = field(
        default=None, metadata={"help": "Name of one of the model's prompts, such as query, instead of its text."}
    )
    max_seq_length: int | None = field(
        default=None,
        metadata={
            "help": "Tokens per sentence, special tokens included; the rest is cut; default: the model's, or 256."
        },
    )
    precision: str | None = field(
        default=None,
        metadata={
            "help": "fp32, bf16, or int8 (CPU only): each faster and less exact; default: bf16 on a GPU that has it, "
            "else fp32."
        },
    )
    device: str | None = field(default=None, metadata={"help": "cpu, cuda, ...; default: a GPU if available."})

    def __post_init__(self) -> None:
        check_reading(self.precision, self.pooling, self.max_seq_length)
        check_device(self.device)

    @property
    def chosen_precision(self) -> Precision:
        """The precision of the encoder, by default the usual one of the device."""
        given: Any = self.precision  # `check_reading` allows no other text
        return given or default_precision(self.device)


@dataclass
class ExplainerArguments(PoolingArguments):
    """Arguments of an `Explainer`; `load` reads the files."""

    model: str = field(metadata={"help": "Folder or Hub name of an encoder that HiCTL trains."})
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

    def __post_init__(self) -> None:
        check_reading(pooling=self.pooling)
        for name in ("layer", "pooling"):
            if (value := getattr(self, name)) is not None and not self.among:
                raise BadInput(
                    f"{name} is {value}, and among is not given; it is where sentences are read, words are near the "
                    f"first token's last state. Give --among, or leave out --{name}"
                )

    def load(self, model: str = "") -> Explainer:
        """Load a model, by default `self.model`, and read the files; `BadInput` names the file and the line that cannot
        be used."""
        refuse_tables([self.among] if self.among else [], "Write the sentences to a text file")
        among = list(read_texts([self.among])) if self.among else []
        if self.among and not any(map(str.strip, among)):
            raise BadInput(f"{self.among}: has no line with text; allowed is one or more")
        encoder, tokenizer = load_encoder(model or self.model)
        return Explainer(encoder, tokenizer, self._rows(), among, self.chosen_pooling(encoder))

    def _rows(self) -> Iterator[dict[str, str]]:
        report = CorpusReport(strict=True)
        return (row.texts for source in self.language_texts for row in read_rows(source, report))
