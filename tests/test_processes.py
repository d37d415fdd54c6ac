"""Processes of a launcher: shares, errors told once, each with its own GPU; with two real ones at the end (slow)."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from accelerate import PartialState
from torch.distributed import ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]  # without __all__
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from hictl_hf import errors, processes
from hictl_hf.cli import logs
from hictl_hf.cli.logs import log_to_terminal
from hictl_hf.cli.main import main_of
from hictl_hf.errors import BadInput
from hictl_hf.models.modeling_hictl_translation import HictlForConditionalGeneration
from hictl_hf.processes import (
    ALONE,
    Processes,
    forget_launcher,
    hides_progress,
    is_first,
    join,
    refuse_streams,
    see_own_gpu,
)
from hictl_hf.training.arguments import gpu_is_used
from hictl_hf.xtreme.run import run_xtreme

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("number", [1, 2, 5])
def test_each_item_is_in_one_share_and_the_main_process_is_heard(
    number: int, shared_by: Callable[..., list[Any]]
) -> None:
    def work(each: Processes) -> Any:
        return each.share(range(12)), each.from_main(each.index), each.on_main(lambda: f"of {each.index}")

    shares, *told = zip(*shared_by(number, work))
    assert sorted(item for share in shares for item in share) == [*range(12)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1 and told == [(0,) * number, ("of 0",) * number]


def test_values_reach_all_processes_and_never_as_tensors_which_threads_of_gloo_release_while_python_ends() -> None:
    number, stores = 3, [TCPStore("127.0.0.1", 0, 3, True, wait_for_workers=False)]
    stores += [TCPStore("127.0.0.1", stores[0].port, number, False) for _ in range(1, number)]
    values = [None, "x" * 100_000, *range(20)]

    def work(index: int) -> list[Any]:
        group = ProcessGroupGloo(stores[index], index, number, timedelta(seconds=60))
        each = Processes(index, number, SimpleNamespace(barrier=group.barrier), stores[index])
        return [each.from_main(value if each.is_main else "another") for value in values]

    with ThreadPoolExecutor(number) as threads:
        assert list(threads.map(work, range(number))) == [values] * number


def test_an_error_of_the_main_process_is_one_of_all(shared_by: Callable[..., list[Any]]) -> None:
    raised = []

    def work(each: Processes) -> None:
        try:
            each.on_main(lambda: refuse_streams(Processes(0, 2), input=None))
        except BadInput as error:
            raised.append(str(error))

    shared_by(3, work)
    told = (
        "input is not given, with 2 processes; allowed with several are regular files. Name some, or start one process."
    )
    assert raised == [told] * 3


def test_streams_are_refused_with_several_processes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    several, files = Processes(1, 2), [str(tmp_path / "file"), str(tmp_path / "new")]
    refuse_streams(several, input=files, output=files[1])
    refuse_streams(several, output="/dev/shm/vectors.npy")  # a folder in memory
    refuse_streams(ALONE, input=[], output=None)
    named = [{"output": name} for name in ("-", "/dev/stdout", "/dev/fd/1")]
    for refused in ({"input": []}, {"output": None}, {"input": [*files, str(tmp_path / "pipe")]}, *named):
        with pytest.raises(BadInput, match=f"{next(iter(refused))} is .*, with 2 processes"):
            refuse_streams(several, **refused)


def test_without_a_launcher_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert join() is ALONE and os.environ["LOCAL_RANK"] == "0" and ALONE.is_main and hides_progress() is None
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")
    assert is_first() and join() is ALONE
    assert "WORLD_SIZE" not in os.environ, "libraries would read a number"
    monkeypatch.setattr(processes, "_joined", Processes(1, 2))
    assert join() == Processes(1, 2) and hides_progress()


@pytest.mark.parametrize(("rank", "hidden"), [("0", None), ("1", True)])
def test_of_the_processes_of_a_training_the_first_shows_progress(
    rank: str, hidden: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": rank, "LOCAL_RANK": rank}.items():
        monkeypatch.setenv(name, value)
    asked: list[None] = []
    monkeypatch.setattr(logs, "hide_bars", lambda: asked.append(None))
    log_to_terminal()
    assert hides_progress() is hidden and len(asked) == bool(hidden)
    bars = [path.name for path in (ROOT / "hictl_hf").rglob("*.py") if "disable=None" in path.read_text("utf-8")]
    assert not bars, "they would be shown by each process"


def test_a_process_that_has_not_joined_the_others_does_not_run_xtreme(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would write into the same folder, and wait for the others in its first training."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    nothing: Any = None
    with pytest.raises(BadInput, match="^WORLD_SIZE=2 in the environment, and this process has not joined .*unset it$"):
        run_xtreme(nothing)


def test_variables_left_of_another_program_are_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartialState, "_shared_state", {})
    with patch.dict(os.environ, {"WORLD_SIZE": "2"}):  # accelerate sets other variables, too
        os.environ.pop("MASTER_ADDR", None)
        with pytest.raises(SystemExit, match="^error: WORLD_SIZE=2 in the environment: .*; start .* or .* unset it$"):
            join()


@pytest.mark.parametrize(
    ("rank", "number", "visible", "own"),
    [("0", 8, None, "0"), ("3", 8, None, "3"), ("1", 2, "4,6", "6"), ("5", 4, None, "1"), ("1", 1, None, None),
     ("1", 1, "7", "7"), ("1", 0, "", "")],
)  # fmt: skip
def test_a_process_sees_its_own_gpu(
    rank: str, number: int, visible: str | None, own: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    see_own_gpu()
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == own


def test_a_process_keeps_the_precision_and_the_device_that_a_launcher_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_USE_CPU": "true"}
    for name, value in {**kept, "ACCELERATE_USE_FSDP": "true", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    forget_launcher()
    assert {name: value for name, value in os.environ.items() if name.startswith("ACCELERATE_")} == kept
    assert not {"WORLD_SIZE", "LOCAL_RANK"} & {*os.environ}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not gpu_is_used()


def test_a_process_that_waited_for_one_that_ended_says_so_in_one_line() -> None:
    def lose(_: object, text: str = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1") -> None:
        raise RuntimeError(text)

    with pytest.raises(SystemExit, match="error: another process of this run has ended"):
        errors.run(lose, [])
    with pytest.raises(RuntimeError, match="closed by peer"):
        errors.run(lose, ["--debug"])
    with pytest.raises(RuntimeError, match="a fault of our own"):
        errors.run(lose, [], text="a fault of our own")


@pytest.mark.parametrize(("rank", "waited"), [("0", []), ("1", [errors.GRACE])])
def test_the_first_process_tells_an_error_at_once_others_later(
    rank: str, waited: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Any) -> None:
        raise BadInput("a.txt: is empty")

    found: list[float] = []
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(errors.time, "sleep", found.append)
    with pytest.raises(SystemExit, match="error: a.txt: is empty"):
        errors.run(fail, [])
    assert found == waited


def test_variables_of_a_launcher_that_are_set_to_nothing_are_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")
    sizes: list[int] = []
    errors.run(lambda _: sizes.append(TrainingArguments(use_cpu=True).world_size), [])
    assert sizes == [1]

    def fail(_: Any) -> None:
        os.environ["RANK"] = ""
        raise BadInput("a.txt: is empty")

    with pytest.raises(SystemExit, match="error: a.txt: is empty"):
        errors.run(fail, [])


def test_a_program_leaves_the_process_group_of_its_training(tmp_path: Path) -> None:
    def train(_: Any) -> None:
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)

    errors.run(train, [])
    assert not torch.distributed.is_initialized()


# --- two processes ----------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from hictl_hf.processes import join

if __name__ == "__main__":
    if join().index == 1:
        replace, after = os.replace, int(sys.argv[1])

        def replace_or_die(*paths, **how):
            global after
            after -= 1
            if after < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(*paths, **how)

        os.replace = replace_or_die
    from hictl_hf.cli.main import main_of
    main_of(sys.argv[2])(sys.argv[3:])
"""
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
ACCELERATE = ["-m", "accelerate.commands.launch", "--config_file", "recipes/accelerate/8-gpus.yaml", "--num_processes",
              "2", "--mixed_precision", "no", "--main_process_port", "0"]  # fmt: skip
QUICK = [
    "--num_train_epochs",
    "1",
    "--per_device_train_batch_size",
    "8",
    "--learning_rate",
    "1e-3",
    "1e-2",
    "--sweep_layers",
    "true",
]


@pytest.fixture(scope="module")
def toys(
    tmp_path_factory: pytest.TempPathFactory, model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]],
) -> Path:  # fmt: skip
    """Folders with an encoder and a translator, and texts."""
    folder = tmp_path_factory.mktemp("toys")
    more = {"decoder_layers": 2, "target_languages": ["de", "fr"], "cls_bias_scale": "fixed"}
    models = {
        "encoder": model_for_text(initializer_range=0.3, max_position_embeddings=228, embedding_pooling="mean"),
        "translator": model_for_text(HictlForConditionalGeneration, initializer_range=0.3, **more),
    }
    for name, model in models.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    for language in ("en", "de"):
        (folder / f"x.{language}").write_text("".join(f"{text}\n" for text in sentences[language]), "utf-8")
    return folder


def arguments(name: str, toys: Path, output: Path, xtreme: Path) -> list[str]:
    en, de = str(toys / "x.en"), str(toys / "x.de")
    encoder = ["--model", str(toys / "encoder")]
    translator = ["--model", str(toys / "translator"), "--target_lang", "de", "--max_length", "5", "--scores", "1"]
    return {
        "embed": [*encoder, "--input", en, de, "--lines_at_once", "7", "--output", f"{output}.parquet"],
        "mine": [en, de, *encoder, "--index", "IVF2,Flat", "--max_memory", "2000", "--output", str(output)],
        "mine exactly": [en, de, *encoder, "--output", str(output)],
        "translate": [*translator, "--input", en, "--lines_at_once", "7", "--output", f"{output}.gz"],
        "xtreme": ["--model_name_or_path", str(toys / "encoder"), "--data", str(xtreme), "--output_dir", str(output),
                   "--tasks", "panx", "tatoeba", *QUICK],
    }[name]  # fmt: skip


def launch(launcher: list[str], *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *launcher, *command], cwd=ROOT, env=environment, text=True, capture_output=True, timeout=300
    )


def made(output: Path) -> dict[str, bytes]:
    """The files of an output, without those that name its folder."""
    files = [path for path in output.parent.rglob("*") if path.is_file() and str(path).startswith(str(output))]
    named = ("settings.json", "results.json", "report", "manifest.json", "training_args.bin")
    return {str(path).removeprefix(str(output)): path.read_bytes() for path in files if not path.name.startswith(named)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "launcher", "after"),
    [("embed", ACCELERATE, 3), ("mine", TORCHRUN, 1), ("mine exactly", TORCHRUN, 0), ("translate", TORCHRUN, 2),
     ("xtreme", TORCHRUN, 1)],
)  # fmt: skip
def test_two_processes_killed_and_continued_give_the_bytes_of_one(
    name: str, launcher: list[str], after: int, toys: Path, xtreme_folder: Path, tmp_path: Path
) -> None:
    command = name.split()[0]
    one, two = tmp_path / "one", tmp_path / "two"
    main_of(command)(arguments(name, toys, one, xtreme_folder))
    expected, given = made(one), arguments(name, toys, two, xtreme_folder)
    (tmp_path / "killed.py").write_text(KILLED)
    killed = launch(launcher, str(tmp_path / "killed.py"), str(after), command, *given)
    assert killed.returncode and "Signal 9" in killed.stderr and made(two).keys() != expected.keys()
    entry = ["run_xtreme.py"] if command == "xtreme" else ["-m", "hictl_hf", command]
    done = launch(launcher, *entry, *given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert made(two).keys() == expected.keys() and len(expected) > 0
    assert [file for file, content in made(two).items() if content != expected[file]] == []


@pytest.mark.slow
def test_an_error_of_one_process_ends_all_with_one_line(toys: Path, tmp_path: Path) -> None:
    given = arguments("translate", toys, tmp_path / "out", tmp_path)
    lines = (toys / "x.en").read_text("utf-8").splitlines()
    lines[8] = "\ufdfa" * 20  # four words each: of the second block, so of the second process
    (tmp_path / "x.en").write_text("\n".join(lines), "utf-8")
    given[given.index("--input") + 1] = str(tmp_path / "x.en")
    done = launch(TORCHRUN, "-m", "hictl_hf", "translate", *given)
    assert done.returncode and not (tmp_path / "out.gz").exists()
    assert len(re.findall("^.*error: .*$", done.stderr, re.MULTILINE)) == 1
    assert (
        "error: line 9 of the input: 1 of 7 texts are too long for the model" in done.stderr
        and "rank: 1" in done.stderr.replace("  ", "")
    )
    missing = launch(TORCHRUN, "-m", "hictl_hf", "embed", "--model", str(tmp_path / "none"), *given[-4:])
    assert missing.returncode and len(re.findall("error: ", missing.stderr)) == 1
