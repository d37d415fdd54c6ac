#!/usr/bin/env python
"""Pre-train HiCTL, from XLM-R or from scratch.

    python run_pretraining.py recipes/demo.json
    python run_pretraining.py --encoder xlm-roberta-base --train_data 'corpus.{en,de}' de:news.txt --output_dir runs/de
    python run_pretraining.py recipes/base.json --train_data my-pairs.jsonl --resume_from_checkpoint true

A recipe is a file of settings; flags after it change them. `--help` lists all. In the output folder: `checkpoint/`,
`encoder/` (plain XLM-R), `results.json` and `report.html`.
"""

import logging
import shlex
import sys
from typing import Any

from hictl_hf.arguments import parse_arguments
from hictl_hf.pretraining import pretrain
from hictl_hf.readers import BadInput
from hictl_hf.reporting import retrieval_table


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run with these arguments, those of the command line by default; returns what is in `results.json`."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse_arguments(argv)
    logging.basicConfig(level=args.get_process_log_level(), format="%(message)s")
    logging.getLogger("hictl_hf").setLevel(logging.INFO if args.should_log else logging.WARNING)
    results = pretrain(args, command=shlex.join(["python", "run_pretraining.py", *argv]))
    if args.should_log:
        print(retrieval_table(results))
        print(f"\nreport: {args.output_dir}/report.html   checkpoint: {args.output_dir}/checkpoint")
    return results


if __name__ == "__main__":
    try:
        main()
    except BadInput as error:
        sys.exit(f"error: {str(error).rpartition('BadInput: ')[2]}")  # without the traceback of a worker
