"""The losses of HiCTL as functions of tensors: InfoNCE over sentences, InfoNCE over words, and means over batches.

They know no model, tokenizer or process; `negatives` and `word_sampling` choose the negatives. Shapes: N = 2n
sentences, n pairs, B words of a bag (padded with -1), m sampled words (padded with -1), V words of the vocabulary,
d dimensions.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .configuration_objective import CHOICES, check_choice
from .gpu import products_in_tf32
from .linear_cross_entropy import gradient_buffer
from .negatives import (
    SMALLEST,
    interpolate_hard_negatives,
    interpolation_weights,
    inverse_lengths,
    mixed_products,
    mixed_squares,
    squared_lengths,
    squares_of_rows,
)
from .word_sampling import OccurringWords, cosines, list_words, words_at_once

QUERIES_AT_ONCE = 256  # whose similarities to all others stay in the cache of a CPU
SIMILARITIES_ON_GPU = 2**24  # of queries to all others, 64 MiB


@torch.compiler.disable
def sentence_contrast(
    sentences: Tensor,
    negatives: Tensor,
    temperature: float = 1.0,
    strength: Tensor | float = 0.0,
    space: str = "unit",
    items: Tensor | int | None = None,
    lambda_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """L_S: the mean of -log exp(s⁺/τ) / (exp(s⁺/τ) + Σ exp(s⁻/τ)) over the anchors (equations 2 to 4).

    s⁻ are similarities to negatives that were moved towards the query (`interpolate_hard_negatives`). The gradient is
    computed in the forward pass, some queries at a time; no array is larger than (N, N). Sentences in half precision,
    also under autocast, are contrasted in fp32.

    Args:
        sentences: (N, d) representations; the positive of row i is row (i + N/2) mod N.
        negatives: (N, N) bool, which columns are negatives of the row.
        temperature: τ.
        strength: ζ · p_avg; 0 moves no negative.
        space: "unit" or "raw", the vectors that negatives are moved among.
        items: divisor of the sum over the anchors; `None`: N.
        lambda_gradient: whether the gradient passes through λ; autograd then keeps several (N, N) arrays.

    Returns:
        () the loss, to which an anchor without a negative adds 0, and () the mean λ of the negatives.
    """
    check_choice("space", space, CHOICES["hard_negative_space"])
    divisor = max(len(sentences), 1) if items is None else items
    with torch.autocast(sentences.device.type, enabled=False):
        arguments = in_full_precision(sentences), negatives, temperature, strength, space, divisor
        if lambda_gradient:
            return contrast_through_lambda(*arguments)
        return SentenceContrast.apply(*arguments)  # type: ignore[no-untyped-call]


def contrast_through_lambda(
    sentences: Tensor,
    negatives: Tensor,
    temperature: float,
    strength: Tensor | float,
    space: str,
    items: Tensor | int,
) -> tuple[Tensor, Tensor]:
    """`sentence_contrast` by autograd, with the gradient of λ."""
    scores, lambdas = interpolate_hard_negatives(sentences, negatives, strength, space, lambda_gradient=True)
    positives = torch.arange(len(sentences), device=sentences.device).roll(len(sentences) // 2)
    contrasted = negatives.scatter(1, positives.unsqueeze(1), True)
    logits = (scores / temperature).masked_fill(~contrasted, -torch.inf)
    loss = F.cross_entropy(logits, positives, reduction="sum") / items
    moved = (1 - lambdas.detach()).sum() / negatives.count_nonzero().clamp_min(1)  # λ is 1 elsewhere
    return loss, 1 - moved


class SentenceContrast(torch.autograd.Function):
    """`sentence_contrast` with its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        sentences: Tensor,
        negatives: Tensor,
        temperature: float,
        strength: Tensor | float,
        space: str,
        items: Tensor | int,
    ) -> tuple[Tensor, Tensor]:
        loss, gradient, mean_lambda = sentence_contrast_and_gradient(sentences, negatives, temperature, strength, space)
        ctx.save_for_backward(gradient.div_(items))
        ctx.mark_non_differentiable(mean_lambda)
        return loss / items, mean_lambda

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return upstream * ctx.saved_tensors[0], None, None, None, None, None


# For a query q with positive k⁺ and negatives k⁻, moved to k̂ = q + λ (k⁻ - q), with λ constant for the gradient:
#   products  q·k̂ = (1 - λ) |q|² + λ q·k,   |k̂|² = q·k̂ + λ (k·k̂ - q·k̂),   k·k̂ = (1 - λ) q·k + λ |k|²
#   score     s = q·k̂                 in unit space
#             s = q·k̂ / (|q| |k̂|)     in raw space
#   loss      -log softmax(s / τ)_k⁺,   so ∂loss / ∂s = (softmax - onehot(k⁺)) / τ
# All of them are functions of the Gram matrix (q·k), |q|² and |k|². `by_product` holds τ ∂loss / ∂(q·k) and `by_square`
# 2τ ∂loss / ∂|k|²; the gradient of the points P is then [(G + Gᵀ) P + by_square P] / τ, with G = `by_product`. In unit
# space |k|² = 1, and the derivative of the normalisation removes the part of the gradient along each point.
# With the mean c of the points and k' = k - c:  q·k = q'·k' + (q'·c + |c|² / 2) + (k'·c + |c|² / 2), which keeps the
# digits of distances between almost parallel vectors.
def sentence_contrast_and_gradient(
    sentences: Tensor, negatives: Tensor, temperature: float, strength: Tensor | float, space: str
) -> tuple[Tensor, Tensor, Tensor]:
    """() the sum of the losses, (N, d) its gradient, () mean λ, all computed from the Gram matrix of the sentences."""
    points, lengths = unit_vectors(sentences) if space == "unit" else (sentences, None)
    squares, near = squared_lengths(points)
    centre = points.mean(0)
    centred = points - centre
    own, along = squares_of_rows(centred), centred @ centre + centre.square().sum() / 2  # (N,) each
    positives = torch.arange(len(points), device=points.device).roll(len(points) // 2).unsqueeze(1)
    others = ~negatives
    hidden = others.scatter(1, positives, False)  # from the softmax
    loss, moved = near.new_zeros(()), near.new_zeros((), dtype=torch.float64)
    by_product = torch.empty_like(negatives, dtype=points.dtype)  # (N, N) τ ∂loss / ∂(q·k)
    by_square = torch.zeros_like(near)  # (N, 1) 2τ ∂loss / ∂|k|², each as a query and as a key
    step = queries_at_once(points)
    for start in range(0, len(points), step):
        rows = slice(start, start + step)
        gram, query = centred[rows] @ centred.T, squares[rows, None]
        lambdas = interpolation_weights(gram, own[rows, None], own, near[rows], others[rows], strength)
        products = gram.add_(along[rows, None]).add_(along)  # q·k
        scores = mixed = mixed_products(products, query, lambdas)
        if lengths is None:
            mixed_square = mixed_squares(mixed, products, squares, lambdas)
            scale = inverse_lengths(query, mixed_square)
            scores = mixed * scale
        logits = (scores / temperature).masked_fill_(hidden[rows], -torch.inf)
        shares = logits.softmax(-1)
        behind = logits.amax(-1, keepdim=True) - logits.gather(1, positives[rows])  # the share itself may underflow
        loss += (behind - shares.amax(-1, keepdim=True).log()).sum()
        moved += lambdas.sum()
        pull = shares.scatter_add_(1, positives[rows], torch.full_like(near[rows], -1)).mul_(lambdas)
        if lengths is None:  # the cosine also depends on both lengths, but not on the scale of either
            shrink = scores.mul_(pull).mul_(lambdas).div_(mixed_square)
            ratio = mixed.div_(mixed_square)
            pull = pull.mul_(scale).mul_(torch.addcmul(1 - ratio, lambdas, ratio))
            by_square -= shrink.sum(0).unsqueeze(1)
            both = shrink @ squares.unsqueeze(1) - 2 * (pull * products).sum(-1, keepdim=True)
            by_square[rows] += both / query.clamp_min(SMALLEST**2)
        by_product[rows] = pull
    both_ways = by_product.T.contiguous().add_(by_product)  # several times faster than adding the transposed view
    gradient = (both_ways @ centred).addcmul_(both_ways.sum(-1, keepdim=True), centre)  # = both_ways @ points
    if lengths is None:
        gradient.addcmul_(by_square, points)
    else:
        lengthwise = torch.einsum("nd,nd->n", gradient, points).unsqueeze(1)
        gradient.addcmul_(lengthwise, points, value=-1).div_(lengths)
    # λ is 1 where nothing moves, so its sum over the negatives is moved - (numel - negatives)
    mean_lambda = 1 - (negatives.numel() - moved) / negatives.count_nonzero().clamp_min(1)
    return loss, gradient.div_(temperature), mean_lambda.to(loss.dtype)


def queries_at_once(points: Tensor) -> int:
    """For how many queries the similarities to all (N, d) points are computed together on their device."""
    return QUERIES_AT_ONCE if points.device.type == "cpu" else max(SIMILARITIES_ON_GPU // max(len(points), 1), 1)


def unit_vectors(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """(N, d) vectors of length 1, and (N, 1) the lengths they had."""
    lengths = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp_min(SMALLEST)
    return vectors / lengths, lengths


@torch.compiler.disable
def word_contrast(
    queries: Tensor,
    vocabulary: Tensor,
    bag: Tensor,
    sampled: Tensor,
    temperature: float = 1.0,
    occurring: OccurringWords | None = None,
    tf32: bool = False,
) -> tuple[Tensor, Tensor]:
    """-log exp(s(q̄, e(w))/τ) / (exp(s(q̄, e(w))/τ) + Σ_S exp(s(q̄, e(w'))/τ)), the mean over the words w of each bag.

    L_W is the mean of the result over pairs (equations 7 and 8). Similarity is the cosine. Only the rows of the
    vocabulary that occur are read, each once however many pairs share it.

    Args:
        queries: (n, d) first tokens q̄ of x∘y; half precision is converted to fp32.
        vocabulary: (V, d) word embeddings e.
        bag: (n, B) ids of the unique words of x and y, -1 beyond their number.
        sampled: (n, m) ids of negative words, -1 beyond their number.
        occurring: `list_words` of both, if known.
        tf32: whether a GPU may multiply in TF32 (`products_in_tf32`).

    Returns:
        (n,) losses, 0 for an empty bag, and (V, d) the unchanged vocabulary for its next use, to whose gradient that of
        the losses is added in place: only this function, `tied_embedding` or `linear_cross_entropy` may use it.
    """
    words, indices = list_words(bag, sampled) if occurring is None else occurring
    arguments = in_full_precision(queries), vocabulary, bag, sampled, words, indices, temperature, tf32
    return WordContrast.apply(*arguments)  # type: ignore[no-untyped-call]


class WordContrast(torch.autograd.Function):
    """`word_contrast`; no array holds the embeddings of more than a slice of the words that occur."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        vocabulary: Tensor,
        bag: Tensor,
        sampled: Tensor,
        words: Tensor,
        indices: Tensor,
        temperature: float,
        tf32: bool,
    ) -> tuple[Tensor, Tensor]:
        directions, lengths = unit_vectors(queries)
        with products_in_tf32(tf32):
            similarities = cosines(directions, vocabulary, words)  # (n, words that occur)
        scores = similarities.gather(1, indices).div_(temperature)  # (n, B + m)
        losses, pulls = contrast_with_sampled(scores, bag, sampled)
        pulls = torch.zeros_like(similarities).scatter_add_(1, indices, pulls.div_(temperature))
        ctx.save_for_backward(directions, lengths, vocabulary, words, similarities, pulls)
        ctx.tf32 = tf32
        ctx.set_materialize_grads(False)
        return losses, vocabulary.view_as(vocabulary)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor | None, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        if upstream is None:
            return None, gradient, *[None] * 6
        directions, lengths, vocabulary, words, similarities, pulls = ctx.saved_tensors
        # s = q̂·ê with q̂ = q/|q|, ê = e/|e|, and g = ∂L/∂s (pulls):
        # ∂L/∂q = (Σ g ê - q̂ Σ g s)/|q|, ∂L/∂e = (Σ g q̂ - ê Σ g s)/|e|
        pulls = pulls * upstream.unsqueeze(1)
        gradient = gradient_buffer(vocabulary).zero_() if gradient is None else gradient.contiguous()
        by_direction = torch.zeros_like(directions)
        step = words_at_once(vocabulary)
        for some in (slice(start, start + step) for start in range(0, len(words), step)):
            rows = F.embedding(words[some], vocabulary).to(pulls.dtype)
            sizes = torch.linalg.vector_norm(rows, dim=-1).clamp_min(SMALLEST)
            pull = pulls[:, some] / sizes  # (n, some words)
            with products_in_tf32(ctx.tf32):
                by_direction += pull @ rows
                product = pull.T @ directions
            radial = (pull * similarities[:, some]).sum(0) / sizes
            by_rows = torch.addcmul(product, radial.unsqueeze(1), rows, value=-1)
            gradient.index_add_(0, words[some], by_rows.to(gradient.dtype))
        radial = (by_direction * directions).sum(-1, keepdim=True)
        return (by_direction - radial * directions) / lengths, gradient, *[None] * 6


# With a word w of a bag of B words, its score a_w, those r_j of the sampled words and R = logsumexp(r):
#   loss = Σ_w [logaddexp(a_w, R) - a_w] / B,   ∂a_w = [1 / (1 + exp(R - a_w)) - 1] / B
#   ∂r_j = exp(r_j - R) Σ_w 1 / (1 + exp(a_w - R)) / B
def contrast_with_sampled(scores: Tensor, bag: Tensor, sampled: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) losses and (n, B + m) the gradient of their sum, from scores of the words of each bag (n, B) and of the
    sampled ones (n, m); -1 is none."""
    attracted, repelled = scores.split([bag.shape[1], sampled.shape[1]], dim=1)
    absent, none = bag < 0, sampled < 0
    against = repelled.masked_fill(none, -torch.inf).logsumexp(-1, keepdim=True)
    number = bag.shape[1] - absent.sum(-1, keepdim=True)
    number.clamp_min_(1)
    losses = (torch.logaddexp(attracted, against) - attracted).masked_fill_(absent, 0)
    share = scores.new_ones(()).div(number).masked_fill(absent, 0)
    by_attracted = share / (1 + (against - attracted).exp_()) - share
    by_against = (share / (1 + (attracted - against).exp_())).sum(-1, keepdim=True)
    by_repelled = (by_against * (repelled - against).exp_()).masked_fill_(none, 0)
    return losses.sum(-1) / number.squeeze(1), torch.cat([by_attracted, by_repelled], 1)


def mean_over_batch(values: Tensor, items: Tensor | int | None = None) -> Tensor:
    """Sum of the values divided by the number of items: their own, or that of the complete batch they are part of."""
    return values.sum() / (max(values.numel(), 1) if items is None else items)


def in_full_precision(values: Tensor) -> Tensor:
    """Convert half precision to fp32, in which similarities and their losses are always computed."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
