"""Checks on the pretended GPU, which `test_pretended_gpu.py` runs in a process of their own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from pretended_gpu import DeviceMismatch, Gpu
from test_pretraining_trainer import trainer_of
from test_translation_trainer import Material
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf import HictlModel
from hictl_hf.data.tokenization import tokenize_corpus
from hictl_hf.embedding.encoder import embed_sentences
from hictl_hf.retrieval.mining import MiningConfig, mine
from hictl_hf.retrieval.nearest_neighbours import search_both
from hictl_hf.translation.beam_search import BeamSearchConfig
from hictl_hf.translation.decoding import translate

MakeModel = Callable[..., PreTrainedModel]
MakeBatch = Callable[..., dict[str, Tensor]]
ON_GPU = {"use_cpu": False, "bf16": True, "logging_steps": 1000, "max_steps": 3, "optim": "adamw_torch_fused"}


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with Gpu() as device:
        yield device
    assert device.mismatches == 0


@pytest.fixture(scope="module")
def tokens(corpus: Dataset, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    return tokenize_corpus(corpus, tokenizer, max_length=62)[0]


def on_gpu(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.to("cuda") for name, value in batch.items()}


# --- the pretended GPU itself -----------------------------------------------------------------------------------------


def test_it_refuses_tensors_of_both_devices_and_counts() -> None:
    with Gpu() as gpu:
        states = torch.arange(6.0, device="cuda").view(2, 3)
        repeats = torch.ones(2, dtype=torch.long, device="cuda")
        gpu.reset()
        total = (states * 2).sum()
        assert (gpu.count_launches(), gpu.count_waits()) == (2, 0)
        assert float(total) == 30 and gpu.count_waits() == 1
        assert states[states > 1].shape == (4,) and gpu.count_waits() == 2
        torch.ones(3).to("cuda", non_blocking=True)  # not from pinned memory
        assert gpu.count_waits() == 3
        torch.ones(3).pin_memory().to("cuda", non_blocking=True)
        states.repeat_interleave(repeats, dim=0, output_size=2)
        assert gpu.count_waits() == 3
        with pytest.raises(DeviceMismatch):
            states + torch.ones(2, 3)
        with pytest.raises(DeviceMismatch):
            torch.ones(4)[torch.tensor([1], device="cuda")]
        assert gpu.mismatches == 2


# --- no operation mixes devices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cached", [False, True], ids=["plain", "gradient cache"])
def test_pretraining(
    gpu: Gpu,
    model_for_text: MakeModel,
    tokenizer: PreTrainedTokenizerBase,
    tokens: Dataset,
    corpus: Dataset,
    tmp_path: Path,
    cached: bool,
) -> None:
    settings = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, "logging_steps": 1, **ON_GPU}
    trainer = trainer_of(
        model_for_text(), tokenizer, tokens, tmp_path, eval_dataset=corpus.select(range(4)), gradient_cache=cached,
        **settings, eval_strategy="steps", eval_steps=2,
    )  # fmt: skip
    trainer.train()
    assert trainer.state.global_step == 3 and trainer.model.device.type == "cuda"
    assert all(0 <= log["eval_retrieval"] <= 100 for log in trainer.state.log_history if "eval_retrieval" in log)


def test_translation_and_beam_search(
    gpu: Gpu,
    model_for_text: MakeModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: dict[str, list[str]],
    tmp_path: Path,
) -> None:
    material = Material(model_for_text(HictlModel, initializer_range=0.2), tokenizer, sentences)
    trainer = material.trainer(tmp_path, **ON_GPU)
    trainer.train()
    assert trainer.state.global_step == 3 and trainer.model.device.type == "cuda"
    found = translate(trainer.model, tokenizer, sentences["en"][:4], BeamSearchConfig(beams=3), ["de"] * 4)
    assert [len(best) for best in found] == [1] * 4


def test_embedding_and_mining(
    gpu: Gpu, model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]]
) -> None:
    model = model_for_text(initializer_range=0.2)
    x, y = sentences["en"][:12], sentences["de"][:12]
    on_cpu = embed_sentences(model, tokenizer, x), embed_sentences(model, tokenizer, y)
    model.to("cuda")
    vectors = embed_sentences(model, tokenizer, x), embed_sentences(model, tokenizer, y)
    assert all(abs(a - b).max() < 1e-5 for a, b in zip(vectors, on_cpu))
    found, expected = search_both(*vectors, 2, device="cuda"), search_both(*vectors, 2)
    assert all((a.rows == b.rows).all() for a, b in zip(found, expected))
    pairs = mine(x, y, model, tokenizer, MiningConfig(device="cuda"))
    assert pairs == mine(x, y, model, tokenizer, MiningConfig(device="cpu"))
