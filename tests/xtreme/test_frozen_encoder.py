"""Retrieval with a frozen encoder: the layer of XTREME's script by default, and sweeps that are kept."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf import export_encoder
from hictl_hf.embedding.encoder import embed_sentences
from hictl_hf.embedding.pooling import Pooling
from hictl_hf.embedding.sentence_transformers_files import write_sentence_transformers_files
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
    args = XtremeArguments(model_name_or_path="x", output_dir=str(folder), layer=layer, sweep_layers=sweep)
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


def test_a_sweep_scores_dev_by_the_metric_of_the_task(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both pairs are mined and one is right: F1 is 66.7, precision 50 and recall 100."""
    dev = Bitext(["a", "b"], ["x", "y"], ["0", "1"], ["0", "1"], frozenset({("0", "0")}))
    found = encoder(tmp_path, tokenizer, layers=1, sweep=True)

    def embed(bitext: Bitext, poolings: list[Pooling]) -> dict[Pooling, tuple[Any, ...]]:
        assert bitext is dev
        return {pooling: (bitext, np.eye(2), np.eye(2)) for pooling in poolings}

    monkeypatch.setattr(found, "embed", embed)
    sweep = found.sweep(TaskData(TABLE["bucc2018"], dev={"de": dev}, test={"de": BITEXT}))
    assert sweep.split == "dev" and sweep.languages["de"]["mean"] == pytest.approx([200 / 3, 200 / 3])


def test_predictions_and_sweep_are_made_from_test_and_dev(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    [one] = encoder(tmp_path, tokenizer).derived(TaskData(TABLE["tatoeba"], test={"de": BITEXT}))
    [other] = encoder(tmp_path, tokenizer).derived(
        TaskData(TABLE["tatoeba"], test={"de": BITEXT}, dev={"de": Bitext(["b"], ["x"], ["0"], ["0"], None)})
    )
    paths = (tmp_path / "predictions/tatoeba/test-de.tsv", tmp_path / "sweeps/tatoeba.json")
    assert one.name == other.name == "tatoeba de" and one.paths == other.paths == paths and one.hash != other.hash


def test_the_prompt_and_length_of_the_encoder_are_used_and_its_pooling_is_named(
    tmp_path: Path,
    tokenizer: PreTrainedTokenizerBase,
    model_for_text: Callable[..., PreTrainedModel],
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = {"embedding_prompt": "a dog ", "embedding_max_length": 7, "embedding_lower_case": True}
    model = model_for_text(initializer_range=0.3, embedding_pooling="cls", **settings)
    export_encoder(model, tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    write_sentence_transformers_files(tmp_path / "model", model.config)
    args = XtremeArguments(model_name_or_path=str(tmp_path / "model"), output_dir=str(tmp_path / "run"))
    found = FrozenEncoder(args, tokenizer, layers=2)
    found.check(TaskData(TABLE["tatoeba"], test={"de": BITEXT}))
    assert found.signature() == {"layer": "1", "pooling": "mean", "prompt": "'a dog '"}
    bitext = Bitext(["Die Katze sieht das Haus"], ["The cat sees the house"], ["0"], ["0"], None)
    pooling = Pooling("mean", 1)
    with caplog.at_level(logging.INFO):
        _, queries, candidates = found.embed(bitext, [pooling])[pooling]
    assert "says that it is read at cls of layer 2; XTREME's protocol, or the arguments, say mean of 1" in caplog.text
    texts = ["a dog die katze sieht das haus", "a dog the cat sees the house"]
    expected = embed_sentences(model, tokenizer, texts, pooling, prompt="", normalize=False, max_length=7)
    np.testing.assert_allclose([queries[0], candidates[0]], expected, rtol=1e-4, atol=1e-5)
