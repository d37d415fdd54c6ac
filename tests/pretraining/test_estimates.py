"""Memory and time, computed: the parts that can be counted by hand; docs/scale.md is compared in test_scale.py."""

import pytest

from hictl_hf.pretraining.estimates import GPUS, Shape, gigabytes, milliseconds

TOY = Shape(layers=2, d=4, f=8, words=100)


def test_parameters_counted_by_hand() -> None:
    """A layer: q, k, v and output 4 (16 + 4), two norms 2 · 8, feed-forward 32 + 8 and 32 + 4: 172."""
    assert TOY.encoder == 2 * 172 and TOY.embeddings == 400
    assert TOY.parameters == 344 + 100 * 5 + 2 * 16 + 520 * 4


def test_memory_grows_with_the_batch_only_where_it_should() -> None:
    one, two = (gigabytes(TOY, (3, 3, 6), pairs, gpus=1) for pairs in (1, 2))
    assert two[:2] == one[:2] and two[2] == 2 * one[2] and two[4] == pytest.approx(4 * one[4])
    assert one[2] * 1e9 == pytest.approx((24 * 4 + 4.5 * 8) * 2 * 12), "bytes of two layers and twelve tokens"


@pytest.mark.parametrize("gpu", GPUS)
def test_a_step_of_twice_the_pairs_takes_the_encoder_twice_as_long(gpu: str) -> None:
    one, two = (milliseconds(TOY, gpu, pairs) for pairs in (8, 16))
    assert two[0] == pytest.approx(2 * one[0]) and two[1] == pytest.approx(4 * one[1]) and two[2] == one[2]


def test_more_contrasted_pairs_cost_the_sentence_level_alone() -> None:
    """As many pairs are contrasted at once with the gradient cache as in all micro-batches."""
    one, four = (gigabytes(TOY, (3, 3, 6), 8, 1, contrasted) for contrasted in (None, 32))
    assert four[:4] == one[:4] and four[4] == pytest.approx(16 * one[4])
    one, four = (milliseconds(TOY, "H100", 8, 1, contrasted=contrasted) for contrasted in (None, 32))
    assert four[1] == pytest.approx(16 * one[1]) and [four[0], *four[2:]] == [one[0], *one[2:]]


def test_without_the_language_model_the_head_costs_nothing() -> None:
    full, alone = (gigabytes(TOY._replace(lm=lm), (3, 3, 6), gpus=1) for lm in (True, False))
    assert alone[1] * 1e9 == pytest.approx(4 * 400) and alone[2:] == full[2:], "the gradient of E"
    full, alone = (milliseconds(TOY._replace(lm=lm), "H100") for lm in (True, False))
    assert (full[0] - alone[0]) * 0.33 * 989e9 == pytest.approx(128 * 6 * 0.25 * 50 * (400 + 16))


def test_counted_parameters_take_the_place_of_the_formula() -> None:
    counted = TOY._replace(counted=(344, 5000))
    assert (counted.encoder, counted.parameters) == (344, 5000)
    assert gigabytes(counted, (3, 3, 6))[0] == pytest.approx(gigabytes(TOY, (3, 3, 6))[0] * 5000 / TOY.parameters)
