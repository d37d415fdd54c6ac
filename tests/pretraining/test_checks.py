"""Settings that cannot work are refused before the data is read."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from parsers import parse_arguments
from safetensors.torch import load_file, save_file

from hictl_hf.embedding.pooling import Pooling
from hictl_hf.errors import BadInput
from hictl_hf.hub.loading import load_tokenizer
from hictl_hf.pretraining import run
from hictl_hf.pretraining.checks import check_before_reading
from hictl_hf.pretraining.start import SENTENCE_ENCODER, Start, recognise

NEW = {"vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
EVALUATED = ("--eval_strategy", "steps")
STREAM = ("--streaming", "true", "--validation_file", "y", "--max_steps", "2")
REFUSED: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "length": (("--max_seq_length", "256"), {"max_position_embeddings": 66}, "max_seq_length is 256, but .* 64 tokens"),
    "layers": (("--evaluate_layers", "99"), {}, "evaluate_layers has 99; the model has the layers 0 .* to 2"),
    "dense": (
        ("--evaluate_layers", "1"), {"projection_activation": "tanh"}, "evaluate_layers is .1., but .* dense layer"
    ),
    "joined": (("--join_reordered", "true"), {}, "join_reordered is true, but word_level_input is 'masked'"),
    "heads": ((), {"num_attention_heads": 3}, "config_overrides .*32.*is not a multiple of .*attention heads"),
    "one pair": (("--per_device_train_batch_size", "1"), {}, "a contrastive batch has one pair, .* without negatives"),
    "activation": ((), {"hidden_act": "foo"}, "config_overrides .*foo"),
    "no heads": ((), {"num_attention_heads": 0}, "config_overrides .*: num_attention_heads is 0; allowed is 1 or more"),
    "no layers": ((), {"num_hidden_layers": 0}, "config_overrides .*: num_hidden_layers is 0; allowed is 1 or more"),
    "chunks": ((), {"chunk_size_feed_forward": 3}, "config_overrides .*: chunk_size_feed_forward is 3; allowed is 0"),
    "no number": ((), {"layer_norm_eps": float("nan")}, "config_overrides .*: layer_norm_eps is nan; allowed is a"),
    "infinite": ((), {"initializer_range": float("inf")}, "config_overrides .*: initializer_range is inf; allowed"),
    "padding": ((), {"pad_token_id": 5000}, "config_overrides .*: .*[Pp]adding_idx must be within num_embeddings"),
    "no loss": ((), dict.fromkeys(("lm_weight", "sentence_weight", "word_weight"), 0), "are 0, which leaves no loss"),
    "choice": ((), {"duplicates": "foo"}, "config_overrides .*: (ValueError: )?duplicates is 'foo'; it must be one of"),
    "metric": (
        ("--metric_for_best_model", "foo", *EVALUATED), {}, "metric_for_best_model is 'foo'; allowed are retrieval"
    ),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, saved_model: Callable[..., Path]) -> Path:
    """A checkpoint that reads 64 tokens."""
    return saved_model(tmp_path / "start").parent


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """`refusal(*flags)`: the message of a run with these flags, which must not read its data."""

    def message(*flags: str) -> str:
        monkeypatch.setattr(run, "read_corpora", lambda _: pytest.fail("the data was read"))
        with pytest.raises(BadInput) as refused:
            run.pretrain(parse_arguments(["--train_file", "x", *flags]))
        assert "\n" not in str(refused.value) and "Class validation" not in str(refused.value)
        return str(refused.value)

    return message


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("continued", [False, True])
def test_what_the_model_cannot_do_is_refused_before_the_data_is_read(
    case: str, continued: bool, folder: Path, refusal: Callable[..., str]
) -> None:
    flags, changes, message = REFUSED[case]
    start = ["--model_name_or_path", str(folder / "start")] if continued else []
    length = [] if "--max_seq_length" in flags else ["--max_seq_length", "60"]
    overrides = ["--config_overrides", json.dumps(changes if continued else NEW | changes)]
    found = refusal(*start, *length, *overrides, *flags, "--output_dir", str(folder / "out"))
    assert re.search(message, found), found


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"num_hidden_layers": 3}, r"encoder.layer.2.\S+ would be \(.*\), and the checkpoint does not have it"),
        ({"intermediate_size": 80}, r"intermediate.dense.weight would be \(80, 32\), .* has it as \(64, 32\)"),
        ({"max_position_embeddings": 99}, r"position_embeddings.weight would be \(99, 32\)"),
        ({"type_vocab_size": 2}, r"token_type_embeddings.weight would be \(2, 32\)"),
    ],
)
def test_other_shapes_than_the_checkpoint_has_are_refused_before_the_data_is_read(
    changes: dict[str, int], found: str, folder: Path, refusal: Callable[..., str]
) -> None:
    flags = ["--model_name_or_path", str(folder / "start"), "--max_seq_length", "60", "--output_dir", str(folder / "o")]
    message = refusal(*flags, "--config_overrides", json.dumps(changes))
    assert re.search(found, message) and str(changes) in message


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"num_attention_heads": 2}, "num_attention_heads is 2, and the checkpoint was trained with 4, so its weights"),
        ({"is_decoder": True}, "is_decoder is True, and the checkpoint was trained with False"),
        ({"hidden_act": "relu"}, "hidden_act is relu, and the checkpoint was trained with gelu"),
        ({"layer_norm_eps": 0.1}, "layer_norm_eps is 0.1, and the checkpoint was trained with 1e-12"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False, and"),
    ],
)
def test_fields_with_which_the_weights_are_another_model_are_refused_before_the_data_is_read(
    changes: dict[str, Any], found: str, folder: Path, refusal: Callable[..., str]
) -> None:
    flags = ["--model_name_or_path", str(folder / "start"), "--max_seq_length", "60", "--output_dir", str(folder / "o")]
    assert found in refusal(*flags, "--config_overrides", json.dumps(changes))


def test_values_of_the_start_other_objectives_and_fewer_layers_pass(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes = {"num_attention_heads": 4, "hidden_dropout_prob": 0.3, "word_weight": 0, "num_hidden_layers": 1}
    flags = ["--model_name_or_path", str(folder / "start"), "--max_seq_length", "60"]
    args = parse_arguments(["--train_file", "x", *flags, "--config_overrides", json.dumps(changes)])
    check_before_reading(args, recognise(str(folder / "start")), None)
    assert "of the 2 layers the first 1 are kept" in caplog.text


@pytest.mark.parametrize(
    ("value", "dtype"),
    [("nan", torch.float32), ("inf", torch.float32), ("nan", torch.bfloat16), ("nan", torch.float8_e4m3fn)],
)
def test_a_start_whose_weights_are_not_finite_is_refused_before_the_data_is_read(
    value: str, dtype: torch.dtype, folder: Path, refusal: Callable[..., str]
) -> None:
    path = folder / "start" / "model.safetensors"
    weights = {name: weight.to(dtype) for name, weight in load_file(path).items()}
    name = next(name for name in weights if name.endswith("layer.1.output.dense.weight"))
    weights[name][3, 2] = float(value)
    save_file(weights, path, {"format": "pt"})
    flags = ["--model_name_or_path", str(folder / "start"), "--max_seq_length", "60", "--output_dir", str(folder / "o")]
    assert f"{path}: {name} has values that are NaN or infinite; allowed are finite weights" in refusal(*flags)


def test_weights_that_are_not_read_may_be_anything(folder: Path, refusal: Callable[..., str]) -> None:
    path = folder / "start" / "model.safetensors"
    save_file(load_file(path) | {"roberta.pooler.dense.bias": torch.full((32,), torch.nan)}, path, {"format": "pt"})
    flags = ["--model_name_or_path", str(folder / "start"), "--max_seq_length", "60"]
    check_before_reading(parse_arguments(["--train_file", "x", *flags]), recognise(str(folder / "start")), None)


def test_a_prompt_without_room_for_text_is_refused_before_the_data_is_read(
    folder: Path, refusal: Callable[..., str]
) -> None:
    flags = f"--model_name_or_path {folder}/start --max_seq_length 8 --output_dir {folder}/out".split()
    assert "give a shorter --prompt, or a larger --max_seq_length" in refusal(
        *flags, "--prompt", "the cat sees a dog " * 3
    )


def test_words_that_only_the_tokenizer_has_are_refused_before_the_data_is_read(
    folder: Path, refusal: Callable[..., str]
) -> None:
    tokenizer = load_tokenizer(folder / "start")
    tokenizer.add_tokens([f"Scheibe{number}" for number in range(1000)])
    tokenizer.save_pretrained(folder / "start")
    message = refusal("--model_name_or_path", str(folder / "start"), "--max_seq_length", "60")
    assert "its tokenizer has" in message and "after adding words to it, resize and save the model, too" in message


def test_a_new_model_without_the_size_of_its_vocabulary_is_refused_before_the_data_is_read(
    folder: Path, refusal: Callable[..., str]
) -> None:
    assert "needs the size of its vocabulary" in refusal("--output_dir", str(folder))


@pytest.mark.parametrize(("weight", "logged"), [(1, True), (0, False)])
def test_a_language_model_without_a_masked_token_is_logged(
    weight: int, logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    flags = ["--max_seq_length", "60", "--mlm_probability", "0", "--tlm_probability", "0"]
    args = parse_arguments(["--train_file", "x", *flags, "--config_overrides", json.dumps(NEW | {"lm_weight": weight})])
    check_before_reading(args, Start(), None)
    assert ("no token is masked, so the language model learns nothing" in caplog.text) is logged


@pytest.mark.parametrize("family", ["xlm-roberta", "bert", "modernbert", "deberta-v2"])
def test_what_works_passes_and_draws_no_random_number(family: str) -> None:
    changes = {"model_type": family} | ({} if family == "xlm-roberta" else {"max_position_embeddings": 64})
    args = parse_arguments(
        ["--train_file", "x", "--max_seq_length", "60", "--config_overrides", json.dumps(NEW | changes)]
    )
    before = torch.get_rng_state(), random.getstate()
    check_before_reading(args, Start(), None)
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()


def test_a_metric_that_chooses_nothing_is_named(caplog: pytest.LogCaptureFixture) -> None:
    given = ("--train_file", "x", "--config_overrides", json.dumps(NEW), "--max_seq_length", "60")
    for flags, named in (
        (("--metric_for_best_model", "cls_1"), True),
        (("--metric_for_best_model", "cls_1", *EVALUATED), True),
        (("--metric_for_best_model", "cls_1", *EVALUATED, "--early_stopping_patience", "2"), False),
        (EVALUATED, False),
    ):
        caplog.clear()
        check_before_reading(parse_arguments([*given, *flags]), Start(), None)
        assert ("metric_for_best_model is cls_1, which chooses nothing" in caplog.text) == named


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--held_out_sentences", "0", "--early_stopping_patience", "2", *EVALUATED), "held_out_sentences is 0, so no"),
        (("--dropout", "1"), "dropout is 1, which leaves nothing; allowed is 0 or more and below 1"),
        (("--num_train_epochs", "inf"), "num_train_epochs is inf; allowed is 0 or more and finite"),
        (("--stream_shares", "2", "1"), "stream_shares is .*2.0, 1.0.*, which only a stream has; add --streaming true"),
        (
            ("--stream_buffer", "5"),
            "stream_buffer is 5, which only a stream has; add --streaming true, or",
        ),
        (
            (*STREAM, "--stream_buffer", "0"),
            "stream_buffer is 0; allowed is 1 or more",
        ),
        ((*STREAM, "--save_strategy", "epoch"), "save_strategy is epoch, and a stream has no end of an epoch"),
        ((*STREAM, "--eval_strategy", "epoch"), "eval_strategy is epoch"),
        ((*STREAM, "--logging_strategy", "epoch"), "logging_strategy is epoch"),
        ((*STREAM, "--stream_shares", "1", "--text_share", "0"), "text_share is 0.0, and stream_shares has the shares"),
        ((*STREAM, "--stream_shares", "1", "--pair_alpha", "1"), "pair_alpha is 1.0, and stream_shares has the shares"),
        (("--config_overrides", "embedding_prompt=query: "), "embedding_prompt is 'query:', which .*: give --prompt"),
        (("--config_overrides", "special_token_ids=[0]"), r"special_token_ids is \[0\], which .* from the tokenizer"),
        (("--config_overrides", "embedding_lower_case=true"), "embedding_lower_case is True, which .* as they are"),
    ],
)
def test_flags_without_effect_or_sense_are_refused(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse_arguments(["--train_file", "x", *flags])


LENGTH = ("--train_file", "x", "--max_seq_length", "60")


@pytest.mark.parametrize(
    ("flags", "changes", "named"),
    [
        (("--lm_head_warmup_steps", "7"), {"lm_weight": 0}, ["lm_head_warmup_steps"]),
        (("--lm_head_warmup_steps", "7"), {}, []),
        (("--lm_head_warmup_steps", "0"), {"lm_weight": 0}, []),
        (("--mlm_probability", "0.3"), {"lm_weight": 0}, []),  # the word level reads masked tokens, too
        (("--mlm_probability", "0.3"), {"lm_weight": 0, "word_weight": 0}, ["mlm_probability"]),
        (("--tlm_probability", "0.3"), {"lm_weight": 0, "word_level_input": "clean"}, ["tlm_probability"]),
    ],
)
def test_settings_that_no_loss_reads_are_named(
    flags: tuple[str, ...], changes: dict[str, Any], named: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    args = parse_arguments([*LENGTH, *flags, "--config_overrides", json.dumps(NEW | changes)])
    check_before_reading(args, Start(), None)
    assert re.findall(r"(\w+) has no effect", caplog.text) == named


def test_strength_of_hard_negatives_that_a_sentence_encoder_does_not_have_is_named(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start = Start(SENTENCE_ENCODER, Pooling("mean", 2))
    for changes, named in (({}, True), ({"hard_negatives": True}, False), ({"hard_negatives": False}, False)):
        caplog.clear()
        overrides = json.dumps({"hard_negative_zeta": 0.5} | changes)
        flags = ("--model_name_or_path", str(folder / "start"), "--config_overrides", overrides)
        check_before_reading(parse_arguments([*LENGTH, *flags]), start, None)
        assert ("hard_negative_zeta has no effect: hard_negatives is false" in caplog.text) is named


def test_a_start_that_is_read_at_an_inner_layer_is_told_where_it_is_trained(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start = Start(SENTENCE_ENCODER, Pooling("mean", 1))
    for changes, told in (({}, True), ({"sentence_weight": 0}, False), ({"num_hidden_layers": 1}, False)):
        caplog.clear()
        flags = ("--model_name_or_path", str(folder / "start"), "--config_overrides", json.dumps(changes))
        check_before_reading(parse_arguments([*LENGTH, *flags]), start, None)
        assert ("is read at layer 1, and training acts on that of layer 2, the last" in caplog.text) is told
