"""A sentence has one vector, whatever stands beside it; the vector is the model's own."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, XLMRobertaModel

from hictl_hf import HictlModel, export_encoder
from hictl_hf.embedding import Readout, all_readouts, embed_sentences, pool

EVERYWHERE = all_readouts(layers=[0, 1, 2], last_layer=2, projection=True)
CLOSE = {"rtol": 1e-4, "atol": 1e-6}


@pytest.fixture(scope="module")
def model(model_for_text: Callable[..., PreTrainedModel]) -> PreTrainedModel:
    """Weights large enough that sentences differ by more than the tolerance."""
    return model_for_text(initializer_range=0.3)


@pytest.fixture(scope="module")
def texts(sentences: dict[str, list[str]]) -> list[str]:
    """Twelve sentences of very different lengths, short and long ones mixed."""
    found = [sentences[name][at] for at in (0, 17, 40) for name in ("en", "zh", "de", "sw")]
    assert len(set(map(len, found))) > 6
    return found


def test_readouts_are_first_token_and_mean_of_each_layer_and_the_projection_of_the_last() -> None:
    assert all_readouts([1, 2], last_layer=2, projection=True) == [
        Readout("first token", 1), Readout("mean", 1), Readout("first token", 2), Readout("mean", 2),
        Readout("projection", 2),
    ]  # fmt: skip
    assert all_readouts([2], last_layer=2, projection=False) == [Readout("first token", 2), Readout("mean", 2)]


# --- pooling --------------------------------------------------------------------------------------------------------


def test_padding_takes_no_part_in_a_mean(model: PreTrainedModel) -> None:
    # (2 rows, 3 tokens, 2 dimensions); of the second row only two tokens are there: ((1 + 3) / 2, (0 + 4) / 2)
    hidden = torch.tensor([[[3.0, 0], [0, 3], [6, 9]], [[1, 0], [3, 4], [99, -99]]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    assert pool(model, hidden, mask, "mean").tolist() == [[3, 4], [2, 2]]
    assert pool(model, hidden, mask, "first token").tolist() == [[3, 0], [1, 0]]


def test_the_mean_stays_exact_in_half_precision(model: PreTrainedModel) -> None:
    hidden = torch.ones(1, 40, 2, dtype=torch.bfloat16)
    assert pool(model, hidden, torch.ones(1, 40, dtype=torch.long), "mean").tolist() == [[1, 1]]


@pytest.mark.parametrize("pooling", ["first token", "mean"])
def test_a_pooled_vector_does_not_keep_the_hidden_states(model: PreTrainedModel, pooling: str) -> None:
    pooled = pool(model, torch.ones(2, 40, 3), torch.ones(2, 40, dtype=torch.long), pooling)
    assert pooled.untyped_storage().nbytes() == pooled.nbytes == 2 * 3 * 4


# --- agreement with the model ---------------------------------------------------------------------------------------


def test_vectors_are_those_of_a_direct_call_of_the_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    vectors = embed_sentences(model, tokenizer, texts, EVERYWHERE, batch_size=5)
    assert list(vectors) == EVERYWHERE
    for row, text in enumerate(texts):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]  # one sentence: no padding, no order
        with torch.no_grad():
            states = model.roberta(ids, output_hidden_states=True).hidden_states
            expected = {Readout("first token", layer): states[layer][0, 0] for layer in (0, 1, 2)}
            expected |= {Readout("mean", layer): states[layer][0].mean(0) for layer in (0, 1, 2)}
            expected[Readout("projection", 2)] = model.encode_sentences(ids)[0]
        for readout, vector in expected.items():
            np.testing.assert_allclose(vectors[readout][row], vector.numpy(), **CLOSE, err_msg=f"{readout} of {text}")


def test_a_mean_without_special_tokens_is_of_the_pieces_alone(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    unknown = "the cat Ω sees"  # a piece that is not known is a piece
    readout = Readout("mean without special tokens", 2)
    found = embed_sentences(model, tokenizer, [*texts, unknown, " "], [readout])[readout]
    for vector, text in zip(found, [*texts, unknown]):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            states = model.roberta(ids)[0][0]
        np.testing.assert_allclose(vector, states[1:-1].mean(0).numpy(), **CLOSE)
    assert tokenizer.unk_token_id in tokenizer(unknown)["input_ids"][1:-1]
    assert (found[-1] == 0).all()  # of no piece at all


def test_readouts_differ_and_so_do_sentences(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    vectors = embed_sentences(model, tokenizer, texts, EVERYWHERE)
    moving = [readout for readout in EVERYWHERE if readout != Readout("first token", 0)]
    for readout in moving:
        pairs = vectors[readout][:, None] - vectors[readout][None]
        distances = np.linalg.norm(pairs, axis=-1)[~np.eye(len(texts), dtype=bool)]
        assert distances.min() > 0.02, readout  # the comparisons of this file would see a row out of place
    for one in EVERYWHERE:
        for other in EVERYWHERE:
            assert one == other or not np.allclose(vectors[one], vectors[other])


def test_a_bare_encoder_gives_the_same_vectors(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("encoder")
    readouts = all_readouts([1, 2], last_layer=2, projection=False)
    whole = embed_sentences(model, tokenizer, texts, readouts)
    export_encoder(model, folder / "plain")
    model.save_pretrained(folder / "hictl")
    for encoder in (
        XLMRobertaModel.from_pretrained(folder / "plain"),
        HictlModel.from_pretrained(folder / "hictl"),
    ):
        alone = embed_sentences(encoder, tokenizer, texts, readouts)
        assert all((whole[readout] == alone[readout]).all() for readout in readouts)


# --- what must not matter -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 3, 11, 128])
def test_the_size_of_batches_changes_no_vector(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str], batch_size: int
) -> None:
    expected = embed_sentences(model, tokenizer, texts, EVERYWHERE, batch_size=5)
    found = embed_sentences(model, tokenizer, texts, EVERYWHERE, batch_size=batch_size)
    for readout in EVERYWHERE:
        np.testing.assert_allclose(found[readout], expected[readout], **CLOSE)


def test_vectors_come_back_in_the_order_of_the_sentences(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    expected = embed_sentences(model, tokenizer, texts, EVERYWHERE, batch_size=5)
    order = np.random.default_rng(2).permutation(len(texts))
    found = embed_sentences(model, tokenizer, [texts[at] for at in order], EVERYWHERE, batch_size=5)
    for readout in EVERYWHERE:
        np.testing.assert_allclose(found[readout], expected[readout][order], **CLOSE)


def test_repeated_sentences_have_equal_vectors_each_in_its_place(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    a, b, c = texts[:3]
    readout = Readout("projection", 2)
    found = embed_sentences(model, tokenizer, [b, a, b, c, a], [readout])[readout]
    once = embed_sentences(model, tokenizer, [a, b, c], [readout])[readout]
    np.testing.assert_array_equal(found, once[[1, 0, 1, 2, 0]])


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_off_and_training_mode_comes_back(
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    training: bool,
) -> None:
    model = model_for_text(hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5).train(training)
    readout = Readout("mean", 2)
    first, again = (embed_sentences(model, tokenizer, texts, [readout])[readout] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert all(module.training == training for module in model.modules())
    ids = tokenizer(texts[0], return_tensors="pt")["input_ids"]
    with torch.no_grad():  # the dropout that was switched off would have been seen
        one, other = (model.train().roberta(ids)[0] for _ in range(2))
    assert not one.equal(other)


# --- length ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_length", "kept"), [(10, 10), (256, 64)])
def test_long_sentences_are_cut_at_the_limit_asked_for_and_at_that_of_the_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int, kept: int
) -> None:
    text = "the cat sees a dog " * 20
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) > 100 and model.config.max_position_embeddings == 66
    readout = Readout("mean", 2)
    found = embed_sentences(model, tokenizer, [text, "a dog"], [readout], max_length=max_length)[readout][0]
    with torch.no_grad():
        states = model.roberta(torch.tensor([[0, *ids[: kept - 2], 2]]))[0]
    np.testing.assert_allclose(found, states[0].mean(0).numpy(), **CLOSE)


def test_no_sentence_at_all_is_refused_in_words(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(ValueError, match="sentence"):
        embed_sentences(model, tokenizer, [], [Readout("mean", 2)])
