"""Attention within packed rows, by each kernel that a device offers, is softmax(q kᵀ / √d) v of each row alone."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest
import torch
from devices import GPU, everywhere
from test_packing import attend_one_by_one
from torch import Tensor

from hictl_hf.models import row_attention

LENGTHS = [1, 3, 5, 5, 9, 64, 113]
ATTENDING = {"all tokens": LENGTHS, "some tokens": [1, 0, 5, 2, 0, 7, 1]}  # in two rows nobody attends
HEADS = 4
# Share of a norm: a rounding of each number of the output, twice as much in gradients.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
DROPOUT = 0.3


def attend(lengths: list[int], attending: list[int], states: "States", dropout: float) -> Tensor:
    """(k, h, d) of the product."""
    return row_attention.attend_within_rows(lengths, attending, *states, dropout, states.query.shape[-1] ** -0.5)


class States(NamedTuple):
    """(k, h, d), and (tokens, h, d) each."""

    query: Tensor
    key: Tensor
    value: Tensor

    def copy(self, device: str, dtype: torch.dtype) -> "States":
        return States(*(state.detach().to(device, dtype).requires_grad_() for state in self))


def random_states(attending: list[int], lengths: list[int], size: int, dtype: torch.dtype) -> States:
    """On the CPU, rounded to a type; their scores have a standard deviation of 1."""
    random = torch.Generator().manual_seed(size)
    rows = sum(attending), sum(lengths), sum(lengths)
    return States(*(torch.randn(number, HEADS, size, generator=random).to(dtype) for number in rows))


def rows_of(states: Tensor, lengths: list[int]) -> tuple[Tensor, ...]:
    return states.detach().cpu().double().split(lengths)


def share_of_norm(found: Tensor, expected: Tensor) -> float:
    assert expected.norm() > 0.1
    return float((found.detach().cpu().double() - expected).norm() / expected.norm())


# --- kernels ----------------------------------------------------------------------------------------------------------


def forget_choices() -> None:
    """Of kernels, which the product may remember."""
    for value in vars(row_attention).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()


def refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("this kernel does not exist on the device of this test")


def for_long_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(row_attention, "SHORT", 0)


def without_package(patch: pytest.MonkeyPatch) -> None:
    for_long_rows(patch)
    patch.setattr(row_attention, "is_flash_attn_2_available", lambda: False, raising=False)


def without_kernels(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.ops.aten, "_flash_attention_forward", refuse)
    if find_spec("flash_attn"):
        patch.setattr("flash_attn.flash_attn_varlen_func", refuse)


def on_turing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    without_kernels(patch)


def without_flash_attention(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: False)
    without_package(patch)
    without_kernels(patch)


WAYS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "as chosen": lambda _: None,
    "for long rows": for_long_rows,
    "without the package flash-attn": without_package,
    "compute capability 7.5": on_turing,
    "PyTorch built without flash attention": without_flash_attention,
}


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The device is as described; nothing of that is remembered before or afterwards."""
    WAYS[request.param](monkeypatch)
    forget_choices()
    yield request.param
    forget_choices()


in_every_way = pytest.mark.parametrize(
    ("device", "way"), [("cpu", "as chosen"), *(pytest.param(*GPU.values, way, marks=GPU.marks) for way in WAYS)],
    indirect=["way"],
)  # fmt: skip


@in_every_way
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("size", [12, 32, 64])
@pytest.mark.parametrize("attending", ATTENDING)
def test_outputs_and_gradients_are_those_of_each_row_alone(
    device: str, way: str, dtype: torch.dtype, size: int, attending: str
) -> None:
    given = random_states(ATTENDING[attending], LENGTHS, size, dtype)
    exact, own = given.copy("cpu", torch.float64), given.copy(device, dtype)
    expected = attend_one_by_one(LENGTHS, ATTENDING[attending], *exact, 0.0, size**-0.5)
    found = attend(LENGTHS, ATTENDING[attending], own, dropout=0.0)
    assert found.shape == expected.shape and found.dtype == dtype and found.device.type == device
    assert share_of_norm(found, expected.detach()) < TOLERANCES[dtype]
    direction = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    found.backward(direction.to(device))
    expected.backward(direction.double())
    for name, state, right in zip(States._fields, own, exact):
        assert share_of_norm(state.grad, right.grad) < 2 * TOLERANCES[dtype], name
    unseen = [row for row, number in enumerate(ATTENDING[attending]) if number == 0]
    for state in (own.key, own.value):
        assert all((rows_of(state.grad, LENGTHS)[row] == 0).all() for row in unseen), "not even NaN"


@in_every_way
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("size", [12, 64])
@pytest.mark.parametrize("attending", ATTENDING)
def test_the_backward_pass_drops_what_the_forward_pass_dropped(
    device: str, way: str, dtype: torch.dtype, size: int, attending: str
) -> None:
    """An output is linear in the values, and does not change if all keys of a row move by the same vector.

    So Σ output · upstream = Σ value · gradient in each row, and the gradients of its keys sum up to 0. Both hold for
    any choice of what is dropped if it is the same in both passes, else they are off by about as much as their terms.
    """
    own = random_states(ATTENDING[attending], LENGTHS, size, dtype).copy(device, dtype)
    torch.manual_seed(3)
    found = attend(LENGTHS, ATTENDING[attending], own, DROPOUT)
    upstream = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    found.backward(upstream.to(device))
    products = found.detach().cpu().double() * upstream.double()
    before = torch.stack([row.sum((0, 2)) for row in products.split(ATTENDING[attending])])  # (rows, h)
    after = (own.value.detach() * own.value.grad.float()).float()
    after = torch.stack([row.sum((0, 2)) for row in rows_of(after, LENGTHS)])
    assert before.norm() > 1
    assert (before - after).norm() < 5 * TOLERANCES[dtype] * before.norm()
    gradients = rows_of(own.key.grad, LENGTHS)
    sums = torch.stack([row.sum(0) for row in gradients])
    assert sums.norm() < 5 * TOLERANCES[dtype] * torch.cat(gradients).norm()
    assert share_of_norm(found, attend(LENGTHS, ATTENDING[attending], own, 0.0).detach().cpu().double()) > 0.2


@in_every_way
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_the_mean_over_what_is_dropped_is_the_output_without_dropout(device: str, way: str, dtype: torch.dtype) -> None:
    """800 equal rows of 9 tokens: the mean has 1/28 of the deviation of one, which is about half of the output."""
    number, length = 800, 9
    (one,) = [random_states([length], [length], 32, dtype)]
    own = States(*(state.repeat(number, 1, 1) for state in one)).copy(device, dtype)
    torch.manual_seed(3)
    with torch.no_grad():
        found = attend([length] * number, [length] * number, own, DROPOUT).cpu().double().unflatten(0, (number, -1))
    expected = attend_one_by_one([length], [length], *(state.double() for state in one), 0.0, 32**-0.5)
    assert share_of_norm(found.mean(0), expected) < 0.05
    assert all(share_of_norm(row, expected) > 0.2 for row in found[:20])
    assert share_of_norm(found[0], found[1]) > 0.2


@everywhere
def test_equal_seeds_drop_the_same(device: str) -> None:
    own = random_states(LENGTHS, LENGTHS, 32, torch.bfloat16).copy(device, torch.bfloat16)

    def output(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return attend(LENGTHS, LENGTHS, own, DROPOUT)

    assert torch.equal(output(5), output(5)) and not torch.equal(output(5), output(6))
