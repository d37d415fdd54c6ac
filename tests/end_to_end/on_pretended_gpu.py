"""Checks on the pretended GPU, which `test_pretended_gpu.py` runs in a process of their own."""

import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from pretended_gpu import DeviceMismatch, Gpu
from pretended_kernels import flash_attn
from test_translation_trainer import Material
from torch import Tensor
from torch.nn import functional as F
from toy_families import SHAPES
from toy_trainer import trainer_of
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, XLMRobertaForMaskedLM

from hictl_hf import HictlConfig, HictlForPreTraining, HictlModel
from hictl_hf.data.collator import PretrainingCollator
from hictl_hf.embedding.encoder import embed_sentences
from hictl_hf.models import gathering, losses, row_attention, word_sampling
from hictl_hf.models import linear_cross_entropy as vocabulary
from hictl_hf.models.configuration_hictl import config_class
from hictl_hf.models.linear_cross_entropy import linear_cross_entropy
from hictl_hf.models.modeling_hictl import new_model
from hictl_hf.models.row_attention import attend_by_length, attend_within_rows, kernel_of
from hictl_hf.models.word_sampling import SIMILARITIES_ON_GPU, sample_words
from hictl_hf.pretraining.batch_size import fit_micro_batch
from hictl_hf.pretraining.kernels import describe_attention
from hictl_hf.pretraining.similar_pairs import group_by_similarity
from hictl_hf.retrieval import held_out as retrieval
from hictl_hf.retrieval.mining import MiningConfig, mine
from hictl_hf.retrieval.nearest_neighbours import search_both
from hictl_hf.training.arguments import RunArguments
from hictl_hf.translation import beam_search
from hictl_hf.translation.beam_search import BeamSearchConfig
from hictl_hf.translation.decoding import translate

MakeModel = Callable[..., PreTrainedModel]
MakeBatch = Callable[..., dict[str, Tensor]]
ON_GPU = {"use_cpu": False, "bf16": True, "logging_steps": 1000, "max_steps": 2, "optim": "adamw_torch_fused"}


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with Gpu() as device:
        yield device
    assert device.mismatches == 0


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
    settings = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4, **ON_GPU}
    trainer = trainer_of(
        model_for_text(), tokenizer, tokens, tmp_path, eval_dataset=corpus.select(range(4)), gradient_cache=cached,
        **settings, eval_strategy="steps", eval_steps=2,
    )  # fmt: skip
    steps = Steps(gpu)
    trainer.add_callback(steps)
    trainer.train()
    assert trainer.state.global_step == 2 and trainer.model.device.type == "cuda"
    assert "eval_retrieval" in trainer.state.log_history[0]
    forward = 2 * (1 + 3) if cached else 2 * 2  # of two micro-batches
    assert all(sum(waits.values()) <= forward + 3 for waits in steps.waits), steps.waits


@pytest.mark.parametrize("by", ["sentences", "words"])
def test_similar_pairs(
    by: str, gpu: Gpu, model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase, tokens: Dataset, tmp_path: Path
) -> None:
    trainer = trainer_of(model_for_text(), tokenizer, tokens, tmp_path, **ON_GPU)
    plain = np.concatenate([*trainer.batches])[:, 0]
    group_by_similarity(trainer, by)
    found = np.concatenate([*trainer.batches])[:, 0]
    assert found.tolist() != plain.tolist() and sorted(found) == sorted(plain)
    assert trainer.model.device.type == "cuda"


class Steps(TrainerCallback):
    """Counts the waits of each step."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.waits = gpu, []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.gpu.reset()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.waits.append(self.gpu.waits)
        self.gpu.reset()


def test_translation_and_beam_search(
    gpu: Gpu,
    model_for_text: MakeModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: dict[str, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    material = Material(model_for_text(HictlModel, initializer_range=0.2), tokenizer, sentences)
    trainer, steps = material.trainer(tmp_path, **ON_GPU), Steps(gpu)
    trainer.add_callback(steps)
    trainer.train()
    assert all(sum(waits.values()) <= 5 + 3 for waits in steps.waits), steps.waits
    assert trainer.state.global_step == 2 and trainer.model.device.type == "cuda"
    texts, settings = sentences["en"][:4], BeamSearchConfig(num_beams=3, max_length_a=0, max_length_b=30)
    on_cpu = translate(deepcopy(trainer.model).to("cpu"), tokenizer, texts, settings, ["de"] * 4)
    tokens, advance = [], beam_search.advance
    monkeypatch.setattr(beam_search, "advance", lambda *arguments: tokens.append(1) or advance(*arguments))
    gpu.reset()
    found = translate(trainer.model, tokenizer, texts, settings, ["de"] * 4)
    assert [len(best) for best in found] == [1] * 4
    assert [best.text for (best,) in found] == [best.text for (best,) in on_cpu]
    assert gpu.count_waits() <= len(tokens) + 10, gpu.waits  # one a token, the others once a batch


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


# --- waits and launches -----------------------------------------------------------------------------------------------


def step(gpu: Gpu, model: PreTrainedModel, batch: dict[str, Tensor]) -> tuple[int, dict[str, int]]:
    """Launches of forward and backward pass, and the waits of the forward pass by line."""
    model, batch = model.train().to("cuda"), on_gpu(batch)
    gpu.reset()
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(**batch).loss
    waits = dict(gpu.waits)
    loss.backward()
    return gpu.count_launches(), waits


@pytest.mark.parametrize(
    ("layers", "pairs", "words", "settings"),
    [
        (2, 4, 200, {}),
        (2, 50, 200, {"sentence_pooling": "mean", "word_level_input": "clean"}),
        (4, 4, 200, {"attention_probs_dropout_prob": 0.1}),
        (2, 4, 20_000, {"word_temperature": 1.0}),
        (2, 4, 20_000, {"word_temperature": 0.25}),  # with 32 dimensions as peaked as 0.05 with 768
    ],
)
def test_a_forward_pass_waits_twice(
    gpu: Gpu, toy_model: MakeModel, toy_batch: MakeBatch, layers: int, pairs: int, words: int, settings: dict[str, Any]
) -> None:
    model = toy_model(num_hidden_layers=layers, vocab_size=words, **settings)
    _, waits = step(gpu, model, toy_batch(pairs))
    assert sum(waits.values()) <= 2, waits


@pytest.mark.parametrize(("layers", "pairs", "times"), [(12, 16, 1.15), (6, 40, 1.5)])
def test_a_step_has_few_launches(
    gpu: Gpu, toy_model: MakeModel, toy_batch: MakeBatch, layers: int, pairs: int, times: float
) -> None:
    """At most this many times those of HF's masked language model with the same layers and batch."""
    batch, settings = toy_batch(pairs), {"num_hidden_layers": layers, "attention_probs_dropout_prob": 0.1}
    ours, _ = step(gpu, toy_model(**settings), batch)
    assert gpu.launches["_flash_attention_forward"] == layers
    assert gpu.launches["_scaled_dot_product_flash_attention"] == 0
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
    theirs, _ = step(gpu, toy_model(XLMRobertaForMaskedLM, **settings), inputs)
    assert ours <= times * theirs, (ours, theirs)


def test_a_larger_batch_has_no_more_launches(gpu: Gpu, toy_model: MakeModel, toy_batch: MakeBatch) -> None:
    model = toy_model(num_hidden_layers=1)
    small, large = (step(gpu, deepcopy(model), toy_batch(pairs))[0] for pairs in (40, 256))
    assert small == large


@pytest.mark.parametrize("half", [False, True])
def test_words_are_compared_in_tf32_where_the_model_is_in_half_precision(
    gpu: Gpu, toy_model: MakeModel, toy_batch: MakeBatch, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the sampling, the loss and its gradient; the switch is as before afterwards."""
    switch, seen = torch.backends.cuda.matmul, []

    def precision() -> str:
        return "half" if torch.is_autocast_enabled("cuda") else switch.fp32_precision

    for module in (losses, word_sampling):
        products = module.cosines
        monkeypatch.setattr(
            module, "cosines", lambda *given, products=products: seen.append(precision()) or products(*given)
        )
    model, matmul = toy_model().train().to("cuda"), Tensor.__matmul__
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        loss = model(**on_gpu(toy_batch())).loss
    assert len(seen) == 2 and {*seen} == ({"tf32"} if half else {"none"})
    seen.clear()
    monkeypatch.setattr(Tensor, "__matmul__", lambda a, b: seen.append(switch.fp32_precision) or matmul(a, b))
    loss.backward()
    assert seen.count("tf32") == (2 if half else 0) and switch.fp32_precision == "none"


@pytest.mark.parametrize("hooked", [False, True])
def test_one_product_for_query_key_and_value(
    gpu: Gpu, toy_model: MakeModel, toy_batch: MakeBatch, hooked: bool
) -> None:
    """The same states and gradients as three; a layer with a hook is called."""
    model, calls = toy_model(num_hidden_layers=1), []
    on_cpu = deepcopy(model).train()
    expected = on_cpu(**toy_batch()).loss
    expected.backward()
    model = model.train().to("cuda")
    own = model.roberta.encoder.layer[0].attention.self
    if hooked:
        own.value.register_forward_hook(lambda *_: calls.append(1))
    loss = model(**on_gpu(toy_batch())).loss
    loss.backward()
    assert len(calls) == hooked and loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for (name, found), wanted in zip(model.named_parameters(), on_cpu.parameters()):
        torch.testing.assert_close(found.grad.cpu(), wanted.grad, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_words_are_sampled_with_few_launches(gpu: Gpu, temperature: float) -> None:
    assert SIMILARITIES_ON_GPU // 250_002 >= 256  # pairs at once, so the launches of 4 are those of 256
    random = torch.Generator().manual_seed(0)
    vocabulary, queries = torch.randn(250_002, 8, generator=random), torch.randn(4, 8, generator=random)
    tensors = queries, vocabulary, torch.arange(24).view(4, 6)
    expected = sample_words(*tensors, 512, temperature, torch.arange(4))
    arguments = [tensor.to("cuda") for tensor in (*tensors, torch.arange(4))]
    gpu.reset()
    words = sample_words(*arguments[:3], 512, temperature, arguments[3])
    assert gpu.count_launches() <= 190 and gpu.count_waits() == 1
    assert torch.equal(words.cpu(), expected)


def test_words_that_lack_after_some_rounds_are_drawn(gpu: Gpu) -> None:
    vocabulary = torch.eye(40, 8) * 5 + torch.randn(40, 8, generator=torch.Generator().manual_seed(1)) / 9
    arguments = vocabulary[:6].clone(), vocabulary, torch.arange(12).view(6, 2)
    expected = sample_words(*arguments, 40, 0.01, torch.arange(6))  # more than there are, some of them most unlikely
    assert ((expected >= 0).sum(1) == 38).all()
    words = sample_words(*(tensor.to("cuda") for tensor in arguments), 40, 0.01, torch.arange(6).to("cuda"))
    assert torch.equal(words.cpu(), expected)


@pytest.mark.parametrize(("dtype", "bytes_of_a_logit"), [(torch.bfloat16, 17), (torch.float16, 29)])
def test_the_head_goes_through_memory_less_than_the_usual_one(
    gpu: Gpu, dtype: torch.dtype, bytes_of_a_logit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "rows_at_once", lambda _: 256)
    random = torch.Generator().manual_seed(0)
    parts = [torch.randn(*shape, generator=random).to("cuda") for shape in ((512, 8), (4001, 8), (4001,))]
    targets = torch.randint(4001, (512,), generator=random).to("cuda")
    traffic, gradients = [], []
    for loss_of in (linear_cross_entropy, usual_cross_entropy):
        own = [part.clone().requires_grad_() for part in parts]
        gpu.reset()
        with torch.autocast("cuda", dtype):
            loss = loss_of(*own, targets)
        loss.backward()
        assert gpu.count_waits() == 0
        traffic.append(gpu.traffic / 512 / 4001)
        gradients.append([loss.detach(), *(part.grad for part in own)])
    assert traffic[0] <= bytes_of_a_logit < 40 < traffic[1], traffic
    for found, expected in zip(*gradients):
        assert torch.linalg.vector_norm(found - expected) <= 0.01 * torch.linalg.vector_norm(expected)


def usual_cross_entropy(hidden: Tensor, embeddings: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, embeddings, bias), targets)


def test_gathering_waits_once_for_all_processes(
    gpu: Gpu, toy_model: MakeModel, toy_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_gather(parts: list[Tensor], part: Tensor) -> None:
        for each in parts:
            each.copy_(part)

    monkeypatch.setattr(gathering.distributed, "all_gather", all_gather)
    monkeypatch.setattr(gathering.distributed, "get_world_size", lambda: 3)
    monkeypatch.setattr(gathering.distributed, "get_rank", lambda: 1)
    model, batch = toy_model().train().to("cuda"), on_gpu(toy_batch())
    gpu.reset()
    loss = model(**batch, gather=True).loss
    assert gpu.count_waits() <= 3
    before = gpu.count_waits()
    loss.backward()
    assert gpu.count_waits() == before


# --- kernels are chosen where they exist ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "device", "size", "dropout", "dtype"),
    [
        ("aten", {}, 64, 0.0, torch.bfloat16),
        ("aten", {}, 64, 0.1, torch.bfloat16),
        ("aten", {}, 256, 0.0, torch.float16),
        ("by length", {}, 64, 0.0, torch.float32),
        ("by length", {}, 12, 0.0, torch.bfloat16),
        ("by length", {}, 264, 0.0, torch.bfloat16),
        ("by length", {"capability": (7, 5)}, 64, 0.0, torch.float16),
        ("by length", {"flash": False}, 64, 0.1, torch.bfloat16),
        ("flash_attn", {"installed": True}, 64, 0.1, torch.bfloat16),
        ("by length", {"installed": True, "capability": (7, 0)}, 64, 0.0, torch.float16),
        ("by length", {"capability": (8, 9)}, 256, 0.1, torch.bfloat16),  # an RTX 4090: no backward pass of wide heads
        ("by length", {"capability": (8, 6)}, 200, 0.0, torch.bfloat16),
        ("by length", {"installed": True, "capability": (12, 0)}, 256, 0.1, torch.bfloat16),
        ("aten", {"capability": (8, 9)}, 256, 0.0, torch.bfloat16),
        ("aten", {"capability": (8, 9)}, 192, 0.1, torch.bfloat16),
        ("aten", {"capability": (8, 0)}, 256, 0.1, torch.bfloat16),
        ("aten", {"capability": (10, 0)}, 256, 0.1, torch.bfloat16),
    ],
)
def test_every_gpu_has_a_kernel_that_it_can_run(
    kernel: str, device: dict[str, Any], size: int, dropout: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of rows of which some, or the longest, have no query; kernels that do not exist raise."""
    installed = device.pop("installed", False)
    monkeypatch.setattr(row_attention, "is_flash_attn_2_available", lambda: installed)
    monkeypatch.setitem(sys.modules, "flash_attn", flash_attn())
    lengths, attending, random = [2, 3, 3, 5, 9], [1, 0, 3, 2, 0], torch.Generator().manual_seed(0)
    on_cpu = [torch.randn(tokens, 2, size, generator=random) for tokens in (6, 22, 22)]
    expected = with_gradients(attend_by_length, lengths, attending, [state.to(dtype).float() for state in on_cpu], 0.0)
    with Gpu(**device) as gpu:
        states = [state.to("cuda", dtype) for state in on_cpu]
        assert kernel_of(states[0], dropout) == kernel
        found = [
            value.cpu().float() for value in with_gradients(attend_within_rows, lengths, attending, states, dropout)
        ]
        kernels = {"aten": "_flash_attention_forward", "flash_attn": "flash_attn"}
        assert {name: gpu.launches[name] for name in kernels.values() if gpu.launches[name]} == (
            {} if kernel == "by length" else {kernels[kernel]: 1}
        )
    assert all(value.isfinite().all() for value in found)
    if dropout:
        assert not torch.allclose(found[0], expected[0], atol=0.02)
    else:
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("kernel", "installed", "dropout"),
    [("_flash_attention_forward", False, 0.0), ("flash_attn", True, 0.0), ("_flash_attention_forward", False, 0.1)],
)
def test_tokens_attend_within_their_window_by_every_kernel(
    kernel: str, installed: bool, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in ModernBERT's local layers, for rows that are longer than the window; with shorter ones it is none."""
    monkeypatch.setattr(row_attention, "is_flash_attn_2_available", lambda: installed)
    monkeypatch.setitem(sys.modules, "flash_attn", flash_attn())
    lengths, random = [2, 3, 9, 20], torch.Generator().manual_seed(0)
    on_cpu = [torch.randn(sum(lengths), 2, 16, generator=random).bfloat16() for _ in range(3)]
    for window in (3, 20):
        attend = partial(attend_by_length, window=window)
        expected = with_gradients(attend, lengths, lengths, [state.float() for state in on_cpu], 0.0)
        with Gpu() as gpu:
            states = [state.to("cuda") for state in on_cpu]
            found = with_gradients(partial(attend_within_rows, window=window), lengths, lengths, states, dropout)
            found = [value.cpu().float() for value in found]
        if not dropout:
            torch.testing.assert_close(found, expected, rtol=0.02, atol=0.03)
        assert gpu.launches[kernel]


@pytest.mark.parametrize(
    ("line", "device", "size", "settings", "dropout"),
    [
        ("PyTorch's, one call for all rows", {}, 64, {"bf16": True}, 0.0),
        ("PyTorch's, one call for all rows", {}, 64, {"bf16": True}, 0.1),
        ("slow with many lengths; other kernels need half precision: give --bf16 true", {}, 64, {}, 0.0),
        ("need compute capability 8.0, and this GPU has 7.5", {"capability": (7, 5)}, 64, {"fp16": True}, 0.0),
        ("need heads of a multiple of 8, at most 256, and these have 12", {}, 12, {"bf16": True}, 0.1),
        ("on this GPU other kernels need heads of at most 192", {"capability": (8, 9)}, 256, {"bf16": True}, 0.1),
        ("this PyTorch was built without flash attention", {"flash": False}, 64, {"bf16": True}, 0.1),
    ],
)
def test_the_kernel_is_told(
    line: str, device: dict[str, Any], size: int, settings: dict[str, bool], dropout: float, tmp_path: Path
) -> None:
    shape = {"vocab_size": 9, "hidden_size": 2 * size, "num_attention_heads": 2, "num_hidden_layers": 1}
    model = new_model(HictlConfig(**shape, attention_probs_dropout_prob=dropout))
    with Gpu(**device):
        args = RunArguments(str(tmp_path), use_cpu=False, report_to=[], **settings)
        assert line in (describe_attention(model, args) or "")


def test_on_a_cpu_no_kernel_is_told(tmp_path: Path) -> None:
    model = new_model(HictlConfig(vocab_size=9, hidden_size=16, num_attention_heads=2, num_hidden_layers=1))
    assert describe_attention(model, RunArguments(str(tmp_path), use_cpu=True, report_to=[])) is None


def test_sentences_encoded_with_seeds_leave_the_random_numbers_of_the_gpu_as_they_were(
    gpu: Gpu, toy_model: MakeModel, toy_batch: MakeBatch
) -> None:
    """The gradient cache encodes twice with the same dropout; other dropout goes on where it was."""
    model, batch = toy_model(hidden_dropout_prob=0.3).train().to("cuda"), on_gpu(toy_batch())
    before, on_cpu = torch.cuda.get_rng_state(), torch.get_rng_state()
    given = [batch[name] for name in ("sentence_input_ids", "sentence_attention_mask", "example_seeds")]
    one, other = (model.encode_sentences(*given) for _ in range(2))
    assert torch.equal(one.cpu(), other.cpu())
    assert torch.equal(torch.cuda.get_rng_state(), before) and torch.equal(torch.get_rng_state(), on_cpu)
    assert not torch.equal(model.encode_sentences(*given[:2]).cpu(), one.cpu())


def test_small_probabilities_of_many_words_are_not_lost_in_fp16(gpu: Gpu) -> None:
    """Those of 200,000 equally likely words are below fp16's least normal number; gradients are of their sums."""
    random, words = torch.Generator().manual_seed(0), 200_000
    parts = [torch.randn(*shape, generator=random) / 4 for shape in ((16, 8), (words, 8), (words,))]
    targets = torch.arange(16)
    exact = [part.half().double().requires_grad_() for part in parts]
    F.cross_entropy(F.linear(*exact), targets).backward()
    own = [part.to("cuda").requires_grad_() for part in parts]
    with torch.autocast("cuda", torch.float16):
        loss = linear_cross_entropy(*own, targets.to("cuda"))
    loss.backward()
    for part, wanted, first in zip(own, exact, (0, 16, 16)):  # of words those that are no targets
        found, expected = part.grad.cpu()[first:].double(), wanted.grad[first:]
        assert torch.linalg.vector_norm(found - expected) < 2e-3 * torch.linalg.vector_norm(expected)


@pytest.mark.parametrize(
    ("family", "line"),
    [("modernbert", "PyTorch's, one call for all rows"), ("deberta-v2", "of padded batches (")],
)
def test_the_kernel_of_other_families_is_told(family: str, line: str, tmp_path: Path) -> None:
    model = new_model(config_class(family)(vocab_size=90, **SHAPES[family]))
    with Gpu():
        args = RunArguments(str(tmp_path), use_cpu=False, report_to=[], bf16=True)
        assert line in (describe_attention(model, args) or "")


def test_modernbert_packs_rows_on_a_gpu(gpu: Gpu, toy_batch: MakeBatch) -> None:
    """Its rows are shorter than its windows, so that one kernel takes them all; the loss is that of the CPU."""
    model = new_model(config_class("modernbert")(**SHAPES["modernbert"] | {"vocab_size": 200, "local_attention": 128}))
    batch = toy_batch(4)
    expected = deepcopy(model).eval()(**batch).loss
    with torch.autocast("cuda", torch.bfloat16):
        found = model.eval().to("cuda")(**on_gpu(batch)).loss
    assert gpu.launches["_flash_attention_forward"] > 0 and abs(found.item() - expected.item()) < 0.02 * expected.item()


@pytest.mark.parametrize(("dtype", "settings"), [(torch.float16, {"fp16": True}), (torch.bfloat16, {"bf16": True})])
def test_the_micro_batch_is_tried_in_the_dtype_of_the_run(
    gpu: Gpu, model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, dtype: torch.dtype,
    settings: dict[str, bool],
) -> None:  # fmt: skip
    args = RunArguments(str(tmp_path), use_cpu=False, report_to=[], per_device_train_batch_size=2, **settings)
    seen, model = [], model_for_text()
    model.register_forward_pre_hook(lambda *_: seen.append(torch.get_autocast_dtype("cuda")))
    fit_micro_batch(model, PretrainingCollator(tokenizer, max_length=20), args)
    assert seen == [dtype] and args.per_device_train_batch_size == 2


def test_validation_is_in_half_precision_where_training_is(
    gpu: Gpu, model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase, tokens: Dataset, corpus: Dataset,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    seen = []
    inner = retrieval.embed_at_poolings

    def spy(*args: Any, **kwargs: Any) -> Any:
        seen.append(torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"))
        return inner(*args, **kwargs)

    monkeypatch.setattr(retrieval, "embed_at_poolings", spy)
    trainer = trainer_of(model_for_text(), tokenizer, tokens, tmp_path, eval_dataset=corpus.select(range(4)), **ON_GPU)
    assert trainer.evaluate()["eval_retrieval"] >= 0 and seen == [torch.bfloat16]


def with_gradients(
    attend: Callable[..., Tensor], lengths: list[int], attending: list[int], states: list[Tensor], dropout: float
) -> list[Tensor]:
    states = [state.detach().requires_grad_() for state in states]
    output = attend(lengths, attending, *states, dropout, states[0].shape[-1] ** -0.5)
    return [output.detach(), *torch.autograd.grad(output.float().square().sum(), states)]


def test_an_old_gpu_trains_in_fp16(toy_model: MakeModel, toy_batch: MakeBatch) -> None:
    with Gpu(capability=(7, 5)):
        model = toy_model(HictlForPreTraining, attention_probs_dropout_prob=0.1).train().to("cuda")
        with torch.autocast("cuda", torch.float16):
            loss = model(**on_gpu(toy_batch())).loss
        loss.backward()
        assert loss.isfinite() and model.roberta.encoder.layer[0].attention.self.query.weight.grad.abs().max() > 0
