"""The floor of the sentence loss is as worked out by hand, and its figure is drawn."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pictures import is_picture

from hictl_hf.models.losses import sentence_contrast
from hictl_hf.models.negatives import in_batch_negatives
from studies import lambda_floor


def test_the_floor_of_the_sentence_loss_is_as_worked_out_by_hand() -> None:
    # Eight pairs leave 14 negatives at cosine -1/7: log(1 + 14 e^(-8/7)) = log(1 + 4.4647) = 1.6983.
    assert lambda_floor.sentence_loss_floor(8, 1.0) == pytest.approx(1.6983, abs=1e-4)
    assert lambda_floor.sentence_loss_floor(1, 1.0) == 0.0
    assert lambda_floor.sentence_loss_floor(1024, 1.0) == pytest.approx(6.62, abs=0.005)
    assert math.exp(-lambda_floor.sentence_loss_floor(1024, 1.0)) < 0.0014
    assert 0 < lambda_floor.sentence_loss_floor(1024, 0.05) < 1e-5


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_a_simplex_of_pairs_has_the_floor_and_no_other_vectors_a_lower_loss(temperature: float) -> None:
    """The corners of a simplex are unit vectors minus their mean; gradient descent from random vectors ends there."""
    pairs = 5
    corners = torch.eye(pairs, dtype=torch.float64) - 1 / pairs
    negatives = in_batch_negatives(torch.arange(2 * pairs))
    floor = lambda_floor.sentence_loss_floor(pairs, temperature)
    assert sentence_contrast(corners.repeat(2, 1), negatives, temperature)[0].item() == pytest.approx(floor, abs=1e-9)
    random = torch.Generator().manual_seed(0)
    vectors = torch.randn(2 * pairs, 8, dtype=torch.float64, generator=random).requires_grad_()
    optimiser = torch.optim.Adam([vectors], lr=0.05)
    for _ in range(400):
        optimiser.zero_grad()
        loss, _ = sentence_contrast(vectors, negatives, temperature)
        assert loss.item() > floor - 1e-9
        loss.backward()
        optimiser.step()
    assert loss.item() == pytest.approx(floor, abs=1e-3)


def test_lambda_at_the_floor_is_as_worked_out_by_hand() -> None:
    # p_avg = 1 / (1 + 14 e^(-8/7)) = 0.1830, and 0.5^(0.9 * 0.1830) = 0.892.
    assert lambda_floor.lambda_at_floor(8, 1.0) == pytest.approx(0.892, abs=1e-3)
    assert lambda_floor.lambda_at_floor(1, 1.0) == pytest.approx(0.5**0.9)
    assert lambda_floor.lambda_at_floor(8, 1.0, zeta=0.0) == 1.0


def test_the_figure_of_the_documentation_is_drawn_from_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "studies.lambda_floor"]
    subprocess.run([*command, tmp_path / "lambda.png"], check=True)
    assert is_picture(tmp_path / "lambda.png")
    usage = subprocess.run(command, capture_output=True, text=True, check=False)
    assert usage.returncode == 1 and "usage" in usage.stderr
