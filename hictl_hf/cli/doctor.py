"""`hictl doctor`: what this machine and its libraries mean for hictl_hf: untested, missing, slow, and what to do.

hictl doctor
hictl doctor --json

It works without the libraries that it finds missing. The exit status is 1 if something must be mended first.
"""

import json
import os
import shutil
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from platform import platform, python_version
from typing import Literal, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ..errors import add_debug
from ..version import __version__

NAME = "hictl_hf"
TESTED = Path(__file__).parents[1] / "tested_versions.json"
OPTIONAL = {"sentence-transformers"}  # of the tested libraries
FOR_DEVELOPERS = {"bench", "docs", "test", "test-versions"}  # extras
Verdict = Literal["ok", "note", "slow", "wrong"]
GIB = 2**30
LEAST_DISK, LEAST_SHARED, LEAST_MEMORY = 10 * GIB, GIB, 8 * GIB


class Finding(NamedTuple):
    """What was found about one thing: "wrong" must be mended, "slow" costs time, "note" is good to know."""

    verdict: Verdict
    topic: str
    found: str
    advice: str = ""


def make_parser() -> ArgumentParser:
    parser = ArgumentParser("hictl doctor", description="Check versions, device, threads, dtypes and free space.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    add_debug(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Print the findings; `argv` defaults to the command line. Exits with 1 if one is wrong."""
    as_json, findings = make_parser().parse_args(argv).json, list(examine())
    if as_json:
        print(json.dumps({"version": __version__, "findings": [each._asdict() for each in findings]}, indent=2))
    else:
        print(as_text(findings))
    if any(each.verdict == "wrong" for each in findings):
        sys.exit(1)


def as_text(findings: Sequence[Finding]) -> str:
    """Return a line for each finding, with the advice below it."""
    width = max(len(each.topic) for each in findings)
    lines = [f"{verdict:6}{topic:{width + 2}}{found}" + (f"\n{'':{width + 8}}-> {advice}" if advice else "")
             for verdict, topic, found, advice in findings]  # fmt: skip
    return "\n".join(lines)


def examine() -> Iterator[Finding]:
    """Yield all findings: libraries, then what PyTorch says, then the machine."""
    yield Finding("ok", NAME, f"{__version__}, in {Path(__file__).parents[1]}")
    yield Finding("ok", "system", platform())
    yield from judge_versions(json.loads(TESTED.read_text("utf-8")), installed_versions())
    yield from judge_requirements()
    cores = usable_cores()
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a library of CUDA that cannot be loaded
        yield Finding("wrong", "device", f"PyTorch cannot be imported: {error}", "Install it again: pip install torch")
    else:
        yield from examine_torch(torch.cuda.is_available())
        yield judge_threads(torch.get_num_threads(), cores)
    yield judge_load(os.getloadavg()[0], cores)
    yield judge_memory(usable_memory())
    yield from examine_space()
    yield from judge_offline()


# --- libraries --------------------------------------------------------------------------------------------------------


def installed_versions() -> dict[str, str]:
    """Return the version of each installed distribution, by its name in lower case with hyphens, and of Python."""
    found: dict[str, str] = {canonicalize_name(one.name): one.version for one in metadata.distributions() if one.name}
    return {**found, "python": python_version()}


def judge_versions(tested: Mapping[str, Mapping[str, str]], installed: Mapping[str, str]) -> Iterator[Finding]:
    """Yield for each tested library whether its installed version is among the tested ones."""
    for name, oldest in tested["oldest"].items():
        if name in ("tests", "date"):
            continue
        newest, version = tested["newest"][name], installed.get(name)
        if version is None:
            verdict: Verdict = "note" if name in OPTIONAL else "wrong"
            yield Finding(verdict, name, "not installed", f"pip install '{name}=={newest}'")
        elif Version(oldest) <= Version(Version(version).public) <= Version(newest):
            yield Finding("ok", name, f"{version}, tested")
        else:
            fix = f"Results may differ without an error; a tested one: {name} {newest}"
            yield Finding("note", name, f"{version}, tested are {oldest} to {newest}", fix)


def judge_requirements() -> Iterator[Finding]:
    """Yield what is missing of the requirements, and for each extra whether it is complete."""
    try:
        lines, extras = metadata.requires(NAME) or [], metadata.metadata(NAME).get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        yield Finding("note", "requirements", f"{NAME} is not installed, it runs from a folder", "pip install -e .")
        return
    installed, requirements = installed_versions(), [Requirement(line) for line in lines]
    if missing := unmet([each for each in requirements if each.marker is None], installed):
        yield Finding("wrong", "requirements", f"not met: {', '.join(missing)}", f"pip install {quoted(missing)}")
    else:
        yield Finding("ok", "requirements", "all met")
    for extra in sorted(set(extras) - FOR_DEVELOPERS):
        of_extra = [each for each in requirements if each.marker and each.marker.evaluate({"extra": extra})]
        if missing := unmet(of_extra, installed):
            found = f"not installed: {', '.join(missing)}"
            yield Finding("note", f"[{extra}]", found, f"pip install {quoted(missing)}")
        else:
            yield Finding("ok", f"[{extra}]", "installed")


def unmet(requirements: Sequence[Requirement], installed: Mapping[str, str]) -> list[str]:
    """Return the requirements without an installed version that they admit.

    >>> unmet([Requirement("a>=2"), Requirement("B_c"), Requirement("d")], {"a": "1.9", "b-c": "3"})
    ['a>=2', 'd']
    """
    found = [(each, installed.get(canonicalize_name(each.name))) for each in requirements]
    return [f"{each.name}{each.specifier}" for each, version in found
            if version is None or not each.specifier.contains(version, prereleases=True)]  # fmt: skip


def quoted(requirements: Sequence[str]) -> str:
    """Return requirements as a shell can read them."""
    return " ".join(f"'{each}'" for each in requirements)


# --- device and dtypes ------------------------------------------------------------------------------------------------


def examine_torch(cuda: bool) -> Iterator[Finding]:
    """Yield the device that training would use, and the dtypes that are slow there."""
    import torch

    from ..dtypes import NAMES, SLOW, has_fast_bf16, times_fp32

    if cuda:
        properties = torch.cuda.get_device_properties(0)
        if has_fast_bf16("cuda"):
            yield Finding("ok", "bf16", "native")
        else:
            yield Finding("slow", "bf16", "emulated by this GPU", "Use --fp16 true instead of --bf16 true.")
        found = f"{torch.cuda.device_count()} x cuda, {properties.name}, {properties.total_memory / GIB:.0f} GiB"
        yield Finding("ok", "device", found)
        return
    if gpu := next((path for path in ("/dev/nvidia0", "/dev/kfd") if os.path.exists(path)), None):
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU"
        fix = "Install the PyTorch that matches the driver: https://pytorch.org/get-started/locally"
        yield Finding("slow", "device", f"CPU; the GPU {gpu} is not usable by this PyTorch, built for {built}", fix)
    elif torch.accelerator.is_available():
        found = f"CPU; {torch.accelerator.current_accelerator()} is not used, as it is no GPU of CUDA or ROCm"
        yield Finding("slow", "device", found, "Enough for small models; XLM-R needs a GPU.")
    else:
        yield Finding("slow", "device", f"CPU, {processor()}", "Enough for small models; XLM-R needs a GPU.")
    for name, kind in NAMES.items():
        times = times_fp32(kind, torch.device("cpu"))
        found = f"takes {times:.1f} times as long as fp32"
        if times > SLOW:
            yield Finding("slow", name, found, f"This processor emulates it; leave {name} out.")
        else:
            yield Finding("ok", name, found)


def processor() -> str:
    """Return the name of the processor."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "unknown")


def usable_cores(quota: str = "/sys/fs/cgroup/cpu.max") -> float:
    """Return how many cores this process may use: its affinity, and the quota of its container."""
    cores = float(len(os.sched_getaffinity(0)))
    try:
        limit, period = Path(quota).read_text("utf-8").split()
    except (OSError, ValueError):
        return cores
    return cores if limit == "max" else min(cores, int(limit) / int(period))


def usable_memory(limit: str = "/sys/fs/cgroup/memory.max") -> int:
    """Return how many bytes of memory this process may use: those of the machine, or the limit of its container."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(memory, int(Path(limit).read_text("utf-8")))
    except (OSError, ValueError):  # "max"
        return memory


def judge_threads(threads: int, cores: float) -> Finding:
    """Compare PyTorch's threads with the cores that it may use."""
    found, most = f"{threads} of PyTorch, {cores:g} usable cores", max(1, int(cores))
    if threads > cores >= 1 or (cores < 1 and threads > 1):
        return Finding("slow", "threads", found, f"They wait for each other: export OMP_NUM_THREADS={most}")
    if threads < most:
        fix = f"export OMP_NUM_THREADS={most}, unless other work needs the rest"
        return Finding("slow", "threads", found, fix)
    return Finding("ok", "threads", found)


def judge_load(load: float, cores: float) -> Finding:
    """Compare the load of the last minute with the cores."""
    if load > cores / 2:
        fix = "Other processes use the processor; a measurement or a training run takes longer."
        return Finding("slow", "load", f"{load:.1f} on {cores:g} cores", fix)
    return Finding("ok", "load", f"{load:.1f} on {cores:g} cores")


def judge_memory(memory: int) -> Finding:
    """Judge the bytes of memory that this process may use."""
    if memory < LEAST_MEMORY:
        fix = "XLM-R base takes 4.5 GB for weights, gradients and Adam, before any batch: train a smaller model."
        return Finding("note", "memory", f"{memory / GIB:.1f} GiB", fix)
    return Finding("ok", "memory", f"{memory / GIB:.1f} GiB")


def judge_offline() -> Iterator[Finding]:
    """Yield whether the Hub is not asked, by the variables as huggingface_hub reads them: false is no truth."""
    value = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    if value.upper() in ("1", "ON", "YES", "TRUE"):
        yield Finding("note", "hub", "HF_HUB_OFFLINE is set", "Only models and data in the cache can be named.")


# --- space ------------------------------------------------------------------------------------------------------------


def examine_space() -> Iterator[Finding]:
    """Yield the free space of the folders that are written to, and of the memory that DataLoader workers share."""
    folders = {"current folder": Path.cwd(), "temporary folder": Path(tempfile.gettempdir())}
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        pass
    else:
        folders["Hub cache"] = Path(HF_HUB_CACHE)
    for name, folder in folders.items():
        existing = next(each for each in (folder, *folder.parents) if each.exists())
        yield judge_space(name, folder, shutil.disk_usage(existing).free, os.access(existing, os.W_OK))
    if os.path.isdir("/dev/shm"):
        yield judge_shared_memory(shutil.disk_usage("/dev/shm").free)


def judge_space(name: str, folder: Path, free: int, writable: bool) -> Finding:
    """Judge the free space of a folder."""
    found = f"{folder}, {free / GIB:.1f} GiB free"
    if not writable:
        fix = "Choose another folder, for the Hub cache by HF_HUB_CACHE, or change its rights."
        return Finding("wrong", name, f"{folder} cannot be written to", fix)
    if free < LEAST_DISK:
        return Finding("note", name, found, "A checkpoint to resume from takes 3.3 GB (XLM-R base) or 6.7 GB (large).")
    return Finding("ok", name, found)


def judge_shared_memory(free: int) -> Finding:
    """Judge the free bytes of /dev/shm, through which DataLoader workers hand over batches."""
    if free < LEAST_SHARED:
        fix = "DataLoader workers may die of a bus error: --dataloader_num_workers 0, or docker run --shm-size 8g"
        return Finding("note", "shared memory", f"{free / GIB:.1f} GiB free", fix)
    return Finding("ok", "shared memory", f"{free / GIB:.1f} GiB free")
