"""Find the micro-batch size that fits in memory: halve it until a step with the longest examples succeeds.

With the gradient cache the size of the micro-batches changes no loss and no gradient, so it may depend on the device.
"""

import logging
from typing import Any

import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

from ..data.collator import PretrainingCollator
from ..errors import BadInput
from ..models.objective import HictlObjective
from ..training.arguments import RunArguments

logger = logging.getLogger(__name__)


def fit_micro_batch(
    model: HictlObjective, collator: PretrainingCollator, args: RunArguments, sharded: bool = False
) -> None:
    """Lower per_device_train_batch_size, and raise gradient_accumulation_steps by the same factor, until a step fits.

    Args:
        sharded: whether the model, which is not divided here, will be divided among the processes.

    Raises:
        BadInput: the batch does not fit and cannot be halved again.
    """
    wanted = size = args.per_device_train_batch_size
    while not fits(model, collator, args, size, sharded):
        if size % 2:
            raise BadInput(
                f"memory of {args.device}: {size} examples of {collator.max_length} tokens do not fit, and {size} is "
                "odd; lower max_length, use activation checkpointing, or make per_device_train_batch_size a power of 2"
            )
        size //= 2
    if args.world_size > 1:
        smallest = torch.tensor(size, device=args.device)
        torch.distributed.all_reduce(smallest, torch.distributed.ReduceOp.MIN)
        size = int(smallest)
    args.gradient_accumulation_steps *= wanted // size
    args.per_device_train_batch_size = size
    logger.info("micro-batch: %d examples, %d micro-batches a step", size, args.gradient_accumulation_steps)


def fits(model: HictlObjective, collator: PretrainingCollator, args: RunArguments, size: int, sharded: bool) -> bool:
    """Whether a step of `size` of the longest examples fits in memory."""
    try:
        take_step(model, collator, args, size, sharded)
    except Exception as error:
        if not should_reduce_batch_size(error):
            raise
        return False
    finally:
        model.zero_grad()
        clear_device_cache(garbage_collection=True)
    return True


def take_step(
    model: HictlObjective, collator: PretrainingCollator, args: RunArguments, size: int, sharded: bool
) -> None:
    """Run forward and backward while holding as much memory as the optimizer states and DDP's buckets will take.

    With shards the complete weights and gradients here take as much as the shards of two processes with their
    optimizer states; in addition there will be the word embeddings, their gradient, and a copy of it for reduction.
    """
    tokens = collator.regular_tokens[: collator.max_length - 2].tolist()
    examples = [{"x": tokens, "y": None, "seed": seed} for seed in range(size)]  # text gives most tokens: x∘y, x, y
    model.to(args.device).train()
    if args.activation_checkpointing:
        enable: Any = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        enable()  # the first name is that of transformers 5.23 and newer
    copies = 3 if args.world_size > 1 else 2
    weights = model.get_input_embeddings().parameters() if sharded else model.parameters()
    held = [torch.empty_like(weight) for weight in weights for _ in range(copies)]
    batch = {name: value.to(args.device) for name, value in collator(examples).items()}
    half = torch.float16 if args.fp16 else torch.bfloat16
    with torch.autocast(args.device.type, half, enabled=args.bf16 or args.fp16):
        loss = model(**batch).loss
    loss.backward()
    held.clear()
