"""Batches without padding: the tokens of many rows in one buffer, through XLM-R's own layers.

Everything in those layers but attention treats each token alone. Attention is told the lengths of the rows and lets
each attend to itself: by a kernel for variable lengths on a GPU, elsewhere by one call for all rows of a length. In the
last layer only those attend whose states are read: first tokens and masked words.
Shapes: R rows of a padded batch, T its longest, d dimensions, h heads, k tokens that attend.
"""

from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.utils import is_flash_attn_2_available

from .supported_versions import not_supported

PACKED_ATTENTION = "sdpa_packed"  # the `attn_implementation` that is PyTorch's own and knows rows in one buffer


class PackedRows:
    """Padded batches and where their tokens lie in one buffer: row after row, short rows first.

    Args:
        batches: name: ids and attention mask, (R, T) each; the mask is 1 on tokens, 0 on padding at either side, and
            `None` where all are tokens.

    Attributes:
        input_ids, position_ids: (tokens,) the buffer; positions count from 0 in each row.
        lengths: of the rows in the buffer, ascending.
        first: name: (R,) places of the first tokens in the buffer.
        attending: attention block of a layer: (k,) places of the tokens that attend in it, where not all do.
        reached: whether the attention function received these rows.
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
        places = starts.repeat_interleave(lengths) + offsets  # of the tokens as given
        tokens = torch.cat([ids[self.masks[name]] for name, (ids, _) in batches.items()])
        self.input_ids, self.position_ids = torch.empty_like(tokens), torch.empty_like(offsets)
        self.input_ids[places], self.position_ids[places] = tokens, offsets
        self.lengths = ascending.tolist()
        if self.lengths[:1] == [0]:
            empty = next(name for name, mask in self.masks.items() if not mask.any(-1).all())
            raise ValueError(f"{empty!r} has a row without a token: its attention mask is 0 everywhere; leave it out")
        self.first = dict(zip(batches, starts.split([len(mask) for mask in self.masks.values()])))
        self.places = dict(zip(batches, places.split([int(mask.sum()) for mask in self.masks.values()])))
        self.attending: dict[nn.Module, Tensor] = {}
        self.reached = False

    @torch.compiler.disable
    def places_of(self, name: str, chosen: Tensor) -> Tensor:
        """Where in the buffer the chosen tokens, (R, T) bool, of a batch lie, in the order of `batch[chosen]`."""
        return self.places[name][chosen[self.masks[name]]]

    @torch.compiler.disable
    def padded(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, longest, d) the buffer's states (tokens, d) as one padded batch, and its mask, bool."""
        lengths = torch.tensor(self.lengths, device=states.device)
        mask = torch.arange(self.lengths[-1], device=states.device) < lengths.unsqueeze(1)
        return nn.utils.rnn.pad_sequence(states.split(self.lengths), batch_first=True), mask


class AttendedRows(NamedTuple):
    """Rows in one buffer of which not all tokens attend.

    Args:
        rows: all of them.
        attending: how many tokens of each row attend.
        states: (1, tokens, d) of all tokens, which are attended to.
    """

    rows: PackedRows
    attending: list[int]
    states: Tensor


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packed_rows: PackedRows | AttendedRows | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of padded rows (R, h, T, d), or within the rows of one buffer, (1, h, tokens or k, d).

    Returns:
        (R, T, h, d) or (1, tokens or k, h, d), and no weights.
    """
    if packed_rows is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if isinstance(packed_rows, AttendedRows):  # key and value are of the tokens that attend
        rows, attending, states = packed_rows
        layers = (module.get_submodule(name) for name in ("key", "value"))
        key, value = (layer(states).unflatten(-1, (-1, query.shape[-1])).transpose(1, 2) for layer in layers)
    else:
        rows, attending = packed_rows, packed_rows.lengths
    rows.reached = True
    parts = (part.transpose(1, 2).squeeze(0) for part in (query, key, value))  # (tokens, h, d)
    output = attend_within_rows(rows.lengths, attending, *parts, kwargs["dropout"], kwargs["scaling"])
    return output.unsqueeze(0), None


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
    """(k, h, d) attention of each row to itself, by the best means there is.

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


@torch.compiler.disable
def restrict_last_layer(places: Tensor | None, rows: PackedRows, attention: nn.Module) -> None:
    """Let the tokens at the places (k,), ascending, attend alone in the attention block of a layer, given these rows.

    They attend to all tokens of their rows. Queries, the block's output and the feed-forward part after it, five sixths
    of a layer's arithmetic, are then computed for k of the tokens. `None` takes an earlier choice back.
    """
    rows.attending = {} if places is None else {attention: places}
    if keep_those_attending not in attention._forward_pre_hooks.values():
        attention.register_forward_pre_hook(keep_those_attending, with_kwargs=True)


@torch.compiler.disable
def keep_those_attending(attention: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Hook of an attention block, which stays there: its input becomes (1, k, d) of (1, tokens, d)."""
    rows = kwargs.get("packed_rows")
    if rows is None or attention not in rows.attending:
        return None
    states, *others = inputs
    places = rows.attending[attention]
    row_of = torch.arange(len(rows.lengths)).repeat_interleave(torch.tensor(rows.lengths))
    attending = row_of[places.cpu()].bincount(minlength=len(rows.lengths)).tolist()
    attended = AttendedRows(rows, attending, states)
    return (states.index_select(1, places), *others), kwargs | {"packed_rows": attended}


@torch.compiler.disable
def check_packed(rows: PackedRows, hidden: Tensor, places: Tensor | None) -> None:
    """Raise where the layers of XLM-R lost the rows on the way: tokens would attend to other rows, without an error.

    Args:
        hidden: (tokens or k, d) what the layers gave.
        places: (k,) of the tokens that attend in the last layer, if not all.
    """
    if not rows.reached:
        raise not_supported("hands no `packed_rows` from the forward of XLM-R to its attention")
    if len(hidden) != len(rows.input_ids if places is None else places):
        raise not_supported("calls the attention block of XLM-R's last layer otherwise than before")


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
AttentionMaskInterface.register(PACKED_ATTENTION, sdpa_mask)
