"""Measure seconds and megabytes.

Seconds are CPU time of the process on one core (`cpu`) and clock time (`wall`); on a GPU both wait until it is done.
Variants take turns in rounds, A B C A B C …, so that a slow minute hits all of them; the first round, which allocates
memory and optimizer states, is dropped. Megabytes are the high-water mark of resident memory during one call, above the
resident memory at its start, in a fresh process; the quick run uses that of the timings and trims it first.
"""

import ctypes
import gc
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

Action = Callable[[], Any]
PROCESS = Path("/proc/self")
WEIGHABLE = (PROCESS / "clear_refs").exists()  # on Linux
UNKNOWN: dict[str, float | None] = {"transient_mb": None, "peak_mb": None}
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc's: blocks above the latter go back to the system once they are freed
SMALLEST, LARGEST = 2**17, 2**25  # what it begins with, and what freeing large blocks raises it to


class Seconds(NamedTuple):
    cpu: float
    wall: float
    optimiser: float = 0.0
    """The part of `cpu` that the optimiser took, where it was timed by itself."""


Turn = Callable[[int], dict[str, Seconds]]
Timings = dict[str, list[Seconds]]


def tell(bar: tqdm, place: str, done: str) -> None:
    bar.set_description(f"{place}: {done}")
    bar.update()


def seconds_of(action: Action, device: str = "cpu") -> Seconds:
    """What one call takes."""
    wait(device)
    cpu, wall = time.process_time(), time.perf_counter()
    action()
    wait(device)
    return Seconds(time.process_time() - cpu, time.perf_counter() - wall)


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def take_turns(turns: Mapping[str, Turn], rounds: int, on_done: Callable[[str], Any] = lambda _: None) -> Timings:
    """Call each turn with each round's number; return the seconds by name, without those of round 0.

    Args:
        on_done: called with the turn that has just ended.
    """
    timings: Timings = defaultdict(list)
    for number in range(rounds):
        for name, turn in turns.items():
            gc.collect()
            measured = turn(number)
            on_done(f"{name}, round {number}")
            for row, seconds in measured.items() if number else ():
                timings[row].append(seconds)
    return dict(timings)


def time_calls(calls: Mapping[str, Action], rounds: int, calls_before: int = 0) -> dict[str, float]:
    """Median CPU seconds of calls that take turns, each after `calls_before` untimed calls of itself."""

    def turn(name: str, _: int) -> dict[str, Seconds]:
        for _ in range(calls_before):
            calls[name]()
        return {name: seconds_of(calls[name])}

    timings = take_turns({name: partial(turn, name) for name in calls}, rounds)
    return {name: median(seconds.cpu for seconds in each) for name, each in timings.items()}


def cpu_row(rounds: Sequence[Seconds]) -> dict[str, Any]:
    """Median CPU seconds, and those of each round."""
    seconds = [each.cpu for each in rounds]
    return {"cpu_seconds": median(seconds), "cpu_rounds": seconds}


def peak_memory(make: Callable[..., tuple[Action, Action]], *arguments: Any) -> dict[str, float | None]:
    """Megabytes of a call in a fresh process: `make(*arguments)` there gives a call to warm up with, and the call.

    Returns:
        "transient_mb" above the resident size at the start of the call, "peak_mb" with it; `None` where the process
        was killed or the system cannot tell.
    """
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
            return fresh.submit(peak_of_call, make, arguments).result()
    except BrokenProcessPool:
        return UNKNOWN


def peak_memory_here(make: Callable[..., tuple[Action, Action]], *arguments: Any) -> dict[str, float | None]:
    """As `peak_memory`, in this process; glibc's thresholds are then where they would be after many steps."""
    found = peak_of_call(make, arguments)
    if WEIGHABLE:
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, LARGEST)
        ctypes.CDLL(None).mallopt(TRIM_THRESHOLD, 2 * LARGEST)
    return found


def peak_of_call(make: Callable[..., tuple[Action, Action]], arguments: tuple[Any, ...]) -> dict[str, float | None]:
    if not WEIGHABLE:
        return UNKNOWN
    torch.set_num_threads(1)
    ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, SMALLEST)
    warm_up, action = make(*arguments)
    warm_up(), warm_up()
    give_back_memory()
    return megabytes_of(action)[1]


def give_back_memory() -> None:
    """Return freed memory to the system; glibc keeps gigabytes of it."""
    gc.collect()
    if WEIGHABLE:
        ctypes.CDLL(None).malloc_trim(0)


def megabytes_of(action: Action) -> tuple[Any, dict[str, float | None]]:
    """What a call in this process returns, and its megabytes as those of `peak_memory`."""
    if not WEIGHABLE:
        return action(), UNKNOWN
    (PROCESS / "clear_refs").write_text("5")  # sets the high-water mark back
    before = resident("VmRSS")
    result = action()
    return result, {"transient_mb": resident("VmHWM") - before, "peak_mb": resident("VmHWM")}


def resident(field: str) -> float:
    """A size of this process in megabytes, by its name in /proc/self/status."""
    lines = (PROCESS / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024 / 1e6
