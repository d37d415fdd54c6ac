#!/usr/bin/env python
"""Train a translation model on an encoder, in the paper's two steps, and score what it translates.

    python run_translation.py --encoder runs/hictl/checkpoint --train 'corpus.{en,de,fr}' --source_lang de fr \
        --target_lang en --validation 'dev.{en,de,fr}' --output_dir runs/step1
    python run_translation.py --step 2 --model runs/step1/model --train 'corpus.{de,en}' --source_lang de \
        --target_lang en --validation 'dev.{de,en}' --test 'test.{de,en}' --output_dir runs/de-en
    python run_translation.py --model runs/de-en/model --test 'test.{nl,en}' --source_lang nl --target_lang en \
        --output_dir runs/nl-en

Files side by side, such as corpus.{en,de,fr}, are read as pairs of the first language with each other one. A recipe
is a file of settings; flags after it change them. `--help` lists all. In the output folder: `model/`,
`generated_predictions.txt`, `predictions.jsonl` and `results.json`. The same command continues a run that was
interrupted.
"""

import logging
import shlex
import sys
from typing import Any

from hictl_hf.readers import BadInput
from hictl_hf.translation import run_translation
from hictl_hf.translation_arguments import parse_translation_arguments


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run with these arguments, those of the command line by default; returns what is in `results.json`."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse_translation_arguments(argv)
    logging.basicConfig(level=args.get_process_log_level(), format="%(message)s")
    logging.getLogger("hictl_hf").setLevel(logging.INFO if args.should_log else logging.WARNING)
    results = run_translation(args, command=shlex.join(["python", "run_translation.py", *argv]))
    if args.should_log:
        for direction, scores in results["test"].items():
            for name, score in scores.items():
                print(f"{direction}  {name} {score['value']:.2f}  {score['signature']}")
        print(f"\nreport: {args.output_dir}/report.html")
    return results


if __name__ == "__main__":
    try:
        main()
    except BadInput as error:
        sys.exit(f"error: {str(error).rpartition('BadInput: ')[2]}")  # without the traceback of a worker
