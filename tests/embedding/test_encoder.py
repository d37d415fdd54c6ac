"""A sentence has one vector, whatever stands beside it; the vector is the model's own."""

import copy
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import processors
from torch import nn
from toy_families import SHAPES
from transformers import (
    AutoConfig,
    AutoModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaModel,
)

from hictl_hf import HictlForMaskedLM, HictlForPreTraining, HictlModel, export_encoder
from hictl_hf.data.text_encoding import special_tokens_around
from hictl_hf.data.tokenization import train_tokenizer
from hictl_hf.dtypes import QuantizedLinear
from hictl_hf.embedding.encoder import check_model_type, embed_at_poolings, embed_sentences, load_encoder
from hictl_hf.embedding.nearest_words import Explainer
from hictl_hf.embedding.onnx_export import SentenceEncoder
from hictl_hf.embedding.pooling import Pooling, all_poolings, own_pooling
from hictl_hf.errors import BadInput
from hictl_hf.models.configuration_hictl import CONFIGS
from hictl_hf.models.modeling_hictl import new_model
from hictl_hf.retrieval.mining import mine
from hictl_hf.translation.target_vocabulary import choose_target_ids

EVERYWHERE = all_poolings(layers=[0, 1, 2], last_layer=2, projection=True)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


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


def test_the_first_token_of_the_embeddings_which_all_sentences_share_is_not_offered(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    shared = Pooling("cls", 0)
    assert len(np.unique(embed_at_poolings(model, tokenizer, texts, [shared])[shared], axis=0)) == 1
    assert all_poolings([0, 1], last_layer=2, projection=False) == [
        Pooling("mean", 0), Pooling("cls", 1), Pooling("mean", 1)
    ]  # fmt: skip


# --- agreement with the model ---------------------------------------------------------------------------------------


def test_vectors_are_those_of_a_direct_call_of_the_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    vectors = embed_at_poolings(model, tokenizer, texts, EVERYWHERE, max_tokens=60)
    assert list(vectors) == EVERYWHERE
    for row, text in enumerate(texts):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]  # one sentence: no padding, no order
        with torch.no_grad():
            states = model.roberta(ids, output_hidden_states=True).hidden_states
            expected = {Pooling("cls", layer): states[layer][0, 0] for layer in (1, 2)}
            expected |= {Pooling("mean", layer): states[layer][0].mean(0) for layer in (0, 1, 2)}
            expected[Pooling("projection", 2)] = model.encode_sentences(ids)[0]
        for pooling, vector in expected.items():
            np.testing.assert_allclose(vectors[pooling][row], vector.numpy(), **CLOSE, err_msg=f"{pooling} of {text}")


def test_a_mean_without_special_tokens_is_of_the_pieces_alone(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    unknown = "the cat Ω sees"  # a piece that is not known is a piece
    pooling = Pooling("mean without special tokens", 2)
    found = embed_at_poolings(model, tokenizer, [*texts, unknown, " "], [pooling])[pooling]
    for vector, text in zip(found, [*texts, unknown]):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            states = model.roberta(ids)[0][0]
        np.testing.assert_allclose(vector, states[1:-1].mean(0).numpy(), **CLOSE)
    assert tokenizer.unk_token_id in tokenizer(unknown)["input_ids"][1:-1]
    assert (found[-1] == 0).all()  # of no piece at all


@pytest.mark.parametrize(("before", "after"), [(1, 0), (0, 1), (2, 1)])
def test_special_tokens_left_out_of_a_mean_are_as_many_as_the_tokenizer_adds(
    before: int, after: int, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    other, ends = copy.deepcopy(tokenizer), ["<s>"] * before + ["$A"] + ["</s>"] * after
    special = [(token, other.convert_tokens_to_ids(token)) for token in ("<s>", "</s>")]
    other.backend_tokenizer.post_processor = processors.TemplateProcessing(single=ends, special_tokens=special)
    pooling = Pooling("mean without special tokens", 2)
    exported = SentenceEncoder(model, pooling, special_tokens_around(other)).eval()
    for vector, text in zip(embed_sentences(model, other, texts, pooling), texts):
        ids = other(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            expected = model.roberta(ids)[0][0, before : ids.shape[1] - after].mean(0)
            in_graph = exported(ids, torch.ones_like(ids))[0]
        np.testing.assert_allclose(vector, (expected / expected.norm()).numpy(), **CLOSE)
        np.testing.assert_allclose(in_graph.numpy(), vector, **CLOSE)


def test_poolings_differ_and_so_do_sentences(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    vectors = embed_at_poolings(model, tokenizer, texts, EVERYWHERE)
    for pooling in EVERYWHERE:
        pairs = vectors[pooling][:, None] - vectors[pooling][None]
        distances = np.linalg.norm(pairs, axis=-1)[~np.eye(len(texts), dtype=bool)]
        assert distances.min() > 0.02, pooling  # the comparisons of this file would see a row out of place
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
    poolings = all_poolings([1, 2], last_layer=2, projection=False)
    whole = embed_at_poolings(model, tokenizer, texts, poolings)
    export_encoder(model, folder / "plain")
    model.save_pretrained(folder / "hictl")
    for encoder in (
        XLMRobertaModel.from_pretrained(folder / "plain"),
        HictlModel.from_pretrained(folder / "hictl"),
    ):
        alone = embed_at_poolings(encoder, tokenizer, texts, poolings)
        assert all((whole[pooling] == alone[pooling]).all() for pooling in poolings)


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
OTHERS: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 16},
    "bert": {},
    "camembert": {},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False},
    "distilbert": {"hidden_dim": 64},
    "electra": {"embedding_size": 16},
    "modernbert": {"global_attn_every_n_layers": 2, "local_attention": 8, "cls_token_id": 0, "sep_token_id": 2},
    "mpnet": {},
    "rembert": {"input_embedding_size": 16},
    "roberta": {},
    "xlm-roberta-xl": {},
}


def encoder_of_type(name: str, vocab_size: int) -> PreTrainedModel:
    """Of random weights, the same for the same arguments."""
    special = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    config = AutoConfig.for_model(
        name,
        **SIZES,
        **special,
        **OTHERS[name],
        vocab_size=vocab_size,
        max_position_embeddings=66,
        initializer_range=0.3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModel.from_config(config).eval()


@pytest.mark.parametrize("name", OTHERS)
def test_vectors_of_other_encoders_are_those_of_a_direct_call(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], name: str
) -> None:
    model, poolings = encoder_of_type(name, len(tokenizer)), all_poolings([0, 1, 2], last_layer=2, projection=False)
    vectors = embed_at_poolings(model, tokenizer, texts, poolings, max_tokens=60)
    assert np.abs(vectors[Pooling("mean", 2)][0] - vectors[Pooling("mean", 2)][1]).max() > 0.02
    for row, text in enumerate(texts):
        with torch.no_grad():
            called = model(tokenizer(text, return_tensors="pt")["input_ids"], output_hidden_states=True)
        for pooling in poolings:
            states = called.last_hidden_state if pooling.layer == 2 else called.hidden_states[pooling.layer]
            expected = states[0, 0] if pooling.mode == "cls" else states[0].mean(0)
            np.testing.assert_allclose(vectors[pooling][row], expected.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["distilbert", "modernbert"])
def test_other_encoders_are_read_in_half_precision_and_not_in_int8(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], name: str
) -> None:
    model = encoder_of_type(name, len(tokenizer))
    exact = embed_sentences(model, tokenizer, texts)
    np.testing.assert_array_equal(embed_sentences(model, tokenizer, texts, precision="fp32"), exact)
    found = embed_sentences(model, tokenizer, texts, precision="bf16")
    assert found.dtype == np.float32 and 0.99 < (found * exact).sum(1).mean() < 0.9999999
    assert model.dtype == torch.float32
    with pytest.raises(BadInput, match=f"precision is int8 and the model a {type(model).__name__}; allowed are"):
        embed_sentences(model, tokenizer, texts, precision="int8")


# --- what must not matter -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [1, 30, 100, 5000])
def test_the_size_of_batches_changes_no_vector(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str], max_tokens: int
) -> None:
    expected = embed_at_poolings(model, tokenizer, texts, EVERYWHERE, max_tokens=60)
    found = embed_at_poolings(model, tokenizer, texts, EVERYWHERE, max_tokens=max_tokens)
    for pooling in EVERYWHERE:
        np.testing.assert_allclose(found[pooling], expected[pooling], **CLOSE)


def test_vectors_come_back_in_the_order_of_the_sentences(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    expected = embed_at_poolings(model, tokenizer, texts, EVERYWHERE, max_tokens=60)
    order = np.random.default_rng(2).permutation(len(texts))
    found = embed_at_poolings(model, tokenizer, [texts[at] for at in order], EVERYWHERE, max_tokens=60)
    for pooling in EVERYWHERE:
        np.testing.assert_allclose(found[pooling], expected[pooling][order], **CLOSE)


def test_a_pooling_asked_for_twice_has_the_same_vectors(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    pooling = Pooling("mean", 1)
    once, twice = (
        embed_at_poolings(model, tokenizer, texts, [pooling] * times, max_tokens=60)[pooling] for times in (1, 2)
    )
    np.testing.assert_array_equal(twice, once)


def test_repeated_sentences_have_equal_vectors_each_in_its_place(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    a, b, c = texts[:3]
    pooling = Pooling("projection", 2)
    found = embed_at_poolings(model, tokenizer, [b, a, b, c, a], [pooling])[pooling]
    once = embed_at_poolings(model, tokenizer, [a, b, c], [pooling])[pooling]
    np.testing.assert_array_equal(found, once[[1, 0, 1, 2, 0]])


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_off_and_training_mode_comes_back(
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    training: bool,
) -> None:
    model = model_for_text(hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5).train(training)
    pooling = Pooling("mean", 2)
    first, again = (embed_at_poolings(model, tokenizer, texts, [pooling])[pooling] for _ in range(2))
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
    pooling = Pooling("mean", 2)
    found = embed_at_poolings(model, tokenizer, [text, "a dog"], [pooling], max_length=max_length)[pooling][0]
    with torch.no_grad():
        states = model.roberta(torch.tensor([[0, *ids[: kept - 2], 2]]))[0]
    np.testing.assert_allclose(found, states[0].mean(0).numpy(), **CLOSE)


def test_no_sentence_at_all_is_refused_in_words(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(ValueError, match="sentence"):
        embed_at_poolings(model, tokenizer, [], [Pooling("mean", 2)])


@pytest.mark.parametrize("kind", [tuple, iter, np.array, pd.Series, dict.fromkeys])
def test_texts_may_come_in_whatever_holds_them(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str], kind: Callable[[list[str]], Any]
) -> None:
    expected = embed_sentences(model, tokenizer, texts)
    np.testing.assert_array_equal(embed_sentences(model, tokenizer, kind(texts)), expected)


def test_a_model_of_another_library_is_refused_and_a_compiled_one_is_not(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    export_encoder(model, tmp_path)
    tokenizer.save_pretrained(tmp_path)
    sentence_transformer = pytest.importorskip("sentence_transformers").SentenceTransformer(str(tmp_path))
    for other in (sentence_transformer, nn.DataParallel(model)):
        with pytest.raises(BadInput, match=f"model is a {type(other).__name__}; allowed is a model of transformers"):
            embed_sentences(other, tokenizer, ["the house"])
    compiled = torch.compile(model, backend="eager")
    vectors = [embed_sentences(each, tokenizer, ["the house"]) for each in (model, compiled)]
    np.testing.assert_allclose(*vectors, **CLOSE)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("hello", "sentences is 'hello', of type str; allowed is a list of texts"),
        (None, "sentences is None, of type NoneType; allowed is a list of texts"),
        (b"hello", "sentences is b'hello', of type bytes; allowed is a list of texts"),
        ({"text": ["the cat"]}, r"sentences is {'text': \['the cat'\]}, of type dict; allowed is a list of texts"),
        (["the cat", None], "sentence 1 is None, of type NoneType; allowed are texts"),
        (pd.Series(["the cat", "a dog", float("nan")], dtype=object), "sentence 2 is nan, of type float"),
        ([["the cat", "a dog"]], r"sentence 0 is \['the cat', 'a dog'\], of type list"),
    ],
)
def test_what_is_no_list_of_texts_is_refused_in_words(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, given: Any, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        embed_sentences(model, tokenizer, given)


@pytest.mark.parametrize(
    "use",
    [
        lambda text, model, tokenizer: mine(text, ["das Haus"], model, tokenizer),
        lambda text, model, tokenizer: mine(["the house"], text, model, tokenizer),
        lambda text, model, tokenizer: Explainer(model, tokenizer, among=text),
        lambda text, model, tokenizer: train_tokenizer(text, 100),
        lambda text, model, tokenizer: choose_target_ids(text, tokenizer),
    ],
)
def test_the_characters_of_a_file_name_are_no_sentences(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, use: Callable[..., Any]
) -> None:
    """`hictl mine news.de news.en` takes files, these functions do not."""
    with pytest.raises(BadInput, match="sentences is 'news.de', of type str; allowed is a list of texts"):
        use("news.de", model, tokenizer)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_length": 2}, "max_length is 2; allowed is 3 or more"),
        ({"max_length": -1}, "max_length is -1; allowed is 3"),
        ({"max_tokens": 0}, "max_tokens is 0; allowed is 1 or more"),
    ],
)
def test_limits_that_leave_no_word_are_refused(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, limits: dict[str, int], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        embed_sentences(model, tokenizer, ["the cat"], **limits)


# --- the model's own pooling ----------------------------------------------------------------------------------------


def test_sentences_have_vectors_of_length_one_at_the_models_own_pooling(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    raw = embed_at_poolings(model, tokenizer, texts, [Pooling("cls", 2)])[Pooling("cls", 2)]
    found = embed_sentences(model, tokenizer, texts)
    assert np.abs(np.linalg.norm(raw, axis=1) - 1).min() > 0.1
    np.testing.assert_allclose(found, raw / np.linalg.norm(raw, axis=1, keepdims=True), **CLOSE)
    np.testing.assert_array_equal(embed_sentences(model, tokenizer, texts, normalize=False), raw)


@pytest.mark.parametrize(
    ("pooling", "message"),
    [
        (Pooling("mean", 3), "'mean' is 3; allowed is 0 to 2"),
        (Pooling("mean", -1), "'mean' is -1; allowed is 0 to 2"),
        (Pooling("projection", 1), "'projection' is 1; allowed is 2 to 2"),
        (Pooling("max", 2), "the pooling is 'max'; allowed are cls, mean"),
        ("mean", r"the pooling is 'mean'; allowed is one such as Pooling\(\"mean\", 2\)"),
    ],
)
def test_a_pooling_that_is_not_there_is_refused(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pooling: Any, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        embed_sentences(model, tokenizer, ["the cat"], pooling)


def test_an_encoder_without_the_projection_refuses_to_be_read_there(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    with pytest.raises(BadInput, match="the projection, which this model does not have"):
        embed_sentences(model.roberta, tokenizer, ["the cat"], Pooling("projection", 2))


@pytest.mark.parametrize("settings", [{"sentence_projection": False}, {"sentence_pooling": "mean"}])
def test_a_model_trained_without_a_projection_of_the_first_token_refuses_to_be_read_there(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, settings: dict[str, Any]
) -> None:
    with pytest.raises(BadInput, match="the projection, which this model does not have"):
        embed_sentences(model_for_text(**settings), tokenizer, ["the cat"], Pooling("projection", 2))


@pytest.mark.parametrize(("layer", "computed"), [(0, [0, 0]), (1, [1, 0]), (2, [1, 1])])
def test_layers_above_the_one_read_are_not_computed(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, layer: int, computed: list[int]
) -> None:
    calls = [0, 0]

    def count(number: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            calls[number] += 1

        return hook

    hooks = [each.register_forward_hook(count(at)) for at, each in enumerate(model.roberta.encoder.layer)]
    embed_sentences(model, tokenizer, ["the cat", "a dog"], Pooling("mean", layer))
    for hook in hooks:
        hook.remove()
    assert calls == computed


# --- number formats -------------------------------------------------------------------------------------------------


def test_a_layer_in_int8_worked_by_hand() -> None:
    """Scales: of the outputs 2 / 127 and 4 / 127, of the tokens 1 / 127 and 10 / 127."""
    linear = nn.Linear(2, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[2.0, 1.0], [-4.0, 0.0]]))
        linear.bias.copy_(torch.tensor([0.5, 0.0]))
    # 2 -> 127, 1 -> 63.5 -> 64; -4 -> -127, 0 -> 0. Token (1, 0) -> (127, 0); (5, -10) -> (63.5 -> 64, -127)
    quantised = QuantizedLinear(linear)
    assert quantised.quantized.tolist() == [[127, 64], [-127, 0]] and quantised.quantized.dtype == torch.int8
    found = quantised(torch.tensor([[[1.0, 0.0]], [[5.0, -10.0]], [[0.0, 0.0]]]))
    second = [(127 * 64 - 64 * 127) * 2 / 127 * 10 / 127 + 0.5, -127 * 64 * 4 / 127 * 10 / 127]
    torch.testing.assert_close(found, torch.tensor([[[2.5, -4.0]], [second], [[0.5, 0.0]]]))


def test_a_layer_in_int8_is_near_the_one_it_was_made_of_whatever_stands_beside() -> None:
    torch.manual_seed(0)
    linear, states = nn.Linear(64, 48), torch.randn(5, 7, 64)
    quantised = QuantizedLinear(linear)
    expected, found = linear(states), quantised(states)
    assert (expected - found).norm() < 0.015 * expected.norm()
    assert quantised(torch.cat([states, 1000 * states]))[:5].equal(found), "a large token changes no other"
    assert quantised(states[:1, :1]).equal(found[:1, :1])


@pytest.mark.parametrize(("precision", "least", "most"), [("bf16", 0.9995, 0.9999999), ("int8", 0.99, 0.999999)])
def test_other_number_formats_give_nearly_the_same_vectors_and_leave_the_model_as_it_is(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    precision: Any,
    least: float,
    most: float,
) -> None:
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    for pooling in (Pooling("mean", 2), Pooling("cls", 1), Pooling("projection", 2)):
        exact = embed_sentences(model, tokenizer, texts, pooling)
        found = embed_sentences(model, tokenizer, texts, pooling, precision=precision)
        assert found.dtype == np.float32 and least < (found * exact).sum(1).mean() < most
    assert all(weight.equal(before[name]) for name, weight in model.state_dict().items())
    assert model.state_dict().keys() == before.keys()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_an_encoder_loaded_in_a_number_format_gives_the_vectors_of_one_converted_later(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str], tmp_path: Path, precision: Any
) -> None:
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_encoder(tmp_path, precision)
    expected = embed_sentences(model, tokenizer, texts, precision=precision)
    np.testing.assert_array_equal(embed_sentences(*loaded, texts), expected)
    np.testing.assert_array_equal(embed_sentences(*loaded, texts, precision=precision), expected)
    if precision == "int8":
        with pytest.raises(BadInput, match="precision is fp32, and the model is in int8; load it anew"):
            embed_sentences(*loaded, texts, precision="fp32")
        loaded[0].save_pretrained(tmp_path / "int8")  # integers without their scales would be other weights
        with pytest.raises(BadInput, match=r"has no weights for 12 parts, such as roberta\.encoder\.layer\.0\."):
            load_encoder(tmp_path / "int8")


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_weights_that_torchao_has_quantised_are_left_as_they_are(
    toy_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, precision: Any
) -> None:
    torchao = pytest.importorskip("torchao.quantization")
    model = toy_model(vocab_size=len(tokenizer))
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig(version=2))
    assert embed_sentences(model, tokenizer, ["the cat"], precision="fp32").any()
    with pytest.raises(BadInput, match=f"precision is {precision}, and weights are quantised as Int8Tensor; allowed"):
        embed_sentences(model, tokenizer, ["the cat"], precision=precision)


def test_the_vector_of_a_sentence_in_int8_does_not_depend_on_its_batch(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    together = embed_sentences(model, tokenizer, texts, Pooling("mean", 2), precision="int8")
    alone = [embed_sentences(model, tokenizer, [text], Pooling("mean", 2), precision="int8")[0] for text in texts]
    assert (together * np.stack(alone)).sum(1).min() > 0.9999  # but for rounding that falls to the other side


def test_an_unknown_number_format_is_refused(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(BadInput, match="precision is 'fp16'; allowed are fp32, bf16, int8"):
        embed_sentences(model, tokenizer, ["the cat"], precision="fp16")  # type: ignore[arg-type]


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_layers_in_half_precision_mask_padding_in_their_own_numbers(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str], implementation: str
) -> None:
    model = copy.deepcopy(model)
    model.set_attn_implementation(implementation)
    exact = embed_sentences(model, tokenizer, texts, Pooling("mean", 2))
    found = embed_sentences(model, tokenizer, texts, Pooling("mean", 2), precision="bf16")
    assert 0.9995 < (found * exact).sum(1).mean() < 0.9999999


# --- loading --------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Path:
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_checkpoints_and_plain_encoders_load_with_what_they_have(
    model: PreTrainedModel,
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    assert type(load_encoder(folder)[0]) is HictlForPreTraining
    plain = tmp_path_factory.mktemp("plain")
    export_encoder(model, plain)
    tokenizer.save_pretrained(plain)
    assert type(load_encoder(plain)[0]) is XLMRobertaModel
    model_for_text(HictlForMaskedLM).save_pretrained(plain)
    loaded = load_encoder(plain)[0]
    assert type(loaded) is HictlModel and not loaded.training


def test_the_projection_of_a_plain_encoder_is_in_its_pooler(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, texts: list[str], tmp_path: Path
) -> None:
    model = model_for_text(initializer_range=0.3, embedding_pooling="projection")
    export_encoder(model, tmp_path)
    tokenizer.save_pretrained(tmp_path)
    expected = embed_sentences(model, tokenizer, texts)
    np.testing.assert_array_equal(embed_sentences(*load_encoder(tmp_path), texts), expected)
    np.testing.assert_array_equal(embed_sentences(model, tokenizer, texts, Pooling("projection", 2)), expected)


@pytest.mark.parametrize("lost", ["of another size", "by another head"])
def test_random_weights_are_never_taken_for_a_projection(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, tmp_path: Path, lost: str
) -> None:
    size = 8 if lost == "of another size" else None
    export_encoder(model_for_text(embedding_pooling="projection", projection_size=size), tmp_path)
    if lost == "by another head":
        XLMRobertaForSequenceClassification.from_pretrained(tmp_path).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    encoder, _ = load_encoder(tmp_path)
    assert own_pooling(encoder.config).mode == "projection"
    with pytest.raises(BadInput, match="the projection, which this model does not have"):
        embed_sentences(encoder, tokenizer, ["the cat"])
    assert embed_sentences(encoder, tokenizer, ["the cat"], Pooling("cls", 2)).shape == (1, 32)


def test_the_pooler_of_an_encoder_of_others_is_no_projection(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, transformers_warnings: pytest.LogCaptureFixture
) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    encoder = XLMRobertaModel(XLMRobertaConfig(vocab_size=200, **sizes), add_pooling_layer=False)
    encoder.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_encoder(tmp_path)
    assert not transformers_warnings.messages, "a missing pooler is nothing to be told"
    assert loaded[0].pooler is None, "its random weights are nothing to read"
    with pytest.raises(BadInput, match="the projection, which this model does not have"):
        embed_sentences(*loaded, ["the cat"], Pooling("projection", 1))


def change(folder: Path, file: str = "config.json", **values: Any) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), "utf-8")


def test_pickled_weights_are_refused_and_not_run(folder: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (folder / "sprung",)

    (folder / "model.safetensors").unlink()
    torch.save({"trap": Trap()}, folder / "pytorch_model.bin")
    with pytest.raises(BadInput, match="has no weights in safetensors, and pickles can hold code"):
        load_encoder(folder)
    assert not (folder / "sprung").exists()


def test_the_end_of_a_long_sentence_is_cut_whatever_side_the_tokenizer_names(folder: Path) -> None:
    sentences = ["a dog " + "the cat sees a house " * 40]
    wanted = embed_sentences(*load_encoder(folder), sentences)
    change(folder, "tokenizer_config.json", padding_side="left", truncation_side="left")
    np.testing.assert_array_equal(embed_sentences(*load_encoder(folder), sentences), wanted)


def test_code_beside_the_weights_is_not_run(folder: Path) -> None:
    (folder / "evil.py").write_text(f"open({str(folder / 'sprung')!r}, 'w')")
    change(folder, auto_map={"AutoConfig": "evil.Config", "AutoModel": "evil.Model"})
    load_encoder(folder)
    assert not (folder / "sprung").exists()


def test_layers_without_weights_are_refused(folder: Path) -> None:
    change(folder, num_hidden_layers=3)
    with pytest.raises(BadInput, match=r"has no weights for 16 parts, such as roberta\.encoder\.layer\.2\."):
        load_encoder(folder)


@pytest.mark.parametrize("family", ["xlm-roberta-xl", "deberta-v2"])
def test_a_last_norm_without_weights_is_refused(
    family: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    model = AutoModel.from_config(AutoConfig.for_model(family, **{**SHAPES[family], "vocab_size": len(tokenizer)}))
    kept = {name: weight for name, weight in model.state_dict().items() if not name.startswith("encoder.LayerNorm.")}
    model.save_pretrained(tmp_path, state_dict=kept)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(BadInput, match=r"has no weights for 2 parts, such as encoder\.LayerNorm\.bias"):
        load_encoder(tmp_path)


def test_a_configuration_that_cannot_be_read_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no config.json that names a model_type; allowed are"):
        check_model_type(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadInput, match="cannot be read .*config.json.*Check the name, and the connection to the Hub"):
        check_model_type(str(tmp_path))


def test_another_kind_of_model_is_refused(folder: Path) -> None:
    change(folder, model_type="t5")
    with pytest.raises(
        BadInput, match="is a model of type 't5'; allowed are hictl, xlm-roberta .*modernbert .*eurobert"
    ):
        load_encoder(folder)
    shutil.rmtree(folder)
    with pytest.raises(BadInput, match="cannot be read"):
        load_encoder(folder)


@pytest.mark.parametrize("family", SHAPES)
def test_the_last_layer_is_the_same_read_alone_and_leaves_a_model_that_can_be_pickled(
    family: str, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    """`datasets.map` makes its fingerprints by pickling."""
    config = AutoConfig.for_model(family, **SHAPES[family] | {"vocab_size": len(tokenizer), "pad_token_id": 1})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModel.from_config(config).eval()
    last, inner = Pooling("mean", config.num_hidden_layers), Pooling("mean", 1)
    found = embed_at_poolings(pickle.loads(pickle.dumps(model)), tokenizer, texts, [last, inner])
    alone = embed_at_poolings(model, tokenizer, texts, [last])
    pickle.dumps(model)
    np.testing.assert_array_equal(alone[last], found[last])
    # as a model that another process made: no `__init__` of its class has run here
    model.__class__ = type(f"Unpickled {family}", (type(model),), {})
    np.testing.assert_array_equal(embed_at_poolings(model, tokenizer, texts, [inner])[inner], found[inner])


@pytest.mark.parametrize("kind", [HictlModel, HictlForPreTraining])
def test_the_layers_of_a_model_of_peft_have_its_adapter(
    kind: type[PreTrainedModel],
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
) -> None:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False)
    adapted = peft.get_peft_model(model_for_text(kind, initializer_range=0.2), settings).eval()
    plain, merged = model_for_text(kind, initializer_range=0.2), copy.deepcopy(adapted).merge_and_unload()
    for pooling in (Pooling("mean", 1), Pooling("cls", 2)):
        found, before, alike = (embed_sentences(model, tokenizer, texts, pooling) for model in (adapted, plain, merged))
        np.testing.assert_allclose(found, alike, atol=1e-5)
        assert np.abs(found - before).max() > 1e-2
    with pytest.raises(ValueError, match="query has an adapter that is not merged"):
        embed_sentences(adapted, tokenizer, texts, precision="int8")


@pytest.mark.parametrize(
    ("family", "int8"), [("xlm-roberta", "are offloaded; load it in that"), ("modernbert", "allowed are XLMRoberta")]
)
def test_offloaded_weights_give_the_same_vectors(
    family: str, int8: str, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> None:
    config = CONFIGS[family](**{**SHAPES[family], "vocab_size": len(tokenizer), "initializer_range": 0.2})
    model = new_model(config).eval()
    expected = embed_sentences(model, tokenizer, texts)
    offloaded = accelerate.cpu_offload(model)
    assert offloaded.device.type == "meta"
    np.testing.assert_array_equal(embed_sentences(offloaded, tokenizer, texts), expected)
    with pytest.raises(BadInput, match=int8):
        embed_sentences(offloaded, tokenizer, texts, precision="int8")
    with pytest.raises(BadInput, match='on the device "meta", without weights; load it by'):
        embed_sentences(new_model(config).to("meta"), tokenizer, texts)
