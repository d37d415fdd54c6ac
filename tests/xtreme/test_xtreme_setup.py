"""What a run on XTREME starts from, and what is refused before it trains."""

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_families import bytes_as_letters
from transformers import (
    BertConfig,
    ByT5Tokenizer,
    EuroBertConfig,
    GPT2Config,
    GPT2Model,
    MT5Config,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from hictl_hf.errors import BadInput
from hictl_hf.files import write_json
from hictl_hf.xtreme.arguments import XtremeArguments
from hictl_hf.xtreme.run import run_xtreme
from hictl_hf.xtreme.setup import check_encoder, load_config_and_tokenizer, read_data, size_of_settings, tell_idle


@pytest.fixture
def without_border(sentences: dict[str, list[str]]) -> PreTrainedTokenizerBase:
    """A tokenizer like Qwen3's, that adds no special token, and has no unknown one."""
    backend = bytes_as_letters(sentences["en"]).backend_tokenizer
    backend.post_processor = None
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end_of_text|>")


@pytest.mark.parametrize(("layers", "asked", "size"), [(12, None, "base"), (24, None, "large"), (24, "base", "base")])
def test_the_size_of_the_settings_follows_from_the_layers(layers: int, asked: str | None, size: str) -> None:
    config = XLMRobertaConfig(num_hidden_layers=layers)
    assert size_of_settings(XtremeArguments(model_name_or_path="x", size=asked), config) == size


def test_arguments_without_effect_on_the_tasks_are_named(caplog: pytest.LogCaptureFixture) -> None:
    def named(tasks: list[str], **given: Any) -> str:
        caplog.clear()
        args = XtremeArguments(model_name_or_path="x", tasks=tasks, **given)
        tell_idle(args, args.chosen_tasks)
        return " | ".join(caplog.messages)

    every = {"bf16": True, "per_device_eval_batch_size": 9, "learning_rate": [1e-5], "setting": "translate-train"}
    assert named(["tatoeba"], **every) == (
        "setting, learning_rate, bf16, per_device_eval_batch_size: no effect on tatoeba, which is not fine-tuned"
    )
    assert named(["panx", "xnli"], layer=3, sweep_layers=True, compat=True, data=".") == (
        "layer, sweep_layers: no effect on xnli, panx, which are not retrieval"
    )
    assert named(["tatoeba", "panx"], layer=3, learning_rate=[1e-5]) == ""
    assert named(["panx"], compat=True, data=".") == "compat: no effect on panx"
    assert named(["pawsx", "xquad"], compat=True) == "compat: no effect on pawsx"  # the Hub's texts are not quoted
    assert named(["pawsx", "xquad"]) == named([*XtremeArguments(model_name_or_path="x").tasks]) == ""


def test_a_folder_without_an_encoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no encoder with a tokenizer that loads"):
        load_config_and_tokenizer(XtremeArguments(model_name_or_path=str(tmp_path)))


def test_the_results_of_a_run_of_another_kind_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"history": []}')
    with pytest.raises(BadInput, match="has the results.json of something else, which would be replaced"):
        run_xtreme(XtremeArguments(model_name_or_path="x", tasks=["tatoeba"], output_dir=str(tmp_path)))


def test_several_gpus_of_one_process_are_refused_before_anything_is_read_where_a_model_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    given = {"model_name_or_path": str(tmp_path), "output_dir": str(tmp_path / "out")}
    with pytest.raises(BadInput, match="one process sees 2 GPUs .*; start one process for each"):
        run_xtreme(XtremeArguments(**given, tasks=["panx", "tatoeba"]))
    with pytest.raises(BadInput, match="no encoder with a tokenizer that loads"):
        run_xtreme(XtremeArguments(**given, tasks=["tatoeba"]))


@pytest.mark.usefixtures("on_apple")
def test_an_accelerator_that_is_not_used_is_logged_where_a_model_is_trained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(BadInput, match="no encoder with a tokenizer that loads"):
        run_xtreme(XtremeArguments(model_name_or_path=str(tmp_path), tasks=["panx"], output_dir=str(tmp_path / "out")))
    assert caplog.messages == ["training runs on the CPU: it uses GPUs of CUDA or ROCm, and this machine has mps"]


def test_only_the_languages_asked_for_are_read(xtreme_folder: Path, tmp_path: Path) -> None:
    args = XtremeArguments(model_name_or_path="x", data=str(xtreme_folder), tasks=["panx", "tatoeba"], languages=["de"])
    panx, tatoeba = read_data(args.chosen_tasks, args)
    assert [*panx.test] == [*tatoeba.test] == ["de"] and [*panx.train] == ["en"]
    args.data = str(tmp_path)
    with pytest.raises(BadInput, match="has nothing to score. panx: no file panx/test-XX.tsv; tatoeba: no file"):
        read_data(args.chosen_tasks, args)


@pytest.mark.parametrize("task", ["pawsx", "tatoeba"])
def test_an_encoder_in_a_sub_folder_of_sentence_transformers_is_read_like_one_in_the_folder(
    task: str, xtreme_folder: Path, tmp_path: Path, tokenizer: PreTrainedTokenizerBase,
    model_for_text: Callable[..., PreTrainedModel],
) -> None:  # fmt: skip
    given: dict[str, Any] = {"data": str(xtreme_folder), "languages": ["de"], "tasks": [task], "num_train_epochs": 1}
    scores = []
    for place in ("", "0_Transformer"):
        folder = tmp_path / f"encoder{place}"
        model_for_text(XLMRobertaModel).save_pretrained(folder / place)
        tokenizer.save_pretrained(folder / place)
        package = "sentence_transformers.models"
        modules = [{"path": place, "type": f"{package}.Transformer"}, {"path": "1", "type": f"{package}.Pooling"}]
        write_json(folder / "modules.json", modules)
        write_json(folder / "1/config.json", {"pooling_mode": "mean"})
        prompts = {"prompts": {"query": "the house "}, "default_prompt_name": "query"}
        write_json(folder / "config_sentence_transformers.json", prompts)
        args = XtremeArguments(model_name_or_path=str(folder), output_dir=str(tmp_path / f"out{place}"), **given)
        found = run_xtreme(args).tasks[task]
        scores.append((found.languages, found.signatures))
    assert scores[0] == scores[1] and ("the house" in str(scores)) == (task == "tatoeba")


# --- encoders of other kinds than XLM-R -------------------------------------------------------------------------------


def check(data: Path, tasks: list[str], config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    args = XtremeArguments(model_name_or_path="x", data=str(data), tasks=tasks, languages=["de"])
    check_encoder(args, config, tokenizer, read_data(args.chosen_tasks, args))


@pytest.mark.parametrize("task", ["panx", "pawsx", "xquad"])
def test_a_tokenizer_without_padding_pads_with_the_end(
    task: str, without_border: PreTrainedTokenizerBase, xtreme_folder: Path, tmp_path: Path
) -> None:
    folder, sizes = tmp_path / "encoder", {"n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 512}
    GPT2Model(GPT2Config(vocab_size=len(without_border), **sizes)).save_pretrained(folder)
    without_border.save_pretrained(folder)
    given: dict[str, Any] = {"model_name_or_path": str(folder), "data": str(xtreme_folder), "languages": ["de"]}
    given |= {"tasks": [task], "num_train_epochs": 1, "learning_rate": [1e-3], "output_dir": str(tmp_path / "out")}
    assert load_config_and_tokenizer(XtremeArguments(**given))[1].pad_token == "<|end_of_text|>"
    assert run_xtreme(XtremeArguments(**given)).tasks[task].languages["de"]


def test_padding_is_the_id_after_which_positions_begin(
    tokenizer: PreTrainedTokenizerBase, xtreme_folder: Path, tmp_path: Path, toy_model: Callable[..., PreTrainedModel]
) -> None:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.pad_token = None
    toy_model(vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config, loaded = load_config_and_tokenizer(XtremeArguments(model_name_or_path=str(tmp_path)))
    assert loaded.pad_token_id == config.pad_token_id == 1
    loaded.pad_token = loaded.eos_token
    check(xtreme_folder, ["tatoeba"], config, loaded)
    with pytest.raises(BadInput, match="x: its positions begin after the id of padding, 1, and the tokenizer's is 2;"):
        check(xtreme_folder, ["panx"], config, loaded)


def test_ids_that_the_encoder_lacks_are_refused(
    without_border: PreTrainedTokenizerBase, xtreme_folder: Path, tmp_path: Path,
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase,
) -> None:  # fmt: skip
    model_for_text(XLMRobertaModel).save_pretrained(tmp_path)
    without_border.save_pretrained(tmp_path)
    with pytest.raises(BadInput, match=f"its tokenizer has the id .*, its model {len(tokenizer)} embeddings; they do"):
        load_config_and_tokenizer(XtremeArguments(model_name_or_path=str(tmp_path)))
    without_border.add_special_tokens({"pad_token": "[PAD]"})  # without more embeddings, as in many tutorials
    size = without_border.pad_token_id
    with pytest.raises(
        BadInput, match=f"x: its tokenizer pads with the id {size}, and the model has {size} embeddings"
    ):
        check(xtreme_folder, ["panx"], GPT2Config(vocab_size=size), without_border)


def test_a_tokenizer_without_padding_and_end_is_refused(
    without_border: PreTrainedTokenizerBase, xtreme_folder: Path
) -> None:
    without_border.eos_token = None
    with pytest.raises(
        BadInput, match="x: its tokenizer has no token for padding, and none for the end; allowed is one"
    ):
        check(xtreme_folder, ["panx"], Qwen3Config(), without_border)
    check(xtreme_folder, ["tatoeba"], Qwen3Config(), without_border)


def test_pairs_that_nothing_separates_are_logged(
    without_border: PreTrainedTokenizerBase, xtreme_folder: Path, tokenizer: PreTrainedTokenizerBase,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    without_border.pad_token = without_border.eos_token
    with caplog.at_level(logging.WARNING):
        check(xtreme_folder, ["pawsx", "panx", "xquad"], BertConfig(), tokenizer)
        check(xtreme_folder, ["panx", "tatoeba"], Qwen3Config(), without_border)
        assert not caplog.messages
        check(xtreme_folder, ["pawsx", "panx", "xquad"], Qwen3Config(), without_border)
    assert "x: its tokenizer puts nothing between two texts; in pawsx, xquad they are read as one text" in caplog.text


@pytest.mark.parametrize(
    ("task", "config", "message"),
    [
        ("xquad", EuroBertConfig(), "xquad: x is of the type eurobert, and transformers has no ForQuestionAnswering"),
        ("tatoeba", MT5Config(), "tatoeba: x is of the type mt5, an encoder with a decoder; allowed is an encoder"),
    ],
)
def test_an_encoder_that_cannot_do_a_task_is_refused(
    task: str, config: PreTrainedConfig, message: str, xtreme_folder: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    with pytest.raises(BadInput, match=f"{message}.*; give another encoder, or run other --tasks"):
        check(xtreme_folder, ["panx", task], config, tokenizer)


def test_a_slow_tokenizer_is_refused_where_tokens_are_aligned(xtreme_folder: Path) -> None:
    check(xtreme_folder, ["pawsx"], BertConfig(), ByT5Tokenizer())
    with pytest.raises(BadInput, match="panx: the tokenizer of x is a ByT5Tokenizer, which does not say where its"):
        check(xtreme_folder, ["pawsx", "panx"], BertConfig(), ByT5Tokenizer())
