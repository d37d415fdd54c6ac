"""Retrieval accuracy of encoders on the same sentence pairs, with paired intervals: `hictl score-retrieval`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.cleaning import CorpusReport
from ..data.corpus import rows_of
from ..embedding.encoder import embed_at_poolings
from ..embedding.pooling import Pooling, chosen_prompt, length_read, own_pooling
from ..errors import BadInput
from ..files import write_json
from ..reports.page import Listing, Picture, write_sections
from ..reports.results import RESULTS_FILE, library_versions
from ..reports.tables import Table
from .bitext import retrieval_hits
from .plots import plot_retrieval

SAMPLES = 1000  # of the bootstrap
MEAN, ACCURACY, BY_LANGUAGE, READING = "mean", "Retrieval accuracy", "By language", "How each is read"

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


@dataclass(frozen=True)
class Comparison:
    """What encoders found on the same pairs, with intervals by bootstrap of the sentences.

    Attributes:
        pairs: sentences and translations by language pair: pairs that share one, of any language, are drawn together.
            `None`: they share none.
    """

    encoders: Sequence[EncoderHits]
    pairs: Mapping[str, Sides] | None = None

    @cached_property
    def sentences(self) -> dict[str, int]:
        """Pairs by language pair."""
        return {language: found.shape[1] for language, found in self.encoders[0].hits.items()}

    @cached_property
    def samples(self) -> dict[str, NDArray[np.floating]]:
        """(SAMPLES, encoders) percent of both directions by language pair, and their mean, in samples of the sentences,
        drawn with replacement; where a sample has none of a language pair, what was found."""
        numbers, random = self.numbers(), np.random.default_rng(0)
        size = 1 + max(int(own.max()) for own in numbers.values())
        right = {name: np.stack([each.hits[name].mean(0) for each in self.encoders], 1) for name in numbers}
        found = {name: np.tile(100 * rows.mean(0), (SAMPLES, 1)) for name, rows in right.items()}
        for sample in range(SAMPLES):
            times = np.bincount(random.integers(size, size=size), minlength=size)
            for name, own in numbers.items():
                if total := int((drawn := times[own]).sum()):
                    found[name][sample] = 100 * drawn @ right[name] / total
        return found | {MEAN: np.mean(list(found.values()), 0)}

    def numbers(self) -> dict[str, NDArray[np.integer]]:
        """(sentences,) by language pair, equal where pairs share a text, themselves or through others, such as English
        in many translations: those are no independent samples."""
        counts = [*self.sentences.values()]
        if self.pairs is None:
            rows: NDArray[np.integer] = np.arange(sum(counts))
        else:
            known: dict[str, int] = {}
            x, y = (
                [known.setdefault(text, len(known)) for name in self.sentences for text in self.pairs[name][side]]
                for side in (0, 1)
            )
            links = coo_array((np.ones(len(x)), (x, y)), shape=(len(known), len(known)))
            rows = connected_components(links, directed=False)[1][x]
        return dict(zip(self.sentences, np.split(rows, np.cumsum(counts)[:-1])))

    def accuracy(self, encoder: int) -> dict[str, Estimate]:
        """Percent of both directions by language pair, and their mean."""
        values = self.encoders[encoder].values
        return {language: estimate(values[language], self.samples[language][:, encoder]) for language in values}

    def over_first(self, encoder: int) -> dict[str, Estimate]:
        """Percentage points above the first encoder, paired by sentences."""
        first, values = self.encoders[0].values, self.encoders[encoder].values
        return {
            language: estimate(values[language] - first[language], drawn[:, encoder] - drawn[:, 0])
            for language, drawn in self.samples.items()
        }


def read_pairs(sources: Sequence[str]) -> dict[str, Sides]:
    """Read all pairs of each source by language pair; every row counts, nothing is cleaned.

    A language pair is named by its second language where the first one is always the same, else "first-second", and
    with its source where several have that pair.

    Raises:
        BadInput: a row cannot be read or has one text, or a source has no row.
    """
    if twice := [source for source, times in Counter(sources).items() if times > 1]:
        raise BadInput(f"{twice[0]}: is given more than once; allowed is once. Leave the others out.")
    found: dict[tuple[str, str, str], Sides] = {}
    for source in sources:
        for row in rows_of([source], CorpusReport(strict=True)):
            if len(row.texts) == 1:
                raise BadInput(
                    f"{row.origin}: has one text; allowed are two, a sentence and its translation. Leave the row out."
                )
            (x_lang, x), (y_lang, y) = row.texts.items()
            sides = found.setdefault((x_lang, y_lang, source), ([], []))
            sides[0].append(x)
            sides[1].append(y)
        if not any(source == of for *_, of in found):
            raise BadInput(f"{source}: has no pair; allowed is one or more. Give another source.")
    same_first = len({first for first, _, _ in found}) == 1
    tests = Counter((first, second) for first, second, _ in found)
    return {
        (second if same_first else f"{first}-{second}") + f", {source}" * (tests[first, second] > 1): sides
        for (first, second, source), sides in found.items()
    }


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
        "max_length": length_read(model.config, max_length),
    }
    return EncoderHits(name, protocol, hits)


def estimate(value: float, samples: NDArray[np.floating]) -> Estimate:
    """Return a value with the 2.5 and 97.5 percentiles of its samples."""
    low, high = np.percentile(samples, (2.5, 97.5))
    return Estimate(value, float(low), float(high))


# --- tables, files ----------------------------------------------------------------------------------------------------


def as_table(comparison: Comparison) -> Table:
    """Tabulate the accuracy of encoders by language pair, and the difference of each to the first one."""
    (first, *others), sentences = comparison.encoders, comparison.sentences
    heads, accuracy = ["", "sentences", first.name], comparison.accuracy(0)
    for other in others:
        heads += [other.name, "difference"]
    differences = [comparison.over_first(number) for number in range(1, len(others) + 1)]
    rows = []
    for language, value in accuracy.items():
        row = [language, f"{sentences.get(language, sum(sentences.values())):,}", value.text()]
        for other, difference in zip(others, differences):
            row += [f"{other.values[language]:.1f}", difference[language].text("+")]
        rows.append(row)
    caption = (
        "Percent of sentences whose nearest neighbour by cosine is their translation, mean of both directions, with "
        f"95 % intervals ({SAMPLES:,} samples of the sentences, the same for all languages; differences are paired)."
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
    return Table.of(["", "pooling", "layer", "prompt", "tokens"], rows, READING)


def write_comparison(folder: str | Path, comparison: Comparison, command: str = "") -> Path:
    """Write `results.json`, `report.html`, `report.md` and a picture; return the path of the page.

    The picture shows the first and the last encoder.

    Args:
        command: that reproduces the result.
    """
    folder, (first, *others) = Path(folder), comparison.encoders
    results = [
        {
            "model": each.name,
            **each.protocol,
            "accuracy": {language: found._asdict() for language, found in comparison.accuracy(number).items()},
            "directions": {language: (100 * hits.mean(1)).tolist() for language, hits in each.hits.items()},
            "difference": {language: found._asdict() for language, found in comparison.over_first(number).items()},
        }
        for number, each in enumerate(comparison.encoders)
    ]
    facts = {"sentences": comparison.sentences, "command": command, "versions": library_versions()}
    write_json(folder / RESULTS_FILE, {"encoders": results, **facts})
    before, after = (first.values, others[-1]) if others else ({}, first)
    shown = {language: (before.get(language), after.values[language]) for language in comparison.sentences}
    picture = plot_retrieval(shown, folder / "retrieval.png", ("first", "last" if others else MEAN))
    caption = f"Blue: {after.name}." + (f" Grey: {first.name}. Orange: lower than it." if others else "")
    return write_sections(
        folder,
        f"{ACCURACY} {after.values[MEAN]:.1f}%",
        [(f"{each.values[MEAN]:.1f}%", each.name) for each in comparison.encoders],
        {
            ACCURACY: [as_table(comparison), direction_table(comparison.encoders)],
            BY_LANGUAGE: [Picture(BY_LANGUAGE, caption, picture)],
            READING: [reading_table(comparison.encoders)],
            "Command": [Listing("Command", command)],
        },
        f"{sum(comparison.sentences.values()):,} pairs.",
    )
