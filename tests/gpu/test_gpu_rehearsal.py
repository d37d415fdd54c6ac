"""The proofs on a GPU run on the pretended one, so that the first run on a real one fails for no lesser reason.

Not what needs a compiler, Triton among them, memory or two GPUs, nor the head at its full size.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PLUGIN = TESTS / "end_to_end/pretended_gpu.py"
ONLY_ON_A_GPU = ("compiled", "memory", "two_processes", "head_in_bf16")


@pytest.mark.slow
@pytest.mark.skipif(not PLUGIN.exists(), reason="needs the pretended GPU of tests/end_to_end/pretended_gpu.py")
def test_proofs_run_on_the_pretended_gpu() -> None:
    chosen = " and ".join(f"not {words}" for words in ONLY_ON_A_GPU)
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN.stem, "-q", "-m", "gpu", "-k", chosen, str(TESTS / "gpu")]
    command += ["--ignore", str(TESTS / "gpu/test_gpu_short_rows.py")]
    paths = os.pathsep.join([str(PLUGIN.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, cwd=TESTS.parent, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) > 100 and "skipped" not in done.stdout
