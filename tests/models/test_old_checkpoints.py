"""Checkpoints that version 0.7.5 wrote, when all modules lay in one folder, load as they did.

`checkpoints_0.7.5.tar.xz` has a pre-training model with its code, its plain encoder, a translation model, and what they
gave for these ids.
"""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForSeq2SeqLM, XLMRobertaModel

from hictl_hf import HictlForConditionalGeneration, HictlForPreTraining, HictlModel

ARCHIVE = Path(__file__).with_name("checkpoints_0.7.5.tar.xz")
IDS = torch.tensor([[0, 5, 6, 7, 2], [0, 8, 9, 2, 1]])
SOURCE = {"input_ids": IDS, "attention_mask": (IDS != 1).long()}
WITHOUT_THE_PACKAGE = """
import sys, torch
sys.modules["hictl_hf"] = None  # as if it were not installed
from transformers import AutoModelForPreTraining
model = AutoModelForPreTraining.from_pretrained(sys.argv[1], trust_remote_code=True)
ids = torch.tensor([[0, 5, 6, 7, 2], [0, 8, 9, 2, 1]])
print(model(ids, (ids != 1).long()).logits.flatten().tolist())
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # since 3.11.4
    return folder


@pytest.fixture(scope="module")
def expected(saved: Path) -> dict[str, Any]:
    """What 0.7.5 gave."""
    return {name: torch.tensor(value) for name, value in json.loads((saved / "expected.json").read_text()).items()}


def test_a_pre_training_model_gives_what_it_gave(saved: Path, expected: dict[str, Any]) -> None:
    model = HictlForPreTraining.from_pretrained(saved / "pretraining").eval()
    torch.testing.assert_close(model(**SOURCE).logits, expected["logits"])
    assert model.sentence_probability.mean() == pytest.approx(torch.exp(torch.tensor(-0.7)).item())


def test_an_encoder_gives_what_it_gave(saved: Path, expected: dict[str, Any]) -> None:
    for folder, kind in (("encoder", XLMRobertaModel), ("pretraining", HictlModel)):
        model = AutoModel.from_pretrained(saved / folder).eval()
        assert type(model) is kind
        torch.testing.assert_close(model(**SOURCE)[0][:, 0], expected["first"])


def test_a_translation_model_generates_what_it_generated(saved: Path, expected: dict[str, Any]) -> None:
    model = AutoModelForSeq2SeqLM.from_pretrained(saved / "translator").eval()
    assert type(model) is HictlForConditionalGeneration
    options: dict[str, Any] = {"target_language": ["de", "fr"], "num_beams": 2, "max_new_tokens": 6}
    assert torch.equal(model.generate(**SOURCE, **options), expected["generated"])


def test_its_own_code_still_runs_without_the_package(saved: Path, expected: dict[str, Any], tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE, str(saved / "pretraining")]
    environment = os.environ | {"HF_HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    logits = torch.tensor(json.loads(done.stdout.splitlines()[-1]))
    torch.testing.assert_close(logits, expected["logits"].flatten())


def test_saved_again_it_takes_the_code_of_today_along(saved: Path, tmp_path: Path) -> None:
    HictlForPreTraining.from_pretrained(saved / "pretraining").save_pretrained(tmp_path)
    files = {path.name for path in tmp_path.glob("*.py")}
    assert "linear_cross_entropy.py" in files and "vocabulary.py" not in files
