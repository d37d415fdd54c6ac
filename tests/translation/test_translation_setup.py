"""What a translation run starts from: sources that are too long are counted, a new decoder has the paper's size."""

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from parsers import parse_translation_arguments
from safetensors.torch import load_file, save_file
from toy_families import bytes_as_letters, gemma_pieces, word_pieces
from transformers import PreTrainedTokenizerBase, TrainingArguments

from hictl_hf.data.cleaning import CorpusReport
from hictl_hf.errors import BadInput
from hictl_hf.files import write_json
from hictl_hf.models.configuration_hictl import HictlConfig
from hictl_hf.models.families import FAMILIES
from hictl_hf.models.modeling_hictl_translation import HictlForConditionalGeneration
from hictl_hf.translation import run
from hictl_hf.translation.arguments import TranslationArguments
from hictl_hf.translation.corpus import Direction, Pair
from hictl_hf.translation.setup import (
    check_new_decoder,
    choose_words,
    config_of_run,
    count_long,
    load_or_make_model,
    new_decoder,
    note_held_out,
    read_data,
    warn_of_spaces,
)


def arguments(folder: Path, *more: str) -> TranslationArguments:
    pairs = ["--train_file", str(folder / "a.{en,de}"), "--source_lang", "en", "--target_lang", "de"]
    return parse_translation_arguments(["--model_name_or_path", str(folder), *pairs, *more])


def test_texts_longer_than_the_model_reads_are_counted(tokenizer: PreTrainedTokenizerBase) -> None:
    assert count_long(["a dog", " ".join(["dog"] * 30)], tokenizer, 20) == 1 and count_long([], tokenizer, 20) == 0


def test_a_tokenizer_that_adds_spaces_is_named(
    tokenizer: PreTrainedTokenizerBase, caplog: pytest.LogCaptureFixture
) -> None:
    texts = ["Don't stop, it's well-known.", "a dog", "It's 3.5 km!"]
    warn_of_spaces(["ein Hund", "die  Katze"], tokenizer)
    for pieces in (gemma_pieces, bytes_as_letters):
        warn_of_spaces(texts, pieces(texts))
    warn_of_spaces([], tokenizer)
    assert not caplog.text
    warn_of_spaces(texts, word_pieces(texts))
    assert "writes 2 of 3 references with other spaces" in caplog.text
    assert '"It\'s 3.5 km!" becomes "It \' s 3. 5 km!"' in caplog.text


def test_a_tokenizer_that_writes_other_characters_is_named(
    tokenizer: PreTrainedTokenizerBase, caplog: pytest.LogCaptureFixture
) -> None:
    """NFKC of XLM-R's changes Chinese punctuation and the Thai vowel am: no translation equals such a reference."""
    warn_of_spaces(["两本书", *["the old man"] * 30, "两本，书"], tokenizer)  # one of 32 is no share
    assert not caplog.text
    warn_of_spaces(["两本，书", "the old man"], tokenizer)
    assert "writes 1 of 2 references with other characters" in caplog.text
    assert '"两本，书" becomes ' in caplog.text or "'两本，书' becomes " in caplog.text


def test_a_test_set_that_is_trained_on_is_told_unless_it_is_a_hundredth(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    direction, report = Direction("en", "de"), CorpusReport()
    train = {direction: Dataset.from_dict({"source": ["a", "b"], "target": ["c", "d"]})}
    pairs = [Pair(*texts, direction, "x:1") for texts in [("a", "c"), *[("e", "f")] * 99]]
    note_held_out({"validation": [], "test": pairs}, train, report)
    assert not report.messages and not caplog.text
    note_held_out({"validation": pairs, "test": [*pairs, Pair("b", "d", direction, "x:2")]}, train, report)
    assert len(report.messages) == 1 and report.messages[0].startswith("2 of the 101 pairs of test are in train, too")
    assert report.messages[0] in caplog.text


@pytest.mark.parametrize(("layers", "asked", "expected"), [(12, [], {}), (24, [], {"decoder_layers": 6})])
def test_a_new_decoder_has_the_papers_layers(layers: int, asked: list[str], expected: dict[str, int]) -> None:
    given = parse_translation_arguments(
        ["--model_name_or_path", "x", "--train_file", "a.{en,de}", "--source_lang", "en", "--target_lang", "de", *asked]
    )
    assert new_decoder(given, HictlConfig(num_hidden_layers=layers)) == expected
    given.decoder_layers, given.cls_bias = 2, "none"
    assert new_decoder(given, HictlConfig(num_hidden_layers=layers)) == {"decoder_layers": 2, "cls_bias": "none"}


def test_what_is_left_out_of_train_is_counted(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    (tmp_path / "a.en").write_text("a dog\n" + "dog " * 70 + "\nthe cat\n", "utf-8")
    (tmp_path / "a.de").write_text("ein Hund\nHund\ndie Katze\n", "utf-8")
    data = read_data(arguments(tmp_path), HictlConfig(max_position_embeddings=66), tokenizer)
    assert data.train is not None and len(data.train) == 2 and data.report.skipped["too long"] == 1
    assert data.validation == data.test == [] and data.cut == {"validation": 0, "test": 0}
    assert [*data.counts] == ["de"] and choose_words("off", tokenizer, data, FAMILIES["xlm-roberta"]) is None
    kept = choose_words("auto", tokenizer, data, FAMILIES["xlm-roberta"])
    assert kept and set(data.train[0]["labels"]) <= set(kept)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory, saved_model: Callable[..., Path]) -> Path:
    return saved_model(tmp_path_factory.mktemp("encoder"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--cls_bias", "foo"], "--cls_bias foo: cls_bias is 'foo'; it must be one of 'none', 'dot', 'cosine'"),
        (["--cls_bias_scale", "foo"], "--cls_bias_scale foo: cls_bias_scale is 'foo'; it must be one of"),
        (["--decoder_layers", "0"], "--decoder_layers 0: decoder_layers is 0; it must be at least 1"),
        (["--decoder_layers", "99999999999"], "--decoder_layers 99999999999: .* allowed are 1,000"),
        (["--config_overrides", "decoder_attention_heads=5"], "--config_overrides .*decoder_attention_heads.*multiple"),
        (["--config_overrides", "decoder_dropout=2"], "--config_overrides .*: decoder_dropout is 2; it must be 0 or"),
        (["--config_overrides", "num_attention_heads=2"], "num_attention_heads is 2, and the encoder was trained wi"),
        (["--config_overrides", "hidden_act=relu"], "hidden_act is relu, and the encoder was trained with gelu"),
        (["--config_overrides", "num_hidden_layers=1"], "num_hidden_layers is 1, and the encoder was trained with 2"),
        (["--config_overrides", "decoder_layers=2", "--decoder_layers", "3"], "--decoder_layers is 3, and in --con"),
        (["--resume_from_checkpoint", "no"], "resume_from_checkpoint is 'no'; a run goes on by itself"),
        pytest.param(
            ["--metric", "comet", "--test_file", "a.{en,de}"], "--metric comet: the package unbabel-comet cannot be",
            marks=pytest.mark.skipif(find_spec("comet") is not None, reason="COMET is installed"),
        ),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_before_the_data_is_read(
    flags: list[str], message: str, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "read_data", lambda *_: pytest.fail("the data was read"))
    with pytest.raises(BadInput, match=message) as refused:
        run.run_translation(arguments(encoder, "--output_dir", str(tmp_path), *flags))
    assert "\n" not in str(refused.value) and "Class validation" not in str(refused.value)


def test_several_gpus_of_one_process_are_refused_before_anything_is_read(
    encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingArguments, "n_gpu", 2)
    monkeypatch.setattr(run, "config_of_run", lambda *_: pytest.fail("the encoder was read"))
    with pytest.raises(BadInput, match="one process sees 2 GPUs"):
        run.run_translation(arguments(encoder))


def test_a_decoder_that_can_be_made_passes_and_draws_no_random_number(encoder: Path) -> None:
    args = arguments(encoder, "--config_overrides", "decoder_attention_heads=2", "--resume_from_checkpoint", "yes")
    before = torch.get_rng_state()
    check_new_decoder(args, config_of_run(args))
    assert torch.equal(before, torch.get_rng_state())


def test_a_decoder_without_dropout_is_told_unless_it_was_asked_for(
    encoder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The configuration of the demo's encoder says 0; --dropout of a pre-training run is not recorded there."""
    for given, told in ((["decoder_dropout=0"], False), (["decoder_dropout=0.1"], False), ([], True)):
        args = arguments(encoder, *(["--config_overrides", *given] if given else []))
        check_new_decoder(args, config_of_run(args))
        assert ("the new decoder has no dropout" in caplog.text) == told
    assert "pre-training" not in caplog.text


@pytest.mark.parametrize("is_continued", [False, True])
def test_weights_that_are_not_finite_are_refused_before_the_data_is_read(
    is_continued: bool, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "read_data", lambda *_: pytest.fail("the data was read"))
    folder = Path(shutil.copytree(encoder, tmp_path / "start"))
    if is_continued:
        HictlForConditionalGeneration.from_encoder(folder, target_languages=["de"]).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    part = "decoder" if is_continued else "output"
    name = next(name for name in weights if part in name and name.endswith("dense.weight"))
    save_file(weights | {name: weights[name] / 0}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(BadInput, match=f"model.safetensors: {name} has values that are NaN or infinite"):
        run.run_translation(arguments(folder, "--output_dir", str(tmp_path / "out")))


def test_more_beams_than_the_words_allow_are_refused_before_training(
    encoder: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    for language, text in (("en", "a dog"), ("de", "ein Hund")):
        (encoder / f"a.{language}").write_text(f"{text}\n", "utf-8")
    given = arguments(encoder, "--num_beams", "90")
    config = config_of_run(given)
    data = read_data(given, config, tokenizer)
    with pytest.raises(BadInput, match=r"num_beams is 90; allowed is up to \d+, half the decoder's \d+ words"):
        load_or_make_model(given, config, tokenizer, data)


def test_a_folder_that_is_no_encoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="neither an encoder that HiCTL trains, nor"):
        config_of_run(arguments(tmp_path))


def test_the_sub_folder_of_an_encoder_is_named(tmp_path: Path) -> None:
    package = "sentence_transformers.models"
    modules = [{"path": "0_T", "type": f"{package}.Transformer"}, {"path": "1", "type": f"{package}.Pooling"}]
    write_json(tmp_path / "modules.json", modules)
    write_json(tmp_path / "1/config.json", {"pooling_mode": "mean"})
    with pytest.raises(BadInput, match=f"its files for sentence-transformers say that it is in {tmp_path}/0_T"):
        config_of_run(arguments(tmp_path))


def test_a_start_that_lacks_weights_is_refused(encoder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(encoder, tmp_path / "start"))
    HictlForConditionalGeneration.from_encoder(folder, target_languages=["de"]).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.bias"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    for name, text in (("a.en", "a dog\n"), ("a.de", "ein Hund\n")):
        (folder / name).write_text(text, "utf-8")
    with pytest.raises(BadInput, match=f"{folder}: has no weights for 1 parts, such as lm_head.bias"):
        run.run_translation(arguments(folder, "--output_dir", str(tmp_path / "out")))


def test_a_generation_config_that_is_no_object_is_refused_with_the_model(encoder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(encoder, tmp_path / "start"))
    HictlForConditionalGeneration.from_encoder(folder, target_languages=["de"]).save_pretrained(folder)
    for name, text in (("a.en", "a dog\n"), ("a.de", "ein Hund\n"), ("generation_config.json", "[]")):
        (folder / name).write_text(text, "utf-8")
    with pytest.raises(BadInput, match=f"{folder}: 'list' object is not a mapping"):
        run.run_translation(arguments(folder, "--output_dir", str(tmp_path / "out")))
