"""The best words of an output layer, without holding the scores of all words.

The vocabulary is gone through in slices. Of each small group of words the best score is kept, and what the softmax of
all needs; then the few groups that can hold one of the best words are scored again, in fp32. Shapes: n sentences, k
hypotheses of each, W words, d dimensions.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WORDS_AT_ONCE = 2048  # on a CPU the scores of so many words stay in its cache
ELSEWHERE = 2**15
GROUP = 16  # words, of which the best score is kept at first


class OutputLayer:
    """An output layer W h + b, asked for the words with which hypotheses go on best.

    Args:
        head: linear; or a module that computes logits in another way, such as an adapter. Where it has
            `only_proposes`, it is right but for rounding: the words it finds are scored again by `weight` and `bias`.
        suppressed: words that are never said; they keep their probability, as in `generate`.
    """

    def __init__(self, head: Any, suppressed: Sequence[int] = ()) -> None:
        self.head, self.weight = head, head.weight
        words, device = len(self.weight), self.weight.device
        never = torch.tensor(suppressed, dtype=torch.long, device=device)
        step = WORDS_AT_ONCE if device.type == "cpu" else ELSEWHERE
        slices = [slice(start, min(start + step, words)) for start in range(0, words, step)]
        self.parts = [(part, never[(never >= part.start) & (never < part.stop)] - part.start) for part in slices]
        members = torch.arange(words, device=device)
        self.members = torch.cat([groups(members[None, part], -1)[0].T for part in slices])  # (groups, GROUP)
        # the last is added to what is no word: -1 in `members`
        self.bias = F.pad(self.head.bias.detach().float().index_fill(0, never, -torch.inf), (0, 1), value=-torch.inf)

    def best(
        self, states: Tensor, scores: Tensor, number: int, word_bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The best continuations of all hypotheses of a sentence, best first: scores, hypotheses, words (n, number).

        Args:
            states: (n, k, d).
            scores: (n, k) log-probabilities of the hypotheses.
            word_bias: (n, W) added to the logits.
        """
        everything = None if type(self.head) is nn.Linear else self.head(states)  # (n, k, W)
        maxima, logsums = zip(*self.scan(states, everything, word_bias))
        apart = scores - torch.stack(logsums).logsumexp(0)  # (n, k): what makes log-probabilities of logits
        tops = (torch.cat(maxima, -1) + apart[..., None]).flatten(1)  # (n, k * groups)
        chosen = tops.topk(min(number, tops.shape[1])).indices
        hypotheses, words = chosen // len(self.members), self.members[chosen % len(self.members)]
        sentences = torch.arange(len(words), device=words.device)[:, None, None]
        if everything is None or getattr(self.head, "only_proposes", False):
            of_words = self.weight[words].float()  # (n, number, GROUP, d)
            of_hypotheses = states.gather(1, hypotheses[..., None].expand(-1, -1, states.shape[-1])).float()
            logits = (of_words @ of_hypotheses[..., None]).squeeze(-1) + self.bias[words]
        else:
            logits = everything[sentences, hypotheses[..., None], words].float()
            logits = logits.masked_fill(self.bias[words].isneginf(), -torch.inf)
        if word_bias is not None:
            logits += word_bias[sentences, words]
        values, places = (logits + apart.gather(1, hypotheses)[..., None]).flatten(1).topk(number)
        return values, hypotheses.gather(1, places // GROUP), words.flatten(1).gather(1, places)

    def scan(
        self, states: Tensor, everything: Tensor | None, word_bias: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """For each slice of the vocabulary the best logits of its groups, (n, k, groups), and logsumexp, (n, k).

        Args:
            everything: (n, k, W) logits where they are known.
        """
        for part, never in self.parts:
            if everything is None:
                logits = F.linear(states, self.weight[part], self.head.bias[part])
            else:
                logits = everything[..., part]
            logits = logits.float()
            if word_bias is not None:
                logits = logits + word_bias[:, None, part]
            logsum = logits.logsumexp(-1)
            if len(never):
                logits = logits.index_fill(-1, never, -torch.inf)
            yield groups(logits, -torch.inf).amax(-2), logsum


def groups(values: Tensor, filler: float) -> Tensor:
    """(..., words) -> (..., GROUP, groups), filled up; a group is a column, since that is fast to go through."""
    if short := -values.shape[-1] % GROUP:
        values = F.pad(values, (0, short), value=filler)
    return values.unflatten(-1, (GROUP, -1))
