"""The whole step is what its naive form computes: packed, padded, accumulated, in two processes, compiled, scaled."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, TrainingArguments
from two_processes import found_by_two

from hictl_hf.data.collator import PretrainingCollator
from hictl_hf.data.tokenization import tokenize_corpus
from hictl_hf.models import objective
from hictl_hf.models.word_sampling import list_words, sample_words_and_list
from hictl_hf.pretraining.trainer import HictlTrainer

with pytest.MonkeyPatch.context() as patch:  # the benchmarks are no package
    patch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    NaiveHictl = importlib.import_module("naive").NaiveHictl

Batch = dict[str, Tensor]
Row = dict[str, Any]
MakeModel = Callable[..., PreTrainedModel]
# Sentences differ enough for fp32 to tell them apart, and attention's scores are not so large that its rounding shows.
LARGE = {"initializer_range": 0.16, "sentence_temperature": 0.1}
LOSSES = {"lm": "lm_loss", "sentence": "sentence_loss", "word": "word_loss"}


class Step(NamedTuple):
    """Losses by name, their total included, and the gradients of all parameters that have one."""

    losses: dict[str, float]
    gradients: dict[str, Tensor]


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def assert_same_step(found: Step, expected: Step, tolerance: float) -> None:
    """Within the tolerance: each loss, and each gradient as a share of the larger of its norm and 1e-3 of all norms."""
    assert found.losses == pytest.approx(expected.losses, rel=tolerance, abs=tolerance)
    assert found.gradients.keys() == expected.gradients.keys()
    whole = torch.stack([gradient.norm() for gradient in expected.gradients.values()]).norm()
    errors = {
        name: ((gradient - right).norm() / torch.maximum(right.norm(), 1e-3 * whole)).item()
        for (name, gradient), right in zip(found.gradients.items(), expected.gradients.values())
    }
    assert whole > 0.1
    assert max(errors.values()) < tolerance, {name: error for name, error in errors.items() if error >= tolerance}


# --- both forms -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows(corpus: Dataset, tokenizer: PreTrainedTokenizerBase) -> list[Row]:
    """Nine pairs and seven texts of four languages, mixed."""
    tokens = tokenize_corpus(corpus, tokenizer, max_length=62)[0]
    chosen = [tokens[at] for pair, text in zip(range(0, 48, 7), range(48, 80, 5)) for at in (pair, text)]
    chosen += [tokens[at] for at in (30, 40)]
    assert sum(row["y"] is None for row in chosen) == 7 and len(chosen) == 16
    return [{"x": row["x"], "y": row["y"], "seed": at} for at, row in enumerate(chosen)]


@pytest.fixture(scope="module")
def collate(tokenizer: PreTrainedTokenizerBase) -> PretrainingCollator:
    return PretrainingCollator(tokenizer, max_length=62, clean_word_level=True)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The word negatives of every call of the model, in the order of the calls."""
    words: list[Tensor] = []
    monkeypatch.setattr(objective, "sample_words_and_list", remembering(words))
    return words


def remembering(words: list[Tensor]) -> Callable[..., Any]:
    def sample_and_remember(*arguments: Any) -> Any:
        sampled = sample_words_and_list(*arguments)
        words.append(sampled[0])
        return sampled

    return sample_and_remember


def ready(model: PreTrainedModel) -> PreTrainedModel:
    """In training, dropout off, with hard negatives that move."""
    model.sentence_probability.record(torch.tensor(1.0))
    assert model.config.hidden_dropout_prob == model.config.attention_probs_dropout_prob == 0
    return model.train()


def naive_of(model: PreTrainedModel) -> PreTrainedModel:
    """The naive form with the same weights."""
    naive = NaiveHictl(model.config.__class__(**model.config.to_dict())).to(model.dtype).train()
    weights = model.state_dict()
    zeta = model.config.hard_negative_zeta
    naive.p_avg = float(zeta * model.sentence_probability.mean()) / zeta  # the product is in fp32
    naive.load_state_dict({name: value for name, value in weights.items() if "sentence_probability" not in name})
    return naive


def step_of(model: nn.Module, batch: Batch, autocast: bool = False, scale: float = 1.0) -> Step:
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        outputs = model(**batch)
    (outputs.loss * scale).backward()
    losses = {name: outputs[name].item() for name in ("loss", *LOSSES.values())}
    return Step(losses, gradients_of(model))


def naive_step(naive: PreTrainedModel, batches: list[Batch], words: list[Tensor]) -> Step:
    """Of an optimiser step in some parts: each mean over all items, negatives of a sentence from its part alone."""
    naive.zero_grad()
    items = [
        {"lm": int((batch["labels"] != -100).sum()), "sentence": 2 * len(batch["bag"]), "word": len(batch["bag"])}
        for batch in batches
    ]
    parts: list[dict[str, Tensor]] = []
    for batch, negatives, own in zip(batches, words, items, strict=True):
        losses = naive_losses(naive, batch, negatives)
        parts.append({name: losses[name] * own[name] / sum(part[name] for part in items) for name in LOSSES})
    totals = {LOSSES[name]: torch.stack([part[name] for part in parts]).sum() for name in LOSSES}
    config = naive.config
    total = torch.stack([getattr(config, f"{name}_weight") * totals[loss] for name, loss in LOSSES.items()]).sum()
    total.backward()
    return Step({name: value.item() for name, value in (totals | {"loss": total}).items()}, gradients_of(naive))


def naive_losses(naive: PreTrainedModel, batch: Batch, negatives: Tensor) -> dict[str, Tensor]:
    known = {name: value for name, value in batch.items() if name != "clean_input_ids"}
    outputs = naive(**known, word_negatives=negatives)
    losses = {name: outputs[loss] for name, loss in LOSSES.items()}
    if naive.config.word_level_input == "clean":
        queries = naive.roberta(batch["clean_input_ids"], batch["attention_mask"])[0][:, 0]
        losses["word"] = naive.word_level(queries, batch["bag"], negatives)
    return losses


# --- one batch ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-9)], ids=str)
@pytest.mark.parametrize("word_level_input", ["masked", "clean"])
@pytest.mark.parametrize("space", ["unit", "raw"])
def test_packed_and_padded_steps_are_the_naive_one(
    space: str, word_level_input: str, dtype: torch.dtype, tolerance: float,
    model_for_text: MakeModel, collate: PretrainingCollator, rows: list[Row], drawn: list[Tensor],
) -> None:  # fmt: skip
    settings = {"hard_negative_space": space, "word_level_input": word_level_input, "lm_weight": 0.7, **LARGE}
    model, batch = ready(model_for_text(**settings).to(dtype)), collate(rows)
    packed = step_of(model, batch)
    model.set_attn_implementation("eager")
    padded = step_of(model, batch)
    assert torch.equal(*drawn) and len(drawn[0]) == 16
    naive = naive_of(model)
    expected = naive_step(naive, [batch], drawn[:1])
    assert_same_step(packed, expected, tolerance)
    assert_same_step(padded, expected, tolerance)
    assert min(expected.losses.values()) > 0.1
    naive.p_avg = 0.0
    assert abs(naive_step(naive, [batch], drawn[:1]).losses["sentence_loss"] - expected.losses["sentence_loss"]) > 0.01


def test_the_comparison_would_see_a_gradient_that_lacks_a_hundredth_of_a_thousandth(
    model_for_text: MakeModel, collate: PretrainingCollator, rows: list[Row]
) -> None:
    step = step_of(ready(model_for_text(**LARGE)), collate(rows[:4]))
    wrong = {name: gradient * (1 - 2e-5 * ("projection" in name)) for name, gradient in step.gradients.items()}
    assert_same_step(step, step, 1e-5)
    with pytest.raises(AssertionError, match="projection.weight"):
        assert_same_step(Step(step.losses, wrong), step, 1e-5)


def test_an_output_head_of_its_own_is_trained_beside_the_embeddings(
    model_for_text: MakeModel, collate: PretrainingCollator, rows: list[Row], drawn: list[Tensor]
) -> None:
    model, batch = ready(model_for_text(tie_word_embeddings=False, **LARGE).double()), collate(rows[:8])
    head = model.lm_head.decoder
    with torch.no_grad():
        head.bias.uniform_(-1, 1, generator=torch.Generator().manual_seed(0))
    assert (head.weight - model.get_input_embeddings().weight).abs().min() > 0
    found = step_of(model, batch)
    expected = naive_step(naive_of(model), [batch], drawn)
    assert expected.gradients["lm_head.decoder.bias"].norm() > 0.01
    assert_same_step(found, expected, 1e-9)


def freeze_words(model: PreTrainedModel) -> None:
    model.get_input_embeddings().weight.requires_grad_(False)


class Adapted(nn.Module):
    """An embedding with an addition of low rank, as adapters make them."""

    def __init__(self, base: nn.Embedding) -> None:
        super().__init__()
        self.base = base
        random = torch.Generator().manual_seed(5)
        self.down = nn.Parameter(torch.randn(len(base.weight), 3, generator=random, dtype=base.weight.dtype))
        self.up = nn.Parameter(torch.randn(3, base.weight.shape[1], generator=random, dtype=base.weight.dtype))

    @property
    def weight(self) -> Tensor:
        return self.base.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.base(ids) + nn.functional.embedding(ids, self.down) @ self.up


def adapt_words(model: PreTrainedModel) -> None:
    model.set_input_embeddings(Adapted(model.get_input_embeddings()))


def adapt_frozen_words(model: PreTrainedModel) -> None:
    freeze_words(model)
    adapt_words(model)


def hook_words(model: PreTrainedModel) -> None:
    model.get_input_embeddings().register_forward_hook(lambda _, ids, embedded: embedded * 1.5)


@pytest.mark.parametrize("change", [freeze_words, adapt_words, adapt_frozen_words, hook_words])
def test_changed_word_embeddings_are_honoured(
    change: Callable[[PreTrainedModel], None], model_for_text: MakeModel, collate: PretrainingCollator,
    rows: list[Row], drawn: list[Tensor],
) -> None:  # fmt: skip
    model, batch = ready(model_for_text(**LARGE).double()), collate(rows[:8])
    usual = step_of(model, batch)
    naive = naive_of(model)
    change(model)
    change(naive)
    model.zero_grad(set_to_none=True)
    found, expected = step_of(model, batch), naive_step(naive, [batch], drawn[1:])
    assert_same_step(found, expected, 1e-9)
    if change is freeze_words:
        assert usual.gradients.keys() - found.gradients.keys() == {"lm_head.decoder.weight"}  # tied to the embeddings
        assert found.losses == pytest.approx(usual.losses)
    else:
        assert abs(found.losses["loss"] - usual.losses["loss"]) > 0.01


# --- precision, scaling and clipping --------------------------------------------------------------------------------


def test_half_precision_points_the_same_way(
    model_for_text: MakeModel, collate: PretrainingCollator, rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = ready(model_for_text(**LARGE)), collate(rows)
    words = torch.randint(4, 100, (16, 16), generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(objective, "sample_words_and_list", lambda bag, *_: (words, list_words(bag, words)))
    exact, half = step_of(model, batch), step_of(model, batch, autocast=True)
    assert half.losses == pytest.approx(exact.losses, rel=0.005)
    assert half.losses != exact.losses
    whole = torch.stack([gradient.norm() for gradient in exact.gradients.values()]).norm()
    seen = {name: right for name, right in exact.gradients.items() if right.norm() > 1e-3 * whole}
    assert len(seen) > len(exact.gradients) / 2
    for name, right in seen.items():
        cosine = nn.functional.cosine_similarity(half.gradients[name].flatten(), right.flatten(), dim=0)
        assert cosine > 0.998, name


def test_gradients_of_a_scaled_loss_are_unscaled_to_what_they_were(
    model_for_text: MakeModel, collate: PretrainingCollator, rows: list[Row]
) -> None:
    model, batch = ready(model_for_text(**LARGE)), collate(rows)
    plain, scaled = step_of(model, batch), step_of(model, batch, scale=1024)
    for name, gradient in scaled.gradients.items():
        assert gradient.norm() > 0 or plain.gradients[name].norm() == 0
    unscaled = {name: gradient / 1024 for name, gradient in scaled.gradients.items()}
    assert_same_step(Step(scaled.losses, unscaled), plain, 1e-6)
    model.zero_grad()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(model(**batch).loss).backward()
    scaler.unscale_(optimiser)
    assert_same_step(Step(plain.losses, gradients_of(model)), plain, 1e-6)
    assert scaler.step(optimiser) is None and scaler.get_scale() == 1024  # nothing was infinite


# --- through the Trainer --------------------------------------------------------------------------------------------


class Recorder(TrainerCallback):
    """Keeps micro-batches as they are collated, and the gradients of each optimiser step."""

    def __init__(self, collate: PretrainingCollator) -> None:
        self.collate, self.batches, self.steps = collate, [], []

    def __call__(self, rows: list[Row]) -> Batch:
        self.batches.append(self.collate(rows))
        return self.batches[-1]

    def on_pre_optimizer_step(self, *_: Any, model: PreTrainedModel, **__: Any) -> None:
        found = gradients_of(model)
        self.steps.append({name.removeprefix("module."): gradient for name, gradient in found.items()})


def train_one_step(
    model: PreTrainedModel, rows: list[Row], collate: PretrainingCollator, folder: Path, **settings: Any
) -> tuple[Recorder, Step]:
    """One optimiser step of all rows: its micro-batches, and what was logged and left for the optimiser."""
    recorder = Recorder(collate)
    arguments = TrainingArguments(
        output_dir=str(folder), use_cpu=True, max_steps=1, logging_steps=1, save_strategy="no", report_to="none",
        disable_tqdm=True, remove_unused_columns=False, learning_rate=1e-3, optim="sgd", seed=3, **settings,
    )  # fmt: skip
    trainer = HictlTrainer(
        model=model, args=arguments, train_dataset=rows, data_collator=recorder, callbacks=[recorder],
        gather_sentences=False,  # `test_gathering.py` has the contrast of all parts
    )  # fmt: skip
    trainer.train()
    [log] = [log for log in trainer.state.log_history if "lm_loss" in log]
    [gradients] = recorder.steps
    return recorder, Step({name: log[name] for name in ("loss", *LOSSES.values())}, gradients)


@pytest.mark.parametrize("clipped", [False, True])
def test_an_accumulated_step_of_uneven_parts_is_the_naive_one(
    clipped: bool, tmp_path: Path, model_for_text: MakeModel, collate: PretrainingCollator, rows: list[Row],
    drawn: list[Tensor],
) -> None:  # fmt: skip
    model = ready(model_for_text(**LARGE).double())
    naive = naive_of(model)  # before its weights move
    recorder, found = train_one_step(
        model, rows, collate, tmp_path, per_device_train_batch_size=6, gradient_accumulation_steps=3,
        max_grad_norm=0.5 if clipped else 0.0,
    )  # fmt: skip
    assert [len(batch["bag"]) for batch in recorder.batches] == [6, 6, 4]
    masked = [int((batch["labels"] != -100).sum()) for batch in recorder.batches]
    assert len({*masked}) == 3 and min(masked) > 0
    expected = naive_step(naive, recorder.batches, drawn)
    if clipped:
        assert nn.utils.clip_grad_norm_(naive.parameters(), 0.5) > 1
        expected = Step(expected.losses, gradients_of(naive))
    rounded = {name: pytest.approx(value, rel=1e-4) for name, value in expected.losses.items()}
    assert found.losses == rounded  # logs are in fp32
    assert_same_step(Step(expected.losses, found.gradients), expected, 1e-6 if clipped else 1e-9)


def train_as_one_of_two(
    model: PreTrainedModel, rows: list[Row], collate: PretrainingCollator, folder: Path
) -> tuple[Any, ...]:
    """Half the rows, in two micro-batches: the micro-batches, their word negatives and the step."""
    drawn: list[Tensor] = []
    objective.sample_words_and_list = remembering(drawn)
    recorder, step = train_one_step(
        model, rows, collate, folder, per_device_train_batch_size=4, gradient_accumulation_steps=2,
        max_grad_norm=0.0, ddp_backend="gloo",
    )  # fmt: skip
    return recorder.batches, drawn, tuple(step)


@pytest.mark.slow
def test_two_processes_make_the_naive_step_of_all_their_parts(
    tmp_path: Path, model_for_text: MakeModel, collate: PretrainingCollator, rows: list[Row]
) -> None:
    model = ready(model_for_text(**LARGE).double())
    naive = naive_of(model)
    found = found_by_two(tmp_path, train_as_one_of_two, model, rows, collate, tmp_path)
    batches, drawn = ([part for each in found for part in each[kind]] for kind in (0, 1))
    seeds = torch.cat([batch["example_seeds"] for batch in batches])
    assert len(batches) == 4 and sorted(seeds.tolist()) == list(range(16))  # each row once
    expected = naive_step(naive, batches, drawn)
    for _, _, step in found:
        assert_same_step(Step(expected.losses, step[1]), expected, 1e-9)
    assert found[0][2][0] == {name: pytest.approx(value, rel=1e-4) for name, value in expected.losses.items()}


# --- compiled -------------------------------------------------------------------------------------------------------


@pytest.fixture
def compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_a_compiled_step_is_the_naive_one(
    model_for_text: MakeModel, collate: PretrainingCollator, rows: list[Row],
    drawn: list[Tensor],
) -> None:  # fmt: skip
    smaller = {**LARGE, "initializer_range": 0.13}  # compiled sums round a little more
    model = ready(model_for_text(**smaller).double())
    naive, compiled = naive_of(model), torch.compile(model)
    for some in (rows, rows[:8], rows[3:15]):  # other lengths, other numbers of rows
        batch = collate(some)
        found = Step(step_of(compiled, batch).losses, gradients_of(model))
        assert_same_step(found, naive_step(naive, [batch], drawn[-1:]), 1e-9)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 2  # most of it is compiled
