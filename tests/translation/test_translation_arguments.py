"""Arguments of a translation run: what follows from the step and the data, and values that are refused."""

from pathlib import Path
from typing import Any

import pytest
from parsers import parse_translation_arguments

from hictl_hf.errors import BadInput
from hictl_hf.models.modeling_hictl_translation import HictlForConditionalGeneration
from hictl_hf.training.fields import idle_steps
from hictl_hf.translation.arguments import TranslationArguments
from hictl_hf.translation.beam_search import BeamSearchConfig

PAIRS = ["--train_file", "a.{en,de}", "--source_lang", "en", "--target_lang", "de"]


def parsed(*more: str) -> TranslationArguments:
    return parse_translation_arguments([*PAIRS, *more])


@pytest.mark.parametrize(("step", "rate", "frozen"), [("1", 5e-4, True), ("2", 2e-5, False)])
def test_the_step_decides_learning_rate_and_encoder(step: str, rate: float, frozen: bool) -> None:
    found = parsed("--model_name_or_path", "x", "--step", step)
    assert (found.learning_rate, found.freeze_encoder) == (rate, frozen)
    assert parsed("--model_name_or_path", "x", "--step", step, "--learning_rate", "1e-3").learning_rate == 1e-3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ('{"aggressive": "false"}', "aggressive of Moses' tokenizer is 'false'; allowed is true or false"),
        ('{"split_compounds": 2}', "split_compounds of Moses' tokenizer is 2; allowed is true or false"),
    ],
    ids=["text", "number"],
)
def test_a_tokenizer_of_multi_bleu_with_other_values_is_refused(flags: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parsed("--model_name_or_path", "x", "--metric", "multi-bleu", "--multi_bleu", flags)


def test_a_tokenizer_of_multi_bleu_without_effect_is_named(caplog: pytest.LogCaptureFixture) -> None:
    given = ("--model_name_or_path", "x", "--multi_bleu", '{"aggressive": true}', "--metric")
    assert parsed(*given, "multi-bleu").multi_bleu == {"aggressive": True} and not caplog.text
    assert parsed(*given, "chrf").multi_bleu and "multi_bleu has no effect with --metric chrf" in caplog.text


def test_a_random_encoder_that_stays_as_it_is_is_named(caplog: pytest.LogCaptureFixture) -> None:
    given = ("--model_name_or_path", "x", "--random_encoder", "true")
    assert not parsed(*given, "--freeze_encoder", "false").freeze_encoder and not caplog.text
    assert parsed(*given).freeze_encoder and "the random weights of the encoder are not trained" in caplog.text


def test_a_scale_of_no_bias_is_named(caplog: pytest.LogCaptureFixture) -> None:
    given = ("--model_name_or_path", "x", "--cls_bias_scale", "fixed", "--cls_bias")
    assert parsed(*given, "dot") and not caplog.text
    assert parsed(*given, "none") and "cls_bias_scale has no effect with --cls_bias none" in caplog.text


def test_a_temperature_that_the_bias_does_not_read_is_named(caplog: pytest.LogCaptureFixture) -> None:
    given = ("--model_name_or_path", "x", "--config_overrides", "cls_bias_temperature=0.5")
    assert parsed(*given, "--cls_bias", "cosine") and not caplog.text
    assert parsed(*given) and "cls_bias_temperature has no effect with --cls_bias dot" in caplog.text


def test_states_are_saved_when_they_are_validated() -> None:
    given = ("--model_name_or_path", "x", "--eval_strategy", "steps", "--eval_steps", "7")
    found = parsed(*given, "--validation_file", "b.{en,de}", "--average_checkpoints", "4")
    assert found.save_strategy == "steps" and found.save_steps == 7 and found.load_best_model_at_end
    assert found.save_total_limit == 5 and found.metric_for_best_model == "eval_sacrebleu"
    best = parsed(*given, "--validation_file", "b.{en,de}", "--save_strategy", "best")
    assert not idle_steps(best), "of steps that were not given nothing is said"
    assert parsed("--model_name_or_path", "x").eval_strategy == "no"  # nothing to validate on
    with pytest.raises(BadInput, match="eval_strategy is steps, but there are no pairs to validate on"):
        parsed(*given)


def test_search_and_directions_are_those_of_the_arguments() -> None:
    found = parsed("--model_name_or_path", "x", "--num_beams", "3", "--max_length_b", "7")
    assert found.beam == BeamSearchConfig(3, 1.0, max_length_b=7)
    assert [str(direction) for direction in found.directions] == ["en-de"]


def test_a_model_is_searched_as_it_says_unless_the_flags_say_otherwise(
    translator: HictlForConditionalGeneration, tmp_path: Path
) -> None:
    def beams(model: Path, *flags: str) -> tuple[int, float]:
        beam = parsed("--model_name_or_path", str(model), *flags).beam
        return beam.num_beams, beam.length_penalty

    translator.generation_config.update(num_beams=2, length_penalty=0.2, early_stopping=True)
    translator.save_pretrained(tmp_path / "model")
    assert beams(tmp_path / "model") == (2, 0.2)
    assert beams(tmp_path / "model", "--num_beams", "3") == (3, 0.2)
    assert beams(tmp_path / "model", "--length_penalty", "1.0") == (2, 1.0)
    translator.generation_config.update(num_beams=1, length_penalty=1.0, early_stopping=False)
    translator.save_pretrained(tmp_path / "greedy")
    assert beams(tmp_path / "greedy") == (1, 1.0)
    (tmp_path / "greedy/generation_config.json").unlink()
    assert beams(tmp_path / "greedy") == (5, 1.0)
    translator.get_encoder().save_pretrained(tmp_path / "encoder")
    assert beams(tmp_path / "encoder") == (5, 1.0)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "there is no model; give --model_name_or_path: an encoder, which gets a new decoder"),
        (
            ["--model_name_or_path", "x", "--trim_target_vocab", "half"],
            "trim_target_vocab is 'half'; allowed are auto, off",
        ),
        (["--model_name_or_path", "x", "--metric", "ter"], "metric is 'ter'; allowed are sacrebleu"),
        (["--model_name_or_path", "x", "--target_lang", "en"], "one or more languages each, and two that differ"),
        (
            ["--model_name_or_path", "x", "--target_lang", "de", "en"],
            "no other language is translated into en; allowed",
        ),
    ],
)
def test_wrong_arguments_are_refused(more: list[str], message: Any) -> None:
    with pytest.raises(BadInput, match=message):
        parsed(*more)
