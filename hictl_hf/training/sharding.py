"""Divide weights, gradients and optimizer moments among the processes (FSDP2), for models too large for one device.

Each layer is a unit, complete in every process only while it runs. All the rest is one more unit, complete from the
model's forward pass until its gradient is complete; so a step may use the word embeddings outside of their module, as
HiCTL's does. Checkpoints are those of a run without shards, and either kind of run continues those of the other.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate.utils import AutocastKwargs, recursively_apply
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel, Trainer, TrainingArguments
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME
from transformers.training_args import OptimizerNames

from ..errors import BadInput
from ..models.supported_versions import overrides_private

Result = TypeVar("Result")


def check_can_shard(args: TrainingArguments) -> None:
    """Raise `BadInput` where a model cannot be divided."""
    if args.world_size == 1 or args.deepspeed_plugin is not None or args.fp16:
        raise BadInput(
            "shard_parameters divides a model among several processes, without DeepSpeed and without fp16; start "
            "them by torchrun or accelerate launch, in bf16 or fp32, or leave it out"
        )
    if args.optim == OptimizerNames.ADAFACTOR:
        raise BadInput(
            "optim is adafactor, whose means of rows and columns need complete gradients, which shard_parameters "
            "divides; allowed are adamw_torch_fused, sgd and others"
        )


def shard(model: PreTrainedModel) -> None:
    """Divide a model in place among all processes, which begin with the weights of the first."""
    for tensor in (*model.parameters(), *model.buffers()):
        distributed.broadcast(tensor.detach(), 0)
    mesh = init_device_mesh(model.device.type, (distributed.get_world_size(),))
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for unit in (*layers, model):
        fully_shard(unit, mesh=mesh).unshard()  # if inference_mode were the first to gather it, it could not be trained
        unit.reshard()
    model.run_inside = lambda function: function()
    register_fsdp_forward_method(model, "run_inside")
    model.register_load_state_dict_pre_hook(divide_weights)


def gather(tensor: Tensor, keep: bool) -> Tensor | None:
    """Return the complete tensor on the CPU, `None` in processes that do not keep it; all call this together."""
    complete = tensor.detach()
    complete = complete.full_tensor() if isinstance(complete, DTensor) else complete
    return complete.cpu() if keep else None


def gather_model(model: PreTrainedModel, keep: bool) -> PreTrainedModel:
    """Return a model without shards on the CPU in processes that keep it, else the model; all processes call this
    together."""
    original: Any = next(cls for cls in type(model).__mro__ if not issubclass(cls, FSDPModule))
    if original is type(model):
        return model
    state = model.state_dict(keep_vars=True)
    gathered = {tensor: gather(tensor, keep) for tensor in dict.fromkeys(state.values())}  # tied ones once
    if not keep:
        return model
    with torch.device("meta"):
        unsharded = original(model.config)
    unsharded.load_state_dict({name: gathered[tensor] for name, tensor in state.items()}, assign=True)
    return unsharded


def divide(tensor: Tensor, like: Tensor) -> Tensor:
    """Return the shard of a complete tensor that belongs to a shard of a weight."""
    assert isinstance(like, DTensor)
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def divide_weights(model: PreTrainedModel, state: dict[str, Tensor], *_: Any) -> None:
    """Divide complete weights among the shards of a model before it loads them (a hook of `load_state_dict`)."""
    model.reshard()  # evaluation leaves some of it gathered
    for name, weight in model.named_parameters(remove_duplicate=False):
        if name in state and not isinstance(state[name], DTensor):
            state[name] = divide(state[name], weight)


def clip_by_norm_of_all(clip: Callable[..., Tensor | None], *args: Any, **kwargs: Any) -> Tensor | None:
    """Clip gradients; returns the norm of all shards, not of those of this process."""
    norm = clip(*args, **kwargs)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


class ShardingMixin(Trainer):
    """Mixin of a trainer that divides its model among the processes instead of wrapping it into DDP.

    Args (in addition to the Trainer's):
        shard_parameters: whether to divide the model. Gradients are then reduced after each micro-batch, as summing
            complete gradients would take as much memory as the weights.
    """

    model: PreTrainedModel

    def __init__(self, *args: Any, shard_parameters: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shard_parameters = shard_parameters
        if shard_parameters:
            check_can_shard(self.args)

    @property
    def is_sharded(self) -> bool:
        """Whether the model is divided; it is from the beginning of the training on."""
        return isinstance(self.model, FSDPModule)

    def run_inside(self, function: Callable[[], Result]) -> Result:
        """Call a function that uses parts of the model, which may be in shards, as its forward pass does.

        All processes call this together, with functions that run the same layers.
        """
        return self.model.run_inside(function) if self.is_sharded else function()

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Divide the model before the optimizer of its weights is made."""
        if self.shard_parameters and not self.is_sharded:
            shard(self.model)
            accelerator: Any = self.accelerator
            accelerator.prepare_model = partial(accelerator.prepare_model, evaluation_mode=True)  # without DDP
            accelerator.autocast_handler = AutocastKwargs(cache_enabled=False)  # it would keep layers in bf16
            accelerator.clip_grad_norm_ = partial(clip_by_norm_of_all, accelerator.clip_grad_norm_)
        return super().create_optimizer(*args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model without shards, gathered by all processes (HF writes the tensors of the first process)."""
        if self.is_sharded and not self.args.should_save:
            gather_model(self.model, keep=False)
            return
        model = self.model
        try:
            self.model = gather_model(model, self.args.should_save)
            super().save_model(output_dir, _internal_call)
        finally:
            self.model = model

    @overrides_private(Trainer)
    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save moments without shards, so that both kinds of run continue each other; HF has no hook for it."""
        if not self.is_sharded:
            return super()._save_optimizer_and_scheduler(output_dir)
        state = recursively_apply(partial(gather, keep=self.args.should_save), self.optimizer.state_dict())
        if self.args.should_save:
            torch.save(state, Path(output_dir) / OPTIMIZER_NAME)
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    @overrides_private(Trainer)
    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load the shards of this process; HF has no hook, and would load the complete moments to each device."""
        if not self.is_sharded or checkpoint is None or not (Path(checkpoint) / OPTIMIZER_NAME).is_file():
            return super()._load_optimizer_and_scheduler(checkpoint)
        state = torch.load(Path(checkpoint) / OPTIMIZER_NAME, map_location="cpu", mmap=True, weights_only=True)
        weights = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        for number, weight in zip(numbers, weights, strict=True):
            moments = state["state"].get(number, {})
            moments |= {
                name: divide(moment, weight) for name, moment in moments.items() if moment.shape == weight.shape
            }
        self.optimizer.load_state_dict(state)
        self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / SCHEDULER_NAME, weights_only=True))
