"""Which attention kernel a run uses on its GPU, and what is slow about it: one line at the start."""

from typing import Any

import torch
from transformers import TrainingArguments

from ..models.objective import HictlObjective
from ..models.packing import accepts_packed_rows
from ..models.row_attention import are_short, has_no_wide_backward, kernel_of

KERNELS = {
    "short rows": "small blocks (Triton) where rows are short",
    "flash_attn": "flash-attn's, one call for all rows",
    "aten": "PyTorch's, one call for all rows",
    "by length": "one call for each length of rows, which is slow with many lengths",
}


def describe_attention(model: HictlObjective, args: TrainingArguments) -> str | None:
    """Name the attention kernel of a model on `args.device`, with the fix where it is slow; `None` on a CPU."""
    if args.device.type != "cuda":
        return None
    config: Any = model.config
    if not accepts_packed_rows(model):
        return f"attention: {config._attn_implementation}, of padded batches ({model.family.title})"
    dtype = torch.float16 if args.fp16 else torch.bfloat16 if args.bf16 else torch.float32
    size = config.hidden_size // config.num_attention_heads
    query = torch.empty(0, config.num_attention_heads, size, dtype=dtype, device=args.device)
    dropout = getattr(config, "attention_dropout", None)  # of ModernBERT and EuroBERT
    dropout = config.attention_probs_dropout_prob if dropout is None else dropout
    kernel = kernel_of(query, dropout)
    if kernel == "by length":
        return f"attention: {KERNELS[kernel]}{reason(query)}"
    if are_short([1], args.device):
        return f"attention: {KERNELS['short rows']}, else {KERNELS[kernel]}"
    return f"attention: {KERNELS[kernel]}"


def reason(query: torch.Tensor) -> str:
    """Say why no kernel for rows of any length can be used, in the order in which `kernel_of` asks."""
    size = query.shape[-1]
    if query.dtype == torch.float32:
        return "; other kernels need half precision: give --bf16 true, or --fp16 true on a GPU before Ampere"
    if size % 8 or size > 256:
        return f"; other kernels need heads of a multiple of 8, at most 256, and these have {size}"
    if (capability := torch.cuda.get_device_capability(query.device)) < (8, 0):
        return f"; other kernels need compute capability 8.0, and this GPU has {capability[0]}.{capability[1]}"
    if has_no_wide_backward(capability) and size > 192:
        return f"; on this GPU other kernels need heads of at most 192, and these have {size}"
    return "; this PyTorch was built without flash attention: install flash-attn, or another build of PyTorch"
