"""Options of `generate` from tokenizer ids to target ids; what is generated in test_modeling_hictl_translation.py."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hictl_hf import HictlConfig, HictlForConditionalGeneration
from hictl_hf.models.generation import TokenIdStreamer, the_cache


@pytest.fixture
def model(toy_config: Callable[..., HictlConfig]) -> Any:
    config = toy_config(vocab_size=20, decoder_layers=1, decoder_vocab_size=6, target_languages=["de", "fr"])
    made = HictlForConditionalGeneration(config)
    made.target_token_ids.copy_(torch.tensor([0, 1, 2, 3, 7, 9]))
    return made


def test_options_are_converted_and_tokens_the_decoder_lacks_dropped(model: Any) -> None:
    options = {
        "suppress_tokens": [7, 8], "begin_suppress_tokens": [8], "bad_words_ids": [[7, 9], [7, 8]],
        "sequence_bias": {(7,): 1.5, (8,): 2.0}, "eos_token_id": torch.tensor(9), "num_beams": 3,
    }  # fmt: skip
    assert model.in_target_ids(options) == {
        "suppress_tokens": [4], "begin_suppress_tokens": [], "bad_words_ids": [[4, 5]], "sequence_bias": [[[4], 1.5]],
        "eos_token_id": 5,
    }  # fmt: skip
    assert model.in_target_ids({"bad_words_ids": [[8]]}) == {"bad_words_ids": None}


def test_options_equal_to_the_models_own_stay(model: Any) -> None:
    assert model.in_target_ids({"suppress_tokens": [9]}, {"suppress_tokens": [9]}) == {}


def test_a_required_token_that_the_decoder_lacks_is_an_error(model: Any) -> None:
    with pytest.raises(ValueError, match="eos_token_id is 8, which this decoder cannot generate"):
        model.in_target_ids({"eos_token_id": 8})


@pytest.mark.parametrize("prompt", [[[2, 7, 9]], [[7, 9]]], ids=["with </s>", "without"])
def test_a_prompt_begins_with_the_start_id(prompt: list[list[int]], model: Any) -> None:
    assert model.begin_with(6, torch.tensor(prompt)).tolist() == [[6, 4, 5]]


def test_where_the_start_id_comes_from(model: Any) -> None:
    assert model.chosen_start(None, None, None) is None and model.chosen_start(2, None, None) == 2
    assert model.chosen_start(None, "fr", None) == 7 and model.chosen_start(None, ["fr", "de"], None) == [7, 6]
    assert model.chosen_start(None, None, torch.tensor([6])) == [6]
    for given in ((2, "fr", None), (None, "fr", torch.tensor([6])), (2, None, torch.tensor([6]))):
        with pytest.raises(ValueError, match=" and .* are given; allowed is one of them"):
            model.chosen_start(*given)


def test_a_streamer_gets_tokenizer_ids(model: Any) -> None:
    class Kept(list[Any]):
        def put(self, ids: torch.Tensor) -> None:
            self.append(ids.tolist())

        def end(self) -> None:
            self.append("end")

    kept = Kept()
    streamer = TokenIdStreamer(model, kept)
    streamer.put(torch.tensor([6, 4, 5]))
    streamer.end()
    assert kept == [[2, 7, 9], "end"]


def test_a_function_of_allowed_tokens_gets_and_returns_tokenizer_ids(model: Any) -> None:
    got: list[Any] = []
    allowed = model.allowed_target_ids(lambda *given: got.append(given) or [9, 8, 3, 2], 1, torch.tensor([6, 4, 5]))
    assert allowed == [5, 3, 2]  # the decoder lacks 8
    assert [(sentence, prefix.tolist()) for sentence, prefix in got] == [(1, [2, 7, 9])]


def test_a_source_without_a_mask_has_its_padding_masked(model: Any) -> None:
    ids = torch.tensor([[0, 9, 2, 1, 1], [0, 9, 9, 9, 2]])
    assert model.without_padding(ids)["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1] * 5]
    assert model.without_padding(None) == model.without_padding(torch.ones(1, 2, 3)) == {}
    model.target_token_ids[1] = 2  # the tokenizer pads with the end
    assert model.without_padding(ids[1:])["attention_mask"].tolist() == [[1] * 5]
    with pytest.raises(ValueError, match="attention_mask is not given, and token 2 is padding and the end"):
        model.without_padding(torch.tensor([[0, 9, 2, 2, 2], [0, 9, 9, 9, 2]]))


def test_a_cache_is_given_once() -> None:
    cache: Any = object()
    assert the_cache(cache, None) is cache and the_cache(None, None) is None
    with warnings.catch_warnings(), pytest.raises(ValueError, match="two names of one argument"):
        warnings.simplefilter("ignore")
        the_cache(cache, cache)
