"""The parts of a run: corpora without held-out texts, the sample for a vocabulary, settings that decide a run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from parsers import parse_arguments
from toy_families import word_pieces
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, XLMRobertaConfig

from hictl_hf.data.cleaning import CorpusReport
from hictl_hf.data.sampling import TemperatureSampler
from hictl_hf.errors import BadInput
from hictl_hf.hub.loading import load_tokenizer
from hictl_hf.models.configuration_hictl import CODE_ON_THE_HUB, HictlConfig, config_class
from hictl_hf.models.modeling_hictl import new_model
from hictl_hf.pretraining import setup
from hictl_hf.pretraining.arguments import PretrainingArguments
from hictl_hf.pretraining.corpora import Corpora, without_texts
from hictl_hf.pretraining.setup import (
    config_of_start,
    decisive_settings,
    newer_settings,
    sample_sentences,
    vocabulary_size,
)
from hictl_hf.pretraining.start import Start
from hictl_hf.training import model_and_data
from hictl_hf.training.callbacks import TrainingTime

TRAIN = Dataset.from_list(
    [{"x": "a cat", "y": "eine Katze"}, {"x": "a dog", "y": "ein Hund"}, {"x": "a text", "y": None}]
)


def test_no_training_row_shares_a_text_with_held_out_pairs_on_either_side() -> None:
    assert without_texts(TRAIN, Dataset.from_list([{"x": "A  CAT", "y": "ein Kater"}]))["x"] == ["a dog", "a text"]
    assert without_texts(TRAIN, Dataset.from_list([{"x": "a hound", "y": "ein Hund"}]))["x"] == ["a cat", "a text"]
    assert without_texts(TRAIN, Dataset.from_list([{"x": "ein Text", "y": "a text"}]))["x"] == ["a cat", "a dog"]


def test_a_vocabulary_is_learned_from_both_sides_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sorted(sample_sentences(TRAIN, 1)) == ["a cat", "a dog", "a text", "ein Hund", "eine Katze"]
    assert list(sample_sentences(TRAIN, 1)) == list(sample_sentences(TRAIN, 1))
    monkeypatch.setattr(setup, "SENTENCES_FOR_VOCABULARY", 1)
    assert 1 <= len(list(sample_sentences(TRAIN, 1))) <= 2


def test_a_process_that_does_not_see_the_learned_vocabulary_is_told_of_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    args = parse_arguments(["--output_dir", str(tmp_path), "--config_overrides", "vocab_size=60", "--train_file", "x"])
    monkeypatch.setattr(PretrainingArguments, "process_index", 1)
    with pytest.raises(BadInput, match="tokenizer: .*process 1 does not see it.*all machines share"):
        setup.load_or_train_tokenizer(args, TRAIN)


def test_a_new_model_needs_the_size_of_its_vocabulary() -> None:
    assert vocabulary_size({"vocab_size": 12}) == 12
    for settings, message in (({}, "needs the size of its vocabulary"), ({"vocab_size": "x"}, "vocab_size is 'x'")):
        with pytest.raises(BadInput, match=message):
            vocabulary_size(settings)


def test_the_hash_of_corpora_changes_with_what_is_held_out() -> None:
    pair, other = (Dataset.from_list([{"x": text, "y": "y"}]) for text in ("a", "b"))
    report = CorpusReport(hash="of the rows")
    hashes = [Corpora(TRAIN, dev, test, report).hash for dev, test in ((None, None), (pair, other), (other, pair))]
    assert len({*hashes, Corpora(TRAIN, None, None, CorpusReport(hash="other")).hash}) == 4


def test_the_number_of_pairs_of_a_step_decides_not_how_it_is_divided(tmp_path: Path) -> None:
    def settings(*flags: str) -> dict[str, object]:
        return decisive_settings(parse_arguments(["--train_file", "x", "--output_dir", str(tmp_path), *flags]))

    whole = settings("--per_device_train_batch_size", "8")
    assert whole["pairs of a step"] == 8
    assert whole == settings("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2")
    assert whole != settings("--per_device_train_batch_size", "8", "--seed", "7")
    assert whole == settings("--per_device_train_batch_size", "8", "--max_steps", "7")  # it may train longer
    with_options = settings("--join_reordered", "true", "--pair_separators", "1")
    assert {name for name in with_options if with_options[name] != settings()[name]} == {
        "join_reordered", "pair_separators",
    }  # fmt: skip
    assert settings()["join_reordered"] is settings()["pair_separators"] is None, "as runs before 0.10 are compared"
    assert settings()["freeze_word_embeddings"] is None


@pytest.mark.parametrize(("steps", "weights", "is_told"), [(40, 0, True), (101, 0, False), (40, 1, False)])
def test_a_run_that_teaches_only_a_new_head_is_told(
    steps: int, weights: float, is_told: bool, corpus: Dataset, tokenizer: PreTrainedTokenizerBase,
    model_for_text: Callable[..., PreTrainedModel], tmp_path: Path, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    flags = ["--train_file", "x", "--output_dir", str(tmp_path), "--lm_head_warmup_steps", "100"]
    args = parse_arguments([*flags, "--max_steps", str(steps), "--max_seq_length", "60"])
    model = model_for_text(sentence_weight=weights, word_weight=weights)
    corpora = Corpora(corpus, None, None, CorpusReport(hash="abc"))
    setup.make_trainer(args, model, tokenizer, corpora, TrainingTime())
    assert ("the encoder stays as it is" in caplog.text) is is_told


def test_fewer_rows_than_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch with a row for some processes only is not trained on, so that nothing would be trained at all."""
    monkeypatch.setattr(PretrainingArguments, "world_size", 4)
    languages = {"x_lang": ["en"] * 3, "y_lang": ["de", "de", None]}
    rows = Dataset.from_dict({**TRAIN[:], **languages})
    corpora = Corpora(rows, None, None, CorpusReport(hash="of the rows"))
    args = parse_arguments(["--train_file", "x", "--output_dir", str(tmp_path)])
    tokenizer = word_pieces([text for row in TRAIN for text in row.values() if text])
    with pytest.raises(BadInput, match="the training data has 3 rows, and 4 processes share each step"):
        setup.examples_and_sampler(args, tokenizer, corpora)
    monkeypatch.setattr(PretrainingArguments, "world_size", 3)
    assert len(setup.examples_and_sampler(args, tokenizer, corpora)[1]) == 1


@pytest.mark.parametrize(("share", "told"), [("0.4", False), ("0.1", True), ("0", True)])
def test_languages_that_are_never_drawn_are_named(
    share: str, told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two texts, one and three pairs: a share of 0.1 is 0.6 of the six draws of an epoch, some 0.3 a language."""
    rows = Dataset.from_dict({**TRAIN.select([0, 1, 0, 2, 2, 2])[:], "x_lang": ["en"] * 5 + ["sw"]})
    rows = rows.add_column("y_lang", ["de"] * 3 + [None] * 3)
    args = parse_arguments(["--train_file", "x", "--output_dir", str(tmp_path), "--text_share", share])
    tokenizer = word_pieces([text for row in TRAIN for text in row.values() if text])
    _, sampler = setup.examples_and_sampler(args, tokenizer, Corpora(rows, None, None, CorpusReport(hash="a")))
    assert dict(zip(sampler.groups, sampler.draws.tolist()))["sw", None] == 0**told
    assert (
        f"text_share is {share}: never drawn is en, sw, with a share of less than one of the 6" in caplog.text
    ) is told


def test_a_language_that_the_tokenizer_does_not_know_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All its texts may have the token ids of a held-out one, and be left out for that."""
    tokenizer = word_pieces([text for row in TRAIN for text in row.values() if text])
    languages = {"x_lang": ["en"] * 3, "y_lang": ["de", "zgh", None]}
    rows = Dataset.from_dict({"x": TRAIN["x"], "y": ["eine Katze", "ⴰⵎⵓⵛⵛ ⵏ", None], **languages})
    args = parse_arguments(["--train_file", "x", "--output_dir", str(tmp_path)])
    setup.examples_and_sampler(args, tokenizer, Corpora(rows, None, None, CorpusReport(hash="a")))
    (message,) = caplog.messages
    assert message.startswith("100 % of the tokens of the first texts in 'zgh' are unknown to the tokenizer")


@pytest.mark.parametrize(("share", "kind"), [("0", "sw:{}/a.txt (sw)"), ("1", "{}/a.jsonl (en-de)")])
def test_sources_of_a_stream_that_are_never_read_are_named(
    share: str, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("habari\n", "utf-8")
    (tmp_path / "a.jsonl").write_text('{"en": "a cat", "de": "eine Katze"}\n', "utf-8")
    flags = ["--train_file", f"{tmp_path}/a.jsonl", f"sw:{tmp_path}/a.txt", "--validation_file", "x", "--streaming"]
    args = parse_arguments([*flags, "true", "--max_steps", "2", "--text_share", share, "--output_dir", str(tmp_path)])
    stream = setup.stream_of_batches(args, word_pieces(["a cat"]), frozenset())
    assert len(stream.sources) == 1 and caplog.messages == [
        f"text_share is {share}: never read is {kind}".format(tmp_path)
    ]


def test_line_aligned_files_of_a_stream_are_counted_before_a_run_begins(tmp_path: Path) -> None:
    """A line that is missing at the beginning makes all pairs wrong, and a run may end before the file does."""
    for name, text in {"a.en": "a cat\na dog\n", "a.de": "ein Hund\n"}.items():
        (tmp_path / name).write_text(text, "utf-8")
    flags = ["--train_file", f"{tmp_path}/a.{{en,de}}", "--validation_file", "x", "--streaming", "true", "--max_steps"]
    args = parse_arguments([*flags, "1", "--output_dir", str(tmp_path / "run")])
    with pytest.raises(BadInput, match="a.en has 2 lines, .*a.de has 1 lines; allowed are files of equal length"):
        setup.stream_of_batches(args, word_pieces(["a cat"]), frozenset())
    args.resume_from_checkpoint = "checkpoint-1"  # they were counted before, and have the same sizes
    setup.stream_of_batches(args, word_pieces(["a cat"]), frozenset())


def test_no_weights_are_downloaded_for_a_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []
    values = {"model_type": "xlm-roberta", "hidden_size": 8}
    monkeypatch.setattr(
        PreTrainedConfig, "get_config_dict", lambda *name, **at: asked.append((name, at)) or (values, {})
    )
    monkeypatch.setattr(model_and_data, "snapshot_download", lambda *given, **settings: pytest.fail("downloads all"))
    flags = ["--config_name", "me/x", "--model_revision", "v1", "--config_overrides", "hidden_size=12"]
    args = parse_arguments([*flags, "--train_file", "x", "--output_dir", str(tmp_path)])
    assert setup.config_settings(args) == {"model_type": "xlm-roberta", "hidden_size": 12}
    assert asked == [(("me/x",), {"revision": "v1"})]


@pytest.mark.parametrize(("last", "found"), [(("de", "en"), ["de-en"]), (("en", "fr"), None), (("en", None), None)])
def test_runs_with_both_directions_of_a_pair_are_not_continued_with_the_shares_of_before(
    last: tuple[str, str | None], found: list[str] | None
) -> None:
    """`None` is what checkpoints of releases before have, so that all others are continued."""
    groups = {key: np.arange(3) for key in (("en", "de"), last)}
    sampler = TemperatureSampler(np.ones(6), groups, dict.fromkeys(groups, 0.5), 2, 1)
    assert setup.both_directions(sampler) == found and setup.both_directions(None) is None


def test_what_is_contrasted_the_vocabulary_the_optimiser_and_the_start_decide_a_run(
    tmp_path: Path, model_for_text: Callable[..., PreTrainedModel]
) -> None:
    tokenizer, other = word_pieces(["the cat"]), word_pieces(["the dog"])
    start, model = {"weight": torch.ones(2)}, model_for_text(seed=0)

    def settings(*flags: str, **changes: Any) -> dict[str, object]:
        args = parse_arguments(["--train_file", "x", "--output_dir", str(tmp_path), *flags])
        return newer_settings(args, **{"tokenizer": tokenizer, "start": start, "model": model, **changes})

    whole = settings("--per_device_train_batch_size", "8")
    divided = "--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2"
    assert whole == settings(*divided, "--gradient_cache", "true") != settings(*divided)
    for changed in (
        settings("--per_device_train_batch_size", "8", "--optim", "sgd"),
        settings("--per_device_train_batch_size", "8", tokenizer=other),
        settings("--per_device_train_batch_size", "8", start={"weight": torch.zeros(2)}),
        settings("--per_device_train_batch_size", "8", start=None),
    ):
        assert changed.keys() == whole.keys() and sum(changed[name] != whole[name] for name in whole) == 1
    best = "--load_best_model_at_end", "true", "--eval_strategy", "steps", "--eval_steps", "500"
    assert settings(*best) != settings(*best, "--metric_for_best_model", "retrieval") != settings()
    layers = "--evaluate_layers", "1"
    assert settings(*layers) == settings() and settings(*best, *layers) != settings(*best)
    other_start, grouped = model_for_text(seed=1), ("--group_by_similarity", "words")
    assert settings(model=other_start) == settings()
    assert settings(*grouped, model=other_start) != settings(*grouped) == settings(*grouped, model=model)


def test_what_a_start_says_of_its_outputs_changes_no_training(tmp_path: Path) -> None:
    XLMRobertaConfig(output_attentions=True, output_hidden_states=True, return_dict=False).save_pretrained(tmp_path)
    config = config_of_start(str(tmp_path), {}, Start())
    assert (config.output_attentions, config.output_hidden_states, config.return_dict) == (False, False, True)


@pytest.mark.parametrize("kind", [XLMRobertaConfig, HictlConfig])
def test_a_run_does_not_pass_on_the_code_that_its_start_names(tmp_path: Path, kind: type[Any]) -> None:
    """It would be run where the run's model is loaded with `trust_remote_code`, as its card says."""
    code = {"AutoModel": "evil/code--evil.Evil", "AutoModelForTokenClassification": "evil/code--evil.Evil"}
    kind(auto_map=code, vocab_size=99).save_pretrained(tmp_path)
    named = json.loads((tmp_path / "config.json").read_text("utf-8"))["auto_map"]
    assert named.items() >= code.items()
    assert config_of_start(str(tmp_path), {}, Start()).auto_map == CODE_ON_THE_HUB
    if kind is XLMRobertaConfig:
        assert HictlConfig.from_pretrained(tmp_path).auto_map == CODE_ON_THE_HUB


def test_a_tokenizer_does_not_pass_on_the_code_that_its_files_name(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    tokenizer.save_pretrained(tmp_path)
    place = tmp_path / "tokenizer_config.json"
    place.write_text(json.dumps(json.loads(place.read_text("utf-8")) | {"auto_map": {"AutoTokenizer": ["e.E", None]}}))
    load_tokenizer(tmp_path).save_pretrained(tmp_path / "again")
    assert "auto_map" not in json.loads((tmp_path / "again" / place.name).read_text("utf-8"))


def test_dropout_is_that_of_each_part_of_modernbert() -> None:
    """transformers makes some of its parts only where the configuration has dropout."""
    sizes = {"vocab_size": 99, "num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 6, "pad_token_id": 0}
    model = new_model(config_class("modernbert")(**sizes))
    setup.set_dropout(model, 0.25)
    parts = [
        getattr(layer.attn, name) for layer in model.base_model.layers for name in ("out_drop", "attention_dropout")
    ]
    assert [getattr(part, "p", part) for part in parts] == 4 * [0.25]
