"""The model classes: what loads from what, what the losses of a batch are made of, and what is exported."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModel,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
    XLMRobertaForSequenceClassification,
    XLMRobertaModel,
)

from hictl_hf import (
    HictlConfig,
    HictlForMaskedLM,
    HictlForPreTraining,
    HictlForSequenceClassification,
    HictlModel,
    export_encoder,
)
from hictl_hf.models.losses import sentence_contrast, word_contrast
from hictl_hf.models.negatives import in_batch_negatives, interpolate_hard_negatives
from hictl_hf.models.word_sampling import OccurringWords, list_words, sample_words_and_list

Batch = dict[str, Tensor]
MakeModel = Callable[..., PreTrainedModel]
MakeBatch = Callable[..., Batch]

HUB_FILES = {f"{module}.py" for module in ("configuration_hictl", "modeling_hictl")} | {
    f"{module}.py"
    for module in (
        "configuration_decoder",
        "configuration_objective",
        "encoder_export",
        "families",
        "gathering",
        "gpu",
        "head_loss",
        "linear_cross_entropy",
        "losses",
        "masked_language_model",
        "modeling_hictl_families",
        "negatives",
        "objective",
        "outputs",
        "packing",
        "row_attention",
        "sentence_probability",
        "short_rows",
        "supported_versions",
        "word_sampling",
    )
}
LOSSES = {"lm_loss": "lm_weight", "sentence_loss": "sentence_weight", "word_loss": "word_weight"}
NEW_IN_CLASSIFIER = {f"classifier.{layer}.{kind}" for layer in ("dense", "out_proj") for kind in ("weight", "bias")}


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def masked_words_of(batch: Batch) -> Batch:
    """The part of a batch that a masked language model reads."""
    return {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}


def part_of(batch: Batch, rows: slice) -> Batch:
    """Some pairs of a batch without its sentence level."""
    return {name: value[rows] for name, value in batch.items() if not name.startswith("sentence")}


@pytest.fixture(scope="module")
def xlm_r(tmp_path_factory: pytest.TempPathFactory, toy_config: Callable[..., HictlConfig]) -> Path:
    """The folder of an XLM-R masked language model, as published ones are: no pooler, no code."""
    folder = tmp_path_factory.mktemp("xlm-r")
    save_xlm_r(XLMRobertaForMaskedLM, toy_config(), folder)
    return folder


def save_xlm_r(cls: type[PreTrainedModel], toy: HictlConfig, folder: Path) -> None:
    stock = XLMRobertaConfig().to_dict().keys() - {"model_type", "transformers_version"}
    torch.manual_seed(1)
    cls(XLMRobertaConfig(**{name: getattr(toy, name) for name in stock})).save_pretrained(folder)


def load(cls: type[PreTrainedModel], folder: Path) -> tuple[PreTrainedModel, dict[str, set[str]]]:
    """The model, in eval mode, and the parts of its load report that are not empty."""
    model, report = cls.from_pretrained(folder, output_loading_info=True)
    return model, {name: set(keys) for name, keys in report.items() if keys}


# --- loading --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("full_of_garbage")
def test_an_xlm_r_checkpoint_lacks_only_the_projection(xlm_r: Path, toy_batch: MakeBatch) -> None:
    assert torch.empty(3).isnan().all()  # garbage is seen
    model, report = load(HictlForPreTraining, xlm_r)
    assert report == {"missing_keys": {"projection.weight"}}
    assert 0.01 < model.projection.weight.std() < 0.03  # initializer_range is 0.02
    assert (model.sentence_probability.recent == 0).all() and model.sentence_probability.steps == 0
    batch = masked_words_of(toy_batch())
    logits = XLMRobertaForMaskedLM.from_pretrained(xlm_r)(**batch).logits
    assert torch.equal(model(**batch).logits, logits)
    assert model.lm_head.decoder.weight is model.get_input_embeddings().weight


@pytest.mark.usefixtures("full_of_garbage")
def test_a_checkpoint_without_language_model_head_names_the_head_too(
    tmp_path: Path, toy_config: Callable[..., HictlConfig], transformers_warnings: pytest.LogCaptureFixture
) -> None:
    save_xlm_r(XLMRobertaModel, toy_config(), tmp_path)
    model, report = load(HictlForPreTraining, tmp_path)
    assert report.keys() == {"missing_keys"}
    missing = report["missing_keys"]
    assert {"projection.weight", "lm_head.dense.weight", "lm_head.layer_norm.weight"} < missing
    assert not any("sentence_probability" in key for key in missing)
    assert all(value.isfinite().all() for value in model.state_dict().values())
    assert (model.sentence_probability.recent == 0).all() and model.sentence_probability.steps == 0
    assert model.lm_head.decoder.bias is model.lm_head.bias
    assert "corrupted" not in transformers_warnings.text
    load(XLMRobertaForMaskedLM, tmp_path)
    assert "corrupted" in transformers_warnings.text  # what transformers says of its own class: the test can fail


def test_a_checkpoint_of_old_times_with_pooler_and_position_ids_loads_silently(
    tmp_path: Path, xlm_r: Path, toy_batch: MakeBatch, transformers_warnings: pytest.LogCaptureFixture
) -> None:
    weights = load_file(xlm_r / "model.safetensors")
    old = {"roberta.pooler.dense.weight": torch.ones(32, 32), "roberta.pooler.dense.bias": torch.ones(32)}
    old["roberta.embeddings.position_ids"] = torch.arange(66)[None]
    save_file({**weights, **old}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((xlm_r / "config.json").read_text())
    for cls in (HictlForMaskedLM, HictlModel):
        assert load(cls, tmp_path)[1] == {}
    assert not transformers_warnings.messages
    model, report = load(HictlForPreTraining, tmp_path)
    assert report == {"missing_keys": {"projection.weight"}}
    batch = masked_words_of(toy_batch())
    assert torch.equal(model(**batch).logits, XLMRobertaForMaskedLM.from_pretrained(xlm_r)(**batch).logits)


def test_stock_xlm_r_reads_a_pre_training_checkpoint(
    tmp_path: Path, toy_model: MakeModel, toy_batch: MakeBatch
) -> None:
    saved, batch = toy_model(seed=3), masked_words_of(toy_batch())
    saved.save_pretrained(tmp_path)
    close(XLMRobertaForMaskedLM.from_pretrained(tmp_path)(**batch).logits, saved(**batch).logits)


def test_the_encoder_has_a_pooler_only_when_asked_for(toy_config: Callable[..., HictlConfig]) -> None:
    assert HictlModel(toy_config()).pooler is None
    assert HictlModel(toy_config(), add_pooling_layer=True).pooler is not None


# --- as a masked language model -------------------------------------------------------------------------------------


def test_called_as_a_masked_language_model_it_is_one(xlm_r: Path, toy_batch: MakeBatch) -> None:
    model, stock = HictlForPreTraining.from_pretrained(xlm_r), XLMRobertaForMaskedLM.from_pretrained(xlm_r)
    batch = masked_words_of(toy_batch())
    ours, theirs = model(**batch, output_hidden_states=True), stock(**batch, output_hidden_states=True)
    assert torch.equal(ours.logits, theirs.logits) and torch.equal(ours.loss, theirs.loss)
    assert all(map(torch.equal, ours.hidden_states, theirs.hidden_states))
    assert ours.lm_loss is not None and ours.sentence_loss is None and ours.word_loss is None
    assert torch.equal(model(**batch, return_dict=False)[1], theirs.logits)
    assert model(batch["input_ids"]).loss is None


def test_the_language_model_loss_of_pre_training_is_the_usual_one(toy_model: MakeModel, toy_batch: MakeBatch) -> None:
    model, batch = toy_model(), toy_batch()
    close(model(**batch).lm_loss, model(**masked_words_of(batch)).loss)


def test_transformers_trainer_predicts_with_the_logits_alone(
    toy_model: MakeModel, toy_batch: MakeBatch, tmp_path: Path
) -> None:
    model, batch = toy_model(), masked_words_of(toy_batch())
    rows = [{name: values[row] for name, values in batch.items()} for row in range(4)]
    trainer = Trainer(model, TrainingArguments(str(tmp_path), report_to="none", use_cpu=True))
    close(torch.tensor(trainer.predict(rows).predictions), model(**batch).logits)


# --- the losses of a batch ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("projection", [True, False])
def test_sentences_are_pooled_and_projected_as_the_configuration_says(
    pooling: str, projection: bool, toy_model: MakeModel, toy_batch: MakeBatch
) -> None:
    model = toy_model(sentence_pooling=pooling, sentence_projection=projection, lm_weight=0, word_weight=0).double()
    batch = toy_batch()
    outputs = model(**batch)
    outputs.loss.backward()
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}

    model.zero_grad()
    mask = batch["sentence_attention_mask"].unsqueeze(-1).double()
    hidden = model.roberta(batch["sentence_input_ids"], batch["sentence_attention_mask"])[0]
    pooled = hidden[:, 0] if pooling == "cls" else (hidden * mask).sum(1) / mask.sum(1)
    sentences = pooled @ model.projection.weight.T if projection else pooled
    close(outputs.sentence_embeddings, sentences)
    close(model.encode_sentences(batch["sentence_input_ids"], batch["sentence_attention_mask"]), sentences)
    negatives = in_batch_negatives(batch["sentence_hashes"], "pair")
    sentence_contrast(sentences, negatives, 0.05, 0.0, "unit")[0].backward()
    assert ("projection.weight" in gradients) is projection
    for name, weight in model.named_parameters():
        if name in gradients:
            torch.testing.assert_close(gradients[name], weight.grad, rtol=1e-6, atol=1e-9)


def test_a_mean_is_the_same_however_much_padding_a_batch_has(toy_model: MakeModel, toy_batch: MakeBatch) -> None:
    model = toy_model(sentence_pooling="mean", sentence_projection=False)
    close(model(**toy_batch()).sentence_loss, model(**toy_batch(padding=5)).sentence_loss)


def test_while_its_head_is_taught_the_language_model_does_not_move_the_encoder(
    toy_model: MakeModel, toy_batch: MakeBatch
) -> None:
    def gradients(**changes: Any) -> dict[str, Tensor]:
        model = toy_model(**changes)
        outputs = model(**toy_batch(), lm_head_only=True)
        outputs.loss.backward()
        close(outputs.lm_loss, toy_model(**changes)(**toy_batch()).lm_loss)
        return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}

    alone = gradients(sentence_weight=0, word_weight=0)
    assert alone.keys() == {"lm_head.bias", "lm_head.dense.weight", "lm_head.dense.bias"} | {
        f"lm_head.layer_norm.{kind}" for kind in ("weight", "bias")
    }
    masked = {name: each for name, each in toy_batch().items() if name in ("input_ids", "attention_mask", "labels")}
    model = toy_model()
    model(**masked, lm_head_only=True).loss.backward()  # without inputs of the other losses, too
    assert {name for name, weight in model.named_parameters() if weight.grad is not None} == alone.keys()
    with_all, without = gradients(), gradients(lm_weight=0)
    for name, gradient in without.items():
        close(with_all[name], gradient)
    for name in alone:
        close(with_all[name], alone[name])


@pytest.mark.parametrize(
    ("space", "duplicates", "negatives_of_8"),
    [("unit", "pair", 2 * 4 + 2 * 4 + 4 * 6), ("raw", "text", 2 * 5 + 6 * 6), ("unit", "keep", 8 * 6)],
)  # of four pairs, the first two share a text
def test_losses_are_the_functions_of_the_paper_applied_to_first_tokens(
    space: str,
    duplicates: str,
    negatives_of_8: int,
    toy_model: MakeModel,
    toy_batch: MakeBatch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"hard_negative_space": space, "duplicates": duplicates, "word_temperature": 0.3}
    model = toy_model(**settings).double()  # sentences of so new a model differ by little more than fp32 can tell
    batch = toy_batch()
    batch["sentence_hashes"][5] = batch["sentence_hashes"][0]
    model.sentence_probability.record(torch.tensor(0.5))
    drawn = torch.arange(4, 24).view(1, 20).expand(4, 20)
    monkeypatch.setattr(
        "hictl_hf.models.objective.sample_words_and_list", lambda bag, *_: (drawn, list_words(bag, drawn))
    )
    outputs = model(**batch)

    vectors = model.roberta(batch["sentence_input_ids"], batch["sentence_attention_mask"])[0][:, 0]
    sentences = vectors @ model.projection.weight.T
    close(outputs.sentence_embeddings, sentences)
    negatives = in_batch_negatives(batch["sentence_hashes"], duplicates)
    strength = 0.9 * float(torch.tensor(-0.5).exp())
    close(outputs.sentence_loss, sentence_contrast(sentences, negatives, 0.05, strength, space)[0])
    _, lambdas = interpolate_hard_negatives(sentences, negatives, strength, space)
    close(outputs.hard_negative_lambda, lambdas[negatives].mean())
    assert 0.1 < outputs.hard_negative_lambda < 0.99
    assert outputs.negatives_per_anchor == negatives_of_8 / 8

    queries = model.roberta(batch["input_ids"], batch["attention_mask"])[0][:, 0]
    words, _ = word_contrast(queries, model.get_input_embeddings().weight, batch["bag"], drawn, 0.3)
    close(outputs.word_loss, words.mean())
    close(outputs.loss, outputs.lm_loss + outputs.sentence_loss + outputs.word_loss)


def test_a_model_can_leave_out_the_negatives_of_the_same_side(toy_model: MakeModel, toy_batch: MakeBatch) -> None:
    batch = toy_batch()
    per_anchor = [float(toy_model(same_side_negatives=same)(**batch).negatives_per_anchor) for same in (True, False)]
    assert per_anchor == [6, 3]  # 2n - 2 and n - 1 of four pairs


@pytest.mark.parametrize(("sampling", "expected"), [(None, 0.3), (0.7, 0.7)])
def test_words_are_drawn_for_the_first_tokens_from_all_but_the_bag_and_special_tokens(
    sampling: float | None, expected: float, toy_model: MakeModel, toy_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch, calls = toy_model(word_temperature=0.3, word_sampling_temperature=sampling), toy_batch(), []

    def spy(*arguments: Any) -> tuple[Tensor, OccurringWords]:
        calls.append(arguments)
        return sample_words_and_list(*arguments)

    monkeypatch.setattr("hictl_hf.models.objective.sample_words_and_list", spy)
    model(**batch)
    [(bag, queries, vocabulary, excluded, number, temperature, seeds, tf32)] = calls
    assert torch.equal(bag, batch["bag"])
    close(queries, model.roberta(batch["input_ids"], batch["attention_mask"])[0][:, 0].detach())
    assert torch.equal(vocabulary, model.get_input_embeddings().weight)
    assert not queries.requires_grad and not vocabulary.requires_grad  # a draw has no gradient
    assert (number, temperature) == (16, expected) and torch.equal(seeds, batch["example_seeds"]) and not tf32
    for row, bag in zip(excluded.tolist(), batch["bag"].tolist()):
        assert {*row} - {-1} == ({*bag} - {-1}) | {0, 1, 2, 3, 199}


def test_the_loss_comes_first_whatever_else_is_trained(toy_model: MakeModel, toy_batch: MakeBatch) -> None:
    for weights in ({}, {"sentence_weight": 0.0}, {"word_weight": 0.0}, {"lm_weight": 0.0}):
        model, batch = toy_model(**weights), toy_batch()
        assert next(iter(model(**batch))) == "loss"
        assert model(**batch, return_dict=False)[0].shape == ()


def test_a_batch_of_masked_words_with_seeds_is_one_of_pre_training(toy_model: MakeModel, toy_batch: MakeBatch) -> None:
    batch = toy_batch()
    words = {name: batch[name] for name in ("input_ids", "attention_mask", "labels", "example_seeds")}
    outputs = toy_model(lm_weight=0.5, sentence_weight=0.0, word_weight=0.0)(**words)
    close(outputs.loss, outputs.lm_loss / 2)


def test_clean_text_that_is_missing_is_named(toy_model: MakeModel, toy_batch: MakeBatch) -> None:
    batch = {name: value for name, value in toy_batch().items() if name != "clean_input_ids"}
    with pytest.raises(ValueError, match="clean_input_ids is None; let the collator make it"):
        toy_model(word_level_input="clean")(**batch)


@pytest.mark.parametrize("name", ["position_ids", "token_type_ids", "inputs_embeds", "output_attentions", "bags"])
def test_what_pre_training_makes_no_use_of_is_refused(toy_model: MakeModel, toy_batch: MakeBatch, name: str) -> None:
    batch = toy_batch()
    with pytest.raises(ValueError, match=f"makes no use of {name}; leave"):
        toy_model()(**batch, **{name: torch.ones_like(batch["input_ids"])})
    assert toy_model()(**batch, **{name: None}).loss == toy_model()(**batch).loss


def test_a_batch_that_data_parallel_splits_is_refused(toy_model: MakeModel, toy_batch: MakeBatch) -> None:
    """transformers' Trainer takes it where one process sees several GPUs; half of the sentences are all x, or all y."""
    replica: Any = toy_model()._replicate_for_data_parallel()
    replica._parameters, replica._modules = toy_model()._parameters, toy_model()._modules
    batch = toy_batch()
    part = {name: value.chunk(2)[0] for name, value in batch.items() if isinstance(value, Tensor)}
    assert len(part["sentence_input_ids"]) == 2 * len(part["example_seeds"]), "the shapes do not tell"
    with pytest.raises(ValueError, match="one process for each GPU"):
        replica(**part)
    assert replica(input_ids=batch["input_ids"], labels=batch["labels"]).loss > 0


def test_an_unknown_argument_is_refused_with_each_allowed_one_once(toy_model: MakeModel) -> None:
    with pytest.raises(TypeError, match="unexpected arguments bags; allowed are those of its signature and ") as found:
        toy_model()(input_ids=torch.tensor([[0, 5, 2]]), bags=1)
    named = str(found.value).partition("signature and ")[2].split(", ")
    assert "self" not in named and len(named) == len({*named})


def test_weights_multiply_the_losses_in_the_total(toy_model: MakeModel, toy_batch: MakeBatch) -> None:
    outputs = toy_model(lm_weight=2, sentence_weight=0.5, word_weight=3.0)(**toy_batch())
    close(outputs.loss, 2 * outputs.lm_loss + 0.5 * outputs.sentence_loss + 3 * outputs.word_loss)
    plain = toy_model()(**toy_batch())
    close([outputs[loss] for loss in LOSSES], [plain[loss] for loss in LOSSES])


@pytest.mark.parametrize("off", LOSSES)
def test_an_objective_of_weight_zero_gives_no_loss_and_leaves_the_others(
    off: str, toy_model: MakeModel, toy_batch: MakeBatch
) -> None:
    batch = toy_batch()
    everything, outputs = toy_model()(**batch), toy_model(**{LOSSES[off]: 0})(**batch)
    assert getattr(outputs, off) is None and everything[off] > 0
    rest = [loss for loss in LOSSES if loss != off]
    close([outputs[loss] for loss in rest], [everything[loss] for loss in rest])
    close(outputs.loss, sum(everything[loss] for loss in rest))


@pytest.mark.parametrize(
    ("weights", "settings", "encoded"),
    [
        ((1, 1, 1), {}, ["masked", "sentence"]),
        ((1, 1, 1), {"word_level_input": "clean"}, ["masked", "clean", "sentence"]),
        ((0, 1, 0), {}, ["sentence"]),
        ((1, 0, 0), {}, ["masked"]),
        ((0, 0, 1), {}, ["masked"]),
        ((0, 0, 1), {"word_level_input": "clean"}, ["clean"]),
        ((1, 0, 1), {}, ["masked"]),
        ((0, 1, 1), {}, ["masked", "sentence"]),
    ],
)
def test_only_tokens_that_an_objective_reads_are_encoded_all_in_one_pass(
    weights: tuple[int, ...], settings: dict[str, str], encoded: list[str], toy_model: MakeModel, toy_batch: MakeBatch
) -> None:
    model, batch, shapes = toy_model(**dict(zip(LOSSES.values(), weights)), **settings), toy_batch(padding=3), []
    batch["sentence_attention_mask"][:, 3:] = 0  # as many tokens as x∘y would tell nothing
    model.roberta.encoder.layer[0].register_forward_hook(lambda _, inputs, __: shapes.append(inputs[0].shape))
    model(**batch)
    joined, sentences = (int(batch[name].sum()) for name in ("attention_mask", "sentence_attention_mask"))
    assert sentences == 8 * 3 < joined
    tokens = sum({"masked": joined, "clean": joined, "sentence": sentences}[name] for name in encoded)
    assert shapes == [(1, tokens, 32)]


def test_without_any_objective_or_input_the_error_says_so(toy_model: MakeModel, toy_batch: MakeBatch) -> None:
    with pytest.raises(ValueError, match="no loss to train"):
        toy_model(lm_weight=0, sentence_weight=0, word_weight=0)(**toy_batch())
    with pytest.raises(ValueError, match="no loss to train"):
        toy_model(sentence_weight=0)(sentence_input_ids=toy_batch()["sentence_input_ids"])


def test_an_objective_without_input_is_left_out(toy_model: MakeModel, toy_batch: MakeBatch) -> None:
    model, batch = toy_model(), toy_batch()
    everything = model(**batch)
    alone = model(**{name: value for name, value in batch.items() if name.startswith("sentence")})
    close(alone.loss, everything.sentence_loss)
    assert alone.lm_loss is None and alone.word_loss is None
    close(model(**part_of(batch, slice(None))).loss, everything.lm_loss + everything.word_loss)


def test_padding_changes_no_loss(toy_model: MakeModel, toy_batch: MakeBatch) -> None:
    model = toy_model(word_level_input="clean").double()
    tight, padded = model(**toy_batch()), model(**toy_batch(padding=7))
    for name in ("loss", *LOSSES, "sentence_embeddings"):
        torch.testing.assert_close(tight[name], padded[name], rtol=1e-10, atol=1e-10)


def test_positions_are_those_of_padded_rows_whatever_the_configuration_says_later(
    toy_model: MakeModel, toy_batch: MakeBatch
) -> None:
    """HF's Trainer writes the tokenizer's <pad> into the configuration of a finished model."""
    model, batch = toy_model(), toy_batch()
    inputs = batch["sentence_input_ids"], batch["sentence_attention_mask"]
    model.config.pad_token_id = 0
    close(model.encode_sentences(*inputs), model.projection(model.roberta(*inputs)[0][:, 0]))


def test_a_label_on_padding_is_not_predicted(toy_model: MakeModel, toy_batch: MakeBatch) -> None:
    model, batch = toy_model(), toy_batch(padding=2)
    labels = batch["labels"].where(batch["attention_mask"].bool(), 5)
    assert not labels.equal(batch["labels"])
    close(model(**{**batch, "labels": labels}).lm_loss, model(**batch).lm_loss)


def test_swapping_sentences_or_pairs_leaves_the_sentence_loss(toy_model: MakeModel, toy_batch: MakeBatch) -> None:
    model = toy_model(lm_weight=0, word_weight=0).double()
    model.sentence_probability.record(torch.tensor(0.1))
    batch = {name: value for name, value in toy_batch().items() if name.startswith("sentence")}
    loss = model(**batch).loss
    for order in ([4, 5, 6, 7, 0, 1, 2, 3], [2, 0, 3, 1, 6, 4, 7, 5]):
        torch.testing.assert_close(model(**{name: value[order] for name, value in batch.items()}).loss, loss)


def test_the_shares_of_two_halves_add_up_to_the_losses_of_the_whole(toy_model: MakeModel, toy_batch: MakeBatch) -> None:
    model, batch = toy_model(), toy_batch(pairs=5)
    whole = model(**part_of(batch, slice(None)))
    items = {"lm": (batch["labels"] != -100).sum(), "sentence": torch.tensor(10), "word": torch.tensor(5)}
    shares = [model(**part_of(batch, rows), items_in_batch=items) for rows in (slice(0, 2), slice(2, 5))]
    for loss in ("loss", "lm_loss", "word_loss"):
        close(shares[0][loss] + shares[1][loss], whole[loss])
    halves = model(**batch, items_in_batch={**items, "sentence": torch.tensor(20)})
    close(2 * halves.sentence_loss, model(**batch).sentence_loss)


def test_shares_add_up_where_the_language_model_is_the_only_objective(
    toy_model: MakeModel, toy_batch: MakeBatch
) -> None:
    model, batch = toy_model(), masked_words_of(toy_batch(pairs=5))
    items = {"lm": (batch["labels"] != -100).sum(), "sentence": torch.tensor(1), "word": torch.tensor(1)}
    parts = [{name: value[rows] for name, value in batch.items()} for rows in (slice(0, 2), slice(2, 5))]
    shares = [model(**part, items_in_batch=items) for part in parts]
    close(shares[0].lm_loss + shares[1].lm_loss, model(**batch).lm_loss)
    close(shares[0].loss + shares[1].loss, model(**batch).loss)


def test_words_drawn_with_row_seeds_do_not_depend_on_the_split_of_the_batch(
    toy_model: MakeModel, toy_batch: MakeBatch
) -> None:
    model, batch = toy_model(lm_weight=0), toy_batch()
    whole = model(**part_of(batch, slice(None))).word_loss
    torch.manual_seed(99)
    single = [model(**part_of(batch, slice(row, row + 1))).word_loss for row in range(4)]
    close(torch.stack(single).mean(), whole)
    del batch["example_seeds"]
    assert (model(**part_of(batch, slice(None))).word_loss - whole).abs() > 1e-5


def test_neither_the_bag_nor_special_tokens_are_ever_sampled(
    toy_model: MakeModel, toy_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch, drawn = toy_model(word_negatives=512), toy_batch(), []

    def spy(queries: Tensor, vocabulary: Tensor, bag: Tensor, sampled: Tensor, *rest: Any) -> Any:
        drawn.append(sampled)
        return word_contrast(queries, vocabulary, bag, sampled, *rest)

    monkeypatch.setattr("hictl_hf.models.objective.word_contrast", spy)
    model(**batch)
    for sampled, bag in zip(drawn[0].tolist(), batch["bag"].tolist()):
        # m is more than there are words: all of V∖B but <s> <pad> </s> <unk> <mask> is drawn
        assert set(sampled) - {-1} == set(range(200)) - set(bag) - {0, 1, 2, 3, 199}


def test_the_word_level_reads_the_masked_or_the_clean_text(toy_model: MakeModel, toy_batch: MakeBatch) -> None:
    masked, clean, batch = toy_model(), toy_model(word_level_input="clean"), toy_batch()
    assert (masked(**batch).word_loss - clean(**batch).word_loss).abs() > 1e-5
    batch["input_ids"], batch["labels"] = batch["clean_input_ids"], torch.full_like(batch["labels"], -100)
    close(masked(**batch).word_loss, clean(**batch).word_loss)


def test_the_clean_text_may_be_longer_than_the_masked_one(toy_model: MakeModel, toy_batch: MakeBatch) -> None:
    """The word level of longer clean text is that of a batch in which the masked text is as long."""
    model, batch, longer = toy_model(word_level_input="clean"), toy_batch(seed=0), toy_batch(seed=1)
    clean = {"clean_input_ids": longer["clean_input_ids"], "clean_attention_mask": longer["attention_mask"]}
    found = model(**batch | clean | {"bag": longer["bag"]})
    expected = model(**longer | {"example_seeds": batch["example_seeds"]})
    assert clean["clean_input_ids"].shape != batch["clean_input_ids"].shape
    close(found.word_loss, expected.word_loss)
    close(found.lm_loss, model(**batch).lm_loss)


@pytest.mark.parametrize("through", [False, True])
def test_the_gradient_through_lambda_is_an_option(through: bool, toy_model: MakeModel, toy_batch: MakeBatch) -> None:
    results = []
    for chosen in (False, through):
        model = toy_model(hard_negative_lambda_gradient=chosen, lm_weight=0, word_weight=0, sentence_temperature=0.5)
        model.sentence_probability.record(torch.tensor(0.1))
        output = model(**toy_batch())
        output.loss.backward()
        results.append((output.sentence_loss.detach(), model.projection.weight.grad))
    close(results[0][0], results[1][0])
    assert through != torch.allclose(results[0][1], results[1][1], rtol=1e-3)


@pytest.mark.parametrize("edge", ["nothing masked", "one pair", "empty bag", "equal texts"])
def test_degenerate_batches_have_finite_losses_and_gradients(
    edge: str, toy_model: MakeModel, toy_batch: MakeBatch
) -> None:
    model, batch = toy_model(), toy_batch(pairs=1 if edge == "one pair" else 3)
    model.sentence_probability.record(torch.tensor(0.1))
    if edge == "nothing masked":
        batch["labels"].fill_(-100)
    if edge == "empty bag":
        batch["bag"].fill_(-1)
    if edge == "equal texts":
        batch["sentence_hashes"].fill_(7)
        for name in ("sentence_input_ids", "sentence_attention_mask"):
            batch[name] = batch[name][:1].expand(6, -1)
    outputs = model(**batch)
    outputs.loss.backward()
    zero = {"nothing masked": "lm_loss", "empty bag": "word_loss"}.get(edge, "sentence_loss")
    assert outputs[zero] == 0
    assert all(outputs[loss] > 0 for loss in LOSSES if loss != zero)
    assert outputs.hard_negative_lambda.isfinite()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


def test_under_half_precision_the_contrasts_are_computed_in_fp32(
    toy_model: MakeModel, toy_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch, seen = toy_model(), toy_batch(), {}
    batch["bag"] = batch["bag"][:, :4]

    def spy(queries: Tensor, vocabulary: Tensor, *rest: Any) -> Any:
        seen["words"] = {queries.dtype, vocabulary.dtype}
        return word_contrast(queries, vocabulary, *rest)

    monkeypatch.setattr("hictl_hf.models.objective.word_contrast", spy)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = model(**batch)
    sentences = outputs.sentence_embeddings
    assert sentences.dtype == torch.bfloat16  # otherwise nothing is shown
    negatives = in_batch_negatives(batch["sentence_hashes"])
    assert torch.equal(outputs.sentence_loss, sentence_contrast(sentences.float(), negatives, 0.05)[0])
    assert outputs.sentence_loss.dtype == torch.float32
    assert seen["words"] == {torch.float32}
    assert {outputs[loss].dtype for loss in ("loss", *LOSSES)} == {torch.float32}


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_model_in_half_precision_takes_a_step(toy_model: MakeModel, toy_batch: MakeBatch, pooling: str) -> None:
    model = toy_model(sentence_pooling=pooling).to(torch.bfloat16)
    model.sentence_probability.record(torch.tensor(0.1))
    outputs = model(**toy_batch())
    outputs.loss.backward()
    assert outputs.sentence_loss.dtype == outputs.word_loss.dtype == torch.float32
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


# --- p_avg ----------------------------------------------------------------------------------------------------------


def test_p_avg_is_the_mean_probability_of_the_last_steps(toy_model: MakeModel) -> None:
    # window 3, probabilities 0.1, 0.2, …: means 0.1, 0.15, 0.2, then of 0.2 0.3 0.4 and of 0.3 0.4 0.5
    probability = toy_model().sentence_probability
    assert probability.mean() == 0
    for step, expected in enumerate([0.1, 0.15, 0.2, 0.3, 0.4], start=1):
        probability.record(-torch.tensor(step / 10).log())
        assert probability.mean().item() == pytest.approx(expected)
    assert probability.steps == 5


def test_p_avg_is_written_only_by_record_and_saved_with_the_model(
    tmp_path: Path, toy_model: MakeModel, toy_batch: MakeBatch
) -> None:
    model, batch = toy_model(), toy_batch()
    for loss in (0.5, 0.25):
        model.sentence_probability.record(torch.tensor(loss))
    before = {name: value.clone() for name, value in model.sentence_probability.state_dict().items()}
    assert before["steps"] == 2
    for mode in (True, False):
        model.train(mode)(**batch).loss.backward()
        assert all(torch.equal(value, before[name]) for name, value in model.sentence_probability.state_dict().items())
    model.save_pretrained(tmp_path)
    loaded = HictlForPreTraining.from_pretrained(tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in loaded.sentence_probability.state_dict().items())
    close(loaded(**batch).sentence_loss, model(**batch).sentence_loss)


def test_negatives_move_only_once_a_probability_is_known_and_only_if_wanted(
    toy_model: MakeModel, toy_batch: MakeBatch
) -> None:
    model, plain, batch = toy_model(), toy_model(hard_negatives=False), toy_batch()
    before = model(**batch)
    assert before.hard_negative_lambda == 1
    for each in (model, plain):
        each.sentence_probability.record(torch.tensor(0.01))
    after, never = model(**batch), plain(**batch)
    assert after.hard_negative_lambda < 0.99 and after.sentence_loss > before.sentence_loss
    assert never.hard_negative_lambda == 1
    close(never.sentence_loss, before.sentence_loss)


# --- export ---------------------------------------------------------------------------------------------------------


def test_the_exported_encoder_is_stock_xlm_r_with_our_representation_as_its_pooler(
    tmp_path: Path, toy_model: MakeModel, toy_batch: MakeBatch, transformers_warnings: pytest.LogCaptureFixture
) -> None:
    model, batch = toy_model(seed=5), toy_batch()
    inputs = {"input_ids": batch["sentence_input_ids"], "attention_mask": batch["sentence_attention_mask"]}
    export_encoder(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "xlm-roberta" and "auto_map" not in config
    own = {field.name for field in fields(HictlConfig)} - {field.name for field in fields(XLMRobertaConfig)}
    assert own & config.keys() == {name for name in own if name.startswith("embedding_")}  # how it is read
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    encoder, report = load(AutoModel, tmp_path)
    assert type(encoder) is XLMRobertaModel and report == {} and not transformers_warnings.messages
    outputs = encoder(**inputs)
    assert torch.equal(outputs.last_hidden_state, model.roberta(**inputs)[0])
    close(outputs.pooler_output, model.encode_sentences(*inputs.values()).tanh())
    assert outputs.pooler_output.std() > 0.01


def test_for_a_projection_of_another_size_the_exported_pooler_is_the_identity(
    tmp_path: Path, toy_model: MakeModel, toy_batch: MakeBatch
) -> None:
    model, batch = toy_model(projection_size=7), toy_batch()
    outputs = model(**batch)
    assert outputs.sentence_embeddings.shape == (8, 7) and outputs.sentence_loss > 0
    export_encoder(model, tmp_path)
    encoder, report = load(AutoModel, tmp_path)
    assert report == {}
    states, pooled = encoder(batch["input_ids"]).to_tuple()
    assert torch.equal(states, model.roberta(batch["input_ids"])[0])
    close(pooled, states[:, 0].tanh())


def test_the_export_leaves_the_model_alone_and_keeps_its_precision(tmp_path: Path, toy_model: MakeModel) -> None:
    model = toy_model().to(torch.bfloat16)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    export_encoder(model, tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert {value.dtype for value in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}


def test_stock_classifiers_start_from_the_export(tmp_path: Path, toy_model: MakeModel, toy_batch: MakeBatch) -> None:
    model, ids = toy_model(), toy_batch()["input_ids"]
    export_encoder(model, tmp_path)
    stock, report = load(XLMRobertaForSequenceClassification, tmp_path)
    assert report["missing_keys"] == NEW_IN_CLASSIFIER
    assert torch.equal(stock.roberta(ids)[0], model.roberta(ids)[0])


# --- code on the Hub ------------------------------------------------------------------------------------------------

ELSEWHERE = """
import sys
from pathlib import Path

sys.modules["hictl_hf"] = None  # as if it were not installed
import torch, transformers

torch.set_num_threads(1)
folders, inputs, outputs = Path(sys.argv[1]), torch.load(sys.argv[2]), {}
for name, auto in {
    "encoder": "AutoModel",
    "AutoModel": "AutoModel",
    "AutoModelForPreTraining": "AutoModelForPreTraining",
    "AutoModelForMaskedLM": "AutoModelForMaskedLM",
    "AutoModelForSequenceClassification": "AutoModelForSequenceClassification",
}.items():
    folder = {"encoder": "encoder", "AutoModelForSequenceClassification": "classifier"}.get(name, "pretrained")
    model = getattr(transformers, auto).from_pretrained(folders / folder, trust_remote_code=name != "encoder")
    with torch.no_grad():
        if name == "AutoModelForPreTraining":
            outputs["losses"] = model(**inputs).loss
            model.save_pretrained(folders / "saved again")
        outputs[name] = model(inputs["input_ids"])[0]
    outputs[f"class of {name}"] = f"{type(model).__module__.split('.')[0]}.{type(model).__name__}"
again = transformers.AutoModelForPreTraining.from_pretrained(folders / "saved again", trust_remote_code=True)
with torch.no_grad():
    outputs["saved again"] = again(**inputs).loss
torch.save(outputs, folders / "outputs.pt")
"""


@pytest.fixture(scope="module")
def elsewhere(
    tmp_path_factory: pytest.TempPathFactory, toy_model: MakeModel, toy_batch: MakeBatch
) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """Folder; what models saved there give in a process that knows nothing of us; and what they give here."""
    folders, batch = tmp_path_factory.mktemp("folders"), toy_batch()
    model, classifier = toy_model(seed=6), toy_model(HictlForSequenceClassification, seed=7)
    model.sentence_probability.record(torch.tensor(0.1))
    model.save_pretrained(folders / "pretrained")
    classifier.save_pretrained(folders / "classifier")
    export_encoder(model, folders / "encoder")
    torch.save(batch, folders / "inputs.pt")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["HF_HOME"] = str(folders / "home")
    subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(folders), str(folders / "inputs.pt")],
        cwd=tmp_path_factory.mktemp("elsewhere"), env=environment, check=True, timeout=300,
    )  # fmt: skip
    hidden = model.roberta(batch["input_ids"])[0]
    here = {
        "encoder": hidden,
        "AutoModel": hidden,
        "AutoModelForPreTraining": model(batch["input_ids"])[0],
        "AutoModelForMaskedLM": model(batch["input_ids"])[0],
        "AutoModelForSequenceClassification": classifier(batch["input_ids"])[0],
        "losses": model(**batch).loss,
        "saved again": model(**batch).loss,
    }
    return folders, torch.load(folders / "outputs.pt"), here


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("encoder", "transformers.XLMRobertaModel"),
        ("AutoModel", "transformers_modules.HictlModel"),
        ("AutoModelForPreTraining", "transformers_modules.HictlForPreTraining"),
        ("AutoModelForMaskedLM", "transformers_modules.HictlForMaskedLM"),
        ("AutoModelForSequenceClassification", "transformers_modules.HictlForSequenceClassification"),
    ],
)
def test_saved_models_load_where_the_package_is_not_installed(
    name: str, cls: str, elsewhere: tuple[Path, dict[str, Any], dict[str, Any]]
) -> None:
    _, there, here = elsewhere
    assert there[f"class of {name}"] == cls
    close(there[name], here[name].detach())


def test_all_losses_are_the_same_where_the_package_is_not_installed(
    elsewhere: tuple[Path, dict[str, Any], dict[str, Any]],
) -> None:
    _, there, here = elsewhere
    close(there["losses"], here["losses"].detach())


def test_a_model_loaded_from_code_on_the_hub_can_be_saved_again(
    elsewhere: tuple[Path, dict[str, Any], dict[str, Any]],
) -> None:
    folders, there, here = elsewhere
    close(there["saved again"], here["saved again"].detach())
    assert {path.name for path in (folders / "pretrained").glob("*.py")} == HUB_FILES
    for name in HUB_FILES:
        assert (folders / "saved again" / name).read_text() == (folders / "pretrained" / name).read_text()
    configs = [json.loads((folders / name / "config.json").read_text()) for name in ("saved again", "pretrained")]
    assert configs[0]["auto_map"] == configs[1]["auto_map"] and configs[0]["model_type"] == "hictl"
    loaded, report = load(HictlForPreTraining, folders / "saved again")  # the registered class wins over the copy
    assert type(loaded) is HictlForPreTraining and report == {}
