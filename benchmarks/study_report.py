"""The runs of the study as one table with intervals, the gains over the baseline beside the paper's, and pictures.

An interval holds 95 % of the scores of 1,000 samples: each draws the seeds of a variant and the sentences of each test
set with replacement, the same sentences for both directions and for all variants, so that differences are paired.
A variant with one seed has none to draw: what a seed does to the rows that have several is added to its samples.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from study_pictures import draw_pictures
from study_runs import SAMPLES, Runs

import hictl_hf
from hictl_hf.files import write_json, write_text
from hictl_hf.reports.tables import NONE, Cell, Table

TESTS = {"tatoeba": "Tatoeba", "ntrex": "NTREX", "bucc": "BUCC", "in domain": "in domain"}
TRANSFER = {"panx": "PANX", "bleu": "BLEU"}
BASELINE = "lm"
BASELINES = {BASELINE: "the language model alone", "full": "full HiCTL, on the seeds that both have"}
PAPER = {  # rows of the paper's Table 4 (large, translate-train-all), by the name that xtreme_paper.json gives them
    "lm": "XLM-R",
    "word": "HiCTL + hard negatives w/o sentence contrast",
    "sentence-hard": "HiCTL + hard negatives w/o word contrast",
    "full-easy": "HiCTL",
    "unpaired": "HiCTL + hard negatives w/o MT data",
    "full": "HiCTL + hard negatives",
}
PAPER_TESTS = {"tatoeba": "tatoeba", "bucc": "bucc2018", "panx": "panx"}
BEGIN, END = "<!-- written by a study in benchmarks/ -->", "<!-- end -->"


def find_runs(output: Path, names: Mapping[str, str]) -> dict[str, Runs]:
    """The runs that are scored, in the order of the table."""
    known = ["start", *names, *(f"continued-{name}" for name in names)]
    found = {
        name: {int(path.parent.name): path.parent for path in sorted((output / name).glob("*/run.json"))}
        for name in known
    }
    return {name: Runs(name, folders) for name, folders in found.items() if folders}


def write_study(output: Path, page: Path, labels: dict[str, str]) -> None:
    """Write results.json and, between the marks of the page, the tables; pictures go to images/ beside it."""
    runs = find_runs(output, labels)
    if not runs:
        return
    results = {name: {str(seed): scores for seed, scores in each.scores.items()} for name, each in runs.items()}
    write_json(page.with_suffix(".json"), results)
    labels = {"start": "the starting encoder, unchanged"} | labels
    labels |= {f"continued-{name}": label for name, label in labels.items()}
    parts = [main_table(runs, labels)]
    for baseline, described in BASELINES.items():
        if any(baseline_of(runs, name, baseline) for name in runs):
            parts += ["", f"Gains over {described}, paired:", "", gain_table(runs, labels, baseline)]
    pictures = dict(draw_pictures(runs, labels, page.parent / "images"))
    parts += [f"\n![{alt}](images/{path.name})" for path, alt in pictures.items()]
    replace_block(page, "\n".join(parts))


def replace_block(page: Path, block: str) -> None:
    """Write the block between the marks of the page; into a page that is not there yet, all of it."""
    text = page.read_text("utf-8") if page.exists() else f"{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    write_text(page, before + BEGIN + "\n\n" + block.rstrip() + "\n\n" + END + rest.partition(END)[2])


def section_of(name: str) -> str:
    """The part of a table that a row stands in."""
    return "continued" if name == "start" or name.startswith("continued-") else "from scratch"


def baseline_of(runs: Mapping[str, Runs], name: str, baseline: str = BASELINE) -> Runs | None:
    """What a row is compared with: the baseline of the same start."""
    return runs.get(baseline if section_of(name) == "from scratch" else f"continued-{baseline}")


def main_table(runs: Mapping[str, Runs], labels: Mapping[str, str]) -> str:
    """Scores with intervals, what a run costs, and the gains of which the paper tells its own."""
    rows = []
    for name, each in runs.items():
        minutes = each.minutes()
        cells = [spread(each.mean(test), score_samples(runs, name, test)) for test in TESTS | TRANSFER]
        cells += [NONE if minutes is None else f"{minutes:.0f}"]
        for test, paper in PAPER_TESTS.items():
            cells += [f"{spread(gain(runs, name, test)[0], sign='+')} / {paper_gain(name, paper)}"]
        rows.append((section_of(name), labels[name], str(len(each.folders)), *cells))
    gains = [f"gain / paper's, {(TESTS | TRANSFER)[test]}" for test in PAPER_TESTS]
    return table(("", "seeds", *TESTS.values(), *TRANSFER.values(), "CPU min", *gains), rows)


def gain_table(runs: Mapping[str, Runs], labels: Mapping[str, str], baseline: str = BASELINE) -> str:
    """Differences to the baseline, on the seeds both have, if any."""
    tests = TESTS | TRANSFER
    rows = [
        (section_of(name), labels[name], *(spread(*gain(runs, name, test, baseline), sign="+") for test in tests))
        for name in runs
        if baseline_of(runs, name, baseline) not in (None, runs[name])
    ]
    return table(("", *TESTS.values(), *TRANSFER.values()), rows)


def gain(
    runs: Mapping[str, Runs], name: str, test: str, baseline: str = BASELINE
) -> tuple[float | None, NDArray[np.floating] | None]:
    """A row's difference to a baseline, and in each sample where the test has them; `None` where there is none."""
    own, others = runs[name], baseline_of(runs, name, baseline)
    if others is None or others is own:
        return None, None
    differences = differences_of(own, others, test)
    if seeds := list(differences):
        samples = own.drawn(test, seeds) - others.drawn(test, seeds)
        if len(seeds) == 1:
            rows = [each for row, each in runs.items() if baseline_of(runs, row, baseline) is others is not each]
            samples = samples + of_another_seed([differences_of(each, others, test) for each in rows])
        return fmean(differences.values()), samples
    one, other = own.mean(test), others.mean(test)
    drawn, against = own.of_all(test), others.of_all(test)  # without a common seed only the sentences are paired
    difference = None if one is None or other is None else one - other
    return difference, None if drawn is None or against is None else drawn - against


def differences_of(own: Runs, others: Runs, test: str) -> dict[int, float]:
    """By seed, where both have samples of the test."""
    seeds = sorted({*own.sampled(test)} & {*others.sampled(test)})
    return {seed: own.scores[seed][test] - others.scores[seed][test] for seed in seeds}


def score_samples(runs: Mapping[str, Runs], name: str, test: str) -> NDArray[np.floating] | None:
    """(SAMPLES,) the score of a row in each sample; `None` where the test has none."""
    own = runs[name]
    samples = own.of_all(test)
    if samples is None or len(own.sampled(test)) > 1:
        return samples
    rows = [each for row, each in runs.items() if section_of(row) == section_of(name)]
    deviations = of_another_seed([{seed: each.scores[seed][test] for seed in each.sampled(test)} for each in rows])
    return np.clip(samples + deviations, 0, 100)


def of_another_seed(rows: Iterable[Mapping[int, float]]) -> NDArray[np.floating]:
    """(SAMPLES,) normal deviations with the standard deviation between the seeds of rows that have several, pooled; 0
    where no row has."""
    several = [np.array([*row.values()]) for row in rows if len(row) > 1]
    squares = sum(float(((each - each.mean()) ** 2).sum()) for each in several)
    pooled = (squares / max(sum(len(each) - 1 for each in several), 1)) ** 0.5
    return pooled * np.random.default_rng(0).standard_normal(SAMPLES)


@cache
def paper_rows() -> dict[str, dict[str, list[float]]]:
    """Scores by model of the setting that the paper's ablation is in."""
    file = json.loads((Path(hictl_hf.__file__).parent / "xtreme/paper.json").read_text("utf-8"))
    rows = [row for row in file["rows"] if (row["size"], row["setting"]) == ("large", "translate-train-all")]
    return {row["model"]: row["scores"] for row in rows}


def paper_gain(name: str, test: str) -> str:
    """What the paper's row of a variant gains over its XLM-R."""
    row = PAPER.get(name.removeprefix("continued-"))
    if row in (None, PAPER[BASELINE]):
        return NONE
    return f"{paper_rows()[row][test][0] - paper_rows()[PAPER[BASELINE]][test][0]:+.1f}"


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    sections: dict[str, list[list[Cell]]] = {}
    for section, *cells in rows:
        sections.setdefault(section, []).append([Cell(text) for text in cells])
    return Table("", "", [Cell(head) for head in heads], sections).markdown().rstrip()


def spread(value: float | None, samples: NDArray[np.floating] | None = None, sign: str = "") -> str:
    if value is None:
        return NONE
    if samples is None:
        return f"{value:{sign}.1f}"
    low, high = np.percentile(samples, (2.5, 97.5))
    return f"{value:{sign}.1f} ({low:{sign}.1f} to {high:{sign}.1f})"
