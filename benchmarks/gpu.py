"""Measure the same steps on a GPU, in bf16 at the shape of XLM-R base, with their utilisation.

Utilisation is the counted arithmetic of the real tokens as a share of the GPU's measured bf16 peak; padding, unneeded
scores, and for ours what the last layer can skip do not count. A variant that runs out of memory gets half the pairs
until it fits.
"""

from collections.abc import Callable
from dataclasses import replace
from operator import truediv
from statistics import median
from typing import Any

import torch
from floor import Rates, count_operations, measure_rates
from measure import take_turns
from variants import VARIANTS, Networks, Step, Variant, make_config
from workload import Batch, Workload, size_of

LAYERS, HIDDEN_SIZE = 12, 768
ON_GPU = tuple(
    replace(variant, row=f"{variant.method}_bf16", other_row=None, bf16=True)
    for variant in VARIANTS
    if variant.row in ("ours_bf16", "naive_bf16", "hf_tlm", "sentence_transformers")
)


def measure_gpu(workload: Workload, pairs: int, rounds: int, progress: Callable[[str], Any]) -> dict[str, Any]:
    """A row of each variant, as large as it fits, and the speed of the GPU."""
    config = make_config(workload.tokenizer, LAYERS, HIDDEN_SIZE)
    rates = measure_rates(size_of(draw(workload, pairs, 1)[0]), config, device="cuda")
    rows = []
    for variant in ON_GPU:
        networks = Networks(config, workload.tokenizer, "cuda")
        rows.append(measure_largest(variant, networks, workload, pairs, rounds, rates))
        del networks
        torch.cuda.empty_cache()
        progress(variant.row)
    return {"name": torch.cuda.get_device_name(), "rates": vars(rates), "rows": rows}


def measure_largest(
    variant: Variant, networks: Networks, workload: Workload, pairs: int, rounds: int, rates: Rates
) -> dict[str, Any]:
    """One variant on batches of so many pairs, or of half, a quarter … of them."""
    while pairs > 1:
        try:
            return measure_steps(variant, networks, draw(workload, pairs, rounds), rates)
        except torch.OutOfMemoryError:
            networks.network(variant.method).zero_grad()
        torch.cuda.empty_cache()
        pairs //= 2
    return {"variant": variant.row, "pairs": 0}


def draw(workload: Workload, pairs: int, number: int) -> list[Batch]:
    """Random batches of real text on the GPU."""
    batches, _ = workload.draw("real", pairs, number, fits=lambda _: True)
    return [{name: values.to("cuda") for name, values in batch.items()} for batch in batches]


def measure_steps(variant: Variant, networks: Networks, batches: list[Batch], rates: Rates) -> dict[str, Any]:
    step = Step(variant, networks)
    torch.cuda.reset_peak_memory_stats()
    timings = take_turns({variant.row: lambda number: step(batches[number])}, len(batches))
    seconds = [each.wall for each in timings[variant.row]]
    sizes, pairs = [size_of(batch) for batch in batches[1:]], len(batches[0]["input_ids"])
    least = variant.method == "ours"
    work = [sum(count_operations(size, networks.config, least).values()) for size in sizes]
    whole_step = variant.method in ("ours", "naive")  # the others compute a part of what is counted
    return {
        "variant": variant.row,
        "pairs": pairs,
        "wall_seconds": median(seconds),
        "pairs_per_second": pairs / median(seconds),
        "tokens_per_second": median(map(truediv, [size.tokens for size in sizes], seconds)),
        "utilisation": median(map(truediv, work, seconds)) / rates.bf16 if whole_step else None,
        "peak_mb": torch.cuda.max_memory_allocated() / 1e6,
        "wall_rounds": seconds,
    }
