"""Batches without padding: the tokens of many rows in one buffer, through XLM-R's own layers.

All parts of these layers but attention treat each token alone. The attention blocks get the lengths of the rows and let
each row attend to itself: by a kernel for variable lengths on a GPU, elsewhere by one call for all rows of a length. In
the last layer only those tokens attend whose states are read: first tokens and masked tokens.

The rows travel as an argument, `packed_rows`, from the encoder's `forward` to its attention blocks. Nothing is set on
the model for a call, so nothing has to be restored after it, and gradient checkpointing, which calls the layers again
in the backward pass, passes the same rows again.
Shapes: R rows of a padded batch, T its longest, d dimensions, h heads, k tokens that attend.
"""

from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.xlm_roberta.modeling_xlm_roberta import XLMRobertaAttention
from transformers.utils import is_flash_attn_2_available

from .supported_versions import not_supported


class PackedRows:
    """Padded batches as one buffer of tokens: row after row, short rows first.

    Args:
        batches: name: ids and attention mask, (R, T) each; the mask is 1 on tokens, 0 on padding at either side, and
            `None` where all are tokens.

    Attributes:
        input_ids, position_ids: (tokens,) the buffer; positions count from 0 in each row.
        lengths: of the rows in the buffer, ascending.
        masks: name: (R, T) bool, the batch's attention mask.
        first: name: (R,) indices of the first tokens in the buffer.
        indices: name: (tokens,) indices in the buffer of the batch's tokens, in the order of `ids[mask]`.

    Raises:
        ValueError: a row has no token.
    """

    @torch.compiler.disable
    def __init__(self, batches: dict[str, tuple[Tensor, Tensor | None]]) -> None:
        self.masks = {
            name: torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
            for name, (ids, mask) in batches.items()
        }
        lengths = torch.cat([mask.sum(-1) for mask in self.masks.values()])
        ascending, order = lengths.sort(stable=True)
        starts = torch.empty_like(lengths).scatter_(0, order, ascending.cumsum(0) - ascending)  # of rows as given
        offsets = torch.arange(int(lengths.sum()), device=lengths.device)
        offsets = offsets - (lengths.cumsum(0) - lengths).repeat_interleave(lengths)  # within each row
        indices = starts.repeat_interleave(lengths) + offsets  # of the tokens as given
        tokens = torch.cat([ids[self.masks[name]] for name, (ids, _) in batches.items()])
        self.input_ids, self.position_ids = torch.empty_like(tokens), torch.empty_like(offsets)
        self.input_ids[indices], self.position_ids[indices] = tokens, offsets
        self.lengths = ascending.tolist()
        if self.lengths[:1] == [0]:
            empty = next(name for name, mask in self.masks.items() if not mask.any(-1).all())
            raise ValueError(f"{empty!r} has a row without a token: its attention mask is 0 everywhere; leave it out")
        self.first = dict(zip(batches, starts.split([len(mask) for mask in self.masks.values()])))
        self.indices = dict(zip(batches, indices.split([int(mask.sum()) for mask in self.masks.values()])))

    @torch.compiler.disable
    def indices_of(self, name: str, chosen: Tensor) -> Tensor:
        """Indices in the buffer of the chosen tokens, (R, T) bool, of a batch, in the order of `batch[chosen]`."""
        return self.indices[name][chosen[self.masks[name]]]

    @torch.compiler.disable
    def means(self, name: str, states: Tensor) -> Tensor:
        """(R, d) the mean over each row of a batch, of the states (tokens, d) of its tokens, in fp32 or above."""
        lengths = self.masks[name].sum(-1)
        rows = torch.arange(len(lengths), device=states.device).repeat_interleave(lengths, output_size=len(states))
        states = states.to(torch.promote_types(states.dtype, torch.float32))
        return states.new_zeros(len(lengths), states.shape[-1]).index_add(0, rows, states) / lengths.unsqueeze(-1)

    @torch.compiler.disable
    def padded(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, longest, d) the buffer's states (tokens, d) as one padded batch, and its mask, bool."""
        lengths = torch.tensor(self.lengths, device=states.device)
        mask = torch.arange(self.lengths[-1], device=states.device) < lengths.unsqueeze(1)
        return nn.utils.rnn.pad_sequence(states.split(self.lengths), batch_first=True), mask


class PackedPass:
    """One pass of packed rows through an encoder, which its attention blocks get as `packed_rows`.

    Args:
        rows: the buffer.
        read: (k,) indices in the buffer of the tokens whose last states are read, ascending; `None`: all tokens.
        last_block: the attention block of the last layer, in which only these attend, to all tokens of their rows.
            Queries, the block's output and the feed-forward part after it, five sixths of a layer's arithmetic, are
            then computed for k tokens only.

    Attributes:
        reached: whether an attention block got these rows.
    """

    @torch.compiler.disable
    def __init__(self, rows: PackedRows, read: Tensor | None, last_block: nn.Module) -> None:
        self.rows, self.read, self.reached = rows, read, False
        self.last_block = None if read is None else last_block
        if read is not None:
            row_of = torch.arange(len(rows.lengths)).repeat_interleave(torch.tensor(rows.lengths))  # (tokens,)
            self.attending = row_of[read.cpu()].bincount(minlength=len(rows.lengths)).tolist()

    @torch.compiler.disable
    def attending_states(self, block: nn.Module, states: Tensor) -> Tensor:
        """(1, tokens or k, d) the states of the tokens that attend in this block, of (1, tokens, d) all states."""
        self.reached = True
        return states.index_select(1, self.read) if block is self.last_block and self.read is not None else states

    @torch.compiler.disable
    def attend(
        self, block: nn.Module, query: Tensor, key: Tensor, value: Tensor, dropout: float, scaling: float
    ) -> Tensor:
        """(tokens or k, h, d) `attend_within_rows` for this block."""
        attending = self.attending if block is self.last_block else self.rows.lengths
        return attend_within_rows(self.rows.lengths, attending, query, key, value, dropout, scaling)

    @torch.compiler.disable
    def check(self, hidden: Tensor) -> None:
        """Check the last states (tokens or k, d): if the rows were lost on the way, tokens attended to other rows.

        Raises:
            ImportError: this release of transformers does not pass the rows on.
        """
        if not self.reached:
            raise not_supported("hands no `packed_rows` from the forward of XLM-R to its attention")
        if len(hidden) != len(self.rows.input_ids if self.read is None else self.read):
            raise not_supported("calls the attention block of XLM-R's last layer otherwise than before")


class PackedAttention(XLMRobertaAttention):
    """XLM-R's attention block, which also takes packed rows; without them it is its parent."""

    def forward(
        self, hidden_states: Tensor, *args: Any, packed_rows: PackedPass | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """(1, tokens or k, d) the block's output for packed states (1, tokens, d), and no weights."""
        if packed_rows is None:
            return super().forward(hidden_states, *args, **kwargs)
        attention = self.self
        states = packed_rows.attending_states(self, hidden_states)
        heads = (-1, attention.attention_head_size)
        query = attention.query(states).squeeze(0).unflatten(-1, heads)  # (tokens or k, h, d / h)
        key, value = (
            layer(hidden_states).squeeze(0).unflatten(-1, heads) for layer in (attention.key, attention.value)
        )
        dropout = attention.dropout.p if self.training else 0.0
        output = packed_rows.attend(self, query, key, value, dropout, attention.attention_head_size**-0.5)
        return self.output(output.flatten(1).unsqueeze(0), states), None


def accept_packed_rows(encoder: Any) -> None:
    """Make the attention blocks of a new XLM-R encoder `PackedAttention`.

    The blocks change their class in place: made a second time, they would draw other initial weights.
    """
    for layer in encoder.encoder.layer:
        layer.attention.__class__ = PackedAttention


def accepts_packed_rows(encoder: Any) -> bool:
    """Whether all attention blocks of an encoder take packed rows; a custom one may not."""
    return all(isinstance(layer.attention, PackedAttention) for layer in encoder.encoder.layer)


@torch.compiler.disable
def attend_within_rows(
    lengths: list[int],
    attending: list[int],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float,
    scaling: float,
) -> Tensor:
    """(k, h, d) attention of each row to itself, by the fastest kernel for device and dtype.

    Args:
        lengths: of the rows, each at least 1.
        attending: how many tokens of each row attend; their sum is k.
        query: (k, h, d).
        key, value: (tokens, h, d).
    """
    if query.is_cuda and query.dtype in (torch.float16, torch.bfloat16):
        counts = torch.tensor([attending, lengths])
        ends = F.pad(counts.cumsum(1, dtype=torch.int32), (1, 0)).to(query.device)
        limits = *ends, max(attending), max(lengths)
        if is_flash_attn_2_available():
            from flash_attn import flash_attn_varlen_func

            return flash_attn_varlen_func(query, key, value, *limits, dropout_p=dropout, softmax_scale=scaling)
        if dropout == 0:  # PyTorch's kernel has none
            from torch.nn.attention.varlen import varlen_attn

            return varlen_attn(query, key, value, *limits, scale=scaling)  # type: ignore[return-value]
    if query.device.type == "cpu" and query.dtype == torch.bfloat16:  # its backward pass is several times slower
        with torch.autocast("cpu", enabled=False):
            states = query.float(), key.float(), value.float()
            return attend_by_length(lengths, attending, *states, dropout, scaling).to(query.dtype)
    return attend_by_length(lengths, attending, query, key, value, dropout, scaling)


def attend_by_length(
    lengths: list[int],
    attending: list[int],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float,
    scaling: float,
) -> Tensor:
    """`attend_within_rows` by one call for neighbouring rows of equal counts, over views of the buffer."""
    groups = [(*counts, len(list(equal))) for counts, equal in groupby(zip(attending, lengths))]
    queries = query.split([count * rows for count, _, rows in groups])
    keys, values = (part.split([length * rows for _, length, rows in groups]) for part in (key, value))
    outputs = []
    for (count, _, rows), *states in zip(groups, queries, keys, values):
        if count == 0:
            continue
        q, k, v = (part.unflatten(0, (rows, -1)).transpose(1, 2) for part in states)
        output = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scaling)
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)
