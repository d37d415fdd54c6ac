"""The fine-tuned models of a run over XTREME: which rows make which, and which of several candidates is kept."""

import itertools
import json
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, concatenate_datasets
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import BadInput
from ..files import write_json
from .arguments import XtremeArguments
from .data import TaskData
from .files import data_hash
from .fine_tuning import FineTuningConfig, fine_tune, load_model, predict_logits, rows_at_once
from .sentence_pairs import TaskFeatures
from .tasks import Examples, XtremeTask

logger = logging.getLogger(__name__)


@dataclass
class FineTuned:
    """A model, and what stands between texts and its tensors."""

    model: PreTrainedModel
    features: TaskFeatures

    def predict(self, examples: Examples, args: XtremeArguments, progress: bool = True) -> Any:
        """Predictions of a split of one language, as they are scored."""
        assert isinstance(examples, Dataset)
        rows = self.features.encode(examples)
        logits = predict_logits(
            self.model, self.features.tokenizer, rows, args.predict_batch_size, bf16=args.bf16, progress=progress
        )
        return self.features.decode(examples, rows, logits)


class FineTunedModels:
    """Fine-tunes what is asked for, once; tasks with the same training set share a model. The last stays in memory.

    Args:
        size: "base" or "large", whose settings are used.
        longest: tokens that the encoder reads; rows have no more.
    """

    def __init__(self, args: XtremeArguments, tokenizer: PreTrainedTokenizerBase, size: str, longest: int) -> None:
        self.args, self.tokenizer, self.size, self.longest = args, tokenizer, size, longest
        self.folder, self.records = Path(args.output_dir) / "models", Path(args.output_dir) / "choices"
        self.key = ""
        self.last: FineTuned | None = None

    def check(self, data: TaskData) -> None:
        """Refuse a task whose model could not be trained or chosen, before any is trained."""
        candidates, on_target = self.candidates(data.task.source), self.args.select_on == "target"
        for settings, _ in candidates:
            rows_at_once(settings.batch_size, self.args.micro_batches, int(os.environ.get("WORLD_SIZE", 1)))
        if self.longest < (shortest := data.task.kind.features.shortest):
            raise BadInput(
                f"{data.task.name}: needs rows of {shortest} tokens or more, --encoder {self.args.encoder} reads "
                f"{self.longest}; give an encoder with more positions, or run other --tasks"
            )
        row = data.task if on_target else data.task.source
        try:
            data.task.kind.features.label_names(data.train["en"])
        except BadInput as error:
            raise BadInput(f"{data.task.source.name}, en, {self.args.train_split!r}: {error}") from error
        for language, examples in data.dev.items():
            if row.kind.golds(examples) is None:
                raise BadInput(
                    f"{row.name}, {language}: the rows of --select_split {self.args.select_split!r} have no labels, or "
                    "not all; name other rows to choose by, such as train[:1000]"
                )
        missing = [language for language in (data.test if on_target else ["en"]) if language not in data.dev]
        if missing and (len(candidates) > 1 or candidates[0][0].evaluate_every or on_target):
            raise BadInput(
                f"{data.task.name}: a model is chosen on the split {self.args.select_split!r}, which is not there in "
                f"{', '.join(missing)}; add its files, or name other rows with --select_split, such as train[:1000]"
            )

    def of(self, data: TaskData, language: str) -> FineTuned:
        """The model that predicts a language in the setting of the run."""
        return self.trained_on(data, self.languages_for(data, language))

    def choices(self, data: TaskData) -> dict[str, dict[str, Any]]:
        """How each model of a task was chosen: all candidates, which of them it is, and the rows trained on."""
        keys = dict.fromkeys(self.key_of(data, self.languages_for(data, language)) for language in data.test)
        return {key: json.loads((self.records / f"{key}.json").read_text("utf-8")) for key in keys}

    def languages_for(self, data: TaskData, language: str) -> tuple[str, ...]:
        """The languages of the training set of the model that predicts a language."""
        if self.args.setting == "translate-train-all":
            return ("en", *sorted(data.train.keys() - {"en"}))
        return ("en",) if self.args.setting == "zero-shot" else (language,)

    def key_of(self, data: TaskData, languages: tuple[str, ...]) -> str:
        row = data.task if self.args.select_on == "target" else data.task.source
        return model_name(row.name, languages)

    def rows_of(self, data: TaskData) -> dict[str, str]:
        """The hash of what each model of a task is trained on and chosen by."""
        train, dev = ({name: data_hash(rows) for name, rows in part.items()} for part in (data.train, data.dev))
        return {
            self.key_of(data, languages): data_hash([*(train[language] for language in languages), *dev.values()])
            for languages in sorted({("en",), *(self.languages_for(data, language) for language in data.test)})
        }

    def trained_on(self, data: TaskData, languages: tuple[str, ...]) -> FineTuned:
        """The model of these languages of the training set."""
        key = self.key_of(data, languages)
        if key == self.key and self.last is not None:
            return self.last
        self.last = None  # gives its memory back before the next one is made
        tuned = self.choose(data, languages, key)
        self.key, self.last = key, tuned
        return tuned

    def choose(self, data: TaskData, languages: tuple[str, ...], key: str) -> FineTuned:
        """Train every candidate, and keep the one that is best on dev; of equals the first."""
        folder, train = self.folder / key, self.training_set(data, languages)
        candidates = self.candidates(data.task.source)
        features = self.features_of(data.task, train, candidates[0][0].max_length)
        trained_on = {"languages": list(languages), "rows": len(train)}
        results: list[dict[str, Any]] = []
        for number, (settings, seed) in enumerate(candidates):
            place = folder / f"{number:02}-lr{settings.learning_rate:g}-batch{settings.batch_size}-seed{seed}"
            results.append(self.candidate(data, train, trained_on, features, settings, seed, place))
            best = max(range(len(results)), key=lambda at: results[at]["dev"] or 0)
            for at, result in enumerate(results):
                if at != best:
                    shutil.rmtree(folder / result["folder"] / "model", ignore_errors=True)
        chosen = results[best]
        model = load_model(features.model_class, str(folder / chosen["folder"] / "model"), features.labels)
        choice = {
            "chosen": chosen, "candidates": results, **chosen["trained_on"],
            "select_on": f"{self.args.select_on} {self.args.select_split}" if data.dev else None,
        }  # fmt: skip
        write_json(self.records / f"{key}.json", choice)
        return FineTuned(model.to(device()), features)

    def candidates(self, row: XtremeTask) -> list[tuple[FineTuningConfig, int]]:
        """Settings and seed of each: the task's own, with what the arguments give instead."""
        usual = row.large if self.size == "large" else row.base
        assert usual is not None
        rates, sizes = self.args.learning_rate or [usual.learning_rate], self.args.batch_size or [usual.batch_size]
        epochs = usual.epochs if self.args.epochs is None else self.args.epochs
        usual = replace(usual, epochs=epochs, max_length=min(usual.max_length, self.longest))
        return [
            (replace(usual, learning_rate=rate, batch_size=size), seed)
            for rate, size, seed in itertools.product(rates, sizes, self.args.seed)
        ]

    def candidate(
        self, data: TaskData, train: Dataset, trained_on: dict[str, Any], features: TaskFeatures,
        settings: FineTuningConfig, seed: int, place: Path,
    ) -> dict[str, Any]:  # fmt: skip
        """Train one, or find what an earlier call made of it."""
        record = place / "candidate.json"
        if record.exists():
            return {"trained_on": trained_on} | json.loads(record.read_text("utf-8"))
        logger.info("%s: %d rows of up to %d tokens", place, len(train), settings.max_length)
        tuned = FineTuned(load_model(features.model_class, str(self.args.encoder), features.labels, seed), features)

        def score_on_dev(model: PreTrainedModel) -> float:
            return self.score_on_dev(data, replace(tuned, model=model))

        tuned.model = fine_tune(
            tuned.model, self.tokenizer, features.encode(train, training=True), settings, place,
            score_on_dev if data.dev else None, seed=seed, bf16=self.args.bf16, micro_batches=self.args.micro_batches,
            similar_lengths=self.args.similar_lengths,
        )  # fmt: skip
        dev = score_on_dev(tuned.model) if data.dev else None
        result = {
            "folder": place.name, "learning_rate": settings.learning_rate, "batch_size": settings.batch_size,
            "epochs": settings.epochs, "max_length": settings.max_length, "seed": seed, "dev": dev,
            "trained_on": trained_on,
        }  # fmt: skip
        write_json(record, result)
        return result

    def score_on_dev(self, data: TaskData, tuned: FineTuned) -> float:
        """Mean over languages of the mean of the task's metrics."""
        scores = []
        row = data.task if self.args.select_on == "target" else data.task.source
        for language, examples in data.dev.items():
            values = row.score(tuned.predict(examples, self.args, progress=False), row.kind.golds(examples), language)
            scores.append(sum(values[metric] for metric in row.metrics) / len(row.metrics))
        return sum(scores) / len(scores)

    def features_of(self, task: XtremeTask, train: Dataset, max_length: int) -> TaskFeatures:
        kind = task.kind.features
        options = {"compat": True} if self.args.compat and task.kind.compat == "answers" else {}
        return kind(self.tokenizer, max_length, kind.label_names(train), **options)

    def training_set(self, data: TaskData, languages: tuple[str, ...]) -> Dataset:
        """The rows of all languages; where translations have no labels, those of the English model."""
        parts = []
        for language in languages:
            rows, labelled = data.train[language], data.task.kind.labelled
            if language != "en" and labelled is not None:
                rows = labelled(rows, self.trained_on(data, ("en",)).predict(rows, self.args))
            parts.append(rows)
        return concatenate_datasets(parts)


def model_name(task: str, languages: Sequence[str]) -> str:
    """By which a model is kept: its task and the languages it is trained on, many of them as their hash.

    >>> model_name("squad", ["en", "de"])
    'squad-en-de'
    """
    many = f"{len(languages)}-languages-{data_hash(languages)}"
    return f"{task}-{'-'.join(languages) if len(languages) < 5 else many}"


def device() -> torch.device:
    """The accelerator where there is one."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
