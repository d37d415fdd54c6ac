"""What a run on XTREME starts from, and what is refused before it trains."""

from pathlib import Path

import pytest
import torch
from transformers import XLMRobertaConfig

from hictl_hf.errors import BadInput
from hictl_hf.xtreme.arguments import XtremeArguments
from hictl_hf.xtreme.run import run_xtreme
from hictl_hf.xtreme.setup import load_config_and_tokenizer, read_data, size_of_settings


@pytest.mark.parametrize(("layers", "asked", "size"), [(12, None, "base"), (24, None, "large"), (24, "base", "base")])
def test_the_size_of_the_settings_follows_from_the_layers(layers: int, asked: str | None, size: str) -> None:
    config = XLMRobertaConfig(num_hidden_layers=layers)
    assert size_of_settings(XtremeArguments(model_name_or_path="x", size=asked), config) == size


def test_a_folder_without_an_encoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no encoder with a tokenizer that loads"):
        load_config_and_tokenizer(XtremeArguments(model_name_or_path=str(tmp_path)))


def test_several_gpus_of_one_process_are_refused_before_anything_is_read_where_a_model_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    given = {"model_name_or_path": str(tmp_path), "output_dir": str(tmp_path / "out")}
    with pytest.raises(BadInput, match="one process sees 2 GPUs .*; start one process for each"):
        run_xtreme(XtremeArguments(**given, tasks=["panx", "tatoeba"]))
    with pytest.raises(BadInput, match="no encoder with a tokenizer that loads"):
        run_xtreme(XtremeArguments(**given, tasks=["tatoeba"]))


def test_only_the_languages_asked_for_are_read(xtreme_folder: Path, tmp_path: Path) -> None:
    args = XtremeArguments(model_name_or_path="x", data=str(xtreme_folder), tasks=["panx", "tatoeba"], languages=["de"])
    panx, tatoeba = read_data(args.chosen_tasks, args)
    assert [*panx.test] == [*tatoeba.test] == ["de"] and [*panx.train] == ["en"]
    args.data = str(tmp_path)
    with pytest.raises(BadInput, match="has nothing to score. panx: no file panx/test-XX.tsv; tatoeba: no file"):
        read_data(args.chosen_tasks, args)
