"""A masked language model of any family, as the objective uses it: loaded without a head, and encoding packed rows.

What differs between encoders is in `families`. Shapes: V words of the vocabulary, d dimensions.
"""

import inspect
import logging
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .configuration_hictl import LoadsItsFamily
from .families import Family
from .linear_cross_entropy import can_tie, tied_embedding
from .outputs import HictlForPreTrainingOutput
from .packing import PackedPass, PackedRows, accepts_packed_rows, last_packed_block

logger = logging.getLogger(__name__)

# Arguments that a masked language model passes on to its layers.
PASSED_ON = (
    "output_attentions", "output_hidden_states", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k",
)  # fmt: skip


class FamilyMaskedLM(LoadsItsFamily, PreTrainedModel):
    """Mixin of transformers' masked language model of a family.

    Attributes:
        family: what the encoder needs that others do not.
    """

    config: Any
    family: ClassVar[Family]
    masked_lm_arguments: ClassVar[list[str]]
    padding_logged = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Read the signature once: compiled code cannot."""
        super().__init_subclass__(**kwargs)
        found = inspect.signature(super().forward).parameters.values()
        cls.masked_lm_arguments = [
            each.name for each in found if each.kind is not inspect.Parameter.VAR_KEYWORD and each.name != "self"
        ]

    def tie_weights(self, missing_keys: set[str] | None = None, **kwargs: Any) -> None:
        """Like the parent, but a checkpoint without a language-model head is not reported as corrupted; the load report
        lists its new weights."""
        biases = {name for tied in (self._tied_weights_keys or {}).items() for name in tied if name.endswith("bias")}
        headless = bool(biases) and missing_keys is not None and biases <= missing_keys
        log = logging.getLogger("transformers.modeling_utils")
        level = log.level
        log.setLevel(logging.ERROR if headless else level)
        try:
            super().tie_weights(missing_keys=missing_keys, **kwargs)
        finally:
            log.setLevel(level)

    def forward_masked_lm(self, *, token_type_ids: Tensor | None, **inputs: Any) -> HictlForPreTrainingOutput:
        """L_LM as transformers' class of the family computes it, with all logits; arguments of its `forward`."""
        refuse_unknown(type(self), inputs, dict.fromkeys((*self.masked_lm_arguments, *PASSED_ON)))
        if "token_type_ids" in self.masked_lm_arguments:  # others have none, though their tokenizers may make them
            inputs["token_type_ids"] = token_type_ids
        outputs = super().forward(**inputs, return_dict=True)
        return HictlForPreTrainingOutput(lm_loss=outputs.loss, **outputs)

    def encode(self, rows: PackedRows, embeddings: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """M in one pass, of the tokens that are read (reads, d), else of all (tokens, d); E (V, d) for its next use."""
        words = self.get_input_embeddings()
        embeddings = words.weight if embeddings is None else embeddings
        if can_tie(words):
            embedded, embeddings = tied_embedding(embeddings, rows.input_ids, words.padding_idx)
        else:  # frozen, hooked, or wrapped in an adapter
            embedded, embeddings = words(rows.input_ids), words.weight
        packs = accepts_packed_rows(self)
        last_block = last_packed_block(self) if packs else None
        hidden = self.packed_states(rows, embedded, last_block) if packs else self.padded_states(rows, embedded)
        order = rows.order
        if rows.kept is not None and last_block is None:  # else there are only the states of the kept tokens
            order = rows.kept[order]
        return hidden if order is None else hidden.index_select(0, order), embeddings

    def packed_states(self, rows: PackedRows, embedded: Tensor, last_block: nn.Module | None) -> Tensor:
        """(tokens, d) the last states of embedded tokens (tokens, d), or (k, d) those that `last_block` computes."""
        packed, types, positions = PackedPass(rows, last_block), self.token_types(rows), rows.position_ids
        if self.family.positions_after_padding:  # as the model was made: the Trainer changes the configuration's
            positions = positions + (self.base_model.embeddings.padding_idx + 1)
        inputs: dict[str, Any] = {} if types is None else {"token_type_ids": types[None]}
        inputs |= {"position_ids": positions[None], "attention_mask": self.family.packed_masks}
        hidden: Tensor = self.base_model(inputs_embeds=embedded[None], packed_rows=packed, **inputs)[0][0]
        packed.check(hidden)
        return hidden

    def padded_states(self, rows: PackedRows, embedded: Tensor) -> Tensor:
        """(tokens, d) the last states of embedded tokens (tokens, d), through one padded batch."""
        self.log_padding(rows)
        types, (padded, mask) = self.token_types(rows), rows.padded(embedded)
        inputs = {} if types is None else {"token_type_ids": rows.padded(types)[0]}
        hidden: Tensor = self.base_model(inputs_embeds=padded, attention_mask=mask.long(), **inputs)[0][mask]
        return hidden

    def token_types(self, rows: PackedRows) -> Tensor | None:
        """(tokens,) 1 after the first separator of each row, as for the second text of a pair, else 0."""
        separator = getattr(self.config, "sep_token_id", None)
        if not self.family.token_types or separator is None:
            return None
        ends = (rows.input_ids == separator).long()
        before = ends.cumsum(0) - ends
        at_start = torch.where(rows.position_ids == 0, before, 0).cummax(0).values
        return (before - at_start).clamp_max(1)

    def log_padding(self, rows: PackedRows) -> None:
        """Log once what it costs that this encoder takes padded batches."""
        if not self.padding_logged:
            share = len(rows.lengths) * rows.lengths[-1] / sum(rows.lengths)
            message = "%s with attention %s takes padded batches: the first computes %.1f times its tokens"
            logger.info(message, self.family.title, self.config._attn_implementation, share)
        self.padding_logged = True


def refuse_unknown(model: type, arguments: Iterable[str], allowed: Iterable[str]) -> None:
    """Refuse keyword arguments of `forward` that would have no effect; transformers' own `forward`s ignore them.

    Raises:
        TypeError: one of the arguments is not allowed.
    """
    if unknown := sorted({*arguments} - {*allowed}):
        raise TypeError(
            f"{model.__name__}.forward() got unexpected arguments {', '.join(unknown)}; allowed are those of its "
            f"signature and {', '.join(allowed)}"
        )
