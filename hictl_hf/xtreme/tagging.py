"""Tagging of words (part of speech, named entities): sentences to rows of token ids, logits to a tag for each word.

Like in XTREME's scripts, a long sentence is not truncated but divided into rows at word boundaries, so that each word
gets a tag: that of its first token.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset
from transformers import AutoModelForTokenClassification, PreTrainedTokenizerBase

from ..data.layout import runs_of_special_ids
from ..data.text_encoding import encode_texts
from .sentence_pairs import NUMBER, NUMBERS, Logits, checked_labels, label_ids, map_examples

IGNORED = -100  # the label of tokens without a loss


@dataclass(frozen=True)
class Tagging:
    """Classification of words; examples have the columns words and tags.

    Words are tokenized one by one, as after a space; in a sentence a tokenizer might split them differently. A word
    without tokens, or with more than a row holds, becomes the unknown token; where all bytes are known and there is
    none, the mask, the end or the padding.
    """

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    labels: tuple[str, ...]
    model_class: ClassVar[Any] = AutoModelForTokenClassification
    shortest: ClassVar[int] = 8

    @staticmethod
    def label_names(train: Dataset) -> tuple[str, ...]:
        """The tags, sorted; with "O" first if no word has it."""
        tags = checked_labels(chain.from_iterable([None] if tags is None else tags for tags in train["tags"][:]))
        return tuple(sorted(tags) if "O" in tags else ["O", *sorted(tags)])

    def encode(self, examples: Dataset, training: bool = False) -> Dataset:
        """One or more rows for each sentence with words; with the index of the sentence (`example`) and the indices of
        the words' first tokens (`words`)."""
        columns = {"input_ids": NUMBERS}
        columns |= {"labels": NUMBERS} if training else {"example": NUMBER, "words": NUMBERS}
        return map_examples(examples, self.tokenize, columns, training)

    def tokenize(self, batch: Mapping[str, list[Any]], numbers: list[int], training: bool) -> dict[str, Any]:
        before, after = self.special_ids
        ids_of_words = iter(self.word_ids([*chain.from_iterable(batch["words"])]))
        rows: dict[str, Any] = {"input_ids": [], "example": [], "words": []}
        for number, words in zip(numbers, batch["words"], strict=True):
            for chunk in self.chunks([next(ids_of_words) for _ in words]):
                rows["input_ids"].append([*before, *chain.from_iterable(chunk), *after])
                rows["example"].append(number)
                rows["words"].append(np.cumsum([len(before), *map(len, chunk[:-1])]))
        if not training:
            return rows
        of_words = np.repeat(numbers, [len(tags) for tags in batch["tags"]]).tolist()
        tags = iter(label_ids([*chain.from_iterable(batch["tags"])], self.labels, of_words))
        labels = [np.full(len(ids), IGNORED) for ids in rows["input_ids"]]
        for row, indices in zip(labels, rows["words"]):
            row[indices] = list(islice(tags, len(indices)))
        return {"input_ids": rows["input_ids"], "labels": labels}

    def word_ids(self, words: list[str]) -> list[list[int]]:
        """The token ids of each word: one or more, and at most as many as a row holds."""
        distinct = list(dict.fromkeys(words))
        texts = [word and self.space + word for word in distinct]
        ids = encode_texts(self.tokenizer, texts, add_special_tokens=False)["input_ids"] if words else []
        known = [word if 0 < len(word) <= self.room else [self.unknown_id] for word in ids]
        return list(map(dict(zip(distinct, known)).__getitem__, words))

    def chunks(self, words: list[list[int]]) -> Iterator[list[list[int]]]:
        """Divide the words of a sentence into rows of as many words as fit."""
        chunk: list[list[int]] = []
        length = 0
        for word in words:
            if length + len(word) > self.room:
                yield chunk
                chunk, length = [], 0
            chunk.append(word)
            length += len(word)
        if chunk:
            yield chunk

    @cached_property
    def room(self) -> int:
        """Tokens of a row, without special tokens."""
        return self.max_length - sum(map(len, self.special_ids))

    @cached_property
    def space(self) -> str:
        return space_before_words(self.tokenizer)

    @cached_property
    def unknown_id(self) -> int:
        """The id of a word without tokens, or with too many."""
        named = (getattr(self.tokenizer, f"{name}_token_id") for name in ("unk", "mask", "eos", "pad"))
        return next(number for number in named if number is not None)

    @cached_property
    def special_ids(self) -> list[list[int]]:
        """Ids before and after the words, as if a second sentence followed: in XLM-R `<s>` and `</s></s>`."""
        return runs_of_special_ids(self.tokenizer, "a", "a")[:2]

    def decode(self, examples: Dataset, features: Dataset, logits: Logits) -> list[list[str]]:
        predictions: list[list[str]] = [[] for _ in range(len(examples))]
        rows = features.select_columns(["example", "words"])[:]
        for example, indices, scores in zip(rows["example"], rows["words"], logits, strict=True):
            predictions[example] += [self.labels[best] for best in scores[indices].argmax(-1)]
        return predictions

    @staticmethod
    def references(examples: Dataset) -> list[list[str]]:
        return examples["tags"][:]


def space_before_words(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return what to put before each word: a space, if words in a text have one in their tokens, and the tokenizer
    adds none to a word that is alone, as those of ModernBERT and EuroBERT."""
    texts = ["a", " a", "a a"]
    alone, spaced, twice = encode_texts(tokenizer, texts, add_special_tokens=False)["input_ids"]
    return " " if twice == alone + spaced and spaced != alone else ""
