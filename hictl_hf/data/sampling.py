"""Order of the training examples: temperature sampling of languages, batches of similar length, seeds of examples.

One epoch has as many examples as the corpus. Its examples, their order and their seeds depend only on (seed, epoch), so
a resumed run sees the same examples as an uninterrupted one. `collator` makes the batch.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Sampler

from ..errors import BadInput

# Lengths are sorted within pools of this many batches: little padding, and still a new order in each epoch.
BATCHES_SORTED_TOGETHER = 50
# A group is looked for among so many examples, or so many batches if those have more.
GROUPED_EXAMPLES, GROUPED_BATCHES = 10_000, 16
Languages = tuple[str, str | None]  # ("en", "sw") of pairs, ("sw", None) of monolingual text


class Draw(NamedTuple):
    """An example drawn in an epoch; `repeat` is the number of its earlier draws in this epoch."""

    example: int
    epoch: int
    repeat: int


def example_seed(seed: int, *position: int) -> int:
    """A seed of 62 bits from the seed of the run and the position of an example (epoch, index, repeat)."""
    digest = blake2b(repr((seed, *map(int, position))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2


def language_shares(
    sizes: Mapping[Languages, float], text_alpha: float = 0.3, pair_alpha: float = 0.7, text_share: float | None = 0.5
) -> dict[Languages, float]:
    """Sampling rate of each language or language pair: proportional to p^alpha, with p its share of the examples.

    Monolingual text and pairs are smoothed separately, p being the share among examples of the same kind. The two
    directions of a pair ("en", "de" and "de", "en") are one pair, as in XLM; its rate is divided by their sizes.

    Args:
        sizes: number of examples of each language or language pair.
        text_alpha, pair_alpha: exponents of monolingual text and of pairs.
        text_share: sampling rate of all monolingual text if there are pairs, too; `None`: its share of the examples.

    Raises:
        BadInput: the text_share leaves out all there is: 1 where there are only pairs, 0 where there is only text.

    >>> language_shares({("en", None): 900, ("sw", None): 100}, text_alpha=0.5)
    {('en', None): 0.75, ('sw', None): 0.25}
    """
    text = {languages: number for languages, number in sizes.items() if languages[1] is None}
    pairs = {languages: number for languages, number in sizes.items() if languages[1] is not None}
    for share, kept, there in ((1, text, "pairs"), (0, pairs, "monolingual texts")):
        if text_share == share and not kept and sizes:
            raise BadInput(
                f"text_share is {share}, which leaves out all {there}, and the training data has nothing else; give "
                "other data, or another text_share"
            )
    if text_share is None or not text or not pairs:
        text_share = sum(text.values()) / sum(sizes.values())
    shares: dict[Languages, float] = {}
    for kind, alpha, kind_share in ((text, text_alpha, text_share), (pairs, pair_alpha, 1 - text_share)):
        totals = defaultdict[frozenset[str | None], float](float)
        for languages, number in kind.items():
            totals[frozenset(languages)] += number
        powers = {languages: (number / sum(kind.values())) ** alpha for languages, number in totals.items()}
        rates = {languages: kind_share * power / sum(powers.values()) for languages, power in powers.items()}
        for languages, number in kind.items():
            shares[languages] = rates[both := frozenset(languages)] * (number / totals[both])
    return shares


class TemperatureSampler(Sampler[NDArray[np.int64]]):
    """Sampler of batches of similar length, each an (examples, 3) array of `Draw`s.

    It is the `batch_sampler` of a `DataLoader`, which passes the array unchanged to `PretrainingExamples.__getitems__`.
    A language drawn more often than it has examples is repeated in a new order; one drawn less often has a new random
    subset in each epoch. A batch is divided into micro-batches, and each of these among the processes, as evenly as
    possible. A last batch with fewer examples than processes is dropped.

    Args:
        lengths: (examples,) tokens of each example.
        groups: indices of the examples of each language or language pair.
        shares: from `language_shares`; they add up to 1.
        batch_size: examples of an optimiser step, over its micro-batches and all processes.
        micro_batches: micro-batches of an optimiser step in each process.
        process, processes: index of this process, and the number of processes.

    Attributes:
        grouping: called with the examples of many batches and a generator, returns the order, as indices, in which they
            make these batches; examples that follow each other come into the same micro-batch.
        grouped_over_processes: whether a group that is larger than a micro-batch of one process has that of the other
            processes next, as where they gather their sentences, or the next one of the same process.
        grouped_draws: the number of draws that are grouped, over all epochs: those that the run reads; `None`: all.
    """

    grouping: Callable[[NDArray[np.int64], np.random.Generator], NDArray[np.int64]] | None = None
    grouped_over_processes: bool = False
    grouped_draws: int | None = None

    def __init__(
        self,
        lengths: NDArray[np.integer[Any]],
        groups: Mapping[Languages, NDArray[np.integer[Any]]],
        shares: Mapping[Languages, float],
        batch_size: int,
        seed: int,
        micro_batches: int = 1,
        process: int = 0,
        processes: int = 1,
    ) -> None:
        self.lengths, self.groups, self.batch_size, self.seed, self.epoch = lengths, groups, batch_size, seed, 0
        self.micro_batches, self.process, self.processes = micro_batches, process, processes
        exact = np.array([shares[languages] for languages in groups]) * len(lengths)
        if not (exact >= 0).all() or not np.isclose(exact.sum(), len(lengths)):
            raise ValueError(f"shares are {dict(shares)}; allowed are numbers that add up to 1, of all groups")
        # largest remainder: round the expected draws down, then give one more to the largest fractions
        self.draws = np.floor(exact).astype(int)
        self.draws[np.argsort(self.draws - exact, kind="stable")[: len(lengths) - self.draws.sum()]] += 1

    def __len__(self) -> int:
        full, rest = divmod(len(self.lengths), self.batch_size)
        return full * self.micro_batches + self.parts(rest)

    def parts(self, examples: int) -> int:
        """The number of micro-batches of a batch with this number of examples."""
        return min(self.micro_batches, examples // self.processes)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; the Trainer calls it."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        draws = self.draws_of_epoch(self.epoch)
        together = max(GROUPED_EXAMPLES // self.batch_size, GROUPED_BATCHES) * self.batch_size
        for first in range(0, len(draws), together):
            several = self.in_groups(draws[first : first + together], first)
            for start in range(0, len(several), self.batch_size):
                batch = several[start : start + self.batch_size]
                parts = self.parts(len(batch))
                for part in range(parts):  # slices cost nothing: a resumed run skips many of them
                    yield batch[part + parts * self.process :: parts * self.processes]

    def in_groups(self, draws: NDArray[np.int64], first: int) -> NDArray[np.int64]:
        """The draws of some batches, in the order of `grouping`, but for an incomplete batch and those not read.

        Args:
            first: the number of the first one in the epoch.
        """
        until = len(draws)
        if self.grouped_draws is not None:
            until = min(until, max(self.grouped_draws - self.epoch * len(self.lengths) - first, 0))
        full = until // self.batch_size * self.batch_size
        if self.grouping is None or not full:
            return draws
        order = self.grouping(draws[:full, 0], np.random.default_rng([self.seed, self.epoch, first]))
        each = self.batch_size // (self.micro_batches * self.processes)
        if self.grouped_over_processes:
            places = order.reshape(-1, self.micro_batches, self.processes, each).swapaxes(1, 2)
        else:
            places = order.reshape(-1, self.processes, self.micro_batches, each)
        order = places.transpose(0, 3, 1, 2).ravel()  # as `__iter__` takes draws in turn
        return np.concatenate([draws[order], draws[full:]])

    def draws_in(self, steps: int) -> int:
        """The number of draws of the first optimiser steps, over epochs."""
        epochs, rest = divmod(steps, self.steps_per_epoch)
        return epochs * len(self.lengths) + rest * self.batch_size

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps of an epoch, at least 1."""
        return max(-(-len(self) // self.micro_batches), 1)

    def examples_in(self, draws: int) -> NDArray[np.int64]:
        """The examples of the first draws, over epochs, ascending, each once."""
        epochs = range(-(-draws // len(self.lengths)))
        return np.unique(np.concatenate([self.draws_of_epoch(epoch)[:, 0] for epoch in epochs])[:draws])

    def draws_of_epoch(self, epoch: int) -> NDArray[np.int64]:
        """(draws, 3) the `Draw`s of an epoch, in order."""
        random = np.random.default_rng([self.seed, epoch])
        chosen, repeats = [], []
        for members, number in zip(self.groups.values(), self.draws):
            rounds = -(-number // len(members))
            permuted = [random.permutation(members) for _ in range(rounds)] or [members[:0]]
            chosen.append(np.concatenate(permuted)[:number])
            repeats.append(np.arange(number) // len(members))
        examples = np.concatenate(chosen)
        draws = np.stack([examples, np.full_like(examples, epoch), np.concatenate(repeats)], 1)
        return draws[self.in_batches_of_similar_length(examples, random)]

    def in_batches_of_similar_length(
        self, examples: NDArray[np.integer[Any]], random: np.random.Generator
    ) -> NDArray[np.int64]:
        """(draws,) an order of the draws: sorted by length within pools of batches, full batches in random order."""
        order = shuffle_by_length(self.lengths[examples], random, self.batch_size * BATCHES_SORTED_TOGETHER)
        batches = np.split(order, range(self.batch_size, len(order), self.batch_size))
        full = len(order) // self.batch_size  # a last, smaller batch stays the last
        return np.concatenate([batches[number] for number in [*random.permutation(full), *range(full, len(batches))]])


def shuffle_by_length(
    lengths: NDArray[np.integer[Any]], random: np.random.Generator, pool: int | None = None
) -> NDArray[np.int64]:
    """(examples,) indices in random order, sorted by length within pools; examples of equal length stay shuffled.

    Args:
        lengths: (examples,) tokens, or another key to sort by.
        pool: consecutive examples that are sorted together; `None`: all.
    """
    order = random.permutation(len(lengths))
    pools = [order] if pool is None else np.split(order, range(pool, len(order), pool))
    return np.concatenate([part[np.argsort(lengths[part], kind="stable")] for part in pools])


class PretrainingExamples(TorchDataset[dict[str, Any]]):
    """Tokenised examples, each with the seed of its draw.

    Args:
        dataset: columns `x` and `y` of token ids without special tokens, `y` empty (`None`) for monolingual text.
        seed: of the run.
    """

    def __init__(self, dataset: Dataset, seed: int) -> None:
        self.dataset, self.seed = dataset.select_columns(["x", "y"]), seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, draws: NDArray[np.int64]) -> list[dict[str, Any]]:
        """The examples of a batch of `Draw`s, (examples, 3)."""
        chosen = self.dataset[draws[:, 0]]
        seeds = [
            example_seed(self.seed, draw.epoch, draw.example, draw.repeat) for draw in map(Draw._make, draws.tolist())
        ]
        return [{"x": x, "y": y, "seed": seed} for x, y, seed in zip(chosen["x"], chosen["y"], seeds)]
