"""Mining: pairs from vectors and sentences, given pairs scored, near-duplicates; each against a slow version."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf.embedding.encoder import embed_sentences
from hictl_hf.embedding.pooling import Pooling
from hictl_hf.errors import BadInput
from hictl_hf.processes import Processes
from hictl_hf.retrieval import mining
from hictl_hf.retrieval import nearest_neighbours as neighbours
from hictl_hf.retrieval.bitext import Margin, UnitRows, mine_bitext
from hictl_hf.retrieval.mining import (
    MiningConfig,
    describe,
    find_distinct,
    mine,
    mine_vectors,
    run,
    score_pairs,
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


def test_tensors_are_mined_as_arrays_are() -> None:
    x, y = translations()
    tensors = torch.from_numpy(x), torch.from_numpy(y)
    for function in (mine_vectors, mine_bitext):
        for found, expected in zip(function(*tensors), function(x, y), strict=True):
            np.testing.assert_array_equal(found, expected)
    pairs = np.array([[0, 1], [2, 2]])
    np.testing.assert_array_equal(score_pairs(*tensors, pairs), score_pairs(x, y, pairs))
    np.testing.assert_array_equal(find_distinct(tensors[0], 0.5), find_distinct(x, 0.5))
    assert score_pairs(x, y, pairs[:0]).shape == (0,)


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


def test_ratios_to_a_mean_that_is_not_positive_are_told(caplog: pytest.LogCaptureFixture) -> None:
    x, y = np.array([[1.0, 0], [-1, 0.1]]), np.array([[1.0, 0.1], [-1, -0.3]])  # means 0.019, -0.028 and 0.007, -0.017
    margins: list[tuple[Margin, int]] = [("distance", 0), ("ratio", 2)]
    for margin, told in margins:
        mine_vectors(x, y, MiningConfig(margin=margin))
        score_pairs(x, y, np.array([[0, 0]]), MiningConfig(margin=margin))
        assert sum("2 of 4 sentences have a mean cosine of 0 or less" in each for each in caplog.messages) == told
    mine_vectors(*np.eye(2)[:, None], MiningConfig(margin="ratio"))
    assert caplog.messages[-1].startswith("2 of 2 sentences have a mean cosine of 0 or less")


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
    assert find_distinct(np.eye(3), 0.0).tolist() == [0, 1, 2], "above, not at the number"


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
        strips.append(int(search.done.sum()))
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
    kept.write_bytes(kept.read_bytes()[:99])
    with pytest.raises(BadInput, match=rf"kept.npz: cannot be read .*; allowed .* Remove {tmp_path} to begin anew"):
        mine_vectors(x, y, kept=kept)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 3)])
def test_processes_share_the_strips_of_a_search_and_any_number_continues(
    before: int, after: int, shared_by: Callable[..., list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = map(UnitRows, translations())
    plan = neighbours.Plan(64, 64, (32, 64))
    expected, kept = Search(x, y, 4, plan), tmp_path / "kept.npz"
    run(expected, None)
    monkeypatch.setattr(mining, "SAVED_EVERY", 0)
    compared: list[tuple[int, int]] = []
    compare, stop = Search._compare, 5

    def counting(search: Search, x: Any, y: Any, i: int) -> None:
        if len(compared) >= stop:
            raise KeyboardInterrupt
        compare(search, x, y, i)
        compared.append((x.start + i, y.start))

    def share(processes: Processes) -> Search:
        search = Search(x, y, 4, plan)
        run(search, kept, processes)
        return search

    monkeypatch.setattr(Search, "_compare", counting)
    with pytest.raises(KeyboardInterrupt):
        shared_by(before, share)
    first, stop = len(compared), 1000
    found = shared_by(after, share)[0]
    assert len(set(compared)) == len(found.done) == 28 and len(compared) - 28 <= before, "done once, but for the last"
    assert 5 <= first < 28 and found.done.all() and sorted(path.name for path in tmp_path.iterdir()) == ["kept.npz"]
    for one, other in zip(found.neighbours(), expected.neighbours()):
        np.testing.assert_array_equal(one.rows, other.rows)
        np.testing.assert_array_equal(one.similarities, other.similarities)


def test_a_merge_that_was_killed_counts_no_strip_twice(tmp_path: Path) -> None:
    x, y = map(UnitRows, translations())
    plan = neighbours.Plan(64, 64, (32, 64))
    parts = [Search(x, y, 4, plan) for _ in range(3)]
    for part, some in zip(parts, ({0, 5}, {1, 2, 3}, {2, 4})):
        for _ in part.strips(some):
            pass
    mining.keep(parts[0].save(), tmp_path / "kept.npz")
    mining.keep(parts[1].save(), tmp_path / "kept-1.npz")
    left = mining.load_all(Search(x, y, 4, plan), tmp_path / "kept.npz")
    assert left == [4, *range(6, 28)] and [path.name for path in tmp_path.iterdir()] == ["kept.npz"]
    mining.keep(parts[1].save(), tmp_path / "kept-1.npz")  # as if it had not been removed
    again = Search(x, y, 4, plan)
    assert mining.load_all(again, tmp_path / "kept.npz") == left
    for _ in again.strips():
        pass
    assert all((one.rows == other.rows).all() for one, other in zip(again.neighbours(), search_both(x, y, 4)))
    with pytest.raises(ValueError, match="have strips in common"):
        parts[1].load(parts[2].save())


def test_searches_saved_before_0_11_are_loaded() -> None:
    x, y = map(UnitRows, translations())
    search, again = (Search(x, y, 4, neighbours.Plan(64, 64, (32, 64))) for _ in range(2))
    for _ in search.strips(range(6)):
        pass
    again.load({**search.save(), "done": np.array(6)})
    assert again.done.tolist() == search.done.tolist() == [True] * 6 + [False] * 22


def test_sentences_are_embedded_and_mined(
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    sentences: dict[str, list[str]],
) -> None:
    model = model_for_text(initializer_range=0.3)
    x, y = sentences["en"][:12], sentences["en"][6:18]
    forward = MiningConfig(margin="absolute", threshold=0.9999, direction="forward")
    found = mine([*x, x[0]], y, model, tokenizer, forward)
    assert {(pair.x, pair.y) for pair in found if pair.score > 0.9999} >= {(text, text) for text in x[6:]}
    assert len({pair.x for pair in found}) == len(found)
    cosines = [float(a @ b) for a, b in (embed_sentences(model, tokenizer, [p.x, p.y]) for p in found)]
    assert [pair.score for pair in found] == pytest.approx(cosines, abs=1e-5)


def test_sentences_are_embedded_as_asked_for(
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    sentences: dict[str, list[str]],
) -> None:
    model, (x, y) = model_for_text(initializer_range=0.3), (sentences["en"][0], sentences["en"][1])
    asked: dict[str, Any] = {"pooling": Pooling("mean", 1), "prompt": "a b: ", "max_length": 16}

    def score(**reading: Any) -> float:
        ((found, _, _),) = mine([x], [y], model, tokenizer, MiningConfig(margin="absolute"), **reading)
        a, b = embed_sentences(model, tokenizer, [x, y], **reading)
        assert found == pytest.approx(float(a @ b), abs=1e-5)
        return found

    others = [score(**{key: value for key, value in asked.items() if key != name}) for name in asked]
    assert all(abs(score(**asked) - each) > 1e-3 for each in others), (score(**asked), others)


def test_what_a_search_takes_is_said_in_words() -> None:
    million = np.broadcast_to(np.float32(0), (1_000_000, 384))
    words = describe(million, million, MiningConfig(max_memory=10**9))
    assert words.startswith("exact search of 1,000,000 x 1,000,000 vectors of 384 numbers: 1,000,000,000,000 compari")
    assert "at most 999.9 MB in addition to the vectors" in words
    assert "500,000,000,000 comparisons" in describe(million, million, MiningConfig(), only_earlier=True)
    pytest.importorskip("faiss")
    words = describe(million, million[:2000], MiningConfig(index="IVF1024,PQ32"))
    assert words.startswith(
        "search of 1,000,000 x 2,000 vectors of 384 numbers in FAISS's index IVF1024,PQ32, in shards of"
    )


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ({"margin": "cosine"}, "'cosine' is no way to mine; allowed are ratio, distance, absolute"),
        ({"direction": "both"}, "'both' is no way to mine"),
        ({"index_parameters": "nprobe=4"}, "index_parameters is given without an index"),
        ({"neighbours": 0}, "neighbours is 0; allowed is 1 or more"),
        ({"threshold": np.nan}, "threshold is nan; allowed are numbers"),
    ],
)
def test_unknown_settings_are_refused(way: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MiningConfig(**way)
