"""Sample the negatives of the word level: words outside the bag, the nearer to the query the likelier.

Shapes: n pairs, B words of a bag, m sampled words, V words of the vocabulary, d dimensions.
"""

from functools import partial
from itertools import count
from math import ceil, exp
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .gpu import products_in_tf32
from .negatives import SMALLEST

SIMILARITIES_AT_ONCE = 2**23  # of pairs to all words of the vocabulary: 32 MiB
SIMILARITIES_ON_GPU = 2**28  # 1 GiB
ROUNDS = 3  # of drawing on a GPU before it is asked whether words lack
WEIGHTS_AT_ONCE = 2**20  # sampling weights that stay in the cache of a CPU: 4 MiB
WEIGHTS_IN_BLOCK = 64  # words of a block; a draw finds its block first, then the word in it
WORDS_AT_ONCE = 1024  # rows of the vocabulary that stay in the cache of a CPU
STEP, *MIXERS = (odd - 2**64 for odd in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))  # SplitMix64's


@torch.compiler.disable  # compiled code rounds differently and would sometimes draw another word
def sample_words(
    queries: Tensor,
    vocabulary: Tensor,
    excluded: Tensor,
    number: int,
    temperature: float,
    seeds: Tensor | None = None,
) -> Tensor:
    """Draw words outside the bag for each pair, without replacement, from softmax(cosine / temperature).

    The paper samples S, a subset of V∖B, by the normalized similarities to the query. Drawing with replacement and
    skipping repeats has the same distribution as drawing without it, so draws of different methods can be combined. In
    a large vocabulary near temperature 1 rejection sampling reads a few thousand words (`propose_and_accept`);
    otherwise, and for the remaining draws, all words are read (`draw_by_weight`). No array of the size of `vocabulary`
    is made.

    Args:
        queries: (n, d).
        vocabulary: (V, d) word embeddings.
        excluded: (n, B) ids that must not be drawn, such as the bag and special tokens; -1 is padding.
        number: m; fewer are drawn if fewer words are left.
        seeds: (n,) int64, one for each pair, so that its draw does not depend on the rest of the batch; `None`: from
            the global generator.

    Returns:
        (n, min(m, V)) word ids in the order of the draws, -1 if no word was left.
    """
    return sample_words_and_list(excluded[:, :0], queries, vocabulary, excluded, number, temperature, seeds)[0]


class OccurringWords(NamedTuple):
    """The words of bags (n, B) and samples (n, m), each once.

    Args:
        words: (words,) ascending.
        indices: (n, B + m) which of these each is; a missing one, -1, counts as word 0.
    """

    words: Tensor
    indices: Tensor


@torch.compiler.disable
def sample_words_and_list(
    bag: Tensor,
    queries: Tensor,
    vocabulary: Tensor,
    excluded: Tensor,
    number: int,
    temperature: float,
    seeds: Tensor | None = None,
    tf32: bool = False,
) -> tuple[Tensor, OccurringWords]:
    """`sample_words`, and the words that occur in the bags (n, B) and among them.

    On a GPU one copy tells the CPU how many these are, and whether words lack after some rounds; then more rounds are
    drawn. The words are the same, as each pair has its own random numbers. `tf32`: see `products_in_tf32`.
    """
    if seeds is None:
        seeds = torch.randint(2**62, (len(queries),), device=queries.device)
    number = min(number, len(vocabulary))
    arguments = queries, excluded, seeds, vocabulary, number, temperature
    if not queries.is_cuda:
        words, _ = draw_in_parts(*arguments, rounds=None)
        return words, list_words(bag, words)
    rounds = 0 if worthwhile_proposals(number, temperature, len(vocabulary)) else ROUNDS
    while True:
        with products_in_tf32(tf32):
            words, lacking = draw_in_parts(*arguments, rounds)
        ids = torch.cat([bag, words], 1).clamp_min_(0)
        occurs = torch.zeros_like(vocabulary[:, 0], dtype=torch.bool).index_fill_(0, ids.flatten(), True)
        ranks = occurs.cumsum(0)  # from 1, of the words that occur
        lacks, different = torch.stack([lacking.any(), ranks[-1]]).tolist()
        if not lacks:
            listed = torch.searchsorted(ranks, torch.arange(1, different + 1, device=ranks.device))
            return words, OccurringWords(listed, ranks[ids].sub_(1))
        rounds = max(2 * rounds, ROUNDS)


def list_words(bag: Tensor, sampled: Tensor) -> OccurringWords:
    """The words of bags (n, B) and samples (n, m), each once."""
    return OccurringWords(*torch.unique(torch.cat([bag, sampled], 1).clamp_min(0), return_inverse=True))


def draw_in_parts(
    queries: Tensor,
    excluded: Tensor,
    seeds: Tensor,
    vocabulary: Tensor,
    number: int,
    temperature: float,
    rounds: int | None,
) -> tuple[Tensor, Tensor]:
    """(n, number) words, some pairs after others, and (n,) bool whether more rounds would find words that lack."""
    step = max((SIMILARITIES_ON_GPU if queries.is_cuda else SIMILARITIES_AT_ONCE) // len(vocabulary), 1)
    draw = partial(draw_on_gpu, rounds=rounds) if rounds is not None else sample_words_of_few
    parts = [slice(start, start + step) for start in range(0, max(len(queries), 1), step)]
    words, lacking = zip(*(draw(queries[i], excluded[i], seeds[i], vocabulary, number, temperature) for i in parts))
    return torch.cat(words), torch.cat(lacking)


def sample_words_of_few(
    queries: Tensor, excluded: Tensor, seeds: Tensor, vocabulary: Tensor, number: int, temperature: float
) -> tuple[Tensor, Tensor]:
    """`draw_in_parts` for as many pairs as can be compared with the complete vocabulary at once."""
    queries, random, nobody = F.normalize(queries, dim=-1), UniformNumbers(seeds), len(vocabulary)
    excluded = excluded.masked_fill(excluded < 0, nobody)
    words = torch.full((len(queries), number), -1, device=queries.device)
    proposals = worthwhile_proposals(number, temperature, nobody)
    if proposals:
        draws = propose_and_accept(queries, vocabulary, excluded, temperature, proposals, random)
        words = first_distinct(draws, number)
    rows = (words < 0).any(1).nonzero().squeeze(1)  # that still lack words
    if len(rows):
        similarities = cosines(queries[rows], vocabulary)
        step = max(WEIGHTS_AT_ONCE // nobody, 1)
        for some, near in zip(rows.split(step), similarities.split(step)):
            scores = scores_of(near, excluded[some], temperature)
            words[some], _ = draw_by_weight(scores, words[some], random.of(some))
    return words, torch.zeros(len(words), dtype=torch.bool, device=queries.device)


def draw_on_gpu(
    queries: Tensor,
    excluded: Tensor,
    seeds: Tensor,
    vocabulary: Tensor,
    number: int,
    temperature: float,
    rounds: int,
) -> tuple[Tensor, Tensor]:
    """`sample_words_of_few` without waiting: the same draws, of all rows, for a number of rounds.

    Also returns (n,) bool, whether words lack that are left in the vocabulary.
    """
    queries, random, nobody = F.normalize(queries, dim=-1), UniformNumbers(seeds), len(vocabulary)
    excluded = excluded.masked_fill(excluded < 0, nobody)
    words = torch.full((len(queries), number), -1, device=queries.device)
    near = cosines(queries, vocabulary)
    if proposals := worthwhile_proposals(number, temperature, nobody):
        proposed = (random.next(proposals) * nobody).long()
        draws = accept(proposed, near.gather(1, proposed), excluded, nobody, temperature, random)
        words = first_distinct(draws, number)
    if rounds:
        return draw_by_weight(scores_of(near, excluded, temperature), words, random, rounds)
    drawn = (words >= 0).sum(1)
    return words, (drawn < number) & (drawn < forbidden_words(excluded, nobody)[:, :nobody].logical_not().sum(1))


def forbidden_words(excluded: Tensor, nobody: int) -> Tensor:
    """(n, V + 1) bool, the words (n, B) that must not be drawn; the last column, "nobody", is no word."""
    forbidden = torch.zeros(len(excluded), nobody + 1, dtype=torch.bool, device=excluded.device)
    return forbidden.scatter_(1, excluded, True)


def scores_of(near: Tensor, excluded: Tensor, temperature: float) -> Tensor:
    """(n, blocks · WEIGHTS_IN_BLOCK) logarithms of the weights of all words, -inf beyond them, from cosines (n, V).

    That of the words (n, B) that must not be drawn is -inf, too; V among them is no word.
    """
    nobody = near.shape[1]
    scores = near.new_full((len(near), nobody + WEIGHTS_IN_BLOCK - nobody % WEIGHTS_IN_BLOCK), -torch.inf)
    torch.div(near, temperature, out=scores[:, :nobody])
    return scores.scatter_(1, excluded, -torch.inf)


def worthwhile_proposals(number: int, temperature: float, vocabulary_size: int) -> int:
    """The number of proposals needed if all cosines were 0, plus a tenth; 0 if it is cheaper to read all words."""
    # at cosine 0 a proposal is accepted with probability exp(-1/τ), so m draws need about m exp(1/τ) proposals
    proposals = ceil(1.1 * number * exp(min(1 / temperature, 99))) + 64
    return proposals if proposals < vocabulary_size / 8 else 0


def propose_and_accept(
    queries: Tensor, vocabulary: Tensor, excluded: Tensor, temperature: float, number: int, random: "UniformNumbers"
) -> Tensor:
    """(n, number) uniformly proposed words, accepted with probability exp((cosine - 1) / τ), else -1."""
    proposals = (random.next(number) * len(vocabulary)).long()
    words, indices = proposals.unique(return_inverse=True)
    near = cosines(queries, vocabulary, words).gather(1, indices)
    return accept(proposals, near, excluded, len(vocabulary), temperature, random)


def accept(
    proposals: Tensor, near: Tensor, excluded: Tensor, nobody: int, temperature: float, random: "UniformNumbers"
) -> Tensor:
    """The proposals (n, number) with cosines `near` that are accepted, else -1."""
    chances = near.sub_(1).div_(temperature).exp_()
    allowed = ~forbidden_words(excluded, nobody).gather(1, proposals)
    return proposals.where((random.next(proposals.shape[1]) < chances) & allowed, -1)


def draw_by_weight(
    scores: Tensor, words: Tensor, random: "UniformNumbers", rounds: int | None = None
) -> tuple[Tensor, Tensor]:
    """Fill the missing words (-1) of (n, m) by drawing from exp(scores), (n, blocks · WEIGHTS_IN_BLOCK), the last -inf.

    Weights are accumulated in float64: first over the blocks, then within the blocks that were drawn. `rounds`: draw
    that often without asking whether words lack. Also returns (n,) bool, whether they do.
    """
    nobody, draws_a_round = scores.shape[1] - 1, words.shape[1] * 5 // 4 + 8
    ahead = iter(random.next(draws_a_round * rounds).split(draws_a_round, 1) if rounds else ())
    for done in count():
        scores.scatter_(1, words.masked_fill(words < 0, nobody), -torch.inf)
        best = scores.amax(-1, keepdim=True)
        if rounds is None or done == rounds:
            lacking = (words[:, -1:] < 0) & (best > -torch.inf)
            if done == rounds or not lacking.any():
                break
        weights = (scores - best).exp_().unflatten(1, (-1, WEIGHTS_IN_BLOCK))
        ends = weights.sum(-1).cumsum(-1, dtype=torch.float64)  # (n, blocks)
        points = (next(ahead) if rounds else random.next(draws_a_round)) * ends[:, -1:]  # (n, draws)
        blocks = torch.searchsorted(ends, points, right=True).clamp_(max=ends.shape[1] - 1)
        points -= F.pad(ends, (1, 0)).gather(1, blocks)
        at = blocks.unsqueeze(1).expand(-1, WEIGHTS_IN_BLOCK, -1)
        within = weights.transpose(1, 2).gather(2, at).cumsum(1, dtype=torch.float64)  # (n, words of a block, draws)
        offsets = (within > points.unsqueeze(1)).logical_not_().sum(1)  # where weights are NaN, as if none was found
        draws = torch.add(offsets, blocks, alpha=WEIGHTS_IN_BLOCK).masked_fill_(offsets == WEIGHTS_IN_BLOCK, -1)
        words = first_distinct(torch.cat([words, draws], 1), words.shape[1])
    return words, lacking.squeeze(1)


def cosines(queries: Tensor, vocabulary: Tensor, words: Tensor | None = None) -> Tensor:
    """(n, V) cosines of unit vectors (n, d) with the vocabulary (V, d), or (n, words) with some of its words."""
    number = len(vocabulary) if words is None else len(words)
    step = words_at_once(vocabulary)
    aligned = number + -number % 8  # rows as tensor cores want them
    result = queries.new_empty(len(queries), aligned)[:, :number]
    for start in range(0, number, step):
        some = slice(start, start + step)
        rows = vocabulary[some] if words is None else F.embedding(words[some], vocabulary)  # (step, d)
        rows = rows.to(queries.dtype)
        lengths = torch.linalg.vector_norm(rows, dim=-1).clamp_min(SMALLEST)
        torch.mm(queries, rows.T, out=result[:, some]).div_(lengths)
    return result


def words_at_once(vocabulary: Tensor) -> int:
    """How many rows of a vocabulary (V, d) are best read together on its device."""
    return WORDS_AT_ONCE if vocabulary.device.type == "cpu" else 64 * WORDS_AT_ONCE


def first_distinct(draws: Tensor, number: int) -> Tensor:
    """(n, number) the first distinct words in each row of draws (n, K), without -1; padded with -1."""
    ordered, indices = draws.sort(dim=-1, stable=True)
    new = ordered != F.pad(ordered, (1, 0), value=-1)[:, :-1]  # never -1, which come first
    new = torch.empty_like(new).scatter_(1, indices, new)  # back in the order of the draws
    ranks = new.cumsum(-1).mul_(new)  # from 1; those that are not new share 0
    room = 1 + max(draws.shape[1], number)
    return draws.new_full((len(draws), room), -1).scatter_(1, ranks, draws)[:, 1 : number + 1]


class UniformNumbers:
    """Uniform numbers in [0, 1): one stream per seed, equal on every device and in every batch (SplitMix64)."""

    def __init__(self, seeds: Tensor, used: int = 0) -> None:
        self.seeds, self.used = seeds, used
        self.bits = scrambled(seeds.long())  # of fewer bits other numbers would come

    def of(self, rows: Tensor) -> "UniformNumbers":
        """The streams of some rows, continued."""
        return UniformNumbers(self.seeds[rows], self.used)

    def next(self, number: int) -> Tensor:
        """(seeds, number) float64."""
        counters = torch.arange(self.used + 1, self.used + number + 1, device=self.seeds.device)
        self.used += number
        return shifted(scrambled(torch.add(self.bits[:, None], counters, alpha=STEP)), 11).double().mul_(2.0**-53)


def scrambled(bits: Tensor) -> Tensor:
    """SplitMix64's mixing of 64 bits (Steele et al., 2014), in int64, whose products wrap around."""
    bits = (bits ^ shifted(bits, 30)) * MIXERS[0]
    bits = (bits ^ shifted(bits, 27)) * MIXERS[1]
    return bits ^ shifted(bits, 31)


def shifted(bits: Tensor, count: int) -> Tensor:
    """The bits of int64 shifted right by `count`, filled with zeros."""
    return (bits >> count) & (2 ** (64 - count) - 1)
