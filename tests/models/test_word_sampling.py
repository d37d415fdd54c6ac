"""With which chances the words of the word level are drawn."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hictl_hf.models import word_sampling
from hictl_hf.models.word_sampling import (
    UniformNumbers,
    cosines,
    first_distinct,
    sample_words,
    shifted,
    worthwhile_proposals,
)

# --- sampled words --------------------------------------------------------------------------------------------------

COSINES = {  # temperature: cosines of 8 words with the query; e^(cosine / temperature) differ by up to e^1.9 and e^2.8
    1.0: [-0.92, 0.98, 0.3, 0.0, 0.6, -0.5, 0.45, 0.8],
    0.05: [0.85, 0.99, 0.915, 0.895, 0.95, 0.87, 0.935, 0.97],
}
ROWS = 40_000
WAYS = {  # how many words are proposed before the rest is drawn by weight
    "by weight": 0,
    "by proposals": 200,  # twenty times the vocabulary, so each word is proposed again and again
    "by few proposals, then by weight": 8,
}


def words_with(cosines: list[float] | Tensor) -> tuple[Tensor, Tensor]:
    """(1, 5) a query, and (words, 5) words that have these cosines with it; all of different lengths."""
    random, cosines = torch.Generator().manual_seed(0), torch.as_tensor(cosines, dtype=torch.float64)[:, None]
    query = F.normalize(torch.randn(1, 5, generator=random, dtype=torch.float64))
    across = torch.randn(len(cosines), 5, generator=random, dtype=torch.float64)
    across = F.normalize(across - across @ query.T * query)
    lengths = torch.linspace(3, 0.2, len(cosines), dtype=torch.float64)[:, None]
    words = cosines * query + (1 - cosines.square()).sqrt() * across
    return 7 * query.float(), (lengths * words).float()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Words are drawn in one way, whatever would be cheapest."""
    monkeypatch.setattr(word_sampling, "worthwhile_proposals", lambda *_: WAYS[request.param])
    return request.param


@pytest.fixture
def rows_drawn_by_weight(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the number of rows that `draw_by_weight` was left with, each time it is called."""
    rows, draw_by_weight = [], word_sampling.draw_by_weight

    def counted(scores: Tensor, words: Tensor, random: UniformNumbers) -> Tensor:
        rows.append(len(words))
        return draw_by_weight(scores, words, random)

    monkeypatch.setattr(word_sampling, "draw_by_weight", counted)
    return rows


def chances_of_sequences(cosines: list[float], temperature: float, number: int) -> dict[tuple[int, ...], float]:
    """Sampling without replacement by its definition: one after another from the softmax over those that are left."""
    weights = [math.exp(cosine / temperature) for cosine in cosines]
    chances = {}
    for sequence in itertools.permutations(range(len(weights)), number):
        left, chance = sum(weights), 1.0
        for word in sequence:
            chance *= weights[word] / left
            left -= weights[word]
        chances[sequence] = chance
    assert sum(chances.values()) == pytest.approx(1)
    return chances


def chances_to_be_included(cosines: list[float], temperature: float, number: int) -> Tensor:
    chances = torch.zeros(len(cosines), dtype=torch.float64)
    for sequence, chance in chances_of_sequences(cosines, temperature, number).items():
        chances[list(sequence)] += chance
    return chances


def z_scores(counts: Tensor, chances: Tensor) -> Tensor:
    return (counts - ROWS * chances) / (ROWS * chances * (1 - chances)).sqrt()


@pytest.mark.parametrize("seeded", [False, True], ids=["global seed", "seeds"])
@pytest.mark.parametrize("temperature", COSINES)
def test_words_are_drawn_with_the_chances_of_sampling_without_replacement(
    temperature: float, seeded: bool, way: str, rows_drawn_by_weight: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 of 8 words, 40,000 times, against exact chances: how often a word is included, and which two come first.

    A share has a standard deviation of at most 0.0025, so |z| < 4.5 detects a chance that is wrong by 0.02 (0.01 for
    a pair that comes first with chance 0.05) all but surely, while a right sampler fails with one seed of 2,000. The
    last lines show that temperatures a fifth too high or too low, drawing uniformly, and m times the first draw's
    chance would fail: each is wrong by more than twice the bound.
    """
    monkeypatch.setattr(word_sampling, "SIMILARITIES_AT_ONCE", ROWS // 5 * 10)
    torch.manual_seed(1)
    query, vocabulary = words_with([1.0, *COSINES[temperature], 1.0])  # the nearest two are excluded
    excluded = torch.tensor([0, -1, 9]).expand(ROWS, 3)
    seeds = torch.arange(ROWS) if seeded else None
    words = sample_words(query.expand(ROWS, 5), vocabulary, excluded, 3, temperature, seeds) - 1  # (rows, 3)
    by_weight = sum(rows_drawn_by_weight) / ROWS
    assert {"by weight": by_weight == 1, "by proposals": by_weight == 0}.get(way, 0.3 < by_weight < 0.9)
    assert words.min() == 0 and words.max() == 7
    counts = torch.bincount(words.flatten(), minlength=8).double()
    expected = chances_to_be_included(COSINES[temperature], temperature, 3)
    assert z_scores(counts, expected).abs().max() < 4.5

    firsts = torch.bincount(words[:, 0] * 8 + words[:, 1], minlength=64).double()
    chances = chances_of_sequences(COSINES[temperature], temperature, 2)
    exact = torch.tensor([chances.get((i, j), 0.0) for i, j in itertools.product(range(8), repeat=2)])
    assert (firsts[exact == 0] == 0).all()
    assert z_scores(firsts, exact)[exact > 0].abs().max() < 4.5

    once = chances_to_be_included(COSINES[temperature], temperature, 1)
    for wrong in (
        chances_to_be_included(COSINES[temperature], temperature * 1.2, 3),
        chances_to_be_included(COSINES[temperature], temperature / 1.2, 3),
        torch.full((8,), 3 / 8),
        (3 * once).clamp(max=0.999),
    ):
        assert z_scores(counts, wrong).abs().max() > 9


@pytest.mark.parametrize("temperature", COSINES)
def test_words_are_included_as_often_as_torch_multinomial_includes_them(
    temperature: float, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 of 64 words, 40,000 times, beside `torch.multinomial(replacement=False)`: two samples of one distribution.

    Over 64 words the root of the mean z² is 1 ± 0.09 and must be below 1.4, the largest |z| below 4.5; a right sampler
    fails with one seed of 2,000. The last lines show the power: at a temperature 10 % too high the root is above 2, as
    with weights of which every eighth is a fifth too small.
    """
    monkeypatch.setattr(word_sampling, "SIMILARITIES_AT_ONCE", ROWS // 5 * 64)
    torch.manual_seed(2)
    cosines = torch.linspace(1 - min(2, 3.5 * temperature), 0.999, 64, dtype=torch.float64)
    query, vocabulary = words_with(cosines)
    nobody = torch.full((ROWS, 1), -1)
    words = sample_words(query.expand(ROWS, 5), vocabulary, nobody, 8, temperature, torch.arange(ROWS))
    counts = torch.bincount(words.flatten(), minlength=64).double()

    def z_of_multinomial(weights: Tensor) -> Tensor:
        words = torch.multinomial(weights.expand(ROWS, 64), 8, replacement=False)
        others = torch.bincount(words.flatten(), minlength=64).double()
        share = (counts + others) / (2 * ROWS)
        return (counts - others) / (2 * ROWS * share * (1 - share)).sqrt()

    z = z_of_multinomial((cosines / temperature).exp())
    assert counts.min() > 100 and z.square().mean().sqrt() < 1.4 and z.abs().max() < 4.5
    too_flat = (cosines / (1.1 * temperature)).exp()
    some_too_small = (cosines / temperature).exp() * torch.where(torch.arange(64) % 8 == 7, 0.8, 1.0)
    for wrong in (too_flat, some_too_small):
        assert z_of_multinomial(wrong).square().mean().sqrt() > 2


def random_words(rows: int, words: int, size: int = 5) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    return torch.randn(rows, size, generator=random), torch.randn(words, size, generator=random)


NOBODY = torch.full((300, 1), -1)  # excluded


@pytest.mark.parametrize("seeded", [False, True], ids=["global seed", "seeds"])
def test_excluded_words_are_never_drawn_and_no_word_twice(seeded: bool, way: str) -> None:
    queries, vocabulary = random_words(200, 30)
    excluded = F.cosine_similarity(queries[:, None], vocabulary, dim=-1).topk(20).indices  # the likeliest of all
    excluded[:, 3::4] = -1  # of whom every fourth may be drawn
    words = sample_words(queries, vocabulary, excluded, 6, 0.3, torch.arange(200) if seeded else None)
    assert words.shape == (200, 6) and (words >= 0).all() and (words < 30).all()
    assert not (words[:, :, None] == excluded[:, None]).any()
    assert all(len(set(row)) == 6 for row in words.tolist())


def test_a_seeded_row_is_drawn_the_same_whoever_its_neighbours_are(way: str) -> None:
    queries, vocabulary = random_words(4, 50)
    excluded = torch.tensor([[0, 1, -1], [2, -1, -1], [-1, -1, -1], [3, 4, 5]])
    seeds = torch.tensor([5, 6, 2**62 + 1, 5])
    state = torch.get_rng_state()
    together = sample_words(queries, vocabulary, excluded, 5, 0.5, seeds)
    for row in range(4):
        some = slice(row, row + 1)
        assert torch.equal(
            sample_words(queries[some], vocabulary, excluded[some], 5, 0.5, seeds[some])[0], together[row]
        )
    assert torch.equal(torch.get_rng_state(), state)
    same = sample_words(queries[:1].expand(3, 5), vocabulary, NOBODY[:3], 5, 0.5, seeds[:3])
    assert not torch.equal(same[0], same[1]) and not torch.equal(same[1], same[2])


@pytest.mark.parametrize("what", ["SIMILARITIES_AT_ONCE", "WEIGHTS_AT_ONCE"])
@pytest.mark.parametrize("seeded", [False, True], ids=["global seed", "seeds"])
def test_how_many_pairs_are_compared_at_once_changes_no_draw(
    seeded: bool, what: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, vocabulary = random_words(70, 50)
    excluded, draws = torch.arange(70)[:, None] % 50, []
    for pairs_at_once in (1000, 32, 3, 1, 0):  # 0: a vocabulary that is larger than the cache
        monkeypatch.setattr(word_sampling, what, pairs_at_once * 50)
        torch.manual_seed(4)
        draws.append(sample_words(queries, vocabulary, excluded, 5, 0.5, torch.arange(70) if seeded else None))
    assert draws[0].unique(dim=0).shape == (70, 5)
    assert all(torch.equal(draw, draws[0]) for draw in draws)


@pytest.mark.parametrize("block", [1, 3, 7])
def test_words_are_the_same_in_blocks_of_any_size(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    queries, vocabulary = random_words(70, 50)
    arguments = queries, vocabulary, torch.arange(70)[:, None] % 50, 5, 0.05, torch.arange(70)
    in_one = sample_words(*arguments)
    monkeypatch.setattr(word_sampling, "WEIGHTS_IN_BLOCK", block)
    assert in_one.unique().numel() > 20
    assert torch.equal(sample_words(*arguments), in_one)


def test_rows_without_seeds_are_drawn_differently_and_repeat_with_the_global_seed(way: str) -> None:
    queries, vocabulary = random_words(1, 50)[0].expand(2, 5), random_words(1, 50)[1]
    torch.manual_seed(3)
    words = sample_words(queries, vocabulary, NOBODY[:2], 5, 1.0)
    assert not torch.equal(words[0], words[1])
    assert not torch.equal(sample_words(queries, vocabulary, NOBODY[:2], 5, 1.0), words)
    torch.manual_seed(3)
    assert torch.equal(sample_words(queries, vocabulary, NOBODY[:2], 5, 1.0), words)


@pytest.mark.parametrize("temperature", [1.0, 0.05])
@pytest.mark.parametrize("left", [0, 1, 3])
def test_fewer_words_than_asked_for_are_all_drawn_and_the_rest_is_empty(
    left: int, temperature: float, way: str
) -> None:
    queries, vocabulary = random_words(2, 6)
    excluded = torch.tensor([[word if word >= left else -1 for word in range(6)], [-1] * 6])
    words = sample_words(queries, vocabulary, excluded, 5, temperature)
    assert sorted(words[0].tolist()) == [-1] * (5 - left) + list(range(left))
    assert (words[0, :left] >= 0).all()  # empty places stand at the end
    assert (words[1] >= 0).all() and len(set(words[1].tolist())) == 5


def test_a_vocabulary_smaller_than_the_number_asked_for_is_drawn_whole(way: str) -> None:
    queries, vocabulary = random_words(1, 6)
    words = sample_words(queries, vocabulary, NOBODY[:1], 512, 1.0)
    assert words.shape == (1, 6) and sorted(words[0].tolist()) == [0, 1, 2, 3, 4, 5]


def test_of_no_pairs_and_of_no_words_nothing_is_drawn(way: str) -> None:
    queries, vocabulary = random_words(3, 6)
    assert sample_words(queries[:0], vocabulary, NOBODY[:0], 2, 1.0).shape == (0, 2)
    assert sample_words(queries, vocabulary, NOBODY[:3], 0, 1.0).shape == (3, 0)
    assert sample_words(queries, vocabulary, NOBODY[:3, :0], 2, 1.0).shape == (3, 2)


@pytest.mark.parametrize("temperature", [50.0, 0.003, 0.001])
def test_extreme_temperatures_draw_as_many_allowed_words(temperature: float, way: str) -> None:
    queries, vocabulary = random_words(10, 300)
    excluded = F.cosine_similarity(queries[:, None], vocabulary, dim=-1).topk(20).indices
    words = sample_words(queries, vocabulary, excluded, 40, temperature, torch.arange(10))
    assert (words >= 0).all() and not (words[:, :, None] == excluded[:, None]).any()
    assert all(len(set(row)) == 40 for row in words.tolist())


def test_near_temperature_zero_the_nearest_words_come_one_after_another(way: str) -> None:
    # neighbours are 0.25 apart: at τ = 0.001 the nearer is e^250 times as likely, more than single precision can hold
    query, vocabulary = words_with([-0.5, 0.25, 1.0, -0.25, 0.75, 0.0, 0.5])
    words = sample_words(query.expand(20, 5), vocabulary, torch.tensor([[4]]).expand(20, 1), 4, 0.001)
    assert words.tolist() == [[2, 6, 1, 5]] * 20


def test_a_vocabulary_in_bfloat16_is_drawn_from_as_the_same_numbers_in_single_precision(way: str) -> None:
    queries, vocabulary = random_words(20, 100)
    vocabulary, seeds = vocabulary.bfloat16(), torch.arange(20)
    words = sample_words(queries, vocabulary, NOBODY[:20], 10, 0.3, seeds)
    assert torch.equal(words, sample_words(queries, vocabulary.float(), NOBODY[:20], 10, 0.3, seeds))


def test_proposals_are_worthwhile_for_many_words_near_temperature_one() -> None:
    # 10 words at τ = 1: 11 e = 29.9, so 30, and 64 more; a quarter of the vocabulary must be more than that
    assert worthwhile_proposals(10, 1.0, 753) == 94
    assert worthwhile_proposals(10, 1.0, 752) == 0
    assert worthwhile_proposals(512, 1.0, 250_002) == 1531 + 64
    assert [worthwhile_proposals(512, temperature, 250_002) for temperature in (0.05, 0.001, 1e-9)] == [0, 0, 0]


def test_of_a_large_vocabulary_only_proposed_words_are_looked_at(
    rows_drawn_by_weight: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, vocabulary = random_words(3, 3000)
    looked_at, cosines_of = [], cosines
    monkeypatch.setattr(word_sampling, "cosines", lambda *args: looked_at.append(args[2]) or cosines_of(*args))
    words = sample_words(queries, vocabulary, NOBODY[:3], 10, 1.0, torch.arange(3))
    assert (words >= 0).all() and rows_drawn_by_weight == []
    (looked_at,) = looked_at
    assert len(looked_at) <= 3 * 94 and set(words.flatten().tolist()) <= set(looked_at.tolist())


# --- what drawing is made of ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("words_at_once", [1024, 3])
def test_cosines_agree_with_those_of_torch(words_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_sampling, "WORDS_AT_ONCE", words_at_once)
    queries, vocabulary = (tensor.double() for tensor in random_words(4, 10))
    queries = F.normalize(queries, dim=-1)
    expected = F.cosine_similarity(queries[:, None], vocabulary, dim=-1)
    torch.testing.assert_close(cosines(queries, vocabulary), expected)
    some = torch.tensor([7, 1, 1, 9, 0, 3, 2])
    torch.testing.assert_close(cosines(queries, vocabulary, some), expected[:, some])
    assert cosines(queries, vocabulary, some[:0]).shape == (4, 0)
    vocabulary[2] = 0
    assert (cosines(queries, vocabulary)[:, 2] == 0).all()
    half = vocabulary.bfloat16()
    assert cosines(queries, half).dtype == torch.float64
    torch.testing.assert_close(cosines(queries, half), cosines(queries, half.double()))


def test_first_distinct_worked_by_hand() -> None:
    draws = torch.tensor([[5, 3, 5, -1, 7, 3, 9], [-1, -1, 2, 2, 2, -1, 2], [4, 1, 4, 1, 0, 0, 8], [-1] * 7])
    assert first_distinct(draws, 3).tolist() == [[5, 3, 7], [2, -1, -1], [4, 1, 0], [-1, -1, -1]]
    assert first_distinct(draws[:1], 9).tolist() == [[5, 3, 7, 9, -1, -1, -1, -1, -1]]
    assert first_distinct(draws, 0).shape == (4, 0) and first_distinct(draws[:, :0], 2).tolist() == [[-1, -1]] * 4


@pytest.mark.parametrize("number", [1, 4, 12])
@pytest.mark.parametrize("words", [1, 6, 1000])
def test_first_distinct_agrees_with_passing_over_repeats_one_by_one(words: int, number: int) -> None:
    draws = torch.randint(-1, words, (200, 11), generator=torch.Generator().manual_seed(0))
    expected = []
    for row in draws.tolist():
        distinct = list(dict.fromkeys(word for word in row if word >= 0))[:number]
        expected.append(distinct + [-1] * (number - len(distinct)))
    assert first_distinct(draws, number).tolist() == expected


def split_mix_64(state: int, number: int) -> list[int]:
    """The first outputs of SplitMix64 from a state (Steele et al., 2014, figure 17), in numbers without an end."""
    outputs = []
    for _ in range(number):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        bits = state
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            bits = (bits ^ (bits >> shift)) * factor % 2**64
        outputs.append(bits ^ (bits >> 31))
    return outputs


def test_uniform_numbers_are_the_upper_53_bits_of_split_mix_64() -> None:
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # from state 0
    assert split_mix_64(0, 3) == published
    assert UniformNumbers(torch.tensor([0])).next(3)[0].tolist() == [(bits >> 11) / 2**53 for bits in published]
    seeds = [0, 1, -1, 12345, 2**62 + 1, 2**63 - 1, -(2**63)]
    numbers = UniformNumbers(torch.tensor(seeds)).next(1000)
    assert numbers.dtype == torch.float64
    for seed, row in zip(seeds, numbers.tolist()):
        # a stream starts from its seed scrambled, lest neighbouring seeds walk along one another's streams:
        # SplitMix64 scrambles the state one step on, so its output from the state one step back is the seed's scramble
        (state,) = split_mix_64((seed - 0x9E3779B97F4A7C15) % 2**64, 1)
        assert row == [(bits >> 11) / 2**53 for bits in split_mix_64(state, 1000)]


def test_streams_go_on_where_they_were_and_those_of_some_rows_too() -> None:
    seeds = torch.tensor([3, -4, 5])
    whole, parts = UniformNumbers(seeds).next(12), UniformNumbers(seeds)
    first, second = parts.next(3), parts.next(4)
    last = parts.of(torch.tensor([2, 0])).next(5)
    assert torch.equal(torch.cat([first, second], 1), whole[:, :7])
    assert torch.equal(last, whole[[2, 0], 7:])
    assert torch.equal(parts.next(5), whole[:, 7:])  # one's own stream has not gone on by that
    assert whole.unique().numel() == 36


def mixed_to(bits: int) -> int:
    """What SplitMix64 mixes to these 64 bits: its steps backwards."""

    def before_shift(bits: int, places: int) -> int:
        result = bits
        for _ in range(64 // places):
            result = bits ^ (result >> places)
        return result

    bits = before_shift(bits, 31) * pow(0x94D049BB133111EB, -1, 2**64) % 2**64
    return before_shift(before_shift(bits, 27) * pow(0xBF58476D1CE4E5B9, -1, 2**64) % 2**64, 30)


def test_the_largest_number_of_all_is_below_one_and_proposes_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    # the seed whose first number has all bits set; in single precision it would be 1, and propose a word too many
    seed = mixed_to((mixed_to(2**64 - 1) - 0x9E3779B97F4A7C15) % 2**64)
    seeds = torch.tensor([seed - 2**64 * (seed >= 2**63)])
    assert UniformNumbers(seeds).next(1).item() == 1 - 2**-53
    monkeypatch.setattr(word_sampling, "worthwhile_proposals", lambda *_: 1)
    query, vocabulary = words_with([0.0, 0.0, 1.0])  # each proposal of the last word is accepted
    assert sample_words(query, vocabulary, NOBODY[:1], 1, 0.001, seeds).tolist() == [[2]]
    monkeypatch.setattr(word_sampling, "worthwhile_proposals", lambda *_: 0)
    query, vocabulary = words_with([0.5, 0.5, 0.5])
    assert sample_words(query, vocabulary, NOBODY[:1], 1, 1.0, seeds).tolist() == [[2]]


def test_the_smallest_number_of_all_draws_no_word_that_must_not_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_sampling, "worthwhile_proposals", lambda *_: 0)
    seed = mixed_to(2**64 - 0x9E3779B97F4A7C15)
    seeds = torch.tensor([seed - 2**64 * (seed >= 2**63)])
    assert UniformNumbers(seeds).next(1).item() == 0
    query, vocabulary = words_with([0.5, 0.5, 0.5])
    assert sample_words(query, vocabulary, torch.tensor([[0]]), 1, 1.0, seeds).tolist() == [[1]]


@pytest.mark.parametrize(("temperature", "asked"), [(0.05, 5), (1.0, 5), (1.0, 50)])
def test_after_enough_rounds_the_words_are_those_of_drawing_until_none_lacks(temperature: float, asked: int) -> None:
    """Draw as on a GPU, which asks only after some rounds whether a pair lacks words that are left."""
    queries, vocabulary = random_words(20, 2000)
    excluded = torch.full((20, 1990), -1)
    excluded[0] = torch.arange(1990)  # ten words are left
    arguments = queries, excluded, torch.arange(20), vocabulary, asked, temperature
    expected, _ = word_sampling.draw_in_parts(*arguments, rounds=None)
    for rounds in (0, 1, 64):
        words, lacking = word_sampling.draw_in_parts(*arguments, rounds=rounds)
        assert words.where(words >= 0, expected).equal(expected)
        assert lacking.equal((words != expected).any(1)) and (rounds or lacking.any())
    assert not lacking.any()


def test_bits_are_shifted_with_zeros_from_the_left() -> None:
    bits = [0, 1, -1, 2**62 + 12345, -(2**63), -(2**40) - 7]
    for places in (11, 27, 30, 31):
        assert shifted(torch.tensor(bits), places).tolist() == [(number % 2**64) >> places for number in bits]


def chi_square(places: Tensor, number: int) -> float:
    """χ² of how often each of 0 … number - 1 is among `places`, expected alike: standard deviations above its mean."""
    expected = places.numel() / number
    deviation = (torch.bincount(places.flatten(), minlength=number) - expected).square().sum() / expected
    return float((deviation - (number - 1)) / math.sqrt(2 * (number - 1)))


@pytest.mark.parametrize("shape", [(1, 100_000), (100_000, 1), (250, 400)])
@pytest.mark.parametrize("first_seed", [0, -(10**5), 2**62 - 7])
def test_uniform_numbers_are_even_and_neighbours_know_nothing_of_each_other(
    shape: tuple[int, int], first_seed: int
) -> None:
    """By χ² of 100,000 numbers in 100 parts, and of pairs in 10 × 10, of one stream and of neighbouring seeds.

    χ² within 4.5 standard deviations detects parts whose sizes differ by 5 % (root mean square); a correlation below
    4.5 / √100,000 = 0.014. The last lines show that numbers a little too small, and evenly spaced ones, would fail.
    """
    numbers = UniformNumbers(torch.arange(first_seed, first_seed + shape[0])).next(shape[1])
    assert numbers.shape == shape and numbers.min() >= 0 and numbers.max() < 1
    assert abs(chi_square((numbers * 100).long(), 100)) < 4.5
    for axis in (axis for axis in (0, 1) if shape[axis] > 1):
        one, next_one = (numbers.narrow(axis, start, shape[axis] - 1) for start in (0, 1))
        assert abs(chi_square((one * 10).long() * 10 + (next_one * 10).long(), 100)) < 4.5
        assert torch.corrcoef(torch.stack([one.flatten(), next_one.flatten()]))[0, 1].abs() < 0.014
    assert chi_square((numbers**1.1 * 100).long(), 100) > 4.5
    spaced = torch.arange(100_000, dtype=torch.float64) * 0.6180339887498949 % 1
    assert chi_square((spaced[:-1] * 10).long() * 10 + (spaced[1:] * 10).long(), 100) > 4.5


@pytest.mark.parametrize("vocabulary", [128, 130])  # a multiple of `WEIGHTS_IN_BLOCK`, and not
@pytest.mark.parametrize("rounds", [None, 3])  # of a CPU, and of a GPU
def test_a_query_without_a_number_draws_no_word_beyond_the_vocabulary(vocabulary: int, rounds: int | None) -> None:
    """Its loss is NaN, so that the step is skipped; an id of no word would end the run."""
    random = torch.Generator().manual_seed(0)
    words, queries = torch.randn(vocabulary, 5, generator=random), torch.randn(2, 5, generator=random)
    queries[0] = torch.nan
    found, _ = word_sampling.draw_in_parts(
        queries, torch.tensor([[0], [0]]), torch.arange(2), words, 16, 0.05, rounds=rounds
    )
    assert (found < vocabulary).all() and (found[1, :8] > 0).all()


def test_the_numbers_of_a_seed_do_not_depend_on_its_integer_type() -> None:
    seeds = torch.tensor([0, 7, 2**30])
    assert UniformNumbers(seeds.int()).next(4).equal(UniformNumbers(seeds).next(4))
