"""p_avg by itself; with a model in test_modeling_hictl.py."""

import pytest
import torch

from hictl_hf.models.sentence_probability import SentenceProbability


def test_a_full_window_drops_the_oldest_step() -> None:
    probability = SentenceProbability(2)
    assert probability.mean() == 0
    for value, mean in ((0.2, 0.2), (0.4, 0.3), (0.8, 0.6)):
        probability.record(-torch.tensor(value).log())
        assert probability.mean().item() == pytest.approx(mean)
    assert probability.steps == 3 and [*probability.state_dict()] == ["recent", "steps"]
