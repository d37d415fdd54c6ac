"""Each field of HF's `TrainingArguments` that a run takes has its effect, in pre-training and in translation.

`tests/training/test_fields.py` says which test is that of which field. Runs are made of the arguments of the commands;
the model, its vocabulary and the sentences are those of all tests.
"""

import inspect
import json
import os
import signal
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from datasets import Dataset
from hub_stub import Hub, serve
from toy_trainer import trained
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProgressCallback,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from hictl_hf import HictlModel
from hictl_hf.data.cleaning import CorpusReport
from hictl_hf.errors import BadInput
from hictl_hf.hub.during_training import PushDuringTraining
from hictl_hf.hub.publishing import is_obsolete
from hictl_hf.models.modeling_hictl_translation import HictlForConditionalGeneration
from hictl_hf.pretraining.arguments import PretrainingArguments
from hictl_hf.pretraining.corpora import Corpora
from hictl_hf.pretraining.setup import make_trainer as make_pretraining_trainer
from hictl_hf.training import arguments
from hictl_hf.training.arguments import RunArguments, refuse_impossible
from hictl_hf.training.callbacks import EarlyStopping, TrainingTime
from hictl_hf.training.checkpoints import newest_first, verify_checkpoint
from hictl_hf.training.trainer import RobustTrainer
from hictl_hf.translation.arguments import TranslationArguments
from hictl_hf.translation.corpus import Direction, Pair, tokenize_pairs
from hictl_hf.translation.setup import Data
from hictl_hf.translation.setup import make_trainer as make_translation_trainer
from hictl_hf.translation.target_vocabulary import choose_target_ids

COMMON: dict[str, Any] = {
    "use_cpu": True, "disable_tqdm": True, "report_to": "none", "save_strategy": "no", "logging_steps": 1,
    "max_steps": 2, "warmup_steps": 0, "seed": 5, "learning_rate": 1e-3, "lr_scheduler_type": "constant",
}  # fmt: skip
EN_DE = Direction("en", "de")
Make = Callable[..., RobustTrainer]
SLOW = {run: pytest.param(run, marks=pytest.mark.slow) for run in ("pretraining", "translation")}
SLOW_IN_PRETRAINING = pytest.mark.parametrize("make", [SLOW["pretraining"], "translation"], indirect=True)
SLOW_IN_TRANSLATION = pytest.mark.parametrize("make", ["pretraining", SLOW["translation"]], indirect=True)


@pytest.fixture(scope="module")
def make_pretraining(
    corpus: Dataset, tokenizer: PreTrainedTokenizerBase, model_for_text: Callable[..., PreTrainedModel]
) -> Make:
    train, dev, test = (corpus.select(rows) for rows in (range(16, len(corpus)), range(8), range(8, 16)))
    corpora = Corpora(train, dev, test, CorpusReport(hash="abc"))

    def make(folder: Path, model: dict[str, Any] | None = None, **settings: Any) -> RobustTrainer:
        data = {"train_file": ["x"], "max_seq_length": 60, "per_device_train_batch_size": 16}
        args = PretrainingArguments(output_dir=str(folder), **{**COMMON, **data, **settings})
        set_seed(args.seed)
        return make_pretraining_trainer(args, model_for_text(**(model or {})), tokenizer, corpora, TrainingTime())

    return make


@pytest.fixture(scope="module")
def make_translation(
    sentences: dict[str, list[str]], tokenizer: PreTrainedTokenizerBase, model_for_text: Callable[..., PreTrainedModel]
) -> Make:
    columns = {"source": sentences["en"][:32], "target": sentences["de"][:32]}
    tokens = tokenize_pairs({EN_DE: Dataset.from_dict(columns)}, tokenizer, 60, CorpusReport())
    pairs = [Pair(*texts, EN_DE, "") for texts in zip(sentences["en"][40:], sentences["de"][40:], strict=True)][:2]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = model_for_text(HictlModel, initializer_range=0.2)
        translator = HictlForConditionalGeneration.from_encoder(
            encoder, choose_target_ids(sentences["de"], tokenizer), ["de"], decoder_layers=1
        )

    def make(folder: Path, **settings: Any) -> RobustTrainer:
        data = {
            "model_name_or_path": "x",
            "train_file": "x",
            "validation_file": "x",
            "source_lang": "en",
            "target_lang": "de",
        }
        how = {"max_tokens": 200, "num_beams": 1, "freeze_encoder": False, "eval_strategy": "no", "max_length_b": 5}
        args = TranslationArguments(output_dir=str(folder), **{**COMMON, **data, **how, **settings})
        set_seed(args.seed)
        return make_translation_trainer(
            args, deepcopy(translator), tokenizer, Data(tokens, pairs, [], CorpusReport(hash="abc"), {}, {})
        )

    return make


@pytest.fixture(params=["pretraining", "translation"])
def make(request: pytest.FixtureRequest) -> Make:
    """`make(folder, **settings)`: the trainer of a run, not yet trained."""
    return request.getfixturevalue(f"make_{request.param}")


def steps_with(trainer: RobustTrainer, name: str) -> list[int]:
    """The steps at which something was logged."""
    return [log["step"] for log in trainer.state.log_history if name in log]


def metric_of(trainer: RobustTrainer) -> str:
    name = str(trainer.args.metric_for_best_model)
    return f"eval_{name.removeprefix('eval_')}"


def losses(trainer: RobustTrainer) -> list[float]:
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


def weights_of(trainer: RobustTrainer) -> dict[str, torch.Tensor]:
    model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


class At(TrainerCallback):
    """Does something at the beginning of a step."""

    def __init__(self, step: int, do: Callable[[], Any]) -> None:
        self.step, self.do = step, do

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 == self.step:
            self.do()


def send_sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


# --- steps, logs, memory ----------------------------------------------------------------------------------------------


def test_logs_come_when_asked(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[int] = []
    monkeypatch.setattr(transformers.trainer, "clear_device_cache", lambda *_, **__: emptied.append(1))
    settings: dict[str, Any] = {"logging_first_step": True, "logging_steps": 3}
    trainer = make(tmp_path, max_steps=4, torch_empty_cache_steps=2, disable_tqdm=False, **settings)
    assert any(isinstance(callback, ProgressCallback) for callback in trainer.callback_handler.callbacks)
    trained(trainer)
    assert steps_with(trainer, "loss") == [1, 3]
    assert len(emptied) == 2  # before steps 1 and 3


def test_an_epoch_has_one_log_and_the_last_one_is_as_long_as_asked(make: Make, tmp_path: Path) -> None:
    trainer = make(tmp_path, max_steps=-1, num_train_epochs=1.5, logging_strategy="epoch")
    trained(trainer)
    [first, last] = steps_with(trainer, "loss")
    assert last == -(-3 * first // 2) == trainer.state.global_step


@pytest.mark.parametrize(("counted", "less"), [("all", 0), ("non_padding", 1)])
def test_source_tokens_are_counted(make_translation: Make, tmp_path: Path, counted: str, less: int) -> None:
    trainer = make_translation(tmp_path, include_num_input_tokens_seen=counted)
    batches = [next(iter(trainer.get_train_dataloader()))]
    all_tokens = sum(batch["input_ids"].numel() for batch in batches)
    trainer.args.max_steps = 1
    trained(trainer)
    found = trainer.state.log_history[0]["num_input_tokens_seen"]
    assert found == (int(batches[0]["attention_mask"].sum()) if less else all_tokens)


def test_levels_of_logs_are_those_of_the_arguments(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = transformers.logging.get_verbosity()
    try:
        make(tmp_path, log_level="critical")
        assert transformers.logging.get_verbosity() == transformers.logging.CRITICAL
        monkeypatch.setattr(TrainingArguments, "process_index", 8)  # the first process of the second machine
        monkeypatch.setattr(TrainingArguments, "local_process_index", 0)
        levels = {"log_level": "debug", "log_level_replica": "error"}
        for each_node, level in ((True, transformers.logging.DEBUG), (False, transformers.logging.ERROR)):
            assert make(tmp_path, log_on_each_node=each_node, **levels).args.get_process_log_level() == level
    finally:
        transformers.logging.set_verbosity(before)


def test_numbers_out_of_range_are_found(make_pretraining: Make, tmp_path: Path) -> None:
    trained(make_pretraining(tmp_path, debug="underflow_overflow"))
    trainer = make_pretraining(tmp_path, debug="underflow_overflow")
    with torch.no_grad():
        trainer.model.roberta.encoder.layer[0].output.dense.weight.fill_(1e38)
    with pytest.raises(ValueError, match="DebugUnderflowOverflow"):
        trained(trainer)


# --- optimizer and schedule -------------------------------------------------------------------------------------------


def test_the_optimizer_has_its_settings(make: Make, tmp_path: Path) -> None:
    adam = {"adam_beta1": 0.7, "adam_beta2": 0.8, "adam_epsilon": 1e-4}
    group, without_decay = make(tmp_path, weight_decay=0.3, **adam).create_optimizer().param_groups
    assert (group["betas"], group["eps"], group["lr"]) == ((0.7, 0.8), 1e-4, 1e-3)
    assert (group["weight_decay"], without_decay["weight_decay"]) == (0.3, 0.0)
    sgd = make(tmp_path, optim="sgd", optim_args="momentum=0.5,nesterov=true").create_optimizer()
    assert isinstance(sgd, torch.optim.SGD) and sgd.param_groups[0]["momentum"] == 0.5
    assert sgd.param_groups[0]["nesterov"]
    assert isinstance(make(tmp_path, optim="adafactor").create_optimizer(), transformers.Adafactor)


def test_the_schedule_has_its_settings(make: Make, tmp_path: Path) -> None:
    kwargs = json.dumps({"lr_end": 2e-4, "power": 2})
    trainer = make(tmp_path, lr_scheduler_type="polynomial", lr_scheduler_kwargs=kwargs, warmup_steps=2, max_steps=6)
    trained(trainer)
    rates = [log["learning_rate"] for log in trainer.state.log_history if "learning_rate" in log]
    by_hand = [0, 5e-4, 1e-3, 2e-4 + 8e-4 * 0.75**2, 2e-4 + 8e-4 * 0.5**2, 2e-4 + 8e-4 * 0.25**2]
    assert rates == pytest.approx(by_hand)


@SLOW_IN_PRETRAINING
def test_a_schedule_by_the_metric_follows_its_direction(make: Make, tmp_path: Path) -> None:
    settings = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "lr_scheduler_type": None}
    settings |= {"lr_scheduler_type": "reduce_lr_on_plateau", "save_steps": 1}
    with pytest.raises(BadInput, match='mode is min, and more is better in .*; give .*{"mode": "max"}'):
        make(tmp_path, **settings)
    kwargs = '{"mode": "max", "patience": 0, "factor": 0.5, "threshold": 1000}'  # nothing is better by that much
    trainer = trained(make(tmp_path, lr_scheduler_kwargs=kwargs, max_steps=3, **settings))
    rates = [log["learning_rate"] for log in trainer.state.log_history if "learning_rate" in log]
    assert rates == pytest.approx([1e-3, 1e-3, 5e-4])


def test_a_step_is_as_long_as_the_clipped_gradient_and_its_memory_is_logged(make: Make, tmp_path: Path) -> None:
    trainer = make(
        tmp_path,
        optim="sgd",
        max_grad_norm=1e-2,
        learning_rate=0.5,
        weight_decay=0.0,
        max_steps=1,
        skip_memory_metrics=False,
    )
    before = weights_of(trainer)
    after = weights_of(trained(trainer))
    moved = sum(float((after[name] - before[name]).pow(2).sum()) for name in before) ** 0.5
    assert moved == pytest.approx(0.5 * 1e-2, rel=1e-3)
    assert trainer.state.log_history[0]["grad_norm"] > 2e-2  # so it was clipped
    assert "train_mem_cpu_alloc_delta" in trainer.state.log_history[-1]


# --- memory and speed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["activation_checkpointing", pytest.param("gradient_checkpointing", marks=pytest.mark.slow)]
)
def test_checkpointing_computes_some_layers_again_and_changes_no_loss(make: Make, tmp_path: Path, name: str) -> None:
    runs: dict[bool, tuple[list[int], list[float]]] = {}
    for on in (False, True):
        more: dict[str, Any] = {name: True, f"{name}_kwargs": '{"every_n_layers": 2}'} if on else {}
        trainer = make(tmp_path, max_steps=1, **more)
        calls = [0, 0]

        def count(number: int, calls: list[int] = calls) -> Callable[..., None]:
            def hook(*_: Any) -> None:
                calls[number] += torch.is_grad_enabled()

            return hook

        for number, layer in enumerate(trainer.model.roberta.encoder.layer):
            layer.attention.register_forward_hook(count(number))
        runs[on] = calls, losses(trained(trainer))
    [plain, loss], [again, same] = runs[False], runs[True]
    assert same == pytest.approx(loss, rel=1e-6)
    assert sorted(more / once for more, once in zip(again, plain, strict=True)) == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(  # inductor: tests/models/test_gathering and test_modeling_hictl_translation
    ("make", "backend", "mode"),
    [("pretraining", "eager", None), ("translation", "eager", "default")],
    indirect=["make"],
)
def test_a_compiled_model_has_the_same_losses(make: Make, tmp_path: Path, backend: str, mode: str | None) -> None:
    plain = make(tmp_path, max_steps=1)
    compiled = make(tmp_path, max_steps=1, torch_compile=True, torch_compile_backend=backend, torch_compile_mode=mode)
    plugin = compiled.accelerator.state.dynamo_plugin
    assert plugin.backend.value.lower() == backend and plugin.mode == (mode or "default")
    assert losses(trained(compiled)) == pytest.approx(losses(trained(plain)), rel=1e-4)
    assert isinstance(compiled.model_wrapped, torch._dynamo.OptimizedModule)


@SLOW_IN_PRETRAINING
def test_a_step_in_bf16_computes_in_it(make: Make, tmp_path: Path) -> None:
    trainer, seen = make(tmp_path, bf16=True, max_steps=1), set[torch.dtype]()
    trainer.model.roberta.encoder.layer[0].output.dense.register_forward_hook(lambda *all: seen.add(all[2].dtype))
    trained(trainer)
    assert seen == {torch.bfloat16} and trainer.model.dtype == torch.float32


@SLOW_IN_TRANSLATION
def test_workers_load_as_asked_and_change_nothing(make: Make, tmp_path: Path) -> None:
    workers = {
        "dataloader_num_workers": 1, "dataloader_persistent_workers": True, "dataloader_prefetch_factor": 3,
        "dataloader_multiprocessing_context": "fork",
    }  # fmt: skip
    trainer = make(tmp_path, **workers)
    loader = trainer.get_train_dataloader()
    loader = getattr(loader, "base_dataloader", loader)
    assert (loader.num_workers, loader.persistent_workers, loader.prefetch_factor) == (1, True, 3)
    assert loader.multiprocessing_context.get_start_method() == "fork"
    assert losses(trained(trainer)) == losses(trained(make(tmp_path)))


# --- evaluation -------------------------------------------------------------------------------------------------------


@SLOW_IN_PRETRAINING
def test_evaluations_come_when_asked_and_a_resumed_run_does_not_repeat_the_first(make: Make, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 1, "eval_delay": 2, "eval_on_start": True}
    settings |= {"save_strategy": "steps", "save_steps": 1, "max_steps": 3}
    whole = trained(make(tmp_path / "whole", **settings))
    assert steps_with(whole, metric_of(whole)) == [0, 2, 3]
    trainer = make(tmp_path / "parts", **settings)
    trainer.add_callback(At(2, send_sigterm))
    assert trained(trainer).terminated
    resumed = trained(make(tmp_path / "parts", **settings), resume=True)
    assert steps_with(resumed, metric_of(resumed)) == [0, 2, 3] and losses(resumed) == losses(whole)


def test_the_worst_state_is_kept_where_less_is_better(make_pretraining: Make, tmp_path: Path) -> None:
    values = iter([3.0, 1.0, 2.0])
    settings = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "max_steps": 3}
    more = {"load_best_model_at_end": True, "greater_is_better": False, "metric_for_best_model": "cls_1"}
    trainer = make_pretraining(tmp_path, **settings, **more)
    evaluate = trainer.evaluate

    def pretended(*args: Any, **kwargs: Any) -> dict[str, float]:
        found: dict[str, float] = {**evaluate(*args, **kwargs), "eval_cls_1": next(values)}
        return found

    trainer.evaluate = pretended  # type: ignore[method-assign]
    assert trained(trainer).state.best_global_step == 2
    assert (tmp_path / "checkpoint-2").is_dir()


# --- early stopping ---------------------------------------------------------------------------------------------------


@pytest.fixture
def stopping() -> dict[str, Any]:
    """A run that changes nothing, so that no evaluation after the first is better."""
    every = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    return {**every, "learning_rate": 0.0, "max_steps": 6, "early_stopping_patience": 2}


@SLOW_IN_TRANSLATION
def test_a_run_stops_early_and_so_does_a_resumed_one(make: Make, tmp_path: Path, stopping: dict[str, Any]) -> None:
    trainer = make(tmp_path, **stopping)
    trainer.add_callback(At(2, send_sigterm))
    assert trained(trainer).state.global_step == 2 and trainer.terminated
    resumed = trained(make(tmp_path, **stopping), resume=True)
    assert resumed.state.global_step == 3 and not resumed.terminated  # one of two in a row was before
    again = trained(make(tmp_path, **stopping), resume=True)
    assert again.state.global_step == 3 and steps_with(again, "loss") == [1, 2, 3]


def test_what_is_better_by_too_little_counts_as_no_better(make: Make, tmp_path: Path, stopping: dict[str, Any]) -> None:
    trainer = make(tmp_path, **stopping, early_stopping_threshold=0.5)
    [callback] = [each for each in trainer.callback_handler.callbacks if isinstance(each, EarlyStopping)]
    control, state = trainer.control, trainer.state
    for value, best, count in ((1.0, None, 0), (1.4, 1.0, 1), (1.6, 1.0, 0), (1.9, 1.6, 1), (1.5, 1.9, 2)):
        state.best_metric = best
        callback.on_evaluate(trainer.args, state, control, {metric_of(trainer): value})
        assert callback.early_stopping_patience_counter == count
    assert control.should_training_stop


def test_early_stopping_needs_evaluations(make: Make, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="early_stopping_patience is 2 and eval_strategy no; .*give --eval_strategy"):
        make(tmp_path, early_stopping_patience=2, eval_strategy="no")
    with pytest.raises(BadInput, match="early_stopping_threshold is 0.1, which has no effect alone"):
        make(tmp_path, early_stopping_threshold=0.1)


# --- the Hub ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as hub:
        hub.add("me/x", {})
        yield hub


@pytest.mark.parametrize(
    ("make", "strategy"),
    [
        ("pretraining", "every_save"), ("translation", "checkpoint"), ("pretraining", "all_checkpoints"),
        ("translation", "end"),
    ],
    indirect=["make"],
)  # fmt: skip
def test_a_run_is_pushed_while_it_trains(
    make: Make, tmp_path: Path, hub: Hub, strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    pushing = {"push_to_hub": True, "hub_model_id": "me/x", "hub_strategy": strategy}
    saving = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 1, "max_steps": 3}
    if strategy != "end":
        pushing["hub_always_push"] = True
    hub.repositories["me/x"]["last-checkpoint/model-00001-of-00002.safetensors"] = b"of a run before"
    if strategy == "checkpoint":
        hub.interruptions["/commit/"] = "refuse"  # the first push fails, and the training goes on
    trained(make(tmp_path, **pushing, **saving))
    files, last = hub.repositories["me/x"], tmp_path / "checkpoint-3"
    assert len(hub.commits["me/x"]) == {"end": 0, "checkpoint": 2}.get(strategy, 3)
    assert ("was not pushed" in caplog.text) == (strategy == "checkpoint")
    if strategy == "end":
        return
    root = {name: content for name, content in files.items() if "/" not in name}
    assert root["model.safetensors"] == (last / "model.safetensors").read_bytes() and "config.json" in root
    assert root["README.md"].startswith(b"Step 3 of 3 of a run that has not ended")
    assert not any(name.endswith((".pt", ".pth", ".bin")) or name == "trainer_state.json" for name in root)
    folders = {"checkpoint": {"last-checkpoint"}, "all_checkpoints": {f"checkpoint-{step}" for step in (1, 2, 3)}}
    named = {name.split("/")[0] for name in files if "/" in name and "of-00002" not in name}
    assert ("modules.json" in root) == ("1_Pooling" in named) == (strategy != "checkpoint")  # of pre-training
    named -= {"1_Pooling", "2_Normalize"}
    assert named == folders.get(strategy, set())
    for folder in named:
        for name in (path.relative_to(last).as_posix() for path in last.rglob("*") if path.is_file()):
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).write_bytes(files[f"{folder}/{name}"])
        assert verify_checkpoint(tmp_path / folder) is None  # what came back can be resumed from
    assert ("last-checkpoint/model-00001-of-00002.safetensors" in files) == (strategy != "checkpoint")
    kept = [name for name in files if "checkpoint" in name]
    assert not any(is_obsolete(name, {"config.json"}) for name in kept)  # the last push leaves them


def test_checkpoints_stay_while_they_are_pushed(make_translation: Make, tmp_path: Path, hub: Hub) -> None:
    """With a limit of 1 the last checkpoint would go before the next push; only its end makes room."""
    settings = {"push_to_hub": True, "hub_model_id": "me/x", "hub_strategy": "all_checkpoints", "max_steps": 3}
    trainer = make_translation(tmp_path, **settings, save_strategy="steps", save_steps=1, save_total_limit=1)
    [push] = [each for each in trainer.callback_handler.callbacks if isinstance(each, PushDuringTraining)]
    there: list[bool] = []
    is_reading = push.is_reading

    def asked() -> bool:
        there.append(all(path.is_dir() for path in newest_first(tmp_path)) and len(newest_first(tmp_path)) <= 2)
        return is_reading()

    push.is_reading = asked  # type: ignore[method-assign]
    trained(trainer)
    assert there and all(there) and push.push is not None and push.push.exception() is None
    assert "checkpoint-1/model.safetensors" in hub.repositories["me/x"]


# --- several processes ------------------------------------------------------------------------------------------------


def test_processes_are_started_with_the_backend_and_patience_of_the_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    state = transformers.training_args.PartialState

    def note(**settings: Any) -> Any:
        given.update(settings)
        return state(cpu=True)

    monkeypatch.setattr(transformers.training_args, "PartialState", note)
    monkeypatch.setattr(arguments, "choose_precision_and_device", lambda _: None)  # it would choose the CPU here
    args = RunArguments(str(tmp_path), ddp_backend="gloo", ddp_timeout=77)
    assert given["backend"] == "gloo" and given["timeout"].total_seconds() == 77
    args.use_cpu = True
    with pytest.raises(BadInput, match="ddp_timeout is 77, which transformers does not pass on without a GPU"):
        refuse_impossible(args)


def test_ddp_is_made_with_its_settings(make: Make, tmp_path: Path) -> None:
    settings = {"ddp_bucket_cap_mb": 3, "ddp_broadcast_buffers": False, "ddp_static_graph": True}
    handler = make(tmp_path, **settings).accelerator.ddp_handler
    assert (handler.bucket_cap_mb, handler.broadcast_buffers, handler.static_graph) == (3, False, True)
    assert {"bucket_cap_mb", "broadcast_buffers", "static_graph"} <= {
        *inspect.signature(torch.nn.parallel.DistributedDataParallel).parameters
    }


# --- where logs go ----------------------------------------------------------------------------------------------------


def test_tensorboard_shows_losses_and_evaluations(make: Make, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    trainer = trained(
        make(tmp_path, report_to="tensorboard", eval_strategy="steps", eval_steps=1, save_strategy="best")
    )
    [file] = tmp_path.glob("runs/*/events.*")
    events = accumulator.EventAccumulator(str(file.parent)).Reload()
    assert [round(event.value, 4) for event in events.Scalars("train/loss")] == [round(x, 4) for x in losses(trainer)]
    assert len(events.Scalars(metric_of(trainer).replace("eval_", "eval/"))) == 2


@pytest.mark.slow
def test_weights_and_biases_write_a_run_without_a_network(
    make_pretraining: Make, make_translation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both in one test, as wandb reads its settings once in a process."""
    wandb = pytest.importorskip("wandb")
    for name, value in {"MODE": "offline", "DIR": str(tmp_path), "SILENT": "true"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    for number, make in enumerate((make_pretraining, make_translation), 1):
        trainer = trained(make(tmp_path / "run", report_to="wandb", run_name=f"name {number}"))
        assert wandb.run.name == f"name {number}"
        assert wandb.run.summary["train/loss"] == losses(trainer)[-1] and wandb.run.config["max_steps"] == 2
        wandb.finish()
        assert len([*tmp_path.glob("wandb/offline-run-*/run-*.wandb")]) == number


def test_names_of_a_run_need_a_tracker_that_shows_them(make: Make, tmp_path: Path) -> None:
    for name, fix in (("run_name", "--report_to wandb"), ("project", "--report_to trackio")):
        with pytest.raises(BadInput, match=f"{name} is mine, which has no effect alone; add {fix}"):
            make(tmp_path, **{name: "mine"})


# --- search of hyper-parameters ---------------------------------------------------------------------------------------


@SLOW_IN_TRANSLATION
def test_trials_of_a_search_are_runs_of_their_own(make: Make, tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    every = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    plain = trained(make(tmp_path / "plain", learning_rate=4e-3, **every))
    made = make(tmp_path / "search", **every)
    start = deepcopy(made.model)
    trainer = made
    trainer.model_init = lambda: deepcopy(start)
    rates: list[float] = []

    def space(trial: Any) -> dict[str, float]:
        rates.append(trial.suggest_categorical("learning_rate", [1e-3, 4e-3]))
        return {"learning_rate": rates[-1]}

    best = trainer.hyperparameter_search(
        space, lambda metrics: metrics[metric_of(trainer)], n_trials=2, direction="maximize", backend="optuna",
        sampler=optuna.samplers.GridSampler({"learning_rate": [1e-3, 4e-3]}, seed=0),
    )  # fmt: skip
    assert sorted(rates) == [1e-3, 4e-3] and best.hyperparameters["learning_rate"] in rates
    folder = tmp_path / "search" / f"run-{rates.index(4e-3)}" / "checkpoint-2"
    state = json.loads((folder / "trainer_state.json").read_text("utf-8"))
    assert [log["loss"] for log in state["log_history"] if "loss" in log] == losses(plain)  # whichever came before it
    assert verify_checkpoint(folder) is None


def test_a_search_cannot_change_batches_that_are_made(make_pretraining: Make, tmp_path: Path) -> None:
    trainer = make_pretraining(tmp_path)
    trainer.args.per_device_train_batch_size = 4
    with pytest.raises(BadInput, match="the batches have 16 examples, and the arguments 4"):
        trained(trainer)
