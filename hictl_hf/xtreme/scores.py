"""Score two folders in XTREME's submission layout, predictions and labels, like its `evaluate.py`.

A folder has for every language of a task a file TASK/test-LANGUAGE.tsv, or .json for question answering.
"""

import logging
from collections.abc import Collection, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from ..errors import BadInput, short_repr
from .data import TaskData
from .predictions import check_labels, problem_of_lengths
from .tasks import TASKS, XtremeTask

logger = logging.getLogger(__name__)

GROUP_NAMES = {"question answering": "qa"}  # groups whose official name differs


class MissingFile(BadInput, FileNotFoundError):
    """A file of the submission layout is missing; XTREME's code raises a FileNotFoundError."""


def score_submission(
    predictions: str | Path, labels: str | Path, chosen: Sequence[XtremeTask] = TASKS
) -> dict[str, Any]:
    """{"overall": means, "detailed": scores by task}, in percent, of the chosen tasks that both folders have.

    "detailed" has for each task the score of each language by metric, the means over languages as "avg_METRIC", and the
    score of the task as "avg_metric". "overall" has the mean over the tasks of a group ("classification", "tagging",
    "qa", "retrieval") where all of them are scored, and over all tasks as "all_task".

    Raises:
        BadInput: no task is in both folders, or predictions do not fit their labels.
        MissingFile: a task in both folders has no file of one of its languages.
    """
    folders = (predictions, labels)
    missing = {
        task.name: [str(place) for folder in folders if not (place := Path(folder, task.name)).is_dir()]
        for task in chosen
    }
    tasks = [task for task in chosen if not missing[task.name]]
    if not tasks:
        raise BadInput(
            f"{predictions}: has no folder of a task that {labels} has, too; allowed are "
            f"{', '.join(task.name for task in chosen)}. Name the folders that hold these."
        )
    for name, places in missing.items():
        if len(places) == 1 or (places and len(chosen) < len(TASKS)):
            logger.warning("%s: not scored, there is no folder %s", name, " and no ".join(places))
    for folder in folders:
        check_files(folder, tasks)
    detailed = {task.name: score_task(predictions, labels, task) for task in tasks}
    return {
        "overall": overall_scores({name: scores["avg_metric"] for name, scores in detailed.items()}),
        "detailed": detailed,
    }


def submission_file(folder: str | Path, task: XtremeTask, language: str) -> Path:
    """The file of a language of a task in a folder of predictions or labels."""
    return Path(folder, task.name, f"test-{language}.{task.format.ending}")


def prediction_files(output_dir: str | Path, data: TaskData) -> dict[str, Path]:
    """The files of a task's predictions in the folder of a run, by language."""
    return {language: submission_file(Path(output_dir, "predictions"), data.task, language) for language in data.test}


def check_files(folder: str | Path, tasks: list[XtremeTask]) -> None:
    """Raise `MissingFile` before anything is scored."""
    files = [submission_file(folder, task, language) for task in tasks for language in task.languages]
    missing = [str(path) for path in files if not path.is_file()]
    if missing:
        others = f" (and {len(missing) - 1} others)" if len(missing) > 1 else ""
        raise MissingFile(
            f"{missing[0]}: does not exist{others}; allowed is a file for every language of a task. Add it, or "
            "remove the folder of the task to score the others."
        )


def score_task(predictions: str | Path, labels: str | Path, task: XtremeTask) -> dict[str, Any]:
    """Scores by metric and language, and their means."""
    by_language = {
        language: score_language(
            submission_file(predictions, task, language), submission_file(labels, task, language), task, language
        )
        for language in task.languages
    }
    metrics = by_language[task.languages[0]]
    scores = {metric: {name: values[metric] for name, values in by_language.items()} for metric in metrics}
    means = {f"avg_{metric}": fmean(values.values()) for metric, values in scores.items()}
    return {**scores, **means, "avg_metric": fmean(means[f"avg_{metric}"] for metric in task.metrics)}


def score_language(predictions: Path, labels: Path, task: XtremeTask, language: str) -> dict[str, float]:
    predicted, gold = task.format.read_predictions(predictions), task.format.read_references(labels)
    if isinstance(gold, list) and len(predicted) != len(gold):
        raise BadInput(
            f"{predictions}: has {len(predicted)} examples, but {labels} has {len(gold)}; allowed are equally many, "
            "blank lines counted. Write one prediction for each example, in the order of the labels."
        )
    check_labels(str(labels), values_of(gold), task.labels)
    warn_of_strangers(predictions, predicted, gold, task.labels)
    try:
        return task.score(predicted, gold, language)
    except ValueError as error:
        raise BadInput(f"{labels}: cannot be scored: {error} Correct or replace the file.") from error


def values_of(examples: Any) -> list[str]:
    """The labels of pairs, or the tags of all sentences; of other formats none."""
    flat = ([example] if isinstance(example, str) else example for example in examples)
    return [*chain.from_iterable(flat)] if isinstance(examples, list) else []


def warn_of_strangers(predictions: Path, predicted: Any, gold: Any, labels: Collection[str]) -> None:
    """Log predictions that cannot be right: labels that a task lacks, words without a tag, unanswered questions."""
    values = values_of(predicted) if labels else []
    if strangers := [value for value in values if value not in labels]:
        message = "%s: %d of %d predictions are no label of the task and count as wrong, such as %s; allowed are %s"
        logger.warning(message, predictions, len(strangers), len(values), short_repr(strangers[0]), ", ".join(labels))
    if problem := problem_of_lengths(str(predictions), predicted, gold):
        logger.warning("%s; as officially, all tags after it count for other words, and are wrong", problem)
    if isinstance(gold, dict) and (missing := [name for name in gold if name not in predicted]):
        message = "%s: has no answer to %d of %d questions, which count as wrong, such as %s; %d answers are to others"
        others = len(predicted.keys() - gold.keys())
        logger.warning(message, predictions, len(missing), len(gold), short_repr(missing[0]), others)


def overall_scores(by_task: dict[str, float]) -> dict[str, float]:
    """Means over all tasks, and over each group, of which none is missing."""
    groups = {"all_task": [task.name for task in TASKS]}
    for task in TASKS:
        groups.setdefault(GROUP_NAMES.get(task.group, task.group), []).append(task.name)
    return {
        group: fmean(by_task[name] for name in names) for group, names in groups.items() if by_task.keys() >= set(names)
    }
