"""`hictl xtreme`: fine-tune and score an encoder on XTREME (`xtreme.run.run_xtreme`), or score prediction files.

hictl xtreme --model_name_or_path xlm-roberta-base --data xtreme/download --tasks all --output_dir runs/xtreme
hictl xtreme --score runs/xtreme/predictions --labels xtreme/labels
"""

import json
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from ..parsing import CommandParser, names_of, parse_flags_or_recipe
from ..processes import current
from ..training.model_and_data import ModelArguments
from ..xtreme.arguments import XtremeArguments
from ..xtreme.run import run_xtreme
from ..xtreme.scores import score_submission
from ..xtreme.tables import main_table
from .logs import log_to_terminal

GROUPS = {
    "model": names_of(ModelArguments),
    "data and output": ("data", "labels", "output_dir", "score"),
    "tasks": ("tasks", "languages", "setting", "train_split", "select_split", "score_split", "compat"),
    "fine-tuning": (
        "do_train", "do_eval", "do_predict", "size", "learning_rate", "per_device_train_batch_size", "seed",
        "num_train_epochs", "select_on", "similar_lengths",
    ),
    "retrieval": ("layer", "pooling", "sweep_layers"),
    "computation": ("bf16", "micro_batches", "per_device_eval_batch_size"),
}  # fmt: skip


def make_parser() -> CommandParser:
    return CommandParser(XtremeArguments, "Fine-tune and score an encoder on XTREME.", GROUPS, __doc__, recipe=True)


def main(argv: Sequence[str] | None = None, program: str = "hictl xtreme") -> dict[str, Any]:
    """Run the command and return the contents of `results.json`; `argv` defaults to the command line."""
    argv = sys.argv[1:] if argv is None else list(argv)
    args: XtremeArguments = parse_flags_or_recipe(argv, XtremeArguments, make_parser())
    log_to_terminal()
    processes = current()
    if args.score:
        scores = score_submission(args.score, str(args.labels), args.chosen_tasks)
        print(json.dumps(scores, indent=2))
        return scores
    results = run_xtreme(args, command=shlex.join([*program.split(), *argv]), processes=processes)
    processes.wait()  # or a launcher might end the main process because the others are done
    if not processes.is_main:
        return {}
    print(main_table({args.output_dir: results}).text())
    print(f"\nreport: {args.output_dir}/report.html")
    return results.as_dict()
