"""Columns of large corpora are read in batches: row by row takes 100 times as long."""

from typing import Any

import numpy as np
import pytest
from datasets import Dataset

from hictl_hf.data.cleaning import CorpusReport
from hictl_hf.data.corpus import column, sample_rows
from hictl_hf.data.held_out import groups_by_text
from hictl_hf.data.tokenization import lengths_of
from hictl_hf.pretraining.corpora import without_texts

ROWS = {"x": ["a", "b", "c"], "y": ["d", None, "e"], "x_lang": ["en"] * 3, "y_lang": ["de", None, "de"]}


@pytest.fixture
def no_single_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to read one row, or to go through the rows."""
    read = Dataset.__getitem__

    def refused(self: Dataset, key: Any = None) -> Any:
        assert key is not None and not isinstance(key, int), "reads single rows"
        return read(self, key)

    monkeypatch.setattr(Dataset, "__getitem__", refused)
    monkeypatch.setattr(Dataset, "__iter__", refused)


@pytest.mark.usefixtures("no_single_rows")
def test_no_row_is_read_alone() -> None:
    rows = Dataset.from_dict({**ROWS, "length": [5, 3, 4]}).select([2, 1, 0])
    assert [*column(rows, "y")] == ["e", None, "d"]
    assert lengths_of(rows).tolist() == [4, 3, 5]
    report = CorpusReport()
    report.kept.update({"en-de": 2, "en": 1})
    assert len(sample_rows(rows, 2, report)) == 2 == report.kept.total()
    assert [*column(without_texts(rows, rows.select([0])), "x")] == ["b", "a"]


def test_groups_by_text_are_made_one_at_a_time() -> None:
    pair, x = np.array([1, 2, 0, 1, 2, 1]), np.array([7, 7, 7, -3, 5, 5])
    before = np.array([9, 9, 0, 1, 2, 2])
    groups = groups_by_text(pair, x, np.arange(6), before)
    assert iter(groups) is groups and [*groups] == [[5, 4], [0, 1], [3]]  # two languages before one, then by the hash
    assert [*groups_by_text(pair * 0, x, np.arange(6), before)] == []
