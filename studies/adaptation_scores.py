"""Scores of the adaptation study: of an encoder averaged with the start, on dev and guard pairs and on the tests.

Every encoder is read at the mean of the last layer, with the prompt of the study.
"""

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel

from hictl_hf.embedding import Pooling, load_encoder
from hictl_hf.pretraining.interpolation import copy_of_weights, set_weights

from .adaptation_data import WITH_PAIRS, Material, Pairs
from .scoring import Embed, Hits, bucc_hits, embedder, hits_of, scores_of


class AveragedEncoder:
    """The average of a start and of what it was trained to, at any share of the trained weights.

    Args:
        start, trained: folders; without the second one only share 0 can be read.
        prompt: text before each sentence.
        max_length: tokens that are read of a sentence.
    """

    def __init__(self, start: str, trained: str | None, prompt: str, max_length: int) -> None:
        self.model, self.tokenizer = load_encoder(start, device="cpu")
        self.model.config.embedding_prompt = None  # it is part of each text here
        self.prompt, self.max_length = prompt, max_length
        self.start = self.trained = copy_of_weights(inner(self.model))
        if trained:
            self.trained = copy_of_weights(inner(load_encoder(trained, device="cpu")[0]))
            self.start = {name: weight for name, weight in self.start.items() if name in self.trained}

    def at(self, share: float) -> Embed:
        """Set the share of the trained weights; return a function that embeds sentences with them."""
        set_weights(inner(self.model), self.start, self.trained, share)
        pooling = Pooling("mean", self.model.config.num_hidden_layers)
        return embedder(self.model, self.tokenizer, pooling, self.prompt, max_length=self.max_length)


def inner(model: PreTrainedModel) -> PreTrainedModel:
    """Return the encoder without heads."""
    return getattr(model, "roberta", model)


def accuracy(pairs: Pairs, embed: Embed) -> float:
    """Return the mean accuracy (%) over languages and directions."""
    return scores_of(hits_of({"all": pairs}, embed))["all"]


def score(material: Material, embed: Embed, mine: bool = True) -> dict[str, Any]:
    """Return the scores of the tests, and the hits as text; BUCC is mined unless `mine` is false."""
    hits = hits_of(material.tests, embed)
    if mine and not material.languages:
        hits |= bucc_hits(material.studied.bucc(), embed)
    return {"scores": scores_of(grouped(hits)), "hits": {name: packed(found) for name, found in hits.items()}}


def grouped(hits: Mapping[str, NDArray[np.bool_]]) -> Hits:
    """Return the hits, also under the names of parts of a test: languages with and without pairs, each low one."""
    return {alias: found for name, found in hits.items() for alias in (name, *parts_of(name))}


def parts_of(name: str) -> Iterator[str]:
    test, _, place = name.partition("/")
    language = place.split("/")[0]
    if test in ("tatoeba", "ntrex"):
        yield f"{test}, {'with' if language in WITH_PAIRS else 'without'} pairs/{place}"
    elif test == "low":
        yield f"{language}/{place}"


def packed(hits: NDArray[np.bool_]) -> str:
    """Return hits as their number and base64 of their bits.

    >>> packed(np.array([True, False, True]))
    '3:oA=='
    """
    return f"{len(hits)}:{base64.b64encode(np.packbits(hits).tobytes()).decode()}"


def unpacked(text: str) -> NDArray[np.bool_]:
    """Return the hits that `packed` wrote.

    >>> unpacked("3:oA==").tolist()
    [True, False, True]
    """
    number, _, bits = text.partition(":")
    return np.unpackbits(np.frombuffer(base64.b64decode(bits), np.uint8), count=int(number)).astype(bool)
