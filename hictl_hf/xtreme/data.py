"""The examples of a task of XTREME: to train on, to choose a model by, and to score.

All are read, and so checked, before anything is trained. The files of a task are in its row of `tasks.TASKS`.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from datasets import Dataset, ReadInstruction

from ..errors import BadInput
from ..retrieval.bitext import Bitext
from .hub import NotOnHub
from .tasks import Examples, XtremeTask

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Splits:
    """The examples to train on, choose by and score, in the syntax of `datasets`: "dev[:80%]", "train[1000:]"."""

    train: str = "train"
    select: str = "dev"
    score: str = "test"

    @property
    def official(self) -> bool:
        return self == Splits()


@dataclass(frozen=True)
class DataSource:
    """The source of examples: XTREME's download folder, or the Hub if `folder` is `None`."""

    folder: Path | None
    compat: bool = False

    def read(self, task: XtremeTask, spec: str, language: str) -> Examples:
        """Read the examples of a split.

        Raises:
            Missing: there are none.
            BadInput: they cannot be used.
        """
        split = split_of(spec)
        if self.folder is None:
            if task.from_hub is None:
                raise Missing(task, language, "not on the Hub")
            try:
                return cut(task.from_hub(language, split), spec, f"{task.name} {language}")
            except NotOnHub as error:
                raise Missing(task, language, str(error)) from error
        layouts = task.files.get(split, ())
        for layout in layouts:
            names = [name.format(language=language, code=task.codes.get(language, language)) for name in layout]
            if all((self.folder / name).is_file() for name in names if not name.startswith("?")):
                paths = [self.folder / name.removeprefix("?") for name in names]
                examples = self.read_files(task, split, language, [path for path in paths if path.is_file()])
                if not isinstance(examples, Bitext) and not len(examples):
                    raise Missing(task, language, f"no row in {names[0]}")
                return cut(examples, spec, str(paths[0]))
        places = " or ".join(layout[0].format(language="XX", code="XXX") for layout in layouts)
        raise Missing(task, language, f"no file {places}" if places else f"{task.name} has no {split} set")

    def read_files(self, task: XtremeTask, split: str, language: str, paths: list[Path]) -> Examples:
        if split == "translated" and task.read_translated:
            return task.read_translated(language, *paths)
        if split in ("train", "translated") and task.read_training:
            return task.read_training(*paths)
        options: dict[str, Any] = {"compat": True} if self.compat and task.format.compat == "reading" else {}
        return task.read(*paths, **options, **({"labels": task.labels} if task.labels else {}))


class Missing(BadInput):
    """A task lacks this split in this language; `reason` says which file is missing."""

    def __init__(self, task: XtremeTask, language: str, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{task.name}, {language}: {self.reason}; add the file, or run other --tasks or --languages")


@dataclass
class TaskData:
    """The examples of a task by language: to train on, to choose by, to score.

    Attributes:
        references: of the scored examples; `None` where unknown.
        missing: by language of the task, why it is not scored.
    """

    task: XtremeTask
    train: dict[str, Dataset] = field(default_factory=dict)
    dev: dict[str, Examples] = field(default_factory=dict)
    test: dict[str, Examples] = field(default_factory=dict)
    references: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def read_task(
    task: XtremeTask,
    source: DataSource,
    setting: str,
    splits: Splits,
    languages: Iterable[str],
    select_on: str,
    labels: Path | None,
) -> TaskData:
    """Read the examples of a task; a language without the examples it needs is `missing`.

    Args:
        languages: those to score.
        select_on: "english" dev, or the dev sets of all "target" languages.
        labels: a folder in the layout of a submission, with the references of the scored examples.
    """
    data = TaskData(task)
    for language in languages:
        try:
            data.test[language] = source.read(task, splits.score, language)
            if task.format.features and setting != "zero-shot" and language != "en":
                data.train[language] = training_rows(source, task.source, "translated", language)
        except Missing as missing:
            data.test.pop(language, None)
            data.missing[language] = missing.reason
    if not data.test:
        return data
    if task.format.features is None:
        data.dev = read_where_there(task, source, split_of(splits.select), data.test)
        if data.dev and split_of(splits.select) != splits.select:
            message = "%s: all of %s is used, not %r: there are no parts of two corpora"
            logger.warning(message, task.name, split_of(splits.select), splits.select)
    else:
        data.train = {"en": training_rows(source, task.source, splits.train, "en"), **data.train}
        wanted, row = (["en"], task.source) if select_on == "english" else ([*data.test], task)
        data.dev = read_where_there(row, source, splits.select, wanted)
    for language, examples in data.test.items():
        data.references[language] = references = references_of(task, examples, language, labels)
        if isinstance(examples, Bitext) and references is not None:
            pairs = references if isinstance(references, set) else zip(examples.query_ids, references)
            data.test[language] = replace(examples, gold=frozenset(pairs))
    warn_of_trained(data, splits)
    return data


def warn_of_trained(data: TaskData, splits: Splits) -> None:
    """Log how many English examples that are chosen by or scored are trained on, where all are parts of one split."""
    parts = (("choose by", splits.select, data.dev.get("en")), ("score", splits.score, data.test.get("en")))
    for purpose, spec, examples in parts:
        if isinstance(examples, Dataset) and "en" in data.train and split_of(spec) == split_of(splits.train):
            trained = set(contents(data.train["en"]))
            if number := sum(content in trained for content in contents(examples)):
                message = "%s, en: %d of the %d examples to %s, %r, are also among those to train on, %r"
                logger.warning(message, data.task.name, number, len(examples), purpose, spec, splits.train)


def contents(examples: Dataset) -> Iterator[str]:
    """The texts and labels of each example, without its id, which is another one in training."""
    columns = [examples[name][:] for name in examples.column_names if name != "id"]
    return map(repr, zip(*columns))


def read_where_there(task: XtremeTask, source: DataSource, spec: str, languages: Iterable[str]) -> dict[str, Examples]:
    """Read a split by language; languages without it are left out."""
    found = {}
    for language in languages:
        try:
            found[language] = source.read(task, spec, language)
        except Missing as missing:
            logger.info("%s", missing.reason)
    return found


def training_rows(source: DataSource, task: XtremeTask, spec: str, language: str) -> Dataset:
    examples = source.read(task, spec, language)
    if isinstance(examples, Bitext):
        raise TypeError(f"{task.name} is not trained")
    return examples


def references_of(task: XtremeTask, examples: Examples, language: str, labels: Path | None) -> Any:
    """References from the folder of labels, or from the examples; `None` where neither has any."""
    path = labels and labels / task.name / f"test-{language}.{task.format.ending}"
    if not (path and path.is_file()):
        references = own_references(task, examples, language)
        if path and references is None:
            logger.warning("%s, %s: will not be scored: there is no file of labels %s", task.name, language, path)
        return references
    references = task.format.read_references(path)
    task.format.check_references(str(path), references, examples, task.labels)
    return references


def own_references(task: XtremeTask, examples: Examples, language: str) -> Any:
    """The references that examples have; `None` if they have none, `BadInput` if some lack theirs."""
    try:
        return task.format.references(examples)
    except BadInput as error:
        raise BadInput(f"{task.name}, {language}: {error}") from error


def without_references(examples: Examples) -> Examples:
    """The examples as a model sees them."""
    if isinstance(examples, Bitext):
        return replace(examples, gold=None)
    return examples.remove_columns([name for name in ("label", "tags", "answers") if name in examples.column_names])


def number_of_examples(examples: Examples) -> int:
    """Rows, or sentences of both sides of a bitext."""
    return len(examples.queries) + len(examples.candidates) if isinstance(examples, Bitext) else len(examples)


def split_of(spec: str) -> str:
    """The name in a specification such as "train[1000:]".

    >>> split_of("dev[:80%]")
    'dev'
    """
    return spec.partition("[")[0]


def cut(examples: Examples, spec: str, place: str) -> Examples:
    """The examples that the specification names."""
    name = split_of(spec)
    if spec == name:
        return examples
    if isinstance(examples, Bitext):
        raise BadInput(f"{place}: {spec!r} names a part of two corpora; allowed is a complete split, such as {name!r}")
    try:
        (part,) = ReadInstruction.from_spec(spec).to_absolute({name: len(examples)})
        rows = range(part.from_, part.to)
    except (ValueError, AssertionError) as error:
        allowed = "allowed are train, dev and test, or a part of them such as dev[:80%] or train[1000:]"
        raise BadInput(f"{place}: {spec!r} names no rows of {len(examples)}; {allowed}: {error}") from error
    if not len(rows):
        raise BadInput(f"{place}: {spec!r} names none of its {len(examples)} rows; give a part that has some")
    return examples.select(rows)
