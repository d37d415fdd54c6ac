"""Words with a tag each, as in part-of-speech tagging and named entities: how sentences become rows of pieces.

As in XTREME's scripts, a sentence that is too long is not cut short but divided into rows of whole words, so that each
word gets its tag: that of its first piece. What words and tags are is decided by the files they come from.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset
from transformers import AutoModelForTokenClassification, PreTrainedTokenizerBase

from .sentence_pairs import NUMBER, NUMBERS, Logits, checked_labels, label_ids, map_examples

IGNORED = -100  # the label of what no loss is computed of


@dataclass(frozen=True)
class Tagging:
    """Which tag each word has; examples have the columns words and tags.

    The pieces of a word are those of the word alone (not of the sentence, in which a tokenizer may treat it otherwise).
    A word of no piece, or of more than a row holds, becomes the unknown one.
    """

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    labels: tuple[str, ...]
    model_class: ClassVar[Any] = AutoModelForTokenClassification
    shortest: ClassVar[int] = 8

    @staticmethod
    def label_names(train: Dataset) -> tuple[str, ...]:
        """Sorted, after "O" if that is not one of the tags."""
        tags = checked_labels(chain.from_iterable([None] if tags is None else tags for tags in train["tags"][:]))
        return tuple(sorted(tags) if "O" in tags else ["O", *sorted(tags)])

    def encode(self, examples: Dataset, training: bool = False) -> Dataset:
        """One row or more for each sentence with words; beside the ids the number of the sentence (`example`) and the
        places of the words' first pieces (`words`)."""
        columns = {"input_ids": NUMBERS}
        columns |= {"labels": NUMBERS} if training else {"example": NUMBER, "words": NUMBERS}
        return map_examples(examples, self.tokenize, columns, training)

    def tokenize(self, batch: Mapping[str, list[Any]], numbers: list[int], training: bool) -> dict[str, Any]:
        before, after = self.special_ids
        pieces = iter(self.pieces([*chain.from_iterable(batch["words"])]))
        rows: dict[str, Any] = {"input_ids": [], "example": [], "words": []}
        for number, words in zip(numbers, batch["words"], strict=True):
            for chunk in self.chunks([next(pieces) for _ in words]):
                rows["input_ids"].append([*before, *chain.from_iterable(chunk), *after])
                rows["example"].append(number)
                rows["words"].append(np.cumsum([len(before), *map(len, chunk[:-1])]))
        if not training:
            return rows
        of_words = np.repeat(numbers, [len(tags) for tags in batch["tags"]]).tolist()
        tags = iter(label_ids([*chain.from_iterable(batch["tags"])], self.labels, of_words))
        labels = [np.full(len(ids), IGNORED) for ids in rows["input_ids"]]
        for row, places in zip(labels, rows["words"]):
            row[places] = list(islice(tags, len(places)))
        return {"input_ids": rows["input_ids"], "labels": labels}

    def pieces(self, words: list[str]) -> list[list[int]]:
        """The ids of each word's pieces, one or more, and no more than a row holds."""
        distinct = list(dict.fromkeys(words))
        ids = self.tokenizer(distinct, add_special_tokens=False)["input_ids"] if words else []
        known = [word if 0 < len(word) <= self.room else [self.tokenizer.unk_token_id] for word in ids]
        return list(map(dict(zip(distinct, known)).__getitem__, words))

    def chunks(self, words: list[list[int]]) -> Iterator[list[list[int]]]:
        """As many words together as a row holds."""
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
        """Pieces that a row holds."""
        return self.max_length - sum(map(len, self.special_ids))

    @cached_property
    def special_ids(self) -> tuple[list[int], list[int]]:
        """Ids before and after the pieces, as if another sentence followed: of XLM-R `<s>`, and both `</s></s>`."""
        pair = self.tokenizer(["a"], ["a"])
        ids, sides = pair["input_ids"][0], pair.sequence_ids(0)
        end = sides.index(None, sides.index(0))
        return ids[: sides.index(0)], ids[end : sides.index(1)]

    def decode(self, examples: Dataset, features: Dataset, logits: Logits) -> list[list[str]]:
        predictions: list[list[str]] = [[] for _ in range(len(examples))]
        rows = features.select_columns(["example", "words"])[:]
        for number, places, scores in zip(rows["example"], rows["words"], logits, strict=True):
            predictions[number] += [self.labels[best] for best in scores[places].argmax(-1)]
        return predictions

    @staticmethod
    def references(examples: Dataset) -> list[list[str]]:
        return examples["tags"][:]
