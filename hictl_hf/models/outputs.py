"""The inputs and outputs of a pre-training batch.

Shapes: n examples, N = 2n sentences, S tokens of a sentence, T tokens of an example, B words of a bag, V words of the
vocabulary, r dimensions of the projection.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from transformers.utils import ModelOutput

from .configuration_hictl import HictlConfig


class PreTrainingBatch(NamedTuple):
    """The tensors of a batch; shapes as in `HictlForPreTraining.forward`. An objective without its tensor is off."""

    input_ids: Tensor | None
    attention_mask: Tensor | None
    labels: Tensor | None
    sentence_input_ids: Tensor | None
    sentence_attention_mask: Tensor | None
    sentence_hashes: Tensor | None
    bag: Tensor | None
    clean_input_ids: Tensor | None
    example_seeds: Tensor | None
    items: dict[str, Tensor]
    lm_head_only: bool = False
    clean_attention_mask: Tensor | None = None

    @torch.compiler.disable  # PyTorch 2.11 cannot hand a named tuple that was made in compiled code to what is not
    def of_objectives(self, config: HictlConfig) -> "PreTrainingBatch":
        """The batch without the tensors of objectives whose weight is 0.

        Raises:
            ValueError: the sentences are not two for each example, or the hashes not one for each sentence.
        """
        sentences, examples, hashes = self.sentence_input_ids, self.example_seeds, self.sentence_hashes
        if sentences is not None and examples is not None and len(sentences) != 2 * len(examples):
            raise ValueError(
                f"sentence_input_ids has {len(sentences)} rows for {len(examples)} examples; allowed are two for each, "
                "x_1 … x_n and then y_1 … y_n. transformers' Trainer cuts them in batches of an IterableDataset: give "
                'accelerator_config={"dispatch_batches": False}, or take HictlTrainer'
            )
        if sentences is not None and hashes is not None and len(hashes) != len(sentences):
            raise ValueError(
                f"sentence_hashes has {len(hashes)} entries for {len(sentences)} sentences; allowed is one for each, "
                "x_1 … x_n and then y_1 … y_n"
            )
        return self._replace(
            labels=self.labels if config.lm_weight > 0 else None,
            bag=self.bag if config.word_weight > 0 else None,
            sentence_input_ids=self.sentence_input_ids if config.sentence_weight > 0 else None,
        )

    def encoder_inputs(self, config: HictlConfig) -> dict[str, tuple[Tensor, Tensor | None]]:
        """Ids and attention masks that the objectives need encoded, by name: "masked", "clean", "sentences".

        Raises:
            ValueError: no objective has an input, or `input_ids` or `clean_input_ids` are missing.
        """
        inputs: dict[str, tuple[Tensor, Tensor | None]] = {}
        if self.labels is not None or (self.bag is not None and config.word_level_input == "masked"):
            if self.input_ids is None:
                raise ValueError("input_ids is None, and labels and bag are of it; give input_ids, or leave them out")
            inputs["masked"] = self.input_ids, self.attention_mask
        if self.bag is not None and config.word_level_input == "clean":
            if self.clean_input_ids is None:
                raise ValueError("word_level_input is 'clean', but clean_input_ids is None; let the collator make it")
            mask = self.attention_mask if self.clean_attention_mask is None else self.clean_attention_mask
            inputs["clean"] = self.clean_input_ids, mask
        if self.sentence_input_ids is not None:
            inputs["sentences"] = self.sentence_input_ids, self.sentence_attention_mask
        if not inputs:
            raise ValueError(
                "no loss to train: every weight of the configuration is 0, or the batch has no input for it"
            )
        return inputs


@dataclass
class HictlForPreTrainingOutput(ModelOutput):
    """Losses and statistics of a batch. A loss that is switched off, or has no input, is `None`.

    Args:
        loss: () weighted sum of the losses.
        logits: (n, T, V) when called as a masked language model; `None` in pre-training.
        lm_loss, sentence_loss, word_loss: () L_LM, L_S, L_W, before their weights.
        sentence_embeddings: (N, r) representations r, x before y.
        hard_negative_lambda: () mean λ over the negatives; 1 = nothing was moved.
        negatives_per_anchor: () mean number of negatives of a sentence.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    lm_loss: Tensor | None = None
    sentence_loss: Tensor | None = None
    word_loss: Tensor | None = None
    sentence_embeddings: Tensor | None = None
    hard_negative_lambda: Tensor | None = None
    negatives_per_anchor: Tensor | None = None


@dataclass
class SentenceLevel:
    """L_S of a contrastive batch and statistics of its negatives.

    Args:
        loss: () L_S, or the share of it of this process or micro-batch; shares add up to L_S.
        hard_negative_lambda: () mean λ over the negatives.
        negatives_per_anchor: () mean number of negatives of a sentence.
    """

    loss: Tensor
    hard_negative_lambda: Tensor
    negatives_per_anchor: Tensor


@dataclass
class CachedSentenceLevel(SentenceLevel):
    """L_S of a complete batch, computed before (gradient cache), for one of its micro-batches.

    Args:
        gradients: (N, r) of L_S with respect to the representations of the micro-batch.
    """

    gradients: Tensor

    def with_gradient_of(self, sentences: Tensor) -> SentenceLevel:
        """The cached loss, with its cached gradient with respect to these sentences (N, r)."""
        # r - stop_gradient(r) is 0 with gradient 1: the value stays L_S, and r gets the cached ∂L_S/∂r
        return replace(self, loss=self.loss + ((sentences - sentences.detach()) * self.gradients).sum())
