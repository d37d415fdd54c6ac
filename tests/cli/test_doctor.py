"""`hictl doctor` judges what it finds by rules that can be checked by hand, and works where libraries are missing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hictl_hf.cli.doctor import (
    GIB,
    TESTED,
    Finding,
    as_text,
    examine_space,
    examine_torch,
    judge_load,
    judge_memory,
    judge_offline,
    judge_shared_memory,
    judge_space,
    judge_threads,
    judge_versions,
    main,
    usable_cores,
    usable_memory,
)

RELEASES = {
    "oldest": {"python": "3.11.7", "torch": "2.11.0", "sentence-transformers": "5.4.0", "tests": "1 passed"},
    "newest": {"python": "3.13.0", "torch": "2.15.0", "sentence-transformers": "6.2.0", "tests": "1 passed"},
}


@pytest.mark.parametrize(
    ("torch", "verdict", "found"),
    [
        ("2.11.0", "ok", "2.11.0, tested"),
        ("2.13.0+cpu", "ok", "tested"),
        ("2.15.0+cu130", "ok", "tested"),  # the build is no later version
        ("2.9.1", "note", "2.9.1, tested are 2.11.0 to 2.15.0"),
        ("2.16.0", "note", "tested are"),
        ("2.16.0.dev20261101", "note", "tested are"),
        (None, "wrong", "not installed"),
    ],
)
def test_a_version_is_tested_or_not(torch: str | None, verdict: str, found: str) -> None:
    installed = {"python": "3.12.1"} | ({"torch": torch} if torch else {})
    python, finding, optional = judge_versions(RELEASES, installed)
    assert (python.verdict, finding.topic, finding.verdict) == ("ok", "torch", verdict) and found in finding.found
    assert (optional.verdict, optional.advice) == ("note", "pip install 'sentence-transformers==6.2.0'")


@pytest.mark.parametrize(
    ("finding", "verdict", "advice"),
    [
        (judge_threads(2, 2), "ok", ""),
        (judge_threads(1, 8), "slow", "OMP_NUM_THREADS=8"),
        (judge_threads(64, 4), "slow", "OMP_NUM_THREADS=4"),
        (judge_threads(4, 2.5), "slow", "OMP_NUM_THREADS=2"),
        (judge_threads(2, 2.5), "ok", ""),
        (judge_threads(2, 0.5), "slow", "OMP_NUM_THREADS=1"),
        (judge_threads(1, 0.5), "ok", ""),
        (judge_load(0.4, 2), "ok", ""),
        (judge_load(1.6, 2), "slow", "Other processes"),
        (judge_memory(64 * GIB), "ok", ""),
        (judge_memory(4 * GIB), "note", "smaller model"),
        (judge_shared_memory(64 * 2**20), "note", "--shm-size"),
        (judge_shared_memory(2 * GIB), "ok", ""),
        (judge_space("x", Path("/y"), 20 * GIB, True), "ok", ""),
        (judge_space("x", Path("/y"), 2 * GIB, True), "note", "3.3 GB"),
        (judge_space("x", Path("/y"), 20 * GIB, False), "wrong", "rights"),
    ],
)
def test_numbers_of_the_machine_are_judged(finding: Finding, verdict: str, advice: str) -> None:
    assert finding.verdict == verdict and advice in finding.advice and bool(finding.advice) == (verdict != "ok")


def test_the_quota_of_a_container_limits_the_cores(tmp_path: Path) -> None:
    (tmp_path / "half").write_text("50000 100000\n", "utf-8")
    (tmp_path / "max").write_text("max 100000\n", "utf-8")
    assert usable_cores(str(tmp_path / "half")) == 0.5
    assert usable_cores(str(tmp_path / "max")) == usable_cores(str(tmp_path / "none")) >= 1


def test_the_limit_of_a_container_bounds_the_memory(tmp_path: Path) -> None:
    (tmp_path / "limit").write_text("1073741824\n", "utf-8")
    (tmp_path / "max").write_text("max\n", "utf-8")
    assert usable_memory(str(tmp_path / "limit")) == GIB
    assert usable_memory(str(tmp_path / "max")) == usable_memory(str(tmp_path / "none")) > GIB


def test_the_cache_of_the_hub_is_where_models_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "models"))
    found = {each.topic: each.found for each in examine_space()}
    assert found["Hub cache"].startswith(f"{tmp_path}/models, ")


@pytest.mark.parametrize(
    ("hub", "transformers", "told"),
    [("1", "", True), ("true", "", True), ("", "YES", True), ("false", "", False), ("0", "1", False), ("", "", False)],
)
def test_the_hub_is_off_where_its_client_reads_so(
    hub: str, transformers: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", hub)
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", transformers)
    assert [each.found for each in judge_offline()] == ["HF_HUB_OFFLINE is set"] * told


def test_lines_and_json_say_the_same(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [Finding("ok", "a", "1"), Finding("slow", "bb", "2", "wait")]
    monkeypatch.setattr("hictl_hf.cli.doctor.examine", lambda: iter(findings))
    main([])
    assert capsys.readouterr().out == f"{as_text(findings)}\n" == "ok    a   1\nslow  bb  2\n          -> wait\n"
    main(["--json"])
    assert [Finding(**each) for each in json.loads(capsys.readouterr().out)["findings"]] == findings
    findings.append(Finding("wrong", "c", "3", "mend it"))
    with pytest.raises(SystemExit) as ended:
        main(["--json"])
    assert ended.value.code == 1 and json.loads(capsys.readouterr().out)["findings"][-1]["verdict"] == "wrong"


@pytest.mark.parametrize(("native", "verdicts"), [(True, ["ok", "ok"]), (False, ["slow", "ok"])])
def test_a_gpu_is_named_with_its_memory(native: bool, verdicts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls of PyTorch are replaced: this shows what is made of their answers."""
    properties = SimpleNamespace(name="NVIDIA H100 80GB HBM3", total_memory=80 * GIB)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    bf16, device = examine_torch(cuda=True)
    assert [bf16.verdict, device.verdict] == verdicts and ("--fp16" in bf16.advice) is not native
    assert device.found == "2 x cuda, NVIDIA H100 80GB HBM3, 80 GiB"


@pytest.mark.usefixtures("on_apple")
def test_an_accelerator_that_training_does_not_use_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "exists", lambda _: False)
    device = next(examine_torch(cuda=False))
    assert device.verdict == "slow" and device.found.startswith("CPU; mps is not used")


def test_it_examines_this_machine_even_without_pytorch() -> None:
    code = "import sys; sys.modules['torch'] = None; from hictl_hf.cli.doctor import main; main(['--json'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    verdicts = {each["topic"]: each["verdict"] for each in json.loads(done.stdout)["findings"]}
    assert done.returncode == 1 and verdicts["device"] == "wrong", done.stderr
    tested = json.loads(TESTED.read_text("utf-8"))["newest"].keys() - {"tests", "date"}
    assert {*tested, "hictl_hf", "load", "memory", "current folder"} <= verdicts.keys()
