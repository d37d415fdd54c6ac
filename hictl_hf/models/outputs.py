"""The outputs of a pre-training batch.

Shapes: n examples, N = 2n sentences, T tokens of an example, V words, r dimensions of the projection.
"""

from dataclasses import dataclass

from torch import Tensor
from transformers.utils import ModelOutput


@dataclass
class HictlForPreTrainingOutput(ModelOutput):
    """Losses and statistics of a batch. A loss that is switched off, or has no input, is `None`.

    Args:
        loss: () weighted sum of the losses.
        logits: (n, T, V) when called as a masked language model; `None` in pre-training.
        lm_loss, sentence_loss, word_loss: () L_LM, L_S, L_W, before their weights.
        sentence_embeddings: (N, r) representations r, x before y.
        hard_negative_lambda: () mean λ over the negatives; 1 = nothing was moved.
        negatives_per_anchor: () mean number of negatives of a sentence.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    lm_loss: Tensor | None = None
    sentence_loss: Tensor | None = None
    word_loss: Tensor | None = None
    sentence_embeddings: Tensor | None = None
    hard_negative_lambda: Tensor | None = None
    negatives_per_anchor: Tensor | None = None


@dataclass
class SentenceLevel:
    """L_S of a contrastive batch and statistics of its negatives.

    Args:
        loss: () L_S, or the share of it of this process or micro-batch; shares add up to L_S.
        hard_negative_lambda: () mean λ over the negatives.
        negatives_per_anchor: () mean number of negatives of a sentence.
    """

    loss: Tensor
    hard_negative_lambda: Tensor
    negatives_per_anchor: Tensor


@dataclass
class CachedSentenceLevel(SentenceLevel):
    """L_S of a complete batch, computed before (gradient cache), for one of its micro-batches.

    Args:
        gradients: (N, r) of L_S with respect to the representations of the micro-batch.
    """

    gradients: Tensor
