"""What the runs of a variant found: their scores, and those in samples of the test sentences and of the seeds."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from study_tests import f1

SAMPLES = 1000
EVIDENCE = (  # of a run: what tables and pictures are made from
    "cost.json",
    "results.json",
    "scores.json",
    "hits.npz",
    "map.npz",
    *(f"{name}/{file}" for name in ("panx", "bleu") for file in ("cost.json", "results.json")),
    "bleu/predictions.jsonl",
)

Samples = dict[str, NDArray[np.floating]]  # test: (SAMPLES,) its score in each sample


@dataclass
class Runs:
    """The runs of one variant, by seed."""

    name: str
    folders: dict[int, Path]

    def read(self, file: str) -> dict[int, Any]:
        paths = {seed: folder / file for seed, folder in self.folders.items()}
        return {seed: json.loads(path.read_text("utf-8")) for seed, path in paths.items() if path.exists()}

    @cached_property
    def scores(self) -> dict[int, dict[str, float]]:
        """All scores by seed, those after fine-tuning too, where there are any."""
        found = {seed: dict(each["scores"]) for seed, each in self.read("scores.json").items()}
        for seed, results in self.read("panx/results.json").items():
            found[seed]["panx"] = fmean(each["f1"] for each in results["tasks"]["panx"]["languages"].values())
        for seed, results in self.read("bleu/results.json").items():
            found[seed]["bleu"] = next(iter(results["test"].values()))["sacrebleu"]["value"]
        return found

    @cached_property
    def samples(self) -> dict[int, Samples]:
        """The scores of each seed in each sample of the test sentences."""
        return {seed: resample(dict(np.load(folder / "hits.npz"))) for seed, folder in self.folders.items()}

    def mean(self, test: str) -> float | None:
        values = [scores[test] for scores in self.scores.values() if test in scores]
        return float(np.mean(values)) if values else None

    def drawn(self, test: str, seeds: list[int]) -> NDArray[np.floating]:
        """(SAMPLES,) the mean over seeds, drawn with replacement as often as there are."""
        random = np.random.default_rng(len(seeds))
        each = np.stack([self.samples[seed][test] for seed in seeds])  # (seeds, SAMPLES)
        chosen = random.integers(len(seeds), size=(len(seeds), SAMPLES))
        return np.take_along_axis(each, chosen, 0).mean(0)

    def minutes(self) -> float | None:
        costs = [cost["cpu_minutes"] for cost in self.read("cost.json").values() if cost["cpu_minutes"] is not None]
        return float(np.mean(costs)) if costs else None


def keep_evidence(output: Path, kept: Path) -> None:
    """Copy from the runs that are scored what is worth keeping, a few hundred kilobytes each, without the models."""
    for folder in (path.parent for path in output.glob("*/*/hits.npz")):
        for file in (folder / name for name in EVIDENCE):
            if file.exists():
                copy = kept / file.relative_to(output)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)


def resample(hits: Mapping[str, NDArray[np.bool_]]) -> Samples:
    """The scores of `study_tests.scores_of` in each sample."""
    by_test: dict[str, list[NDArray[np.floating]]] = {}
    for place in dict.fromkeys(name.rpartition("/")[0] for name in hits):
        parts = {name.rpartition("/")[2]: found for name, found in hits.items() if name.startswith(f"{place}/")}
        found = np.stack(list(parts.values()), 1).astype(np.float32)  # (sentences, directions)
        random = np.random.default_rng(len(found))
        counts = random.multinomial(len(found), np.full(len(found), 1 / len(found)), SAMPLES).astype(np.float32)
        sums = counts @ found  # (SAMPLES, directions)
        if place == "bucc":
            right, extracted, gold = (sums[:, list(parts).index(name)] for name in ("right", "extracted", "gold"))
            by_test["bucc"] = [np.array([f1(*sample) for sample in zip(right, extracted, gold)])]
        else:
            by_test.setdefault(place.split("/")[0], []).append(100 * sums.mean(1) / len(found))
    return {test: np.mean(languages, 0) for test, languages in by_test.items()}
