"""Examples to token ids and logits to predictions: the protocol `TaskFeatures`, and sentence pairs.

`SentencePairs` is here, `Tagging` in `tagging`, `QuestionAnswering` in `question_answering`. Each works with any fast
tokenizer. "Rows" are tokenized examples, or windows of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol
from uuid import uuid4

import numpy as np
from datasets import Dataset, Features, List, Value
from numpy.typing import NDArray
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from ..data.text_encoding import encode_texts
from ..errors import BadInput

Logits = Sequence[NDArray[np.float32]]  # for each row (labels,), or (T, labels) of its T tokens
NUMBER, NUMBERS = Value("int32"), List(Value("int32"))


class TaskFeatures(Protocol):
    """Conversion of the examples of one split and language to token ids, and of logits to predictions.

    Attributes:
        model_class: the Auto class of the models.
        shortest: the smallest possible `max_length`.
        tokenizer: fast.
        max_length: tokens of a row, special tokens included.
        labels: of the model's outputs, in order.
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
        """One or more rows of ids for each example: for training with labels and nothing that the model does not
        take; else with the columns that `decode` needs."""

    def decode(self, examples: Dataset, features: Dataset, logits: Logits) -> Any:
        """Predictions in the form that is scored, in the order of the examples."""

    @staticmethod
    def references(examples: Dataset) -> Any:
        """The correct predictions, in the same form."""


@dataclass(frozen=True)
class SentencePairs:
    """Classification of sentence pairs, as in XNLI and PAWS-X; examples have the columns first, second and label."""

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    labels: tuple[str, ...]
    model_class: ClassVar[Any] = AutoModelForSequenceClassification
    shortest: ClassVar[int] = 8

    @staticmethod
    def label_names(train: Dataset) -> tuple[str, ...]:
        labels = tuple(sorted(checked_labels(train.unique("label"))))
        if len(labels) == 1:  # of which transformers' head would make a regression
            raise BadInput(f"all training examples have the label {labels[0]!r}; allowed are two labels or more")
        return labels

    def encode(self, examples: Dataset, training: bool = False) -> Dataset:
        """One row for each pair; the longer sentence is truncated until both fit."""
        columns = dict.fromkeys(input_columns(self.tokenizer), NUMBERS) | ({"labels": NUMBER} if training else {})
        return map_examples(examples, self.tokenize, columns, training)

    def tokenize(self, batch: Mapping[str, list[Any]], numbers: list[int], training: bool) -> dict[str, Any]:
        rows = dict(
            encode_texts(
                self.tokenizer, batch["first"], batch["second"], truncation="longest_first",
                max_length=self.max_length, return_attention_mask=False,
            )
        )  # fmt: skip
        return rows | ({"labels": label_ids(batch["label"], self.labels, numbers)} if training else {})

    def decode(self, examples: Dataset, features: Dataset, logits: Logits) -> list[str]:
        return [self.labels[scores.argmax()] for scores in logits]

    @staticmethod
    def references(examples: Dataset) -> list[str]:
        return examples["label"][:]


# --- shared by the formats --------------------------------------------------------------------------------------------


def input_columns(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The columns that a model takes, without the attention mask, which padding adds."""
    return [name for name in tokenizer.model_input_names if name != "attention_mask"]


def map_examples(
    examples: Dataset, function: Callable[..., dict[str, Any]], columns: Mapping[str, Any], training: bool
) -> Dataset:
    """Map a function of batches of examples, their indices and `training` to these columns."""
    return examples.map(
        function, batched=True, with_indices=True, fn_kwargs={"training": training}, desc="tokenize",
        remove_columns=examples.column_names, features=Features(columns), keep_in_memory=True,
        new_fingerprint=uuid4().hex,  # nothing is cached, and hashing the function would hash the vocabulary
    )  # fmt: skip


def checked_labels(labels: Iterable[str | None]) -> set[str]:
    """The distinct labels; `BadInput` if an example has none."""
    found = set(labels)
    if None in found:
        raise BadInput("the training examples are not labelled, or not all; train on a file with labels")
    return found  # type: ignore[return-value]


def label_ids(names: Sequence[str | None], labels: Sequence[str], numbers: Sequence[int]) -> list[int]:
    """The index of each name among the labels; `BadInput` with the number of an example that has another."""
    ids = {name: index for index, name in enumerate(labels)}
    for name, number in zip(names, numbers, strict=True):
        if name not in ids:
            raise BadInput(
                f"training example {number}: has the label {name!r}; allowed are {', '.join(labels)}. Correct the "
                "label, or take the labels from all the examples."
            )
    return [ids[name] for name in names if name is not None]
