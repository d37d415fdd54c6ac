"""Languages come up as often as smoothed sampling says, in batches of similar length, in an order set by the seed."""

from collections import Counter
from hashlib import sha256

import numpy as np
import pytest
from datasets import Dataset

from hictl_hf.data.sampling import (
    Draw,
    Languages,
    PretrainingExamples,
    TemperatureSampler,
    example_seed,
    language_shares,
    shuffle_by_length,
)
from hictl_hf.errors import BadInput

ROWS: dict[Languages, int] = {("en", None): 130, ("sw", None): 10, ("en", "de"): 80, ("en", "sw"): 20}


def sampler(
    rows: dict[Languages, int] = ROWS, batch_size: int = 8, seed: int = 1, **settings: float
) -> TemperatureSampler:
    """Over rows numbered language by language, with lengths as uneven as those of text."""
    bounds = np.cumsum([0, *rows.values()])
    groups = {name: np.arange(start, end) for name, start, end in zip(rows, bounds, bounds[1:])}
    lengths = np.random.default_rng(5).geometric(1 / 20, bounds[-1])
    return TemperatureSampler(lengths, groups, language_shares(rows, **settings), batch_size, seed)


def batches(mixture: TemperatureSampler) -> list[list[Draw]]:
    return [[Draw._make(draw) for draw in batch.tolist()] for batch in mixture]


def draws_of(mixture: TemperatureSampler) -> list[Draw]:
    return [draw for batch in batches(mixture) for draw in batch]


# --- shares ---------------------------------------------------------------------------------------------------------


def test_shares_agree_with_those_worked_by_hand() -> None:
    # Square roots of 0.64, 0.04 (monolingual, of 68 rows) in proportion to 8 : 2; of 0.9, 0.1 to 3 : 1.
    rows = {("en", None): 64, ("sw", None): 4, ("en", "de"): 90, ("en", "sw"): 10}
    shares = language_shares(rows, text_alpha=0.5, pair_alpha=0.5)
    assert shares == pytest.approx({("en", None): 0.4, ("sw", None): 0.1, ("en", "de"): 0.375, ("en", "sw"): 0.125})


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.7, 1.0])
def test_shares_are_powers_of_the_share_of_rows(alpha: float) -> None:
    rows: dict[Languages, int] = {("a", None): 700, ("b", None): 250, ("c", None): 50}
    powers = np.array([0.7, 0.25, 0.05]) ** alpha
    shares = language_shares(rows, text_alpha=alpha, pair_alpha=9.0)
    assert list(shares.values()) == pytest.approx((powers / powers.sum()).tolist())
    assert list(shares) == list(rows)


def test_no_smoothing_keeps_the_shares_of_rows_and_full_smoothing_makes_languages_equal() -> None:
    kept = language_shares(ROWS, text_alpha=1, pair_alpha=1, text_share=None)
    assert kept == pytest.approx({name: number / 240 for name, number in ROWS.items()})
    equal = language_shares(ROWS, text_alpha=0, pair_alpha=0)
    assert list(equal.values()) == pytest.approx([0.25] * 4)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.7, 1.0])
def test_both_directions_of_a_pair_have_the_share_of_one(alpha: float) -> None:
    one = language_shares({("en", "de"): 80, ("en", "sw"): 20}, pair_alpha=alpha)
    both = language_shares({("en", "de"): 60, ("en", "sw"): 20, ("de", "en"): 20}, pair_alpha=alpha)
    assert both["en", "sw"] == one["en", "sw"]
    assert both["en", "de"] == pytest.approx(3 * both["de", "en"]) == pytest.approx(one["en", "de"] * 3 / 4)


@pytest.mark.parametrize(("text_share", "expected"), [(0.5, 0.5), (0.2, 0.2), (None, 140 / 240)])
def test_monolingual_text_has_its_own_share(text_share: float | None, expected: float) -> None:
    shares = language_shares(ROWS, text_share=text_share)
    assert sum(shares.values()) == pytest.approx(1)
    assert sum(share for name, share in shares.items() if name[1] is None) == pytest.approx(expected)


@pytest.mark.parametrize("kind", [None, "de"], ids=["only text", "only pairs"])
def test_a_single_kind_has_everything(kind: str | None) -> None:
    shares = language_shares({("en", kind): 30, ("sw", kind): 70}, text_share=0.2)
    assert sum(shares.values()) == pytest.approx(1)


# --- which rows an epoch has ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "only", "named"), [(1, "de", "pairs"), (0, None, "monolingual texts")])
def test_a_share_that_leaves_nothing_is_refused(share: float, only: str | None, named: str) -> None:
    """Such as recipes/ablations/full-without-mt-data.json with pairs alone, which would be trained on."""
    with pytest.raises(BadInput, match=f"text_share is {share}, which leaves out all {named}, and the training data"):
        language_shares({("en", only): 3}, text_share=float(share))
    assert language_shares({("en", only): 3}, text_share=1.0 - share) == {("en", only): 1}


@pytest.mark.parametrize("shares", [(1, 1), (0.2, 0.2), (1.5, -0.5), (float("nan"), 1)])
def test_shares_that_do_not_add_up_to_one_are_refused(shares: tuple[float, float]) -> None:
    groups: dict[Languages, np.ndarray] = {("en", "de"): np.arange(10), ("en", "fr"): np.arange(10, 20)}
    with pytest.raises(ValueError, match="allowed are numbers that add up to 1"):
        TemperatureSampler(np.ones(20, int), groups, dict(zip(groups, shares)), 4, 1)


@pytest.mark.parametrize("text_share", [0.5, 0.1, 0.9])
def test_an_epoch_has_as_many_rows_as_the_corpus_in_the_shares_asked_for(text_share: float) -> None:
    mixture, shares = sampler(text_share=text_share), language_shares(ROWS, text_share=text_share)
    draws = draws_of(mixture)
    assert len(draws) == 8 * len(mixture) == sum(ROWS.values())
    for name, members in mixture.groups.items():
        number = sum(draw.example in members for draw in draws)
        assert abs(number - shares[name] * len(draws)) < 1


@pytest.mark.parametrize("epoch", [0, 3])
def test_each_row_of_a_language_comes_up_equally_often_give_or_take_one(epoch: int) -> None:
    mixture = sampler()
    mixture.set_epoch(epoch)
    counts = Counter(draw.example for draw in draws_of(mixture))
    most = {}
    for name, members in mixture.groups.items():
        times = [counts[row] for row in members]
        assert max(times) - min(times) <= 1
        most[name] = max(times)
    assert most["sw", None] >= 4 and most["en", None] == 1  # one language is up-sampled, another has rows left out
    assert sum(counts[row] == 0 for row in mixture.groups["en", None]) > 10


def test_repeats_count_how_often_the_epoch_had_a_row_before() -> None:
    repeats: dict[int, list[int]] = {}
    for draw in draws_of(sampler()):
        repeats.setdefault(draw.example, []).append(draw.repeat)
    assert all(sorted(found) == list(range(len(found))) for found in repeats.values())
    assert max(map(len, repeats.values())) > 3


def test_a_language_drawn_less_often_gives_other_rows_in_another_epoch() -> None:
    mixture = sampler(text_share=0.2)
    seen = set()
    for epoch in range(30):
        mixture.set_epoch(epoch)
        seen |= {draw.example for draw in draws_of(mixture)}
    assert seen == set(range(sum(ROWS.values())))


# --- in which order -------------------------------------------------------------------------------------------------


def test_seed_and_epoch_alone_decide_the_order() -> None:
    mixture = sampler()
    first, again = draws_of(mixture), draws_of(mixture)
    assert first == again == draws_of(sampler())
    mixture.set_epoch(1)
    second = draws_of(mixture)
    assert [draw.example for draw in second] != [draw.example for draw in first]
    assert {draw.epoch for draw in second} == {1}
    fresh = sampler()
    fresh.set_epoch(1)
    assert draws_of(fresh) == second  # nobody has to go through epoch 0 first
    assert draws_of(sampler(seed=2)) != first


def padding(groups: list[list[Draw]], lengths: np.ndarray) -> float:
    """Share of a padded batch that is padding, over all batches."""
    sizes = [[lengths[draw.example] for draw in batch] for batch in groups]
    return 1 - sum(map(sum, sizes)) / sum(max(size) * len(size) for size in sizes)


def test_batches_have_rows_of_similar_length() -> None:
    mixture = sampler()
    in_order = batches(mixture)
    random = [draw for batch in in_order for draw in batch]
    np.random.default_rng(0).shuffle(random)
    at_random = [random[start : start + 8] for start in range(0, len(random), 8)]
    assert padding(at_random, mixture.lengths) > 0.5
    assert padding(in_order, mixture.lengths) < 0.1


def test_batches_come_in_no_order_of_length() -> None:
    mixture = sampler()
    longest = [max(mixture.lengths[draw.example] for draw in batch) for batch in batches(mixture)]
    rising = np.mean(np.diff(longest) >= 0)
    assert 0.2 < rising < 0.8
    assert abs(np.corrcoef(longest, range(len(longest)))[0, 1]) < 0.5


def test_the_smaller_batch_is_the_last() -> None:
    mixture = sampler({("en", None): 43}, batch_size=8)
    mixture.lengths = np.arange(43)
    for epoch in range(5):
        mixture.set_epoch(epoch)
        *whole, last = batches(mixture)
        assert len(last) == 3
        for batch in whole:  # so that batches are those that were sorted together, not shifted ones
            assert np.ptp([draw.example for draw in batch]) < 8 + 3


def test_lengths_are_sorted_only_within_some_batches() -> None:
    mixture = sampler({("en", None): 1000}, batch_size=4)  # more than fifty batches: five pools
    mixture.lengths = np.arange(1000)
    smallest = [min(draw.example for draw in batch) for batch in batches(mixture)]
    in_one_pool = sorted(range(0, 1000, 4))
    assert sorted(smallest) != in_one_pool  # other rows stand together than if all had been sorted
    assert sorted(draw.example for draw in draws_of(mixture)) == list(range(1000))


# --- seeds ----------------------------------------------------------------------------------------------------------


def test_each_place_has_its_own_seed() -> None:
    places = [(epoch, row, repeat) for epoch in range(4) for row in range(50) for repeat in range(5)]
    seeds = {example_seed(seed, *place) for seed in (0, 1) for place in places}
    assert len(seeds) == 2 * len(places)
    assert min(seeds) >= 0 and max(seeds) < 2**62
    assert example_seed(7, 1, 2, 3) != example_seed(7, 12, 3) != example_seed(7, 1, 23)


def test_a_seed_is_the_same_in_every_process() -> None:
    # written down once, so that nothing of the process, such as the seed of Python's `hash`, enters it
    assert example_seed(13, 2, 5, 1) == example_seed(13, *np.array([2, 5, 1])) == 1071243947760612039


def test_rows_carry_the_seed_of_their_draw() -> None:
    dataset = Dataset.from_dict({"x": [[5, 6], [7]], "y": [[8], None], "length": [7, 3]})
    rows = PretrainingExamples(dataset, seed=13)
    assert len(rows) == 2
    draws = np.array([Draw(0, 2, 1), Draw(1, 0, 0), Draw(1, 1, 0), Draw(1, 1, 1)])
    first, second, third, fourth = rows.__getitems__(draws)
    assert first == {"x": [5, 6], "y": [8], "seed": example_seed(13, 2, 0, 1)}
    assert second == {"x": [7], "y": None, "seed": example_seed(13, 0, 1, 0)}
    assert len({second["seed"], third["seed"], fourth["seed"]}) == 3


@pytest.mark.parametrize(("batch_size", "recorded"), [(4, "435ba81c1b0a41cd"), (7, "121d7a54fc43fa28")])
def test_draws_are_those_recorded_with_0_7_5(batch_size: int, recorded: str) -> None:
    lengths = np.random.default_rng(0).integers(3, 60, 700)
    groups: dict[Languages, np.ndarray] = {("en", "de"): np.arange(300), ("sw", None): np.arange(300, 700)}
    found = TemperatureSampler(lengths, groups, dict(zip(groups, (0.6, 0.4))), batch_size, 5)
    found.set_epoch(1)
    assert sha256(np.concatenate([*found]).tobytes()).hexdigest()[:16] == recorded


@pytest.mark.parametrize("pool", [None, 10, 7])
def test_a_shuffle_by_length_sorts_each_pool_and_keeps_equal_lengths_shuffled(pool: int | None) -> None:
    lengths = np.arange(30) % 3
    orders = [shuffle_by_length(lengths, np.random.default_rng(seed), pool) for seed in (0, 1)]
    for order in orders:
        assert sorted(order) == list(range(30))
        for start in range(0, 30, pool or 30):
            found = lengths[order[start : start + (pool or 30)]].tolist()
            assert found == sorted(found)
    assert orders[0].tolist() != orders[1].tolist()


# --- several processes and micro-batches ------------------------------------------------------------------------------


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("rows", [48, 36 + 1, 36 + 7, 36 + 11])
def test_processes_and_micro_batches_divide_the_batches_of_one_process(
    rows: int, processes: int, micro_batches: int
) -> None:
    whole, *others = [
        TemperatureSampler(np.arange(rows), {("en", None): np.arange(rows)}, {("en", None): 1.0}, 12, 1, *of)
        for of in [(1, 0, 1), *((micro_batches, process, processes) for process in range(processes))]
    ]
    expected = [sorted(draw.example for draw in batch) for batch in batches(whole)]
    if rows % 12 < processes:
        expected = expected[: rows // 12]
    rounds = [[sorted(draw.example for draw in batch) for batch in batches(other)] for other in others]
    assert {len(found) for found in rounds} == {len(other) for other in others}  # no process waits for another
    micro = list(zip(*rounds, strict=True))
    sizes = [len(part) for step in micro for part in step]
    assert min(sizes) > 0
    last = rows % 12 // processes
    steps = [micro[at : at + micro_batches] for at in range(0, len(micro), micro_batches)]
    assert [sorted(row for parts in step for part in parts for row in part) for step in steps] == expected
    assert len(steps[-1]) == (micro_batches if rows % 12 == 0 or last == 0 else min(micro_batches, last))
    for step in steps:
        of_step = [len(part) for parts in step for part in parts]
        assert max(of_step) - min(of_step) <= 1


def test_a_corpus_smaller_than_a_batch_is_one_step_an_epoch() -> None:
    seven, fewer_than_processes = (
        TemperatureSampler(np.arange(rows), {("en", None): np.arange(rows)}, {("en", None): 1.0}, 12, 1, 1, 0, 2)
        for rows in (7, 1)
    )
    assert (len(seven), seven.steps_per_epoch, seven.draws_in(3)) == (1, 1, 21)
    assert (len(fewer_than_processes), fewer_than_processes.steps_per_epoch) == (0, 1)


def test_a_process_has_long_and_short_rows_of_each_batch() -> None:
    lengths = np.arange(64)
    first, second = (
        TemperatureSampler(lengths, {("en", None): lengths}, {("en", None): 1.0}, 64, 1, 1, process, 2)
        for process in (0, 1)
    )
    one, other = (sum(int(draw.example) for draw in draws_of(part)) for part in (first, second))
    assert abs(one - other) <= 32  # tokens; halves of the sorted batch would differ by 1,024
