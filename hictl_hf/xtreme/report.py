"""The report of runs on XTREME: tables, heat maps of languages and tasks, scores by layer, and how it was made.

It is a page (`report.html`), Markdown (`report.md`) and LaTeX (`table.tex`). `hictl compare` prints
several runs side by side.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..files import write_text
from ..reports.page import Block, Listing, Picture, write_sections
from ..reports.plots import plot_layers
from ..reports.results import place_of_run
from ..reports.tables import Table
from .paper import PAPER
from .plots import plot_languages_and_tasks
from .results import TaskResults, XtremeResults
from .tables import (
    GROUPS,
    all_tables,
    mean_score,
    metric_names,
    nine_tasks,
    protocol_table,
    task_scores,
)

MAP_CAPTION = (
    "Score in %, in question answering (F1 + EM) / 2; the darker, the better. Languages come in the order of how far "
    "their scores lie above the means of their tasks; under a task, how many of XTREME's are in its mean, if not all. "
    "Dash on grey: no score; pale: XTREME lacks the language there."
)
LAYERS_CAPTION = "By the layer and the pooling of the sentence vectors. The ring marks the best."


def read_runs(paths: Sequence[str | Path]) -> dict[str, XtremeResults]:
    """Results files by the name of their encoder; where it is the same with the setting, then the folder or file.

    Raises:
        BadInput: a file is no results file of `run_xtreme.py`.
    """
    runs = {Path(path): XtremeResults.read(path) for path in paths}
    encoders = Counter(results.encoder for results in runs.values())
    names = {path: results.name if encoders[results.encoder] > 1 else results.encoder for path, results in runs.items()}
    twice = Counter(names.values())
    places = {path: f" ({place_of_run(path, runs)})" if twice[name] > 1 else "" for path, name in names.items()}
    return {name + places[path]: runs[path] for path, name in names.items()}


def write_report(runs: Mapping[str, XtremeResults], folder: str | Path) -> Path:
    """Write `report.md`, `table.tex`, pictures, and a page that needs no other file; returns the path of the page."""
    folder = Path(folder)
    tables = all_tables(runs)
    sections = _sections(runs, tables, list(_pictures(runs, folder)))
    latex = [r"% needs \usepackage{booktabs}", *(table.latex() for table in tables)]
    write_text(folder / "table.tex", "\n\n".join(latex) + "\n")
    footer = f"Published numbers: {'. '.join(PAPER['sources'].values())}."
    return write_sections(folder, headline(runs), _facts(runs), sections, footer)


def headline(runs: Mapping[str, XtremeResults]) -> str:
    """The mean score of one run, or its progress, in one sentence; the number of several runs."""
    if len(runs) != 1:
        return f"{len(runs)} runs on XTREME"
    [(name, results)] = runs.items()
    number, words = _progress(results)
    return f"{name} on XTREME: {number} {words}"


def _sections(
    runs: Mapping[str, XtremeResults], tables: Sequence[Table], pictures: Sequence[Picture]
) -> dict[str, list[Block]]:
    """The blocks of the report by heading."""
    main, groups, gap, *by_language = tables
    sections: dict[str, list[Block]] = {table.title: [table] for table in (main, groups, gap)}
    sections |= {picture.title: [picture] for picture in pictures}
    if by_language:
        sections["By language"] = [*by_language]
    made: list[Block] = []
    for name, results in runs.items():
        signatures = [line for task in results.tasks.values() for line in task.signatures.values()]
        made.append(protocol_table(name, results))
        made += [Listing(f"Command of {name}", results.command)] if results.command else []
        made += [Listing(f"Signatures of {name}", "\n".join(signatures))] if signatures else []
    return {**sections, "How it was made": made}


def _pictures(runs: Mapping[str, XtremeResults], folder: Path) -> Iterator[Picture]:
    for number, (name, results) in enumerate(runs.items(), 1):
        groups: dict[str, dict[str, dict[str, float | None]]] = {}
        scores = task_scores(results)
        for task in (scores[key] for key in scores if key in results.tasks):
            trial = "\n(trial)" if task.note and task.scores else ""
            some = f"\n{len(task.scores)} of {len(task.languages)}" if task.reasons and task.scores else ""
            title = f"{task.title}{trial}{some}"
            by_language = {language: task.language_score(language) for language in task.languages}
            groups.setdefault(GROUPS.get(task.group, task.group), {})[title] = by_language
        path = plot_languages_and_tasks(groups, folder / f"languages-{number}.png", name)
        yield Picture(f"Languages and tasks: {name}", MAP_CAPTION, path)
        for key, measured in results.tasks.items():
            if measured.layers:
                path = plot_layers(measured.layers, folder / f"layers-{number}-{key}.png", _measure(measured))
                yield Picture(f"{measured.title} by layer: {name}", LAYERS_CAPTION, path)


def _measure(task: TaskResults) -> str:
    split = task.sweep.split if task.sweep else "dev"
    return f"{task.title}, {metric_names(task.metrics)} on {split} (%)"


def _progress(results: XtremeResults) -> tuple[str, str]:
    nine = nine_tasks(results)
    mean = mean_score(nine)
    if mean is not None:
        return f"{mean:.1f}", "on average"
    return str(sum(task.complete for task in nine)), f"of {len(nine)} tasks complete"


def _facts(runs: Mapping[str, XtremeResults]) -> list[tuple[str, str]]:
    progress = {name: _progress(results) for name, results in runs.items()}
    return [(number, f"{words}: {name}") for name, (number, words) in progress.items()]
