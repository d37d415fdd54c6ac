"""Processes that share the work of a command, one for each GPU: who does what, waiting, and one message of an error.

    accelerate launch --num_processes 8 -m hictl_hf embed --model runs/demo/encoder --input news.de --output news.npy

A program calls `join` before it imports what uses a GPU. From then on the process sees its own GPU only, and to the
libraries that it calls, such as HF's Trainer, it is the only one. The processes exchange a few bytes (gloo); what they
make is written to a folder that all of them see.
"""

import logging
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from .errors import BadInput, unset_empty
from .files import is_stream

Item = TypeVar("Item")

WAIT = timedelta(days=30)  # for the share of another process; one that ends is noticed at once
SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")  # of launchers that accelerate knows
RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
LOCAL_RANKS = ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK")


@dataclass(frozen=True)
class Processes:
    """This process among those that share the work; by default the only one."""

    index: int = 0
    number: int = 1
    group: Any = None
    """The process group of PyTorch in which they wait for each other; not its default group, of which libraries ask."""
    store: Any = None
    """The key-value store of PyTorch in which the main process leaves a value for the others."""

    @property
    def is_main(self) -> bool:
        """Whether this process checks, reports and writes the output."""
        return self.index == 0

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        """Every `number`-th item: each is in the share of one process."""
        return items[self.index :: self.number]

    def wait(self) -> None:
        """Wait until all processes are here; ends this process if another one has ended."""
        if self.number > 1:
            with ending_with_others():
                self.group.barrier().wait()

    def on_main(self, function: Callable[[], Item]) -> Item:
        """Call a function in the main process, and return its value in all; its `BadInput` is raised in all."""
        value, error = None, None
        if self.is_main:
            try:
                value = function()
            except (BadInput, OSError) as raised:
                error = raised
        value, error = self.from_main((value, error))
        if error is not None:
            raise error
        return value

    def from_main(self, value: Any) -> Any:
        """The value that the main process gives."""
        if self.number == 1:
            return value
        # Not as tensors: a thread of gloo may release the last one while Python ends, which aborts the process.
        with ending_with_others():
            if self.is_main:
                self.store.set("value", pickle.dumps(value))
            self.wait()
            received = self.store.get("value")
            self.wait()  # before the next value takes its place
        return pickle.loads(received)


@contextmanager
def ending_with_others() -> Iterator[None]:
    """End this process if gloo has lost another one, whose message or signal is the reason."""
    try:
        yield
    except RuntimeError as error:
        raise SystemExit(1) from error


ALONE = Processes()
_joined = ALONE


def current() -> Processes:
    """This process among those that `join` found; without `join` the only one."""
    return _joined


def hides_progress() -> bool | None:
    """`disable` of a tqdm progress bar: shown by the main process, on a terminal; also of those of a training."""
    return None if _joined.is_main and is_first() else True


def is_first() -> bool:
    """Whether no launcher started this process, or it is the first of those that one started; without joining them."""
    if not any(map(os.environ.get, LOCAL_RANKS)):  # RANK alone may be that of a machine
        return True
    return not any(int(os.environ.get(name) or 0) for name in RANKS)


def join() -> Processes:
    """Join the processes that a launcher (accelerate, torchrun, mpirun) started with this one, if there are any.

    Of the others than the main process only errors are shown.
    """
    global _joined
    unset_empty()
    if all(int(os.environ.get(name) or 1) < 2 for name in SIZES):
        return _joined
    see_own_gpu()
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list
    from torch.distributed import ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]  # without __all__

    try:
        state = PartialState(cpu=True)  # gloo, whatever the device
    except ValueError as error:  # variables that no launcher has set, or not all
        sizes = ", ".join(f"{name}={os.environ[name]}" for name in SIZES if name in os.environ)
        fix = "start processes by torchrun or accelerate launch, or for one process unset it"
        raise SystemExit(f"error: {sizes} in the environment: {error}; {fix}") from error
    number, index, is_main = state.num_processes, state.process_index, state.is_main_process
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    main = TCPStore(host, 0, number, True, wait_for_workers=False) if is_main else None
    (port,) = broadcast_object_list([main.port if main else None])
    store = main or TCPStore(host, port, number, False)
    _joined = Processes(index, number, ProcessGroupGloo(store, index, number, WAIT), store)
    _joined.wait()
    state.destroy_process_group()
    os.environ["RANK"] = str(_joined.index)  # `errors.run` reads it
    forget_launcher()
    if not _joined.is_main:
        be_silent()
    return _joined


def forget_launcher() -> None:
    """Unset what a launcher has set, of which libraries would see several processes, but not the precision and the
    device of each, in which `xtreme` fine-tunes."""
    for name in [*SIZES, *LOCAL_RANKS, *(name for name in os.environ if name.startswith("ACCELERATE_"))]:
        if name not in ("ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_CPU"):
            os.environ.pop(name, None)


def see_own_gpu() -> None:
    """Hide the GPUs of the other processes of this machine, before CUDA is initialized."""
    import torch

    local = next((int(os.environ[name]) for name in LOCAL_RANKS if os.environ.get(name)), 0)
    if (number := torch.cuda.device_count()) > 1:  # counted without initializing CUDA
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(number)))
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[local % number]


def be_silent() -> None:
    """Show nothing of this process but errors."""
    from transformers.utils import logging as transformers_logging

    sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # until the end of the process
    logging.disable(logging.WARNING)
    transformers_logging.set_verbosity_error()  # also hides the Trainer's progress
    hide_bars()


def hide_bars() -> None:
    """Show no progress bars of other libraries."""
    import datasets
    from huggingface_hub.utils.tqdm import disable_progress_bars
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    disable_progress_bars()


def refuse_unjoined() -> None:
    """Raise `BadInput` in one of several processes that has not joined the others: each would do the work of all."""
    if found := [f"{name}={os.environ[name]}" for name in SIZES if int(os.environ.get(name) or 1) > 1]:
        raise BadInput(
            f"{', '.join(found)} in the environment, and this process has not joined the others; call "
            "hictl_hf.processes.join() before a GPU is used, and give what it returns as processes; for one process "
            "unset it"
        )


def refuse_streams(processes: Processes, **files: str | Sequence[str] | None) -> None:
    """Raise `BadInput` unless several processes have regular files to read and write.

    Args:
        files: by the name of the argument: input files, none of which is standard input; or an output file.
    """
    for name, paths in files.items() if processes.number > 1 else ():
        found = [paths] if isinstance(paths, str) else paths
        if not found or any(map(is_stream, found)):
            raise BadInput(
                f"{name} is {' '.join(found) if found else 'not given'}, with {processes.number} processes; allowed "
                "with several are regular files. Name some, or start one process."
            )
