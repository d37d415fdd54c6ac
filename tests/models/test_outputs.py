"""Which tensors of a batch the objectives take part with, and what the encoder has to read for them."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from hictl_hf import HictlConfig
from hictl_hf.models.outputs import PreTrainingBatch


@pytest.fixture
def batch(toy_batch: Callable[..., dict[str, Tensor]]) -> PreTrainingBatch:
    return PreTrainingBatch(**{**dict.fromkeys(PreTrainingBatch._fields), **toy_batch(), "items": {}})


@pytest.mark.parametrize(
    ("settings", "inputs"),
    [
        ({}, ["masked", "sentences"]),
        ({"word_level_input": "clean"}, ["masked", "clean", "sentences"]),
        ({"lm_weight": 0}, ["masked", "sentences"]),
        ({"lm_weight": 0, "word_level_input": "clean"}, ["clean", "sentences"]),
        ({"lm_weight": 0, "word_weight": 0}, ["sentences"]),
        ({"sentence_weight": 0, "word_weight": 0}, ["masked"]),
    ],
)
def test_only_inputs_of_objectives_with_a_weight_are_encoded(
    settings: dict[str, Any], inputs: list[str], batch: PreTrainingBatch
) -> None:
    config = HictlConfig(**settings)
    assert list(batch.of_objectives(config).encoder_inputs(config)) == inputs


def test_a_batch_without_an_input_for_its_objectives_is_an_error(batch: PreTrainingBatch) -> None:
    off = HictlConfig(lm_weight=0, sentence_weight=0, word_weight=0)
    with pytest.raises(ValueError, match="no loss to train"):
        batch.of_objectives(off).encoder_inputs(off)
    with pytest.raises(ValueError, match="clean_input_ids is None; let the collator make it"):
        batch._replace(clean_input_ids=None).encoder_inputs(HictlConfig(word_level_input="clean"))
    with pytest.raises(ValueError, match="input_ids is None, and labels and bag are of it; give input_ids"):
        batch._replace(input_ids=None).encoder_inputs(HictlConfig())


def test_hashes_of_pairs_are_refused_where_those_of_sentences_are_read(batch: PreTrainingBatch) -> None:
    assert batch.sentence_hashes is not None
    of_pairs = batch._replace(sentence_hashes=batch.sentence_hashes[:4])
    with pytest.raises(ValueError, match="sentence_hashes has 4 entries for 8 sentences; allowed is one for each, x_1"):
        of_pairs.of_objectives(HictlConfig())
