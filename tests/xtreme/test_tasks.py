"""The table of XTREME's tasks is complete: each row can be read, trained or searched, predicted and scored."""

import pytest

from hictl_hf.xtreme.fine_tuning import FineTuningConfig
from hictl_hf.xtreme.tasks import TASKS, XtremeTask


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_row_has_what_a_run_needs(task: XtremeTask) -> None:
    assert task.languages and task.metrics and "test" in task.files
    assert task.from_hub and task.from_hub.__name__ == f"load_{task.name.removesuffix('2018')}"
    if task.format.features is None:
        assert task.format.retrieve is not None and task.base is task.large is None
    else:
        assert task.source.base and task.source.large and "train" in task.source.files
        assert "en" in task.languages
    for layouts in task.files.values():
        for name in (name for layout in layouts for name in layout):
            assert not name.format(language="xx", code="xxx").startswith("/")


def test_hyperparameters_are_those_of_xtremes_scripts() -> None:
    """Those in train_xnli.sh, train_pawsx.sh, train_udpos.sh, train_panx.sh and train_qa.sh: XLM-R base and large."""
    questions = FineTuningConfig(3e-5, 32, 3, 384, warmup=500, weight_decay=1e-4)
    of_base = {
        "xnli": FineTuningConfig(2e-5, 32, 5, 128, evaluate_every=100),
        "pawsx": FineTuningConfig(2e-5, 32, 5, 128, evaluate_every=200),
        "udpos": FineTuningConfig(2e-5, 32, 10, 128, evaluate_every=500),
        "panx": FineTuningConfig(2e-5, 32, 10, 128, evaluate_every=1000),
        "xquad": questions, "mlqa": questions, "tydiqa": questions,
    }  # fmt: skip
    assert {task.name: task.source.base for task in TASKS if task.source.base} == of_base
    of_large = of_base | {"xnli": FineTuningConfig(3e-5, 32, 5, 128, evaluate_every=100)}
    assert {task.name: task.source.large for task in TASKS if task.source.large} == of_large


def test_languages_are_counted_as_xtreme_does() -> None:
    counts = {task.name: len(task.languages) for task in TASKS}
    assert counts == {
        "xnli": 15, "pawsx": 7, "udpos": 33, "panx": 40, "xquad": 11, "mlqa": 7, "tydiqa": 9, "bucc2018": 4,
        "tatoeba": 36,
    }  # fmt: skip
