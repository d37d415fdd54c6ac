"""CTranslate2 says what our beam search says, and is not given what it has no place for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf.cli.export_ctranslate2 import main
from hictl_hf.errors import BadInput
from hictl_hf.models.modeling_hictl_translation import HictlForConditionalGeneration
from hictl_hf.translation.beam_search import BeamSearchConfig, search
from hictl_hf.translation.ctranslate2_export import export_ctranslate2, tokens_of

ctranslate2 = pytest.importorskip("ctranslate2")

END, LIMIT = 2, 12
CUT = [0, 1, 2, 3, *range(4, 110, 2)]


@pytest.fixture(scope="module")
def make_model(model_for_text: Callable[..., PreTrainedModel]) -> Callable[..., HictlForConditionalGeneration]:
    """`make_model(seed=2, **changes)`: random, confident, without a bias unless told, ending now and then."""

    def make(seed: int = 2, cut: bool = False, **changes: Any) -> HictlForConditionalGeneration:
        changes = {"cls_bias": "none", "cls_bias_scale": "fixed", "decoder_layers": 1, **changes}
        changes |= {"decoder_vocab_size": len(CUT) if cut else None, "initializer_range": 0.3}
        model = model_for_text(HictlForConditionalGeneration, seed=seed, **changes)
        with torch.no_grad():
            model.lm_head.weight[END].mul_(4)
            for part in (model.roberta, model.decoder):  # what random weights leave at 0 or the same
                part.embeddings.token_type_embeddings.weight.normal_(generator=torch.Generator().manual_seed(0))
                part.embeddings.position_embeddings.weight.mul_(4)
            if cut:
                model.target_token_ids.copy_(torch.tensor(CUT))
        return model

    return make


def load(folder: Path) -> Any:
    """On one thread: what CTranslate2 is told holds for PyTorch in this process, too."""
    return ctranslate2.Translator(str(folder), intra_threads=1)


def compare(
    model: HictlForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    texts: list[str],
    language: str | None = None,
) -> set[int]:
    """All five hypotheses of each text, ids and scores; returns their lengths."""
    translator, lengths = load(folder), set()
    for text in texts:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        start = model.default_start_id() if language is None else int(model.start_ids_of([language]))
        settings = BeamSearchConfig(5, 1.0, 5, max_length=LIMIT, max_length_b=LIMIT)
        (expected,) = search(model, ids, torch.ones_like(ids), torch.tensor([start]), settings)
        (result,) = translator.translate_batch(
            [tokenizer.convert_ids_to_tokens(ids[0])], beam_size=5, num_hypotheses=5, length_penalty=1.0,
            min_decoding_length=0, max_decoding_length=LIMIT, return_scores=True,
            target_prefix=[[f"__{language}__"]] if language else None,
        )  # fmt: skip
        found = [tokenizer.convert_tokens_to_ids(tokens) for tokens in result.hypotheses]
        assert found == [[token for token in each.tokens if token != END] for each in expected]
        assert result.scores == pytest.approx([each.score for each in expected], abs=1e-4)
        lengths |= {len(each.tokens) for each in expected}
    return lengths


@pytest.fixture(scope="module")
def texts(sentences: dict[str, list[str]]) -> list[str]:
    return [sentences[name][at] for at in (0, 9, 40) for name in ("en", "zh", "de")]


@pytest.mark.parametrize("changes", [{}, {"cut": True, "decoder_layers": 2, "decoder_attention_heads": 2}])
def test_ctranslate2_finds_the_hypotheses_of_our_beam_search(
    make_model: Callable[..., HictlForConditionalGeneration], tokenizer: PreTrainedTokenizerBase, texts: list[str],
    tmp_path: Path, changes: dict[str, Any],
) -> None:  # fmt: skip
    lengths = set()
    for seed in range(4):
        model, folder = make_model(seed, **changes), tmp_path / str(seed)
        model.generation_config.suppress_tokens = None
        lengths |= compare(model, tokenizer, export_ctranslate2(model, tokenizer, folder), texts)
    assert len(lengths) > 2, "hypotheses should end here and there"


@pytest.mark.parametrize("quantization", ["int8", "int16"])
def test_a_model_is_what_it_was_after_its_export(
    make_model: Callable[..., HictlForConditionalGeneration], tokenizer: PreTrainedTokenizerBase, tmp_path: Path,
    quantization: str,
) -> None:  # fmt: skip
    """CTranslate2 quantises in place, which scaled the embeddings of the model."""
    model = make_model()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    export_ctranslate2(model, tokenizer, tmp_path / "export", quantization)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_the_target_language_is_a_prefix_or_the_only_one(
    make_model: Callable[..., HictlForConditionalGeneration], tokenizer: PreTrainedTokenizerBase, texts: list[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    several, one = make_model(target_languages=["de", "fr"]), make_model(target_languages=["fr"], cut=True)
    several.generation_config.suppress_tokens = one.generation_config.suppress_tokens = None
    export_ctranslate2(several, tokenizer, tmp_path / "several")
    export_ctranslate2(one, tokenizer, tmp_path / "one")
    for language in ("de", "fr"):
        compare(several, tokenizer, tmp_path / "several", texts, language)
    compare(one, tokenizer, tmp_path / "one", texts)


def test_a_bias_is_refused_and_dropped_only_when_that_is_allowed(
    make_model: Callable[..., HictlForConditionalGeneration], tokenizer: PreTrainedTokenizerBase, texts: list[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    model = make_model(cls_bias="dot")
    with pytest.raises(BadInput, match="'dot'.*allowed is.*'none'.*--allow_drop_bias"):
        export_ctranslate2(model, tokenizer, tmp_path / "no")
    assert not (tmp_path / "no").exists()
    export_ctranslate2(model, tokenizer, tmp_path / "ct2", allow_drop_bias=True)
    with pytest.raises(AssertionError):
        compare(model, tokenizer, tmp_path / "ct2", texts)
    model.config.cls_bias = "none"
    compare(model, tokenizer, tmp_path / "ct2", texts)


def test_an_adapter_is_merged_before_the_export(
    make_model: Callable[..., HictlForConditionalGeneration], tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    peft, model = pytest.importorskip("peft"), make_model()
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"], init_lora_weights=False))
    with pytest.raises(ValueError, match="query has an adapter that is not merged"):
        export_ctranslate2(model, tokenizer, tmp_path)
    merged = adapted.merge_and_unload().eval()
    compare(merged, tokenizer, export_ctranslate2(merged, tokenizer, tmp_path), ["the cat"])


def test_an_export_that_is_interrupted_is_made_again(
    make_model: Callable[..., HictlForConditionalGeneration], tokenizer: PreTrainedTokenizerBase, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def save(spec: object, folder: str) -> None:
        Path(folder, "model.bin").write_text("x")
        raise KeyboardInterrupt

    model, folder = make_model(), tmp_path / "ct2"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ctranslate2.specs.TransformerSpec, "save", save)
        export_ctranslate2(model, tokenizer, folder)
    assert not folder.exists()
    export_ctranslate2(model, tokenizer, folder)
    assert load(folder) and [*tmp_path.iterdir()] == [folder]


def test_what_is_suppressed_is_never_said(
    make_model: Callable[..., HictlForConditionalGeneration], tokenizer: PreTrainedTokenizerBase, texts: list[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    model = make_model()
    settings = BeamSearchConfig(max_length=LIMIT)
    ids = tokenizer(texts[0], return_tensors="pt")["input_ids"]
    (hypothesis,) = search(model, ids, torch.ones_like(ids), torch.tensor([END]), settings)[0]
    favourite = hypothesis.tokens[0]
    model.generation_config.suppress_tokens = [1, favourite]
    export_ctranslate2(model, tokenizer, tmp_path / "ct2")
    translator = load(tmp_path / "ct2")
    (result,) = translator.translate_batch(
        [tokenizer.convert_ids_to_tokens(ids[0])], beam_size=5, max_decoding_length=9
    )
    assert result.hypotheses[0] and favourite not in tokenizer.convert_tokens_to_ids(result.hypotheses[0])


def test_the_command_exports_a_folder_into_a_new_one(
    make_model: Callable[..., HictlForConditionalGeneration], tokenizer: PreTrainedTokenizerBase, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    make_model(cls_bias="dot").save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    flags = ["--model", str(tmp_path / "model"), "--output", str(tmp_path / "ct2")]
    main([*flags, "--quantization", "int8", "--allow_drop_bias", "true"])
    assert capsys.readouterr().out.strip() == str(tmp_path / "ct2")
    translator = load(tmp_path / "ct2")
    assert translator.compute_type.startswith("int8")
    assert translator.translate_batch([tokenizer.convert_ids_to_tokens([0, 9, 2])], max_decoding_length=9)[
        0
    ].hypotheses[0]
    with pytest.raises(BadInput, match="is not empty"):
        main([*flags, "--allow_drop_bias", "true"])
    for output, more, told in (
        ("model/config.json", (), "config.json: is a file; allowed is a path where a folder can be written"),
        ("other", ("--quantization", "int3"), "quantization is 'int3'; .*int8"),
    ):
        with pytest.raises(BadInput, match=told):
            main(["--model", flags[1], "--output", str(tmp_path / output), "--allow_drop_bias", "true", *more])


def test_pieces_have_a_name_each_where_the_vocabulary_is_larger_than_the_tokenizer(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    pieces = tokens_of(tokenizer, len(tokenizer) + 2)
    assert pieces[0] == "<s>" and len(set(pieces)) == len(pieces) == len(tokenizer) + 2
