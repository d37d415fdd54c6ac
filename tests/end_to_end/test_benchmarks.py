"""What the benchmarks do besides timing: interrupted runs keep their parts, memory is given back, floors are right."""

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hictl_hf import HictlConfig

with pytest.MonkeyPatch.context() as patch:  # the benchmarks are no package
    patch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    measure, run = importlib.import_module("measure"), importlib.import_module("run")
    cells, variants = importlib.import_module("cells"), importlib.import_module("variants")
    floor, workload = importlib.import_module("floor"), importlib.import_module("workload")

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


def test_the_floors_are_as_worked_out_by_hand() -> None:
    config = HictlConfig(vocab_size=98, hidden_size=2, num_hidden_layers=3, intermediate_size=5, num_attention_heads=1)
    size = workload.Size(tokens=100, padded_tokens=0, masked_words=7, read_tokens=10, squared_lengths=1000, sentences=4)
    weights, attention = 4 * 4 + 2 * 10, 4 * 1000  # of a layer: 4 d² + 2 d inner; 2 d Σ length²
    layer = weights * 100 + attention
    last = 8 * 100 + 28 * 10  # keys and values of all; query, output and feed-forward part of those that are read
    counted, least = (floor.count_operations(size, config, least) for least in (False, True))
    assert counted["encoder"] == 6 * 3 * layer and least["encoder"] == 6 * (2 * layer + last)
    assert counted["head"] == least["head"] == 6 * 7 * 100 * 2


def test_the_batch_that_is_weighed_is_that_of_median_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "size_of", lambda size: SimpleNamespace(padded_tokens=size[0], tokens=size[1]))
    assert cells.of_median_padding([(90, 30), (100, 90), (80, 40)]) == (80, 40)  # 3, 1.1 and 2 times the tokens


def test_short_steps_are_timed_several_times_after_gradients_that_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[str, int]] = []

    class Step:
        def __init__(self, variant: Any, _: Any) -> None:
            self.row = variant.row

        def gradients(self, batch: int) -> None:
            calls.append((f"{self.row}, not timed", batch))

        def __call__(self, batch: int) -> dict[str, measure.Seconds]:
            calls.append((self.row, batch))
            return {self.row: measure.Seconds(batch + len(calls), batch)}

    monkeypatch.setattr(cells, "Step", Step)
    monkeypatch.setattr(cells, "size_of", lambda batch: batch)
    monkeypatch.setattr(cells, "measure_rates", lambda *_: floor.Rates(1, None, 1))
    monkeypatch.setattr(cells, "ideal_step", lambda *_: measure.Seconds(0, 0))
    compared = [variants.Variant("ours", "ours"), variants.Variant("naive", "naive")]
    rows, *_ = cells.time_steps(SimpleNamespace(config=None), compared, (), [2, 16], 3, print)
    assert calls == [(row, batch) for batch in (2, 16) for row in ("ours, not timed", *["ours"] * 3, "naive")]
    assert [seconds.cpu for seconds in rows["ours"]] == [16 + 8]  # the second of calls 7, 8 and 9
    assert [seconds.cpu for seconds in rows["naive"]] == [16 + 10]
