"""The paper's figure 4 (appendix D): t-SNE of sets of sentences in several languages, with a number for each map.

Colour is the set, marker the language. The number is the mean rank of a translation among all sentences shown of its
language, 1 the best, in the space of the vectors: t-SNE itself measures nothing.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..data.cleaning import CorpusReport
from ..data.records import Cursor
from ..data.sources import list_shards, read_shard
from ..embedding.encoder import embed_sentences, load_encoder
from ..embedding.pooling import chosen_pooling
from ..errors import BadInput
from ..reports.plots import LANGUAGE_MARKERS, Array, tsne_places
from .plots import SentenceMap, plot_sentence_sets

COLOURS = 10
VectorsByLanguage = Mapping[str, NDArray[np.floating]]  # (sentences, d) each, row = meaning


def draw_sentence_sets(
    models: Sequence[str],
    sources: Sequence[str],
    path: str | Path,
    sets: int = 10,
    per_set: int = 100,
    seed: int = 42,
    pooling: str | None = None,
    layer: int | None = None,
) -> list[SentenceMap]:
    """Draw the map of each checkpoint in one picture; returns the maps.

    Args:
        models: folders or Hub names.
        sources: of records in all languages, such as `wmt.{en,fr,de,ru,es}`; a set is some that follow each other.
        per_set: sentences of a set, all languages together, as the paper counts them.
        pooling, layer: where each model is read; `None`: its own.
    """
    texts = read_sets(sources, sets, per_set)
    maps = []
    for name in models:
        model, tokenizer = load_encoder(name)
        read = chosen_pooling(model.config, pooling, layer)
        vectors = {
            language: embed_sentences(model, tokenizer, each, read, normalize=True) for language, each in texts.items()
        }
        maps.append(SentenceMap(name, place(vectors, seed), mean_rank(vectors)))
    plot_sentence_sets(maps, len(next(iter(texts.values()))) // sets, path)
    return maps


def read_sets(sources: Sequence[str], sets: int, per_set: int) -> dict[str, list[str]]:
    """The sentences of all sets by language, row = meaning.

    Raises:
        BadInput: too few sentences, fewer than two languages, more than there are markers, or more sets than colours.
    """
    if not 2 <= sets <= COLOURS:
        raise BadInput(f"sets is {sets}; allowed are 2 to {COLOURS}, which colours tell apart")
    texts: dict[str, list[str]] = {}
    report = CorpusReport(strict=True)
    for source in sources:
        for shard in list_shards(source):
            for rows in filter(None, read_shard(shard, Cursor(), report)):  # some are untranslated, or of a low score
                record = {language: text for row in rows for language, text in row.texts.items()}
                texts = texts or {language: [] for language in record}
                if record.keys() != texts.keys():
                    raise BadInput(
                        f"{rows[0].origin}: has {', '.join(record)}; allowed are the languages of the first record, "
                        f"{', '.join(texts)}"
                    )
                for language, text in record.items():
                    texts[language].append(text)
    if not 2 <= len(texts) <= len(LANGUAGE_MARKERS):
        raise BadInput(
            f"sentences has {len(texts)} languages; allowed are 2 to {len(LANGUAGE_MARKERS)}, which markers tell apart"
        )
    size, found = per_set // len(texts), len(next(iter(texts.values())))
    if size < 1 or found < sets * size:
        raise BadInput(
            f"sentences has {found} records; {sets} sets of {per_set} sentences in {len(texts)} languages need "
            f"{sets} x {max(size, 1)} or more; give more, or lower sets or per_set (at least {len(texts)})"
        )
    return {language: each[: sets * size] for language, each in texts.items()}


def mean_rank(vectors: VectorsByLanguage, among: int | None = None) -> float:
    """The mean rank of a translation, 1 the best, over all ordered pairs of languages.

    Args:
        vectors: of length 1.
        among: sentences among which a translation is ranked, in blocks; `None`: all.
    """
    ranks = []
    for one, x in vectors.items():
        size = among or len(x)
        for other, y in vectors.items():
            for start in range(0, len(x) - size + 1, size) if one != other else ():
                scores = x[start : start + size] @ y[start : start + size].T
                ranks.append((scores >= np.diag(scores)[:, None]).sum(1).mean())
    return float(np.mean(ranks))


def place(vectors: VectorsByLanguage, seed: int) -> dict[str, Array]:
    """(sentences, 2) coordinates of each language's sentences in one t-SNE of all."""
    places = tsne_places(np.concatenate([*vectors.values()]), 30.0, seed)
    if places is None:
        raise BadInput("all sentences have the same vector, so there is nothing to draw; give another model")
    return dict(zip(vectors, np.split(places, len(vectors))))
