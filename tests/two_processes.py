"""A function called in each of two processes of one training, which find each other as those of a launcher do."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing


def found_by_two(folder: Path, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `function`, at the top of its module, returns in each process; it begins a training, which joins them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = multiprocessing.spawn(_call, (port, folder, function, *arguments), nprocs=2, join=False)
    while not processes.join(timeout=300):
        pass
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in (0, 1)]


def _call(rank: int, port: int, folder: Path, function: Callable[..., Any], *arguments: Any) -> None:
    torch.set_num_threads(1)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1"}
    torch.save(function(*arguments), folder / f"rank{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    os._exit(0)  # torch's threads may abort the process when they are torn down
