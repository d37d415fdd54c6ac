#!/usr/bin/env python
"""Fine-tune and score an encoder on XTREME.

    python run_xtreme.py --encoder xlm-roberta-base --data xtreme/download --tasks all --output_dir runs/xtreme
    python run_xtreme.py --encoder runs/hictl/checkpoint --tasks panx --languages de sw --learning_rate 1e-5 2e-5
    python run_xtreme.py --score runs/xtreme/predictions --labels xtreme/labels

`--help` lists all settings. In the output folder: `predictions/` in the layout of a submission, `results.json`,
`report.md`, `report.html` and tables in LaTeX. The same command continues a run that was interrupted.
"""

import json
import logging
import shlex
import sys
from typing import Any

from hictl_hf.readers import BadInput
from hictl_hf.tables import plain
from hictl_hf.xtreme import run_xtreme
from hictl_hf.xtreme_arguments import parse_xtreme_arguments
from hictl_hf.xtreme_report import main_table
from hictl_hf.xtreme_scores import score_submission


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run with these arguments, those of the command line by default; returns what is in `results.json`."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse_xtreme_arguments(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hictl_hf").setLevel(logging.INFO)
    if args.score:
        scores = score_submission(args.score, str(args.labels))
        print(json.dumps(scores, indent=2))
        return scores
    results = run_xtreme(args, command=shlex.join(["python", "run_xtreme.py", *argv]))
    print(plain(main_table({args.output_dir: results})))
    print(f"\nreport: {args.output_dir}/report.html")
    return results


if __name__ == "__main__":
    try:
        main()
    except BadInput as error:
        sys.exit(f"error: {error}")
