"""Compare the exact neighbour search in both directions with two flat searches of FAISS: time, agreement, memory.

All take turns on the same vectors. Without `--vectors` these are pairs of near random directions; `--common` adds a
common component, as sentence vectors have. The time for a million by a million is extrapolated from the largest size by
the number of comparisons. Usage:

    python benchmarks/mining.py --quick
    python benchmarks/mining.py --rows 20000 50000 100000
    python benchmarks/mining.py --vectors x.npy y.npy
"""

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Any

import faiss
import numpy as np
import torch
from measure import Action, Seconds, peak_memory, seconds_of, take_turns
from tqdm import tqdm

from hictl_hf.files import write_json
from hictl_hf.retrieval.bitext import unit_rows
from hictl_hf.retrieval.nearest_neighbours import MEMORY, Neighbours, Vectors, plan_search, search_both

BASELINE, K, WIDTH = "two_faiss_flat_searches", 4, 384


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, and write and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2,000 rows, one round that counts")
    parser.add_argument("--rows", type=int, nargs="+", default=[20_000, 50_000], help="[20000 50000]")
    parser.add_argument("--rounds", type=int, default=3, help="that count [3]")
    parser.add_argument("--common", action="store_true", help="made-up vectors have much in common")
    parser.add_argument("--vectors", nargs=2, metavar="FILE", help="real ones (.npy) instead, all rows")
    parser.add_argument("--max_memory", type=int, default=MEMORY, help=f"bytes of ours [{MEMORY}]")
    parser.add_argument("--output", default="benchmarks/mining.json", help="[benchmarks/mining.json]")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    sizes, rounds = ([2_000], 1) if arguments.quick else (arguments.rows, arguments.rounds)
    if arguments.vectors:
        given = [partial(read, *arguments.vectors)]
    else:
        given = [partial(made_up, rows, arguments.common) for rows in sizes]
    results = {
        "threads": 1,
        "neighbours": K,
        "sizes": [measure(*give(), rounds, arguments.max_memory) for give in given],
    }
    memory = peak_memory(searching, given[-1], arguments.max_memory)
    results["memory"] = {"allowed_mb": arguments.max_memory / 1e6, **memory}
    write_json(Path(arguments.output), results)
    print(json.dumps(results, indent=2))
    return results


def measure(x: Vectors, y: Vectors, rounds: int, max_memory: int) -> dict[str, Any]:
    """Seconds of each, ratios to the baseline of the same round, and the share of its neighbours that ours has."""
    found: dict[str, tuple[Neighbours, Neighbours]] = {}
    searches: dict[str, Callable[[], tuple[Neighbours, Neighbours]]] = {
        BASELINE: lambda: (faiss_search(x, y), faiss_search(y, x)),
        "bf16": lambda: search_both(x, y, K, "bf16", max_memory),
        "fp32": lambda: search_both(x, y, K, "fp32", max_memory),
    }

    def turn(name: str, number: int) -> dict[str, Seconds]:
        def search() -> None:
            found[name] = searches[name]()

        few = 1_000
        warm_up: Action = partial(search_both, x[:few], y[:few], K, "fp32")
        return {name: seconds_of(search if number else warm_up)}

    with tqdm(total=(1 + rounds) * len(searches), unit=" turns", desc=f"{len(x)} x {len(y)}") as bar:
        turns = {name: partial(turn, name) for name in searches}
        timings = take_turns(turns, 1 + rounds, lambda _: bar.update())
    rows = {name: [each.cpu for each in seconds] for name, seconds in timings.items()}
    million = 1e12 / (len(x) * len(y))
    return {
        "rows": [len(x), len(y), x.shape[1]],
        "planned_mb": plan_search(x, y, K, max_memory).memory / 1e6,
        "cpu_seconds": {name: median(seconds) for name, seconds in rows.items()},
        "ratios": {name: median(map(truediv, rows[BASELINE], rows[name])) for name in searches if name != BASELINE},
        "recall": {name: recall(found[name], found[BASELINE]) for name in searches if name != BASELINE},
        "hours_for_a_million_by_a_million": {name: median(seconds) * million / 3600 for name, seconds in rows.items()},
    }


def faiss_search(queries: Vectors, keys: Vectors) -> Neighbours:
    index = faiss.IndexFlatIP(keys.shape[1])
    index.add(keys)
    similarities, rows = index.search(queries, K)
    return Neighbours(rows, similarities)


def recall(found: Sequence[Neighbours], expected: Sequence[Neighbours]) -> list[float]:
    """Of each side, the share of neighbours found; one as near as the last expected, but for rounding, is as good."""
    return [
        float((ours.similarities >= theirs.similarities[:, -1:] - 2e-6).mean())
        for ours, theirs in zip(found, expected, strict=True)
    ]


def searching(give: Callable[[], tuple[Vectors, Vectors]], max_memory: int) -> tuple[Action, Action]:
    x, y = give()
    return partial(search_both, x[:1000], y[:1000], K), partial(search_both, x, y, K, "bf16", max_memory)


def made_up(rows: int, common: bool) -> tuple[Vectors, Vectors]:
    random = np.random.default_rng(0)
    scale = np.arange(1, WIDTH + 1, dtype=np.float32) ** -0.5 if common else np.ones(WIDTH, np.float32)
    mean = 2 * common * random.standard_normal(WIDTH, np.float32)
    x = random.standard_normal((rows, WIDTH), np.float32)
    y = x + random.standard_normal((rows, WIDTH), np.float32)
    return unit_rows(scale * (x + mean)), unit_rows(scale * (y + mean))


def read(*files: str) -> tuple[Vectors, Vectors]:
    x, y = (unit_rows(np.load(file).astype(np.float32)) for file in files)
    return x, y


if __name__ == "__main__":
    main()
