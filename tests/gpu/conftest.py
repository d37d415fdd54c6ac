"""What the proofs on a GPU share."""

import sys
from collections.abc import Iterator

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
    with pretended.Gpu():
        yield
