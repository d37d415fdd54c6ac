"""Conversions between tokenizer, target and start ids, worked by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hictl_hf import HictlConfig, HictlForConditionalGeneration
from hictl_hf.models.target_ids import UNKNOWN

TOKENS = [0, 1, 2, 3, 7, 9]  # tokenizer ids of the target ids 0 … 5


@pytest.fixture
def model(toy_config: Callable[..., HictlConfig]) -> Any:
    config = toy_config(vocab_size=20, decoder_layers=1, decoder_vocab_size=6, target_languages=["de", "fr"])
    made = HictlForConditionalGeneration(config)
    made.target_token_ids.copy_(torch.tensor(TOKENS))
    return made


def test_ids_there_and_back(model: Any) -> None:
    token_ids = torch.tensor([[0, 7, 9, 2], [8, 19, -100, 1]])
    target_ids = model.target_ids(token_ids)
    assert target_ids.tolist() == [[0, 4, 5, 2], [UNKNOWN, UNKNOWN, -100, 1]]
    assert model.token_ids(torch.tensor([4, 5, 6, 7])).tolist() == [7, 9, 2, 2]  # 6 and 7 are the languages
    assert model.known_ids([7, 3]) == [4, UNKNOWN] and model.known_ids([7, 8]) is None and model.known_ids(9) == 5


def test_start_ids_follow_those_of_tokens(model: Any) -> None:
    assert model.start_ids_of(["fr", "de"]).tolist() == [7, 6]
    with pytest.raises(
        ValueError,
        match=r"no target language xx; this model translates into \['de', 'fr'\]\. Write one of them as it is\.",
    ):
        model.start_ids_of(["de", "xx"])
    with pytest.raises(ValueError, match="choose one"):
        model.default_start_id()
    before = model.prepare_decoder_input_ids_from_labels(torch.tensor([[7, 8, 2, -100, -100]]), torch.tensor([7]))
    assert before.tolist() == [[7, 4, UNKNOWN, 2, 1]]


def test_target_ids_of_two_models_are_compared(model: Any, toy_config: Callable[..., HictlConfig]) -> None:
    other = HictlForConditionalGeneration(model.config)
    assert not model.has_target_ids_of(other)
    other.target_token_ids.copy_(torch.tensor(TOKENS))
    assert model.has_target_ids_of(other)
    other.config = toy_config(decoder_layers=1, target_languages=["de", "es"])
    assert not model.has_target_ids_of(other)
