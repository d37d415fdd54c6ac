"""Intervals, tables and picture of the adaptation study, from the run.json of its runs, which have the hits."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from hictl_hf.files import write_json
from hictl_hf.former_names import with_names_of_today
from hictl_hf.reports.plots import BLUE, GREEN, ORANGE, PURPLE, figure_at
from hictl_hf.reports.tables import NONE

from .adaptation_data import LOW
from .adaptation_scores import grouped, unpacked
from .adaptation_systems import PARTS, REFERENCE, START, SYSTEMS
from .intervals import Estimate, difference, estimate, samples_with_seeds
from .report import replace_block, spread, table
from .runs import Runs, Samples, folders_by_seed, resample

TRAINED = ", not averaged"  # at the end of the names of encoders with only the trained weights
TESTS = {
    "tatoeba": "Tatoeba",
    "tatoeba, with pairs": "of it, 9 languages with pairs",
    "tatoeba, without pairs": "9 without",
    "ntrex, with pairs": "NTREX, 16 with pairs",
    "ntrex, without pairs": "4 without",
    "bucc": "BUCC",
    "in domain": "in domain",
}
LOW_TESTS = {"low": "mean", **{name: language for name, (_, language) in LOW.items()}, "tatoeba": "Tatoeba, 18 others"}
PICTURED = {"similar-other-side": BLUE, "similar-pairs": PURPLE, "ours": GREEN, REFERENCE: ORANGE}


def marks(ending: str) -> tuple[str, str]:
    """Return the comments around the block of a page; `ending` is "-low" for the low-resource languages."""
    return f"<!-- written by studies/adaptation.py{ending} -->", f"<!-- end of adaptation{ending} -->"


@dataclass
class EncoderRuns(Runs):
    """The runs of one system, read at the chosen share of the trained weights, or at all of them."""

    encoder: str = "chosen"

    @cached_property
    def encoders(self) -> dict[int, dict[str, Any]]:
        """Share, scores and hits by seed."""
        return {seed: run["encoders"][self.encoder] for seed, run in self.found.items()}

    @cached_property
    def scores(self) -> dict[int, dict[str, float]]:
        return {seed: encoder["scores"] for seed, encoder in self.encoders.items()}

    @cached_property
    def samples(self) -> dict[int, Samples]:
        hits = {seed: encoder["hits"] for seed, encoder in self.encoders.items()}
        return {
            seed: resample(grouped({name: unpacked(text) for name, text in each.items()}))
            for seed, each in hits.items()
        }

    def mean_of(self, value: Callable[[Mapping[str, Any]], float | None]) -> float | None:
        """Return the mean over seeds of a value of run.json; `None` if one lacks it."""
        values = [value(run) for run in self.found.values()]
        known = [each for each in values if each is not None]
        return fmean(known) if known and len(known) == len(values) else None

    def minutes(self) -> float | None:
        """Return the mean CPU minutes of training, by the calibration if there is one.

        A training itself may run next to other work, which makes its CPU time longer, but not its weights other ones.
        """
        seconds = self.mean_of(train_seconds)
        return None if seconds is None else seconds / 60


def train_seconds(run: Mapping[str, Any]) -> float | None:
    """Return the CPU seconds of the steps of a run."""
    if calibration := run.get("calibration"):
        return float(run["steps"] * calibration["seconds_per_step"])
    return run.get("train_cpu_seconds")


def find_encoders(folder: Path) -> dict[str, EncoderRuns]:
    """Return the scored encoders in the order of the table; the start has the seeds of all others."""
    found: dict[str, EncoderRuns] = {}
    for name in SYSTEMS:
        paths = folders_by_seed(folder, name)
        if paths:
            found[name] = EncoderRuns(name, paths)
        trained = {seed: paths[seed] for seed in paths if "trained" in found[name].found[seed]["encoders"]}
        if trained:
            found[name + TRAINED] = EncoderRuns(name + TRAINED, trained, "trained")
    refuse_mixture(found)
    seeds = {seed for name, each in found.items() if name != START for seed in each.folders}
    if START in found and seeds:
        (path,) = found[START].folders.values()
        found[START] = EncoderRuns(START, dict.fromkeys(sorted(seeds), path))
    return found


def refuse_mixture(found: Mapping[str, EncoderRuns]) -> None:
    """Raise if runs have another start, prompt, budget or data than the first one, or seeds of one system another
    recipe."""
    runs = [(each.folders[seed], study_of(run)) for each in found.values() for seed, run in each.found.items()]
    groups = [runs]
    for each in found.values():
        settings_of_seeds = ((seed, with_names_of_today(run.get("settings", {}))) for seed, run in each.found.items())
        groups.append([(each.folders[seed], settings) for seed, settings in settings_of_seeds])
    for (first, expected), *others in filter(None, groups):
        for folder, settings in others:
            names = sorted(settings.keys() | expected.keys())
            if changed := [name for name in names if settings.get(name) != expected.get(name)]:
                raise SystemExit(f"{folder}: other settings than {first} ({', '.join(changed)}); remove one of them")


def study_of(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return start, prompt, budget and data of a run, also of one of earlier releases, under today's names."""
    study = dict(run["study"])
    return study | {"examples": with_names_of_today(study["examples"])} if "examples" in study else study


# --- intervals --------------------------------------------------------------------------------------------------------


def intervals_of(found: Mapping[str, EncoderRuns], tests: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return by encoder: cost, shares, and by test the score and the differences to the start and the reference."""
    start, trained = found.get(START), [each for name, each in found.items() if name != START]
    rows: dict[str, dict[str, Any]] = {}
    for name, own in found.items():
        row = rows[name] = {
            "seeds": 1 if own is start else len(own.folders),
            "cpu_minutes": own.minutes(),
            "steps": own.mean_of(lambda run: run.get("steps")),
            "shares": [] if own is start else [encoder["share"] for encoder in own.encoders.values()],
        }
        row |= {"scores": {}, "to the start": {}, "to the reference": {}}
        for test in tests:
            samples = own.of_all(test) if own is start else samples_with_seeds(own, test, trained)
            row["scores"][test] = estimate(own.mean(test), samples)
            if start and own is not start:
                row["to the start"][test] = estimate(*difference(own, start, test, trained))
            if (base := base_of(own.name)) and (reference := better_reference(found, test, base)):
                others = [each for each in trained if each.name.removesuffix(TRAINED) != base]
                row["to the reference"][test] = estimate(*difference(own, reference, test, others))
    return rows


def base_of(name: str) -> str | None:
    """Return the row that another one is compared with in addition to the start: the recipe's if it changes that."""
    row = name.removesuffix(TRAINED)
    base = "ours" if SYSTEMS[row].section == PARTS else REFERENCE
    return None if row in (START, base) else base


def better_reference(found: Mapping[str, EncoderRuns], test: str, base: str) -> EncoderRuns | None:
    """Return the encoder of this row, averaged or not, whichever is better on the test."""
    candidates = [found[name] for name in (base, base + TRAINED) if name in found]
    scored = [each for each in candidates if each.mean(test) is not None]
    return max(scored, key=lambda each: each.mean(test) or 0, default=None)


# --- page -------------------------------------------------------------------------------------------------------------


def write_page(folder: Path, page: Path, ending: str) -> None:
    """Write intervals.json of a folder of runs, and the tables and the picture between the marks of the page."""
    found = find_encoders(folder)
    if not found:
        return
    trained = [each for name, each in found.items() if name != START] or found.values()
    scored = {test for each in trained for scores in each.scores.values() for test in scores}
    tests = {test: label for test, label in (LOW_TESTS if "low" in scored else TESTS).items() if test in scored}
    rows = intervals_of(found, tests)
    write_json(folder / "intervals.json", rows)
    parts = [main_table(rows, tests)]
    pictured = {name: found[name] for name in PICTURED if name in found}
    if pictured:
        path = draw_shares(pictured, page.parent / f"images/adaptation{ending}-shares.png")
        parts.append(f"![dev and guard accuracy by share of the trained weights](images/{path.name})")
    replace_block(page, "\n\n".join(parts), *marks(ending))


def section_and_label(name: str) -> tuple[str, str]:
    system = SYSTEMS[name.removesuffix(TRAINED)]
    return system.section, system.label + (TRAINED if name.endswith(TRAINED) else "")


def main_table(rows: Mapping[str, dict[str, Any]], tests: Mapping[str, str]) -> str:
    """Return CPU minutes of training, steps, the share of the trained weights by seed, and by test the score and its
    differences to the start and to the reference.
    """
    lines = []
    for name, row in rows.items():
        minutes, steps = (NONE if row[key] is None else f"{row[key]:.0f}" for key in ("cpu_minutes", "steps"))
        shares = ", ".join(f"{share:g}" for share in row["shares"]) or NONE
        found = row["scores"], row["to the start"], row["to the reference"]
        scores = [score_and_differences(*(each.get(test) for each in found)) for test in tests]
        lines.append((*section_and_label(name), str(row["seeds"]), *scores, minutes, steps, shares))
    return table(("", "seeds", *tests.values(), "CPU min", "steps", "share trained"), lines)


def score_and_differences(score: Estimate | None, *differences: Estimate | None) -> str:
    """Format as `90.5; +4.1 (+3.8 to +4.5); +0.2 (-0.1 to +0.5)`, without differences as `86.4 (85.8 to 86.9)`."""
    known = [spread(each, sign="+") for each in differences if each]
    return "; ".join([spread(score and score[:1]), *known]) if known else spread(score)


def draw_shares(found: Mapping[str, EncoderRuns], path: Path) -> Path:
    """Draw dev and guard accuracy by share of the trained weights, mean over seeds."""
    with figure_at(path, 8, 3, dpi=90) as figure:
        for axes, key, title in zip(figure.subplots(1, 2), ("dev", "guard"), ("dev: languages trained on", "guard")):
            for name, runs in found.items():
                grids = [run["shares"] for run in runs.found.values()]
                means = [(points[0]["share"], fmean(point[key] for point in points)) for points in zip(*grids)]
                section, label = section_and_label(name)
                axes.plot(*zip(*means), "o-", color=PICTURED[name], label=f"{section}: {label}")
            axes.set_title(title)
            axes.set_xlabel("share of the trained weights")
        figure.axes[0].set_ylabel("accuracy (%)")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return path
