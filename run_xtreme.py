#!/usr/bin/env python
"""Fine-tune and score an encoder on XTREME.

    python run_xtreme.py --model_name_or_path xlm-roberta-base --data xtreme/download --tasks all \
        --output_dir runs/xtreme
    python run_xtreme.py --model_name_or_path runs/hictl/checkpoint --tasks panx --languages de sw \
        --learning_rate 1e-5 2e-5
    python run_xtreme.py --score runs/xtreme/predictions --labels xtreme/labels

`--help` lists all settings. In the output folder: `predictions/` in the layout of a submission, `results.json`,
`report.md`, `report.html` and tables in LaTeX. The same command continues a run that was interrupted.
Several processes (`accelerate launch run_xtreme.py ...`) share training and predictions.
"""

from collections.abc import Sequence
from typing import Any

from hictl_hf.cli.main import main_of
from hictl_hf.errors import run
from hictl_hf.processes import join


def main(argv: Sequence[str] | None = None, **settings: str) -> Any:
    """Run the command, which is imported after `join`."""
    return main_of("xtreme")(argv, **settings)


if __name__ == "__main__":
    join()
    run(main, program="python run_xtreme.py")
