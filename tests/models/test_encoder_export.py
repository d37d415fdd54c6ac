"""The plain encoder's files; what it computes in test_modeling_hictl.py."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toy_families import SHAPES
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedModel

from hictl_hf import HictlForConditionalGeneration, HictlForPreTraining
from hictl_hf.embedding.pooling import own_pooling
from hictl_hf.models.configuration_hictl import HictlConfig, config_class
from hictl_hf.models.encoder_export import export_encoder
from hictl_hf.models.families import FAMILIES
from hictl_hf.models.modeling_hictl import new_model


def test_the_projection_is_the_pooler_and_its_bias_is_zero(
    tmp_path: Path, toy_model: Callable[..., PreTrainedModel]
) -> None:
    model = toy_model(embedding_layer=1, embedding_pooling="mean")
    export_encoder(model, tmp_path)
    weights, config = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    assert torch.equal(weights["pooler.dense.weight"], model.projection.weight)
    assert not weights["pooler.dense.bias"].any()
    assert (config["embedding_layer"], config["embedding_pooling"]) == (1, "mean")


def test_a_model_that_is_trained_at_its_mean_is_read_there_unless_its_configuration_says_otherwise(
    tmp_path: Path, toy_model: Callable[..., PreTrainedModel]
) -> None:
    toy_model().base_model.config.save_pretrained(tmp_path / "plain")
    values = json.loads((tmp_path / "plain" / "config.json").read_text())
    del values["embedding_pooling"]
    for stated, read in (({}, "mean"), ({"embedding_pooling": "cls"}, "cls")):
        (tmp_path / "plain" / "config.json").write_text(json.dumps(values | stated))
        config = HictlConfig.from_pretrained(tmp_path / "plain", sentence_pooling="mean")  # set after `__init__`
        assert own_pooling(config).mode == read
        export_encoder(new_model(config), tmp_path / "encoder")
        assert own_pooling(AutoConfig.from_pretrained(tmp_path / "encoder")).mode == read


def test_a_plain_encoder_is_refused_with_what_reads_it(
    tmp_path: Path, toy_model: Callable[..., PreTrainedModel]
) -> None:
    export_encoder(toy_model(), tmp_path / "plain")
    with pytest.raises(ValueError, match=r"XLMRobertaModel; allowed .* from_pretrained\(folder\) also reads a plain"):
        export_encoder(AutoModel.from_pretrained(tmp_path / "plain"), tmp_path / "again")
    export_encoder(HictlForPreTraining.from_pretrained(tmp_path / "plain"), tmp_path / "again")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_encoder_of_a_fine_tuned_model_is_that_of_its_head(family: str, tmp_path: Path) -> None:
    config = config_class(family)(**SHAPES[family] | {"vocab_size": 40, "pad_token_id": 0})
    model = AutoModelForSequenceClassification.from_config(config).eval()
    export_encoder(model, tmp_path)
    encoder, ids = AutoModel.from_pretrained(tmp_path).eval(), torch.tensor([[1, 5, 9, 2]])
    assert encoder.config.model_type == family and own_pooling(encoder.config).mode == "cls"
    with torch.no_grad():
        assert torch.equal(encoder(ids)[0], model.base_model(ids)[0])


@pytest.mark.parametrize(("family", "kept"), [("modernbert", True), ("bert", False)])
def test_the_separator_stays_in_the_configuration_where_it_is_the_familys(
    family: str, kept: bool, tmp_path: Path
) -> None:
    special = {"pad_token_id": 0, "sep_token_id": 3}
    export_encoder(new_model(config_class(family)(**SHAPES[family] | {"vocab_size": 40} | special)), tmp_path)
    assert (json.loads((tmp_path / "config.json").read_text()).get("sep_token_id") == 3) == kept


@pytest.mark.parametrize("family", FAMILIES)
def test_the_weights_are_all_of_those_that_transformers_asks_for(family: str, tmp_path: Path) -> None:
    export_encoder(new_model(config_class(family)(**SHAPES[family] | {"vocab_size": 40, "pad_token_id": 0})), tmp_path)
    _, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())


@pytest.mark.parametrize(("kinds", "every"), [("fsfs", 2), ("fsss", 4), ("ffff", 1)])
def test_transformers_4_finds_which_layers_of_modernbert_read_all_tokens(
    kinds: str, every: int, tmp_path: Path
) -> None:
    """It reads no list of layers, and would take every third."""
    names = [{"f": "full_attention", "s": "sliding_attention"}[kind] for kind in kinds]
    shape = SHAPES["modernbert"] | {"vocab_size": 40, "layer_types": names}
    export_encoder(new_model(config_class("modernbert")(**shape)), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    assert config["global_attn_every_n_layers"] == every and config["layer_types"] == names
    assert AutoModel.from_pretrained(tmp_path).config.layer_types == names


def test_transformers_4_finds_the_rotary_bases_of_modernbert(tmp_path: Path) -> None:
    """It would take its defaults, and other vectors would come from mmBERT, whose local base is not the default."""
    bases = {"full_attention": {"rope_theta": 170000.0}, "sliding_attention": {"rope_theta": 130000.0}}
    shape = SHAPES["modernbert"] | {"vocab_size": 40, "rope_parameters": bases}
    export_encoder(new_model(config_class("modernbert")(**shape)), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    assert (config["global_rope_theta"], config["local_rope_theta"]) == (170000.0, 130000.0)
    rope = AutoModel.from_pretrained(tmp_path).config.rope_parameters
    assert {kind: base["rope_theta"] for kind, base in rope.items()} == {
        kind: base["rope_theta"] for kind, base in bases.items()
    }


@pytest.mark.parametrize("layer", ["query", "projection"])
def test_an_adapter_is_merged_before_the_encoder_is_written(
    layer: str, tmp_path: Path, toy_model: Callable[..., PreTrainedModel]
) -> None:
    peft = pytest.importorskip("peft")
    model = toy_model()
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=[layer], init_lora_weights=False))
    with pytest.raises(ValueError, match=rf"{layer} has an adapter that is not merged"):
        export_encoder(model, tmp_path)
    assert not [*tmp_path.iterdir()]
    export_encoder(adapted.merge_and_unload(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    assert torch.equal(weights["pooler.dense.weight"], model.projection.weight)


def test_the_encoder_of_a_translation_model_is_written_as_one_without_a_decoder(
    tmp_path: Path, toy_config: Callable[..., HictlConfig]
) -> None:
    export_encoder(HictlForConditionalGeneration(toy_config(decoder_layers=1)), tmp_path)
    assert not AutoConfig.from_pretrained(tmp_path).is_encoder_decoder
