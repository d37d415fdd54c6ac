"""Fine-tuned models: their candidates, training languages and names, and tasks that are refused before training."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from toy_families import bytes_as_letters
from transformers import PreTrainedTokenizerBase

from hictl_hf.errors import BadInput
from hictl_hf.xtreme import fine_tuned_models
from hictl_hf.xtreme.arguments import XtremeArguments
from hictl_hf.xtreme.data import TaskData
from hictl_hf.xtreme.fine_tuned_models import FineTunedModels, device
from hictl_hf.xtreme.question_answering import QuestionAnswering
from hictl_hf.xtreme.setup import read_data
from hictl_hf.xtreme.tasks import TASKS

TABLE = {task.name: task for task in TASKS}


def models(
    tokenizer: PreTrainedTokenizerBase, longest: int = 512, size: str = "base", **changes: Any
) -> FineTunedModels:
    return FineTunedModels(XtremeArguments(model_name_or_path="x", **changes), tokenizer, size, longest)


def test_candidates_are_all_combinations_with_the_tasks_own_defaults(tokenizer: PreTrainedTokenizerBase) -> None:
    found = models(tokenizer, longest=64, learning_rate=[1e-5, 2e-5], seed=[1, 2]).candidates(TABLE["panx"])
    settings = [(config.learning_rate, config.batch_size, config.max_length, seed) for config, seed in found]
    assert settings == [(rate, 32, 64, seed) for rate in (1e-5, 2e-5) for seed in (1, 2)]
    found = models(tokenizer, per_device_train_batch_size=[8, 16], num_train_epochs=0.5).candidates(TABLE["panx"])
    assert [(config.batch_size, config.epochs, config.max_length) for config, _ in found] == [
        (8, 0.5, 128), (16, 0.5, 128)
    ]  # fmt: skip
    for size, rate, epochs in (("base", 2e-5, 5), ("large", 3e-5, 5)):
        [(config, _)] = models(tokenizer, size=size).candidates(TABLE["xnli"])
        assert (config.learning_rate, config.epochs) == (rate, epochs)


def test_models_are_shared_where_they_are_chosen_on_the_same_rows(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(FineTunedModels, "choose", lambda self, data, languages, key: made.append(key) or object())
    xquad, mlqa = (TaskData(TABLE[name]) for name in ("xquad", "mlqa"))
    shared = models(tokenizer)
    assert shared.trained_on(xquad, ("en",)) is shared.trained_on(mlqa, ("en",)) and made == ["squad-en"]
    shared.trained_on(mlqa, ("de",))
    shared.trained_on(mlqa, ("en",))
    assert made == ["squad-en", "squad-de", "squad-en"]  # one stays in memory
    assert models(tokenizer, select_on="target").key_of(mlqa, ("en",)) == "mlqa-en"


@pytest.mark.parametrize("compat", [False, True])
def test_the_official_extraction_of_answers_is_that_of_questions_alone(
    compat: bool, tokenizer: PreTrainedTokenizerBase
) -> None:
    made = models(tokenizer, compat=compat)
    questions = made.features_of(TABLE["xquad"], Dataset.from_dict({}), 384)
    assert isinstance(questions, QuestionAnswering) and questions.compat == compat
    tagged = Dataset.from_list([{"words": ["a"], "tags": ["O"]}])
    assert made.features_of(TABLE["panx"], tagged, 128).labels == ("O",)


def test_translations_get_the_tags_of_the_english_model_and_english_keeps_its_own(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    english = SimpleNamespace(predict=lambda rows, _: [["B-PER"] * len(row["words"]) for row in rows])
    monkeypatch.setattr(FineTunedModels, "trained_on", lambda self, data, languages: english)
    train = {
        "en": Dataset.from_list([{"words": ["a", "b"], "tags": ["O", "O"]}]),
        "de": Dataset.from_list([{"words": ["c"], "tags": ["_"]}]),
    }
    data = TaskData(TABLE["panx"], train=train)  # type: ignore[arg-type]
    found = models(tokenizer, setting="translate-train-all").training_set(data, ("en", "de"))
    assert found["tags"][:] == [["O", "O"], ["B-PER"]]


@pytest.mark.parametrize(
    ("setting", "languages"),
    [("zero-shot", ("en",)), ("translate-train", ("zh",)), ("translate-train-all", ("en", "de", "zh"))],
)
def test_the_training_languages_of_a_setting(
    setting: str, languages: tuple[str, ...], tokenizer: PreTrainedTokenizerBase
) -> None:
    found = models(tokenizer, setting=setting)
    train: Any = {"zh": None, "en": None, "de": None}
    data = TaskData(TABLE["pawsx"], train=train)
    assert found.languages_for(data, "zh") == languages
    assert found.key_of(data, languages) == f"pawsx-{'-'.join(languages)}"


def test_a_model_and_its_predictions_depend_on_train_dev_and_test(
    xtreme_folder: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    given = {"data": str(xtreme_folder), "tasks": ["panx"], "languages": ["de"]}
    args = XtremeArguments(model_name_or_path="x", **given)  # type: ignore[arg-type]
    [data] = read_data(args.chosen_tasks, args)
    before = {each.name: each.hash for each in models(tokenizer, **given).derived(data)}
    assert [*before] == ["panx-en", "panx de"]
    data.train["en"] = data.train["en"].select(range(5))
    after = {each.name: each.hash for each in models(tokenizer, **given).derived(data)}
    assert all(before[name] != after[name] for name in before)
    data.dev["en"] = data.dev["en"].select(range(5))
    chosen_by_others = {each.name: each.hash for each in models(tokenizer, **given).derived(data)}
    assert all(chosen_by_others[name] != after[name] for name in before)
    after = chosen_by_others
    # models that read each word without the space before it are not taken for those that read it
    spaced = {each.name: each.hash for each in models(bytes_as_letters(["a a"] * 9), **given).derived(data)}
    assert all(spaced[name] != after[name] for name in before)


class KnowsChinese:
    """Instead of a fine-tuned model: its predictions are correct in Chinese alone."""

    def predict(self, examples: Dataset, *_: object, **__: object) -> list[str]:
        return [row["label"] if row["first"] == "中" else "wrong" for row in examples]


@pytest.mark.parametrize(
    ("setting", "trained_on", "score"),
    [
        ("translate-train", ("zh",), 100), ("translate-train", ("de",), 0), ("translate-train", ("en",), 50),
        ("zero-shot", ("en",), 50), ("translate-train-all", ("en", "de", "zh"), 50),
    ],
)  # fmt: skip
def test_a_model_is_chosen_on_the_languages_that_it_predicts(
    setting: str, trained_on: tuple[str, ...], score: float, tokenizer: PreTrainedTokenizerBase
) -> None:
    """In translate-train each model predicts one language; the English one, which may label translations, all."""
    first = {"de": "d", "zh": "中"}
    dev: Any = {name: Dataset.from_list([{"first": text, "label": "1"}]) for name, text in first.items()}
    data = TaskData(TABLE["pawsx"], train=dict.fromkeys(("en", *dev)), dev=dev)  # type: ignore[arg-type]
    made: Any = KnowsChinese()
    assert models(tokenizer, setting=setting, select_on="target").score_on_dev(data, made, trained_on) == score


def test_of_several_metrics_the_mean_counts(tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [{"id": "1", "question": "?", "context": "x y z", "answers": [{"text": "x y", "start": 0}]}]
    data = TaskData(TABLE["xquad"], dev={"en": Dataset.from_list(rows)})
    half: Any = SimpleNamespace(predict=lambda *_, **how: {"1": "x y z"})  # precision 2/3, recall 1
    assert models(tokenizer).score_on_dev(data, half, ("en",)) == pytest.approx(80 / 2)


def test_an_encoder_that_reads_too_little_is_refused(xtreme_folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    args = XtremeArguments(model_name_or_path="x", data=str(xtreme_folder), tasks=["xquad"], languages=["de"])
    [data] = read_data(args.chosen_tasks, args)
    with pytest.raises(BadInput, match="xquad: needs rows of 226 tokens or more, x reads 64"):
        models(tokenizer, longest=64).check(data)


@pytest.mark.usefixtures("on_apple")
def test_fine_tuning_uses_the_devices_of_pre_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU unless accelerate's configuration says the CPU, and no other accelerator, as Apple's."""
    assert device() == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device() == torch.device("cuda")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert device() == torch.device("cpu")


def test_a_model_that_an_interrupted_call_has_trained_is_scored_on_the_gpu_too(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fine_tune(model: torch.nn.Linear, *_: object, **how: Any) -> torch.nn.Linear:
        given.update(how)
        return torch.nn.Linear(1, 1).to(model.weight.device)  # as where it is loaded

    given: dict[str, Any] = {}
    for name, value in {
        "device": lambda: torch.device("meta"),
        "encoder_place": str,
        "load_model": lambda *about: given.update(head=about[3]) or torch.nn.Linear(1, 1),
        "fine_tune": fine_tune,
    }.items():
        monkeypatch.setattr(fine_tuned_models, name, value)
    found: list[str] = []
    monkeypatch.setattr(FineTunedModels, "score_on_dev", lambda *given: found.append(given[2].model.weight.device.type))
    features: Any = SimpleNamespace(model_class=None, labels=(), encode=lambda *_, **how: None)
    rows = Dataset.from_dict({})
    data = TaskData(TABLE["pawsx"], dev={"en": rows})
    how: dict[str, Any] = {"bf16": True, "micro_batches": 2, "similar_lengths": True}
    tuning = models(tokenizer, output_dir=str(tmp_path), seed=[7], **how)
    tuning.candidate(data, ("en",), 0, rows, features)
    assert found == ["meta"] and given == {"head": 7, "seed": 7, **how}


def test_a_context_without_tokens_is_refused_before_training(
    xtreme_folder: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    args = XtremeArguments(model_name_or_path="x", data=str(xtreme_folder), tasks=["xquad"], languages=["de"])
    [data] = read_data(args.chosen_tasks, args)
    models(tokenizer, longest=226).check(data)
    row = {"id": "blank", "question": "?", "context": "\u200b", "answers": []}
    data.test["de"] = Dataset.from_list([*data.test["de"], row])
    with pytest.raises(BadInput, match="xquad, de: question 'blank': its context .* has no token; allowed is a text"):
        models(tokenizer, longest=226).check(data)


def test_labels_to_score_that_no_training_example_has_are_logged(
    xtreme_folder: Path, tokenizer: PreTrainedTokenizerBase, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"data": str(xtreme_folder), "tasks": ["panx"], "languages": ["de", "zh"]}
    args = XtremeArguments(model_name_or_path="x", **given)  # type: ignore[arg-type]
    [data] = read_data(args.chosen_tasks, args)
    models(tokenizer, **given).check(data)
    assert not caplog.messages
    data.references["zh"] = None  # unknown
    data.references["de"][0][:2] = ["I-LOC", "I-LOC"]
    models(tokenizer, **given).check(data)
    assert caplog.messages == [
        "panx, de: no training example has the label I-LOC, so 2 labels to score are never predicted"
    ]
