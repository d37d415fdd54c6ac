"""Measure what a pre-trained encoder and the [CLS] bias bring in translation, on real pairs: docs/translation.md.

    python -m studies.translation --data shared/data --encoder path/to/encoder             # every row
    python -m studies.translation --data shared/data --encoder path/to/encoder --rows none --seeds 1
    python -m studies.translation --report docs/translation.md                             # the table again

`--data` is a folder of bitext/, multi30k/ and xtreme/. A run calls run_translation.py in a separate process, on one
thread, with `studies/recipes/translation-step1.json` or `-step2.json` and the changes of its row in `ROWS`. Finished
runs are not repeated. Intervals are those of `runs.py`: sentences and seeds drawn with replacement, the same
sentences for all rows of a test, so that differences are paired.
"""

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from tqdm import tqdm

from hictl_hf.data.cleaning import CorpusReport
from hictl_hf.data.languages import script_of
from hictl_hf.data.sources import read_rows
from hictl_hf.files import write_json, write_text
from hictl_hf.reports.tables import NONE
from hictl_hf.translation.scores import measure_of
from hictl_hf.xtreme.files import read_values

from .intervals import Estimate, estimate
from .pretraining import ROOT, call, read_recipe
from .report import replace_block, spread, table
from .runs import add_report_arguments, folders_by_seed, keep_evidence, mean_of_seeds, read_json, resample_metric
from .scoring import sentence_statistics

EVIDENCE = ROOT / "studies/evidence/translation"
METRICS = {"sacrebleu": BLEU, "chrf": CHRF}
SCRIPTS = {"de": "LATIN", "ru": "CYRILLIC", "ar": "ARABIC", "zh": "CJK"}
LONGEST = 80  # characters of a sentence of the bitext
PAIRS_OF_A_TARGET = 8_000
TWO_SEEDS = (1, 2)


@dataclass(frozen=True)
class Row:
    """A row of the study: its changes of the recipe, and its baseline."""

    label: str
    directions: tuple[Sequence[str], Sequence[str]] = (["en"], ["de"])
    settings: Mapping[str, Any] = field(default_factory=dict)
    after: str | None = None
    """The row whose model step 2, or a test, starts from."""
    baseline: str | None = None
    seeds: tuple[int, ...] = (1,)
    data: str = "multi30k"
    """"multi30k"; "scripts", four languages with different scripts; "others", only tests, from other languages."""


TO_FRENCH, TO_ENGLISH = (["en"], ["fr"]), (["de"], ["en"])
OTHER_SOURCES = (["fr", "es"], ["en"])
# A baseline whose encoder is trained from the first step on; at step 1's rate twelve layers learn nothing.
RANDOM = {"random_encoder": True, "freeze_encoder": False, "learning_rate": 1e-4}
BOTH_STEPS = {"num_train_epochs": 4}
ROWS = {
    "none": Row("en-de, step 1, no bias", settings={"cls_bias": "none"}, seeds=TWO_SEEDS),
    **{
        f"{bias}-{scale}": Row(
            f"en-de, step 1, {bias}, {'times 1' if scale == 'fixed' else 'scale learned'}",
            settings={"cls_bias": bias, "cls_bias_scale": scale},
            baseline="none",
            seeds=TWO_SEEDS,
        )
        for bias in ("dot", "cosine")
        for scale in ("learned", "fixed")
    },
    "en-de-random": Row("en-de, encoder not pre-trained", settings=RANDOM | BOTH_STEPS),
    "en-de-random-fast": Row(
        "en-de, encoder not pre-trained, rate of step 1", settings=RANDOM | BOTH_STEPS | {"learning_rate": 5e-4}
    ),
    "en-de": Row("en-de, step 2", after="dot-learned", baseline="en-de-random"),
    "en-fr-random": Row("en-fr, encoder not pre-trained", TO_FRENCH, RANDOM | BOTH_STEPS),
    "en-fr-step1": Row("en-fr, step 1", TO_FRENCH, baseline="en-fr-random"),
    "en-fr": Row("en-fr, step 2", TO_FRENCH, after="en-fr-step1", baseline="en-fr-random"),
    "scripts": Row("one decoder for four languages", (["en"], [*SCRIPTS]), data="scripts"),
    "de-en-random": Row("de-en, encoder not pre-trained", TO_ENGLISH, RANDOM),
    "de-en": Row("de-en, step 1", TO_ENGLISH, baseline="de-en-random"),
    "others-random": Row("the same, other sources", OTHER_SOURCES, after="de-en-random", data="others"),
    "others": Row("the same, other sources", OTHER_SOURCES, after="de-en", baseline="others-random", data="others"),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the requested rows, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="with bitext/, multi30k/ and xtreme/")
    parser.add_argument("--encoder", metavar="FOLDER", help="initial encoder")
    parser.add_argument(
        "--rows", nargs="+", choices=ROWS, default=[*ROWS], metavar="NAME", help=f"of {', '.join(ROWS)}"
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="[those of the row]")
    parser.add_argument("--output", type=Path, default=Path("runs/translation-study"))
    add_report_arguments(parser, EVIDENCE)
    arguments = parser.parse_args(argv)
    if arguments.report:
        made = any(arguments.output.glob("*/*/run.json"))
        write_tables(arguments.output if made else arguments.evidence, arguments.report)
        if made:
            keep_evidence(arguments.output, arguments.evidence)
        return
    if not (arguments.data and arguments.encoder):
        parser.error("--data and --encoder are needed, the folder of the data and that of the encoder")
    planned = [(name, seed) for name in arguments.rows for seed in arguments.seeds or ROWS[name].seeds]
    for name, seed in tqdm(sorted(planned, key=lambda run: run[1]), unit=" runs"):
        run(name, seed, arguments.data, arguments.encoder, arguments.output)


# --- runs -------------------------------------------------------------------------------------------------------------


def run(name: str, seed: int, data: Path, encoder: str, output: Path, with_model: bool = False) -> None:
    """Train and score a row, and first the row it starts from, unless they exist; evidence has no models."""
    row, folder = ROWS[name], output / name / str(seed)
    if (folder / "run.json").exists() and ((folder / "model").exists() or not with_model):
        return
    if row.after:
        run(row.after, seed, data, encoder, output, with_model=True)
        settings = read_recipe("translation-step2")
        settings["model_name_or_path"] = str(output / row.after / str(seed) / "model")
    else:
        settings = read_recipe("translation-step1") | {"model_name_or_path": encoder}
    settings |= {"source_lang": [*row.directions[0]], "target_lang": [*row.directions[1]], "seed": seed}
    cost = call("run_translation.py", settings | sources_of(row, data, output) | dict(row.settings), folder)
    write_run(folder, cost)


def sources_of(row: Row, data: Path, output: Path) -> dict[str, Any]:
    """Return the files of training, validation and test."""
    captions, bitext = data / "multi30k", data / "bitext"
    parts = {"train_file": "train", "validation_file": "val", "test_file": "test_2016_flickr"}
    if row.data == "multi30k":
        (other,) = {*row.directions[0], *row.directions[1]} - {"en"}
        return {part: [str(captions / f"en-{other}.{file}.jsonl.gz")] for part, file in parts.items()}
    if row.data == "others":
        spanish = everyday_pairs(data / "xtreme/tatoeba", output)
        return {"test_file": [str(captions / "en-fr.test_2016_flickr.jsonl.gz"), spanish]}
    rows = {"train_file": ("train", PAIRS_OF_A_TARGET), "validation_file": ("dev", 200), "test_file": ("test", 250)}
    return {
        part: [first_pairs(bitext, language, split, number, output) for language in SCRIPTS]
        for part, (split, number) in rows.items()
    }


def first_pairs(bitext: Path, language: str, split: str, number: int, output: Path) -> str:
    """Write the first pairs whose sentences are both short; return the file."""
    path = output / f"data/en-{language}.{split}.jsonl"
    if not path.exists():
        rows = read_rows(str(bitext / f"en-{language}.{split}.jsonl.gz"), CorpusReport(strict=True))
        short = (row.texts for row in rows if max(map(len, row.texts.values())) <= LONGEST)
        lines = [json.dumps({"translation": texts}, ensure_ascii=False) for texts in islice(short, number)]
        write_text(path, "\n".join([*lines, ""]))
    return str(path)


def everyday_pairs(folder: Path, output: Path) -> str:
    """Write Tatoeba's Spanish and English sentences; return the file."""
    path = output / "data/es-en.tatoeba.jsonl"
    if not path.exists():
        spanish, english = (read_values(folder / f"tatoeba.spa-eng.{side}") for side in ("spa", "eng"))
        pairs = [{"translation": {"es": x, "en": y}} for x, y in zip(spanish, english, strict=True)]
        write_text(path, "".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs))
    return str(path)


def write_run(folder: Path, cost: Mapping[str, Any]) -> None:
    """Write run.json and statistics.npz of a run; neither contains a sentence of the data."""
    results = read_json(folder / "results.json")
    predictions = [json.loads(line) for line in (folder / "predictions.jsonl").open(encoding="utf-8")]
    statistics: dict[str, Any] = {}
    in_script = {}
    for direction in results["test"]:
        rows = [row for row in predictions if row["direction"] == direction]
        target = direction.split("-")[1]
        for name in METRICS:  # by the words of the target language, as the score
            metric = measure_of(name, target, None, None, lowercase=False, strict=False).metric
            statistics[f"{direction}/{name}"] = sentence_statistics(rows, metric)
        if script := SCRIPTS.get(target):
            in_script[direction] = fmean(script_of_most(row["translation"]) == script for row in rows)
    np.savez_compressed(folder / "statistics.npz", **statistics)
    scores = {way: {name: each["value"] for name, each in test.items()} for way, test in results["test"].items()}
    run = {"scores": scores, "in the right script": in_script, **cost}
    run |= {name: results[name] for name in ("data_hash", "versions", "skipped")}
    run["validation"] = [row["eval_sacrebleu"] for row in results["evaluations"]]
    write_json(folder / "run.json", run)


def script_of_most(text: str) -> str:
    """Return the Unicode script of most letters."""
    found = Counter(filter(None, map(script_of, text)))
    return max(found, key=found.__getitem__, default="")


# --- tables -----------------------------------------------------------------------------------------------------------


def write_tables(folder: Path, page: Path) -> None:
    """Write the table of a folder of runs between the marks of the page; first its intervals.json, if it has arrays."""
    runs = {name: folders_by_seed(folder, name) for name in ROWS}
    if next(folder.glob("*/*/statistics.npz"), None):
        write_json(folder / "intervals.json", {name: intervals_of(name, runs) for name in ROWS if runs[name]})
    found = read_json(folder / "intervals.json")
    rows = [line for name in ROWS if runs[name] for line in table_rows(name, runs[name], found[name])]
    if rows:
        heads = ("", "test", "seeds", "BLEU", "gain", "chrF", "gain", "right script", "CPU min")
        replace_block(page, table(heads, rows))


def intervals_of(name: str, runs: Mapping[str, Mapping[int, Path]]) -> dict[str, dict[str, Estimate | None]]:
    """Return by direction each metric and its gain over the baseline on the seeds that both have."""
    folders, baseline = runs[name], runs.get(ROWS[name].baseline or "", {})
    common = sorted({*folders} & {*baseline})
    found: dict[str, dict[str, Estimate | None]] = {}
    for way in read_json(folders[min(folders)] / "run.json")["scores"]:
        found[way] = {}
        for metric in METRICS:
            found[way][metric] = estimate(*mean_and_samples([*folders.values()], way, metric))
            found[way][f"{metric}, gain"] = None
            if common:
                own, other = (mean_and_samples([each[s] for s in common], way, metric) for each in (folders, baseline))
                found[way][f"{metric}, gain"] = estimate(own[0] - other[0], own[1] - other[1])
    return found


def table_rows(
    name: str, folders: Mapping[int, Path], found: Mapping[str, Mapping[str, Estimate | None]]
) -> list[tuple[str, ...]]:
    """Return a table row for each direction."""
    runs = [read_json(folder / "run.json") for folder in folders.values()]
    minutes = [run["cpu_minutes"] for run in runs]
    cost = NONE if None in minutes else f"{fmean(minutes):.0f}"
    rows = []
    for way, estimates in found.items():
        cells = [spread(each, sign="+" if key.endswith("gain") else "") for key, each in estimates.items()]
        if ROWS[name].data == "scripts":
            right = f"{100 * fmean(run['in the right script'][way] for run in runs):.1f}"
        else:
            right = NONE
        rows.append(("", ROWS[name].label, way, str(len(runs)), *cells, right, cost))
    return rows


def mean_and_samples(folders: Sequence[Path], way: str, metric: str) -> tuple[float, NDArray[np.floating]]:
    """Return the mean score of some runs, and (SAMPLES,) the same in samples of sentences and seeds."""
    scores = [read_json(folder / "run.json")["scores"][way][metric] for folder in folders]
    statistics = [np.load(folder / "statistics.npz")[f"{way}/{metric}"] for folder in folders]
    return fmean(scores), mean_of_seeds([resample_metric(each, METRICS[metric]()) for each in statistics])


if __name__ == "__main__":
    main()
