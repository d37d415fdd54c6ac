"""`run_xtreme.py` on a tiny folder of all nine tasks: end to end, killed and continued, and what it refuses."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from parsers import parse_xtreme_arguments
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    DebertaV2Config,
    PreTrainedConfig,
    PreTrainedModel,
    XLMRobertaConfig,
)

from hictl_hf import HictlForPreTraining
from hictl_hf.cli import xtreme as xtreme_command
from hictl_hf.embedding.encoder import embed_at_poolings
from hictl_hf.embedding.pooling import Pooling
from hictl_hf.errors import BadInput
from hictl_hf.files import only_writer, write_json
from hictl_hf.processes import Processes
from hictl_hf.retrieval.bitext import Bitext, retrieval_accuracy
from hictl_hf.xtreme import XtremeArguments
from hictl_hf.xtreme import run as xtreme_run
from hictl_hf.xtreme.data import TaskData
from hictl_hf.xtreme.fine_tuned_models import FineTunedModels, device, model_name
from hictl_hf.xtreme.fine_tuning import longest_row
from hictl_hf.xtreme.frozen_encoder import FrozenEncoder
from hictl_hf.xtreme.resuming import EXAMPLES_FILE
from hictl_hf.xtreme.sharing import Job
from hictl_hf.xtreme.tables import TaskScores
from hictl_hf.xtreme.tasks import TASKS
from run_xtreme import main

SCRIPT = Path(__file__).parents[2] / "run_xtreme.py"
QUICK = ["--num_train_epochs", "1", "--per_device_train_batch_size", "8", "--learning_rate", "1e-3"]


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory, saved_model: Callable[..., Path]) -> str:
    """A toy HiCTL checkpoint with its tokenizer, of 226 tokens, no more than question answering needs."""
    return str(saved_model(tmp_path_factory.mktemp("encoder"), max_position_embeddings=228))


@pytest.fixture(scope="session")
def short_encoder(
    encoder: str, tmp_path_factory: pytest.TempPathFactory, model_for_text: Callable[..., PreTrainedModel]
) -> str:
    """The same of 64 tokens, as `recipes/demo.json` makes it."""
    folder = tmp_path_factory.mktemp("short") / "encoder"
    shutil.copytree(encoder, folder)
    model_for_text(HictlForPreTraining).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def run(xtreme_folder: Path, encoder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run over all tasks."""
    output = tmp_path_factory.mktemp("runs") / "all"
    main(arguments(xtreme_folder, encoder, output, "--sweep_layers", "true"))
    return output


@pytest.fixture
def data(xtreme_folder: Path, tmp_path: Path) -> Path:
    """A copy of XTREME's folder, to change."""
    return Path(shutil.copytree(xtreme_folder, tmp_path / "data"))


class Second(Processes):
    """The second of two processes, of which the first does not answer."""

    def wait(self) -> None: ...

    def on_main(self, function: Callable[[], Any]) -> Any:
        return function()


def arguments(folder: Path, encoder: str, output: Path, *more: str) -> list[str]:
    return ["--model_name_or_path", encoder, "--data", str(folder), "--output_dir", str(output), *QUICK, *more]


def predictions(output: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(output)): path.read_bytes() for path in sorted((output / "predictions").rglob("test-*"))
    }


def read_results(output: Path) -> dict[str, Any]:
    return json.loads((output / "results.json").read_text("utf-8"))


def test_all_nine_tasks_are_predicted_and_scored(run: Path) -> None:
    results = read_results(run)
    assert list(results["tasks"]) == [task.name for task in TASKS]
    for task in TASKS:
        entry = results["tasks"][task.name]
        assert {*entry["languages"], *entry["missing"]} == {*task.languages}
        assert len(entry["languages"]) >= 2
        for scores in entry["languages"].values():
            assert all(0 <= scores[metric] <= 100 for metric in task.metrics)
    assert (run / "report.html").stat().st_size > 10_000
    assert "panx" in (run / "report.md").read_text("utf-8")


def test_a_sweep_scores_every_layer_and_pooling(run: Path) -> None:
    entry = read_results(run)["tasks"]["tatoeba"]
    assert [len(scores) for scores in entry["layers"].values()] == [3, 3]  # embeddings and two layers
    signature = entry["signatures"]["de"]
    layer = int(signature.partition("layer:")[2].partition("|")[0])
    assert entry["sweep"]["languages"]["de"]["mean"][layer] == entry["languages"]["de"]["accuracy"]


def test_the_other_direction_is_the_accuracy_of_the_transposed_search(
    run: Path, xtreme_folder: Path, encoder: str
) -> None:
    """Against `retrieval_accuracy` on vectors of the same layer, in the order of the files."""
    model, tokenizer = AutoModel.from_pretrained(encoder), AutoTokenizer.from_pretrained(encoder)
    entry, pooling = read_results(run)["tasks"]["tatoeba"], Pooling("mean", 1)  # 8 of 12 layers, 1 of 2
    expected = {}
    for language, code in (("de", "deu"), ("sw", "swh"), ("zh", "cmn")):
        files = [xtreme_folder / f"tatoeba/tatoeba.{code}-eng.{end}" for end in ("eng", code)]
        sides = [embed_at_poolings(model, tokenizer, file.read_text("utf-8").splitlines(), [pooling]) for file in files]
        expected[language] = retrieval_accuracy(*(side[pooling] for side in sides))
        found = entry["languages"][language]["accuracy"], entry["other_direction"][language]
        assert found == pytest.approx(expected[language])
    assert any(there != back for there, back in expected.values())


def test_the_official_layout_scores_the_same(run: Path, xtreme_folder: Path, tmp_path: Path) -> None:
    """Predictions against labels as files, by `--score`, for a task of which all languages are there."""
    from hictl_hf.xtreme.scores import score_language

    task = next(task for task in TASKS if task.name == "pawsx")
    labels = tmp_path / "test-de.tsv"
    lines = (xtreme_folder / "pawsx/test-de.tsv").read_text("utf-8").splitlines()
    labels.write_text("".join(f"{line.split(chr(9))[2]}\n" for line in lines), "utf-8")
    scores = score_language(run / "predictions/pawsx/test-de.tsv", labels, task, "de")
    assert scores == read_results(run)["tasks"]["pawsx"]["languages"]["de"]


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_the_same(run: Path, xtreme_folder: Path, encoder: str, tmp_path: Path) -> None:
    output = tmp_path / "killed"
    command = [sys.executable, str(SCRIPT), *arguments(xtreme_folder, encoder, output, "--sweep_layers", "true")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not (output / "predictions/udpos").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    done = predictions(output)
    assert 0 < len(done) < len(predictions(run))
    times = {name: (output / name).stat().st_mtime_ns for name in done}
    main(command[2:])
    assert predictions(output) == predictions(run)
    assert {name: (output / name).stat().st_mtime_ns for name in done} == times
    assert read_results(output)["tasks"] == read_results(run)["tasks"]


def test_jobs_of_several_processes_make_what_one_process_makes(
    run: Path, xtreme_folder: Path, encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another order, as other processes would do them; then nothing is left to train or predict."""
    more = ["--sweep_layers", "true", "--tasks", "xquad", "mlqa", "panx", "tatoeba", "--languages", "en", "de"]
    jobs: list[Job] = []

    def all_jobs(listed: Iterable[Job], processes: Processes) -> None:
        jobs.extend({job.path: job for job in listed}.values())
        for job in sorted(reversed(jobs), key=lambda job: job.stage):
            job.run()

    with monkeypatch.context() as patch:
        patch.setattr(xtreme_run, "share_jobs", all_jobs)
        patch.setattr(xtreme_command, "current", lambda: Second(1, 2))
        with pytest.raises(FileNotFoundError):
            read_results(tmp_path)
        assert main(arguments(xtreme_folder, encoder, tmp_path, *more)) == {}
    assert not (tmp_path / "results.json").exists()
    models = [job.path.parents[1].name for job in jobs if job.stage == 0]
    assert sorted(models) == ["panx-en", "squad-en"] and [job.stage for job in jobs].count(2) == 8
    monkeypatch.setattr(FineTunedModels, "predict", None)
    monkeypatch.setattr(FrozenEncoder, "predict", None)
    main(arguments(xtreme_folder, encoder, tmp_path, *more))
    made, expected = predictions(tmp_path), predictions(run)
    assert made == {name: expected[name] for name in made} and len(made) == 7
    assert read_results(tmp_path)["tasks"]["tatoeba"]["sweep"]["languages"].keys() == {"de"}


def test_the_same_folder_with_other_settings_is_refused(run: Path, xtreme_folder: Path, encoder: str) -> None:
    with pytest.raises(BadInput, match=r"begun with .*pooling was 'mean' and is 'cls'"):
        main(arguments(xtreme_folder, encoder, run, "--sweep_layers", "true", "--pooling", "cls"))


def test_two_runs_do_not_write_into_one_folder(xtreme_folder: Path, encoder: str, tmp_path: Path) -> None:
    command = [*arguments(xtreme_folder, encoder, tmp_path / "out"), "--tasks", "tatoeba", "--languages", "de"]
    with only_writer(tmp_path / "out"), pytest.raises(BadInput, match="out: another run that has not ended writes"):
        main(command)
    assert not (tmp_path / "out").exists()
    main(command)  # the first one has ended


def test_a_wrong_argument_does_not_occupy_the_folder(xtreme_folder: Path, encoder: str, tmp_path: Path) -> None:
    more = ["--tasks", "tatoeba", "--languages", "de"]
    with pytest.raises(BadInput, match="no encoder with a tokenizer that loads"):
        main([*arguments(xtreme_folder, str(tmp_path), tmp_path / "out"), *more])
    with pytest.raises(BadInput, match="has nothing to score. tatoeba: no file .* Give XTREME's folder"):
        main([*arguments(tmp_path, encoder, tmp_path / "out"), *more])
    assert main([*arguments(xtreme_folder, encoder, tmp_path / "out"), *more])["tasks"]["tatoeba"]["languages"]["de"]


def test_a_finished_run_that_was_moved_needs_its_models_no_more(
    run: Path, xtreme_folder: Path, encoder: str, tmp_path: Path
) -> None:
    output = tmp_path / "copy"
    shutil.copytree(run, output, ignore=shutil.ignore_patterns("models"))
    main(arguments(xtreme_folder, encoder, output, "--sweep_layers", "true"))
    assert read_results(output)["tasks"] == read_results(run)["tasks"] and not (output / "models").exists()


def test_a_model_that_was_removed_and_is_needed_again_is_refused(
    xtreme_folder: Path, encoder: str, tmp_path: Path
) -> None:
    command = [*arguments(xtreme_folder, encoder, tmp_path / "out"), "--tasks", "pawsx", "--languages", "de", "zh"]
    results = main(command)["tasks"]
    shutil.rmtree(next((tmp_path / "out/models/pawsx-en").glob("*/model")))
    assert main(command)["tasks"] == results
    for needed in ("choices/pawsx-en.json", "predictions/pawsx/test-zh.tsv"):
        content = (tmp_path / "out" / needed).read_bytes()
        (tmp_path / "out" / needed).unlink()
        with pytest.raises(BadInput, match="models/pawsx-en: its trained model was removed; remove all of the folder"):
            main(command)
        (tmp_path / "out" / needed).write_bytes(content)
    (tmp_path / "out/predictions/pawsx/test-zh.tsv").unlink()
    shutil.rmtree(tmp_path / "out/models/pawsx-en")
    assert main(command)["tasks"] == results


def test_files_changed_by_hand_are_made_again_or_told(
    run: Path, xtreme_folder: Path, encoder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output, tasks = tmp_path / "copy", read_results(run)["tasks"]
    shutil.copytree(run, output)
    command = arguments(xtreme_folder, encoder, output, "--sweep_layers", "true")
    choice, sweep = output / "choices/pawsx-en.json", output / "sweeps/tatoeba.json"
    for path, kind in ((choice, "the choice of a model"), (sweep, "scores of layers")):
        path.write_text("{", "utf-8")
        with pytest.raises(BadInput, match=f"{path}: cannot be read .*; allowed is {kind} as JSON. Remove it to"):
            main(command)
        path.unlink()
    assert main(command)["tasks"] == tasks and choice.exists() and sweep.exists()
    predictions = output / "predictions/pawsx/test-de.tsv"
    rows = predictions.read_text("utf-8").count("\n")
    predictions.write_text("perhaps\n" * rows, "utf-8")
    assert main(command)["tasks"]["pawsx"]["languages"]["de"]["accuracy"] == 0
    assert f"{predictions}: {rows} of {rows} predictions are no label of the task and count as wrong" in caplog.text


def test_a_run_that_0_7_5_began_is_continued(xtreme_folder: Path, encoder: str, tmp_path: Path) -> None:
    """Of pooling "cls", then "first token", in its settings, its sweep and its results."""
    more = ["--tasks", "tatoeba", "--languages", "de", "--pooling", "cls", "--sweep_layers", "true"]
    command, output = [*arguments(xtreme_folder, encoder, tmp_path / "out"), *more], tmp_path / "out"
    tasks = main(command)["tasks"]
    for name in ("settings.json", "sweeps/tatoeba.json", "results.json"):
        text = (output / name).read_text("utf-8")
        assert '"cls"' in text
        (output / name).write_text(text.replace('"cls"', '"first token"').replace('"schema_version": 1,', ""), "utf-8")
    assert main(command)["tasks"] == tasks


def test_the_best_candidate_on_dev_is_kept(xtreme_folder: Path, encoder: str, tmp_path: Path) -> None:
    more = ["--tasks", "panx", "--learning_rate", "1e-9", "3e-3", "--seed", "1", "2", "--num_train_epochs", "6"]
    results = main([*arguments(xtreme_folder, encoder, tmp_path / "out"), *more])
    entry = results["tasks"]["panx"]
    scores = [candidate["dev"] for candidate in entry["candidates"]]
    assert len(scores) == 4 and max(scores) > min(scores)
    assert entry["chosen"]["dev"] == max(scores)
    kept = [path.parent.name for path in (tmp_path / "out/models/panx-en").glob("*/model")]
    assert kept == [entry["chosen"]["folder"]]


def test_one_candidate_whose_last_state_is_kept_was_chosen_by_nothing(data: Path, encoder: str, tmp_path: Path) -> None:
    """A model of question answering, although there is a dev set, on which it is scored."""
    shutil.copy(data / "squad/train-v1.1.json", data / "squad/dev-v1.1.json")
    more = ["--tasks", "xquad", "--languages", "de"]
    one = main([*arguments(data, encoder, tmp_path / "one"), *more])["tasks"]["xquad"]
    assert one["model_selection"] == "last state" and one["chosen"]["dev"] is not None
    two = main([*arguments(data, encoder, tmp_path / "two"), *more, "--seed", "1", "2"])["tasks"]["xquad"]
    assert two["model_selection"] == "english dev"


@pytest.mark.parametrize(
    ("task", "splits", "note"),
    [
        ("tatoeba", ("train[9:]", "train[:9]", "test"), None),  # neither of them is read
        ("bucc2018", ("train[9:]", "dev", "test"), None),
        ("bucc2018", ("train", "test", "test"), "trial: threshold tuned on test, scored on test"),
        ("bucc2018", ("train", "dev", "dev"), "trial: threshold tuned on dev, scored on dev"),
        ("tatoeba", ("train", "dev", "dev"), "trial: scored on dev"),
        ("xnli", ("train[9:]", "dev", "test"), "trial: trained on train[9:], selected on dev, scored on test"),
        ("xnli", ("train", "dev", "test"), None),
    ],
)
def test_only_a_score_that_other_splits_change_is_a_trial(
    task: str, splits: tuple[str, str, str], note: str | None
) -> None:
    names = dict(zip(("train_split", "select_split", "score_split"), splits))
    args = XtremeArguments(model_name_or_path="x", tasks=[task], data=".", **names)
    assert xtreme_run.begin_task(args, TaskData(args.chosen_tasks[0])).note == note


def test_parts_of_speech_of_the_hub_are_marked_and_enter_no_average() -> None:
    scores = {}
    for data in ("hub", "."):
        args = XtremeArguments(model_name_or_path="x", tasks=["udpos", "panx"], data=data)
        for task in args.chosen_tasks:
            results = xtreme_run.begin_task(args, TaskData(task))
            results.languages = {language: {"f1": 70.0} for language in task.languages}
            scores[data, task.name] = TaskScores.of(task.name, results)
    assert [name for name, each in scores.items() if not each.complete] == [("hub", "udpos")]
    assert scores["hub", "udpos"].cell.text == "trial 70.0"
    assert scores["hub", "udpos"].notes[0].startswith("Trial, not an XTREME score: on the Hub's words")


@pytest.mark.parametrize(("task", "compat"), [("mlqa", True), ("mlqa", False), ("tatoeba", True)])
def test_the_signature_names_answers_that_are_extracted_like_the_official_ones(task: str, compat: bool) -> None:
    args = XtremeArguments(model_name_or_path="x", tasks=[task], data=".", compat=compat)
    [row] = args.chosen_tasks
    if task == "mlqa":
        answers = [{"text": "dog", "start": 2}]
        test = Dataset.from_list([{"id": "1", "question": "who?", "context": "a dog", "answers": answers}])
        predicted: Any = {"1": "dog"}
    else:
        test, predicted = Bitext(["a"], ["b"], ["0"], ["0"], frozenset({("0", "0")})), ["0"]
    data = TaskData(row, test={"de": test}, references={"de": row.format.references(test)})
    score = xtreme_run.score_language(args, data, "de", predicted, {})
    assert ("|compat:yes|" in score.signature_text) == (task == "mlqa" and compat)
    assert score.values[row.metrics[0]] == 100


def test_rows_can_be_named_for_a_trial_and_the_score_says_so(xtreme_folder: Path, encoder: str, tmp_path: Path) -> None:
    splits = ["--train_split", "train[8:]", "--select_split", "train[:8]", "--score_split", "dev[50%:]"]
    results = main(
        [*arguments(xtreme_folder, encoder, tmp_path / "out"), "--tasks", "panx", "--languages", "en", *splits]
    )
    entry = results["tasks"]["panx"]
    assert entry["train"] == "en, 16 rows"
    assert entry["note"] == "trial: trained on train[8:], selected on train[:8], scored on dev[50%:]"
    predicted = (tmp_path / "out/predictions/panx/test-en.tsv").read_text("utf-8")
    assert predicted.count("\n\n") + predicted.startswith("\n") == 4


@pytest.mark.parametrize("setting", ["translate-train", "translate-train-all"])
def test_translations_train_a_model_for_each_language_or_one_for_all(
    setting: str, xtreme_folder: Path, encoder: str, tmp_path: Path, sentences: dict[str, list[str]]
) -> None:
    data = tmp_path / "data"
    for task in ("pawsx", "panx"):
        (data / task).mkdir(parents=True)
        for path in (xtreme_folder / task).iterdir():
            (data / task / path.name).write_bytes(path.read_bytes())
    translated = data / "translate-train"
    translated.mkdir()
    rows = zip(sentences["en"], sentences["en"][::-1], sentences["de"], sentences["de"][::-1])
    (translated / "pawsx").mkdir()
    (translated / "pawsx/en-de-translated.tsv").write_text(
        "".join("\t".join([*row, str(at % 2)]) + "\n" for at, row in enumerate(rows)), "utf-8"
    )
    words = zip(sentences["en"][:16], sentences["de"][:16])
    lines = "".join(f"{english}\tde\t{german}\n" for english, german in words)
    (translated / "translate_train.panx.txt").write_text(lines, "utf-8")
    more = ["--setting", setting, "--tasks", "pawsx", "panx", "--languages", "en", "de", "zh"]
    results = main([*arguments(data, encoder, tmp_path / "out"), *more])
    for name, rows_of_german in (("pawsx", 48), ("panx", 16)):
        entry = results["tasks"][name]
        assert set(entry["languages"]) == {"en", "de"}
        nowhere = "no file translate-train/pawsx/en-XX-translated.tsv or pawsx/train-XX.tsv"
        assert entry["missing"]["zh"] == (
            nowhere if name == "pawsx" else "no row in translate-train/translate_train.panx.txt"
        )
        models = {path.name for path in (tmp_path / "out/models").iterdir() if path.name.startswith(name)}
        if setting == "translate-train":
            assert models == {f"{name}-en", f"{name}-de"} == {*entry["models"]}
            assert sorted(entry["train"].split("; ")) == [f"de, {rows_of_german} rows", "en, 24 rows"]
        else:
            assert f"{name}-en-de" in models
            assert entry["train"] == f"en, de, {24 + rows_of_german} rows"


def test_tasks_share_a_model_only_where_they_share_its_training_languages(
    data: Path, encoder: str, tmp_path: Path
) -> None:
    """XQuAD has Greek and MLQA has not; a task that is predicted again says the same of its model."""
    translated = data / "translate-train/squad"
    translated.mkdir(parents=True)
    for language in ("de", "el"):
        shutil.copy(data / "squad/train-v1.1.json", translated / f"squad.translate.train.en-{language}.json")
    shutil.copy(data / "xquad/xquad.en.json", data / "xquad/xquad.el.json")
    more = ["--setting", "translate-train-all", "--tasks", "xquad", "mlqa", "--languages", "en", "de", "el"]
    command = [*arguments(data, encoder, tmp_path / "out"), *more]
    tasks = main(command)["tasks"]
    assert {name: entry["train"] for name, entry in tasks.items()} == {
        "xquad": "en, de, el, 48 rows", "mlqa": "en, de, 32 rows"
    }  # fmt: skip
    assert {path.name for path in (tmp_path / "out/models").iterdir()} == {"squad-en-de-el", "squad-en-de"}
    shutil.rmtree(tmp_path / "out/predictions/mlqa")
    assert main(command)["tasks"] == tasks


def test_predictions_are_not_said_to_be_those_of_a_model_of_more_languages(
    data: Path, encoder: str, tmp_path: Path
) -> None:
    more = ["--setting", "translate-train-all", "--tasks", "pawsx", "--languages", "en", "de", "zh"]
    command = [*arguments(data, encoder, tmp_path / "out"), *more]
    shutil.copy(data / "pawsx/train-en.tsv", data / "pawsx/train-de.tsv")
    assert main(command)["tasks"]["pawsx"]["train"] == "en, de, 48 rows"
    shutil.copy(data / "pawsx/train-en.tsv", data / "pawsx/train-zh.tsv")
    with pytest.raises(BadInput, match=r"predictions/pawsx/test-de.tsv: the examples of pawsx de are not"):
        main(command)


def test_a_model_of_many_languages_has_a_short_name_of_its_own() -> None:
    names = [model_name("panx", languages) for languages in (["en", *"abcdefgh"], ["en", *"abcdefgi"], ["en", "de"])]
    assert len({*names}) == 3 and names[2] == "panx-en-de"
    assert all(name.startswith("panx-9-languages-") and len(name) < 40 for name in names[:2])


def test_rows_are_no_longer_than_the_encoder_reads(
    data: Path, short_encoder: str, sentences: dict[str, list[str]], tmp_path: Path
) -> None:
    words = " ".join(sentences["en"][:24]).split()  # more than 64 and than 128 tokens
    for split in ("train", "test"):
        path = data / f"panx/{split}-en.tsv"
        path.write_text("".join(f"{word}\tO\n" for word in words) + "\n" + path.read_text("utf-8"), "utf-8")
        path = data / f"pawsx/{split}-en.tsv"
        path.write_text(f"{' '.join(words)}\tx\t1\n{path.read_text('utf-8')}", "utf-8")
    more = ["--tasks", "pawsx", "panx", "--languages", "en"]
    tasks = main([*arguments(data, short_encoder, tmp_path / "out"), *more])["tasks"]
    assert [tasks[name]["chosen"]["max_length"] for name in ("pawsx", "panx")] == [64, 64]
    predicted = (tmp_path / "out/predictions/panx/test-en.tsv").read_text("utf-8").split("\n\n")
    assert len(predicted[0].splitlines()) == len(words) > 64


def test_an_encoder_that_reads_too_little_for_questions_is_refused(
    xtreme_folder: Path, short_encoder: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="xquad: needs rows of 226 tokens or more, .* reads 64; give"):
        main([*arguments(xtreme_folder, short_encoder, tmp_path / "out"), "--tasks", "panx", "xquad"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        (XLMRobertaConfig(max_position_embeddings=514), 512),
        (BertConfig(max_position_embeddings=512), 512),
        (DebertaV2Config(max_position_embeddings=300, position_biased_input=False), 300),
    ],
)
def test_what_an_encoder_reads_follows_from_where_its_positions_begin(config: PreTrainedConfig, tokens: int) -> None:
    assert longest_row(config) == tokens


def labels_of_tatoeba(xtreme_folder: Path, data: Path) -> Path:
    """Makes of LASER's German files XTREME's own, whose pairs only the folder of labels that is returned tells."""
    for path in (data / "tatoeba").iterdir():
        path.unlink()
    english, german = (
        (xtreme_folder / f"tatoeba/tatoeba.deu-eng.{end}").read_text("utf-8").splitlines() for end in ("eng", "deu")
    )
    order = sorted(range(len(english)), key=english.__getitem__)
    labels = data / "labels"
    (labels / "tatoeba").mkdir(parents=True)
    for path, lines in (
        (data / "tatoeba/de-en.de", german),
        (data / "tatoeba/de-en.en", [english[line] for line in order]),
        (labels / "tatoeba/test-de.tsv", order),
    ):
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return labels


def test_tatoeba_with_a_folder_of_labels_is_scored_as_with_its_own(
    run: Path, xtreme_folder: Path, data: Path, encoder: str, tmp_path: Path
) -> None:
    labels = labels_of_tatoeba(xtreme_folder, data)
    more = ["--tasks", "tatoeba", "--languages", "de", "--sweep_layers", "true"]
    entry = main([*arguments(data, encoder, tmp_path / "out"), *more, "--labels", str(labels)])["tasks"]["tatoeba"]
    expected = read_results(run)["tasks"]["tatoeba"]
    for part in ("languages", "other_direction", "signatures"):
        assert entry[part] == {"de": expected[part]["de"]}
    assert entry["sweep"]["languages"] == {"de": expected["sweep"]["languages"]["de"]}
    entry = main([*arguments(data, encoder, tmp_path / "bare"), *more])["tasks"]["tatoeba"]
    assert entry["languages"] == {"de": None} and "other_direction" not in entry
    assert not (tmp_path / "bare/other_direction").exists()


@pytest.mark.parametrize(
    ("task", "file", "message"),
    [
        ("panx", "panx/test-en.tsv", "predictions/panx/test-en.tsv: the examples of panx en are not"),
        ("panx", "panx/train-en.tsv", "models/panx-en: the examples of panx-en are not"),
        ("panx", "panx/dev-en.tsv", "models/panx-en: the examples of panx-en are not"),
        ("bucc2018", "bucc2018/de-en.dev.de", "predictions/bucc2018/test-de.tsv: the examples of bucc2018 de are not"),
    ],
)
def test_a_run_goes_on_only_with_the_rows_that_it_began_with(
    task: str, file: str, message: str, data: Path, encoder: str, tmp_path: Path
) -> None:
    command = [*arguments(data, encoder, tmp_path / "out"), "--tasks", task, "--languages", file[-6:-4]]
    tasks = main(command)["tasks"]
    rows = (data / file).read_text("utf-8")
    (data / file).write_text(rows.replace("a", "e"), "utf-8")
    with pytest.raises(BadInput, match=rf"{message} .*; give the same files, or choose another --output_dir"):
        main(command)
    (data / file).write_text(rows, "utf-8")
    assert main(command)["tasks"] == tasks


def test_a_run_goes_on_only_with_the_weights_that_it_began_with(
    data: Path, encoder: str, tmp_path: Path, model_for_text: Callable[..., PreTrainedModel]
) -> None:
    folder = shutil.copytree(encoder, tmp_path / "encoder")
    command = [*arguments(data, str(folder), tmp_path / "out"), "--tasks", "tatoeba", "--languages", "de"]
    results = main(command)["tasks"]
    assert main(command)["tasks"] == results
    model_for_text(HictlForPreTraining, seed=1, max_position_embeddings=228).save_pretrained(folder)
    with pytest.raises(BadInput, match="out/predictions: the weights or the tokenizer of encoder .* are not those"):
        main(command)
    shutil.rmtree(tmp_path / "out/predictions")
    assert main(command)["tasks"] != results


def test_a_run_goes_on_only_with_the_prompt_that_it_began_with(data: Path, encoder: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(encoder, tmp_path / "encoder"))
    command = [*arguments(data, str(folder), tmp_path / "out"), "--tasks", "tatoeba", "--languages", "de"]
    main(command)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"embedding_prompt": "query: "}), "utf-8")
    with pytest.raises(BadInput, match="out/predictions: the config.json or the prompts of reading of .* are not"):
        main(command)


def test_a_run_goes_on_only_with_the_vocabulary_that_it_began_with(
    xtreme_folder: Path, encoder: str, tmp_path: Path
) -> None:
    """Also where there is no tokenizer.json, as at many older models."""
    folder = Path(shutil.copytree(encoder, tmp_path / "encoder"))
    for path in folder.glob("*token*"):
        path.unlink()
    words = [*"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
    (folder / "vocab.txt").write_text("\n".join(["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]", *words]), "utf-8")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}', "utf-8")
    command = [*arguments(xtreme_folder, str(folder), tmp_path / "out"), "--tasks", "tatoeba", "--languages", "de"]
    results = main(command)["tasks"]
    record = tmp_path / "out" / EXAMPLES_FILE
    hashes = json.loads(record.read_text("utf-8"))
    write_json(record, {name: value for name, value in hashes.items() if "tokenizer" not in name})  # 0.18's
    assert main(command)["tasks"] == results and json.loads(record.read_text("utf-8")) == hashes
    (folder / "vocab.txt").write_text("\n".join(["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]", *words[::-1]]), "utf-8")
    with pytest.raises(
        BadInput, match="out/predictions: the files of tokenizer of .*encoder are not those that it was"
    ):
        main(command)


@pytest.mark.parametrize("task", ["pawsx", "tatoeba"])
def test_weights_that_are_not_finite_are_refused_before_anything_is_written(
    task: str, xtreme_folder: Path, encoder: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(encoder, tmp_path / "encoder"))
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("layer.1.output.dense.weight"))
    save_file(weights | {name: weights[name] * torch.nan}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(BadInput, match=f"model.safetensors: {name} has values that are NaN or infinite"):
        main([*arguments(xtreme_folder, str(folder), tmp_path / "out"), "--tasks", task, "--languages", "de"])
    assert not (tmp_path / "out").exists()


def test_rows_of_which_nothing_was_made_yet_may_change(data: Path, encoder: str, tmp_path: Path) -> None:
    command = [*arguments(data, encoder, tmp_path / "out"), "--tasks", "tatoeba", "--languages", "de"]
    main(command)
    shutil.rmtree(tmp_path / "out/predictions")
    path = data / "tatoeba/tatoeba.deu-eng.deu"
    path.write_text(path.read_text("utf-8").replace("a", "e"), "utf-8")
    assert main(command)["tasks"]["tatoeba"]["languages"]["de"]


@pytest.mark.parametrize("task", ["pawsx", "tatoeba"])
def test_an_encoder_whose_weights_are_not_found_is_refused(
    task: str, xtreme_folder: Path, encoder: str, tmp_path: Path
) -> None:
    """Names as a wrapper of the model writes them; transformers would go on with random weights."""
    folder = Path(shutil.copytree(encoder, tmp_path / "encoder"))
    weights = load_file(folder / "model.safetensors")
    save_file({f"module.{name}": weight for name, weight in weights.items()}, folder / "model.safetensors")
    more = ["--tasks", task, "--languages", "de"]
    with pytest.raises(BadInput, match="encoder: has no weights for [0-9]+ parts, such as "):
        main([*arguments(xtreme_folder, str(folder), tmp_path / "out"), *more])


def test_labels_may_come_later_and_the_signature_names_texts_and_labels(
    run: Path, data: Path, encoder: str, tmp_path: Path
) -> None:
    command = [*arguments(data, encoder, tmp_path / "out"), "--tasks", "panx", "--languages", "de"]
    path = data / "panx/test-de.tsv"
    rows = path.read_text("utf-8")
    path.write_text("".join(f"{line.partition(chr(9))[0]}\n" for line in rows.splitlines()), "utf-8")
    assert main(command)["tasks"]["panx"]["languages"] == {"de": None}
    path.write_text(rows, "utf-8")
    signature = main(command)["tasks"]["panx"]["signatures"]["de"]
    assert signature == read_results(run)["tasks"]["panx"]["signatures"]["de"]
    path.write_text(rows.replace("Katze", "Kuh"), "utf-8")
    command[command.index("--output_dir") + 1] = str(tmp_path / "other")
    assert main(command)["tasks"]["panx"]["signatures"]["de"] != signature


def test_a_folder_of_labels_may_be_given_later(xtreme_folder: Path, data: Path, encoder: str, tmp_path: Path) -> None:
    """Nothing is trained again; retrieval, which is quick, also gives what needs labels."""
    labels = labels_of_tatoeba(xtreme_folder, data)
    rows = [line.partition("\t") for line in (data / "panx/test-de.tsv").read_text("utf-8").splitlines()]
    (data / "panx/test-de.tsv").write_text("".join(f"{word}\n" for word, _, _ in rows), "utf-8")
    (labels / "panx").mkdir()
    (labels / "panx/test-de.tsv").write_text("".join(f"{tag}\n" for _, _, tag in rows), "utf-8")
    more = ["--tasks", "panx", "tatoeba", "--languages", "de", "--sweep_layers", "true"]
    commands = [[*arguments(data, encoder, tmp_path / name), *more] for name in ("out", "at_once")]
    assert main(commands[0])["tasks"]["panx"]["languages"] == {"de": None}
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/models").rglob("*")}
    later, at_once = (main([*command, "--labels", str(labels)])["tasks"] for command in commands)
    assert later == at_once and later["tatoeba"]["other_direction"] and later["panx"]["languages"]["de"]
    assert main(commands[0])["tasks"] == later, "a call without the labels keeps the scores"
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "out/models").rglob("*")}
    (labels / "tatoeba/test-de.tsv").write_text("0\n" * 48, "utf-8")
    fresh = [*arguments(data, encoder, tmp_path / "fresh"), *more, "--labels", str(labels)]
    assert main(commands[0])["tasks"] == main(fresh)["tasks"] != later, "corrected labels are scored again"
    shutil.rmtree(labels)
    with pytest.raises(BadInput, match=f"--labels {labels}: no such folder"):
        main(commands[0])


@pytest.mark.parametrize(
    ("task", "file", "labels", "message"),
    [
        ("pawsx", "test-de.tsv", "1\n0\n", "has 2 labels; allowed is one for each of the 8 examples"),
        ("pawsx", "test-de.tsv", "1\n2\n" * 4, "has the label '2'; allowed are 0, 1"),
        ("panx", "test-de.tsv", "O\n\n" * 8, r"has 1 tags in sentence 1; allowed is one for each of its \d words"),
        ("panx", "test-de.tsv", "O\n\n" * 7, "has 7 labels; allowed is one for each of the 8 examples"),
        ("xquad", "test-de.json", "{}", "has no answer to the question 'de-5'"),
        ("tatoeba", "test-de.tsv", "0\n", "has 1 labels; allowed is one for each of the 48 examples"),
        ("tatoeba", "test-de.tsv", "48\n" * 48, "has the label '48'"),
        ("bucc2018", "test-de.tsv", "de-12\ten-99\n", r"has \('de-12', 'en-99'\); allowed are two ids"),
    ],
)
def test_labels_of_other_examples_are_refused_before_anything_is_trained(
    task: str, file: str, labels: str, message: str, xtreme_folder: Path, encoder: str, tmp_path: Path
) -> None:
    (tmp_path / "labels" / task).mkdir(parents=True)
    if task == "xquad":
        content = json.loads((xtreme_folder / "xquad/xquad.de.json").read_text("utf-8"))
        del content["data"][0]["paragraphs"][5]
        labels = json.dumps(content)
    (tmp_path / "labels" / task / file).write_text(labels, "utf-8")
    more = ["--tasks", task, "--languages", "de", "--labels", str(tmp_path / "labels")]
    with pytest.raises(BadInput, match=f"labels/{task}/{file}(:1)?: {message}"):
        main([*arguments(xtreme_folder, encoder, tmp_path / "out"), *more])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--num_train_epochs", "0"], "epochs is 0.0; allowed are numbers above 0"),
        (["--per_device_eval_batch_size", "0"], "per_device_eval_batch_size is 0; allowed are numbers above 0"),
        (["--micro_batches", "0"], "micro_batches is 0; allowed are numbers above 0"),
        (
            ["--tasks", "panx", "--per_device_train_batch_size", "8", "12", "--micro_batches", "8"],
            "per_device_train_batch_size is 12; allowed are mult",
        ),
        (["--tasks", "panx", "xcopa"], "no task is called xcopa; allowed are all, xnli"),
        (["--languages", "xx"], "no task has the language xx"),
        (["--setting", "few-shot"], "setting is 'few-shot'; allowed are zero-shot"),
        (["--data", "nowhere"], "nowhere: no such folder"),
        (["--tasks", "panx", "--select_split", "dev2"], "panx: a model is chosen on the split 'dev2'"),
        (["--tasks", "panx", "--train_split", "train[99:]"], "names none of its 24 rows"),
        (["--tasks", "xnli", "tatoeba", "--layer", "3"], "the encoder has the layers 0"),
        (
            ["--tasks", "xnli", "panx", "--select_on", "target"],
            "xnli: a model is chosen on the split 'dev', which is not there in de, sw",
        ),
        (
            ["--tasks", "bucc2018", "--select_split", "valid"],
            "bucc2018: its threshold is chosen on the split 'valid'",
        ),
        (["--score", "x"], "--score needs --labels"),
        (["--score", "x", "--labels", ".", "--languages", "de"], "leave --languages out"),
    ],
)
def test_wrong_arguments_are_refused(
    more: list[str], message: str, xtreme_folder: Path, encoder: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=message.replace("[", r"\[")):
        main([*arguments(xtreme_folder, encoder, tmp_path / "out"), *more])
    assert not (tmp_path / "out").exists()  # all of it is found before anything is trained


@pytest.mark.parametrize(
    ("task", "file", "change", "message"),
    [
        (
            "xnli",
            "xnli/dev-en.tsv",
            lambda line: line.rpartition("\t")[0],
            "xnli, en: the rows of --select_split 'dev' ha",
        ),
        (
            "panx",
            "panx/dev-en.tsv",
            lambda line: line.partition("\t")[0],
            "panx, en: the rows of --select_split 'dev' ha",
        ),
        ("panx", "panx/train-en.tsv", lambda line: line.partition("\t")[0], "panx, en, 'train': the training examples"),
    ],
)
def test_rows_without_labels_are_refused_before_anything_is_trained(
    task: str, file: str, change: Callable[[str], str], message: str, data: Path, encoder: str, tmp_path: Path
) -> None:
    lines = (data / file).read_text("utf-8").split("\n")
    (data / file).write_text("\n".join(map(change, lines)), "utf-8")
    with pytest.raises(BadInput, match=message):
        main([*arguments(data, encoder, tmp_path / "out"), "--tasks", task])
    assert not (tmp_path / "out").exists()


def test_translations_without_labels_are_refused_before_anything_is_trained(
    data: Path, encoder: str, tmp_path: Path
) -> None:
    lines = (data / "pawsx/train-en.tsv").read_text("utf-8").splitlines()
    (data / "pawsx/train-de.tsv").write_text("\n".join(lines), "utf-8")
    (data / "pawsx/train-zh.tsv").write_text("\n".join(line.rpartition("\t")[0] for line in lines), "utf-8")
    more = ["--tasks", "pawsx", "--setting", "translate-train", "--languages", "de", "zh"]
    with pytest.raises(BadInput, match="pawsx, zh, 'translated': the training examples are not labelled"):
        main([*arguments(data, encoder, tmp_path / "out"), *more])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("file", ["xquad/xquad.de.json", "squad/dev-v1.1.json"])
def test_questions_of_which_some_have_no_answer_are_refused_before_anything_is_trained(
    file: str, data: Path, encoder: str, tmp_path: Path
) -> None:
    content = json.loads((data / "xquad/xquad.de.json").read_text("utf-8"))
    content["data"][0]["paragraphs"][4]["qas"][0]["answers"] = []
    (data / file).write_text(json.dumps(content), "utf-8")
    message = "(xquad, de|squad, en): the question 'de-4' has no answer, as 1 of 6"
    with pytest.raises(BadInput, match=message):
        main([*arguments(data, encoder, tmp_path / "out"), "--tasks", "xquad", "--languages", "de"])
    assert not (tmp_path / "out").exists()


def test_settings_come_from_a_recipe_too_and_flags_change_it(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.json"
    recipe.write_text('{"model_name_or_path": "x", "tasks": ["panx"], "learning_rate": [1e-5], "bf16": true}', "utf-8")
    found = parse_xtreme_arguments([str(recipe), "--learning_rate", "2e-5", "3e-5"])
    assert (found.model_name_or_path, found.tasks, found.learning_rate, found.bf16) == (
        "x",
        ["panx"],
        [2e-5, 3e-5],
        True,
    )
    recipe.write_text('{"model_name_or_path": "x", "taks": ["panx"]}', "utf-8")
    with pytest.raises(BadInput, match="unknown settings: taks"):
        parse_xtreme_arguments([str(recipe)])


def test_a_wrong_file_of_the_last_task_is_refused_before_the_first_is_trained(
    xtreme_folder: Path, encoder: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    for path in xtreme_folder.rglob("*.*"):
        if path.parent.name in ("xnli", "tatoeba"):
            (data / path.parent.name).mkdir(parents=True, exist_ok=True)
            (data / path.parent.name / path.name).write_bytes(path.read_bytes())
    (data / "tatoeba/tatoeba.deu-eng.deu").write_text("one line\n", "utf-8")
    with pytest.raises(BadInput, match=r"tatoeba\.deu-eng\.deu"):
        main([*arguments(data, encoder, tmp_path / "out"), "--tasks", "xnli", "tatoeba"])
    assert not (tmp_path / "out/models").exists()


def test_pytorch_for_gpus_on_a_machine_without_one_runs_on_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pip installs on Linux names an accelerator that is not there."""
    built_for = torch.device("cuda")
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available=False: None if check_available else built_for
    )
    assert device() == torch.device("cpu")


def test_damaged_predictions_and_records_are_refused_with_the_file(
    xtreme_folder: Path, encoder: str, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    given = [*arguments(xtreme_folder, encoder, output), "--tasks", "pawsx", "--languages", "de"]
    main(given)
    predicted = output / "predictions/pawsx/test-de.tsv"
    predicted.write_text("0\n", "utf-8")
    with pytest.raises(BadInput, match=f"{predicted}: cannot be scored: 1 predictions for 8 examples.* Remove it to"):
        main(given)
    predicted.unlink()
    main([*given, "--tasks", "panx", "--output_dir", str(tmp_path / "tags")])
    predicted = tmp_path / "tags/predictions/panx/test-de.tsv"
    first, _, others = predicted.read_text("utf-8").partition("\n\n")
    predicted.write_text(f"{first}\n\n{others.partition(chr(10))[2]}", "utf-8")
    with pytest.raises(BadInput, match=rf"{predicted}:7: has 5 tags in sentence 2; .* its 6 words. Remove it to"):
        main([*given, "--tasks", "panx", "--output_dir", str(tmp_path / "tags")])
    [record] = output.glob("models/*/*/candidate.json")
    record.write_text("{", "utf-8")
    with pytest.raises(BadInput, match=f"{record}: cannot be read .*; allowed is the record .* Remove {record.parent}"):
        main(given)
