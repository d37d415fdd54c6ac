"""A step's loss is the mean over its target tokens however it is divided, the encoder stands still in step 1 alone, an
interrupted run ends with the same bits, and the state that is kept is the best one, or the mean of the last.

As a script, this file trains in a process of its own, which is killed: see its end.
"""

import os
import signal
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
from datasets import Dataset
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F
from toy_trainer import differing
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from two_processes import found_by_two

from hictl_hf import HictlModel
from hictl_hf.data.cleaning import CorpusReport
from hictl_hf.models.modeling_hictl_translation import HictlForConditionalGeneration
from hictl_hf.processes import Processes
from hictl_hf.training import trainer as trainer_module
from hictl_hf.training.checkpoints import newest_first, verify_checkpoint, write_manifest
from hictl_hf.translation import trainer as translation_trainer
from hictl_hf.translation.beam_search import BeamSearchConfig
from hictl_hf.translation.corpus import (
    Direction,
    Pair,
    TokenBudgetBatchSampler,
    TranslationCollator,
    side_lengths,
    tokenize_pairs,
)
from hictl_hf.translation.decoding import Translation
from hictl_hf.translation.target_vocabulary import choose_target_ids
from hictl_hf.translation.trainer import (
    TranslationTrainer,
    average_weights,
    checkpoints_to_average,
    mean_scores,
    reported_metrics,
    score_directions,
)

EN_DE, EN_ZH = Direction("en", "de"), Direction("en", "zh")
MAX_TOKENS, SEED = 210, 3
SETTINGS = {
    "per_device_train_batch_size": 1, "learning_rate": 1e-2, "lr_scheduler_type": "inverse_sqrt", "warmup_steps": 2,
    "max_grad_norm": 1.0, "label_smoothing_factor": 0.1, "logging_steps": 1, "save_strategy": "no",
    "report_to": "none", "disable_tqdm": True, "use_cpu": True, "remove_unused_columns": False, "seed": SEED,
}  # fmt: skip


class Material:
    """A small model without training, and the rows and texts of two directions."""

    def __init__(self, encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]]):
        self.tokenizer = tokenizer
        texts = {
            direction: {"source": sentences[direction.source], "target": sentences[direction.target]}
            for direction in (EN_DE, EN_ZH)
        }
        # some targets twice as long: else all batches of an epoch have as many tokens
        texts[EN_DE]["target"] = [text * (1 + at % 2) for at, text in enumerate(texts[EN_DE]["target"])]
        rows = {direction: Dataset.from_dict(columns) for direction, columns in texts.items()}
        self.tokens = tokenize_pairs(rows, tokenizer, 62, CorpusReport())
        self.pairs = [
            Pair(source, target, direction, "")
            for direction, columns in texts.items()
            for source, target in zip(columns["source"][:8], columns["target"][:8])
        ]
        ids = choose_target_ids([text for columns in texts.values() for text in columns["target"]], tokenizer)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.model = HictlForConditionalGeneration.from_encoder(
                encoder, ids, ["de", "zh"], decoder_layers=1, hidden_dropout_prob=0.1
            )

    def trainer(self, folder: Path, freeze: bool = False, **how: Any) -> TranslationTrainer:
        """A trainer in this process, which may be one of several."""
        ours = {name: how.pop(name) for name in ("validation", "metric", "beam") if name in how}
        max_tokens, data_seed = how.pop("max_tokens", MAX_TOKENS), how.pop("order_seed", SEED)
        arguments = TrainingArguments(output_dir=str(folder), **{**SETTINGS, **how})
        set_seed(arguments.seed)
        model = deepcopy(self.model)
        processes = Processes(arguments.process_index, arguments.world_size)
        batches = TokenBudgetBatchSampler(*side_lengths(self.tokens), max_tokens, data_seed, processes)
        starts = dict(zip(("de", "zh"), model.start_ids_of(["de", "zh"])))
        return TranslationTrainer(
            model, arguments, train_dataset=self.tokens, data_collator=TranslationCollator(self.tokenizer, starts),
            processing_class=self.tokenizer, batches=batches, freeze_encoder=freeze, **ours,
        )  # fmt: skip


@pytest.fixture(scope="module")
def material(
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    sentences: dict[str, list[str]],
) -> Material:
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    encoder = model_for_text(HictlModel, initializer_range=0.2, **dropout)  # large weights: logits that differ
    return Material(encoder, tokenizer, sentences)


def weights(trainer: TranslationTrainer) -> dict[str, Tensor]:
    model = trainer.accelerator.unwrap_model(trainer.model)
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def logs_of(trainer: TranslationTrainer) -> list[dict[str, Any]]:
    """All that was logged but for times."""
    logs = [log for log in trainer.state.log_history if "train_runtime" not in log]
    return [{name: value for name, value in log.items() if not name.endswith(("time", "second"))} for log in logs]


class InStep(TrainerCallback):
    """Does something at the beginning of a step."""

    def __init__(self, step: int, do: Callable[[], object]) -> None:
        self.step, self.do = step, do

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step + 1 == self.step:
            self.do()


# --- the loss ---------------------------------------------------------------------------------------------------------


def slow_loss(model: HictlForConditionalGeneration, rows: Sequence[dict[str, Any]], smoothing: float) -> Tensor:
    """The mean over all target tokens, one row and one token after another, from the definition."""
    total, tokens = torch.zeros(()), 0
    known = model.target_token_ids.tolist()
    for row in rows:
        labels = [known.index(word) if word in known else 3 for word in row["labels"]]
        begun = torch.tensor([[int(model.start_ids_of([row["target_language"]])), *labels[:-1]]])
        logits = model(torch.tensor([row["input_ids"]]), decoder_input_ids=begun).logits[0]
        for place, word in enumerate(labels):
            surprise = -F.log_softmax(logits[place], -1)
            total = total + (1 - smoothing) * surprise[word] + smoothing * surprise.mean()
            tokens += 1
    return total / tokens


def gradient_of(trainer: TranslationTrainer, batches: list[list[int]]) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradient of an optimiser step of these micro-batches."""
    trainer.args.gradient_accumulation_steps = trainer.current_gradient_accumulation_steps = len(batches)
    given = iter([trainer.data_collator([trainer.train_dataset[row] for row in rows]) for rows in batches])
    micro_batches, items = trainer.get_batch_samples(given, len(batches), torch.device("cpu"))
    trainer.model.zero_grad()
    loss = sum(float(trainer.training_step(trainer.model, batch, items)) for batch in micro_batches)
    gradients = {name: w.grad.clone() for name, w in trainer.model.named_parameters() if w.grad is not None}
    return loss, gradients


def without_dropout(trainer: TranslationTrainer) -> TranslationTrainer:
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0
    return trainer


def test_a_step_has_the_loss_of_its_target_tokens_however_it_is_divided(material: Material, tmp_path: Path) -> None:
    trainer = material.trainer(tmp_path)
    trainer.model.cls_bias_scale.data.fill_(0.3)
    assert trainer.args.label_smoothing_factor == 0.1
    rows = [0, 1, 50, 51, 7, 90]
    lengths = [len(material.tokens[row]["labels"]) for row in rows]
    assert len({*lengths}) > 3
    without_dropout(trainer)
    whole, gradient = gradient_of(trainer, [rows])
    expected = slow_loss(trainer.model.eval(), [material.tokens[row] for row in rows], 0.1)
    assert whole == pytest.approx(expected.item(), rel=1e-5)
    assert gradient["roberta.embeddings.word_embeddings.weight"].abs().sum() > 0
    for split in ([rows[:1], rows[1:]], [rows[:3], rows[3:5], rows[5:]], [[row] for row in rows]):
        loss, found = gradient_of(trainer, split)
        assert loss == pytest.approx(whole, rel=1e-5)
        for name, value in gradient.items():
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-6)


def test_smoothing_is_what_the_arguments_say(material: Material, tmp_path: Path) -> None:
    trainer = without_dropout(material.trainer(tmp_path, label_smoothing_factor=0.0))
    loss, _ = gradient_of(trainer, [[0, 50]])
    rows = [material.tokens[row] for row in (0, 50)]
    assert loss == pytest.approx(slow_loss(trainer.model.eval(), rows, 0.0).item(), rel=1e-5)
    assert loss != pytest.approx(slow_loss(trainer.model.eval(), rows, 0.1).item(), rel=1e-3)


# --- the two steps ----------------------------------------------------------------------------------------------------


def test_step_one_leaves_the_encoder_and_step_two_moves_it(material: Material, tmp_path: Path) -> None:
    before = weights(material.trainer(tmp_path))
    encoder = {name for name in before if name.startswith("roberta.")}
    assert len(encoder) > 20
    frozen, free = (material.trainer(tmp_path, freeze=freeze, max_steps=3) for freeze in (True, False))
    for trainer in (frozen, free):
        trainer.train()
    assert differing(before, weights(frozen)) == before.keys() - encoder
    assert differing(before, weights(free)) == before.keys()


def test_a_frozen_encoder_has_no_dropout_and_the_decoder_has(material: Material, tmp_path: Path) -> None:
    states: dict[bool, list[Tensor]] = {}
    for freeze in (True, False):
        trainer = material.trainer(tmp_path, freeze=freeze)
        seen = states.setdefault(freeze, [])
        trainer.model.roberta.register_forward_hook(lambda *given, seen=seen: seen.append(given[2][0].detach()))
        losses = [gradient_of(trainer, [[0, 1, 2]])[0] for _ in range(2)]
        assert losses[0] != losses[1]
    assert states[True][0].equal(states[True][1]) and not states[False][0].equal(states[False][1])


# --- interrupted runs -------------------------------------------------------------------------------------------------

STEPS_OF_EPOCH = 7
RESUMED = {"seed": SEED + 1, "order_seed": SEED}  # all else that is random is another


def test_an_epoch_has_an_odd_number_of_batches_so_that_its_last_step_is_smaller(
    material: Material, tmp_path: Path
) -> None:
    assert len(material.trainer(tmp_path).get_train_dataloader()) == 2 * STEPS_OF_EPOCH - 1


@pytest.mark.parametrize("freeze", [True, False], ids=["step 1", "step 2"])
def test_a_resumed_run_ends_with_the_same_bits(freeze: bool, material: Material, tmp_path: Path) -> None:
    how: dict[str, Any] = {"num_train_epochs": 2, "gradient_accumulation_steps": 2, "validation": material.pairs}
    how |= {"eval_strategy": "steps", "eval_steps": 8, "metric_for_best_model": "eval_chrf", "save_steps": 1}
    whole = material.trainer(tmp_path / "whole", freeze, save_strategy="steps", **how)
    whole.train()
    assert whole.state.global_step == 2 * STEPS_OF_EPOCH
    for step in (3, STEPS_OF_EPOCH, 9):  # within an epoch, at its end, in the next
        trainer = material.trainer(tmp_path / "resumed", freeze, **{**how, **RESUMED})
        trainer.model.lm_head.bias.data.fill_(7)  # the checkpoint has to bring the weights
        trainer.train(resume_from_checkpoint=str(tmp_path / f"whole/checkpoint-{step}"))
        assert not differing(weights(whole), weights(trainer)), step
        assert logs_of(trainer) == logs_of(whole)
    fresh = material.trainer(tmp_path / "fresh", freeze, **{**how, **RESUMED, "num_train_epochs": 0.1})
    fresh.train()
    assert logs_of(fresh)[0] != logs_of(whole)[0]  # dropout matters


def test_a_run_that_sigterm_ended_goes_on_to_the_same_bits(material: Material, tmp_path: Path) -> None:
    how: dict[str, Any] = {"max_steps": 10, "save_strategy": "epoch"}
    whole = material.trainer(tmp_path / "whole", **how)
    whole.train()
    ended = material.trainer(tmp_path / "ended", **how)
    ended.add_callback(InStep(4, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    ended.train()
    assert ended.terminated and [path.name for path in newest_first(tmp_path / "ended")] == ["checkpoint-4"]
    resumed = material.trainer(tmp_path / "ended", **{**how, **RESUMED})
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 10 and not differing(weights(whole), weights(resumed))


# --- two processes ----------------------------------------------------------------------------------------------------

TWICE = {"max_steps": STEPS_OF_EPOCH + 2, "eval_strategy": "steps", "eval_steps": 6, "logging_steps": 1}
GLOO = {"ddp_backend": "gloo", "ddp_find_unused_parameters": False, "ddp_timeout": 60}


def run_as_one_of_two(material: Material, folder: Path) -> dict[bool, Any]:
    """Weights, logs and translations."""
    found = {}
    for freeze in (True, False):
        how = TWICE | GLOO | {"save_strategy": "steps", "save_steps": 5}
        trainer = without_dropout(material.trainer(folder / str(freeze), freeze, validation=material.pairs, **how))
        trainer.train()
        found[freeze] = weights(trainer), logs_of(trainer), trainer.translate(material.pairs[:5])
    resumed = without_dropout(material.trainer(folder / str(freeze), freeze, validation=material.pairs, **how))
    resumed.train(resume_from_checkpoint=str(folder / str(freeze) / "checkpoint-5"))
    assert not differing(weights(trainer), weights(resumed))
    return found


@pytest.mark.slow
def test_two_processes_train_as_one_with_two_micro_batches(material: Material, tmp_path: Path) -> None:
    one, other = found_by_two(tmp_path, run_as_one_of_two, material, tmp_path)
    for freeze in (True, False):
        assert not differing(one[freeze][0], other[freeze][0]) and one[freeze][2] == other[freeze][2]
        how = TWICE | {"gradient_accumulation_steps": 2, "validation": material.pairs}
        alone = without_dropout(material.trainer(tmp_path / "alone", freeze, **how))
        # of an odd number of batches two processes halve one, which changes the order of what follows
        alone.batches.borders = TokenBudgetBatchSampler(
            *side_lengths(material.tokens), MAX_TOKENS, SEED, Processes(0, 2)
        ).borders
        alone.train()
        for name, value in weights(alone).items():
            torch.testing.assert_close(one[freeze][0][name], value, rtol=1e-3, atol=1e-4)
        losses = [[log["loss"] for log in logs if "loss" in log] for logs in (one[freeze][1], logs_of(alone))]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
        scores = [[log["eval_chrf"] for log in logs if "eval_chrf" in log] for logs in (one[freeze][1], logs_of(alone))]
        assert len(scores[0]) == 2 and scores[0] == pytest.approx(scores[1], abs=0.5)
        assert [each.text for each in one[freeze][2]] == [each.text for each in alone.translate(material.pairs[:5])]


# --- validation and the best state ------------------------------------------------------------------------------------


def test_all_processes_decide_by_the_scores_of_the_main_one(
    material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, given = material.trainer(tmp_path, validation=material.pairs[:2]), []
    monkeypatch.setattr(trainer_module, "broadcast_object_list", lambda values: given.append(values) or [{"chrf": 5.0}])
    assert trainer.validate() == {"chrf": 5.0} and "sacrebleu" in given[0][0]


def test_validation_is_the_score_of_what_generate_says(material: Material, tmp_path: Path) -> None:
    beam = BeamSearchConfig(3, length_penalty=0.6, max_length=12, max_length_a=0, max_length_b=12)
    trainer = material.trainer(tmp_path, validation=material.pairs, beam=beam)
    model = trainer.model.eval()
    texts = []
    for pair in material.pairs:
        source = material.tokenizer(pair.source, return_tensors="pt")
        ids = model.generate(
            **source, target_language=pair.direction.target, num_beams=3, length_penalty=0.6, max_new_tokens=12
        )  # fmt: skip
        texts.append(material.tokenizer.decode(ids[0], skip_special_tokens=True))
    assert len({*texts}) > 3
    found = trainer.evaluate()
    scores = []
    for direction in (EN_DE, EN_ZH):
        rows = [(text, pair.target) for text, pair in zip(texts, material.pairs) if pair.direction == direction]
        hypotheses, references = ([row[side] for row in rows] for side in (0, 1))
        scores.append(sacrebleu.corpus_chrf(hypotheses, [references]).score)
        assert found[f"eval_chrf_{direction}"] == pytest.approx(scores[-1])
    bleu = sacrebleu.corpus_bleu(hypotheses, [references], tokenize="zh").score
    assert found["eval_sacrebleu_en-zh"] == pytest.approx(bleu)
    assert found["eval_chrf"] == pytest.approx(sum(scores) / 2) and sum(scores) > 0


def test_translations_are_one_line_each(material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def translated(model: Any, tokenizer: Any, texts: list[str], *rest: Any, **settings: Any) -> Any:
        assert settings == {"progress": False, "cut": True}  # a source that is too long is no error
        return [[Translation(f"{text}\nmore\u2028", -1.0, 9)] for text in texts]

    monkeypatch.setattr(translation_trainer, "translate", translated)
    found = material.trainer(tmp_path).translate(material.pairs[:2])
    assert [each.text for each in found] == [f"{pair.source} more" for pair in material.pairs[:2]]


def test_scores_of_one_direction_are_not_named_twice() -> None:
    pairs = [Pair("a b", "A B C D", EN_DE, "x:1"), Pair("a", "B", EN_DE, "x:2")]
    perfect = [Translation(pair.target, 0.0, 1) for pair in pairs]
    scores = score_directions(pairs, perfect, ["multi-bleu", "chrf"], {"lowercase": True}, {EN_DE: {"data": "x"}})
    assert mean_scores(scores) == pytest.approx({"multi-bleu": 100, "chrf": 100})
    assert "-l de lc" in scores[EN_DE]["multi-bleu"].signature and "|data:x" in scores[EN_DE]["chrf"].signature
    assert score_directions([], [], ["chrf"]) == {}
    assert reported_metrics("multi-bleu") == ["multi-bleu", "sacrebleu", "chrf"]
    assert reported_metrics("chrf") == ["chrf", "sacrebleu"]


def test_the_best_state_is_kept_and_loaded_also_between_saves(
    material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores, states = {2: 10.0, 4: 30.0, 6: 30.0, 8: 20.0}, {}

    def validate(trainer: TranslationTrainer) -> dict[str, float]:
        states[trainer.state.global_step] = weights(trainer)
        return {"sacrebleu": scores[trainer.state.global_step]}

    monkeypatch.setattr(TranslationTrainer, "validate", validate)
    trainer = material.trainer(
        tmp_path, validation=material.pairs, max_steps=8, eval_strategy="steps", eval_steps=2, save_strategy="steps",
        save_steps=8, load_best_model_at_end=True, metric_for_best_model="eval_sacrebleu", greater_is_better=True,
        save_total_limit=2,
    )  # fmt: skip
    trainer.train()
    assert trainer.state.best_global_step == 6 and trainer.state.best_metric == 30  # the later one of equals
    assert not differing(weights(trainer), states[6]) and differing(states[4], states[6])
    assert [path.name for path in newest_first(tmp_path)] == ["checkpoint-8", "checkpoint-6"]
    assert [verify_checkpoint(path) for path in newest_first(tmp_path)] == [None, None]


# --- averaging --------------------------------------------------------------------------------------------------------


def test_a_mean_worked_by_hand(tmp_path: Path) -> None:
    frozen = torch.tensor([0.1, 1e-30, 3.4e38])
    for number, value in enumerate((1.0, 2.0, 6.0)):
        (tmp_path / str(number)).mkdir()
        tensors = {"weight": torch.tensor([value, -value]), "half": torch.tensor([value]).bfloat16()}
        tensors |= {"frozen": frozen.clone(), "ids": torch.tensor([5, 7])}
        save_file(tensors, tmp_path / str(number) / "model.safetensors")
    mean = average_weights([tmp_path / str(number) for number in range(3)])
    assert mean["weight"].tolist() == [3.0, -3.0] and mean["ids"].tolist() == [5, 7]
    assert mean["half"].dtype == torch.bfloat16 and mean["half"].item() == 3
    assert mean["frozen"].equal(frozen)  # to the bit
    with pytest.raises(AssertionError, match="ids differs"):
        save_file({"ids": torch.tensor([5, 8])}, tmp_path / "2" / "model.safetensors")
        average_weights([tmp_path / "0", tmp_path / "2"])


def state_at(step: int) -> TrainerState:
    """The state of a run that saves every second step."""
    return TrainerState(global_step=step, max_steps=20, save_steps=2)


def save_states(run: Path, *steps: int) -> None:
    for step in steps:
        folder = run / f"checkpoint-{step}"
        folder.mkdir()
        state_at(step).save_to_json(str(folder / "trainer_state.json"))
        write_manifest(folder)


@pytest.mark.parametrize(
    ("step", "limit", "kept"),
    [
        (7, 2, [7, 6, 5, 4]),  # ended by SIGTERM for the second time since step 4
        (8, 2, [8, 6]),
        (8, None, [8, 6, 4, 2]),
    ],
)
def test_what_sigterm_saved_takes_no_place_of_a_checkpoint_that_was_due(
    step: int, limit: int | None, kept: list[int], material: Material, tmp_path: Path
) -> None:
    save_states(tmp_path, 2, 4, 5, 6, 7, *range(8, step + 1))
    trainer = material.trainer(tmp_path, save_strategy="steps", save_steps=2)
    trainer.state = state_at(step)
    trainer.remove_old_checkpoints(str(tmp_path), limit)
    assert [path.name for path in newest_first(tmp_path)] == [f"checkpoint-{number}" for number in kept]


def test_a_broken_checkpoint_is_none_of_those_to_keep(material: Material, tmp_path: Path) -> None:
    save_states(tmp_path, 2, 4, 6)
    (tmp_path / "checkpoint-5").mkdir()  # killed while it saved
    trainer = material.trainer(tmp_path, save_strategy="steps", save_steps=2)
    trainer.state = state_at(6)
    trainer.remove_old_checkpoints(str(tmp_path), 2)
    assert [path.name for path in newest_first(tmp_path)] == ["checkpoint-6", "checkpoint-4"]


def test_the_mean_is_of_the_last_complete_checkpoints_that_were_due(tmp_path: Path) -> None:
    save_states(tmp_path, 2, 4, 5, 6, 8, 10)  # 5 by SIGTERM
    (tmp_path / "checkpoint-8/trainer_state.json").write_text("{}")
    found = checkpoints_to_average(tmp_path, 3, "steps")
    assert [path.name for path in found] == ["checkpoint-10", "checkpoint-6", "checkpoint-4"]
    assert len(checkpoints_to_average(tmp_path, 9, "steps")) == 4


def test_the_mean_of_one_checkpoint_is_the_model(material: Material, tmp_path: Path) -> None:
    trainer = material.trainer(tmp_path, max_steps=2, save_strategy="steps", save_steps=2)
    trainer.train()
    expected = weights(trainer)
    for weight in trainer.model.parameters():
        weight.data.zero_()
    loaded = trainer.model.load_state_dict(average_weights([tmp_path / "checkpoint-2"]), strict=False)
    assert not loaded.unexpected_keys and not differing(expected, weights(trainer))
