"""Text to rows of token ids, and logits back to predictions: what all kinds of task offer, and sentence pairs.

A kind of task is a class that decides how its texts are cut and joined, which labels there are, and how logits become
predictions: `SentencePairs` here, `Tagging` in `tagging`, `QuestionAnswering` in `question_answering`. Each works with
any fast tokenizer. Where texts come from is left to `xtreme_files` and `xtreme_hub`; padding, batches and training to
`fine_tuning`; right and wrong to `metrics`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol
from uuid import uuid4

import numpy as np
from datasets import Dataset, Features, List, Value
from numpy.typing import NDArray
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from ..errors import BadInput

Logits = Sequence[NDArray[np.float32]]  # of each row: (labels,), or (T, labels) of its T tokens
NUMBER, NUMBERS = Value("int32"), List(Value("int32"))


class TaskFeatures(Protocol):
    """What a kind of task does with its examples, `datasets.Dataset`s of one split and language.

    Attributes:
        model_class: the Auto class of its models.
        shortest: tokens that a row must be allowed to have.
        tokenizer: a fast one.
        max_length: of a row, in tokens, special tokens included.
        labels: names of the model's outputs, in their order.
    """

    model_class: ClassVar[Any]
    shortest: ClassVar[int]
    tokenizer: PreTrainedTokenizerBase
    max_length: int
    labels: tuple[str, ...]

    @staticmethod
    def label_names(train: Dataset) -> tuple[str, ...]:
        """The labels that training examples have, in the order of the model's outputs."""

    def encode(self, examples: Dataset, training: bool = False) -> Dataset:
        """Rows of ids, one or more for each example: for training with what the model is to give, and nothing that it
        does not take; else with what `decode` needs to know of them."""

    def decode(self, examples: Dataset, features: Dataset, logits: Logits) -> Any:
        """Predictions as they are scored, in the order of the examples."""

    @staticmethod
    def references(examples: Dataset) -> Any:
        """What the predictions are to be, in their form."""


@dataclass(frozen=True)
class SentencePairs:
    """Which label two sentences have, as in XNLI and PAWS-X; examples have the columns first, second and label."""

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    labels: tuple[str, ...]
    model_class: ClassVar[Any] = AutoModelForSequenceClassification
    shortest: ClassVar[int] = 8

    @staticmethod
    def label_names(train: Dataset) -> tuple[str, ...]:
        return tuple(sorted(checked_labels(train.unique("label"))))

    def encode(self, examples: Dataset, training: bool = False) -> Dataset:
        """A row for each pair; of the longer sentence the end is cut off until both fit."""
        columns = dict.fromkeys(input_columns(self.tokenizer), NUMBERS) | ({"labels": NUMBER} if training else {})
        return map_examples(examples, self.tokenize, columns, training)

    def tokenize(self, batch: Mapping[str, list[Any]], numbers: list[int], training: bool) -> dict[str, Any]:
        rows = dict(
            self.tokenizer(
                batch["first"], batch["second"], truncation="longest_first", max_length=self.max_length,
                return_attention_mask=False,
            )
        )  # fmt: skip
        return rows | ({"labels": label_ids(batch["label"], self.labels, numbers)} if training else {})

    def decode(self, examples: Dataset, features: Dataset, logits: Logits) -> list[str]:
        return [self.labels[scores.argmax()] for scores in logits]

    @staticmethod
    def references(examples: Dataset) -> list[str]:
        return examples["label"][:]


# --- what the kinds share ---------------------------------------------------------------------------------------------


def input_columns(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The columns that a model takes, without the attention mask, which padding makes."""
    return [name for name in tokenizer.model_input_names if name != "attention_mask"]


def map_examples(
    examples: Dataset, function: Callable[..., dict[str, Any]], columns: Mapping[str, Any], training: bool
) -> Dataset:
    """The columns that a function makes of batches of examples, of their numbers, and of `training`."""
    return examples.map(
        function, batched=True, with_indices=True, fn_kwargs={"training": training}, desc="tokenize",
        remove_columns=examples.column_names, features=Features(columns), keep_in_memory=True,
        new_fingerprint=uuid4().hex,  # by which rows on the disk would be found; else the whole vocabulary is hashed
    )  # fmt: skip


def checked_labels(labels: Iterable[str | None]) -> set[str]:
    """The different ones; `BadInput` if an example has none."""
    found = set(labels)
    if None in found:
        raise BadInput("the training examples are not labelled, or not all; train on a file with labels")
    return found  # type: ignore[return-value]


def label_ids(names: Sequence[str | None], labels: Sequence[str], numbers: Sequence[int]) -> list[int]:
    """The place of each name among the labels; `BadInput` with the number of the example that has another."""
    ids = {name: place for place, name in enumerate(labels)}
    for name, number in zip(names, numbers, strict=True):
        if name not in ids:
            raise BadInput(
                f"training example {number}: has the label {name!r}; allowed are {', '.join(labels)}. Correct the "
                "label, or take the labels from all the examples."
            )
    return [ids[name] for name in names if name is not None]
