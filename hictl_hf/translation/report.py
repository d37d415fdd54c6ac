"""What `run_translation.py` measured, for a reader: scores beside the paper's, validation by step, which words [CLS]
proposes and where the decoder looks, twenty translations from bad to good, and how all of it was made. This module
reads `results.json` and `predictions.jsonl` and decides what is shown of them, and which sentences; what was measured
is decided by the driver. To see several runs side by side, and what each is better by than the first:

    python -m hictl_hf.translation.report RUN/results.json ANOTHER/results.json
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from sacrebleu.metrics.chrf import CHRF
from transformers import PreTrainedTokenizerBase

from ..errors import BadInput
from ..models.modeling_hictl_translation import HictlForConditionalGeneration
from ..reports.page import Block, Listing, Picture, write_sections
from ..reports.results import Results, duration, part, setting_groups, signature
from ..reports.tables import NONE, Cell, Table
from .inspection import look_into
from .plots import plot_scores_by_step
from .scores import METRICS, paired_bootstrap

PAPER: Mapping[str, Any] = json.loads(Path(__file__).with_name("paper.json").read_text("utf-8"))
NAMES = {"sacrebleu": "sacreBLEU", "multi-bleu": "multi-bleu", "chrf": "chrF", "comet": "COMET"}
TRANSLATIONS = 20
ALLOWED = "allowed: the results.json that run_translation.py writes, and predictions.jsonl beside it"
TEXTS = ("direction", "source", "target", "translation")  # of a row of predictions.jsonl
COMPARED = ("sacrebleu", "chrf")
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """What a run left in its folder."""

    name: str
    results: Results
    rows: Sequence[Row] = ()
    """Of `predictions.jsonl`, with `TEXTS`."""

    @property
    def test(self) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
        """Value and signature by direction and metric."""
        return part(self.results, "test")

    def of(self, direction: str) -> list[Row]:
        """The translations of a direction, in order."""
        return [row for row in self.rows if row["direction"] == direction]

    def target_language(self, direction: str) -> str:
        """The second language of "en-zh-Hans", which is one of those the run translated into."""
        known = part(self.results, "settings", "training").get("target_lang") or []
        ends = [language for language in known if direction.endswith(f"-{language}")]
        return max(ends, key=len, default=direction.partition("-")[2])


def read_runs(paths: Sequence[str | Path]) -> list[Run]:
    """Runs by their results files, called like their folders.

    Raises:
        BadInput: a file is no results file of `run_translation.py`, or the translations beside it are none.
    """
    runs = [_read_run(Path(path)) for path in paths]
    twice = Counter(run.name for run in runs)
    return [replace(run, name=str(Path(path).parent)) if twice[run.name] > 1 else run for run, path in zip(runs, paths)]


def _read_run(path: Path) -> Run:
    results = _parsed(path, _read(path))
    for key in ("test", "decoding"):
        if not isinstance(results, dict) or not isinstance(results.get(key), dict):
            raise BadInput(f"{path}: has no {key!r}; {ALLOWED}")
    place, rows = path.with_name("predictions.jsonl"), []
    for number, line in enumerate(_read(place).rstrip().split("\n") if place.exists() else (), start=1):
        row = _parsed(f"{place}:{number}", line)
        if lacking := [key for key in TEXTS if not isinstance(row, dict) or not isinstance(row.get(key), str)]:
            raise BadInput(f"{place}:{number}: has no {lacking[0]!r}; {ALLOWED}")
        rows.append(row)
    return Run(path.absolute().parent.name, results, rows)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read ({error}); {ALLOWED}") from error


def _parsed(place: object, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(f"{place}: no JSON ({error}); {ALLOWED}") from error


# --- scores -----------------------------------------------------------------------------------------------------------


def score_table(runs: Sequence[Run]) -> Table:
    """By direction the scores of runs, each with its signature, and the paper's where a run has its test set."""
    sections: dict[str, list[list[Cell]]] = {}
    published = {direction: _paper_row(direction, runs) for run in runs for direction in run.test}
    found = {metric for run in runs for scores in run.test.values() for metric in scores}
    found |= {row["metric"] or "sacrebleu" for row in published.values() if row}
    metrics = [metric for metric in METRICS if metric in found]
    for direction, row in published.items():
        scored = [run for run in runs if direction in run.test]
        cells = [[_score(metric, run.test[direction].get(metric)) for metric in metrics] for run in scored]
        sections[direction] = [[Cell(run.name, strong=True), *scores] for run, scores in zip(scored, cells)]
        note = f"As printed in {PAPER['source']}" + ("." if row.get("metric") else ", which names no script for it.")
        for name, value in part(row, "scores").items():
            cell = Cell(f"{value:.2f}", (note,))
            its = row["metric"] or "sacrebleu"
            sections[direction].append([Cell(name), *(cell if metric == its else Cell(NONE) for metric in metrics)])
    caption = (
        "Out of 100, COMET out of 1. Compare scores of equal signatures, which are below. Bold: what was run here."
    )
    return Table("Scores", caption, [Cell("system"), *(Cell(NAMES[metric]) for metric in metrics)], sections)


def _score(metric: str, score: Mapping[str, Any] | None) -> Cell:
    if score is None or score["value"] is None:
        return Cell(NONE)
    return Cell(f"{score['value']:.{4 if metric == 'comet' else 2}f}", (str(score["signature"]),))


def _paper_row(direction: str, runs: Sequence[Run]) -> Mapping[str, Any]:
    """The published scores on the test set of a run, which its signature names: `data:wmt16-ro-en test 1234abcd`."""
    signatures = [score["signature"] for run in runs for score in part(run.test, direction).values()]
    noted = [found[1] for text in signatures if (found := re.search(r"\|data:([^|]*)", str(text)))]
    tested = {corpus for text in noted for corpus in re.findall(r"(\S+) test\b", text)}
    rows = [row for row in PAPER["rows"] if row["direction"] == direction and row["data"] in tested]
    return rows[0] if rows else {}


def comparison_table(runs: Sequence[Run]) -> Table:
    """By direction what each run is better by than the first: paired bootstrap on the same test set."""
    first, *others = runs
    sections = {
        direction: [[Cell(run.name, strong=True), *_differences(direction, first, run)] for run in others]
        for direction in first.test
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
    references, language = [[row["target"] for row in rows]], run.target_language(direction)
    return [
        Cell(f"{c.system - c.baseline:+.2f} [{c.low:+.2f}, {c.high:+.2f}]", (c.signature,))
        for c in paired_bootstrap(before, after, references, language, COMPARED)
    ]


# --- what was made of sentences ---------------------------------------------------------------------------------------


def spread(rows: Sequence[Row], number: int = TRANSLATIONS) -> list[tuple[float, Row]]:
    """As many rows with their sentence chrF, worst first: the middle ones of equal shares of all, ordered by it."""
    chrf = CHRF()
    scored = [(chrf.sentence_score(row["translation"], [row["target"]]).score, row) for row in rows]
    ranked, number = sorted(scored, key=lambda pair: pair[0]), min(number, len(rows))
    return [ranked[(2 * place + 1) * len(rows) // (2 * number)] for place in range(number)]


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


def validation_picture(results: Results, path: Path) -> Picture | None:
    """Scores of the validation set by step; those of step 2 behind step 1's, where its results are beside its model."""
    before: Results = {}
    if results.get("step") == 2 and results.get("model"):
        with suppress(BadInput):
            before = _read_run(Path(results["model"]).parent / "results.json").results
    change = max((entry["step"] for entry in before.get("evaluations") or ()), default=None)
    scores: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for metric, direction in product(METRICS, part(results, "rows", "validation")):
        now = [(step + (change or 0), value) for step, value in _evaluations(results, metric, direction)]
        if now:
            scores.setdefault(NAMES[metric], {})[direction] = _evaluations(before, metric, direction) + now
    caption = f"On the validation set; the rings mark the best. Kept: {part(results, 'chosen').get('state', NONE)}."
    caption += " Dashed: where step 2 began." if change else ""
    return Picture("Validation", caption, plot_scores_by_step(scores, path, change)) if scores else None


def _evaluations(results: Results, metric: str, direction: str) -> list[tuple[float, float]]:
    """Steps and scores of a direction, which has a name of its own among several."""
    directions = part(results, "rows", "validation")
    key = f"eval_{metric}_{direction}" if len(directions) > 1 else f"eval_{metric}"
    found = results.get("evaluations") or () if direction in directions else ()
    return [(entry["step"], entry[key]) for entry in found if entry.get(key) is not None]


def protocol_table(results: Results) -> Table:
    """From what a run began, what it read, what it left out, and how it searched."""
    chosen, words = part(results, "chosen"), part(results, "target_vocabulary")
    random = " (new weights)" if results.get("random_encoder") else ""
    facts = {
        "began with": f"{results.get('encoder') or results.get('model')}{random}",
        "step": results.get("step"),
        "state": chosen.get("state"),
        "training": duration(chosen["seconds"]) if chosen.get("seconds") else None,
        **{f"pairs of {name}": _listed(part(results, "rows", name)) for name in ("train", "validation", "test")},
        "rows left out": _listed(part(results, "skipped")) or "none",
        "sources cut": _listed(part(results, "cut_sources")),
        "empty lines of test": _listed(part(results, "empty_lines")),
        "target vocabulary": f"{words['size']:,} pieces" if words.get("size") else None,
        "unknown in targets of train": _listed(part(words, "unknown_tokens")),
        "search": _listed(part(results, "decoding")),
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
    """Write `report.html`, `report.md` and their pictures beside the `results.json` of a run.

    Args:
        model: the model of the run, to be looked into; it is put into eval mode. Without it that part is left out.
    """
    folder = Path(folder)
    run = _read_run(folder / "results.json")
    shown = spread(run.rows)
    blocks: list[Block | None] = [score_table([run]) if run.test else None]
    blocks.append(validation_picture(run.results, folder / "validation.png"))
    if model is not None and tokenizer is not None:
        languages = [run.target_language(row["direction"]) for _, row in shown]
        blocks += look_into(model, tokenizer, [row for _, row in shown], languages, folder / "attention.png")
    blocks += [translation_table(shown) if shown else None, protocol_table(run.results)]
    sections: dict[str, list[Block]] = {block.title: [block] for block in blocks if block}
    made: list[Block] = []
    for group, settings in setting_groups(run.results).items():
        rows = [[Cell(str(name)), Cell(str(value))] for name, value in settings.items()]
        made.append(Table(group, "", [Cell("setting"), Cell("value")], {"": rows}))
    for title, lines in (("Command", [run.results.get("command")]), ("Messages", run.results.get("messages") or [])):
        text = "\n".join(str(line) for line in lines if line)
        made += [Listing(title, text)] if text else []
    sections["Settings"] = made
    write_sections(folder, headline(run), _facts(run), sections, f"{signature(run.results)} · {PAPER['source']}", STYLE)


def headline(run: Run) -> str:
    """The score of each direction in one sentence; the one the run was chosen by."""
    metric = part(run.results, "settings", "training").get("metric", "sacrebleu")
    values = {direction: part(scores, metric).get("value") for direction, scores in run.test.items()}
    said = ", ".join(f"{direction} {value:.1f}" for direction, value in values.items() if value is not None)
    return f"Translation: {said} {NAMES[metric]}" if said else "A translation run"


def _facts(run: Run) -> list[tuple[str, str]]:
    facts = [
        (_score(metric, score).text, f"{NAMES.get(metric, metric)} {direction}")
        for direction, scores in run.test.items()
        for metric, score in scores.items()
    ]
    pairs = sum(part(run.results, "rows", "train").values())
    return facts + ([(f"{pairs:,}", "sentence pairs of training")] if pairs else [])


STYLE = """th, td { text-align: left; unicode-bidi: plaintext; vertical-align: top; }
td:first-child { min-width: 5.2rem; }
figure { max-width: 46rem; }
"""


def main(paths: Sequence[str]) -> None:
    """Print the scores of runs, and what each is better by than the first."""
    if not paths:
        sys.exit("usage: python -m hictl_hf.translation.report RUN/results.json [ANOTHER/results.json ...]")
    try:
        runs = read_runs(paths)
        tables = [score_table(runs), *([comparison_table(runs)] if len(runs) > 1 else [])]
    except BadInput as error:
        sys.exit(str(error))
    print("\n\n".join(f"{table.title}. {table.caption}\n\n{table.text()}" for table in tables))


if __name__ == "__main__":
    main(sys.argv[1:])
