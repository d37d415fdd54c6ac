"""Measure the parts of our step: where its time goes compared with the counted floor, and the cost of the contrasts.

Only the functions at the top use internals of `HictlForPreTraining`. Each returns what to differentiate: a loss and,
where the part passes the word embeddings on to the next one, these, whose gradient is then given as in a complete step.
A part is timed alone, on random inputs; "rest" is the time of the step minus their sum.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from floor import floor_by_part, measure_rates
from measure import Action, time_calls
from naive import NaiveHictl
from torch import Tensor
from variants import VARIANTS, Networks, Step
from workload import Batch, size_of

from hictl_hf import HictlForPreTraining
from hictl_hf.models.losses import sentence_contrast
from hictl_hf.models.negatives import in_batch_negatives
from hictl_hf.models.packing import PackedRows

SAMPLING_TEMPERATURES = (1.0, 0.05)
STRENGTH = 0.9 * NaiveHictl.p_avg  # ζ p_avg
TEMPERATURE = 0.05

Part = tuple[Tensor, Tensor | None]


def encode_ours(model: HictlForPreTraining, batch: Batch) -> Part:
    """The encoder pass of x, y and the masked x∘y."""
    batches = {
        "masked": (batch["input_ids"], batch["attention_mask"]),
        "sentences": (batch["sentence_input_ids"], batch["sentence_attention_mask"]),
    }
    read = {**{name: (name, None) for name in batches}, "masked tokens": ("masked", batch["labels"] != -100)}
    hidden, vocabulary = model.encode(PackedRows(batches, read))
    return hidden.sum(), vocabulary


def language_model_ours(model: HictlForPreTraining, hidden: Tensor, batch: Batch) -> Part:
    """L_LM from the hidden states (m, d) of the masked words."""
    targets = batch["labels"][batch["labels"] != -100]
    return model.masked_token_loss(hidden, model.get_input_embeddings().weight, targets, None), None


def word_ours(model: HictlForPreTraining, queries: Tensor, batch: Batch, temperature: float) -> Part:
    """L_W from the queries (n, d), sampling included."""
    model.config.word_sampling_temperature, kept = temperature, model.config.word_sampling_temperature
    vocabulary = model.get_input_embeddings().weight
    losses, vocabulary = model.word_losses(queries, vocabulary, batch["bag"], batch["example_seeds"])
    model.config.word_sampling_temperature = kept
    return losses.mean(), vocabulary


def contrast_ours(sentences: Tensor, negatives: Tensor, space: str = "unit") -> Tensor:
    """L_S from the representations (N, d), over hard negatives."""
    return sentence_contrast(sentences, negatives, TEMPERATURE, STRENGTH, space)[0]


def measure_parts(networks: Networks, batch: Batch, rounds: int) -> dict[str, Any]:
    """Seconds of a step and of its parts on one batch, the floor of each part, and the share of the contrasts."""
    size, config = size_of(batch), networks.ours.config
    seconds = time_calls(parts_of_step(networks, batch), rounds)
    step = seconds.pop("gradients") + seconds["optimiser"]
    words = {temperature: seconds.pop(f"words at {temperature}") for temperature in SAMPLING_TEMPERATURES}
    seconds["word level"] = words[config.word_sampling_temperature or config.word_temperature]
    floor = floor_by_part(size, config, networks.parameters, measure_rates(size, config, bf16=False))
    return {
        "hidden_size": config.hidden_size,
        "seconds": seconds | {"rest": step - sum(seconds.values()), "step": step},
        "floor": floor | {"step": sum(floor.values())},
        "share_of_contrasts": {
            str(temperature): (seconds["sentence level"] + cost) / (step - seconds["word level"] + cost)
            for temperature, cost in words.items()
        },
    }


def parts_of_step(networks: Networks, batch: Batch) -> dict[str, Action]:
    """The gradients of the step, its optimizer, and the gradients of each part."""
    model, step = networks.ours, Step(VARIANTS[0], networks)
    counts = (int((batch["labels"] != -100).sum()), len(batch["sentence_hashes"]), len(batch["bag"]))
    hidden, sentences, queries = (torch.randn(n, model.config.hidden_size, requires_grad=True) for n in counts)
    negatives = in_batch_negatives(batch["sentence_hashes"])
    parts: dict[str, Callable[[], Part]] = {
        "encoder": partial(encode_ours, model, batch),
        "head": partial(language_model_ours, model, hidden, batch),
        "sentence level": lambda: (contrast_ours(sentences, negatives), None),
        **{f"words at {t}": partial(word_ours, model, queries, batch, t) for t in SAMPLING_TEMPERATURES},
    }
    inputs = [*model.parameters(), hidden, sentences, queries]
    given = torch.zeros_like(model.get_input_embeddings().weight)

    def differentiate(part: Callable[[], Part]) -> None:
        model.zero_grad()  # frees the memory of the last gradients, as a step does
        loss, vocabulary = part()
        outputs, gradients = ([loss], [None]) if vocabulary is None else ([loss, vocabulary], [None, given])
        torch.autograd.grad(outputs, inputs, gradients, allow_unused=True)

    of_step: dict[str, Action] = {
        "gradients": partial(step.gradients, batch),
        "optimiser": networks.optimizer(ours=True, fused=True).step,
    }
    return of_step | {name: partial(differentiate, part) for name, part in parts.items()}
