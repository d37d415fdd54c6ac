"""Beam search with the hypotheses of `generate(early_stopping=True)`, in a fraction of its time.

The beams of a sentence are positions of one decoder row, and a mask selects the earlier positions of each beam. So
encoder states are not repeated, keys and values are not reordered with the beams, and a step only writes its own.
Finished sentences leave the batch.

`output_layer` finds the best tokens. Shapes: n sentences, S source tokens, k beams, t tokens of a hypothesis with its
start, c cached positions, W target tokens, d dimensions.
"""

import math
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache, DynamicCache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer

from ..errors import BadInput
from ..models.generation import CACHE
from ..models.gpu import on_device
from ..models.modeling_hictl_translation import HictlForConditionalGeneration
from .output_layer import OutputLayer

COMPACT_AT = 8  # finished sentences leave when they are 1/8 of the batch, as the others have to be moved
LARGEST_PENALTY = 50  # a length to the power of more may be too large for a float
LONGEST = 2**24  # tokens, more than any decoder has positions; fp32 has each of these numbers
MASKS = ("sdpa", "eager")  # attention implementations that take any mask


@dataclass(frozen=True)
class BeamSearchConfig:
    """Settings of beam search. The paper uses 4 beams and penalty 0.6 for WMT'14 en-de, else 5 and 1.0.

    Args:
        num_beams: hypotheses kept at each step; 1 is greedy search.
        length_penalty: a score is log-probability / length ** length_penalty, as in fairseq.
        best: number of hypotheses to return for a sentence, at most `num_beams`.
        max_length_a, max_length_b, max_length: a hypothesis has at most
            min(max_length, max_length_a * source tokens + max_length_b) tokens, `</s>` included.
    """

    num_beams: int = 5
    length_penalty: float = 1.0
    best: int = 1
    max_length_a: float = 1.2
    max_length_b: int = 10
    max_length: int = 200

    def __post_init__(self) -> None:
        if not 1 <= self.best <= self.num_beams:
            raise BadInput(f"best is {self.best} and num_beams is {self.num_beams}; allowed is 1 <= best <= num_beams")
        if not abs(self.length_penalty) <= LARGEST_PENALTY:
            allowed = f"allowed are numbers from -{LARGEST_PENALTY} to {LARGEST_PENALTY}"
            raise BadInput(f"length_penalty is {self.length_penalty}; {allowed}")
        if not (0 <= self.max_length_a < math.inf and self.max_length_b >= 1 and self.max_length >= 1):
            raise BadInput(
                f"max_length_a, max_length_b and max_length are {self.max_length_a}, {self.max_length_b} and "
                f"{self.max_length}; allowed are 0, 1 and 1 or more"
            )

    @classmethod
    def of(cls, model: HictlForConditionalGeneration, **changes: Any) -> Self:
        """Beams and penalty saved with the model, with these changes; `None` changes nothing."""
        saved = model.generation_config
        chosen = {"num_beams": saved.num_beams, "length_penalty": saved.length_penalty}
        chosen |= {name: value for name, value in changes.items() if value is not None}
        return cls(**{name: value for name, value in chosen.items() if value is not None})

    def limits(self, source_tokens: Tensor) -> Tensor:
        """(n,) most tokens of a hypothesis for sources of (n,) tokens."""
        wanted = self.max_length_a * source_tokens + float(self.max_length_b)
        return wanted.clamp_max(min(self.max_length, LONGEST)).long()


@dataclass(frozen=True)
class Hypothesis:
    """Tokenizer ids, ending with `</s>` unless the limit was reached, and their score."""

    tokens: list[int]
    score: float


@torch.inference_mode()
def search(
    model: HictlForConditionalGeneration,
    input_ids: Tensor,
    attention_mask: Tensor,
    start_ids: Tensor,
    settings: BeamSearchConfig,
    limits: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """The best hypotheses of each sentence, best first.

    Args:
        model: in eval mode.
        input_ids: (n, S), padded as the model's `forward` takes them.
        attention_mask: (n, S).
        start_ids: (n,) start tokens, see `model.start_ids_of`.
        limits: (n,) most tokens of a hypothesis, `</s>` included; `None`: those of the settings.
    """
    if (attention := model.decoder.config._attn_implementation) not in MASKS:
        raise ValueError(f"attention is {attention!r}; beam search needs one of {MASKS}: model.set_attn_implementation")
    check_beams(model, settings.num_beams)
    limits = settings.limits(attention_mask.sum(-1)) if limits is None else limits
    limits = limits.clamp_max(model.decoder.config.max_position_embeddings - model.first_position)
    beams = Beams.begin(model, input_ids, attention_mask, start_ids, limits, settings.num_beams)
    output_layer = OutputLayer(model.lm_head, model.generation_config.suppress_tokens or ())
    found: list[Ended] = []
    while beams.sentences:
        states = advance(model, beams)
        scores, parents, next_tokens = output_layer.best(states, beams.scores, 2 * settings.num_beams, beams.word_bias)
        ends = next_tokens == model.end_id
        # only the best k can end, as in `generate`; the other k are candidates to continue
        ended, staying = beams.end(*(each[:, : settings.num_beams] for each in (scores, parents, next_tokens, ends)))
        found += [ended] if ended.sentences else []
        going_on = ends.long().argsort(dim=-1, stable=True)[:, : settings.num_beams]
        beams.grow(*(each.gather(1, going_on) for each in (scores, parents, next_tokens)))
        if len(beams.sentences) - len(staying) >= max(1, len(beams.sentences) // COMPACT_AT):
            beams.keep(staying)
    return best_hypotheses(model, found, settings, len(input_ids))


def check_beams(model: HictlForConditionalGeneration, num_beams: int) -> None:
    """Raise `BadInput` for more beams than the decoder's words, of which each step takes two for a beam, allow."""
    if 2 * num_beams > (size := len(model.target_token_ids)):
        raise BadInput(f"num_beams is {num_beams}; allowed is up to {size // 2}, half the decoder's {size} words")


def best_hypotheses(
    model: HictlForConditionalGeneration, found: list["Ended"], settings: BeamSearchConfig, sentences: int
) -> list[list[Hypothesis]]:
    """The best hypotheses of each sentence, best first, all brought to the CPU together."""
    longest = max(ended.tokens.shape[1] for ended in found)
    padded = torch.cat([F.pad(ended.tokens, (0, longest - ended.tokens.shape[1])) for ended in found])
    rows, scores = iter(model.token_ids(padded).tolist()), iter(torch.cat([ended.scores for ended in found]).tolist())
    hypotheses: list[list[Hypothesis]] = [[] for _ in range(sentences)]
    for ended in found:
        length = ended.tokens.shape[1]
        for sentence in ended.sentences:
            score = next(scores) / length**settings.length_penalty
            hypotheses[sentence].append(Hypothesis(next(rows)[:length], score))
    return [sorted(each, key=lambda hypothesis: -hypothesis.score)[: settings.best] for each in hypotheses]


def advance(model: HictlForConditionalGeneration, beams: "Beams") -> Tensor:
    """(n, k, d) decoder states of the last token of each hypothesis, with the "dot" bias."""
    last = beams.tokens[..., -1]
    states = model.decoder(
        inputs_embeds=model.embed(last),
        position_ids=torch.full_like(last, model.first_position + beams.tokens.shape[-1] - 1),
        attention_mask=beams.past,
        encoder_hidden_states=beams.encoded,
        encoder_attention_mask=beams.source_mask,
        use_cache=True,
        return_dict=True,
        **{CACHE: beams.cache},
    ).last_hidden_state
    return states if beams.state_bias is None else states + beams.state_bias[:, None]


class Ended(NamedTuple):
    """Hypotheses of one length that ended, each with its sentence, (h, t) target ids and (h,) log-probabilities."""

    sentences: list[int]
    tokens: Tensor
    scores: Tensor


@dataclass
class Beams:
    """The unfinished hypotheses of the sentences in the batch; the first dimension of all tensors is sentences."""

    sentences: list[int]
    """n indices in the original batch."""
    limits: Tensor
    """(n,) most tokens."""
    open: Tensor
    """(n,) hypotheses that may still end; the sentence is finished at 0 or below."""
    tokens: Tensor
    """(n, k, t) start and target ids; k is 1 at first."""
    scores: Tensor
    """(n, k) log-probabilities."""
    past: Tensor
    """(n, 1, k, c) added to attention: 0 on the earlier positions of a hypothesis."""
    encoded: Tensor
    """(n, S, d)."""
    source_mask: Tensor
    """(n, 1, 1, S) added to attention."""
    state_bias: Tensor | None
    """(n, d) of "dot"."""
    word_bias: Tensor | None
    """(n, W) of "cosine"."""
    cache: EncoderDecoderCache

    @classmethod
    def begin(
        cls,
        model: HictlForConditionalGeneration,
        input_ids: Tensor,
        attention_mask: Tensor,
        start_ids: Tensor,
        limits: Tensor,
        beams: int,
    ) -> "Beams":
        """Encode the sentences; each has one hypothesis, its start token."""
        encoded = model.get_encoder()(input_ids, attention_mask, return_dict=True).last_hidden_state
        source_mask = encoded.new_zeros(attention_mask.shape)
        source_mask.masked_fill_(attention_mask == 0, torch.finfo(encoded.dtype).min)
        room = beams * int(limits.max())  # the first step has one position, the last token none
        return cls(
            sentences=list(range(len(input_ids))),
            limits=limits,
            open=torch.full_like(limits, beams),
            tokens=start_ids[:, None, None],
            scores=torch.zeros(len(input_ids), 1, device=input_ids.device),
            past=encoded.new_zeros(len(input_ids), 1, 1, 1),
            encoded=encoded,
            source_mask=source_mask[:, None, None],
            state_bias=model.state_bias(encoded, attention_mask),
            word_bias=model.word_bias(encoded, attention_mask) if model.config.cls_bias == "cosine" else None,
            cache=EncoderDecoderCache(Cache(layer_class_to_replicate=partial(RoomyLayer, room)), DynamicCache()),
        )

    def end(self, scores: Tensor, parents: Tensor, next_tokens: Tensor, ends: Tensor) -> tuple[Ended, list[int]]:
        """Those of the (n, k) continuations that end or reach the limit, and which sentences are unfinished.

        One copy brings to the CPU what it has to know, and waits for a GPU; hypotheses stay where they are.
        """
        ended = (ends | (self.limits == self.tokens.shape[-1])[:, None]) & (self.open > 0)[:, None]
        self.open -= ended.sum(-1)
        known = torch.cat([ended, (self.open > 0)[:, None]], 1).cpu()
        places = known[:, :-1].nonzero()
        sentences = [self.sentences[row] for row in places[:, 0].tolist()]
        rows, ranks = on_device(places, scores.device).unbind(1)
        tokens = torch.cat([self.tokens[rows, parents[rows, ranks], 1:], next_tokens[rows, ranks, None]], -1)
        return Ended(sentences, tokens, scores[rows, ranks]), known[:, -1].nonzero().flatten().tolist()

    def grow(self, scores: Tensor, parents: Tensor, next_tokens: Tensor) -> None:
        """Continue the hypotheses `parents` by (n, k) tokens; `scores` are the new ones."""

        def of_parents(values: Tensor) -> Tensor:  # (n, k before, ...) -> (n, k, ...)
            return values.gather(1, parents[..., None].expand(-1, -1, values.shape[-1]))

        beams = next_tokens.shape[1]
        own = self.past.new_full((beams, beams), torch.finfo(self.past.dtype).min).fill_diagonal_(0)
        self.scores = scores
        self.tokens = torch.cat([of_parents(self.tokens), next_tokens[..., None]], -1)
        self.past = torch.cat([of_parents(self.past[:, 0]), own.expand(len(next_tokens), -1, -1)], -1)[:, None]

    def keep(self, staying: list[int]) -> None:
        """Keep only these sentences."""
        self.sentences = [self.sentences[row] for row in staying]
        rows = on_device(torch.tensor(staying, dtype=torch.long), self.open.device)
        for field in fields(self):
            if isinstance(value := getattr(self, field.name), Tensor):
                setattr(self, field.name, value[rows])
        self.cache.self_attention_cache.batch_select_indices(rows)
        self.cache.cross_attention_cache.batch_select_indices(rows)


class RoomyLayer(DynamicLayer):
    """Cache layer with preallocated keys and values: a step writes its own and copies none."""

    memory: Tensor  # (2, n, room, heads, size of a head)

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        begin, new = self.get_seq_length(), torch.stack([key_states, value_states]).transpose(2, 3)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.memory = new.new_empty(2, len(key_states), self.room, *new.shape[3:])
        self.show(begin + new.shape[2])
        self.memory[:, :, begin : begin + new.shape[2]] = new
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these sentences; indices are ascending."""
        length = self.get_seq_length()
        for memory in self.memory:
            memory[: len(indices), :length] = memory[indices, :length]
        self.memory = self.memory[:, : len(indices)]
        self.show(length)

    def show(self, length: int) -> None:
        """Expose the first positions, (n, heads, length, size of a head)."""
        self.keys, self.values = self.memory[:, :, :length].transpose(2, 3)
