"""The average of start and trained weights: exact at both ends, and chosen by dev and guard."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import nn

from hictl_hf.data.cleaning import CorpusReport
from hictl_hf.embedding.pooling import Pooling
from hictl_hf.errors import BadInput
from hictl_hf.pretraining import interpolation
from hictl_hf.pretraining.corpora import Corpora
from hictl_hf.pretraining.interpolation import (
    best_share,
    check_can_choose,
    copy_of_weights,
    hash_of_weights,
    interpolate,
    set_weights,
)
from hictl_hf.pretraining.results import ShareAccuracy
from hictl_hf.pretraining.scoring import DevScores
from hictl_hf.retrieval.held_out import RetrievalAccuracy


def test_the_weights_are_the_average_and_to_the_bit_those_of_one_side_at_the_ends() -> None:
    model = nn.Linear(7, 3)
    start = copy_of_weights(model)
    trained = {name: weight + torch.randn_like(weight) for name, weight in start.items()}
    for share in (0.0, 0.25, 1.0):
        set_weights(model, start, trained, share)
        for name, weight in model.named_parameters():
            expected = (1 - share) * start[name] + share * trained[name]
            torch.testing.assert_close(weight.detach(), expected)
            if share in (0, 1):
                assert torch.equal(weight, (start, trained)[int(share)][name])


def test_weights_that_began_at_random_stay_as_they_were_trained() -> None:
    model = nn.Linear(7, 3)
    start = copy_of_weights(model, new=["bias"])
    trained = {name: weight.detach() + 1 for name, weight in model.named_parameters()}
    set_weights(model, dict.fromkeys(trained, torch.zeros(())) | trained, trained, 1)
    set_weights(model, start, trained, 0)
    assert torch.equal(model.bias, trained["bias"]) and torch.equal(model.weight, start["weight"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_hash_of_weights_is_of_names_and_values(dtype: torch.dtype) -> None:
    weights = {"a": torch.ones(2, 3, dtype=dtype).T, "b": torch.zeros(2, dtype=dtype)}
    assert hash_of_weights(weights) == hash_of_weights(dict(reversed(weights.items())))
    others = {"a": weights["a"], "c": weights["b"]}, {**weights, "b": torch.tensor([0, 0.5], dtype=dtype)}
    assert len({*map(hash_of_weights, others), hash_of_weights(weights)}) == 3


def rows(*values: tuple[float, float, float | None]) -> list[ShareAccuracy]:
    return [ShareAccuracy(share=share, dev=dev, guard=guard) for share, dev, guard in values]


def test_the_best_mean_of_dev_and_guard_is_chosen_where_the_guard_is_not_below_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert best_share(rows((0, 50, 80), (0.5, 60, 82), (1, 64, 79))).share == 0.5
    assert not caplog.text
    assert best_share(rows((0, 50, 80), (0.5, 60, 79), (1, 90, 70))).share == 0  # all spoil the guard
    assert "keeps nothing of the training" in caplog.text
    assert best_share(rows((0, 50, 80), (0.5, 60, 80), (1, 60, 80))).share == 0.5  # of equal ones nearest the start
    assert best_share(rows((0, 50, 80), (0.5, 60, 86), (1, 62, 81))).share == 0.5  # 73 and 71.5
    assert best_share(rows((0, 50, None), (0.5, 60, None), (1, 61, None))).share == 1


def test_each_share_is_scored_by_its_weights_and_the_best_one_is_left_in_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the training is best on dev, by the pooling that the scores name; the start is not scored again."""
    model, start = nn.Linear(1, 1, bias=False), {"weight": torch.zeros(1, 1)}
    nn.init.ones_(model.weight)
    trainer: Any = SimpleNamespace(model=model, accelerator=SimpleNamespace(unwrap_model=lambda model: model))

    def scores(dev: float) -> DevScores:
        read, other = (RetrievalAccuracy({"de": (value, value)}, {"de": 4}) for value in (dev, 99.0))
        return DevScores(Pooling("mean", 1), {Pooling("mean", 1): read, Pooling("mean", 2): other}, read)

    monkeypatch.setattr(interpolation, "score_dev", lambda *_: scores(60 - 40 * abs(model.weight.item() - 0.5)))
    found, chosen = interpolate(trainer, start, "auto", Corpora(None, None, None, CorpusReport()), scores(30.0))
    assert [row.dev for row in found.grid] == [row.guard for row in found.grid] == [30, 50, 60, 50, 40]
    assert found.share == model.weight.item() == 0.5 and chosen == scores(60.0)
    assert interpolate(trainer, start, "0.75", Corpora(None, None, None, CorpusReport()), None)[1] is None
    assert model.weight.item() == 0.125


def test_without_held_out_pairs_nothing_is_chosen_and_without_a_guard_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pairs = Dataset.from_list([{"x": "a", "y": "b"}])
    check_can_choose("0.5", Corpora(pairs, None, None, CorpusReport()))
    for dev in (None, pairs):  # a corpus of very few pairs may have a dev and no test
        with pytest.raises(BadInput, match="chooses on held-out pairs, and there are none"):
            check_can_choose("auto", Corpora(pairs, dev, None, CorpusReport()))
    with caplog.at_level(logging.WARNING):
        check_can_choose("auto", Corpora(pairs, pairs, pairs, CorpusReport(), pairs, pairs))
        assert not caplog.text
        check_can_choose("auto", Corpora(pairs, pairs, pairs, CorpusReport()))
    assert "keep_start auto without a guard" in caplog.text
