"""The table of XTREME's tasks is complete: each row can be read, trained or searched, predicted and scored."""

import pytest

from hictl_hf.xtreme.tasks import TASKS, XtremeTask


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_row_has_what_a_run_needs(task: XtremeTask) -> None:
    assert task.languages and task.metrics and task.from_hub and "test" in task.files
    if task.format.features is None:
        assert task.format.retrieve is not None and task.base is task.large is None
    else:
        assert task.source.base and task.source.large and "train" in task.source.files
        assert "en" in task.languages
    for layouts in task.files.values():
        for name in (name for layout in layouts for name in layout):
            assert not name.format(language="xx", code="xxx").startswith("/")


def test_languages_are_counted_as_xtreme_does() -> None:
    counts = {task.name: len(task.languages) for task in TASKS}
    assert counts == {
        "xnli": 15, "pawsx": 7, "udpos": 33, "panx": 40, "xquad": 11, "mlqa": 7, "tydiqa": 9, "bucc2018": 4,
        "tatoeba": 36,
    }  # fmt: skip
