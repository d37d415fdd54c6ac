"""The floor of the sentence loss is as worked out by hand, and its figure is drawn."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_plots import is_picture

from studies import lambda_floor

pytest.importorskip("matplotlib")


def test_the_floor_of_the_sentence_loss_is_as_worked_out_by_hand() -> None:
    # Eight pairs leave 14 negatives at cosine -1: log(1 + 14 e^-2) = log(1 + 1.8947) = 1.0629.
    assert lambda_floor.sentence_loss_floor(8, 1.0) == pytest.approx(1.0629, abs=1e-4)
    assert lambda_floor.sentence_loss_floor(1, 1.0) == 0.0
    assert 0 < lambda_floor.sentence_loss_floor(1024, 0.05) < 1e-12


def test_the_floor_is_the_loss_of_perfect_cosines() -> None:
    pairs, temperature = 32, 0.7
    scores = np.array([1.0] + [-1.0] * (2 * pairs - 2)) / temperature
    loss = -math.log(math.exp(scores[0]) / np.exp(scores).sum())
    assert lambda_floor.sentence_loss_floor(pairs, temperature) == pytest.approx(loss)


def test_lambda_at_the_floor_is_as_worked_out_by_hand() -> None:
    # p_avg = 1 / (1 + 14 e^-2) = 0.3455, and 0.5^(0.9 * 0.3455) = 0.806.
    assert lambda_floor.lambda_at_floor(8, 1.0) == pytest.approx(0.806, abs=1e-3)
    assert lambda_floor.lambda_at_floor(1, 1.0) == pytest.approx(0.5**0.9)
    assert lambda_floor.lambda_at_floor(8, 1.0, zeta=0.0) == 1.0


def test_the_figure_of_the_documentation_is_drawn_from_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "studies.lambda_floor"]
    subprocess.run([*command, tmp_path / "lambda.png"], check=True)
    assert is_picture(tmp_path / "lambda.png")
    usage = subprocess.run(command, capture_output=True, text=True, check=False)
    assert usage.returncode == 1 and "usage" in usage.stderr
