"""Measure the gradient cache: a contrastive batch of any size in the memory of one micro-batch, and its cost.

Three steps of the same model: one micro-batch; as many as make the batch, each contrasted alone; and the same
micro-batches with the gradient cache, which contrasts all their sentences. Seconds compare the last two, megabytes of a
fresh process the first and the last. Usage:

    python benchmarks/gradient_cache.py --pairs corpus.jsonl.gz --encoder path/to/xlm-r --batch 1024 --micro_batch 16
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measure import Seconds, peak_memory, seconds_of, take_turns
from tqdm import tqdm
from transformers import TrainingArguments
from variants import make_config, set_dropout
from workload import Batch, Workload, make_workload

from hictl_hf import HictlForPreTraining
from hictl_hf.pretraining.trainer import HictlTrainer

FORMS = ("micro-batch alone", "without the cache", "with the cache")


class Step:
    """One optimiser step in one of the forms."""

    def __init__(self, form: str, arguments: argparse.Namespace, workload: Workload) -> None:
        torch.manual_seed(0)
        self.form, self.dtype = form, torch.bfloat16 if arguments.bf16 else None
        network = HictlForPreTraining(make_config(workload.tokenizer, arguments.layers, arguments.hidden_size))
        set_dropout(network, arguments.dropout)
        folder = tempfile.mkdtemp()
        settings = TrainingArguments(folder, use_cpu=True, remove_unused_columns=False, report_to="none")
        self.trainer = HictlTrainer(network, settings, gradient_cache=form == "with the cache")
        self.optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5, fused=True)
        self.number = 1 if form == FORMS[0] else arguments.batch // arguments.micro_batch
        self.workload, self.micro_batch = workload, arguments.micro_batch

    def draw(self) -> list[Batch]:
        return self.workload.draw("real", self.micro_batch, self.number, lambda _: True)[0]

    def __call__(self, batches: list[Batch]) -> None:
        network, dtype = self.trainer.model, self.dtype
        network.zero_grad()
        micro_batches, items = self.trainer.get_batch_samples(
            iter([dict(batch) for batch in batches]), len(batches), torch.device("cpu")
        )
        for batch in micro_batches:
            network.train()
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                loss = self.trainer.compute_loss(network, batch, num_items_in_batch=items)
            loss.backward()
        self.optimizer.step()


def step_in_fresh_process(form: str, arguments: argparse.Namespace) -> tuple[Callable[[], None], Callable[[], None]]:
    step = Step(form, arguments, make_workload(arguments.pairs, arguments.encoder))
    batches = step.draw()
    return lambda: step(batches[:2]), lambda: step(batches)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and return seconds, megabytes and their ratios."""
    arguments = parse(argv)
    torch.set_num_threads(1)
    workload = make_workload(arguments.pairs, arguments.encoder)
    steps = {form: Step(form, arguments, workload) for form in FORMS[1:]}
    batches = steps[FORMS[1]].draw()
    progress = tqdm(total=2 * (arguments.rounds + 1) + 2, unit=" steps")

    def turn(step: Step) -> Callable[[int], dict[str, Seconds]]:
        return lambda number: {step.form: seconds_of(lambda: step(batches if number else batches[:1]))}

    timings = take_turns(
        {form: turn(step) for form, step in steps.items()}, arguments.rounds + 1, lambda _: progress.update()
    )
    seconds = {form: median(each.cpu for each in timings[form]) for form in FORMS[1:]}
    del steps
    memory = {}
    for form in (FORMS[0], FORMS[2]):
        memory[form] = peak_memory(step_in_fresh_process, form, arguments)
        progress.update()
    progress.close()
    results = {
        "settings": {name: value for name, value in vars(arguments).items() if name not in ("pairs", "encoder")},
        "seconds": seconds,
        "memory": memory,
        "time_ratio": seconds[FORMS[2]] / seconds[FORMS[1]],
        "memory_ratio": ratio_of(memory, "peak_mb"),
        "transient_memory_ratio": ratio_of(memory, "transient_mb"),
    }
    print(json.dumps(results, indent=1))
    if arguments.output:
        Path(arguments.output).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return results


def ratio_of(memory: dict[str, dict[str, float | None]], kind: str) -> float | None:
    """Return the ratio of the step with the cache to the micro-batch alone; `None` where one of them is not known."""
    with_cache, alone = memory[FORMS[2]][kind], memory[FORMS[0]][kind]
    return with_cache / alone if with_cache and alone else None


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", help="JSON lines of pairs (default: those of the demo)")
    parser.add_argument("--encoder", help="folder with a tokenizer (default: one is trained)")
    parser.add_argument("--batch", type=int, default=1024, help="pairs of the contrastive batch (default: 1024)")
    parser.add_argument("--micro_batch", type=int, default=16, help="pairs at once (default: 16)")
    parser.add_argument("--layers", type=int, default=6, help="default: 6")
    parser.add_argument("--hidden_size", type=int, default=384, help="default: 384")
    parser.add_argument("--dropout", type=float, default=0.1, help="default: 0.1")
    parser.add_argument("--bf16", action="store_true", help="autocast")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--output", help="file for the results as JSON")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
