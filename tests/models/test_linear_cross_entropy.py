"""One gradient of the word embeddings for look-ups and predictions: PyTorch's own, in less memory."""

import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hictl_hf.models import linear_cross_entropy as vocabulary
from hictl_hf.models.linear_cross_entropy import gradient_buffer, linear_cross_entropy, tied_embedding

V, D, PADDING = 37, 6, 1
NUMBERS = [0, 1, D - 1, D, D + 1, D + 4, D + 3 * 4 + 2]  # of masked words, in blocks of D and then 4
EXACT = {"rtol": 1e-12, "atol": 1e-12}
Tensors = dict[str, Tensor]


@pytest.fixture(autouse=True)
def ragged_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 37 words in slices of 10, 10, 10 and 7."""
    monkeypatch.setattr(vocabulary, "WORDS_AT_ONCE", 10)
    monkeypatch.setattr(vocabulary, "rows_at_once", lambda _: 4)


@pytest.fixture(autouse=True)
def full_of_garbage() -> Iterator[None]:
    """Memory that nobody initialises is NaN: a gradient that is not written everywhere shows."""
    torch.use_deterministic_algorithms(True)
    gradient_buffer(torch.empty(V, D, dtype=torch.float64)).fill_(torch.nan)
    yield
    torch.use_deterministic_algorithms(False)


def problem(number: int = 9, dtype: torch.dtype = torch.float64, scale: float = 1.0, **frozen: bool) -> Tensors:
    """Parameters "embeddings", "bias" and "hidden", and ids to look up and to predict, among both some twice."""
    random = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return (torch.randn(*shape, generator=random, dtype=torch.float64) * scale).to(dtype)

    parameters = {"embeddings": normal(V, D), "bias": normal(V), "hidden": normal(number, D)}
    for name, parameter in parameters.items():
        parameter.requires_grad_(not frozen.get(name, False))
    ids = torch.tensor([[3, PADDING, 36, 3], [0, 5, PADDING, 3]])
    targets = torch.randint(V, (number,), generator=random)
    targets[: number // 2] = 3
    return {**parameters, "ids": ids, "targets": targets, "direction": normal(*ids.shape, D)}


def ours(given: Tensors, items: Any = None, used: str = "look-up and head") -> Tensor:
    """() a loss through both uses of the vocabulary, or one of them."""
    rows, shared = tied_embedding(given["embeddings"], given["ids"], PADDING)
    looked_up = (rows * given["direction"]).sum().square()
    predicted = linear_cross_entropy(given["hidden"], shared, given["bias"], given["targets"], items)
    return {"look-up": looked_up, "head": predicted, "look-up and head": looked_up + predicted}[used]


def slow(given: Tensors, items: Any = None, used: str = "look-up and head") -> Tensor:
    """The same by `F.embedding` and `F.cross_entropy`."""
    rows = F.embedding(given["ids"], given["embeddings"], PADDING)
    looked_up = (rows * given["direction"]).sum().square()
    logits = F.linear(given["hidden"], given["embeddings"], given["bias"])
    predicted = F.cross_entropy(
        logits.to(torch.promote_types(logits.dtype, torch.float32)), given["targets"], reduction="sum"
    )
    predicted = predicted / (max(len(logits), 1) if items is None else items)
    return {"look-up": looked_up, "head": predicted, "look-up and head": looked_up + predicted}[used]


def gradients(given: Tensors) -> Tensors:
    return {name: given[name].grad for name in ("embeddings", "bias", "hidden") if given[name].grad is not None}


def after_backward(loss_of: Callable[..., Tensor], given: Tensors, *arguments: Any) -> tuple[Tensor, Tensors]:
    loss = loss_of(given, *arguments)
    loss.backward()
    return loss.detach(), gradients(given)


# --- agreement with PyTorch -----------------------------------------------------------------------------------------


def test_a_prediction_among_three_words_worked_by_hand() -> None:
    # logits log 1, log 2, log 5 for the target 1: loss log(8/2), p = 1/8, 2/8, 5/8 and so p - y = (1, -6, 5)/8;
    # h = (2, 0): ∂E = (p - y) hᵀ, ∂h = (p - y) E with E's second column free
    hidden = torch.tensor([[2.0, 0.0]], requires_grad=True)
    embeddings = torch.tensor([[0.0, 8], [0.5 * 2**0.5, 0], [1, 16]], requires_grad=True)
    bias = (torch.tensor([1.0, 2, 5]).log() - (hidden @ embeddings.T)[0]).detach().requires_grad_()
    loss = linear_cross_entropy(hidden, embeddings, bias, torch.tensor([1]))
    loss.backward()
    assert loss.exp().item() == pytest.approx(4)
    assert bias.grad.tolist() == pytest.approx([1 / 8, -6 / 8, 5 / 8])
    assert embeddings.grad.flatten().tolist() == pytest.approx([2 / 8, 0, -12 / 8, 0, 10 / 8, 0])
    assert hidden.grad.flatten().tolist() == pytest.approx([-6 / 8 * 0.5 * 2**0.5 + 5 / 8, 8 / 8 + 5 / 8 * 16])


@pytest.mark.parametrize("items", [None, 5, torch.tensor(3), torch.tensor(2.5)], ids=str)
@pytest.mark.parametrize("number", NUMBERS)
def test_loss_and_gradients_are_those_of_embedding_and_cross_entropy(number: int, items: Any) -> None:
    found, expected = (after_backward(loss_of, problem(number), items) for loss_of in (ours, slow))
    assert expected[1].keys() == {"embeddings", "bias", "hidden"}
    if number:
        assert expected[0] > 0.1 and min(gradient.abs().max() for gradient in expected[1].values()) > 1e-3
    torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("smoothing", [0.1, 0.5, 1.0])
def test_smoothed_labels_are_those_of_cross_entropy(smoothing: float, number: int) -> None:
    def smoothed(given: Tensors) -> Tensor:
        tensors = given["hidden"], given["embeddings"], given["bias"], given["targets"]
        return linear_cross_entropy(*tensors, 5, smoothing)

    def usual(given: Tensors) -> Tensor:
        logits = F.linear(given["hidden"], given["embeddings"], given["bias"])
        return F.cross_entropy(logits, given["targets"], reduction="sum", label_smoothing=smoothing) / 5

    found, expected, hard = (after_backward(of, problem(number)) for of in (smoothed, usual, lambda it: ours(it, 5)))
    torch.testing.assert_close(found, expected, **EXACT)
    with torch.no_grad():
        torch.testing.assert_close(smoothed(problem(number)), expected[0], **EXACT)
    if number:
        assert (found[1]["bias"] - hard[1]["bias"]).abs().max() > 1e-3  # smoothing was at work
    loss = smoothed(given := problem(number))
    for _ in range(2):  # the second pass makes the gradients anew
        for name in expected[1]:
            given[name].grad = None
        loss.backward(retain_graph=True)
        torch.testing.assert_close(gradients(given), expected[1], **EXACT)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_form_for_gpus_gives_the_same(smoothing: float, number: int) -> None:
    """37 words, padded to 40, in blocks of 4 tokens."""
    given = problem(number)
    tensors = [given[name].detach() for name in ("hidden", "embeddings", "bias", "targets")]
    arguments = *tensors, torch.tensor(5.0, dtype=torch.float64), smoothing, torch.float64
    found, expected = (of(*arguments) for of in (vocabulary.by_rows, vocabulary.by_slices))
    torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("slices", [1, 6, 36, 37, 1000])
def test_the_number_of_words_in_a_slice_changes_nothing(slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "WORDS_AT_ONCE", slices)
    torch.testing.assert_close(after_backward(ours, problem(13)), after_backward(slow, problem(13)), **EXACT)


@pytest.mark.parametrize("used", ["look-up", "head"])
def test_one_use_of_the_vocabulary_needs_no_other(used: str) -> None:
    found, expected = (after_backward(loss_of, problem(), None, used) for loss_of in (ours, slow))
    assert expected[1]["embeddings"].abs().max() > 0.1
    torch.testing.assert_close(found, expected, **EXACT)


def test_padding_learns_nothing_from_look_ups_but_all_from_predictions() -> None:
    looked_up, predicted = (
        after_backward(ours, problem(), None, used)[1]["embeddings"] for used in ("look-up", "head")
    )
    assert (looked_up[PADDING] == 0).all() and (looked_up[3] != 0).all()
    assert (predicted[PADDING] != 0).all()
    given = problem()
    (tied_embedding(given["embeddings"], given["ids"])[0] * given["direction"]).sum().backward()
    assert (given["embeddings"].grad[PADDING] != 0).all()  # without a padding id it is a word like others


def test_look_ups_may_follow_one_another_and_the_embeddings_be_used_besides() -> None:
    def several(given: Tensors) -> Tensor:
        first, shared = tied_embedding(given["embeddings"], given["ids"], PADDING)
        second, shared = tied_embedding(shared, given["targets"])
        _, shared = tied_embedding(shared, given["ids"])  # not used
        last, _ = tied_embedding(shared, torch.tensor(4))
        predicted = linear_cross_entropy(given["hidden"] + second.tanh(), shared, given["bias"], given["targets"])
        penalty = given["embeddings"].square().sum() + shared.cos().sum()
        return predicted + (first * given["direction"]).sum() + last.sum() + penalty

    def one_by_one(given: Tensors) -> Tensor:
        embeddings = given["embeddings"]
        first, second = F.embedding(given["ids"], embeddings, PADDING), embeddings[given["targets"]]
        logits = F.linear(given["hidden"] + second.tanh(), embeddings, given["bias"])
        penalty = embeddings.square().sum() + embeddings.cos().sum()
        looked_up = (first * given["direction"]).sum() + embeddings[4].sum()
        return F.cross_entropy(logits, given["targets"]) + looked_up + penalty

    torch.testing.assert_close(after_backward(several, problem()), after_backward(one_by_one, problem()), **EXACT)


def test_look_ups_add_to_the_gradient_of_a_sum_which_is_one_number_seen_often() -> None:
    given = problem()
    rows, shared = tied_embedding(given["embeddings"], given["ids"], PADDING)
    (rows.sum() + 2 * shared.sum()).backward()
    times = torch.bincount(given["ids"].flatten(), minlength=V).index_fill(0, torch.tensor(PADDING), 0)
    assert torch.equal(given["embeddings"].grad, (2.0 + times.double())[:, None].expand(V, D))


# --- ordinary autograd ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [4, 13])
def test_what_comes_from_above_multiplies_the_gradients(number: int) -> None:
    for factor in (1024.0, -0.5, 0.0):
        given, expected = problem(number), problem(number)
        (ours(given) * factor).backward()
        (slow(expected) * factor).backward()
        torch.testing.assert_close(gradients(given), gradients(expected), rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("number", [4, 13])
def test_a_second_backward_pass_through_a_graph_adds_the_same_gradients(number: int) -> None:
    given, reference = problem(number), problem(number)
    loss = ours(given)
    for factor in (1.0, 3.0, 1.0):
        (loss * factor).backward(retain_graph=True)
        (slow(reference) * factor).backward()
        torch.testing.assert_close(gradients(given), gradients(reference), **EXACT)


def test_two_graphs_may_be_made_before_either_is_used() -> None:
    one, other, expected = problem(4), problem(9), problem(4)
    other["embeddings"] = one["embeddings"]
    losses = [ours(one), ours(other)]
    losses[1].backward()
    losses[0].backward()
    slow(expected).backward()
    slow({**problem(9), "embeddings": expected["embeddings"]}).backward()
    torch.testing.assert_close(one["embeddings"].grad, expected["embeddings"].grad, **EXACT)


def test_gradients_add_up_over_passes() -> None:
    given, expected = problem(), problem()
    before = [torch.randn_like(given["embeddings"]) for _ in range(2)]
    for each in (given, expected):
        each["embeddings"].grad = before[0].clone()
    for factor in (1.0, 0.5, 2.0):
        (ours(given) * factor).backward()
        (slow(expected) * factor).backward()
    torch.testing.assert_close(gradients(given), gradients(expected), **EXACT)


def test_gradients_asked_for_by_name_stay_what_they_are() -> None:
    given, expected = problem(), problem()
    names, loss = ("hidden", "embeddings", "bias"), ours(given)
    first = torch.autograd.grad(loss, [given[name] for name in names], retain_graph=True)
    second = torch.autograd.grad(loss * 2, [given[name] for name in names])
    right = torch.autograd.grad(slow(expected), [expected[name] for name in names])
    torch.testing.assert_close(first, right, **EXACT)
    torch.testing.assert_close(second, tuple(2 * gradient for gradient in right), **EXACT)
    assert given["embeddings"].grad is None


@pytest.mark.parametrize(
    "frozen", [("embeddings",), ("bias",), ("hidden",), ("embeddings", "bias"), ("bias", "hidden")], ids="-".join
)
def test_what_is_frozen_gets_no_gradient_and_the_rest_the_right_one(frozen: tuple[str, ...]) -> None:
    found, expected = (after_backward(loss_of, problem(13, **dict.fromkeys(frozen, True))) for loss_of in (ours, slow))
    assert found[1].keys() == {"embeddings", "bias", "hidden"} - {*frozen}
    torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode, nullcontext])
def test_the_loss_is_the_same_without_gradients(without: Callable[[], Any]) -> None:
    for number in (0, 4, 13):
        given = problem(number, embeddings=without is nullcontext, bias=True, hidden=True)
        with without():
            loss = ours(given)
        assert not loss.requires_grad
        torch.testing.assert_close(loss, slow(given).detach(), **EXACT)


def test_hooks_see_the_whole_gradient_and_may_change_it() -> None:
    given, seen = problem(), {}
    given["embeddings"].register_hook(lambda gradient: seen.update(before=gradient.clone()) or gradient * 10)
    given["embeddings"].register_post_accumulate_grad_hook(lambda weight: seen.update(after=weight.grad.clone()))
    expected = after_backward(slow, problem())[1]["embeddings"]
    found = after_backward(ours, given)[1]["embeddings"]
    assert not seen["before"].is_sparse
    torch.testing.assert_close(seen["before"], expected, **EXACT)
    torch.testing.assert_close((found, seen["after"]), (expected * 10, expected * 10), **EXACT)


def test_embeddings_that_changed_since_the_forward_pass_are_not_silently_used() -> None:
    given = problem()
    loss = ours(given)
    loss.backward(retain_graph=True)
    with torch.no_grad():
        given["embeddings"] += 1
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


# --- precision ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-2, 1.0])
@pytest.mark.parametrize("number", [6, 50])
@pytest.mark.parametrize("words", [10, 3000])
def test_in_half_precision_errors_are_no_larger_than_those_of_pytorch(
    words: int, number: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 300 slices, each of which adds too little to be seen by a sum in half precision; and in one, whose logarithm
    would be rounded."""
    monkeypatch.setattr(vocabulary, "WORDS_AT_ONCE", words)
    monkeypatch.setattr(vocabulary, "rows_at_once", lambda _: 16)
    random = torch.Generator().manual_seed(0)
    embeddings = torch.randn(3000, 32, generator=random) * 0.3 + torch.randn(32, generator=random)
    given = {"embeddings": embeddings, "bias": torch.randn(3000, generator=random) * 0.1}
    given["hidden"] = torch.randn(number, 32, generator=random) * scale
    targets = torch.randint(3000, (number,), generator=random)

    def results(loss_of: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        own = {name: value.clone().to(dtype).requires_grad_() for name, value in given.items()}
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.float32):
            loss = loss_of(own["hidden"], own["embeddings"], own["bias"], targets)
        loss.backward()
        assert {own[name].grad.dtype for name in own} == {dtype} == {loss.dtype}
        return [loss.detach(), *(own[name].grad for name in own)]

    def of_pytorch(hidden: Tensor, embeddings: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(hidden, embeddings, bias).to(embeddings.dtype), targets)

    exact = results(of_pytorch, torch.float64)
    errors, usual = (
        [((value - right).norm() / right.norm()).item() for value, right in zip(results(loss_of, torch.float32), exact)]
        for loss_of in (linear_cross_entropy, of_pytorch)
    )
    assert max(errors[1:]) > 1e-5  # half precision was at work
    assert max(errors) < 0.02
    assert all(error < 1.5 * other + 1e-4 for error, other in zip(errors, usual)), (errors, usual)


@pytest.mark.parametrize("number", [4, 50])
def test_the_loss_without_gradients_is_no_less_precise(number: int) -> None:
    for dtype, autocast, tolerance in (
        (torch.float32, False, 1e-6),
        (torch.float32, True, 2e-3),
        (torch.bfloat16, False, 2e-3),
    ):
        given = problem(number, dtype)
        tensors = given["hidden"], given["embeddings"], given["bias"], given["targets"]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            trained = linear_cross_entropy(*tensors)
            with torch.no_grad():
                evaluated = linear_cross_entropy(*tensors)
        assert trained.item() == pytest.approx(evaluated.item(), rel=tolerance), (dtype, autocast)


def test_under_fp16_the_head_stays_in_full_precision() -> None:
    """The least number of fp16 is 6e-8: a probability divided by the items of a large batch would vanish."""
    loss, expected = after_backward(ours, problem(13, torch.float32))
    with torch.autocast("cpu", torch.float16):
        under_fp16, found = after_backward(ours, problem(13, torch.float32))
    assert torch.equal(under_fp16, loss)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(("dtype", "items"), [(torch.float16, 70_000), (torch.bfloat16, 257)])
def test_items_are_counted_in_full_where_the_model_is_in_half_precision(dtype: torch.dtype, items: int) -> None:
    given = problem(13, dtype)
    sums = [ours(given, number, "head").item() * number for number in (1, items)]
    assert sums[0] == pytest.approx(sums[1], rel=1e-3)


def test_a_model_in_half_precision_gets_gradients_in_half_precision() -> None:
    loss, found = after_backward(ours, problem(13, torch.bfloat16))
    _, expected = after_backward(slow, problem(13))
    for name, gradient in found.items():
        assert gradient.dtype == torch.bfloat16
        assert (gradient.double() - expected[name]).norm() < 0.03 * expected[name].norm()


@pytest.mark.parametrize("number", [4, 13])
def test_extreme_logits_stay_finite(number: int) -> None:
    for dtype in (torch.float32, torch.float64):
        given, expected = problem(number, dtype, scale=70), problem(number, scale=70)
        largest = (given["hidden"] @ given["embeddings"].T).abs().max()
        assert largest > 1e4
        found = after_backward(ours, given, None, "head")
        assert found[0].isfinite() and all(gradient.isfinite().all() for gradient in found[1].values())
        if dtype is torch.float64:
            torch.testing.assert_close(found, after_backward(slow, expected, None, "head"), rtol=1e-9, atol=1e-9)


# --- memory ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Tensors:
    """4000 words of 64 dimensions: a gradient of 1 MB in fp32, 48 masked words."""
    monkeypatch.setattr(vocabulary, "WORDS_AT_ONCE", 256)
    random = torch.Generator().manual_seed(1)
    shapes = {"embeddings": (4000, 64), "bias": (4000,), "hidden": (48, 64), "direction": (30, 64)}
    given = {name: torch.randn(*shape, generator=random) for name, shape in shapes.items()}
    for name in ("embeddings", "bias", "hidden"):
        given[name].requires_grad_()
    gc.collect()  # graphs of other tests may hold memory
    return given | {"ids": torch.arange(0, 900, 30), "targets": torch.randint(4000, (48,), generator=random)}


def address(given: Tensors) -> int:
    return given["embeddings"].grad.data_ptr()


def test_the_gradient_of_the_next_step_lies_where_that_of_the_last_did(large: Tensors) -> None:
    after_backward(ours, large)
    expected, first = large["embeddings"].grad.clone(), address(large)
    for _ in range(3):
        large["embeddings"].grad = None
        decoy = torch.empty_like(expected)  # would lie there if the memory were given back
        after_backward(ours, large)
        assert address(large) == first != decoy.data_ptr()
        assert torch.equal(large["embeddings"].grad, expected)


HOLDERS = {
    "the gradient": lambda gradient: gradient,
    "its alias": lambda gradient: gradient.detach(),
    "some rows": lambda gradient: gradient[3:5],
    "its transpose": lambda gradient: gradient.T,
    "one element": lambda gradient: gradient[-1, -1],
    "its storage": lambda gradient: gradient.untyped_storage(),
    "an array": lambda gradient: gradient.numpy(),
    "a part of an array": lambda gradient: gradient.numpy()[7:8],
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_that_somebody_holds_is_left_alone(holder: str, large: Tensors) -> None:
    after_backward(ours, large)
    first, before = address(large), large["embeddings"].grad.clone()
    held = HOLDERS[holder](large["embeddings"].grad)
    large["embeddings"].grad = None
    for _ in range(2):
        (ours(large) * 3).backward()
        assert address(large) != first
        large["embeddings"].grad = None
    if isinstance(held, Tensor):
        assert torch.equal(held, HOLDERS[holder](before))
    del held


def test_memory_is_left_alone_while_a_graph_will_need_it(large: Tensors) -> None:
    expected = after_backward(slow, {**large, **fresh(large)})[1]["embeddings"]
    waiting = ours(large)
    for _ in range(2):
        after_backward(ours, other := {**large, **fresh(large)})
        del other
    waiting.backward()
    torch.testing.assert_close(large["embeddings"].grad, expected, rtol=1e-5, atol=1e-5)


def fresh(given: Tensors) -> Tensors:
    """The parameters again, without gradients."""
    return {name: given[name].detach().clone().requires_grad_() for name in ("embeddings", "bias", "hidden")}


class Allocations(TorchDispatchMode):
    """Sizes in bytes of all memory that operations make."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), settings: Any = None) -> Any:
        outputs = function(*arguments, **(settings or {}))
        known = {storage(value) for value in tree_leaves((arguments, settings)) if isinstance(value, Tensor)}
        made = [value for value in tree_leaves(outputs) if isinstance(value, Tensor) and storage(value) not in known]
        self.sizes += [value.untyped_storage().nbytes() for value in made]
        return outputs


def storage(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


@pytest.mark.parametrize("autocast", [False, True])
def test_nothing_of_the_size_of_the_logits_is_made_beside_the_gradient(autocast: bool, large: Tensors) -> None:
    logits = 48 * 4000 * 4 // 2  # bytes of half of them

    def made(loss_of: Callable[..., Tensor]) -> list[int]:
        after_backward(loss_of, large)
        large["embeddings"].grad = None
        with Allocations() as allocations, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss_of(large).backward()
        assert min(len(allocations.sizes), large["embeddings"].grad.abs().max()) > 0
        large["embeddings"].grad = None
        return [size for size in allocations.sizes if size >= logits]

    assert len(made(slow)) >= 5  # logits, their logarithms and gradients; two gradients of E and their sum
    assert made(ours) == []


def test_a_whole_step_makes_no_second_matrix_of_the_size_of_the_embeddings(
    toy_model: Callable[..., nn.Module], toy_batch: Callable[..., Tensors], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "WORDS_AT_ONCE", 2048)
    model, batch = toy_model(vocab_size=20_000), toy_batch(vocab_size=20_000)
    made = []
    for _ in range(2):
        model.zero_grad()
        gc.collect()
        with Allocations() as allocations:
            model(**batch).loss.backward()
        made.append([size for size in allocations.sizes if size >= 20_000 * 32 * 4])
    assert made == [[20_000 * 32 * 4], []]  # the gradient, whose memory the second step has


def test_more_masked_words_than_dimensions_cost_a_block_of_logits(
    large: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "rows_at_once", lambda _: 16)
    large["hidden"] = torch.randn(200, 64, requires_grad=True)  # 64, and then 16 at a time
    large["targets"] = torch.randint(4000, (200,))
    after_backward(ours, large)
    large["embeddings"].grad = None
    with Allocations() as allocations:
        ours(large).backward()
    assert max(allocations.sizes) == 16 * 4000 * 4


def test_an_optimiser_and_clipping_see_what_they_always_do() -> None:
    """Five steps of Adam with clipping and both ways to forget a gradient."""
    for to_none in (True, False):
        weights = []
        for loss_of in (ours, slow):
            given = problem(13)
            parameters = [nn.Parameter(given[name].detach()) for name in ("embeddings", "bias", "hidden")]
            given |= dict(zip(("embeddings", "bias", "hidden"), parameters))
            optimiser = torch.optim.AdamW(parameters, lr=0.1)
            for _ in range(5):
                optimiser.zero_grad(set_to_none=to_none)
                loss_of(given).backward()
                norm = nn.utils.clip_grad_norm_(parameters, 1.0)
                assert norm > 1  # it clips
                optimiser.step()
            weights.append([parameter.detach() for parameter in parameters])
        torch.testing.assert_close(*weights, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("words", [8, 9, 15])
def test_words_are_padded_for_tensor_cores_with_probability_0(words: int) -> None:
    padded, bias = vocabulary.padded_words(torch.ones(words, 3), torch.zeros(words), torch.bfloat16)
    assert len(padded) == len(bias) == -(-words // 8) * 8 and not padded[words:].any()
    assert bias.softmax(0)[:words].sum() == 1
