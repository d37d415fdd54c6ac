"""The losses of HiCTL as functions of tensors: one InfoNCE over sentences, one over words, one mean over many batches.

They know no model, tokenizer or process; which negatives they see is decided by `negatives`. Each returns one value
for each item (anchor, pair), so that the caller can take means over a batch spread over micro-batches and processes.
Shapes: N = 2n sentences, n pairs, B words of a bag (padded with -1), m sampled words (padded with -1), V words.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def sentence_contrast(scores: Tensor, negatives: Tensor, temperature: float = 1.0) -> Tensor:
    """-log exp(s⁺/τ) / (exp(s⁺/τ) + Σ exp(s⁻/τ)) for each of the N anchors; L_S is their mean (sentence-level CTL).

    Args:
        scores: (N, N) similarities, row = query; the positive of row i is column (i + N/2) mod N.
        negatives: (N, N) bool, which columns are negatives of the row.

    Returns:
        (N,) losses; 0, without gradient, for an anchor that has no negative.
    """
    positives = torch.arange(len(scores), device=scores.device).roll(len(scores) // 2)
    contrasted = negatives.scatter(1, positives[:, None], True)
    return F.cross_entropy((scores / temperature).masked_fill(~contrasted, -torch.inf), positives, reduction="none")


def word_contrast(
    queries: Tensor, vocabulary: Tensor, bag: Tensor, sampled: Tensor, temperature: float = 1.0
) -> Tensor:
    """-log exp(s(q̄, e(w))/τ) / (exp(s(q̄, e(w))/τ) + Σ_S exp(s(q̄, e(w'))/τ)), the mean over the words w of each bag.

    L_W is the mean of the result over pairs (word-level CTL). Similarity is the cosine. Only the rows of the vocabulary
    that occur are touched, each once however many pairs share it.

    Args:
        queries: (n, d) first tokens q̄ of x∘y.
        vocabulary: (V, d) word embeddings e.
        bag: (n, B) ids of the unique words of x and y, -1 beyond their number.
        sampled: (n, m) ids of negative words, -1 beyond their number.

    Returns:
        (n,) losses; 0 for an empty bag.
    """
    words, places = torch.unique(torch.cat([bag, sampled], 1).clamp_min(0), return_inverse=True)
    embeddings = F.embedding(words, vocabulary)  # (words that occur, d)
    cosines = F.normalize(queries, dim=-1) @ F.normalize(embeddings, dim=-1).T / temperature
    scores = cosines.gather(1, places)  # (n, B + m)
    against = scores[:, bag.shape[1] :].masked_fill(sampled < 0, -torch.inf).logsumexp(-1, keepdim=True)
    attracted = scores[:, : bag.shape[1]]
    losses = (torch.logaddexp(attracted, against) - attracted).masked_fill(bag < 0, 0)
    return losses.sum(-1) / (bag >= 0).sum(-1).clamp_min(1)


def mean_over_batch(values: Tensor, items: Tensor | int | None = None) -> Tensor:
    """Sum of values over the number of items: their own, or that of the whole batch these values are a part of."""
    return values.sum() / (max(values.numel(), 1) if items is None else items)
