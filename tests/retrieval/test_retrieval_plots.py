"""The picture of mined pairs follows its data."""

from pathlib import Path

import numpy as np
import pytest
from test_plots import is_picture

from hictl_hf.retrieval.plots import plot_precision_and_recall

pytest.importorskip("matplotlib")


def test_precision_by_recall_follows_its_data(tmp_path: Path) -> None:
    recall, best = np.array([10.0, 50.0]), {"precision": 50.0, "recall": 50.0, "f1": 50.0}
    first = plot_precision_and_recall(recall, np.array([90.0, 50.0]), best, tmp_path / "a.png")
    other = plot_precision_and_recall(recall, np.array([80.0, 50.0]), best, tmp_path / "b.png")
    assert is_picture(first) and is_picture(other) and first.read_bytes() != other.read_bytes()
