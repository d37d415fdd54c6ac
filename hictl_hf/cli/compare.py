"""`hictl compare`: print tables that compare runs of one kind, read from their `results.json`.

hictl compare runs/demo-lm-only runs/demo
hictl compare runs/xtreme/results.json runs/xtreme-baseline/results.json
"""

import json
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import BadInput, add_debug
from ..pretraining.results import PretrainingResults
from ..pretraining.results import comparison_table as pretraining_table
from ..reports.results import NO_RESULTS, RESULTS_FILE, names_of_runs
from ..reports.tables import Table
from ..translation.report import comparison_table, score_table
from ..translation.report import read_runs as read_translation_runs
from ..xtreme.report import read_runs as read_xtreme_runs
from ..xtreme.tables import gap_table, group_table, main_table


def make_parser() -> ArgumentParser:
    parser = ArgumentParser("hictl compare", description="Compare runs of pre-training, of XTREME, or of translation.")
    parser.add_argument("runs", nargs="+", help="output folders or their results.json, all of one kind")
    add_debug(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; `argv` defaults to the command line."""
    given = map(Path, make_parser().parse_args(argv).runs)
    paths = [path / RESULTS_FILE if path.is_dir() else path for path in given]
    kinds = {path: kind_of(path) for path in paths}
    if others := [path for path in paths if kinds[path] != kinds[paths[0]]]:
        found = f"is a run of {kinds[others[0]]}, and {paths[0]} of {kinds[paths[0]]}"
        raise BadInput(f"{others[0]}: {found}; allowed are runs of one kind. Compare them separately.")
    print(KINDS[kinds[paths[0]]].compare(paths))


def kind_of(path: Path) -> str:
    """Return the kind of run that wrote this `results.json`, a key of `KINDS`."""
    try:
        keys = {*dict(json.loads(path.read_text("utf-8")))}
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(
            f"{path}: cannot be read ({error}); allowed is the {RESULTS_FILE} of a run. {NO_RESULTS}"
        ) from error
    for name, kind in KINDS.items():
        if keys.issuperset(kind.keys):
            return name
    allowed = f"allowed is the {RESULTS_FILE} of {', '.join(KINDS)}"
    raise BadInput(f"{path}: holds {', '.join(sorted(keys)) or 'nothing'}; {allowed}")


def compare_pretraining(paths: Sequence[Path]) -> str:
    """Tabulate mean retrieval accuracy before and after training."""
    return pretraining_table({name: PretrainingResults.read(path) for name, path in zip(names_of_runs(paths), paths)})


def compare_xtreme(paths: Sequence[Path]) -> str:
    """Tabulate scores by task and group, and the gap between English and the other languages."""
    runs = read_xtreme_runs(paths)
    return as_text([main_table(runs), group_table(runs), gap_table(runs)])


def compare_translation(paths: Sequence[Path]) -> str:
    """Tabulate scores by direction, and the difference of each run from the first with its confidence interval."""
    runs = read_translation_runs(paths)
    comparison = [comparison_table(runs)] if len(runs) > 1 else []
    return as_text([score_table(runs), *comparison])


def as_text(tables: Iterable[Table]) -> str:
    """Return tables as text, each below its title and caption."""
    return "\n\n".join(f"{table.title}. {table.caption}\n\n{table.text()}" for table in tables)


class Kind(NamedTuple):
    """A kind of run: the keys that identify its `results.json`, and the function that compares such files."""

    keys: tuple[str, ...]
    compare: Callable[[Sequence[Path]], str]


KINDS = {
    "translation": Kind(("test", "decoding"), compare_translation),
    "XTREME": Kind(("tasks", "setting"), compare_xtreme),
    "pre-training": Kind(("history", "corpus"), compare_pretraining),
}
