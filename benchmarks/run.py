"""Benchmarks of the pre-training step. `python benchmarks/run.py` measures, and writes results.json, .md and .png.

What is measured: one training step (forward, backward, AdamW) of HiCTL on encoders of 6 and 12 layers of size 384
with XLM-R's 250,002 words, on one CPU thread, compared with

    naive.py       the same losses written directly with Hugging Face's parts
    baselines.py   the translation language model alone, and sentence-transformers' contrastive loss alone
    floor.py       the arithmetic of the step, at the speed of this machine

    variants.py    the table of all variants, and a step of one
    workload.py    the batches: real sentences, or log-normal lengths
    measure.py     seconds and megabytes: rounds in which the variants take turns, fresh processes for memory
    cells.py       one cell: an encoder, a batch size and a text, all variants
    parts.py       where our step's time goes;  hard_negatives.py  the sentence level alone
    translation.py translating, and a training step of translation
    gpu.py, embedding.py, mining.py, stream.py, gradient_cache.py, compare.py  run by themselves
    report.py      ratios, tables, chart

On a processor that emulates bf16 it is omitted: a naive step would take a quarter of an hour. An interrupted run
resumes where it stopped. Usage:

    python benchmarks/run.py --quick
    python benchmarks/run.py --pairs corpus.jsonl.gz --encoder path/to/xlm-r
"""

import argparse
import dataclasses
import json
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import torch
from cells import Cell, measure_cell
from hard_negatives import measure_hard_negatives
from measure import give_back_memory, peak_memory, peak_memory_here, tell
from parts import measure_parts
from report import add_ratios, write_report
from tqdm import tqdm
from translation import draw_pairs, measure_translation
from variants import VARIANTS, Networks, make_config
from workload import Workload, make_workload

import hictl_hf
from hictl_hf.cli.doctor import processor
from hictl_hf.dtypes import SLOW, times_fp32

TEXTS = ("real", "lognormal")
ROUNDS_INSIDE = 6
WEIGHED = ("ours_fp32", "ours_bf16", "naive_fp32", "naive_bf16", "hf_tlm")
WEIGHED_QUICKLY, WEIGHED_AS_TIMED = ("ours_fp32",), ("naive_fp32",)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure what the arguments ask for; returns what is in `results.json`."""
    arguments = parse(argv)
    torch.set_num_threads(1)
    results = begin_or_resume(arguments)
    workload = make_workload(arguments.pairs, arguments.encoder)
    measure_cells(arguments, workload, results)
    if not arguments.quick and "hard_negatives" not in results:
        measure_inside(arguments, workload, results)
        write_report(results, Path(arguments.output))
    results["translation"] = measure_translation(draw_pairs(workload.texts["real"]), arguments.quick)
    results["ratios"] |= results["translation"]["ratios"]
    results["finished"] = True
    write_report(results, Path(arguments.output))
    print(json.dumps(results["ratios"], indent=2))
    return results


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="12 layers, 16 pairs, real text, one round: 5 minutes")
    parser.add_argument("--pairs", metavar="FILE", help="sentence pairs, any source of run_pretraining.py [demo's]")
    parser.add_argument("--encoder", metavar="FOLDER", help="whose tokenizer to use [one trained on the pairs]")
    parser.add_argument("--layers", type=int, nargs="+", default=[6, 12], metavar="N")
    parser.add_argument("--pairs_per_batch", type=int, nargs="+", default=[16, 32], metavar="N")
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=list(TEXTS), help="[both]")
    parser.add_argument("--rounds", type=int, default=6, help="the first is dropped [6]")
    parser.add_argument("--timings", type=int, default=3, help="of a short step in each round; their median counts [3]")
    parser.add_argument("--output", default="benchmarks/results", help="path without ending [benchmarks/results]")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.layers, arguments.pairs_per_batch, arguments.texts = [12], [16], ["real"]
        arguments.rounds, arguments.timings = 2, 1
    return arguments


def begin_or_resume(arguments: argparse.Namespace) -> dict[str, Any]:
    """What an interrupted run of the same code and arguments left in the output, or results without a cell."""
    settings = {**vars(arguments), "code": hash_of_code()}
    path = Path(arguments.output).with_suffix(".json")
    earlier = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if earlier.get("settings") == settings and not earlier["finished"]:
        return earlier
    return {
        "command": shlex.join(["python", "benchmarks/run.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "finished": False,
        "settings": settings,
        "machine": machine(),
        "cells": [],
    }


def measure_cells(arguments: argparse.Namespace, workload: Workload, results: dict[str, Any]) -> None:
    """Each cell that the results do not hold yet; they are written after each."""
    bf16 = results["machine"]["bf16_times_fp32"] < SLOW
    variants = [each for each in VARIANTS if (each.quick or not arguments.quick) and (bf16 or not each.bf16)]
    rows, as_timed = (WEIGHED_QUICKLY, WEIGHED_AS_TIMED) if arguments.quick else (WEIGHED, ())
    weighed = [variant for variant in variants if variant.row in rows]
    weigh = peak_memory_here if arguments.quick else peak_memory
    done = [Cell(each["layers"], each["pairs"], each["text"]) for each in results["cells"]]
    cells = [cell for cell in planned_cells(arguments) if cell not in done]
    turns = len(weighed) + arguments.rounds * (1 + len(variants))
    with tqdm(total=len(cells) * turns, unit=" steps", smoothing=0.05) as bar:
        for cell in cells:
            on_done = partial(tell, bar, f"{cell.layers} layers, {cell.pairs} pairs, {cell.text}")
            repeated = arguments.rounds, arguments.timings
            results["cells"].append(
                measure_cell(cell, workload, variants, weighed, weigh, as_timed, *repeated, on_done)
            )
            add_ratios(results)
            write_report(results, Path(arguments.output))
            give_back_memory()


def planned_cells(arguments: argparse.Namespace) -> list[Cell]:
    """Real text at every size, log-normal lengths at the first batch size."""
    sizes = {"real": arguments.pairs_per_batch, "lognormal": arguments.pairs_per_batch[:1]}
    return [Cell(layers, n, text) for text in arguments.texts for n, layers in product(sizes[text], arguments.layers)]


def measure_inside(arguments: argparse.Namespace, workload: Workload, results: dict[str, Any]) -> None:
    """Where the time of our step goes at the headline's batch, for each depth, and the hard negatives by themselves."""
    headline = Cell(**results["headline"])
    (batch,), _ = workload.draw(headline.text, headline.pairs, 1)
    results["parts"] = []
    for layers in arguments.layers:
        networks = Networks(make_config(workload.tokenizer, layers), workload.tokenizer)
        cell = dataclasses.replace(headline, layers=layers)
        results["parts"].append(vars(cell) | measure_parts(networks, batch, ROUNDS_INSIDE))
        del networks
    results["hard_negatives"] = measure_hard_negatives(ROUNDS_INSIDE)


def hash_of_code() -> str:
    """Of the product and of the benchmarks: results of different code are not mixed."""
    folders = (Path(hictl_hf.__file__).parent, Path(__file__).parent)
    sources = [path.read_bytes() for folder in folders for path in sorted(folder.rglob("*.py"))]
    return blake2b(b"".join(sources), digest_size=8).hexdigest()


def machine() -> dict[str, Any]:
    """What the seconds depend on besides the code."""
    packages = ("torch", "transformers", "sentence-transformers")
    return {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "bf16_times_fp32": round(times_fp32(torch.bfloat16, torch.device("cpu")), 2),
        "python": platform.python_version(),
        **{package.replace("-", "_"): version(package) for package in packages},
        **{name: value for name, value in os.environ.items() if name.startswith(("MALLOC_", "THP_", "LD_PRELOAD"))},
    }


if __name__ == "__main__":
    main()
