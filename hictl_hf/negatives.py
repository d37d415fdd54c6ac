"""Which negatives a query is contrasted with, at both levels: HiCTL's own contribution.

Sentence level: the other sentences of the batch, moved towards the query. Word level: words drawn from the
vocabulary outside the bag, the nearer the likelier. How they are contrasted is decided by `losses`.

Sentences of a batch of n pairs are stacked: rows 0 … n-1 are x, rows n … 2n-1 their positives y, so that the positive
of row i is row (i + n) mod 2n. Shapes: N = 2n sentences, n pairs, B words of a bag, m sampled words, V words of the
vocabulary, d dimensions.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

SMALLEST = 1e-12  # below any squared length that occurs; keeps roots and quotients finite


def in_batch_negatives(texts: Tensor, duplicates: str = "pair") -> Tensor:
    """Who is a negative of whom: (N, N) bool, row = query: the 2n - 2 sentences of the other pairs.

    Args:
        texts: (N,) int64, equal where the texts are equal (a hash); reordered monolingual text carries its original's.
        duplicates: "keep" every sentence of another pair, leave out equal "text"s, or leave out every sentence of a
            "pair" that shares a text with the query's: it is a translation, too.
    """
    if len(texts) % 2:
        raise ValueError(f"there are {len(texts)} sentences; each x needs its y: x_1 … x_n, then y_1 … y_n")
    pairs = len(texts) // 2
    pair = torch.arange(len(texts), device=texts.device) % pairs
    same = pair[:, None] == pair  # (N, N) the query itself and its positive
    if duplicates == "keep":
        return ~same
    equal = texts[:, None] == texts  # (N, N)
    if duplicates == "text":
        return ~(same | equal)
    shares = equal.view(2, pairs, 2, pairs).any(2).any(0)  # (n, n) the two pairs have a text in common
    return ~(same | shares.repeat(2, 2))


def interpolate_hard_negatives(
    sentences: Tensor, negatives: Tensor, strength: Tensor | float, space: str = "unit"
) -> tuple[Tensor, Tensor]:
    """Cosines of each query with the others, negatives first moved towards the query (hard negatives).

    k̂ = q + λ (k⁻ - q) with λ = (d⁺ / d⁻)^strength where d⁻ > d⁺, else 1; d are Euclidean distances, and no gradient
    passes through λ. No mixture is ever built: q·k̂ and |k̂|² follow from the Gram matrix, so memory is O(N²).

    Args:
        sentences: (N, d) representations, positives n rows apart.
        negatives: (N, N) bool, which entries to move.
        strength: ζ · p_avg; 0 moves nothing.
        space: "raw" takes distances and mixtures of the given vectors and the cosine of the result; "unit" those of
            vectors scaled to length 1, without scaling the mixture again: ŝ = 1 - λ(1 - s).

    Returns:
        (N, N) scores, and (N, N) λ, which is 1 wherever nothing moved.
    """
    unit = F.normalize(sentences, dim=-1)
    points = unit if space == "unit" else sentences
    with torch.no_grad():
        lambdas = interpolation_weights(points, negatives, strength)
    if space == "unit":
        return 1 - lambdas * (1 - unit @ unit.T), lambdas
    gram = sentences @ sentences.T  # (N, N) q·k
    squares = sentences.square().sum(-1)  # (N,)
    query, other = squares[:, None], squares[None, :]
    mixed = (1 - lambdas) * query + lambdas * gram  # q·k̂
    length = (1 - lambdas) ** 2 * query + lambdas**2 * other + 2 * lambdas * (1 - lambdas) * gram  # |k̂|²
    return mixed / (query.clamp_min(SMALLEST).sqrt() * length.clamp_min(SMALLEST).sqrt()), lambdas


def interpolation_weights(points: Tensor, negatives: Tensor, strength: Tensor | float) -> Tensor:
    """λ of the hard negatives, (N, N): (d⁺ / d⁻)^strength for negatives farther than the positive, 1 elsewhere."""
    squares = points.square().sum(-1)
    far = (squares[:, None] + squares - 2 * points @ points.T).clamp_min(0)  # (N, N) squared distances
    near = (points - points.roll(len(points) // 2, 0)).square().sum(-1, keepdim=True)  # (N, 1) exact for close pairs
    ratio = (near / far.clamp_min(SMALLEST)).clamp(max=1)
    return torch.where(negatives, ratio ** (strength / 2), 1.0)


def sample_words(
    similarities: Tensor, excluded: Tensor, number: int, temperature: float, seeds: Tensor | None = None
) -> Tensor:
    """Draw words outside the bag for each pair, without replacement, from softmax(similarity / temperature).

    Gumbel top-k: the largest of (similarity / temperature + Gumbel noise) are distributed as draws one after another
    (Kool et al., 2019). In the paper's words S, a subset of V∖B, is sampled by the
    similarities to the query.

    Args:
        similarities: (n, V) cosines of the queries with every word.
        excluded: (n, V) bool, words that must not be drawn: the bag, special tokens, padding.
        number: m; fewer are drawn where fewer words are left.
        seeds: (n,) int64, one for each pair: its draw does not depend on its neighbours in the batch. Without them the
            global generator is used.

    Returns:
        (n, min(m, V)) word ids, -1 where no word was left.
    """
    uniform = torch.empty_like(similarities, dtype=torch.float32)
    if seeds is None:
        uniform.uniform_()
    else:
        generator = torch.Generator(uniform.device)
        for row, seed in zip(uniform, seeds.tolist()):
            row.uniform_(generator=generator.manual_seed(seed))
    keys = similarities / temperature - (-uniform.log()).log()
    best, words = keys.masked_fill(excluded, -torch.inf).topk(min(number, keys.shape[-1]), dim=-1)
    return words.masked_fill(best == -torch.inf, -1)
