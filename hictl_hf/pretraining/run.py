"""A pre-training run: `pretrain` is the recipe, from the sources to the report."""

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import PreTrainedTokenizerBase, set_seed

from ..data.languages import main_part
from ..data.sampling import TemperatureSampler
from ..data.tokenization import save_tokenizer
from ..embedding.sentence_transformers_files import save_sentence_encoder, write_sentence_transformers_files
from ..errors import BadInput
from ..files import atomic_directory, only_writer, write_text
from ..hub.publishing import push, reserve
from ..models.encoder_export import has_pooler
from ..models.objective import HictlObjective
from ..reports.results import library_versions
from ..training.arguments import plain_settings, refuse_unsupported_devices
from ..training.callbacks import TrainingTime
from ..training.checkpoints import check_checkpoint, last_complete_checkpoint, newest_first, resume_choice
from ..training.sharding import check_can_shard, gather_model
from ..training.trainer import TERMINATED
from .arguments import PretrainingArguments
from .card import encoder_card, model_card
from .checks import check_before_reading
from .corpora import Corpora, read_corpora
from .interpolation import check_can_choose, copy_of_weights, interpolate
from .kernels import describe_attention
from .report import report
from .results import CorpusCounts, Evaluation, PretrainingResults, StartInfo
from .scoring import Scores, guard_results, refuse_diverged, retrieval_results, score
from .setup import load_or_make_model, load_or_train_tokenizer, make_trainer
from .start import apply_defaults, recognise
from .trainer import HictlTrainer

logger = logging.getLogger(__name__)

MODEL, ENCODER = "checkpoint", "encoder"  # folders that a run writes at its end


def pretrain(args: PretrainingArguments, command: str = "") -> PretrainingResults:
    """Train, evaluate, save and report; the results are also in `results.json` of the output folder.

    Args:
        command: how the run was started, for the records.
    """
    if args.dry_run:
        raise BadInput("dry_run is true, but pretrain trains; leave it out, or call hictl_hf.pretraining.plan")
    refuse_unsupported_devices(args, HictlTrainer.how_to_save_memory)
    if args.shard_parameters:
        check_can_shard(args)
    with only_writer(args.output_dir) if args.process_index == 0 else nullcontext():
        return train_and_report(args, command)


def train_and_report(args: PretrainingArguments, command: str) -> PretrainingResults:
    """The steps of `pretrain`, in the output folder that no other run writes into."""
    refuse_to_overwrite(args)
    if args.publish_to and args.process_index == 0:
        args.publish_to = reserve(args.publish_to, args.hub_private_repo)
    set_seed(args.seed)

    start = recognise(args.checkpoint)
    apply_defaults(args, start)
    given = load_or_train_tokenizer(args, None) if args.tokenizer_source or args.streaming else None
    check_before_reading(args, start, given)
    corpora = read_corpora(args)
    check_can_choose(args.keep_start, corpora)
    tokenizer = load_or_train_tokenizer(args, corpora.train) if given is None else given
    model, new_weights = load_or_make_model(args, tokenizer, start)
    weights = copy_of_weights(model, new_weights) if args.keep_start else {}
    training_time = TrainingTime()
    trainer = make_trainer(args, model, tokenizer, corpora, training_time, weights)
    if args.should_log and (kernel := describe_attention(model, args)):
        logger.info(kernel)

    before = trainer.run_inside(lambda: score(trainer, corpora))
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    if trainer.terminated:
        raise SystemExit(TERMINATED)
    refuse_diverged(trainer)
    interpolation, chosen = None, None
    if args.keep_start:
        start_scores = before.chosen if before else None
        interpolation, chosen = interpolate(trainer, weights, args.keep_start, corpora, start_scores)
    after = trainer.run_inside(lambda: score(trainer, corpora, chosen))

    results = collect_results(args, trainer, corpora, before, after)
    results.interpolation = interpolation
    results.start = StartInfo(kind=start.kind, pooling=start.pooling, prompt=args.prompt or None)
    results.train_seconds, results.command = round(training_time.seconds, 3), command
    results.train_cpu_seconds = round(training_time.cpu_seconds, 3)
    complete = gather_model(trainer.model, keep=trainer.is_world_process_zero())
    if trainer.is_world_process_zero():
        save(args.output_dir, complete, tokenizer, results)
        report(args.output_dir, results, before, after)
    trainer.accelerator.wait_for_everyone()  # or a launcher might end the main process because the others are done
    if args.publish_to and trainer.is_world_process_zero():  # may last longer than others wait
        push(args.output_dir, args.publish_to)
    return results


def refuse_to_overwrite(args: PretrainingArguments) -> None:
    """Raise `BadInput` for a folder with another run, and find the checkpoint that "true" stands for.

    `resume_from_checkpoint` "true" becomes the last complete checkpoint, or `None` if there is none; "false" is `None`.
    """
    choice = resume_choice(args.resume_from_checkpoint)
    if choice is False:
        args.resume_from_checkpoint = None
    if choice is True:
        found = last_complete_checkpoint(args.output_dir) if args.process_index == 0 else None
        [args.resume_from_checkpoint] = broadcast_object_list([found])  # all resume from the same one
        if args.resume_from_checkpoint is None and args.should_log:
            logger.warning("%s: no complete checkpoint to resume from, starting at the beginning", args.output_dir)
    elif args.resume_from_checkpoint:
        check_checkpoint(args.resume_from_checkpoint, contents=args.process_index == 0)
        refuse_another_run(args)
    elif newest_first(args.output_dir):
        raise BadInput(
            f"{args.output_dir}: holds the checkpoints of another run; continue it with --resume_from_checkpoint true, "
            "or choose another --output_dir"
        )
    if not args.resume_from_checkpoint and (Path(args.output_dir) / "results.json").exists():
        raise BadInput(f"{args.output_dir}: holds a run that has ended; choose another --output_dir, or remove it")
    there = [each for each in (Path(args.output_dir, name) for name in (MODEL, ENCODER)) if any(each.glob("*"))]
    if there and not newest_first(args.output_dir):  # else they are of the run that goes on
        raise BadInput(f"{there[0]}: is there, and the run would replace it; choose another --output_dir, or move it")


def refuse_another_run(args: PretrainingArguments) -> None:
    """Raise `BadInput` if the output folder has a run, and the checkpoint to resume from is elsewhere."""
    checkpoint, output_dir = Path(str(args.resume_from_checkpoint)), Path(args.output_dir)
    if checkpoint.resolve().parent == output_dir.resolve():
        return
    if newest_first(output_dir) or (output_dir / "results.json").exists():
        raise BadInput(
            f"{output_dir}: holds another run than that of {checkpoint}; continue it with --resume_from_checkpoint "
            "true, or choose another --output_dir"
        )


def collect_results(
    args: PretrainingArguments,
    trainer: HictlTrainer,
    corpora: Corpora,
    before: Scores | None,
    after: Scores | None,
) -> PretrainingResults:
    """The results of the run, with its settings and versions."""
    log, corpus_report = trainer.state.log_history, corpora.report
    results = PretrainingResults(
        retrieval=retrieval_results(before, after) if before and after else None,
        guard=guard_results(before, after) if before and after else None,
        before_label="starting checkpoint" if args.model_name_or_path else "untrained model",
        history=[entry for entry in log if "loss" in entry],
        evaluations=[evaluation_of(entry) for entry in log if "eval_retrieval" in entry],
        corpus=CorpusCounts(**corpus_report.as_dict()),
        settings={"config": trainer.model.config.to_dict(), "training": plain_settings(args)},
        versions=library_versions(),
        seed=args.seed,
    )
    sampler = trainer.batches
    if isinstance(sampler, TemperatureSampler):
        groups = zip(sampler.groups.items(), sampler.draws)
        sizes = {languages: len(rows) for (languages, rows), draws in groups if draws}  # others are not trained on
        results.texts = sum(size for (_, y_lang), size in sizes.items() if y_lang is None)
        results.pairs = sum(sizes.values()) - results.texts
        results.examples = sampler.draws_in(trainer.state.global_step)
        results.language_codes = sorted({code for languages in sizes for code in languages if code})
        results.languages = len({main_part(code) for code in results.language_codes})
        results.data_hash = corpus_report.hash
    elif trainer.stream is not None:
        batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        results.examples = trainer.state.global_step * batch
        if languages := trainer.stream.languages:
            results.language_codes = sorted({code for each in languages for code in each if code})
            results.languages = len({main_part(code) for code in results.language_codes})
    if results.retrieval and (pooling := results.retrieval.protocol.hictl):
        results.settings["config"].update(embedding_pooling=pooling.mode, embedding_layer=pooling.layer)
    return results


def evaluation_of(entry: Mapping[str, Any]) -> Evaluation:
    """One evaluation of the trainer's log."""
    prefix = "eval_retrieval_"
    languages = {name.removeprefix(prefix): value for name, value in entry.items() if name.startswith(prefix)}
    return Evaluation(step=entry["step"], retrieval=entry["eval_retrieval"], per_language=languages)


def save(
    output_dir: str | Path, model: HictlObjective, tokenizer: PreTrainedTokenizerBase, results: PretrainingResults
) -> None:
    """Write the checkpoint and the plain encoder, each with its card and files of sentence-transformers, and the
    results; each appears complete or not at all."""
    if pooling := results.protocol and results.protocol.hictl:
        model.config.embedding_pooling, model.config.embedding_layer = pooling
    with atomic_directory(Path(output_dir) / MODEL) as folder:
        model.save_pretrained(folder)
        save_tokenizer(tokenizer, folder)
        write_sentence_transformers_files(folder, model.config, getattr(model, "projection", None))
        write_text(folder / "README.md", model_card(results))
    with atomic_directory(Path(output_dir) / ENCODER) as folder:
        save_sentence_encoder(model, tokenizer, folder)
        write_text(folder / "README.md", encoder_card(results, model.config, has_pooler(model)))
    results.write(output_dir)
