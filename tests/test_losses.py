"""The two contrasts against numbers worked by hand, slow versions of the paper's equations, and at their edges."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hictl_hf.losses import mean_over_batch, sentence_contrast, word_contrast
from hictl_hf.negatives import in_batch_negatives, interpolate_hard_negatives


def random_normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- sentences ------------------------------------------------------------------------------------------------------


def test_sentence_contrast_of_logarithms_worked_by_hand() -> None:
    # Scores are logarithms, so that exp(s) are these numbers. Row 0: positive 2, negatives 3 and 1, loss log(6/2);
    # row 1: positive 4, negatives 1 and 3, log(8/4); row 2: positive 1, negatives 6 and 1, log 8;
    # row 3: positive 5, its only negative 5, log 2. The diagonal and the 9 are contrasted with nothing.
    numbers = torch.tensor([[9.0, 3, 2, 1], [1, 9, 3, 4], [1, 6, 9, 1], [9, 5, 5, 9]], dtype=torch.float64)
    negatives = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]).bool()
    losses = sentence_contrast(numbers.log(), negatives)
    assert losses.exp().tolist() == pytest.approx([3, 2, 8, 2])
    # at τ = 1/2 the numbers are squared: row 0 is log((4 + 9 + 1) / 4)
    assert sentence_contrast(numbers.log(), negatives, 0.5)[0].exp().item() == pytest.approx(3.5)


def contrast_one_by_one(
    sentences: Tensor, negatives: Tensor, strength: float, space: str, temperature: float
) -> Tensor:
    """L_S as the paper writes it: for each anchor a positive and synthetic negatives, all of them vectors."""
    count, losses = len(sentences), []
    for i in range(count):
        query, positive = sentences[i], sentences[(i + count // 2) % count]
        others = [sentences[j] for j in range(count) if negatives[i, j]]
        if space == "unit":
            query, positive, *others = (vector / vector.norm() for vector in (query, positive, *others))
        mixtures = []
        for other in others:
            near, far = (query - positive).norm().item(), (query - other).norm().item()
            share = (near / far) ** strength if far > near else 1.0
            mixtures.append(query + share * (other - query))
        scores = [
            query @ key if space == "unit" else query @ key / (query.norm() * key.norm())
            for key in (positive, *mixtures)
        ]
        exponentials = [(score / temperature).exp() for score in scores]
        losses.append(-(exponentials[0] / sum(exponentials)).log())
    return torch.stack(losses)


def sentence_losses(sentences: Tensor, negatives: Tensor, strength: float, space: str, temperature: float) -> Tensor:
    return sentence_contrast(
        interpolate_hard_negatives(sentences, negatives, strength, space)[0], negatives, temperature
    )


@pytest.mark.parametrize("space", ["unit", "raw"])
@pytest.mark.parametrize("duplicates", ["pair", "text", "keep"])
@pytest.mark.parametrize(("strength", "temperature"), [(0.0, 1.0), (0.45, 0.05), (0.9, 1.0)])
def test_sentence_loss_and_gradient_agree_with_the_equations_one_by_one(
    space: str, duplicates: str, strength: float, temperature: float
) -> None:
    negatives = in_batch_negatives(torch.tensor([1, 2, 3, 4, 5, 1, 6, 4]), duplicates)
    weights = random_normal(8, seed=9)  # an anchor counts by itself, not only in the mean
    results = []
    for losses_of in (sentence_losses, contrast_one_by_one):
        sentences = random_normal(8, 4, seed=1).requires_grad_()
        losses = losses_of(sentences, negatives, strength, space, temperature)
        (gradient,) = torch.autograd.grad(losses @ weights, sentences)
        results.append((losses.detach(), gradient))
    assert results[1][0].min() > 1e-9 and results[1][1].norm(dim=1).min() > 1e-6
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-11)


def test_one_wrong_lambda_gradient_would_be_seen() -> None:
    """Guard: with λ differentiated, which the paper's hard negatives are not, the gradient is another one."""
    sentences = random_normal(8, 4, seed=1).requires_grad_()
    negatives = in_batch_negatives(torch.arange(8))
    unit = F.normalize(sentences, dim=-1)
    near = (unit - unit.roll(4, 0)).norm(dim=-1, keepdim=True)
    far = (unit[:, None] - unit + torch.eye(8)[..., None]).norm(dim=-1)  # the identity keeps the root differentiable
    lambdas = torch.where(negatives & (far > near), (near / far) ** 0.9, 1.0)
    through = sentence_contrast(1 - lambdas * (1 - unit @ unit.T), negatives).mean()
    right = sentence_losses(sentences, negatives, 0.9, "unit", 1.0).mean()
    assert through.item() == pytest.approx(right.item())
    gradients = [torch.autograd.grad(loss, sentences, retain_graph=True)[0] for loss in (through, right)]
    assert (gradients[0] - gradients[1]).abs().max() > 1e-3


@pytest.mark.parametrize("space", ["unit", "raw"])
def test_the_order_of_pairs_and_which_side_is_x_do_not_matter(space: str) -> None:
    sentences, negatives = random_normal(8, 4), in_batch_negatives(torch.arange(8))
    losses = sentence_losses(sentences, negatives, 0.9, space, 0.1)
    assert losses.unique().numel() > 4
    for order in (torch.tensor([4, 5, 6, 7, 0, 1, 2, 3]), torch.tensor([2, 0, 3, 1, 6, 4, 7, 5])):
        permuted = sentence_losses(sentences[order], negatives, 0.9, space, 0.1)
        torch.testing.assert_close(permuted, losses[order])


def test_harder_negatives_never_lower_the_loss_in_unit_space() -> None:
    sentences, negatives = random_normal(10, 3), in_batch_negatives(torch.arange(10))
    losses = torch.stack([sentence_losses(sentences, negatives, s, "unit", 0.2) for s in (0, 0.3, 0.6, 0.9)])
    assert (losses.diff(dim=0) >= 0).all() and (losses[3] > losses[0] + 0.1).any()


@pytest.mark.parametrize("space", ["unit", "raw"])
@pytest.mark.parametrize("temperature", [1.0, 0.05])
@pytest.mark.parametrize("pairs", [1, 2, 5])
def test_the_floor_of_the_sentence_loss_is_never_undercut(space: str, temperature: float, pairs: int) -> None:
    # s⁺ ≤ 1 and s⁻ ≥ -1, so a loss is at least log(1 + (2n - 2) e^(-2/τ))
    floor = math.log1p((2 * pairs - 2) * math.exp(-2 / temperature))
    negatives = in_batch_negatives(torch.arange(2 * pairs))
    for seed in range(10):
        sentences = random_normal(2 * pairs, 1 + seed % 3, seed=seed)  # on a line, many are opposite
        for strength in (0.0, 0.9):
            assert sentence_losses(sentences, negatives, strength, space, temperature).min() >= floor * (1 - 1e-9)


@pytest.mark.parametrize("space", ["unit", "raw"])
def test_the_floor_is_reached_by_two_opposite_pairs(space: str) -> None:
    sentences = torch.tensor([[1.0, 0], [-2, 0], [3, 0], [-1, 0]], dtype=torch.float64)
    losses = sentence_losses(sentences, in_batch_negatives(torch.arange(4)), 0.0, space, 0.5)
    assert losses.tolist() == pytest.approx([math.log1p(2 * math.exp(-4))] * 4)


@pytest.mark.parametrize("space", ["unit", "raw"])
@pytest.mark.parametrize(
    ("texts", "duplicates"),
    [([1, 2], "pair"), ([1, 1], "keep"), ([1] * 6, "pair"), ([1] * 6, "text")],
    ids=["one pair", "one pair of equal texts", "all texts equal: pair", "all texts equal: text"],
)
def test_without_negatives_the_loss_and_its_gradient_are_zero(texts: list[int], duplicates: str, space: str) -> None:
    sentences = random_normal(len(texts), 3).requires_grad_()
    losses = sentence_losses(sentences, in_batch_negatives(torch.tensor(texts), duplicates), 0.9, space, 0.05)
    losses.sum().backward()
    assert (losses == 0).all() and (sentences.grad == 0).all()


def test_an_anchor_without_negatives_is_zero_beside_one_that_has_some() -> None:
    scores = random_normal(6, 6).requires_grad_()
    negatives = in_batch_negatives(torch.arange(6))
    negatives[2] = False
    losses = sentence_contrast(scores, negatives, 0.05)
    losses.sum().backward()
    assert losses[2] == 0 and (scores.grad[2] == 0).all()
    assert (losses[[0, 1, 3, 4, 5]] > 0).all() and scores.grad.isfinite().all()


@pytest.mark.parametrize("space", ["unit", "raw"])
@pytest.mark.parametrize(
    "sentences",
    [
        [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]],
        [[0.3, 0.4]] * 4,
        [[0.0, 0.0], [1.0, 1.0], [1.0, 0.0], [2.0, 1.0]],
        [[0.0, 0.0]] * 4,
    ],
    ids=["positives equal", "all equal", "one zero vector", "all zero vectors"],
)
def test_degenerate_sentences_have_finite_losses_and_gradients(sentences: list[list[float]], space: str) -> None:
    values = torch.tensor(sentences, requires_grad=True)
    losses = sentence_losses(values, in_batch_negatives(torch.arange(4)), 0.9, space, 0.05)
    losses.sum().backward()
    assert losses.isfinite().all() and (losses >= 0).all() and values.grad.isfinite().all()


# --- words ----------------------------------------------------------------------------------------------------------


def test_word_contrast_worked_by_hand() -> None:
    # q̄ points along the first axis; the words' cosines with it are 1, 0, -1 and 0, whatever their lengths
    vocabulary = torch.tensor([[3.0, 0], [0, 2], [-5, 0], [0, -1]], dtype=torch.float64)
    queries, bag, sampled = torch.tensor([[0.1, 0.0]]).double(), torch.tensor([[0, 1]]), torch.tensor([[2, 3]])
    e = math.e
    # word 0: log(1 + (e^-1 + e^0) / e^1); word 1: log(1 + (e^-1 + e^0) / e^0); their mean
    expected = (math.log(1 + (1 / e + 1) / e) + math.log(1 + 1 / e + 1)) / 2
    assert word_contrast(queries, vocabulary, bag, sampled).item() == pytest.approx(expected)
    # τ = 1/2 squares the exponentials
    expected = (math.log(1 + (1 / e**2 + 1) / e**2) + math.log(1 + 1 / e**2 + 1)) / 2
    assert word_contrast(queries, vocabulary, bag, sampled, 0.5).item() == pytest.approx(expected)


def words_one_by_one(queries: Tensor, vocabulary: Tensor, bag: Tensor, sampled: Tensor, temperature: float) -> Tensor:
    """L_W as the paper writes it: one InfoNCE for each word of a bag, all with the same negatives."""

    def weight(query: Tensor, word: int) -> Tensor:
        embedding = vocabulary[word]
        return (query @ embedding / (query.norm() * embedding.norm()) / temperature).exp()

    losses = []
    for query, words, negatives in zip(queries, bag.tolist(), sampled.tolist()):
        against = sum(weight(query, word) for word in negatives if word >= 0)
        of_words = [-(weight(query, w) / (weight(query, w) + against)).log() for w in words if w >= 0]
        losses.append(sum(of_words) / len(of_words))
    return torch.stack(losses)


BAG = torch.tensor([[4, 5, 6], [5, 7, -1], [9, -1, -1]])
SAMPLED = torch.tensor([[0, 1, 2, 3], [4, 0, 11, -1], [1, -1, -1, -1]])  # word 4 is in one bag, a negative in another


@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_word_loss_and_gradients_agree_with_the_equations_one_by_one(temperature: float) -> None:
    weights, results = random_normal(3, seed=7), []
    for losses_of in (word_contrast, words_one_by_one):
        queries, vocabulary = (
            random_normal(3, 5, seed=2).requires_grad_(),
            random_normal(12, 5, seed=3).requires_grad_(),
        )
        losses = losses_of(queries, vocabulary, BAG, SAMPLED, temperature)
        results.append((losses.detach(), *torch.autograd.grad(losses @ weights, (queries, vocabulary))))
    _, of_queries, of_words = results[1]
    assert (of_queries.norm(dim=1) > 1e-6).all()
    assert of_words.norm(dim=1).nonzero().flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 9, 11]
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-11)


def test_word_losses_follow_their_pairs_and_padding_changes_nothing() -> None:
    queries, vocabulary = random_normal(3, 5), random_normal(12, 5, seed=1)
    losses, order = word_contrast(queries, vocabulary, BAG, SAMPLED), torch.tensor([2, 0, 1])
    torch.testing.assert_close(word_contrast(queries[order], vocabulary, BAG[order], SAMPLED[order]), losses[order])
    wider = word_contrast(queries, vocabulary, F.pad(BAG, (0, 3), value=-1), F.pad(SAMPLED, (0, 2), value=-1))
    torch.testing.assert_close(wider, losses)
    shuffled = word_contrast(queries, vocabulary, BAG.flip(1), SAMPLED.flip(1))
    torch.testing.assert_close(shuffled, losses)


def test_lengths_of_queries_and_words_do_not_matter() -> None:
    queries, vocabulary = random_normal(3, 5), random_normal(12, 5, seed=1)
    lengths = torch.linspace(0.1, 9, 12, dtype=torch.float64)[:, None]
    torch.testing.assert_close(
        word_contrast(7 * queries, lengths * vocabulary, BAG, SAMPLED), word_contrast(queries, vocabulary, BAG, SAMPLED)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [1.0, 0.05])
@pytest.mark.parametrize(
    ("bag", "sampled", "expected"),
    [
        ([[4, 5], [-1, -1]], [[0, 1], [2, 3]], "second is zero"),
        ([[-1], [-1]], [[0, 1], [2, 3]], "zero"),
        ([[], []], [[0, 1], [2, 3]], "zero"),
        ([[4, 5], [6, -1]], [[-1, -1], [-1, -1]], "zero"),
        ([[4, 5], [6, -1]], [[], []], "zero"),
        ([[4, 5], [6, -1]], [[1, -1], [-1, -1]], "second is zero"),
        ([[-1], [-1]], [[-1], [-1]], "zero"),
    ],
    ids=[
        "one empty bag",
        "empty bags",
        "no bags",
        "no word left",
        "no sample",
        "no word left for one",
        "nothing at all",
    ],
)
def test_empty_bags_and_empty_samples_cost_nothing_and_leave_finite_gradients(
    bag: list[list[int]], sampled: list[list[int]], expected: str, temperature: float, dtype: torch.dtype
) -> None:
    queries, vocabulary = (
        random_normal(2, 5).to(dtype).requires_grad_(),
        random_normal(12, 5).to(dtype).requires_grad_(),
    )
    losses = word_contrast(queries, vocabulary, torch.tensor(bag).long(), torch.tensor(sampled).long(), temperature)
    losses.sum().backward()
    assert losses[1] == 0 and (queries.grad[1] == 0).all()
    assert losses[0] == 0 if expected == "zero" else losses[0] > 0
    assert queries.grad.isfinite().all() and vocabulary.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_zero_query_and_a_zero_word_leave_finite_losses_and_gradients(dtype: torch.dtype) -> None:
    queries, vocabulary = random_normal(3, 5).to(dtype), random_normal(12, 5).to(dtype)
    queries[0] = vocabulary[5] = vocabulary[11] = 0
    losses = word_contrast(queries.requires_grad_(), vocabulary.requires_grad_(), BAG, SAMPLED)
    losses.sum().backward()
    assert losses[0].item() == pytest.approx(math.log(5))  # every cosine is 0: one word against four
    assert losses.isfinite().all() and queries.grad.isfinite().all() and vocabulary.grad.isfinite().all()


# --- means ----------------------------------------------------------------------------------------------------------


def test_shares_of_micro_batches_add_up_to_the_mean_of_the_batch() -> None:
    # (2 + 4 + 9) / 3 = 5, in parts of two and one: 6 / 3 + 9 / 3; a mean of means would be (3 + 9) / 2 = 6
    values = torch.tensor([2.0, 4.0, 9.0])
    assert mean_over_batch(values) == 5
    for items in (3, torch.tensor(3)):
        assert mean_over_batch(values[:2], items) + mean_over_batch(values[2:], items) == 5


@pytest.mark.parametrize("mean", [mean_over_batch, lambda values: mean_over_batch(values, torch.tensor(4))])
def test_the_mean_of_nothing_is_zero_with_a_zero_gradient(mean: Callable[[Tensor], Tensor]) -> None:
    values = torch.ones(3, requires_grad=True)
    loss = mean(values[:0])
    loss.backward()
    assert loss == 0 and (values.grad == 0).all()
