"""The wheel has all that `hictl` needs: installed without the checkout, it runs from an empty folder."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hictl_hf import __version__

ROOT = Path(__file__).parents[2]
SOURCES = ("hictl_hf", "recipes", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")
SMALL = {
    "vocab_size": 2000, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    "max_position_embeddings": 66, "type_vocab_size": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built offline from a copy of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name, **({"symlinks": True} if copy is shutil.copytree else {}))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", folder / "dist", folder], check=True)
    (built,) = (folder / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The folder that the wheel is installed into; its libraries are those of this environment."""
    target = wheel.parent / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, "--target", target, wheel], check=True)
    return target


def hictl(installed: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the installed command in a folder, without the checkout."""
    variables = {**os.environ, "PYTHONPATH": str(installed), "HF_DATASETS_CACHE": str(cwd / "cache")}
    return subprocess.run(
        [sys.executable, "-P", installed / "bin/hictl", *arguments],
        cwd=cwd,
        env=variables,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    assert f"-{__version__}-" in wheel.name
    packed = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "hictl_hf", "recipes"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    needed = {
        f"hictl_hf/{name}" if name.startswith("recipes/") else name for name in tracked if name != "hictl_hf/recipes"
    }
    assert len(needed) > 200 and sorted(needed - packed) == []


@pytest.mark.slow
def test_from_an_empty_folder_it_helps_examines_and_trains(installed: Path, tmp_path: Path) -> None:
    done = hictl(installed, "--help", cwd=tmp_path)
    assert done.returncode == 0 and "  demo  " in done.stdout, done.stderr
    done = hictl(installed, "doctor", "--json", cwd=tmp_path)
    findings = {each["topic"]: each for each in json.loads(done.stdout)["findings"]}
    assert str(installed) in findings["hictl_hf"]["found"] and findings["torch"]["verdict"] in ("ok", "note")
    small = [
        "--train_file",
        "package:rest_framework",
        "--held_out_sentences",
        "10",
        "--config_overrides",
        json.dumps(SMALL),
    ]
    done = hictl(installed, "demo", "--max_steps", "2", "--use_cpu", "true", *small, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "runs/demo/results.json").read_text("utf-8"))
    assert results["command"].startswith("hictl pretrain recipes/demo.json ")
    assert (tmp_path / "runs/demo/report.html").is_file()
    done = hictl(
        installed, "embed", "--model", "runs/demo/encoder", "--input", "x.txt", "--output", "x.npy", cwd=tmp_path
    )
    assert done.returncode == 1 and "\nerror: x.txt" in f"\n{done.stderr}", done.stderr
