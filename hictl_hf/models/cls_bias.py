"""The [CLS] bias: the similarity of the encoder's first token to each target word, added to the logits of every step.

Shapes: n sentences, S source tokens, W tokens of the target vocabulary, d dimensions.
"""

from typing import Any

import torch
from torch import Tensor, nn

from .families import refuse_adapter


class ClsBias:
    """The bias of a translation model, as `config.cls_bias` says."""

    config: Any
    lm_head: nn.Linear
    cls_bias_scale: nn.Parameter | None

    def cls_states(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """(n, d) the states (n, S, d) of first tokens; the padding in the mask (n, S) may be on either side."""
        if mask is None:
            return hidden[:, 0]
        return hidden[torch.arange(len(hidden), device=hidden.device), mask.long().argmax(-1).to(hidden.device)]

    def bias_scale(self) -> Tensor | float:
        """The factor γ of the similarity."""
        return 1.0 if self.cls_bias_scale is None else self.cls_bias_scale

    def scaled(self, similarity: Tensor) -> Tensor:
        """γ times a similarity, which is on another device than γ where device_map says so."""
        scale = self.bias_scale()
        return similarity * (scale.to(similarity.device) if isinstance(scale, Tensor) else scale)

    def state_bias(self, encoder_states: Tensor, attention_mask: Tensor | None) -> Tensor | None:
        """(n, d) γq, added to every decoder state with "dot", as W(h + γq) = Wh + γWq; else `None`."""
        if self.config.cls_bias != "dot":
            return None
        return self.scaled(self.cls_states(encoder_states, attention_mask))

    def word_bias(self, encoder_states: Tensor, attention_mask: Tensor | None) -> Tensor | None:
        """(n, W) the [CLS] bias of each target word's logit, in fp32 or fp64; `None` without a bias.

        Raises:
            ValueError: the output layer, whose weights this reads itself, is offloaded or has an adapter.
        """
        if self.config.cls_bias == "none":
            return None
        refuse_adapter("the output layer, which cls_bias reads,", self.lm_head)
        queries, words = self.cls_states(encoder_states, attention_mask), self.lm_head.weight
        if words.device.type == "meta" != queries.device.type:
            raise ValueError(
                f"the weights of the output layer are offloaded by device_map, and cls_bias is "
                f"{self.config.cls_bias!r}, which reads them; load the model without device_map"
            )
        full = torch.promote_types(queries.dtype, torch.float32)
        with torch.autocast(queries.device.type, enabled=False):
            queries, words = queries.to(words.device, full), words.to(full)
            similarities = queries @ words.T
            if self.config.cls_bias == "cosine":
                temperature = self.config.cls_bias_temperature or self.config.word_temperature
                norms = queries.norm(dim=-1, keepdim=True) * words.norm(dim=-1)
                similarities = similarities / norms.clamp_min(torch.finfo(full).eps) / temperature
            return self.scaled(similarities)
