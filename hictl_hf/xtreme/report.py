"""What `run_xtreme.py` measured, in tables: the paper's nine tasks beside the rows it prints, XTREME's groups, the gap
between English and the other languages, and every language of every task, as Markdown, LaTeX and HTML. This module
decides what counts as an XTREME score: the mean over all languages XTREME lists, each scored on XTREME's test set. What
is less is marked, with the reason, and enters no average. It reads results files (`results.json`) and the published
numbers in `xtreme_paper.json`; what was measured is decided by the driver. To see several runs side by side:

    python -m hictl_hf.xtreme.report RUN/results.json ANOTHER/results.json
"""

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ..errors import BadInput
from ..files import write_text
from ..reports.page import Block, Listing, Picture, write_sections
from ..reports.plots import plot_layers
from ..reports.results import Results, part
from ..reports.tables import FROM_MEMORY, NONE, Cell, Table
from .plots import plot_languages_and_tasks

PAPER: Mapping[str, Any] = json.loads(Path(__file__).with_name("paper.json").read_text("utf-8"))
COLUMNS: Mapping[str, Mapping[str, Any]] = {column["task"]: column for column in PAPER["columns"]}
SETTINGS = ("zero-shot", "translate-train", "translate-train-all")
GROUPS = {  # as in results files -> as XTREME calls them
    "classification": "classification",
    "tagging": "structured prediction",
    "question answering": "question answering",
    "retrieval": "retrieval",
}
METRICS = {"accuracy": "Accuracy", "f1": "F1", "exact_match": "EM"}
NOT_RUN = "not run"


@dataclass(frozen=True)
class TaskScores:
    """What a run says of a task: one number for each metric of a language, or the reason why there is none."""

    title: str
    group: str
    metrics: tuple[str, ...]
    languages: tuple[str, ...]
    scores: Mapping[str, tuple[float, ...]]
    reasons: Mapping[str, str]
    note: str

    @property
    def complete(self) -> bool:
        """Whether the score is one of XTREME: every language is there, and it is no trial."""
        return not self.reasons and not self.note

    @property
    def score(self) -> float:
        """Mean over languages and metrics: in question answering (F1 + EM) / 2."""
        return fmean(_means(self.scores.values()))

    @property
    def cell(self) -> Cell:
        """The means over languages, marked where they are none of XTREME's."""
        return self._marked(_means(self.scores.values()))

    @property
    def gap(self) -> Cell:
        """English minus the mean of the other languages, metric by metric."""
        others = [numbers for language, numbers in self.scores.items() if language != "en"]
        if "en" not in self.scores or not others:
            return Cell(NONE, self.notes)
        return self._marked([english - other for english, other in zip(self.scores["en"], _means(others))])

    def language_score(self, language: str) -> float | None:
        """Mean of the metrics of a language, none where it was not scored."""
        return fmean(self.scores[language]) if language in self.scores else None

    def _marked(self, numbers: Sequence[float]) -> Cell:
        """The numbers, with what keeps them from being XTREME's."""
        if not self.scores:
            return Cell(NONE, self.notes)
        coverage = f" ({len(self.scores)} of {len(self.languages)})" if self.reasons else ""
        return Cell(f"{'trial ' if self.note else ''}{_numbers(numbers)}{coverage}", self.notes)

    @property
    def notes(self) -> tuple[str, ...]:
        """Why this is no XTREME score, for the foot of a table."""
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


# --- what was measured ----------------------------------------------------------------------------------------------


def read_runs(paths: Sequence[str | Path]) -> dict[str, Results]:
    """Results files by the name of their encoder, with the setting, then the folder, where that is not enough.

    Raises:
        BadInput: a file is no results file of `run_xtreme.py`.
    """
    runs = {Path(path): _read_results(Path(path)) for path in paths}
    encoders = Counter(results["encoder"] for results in runs.values())
    names = {
        path: results["encoder"] + (f", {results['setting']}" if encoders[results["encoder"]] > 1 else "")
        for path, results in runs.items()
    }
    twice = Counter(names.values())
    return {name + (f" ({path.parent})" if twice[name] > 1 else ""): runs[path] for path, name in names.items()}


def task_scores(results: Results) -> dict[str, TaskScores]:
    """The nine tasks in the paper's order, run or not, then others of the run."""
    tasks = part(results, "tasks")
    return {name: _task(COLUMNS.get(name, {}), tasks.get(name) or {}) for name in (*COLUMNS, *tasks)}


def mean_score(tasks: Iterable[TaskScores]) -> float | None:
    """The plain mean of task scores, as XTREME averages; none unless every task is complete."""
    tasks = list(tasks)
    return fmean(task.score for task in tasks) if all(task.complete for task in tasks) else None


def paper_rows(kind: str, runs: Iterable[Results], setting: str) -> list[Mapping[str, Any]]:
    """Published `rows` or `per_language` of a setting: in the sizes of its runs, or in all beside any other size."""
    sizes = {results.get("size") for results in runs if results.get("setting") == setting}
    everything = not sizes <= {"base", "large"}
    return [
        row
        for row in PAPER[kind]
        if row["setting"] == setting and (everything or row["size"] is None or row["size"] in sizes)
    ]


# --- tables ---------------------------------------------------------------------------------------------------------


def all_tables(runs: Mapping[str, Results]) -> list[Table]:
    """The paper's table, the groups, the transfer gap, and one table by language for each task that was scored."""
    return [main_table(runs), group_table(runs), gap_table(runs), *language_tables(runs)]


def main_table(runs: Mapping[str, Results]) -> Table:
    """The paper's table: setting by setting its rows and ours, nine tasks, the average."""
    sections = {}
    for setting in _settings(runs):
        rows = [_paper_row(row) for row in paper_rows("rows", runs.values(), setting)]
        for name, results in runs.items():
            if results.get("setting", "") == setting:
                nine = _nine(results)
                rows.append([Cell(name, strong=True), *(task.cell for task in nine), _mean_cell(nine)])
        sections[setting] = rows
    titles: dict[str, list[str]] = {}
    for column in COLUMNS.values():
        titles.setdefault(_metric_names(column["metrics"]), []).append(column["title"])
    measures = "; ".join(f"{metrics}: {', '.join(names)}" for metrics, names in titles.items())
    caption = f"In %. {measures}. Average: of nine task scores, (F1 + EM) / 2 counting as one. Bold names: our runs."
    heads = [Cell(text) for text in ("model", *(column["title"] for column in COLUMNS.values()), "average")]
    return Table("Nine tasks", caption, heads, sections)


def group_table(runs: Mapping[str, Results]) -> Table:
    """Means of the task scores of XTREME's groups."""
    rows = []
    for name, results in runs.items():
        nine = _nine(results)
        means = [_mean_cell([task for task in nine if task.group == group]) for group in GROUPS]
        rows.append([Cell(name, strong=True), *means])
    caption = f"Mean score of the tasks of a group in %; {NONE} where one of them is incomplete or a trial."
    return Table("Groups", caption, [Cell("model"), *map(Cell, GROUPS.values())], {"": rows})


def gap_table(runs: Mapping[str, Results]) -> Table:
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


def language_tables(runs: Mapping[str, Results]) -> list[Table]:
    """One table for each task that a run scored: XTREME's languages in its order, the published rows, the runs."""
    scores = {name: task_scores(results) for name, results in runs.items()}
    names = dict.fromkeys(task for run in scores.values() for task, scored in run.items() if scored.scores)
    return [
        _language_table(runs, name, {run: tasks[name] for run, tasks in scores.items() if name in tasks})
        for name in names
    ]


def _language_table(runs: Mapping[str, Results], name: str, scores: Mapping[str, TaskScores]) -> Table:
    task = next(iter(scores.values()))
    published = [
        row
        for setting in _settings(runs)
        for row in paper_rows("per_language", runs.values(), setting)
        if row["task"] == name
    ]
    heads = [Cell("language")] + [Cell(f"{_paper_name(row)}, {row['setting']}", _paper_notes(row)) for row in published]
    heads += [
        Cell(f"{run}{' (trial)' if scored.note else ''}", scored.notes, strong=True)
        for run, scored in scores.items()
        if scored.scores
    ]
    rows = []
    for language in dict.fromkeys(language for scored in scores.values() for language in scored.languages):
        row = [_paper_cell(row, row["scores"].get(language)) for row in published]
        row += [_language_cell(scored, language) for scored in scores.values() if scored.scores]
        rows.append([Cell(language), *row])
    means = [_paper_cell(row, row["average"]) for row in published]
    means += [Cell(scored.cell.text, strong=True) for scored in scores.values() if scored.scores]
    return Table(
        task.title, f"{_metric_names(task.metrics)} by language, in %.", heads, {"": [*rows, [Cell("average"), *means]]}
    )


def protocol_table(name: str, results: Results) -> Table:
    """On what a run trained each task, how it chose a model, with which settings, and what else is to be known."""
    rows = []
    for key, task in part(results, "tasks").items():
        settings = [f"{name.replace('_', ' ')} {value:g}" for name, value in _numbers_of(part(task, "chosen"))]
        tried = f"; best of {len(task['candidates'])}" if len(task.get("candidates") or ()) > 1 else ""
        texts = (task.get("train"), task.get("model_selection"), ", ".join(settings) + tried, task.get("note"))
        rows.append([Cell(str(task.get("title", key))), *(Cell(str(text or NONE)) for text in texts)])
    facts = [f"{key} {results[key]}" for key in ("setting", "size", "seed", "version") if results.get(key) is not None]
    heads = [Cell(text) for text in ("task", "trained on", "chosen by", "settings", "note")]
    return Table(name, ", ".join(facts), heads, {"": rows})


# --- the report -----------------------------------------------------------------------------------------------------


def write_report(runs: Mapping[str, Results], folder: str | Path) -> Path:
    """Write `report.md`, `table.tex`, pictures, and a page that needs no other file; returns the path of the page."""
    folder = Path(folder)
    tables = all_tables(runs)
    sections = _sections(runs, tables, list(_pictures(runs, folder)))
    latex = [r"% needs \usepackage{booktabs}", *(table.latex() for table in tables)]
    write_text(folder / "table.tex", "\n\n".join(latex) + "\n")
    footer = f"Published numbers: {'. '.join(PAPER['sources'].values())}."
    return write_sections(folder, headline(runs), _facts(runs), sections, footer)


def headline(runs: Mapping[str, Results]) -> str:
    """How far one run is, or how many there are, in one sentence."""
    if len(runs) != 1:
        return f"{len(runs)} runs on XTREME"
    [(name, results)] = runs.items()
    number, words = _progress(results)
    return f"{name} on XTREME: {number} {words}"


def _sections(
    runs: Mapping[str, Results], tables: Sequence[Table], pictures: Sequence[Picture]
) -> dict[str, list[Block]]:
    """What the report holds, by heading."""
    main, groups, gap, *by_language = tables
    sections: dict[str, list[Block]] = {table.title: [table] for table in (main, groups, gap)}
    sections |= {picture.title: [picture] for picture in pictures}
    if by_language:
        sections["By language"] = [*by_language]
    made: list[Block] = []
    for name, results in runs.items():
        signatures = [line for task in part(results, "tasks").values() for line in part(task, "signatures").values()]
        made.append(protocol_table(name, results))
        made += [Listing(f"Command of {name}", str(results["command"]))] if results.get("command") else []
        made += [Listing(f"Signatures of {name}", "\n".join(map(str, signatures)))] if signatures else []
    return {**sections, "How it was made": made}


def _pictures(runs: Mapping[str, Results], folder: Path) -> Iterator[Picture]:
    for number, (name, results) in enumerate(runs.items(), 1):
        groups: dict[str, dict[str, dict[str, float | None]]] = {}
        for key, task in task_scores(results).items():
            if key not in part(results, "tasks"):
                continue
            scores = {language: task.language_score(language) for language in task.languages}
            title = f"{task.title}\n(trial)" if task.note and task.scores else task.title
            groups.setdefault(GROUPS.get(task.group, task.group), {})[title] = scores
        path = plot_languages_and_tasks(groups, folder / f"languages-{number}.png", name)
        yield Picture(f"Languages and tasks: {name}", MAP_CAPTION, path)
        for key, task in part(results, "tasks").items():
            if task.get("layers"):
                split = part(task, "sweep").get("split", "dev")
                measure = f"{task['title']}, {_metric_names(task['metrics'])} on {split} (%)"
                path = plot_layers(task["layers"], folder / f"layers-{number}-{key}.png", measure)
                yield Picture(f"{task['title']} by layer: {name}", LAYERS_CAPTION, path)


def _progress(results: Results) -> tuple[str, str]:
    nine = _nine(results)
    mean = mean_score(nine)
    if mean is not None:
        return f"{mean:.1f}", "on average"
    return str(sum(task.complete for task in nine)), f"of {len(nine)} tasks complete"


def _facts(runs: Mapping[str, Results]) -> list[tuple[str, str]]:
    progress = {name: _progress(results) for name, results in runs.items()}
    return [(number, f"{words}: {name}") for name, (number, words) in progress.items()]


MAP_CAPTION = (
    "Score in %, in question answering (F1 + EM) / 2; the darker, the better. Languages come in the order of how far "
    "their scores lie above the means of their tasks. Dash on grey: no score; pale: XTREME lacks the language there."
)
LAYERS_CAPTION = "By the layer and the pooling that sentences are read off with. The ring marks the best."


# --- small things ---------------------------------------------------------------------------------------------------


def _task(official: Mapping[str, Any], task: Mapping[str, Any]) -> TaskScores:
    measured, missing, facts = part(task, "languages"), part(task, "missing"), {**task, **official}
    languages = tuple(dict.fromkeys([*official.get("languages", ()), *measured, *missing]))
    scores: dict[str, tuple[float, ...]] = {}
    reasons: dict[str, str] = {}
    for language in languages:
        row = measured.get(language)
        numbers: tuple[Any, ...] = tuple((row or {}).get(metric) for metric in facts["metrics"])
        if all(number is not None and math.isfinite(number) for number in numbers):
            scores[language] = numbers
        else:
            default = "not a number" if row else "no gold labels" if language in measured else NOT_RUN
            reasons[language] = str(missing.get(language, default))
    metrics, note = tuple(facts["metrics"]), str(task.get("note") or "")
    return TaskScores(facts["title"], facts["group"], metrics, languages, scores, reasons, note)


def _read_results(path: Path) -> Results:
    allowed = "allowed: the results.json that run_xtreme.py writes"
    try:
        results = json.loads(path.read_text("utf-8"))
    except json.JSONDecodeError as error:
        raise BadInput(f"{path}:{error.lineno}: no JSON ({error.msg}); {allowed}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read ({error}); {allowed}") from error
    for key, kind in (("encoder", str), ("setting", str), ("tasks", dict)):
        if not isinstance(results, dict) or not isinstance(results.get(key), kind):
            raise BadInput(f"{path}: has no {key!r}; {allowed}")
    for name, task in results["tasks"].items():
        if lacking := [key for key in ("title", "group", "metrics") if key not in task and name not in COLUMNS]:
            raise BadInput(f"{path}: task {name!r} has no {lacking[0]!r}; {allowed}")
    return results


def _nine(results: Results) -> list[TaskScores]:
    return list(task_scores(results).values())[: len(COLUMNS)]


def _settings(runs: Mapping[str, Results]) -> list[str]:
    found = dict.fromkeys(str(results.get("setting", "")) for results in runs.values())
    return sorted(found, key=lambda setting: SETTINGS.index(setting) if setting in SETTINGS else len(SETTINGS))


def _mean_cell(tasks: Sequence[TaskScores]) -> Cell:
    mean = mean_score(tasks)
    return Cell(NONE if mean is None else f"{mean:.1f}", strong=mean is not None)


def _language_cell(task: TaskScores, language: str) -> Cell:
    return Cell(_numbers(task.scores[language]) if language in task.scores else NONE)


def _paper_row(row: Mapping[str, Any]) -> list[Cell]:
    scores = [_paper_cell(row, row["scores"].get(task)) for task in COLUMNS]
    average = _paper_cell(row, None if row["average"] is None else [row["average"]])
    return [Cell(_paper_name(row), _paper_notes(row)), *scores, average]


def _paper_name(row: Mapping[str, Any]) -> str:
    return f"{row['model']}, {row['size']}" if row["size"] else str(row["model"])


def _paper_notes(row: Mapping[str, Any]) -> tuple[str, ...]:
    source = PAPER["sources"][row["source"]]
    first = f"As printed in {source}." if row["verified"] else f"{FROM_MEMORY} From memory, to be checked in {source}."
    return (first, row["note"]) if row.get("note") else (first,)


def _paper_cell(row: Mapping[str, Any], numbers: Sequence[float] | None) -> Cell:
    return Cell(NONE if numbers is None else _numbers(numbers) + ("" if row["verified"] else FROM_MEMORY))


def _metric_names(metrics: Iterable[str]) -> str:
    return "/".join(METRICS.get(metric, metric) for metric in metrics)


def _means(rows: Iterable[Sequence[float]]) -> tuple[float, ...]:
    return tuple(map(fmean, zip(*rows)))


def _numbers(numbers: Sequence[float]) -> str:
    return "/".join(f"{number:z.1f}" for number in numbers)


def _numbers_of(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    return ((name, value) for name, value in values.items() if isinstance(value, int | float))


def _sentence(words: str) -> str:
    return f"{words.rstrip('.')}."


def main(paths: Sequence[str]) -> None:
    """Print the tables of all tasks, of groups, and of the transfer gap for these results files."""
    if not paths:
        sys.exit("usage: python -m hictl_hf.xtreme.report RUN/results.json [ANOTHER/results.json ...]")
    try:
        runs = read_runs(paths)
    except BadInput as error:
        sys.exit(str(error))
    tables = (main_table(runs), group_table(runs), gap_table(runs))
    print("\n\n".join(f"{table.title}. {table.caption}\n\n{table.text()}" for table in tables))


if __name__ == "__main__":
    main(sys.argv[1:])
