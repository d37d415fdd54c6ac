"""What docs/scale.md says of many GPUs, as far as no GPU is needed: its commands, its files, its arithmetic."""

import importlib.util
import itertools
import json
import logging
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.commands.launch import launch_command_parser
from parsers import parse_arguments
from safetensors.torch import load_file
from test_run_pretraining import flags
from torch.distributed.run import get_args_parser

from hictl_hf import HictlConfig, HictlForPreTraining
from hictl_hf.models.linear_cross_entropy import rows_at_once
from hictl_hf.pretraining.arguments import PretrainingArguments
from hictl_hf.pretraining.trainer import HictlTrainer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/scale.md").read_text("utf-8")
SBATCH = ROOT / "recipes/slurm/pretrain.sbatch"


def commands(text: str) -> list[list[str]]:
    """Each command that runs run_pretraining.py, as words."""
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if "run_pretraining.py" in line and not line.startswith("#")]


ON_THE_PAGE = commands("".join(re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)))
ON_SLURM = commands(SBATCH.read_text("utf-8"))


def arguments_of(command: list[str]) -> PretrainingArguments:
    own = command[command.index("run_pretraining.py") + 1 :]
    return parse_arguments([*own, "--use_cpu", "true", "--bf16", "false"])


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [*ON_THE_PAGE, *ON_SLURM], ids=lambda words: words[0])
def test_every_command_parses(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    arguments = arguments_of(command)
    assert arguments.train_file == ["data/train-*.parquet"] and arguments.max_steps == 200_000


def test_every_launcher_is_given_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    rows = []
    for command in ON_THE_PAGE:
        arguments, processes = arguments_of(command), 1
        launcher: Any
        if command[0] == "torchrun":
            launcher = get_args_parser().parse_args(command[1:])
            processes = int(launcher.nnodes.split(":")[-1]) * int(launcher.nproc_per_node)
        elif command[0] == "accelerate":
            launcher = launch_command_parser().parse_args(command[2:])
            processes = load_config_from_file(launcher.config_file).num_processes
        else:
            assert command[:3] == ["CUDA_VISIBLE_DEVICES=0", "python", "run_pretraining.py"]
            launcher = SimpleNamespace(training_script=command[2])
        assert launcher.training_script == "run_pretraining.py"
        rows.append(arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps * processes)
    assert rows == [1024] * 6  # the batch of the recipes, whatever the machine


# --- files ------------------------------------------------------------------------------------------------------------

CONFIGURATIONS = {  # name: kind, machines, processes
    "1-gpu": ("NO", 1, 1),
    "8-gpus": ("MULTI_GPU", 1, 8),
    "2-nodes": ("MULTI_GPU", 2, 16),
    "deepspeed-zero1": ("DEEPSPEED", 1, 8),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configurations_of_accelerate_are_what_their_names_say(name: str) -> None:
    config = load_config_from_file(str(ROOT / f"recipes/accelerate/{name}.yaml"))
    assert isinstance(config, ClusterConfig) and config.mixed_precision == "bf16" and not config.use_cpu
    assert (config.distributed_type.value, config.num_machines, config.num_processes) == CONFIGURATIONS[name]
    assert config.deepspeed_config.get("zero_stage") == (1 if name == "deepspeed-zero1" else None)
    assert config.fsdp_config == {}


def test_no_configuration_is_left_out() -> None:
    assert {path.stem for path in (ROOT / "recipes/accelerate").iterdir()} == set(CONFIGURATIONS)
    assert [name for name in CONFIGURATIONS if f"recipes/accelerate/{name}.yaml" not in PAGE] == []


@pytest.mark.slow
def test_accelerate_starts_several_processes_and_deepspeed_trains_like_ddp(
    tmp_path: Path, sentences: dict[str, list[str]]
) -> None:
    """Two processes of each; of DeepSpeed's where it is installed. Runs that are resumed end with the same bits."""
    lines = [json.dumps({"en": en, "de": de}) for en, de in zip(sentences["en"], sentences["de"])]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines), encoding="utf-8")
    pairs = {"pairs": str(tmp_path / "pairs.jsonl"), "text": ""}
    own = ["--train_file", pairs["pairs"], "--ddp_backend", "gloo", "--max_steps", "4", "--eval_strategy", "no"]
    own += ["--save_strategy", "steps", "--save_steps", "2", "--logging_steps", "1", "--resume_from_checkpoint", "true"]
    weights: dict[tuple[str, bool], dict[str, torch.Tensor]] = {}
    names = ["8-gpus", *(["deepspeed-zero1"] if importlib.util.find_spec("deepspeed") else [])]
    for name, resumed in itertools.product(names, (False, True)):
        folder = tmp_path / name
        if resumed:
            shutil.rmtree(folder / "checkpoint-4")
        launcher = f"accelerate.commands.launch --config_file recipes/accelerate/{name}.yaml --num_processes 2"
        command = [sys.executable, "-m", *launcher.split(), "--mixed_precision", "no", "run_pretraining.py"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
        done = subprocess.run(
            [*command, *flags(pairs, folder, *own)], cwd=ROOT, env=environment, text=True, capture_output=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        state = json.loads((folder / "checkpoint-4/trainer_state.json").read_text("utf-8"))
        assert [log["negatives_per_anchor"] for log in state["log_history"] if "loss" in log] == [30] * 4
        assert ("no complete checkpoint" in done.stdout + done.stderr) != resumed
        weights[name, resumed] = load_file(folder / "checkpoint-4/model.safetensors")
    expected = weights["8-gpus", False]
    for name in names:
        torch.testing.assert_close(weights[name, True], weights[name, False], rtol=0, atol=0)
        found = {key: weights[name, False][key] for key in expected}  # DeepSpeed writes tied weights twice
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("status", "queued_again"), [(0, False), (1, False), (143, True)])
def test_the_slurm_file_starts_ranks_and_goes_on_after_sigterm(tmp_path: Path, status: int, queued_again: bool) -> None:
    """With imitations of srun, for the last of 16 tasks, and of what it is given to run."""
    programs = {
        "srun": 'echo "srun $1" >> log; shift; SLURM_PROCID=15 SLURM_LOCALID=7 SLURM_NTASKS=16 exec "$@"',
        "python": f'echo "$RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR $MASTER_PORT $*" >> log; exit {status}',
        "scontrol": 'if [ "$1" = show ]; then printf "node7\\nnode8\\n"; else echo "$*" >> log; fi',
    }
    for name, lines in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{lines}\n", "utf-8")
        (tmp_path / name).chmod(stat.S_IRWXU)
    job = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "123456", "SLURM_JOB_NODELIST": "node[7-8]"}
    assert subprocess.run(["bash", "-n", SBATCH]).returncode == 0
    assert subprocess.run(["bash", SBATCH], cwd=tmp_path, env=job).returncode == status
    srun, python, *rest = (tmp_path / "log").read_text("utf-8").splitlines()
    (command,) = ON_SLURM
    assert srun == "srun --kill-on-bad-exit=1"
    assert python == " ".join(["15 7 16 node7 23456", *command[command.index("run_pretraining.py") :]])
    assert rest == (["requeue 123456"] if queued_again else [])


def test_the_slurm_job_gets_sigterm_in_time_and_can_be_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    directives = re.findall(r"^#SBATCH (\S+)$", SBATCH.read_text("utf-8"), re.MULTILINE)
    assert {"--signal=TERM@120", "--requeue", "--open-mode=append"} <= set(directives)  # without B: to all processes
    assert arguments_of(ON_SLURM[0]).resume_from_checkpoint == "true"


# --- arithmetic -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def computed() -> dict[str, Any]:
    """The names of the script that makes the tables of the page."""
    return run_path(str(ROOT / "benchmarks/scale_estimates.py"))


@pytest.mark.parametrize("name", ["memory", "shards", "time", "plan", "checkpoints"])
def test_tables_are_what_the_page_computes(name: str, computed: dict[str, Any]) -> None:
    rows = "\n".join(computed["make_tables"]()[name])
    assert f"-:|\n{rows}\n\n" in PAGE, f"the table of the page is to be\n{rows}"


@pytest.mark.parametrize(("name", "heads"), [("base", 12), ("large", 16)])
def test_sizes_are_those_of_the_models(name: str, heads: int, computed: dict[str, Any]) -> None:
    layers, d = computed["MODELS"][name]
    config = HictlConfig(
        vocab_size=computed["WORDS"], hidden_size=d, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * d, max_position_embeddings=514, type_vocab_size=1,
    )  # fmt: skip
    with torch.device("meta"):
        model = HictlForPreTraining(config)
    words = model.get_input_embeddings().weight
    parts = (model.roberta.encoder.parameters(), [words], model.parameters())
    assert computed["sizes"](name) == tuple(sum(weight.numel() for weight in part) for part in parts)
    assert rows_at_once(words) == 2**28 // len(words) == 1073  # the block of logits


def test_numbers_in_sentences_are_those_of_the_tables(computed: dict[str, Any]) -> None:
    milliseconds = computed["milliseconds"]
    compute, _, _, slow = milliseconds("base", "H100", 128, 64, 10e9)
    assert round(slow / 1000, 1) == 0.2 and round(slow / compute) == 7
    pace = 8192e3 / sum(milliseconds("base", "H100", 256, 32, 100e9))
    assert round(pace, -3) == 64_000 and round(pace / 32, -2) == 2_000
    for model, saved in (("base", 2), ("large", 4)):  # seven of eight parts of the moments
        assert round(8 * 7 / 8 * computed["sizes"](model)[2] / 1e9) == saved
    assert round(10 * 2048**2 / 1e9, 2) == 0.04
    assert f"GPU\ncomputes to {sum(milliseconds('base', 'H100', 1024, 1)):.0f} ms;" in PAGE
    assert f"an H100 computes for {milliseconds('XL', 'H100')[0] / 1000:.1f} s." in PAGE


def test_negatives_on_the_page_are_those_that_a_run_logs(caplog: pytest.LogCaptureFixture) -> None:
    _, table = PAGE.split("| negatives per anchor |\n")
    rows = [line.strip("| ").split(" | ") for line in table.split("\n\n")[0].splitlines()[1:]]
    assert len(rows) > 8
    for processes, pairs, micro_batches, gather, cache, negatives in rows:
        trainer = SimpleNamespace(
            gather_sentences=gather == "true",
            gradient_cache=cache == "true",
            model=SimpleNamespace(config=HictlConfig()),
            args=SimpleNamespace(
                train_batch_size=int(pairs), world_size=int(processes), gradient_accumulation_steps=int(micro_batches)
            ),
        )
        caplog.clear()
        with caplog.at_level(logging.INFO, "hictl_hf"):
            HictlTrainer.check_negatives(trainer)  # type: ignore[arg-type]
        assert f"negatives per anchor: {negatives.replace(',', '')} (" in caplog.text
