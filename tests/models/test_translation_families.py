"""Translation models with an encoder of each family: the same decoder on top, whatever ids the tokenizer has."""

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from toy_families import SHAPES
from transformers import AutoModel, AutoModelForSeq2SeqLM, DynamicCache, EncoderDecoderCache

from hictl_hf import HictlForConditionalGeneration
from hictl_hf.errors import BadInput
from hictl_hf.models.families import FAMILIES
from hictl_hf.translation import export_ctranslate2
from hictl_hf.translation.beam_search import BeamSearchConfig, search

WORDS = 40
# begin, padding, end, unknown: as in XLM-R, scattered, and with one id for padding and end
SPECIAL = {"xlm-roberta": (0, 1, 2, 3), "xlm-roberta-xl": (0, 1, 2, 3), "eurobert": (38, 37, 37, 36)}
SCATTERED = (7, 0, 5, 30)
LEFT_OUT = 20  # a word that the decoder does not have
MASK = torch.tensor([[1] * 9, [1] * 4 + [0] * 5])
each_family = pytest.mark.parametrize("name", SHAPES)


def special_of(name: str) -> tuple[int, ...]:
    return SPECIAL.get(name, SCATTERED)


def target_ids_of(name: str) -> list[int]:
    special = special_of(name)
    return [*special, *(number for number in range(WORDS - 4) if number not in (*special, LEFT_OUT))]


@cache
def encoder_of(name: str) -> Any:
    """transformers' own encoder of a family in its published shape, with few words and random weights."""
    begin, padding, end, _ = special_of(name)
    ids = {"bos_token_id": begin, "pad_token_id": padding, "eos_token_id": end}
    config = getattr(transformers, f"{FAMILIES[name].prefix}Config")
    torch.manual_seed(1)
    shape = {**SHAPES[name], **ids, "vocab_size": WORDS, "initializer_range": 0.3, "max_position_embeddings": 40}
    return getattr(transformers, f"{FAMILIES[name].prefix}Model")(config(**shape)).eval()


@cache
def translator_of(name: str) -> Any:
    torch.manual_seed(2)
    model = HictlForConditionalGeneration.from_encoder(
        encoder_of(name), target_ids_of(name), ["de", "fr"], decoder_layers=2
    )
    with torch.no_grad():
        model.lm_head.weight.mul_(0.5)
        model.cls_bias_scale.fill_(0.1)  # more, and one token would be the best at all steps
    return model


def source(name: str) -> Tensor:
    begin, padding, end, _ = special_of(name)
    random = torch.Generator().manual_seed(3)
    ids = torch.randint(8, 29, (2, 9), generator=random)
    ids[:, 0], ids[0, -1], ids[1, 3] = begin, end, end
    return ids.masked_fill(MASK == 0, padding)


@each_family
def test_the_encoder_is_that_of_transformers_and_the_decoder_has_its_sizes(name: str) -> None:
    model, stock = translator_of(name), encoder_of(name)
    assert type(model).__name__ == FAMILIES[name].class_name("ForConditionalGeneration")
    assert isinstance(model.get_encoder(), type(stock))
    assert torch.equal(model.get_encoder()(source(name), MASK)[0], stock(source(name), MASK)[0])
    sizes, given = model.decoder.config, stock.config
    assert (sizes.hidden_size, sizes.num_attention_heads, sizes.intermediate_size, sizes.num_hidden_layers) == (
        given.hidden_size, given.num_attention_heads, given.intermediate_size, 2,
    )  # fmt: skip
    epsilon = {"modernbert": "norm_eps", "eurobert": "rms_norm_eps"}.get(name, "layer_norm_eps")
    assert sizes.layer_norm_eps == getattr(given, epsilon)
    assert sizes.hidden_act == ("silu" if name == "eurobert" else "gelu")
    assert sizes.hidden_dropout_prob == (0.1 if name in ("modernbert", "eurobert") else 0)
    limit = 38 if FAMILIES[name].positions_after_padding else 40
    assert sizes.max_position_embeddings - model.first_position == limit == model.generation_config.max_length
    rows = stock.get_input_embeddings().weight[target_ids_of(name)]
    assert torch.equal(2 * model.lm_head.weight, rows)
    assert model.lm_head.weight is model.decoder.get_input_embeddings().weight


@each_family
def test_ids_of_the_tokenizer_become_those_of_the_decoder_and_back(name: str) -> None:
    model, (begin, padding, end, unknown) = translator_of(name), special_of(name)
    given = torch.tensor([begin, end, unknown, LEFT_OUT, 10, -100])
    assert model.target_ids(given).tolist() == [0, 2, 3, 3, target_ids_of(name).index(10), -100]
    assert model.target_ids(torch.tensor([padding])).tolist() == [2 if padding == end else 1]
    assert model.token_ids(torch.arange(5)).tolist() == target_ids_of(name)[:5]
    assert model.token_ids(model.start_ids_of(["fr"])).tolist() == [end]
    settings = model.generation_config
    assert (settings.bos_token_id, settings.pad_token_id, settings.eos_token_id) == (0, 1, 2)
    before = model.prepare_decoder_input_ids_from_labels(torch.tensor([[10, end, -100]]), model.start_ids_of(["de"]))
    assert before.tolist() == [[len(target_ids_of(name)), target_ids_of(name).index(10), 2]]


@each_family
@torch.no_grad()
def test_a_cache_changes_no_logits_and_beam_search_finds_the_best_tokens(name: str) -> None:
    model, limit = translator_of(name), 7
    starts = model.start_ids_of(["de", "fr"])
    found = search(model, source(name), MASK, starts, BeamSearchConfig(num_beams=1, max_length=limit))
    generated = model.generate(
        source(name), attention_mask=MASK, target_language=["de", "fr"], num_beams=1, max_new_tokens=limit
    )
    for row, (best,) in enumerate(found):  # slowly: without padding, without a cache, all tokens again at each step
        tokens, ids = [int(starts[row])], source(name)[row, : int(MASK[row].sum())][None]
        while len(tokens) <= limit and tokens[-1] != 2:
            logits = model(ids, decoder_input_ids=torch.tensor([tokens])).logits
            logits[..., 1] = -torch.inf
            tokens.append(int(logits[0, -1].argmax()))
        assert best.tokens == [target_ids_of(name)[number] for number in tokens[1:]]
        assert generated[row, 1 : len(tokens)].tolist() == best.tokens
        memory = EncoderDecoderCache(DynamicCache(), DynamicCache())
        encoded = model.get_encoder()(ids)
        for at, token in enumerate(tokens[:-1]):
            step = model(
                encoder_outputs=encoded, decoder_input_ids=torch.tensor([[token]]), cache=memory, use_cache=True
            ).logits[0, -1]
            step[1] = -torch.inf
            torch.testing.assert_close(step, logits[0, at], rtol=1e-4, atol=1e-4)
        assert (logits[0, 0] - logits[0, -1])[2:].abs().max() > 0.01, "steps should differ"


@each_family
@pytest.mark.parametrize("num_beams", [1, 2])
def test_a_static_cache_has_the_masks_of_the_decoder(name: str, num_beams: int) -> None:
    """The encoder's layers may be of several kinds, with a mask for each."""
    settings = {"target_language": "de", "num_beams": num_beams, "max_new_tokens": 5, "attention_mask": MASK}
    found = translator_of(name).generate(source(name), cache_implementation="static", **settings)
    assert found.equal(translator_of(name).generate(source(name), **settings))


@each_family
def test_padding_is_masked_where_no_mask_is_given(name: str) -> None:
    model = translator_of(name)

    def logits(**given: Any) -> Tensor:
        settings = {"num_beams": 1, "max_length": 3, "return_dict_in_generate": True, "output_logits": True}
        return model.generate(**given, target_language=["de", "fr"], **settings).logits[0]

    expected = logits(inputs=source(name), attention_mask=MASK)
    assert not torch.equal(logits(inputs=source(name), attention_mask=torch.ones_like(MASK)), expected)
    for argument in ("inputs", "input_ids"):
        if name == "eurobert":  # pads with the end
            with pytest.raises(ValueError, match="pass it to generate"):
                logits(**{argument: source(name)})
        else:
            assert torch.equal(logits(**{argument: source(name)}), expected)


@each_family
@torch.no_grad()
def test_the_token_types_that_a_tokenizer_makes_are_taken(name: str) -> None:
    model, batch, zeros = translator_of(name), {"input_ids": source(name), "attention_mask": MASK}, 0 * MASK
    given = {"target_language": ["de", "fr"], "max_length": 9, "num_beams": 2}
    expected = model.generate(**batch, **given)
    assert torch.equal(model.generate(**batch, **given, token_type_ids=zeros), expected)
    target = {"labels": source(name)[:, 1:], "start_ids": model.start_ids_of(["de", "fr"])}
    expected = model(**batch, **target).logits
    assert torch.equal(model(**batch, **target, token_type_ids=zeros).logits, expected)
    if name == "bert":  # the other families have no second type here
        states = encoder_of(name)(**batch, token_type_ids=1 - zeros)
        others = model(encoder_outputs=states, attention_mask=MASK, **target).logits
        assert torch.equal(model(**batch, **target, token_type_ids=1 - zeros).logits, others)
        assert not torch.equal(others, expected)


@each_family
def test_it_is_saved_with_its_encoder(name: str, tmp_path: Path) -> None:
    translator_of(name).save_pretrained(tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(model) is type(translator_of(name)) is type(HictlForConditionalGeneration.from_pretrained(tmp_path))
    assert model.generation_config.to_dict() == translator_of(name).generation_config.to_dict()
    encoder, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert isinstance(encoder, type(encoder_of(name))) and not report["unexpected_keys"] | report["missing_keys"]
    batch = {"input_ids": source(name), "attention_mask": MASK}
    with torch.no_grad():
        assert torch.equal(encoder(**batch)[0], model.get_encoder()(**batch)[0])
        labels = source(name)[:, 1:].masked_fill(MASK[:, 1:] == 0, -100)
        given = {**batch, "labels": labels, "start_ids": model.start_ids_of(["de", "fr"])}
        assert torch.equal(model(**given).logits, translator_of(name)(**given).logits)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "eurobert" else pytest.mark.slow) for name in SHAPES]
)
def test_it_learns_to_copy(name: str) -> None:
    model, losses = deepcopy(translator_of(name)).train(), []
    model.get_encoder().requires_grad_(False)
    labels = source(name)[:, 1:].masked_fill(MASK[:, 1:] == 0, -100)
    batch = {"input_ids": source(name), "attention_mask": MASK, "labels": labels}
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=3e-3)
    for _ in range(25):
        loss = model(**batch, start_ids=model.start_ids_of(["de", "fr"])).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.parametrize("more", [[], [9]], ids=["one end", "two ends"])
def test_the_tokenizers_ids_that_a_trainer_writes_become_target_ids(more: list[int], tmp_path: Path) -> None:
    """HF's Trainer aligns configurations with the tokenizer; the target ids 37 and 38 are words here."""
    model, (begin, padding, end, _) = deepcopy(translator_of("eurobert")), special_of("eurobert")
    batch = {"inputs": source("eurobert"), "attention_mask": MASK, "target_language": "de", "max_new_tokens": 12}
    model.generation_config.eos_token_id = [2, *more] if more else 2
    expected = model.generate(**batch)
    aligned = {"bos_token_id": begin, "pad_token_id": padding, "eos_token_id": [end, 2, *more]}
    model.generation_config.update(**aligned)
    model.save_pretrained(tmp_path)
    for each in (model, HictlForConditionalGeneration.from_pretrained(tmp_path)):
        assert torch.equal(each.generate(**batch), expected)
        settings = each.generation_config
        assert (settings.bos_token_id, settings.pad_token_id) == (0, 1)
        assert settings.eos_token_id == ([2, *more] if more else 2)


def test_an_encoder_whose_special_tokens_are_not_known_needs_target_ids() -> None:
    with pytest.raises(ValueError, match="an encoder of BERT does not name its special tokens; make them by"):
        HictlForConditionalGeneration.from_encoder(encoder_of("bert"))
    for bad in ([7, 0, 5], [7, 0, 5, 30, 5, 8], [7, 0, 5, 30, 9, 8], [7, 0, 5, 30, WORDS]):
        with pytest.raises(ValueError, match="first the ids"):
            HictlForConditionalGeneration.from_encoder(encoder_of("bert"), bad)


def test_the_decoder_can_have_another_dropout() -> None:
    given = {"decoder_layers": 1, "decoder_dropout": 0.3}
    model = HictlForConditionalGeneration.from_encoder(encoder_of("modernbert"), target_ids_of("modernbert"), **given)
    assert model.decoder.encoder.layer[0].output.dropout.p == 0.3


def test_ctranslate2_refuses_other_encoders(tmp_path: Path) -> None:
    no_tokenizer: Any = None
    with pytest.raises(BadInput, match="the encoder is a HictlBertModel, which this export does not know"):
        export_ctranslate2(translator_of("bert"), no_tokenizer, tmp_path / "out")
