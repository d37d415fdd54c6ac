"""A pre-training step on a device: its losses, gradients and words, what it waits for, and the memory it takes."""

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from devices import everywhere, on_gpu
from test_fast_step import LARGE, Step, assert_same_step, naive_of, naive_step, ready
from torch import Tensor, nn
from torch.nn import functional as F
from toy_trainer import trainer_of
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from hictl_hf import HictlConfig, HictlForPreTraining
from hictl_hf.data.collator import PretrainingCollator
from hictl_hf.models import objective
from hictl_hf.models.linear_cross_entropy import linear_cross_entropy
from hictl_hf.models.word_sampling import sample_words
from hictl_hf.pretraining.trainer import HictlTrainer

with pytest.MonkeyPatch.context() as patch:  # the benchmarks are no package
    patch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    scale_estimates = importlib.import_module("scale_estimates")

Batch = dict[str, Tensor]
MakeModel = Callable[..., PreTrainedModel]
SHAPES = {12: (24, 2), 32: (64, 2), 64: (128, 2)}  # head size: hidden size and heads
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
LOSSES = ("loss", "lm_loss", "sentence_loss", "word_loss")
WAITS_OF_FORWARD, WAITS_OF_STEP = 2, 5


@pytest.fixture(scope="module")
def batches(tokens: Dataset, tokenizer: PreTrainedTokenizerBase) -> list[Batch]:
    """Pairs and texts of four languages, 16, 8 and 12 of them."""
    chosen = [*range(0, 48, 4), *range(48, 80, 8)]
    rows = [{"x": tokens[at]["x"], "y": tokens[at]["y"], "seed": at} for at in chosen]
    collate = PretrainingCollator(tokenizer, max_length=62)
    return [collate(some) for some in (rows, rows[:8], rows[3:15])]


def shape_of(head_size: int) -> dict[str, Any]:
    hidden_size, heads = SHAPES[head_size]
    large = LARGE | {"initializer_range": LARGE["initializer_range"] * (32 / hidden_size) ** 0.5}
    return {"hidden_size": hidden_size, "num_attention_heads": heads, **large}


def to(device: str, batch: Batch) -> Batch:
    return {name: value.to(device) for name, value in batch.items()}


def step_on(device: str, model: nn.Module, batch: Batch, dtype: torch.dtype | None = None, scale: float = 1.0) -> Step:
    """A step in fp32, or under autocast, with its loss scaled; the gradients of the unscaled one."""
    model.zero_grad()
    with torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None):
        outputs = model(**to(device, batch))
    (outputs.loss * scale).backward()
    assert outputs.loss.device.type == device
    weights = {name.removeprefix("_orig_mod."): weight for name, weight in model.named_parameters()}
    gradients = {
        name: weight.grad.cpu().double() / scale for name, weight in weights.items() if weight.grad is not None
    }
    return Step({name: outputs[name].item() for name in LOSSES}, gradients)


def expected_step(model: PreTrainedModel, batch: Batch, words: Tensor) -> Step:
    """The naive form on the CPU in double precision, of the same weights and word negatives."""
    return naive_step(naive_of(model).double(), [batch], [words.cpu()])


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The word negatives (n, m) that each call of a model contrasts the bags with."""
    words: list[Tensor] = []
    word_contrast = objective.word_contrast

    def contrast_and_remember(*arguments: Any) -> Any:
        words.append(arguments[3])
        return word_contrast(*arguments)

    monkeypatch.setattr(objective, "word_contrast", contrast_and_remember)
    return words


# --- losses and gradients ---------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("head_size", SHAPES)
def test_losses_and_gradients_are_those_of_the_naive_form(
    device: str, head_size: int, model_for_text: MakeModel, batches: list[Batch], drawn: list[Tensor]
) -> None:
    model = ready(model_for_text(**shape_of(head_size))).to(device)
    for batch in batches:
        found = step_on(device, model, batch)
        assert_same_step(found, expected_step(model, batch, drawn[-1]), 1e-4)


@everywhere
@pytest.mark.parametrize(("dtype", "scale"), [(torch.bfloat16, 1.0), (torch.float16, 256.0)], ids=["bf16", "fp16"])
@pytest.mark.parametrize("head_size", SHAPES)
def test_gradients_in_half_precision_point_the_same_way(
    device: str, dtype: torch.dtype, scale: float, head_size: int, model_for_text: MakeModel, batches: list[Batch],
    drawn: list[Tensor],
) -> None:  # fmt: skip
    model = ready(model_for_text(**shape_of(head_size))).to(device)
    found = step_on(device, model, batches[0], dtype, scale)
    expected = expected_step(model, batches[0], drawn[-1])
    assert found.losses == pytest.approx(expected.losses, rel=0.01) and found.losses != expected.losses
    all_of_them = torch.stack([gradient.norm() for gradient in expected.gradients.values()]).norm()
    seen = {name: right for name, right in expected.gradients.items() if right.norm() > 1e-3 * all_of_them}
    assert len(seen) > len(expected.gradients) / 2
    for name, right in seen.items():
        cosine = F.cosine_similarity(found.gradients[name].flatten(), right.flatten(), dim=0)
        assert cosine > 0.99, name


@pytest.mark.parametrize(
    ("device", "words", "masked", "half"),
    [
        ("cpu", 3000, 50, torch.bfloat16),
        pytest.param("cuda", 120_001, 2500, torch.bfloat16, marks=pytest.mark.gpu),
        pytest.param("cuda", 120_001, 2500, torch.float16, marks=pytest.mark.gpu),
    ],
)  # on a GPU more than the logits of one block
def test_the_head_in_half_precision_is_close_to_fp64(device: str, words: int, masked: int, half: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    embeddings = torch.randn(words, 32, generator=random) * 0.3 + torch.randn(32, generator=random)
    given = {"hidden": torch.randn(masked, 32, generator=random), "embeddings": embeddings}
    given["bias"] = torch.randn(words, generator=random) * 0.1
    targets = torch.randint(words, (masked,), generator=random).to(device)
    results = []
    for dtype in (torch.float32, torch.float64):
        own = {name: value.to(device, dtype, copy=True).requires_grad_() for name, value in given.items()}
        if dtype is torch.float64:
            loss = F.cross_entropy(F.linear(own["hidden"], own["embeddings"], own["bias"]), targets)
        else:
            with torch.autocast(device, half):
                loss = linear_cross_entropy(own["hidden"], own["embeddings"], own["bias"], targets)
        loss.backward()
        results.append([loss.detach().double(), *(own[name].grad.double() for name in given)])
    errors = [float((found - right).norm() / right.norm()) for found, right in zip(*results)]
    assert errors[0] < 2e-3 and max(errors) < 0.02
    assert max(errors[1:]) > 1e-5, f"{half} was not at work"


@on_gpu
@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_words_are_those_that_the_cpu_draws(device: str, temperature: float) -> None:
    """By proposals and by weights; a cosine that rounds otherwise may change the draws of a pair in 64."""
    random = torch.Generator().manual_seed(0)
    queries, vocabulary = torch.randn(64, 48, generator=random), torch.randn(20_000, 48, generator=random)
    excluded, seeds = torch.randint(-1, 20_000, (64, 30), generator=random), torch.arange(64) * 7919
    expected = sample_words(queries, vocabulary, excluded, 64, temperature, seeds)
    given = [value.to(device) for value in (queries, vocabulary, excluded)]
    found = sample_words(*given, 64, temperature, seeds.to(device)).cpu()
    assert (found == expected).all(1).sum() >= 63
    assert (expected[0] != expected[1]).any() and (expected >= 0).all()


@on_gpu
def test_a_compiled_step_is_the_naive_one(
    device: str, model_for_text: MakeModel, batches: list[Batch], drawn: list[Tensor]
) -> None:
    torch.compiler.reset()
    model = ready(model_for_text(**shape_of(32))).to(device)
    compiled = torch.compile(model)
    for batch in batches:
        found = step_on(device, compiled, batch)
        assert_same_step(found, expected_step(model, batch, drawn[-1]), 1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 2
    torch.compiler.reset()


# --- gradient cache ---------------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["fp32", "bf16"])
def test_the_gradient_cache_is_exact_under_dropout(
    device: str, dtype: torch.dtype | None, model_for_text: MakeModel, batches: list[Batch], tmp_path: Path
) -> None:
    """The cached gradient of L_S is that of one graph which holds all micro-batches, with the same dropout."""
    model = model_for_text(**shape_of(32), **DROPOUT, lm_weight=0.0, word_weight=0.0).to(device).train()
    model.sentence_probability.record(torch.tensor(1.0, device=device))
    arguments = TrainingArguments(
        str(tmp_path), use_cpu=device == "cpu", remove_unused_columns=False, report_to="none", bf16=dtype is not None
    )
    trainer = HictlTrainer(model, arguments, gradient_cache=True)
    micro_batches = [to(device, batch) for batch in batches]
    before = model.sentence_probability.mean().item()

    def in_one_graph(change_of_seeds: int) -> Tensor:
        model.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=dtype is not None):
            parts = [
                model.encode_sentences(
                    batch["sentence_input_ids"], batch["sentence_attention_mask"],
                    batch["example_seeds"] + change_of_seeds,
                )
                for batch in micro_batches
            ]  # fmt: skip
        texts = [batch["sentence_hashes"] for batch in micro_batches]
        model.sentence_level(x_before_y(parts), x_before_y(texts)).loss.backward()
        return flat_gradient(model)

    expected, other = in_one_graph(0), in_one_graph(1)
    model.zero_grad()
    given, items = trainer.get_batch_samples(
        iter([dict(batch) for batch in micro_batches]), len(micro_batches), torch.device(device)
    )
    for batch in given:
        with torch.autocast(device, torch.bfloat16, enabled=dtype is not None):
            loss = trainer.compute_loss(model, batch, num_items_in_batch=items)
        loss.backward()
    assert model.sentence_probability.mean().item() == before and expected.norm() > 0.01
    assert (flat_gradient(model) - expected).norm() < (1e-4 if dtype is None else 1e-2) * expected.norm()
    assert (other - expected).norm() > 0.05 * expected.norm(), "dropout was not at work"


def x_before_y(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.chunk(2)[half] for half in (0, 1) for part in parts])


def flat_gradient(model: nn.Module) -> Tensor:
    return torch.cat([weight.grad.flatten().double() for weight in model.parameters() if weight.grad is not None])


# --- waits ------------------------------------------------------------------------------------------------------------


def waits_in(action: Callable[[], Any]) -> list[str]:
    """The places at which the CPU waited for the GPU."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            action()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return [f"{each.filename}:{each.lineno}" for each in caught if "called a synchronizing" in str(each.message)]


@on_gpu
def test_waits_are_counted(device: str) -> None:
    states = torch.ones(9, device=device)
    assert len(waits_in(lambda: states.sum().item())) == 1 and waits_in(lambda: states.sum()) == []


@on_gpu
@pytest.mark.parametrize(("layers", "pairs", "vocabulary"), [(2, 4, 200), (6, 4, 200), (2, 64, 200), (2, 4, 40_000)])
def test_a_forward_pass_waits_twice_at_most(
    device: str, layers: int, pairs: int, vocabulary: int, toy_model: MakeModel, toy_batch: Callable[..., Batch]
) -> None:
    shape = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": layers, "vocab_size": vocabulary}
    model = toy_model(**shape, **DROPOUT).to(device).train()
    batch = to(device, toy_batch(pairs, vocab_size=vocabulary))

    def forward() -> None:
        with torch.autocast(device, torch.bfloat16):
            model(**batch)

    forward()  # libraries are loaded
    waits = waits_in(forward)
    assert len(waits) <= WAITS_OF_FORWARD, waits


@on_gpu
@pytest.mark.parametrize("cached", [False, True], ids=["plain", "gradient cache"])
def test_a_step_of_the_trainer_waits_three_times_more_at_most(
    device: str, cached: bool, model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase, tokens: Dataset,
    tmp_path: Path,
) -> None:  # fmt: skip
    def waits(steps: int) -> list[str]:
        trainer = trainer_of(
            model_for_text(hidden_size=64, num_attention_heads=2, **DROPOUT), tokenizer, tokens, tmp_path,
            use_cpu=False, bf16=True, max_steps=steps, logging_steps=1000, optim="adamw_torch_fused", max_grad_norm=1.0,
            gradient_cache=cached,
        )  # fmt: skip
        return waits_in(trainer.train)

    waits(1)
    few, many = waits(2), waits(6)
    passes = 1 + cached  # the cache encodes all sentences before
    assert (len(many) - len(few)) / 4 <= WAITS_OF_STEP + (passes - 1) * WAITS_OF_FORWARD, many


# --- memory -----------------------------------------------------------------------------------------------------------


def even_batch(pairs: int, words: int, vocabulary: int) -> Batch:
    """Random pairs of sentences of so many words; a quarter of the words of x∘y is masked."""
    random = torch.Generator().manual_seed(0)
    sentences = torch.randint(4, vocabulary - 1, (2 * pairs, words), generator=random)
    begin, end = torch.zeros(2 * pairs, 1, dtype=torch.long), torch.full((2 * pairs, 1), 2)
    x, y = sentences.split(pairs)
    clean = torch.cat([begin[:pairs], x, end[:pairs], end[:pairs], y, end[:pairs]], 1)
    masked = (torch.rand(clean.shape, generator=random) < 0.25) & (clean > 3)
    single = torch.cat([begin, sentences, end], 1)
    return {
        "input_ids": clean.masked_fill(masked, vocabulary - 1),
        "attention_mask": torch.ones_like(clean),
        "labels": clean.masked_fill(~masked, -100),
        "sentence_input_ids": single,
        "sentence_attention_mask": torch.ones_like(single),
        "sentence_hashes": torch.arange(2 * pairs),
        "bag": torch.cat([x, y], 1),
        "example_seeds": torch.arange(pairs),
    }


def gigabytes_of_step(device: str, config: HictlConfig, batch: Batch, checkpointing: bool) -> float:
    """The most that PyTorch allocates in a bf16 step with AdamW, after two others."""
    model = HictlForPreTraining(config).to(device).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    batch = to(device, batch)
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        with torch.autocast(device, torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss.isfinite()
    return torch.cuda.max_memory_allocated() / 1e9


def xlm_roberta(**shape: Any) -> HictlConfig:
    base = dict(vocab_size=scale_estimates.WORDS, hidden_size=768, num_hidden_layers=12, num_attention_heads=12)
    base |= dict(intermediate_size=3072, max_position_embeddings=514, type_vocab_size=1)
    return HictlConfig(**{**base, **DROPOUT, **shape})


@on_gpu
@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
def test_memory_is_what_the_page_on_scale_computes(device: str, checkpointing: bool) -> None:
    if torch.cuda.get_device_properties(0).total_memory < 20e9:
        pytest.skip("XLM-R base with 128 pairs needs a GPU of 20 GB")
    state, head, plain, checkpointed, level = scale_estimates.gigabytes("base", scale_estimates.PAIR, gpus=1)
    computed = state + head + level + (checkpointed if checkpointing else plain)
    batch = even_batch(128, 25, scale_estimates.WORDS)
    assert gigabytes_of_step(device, xlm_roberta(), batch, checkpointing) == pytest.approx(computed, rel=0.15)
