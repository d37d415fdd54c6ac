"""HiCTL written directly from the paper with Hugging Face's parts: the "naive" baseline.

Three padded calls of XLM-R (x, y, the masked x∘y), scores of all words at every position, a vector for every hard
negative, and word negatives drawn from similarities to the complete normalised vocabulary. It is not slow on purpose:
there is no loop over sentences or words. Tests use it as the slow definition of the losses.
Shapes: n pairs, N = 2n sentences, B words of a bag, m sampled words, V words, d dimensions.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import XLMRobertaForMaskedLM

from hictl_hf import HictlConfig
from hictl_hf.models.negatives import in_batch_negatives
from hictl_hf.models.outputs import HictlForPreTrainingOutput


class NaiveHictl(XLMRobertaForMaskedLM):
    """The network of `HictlForPreTraining`, with the same names of weights, and its losses the direct way."""

    config: HictlConfig
    config_class = HictlConfig
    p_avg = 0.3
    """Mean probability of the positives, which sets λ; the product keeps it up to date, here it is given."""

    def __init__(self, config: HictlConfig) -> None:
        super().__init__(config)
        self.projection = nn.Linear(config.hidden_size, config.projection_size or config.hidden_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        labels: Tensor,
        sentence_input_ids: Tensor,
        sentence_attention_mask: Tensor,
        sentence_hashes: Tensor,
        bag: Tensor,
        example_seeds: Tensor | None = None,
        word_negatives: Tensor | None = None,
    ) -> HictlForPreTrainingOutput:
        """The losses of a batch of `PretrainingCollator`.

        Args:
            example_seeds: not used; the naive form draws from the global generator.
            word_negatives: (n, m) ids to contrast the bags with, -1 where there is none, instead of a draw.
        """
        config = self.config
        x_and_y = zip(sentence_input_ids.chunk(2), sentence_attention_mask.chunk(2))
        sentences = torch.cat([self.encode(ids, mask) for ids, mask in x_and_y])  # (N, d)
        # scores of V words at every position, padding included
        masked = super().forward(input_ids, attention_mask, labels=labels, output_hidden_states=True, return_dict=True)
        sentence_loss = sentence_level(sentences, sentence_hashes, config.hard_negative_zeta * self.p_avg, config)
        word_loss = self.word_level(masked.hidden_states[-1][:, 0], bag, word_negatives)
        total = config.lm_weight * masked.loss + config.sentence_weight * sentence_loss + config.word_weight * word_loss
        return HictlForPreTrainingOutput(
            total, lm_loss=masked.loss, sentence_loss=sentence_loss, word_loss=word_loss, sentence_embeddings=sentences
        )

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(n, d) projections of the first tokens, after cutting the columns that are padding in every row."""
        longest = int(attention_mask.sum(-1).max())
        return self.projection(self.roberta(input_ids[:, :longest], attention_mask[:, :longest])[0][:, 0])

    def word_level(self, queries: Tensor, bag: Tensor, negatives: Tensor | None = None) -> Tensor:
        """() L_W: each word of the bag against m words outside it."""
        queries = F.normalize(queries, dim=-1)
        vocabulary = F.normalize(self.get_input_embeddings().weight, dim=-1)  # (V, d)
        negatives = self.draw_words(queries, vocabulary, bag) if negatives is None else negatives
        ids = torch.cat([bag, negatives], 1)
        scores = (F.embedding(ids.clamp_min(0), vocabulary) @ queries[:, :, None]).squeeze(-1)  # (n, B + m)
        scores = (scores / self.config.word_temperature).masked_fill(ids < 0, -torch.inf)
        positive, negative = scores[:, : bag.shape[1]], scores[:, bag.shape[1] :].logsumexp(-1, keepdim=True)
        losses = (torch.logaddexp(positive, negative) - positive).masked_fill(bag < 0, 0)
        return (losses.sum(-1) / (bag >= 0).sum(-1).clamp_min(1)).mean()

    @torch.no_grad()
    def draw_words(self, queries: Tensor, vocabulary: Tensor, bag: Tensor) -> Tensor:
        """(n, m) words outside the bag, drawn without replacement from softmax(cosine / temperature)."""
        config = self.config
        excluded = torch.zeros(len(bag), len(vocabulary) + 1, dtype=torch.bool, device=bag.device)
        excluded[:, config.special_token_ids] = True
        excluded = excluded.scatter(1, bag.where(bag >= 0, len(vocabulary)), True)[:, :-1]  # (n, V)
        temperature = config.word_sampling_temperature or config.word_temperature
        scores = (queries @ vocabulary.T).float() / temperature  # (n, V)
        probabilities = scores.masked_fill(excluded, -torch.inf).softmax(-1)
        return torch.multinomial(probabilities, config.word_negatives)


def sentence_level(sentences: Tensor, texts: Tensor, strength: float, config: HictlConfig) -> Tensor:
    """() L_S: each sentence against its positive and its 2n - 2 hard negatives."""
    with torch.autocast(sentences.device.type, enabled=False):
        return materialised_contrast(
            sentences.float() if sentences.dtype == torch.bfloat16 else sentences,
            in_batch_negatives(texts, config.duplicates),
            strength if config.hard_negatives else 0.0,
            config.hard_negative_space,
            config.sentence_temperature,
        )


def materialised_contrast(
    sentences: Tensor, negatives: Tensor, strength: float, space: str = "unit", temperature: float = 1.0
) -> Tensor:
    """() InfoNCE over hard negatives k̂ = q + λ (k⁻ - q), each of them a vector: (N, 2n - 2, d) of them.

    Args:
        sentences: (N, d), x before y.
        negatives: (N, N) bool, who is a negative of whom; other sentences are left out of the sum.
        strength: ζ p_avg in λ = (d⁺ / d⁻)^(ζ p_avg), taken where d⁻ > d⁺; no gradient passes through λ.
        space: "unit" mixes unit vectors and scores q·k̂, "raw" mixes the vectors themselves and scores the cosine.
    """
    points = F.normalize(sentences, dim=-1) if space == "unit" else sentences
    positives = points.roll(len(points) // 2, 0)  # (N, d)
    others = other_pairs(len(points)).to(points.device)  # (N, 2n - 2)
    queries, keys = points[:, None], points[others]  # (N, 1, d), (N, 2n - 2, d)
    with torch.no_grad():
        near = (points - positives).norm(dim=-1, keepdim=True)  # (N, 1) d⁺
        far = (queries - keys).norm(dim=-1)  # (N, 2n - 2) d⁻
        lambdas = torch.where(far > near, (near / far) ** strength, 1.0)[:, :, None]
    mixed = queries + lambdas * (keys - queries)  # (N, 2n - 2, d)
    similarity = F.cosine_similarity if space == "raw" else lambda q, k, dim: (q * k).sum(dim)
    attracted = similarity(points, positives, dim=-1)[:, None]
    repelled = similarity(queries, mixed, dim=-1).masked_fill(~negatives.gather(1, others), -torch.inf)
    scores = torch.cat([attracted, repelled], 1) / temperature  # (N, 2n - 1), the positive first
    return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device))


def other_pairs(sentences: int) -> Tensor:
    """(N, 2n - 2) rows of the sentences of all other pairs, for each sentence."""
    pair = torch.arange(sentences) % (sentences // 2)
    return (pair[:, None] != pair).nonzero()[:, 1].view(sentences, sentences - 2)
