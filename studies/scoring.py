"""Scores of an encoder, with the hits of each sentence, so that encoders are compared on the same sentences. Layer and
pooling are the best on the dev sentences of the bitext; no test score takes part in a choice.

    Tatoeba     18 languages with English, a few words a sentence, both directions
    NTREX       20 languages with English, news, both directions
    BUCC        zh-en, mined pairs; the threshold is tuned on the same pairs, as XTREME's dev score
    in domain   held-out rows of the training sources, 16 languages, both directions
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric
from sklearn.manifold import TSNE
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf import HictlForPreTraining
from hictl_hf.data.cleaning import CorpusReport
from hictl_hf.data.sources import read_rows
from hictl_hf.embedding import Pooling, all_poolings, embed_sentences, load_encoder
from hictl_hf.files import write_json
from hictl_hf.retrieval import sentence_sets
from hictl_hf.retrieval.bitext import Bitext, best_threshold, extract_pairs, mine_id_pairs, nearest, unit_rows
from hictl_hf.retrieval.held_out import best_pooling, evaluate_retrieval
from hictl_hf.xtreme.files import read_bucc

DEV_SENTENCES = 250  # of each language, to choose the layer and pooling by
RANKED = 100  # sentences among which a translation is ranked
SETS, SET = 10, 20  # the t-SNE figure has 10 sets of 20 consecutive sentences, in 5 languages
PICTURED = {"en": "src.eng", "fr": "ref.fra", "de": "ref.deu", "ru": "ref.rus", "es": "ref.spa"}
Sides = tuple[list[str], list[str]]  # English sentences and their translations
Embed = Callable[[list[str]], NDArray[np.float32]]  # sentences to (sentences, d)
Hits = dict[str, NDArray[np.bool_]]  # "test/language/direction": (sentences,) whether each found its translation


class StudyTests:
    """The test sentences of a folder with bitext/, ntrex/ and xtreme/."""

    def __init__(self, data: Path) -> None:
        self.data = data
        tatoeba = {path.name.split(".")[1].removesuffix("-eng"): path for path in data.glob("xtreme/tatoeba/*-eng.eng")}
        news = {path.name.split(".")[1]: path for path in data.glob("ntrex/newstest2019-ref.*.txt")}
        self.pairs: dict[str, dict[str, Sides]] = {
            "tatoeba": {
                language: (lines_of(path), lines_of(path.with_suffix(f".{language}")))
                for language, path in sorted(tatoeba.items())
            },
            "ntrex": {
                language: (lines_of(data / "ntrex/newstest2019-src.eng.txt"), lines_of(path))
                for language, path in sorted(news.items())
            },
            "in domain": self.bitext("test"),
        }

    def bitext(self, split: str, most: int | None = None) -> dict[str, Sides]:
        """Return both sides of the bitext's files of a split, by language."""
        found: dict[str, Sides] = {}
        for path in sorted(self.data.glob(f"bitext/*.{split}.jsonl.gz")):
            rows = [dict(row.texts) for row in read_rows(str(path), CorpusReport(strict=True))][:most]
            language = next(name for name in rows[0] if name != "en")
            found[language] = [row["en"] for row in rows], [row[language] for row in rows]
        return found

    def bucc(self) -> Bitext:
        return read_bucc(*(self.data / f"xtreme/bucc2018/zh-en.dev.{end}" for end in ("zh", "en", "gold")))

    def sentences(self) -> Iterator[str]:
        """Yield all sentences that must not be in the training data: those of the tests, PANX and Multi30k."""
        yield from chain.from_iterable(chain(*sides) for test in self.pairs.values() for sides in test.values())
        for path in self.data.glob("multi30k/*.test_*.jsonl.gz"):
            yield from chain.from_iterable(
                row.texts.values() for row in read_rows(str(path), CorpusReport(strict=True))
            )
        bitext = self.bucc()
        yield from chain(bitext.queries, bitext.candidates)
        for path in self.data.glob("xtreme/panx/*.tsv"):
            for sentence in path.read_text("utf-8").split("\n\n"):
                yield " ".join(line.split("\t")[0] for line in sentence.splitlines())

    def pictured(self) -> dict[str, list[str]]:
        """Return NTREX in five languages, aligned."""
        return {name: lines_of(self.data / f"ntrex/newstest2019-{file}.txt") for name, file in PICTURED.items()}


def lines_of(path: Path) -> list[str]:
    return path.read_text("utf-8").removesuffix("\n").split("\n")


def score_encoder(encoder: str, tests: StudyTests, folder: Path) -> dict[str, Any]:
    """Write scores.json, hits.npz (whether each sentence found its translation), map.npz (t-SNE coordinates)."""
    folder.mkdir(parents=True, exist_ok=True)
    model, tokenizer = load_encoder(encoder)
    last = model.config.num_hidden_layers
    projection = isinstance(model, HictlForPreTraining) and model.config.projects_first_token
    poolings = all_poolings(range(last + 1), last, projection=projection)
    dev = evaluate_retrieval(model, tokenizer, as_dataset(tests.bitext("dev", DEV_SENTENCES)), poolings)
    best = best_pooling(dev)

    embed = embedder(model, tokenizer, best)
    hits = hits_of(tests.pairs, embed)
    hits |= bucc_hits(tests.bucc(), embed)
    pictured = {name: unit_rows(embed(texts)) for name, texts in tests.pictured().items()}
    places: dict[str, Any] = map_of(pictured)
    np.savez_compressed(folder / "map.npz", **places)
    arrays: dict[str, Any] = hits
    np.savez_compressed(folder / "hits.npz", **arrays)
    scores = {
        "pooling": best._asdict(),
        "dev": {f"{pooling.mode}, layer {pooling.layer}": accuracy.mean for pooling, accuracy in dev.items()},
        "scores": scores_of(hits),
        "mean rank": mean_rank(pictured),
        "languages": {name: 100 * float(found.mean()) for name, found in hits.items() if not name.startswith("bucc")},
    }
    write_json(folder / "scores.json", scores)
    return scores


def embedder(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pooling: Pooling, prompt: str = "", **options: Any
) -> Embed:
    """Return a function that embeds sentences with a prompt before each, and each distinct sentence only once.

    Args:
        options: others of `embed_sentences`.
    """
    known: dict[str, NDArray[np.float32]] = {}

    def embed(sentences: list[str]) -> NDArray[np.float32]:
        if new := [sentence for sentence in dict.fromkeys(sentences) if sentence not in known]:
            texts = [prompt + sentence for sentence in new]
            known.update(zip(new, embed_sentences(model, tokenizer, texts, pooling, **options)))
        return np.stack([known[sentence] for sentence in sentences])

    return embed


def hits_of(tests: Mapping[str, Mapping[str, Sides]], embed: Embed) -> Hits:
    """Return which sentences find their translation among all of their test and language, in both directions."""
    hits: Hits = {}
    for test, languages in tests.items():
        for language, (english, foreign) in languages.items():
            x, y = embed(english), embed(foreign)
            own = np.arange(len(x))
            hits[f"{test}/{language}/from en"] = nearest(x, y) == own
            hits[f"{test}/{language}/to en"] = nearest(y, x) == own
    return hits


def as_dataset(languages: dict[str, Sides]) -> Dataset:
    rows = [(x, y, "en", language) for language, sides in languages.items() for x, y in zip(*sides)]
    return Dataset.from_dict(dict(zip(("x", "y", "x_lang", "y_lang"), map(list, zip(*rows)))))


def bucc_hits(bitext: Bitext, embed: Embed) -> Hits:
    """Return for each Chinese sentence whether its pair is gold, extracted at the best threshold, and both."""
    assert bitext.gold is not None
    mined = mine_id_pairs(bitext, embed(list(bitext.queries)), embed(list(bitext.candidates)))
    extracted = {*extract_pairs(mined, best_threshold(mined, bitext.gold))}
    found = {"gold": bitext.gold, "extracted": extracted, "right": extracted & bitext.gold}
    sides = {name: {query for query, _ in pairs} for name, pairs in found.items()}
    return {f"bucc/{name}": np.array([query in ids for query in bitext.query_ids]) for name, ids in sides.items()}


def mean_rank(vectors: Mapping[str, NDArray[np.floating]]) -> float:
    """Return the mean rank of a translation among 100 sentences, 1 the best, over all sets and language pairs."""
    return sentence_sets.mean_rank(vectors, RANKED)


def map_of(vectors: Mapping[str, NDArray[np.floating]]) -> dict[str, NDArray[np.floating]]:
    """Return (SETS · SET, 2) coordinates of each language's sentences in one t-SNE of all."""
    shown = [rows[: SETS * SET] for rows in vectors.values()]
    places = TSNE(init="pca", random_state=0, metric="cosine").fit_transform(np.concatenate(shown))
    return dict(zip(vectors, np.split(places, len(shown))))


def sentence_statistics(rows: Iterable[Mapping[str, str]], metric: Metric) -> NDArray[np.number]:
    """Return (sentences, numbers) the statistics that BLEU or chrF sum, from the rows of a predictions.jsonl."""
    translations, references = zip(*((row["translation"], row["target"]) for row in rows))
    return np.array(metric._extract_corpus_statistics(translations, [references]))


def scores_of(hits: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """Return percent by test: means over languages, of each direction and of both, and the F1 of BUCC, if it is one."""
    scores = {}
    if "bucc/gold" in hits:
        scores["bucc"] = f1(*(hits[f"bucc/{name}"].sum() for name in ("right", "extracted", "gold")))
    for test in dict.fromkeys(name.split("/")[0] for name in hits if not name.startswith("bucc")):
        directions = [
            float(np.mean([found.mean() for name, found in hits.items() if name.startswith(f"{test}/") and to in name]))
            for to in ("/from en", "/to en")
        ]
        scores |= {f"{test}, en to x": 100 * directions[0], f"{test}, x to en": 100 * directions[1]}
        scores[test] = 50 * sum(directions)
    return scores


def f1(right: float, extracted: float, gold: float) -> float:
    return float(200 * right / max(extracted + gold, 1))
