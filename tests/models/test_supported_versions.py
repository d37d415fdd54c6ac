"""Tested releases of transformers; a renamed argument or method is an error, not another result."""

import configparser
import inspect
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from torch import Tensor
from transformers import EncoderDecoderCache, PreTrainedModel, TrainingArguments

from hictl_hf import HictlForConditionalGeneration, HictlForMaskedLM
from hictl_hf.models import supported_versions
from hictl_hf.models.generation import CACHE
from hictl_hf.models.packing import PackedPass, PackedRows
from hictl_hf.models.supported_versions import (
    NEWEST,
    OLDEST,
    overrides_private,
    parameter_of,
    require_parameters,
    warn_if_untested,
)
from hictl_hf.training.arguments import RunArguments
from hictl_hf.training.sharding import ShardingMixin
from hictl_hf.training.trainer import RobustTrainer
from hictl_hf.translation.beam_search import BeamSearchConfig, search
from hictl_hf.translation.pipeline import translation_pipeline

ROOT = Path(__file__).parents[2]
MakeModel = Callable[..., PreTrainedModel]


# --- releases ---------------------------------------------------------------------------------------------------------


def test_the_oldest_release_is_that_of_the_installation() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", "utf-8")
    assert f"transformers>={OLDEST.removesuffix('.0')}," in config["options"]["install_requires"]


@pytest.mark.parametrize(
    ("version", "warns"),
    [(OLDEST, False), ("5.20.2", False), (NEWEST, False), ("5.17.0", True), ("5.25.0.dev0", True), ("6.0.0", True)],
)
def test_a_release_that_was_not_tested_warns_once(version: str, warns: bool) -> None:
    warn_if_untested.cache_clear()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            warn_if_untested(version)
    assert len(found) == warns
    for warning in found:
        assert all(part in str(warning.message) for part in (version, OLDEST, NEWEST, "make test-versions"))


@pytest.mark.parametrize(
    "module",
    [
        "hictl_hf.pretraining.trainer",
        pytest.param("hictl_hf.models.modeling_hictl_translation", marks=pytest.mark.slow),
        "hictl_hf; hictl_hf.HictlForPreTraining",
    ],
)
def test_it_warns_at_the_import_of_trainer_or_models(module: str) -> None:
    fake = "from transformers import Trainer; import transformers; transformers.__version__ = '5.99.0'"
    code = f"{fake}; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stderr.count("transformers 5.99.0 is outside of the releases that hictl_hf was tested with") == 1


def test_this_release_is_supported() -> None:
    assert Version(OLDEST) <= Version(transformers.__version__)


# --- checks -----------------------------------------------------------------------------------------------------------


def test_a_missing_argument_is_an_error_with_versions_and_fix() -> None:
    def forward(states: Any, mask: Any = None, **kwargs: Any) -> None: ...

    require_parameters(forward, "states", "mask")
    assert parameter_of(forward, "attention", "mask") == "mask"
    for check in (require_parameters, parameter_of):
        with pytest.raises(ImportError, match=f"{transformers.__version__} has no argument .*positions.*{NEWEST}"):
            check(forward, "positions")  # `**kwargs` would swallow it


def test_an_override_of_nothing_is_an_error() -> None:
    class Base:
        def _save(self, folder: str) -> None: ...

    def _save(self: Any, folder: str) -> None: ...

    assert overrides_private(Base)(_save) is _save

    def _load(self: Any) -> None: ...

    with pytest.raises(ImportError, match="has no Base._load"):
        overrides_private(Base)(_load)

    def other(self: Any, path: str) -> None: ...

    other.__name__ = "_save"
    with pytest.raises(ImportError, match="has no argument path"):
        overrides_private(Base)(other)


def test_rows_that_attention_was_not_told_of_are_an_error() -> None:
    batches = {"sentences": (torch.tensor([[5, 6], [7, 8]]), None)}
    block = torch.nn.Identity()
    packed = PackedPass(PackedRows(batches), block)
    of_some = PackedPass(PackedRows(batches, {"first": ("sentences", None)}), block)
    with pytest.raises(ImportError, match="packed_rows"):
        packed.check(torch.zeros(4, 3))
    packed.reached = of_some.reached = True
    packed.check(torch.zeros(4, 3))
    of_some.check(torch.zeros(2, 3))
    with pytest.raises(ImportError, match="attention block"):
        of_some.check(torch.zeros(4, 3))


def test_pre_training_fails_where_xlm_r_forgets_packed_rows(
    toy_model: MakeModel, toy_batch: Callable[..., dict[str, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = toy_model()
    forward = model.roberta.forward
    monkeypatch.setattr(model.roberta, "forward", lambda packed_rows=None, **inputs: forward(**inputs))
    with pytest.raises(ImportError, match="packed_rows"):
        model(**toy_batch())


def test_half_precision_holds_for_a_model_that_was_trained_before(toy_model: MakeModel, tmp_path: Path) -> None:
    """accelerate 1.14 and newer mark a model, and leave autocast out for one that is marked."""
    model, computed = toy_model(HictlForMaskedLM), []
    query = model.roberta.encoder.layer[0].attention.self.query
    query.register_forward_hook(lambda module, inputs, output: computed.append(output.dtype))
    rows = [{"input_ids": [0, 5, 6, 2], "attention_mask": [1] * 4, "labels": [-100, 5, 6, -100]}] * 2
    for bf16, expected in ((False, torch.float32), (True, torch.bfloat16)):
        args = TrainingArguments(str(tmp_path), max_steps=1, use_cpu=True, bf16=bf16, report_to="none")
        computed.clear()
        RobustTrainer(model, args, train_dataset=rows).train()
        assert set(computed) == {expected}


def test_every_process_gathers_shards_when_one_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    """`_save` is called in the saving process alone before transformers 5.23, and does nothing in others after it."""
    gathered: list[bool] = []
    monkeypatch.setattr(f"{ShardingMixin.__module__}.gather_model", lambda model, keep: gathered.append(keep))
    trainer = SimpleNamespace(is_sharded=True, model=None, args=SimpleNamespace(should_save=False))
    ShardingMixin.save_model(trainer, "folder")  # type: ignore[arg-type]
    assert gathered == [False]


def test_the_pipeline_of_transformers_knows_translation(
    trained: HictlForConditionalGeneration, tokenizer: Any, tmp_path: Path
) -> None:
    trained.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (found,) = transformers.pipeline("hictl-translation", str(tmp_path))("the cat sees the house", max_length=20)
    assert found == translation_pipeline(trained, tokenizer)("the cat sees the house", max_length=20)[0]


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.fixture
def translator(toy_config: Callable[..., Any]) -> HictlForConditionalGeneration:
    """A sharp model, whose hypotheses differ."""
    torch.manual_seed(3)
    return HictlForConditionalGeneration(toy_config(decoder_layers=2, initializer_range=0.3)).eval()


SOURCE = {
    "input_ids": torch.tensor([[0, 11, 12, 13, 14, 2], [0, 21, 22, 2, 1, 1]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]),
}
TARGET = torch.tensor([[2, 31, 32, 33], [2, 41, 42, 43]])


def test_unknown_arguments_are_refused(
    translator: HictlForConditionalGeneration, toy_model: MakeModel, toy_batch: Callable[..., dict[str, Tensor]]
) -> None:
    with pytest.raises(TypeError, match=r"HictlForConditionalGeneration.forward\(\) got unexpected arguments past;"):
        translator(**SOURCE, decoder_input_ids=TARGET, past=None)
    with pytest.raises(TypeError, match="got unexpected arguments label, position; allowed are"):
        toy_model()(**SOURCE, label=TARGET, position=None)
    with pytest.raises(TypeError, match="got unexpected arguments kwargs; allowed are"):
        toy_model()(**SOURCE, kwargs={"position": 1})
    with pytest.raises(ValueError, match="pre-training makes no use of packed_rows;"):
        toy_model()(**toy_batch(), packed_rows=TARGET)
    assert translator(**SOURCE, decoder_input_ids=TARGET, output_hidden_states=True).encoder_hidden_states is not None


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_cache_has_both_names(translator: HictlForConditionalGeneration) -> None:
    expected = translator(**SOURCE, decoder_input_ids=TARGET).logits[:, 2:]
    for name in ("cache", "past_key_values"):
        begun = translator(**SOURCE, decoder_input_ids=TARGET[:, :2], use_cache=True)
        assert isinstance(begun[CACHE], EncoderDecoderCache)
        logits = translator(**SOURCE, decoder_input_ids=TARGET[:, 2:], use_cache=True, **{name: begun[CACHE]}).logits
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    assert (expected - translator(**SOURCE, decoder_input_ids=TARGET[:, 2:]).logits).abs().max() > 0.1  # it matters
    cache = begun[CACHE]
    for call in (translator, translator.generate):
        with pytest.raises(ValueError, match="two names of one argument"):
            call(**SOURCE, decoder_input_ids=TARGET, cache=cache, past_key_values=cache)


def test_the_old_name_of_the_cache_is_told_where_transformers_has_the_new_one(
    translator: HictlForConditionalGeneration,
) -> None:
    begun = translator(**SOURCE, decoder_input_ids=TARGET[:, :2], use_cache=True)[CACHE]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        translator(**SOURCE, decoder_input_ids=TARGET[:, 2:], past_key_values=begun)
    assert any("`past_key_values` is deprecated" in str(each.message) for each in found) == (CACHE == "cache")


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_generate_goes_on_from_a_cache_under_either_name(translator: HictlForConditionalGeneration, name: str) -> None:
    settings: dict[str, Any] = {"max_new_tokens": 4, "num_beams": 1, "do_sample": False}
    expected = translator.generate(**SOURCE, **settings)
    begun = translator.generate(**SOURCE, **(settings | {"max_new_tokens": 2}), return_dict_in_generate=True)
    again = translator.generate(
        **SOURCE, decoder_input_ids=begun.sequences, max_new_tokens=2, num_beams=1, **{name: begun[CACHE]}
    )
    assert torch.equal(again, expected)


@pytest.fixture(scope="module")
def trained(
    toy_config: Callable[..., Any], tokenizer: Any, sentences: dict[str, list[str]]
) -> HictlForConditionalGeneration:
    """A translator into German that knows the toy sentences by heart."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = HictlForConditionalGeneration(
            toy_config(vocab_size=len(tokenizer), decoder_layers=2, cls_bias="dot", initializer_range=0.1)
        ).train()
        source = tokenizer(sentences["en"], padding=True, return_tensors="pt")
        labels = tokenizer(sentences["de"], padding=True, return_tensors="pt")["input_ids"][:, 1:]
        labels = labels.masked_fill(labels == tokenizer.pad_token_id, -100)
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        for _ in range(150):
            model(**source, labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    model.generation_config.update(suppress_tokens=[1])
    return model.eval()


@pytest.mark.parametrize("beams", [1, 5])
def test_generate_the_pipeline_and_beam_search_agree_cached_and_not(
    trained: HictlForConditionalGeneration, tokenizer: Any, sentences: dict[str, list[str]], beams: int
) -> None:
    """A wrong position of a cached step shows in the second token already."""
    texts = sentences["en"][::5]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    how: dict[str, Any] = {"num_beams": beams, "do_sample": False, "max_new_tokens": 20, "early_stopping": beams > 1}
    cached = trained.generate(**inputs, **how)
    assert torch.equal(trained.generate(**inputs, **how, use_cache=False), cached)
    settings = BeamSearchConfig(num_beams=beams, length_penalty=1.0, max_length=20, max_length_a=0, max_length_b=20)
    starts = torch.full((len(texts),), trained.default_start_id())
    found = [best[0].tokens for best in search(trained, **inputs, start_ids=starts, settings=settings)]
    assert found == [[token for token in row[1:].tolist() if token != tokenizer.pad_token_id] for row in cached]
    spoken = translation_pipeline(trained, tokenizer)(
        texts, num_beams=beams, max_length=20, max_length_a=0, max_length_b=20
    )
    said = [each["translation_text"] for each in spoken]
    assert said == tokenizer.batch_decode(cached, skip_special_tokens=True)
    right = sum(a == b for a, b in zip(said, sentences["de"][::5]))
    assert right >= 3 and len(set(said)) > len(texts) / 2, "the toy translator did not learn"


@pytest.mark.parametrize("kind", ["eager", "sdpa"])
def test_attention_is_chosen_for_encoder_and_decoder(translator: HictlForConditionalGeneration, kind: str) -> None:
    translator.set_attn_implementation(kind)
    parts = (translator, translator.roberta, translator.decoder)
    assert {part.config._attn_implementation for part in parts} == {kind}


@pytest.mark.parametrize("languages", [None, ["de"], ["de", "fr"]])
@pytest.mark.parametrize("tied", [True, False])
def test_a_decoder_with_all_words_grows_with_the_encoder(
    toy_config: Callable[..., Any], languages: list[str] | None, tied: bool, tmp_path: Path
) -> None:
    config = toy_config(target_languages=languages, tie_word_embeddings=tied, initializer_range=0.3)
    model = HictlForConditionalGeneration(config).eval()
    how = {"start_ids": model.start_ids_of(["fr", "de"])} if languages == ["de", "fr"] else {}
    language = {"target_language": "fr"} if languages == ["de", "fr"] else {}
    labels = torch.tensor([[31, 32, 2], [41, 42, 2]])
    before = model(**SOURCE, labels=labels, **how).logits
    model.resize_token_embeddings(210)
    how = {"start_ids": model.start_ids_of(["fr", "de"])} if how else {}
    sizes = (model.config.vocab_size, model.lm_head.out_features, len(model.target_token_ids), len(model.lm_head.bias))
    assert sizes == (210, 210, 210, 210) and model.decoder.config.vocab_size == 210
    assert (model.lm_head.weight is model.decoder.get_input_embeddings().weight) == tied
    outputs = model(**SOURCE, labels=labels, **how)
    torch.testing.assert_close(outputs.logits[..., :200], before)
    assert model(**SOURCE, labels=torch.full((2, 1), 205), **how).loss.isfinite()
    model.save_pretrained(tmp_path)
    again = HictlForConditionalGeneration.from_pretrained(tmp_path)
    torch.testing.assert_close(again(**SOURCE, labels=labels, **how).logits, outputs.logits)
    options: dict[str, Any] = {"max_new_tokens": 3, "num_beams": 1, **language}
    assert torch.equal(again.generate(**SOURCE, **options), model.generate(**SOURCE, **options))


def test_activation_checkpointing_has_its_newest_name_on_every_release(tmp_path: Path) -> None:
    how = '{"use_reentrant": false}'
    args = RunArguments(str(tmp_path), use_cpu=True, activation_checkpointing=True, activation_checkpointing_kwargs=how)
    assert args.activation_checkpointing and args.gradient_checkpointing
    assert args.activation_checkpointing_kwargs == args.gradient_checkpointing_kwargs == {"use_reentrant": False}
    assert not RunArguments(str(tmp_path), use_cpu=True).activation_checkpointing


def test_the_module_takes_nothing_but_transformers_along() -> None:
    assert "from ." not in inspect.getsource(supported_versions)
