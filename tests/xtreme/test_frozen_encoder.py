"""Retrieval with a frozen encoder: the layer of XTREME's script by default, and sweeps that are kept."""

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from hictl_hf.errors import BadInput
from hictl_hf.retrieval.bitext import Bitext
from hictl_hf.xtreme.arguments import XtremeArguments
from hictl_hf.xtreme.data import TaskData
from hictl_hf.xtreme.frozen_encoder import FrozenEncoder
from hictl_hf.xtreme.results import TaskResults
from hictl_hf.xtreme.tasks import TASKS

TABLE = {task.name: task for task in TASKS}
BITEXT = Bitext(["a"], ["x"], ["0"], ["0"], frozenset({("0", "0")}))


def encoder(
    folder: Path, tokenizer: PreTrainedTokenizerBase, layers: int = 2, layer: int | None = None, sweep: bool = False
) -> FrozenEncoder:
    args = XtremeArguments(encoder="x", output_dir=str(folder), layer=layer, sweep_layers=sweep)
    return FrozenEncoder(args, tokenizer, layers)


@pytest.mark.parametrize(("layers", "asked", "layer"), [(12, None, 8), (24, None, 14), (6, None, 4), (12, 0, 0)])
def test_the_layer_is_that_of_xtremes_script(
    layers: int, asked: int | None, layer: int, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    found = encoder(tmp_path, tokenizer, layers, asked)
    assert found.pooling.layer == layer and found.signature() == {"layer": str(layer), "pooling": "mean"}


def test_a_layer_that_the_encoder_lacks_and_dev_without_labels_are_refused(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    data = TaskData(TABLE["bucc2018"], test={"de": BITEXT})
    with pytest.raises(BadInput, match="layer is 3; the encoder has the layers 0 .embeddings. to 2"):
        encoder(tmp_path, tokenizer, layer=3).check(data)
    with pytest.raises(BadInput, match="bucc2018: its threshold is chosen on the split 'dev', .* missing in de"):
        encoder(tmp_path, tokenizer).check(data)
    encoder(tmp_path, tokenizer, layer=3).check(TaskData(TABLE["bucc2018"]))  # nothing is scored


def test_a_sweep_of_0_7_5_is_read_and_not_repeated(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    (tmp_path / "sweeps").mkdir()
    swept = {"split": "test", "languages": {"de": {"mean": [1.0, 2.0, 3.0], "first token": [4.0, None, 5.0]}}}
    (tmp_path / "sweeps/tatoeba.json").write_text(json.dumps(swept), "utf-8")
    results = TaskResults(title="Tatoeba", group="retrieval", metrics=["accuracy"])
    data = TaskData(TABLE["tatoeba"], test={"de": BITEXT}, references={"de": ["0"]})
    encoder(tmp_path, tokenizer, sweep=True).describe(data, results)
    assert results.layers == {"mean": [1.0, 2.0, 3.0], "cls": [4.0, None, 5.0]} and results.other_direction is None


def test_predictions_and_sweep_are_made_from_test_and_dev(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    [one] = encoder(tmp_path, tokenizer).derived(TaskData(TABLE["tatoeba"], test={"de": BITEXT}))
    [other] = encoder(tmp_path, tokenizer).derived(
        TaskData(TABLE["tatoeba"], test={"de": BITEXT}, dev={"de": Bitext(["b"], ["x"], ["0"], ["0"], None)})
    )
    paths = (tmp_path / "predictions/tatoeba/test-de.tsv", tmp_path / "sweeps/tatoeba.json")
    assert one.name == other.name == "tatoeba de" and one.paths == other.paths == paths and one.hash != other.hash
