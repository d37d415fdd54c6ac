"""A batch is one batch however it is divided, a run that is interrupted ends with the same bits, the best state is
kept, and logits are those of each row alone."""

import copy
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn import functional as F
from transformers import (
    MT5Config,
    MT5EncoderModel,
    MT5Model,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
)
from two_processes import found_by_two

from hictl_hf import HictlForQuestionAnswering, HictlForSequenceClassification, HictlForTokenClassification
from hictl_hf.errors import BadInput
from hictl_hf.files import write_json
from hictl_hf.pretraining.setup import set_dropout
from hictl_hf.training import trainer as trainer_module
from hictl_hf.training.checkpoints import newest_first, verify_checkpoint
from hictl_hf.xtreme.fine_tuning import (
    FineTuningConfig,
    FineTuningTrainer,
    TrainingOrder,
    fine_tune,
    load_model,
    predict_logits,
    row_lengths,
    rows_at_once,
)
from hictl_hf.xtreme.question_answering import QuestionAnswering
from hictl_hf.xtreme.sentence_pairs import SentencePairs, TaskFeatures
from hictl_hf.xtreme.tagging import Tagging

ROWS, STEPS_PER_EPOCH = 22, 3  # the last batch of an epoch has 6 of 8 rows
SETTINGS = FineTuningConfig(learning_rate=1e-2, batch_size=8, epochs=2, max_length=62)
TAGS = ("A", "B", "O")
Kinds = dict[str, tuple[TaskFeatures, Dataset, PreTrainedModel]]


@pytest.fixture
def kinds(
    tokenizer: PreTrainedTokenizerBase,
    sentences: dict[str, list[str]],
    model_for_text: Callable[..., PreTrainedModel],
) -> Kinds:
    """Of each kind of task its features, 22 examples with lengths as uneven as those of text, and a new model."""
    texts = [" ".join(sentences["en"][at : at + 1 + at % 3]) for at in range(ROWS)]
    words = [text.split() for text in texts]
    pairs = {"first": texts, "second": sentences["sw"][:ROWS], "label": [str(at % 3) for at in range(ROWS)]}
    tagged = {"words": words, "tags": [[TAGS[len(word) % 3] for word in row] for row in words]}
    answers = [[{"text": row[1], "start": len(row[0]) + 1}] for row in words]
    asked = {"id": [str(at) for at in range(ROWS)], "question": ["a dog?"] * ROWS, "context": texts, "answers": answers}
    settings: dict[str, Any] = {"initializer_range": 0.3, "hidden_dropout_prob": 0.1}
    return {
        "pairs": (
            SentencePairs(tokenizer, 62, ("0", "1", "2")), Dataset.from_dict(pairs),
            model_for_text(HictlForSequenceClassification, num_labels=3, **settings),
        ),
        "tagging": (
            Tagging(tokenizer, 62, TAGS), Dataset.from_dict(tagged),
            model_for_text(HictlForTokenClassification, num_labels=3, **settings),
        ),
        "questions": (
            QuestionAnswering(tokenizer, 40, stride=10), Dataset.from_dict(asked),
            model_for_text(HictlForQuestionAnswering, **settings),
        ),
    }  # fmt: skip


def weights(model: PreTrainedModel) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    assert one.keys() == other.keys()
    return all(one[name].equal(other[name]) for name in one)


class AtStep:
    """Counts optimiser steps of all trainers while it is in place, and does something in one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int, do: Callable[[], object]) -> None:
        self.steps, self.original = 0, FineTuningTrainer.get_batch_samples
        counter = self

        def get_batch_samples(self: FineTuningTrainer, *args: Any, **kwargs: Any) -> Any:
            counter.steps += 1
            if counter.steps == step:
                do()
            return counter.original(self, *args, **kwargs)

        monkeypatch.setattr(FineTuningTrainer, "get_batch_samples", get_batch_samples)


# --- the loss of a batch --------------------------------------------------------------------------------------------


def whole_batch_loss(model: PreTrainedModel, rows: list[dict[str, Any]]) -> Tensor:
    """The official loss of a batch, from each row alone: the mean over rows, or over tagged words."""
    losses = []
    for row in rows:
        outputs = model(torch.tensor([row["input_ids"]]))
        if "start_positions" in row:
            for logits, name in ((outputs.start_logits, "start_positions"), (outputs.end_logits, "end_positions")):
                losses.append(F.cross_entropy(logits, torch.tensor([row[name]])))
        elif isinstance(row["labels"], list):
            for logits, label in zip(outputs.logits[0], row["labels"]):
                if label != -100:
                    losses.append(F.cross_entropy(logits, torch.tensor(label)))
        else:
            losses.append(F.cross_entropy(outputs.logits, torch.tensor([row["labels"]])))
    return torch.stack(losses).mean()


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


Step = tuple[float, dict[str, Tensor]]


def noted_steps(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """A list to which each step from now on adds its loss and its gradient, as it was before clipping."""
    steps: list[Step] = []

    def note(self: FineTuningTrainer, model: torch.nn.Module, grad_norm: Tensor) -> Tensor:
        scale = max(1.0, float(grad_norm))  # by which clipping divides
        steps.append((sum(map(float, self.step_losses)), {n: g * scale for n, g in gradients(model).items()}))
        return grad_norm

    monkeypatch.setattr(FineTuningTrainer, "_get_grad_norm", note)
    return steps


def assert_same(found: list[Step], expected: list[Step]) -> None:
    for (loss, gradient), (expected_loss, wanted) in zip(found, expected, strict=True):
        assert loss == pytest.approx(expected_loss, rel=1e-5)
        torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["pairs", "tagging", "questions"])
@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_loss_and_gradient_are_those_of_the_whole_batch_however_it_is_divided(
    kinds: Kinds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, micro_batches: int
) -> None:
    kind, examples, model = kinds[name]
    set_dropout(model, 0.0)
    features = kind.encode(examples, training=True)
    order = list(TrainingOrder(row_lengths(features), 8, seed=42, similar_lengths=False))
    expected = []
    for start in range(0, len(order), 8):  # the last batch is smaller
        batch = [features[at] for at in order[start : start + 8]]
        assert len({len(row["input_ids"]) for row in batch}) > 1
        loss = whole_batch_loss(model, batch)
        loss.backward()
        expected.append((float(loss.detach()), gradients(model)))
        model.zero_grad()
    assert min(max(float(each.abs().max()) for each in found.values()) for _, found in expected) > 0.01
    steps = noted_steps(monkeypatch)
    still = replace(SETTINGS, epochs=1, learning_rate=0.0)
    fine_tune(model, kind.tokenizer, features, still, tmp_path, micro_batches=micro_batches)
    assert len(steps) >= 3
    assert_same(steps, expected)


def test_rows_without_a_tag_add_nothing_however_the_batch_is_divided(
    kinds: Kinds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, examples, model = kinds["tagging"]
    set_dropout(model, 0.0)
    features = kind.encode(examples, training=True)
    order = list(TrainingOrder(row_lengths(features), 8, seed=42, similar_lengths=False))
    untagged = {*order[:8], *order[9:12]}  # a step without a tag, and parts of another
    labels = [[-100] * len(row) if at in untagged else row for at, row in enumerate(features["labels"][:])]
    features = features.remove_columns("labels").add_column("labels", labels)
    steps = noted_steps(monkeypatch)
    still = replace(SETTINGS, epochs=1, learning_rate=0.0)
    for parts in (1, 8):
        fine_tune(model, kind.tokenizer, features, still, tmp_path / str(parts), micro_batches=parts)
    assert [loss == 0 for loss, _ in steps] == 2 * [True, False, False]
    assert_same(steps[3:], steps[:3])


@pytest.mark.parametrize("name", ["pairs", "tagging", "questions"])
def test_rows_are_padded_on_the_right_whatever_the_tokenizer_does(kinds: Kinds, name: str, tmp_path: Path) -> None:
    """Heads read the first token in the first column, and answers are places in a row."""
    features, examples, model = kinds[name]
    left = copy.copy(features.tokenizer)
    left.padding_side = "left"
    rows = features.encode(examples, training=True)
    trainer = FineTuningTrainer(
        model, TrainingArguments(str(tmp_path), use_cpu=True, report_to="none"), train_dataset=rows,
        processing_class=left,
    )  # fmt: skip
    batch = trainer.data_collator([rows[at] for at in range(min(4, len(rows)))])
    mask = batch["attention_mask"]
    assert not mask.all() and (mask.diff(dim=1) <= 0).all()
    assert trainer.processing_class.padding_side == "right" and left.padding_side == "left"


def test_an_infinite_loss_with_finite_gradients_is_noticed(kinds: Kinds, tmp_path: Path) -> None:
    def make_infinite(module: torch.nn.Module, args: Any, outputs: Any) -> None:
        outputs.loss = outputs.loss + torch.inf

    kind, examples, model = kinds["pairs"]
    before = weights(model)
    model.register_forward_hook(make_infinite)
    with pytest.raises(BadInput, match="not finite in 5 steps in a row"):
        fine_tune(model, kind.tokenizer, kind.encode(examples, training=True), SETTINGS, tmp_path)
    assert equal(before, weights(model))


def test_a_batch_that_cannot_be_divided_is_refused(kinds: Kinds, tmp_path: Path) -> None:
    kind, examples, model = kinds["pairs"]
    features = kind.encode(examples, training=True)
    with pytest.raises(BadInput, match="per_device_train_batch_size is 8; allowed are multiples of 3 micro-batches"):
        fine_tune(model, kind.tokenizer, features, SETTINGS, tmp_path, micro_batches=3)
    assert rows_at_once(12, micro_batches=2, processes=3) == 2
    with pytest.raises(BadInput, match="per_device_train_batch_size is 0; allowed are multiples of 2 micro-batches"):
        rows_at_once(0, micro_batches=2, processes=1)


def test_rows_of_similar_length_are_those_of_a_step_however_it_is_divided(kinds: Kinds, tmp_path: Path) -> None:
    kind, examples, model = kinds["pairs"]
    rows, orders = kind.encode(examples, training=True), []
    for parts in (1, 4):
        args = TrainingArguments(
            str(tmp_path), per_device_train_batch_size=8 // parts, gradient_accumulation_steps=parts, use_cpu=True,
            report_to="none",
        )  # fmt: skip
        trainer = FineTuningTrainer(
            model, args, train_dataset=rows, processing_class=kind.tokenizer, similar_lengths=True
        )
        orders.append(list(trainer._get_train_sampler()))
    assert orders[0] == orders[1]


def test_a_model_that_was_trained_in_bf16_predicts_like_the_one_that_is_loaded(kinds: Kinds, tmp_path: Path) -> None:
    kind, examples, model = kinds["pairs"]
    settings = replace(SETTINGS, epochs=1 / 3)
    trained = fine_tune(model, kind.tokenizer, kind.encode(examples, training=True), settings, tmp_path, bf16=True)
    loaded = type(model).from_pretrained(tmp_path / "model")
    one, other = (predict_logits(each, kind.tokenizer, kind.encode(examples)) for each in (trained, loaded))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("warmup", [2, 1 / 3])  # steps, or their share of 6
def test_the_learning_rate_rises_and_falls_as_worked_by_hand(
    kinds: Kinds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warmup: float
) -> None:
    kind, examples, model = kinds["pairs"]
    rates, trainers = [], []

    def note(self: FineTuningTrainer, model: torch.nn.Module, grad_norm: Tensor) -> Tensor:
        rates.append(self.lr_scheduler.get_last_lr()[0])
        trainers.append(self)
        return grad_norm

    monkeypatch.setattr(FineTuningTrainer, "_get_grad_norm", note)
    settings = replace(SETTINGS, warmup=warmup, weight_decay=0.3)
    fine_tune(model, kind.tokenizer, kind.encode(examples, training=True), settings, tmp_path, seed=9)
    assert rates == pytest.approx([0, 0.5e-2, 1e-2, 0.75e-2, 0.5e-2, 0.25e-2])
    assert trainers[0].args.seed == 9 and trainers[0].args.max_grad_norm == 1
    decayed, others = trainers[0].optimizer.optimizer.param_groups
    assert (decayed["weight_decay"], others["weight_decay"], decayed["eps"]) == (0.3, 0, 1e-8)
    assert all(weight.ndim > 1 for weight in decayed["params"]) and all(bias.ndim == 1 for bias in others["params"])


# --- the order of rows ----------------------------------------------------------------------------------------------


def orders(similar_lengths: bool, seed: int = 7) -> Iterator[tuple[list[int], np.ndarray]]:
    lengths = np.random.default_rng(0).geometric(1 / 20, 1000)
    order = TrainingOrder(lengths, 8, seed, similar_lengths)
    assert len(order) == 1000
    for epoch in (0, 1):
        order.set_epoch(epoch)
        yield list(order), lengths


@pytest.mark.parametrize("similar_lengths", [False, True])
def test_every_row_comes_once_an_epoch_in_an_order_set_by_seed_and_epoch(similar_lengths: bool) -> None:
    (first, _), (second, _) = orders(similar_lengths)
    assert sorted(first) == sorted(second) == list(range(1000))
    assert first != second and first != list(range(1000))
    assert [order for order, _ in orders(similar_lengths)] == [first, second]
    assert next(orders(similar_lengths, seed=8))[0] != first


@pytest.mark.parametrize(("similar_lengths", "recorded"), [(False, "471be925ed8644a4"), (True, "498f003999d41d9c")])
def test_the_order_is_that_recorded_with_0_7_5(similar_lengths: bool, recorded: str) -> None:
    order = TrainingOrder(np.random.default_rng(0).integers(3, 60, 700), 8, 42, similar_lengths)
    order.set_epoch(1)
    assert sha256(np.array([*order]).tobytes()).hexdigest()[:16] == recorded


def test_rows_of_similar_length_come_together_only_when_asked_for() -> None:
    waste = []
    for similar_lengths in (False, True):
        order, lengths = next(orders(similar_lengths))
        batches = [lengths[order[at : at + 8]] for at in range(0, 1000, 8)]
        waste.append(sum(8 * batch.max() - batch.sum() for batch in batches) / lengths.sum())
    assert waste[0] > 0.8 and waste[1] < 0.1


def test_all_processes_decide_by_the_score_of_the_main_one(
    kinds: Kinds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPUs may round otherwise, and a process that saves another best state would wait for the rest."""
    kind, examples, model = kinds["pairs"]
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    trainer = FineTuningTrainer(
        model, args, train_dataset=kind.encode(examples, training=True), processing_class=kind.tokenizer,
        score=lambda _: 0.25,
    )  # fmt: skip
    monkeypatch.setattr(trainer_module, "broadcast_object_list", lambda values: [values[0] * 2])
    assert trainer.evaluate()["eval_score"] == 0.5


# --- interrupted runs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(  # within an epoch, at its end, in the next
    ("step", "similar_lengths"),
    [(2, False), (STEPS_PER_EPOCH, True), (4, True), pytest.param(STEPS_PER_EPOCH, False, marks=pytest.mark.slow)],
)
def test_a_run_that_sigterm_ended_goes_on_to_the_same_bits(
    kinds: Kinds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, similar_lengths: bool
) -> None:
    kind, examples, model = kinds["tagging"]
    features = kind.encode(examples, training=True)
    assert len(features) == ROWS
    how: dict[str, Any] = {"micro_batches": 2, "similar_lengths": similar_lengths, "save_every": 100}
    start = weights(model)
    expected = weights(fine_tune(model, kind.tokenizer, features, SETTINGS, tmp_path / "whole", **how))
    assert not equal(start, expected)
    model.load_state_dict(start)
    with monkeypatch.context() as context, pytest.raises(SystemExit) as ended:
        at = AtStep(context, step, lambda: os.kill(os.getpid(), signal.SIGTERM))
        fine_tune(model, kind.tokenizer, features, SETTINGS, tmp_path / "ended", **how)
    assert ended.value.code == 143 and at.steps == step
    assert [path.name for path in newest_first(tmp_path / "ended")] == [f"checkpoint-{step}"]
    model.load_state_dict(start)  # the checkpoint has to bring the weights
    at = AtStep(monkeypatch, 0, lambda: None)
    found = fine_tune(model, kind.tokenizer, features, SETTINGS, tmp_path / "ended", **how)
    assert at.steps == 2 * STEPS_PER_EPOCH - step and equal(weights(found), expected)


def test_a_run_that_was_killed_goes_on_from_its_last_checkpoint_with_the_best_one_known(
    kinds: Kinds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, examples, model = kinds["pairs"]
    features = kind.encode(examples, training=True)
    start, scores, settings = weights(model), {1: 0.5, 2: 0.9, 3: 0.1, 4: 0.9, 5: 0.3, 6: 0.2}, replace(
        SETTINGS, evaluate_every=1
    )  # fmt: skip
    states: dict[int, dict[str, Tensor]] = {}

    def run(folder: Path, die_at: int = 0) -> PreTrainedModel:
        def die() -> None:
            raise KeyboardInterrupt

        def score(of: PreTrainedModel) -> float:
            assert of is model
            states[at.steps + done] = weights(of)
            return scores[at.steps + done]

        model.load_state_dict(start)
        done = max((int(path.name.split("-")[1]) for path in newest_first(folder)), default=0)
        with monkeypatch.context() as context:
            at = AtStep(context, die_at, die)
            return fine_tune(model, kind.tokenizer, features, settings, folder, score, save_every=3)

    best = weights(run(tmp_path / "whole"))
    assert sorted(states) == [1, 2, 3, 4, 5, 6] and equal(best, states[2]) and not equal(best, states[4])
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", die_at=5)
    assert [path.name for path in newest_first(tmp_path / "killed")] == ["checkpoint-3", "checkpoint-2"]
    states.clear()
    assert equal(weights(run(tmp_path / "killed")), best) and sorted(states) == [4, 5, 6]


def test_states_between_the_steps_at_which_all_is_saved_can_be_the_best(kinds: Kinds, tmp_path: Path) -> None:
    kind, examples, model = kinds["pairs"]
    states: list[dict[str, Tensor]] = []

    def score(of: PreTrainedModel) -> float:
        states.append(weights(of))
        return -abs(len(states) - 2.0)  # the second is best, and the last of three evaluations is at the end

    settings = replace(SETTINGS, evaluate_every=2, epochs=5 / 3)  # 5 steps
    features = kind.encode(examples, training=True)
    found = fine_tune(model, kind.tokenizer, features, settings, tmp_path, score, save_every=5)
    assert len(states) == 3 and equal(weights(found), states[1])
    assert not equal(states[1], states[2])


def test_without_a_score_the_last_state_stays(kinds: Kinds, tmp_path: Path) -> None:
    kind, examples, model = kinds["questions"]
    features = kind.encode(examples, training=True)
    settings = replace(SETTINGS, evaluate_every=1)
    one = weights(fine_tune(model, kind.tokenizer, features, settings, tmp_path))
    assert equal(one, weights(model))


def test_a_finished_run_is_loaded_and_its_checkpoints_are_gone(
    kinds: Kinds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, examples, model = kinds["tagging"]
    features = kind.encode(examples, training=True)
    start = weights(model)
    expected = weights(fine_tune(model, kind.tokenizer, features, SETTINGS, tmp_path, save_every=2))
    assert not newest_first(tmp_path) and verify_checkpoint(tmp_path / "model") is None
    assert len({path.stat().st_mode for path in (tmp_path / "model").iterdir()}) == 1, "weights, too"
    model.load_state_dict(start)
    at = AtStep(monkeypatch, 0, lambda: None)
    (tmp_path / "checkpoint-6").mkdir()  # killed before it was removed
    assert equal(weights(fine_tune(model, kind.tokenizer, features, SETTINGS, tmp_path)), expected) and not at.steps
    assert not newest_first(tmp_path)
    next((tmp_path / "model").glob("*.safetensors")).write_bytes(b"broken")  # killed while the model was saved
    model.load_state_dict(start)
    assert equal(weights(fine_tune(model, kind.tokenizer, features, SETTINGS, tmp_path)), expected) and at.steps == 6


class Falling:
    """The first state that it scores is the best."""

    score = 0.0

    def __call__(self, _: PreTrainedModel) -> float:
        self.score -= 1
        return self.score


def fine_tuned_by_two(model: PreTrainedModel, kind: TaskFeatures, features: Dataset, folder: Path) -> dict[str, Tensor]:
    """The weights after a run in which the second process is slow to read the best state."""
    load = FineTuningTrainer._load_best_model

    def load_later(trainer: FineTuningTrainer) -> None:
        time.sleep(2 * trainer.args.process_index)
        load(trainer)

    FineTuningTrainer._load_best_model = load_later  # type: ignore[method-assign]
    settings = replace(SETTINGS, evaluate_every=2)
    return weights(fine_tune(model, kind.tokenizer, features, settings, folder, Falling()))


@pytest.mark.slow
def test_all_processes_have_the_best_state(kinds: Kinds, tmp_path: Path) -> None:
    """The main one removed its checkpoint when it had read it itself."""
    kind, examples, model = kinds["pairs"]
    features = kind.encode(examples, training=True)
    one, other = found_by_two(tmp_path, fine_tuned_by_two, model, kind, features, tmp_path / "run")
    assert equal(one, other) and not newest_first(tmp_path / "run")
    last = fine_tune(model, kind.tokenizer, features, SETTINGS, tmp_path / "last")
    assert not equal(one, weights(last))


# --- models and their logits ----------------------------------------------------------------------------------------


def test_a_new_head_has_the_labels_and_the_weights_of_its_seed(kinds: Kinds, tmp_path: Path) -> None:
    model = kinds["tagging"][2]
    model.to(torch.bfloat16).roberta.save_pretrained(tmp_path)
    one, again, other = (load_model(Tagging.model_class, str(tmp_path), ("O", "X"), seed) for seed in (1, 1, 2))
    assert one.config.id2label == {0: "O", 1: "X"} and one.dtype == torch.float32
    assert isinstance(one, HictlForTokenClassification) and equal(weights(one), weights(again))
    heads = {name for name in weights(one) if not weights(one)[name].equal(weights(other)[name])}
    assert heads == {"classifier.weight"}
    questions = load_model(QuestionAnswering.model_class, str(tmp_path), QuestionAnswering.label_names(None))  # type: ignore[arg-type]
    assert questions.qa_outputs.out_features == 2  # though the folder is of a model with three labels
    one.save_pretrained(tmp_path)
    tagging = load_model(Tagging.model_class, str(tmp_path), ("A", "B", "O"))  # a head of another size is new
    assert tagging.classifier.out_features == 3 and tagging.classifier.bias.isfinite().all()
    assert equal(weights(tagging.roberta), weights(one.roberta))
    write_json(tmp_path / "config.json", {**one.config.to_dict(), "vocab_size": 9})
    with pytest.raises(BadInput, match=r"has roberta.embeddings.word_embeddings.weight as \(.*; allowed is \(9, "):
        load_model(Tagging.model_class, str(tmp_path), ("O", "X"))


@pytest.mark.parametrize("name", ["pairs", "tagging"])
def test_a_head_with_the_same_labels_in_another_order_predicts_them(kinds: Kinds, name: str, tmp_path: Path) -> None:
    """The published heads of XNLI and WikiAnn have other orders than ours, and some have names in capitals."""
    kind, model = kinds[name][0], copy.deepcopy(kinds[name][2])
    model.config.id2label = dict(enumerate(["NEUTRAL", "entailment", "contradiction"]))
    [bias] = [weight for weight in model.parameters() if weight.shape == (3,)]
    torch.nn.init.normal_(bias)  # it is zero in a new head
    model.save_pretrained(tmp_path)
    inputs = {"input_ids": torch.tensor([[0, 5, 6, 2]])}
    before = model.eval()(**inputs).logits
    for labels, order in ((("contradiction", "entailment", "neutral"), [2, 1, 0]), (("a", "b", "c"), [0, 1, 2])):
        after = load_model(kind.model_class, str(tmp_path), labels).eval()(**inputs).logits
        torch.testing.assert_close(after, before[..., order])


def test_outputs_whose_names_differ_in_capitals_alone_stay_two(kinds: Kinds, tmp_path: Path) -> None:
    """Each fine-tuned model of such labels is loaded so to predict."""
    kind, model = kinds["tagging"][0], copy.deepcopy(kinds["tagging"][2])
    labels = ("V", "o", "v")
    model.config.id2label = dict(enumerate(labels))
    model.save_pretrained(tmp_path)
    assert equal(weights(load_model(kind.model_class, str(tmp_path), labels)), weights(model))
    turned = load_model(kind.model_class, str(tmp_path), ("v", "V", "o")).classifier.weight
    assert torch.equal(turned, model.classifier.weight[[2, 0, 1]])


@pytest.mark.parametrize("of_start", ["regression", "multi_label_classification"])
def test_a_model_of_similarity_becomes_a_classifier(kinds: Kinds, of_start: str, tmp_path: Path) -> None:
    """The loss is that of classes, whatever the problem that the files of the start were trained for."""
    kind, examples, model = kinds["pairs"]
    model = copy.deepcopy(model)
    model.config.problem_type = of_start
    model.save_pretrained(tmp_path)
    loaded = load_model(kind.model_class, str(tmp_path), kind.labels).eval()
    row = kind.encode(examples, training=True)[0]
    inputs = {"input_ids": torch.tensor([row["input_ids"]]), "labels": torch.tensor([row["labels"]])}
    outputs = loaded(**inputs)
    torch.testing.assert_close(outputs.loss, torch.nn.functional.cross_entropy(outputs.logits, inputs["labels"]))


def test_an_encoder_with_a_decoder_is_refused_where_its_decoder_is_missing(tmp_path: Path) -> None:
    """Its model of questions has both at its top, where other models have their heads."""
    config = MT5Config(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=20)
    MT5EncoderModel(config).save_pretrained(tmp_path)
    with pytest.raises(BadInput, match="has no weights for [0-9]+ parts, such as decoder"):
        load_model(QuestionAnswering.model_class, str(tmp_path), ("start", "end"))
    MT5Model(config).save_pretrained(tmp_path)
    assert load_model(QuestionAnswering.model_class, str(tmp_path), ("start", "end")).qa_outputs.out_features == 2


@pytest.mark.parametrize("name", ["pairs", "tagging", "questions"])
@pytest.mark.parametrize("training", [False, True])
def test_logits_are_those_of_each_row_alone_in_the_order_of_the_rows(kinds: Kinds, name: str, training: bool) -> None:
    kind, examples, model = kinds[name]
    features = kind.encode(examples)
    model.train(training)
    found = predict_logits(model, kind.tokenizer, features, batch_size=5)
    assert all(module.training == training for module in model.modules()) and len(found) == len(features)
    model.eval()
    for row, logits in zip(features, found):
        with torch.no_grad():
            outputs = model(torch.tensor([row["input_ids"]]))
        expected = (
            torch.stack((outputs.start_logits, outputs.end_logits), -1) if name == "questions" else outputs.logits
        )
        assert logits.shape == expected[0].shape and logits.dtype == np.float32
        np.testing.assert_allclose(logits, expected[0].numpy(), rtol=1e-4, atol=1e-4)
    assert len({tuple(np.ravel(logits)[:3].round(3)) for logits in found}) > ROWS / 2  # a row out of place would show
    assert predict_logits(model, kind.tokenizer, features.select([])) == []


def test_a_prediction_leaves_model_and_tokenizer_as_they_were(kinds: Kinds) -> None:
    """A model in train mode whose encoder stands still in eval mode, and a tokenizer that pads on the left."""
    task, examples, model = kinds["pairs"]
    tokenizer = copy.copy(task.tokenizer)
    tokenizer.padding_side = "left"
    model = copy.deepcopy(model).train()
    model.base_model.eval()
    modes = [module.training for module in model.modules()]
    features = task.encode(examples)
    expected = predict_logits(model.eval(), task.tokenizer, features)
    model.train().base_model.eval()
    np.testing.assert_array_equal(predict_logits(model, tokenizer, features), expected)
    with pytest.raises(RuntimeError, match="no dropout"):
        model.base_model.register_forward_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("no dropout")))
        predict_logits(model, tokenizer, features)
    assert [module.training for module in model.modules()] == modes and tokenizer.padding_side == "left"


def test_a_model_learns_what_it_is_shown(kinds: Kinds, tmp_path: Path) -> None:
    for name, (kind, examples, model) in kinds.items():
        settings = replace(SETTINGS, epochs=30)
        learned = fine_tune(model, kind.tokenizer, kind.encode(examples, training=True), settings, tmp_path / name)
        features = kind.encode(examples)
        predictions = kind.decode(examples, features, predict_logits(learned, kind.tokenizer, features))
        references = kind.references(examples)
        if name == "questions":
            right = [predictions[key] in references[key] for key in references]
        elif name == "tagging":
            right = [a == b for found, gold in zip(predictions, references) for a, b in zip(found, gold, strict=True)]
        else:
            right = [a == b for a, b in zip(predictions, references, strict=True)]
        assert np.mean(right) > 0.8, name


def test_half_precision_logits_are_close_and_not_equal(kinds: Kinds) -> None:
    kind, examples, model = kinds["tagging"]
    features = kind.encode(examples)
    exact, half = (np.concatenate(predict_logits(model, kind.tokenizer, features, bf16=bf16)) for bf16 in (False, True))
    assert 0 < np.abs(exact - half).max() < 0.5
