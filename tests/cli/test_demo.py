"""`hictl demo` becomes `hictl pretrain` with the package's recipe, in a process that is fast on a CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import hictl_hf
from hictl_hf.cli import demo
from hictl_hf.errors import BadInput
from hictl_hf.pretraining.arguments import PretrainingArguments
from hictl_hf.recipe_files import RECIPES, read_recipe, recipe_file


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the process would have become."""
    calls: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *call: calls.append(call))
    monkeypatch.setattr(demo, "check_packages", lambda sources: None)
    monkeypatch.setattr(demo, "dtype_flags", lambda argv, processor: [])
    return calls


def test_from_any_folder_it_trains_with_the_recipe_of_the_package(
    started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    demo.main(["--max_steps", "2"])
    ((program, command, variables),) = started
    assert program == sys.executable and command[-4:] == ["pretrain", "recipes/demo.json", "--max_steps", "2"]
    assert variables["OMP_NUM_THREADS"] == "3" and variables["MALLOC_TRIM_THRESHOLD_"] == "17179869184"
    settings = read_recipe("recipes/demo.json", PretrainingArguments)
    assert settings["max_steps"] == 740 and settings["output_dir"] == "runs/demo"


def test_it_trains_in_a_copy_that_is_not_installed(started: list[Any], tmp_path: Path) -> None:
    demo.main([])
    *command, start = started[0][1][:4]
    code = f"{start.partition('; from')[0]}; from importlib.util import find_spec; print(find_spec('hictl_hf').origin)"
    found = subprocess.check_output([*command[:1], "-S", *command[1:], code], text=True, cwd=tmp_path, env={})
    assert found.strip() == hictl_hf.__file__


def test_another_file_of_that_name_is_not_the_demo(
    started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipes").mkdir()
    Path("recipes/demo.json").write_text(json.dumps({"max_steps": 5}), "utf-8")
    demo.main([])
    assert started[0][1][-1] == str(RECIPES / "demo.json")
    assert read_recipe("recipes/demo.json", PretrainingArguments) == {"max_steps": 5}


def test_packages_that_are_missing_are_named_with_the_command() -> None:
    demo.check_packages(["package:json"])
    with pytest.raises(BadInput, match=r"of 5 packages, and 4 are .* \(no_a, no_b, no_c, ...\).*'hictl_hf\[demo\]'"):
        demo.check_packages(["package:json", *(f"package:no_{letter}" for letter in "abcd")])


def test_bf16_is_for_processors_that_have_it(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("flags\t\t: fpu avx2 avx512_bf16x\n", "utf-8")
    (tmp_path / "new").write_text("flags\t\t: fpu avx2 avx512_bf16 sse\n", "utf-8")
    assert demo.dtype_flags([], tmp_path / "new") == ["--bf16", "true"]
    assert demo.dtype_flags(["--bf16=false"], tmp_path / "new") == []
    assert demo.dtype_flags([], tmp_path / "old") == demo.dtype_flags([], tmp_path / "none") == []


@pytest.mark.parametrize(("native", "flag"), [(True, "--bf16"), (False, "--fp16")])
def test_a_gpu_gets_the_half_precision_that_it_has(
    native: bool, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo.os.path, "exists", lambda path: path == "/dev/nvidiactl")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native or including_emulation)
    assert demo.dtype_flags([], tmp_path / "none") == [flag, "true"]
    assert demo.dtype_flags(["--use_cpu", "true"], tmp_path / "none") == []


def test_a_recipe_of_the_package_is_found_by_its_name_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert recipe_file("recipes/translation/wmt14-en-de.json").is_file()
    for name in ("demo.json", "../recipes/demo.json", "recipes/none.json"):
        with pytest.raises(BadInput, match=r"no such file; allowed is a recipe .* the package has recipes/adapt"):
            recipe_file(name)


def test_help_shows_the_values_of_the_recipe() -> None:
    shown = " ".join(demo.make_parser().format_help().split())
    assert "Folder of all output. (default: runs/demo)" in shown and "on one device. (default: 128)" in shown
