"""Retrieval accuracy on held-out pairs: per language, in both directions, for several poolings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..embedding.encoder import embed_at_poolings
from ..embedding.pooling import Pooling
from .bitext import retrieval_accuracy


@dataclass(frozen=True)
class RetrievalAccuracy:
    """Percent right of each language pair, (x → y, y → x), among `sentences` candidates."""

    both_directions: dict[str, tuple[float, float]]
    sentences: dict[str, int]

    @property
    def mean(self) -> float:
        """Mean over language pairs and both directions."""
        return float(np.mean(list(self.both_directions.values())))


def evaluate_retrieval(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Dataset,
    poolings: Sequence[Pooling],
    progress: bool = False,
) -> dict[Pooling, RetrievalAccuracy]:
    """Nearest-neighbour accuracy (cosine) of held-out pairs, each language pair among its own sentences.

    Args:
        pairs: text columns `x`, `y`, `x_lang`, `y_lang`; a language pair is named by `y_lang` where x is always in the
            same language, else "x_lang-y_lang".
        poolings: of the sentence vectors; all are computed in one pass.
    """
    frame = pairs.select_columns(["x", "y"]).to_pandas()
    vectors = embed_at_poolings(model, tokenizer, [*frame["x"], *frame["y"]], poolings, progress=progress)
    groups = {str(name): rows.to_numpy() for name, rows in frame.groupby(pair_names(pairs)).groups.items()}
    sentences = {name: len(rows) for name, rows in groups.items()}
    return {
        pooling: RetrievalAccuracy(
            {name: retrieval_accuracy(both[rows], both[len(frame) + rows]) for name, rows in groups.items()}, sentences
        )
        for pooling, both in vectors.items()
    }


def pair_names(pairs: Dataset) -> list[str]:
    """(pairs,) the name under which each pair is scored."""
    x_langs, y_langs = list(pairs["x_lang"]), list(pairs["y_lang"])
    return y_langs if len({*x_langs}) == 1 else [f"{x}-{y}" for x, y in zip(x_langs, y_langs)]


def best_pooling(accuracies: Mapping[Pooling, RetrievalAccuracy]) -> Pooling:
    """The pooling with the highest mean; ties go to the higher layer, then to the first."""
    return max(accuracies, key=lambda pooling: (accuracies[pooling].mean, pooling.layer))


def mean_accuracies(accuracy: RetrievalAccuracy) -> dict[str, float]:
    """The mean of both directions for each language."""
    return {name: (forward + backward) / 2 for name, (forward, backward) in accuracy.both_directions.items()}
