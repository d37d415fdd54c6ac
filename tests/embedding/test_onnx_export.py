"""An encoder in ONNX: the vectors of `embed_sentences` in an engine without PyTorch, and what is refused."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_families import SHAPES, TOKENIZERS, ids_of
from transformers import AutoConfig, AutoModel, AutoTokenizer, BertTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf import HictlForPreTraining, export_encoder
from hictl_hf.cli.export_onnx import main
from hictl_hf.embedding.encoder import embed_sentences, load_encoder
from hictl_hf.embedding.onnx_export import OPSET, SentenceEncoder, export_onnx, write_reading
from hictl_hf.embedding.pooling import Pooling
from hictl_hf.errors import BadInput

MakeModel = Callable[..., PreTrainedModel]
OTHERS = [
    Pooling("cls", 2),
    Pooling("projection", 2),
    Pooling("mean", 0),
    Pooling("mean without special tokens", 1),
]


def check(folder: Path, model: PreTrainedModel, pooling: Pooling, sentences: dict[str, list[str]]) -> None:
    """Batches of other sizes and lengths than the one of the export give the vectors of `embed_sentences`."""
    engine = pytest.importorskip("onnxruntime")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    session = engine.InferenceSession(str(folder / "model.onnx"))
    assert [each.name for each in session.get_inputs()] == [
        "input_ids",
        "attention_mask",
    ]
    texts = [text for language in sentences.values() for text in language[:4]]
    for batch in (texts, texts[:1], [texts[0], " ".join(sentences["en"][:20])]):
        tokens = tokenizer(batch, padding=True, truncation=True, return_tensors="np")
        vectors = session.run(["sentence_embedding"], dict(tokens))[0]
        expected = embed_sentences(model, tokenizer, batch, pooling)
        np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-4)


def test_the_command_exports_what_the_model_itself_is_read_at(
    model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]], tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx")
    model = model_for_text(initializer_range=0.5, embedding_pooling="mean", embedding_layer=1)
    export_encoder(model, tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    main(["--model", str(tmp_path / "encoder"), "--output", str(tmp_path / "onnx")])
    check(tmp_path / "onnx", model, Pooling("mean", 1), sentences)
    written = onnx.load(tmp_path / "onnx" / "model.onnx", load_external_data=False)
    assert [each.version for each in written.opset_import if each.domain == ""] == [OPSET]
    assert json.loads((tmp_path / "onnx" / "embedding.json").read_text("utf-8")) == {
        "mode": "mean", "layer": 1, "max_length": 64, "normalize": True, "lower_case": False, "prompt": "",
        "prompts": {},
    }  # fmt: skip
    weights = {tensor.name for tensor in written.graph.initializer}
    assert any("layer.0." in name for name in weights) and not any("layer.1." in name for name in weights)
    with pytest.raises(BadInput, match="is not empty"):
        export_onnx(model, tokenizer, tmp_path / "onnx")
    with pytest.raises(BadInput, match="is not empty"):  # and the model is not looked for
        main(["--model", "nowhere", "--output", str(tmp_path / "onnx")])


@pytest.mark.slow
@pytest.mark.parametrize("pooling", OTHERS, ids=str)
def test_every_pooling_can_be_exported(
    pooling: Pooling,
    model_for_text: MakeModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: dict[str, list[str]],
    tmp_path: Path,
) -> None:
    model = model_for_text(HictlForPreTraining, initializer_range=0.5, projection_size=20)
    export_onnx(model, tokenizer, tmp_path, pooling)
    check(tmp_path, model, pooling, sentences)


def test_the_exported_tokenizer_gives_what_the_graph_takes_and_the_given_one_is_unchanged(
    model_for_text: MakeModel, tmp_path: Path
) -> None:
    vocabulary = {word: id for id, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"))}
    left = BertTokenizer(vocab=vocabulary, padding_side="left")
    longest, given = left.model_max_length, left("a").keys()
    export_onnx(model_for_text(), left, tmp_path)
    exported = AutoTokenizer.from_pretrained(tmp_path)
    assert exported.padding_side == "right" and exported("a").keys() == {"input_ids", "attention_mask"}
    assert left.padding_side == "left" and left.model_max_length == longest
    assert left("a").keys() == given == {"input_ids", "token_type_ids", "attention_mask"}


@pytest.mark.slow
def test_a_plain_encoder_is_exported_with_the_projection_that_its_pooler_holds(
    model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]], tmp_path: Path
) -> None:
    model = model_for_text(initializer_range=0.5, embedding_pooling="projection")
    export_encoder(model, tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    export_onnx(*load_encoder(tmp_path / "encoder"), tmp_path / "onnx")
    check(tmp_path / "onnx", model, Pooling("projection", 2), sentences)


def test_pooling_is_that_of_embed_sentences_and_rows_begin_on_the_left(
    model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]]
) -> None:
    model, texts = model_for_text(initializer_range=0.5), sentences["en"][:3] + ["cat"]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    for pooling in (Pooling("mean without special tokens", 1), Pooling("cls", 2)):
        encoder = SentenceEncoder(model, pooling).eval()
        with torch.no_grad():
            vectors = encoder(batch["input_ids"], batch["attention_mask"]).numpy()
        np.testing.assert_allclose(vectors, embed_sentences(model, tokenizer, texts, pooling), rtol=0, atol=1e-5)


def test_what_the_graph_does_not_do_is_written_and_logged(
    model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"embedding_prompt": "query: ", "embedding_prompts": {"passage": "passage: "}}
    model = model_for_text(embedding_normalize=False, embedding_lower_case=True, embedding_max_length=40, **settings)
    pooling = Pooling("mean", 1)
    write_reading(tmp_path, model, pooling)
    assert json.loads((tmp_path / "embedding.json").read_text("utf-8")) == {
        "mode": "mean", "layer": 1, "max_length": 40, "normalize": False, "lower_case": True, "prompt": "query: ",
        "prompts": {"passage": "passage: "},
    }  # fmt: skip
    assert "a prompt is no part of the graph; put 'query: ' before each sentence" in caplog.text
    assert "lower-casing is no part of the graph" in caplog.text
    batch = tokenizer(["query: the cat"], return_tensors="pt")
    with torch.no_grad():
        vectors = SentenceEncoder(model, pooling).eval()(batch["input_ids"], batch["attention_mask"]).numpy()
    np.testing.assert_allclose(vectors, embed_sentences(model, tokenizer, ["The Cat"], pooling), rtol=0, atol=1e-5)


def test_a_pooling_that_is_not_there_and_a_missing_package_are_told(
    model_for_text: MakeModel,
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(BadInput, match="allowed is 0 to 2"):
        export_onnx(model_for_text(), tokenizer, tmp_path, Pooling("mean", 3))
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(BadInput, match=r"pip install 'hictl_hf\[onnx\]'"):
        export_onnx(model_for_text(), tokenizer, tmp_path)
    with pytest.raises(BadInput, match=r"pip install 'hictl_hf\[onnx\]'"):
        main(["--model", "nowhere", "--output", str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()


def test_an_export_that_fails_leaves_nothing(
    model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export(model: object, inputs: object, path: Path, **_: object) -> None:
        path.write_text("x")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch.onnx, "export", export)
    with pytest.raises(BadInput, match="cannot be saved.*No space left"):
        export_onnx(model_for_text(), tokenizer, tmp_path / "onnx")
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "modernbert", "eurobert"])
def test_encoders_of_other_families_are_exported(family: str, sentences: dict[str, list[str]], tmp_path: Path) -> None:
    tokenizer = TOKENIZERS[family](text for texts in sentences.values() for text in texts)
    settings = {**SHAPES[family], **ids_of(tokenizer), "vocab_size": len(tokenizer)}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModel.from_config(AutoConfig.for_model(family, **settings)).eval()
    export_onnx(model, tokenizer, tmp_path, Pooling("mean", 1))
    check(tmp_path, model, Pooling("mean", 1), sentences)
