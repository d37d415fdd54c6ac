"""Every word of a sentence of any length gets one tag, that of its first piece."""

from collections.abc import Callable
from itertools import chain

import numpy as np
import pytest
from datasets import Dataset
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from toy_families import bytes_as_letters, gemma_pieces, unigram_pieces, word_pieces
from transformers import BertTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hictl_hf.errors import BadInput
from hictl_hf.xtreme.sentence_pairs import TaskFeatures
from hictl_hf.xtreme.tagging import Tagging, space_before_words

TAGS = ("B-LOC", "I-LOC", "O")
INVISIBLE = "\u200e"  # a word of format characters only


def one_hot(rows: Dataset, labels: int) -> list[NDArray[np.float32]]:
    """Logits, (T, labels) of each row, by which each labelled piece gets its label and each other piece the first."""
    return [np.eye(labels, dtype=np.float32)[np.maximum(row, 0)] for row in map(np.array, rows["labels"])]


@pytest.fixture(scope="module")
def tagged(sentences: dict[str, list[str]]) -> Dataset:
    """Sentences of 0 to 60 words, with words of no piece and of many, each with a random tag."""
    random = np.random.default_rng(1)
    vocabulary = sorted({word for name in sentences for text in sentences[name] for word in text.split()})
    vocabulary += [INVISIBLE, "thecatseesthehouse" * 3, "猫看见房子猫看见房子猫看见房子"]
    words = [[str(word) for word in random.choice(vocabulary, size)] for size in (7, 0, 60, 1, 23, 0, 41)]
    return Dataset.from_dict({"words": words, "tags": [random.choice(TAGS, len(row)).tolist() for row in words]})


@pytest.fixture(scope="module")
def three_letters() -> PreTrainedTokenizerBase:
    """A tokenizer whose pieces are of three letters, after those that show are taken from the others."""
    pieces = ["▁Ber", "lin", "▁ist", "▁ein", "e", "▁Wun", "der", "sch", "öne", "Sta", "dt", "▁in", "▁x"]
    vocabulary = {piece: id for id, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(r"[\p{Cf}\p{Cc}]"), ""), normalizers.Prepend("▁")]
    )
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("▁?.{1,3}"), "isolated")
    template = {"single": "<s> $A </s>", "pair": "<s> $A </s> </s> $B </s>"}
    backend.post_processor = processors.TemplateProcessing(**template, special_tokens=[("<s>", 0), ("</s>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>",
        cls_token="<s>", sep_token="</s>",
    )  # fmt: skip


# --- worked by hand -------------------------------------------------------------------------------------------------


def test_a_long_sentence_is_divided_between_words_as_officially(three_letters: PreTrainedTokenizerBase) -> None:
    # Of 12 tokens <s> and two </s> leave room for 9: Berlin 2 + ist 1 + eine 2 = 5, and 6 more are too many. The word
    # of 10 pieces does not fit into any row, the invisible one has no piece: both become <unk> (3). One of 9 fits.
    words = ["Berlin", "ist", "eine", "WunderschöneStadt", "in", INVISIBLE, "Berlin" * 5, "x"]
    tags = ["B-LOC", "O", "O", "I-LOC", "O", "O", "B-LOC", "I-LOC"]
    examples = Dataset.from_dict({"words": [words, ["WunderschöneStaderschönedt"]], "tags": [tags, ["O"]]})
    kind = Tagging(three_letters, 12, TAGS)
    rows = kind.encode(examples)
    assert rows["input_ids"][:] == [
        [0, 4, 5, 6, 7, 8, 2, 2],
        [0, 9, 10, 11, 12, 13, 14, 15, 3, 3, 2, 2],
        [0, 16, 2, 2],
        [0, 9, 10, 11, 12, 13, 10, 11, 12, 14, 2, 2],
    ]
    assert rows["words"][:] == [[1, 3, 4], [1, 7, 8, 9], [1], [1]] and rows["example"][:] == [0, 0, 0, 1]
    trained = kind.encode(examples, training=True)
    assert trained.column_names == ["input_ids", "labels"] and trained["input_ids"][:] == rows["input_ids"][:]
    no = -100
    assert trained["labels"][:] == [
        [no, 0, no, 2, 2, no, no, no],
        [no, 1, no, no, no, no, no, 2, 2, 0, no, no],
        [no, 1, no, no],
        [no, 2, *[no] * 10],
    ]


def test_a_word_that_does_not_fit_is_the_mask_where_no_token_is_unknown() -> None:
    kind = Tagging(bytes_as_letters(["ab"]), 12, TAGS)
    assert kind.tokenizer.unk_token is None
    assert kind.word_ids(["", "xy" * 9]) == [[kind.tokenizer.mask_token_id]] * 2


@pytest.mark.parametrize("make", [bytes_as_letters, gemma_pieces, word_pieces, unigram_pieces])
def test_a_word_is_read_as_after_a_space_if_the_tokenizer_does_not_see_to_it(
    make: Callable[[list[str]], PreTrainedTokenizerBase],
) -> None:
    """ModernBERT's, mmBERT's and EuroBERT's tokenizers know "berlin" at the begin of a text, " berlin" elsewhere."""
    tokenizer = make(["a cat in berlin sat in berlin"] * 20)
    in_text = tokenizer("a cat in berlin", add_special_tokens=False)["input_ids"]
    words = Tagging(tokenizer, 12, TAGS).word_ids(["cat", "in", "berlin"])
    assert in_text[-sum(map(len, words)) :] == [*chain.from_iterable(words)]


def test_no_space_is_put_before_words_where_the_tokenizer_adds_one(tokenizer: PreTrainedTokenizerBase) -> None:
    """Llama 2's adds a second one, of which "▁▁a" is another piece than that of a text; in XLM-R's it has no effect."""
    llama = Tokenizer(models.BPE({"▁": 0, "a": 1}, []))
    llama.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    assert space_before_words(PreTrainedTokenizerFast(tokenizer_object=llama)) == ""
    assert space_before_words(tokenizer) == ""


def test_rows_have_no_special_token_where_the_tokenizer_adds_none() -> None:
    tokenizer = bytes_as_letters(["a b"])
    tokenizer.backend_tokenizer.post_processor = None
    tokenizer.mask_token = None
    kind = Tagging(tokenizer, 8, ("O",))
    space, a, b = tokenizer(" a b", add_special_tokens=False)["input_ids"]  # of " a" in two, as no text has it
    assert kind.encode(Dataset.from_dict({"words": [["a", "b", "x" * 100]]}))["input_ids"][:] == [
        [space, a, b, tokenizer.eos_token_id]
    ]


def test_a_row_of_a_tokenizer_like_berts_has_one_separator() -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "steve", "smith", "##s"]
    tokenizer = BertTokenizer({piece: id for id, piece in enumerate(pieces)})
    examples = Dataset.from_dict({"words": [["Steve", "Smiths"]]})
    rows = Tagging(tokenizer, 12, TAGS).encode(examples)
    assert rows[0] == {"input_ids": [2, 5, 6, 7, 3], "example": 0, "words": [1, 2]}


def test_tags_are_sorted_after_o_unless_that_is_one_of_them() -> None:
    assert Tagging.label_names(Dataset.from_dict({"tags": [["VERB", "ADJ"], ["NOUN"]]})) == ("O", "ADJ", "NOUN", "VERB")
    assert Tagging.label_names(Dataset.from_dict({"tags": [["O", "I-LOC"], [], ["B-LOC"]]})) == ("B-LOC", "I-LOC", "O")


# --- properties -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_length", [4, 5, 9, 62, 500])
def test_each_word_of_each_sentence_is_tagged_once_whatever_the_length(
    tokenizer: PreTrainedTokenizerBase, tagged: Dataset, max_length: int
) -> None:
    kind: TaskFeatures = Tagging(tokenizer, max_length, TAGS)
    rows, trained = kind.encode(tagged), kind.encode(tagged, training=True)
    lengths = [len(ids) for ids in rows["input_ids"]]
    assert max(lengths) <= max_length and (max_length > 62 or len(rows) > len(tagged))
    assert trained["input_ids"][:] == rows["input_ids"][:]
    assert sum(label != -100 for row in trained["labels"] for label in row) == sum(map(len, tagged["words"]))
    assert kind.decode(tagged, rows, one_hot(trained, len(TAGS))) == kind.references(tagged) == tagged["tags"][:]


def test_rows_hold_as_many_words_as_they_can(tokenizer: PreTrainedTokenizerBase, tagged: Dataset) -> None:
    kind = Tagging(tokenizer, 12, TAGS)
    rows = kind.encode(tagged)[:]
    for at in range(len(rows["example"]) - 1):
        if rows["example"][at] == rows["example"][at + 1]:  # the first word of the next row would not have fitted
            next_words = [*rows["words"][at + 1], len(rows["input_ids"][at + 1]) - 2]
            assert len(rows["input_ids"][at]) + next_words[1] - next_words[0] > 12


def test_pieces_are_those_of_each_word_alone(tokenizer: PreTrainedTokenizerBase, tagged: Dataset) -> None:
    kind = Tagging(tokenizer, 500, TAGS)
    rows = kind.encode(tagged)
    sentences = [words for words in tagged["words"] if words]
    for words, ids in zip(sentences, rows["input_ids"], strict=True):
        tokenized = [tokenizer.tokenize(word) or ["<unk>"] for word in words]
        assert tokenizer.convert_ids_to_tokens(ids)[1:-2] == [piece for word in tokenized for piece in word]
        # what the tokenizer does with words, except that it passes over those without a piece
        given = [word for word in words if word != INVISIBLE]
        split = tokenizer(given, is_split_into_words=True, add_special_tokens=False)["input_ids"]
        assert split == [id for id in ids[1:-2] if id != tokenizer.unk_token_id or INVISIBLE not in words]


def test_a_tag_that_is_none_of_the_labels_is_named_with_its_sentence(
    tokenizer: PreTrainedTokenizerBase, tagged: Dataset
) -> None:
    (number,) = (at for at, tags in enumerate(tagged["tags"]) if len(tags) == 1)
    changed = tagged.map(lambda row: {"tags": ["X"] if len(row["tags"]) == 1 else row["tags"]})
    with pytest.raises(BadInput, match=f"example {number}: has the label 'X'; allowed are B-LOC, I-LOC, O"):
        Tagging(tokenizer, 62, TAGS).encode(changed, training=True)
    with pytest.raises(BadInput, match="not labelled"):
        Tagging.label_names(Dataset.from_dict({"tags": [["O"], None]}))
