"""A run on XTREME: read all examples, fine-tune where needed, predict, score and report.

Finished parts are not repeated: predictions are kept in `predictions/`, in the layout of a submission, models in
`models/`, and an interrupted run goes on with the task, the language and the step it had reached.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import torch

from ..errors import BadInput
from ..files import only_writer, write_json
from ..processes import ALONE, Processes, refuse_unjoined
from ..reports.results import library_versions, refuse_other_results
from ..training.arguments import refuse_several_gpus, warn_of_other_accelerators
from ..training.fingerprint import SETTINGS_FILE, refuse_other_settings, remember_settings
from ..version import __version__
from .arguments import XtremeArguments
from .data import Splits, TaskData, number_of_examples, split_of, without_references
from .files import data_hash
from .fine_tuned_models import FineTunedModels
from .fine_tuning import longest_row
from .frozen_encoder import FrozenEncoder
from .metrics import Score
from .predictions import problem_of_lengths
from .report import write_report
from .results import TaskResults, XtremeResults
from .resuming import EXAMPLES_FILE, Derived, labels_of_run, refuse_other_examples
from .scores import prediction_files, warn_of_strangers
from .setup import (
    check_encoder,
    encoder_hash,
    load_config_and_tokenizer,
    read_data,
    reading_hash,
    refuse_weights,
    size_of_settings,
    tell_idle,
    tokenizer_hash,
)
from .sharing import Job, share_jobs
from .tasks import XtremeTask

logger = logging.getLogger(__name__)


def run_xtreme(
    args: XtremeArguments, command: str = "", tasks: Sequence[XtremeTask] | None = None, processes: Processes = ALONE
) -> XtremeResults:
    """Run the tasks of the arguments, or custom ones; write and return what is in `results.json`.

    Args:
        processes: that share training and predictions (`sharing`); `processes.join` returns them. Each makes the same
            call, and all but the main one return results without tasks.

    Raises:
        BadInput: examples, settings or the encoder cannot be used; before anything is trained or written.
    """
    if processes.number == 1:
        refuse_unjoined()
    with ExitStack() as held:
        processes.on_main(lambda: held.enter_context(only_writer(args.output_dir)))
        return go_on(args, command, tasks, processes)


def go_on(
    args: XtremeArguments, command: str, tasks: Sequence[XtremeTask] | None, processes: Processes
) -> XtremeResults:
    """The steps of `run_xtreme`, in the output folder that no other run writes into."""
    tasks = args.chosen_tasks if tasks is None else tasks
    if processes.is_main:
        tell_idle(args, tasks)
    if any(task.format.features for task in tasks):
        refuse_several_gpus(torch.cuda.device_count())
        warn_of_other_accelerators()
    folder, settings = Path(args.output_dir), asdict(args)
    may_change = ("labels", "output_dir")  # labels may come later, and the folder may be moved
    decisive = {name: value for name, value in settings.items() if name not in may_change}
    if not refuse_other_settings(folder / SETTINGS_FILE, decisive):
        refuse_other_results(folder, "setting")
    elif args.labels is None and (labels := labels_of_run(folder)):
        logger.info("labels are those that %s was scored with: %s", folder, labels)
        args = replace(args, labels=labels)
        settings = asdict(args)
    config, tokenizer = load_config_and_tokenizer(args)
    data = read_data(tasks, args)
    check_encoder(args, config, tokenizer, data)

    size = size_of_settings(args, config)
    fine_tuned = FineTunedModels(args, tokenizer, size, longest_row(config))
    frozen = FrozenEncoder(args, tokenizer, config.num_hidden_layers)
    predictors: list[Predictor] = [fine_tuned if each.task.format.features else frozen for each in data]
    for predictor, each in zip(predictors, data):
        predictor.check(each)

    def begin() -> None:
        refuse_weights(args, config)
        derived = chain.from_iterable(predictor.derived(each) for predictor, each in zip(predictors, data))
        made = tuple(folder / name for name in ("predictions", "models", "sweeps"))
        sources = (
            Derived(f"encoder {args.model_name_or_path}", made, encoder_hash(args), "weights or the tokenizer"),
            Derived(f"tokenizer of {args.model_name_or_path}", made, tokenizer_hash(args, tokenizer), "files"),
            Derived(f"reading of {args.model_name_or_path}", made, reading_hash(args), "config.json or the prompts"),
        )
        hashes = refuse_other_examples(folder, [*sources, *derived])
        remember_settings(folder / SETTINGS_FILE, settings)
        write_json(folder / EXAMPLES_FILE, hashes)

    processes.on_main(begin)
    results = begin_results(args, size, command)
    if processes.number > 1:
        share_jobs(list_jobs(args, predictors, data), processes)
    if not processes.is_main:
        return results
    for predictor, each in zip(predictors, data):
        results.tasks[each.task.name] = run_task(args, each, predictor)
        results.write(folder)
    write_report({results.name: results}, folder)
    return results


class Predictor(Protocol):
    """Interface of `FineTunedModels` and `FrozenEncoder`, which make the predictions of a task."""

    def check(self, data: TaskData) -> None:
        """Raise `BadInput` for a task that cannot be predicted, before any is run."""

    def derived(self, data: TaskData) -> Iterator[Derived]:
        """The files that are made from the task's examples."""

    def jobs(self, data: TaskData) -> Iterator[Job]:
        """What several processes do before and during the predictions of a task."""

    def predict(self, data: TaskData, language: str) -> Any:
        """Predictions of a language, in the task's format."""

    def describe(self, data: TaskData, results: TaskResults) -> None:
        """Add how the predictions were made to the results."""

    def signature(self) -> dict[str, str]:
        """Entries for the signature of a score: how its predictions were made."""

    def release(self) -> None:
        """Free memory that the next task does not need."""


def list_jobs(args: XtremeArguments, predictors: Sequence[Predictor], data: Sequence[TaskData]) -> Iterator[Job]:
    """The jobs of all tasks: those of the predictors, and the predictions of each language."""
    for predictor, each in zip(predictors, data):
        yield from predictor.jobs(each)
        for language, path in prediction_files(args.output_dir, each).items():
            cost = number_of_examples(each.test[language])
            yield Job(path, 2, cost, partial(predict_language, predictor, each, language, path))


def predict_language(predictor: Predictor, data: TaskData, language: str, path: Path) -> None:
    """Predict a language and write the predictions to a file."""
    data.task.format.write_predictions(path, predictor.predict(data, language))


def run_task(args: XtremeArguments, data: TaskData, predictor: Predictor) -> TaskResults:
    """Predict all languages of a task, then score them."""
    task, results = data.task, begin_task(args, data)
    files = prediction_files(args.output_dir, data)
    for language, path in files.items():
        if not path.exists():
            predict_language(predictor, data, language, path)
    if data.test:
        predictor.describe(data, results)
    predictor.release()
    for language, path in files.items():
        if data.references[language] is None:
            results.languages[language] = None
            logger.info("%s %s: predicted; there are no labels to score with", task.name, language)
            continue
        score = score_language(args, data, language, task.format.read_predictions(path), predictor.signature())
        results.languages[language] = dict(score.values)
        results.signatures[language] = score.signature_text
        logger.info("%s", score)
    return results


def score_language(
    args: XtremeArguments, data: TaskData, language: str, predicted: Any, signature: dict[str, str]
) -> Score:
    """The metrics of a language, with the signature that reproduces them."""
    task, references = data.task, data.references[language]
    path, fix = prediction_files(args.output_dir, data)[language], f"Remove it to predict {language} again."
    if problem := problem_of_lengths(str(path), predicted, references):
        raise BadInput(f"{problem}. {fix}")
    warn_of_strangers(path, predicted, references, task.labels)
    try:
        values = task.score(predicted, references, language)
    except ValueError as error:
        raise BadInput(f"{path}: cannot be scored: {error} {fix}") from error
    hashes = (data_hash(without_references(data.test[language])), data_hash(references))
    official = {"compat": "yes"} if args.compat and task.format.compat else {}
    signature = {
        "task": task.name, "language": language, "split": args.score_split, "data": data_hash(hashes), **signature,
        **official, "version": __version__,
    }  # fmt: skip
    return Score(values, signature)


def begin_results(args: XtremeArguments, size: str, command: str) -> XtremeResults:
    """Results without a task."""
    return XtremeResults(
        encoder=str(args.model_name_or_path), setting=args.setting, size=size, version=__version__, command=command,
        seed=args.seed[0] if len(args.seed) == 1 else args.seed, settings={"run": asdict(args)}, tasks={},
        versions=library_versions(),
    )  # fmt: skip


def begin_task(args: XtremeArguments, data: TaskData) -> TaskResults:
    """Results of a task without scores; the note says why they will not be XTREME's."""
    task, splits, note = data.task, args.splits, None
    if task.format.features:
        made = f"trained on {splits.train}, selected on {splits.select}, "
    else:  # no split for training is read, and of dev all
        made = f"threshold tuned on {split_of(splits.select)}, " if task.format.tuned_on_dev else ""
        splits = Splits(select=split_of(splits.select) if made else Splits.select, score=splits.score)
    if not splits.official:
        note = f"trial: {made}scored on {splits.score}"
    elif args.select_on == "target" and task.format.features:
        note = "selected on the target languages' dev sets"
    elif args.source.folder is None and task.other_on_hub:
        note = task.other_on_hub
    return TaskResults(
        title=task.title, group=task.group, metrics=list(task.metrics), missing=dict(data.missing), note=note
    )
