"""Training, translating, embedding and mining on a GPU that is only pretended: no tensor on the wrong device.

The checks are in `on_pretended_gpu.py`; PyTorch is told that there is a GPU before it is imported."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.mark.skipif(shutil.which("g++") is None, reason="the pretended GPU is compiled by g++, which is not installed")
def test_everything_on_the_pretended_gpu() -> None:
    root = HERE.parents[1]
    paths = os.pathsep.join([str(HERE), str(root), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-p", "pretended_gpu", "-q", str(HERE / "on_pretended_gpu.py")]
    done = subprocess.run(
        command, cwd=root, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
