"""The arguments that `hictl explain` and `hictl page` share, loaded into an `Explainer`."""

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf.embedding.arguments import ExplainerArguments
from hictl_hf.errors import BadInput


def test_texts_and_sentences_are_read_from_files(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    for part in (model_for_text(), tokenizer):
        part.save_pretrained(tmp_path / "model")
    (tmp_path / "de.txt").write_text("das Haus\n\ndie Katze\n", "utf-8")
    source = f"de:{tmp_path}/de.txt"
    explainer = ExplainerArguments(f"{tmp_path}/model", f"{tmp_path}/de.txt", [source]).load()
    assert dict(zip(explainer.lines, explainer.texts)) == {1: "das Haus", 3: "die Katze"}
    assert list(explainer.groups) == ["de"]
    explainer = ExplainerArguments(f"{tmp_path}/model").load()
    assert explainer.vectors is None and "Latin" in explainer.groups
    with pytest.raises(BadInput, match="nowhere.txt"):
        ExplainerArguments(f"{tmp_path}/model", language_texts=["nowhere.txt"]).load()
    with pytest.raises(BadInput, match="de.jsonl: is a table by its name; allowed are files of one sentence per line"):
        ExplainerArguments(f"{tmp_path}/model", "de.jsonl").load()
