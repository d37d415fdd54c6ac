"""Ids are XLM-R's; a corpus becomes the ids that the tokenizer would give, with the lengths the model will see."""

import json
import sys
from pathlib import Path

import pytest
import sentencepiece
from datasets import Dataset
from tokenizers import Tokenizer, pre_tokenizers
from toy_families import TOKENIZERS, bytes_as_letters, gemma_pieces
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hictl_hf.data.layout import WORD_START, word_starts, words_never_sampled
from hictl_hf.data.tokenization import (
    prompt_tokens,
    save_tokenizer,
    space_of,
    token_batches,
    tokenize_corpus,
    tokenize_rows,
    train_tokenizer,
)
from hictl_hf.errors import BadInput

COLUMNS = ("x", "y", "x_lang", "y_lang")


# --- a vocabulary of one's own --------------------------------------------------------------------------------------


def test_special_tokens_have_the_ids_of_xlm_r(tokenizer: PreTrainedTokenizerBase) -> None:
    assert tokenizer.convert_tokens_to_ids(["<s>", "<pad>", "</s>", "<unk>"]) == [0, 1, 2, 3]
    assert tokenizer.mask_token_id == len(tokenizer) - 1
    assert sorted(tokenizer.all_special_ids) == [0, 1, 2, 3, len(tokenizer) - 1]


def test_a_protobuf_that_cannot_read_vocabularies_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers would say that tiktoken is missing."""
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    with pytest.raises(BadInput, match=r"sentencepiece \S+, protobuf \S+: are not compatible.*pip install --upgrade"):
        train_tokenizer(["a small house"], vocab_size=40)


@pytest.mark.parametrize("long", ["zebra " * 900, "猫" * 1500, "Ж" * 5000], ids=["words", "no spaces", "one word"])
def test_a_long_text_is_part_of_a_new_vocabulary(long: str) -> None:
    """SentencePiece leaves out sentences of more than 4192 bytes without an error."""
    tokenizer = train_tokenizer([long, *["a small house"] * 9], vocab_size=60)
    assert tokenizer.unk_token_id not in tokenizer(long[:50])["input_ids"]


@pytest.mark.parametrize("family", TOKENIZERS)
def test_a_saved_tokenizer_is_named_as_transformers_4_names_it(family: str, tmp_path: Path) -> None:
    """It knows no TokenizersBackend, and of special tokens in a list it only says that a list has no keys."""
    tokenizer = TOKENIZERS[family](["the small house", "das kleine Haus"] * 9)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<region>"]})
    save_tokenizer(tokenizer, tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8"))
    assert settings["tokenizer_class"] in ("XLMRobertaTokenizer", "PreTrainedTokenizerFast")
    assert "<region>" in settings["additional_special_tokens"] and "extra_special_tokens" not in settings
    saved = AutoTokenizer.from_pretrained(tmp_path)
    assert type(saved) is type(tokenizer) and saved.all_special_tokens == tokenizer.all_special_tokens
    texts = ["the <region> Haus", "klein"]
    assert saved(texts) == tokenizer(texts) and saved(texts, texts) == tokenizer(texts, texts)


def test_a_saved_tokenizer_neither_cuts_nor_pads_as_its_last_call_did(tmp_path: Path) -> None:
    """The library tokenizers reads both from tokenizer.json."""
    tokenizer = train_tokenizer(["the small house", "das kleine Haus"] * 9, vocab_size=40)
    texts = ["das kleine Haus das kleine Haus", "the"]
    tokenizer(texts, truncation=True, max_length=4, padding="max_length")
    save_tokenizer(tokenizer, tmp_path)
    saved = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [saved.encode(text).ids for text in texts] == tokenizer(texts)["input_ids"]
    assert len(saved.encode(texts[0]).ids) > 4


def test_a_tokenizer_of_defaults_has_no_token_types_in_transformers_4_either(tmp_path: Path) -> None:
    trained = TOKENIZERS["modernbert"](["the small house", "das kleine Haus"] * 9)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained.backend_tokenizer, pad_token=trained.pad_token)
    save_tokenizer(tokenizer, tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8"))
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert settings["model_input_names"] == ["input_ids", "attention_mask"]  # the default of 4 has three


def test_a_pair_is_joined_with_two_separators(tokenizer: PreTrainedTokenizerBase) -> None:
    x, y = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("the cat", "猫"))
    assert x and y and 3 not in x + y  # there is something to join, all of it known
    assert tokenizer("the cat")["input_ids"] == [0, *x, 2]
    assert tokenizer("the cat", "猫")["input_ids"] == [0, *x, 2, 2, *y, 2]
    assert "token_type_ids" not in tokenizer("the cat", "猫")


def test_segmentation_is_that_of_sentencepiece(
    monkeypatch: pytest.MonkeyPatch, sentences: dict[str, list[str]], tmp_path: Path
) -> None:
    class FolderThatStays:
        """`train_tokenizer` throws SentencePiece's own model away; keep it to compare with."""

        def __enter__(self) -> str:
            return str(tmp_path)

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr("hictl_hf.data.tokenization.tempfile.TemporaryDirectory", FolderThatStays)
    tokenizer = train_tokenizer((text for texts in sentences.values() for text in texts), vocab_size=100)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "sentencepiece.bpe.model"))
    texts = [text for texts in sentences.values() for text in texts[::7]]
    for text in [*texts, "two  cats,\u00a0ｆｕｌｌ width", "unseen ж here", "猫 the 狗"]:
        assert tokenizer.tokenize(text) == pieces.encode(text, out_type=str), text
    assert len(tokenizer) == len(pieces) + 2  # <pad> and <mask>
    assert len(tokenizer) <= 100


def test_tokens_that_another_release_has_cached_are_not_read(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, found = Dataset.from_list([dict(zip(COLUMNS, ("the cat", "die Katze", "en", "de")))]), []
    for release in ("0.1", "0.1", "0.2"):
        monkeypatch.setattr("hictl_hf.data.tokenization.__version__", release)
        found.append(tokenize_corpus(rows, tokenizer, 62)[0]._fingerprint)
    assert found[0] == found[1] != found[2]


def test_a_tokenizer_comes_back_through_auto_tokenizer(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert type(loaded) is type(tokenizer)
    assert loaded.model_max_length == tokenizer.model_max_length == 62
    for pair in (("the cat sees", "ein Hund mag 猫"), ("Bücher", "unseen ж")):
        assert loaded(*pair)["input_ids"] == tokenizer(*pair)["input_ids"]
    assert loaded.get_vocab() == tokenizer.get_vocab()


def test_a_vocabulary_smaller_than_the_alphabet_is_refused() -> None:
    with pytest.raises(BadInput, match="vocab_size is 20; allowed is enough for an id of each character"):
        train_tokenizer(["abcdefghijklmnopqrstuvwxyz"] * 5, vocab_size=20)


def test_the_vocabulary_is_smaller_where_the_text_does_not_hold_as_many_pieces() -> None:
    assert 7 < len(train_tokenizer(["a b ab"] * 9, vocab_size=1000)) < 20


@pytest.mark.parametrize("texts", [[], ["", " "]], ids=["no sentence", "only white space"])
def test_text_without_any_word_is_refused_in_words(texts: list[str]) -> None:
    with pytest.raises(ValueError, match="sentence"):
        train_tokenizer(texts, vocab_size=40)


# --- which ids are words --------------------------------------------------------------------------------------------


def test_words_start_where_the_piece_shows_it(tokenizer: PreTrainedTokenizerBase) -> None:
    starts = word_starts(tokenizer)
    assert len(starts) == len(tokenizer)
    assert 10 < sum(starts) < len(tokenizer) - 10
    for piece, begins in zip(tokenizer.convert_ids_to_tokens(range(len(tokenizer))), starts, strict=True):
        assert begins == (piece[0] == "▁")


def test_special_tokens_the_lone_space_and_rows_beyond_the_vocabulary_are_no_words(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    size, lone = len(tokenizer), tokenizer.get_vocab()[WORD_START]
    assert words_never_sampled(tokenizer, size) == [0, 1, 2, 3, lone, size - 1]
    assert words_never_sampled(tokenizer, size + 2) == [0, 1, 2, 3, lone, size - 1, size, size + 1]


# --- a corpus -------------------------------------------------------------------------------------------------------


def test_a_tokenised_corpus_holds_the_ids_of_each_text_without_special_tokens(
    corpus: Dataset, tokenizer: PreTrainedTokenizerBase
) -> None:
    tokens, _ = tokenize_corpus(corpus, tokenizer, max_length=62)
    assert len(tokens) == len(corpus) and {None} < set(corpus["y"])
    for text, row in zip(corpus, tokens, strict=True):
        for side in ("x", "y"):
            ids = None if text[side] is None else tokenizer(text[side], add_special_tokens=False)["input_ids"]
            assert row[side] == ids
        assert (row["x_lang"], row["y_lang"]) == (text["x_lang"], text["y_lang"])


def test_several_processes_tokenize_as_one_does(corpus: Dataset, tokenizer: PreTrainedTokenizerBase) -> None:
    one, several = (tokenize_corpus(corpus, tokenizer, 62, workers)[0] for workers in (None, 2))
    assert one.to_list() == several.to_list() and len(one) > 2


def test_length_is_what_the_joined_row_will_have(corpus: Dataset, tokenizer: PreTrainedTokenizerBase) -> None:
    tokens, _ = tokenize_corpus(corpus, tokenizer, max_length=62)
    joined = [tokenizer(x) if y is None else tokenizer(x, y) for x, y in zip(corpus["x"], corpus["y"], strict=True)]
    assert list(tokens["length"]) == [len(ids["input_ids"]) for ids in joined]


def test_rows_that_will_be_cut_are_counted(corpus: Dataset, tokenizer: PreTrainedTokenizerBase) -> None:
    lengths = sorted(tokenize_corpus(corpus, tokenizer, max_length=62)[0]["length"])
    assert lengths[0] < lengths[40] < lengths[-1]
    assert tokenize_corpus(corpus, tokenizer, max_length=lengths[-1])[1] == 0
    assert tokenize_corpus(corpus, tokenizer, max_length=lengths[0] - 1)[1] == len(corpus)
    limit = lengths[40]
    assert tokenize_corpus(corpus, tokenizer, max_length=limit)[1] == sum(length > limit for length in lengths)


@pytest.mark.parametrize("y", [[None, None], ["ein Hund", "die Katze"]], ids=["only text", "only pairs"])
def test_a_corpus_may_hold_only_text_or_only_pairs(y: list[str | None], tokenizer: PreTrainedTokenizerBase) -> None:
    rows = dict(zip(COLUMNS, (["a dog", "the cat"], y, ["en"] * 2, ["de" if text else None for text in y])))
    tokens, cut = tokenize_corpus(Dataset.from_dict(rows), tokenizer, max_length=62)
    assert cut == 0
    assert [row is None for row in tokens["y"]] == [text is None for text in y]


def test_pairs_in_other_columns_are_refused_with_the_way_to_rename_them(tokenizer: PreTrainedTokenizerBase) -> None:
    pairs = Dataset.from_dict({"anchor": ["a dog"], "positive": ["ein Hund"]})
    with pytest.raises(BadInput, match="a corpus has the columns anchor, positive; needed are the texts x and y, .*"):
        tokenize_corpus(pairs, tokenizer, max_length=62)
    renamed = pairs.rename_columns({"anchor": "x", "positive": "y"})
    assert tokenize_corpus(renamed, tokenizer, max_length=62)[0]["y"][0]


def test_batches_are_of_similar_length_and_hold_what_fits() -> None:
    # longest first: 9 | 5 5 4 (3 * 5 = 15, a fourth would make 20) | 2 2 1
    assert list(token_batches([2, 9, 5, 1, 5, 4, 2], max_tokens=15)) == [[1], [2, 4, 5], [0, 6, 3]]
    assert list(token_batches([4, 50], max_tokens=15)) == [[1], [0]], "what fits nowhere stands alone"
    assert list(token_batches([], max_tokens=15)) == []


def test_the_ids_of_a_prompt_and_then_of_a_text_are_those_of_both(
    tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]]
) -> None:
    prompt = "the old man: "
    ids = prompt_tokens(tokenizer, prompt)
    for text in (texts[at] for texts in sentences.values() for at in (0, 17, 40)):
        both, alone = tokenizer([prompt + text, text], add_special_tokens=False)["input_ids"]
        assert both == ids + alone
    assert prompt_tokens(tokenizer, "") == []


@pytest.mark.parametrize("kind", ["bytes", "Gemma's"])
def test_the_space_of_a_prompt_that_becomes_a_part_of_words_is_put_before_texts(kind: str) -> None:
    texts = ["query the cat", "query the dog", "query der Haus", "query: ", "query: the"] * 9
    tokenizer = bytes_as_letters(texts) if kind == "bytes" else gemma_pieces(texts)
    if kind == "Gemma's":  # as published, it splits nothing: the normalizer has replaced all spaces
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    space, ids = space_of(tokenizer, "query: "), prompt_tokens(tokenizer, "query: ")
    assert space == " " and ids == prompt_tokens(tokenizer, "query:\n")[: len(ids)]
    assert space_of(tokenizer, "query:\n") == space_of(tokenizer, "") == ""
    rows = {"x": ["the cat", "12"], "y": ["(der Haus)", None]}
    tokens = tokenize_rows(rows, tokenizer, space)
    for found, text in zip([*tokens["x"], tokens["y"][0]], ["the cat", "12", "(der Haus)"]):
        assert ids + found == tokenizer("query: " + text, add_special_tokens=False)["input_ids"]
    columns = {name: [*rows[name]] for name in rows} | {"x_lang": ["en"] * 2, "y_lang": ["de", None]}
    assert tokenize_corpus(Dataset.from_dict(columns), tokenizer, 62, space=space)[0]["x"] == tokens["x"]


def test_a_prompt_that_runs_into_the_text_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(BadInput, match="prompt is 'the'; allowed is one whose tokens do not change"):
        prompt_tokens(tokenizer, "the")
