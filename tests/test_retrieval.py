"""Retrieval accuracy: worked by hand, against a loop, and what must not change it."""

import numpy as np
import pytest

from hictl_hf.retrieval import Vectors, retrieval_accuracy


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
