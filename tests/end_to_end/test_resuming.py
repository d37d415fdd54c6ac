"""A run that was interrupted and goes on ends with the bits of one that was left alone, and goes on at once.

A step has 16 of 96 rows, text and pairs, whatever the number of processes, workers and micro-batches; so an epoch, and
the pass of each reader of a stream, ends with the sixth of twelve steps. What needs two processes runs in a pair of
gloo processes that is started once.
"""

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch import Tensor, multiprocessing
from toy_trainer import SEED, SETTINGS, differing, moments_of, trained, trainer_of, weights_of
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, TrainingArguments, set_seed
from two_processes import found_by_two

from hictl_hf.data import formats as readers
from hictl_hf.data.collator import PretrainingCollator
from hictl_hf.data.corpus import load_corpus
from hictl_hf.data.sampling import PretrainingExamples, TemperatureSampler
from hictl_hf.data.streaming import StreamedBatches
from hictl_hf.data.tokenization import tokenize_corpus
from hictl_hf.pretraining.trainer import HictlTrainer
from hictl_hf.training.checkpoints import write_manifest

STEPS, ROWS_OF_STEP, FILES = 12, 16, 4
BUFFER = 20  # rows of a block: passes of 96, 48 or 24 rows have some
INTERRUPTED = {"within the first epoch": 3, "at its end": 6, "in the second": 9}
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
State = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """How a run is fed."""

    stream: bool
    workers: int = 0
    accumulation: int = 1
    cache: bool = False

    def __str__(self) -> str:
        words = ["stream" if self.stream else "map-style", f"{self.workers} workers"]
        return ", ".join([*words, *["accumulation"] * (self.accumulation > 1), *["gradient cache"] * self.cache])


EVERY = [
    Case(stream, workers, accumulation, cache)
    for stream, workers, (accumulation, cache) in product((False, True), (0, 2), ((1, False), (2, False), (2, True)))
]
ALWAYS = Case(True, 2, 2, True)
REST = [case for case in EVERY if case != ALWAYS]


@dataclass(frozen=True)
class Material:
    """All that a trainer is made of."""

    models: Sequence[PreTrainedModel]
    """Of a new run, and of one that is resumed, which is to end with nothing of it."""
    tokenizer: PreTrainedTokenizerBase
    source: str
    tokens: Dataset


@pytest.fixture(scope="module")
def material(
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    sentences: dict[str, list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Material:
    """48 pairs and 48 texts in a folder of files of equal length, and the same tokenised."""
    folder = tmp_path_factory.mktemp("material")
    rows = [{"en": sentences["en"][at], name: sentences[name][at]} for name in ("de", "sw", "zh") for at in range(16)]
    rows += [{"text": sentences[name][at], "lang": name} for name in ("en", "sw", "zh") for at in range(16, 32)]
    (folder / "source").mkdir()
    for number in range(FILES):
        lines = map(json.dumps, rows[number::FILES])
        (folder / "source" / f"{number}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    corpus, _ = load_corpus([str(folder / "source")], cache_dir=folder)
    tokens, _ = tokenize_corpus(corpus, tokenizer, max_length=62)
    assert len(tokens) == len(rows) == STEPS * ROWS_OF_STEP // 2
    models = [model_for_text(seed=seed, initializer_range=0.2, **DROPOUT) for seed in (0, 9)]
    return Material(models, tokenizer, str(folder / "source"), tokens)


def trainer_for(case: Case, material: Material, folder: Path, resumed: bool = False, **changes: Any) -> HictlTrainer:
    """A trainer in this process, which may be one of several; all that is random in a resumed one is another."""
    processes = int(os.environ.get("WORLD_SIZE", 1))
    settings = {
        "optim": "adamw_torch", "learning_rate": 1e-3, "lr_scheduler_type": "linear", "max_grad_norm": 1.0,
        "max_steps": STEPS, "seed": SEED + resumed, "dataloader_num_workers": case.workers,
        "per_device_train_batch_size": ROWS_OF_STEP // processes // case.accumulation,
        "gradient_accumulation_steps": case.accumulation,
        "save_strategy": "no" if resumed else "steps", "save_steps": 1,
    }  # fmt: skip
    if processes > 1:
        settings |= {"ddp_backend": "gloo", "ddp_find_unused_parameters": False, "ddp_timeout": 60}
    settings |= changes
    model, tokenizer = deepcopy(material.models[resumed]), material.tokenizer
    if not case.stream:
        return trainer_of(model, tokenizer, material.tokens, folder, gradient_cache=case.cache, **settings)
    arguments = TrainingArguments(output_dir=str(folder), **{**SETTINGS, **settings})
    set_seed(arguments.seed)
    stream = StreamedBatches(
        [material.source], [1.0], tokenizer, arguments.per_device_train_batch_size, SEED, buffer=BUFFER,
        readers=max(case.workers, 1), rank=arguments.process_index, world_size=processes,
    )  # fmt: skip
    return HictlTrainer(
        model.train(), arguments, train_dataset=stream, data_collator=PretrainingCollator(tokenizer, max_length=62),
        processing_class=tokenizer, gradient_cache=case.cache,
    )  # fmt: skip


def state_of(trainer: HictlTrainer) -> State:
    """All parameters, all buffers, such as those of p_avg, and all that the optimiser knows."""
    assert trainer.state.global_step == trainer.args.max_steps
    rate = {"learning rate": torch.tensor(trainer.lr_scheduler.get_last_lr())}
    return weights_of(trainer) | moments_of(trainer) | rate


# --- the same bits ----------------------------------------------------------------------------------------------------


def lose_random_state(checkpoint: Path) -> None:
    for path in checkpoint.glob("rng_state*"):
        path.unlink()


def give_a_row_too_many(checkpoint: Path) -> None:
    """By the last reader of the last process."""
    path = max(checkpoint.glob("stream_*.json"))
    kept = json.loads(path.read_text("utf-8"))
    kept["states"][-1]["sources"][0]["given"] += 1
    path.write_text(json.dumps(kept), encoding="utf-8")


def ends_of_runs(case: Case, material: Material, folder: Path) -> dict[str, State]:
    """States at the end of a run that was left alone, of those that went on, and of those that had lost something."""
    found = {"left alone": state_of(trained(trainer_for(case, material, folder / "whole")))}
    for name, step in INTERRUPTED.items():
        trainer = trainer_for(case, material, folder / "resumed", resumed=True)
        found[name] = state_of(trained(trainer, str(folder / "whole" / f"checkpoint-{step}")))
    own = folder / f"damaged{trainer.args.process_index}"
    for damage in [lose_random_state, *[give_a_row_too_many] * case.stream]:
        shutil.copytree(folder / "whole" / "checkpoint-9", own)
        damage(own)
        write_manifest(own)
        trainer = trainer_for(case, material, folder / "resumed", resumed=True)
        found[damage.__name__] = state_of(trained(trainer, str(own)))
        shutil.rmtree(own)
    return found


def check(case: Case, found: dict[str, State], checkpoints: Path, processes: int = 1) -> None:
    whole = found["left alone"]
    assert int(whole["sentence_probability.steps"]) > 0 and whole["sentence_probability.recent"].min() > 0
    assert {name: differing(whole, found[name]) for name in INTERRUPTED} == dict.fromkeys(INTERRUPTED, set())
    for damage in found.keys() - INTERRUPTED.keys() - {"left alone"}:
        assert "projection.weight" in differing(whole, found[damage]), damage
    if case.stream:  # it was interrupted where it was meant to be
        for step, passes, within in ((3, 0, True), (6, 1, False), (9, 1, True)):
            files = sorted((checkpoints / f"checkpoint-{step}").glob("stream_*.json"))
            states = [state["sources"][0] for path in files for state in json.loads(path.read_text("utf-8"))["states"]]
            assert len(states) == processes * max(case.workers, 1)
            for place in states:
                assert place["passes"] == passes and bool(place["given"]) == within
                assert within or (place["block"], place["shard"], place["place"]) == (0, 0, [0, 0])


ALONE = [case for case in REST if case.cache or case.workers and case.accumulation == 1]  # two processes run all


@pytest.mark.parametrize("case", [ALWAYS, *(pytest.param(case, marks=pytest.mark.slow) for case in ALONE)], ids=str)
def test_a_resumed_run_ends_with_the_same_bits(case: Case, material: Material, tmp_path: Path) -> None:
    check(case, ends_of_runs(case, material, tmp_path), tmp_path / "whole")


@pytest.mark.slow
def test_a_run_with_persistent_workers_that_is_resumed_ends_with_the_same_bits(
    material: Material, tmp_path: Path
) -> None:
    case, kept = Case(False, 2), {"dataloader_persistent_workers": True}
    whole = state_of(trained(trainer_for(case, material, tmp_path / "whole", **kept)))
    for step in (3, 6):  # a loader starts at its first epoch alone
        trainer = trainer_for(case, material, tmp_path / "resumed", resumed=True, **kept)
        found = state_of(trained(trainer, str(tmp_path / "whole" / f"checkpoint-{step}")))
        assert not differing(whole, found), step


@pytest.mark.slow
@pytest.mark.parametrize("case", [Case(True, 2), Case(True, 0, 2, True)], ids=str)
def test_a_stream_resumed_after_any_step_ends_with_the_same_bits(
    case: Case, material: Material, tmp_path: Path
) -> None:
    whole = state_of(trained(trainer_for(case, material, tmp_path)))
    for step in range(1, STEPS + 1):
        trainer = trainer_for(case, material, tmp_path / "resumed", resumed=True)
        assert not differing(whole, state_of(trained(trainer, str(tmp_path / f"checkpoint-{step}")))), step


def test_a_run_that_is_interrupted_again_and_again_ends_with_the_same_bits(material: Material, tmp_path: Path) -> None:
    case = Case(True, 0)
    whole = state_of(trained(trainer_for(case, material, tmp_path / "whole", save_strategy="no")))
    folder, kept = tmp_path / "again", {"save_strategy": "steps"}

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step % 3 == 0

    for stop in range(0, STEPS, 3):
        trainer = trainer_for(case, material, folder, resumed=stop > 0, **kept)
        trainer.add_callback(Stop())
        trained(trainer, str(folder / f"checkpoint-{stop}") if stop else None)
        assert trainer.state.global_step == stop + 3
    assert not differing(whole, state_of(trainer))


def run_as_one_of_two(cases: Sequence[Case], material: Material, folder: Path) -> dict[Case, Any]:
    multiprocessing.set_start_method("fork", force=True)  # of workers; else each would import everything anew
    return {case: ends_of_runs(case, material, folder / str(case)) for case in cases}


@pytest.mark.slow
@pytest.mark.parametrize("cases", [[ALWAYS], REST], ids=["one", "rest"])
def test_two_resumed_processes_end_with_the_same_bits(
    cases: Sequence[Case], material: Material, tmp_path: Path
) -> None:
    one, other = found_by_two(tmp_path, run_as_one_of_two, cases, material, tmp_path)
    for case in cases:
        for found in (one[case], other[case]):
            check(case, found, tmp_path / str(case) / "whole", processes=2)
        assert all(not differing(one[case][name], other[case][name]) for name in one[case])


# --- going on at once -------------------------------------------------------------------------------------------------


class OneStep(TrainerCallback):
    """Keeps what was counted before the first step of a run, and ends it after that."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts, self.before = counts, dict[str, int]()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.before = dict(self.counts)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = True


@pytest.mark.parametrize("stream", [False, True], ids=["map-style", "stream"])
def test_no_more_is_read_before_the_first_step_however_many_are_done(
    stream: bool, material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows read from files, fetched, and collated, all in this process."""
    counts, case, settings = Counter[str](), Case(stream, 0, 2), {"max_steps": 42, "save_strategy": "steps"}

    def count(name: str, place: Any, function: str, rows: Callable[..., int]) -> None:
        before = getattr(place, function)
        monkeypatch.setattr(place, function, lambda *given: counts.update({name: rows(*given)}) or before(*given))

    count("parsed", readers, "parse_json", lambda line: 1)
    count("fetched", PretrainingExamples, "__getitems__", lambda _, draws: len(draws))
    count("collated", PretrainingCollator, "__call__", lambda _, rows: len(rows))
    trained(trainer_for(case, material, tmp_path, **settings, save_steps=4))
    ahead = ROWS_OF_STEP // 2  # of a micro-batch, which is fetched before the one before it is used
    for step in (0, 4, 40):  # six are an epoch
        counts.clear()
        trainer, first = trainer_for(case, material, tmp_path, resumed=True, **settings), OneStep(counts)
        trainer.add_callback(first)
        trained(trainer, str(tmp_path / f"checkpoint-{step}") if step else None)
        assert trainer.state.global_step == step + 1
        parsed, fetched = (first.before.pop(name, 0) for name in ("parsed", "fetched"))
        assert first.before == {"collated": ROWS_OF_STEP + ahead}
        assert BUFFER < parsed <= 3 * BUFFER if stream else fetched == ROWS_OF_STEP + ahead


def test_batches_that_are_passed_over_are_slices_of_one_array() -> None:
    batches = 100_000
    lengths = np.random.default_rng(1).integers(5, 60, 8 * batches + 8)
    sampler = TemperatureSampler(lengths, {("sw", None): np.arange(len(lengths))}, {("sw", None): 1.0}, 8, SEED)
    draws = iter(sampler)
    first = next(draws)  # the order of the whole epoch is made, once
    started = time.process_time()
    assert sum(1 for _ in islice(draws, batches)) == batches
    assert time.process_time() - started < 0.5
    assert first.base is not None and len(first.base) == len(lengths)


# --- ending ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["map-style", "stream"])
def test_an_error_ends_the_process_though_its_workers_outlive_sigterm(
    stream: bool, material: Material, tmp_path: Path
) -> None:
    class Fail(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if len(multiprocessing.active_children()) == 2:
                raise KeyError

    def train() -> None:
        trainer = trainer_for(Case(stream, 2), material, tmp_path)
        trainer.add_callback(Fail())
        trained(trainer)

    process = multiprocessing.get_context("fork").Process(target=train)
    process.start()
    process.join(timeout=120)
    process.kill()  # if it still waits for its workers
    process.join()
    assert process.exitcode == 1
