"""The attention kernels of the pretended GPU, which refuse what CUDA's refuse; see `pretended_gpu`."""

from types import ModuleType
from typing import Any

import pretended_gpu
import torch
from torch import Tensor
from torch.nn import functional as F

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)


def needs(condition: object, message: str) -> None:
    if not condition:
        raise RuntimeError(f"the CUDA kernel would refuse: {message}")


def needs_flash(q: Tensor, k: Tensor, v: Tensor) -> None:
    gpu = pretended_gpu.ACTIVE[-1]
    needs(gpu.flash, "this PyTorch was built without flash attention")
    needs(gpu.capability >= (8, 0), f"compute capability {gpu.capability}")
    needs(q.dtype in HALF and q.dtype == k.dtype == v.dtype, f"types {q.dtype} {k.dtype} {v.dtype}")
    needs(q.stride(-1) == k.stride(-1) == v.stride(-1) == 1, "last dimension is not contiguous")
    needs(q.shape[-1] % 8 == 0 and q.shape[-1] <= 256, f"head size {q.shape[-1]}")


def attention(q: Tensor, k: Tensor, v: Tensor, dropout: float, scale: Any, seed: Any, bias: Any = None) -> Any:
    """(..., T, d) of (..., T, d), in fp32; also what its gradient needs."""
    scores = q.float() @ k.float().transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if bias is None else scores + bias
    shares = scores.softmax(-1)
    kept = torch.ones_like(shares)
    if dropout:
        kept = (torch.rand(shares.shape, generator=torch.Generator().manual_seed(int(seed))) >= dropout) / (1 - dropout)
    return (shares * kept) @ v.float(), shares, kept, scores.logsumexp(-1)


def attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, dropout: float, scale: Any, seed: Any, bias: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    _, shares, kept, _ = attention(q, k, v, dropout, scale, seed, bias)
    grad = grad.float()
    by_shares = grad @ v.float().transpose(-1, -2) * kept
    by_scores = shares * (by_shares - (by_shares * shares).sum(-1, keepdim=True))
    by_v = (shares * kept).transpose(-1, -2) @ grad
    return by_scores @ k.float() * scale, by_scores.transpose(-1, -2) @ q.float() * scale, by_v


def new_seed(dropout: float) -> Tensor:
    generator = pretended_gpu.ACTIVE[-1].generator
    return torch.randint(2**31, (2,), generator=generator) if dropout else torch.zeros(2, dtype=torch.long)


# --- padded -----------------------------------------------------------------------------------------------------------


def sdp_flash(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, *_: Any, scale: Any = None) -> Any:
    needs_flash(q, k, v)
    seed = new_seed(dropout)
    out, _, _, logsum = attention(q, k, v, dropout, scale, seed[0])
    out = out.to(q.dtype).transpose(1, 2).contiguous().transpose(1, 2)  # as CUDA's kernel lays it out
    nothing = torch.empty(0, dtype=torch.int32)
    return out, logsum, nothing, nothing.clone(), q.shape[2], k.shape[2], seed, torch.empty(0), torch.empty(0)


def sdp_flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Any, lse: Any, cq: Any, ck: Any, mq: Any, mk: Any,
    dropout: float, causal: bool, seed: Tensor, offset: Any, *, scale: Any = None,
) -> Any:  # fmt: skip
    return tuple(g.to(q.dtype) for g in attention_backward(grad, q, k, v, dropout, scale, seed[0]))


def sdp_efficient(
    q: Tensor, k: Tensor, v: Tensor, bias: Any = None, lse: bool = False, dropout: float = 0.0, causal: bool = False,
    *, scale: Any = None,
) -> Any:  # fmt: skip
    seed = new_seed(dropout)
    out, _, _, logsum = attention(q, k, v, dropout, scale, seed[0], bias)
    return out.to(q.dtype), logsum, seed[0].clone(), seed[1].clone()


def sdp_efficient_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Any, out: Any, lse: Any, seed: Tensor, offset: Any,
    dropout: float, mask: Any, causal: bool = False, *, scale: Any = None,
) -> Any:  # fmt: skip
    needs(not mask[3], "the pretended kernel has no gradient of a mask")
    gradients = attention_backward(grad, q, k, v, dropout, scale, seed, bias)
    return (*(g.to(q.dtype) for g in gradients), torch.empty(0))


def scaled_dot_product_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: Any = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """C++ looks up CUDA's kernels where nobody can add one, so PyTorch's function is replaced."""
    gradient_of_mask = attn_mask is not None and attn_mask.requires_grad
    if not isinstance(query, pretended_gpu.OnGpu):
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if is_causal or enable_gqa or gradient_of_mask:
        plain: Any = aten._scaled_dot_product_attention_math
        return plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)[0]
    gpu, size = pretended_gpu.ACTIVE[-1], query.shape[-1]
    flash = gpu.flash and gpu.capability >= (8, 0) and query.dtype in HALF and size % 8 == 0 and size <= 256
    if attn_mask is None and flash:
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, False, False, scale=scale)[0]
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, -torch.inf)
        attn_mask = attn_mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    every = query, key, value, attn_mask, True, dropout_p, False
    return aten._scaled_dot_product_efficient_attention(*every, scale=scale)[0]


original: Any = F.scaled_dot_product_attention


# --- rows of any length -----------------------------------------------------------------------------------------------


def rows_of(q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Tensor, longest_q: int, longest_k: int) -> Any:
    """Check the arguments; the slices of each row."""
    needs_flash(q, k, v)
    needs(q.dim() == k.dim() == v.dim() == 3 and q.shape[1:] == k.shape[1:] == v.shape[1:], "shapes")
    needs(ends_q.dtype == ends_k.dtype == torch.int32 and ends_q.is_contiguous() and ends_k.is_contiguous(), "ends")
    needs(ends_q.shape == ends_k.shape and ends_q[0] == ends_k[0] == 0, "ends do not begin at 0")
    needs(int(ends_q[-1]) == len(q) and int(ends_k[-1]) == len(k) == len(v), "ends do not end at the tokens")
    lengths_q, lengths_k = ends_q.diff(), ends_k.diff()
    needs((lengths_q > 0).all() and (lengths_k > 0).all(), "a row without a query or a key: never run on a GPU")
    needs(isinstance(longest_q, int) and longest_q == lengths_q.max() and longest_k == lengths_k.max(), "longest row")
    return list(zip(q.split(lengths_q.tolist()), k.split(lengths_k.tolist()), v.split(lengths_k.tolist())))


def beyond(window: Any, queries: Tensor, keys: Tensor) -> Tensor | None:
    """(T, T) -inf where a key of a row is beyond the window (left, right) of a query; `None` without a window."""
    if window is None or tuple(window) == (-1, -1):
        return None
    distance = torch.arange(len(keys)) - torch.arange(len(queries))[:, None]
    far = (distance < -window[0]) | (distance > window[1])
    return torch.zeros(far.shape).masked_fill_(far, -torch.inf)


def by_row(
    q: Tensor, k: Tensor, v: Tensor, *ends: Any, dropout: float, scale: Any, seed: Any, window: Any = None
) -> tuple[Tensor, Tensor]:
    outs, logsums = [], []
    for number, parts in enumerate(rows_of(q, k, v, *ends)):
        a, b, c = (part.transpose(0, 1) for part in parts)  # (h, T, d)
        bias = beyond(window, *parts[:2])
        out, _, _, logsum = attention(a, b, c, dropout, scale, int(seed[0]) + number, bias)
        outs.append(out.transpose(0, 1))
        logsums.append(logsum)
    return torch.cat(outs).to(q.dtype), torch.cat(logsums, 1)


def by_row_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *ends: Any, dropout: float, scale: Any, seed: Any, window: Any = None
) -> tuple[Tensor, ...]:
    found = []
    for number, (parts, g) in enumerate(zip(rows_of(q, k, v, *ends), grad.split(ends[0].diff().tolist()))):
        a, b, c, g = (part.transpose(0, 1) for part in (*parts, g))
        gradients = attention_backward(g, a, b, c, dropout, scale, int(seed[0]) + number, beyond(window, *parts[:2]))
        found.append([part.transpose(0, 1) for part in gradients])
    return tuple(torch.cat(parts).to(q.dtype) for parts in zip(*found))


def flash(q: Any, k: Any, v: Any, eq: Any, ek: Any, mq: int, mk: int, dropout: float, causal: bool, debug: bool,
          *, scale: Any = None, window_size_left: Any = None, window_size_right: Any = None,
          **_: Any) -> Any:  # fmt: skip
    seed, window = new_seed(dropout), None if window_size_left is None else (window_size_left, window_size_right)
    out, logsum = by_row(q, k, v, eq, ek, mq, mk, dropout=dropout, scale=scale, seed=seed, window=window)
    return out, logsum, seed, torch.empty(0), torch.empty(0)


def flash_backward(
    grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, eq: Any, ek: Any, mq: int, mk: int, dropout: float,
    causal: bool, seed: Any, unused: Any, *, scale: Any = None, window_size_left: Any = None,
    window_size_right: Any = None, **_: Any,
) -> Any:  # fmt: skip
    window = None if window_size_left is None else (window_size_left, window_size_right)
    return by_row_backward(grad, q, k, v, eq, ek, mq, mk, dropout=dropout, scale=scale, seed=seed, window=window)


KERNELS: dict[str, Any] = {
    "_scaled_dot_product_flash_attention": sdp_flash,
    "_scaled_dot_product_flash_attention_backward": sdp_flash_backward,
    "_scaled_dot_product_efficient_attention": sdp_efficient,
    "_scaled_dot_product_efficient_attention_backward": sdp_efficient_backward,
    "_flash_attention_forward": flash,
    "_flash_attention_backward": flash_backward,
}


class FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Any, k: Any, v: Any, eq: Any, ek: Any, mq: int, mk: int, dropout: float, scale: Any,
        window: Any = None,
    ) -> Any:  # fmt: skip
        gpu = pretended_gpu.ACTIVE[-1]
        gpu.check(None, "flash_attn", (), [t for t in (q, k, v, eq, ek) if not t.is_cuda], [q])
        gpu.launches["flash_attn"] += 1
        ctx.how = {"dropout": dropout, "scale": scale, "seed": new_seed(dropout), "window": window}
        ctx.longest = mq, mk
        ctx.save_for_backward(q, k, v, eq, ek)
        plain = map(pretended_gpu.inner, (q, k, v, eq, ek))
        return pretended_gpu.OnGpu(by_row(*plain, mq, mk, **ctx.how)[0])

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        pretended_gpu.ACTIVE[-1].launches["flash_attn_backward"] += 1
        plain = map(pretended_gpu.inner, (grad, *ctx.saved_tensors))
        gradients = by_row_backward(*plain, *ctx.longest, **ctx.how)
        return *map(pretended_gpu.OnGpu, gradients), *[None] * 7


def flash_attn() -> ModuleType:
    """A module as flash-attn's."""
    module: Any = ModuleType("flash_attn")

    def flash_attn_varlen_func(
        q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
        dropout_p: float = 0.0, softmax_scale: Any = None, window_size: tuple[int, int] = (-1, -1),
    ) -> Any:  # fmt: skip
        limits = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
        return FlashAttention.apply(q, k, v, *limits, dropout_p, softmax_scale, window_size)

    module.flash_attn_varlen_func = flash_attn_varlen_func
    return module
