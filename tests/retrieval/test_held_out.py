"""Retrieval is counted per language among its own sentences, in both directions, and named as readers expect."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from hictl_hf.embedding.pooling import Pooling
from hictl_hf.retrieval.held_out import RetrievalAccuracy, best_pooling, evaluate_retrieval, mean_accuracies

FIRST, MEAN = Pooling("cls", 0), Pooling("mean", 1)
VECTORS = {
    "the cat": (1.0, 0.0), "a dog": (0.0, 1.0), "my sister": (-1.0, 0.0),
    "die Katze": (2.0, 0.1), "ein Hund": (0.1, 3.0), "meine Schwester": (-1.0, -0.2),
    "paka": (0.1, 1.0), "mbwa": (0.2, 1.0), "dada yangu": (-1.0, 0.0),
}  # fmt: skip


class Dictionary(nn.Module):
    """An "encoder" that looks the vector of a sentence up; its next layer has them all alike."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self.tokenizer, self.device = tokenizer, torch.device("cpu")
        self.config = SimpleNamespace(
            model_type="xlm-roberta", max_position_embeddings=66, num_hidden_layers=1, pad_token_id=1
        )

    def forward(self, input_ids: Tensor, **_: Any) -> SimpleNamespace:
        texts = self.tokenizer.batch_decode(input_ids, skip_special_tokens=True)
        found = torch.tensor([VECTORS[text] for text in texts])[:, None].expand(-1, input_ids.shape[1], -1)
        return SimpleNamespace(hidden_states=(found, torch.ones_like(found)))


def pairs(*rows: tuple[str, str, str, str]) -> Dataset:
    return Dataset.from_dict(dict(zip(("x_lang", "x", "y_lang", "y"), map(list, zip(*rows)))))


# German: each finds its own, both ways. Swahili: the cosines of "the cat" are about 0.1, 0.2, -1: it finds "mbwa";
# of "a dog" 0.995, 0.98, 0: it finds "paka"; "my sister" finds her own: one of three. Backwards "paka" finds "a dog",
# "mbwa" finds it too, and "dada yangu" finds "my sister": two of three.
HELD_OUT = [
    ("en", "the cat", "de", "die Katze"),
    ("en", "the cat", "sw", "paka"),
    ("en", "a dog", "sw", "mbwa"),
    ("en", "a dog", "de", "ein Hund"),
    ("en", "my sister", "de", "meine Schwester"),
    ("en", "my sister", "sw", "dada yangu"),
]


def test_retrieval_of_vectors_made_by_hand_is_that_worked_by_hand(tokenizer: PreTrainedTokenizerBase) -> None:
    accuracies = evaluate_retrieval(Dictionary(tokenizer), tokenizer, pairs(*HELD_OUT), [FIRST, MEAN])
    assert list(accuracies) == [FIRST, MEAN]
    assert accuracies[FIRST].both_directions == {"de": (100, 100), "sw": (100 * 1 / 3, 100 * 2 / 3)}
    assert accuracies[FIRST].sentences == {"de": 3, "sw": 3}
    assert accuracies[FIRST].mean == pytest.approx(75)
    assert accuracies[MEAN].mean == 0  # where all vectors are equal a tie is an error


def test_the_order_of_pairs_does_not_matter(tokenizer: PreTrainedTokenizerBase) -> None:
    there, back = (
        evaluate_retrieval(Dictionary(tokenizer), tokenizer, pairs(*rows), [FIRST])
        for rows in (HELD_OUT, HELD_OUT[::-1])
    )
    assert there == back


def test_each_language_looks_among_its_own_sentences(tokenizer: PreTrainedTokenizerBase) -> None:
    german = [row for row in HELD_OUT if row[2] == "de"]
    alone = evaluate_retrieval(Dictionary(tokenizer), tokenizer, pairs(*german), [FIRST])
    together = evaluate_retrieval(Dictionary(tokenizer), tokenizer, pairs(*HELD_OUT), [FIRST])
    assert alone[FIRST].both_directions["de"] == together[FIRST].both_directions["de"]


def test_both_directions_change_places_with_the_sides(tokenizer: PreTrainedTokenizerBase) -> None:
    swahili = [row for row in HELD_OUT if row[2] == "sw"]
    turned = [(y_lang, y, x_lang, x) for x_lang, x, y_lang, y in swahili]
    accuracy = evaluate_retrieval(Dictionary(tokenizer), tokenizer, pairs(*turned), [FIRST])[FIRST]
    assert accuracy.both_directions == {"en": (100 * 2 / 3, 100 * 1 / 3)}


def test_pairs_without_a_common_language_are_named_by_both(tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [HELD_OUT[0], ("de", "ein Hund", "sw", "mbwa"), ("de", "die Katze", "sw", "paka")]
    accuracy = evaluate_retrieval(Dictionary(tokenizer), tokenizer, pairs(*rows), [FIRST])[FIRST]
    assert accuracy.sentences == {"de-sw": 2, "en-de": 1}
    assert set(accuracy.both_directions) == {"de-sw", "en-de"}


# --- summaries ------------------------------------------------------------------------------------------------------


def test_the_mean_is_over_languages_and_directions() -> None:
    accuracy = RetrievalAccuracy({"de": (90.0, 70.0), "sw": (20.0, 40.0)}, {"de": 1000, "sw": 10})
    assert accuracy.mean == 55  # languages count alike, however many sentences they have
    assert mean_accuracies(accuracy) == {"de": 80, "sw": 30}


def test_the_best_pooling_has_the_highest_mean_and_of_equals_the_last_layer() -> None:
    def accuracy(both: tuple[float, float]) -> RetrievalAccuracy:
        return RetrievalAccuracy({"de": both}, {"de": 9})

    third = Pooling("projection", 2)
    scores = {FIRST: accuracy((99, 1)), MEAN: accuracy((60, 50)), third: accuracy((50, 60))}
    assert best_pooling(scores) == best_pooling(dict(reversed(scores.items()))) == third
    assert best_pooling({FIRST: accuracy((50, 50)), MEAN: accuracy((60, 50)), third: accuracy((50, 50))}) == MEAN
    assert np.isclose(scores[MEAN].mean, 55)
