"""`hictl demo`: train the small model of `recipes/demo.json` on message catalogues; writes runs/demo/report.html.

hictl demo
hictl demo --max_steps 50 --output_dir runs/try

It is `hictl pretrain recipes/demo.json` with the settings of a process that are fast on a CPU: one thread, memory that
glibc keeps, and bf16 if GPU or processor have instructions for it. Flags are those of `hictl pretrain`.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadInput

if TYPE_CHECKING:
    from ..parsing import CommandParser

RECIPE = "recipes/demo.json"
OF_THE_PACKAGE = Path(__file__).parents[1] / RECIPE
# last in the path, for `python -m hictl_hf demo` in a copy that is not installed: -P leaves out the current folder
START = f"import sys; sys.path.append({str(Path(__file__).parents[2])!r}); from hictl_hf.cli.main import main; main()"
# glibc keeps freed memory instead of returning it to the system: about 10 % faster. One thread, because on a shared
# machine threads wait for each other.
FAST_ON_CPU = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184", "OMP_NUM_THREADS": "1",
}  # fmt: skip
BF16_INSTRUCTIONS = {"avx512_bf16", "amx_bf16"}


def make_parser() -> "CommandParser":
    from ..parsing import CommandParser
    from ..pretraining.arguments import PretrainingArguments
    from .pretrain import GROUPS

    parser = CommandParser(
        PretrainingArguments, "Train the model of the demo; flags override its recipe.", GROUPS, __doc__
    )
    parser.set_defaults(**json.loads(OF_THE_PACKAGE.read_text("utf-8")))  # what --help shows
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Replace this process by that of the training; `argv` defaults to the command line."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & set(argv):
        make_parser().print_help()
        sys.exit(0)
    check_packages(json.loads(OF_THE_PACKAGE.read_text("utf-8"))["train_file"])
    ours = not Path(RECIPE).is_file() or Path(RECIPE).read_bytes() == OF_THE_PACKAGE.read_bytes()
    command = [sys.executable, "-P", "-c", START, "pretrain", RECIPE if ours else str(OF_THE_PACKAGE)]
    sys.stdout.flush()
    os.execve(sys.executable, [*command, *dtype_flags(argv, Path("/proc/cpuinfo")), *argv], environment(os.environ))


def check_packages(sources: Sequence[str]) -> None:
    """Raise `BadInput` unless the packages whose catalogues the demo reads are installed."""
    names = [source.removeprefix("package:") for source in sources]
    if missing := [name for name in names if find_spec(name) is None]:
        raise BadInput(
            f"the demo reads the message catalogues of {len(names)} packages, and {len(missing)} are not installed "
            f"({', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}). Install them: "
            "pip install 'hictl_hf[demo]'"
        )


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the training process; those that are given stay."""
    return FAST_ON_CPU | dict(given)


def dtype_flags(argv: Sequence[str], processor: Path) -> list[str]:
    """Return the flags of bf16 if GPU or processor have instructions for it, of fp16 on an older GPU; none if `argv`
    chooses a dtype or the CPU."""
    if any(word.partition("=")[0] in ("--bf16", "--fp16", "--use_cpu") for word in argv):
        return []
    if os.path.exists("/dev/nvidiactl"):  # else PyTorch need not be imported in this process, too
        import torch

        from ..dtypes import has_fast_bf16

        if torch.cuda.is_available():
            return ["--bf16" if has_fast_bf16("cuda") else "--fp16", "true"]
    flags = set(processor.read_text("utf-8").split()) if processor.is_file() else set()
    return ["--bf16", "true"] if BF16_INSTRUCTIONS & flags else []
