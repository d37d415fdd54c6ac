"""Compare a training step of this checkout with that of another one.

    git worktree add ../before COMMIT
    python benchmarks/compare.py ../before

Each checkout trains the same new XLM-R on the same batches of random words in a separate process, which waits while
the other works: the steps alternate, so a slow minute hits both. A step is forward, backward and fused AdamW, fp32, in
CPU seconds; the first of each, which allocates memory, is dropped. Printed are the seconds and their ratio for each
batch, and the median ratio. Exit status 1: this checkout's step takes more than --at_most times the other's.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from measure import Seconds, seconds_of, take_turns

HERE = Path(__file__).resolve().parents[1]
Step = Callable[[int], Seconds]


def main(argv: Sequence[str] | None = None) -> float:
    """Print the comparison; returns the median ratio. `SystemExit` if it is above `--at_most`."""
    arguments = parse(argv)
    if arguments.serve:
        serve(Path(arguments.checkout))
        return 1.0
    with TemporaryDirectory() as folder, ExitStack() as running:
        prepare(Path(folder), arguments)
        places = {"here": HERE, "there": Path(arguments.checkout).resolve()}
        steps = {name: running.enter_context(step_of(place, Path(folder))) for name, place in places.items()}
        ratios = compare(steps, arguments.steps + 1)
    middle = median(ratios)
    print(f"median ratio {middle:.3f}, from {min(ratios):.3f} to {max(ratios):.3f}; at most {arguments.at_most}")
    if middle > arguments.at_most:
        sys.exit(1)
    return middle


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", help="folder that holds the other hictl_hf/")
    parser.add_argument("--layers", type=int, default=6, metavar="N")
    parser.add_argument("--hidden_size", type=int, default=384, metavar="N")
    parser.add_argument("--pairs_per_batch", type=int, default=16, metavar="N")
    parser.add_argument("--steps", type=int, default=10, metavar="N", help="that are timed, of each checkout [10]")
    parser.add_argument("--at_most", type=float, default=1.02, metavar="RATIO", help="[1.02]")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)  # the processes that this one starts
    return parser.parse_args(argv)


def prepare(folder: Path, arguments: argparse.Namespace) -> None:
    """Write the configuration and the batches, so that both checkouts get the same."""
    from variants import make_config
    from workload import random_workload

    workload = random_workload()
    config = make_config(workload.tokenizer, arguments.layers, arguments.hidden_size)
    (folder / "config.json").write_text(config.to_json_string())
    batches, _ = workload.draw("lognormal", arguments.pairs_per_batch, arguments.steps + 1, lambda _: True)
    torch.save(batches, folder / "batches.pt")


def compare(steps: dict[str, Step], rounds: int) -> list[float]:
    """The ratio of the CPU seconds of "here" to those of "there" for each batch but the first."""

    def turn(name: str) -> Callable[[int], dict[str, Seconds]]:
        return lambda number: {name: steps[name](number)}

    timings = take_turns({name: turn(name) for name in steps}, rounds)
    pairs = [(here.cpu, there.cpu) for here, there in zip(timings["here"], timings["there"])]
    for here, there in pairs:
        print(f"here {here:.3f} s, there {there:.3f} s, ratio {here / there:.3f}")
    return [here / there for here, there in pairs]


@contextmanager
def step_of(checkout: Path, folder: Path) -> Iterator[Step]:
    """A function that takes a step on a batch, by its number, in a process with the `hictl_hf` of a checkout.

    Raises:
        SystemExit: there is none, or its process ended.
    """
    if not (checkout / "hictl_hf" / "__init__.py").is_file():
        sys.exit(f"{checkout} holds no hictl_hf/; give the folder of a checkout")
    command = [sys.executable, __file__, str(folder), "--serve"]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment) as process:

        def answer() -> Any:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):  # libraries may print, too
                    return json.loads(line)
            sys.exit(f"the process of {checkout} ended with status {process.wait()}")

        def step(number: int) -> Seconds:
            assert process.stdin is not None
            print(number, file=process.stdin, flush=True)
            return Seconds(**answer())

        if (found := Path(answer()["package"])) != checkout / "hictl_hf":
            sys.exit(f"Python imports hictl_hf from {found}, not from {checkout}")
        yield step
        process.stdin.close()  # type: ignore[union-attr]


def serve(folder: Path) -> None:
    """Take the steps whose numbers are read, and print their seconds."""
    import hictl_hf
    from hictl_hf import HictlConfig, HictlForPreTraining

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = HictlForPreTraining(HictlConfig.from_json_file(folder / "config.json")).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    batches = torch.load(folder / "batches.pt")

    def step(batch: dict[str, torch.Tensor]) -> None:
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()

    print(json.dumps({"package": str(Path(hictl_hf.__file__).resolve().parent)}), flush=True)
    for line in sys.stdin:
        batch = batches[int(line)]
        print(json.dumps(seconds_of(partial(step, batch))._asdict()), flush=True)


if __name__ == "__main__":
    main()
