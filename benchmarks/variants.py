"""The table of steps to compare, and the networks and optimizers they run on.

A step is timed in two parts: gradients (zero, forward, backward) and optimizer. AdamW's time does not depend on the
gradients, so one computation of them serves torch's plain AdamW and the fused one. There are two networks of random
weights: ours, and a naive one that all baselines share.
"""

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from baselines import anchors_and_positives, sentence_transformers_loss, translation_lm_loss
from measure import Seconds, seconds_of
from naive import NaiveHictl
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from workload import VOCABULARY, Batch

from hictl_hf import HictlConfig, HictlForPreTraining

DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")


@dataclass(frozen=True)
class Variant:
    """A way to compute gradients, and the names of its rows in the results."""

    method: str
    """"ours", "compiled", "naive", "translation_lm" or "sentence_transformers"."""
    row: str
    """The step with the AdamW that this method is used with: fused for ours and sentence-transformers, else plain."""
    other_row: str | None = None
    """The step with the other AdamW, where it is measured."""
    bf16: bool = False
    dropout: float = 0.0
    quick: bool = True
    """Whether the quick run has it."""

    @property
    def short(self) -> bool:
        """Whether a step is timed several times, after untimed gradients, so that its memory is already allocated.

        The naive step and HF's allocate their large arrays in every step, so this changes them little.
        """
        return self.method in ("ours", "sentence_transformers")

    @property
    def adamw(self) -> dict[str, bool]:
        """Row -> whether its AdamW is the fused one."""
        fused = self.method in ("ours", "sentence_transformers")
        return {self.row: fused} | ({self.other_row: not fused} if self.other_row else {})


VARIANTS = (
    Variant("ours", "ours_fp32"),
    Variant("ours", "ours_bf16", bf16=True),
    Variant("ours", "ours_fp32_dropout", dropout=0.1, quick=False),
    Variant("naive", "naive_fp32", "naive_fp32_fused"),
    Variant("naive", "naive_bf16", "naive_bf16_fused", bf16=True),
    Variant("translation_lm", "hf_tlm", "hf_tlm_fused"),
    Variant("sentence_transformers", "sentence_transformers", "sentence_transformers_plain"),
)
LABELS = {
    "ours_fp32": "hictl_hf, fp32",
    "ours_bf16": "hictl_hf, bf16",
    "ours_fp32_dropout": "hictl_hf, fp32, dropout 0.1",
    "naive_fp32": "naive HiCTL, fp32",
    "naive_fp32_fused": "naive HiCTL, fp32, fused AdamW",
    "naive_bf16": "naive HiCTL, bf16",
    "naive_bf16_fused": "naive HiCTL, bf16, fused AdamW",
    "hf_tlm": "HF translation LM alone",
    "hf_tlm_fused": "HF translation LM alone, fused AdamW",
    "sentence_transformers": "sentence-transformers, contrast alone",
    "sentence_transformers_plain": "sentence-transformers, contrast alone, plain AdamW",
    "floor_fp32": "counted floor, fp32",
    "floor_bf16": "counted floor, bf16",
    "least_floor_fp32": "least floor, fp32",
    "least_floor_bf16": "least floor, bf16",
}


def make_config(tokenizer: PreTrainedTokenizerBase, layers: int, hidden_size: int = 384) -> HictlConfig:
    """An encoder of the shape of multilingual MiniLM (12×384) or XLM-R base (12×768), with XLM-R's vocabulary."""
    without_dropout: dict[str, Any] = dict.fromkeys(DROPOUT, 0.0)
    return HictlConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=12,
        intermediate_size=4 * hidden_size,
        max_position_embeddings=514,
        type_vocab_size=1,
        special_token_ids=sorted(tokenizer.all_special_ids),
        **without_dropout,
    )


class Networks:
    """The two networks of a shape, their optimisers and their losses, each made when it is first asked for."""

    def __init__(self, config: HictlConfig, tokenizer: PreTrainedTokenizerBase, device: str = "cpu") -> None:
        self.config, self.tokenizer, self.device = config, tokenizer, device
        self.optimizers: dict[tuple[bool, bool], torch.optim.AdamW] = {}

    @cached_property
    def ours(self) -> HictlForPreTraining:
        network = HictlForPreTraining(copy.deepcopy(self.config)).to(self.device).train()
        network.sentence_probability.record(-torch.tensor(NaiveHictl.p_avg, device=self.device).log())
        return network

    @cached_property
    def compiled(self) -> Any:
        return torch.compile(self.ours)

    @cached_property
    def naive(self) -> NaiveHictl:
        return NaiveHictl(copy.deepcopy(self.config)).to(self.device).train()

    @cached_property
    def contrast(self) -> nn.Module:
        return sentence_transformers_loss(self.naive, self.tokenizer, bf16=self.device == "cuda")

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(parameter.numel() for parameter in self.ours.parameters())

    def network(self, method: str) -> HictlForPreTraining | NaiveHictl:
        if method == "compiled":
            return self.compiled  # a module around ours
        return self.ours if method == "ours" else self.naive

    def optimizer(self, ours: bool, fused: bool) -> torch.optim.AdamW:
        """The fused AdamW of a network, or the one that torch gives by default."""
        if (ours, fused) not in self.optimizers:
            network = self.ours if ours else self.naive
            self.optimizers[ours, fused] = torch.optim.AdamW(network.parameters(), lr=1e-5, fused=fused or None)
        return self.optimizers[ours, fused]

    def loss(self, method: str, batch: Batch) -> Tensor:
        if method == "translation_lm":
            return translation_lm_loss(self.naive, batch)
        if method == "sentence_transformers":
            return self.contrast(anchors_and_positives(batch), None)
        return self.network(method)(**batch).loss


class Step:
    """One training step of a variant on given networks."""

    def __init__(self, variant: Variant, networks: Networks) -> None:
        self.variant, self.networks = variant, networks

    def __call__(self, batch: Batch) -> dict[str, Seconds]:
        """The seconds of the variant's rows, each with its AdamW."""
        networks, measured = self.networks, {}
        gradients = seconds_of(lambda: self.gradients(batch), networks.device)
        for row, fused in self.variant.adamw.items():
            update = seconds_of(networks.optimizer(self.variant.method == "ours", fused).step, networks.device)
            measured[row] = Seconds(gradients.cpu + update.cpu, gradients.wall + update.wall, update.cpu)
        return measured

    def gradients(self, batch: Batch) -> None:
        variant, networks = self.variant, self.networks
        network = networks.network(variant.method)
        set_dropout(network, variant.dropout)
        network.zero_grad()
        with torch.autocast(networks.device, torch.bfloat16, enabled=variant.bf16):
            loss = networks.loss(variant.method, batch)
        loss.backward()


def set_dropout(network: HictlForPreTraining | NaiveHictl, probability: float) -> None:
    for name in DROPOUT:
        setattr(network.config, name, probability)
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = probability
