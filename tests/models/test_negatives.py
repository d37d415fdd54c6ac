"""Which negatives there are, and how they move towards their query."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hictl_hf.models.losses import sentence_contrast
from hictl_hf.models.negatives import in_batch_negatives, interpolate_hard_negatives

SPACES = ("unit", "raw")
DUPLICATES = ("pair", "text", "keep")
NO_DUPLICATES = [in_batch_negatives(torch.arange(2 * pairs)) for pairs in range(6)]  # by number of pairs


def sentences_of(pairs: int, seed: int = 0, size: int = 3) -> Tensor:
    """(2 pairs, size) random representations of different lengths."""
    random = torch.Generator().manual_seed(seed)
    return (
        torch.randn(2 * pairs, size, generator=random, dtype=torch.float64) * torch.linspace(0.5, 2, 2 * pairs)[:, None]
    )


def swap(pairs: int) -> Tensor:
    """The rows in the order y, x."""
    return torch.arange(2 * pairs).roll(pairs)


# --- which sentences are negatives ----------------------------------------------------------------------------------


def test_negatives_of_three_pairs_of_which_two_share_a_text() -> None:
    # pairs (a, d), (b, a), (c, e); rows x: a b c, y: d a e. Another pair than one's own is a candidate:
    texts = torch.tensor([ord(text) for text in "abcdae"])
    keep = torch.tensor([[0, 1, 1, 0, 1, 1], [1, 0, 1, 1, 0, 1], [1, 1, 0, 1, 1, 0]] * 2).bool()
    # "text": of these, a in row 0 and a in row 4 are no negatives of each other
    text = keep.clone()
    text[0, 4] = text[4, 0] = False
    # "pair": a has the translations d and b, so nothing of pair 0 is a negative of anything of pair 1
    pair = torch.tensor([[0, 0, 1, 0, 0, 1], [0, 0, 1, 0, 0, 1], [1, 1, 0, 1, 1, 0]] * 2).bool()
    for duplicates, expected in {"keep": keep, "text": text, "pair": pair}.items():
        assert torch.equal(in_batch_negatives(texts, duplicates), expected), duplicates


def test_a_mistyped_choice_is_refused_as_another_one_would_be_taken() -> None:
    with pytest.raises(ValueError, match="duplicates is 'pairs'; it must be one of 'pair', 'text', 'keep'"):
        in_batch_negatives(torch.arange(4), "pairs")
    for contrast in (interpolate_hard_negatives, sentence_contrast):
        with pytest.raises(ValueError, match="space is 'Unit'; it must be one of 'unit', 'raw'"):
            contrast(sentences_of(2), NO_DUPLICATES[2], 0.5, space="Unit")


@pytest.mark.parametrize("duplicates", DUPLICATES)
@pytest.mark.parametrize("same_side", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_negatives_agree_with_comparing_texts_one_by_one(duplicates: str, same_side: bool, seed: int) -> None:
    pairs = 5
    texts = torch.randint(0, 6, (2 * pairs,), generator=torch.Generator().manual_seed(seed)).tolist()
    negatives = in_batch_negatives(torch.tensor(texts), duplicates, same_side)
    for i, j in itertools.product(range(2 * pairs), repeat=2):
        both_texts = [{texts[row % pairs], texts[row % pairs + pairs]} for row in (i, j)]
        friends = {"keep": False, "text": texts[i] == texts[j], "pair": bool(both_texts[0] & both_texts[1])}
        sides = same_side or (i < pairs) != (j < pairs)
        assert negatives[i, j] == (i % pairs != j % pairs and sides and not friends[duplicates])


@pytest.mark.parametrize("duplicates", DUPLICATES)
def test_being_a_negative_is_mutual_and_survives_swapping_x_with_y_and_reordering_pairs(duplicates: str) -> None:
    texts = torch.tensor([7, 8, 9, 7, 5, 9, 6, 8])
    negatives = in_batch_negatives(texts, duplicates)
    assert negatives.any() and not negatives.all()
    assert torch.equal(negatives, negatives.T)
    for order in (swap(4), torch.tensor([2, 0, 3, 1, 6, 4, 7, 5])):
        assert torch.equal(in_batch_negatives(texts[order], duplicates), negatives[order][:, order])


def test_without_the_same_side_three_pairs_have_two_negatives_a_sentence() -> None:
    other_side = torch.tensor([[0, 1, 1], [1, 0, 1], [1, 1, 0]]).bool()
    none = torch.zeros_like(other_side)
    expected = torch.cat([torch.cat([none, other_side], 1), torch.cat([other_side, none], 1)])
    assert torch.equal(in_batch_negatives(torch.arange(6), same_side=False), expected)


def test_equal_texts_leave_no_negatives_unless_they_are_kept() -> None:
    texts = torch.zeros(6, dtype=torch.long)
    assert not in_batch_negatives(texts, "pair").any()
    assert not in_batch_negatives(texts, "text").any()
    assert in_batch_negatives(texts, "keep").sum(1).tolist() == [4] * 6  # 2n - 2


@pytest.mark.parametrize("duplicates", DUPLICATES)
def test_a_single_pair_has_no_negatives(duplicates: str) -> None:
    assert not in_batch_negatives(torch.tensor([3, 4]), duplicates).any()


def test_an_x_without_a_y_is_refused() -> None:
    with pytest.raises(ValueError, match="there are 5 sentences; each x needs its y"):
        in_batch_negatives(torch.arange(5))


# --- hard negatives -------------------------------------------------------------------------------------------------


def test_unit_vectors_at_60_90_and_180_degrees_worked_by_hand() -> None:
    # query x1 at 0°, its positive y1 at 60°: d⁺ = 1. Strength 1.
    # x2 at 90°: d⁻ = √2, λ = 1/√2, ŝ = 1 - λ(1 - 0) = 1 - 1/√2
    # y2 at 180°: d⁻ = 2, λ = 1/2, k̂ is the middle of q and -q, the origin: ŝ = 0
    degrees = torch.tensor([0.0, 90.0, 60.0, 180.0], dtype=torch.float64).deg2rad()
    lengths = torch.tensor([2.0, 0.3, 1.0, 5.0], dtype=torch.float64)  # do not matter
    sentences = torch.stack([degrees.cos(), degrees.sin()], 1) * lengths[:, None]
    scores, lambdas = interpolate_hard_negatives(sentences, NO_DUPLICATES[2], 1.0, "unit")
    root = 1 / math.sqrt(2)
    assert lambdas[0].tolist() == pytest.approx([1, root, 1, 0.5])
    assert scores[0].tolist() == pytest.approx([1, 1 - root, 0.5, 0], abs=1e-12)


def test_raw_vectors_worked_by_hand() -> None:
    # q = (2, 0), k⁺ = (2, 2): d⁺ = 2; k⁻ = (-2, 3): d⁻ = 5, λ = (2/5)^1
    # k̂ = (2, 0) + 0.4 (-4, 3) = (0.4, 1.2), cosine 0.4 / √1.6 = 1/√10; the other negative (2, 1) is near: λ = 1
    sentences = torch.tensor([[2.0, 0], [-2, 3], [2, 2], [2, 1]], dtype=torch.float64)
    scores, lambdas = interpolate_hard_negatives(sentences, NO_DUPLICATES[2], 1.0, "raw")
    assert lambdas[0].tolist() == pytest.approx([1, 0.4, 1, 1])
    assert scores[0].tolist() == pytest.approx([1, 1 / math.sqrt(10), 1 / math.sqrt(2), 2 / math.sqrt(5)])


def mixtures_one_by_one(sentences: Tensor, negatives: Tensor, strength: float, space: str) -> tuple[Tensor, Tensor]:
    """The interpolation to the letter of the paper: every k̂ as a vector."""
    count = len(sentences)
    points = [s / s.norm() for s in sentences] if space == "unit" else list(sentences)
    scores, lambdas = [], []
    for i, query in enumerate(points):
        near = float((query - points[(i + count // 2) % count]).detach().norm())
        for j, other in enumerate(points):
            far = float((query - other).detach().norm())
            lambdas.append((near / far) ** strength if negatives[i, j] and far > near else 1.0)
            mixture = query + lambdas[-1] * (other - query)
            scores.append(query @ mixture if space == "unit" else F.cosine_similarity(query, mixture, dim=0))
    return torch.stack(scores).view(count, count), torch.tensor(lambdas, dtype=torch.float64).view(count, count)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("strength", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_scores_and_their_gradients_agree_with_mixing_the_vectors_themselves(
    space: str, strength: float, seed: int
) -> None:
    negatives = in_batch_negatives(torch.tensor([1, 2, 3, 4, 5, 1, 6, 7]))
    weights = torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    results = []
    for scored in (interpolate_hard_negatives, mixtures_one_by_one):
        sentences = sentences_of(4, seed).requires_grad_()
        scores, lambdas = scored(sentences, negatives, strength, space)
        (gradient,) = torch.autograd.grad((scores * weights).sum(), sentences)
        results.append((scores.detach(), lambdas, gradient))
    assert results[1][2].abs().min() > 1e-6
    assert strength == 0 or (results[1][1] < 1).any()
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("space", SPACES)
def test_strength_zero_leaves_the_plain_cosines(space: str) -> None:
    sentences = sentences_of(4)
    scores, lambdas = interpolate_hard_negatives(sentences, NO_DUPLICATES[4], 0.0, space)
    torch.testing.assert_close(scores, F.cosine_similarity(sentences[:, None], sentences, dim=-1))
    assert (lambdas == 1).all()


@pytest.mark.parametrize("space", SPACES)
def test_only_negatives_are_moved(space: str) -> None:
    sentences, nobody = sentences_of(4), torch.zeros(8, 8, dtype=torch.bool)
    plain, _ = interpolate_hard_negatives(sentences, nobody, 0.0, space)
    moved, lambdas = interpolate_hard_negatives(sentences, NO_DUPLICATES[4], 0.9, space)
    assert (lambdas[~NO_DUPLICATES[4]] == 1).all() and (lambdas < 1).any()
    torch.testing.assert_close(moved[lambdas == 1], plain[lambdas == 1])
    torch.testing.assert_close(interpolate_hard_negatives(sentences, nobody, 0.9, space)[0], plain)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("seed", range(20))
def test_lambda_lies_between_the_ratio_of_the_distances_and_one(space: str, seed: int) -> None:
    sentences, strength = sentences_of(5, seed), 0.05 + 0.9 * seed / 20
    points = F.normalize(sentences, dim=-1) if space == "unit" else sentences
    distances = (points[:, None] - points).norm(dim=-1)
    ratio = (points - points.roll(5, 0)).norm(dim=-1)[:, None] / distances
    scores, lambdas = interpolate_hard_negatives(sentences, NO_DUPLICATES[5], strength, space)
    far = NO_DUPLICATES[5] & (ratio < 1)
    assert far.any() and (NO_DUPLICATES[5] & ~far).any()
    assert (lambdas[~far] == 1).all()
    assert ((ratio < lambdas) & (lambdas < 1))[far].all()
    if space == "unit":  # a synthetic negative may come close to the query but never closer than the positive is
        assert (lambdas * distances > distances * ratio)[far].all()
        positives = scores[torch.arange(10), torch.arange(10).roll(5)]
        assert (scores < positives[:, None])[far].all()


@pytest.mark.parametrize("space", SPACES)
def test_scores_follow_the_sentences_when_pairs_change_places_or_sides(space: str) -> None:
    sentences = sentences_of(4)
    scores, lambdas = interpolate_hard_negatives(sentences, NO_DUPLICATES[4], 0.9, space)
    assert (lambdas < 1).any()
    for order in (swap(4), torch.tensor([2, 0, 3, 1, 6, 4, 7, 5])):
        permuted = interpolate_hard_negatives(sentences[order], NO_DUPLICATES[4], 0.9, space)
        torch.testing.assert_close(permuted, (scores[order][:, order], lambdas[order][:, order]))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("scale", [1e-4, 1e4])
def test_the_unit_of_length_does_not_matter(scale: float, space: str) -> None:
    scores, lambdas = interpolate_hard_negatives(sentences_of(4), NO_DUPLICATES[4], 0.9, space)
    assert (lambdas < 1).any()
    scaled = interpolate_hard_negatives(scale * sentences_of(4), NO_DUPLICATES[4], 0.9, space)
    torch.testing.assert_close(scaled, (scores, lambdas))


@pytest.mark.parametrize("space", SPACES)
def test_no_gradient_passes_through_lambda(space: str) -> None:
    sentences = sentences_of(3).requires_grad_()
    scores, lambdas = interpolate_hard_negatives(sentences, NO_DUPLICATES[3], torch.tensor(0.9), space)
    assert scores.requires_grad and not lambdas.requires_grad


@pytest.mark.parametrize("space", SPACES)
def test_the_gradient_through_lambda_changes_no_score(space: str) -> None:
    sentences = sentences_of(4).requires_grad_()
    plain = interpolate_hard_negatives(sentences, NO_DUPLICATES[4], 0.9, space)
    through = interpolate_hard_negatives(sentences, NO_DUPLICATES[4], 0.9, space, lambda_gradient=True)
    torch.testing.assert_close(plain, through)
    assert through[1].requires_grad and (through[1] < 1).any()


EDGES = {  # name: sentences, all of which have a hand-made degenerate distance or length
    "one pair": [[1.0, 2.0], [2.0, -1.0]],
    "positive equal to its query": [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [-1.0, 1.0]],
    "negative nearer than the positive": [[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [1.0, -0.1]],
    "negative equal to its query": [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]],
    "all equal": [[0.3, 0.4]] * 6,
    "zero vector": [[0.0, 0.0], [1.0, 1.0], [1.0, 0.0], [2.0, 1.0]],
    "opposite": [[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-2.0, 0.0]],
    "long": [[3e4, 0.0], [0.0, 5e4], [3e4, 1.0], [2.0, 1e4]],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("edge", EDGES)
def test_degenerate_sentences_have_finite_scores_and_gradients(
    edge: str, space: str, strength: float, dtype: torch.dtype
) -> None:
    sentences = torch.tensor(EDGES[edge], dtype=dtype, requires_grad=True)
    scores, lambdas = interpolate_hard_negatives(sentences, NO_DUPLICATES[len(sentences) // 2], strength, space)
    scores.sum().backward()
    assert scores.isfinite().all() and sentences.grad.isfinite().all()
    assert (scores.abs() <= 1 + 1e-5).all()
    assert ((lambdas >= 0) & (lambdas <= 1)).all()


@pytest.mark.parametrize("lambda_gradient", [False, True])
@pytest.mark.parametrize("space", SPACES)
def test_a_positive_equal_to_its_query_pulls_every_negative_onto_it(space: str, lambda_gradient: bool) -> None:
    # d⁺ = 0, so λ = (0 / d⁻)^0.5 = 0 and k̂ = q: the score is that of the positive, 1. By logarithms, λ is almost 0
    sentences = torch.tensor(EDGES["positive equal to its query"])
    scores, lambdas = interpolate_hard_negatives(sentences, NO_DUPLICATES[2], 0.5, space, lambda_gradient)
    assert lambdas[0].tolist() == pytest.approx([1, 0, 1, 0], abs=1e-8)
    assert scores[0].tolist() == pytest.approx([1, 1, 1, 1])


@pytest.mark.parametrize("space", SPACES)
def test_negatives_nearer_than_the_positive_stay_where_they_are(space: str) -> None:
    sentences = torch.tensor(EDGES["negative nearer than the positive"])
    scores, lambdas = interpolate_hard_negatives(sentences, NO_DUPLICATES[2], 0.9, space)
    assert lambdas[0].tolist() == [1, 1, 1, 1]
    assert scores[0, 1] == pytest.approx(1 / math.sqrt(1.01))
