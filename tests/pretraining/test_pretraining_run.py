"""A folder with another run is never written over, "true" resumes from the newest complete checkpoint, and GPUs that
training cannot use are refused first."""

import logging
import multiprocessing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from parsers import parse_arguments
from transformers import TrainingArguments

from hictl_hf import HictlConfig
from hictl_hf.data.cleaning import CorpusReport
from hictl_hf.data.sampling import Languages, TemperatureSampler
from hictl_hf.errors import BadInput
from hictl_hf.files import only_writer
from hictl_hf.pretraining.arguments import PretrainingArguments
from hictl_hf.pretraining.corpora import Corpora
from hictl_hf.pretraining.results import PretrainingResults
from hictl_hf.pretraining.run import collect_results, pretrain, refuse_to_overwrite
from hictl_hf.training.checkpoints import write_manifest


def arguments(folder: Path, *flags: str) -> PretrainingArguments:
    return parse_arguments(["--train_file", "corpus.jsonl", "--output_dir", str(folder), *flags])


def checkpoint(folder: Path, step: int, complete: bool = True) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"weights")
    if complete:
        write_manifest(path)
    return path


@pytest.mark.parametrize("word", ["false", "False", "no", "none", "0", "f"])
def test_false_begins_anew_and_is_no_folder(word: str, tmp_path: Path) -> None:
    args = arguments(tmp_path, "--resume_from_checkpoint", word)
    refuse_to_overwrite(args)
    assert args.resume_from_checkpoint is None
    checkpoint(tmp_path, 2)
    with pytest.raises(BadInput, match="holds the checkpoints of another run"):
        refuse_to_overwrite(arguments(tmp_path, "--resume_from_checkpoint", word))


def test_true_is_the_newest_complete_checkpoint(tmp_path: Path) -> None:
    checkpoint(tmp_path, 2)
    newest = checkpoint(tmp_path, 10)
    checkpoint(tmp_path, 12, complete=False)
    args = arguments(tmp_path, "--resume_from_checkpoint", "true")
    refuse_to_overwrite(args)
    assert args.resume_from_checkpoint == str(newest)


def test_without_a_checkpoint_true_starts_at_the_beginning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    args = arguments(tmp_path, "--resume_from_checkpoint", "true")
    with caplog.at_level(logging.WARNING):
        refuse_to_overwrite(args)
    assert args.resume_from_checkpoint is None and "no complete checkpoint to resume from" in caplog.text


def test_another_run_is_not_written_over(tmp_path: Path) -> None:
    refuse_to_overwrite(arguments(tmp_path / "new"))
    broken = checkpoint(tmp_path / "begun", 2, complete=False)
    with pytest.raises(BadInput, match="holds the checkpoints of another run"):
        refuse_to_overwrite(arguments(tmp_path / "begun"))
    with pytest.raises(BadInput, match="not a complete checkpoint"):
        refuse_to_overwrite(arguments(tmp_path / "begun", "--resume_from_checkpoint", str(broken)))
    elsewhere = str(checkpoint(tmp_path / "other", 4))
    with pytest.raises(BadInput, match="begun: holds another run than that of .*other/checkpoint-4; continue it with"):
        refuse_to_overwrite(arguments(tmp_path / "begun", "--resume_from_checkpoint", elsewhere))
    refuse_to_overwrite(arguments(tmp_path / "new", "--resume_from_checkpoint", elsewhere))
    refuse_to_overwrite(arguments(tmp_path / "other", "--resume_from_checkpoint", elsewhere))
    (tmp_path / "ended").mkdir()
    (tmp_path / "ended" / "results.json").write_text("{}")
    for flags in ([], ["--resume_from_checkpoint", "true"]):
        with pytest.raises(BadInput, match="holds a run that has ended"):
            refuse_to_overwrite(arguments(tmp_path / "ended", *flags))


@pytest.mark.parametrize("name", ["checkpoint", "encoder"])
def test_a_folder_that_is_no_part_of_a_run_is_not_replaced(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    refuse_to_overwrite(arguments(tmp_path))  # it is empty
    (tmp_path / name / "mine.py").write_text("", "utf-8")
    elsewhere = str(checkpoint(tmp_path / "other", 4))
    for flags in ([], *(["--resume_from_checkpoint", given] for given in ("false", "true", elsewhere))):
        with pytest.raises(BadInput, match=f"{name}: is there, and the run would replace it; choose another"):
            refuse_to_overwrite(arguments(tmp_path, *flags))
    checkpoint(tmp_path, 4)
    refuse_to_overwrite(arguments(tmp_path, "--resume_from_checkpoint", "true"))  # its own, by a run that was killed


def test_several_gpus_of_one_process_are_refused_before_data_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Trainer would refuse them later; the file does not exist."""
    monkeypatch.setattr(TrainingArguments, "n_gpu", 2)
    with pytest.raises(BadInput, match="one process sees 2 GPUs .*; start one process for each"):
        pretrain(arguments(tmp_path))


def test_fsdp_of_a_launcher_is_refused_before_data_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = arguments(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(BadInput, match=r"Accelerate's FSDP .* shard_parameters"):
        pretrain(args)


def test_one_process_has_no_shards_which_is_said_before_data_is_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="shard_parameters divides a model among several processes"):
        pretrain(arguments(tmp_path, "--shard_parameters", "true"))


def test_two_runs_do_not_write_into_one_folder(tmp_path: Path) -> None:
    args = arguments(tmp_path / "runs/a", "--config_overrides", "vocab_size=90")
    with only_writer(args.output_dir), pytest.raises(BadInput, match="runs/a: another run that has not ended writes"):
        pretrain(args)
    assert not Path(args.output_dir).exists()
    with pytest.raises(BadInput, match="corpus.jsonl: does not exist"):  # the first one has ended
        pretrain(args)
    assert not Path(args.output_dir).exists() and Path(args.output_dir).parent.exists()


def test_a_worker_that_outlives_its_run_holds_no_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready, end = context.Event(), context.Event()
    with only_writer(tmp_path):
        worker = context.Process(target=lambda: (ready.set(), end.wait(60)))
        worker.start()
        assert ready.wait(60)
    with only_writer(tmp_path):
        end.set()
    worker.join()
    assert tmp_path.exists()


def results_of(
    sizes: dict[Languages, int], shares: dict[Languages, float], steps: int, folder: Path
) -> PretrainingResults:
    """Results of a run of so many steps of 4 examples, drawn from groups of these sizes."""
    ends = np.cumsum([*sizes.values()])
    groups = dict(zip(sizes, np.split(np.arange(ends[-1]), ends[:-1])))
    state = SimpleNamespace(log_history=[], global_step=steps)
    batches = TemperatureSampler(np.ones(ends[-1]), groups, shares, 4, 1)
    trainer = SimpleNamespace(state=state, model=SimpleNamespace(config=HictlConfig()), batches=batches)
    args = parse_arguments(["--train_file", "x", "--output_dir", str(folder)])
    return collect_results(args, cast(Any, trainer), Corpora(None, None, None, CorpusReport()), None, None)


def test_regions_of_a_language_are_counted_once(tmp_path: Path) -> None:
    """A TMX file names them, a Moses file of the same language does not."""
    sizes: dict[Languages, int] = {("en", "sw"): 1, ("en-US", "sw-KE"): 1, ("sw", None): 1}
    results = results_of(sizes, dict.fromkeys(sizes, 1 / 3), 1, tmp_path)
    assert results.languages == 2 and results.language_codes == ["en", "en-US", "sw", "sw-KE"]


def test_rows_that_are_never_drawn_and_places_that_a_last_batch_lacks_are_not_counted(tmp_path: Path) -> None:
    """5 pairs of 10 rows are drawn twice an epoch, in batches of 4, 4 and 2."""
    sizes: dict[Languages, int] = {("en", "de"): 5, ("sw", None): 5}
    results = results_of(sizes, {("en", "de"): 0.96, ("sw", None): 0.04}, 4, tmp_path)
    assert (results.pairs, results.texts, results.examples) == (5, 0, 14)
    assert results.language_codes == ["de", "en"] and results.languages == 2
