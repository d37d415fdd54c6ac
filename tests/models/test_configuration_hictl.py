"""Settings survive saving, an XLM-R configuration becomes ours silently, and what makes no sense is refused by name."""

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModel, XLMRobertaConfig

from hictl_hf import HictlConfig
from hictl_hf.models.configuration_hictl import CODE_ON_THE_HUB
from hictl_hf.models.configuration_objective import CHOICES

UNUSUAL = {
    "lm_weight": 0.5,
    "sentence_weight": 2,
    "word_weight": 0,
    "sentence_pooling": "mean",
    "projection_size": 7,
    "projection_bias": True,
    "projection_activation": "tanh",
    "sentence_temperature": 0.1,
    "word_temperature": 0.2,
    "word_sampling_temperature": 0.3,
    "word_negatives": 3,
    "word_level_input": "clean",
    "hard_negatives": False,
    "hard_negative_space": "raw",
    "hard_negative_zeta": 0.7,
    "hard_negative_lambda_gradient": True,
    "hard_negative_window": 9,
    "duplicates": "text",
    "same_side_negatives": False,
    "embedding_layer": 1,
    "embedding_pooling": "mean",
    "embedding_max_length": 128,
    "embedding_prompt": "query: ",
    "embedding_prompts": {"query": "query: ", "passage": ""},
    "embedding_normalize": False,
    "embedding_lower_case": True,
    "special_token_ids": [0, 1, 2],
    "decoder_layers": 2,
    "decoder_attention_heads": 8,
    "decoder_ffn_dim": 48,
    "decoder_dropout": 0.2,
    "decoder_vocab_size": 100,
    "target_languages": ["de", "fr"],
    "cls_bias": "cosine",
    "cls_bias_scale": "fixed",
    "cls_bias_temperature": 0.4,
}


def test_every_setting_survives_saving_and_loading(tmp_path: Path, toy_config: Callable[..., HictlConfig]) -> None:
    config = toy_config(**UNUSUAL)
    default = HictlConfig()
    own = {field.name for field in fields(HictlConfig)} - {field.name for field in fields(XLMRobertaConfig)}
    assert set(UNUSUAL) == own - {"sentence_projection"}  # see below
    assert all(getattr(default, name) != value for name, value in UNUSUAL.items())
    config.save_pretrained(tmp_path)
    loaded = HictlConfig.from_pretrained(tmp_path)
    assert {name: getattr(loaded, name) for name in UNUSUAL} == UNUSUAL
    assert loaded.to_dict() == config.to_dict()
    assert type(AutoConfig.from_pretrained(tmp_path)) is HictlConfig


def test_a_vector_without_projection_has_no_size_of_its_own_and_is_not_read_as_one(tmp_path: Path) -> None:
    HictlConfig(sentence_pooling="mean", sentence_projection=False).save_pretrained(tmp_path)
    assert HictlConfig.from_pretrained(tmp_path).sentence_projection is False
    for changes in ({"projection_size": 7}, {"projection_bias": True}, {"projection_activation": "tanh"}):
        with pytest.raises(StrictDataclassError, match=f"{next(iter(changes))} is .* without a projection"):
            HictlConfig(sentence_projection=False, **changes)
    for changes in ({"sentence_projection": False}, {"sentence_pooling": "mean"}):
        with pytest.raises(StrictDataclassError, match="embedding_pooling is 'projection'; it must be 'cls' or 'mean'"):
            HictlConfig(embedding_pooling="projection", **changes)


def test_a_saved_configuration_points_the_auto_classes_at_our_code(tmp_path: Path) -> None:
    HictlConfig().save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["model_type"] == "hictl"
    assert saved["auto_map"] == CODE_ON_THE_HUB


def test_special_tokens_are_those_of_xlm_r_unless_given() -> None:
    assert HictlConfig(vocab_size=250_002).special_token_ids == [0, 1, 2, 3, 250_001]
    assert HictlConfig(vocab_size=50, special_token_ids=[0, 7]).special_token_ids == [0, 7]


def test_special_tokens_of_a_saved_configuration_stay_when_its_vocabulary_grows(tmp_path: Path) -> None:
    HictlConfig(vocab_size=50).save_pretrained(tmp_path)
    assert HictlConfig.from_pretrained(tmp_path, vocab_size=60).special_token_ids == [0, 1, 2, 3, 49]


def test_the_auto_map_of_a_configuration_is_its_own() -> None:
    config = HictlConfig()
    assert config.auto_map == CODE_ON_THE_HUB and config.auto_map is not CODE_ON_THE_HUB


def test_an_xlm_r_configuration_becomes_a_hictl_one_without_a_warning(
    tmp_path: Path, transformers_warnings: pytest.LogCaptureFixture
) -> None:
    XLMRobertaConfig(vocab_size=50, num_hidden_layers=3, type_vocab_size=1).save_pretrained(tmp_path)
    config = HictlConfig.from_pretrained(tmp_path)
    assert (config.model_type, config.num_hidden_layers, config.word_negatives) == ("hictl", 3, 512)
    assert config.special_token_ids == [0, 1, 2, 3, 49]
    assert not transformers_warnings.messages


def test_a_configuration_of_another_model_is_refused(tmp_path: Path) -> None:
    for kind, allowed in {"bert": "HictlConfig loads hictl and xlm-roberta", "t5": "load hictl, xlm-roberta"}.items():
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        with pytest.raises(ValueError, match=f"is a model of type '{kind}'; .*{allowed}"):
            HictlConfig.from_pretrained(tmp_path)


INFINITY, NOT_A_NUMBER = float("inf"), float("nan")
REFUSED: list[tuple[str, Any, str]] = [
    *[(name, "no", ", ".join(map(repr, allowed))) for name, allowed in CHOICES.items()],
    *[
        (name, value, "0 or a positive number")
        for name in ("lm_weight", "sentence_weight", "word_weight")
        for value in (-1, -0.1, INFINITY, NOT_A_NUMBER)
    ],
    *[("hard_negative_zeta", value, "above 0 and below 1") for value in (0, 1, 1.5, -0.1, INFINITY, NOT_A_NUMBER)],
    *[
        (name, value, "above 0")
        for name in (
            "sentence_temperature", "word_temperature", "word_sampling_temperature", "cls_bias_temperature",
        )
        for value in (0, -1.0, INFINITY, NOT_A_NUMBER)
    ],
    *[
        (name, value, "at least 1")
        for name in (
            "word_negatives", "hard_negative_window", "projection_size",
            "decoder_layers", "decoder_attention_heads", "decoder_ffn_dim",
        )
        for value in (0, -3)
    ],
    ("decoder_vocab_size", 3, "at least 4"),
    ("decoder_dropout", 1, "0 or more and below 1"),
    ("embedding_layer", 13, "from 0 to 12"),
    ("embedding_layer", -1, "from 0 to 12"),
    ("target_languages", [], "at least one language"),
    ("target_languages", ["de", "fr", "de"], "none twice"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "allowed"), REFUSED)
def test_a_value_that_makes_no_sense_is_refused_with_what_is_allowed(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(StrictDataclassError) as refusal:
        HictlConfig(**{name: value})
    assert all(part in str(refusal.value) for part in (f"{name} is {value!r}", allowed))


@pytest.mark.parametrize(
    ("name", "value"), [("word_negatives", 0.5), ("hard_negatives", "yes"), ("duplicates", None), ("lm_weight", "1")]
)
def test_a_value_of_the_wrong_type_is_refused_also_when_it_is_set_later(name: str, value: Any) -> None:
    config = HictlConfig()
    with pytest.raises(StrictDataclassError, match=name):
        HictlConfig(**{name: value})
    with pytest.raises(StrictDataclassError, match=name):
        setattr(config, name, value)


def test_the_projection_is_read_at_the_last_layer() -> None:
    assert HictlConfig(embedding_pooling="projection", embedding_layer=12).embedding_layer == 12
    with pytest.raises(StrictDataclassError, match="embedding_layer is 11.*'projection'.*from 12 to 12"):
        HictlConfig(embedding_pooling="projection", embedding_layer=11)


@pytest.mark.parametrize("pooling", ["mean", "projection"])
def test_a_model_cut_below_the_layer_read_is_read_at_its_last(
    pooling: str, model_for_text: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model_for_text(embedding_pooling=pooling, embedding_layer=2).save_pretrained(tmp_path / "saved")
    cut = AutoModel.from_pretrained(tmp_path / "saved")
    cut.encoder.layer, cut.config.num_hidden_layers = cut.encoder.layer[:1], 1
    for model in (cut, AutoModel.from_pretrained(tmp_path / "saved", num_hidden_layers=1)):
        caplog.clear()
        model.save_pretrained(tmp_path / "cut")
        said = "embedding_layer is 2, but the model has 1 layer(s); the last is read"
        assert [record.getMessage() for record in caplog.records] == [said]
        assert AutoModel.from_pretrained(tmp_path / "cut").config.embedding_layer is None


@pytest.mark.parametrize("name", ["lm_weight", "sentence_temperature"])
def test_whole_numbers_are_numbers(name: str) -> None:
    assert getattr(HictlConfig(**{name: 1}), name) == 1


def test_a_saved_configuration_with_another_zeta_still_loads(tmp_path: Path) -> None:
    """Releases before 0.10 took any; training with it is refused (test_pretraining_setup.py)."""
    HictlConfig().save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(saved | {"hard_negative_zeta": 1.5}), "utf-8")
    assert HictlConfig.from_pretrained(tmp_path).hard_negative_zeta == 1.5


# --- the decoder of a translation model -----------------------------------------------------------------------------


def test_the_decoder_has_sizes_of_its_own_or_those_of_the_encoder(toy_config: Callable[..., HictlConfig]) -> None:
    def sizes(config: HictlConfig) -> tuple[Any, ...]:
        layers = config.num_hidden_layers, config.num_attention_heads, config.intermediate_size
        return *layers, config.vocab_size, config.is_decoder, config.add_cross_attention

    own = toy_config(is_encoder_decoder=True, decoder_layers=3, decoder_attention_heads=8, decoder_ffn_dim=48)
    own.decoder_vocab_size = 50
    assert sizes(own.get_text_config(decoder=True)) == (3, 8, 48, 50, True, True)
    inherited = toy_config(is_encoder_decoder=True, decoder_layers=1)
    assert sizes(inherited.get_text_config(decoder=True)) == (1, 4, 64, 200, True, True)
    for config in (own, inherited):
        assert sizes(config) == sizes(config.get_text_config()) == (2, 4, 64, 200, False, False)
        assert config.get_text_config() is config.get_text_config(encoder=True) is config


def test_an_encoder_is_its_own_decoder(toy_config: Callable[..., HictlConfig]) -> None:
    config = toy_config()
    assert config.get_text_config(decoder=True) is config
