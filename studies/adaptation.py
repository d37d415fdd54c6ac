"""Continue a good sentence encoder with hictl_hf and with sentence-transformers, at equal CPU minutes: docs/results.md.

    python -m studies.adaptation --data shared/data --encoder e5                             # every system and seed
    python -m studies.adaptation --data shared/data --encoder e5 --systems ours --seeds 1    # one run
    python -m studies.adaptation --report docs/results.md                                    # the page again
    python -m studies.adaptation --data shared/data --encoder e5 --languages bre gle cym oci \\
        --train_file catalogues/                                                             # low-resource languages
    python -m studies.adaptation --data shared/data --encoder minilm --prompt "" --minutes 6 --variant english

`--data` is a folder of bitext/, ntrex/ and xtreme/, with `--languages` of tatoeba_low/ and xtreme/. All systems train
on the same pairs in the same order (similar pairs in other batches), with the prompt, characters, tokens and pairs a
step of `recipes/adapt.json`, for as many steps as their first ones say fit into `--minutes`. The trained weights are
then averaged with those of the start, at the share that is best on dev and guard pairs. Everything is read at the mean
of the last layer. A row of `SYSTEMS` is a training in a separate process, on one thread. Finished steps are not
repeated: the same command resumes, and commands for other systems or seeds can run at the same time. Only the first
steps of a system (`calibration/`) need a machine that does nothing else.

The run.json of a run has the hits of every test sentence. `--report` copies them to the evidence and writes the page
from there, so that runs can be added later.
"""

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from hictl_hf.files import digest, write_json
from hictl_hf.former_names import with_names_of_today
from hictl_hf.pretraining.interpolation import SHARES, best_share
from hictl_hf.pretraining.results import ShareAccuracy
from hictl_hf.reports.results import library_versions

from .adaptation_data import LOW, Material, one_at_a_time, prepare, read_pairs
from .adaptation_report import write_page
from .adaptation_scores import AveragedEncoder, accuracy, score
from .adaptation_systems import (
    EXAMPLES,
    OTHERS,
    REFERENCE,
    START,
    SYSTEMS,
    loss_of,
    recipe_of,
    repeats_ours,
    settings_of,
)
from .adaptation_training import steps_in
from .pretraining import ROOT, call
from .runs import add_report_arguments, keep_evidence, read_json

EVIDENCE = ROOT / "studies/evidence/adaptation"
LOW_RESOURCE = "low"  # the default --variant with --languages
CALIBRATION_STEPS = 20


def main(argv: Sequence[str] | None = None) -> None:
    """Run the requested systems, or write the page."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    variant = arguments.variant or (LOW_RESOURCE if arguments.languages else "")
    ending = variant and f"-{variant}"
    output = arguments.output or Path(f"runs/adaptation{ending}")
    if arguments.report:
        evidence = Path(f"{EVIDENCE}{ending}") if arguments.evidence == EVIDENCE else arguments.evidence
        keep_evidence(output, evidence)
        write_page(evidence, arguments.report, ending)
        return
    if not (arguments.data and arguments.encoder):
        parser.error("--data and --encoder are needed, the folder of the data and that of the start")
    if bool(arguments.languages) != bool(arguments.train_file):
        parser.error("--languages and --train_file are given together: what is tested, and its pairs to train on")
    torch.set_num_threads(1)
    limits = arguments.min_characters, recipe_of("ours").get("cleaning", {}).get("max_characters", 1000)
    material = Material(arguments.data, tuple(arguments.languages), tuple(arguments.train_file), *limits)
    study = Study(material, arguments.encoder, output, arguments.minutes, arguments.prompt, arguments.reference_seconds)
    study.prepare()
    for name, seed in tqdm(planned(arguments.systems, arguments.seeds), unit=" runs"):
        study.run(name, seed)
    write_page(output, output / "results.md", ending)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="with bitext/, ntrex/ and xtreme/")
    parser.add_argument("--encoder", metavar="FOLDER", help="the start, for example multilingual-e5-small")
    parser.add_argument(
        "--reference_seconds",
        type=float,
        metavar="S",
        help="CPU seconds of a step on this machine of 'ours' (for other sentence-transformers rows: of "
        f"'{REFERENCE}'), if its runs in --output are of another one: a row then gets the time its steps take here",
    )
    parser.add_argument("--prompt", default="query: ", help="text before every sentence [E5's: 'query: ']")
    parser.add_argument("--minutes", type=float, default=25, help="CPU minutes of each training [25]")
    parser.add_argument(
        "--systems", nargs="+", choices=SYSTEMS, metavar="NAME", help=f"of {', '.join(SYSTEMS)} [all that differ]"
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="[those of the system]")
    parser.add_argument(
        "--languages", nargs="+", choices=LOW, default=[], metavar="CODE", help=f"low-resource, of {', '.join(LOW)}"
    )
    parser.add_argument(
        "--train_file", nargs="+", default=[], metavar="FOLDER", help="sources of pairs of these languages"
    )
    parser.add_argument("--min_characters", type=int, default=1, help="of their shorter side, as in Cleaning [1]")
    parser.add_argument(
        "--variant", default="", metavar="NAME", help="of the study, with another start or data [low with --languages]"
    )
    parser.add_argument("--output", type=Path, help="[runs/adaptation, of a variant runs/adaptation-NAME]")
    add_report_arguments(parser, EVIDENCE)
    return parser


def planned(systems: Sequence[str] | None, seeds: Sequence[int] | None) -> list[tuple[str, int]]:
    """Return system and seed of each run, sorted by seed; by default without rows that repeat another one."""
    names = systems or [name for name in SYSTEMS if not repeats_ours(name)]
    runs = [
        (name, seed)
        for name in names
        for seed in (SYSTEMS[name].seeds if name == START else seeds or SYSTEMS[name].seeds)
    ]
    return sorted(runs, key=lambda run: run[1])


def stored_settings(path: Path, otherwise: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Return the settings that a file of a run holds, also those of earlier releases, under today's names."""
    found = read_json(path).get("settings", otherwise)
    return found and with_names_of_today(found)


@dataclass(frozen=True)
class Study:
    """The data, the start, and the folder of runs."""

    material: Material
    encoder: str
    output: Path
    minutes: float = 25
    prompt: str = ""
    reference_seconds: float | None = None

    @property
    def data(self) -> Path:
        return self.output / "data"

    def prepare(self) -> None:
        """Make what all runs share; refuse a folder of runs with other settings."""
        counts = prepare(self.material, self.data)
        weights = sorted(Path(self.encoder).glob("*.safetensors"))
        settings = {
            "start": [digest(path) for path in weights],
            "prompt": self.prompt,
            "minutes": self.minutes,
            "languages": [*self.material.languages],
            "data": counts["hash"],
            "examples": {name: value for name, value in recipe_of("ours").items() if name in EXAMPLES},
        }
        with one_at_a_time(self.data / "lock"):
            kept = read_json(self.data / "study.json")
            if kept:
                kept["examples"] = with_names_of_today(kept["examples"])
            if changed := [name for name in settings if kept and kept[name] != settings[name]]:
                raise SystemExit(
                    f"{self.output}: holds runs with other settings ({', '.join(changed)}); give those, or another "
                    "--output"
                )
            write_json(self.data / "study.json", settings)

    def run(self, name: str, seed: int) -> None:
        """Train, choose the share of the trained weights, and score, each unless its result exists."""
        folder = self.output / name / str(seed)
        for step in ("cost.json", "run.json"):
            if stored_settings(folder / step, settings_of(name)) != settings_of(name):
                raise SystemExit(f"{folder}: was trained with another recipe; remove it, or give another --output")
        if (folder / "run.json").exists():
            return
        cost = {} if name == START else self.train(name, seed, folder)
        trained = None if name == START else str(folder / "training/encoder")
        encoder = AveragedEncoder(self.encoder, trained, self.prompt, recipe_of("ours")["max_seq_length"])
        shares, chosen = self.choose_share(encoder, folder)
        encoders = {"chosen": self.score(encoder, chosen, folder, SYSTEMS[name].mine)}
        if SYSTEMS[name].score_trained:
            encoders["trained"] = self.score(encoder, 1.0, folder, SYSTEMS[name].mine)
        versions = library_versions()
        if SYSTEMS[name].section == OTHERS:
            versions["sentence-transformers"] = version("sentence-transformers")
        run = {"system": name, "seed": seed, "study": read_json(self.data / "study.json"), **cost, "versions": versions}
        write_json(folder / "run.json", run | {"share": chosen, "shares": shares, "encoders": encoders})

    # --- training -----------------------------------------------------------------------------------------------------

    def train(self, name: str, seed: int, folder: Path) -> dict[str, Any]:
        """Train as many steps as fit into the minutes; return steps, CPU seconds and command."""
        if (folder / "cost.json").exists():
            return read_json(folder / "cost.json")
        measured = self.calibrate(name, seed)
        recipe = self.recipe(name, seed) | ({"max_steps": measured["steps"]} if measured else {})
        training = folder / "training"
        shutil.rmtree(training, ignore_errors=True)  # of an interrupted run
        if SYSTEMS[name].section == OTHERS:
            job = self.job(name, write_json(folder / "run-recipe.json", recipe), recipe["max_steps"], save=True)
            cost = call("studies.adaptation_training", job, training)
            seconds = read_json(training / "training.json")["train_cpu_seconds"]
        else:
            cost = call("run_pretraining.py", recipe, training)
            seconds = read_json(training / "results.json")["train_cpu_seconds"]
            shutil.rmtree(training / "checkpoint", ignore_errors=True)  # the plain encoder is enough
        cost |= {"steps": recipe["max_steps"], "train_cpu_seconds": seconds, "calibration": measured}
        write_json(folder / "cost.json", cost | {"settings": settings_of(name)})
        return read_json(folder / "cost.json")

    def calibrate(self, name: str, seed: int) -> dict[str, Any] | None:
        """Measure the CPU seconds of a step once for all seeds; `None` for a system with a fixed number of steps."""
        recipe = self.recipe(name, seed)
        if "max_steps" in recipe:
            return None
        folder = self.output / name / "calibration"
        with one_at_a_time(self.output / name / "lock"):
            if stored_settings(folder / "steps.json") != settings_of(name):
                shutil.rmtree(folder, ignore_errors=True)
                job = self.job(name, write_json(folder / "run-recipe.json", recipe), CALIBRATION_STEPS, save=False)
                call("studies.adaptation_training", job, folder)
                seconds = read_json(folder / "training.json")["seconds_per_step"] * self.slowdown(name)
                found = {"seconds_per_step": round(seconds, 4), "steps": steps_in(self.minutes, seconds)}
                write_json(folder / "steps.json", found | {"settings": settings_of(name)})
        kept = read_json(folder / "steps.json")
        return {key: kept[key] for key in ("seconds_per_step", "steps")}

    def slowdown(self, name: str) -> float:
        """Return how much longer a step takes on the machine of the runs in the output folder than on this one."""
        if self.reference_seconds is None:
            return 1.0
        reference = REFERENCE if SYSTEMS[name].section == OTHERS else "ours"
        path = next((self.output / reference).glob("*/run.json"), None)
        if path is None:
            raise SystemExit(
                f"{self.output}: has no run of {reference} to compare with; run it, without --reference_seconds"
            )
        return float(read_json(path)["calibration"]["seconds_per_step"] / self.reference_seconds)

    def recipe(self, name: str, seed: int) -> dict[str, Any]:
        """Return the recipe of a run of hictl_hf, or of the data that sentence-transformers trains on."""
        return recipe_of(name) | {
            "model_name_or_path": self.encoder,
            "train_file": [str(self.data / "pairs.jsonl.gz")],
            "prompt": self.prompt,
            "held_out_sentences": 0,
            "use_cpu": True,
            "seed": seed,
        }

    def job(self, name: str, recipe: Path, steps: int, save: bool) -> dict[str, Any]:
        """Return a job of `adaptation_training`."""
        job = {"run": str(recipe), "steps": steps}
        if SYSTEMS[name].section != OTHERS:
            return job | {"kind": "ours"}
        return job | loss_of(name) | {"kind": "st", "drawn": str(self.data / "drawn"), "save": save}

    # --- scores -------------------------------------------------------------------------------------------------------

    def choose_share(self, encoder: AveragedEncoder, folder: Path) -> tuple[list[dict[str, Any]], float]:
        """Return dev and guard accuracy by share of the trained weights, and the best share."""
        path = folder / "shares.json"
        if not path.exists():
            with one_at_a_time(self.data / "start.lock"):
                if not (self.data / "start.json").exists():
                    write_json(self.data / "start.json", self.accuracy_at(encoder, 0.0))
            shares = SHARES[1:] if encoder.trained is not encoder.start else ()
            found = [read_json(self.data / "start.json"), *(self.accuracy_at(encoder, share) for share in shares)]
            write_json(path, {"shares": found})
        shares = read_json(path)["shares"]
        return shares, best_share([ShareAccuracy(**row) for row in shares]).share

    def accuracy_at(self, encoder: AveragedEncoder, share: float) -> dict[str, Any]:
        embed = encoder.at(share)
        dev, guard = (accuracy(read_pairs(self.data / f"{name}.json"), embed) for name in ("dev", "guard"))
        return {"share": share, "dev": dev, "guard": guard}

    def score(self, encoder: AveragedEncoder, share: float, folder: Path, mine: bool) -> dict[str, Any]:
        """Return share, scores and hits; those of share 0 are the start's."""
        path = folder / f"scores-{share:g}.json"
        start = read_json(self.output / START / "0/run.json")
        if share == 0 and start:
            return dict(start["encoders"]["chosen"])
        if not path.exists():
            write_json(path, {"share": share, **score(self.material, encoder.at(share), mine)})
        return read_json(path)


if __name__ == "__main__":
    main()
