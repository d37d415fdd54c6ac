"""Triton's kernels for short rows: on a GPU, and on a CPU by Triton's interpreter (`TRITON_INTERPRET=1`)."""

import os
from importlib.util import find_spec

import pytest
import torch
from devices import GPU
from torch import Tensor
from torch.nn import functional as F

if find_spec("triton") is None:
    pytest.skip("PyTorch for a CPU brings no Triton", allow_module_level=True)
from hictl_hf.models import short_rows

LENGTHS, ATTENDING = [1, 3, 9, 16, 17, 40], {"all tokens": [1, 3, 9, 16, 17, 40], "some tokens": [1, 0, 2, 16, 5, 17]}
HEADS = 2
INTERPRETED = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")
everywhere = pytest.mark.parametrize("device", [pytest.param("cpu", marks=INTERPRETED), GPU])


def attend(device: str, attending: list[int], states: tuple[Tensor, ...], dropout: float) -> Tensor:
    query = states[0]
    counts = [torch.tensor([count for count, other in zip(some, attending) if other]) for some in (attending, LENGTHS)]
    key, value = (torch.cat([part for part, k in zip(x.split(LENGTHS), attending) if k]) for x in states[1:])
    ends = [F.pad(each.cumsum(0).int(), (1, 0)).to(device) for each in counts]
    blocks = [short_rows.blocks_of(each).to(device) for each in counts]
    given = [part.to(device) for part in (query, key, value)]
    torch.manual_seed(1)
    return short_rows.attend_in_short_rows(*given, *ends, *blocks, dropout, query.shape[-1] ** -0.5).cpu()


def attend_one_by_one(attending: list[int], states: tuple[Tensor, ...], kept: list[Tensor], dropout: float) -> Tensor:
    """In double precision; `kept`: (h, queries, keys) of each row."""
    query, key, value = (part.double() for part in states)
    outputs = []
    for q, k, v, left in zip(query.split(attending), key.split(LENGTHS), value.split(LENGTHS), kept):
        scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
        outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1) * left / (1 - dropout), v))
    return torch.cat(outputs)


def weights_kept(device: str, attending: list[int], dropout: float) -> list[Tensor]:
    """(h, queries, keys) of each row, seen by attending to unit vectors as values."""
    size = max(LENGTHS)
    query, key = torch.zeros(sum(attending), HEADS, size), torch.zeros(sum(LENGTHS), HEADS, size)
    value = torch.cat([torch.eye(length, size) for length in LENGTHS]).unsqueeze(1).expand(-1, HEADS, -1)
    seen = attend(device, attending, (query, key, value), dropout).split(attending)
    return [part[..., :length].transpose(0, 1) > 0 for part, length in zip(seen, LENGTHS)]


@everywhere
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("size", [8, 16, 24])
@pytest.mark.parametrize("attending", ATTENDING)
def test_outputs_and_gradients_are_those_of_each_row_alone(
    device: str, attending: str, size: int, dropout: float
) -> None:
    random, some = torch.Generator().manual_seed(size), ATTENDING[attending]
    packed = torch.randn(sum(LENGTHS), HEADS, 3 * size, generator=random, requires_grad=True)
    query, key, value = packed.split(size, -1)  # views, as of one product
    states = query[: sum(some)], key, value
    kept = weights_kept(device, some, dropout)
    found, expected = attend(device, some, states, dropout), attend_one_by_one(some, states, kept, dropout)
    upstream = torch.randn(found.shape, generator=random)
    gradients = [torch.autograd.grad(out, packed, upstream.to(out.dtype))[0] for out in (found, expected)]
    tolerance = 1e-5 if device == "cpu" else 1e-2  # Triton multiplies fp32 in TF32
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(*gradients, atol=tolerance, rtol=tolerance)
    share = torch.cat([each.flatten() for each in kept]).double().mean().item()
    assert share == pytest.approx(1 - dropout, abs=0.04)


@everywhere
@pytest.mark.parametrize(("dtype", "score"), [(torch.float16, -18), (torch.float32, -100)])
def test_gradients_are_finite_where_all_scores_are_far_below_0(device: str, dtype: torch.dtype, score: int) -> None:
    """The place of a key beyond the row has a score of 0 there, and must not count."""
    random, tokens = torch.Generator().manual_seed(0), sum(LENGTHS)
    states = torch.zeros(3, tokens, HEADS, 16)
    states[0, ..., 0], states[1, ..., 0] = 4, score  # scaled by 1 / 4
    states[..., 1:] = torch.randn(3, tokens, HEADS, 15, generator=random) / 8
    packed = states.to(dtype).requires_grad_()
    found, exact = attend(device, LENGTHS, packed.unbind(), 0.0), packed.detach().double().requires_grad_()
    kept = [torch.ones(HEADS, length, length) for length in LENGTHS]
    expected = attend_one_by_one(LENGTHS, exact.unbind(), kept, 0.0)
    upstream = torch.randn(found.shape, generator=random)
    gradients = [
        torch.autograd.grad(out, x, upstream.to(out.dtype))[0] for out, x in ((found, packed), (expected, exact))
    ]
    torch.testing.assert_close(gradients[0].double(), gradients[1], atol=0.03, rtol=0.05)


@everywhere
def test_each_head_drops_others(device: str) -> None:
    kept = weights_kept(device, LENGTHS, 0.5)[-1]
    assert not torch.equal(kept[0], kept[1])  # heads
    assert 0.4 < (kept[0] != kept[1]).double().mean() < 0.6
    assert torch.equal(kept, weights_kept(device, LENGTHS, 0.5)[-1])


def test_blocks_are_listed_by_row() -> None:
    assert short_rows.blocks_of(torch.tensor([1, 16, 33])).tolist() == [[0, 0], [1, 0], [2, 0], [2, 1], [2, 2]]
