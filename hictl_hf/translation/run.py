"""A translation run: read the data, train, choose the best state, translate the test set, score, save and report."""

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from transformers import set_seed

from ..data.tokenization import save_tokenizer
from ..files import atomic_directory, only_writer, write_text
from ..hub.loading import check_vocabulary, load_tokenizer, warn_of_other_ids
from ..hub.publishing import push, reserve
from ..reports.results import library_versions
from ..training.arguments import read_dictionary, refuse_unsupported_devices
from ..training.checkpoints import check_checkpoint, resume_choice
from .arguments import TranslationArguments
from .card import translation_card
from .corpus import Direction, Pair
from .decoding import Translation
from .report import write_translation_report
from .results import ChosenState, PairCounts, ReportedScore, TargetVocabulary, TranslationResults
from .resuming import is_finished, record_settings, settings_of
from .scores import Score
from .setup import Data, check_new_decoder, config_of_run, load_or_make_model, make_trainer, read_data, refuse_weights
from .trainer import TranslationTrainer, check_comet, check_metrics, reported_metrics, score_directions, train

logger = logging.getLogger(__name__)


def run_translation(args: TranslationArguments, command: str = "") -> TranslationResults:
    """Train, choose the best state, translate, score and save; return what is in `results.json`.

    An interrupted run goes on from its last checkpoint; a finished one is only read, and published if asked for.

    Raises:
        BadInput: data, settings or the model cannot be used; before anything is trained.
    """
    with only_writer(args.output_dir) if args.process_index == 0 else nullcontext():
        return go_on(args, command)


def go_on(args: TranslationArguments, command: str) -> TranslationResults:
    """The steps of `run_translation`, in the output folder that no other run writes into."""
    if is_finished(args):
        return finish(args)
    refuse_unsupported_devices(args, TranslationTrainer.how_to_save_memory)
    if args.publish_to and args.process_index == 0:
        args.publish_to = reserve(args.publish_to, args.hub_private_repo)
    set_seed(args.seed)
    if isinstance(named := resume_choice(args.resume_from_checkpoint), str):
        check_checkpoint(named, contents=args.process_index == 0)
    config, tokenizer = config_of_run(args), load_tokenizer(str(args.tokenizer_source))
    check_vocabulary(str(args.model_name_or_path), tokenizer, config.vocab_size)
    warn_of_other_ids(None if args.random_encoder else args.checkpoint, str(args.tokenizer_source), tokenizer)
    check_new_decoder(args, config)
    refuse_weights(args, config)
    if args.test_file or args.eval_strategy != "no":
        check_comet(reported_metrics(args.metric))
    data = read_data(args, config, tokenizer)
    scored = [*data.test, *(data.validation if args.eval_strategy != "no" else ())]
    check_metrics(scored, args.metric, read_dictionary("multi_bleu", args.multi_bleu))

    model = load_or_make_model(args, config, tokenizer, data)
    trainer = make_trainer(args, model, tokenizer, data)
    if trainer.is_world_process_zero():
        record_settings(args)
    chosen = train(args, trainer) if args.train_file else ChosenState(state=f"that of {args.model_name_or_path}")

    translations = trainer.translate(data.test, progress=True)
    scores = score_directions(data.test, translations, trainer.metrics, trainer.multi_bleu, data.about)
    results = collect_results(args, trainer, data, chosen, scores, command)
    if trainer.is_world_process_zero():
        save(args, trainer, data.test, translations, results)
        write_translation_report(args.output_dir, trainer.accelerator.unwrap_model(trainer.model), tokenizer)
    trainer.accelerator.wait_for_everyone()
    publish(args)  # the others do not wait for an upload, which may last longer than `ddp_timeout`
    return results


def collect_results(
    args: TranslationArguments,
    trainer: TranslationTrainer,
    data: Data,
    chosen: ChosenState,
    scores: Mapping[Direction, Mapping[str, Score]],
    command: str,
) -> TranslationResults:
    """The results of a run that has trained, translated and scored."""
    log, config = trainer.state.log_history, trainer.model.config
    directions = {
        name: dict(Counter(str(pair.direction) for pair in pairs))
        for name, pairs in (("validation", data.validation), ("test", data.test))
    }
    return TranslationResults(
        step=args.step if args.train_file else None,
        encoder=None if args.is_continued else args.model_name_or_path,
        model=args.model_name_or_path if args.is_continued else None, random_encoder=args.random_encoder,
        rows=PairCounts(train=dict(data.report.kept), **directions),
        skipped={reason: number for reason, number in data.report.skipped.items() if number},
        messages=data.report.messages,
        data_hash=data.report.hash,
        cut_sources=data.cut,
        empty_lines={
            "source": sum(not pair.source.strip() for pair in data.test),
            "reference": sum(not pair.target.strip() for pair in data.test),
        },
        target_vocabulary=TargetVocabulary(
            size=len(trainer.model.target_token_ids), unknown_tokens=data.unknown,
            tokens={language: int(counts.sum()) for language, counts in data.counts.items()},
        ),
        chosen=chosen,
        test={
            str(direction): {
                name: ReportedScore(value=score.value, signature=score.signature) for name, score in of_one.items()
            }
            for direction, of_one in scores.items()
        },
        decoding=args.beam,
        history=[entry for entry in log if "loss" in entry],
        evaluations=[entry for entry in log if f"eval_{args.metric}" in entry],
        settings={"config": config.to_dict(), "training": settings_of(args)},
        versions=library_versions(),
        seed=args.seed,
        command=command,
    )  # fmt: skip


def finish(args: TranslationArguments) -> TranslationResults:
    """Read the results of a finished run; write its report if that was interrupted, and publish it if asked for."""
    logger.info("%s: this run is finished; its files were not read again, there is nothing to do", args.output_dir)
    results = TranslationResults.read(args.output_dir)
    if args.should_save and not (Path(args.output_dir) / "report.html").exists():
        write_translation_report(args.output_dir)
    publish(args)
    return results


def save(
    args: TranslationArguments,
    trainer: TranslationTrainer,
    test: Sequence[Pair],
    translations: Sequence[Translation],
    results: TranslationResults,
) -> None:
    """Write the translations in the order of the test set, the model, and last the results, which say it is finished.

    Each file or folder is written completely or not at all.
    """
    folder = Path(args.output_dir)
    if test:
        write_text(folder / "generated_predictions.txt", "".join(f"{each.text}\n" for each in translations))
        rows = [
            pair._asdict() | {"direction": str(pair.direction), "translation": each.text, "score": each.score}
            for pair, each in zip(test, translations, strict=True)
        ]
        lines = (json.dumps(row, ensure_ascii=False) for row in rows)
        write_text(folder / "predictions.jsonl", "".join(f"{line}\n" for line in lines))
    if args.train_file:
        with atomic_directory(folder / "model") as place:
            trainer.accelerator.unwrap_model(trainer.model).save_pretrained(place)
            save_tokenizer(trainer.processing_class, place)
            write_text(place / "README.md", translation_card(results))
    results.write(folder)


def publish(args: TranslationArguments) -> None:
    """Push the run to the repository of `push_to_hub`; do nothing if it is there."""
    if args.publish_to and args.process_index == 0:
        push(args.output_dir, args.publish_to, private=args.hub_private_repo)
