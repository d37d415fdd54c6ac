"""Each process finds the same tests: `pytest -n` stops if the names of its workers' tests differ."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def collected(hash_seed: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "-p", "no:cacheprovider", "tests"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    run = subprocess.run(
        command,
        cwd=Path(__file__).parents[1],
        env={**environment, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line for line in run.stdout.splitlines() if "::" in line]


@pytest.mark.slow
def test_names_of_tests_depend_neither_on_the_time_nor_on_hashing() -> None:
    first = collected("1")
    assert len(first) > 1000
    assert collected("2") == first
