"""Scoring before and after training: which sentences are pictured, what the results hold."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import hictl_hf.pretraining.scoring
from hictl_hf.embedding.pooling import Pooling
from hictl_hf.errors import BadInput
from hictl_hf.pretraining.results import LanguageAccuracy
from hictl_hf.pretraining.scoring import (
    DevScores,
    Scores,
    guard_results,
    pictured_sentences,
    refuse_diverged,
    retrieval_results,
    score,
    score_dev,
)
from hictl_hf.retrieval.held_out import RetrievalAccuracy


def pairs(*rows: tuple[str, str, str, str]) -> Dataset:
    return Dataset.from_list([dict(zip(("x_lang", "x", "y_lang", "y"), row)) for row in rows])


def test_pictured_sentences_are_those_translated_into_every_language_the_longest_first() -> None:
    test = pairs(
        ("en", "a cat", "de", "eine Katze"), ("en", "a cat", "fr", "un chat"),
        ("en", "the house", "de", "das Haus"), ("en", "the house", "fr", "la maison"),
        ("en", "never in French", "de", "nie"),
    )  # fmt: skip
    assert pictured_sentences(test) == {
        "en": ["the house", "a cat"], "de": ["das Haus", "eine Katze"], "fr": ["la maison", "un chat"],
    }  # fmt: skip


def test_sentences_are_pictured_where_some_pairs_are_the_other_way_round() -> None:
    test = pairs(("de", "nein", "en", "no"), ("en", "a", "de", "ein"), ("en", "the", "de", "das"))
    assert pictured_sentences(test) == {"en": ["the", "a"], "de": ["das", "ein"]}


def test_without_two_common_sentences_none_are_pictured() -> None:
    assert pictured_sentences(pairs(("en", "a", "de", "b"), ("en", "c", "fr", "d"))) == {}


def test_results_are_means_of_both_directions_with_the_pooling_chosen_on_dev() -> None:
    def scores(pooling: Pooling, forward: float, backward: float) -> Scores:
        accuracy = RetrievalAccuracy({"de": (forward, backward)}, {"de": 4})
        dev = {Pooling("mean", 0): accuracy, Pooling("mean", 2): accuracy, Pooling("cls", 2): accuracy}
        return Scores(DevScores(pooling, dev), accuracy, {})

    results = retrieval_results(scores(Pooling("mean", 0), 0.0, 50.0), scores(Pooling("cls", 2), 100.0, 75.0))
    assert (results.untrained, results.hictl) == (25.0, 87.5)
    assert results.per_language == {
        "de": LanguageAccuracy(untrained=25.0, hictl=87.5, forward=100.0, backward=75.0, sentences=4)
    }
    assert (results.protocol.untrained, results.protocol.hictl) == (Pooling("mean", 0), Pooling("cls", 2))
    assert results.by_layer == {"mean": [87.5, None, 87.5], "cls": [None, None, 87.5]}


def test_results_of_the_guard_are_those_of_its_pairs() -> None:
    def scores(test: float, guard: float | None) -> Scores:
        of_test, of_guard = (value and RetrievalAccuracy({"zh": (value, value)}, {"zh": 4}) for value in (test, guard))
        return Scores(DevScores(Pooling("mean", 1), {}), of_test, {}, of_guard)

    results = guard_results(scores(10.0, 20.0), scores(30.0, 40.0))
    assert results is not None and (results.untrained, results.hictl) == (20, 40)
    assert (results.per_language["zh"].untrained, results.per_language["zh"].hictl) == (20, 40)
    assert guard_results(scores(10.0, None), scores(30.0, None)) is None


@pytest.mark.parametrize("quiet", [False, True])
def test_all_processes_choose_the_pooling_of_the_main_one(quiet: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs may round differently; of a model in shards all run the same layers, or wait for each other for ever."""
    low, high = (RetrievalAccuracy({"de": (value, value)}, {"de": 4}) for value in (50.0, 60.0))
    first, last = Pooling("mean", 1), Pooling("mean", 2)
    here, of_main = {first: low, last: high}, {first: high, last: low}
    asked: list[Any] = []

    def evaluate(model: Any, tokenizer: Any, pairs: Any, poolings: Any, progress: bool) -> Any:
        asked.append((pairs, poolings))
        assert progress != quiet
        return {pooling: here[pooling] for pooling in poolings}

    monkeypatch.setattr(hictl_hf.pretraining.scoring, "evaluate_retrieval", evaluate)
    trainer: Any = SimpleNamespace(
        model=None, processing_class=None, poolings=[first, last], from_main=lambda found: of_main,
        accelerator=SimpleNamespace(unwrap_model=lambda model: model), args=SimpleNamespace(disable_tqdm=quiet),
    )  # fmt: skip
    corpora: Any = SimpleNamespace(dev="dev", guard_dev="guard")
    found = score_dev(trainer, corpora)
    assert (found.pooling, found.dev) == (first, of_main)
    assert asked == [("dev", [first, last]), ("guard", [first])]


def test_test_and_guard_pairs_are_scored_at_the_pooling_that_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    found, chosen = RetrievalAccuracy({"de": (50.0, 50.0)}, {"de": 4}), Pooling("mean", 1)
    asked: list[Any] = []

    def evaluate(model: Any, tokenizer: Any, pairs: Any, poolings: Any, progress: bool) -> Any:
        asked.append((pairs, poolings))
        return dict.fromkeys(poolings, found)

    monkeypatch.setattr(hictl_hf.pretraining.scoring, "evaluate_retrieval", evaluate)
    monkeypatch.setattr(hictl_hf.pretraining.scoring, "pictured_sentences", lambda test: {})
    trainer: Any = SimpleNamespace(
        model=None, processing_class=None, accelerator=SimpleNamespace(unwrap_model=lambda model: model),
        args=SimpleNamespace(disable_tqdm=True),
    )  # fmt: skip
    corpora: Any = SimpleNamespace(dev="dev", test="test", guard_dev="guard", guard_test="test of the guard")
    scores = score(trainer, corpora, DevScores(chosen, {}))
    assert scores is not None and scores.test == scores.guard == found
    assert asked == [("test", [chosen]), ("test of the guard", [chosen])]


def test_states_that_are_not_finite_after_training_end_the_run_with_their_reason(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> None:
    model = model_for_text()
    trainer: Any = SimpleNamespace(
        model=model, processing_class=tokenizer, run_inside=lambda function: function(),
        accelerator=SimpleNamespace(unwrap_model=lambda model: model), state=SimpleNamespace(global_step=3),
        args=SimpleNamespace(learning_rate=1e30, output_dir="out"),
    )  # fmt: skip
    refuse_diverged(trainer)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1e30)  # finite, unlike their products
    with pytest.raises(BadInput, match=r"after 3 steps with learning_rate 1e\+30, so the training diverged"):
        refuse_diverged(trainer)
