"""The best words are those of all scores written out, whatever is sliced, suppressed or added."""

import pytest
import torch
from torch import Tensor, nn

from hictl_hf.translation.output_layer import GROUP, OutputLayer

SENTENCES, BEAMS, DIMENSIONS = 3, 4, 6


class Wrapped(nn.Module):
    """An output layer that is no `nn.Linear`, as after quantising."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias, self.inside = head.weight, head.bias, head

    def forward(self, states: Tensor) -> Tensor:
        return self.inside(states)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("words", [20, 64, 203])
@pytest.mark.parametrize("at_once", [GROUP, 3 * GROUP, 256])
@torch.no_grad()
def test_the_best_words_are_those_of_all_scores(
    monkeypatch: pytest.MonkeyPatch, at_once: int, words: int, biased: bool, wrapped: bool
) -> None:
    monkeypatch.setattr("hictl_hf.translation.output_layer.CPU_SLICE", at_once)
    torch.manual_seed(words)
    head, suppressed = nn.Linear(DIMENSIONS, words), [0, 1, 17, words - 1]
    head.bias[0] = 9  # the likeliest of all is suppressed, and the first of its slice
    states, scores = 3 * torch.randn(SENTENCES, BEAMS, DIMENSIONS), -torch.rand(SENTENCES, BEAMS)
    word_bias = torch.randn(SENTENCES, words) if biased else None
    logits = head(states) + (0 if word_bias is None else word_bias[:, None])
    everything = logits.log_softmax(-1).index_fill(-1, torch.tensor(suppressed), -torch.inf) + scores[..., None]
    expected = everything.flatten(1).topk(2 * BEAMS)
    layer = OutputLayer(Wrapped(head) if wrapped else head, suppressed)
    assert len(layer.parts) == -(-words // at_once)
    values, hypotheses, found = layer.best(states, scores, 2 * BEAMS, word_bias)
    torch.testing.assert_close(values, expected.values)
    assert torch.equal(hypotheses * words + found, expected.indices)


@torch.no_grad()
def test_several_of_the_best_words_may_be_in_one_group() -> None:
    head = nn.Linear(1, 4 * GROUP, bias=True)
    head.weight.zero_(), head.bias.zero_()
    group = OutputLayer(head).members[2, :5]  # words whose scores only differ by their bias, the first is the best
    head.bias[group] = torch.tensor([5.0, 4, 3, 2, 1])
    _, _, found = OutputLayer(head).best(torch.zeros(1, 1, 1), torch.zeros(1, 1), 5, None)
    assert found.tolist() == [group.tolist()]


def test_groups_hold_each_word_once() -> None:
    members = OutputLayer(nn.Linear(1, 203)).members
    assert sorted(members[members >= 0].tolist()) == list(range(203)) and members.shape[1] == GROUP
