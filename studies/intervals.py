"""Scores and gains of the pre-training study with 95 % bootstrap intervals, from the arrays of its runs.

Each of 1,000 samples draws the seeds of a variant and the sentences of each test set with replacement, the same
sentences for both directions and all variants, so that differences are paired. A variant with one seed gets the
deviation between seeds from the variants that have several.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .runs import SAMPLES, Runs, folders_by_seed

TESTS = {"tatoeba": "Tatoeba", "ntrex": "NTREX", "bucc": "BUCC", "in domain": "in domain"}
TRANSFER = {"panx": "PANX", "bleu": "BLEU"}
BASELINE = "lm"
BASELINES = {BASELINE: "the language model alone", "full": "full HiCTL, on the seeds that both have"}

Estimate = list[float]  # a value; where samples of it exist, also the bounds of its 95 % interval


def find_runs(output: Path, names: Iterable[str]) -> dict[str, Runs]:
    """Return the scored runs in the order of the table."""
    known = ["start", *names, *(f"continued-{name}" for name in names)]
    found = {name: folders_by_seed(output, name) for name in known}
    return {name: Runs(name, folders) for name, folders in found.items() if folders}


def intervals_of(runs: Mapping[str, Runs]) -> dict[str, dict[str, Any]]:
    """Return by variant: the number of seeds, CPU minutes, scores by test, gains by baseline and test."""
    tests = TESTS | TRANSFER
    found = {}
    for name, each in runs.items():
        scores = {test: estimate(each.mean(test), score_samples(runs, name, test)) for test in tests}
        gains = {
            baseline: {test: estimate(*gain(runs, name, test, baseline)) for test in tests}
            for baseline in BASELINES
            if baseline_of(runs, name, baseline) not in (None, each)
        }
        found[name] = {"seeds": len(each.folders), "cpu_minutes": each.minutes(), "scores": scores, "gains": gains}
    return found


def estimate(value: float | None, samples: NDArray[np.floating] | None = None) -> Estimate | None:
    """Return the value with the 2.5 and 97.5 percentiles of its samples, to six decimals."""
    if value is None:
        return None
    bounds = () if samples is None else np.percentile(samples, (2.5, 97.5))
    return [round(float(number), 6) for number in (value, *bounds)]


def section_of(name: str) -> str:
    """Return the section of a table that a variant belongs to."""
    return "continued" if name == "start" or name.startswith("continued-") else "from scratch"


def baseline_of(runs: Mapping[str, Runs], name: str, baseline: str = BASELINE) -> Runs | None:
    """Return the baseline that started from the same encoder as this variant."""
    return runs.get(baseline if section_of(name) == "from scratch" else f"continued-{baseline}")


def gain(
    runs: Mapping[str, Runs], name: str, test: str, baseline: str = BASELINE
) -> tuple[float | None, NDArray[np.floating] | None]:
    """Return the difference to a baseline and (SAMPLES,) its samples; `None` for what does not exist."""
    own, others = runs[name], baseline_of(runs, name, baseline)
    if others is None or others is own:
        return None, None
    rows = [each for row, each in runs.items() if baseline_of(runs, row, baseline) is others is not each]
    return difference(own, others, test, rows)


def difference(
    own: Runs, others: Runs, test: str, rows: Iterable[Runs]
) -> tuple[float | None, NDArray[np.floating] | None]:
    """Return the difference between two variants, paired by seeds and sentences, and (SAMPLES,) its samples.

    Args:
        rows: variants whose differences to the other one say how seeds differ, where there is only one seed.
    """
    differences = differences_of(own, others, test)
    if seeds := list(differences):
        samples = own.drawn(test, seeds) - others.drawn(test, seeds)
        if len(seeds) == 1:
            samples = samples + of_another_seed([differences_of(each, others, test) for each in rows])
        return fmean(differences.values()), samples
    one, other = own.mean(test), others.mean(test)
    drawn, against = own.of_all(test), others.of_all(test)  # without a common seed only the sentences are paired
    gap = None if one is None or other is None else one - other
    return gap, None if drawn is None or against is None else drawn - against


def differences_of(own: Runs, others: Runs, test: str) -> dict[int, float]:
    """Return the difference for each seed that both have samples of."""
    seeds = sorted({*own.sampled(test)} & {*others.sampled(test)})
    return {seed: own.scores[seed][test] - others.scores[seed][test] for seed in seeds}


def score_samples(runs: Mapping[str, Runs], name: str, test: str) -> NDArray[np.floating] | None:
    """Return (SAMPLES,) the score of a variant in each sample; `None` if the test has none."""
    rows = [each for row, each in runs.items() if section_of(row) == section_of(name)]
    return samples_with_seeds(runs[name], test, rows)


def samples_with_seeds(own: Runs, test: str, rows: Iterable[Runs]) -> NDArray[np.floating] | None:
    """Return (SAMPLES,) the score in each sample; where there is one seed, the rows say how seeds differ."""
    samples = own.of_all(test)
    if samples is None or len(own.sampled(test)) > 1:
        return samples
    deviations = of_another_seed([{seed: each.scores[seed][test] for seed in each.sampled(test)} for each in rows])
    return np.clip(samples + deviations, 0, 100)


def of_another_seed(rows: Iterable[Mapping[int, float]]) -> NDArray[np.floating]:
    """Draw (SAMPLES,) normal deviations with the pooled standard deviation between the seeds of variants that have
    several; 0 if no variant has."""
    several = [np.array([*row.values()]) for row in rows if len(row) > 1]
    squares = sum(float(((each - each.mean()) ** 2).sum()) for each in several)
    pooled = (squares / max(sum(len(each) - 1 for each in several), 1)) ** 0.5
    return pooled * np.random.default_rng(0).standard_normal(SAMPLES)
