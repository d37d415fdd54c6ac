"""What a checkpoint is taken for, and the settings that follow from it."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from parsers import parse_arguments
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, XLMRobertaForMaskedLM, XLMRobertaModel

from hictl_hf import HictlForConditionalGeneration, HictlForPreTraining, export_encoder
from hictl_hf.embedding.encoder import embed_sentences, load_encoder
from hictl_hf.embedding.pooling import Pooling, own_pooling
from hictl_hf.embedding.sentence_transformers_files import save_sentence_encoder, write_sentence_transformers_files
from hictl_hf.errors import BadInput
from hictl_hf.pretraining.arguments import PretrainingArguments
from hictl_hf.pretraining.setup import config_settings, load_or_make_model, vocabulary_size
from hictl_hf.pretraining.start import ENCODER, HICTL, MASKED_LM, NEW, SENTENCE_ENCODER, apply_defaults, recognise

MakeModel = Callable[..., PreTrainedModel]


@pytest.fixture
def save(tmp_path: Path, model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase) -> Callable[..., str]:
    """`save(cls, as_xlm_roberta=True)`: the folder of a new model of this class."""

    def make(cls: type[PreTrainedModel]) -> str:
        model = model_for_text(HictlForPreTraining)
        if cls is not HictlForPreTraining:
            config = cls.config_class(
                **{k: v for k, v in model.config.to_dict().items() if k in cls.config_class().to_dict()}
            )
            config.model_type = "xlm-roberta"
            model = cls(config)
        model.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        return str(tmp_path)

    return make


def arguments(*flags: str) -> PretrainingArguments:
    return parse_arguments(["--train_file", "x", "--model_name_or_path", "e", *flags])


def test_without_a_checkpoint_the_model_is_new() -> None:
    start = recognise(None)
    assert (start.kind, start.config_overrides, start.learning_rate, start.lm_head_warmup_steps) == (NEW, {}, 2.5e-4, 0)


def test_a_masked_language_model_keeps_the_settings_of_the_paper(save: Callable[..., str]) -> None:
    start = recognise(save(XLMRobertaForMaskedLM))
    assert (start.kind, start.lm_head, start.config_overrides) == (MASKED_LM, True, {})
    assert (start.learning_rate, start.lm_head_warmup_steps) == (2.5e-4, 0)


def test_an_encoder_without_head_is_trained_at_the_mean_and_its_new_head_is_taught_first(
    save: Callable[..., str],
) -> None:
    start = recognise(save(XLMRobertaModel))
    assert (start.kind, start.pooling, start.lm_head) == (ENCODER, Pooling("mean", 2), False)
    assert start.config_overrides == {
        "sentence_pooling": "mean", "sentence_projection": False, "hard_negatives": False, "embedding_pooling": "mean",
        "embedding_layer": 2,
    }  # fmt: skip
    assert (start.learning_rate, start.lm_head_warmup_steps) == (5e-5, 100)


def test_a_pre_training_checkpoint_of_ours_is_continued_as_it_is(save: Callable[..., str]) -> None:
    start = recognise(save(HictlForPreTraining))
    assert (start.kind, start.lm_head, start.config_overrides) == (HICTL, True, {})


@pytest.mark.parametrize("mode", ["cls", "mean"])
def test_a_sentence_encoder_is_trained_at_the_vector_that_its_folder_says_it_is_read_at(
    save: Callable[..., str], mode: str
) -> None:
    folder = save(XLMRobertaModel)
    model = XLMRobertaModel.from_pretrained(folder)
    model.config.embedding_pooling = mode
    write_sentence_transformers_files(folder, model.config)
    start = recognise(folder)
    assert (start.kind, start.pooling) == (SENTENCE_ENCODER, Pooling(mode, 2))
    assert start.config_overrides["sentence_pooling"] == start.config_overrides["embedding_pooling"] == mode


def test_an_exported_encoder_without_other_files_is_read_as_its_configuration_says(
    tmp_path: Path, model_for_text: MakeModel
) -> None:
    model = model_for_text(embedding_pooling="mean", embedding_layer=1)
    export_encoder(model, tmp_path)
    assert recognise(str(tmp_path)).pooling == Pooling("mean", 1)


def test_the_default_prompt_of_a_folder_becomes_that_of_the_run(save: Callable[..., str]) -> None:
    folder = save(XLMRobertaModel)
    config = XLMRobertaModel.from_pretrained(folder).config
    config.embedding_prompt = "query: "
    write_sentence_transformers_files(folder, config)
    start = recognise(folder)
    assert start.prompt == "query: "
    for given, prompt in ((None, "query: "), ("", ""), ("text: ", "text: ")):
        args = arguments(*([] if given is None else ["--prompt", given]))
        apply_defaults(args, start)
        assert args.prompt == prompt


@pytest.mark.parametrize(("said", "longest"), [(24, 24), (10**30, 64)])
def test_the_length_of_a_folder_that_only_its_tokenizer_says_is_kept(
    save: Callable[..., str], tokenizer: PreTrainedTokenizerBase, said: int, longest: int
) -> None:
    """As sentence-transformers 6.2 writes it: without `max_seq_length`. The toy model reads 64 tokens."""
    folder = Path(save(XLMRobertaModel))
    write_sentence_transformers_files(folder, XLMRobertaModel.from_pretrained(folder).config)
    for file, name, value in (
        ("sentence_bert_config.json", "max_seq_length", None), ("tokenizer_config.json", "model_max_length", said),
    ):  # fmt: skip
        values = json.loads((folder / file).read_text("utf-8")) | {name: value}
        kept = {key: value for key, value in values.items() if value is not None}
        (folder / file).write_text(json.dumps(kept), "utf-8")
    args = arguments("--model_name_or_path", str(folder), "--max_seq_length", "60")
    assert tokenizer.model_max_length == 62, "that of another tokenizer says nothing of the folder"
    model, _ = load_or_make_model(args, tokenizer, recognise(args.checkpoint))
    assert model.config.embedding_max_length == load_encoder(folder)[0].config.embedding_max_length == longest
    model.config.save_pretrained(folder)
    write_sentence_transformers_files(folder, model.config)
    assert json.loads((folder / "sentence_bert_config.json").read_text("utf-8"))["max_seq_length"] == longest


def test_a_checkpoint_of_ours_keeps_its_prompt(tmp_path: Path, model_for_text: MakeModel) -> None:
    model_for_text(embedding_prompt="query: ").save_pretrained(tmp_path)
    assert recognise(str(tmp_path)).prompt == "query: "


def test_an_adapted_checkpoint_of_ours_is_adapted_further(tmp_path: Path, model_for_text: MakeModel) -> None:
    adapted = model_for_text(sentence_pooling="mean", sentence_projection=False, embedding_pooling="mean")
    adapted.save_pretrained(tmp_path)
    start = recognise(str(tmp_path))
    assert (start.kind, start.pooling, start.learning_rate) == (HICTL, Pooling("mean", 2), 5e-5)
    assert start.lm_head_warmup_steps == 0


@pytest.mark.parametrize("changes", [{"sentence_projection": False}, {"projection_bias": True}], ids=str)
def test_a_checkpoint_of_ours_keeps_its_objectives_however_it_is_read(
    changes: dict[str, bool], tmp_path: Path, model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    before = model_for_text(**changes).config
    model_for_text(**changes).save_pretrained(tmp_path)
    args = arguments("--model_name_or_path", str(tmp_path), "--max_seq_length", "60")
    model, _ = load_or_make_model(args, tokenizer, recognise(args.checkpoint))
    for name in ("hard_negatives", "sentence_projection", "sentence_pooling", "projection_bias"):
        assert getattr(model.config, name) == getattr(before, name), name


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("sentence_bert_config.json", {"do_lower_case": True}, "texts in lower case"),
        (
            "1_Pooling/config.json",
            {"pooling_mode": "mean", "include_prompt": False},
            "without the tokens of the prompt",
        ),
    ],
)
def test_what_can_be_read_but_not_trained_is_refused(
    save: Callable[..., str], file: str, values: dict[str, object], message: str
) -> None:
    folder = save(XLMRobertaModel)
    write_sentence_transformers_files(folder, XLMRobertaModel.from_pretrained(folder).config)
    (Path(folder) / file).write_text(json.dumps(values))
    with pytest.raises(BadInput, match=message):
        recognise(folder)


def test_dropout_of_the_training_is_not_that_of_the_configuration(
    save: Callable[..., str], tokenizer: PreTrainedTokenizerBase
) -> None:
    args = parse_arguments([
        "--train_file", "x", "--model_name_or_path", save(XLMRobertaForMaskedLM), "--dropout", "0.25",
        "--max_seq_length", "60", "--config_overrides", '{"hidden_dropout_prob": 0.1}',
    ])  # fmt: skip
    model, _ = load_or_make_model(args, tokenizer, recognise(args.checkpoint))
    assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == {0.25}
    assert model.config.hidden_dropout_prob == 0.1


def test_a_new_model_gets_the_configuration_of_another_without_its_weights(
    save: Callable[..., str], tokenizer: PreTrainedTokenizerBase
) -> None:
    folder = save(HictlForPreTraining)
    values = json.loads((Path(folder) / "config.json").read_text("utf-8"))
    values |= {"embedding_layer": 1, "embedding_prompt": "query: ", "word_negatives": 7}
    (Path(folder) / "config.json").write_text(json.dumps(values), "utf-8")
    (Path(folder) / "model.safetensors").unlink()
    flags = ["--train_file", "x", "--config_name", folder, "--config_overrides", "num_hidden_layers=1"]
    args = parse_arguments([*flags, "--max_seq_length", "60"])
    assert vocabulary_size(config_settings(args)) == values["vocab_size"]
    model, new = load_or_make_model(args, tokenizer, recognise(args.checkpoint))
    config = model.config
    assert (config.hidden_size, config.word_negatives) == (values["hidden_size"], 7) and not new
    assert config.num_hidden_layers == len(model.roberta.encoder.layer) == 1 < values["num_hidden_layers"]
    assert config.embedding_layer is config.embedding_prompt is None  # no weights to read so


def test_what_is_given_is_kept(save: Callable[..., str]) -> None:
    args = arguments("--learning_rate", "0.001", "--lm_head_warmup_steps", "0")
    apply_defaults(args, recognise(save(XLMRobertaModel)))
    assert (args.learning_rate, args.lm_head_warmup_steps) == (0.001, 0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--keep_start", "1.5"], "keep_start is '1.5'; allowed is auto, or a number from 0 to 1"),
        (["--keep_start", "yes"], "keep_start is 'yes'"),
        (["--keep_start", "auto", "--shard_parameters", "true"], "leave it out, or shard_parameters"),
        (["--lm_head_warmup_steps", "-1"], "lm_head_warmup_steps is -1"),
    ],
)
def test_settings_that_cannot_work_are_refused(flags: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        arguments(*flags)
    with pytest.raises(BadInput, match="keep_start needs an encoder"):
        parse_arguments(["--train_file", "x", "--keep_start", "0.5"])


def test_a_sentence_encoder_in_a_sub_folder_is_refused_for_that(tmp_path: Path) -> None:
    kinds = {"0_Transformer": "Transformer", "1_Pooling": "Pooling"}
    modules = [{"name": path, "path": path, "type": f"sentence_transformers.models.{kinds[path]}"} for path in kinds]
    (tmp_path / "modules.json").write_text(json.dumps(modules), "utf-8")
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}', "utf-8")
    with pytest.raises(BadInput, match="ask for weights in a sub-folder, which training does not support; allowed is"):
        recognise(str(tmp_path))


@pytest.mark.parametrize("words", [None, 40])
def test_a_translation_model_is_no_start_but_its_encoder_is(
    words: int | None, tmp_path: Path, model_for_text: MakeModel
) -> None:
    model = model_for_text(HictlForConditionalGeneration, decoder_layers=1, decoder_vocab_size=words)
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(BadInput, match="is a translation model, whose decoder .*; allowed are encoders"):
        recognise(str(tmp_path / "model"))
    export_encoder(model, tmp_path / "encoder")
    assert not recognise(str(tmp_path / "encoder")).lm_head


def test_layers_above_the_one_that_is_read_may_be_left_out(
    tmp_path: Path, model_for_text: MakeModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    """The warning of a start that is read at an inner layer says so."""
    save_sentence_encoder(model_for_text(embedding_pooling="mean", embedding_layer=1), tokenizer, tmp_path)
    flags = ("--max_seq_length", "60", "--config_overrides", '{"num_hidden_layers": 1}')
    args = arguments("--model_name_or_path", str(tmp_path), *flags)
    model, _ = load_or_make_model(args, tokenizer, recognise(args.checkpoint))
    assert own_pooling(model.config) == Pooling("mean", model.config.num_hidden_layers) == Pooling("mean", 1)
    vectors = [embed_sentences(each, tokenizer, ["the cat"]) for each in (model.eval(), load_encoder(tmp_path)[0])]
    np.testing.assert_allclose(*vectors, atol=1e-6)
