"""Which words and sentences are near: worked out by hand, and against slow versions of the same."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, XLMRobertaModel

from hictl_hf import export_encoder
from hictl_hf.embedding.encoder import embed_sentences
from hictl_hf.embedding.nearest_words import (
    ALL_LANGUAGES,
    IN_SENTENCE,
    LONGEST,
    SPECIAL_TOKEN,
    Explainer,
    NearSentence,
    NearWord,
    piece_languages,
    sentence_table,
    word_table,
)
from hictl_hf.embedding.pooling import Pooling
from hictl_hf.errors import BadInput


@pytest.fixture(scope="module")
def model(model_for_text: Callable[..., PreTrainedModel]) -> PreTrainedModel:
    return model_for_text()


def first_token(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *texts: str) -> torch.Tensor:
    """(d) the first token's final state, the slow way."""
    with torch.no_grad():
        return model.roberta(tokenizer(*texts, return_tensors="pt")["input_ids"])[0][0, 0].double()


def cosines_one_by_one(state: torch.Tensor, model: PreTrainedModel) -> list[float]:
    rows = model.get_input_embeddings().weight.detach().double()
    return [torch.cosine_similarity(state, row, dim=0).item() for row in rows]


def flat(words: dict[str, list[NearWord]]) -> dict[str, NearWord]:
    return {near.piece: near for group in words.values() for near in group}


# --- words ------------------------------------------------------------------------------------------------------------


def test_a_word_whose_embedding_points_where_the_first_token_does_is_the_nearest(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> None:
    model = model_for_text()
    word = tokenizer.convert_tokens_to_ids("猫")
    assert word not in tokenizer("the cat")["input_ids"]
    with torch.no_grad():
        model.get_input_embeddings().weight[word] = 7 * first_token(model, tokenizer, "the cat")
    words = Explainer(model, tokenizer).words("the cat")
    assert list(words)[:2] == [ALL_LANGUAGES, "CJK"]  # the nearest language first
    for name in (ALL_LANGUAGES, "CJK"):
        assert words[name][0]._replace(similarity=0) == NearWord("猫", 0, None, "")
        assert words[name][0].similarity == pytest.approx(1)


@pytest.mark.parametrize("texts", [("the cat sees the house",), ("the cat", "die Katze")], ids=["x", "x∘y"])
def test_all_words_have_the_cosines_of_a_slow_version(
    texts: tuple[str, ...], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    expected = cosines_one_by_one(first_token(model, tokenizer, *texts), model)
    found = Explainer(model, tokenizer).words(*texts, number=1000)[ALL_LANGUAGES]
    assert [near.similarity for near in found] == pytest.approx(sorted(expected, reverse=True), abs=1e-6)
    ids = tokenizer.convert_tokens_to_ids([near.piece for near in found])
    assert [expected[at] for at in ids] == pytest.approx([near.similarity for near in found], abs=1e-6)
    assert sorted(ids) == list(range(len(tokenizer)))


def test_words_of_the_sentence_and_special_tokens_are_marked_and_specials_have_no_language(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    words = Explainer(model, tokenizer).words("the cat", "猫", number=1000)
    marks = {near.piece: near.mark for near in words[ALL_LANGUAGES]}
    own = {*tokenizer.tokenize("the cat"), *tokenizer.tokenize("猫")} - {"▁"}
    assert {piece for piece, mark in marks.items() if mark == IN_SENTENCE} == own
    specials = {piece for piece, mark in marks.items() if mark == SPECIAL_TOKEN}
    assert specials == {"<s>", "<pad>", "</s>", "<unk>", "<mask>", "▁"}
    assert not specials & {near.piece for name, group in words.items() if name != ALL_LANGUAGES for near in group}
    assert {near.mark for near in words["Latin"]} == {"", IN_SENTENCE}


def test_as_many_words_as_asked_for_are_the_first_of_more(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    explainer = Explainer(model, tokenizer)
    some, more = explainer.words("the cat", number=3), explainer.words("the cat", number=9)
    assert list(some) == list(more)
    assert all(some[name] == more[name][:3] and len(more[name]) == 9 for name in more)


def test_beside_other_texts_words_are_ranked_by_how_much_nearer_they_are_than_to_those(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]]
) -> None:
    among, rows = sentences["de"][:5], [{"en": text} for text in sentences["en"][:7]]
    state = first_token(model, tokenizer, "a dog")
    others = [first_token(model, tokenizer, text) for text in [*among, *(row["en"] for row in rows)]]
    usual = np.mean([cosines_one_by_one(other, model) for other in others], axis=0)
    expected = cosines_one_by_one(state, model) - usual
    found = Explainer(model, tokenizer, rows, among).words("a dog", number=1000)[ALL_LANGUAGES]
    assert [near.above for near in found] == pytest.approx(sorted(expected, reverse=True), abs=1e-6)
    order = [near.similarity for near in found]
    assert order != sorted(order, reverse=True)
    ids = tokenizer.convert_tokens_to_ids([near.piece for near in found])
    assert order == pytest.approx([cosines_one_by_one(state, model)[at] for at in ids], abs=1e-6)


# --- languages --------------------------------------------------------------------------------------------------------


def test_a_piece_belongs_to_the_language_in_whose_texts_its_share_is_the_largest() -> None:
    def tokenizer(texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [list(map(pieces.index, text.split())) for text in texts]}

    pieces = ["the", "house", "cat", "dog"]
    # "cat": 2 of 6 pieces in one language, 1 of 2 in the other; "the" 3 of 6, 1 of 2: of equals the first
    rows = [{"en": "the house"}, {"en": "the cat the cat", "xx": "the cat"}, {"yy": ""}]
    assert piece_languages(tokenizer, pieces, rows) == ["en", "en", "xx", ""]


def test_languages_are_those_of_counting_one_by_one(
    tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [dict(zip(sentences, texts)) for texts in zip(*sentences.values())]
    counts = {name: Counter(piece for row in rows for piece in tokenizer.tokenize(row[name])) for name in sentences}
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    expected = []
    for piece in pieces:
        shares = {name: count[piece] / count.total() for name, count in counts.items()}
        expected.append(max(shares, key=shares.__getitem__) if any(shares.values()) else "")
    for at_once in (7, 1000):
        monkeypatch.setattr("hictl_hf.embedding.nearest_words.ROWS_AT_ONCE", at_once)
        assert piece_languages(tokenizer, pieces, rows) == expected
    assert {*expected} == {"en", "de", "sw", "zh", ""}


def test_stray_letters_are_no_language(tokenizer: PreTrainedTokenizerBase) -> None:
    pieces = [*(f"▁{letter}" for letter in "abcdefghij"), "я", "42"]
    assert piece_languages(tokenizer, pieces) == ["Latin"] * 10 + ["", ""]


# --- sentences --------------------------------------------------------------------------------------------------------


def test_sentences_are_found_by_the_cosine_of_their_vectors_with_the_first_of_their_lines(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]]
) -> None:
    texts = ["", *sentences["de"], " ", *sentences["sw"], sentences["de"][0]]
    found = Explainer(model, tokenizer, among=texts).sentences("the cat", number=1000)
    distinct = [*sentences["de"], *sentences["sw"]]
    vectors = embed_sentences(model, tokenizer, ["the cat", *distinct], normalize=False).astype(np.float64)
    cosines = [vectors[0] @ row / np.linalg.norm(vectors[0]) / np.linalg.norm(row) for row in vectors[1:]]
    assert [near.similarity for near in found] == pytest.approx(sorted(cosines, reverse=True), abs=1e-6)
    assert {near.text for near in found} == {*distinct} and len(found) == 96
    assert all(texts.index(near.text) + 1 == near.line for near in found)


def test_a_sentence_is_the_nearest_to_itself(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]]
) -> None:
    explainer = Explainer(model, tokenizer, among=sentences["en"])
    (near,) = explainer.sentences(sentences["en"][30], number=1)
    assert (near.line, near.text) == (31, sentences["en"][30]) and near.similarity == pytest.approx(1)


def test_of_sentences_that_are_read_alike_the_first_line_is_first(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    found = Explainer(model, tokenizer, among=["a dog", "the  cat", "the cat"]).sentences("the cat", number=2)
    assert [(near.line, near.text) for near in found] == [(2, "the  cat"), (3, "the cat")]


def test_the_pooling_is_the_model_s_own(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]]
) -> None:
    model = model_for_text(embedding_layer=1, embedding_pooling="mean")
    vectors = embed_sentences(model, tokenizer, ["the cat", *sentences["de"]], Pooling("mean", 1))
    found = Explainer(model, tokenizer, among=sentences["de"]).sentences("the cat", number=5)
    expected = np.sort(vectors[1:] @ vectors[0])[::-1][:5]
    assert [near.similarity for near in found] == pytest.approx(expected.tolist(), abs=1e-6)


def test_sentences_are_read_where_it_is_asked_for_and_words_as_before(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]]
) -> None:
    pooling = Pooling("cls", 1)
    explainer = Explainer(model, tokenizer, among=sentences["de"], pooling=pooling)
    vectors = embed_sentences(model, tokenizer, ["the cat", *sentences["de"]], pooling)
    found = [near.similarity for near in explainer.sentences("the cat", number=5)]
    assert found == pytest.approx(np.sort(vectors[1:] @ vectors[0])[::-1][:5].tolist(), abs=1e-6)
    usual = Explainer(model, tokenizer, among=sentences["de"])
    assert usual.sentences("the cat") != explainer.sentences("the cat")
    assert usual.words("the cat") == explainer.words("the cat")


def test_cosines_are_cosines_and_have_the_prompt_of_the_model(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]]
) -> None:
    model = model_for_text(embedding_normalize=False, embedding_prompt="a dog ")
    found = Explainer(model, tokenizer, among=sentences["de"]).sentences("the cat", number=5)
    texts = [f"a dog {text}" for text in ("the cat", *sentences["de"])]
    vectors = embed_sentences(model, tokenizer, texts, prompt="", normalize=True)
    expected = np.sort(vectors[1:] @ vectors[0])[::-1][:5]
    assert [near.similarity for near in found] == pytest.approx(expected.tolist(), abs=1e-6)


# --- what is told -----------------------------------------------------------------------------------------------------


def test_only_a_model_of_the_word_level_objective_goes_without_caution(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    export_encoder(model_for_text(), tmp_path)
    for model, careful in (
        (model_for_text(), False),
        (model_for_text(word_weight=0.0), True),
        (XLMRobertaModel.from_pretrained(tmp_path), True),
    ):
        explainer = Explainer(model, tokenizer)
        assert bool(explainer.caution) == careful
        assert len(explainer.words("the cat", number=2)[ALL_LANGUAGES]) == 2


@pytest.mark.parametrize("rows", [{"de": "das Haus"}, ["das Haus"]])
def test_texts_without_their_languages_are_refused(
    rows: object, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    with pytest.raises(BadInput, match="rows has 'd.*'; allowed are texts under languages"):
        Explainer(model, tokenizer, rows)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sentence", "message"),
    [("", "is empty"), (" \n", "is empty"), ("a\0b", "NUL byte"), ("caf\udce9", "invalid UTF-8")],
)
def test_what_is_no_sentence_is_refused(
    sentence: str, message: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    explainer = Explainer(model, tokenizer, among=["a dog"])
    for ask in (
        lambda: explainer.words(sentence),
        lambda: explainer.words("a dog", sentence),
        lambda: explainer.sentences(sentence),
    ):
        with pytest.raises(BadInput, match=f"the sentence .*{message}"):
            ask()


def test_a_sentence_longer_than_the_model_reads_is_cut(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    explainer = Explainer(model, tokenizer)
    assert explainer.words("the cat " * 500) == explainer.words("the cat " * 900)


def test_tables_hold_no_control_characters_and_no_long_lines() -> None:
    text = "\x1b[31mred\x07\t" + "long " * 100
    told = sentence_table([NearSentence(3, text, 0.25)]).text()
    assert "�[31mred�" in told and not set("\x1b\x07\t") & set(told) and "0.250" in told
    assert max(map(len, told.splitlines())) < LONGEST + 20
    words = {ALL_LANGUAGES: [NearWord("▁a\x1b", 0.5, None, IN_SENTENCE)]}
    assert "▁a�    0.500  in the sentence" in word_table(words).text()
    assert "above" not in word_table(words).text()
    words = {ALL_LANGUAGES: [NearWord("▁a", 0.5, -0.125, "")]}
    assert "▁a     0.500      -0.125" in word_table(words).text()


def test_word_embeddings_with_an_adapter_are_refused_until_it_is_merged(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> None:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(target_modules=["word_embeddings"], init_lora_weights=False)
    adapted = peft.get_peft_model(model_for_text(), settings)
    with pytest.raises(ValueError, match="word embeddings has an adapter that is not merged"):
        Explainer(adapted, tokenizer)
    assert Explainer(adapted.merge_and_unload(), tokenizer).words("the cat")
