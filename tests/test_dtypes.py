"""A format that the processor imitates is told, once, where a user asks for it; timings are made up."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from parsers import parse_arguments

from hictl_hf import HictlConfig, HictlModel
from hictl_hf import dtypes as number_formats
from hictl_hf.embedding import encoder as embedding
from hictl_hf.retrieval.nearest_neighbours import faster_precision

CPU = torch.device("cpu")


@pytest.fixture
def slow_formats(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[pytest.LogCaptureFixture]:
    """bf16 takes nine times as long as fp32, int8 a tenth."""
    seconds = {torch.float32: 1.0, torch.bfloat16: 9.0, torch.int8: 0.1}
    monkeypatch.setattr(number_formats, "best_seconds", lambda kind, device: seconds[kind])
    for function in (number_formats.times_fp32, number_formats.warn_where_slow):
        function.cache_clear()
    caplog.set_level(logging.WARNING)
    yield caplog
    for function in (number_formats.times_fp32, number_formats.warn_where_slow):
        function.cache_clear()


def test_seconds_are_measured_for_each_format() -> None:
    assert all(number_formats.best_seconds(kind, CPU) > 0 for kind in (torch.float32, *number_formats.NAMES.values()))


def test_a_slow_format_is_told_once_and_a_fast_one_never(slow_formats: pytest.LogCaptureFixture) -> None:
    for name in ("bf16", "bf16", "int8", "fp32"):
        number_formats.warn_where_slow(name, CPU)
    assert slow_formats.messages == ["this processor multiplies 9 times slower in bf16 than in fp32; leave bf16 out"]


def test_mining_computes_in_what_is_faster(
    slow_formats: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert faster_precision(CPU) == "fp32"
    monkeypatch.setattr(number_formats, "best_seconds", lambda kind, device: 1.0 + (kind == torch.float32))
    number_formats.times_fp32.cache_clear()
    assert faster_precision(CPU) == "bf16"


def test_training_and_embedding_tell_it(slow_formats: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps({"train_file": ["x"], "output_dir": str(tmp_path / "run")}), "utf-8")
    parse_arguments([str(file)])
    assert not slow_formats.messages
    parse_arguments([str(file), "--bf16", "true"])
    assert len(slow_formats.messages) == (not torch.accelerator.is_available())
    number_formats.warn_where_slow.cache_clear()
    slow_formats.clear()
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    layers = HictlModel(HictlConfig(vocab_size=10, **shape)).encoder.layer
    embedding.converted(layers, "int8")
    assert not slow_formats.messages
    embedding.converted(layers, "bf16")
    assert "9 times slower in bf16" in slow_formats.text


@pytest.mark.parametrize("fast", [False, True])
def test_a_gpu_that_emulates_bf16_is_told(
    slow_formats: pytest.LogCaptureFixture, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a T4 or V100, for which PyTorch says that bf16 is supported."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or fast)
    for name in ("fp32", "int8", "bf16", "bf16"):
        number_formats.warn_where_slow(name, torch.device("cuda"))
    assert slow_formats.messages == ([] if fast else [
        "this GPU has no instructions for bf16 and emulates it; leave bf16 out, train with --fp16 true"
    ])  # fmt: skip
