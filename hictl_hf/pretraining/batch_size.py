"""How many rows fit in memory at once: halved until a step with the longest rows does.

With the gradient cache the size of the micro-batches changes no loss and no gradient, so it may follow the device.
"""

import logging
from typing import Any

import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

from ..data.collator import PretrainingCollator
from ..errors import BadInput
from ..models.modeling_hictl import HictlForPreTraining
from ..training.arguments import RunArguments

logger = logging.getLogger(__name__)


def fit_micro_batch(
    model: HictlForPreTraining, collator: PretrainingCollator, args: RunArguments, sharded: bool = False
) -> None:
    """Lower per_device_train_batch_size, and raise gradient_accumulation_steps as much, until memory suffices.

    Args:
        sharded: whether the model, which is whole here, will be divided among the processes.

    Raises:
        BadInput: not even one row fits.
    """
    wanted = size = args.per_device_train_batch_size
    while not fits(model, collator, args, size, sharded):
        if size % 2:
            raise BadInput(
                f"memory of {args.device}: {size} rows of {collator.max_length} tokens do not fit, and {size} is odd; "
                "lower max_length, use activation checkpointing, or a per_device_train_batch_size that is a power of 2"
            )
        size //= 2
    if args.world_size > 1:
        smallest = torch.tensor(size, device=args.device)
        torch.distributed.all_reduce(smallest, torch.distributed.ReduceOp.MIN)
        size = int(smallest)
    args.gradient_accumulation_steps *= wanted // size
    args.per_device_train_batch_size = size
    logger.info("micro-batch: %d rows, %d of them a step", size, args.gradient_accumulation_steps)


def fits(
    model: HictlForPreTraining, collator: PretrainingCollator, args: RunArguments, size: int, sharded: bool
) -> bool:
    """Whether a step of so many of the longest rows fits in memory."""
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
    model: HictlForPreTraining, collator: PretrainingCollator, args: RunArguments, size: int, sharded: bool
) -> None:
    """Forward and backward beside as much memory as the optimiser, and DDP's buckets, will hold.

    In shards the whole weights and gradients here are as much as shares of two processes, with their moments; beside
    these there will be word embeddings, their gradient, and that on its way.
    """
    words = collator.words[: collator.max_length - 2].tolist()
    rows = [{"x": words, "y": None, "seed": seed} for seed in range(size)]  # text gives most tokens: x∘y, x and y
    model.to(args.device).train()
    if args.activation_checkpointing:
        enable: Any = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        enable()  # the first is new in transformers 5.23
    copies = 3 if args.world_size > 1 else 2
    weights = model.get_input_embeddings().parameters() if sharded else model.parameters()
    held = [torch.empty_like(weight) for weight in weights for _ in range(copies)]
    batch = {name: value.to(args.device) for name, value in collator(rows).items()}
    with torch.autocast(args.device.type, torch.bfloat16, enabled=args.bf16):
        loss = model(**batch).loss
    loss.backward()
    held.clear()
