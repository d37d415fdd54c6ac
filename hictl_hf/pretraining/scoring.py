"""Retrieval before and after training: the pooling chosen on dev, its score on test, vectors for the t-SNE picture."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray

from ..embedding.encoder import embed_sentences
from ..embedding.pooling import Pooling
from ..errors import BadInput
from ..retrieval.held_out import RetrievalAccuracy, best_pooling, evaluate_retrieval, mean_accuracies
from .corpora import Corpora
from .results import LanguageAccuracy, Protocol, RetrievalResults
from .trainer import HictlTrainer

PICTURED_SENTENCES, PICTURED_LANGUAGES = 12, 5  # of the t-SNE picture


@dataclass
class DevScores:
    """Accuracy on the pairs that choose.

    Attributes:
        pooling: the best one on dev.
        dev: accuracy at every pooling.
        guard: accuracy of the guard's dev pairs at the best pooling.
    """

    pooling: Pooling
    dev: Mapping[Pooling, RetrievalAccuracy]
    guard: RetrievalAccuracy | None = None


@dataclass
class Scores:
    """Retrieval accuracy of a model on the held-out pairs, and vectors for the t-SNE picture.

    Attributes:
        chosen: the pooling, and the accuracy on the pairs that chose it.
        test: accuracy at that pooling; `guard`: that of the guard's test pairs.
        pictured: (sentences, d) by language, row i the same sentence in each.
    """

    chosen: DevScores
    test: RetrievalAccuracy
    pictured: dict[str, NDArray[np.float32]]
    guard: RetrievalAccuracy | None = None


def score(trainer: HictlTrainer, corpora: Corpora, chosen: DevScores | None = None) -> Scores | None:
    """Choose the pooling on dev, unless it is chosen, score it on test and guard, and embed sentences for t-SNE.

    Returns `None` where no pairs are held out.
    """
    if corpora.dev is None or corpora.test is None:
        return None
    chosen = chosen or score_dev(trainer, corpora)
    test, guard = (accuracy(trainer, pairs, chosen.pooling) for pairs in (corpora.test, corpora.guard_test))
    assert test is not None
    model, tokenizer = trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class
    pictured = {
        language: embed_sentences(model, tokenizer, texts, chosen.pooling, normalize=False)
        for language, texts in pictured_sentences(corpora.test).items()
    }
    return Scores(chosen, test, pictured, guard)


def refuse_diverged(trainer: HictlTrainer) -> None:
    """Raise `BadInput` if the model's states of a short text have infinity or NaN; all processes call this together."""
    model, tokenizer = trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class
    last = Pooling("mean", model.config.num_hidden_layers)
    vectors = trainer.run_inside(lambda: embed_sentences(model, tokenizer, ["1 2 3"], last, normalize=False))
    if np.isfinite(vectors).all():
        return
    args, step = trainer.args, trainer.state.global_step
    raise BadInput(
        f"the model's states have infinity or NaN after {step} steps with learning_rate {args.learning_rate:g}, so the "
        f"training diverged; checkpoints are in {args.output_dir}. Lower learning_rate, or raise warmup_steps, and "
        "train again in another --output_dir"
    )


def score_dev(trainer: HictlTrainer, corpora: Corpora) -> DevScores:
    """Accuracy on the dev pairs, and on those of the guard at the pooling that is best on dev."""
    model, tokenizer = trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class
    assert corpora.dev is not None
    shown = not trainer.args.disable_tqdm
    dev = trainer.from_main(evaluate_retrieval(model, tokenizer, corpora.dev, trainer.poolings, progress=shown))
    best = best_pooling(dev)  # the same in all: of a model in shards they run the same layers
    return DevScores(best, dev, accuracy(trainer, corpora.guard_dev, best))


def accuracy(trainer: HictlTrainer, pairs: Dataset | None, pooling: Pooling) -> RetrievalAccuracy | None:
    """Accuracy of the trainer's model on these pairs, if there are any."""
    if pairs is None:
        return None
    model, tokenizer = trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class
    shown = not trainer.args.disable_tqdm
    return evaluate_retrieval(model, tokenizer, pairs, [pooling], progress=shown)[pooling]


def pictured_sentences(test: Dataset) -> dict[str, list[str]]:
    """Sentences of the language that most x have, and their translations in the most frequent other languages.

    Returns lists by language, item i the same sentence in each; empty where fewer than two sentences are shared.
    """
    [(common, _)] = Counter(test["x_lang"]).most_common(1)
    rows = [row for row in test if row["x_lang"] == common]  # others may be the same languages the other way round
    translations: dict[str, dict[str, str]] = {}
    for row in rows:
        translations.setdefault(row["x"], {})[row["y_lang"]] = row["y"]
    frequent = [language for language, _ in Counter(row["y_lang"] for row in rows).most_common(PICTURED_LANGUAGES)]
    shared = [(x, texts) for x, texts in translations.items() if all(language in texts for language in frequent)]
    shared = sorted(shared, key=lambda item: -len(item[0]))[:PICTURED_SENTENCES]  # the longest ones
    if len(shared) < 2:
        return {}
    return {common: [x for x, _ in shared]} | {name: [texts[name] for _, texts in shared] for name in frequent}


def retrieval_results(before: Scores, after: Scores) -> RetrievalResults:
    """Mean accuracy and that of each language, before and after training, with the protocol."""
    results = compared(before, after, before.test, after.test)
    layers = 1 + max(pooling.layer for pooling in after.chosen.dev)
    for pooling, found in after.chosen.dev.items():
        results.by_layer.setdefault(pooling.mode, [None] * layers)[pooling.layer] = found.mean
    return results


def guard_results(before: Scores, after: Scores) -> RetrievalResults | None:
    """The same of the guard pairs, at the poolings chosen on dev; `None` without a guard."""
    if before.guard is None or after.guard is None:
        return None
    return compared(before, after, before.guard, after.guard)


def compared(before: Scores, after: Scores, was: RetrievalAccuracy, now: RetrievalAccuracy) -> RetrievalResults:
    """Accuracy on the same pairs before and after training, with the poolings of these scores."""
    were, are = mean_accuracies(was), mean_accuracies(now)
    return RetrievalResults(
        untrained=was.mean, hictl=now.mean,
        per_language={
            name: LanguageAccuracy(
                untrained=were[name], hictl=are[name], forward=forward, backward=backward, sentences=now.sentences[name]
            )
            for name, (forward, backward) in now.both_directions.items()
        },
        protocol=Protocol(untrained=before.chosen.pooling, hictl=after.chosen.pooling),
    )  # fmt: skip
