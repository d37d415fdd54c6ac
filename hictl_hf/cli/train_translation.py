"""`hictl train-translation`: train a translation model on an encoder in the paper's two steps and score it
(`translation.run.run_translation`).

hictl train-translation --model_name_or_path runs/hictl/checkpoint --train_file 'corpus.{en,de}' --source_lang de \
    --target_lang en
hictl train-translation --model_name_or_path runs/de-en/model --test_file 'test.{nl,en}' --source_lang nl \
    --target_lang en
"""

import shlex
import sys
from collections.abc import Sequence
from typing import Any

from ..parsing import CommandParser, names_of, parse_flags_or_recipe
from ..translation.arguments import TranslationArguments, TranslationDataArguments, TranslationModelArguments
from ..translation.run import run_translation
from ..translation.scores import score_text
from .logs import level_of, log_to_terminal

GROUPS = {
    "output": ("output_dir", "hub_strategy"),
    "model": names_of(TranslationModelArguments),
    "data": names_of(TranslationDataArguments),
    "training": (
        "do_train", "do_eval", "do_predict", "learning_rate", "lr_scheduler_type", "warmup_steps", "adam_beta2",
        "weight_decay", "label_smoothing_factor", "eval_strategy", "load_best_model_at_end", "early_stopping_patience",
        "early_stopping_threshold", "save_strategy", "save_steps", "save_total_limit", "average_checkpoints",
        "logging_steps",
        "dataloader_num_workers", "dataloader_pin_memory", "remove_unused_columns",
    ),
    "search and scores": (
        "num_beams", "predict_with_generate", "length_penalty", "max_length_a", "max_length_b", "metric", "multi_bleu",
    ),
}  # fmt: skip


def make_parser() -> CommandParser:
    description = "Train a translation model on an encoder and score it."
    return CommandParser(TranslationArguments, description, GROUPS, __doc__, recipe=True)


def main(argv: Sequence[str] | None = None, program: str = "hictl train-translation") -> dict[str, Any]:
    """Run the command and return the contents of `results.json`; `argv` defaults to the command line."""
    argv = sys.argv[1:] if argv is None else list(argv)
    args: TranslationArguments = parse_flags_or_recipe(argv, TranslationArguments, make_parser())
    log_to_terminal(level_of(args), args.get_process_log_level())
    results = run_translation(args, command=shlex.join([*program.split(), *argv]))
    if args.should_log:
        for direction, scores in results.test.items():
            for name, score in scores.items():
                print(f"{direction}  {name} {score_text(name, score.value)}  {score.signature}")
        print(f"\nreport: {args.output_dir}/report.html")
    return results.as_dict()
