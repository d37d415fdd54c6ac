"""What the proofs on a GPU share."""

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def visible_gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One GPU for a test that needs one, on a machine with several, too; with `-p pretended_gpu` the pretended one."""
    mark = request.node.get_closest_marker("gpu")
    if mark is not None and not mark.kwargs:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    pretended = sys.modules.get("pretended_gpu")
    if mark is None or pretended is None:
        yield
        return
    with pretended.Gpu() as gpu:
        warn_of_waits(gpu, monkeypatch)
        yield


def warn_of_waits(gpu: Any, patch: pytest.MonkeyPatch) -> None:
    """Let the pretended GPU warn where a real one would under `torch.cuda.set_sync_debug_mode`."""
    wait, modes = gpu.wait, ["default"]

    def wait_and_warn(*given: Any) -> None:
        if modes[-1] == "warn":
            warnings.warn("called a synchronizing CUDA operation", stacklevel=2)
        wait(*given)

    patch.setattr(gpu, "wait", wait_and_warn)
    patch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
