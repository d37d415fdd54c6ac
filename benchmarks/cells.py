"""Measure one cell of the benchmark: all variants on the same batches of one encoder shape, batch size and text.

Memory is measured first, each variant in a fresh process. The quick run measures ours in the process of the timings,
before the other network exists, and the naive one while it is timed. The naive step frees gigabytes, so short steps
come after gradients that are not timed; they are timed several times in a row, and the median counts. The counted
floor is one more row, from machine speeds measured in the same rounds.
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from functools import partial
from statistics import median
from typing import Any

from floor import Rates, floor_by_part, measure_rates
from measure import Action, Seconds, give_back_memory, megabytes_of, take_turns
from variants import Networks, Step, Variant, make_config
from workload import Batch, Workload, size_of

SMALL = 2  # pairs of the first round, which is dropped

OnDone = Callable[[str], Any]  # called with what has just been measured


@dataclasses.dataclass(frozen=True)
class Cell:
    """The shape of a cell."""

    layers: int
    pairs: int
    text: str


def measure_cell(
    cell: Cell,
    workload: Workload,
    timed: Sequence[Variant],
    weighed: Sequence[Variant],
    weigh: Callable[..., dict[str, float | None]],
    weighed_as_timed: Collection[str],
    rounds: int,
    timings: int,
    on_done: OnDone,
) -> dict[str, Any]:
    """Seconds of the timed variants, megabytes of the weighed ones, and the floor; the first round is dropped.

    Args:
        timings: of a short step in each round.
    """
    small, refused_small = workload.draw(cell.text, SMALL, 1)
    batches, refused = draw(cell, workload, rounds - 1)
    networks = Networks(make_config(workload.tokenizer, cell.layers), workload.tokenizer)
    memory = {}
    for variant in weighed:
        memory[variant.row] = weigh(step_to_weigh, variant, networks, small[0], of_median_padding(batches))
        on_done(f"{variant.row}, memory")
    rows, rates, more_memory = time_steps(networks, timed, weighed_as_timed, small + batches, timings, on_done)
    memory |= more_memory
    return {
        **dataclasses.asdict(cell),
        "hidden_size": networks.config.hidden_size,
        "rounds": len(batches),
        "batches_drawn_again": refused_small + refused,
        "sizes": [dataclasses.asdict(size_of(batch)) for batch in batches],
        "rates": dataclasses.asdict(rates),
        "variants": {row: as_row(seconds) | memory.get(row, {}) for row, seconds in rows.items()},
    }


def draw(cell: Cell, workload: Workload, number: int) -> tuple[list[Batch], int]:
    """Random batches, and how many were drawn again; a single one is that of median size among seven."""
    if number > 1:
        return workload.draw(cell.text, cell.pairs, number)
    several, refused = workload.draw(cell.text, cell.pairs, 7)
    return sorted(several, key=lambda batch: size_of(batch).padded_tokens)[3:4], refused


def of_median_padding(batches: Sequence[Batch]) -> Batch:
    """The batch to weigh: more padding means more memory of the naive step compared with ours."""
    in_order = sorted(batches, key=lambda batch: size_of(batch).padded_tokens / size_of(batch).tokens)
    return in_order[len(batches) // 2]


def step_to_weigh(variant: Variant, networks: Networks, small: Batch, batch: Batch) -> tuple[Action, Action]:
    """A step on a small batch to warm up with, which makes the optimiser's state, and the step."""
    step = Step(dataclasses.replace(variant, other_row=None), networks)
    return lambda: step(small), lambda: step(batch)


def time_steps(
    networks: Networks,
    variants: Sequence[Variant],
    weighed: Collection[str],
    batches: list[Batch],
    timings: int,
    on_done: OnDone,
) -> tuple[dict[str, list[Seconds]], Rates, dict[str, dict[str, float | None]]]:
    """The seconds of each row in the rounds, one for each batch but the first, the speed of the machine in them, and
    the megabytes of the weighed rows in the last of them."""
    bf16 = any(variant.bf16 for variant in variants)
    rates: list[Rates] = []
    memory = {}

    def find_rates(_: int) -> dict[str, Seconds]:
        rates.append(measure_rates(size_of(batches[-1]), networks.config, bf16))
        return {}

    def step_of(variant: Variant) -> Callable[[int], dict[str, Seconds]]:
        step = Step(variant, networks)

        def turn(number: int) -> dict[str, Seconds]:
            if variant.short:
                step.gradients(batches[number])
                return median_by_row([step(batches[number]) for _ in range(timings)])
            if variant.row not in weighed:
                return step(batches[number])
            give_back_memory()
            measured, memory[variant.row] = megabytes_of(partial(step, batches[number]))
            return measured

        return turn

    seconds = take_turns({"rates": find_rates} | {v.row: step_of(v) for v in variants}, len(batches), on_done)
    kinds: Any = ((None if None in each else median(each)) for each in zip(*map(dataclasses.astuple, rates)))
    usual = Rates(*kinds)
    floors = {
        row: [ideal_step(batch, networks, usual, "bf16" in row, "least" in row) for batch in batches[1:]]
        for row in ("floor_fp32", "least_floor_fp32", "floor_bf16", "least_floor_bf16")[: 2 + 2 * bf16]
    }
    return floors | seconds, usual, memory


def median_by_row(timings: list[dict[str, Seconds]]) -> dict[str, Seconds]:
    """The medians of several timings of the same rows."""
    return {row: Seconds(*map(median, zip(*(timing[row] for timing in timings)))) for row in timings[0]}


def ideal_step(batch: Batch, networks: Networks, rates: Rates, bf16: bool, least: bool) -> Seconds:
    parts = floor_by_part(size_of(batch), networks.config, networks.parameters, rates, bf16, least)
    return Seconds(sum(parts.values()), sum(parts.values()), parts["optimiser"])


def as_row(rounds: list[Seconds]) -> dict[str, Any]:
    """Medians over the rounds, and each round."""
    cpu, wall, optimiser = zip(*rounds)
    return {
        "cpu_seconds": median(cpu),
        "wall_seconds": median(wall),
        "optimiser_cpu_seconds": median(optimiser),
        "cpu_rounds": cpu,
        "wall_rounds": wall,
    }
