"""Cross-entropy of a linear output layer tied to the word embeddings E, with one gradient for look-up and prediction.

With 250,002 words a plain step spends most of its memory, and much of its time, on logits and on V × d gradients. Here
the logits of a batch are stored in the memory of E's gradient until that is written, and look-ups add their rows to
that gradient. For autograd all of this is one dense gradient of E: hooks, accumulation, DDP, loss scaling, clipping and
repeated backward passes work. Shapes: m masked tokens, V words, d dimensions.
"""

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F

WORDS_AT_ONCE = 960  # rows of E whose logits fit a CPU's cache with them; with 1,024, 4 KiB a row, cache lines collide
LOGITS_AT_ONCE = 2**25  # held in addition to the gradient: 128 MiB
LOGITS_ON_GPU = 2**28  # the same on a GPU, and their softmax: 1 GiB together in half precision
FP16_SCALE = 2.0**10  # of probabilities in fp16, whose least normal number is 2^-14


@torch.compiler.disable
def tied_embedding(embeddings: Tensor, ids: Tensor, padding: int | None = None) -> tuple[Tensor, Tensor]:
    """Look up rows of E and pass E on to its next use, so that both add to one gradient matrix.

    Args:
        embeddings: (V, d).
        ids: token ids of any shape.
        padding: the id whose row gets no gradient from look-ups, as in `nn.Embedding`.

    Returns:
        (*ids, d) the rows, and (V, d) the unchanged embeddings for their next use, to whose gradient that of the rows
        is added in place: only this function, `word_contrast` or `linear_cross_entropy` may use them.
    """
    return TiedEmbedding.apply(embeddings, ids, padding)  # type: ignore[no-untyped-call]


def can_tie(words: nn.Module) -> TypeGuard[nn.Embedding]:
    """Return whether `tied_embedding` may replace a look-up in this layer: trained, without hooks, no adapter."""
    hooks = words._forward_hooks or words._forward_pre_hooks
    return type(words) is nn.Embedding and words.weight.requires_grad and not hooks


class TiedEmbedding(torch.autograd.Function):
    """`tied_embedding`; the backward pass adds the gradients of the rows to that of E in place."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, ids: Tensor, padding: int | None) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(ids)
        ctx.padding, ctx.like = padding, embeddings.detach()
        ctx.set_materialize_grads(False)
        return embeddings[ids], embeddings.view_as(embeddings)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, rows: Tensor | None, gradient: Tensor | None) -> tuple[Tensor | None, None, None]:
        (ids,) = ctx.saved_tensors
        if rows is not None:
            gradient = gradient_buffer(ctx.like).zero_() if gradient is None else gradient.contiguous()
            if ctx.padding is not None:
                rows = rows.masked_fill((ids == ctx.padding).unsqueeze(-1), 0)
            gradient.index_add_(0, ids.flatten(), rows.reshape(-1, rows.shape[-1]).to(gradient.dtype))
        return gradient, None, None


@torch.compiler.disable
def linear_cross_entropy(
    hidden: Tensor,
    embeddings: Tensor,
    bias: Tensor,
    targets: Tensor,
    items: Tensor | int | None = None,
    smoothing: float = 0.0,
) -> Tensor:
    """() Σ cross_entropy(hidden @ embeddings.T + bias, targets) / items, without holding the (m, V) logits.

    Gradients are computed in the forward pass. Matrix products run in the dtype of autocast, sums in fp32.

    Args:
        hidden: (m, d).
        embeddings: (V, d).
        bias: (V,).
        targets: (m,) ids.
        items: divisor of the sum; `None`: m.
        smoothing: ε, the share of the target probability that is spread evenly over all V words, the target included.
    """
    device, dtype = hidden.device.type, embeddings.dtype
    if torch.is_autocast_enabled(device) and (device != "cpu" or torch.get_autocast_dtype(device) != torch.float16):
        dtype = torch.get_autocast_dtype(device)  # on a CPU fp16 would lose small probabilities
    wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (hidden, embeddings, bias))
    full = torch.promote_types(bias.dtype, torch.float32)  # fp16 ends at 65,504, bf16 counts to 256
    number = max(len(targets), 1) if items is None else items
    divisor = number.to(full) if isinstance(number, Tensor) else hidden.new_full((), number, dtype=full)
    arguments = hidden, embeddings, bias, targets, divisor, smoothing, dtype, wanted
    with torch.autocast(device, enabled=False):
        return LinearCrossEntropy.apply(*arguments)  # type: ignore[no-untyped-call]


class LinearCrossEntropy(torch.autograd.Function):
    """`linear_cross_entropy`; a second backward pass through the same graph computes the gradients again."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        embeddings: Tensor,
        bias: Tensor,
        targets: Tensor,
        items: Tensor,
        smoothing: float,
        dtype: torch.dtype,
        wanted: bool,
    ) -> Tensor:
        ctx.save_for_backward(hidden, embeddings, bias, targets, items)
        ctx.smoothing, ctx.dtype, ctx.gradients = smoothing, dtype, None
        if not wanted:
            return cross_entropy(hidden.to(dtype), embeddings.to(dtype), bias.to(dtype), targets, smoothing) / items
        loss, ctx.gradients = cross_entropy_and_gradients(hidden, embeddings, bias, targets, items, smoothing, dtype)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None  # E's is changed in place by earlier uses of E
        if gradients is None:
            hidden, embeddings, bias, targets, items = ctx.saved_tensors
            _, gradients = cross_entropy_and_gradients(
                hidden, embeddings, bias, targets, items, ctx.smoothing, ctx.dtype
            )
        if upstream.is_cuda or upstream != 1:
            gradients = tuple(gradient.mul_(upstream) for gradient in gradients)
        return *gradients, None, None, None, None, None


def cross_entropy(hidden: Tensor, embeddings: Tensor, bias: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """() summed losses, from a few rows of logits at a time."""
    parts = zip(hidden.split(rows_at_once(embeddings)), targets.split(rows_at_once(embeddings)))
    full = torch.promote_types(embeddings.dtype, torch.float32)
    losses = [
        F.cross_entropy(F.linear(rows, embeddings, bias).to(full), ids, reduction="sum", label_smoothing=smoothing)
        for rows, ids in parts
    ]
    return torch.stack(losses).sum()


def cross_entropy_and_gradients(hidden: Tensor, *others: Any) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """() the loss, and its gradients with respect to hidden, embeddings and bias, by the form for this device."""
    return (by_slices if hidden.device.type == "cpu" else by_rows)(hidden, *others)


# With logits z = Eh + b, softmax p = exp(z - log Z), target t and smoothing ε, per token:
#   loss = log Z - (1 - ε) z_t - ε mean(z)
#   ∂z   = p - (1 - ε) onehot(t) - ε / V
#   ∂h   = Eᵀ ∂z = Σ_v p_v E_v - [(1 - ε) E_t + ε mean(E)]      in the code "expected" - "right"
#   ∂E   = Σ_tokens ∂z hᵀ,   ∂b = Σ_tokens ∂z                   all divided by `items`
# A slice s of the vocabulary has the softmax p_s over its own words and the normaliser Z_s. As in online softmax, log Z
# is a running logsumexp of log Z_s, and the expected embedding a running mean with the weights Z_s / Z. The second pass
# corrects the stored softmax, p = p_s Z_s / Z, by `factor` = Z_s / (Z items).
def by_slices(
    hidden: Tensor,
    embeddings: Tensor,
    bias: Tensor,
    targets: Tensor,
    items: Tensor,
    smoothing: float,
    dtype: torch.dtype,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """`cross_entropy_and_gradients` on a CPU: slices of the vocabulary fit its cache; matrix products in `dtype`.

    Two passes over slices of the vocabulary per block of tokens. The first stores the softmax of each slice and sums up
    the expected embedding; the second computes E's gradient from the stored softmax. For the first d tokens the store
    is the memory of E's gradient: a slice is overwritten when its softmax has been read. Small vocabularies need one
    block only.
    """
    by_embeddings = gradient_buffer(embeddings)  # (V, d)
    full = by_embeddings.dtype
    by_hidden, by_bias = torch.empty_like(hidden, dtype=full), torch.zeros_like(bias, dtype=full)
    loss = torch.zeros_like(items, dtype=full)
    slices, blocks = slices_of_words(embeddings), blocks_of_rows(hidden, embeddings)
    wide = max(len(hidden[blocks[0]]), hidden.shape[1])
    room = by_embeddings.new_empty(len(embeddings[slices[0]]), wide, dtype=dtype)  # for the products of one slice
    of_target, of_each = 1 - smoothing, smoothing / len(embeddings) / items.to(full)
    for block in blocks:
        rows, right, right_bias = targets_of(hidden[block], embeddings, bias, targets[block], smoothing, dtype)
        accumulate = block.start > 0
        fits = not accumulate and len(rows) <= by_embeddings.shape[1]
        store = by_embeddings if fits else by_embeddings.new_empty(len(embeddings), len(rows))
        shares = [part_of_store(store[words], len(rows), len(store[words])) for words in slices]  # (rows, words)
        expected, normaliser = torch.zeros_like(right), right.new_full((len(rows),), -torch.inf)
        logsums = []
        for words, share in zip(slices, shares):
            some = embeddings[words].to(dtype)  # read once from memory for both products
            logits = torch.addmm(bias[words].to(dtype), rows, some.T, out=part_of_store(room, len(rows), len(some)))
            logsum = softmax_and_logsum(logits, share)
            normaliser = normaliser.logaddexp(logsum)
            weight = (logsum - normaliser).exp().unsqueeze(-1)  # of this slice among those so far
            expected.lerp_((share.to(dtype) @ some).to(full), weight)
            logsums.append(logsum)
        loss += (normaliser - (rows.to(full) * right).sum(-1) - right_bias).sum()
        by_hidden[block] = (expected - right) / items
        for words, share, logsum in zip(slices, shares, logsums):
            factor = (logsum - normaliser).exp() / items
            by_bias[words] += factor @ share
            scaled = (factor.unsqueeze(-1) * rows).to(dtype)  # less work than to scale the share
            products = torch.mm(share.to(dtype).T, scaled, out=part_of_store(room, share.shape[1], rows.shape[1]))
            if smoothing:
                products = products - of_each * rows.sum(0, dtype=full)
            write = by_embeddings[words].add_ if accumulate else by_embeddings[words].copy_
            write(products)
        by_embeddings.index_add_(0, targets[block], -of_target * rows.to(full) / items)
        by_bias.index_add_(0, targets[block], -(of_target / items).to(full).expand(len(rows)))
        by_bias -= of_each * len(rows)
    return loss / items, (by_hidden, by_embeddings, by_bias)


def by_rows(
    hidden: Tensor,
    embeddings: Tensor,
    bias: Tensor,
    targets: Tensor,
    items: Tensor,
    smoothing: float,
    dtype: torch.dtype,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """`cross_entropy_and_gradients` on a GPU: all words at once for a block of tokens, with little memory traffic.

    A logit is written once and read by its softmax, which is written once and read by each sum; products add up in
    fp32. The words are padded to a multiple of 8, as tensor cores want them: the padding has probability 0.
    """
    words, padded_bias = padded_words(embeddings, bias, dtype)  # (V8, d), (V8,)
    by_words = torch.empty_like(words, dtype=torch.promote_types(embeddings.dtype, torch.float32))  # (V8, d)
    by_embeddings = by_words[: len(embeddings)]
    full, of_target = by_embeddings.dtype, 1 - smoothing
    by_hidden, by_bias = torch.empty_like(hidden, dtype=full), bias.new_zeros(1, len(padded_bias), dtype=full)
    loss, scale = torch.zeros_like(items, dtype=full), FP16_SCALE if dtype == torch.float16 else 1.0
    step = rows_at_once(embeddings)
    for start in range(0, max(len(hidden), 1), step):
        block = slice(start, start + step)
        rows, right, right_bias = targets_of(hidden[block], embeddings, bias, targets[block], smoothing, dtype)
        logits = torch.addmm(padded_bias, rows, words.T)  # (rows, V8)
        highest, at = logits.max(-1, keepdim=True)
        if scale == 1:
            exact = shares = torch.softmax(logits, -1)
        else:
            exact = torch.softmax(logits, -1, dtype=full)
            shares = torch.mul(exact, scale, out=torch.empty_like(logits))
        normaliser = (highest.to(full) - exact.gather(-1, at).to(full).log()).squeeze(-1)
        exactly = rows.to(full)
        loss += (normaliser - (exactly * right).sum(-1) - right_bias).sum()
        add_product(right, shares, words, -1.0, 1 / scale)  # "expected" - "right"
        torch.div(right, items, out=by_hidden[block])
        divided = exactly / items
        scaled = (divided if scale == 1 else divided * scale).to(dtype)
        add_product(by_words, shares.T, scaled, 1.0 if start else 0.0, scale**-2)
        add_product(by_bias, shares.new_ones(1, len(rows)), shares, 1.0, 1 / scale)
        by_embeddings.index_add_(0, targets[block], divided, alpha=-of_target)
    by_bias = by_bias[0, : len(bias)]
    by_bias.index_add_(0, targets, by_bias.new_ones(len(targets)), alpha=-of_target).div_(items)
    if smoothing:
        of_each = smoothing / len(embeddings) / items.to(full)
        by_embeddings -= of_each * hidden.to(dtype).sum(0, dtype=full)
        by_bias -= of_each * len(hidden)
    return loss / items, (by_hidden, by_embeddings, by_bias)


def padded_words(embeddings: Tensor, bias: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """E and the bias in `dtype`, with words of logit -inf until their number is a multiple of 8."""
    number = -len(embeddings) % 8
    words = embeddings.new_zeros(len(embeddings) + number, embeddings.shape[1], dtype=dtype)
    words[: len(embeddings)] = embeddings
    return words, F.pad(bias.to(dtype), (0, number), value=-torch.inf)


def add_product(total: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> Tensor:
    """Set `total` to beta * total + alpha * a @ b in place, summed in the dtype of `total`."""
    dtypes = () if a.dtype == total.dtype else (total.dtype,)  # CUDA has products of half numbers in fp32
    return torch.addmm(total, a, b, *dtypes, beta=beta, alpha=alpha, out=total)


def targets_of(
    hidden: Tensor, embeddings: Tensor, bias: Tensor, targets: Tensor, smoothing: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens (m, d) in `dtype`; the embedding (m, d) and bias (m,) of their targets, smoothed."""
    full = torch.promote_types(embeddings.dtype, torch.float32)
    right, right_bias = embeddings[targets].to(dtype).to(full), bias[targets].to(full)
    if smoothing:
        right = right.lerp(embeddings.mean(0, dtype=full), smoothing)
        right_bias = right_bias.lerp(bias.mean(dtype=full), smoothing)
    return hidden.to(dtype), right, right_bias


def blocks_of_rows(hidden: Tensor, embeddings: Tensor) -> list[slice]:
    """Blocks of the tokens (m, d): d of them first, or as many as `rows_at_once` allows, then that many each."""
    step = rows_at_once(embeddings)
    first = max(step, hidden.shape[1])
    return [slice(0, first), *(slice(start, start + step) for start in range(first, len(hidden), step))]


def rows_at_once(embeddings: Tensor) -> int:
    """For how many tokens all logits may be held."""
    logits = LOGITS_AT_ONCE if embeddings.device.type == "cpu" else LOGITS_ON_GPU
    return max(logits // len(embeddings), 1)


def part_of_store(store: Tensor, rows: int, columns: int) -> Tensor:
    """(rows, columns) view of the beginning of a larger store."""
    return store.view(-1)[: rows * columns].view(rows, columns)


def softmax_and_logsum(logits: Tensor, store: Tensor) -> Tensor:
    """Write the softmax of (rows, words) logits to `store`; return their logsumexp, (rows,)."""
    torch.softmax(logits, -1, dtype=store.dtype, out=store)
    return logits.amax(-1).to(store.dtype) - store.amax(-1).log()


def slices_of_words(embeddings: Tensor) -> list[slice]:
    """Slices of the vocabulary that fit the cache of a CPU."""
    return [slice(start, start + WORDS_AT_ONCE) for start in range(0, len(embeddings), WORDS_AT_ONCE)]


class ReusedBuffer:
    """One buffer of E's size, reused when the last tensor on it is gone: on a CPU fresh pages are slow.

    The pages belong to a NumPy array. Each call makes a new tensor storage on them; they are free when that storage,
    which views and the autograd graph share, has been released.
    """

    def __init__(self) -> None:
        self.pages = torch.empty(0, 0).numpy()
        self.user: StorageWeakRef | None = None

    def like(self, embeddings: Tensor) -> Tensor:
        """(V, d) uninitialised, of E's dtype, at least fp32."""
        dtype = torch.promote_types(embeddings.dtype, torch.float32)
        if embeddings.device.type != "cpu":
            return torch.empty_like(embeddings, dtype=dtype)  # the device's allocator reuses memory
        buffer = torch.from_numpy(self.pages)
        in_use = self.user is not None and not self.user.expired()
        if in_use or buffer.shape != embeddings.shape or buffer.dtype != dtype:
            self.pages = torch.empty(embeddings.shape, dtype=dtype).numpy()
            buffer = torch.from_numpy(self.pages)
        self.user = StorageWeakRef(buffer.untyped_storage())
        return buffer


gradient_buffer = ReusedBuffer().like
