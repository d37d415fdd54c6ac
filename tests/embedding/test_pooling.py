"""What a configuration says of reading sentences, and vectors of hidden states, worked out by hand."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import DebertaV2Config, PreTrainedModel, XLMRobertaConfig, XLMRobertaModel

from hictl_hf.embedding.pooling import (
    DenseLayers,
    Pooling,
    all_poolings,
    chosen_pooling,
    chosen_prompt,
    log_default_pooling,
    own_max_length,
    own_normalize,
    own_pooling,
    own_text,
    pool,
    projection_of,
    vector_size,
)
from hictl_hf.errors import BadInput


@pytest.fixture(scope="module")
def model(model_for_text: Callable[..., PreTrainedModel]) -> PreTrainedModel:
    return model_for_text()


def test_poolings_are_first_token_and_mean_of_each_layer_and_the_projection_of_the_last() -> None:
    assert all_poolings([1, 2], last_layer=2, projection=True) == [
        Pooling("cls", 1), Pooling("mean", 1), Pooling("cls", 2), Pooling("mean", 2),
        Pooling("projection", 2),
    ]  # fmt: skip
    assert all_poolings([2], last_layer=2, projection=False) == [Pooling("cls", 2), Pooling("mean", 2)]


def test_a_model_is_read_where_its_configuration_says(toy_config: Callable[..., Any]) -> None:
    assert own_pooling(toy_config()) == Pooling("cls", 2)
    assert own_pooling(toy_config(embedding_pooling="mean", embedding_layer=0)) == Pooling("mean", 0)
    assert own_pooling(toy_config(embedding_pooling="projection")) == Pooling("projection", 2)
    stated = toy_config(embedding_pooling="mean", embedding_layer=0)
    changes = ("cls",), (None, 1), ("projection",)  # which reads the last layer
    assert [chosen_pooling(stated, *each) for each in changes] == [
        Pooling("cls", 0), Pooling("mean", 1), Pooling("projection", 2)
    ]  # fmt: skip


def test_a_plain_encoder_is_read_at_the_mean_of_its_last_layer_which_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log_default_pooling.cache_clear()
    with caplog.at_level(logging.INFO, "hictl_hf"):
        poolings = [own_pooling(XLMRobertaConfig(num_hidden_layers=7)) for _ in range(2)]
    assert poolings == [Pooling("mean", 7)] * 2
    assert len(caplog.messages) == 1 and "mean of its last layer" in caplog.text


def test_length_normalisation_and_case_are_those_of_the_configuration_or_the_usual(
    toy_config: Callable[..., Any],
) -> None:
    usual, plain = toy_config(max_position_embeddings=514), XLMRobertaConfig(max_position_embeddings=514)
    assert own_max_length(usual) == own_max_length(plain) == 256 and own_normalize(usual) and own_normalize(plain)
    assert own_text(usual, "Das Haus") == own_text(plain, "Das Haus") == "Das Haus"
    stated = toy_config(
        max_position_embeddings=514, embedding_max_length=300, embedding_normalize=False, embedding_lower_case=True
    )
    assert own_max_length(stated) == 300 and not own_normalize(stated) and own_text(stated, "Das HAUS") == "das haus"
    relative = DebertaV2Config(max_position_embeddings=512, position_biased_input=False)
    assert own_max_length(relative) == 256
    stated.embedding_max_length = relative.embedding_max_length = 8192
    assert own_max_length(relative) == 8192, "relative positions have no end"
    assert own_max_length(stated) == own_max_length(toy_config(max_position_embeddings=514)) + 256 == 512


def test_the_prompt_is_the_one_given_or_named_or_the_default_one(toy_config: Callable[..., Any]) -> None:
    prompts = {"query": "q: ", "passage": ""}
    config = toy_config(embedding_prompt="d: ", embedding_prompts=prompts)
    assert [chosen_prompt(config, *given) for given in ((), ("x: ",), ("",), (None, "query"), (None, "passage"))] == [
        "d: ", "x: ", "", "q: ", ""
    ]  # fmt: skip
    assert chosen_prompt(toy_config()) == chosen_prompt(XLMRobertaConfig()) == ""
    with pytest.raises(BadInput, match="prompt_name is 'doc'; allowed are 'query', 'passage'. Give the text itself"):
        chosen_prompt(config, name="doc")
    with pytest.raises(BadInput, match="prompt_name is 'doc'; allowed are none, as the model has no prompts"):
        chosen_prompt(toy_config(), name="doc")
    with pytest.raises(BadInput, match="prompt is 'x' and prompt_name 'query'; allowed is one of them"):
        chosen_prompt(config, "x", "query")


def test_padding_takes_no_part_in_a_mean(model: PreTrainedModel) -> None:
    # (2 rows, 3 tokens, 2 dimensions); of the second row only two tokens are there: ((1 + 3) / 2, (0 + 4) / 2)
    hidden = torch.tensor([[[3.0, 0], [0, 3], [6, 9]], [[1, 0], [3, 4], [99, -99]]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    assert pool(model, hidden, mask, "mean").tolist() == [[3, 4], [2, 2]]
    assert pool(model, hidden, mask, "cls").tolist() == [[3, 0], [1, 0]]


def test_the_mean_stays_exact_in_half_precision(model: PreTrainedModel) -> None:
    hidden = torch.ones(1, 40, 2, dtype=torch.bfloat16)
    assert pool(model, hidden, torch.ones(1, 40, dtype=torch.long), "mean").tolist() == [[1, 1]]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_pooled_vector_does_not_keep_the_hidden_states(model: PreTrainedModel, pooling: str) -> None:
    pooled = pool(model, torch.ones(2, 40, 3), torch.ones(2, 40, dtype=torch.long), pooling)
    assert pooled.untyped_storage().nbytes() == pooled.nbytes == 2 * 3 * 4


def test_dense_layers_are_put_on_what_they_were_trained_on() -> None:
    # states (1, 0) and (3, 4), so the mean is (2, 2); the layers sum what they are given, and add 1 to it
    sums = nn.Linear(2, 1)
    nn.init.ones_(sums.weight)
    nn.init.ones_(sums.bias)
    hidden, mask = torch.tensor([[[1.0, 0], [3, 4], [99, 99]]]), torch.tensor([[1, 1, 0]])
    for pooling, vector in (("cls", 2), ("mean", 5)):
        model = SimpleNamespace(projection=DenseLayers(pooling, sums, nn.ReLU()))
        assert pool(model, hidden, mask, "projection").tolist() == [[vector]]
        assert pool(model, hidden, mask, "cls").tolist() == [[1, 0]], "without them"


def test_a_pooler_is_a_projection_only_where_one_was_exported_in_it() -> None:
    sizes = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 4}
    encoder = XLMRobertaModel(XLMRobertaConfig(vocab_size=9, **sizes))
    pooler = encoder.pooler.dense
    assert projection_of(encoder) is None, "of others"
    encoder.config.embedding_pooling = "cls"
    nn.init.zeros_(pooler.bias)
    assert projection_of(encoder) is pooler
    nn.init.ones_(pooler.bias)
    assert projection_of(encoder) is None, "a trained pooler"
    encoder.config.embedding_pooling = "projection"
    assert projection_of(encoder) is pooler
    nn.init.eye_(pooler.weight)
    assert projection_of(encoder) is None, "exported without one"


def test_the_size_of_vectors_is_that_of_what_is_read(model_for_text: Callable[..., PreTrainedModel]) -> None:
    model = model_for_text(projection_size=20)
    assert vector_size(model) == 32
    model.config.embedding_pooling = "projection"
    assert vector_size(model) == 20
    model.projection = DenseLayers("mean", nn.Linear(32, 7), nn.Tanh())
    assert vector_size(model) == 7
    model.config.sentence_pooling, model.projection = "mean", nn.Linear(32, 5)  # sentence-transformers trained it
    assert vector_size(model) == 5


def test_a_pooling_that_is_given_is_not_logged_as_the_default(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_default_pooling.cache_clear()
    assert chosen_pooling(XLMRobertaConfig(), "mean", 3) == Pooling("mean", 3)
    assert not caplog.text
    assert chosen_pooling(XLMRobertaConfig(), None, 3) == Pooling("mean", 3)
    assert "names no pooling" in caplog.text
