"""Two sentences become one row, cut where they are too long, and logits become the labels that were named."""

import numpy as np
import pytest
from datasets import Dataset
from transformers import BertTokenizer, PreTrainedTokenizerBase

from hictl_hf.errors import BadInput
from hictl_hf.xtreme.sentence_pairs import SentencePairs

LABELS = ("contradiction", "entailment", "neutral")


@pytest.fixture(scope="module")
def pairs(sentences: dict[str, list[str]]) -> Dataset:
    """48 pairs of an English and a Swahili or a Chinese sentence, the last one of 60 words and more."""
    second = sentences["sw"][:24] + sentences["zh"][24:]
    first = [*sentences["en"][:47], " ".join(sentences["en"][:12])]
    labels = [LABELS[at % 3] for at in range(48)]
    return Dataset.from_dict({"first": first, "second": second, "label": labels})


def test_a_row_is_both_sentences_with_the_separators_of_the_tokenizer(
    tokenizer: PreTrainedTokenizerBase, pairs: Dataset
) -> None:
    rows = SentencePairs(tokenizer, 62, LABELS).encode(pairs)
    assert rows.column_names == ["input_ids"] and len(rows) == len(pairs)
    for pair, ids in zip(pairs.select(range(47)), rows["input_ids"]):
        a, b = (tokenizer(pair[side], add_special_tokens=False)["input_ids"] for side in ("first", "second"))
        assert ids == [0, *a, 2, 2, *b, 2] and a and b


def test_the_longer_sentence_loses_its_end(tokenizer: PreTrainedTokenizerBase, pairs: Dataset) -> None:
    a, b = (tokenizer(pairs[47][side], add_special_tokens=False)["input_ids"] for side in ("first", "second"))
    assert len(a) + len(b) + 4 > 30 > 2 * len(b) + 4
    pair = pairs.select([47])
    (ids,) = SentencePairs(tokenizer, 30, LABELS).encode(pair)["input_ids"]
    assert ids == [0, *a[: 26 - len(b)], 2, 2, *b, 2] and len(ids) == 30
    turned = pair.rename_columns({"first": "second", "second": "first"})
    (ids,) = SentencePairs(tokenizer, 30, LABELS).encode(turned)["input_ids"]
    assert ids == [0, *b, 2, 2, *a[: 26 - len(b)], 2]


def test_the_segments_of_a_tokenizer_that_has_them_are_kept(pairs: Dataset) -> None:
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    tokenizer = BertTokenizer({piece: id for id, piece in enumerate((*special, "the", "cat", "paka"))})
    rows = SentencePairs(tokenizer, 62, LABELS).encode(pairs.select([3]), training=True)
    assert sorted(rows.column_names) == ["input_ids", "labels", "token_type_ids"]
    ids, segments = rows[0]["input_ids"], rows[0]["token_type_ids"]
    assert ids[0] == 2 and ids.count(3) == 2 and ids[-1] == 3
    assert segments == sorted(segments) and segments.index(1) == ids.index(3) + 1


def test_labels_are_numbered_in_alphabetical_order_and_come_back(
    tokenizer: PreTrainedTokenizerBase, pairs: Dataset
) -> None:
    assert SentencePairs.label_names(pairs) == LABELS
    assert SentencePairs.label_names(Dataset.from_dict({"label": [*"hgafdcbae"]})) == tuple("abcdefgh")
    with pytest.raises(
        BadInput, match="all training examples have the label 'neutral'; allowed are two labels or more"
    ):
        SentencePairs.label_names(Dataset.from_dict({"label": ["neutral"] * 2}))
    kind = SentencePairs(tokenizer, 62, LABELS)
    rows = kind.encode(pairs, training=True)
    assert rows["labels"][:4] == [0, 1, 2, 0] and rows.column_names == ["input_ids", "labels"]
    logits = list(np.eye(3, dtype=np.float32)[rows["labels"][:]] - 0.5)
    assert kind.decode(pairs, rows, logits) == kind.references(pairs) == pairs["label"][:]


def test_texts_without_labels_are_encoded_but_not_for_training(
    tokenizer: PreTrainedTokenizerBase, pairs: Dataset
) -> None:
    unlabelled = pairs.remove_columns("label").add_column("label", [None] * len(pairs))
    kind = SentencePairs(tokenizer, 62, LABELS)
    assert kind.encode(unlabelled)["input_ids"][:] == kind.encode(pairs)["input_ids"][:]
    with pytest.raises(BadInput, match="not labelled"):
        SentencePairs.label_names(unlabelled)


def test_a_label_that_is_none_of_the_labels_is_named_with_its_example(
    tokenizer: PreTrainedTokenizerBase, pairs: Dataset
) -> None:
    kind = SentencePairs(tokenizer, 62, ("contradiction", "entailment"))
    with pytest.raises(BadInput, match="example 2: has the label 'neutral'; allowed are contradiction, entailment"):
        kind.encode(pairs, training=True)
