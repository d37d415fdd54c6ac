"""Arguments of a run on XTREME: tasks in the paper's order, splits and sources, and values that are refused."""

import math
from pathlib import Path
from typing import Any

import pytest
from parsers import parse_xtreme_arguments

from hictl_hf.errors import BadInput
from hictl_hf.xtreme.arguments import NAMES, XtremeArguments
from hictl_hf.xtreme.data import DataSource, Splits


def test_tasks_come_in_the_papers_order() -> None:
    chosen = XtremeArguments(model_name_or_path="x", tasks=["tatoeba", "xnli"]).chosen_tasks
    assert [task.name for task in chosen] == ["xnli", "tatoeba"]
    assert [task.name for task in XtremeArguments(model_name_or_path="x").chosen_tasks] == list(NAMES) and len(
        NAMES
    ) == 9


def test_one_task_or_language_is_a_list_of_one() -> None:
    found = XtremeArguments(model_name_or_path="x", tasks="xnli", languages="de")  # type: ignore[arg-type]
    assert (found.tasks, found.languages) == (["xnli"], ["de"])


def test_languages_are_compared_by_what_their_codes_mean() -> None:
    given = ["DE", "zh_Hans", "zh-CN", "iw", "swh"]
    assert XtremeArguments(model_name_or_path="x", languages=given).languages == ["de", "zh", "he", "sw"]
    with pytest.raises(BadInput, match="no task has the language zh-TW; allowed are af"):
        XtremeArguments(model_name_or_path="x", languages=["zh-TW"])


def test_splits_and_source_are_those_of_the_arguments(tmp_path: Path) -> None:
    given = XtremeArguments(model_name_or_path="x", data=str(tmp_path), compat=True, score_split="dev[80%:]")
    assert given.source == DataSource(tmp_path, True) and given.splits == Splits(score="dev[80%:]")
    assert XtremeArguments(model_name_or_path="x").source == DataSource(None, False) and not given.splits.official


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pooling": "first token"}, "pooling is 'first token'; allowed are mean, mean without special tokens, cls"),
        ({"seed": []}, r"seed is \[\]; allowed are one or more numbers"),
        ({"num_train_epochs": math.nan}, "num_train_epochs is nan; allowed are numbers above 0"),
        ({"num_train_epochs": math.inf}, "num_train_epochs is inf; allowed are numbers above 0"),
        ({"learning_rate": [0.0]}, r"learning_rate is \[0.0\]; allowed are numbers above 0"),
        ({"model_name_or_path": None}, "there is no encoder"),
        ({"labels": "nowhere"}, "--labels nowhere: no such folder; give one that exists"),
        ({"labels": ".", "score_split": "dev[:9]"}, r"is 'dev\[:9\]', and --labels . has the labels of test; leave"),
    ],
)
def test_wrong_values_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        XtremeArguments(**{"model_name_or_path": "x", **changes})


def test_a_seed_or_setting_that_is_given_twice_is_trained_once() -> None:
    found = XtremeArguments(model_name_or_path="x", seed=[2, 1, 2], learning_rate=[1e-5, 1e-5])
    assert (found.seed, found.learning_rate, found.per_device_train_batch_size) == ([2, 1], [1e-5], [])


@pytest.mark.parametrize("launcher", ["no", "bf16"])
def test_the_precision_of_the_launcher_is_that_of_the_run(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """HF's Trainer takes it, so it belongs to the settings of the run."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launcher)
    assert XtremeArguments(model_name_or_path="x").bf16 == (launcher == "bf16")
    assert XtremeArguments(model_name_or_path="x", bf16=True).bf16


def test_fp16_of_the_launcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    assert XtremeArguments(model_name_or_path="x", bf16=True).bf16  # the flag wins
    with pytest.raises(BadInput, match="mixed_precision of accelerate is fp16; allowed are no and bf16 on XTREME"):
        XtremeArguments(model_name_or_path="x")


# --- recipes ----------------------------------------------------------------------------------------------------------

RECIPES = Path(__file__).parents[2] / "recipes/xtreme"


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.json")), ids=lambda path: path.stem)
@pytest.mark.usefixtures("models_may_be_missing")
def test_the_recipes_search_the_papers_grids(path: Path) -> None:
    """Appendix B: six learning rates and two batch sizes for base, three and two for large."""
    args = parse_xtreme_arguments([str(path)])
    base = ([5e-6, 1e-5, 1.5e-5, 2e-5, 2.5e-5, 3e-5], [16, 32])
    large = ([3e-6, 5e-6, 1e-5], [32, 64])
    assert (args.learning_rate, args.per_device_train_batch_size) == (base if args.size == "base" else large)
    assert args.output_dir == f"runs/xtreme-{path.stem}"
    one = ["tydiqa"]
    assert args.tasks == (one if path.stem.endswith("tydiqa") else [name for name in NAMES if name not in one])
    assert path.stem.endswith("tydiqa") == (args.select_split != "dev"), "TyDiQA's dev set is XTREME's test set"
