"""Retrieval accuracy of encoders on the same sentence pairs, with paired intervals: `hictl score-retrieval`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.cleaning import CorpusReport
from ..data.corpus import rows_of
from ..embedding.encoder import embed_at_poolings
from ..embedding.pooling import Pooling, chosen_prompt, own_max_length, own_pooling
from ..errors import BadInput
from ..files import write_json
from ..reports.page import Listing, Picture, write_sections
from ..reports.results import RESULTS_FILE, library_versions
from ..reports.tables import Table
from .bitext import retrieval_hits
from .plots import plot_retrieval

SAMPLES = 1000  # of the bootstrap
MEAN, ACCURACY = "mean", "Retrieval accuracy"

Sides = tuple[list[str], list[str]]  # sentences, and their translations


class Estimate(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def text(self, sign: str = "") -> str:
        """
        >>> Estimate(2.04, -0.5, 3).text("+")
        '+2.0 (-0.5 to +3.0)'
        """
        value, low, high = (f"{number:{sign}.1f}" for number in self)
        return f"{value} ({low} to {high})"


@dataclass(frozen=True)
class EncoderHits:
    """Which sentences find their translation by an encoder.

    Attributes:
        name: folder or Hub name of the encoder.
        protocol: how it was read: pooling, prompt, tokens.
        hits: (2, sentences) by language pair: x → y, and y → x.
    """

    name: str
    protocol: Mapping[str, Any]
    hits: Mapping[str, NDArray[np.bool_]]

    @cached_property
    def values(self) -> dict[str, float]:
        """Percent of both directions by language pair, and their mean."""
        values = {language: 100 * float(found.mean()) for language, found in self.hits.items()}
        return values | {MEAN: fmean(values.values())}

    @cached_property
    def samples(self) -> dict[str, NDArray[np.floating]]:
        """(SAMPLES,) what `values` are in samples of the sentences, the same samples for all encoders."""
        found = {
            language: 100 * (drawn_sentences(hits.shape[1]) @ hits.mean(0)) / hits.shape[1]
            for language, hits in self.hits.items()
        }
        return found | {MEAN: np.mean(list(found.values()), 0)}

    @property
    def accuracy(self) -> dict[str, Estimate]:
        """Percent of both directions by language pair, and their mean."""
        return {language: estimate(self.values[language], self.samples[language]) for language in self.values}

    def over(self, other: "EncoderHits") -> dict[str, Estimate]:
        """Percentage points above another encoder on the same sentences, by language pair and of the mean."""
        return {
            language: estimate(
                self.values[language] - other.values[language], self.samples[language] - other.samples[language]
            )
            for language in self.values
        }


def read_pairs(sources: Sequence[str]) -> dict[str, Sides]:
    """Read all pairs of sources by language pair; every row counts, nothing is cleaned.

    A language pair is named by its second language where the first one is always the same, else "first-second".

    Raises:
        BadInput: a row cannot be read or has one text, or there is no row.
    """
    found: dict[tuple[str, str], Sides] = {}
    for row in rows_of(sources, CorpusReport(strict=True)):
        if len(row.texts) == 1:
            raise BadInput(
                f"{row.origin}: has one text; allowed are two, a sentence and its translation. Leave the row out."
            )
        (x_lang, x), (y_lang, y) = row.texts.items()
        sides = found.setdefault((x_lang, y_lang), ([], []))
        sides[0].append(x)
        sides[1].append(y)
    if not found:
        raise BadInput(f"{', '.join(sources)}: has no pair; allowed is one or more")
    same_first = len({first for first, _ in found}) == 1
    return {second if same_first else f"{first}-{second}": sides for (first, second), sides in found.items()}


def find_hits(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Mapping[str, Sides],
    pooling: Pooling | None = None,
    prompt: str | None = None,
    max_length: int | None = None,
) -> EncoderHits:
    """Embed all sentences and search each translation among those of its language pair (`bitext.retrieval_hits`).

    Args:
        name: of the encoder, for tables.
        pairs: sentences and translations by language pair.
        pooling, prompt, max_length: as in `embedding.embed_sentences`.
    """
    pooling = pooling or own_pooling(model.config)
    texts = [text for sides in pairs.values() for side in sides for text in side]
    vectors = embed_at_poolings(
        model, tokenizer, texts, [pooling], prompt=prompt, max_length=max_length, progress=True
    )[pooling]  # fmt: skip
    sizes = np.repeat([len(x) for x, _ in pairs.values()], 2)
    sides = np.split(vectors, np.cumsum(sizes)[:-1])
    hits = {language: retrieval_hits(x, y) for language, x, y in zip(pairs, sides[::2], sides[1::2])}
    protocol = {
        "pooling": pooling._asdict(),
        "prompt": chosen_prompt(model.config, prompt),
        "max_length": max_length or own_max_length(model.config),
    }
    return EncoderHits(name, protocol, hits)


@cache
def drawn_sentences(sentences: int) -> NDArray[np.float32]:
    """Return (SAMPLES, sentences) how often each is drawn; equal for equal numbers of sentences."""
    random = np.random.default_rng(sentences)
    return random.multinomial(sentences, np.full(sentences, 1 / sentences), SAMPLES).astype(np.float32)


def estimate(value: float, samples: NDArray[np.floating]) -> Estimate:
    """Return a value with the 2.5 and 97.5 percentiles of its samples."""
    low, high = np.percentile(samples, (2.5, 97.5))
    return Estimate(value, float(low), float(high))


# --- tables, files ----------------------------------------------------------------------------------------------------


def as_table(encoders: Sequence[EncoderHits]) -> Table:
    """Tabulate the accuracy of encoders by language pair, and the difference of each to the first one."""
    first, *others = encoders
    heads = ["", "sentences", first.name]
    for other in others:
        heads += [other.name, "difference"]
    rows = []
    for language in first.values:
        hits = [*first.hits.values()] if language == MEAN else [first.hits[language]]
        row = [language, f"{sum(each.shape[1] for each in hits):,}", first.accuracy[language].text()]
        for other in others:
            row += [f"{other.values[language]:.1f}", other.over(first)[language].text("+")]
        rows.append(row)
    caption = (
        "Percent of sentences whose nearest neighbour by cosine is their translation, mean of both directions, with "
        f"95 % intervals ({SAMPLES} samples of the sentences; differences are paired)."
    )
    return Table.of(heads, rows, ACCURACY, caption)


def direction_table(encoders: Sequence[EncoderHits]) -> Table:
    """Tabulate the accuracy of each direction."""
    heads = ["", *(f"{each.name}, {arrow}" for each in encoders for arrow in ("x → y", "y → x"))]
    rows = [
        [language, *(f"{100 * found.mean():.1f}" for each in encoders for found in each.hits[language])]
        for language in encoders[0].hits
    ]
    return Table.of(heads, rows, "Each direction", "Percent.")


def reading_table(encoders: Sequence[EncoderHits]) -> Table:
    """Tabulate how each encoder is read."""
    rows = [
        [each.name, *each.protocol["pooling"].values(), repr(each.protocol["prompt"]), each.protocol["max_length"]]
        for each in encoders
    ]
    return Table.of(["", "pooling", "layer", "prompt", "tokens"], rows, "How each is read")


def write_comparison(folder: str | Path, encoders: Sequence[EncoderHits], command: str = "") -> Path:
    """Write `results.json`, `report.html`, `report.md` and a picture; return the path of the page.

    Args:
        encoders: one or more, on the same sentences; the picture shows the first and the last one.
        command: that reproduces the result.
    """
    folder = Path(folder)
    first, last = encoders[0], encoders[-1]
    sentences = {language: hits.shape[1] for language, hits in first.hits.items()}
    results = [
        {
            "model": each.name,
            **each.protocol,
            "accuracy": {language: found._asdict() for language, found in each.accuracy.items()},
            "directions": {language: (100 * hits.mean(1)).tolist() for language, hits in each.hits.items()},
            "difference": {language: found._asdict() for language, found in each.over(first).items()},
        }
        for each in encoders
    ]
    write_json(
        folder / RESULTS_FILE,
        {"encoders": results, "sentences": sentences, "command": command, "versions": library_versions()},
    )
    before = first.values if last is not first else {}
    shown = {language: (before.get(language), last.values[language]) for language in sentences}
    picture = plot_retrieval(shown, folder / "retrieval.png", ("first", "last" if before else MEAN))
    caption = f"Blue: {last.name}." + (f" Grey: {first.name}. Orange: lower than it." if before else "")
    return write_sections(
        folder,
        f"Retrieval accuracy {last.values[MEAN]:.1f}%",
        [(f"{each.values[MEAN]:.1f}%", each.name) for each in encoders],
        {
            ACCURACY: [as_table(encoders), direction_table(encoders)],
            "By language": [Picture("By language", caption, picture)],
            "How each is read": [reading_table(encoders)],
            "Command": [Listing("Command", command)],
        },
        f"{sum(sentences.values()):,} pairs.",
    )
