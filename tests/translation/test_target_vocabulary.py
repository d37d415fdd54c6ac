"""A decoder can say all that the target side needs, its characters and its special tokens, and little else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from toy_families import TOKENIZERS
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf import HictlModel
from hictl_hf.data.languages import script_of
from hictl_hf.data.layout import reserved_ids, single_bytes, words_never_sampled
from hictl_hf.data.tokenization import train_tokenizer
from hictl_hf.errors import BadInput
from hictl_hf.models.modeling_hictl_translation import HictlForConditionalGeneration
from hictl_hf.translation.decoding import tokenize
from hictl_hf.translation.target_vocabulary import (
    choose_target_ids,
    count_pieces,
    count_unknown,
    every_id,
    ids_to_keep,
    scripts_of,
)

SPACE = "▁"
GREEK, RUSSIAN, CHINESE = "ένα μεγάλο σπίτι", "большой красный дом", "一个红苹果"


@pytest.fixture(scope="module")
def many_scripts(sentences: dict[str, list[str]]) -> PreTrainedTokenizerBase:
    """A tokenizer of Latin, Greek, Cyrillic and Chinese with some characters of each that no word of ours has."""
    texts = [*sentences["en"], *sentences["de"], *sentences["zh"], *[GREEK, RUSSIAN] * 20]
    return train_tokenizer([*texts, *["q x z ß Ω ξ щ ы 龙 ！ 7"] * 30], vocab_size=400)


def pieces_of(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> set[str]:
    """Pieces without the mark of a word's beginning, special tokens left out."""
    return {piece.strip("▁") for piece in tokenizer.convert_ids_to_tokens(ids)} - {*tokenizer.all_special_tokens}


def scripts_in(pieces: set[str]) -> set[str]:
    return {script_of(character) for piece in pieces for character in piece} - {""}


def test_pieces_that_occur_and_characters_of_the_same_scripts_are_kept(many_scripts: PreTrainedTokenizerBase) -> None:
    ids = choose_target_ids([GREEK, "Ωμέγα!"], many_scripts)
    assert ids[:4] == [0, 1, 2, 3] and ids == sorted(set(ids)) and many_scripts.mask_token_id not in ids
    assert many_scripts.convert_tokens_to_ids("▁") in ids
    kept, every = pieces_of(many_scripts, ids), pieces_of(many_scripts, list(range(len(many_scripts))))
    assert {piece.strip("▁") for piece in many_scripts.tokenize(GREEK)} <= kept and scripts_in(kept) == {"GREEK"}
    assert scripts_in(every) == {"GREEK", "CYRILLIC", "LATIN", "CJK"}
    characters = {piece for piece in every if len(piece) == 1}
    assert kept & characters == {piece for piece in characters if script_of(piece) in ("GREEK", "")}
    assert {"ξ", "Ω", "!", "7"} <= kept  # of which ξ and 7 do not occur


def test_every_text_of_the_target_side_can_be_said(
    many_scripts: PreTrainedTokenizerBase, sentences: dict[str, list[str]]
) -> None:
    texts = sentences["de"] + sentences["zh"]
    ids = {*choose_target_ids(texts, many_scripts)}
    assert len(ids) < len(many_scripts)
    for text in texts:
        assert {*many_scripts(text)["input_ids"]} <= ids


SPECIAL = {  # begin, padding, end, unknown
    "xlm-roberta": ("<s>", "<pad>", "</s>", "<unk>"),
    "bert": ("[CLS]", "[PAD]", "[SEP]", "[UNK]"),
    "modernbert": ("<bos>", "<pad>", "<eos>", "<unk>"),
    "eurobert": ("<|begin_of_text|>", "<|end_of_text|>", "<|end_of_text|>", "<|mask|>"),
    "deberta-v2": ("[CLS]", "[PAD]", "[SEP]", "[UNK]"),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_a_tokenizer_of_any_family_gives_a_vocabulary_in_the_layout_of_xlm_r(
    name: str, sentences: dict[str, list[str]]
) -> None:
    tokenizer = TOKENIZERS[name](text for texts in sentences.values() for text in texts)
    special = tokenizer.convert_tokens_to_ids([*SPECIAL[name]])
    for ids in (chosen := choose_target_ids(sentences["de"], tokenizer), every_id(tokenizer)):
        words = ids[4:]
        assert ids[:4] == special and words == sorted({*words}) and not {*words} & reserved_ids(tokenizer)
        for text in sentences["de"]:
            assert {*tokenizer(text)["input_ids"]} <= {*ids}
    assert len(chosen) < len(ids) == len(tokenizer) - len(reserved_ids(tokenizer)) + 4
    assert len(single_bytes(tokenizer)) == (256 if name in ("modernbert", "eurobert") else 0)
    assert single_bytes(tokenizer) <= {*chosen}, "also where they are marked as special, as by the toy of ModernBERT"
    whole, (cut,) = tokenizer(sentences["de"][0])["input_ids"], tokenize(sentences["de"][:1], tokenizer, 4, cut=True)
    assert cut == [*whole[:3], special[2]]


def test_a_size_keeps_the_most_frequent_of_the_longer_pieces(many_scripts: PreTrainedTokenizerBase) -> None:
    counts = np.zeros(len(many_scripts), np.int64)
    long = [at for at in range(4, len(counts) - 1) if len(many_scripts.convert_ids_to_tokens(at).strip("▁")) > 1]
    chinese, latin = (
        [at for at in long if {script_of(c) for c in many_scripts.convert_ids_to_tokens(at).strip("▁")} == {script}]
        for script in ("CJK", "LATIN")
    )
    counts[latin[:5]] = 50, 40, 30, 20, 10
    counts[2] = 10**6  # </s>, whose s is no letter of a language
    everything = ids_to_keep(counts, many_scripts)
    assert {*latin[:5]} <= {*everything} and not {*latin[5:]} & {*everything} and not {*chinese} & {*everything}
    fewer = ids_to_keep(counts, many_scripts, size=len(everything) - 2)
    assert {*everything} - {*fewer} == {*latin[3:5]}
    characters = len(everything) - 5
    with pytest.raises(
        BadInput, match=f"of LATIN are already {characters} of {len(counts)} ids; allowed is {characters} "
    ):
        ids_to_keep(counts, many_scripts, size=characters - 1)


def test_a_script_of_a_few_names_does_not_bring_its_characters(many_scripts: PreTrainedTokenizerBase) -> None:
    pieces = ["a", "b", "猫"]
    assert scripts_of(pieces, np.array([900, 99, 1])) == {"", "LATIN", "CJK"}  # one of a thousand
    assert scripts_of(pieces, np.array([900, 100, 1])) == {"", "LATIN"}
    ids = choose_target_ids(["the cat sees the house"] * 100 + ["一"], many_scripts)
    assert "龙" not in "".join(pieces_of(many_scripts, ids)) and "一" in "".join(pieces_of(many_scripts, ids))


def test_a_sentence_end_counts_as_no_letters(many_scripts: PreTrainedTokenizerBase) -> None:
    counts = np.zeros(len(many_scripts), np.int64)
    counts[many_scripts(CHINESE, add_special_tokens=False)["input_ids"]] = 1
    counts[2] = 1
    kept = pieces_of(many_scripts, ids_to_keep(counts, many_scripts))
    assert "龙" in "".join(kept) and "ß" not in "".join(kept)


def test_pieces_are_counted_by_language() -> None:
    random, languages = np.random.default_rng(0), ["de", "fr", "de", "zh", "fr", "de"]
    labels = [random.integers(0, 20, random.integers(1, 9)).tolist() for _ in languages]
    rows = Dataset.from_dict({"labels": labels, "target_language": languages}).select([5, 4, 2, 1, 0])
    counts = count_pieces(rows, 20)
    assert counts.keys() == {"de", "fr"}
    for language, found in counts.items():
        slow = [number for row in rows if row["target_language"] == language for number in row["labels"]]
        assert found.tolist() == [slow.count(number) for number in range(20)]


def test_a_vocabulary_without_the_script_of_a_language_is_refused(many_scripts: PreTrainedTokenizerBase) -> None:
    counts = {}
    for language, text in (("el", GREEK), ("ru", RUSSIAN)):
        ids = many_scripts(text, add_special_tokens=False)["input_ids"]
        counts[language] = np.bincount(ids, minlength=len(many_scripts))
    greek = choose_target_ids([GREEK], many_scripts)
    assert count_unknown({"el": counts["el"]}, greek, 3) == {"el": 0}
    with pytest.raises(BadInput, match=r"vocabulary of \d+ ids lacks 85% of the ru tokens; allowed are 10%"):
        count_unknown(counts, greek, 3)


def test_a_few_tokens_without_a_column_are_counted() -> None:
    german, french = np.array([50, 40, 0, 0, 10]), np.array([9, 0, 0, 0, 1])
    assert count_unknown({"de": german, "fr": french}, [0, 1, 2, 3], 3) == {"de": 10, "fr": 1}
    with pytest.raises(BadInput, match="ids lacks 11% of the fr tokens"):
        count_unknown({"de": german, "fr": np.array([8, 0, 0, 0, 1])}, [0, 1, 2, 3], 3)


def test_what_the_tokenizer_does_not_know_is_unknown_to_every_vocabulary() -> None:
    assert count_unknown({"de": np.array([50, 40, 0, 5, 5])}, range(5), 3) == {"de": 5}
    with pytest.raises(BadInput, match=r"tokenizer lacks 30% of the el tokens.*Take an encoder whose tokenizer knows"):
        count_unknown({"el": np.array([50, 20, 0, 30, 0])}, range(5), 3)


@pytest.mark.parametrize("cut", [True, False])
def test_a_decoder_on_a_pre_trained_encoder_can_say_a_lone_space(
    cut: bool, model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    """Pre-training names "▁" among the special ids, as it is no word; "see the dog ." cannot be written without it."""
    special = words_never_sampled(tokenizer, len(tokenizer) + 2)
    encoder = model_for_text(HictlModel, vocab_size=len(tokenizer) + 2, special_token_ids=special)
    space, mask = tokenizer.convert_tokens_to_ids([SPACE, "<mask>"])
    ids = choose_target_ids(["the old man"], tokenizer) if cut else None
    model = HictlForConditionalGeneration.from_encoder(encoder, ids, ["en"], decoder_layers=1)
    assert space in special and space in model.target_token_ids
    suppressed = [1] if cut else [1, mask, mask + 1, mask + 2]  # padding, <mask>, rows beyond the vocabulary
    assert model.generation_config.suppress_tokens == suppressed
    own = model.target_ids(torch.tensor(space)).item()
    model.generation_config.suppress_tokens = [*suppressed, own]
    model.save_pretrained(tmp_path)  # as releases until 0.29.2
    loaded: Any = HictlForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    for each in (loaded[0], AutoModelForSeq2SeqLM.from_pretrained(tmp_path)):
        assert each.generation_config.suppress_tokens == suppressed
