"""Tokens of padded batches in one buffer: where each lies, and that the encoder gives it what padding would."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModel, PreTrainedModel, XLMRobertaForMaskedLM, XLMRobertaModel

from hictl_hf import HictlForPreTraining, HictlModel, export_encoder
from hictl_hf.models.packing import PackedAttention, PackedRows, accepts_packed_rows
from hictl_hf.models.row_attention import attend_within_rows

Batches = dict[str, tuple[Tensor, Tensor | None]]
MakeModel = Callable[..., PreTrainedModel]
MakeBatch = Callable[..., dict[str, Tensor]]
PADDING = 1


def random_batches(seed: int, vocab_size: int = 200) -> Batches:
    """Rows of random words padded at the right, at the left, not at all, and at both sides."""
    random = torch.Generator().manual_seed(seed)

    def batch(rows: int, longest: int, side: str) -> tuple[Tensor, Tensor | None]:
        ids = torch.randint(4, vocab_size, (rows, longest), generator=random)
        if side == "nowhere":
            return ids, None
        lengths = torch.randint(1, longest + 1, (rows, 1), generator=random)
        begins = {"right": torch.zeros_like(lengths), "left": longest - lengths, "both": (longest - lengths) // 2}[side]
        mask = (torch.arange(longest) >= begins) & (torch.arange(longest) < begins + lengths)
        return ids.masked_fill(~mask, PADDING), mask.long()

    shapes = {"right": (7, 11), "left": (6, 9), "nowhere": (3, 5), "both": (4, 8)}
    return {side: batch(*shape, side) for side, shape in shapes.items()}


def mask_of(ids: Tensor, mask: Tensor | None) -> Tensor:
    return torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()


# --- where the tokens lie -------------------------------------------------------------------------------------------


@pytest.fixture
def worked_by_hand() -> tuple[Batches, PackedRows]:
    """Lengths as given 3 2 | 1 2 | 2, so in the buffer: left's first row, three rows of two, right's first row."""
    batches: Batches = {
        "right": (torch.tensor([[5, 6, 7, 1], [8, 9, 1, 1]]), torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])),
        "left": (torch.tensor([[1, 1, 3], [1, 4, 2]]), torch.tensor([[0, 0, 1], [0, 1, 1]])),
        "whole": (torch.tensor([[10, 11]]), None),
    }
    return batches, PackedRows(batches)


def test_rows_lie_one_after_another_the_short_ones_first(worked_by_hand: tuple[Batches, PackedRows]) -> None:
    _, rows = worked_by_hand
    assert rows.lengths == [1, 2, 2, 2, 3]
    assert rows.input_ids.tolist() == [3, 8, 9, 4, 2, 10, 11, 5, 6, 7]
    assert rows.position_ids.tolist() == [0, 0, 1, 0, 1, 0, 1, 0, 1, 2]


def test_first_and_chosen_tokens_are_found_by_their_places(worked_by_hand: tuple[Batches, PackedRows]) -> None:
    batches, rows = worked_by_hand
    assert {name: first.tolist() for name, first in rows.first.items()} == {
        "right": [7, 1],
        "left": [0, 3],
        "whole": [5],
    }
    read = {
        "words": ("right", batches["right"][0] > 6),  # 7, 8, 9
        "ends": ("left", torch.tensor([[0, 1, 1], [0, 0, 1]]).bool()),  # 3 and 2, and padding
        "none": ("whole", torch.zeros(1, 2, dtype=torch.bool)),
        "first": ("right", None),
    }
    rows = PackedRows(batches, read, torch.tensor([2**40, 5]))
    assert rows.sizes == [3, 2, 0, 2] and rows.known == [2**40, 5]
    assert rows.attending == [1, 3, 1, 0, 2]
    assert rows.kept.tolist() == [0, 1, 1, 2, 4, 7, 9]  # 3 | 8 8 9 | 2 | 5 7
    assert rows.kept[rows.order].tolist() == [9, 1, 2, 0, 4, 7, 1]
    assert {use: cells.tolist() for use, cells in rows.cells.items()} == {
        "words": [2, 4, 5],
        "ends": [2, 5],
        "none": [],
    }


def test_a_buffer_becomes_one_padded_batch(worked_by_hand: tuple[Batches, PackedRows]) -> None:
    _, rows = worked_by_hand
    padded, mask = rows.padded(rows.input_ids[:, None].double())
    assert padded[..., 0].tolist() == [[3, 0, 0], [8, 9, 0], [4, 2, 0], [10, 11, 0], [5, 6, 7]]
    assert mask.tolist() == [[True, False, False], *[[True, True, False]] * 3, [True] * 3]


def test_means_of_rows_are_summed_in_fp32() -> None:
    rows = PackedRows({"long": (torch.ones(2, 600).long(), None)})
    means = rows.means("long", torch.ones(1200, 3, dtype=torch.bfloat16))  # which counts to 256
    assert means.dtype == torch.float32 and means.tolist() == [[1, 1, 1]] * 2


@pytest.mark.parametrize("seed", range(5))
def test_every_token_is_in_the_buffer_once_and_found_again(seed: int) -> None:
    batches = random_batches(seed)
    rows = PackedRows(batches)
    assert rows.lengths == sorted(rows.lengths) and len(set(rows.lengths)) > 3
    assert sum(rows.lengths) == len(rows.input_ids) == len(rows.position_ids)
    assert torch.equal(rows.position_ids, torch.cat([torch.arange(length) for length in rows.lengths]))
    assert torch.equal(torch.cat([*rows.indices.values()]).sort().values, torch.arange(len(rows.input_ids)))
    for name, (ids, mask) in batches.items():
        tokens = mask_of(ids, mask)
        assert torch.equal(rows.input_ids[rows.indices[name]], ids[tokens])
        leading = torch.stack([row[there][0] for row, there in zip(ids, tokens)])
        assert torch.equal(rows.input_ids[rows.first[name]], leading)
        assert (rows.position_ids[rows.first[name]] == 0).all()
        chosen = tokens & (ids % 3 == 0)
        assert 0 < chosen.sum() < tokens.sum()
        some = PackedRows(batches, {"some": (name, chosen)})
        assert torch.equal(some.input_ids[some.kept[some.order]], ids[chosen])
        assert torch.equal(ids.flatten()[some.cells["some"]], ids[chosen])
    padded, mask = rows.padded(rows.input_ids[:, None])
    assert torch.equal(padded[..., 0][mask], rows.input_ids)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_token_that_two_uses_read_is_kept_for_each(toy_model: MakeModel, attention: str) -> None:
    """Here as many are kept as there are tokens: all but the last of each row, and the first once more."""
    model, (ids, mask) = toy_model(attn_implementation=attention), random_batches(3)["right"]
    assert mask is not None
    most = mask.cumsum(1) < mask.sum(1, keepdim=True)
    rows = PackedRows({"right": (ids, mask)}, {"most": ("right", most), "first": ("right", None)})
    assert rows.kept is not None and len(rows.kept) == len(rows.input_ids)
    expected = model.encode(PackedRows({"right": (ids, mask)}))[0][rows.kept[rows.order]]
    torch.testing.assert_close(model.encode(rows)[0], expected)


@pytest.mark.parametrize("row", [0, 2])
def test_a_row_without_a_token_is_refused(row: int) -> None:
    mask = torch.ones(3, 4, dtype=torch.long)
    mask[row] = 0  # its "cls" would be that of another row
    with pytest.raises(ValueError, match="'sentences' has a row without a token"):
        PackedRows({"masked": (torch.ones(2, 4).long(), None), "sentences": (torch.ones(3, 4).long(), mask)})


def test_masks_and_labels_of_another_shape_than_their_ids_are_refused() -> None:
    ids = torch.ones(3, 4).long()  # a mask of fewer columns would shift the tokens of all rows but the first
    for mask in (ids[:, :-1], ids[:2], ids[:, None, :, None] * ids[:, None, None, :]):
        with pytest.raises(ValueError, match=r"'sentences' has ids of shape \(3, 4\) and .* attention mask is \("):
            PackedRows({"sentences": (ids, mask)})
    with pytest.raises(ValueError, match=r"the shape of its labels is \(3, 3\); allowed are equal ones"):
        PackedRows({"masked": (ids, None)}, {"tokens": ("masked", ids[:, 1:].bool())})


# --- attention within rows ------------------------------------------------------------------------------------------


def attend_one_by_one(
    lengths: list[int], attending: list[int], query: Tensor, key: Tensor, value: Tensor, dropout: float, scaling: float
) -> Tensor:
    """(k, h, d) softmax(scaling q kᵀ) v of each row and head alone."""
    assert not dropout
    outputs = []
    for q, k, v in zip(query.split(attending), key.split(lengths), value.split(lengths)):
        scores = torch.einsum("ihd,jhd->hij", q, k) * scaling
        outputs.append(torch.einsum("hij,jhd->ihd", scores.softmax(-1), v))
    return torch.cat(outputs)


@pytest.mark.parametrize(
    ("lengths", "attending"),
    [
        ([1], [1]),
        ([6], [6]),
        ([4, 4, 4], [4, 4, 4]),
        ([1, 1, 2, 3, 3, 3, 7], [1, 1, 2, 3, 3, 3, 7]),
        ([1, 2, 3, 4], [1, 2, 3, 4]),
        ([4, 4, 4], [1, 1, 1]),
        ([1, 2, 3, 3, 3, 7], [1, 0, 1, 1, 2, 5]),
        ([2, 2, 5, 5], [0, 0, 3, 0]),
    ],
)
def test_rows_attend_to_themselves_alone_with_the_right_gradients(lengths: list[int], attending: list[int]) -> None:
    results = []
    for attend in (attend_within_rows, attend_one_by_one):
        torch.manual_seed(3)
        states = [
            torch.randn(tokens, 2, 5, dtype=torch.float64).requires_grad_()
            for tokens in (sum(attending), sum(lengths), sum(lengths))
        ]
        output = attend(lengths, attending, *states, 0.0, 0.7)  # another scale than 1 / √5
        gradients = torch.autograd.grad((output * torch.randn(output.shape, dtype=torch.float64)).sum(), states)
        results.append([output.detach(), *gradients])
    if max(lengths) > 1:  # one token has no choice
        assert min(float(gradient.abs().max()) for gradient in results[1]) > 1e-3
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


def test_on_a_cpu_half_precision_attends_in_fp32_and_comes_back() -> None:
    lengths = [2, 3, 3, 5]
    torch.manual_seed(3)
    states = [torch.randn(13, 2, 8, dtype=torch.bfloat16) for _ in range(3)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = attend_within_rows(lengths, lengths, *states, 0.0, 8**-0.5)
    expected = attend_one_by_one(lengths, lengths, *(part.float() for part in states), 0.0, 8**-0.5)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, expected.bfloat16(), rtol=2**-8, atol=1e-6)  # no more than the last rounding


def test_each_length_is_one_call_without_a_mask(toy_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows, calls = toy_model(), PackedRows(random_batches(0)), []

    def spy(query: Tensor, *rest: Any, **settings: Any) -> Tensor:
        calls.append((query.shape[0], query.shape[2]))
        assert settings.get("attn_mask") is None and len(rest) == 2
        return attention(query, *rest, **settings)

    attention = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    model.encode(rows)
    counts = [(rows.lengths.count(length), length) for length in sorted({*rows.lengths})]
    assert max(count for count, _ in counts) > 2
    assert calls == counts * 2  # two layers


# --- through the encoder --------------------------------------------------------------------------------------------


@pytest.fixture(params=["sdpa", "eager"])
def model(request: pytest.FixtureRequest, toy_model: MakeModel) -> PreTrainedModel:
    """Large weights, so that rows differ; packed, and with an attention that knows only padded rows."""
    made = toy_model(initializer_range=0.3).double()
    made.set_attn_implementation(request.param)
    return made


def padded_states(model: PreTrainedModel, ids: Tensor, mask: Tensor | None) -> Tensor:
    """(tokens, d) of an ordinary call, without padding."""
    return model.roberta(ids, mask)[0][mask_of(ids, mask)]


def test_hidden_states_are_those_of_padded_calls_wherever_the_padding_is(model: PreTrainedModel) -> None:
    batches = random_batches(1)
    rows = PackedRows(batches)
    hidden, vocabulary = model.encode(rows)
    assert hidden.shape == (len(rows.input_ids), 32)
    assert torch.equal(vocabulary, model.get_input_embeddings().weight)
    for name, (ids, mask) in batches.items():
        expected = padded_states(model, ids, mask)
        assert expected.std(0).min() > 0.01
        torch.testing.assert_close(hidden[rows.indices[name]], expected, rtol=1e-10, atol=1e-10)


def test_gradients_are_those_of_padded_calls(model: PreTrainedModel) -> None:
    batches = random_batches(2)
    rows = PackedRows(batches)
    hidden, _ = model.encode(rows)
    packed = torch.cat([hidden[rows.indices[name]] for name in batches])
    padded = torch.cat([padded_states(model, *batch) for batch in batches.values()])
    direction = torch.randn(packed.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parameters = dict(model.roberta.named_parameters())
    one, other = (
        dict(zip(parameters, torch.autograd.grad((states * direction).sum(), [*parameters.values()])))
        for states in (packed, padded)
    )
    assert other["embeddings.word_embeddings.weight"].abs().max() > 0.1
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-9)


def test_states_that_are_read_are_those_among_all(model: PreTrainedModel) -> None:
    batches = random_batches(7)
    everything, some = PackedRows(batches), batches["right"][0] % 3 == 0
    read = {"left": ("left", None), "some": ("right", some), "again": ("left", None), "right": ("right", None)}
    rows = PackedRows(batches, read)
    parameters = [*model.roberta.parameters()]
    results = []
    for hidden in (model.encode(everything)[0][rows.kept[rows.order]], model.encode(rows)[0]):
        direction = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        results.append([hidden.detach(), *torch.autograd.grad((hidden * direction).sum(), parameters)])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("copied", [False, True], ids=["", "the last layer copied"])
def test_in_the_last_layer_only_tokens_that_are_read_attend(copied: bool, toy_model: MakeModel) -> None:
    model, batches, seen = toy_model(), random_batches(8), []
    everything = model.encode(PackedRows(batches))[0].shape
    layers, nothing = model.roberta.encoder.layer, torch.zeros(7, 11, dtype=torch.bool)
    one = nothing.clone().index_put_(tuple(torch.tensor([[0], [0]])), torch.tensor(True))
    for name, chosen, number in (("right", one, 1), ("right", nothing, 0), ("both", None, 4)):
        rows = PackedRows(batches, {"some": (name, chosen)})
        if copied:
            layers.append(copy.deepcopy(layers[-1]))
        seen.clear()
        parts = [part for layer in layers for part in (layer.attention.self.query, layer.intermediate)]
        spies = [part.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1])) for part in parts]
        hidden, _ = model.encode(rows)
        for spy in spies:
            spy.remove()
        in_last = number or len(rows.input_ids)  # where nothing is read, all go on
        assert seen == [len(rows.input_ids)] * 2 * (len(layers) - 1) + [in_last] * 2
        assert hidden.shape == (number, 32)
        assert model.encode(PackedRows(batches))[0].shape == everything


def test_a_padding_id_within_a_row_learns_nothing(model: PreTrainedModel) -> None:
    ids = torch.tensor([[5, 6, PADDING, 7]])
    hidden, _ = model.encode(PackedRows({"rows": (ids, None)}))
    hidden.square().sum().backward()
    learnt = model.get_input_embeddings().weight.grad.abs().sum(-1)
    assert learnt.nonzero().flatten().tolist() == [5, 6, 7]


def test_a_row_never_sees_another(model: PreTrainedModel) -> None:
    ids, mask = random_batches(3)["right"]
    changed = ids.clone()
    changed[2] = torch.where(mask[2].bool(), ids[2] % 195 + 4, PADDING)
    assert (changed[2] != ids[2])[mask[2].bool()].all()
    rows = PackedRows({"right": (ids, mask)}, {"row": ("right", (torch.arange(len(ids)) == 2)[:, None] & mask.bool())})
    before, after = (model.encode(PackedRows({"right": (each, mask)}))[0] for each in (ids, changed))
    of_row = torch.zeros(len(before), dtype=torch.bool)
    of_row[rows.kept] = True
    assert (before - after)[of_row].abs().amax(-1).min() > 0.1
    torch.testing.assert_close(before[~of_row], after[~of_row], rtol=0, atol=1e-12)


def test_sentences_beside_padding_have_the_vectors_they_have_alone(model: PreTrainedModel) -> None:
    ids, mask = random_batches(4)["left"]
    together = model.encode_sentences(ids, mask)
    alone = [model.encode_sentences(row[there][None]) for row, there in zip(ids, mask.bool())]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-10, atol=1e-10)


def test_the_losses_of_a_padding_attention_are_those_of_a_packed_one(
    toy_model: MakeModel, toy_batch: MakeBatch
) -> None:
    results = []
    for implementation in ("sdpa", "eager"):
        model = toy_model(initializer_range=0.2, word_level_input="clean").double()
        model.set_attn_implementation(implementation)
        model.sentence_probability.record(torch.tensor(0.5))
        outputs = model(**toy_batch(padding=2))
        outputs.loss.backward()
        losses = outputs.lm_loss, outputs.sentence_loss, outputs.word_loss
        results.append([torch.stack(losses).detach(), *(weight.grad for weight in model.parameters())])
        assert model.config._attn_implementation == model.roberta.config._attn_implementation == implementation
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-10)


def test_padded_calls_are_bit_for_bit_what_they_were_before_the_first_packed_one(
    toy_model: MakeModel, toy_batch: MakeBatch
) -> None:
    model, batch = toy_model(), toy_batch(padding=2)

    def calls() -> list[Tensor]:
        ids, mask = batch["input_ids"], batch["attention_mask"]
        with torch.no_grad():
            return [
                model(ids, mask, labels=batch["labels"]).loss,
                model(ids, mask)[0],
                model(ids)[0],
                model.roberta(ids)[0],
            ]

    before = calls()
    model(**batch)
    assert all(map(torch.equal, before, calls()))
    assert not torch.equal(before[1], before[2])  # the mask is heard


def test_in_half_precision_packed_states_are_close_to_those_of_fp32(toy_model: MakeModel) -> None:
    model, batches = toy_model(initializer_range=0.1), random_batches(5)
    rows = PackedRows(batches)
    expected, _ = model.encode(rows)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden, _ = model.encode(rows)
        padded = torch.cat([padded_states(model, *batch) for batch in batches.values()])
    packed = torch.cat([hidden[rows.indices[name]] for name in batches])
    expected = torch.cat([expected[rows.indices[name]] for name in batches])
    errors = [((states - expected).norm() / expected.norm()).item() for states in (packed, padded)]
    assert 1e-4 < errors[0] < 0.02  # there is half precision in it, and not more than must be
    assert errors[0] < 1.5 * errors[1]


# --- training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_activations_change_no_gradient(
    reentrant: bool, toy_model: MakeModel, toy_batch: MakeBatch
) -> None:
    results, passes = [], []
    for checkpointing in (False, True):
        model = toy_model(initializer_range=0.2, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        calls: list[int] = []
        model.roberta.encoder.layer[1].attention.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        torch.manual_seed(4)
        loss = model(**toy_batch()).loss
        loss.backward()
        passes.append(len(calls))
        results.append([loss.detach(), *(weight.grad for weight in model.parameters())])
    assert passes == [1, 2]  # the second was made again
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dropout", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_dropout_is_at_work_and_repeatable(dropout: str, toy_model: MakeModel) -> None:
    model, rows = toy_model(initializer_range=0.3, **{dropout: 0.3}), PackedRows(random_batches(6))

    def states(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return model.encode(rows)[0].detach()

    assert torch.equal(states(1), states(2))  # none in evaluation
    evaluated = states(1)
    model.train()
    assert torch.equal(states(1), states(1))
    assert not torch.equal(states(1), states(2)) and not torch.equal(states(1), evaluated)


def test_the_backward_pass_of_one_call_does_not_depend_on_calls_after_it(toy_model: MakeModel) -> None:
    gradients = []
    for between in (False, True):
        model, batches = toy_model(initializer_range=0.2).train(), random_batches(7)
        model.gradient_checkpointing_enable({"use_reentrant": False})
        loss = model.encode(PackedRows(batches, {"left": ("left", None)}))[0].square().sum()
        if between:
            model.encode(PackedRows(batches))
        loss.backward()
        gradients.append([weight.grad for weight in model.roberta.encoder.parameters()])
    torch.testing.assert_close(*gradients)


# --- what a call leaves on the model --------------------------------------------------------------------------------


def state_of(model: PreTrainedModel) -> list[Any]:
    """What a call could change on a model: settings, hooks, classes and attributes of all modules."""
    modules = [
        (
            name,
            type(module),
            module.training,
            {key: repr(value) for key, value in vars(module).items() if "hook" in key},
        )
        for name, module in model.named_modules()
    ]
    attributes = [sorted(vars(module)) for module in model.modules()]
    configs = [module.config for module in model.modules() if hasattr(module, "config")]
    return [modules, attributes, [(config.to_dict(), config._attn_implementation) for config in configs]]


class Stopped(Exception):
    pass


def stop(*_: Any) -> None:
    raise Stopped


@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_no_call_leaves_anything_on_the_model(
    training: bool, checkpointing: bool, toy_model: MakeModel, toy_batch: MakeBatch
) -> None:
    model, batch = toy_model().train(training), toy_batch()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    before = state_of(model)
    assert before[2][0][1] == "sdpa"
    model(**batch).loss.backward()
    assert state_of(model) == before
    model.encode_sentences(batch["sentence_input_ids"], batch["sentence_attention_mask"])
    assert state_of(model) == before
    for part in (model.roberta.encoder.layer[1].attention.output, model.projection, model.lm_head.dense):
        spy = part.register_forward_pre_hook(stop)
        with pytest.raises(Stopped):
            model(**batch)
        spy.remove()
        assert state_of(model) == before


def test_a_copy_of_a_used_model_is_packed_and_gives_the_same(toy_model: MakeModel, toy_batch: MakeBatch) -> None:
    model, batch = toy_model(), toy_batch()
    expected = model(**batch).loss
    other = copy.deepcopy(model)
    assert torch.equal(other(**batch).loss, expected) and accepts_packed_rows(other)


def test_an_encoder_of_other_attention_blocks_gets_padded_rows(toy_model: MakeModel, toy_batch: MakeBatch) -> None:
    model, batch = toy_model(), toy_batch()
    expected = model(**batch)
    stock = XLMRobertaModel(model.roberta.config, add_pooling_layer=False).eval()
    stock.load_state_dict(model.roberta.state_dict())
    assert type(stock.encoder.layer[0].attention) is not PackedAttention
    model.roberta = stock
    model.tie_weights()
    torch.testing.assert_close(model(**batch).loss, expected.loss)


# --- saving ---------------------------------------------------------------------------------------------------------


def test_what_is_saved_after_a_packed_pass_loads_with_stock_attention(
    tmp_path: Path, toy_model: MakeModel, toy_batch: MakeBatch
) -> None:
    model, batch = toy_model(seed=2), toy_batch()
    model(**batch)
    model.save_pretrained(tmp_path / "checkpoint")
    export_encoder(model, tmp_path / "encoder")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    expected = model.roberta(ids, mask)[0]
    for folder, cls in {
        "checkpoint": (HictlForPreTraining, HictlModel, AutoModel, XLMRobertaForMaskedLM, XLMRobertaModel),
        "encoder": (AutoModel, XLMRobertaModel),
    }.items():
        assert "packed" not in (tmp_path / folder / "config.json").read_text()
        assert not [name for name in json.loads((tmp_path / folder / "config.json").read_text()) if "attn" in name]
        for each in cls:
            loaded = each.from_pretrained(tmp_path / folder)
            assert loaded.config._attn_implementation == "sdpa"
            encoder = getattr(loaded, "roberta", loaded)
            torch.testing.assert_close(encoder(ids, mask)[0], expected)
