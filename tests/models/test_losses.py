"""The two contrasts against numbers worked by hand, slow versions of the paper's equations, and at their edges.

Both make their gradients themselves; they are held against those that autograd finds for the slow versions.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from hictl_hf.models import losses as losses_module
from hictl_hf.models import word_sampling
from hictl_hf.models.losses import contrast_with_sampled, mean_over_batch, sentence_contrast, word_contrast
from hictl_hf.models.negatives import in_batch_negatives, interpolate_hard_negatives

SPACES = ("unit", "raw")


def random_normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_close(results: tuple[Tensor, ...], expected: tuple[Tensor, ...], tolerance: float = 1e-9) -> None:
    """Each result differs from what is expected by less than this part of its norm, and that is not zero."""
    assert len(results) == len(expected)
    for result, right in zip(results, expected):
        assert result.shape == right.shape and right.norm() > 0
        assert (result - right).norm() < tolerance * right.norm()


# --- sentences ------------------------------------------------------------------------------------------------------


def plain_sentence_contrast(scores: Tensor, negatives: Tensor, temperature: float = 1.0) -> Tensor:
    """(N,) -log exp(s⁺/τ) / (exp(s⁺/τ) + Σ exp(s⁻/τ)) from finished similarities (N, N); its gradient is autograd's."""
    positives = torch.arange(len(scores)).roll(len(scores) // 2)
    contrasted = negatives.scatter(1, positives[:, None], True)
    return F.cross_entropy((scores / temperature).masked_fill(~contrasted, -torch.inf), positives, reduction="none")


def losses_of_anchors(
    sentences: Tensor, negatives: Tensor, strength: float = 0.0, space: str = "unit", temperature: float = 1.0
) -> Tensor:
    """(N,) the loss of each anchor: that of a batch in which only this anchor has negatives."""
    anchors = [negatives & (torch.arange(len(negatives)) == i)[:, None] for i in range(len(negatives))]
    return torch.stack([sentence_contrast(sentences, only, temperature, strength, space, 1)[0] for only in anchors])


def sentence_loss(
    sentences: Tensor, negatives: Tensor, strength: float = 0.0, space: str = "unit", temperature: float = 1.0
) -> Tensor:
    return sentence_contrast(sentences, negatives, temperature, strength, space)[0]


@pytest.mark.parametrize("space", SPACES)
def test_sentence_contrast_of_logarithms_worked_by_hand(space: str) -> None:
    # x1 at 0°, x2 at 60°, y1 at 120° of a plane, y2 at right angles to it: the cosines are ½ (x1 x2, x2 y1),
    # -½ (x1 y1) and 0 (y2). With τ = 1 / log 4, exp(s/τ) = 4^s is 2, ½ and 1.
    # x1: positive ½, negatives 2 and 1: log(3½ / ½) = log 7. x2: positive 1, negatives 2 and 2: log 5.
    # y1: positive ½, its only negative 2: log 5. y2: positive 1, its only negative 1: log 2. Lengths do not matter.
    half, root = 0.5, math.sqrt(0.75)
    sentences = torch.tensor([[1.0, 0, 0], [half, root, 0], [-half, root, 0], [0, 0, 1]], dtype=torch.float64)
    sentences = sentences * torch.tensor([[1.0], [3], [0.5], [2]])
    negatives = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0]]).bool()
    losses = losses_of_anchors(sentences, negatives, 0.0, space, 1 / math.log(4))
    assert losses.exp().tolist() == pytest.approx([7, 5, 5, 2])
    loss, mean_lambda = sentence_contrast(sentences, negatives, 1 / math.log(4), space=space)
    assert loss.item() == pytest.approx(math.log(7 * 5 * 5 * 2) / 4) and mean_lambda == 1
    # at half the temperature the numbers are squared: 5¼ / ¼, 9 / 1, 4¼ / ¼, 2 / 1
    losses = losses_of_anchors(sentences, negatives, 0.0, space, 0.5 / math.log(4))
    assert losses.exp().tolist() == pytest.approx([21, 9, 17, 2])


def test_sentence_contrast_of_moved_negatives_worked_by_hand() -> None:
    # Only x1 has negatives. Unit: positive at 60°, d⁺ = 1, s⁺ = ½. x2 at 90°, d⁻ = √2, λ = 1/√2, ŝ = 1 - 1/√2;
    # y2 at 180°, d⁻ = 2, λ = ½, k̂ is the origin, ŝ = 0.
    negatives = torch.tensor([[0, 1, 0, 1], [0] * 4, [0] * 4, [0] * 4]).bool()
    degrees, r = torch.tensor([0.0, 90.0, 60.0, 180.0], dtype=torch.float64).deg2rad(), 1 / math.sqrt(2)
    sentences = torch.stack([degrees.cos(), degrees.sin()], 1) * torch.tensor([[2.0], [0.3], [1], [5]])
    loss, mean_lambda = sentence_contrast(sentences, negatives, 0.5, 1.0, "unit", 1)
    assert loss.item() == pytest.approx(math.log(1 + (math.exp(2 * (1 - r)) + math.exp(0)) / math.exp(1)))
    assert mean_lambda.item() == pytest.approx((r + 0.5) / 2)
    # Raw: q = (2, 0), k⁺ = (2, 2), d⁺ = 2, s⁺ = 1/√2. x2 = (-2, 3), d⁻ = 5, λ = 0.4, k̂ = (0.4, 1.2), ŝ = 1/√10;
    # y2 = (2, 1) is nearer than the positive: λ = 1, s = 2/√5.
    sentences = torch.tensor([[2.0, 0], [-2, 3], [2, 2], [2, 1]], dtype=torch.float64)
    loss, mean_lambda = sentence_contrast(sentences, negatives, 0.5, 1.0, "raw", 1)
    scores = [math.exp(2 * score) for score in (1 / math.sqrt(2), 1 / math.sqrt(10), 2 / math.sqrt(5))]
    assert loss.item() == pytest.approx(math.log(sum(scores) / scores[0]))
    assert mean_lambda.item() == pytest.approx(0.7)


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


REPEATED = torch.tensor([1, 2, 3, 4, 5, 1, 6, 4])  # x1 is y2, and both sides of the last pair are one text


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("duplicates", ["pair", "text", "keep"])
@pytest.mark.parametrize("rows_at_once", [256, 3], ids=["all rows at once", "3, 3 and 2 rows"])
@pytest.mark.parametrize(("strength", "temperature"), [(0.0, 1.0), (0.45, 0.05), (0.9, 1.0), (1.0, 0.2)])
def test_sentence_loss_and_gradient_agree_with_the_equations_one_by_one(
    space: str,
    duplicates: str,
    rows_at_once: int,
    strength: float,
    temperature: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(losses_module, "QUERIES_AT_ONCE", rows_at_once)
    negatives, results = in_batch_negatives(REPEATED, duplicates), []
    for loss_of in (sentence_loss, lambda *inputs: contrast_one_by_one(*inputs).mean()):
        sentences = (random_normal(8, 4, seed=1) * torch.linspace(0.5, 2, 8)[:, None]).requires_grad_()
        loss = loss_of(sentences, negatives, strength, space, temperature)
        results.append((loss.detach(), *torch.autograd.grad(loss, sentences)))
    assert results[1][0] > 1e-3 and results[1][1].norm(dim=1).min() > 1e-6
    assert_close(*results)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("strength", [0.0, 0.9])
def test_each_anchor_by_itself_agrees_with_the_equations_one_by_one(space: str, strength: float) -> None:
    weights, results = random_normal(8, seed=9), []  # in a mean, two errors might make up for each other
    for losses_of in (losses_of_anchors, contrast_one_by_one):
        sentences = random_normal(8, 4, seed=1).requires_grad_()
        losses = losses_of(sentences, in_batch_negatives(REPEATED, "text"), strength, space, 0.1)
        results.append((losses.detach(), *torch.autograd.grad(losses @ weights, sentences)))
    assert results[1][0].min() > 1e-9
    assert_close(*results)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("rows_at_once", [1, 7, 30, 256])
def test_in_a_larger_batch_it_agrees_with_autograd_and_lambda_with_the_interpolation(
    space: str, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses_module, "QUERIES_AT_ONCE", rows_at_once)
    texts = torch.randint(0, 40, (30,), generator=torch.Generator().manual_seed(0))
    negatives = in_batch_negatives(texts)
    assert 0 < negatives.sum() < 30 * 28
    sentences, again = random_normal(30, 6).requires_grad_(), random_normal(30, 6).requires_grad_()
    loss, mean_lambda = sentence_contrast(sentences, negatives, 0.1, torch.tensor(0.75), space)
    scores, lambdas = interpolate_hard_negatives(again, negatives, 0.75, space)
    expected = plain_sentence_contrast(scores, negatives, 0.1).mean()
    loss.backward()
    expected.backward()
    assert_close((loss.detach(), sentences.grad), (expected.detach(), again.grad))
    assert mean_lambda.item() == pytest.approx(lambdas[negatives].mean().item(), rel=1e-12) and mean_lambda < 0.99
    assert not mean_lambda.requires_grad


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("items", [20, torch.tensor(20), torch.tensor(20.0)], ids=["int", "tensor", "float tensor"])
def test_what_follows_the_sentence_loss_and_the_number_of_items_scale_its_gradient(
    space: str, items: Tensor | int
) -> None:
    sentences, negatives = random_normal(8, 4).requires_grad_(), in_batch_negatives(REPEATED)
    loss = sentence_loss(sentences, negatives, 0.9, space, 0.1)
    (gradient,) = torch.autograd.grad(loss, sentences)
    share, mean_lambda = sentence_contrast(sentences, negatives, 0.1, 0.9, space, items)
    assert mean_lambda < 1  # and it is no part of what follows
    (scaled,) = torch.autograd.grad(-3 * share.square(), sentences)  # the derivative of -3 s² is -6 s
    assert_close((share.detach(), scaled), (loss.detach() * 8 / 20, -6 * share.detach() * gradient * 8 / 20))


@pytest.mark.parametrize("space", SPACES)
def test_the_sentence_gradient_reaches_what_made_the_sentences_and_adds_up_when_asked_for_again(space: str) -> None:
    inputs, weight, negatives = random_normal(8, 4), random_normal(4, 4, seed=1), in_batch_negatives(REPEATED)
    gradients = []
    for fused in (True, False):
        projection = weight.clone().requires_grad_()
        sentences = (inputs @ projection).tanh()
        if fused:
            loss = sentence_loss(sentences, negatives, 0.9, space, 0.1)
        else:
            loss = contrast_one_by_one(sentences, negatives, 0.9, space, 0.1).mean()
        loss.backward(retain_graph=True)
        once = projection.grad.clone()
        loss.backward()
        gradients += [once, projection.grad / 2]
    assert_close(tuple(gradients[:2]), tuple(gradients[2:]))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_in_single_precision_the_sentence_gradient_is_nearly_the_same(space: str, temperature: float) -> None:
    negatives, results = in_batch_negatives(torch.arange(40)), []
    for dtype in (torch.float32, torch.float64):
        sentences = random_normal(40, 8).to(dtype).requires_grad_()
        loss, mean_lambda = sentence_contrast(sentences, negatives, temperature, 0.9, space)
        (gradient,) = torch.autograd.grad(loss, sentences)
        assert loss.dtype == mean_lambda.dtype == gradient.dtype == dtype
        results.append((loss.detach().double(), mean_lambda.double(), gradient.double()))
    assert_close(*results, tolerance=1e-5)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("spread", [0.1, 0.003])
def test_almost_parallel_sentences_lose_no_more_digits_than_mixtures_that_are_vectors(
    space: str, spread: float
) -> None:
    """An encoder at its start gives such sentences; their distances are small differences of large products."""
    negatives = in_batch_negatives(torch.arange(16))
    given = random_normal(1, 32) + spread * random_normal(16, 32, seed=1)
    given[8:] = given[:8] + spread / 2 * random_normal(8, 32, seed=2)

    def gradient(loss_of: Callable[..., Tensor], dtype: torch.dtype) -> Tensor:
        sentences = given.float().to(dtype).requires_grad_()  # the same numbers in both precisions
        (result,) = torch.autograd.grad(loss_of(sentences), sentences)
        return result.double()

    forms: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda sentences: sentence_contrast(sentences, negatives, 0.1, 0.9, space)[0],
        lambda sentences: contrast_one_by_one(sentences, negatives, 0.9, space, 0.1).mean(),
    )
    exact = gradient(forms[1], torch.float64)
    ours, usual = (((gradient(form, torch.float32) - exact).norm() / exact.norm()).item() for form in forms)
    assert usual > 1e-7
    assert ours < 3 * usual


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_losses_can_be_had_without_gradients(mode: Callable) -> None:
    sentences, negatives = random_normal(8, 4).requires_grad_(), in_batch_negatives(REPEATED)
    queries, vocabulary = random_normal(3, 5).requires_grad_(), random_normal(12, 5).requires_grad_()
    with mode():
        results = [sentence_loss(sentences, negatives, 0.9), word_contrast(queries, vocabulary, BAG, SAMPLED)[0]]
        made_inside = word_contrast(queries * 1, vocabulary * 1, BAG * 1, SAMPLED * 1)[0]
    assert not any(result.requires_grad for result in (*results, made_inside))
    expected = [sentence_loss(sentences, negatives, 0.9), word_contrast(queries, vocabulary, BAG, SAMPLED)[0]]
    assert all(result.requires_grad for result in expected)
    torch.testing.assert_close([*results, made_inside], [*expected, expected[1]])


def test_one_wrong_lambda_gradient_would_be_seen() -> None:
    """Guard: with λ differentiated, which the paper's hard negatives are not, the gradient is another one."""
    sentences = random_normal(8, 4, seed=1).requires_grad_()
    negatives = in_batch_negatives(torch.arange(8))
    unit = F.normalize(sentences, dim=-1)
    near = (unit - unit.roll(4, 0)).norm(dim=-1, keepdim=True)
    far = (unit[:, None] - unit + torch.eye(8)[..., None]).norm(dim=-1)  # the identity keeps the root differentiable
    lambdas = torch.where(negatives & (far > near), (near / far) ** 0.9, 1.0)
    through = plain_sentence_contrast(1 - lambdas * (1 - unit @ unit.T), negatives).mean()
    right = sentence_loss(sentences, negatives, 0.9)
    assert through.item() == pytest.approx(right.item())
    gradients = [torch.autograd.grad(loss, sentences, retain_graph=True)[0] for loss in (through, right)]
    assert (gradients[0] - gradients[1]).abs().max() > 1e-3


@pytest.mark.parametrize("space", SPACES)
def test_the_order_of_pairs_and_which_side_is_x_do_not_matter(space: str) -> None:
    sentences, negatives = random_normal(8, 4), in_batch_negatives(torch.arange(8))
    losses = losses_of_anchors(sentences, negatives, 0.9, space, 0.1)
    assert losses.unique().numel() > 4
    for order in (torch.tensor([4, 5, 6, 7, 0, 1, 2, 3]), torch.tensor([2, 0, 3, 1, 6, 4, 7, 5])):
        permuted = losses_of_anchors(sentences[order], negatives, 0.9, space, 0.1)
        torch.testing.assert_close(permuted, losses[order])


def test_harder_negatives_never_lower_the_loss_in_unit_space() -> None:
    sentences, negatives = random_normal(10, 3), in_batch_negatives(torch.arange(10))
    losses = torch.stack([losses_of_anchors(sentences, negatives, s, "unit", 0.2) for s in (0, 0.3, 0.6, 0.9)])
    assert (losses.diff(dim=0) >= 0).all() and (losses[3] > losses[0] + 0.1).any()


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("temperature", [1.0, 0.05])
@pytest.mark.parametrize("pairs", [1, 2, 5])
def test_the_floor_of_the_sentence_loss_is_never_undercut(space: str, temperature: float, pairs: int) -> None:
    # s⁺ ≤ 1 and s⁻ ≥ -1, so a loss is at least log(1 + (2n - 2) e^(-2/τ))
    floor = math.log1p((2 * pairs - 2) * math.exp(-2 / temperature))
    negatives = in_batch_negatives(torch.arange(2 * pairs))
    for seed in range(10):
        sentences = random_normal(2 * pairs, 1 + seed % 3, seed=seed)  # on a line, many are opposite
        for strength in (0.0, 0.9):
            losses = losses_of_anchors(sentences, negatives, strength, space, temperature)
            assert losses.min() >= floor * (1 - 1e-9)


@pytest.mark.parametrize("space", SPACES)
def test_the_floor_is_reached_by_two_opposite_pairs(space: str) -> None:
    sentences = torch.tensor([[1.0, 0], [-2, 0], [3, 0], [-1, 0]], dtype=torch.float64)
    losses = losses_of_anchors(sentences, in_batch_negatives(torch.arange(4)), 0.0, space, 0.5)
    assert losses.tolist() == pytest.approx([math.log1p(2 * math.exp(-4))] * 4)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(
    ("texts", "duplicates"),
    [([1, 2], "pair"), ([1, 1], "keep"), ([1] * 6, "pair"), ([1] * 6, "text"), ([], "pair")],
    ids=["one pair", "one pair of equal texts", "all texts equal: pair", "all texts equal: text", "no pair"],
)
@pytest.mark.parametrize("lambda_gradient", [False, True])
def test_without_negatives_the_loss_and_its_gradient_are_zero(
    lambda_gradient: bool, texts: list[int], duplicates: str, space: str
) -> None:
    sentences = random_normal(len(texts), 3).requires_grad_()
    negatives = in_batch_negatives(torch.tensor(texts), duplicates)
    loss, mean_lambda = sentence_contrast(sentences, negatives, 0.05, 0.9, space, None, lambda_gradient)
    loss.backward()
    assert loss == 0 and (sentences.grad == 0).all() and mean_lambda == 1


@pytest.mark.parametrize("space", SPACES)
def test_an_anchor_without_negatives_is_zero_beside_one_that_has_some(space: str) -> None:
    negatives = in_batch_negatives(torch.arange(6))
    negatives[2] = False
    sentences = random_normal(6, 4).requires_grad_()
    losses = losses_of_anchors(sentences, negatives, 0.9, space, 0.05)
    assert losses[2] == 0 and (torch.autograd.grad(losses[2], sentences, retain_graph=True)[0] == 0).all()
    assert (losses[[0, 1, 3, 4, 5]] > 0).all()
    together = sentence_loss(sentences, negatives, 0.9, space, 0.05)  # the mean is still over all six
    results = [(loss.detach(), *torch.autograd.grad(loss, sentences)) for loss in (together, losses.sum() / 6)]
    assert_close(*results)


@pytest.mark.parametrize("space", SPACES)
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
    losses = losses_of_anchors(values, in_batch_negatives(torch.arange(4)), 0.9, space, 0.05)
    losses.sum().backward()
    assert losses.isfinite().all() and (losses >= 0).all() and values.grad.isfinite().all()


@pytest.mark.parametrize("space", SPACES)
def test_a_positive_whose_share_underflows_has_a_finite_loss_and_its_gradient(space: str) -> None:
    # x1 and its positive are opposite, x2 is like x1 and y2 like y1: at τ = 0.01, e^(-200) is 0 in single precision.
    # s⁺ = -1 and the largest s⁻ = 1 for each anchor: the loss is 2/τ = 200 and log(1 + 2 e^(-200)), that is nothing.
    sentences = torch.tensor([[1.0, 0], [2, 0], [-1, 0], [-3, 0]], requires_grad=True)
    negatives = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]).bool()
    loss = sentence_loss(sentences, negatives, 0.0, space, 0.01)
    assert loss.item() == pytest.approx(200)
    tilted = sentences.detach() + torch.tensor([[0, 0.1], [0, 0.2], [0, 0.2], [0, 0.9]])
    results = []
    for dtype in (torch.float32, torch.float64):
        values = tilted.to(dtype).requires_grad_()
        loss = sentence_loss(values, negatives, 0.0, space, 0.01)
        results.append((loss.detach().double(), torch.autograd.grad(loss, values)[0].double()))
    assert results[1][0] > 150
    assert_close(*results, tolerance=1e-5)


# --- words ----------------------------------------------------------------------------------------------------------


def word_losses(queries: Tensor, vocabulary: Tensor, bag: Tensor, sampled: Tensor, temperature: float = 1.0) -> Tensor:
    return word_contrast(queries, vocabulary, bag, sampled, temperature)[0]


def test_word_contrast_worked_by_hand() -> None:
    # q̄ points along the first axis; the words' cosines with it are 1, 0, -1 and 0, whatever their lengths
    vocabulary = torch.tensor([[3.0, 0], [0, 2], [-5, 0], [0, -1]], dtype=torch.float64)
    queries, bag, sampled = torch.tensor([[0.1, 0.0]]).double(), torch.tensor([[0, 1]]), torch.tensor([[2, 3]])
    e = math.e
    # word 0: log(1 + (e^-1 + e^0) / e^1); word 1: log(1 + (e^-1 + e^0) / e^0); their mean
    expected = (math.log(1 + (1 / e + 1) / e) + math.log(1 + 1 / e + 1)) / 2
    losses, same = word_contrast(queries, vocabulary, bag, sampled)
    assert losses.item() == pytest.approx(expected) and torch.equal(same, vocabulary)
    # τ = 1/2 squares the exponentials
    expected = (math.log(1 + (1 / e**2 + 1) / e**2) + math.log(1 + 1 / e**2 + 1)) / 2
    assert word_losses(queries, vocabulary, bag, sampled, 0.5).item() == pytest.approx(expected)


def test_contrast_with_sampled_worked_by_hand() -> None:
    # exp(score) are these numbers. Pair 0: words 1 and 6 against 2 and 3, log(6/1) and log(11/6), their mean;
    # pair 1: word 4 against 4, log 2, the rest is padding
    scores = torch.tensor([[1.0, 6, 2, 3], [4, 9, 4, 9]]).log()
    losses, gradient = contrast_with_sampled(scores, torch.tensor([[7, 8], [7, -1]]), torch.tensor([[0, 1], [0, -1]]))
    assert losses.exp().tolist() == pytest.approx([math.sqrt(6 * 11 / 6), 2])
    # 1/6 of word 1 is right, 6/11 of word 6: half of what lacks pulls them, and pushes the others in parts of 2 and 3
    push = (5 / 6 + 5 / 11) / 2
    expected = [-5 / 12, -5 / 22, 2 / 5 * push, 3 / 5 * push, -1 / 2, 0, 1 / 2, 0]
    assert gradient.flatten().tolist() == pytest.approx(expected)


def words_one_by_one(queries: Tensor, vocabulary: Tensor, bag: Tensor, sampled: Tensor, temperature: float) -> Tensor:
    """L_W as the paper writes it: one InfoNCE for each word of a bag, all with the same negatives."""

    def weight(query: Tensor, word: int) -> Tensor:
        embedding = vocabulary[word]
        return (query @ embedding / (query.norm() * embedding.norm()) / temperature).exp()

    losses = []
    for query, words, negatives in zip(queries, bag.tolist(), sampled.tolist()):
        against = sum(weight(query, word) for word in negatives if word >= 0)
        of_words = [-(weight(query, w) / (weight(query, w) + against)).log() for w in words if w >= 0]
        losses.append(sum(of_words, torch.zeros(()).double()) / max(len(of_words), 1))
    return torch.stack(losses)


BAG = torch.tensor([[4, 5, 6], [5, 7, -1], [9, -1, -1]])
SAMPLED = torch.tensor([[0, 1, 2, 3], [4, 0, 11, -1], [1, -1, -1, -1]])  # word 4 is in one bag, a negative in another


def queries_and_words(queries: int = 3, words: int = 12, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """(queries, 5) and (words, 5), of different lengths, which learn."""
    lengths = torch.linspace(0.5, 2, words)[:, None]
    made = random_normal(queries, 5, seed=2), random_normal(words, 5, seed=3) * lengths
    return tuple(tensor.to(dtype).requires_grad_() for tensor in made)


@pytest.fixture(params=[1024, 4, 1], ids=lambda words: f"{words} words at once")
def words_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(word_sampling, "WORDS_AT_ONCE", request.param)
    return request.param


@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_word_loss_and_gradients_agree_with_the_equations_one_by_one(temperature: float, words_at_once: int) -> None:
    weights, results = random_normal(3, seed=7), []
    for losses_of in (word_losses, words_one_by_one):
        queries, vocabulary = queries_and_words()
        losses = losses_of(queries, vocabulary, BAG, SAMPLED, temperature)
        results.append((losses.detach(), *torch.autograd.grad(losses @ weights, (queries, vocabulary))))
    _, of_queries, of_words = results[1]
    assert (of_queries.norm(dim=1) > 1e-6).all()
    assert results[0][2].norm(dim=1).nonzero().flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 9, 11]
    assert_close(*results)


@pytest.mark.parametrize("seed", range(3))
def test_random_bags_and_samples_that_share_many_words_agree_with_the_equations(seed: int, words_at_once: int) -> None:
    random = torch.Generator().manual_seed(seed)
    bag, sampled = torch.rand(6, 15, generator=random).argsort(1).split([5, 10], 1)  # of the same 15 of 30 words
    bag = bag.masked_fill(torch.rand(6, 5, generator=random) < 0.3, -1)  # padding may stand anywhere
    sampled = sampled.masked_fill(torch.rand(6, 10, generator=random) < 0.3, -1)
    bag[seed], sampled[seed, 0] = -1, 29  # an empty bag: its sample, word 29 among it, must not learn
    assert len(set(bag.flatten().tolist()) & set(sampled.flatten().tolist())) > 5
    weights, results = random_normal(6, seed=7), []
    for losses_of in (word_losses, words_one_by_one):
        queries, vocabulary = queries_and_words(6, 30)
        losses = losses_of(queries, vocabulary, bag, sampled, 0.1)
        results.append((losses.detach(), *torch.autograd.grad(losses @ weights, (queries, vocabulary))))
    assert_close(*results)
    for losses, of_queries, of_words in results:
        assert losses[seed] == 0 and (of_queries[seed] == 0).all() and (of_words[29] == 0).all()


# The vocabulary that comes back: `use` is what somebody does with it afterwards


def gradients_of(total: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype = torch.float64) -> list[Tensor | None]:
    """Gradients of the queries and of the vocabulary of `total(losses, vocabulary that came back)`."""
    queries, vocabulary = queries_and_words(dtype=dtype)
    losses, same = word_contrast(queries, vocabulary, BAG, SAMPLED, 0.2)
    assert torch.equal(same, vocabulary) and same.data_ptr() == vocabulary.data_ptr()
    total(losses, same).backward()
    return [queries.grad, vocabulary.grad]


def use(vocabulary: Tensor) -> Tensor:
    return (vocabulary.square() * random_normal(12, 5, seed=8)).sum()


def test_the_gradient_of_a_further_use_of_the_vocabulary_is_added_to_that_of_the_losses() -> None:
    of_losses = gradients_of(lambda losses, _: losses.sum())
    _, vocabulary = queries_and_words()
    (of_use,) = torch.autograd.grad(use(vocabulary), vocabulary)
    both = gradients_of(lambda losses, vocabulary: losses.sum() + use(vocabulary))
    assert_close((*both,), (of_losses[0], of_losses[1] + of_use))
    # a use whose gradient is one number seen V d times, and two uses
    both = gradients_of(lambda losses, vocabulary: losses.sum() + vocabulary.sum())
    assert_close((*both,), (of_losses[0], of_losses[1] + 1))
    both = gradients_of(lambda losses, vocabulary: losses.sum() + use(vocabulary) + vocabulary.sum())
    assert_close((*both,), (of_losses[0], of_losses[1] + of_use + 1))
    # and a second contrast of the same vocabulary
    queries, vocabulary = queries_and_words()
    losses, same = word_contrast(queries, vocabulary, BAG, SAMPLED, 0.2)
    again, _ = word_contrast(queries, same, BAG, SAMPLED, 0.2)
    (losses.sum() + 2 * again.sum()).backward()
    assert_close((queries.grad, vocabulary.grad), (3 * of_losses[0], 3 * of_losses[1]))


def test_the_vocabulary_alone_learns_from_its_use_alone() -> None:
    of_queries, of_words = gradients_of(lambda _, vocabulary: use(vocabulary))
    _, vocabulary = queries_and_words()
    assert of_queries is None
    assert_close((of_words,), torch.autograd.grad(use(vocabulary), vocabulary))


def test_word_gradients_add_up_when_asked_for_again_and_stay_when_others_are_made() -> None:
    queries, vocabulary = queries_and_words()
    losses, same = word_contrast(queries, vocabulary, BAG, SAMPLED, 0.2)
    total = losses.sum() + use(same)
    first = torch.autograd.grad(total, (queries, vocabulary), retain_graph=True)
    kept = [gradient.clone() for gradient in first]
    gradients_of(lambda losses, _: 5 * losses.sum())  # may not write where `first` lies
    second = torch.autograd.grad(total, (queries, vocabulary), retain_graph=True)
    total.backward(retain_graph=True)
    total.backward()
    assert_close((*first, *second), (*kept, *kept))
    assert_close((queries.grad, vocabulary.grad), (2 * kept[0], 2 * kept[1]))


def test_queries_or_vocabulary_that_do_not_learn_leave_the_gradient_of_the_other() -> None:
    right = gradients_of(lambda losses, _: losses.sum())
    for frozen in (0, 1):
        inputs = [*queries_and_words()]
        inputs[frozen].requires_grad_(False)
        word_losses(*inputs, BAG, SAMPLED, 0.2).sum().backward()
        assert inputs[frozen].grad is None
        assert_close((inputs[1 - frozen].grad,), (right[1 - frozen],))


def test_in_single_precision_word_gradients_are_nearly_the_same() -> None:
    right = gradients_of(lambda losses, _: losses.sum())
    nearly = gradients_of(lambda losses, _: losses.sum(), torch.float32)
    assert nearly[0].dtype == nearly[1].dtype == torch.float32
    assert_close(tuple(gradient.double() for gradient in nearly), (*right,), tolerance=1e-5)


def test_a_vocabulary_in_bfloat16_is_contrasted_in_the_precision_of_the_queries() -> None:
    queries, vocabulary = queries_and_words(dtype=torch.float32)
    half = vocabulary.detach().bfloat16().requires_grad_()
    exact = half.detach().float().requires_grad_()  # the same numbers
    results = [word_losses(queries, words, BAG, SAMPLED, 0.2) for words in (half, exact)]
    torch.testing.assert_close(*results)
    for losses in results:
        losses.sum().backward()
    assert half.grad.dtype == torch.bfloat16
    assert_close((half.grad.float(),), (exact.grad,), tolerance=1e-2)


@pytest.mark.parametrize("lambda_gradient", [False, True])
@pytest.mark.parametrize("space", SPACES)
def test_half_precision_and_autocast_are_contrasted_in_fp32(space: str, lambda_gradient: bool) -> None:
    negatives, half = in_batch_negatives(torch.arange(8)), random_normal(8, 6).bfloat16()
    settings = negatives, 0.05, 0.5, space, None, lambda_gradient
    expected = sentence_contrast(half.float(), *settings)
    for sentences in (half.requires_grad_(), half.detach().float()):
        with torch.autocast("cpu", torch.bfloat16):
            found = sentence_contrast(sentences, *settings)
        torch.testing.assert_close(found, expected)
    sentence_contrast(half, *settings)[0].backward()
    assert half.grad.dtype == torch.bfloat16 and half.grad.isfinite().all()
    queries, vocabulary = queries_and_words(dtype=torch.bfloat16)
    exact = word_losses(queries.float(), vocabulary, BAG, SAMPLED, 0.2)
    torch.testing.assert_close(word_losses(queries, vocabulary, BAG, SAMPLED, 0.2), exact)


def test_word_losses_follow_their_pairs_and_padding_changes_nothing() -> None:
    queries, vocabulary = random_normal(3, 5), random_normal(12, 5, seed=1)
    losses, order = word_losses(queries, vocabulary, BAG, SAMPLED), torch.tensor([2, 0, 1])
    torch.testing.assert_close(word_losses(queries[order], vocabulary, BAG[order], SAMPLED[order]), losses[order])
    wider = word_losses(queries, vocabulary, F.pad(BAG, (0, 3), value=-1), F.pad(SAMPLED, (0, 2), value=-1))
    torch.testing.assert_close(wider, losses)
    shuffled = word_losses(queries, vocabulary, BAG.flip(1), SAMPLED.flip(1))
    torch.testing.assert_close(shuffled, losses)


def test_lengths_of_queries_and_words_do_not_matter() -> None:
    queries, vocabulary = random_normal(3, 5), random_normal(12, 5, seed=1)
    lengths = torch.linspace(0.1, 9, 12, dtype=torch.float64)[:, None]
    torch.testing.assert_close(
        word_losses(7 * queries, lengths * vocabulary, BAG, SAMPLED), word_losses(queries, vocabulary, BAG, SAMPLED)
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
    queries = random_normal(2, 5).to(dtype).requires_grad_()
    vocabulary = random_normal(12, 5).to(dtype).requires_grad_()
    losses = word_losses(queries, vocabulary, torch.tensor(bag).long(), torch.tensor(sampled).long(), temperature)
    losses.sum().backward()
    assert losses[1] == 0 and (queries.grad[1] == 0).all()
    assert losses[0] == 0 if expected == "zero" else losses[0] > 0
    assert queries.grad.isfinite().all() and vocabulary.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_zero_query_and_a_zero_word_leave_finite_losses_and_gradients(dtype: torch.dtype) -> None:
    queries, vocabulary = random_normal(3, 5).to(dtype), random_normal(12, 5).to(dtype)
    queries[0] = vocabulary[5] = vocabulary[11] = 0
    losses = word_losses(queries.requires_grad_(), vocabulary.requires_grad_(), BAG, SAMPLED)
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


# --- the gradient through λ -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", ["unit", "raw"])
def test_the_gradient_through_lambda_is_that_of_finite_differences(space: str) -> None:
    sentences = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    negatives = in_batch_negatives(torch.arange(8))
    (through, moved), (fixed, same) = (
        sentence_contrast(sentences, negatives, 0.5, 0.8, space, 20, chosen) for chosen in (True, False)
    )
    torch.testing.assert_close((through, moved), (fixed, same))
    assert moved < 1
    gradients = [torch.autograd.grad(loss, sentences)[0] for loss in (through, fixed)]
    assert (gradients[0] - gradients[1]).abs().max() > 1e-3, "λ depends on the sentences"
    assert torch.autograd.gradcheck(
        lambda rows: sentence_contrast(rows, negatives, 0.5, 0.8, space, lambda_gradient=True)[0], (sentences,)
    )


@pytest.mark.parametrize("space", ["unit", "raw"])
def test_the_gradient_through_lambda_is_finite_for_equal_sentences(space: str) -> None:
    sentences = torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [0.0, 1.0]]).requires_grad_()
    loss, _ = sentence_contrast(sentences, in_batch_negatives(torch.arange(4)), 1.0, 0.9, space, lambda_gradient=True)
    (gradient,) = torch.autograd.grad(loss, sentences)
    assert loss.isfinite() and gradient.isfinite().all()
