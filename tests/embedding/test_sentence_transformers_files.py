"""A folder of ours as sentence-transformers reads it: the vectors of `embed_sentences`, nothing that frightens."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, XLMRobertaConfig

from hictl_hf import HictlForSequenceClassification
from hictl_hf.embedding.encoder import embed_sentences, load_encoder
from hictl_hf.embedding.pooling import Pooling
from hictl_hf.embedding.sentence_transformers_files import save_sentence_encoder, write_sentence_transformers_files
from hictl_hf.errors import BadInput
from hictl_hf.models.encoder_export import export_encoder

MakeModel = Callable[..., PreTrainedModel]
LAST = 2
EVERY_POOLING = [
    Pooling("cls", LAST), Pooling("mean", LAST), Pooling("cls", 1), Pooling("mean", 1),
    Pooling("mean", 0), Pooling("projection", LAST),
]  # fmt: skip

PROJECTIONS: list[dict[str, Any]] = [
    {}, {"projection_size": 20}, {"projection_bias": True, "projection_activation": "tanh"},
]  # fmt: skip


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, pooling: Pooling) -> None:
    """What a run leaves: `checkpoint/` and `encoder/`."""
    model.config.embedding_pooling, model.config.embedding_layer = pooling.mode, pooling.layer
    model.save_pretrained(folder / "checkpoint")
    tokenizer.save_pretrained(folder / "checkpoint")
    write_sentence_transformers_files(folder / "checkpoint", model.config, model.projection)
    save_sentence_encoder(model, tokenizer, folder / "encoder")


def texts_of(sentences: dict[str, list[str]]) -> list[str]:
    """Of different lengths, and one that is cut: it has more than the 62 tokens of the toy model."""
    return [text for texts in sentences.values() for text in texts[:6]] + [" ".join(sentences["en"][:20])]


@pytest.mark.parametrize("pooling", EVERY_POOLING, ids=str)
@pytest.mark.parametrize("projection", PROJECTIONS, ids=str)
@pytest.mark.filterwarnings("error")
def test_sentence_transformers_reads_the_vectors_of_embed_sentences(
    pooling: Pooling,
    projection: dict[str, Any],
    model_for_text: MakeModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: dict[str, list[str]],
    tmp_path: Path,
    transformers_warnings: pytest.LogCaptureFixture,
) -> None:
    library = pytest.importorskip("sentence_transformers")
    model = model_for_text(seed=3, initializer_range=0.5, **projection)  # no two layers are alike
    if projection.get("projection_bias"):
        torch.nn.init.normal_(model.projection.bias)
    texts = texts_of(sentences)
    save(model, tokenizer, tmp_path, pooling)
    expected = embed_sentences(model, tokenizer, texts, pooling)
    others = embed_sentences(model, tokenizer, texts, Pooling("cls", 0))
    assert expected.shape != others.shape or abs(expected - others).max() > 0.1
    transformers_warnings.clear()
    for name in ("checkpoint", "encoder"):
        reader = library.SentenceTransformer(str(tmp_path / name), device="cpu", trust_remote_code=name != "encoder")
        np.testing.assert_allclose(reader.encode(texts), expected, rtol=0, atol=1e-5)
        assert reader.get_embedding_dimension() == expected.shape[1] and reader.similarity_fn_name == "cosine"
    assert [record.getMessage() for record in transformers_warnings.records] == []


def test_the_plain_encoder_keeps_all_layers_and_says_where_it_is_read(
    model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    save(model_for_text(), tokenizer, tmp_path, Pooling("mean", 1))
    config = json.loads((tmp_path / "encoder" / "config.json").read_text("utf-8"))
    assert (config["embedding_pooling"], config["embedding_layer"], config["num_hidden_layers"]) == ("mean", 1, LAST)
    assert config["model_type"] == "xlm-roberta"


def test_others_can_read_the_weights_of_an_encoder(
    model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    """safetensors 0.8 writes files for their owner alone."""
    model = model_for_text(projection_size=20, embedding_pooling="projection")
    save_sentence_encoder(model, tokenizer, tmp_path / "encoder")
    weights = [*tmp_path.rglob("*.safetensors")]
    assert len(weights) == 2
    assert {file.stat().st_mode for file in weights} == {(tmp_path / "encoder/config.json").stat().st_mode}


def test_a_pooling_that_the_format_does_not_know_is_refused(tmp_path: Path) -> None:
    config = XLMRobertaConfig(embedding_pooling="mean without special tokens", embedding_layer=1)
    with pytest.raises(BadInput, match="is 'mean without special tokens'; allowed in this format are cls, mean"):
        write_sentence_transformers_files(tmp_path, config)


def test_the_projection_is_asked_for_where_it_is_read(model_for_text: MakeModel, tmp_path: Path) -> None:
    model = model_for_text(embedding_pooling="projection")
    with pytest.raises(ValueError, match="give its linear layer"):
        write_sentence_transformers_files(tmp_path, model.config)


def test_the_trainer_of_sentence_transformers_trains_what_is_read(
    model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]], tmp_path: Path
) -> None:
    library = pytest.importorskip("sentence_transformers")
    from datasets import Dataset
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    save(model_for_text(seed=4), tokenizer, tmp_path, Pooling("mean", 1))
    reader = library.SentenceTransformer(str(tmp_path / "checkpoint"), device="cpu", trust_remote_code=True)
    pairs = Dataset.from_dict({"anchor": sentences["en"][:32], "positive": sentences["de"][:32]})
    before = {name: weight.detach().clone() for name, weight in reader.named_parameters()}
    arguments = library.SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "trained"), max_steps=8, per_device_train_batch_size=16, learning_rate=5e-3,
        use_cpu=True, logging_steps=1, save_strategy="no", disable_tqdm=True, seed=1,
    )  # fmt: skip
    loss = MultipleNegativesRankingLoss(reader)
    trainer = library.SentenceTransformerTrainer(reader, arguments, train_dataset=pairs, loss=loss)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.8 * losses[0]
    changed = {name for name, weight in reader.named_parameters() if not torch.equal(weight, before[name])}
    assert any("layer.0." in name for name in changed) and not any("layer.1." in name for name in changed)
    reader.save_pretrained(str(tmp_path / "saved"))
    again: Any = library.SentenceTransformer(str(tmp_path / "saved"), device="cpu", trust_remote_code=True)
    texts = texts_of(sentences)
    np.testing.assert_allclose(again.encode(texts), reader.encode(texts), rtol=0, atol=1e-6)


@pytest.mark.parametrize("part", ["checkpoint", "encoder"])
def test_what_sentence_transformers_saves_loads_into_its_model(
    part: str,
    model_for_text: MakeModel,
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
    transformers_warnings: pytest.LogCaptureFixture,
) -> None:
    """Its trainer does so to resume, and to load the best checkpoint."""
    library = pytest.importorskip("sentence_transformers")
    save(model_for_text(sentence_pooling="mean"), tokenizer, tmp_path, Pooling("mean", LAST))
    reader = library.SentenceTransformer(str(tmp_path / part), device="cpu", trust_remote_code=True)
    reader.save_pretrained(str(tmp_path / "saved"))
    again: Any = library.SentenceTransformer(str(tmp_path / "saved"), device="cpu", trust_remote_code=True)
    reader.load_state_dict(again.state_dict())
    assert [record.getMessage() for record in transformers_warnings.records] == []


@pytest.mark.parametrize("projection_size", [None, 20])
@pytest.mark.parametrize("part", ["checkpoint", "encoder"])
def test_a_projection_that_sentence_transformers_trained_is_read_as_it_left_it(
    part: str,
    projection_size: int | None,
    model_for_text: MakeModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: dict[str, list[str]],
    tmp_path: Path,
) -> None:
    library = pytest.importorskip("sentence_transformers")
    model = model_for_text(seed=4, projection_size=projection_size)
    save(model, tokenizer, tmp_path, Pooling("projection", LAST))
    reader = library.SentenceTransformer(str(tmp_path / part), device="cpu", trust_remote_code=True)
    (dense,) = [module for module in reader if type(module).__name__ == "Dense"]
    torch.nn.init.normal_(dense.linear.weight, generator=torch.Generator().manual_seed(5))
    reader.save_pretrained(str(tmp_path / "trained"))
    texts = texts_of(sentences)
    found = embed_sentences(*load_encoder(tmp_path / "trained"), texts)
    np.testing.assert_allclose(found, reader.encode(texts), rtol=0, atol=1e-5)
    before = embed_sentences(model, tokenizer, texts, Pooling("projection", LAST))
    assert found.shape == before.shape and np.abs(found - before).max() > 0.1


def test_the_encoder_of_a_fine_tuned_model_is_saved_without_its_head(
    model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]], tmp_path: Path
) -> None:
    model = model_for_text(HictlForSequenceClassification, num_labels=3, sentence_pooling="mean").eval()
    save_sentence_encoder(model, tokenizer, tmp_path)
    vectors = [embed_sentences(*pair, sentences["en"][:6]) for pair in ((model, tokenizer), load_encoder(tmp_path))]
    np.testing.assert_array_equal(*vectors)
    pooling = json.loads((tmp_path / "1_Pooling/config.json").read_text("utf-8"))
    assert pooling["pooling_mode_mean_tokens"] and not pooling["pooling_mode_cls_token"]


def test_a_fine_tuned_model_of_an_encoder_that_was_read_at_its_projection_is_saved_with_the_first_token(
    model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]], tmp_path: Path
) -> None:
    model = model_for_text(HictlForSequenceClassification, num_labels=3, embedding_pooling="projection").eval()
    save_sentence_encoder(model, tokenizer, tmp_path / "both")
    export_encoder(model, tmp_path / "plain")
    tokenizer.save_pretrained(tmp_path / "plain")
    expected = embed_sentences(model, tokenizer, sentences["en"][:6], Pooling("cls", LAST))
    for folder in ("both", "plain"):
        found = embed_sentences(*load_encoder(tmp_path / folder), sentences["en"][:6])
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert model.config.embedding_pooling == "projection"


def test_a_sparse_encoder_reads_the_language_model_head_of_a_checkpoint(
    model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]], tmp_path: Path
) -> None:
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    model = model_for_text(seed=5, initializer_range=0.5)
    save(model, tokenizer, tmp_path, Pooling("mean", 1))
    head = Transformer(str(tmp_path / "checkpoint"), transformer_task="fill-mask")
    reader = library.SparseEncoder(modules=[head, SpladePooling("max")], device="cpu")
    batch = tokenizer(sentences["en"][:6], padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**batch).logits
    expected = (logits.relu().log1p() * batch["attention_mask"][..., None]).amax(1)
    found = reader.encode(sentences["en"][:6], convert_to_sparse_tensor=False)
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-5)
