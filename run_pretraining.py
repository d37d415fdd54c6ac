#!/usr/bin/env python
"""Pre-train HiCTL, from XLM-R or from scratch.

    python run_pretraining.py recipes/demo.json
    python run_pretraining.py --model_name_or_path xlm-roberta-base --train_file 'corpus.{en,de}' de:news.txt \
        --output_dir runs/de
    python run_pretraining.py recipes/base.json --train_file my-pairs.jsonl --resume_from_checkpoint true

A recipe is a file of settings; flags after it change them. `--help` lists all. In the output folder: `checkpoint/`,
`encoder/` (the plain encoder), `results.json` and `report.html`.
"""

from hictl_hf.cli.pretrain import main
from hictl_hf.errors import run

if __name__ == "__main__":
    run(main, program="python run_pretraining.py")
