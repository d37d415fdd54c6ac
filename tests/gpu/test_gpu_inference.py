"""Beam search, embedding and mining on a device find what slow versions find on the CPU."""

from collections.abc import Callable

import numpy as np
import pytest
import test_beam_search
import torch
from devices import everywhere
from test_beam_search import assert_same, batch_of, exactly, generated
from test_bitext import noisy_translations, slowly_mined
from test_nearest_neighbours import slowly_searched
from transformers import PreTrainedModel, PreTrainedTokenizerBase, XLMRobertaModel

from hictl_hf.embedding.encoder import embed_sentences
from hictl_hf.embedding.pooling import Pooling
from hictl_hf.models.modeling_hictl_translation import HictlForConditionalGeneration
from hictl_hf.retrieval.mining import MiningConfig, mine_vectors
from hictl_hf.retrieval.nearest_neighbours import search_both
from hictl_hf.translation.beam_search import search

sharp_model = test_beam_search.sharp_model
MakeModel = Callable[..., PreTrainedModel]


@everywhere
@pytest.mark.parametrize("cut", [False, True], ids=["all words", "some words"])
def test_hypotheses_are_those_of_generate(
    device: str, cut: bool, sharp_model: Callable[..., HictlForConditionalGeneration]
) -> None:
    different = set()
    for seed in range(3):
        model = sharp_model(seed, cut)
        ids, mask = batch_of([9, 3, 12, 5, 7, 4], seed)
        starts = model.start_ids_of(["de", "fr", "fr", "de", "de", "fr"])
        settings = exactly(num_beams=4, best=4, length_penalty=0.6)
        expected = generated(model, ids, mask, starts, settings)
        found = search(model.to(device), ids.to(device), mask.to(device), starts.to(device), settings)
        assert_same(found, expected)
        different |= {tuple(each.tokens) for row in found for each in row}
    assert len(different) > 20


@everywhere
@pytest.mark.parametrize(("precision", "error"), [("fp32", 1e-5), ("bf16", 0.05)])
@pytest.mark.parametrize("pooling", [Pooling("cls", 2), Pooling("mean", 1), Pooling("projection", 2)], ids=str)
def test_vectors_are_those_of_each_sentence_alone_in_fp64(
    device: str, pooling: Pooling, precision: str, error: float, model_for_text: MakeModel,
    tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]],
) -> None:  # fmt: skip
    model = model_for_text(initializer_range=0.2).eval()
    texts = [sentences[name][at] for at in (0, 17, 40) for name in ("en", "zh", "sw", "de")]
    stock = XLMRobertaModel(model.roberta.config, add_pooling_layer=False).double().eval()
    stock.load_state_dict(model.roberta.state_dict())
    expected = []
    with torch.no_grad():
        for text in texts:
            states = stock(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
            state = states[pooling.layer][0].mean(0) if pooling.mode == "mean" else states[pooling.layer][0, 0]
            state = model.projection.weight.double() @ state if pooling.mode == "projection" else state
            expected.append((state / state.norm()).numpy())
    found = embed_sentences(model.to(device), tokenizer, texts, pooling, precision=precision, max_tokens=64)
    assert np.linalg.norm(found - np.stack(expected), axis=1).max() < error
    assert np.linalg.norm(np.diff(expected, axis=0), axis=1).min() > 0.1


@everywhere
def test_mined_pairs_are_those_of_a_slow_version(device: str) -> None:
    for seed in range(3):
        x, y = noisy_translations(seed, 60)
        y = y[np.random.default_rng(seed).permutation(60)[:50]]
        pairs, scores = mine_vectors(x, y, MiningConfig(threshold=1.0, device=device))
        expected = slowly_mined(x, y, "ratio", "max", 4, 1.0)
        assert [(i, j) for i, j, _ in expected] == [tuple(pair) for pair in pairs.tolist()] and len(expected) > 20
        assert scores == pytest.approx([score for *_, score in expected], abs=1e-5)


@everywhere
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_neighbours_are_those_of_all_products(device: str, precision: str) -> None:
    """More rows than a tile has, all of them near each other, where bf16 alone would find others."""
    random = np.random.default_rng(0)
    x, y = (random.normal(size=24) + 0.05 * random.normal(size=(rows, 24)) for rows in (900, 1500))
    x, y = x.astype(np.float32), y.astype(np.float32)
    for found, expected in zip(search_both(x, y, 4, precision=precision, device=device), slowly_searched(x, y, 4)):
        np.testing.assert_allclose(found.similarities, expected.similarities, rtol=1e-6)
        assert (found.rows == expected.rows).mean() > 0.999
