"""Beam search finds what `generate` finds, whatever stands beside a sentence in the batch."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from hictl_hf.errors import BadInput
from hictl_hf.models.modeling_hictl_translation import HictlForConditionalGeneration
from hictl_hf.translation.beam_search import BeamSearchConfig, Hypothesis, RoomyLayer, search

PADDING, END, FIRST_WORD = 1, 2, 4
LANGUAGES = ["de", "fr"]
CUT = [0, 1, 2, 3, *range(20, 150, 2)]  # 69 words, not a multiple of a group
LIMIT = 12
END_BIAS = (-1.5, -4.5, 0.0, 0.0, -2.0)  # by seed: with it hypotheses end here and there
NEVER = -100.0


@pytest.fixture(scope="module")
def sharp_model(toy_model: Callable[..., PreTrainedModel]) -> Callable[..., HictlForConditionalGeneration]:
    """`sharp_model(seed=0, cut=False, end=None, **changes)`: confident, different at each step, ending now and then."""

    def make(
        seed: int = 0, cut: bool = False, end: float | None = None, **changes: Any
    ) -> HictlForConditionalGeneration:
        changes = {"target_languages": LANGUAGES, "decoder_layers": 2, "cls_bias_scale": "fixed", **changes}
        size = len(CUT) if cut else None
        model = toy_model(HictlForConditionalGeneration, seed=seed, decoder_vocab_size=size, **changes)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.dim() == 2:
                    weight.mul_(8 if "embeddings" in name else 6)
            model.lm_head.weight.mul_(0.5)
            model.lm_head.weight[END].mul_(6)
            model.lm_head.bias[END] = END_BIAS[seed] if end is None else end
            if cut:
                model.target_token_ids.copy_(torch.tensor(CUT))
        model.generation_config.suppress_tokens = [PADDING, FIRST_WORD + 1, len(model.target_token_ids) - 1]
        return model

    return make


def batch_of(lengths: Sequence[int], seed: int = 0, left: bool = False) -> tuple[Tensor, Tensor]:
    """Random sources and their mask, (n, S)."""
    random = torch.Generator().manual_seed(seed)
    rows = [torch.randint(FIRST_WORD, 199, (length,), generator=random) for length in lengths]
    for row in rows:
        row[0], row[-1] = 0, END
    side = (lambda row: (max(lengths) - len(row), 0)) if left else (lambda row: (0, max(lengths) - len(row)))
    ids = torch.stack([F.pad(row, side(row), value=PADDING) for row in rows])
    mask = torch.stack([F.pad(torch.ones_like(row), side(row)) for row in rows])
    return ids, mask


def generated(
    model: HictlForConditionalGeneration, ids: Tensor, mask: Tensor, starts: Tensor, settings: BeamSearchConfig
) -> list[list[Hypothesis]]:
    """What `generate` finds, in our form; greedy search has no scores, they are 0."""
    outputs = model.generate(
        ids, attention_mask=mask, start_ids=starts, num_beams=settings.num_beams, early_stopping=settings.num_beams > 1,
        length_penalty=settings.length_penalty, max_new_tokens=settings.max_length,
        num_return_sequences=settings.best, return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    rows = [row[: (row + [END]).index(END) + 1] for row in outputs.sequences[:, 1:].tolist()]
    scores = outputs.sequences_scores.tolist() if settings.num_beams > 1 else [0.0] * len(rows)
    found = [Hypothesis(row, score) for row, score in zip(rows, scores)]
    return [found[at : at + settings.best] for at in range(0, len(found), settings.best)]


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]], scores: bool = True) -> None:
    assert [[each.tokens for each in row] for row in found] == [[each.tokens for each in row] for row in expected]
    if scores:
        for row, other in zip(found, expected):
            assert [each.score for each in row] == pytest.approx([each.score for each in other], abs=2e-5)


def exactly(limit: int = LIMIT, **settings: Any) -> BeamSearchConfig:
    """The same limit for every source."""
    return BeamSearchConfig(max_length=limit, max_length_a=0, max_length_b=limit, **settings)


# --- the same as generate ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("beams", [2, 3, 4, 5])
def test_all_hypotheses_and_scores_are_those_of_generate(
    sharp_model: Callable[..., HictlForConditionalGeneration], beams: int, penalty: float
) -> None:
    lengths = set()
    for seed in range(5):
        model = sharp_model(seed)
        ids, mask = batch_of([9, 3, 12, 5, 7, 4], seed)
        starts = model.start_ids_of(["de", "fr", "fr", "de", "de", "fr"])
        settings = exactly(num_beams=beams, best=beams, length_penalty=penalty)
        found = search(model, ids, mask, starts, settings)
        assert_same(found, generated(model, ids, mask, starts, settings))
        assert all(a.score >= b.score for row in found for a, b in zip(row, row[1:])), "not in order"
        lengths |= {len(each.tokens) for row in found for each in row}
    assert len(lengths) > 6 and LIMIT in lengths, "hypotheses should end here and there, and at the limit"


@pytest.mark.parametrize("seed", range(3))
def test_one_beam_is_greedy_search(sharp_model: Callable[..., HictlForConditionalGeneration], seed: int) -> None:
    model, (ids, mask) = sharp_model(seed), batch_of([9, 3, 12, 5], seed)
    starts = model.start_ids_of(["fr"] * 4)
    found = search(model, ids, mask, starts, exactly(num_beams=1))
    assert_same(found, generated(model, ids, mask, starts, exactly(num_beams=1)), scores=False)
    for row, tokens in enumerate(each.tokens for (each,) in found):  # scores by one pass over all tokens
        labels = torch.tensor([tokens])
        with torch.no_grad():
            logits = model(ids[row, None], mask[row, None], labels=labels, start_ids=starts[:1]).logits
        chosen = logits.log_softmax(-1)[0].gather(-1, model.target_ids(labels).T)
        assert found[row][0].score == pytest.approx(float(chosen.sum()) / len(tokens), abs=2e-5)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("bias", ["none", "dot", "cosine"])
def test_every_bias_and_a_cut_vocabulary_are_those_of_generate(
    sharp_model: Callable[..., HictlForConditionalGeneration], bias: str, cut: bool
) -> None:
    changes = {"cls_bias_temperature": 0.2} if bias == "cosine" else {}
    model, settings = sharp_model(1, cut, cls_bias=bias, **changes), exactly(num_beams=4, best=4)
    ids, mask = batch_of([6, 11, 3, 8])
    starts = model.start_ids_of(["fr", "de", "fr", "de"])
    found = search(model, ids, mask, starts, settings)
    assert_same(found, generated(model, ids, mask, starts, settings))
    words = {token for row in found for each in row for token in each.tokens}
    assert words <= set(model.target_token_ids.tolist()) and len(words) > 4
    assert words.isdisjoint(model.target_token_ids[model.generation_config.suppress_tokens].tolist())
    if bias != "none":
        model.config.cls_bias = "none"
        assert [row[0].tokens for row in search(model, ids, mask, starts, settings)] != [r[0].tokens for r in found]


def test_a_cut_vocabulary_is_the_whole_one_with_the_other_columns_masked(
    sharp_model: Callable[..., HictlForConditionalGeneration],
) -> None:
    whole, cut = sharp_model(1), sharp_model(1, cut=True)
    weights = whole.state_dict()
    for name in ("lm_head.weight", "lm_head.bias", "decoder.embeddings.word_embeddings.weight"):
        weights[name] = weights[name][CUT]
    cut.load_state_dict({**weights, "target_token_ids": torch.tensor(CUT)})
    others = torch.ones(200, dtype=torch.bool).index_fill(0, torch.tensor(CUT), False)
    with torch.no_grad():
        whole.lm_head.bias.masked_fill_(others, -1e9)  # before the softmax
    cut.generation_config.suppress_tokens = whole.generation_config.suppress_tokens = None
    ids, mask = batch_of([6, 11, 3, 8])
    languages, settings = ["fr", "de", "fr", "de"], exactly(num_beams=4, best=4)
    found = search(cut, ids, mask, cut.start_ids_of(languages), settings)
    assert_same(found, generated(whole, ids, mask, whole.start_ids_of(languages), settings))


def test_eager_attention_and_a_model_without_languages_are_as_generate(
    sharp_model: Callable[..., HictlForConditionalGeneration],
) -> None:
    model, (ids, mask) = sharp_model(0, target_languages=None), batch_of([4, 9, 6])
    starts, settings = torch.full((3,), model.default_start_id()), exactly(num_beams=3, best=2)
    expected = generated(model, ids, mask, starts, settings)
    assert_same(search(model, ids, mask, starts, settings), expected)
    model.set_attn_implementation("eager")
    assert_same(search(model, ids, mask, starts, settings), expected)
    model.set_attn_implementation("flex_attention")
    with pytest.raises(ValueError, match="flex_attention"):
        search(model, ids, mask, starts, settings)


# --- whatever stands beside a sentence --------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [False, True])
def test_a_sentence_is_translated_as_if_it_were_alone_on_either_side_of_padding(
    sharp_model: Callable[..., HictlForConditionalGeneration], left: bool
) -> None:
    model, lengths = sharp_model(0), [9, 3, 12, 5, 7, 4, 4, 10, 6] * 3
    ids, mask = batch_of(lengths, seed=3, left=left)
    starts = model.start_ids_of(["de", "fr", "fr"] * 9)
    settings = BeamSearchConfig(num_beams=4, best=4, max_length_a=1.0, max_length_b=2)
    found = search(model, ids, mask, starts, settings)
    for row, length in enumerate(lengths):
        alone = ids[row, mask[row] > 0][None]
        assert_same([found[row]], search(model, alone, torch.ones_like(alone), starts[row, None], settings))
        own = exactly(length + 2, num_beams=4, best=4)
        assert_same([found[row]], generated(model, alone, torch.ones_like(alone), starts[row, None], own))
    assert any(len(row[0].tokens) == length + 2 for row, length in zip(found, lengths))
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(0))
    assert_same(search(model, ids[order], mask[order], starts[order], settings), [found[row] for row in order])


def test_languages_of_rows_are_their_own(sharp_model: Callable[..., HictlForConditionalGeneration]) -> None:
    model, (ids, mask) = sharp_model(4), batch_of([8])
    ids, mask = ids.expand(2, -1), mask.expand(2, -1)
    german, french = search(model, ids, mask, model.start_ids_of(["de", "fr"]), exactly(best=1))
    assert german[0].tokens != french[0].tokens


class Adapter(torch.nn.Module):
    """An output layer that computes something else than its `weight` and `bias` say, as LoRA's does."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias, self.layer = layer.weight, layer.bias, layer
        random = torch.Generator().manual_seed(7)
        self.change = torch.nn.Parameter(torch.randn(layer.weight.shape, generator=random) * 0.2)

    def forward(self, states: Tensor) -> Tensor:
        return self.layer(states) + states @ self.change.T


@pytest.mark.parametrize("bias", ["none", "dot"])
def test_an_adapter_on_the_output_layer_is_searched_with(
    bias: str, sharp_model: Callable[..., HictlForConditionalGeneration]
) -> None:
    model = sharp_model(1, cut=True, cls_bias=bias)
    settings = BeamSearchConfig(max_length=LIMIT, max_length_b=LIMIT, best=3)
    ids, mask = batch_of([5, 9, 7])
    starts = model.start_ids_of(["de", "fr", "de"])
    before = search(model, ids, mask, starts, settings)
    model.lm_head = Adapter(model.lm_head)
    found = search(model, ids, mask, starts, settings)
    assert_same(found, generated(model, ids, mask, starts, settings))
    assert [row[0].tokens for row in found] != [row[0].tokens for row in before]


def test_sentences_leave_when_they_are_done(
    sharp_model: Callable[..., HictlForConditionalGeneration], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, (ids, mask) = sharp_model(0, end=NEVER), batch_of([8] * 9)
    sizes = []
    decode = model.decoder.forward
    monkeypatch.setattr(
        model.decoder, "forward", lambda **inputs: (sizes.append(len(inputs["inputs_embeds"])), decode(**inputs))[1]
    )
    limits = torch.tensor([2, 3, 4, 5, 6, 7, 8, 9, 12])
    found = search(model, ids, mask, model.start_ids_of(["de"] * 9), BeamSearchConfig(), limits)
    assert [len(row[0].tokens) for row in found] == limits.tolist()
    assert sizes == [9, 9, 8, 7, 6, 5, 4, 3, 2, 1, 1, 1]


# --- limits and errors ------------------------------------------------------------------------------------------------


def test_limits_are_a_times_source_tokens_plus_b_and_at_most_the_longest() -> None:
    # 1.2 * 5 + 10 = 16; 1.2 * 11 + 10 = 23.2; 1.2 * 400 + 10 = 490
    lengths = torch.tensor([5, 11, 400])
    assert BeamSearchConfig().limits(lengths).tolist() == [16, 23, 200]
    for large in ({"max_length_a": 1e30}, {"max_length_b": 10**30}):
        assert BeamSearchConfig(**large).limits(lengths).tolist() == [200] * 3
    assert BeamSearchConfig(max_length=10**30).limits(lengths).tolist() == [16, 23, 490]


def test_the_decoder_has_no_more_positions_than_it_has(
    sharp_model: Callable[..., HictlForConditionalGeneration],
) -> None:
    model, (ids, mask) = sharp_model(0, end=NEVER), batch_of([8])
    (found,) = search(model, ids, mask, model.start_ids_of(["de"]), BeamSearchConfig(max_length_b=100))
    assert len(found[0].tokens) == model.config.max_position_embeddings - 2 == 64
    assert found[0].tokens[-1] != END


@pytest.mark.parametrize(
    ("settings", "told"),
    [({"best": 6}, "best is 6"), ({"num_beams": 0, "best": 0}, "best is 0"), ({"max_length_b": 0}, "max_length_b"),
     ({"max_length_a": math.inf}, "max_length_a"), ({"max_length_a": math.nan}, "max_length_a"),
     ({"max_length": math.nan}, "max_length"), ({"max_length_b": math.nan}, "max_length_b"),
     ({"length_penalty": math.nan}, "length_penalty is nan; allowed are numbers from -50 to 50"),
     ({"length_penalty": 300}, "length_penalty is 300")],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        BeamSearchConfig(**settings)


def test_no_more_beams_than_half_the_words(sharp_model: Callable[..., HictlForConditionalGeneration]) -> None:
    model, (ids, mask) = sharp_model(0), batch_of([8])
    most = len(model.target_token_ids) // 2
    (found,) = search(model, ids, mask, model.start_ids_of(["de"]), BeamSearchConfig(most, max_length_b=5))
    assert found
    with pytest.raises(BadInput, match=f"beams is {most + 1}; allowed is up to {most}, half the decoder's"):
        search(model, ids, mask, model.start_ids_of(["de"]), BeamSearchConfig(most + 1, max_length_b=5))


def test_settings_of_a_model_are_those_it_was_saved_with_or_ours(
    sharp_model: Callable[..., HictlForConditionalGeneration],
) -> None:
    model = sharp_model(0)
    assert BeamSearchConfig.of(model) == BeamSearchConfig()
    model.generation_config.update(num_beams=4, length_penalty=0.6)
    assert BeamSearchConfig.of(model, num_beams=None, best=2) == BeamSearchConfig(4, 0.6, 2)
    assert BeamSearchConfig.of(model, num_beams=1, length_penalty=0.0) == BeamSearchConfig(1, 0.0)


# --- parts ------------------------------------------------------------------------------------------------------------


def test_a_roomy_layer_holds_what_was_written_and_moves_what_stays() -> None:
    layer, written = RoomyLayer(room=6), torch.randn(2, 4, 3, 5, 2)  # keys and values: 4 rows, 3 heads, 5 positions
    for begin, end in ((0, 1), (1, 3), (3, 5)):
        keys, values = layer.update(written[0, :, :, begin:end], written[1, :, :, begin:end])
        assert torch.equal(torch.stack([keys, values]), written[:, :, :, :end])
        assert layer.get_seq_length() == end
    layer.batch_select_indices(torch.tensor([1, 3]))
    assert torch.equal(torch.stack([layer.keys, layer.values]), written[:, [1, 3]])
    more = torch.randn(2, 2, 3, 1, 2)
    keys, values = layer.update(*more)
    assert torch.equal(torch.stack([keys, values]), torch.cat([written[:, [1, 3]], more], 3))
