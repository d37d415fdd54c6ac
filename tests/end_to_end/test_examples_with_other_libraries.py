"""The examples with peft, accelerate's device_map, torch.compile and quantised weights: each runs, and its vectors are
those of the plain encoder, as nearly as it says."""

import json
from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from shutil import which
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf import HictlForPreTraining, export_encoder
from hictl_hf.data.collator import PretrainingCollator
from hictl_hf.embedding.encoder import embed_sentences, load_encoder
from hictl_hf.embedding.sentence_transformers_files import write_sentence_transformers_files

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDERS = ("checkpoint", "encoder")


@pytest.fixture
def demo(tmp_path: Path, model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase) -> Path:
    """A folder with the `checkpoint/` and the `encoder/` of a run."""
    model = model_for_text()
    model.save_pretrained(tmp_path / "checkpoint")
    export_encoder(model, tmp_path / "encoder")
    for folder in FOLDERS:
        tokenizer.save_pretrained(tmp_path / folder)
    return tmp_path


def example(name: str) -> Callable[..., Any]:
    return run_path(str(EXAMPLES / f"{name}.py"))["main"]


def test_lora_trains_a_small_adapter_that_merged_is_a_plain_encoder(
    demo: Path, sentences: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    peft = pytest.importorskip("peft")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", demo / "cache")
    lines = [f'{{"en": "{x}", "de": "{y}"}}\n' for x, y in zip(sentences["en"], sentences["de"])]
    (demo / "pairs.jsonl").write_text("".join(lines), "utf-8")
    found = example("adapt_with_lora")(str(demo / "checkpoint"), str(demo / "pairs.jsonl"), str(demo / "lora"), 40)
    assert found["percent that learns"] < 15 and found["last loss"] < found["first loss"]

    merged, tokenizer = load_encoder(demo / "lora/encoder")
    before = HictlForPreTraining.from_pretrained(demo / "checkpoint")
    texts = sentences["en"][:8]
    start = embed_sentences(before, tokenizer, texts)
    adapted = peft.PeftModel.from_pretrained(before, demo / "lora/adapter")
    vectors = embed_sentences(adapted.base_model.model, tokenizer, texts)
    np.testing.assert_allclose(embed_sentences(merged, tokenizer, texts), vectors, atol=1e-5)
    assert np.abs(vectors - start).max() > 1e-3
    words = AutoModel.from_pretrained(demo / "encoder").get_input_embeddings().weight
    assert torch.equal(merged.get_input_embeddings().weight, words), "they stand still"


def test_lora_reads_sentences_as_the_checkpoint_says_in_training_and_in_every_library(
    demo: Path, sentences: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each epoch has other masks."""
    pytest.importorskip("peft")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", demo / "cache")
    model = HictlForPreTraining.from_pretrained(demo / "checkpoint")
    model.config.update({"embedding_pooling": "cls", "embedding_layer": 1, "embedding_prompt": "the house "})
    model.save_pretrained(demo / "checkpoint")
    pairs, collate, seen = zip(sentences["en"], sentences["de"]), PretrainingCollator.__call__, []

    def collate_and_note(collator: PretrainingCollator, examples: list[dict[str, Any]]) -> Any:
        seen.append((collator.tokenizer.decode(collator.prompt), "seed" in examples[0]))
        return collate(collator, examples)

    monkeypatch.setattr(PretrainingCollator, "__call__", collate_and_note)
    (demo / "pairs.jsonl").write_text("".join(f'{{"en": "{x}", "de": "{y}"}}\n' for x, y in pairs), "utf-8")
    example("adapt_with_lora")(str(demo / "checkpoint"), str(demo / "pairs.jsonl"), str(demo / "lora"), 2)
    assert set(seen) == {("the house", False)}
    vectors = embed_sentences(*load_encoder(demo / "lora/encoder"), sentences["en"][:8])
    others = sentence_transformers.SentenceTransformer(str(demo / "lora/encoder"), device="cpu")
    np.testing.assert_allclose(others.encode(sentences["en"][:8]), vectors, atol=1e-6)


@pytest.mark.parametrize("folder", FOLDERS)
def test_an_encoder_whose_layers_are_on_the_disk_gives_the_same_vectors(folder: str, demo: Path) -> None:
    places, difference = example("spread_over_devices")(str(demo / folder))
    assert places["embeddings"] == "cpu" and places["encoder"] == "disk" and difference == 0


@pytest.mark.slow
def test_a_compiled_encoder_gives_the_same_vectors(demo: Path) -> None:
    if which("c++") is None and which("g++") is None:
        pytest.skip("no C++ compiler, which inductor needs on a CPU")
    assert example("compile_encoder")(str(demo / "encoder")) < 1e-5


@pytest.mark.parametrize("folder", FOLDERS)
def test_fewer_bits_take_less_room_and_leave_vectors_near(folder: str, demo: Path) -> None:
    found = example("load_quantised")(str(demo / folder))
    sizes, cosines = {name: size for name, (size, _) in found.items()}, [cosine for _, cosine in found.values()]
    assert cosines[0] == pytest.approx(1, abs=1e-6) and min(cosines) > 0.99 and min(cosines[1:]) < 1
    assert sizes["bf16 layers"] < sizes["fp32"] and sizes["bf16, everything"] < 0.7 * sizes["fp32"]
    assert sizes["int8 layers"] < sizes["fp32"]


def test_fewer_bits_are_compared_at_the_pooling_of_a_folder_of_sentence_transformers(demo: Path) -> None:
    """BGE-M3 is such a folder: its `config.json` does not name the first token, which is read."""
    encoder = AutoModel.from_pretrained(demo / "encoder")
    encoder.config.update({"embedding_pooling": "cls", "embedding_layer": encoder.config.num_hidden_layers})
    write_sentence_transformers_files(demo / "encoder", encoder.config)
    values = json.loads((demo / "encoder/config.json").read_text())
    named = {name: value for name, value in values.items() if not name.startswith("embedding_")}
    (demo / "encoder/config.json").write_text(json.dumps(named))
    found = example("load_quantised")(str(demo / "encoder"))
    assert min(cosine for _, cosine in found.values()) > 0.99


def test_int8_of_torchao_is_saved_and_loaded(demo: Path) -> None:
    pytest.importorskip("torchao")
    found = example("load_quantised")(str(demo / "encoder"))
    assert found["int8 layers of torchao"] == found["the same, saved and loaded"]
    assert found["int8 layers of torchao"][0] < found["fp32"][0] and found["int8 layers of torchao"][1] > 0.999
