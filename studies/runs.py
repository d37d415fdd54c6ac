"""Scores of a variant's runs, and their bootstrap samples over test sentences and seeds."""

import json
import shutil
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU

from hictl_hf.files import write_json

from .scoring import f1

SAMPLES = 1000
CURVES = ("step", "hard_negative_lambda", "p_avg")

Samples = dict[str, NDArray[np.floating]]  # test: (SAMPLES,) its score in each sample


def add_report_arguments(parser: ArgumentParser, evidence: Path) -> None:
    """Add the arguments by which a study writes its page, with the folder of its evidence as default."""
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="make no run; write this page from the runs in --output and keep their JSON as evidence; "
        "without runs there, write it from the evidence",
    )
    parser.add_argument(
        "--evidence", type=Path, default=evidence, metavar="FOLDER", help=f"[studies/evidence/{evidence.name}]"
    )


def write_run(folder: Path) -> None:
    """Write run.json from the files of a run; it contains no sentence of the data."""
    found = {name: read_json(folder / f"{name}.json") for name in ("scores", "cost", "results")}
    run = found["scores"] | found["cost"]
    if panx := read_json(folder / "panx/results.json"):
        run["scores"]["panx"] = fmean(each["f1"] for each in panx["tasks"]["panx"]["languages"].values())
    if bleu := read_json(folder / "bleu/results.json"):
        run["scores"]["bleu"] = next(iter(bleu["test"].values()))["sacrebleu"]["value"]
    if results := found["results"]:
        run |= {"data_hash": results["data_hash"], "versions": results["versions"]}
        run["curves"] = [[row.get(name) for name in CURVES] for row in results["history"]]
    write_json(folder / "run.json", run)


def folders_by_seed(folder: Path, name: str) -> dict[int, Path]:
    """Return the folders of the scored runs of a row."""
    return {int(path.parent.name): path.parent for path in sorted(folder.glob(f"{name}/*/run.json"))}


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


@dataclass
class Runs:
    """The runs of one variant, by seed."""

    name: str
    folders: dict[int, Path]

    @cached_property
    def found(self) -> dict[int, dict[str, Any]]:
        """run.json by seed."""
        return {seed: read_json(folder / "run.json") for seed, folder in self.folders.items()}

    @cached_property
    def first(self) -> int:
        return min(self.folders)

    @cached_property
    def scores(self) -> dict[int, dict[str, float]]:
        return {seed: run["scores"] for seed, run in self.found.items()}

    @cached_property
    def samples(self) -> dict[int, Samples]:
        """Bootstrap samples of the scores, by seed."""
        return {seed: samples_of(folder) for seed, folder in self.folders.items()}

    def mean(self, test: str) -> float | None:
        values = [scores[test] for scores in self.scores.values() if test in scores]
        return float(np.mean(values)) if values else None

    def sampled(self, test: str) -> list[int]:
        """Return the seeds that have samples of a test."""
        return [seed for seed in sorted(self.samples) if test in self.samples[seed]]

    def of_all(self, test: str) -> NDArray[np.floating] | None:
        """Return (SAMPLES,) the mean over all seeds with samples; `None` without any."""
        return self.drawn(test, seeds) if (seeds := self.sampled(test)) else None

    def drawn(self, test: str, seeds: list[int]) -> NDArray[np.floating]:
        """Return (SAMPLES,) the mean over these seeds in each sample."""
        return mean_of_seeds([self.samples[seed][test] for seed in seeds])

    def minutes(self) -> float | None:
        costs = [run["cpu_minutes"] for run in self.found.values() if run.get("cpu_minutes") is not None]
        return float(np.mean(costs)) if costs else None


def mean_of_seeds(samples: Sequence[NDArray[np.floating]]) -> NDArray[np.floating]:
    """Return (SAMPLES,) the mean over seeds, which each sample draws with replacement."""
    chosen = np.random.default_rng(len(samples)).integers(len(samples), size=(len(samples), SAMPLES))
    return np.take_along_axis(np.stack(samples), chosen, 0).mean(0)


def keep_evidence(output: Path, kept: Path) -> None:
    """Copy the run.json of each scored run, the counts of the data, and intervals.json of all; arrays stay there."""
    for file in (*output.glob("intervals.json"), *output.glob("data/data.json"), *output.glob("*/*/run.json")):
        copy = kept / file.relative_to(output)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


def samples_of(folder: Path) -> Samples:
    """Return the scores of a run in each sample of the test sentences."""
    statistics = folder / "bleu.npy"
    bleu = {"bleu": resample_metric(np.load(statistics), BLEU())} if statistics.exists() else {}
    return resample(dict(np.load(folder / "hits.npz"))) | bleu


@cache
def drawn_sentences(sentences: int) -> NDArray[np.float32]:
    """Return (SAMPLES, sentences) how often each is drawn; equal for equal numbers of sentences."""
    random = np.random.default_rng(sentences)
    return random.multinomial(sentences, np.full(sentences, 1 / sentences), SAMPLES).astype(np.float32)


def resample_metric(statistics: NDArray[np.number], metric: Metric) -> NDArray[np.floating]:
    """Return (SAMPLES,) BLEU or chrF, from `scoring.sentence_statistics`."""
    sums = drawn_sentences(len(statistics)) @ statistics
    return np.array([metric._compute_score_from_stats(list(map(int, sample))).score for sample in sums])


def resample(hits: Mapping[str, NDArray[np.bool_]]) -> Samples:
    """Return the scores of `scoring.scores_of` in each sample."""
    by_test: dict[str, list[NDArray[np.floating]]] = {}
    for place in dict.fromkeys(name.rpartition("/")[0] for name in hits):
        parts = {name.rpartition("/")[2]: found for name, found in hits.items() if name.startswith(f"{place}/")}
        found = np.stack(list(parts.values()), 1).astype(np.float32)  # (sentences, directions)
        sums = drawn_sentences(len(found)) @ found  # (SAMPLES, directions)
        if place == "bucc":
            right, extracted, gold = (sums[:, list(parts).index(name)] for name in ("right", "extracted", "gold"))
            by_test["bucc"] = [np.array([f1(*sample) for sample in zip(right, extracted, gold)])]
        else:
            by_test.setdefault(place.split("/")[0], []).append(100 * sums.mean(1) / len(found))
    return {test: np.mean(languages, 0) for test, languages in by_test.items()}
