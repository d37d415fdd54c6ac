"""A run over XTREME: read everything, fine-tune what is needed, predict, score, report. What was finished is not done
again: predictions lie in `predictions/` in the layout of a submission, models in `models/`, and a run that was
interrupted goes on with the task, the language and the step it was at."""

import itertools
import json
import logging
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..embedding.encoder import Pooling, all_poolings, embed_at_poolings
from ..errors import BadInput
from ..files import write_json
from ..retrieval.bitext import Bitext
from ..training.arguments import SETTINGS_FILE, refuse_other_settings
from ..version import __version__
from .arguments import XtremeArguments, parse_xtreme_arguments
from .data import TaskData, read_task, without_golds
from .files import data_hash
from .fine_tuned_models import FineTunedModels, device
from .fine_tuning import longest_row
from .metrics import Score
from .predictions import Embedded
from .report import main_table, write_report
from .scores import score_submission
from .tasks import XtremeTask

logger = logging.getLogger(__name__)

RETRIEVAL_LAYERS = {12: 8, 24: 14}  # hidden states that XTREME's Tatoeba script reads, by the layers of the encoder
RETRIEVAL_LENGTH = 512  # tokens, as in XTREME's scripts
ROWS_FILE = "rows.json"  # hashes of what predictions and models were made of


def main(argv: Sequence[str] | None = None, program: str = "hictl xtreme") -> dict[str, Any]:
    """Run with these arguments, those of the command line by default; returns what is in `results.json`."""
    argv = sys.argv[1:] if argv is None else list(argv)
    args = parse_xtreme_arguments(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hictl_hf").setLevel(logging.INFO)
    if args.score:
        scores = score_submission(args.score, str(args.labels), args.chosen_tasks)
        print(json.dumps(scores, indent=2))
        return scores
    results = run_xtreme(args, command=shlex.join([*program.split(), *argv]))
    print(main_table({args.output_dir: results}).text())
    print(f"\nreport: {args.output_dir}/report.html")
    return results


def run_xtreme(args: XtremeArguments, command: str = "", tasks: Sequence[XtremeTask] | None = None) -> dict[str, Any]:
    """Do what the arguments ask for, or the same with rows of one's own; returns what is in `results.json`."""
    folder = Path(args.output_dir)
    refuse_other_settings(folder, asdict(args))
    run = XtremeRun(args, folder, command)
    data = [read_for(task, args) for task in (args.chosen_tasks if tasks is None else tasks)]
    refuse_nothing(args, data)
    for of_task in data:
        run.check(of_task)
    rows = run.refuse_other_rows(data)
    write_json(folder / SETTINGS_FILE, asdict(args))
    write_json(folder / ROWS_FILE, rows)
    for of_task in data:
        run.results["tasks"][of_task.task.name] = run.do(of_task)
        write_json(folder / "results.json", run.results)
    write_report({name_of(run.results): run.results}, folder)
    return run.results


def refuse_nothing(args: XtremeArguments, data: Sequence[TaskData]) -> None:
    """A run needs something to score."""
    if not any(of_task.test for of_task in data):
        reasons = "; ".join(f"{of_task.task.name}: {next(iter(of_task.missing.values()), '-')}" for of_task in data)
        raise BadInput(
            f"--data {args.data}: has nothing to score. {reasons}. Give XTREME's folder, or run other tasks."
        )


def read_for(task: XtremeTask, args: XtremeArguments) -> TaskData:
    """What a task needs, read and checked."""
    languages = [name for name in task.languages if not args.languages or name in args.languages]
    labels = Path(args.labels) if args.labels else None
    data = read_task(task, args.source, args.setting, args.splits, languages, args.select_on, labels)
    if data.missing:
        logger.info("%s: not scored: %s", task.name, "; ".join(f"{name}: {why}" for name, why in data.missing.items()))
    return data


def name_of(results: Mapping[str, Any]) -> str:
    return f"{results['encoder']}, {results['setting']}"


class XtremeRun:
    """What the tasks of a run share: the encoder's tokenizer, the fine-tuned models, the results."""

    def __init__(self, args: XtremeArguments, folder: Path, command: str) -> None:
        self.args, self.folder, self.encoder = args, folder, str(args.encoder)
        try:
            config = AutoConfig.from_pretrained(self.encoder)
            self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(self.encoder)
        except (OSError, ValueError) as error:
            raise BadInput(f"--encoder {self.encoder}: no encoder with a tokenizer that loads: {error}") from error
        self.layers: int = config.num_hidden_layers
        size = args.size or ("large" if self.layers >= 24 else "base")
        self.models = FineTunedModels(args, self.tokenizer, size, longest_row(config))
        self.results: dict[str, Any] = {
            "encoder": self.encoder, "setting": args.setting, "size": size, "version": __version__, "command": command,
            "seed": args.seed[0] if len(args.seed) == 1 else args.seed, "tasks": {},
        }  # fmt: skip

        default = RETRIEVAL_LAYERS.get(self.layers, round(2 * self.layers / 3))
        self.pooling = Pooling(args.pooling, default if args.layer is None else args.layer)

    def check(self, data: TaskData) -> None:
        """Refuse what would fail later, before anything is trained."""
        kind = data.task.kind
        if not data.test:
            return
        if kind.features is not None:
            self.models.check(data)
        elif not 0 <= self.pooling.layer <= self.layers:
            raise BadInput(f"layer is {self.pooling.layer}; the encoder has the layers 0 (embeddings) to {self.layers}")
        elif kind.tuned_on_dev:
            for language in data.test:
                if language not in data.dev or kind.golds(data.dev[language]) is None:
                    raise BadInput(
                        f"{data.task.name}: its threshold is chosen on the split {self.args.select_split!r}, whose "
                        f"files or golds are not there in {language}; add them"
                    )

    def refuse_other_rows(self, data: Sequence[TaskData]) -> dict[str, str]:
        """Refuse to go on with what was made of other rows; returns the hashes of the rows by what is made of them."""
        record = self.folder / ROWS_FILE
        hashes: dict[str, str] = json.loads(record.read_text("utf-8")) if record.exists() else {}
        for name, made, found in itertools.chain.from_iterable(map(self.rows_of, data)):
            there = [path for path in made if path.exists()]
            if there and hashes.get(name, found) != found:
                raise BadInput(
                    f"{there[0]}: the rows of {name} are not those that it was made of (hash {found}, not "
                    f"{hashes[name]}): the files changed; give the same files, or choose another --output_dir"
                )
            hashes[name] = found
        return hashes

    def rows_of(self, data: TaskData) -> Iterator[tuple[str, list[Path], str]]:
        """Name and hash of the rows of each model and each language, and what is made of them."""
        task, models = data.task, self.models.rows_of(data) if data.task.kind.features and data.test else {}
        for model, found in models.items():
            yield model, [self.models.folder / model, self.models.records / f"{model}.json"], found
        for language, test in data.test.items():
            made = [self.predictions(task, language), self.folder / "sweeps" / f"{task.name}.json"]
            if models:
                model = self.models.key_of(data, self.models.languages_for(data, language))
                rows = [data_hash(without_golds(test)), models[model]]
            else:
                rows = [data_hash(test), data_hash(data.dev.get(language, test))]
            yield f"{task.name} {language}", made, data_hash(rows)

    def do(self, data: TaskData) -> dict[str, Any]:
        """Predictions, scores and how they came about, of one task."""
        task, entry = data.task, self.entry(data)
        if task.kind.features is None:
            self.retrieve(data, entry)
            return entry
        for language, examples in data.test.items():
            path = self.predictions(task, language)
            if not path.exists():
                task.kind.write_predictions(path, self.models.of(data, language).predict(examples, self.args))
        if data.test:
            entry |= self.trained(data)
        for language in data.test:
            predicted = task.kind.read_predictions(self.predictions(task, language))
            self.score(data, entry, language, predicted, {"setting": self.args.setting})
        return entry

    def entry(self, data: TaskData) -> dict[str, Any]:
        """The part of the results that a task begins with."""
        task = data.task
        entry: dict[str, Any] = {
            "title": task.title, "group": task.group, "metrics": list(task.metrics), "languages": {}, "signatures": {},
            "missing": dict(data.missing),
        }  # fmt: skip
        if not self.args.splits.official:
            splits = self.args.splits
            trained = f"trained on {splits.train}, selected on {splits.select}, " if task.kind.features else ""
            entry["note"] = f"trial: {trained}scored on {splits.score}"
        elif self.args.select_on == "target" and task.kind.features:
            entry["note"] = "selected on the target languages' dev sets"
        return entry

    def trained(self, data: TaskData) -> dict[str, Any]:
        """How the models of a task came about."""
        choices = self.models.choices(data)
        rows = [f"{', '.join(choice['languages'])}, {choice['rows']} rows" for choice in choices.values()]
        first, *others = choices.values()
        entry = {"train": "; ".join(rows), "model_selection": first["select_on"] or "last state"}
        return entry | ({"models": choices} if others else {name: first[name] for name in ("candidates", "chosen")})

    def predictions(self, task: XtremeTask, language: str) -> Path:
        """The file of a submission."""
        return self.folder / "predictions" / task.name / f"test-{language}.{task.kind.ending}"

    def score(
        self, data: TaskData, entry: dict[str, Any], language: str, predicted: Any, signature: dict[str, str]
    ) -> None:
        """Score a language where its golds are known, and write down both."""
        task, golds = data.task, data.golds[language]
        if golds is None:
            entry["languages"][language] = None
            logger.info("%s %s: predicted; there are no labels to score with", task.name, language)
            return
        try:
            values = task.score(predicted, golds, language)
        except ValueError as error:
            raise BadInput(f"{task.name} {language}: cannot be scored: {error}") from error
        signature = {
            "task": task.name, "language": language, "split": self.args.score_split,
            "data": data_hash(map(data_hash, (without_golds(data.test[language]), golds))), **signature,
            "version": __version__,
        }  # fmt: skip
        score = Score(values, signature)
        entry["languages"][language] = values
        entry["signatures"][language] = score.signature_text
        logger.info("%s", score)

    # --- retrieval ----------------------------------------------------------------------------------------------------

    def retrieve(self, data: TaskData, entry: dict[str, Any]) -> None:
        """Predictions and scores of a task of the frozen encoder; where asked for, at all layers."""
        task, chosen, model = data.task, self.pooling, self.load_encoder()
        if self.args.sweep_layers:
            entry["sweep"] = swept = self.sweep(model, data)
            entry["layers"] = mean_over_languages(swept["languages"])
        for language, test in data.test.items():
            path = self.predictions(task, language)
            other = self.folder / "other_direction" / f"{task.name}-{language}.json"
            if not path.exists():
                embedded = self.embed(model, test, [chosen])[chosen]
                dev = data.dev.get(language)
                known = None if dev is None else self.embed(model, dev, [chosen])[chosen] if dev != test else embedded
                if task.kind.other_direction and data.golds[language] is not None:
                    write_json(other, task.kind.other_direction(embedded))
                assert task.kind.retrieve is not None
                task.kind.write_predictions(path, task.kind.retrieve(embedded, known))
            if other.exists() and data.golds[language] is not None:
                entry.setdefault("other_direction", {})[language] = json.loads(other.read_text("utf-8"))
            signature = {"layer": str(chosen.layer), "pooling": chosen.mode}
            self.score(data, entry, language, task.kind.read_predictions(path), signature)

    def load_encoder(self) -> PreTrainedModel:
        return AutoModel.from_pretrained(self.encoder, dtype=torch.float32).to(device()).eval()

    def embed(self, model: PreTrainedModel, bitext: Any, poolings: list[Pooling]) -> dict[Pooling, Embedded]:
        """Both sides of a bitext, read at several places."""
        assert isinstance(bitext, Bitext)
        sentences, border = [*bitext.queries, *bitext.candidates], len(bitext.queries)
        vectors = embed_at_poolings(
            model, self.tokenizer, sentences, poolings, max_length=RETRIEVAL_LENGTH, progress=True
        )
        return {pooling: (bitext, both[:border], both[border:]) for pooling, both in vectors.items()}

    def sweep(self, model: PreTrainedModel, data: TaskData) -> dict[str, Any]:
        """The score of each layer by pooling and language, on dev where there is one, else on what is scored."""
        path = self.folder / "sweeps" / f"{data.task.name}.json"
        if path.exists():
            return json.loads(path.read_text("utf-8"))
        task, poolings = data.task, all_poolings(range(self.layers + 1), self.layers, projection=False)
        scores: dict[str, dict[str, list[float | None]]] = {}
        for language, test in data.test.items():
            bitext = data.dev.get(language, test)
            golds = task.kind.golds(bitext)
            if golds is None:
                continue
            of_language = scores[language] = {pooling: [None] * (self.layers + 1) for pooling in ("mean", "cls")}
            for pooling, embedded in self.embed(model, bitext, poolings).items():
                assert task.kind.retrieve is not None
                values = task.score(task.kind.retrieve(embedded, embedded), golds, language)
                of_language[pooling.mode][pooling.layer] = fmean(values[metric] for metric in task.metrics)
        result = {"split": "dev" if data.dev else self.args.score_split, "languages": scores}
        write_json(path, result)
        return result


def mean_over_languages(scores: Mapping[str, Mapping[str, list[float | None]]]) -> dict[str, list[float | None]]:
    """By pooling the mean score of each layer.

    >>> mean_over_languages({"de": {"mean": [None, 50.0]}, "fr": {"mean": [None, 70.0]}})
    {'mean': [None, 60.0]}
    """
    poolings = dict.fromkeys(pooling for of_language in scores.values() for pooling in of_language)
    return {
        pooling: [
            None if None in layer else fmean(layer) for layer in zip(*(each[pooling] for each in scores.values()))
        ]
        for pooling in poolings
    }
