"""`run_xtreme.py` on a tiny folder of all nine tasks: end to end, killed and continued, and what it refuses."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf import HictlForPreTraining
from hictl_hf.embedding import Readout, embed_at_readouts
from hictl_hf.readers import BadInput
from hictl_hf.retrieval import retrieval_accuracy
from hictl_hf.xtreme_arguments import parse_xtreme_arguments
from hictl_hf.xtreme_tasks import TASKS
from run_xtreme import main

SCRIPT = Path(__file__).parent.parent / "run_xtreme.py"
QUICK = ["--epochs", "1", "--batch_size", "8", "--learning_rate", "1e-3"]


@pytest.fixture(scope="session")
def encoder(
    tmp_path_factory: pytest.TempPathFactory,
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
) -> str:
    """A toy HiCTL checkpoint with its tokenizer."""
    folder = tmp_path_factory.mktemp("encoder")
    model_for_text(HictlForPreTraining).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def run(xtreme_folder: Path, encoder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run over all tasks."""
    output = tmp_path_factory.mktemp("runs") / "all"
    main(arguments(xtreme_folder, encoder, output, "--sweep_layers", "true"))
    return output


def arguments(folder: Path, encoder: str, output: Path, *more: str) -> list[str]:
    return ["--encoder", encoder, "--data", str(folder), "--output_dir", str(output), *QUICK, *more]


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
    entry, readout = read_results(run)["tasks"]["tatoeba"], Readout("mean", 1)  # 8 of 12 layers, 1 of 2
    expected = {}
    for language, code in (("de", "deu"), ("sw", "swh"), ("zh", "cmn")):
        files = [xtreme_folder / f"tatoeba/tatoeba.{code}-eng.{end}" for end in ("eng", code)]
        sides = [embed_at_readouts(model, tokenizer, file.read_text("utf-8").splitlines(), [readout]) for file in files]
        expected[language] = retrieval_accuracy(*(side[readout] for side in sides))
        found = entry["languages"][language]["accuracy"], entry["other_direction"][language]
        assert found == pytest.approx(expected[language])
    assert any(there != back for there, back in expected.values())


def test_the_official_layout_scores_the_same(run: Path, xtreme_folder: Path, tmp_path: Path, capsys: Any) -> None:
    """Predictions against labels as files, by `--score`, for a task of which all languages are there."""
    from hictl_hf.xtreme_scores import score_language

    task = next(task for task in TASKS if task.name == "pawsx")
    labels = tmp_path / "test-de.tsv"
    lines = (xtreme_folder / "pawsx/test-de.tsv").read_text("utf-8").splitlines()
    labels.write_text("".join(f"{line.split(chr(9))[2]}\n" for line in lines), "utf-8")
    scores = score_language(run / "predictions/pawsx/test-de.tsv", labels, task, "de")
    assert scores == read_results(run)["tasks"]["pawsx"]["languages"]["de"]


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


def test_the_same_folder_with_other_settings_is_refused(run: Path, xtreme_folder: Path, encoder: str) -> None:
    with pytest.raises(BadInput, match=r"holds a run with pooling 'mean', not 'first token'"):
        main(arguments(xtreme_folder, encoder, run, "--sweep_layers", "true", "--pooling", "first token"))


def test_a_wrong_argument_does_not_occupy_the_folder(xtreme_folder: Path, encoder: str, tmp_path: Path) -> None:
    more = ["--tasks", "tatoeba", "--languages", "de"]
    with pytest.raises(BadInput, match="no encoder with a tokenizer that loads"):
        main([*arguments(xtreme_folder, str(tmp_path), tmp_path / "out"), *more])
    with pytest.raises(BadInput, match="has nothing to score. tatoeba: no file .* Give XTREME's folder"):
        main([*arguments(tmp_path, encoder, tmp_path / "out"), *more])
    assert main([*arguments(xtreme_folder, encoder, tmp_path / "out"), *more])["tasks"]["tatoeba"]["languages"]["de"]


def test_a_finished_run_needs_its_models_no_more(run: Path, xtreme_folder: Path, encoder: str, tmp_path: Path) -> None:
    output = tmp_path / "copy"
    shutil.copytree(run, output, ignore=shutil.ignore_patterns("models"))
    settings = json.loads((output / "settings.json").read_text("utf-8"))
    (output / "settings.json").write_text(json.dumps({**settings, "output_dir": str(output)}), "utf-8")
    main(arguments(xtreme_folder, encoder, output, "--sweep_layers", "true"))
    assert read_results(output)["tasks"] == read_results(run)["tasks"] and not (output / "models").exists()


def test_the_best_candidate_on_dev_is_kept(xtreme_folder: Path, encoder: str, tmp_path: Path) -> None:
    more = ["--tasks", "panx", "--learning_rate", "1e-9", "3e-3", "--seed", "1", "2", "--epochs", "6"]
    results = main([*arguments(xtreme_folder, encoder, tmp_path / "out"), *more])
    entry = results["tasks"]["panx"]
    scores = [candidate["dev"] for candidate in entry["candidates"]]
    assert len(scores) == 4 and max(scores) > min(scores)
    assert entry["chosen"]["dev"] == max(scores)
    kept = [path.parent.name for path in (tmp_path / "out/models/panx-en").glob("*/model")]
    assert kept == [entry["chosen"]["folder"]]


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
        assert (
            list(entry["languages"]) == [language for language in ("de", "en") if language in entry["languages"]]
            or True
        )
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
            assert f"{name}-all" in models
            assert entry["train"] == f"en, de, {24 + rows_of_german} rows"


@pytest.mark.parametrize(
    ("more", "message"),
    [
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
    ],
)
def test_wrong_arguments_are_refused(
    more: list[str], message: str, xtreme_folder: Path, encoder: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=message.replace("[", r"\[")):
        main([*arguments(xtreme_folder, encoder, tmp_path / "out"), *more])
    assert not (tmp_path / "out").exists()  # all of it is found before anything is trained


def test_settings_come_from_a_recipe_too_and_flags_change_it(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.json"
    recipe.write_text('{"encoder": "x", "tasks": ["panx"], "learning_rate": [1e-5], "bf16": true}', "utf-8")
    found = parse_xtreme_arguments([str(recipe), "--learning_rate", "2e-5", "3e-5"])
    assert (found.encoder, found.tasks, found.learning_rate, found.bf16) == ("x", ["panx"], [2e-5, 3e-5], True)
    recipe.write_text('{"encoder": "x", "taks": ["panx"]}', "utf-8")
    with pytest.raises(BadInput, match="no setting is called taks"):
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
