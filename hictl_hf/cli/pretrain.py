"""`hictl pretrain`: pre-train an encoder, from XLM-R or from scratch (`pretraining.run.pretrain`).

hictl pretrain recipes/adapt.json --prompt "query: " --train_file pairs.tsv --output_dir runs/adapted
hictl pretrain recipes/ccnet100-mt/large.json --dry_run
hictl pretrain --model_name_or_path xlm-roberta-base --train_file 'corpus.{en,de}' de:news.txt --output_dir runs/de
"""

import shlex
import sys
from collections.abc import Sequence
from typing import Any

from ..parsing import CommandParser, names_of, parse_flags_or_recipe
from ..pretraining.arguments import PretrainingArguments, PretrainingDataArguments, PretrainingModelArguments
from ..pretraining.dry_run import RunPlan, plan
from ..pretraining.results import retrieval_table
from ..pretraining.run import pretrain
from .logs import level_of, log_to_terminal

GROUPS = {
    "output": ("output_dir", "dry_run", "hub_strategy"),
    "model": names_of(PretrainingModelArguments),
    "data": names_of(PretrainingDataArguments),
    "objectives": (
        "mlm_probability", "tlm_probability", "lm_head_warmup_steps", "dropout", "reordering", "join_reordered",
        "pair_separators", "gather_sentences", "gradient_cache", "group_by_similarity",
    ),
    "training": (
        "do_train", "do_eval", "do_predict", "per_device_train_batch_size", "auto_find_batch_size",
        "learning_rate", "warmup_steps", "adam_beta2", "adam_epsilon", "weight_decay", "logging_steps",
        "save_total_limit", "shard_parameters",
        "dataloader_num_workers", "dataloader_pin_memory", "remove_unused_columns",
    ),
    "evaluation": (
        "evaluate_layers", "load_best_model_at_end", "metric_for_best_model", "early_stopping_patience",
        "early_stopping_threshold",
    ),
}  # fmt: skip


def make_parser() -> CommandParser:
    return CommandParser(
        PretrainingArguments, "Pre-train an encoder, from XLM-R or from scratch.", GROUPS, __doc__, recipe=True
    )


def main(argv: Sequence[str] | None = None, program: str = "hictl pretrain") -> dict[str, Any]:
    """Run the command and return the contents of `results.json`; `argv` defaults to the command line.

    With `--dry_run true` nothing is trained and the dictionary is empty; `SystemExit` if a name does not resolve.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    args: PretrainingArguments = parse_flags_or_recipe(argv, PretrainingArguments, make_parser())
    log_to_terminal(level_of(args), args.get_process_log_level())
    if args.dry_run:
        return show(plan(args)) if args.should_log else {}
    results = pretrain(args, command=shlex.join([*program.split(), *argv]))
    if args.should_log:
        print(retrieval_table(results))
        print(f"\nreport: {args.output_dir}/report.html   checkpoint: {args.output_dir}/checkpoint")
        print(
            f"next: hictl embed --model {shlex.quote(f'{args.output_dir}/encoder')} --input TEXT --output VECTORS.npy"
        )
        print(f"      hictl publish {shlex.quote(args.output_dir)} YOUR-NAME/NAME")
    return results.as_dict()


def show(planned: RunPlan) -> dict[str, Any]:
    """Print what a run would do; exit with status 1 after the names that do not resolve."""
    for table in planned.tables():
        print(table.text())
    for each in planned.unresolved:
        problem = each.problem.removeprefix(f"{each.name}: ")
        print(f"does not resolve: {each.role} {each.name}: {problem}")
    if planned.unresolved:
        raise SystemExit(1)
    print("every name resolves; nothing was trained")
    return {}
