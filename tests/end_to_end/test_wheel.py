"""The wheel has all that `hictl` needs: installed without the checkout, it runs from an empty folder."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hub_stub import serve
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf import __version__, export_encoder

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


ONE_AFTER_ANOTHER = """
import shlex, sys
import hictl_hf
from hictl_hf.cli.main import main
print(hictl_hf.__file__)
for line in sys.stdin.read().replace("\\\\\\n", " ").splitlines():
    words = shlex.split(line, comments=True)
    if words:
        main(words[1:])
"""


@pytest.mark.slow
def test_the_first_hour_of_the_readme(
    installed: Path,
    tmp_path: Path,
    sentences: dict[str, list[str]],
    tokenizer: PreTrainedTokenizerBase,
    model_for_text: Callable[..., PreTrainedModel],
) -> None:
    """Its commands as they stand, in one process, with a small encoder for E5 and few steps; shared on a stub."""
    readme = (ROOT / "README.md").read_text("utf-8")
    (commands,) = re.findall(r"^## First hour\n.*?^```bash\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert [line.split()[1] for line in commands.splitlines() if line.startswith("hictl ")] == [
        "pretrain", "embed", "mine", "publish",
    ]  # fmt: skip
    export_encoder(model_for_text(), tmp_path / "e5")
    tokenizer.save_pretrained(tmp_path / "e5")
    for language in ("en", "de"):
        (tmp_path / f"news.{language}").write_text("\n".join(sentences[language]) + "\n", "utf-8")
    pairs = ["en\tde", *map("\t".join, zip(sentences["en"], sentences["de"]))]
    (tmp_path / "pairs.tsv").write_text("\n".join(pairs) + "\n", "utf-8")
    few = "--max_steps 2 --max_seq_length 32 --held_out_sentences 5 --use_cpu true --output_dir"
    commands = commands.replace("intfloat/multilingual-e5-base", "e5").replace("your-name", "me")
    commands = commands.replace("--output_dir", few)
    with serve() as hub:
        environment = {**os.environ, **hub.environment(tmp_path / "home"), "PYTHONPATH": str(installed)}
        done = subprocess.run(
            [sys.executable, "-P", "-c", ONE_AFTER_ANOTHER], input=commands, cwd=tmp_path,
            env=environment | {"HF_DATASETS_CACHE": str(tmp_path / "cache")}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        shared = hub.repositories["me/adapted"]
    assert done.stdout.startswith(str(installed)) and "LOAD REPORT" not in done.stderr
    assert "next: hictl embed --model runs/adapted/encoder" in done.stdout
    assert (tmp_path / "news.de.npy").is_file() and (tmp_path / "mined.tsv").read_text("utf-8").count("\t") > 2
    assert {"README.md", "report.html", "encoder/model.safetensors", "model.safetensors"} <= set(shared)
    assert "hictl pretrain recipes/adapt.json --model_name_or_path e5" in json.loads(shared["results.json"])["command"]
