"""The pipeline gives the translations of `translate`; loading refuses other models, and can lower precision."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase, XLMRobertaConfig, XLMRobertaForMaskedLM, pipeline
from transformers.pipelines.pt_utils import KeyDataset

from hictl_hf.cli.translate import main
from hictl_hf.errors import BadInput
from hictl_hf.models.modeling_hictl import HictlForPreTraining
from hictl_hf.models.modeling_hictl_translation import HictlForConditionalGeneration
from hictl_hf.translation.beam_search import BeamSearchConfig
from hictl_hf.translation.decoding import translate
from hictl_hf.translation.pipeline import QuantizedHead, choose_dtype, load_translator, translation_pipeline

SHORT = BeamSearchConfig(num_beams=3, max_length=9)


def test_a_pipeline_gives_the_old_shape_by_function_and_by_name(
    translator_folder: str,
    translator: HictlForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    texts_to_translate: list[str],
) -> None:
    expected = translate(translator, tokenizer, texts_to_translate, SHORT, "fr")
    ours = translation_pipeline(translator_folder, target_language="fr", num_beams=3, device="cpu")
    named = pipeline("hictl-translation", translator_folder, device="cpu")
    assert ours(texts_to_translate, max_length=9) == [{"translation_text": best.text} for (best,) in expected]
    assert named(texts_to_translate[0], num_beams=3, max_length=9, target_language="fr") == ours(
        texts_to_translate[:1], max_length=9
    )
    of_a_column = KeyDataset(Dataset.from_dict({"de": texts_to_translate}), "de")  # as transformers documents it
    assert ours(of_a_column, max_length=9) == ours(texts_to_translate, max_length=9)
    (several,) = ours(texts_to_translate[0], best=2, max_length=9)
    assert several[0]["translation_text"] == expected[0][0].text and several[0]["score"] >= several[1]["score"]
    with pytest.raises(BadInput, match="no setting beams; allowed are num_beams"):
        ours(texts_to_translate, **{"beams": 3})  # its name until 0.10
    with pytest.raises(BadInput, match="sentences is {'text': 'the cat'}, of type dict; allowed is a list of texts"):
        ours({"text": "the cat"})


def test_what_cannot_be_loaded_is_refused_in_words(
    translator: HictlForConditionalGeneration, tmp_path: Path, translator_folder: str
) -> None:
    with pytest.raises(BadInput, match="nowhere.*translation model"):
        translation_pipeline(tmp_path / "nowhere")
    with pytest.raises(BadInput, match=f"is the folder of a run; allowed is .* Did you mean {translator_folder}"):
        translation_pipeline(Path(translator_folder).parent)
    with pytest.raises(BadInput, match="without its tokenizer"):
        translation_pipeline(translator)
    with pytest.raises(BadInput, match="dtype is 'int4'; allowed are float32"):
        translation_pipeline(translator_folder, dtype="int4")
    with pytest.raises(BadInput, match="int8 on a CPU"):
        translation_pipeline(translator_folder, dtype="int8", device="cuda")


@pytest.mark.parametrize("kind", ["hictl", "xlm-roberta"])
def test_a_checkpoint_without_a_decoder_is_no_translator(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, tmp_path: Path, kind: str
) -> None:
    encoder = model_for_text(HictlForPreTraining)
    if kind == "xlm-roberta":
        names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        config = XLMRobertaConfig(**{name: getattr(encoder.config, name) for name in names})
        encoder = XLMRobertaForMaskedLM(config)
    encoder.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    told = rf"{tmp_path}.*{type(encoder).__name__}.*without a decoder.*run_translation\.py"
    for load in (load_translator, translation_pipeline, lambda folder: main(["--model", str(folder)])):
        with pytest.raises(BadInput, match=told):
            load(tmp_path)


@pytest.mark.parametrize("name", ["runs/model", "./model", "../model", "/nowhere/model", "one/two/model"])
def test_a_path_that_is_no_folder_is_not_looked_for_on_the_hub(name: str) -> None:
    with pytest.raises(BadInput, match=f"{name}: is no folder; allowed is.*run_translation"):
        load_translator(name)


@pytest.mark.parametrize(("native", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_numbers_are_halved_on_a_gpu_alone(native: bool, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native or including_emulation)
    assert [choose_dtype(torch.device(device)) for device in ("cuda", "cuda:1", "cpu")] == [dtype, dtype, "float32"]


def test_a_model_that_is_already_loaded_keeps_its_numbers_unless_told(
    translator: HictlForConditionalGeneration, translator_folder: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    assert load_translator(translator_folder, device="cpu")[0].dtype == torch.float32
    assert load_translator(translator.bfloat16(), tokenizer, device="cpu")[0].dtype == torch.bfloat16
    assert load_translator(translator, tokenizer, "float32", "cpu")[0].dtype == torch.float32


def test_an_adapter_is_merged_before_weights_are_made_smaller(
    translator: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase
) -> None:
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(translator, peft.LoraConfig(target_modules=["query"], init_lora_weights=False))
    with pytest.raises(ValueError, match="query has an adapter that is not merged"):
        translation_pipeline(translator, tokenizer, "int8", "cpu")
    translation_pipeline(adapted.merge_and_unload(), tokenizer, "int8", "cpu")


@pytest.mark.parametrize(("dtype", "error"), [("bfloat16", 0.1), ("int8", 0.1)])
@pytest.mark.parametrize("bias", ["none", "dot", "cosine"])
def test_fewer_bits_give_nearly_the_same_scores(
    translator: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, texts_to_translate: list[str],
    tmp_path: Path, bias: str, dtype: str, error: float,
) -> None:  # fmt: skip
    translator.config.cls_bias = bias
    translator.save_pretrained(tmp_path)
    expected = translate(translator, tokenizer, texts_to_translate, SHORT, "de")
    small, _ = load_translator(tmp_path, tokenizer, dtype, "cpu")
    found = translate(small, tokenizer, texts_to_translate, SHORT, "de")
    assert found != expected, "nothing was made smaller"
    differences = [abs(a.score - b.score) for (a,), (b,) in zip(expected, found)]
    assert sum(differences) / len(differences) < error
    assert isinstance(small.lm_head, QuantizedHead) == (dtype == "int8")
    if dtype == "int8":
        assert load_translator(small, tokenizer, dtype)[0] is load_translator(small, tokenizer)[0] is small
        with pytest.raises(BadInput, match="dtype is 'float32', and the model is in int8; load it anew"):
            load_translator(small, tokenizer, "float32", "cpu")
    assert next(small.decoder.parameters()).dtype == (torch.bfloat16 if dtype == "bfloat16" else torch.float32)


def test_a_pipeline_leaves_the_mode_of_a_model_and_the_side_of_its_tokenizer(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> None:
    model = model_for_text(HictlForConditionalGeneration, target_languages=["de"]).train()
    left = copy.copy(tokenizer)
    left.padding_side = "left"
    translator = translation_pipeline(model, left, device="cpu", target_language="de")
    assert translator(["a dog", "the big cat"]) and left.padding_side == "left"
    assert all(module.training for module in model.modules())


def test_a_merged_model_saved_and_loaded_says_the_same(
    translator: HictlForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    texts_to_translate: list[str],
    tmp_path: Path,
) -> None:
    """PEFT takes the output layer, which is the decoder's word embeddings, for one that is not tied."""
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(target_modules=["query"], init_lora_weights=False)
    merged = peft.get_peft_model(translator, settings).merge_and_unload()
    for each in (merged, tokenizer):
        each.save_pretrained(tmp_path / "model")
    loaded, _ = load_translator(tmp_path / "model", device="cpu")
    assert loaded.config.tie_word_embeddings and loaded.lm_head.weight.equal(merged.lm_head.weight)
    said = [translate(each, tokenizer, texts_to_translate, SHORT, "de", progress=False) for each in (merged, loaded)]
    assert said[0] == said[1]


def test_a_model_that_lacks_weights_is_refused(translator_folder: str) -> None:
    """transformers would make random ones, others at each loading."""
    path = Path(translator_folder, "model.safetensors")
    weights = load_file(path)
    del weights["lm_head.bias"]
    save_file(weights, path, {"format": "pt"})
    with pytest.raises(BadInput, match="has no weights for 1 parts, such as lm_head.bias; allowed is a folder"):
        load_translator(translator_folder, device="cpu")
