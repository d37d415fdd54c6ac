"""The report of translation runs: scores next to the paper's, validation by step, the tokens that the [CLS]
bias proposes, the attention, twenty translations from bad to good, and how the results were made.

It is made from `results.json` and `predictions.jsonl`. `hictl compare`
prints several runs side by side, and the difference of each from the first.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from sacrebleu.metrics.chrf import CHRF
from transformers import PreTrainedTokenizerBase

from ..errors import BadInput, as_bad_input
from ..models.modeling_hictl_translation import HictlForConditionalGeneration
from ..reports.page import OF_SENTENCES, Block, Listing, Picture, write_sections
from ..reports.results import duration, names_of_runs
from ..reports.tables import NONE, Cell, Table
from .inspection import look_into
from .plots import plot_scores_by_step
from .results import ReportedScore, TranslationResults
from .scores import METRICS, paired_bootstrap, score_text

PAPER: Mapping[str, Any] = json.loads(Path(__file__).with_name("paper.json").read_text("utf-8"))
NAMES = {"sacrebleu": "sacreBLEU", "multi-bleu": "multi-bleu", "chrf": "chrF", "comet": "COMET"}
TRANSLATIONS = 20
ALLOWED = "the results.json that run_translation.py writes, and predictions.jsonl next to it"
REPEAT = "Restore the file, or repeat the run."
TEXTS = ("direction", "source", "target", "translation")  # in each line of predictions.jsonl
COMPARED = ("sacrebleu", "chrf")
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """The files of a run that the report shows.

    Attributes:
        rows: lines of `predictions.jsonl`, with `TEXTS`.
    """

    name: str
    results: TranslationResults
    rows: Sequence[Row] = ()

    def of(self, direction: str) -> list[Row]:
        """The translations of a direction, in order."""
        return [row for row in self.rows if row["direction"] == direction]


def read_runs(paths: Sequence[str | Path]) -> list[Run]:
    """Runs by their results files, named after their folders.

    Raises:
        BadInput: a file is no results file of `run_translation.py`, or its predictions cannot be read.
    """
    files = [*map(Path, paths)]
    return [_read_run(file, name) for file, name in zip(files, names_of_runs(files))]


def _read_run(path: Path, name: str) -> Run:
    results = TranslationResults.read(path)
    place, rows = path.with_name("predictions.jsonl"), []
    with as_bad_input(str(place), ALLOWED, REPEAT):
        lines = place.read_text("utf-8").rstrip().split("\n") if place.exists() else []
    for number, line in enumerate(lines, start=1):
        with as_bad_input(f"{place}:{number}", ALLOWED, REPEAT):
            row = json.loads(line)
        if lacking := [key for key in TEXTS if not isinstance(row, dict) or not isinstance(row.get(key), str)]:
            raise BadInput(f"{place}:{number}: has no {lacking[0]!r}; allowed is {ALLOWED}. {REPEAT}")
        rows.append(row)
    return Run(name, results, rows)


# --- scores -----------------------------------------------------------------------------------------------------------


def score_table(runs: Sequence[Run]) -> Table:
    """By direction the scores of the runs, each with its signature, and the paper's if a run has its test set."""
    published = {direction: _paper_row(direction, runs) for run in runs for direction in run.results.test}
    found = {metric for run in runs for scores in run.results.test.values() for metric in scores}
    found |= {row["metric"] or "sacrebleu" for row in published.values() if row}
    metrics = [metric for metric in METRICS if metric in found]
    sections: dict[str, list[list[Cell]]] = {}
    for direction, row in published.items():
        scored = {run.name: run.results.test[direction] for run in runs if direction in run.results.test}
        cells = {name: [_score(metric, scores.get(metric)) for metric in metrics] for name, scores in scored.items()}
        sections[direction] = [[Cell(name, strong=True), *found] for name, found in cells.items()]
        sections[direction] += _paper_cells(row, metrics) if row else []
    caption = (
        "Out of 100, COMET out of 1. Compare scores of equal signatures, which are below. Bold: what was run here."
    )
    return Table("Scores", caption, [Cell("system"), *(Cell(NAMES[metric]) for metric in metrics)], sections)


def _score(metric: str, score: ReportedScore | None) -> Cell:
    if score is None or score.value is None:
        return Cell(NONE)
    return Cell(score_text(metric, score.value), (score.signature,))


def _paper_cells(row: Mapping[str, Any], metrics: Sequence[str]) -> list[list[Cell]]:
    """A line for each published system, its score in the column of the row's metric."""
    note = f"As printed in {PAPER['source']}, Table {row['table']}"
    note += "." if row["metric"] else ", which names no script for it."
    own, empty = row["metric"] or "sacrebleu", Cell(NONE)
    return [
        [Cell(name), *(Cell(f"{value:.2f}", (note,)) if metric == own else empty for metric in metrics)]
        for name, value in row["scores"].items()
    ]


def _paper_row(direction: str, runs: Sequence[Run]) -> Mapping[str, Any] | None:
    """The published scores on the test set of a run, which its signature names: `data:wmt16-ro-en test 1234abcd`."""
    signatures = [score.signature for run in runs for score in run.results.test.get(direction, {}).values()]
    noted = [found[1] for text in signatures if (found := re.search(r"\|data:([^|]*)", text))]
    tested = {corpus for text in noted for corpus in re.findall(r"(\S+) test\b", text)}
    rows = [row for row in PAPER["rows"] if row["direction"] == direction and row["data"] in tested]
    return rows[0] if rows else None


def comparison_table(runs: Sequence[Run]) -> Table:
    """By direction the difference of each run from the first: paired bootstrap on the same test set."""
    first, *others = runs
    sections = {
        direction: [[Cell(run.name, strong=True), *_differences(direction, first, run)] for run in others]
        for direction in first.results.test
    }
    caption = "The difference, and where it lies in 95 % of 1000 samples of the test set."
    heads = [Cell("system"), *(Cell(NAMES[metric]) for metric in COMPARED)]
    return Table(f"Better than {first.name} by", caption, heads, sections)


def _differences(direction: str, first: Run, run: Run) -> list[Cell]:
    baseline, rows = first.of(direction), run.of(direction)
    sides = [[(row["source"], row["target"]) for row in of_one] for of_one in (baseline, rows)]
    if not rows or sides[0] != sides[1]:
        return [Cell(NONE, (f"It has no translations of the test set that {first.name} translated.",))] * len(COMPARED)
    before, after = ([row["translation"] for row in of_one] for of_one in (baseline, rows))
    references, language = [[row["target"] for row in rows]], run.results.target_language(direction)
    return [
        Cell(f"{c.system - c.baseline:+.2f} [{c.low:+.2f}, {c.high:+.2f}]", (c.signature,))
        for c in paired_bootstrap(before, after, references, language, COMPARED)
    ]


# --- translations -----------------------------------------------------------------------------------------------------


def spread(rows: Sequence[Row], number: int = TRANSLATIONS) -> list[tuple[float, Row]]:
    """A sample of rows with their sentence chrF, worst first: the middle row of each equal part of the sorted rows."""
    chrf = CHRF()
    scored = [(chrf.sentence_score(row["translation"], [row["target"]]).score, row) for row in rows]
    ranked, number = sorted(scored, key=lambda pair: pair[0]), min(number, len(rows))
    return [ranked[(2 * part + 1) * len(rows) // (2 * number)] for part in range(number)]


def translation_table(rows: Sequence[tuple[float, Row]]) -> Table:
    """Translations as they are, with their sentence chrF."""
    names = dict(zip(TEXTS, ("direction", "source", "reference", "translation")))
    if len({row["direction"] for _, row in rows}) == 1:
        del names["direction"]
    cells = [[Cell(f"{score:.0f}"), *(Cell(row[key]) for key in names)] for score, row in rows]
    caption = "From the worst to the best of the test set, in equal steps of rank by sentence chrF."
    heads = [Cell("chrF"), *map(Cell, names.values())]
    return Table("Translations", caption, heads, {"": cells})


# --- training ---------------------------------------------------------------------------------------------------------


def validation_picture(results: TranslationResults, path: Path) -> Picture | None:
    """Scores of the validation set by step; in step 2 after those of step 1, if its results are next to its model."""
    first: TranslationResults | None = None
    if results.step == 2 and results.model:
        with suppress(BadInput):
            first = TranslationResults.read(Path(results.model).parent)
    change = max((entry["step"] for entry in first.evaluations), default=None) if first else None
    scores: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for metric, direction in product(METRICS, results.rows.validation):
        now = [(step + (change or 0), value) for step, value in _evaluations(results, metric, direction)]
        if now:
            before = _evaluations(first, metric, direction) if first else []
            scores.setdefault(NAMES[metric], {})[direction] = before + now
    caption = f"On the validation set; the rings mark the best. Kept: {results.chosen.state or NONE}."
    caption += " Dashed: where step 2 began." if change else ""
    return Picture("Validation", caption, plot_scores_by_step(scores, path, change)) if scores else None


def _evaluations(results: TranslationResults, metric: str, direction: str) -> list[tuple[float, float]]:
    """Steps and scores of a direction; the key of a score names the direction if there are several."""
    directions = results.rows.validation
    key = f"eval_{metric}_{direction}" if len(directions) > 1 else f"eval_{metric}"
    found = results.evaluations if direction in directions else []
    return [(entry["step"], entry[key]) for entry in found if entry.get(key) is not None]


def protocol_table(results: TranslationResults) -> Table:
    """Tabulate the start, data and skipped pairs of a run, and the settings of its search."""
    random = " (new weights)" if results.random_encoder else ""
    vocabulary, seconds = results.target_vocabulary, results.chosen.seconds
    facts = {
        "began with": f"{results.began_from}{random}",
        "step": results.step,
        "state": results.chosen.state,
        "training": duration(seconds) if seconds else None,
        **{f"pairs of {name}": _listed(counts) for name, counts in vars(results.rows).items()},
        "rows left out": _listed(results.skipped) or "none",
        "sources cut": _listed(results.cut_sources),
        "empty lines of test": _listed(results.empty_lines),
        "target vocabulary": f"{vocabulary.size:,} pieces" if vocabulary.size else None,
        "unknown in targets of train": _listed(vocabulary.unknown_tokens),
        "search": _listed(asdict(results.decoding)),
    }
    rows = [[Cell(name), Cell(str(value))] for name, value in facts.items() if value not in (None, "")]
    return Table("Protocol", "", [Cell(""), Cell("")], {"": rows})


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in values.items())


# --- the report -------------------------------------------------------------------------------------------------------


def write_translation_report(
    folder: str | Path,
    model: HictlForConditionalGeneration | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> None:
    """Write `report.html`, `report.md` and their pictures next to the `results.json` of a run.

    Args:
        model: the model of the run; without it the words it proposes and its attention are not shown.
    """
    folder = Path(folder)
    [run] = read_runs([folder / "results.json"])
    shown = spread(run.rows)
    blocks: list[Block | None] = [score_table([run]) if run.results.test else None]
    blocks.append(validation_picture(run.results, folder / "validation.png"))
    if model is not None and tokenizer is not None:
        languages = [run.results.target_language(row["direction"]) for _, row in shown]
        blocks += look_into(model, tokenizer, [row for _, row in shown], languages, folder / "attention.png")
    blocks += [translation_table(shown) if shown else None, protocol_table(run.results)]
    sections: dict[str, list[Block]] = {block.title: [block] for block in blocks if block}
    made: list[Block] = []
    for group, settings in run.results.setting_groups().items():
        rows = [[Cell(str(name)), Cell(str(value))] for name, value in settings.items()]
        made.append(Table(group, "", [Cell("setting"), Cell("value")], {"": rows}))
    for title, lines in (("Command", [run.results.command]), ("Messages", run.results.messages)):
        text = "\n".join(filter(None, lines))
        made += [Listing(title, text)] if text else []
    sections["Settings"] = made
    write_sections(
        folder, headline(run), _facts(run), sections, f"{run.results.signature()} · {PAPER['source']}", STYLE
    )


def headline(run: Run) -> str:
    """The score of each direction in one sentence, by the metric the state was chosen by."""
    metric = run.results.metric
    values = {direction: scores[metric].value for direction, scores in run.results.test.items() if metric in scores}
    decimals = 3 if metric == "comet" else 1  # which is out of 1
    said = ", ".join(f"{direction} {value:.{decimals}f}" for direction, value in values.items() if value is not None)
    return f"Translation: {said} {NAMES[metric]}" if said else "A translation run"


def _facts(run: Run) -> list[tuple[str, str]]:
    facts = [
        (_score(metric, score).text, f"{NAMES.get(metric, metric)} {direction}")
        for direction, scores in run.results.test.items()
        for metric, score in scores.items()
    ]
    pairs = sum(run.results.rows.train.values())
    return facts + ([(f"{pairs:,}", "sentence pairs of training")] if pairs else [])


STYLE = (
    OF_SENTENCES
    + """td:first-child { min-width: 5.2rem; }
figure { max-width: 46rem; }
"""
)
