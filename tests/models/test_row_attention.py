"""When the kernel for short rows is taken: where Triton works, by the lengths of the rows."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hictl_hf.models import row_attention


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A stand-in for the module of Triton's kernels, which needs Triton."""
    module = SimpleNamespace(attend_in_short_rows=lambda *_: None)
    monkeypatch.setitem(sys.modules, "hictl_hf.models.short_rows", module)  # type: ignore[arg-type]
    monkeypatch.setattr(row_attention, "find_spec", lambda name: name)
    forget = row_attention.triton_works.cache_clear
    forget()
    yield module
    forget()


def test_rows_are_short_by_the_length_that_a_token_sees(kernels: SimpleNamespace) -> None:
    cpu = torch.device("cpu")
    assert all(row_attention.are_short(lengths, cpu) for lengths in ([96], [1, 3, 96], [30] * 50 + [233]))
    assert not row_attention.are_short([97], cpu)
    assert not row_attention.are_short([1] * 50 + [128] * 2, cpu)  # (50 + 2 * 16,384) / 306 is 107


def test_without_triton_rows_are_not_short(kernels: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_attention, "find_spec", lambda name: None)
    assert not row_attention.are_short([3], torch.device("cpu"))


def test_where_triton_does_not_compile_another_kernel_is_taken(
    kernels: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC.")

    kernels.attend_in_short_rows = fail
    assert not any(row_attention.are_short([3], torch.device("cpu")) for _ in range(3))
    [message] = [record.getMessage() for record in caplog.records]
    assert message.startswith("Triton cannot compile here") and message.endswith(
        "RuntimeError: Failed to find C compiler."
    )


def test_triton_is_not_tried_where_its_kernel_would_not_be_taken(
    kernels: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_attention, "triton_works", lambda device: pytest.fail("was tried"))
    query = torch.zeros(5, 2, 16)  # fp32
    assert row_attention.limits_of([2, 3], [2, 3], query).blocks == ()
    monkeypatch.setattr(row_attention, "kernel_of", lambda query, dropout, short: "short rows")
    kernels.blocks_of, tried = (lambda counts: counts[:, None]), []
    monkeypatch.setattr(row_attention, "triton_works", lambda device: tried.append(device) or True)
    assert len(row_attention.limits_of([2, 3], [2, 3], query).blocks) == 2 and tried == [query.device]


def test_rows_with_a_window_do_not_take_the_kernel_for_short_rows_which_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[bool] = []
    monkeypatch.setattr(
        row_attention, "kernel_of", lambda query, dropout, short=False: taken.append(short) or "by length"
    )
    states, ends = [torch.randn(4, 2, 8) for _ in range(3)], torch.tensor([0, 4], dtype=torch.int32)
    limits = row_attention.Limits(ends, ends, 4, 4, (ends, ends))
    for window in (2, 4, None):  # of four tokens none is at a distance of four
        row_attention.attend_within_rows([4], [4], *states, 0.0, 1.0, limits, window)
    assert taken == [False, True, True]
