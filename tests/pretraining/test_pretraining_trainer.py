"""Losses are means over an optimiser step however it is split; what is logged is true; a resumed run ends the same."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from test_training_trainer import Poison
from torch import Tensor
from toy_trainer import (
    BATCH,
    EVERY_POOLING,
    SEED,
    SETTINGS,
    differing,
    gradients_of,
    logs_of,
    trained,
    trainer_of,
    weights_of,
)
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
)

import hictl_hf.pretraining.trainer
import hictl_hf.training.trainer
from hictl_hf.data.collator import PretrainingCollator
from hictl_hf.embedding.encoder import embed_sentences, load_encoder
from hictl_hf.embedding.pooling import Pooling
from hictl_hf.embedding.sentence_transformers_files import write_files_of_checkpoint
from hictl_hf.embedding.sentence_transformers_settings import read_sentence_transformers_files
from hictl_hf.errors import BadInput
from hictl_hf.pretraining.trainer import HictlTrainer
from hictl_hf.retrieval.held_out import RetrievalAccuracy, best_pooling, evaluate_retrieval, mean_accuracies
from hictl_hf.training.arguments import RunArguments
from hictl_hf.training.checkpoints import verify_checkpoint, write_manifest


@pytest.fixture(scope="module")
def held_out(corpus: Dataset) -> Dataset:
    return corpus.select(range(20, 30))  # four pairs en-de, six en-sw


@pytest.fixture
def build(
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    tokens: Dataset,
    tmp_path: Path,
) -> Callable[..., HictlTrainer]:
    """`build(model={...}, objectives=..., **settings)`: a trainer of a new toy model, not yet trained."""

    def make(model: dict[str, Any] | None = None, **settings: Any) -> HictlTrainer:
        large = {"initializer_range": 0.2, **(model or {})}
        return trainer_of(model_for_text(**large), tokenizer, tokens, settings.pop("folder", tmp_path), **settings)

    return make


def assert_close_gradients(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys() and one
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-6)


# --- one optimiser step, split or not -------------------------------------------------------------------------------

WHOLE_AND_SPLIT = [{"per_device_train_batch_size": size, "gradient_accumulation_steps": 8 // size} for size in (8, 4)]


def test_the_logged_loss_is_that_of_the_whole_batch_in_one_call(build: Callable[..., HictlTrainer]) -> None:
    trainer = build(
        per_device_train_batch_size=2, gradient_accumulation_steps=4, objectives=["lm", "word"], max_steps=1
    )
    draws = np.concatenate([part for part, _ in zip(trainer.batches, range(4))])
    batch = trainer.data_collator(trainer.train_dataset.__getitems__(draws))
    with torch.no_grad():
        expected = trainer.model(**batch)
    masked = (batch["labels"] != -100).sum(-1)
    assert len(masked.view(4, 2).sum(-1).unique()) > 1  # micro-batches differ, so a mean of means would be wrong
    [log] = logs_of(trained(trainer))
    assert log["lm_loss"] == pytest.approx(float(expected.lm_loss), rel=1e-5)
    assert log["word_loss"] == pytest.approx(float(expected.word_loss), rel=1e-5)
    assert log["loss"] == pytest.approx(float(expected.loss), rel=1e-4)
    assert "sentence_loss" not in log


def test_a_step_without_a_masked_token_trains_on_the_other_losses(build: Callable[..., HictlTrainer]) -> None:
    trainer = build(objectives=["lm", "word"], max_steps=1)
    trainer.data_collator.mlm_probability = trainer.data_collator.tlm_probability = 0
    [log] = logs_of(trained(trainer))
    assert log["lm_loss"] == 0 and log["word_loss"] > 0 and log["grad_norm"] > 0 and "skipped_steps" not in log


def test_gradient_accumulation_changes_neither_language_model_nor_word_level(
    build: Callable[..., HictlTrainer],
) -> None:
    whole, split = (trained(build(objectives=["lm", "word"], **how)) for how in WHOLE_AND_SPLIT)
    assert len(gradients_of(whole)) == len(gradients_of(split)) == 3
    for one, other in zip(gradients_of(whole), gradients_of(split), strict=True):
        assert sum(float(gradient.abs().sum()) for gradient in one.values()) > 1
        assert_close_gradients(one, other)
    for name in ("loss", "lm_loss", "word_loss"):
        found, again = ([log[name] for log in logs_of(trainer)] for trainer in (whole, split))
        assert found == pytest.approx(again, rel=1e-4)
        assert len(set(found)) == 3


def test_gradient_accumulation_takes_negatives_from_the_sentence_level(build: Callable[..., HictlTrainer]) -> None:
    settings = {"model": {"duplicates": "keep"}, "objectives": ["sentence"], "max_steps": 1}
    whole, split = (trained(build(**settings, **how)) for how in WHOLE_AND_SPLIT)
    [one], [other] = gradients_of(whole), gradients_of(split)
    assert not torch.allclose(one["projection.weight"], other["projection.weight"], rtol=0.1)
    [log], [split_log] = logs_of(whole), logs_of(split)
    assert (log["negatives_per_anchor"], split_log["negatives_per_anchor"]) == (14, 6)  # 2n - 2
    assert log["sentence_loss"] > split_log["sentence_loss"] * 1.05  # fewer to tell the positive from


# --- p_avg ----------------------------------------------------------------------------------------------------------


def test_p_avg_has_one_entry_for_each_optimiser_step(build: Callable[..., HictlTrainer], held_out: Dataset) -> None:
    # 80 rows are six batches of 12 and one of 8: seven steps of three micro-batches
    trainer = trained(
        build(
            model={"hard_negative_window": 10}, eval_dataset=held_out, eval_strategy="steps", eval_steps=2,
            max_steps=-1, num_train_epochs=1, per_device_train_batch_size=4, gradient_accumulation_steps=3,
        )
    )  # fmt: skip
    logs, probability = logs_of(trainer), trainer.model.sentence_probability
    assert len(logs) == 7 and len(logs_of(trainer, "eval_retrieval")) == 4  # 2, 4, 6 and the last
    assert int(probability.steps) == 7
    by_step = [np.exp(-log["sentence_loss"]) for log in logs]
    assert probability.recent.tolist() == pytest.approx([*by_step, 0, 0, 0], rel=1e-5)
    assert [log["p_avg"] for log in logs] == pytest.approx([np.mean(by_step[: at + 1]) for at in range(7)], rel=1e-5)


def test_p_avg_forgets_the_oldest_step_and_sets_the_interpolation_of_the_next(
    build: Callable[..., HictlTrainer],
) -> None:
    settings = {"model": {"hard_negative_window": 2}, "max_steps": 5}
    trainer = trained(build(**settings))
    logs = logs_of(trainer)
    by_step = [np.exp(-log["sentence_loss"]) for log in logs]
    assert [log["p_avg"] for log in logs[1:]] == pytest.approx(
        [np.mean(by_step[at - 1 : at + 1]) for at in range(1, 5)]
    )
    lambdas = [log["hard_negative_lambda"] for log in logs]
    assert lambdas[0] == 1 and all(0 < value < 1 for value in lambdas[1:])
    off = trained(build(**{**settings, "model": {"hard_negatives": False}}))
    assert [log["hard_negative_lambda"] for log in logs_of(off)] == [1] * 5


def test_without_the_sentence_level_nothing_enters_p_avg(build: Callable[..., HictlTrainer]) -> None:
    trainer = trained(build(objectives=["lm", "word"], max_steps=2))
    assert int(trainer.model.sentence_probability.steps) == 0
    assert [log["p_avg"] for log in logs_of(trainer)] == [0, 0]


# --- logs -----------------------------------------------------------------------------------------------------------


def test_logs_are_means_over_the_steps_since_the_last(build: Callable[..., HictlTrainer]) -> None:
    by_one, by_two = (logs_of(trained(build(max_steps=4, logging_steps=steps))) for steps in (1, 2))
    assert (len(by_one), len(by_two)) == (4, 2)
    names = ["lm_loss", "sentence_loss", "word_loss", "hard_negative_lambda", "negatives_per_anchor"]
    assert {*names, "loss", "p_avg", "tokens_per_second", "learning_rate", "grad_norm"} <= by_one[0].keys()
    for name in names:
        values = [log[name] for log in by_one]
        means = [np.mean(values[:2]), np.mean(values[2:])]
        assert [log[name] for log in by_two] == pytest.approx(means, rel=1e-6), name
    for log in by_one:
        assert log["loss"] == pytest.approx(sum(log[name] for name in names[:3]), rel=1e-4)
        assert log["negatives_per_anchor"] <= 14


def test_a_skipped_step_enters_neither_p_avg_nor_the_logs(build: Callable[..., HictlTrainer]) -> None:
    trainer = build(max_steps=3, logging_steps=3)
    trainer.add_callback(Poison([2]))
    [log] = logs_of(trained(trainer))
    assert trainer.skipped_steps == 1 and int(trainer.model.sentence_probability.steps) == 2
    assert log["loss"] == pytest.approx(log["lm_loss"] + log["sentence_loss"] + log["word_loss"], rel=1e-4)


def test_a_second_training_logs_its_own_steps(build: Callable[..., HictlTrainer]) -> None:
    """The first one ends with a step that was not logged."""
    trainer = build(max_steps=3, logging_steps=2)
    for _ in range(2):
        trainer.log_started = 0.0  # long ago
        [log] = logs_of(trained(trainer))
        assert log["loss"] == pytest.approx(log["lm_loss"] + log["sentence_loss"] + log["word_loss"], rel=1e-4)
        assert log["tokens_per_second"] > 1


@pytest.mark.parametrize("objective", ["lm", "sentence", "word"])
def test_losses_that_are_off_are_not_logged(build: Callable[..., HictlTrainer], objective: str) -> None:
    [log] = logs_of(trained(build(objectives=[objective], max_steps=1)))
    assert {name for name in log if name.endswith("_loss")} == {f"{objective}_loss"}
    assert ("hard_negative_lambda" in log) == ("negatives_per_anchor" in log) == (objective == "sentence")


def test_tokens_per_second_counts_every_token_read_and_no_evaluation(
    build: Callable[..., HictlTrainer], held_out: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that is two seconds later after each step, and a hundred after each evaluation."""
    now, read = [0.0], []

    class Clock(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            now[0] += 2

    def evaluate_slowly(*arguments: Any) -> dict[Pooling, RetrievalAccuracy]:
        now[0] += 100
        return evaluate_retrieval(*arguments)

    monkeypatch.setattr(hictl_hf.pretraining.trainer, "time", lambda: now[0])
    monkeypatch.setattr(hictl_hf.pretraining.trainer, "evaluate_retrieval", evaluate_slowly)
    trainer = build(eval_dataset=held_out, eval_strategy="steps", eval_steps=1, gradient_accumulation_steps=2)
    collate = trainer.data_collator

    def collate_and_count(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        batch = collate(rows)
        read.append(sum(int(batch[name].sum()) for name in ("attention_mask", "sentence_attention_mask")))
        return batch

    trainer.data_collator = collate_and_count
    trainer.add_callback(Clock())
    logs = logs_of(trained(trainer))
    assert [log["tokens_per_second"] for log in logs] == [round(sum(read[at : at + 2]) / 2) for at in (0, 2, 4)]
    assert now[0] == 306


def test_an_evaluation_before_the_first_step_is_no_time_of_training(
    build: Callable[..., HictlTrainer], held_out: Dataset
) -> None:
    trainer = trained(build(eval_dataset=held_out, eval_strategy="steps", eval_steps=9, eval_on_start=True))
    assert len(logs_of(trainer)) > 2 and all(log["tokens_per_second"] > 0 for log in logs_of(trainer))


def test_logs_come_back_from_the_saved_state(build: Callable[..., HictlTrainer], held_out: Dataset) -> None:
    steps = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trainer = trained(build(eval_dataset=held_out, max_steps=2, **steps))
    path = Path(trainer.args.output_dir) / "checkpoint-2" / "trainer_state.json"
    assert "NaN" not in path.read_text()
    saved = TrainerState.load_from_json(str(path)).log_history
    assert saved == trainer.state.log_history[: len(saved)]
    assert [sorted({"loss", "eval_retrieval"} & log.keys()) for log in saved] == [["loss"], ["eval_retrieval"]] * 2
    assert json.loads(json.dumps(saved)) == saved


def test_a_checkpoint_is_read_by_sentence_transformers_as_by_us(build: Callable[..., HictlTrainer]) -> None:
    """Without its files the library takes the mean of the last layer, without the prompt, and says nothing."""
    trainer = trained(build(save_strategy="steps", save_steps=1, max_steps=1))
    folder = Path(trainer.args.output_dir) / "checkpoint-1"
    settings = read_sentence_transformers_files(folder)
    assert settings is not None and settings.default_prompt is None
    assert (settings.pooling, settings.normalize) == ("cls", True)
    assert verify_checkpoint(folder) is None and "modules.json" in (folder / "manifest.json").read_text("utf-8")
    loaded, theirs = load_encoder(folder)
    vectors = [embed_sentences(model, theirs, ["a b", "c"]) for model in (trainer.model, loaded)]
    np.testing.assert_allclose(*vectors, atol=1e-6)
    trainer.model.config.embedding_pooling = "projection"
    write_files_of_checkpoint(folder / "none", trainer.model, sharded=True)  # its weights are in parts
    trainer.model.config.embedding_pooling = "mean without special tokens"  # no pooling of the library
    trainer.save_process_state(folder / "none")
    assert not (folder / "none").exists()


# --- evaluation -----------------------------------------------------------------------------------------------------


def test_evaluation_reports_the_best_pooling_per_language_and_its_mean(
    build: Callable[..., HictlTrainer], held_out: Dataset, tokenizer: PreTrainedTokenizerBase
) -> None:
    trainer = build(eval_dataset=held_out)
    metrics = trainer.evaluate()
    accuracies = evaluate_retrieval(trainer.model, tokenizer, held_out, EVERY_POOLING)
    best = best_pooling(accuracies)
    assert len({accuracy.mean for accuracy in accuracies.values()}) > 1  # there is a choice
    assert metrics["eval_retrieval"] == accuracies[best].mean
    assert (metrics["eval_pooling"], metrics["eval_layer"]) == best
    per_language = {name: metrics[f"eval_retrieval_{name}"] for name in ("de", "sw")}
    assert per_language == mean_accuracies(accuracies[best])
    assert metrics["eval_retrieval"] == pytest.approx(np.mean(list(per_language.values())))
    assert metrics["eval_samples_per_second"] > 0
    assert trainer.state.log_history[-1]["eval_retrieval"] == metrics["eval_retrieval"]


def test_all_processes_decide_by_the_accuracies_of_the_main_one(
    build: Callable[..., HictlTrainer], held_out: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding may differ between GPUs; a process that stopped or saved alone would wait for the others for ever."""
    trainer = build(eval_dataset=held_out)
    of_main: list[Any] = []

    def broadcast(objects: list[Any]) -> list[Any]:
        pooling = next(iter(objects[0]))
        of_main.append({pooling: RetrievalAccuracy({"de": (12.0, 14.0)}, {"de": 9})})
        return of_main

    monkeypatch.setattr(hictl_hf.training.trainer, "broadcast_object_list", broadcast)
    metrics = trainer.evaluate()
    assert len(of_main) == 1 and metrics["eval_retrieval"] == metrics["eval_retrieval_de"] == 13.0


def test_evaluation_takes_several_sets_and_refuses_what_has_no_translation(
    build: Callable[..., HictlTrainer], held_out: Dataset, corpus: Dataset
) -> None:
    trainer = build(eval_dataset=held_out)
    both = trainer.evaluate({"one": held_out, "other": held_out.select(range(4))})
    alone = trainer.evaluate()
    assert both["eval_one_retrieval"] == alone["eval_retrieval"] and "eval_other_retrieval" in both
    with pytest.raises(BadInput, match="rows without y"):
        trainer.evaluate(corpus)
    again = HictlTrainer(trainer.model, trainer.args, trainer.data_collator, processing_class=trainer.processing_class)
    assert again.evaluate(held_out)["eval_retrieval"] >= alone["eval_retrieval"]  # the best of all poolings


def test_what_the_collator_leaves_out_is_told(build: Callable[..., HictlTrainer], caplog: Any) -> None:
    build(objectives=["lm"])
    assert "not trained, as the collator makes no input for it: sentence, word" in caplog.text


def test_evaluation_takes_other_pairs_and_another_prefix(build: Callable[..., HictlTrainer], held_out: Dataset) -> None:
    metrics = build(eval_dataset=held_out).evaluate(held_out.select(range(4)), metric_key_prefix="test")
    assert all(name.startswith("test_") for name in metrics if name != "epoch")
    assert "test_retrieval_de" in metrics and "test_retrieval_sw" not in metrics


def test_evaluation_leaves_training_as_it_was(build: Callable[..., HictlTrainer], held_out: Dataset) -> None:
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    without = trained(build(model=dropout))
    evaluated = trained(build(model=dropout, eval_dataset=held_out, eval_strategy="steps", eval_steps=1))
    assert len(logs_of(evaluated, "eval_retrieval")) == 3
    assert not differing(weights_of(without), weights_of(evaluated))
    assert differing(weights_of(without), weights_of(trained(build(model=dropout, seed=SEED + 1))))  # dropout was on


def test_the_best_checkpoint_by_retrieval_is_what_a_run_ends_with(
    build: Callable[..., HictlTrainer], held_out: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([50.0, 80.0, 20.0])
    at_evaluation: list[dict[str, Tensor]] = []

    def evaluate_by_hand(*_: Any) -> dict[Pooling, RetrievalAccuracy]:
        at_evaluation.append(weights_of(trainer))
        return {EVERY_POOLING[0]: RetrievalAccuracy({"de": (next(scores),) * 2}, {"de": 10})}

    monkeypatch.setattr(hictl_hf.pretraining.trainer, "evaluate_retrieval", evaluate_by_hand)
    trainer = build(
        eval_dataset=held_out, eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1,
        load_best_model_at_end=True, metric_for_best_model="eval_retrieval", greater_is_better=True,
    )  # fmt: skip
    trained(trainer)
    assert trainer.state.best_metric == 80
    assert Path(trainer.state.best_model_checkpoint).name == "checkpoint-2"
    assert not differing(weights_of(trainer), at_evaluation[1])
    changed = differing(weights_of(trainer), at_evaluation[2])
    assert {"projection.weight", "sentence_probability.steps"} <= changed


# --- interrupted and resumed ----------------------------------------------------------------------------------------

STEPS = 10  # two epochs of five steps
RESUMED = {
    "model": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "hard_negative_window": 3},
    "optim": "adamw_torch",
    "learning_rate": 1e-3,
    "lr_scheduler_type": "linear",
    "max_grad_norm": 1.0,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "num_train_epochs": 2,
    "max_steps": -1,
    "dataloader_num_workers": 2,
    "save_strategy": "steps",
    "save_steps": 1,
}


@pytest.fixture(scope="module")
def uninterrupted(
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    tokens: Dataset,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[str, Tensor], list[dict[str, Any]]]:
    """A run that keeps a checkpoint of every step: its folder, its last weights and its logs."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    settings = {**RESUMED}
    model = model_for_text(initializer_range=0.2, **settings.pop("model"))
    trainer = trained(trainer_of(model, tokenizer, tokens, folder, **settings))
    assert trainer.state.global_step == STEPS
    return folder, weights_of(trainer), logs_of(trainer)


def resumed(build: Callable[..., HictlTrainer], checkpoint: Path, folder: Path) -> HictlTrainer:
    settings = {**RESUMED, "save_strategy": "no"}
    settings["model"] = {**settings["model"], "seed": 9}  # nothing may come from the new model
    trainer = trained(build(folder=folder, **settings), resume=str(checkpoint))
    assert trainer.state.global_step == STEPS
    return trainer


FIRST_EPOCH, BOUNDARY, SECOND_EPOCH = range(1, 5), [5], range(6, 10)
ALWAYS = [5, 7]  # the end of an epoch, and within the second


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(step, marks=[] if step in ALWAYS else pytest.mark.slow)
        for step in (*FIRST_EPOCH, *BOUNDARY, *SECOND_EPOCH)
    ],
)
def test_a_run_resumed_at_any_step_ends_with_the_same_bits(
    build: Callable[..., HictlTrainer], uninterrupted: tuple[Any, ...], tmp_path: Path, step: int
) -> None:
    folder, weights, logs = uninterrupted
    trainer = resumed(build, folder / f"checkpoint-{step}", tmp_path)
    assert not differing(weights, weights_of(trainer))
    for name in ("loss", "lm_loss", "sentence_loss", "word_loss", "hard_negative_lambda", "p_avg", "learning_rate"):
        assert [log[name] for log in logs_of(trainer)] == [log[name] for log in logs], name


@pytest.mark.parametrize("lost", ["random state", "p_avg"])
def test_a_resumed_run_ends_otherwise_where_something_is_lost(
    build: Callable[..., HictlTrainer], uninterrupted: tuple[Any, ...], tmp_path: Path, lost: str
) -> None:
    """So dropout and hard negatives were at work, and the bits above could have been others."""
    folder, weights, _ = uninterrupted
    checkpoint = tmp_path / "checkpoint-7"
    shutil.copytree(folder / "checkpoint-7", checkpoint)
    if lost == "random state":
        (checkpoint / "rng_state.pth").unlink()
    else:
        saved = load_file(checkpoint / "model.safetensors")
        saved["sentence_probability.recent"].zero_()
        save_file(saved, checkpoint / "model.safetensors", metadata={"format": "pt"})
    write_manifest(checkpoint)
    assert "projection.weight" in differing(weights, weights_of(resumed(build, checkpoint, tmp_path)))


def test_a_resumed_adapter_has_the_hard_negatives_of_the_run(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, tokens: Dataset, tmp_path: Path
) -> None:
    """peft saves the adapter without the buffers of p_avg."""
    peft = pytest.importorskip("peft")
    saved = []
    for resume in (None, str(tmp_path / "checkpoint-2")):
        settings = peft.LoraConfig(r=2, target_modules=["query"], modules_to_save=["projection"])
        model = peft.get_peft_model(model_for_text(initializer_range=0.2), settings)
        how = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
        saved.append(weights_of(trained(trainer_of(model, tokenizer, tokens, tmp_path, **how), resume)))
    assert not differing(*saved)


@pytest.mark.slow
def test_a_run_that_is_never_saved_ends_with_the_same_bits(
    build: Callable[..., HictlTrainer], uninterrupted: tuple[Any, ...]
) -> None:
    _, weights, _ = uninterrupted
    assert not differing(weights, weights_of(trained(build(**{**RESUMED, "save_strategy": "no"}))))


@pytest.mark.slow
def test_the_number_of_workers_changes_no_bit(
    build: Callable[..., HictlTrainer], uninterrupted: tuple[Any, ...]
) -> None:
    _, weights, _ = uninterrupted
    alone = trained(build(**{**RESUMED, "save_strategy": "no", "dataloader_num_workers": 0}))
    assert not differing(weights, weights_of(alone))


# --- what is refused -------------------------------------------------------------------------------------------------


def test_arguments_that_take_columns_from_the_collator_are_refused(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, tokens: Dataset, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="remove_unused_columns .* set it to False"):
        trainer_of(model_for_text(), tokenizer, tokens, tmp_path, remove_unused_columns=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"compute_metrics": len},
            "compute_metrics is .* no effect here: evaluate retrieves translations; override it",
        ),
        ({"preprocess_logits_for_metrics": max}, "preprocess_logits_for_metrics is .* no effect"),
        ({"compute_loss_func": max}, "compute_loss_func is .* the model computes its losses; override compute_loss"),
        ({"args": {"label_smoothing_factor": 0.1}}, "label_smoothing_factor is 0.1, which has no effect"),
        ({"args": {"neftune_noise_alpha": 5.0}}, "neftune_noise_alpha is 5.0, which has no effect"),
        ({"args": {"load_best_model_at_end": True, "eval_strategy": "steps"}}, "metric_for_best_model is 'loss'"),
    ],
)
def test_what_neither_losses_nor_evaluation_read_is_refused(
    given: dict[str, Any],
    message: str,
    model_for_text: Callable[..., PreTrainedModel],
    held_out: Dataset,
    tmp_path: Path,
) -> None:
    settings = {"remove_unused_columns": False, "save_steps": 500, "eval_steps": 500, **given.pop("args", {})}
    arguments = TrainingArguments(str(tmp_path), **settings)
    with pytest.raises(ValueError, match=message):
        HictlTrainer(model_for_text(), arguments, eval_dataset=held_out, **given)


def test_what_cannot_be_evaluated_is_refused(build: Callable[..., HictlTrainer], held_out: Dataset) -> None:
    trainer = build(eval_dataset={"a": held_out})
    assert trainer.evaluate("a")["eval_retrieval"] == trainer.evaluate()["eval_a_retrieval"]
    columns = "the text columns x, y, x_lang, y_lang"
    for data, found in (("b", "'b'"), ([1], r"\[1\]"), (held_out.remove_columns("x_lang"), "x, y, y_lang")):
        with pytest.raises(ValueError, match=f"eval_dataset is {found}; allowed is .*{columns}"):
            trainer.evaluate(data)
    with pytest.raises(ValueError, match=f"eval_dataset is None; allowed is .*{columns}"):
        build().evaluate()
    trainer.processing_class = None
    with pytest.raises(ValueError, match="no tokenizer was given; give it as processing_class"):
        trainer.evaluate()


@pytest.mark.parametrize("kind", ["iterable", "map"])
def test_examples_of_any_dataset_are_trained_on_as_the_collator_makes_them(
    kind: str, model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, tokens: Dataset,
    tmp_path: Path,
) -> None:  # fmt: skip
    """accelerate would cut each batch of an IterableDataset to n rows: x_1 … x_n without y, taken for pairs."""
    examples = tokens.select_columns(["x", "y"]).add_column("seed", [*range(len(tokens))])
    data = examples.to_iterable_dataset() if kind == "iterable" else examples
    collator, args = PretrainingCollator(tokenizer, max_length=62), TrainingArguments(str(tmp_path), **SETTINGS)
    trainer = HictlTrainer(model_for_text(), args, train_dataset=data, data_collator=collator)
    batch = next(iter(trainer.get_train_dataloader()))
    expected = collator([examples[at] for at in batch["example_seeds"].tolist()])
    assert len(batch["sentence_input_ids"]) == 2 * BATCH and not differing(batch, expected)
    trainer.create_accelerator_and_postprocess()  # as each trial of a search of hyper-parameters does
    again = next(iter(trainer.get_train_dataloader()))
    assert len(again["sentence_input_ids"]) == 2 * BATCH
    assert trainer.accelerator.dataloader_config.non_blocking == args.dataloader_pin_memory
    trainer = Trainer(model_for_text(), args, train_dataset=data, data_collator=collator)
    if kind == "iterable":
        with pytest.raises(ValueError, match=f"sentence_input_ids has {BATCH} rows for {BATCH} examples"):
            trainer.train()
        dispatched = {"accelerator_config": {"dispatch_batches": False}}
        args = TrainingArguments(str(tmp_path), **SETTINGS, **dispatched)
        trainer = Trainer(model_for_text(), args, train_dataset=data, data_collator=collator)
    assert trainer.train().training_loss > 0


def test_draws_and_examples_that_do_not_go_together_are_refused(
    build: Callable[..., HictlTrainer], tokens: Dataset
) -> None:
    trainer = build()
    batches, trainer.batches = trainer.batches, None
    with pytest.raises(BadInput, match="PretrainingExamples are drawn by a sampler; give batches"):
        trainer.train()
    trainer.batches = batches
    for dataset in (tokens, [*tokens]):
        trainer.train_dataset = dataset
        with pytest.raises(BadInput, match=f"train_dataset is a {type(dataset).__name__}, and batches are draws"):
            trainer.train()


def test_a_dataset_of_tokens_trains_without_a_sampler(
    model_for_text: Callable[..., PreTrainedModel], tokens: Dataset, tokenizer: PreTrainedTokenizerBase, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """The dataset of tokenize_corpus and a collator are enough."""
    given: dict[str, Any] = {"args": TrainingArguments(str(tmp_path), **SETTINGS), "train_dataset": tokens}
    for fallback in ({}, {"processing_class": tokenizer}):
        with pytest.raises(BadInput, match="data_collator is left out; give data_collator=PretrainingCollator"):
            HictlTrainer(model_for_text(), **given, **fallback).train()
    collator = PretrainingCollator(tokenizer, max_length=62)
    assert HictlTrainer(model_for_text(), **given, data_collator=collator).train().training_loss > 0
    said = "the collator cuts at 256 tokens, but the model reads 64: give it max_length=64"
    assert said not in caplog.text
    HictlTrainer(model_for_text(), **given, data_collator=PretrainingCollator(tokenizer))
    assert said in caplog.text
    plain = XLMRobertaForMaskedLM(XLMRobertaConfig(hidden_size=12, num_hidden_layers=1, vocab_size=len(tokenizer)))
    with pytest.raises(BadInput, match="model is XLMRobertaForMaskedLM, without .*; allowed is HictlForPreTraining"):
        HictlTrainer(plain, **given, data_collator=collator)
    with pytest.raises(BadInput, match="data_collator: its tokenizer has .* ids, its model 9; .* saved with the model"):
        HictlTrainer(model_for_text(vocab_size=9), **given, data_collator=collator)


@pytest.mark.parametrize("calls_parent", [True, False])
def test_compute_loss_can_be_overridden(
    calls_parent: bool, build: Callable[..., HictlTrainer], caplog: pytest.LogCaptureFixture
) -> None:
    class Twice(HictlTrainer):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            if calls_parent:
                return 2 * super().compute_loss(model, inputs, False, num_items_in_batch)
            return 2 * model(**inputs).loss

    hictl_hf.pretraining.trainer.log_unwatched.cache_clear()
    expected, trainer = logs_of(trained(build()))[0], build()
    trainer.__class__ = Twice
    logged = logs_of(trained(trainer))[0]
    assert float(logged["loss"]) == pytest.approx(2 * float(expected["loss"]), rel=1e-3)
    assert ("tokens_per_second" in logged and "lm_loss" in logged) is calls_parent
    assert ("Twice.compute_loss does not call super().compute_loss: p_avg" in caplog.text) is not calls_parent


def test_texts_are_not_predicted_and_examples_are(
    build: Callable[..., HictlTrainer], tokens: Dataset, held_out: Dataset
) -> None:
    trainer = build()
    for texts in (held_out, trainer.train_dataset):
        with pytest.raises(ValueError, match="test_dataset is .*; allowed are examples of tokens.* evaluate scores"):
            trainer.predict(texts)
    examples = [{"x": row["x"], "y": row["y"], "seed": at} for at, row in enumerate(tokens.select(range(4)))]
    trainer.gather_sentences = True  # as with several processes, in training alone
    assert trainer.predict(examples).metrics["test_loss"] > 0


def test_one_process_with_several_gpus_is_refused(
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    tokens: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TrainingArguments, "n_gpu", 2)
    with pytest.raises(ValueError, match="accelerate launch"):
        trainer_of(model_for_text(), tokenizer, tokens, tmp_path)


def test_sharded_word_embeddings_are_refused(
    build: Callable[..., HictlTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hictl_hf.training.arguments, "is_deepspeed_zero3_enabled", lambda: True)
    with pytest.raises(
        ValueError, match=r"FSDP \(--fsdp\) and DeepSpeed ZeRO-3 .* use DDP or ZeRO-1 or 2, with .* shard_parameters"
    ):
        build()


def test_a_single_pair_without_negatives_is_refused(build: Callable[..., HictlTrainer]) -> None:
    with pytest.raises(ValueError, match="one pair, .* without negatives; raise per_device_train_batch_size"):
        build(per_device_train_batch_size=1)
    with pytest.raises(ValueError, match="one pair, "):
        build(per_device_train_batch_size=1, gradient_accumulation_steps=2)
    build(per_device_train_batch_size=1, gradient_accumulation_steps=2, gradient_cache=True)
    build(per_device_train_batch_size=1, model={"sentence_weight": 0.0})


@pytest.mark.parametrize(("same_side", "negatives"), [(True, 14), (False, 7)])
def test_the_number_of_negatives_is_told(
    build: Callable[..., HictlTrainer], caplog: pytest.LogCaptureFixture, same_side: bool, negatives: int
) -> None:
    with caplog.at_level("INFO"):
        trainer = build(max_steps=1, model={"same_side_negatives": same_side, "duplicates": "keep"})
    assert f"negatives per anchor: {negatives} (8 pairs)" in caplog.text
    [log] = logs_of(trained(trainer))
    assert log["negatives_per_anchor"] == negatives


# --- SIGTERM ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("another", [False, True])
def test_sigterm_of_another_process_comes_with_the_sums_of_the_step(
    build: Callable[..., HictlTrainer], monkeypatch: pytest.MonkeyPatch, another: bool
) -> None:
    trainer, calls = build(), []

    def reduce(values: Tensor, how: str) -> Tensor:  # of two processes with the same sums
        calls.append(values)
        return values * 2 + (torch.arange(len(values)) == len(values) - 1) * another

    trainer.step_sums["rows"] += 3
    trainer.step_sums["sentence_loss"] += 0.25
    monkeypatch.setattr(RunArguments, "world_size", 2)
    monkeypatch.setattr(trainer.accelerator, "reduce", reduce)
    assert trainer.stop_requested() is another and len(calls) == 1
    assert {name: float(value) for name, value in trainer.log_sums.items()} == {"rows": 6, "sentence_loss": 0.5}
    trainer.sigterm_received = True
    assert trainer.stop_requested()


def test_a_step_without_negatives_does_not_count_for_p_avg(build: Callable[..., HictlTrainer]) -> None:
    trainer = build()
    probability = trainer.model.sentence_probability
    for negatives in (2.0, 0.0, 1.0, 0.0):
        trainer.finish_step({"sentence_loss": torch.tensor(negatives), "negatives_per_anchor": torch.tensor(negatives),
                             "rows": torch.tensor(1.0)})  # fmt: skip
    assert int(probability.steps) == 2
    torch.testing.assert_close(probability.recent[:3], torch.tensor([-2.0, -1.0, -torch.inf]).exp())
