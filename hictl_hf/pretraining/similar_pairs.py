"""Batches of similar pairs, in which a sentence has harder negatives (`--group_by_similarity`).

Similar are pairs whose sentences in one language have near vectors: those of the start, which take one more pass over
these sentences, or the means of its word embeddings, which cost nearly nothing. Merrick (2024), Embedding And
Clustering Your Data Can Improve Contrastive Pretraining, makes batches of clusters.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from accelerate.utils import gather_object
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from tqdm.auto import tqdm
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import TrainerState

from ..data.collator import Ids, PretrainingCollator, text_hash
from ..data.sampling import PretrainingExamples, TemperatureSampler
from ..dtypes import device_of
from ..embedding.encoder import default_precision, embed_tokens
from ..embedding.pooling import own_pooling, vector_size
from .arguments import PretrainingArguments
from .trainer import HictlTrainer, pairs_contrasted

logger = logging.getLogger(__name__)
Vectors = NDArray[np.float32]
TEXTS_AT_ONCE = 2000  # read and embedded, in each process


def group_by_similarity(trainer: HictlTrainer, by: str) -> None:
    """Let a trainer's batches be made of similar examples, by vectors that its model has now.

    A group has as many as are contrasted with each other: a batch, or without the gradient cache a micro-batch.

    Args:
        by: "sentences", the vectors of one side, or "words", the means of its word embeddings.
    """
    examples, sampler, args = trainer.train_dataset, trainer.batches, trainer.args
    assert isinstance(examples, PretrainingExamples) and isinstance(sampler, TemperatureSampler)
    steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * sampler.steps_per_epoch)
    sampler.grouped_draws = sampler.draws_in(steps)
    warn_of_other_length(args, steps)
    compared = partial(sentences_compared, examples, second_is_compared(sampler))
    vectors: Callable[[list[Ids]], Vectors]
    if by == "words":
        words = trainer.model.get_input_embeddings().weight.detach().half().cpu()
        vectors = partial(mean_vectors, words)
    else:
        vectors = vectors_of_start(trainer, compared, sampler.examples_in(sampler.grouped_draws))
    size, _ = pairs_contrasted(args, trainer.gather_sentences, trainer.gradient_cache)
    sampler.grouping = partial(order_of_groups, compared, vectors, size)
    sampler.grouped_over_processes = trainer.gather_sentences


def warn_of_other_length(args: PretrainingArguments, steps: int) -> None:
    """Log that a run which is resumed for another number of steps has other batches near the end of the shorter one."""
    if not (args.resume_from_checkpoint and args.should_log):
        return
    state = TrainerState.load_from_json(str(Path(args.resume_from_checkpoint) / TRAINER_STATE_NAME))
    if state.max_steps != steps:
        logger.warning(
            "%s is of a run of %d steps, this one has %d: examples near the end of the shorter one are grouped anew, "
            "so that some may be read twice or not at all",
            args.resume_from_checkpoint, state.max_steps, steps,
        )  # fmt: skip


def order_of_groups(
    compared: Callable[[NDArray[np.int64]], list[Ids]],
    vectors: Callable[[list[Ids]], Vectors],
    size: int,
    chosen: NDArray[np.int64],
    random: np.random.Generator,
) -> NDArray[np.int64]:
    """(chosen,) an order of chosen examples, as indices, by groups of similar ones.

    Args:
        compared: returns the sentences that examples are compared by.
        vectors: returns those of sentences, (sentences, d) of length 1.
        size: of a group.
    """
    sentences = compared(chosen)
    return groups_of_similar(vectors(sentences), hashes(sentences), size, random)


def hashes(sentences: Sequence[Ids]) -> NDArray[np.int64]:
    """(sentences,) numbers, equal where texts are."""
    return np.fromiter(map(text_hash, sentences), np.int64)


def sentences_compared(
    examples: PretrainingExamples, second: NDArray[np.bool_], chosen: NDArray[np.int64]
) -> list[Ids]:
    """x of chosen examples, or y where that is compared, by `second` (examples,)."""
    rows = examples.dataset[chosen]
    return [y if is_second else x for x, y, is_second in zip(rows["x"], rows["y"], second[chosen])]


def second_is_compared(sampler: TemperatureSampler) -> NDArray[np.bool_]:
    """(examples,) whether y alone is in the language that most examples have; of equal ones the first counts."""
    sizes = Counter[str | None]()
    for languages, members in sampler.groups.items():  # no set, whose order is another in each process
        sizes.update(dict.fromkeys(filter(None, languages), len(members)))
    [(common, _)] = sizes.most_common(1)
    second = np.zeros(len(sampler.lengths), bool)
    for (x_lang, y_lang), members in sampler.groups.items():
        second[members] = y_lang == common != x_lang
    return second


def vectors_of_start(
    trainer: HictlTrainer, compared: Callable[[NDArray[np.int64]], list[Ids]], read: NDArray[np.int64]
) -> Callable[[list[Ids]], Vectors]:
    """Embed the sentences that the examples `read` are compared by; returns a look-up of their vectors.

    Each text is embedded once, and the processes share the work. The vectors stay in memory, in fp16: for a million
    texts and size 768, 1.5 GB.
    """
    model, args, collator = trainer.model, trainer.args, trainer.data_collator
    assert isinstance(collator, PretrainingCollator)
    pooling, precision = own_pooling(model.config), default_precision(str(device_of(model)))
    special = len(collator.layout.before), len(collator.layout.after)
    parts = np.split(read, range(TEXTS_AT_ONCE, len(read), TEXTS_AT_ONCE))
    texts, first = np.unique(np.concatenate([hashes(compared(part)) for part in parts]), return_index=True)
    vectors = np.empty((len(texts), vector_size(model, pooling.mode)), np.float16)
    at_once, processes = TEXTS_AT_ONCE * args.world_size, args.world_size
    quiet = args.disable_tqdm or not args.should_log
    with tqdm(total=len(texts), desc="embed for similar pairs", disable=quiet) as bar:
        for start in range(0, len(texts), at_once):
            part = read[first[start : start + at_once]]
            own = compared(part[args.process_index :: processes] if len(part) > args.process_index else part[:1])
            tokens = [collator.sentence(ids) for ids in own]
            found = embed_tokens(model, tokens, [pooling], special, precision)[pooling]
            for process, rows in enumerate(gather_object([of_length_1(found).astype(np.float16)])):
                places = vectors[start : start + len(part)][process::processes]
                places[:] = rows[: len(places)]
            bar.update(len(part))
    return partial(look_up, texts, vectors)


def look_up(texts: NDArray[np.int64], vectors: NDArray[np.float16], sentences: Sequence[Ids]) -> Vectors:
    """(sentences, d) their vectors, of those (texts, d) of texts with these hashes, ascending."""
    wanted = hashes(sentences)
    places = np.searchsorted(texts, wanted)
    assert (texts[places] == wanted).all()
    return vectors[places].astype(np.float32)


def mean_vectors(words: Tensor, sentences: Sequence[Ids]) -> Vectors:
    """(sentences, d) the means of the embeddings (V, d) of their tokens, of length 1."""
    used, ids = np.unique(np.fromiter(chain.from_iterable(sentences), np.int64), return_inverse=True)
    starts = np.cumsum([0, *map(len, sentences)])[:-1]
    means = F.embedding_bag(torch.from_numpy(ids), words[used].float(), torch.from_numpy(starts), mode="mean")
    return of_length_1(means.numpy())


def of_length_1(vectors: Vectors) -> Vectors:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def groups_of_similar(
    vectors: Vectors, texts: NDArray[np.int64], size: int, random: np.random.Generator
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
