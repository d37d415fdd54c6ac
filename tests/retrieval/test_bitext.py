"""Retrieval, mining and thresholds: worked by hand, against slow versions, and as XTREME's own code has it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hictl_hf.retrieval.accuracy import pair_f1
from hictl_hf.retrieval.bitext import (
    Bitext,
    Direction,
    Margin,
    best_threshold,
    extract_pairs,
    mine_bitext,
    mine_id_pairs,
    nearest,
    pair_neighbours,
    retrieval_accuracy,
    scores_by_ids,
)
from hictl_hf.retrieval.nearest_neighbours import Neighbours, Vectors


def test_three_sentences_worked_by_hand() -> None:
    # Cosines, x in rows; the largest of a row or a column must be on the diagonal.
    #          y0 = (1, 0)  y1 = (1, 1)  y2 = (0, 2)
    # (2, 0)       1           0.71          0        row: y0 right        column y0: x0 right
    # (1, 3)       0.32        0.89          0.95     row: y2, wrong       column y1: x1 right
    # (0, 1)       0           0.71          1        row: y2 right        column y2: x2 right
    x, y = np.array([[2.0, 0], [1, 3], [0, 1]]), np.array([[1.0, 0], [1, 1], [0, 2]])
    assert retrieval_accuracy(x, y) == pytest.approx((200 / 3, 100))
    assert retrieval_accuracy(y, x) == pytest.approx((100, 200 / 3))


def test_a_tie_with_a_wrong_row_is_an_error() -> None:
    # x0 finds y0 and y1 equally near; x1 finds y0 nearer than y1. y0 finds x0 as near as x1; y1 finds x0 as near as x1.
    x = np.array([[1.0, 0], [1, 0]])
    assert retrieval_accuracy(x, x) == (0, 0)
    # all four y collapse into one vector: nobody is found from x, and from y only what is nearest to that one vector
    collapsed = np.tile([0.0, 1, 0, 0], (4, 1))
    assert retrieval_accuracy(np.eye(4), collapsed) == (0, 25)


@pytest.mark.parametrize("other", [np.eye(3)[:2], np.eye(3)[:, :2]])
def test_vectors_of_other_sentences_or_models_are_refused(other: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"x is \(3, 3\), y \(\d, \d\); allowed are vectors of one model, of as many"):
        retrieval_accuracy(np.eye(3), other)


def test_no_translations_have_no_accuracy() -> None:
    with pytest.raises(ValueError, match="x and y have no row; allowed is one or more"):
        retrieval_accuracy(np.empty((0, 3)), np.empty((0, 3)))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("sentences", [2, 5, 9, 33])
def test_equal_rows_tie_at_whatever_edge_of_the_product_they_stand(kind: type, sentences: int) -> None:
    random = np.random.default_rng(0)
    for width in [7, 32, 96, 384] * 5:
        rows = np.tile(random.normal(size=width).astype(kind), (sentences, 1))
        assert retrieval_accuracy(rows, rows) == retrieval_accuracy(rows, rows, block=4) == (0, 0)


def test_vectors_without_numbers_are_errors() -> None:
    nothing = np.full((3, 4), np.nan, np.float32)
    assert retrieval_accuracy(nothing, nothing) == (0, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_vector_without_a_number_costs_its_own_pair_alone_and_is_told(
    bad: float, caplog: pytest.LogCaptureFixture
) -> None:
    x, y = np.eye(4), np.eye(4)
    y[1, 2] = bad
    assert retrieval_accuracy(x, y) == retrieval_accuracy(x, y, block=1) == (75, 75)
    assert "1 of 4 pairs have a vector with infinity or NaN and count as not found" in caplog.text


def one_by_one(x: Vectors, y: Vectors) -> float:
    right = 0
    for i, query in enumerate(x):
        cosines = [float(query @ key / (np.linalg.norm(query) * np.linalg.norm(key))) for key in y]
        right += all(cosines[i] > cosines[j] for j in range(len(y)) if j != i)
    return 100 * right / len(x)


def noisy_translations(seed: int, sentences: int = 23) -> tuple[Vectors, Vectors]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(sentences, 4))
    return x, x + 0.7 * random.normal(size=x.shape)


@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_comparing_sentences_one_by_one(seed: int) -> None:
    x, y = noisy_translations(seed)
    expected = (one_by_one(x, y), one_by_one(y, x))
    assert 0 < expected[0] < 100 and 0 < expected[1] < 100
    assert retrieval_accuracy(x, y) == pytest.approx(expected)


@pytest.mark.parametrize("block", [1, 2, 22, 23, 24, 1000])
def test_the_size_of_a_block_does_not_matter(block: int) -> None:
    x, y = noisy_translations(0)
    assert retrieval_accuracy(x, y, block) == retrieval_accuracy(x, y)


def test_lengths_do_not_matter_and_pairs_may_change_places() -> None:
    x, y = noisy_translations(1)
    lengths, order = np.linspace(0.01, 100, len(x))[:, None], np.random.default_rng(0).permutation(len(x))
    assert retrieval_accuracy(lengths * x, y / lengths) == retrieval_accuracy(x, y)
    assert retrieval_accuracy(x[order], y[order]) == retrieval_accuracy(x, y)
    assert retrieval_accuracy(x[order], y) != retrieval_accuracy(x, y)


def test_single_precision_and_zero_vectors_are_allowed() -> None:
    x, y = (v.astype(np.float32) for v in noisy_translations(2))
    assert retrieval_accuracy(x, y) == retrieval_accuracy(x.astype(float), y.astype(float))
    assert retrieval_accuracy(np.zeros((3, 4)), np.zeros((3, 4))) == (0, 0)


def test_the_vectors_of_the_caller_stay_as_they_were() -> None:
    x, y = noisy_translations(0)
    before = x.copy(), y.copy()
    retrieval_accuracy(x, y)
    np.testing.assert_array_equal((x, y), before)


def test_one_pair_is_always_found() -> None:
    assert retrieval_accuracy(np.ones((1, 2)), -np.ones((1, 2))) == (100, 100)


# --- nearest neighbours ---------------------------------------------------------------------------------------------


def test_nearest_worked_by_hand() -> None:
    # Cosines:  (2, 0)  (1, 1)  (0, 1)
    # (1, 3)     0.32    0.89    0.95
    # (5, 1)     0.98    0.83    0.20
    queries, candidates = np.array([[1.0, 3], [5, 1]]), np.array([[2.0, 0], [1, 1], [0, 1]])
    assert nearest(queries, candidates).tolist() == [2, 0]
    assert nearest(candidates, queries).tolist() == [1, 0, 0]  # 0.83 and 0.89; (0, 1): 0.95 and 0.20


def test_of_equally_near_candidates_the_first_is_nearest() -> None:
    candidates = np.eye(4)[[0, 1, 1, 2, 3]]
    assert nearest(np.eye(4), candidates).tolist() == [0, 1, 3, 4]
    # equal directions of any length, in numbers that rounding makes differ
    random = np.random.default_rng(0)
    directions = random.normal(size=(7, 50))
    copies = np.concatenate([directions * length for length in (0.1, 1 / 3, 7, 1e-5)])
    for kind in (np.float32, np.float64):
        for block in (1, 3, 100):
            exact = np.concatenate([directions.astype(kind)] * 4) if kind is np.float32 else copies
            assert nearest(directions.astype(kind), exact, block).tolist() == list(range(7))


@pytest.mark.parametrize("seed", range(3))
def test_nearest_agrees_with_comparing_one_by_one_in_blocks_of_any_size(seed: int) -> None:
    queries, candidates = noisy_translations(seed)
    candidates = candidates[:17]
    expected = []
    for query in queries:
        cosines = [float(query @ key / (np.linalg.norm(query) * np.linalg.norm(key))) for key in candidates]
        expected.append(cosines.index(max(cosines)))
    assert len(set(expected)) > 5
    for block in (1, 5, 22, 23, 24, 1000):
        assert nearest(queries, candidates, block).tolist() == expected


def test_half_and_single_precision_are_compared_in_double() -> None:
    queries, candidates = (vectors.astype(np.float16) for vectors in noisy_translations(3))
    assert (nearest(queries, candidates) == nearest(queries.astype(float), candidates.astype(float))).all()
    close = np.array([[1, 2e-4], [1, 1e-4]], np.float32)  # cosines 1 - 2e-8 and 1 - 5e-9, in single precision both 1
    assert nearest(np.array([[1, 0]], np.float32), close).tolist() == [1]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_vectors_that_are_no_numbers_are_refused(bad: float) -> None:
    vectors = np.ones((3, 2))
    broken = vectors.copy()
    broken[1, 1] = bad
    for search in (nearest, mine_bitext):
        with pytest.raises(ValueError, match="allowed are finite numbers"):
            search(vectors, broken)


# --- mining ---------------------------------------------------------------------------------------------------------


def test_mining_worked_by_hand() -> None:
    # Cosines     y0 = (1, 0)  y1 = (4, 3)   mean of the 1 nearest    ratio          y0     y1
    # x0 = (2, 0)     1          0.8          1                       x0 to y:       1      0.8 / 1 = 0.8
    # x1 = (0, 1)     0          0.6          0.6                     x1 to y:       0      0.6 / 0.7 = 0.857
    # mean of y       1          0.8
    x, y = np.array([[2.0, 0], [0, 1]]), np.array([[1.0, 0], [4, 3]])
    pairs, scores = mine_bitext(x, y, neighbours=1)
    assert pairs.tolist() == [[0, 0], [1, 1]] and scores == pytest.approx([1, 6 / 7])
    # Of two neighbours the means are 0.9 and 0.3 of x, 0.5 and 0.7 of y: x0 to y 1.43 and 1, x1 to y 0 and 1.2.
    pairs, scores = mine_bitext(x, y, neighbours=4)
    assert pairs.tolist() == [[0, 0], [1, 1]] and scores == pytest.approx([1 / 0.7, 1.2])
    # distances: x0 to y 0.3 and 0, x1 to y -0.4 and 0.1
    assert mine_bitext(x, y, "distance")[1] == pytest.approx([0.3, 0.1])
    pairs, scores = mine_bitext(x, y, "absolute")
    assert pairs.tolist() == [[0, 0], [1, 1]] and scores == pytest.approx([1, 0.6])
    # forward the best of each x, backward the best of each y: y1 is nearer to x0
    assert mine_bitext(x, y, "absolute", "forward")[0].tolist() == [[0, 0], [1, 1]]
    pairs, scores = mine_bitext(x, y, "absolute", "backward")
    assert pairs.tolist() == [[0, 0], [0, 1]] and scores == pytest.approx([1, 0.8])
    assert mine_bitext(x, y, "absolute", "intersect")[0].tolist() == [[0, 0]]
    assert mine_bitext(x, y, "absolute", "backward", threshold=0.9)[0].tolist() == [[0, 0]]


def slowly_mined(
    x: Vectors, y: Vectors, margin: Margin, direction: Direction, k: int, threshold: float
) -> list[tuple[int, int, float]]:
    """From the definition, with all cosines, in lists."""
    x, y = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, y))
    forward, backward = (x @ y.T).tolist(), (y @ x.T).tolist()

    def neighbours(row: list[float]) -> list[int]:
        return sorted(range(len(row)), key=lambda column: -row[column])[:k]

    def mean(row: list[float]) -> float:
        nearest_ones = [row[column] for column in neighbours(row)]
        return sum(nearest_ones) / len(nearest_ones)

    def score(cosine: float, i: int, j: int) -> float:
        both = (mean(forward[i]) + mean(backward[j])) / 2
        return {"ratio": cosine / both, "distance": cosine - both, "absolute": cosine}[margin]

    from_x = [max((score(row[j], i, j), -j) for j in neighbours(row)) for i, row in enumerate(forward)]
    from_y = [max((score(row[i], i, j), -i) for i in neighbours(row)) for j, row in enumerate(backward)]
    ahead = [(i, -j, value) for i, (value, j) in enumerate(from_x)]
    back = [(-i, j, value) for j, (value, i) in enumerate(from_y)]
    if direction == "max":
        chosen: list[tuple[int, int, float]] = []
        for i, j, value in sorted(ahead + back, key=lambda pair: -pair[2]):
            if all(i != other and j != another for other, another, _ in chosen):
                chosen.append((i, j, value))
    elif direction == "intersect":
        chosen = [(i, j, value) for i, j, value in ahead if (i, j) in [pair[:2] for pair in back]]
    else:
        chosen = ahead if direction == "forward" else back
    return [pair for pair in chosen if pair[2] > threshold]


@pytest.mark.parametrize("direction", ["max", "intersect", "forward", "backward"])
@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
def test_mining_agrees_with_a_slow_version(margin: Margin, direction: Direction) -> None:
    for seed, threshold in ((0, 0.0), (1, {"ratio": 1.1, "distance": 0.1, "absolute": 0.8}[margin])):
        x, y = noisy_translations(seed, 30)
        y = y[np.random.default_rng(seed).permutation(30)[:26]]
        for k in (1, 3, 4, 40):
            pairs, scores = mine_bitext(x, y, margin, direction, k, threshold)
            expected = slowly_mined(x, y, margin, direction, k, threshold)
            assert [(i, j) for i, j, _ in expected] == [tuple(pair) for pair in pairs.tolist()]
            assert scores == pytest.approx([score for *_, score in expected])
            assert len(expected) > 3 or k == 1  # no cosine is above the mean of only itself


def test_mining_is_symmetric_and_lengths_do_not_matter() -> None:
    x, y = noisy_translations(5, 30)
    pairs, scores = mine_bitext(x, y[:26])
    swapped, swapped_scores = mine_bitext(3 * y[:26], x / 7)
    np.testing.assert_array_equal(pairs, swapped[:, ::-1])
    assert scores == pytest.approx(swapped_scores)
    assert (np.diff(scores) <= 0).all()
    assert len(set(pairs[:, 0].tolist())) == len(set(pairs[:, 1].tolist())) == len(pairs) > 15
    forward, backward = mine_bitext(x, y[:26], direction="forward"), mine_bitext(y[:26], x, direction="backward")
    np.testing.assert_array_equal(forward[0], backward[0][:, ::-1])
    assert len(forward[0]) == 30 > len(mine_bitext(x, y[:26], direction="backward")[0]) == 26


def test_equal_sentences_are_taken_in_order() -> None:
    x = np.eye(3)[[0, 0, 1, 1, 2]]
    assert mine_bitext(x, np.eye(3)[[1, 1, 0, 0]], "absolute")[0].tolist() == [[0, 2], [2, 0]]
    assert mine_bitext(x, np.eye(3)[[1, 0, 0]], "absolute", "forward")[0].tolist() == [
        [0, 1],
        [1, 1],
        [2, 0],
        [3, 0],
    ]


def test_mining_is_in_single_precision_and_leaves_its_input_alone(tmp_path: Path) -> None:
    x, y = noisy_translations(6, 30)
    before = x.copy()
    np.save(tmp_path / "x.npy", x.astype(np.float16))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    pairs, scores = mine_bitext(mapped, y.astype(np.float32))
    assert scores.dtype == np.float32 and mine_bitext(x, y)[1].dtype == np.float64
    assert pairs.tolist() == mine_bitext(x, y)[0].tolist()
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("way", [{"margin": "cosine"}, {"direction": "fwd"}])
def test_unknown_ways_to_mine_are_refused(way: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is no way to mine; allowed are (ratio, distance|max, intersect)"):
        mine_bitext(np.eye(2), np.eye(2), **way)


def test_a_threshold_that_no_score_is_above_is_refused() -> None:
    with pytest.raises(ValueError, match="threshold is nan; allowed are numbers"):
        mine_bitext(np.eye(2), np.eye(2), threshold=np.nan)


CASES = json.loads((Path(__file__).parents[1] / "xtreme_cases" / "mining.json").read_text("utf-8"))


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_mining_gives_what_the_official_code_gives(case: dict[str, Any]) -> None:
    pairs, scores = mine_bitext(np.array(case["x"], np.float32), np.array(case["y"], np.float32), **case["settings"])
    assert pairs.tolist() == case["pairs"]
    assert scores == pytest.approx(case["scores"], rel=1e-5, abs=1e-5)


def test_pairing_needs_no_vectors() -> None:
    def neighbours(rows: list[list[int]], similarities: list[list[float]]) -> Neighbours:
        return Neighbours(np.array(rows), np.array(similarities))

    forward = neighbours([[1, 0], [1, 2]], [[0.9, 0.3], [0.5, 0.3]])
    backward = neighbours([[0, 1], [0, 1], [1, 0]], [[0.3, 0.2], [0.9, 0.5], [0.3, 0.1]])
    # means 0.6, 0.4 of x and 0.25, 0.7, 0.2 of y; x0-y1 0.9/0.65 = 1.38, x0-y0 0.3/0.425 = 0.71, x1-y1 0.5/0.55 = 0.91,
    # x1-y2 0.3/0.3 = 1, x1-y0 0.2/0.325 = 0.62: y0 has only x0 left over, but that is taken
    pairs, scores = pair_neighbours(forward, backward, "ratio", "max")
    assert pairs.tolist() == [[0, 1], [1, 2]] and scores == pytest.approx([0.9 / 0.65, 1])
    pairs, _ = pair_neighbours(forward, backward, "ratio", "backward")
    assert pairs.tolist() == [[0, 0], [0, 1], [1, 2]]


# --- BUCC -----------------------------------------------------------------------------------------------------------

BITEXT = Bitext(
    ["alpha", "beta ", " gamma", "beta", "delta", "épsilon"],
    ["uno", "dos", "tres", "uno", "quatro", "cinco"],
    [f"de-{number}" for number in range(6)],
    [f"en-{number}" for number in range(6)],
)
MINED = [  # of the official code, as are the numbers of the next two tests
    ("alpha", "dos", 1.5),
    ("beta", "tres", 1.4),
    ("gamma", "uno", 1.3),
    ("delta", "quatro", 1.2),
    ("delta", "quatro", 1.25),
    ("épsilon", "cinco", 1.1),
    ("unknown", "cinco", 1.05),
    ("alpha", "cinco", 1.0),
]


def test_repeated_and_unknown_sentences_have_no_pairs_and_equal_pairs_keep_the_highest_score() -> None:
    scores = scores_by_ids(BITEXT, MINED)
    expected = [(("de-0", "en-1"), 1.5), (("de-4", "en-4"), 1.25), (("de-5", "en-5"), 1.1), (("de-0", "en-5"), 1.0)]
    assert list(scores.items()) == expected
    assert scores_by_ids(BITEXT, [*MINED, ("delta", "quatro", 0.1)]) == scores
    assert scores_by_ids(BITEXT, [(" gamma", "tres\n", 2.0)]) == {("de-2", "en-2"): 2.0}


def test_the_threshold_of_the_dev_set_extracts_pairs() -> None:
    scores = scores_by_ids(BITEXT, MINED)
    gold = {("de-0", "en-1"), ("de-4", "en-4"), ("de-5", "en-5"), ("de-1", "en-2")}
    threshold = best_threshold(scores, gold)
    assert threshold == 1.05
    pairs = extract_pairs(scores, threshold)
    assert pairs == [("de-0", "en-1"), ("de-4", "en-4"), ("de-5", "en-5")]
    assert pair_f1(pairs, gold)["f1"] == 85.71428571428571
    assert extract_pairs(scores, 1.2) == pairs[:2]


def ranked(*scores: float, right: str) -> tuple[dict[tuple[str, str], float], frozenset[tuple[str, str]]]:
    """Scores of pairs, and six gold pairs of which those marked by x are among them."""
    pairs = [(f"s{number}", f"t{number}") for number in range(len(scores))]
    gold = [pair for pair, mark in zip(pairs, right) if mark == "x"]
    gold += [("missed", str(number)) for number in range(6 - len(gold))]
    return dict(zip(pairs, scores)), frozenset(gold)


@pytest.mark.parametrize(
    ("scores", "right", "threshold", "extracted", "f1"),
    [
        ((1.9, 1.8, 1.7, 1.6, 1.5, 1.4), "xx-x--", 1.55, "1111--", 60),
        ((1.9, 1.8, 1.8, 1.0), "xxx-", 1.4, "111-", 66.66666666666667),
        ((1.5, 1.2, 1.2, 1.2, 0.3), "xx---", 1.2, "1111-", 40),  # a tie at the best point is not broken
        ((1.5, 1.2, 1.2, 1.2, 0.3), "x--x-", 0.75, "1111-", 40),
        ((1.5, -0.2), "--", 0, "1-", 0),
        ((1.9, 1.8), "xx", 1.8, "11", 50),  # the official code fails: the best is the last
    ],
)
def test_thresholds_of_the_official_code(
    scores: tuple[float, ...], right: str, threshold: float, extracted: str, f1: float
) -> None:
    by_pair, gold = ranked(*scores, right=right)
    assert best_threshold(by_pair, gold) == threshold
    pairs = extract_pairs(by_pair, threshold)
    assert pairs == [pair for pair, mark in zip(by_pair, extracted) if mark == "1"]
    assert pair_f1(pairs, gold)["f1"] == pytest.approx(f1)


def test_without_candidates_or_gold_the_threshold_is_zero() -> None:
    assert best_threshold({}, {("a", "b")}) == best_threshold({("a", "b"): 2.0}, frozenset()) == 0


@pytest.mark.parametrize("seed", range(20))
def test_no_other_threshold_has_a_higher_f1(seed: int) -> None:
    random = np.random.default_rng(seed)
    size = int(random.integers(1, 15))
    values = (random.permutation(40)[:size] - 10) / 8
    scores, gold = ranked(*values.tolist(), right="".join(random.choice(["x", "-"], size)))
    every = {value: pair_f1(extract_pairs(scores, value), gold)["f1"] for value in [*values.tolist(), 9.0]}
    found = pair_f1(extract_pairs(scores, best_threshold(scores, gold)), gold)["f1"]
    assert found == pytest.approx(max(every.values()))


def test_a_repeated_line_is_mined_with_its_last_vector_and_then_left_out() -> None:
    # The last vector of "a" is B, so that "b" gets A. With its first, A, "b" would get B; with both, nothing.
    bitext = Bitext(["a", "b", "a"], ["A", "B"], ["x0", "x1", "x2"], ["y0", "y1"])
    x, y = np.array([[1, 0], [0.8, 0.6], [0, 1]]), np.eye(2)
    (pair, score), *others = mine_id_pairs(bitext, x, y).items()
    # neighbours' means: of b 0.7, of A (0 + 0.8) / 2
    assert pair == ("x1", "y0") and score == pytest.approx(0.8 / 0.55) and not others
    # other lines that are the same sentence are mined each, and left out together
    spaced = Bitext(["a", "b", "a "], bitext.candidates, bitext.query_ids, bitext.candidate_ids)
    assert mine_id_pairs(spaced, x, y) == {}
    distinct = Bitext(["a", "b", "c"], bitext.candidates, bitext.query_ids, bitext.candidate_ids)
    assert list(mine_id_pairs(distinct, x, y)) == [("x2", "y1"), ("x0", "y0")]


def test_each_sentence_needs_a_vector() -> None:
    with pytest.raises(ValueError, match="5 vectors for 6 sentences"):
        mine_id_pairs(BITEXT, np.eye(6)[:5], np.eye(6))
