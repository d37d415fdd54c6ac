"""A model in shards learns as one that each process has whole, and their checkpoints can be told apart by nothing.

All runs are done in two gloo processes, which are started once; what these found is compared here.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.utils import AutocastKwargs
from datasets import Dataset
from safetensors.torch import load_file
from test_gathering import largest_error
from test_run_pretraining import flags
from torch import Tensor
from torch.distributed.tensor import DTensor
from toy_trainer import differing, gradients_of, logs_of, moments_of, trained, trainer_of
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from two_processes import found_by_two

import hictl_hf.pretraining.run
import hictl_hf.training.sharding
from hictl_hf import HictlConfig, HictlForPreTraining
from hictl_hf.data.collator import PretrainingCollator
from hictl_hf.data.tokenization import tokenize_corpus
from hictl_hf.errors import BadInput
from hictl_hf.pretraining.batch_size import fit_micro_batch
from hictl_hf.pretraining.trainer import HictlTrainer
from hictl_hf.training.arguments import RunArguments
from hictl_hf.training.checkpoints import verify_checkpoint
from hictl_hf.training.sharding import check_can_shard, gather
from run_pretraining import main

pytestmark = pytest.mark.slow  # a minute: two processes train some twenty small models

State = dict[str, Tensor]
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
ACCUMULATION = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
TOLERANCES = {"float64": 1e-9, "fp32": 1e-5, "bf16": 1e-5}
CASES: dict[str, dict[str, Any]] = {  # settings of a trainer; all have dropout, and hard negatives from the first step
    "one micro-batch": {},
    "sentences of each process alone": {"gather_sentences": False},
    "accumulation": ACCUMULATION,
    "gradient cache": {**ACCUMULATION, "gradient_cache": True},
    "activation checkpointing": {**ACCUMULATION, "gradient_cache": True, "activation_checkpointing": True},
    "clipped": {"max_grad_norm": 0.5},
    "some objectives": {"objectives": ["sentence", "word"]},
    "AdamW": {"optim": "adamw_torch_fused", "learning_rate": 1e-3, "max_grad_norm": 1.0},
    "fp32": {**ACCUMULATION, "gradient_cache": True},
    # a step would go on with what it rounded off
    "bf16": {**ACCUMULATION, "gradient_cache": True, "bf16": True, "learning_rate": 0.0},
    "bf16, activation checkpointing": {"bf16": True, "activation_checkpointing": True},
}
COMPILED: dict[str, dict[str, Any]] = {
    "fp32, compiled": {**ACCUMULATION, "gradient_cache": True, "activation_checkpointing": True, "torch_compile": True}
}
STEPS, SAVED = 6, 3


@dataclass(frozen=True)
class Material:
    """All that a trainer is made of."""

    models: dict[str, Path]
    """Folders of them: "float64", "fp32", and "another", of which nothing may be left in a resumed run."""
    tokenizer: PreTrainedTokenizerBase
    tokens: Dataset
    held_out: Dataset
    argv: list[str]


def trainer_for(
    material: Material, folder: Path, sharded: bool, model: str = "float64", **settings: Any
) -> HictlTrainer:
    """A trainer in one of two processes, which have different weights before the training."""
    found = HictlForPreTraining.from_pretrained(material.models[model], dtype="auto")
    if torch.distributed.is_initialized() and torch.distributed.get_rank():
        with torch.no_grad():
            for weight in found.parameters():
                weight.add_(1)
    settings = {"ddp_backend": "gloo", "ddp_find_unused_parameters": "objectives" in settings, **settings}
    trainer = trainer_of(found, material.tokenizer, material.tokens, folder, **settings)
    trainer.shard_parameters = sharded
    if not sharded:
        trainer.accelerator.autocast_handler = AutocastKwargs(cache_enabled=False)  # as in shards; else it sums in bf16
    return trainer


def number_type(case: str) -> str:
    return case.partition(",")[0] if case.startswith(("fp32", "bf16")) else "float64"


def whole(tensors: dict[str, Tensor]) -> State:
    return {name: gather(tensor, keep=True).clone() for name, tensor in sorted(tensors.items())}


def state_of(trainer: HictlTrainer) -> State:
    """All parameters, all buffers, and all that the optimiser knows, whole."""
    assert trainer.state.global_step == trainer.args.max_steps
    tensors = dict([*trainer.model.named_parameters(), *trainer.model.named_buffers()])
    return whole(tensors | moments_of(trainer))


def shares_of(trainer: HictlTrainer) -> list[float]:
    """What part of weights, gradients and moments this process has."""
    weights = list(trainer.model.parameters())
    moments = [value for state in trainer.optimizer.state.values() for value in state.values() if value.ndim]
    kinds = [weights, list(gradients_of(trainer)[-1].values()), *([moments] if moments else [])]
    own = [[tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in kind] for kind in kinds]
    return [sum(map(torch.numel, part)) / sum(map(torch.numel, kind)) for part, kind in zip(own, kinds)]


def note_shards(trainer: HictlTrainer) -> set[str]:
    """The parameters that this process has only a part of when the projection, which follows the layers, runs."""
    found: set[str] = set()

    def note(*_: Any) -> None:
        found.update(name for name, weight in trainer.model.named_parameters() if isinstance(weight, DTensor))

    trainer.model.projection.register_forward_hook(note)
    return found


def learn(material: Material, folder: Path, cases: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Gradients, logs, last weights, shares, and weights in shards, of each case and kind of run."""
    found = {}
    for name, settings in cases.items():
        for sharded in (False, True):
            model = "float64" if number_type(name) == "float64" else "fp32"
            trainer = trainer_for(material, folder, sharded, model, **settings)
            in_shards = note_shards(trainer) if "torch_compile" not in settings else set()
            trained(trainer)
            gradients = [
                whole({at.removeprefix("_orig_mod.").removeprefix("module."): step[at] for at in step})
                for step in gradients_of(trainer)
            ]
            found[name, sharded] = gradients, logs_of(trainer), state_of(trainer), shares_of(trainer), in_shards
            torch.compiler.reset()
    return found


class PoisonOnRankOne(TrainerCallback):
    """Makes the loss of the second step infinite, in one process."""

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        def poison(model: Any, inputs: Any, output: Any) -> None:
            handle.remove()
            output.loss = output.loss + math.inf

        if state.global_step == 1 and args.process_index == 1:
            handle = model.register_forward_hook(poison)


class Forget(TrainerCallback):
    """The second step has no gradient."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step == 1:
            model.zero_grad(set_to_none=True)


def interrupt(material: Material, folder: Path) -> dict[str, Any]:
    """States at the ends of runs that were resumed, evaluated, disturbed, or left alone."""
    settings: dict[str, Any] = {
        "optim": "adamw_torch_fused", "learning_rate": 1e-3, "max_grad_norm": 1.0, "max_steps": STEPS, **ACCUMULATION,
        "gradient_cache": True, "lr_scheduler_type": "linear",
    }  # fmt: skip
    saving = {**settings, "save_strategy": "steps", "save_steps": SAVED}
    evaluating = {"eval_dataset": material.held_out, "eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True}
    found: dict[str, Any] = {}
    for kind, sharded in {"whole": False, "shards": True}.items():
        found[kind] = state_of(trained(trainer_for(material, folder / kind, sharded, **saving)))
    for kind, sharded in {"whole": False, "shards": True}.items():
        for origin in ("whole", "shards"):
            trainer = trainer_for(material, folder / "resumed", sharded, "another", **settings)
            trained(trainer, str(folder / origin / f"checkpoint-{SAVED}"))
            found[f"{kind}, from {origin}"] = state_of(trainer)
        trainer = trained(trainer_for(material, folder / "evaluated", sharded, **settings, **evaluating))
        names = ("eval_retrieval", "eval_layer", "eval_pooling", "eval_projection_2", "eval_retrieval_de")
        found[f"{kind}, evaluated"] = state_of(trainer)
        found[f"{kind}, evaluations"] = [[log[name] for name in names] for log in logs_of(trainer, "eval_retrieval")]
    again = trainer_for(material, folder / "again", True, **settings)
    trained(again)
    again.run_inside(lambda: None)  # some weights are whole when others are loaded
    found["shards, trained twice"] = state_of(trained(again, str(folder / "shards" / f"checkpoint-{SAVED}")))
    best = {**saving, **evaluating, "save_steps": 1, "metric_for_best_model": "score", "load_best_model_at_end": True}
    trainer = trainer_for(material, folder / "best", True, **best, greater_is_better=True)
    evaluate, scores = trainer.evaluate, iter([0.0, 5.0, 9.0, 4.0, 3.0, 2.0, 1.0])
    trainer.evaluate = lambda *given, **named: {**evaluate(*given, **named), "eval_score": next(scores)}
    trained(trainer)
    found["best"] = whole(
        dict([*trainer.model.named_parameters(remove_duplicate=False), *trainer.model.named_buffers()])
    )
    for name, disturb in {"poisoned": PoisonOnRankOne, "without a step": Forget}.items():
        trainer = trainer_for(material, folder / name, True, **{**settings, "max_steps": 2})
        trainer.add_callback(disturb())
        found[name] = state_of(trained(trainer))
        found[f"{name}, skipped"] = trainer.skipped_steps
    return found


def run_as_one_of_two(material: Material, folder: Path, compiled: bool) -> dict[Any, Any]:
    if compiled:
        return learn(material, folder / "x", COMPILED)
    found = learn(material, folder / "x", CASES) | interrupt(material, folder)
    hictl_hf.pretraining.run.report = lambda *_: None  # it takes longer than the training
    shard, models = hictl_hf.training.sharding.shard, list[Any]()
    hictl_hf.training.sharding.shard = lambda model: models.append(model) or shard(model)
    for name in ("false", "true"):
        main([*material.argv, "--output_dir", str(folder / f"run {name}"), "--shard_parameters", name])
        found[f"models in shards, {name}"] = len(models)
    return found


@pytest.fixture(scope="module")
def start(
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    corpus: Dataset,
    sentences: dict[str, list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[bool], tuple[Path, list[dict[Any, Any]]]]:
    """`start(compiled)`: where two processes wrote, and what each of them found."""
    folder = tmp_path_factory.mktemp("two")
    models: dict[str, Path] = {}
    for name, seed in {"float64": 0, "fp32": 0, "another": 9}.items():
        model = model_for_text(seed=seed, initializer_range=0.1, **DROPOUT)
        model = model if name == "fp32" else model.double()
        model.sentence_probability.recent.fill_(0.5)
        model.sentence_probability.steps.fill_(3)
        models[name] = folder / name
        model.save_pretrained(models[name])
    lines = [json.dumps({"en": en, "de": de}) for en, de in zip(sentences["en"], sentences["de"])]
    (folder / "pairs.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "text.txt").write_text("\n".join(f"{text} sana" for text in sentences["sw"]), encoding="utf-8")
    files = {"pairs": str(folder / "pairs.jsonl"), "text": f"sw:{folder / 'text.txt'}"}
    argv = flags(files, folder, "--ddp_backend", "gloo", "--max_steps", "2", "--eval_strategy", "no")
    tokens = tokenize_corpus(corpus, tokenizer, max_length=62)[0]
    material = Material(models, tokenizer, tokens, corpus.select(range(20, 30)), argv)

    def run(compiled: bool) -> tuple[Path, list[dict[Any, Any]]]:
        return folder, found_by_two(folder, run_as_one_of_two, material, folder, compiled)

    return run


@pytest.fixture(scope="module")
def runs(start: Callable[[bool], Any]) -> tuple[Path, list[dict[Any, Any]]]:
    return start(False)


# --- the same steps ---------------------------------------------------------------------------------------------------


def compare(case: str, found: dict[Any, Any]) -> None:
    tolerance, expected, shards = TOLERANCES[number_type(case)], found[case, False], found[case, True]
    assert len(expected[0]) == 3
    for one, other in zip(shards[0], expected[0], strict=True):
        assert largest_error(one, other) < tolerance
    for log, other in zip(shards[1], expected[1], strict=True):
        assert log.keys() == other.keys() and {"sentence_loss", "hard_negative_lambda", "p_avg"} <= log.keys()
        for name in log.keys() - {"tokens_per_second"}:
            assert log[name] == pytest.approx(other[name], rel=tolerance), name
        assert log["hard_negative_lambda"] < 0.99
    assert shards[2].keys() == expected[2].keys()
    for name, value in shards[2].items():
        torch.testing.assert_close(value, expected[2][name], rtol=tolerance, atol=tolerance)
    assert set(expected[3]) == {1} and all(0.45 < share < 0.55 for share in shards[3])
    layers = {name for name in shards[0][0] if ".layer." in name}
    assert not expected[4] and layers and shards[4] == (set() if "compiled" in case else layers)


@pytest.mark.parametrize("case", CASES)
def test_shards_have_the_losses_gradients_and_weights_of_whole_models(
    case: str, runs: tuple[Path, list[dict[Any, Any]]]
) -> None:
    for found in runs[1]:
        compare(case, found)


def test_all_weights_get_a_gradient(runs: tuple[Path, list[dict[Any, Any]]]) -> None:
    gradients, _, state, *_ = runs[1][0]["one micro-batch", True]
    weights = {name for name in state if not name.startswith("sentence_probability") and "_ids" not in name}
    assert {name for name, gradient in gradients[-1].items() if gradient.norm() > 0} == weights
    assert len({"lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"} & weights) == 1  # they are tied


def test_compiled_shards_have_them_too(start: Callable[[bool], Any]) -> None:
    for found in start(True)[1]:
        for case in COMPILED:
            compare(case, found)


# --- interrupted, evaluated, disturbed --------------------------------------------------------------------------------


def test_resumed_shards_end_with_the_bits_of_those_left_alone(runs: tuple[Path, list[dict[Any, Any]]]) -> None:
    for found in runs[1]:
        assert not differing(found["shards"], found["shards, from shards"])
        assert not differing(found["shards"], found["shards, trained twice"])
        assert not differing(found["whole"], found["whole, from whole"])


@pytest.mark.parametrize(("kind", "origin"), [("shards", "whole"), ("whole", "shards")])
def test_either_kind_of_run_goes_on_from_a_checkpoint_of_the_other(
    kind: str, origin: str, runs: tuple[Path, list[dict[Any, Any]]]
) -> None:
    for found in runs[1]:
        assert found[kind].keys() == found[f"{kind}, from {origin}"].keys()
        for name, value in found[kind].items():
            torch.testing.assert_close(found[f"{kind}, from {origin}"][name], value, rtol=1e-9, atol=1e-9)


def test_a_checkpoint_of_shards_holds_what_one_of_a_whole_model_does(
    runs: tuple[Path, list[dict[Any, Any]]],
) -> None:
    folder, (found, _) = runs
    ours, theirs = (folder / kind / f"checkpoint-{STEPS}" for kind in ("shards", "whole"))
    names = {path.name for path in ours.iterdir()}
    assert names == {path.name for path in theirs.iterdir()} and "modeling_hictl.py" in names
    assert verify_checkpoint(ours) is None
    assert json.loads((ours / "config.json").read_text()) == json.loads((theirs / "config.json").read_text())
    optimizers = [torch.load(place / "optimizer.pt", weights_only=True) for place in (ours, theirs)]
    assert optimizers[0]["param_groups"] == optimizers[1]["param_groups"]
    for number, state in optimizers[1]["state"].items():
        torch.testing.assert_close(optimizers[0]["state"][number], state, rtol=1e-9, atol=1e-9)
    model = HictlForPreTraining.from_pretrained(ours)
    assert model.lm_head.decoder.weight is model.get_input_embeddings().weight
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    assert not differing({name: tensors[name] for name in tensors}, {name: found["shards"][name] for name in tensors})


def test_evaluation_finds_the_same_and_changes_nothing(runs: tuple[Path, list[dict[Any, Any]]]) -> None:
    for found in runs[1]:
        assert len(found["shards, evaluations"]) == STEPS + 1
        assert found["shards, evaluations"] == found["whole, evaluations"]
        assert not differing(found["shards"], found["shards, evaluated"])
        assert not differing(found["whole"], found["whole, evaluated"])


def test_shards_end_with_the_best_checkpoint(runs: tuple[Path, list[dict[Any, Any]]]) -> None:
    folder, both = runs
    best = load_file(folder / "best" / "checkpoint-2" / "model.safetensors")
    last = load_file(folder / "best" / f"checkpoint-{STEPS}" / "model.safetensors")
    for found in both:
        assert all(found["best"][name].equal(best[name]) for name in best)
        assert not found["best"]["projection.weight"].equal(last["projection.weight"])


def test_a_loss_that_is_not_finite_in_one_process_lets_all_skip_the_step(
    runs: tuple[Path, list[dict[Any, Any]]],
) -> None:
    for found in runs[1]:
        assert (found["poisoned, skipped"], found["without a step, skipped"]) == (1, 0)
        changed = differing(found["poisoned"], found["without a step"])
        assert changed <= {"sentence_probability.recent", "sentence_probability.steps"}  # which a skipped step leaves


# --- a whole run ------------------------------------------------------------------------------------------------------


def test_a_run_in_shards_leaves_what_any_run_does(runs: tuple[Path, list[dict[Any, Any]]]) -> None:
    folder, (found, _) = runs
    assert (found["models in shards, false"], found["models in shards, true"]) == (0, 1)
    for name in ("checkpoint", "encoder"):
        ours, theirs = (load_file(folder / f"run {kind}" / name / "model.safetensors") for kind in ("true", "false"))
        assert ours.keys() == theirs.keys()
        for key in theirs:
            torch.testing.assert_close(ours[key], theirs[key], rtol=1e-4, atol=1e-6)
    results = [json.loads((folder / f"run {kind}" / "results.json").read_text()) for kind in ("true", "false")]
    assert results[0]["retrieval"] == results[1]["retrieval"]
    kinds = [type(AutoModel.from_pretrained(folder / "run true" / name)).__name__ for name in ("checkpoint", "encoder")]
    assert kinds == ["HictlModel", "XLMRobertaModel"]


# --- what is refused --------------------------------------------------------------------------------------------------


def test_one_process_has_no_shards(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, corpus: Dataset, tmp_path: Path
) -> None:
    tokens = tokenize_corpus(corpus, tokenizer, max_length=62)[0]
    args = trainer_of(model_for_text(), tokenizer, tokens, tmp_path).args
    with pytest.raises(ValueError, match="several processes, .* torchrun or accelerate launch, .* leave it out"):
        HictlTrainer(model_for_text(), args, shard_parameters=True)


def test_adafactor_is_refused_before_it_fails_in_its_first_step() -> None:
    several = {"world_size": 2, "deepspeed_plugin": None, "fp16": False}
    check_can_shard(SimpleNamespace(**several, optim="adamw_torch_fused"))  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="optim is adafactor, .*; allowed are adamw_torch_fused"):
        check_can_shard(SimpleNamespace(**several, optim="adafactor"))  # type: ignore[arg-type]


# --- the micro-batch that fits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharded", [False, True])
def test_shards_leave_the_room_of_moments_to_rows(
    sharded: bool,
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, held, empty_like = model_for_text(), [], torch.empty_like
    numbers = {id(weight): name for name, weight in model.named_parameters()}
    monkeypatch.setattr(torch, "empty_like", lambda like, **named: held.append(id(like)) or empty_like(like, **named))
    args = RunArguments(str(tmp_path), use_cpu=True, per_device_train_batch_size=2)
    fit_micro_batch(model, PretrainingCollator(tokenizer, max_length=40), args, sharded)
    names = [numbers[like] for like in held if like in numbers]
    words = numbers[id(model.get_input_embeddings().weight)]
    assert sorted(names) == ([words] * 2 if sharded else sorted([*numbers.values()] * 2))


# --- arithmetic -------------------------------------------------------------------------------------------------------


def test_the_page_of_scale_counts_a_model_of_the_size_of_xl() -> None:
    page = (Path(__file__).parents[2] / "docs/scale.md").read_text("utf-8")
    names = run_path(str(Path(__file__).parents[2] / "benchmarks/scale_estimates.py"))
    layers, d = names["XL"]["XL"]
    config = HictlConfig(
        vocab_size=names["WORDS"], hidden_size=d, num_hidden_layers=layers, num_attention_heads=32,
        intermediate_size=4 * d, max_position_embeddings=514, type_vocab_size=1,
    )  # fmt: skip
    with torch.device("meta"):
        model = HictlForPreTraining(config)
    encoder, embeddings, everything = (sum(weight.numel() for weight in part.parameters()) for part in (
        model.roberta.encoder, model.get_input_embeddings(), model
    ))  # fmt: skip
    assert names["sizes"]("XL") == (encoder, embeddings, everything)
    # each weight of a layer is gathered twice and its gradient divided once, all others once and once
    sent = 7 / 8 * (3 * 4 * encoder + 2 * 4 * (everything - encoder))
    assert f"some {sent / 1e9:.0f} GB: {sent / 200e9:.1f} s" in page
