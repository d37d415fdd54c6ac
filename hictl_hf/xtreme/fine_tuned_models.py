"""The fine-tuned models of a run on XTREME: the training examples of each, its candidates, and which one is kept."""

import itertools
import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, concatenate_datasets
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import BadInput, as_bad_input
from ..files import write_json
from ..reports.results import from_json
from ..training.arguments import gpu_is_used
from .arguments import XtremeArguments
from .data import TaskData, own_references, without_references
from .files import data_hash
from .fine_tuning import FineTuningConfig, fine_tune, load_model, predict_logits, rows_at_once
from .question_answering import QuestionAnswering, refuse_contexts_without_token
from .results import Candidate, ModelChoice, TaskResults, TrainingExamples
from .resuming import Derived
from .scores import prediction_files, values_of
from .sentence_pairs import TaskFeatures
from .setup import encoder_place
from .sharing import Job
from .tagging import Tagging, space_before_words
from .tasks import Examples, XtremeTask

logger = logging.getLogger(__name__)

CANDIDATE_FILE = "candidate.json"  # the record of a candidate that is trained


@dataclass
class FineTuned:
    """A model with the conversion of its examples to tensors and of its logits to predictions."""

    model: PreTrainedModel
    features: TaskFeatures

    def predict(self, examples: Examples, args: XtremeArguments, progress: bool = True) -> Any:
        """Predictions of a split of one language, as they are scored."""
        assert isinstance(examples, Dataset)
        rows = self.features.encode(examples)
        logits = predict_logits(
            self.model,
            self.features.tokenizer,
            rows,
            args.per_device_eval_batch_size,
            bf16=args.bf16,
            progress=progress,
        )
        return self.features.decode(examples, rows, logits)


class FineTunedModels:
    """Fine-tunes each model once; tasks with the same training set share a model. The last model stays in memory.

    Args:
        size: "base" or "large", whose settings are used.
        longest: tokens the encoder reads at most, the upper bound of an example's length.
    """

    def __init__(self, args: XtremeArguments, tokenizer: PreTrainedTokenizerBase, size: str, longest: int) -> None:
        self.args, self.tokenizer, self.size, self.longest = args, tokenizer, size, longest
        self.output_dir = Path(args.output_dir)
        self.folder, self.records = self.output_dir / "models", self.output_dir / "choices"
        self.key = ""
        self.last: FineTuned | None = None

    def signature(self) -> dict[str, str]:
        """Entries for the signature of a score: how its predictions were made."""
        return {"setting": self.args.setting}

    def release(self) -> None:
        """Keep the last model, which the next task may share."""

    # --- before training ----------------------------------------------------------------------------------------------

    def check(self, data: TaskData) -> None:
        """Raise `BadInput` for a task whose model could not be trained or chosen, before any is trained."""
        if not data.test:
            return
        candidates, on_target = self.candidates(data.task.source), self.args.select_on == "target"
        for settings, _ in candidates:
            rows_at_once(settings.batch_size, self.args.micro_batches, 1)
        if self.longest < (shortest := data.task.format.features.shortest):
            raise BadInput(
                f"{data.task.name}: needs rows of {shortest} tokens or more, {self.args.model_name_or_path} "
                f"reads {self.longest}; give an encoder with more positions, or run other --tasks"
            )
        self.check_contexts(data)
        self.check_labels(data)
        row = self.row_of_dev(data)
        for language, examples in data.dev.items():
            if own_references(row, examples, language) is None:
                raise BadInput(
                    f"{row.name}, {language}: the rows of --select_split {self.args.select_split!r} have no labels, or "
                    "not all; name other rows to choose by, such as train[:1000]"
                )
        self.refuse_lost(data)
        missing = [language for language in (data.test if on_target else ["en"]) if language not in data.dev]
        if missing and (len(candidates) > 1 or candidates[0][0].evaluate_every or on_target):
            raise BadInput(
                f"{data.task.name}: a model is chosen on the split {self.args.select_split!r}, which is not there in "
                f"{', '.join(missing)}; add its files, or name other rows with --select_split, such as train[:1000]"
            )

    def check_contexts(self, data: TaskData) -> None:
        """Raise `BadInput` for a question that cannot be read by the tokenizer."""
        for part in (data.train, data.dev, data.test) if data.task.format.features is QuestionAnswering else ():
            for language, examples in part.items():
                try:
                    refuse_contexts_without_token(self.tokenizer, examples)
                except BadInput as error:
                    raise BadInput(f"{data.task.name}, {language}: {error}") from error

    def check_labels(self, data: TaskData) -> None:
        """Raise `BadInput` for training examples that cannot be used; log labels to score that a model cannot give."""
        labels: dict[str, tuple[str, ...]] = {}
        for language, rows in data.train.items():
            if language == "en" or not data.task.format.labelled:  # else the English model labels them
                split = self.args.train_split if language == "en" else "translated"
                try:
                    labels[language] = data.task.format.features.label_names(rows)
                except BadInput as error:
                    raise BadInput(f"{data.task.source.name}, {language}, {split!r}: {error}") from error
        for language in data.test:
            trained = {label for name in self.languages_for(data, language) for label in labels.get(name, labels["en"])}
            values = [value for value in values_of(data.references[language] or []) if value not in trained]
            if values:
                message = "%s, %s: no training example has the label %s, so %d labels to score are never predicted"
                logger.warning(message, data.task.name, language, ", ".join(sorted({*values})), len(values))

    def derived(self, data: TaskData) -> Iterator[Derived]:
        """Each model, and the predictions of each language, with the hash of the examples."""
        models = self.hashes_of_models(data) if data.test else {}
        for model, found in models.items():
            yield Derived(model, (self.folder / model, self.records / f"{model}.json"), found)
        for language, path in prediction_files(self.output_dir, data).items():
            model = self.key_of(data, self.languages_for(data, language))
            hashes = [data_hash(without_references(data.test[language])), models[model]]
            yield Derived(f"{data.task.name} {language}", (path,), data_hash(hashes))

    def hashes_of_models(self, data: TaskData) -> dict[str, str]:
        """By model of a task, the hash of the examples it is trained on and chosen by."""
        train, dev = ({name: data_hash(rows) for name, rows in part.items()} for part in (data.train, data.dev))
        # models of releases up to 0.29 were trained on words without it, and would read others
        space = data.task.format.features is Tagging and space_before_words(self.tokenizer)
        after = [*dev.values(), *([space] if space else [])]
        return {
            self.key_of(data, languages): data_hash([*(train[language] for language in languages), *after])
            for languages in sorted({("en",), *(self.languages_for(data, language) for language in data.test)})
        }

    def needed(self, data: TaskData) -> tuple[list[tuple[str, ...]], set[tuple[str, ...]]]:
        """The training languages of the models that predictions or choices which are not there yet need, and of those
        of them whose translations the English model labels."""
        files = prediction_files(self.output_dir, data)
        by_language = {language: self.languages_for(data, language) for language in files}
        models = {
            languages
            for language, languages in by_language.items()
            if not (files[language].exists() and self.record_of(data, languages).exists())
        }
        labelled = {languages for languages in models if data.task.format.labelled and languages != ("en",)}
        return sorted(models | ({("en",)} if labelled else set())), labelled

    def refuse_lost(self, data: TaskData) -> None:
        """Raise `BadInput` for a model that is needed, was trained, and is not there any more."""
        for languages in self.needed(data)[0]:
            places = [self.place(data, languages, number) for number in range(len(self.candidates(data.task.source)))]
            trained = [place for place in places if (place / CANDIDATE_FILE).exists()]
            if trained and not any((place / "model").is_dir() for place in trained):
                folder = trained[0].parent
                raise BadInput(f"{folder}: its trained model was removed; remove all of the folder to train it again")

    def jobs(self, data: TaskData) -> Iterator[Job]:
        """The candidates of the models that are needed for predictions which are not there yet."""
        models, labelled = self.needed(data)
        for languages in models:
            rows = sum(len(data.train[language]) for language in languages)
            for number, (config, _) in enumerate(self.candidates(data.task.source)):
                yield Job(
                    self.place(data, languages, number) / CANDIDATE_FILE, int(languages in labelled),
                    rows * config.epochs, partial(self.train_candidate, data, languages, number),
                )  # fmt: skip

    # --- predictions --------------------------------------------------------------------------------------------------

    def predict(self, data: TaskData, language: str) -> Any:
        """Predictions of the scored split by the model of the language, which is fine-tuned if needed."""
        return self.of(data, language).predict(data.test[language], self.args)

    def describe(self, data: TaskData, results: TaskResults) -> None:
        """Add the training examples and the choice of the task's models to the results."""
        choices = self.choices(data)
        first, *others = choices.values()
        results.train = "; ".join(f"{', '.join(each.languages)}, {each.rows} rows" for each in choices.values())
        results.model_selection = first.select_on or "last state"
        if others:
            results.models = choices
        else:
            results.candidates, results.chosen = first.candidates, first.chosen

    def choices(self, data: TaskData) -> dict[str, ModelChoice]:
        """The recorded choice of each model of a task."""
        found = {}
        for languages in dict.fromkeys(self.languages_for(data, language) for language in data.test):
            path = self.record_of(data, languages)
            if not path.exists():
                self.trained_on(data, languages)
            with as_bad_input(str(path), "the choice of a model as JSON", "Remove it to choose again."):
                found[self.key_of(data, languages)] = from_json(ModelChoice, json.loads(path.read_text("utf-8")))
        return found

    def record_of(self, data: TaskData, languages: tuple[str, ...]) -> Path:
        """The file of the choice of a model."""
        return self.records / f"{self.key_of(data, languages)}.json"

    def of(self, data: TaskData, language: str) -> FineTuned:
        """The model that predicts a language in the setting of the run."""
        return self.trained_on(data, self.languages_for(data, language))

    def languages_for(self, data: TaskData, language: str) -> tuple[str, ...]:
        """The languages of the training set of the model that predicts a language."""
        if self.args.setting == "translate-train-all":
            return ("en", *sorted(data.train.keys() - {"en"}))
        return ("en",) if self.args.setting == "zero-shot" else (language,)

    def key_of(self, data: TaskData, languages: tuple[str, ...]) -> str:
        """The name of the model of a task with these languages of its training set."""
        return model_name(self.row_of_dev(data).name, languages)

    def row_of_dev(self, data: TaskData) -> XtremeTask:
        """The task on whose dev set a model is chosen."""
        return data.task if self.args.select_on == "target" else data.task.source

    # --- training -----------------------------------------------------------------------------------------------------

    def trained_on(self, data: TaskData, languages: tuple[str, ...]) -> FineTuned:
        """The model of these languages of the training set."""
        key = self.key_of(data, languages)
        if key == self.key and self.last is not None:
            return self.last
        self.last = None  # frees its memory before the next one is made
        tuned = self.choose(data, languages, key)
        self.key, self.last = key, tuned
        return tuned

    def choose(self, data: TaskData, languages: tuple[str, ...], key: str) -> FineTuned:
        """Train every candidate, and keep the one that is best on dev, the first of equals; record the choice."""
        folder, (train, features) = self.folder / key, self.prepared(data, languages)
        settings, candidates = self.candidates(data.task.source), list[Candidate]()
        for number in range(len(settings)):
            candidates.append(self.candidate(data, languages, number, train, features))
            best = max(candidates, key=lambda each: each.dev or 0)
            for each in candidates:
                if each is not best:
                    shutil.rmtree(folder / each.folder / "model", ignore_errors=True)
        model = load_model(features.model_class, str(folder / best.folder / "model"), features.labels)
        is_chosen = len(candidates) > 1 or settings[0][0].evaluate_every > 0
        assert best.trained_on is not None
        choice = ModelChoice(
            chosen=best, candidates=candidates, languages=best.trained_on.languages, rows=best.trained_on.rows,
            select_on=f"{self.args.select_on} {self.args.select_split}" if data.dev and is_chosen else None,
        )  # fmt: skip
        write_json(self.records / f"{key}.json", asdict(choice))
        return FineTuned(model.to(device()), features)

    def prepared(self, data: TaskData, languages: tuple[str, ...]) -> tuple[Dataset, TaskFeatures]:
        """The training set of a model, and the conversion of its examples."""
        train = self.training_set(data, languages)
        return train, self.features_of(data.task, train, self.candidates(data.task.source)[0][0].max_length)

    def place(self, data: TaskData, languages: tuple[str, ...], number: int) -> Path:
        """The folder of a candidate."""
        config, seed = self.candidates(data.task.source)[number]
        name = f"{number:02}-lr{config.learning_rate:g}-batch{config.batch_size}-seed{seed}"
        return self.folder / self.key_of(data, languages) / name

    def train_candidate(self, data: TaskData, languages: tuple[str, ...], number: int) -> Candidate:
        """Train one candidate of a model, unless that is done."""
        return self.candidate(data, languages, number, *self.prepared(data, languages))

    def candidates(self, row: XtremeTask) -> list[tuple[FineTuningConfig, int]]:
        """Settings and seed of each candidate: the task's own, with those of the arguments in their place."""
        usual = row.large if self.size == "large" else row.base
        assert usual is not None
        rates = self.args.learning_rate or [usual.learning_rate]
        sizes = self.args.per_device_train_batch_size or [usual.batch_size]
        epochs = usual.epochs if self.args.num_train_epochs is None else self.args.num_train_epochs
        usual = replace(usual, epochs=epochs, max_length=min(usual.max_length, self.longest))
        return [
            (replace(usual, learning_rate=rate, batch_size=size), seed)
            for rate, size, seed in itertools.product(rates, sizes, self.args.seed)
        ]

    def candidate(
        self, data: TaskData, languages: tuple[str, ...], number: int, train: Dataset, features: TaskFeatures
    ) -> Candidate:
        """Train a candidate, or read the record of an earlier call.

        Args:
            languages: of the training set.
            number: of the candidate among `candidates`.
            train, features: as `prepared` returns them.
        """
        config, seed = self.candidates(data.task.source)[number]
        trained_on = TrainingExamples(languages=list(languages), rows=len(train))
        place = self.place(data, languages, number)
        record = place / CANDIDATE_FILE
        if record.exists():
            with as_bad_input(
                str(record), "the record of a trained model as JSON", f"Remove {place} to train it again."
            ):
                found: Candidate = from_json(Candidate, json.loads(record.read_text("utf-8")))
            return found if found.trained_on else replace(found, trained_on=trained_on)
        logger.info("%s: %d rows of up to %d tokens", place, len(train), config.max_length)
        encoder = encoder_place(self.args.checkpoint)
        model = load_model(features.model_class, encoder, features.labels, seed)
        tuned = FineTuned(model.to(device()), features)  # there too where an earlier call has trained it

        def score_on_dev(model: PreTrainedModel) -> float:
            return self.score_on_dev(data, replace(tuned, model=model), languages)

        tuned.model = fine_tune(
            tuned.model, self.tokenizer, features.encode(train, training=True), config, place,
            score_on_dev if data.dev else None, seed=seed, bf16=self.args.bf16, micro_batches=self.args.micro_batches,
            similar_lengths=self.args.similar_lengths,
        )  # fmt: skip
        candidate = Candidate(
            folder=place.name, learning_rate=config.learning_rate, batch_size=config.batch_size, epochs=config.epochs,
            max_length=config.max_length, seed=seed, dev=score_on_dev(tuned.model) if data.dev else None,
            trained_on=trained_on,
        )  # fmt: skip
        write_json(record, asdict(candidate))
        return candidate

    def score_on_dev(self, data: TaskData, tuned: FineTuned, trained_on: tuple[str, ...]) -> float:
        """Mean over languages of the mean of the task's metrics: over those that a model with these languages of its
        training set predicts, if it predicts some of them."""
        scores = []
        row = self.row_of_dev(data)
        own = [language for language in data.dev if self.languages_for(data, language) == trained_on]
        for language in own or data.dev:
            examples = data.dev[language]
            predicted = tuned.predict(examples, self.args, progress=False)
            values = row.score(predicted, row.format.references(examples), language)
            scores.append(sum(values[metric] for metric in row.metrics) / len(row.metrics))
        return sum(scores) / len(scores)

    def features_of(self, task: XtremeTask, train: Dataset, max_length: int) -> TaskFeatures:
        """The conversion of the task's examples, with the labels of its training set."""
        features = task.format.features
        options = {"compat": True} if self.args.compat and task.format.compat == "answers" else {}
        converted: TaskFeatures = features(self.tokenizer, max_length, features.label_names(train), **options)
        return converted

    def training_set(self, data: TaskData, languages: tuple[str, ...]) -> Dataset:
        """The examples of all languages; translations without labels get those that the English model predicts."""
        parts = []
        for language in languages:
            rows, labelled = data.train[language], data.task.format.labelled
            if language != "en" and labelled is not None:
                rows = labelled(rows, self.trained_on(data, ("en",)).predict(rows, self.args))
            parts.append(rows)
        return concatenate_datasets(parts)


def model_name(task: str, languages: Sequence[str]) -> str:
    """The name of a model's folder: its task and its training languages, five or more as a hash.

    >>> model_name("squad", ["en", "de"])
    'squad-en-de'
    """
    many = f"{len(languages)}-languages-{data_hash(languages)}"
    return f"{task}-{'-'.join(languages) if len(languages) < 5 else many}"


def device() -> torch.device:
    """The GPU if training uses one, else the CPU."""
    return torch.device("cuda" if gpu_is_used() else "cpu")
