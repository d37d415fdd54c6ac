"""What the benchmarks do besides timing: a run that was interrupted keeps its parts, and memory is given back."""

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

with pytest.MonkeyPatch.context() as patch:  # the benchmarks are no package
    patch.syspath_prepend(Path(__file__).parent.parent / "benchmarks")
    measure, run = importlib.import_module("measure"), importlib.import_module("run")

PART, BLOCK = 250, 64 * 1024  # megabytes; bytes of a block that glibc keeps when it is freed below another


class Parts:
    """The parts of a benchmark, which note that they were called; translating is interrupted once."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def cells(self, arguments: Any, workload: Any, results: dict[str, Any]) -> None:
        self.calls.append("cells")
        results["ratios"] = {"step": 2.0}

    def inside(self, arguments: Any, workload: Any, results: dict[str, Any]) -> None:
        self.calls.append("inside")
        results["hard_negatives"] = [{"pairs": 64, "form": "ours", "cpu_seconds": 0.5}]

    def translation(self, pairs: Any, quick: bool) -> dict[str, Any]:
        self.calls.append("translation")
        if self.calls.count("translation") == 1:
            raise KeyboardInterrupt
        return {"ratios": {"decode": 3.0}}


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    parts = Parts()
    monkeypatch.setattr(run.torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(run, "machine", lambda: {"cpu": "a CPU"})
    monkeypatch.setattr(run, "make_workload", lambda *_: SimpleNamespace(texts={"real": []}))
    monkeypatch.setattr(run, "write_report", lambda results, path: path.write_text(json.dumps(results)))
    for part in ("cells", "inside", "translation"):
        monkeypatch.setattr(run, f"measure_{part}", getattr(parts, part))
    return parts


def test_run_interrupted_while_translating_keeps_what_it_measured_inside_the_step(parts: Parts, tmp_path: Path) -> None:
    command = ["--output", str(tmp_path / "results.json")]
    with pytest.raises(KeyboardInterrupt):
        run.main(command)
    results = run.main(command)
    assert parts.calls == ["cells", "inside", "translation", "cells", "translation"]
    assert results["ratios"] == {"step": 2.0, "decode": 3.0}
    assert results["hard_negatives"] == [{"pairs": 64, "form": "ours", "cpu_seconds": 0.5}]
    assert json.loads((tmp_path / "results.json").read_text()) == results
    assert results["finished"]
    run.main(command)
    assert parts.calls.count("inside") == 2  # a finished run is begun anew


@pytest.mark.skipif(not measure.WEIGHABLE, reason="needs /proc")
def test_memory_that_nobody_holds_is_given_back() -> None:
    blocks = [bytearray(BLOCK) for _ in range(PART * 10**6 // BLOCK)]
    last = bytearray(BLOCK)
    held = measure.resident("VmRSS")
    del blocks
    assert measure.resident("VmRSS") > held - 0.2 * PART  # glibc keeps what lies below the last block
    measure.give_back_memory()
    assert measure.resident("VmRSS") < held - 0.8 * PART
    assert len(last) == BLOCK
