"""Typed results of a run on XTREME: `results.json`, and the records of fine-tuned models that it quotes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, ClassVar

from ..reports.results import RunResults
from .paper import COLUMNS

LayerScores = dict[str, list[float | None]]  # by pooling, the score of each layer
POOLINGS_OF_0_7 = {"first token": "cls"}  # poolings of release 0.7.5 and before under today's names


@dataclass(kw_only=True)
class TrainingExamples:
    """The training examples of a fine-tuned model."""

    languages: list[str]
    rows: int


@dataclass(kw_only=True)
class Candidate:
    """A fine-tuned model: its settings, and its score on dev, by which one of several candidates is chosen.

    Attributes:
        folder: below the folder of all candidates of a model.
        max_length: tokens of an example.
        dev: in percent; `None` without a dev set.
    """

    folder: str
    learning_rate: float
    batch_size: int
    epochs: float
    max_length: int | None = None
    seed: int
    dev: float | None
    trained_on: TrainingExamples | None = None

    @property
    def numbers(self) -> dict[str, float]:
        """The numeric settings and the score by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, int | float)}


@dataclass(kw_only=True)
class ModelChoice:
    """A fine-tuned model and the candidates it was chosen from, kept as `choices/MODEL.json`.

    Attributes:
        rows: number of training examples.
        select_on: "english dev" or "target dev", the examples of the choice; `None` without any.
    """

    chosen: Candidate
    candidates: list[Candidate]
    languages: list[str]
    rows: int
    select_on: str | None


@dataclass(kw_only=True)
class LayerSweep:
    """Scores of a retrieval task at all layers and poolings, kept as `sweeps/TASK.json`.

    Attributes:
        split: what was scored.
        languages: by language, the scores by pooling and layer.
    """

    split: str
    languages: dict[str, LayerScores]

    @property
    def mean(self) -> LayerScores:
        """Mean over languages, `None` at layers that are not scored in all of them.

        >>> LayerSweep(split="dev", languages={"de": {"mean": [None, 50.0]}, "fr": {"mean": [None, 70.0]}}).mean
        {'mean': [None, 60.0]}
        """
        poolings = dict.fromkeys(pooling for scores in self.languages.values() for pooling in scores)
        return {pooling: mean_by_layer(scores[pooling] for scores in self.languages.values()) for pooling in poolings}


@dataclass(kw_only=True)
class TaskResults:
    """Scores of a task, in percent, and how they were made.

    Attributes:
        metrics: their mean is the score of a language.
        languages: metrics by language; `None` where predictions have no labels to be scored with.
        signatures: by language, what reproduces the scores.
        missing: by language, why it was not run.
        note: why the scores are not XTREME's.
        train: languages and number of the training examples.
        model_selection: the examples the model was chosen on.
        models: one model for each training set, if there are several; else `candidates` and `chosen`.
        sweep, layers: retrieval at all layers, and the mean over languages.
        other_direction: accuracy of searching queries by candidates.
    """

    title: str
    group: str
    metrics: list[str]
    languages: dict[str, dict[str, float | None] | None] = field(default_factory=dict)
    signatures: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    note: str | None = None
    train: str | None = None
    model_selection: str | None = None
    models: dict[str, ModelChoice] | None = None
    candidates: list[Candidate] | None = None
    chosen: Candidate | None = None
    sweep: LayerSweep | None = None
    layers: LayerScores | None = None
    other_direction: dict[str, float] | None = None


@dataclass(kw_only=True)
class XtremeResults(RunResults):
    """Results of a run on XTREME.

    Attributes:
        encoder: folder or name on the Hub.
        setting: "zero-shot", "translate-train" or "translate-train-all".
        size: "base" or "large", whose settings of fine-tuning were used.
        version: of this package.
        seed: one, or a list to choose from.
    """

    WRITTEN_BY: ClassVar[str] = "run_xtreme.py"

    encoder: str
    setting: str
    size: str | None = None
    version: str | None = None
    seed: Any = None
    tasks: dict[str, TaskResults]

    @property
    def name(self) -> str:
        return f"{self.encoder}, {self.setting}"

    @classmethod
    def upgrade(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Today's names of poolings; title, group and metrics of the tasks of XTREME where they are missing."""
        tasks = values.get("tasks")
        if not isinstance(tasks, Mapping) or not all(isinstance(task, Mapping) for task in tasks.values()):
            return values  # which reading refuses
        return {**values, "tasks": {name: _upgrade_task(name, task) for name, task in tasks.items()}}


def mean_by_layer(scores: Iterable[list[float | None]]) -> list[float | None]:
    return [None if None in layer else fmean(layer) for layer in zip(*scores)]


def rename_poolings(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Scores by pooling under the names of this release."""
    return {POOLINGS_OF_0_7.get(pooling, pooling): values for pooling, values in scores.items()}


def upgrade_sweep(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a `LayerSweep` of 0.7.5."""
    return {**values, "languages": {name: rename_poolings(scores) for name, scores in values["languages"].items()}}


def _upgrade_task(name: str, task: Mapping[str, Any]) -> dict[str, Any]:
    known = {key: COLUMNS[name][key] for key in ("title", "group", "metrics")} if name in COLUMNS else {}
    upgraded = {**known, **task}
    if task.get("layers"):
        upgraded["layers"] = rename_poolings(task["layers"])
    if task.get("sweep"):
        upgraded["sweep"] = upgrade_sweep(task["sweep"])
    return upgraded
