"""The best learning rate of a small run, by Optuna (pip install optuna): python examples/search_learning_rate.py

Every trial begins with the encoder of the demo and trains on pairs.jsonl for a few steps. The best one finds the most
translations among held-out pairs.
"""

from transformers import set_seed
from transformers.trainer_utils import BestRun

from hictl_hf.pretraining import PretrainingArguments
from hictl_hf.pretraining.corpora import read_corpora
from hictl_hf.pretraining.setup import load_or_make_model, load_or_train_tokenizer, make_trainer
from hictl_hf.pretraining.start import apply_defaults, recognise
from hictl_hf.training.callbacks import TrainingTime


def main(trials: int = 5, steps: int = 20) -> BestRun:
    """The best trial: its accuracy and its learning rate."""
    args = PretrainingArguments(
        model_name_or_path="runs/demo/encoder", train_file=["pairs.jsonl"], held_out_sentences=8, max_seq_length=64,
        per_device_train_batch_size=16, max_steps=steps, eval_strategy="steps", eval_steps=steps, save_strategy="no",
        output_dir="runs/search",
    )  # fmt: skip
    set_seed(args.seed)
    start = recognise(args.checkpoint)
    apply_defaults(args, start)
    corpora = read_corpora(args)
    tokenizer = load_or_train_tokenizer(args, corpora.train)
    model, _ = load_or_make_model(args, tokenizer, start)
    trainer = make_trainer(args, model, tokenizer, corpora, TrainingTime())
    trainer.model_init = lambda: load_or_make_model(args, tokenizer, start)[0]  # of each trial
    best: BestRun = trainer.hyperparameter_search(
        lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-5, 1e-3, log=True)},
        compute_objective=lambda metrics: metrics["eval_retrieval"],
        direction="maximize", n_trials=trials, backend="optuna",
    )  # fmt: skip
    return best


if __name__ == "__main__":
    print(main())
