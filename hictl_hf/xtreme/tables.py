"""Results of XTREME as tables: the paper's nine tasks next to the rows it prints, XTREME's groups, the gap between
English and the other languages, and every language of every task.

An XTREME score is the mean over all languages of a task, each scored on XTREME's test set. Other scores are
marked, with the reason, and left out of averages.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from ..reports.tables import NONE, Cell, Table
from .paper import COLUMNS, SETTINGS, join_numbers, paper_cell, paper_name, paper_notes, paper_rows
from .results import TaskResults, XtremeResults

GROUPS = {  # names in results files -> names of XTREME
    "classification": "classification",
    "tagging": "structured prediction",
    "question answering": "question answering",
    "retrieval": "retrieval",
}
METRICS = {"accuracy": "Accuracy", "f1": "F1", "exact_match": "EM"}
NOT_RUN = "not run"
EXAMPLES = re.compile(r"\|data:([^|]*)(?:\|.*)?\|version:([^|]*)")  # in a signature


@dataclass(frozen=True)
class TaskScores:
    """Scores of a task in a run: one number for each metric of a language, or the reason why there is none."""

    title: str
    group: str
    metrics: tuple[str, ...]
    languages: tuple[str, ...]
    scores: Mapping[str, tuple[float, ...]]
    reasons: Mapping[str, str]
    note: str

    @classmethod
    def of(cls, name: str, task: TaskResults | None) -> "TaskScores":
        """The scores of a task of a run; without numbers if it was not run."""
        official = COLUMNS.get(name, {})
        names = ("title", "group", "metrics")
        task = task or TaskResults(**{key: official[key] for key in names})
        title, group, metrics = (official.get(key, getattr(task, key)) for key in names)
        languages = dict.fromkeys([*official.get("languages", ()), *task.languages, *task.missing])
        scores: dict[str, tuple[float, ...]] = {}
        reasons: dict[str, str] = {}
        for language in languages:
            values = task.languages.get(language)
            found = [number for metric in metrics if (number := (values or {}).get(metric)) is not None]
            if len(found) == len(metrics) and all(map(math.isfinite, found)):
                scores[language] = tuple(found)
            else:
                default = "not a number" if values else "no gold labels" if language in task.languages else NOT_RUN
                reasons[language] = task.missing.get(language, default)
        others = [language for language in scores if official and language not in official["languages"]]
        note = task.note or (f"trial: also in {', '.join(others)}, which XTREME lacks" if others else "")
        return cls(title, group, tuple(metrics), tuple(languages), scores, reasons, note)

    @property
    def complete(self) -> bool:
        """Whether the score is one of XTREME: every language is scored, and it is no trial."""
        return not self.reasons and not self.note

    @property
    def score(self) -> float:
        """Mean over languages and metrics: in question answering (F1 + EM) / 2."""
        return fmean(_means(self.scores.values()))

    @property
    def cell(self) -> Cell:
        """The means over languages, marked where the task is incomplete or a trial."""
        return self._marked(_means(self.scores.values()))

    @property
    def gap(self) -> Cell:
        """English minus the mean of the other languages, metric by metric."""
        others = [numbers for language, numbers in self.scores.items() if language != "en"]
        if "en" not in self.scores or not others:
            return Cell(NONE, self.notes)
        return self._marked([english - other for english, other in zip(self.scores["en"], _means(others))])

    def language_score(self, language: str) -> float | None:
        """Mean of the metrics of a language; `None` if it was not scored."""
        return fmean(self.scores[language]) if language in self.scores else None

    def _marked(self, numbers: Sequence[float]) -> Cell:
        """The numbers, marked where the task is incomplete or a trial."""
        if not self.scores:
            return Cell(NONE, self.notes)
        coverage = f" ({len(self.scores)} of {len(self.languages)})" if self.reasons else ""
        return Cell(f"{'trial ' if self.note else ''}{join_numbers(numbers)}{coverage}", self.notes)

    @property
    def notes(self) -> tuple[str, ...]:
        """Why the score is not XTREME's, for the foot of a table."""
        if not self.scores:
            reasons = list(dict.fromkeys(map(self.reason, self.reasons)))
            reasons = [self.note] if self.note and reasons == [NOT_RUN] else reasons
            return tuple(f"No score: {_sentence(reason)}" for reason in reasons)
        notes = [f"Trial, not an XTREME score: {_sentence(self.note.removeprefix('trial: '))}"] if self.note else []
        for reason in dict.fromkeys(map(self.reason, self.reasons)):
            languages = [language for language in self.reasons if self.reason(language) == reason]
            notes.append(f"Without {', '.join(languages)}: {_sentence(reason)}")
        return tuple(notes)

    def reason(self, language: str) -> str:
        """Why the language has no score; its code in a file name becomes XX, so that languages share a reason."""
        code = re.escape(language)
        in_names = rf"(?<![^-./_\s]){code}(?=[-/_]|\.\w)|(?<=[-./_]){code}(?![^-./_\s])"
        return re.sub(in_names, "XX", self.reasons[language])


def task_scores(results: XtremeResults) -> dict[str, TaskScores]:
    """The nine tasks in the paper's order, run or not, then the other tasks of the run."""
    return {name: TaskScores.of(name, results.tasks.get(name)) for name in dict.fromkeys([*COLUMNS, *results.tasks])}


def nine_tasks(results: XtremeResults) -> list[TaskScores]:
    """The tasks of the paper's table, in its order."""
    return list(task_scores(results).values())[: len(COLUMNS)]


def mean_score(tasks: Iterable[TaskScores]) -> float | None:
    """The plain mean of task scores, as XTREME averages; `None` unless every task is complete."""
    tasks = list(tasks)
    return fmean(task.score for task in tasks) if all(task.complete for task in tasks) else None


# --- tables ---------------------------------------------------------------------------------------------------------


def all_tables(runs: Mapping[str, XtremeResults]) -> list[Table]:
    """The paper's table, the groups, the transfer gap, and one table by language for each task that was scored."""
    return [main_table(runs), group_table(runs), gap_table(runs), *language_tables(runs)]


def main_table(runs: Mapping[str, XtremeResults]) -> Table:
    """The paper's table: setting by setting its rows and ours, nine tasks, the average."""
    sections, differing = {}, notes_of_other_examples(runs)
    for setting in _settings(runs):
        rows = [_paper_row(row) for row in paper_rows("rows", _sizes(runs, setting), setting)]
        for name, results in runs.items():
            if results.setting == setting:
                nine = nine_tasks(results)
                cells = [
                    replace(task.cell, notes=(*task.cell.notes, *differing.get((name, key), ())))
                    for key, task in zip(COLUMNS, nine)
                ]
                rows.append([Cell(name, strong=True), *cells, _mean_cell(nine)])
        sections[setting] = rows
    titles: dict[str, list[str]] = {}
    for column in COLUMNS.values():
        titles.setdefault(metric_names(column["metrics"]), []).append(column["title"])
    measures = "; ".join(f"{metrics}: {', '.join(names)}" for metrics, names in titles.items())
    caption = f"In %. {measures}. Average: of nine task scores, (F1 + EM) / 2 counting as one. Bold names: our runs."
    heads = [Cell(text) for text in ("model", *(column["title"] for column in COLUMNS.values()), "average")]
    return Table("Nine tasks", caption, heads, sections)


def notes_of_other_examples(runs: Mapping[str, XtremeResults]) -> dict[tuple[str, str], tuple[str]]:
    """By run and task, a note where the signatures name other examples or labels than those of the first run. Those of
    another release, which may hash otherwise, are not compared."""
    notes: dict[tuple[str, str], tuple[str]] = {}
    for key in COLUMNS:
        first, expected = "", dict[tuple[str, str], str]()
        for name, results in runs.items():
            signatures = results.tasks[key].signatures if key in results.tasks else {}
            signed = {language: EXAMPLES.search(text) for language, text in signatures.items()}
            found = {(language, match[2]): match[1] for language, match in signed.items() if match}
            if not expected:
                first, expected = name, found
            if others := [each[0] for each in found if expected.get(each, found[each]) != found[each]]:
                notes[name, key] = (f"In {', '.join(others)} on other examples or labels than {first}.",)
    return notes


def group_table(runs: Mapping[str, XtremeResults]) -> Table:
    """Means of the task scores of XTREME's groups."""
    rows = []
    for name, results in runs.items():
        nine = nine_tasks(results)
        means = [_mean_cell([task for task in nine if task.group == group]) for group in GROUPS]
        rows.append([Cell(name, strong=True), *means])
    caption = f"Mean score of the tasks of a group in %; {NONE} where one of them is incomplete or a trial."
    return Table("Groups", caption, [Cell("model"), *map(Cell, GROUPS.values())], {"": rows})


def gap_table(runs: Mapping[str, XtremeResults]) -> Table:
    """The cross-lingual transfer gap, as XTREME defines it."""
    scores = {name: task_scores(results) for name, results in runs.items()}
    tasks = {task: scored for run in scores.values() for task, scored in run.items() if "en" in scored.languages}
    rows = [
        [Cell(name, strong=True), *(run[task].gap if task in run else Cell(NONE) for task in tasks)]
        for name, run in scores.items()
    ]
    caption = "The English score minus the mean of the other languages, in points: the lower, the better the transfer."
    heads = [Cell("model"), *(Cell(task.title) for task in tasks.values())]
    return Table("Cross-lingual transfer gap", caption, heads, {"": rows})


def language_tables(runs: Mapping[str, XtremeResults]) -> list[Table]:
    """For each task that a run scored: XTREME's languages in its order, the published rows of the settings and sizes of
    the runs, the runs; then the same with the other published rows of each setting."""
    scores = {name: task_scores(results) for name, results in runs.items()}
    names = dict.fromkeys(task for run in scores.values() for task, scored in run.items() if scored.scores)
    tables = []
    for name in names:
        scored = {run: tasks[name] for run, tasks in scores.items() if name in tasks}
        near = [
            row
            for setting in _settings(runs)
            for row in paper_rows("per_language", _sizes(runs, setting), setting)
            if row["task"] == name
        ]
        tables.append(_language_table(near, scored))
        for setting in SETTINGS:
            others = paper_rows("per_language", [None], setting)
            if others := [row for row in others if row["task"] == name and row not in near]:
                tables.append(_language_table(others, scored, f", other published rows, {setting}"))
    return tables


def _language_table(published: Sequence[Mapping[str, Any]], scores: Mapping[str, TaskScores], title: str = "") -> Table:
    task = next(iter(scores.values()))
    heads = [Cell("language")] + [Cell(f"{paper_name(row)}, {row['setting']}", paper_notes(row)) for row in published]
    heads += [
        Cell(f"{run}{' (trial)' if scored.note else ''}", scored.notes, strong=True)
        for run, scored in scores.items()
        if scored.scores
    ]
    rows = []
    for language in dict.fromkeys(language for scored in scores.values() for language in scored.languages):
        row = [paper_cell(row, row["scores"].get(language)) for row in published]
        row += [_language_cell(scored, language) for scored in scores.values() if scored.scores]
        rows.append([Cell(language), *row])
    means = [paper_cell(row, row["average"]) for row in published]
    means += [Cell(scored.cell.text, strong=True) for scored in scores.values() if scored.scores]
    caption = f"{metric_names(task.metrics)} by language, in %."
    return Table(task.title + title, caption, heads, {"": [*rows, [Cell("average"), *means]]})


def protocol_table(name: str, results: XtremeResults) -> Table:
    """For each task the training examples, the choice of the model, its settings, and notes."""
    rows = []
    for task in results.tasks.values():
        settings = [
            f"{key.replace('_', ' ')} {value:g}" for key, value in (task.chosen.numbers if task.chosen else {}).items()
        ]
        tried = f"; best of {len(task.candidates)}" if task.candidates and len(task.candidates) > 1 else ""
        texts = (task.train, task.model_selection, ", ".join(settings) + tried, task.note)
        rows.append([Cell(task.title), *(Cell(text or NONE) for text in texts)])
    values = {"setting": results.setting, "size": results.size, "seed": results.seed, "version": results.version}
    facts = [f"{key} {value}" for key, value in values.items() if value is not None]
    heads = [Cell(text) for text in ("task", "trained on", "chosen by", "settings", "note")]
    return Table(name, ", ".join(facts), heads, {"": rows})


# --- cells ----------------------------------------------------------------------------------------------------------


def _settings(runs: Mapping[str, XtremeResults]) -> list[str]:
    found = dict.fromkeys(results.setting for results in runs.values())
    return sorted(found, key=lambda setting: SETTINGS.index(setting) if setting in SETTINGS else len(SETTINGS))


def _sizes(runs: Mapping[str, XtremeResults], setting: str) -> list[str | None]:
    return [results.size for results in runs.values() if results.setting == setting]


def _mean_cell(tasks: Sequence[TaskScores]) -> Cell:
    mean = mean_score(tasks)
    return Cell(NONE if mean is None else f"{mean:.1f}", strong=mean is not None)


def _language_cell(task: TaskScores, language: str) -> Cell:
    return Cell(join_numbers(task.scores[language]) if language in task.scores else NONE)


def _paper_row(row: Mapping[str, Any]) -> list[Cell]:
    scores = [paper_cell(row, row["scores"].get(task)) for task in COLUMNS]
    average = paper_cell(row, None if row["average"] is None else [row["average"]])
    return [Cell(paper_name(row), paper_notes(row)), *scores, average]


def metric_names(metrics: Iterable[str]) -> str:
    return "/".join(METRICS.get(metric, metric) for metric in metrics)


def _means(rows: Iterable[Sequence[float]]) -> tuple[float, ...]:
    return tuple(map(fmean, zip(*rows)))


def _sentence(words: str) -> str:
    return f"{words.rstrip('.')}."
