#!/usr/bin/env python
"""Train a translation model on an encoder, in the paper's two steps, and score what it translates.

    python run_translation.py --model_name_or_path runs/hictl/checkpoint --train_file 'corpus.{en,de,fr}' \
        --source_lang de fr --target_lang en --validation_file 'dev.{en,de,fr}' --output_dir runs/step1
    python run_translation.py --model_name_or_path runs/step1/model --train_file 'corpus.{de,en}' --source_lang de \
        --target_lang en --validation_file 'dev.{de,en}' --test_file 'test.{de,en}' --output_dir runs/de-en
    python run_translation.py --model_name_or_path runs/de-en/model --test_file 'test.{nl,en}' --source_lang nl \
        --target_lang en --output_dir runs/nl-en

Files side by side, such as corpus.{en,de,fr}, are read as pairs of the first language with each other one. A recipe
is a file of settings; flags after it change them. `--help` lists all. In the output folder: `model/`,
`generated_predictions.txt`, `predictions.jsonl` and `results.json`. The same command continues a run that was
interrupted.
"""

from hictl_hf.cli.train_translation import main
from hictl_hf.errors import run

if __name__ == "__main__":
    run(main, program="python run_translation.py")
