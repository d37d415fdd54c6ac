"""Sentences to vectors: any layer, first token, mean or projection, in batches sorted by length."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

COLUMNS = ("input_ids", "special_tokens_mask")


class Readout(NamedTuple):
    """Where a sentence vector is read: by which pooling ("first token", "mean", "mean without special tokens",
    "projection") of which layer (0: embeddings)."""

    pooling: str
    layer: int


def all_readouts(layers: Sequence[int], last_layer: int, projection: bool) -> list[Readout]:
    """First token and mean of each layer, and the projection r, which reads the last layer, where there is one."""
    readouts = [Readout(pooling, layer) for layer in layers for pooling in ("first token", "mean")]
    return readouts + ([Readout("projection", last_layer)] if projection else [])


@torch.inference_mode()
def embed_sentences(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    readouts: Sequence[Readout],
    batch_size: int = 128,
    max_length: int = 256,
    progress: bool = False,
) -> dict[Readout, NDArray[np.float32]]:
    """Embed sentences in one pass, read at several places.

    Args:
        model: a HiCTL or XLM-R encoder, or a model with such an encoder in `roberta`; "projection" needs
            `HictlForPreTraining`.
        sentences: texts, in any order; each distinct text is encoded once.
        max_length: in tokens, special tokens included; the rest of a sentence is not read.

    Returns:
        For each readout an array (sentences, d), rows in the order given, not normalised.
    """
    if not sentences:
        raise ValueError("there is no sentence to embed; give at least one")
    distinct = list(dict.fromkeys(sentences))
    longest = min(max_length, model.config.max_position_embeddings - 2)  # XLM-R's positions start at 2
    tokens = tokenizer(distinct, truncation=True, max_length=longest, return_special_tokens_mask=True)
    order = np.argsort([len(ids) for ids in tokens["input_ids"]], kind="stable")
    encoder, training = getattr(model, "roberta", model), model.training
    model.eval()
    parts: dict[Readout, list[torch.Tensor]] = {readout: [] for readout in readouts}
    starts = range(0, len(order), batch_size)
    for start in tqdm(starts, desc="embed", disable=None if progress else True, leave=False):
        rows = {name: [tokens[name][number] for number in order[start : start + batch_size]] for name in COLUMNS}
        batch = tokenizer.pad(rows, return_tensors="pt").to(model.device)
        words = 1 - batch.pop("special_tokens_mask")
        states = encoder(**batch, output_hidden_states=True).hidden_states
        for readout in readouts:
            mask = words if readout.pooling == "mean without special tokens" else batch["attention_mask"]
            parts[readout].append(pool(model, states[readout.layer], mask, readout.pooling))
    model.train(training)
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    position = {text: row for text, row in zip(distinct, back)}
    rows_wanted = [position[text] for text in sentences]
    return {readout: torch.cat(part).float().cpu().numpy()[rows_wanted] for readout, part in parts.items()}


def pool(model: PreTrainedModel, hidden: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """(n, d) one vector for each row of hidden states (n, T, d); what is masked by 0 takes no part in a mean."""
    if pooling.startswith("mean"):
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1).clamp_min(1)
    first = hidden[:, 0].clone()  # a view would keep all of the hidden states
    return model.projection(first) if pooling == "projection" else first
