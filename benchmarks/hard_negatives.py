"""Measure the sentence-level contrast alone: the cost of hard negatives compared with InfoNCE and with matrix products.

With 64 pairs our form is compared with the materialised one; with 1,024 pairs, where that does not fit, with the three
matrix products that the gradient of any similarity matrix needs. They take turns in a separate process: most of the
materialised form's time is fresh memory, which this process may have kept.
"""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from measure import Action, peak_memory, time_calls
from naive import materialised_contrast
from parts import STRENGTH, TEMPERATURE, contrast_ours
from torch import Tensor
from torch.nn import functional as F

from hictl_hf.models.negatives import in_batch_negatives

DIMENSIONS = 768
FORMS = {
    64: ("ours, unit", "ours, raw", "materialised, unit", "materialised, raw", "InfoNCE"),
    1024: ("ours, unit", "ours, raw", "InfoNCE", "three products"),
}


def measure_hard_negatives(rounds: int) -> list[dict[str, Any]]:
    """Rows of a table: seconds, and megabytes, of forward and backward of each form."""
    rows = []
    for pairs, forms in FORMS.items():
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
            seconds = fresh.submit(time_forms, pairs, rounds).result()
        for form in forms:
            measured = form.startswith(("ours", "materialised"))
            megabytes = peak_memory(call_twice, form, pairs) if measured else {}
            rows.append({"pairs": pairs, "form": form, "cpu_seconds": seconds[form], **megabytes})
    return rows


def time_forms(pairs: int, rounds: int) -> dict[str, float]:
    torch.set_num_threads(1)
    return time_calls({form: make_call(form, pairs) for form in FORMS[pairs]}, rounds, calls_before=1)


def make_call(form: str, pairs: int) -> Action:
    """Forward and backward over random sentences, each y near its x."""
    generator = torch.Generator().manual_seed(pairs)
    x, noise = torch.randn(2, pairs, DIMENSIONS, generator=generator)
    sentences = torch.cat([x, x + 0.5 * noise])  # (N, d)
    if form == "three products":
        scores = sentences @ sentences.T
        return lambda: (sentences @ sentences.T, scores @ sentences, scores.T @ sentences)
    loss = loss_of(form, in_batch_negatives(torch.arange(2 * pairs)))
    sentences.requires_grad_()

    def call() -> None:
        sentences.grad = None
        loss(sentences).backward()

    return call


def loss_of(form: str, negatives: Tensor) -> Callable[[Tensor], Tensor]:
    name, _, space = form.partition(", ")
    if name == "ours":
        return partial(contrast_ours, negatives=negatives, space=space)
    if name == "materialised":
        return lambda sentences: materialised_contrast(sentences, negatives, STRENGTH, space, TEMPERATURE)
    return plain_contrast


def plain_contrast(sentences: Tensor) -> Tensor:
    """InfoNCE over cosines, as it is without hard negatives."""
    unit = F.normalize(sentences, dim=-1)
    scores = (unit @ unit.T / TEMPERATURE).fill_diagonal_(-torch.inf)  # (N, N)
    return F.cross_entropy(scores, torch.arange(len(scores)).roll(len(scores) // 2))


def call_twice(form: str, pairs: int) -> tuple[Action, Action]:
    """For a fresh process: the call as its own warm-up."""
    return (make_call(form, pairs),) * 2
