"""Measure training steps on a GPU: ours, naive HiCTL, HF's translation language model, sentence-transformers' contrast.

`python benchmarks/gpu.py` writes results_gpu.json, and results_gpu.md with its table. A step has XLM-R base's shape
(12×768, 250,002 words), bf16 and fused AdamW. It is measured at several batch sizes, with dropout 0 and with 0.1, which
the recipes train with: pairs a second, share of the card's peak, gigabytes. What does not fit in memory says so.

Share of peak: the floating-point operations that the losses of a method need, over seconds and the maker's peak for
dense bf16 products. Needed are real tokens once through the encoder, in the last layer those that are read, and words
scored at masked positions (`floor.count_operations`); padding and other scores do not count. A card that is
not in `PEAKS` has the peak "unknown" and no share. Gigabytes are PyTorch's largest allocation during the timed
steps: weights, gradients, moments and the step; each method has the GPU to itself.

Without --pairs the text is random words of log-normal lengths, so neither the network nor the demo's packages are
needed. --device cpu with a small shape, in fp32, tries the benchmark itself; it has neither peak nor gigabytes.
"""

import argparse
import gc
import platform
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from floor import count_operations, measure_rates
from measure import seconds_of
from report import digits, table
from torch.profiler import ProfilerActivity
from torch.profiler import profile as profiler
from tqdm import tqdm
from transformers.utils import is_flash_attn_2_available
from variants import Networks, Step, Variant, make_config
from workload import Batch, Size, Workload, make_workload, random_workload, size_of

from hictl_hf.files import write_json, write_text

METHODS = {
    "ours": "hictl_hf, all losses",
    "compiled": "the same with torch.compile",
    "naive": "naive HiCTL, all losses",
    "translation_lm": "HF, translation language model alone",
    "sentence_transformers": "sentence-transformers, contrast alone",
}
OURS = ("ours", "compiled")
PEAKS = {  # pattern of the card's name: FLOP/s of dense products in bf16, summed in fp32, by the maker's data sheet
    r"B200": 2250e12,
    r"H200": 989e12,
    r"H100 PCIe": 756e12,
    r"H100 NVL": 835e12,
    r"H100": 989e12,
    r"A100": 312e12,
    r"L40S": 362e12,
    r"L4": 121e12,
    r"RTX 4090(?! Laptop)": 165e12,
}
PROFILED = 20  # operations listed

Row = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure what the arguments ask for; returns what is in the JSON file, which is written after each row."""
    arguments = parse(argv)
    text = "real" if arguments.pairs else "lognormal"
    workload = make_workload(arguments.pairs, arguments.encoder) if arguments.pairs else random_workload()
    config = make_config(workload.tokenizer, arguments.layers, arguments.hidden_size)
    batches = {
        pairs: draw(workload, text, pairs, 1 + arguments.steps, arguments.device) for pairs in arguments.pairs_per_batch
    }
    card, on_gpu = name_of_card(arguments.device), arguments.device == "cuda"
    results: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/gpu.py", *(sys.argv[1:] if argv is None else argv)]),
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "finished": False,
        "settings": vars(arguments) | {"text": text},
        "card": card,
        "peak": peak_of(card),
        "machine": machine(arguments.device),
        "rates": vars(measure_rates(size_of(batches[min(batches)][0]), config, on_gpu, arguments.device)),
        "rows": [],
        "profile": None,
    }
    with tqdm(total=len(arguments.methods) * len(batches) * len(arguments.dropout), unit=" rows") as bar:
        for method in arguments.methods:
            networks = Networks(config, workload.tokenizer, arguments.device)
            for (pairs, some), dropout in product(sorted(batches.items()), arguments.dropout):
                step = TrainingStep(method, dropout, networks)
                row = {"method": method, "pairs": pairs, "dropout": dropout}
                results["rows"].append(row | measure(step, some, results["peak"]))
                if method == "ours" and results["rows"][-1]["fits"]:
                    results["profile"] = row | {"operations": profile(step, some[-1])}  # of the largest in the end
                write_results(results, Path(arguments.output))
                bar.update()
            del networks, step
            free_memory(arguments.device)
    results["finished"] = True
    write_results(results, Path(arguments.output))
    print(Path(arguments.output).with_suffix(".md").read_text("utf-8"))
    return results


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument(
        "--pairs", metavar="FILE", help="sentence pairs, any source of run_pretraining.py [random words]"
    )
    parser.add_argument("--encoder", metavar="FOLDER", help="whose tokenizer to use with --pairs [one trained on them]")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS], help="[all]")
    parser.add_argument("--pairs_per_batch", type=int, nargs="+", default=[64, 256, 1024], metavar="N")
    parser.add_argument("--dropout", type=float, nargs="+", default=[0.0, 0.1], metavar="P", help="[0 0.1]")
    parser.add_argument("--steps", type=int, default=10, help="timed in each row, after one that is not [10]")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden_size", type=int, default=768)
    parser.add_argument("--output", default="benchmarks/results_gpu", help="path without ending")
    arguments = parser.parse_args(argv)
    if arguments.encoder and not arguments.pairs:
        parser.error("--encoder has no effect without --pairs: random words need no tokenizer; give both, or neither")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device is cuda, and PyTorch sees no GPU; --device cpu with a small shape tries the benchmark")
    return arguments


def draw(workload: Workload, text: str, pairs: int, number: int, device: str) -> list[Batch]:
    """Random batches on the device."""
    batches, _ = workload.draw(text, pairs, number, fits=lambda _: True)
    return [{name: values.to(device) for name, values in batch.items()} for batch in batches]


class TrainingStep:
    """Gradients and fused AdamW of a method; called with a batch."""

    def __init__(self, method: str, dropout: float, networks: Networks) -> None:
        self.method, self.networks = method, networks
        self.step = Step(Variant(method, method, bf16=networks.device == "cuda", dropout=dropout), networks)

    def __call__(self, batch: Batch) -> None:
        self.step.gradients(batch)
        self.networks.optimizer(self.method in OURS, fused=True).step()


def measure(step: TrainingStep, batches: Sequence[Batch], peak: float | str) -> Row:
    """Seconds of the steps on all batches but the first, which allocates memory and moments, and what follows."""
    device, seconds = step.networks.device, list[float]()
    try:
        step(batches[0])
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        for batch in batches[1:]:
            seconds.append(seconds_of(lambda batch=batch: step(batch), device).wall)  # type: ignore[misc]
    except torch.OutOfMemoryError:
        pass  # the error holds the tensors of the step until this block ends
    if len(seconds) < len(batches) - 1:
        step.networks.network(step.method).zero_grad()
        free_memory(device)
        return {"fits": False}
    config, pairs = step.networks.config, len(batches[0]["input_ids"])
    rates = [
        sum(count_operations(needed(step.method, batch), config, least=True).values()) / second
        for batch, second in zip(batches[1:], seconds)
    ]
    return {
        "fits": True,
        "pairs_per_second": pairs / median(seconds),
        "share_of_peak": median(rates) / peak if isinstance(peak, float) else None,
        "flops_per_second": median(rates),
        "gigabytes": torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else None,
        "seconds": seconds,
    }


def needed(method: str, batch: Batch) -> Size:
    """What a method has to compute of a batch: all of it, x∘y and its masked words, or the sentences."""
    everything = size_of(batch)
    if method in (*OURS, "naive"):
        return everything
    lm = method == "translation_lm"
    lengths = batch["attention_mask" if lm else "sentence_attention_mask"].sum(-1)
    masked_words, sentences = (everything.masked_words, 0) if lm else (0, everything.sentences)
    return Size(
        tokens=int(lengths.sum()),
        padded_tokens=len(lengths) * int(lengths.max()),
        masked_words=masked_words,
        read_tokens=masked_words + sentences,
        squared_lengths=int(lengths.square().sum()),
        sentences=sentences,
    )


def profile(step: TrainingStep, batch: Batch) -> list[Row]:
    """The operations of one step that take most of the device's time, in milliseconds."""
    cuda = step.networks.device == "cuda"
    with profiler(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * cuda]) as seen:
        step(batch)
    key = "self_device_time_total" if cuda else "self_cpu_time_total"
    events = sorted(seen.key_averages(), key=lambda event: -getattr(event, key))[:PROFILED]
    return [{"operation": e.key, "milliseconds": getattr(e, key) / 1e3, "calls": e.count} for e in events]


def free_memory(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def name_of_card(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else f"CPU, {platform.machine()}"


def peak_of(card: str) -> float | str:
    """FLOP/s of the first pattern of `PEAKS` that is in the name as words, or "unknown".

    >>> peak_of("NVIDIA H100 80GB HBM3"), peak_of("NVIDIA H100 PCIe"), peak_of("NVIDIA L40S"), peak_of("Tesla T4")
    (989000000000000.0, 756000000000000.0, 362000000000000.0, 'unknown')
    """
    return next((peak for pattern, peak in PEAKS.items() if re.search(rf"\b{pattern}\b", card)), "unknown")


def machine(device: str) -> dict[str, Any]:
    """What the numbers depend on besides the code."""
    on_gpu = device == "cuda"
    packages = ("torch", "transformers", "sentence-transformers")
    return {package.replace("-", "_"): version(package) for package in packages} | {
        "python": platform.python_version(),
        "cuda": torch.version.cuda if on_gpu else None,
        "capability": list(torch.cuda.get_device_capability()) if on_gpu else None,
        "flash_attn": version("flash-attn") if on_gpu and is_flash_attn_2_available() else None,
    }


def write_results(results: dict[str, Any], path: Path) -> None:
    """The results as .json and .md."""
    write_json(path.with_suffix(".json"), results)
    write_text(path.with_suffix(".md"), "\n".join(markdown(results)) + "\n")


def markdown(results: dict[str, Any]) -> Iterator[str]:
    peak, rates, settings = results["peak"], results["rates"], results["settings"]
    dtype = "bf16" if settings["device"] == "cuda" else "fp32"
    known = f"{peak / 1e12:.0f} TFLOP/s" if isinstance(peak, float) else peak
    yield f"# Training steps on {results['card']}\n"
    yield f"`{results['command']}`, {results['date']}{'' if results['finished'] else ', not finished'}\n"
    yield "; ".join(f"{name.replace('_', '-')} {value}" for name, value in results["machine"].items()) + ".\n"
    yield f"{settings['layers']}×{settings['hidden_size']}, {dtype}, fused AdamW, text: {settings['text']}."
    yield f"Peak in bf16 {known}; measured products {rates[dtype] / 1e12:.3g} TFLOP/s, memory"
    yield f"{rates['stream'] / 1e9:.0f} GB/s.\n"
    columns = ("step", "pairs", "dropout", "pairs/s", "share of peak", "GB")
    yield from table(columns, [line(row) for row in results["rows"]])
    if profiled := results["profile"]:
        yield f"\n## Operations of our step, {profiled['pairs']} pairs, dropout {profiled['dropout']}\n"
        rows = [
            (f"`{each['operation']}`", digits(each["milliseconds"]), each["calls"]) for each in profiled["operations"]
        ]
        yield from table(("operation", "ms", "calls"), rows)


def line(row: Row) -> tuple[Any, ...]:
    given = METHODS[row["method"]], f"{row['pairs']:,}", row["dropout"]
    if not row["fits"]:
        return *given, "does not fit", "–", "–"
    share = row["share_of_peak"]
    return *given, digits(row["pairs_per_second"]), "–" if share is None else f"{share:.1%}", digits(row["gigabytes"])


if __name__ == "__main__":
    main()
