"""Two processes, and micro-batches with the gradient cache, are one process with the whole batch: losses and gradients.

The table of cases below runs in two gloo processes, which are started once; each case is compared with one process
that has the whole batch at once and no cache.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch import Tensor
from toy_trainer import differing, gradients_of, logs_of, trained, trainer_of, weights_of
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from two_processes import found_by_two

from hictl_hf.models.gathering import stack_pairs, unstack_pairs
from hictl_hf.pretraining.trainer import HictlTrainer

STEPS = 2


@dataclass(frozen=True)
class Case:
    """Two processes with these settings are one process with a batch as large as theirs."""

    micro_batch: int = 4
    """Rows of a process."""
    accumulation: int = 1
    cache: bool = False
    rows: range = range(80)
    """Of the corpus: 24 pairs en-de, 16 en-sw, 8 en-zh, then monolingual text."""
    model: dict[str, Any] = field(default_factory=dict)
    p_avg: float = 0.0
    steps: int = STEPS
    one_process: dict[str, Any] = field(default_factory=dict)
    """What is to be different there, beside the size of the batch."""
    two_processes: dict[str, Any] = field(default_factory=dict)
    """Settings of the two processes alone."""


PAIRS, EVERYTHING = range(48), range(80)
PLAIN = {"hard_negatives": False, "duplicates": "keep"}
CASES = {
    "plain": Case(rows=PAIRS, model=PLAIN),
    "hard negatives": Case(rows=PAIRS, model={"duplicates": "keep"}, p_avg=0.8),
    "hard negatives, raw space": Case(
        rows=PAIRS, model={"duplicates": "keep", "hard_negative_space": "raw"}, p_avg=0.8
    ),
    "duplicates": Case(micro_batch=12, rows=PAIRS, p_avg=0.5),  # English sentences that several languages translate
    "text and pairs": Case(rows=EVERYTHING, p_avg=0.5),
    "monolingual text": Case(rows=range(48, 80), p_avg=0.5),
    "accumulation": Case(accumulation=2, rows=EVERYTHING, p_avg=0.5, one_process={"gradient_accumulation_steps": 2}),
    "gradient cache": Case(accumulation=2, cache=True, rows=EVERYTHING, p_avg=0.5),
    "gradient cache, many micro-batches": Case(
        micro_batch=1, accumulation=6, cache=True, rows=EVERYTHING, model={"hard_negative_space": "raw"}, p_avg=0.5
    ),
    "gradient cache, static graph": Case(
        cache=True, rows=EVERYTHING, p_avg=0.5, two_processes={"ddp_static_graph": True}
    ),
    # 79 rows are five batches of 14 and one of 9: five rows here and four there
    "uneven last batch": Case(micro_batch=7, rows=range(79), p_avg=0.5, steps=6),
    "uneven last batch, gradient cache": Case(
        micro_batch=4, accumulation=2, cache=True, rows=range(79), p_avg=0.5, steps=5
    ),
}


def train(
    case: Case, dtype: torch.dtype, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tokens: Dataset,
    folder: Path, **settings: Any,
) -> tuple[list[dict[str, Tensor]], list[dict[str, Any]], dict[str, Tensor]]:  # fmt: skip
    """Gradients, logs and last weights of a few steps."""
    model = model.to(dtype)
    model.sentence_probability.recent.fill_(case.p_avg)
    model.sentence_probability.steps.fill_(len(model.sentence_probability.recent))
    learning_rate = 0.02 if dtype == torch.float64 else 0.0  # in fp32 a step would go on with what it rounded off
    trainer = trained(
        trainer_of(
            model, tokenizer, tokens.select(case.rows), folder, max_steps=case.steps,
            learning_rate=learning_rate, **settings,
        )
    )  # fmt: skip
    gradients = [
        {name.removeprefix("module."): value for name, value in step.items()} for step in gradients_of(trainer)
    ]
    return gradients, logs_of(trainer), weights_of(trainer)


def train_as_one_of_two(
    models: dict[str, PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    tokens: Dataset,
    folder: Path,
    dtype: torch.dtype,
) -> dict[str, tuple[Any, ...]]:
    """All cases, each with and without gathering."""
    found = {}
    for name, model in models.items():
        case = CASES[name]
        settings = {
            "per_device_train_batch_size": case.micro_batch,
            "gradient_accumulation_steps": case.accumulation,
            "gradient_cache": case.cache,
            "ddp_backend": "gloo",
            "ddp_find_unused_parameters": False,  # all are used, whatever the case
            **case.two_processes,
        }
        first = {key: value.clone() for key, value in model.state_dict().items()}
        found[name] = train(case, dtype, model, tokenizer, tokens, folder / "x", **settings)
        model.load_state_dict(first)
        settings["gather_sentences"] = False
        found[f"{name} / not gathered"] = train(case, dtype, model, tokenizer, tokens, folder, **settings)
    return found


class Found(NamedTuple):
    """What each of two gloo processes found, by the name of the case, in numbers of one type."""

    dtype: torch.dtype
    processes: list[dict[str, tuple[Any, ...]]]


@pytest.fixture(
    scope="module",
    params=[pytest.param(torch.float32, marks=pytest.mark.slow), torch.float64],
    ids=["fp32", "float64"],
)
def found(
    request: pytest.FixtureRequest,
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    tokens: Dataset,
    tmp_path_factory: pytest.TempPathFactory,
) -> Found:
    folder = tmp_path_factory.mktemp("two")
    models = {name: model_for_text(initializer_range=0.1, **case.model) for name, case in CASES.items()}
    arguments = models, tokenizer, tokens, folder, request.param
    return Found(request.param, found_by_two(folder, train_as_one_of_two, *arguments))


def largest_error(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Of the gradients, each by the larger of its own norm and a thousandth of the norm of all."""
    assert found.keys() == expected.keys() and found
    whole = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
    assert whole > 0.1
    return max(
        float((found[name] - gradient).norm() / max(gradient.norm(), whole / 1000))
        for name, gradient in expected.items()
    )


@pytest.mark.parametrize("name", CASES)
def test_two_processes_are_one_with_the_whole_batch(
    name: str,
    found: Found,
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    tokens: Dataset,
    tmp_path: Path,
) -> None:
    case = CASES[name]
    rows = 2 * case.micro_batch * (1 if case.one_process else case.accumulation)
    settings = {"per_device_train_batch_size": rows, **case.one_process}
    model = model_for_text(initializer_range=0.1, **case.model)
    gradients, logs, weights = train(case, found.dtype, model, tokenizer, tokens, tmp_path, **settings)
    rough = 10 if case.model.get("hard_negative_space") == "raw" else 3 if case.cache else 1
    tolerance = 1e-9 if found.dtype == torch.float64 else rough * 1e-5  # rounding, which raw distances enlarge
    assert len(gradients) == case.steps
    for process in found.processes:
        theirs, their_logs, their_weights = process[name]
        errors = [largest_error(one, other) for one, other in zip(theirs, gradients, strict=True)]
        assert max(errors) < tolerance, errors
        for log in ("loss", "lm_loss", "sentence_loss", "word_loss", "hard_negative_lambda", "negatives_per_anchor"):
            close = pytest.approx([entry[log] for entry in logs], rel=1e-5)
            assert [entry[log] for entry in their_logs] == close, log
        torch.testing.assert_close(
            their_weights["sentence_probability.recent"], weights["sentence_probability.recent"], rtol=1e-5, atol=0
        )
        # the same with the sentences of each process alone is another objective
        alone, _, _ = process[f"{name} / not gathered"]
        assert largest_error(alone[0], gradients[0]) > 1e-3
    first, second = (process[name][2] for process in found.processes)
    assert not differing(first, second)
    if case.p_avg:
        assert logs[0]["hard_negative_lambda"] < 0.99
    if name == "duplicates":
        assert logs[0]["negatives_per_anchor"] < 2 * rows - 2


# --- gradient cache -------------------------------------------------------------------------------------------------

DROPOUT = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3}


def micro_batches_of(trainer: HictlTrainer, number: int = 3) -> list[dict[str, Any]]:
    """Of one step, each with its part of the cached sentence level, which leaves the global generator as it was."""
    trainer.gradient_cache = False
    batches, items = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), number, trainer.args.device)
    assert len(batches) == number and items is not None
    trainer.model.eval()  # as a model that is loaded; a step has dropout
    state = torch.get_rng_state()
    trainer.cache_sentence_level(batches, items["sentence"])
    assert torch.equal(torch.get_rng_state(), state)
    return [{**batch, "items_in_batch": items} for batch in batches]


def gradient_of(model: PreTrainedModel, loss: Tensor) -> dict[str, Tensor]:
    names, parameters = zip(*model.named_parameters())
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return {name: gradient for name, gradient in zip(names, gradients) if gradient is not None}


@pytest.mark.parametrize("checkpointed", [False, True], ids=["", "activation checkpointing"])
@pytest.mark.parametrize("dtype", ["bf16", "float64"])
def test_dropout_is_replayed(
    dtype: str,
    checkpointed: bool,
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    tokens: Dataset,
    tmp_path: Path,
) -> None:
    """Beside a graph that holds all micro-batches: in bf16 as close as rounding lets it be, in float64 exactly."""
    model = model_for_text(initializer_range=0.2, **DROPOUT)
    model.projection.activation = torch.nn.Dropout(0.3)  # as LoRA's in f
    model = model.double() if dtype == "float64" else model
    trainer = trainer_of(
        model, tokenizer, tokens, tmp_path, objectives=["sentence"], gradient_cache=True, bf16=dtype == "bf16",
        per_device_train_batch_size=4, gradient_accumulation_steps=3,
    )  # fmt: skip
    if checkpointed:
        model.gradient_checkpointing_enable()
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16")
    batches = micro_batches_of(trainer)
    torch.manual_seed(99)  # nothing depends on it
    with autocast:
        outputs = [model(**batch) for batch in batches]
    cached = gradient_of(model, torch.stack([output.loss for output in outputs]).sum())

    def direct(seeds: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
        with autocast:
            parts = [
                model.encode_sentences(
                    batch["sentence_input_ids"], batch["sentence_attention_mask"], batch["example_seeds"] + seeds
                )
                for batch in batches
            ]
            sentences = stack_pairs(parts)
            texts = stack_pairs([batch["sentence_hashes"] for batch in batches])
            loss = model.sentence_level(sentences, texts).loss
        return loss, gradient_of(model, loss)

    loss, expected = direct()
    assert sum(output.sentence_loss.item() for output in outputs) == pytest.approx(loss.item(), rel=1e-6)
    assert largest_error(cached, expected) < (1e-9 if dtype == "float64" else 0.01)
    assert largest_error(direct(seeds=1)[1], expected) > 0.1  # other dropout is another gradient


def test_micro_batches_of_text_and_pairs_report_one_sentence_level(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, tokens: Dataset, tmp_path: Path
) -> None:
    trainer = trainer_of(
        model_for_text(duplicates="keep"), tokenizer, tokens, tmp_path, gradient_cache=True, max_steps=1,
        per_device_train_batch_size=2, gradient_accumulation_steps=5,
    )  # fmt: skip
    [log] = logs_of(trained(trainer))
    assert log["negatives_per_anchor"] == 18  # 2n - 2 of ten pairs
    assert log["sentence_loss"] == pytest.approx(-np.log(log["p_avg"]), rel=1e-5)


@pytest.mark.slow
def test_a_compiled_model_has_the_same_cached_gradient(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, tokens: Dataset, tmp_path: Path
) -> None:
    settings = {"gradient_cache": True, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    plain, compiled = (
        gradients_of(
            trained(
                trainer_of(
                    model_for_text(initializer_range=0.1), tokenizer, tokens, tmp_path, max_steps=1,
                    torch_compile=compile, **settings,
                )
            )
        )[0]
        for compile in (False, True)
    )  # fmt: skip
    compiled = {name.removeprefix("_orig_mod."): gradient for name, gradient in compiled.items()}
    assert largest_error(compiled, plain) < 3e-5


@pytest.mark.slow
def test_a_compiled_model_is_trained_on_the_dropout_that_the_cache_saw(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, tokens: Dataset, tmp_path: Path
) -> None:
    model = model_for_text(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3)
    trainer = trainer_of(
        model, tokenizer, tokens, tmp_path, gradient_cache=True, torch_compile=True, max_steps=1,
        per_device_train_batch_size=4, gradient_accumulation_steps=2,
    )  # fmt: skip
    cached, seen, encode, compute = [], [], model.encode_sentences, trainer.compute_loss

    def encode_sentences(*args: Any) -> Tensor:
        cached.append(encode(*args))
        return cached[-1]

    def compute_loss(model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        loss, outputs = compute(model, inputs, True, num_items_in_batch)
        seen.append(outputs.sentence_embeddings.detach())
        return loss

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "encode_sentences", encode_sentences)
        patch.setattr(trainer, "compute_loss", compute_loss)
        trainer.train()
    assert len(cached) == len(seen) == 2
    for one, other in zip(cached, seen):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


# --- how rows are stacked ---------------------------------------------------------------------------------------------


def test_parts_are_stacked_x_before_y() -> None:
    # two pairs and one: x1 x2 y1 y2 and x3 y3
    rows = stack_pairs([torch.tensor([1, 2, 11, 12]), torch.tensor([3, 13])])
    assert rows.tolist() == [1, 2, 3, 11, 12, 13]
    assert [part.tolist() for part in unstack_pairs(rows, [4, 2])] == [[1, 2, 11, 12], [3, 13]]


def test_parts_without_rows_are_passed_over() -> None:
    rows = stack_pairs([torch.zeros(0, 3), torch.ones(2, 3), torch.zeros(0, 3)])
    assert rows.tolist() == np.ones((2, 3)).tolist()
    assert [len(part) for part in unstack_pairs(rows, [0, 2, 0])] == [0, 2, 0]
