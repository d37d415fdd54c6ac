"""Neighbours of both sides: against all products in double precision, in tiles of any size, where rounding hides them,
and in the memory allowed."""

import re
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch

from hictl_hf.retrieval import nearest_neighbours as neighbours
from hictl_hf.retrieval.bitext import retrieval_accuracy
from hictl_hf.retrieval.nearest_neighbours import (
    MEMORY,
    Neighbours,
    Plan,
    Precision,
    Search,
    Shard,
    Vectors,
    plan_search,
    search_both,
)

EVERY_PRECISION: list[Precision] = ["bf16", "fp32"]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def some_vectors(seed: int, rows: int = 300, width: int = 24, common: float = 0, spread: float = 1) -> Vectors:
    """Rows that have something in common."""
    random = np.random.default_rng(seed)
    vectors: Vectors = common * np.random.default_rng(99).normal(size=width) + spread * random.normal(
        size=(rows, width)
    )
    return vectors.astype(np.float32)


CASES = {
    "random": (some_vectors(0), some_vectors(1, 217)),
    "near each other": (some_vectors(2, common=1, spread=0.003), some_vectors(3, 250, common=1, spread=0.003)),
    "all negative": (some_vectors(4, common=1, spread=0.1), -some_vectors(5, 100, common=1, spread=0.1)),
    "of many lengths": (some_vectors(6) * np.geomspace(1e-3, 1e3, 300, dtype=np.float32)[:, None], some_vectors(7, 90)),
    "fewer than neighbours": (some_vectors(8, 3), some_vectors(9, 2)),
    "one number each": (some_vectors(10, 70, 1), some_vectors(11, 80, 1)),
    "double": (some_vectors(12).astype(np.float64), some_vectors(13, 60)),
}


def slowly_searched(x: Vectors, y: Vectors, k: int) -> tuple[Neighbours, Neighbours]:
    products = x.astype(np.float64) @ y.astype(np.float64).T

    def side(scores: Vectors) -> Neighbours:
        rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return Neighbours(rows, np.take_along_axis(scores, rows, 1))

    return side(products), side(products.T)


def assert_same(found: tuple[Neighbours, Neighbours], expected: tuple[Neighbours, Neighbours]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine.rows, theirs.rows)
        np.testing.assert_array_equal(mine.similarities, theirs.similarities)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", EVERY_PRECISION)
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_all_products_in_double_precision(case: str, precision: Precision, device: str) -> None:
    x, y = CASES[case]
    for k in (1, 4):
        for found, expected in zip(search_both(x, y, k, precision, device=device), slowly_searched(x, y, k)):
            largest = np.linalg.norm(x, axis=1).max() * np.linalg.norm(y, axis=1).max()
            rounding = largest * 24 * np.finfo(np.result_type(x, y)).eps
            np.testing.assert_allclose(found.similarities, expected.similarities, rtol=0, atol=rounding)
            different = found.rows != expected.rows  # only where rounding decides who is nearer
            assert different.mean() <= (0.2 if case == "near each other" else 0.02)
            if case in ("random", "fewer than neighbours", "double"):
                assert not different.any()


def test_products_in_half_precision_alone_would_find_others() -> None:
    x, y = CASES["near each other"]
    coarse = (torch.from_numpy(x).bfloat16() @ torch.from_numpy(y).bfloat16().T).float().numpy()
    assert (coarse.argmax(1) != slowly_searched(x, y, 1)[0].rows[:, 0]).mean() > 0.5


@pytest.mark.parametrize("precision", EVERY_PRECISION)
@pytest.mark.parametrize("case", ["random", "near each other", "all negative"])
def test_the_result_is_the_same_to_the_last_bit_however_it_is_cut(case: str, precision: Precision) -> None:
    x, y = CASES[case]
    expected = search_both(x, y, 4, "bf16")
    for plan in (Plan(32, 64, (32, 32)), Plan(96, 32, (64, 64)), Plan(320, 96, (32, 96))):
        search = Search(x, y, 4, plan, precision)
        assert sum(1 for _ in search.strips()) == search.count_strips() == search.done.sum() > 2
        assert_same(search.neighbours(), expected)


def test_both_directions_of_a_pair_have_the_same_similarity() -> None:
    x, y = CASES["random"]
    forward, backward = search_both(x, y, 217)
    for i, (rows, similarities) in enumerate(zip(*forward)):
        column = backward.similarities[rows][backward.rows[rows] == i]
        assert set(column) <= set(similarities) and len(column)


@pytest.fixture(params=["usual", "crowded", "group by group"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As usual, each tile computed again as a whole, or groups looked into one at a time."""
    if request.param != "usual":
        monkeypatch.setattr(neighbours, "GROUPS_AT_ONCE", 1)
        monkeypatch.setattr(neighbours, "CROWDED", 0 if request.param == "crowded" else 1)


@pytest.mark.usefixtures("way")
def test_of_equals_the_lower_row_comes_first() -> None:
    x, y = np.eye(8, dtype=np.float32)[[0] * 40], np.eye(8, dtype=np.float32)[[1, 0] * 50]
    forward, backward = search_both(x, y, 5)
    assert forward.rows.tolist() == [[1, 3, 5, 7, 9]] * 40
    assert backward.rows.tolist() == [[0, 1, 2, 3, 4]] * 100
    assert backward.similarities.tolist() == [[0] * 5, [1] * 5] * 50


@pytest.mark.parametrize("plan", [Plan(32, 160, (32, 160)), Plan(32, 32, (32, 32))], ids=["one tile", "tiles"])
def test_rounding_that_all_goes_one_way_hides_nobody(plan: Plan) -> None:
    # Halfway between two numbers of bfloat16 lies 1 + 2^-8; what is less goes down, what is more goes up, by nearly
    # 2^-8. x has 32 times 1 and 32 times -1: of `other` all products go up, of `nearest` all down, by 0.2; so that
    # coarsely the other is nearer by 0.4. The sides' mean is 0, as each vector has its opposite.
    down, up = 1 + 2**-8 - 2**-12, 1 + 2**-8 + 2**-12
    x = np.array([[1] * 32 + [-1] * 32 + [1]])
    nearest = np.array([down] * 32 + [up] * 32 + [0.6])
    other = np.array([up] * 32 + [down] * 32 + [0.5])
    y = np.zeros((160, 65))
    y[[0, 1, -2, -1]] = other, -other, nearest, -nearest
    x, y = np.vstack([x, -x]).astype(np.float32), y.astype(np.float32)
    exact, coarse = x[0] @ y.T, torch.from_numpy(y).bfloat16().float().numpy() @ x[0]
    assert exact[-2] - exact[0] > 0.06 and coarse[0] - coarse[-2] > 0.3
    search = Search(x, y, 1, plan, "bf16")
    list(search.strips())
    assert search.neighbours()[0].rows.tolist() == [[158], [159]]


@pytest.mark.parametrize("case", CASES)
def test_a_crowded_tile_is_computed_again_with_the_same_result(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = CASES[case]
    expected, calls = search_both(x, y, 4), 0
    monkeypatch.setattr(neighbours, "CROWDED", 0)
    monkeypatch.setattr(neighbours, "GROUPS_AT_ONCE", 1)
    first_best = neighbours.first_best

    def counted(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        return first_best(*given)

    monkeypatch.setattr(neighbours, "first_best", counted)
    for found, other in zip(search_both(x, y, 4), expected):
        np.testing.assert_allclose(found.similarities, other.similarities, rtol=1e-5)
        assert (found.rows == other.rows).mean() > (0.8 if case == "near each other" else 0.98)
    assert calls


def test_groups_are_looked_into_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = CASES["random"]
    expected = search_both(x, y, 4)
    monkeypatch.setattr(neighbours, "CROWDED", 1)
    monkeypatch.setattr(neighbours, "GROUPS_AT_ONCE", 3)
    monkeypatch.setattr(neighbours, "AT_ONCE", 50)
    assert_same(search_both(x, y, 4), expected)


@pytest.mark.parametrize("precision", EVERY_PRECISION)
@pytest.mark.parametrize("case", CASES)
def test_no_coarse_product_is_farther_off_than_its_bound(case: str, precision: Precision) -> None:
    x, y = CASES[case]
    search = Search(x, y, 1, plan_search(x, y, 1), precision)
    left = Shard(search, x, 0, len(x), search._means)
    right = Shard(search, y, 0, len(y), search._means[::-1], right=True)
    coarse = (left.coarse.double() @ right.coarse.double().T)[: len(x), : len(y)] + search._common
    off = (coarse - torch.from_numpy(x.astype(np.float64) @ y.astype(np.float64).T)).abs()
    for side, other, errors in ((left, right, off), (right, left, off.T)):
        bound = side.errors(other)
        assert (errors.max(1).values <= bound).all()
        if precision == "bf16" and case == "random":
            assert (errors.max(1).values >= bound / 20).any(), "a bound that says nothing"


def test_what_all_vectors_have_in_common_is_not_rounded() -> None:
    x = some_vectors(0, common=10, spread=0.1)
    search = Search(x, x, 1, plan_search(x, x, 1), "bf16")
    one, other = (Shard(search, x, 0, len(x), search._means, right) for right in (False, True))
    assert (one.size < 2).all() and (one.norm > 20).all()
    assert (one.errors(other) < 0.01).all()  # of products around 1000, whose rounding alone would be 4


def test_a_product_that_is_off_by_more_than_its_bound_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = CASES["random"]
    errors = Shard.errors
    monkeypatch.setattr(Shard, "errors", lambda self, other: errors(self, other) * 1e-3)
    monkeypatch.setattr(Search, "_rounding", 1e-9, raising=False)
    search = Search(x, y, 4, plan_search(x, y, 4), "bf16")
    search._rounding = 1e-9
    with pytest.raises(RuntimeError, match="more than rounding can be; search with precision fp32"):
        list(search.strips())


@pytest.mark.usefixtures("way")
def test_only_earlier_rows_are_found() -> None:
    x = some_vectors(0, 150)
    products = x.astype(np.float64) @ x.T
    products[np.triu_indices(150)] = -np.inf
    expected = np.argsort(-products, axis=1, kind="stable")[:, :3]
    for plan in (plan_search(x, x, 3), Plan(64, 32, (32, 64)), Plan(32, 96, (32, 32))):
        search = Search(x, x, 3, plan, only_earlier=True)
        assert sum(1 for _ in search.strips()) == search.count_strips()
        forward, backward = search.neighbours()
        np.testing.assert_array_equal(forward.rows[3:], expected[3:])
        assert forward.rows[:3].tolist() == [[-1, -1, -1], [0, -1, -1], [*expected[2, :2].tolist(), -1]]
        assert (backward.rows == -1).all()


def test_a_search_goes_on_in_another_where_one_stopped() -> None:
    x, y = CASES["random"]
    plan = Plan(96, 64, (32, 32))
    expected = search_both(x, y, 4)
    for stop in range(1, Search(x, y, 4, plan).count_strips(), 7):
        first = Search(x, y, 4, plan)
        for _ in first.strips():
            if first.done.sum() == stop:
                break
        second = Search(x, y, 4, plan)
        second.load(first.save())
        assert second.done.sum() == stop
        assert sum(1 for _ in second.strips()) == second.count_strips() - stop
        assert_same(second.neighbours(), expected)


def test_of_equals_the_lower_row_comes_first_whichever_search_found_it() -> None:
    """Processes compare different strips, and the main one adds what the others have found."""
    x, y, plan = np.eye(8, dtype=np.float32)[[0] * 80], np.eye(8, dtype=np.float32)[[1, 0] * 50], Plan(32, 32, (32, 32))
    main, other = Search(x, y, 5, plan), Search(x, y, 5, plan)
    half = main.count_strips() // 2
    for search, some in ((main, range(half, 2 * half)), (other, range(half))):
        for _ in search.strips(some):
            pass
    main.load(other.save())
    assert main.done.all()
    assert_same(main.neighbours(), search_both(x, y, 5))


def test_vectors_that_must_not_be_written_are_searched_without_a_warning(tmp_path: Path) -> None:
    np.save(tmp_path / "vectors.npy", np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32))
    vectors = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(action="error"):
            found = search_both(vectors, vectors, 1)
    finally:
        torch.set_warn_always(before)
    expected = search_both(vectors.copy(), vectors.copy(), 1)
    assert all(np.array_equal(*sides) for one, other in zip(found, expected) for sides in zip(one, other))


@pytest.mark.parametrize("kind", [">f8", ">f4", ">f2"])
def test_the_order_of_bytes_does_not_matter(kind: str) -> None:
    x, y = (side.astype(kind) for side in CASES["double"])
    expected = search_both(x.astype(x.dtype.newbyteorder("=")), y.astype(y.dtype.newbyteorder("=")), 3)
    assert_same(search_both(x, y, 3), expected)


def test_what_cannot_be_searched_is_refused() -> None:
    x = np.ones((3, 2), np.float32)
    for bad in (np.nan, np.inf):
        broken = x.copy()
        broken[1, 1] = bad
        for sides in ((x, broken), (broken, x)):
            with pytest.raises(ValueError, match="allowed are finite numbers"):
                search_both(*sides, 1)
    for sides, k in (((x, x[:0]), 1), ((x[:0], x), 1), ((x, x), 0)):
        with pytest.raises(ValueError, match="neighbours among . and . vectors; allowed are 1 or more of each"):
            search_both(*sides, k)
    with pytest.raises(ValueError, match=r"x has vectors of \d numbers, y of 1; give those of one model"):
        search_both(x, x[:, :1], 1)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_are_read_as_arrays_of_the_same_numbers(kind: torch.dtype) -> None:
    x, y = (torch.randn(9, 4, generator=torch.Generator().manual_seed(seed)).to(kind) for seed in (1, 2))
    wide = torch.float64 if kind == torch.float64 else torch.float32
    expected = search_both(x.to(wide).numpy(), y.to(wide).numpy(), 2)
    for found, side in zip(search_both(x.requires_grad_(), y, 2), expected, strict=True):
        np.testing.assert_array_equal(found.rows, side.rows)
        np.testing.assert_array_equal(found.similarities, side.similarities)
    assert retrieval_accuracy(x, y) == retrieval_accuracy(x.detach().to(wide).numpy(), y.to(wide).numpy())


def test_the_plan_fits_what_is_allowed_and_says_what_is_needed() -> None:
    x = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (10**6, 384), (0, 0))
    for allowed in (3e8, 1e9, 4e9, 1e10):
        plan = plan_search(x, x, 4, int(allowed))
        assert 0.9 * min(allowed, 6e9) < plan.memory <= allowed
        assert plan.x % 32 == plan.y % 32 == 0 and min(plan.x, plan.y) >= 1024
    assert (plan.x, plan.y) == (10**6, 10**6)
    few = plan_search(x[:1000], x, 4, 10**9)
    assert few.x == 1024 and few.y > 250_000
    with pytest.raises(ValueError, match=r"max_memory is 1000 bytes; allowed are (\d+) or more to find 4") as error:
        plan_search(x, x, 4, 1000)
    least = int(str(error.value).split("allowed are ")[1].split()[0])
    assert plan_search(x, x, 4, least).memory <= least < 3e8


IN_LITTLE_MEMORY = """
import resource, sys
import numpy as np, torch
from hictl_hf.retrieval.nearest_neighbours import plan_search, search_both
torch.set_num_threads(1)
allowed, precision, rows = int(sys.argv[1]), sys.argv[2], 20_000
random = np.random.default_rng(0)
x, y = (random.standard_normal((rows, 256), dtype=np.float32) for _ in range(2))
search_both(x[:2000], y[:2000], 4, precision)  # what libraries take once
used = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used + allowed, used + allowed))
forward, _ = search_both(x, y, 4, precision, max_memory=int(sys.argv[3]))
print(forward.rows.sum())
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits are those of Linux")
@pytest.mark.parametrize("precision", EVERY_PRECISION)
def test_the_memory_allowed_is_kept(precision: Precision) -> None:
    def search(limit: int, allowed: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", IN_LITTLE_MEMORY, str(limit), precision, str(allowed)]
        return subprocess.run(command, capture_output=True, text=True)

    small, large = search(110 * 2**20, 110 * 2**20), search(MEMORY, MEMORY)
    assert small.returncode == 0, small.stderr
    assert small.stdout == large.stdout
    too_small = search(8 * 2**20, MEMORY)  # the limit works: NumPy and PyTorch name the memory, oneDNN does not
    assert too_small.returncode and re.search("memory|could not create a primitive", too_small.stderr)


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_products_are_not_rounded_to_tf32_and_the_switch_is_put_back(precision: str) -> None:
    """transformers sets `fp32_precision`, after which PyTorch refuses to read `allow_tf32`."""
    switch = torch.backends.cuda.matmul
    before, switch.fp32_precision = switch.fp32_precision, precision
    try:
        with neighbours.full_precision():
            assert switch.fp32_precision == "ieee" and not switch.allow_bf16_reduced_precision_reduction
        assert switch.fp32_precision == precision and switch.allow_bf16_reduced_precision_reduction
    finally:
        switch.fp32_precision = before


def test_threads_put_the_switch_back() -> None:
    entered, left = Event(), Event()

    def search() -> None:
        with neighbours.full_precision():
            entered.set()
            left.wait()

    with ThreadPoolExecutor(1) as threads:
        with neighbours.full_precision():
            other = threads.submit(search)
            entered.wait(0.2)
        left.set()
        other.result()
    assert torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
