"""A translation run from sources to scores: each step is a function, `run_translation` is their order."""

import json
import logging
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerBase, set_seed

from ..errors import BadInput
from ..files import atomic_directory, write_json, write_text
from ..hub.loading import load_tokenizer
from ..hub.publishing import push, reserve
from ..models.modeling_hictl_translation import HictlForConditionalGeneration
from ..training.arguments import plain_settings, read_dictionary
from ..training.callbacks import RunFingerprint, TrainingTime
from ..training.checkpoints import last_whole_checkpoint, newest_first
from ..training.fingerprint import SETTINGS_FILE, refuse_other_settings, remember_settings
from ..training.trainer import TERMINATED
from ..version import __version__
from .arguments import TranslationArguments, parse_translation_arguments
from .card import translation_card
from .corpus import (
    Direction,
    Pair,
    Place,
    TokenBudgetBatchSampler,
    TranslationCollator,
    side_lengths,
)
from .decoding import Translation
from .report import write_translation_report
from .scores import Score
from .setup import Data, load_config, load_or_make_model, read_data
from .trainer import (
    TranslationTrainer,
    average_weights,
    check_metrics,
    checkpoints_to_average,
    score_directions,
)

logger = logging.getLogger(__name__)

RESULTS_FILE = "results.json"
WITHOUT_EFFECT = (  # on what comes out of a run: a run goes on though these are others
    "output_dir", "resume_from_checkpoint", "local_rank", "log_level", "log_level_replica", "log_on_each_node",
    "disable_tqdm", "report_to", "run_name", "use_cpu", "dataloader_num_workers", "dataloader_pin_memory",
    "dataloader_prefetch_factor", "dataloader_persistent_workers", "save_total_limit",
    "push_to_hub", "hub_model_id", "hub_private_repo", "hub_strategy", "hub_always_push", "hub_revision", "hub_token",
)  # fmt: skip


def main(argv: Sequence[str] | None = None, program: str = "hictl train-translation") -> dict[str, Any]:
    """Run with these arguments, those of the command line by default; returns what is in `results.json`."""
    argv = sys.argv[1:] if argv is None else list(argv)
    args = parse_translation_arguments(argv)
    logging.basicConfig(level=args.get_process_log_level(), format="%(message)s")
    logging.getLogger("hictl_hf").setLevel(logging.INFO if args.should_log else logging.WARNING)
    results = run_translation(args, command=shlex.join([*program.split(), *argv]))
    if args.should_log:
        for direction, scores in results["test"].items():
            for name, score in scores.items():
                print(f"{direction}  {name} {score['value']:.2f}  {score['signature']}")
        print(f"\nreport: {args.output_dir}/report.html")
    return results


def run_translation(args: TranslationArguments, command: str = "") -> dict[str, Any]:
    """Train, choose the best state, translate, score and save; returns what is in `results.json`."""
    finished = finished_results(args)
    if finished is not None:
        logger.info("%s: this run is finished; its files were not read again, there is nothing to do", args.output_dir)
        if args.should_save and not (Path(args.output_dir) / "report.html").exists():  # it ended in the midst of that
            write_translation_report(args.output_dir)
        publish(args)
        return finished
    if args.publish_to and args.process_index == 0:
        reserve(args.publish_to, args.hub_private_repo)
    set_seed(args.seed)
    config, tokenizer = load_config(args), load_tokenizer(str(args.encoder or args.model))
    data = read_data(args, config, tokenizer)
    scored = [*data.test, *(data.validation if args.eval_strategy != "no" else ())]
    check_metrics(scored, args.metric, read_dictionary("multi_bleu", args.multi_bleu))
    model = load_or_make_model(args, config, tokenizer, data)
    trainer = make_trainer(args, model, tokenizer, data)
    record_settings(args, trainer)
    chosen = train(args, trainer) if args.train else {"state": f"that of {args.model}"}
    translations = trainer.translate(data.test, progress=True)
    scores = score_directions(data.test, translations, trainer.metrics, trainer.multi_bleu, data.about)
    results = collect_results(args, trainer, data, chosen, scores, command)
    if trainer.is_world_process_zero():
        save(args, trainer, data.test, translations, results)
        write_translation_report(args.output_dir, trainer.accelerator.unwrap_model(trainer.model), tokenizer)
        publish(args)
    trainer.accelerator.wait_for_everyone()
    return results


# --- what is there ----------------------------------------------------------------------------------------------------


def settings_of(args: TranslationArguments) -> dict[str, Any]:
    """All that decides what comes out of a run, as plain values."""
    plain = plain_settings(args) | {"processes": args.world_size}
    return {name: value for name, value in plain.items() if name not in WITHOUT_EFFECT}


def finished_results(args: TranslationArguments) -> dict[str, Any] | None:
    """The results of a run that ended; a folder begun with other settings is left alone."""
    folder, settings = Path(args.output_dir), settings_of(args)
    refuse_other_settings(folder / SETTINGS_FILE, settings)
    done = folder / RESULTS_FILE
    if (newest_first(folder) or done.exists()) and not (folder / SETTINGS_FILE).exists():
        raise BadInput(f"{folder}: holds what another kind of run has left; choose another --output_dir")
    return json.loads(done.read_text("utf-8")) if done.exists() else None


def record_settings(args: TranslationArguments, trainer: TranslationTrainer) -> None:
    """From now on the folder is that of this run."""
    if trainer.is_world_process_zero():
        remember_settings(Path(args.output_dir) / SETTINGS_FILE, settings_of(args))


# --- training ---------------------------------------------------------------------------------------------------------


def make_trainer(
    args: TranslationArguments, model: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, data: Data
) -> TranslationTrainer:
    """The trainer with its rows, their batches and the collator."""
    languages = list(model.config.target_languages or [])
    start_ids = dict(zip(languages, model.start_ids_of(languages)))
    batches = None
    if data.train is not None:
        place = Place(args.process_index, args.world_size)
        batches = TokenBudgetBatchSampler(*side_lengths(data.train), args.max_tokens, args.seed, place)
    return TranslationTrainer(
        model, args, train_dataset=data.train, data_collator=TranslationCollator(tokenizer, start_ids),
        callbacks=[RunFingerprint({}, data.report.hash), TrainingTime()],
        processing_class=tokenizer, batches=batches, validation=data.validation, metric=args.metric,
        multi_bleu=read_dictionary("multi_bleu", args.multi_bleu), beam=args.beam,
        freeze_encoder=bool(args.freeze_encoder),
    )  # fmt: skip


def train(args: TranslationArguments, trainer: TranslationTrainer) -> dict[str, Any]:
    """Train, or go on where an interrupted run was; leaves the trainer with the chosen state, and says which it is."""
    named = str(args.resume_from_checkpoint or "true")
    checkpoint = last_whole_checkpoint(args.output_dir) if named.lower() == "true" else named
    trainer.train(resume_from_checkpoint=checkpoint)
    if trainer.terminated:
        raise SystemExit(TERMINATED)
    state, best = trainer.state, trainer.state.best_metric
    chosen: dict[str, Any] = {
        "state": f"step {state.global_step}, the last",
        "seconds": trainer.pop_callback(TrainingTime).seconds,
    }
    if best is not None:
        chosen |= {"state": f"step {state.best_global_step}, the best on validation", "validation": best}
    if args.average_checkpoints > 1:
        chosen |= average(args.average_checkpoints, args, trainer, best)
    return chosen


def average(number: int, args: TranslationArguments, trainer: TranslationTrainer, best: float | None) -> dict[str, Any]:
    """Put the mean of the last checkpoints in place of the state, unless it is worse on validation."""
    checkpoints = checkpoints_to_average(args.output_dir, number, args.save_strategy)
    model = trainer.accelerator.unwrap_model(trainer.model)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.load_state_dict(average_weights(checkpoints), strict=False)
    steps = ", ".join(sorted((path.name.removeprefix("checkpoint-") for path in checkpoints), key=int))
    found: dict[str, Any] = {"state": f"mean of steps {steps}"}
    if best is None:
        return found
    value = trainer.validate()[args.metric]
    if value > best:
        return found | {"validation": value}
    model.load_state_dict(before)
    return {"validation_of_mean": value}


# --- results ----------------------------------------------------------------------------------------------------------


def collect_results(
    args: TranslationArguments,
    trainer: TranslationTrainer,
    data: Data,
    chosen: Mapping[str, Any],
    scores: Mapping[Direction, Mapping[str, Score]],
    command: str,
) -> dict[str, Any]:
    """Everything worth keeping of a run, as plain values."""
    log, config = trainer.state.log_history, trainer.model.config
    kept = {"train": data.report.kept} | {
        name: Counter(str(pair.direction) for pair in pairs)
        for name, pairs in (("validation", data.validation), ("test", data.test))
    }
    return {
        "step": args.step if args.train else None,
        "encoder": args.encoder, "model": args.model, "random_encoder": args.random_encoder,
        "rows": {name: dict(counts) for name, counts in kept.items()},
        "skipped": {reason: number for reason, number in data.report.skipped.items() if number},
        "messages": data.report.messages,
        "data_hash": data.report.hash,
        "cut_sources": data.cut,
        "empty_lines": {
            "source": sum(not pair.source.strip() for pair in data.test),
            "reference": sum(not pair.target.strip() for pair in data.test),
        },
        "target_vocabulary": {
            "size": len(trainer.model.target_token_ids), "unknown_tokens": data.unknown,
            "tokens": {language: int(counts.sum()) for language, counts in data.counts.items()},
        },
        "chosen": dict(chosen),
        "test": {
            str(direction): {
                name: {"value": score.value, "signature": score.signature} for name, score in of_one.items()
            }
            for direction, of_one in scores.items()
        },
        "decoding": asdict(args.beam),
        "history": [entry for entry in log if "loss" in entry],
        "evaluations": [entry for entry in log if f"eval_{args.metric}" in entry],
        "settings": {"config": config.to_dict(), "training": settings_of(args)},
        "versions": {"hictl_hf": __version__, "torch": torch.__version__, "transformers": transformers.__version__},
        "seed": args.seed,
        "command": command,
    }  # fmt: skip


def save(
    args: TranslationArguments,
    trainer: TranslationTrainer,
    test: Sequence[Pair],
    translations: Sequence[Translation],
    results: Mapping[str, Any],
) -> None:
    """The translations in the order of the test set, the model, and last the results; each whole or not at all."""
    folder = Path(args.output_dir)
    if test:
        write_text(folder / "generated_predictions.txt", "".join(f"{each.text}\n" for each in translations))
        rows = [
            pair._asdict() | {"direction": str(pair.direction), "translation": each.text, "score": each.score}
            for pair, each in zip(test, translations, strict=True)
        ]
        lines = (json.dumps(row, ensure_ascii=False) for row in rows)
        write_text(folder / "predictions.jsonl", "".join(f"{line}\n" for line in lines))
    if args.train:
        with atomic_directory(folder / "model") as place:
            trainer.accelerator.unwrap_model(trainer.model).save_pretrained(place)
            trainer.processing_class.save_pretrained(place)
            write_text(place / "README.md", translation_card(results))
    write_json(folder / RESULTS_FILE, results)


def publish(args: TranslationArguments) -> None:
    """Push the run where `push_to_hub` says; one that is pushed already stays as it is."""
    if args.publish_to and args.process_index == 0:
        push(args.output_dir, args.publish_to, private=args.hub_private_repo)
