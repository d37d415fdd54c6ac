"""Batches of similar pairs, in which a sentence has harder negatives (`--group_by_similarity`).

Similar are pairs whose sentences in one language have near means of the start's word embeddings, which cost nearly
nothing. Merrick (2024), Embedding And Clustering Your Data Can Improve Contrastive Pretraining, makes batches of
clusters.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ..data.sampling import PretrainingExamples, TemperatureSampler
from .trainer import HictlTrainer, pairs_contrasted


def group_by_similarity(trainer: HictlTrainer) -> None:
    """Let a trainer's batches be made of similar examples, by the word embeddings that its model has now.

    A group has as many as are contrasted with each other: a batch, or without the gradient cache a micro-batch.
    """
    examples, sampler = trainer.train_dataset, trainer.batches
    assert isinstance(examples, PretrainingExamples) and isinstance(sampler, TemperatureSampler)
    size, _ = pairs_contrasted(trainer.args, trainer.gather_sentences, trainer.gradient_cache)
    words = trainer.model.get_input_embeddings().weight.detach().half().cpu()
    sampler.grouping = partial(order_of_groups, examples, second_is_compared(sampler), words, size)


def order_of_groups(
    examples: PretrainingExamples,
    second: NDArray[np.bool_],
    words: Tensor,
    size: int,
    chosen: NDArray[np.int64],
    random: np.random.Generator,
) -> NDArray[np.int64]:
    """(chosen,) an order of chosen examples, as indices, by groups of similar ones.

    Args:
        second: (examples,) whether y is compared with other examples, and not x.
        words: (V, d) word embeddings.
        size: of a group.
    """
    rows = examples.dataset[chosen]
    compared = [y if is_second else x for x, y, is_second in zip(rows["x"], rows["y"], second[chosen])]
    numbers: dict[tuple[int, ...], int] = {}
    texts = np.array([numbers.setdefault(tuple(sentence), len(numbers)) for sentence in compared])
    return groups_of_similar(mean_vectors(compared, words), texts, size, random)


def second_is_compared(sampler: TemperatureSampler) -> NDArray[np.bool_]:
    """(examples,) whether y alone is in the language that most examples have."""
    sizes = Counter[str | None]()
    for languages, members in sampler.groups.items():
        sizes.update(dict.fromkeys({*languages} - {None}, len(members)))
    [(common, _)] = sizes.most_common(1)
    second = np.zeros(len(sampler.lengths), bool)
    for (x_lang, y_lang), members in sampler.groups.items():
        second[members] = y_lang == common != x_lang
    return second


def mean_vectors(sentences: Sequence[Sequence[int]], words: Tensor) -> NDArray[np.float32]:
    """(sentences, d) the means of the embeddings (V, d) of their tokens, of length 1."""
    used, ids = np.unique(np.fromiter(chain.from_iterable(sentences), np.int64), return_inverse=True)
    starts = np.cumsum([0, *map(len, sentences)])[:-1]
    means = F.embedding_bag(torch.from_numpy(ids), words[used].float(), torch.from_numpy(starts), mode="mean")
    vectors: NDArray[np.float32] = F.normalize(means).numpy()
    return vectors


def groups_of_similar(
    vectors: NDArray[np.float32], texts: NDArray[np.int64], size: int, random: np.random.Generator
) -> NDArray[np.int64]:
    """Divide sentences into groups: a random one and its nearest of those that are in no group yet.

    An equal text is no negative, such as that of a sentence with translations into many languages: it comes into the
    same group only where no other is left.

    Args:
        vectors: (n, d) of length 1.
        texts: (n,) numbers, equal where texts are.
        size: of a group, a divisor of n.

    Returns:
        (n,) indices by group, the groups in random order.

    >>> vectors = np.array([[1, 0], [0, 1], [1, 0], [0, 1]], np.float32)
    >>> groups = groups_of_similar(vectors, np.arange(4), 2, np.random.default_rng(0)).reshape(2, 2)
    >>> sorted(sorted(group) for group in groups.tolist())
    [[0, 2], [1, 3]]
    """
    free, groups = np.ones(len(vectors), bool), []
    for anchor in random.permutation(len(vectors)):
        if free[anchor]:
            others = np.flatnonzero(free)
            similarities = vectors[others] @ vectors[anchor]
            similarities[others == anchor] = np.inf
            nearest = others[np.argsort(-similarities, kind="stable")]
            is_new = np.zeros(len(nearest), bool)
            is_new[np.unique(texts[nearest], return_index=True)[1]] = True
            groups.append(np.concatenate([nearest[is_new], nearest[~is_new]])[:size])
            free[groups[-1]] = False
    return np.concatenate([groups[number] for number in random.permutation(len(groups))])
