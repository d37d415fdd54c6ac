"""Batches without padding: the tokens of many rows in one buffer, through XLM-R's own layers.

All parts of these layers but attention treat each token alone. The attention blocks get the lengths of the rows and let
each row attend to itself: by a kernel for variable lengths on a GPU, elsewhere by one call for all rows of a length. In
the last layer only those tokens attend whose states are read: first tokens and masked tokens.

The rows travel as an argument, `packed_rows`, from the encoder's `forward` to its attention blocks. Nothing is set on
the model for a call, so nothing has to be restored after it, and gradient checkpointing, which calls the layers again
in the backward pass, passes the same rows again.
Shapes: R rows of a padded batch, T its longest, d dimensions, h heads, k tokens that attend.
"""

from itertools import accumulate, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.models.xlm_roberta.modeling_xlm_roberta import XLMRobertaAttention

from .families import OURS
from .gpu import on_device
from .row_attention import Limits, attend_within_rows, limits_of
from .supported_versions import not_supported

PACKED = "hictl_packed"
"""Name of `packed_attention` in transformers' attention interface."""


class PackedRows:
    """Padded batches as one buffer of tokens: row after row, short rows first.

    On a GPU, one copy tells the CPU all that it has to know: lengths, and how many tokens are read.

    Args:
        batches: name: ids and attention mask, (R, T) each; the mask is 1 on tokens, 0 on padding at either side, and
            `None` where all are tokens.
        read: use: name of a batch, and which of its tokens, (R, T) bool, have their last states read; `None`: the first
            of each row. Without `read` those of all tokens are.
        known: (any number,) int64 that the CPU has to know, too.

    Attributes:
        input_ids, position_ids: (tokens,) the buffer; positions count from 0 in each row.
        lengths: of the rows in the buffer, ascending.
        attending: how many tokens of each row are read, counted for each use.
        masks: name: (R, T) bool, the batch's attention mask.
        first: name: (R,) indices of the first tokens in the buffer.
        indices: name: (tokens,) indices in the buffer of the batch's tokens, in the order of `ids[mask]`.
        kept: (k,) indices in the buffer of the tokens that are read, ascending, one for each use; `None`: no `read`.
        order: (reads,) which of the kept states each use reads, use after use; `None` without `read`.
        cells: use: (reads,) where in the flattened batch its tokens are, if it does not read the first ones.
        known: the values of the argument.

    Raises:
        ValueError: a mask, or what is read, has another shape than its ids, or a row has no token.
    """

    @torch.compiler.disable
    def __init__(
        self,
        batches: dict[str, tuple[Tensor, Tensor | None]],
        read: dict[str, tuple[str, Tensor | None]] | None = None,
        known: Tensor | None = None,
    ) -> None:
        self.masks = {
            name: torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
            for name, (ids, mask) in batches.items()
        }
        read = read or {}
        for name, (ids, _) in batches.items():
            mask = self.masks[name]
            read_of_it = [tokens for batch, tokens in read.values() if batch == name and tokens is not None]
            for what, given in (("attention mask", mask), *(("labels", tokens) for tokens in read_of_it)):
                if given.shape != ids.shape or ids.ndim != 2:
                    raise ValueError(
                        f"{name!r} has ids of shape {tuple(ids.shape)} and the shape of its {what} is "
                        f"{tuple(given.shape)}; allowed are equal ones, (rows, tokens)"
                    )
        chosen = {use: self.masks[name] & tokens for use, (name, tokens) in read.items() if tokens is not None}
        self.learn_numbers(read, chosen, known)
        starts, indices, self.position_ids = self.place_tokens(next(iter(self.masks.values())).device)
        counts = [sum(part) for part in self.split_by_batch(self.given).values()]
        self.first = dict(zip(batches, starts.split([len(mask) for mask in self.masks.values()])))
        self.indices = dict(zip(batches, indices.split(counts)))
        cells = true_at(torch.cat([mask.flatten() for mask in self.masks.values()]), len(indices))
        given = torch.cat([ids.flatten() for ids, _ in batches.values()])[cells]
        self.input_ids = torch.empty_like(given).scatter_(0, indices, given)
        self.cells: dict[str, Tensor] = {}
        self.kept: Tensor | None = None
        self.order: Tensor | None = None
        if read:
            self.find_reads(read, chosen, dict(zip(batches, cells.split(counts))))

    def learn_numbers(
        self, read: dict[str, tuple[str, Tensor | None]], chosen: dict[str, Tensor], known: Tensor | None
    ) -> None:
        """Bring lengths, and counts of what is read, to the CPU in one copy, which waits for the GPU."""
        counted = [flags.sum(-1) for flags in (*self.masks.values(), *chosen.values())]
        numbers = iter(torch.cat([*counted, *([] if known is None else [known])]).tolist())
        rows = {name: len(mask) for name, mask in self.masks.items()}
        self.given = list(islice(numbers, sum(rows.values())))
        if 0 in self.given:
            empty = next(name for name, part in self.split_by_batch(self.given).items() if 0 in part)
            raise ValueError(f"{empty!r} has a row without a token: its attention mask is 0 everywhere; leave it out")
        counts = {use: [1] * rows[name] for use, (name, _) in read.items()}
        counts |= {use: list(islice(numbers, rows[read[use][0]])) for use in chosen}
        self.sizes, self.known = [sum(each) for each in counts.values()], list(numbers)
        of_batch = {name: [counts[use] for use in read if read[use][0] == name] for name in rows}
        given = [sum(each) for name in rows for each in zip([0] * rows[name], *of_batch[name])]
        ascending = sorted(range(len(given)), key=self.given.__getitem__)
        self.lengths, self.attending = ([part[row] for row in ascending] for part in (self.given, given))

    def place_tokens(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Where each row as given begins in the buffer, where each token as given is, and each token's position.

        They follow from the lengths; the CPU computes them, as a GPU would need a launch for each line.
        """
        lengths = torch.tensor(self.given)
        ascending, order = lengths.sort(stable=True)
        begins, number = ascending.cumsum(0) - ascending, torch.arange(sum(self.given))
        starts = torch.empty_like(lengths).scatter_(0, order, begins)
        moves = starts - (lengths.cumsum(0) - lengths)  # of each row as given
        indices = number + moves.repeat_interleave(lengths)
        positions = number - begins.repeat_interleave(ascending)
        parts = [starts, indices, positions]
        starts, indices, positions = on_device(torch.cat(parts), device).split([len(part) for part in parts])
        return starts, indices, positions

    def split_by_batch(self, numbers: list[int]) -> dict[str, list[int]]:
        """Numbers of all rows as given, by batch."""
        rest = iter(numbers)
        return {name: [next(rest) for _ in range(len(mask))] for name, mask in self.masks.items()}

    def find_reads(
        self, read: dict[str, tuple[str, Tensor | None]], chosen: dict[str, Tensor], cells: dict[str, Tensor]
    ) -> None:
        """Find the tokens that are read: their cells in the batches and their indices in the buffer."""
        reads = []
        before = dict(zip(self.masks, accumulate((mask.numel() for mask in self.masks.values()), initial=0)))
        for (use, (name, _)), size in zip(read.items(), self.sizes):
            if use not in chosen:
                reads.append(self.first[name])
                continue
            of_batch = cells[name] - before[name]
            tokens = true_at(chosen[use].flatten()[of_batch], size)  # which of the batch's tokens
            self.cells[use] = of_batch[tokens]
            reads.append(self.indices[name][tokens])
        indices = torch.cat(reads)
        self.order = torch.arange(len(indices), device=indices.device)
        if len(indices):
            self.kept, which = indices.sort()
            self.order = torch.empty_like(which).scatter_(0, which, self.order)

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
        lengths = on_device(torch.tensor(self.lengths), states.device)
        mask = torch.arange(self.lengths[-1], device=states.device) < lengths.unsqueeze(1)
        return nn.utils.rnn.pad_sequence(states.split(self.lengths), batch_first=True), mask


def true_at(flags: Tensor, number: int) -> Tensor:
    """(number,) indices of the values of a flattened bool tensor that are true, which are known to be that many."""
    return torch.nonzero_static(flags.flatten(), size=number).squeeze(1)


class PackedPass:
    """One pass of packed rows through an encoder, which its attention blocks get as `packed_rows`.

    Args:
        rows: the buffer.
        last_block: the attention block of the last layer, in which only the tokens attend that are read, to all tokens
            of their rows. Queries, the block's output and the feed-forward part after it, five sixths of a layer's
            arithmetic, are then computed for k tokens only.

    Attributes:
        reached: whether an attention block got these rows.
    """

    @torch.compiler.disable
    def __init__(self, rows: PackedRows, last_block: nn.Module) -> None:
        self.rows, self.reached = rows, False
        self.last_block = None if rows.kept is None else last_block
        self.limits: dict[bool, Limits] = {}  # the same in all layers but the last

    @torch.compiler.disable
    def attending_states(self, block: nn.Module, states: Tensor) -> Tensor:
        """(1, tokens or k, d) the states of the tokens that attend in this block, of (1, tokens, d) all states."""
        kept = self.rows.kept
        return states.index_select(1, kept) if block is self.last_block and kept is not None else states

    @torch.compiler.disable
    def attend(
        self,
        block: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        dropout: float,
        scaling: float,
        window: int | None = None,
    ) -> Tensor:
        """(tokens or k, h, d) `attend_within_rows` for this block."""
        self.reached = True
        last, lengths = block is self.last_block, self.rows.lengths
        attending = self.rows.attending if last else lengths
        if query.is_cuda and last not in self.limits:
            self.limits[last] = limits_of(lengths, attending, query)
        limits = self.limits.get(last)
        return attend_within_rows(lengths, attending, query, key, value, dropout, scaling, limits, window)

    @torch.compiler.disable
    def check(self, hidden: Tensor) -> None:
        """Check the last states (tokens or k, d): if the rows were lost on the way, tokens attended to other rows.

        Raises:
            ImportError: this release of transformers does not pass the rows on.
        """
        if not self.reached:
            raise not_supported("hands no `packed_rows` from the forward of an encoder to its attention")
        expected = self.rows.input_ids if self.last_block is None or self.rows.kept is None else self.rows.kept
        if len(hidden) != len(expected):
            raise not_supported("calls the attention block of XLM-R's last layer otherwise than before")


def project(states: Tensor, *layers: nn.Module) -> list[Tensor]:
    """The linear layers of the same states; on a GPU by one product, so that states are cast and read once.

    A layer with hooks, or of another class, such as an adapter's, is called.
    """
    plain = [layer for layer in layers if type(layer) is nn.Linear and layer.bias is not None and not has_hooks(layer)]
    if not states.is_cuda or len(plain) < len(layers):
        return [layer(states) for layer in layers]
    weight, bias = torch.cat([layer.weight for layer in plain]), torch.cat([layer.bias for layer in plain])
    return list(F.linear(states, weight, bias).split([layer.out_features for layer in plain], -1))


def has_hooks(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)


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
        if states is hidden_states:
            projections = project(states, attention.query, attention.key, attention.value)
        else:
            projections = [attention.query(states), *project(hidden_states, attention.key, attention.value)]
        heads = (-1, attention.attention_head_size)
        query, key, value = (each.squeeze(0).unflatten(-1, heads) for each in projections)  # (tokens or k, h, d / h)
        dropout = attention.dropout.p if self.training else 0.0
        output = packed_rows.attend(self, query, key, value, dropout, attention.attention_head_size**-0.5)
        return self.output(output.flatten(1).unsqueeze(0), states), None


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packed_rows: PackedPass | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """`sdpa` of transformers' attention interface, which also takes packed rows: (1, h, tokens, d / h) states then.

    Keys and values may have fewer heads than queries. A token attends to those at a distance below `sliding_window`.
    """
    if packed_rows is None:
        mask = attention_mask
        return sdpa_attention_forward(module, query, key, value, mask, dropout=dropout, scaling=scaling, **kwargs)
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))  # (tokens, heads, d / h)
    query, key = (states.to(value.dtype) for states in (query, key))  # EuroBERT's rotation gives fp32 under autocast
    if (groups := query.shape[1] // key.shape[1]) > 1:
        key, value = (states.repeat_interleave(groups, 1) for states in (key, value))
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return packed_rows.attend(module, query, key, value, dropout, scaling, sliding_window)[None], None


AttentionInterface.register(PACKED, packed_attention)
AttentionMaskInterface.register(PACKED, sdpa_mask)


def accept_packed_rows(model: Any) -> None:
    """Make a new model take packed rows, if its family can: by `PackedAttention` in XLM-R, else by `packed_attention`.

    XLM-R's blocks change their class in place: made a second time, they would draw other initial weights.
    """
    if model.family.own_type == OURS:
        for layer in model.base_model.encoder.layer:
            layer.attention.__class__ = PackedAttention
    elif model.family.packs and model.config._attn_implementation == "sdpa":
        model.config._attn_implementation = PACKED


def accepts_packed_rows(model: Any) -> bool:
    """Whether all attention blocks of a model take packed rows; a custom one may not, nor another attention."""
    if model.family.own_type != OURS:
        return bool(model.config._attn_implementation == PACKED)
    layers = model.base_model.encoder.layer
    return model.config._attn_implementation == "sdpa" and all(
        isinstance(layer.attention, PackedAttention) for layer in layers
    )


def last_packed_block(model: Any) -> nn.Module | None:
    """The block of the last layer, if it attends for the tokens alone that are read."""
    return model.base_model.encoder.layer[-1].attention if model.family.own_type == OURS else None
