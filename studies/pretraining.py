"""Pre-train variants of HiCTL on the same data, steps and seeds, and compare them: docs/results.md.

    python -m studies.pretraining --data shared/data                                    # every row, every seed
    python -m studies.pretraining --data shared/data --variants full --seeds 1          # one run
    python -m studies.pretraining --data shared/data --model continued --encoder path/to/encoder
    python -m studies.pretraining --report docs/results.md                              # the page again

`--data` is a folder of bitext/, monolingual/, multi30k/, ntrex/ and xtreme/. A run calls run_pretraining.py in a
separate process, on one thread, with `studies/recipes/MODEL.json` and the changes of its row in `VARIANTS`.
`scoring.py` scores its encoder; some are fine-tuned by run_xtreme.py and run_translation.py. Finished steps are not
repeated: the same command resumes, and commands for different seeds can run at the same time. `report.py` makes
tables and pictures. `studies/evidence/pretraining/` has the JSON of each run and the intervals, from which the page
can be written again.
"""

import argparse
import gzip
import json
import os
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from tqdm import tqdm

from hictl_hf.data.cleaning import CorpusReport
from hictl_hf.data.held_out import comparable
from hictl_hf.data.sources import read_rows
from hictl_hf.data.tokenization import train_tokenizer
from hictl_hf.files import write_json

from .report import write_study
from .runs import add_report_arguments, keep_evidence, write_run
from .scoring import StudyTests, score_encoder, sentence_statistics

ROOT = Path(__file__).parent.parent
RECIPES = ROOT / "studies/recipes"
EVIDENCE = ROOT / "studies/evidence/pretraining"
SHARED_VARIABLES = ("MALLOC_MMAP_THRESHOLD_=4294967296", "MALLOC_TRIM_THRESHOLD_=17179869184", "OMP_NUM_THREADS=1")
THREE, ONE = (1, 2, 3), (1,)
MODELS = ("scratch", "continued")


@dataclass(frozen=True)
class Variant:
    """A row of the study: its changes of the recipe."""

    label: str
    config_overrides: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = ONE
    data: str = "pairs"
    """"pairs"; "unpaired", the same sentences as monolingual text; "tenth", every tenth pair."""
    models: tuple[str, ...] = ("scratch",)


def batch_of(pairs: int, steps: int, usual: int) -> dict[str, Any]:
    """Return settings with another number of pairs a step and the same number of pairs in total."""
    micro_batches = max(pairs // usual, 1)
    return {
        "per_device_train_batch_size": min(pairs, usual),
        "gradient_accumulation_steps": micro_batches,
        "gradient_cache": micro_batches > 1,
        "max_steps": steps * usual // pairs,
    }


def read_recipe(name: str) -> dict[str, Any]:
    recipe: dict[str, Any] = json.loads((RECIPES / f"{name}.json").read_text("utf-8"))
    return recipe


USUAL = read_recipe("scratch")
PAPER = (  # as recipes/paper-base.json: config_overrides and settings
    {
        "sentence_temperature": 1.0, "word_temperature": 1.0, "word_sampling_temperature": 1.0,
        "hard_negative_space": "raw", "duplicates": "keep", "word_level_input": "clean",
    },
    {"reordering": "subwords", "join_reordered": True, "pair_separators": 1},
)  # fmt: skip
LM_ONLY = {"sentence_weight": 0, "word_weight": 0}
VARIANTS = {
    "lm": Variant("LM only (XLM-R with TLM)", LM_ONLY, seeds=THREE, models=MODELS),
    "sentence": Variant("LM + sentence", {"word_weight": 0, "hard_negatives": False}, seeds=THREE),
    "sentence-hard": Variant("full w/o word level", {"word_weight": 0}, seeds=THREE),
    "word": Variant("full w/o sentence level", {"sentence_weight": 0}, seeds=THREE),
    "full": Variant("full HiCTL", seeds=THREE, models=MODELS),
    "unpaired": Variant("full, no parallel data", seeds=THREE, data="unpaired"),
    "full-easy": Variant("full, no hard negatives", {"hard_negatives": False}, seeds=THREE),
    "paper": Variant("the paper's settings of the objective, all at once", *PAPER),
    "paper-without-sentence": Variant("the same w/o sentence level", PAPER[0] | {"sentence_weight": 0}, PAPER[1]),
    "paper-without-word": Variant("the same w/o word level", PAPER[0] | {"word_weight": 0}, PAPER[1]),
    "temperature-1": Variant("full, sentence temperature 1 (the paper's)", {"sentence_temperature": 1.0}),
    "word-temperature-0.05": Variant("full, word temperature 0.05 (the default)", {"word_temperature": 0.05}),
    "word-alone-0.05": Variant(
        "word temperature 0.05 w/o sentence level", {"sentence_weight": 0, "word_temperature": 0.05}
    ),
    "raw": Variant("full, hard negatives in raw space (the paper's)", {"hard_negative_space": "raw"}),
    "other-side": Variant("full, negatives of the other side only (InfoXLM)", {"same_side_negatives": False}),
    "clean": Variant("full, word level reads clean pairs", {"word_level_input": "clean"}),
    "lm-tenth": Variant("LM only, a tenth of the pairs", LM_ONLY, data="tenth"),
    "tenth": Variant("full, a tenth of the pairs", data="tenth"),
    **{
        f"batch-{pairs}": Variant(
            f"full, {pairs} pairs a step",
            settings=batch_of(pairs, USUAL["max_steps"], USUAL["per_device_train_batch_size"]),
        )
        for pairs in (32, 256, 1024)
    },
}
FINE_TUNED = ("lm", "full")  # like the unchanged start; their first seed is fine-tuned on PANX and Multi30k


def main(argv: Sequence[str] | None = None) -> None:
    """Run the requested variants, then write their results; or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="with bitext/, monolingual/, ntrex/ and others")
    parser.add_argument("--model", choices=MODELS, default=MODELS[0])
    parser.add_argument("--encoder", metavar="FOLDER", help="initial encoder of the continued model")
    parser.add_argument(
        "--variants", nargs="+", choices=VARIANTS, metavar="NAME", help=f"of {', '.join(VARIANTS)} [all of the model]"
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="[those of the variant]")
    parser.add_argument("--output", type=Path, default=Path("runs/study"))
    add_report_arguments(parser, EVIDENCE)
    arguments = parser.parse_args(argv)
    labels = {name: variant.label for name, variant in VARIANTS.items()}
    if arguments.report:
        made = any(arguments.output.glob("*/*/run.json"))
        write_study(arguments.output if made else arguments.evidence, arguments.report, labels)
        if made:
            keep_evidence(arguments.output, arguments.evidence)
        return
    if arguments.model == "continued" and not arguments.encoder:
        parser.error("--model continued needs --encoder, the folder of the initial encoder")
    if not arguments.data:
        parser.error("--data is needed, the folder of bitext/, monolingual/, multi30k/, ntrex/ and xtreme/")
    if not planned(arguments):
        parser.error(f"--model {arguments.model} has only the variants lm and full")
    study = Study(arguments.data, arguments.output, arguments.model, arguments.encoder)
    study.prepare()
    for name, seed in tqdm(planned(arguments), unit=" runs"):
        study.run(name, seed)
    write_study(arguments.output, arguments.output / "results.md", labels)


def planned(arguments: argparse.Namespace) -> list[tuple[str, int]]:
    """Return variant and seed of each run, sorted by seed."""
    runs = [
        (name, seed)
        for name in arguments.variants or VARIANTS
        if arguments.model in VARIANTS[name].models
        for seed in arguments.seeds or VARIANTS[name].seeds
    ]
    return sorted(runs, key=lambda run: run[1])


# --- data -------------------------------------------------------------------------------------------------------------


def prepare_data(source: Path, tests: StudyTests, folder: Path) -> None:
    """Write pairs, texts and unpaired sentences without any test sentence on either side; count the removed rows."""
    if (folder / "data.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    forbidden = {comparable(text) for text in tests.sentences()}
    counts = dict.fromkeys(("pairs", "texts", "left out"), 0)
    digest = blake2b(digest_size=8)
    names = ("pairs", "tenth", "unpaired", "texts")
    with ExitStack() as files:
        pairs, tenth, unpaired, texts = (
            files.enter_context(gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8")) for name in names
        )
        for row in rows_of(source):
            if any(comparable(text) in forbidden for text in row.values()):
                counts["left out"] += 1
                continue
            line = json.dumps(row, ensure_ascii=False, sort_keys=True)
            digest.update(line.encode())
            alone = [json.dumps({"text": text, "lang": lang}, ensure_ascii=False) for lang, text in row.items()]
            if len(row) == 2:
                if counts["pairs"] % 10 == 0:
                    print(line, file=tenth)
                counts["pairs"] += 1
                print(line, file=pairs)
                print(*alone, sep="\n", file=unpaired)
            else:
                counts["texts"] += 1
                print(alone[0], file=texts)
    for name in names:
        refuse_test_sentences(folder / f"{name}.jsonl.gz", forbidden)
    write_json(folder / "data.json", {**counts, "hash": digest.hexdigest(), "test sentences": len(forbidden)})


def refuse_test_sentences(file: Path, forbidden: Set[str]) -> None:
    """Raise if a file of training data contains a test sentence."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            row = json.loads(line)
            for text in [row["text"]] if "text" in row else row.values():
                if comparable(text) in forbidden:
                    raise RuntimeError(f"{file}:{number}: a sentence of a test: {text}")


def rows_of(source: Path) -> Iterator[dict[str, str]]:
    """Yield the texts by language of every training row, pairs first."""
    report = CorpusReport(strict=True)
    for file in [*sorted(source.glob("bitext/*.train.jsonl.gz")), *sorted(source.glob("monolingual/*.jsonl.gz"))]:
        for row in read_rows(str(file), report):
            yield dict(row.texts)


# --- runs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Study:
    """The data, the folder of runs, and the initial model."""

    source: Path
    output: Path
    model: str = MODELS[0]
    encoder: str | None = None

    @cached_property
    def tests(self) -> StudyTests:
        return StudyTests(self.source)

    @property
    def bf16(self) -> bool:
        """Whether training and fine-tuning use bf16."""
        return bool(read_recipe(self.model).get("bf16"))

    def prepare(self) -> None:
        """Make the training data and what all runs share: the vocabulary, or the scores of the initial encoder."""
        prepare_data(self.source, self.tests, self.output / "data")
        if self.model == "continued":
            if not (self.output / "start/0/run.json").exists():
                self.score(self.encoder, self.output / "start/0")
                self.fine_tune(self.encoder, self.output / "start/0")
                write_run(self.output / "start/0")
        elif not (self.output / "tokenizer").exists():
            sentences = sample_of(self.output / "data/pairs.jsonl.gz")
            tokenizer = train_tokenizer(sentences, USUAL["config_overrides"]["vocab_size"], USUAL["max_seq_length"])
            tokenizer.save_pretrained(self.output / "tokenizer")

    def run(self, name: str, seed: int) -> None:
        """Pre-train, score and fine-tune, each unless its result exists."""
        folder = self.output / (name if self.model == "scratch" else f"continued-{name}") / str(seed)
        if (folder / "run.json").exists():
            return
        if not (folder / "cost.json").exists():
            used = call("run_pretraining.py", self.recipe(name, seed), folder, "--resume_from_checkpoint", "true")
            write_json(folder / "cost.json", used)
        self.score(str(folder / "checkpoint"), folder)
        if name in FINE_TUNED and seed == VARIANTS[name].seeds[0]:
            self.fine_tune(str(folder / "checkpoint"), folder)
        write_run(folder)

    def recipe(self, name: str, seed: int) -> dict[str, Any]:
        """Return the recipe of the model with the changes of the variant."""
        variant, settings = VARIANTS[name], read_recipe(self.model)
        settings |= {
            "train_file": [str(self.output / f"data/{source}.jsonl.gz") for source in (variant.data, "texts")],
            "seed": seed,
            "config_overrides": settings.get("config_overrides", {}) | dict(variant.config_overrides),
            **variant.settings,
        }
        start = (
            {"model_name_or_path": self.encoder}
            if self.model == "continued"
            else {"tokenizer_name": str(self.output / "tokenizer")}
        )
        return settings | start

    def score(self, encoder: str | None, folder: Path) -> None:
        if not (folder / "scores.json").exists():
            score_encoder(str(encoder), self.tests, folder)

    def fine_tune(self, encoder: str | None, folder: Path) -> None:
        """Fine-tune on PANX (zero-shot), and train a translation model on Multi30k with the encoder frozen."""
        multi30k = {
            part: [str(self.source / f"multi30k/en-de.{file}.jsonl.gz")]
            for part, file in (("train_file", "train"), ("validation_file", "val"), ("test_file", "test_2016_flickr"))
        }
        for script, name, given in (
            ("run_xtreme.py", "panx", {"data": str(self.source / "xtreme")}),
            ("run_translation.py", "bleu", multi30k),
        ):
            if not (folder / name / "cost.json").exists():
                settings = read_recipe(name) | given | {"model_name_or_path": encoder, "bf16": self.bf16}
                write_json(folder / name / "cost.json", call(script, settings, folder / name))
        with (folder / "bleu/predictions.jsonl").open(encoding="utf-8") as lines:
            np.save(folder / "bleu.npy", sentence_statistics(map(json.loads, lines), BLEU()))


def sample_of(pairs: Path) -> Iterator[str]:
    """Yield both sides of every fifth pair."""
    with gzip.open(pairs, "rt", encoding="utf-8") as lines:
        for line in islice(lines, 0, None, 5):
            yield from json.loads(line).values()


def call(script: str, settings: dict[str, Any], folder: Path, *flags: str) -> dict[str, Any]:
    """Run a script, or a module of studies/, on one thread, with its output in log.txt.

    Returns:
        Its command and CPU minutes (`None` if it resumed).
    """
    folder.mkdir(parents=True, exist_ok=True)
    resumed = (folder / "log.txt").exists()
    file = write_json(folder / "recipe.json", settings | {"output_dir": str(folder)})
    place = [str(ROOT / script)] if script.endswith(".py") else ["-m", script]
    command = [*place, str(file), *flags]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with (folder / "log.txt").open("a", encoding="utf-8") as log:
        environment = {**os.environ, **dict(each.split("=") for each in SHARED_VARIABLES), "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, *command], check=True, stdout=log, stderr=log, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "command": shlex.join(["python", *place[:-1], script, str(file), *flags]),
        "cpu_minutes": None if resumed else round(seconds / 60, 1),
    }


if __name__ == "__main__":
    main()
