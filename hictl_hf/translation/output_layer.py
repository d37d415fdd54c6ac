"""The best tokens of an output layer, without holding the scores of the vocabulary.

The vocabulary is computed in slices. For each small group of tokens the best logit is kept, and for the softmax the
logsumexp of each slice; then the few groups that can hold one of the best tokens are scored again, in fp32. Shapes:
n sentences, k hypotheses of each, W tokens of the vocabulary, d dimensions.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..models.gpu import on_device

CPU_SLICE = 2048  # tokens; the logits of a slice fit into the CPU's cache
GPU_SLICE = 2**15
GROUP = 16  # tokens whose best logit is kept at first


class OutputLayer:
    """An output layer W h + b that returns the best continuations of hypotheses.

    Args:
        head: linear; or a module that computes logits in another way, such as an adapter. With `only_proposes` its
            logits are approximate: the tokens it finds are scored again by `weight` and `bias`.
        suppressed: tokens that are never produced; they keep their probability, as in `generate`.
    """

    def __init__(self, head: Any, suppressed: Sequence[int] = ()) -> None:
        self.head, self.weight = head, head.weight
        words, device = len(self.weight), self.weight.device
        step = CPU_SLICE if device.type == "cpu" else GPU_SLICE
        slices = [slice(start, min(start + step, words)) for start in range(0, words, step)]
        self.parts = [
            (part, ids_on(device, (each - part.start for each in suppressed if part.start <= each < part.stop)))
            for part in slices
        ]
        members = torch.arange(words, device=device)
        self.members = torch.cat([groups(members[None, part], -1)[0].T for part in slices])  # (groups, GROUP)
        # the last entry belongs to the filler -1 in `members`
        bias = self.head.bias.detach().float().index_fill(0, ids_on(device, suppressed), -torch.inf)
        self.bias = F.pad(bias, (0, 1), value=-torch.inf)

    def best(
        self, states: Tensor, scores: Tensor, number: int, word_bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The best continuations over all hypotheses of a sentence, best first: scores, hypotheses, tokens (n, number).

        Args:
            states: (n, k, d).
            scores: (n, k) log-probabilities of the hypotheses.
            word_bias: (n, W) added to the logits.
        """
        everything = None if type(self.head) is nn.Linear else self.head(states)  # (n, k, W)
        maxima, logsums = zip(*self.scan(states, everything, word_bias))
        # (n, k): the score of a continuation is its logit plus this
        normalizers = scores - torch.stack(logsums).logsumexp(0)
        tops = (torch.cat(maxima, -1) + normalizers[..., None]).flatten(1)  # (n, k * groups)
        chosen = tops.topk(min(number, tops.shape[1])).indices
        hypotheses, tokens = chosen // len(self.members), self.members[chosen % len(self.members)]
        sentences = torch.arange(len(tokens), device=tokens.device)[:, None, None]
        if everything is None or getattr(self.head, "only_proposes", False):
            of_tokens = self.weight[tokens].float()  # (n, number, GROUP, d)
            of_hypotheses = states.gather(1, hypotheses[..., None].expand(-1, -1, states.shape[-1])).float()
            logits = (of_tokens @ of_hypotheses[..., None]).squeeze(-1) + self.bias[tokens]
        else:
            logits = everything[sentences, hypotheses[..., None], tokens].float()
            logits = logits.masked_fill(self.bias[tokens].isneginf(), -torch.inf)
        if word_bias is not None:
            logits += word_bias[sentences, tokens]
        values, indices = (logits + normalizers.gather(1, hypotheses)[..., None]).flatten(1).topk(number)
        return values, hypotheses.gather(1, indices // GROUP), tokens.flatten(1).gather(1, indices)

    def scan(
        self, states: Tensor, everything: Tensor | None, word_bias: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """For each slice of the vocabulary the best logits of its groups, (n, k, groups), and logsumexp, (n, k).

        Args:
            everything: (n, k, W) logits if they are known.
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


def ids_on(device: torch.device, ids: Iterable[int]) -> Tensor:
    return on_device(torch.tensor([*ids], dtype=torch.long), device)


def groups(values: Tensor, filler: float) -> Tensor:
    """(..., tokens) -> (..., GROUP, groups), filled up; a group is a column, over which a maximum is fast."""
    if short := -values.shape[-1] % GROUP:
        values = F.pad(values, (0, short), value=filler)
    return values.unflatten(-1, (GROUP, -1))
