"""The translation model: fused equals written out, decoding in every mode, ids, languages, and what loads from what."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    WatermarkingConfig,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
    XLMRobertaModel,
)

from hictl_hf import HictlConfig, HictlForConditionalGeneration, HictlModel, export_encoder
from hictl_hf.models.linear_cross_entropy import linear_cross_entropy

MakeModel = Callable[..., HictlForConditionalGeneration]

BEGIN, PADDING, END, UNKNOWN = 0, 1, 2, 3
WORDS = [0, 1, 2, 3, *range(7, 60, 3)]  # 22 of 60: columns of a cut vocabulary
BIASES = [(bias, scale) for bias in ("dot", "cosine") for scale in ("learned", "fixed")] + [("none", "learned")]
PLAIN = {"num_beams": 1, "do_sample": False, "max_new_tokens": 9}


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def translator(toy_config: Callable[..., HictlConfig]) -> MakeModel:
    """`translator(seed=1, cut=True, languages=("de", "fr"), **settings)`: a lively model in fp64, dropout off, γ .7."""

    def make(
        seed: int = 1,
        cut: bool = True,
        languages: Sequence[str] | None = ("de", "fr"),
        **settings: Any,
    ) -> HictlForConditionalGeneration:
        config = toy_config(
            **{
                "vocab_size": 60,
                "initializer_range": 0.15,
                "decoder_layers": 3,
                "decoder_attention_heads": 2,
                "decoder_ffn_dim": 48,
                "decoder_vocab_size": len(WORDS) if cut else None,
                "target_languages": languages and list(languages),
                "word_temperature": 0.5,
                **settings,
            }
        )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = HictlForConditionalGeneration(config).double().eval()
            nn.init.normal_(model.lm_head.bias, std=0.3)
            nn.init.normal_(model.lm_head.weight, std=0.3)  # of <pad> too, as trained models have it
            nn.init.normal_(model.decoder.embeddings.position_embeddings.weight, std=2.0)  # lest words are repeated
            if model.start_embeddings is not None:
                nn.init.normal_(model.start_embeddings.weight, std=1.0)
        if cut:
            model.target_token_ids.copy_(torch.tensor(WORDS))
        if model.cls_bias_scale is not None:
            nn.init.constant_(model.cls_bias_scale, 0.7)
        return model

    return make


SOURCE = [[BEGIN, 20, 31, 8, 42, END], [BEGIN, 11, 9, END], [BEGIN, 50, 12, 33, 6, 7, 19, END]]
LABELS = [[7, 10, 58, END], [13, 16, 19, 22, 8, END], [25, END]]  # 8 is not in the cut vocabulary


def padded(rows: list[list[int]], filler: int, left: bool = False) -> Tensor:
    longest = max(map(len, rows))
    missing = [[filler] * (longest - len(row)) for row in rows]
    return torch.tensor([more + row if left else row + more for row, more in zip(rows, missing)])


def source(left: bool = False, rows: slice = slice(None)) -> dict[str, Tensor]:
    """Ids and mask of the source sentences."""
    return {
        "input_ids": padded(SOURCE[rows], PADDING, left),
        "attention_mask": padded([[1] * len(row) for row in SOURCE[rows]], 0, left),
    }


# --- written out ----------------------------------------------------------------------------------------------------


def written_out(model: HictlForConditionalGeneration, sentence: list[int], before: list[int]) -> Tensor:
    """(T, W) logits behind each of the target and start ids, of one sentence, without padding, cache and fused bias."""
    states = model.roberta(torch.tensor([sentence]))[0]
    words = model.decoder.embeddings.word_embeddings.weight
    table = words if model.start_embeddings is None else torch.cat([words, model.start_embeddings.weight])
    embedded = torch.stack([table[word] for word in before])
    positions = torch.arange(PADDING + 1, PADDING + 1 + len(before))
    hidden = model.decoder(
        inputs_embeds=embedded[None], position_ids=positions[None], encoder_hidden_states=states, use_cache=False
    )[0][0]
    logits = hidden @ words.T + model.lm_head.bias
    query = states[0, 0]
    gamma = 1 if model.config.cls_bias_scale == "fixed" else model.cls_bias_scale
    if model.config.cls_bias == "dot":
        logits = logits + gamma * torch.stack([query @ word for word in words])
    if model.config.cls_bias == "cosine":
        temperature = model.config.cls_bias_temperature or model.config.word_temperature
        cosines = torch.stack([F.cosine_similarity(query, word, dim=0) for word in words])
        logits = logits + gamma * cosines / temperature
    return logits


def columns(model: HictlForConditionalGeneration, token_ids: list[int]) -> list[int]:
    """Target ids of tokenizer ids."""
    known = model.target_token_ids.tolist()
    return [known.index(word) if word in known else UNKNOWN for word in token_ids]


def starts(model: HictlForConditionalGeneration, languages: list[str]) -> list[int]:
    return [model.lm_head.out_features + model.config.target_languages.index(name) for name in languages]


def test_transformers_trainer_evaluates_the_loss(translator: MakeModel, tmp_path: Path) -> None:
    """It does where a batch has each parameter of `forward` whose name contains "label"."""
    model = translator(languages=None).float()
    rows = [{"input_ids": torch.tensor(row), "labels": torch.tensor(LABELS[0])} for row in [SOURCE[0]] * 3]
    args = Seq2SeqTrainingArguments(str(tmp_path), report_to="none", use_cpu=True, per_device_eval_batch_size=3)
    trainer = Seq2SeqTrainer(model, args, eval_dataset=rows, compute_metrics=lambda found: {"n": len(found.label_ids)})
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    found = trainer.evaluate()
    assert (found["eval_n"], found["eval_loss"]) == (3, pytest.approx(model(**batch).loss.item()))


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize(("bias", "scale"), BIASES)
def test_logits_loss_and_gradients_are_those_written_out(
    bias: str, scale: str, cut: bool, translator: MakeModel
) -> None:
    model = translator(cut=cut, cls_bias=bias, cls_bias_scale=scale)
    labels = padded(LABELS, -100)
    chosen = ["fr", "de", "fr"]
    inputs = {**source(), "labels": labels, "start_ids": model.start_ids_of(chosen), "label_smoothing": 0.1}

    wanted = [columns(model, row) for row in LABELS]
    assert (UNKNOWN in wanted[1]) == cut
    rows = [
        written_out(model, sentence, [start, *row[:-1]])
        for sentence, start, row in zip(SOURCE, starts(model, chosen), wanted)
    ]
    losses = [
        F.cross_entropy(logits, torch.tensor(row), reduction="sum", label_smoothing=0.1)
        for logits, row in zip(rows, wanted)
    ]
    expected = torch.stack(losses).sum() / 12
    expected.backward()
    slow = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}

    evaluated = model(**inputs)
    for found, logits in zip(evaluated.logits, rows):
        close(found[: len(logits)], logits)
    close(evaluated.loss, expected)
    model.zero_grad()
    trained = model.train()(**inputs)
    assert (trained.logits is None) == (bias != "cosine")
    close(trained.loss, expected)
    trained.loss.backward()
    fused = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    assert fused.keys() == slow.keys() == {name for name, _ in model.named_parameters()}
    for name in slow:
        close(fused[name], slow[name])
        assert slow[name].abs().max() > 1e-6 or "key.bias" in name or "token_type" in name, name


@pytest.mark.parametrize("languages", [None, ["de"], ["de", "fr"]])
def test_the_configuration_has_the_start_id_that_run_translation_reads(
    languages: list[str] | None, toy_model: Callable[..., PreTrainedModel], tmp_path: Path
) -> None:
    model = toy_model(HictlForConditionalGeneration, decoder_layers=1, target_languages=languages)
    assert model.config.decoder_start_token_id == model.generation_config.decoder_start_token_id
    model.save_pretrained(tmp_path)
    loaded = HictlForConditionalGeneration.from_pretrained(tmp_path)
    assert loaded.config.decoder_start_token_id == model.config.decoder_start_token_id
    assert (loaded.config.decoder_start_token_id is None) == (languages == ["de", "fr"])
    values = model.config.to_dict()
    assert "decoder_start_token_id" not in values
    for start in (None, model.config.decoder_start_token_id):
        assert HictlConfig(**values, decoder_start_token_id=start).to_dict() == values
    with pytest.raises(ValueError, match="decoder_start_token_id is 5; allowed is .* or set it in generation_config"):
        HictlConfig(**values, decoder_start_token_id=5)
    assert HictlConfig(decoder_start_token_id=5).decoder_start_token_id is None  # an encoder has no use for it


def test_the_decoder_takes_ids_or_embeddings(toy_model: Callable[..., PreTrainedModel]) -> None:
    model = toy_model(HictlForConditionalGeneration, decoder_layers=1, target_languages=["de"])
    ids = torch.tensor([[0, 9, 2]])
    start = model.start_ids_of(["de"])[:, None]
    by_ids = model(ids, decoder_input_ids=start).logits
    torch.testing.assert_close(model(ids, decoder_inputs_embeds=model.embed(start)).logits, by_ids)
    with pytest.raises(ValueError, match="decoder_input_ids and decoder_inputs_embeds are both given"):
        model(ids, decoder_input_ids=start, decoder_inputs_embeds=model.embed(start))


def test_the_bias_changes_what_is_said(translator: MakeModel) -> None:
    logits = {
        (bias, scale): translator(cls_bias=bias, cls_bias_scale=scale)(
            **source(), decoder_input_ids=torch.tensor([[22, 5]] * 3)
        ).logits.log_softmax(-1)
        for bias, scale in BIASES
    }
    assert all((logits[a] - logits[b]).abs().max() > 0.01 for a in logits for b in logits if a != b)


def test_a_cosine_bias_is_refused_where_it_would_not_read_an_adapter_of_the_output_layer(translator: MakeModel) -> None:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(target_modules=["lm_head"], init_lora_weights=False)
    for bias in ("dot", "cosine"):
        model = translator(cls_bias=bias, languages=None)
        adapted = peft.get_peft_model(model, settings)
        if bias == "dot":  # it is added to the states
            assert adapted(**source(), labels=padded(LABELS, -100)).loss.isfinite()
            continue
        with pytest.raises(ValueError, match="output layer, which cls_bias reads, has an adapter that is not"):
            adapted(**source(), labels=padded(LABELS, -100))
        with pytest.raises(ValueError, match="output layer, which cls_bias reads, has an adapter that is not"):
            model.generate(**source())


def test_the_similarities_of_cls_worked_by_hand(translator: MakeModel) -> None:
    model = translator(cut=False, cls_bias="dot", cls_bias_scale="fixed")
    words = model.lm_head.weight.data.zero_()
    words[4, :2], words[5, 0], words[6, 1] = torch.tensor([3.0, 4.0]), 2.0, -1.0
    states = torch.zeros(1, 2, 32, dtype=torch.float64)
    states[0, 1, 1] = 2.0  # of the first real token; before it there is padding
    mask = torch.tensor([[0, 1]])
    assert model.word_bias(states, mask)[0, 3:8].tolist() == [0, 8, 0, -2, 0]
    assert torch.equal(model.state_bias(states, mask), states[:, 1])
    model.config.cls_bias = "cosine"  # 4/5, 0 and -1 over 0.5; words without a direction have no similarity
    assert model.word_bias(states, mask)[0, 3:8].tolist() == pytest.approx([0, 1.6, 0, -2, 0])
    model.config.cls_bias_temperature = 0.25
    assert model.word_bias(states, mask)[0, 4].item() == pytest.approx(3.2)
    assert model.state_bias(states, mask) is None
    model.config.cls_bias = "none"
    assert model.word_bias(states, mask) is None


def test_a_learned_scale_starts_at_zero_and_learns(toy_config: Callable[..., HictlConfig]) -> None:
    for bias in ("dot", "cosine"):
        model = HictlForConditionalGeneration(toy_config(decoder_layers=1, cls_bias=bias)).train()
        assert model.cls_bias_scale.tolist() == [0]
        model(**source(), labels=padded(LABELS, -100)).loss.backward()
        assert model.cls_bias_scale.grad.abs() > 1e-6
    for settings in ({"cls_bias": "none"}, {"cls_bias_scale": "fixed"}):
        assert HictlForConditionalGeneration(toy_config(decoder_layers=1, **settings)).cls_bias_scale is None


@pytest.mark.parametrize("bias", ["none", "dot", "cosine"])
def test_parts_of_a_batch_add_up_to_the_mean_over_its_target_words(bias: str, translator: MakeModel) -> None:
    model = translator(cls_bias=bias)
    batch = {**source(), "labels": padded(LABELS, -100), "start_ids": model.start_ids_of(["de", "fr", "de"])}
    for training in (True, False):
        model.train(training)
        whole = model(**batch).loss
        for items in (12, torch.tensor(12)):
            parts = [
                model(**{name: value[rows] for name, value in batch.items()}, num_items_in_batch=items).loss
                for rows in (slice(0, 1), slice(1, 3))
            ]
            close(parts[0] + parts[1], whole)


def test_a_batch_without_labels_to_learn_from_has_loss_zero(translator: MakeModel) -> None:
    model = translator(languages=None)
    for training in (True, False):
        loss = model.train(training)(**source(), labels=torch.full((3, 4), -100)).loss
        loss.backward()
        assert loss == 0


@pytest.mark.parametrize("smoothing", [10.0, -0.1, float("nan")])
def test_a_smoothing_that_is_no_share_is_refused(smoothing: float, translator: MakeModel) -> None:
    model = translator(languages=None)
    for training in (True, False):
        with pytest.raises(ValueError, match=f"label_smoothing is {smoothing}; allowed are numbers from 0 to 1"):
            model.train(training)(**source(), labels=padded(LABELS, -100), label_smoothing=smoothing)


@pytest.mark.parametrize("cut", [True, False])
def test_a_loss_outside_of_the_model_is_warned_of_where_tokens_have_other_ids(
    cut: bool, translator: MakeModel, recwarn: pytest.WarningsRecorder
) -> None:
    """HF's `label_smoothing_factor` computes such a loss, from ids of the tokenizer."""
    model, labels = translator(cut=cut, languages=None).train(), torch.tensor([[7, 10, END]] * 3)
    before = model.prepare_decoder_input_ids_from_labels(labels)
    model(**source(), decoder_input_ids=before, labels=labels)
    model.eval()(**source(), decoder_input_ids=before)
    with torch.no_grad():
        model.train()(**source(), decoder_input_ids=before)
    assert not [each for each in recwarn if "would train other words" in str(each.message)]
    model(**source(), decoder_input_ids=before)
    assert len([each for each in recwarn if "would train other words" in str(each.message)]) == cut


@pytest.mark.parametrize(("bias", "scale"), BIASES)
def test_a_cut_vocabulary_gives_the_same_probabilities_among_its_words(
    bias: str, scale: str, translator: MakeModel
) -> None:
    whole, cut = (translator(seed, cut, cls_bias=bias, cls_bias_scale=scale) for seed, cut in ((0, False), (1, True)))
    weights = whole.state_dict() | {"target_token_ids": torch.tensor(WORDS)}
    for name in ("lm_head.weight", "lm_head.bias", "decoder.embeddings.word_embeddings.weight"):
        weights[name] = weights[name][WORDS]
    cut.load_state_dict(weights)
    said = torch.tensor([[7, 58, 10]] * 3)
    full = whole(**source(), decoder_input_ids=torch.cat([torch.tensor([[61]] * 3), said], 1)).logits
    start = torch.tensor([[len(WORDS) + 1]] * 3)
    found = cut(**source(), decoder_input_ids=torch.cat([start, cut.target_ids(said)], 1)).logits
    close(found.log_softmax(-1), full[..., WORDS].log_softmax(-1))


# --- padding, caches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", ["none", "dot", "cosine"])
def test_padding_on_either_side_changes_nothing(bias: str, translator: MakeModel) -> None:
    model = translator(cls_bias=bias)
    before = torch.tensor([[22, 5, 9], [23, 7, 7], [22, 20, 4]])
    right, left = (model(**source(left=side), decoder_input_ids=before).logits for side in (False, True))
    close(right, left)
    said = [
        model.generate(**source(left=side), target_language="de", num_beams=3, max_new_tokens=9)
        for side in (False, True)
    ]
    assert torch.equal(*said)
    for row, sentence in enumerate(SOURCE):
        alone = torch.tensor([sentence])
        close(model(alone, decoder_input_ids=before[row : row + 1]).logits[0], right[row])
        single = model.generate(alone, target_language="de", num_beams=3, max_new_tokens=9)[0].tolist()
        assert [*single, *[PADDING] * (said[0].shape[1] - len(single))] == said[0][row].tolist()


@pytest.mark.parametrize("bias", ["none", "dot", "cosine"])
def test_a_step_with_a_cache_gives_the_logits_of_the_whole(bias: str, translator: MakeModel) -> None:
    model = translator(cls_bias=bias)
    before = torch.tensor([[22, 5, 9, 1, 4], [23, 7, 7, 8, 8], [22, 20, 4, 6, 23]])  # padding and start ids anywhere
    whole = model(**source(), decoder_input_ids=before).logits
    for row in range(3):
        close(whole[row], written_out(model, SOURCE[row], before[row].tolist()))
    cache, found = None, []
    for begin, end in ((0, 2), (2, 3), (3, 5)):
        outputs = model(**source(), decoder_input_ids=before[:, begin:end], past_key_values=cache, use_cache=True)
        cache = outputs.past_key_values
        found.append(outputs.logits)
    close(torch.cat(found, 1), whole)


def test_the_encoder_may_have_run_before(translator: MakeModel) -> None:
    for bias in ("dot", "cosine"):
        model = translator(cls_bias=bias)
        before, mask = torch.tensor([[22, 5]] * 3), source()["attention_mask"]
        expected = model(**source(), decoder_input_ids=before).logits
        encoded = model.get_encoder()(**source())
        for outputs in (encoded, (encoded.last_hidden_state,)):
            found = model(encoder_outputs=outputs, attention_mask=mask, decoder_input_ids=before)
            close(found.logits, expected)
        said = model.generate(**source(), target_language="de", **PLAIN)
        assert torch.equal(
            model.generate(encoder_outputs=encoded, attention_mask=mask, target_language="de", **PLAIN), said
        )


def test_the_bias_of_a_sentence_is_computed_once_for_all_steps(
    translator: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls = translator(cls_bias="cosine"), []
    bias = HictlForConditionalGeneration.word_bias
    monkeypatch.setattr(
        HictlForConditionalGeneration, "word_bias", lambda *given: calls.append(len(given[1])) or bias(*given)
    )
    model.generate(**source(), target_language="de", num_beams=4, max_new_tokens=9)
    assert calls == [3]  # of sentences, not of beams


# --- generate -------------------------------------------------------------------------------------------------------


def in_tokenizer_ids(model: HictlForConditionalGeneration, rows: list[list[int]]) -> list[list[int]]:
    """Sequences as `generate` returns them: start tokens are </s>, and padding after the end."""
    known = {**dict(enumerate(model.target_token_ids.tolist()))}
    longest = max(map(len, rows))
    return [[known.get(word, END) for word in row] + [PADDING] * (longest - len(row)) for row in rows]


def greedy(model: HictlForConditionalGeneration, languages: list[str], steps: int = 9) -> list[list[int]]:
    rows = []
    for sentence, start in zip(SOURCE, starts(model, languages)):
        said = [start]
        while len(said) <= steps and said[-1] != END:
            said.append(int(written_out(model, sentence, said)[-1].argmax()))
        rows.append(said)
    return in_tokenizer_ids(model, rows)


def beams(
    model: HictlForConditionalGeneration, sentence: list[int], start: int, number: int, penalty: float, steps: int = 9
) -> list[tuple[float, list[int]]]:
    """The best translations, each with its log-probability over its length to the power of the penalty."""
    running, finished = [(0.0, [start])], []
    for step in range(1, steps + 1):
        candidates = [
            (score + addend, [*said, word])
            for score, said in running
            for word, addend in enumerate(written_out(model, sentence, said)[-1].log_softmax(-1).tolist())
        ]
        candidates = sorted(candidates, reverse=True)[: 2 * number]
        over = [step == steps or said[-1] == END for _, said in candidates]
        finished += [
            (score / step**penalty, said)
            for rank, (score, said) in enumerate(candidates)
            if over[rank] and rank < number
        ]
        running = [candidate for candidate, done in zip(candidates, over) if not done][:number]
        if len(finished) >= number:
            break
    return sorted(finished, reverse=True)[:number]


@pytest.fixture(scope="module")
def chatty(translator: MakeModel) -> MakeModel:
    """`chatty(**settings)`: a translator whose sentences end, at different lengths."""

    def make(**settings: Any) -> HictlForConditionalGeneration:
        model = translator(**{"seed": 3, **settings})
        model.lm_head.bias.data[END] += 1.0
        return model

    return make


LANGUAGES = ["fr", "de", "fr"]
MODES = {
    "greedy": {},
    "without a cache": {"use_cache": False},
    "static cache": {"cache_implementation": "static"},
    "given settings": {"generation_config": GenerationConfig(**PLAIN, pad_token_id=PADDING, eos_token_id=END)},
}


def test_a_model_with_offloaded_weights_translates_or_says_why_it_cannot(chatty: MakeModel) -> None:
    inputs = {**source(), "target_language": LANGUAGES, "num_beams": 2, "max_length": 12}
    expected = chatty(cls_bias="dot").generate(**inputs)
    offloaded = accelerate.cpu_offload(chatty(cls_bias="dot"))
    assert offloaded.device.type == "meta" and offloaded.generate(**inputs).equal(expected)
    with pytest.raises(ValueError, match="are offloaded by device_map, and cls_bias is 'cosine', which reads them"):
        accelerate.cpu_offload(chatty(cls_bias="cosine")).generate(**inputs)


@pytest.mark.parametrize("bias", ["none", "dot"])  # "cosine" reads weights, which have no values here
def test_the_decoder_may_be_on_another_device_than_the_encoder(bias: str, translator: MakeModel) -> None:
    """device_map on several GPUs puts them so; "meta" stands for the second."""
    model = translator(cls_bias=bias)
    for part in (model.decoder, model.lm_head, model.start_embeddings):
        accelerate.hooks.attach_execution_device_hook(part.to("meta"), "meta")
    ids = torch.tensor([[0, 9, 7, 2]])
    starts, items = model.start_ids_of(["fr"]), torch.tensor(3)
    with torch.no_grad():
        assert model(ids, decoder_input_ids=starts[:, None]).logits.is_meta
        assert model(ids, labels=ids, start_ids=starts, num_items_in_batch=items).loss.is_meta
    assert model.roberta.device.type == "cpu"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bias", ["none", "dot", "cosine"])
def test_greedy_decoding_says_the_likeliest_word_at_each_step(bias: str, mode: str, chatty: MakeModel) -> None:
    model = chatty(cls_bias=bias)
    expected = greedy(model, LANGUAGES)
    assert len({tuple(row) for row in expected}) == 3 and any(row.count(END) == 2 for row in expected)
    settings = MODES[mode] if "generation_config" in MODES[mode] else PLAIN | MODES[mode]
    found = model.generate(**source(), target_language=LANGUAGES, **settings)
    assert found.tolist() == expected


@pytest.mark.parametrize("bias", ["none", "dot", "cosine"])
def test_assisted_decoding_says_what_greedy_decoding_does(bias: str, chatty: MakeModel) -> None:
    model, other, itself = chatty(cls_bias=bias), chatty(seed=5, cls_bias="dot"), chatty(cls_bias=bias)
    passes: list[int] = []
    model.register_forward_pre_hook(lambda *_: passes.append(1))
    for row, expected in enumerate(greedy(model, LANGUAGES)):
        inputs = {"input_ids": torch.tensor([SOURCE[row]]), "target_language": [LANGUAGES[row]]}
        said = expected[: 1 + expected[1:].index(END) + 1] if END in expected[1:] else expected
        for settings in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": other}, {"assistant_model": itself}):
            passes.clear()
            for assistant in (other, itself):
                assistant.generation_config.update(num_assistant_tokens=3, assistant_confidence_threshold=0.0)
            assert model.generate(**inputs, **PLAIN, **settings)[0].tolist() == said
            if settings.get("assistant_model") is itself:  # what it proposes is right each time
                assert len(passes) <= 1 + len(said) // 4


def test_an_assistant_is_ignored_in_beam_search_as_in_transformers(chatty: MakeModel) -> None:
    model = chatty()
    settings = {**source(), "target_language": LANGUAGES, **PLAIN, "num_beams": 3}
    found = model.generate(**settings, assistant_model=chatty())
    assert found.equal(model.generate(**settings))


@pytest.mark.parametrize("changes", [{"cut": False}, {"languages": ["fr", "de"]}], ids=["words", "languages"])
def test_an_assistant_with_other_words_is_refused(changes: dict[str, Any], chatty: MakeModel) -> None:
    with pytest.raises(ValueError, match="of assistant_model has other words or target lang"):
        chatty().generate(**source(), target_language="de", assistant_model=chatty(**changes))


@pytest.mark.parametrize("penalty", [1.0, 0.6])
@pytest.mark.parametrize("bias", ["none", "dot", "cosine"])
def test_beam_search_finds_what_a_slow_one_does_with_log_probabilities_as_scores(
    bias: str, penalty: float, chatty: MakeModel
) -> None:
    model = chatty(cls_bias=bias)
    expected = [beams(model, *row, 5, penalty) for row in zip(SOURCE, starts(model, LANGUAGES))]
    said = in_tokenizer_ids(model, [said for row in expected for _, said in row[:2]])
    assert len({tuple(row) for row in said}) >= 3
    settings = {"num_beams": 5, "num_return_sequences": 2, "early_stopping": True, "length_penalty": penalty}
    for mode in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
        found = model.generate(
            **source(), target_language=LANGUAGES, **settings, **mode, max_new_tokens=9,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        assert found.sequences.tolist() == said
        scores = torch.tensor([score for row in expected for score, _ in row[:2]])
        torch.testing.assert_close(found.sequences_scores, scores, rtol=1e-4, atol=1e-5)
        each = model.compute_transition_scores(found.sequences, found.scores, found.beam_indices)
        lengths = (found.beam_indices >= 0).sum(-1)
        torch.testing.assert_close(each.sum(-1) / lengths**penalty, scores, rtol=1e-4, atol=1e-5)


def test_sampling_draws_from_the_probabilities_written_out(chatty: MakeModel) -> None:
    for bias in ("dot", "cosine"):
        model = chatty(cls_bias=bias)
        torch.manual_seed(3)
        rows = [[start] for start in starts(model, LANGUAGES)]
        for _ in range(9):
            logits = torch.stack([written_out(model, *row)[-1] for row in zip(SOURCE, rows)])
            drawn = torch.multinomial(logits.float().softmax(-1), 1)[:, 0].tolist()
            rows = [[*row, PADDING if END in row else word] for row, word in zip(rows, drawn)]
        expected = in_tokenizer_ids(model, rows)
        for settings in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
            torch.manual_seed(3)
            found = model.generate(
                **source(),
                target_language=LANGUAGES,
                do_sample=True,
                top_k=0,
                num_beams=1,
                max_new_tokens=9,
                **settings,
            ).tolist()
            assert found == [row[: len(found[0])] for row in expected]


class WrittenOut(HictlForConditionalGeneration):
    """The same with the bias computed anew and added to the logits of every step."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        kind, self.config.cls_bias = self.config.cls_bias, "none"
        outputs = super().forward(*args, **kwargs)
        self.config.cls_bias = kind
        bias = self.word_bias(outputs.encoder_last_hidden_state, kwargs["attention_mask"])
        outputs.logits = outputs.logits + bias[:, None]
        return outputs


@pytest.mark.parametrize("bias", ["dot", "cosine"])
def test_beam_sampling_draws_what_it_does_with_an_explicit_bias(bias: str, chatty: MakeModel) -> None:
    model = chatty(cls_bias=bias)
    explicit = WrittenOut(model.config).double().eval()
    explicit.load_state_dict(model.state_dict())
    said = []
    for each, settings in ((model, {}), (explicit, {}), (model, {"use_cache": False})):
        torch.manual_seed(1)
        said.append(
            each.generate(
                **source(), target_language=LANGUAGES, do_sample=True, num_beams=3, num_return_sequences=2,
                max_new_tokens=9, **settings,
            )
        )  # fmt: skip
    assert said[0].shape[0] == 6 and torch.equal(said[0], said[1]) and torch.equal(said[0], said[2])


def test_options_that_look_back_at_what_was_said_take_start_tokens(chatty: MakeModel) -> None:
    model = chatty()
    for option in ({"repetition_penalty": 1.5}, {"no_repeat_ngram_size": 1}, {"min_new_tokens": 5}):
        for number in (1, 3):
            said = model.generate(
                **source(), target_language=LANGUAGES, num_beams=number, max_new_tokens=9, **option
            ).tolist()
            if "no_repeat_ngram_size" in option:
                words = [[word for word in row[1:] if word != PADDING] for row in said]
                assert all(len({*row}) == len(row) for row in words)
            if "min_new_tokens" in option:
                assert all(END not in row[1:5] for row in said)


def with_all_words(model: HictlForConditionalGeneration) -> HictlForConditionalGeneration:
    """The same model, whose output layer has a column for each tokenizer id; those added are never likely."""
    config = deepcopy(model.config)
    config.decoder_vocab_size = None
    whole, weights = HictlForConditionalGeneration(config).double().eval(), model.state_dict()
    for name in ("decoder.embeddings.word_embeddings.weight", "lm_head.weight", "lm_head.bias"):
        filler = torch.full_like(whole.state_dict()[name], -1e4 if name.endswith("bias") else 0.0)
        weights[name] = filler.index_copy(0, torch.tensor(WORDS), weights[name])
    whole.load_state_dict({**weights, "target_token_ids": torch.arange(60)})
    return whole


OPTIONS = [
    {"suppress_tokens": [58, 8, 25]},
    {"begin_suppress_tokens": [8, *WORDS[4:15]]},
    {"bad_words_ids": [[8], [8, 58], [58], [10], *([a, b] for a in WORDS[4:12] for b in WORDS[8:])]},
    {"sequence_bias": {(8,): 9.0, (58,): 4.0, (58, 58): -9.0}},
    {"sequence_bias": [[[58], 4.0], [[8], 9.0], [[58, 58], -9.0]]},
    {"forced_bos_token_id": 58},
    {"forced_eos_token_id": [58]},
    {"eos_token_id": [END, 22]},
    {"eos_token_id": torch.tensor([43, 22])},
]


def every_other(sentence: int, said: Tensor) -> list[int]:
    """Tokenizer ids: no word follows itself, 8 is never allowed, and the second sentence has no 58."""
    return [word for word in WORDS if word not in (8, 58 * sentence, said[-1])]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: next(iter(option)))
def test_ids_in_options_are_those_of_the_tokenizer(option: dict[str, Any], chatty: MakeModel) -> None:
    """As the same model with a column for each tokenizer id reads them; 8 has a column there alone."""
    model = chatty()
    whole = with_all_words(model)
    for number in (1, 3):
        plain = {"num_beams": number, "max_new_tokens": 9, "pad_token_id": PADDING, "eos_token_id": END}
        expected = whole.generate(**source(), target_language=LANGUAGES, **plain | option).tolist()
        assert expected != whole.generate(**source(), target_language=LANGUAGES, **plain).tolist()
        assert model.generate(**source(), target_language=LANGUAGES, **plain | option).tolist() == expected
        asked = GenerationConfig(**plain | option)
        before = str(asked.to_dict())
        said = model.generate(**source(), target_language=LANGUAGES, generation_config=asked)
        assert said.tolist() == expected and str(asked.to_dict()) == before


def test_a_function_of_allowed_tokens_is_called_with_tokenizer_ids(chatty: MakeModel) -> None:
    model = chatty()
    whole = with_all_words(model)
    for number in (1, 3):
        plain = {"num_beams": number, "max_new_tokens": 9, "target_language": LANGUAGES}
        expected = whole.generate(**source(), **plain, prefix_allowed_tokens_fn=every_other)
        assert not torch.equal(whole.generate(**source(), **plain), expected)
        assert torch.equal(model.generate(**source(), **plain, prefix_allowed_tokens_fn=every_other), expected)


def test_what_the_model_has_in_its_own_settings_is_not_translated_again(chatty: MakeModel) -> None:
    model = chatty()
    expected = model.generate(**source(), target_language=LANGUAGES, **PLAIN, suppress_tokens=[58, 25])
    assert not torch.equal(model.generate(**source(), target_language=LANGUAGES, **PLAIN), expected)
    model.generation_config.update(**PLAIN, suppress_tokens=columns(model, [58, 25]))
    for settings in ({}, {"generation_config": deepcopy(model.generation_config)}):
        assert torch.equal(model.generate(**source(), target_language=LANGUAGES, **settings), expected)


def test_words_that_the_decoder_does_not_have_need_not_be_left_out(chatty: MakeModel) -> None:
    model = chatty()
    plain = model.generate(**source(), target_language=LANGUAGES, **PLAIN)
    for option in ({"suppress_tokens": [8]}, {"bad_words_ids": [[8, 25]]}, {"sequence_bias": {(8,): 9.0}}):
        assert torch.equal(model.generate(**source(), target_language=LANGUAGES, **PLAIN, **option), plain)


def test_options_that_cannot_mean_anything_are_refused(chatty: MakeModel) -> None:
    model, whole = chatty(), chatty(cut=False)
    for name in ("forced_bos_token_id", "forced_eos_token_id", "eos_token_id"):
        with pytest.raises(ValueError, match=f"{name} is 8, which this decoder cannot generate; .*target_token_ids"):
            model.generate(**source(), target_language="de", **{name: 8})
    of_all_words = {"stop_strings": "a", "encoder_repetition_penalty": 1.5, "encoder_no_repeat_ngram_size": 1}
    of_all_words["watermarking_config"] = WatermarkingConfig()
    for name, value in of_all_words.items():
        with pytest.raises(ValueError, match=f"{name} needs .* 60 words .*, this one has 22; leave it out"):
            model.generate(**source(), target_language="de", **{name: value})
    for each in (model, whole):
        with pytest.raises(ValueError, match="guidance_scale is 2.0; .* leave it out"):
            each.generate(**source(), target_language="de", generation_config=GenerationConfig(guidance_scale=2.0))
        without_effect = {"guidance_scale": 1.0, "encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0}
        plain = each.generate(**source(), target_language="de", **PLAIN)
        assert torch.equal(each.generate(**source(), target_language="de", **PLAIN, **without_effect), plain)
    penalised = whole.generate(**source(), target_language="de", **PLAIN, encoder_repetition_penalty=3.0)
    assert not torch.equal(penalised, whole.generate(**source(), target_language="de", **PLAIN))


def test_a_string_stops_a_decoder_of_all_words(chatty: MakeModel) -> None:
    model, inputs = chatty(cut=False), {"input_ids": torch.tensor([SOURCE[0]]), "target_language": "de"}
    letters = {chr(ord("一") + number): number for number in range(model.config.vocab_size - 1)}
    letters["abcdef"] = len(letters)  # a text that transformers tokenizes to try
    said = model.generate(**inputs, **PLAIN)[0].tolist()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(letters, "一")))
    stop = {"stop_strings": [*letters][said[2]], "tokenizer": tokenizer}
    assert model.generate(**inputs, **PLAIN, **stop)[0].tolist() == said[: said.index(said[2]) + 1]


# --- ids and languages ----------------------------------------------------------------------------------------------


def test_ids_of_words_go_there_and_back(translator: MakeModel) -> None:
    model = translator()
    words = torch.tensor([[0, 1, 2], [3, 7, 58], [8, 59, -100]])  # the decoder lacks 8 and 59
    assert model.target_ids(words).tolist() == [[0, 1, 2], [3, 4, 21], [3, 3, -100]]
    assert model.token_ids(torch.tensor([0, 1, 2, 3, 4, 21, 22, 23])).tolist() == [0, 1, 2, 3, 7, 58, END, END]
    assert model.target_ids(words.T).T.tolist() == model.target_ids(words).tolist()


def test_labels_are_shifted_right_behind_the_start(translator: MakeModel) -> None:
    model = translator()
    labels = torch.tensor([[7, 58, 8, END], [10, END, -100, -100]])
    shifted = model.prepare_decoder_input_ids_from_labels(labels, torch.tensor([23, 22]))
    assert shifted.tolist() == [[23, 4, 21, UNKNOWN], [22, 5, END, PADDING]]
    assert translator(languages=["sw"]).prepare_decoder_input_ids_from_labels(labels)[:, 0].tolist() == [22, 22]
    assert translator(languages=None).prepare_decoder_input_ids_from_labels(labels)[:, 0].tolist() == [END, END]
    with pytest.raises(ValueError, match=r"\['de', 'fr'\]; choose one"):
        model.prepare_decoder_input_ids_from_labels(labels)


def test_start_ids_without_effect_are_refused(translator: MakeModel) -> None:
    """DataCollatorForSeq2Seq, given the model, begins all rows with one start id: each would be of that language."""
    model, labels = translator(), padded(LABELS, -100)
    starts = model.start_ids_of(LANGUAGES)
    given = model.prepare_decoder_input_ids_from_labels(labels, starts)
    expected = model(**source(), labels=labels, start_ids=starts).loss
    assert model(**source(), labels=labels, decoder_input_ids=given).loss == expected
    for more in ({"decoder_input_ids": given}, {"decoder_inputs_embeds": model.embed(given)}):
        with pytest.raises(ValueError, match="start_ids have no effect on given decoder inputs"):
            model(**source(), labels=labels, start_ids=starts, **more)


def test_each_row_is_translated_into_its_language(chatty: MakeModel) -> None:
    model = chatty()
    into = {name: model.generate(**source(), target_language=name, **PLAIN).tolist() for name in ("de", "fr")}
    assert into["de"] != into["fr"]

    def words(row: list[int]) -> list[int]:
        return [word for word in row if word != PADDING]

    rows = model.generate(**source(), target_language=LANGUAGES, **PLAIN).tolist()
    assert [words(row) for row in rows] == [words(into[name][at]) for at, name in enumerate(LANGUAGES)]
    ids = model.start_ids_of(LANGUAGES)
    assert ids.tolist() == [23, 22, 23] == starts(model, LANGUAGES)
    assert model.generate(**source(), start_ids=ids, **PLAIN).tolist() == rows
    assert model.generate(**source(), decoder_start_token_id=23, **PLAIN).tolist() == into["fr"]
    model.generation_config.decoder_start_token_id = 22
    assert model.generate(**source(), **PLAIN).tolist() == into["de"]


def test_a_language_is_asked_for_by_name_where_there_are_several(translator: MakeModel) -> None:
    model = translator()
    for call in (
        lambda: model.generate(**source()),
        lambda: model.generate(**source(), generation_config=GenerationConfig(max_length=5)),
        lambda: model(**source(), labels=padded(LABELS, -100)),
    ):
        with pytest.raises(ValueError, match=r"translates into \['de', 'fr'\].*target_language"):
            call()
    with pytest.raises(ValueError, match=r"no target language es, zh.*\['de', 'fr'\]"):
        model.generate(**source(), target_language=["zh", "de", "es"])
    for languages in (["de"], ["de"] * 4):
        with pytest.raises(ValueError, match=f"there are {len(languages)} target languages for 3 sources; give one"):
            model.generate(**source(), target_language=languages)
    with pytest.raises(ValueError, match="one, unnamed"):
        translator(languages=None).start_ids_of(["de"])
    for languages, start in ((["de"], len(WORDS)), (None, END)):
        single = translator(languages=languages)
        assert single.generation_config.decoder_start_token_id == start
        assert single.generate(**source(), **PLAIN)[:, 0].tolist() == [END] * 3


def test_what_is_returned_streamed_and_given_as_a_beginning_are_tokenizer_ids(chatty: MakeModel) -> None:
    class Heard:
        def __init__(self) -> None:
            self.ids: list[int] = []
            self.over = False

        def put(self, ids: Tensor) -> None:
            self.ids += ids.flatten().tolist()

        def end(self) -> None:
            self.over = True

    model, heard = chatty(cls_bias="cosine"), Heard()
    said = model.generate(**source(rows=slice(1)), target_language="fr", streamer=heard, **PLAIN)
    assert {*said[0].tolist()} <= {*WORDS} and max(said[0].tolist()) > len(WORDS)
    assert heard.ids == said[0].tolist() and heard.over
    everything = model.generate(**source(), target_language="fr", return_dict_in_generate=True, **PLAIN)
    assert everything.sequences[0, : len(said[0])].tolist() == said[0].tolist()
    for beginning in (said[:, :4], said[:, 1:4]):  # with </s> for the start token, and without
        more = model.generate(
            **source(rows=slice(1)), target_language=["fr"], decoder_input_ids=beginning, num_beams=1, max_length=10
        )
        assert more.tolist() == said.tolist()
    other = [[END, 13, 58], [END, 7, 7], [END, 10, 16]]
    found = model.generate(
        **source(), target_language=LANGUAGES, decoder_input_ids=torch.tensor(other), num_beams=2, max_length=10
    )
    assert found[:, :3].tolist() == other


def test_a_mask_of_a_beginning_is_of_all_its_tokens(chatty: MakeModel) -> None:
    """Without the start token it would be too short, and the last token of the beginning masked at each step."""
    model, beginning = chatty(), torch.tensor([[13, 58], [7, 7], [10, 16]])
    settings: dict[str, Any] = {"target_language": LANGUAGES, "num_beams": 1, "max_new_tokens": 3}
    settings |= {"return_dict_in_generate": True, "output_logits": True}
    expected = model.generate(**source(), **settings, decoder_input_ids=beginning).logits
    for ids in (beginning, F.pad(beginning, (1, 0), value=END)):
        mask = torch.ones_like(ids)
        found = model.generate(**source(), **settings, decoder_input_ids=ids, decoder_attention_mask=mask).logits
        torch.testing.assert_close(found, expected)
    padded_at_left = torch.tensor([[PADDING, 58], [7, 7], [10, 16]])
    mask = (padded_at_left != PADDING).long()
    found = model.generate(**source(), **settings, decoder_input_ids=padded_at_left, decoder_attention_mask=mask).logits
    torch.testing.assert_close([each[1:] for each in found], [each[1:] for each in expected])


def test_a_translation_goes_on_where_another_one_stopped(chatty: MakeModel) -> None:
    model = chatty()
    settings = {"target_language": LANGUAGES, "num_beams": 1, "eos_token_id": None}
    whole = model.generate(**source(), **settings, max_length=9)
    begun = model.generate(**source(), **settings, max_length=5, return_dict_in_generate=True)
    assert torch.equal(begun.sequences, whole[:, :5])
    more = model.generate(
        **source(), **settings, max_length=9, decoder_input_ids=begun.sequences, past_key_values=begun.past_key_values,
        decoder_attention_mask=torch.ones_like(begun.sequences),
    )  # fmt: skip
    assert torch.equal(more, whole)


def test_a_target_longer_than_the_positions_is_refused(translator: MakeModel) -> None:
    model = translator(languages=None)
    for number in (64, 65):
        labels = torch.full((1, number), 7)
        if number == 64:
            assert model(**source(rows=slice(1)), labels=labels).loss > 0
        else:
            with pytest.raises(ValueError, match="65 tokens; the decoder has positions for 64"):
                model(**source(rows=slice(1)), labels=labels)
    with pytest.raises(ValueError, match="labels or decoder_input_ids"):
        model(**source())


# --- learning -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", ["none", "dot", "cosine"])
def test_what_was_learned_is_generated_for_each_language(bias: str, translator: MakeModel) -> None:
    """Loss, shifting, start tokens and ends fit together."""
    model = translator(cls_bias=bias, initializer_range=0.1).float().train()
    labels, chosen = padded(LABELS, -100), ["de", "fr", "de"]
    other = padded([[10, 7, END], [END], [55, 52, 49, END]], -100)
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        for wanted, names in ((labels, chosen), (other, ["fr", "de", "fr"])):
            loss = model(**source(), labels=wanted, start_ids=model.start_ids_of(names)).loss
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    model.eval()
    for wanted, names in ((labels, chosen), (other, ["fr", "de", "fr"])):
        said = model.generate(**source(), target_language=names, num_beams=2, max_new_tokens=9)[:, 1:]
        expected = wanted.masked_fill(wanted == -100, PADDING).masked_fill(wanted == 8, UNKNOWN)
        assert said.tolist() == expected[:, : said.shape[1]].tolist()


def test_a_frozen_encoder_learns_nothing_while_all_of_the_decoder_does(translator: MakeModel) -> None:
    model = translator().train()
    model.roberta.requires_grad_(False)
    model(**source(), labels=padded(LABELS, -100), start_ids=model.start_ids_of(LANGUAGES)).loss.backward()
    learned = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert learned == {name for name, _ in model.named_parameters() if not name.startswith("roberta.")}
    assert model.lm_head.weight is model.decoder.embeddings.word_embeddings.weight


def test_word_embeddings_have_one_gradient_for_look_ups_and_predictions(
    translator: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Tensor] = []

    def spy(hidden: Tensor, embeddings: Tensor, *rest: Any) -> Tensor:
        used.append(embeddings)
        return linear_cross_entropy(hidden, embeddings, *rest)

    monkeypatch.setattr("hictl_hf.models.translation_model.linear_cross_entropy", spy)
    model = translator(languages=None).train()
    model(**source(), labels=padded(LABELS, -100))
    assert "TiedEmbedding" in type(used[0].grad_fn).__name__ and torch.equal(used[0], model.lm_head.weight)


def test_frozen_or_hooked_word_embeddings_are_left_to_autograd(translator: MakeModel) -> None:
    given = {**source(), "labels": padded(LABELS, -100), "start_ids": torch.tensor([23, 22, 22])}
    model = translator().train()
    expected = model(**given).loss
    expected.backward()
    words = model.decoder.embeddings.word_embeddings
    gradient, seen = words.weight.grad.clone(), []
    model.zero_grad()
    handle = words.register_forward_hook(lambda *_: seen.append(1))
    loss = model(**given).loss
    loss.backward()
    handle.remove()
    assert seen and torch.equal(loss, expected)
    close(words.weight.grad, gradient)
    model.zero_grad()
    words.weight.requires_grad_(False)
    loss = model(**given).loss
    loss.backward()
    assert words.weight.grad is None
    close(loss, expected)


@pytest.mark.parametrize("bias", ["none", "dot", "cosine"])
def test_half_precision_is_close_to_full(bias: str, translator: MakeModel) -> None:
    model = translator(cls_bias=bias)
    labels, start_ids = padded(LABELS, -100), model.start_ids_of(LANGUAGES)
    inputs = {**source(), "labels": labels, "start_ids": start_ids, "label_smoothing": 0.1}
    expected = model(**inputs).loss
    single = translator(cls_bias=bias).float()
    half = translator(cls_bias=bias).to(torch.bfloat16)
    for training in (False, True):
        with torch.autocast("cpu", torch.bfloat16):
            mixed = single.train(training)(**inputs).loss
        loss = half.train(training)(**inputs).loss
        assert mixed.dtype == torch.float32 and mixed.item() == pytest.approx(expected.item(), rel=0.05)
        assert loss.item() == pytest.approx(expected.item(), rel=0.05)
    loss.backward()
    assert all(weight.grad.isfinite().all() for weight in half.parameters())
    said = half.eval().generate(**source(), target_language=LANGUAGES, num_beams=3, max_new_tokens=9)
    assert said.shape[0] == 3
    with torch.autocast("cpu", torch.bfloat16):
        assert single.eval().generate(**source(), target_language=LANGUAGES, num_beams=3, max_new_tokens=9).ndim == 2


@pytest.mark.slow
@pytest.mark.parametrize("bias", ["dot", "cosine"])
def test_a_compiled_model_gives_the_same(bias: str, translator: MakeModel) -> None:
    model = translator(cls_bias=bias, num_hidden_layers=1, decoder_layers=1)
    inputs = {**source(), "decoder_input_ids": torch.tensor([[22, 5, 9]] * 3)}
    expected = model(**inputs).logits
    close(torch.compile(model, fullgraph=True)(**inputs).logits, expected)
    inputs = {**source(), "labels": padded(LABELS, -100), "start_ids": model.start_ids_of(LANGUAGES)}
    loss = model.train()(**inputs).loss
    close(torch.compile(model)(**inputs).loss, loss)


def test_a_new_size_of_the_vocabulary_is_the_encoders(tmp_path: Path, translator: MakeModel) -> None:
    for cut in (True, False):  # of a decoder with all words: `test_supported_versions.py`
        model = translator(cut=cut)
        before = model(**source(), decoder_input_ids=torch.tensor([[22, 5]] * 3)).logits
        model.resize_token_embeddings(70)
        assert (model.config.vocab_size, len(model.roberta.get_input_embeddings().weight)) == (70, 70)
        model.save_pretrained(tmp_path)
        for each in (model, HictlForConditionalGeneration.from_pretrained(tmp_path)):
            logits = each(**source(), decoder_input_ids=torch.tensor([[22, 5]] * 3)).logits
            close(logits[..., : before.shape[-1]], before)
            assert each.start_ids_of(["fr"]).tolist() == [len(WORDS) + 1 if cut else 71]


# --- what loads from what -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encoders(
    tmp_path_factory: pytest.TempPathFactory, toy_model: Callable[..., PreTrainedModel], toy_config: Any
) -> dict[str, Any]:
    """Folders of what an encoder may come from, and models."""
    folders = tmp_path_factory.mktemp("encoders")
    stock = XLMRobertaConfig().to_dict().keys() - {"model_type", "transformers_version"}
    config = XLMRobertaConfig(**{name: getattr(toy_config(), name) for name in stock})
    torch.manual_seed(8)
    XLMRobertaForMaskedLM(config).save_pretrained(folders / "xlm-r")
    model = toy_model(seed=9, word_temperature=0.2)
    model.save_pretrained(folders / "pre-training")
    export_encoder(model, folders / "plain")  # its pooler is our projection
    return {
        **{path.name: path for path in folders.iterdir()},
        "a name": str(folders / "xlm-r"),
        "model": model,
        "in half precision": XLMRobertaModel(config).to(torch.bfloat16),
    }


KINDS = ["xlm-r", "pre-training", "plain", "a name", "model", "in half precision"]


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_translation_model_starts_from_any_encoder(
    kind: str, cut: bool, encoders: dict[str, Any], tmp_path: Path, transformers_warnings: pytest.LogCaptureFixture
) -> None:
    given = encoders[kind]
    model = HictlForConditionalGeneration.from_encoder(
        given, WORDS if cut else None, ["de"], decoder_layers=2, cls_bias="cosine", initializer_range=0.05
    )
    assert not transformers_warnings.messages
    encoder = given.base_model if isinstance(given, PreTrainedModel) else HictlModel.from_pretrained(given)
    weights = encoder.state_dict()
    for name, value in model.roberta.state_dict().items():
        assert torch.equal(value, weights[name].float()), name
    words = WORDS if cut else list(range(200))
    rows = encoder.get_input_embeddings().weight[words]
    assert torch.equal(model.lm_head.weight, rows.float()) and model.target_token_ids.tolist() == words
    assert model.lm_head.weight is model.decoder.get_input_embeddings().weight
    rows.data.zero_()
    assert model.lm_head.weight.abs().sum() > 0  # a copy
    assert model.dtype == torch.float32 and not model.training
    config = model.config
    assert config.decoder_vocab_size == (len(words) if cut else None) and len(model.decoder.encoder.layer) == 2
    assert config.word_temperature == (0.2 if kind in ("pre-training", "model") else 0.05)
    assert config.model_type == "hictl" and config.is_encoder_decoder and config.special_token_ids[-1] == 199
    settings = model.generation_config
    assert (settings.num_beams, settings.length_penalty, settings.early_stopping) == (5, 1.0, True)
    assert settings.max_length == 64  # the positions of so small a decoder; 200 where there are more
    assert settings.suppress_tokens == ([PADDING] if cut else [PADDING, 199])
    model.save_pretrained(tmp_path)
    for cls in (HictlForConditionalGeneration, AutoModelForSeq2SeqLM):
        loaded = cls.from_pretrained(tmp_path)
        assert type(loaded) is HictlForConditionalGeneration
        assert loaded.generation_config.to_dict() == settings.to_dict()
        assert settings.decoder_start_token_id == len(words)
        for (name, value), (other, weight) in zip(loaded.state_dict().items(), model.state_dict().items()):
            assert name == other and torch.equal(value, weight)
        said = [each.generate(**source(), max_length=5) for each in (model, loaded)]
        assert torch.equal(*said)
    assert not transformers_warnings.messages


def test_a_setting_that_is_no_field_is_refused(encoders: dict[str, Any]) -> None:
    make = HictlForConditionalGeneration.from_encoder
    with pytest.raises(TypeError, match="unexpected arguments decoder_layer, num_beams; allowed are the fields of Hi"):
        make(encoders["model"], decoder_layer=1, num_beams=4)
    made = make(encoders["model"], decoder_layers=1, attn_implementation="eager")
    assert made.config._attn_implementation == made.decoder.config._attn_implementation == "eager"


def test_the_default_length_is_200_where_positions_allow(toy_config: Any) -> None:
    encoder = HictlModel(toy_config(max_position_embeddings=514))
    model = HictlForConditionalGeneration.from_encoder(encoder, decoder_layers=1, target_languages=["de", "fr"])
    assert model.generation_config.max_length == 200
    assert model.generation_config.decoder_start_token_id is None


def test_the_encoder_of_a_translation_model_can_begin_another(tmp_path: Path, translator: MakeModel) -> None:
    model = translator()
    model.save_pretrained(tmp_path)
    other = HictlForConditionalGeneration.from_encoder(tmp_path, target_languages=["ro"], decoder_layers=1)
    assert other.config.decoder_vocab_size is None and other.config.target_languages == ["ro"]
    again = HictlForConditionalGeneration.from_encoder(model, WORDS, decoder_layers=1)
    assistant = HictlForConditionalGeneration.from_encoder(model, model.target_token_ids, decoder_layers=1)
    assert assistant.target_token_ids.tolist() == WORDS
    with pytest.raises(Exception, match="target_languages"):  # no letters of its name
        HictlForConditionalGeneration.from_encoder(model, target_languages="ro", decoder_layers=1)
    for each in (other, again):
        for name, value in each.roberta.state_dict().items():
            close(value, model.roberta.state_dict()[name].float())


def test_a_checkpoint_of_xlm_r_loaded_as_it_is_keeps_the_start_and_has_nothing_uninitialised(
    encoders: dict[str, Any], tmp_path: Path
) -> None:
    torch.use_deterministic_algorithms(True)  # memory that nobody initialises holds NaN or the largest integer
    try:
        model, report = HictlForConditionalGeneration.from_pretrained(
            encoders["xlm-r"], output_loading_info=True, decoder_layers=1, target_languages=["sw"]
        )
    finally:
        torch.use_deterministic_algorithms(False)
    assert model.generation_config.decoder_start_token_id == 200
    assert model.target_token_ids.tolist() == list(range(200)) and model.cls_bias_scale.tolist() == [0]
    assert all(value.isfinite().all() for value in model.state_dict().values())
    assert {"cls_bias_scale", "start_embeddings.weight"} < set(report["missing_keys"])
    assert not report["unexpected_keys"]
    model.save_pretrained(tmp_path)
    loaded = HictlForConditionalGeneration.from_pretrained(tmp_path)
    assert loaded.generation_config.decoder_start_token_id == 200


BAD_IDS = {
    "no special tokens": [4, 5, 6, 7, 8],
    "not ascending": [0, 1, 2, 3, 9, 7],
    "twice": [0, 1, 2, 3, 7, 7],
    "beyond the vocabulary": [0, 1, 2, 3, 200],
    "none": [],
}


@pytest.mark.parametrize("bad", BAD_IDS)
def test_target_words_no_decoder_can_be_made_of_are_refused(bad: str, encoders: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="below 200: first 0, 1, 2, 3 .* then others, ascending, each once"):
        HictlForConditionalGeneration.from_encoder(encoders["model"], BAD_IDS[bad])


def test_an_encoder_of_no_family_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    other = RobertaModel(RobertaConfig(vocab_size=30, **sizes))
    other.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="'roberta'; allowed are encoders of xlm-roberta"):
        HictlForConditionalGeneration.from_encoder(tmp_path)
    with pytest.raises(ValueError, match="RobertaModel; allowed are encoders of xlm-roberta"):
        HictlForConditionalGeneration.from_encoder(other)


# --- code on the Hub ------------------------------------------------------------------------------------------------

ELSEWHERE = """
import sys
from pathlib import Path

sys.modules["hictl_hf"] = None  # as if it were not installed
import torch, transformers

torch.set_num_threads(1)
folders, inputs, outputs = Path(sys.argv[1]), torch.load(sys.argv[2]), {}
for name, folder in (("loaded", "translator"), ("saved again", "again")):
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folders / folder, trust_remote_code=True)
    outputs[name] = model.generate(**inputs, target_language=["fr", "de", "fr"], num_beams=3, max_new_tokens=9)
    outputs[f"class of {name}"] = f"{type(model).__module__.split('.')[0]}.{type(model).__name__}"
    model.save_pretrained(folders / "again")
encoder = transformers.AutoModel.from_pretrained(folders / "translator", trust_remote_code=True)
outputs["class of the encoder"] = type(encoder).__name__
with torch.no_grad():
    outputs["encoder"] = encoder(**inputs)[0]
torch.save(outputs, folders / "outputs.pt")
"""


def test_a_saved_model_translates_where_the_package_is_not_installed(tmp_path: Path, translator: MakeModel) -> None:
    model = translator(cls_bias="cosine").float()
    model.save_pretrained(tmp_path / "translator")
    modules = (
        "cls_bias", "configuration_decoder", "configuration_hictl", "configuration_objective", "encoder_export",
        "families", "gathering", "generation", "gpu", "head_loss", "linear_cross_entropy", "losses",
        "masked_language_model", "modeling_hictl", "modeling_hictl_families", "modeling_hictl_translation",
        "negatives", "objective", "outputs", "packing", "row_attention", "sentence_probability", "short_rows",
        "supported_versions", "target_ids", "translation_model", "word_sampling",
    )  # fmt: skip
    files = {path.name for path in (tmp_path / "translator").glob("*.py")}
    assert files == {f"{module}.py" for module in modules}
    saved = json.loads((tmp_path / "translator/config.json").read_text())
    assert saved["architectures"] == ["HictlForConditionalGeneration"] and saved["is_encoder_decoder"]
    torch.save(source(), tmp_path / "inputs.pt")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["HF_HOME"] = str(tmp_path / "home")
    (tmp_path / "elsewhere").mkdir()
    subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(tmp_path), str(tmp_path / "inputs.pt")],
        cwd=tmp_path / "elsewhere", env=environment, check=True, timeout=300,
    )  # fmt: skip
    there = torch.load(tmp_path / "outputs.pt")
    expected = model.generate(**source(), target_language=LANGUAGES, num_beams=3, max_new_tokens=9)
    for name in ("loaded", "saved again"):
        assert there[f"class of {name}"] == "transformers_modules.HictlForConditionalGeneration"
        assert torch.equal(there[name], expected)
    assert there["class of the encoder"] == "HictlModel"
    torch.testing.assert_close(there["encoder"], model.roberta(**source())[0], rtol=1e-5, atol=1e-5)
    assert {path.name for path in (tmp_path / "again").glob("*.py")} == files


def test_a_pre_training_model_takes_no_translation_code_along(tmp_path: Path, encoders: dict[str, Any]) -> None:
    encoders["model"].save_pretrained(tmp_path)
    assert not (tmp_path / "modeling_hictl_translation.py").exists()
    assert "AutoModelForSeq2SeqLM" not in json.loads((tmp_path / "config.json").read_text())["auto_map"]
