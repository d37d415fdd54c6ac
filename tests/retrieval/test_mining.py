"""Mining: pairs from vectors and sentences, given pairs scored, near-duplicates; each against a slow version."""

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf.embedding.encoder import embed_sentences
from hictl_hf.errors import BadInput
from hictl_hf.retrieval import mining
from hictl_hf.retrieval import nearest_neighbours as neighbours
from hictl_hf.retrieval.bitext import UnitRows, mine_bitext
from hictl_hf.retrieval.mining import (
    MiningConfig,
    describe,
    find_distinct,
    mine,
    mine_vectors,
    score_pairs,
    search_approximately,
)
from hictl_hf.retrieval.nearest_neighbours import Search, Vectors, plan_search, search_both


def translations(seed: int = 0, sentences: int = 200, noise: float = 0.5) -> tuple[Vectors, Vectors]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(sentences, 16)).astype(np.float32)
    return x, (x + noise * random.normal(size=x.shape)).astype(np.float32)


def test_pairs_come_with_the_best_first_and_above_the_threshold() -> None:
    x, y = translations()
    pairs, scores = mine_vectors(x, y[::-1])
    expected, expected_scores = mine_bitext(x, y[::-1], threshold=-np.inf)
    assert {tuple(pair) for pair in pairs.tolist()} == {tuple(pair) for pair in expected.tolist()}
    np.testing.assert_array_equal(np.sort(scores)[::-1], scores)
    np.testing.assert_array_equal(scores, np.sort(expected_scores)[::-1])
    assert (pairs.sum(1) == 199).mean() > 0.9
    threshold = float(np.median(scores))
    some, some_scores = mine_vectors(x, y[::-1], MiningConfig(threshold=threshold))
    assert 0 < len(some) < len(pairs) and (some_scores > threshold).all()
    np.testing.assert_array_equal(some, pairs[: len(some)])


def test_no_sentence_is_taken_twice_where_that_is_asked_for() -> None:
    x, y = translations(noise=1.5)
    many, many_scores = mine_vectors(x, y, MiningConfig(direction="forward"))
    assert (np.diff(many_scores) <= 0).all() and (np.diff(many[:, 0]) < 0).any()
    one, scores = mine_vectors(x, y, MiningConfig(direction="forward", one_to_one=True))
    assert len(many) == 200 > len(set(many[:, 1].tolist()))
    assert len(one) == len(set(one[:, 0].tolist())) == len(set(one[:, 1].tolist())) == len(set(many[:, 1].tolist()))
    assert (np.diff(scores) <= 0).all()


def test_given_pairs_worked_by_hand() -> None:
    # Cosines     y0 = (1, 0)  y1 = (4, 3)   mean of both      x0-y1: 0.8 / ((0.9 + 0.7) / 2) = 1
    # x0 = (2, 0)     1          0.8          0.9              x1-y1: 0.6 / ((0.3 + 0.7) / 2) = 1.2
    # x1 = (0, 1)     0          0.6          0.3
    # mean of y       0.5        0.7
    x, y, pairs = np.array([[2.0, 0], [0, 1]]), np.array([[1.0, 0], [4, 3]]), np.array([[0, 1], [1, 1], [0, 1]])
    assert score_pairs(x, y, pairs) == pytest.approx([1, 1.2, 1])
    assert score_pairs(x, y, pairs, MiningConfig(margin="distance")) == pytest.approx([0, 0.1, 0])
    assert score_pairs(x, y, pairs, MiningConfig(margin="absolute")) == pytest.approx([0.8, 0.6, 0.8])


@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
def test_given_pairs_score_what_mined_ones_do(margin: Any) -> None:
    x, y = translations()
    settings = MiningConfig(margin=margin)
    pairs, scores = mine_vectors(x, y, settings)
    assert score_pairs(x, y, pairs, settings) == pytest.approx(scores, rel=1e-6, abs=1e-6)


def test_a_row_near_an_earlier_one_is_no_distinct_one() -> None:
    x = translations()[0]
    x[50], x[120], x[121] = x[3] * 2, x[3] + 0.01, -x[3]
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosines = np.tril(unit @ unit.T, -1)
    for above in (0.6, 0.95):
        expected = [row for row in range(200) if row == 0 or cosines[row, :row].max() <= above]
        assert find_distinct(x, above).tolist() == expected
    assert len(expected) == 198 and find_distinct(x, 0.6).tolist() != expected
    assert find_distinct(x[:1], 0.5).tolist() == [0]


def test_a_kept_search_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = translations()
    monkeypatch.setattr(mining, "SAVED_EVERY", 0)
    monkeypatch.setattr(
        mining, "plan_search", lambda *sizes: neighbours.Plan(64, 64, (32, 64), plan_search(*sizes).memory)
    )
    expected, kept = mine_vectors(x, y), tmp_path / "kept.npz"
    strips: list[int] = []
    compare = Search._compare

    def stopping(search: Search, *shards: Any) -> None:
        strips.append(search.done)
        if len(strips) == 6:
            raise KeyboardInterrupt
        compare(search, *shards)

    monkeypatch.setattr(Search, "_compare", stopping)
    with pytest.raises(KeyboardInterrupt):
        mine_vectors(x, y, kept=kept)
    found = mine_vectors(x, y, kept=kept)
    assert strips[:6] == [0, 1, 2, 3, 4, 5] and strips[6:] == list(range(5, 28))  # 7 strips with 4 shards
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.npz"]


def test_sentences_are_embedded_and_mined(
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    sentences: dict[str, list[str]],
) -> None:
    model = model_for_text(initializer_range=0.3)
    x, y = sentences["en"][:12], sentences["en"][6:18]
    found = mine([*x, x[0]], y, model, tokenizer, MiningConfig(margin="absolute", threshold=0.9999))
    assert {(pair.x, pair.y) for pair in found if pair.score > 0.9999} >= {(text, text) for text in x[6:]}
    assert len({pair.x for pair in found}) == len(found)
    cosines = [float(a @ b) for a, b in (embed_sentences(model, tokenizer, [p.x, p.y]) for p in found)]
    assert [pair.score for pair in found] == pytest.approx(cosines, abs=1e-5)


@pytest.mark.parametrize("way", ["ivf", "hnsw"])
def test_approximate_search_finds_nearly_all(way: Any) -> None:
    faiss = pytest.importorskip("faiss")
    faiss.omp_set_num_threads(1)
    x, y = translations(sentences=5000)
    sides = UnitRows(x), UnitRows(y)
    for exact, both in zip(search_both(*sides, 4), (sides, sides[::-1])):
        found = search_approximately(*both, 4, way)
        assert (exact.rows[:, 0] == found.rows[:, 0]).mean() > 0.9
        assert np.mean([len({*some} & {*others}) / 4 for some, others in zip(exact.rows, found.rows)]) > 0.7
        assert (found.similarities[:, 1:] <= found.similarities[:, :-1]).all()
    mined, exactly = (mine_vectors(x, y, MiningConfig(approximate=how))[0].tolist() for how in (way, None))
    assert len({*map(tuple, mined)} & {*map(tuple, exactly)}) > 0.9 * len(exactly)
    few = search_approximately(UnitRows(x[:3]), UnitRows(y[:2]), 4, way)  # fewer than asked for
    assert few.rows.shape == (3, 2) and (few.rows >= 0).all()


def test_what_is_missing_for_approximate_search_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "faiss":
            raise ImportError(name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    x, y = translations()
    with pytest.raises(BadInput, match=r"pip install 'hictl_hf\[mining\]'"):
        mine_vectors(x, y, MiningConfig(approximate="hnsw"))
    assert len(mine_vectors(x, y)[0])


def test_what_a_search_takes_is_said_in_words() -> None:
    million = np.broadcast_to(np.float32(0), (1_000_000, 384))
    words = describe(million, million, MiningConfig(max_memory=10**9))
    assert words.startswith("exact search of 1,000,000 x 1,000,000 vectors of 384 numbers: 1,000,000,000,000 compari")
    assert "at most 999.9 MB in addition to the vectors" in words
    assert "500,000,000,000 comparisons" in describe(million, million, MiningConfig(), only_earlier=True)
    assert describe(million, million[:5], MiningConfig(approximate="ivf")).endswith("1,000,000 x 5 vectors: 1.54 GB")
    assert "1.79 GB" in describe(million, million, MiningConfig(approximate="hnsw"))


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ({"margin": "cosine"}, "'cosine' is no way to mine; allowed are ratio, distance, absolute"),
        ({"direction": "both"}, "'both' is no way to mine"),
        ({"approximate": "flat"}, "'flat' is no way to search; allowed are ivf, hnsw"),
        ({"neighbours": 0}, "neighbours is 0; allowed is 1 or more"),
    ],
)
def test_unknown_settings_are_refused(way: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MiningConfig(**way)
