"""Folders of sentence-transformers give its vectors, to rounding, or one clear refusal."""

import copy
import json
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hub_stub import serve
from safetensors.torch import save_file
from toy_families import SHAPES, word_pieces
from transformers import (
    AutoConfig,
    AutoModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from hictl_hf import HictlForPreTraining, export_encoder
from hictl_hf.embedding.encoder import embed_sentences, load_encoder
from hictl_hf.embedding.pooling import DenseLayers, Pooling, chosen_prompt, own_max_length, own_pooling
from hictl_hf.embedding.sentence_transformers_files import write_sentence_transformers_files
from hictl_hf.embedding.sentence_transformers_settings import (
    DenseSettings,
    SentenceTransformersSettings,
    read_sentence_transformers_files,
    settings_files,
)
from hictl_hf.errors import BadInput
from hictl_hf.files import write_json

LAST = 2
OLD, NEW = "sentence_transformers.models", "sentence_transformers.sentence_transformer.modules"
CLS = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
MEAN = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
Modules = Sequence[tuple[str, str, dict[str, Any]]]  # class, folder and config of each
PLAIN: Modules = [
    ("Transformer", "", {}),
    ("Pooling", "1_Pooling", {"word_embedding_dimension": 32, **CLS}),
    ("Normalize", "2_Normalize", {}),
]


def chain(
    pooling: dict[str, Any] = CLS, *more: str, transformer: str = "", dense: Sequence[dict[str, Any]] = ()
) -> Modules:
    """Transformer, Pooling, dense layers with these configs, and modules without a config."""
    kinds = [("Dense", config) for config in dense] + [(kind, {}) for kind in more]
    found = [("Transformer", transformer, {}), ("Pooling", "1_Pooling", {"word_embedding_dimension": 32, **pooling})]
    return found + [(kind, f"{number}_{kind}", config) for number, (kind, config) in enumerate(kinds, start=2)]


def dense_config(inputs: int, outputs: int, bias: bool = True, activation: str = "activation.Tanh") -> dict[str, Any]:
    return {
        "in_features": inputs, "out_features": outputs, "bias": bias,
        "activation_function": f"torch.nn.modules.{activation}",
    }  # fmt: skip


def write_folder(
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    modules: Modules = PLAIN,
    transformer: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    package: str = OLD,
) -> Path:
    """A plain XLM-R with a pooler, as a folder of sentence-transformers.

    Args:
        transformer: contents of sentence_bert_config.json; `None`: there is no such file.
        config: contents of config_sentence_transformers.json.
    """
    sizes = {"hidden_size": 32, "num_hidden_layers": LAST, "num_attention_heads": 4, "intermediate_size": 64}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = XLMRobertaModel(
            XLMRobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=66, initializer_range=0.5, **sizes)
        ).eval()
        torch.nn.init.normal_(model.pooler.dense.bias)
        for kind, place, values in modules:
            if kind == "Dense":
                linear = torch.nn.Linear(values["in_features"], values["out_features"], values.get("bias", True))
                (folder / place).mkdir(parents=True)
                weights = {f"linear.{name}": weight.detach() for name, weight in linear.named_parameters()}
                save_file(weights, folder / place / "model.safetensors")
    [place] = [place for kind, place, _ in modules if kind == "Transformer"]
    model.save_pretrained(folder / place)
    tokenizer.save_pretrained(folder / place)
    if transformer is not None:
        write_json(folder / place / "sentence_bert_config.json", transformer)
    if config is not None:
        write_json(folder / "config_sentence_transformers.json", config)
    listed = []
    for number, (kind, place, values) in enumerate(modules):
        listed.append({"idx": number, "name": str(number), "path": place, "type": f"{package}.{kind}"})
        if kind != "Transformer":
            write_json(folder / place / "config.json", values)
    write_json(folder / "modules.json", listed)
    return folder


@pytest.fixture(scope="module")
def texts(sentences: dict[str, list[str]]) -> list[str]:
    """Of different lengths, with capitals, spaces around them, and one that is cut."""
    found = [text for texts in sentences.values() for text in texts[:4]]
    return [*found, f"  {sentences['de'][5]} ", " ".join(sentences["en"][:20])]


def encoded(folder: Path, texts: Sequence[str], **settings: Any) -> np.ndarray:
    """The vectors of sentence-transformers."""
    library = pytest.importorskip("sentence_transformers")
    vectors: np.ndarray = library.SentenceTransformer(str(folder), device="cpu").encode(list(texts), **settings)
    return vectors


def plainly_read(folder: Path, tmp_path: Path, texts: Sequence[str]) -> np.ndarray:
    """The vectors of the folder without what sentence-transformers reads."""
    shutil.copytree(folder, tmp_path / "plain")
    (tmp_path / "plain" / "modules.json").unlink()
    return embed_sentences(*load_encoder(tmp_path / "plain"), texts)


HIDDEN = {"modality_config": {"text": {"method": "forward", "method_output_name": ["hidden_states", 1]}}}
HIDDEN["module_output_name"] = "token_embeddings"  # type: ignore[assignment]
FROM_THE_END = copy.deepcopy(HIDDEN)
FROM_THE_END["modality_config"]["text"]["method_output_name"] = ["hidden_states", -3]  # type: ignore[assignment]
STATED = {"prompts": {"query": "the old man ", "passage": ""}, "default_prompt_name": "query"}
WITHOUT_BIAS = dense_config(32, 20, bias=False)
IDENTITY = "linear.Identity"
FOLDERS: dict[str, dict[str, Any]] = {
    "cls": {},
    "cls by a word": {"modules": chain({"pooling_mode": "cls"}, "Normalize"), "package": NEW},
    "cls by a list": {"modules": chain({"pooling_mode": ["cls"], **MEAN}, "Normalize")},
    "not normalised": {"modules": chain(MEAN)},
    "cls, not normalised": {"modules": chain(CLS)},
    "cut": {"modules": chain(MEAN, "Normalize"), "transformer": {"max_seq_length": 5, "do_lower_case": False}},
    "a default prompt": {"modules": chain(MEAN, "Normalize"), "config": STATED},
    "in lower case": {"modules": chain(MEAN, "Normalize"), "transformer": {"do_lower_case": True}},
    "an inner layer": {"modules": chain(MEAN, "Normalize"), "transformer": HIDDEN},
    "the embeddings, counted from the end": {"modules": chain(MEAN, "Normalize"), "transformer": FROM_THE_END},
    "dropout": {"modules": chain(CLS, "Dropout", "Normalize")},
    "a dense layer": {"modules": chain(MEAN, dense=[dense_config(32, 20)])},
    "a dense layer without bias": {
        "modules": chain(CLS, "Normalize", dense=[dense_config(32, 20, False, IDENTITY)]),
    },
    "two dense layers": {
        "modules": chain(CLS, "Normalize", dense=[WITHOUT_BIAS, dense_config(20, 8, True, IDENTITY)]),
    },
    "a dense layer of defaults": {
        "modules": chain(MEAN, "Normalize", dense=[{"in_features": 32, "out_features": 4}]),
    },
    "a folder of the transformer": {
        "modules": chain(CLS, "Normalize", transformer="0_Transformer"),
        "transformer": {"max_seq_length": 6},
    },
    "folders written in other ways": {
        "modules": [("Transformer", "./", {}), ("Pooling", "./pool-ing.v2/", PLAIN[1][2]), ("Normalize", "norm//", {})],
    },
}


@pytest.mark.parametrize("case", FOLDERS)
def test_vectors_are_those_of_sentence_transformers(
    case: str, tokenizer: PreTrainedTokenizerBase, texts: list[str], tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "model", tokenizer, **FOLDERS[case])
    found = embed_sentences(*load_encoder(folder), texts)
    np.testing.assert_allclose(found, encoded(folder, texts), rtol=0, atol=1e-5)
    if case != "a folder of the transformer":
        plain = plainly_read(folder, tmp_path, texts)
        assert found.shape != plain.shape or np.abs(found - plain).max() > 0.01, "as it was read before"


@pytest.mark.parametrize("pooling", [MEAN, {}, {"pooling_mode": "mean"}, {"pooling_mode_cls_token": False}], ids=str)
def test_the_mean_is_read_where_no_other_pooling_is_named(
    pooling: dict[str, Any], tokenizer: PreTrainedTokenizerBase, texts: list[str], tmp_path: Path
) -> None:
    folder = write_folder(tmp_path, tokenizer, chain(pooling, "Normalize"))
    model, tokenizer = load_encoder(folder)
    assert own_pooling(model.config) == Pooling("mean", LAST)
    np.testing.assert_allclose(embed_sentences(model, tokenizer, texts), encoded(folder, texts), rtol=0, atol=1e-5)


def test_without_a_number_sentences_are_cut_where_the_tokenizer_says(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], tmp_path: Path
) -> None:
    shorter = copy.deepcopy(tokenizer)
    shorter.model_max_length = 7
    folder = write_folder(tmp_path, shorter)
    model, loaded = load_encoder(folder)
    assert model.config.embedding_max_length == 7
    found = embed_sentences(model, loaded, texts)
    np.testing.assert_allclose(found, encoded(folder, texts), rtol=0, atol=1e-5)
    assert np.abs(found - embed_sentences(model, loaded, texts, max_length=62)).max() > 0.01


def test_a_folder_whose_tokenizer_cuts_the_beginning_is_read_so(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], tmp_path: Path
) -> None:
    folder, long = write_folder(tmp_path, tokenizer, transformer={"max_seq_length": 7}), [*texts, " ".join(texts * 5)]
    file = folder / "tokenizer_config.json"
    write_json(file, json.loads(file.read_text("utf-8")) | {"truncation_side": "left"})
    found = embed_sentences(*load_encoder(folder), long)
    np.testing.assert_allclose(found, encoded(folder, long), rtol=0, atol=1e-5)


def test_the_first_file_of_a_transformer_that_says_something_counts(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], tmp_path: Path
) -> None:
    folder = write_folder(tmp_path, tokenizer, chain(MEAN), transformer={})
    write_json(folder / "sentence_xlm-roberta_config.json", {"max_seq_length": 6})
    model, tokenizer = load_encoder(folder)
    assert model.config.embedding_max_length == 6
    np.testing.assert_allclose(embed_sentences(model, tokenizer, texts), encoded(folder, texts), rtol=0, atol=1e-5)


@pytest.mark.parametrize("side", ["right", "left"])
def test_of_a_line_of_any_length_the_same_tokens_are_read(
    side: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path, tokenizer, chain(MEAN), transformer={"max_seq_length": 7})
    file = folder / "tokenizer_config.json"
    write_json(file, json.loads(file.read_text("utf-8")) | {"truncation_side": side})
    long = [
        f"the cat{' ' * 2000}the old man",
        " " * 2000 + "zwei Bücher",
        "ж" * 3000 + " the cat",
        "a dog " + "ж" * 3000,
    ]
    found = embed_sentences(*load_encoder(folder), long)
    np.testing.assert_allclose(found, encoded(folder, long), rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "modernbert", "eurobert", "deberta-v2"])
def test_sentences_are_cut_after_the_positions_only_where_these_are_relative(
    family: str, texts: list[str], tmp_path: Path
) -> None:
    tokenizer = word_pieces(texts)
    shape = SHAPES[family] | {"vocab_size": len(tokenizer), "pad_token_id": 0, "initializer_range": 0.5}
    config = AutoConfig.for_model(family, **shape | {"max_position_embeddings": 8})
    tokenizer.model_max_length = 8
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModel.from_config(config)
    folder = write_folder(tmp_path, tokenizer, chain(MEAN), transformer={"max_seq_length": 14})
    model.save_pretrained(folder)
    loaded, tokenizer = load_encoder(folder)
    assert own_max_length(loaded.config) == (8 if family == "bert" else 14)
    found = embed_sentences(loaded, tokenizer, texts)
    if family == "bert":
        write_json(folder / "sentence_bert_config.json", {"max_seq_length": 8})  # longer ones fail there
    np.testing.assert_allclose(found, encoded(folder, texts), rtol=0, atol=1e-5)
    loaded.config.return_dict = False  # as a configuration may say
    np.testing.assert_array_equal(embed_sentences(loaded, tokenizer, texts), found)


def test_a_configuration_may_name_no_padding(texts: list[str], tmp_path: Path) -> None:
    tokenizer = word_pieces(texts)
    config = AutoConfig.for_model("bert", **SHAPES["bert"] | {"vocab_size": len(tokenizer)})
    folder = write_folder(tmp_path, tokenizer, chain(MEAN))
    AutoModel.from_config(config).save_pretrained(folder)
    values = json.loads((folder / "config.json").read_text("utf-8"))
    write_json(folder / "config.json", values | {"pad_token_id": None})
    found = embed_sentences(*load_encoder(folder), texts)
    np.testing.assert_allclose(found, encoded(folder, texts), rtol=0, atol=1e-5)


def test_prompts_are_put_before_texts_by_name_by_text_or_not_at_all(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], tmp_path: Path
) -> None:
    stated = {"prompts": {"query": "the old man ", "other": "zwei Bücher:"}, "default_prompt_name": "query"}
    folder = write_folder(tmp_path, tokenizer, chain(MEAN, "Normalize"), config=stated)
    model, tokenizer = load_encoder(folder)
    others = chosen_prompt(model.config, name="other")
    by_text = [(prompt, {"prompt": prompt}) for prompt in ("", "x ")]
    for prompt, asked in [(None, {}), (others, {"prompt_name": "other"}), *by_text]:
        found = embed_sentences(model, tokenizer, texts, prompt=prompt)
        np.testing.assert_allclose(found, encoded(folder, texts, **asked), rtol=0, atol=1e-5)
        assert prompt is None or np.abs(found - embed_sentences(model, tokenizer, texts)).max() > 0.01
    with pytest.raises(BadInput, match="prompt_name is 'passage'; allowed are 'query', 'other'"):
        chosen_prompt(model.config, name="passage")


def test_settings_are_read_without_loading_the_model(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    modules = chain(MEAN, "Normalize", dense=[dense_config(32, 20)])
    folder = write_folder(tmp_path / "model", tokenizer, modules, {"max_seq_length": 40}, STATED)
    (folder / "model.safetensors").unlink()
    found = read_sentence_transformers_files(folder)
    dense = DenseSettings("2_Dense", bias=True, activation="Tanh")
    prompts = {"query": "the old man ", "passage": ""}
    assert found == SentenceTransformersSettings("mean", None, 40, True, prompts, "query", (dense,))
    assert found.default_prompt == "the old man "
    assert read_sentence_transformers_files(tmp_path) is None
    names = {path.relative_to(folder).as_posix() for path in settings_files(folder)}
    assert names == {
        "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json", "1_Pooling/config.json",
        "2_Dense/config.json", "2_Dense/model.safetensors", "3_Normalize/config.json",
    }  # fmt: skip
    named = (folder / "modules.json").read_text("utf-8")
    (folder / "modules.json").write_text(named.replace("1_Pooling", "pooling"), "utf-8")
    (folder / "1_Pooling").rename(folder / "pooling")
    assert folder / "pooling/config.json" in settings_files(folder)
    assert settings_files(tmp_path) == settings_files("me/model") == []


def test_the_files_count_where_config_json_says_something_else(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_folder(tmp_path, tokenizer)
    values = json.loads((folder / "config.json").read_text("utf-8"))
    write_json(folder / "config.json", values | {"embedding_pooling": "mean", "embedding_layer": 1})
    model, _ = load_encoder(folder)
    assert own_pooling(model.config) == Pooling("cls", LAST)
    assert (
        "config.json names the pooling mean of layer 1, modules.json cls of layer 2; the latter is used" in caplog.text
    )


@pytest.mark.parametrize("is_trained", [True, False])
def test_the_pooler_of_an_encoder_of_others_is_no_projection_though_it_names_a_pooling(
    is_trained: bool, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "model", tokenizer)
    if not is_trained:  # as one that nothing read in training
        encoder = AutoModel.from_pretrained(folder)
        torch.nn.init.zeros_(encoder.pooler.dense.bias)
        encoder.save_pretrained(folder)
    model, tokenizer = load_encoder(folder)
    with pytest.raises(BadInput, match="the projection, which this model does not have"):
        embed_sentences(model, tokenizer, ["the cat"], Pooling("projection", LAST))


def test_a_similarity_other_than_the_cosine_is_logged(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load_encoder(write_folder(tmp_path, tokenizer, chain(CLS), config={"similarity_fn_name": "dot"}))
    assert "are meant to be compared by dot" in caplog.text


# --- there and back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("projection_size", [None, 20])
@pytest.mark.parametrize("part", ["checkpoint", "encoder"])
@pytest.mark.parametrize("pooling", [Pooling("mean", 1), Pooling("cls", LAST), Pooling("projection", LAST)], ids=str)
def test_ours_that_sentence_transformers_has_saved_again_is_read_the_same(
    pooling: Pooling,
    part: str,
    projection_size: int | None,
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    tmp_path: Path,
) -> None:
    library = pytest.importorskip("sentence_transformers")
    model = model_for_text(
        initializer_range=0.5, embedding_pooling=pooling.mode, embedding_layer=pooling.layer,
        projection_size=projection_size,
    )  # fmt: skip
    if part == "encoder":
        export_encoder(model, tmp_path / part)
    else:
        model.save_pretrained(tmp_path / part)
    tokenizer.save_pretrained(tmp_path / part)
    write_sentence_transformers_files(tmp_path / part, model.config, model.projection)
    reader = library.SentenceTransformer(str(tmp_path / part), device="cpu", trust_remote_code=True)
    reader.max_seq_length = 12
    reader.prompts, reader.default_prompt_name = {"a": "the cat "}, "a"
    reader.save_pretrained(str(tmp_path / "again"))
    expected = reader.encode(texts)
    loaded = load_encoder(tmp_path / "again")
    assert own_pooling(loaded[0].config) == pooling
    np.testing.assert_allclose(embed_sentences(*loaded, texts), expected, rtol=0, atol=1e-5)
    first = embed_sentences(*load_encoder(tmp_path / part), texts, prompt="the cat ", max_length=12)
    np.testing.assert_allclose(first, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", ["not normalised", "cut", "a default prompt", "in lower case", "an inner layer"])
def test_what_was_read_is_kept_in_config_json_and_written_again(
    case: str, tokenizer: PreTrainedTokenizerBase, texts: list[str], tmp_path: Path
) -> None:
    model, tokenizer = load_encoder(write_folder(tmp_path / "first", tokenizer, **FOLDERS[case]))
    expected = embed_sentences(model, tokenizer, texts)
    model.save_pretrained(tmp_path / "second")
    tokenizer.save_pretrained(tmp_path / "second")
    np.testing.assert_array_equal(embed_sentences(*load_encoder(tmp_path / "second"), texts), expected)
    write_sentence_transformers_files(tmp_path / "second", model.config)
    np.testing.assert_allclose(encoded(tmp_path / "second", texts), expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(embed_sentences(*load_encoder(tmp_path / "second"), texts), expected)


def test_a_checkpoint_says_length_prompt_and_normalisation_in_its_configuration(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase, texts: list[str], tmp_path: Path
) -> None:
    settings = {"embedding_max_length": 9, "embedding_prompt": "a dog ", "embedding_normalize": False}
    model = model_for_text(HictlForPreTraining, initializer_range=0.5, embedding_pooling="mean", **settings)
    export_encoder(model, tmp_path)
    tokenizer.save_pretrained(tmp_path)
    expected = embed_sentences(
        model, tokenizer, [f"a dog {text}" for text in texts], prompt="", max_length=9, normalize=False
    )
    np.testing.assert_allclose(embed_sentences(*load_encoder(tmp_path), texts), expected, rtol=0, atol=1e-5)
    write_sentence_transformers_files(tmp_path, model.config)
    stated = json.loads((tmp_path / "config_sentence_transformers.json").read_text("utf-8"))
    assert (stated["prompts"], stated["default_prompt_name"]) == ({"query": "a dog ", "document": "a dog "}, "query")
    library = pytest.importorskip("sentence_transformers").SentenceTransformer(str(tmp_path), device="cpu")
    for encode in (library.encode, library.encode_query, library.encode_document):
        np.testing.assert_allclose(encode(texts), expected, rtol=0, atol=1e-5)


# --- what is refused --------------------------------------------------------------------------------------------------

DENSE = chain(CLS, dense=[dense_config(32, 20)])
POOLER = {"text": {"method": "forward", "method_output_name": "pooler_output"}}
LAYER_5 = json.loads(json.dumps(HIDDEN).replace("1]", "5]"))
RESIDUAL, OF_TOKENS = (
    {**dense_config(32, 20), name: "token_embeddings"} for name in ("use_residual", "module_input_name")
)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "max": (
        {"modules": chain({"pooling_mode_max_tokens": True})},
        "1_Pooling/config.json: the pooling is max; allowed is cls or mean",
    ),
    "weighted": ({"modules": chain({"pooling_mode": "weightedmean"})}, "the pooling is weightedmean"),
    "the last token": ({"modules": chain({"pooling_mode_lasttoken": True})}, "the pooling is lasttoken"),
    "over the root": ({"modules": chain({"pooling_mode_mean_sqrt_len_tokens": True})}, "mean_sqrt_len_tokens"),
    "two": ({"modules": chain({**CLS, "pooling_mode_mean_tokens": True})}, "the pooling is cls and mean"),
    "two by words": ({"modules": chain({"pooling_mode": ["mean", "max"]})}, "the pooling is mean and max; allowed"),
    "a pooling without its prompt": (
        {"modules": chain({**MEAN, "include_prompt": False}), "config": STATED},
        r"default_prompt_name is 'query', whose tokens are not pooled \(include_prompt is false\); allowed is a prompt",
    ),
    "a pooling without its prompt, by null": (
        {"modules": chain({**MEAN, "include_prompt": None}), "config": STATED},
        "config_sentence_transformers.json: default_prompt_name is 'query', whose tokens are not pooled",
    ),
    "no pooling by null": ({"modules": chain({"pooling_mode": None})}, "the pooling is None; allowed is cls or mean"),
    "no pooling by a list": ({"modules": chain({"pooling_mode": []})}, "the pooling is an empty list; allowed is"),
    "a number for a pooling": ({"modules": chain({"pooling_mode": 3})}, "1_Pooling/config.json: the pooling is 3;"),
    "a long name of a class": (
        {"modules": chain(CLS, "weighted_layer_pooling.WeightedLayerPooling"), "package": NEW},
        "modules.weighted_layer_pooling.WeightedLayerPooling'; allowed are",
    ),
    "LSTM": ({"modules": chain(CLS, "LSTM")}, "has a module 'sentence_transformers.models.LSTM'; allowed are"),
    "code": ({"package": "custom_st"}, "modules.json: has a module 'custom_st.Transformer'"),
    "order": (
        {"modules": [*chain(CLS, "Normalize"), ("Dense", "3_Dense", dense_config(32, 20))]},
        "modules.json: lists Transformer, Pooling, Normalize, Dense; allowed is",
    ),
    "no pooling": ({"modules": [PLAIN[0], PLAIN[2]]}, "lists Transformer, Normalize; allowed is Transformer, Pooling"),
    "a path outside": (
        {"modules": [PLAIN[0], ("Pooling", "./../1_Pooling", CLS)]},
        "has the path './../1_Pooling'; allowed is a folder in this one",
    ),
    "a length": ({"transformer": {"max_seq_length": 2}}, "sentence_bert_config.json: max_seq_length is 2; allowed is"),
    "a task": ({"transformer": {"transformer_task": "fill-mask"}}, "transformer_task is 'fill-mask'"),
    "the pooler": (
        {"transformer": {"modality_config": POOLER, "module_output_name": "sentence_embedding"}},
        "passes on 'pooler_output' of forward as sentence_embedding, for text; allowed is last_hidden_state",
    ),
    "no such layer": ({"transformer": LAYER_5}, "the layer read is 5; allowed is 0 to 2"),
    "a dense layer on an inner one": ({"transformer": HIDDEN, "modules": DENSE}, "the layer read is 1; allowed is 2"),
    "settings of the tokenizer": (
        {"transformer": {"tokenizer_args": {"use_fast": False}}},
        "tokenizer_args is {'use_fast': False}; allowed is none",
    ),
    "settings of the model": ({"transformer": {"model_args": {"hidden_size": 3}}}, "model_args has hidden_size"),
    "another default": (
        {"config": {"prompts": {"a": "b"}, "default_prompt_name": "c"}},
        "config_sentence_transformers.json: default_prompt_name is 'c'; allowed are a",
    ),
    "a cut vector": ({"config": {"truncate_dim": 8}}, "truncate_dim is 8; allowed is none"),
    "a default of no prompts": ({"config": {"default_prompt_name": "c"}}, "is 'c'; allowed are query, document"),
    "prompts in a list": ({"config": {"prompts": ["a"]}}, r"transformers.json: prompts is \['a'\]; allowed is a dict"),
    "a prompt with a special token": (
        {"config": {"prompts": {"a": "b</s> "}}},
        "config_sentence_transformers.json: the prompt 'b</s> ' has the special token '</s>'; allowed are prompts of",
    ),
    "arguments in a list": (
        {"transformer": {"model_args": ["a"]}},
        r"bert_config.json: model_args is \['a'\]; allowed",
    ),
    "modalities in a list": ({"transformer": {"modality_config": ["a"]}}, r"modality_config is \['a'\]; allowed is a"),
    "another kind of model": (
        {"config": {"model_type": "SparseEncoder"}},
        "model_type is 'SparseEncoder'; allowed is SentenceTransformer",
    ),
    "a prompt that is no text": ({"config": {"prompts": {"a": 3}}}, "a prompt is 3; allowed is text"),
    "an activation": (
        {"modules": chain(CLS, dense=[dense_config(32, 20, True, "activation.Softmax")])},
        "activation_function is 'torch.nn.modules.activation.Softmax'; allowed are Identity, Tanh",
    ),
    "a residual": ({"modules": chain(CLS, dense=[RESIDUAL])}, "2_Dense/config.json: use_residual is true"),
    "tokens": ({"modules": chain(CLS, dense=[OF_TOKENS])}, "module_input_name is 'token_embeddings'"),
    "sizes": (
        {"modules": chain(CLS, dense=[dense_config(31, 20)])},
        r"2_Dense/model.safetensors: has bias \(20,\), weight \(20, 31\); allowed are bias and weight of a linear",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_honoured_is_refused_in_one_line(
    case: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    settings, message = REFUSED[case]
    folder = write_folder(tmp_path / "model", tokenizer, **settings)
    with pytest.raises(BadInput, match=message) as refused:
        load_encoder(folder)
    assert str(refused.value).startswith(str(folder)) and "\n" not in str(refused.value)
    assert str(refused.value).endswith("Embed with sentence-transformers, or give another model.")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", "[{", r"modules.json: cannot be read \(JSONDecodeError"),
        ("modules.json", '{"a": 1}', "modules.json: is {'a': 1}; allowed is a list"),
        ("modules.json", '["Transformer"]', "modules.json: has the entry 'Transformer'; allowed are entries with name"),
        ("modules.json", '[{"path": null, "type": "a"}]', "has the entry {'path': None, 'type': 'a'}; allowed are"),
        ("1_Pooling/config.json", "[]", r"1_Pooling/config.json: is \[\]; allowed is a dictionary"),
        ("2_Dense/config.json", "[1]", r"2_Dense/config.json: is \[1\]; allowed is a dictionary"),
        ("sentence_bert_config.json", "[1]", r"sentence_bert_config.json: is \[1\]; allowed is a dictionary"),
        ("config_sentence_transformers.json", "[]", r"config_sentence_transformers.json: is \[\]; allowed is a dict"),
        ("1_Pooling/config.json", "", r"1_Pooling/config.json: cannot be read \(JSONDecodeError"),
        ("2_Dense/model.safetensors", "", "2_Dense/model.safetensors: cannot be read"),
    ],
)
def test_damaged_files_are_refused(
    file: str, content: str, message: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "model", tokenizer, DENSE)
    (folder / file).write_text(content, "utf-8")
    with pytest.raises(BadInput, match=message):
        load_encoder(folder)


def test_a_dense_layer_in_a_pickle_is_refused_and_not_run(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, tokenizer, DENSE)
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    message = "2_Dense/model.safetensors: is missing; allowed are weights in safetensors, .* Convert a folder of sent"
    with pytest.raises(BadInput, match=message):
        load_encoder(folder)


def test_a_dense_layer_without_its_config_is_refused(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, tokenizer, DENSE)
    (folder / "2_Dense" / "config.json").unlink()
    with pytest.raises(BadInput, match="2_Dense/config.json: is missing; allowed is a folder with all its files"):
        load_encoder(folder)


def test_modules_of_one_name_are_refused_of_which_the_library_keeps_the_last(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], tmp_path: Path
) -> None:
    folder = write_folder(tmp_path, tokenizer, chain(CLS, "Normalize", dense=[dense_config(32, 20)]))
    modules = json.loads((folder / "modules.json").read_text("utf-8"))
    write_json(folder / "modules.json", [*modules[:3], modules[3] | {"name": "2"}])
    assert encoded(folder, texts).shape[1] == 32
    with pytest.raises(BadInput, match="modules.json: has more than one module of name '2'; allowed are different"):
        load_encoder(folder)


@pytest.mark.parametrize("plain", [False, True])
def test_a_decoder_is_refused_whose_tokens_see_only_those_before_them(
    plain: bool, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path, tokenizer)
    if plain:
        (folder / "modules.json").unlink()
    values = json.loads((folder / "config.json").read_text("utf-8"))
    write_json(folder / "config.json", values | {"is_decoder": True})
    with pytest.raises(BadInput, match="config.json: is_decoder is true; allowed is false"):
        load_encoder(folder)


def test_an_adapter_without_its_model_is_named_for_what_it_is(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path, tokenizer)
    (folder / "config.json").rename(folder / "adapter_config.json")
    with pytest.raises(BadInput, match=r"has an adapter \(adapter_config.json\); allowed are weights with the adapter"):
        load_encoder(folder)


def test_a_pooling_without_the_prompt_refuses_a_prompt_only_where_one_is_given(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], tmp_path: Path
) -> None:
    stated = {"prompts": {"query": "query: "}}
    folder = write_folder(tmp_path, tokenizer, chain({**MEAN, "include_prompt": False}), config=stated)
    model, tokenizer = load_encoder(folder)
    np.testing.assert_allclose(embed_sentences(model, tokenizer, texts), encoded(folder, texts), rtol=0, atol=1e-5)
    with pytest.raises(BadInput, match="prompt is 'query: ', and the model pools without the tokens of a prompt"):
        embed_sentences(model, tokenizer, texts, prompt="query: ")


def test_dense_layers_are_read_in_any_precision(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], tmp_path: Path
) -> None:
    folder = write_folder(tmp_path, tokenizer, DENSE)
    model, tokenizer = load_encoder(folder, "bf16", "cpu")
    assert isinstance(model.projection, DenseLayers)
    found, expected = embed_sentences(model, tokenizer, texts), encoded(folder, texts)
    cosines = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosines.min() > 0.99 and np.linalg.norm(found) == pytest.approx(np.linalg.norm(expected), rel=0.01)


# --- the Hub ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "0_Transformer"])
def test_a_name_on_the_hub_is_read_as_its_folder(
    place: str, tokenizer: PreTrainedTokenizerBase, texts: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    modules = chain(CLS, "Normalize", transformer=place, dense=[dense_config(32, 20)])
    folder = write_folder(tmp_path / "model", tokenizer, modules, {"max_seq_length": 7}, STATED)
    expected = embed_sentences(*load_encoder(folder), texts)
    with serve() as hub:
        hub.add("me/model", folder, "a" * 40)
        np.testing.assert_array_equal(embed_sentences(*load_encoder("me/model"), texts), expected)
        assert "modules.json" not in caplog.text


def test_a_vocabulary_in_text_is_downloaded_with_a_sub_folder(texts: list[str], tmp_path: Path) -> None:
    tokenizer = word_pieces(texts)
    config = AutoConfig.for_model("bert", **SHAPES["bert"] | {"vocab_size": len(tokenizer)})
    folder = write_folder(tmp_path, tokenizer, chain(MEAN, transformer="0_Transformer"))
    place = folder / "0_Transformer"
    AutoModel.from_config(config).save_pretrained(place)
    ids = tokenizer.get_vocab()
    (place / "tokenizer.json").unlink()
    (place / "vocab.txt").write_text("".join(f"{piece}\n" for piece in sorted(ids, key=ids.__getitem__)), "utf-8")
    write_json(place / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
    expected = embed_sentences(*load_encoder(folder), texts)
    with serve() as hub:
        hub.add("me/old", folder, "a" * 40)
        np.testing.assert_array_equal(embed_sentences(*load_encoder("me/old"), texts), expected)


def test_without_a_connection_it_is_logged_that_a_model_may_have_more_files(
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from huggingface_hub import constants, hf_hub_download

    folder = write_folder(tmp_path / "model", tokenizer)
    (folder / "modules.json").unlink()
    with serve() as hub, caplog.at_level(logging.WARNING):
        hub.add("me/plain", folder, "a" * 40)
        for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
            hf_hub_download("me/plain", file)
        with monkeypatch.context() as patch:
            patch.setattr(constants, "HF_HUB_OFFLINE", True)
            assert read_sentence_transformers_files("me/plain") is None
        assert "me/plain: without a connection it is read as a model without modules.json" in caplog.text
        caplog.clear()
        assert read_sentence_transformers_files("me/plain") is None and not caplog.messages
