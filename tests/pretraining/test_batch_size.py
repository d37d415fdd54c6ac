"""The micro-batch that fits is found by halving; the rows of a step, and with them its gradient, stay the same."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf.data.collator import PretrainingCollator
from hictl_hf.errors import BadInput
from hictl_hf.pretraining.batch_size import fit_micro_batch
from hictl_hf.training.arguments import RunArguments


@pytest.fixture
def fit(
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., tuple[RunArguments, list[tuple[int, int]]]]:
    """`fit(rows=..., most=..., error=...)`: the arguments afterwards, and rows and tokens of each attempt, on a device
    whose memory has room for `most` rows."""

    def try_it(rows: int, most: int, error: Exception, **settings: Any) -> tuple[RunArguments, Any]:
        model, tried = model_for_text(), []
        forward = model.forward

        def forward_in_little_memory(**batch: Any) -> Any:
            tried.append(tuple(batch["input_ids"].shape))
            if len(batch["input_ids"]) > most:
                raise error
            return forward(**batch)

        monkeypatch.setattr(model, "forward", forward_in_little_memory)
        args = RunArguments(str(tmp_path), use_cpu=True, per_device_train_batch_size=rows, **settings)
        fit_micro_batch(model, PretrainingCollator(tokenizer, max_length=40), args)
        assert all(weight.grad is None for weight in model.parameters())
        return args, tried

    return try_it


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory."),
    RuntimeError("DefaultCPUAllocator: can't allocate memory"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["GPU", "CPU"])
def test_it_is_halved_until_the_longest_rows_fit(
    fit: Callable[..., Any], error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "hictl_hf"):
        args, tried = fit(16, 3, error, gradient_accumulation_steps=2)
    assert tried == [(16, 40), (8, 40), (4, 40), (2, 40)]  # all as long as rows may be
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (2, 16)  # 32 rows as before
    assert "micro-batch: 2 examples, 16 micro-batches a step" in caplog.text


def test_what_fits_is_left_as_it_is(fit: Callable[..., Any]) -> None:
    args, tried = fit(16, 16, OUT_OF_MEMORY[0])
    assert len(tried) == 1
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (16, 1)


@pytest.mark.parametrize(("rows", "left"), [(4, 1), (12, 3)])
def test_too_little_memory_is_said(fit: Callable[..., Any], rows: int, left: int) -> None:
    with pytest.raises(BadInput, match=f"{left} examples of 40 tokens do not fit.*lower max_length.*power of 2"):
        fit(rows, 0, OUT_OF_MEMORY[0])


def test_another_error_is_no_lack_of_memory(fit: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        fit(4, 0, RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_all_processes_take_the_smallest_micro_batch(fit: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this process eight rows fit, of another one two."""
    monkeypatch.setattr(RunArguments, "world_size", 2)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda number, how: number.clamp_(max=2))
    args, tried = fit(16, 8, OUT_OF_MEMORY[0])
    assert [rows for rows, _ in tried] == [16, 8]
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (2, 8)


@pytest.mark.parametrize(("processes", "copies"), [(1, 2), (2, 3)])
def test_there_is_room_for_the_moments_and_for_the_buckets_of_several_processes(
    processes: int, copies: int, fit: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    empty_like = torch.empty_like

    def spy(like: torch.Tensor, **how: Any) -> torch.Tensor:
        held.append(like.numel() if isinstance(like, torch.nn.Parameter) else 0)
        return empty_like(like, **how)

    monkeypatch.setattr(RunArguments, "world_size", processes)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_: None)
    monkeypatch.setattr(torch, "empty_like", spy)
    fit(2, 2, OUT_OF_MEMORY[0])
    assert held.count(max(held)) == copies  # of the word embeddings


@pytest.mark.parametrize("checkpointing", [False, True])
def test_activations_are_kept_as_in_the_run(
    checkpointing: bool, model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
) -> None:  # fmt: skip
    model, seen = model_for_text(), []
    model.register_forward_pre_hook(lambda *_: seen.append(model.is_gradient_checkpointing))
    args = RunArguments(
        str(tmp_path), use_cpu=True, per_device_train_batch_size=2, activation_checkpointing=checkpointing
    )
    fit_micro_batch(model, PretrainingCollator(tokenizer, max_length=40), args)
    assert seen == [checkpointing]
