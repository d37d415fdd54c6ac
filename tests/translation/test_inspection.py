"""The words that [CLS] proposes and the attention agree with slow computations, and the model stays as it was."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from hictl_hf.models.modeling_hictl_translation import HictlForConditionalGeneration
from hictl_hf.reports.page import Picture
from hictl_hf.reports.tables import Table
from hictl_hf.translation import inspection
from hictl_hf.translation.inspection import attention_picture, look_into, proposal_table


def made(sentences: dict[str, list[str]], number: int = 8) -> list[dict[str, str]]:
    pairs = zip(sentences["en"][:number], sentences["de"])
    return [{"source": a, "target": b, "direction": "en-de", "translation": b[:9]} for a, b in pairs]


def test_the_words_proposed_are_those_that_cls_adds_most_to(
    half_vocabulary_model: HictlForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    sentences: dict[str, list[str]],
) -> None:
    """The slow way: logits of the same weights with the bias minus those without it, at any step."""
    [row] = made(sentences, 1)
    source, said = (tokenizer(row[key], return_tensors="pt") for key in ("source", "translation"))
    before = half_vocabulary_model.prepare_decoder_input_ids_from_labels(
        said["input_ids"], half_vocabulary_model.start_ids_of(["de"])
    )
    with torch.no_grad():
        logits = [half_vocabulary_model(**source, decoder_input_ids=before).logits[0, -1]]
        half_vocabulary_model.config.cls_bias = "none"
        logits.append(half_vocabulary_model(**source, decoder_input_ids=before).logits[0, -1])
        half_vocabulary_model.config.cls_bias = "dot"
    added = (logits[0] - logits[1])[4:]
    added = added - added.mean()  # what all words have in common changes nothing
    expected = added.argsort(descending=True)[:10]
    table = proposal_table(half_vocabulary_model, tokenizer, [row])
    [found] = table.sections.values()
    pieces = tokenizer.convert_ids_to_tokens(
        [int(half_vocabulary_model.target_token_ids[4 + place]) for place in expected]
    )
    assert [line[0].text for line in found] == pieces and len(found) == 10
    assert [float(line[1].text) for line in found] == pytest.approx(added[expected].tolist(), rel=0.01)
    assert [len(line[2].text) for line in found][0] == 20 > len(found[-1][2].text)


def test_proposals_are_marked_where_they_stand_worked_by_hand(
    half_vocabulary_model: HictlForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Three words, in both, in the reference alone, in neither, and a last one that makes the mean of all words 0.
    # Specials have more, and are no words.
    pieces = {
        int(word): tokenizer.convert_ids_to_tokens(int(word)).strip("▁")
        for word in half_vocabulary_model.target_token_ids[4:]
    }
    both, reference, neither, *_, last = (
        word for word, piece in pieces.items() if tokenizer(piece)["input_ids"][1:-1] == [word]
    )
    texts = {word: tokenizer.decode([word]) for word in (both, reference)}
    row = {"source": "the cat", "direction": "en-de", "target": f"{texts[both]} {texts[reference]}"}
    row["translation"] = texts[both]
    bias = torch.zeros(1, len(half_vocabulary_model.target_token_ids))
    bias[0, :4] = 100.0
    for value, word in ((1.0, neither), (2.0, reference), (4.0, both), (-7.0, last)):
        bias[0, int(half_vocabulary_model.target_ids(torch.tensor(word)))] = value
    monkeypatch.setattr(half_vocabulary_model, "word_bias", lambda states, mask: bias)
    monkeypatch.setattr(inspection, "PROPOSALS", 3)
    [found] = proposal_table(half_vocabulary_model, tokenizer, [row]).sections.values()
    assert [[cell.text for cell in line] for line in found] == [
        [tokenizer.convert_ids_to_tokens(both), "4", "━" * 20, "reference and translation"],
        [tokenizer.convert_ids_to_tokens(reference), "2", "━" * 10, "reference"],
        [tokenizer.convert_ids_to_tokens(neither), "1", "━" * 5, ""],
    ]
    assert [line[0].strong for line in found] == [True, True, False]


def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the picture of attention is given, from the next call on."""
    given: dict[str, Any] = {}

    def draw(weights: Any, sources: Sequence[str], targets: Sequence[str], path: Path) -> Path:
        given.update(weights=weights, sources=sources, targets=targets)
        return path

    monkeypatch.setattr(inspection, "plot_attention", draw)
    return given


def test_the_attention_shown_is_that_of_the_layers(
    half_vocabulary_model: HictlForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    sentences: dict[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slow way: queries and keys of each layer, as they pass its projections."""
    [row], given = made(sentences, 1), drawn(monkeypatch)
    passed: dict[tuple[int, str], Any] = {}
    for number, layer in enumerate(half_vocabulary_model.decoder.encoder.layer):
        for name in ("query", "key"):
            projection = getattr(layer.crossattention.self, name)
            projection.register_forward_hook(lambda _, __, out, at=(number, name): passed.update({at: out}))
    before = half_vocabulary_model.decoder.config._attn_implementation
    picture = attention_picture(half_vocabulary_model, tokenizer, row, "de", Path("a.png"))
    heads = half_vocabulary_model.decoder.config.num_attention_heads
    by_layer = []
    for number in range(2):
        queries, keys = (
            passed[number, name][0].unflatten(-1, (heads, -1)).transpose(0, 1) for name in ("query", "key")
        )
        by_layer.append((queries @ keys.transpose(1, 2) / queries.shape[-1] ** 0.5).softmax(-1).mean(0))
    assert np.allclose(given["weights"], torch.stack(by_layer).mean(0).numpy(), atol=1e-5)
    assert given["weights"].std() > 0.01
    assert given["sources"] == tokenizer.convert_ids_to_tokens(tokenizer(row["source"])["input_ids"])
    assert given["targets"] == tokenizer.convert_ids_to_tokens(tokenizer(row["translation"])["input_ids"][1:])
    assert half_vocabulary_model.decoder.config._attn_implementation == before == "sdpa"
    assert row["source"] in picture.caption
    first = given["weights"]
    attention_picture(half_vocabulary_model, tokenizer, row, "zh", Path("a.png"))
    assert not np.allclose(given["weights"], first)  # another start


@pytest.mark.parametrize("broken", ["decoder", "picture"])
def test_an_error_leaves_the_model_as_it_was(
    broken: str,
    half_vocabulary_model: HictlForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    sentences: dict[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the disk is full")

    of, name = (half_vocabulary_model.decoder, "forward") if broken == "decoder" else (inspection, "plot_attention")
    monkeypatch.setattr(of, name, fail)
    modes = [module.training for module in half_vocabulary_model.train().modules()]
    attention = half_vocabulary_model.decoder.config._attn_implementation
    with pytest.raises(OSError, match="disk is full"):
        look_into(half_vocabulary_model, tokenizer, made(sentences), ["de"] * 8, Path("a.png"))
    assert [module.training for module in half_vocabulary_model.modules()] == modes
    assert half_vocabulary_model.decoder.config._attn_implementation == attention
    half_vocabulary_model.eval()


def test_sentences_looked_into_are_of_three_qualities_and_short(
    half_vocabulary_model: HictlForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    sentences: dict[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn(monkeypatch)
    rows = made(sentences, 9)
    rows[4] = {**rows[4], "source": " ".join(["the cat"] * 40)}  # eight remain
    table, picture = look_into(half_vocabulary_model.train(), tokenizer, rows, ["de"] * 9, Path("a.png"))
    assert half_vocabulary_model.training and isinstance(table, Table) and isinstance(picture, Picture)
    assert list(table.sections) == [f"en-de: {rows[at]['source']}" for at in (2, 5, 7)]
    assert f"Source: {rows[5]['source']} " in picture.caption
    assert list(look_into(half_vocabulary_model, tokenizer, [], [], Path("a.png"))) == []
    assert list(look_into(half_vocabulary_model, tokenizer, rows[4:5], ["de"], Path("a.png"))) == []
    monkeypatch.setattr(half_vocabulary_model.config, "cls_bias", "none")
    [only] = look_into(half_vocabulary_model, tokenizer, rows, ["de"] * 9, Path("a.png"))
    assert only == picture
