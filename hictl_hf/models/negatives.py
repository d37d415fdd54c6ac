"""The negatives of the sentence level: the other sentences of the batch, moved towards the query (HiCTL's hard
negatives).

`word_sampling` draws those of the word level; `losses` contrasts both.

Sentences of a batch of n pairs are stacked: rows 0 … n-1 are x, rows n … 2n-1 their positives y, so that the positive
of row i is row (i + n) mod 2n. Shapes: N = 2n sentences, n pairs, d dimensions.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from .configuration_objective import CHOICES, check_choice

SMALLEST = 1e-12  # below any squared length that occurs; keeps roots and quotients finite


def in_batch_negatives(texts: Tensor, duplicates: str = "pair", same_side: bool = True) -> Tensor:
    """(N, N) bool mask of the negatives of each query (row): the 2n - 2 sentences of the other pairs.

    Args:
        texts: (N,) int64 hashes, equal where the texts are equal; a reordered monolingual text has its original's.
        duplicates: "keep" every sentence of another pair; exclude equal texts ("text"); or exclude every sentence of a
            pair that shares a text with the query's ("pair"): it is a translation, too.
        same_side: whether an x has other x as negatives, and a y other y; without them there are n - 1 negatives.
    """
    check_choice("duplicates", duplicates, CHOICES["duplicates"])
    if len(texts) % 2:
        raise ValueError(f"there are {len(texts)} sentences; each x needs its y: x_1 … x_n, then y_1 … y_n")
    pairs = len(texts) // 2
    equal = texts[:, None] == texts  # (N, N)
    if duplicates == "pair":
        excluded = equal.view(2, pairs, 2, pairs).any(2).any(0)  # (n, n) whether two pairs share a text, such as x to x
    else:
        excluded = torch.eye(pairs, dtype=torch.bool, device=texts.device)
    negatives = (~excluded).repeat(2, 2)  # neither the query itself nor its positive
    if duplicates == "text":
        negatives &= ~equal
    if not same_side:
        negatives[:pairs, :pairs] = negatives[pairs:, pairs:] = False
    return negatives


def interpolate_hard_negatives(
    sentences: Tensor,
    negatives: Tensor,
    strength: Tensor | float,
    space: str = "unit",
    lambda_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Cosines of each query with the others, negatives first moved towards the query (equation 5).

    k̂ = q + λ (k⁻ - q) with λ = (d⁺ / d⁻)^strength where d⁻ > d⁺, else 1; d are Euclidean distances. The vectors k̂ are
    never computed: q·k̂ and |k̂|² follow from the Gram matrix, so memory is O(N²). For inspection, and for the gradient
    through λ; otherwise the loss does the same for some queries at a time (`sentence_contrast_and_gradient`).

    Args:
        sentences: (N, d) representations, positives n rows apart.
        negatives: (N, N) bool, which entries to move.
        strength: ζ · p_avg; 0 moves nothing.
        space: "raw" computes distances and k̂ of the given vectors and the cosine of the result; "unit" those of vectors
            scaled to length 1, without scaling k̂ again: ŝ = 1 - λ(1 - s).
        lambda_gradient: whether the gradient passes through λ.

    Returns:
        (N, N) scores, and (N, N) λ, which is 1 wherever nothing moved.
    """
    check_choice("space", space, CHOICES["hard_negative_space"])
    points = F.normalize(sentences, dim=-1) if space == "unit" else sentences
    squares, near = squared_lengths(points)
    gram = points @ points.T
    weights = differentiable_weights if lambda_gradient else interpolation_weights
    lambdas = weights(gram, squares[:, None], squares, near, ~negatives, strength)
    mixed = mixed_products(gram, squares[:, None], lambdas)
    if space == "unit":
        return mixed, lambdas
    return mixed * inverse_lengths(squares[:, None], mixed_squares(mixed, gram, squares, lambdas)), lambdas


def squared_lengths(points: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) |k|², and (N, 1) squared distance of each point to its positive, exact for close pairs."""
    between = points[: len(points) // 2] - points[len(points) // 2 :]
    return squares_of_rows(points), squares_of_rows(between).repeat(2).unsqueeze(1)


def squares_of_rows(points: Tensor) -> Tensor:
    """(N,) |k|², without an array of all squares."""
    return torch.linalg.vector_norm(points, dim=-1).square()


@torch.no_grad()
def interpolation_weights(
    gram: Tensor, query: Tensor, other: Tensor, near: Tensor, others: Tensor, strength: Tensor | float
) -> Tensor:
    """λ of equation 6, (rows, N): (d⁺ / d⁻)^strength for negatives farther than the positive, 1 elsewhere.

    Args:
        gram: (rows, N) q·k.
        query: (rows, 1) |q|².
        other: (N,) |k|².
        near: (rows, 1) d⁺².
        others: (rows, N) bool, what is no negative.
        strength: ζ · p_avg.
    """
    far = torch.add(query, other).sub_(gram, alpha=2).clamp_min_(SMALLEST)  # (rows, N) d⁻²
    logarithms = near.clamp_min(SMALLEST**3).log() - far.log_()  # their exponential is faster than a power
    return logarithms.clamp_(max=0).mul_(strength / 2).exp_().masked_fill_(others, 1)


def differentiable_weights(
    gram: Tensor, query: Tensor, other: Tensor, near: Tensor, others: Tensor, strength: Tensor | float
) -> Tensor:
    """`interpolation_weights` with their gradient."""
    far = (query + other - 2 * gram).clamp_min(SMALLEST)
    logarithms = near.clamp_min(SMALLEST**3).log() - far.log()
    return (logarithms.clamp(max=0) * (strength / 2)).exp().masked_fill(others, 1)


def mixed_products(gram: Tensor, query: Tensor, lambdas: Tensor) -> Tensor:
    """(rows, N) q·k̂, where k̂ = q + λ (k - q); arguments as of `interpolation_weights`."""
    return torch.lerp(query, gram, lambdas)


def mixed_squares(mixed: Tensor, gram: Tensor, other: Tensor, lambdas: Tensor) -> Tensor:
    """(rows, N) |k̂|² = q·k̂ + λ (k·k̂ - q·k̂)."""
    return torch.lerp(mixed, torch.lerp(gram, other, lambdas), lambdas).clamp_min(SMALLEST**2)


def inverse_lengths(query: Tensor, length: Tensor) -> Tensor:
    """(rows, N) 1 / (|q| |k̂|) from |q|² (rows, 1) and |k̂|² (rows, N)."""
    return query.clamp_min(SMALLEST**2).rsqrt() * length.rsqrt()
