"""A training of the adaptation study, or its first steps, in a separate process: how many CPU seconds they take.

    python -m studies.adaptation_training JOB.json

The kind of the job is "ours", the first steps of a run of hictl_hf, or "st", a training by sentence-transformers'
own trainer with its usual settings. Both write training.json; a job of sentence-transformers with "save" also encoder/.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import SequentialSampler
from transformers import TrainerCallback, set_seed

from hictl_hf.files import write_json
from hictl_hf.parsing import parse_flags_or_recipe
from hictl_hf.pretraining.arguments import PretrainingArguments
from hictl_hf.pretraining.corpora import read_corpora
from hictl_hf.pretraining.setup import load_or_make_model, load_or_train_tokenizer, make_trainer, set_dropout
from hictl_hf.pretraining.similar_pairs import group_by_similarity, groups_of_similar
from hictl_hf.pretraining.start import apply_defaults, recognise
from hictl_hf.training.callbacks import TrainingTime

from .adaptation_data import Pair, drawn_pairs, in_order, without_repetitions
from .adaptation_systems import MINED, SIMILAR

DROPPED = 3  # first steps, which are slower
SPARE = {"": 1.1, SIMILAR: 1.1, MINED: 2.4}  # drawn pairs per pair needed, as some are left out, of mined ones half
WARMUP = 0.1  # of the steps, and the next one: as in sentence-transformers' examples
SCHEDULE = "linear"


class StepTimes(TrainerCallback):
    """The CPU time of this process at the beginning of training and after each step."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.times = [process_time()]

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.times.append(process_time())

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seconds = process_time() - self.times[0]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the job of a file."""
    (path,) = sys.argv[1:] if argv is None else argv
    job = json.loads(Path(path).read_text("utf-8"))
    torch.set_num_threads(1)
    write_json(Path(job["output_dir"]) / "training.json", {"ours": first_steps, "st": train}[job["kind"]](job))


def seconds_per_step(times: Sequence[float]) -> float:
    """Return the mean duration of the steps after the first ones, from the times before and after each step.

    >>> seconds_per_step([0, 9, 18, 27, 29, 31])
    2.0
    """
    if len(times) < DROPPED + 2:
        raise ValueError(f"{len(times) - 1} steps; allowed are {DROPPED + 1} or more")
    return (times[-1] - times[DROPPED]) / (len(times) - 1 - DROPPED)


def steps_in(minutes: float, seconds: float) -> int:
    """Return how many steps of so many seconds fit into the minutes, 1 or more.

    >>> steps_in(25, 3.5)
    429
    """
    return max(round(60 * minutes / seconds), 1)


def record(times: StepTimes, before: float = 0.0) -> dict[str, Any]:
    """Return steps and CPU seconds of a training; `before` are those that were spent on all its steps before it."""
    steps = len(times.times) - 1
    measured = {"steps": steps, "train_cpu_seconds": round(times.seconds + before, 3)}
    if steps > DROPPED:
        measured["seconds_per_step"] = round(seconds_per_step(times.times) + before / steps, 4)
    return measured


# --- hictl_hf ---------------------------------------------------------------------------------------------------------


def first_steps(job: Mapping[str, Any]) -> dict[str, Any]:
    """Train `job["steps"]` steps of the recipe `job["run"]`; the model is not kept."""
    # A language-model head that is trained alone is cheaper, and only at first.
    flags = ["--max_steps", str(job["steps"]), "--output_dir", job["output_dir"], "--lm_head_warmup_steps", "0"]
    args: PretrainingArguments = parse_flags_or_recipe([job["run"], *flags], PretrainingArguments)
    set_seed(args.seed)
    start = recognise(args.checkpoint)
    apply_defaults(args, start)
    corpora = read_corpora(args)
    tokenizer = load_or_train_tokenizer(args, corpora.train)
    model, _ = load_or_make_model(args, tokenizer, start)
    by, args.group_by_similarity = args.group_by_similarity, "no"
    trainer = make_trainer(args, model, tokenizer, corpora, TrainingTime())
    began = process_time()
    if by != "no":  # embeds the sentences of these steps
        group_by_similarity(trainer, by)
    embedding = process_time() - began
    trainer.add_callback(times := StepTimes())
    trainer.train()
    return record(times, embedding)


# --- sentence-transformers --------------------------------------------------------------------------------------------


def train(job: Mapping[str, Any]) -> dict[str, Any]:
    """Train `job["steps"]` steps of sentence-transformers on the pairs of the recipe `job["run"]`."""
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.base.sampler import DefaultBatchSampler
    from sentence_transformers.sentence_transformer import losses

    run = json.loads(Path(job["run"]).read_text("utf-8"))
    size = run["per_device_train_batch_size"]
    set_seed(run["seed"])
    needed = int(SPARE[job.get("harder", "")] * job["steps"] * size) + size
    drawn = drawn_pairs(Path(job["run"]), needed, Path(job["drawn"]))
    model = sentence_encoder(run["model_name_or_path"], run["max_seq_length"], job.get("encoder_dropout"))
    loss = getattr(losses, job["loss"])(model, **job["loss_settings"])
    began = process_time()
    columns = columns_of(job, run, drawn, model)
    preparation = process_time() - began

    def in_given_order(dataset: Dataset, batch_size: int, drop_last: bool, **_: Any) -> DefaultBatchSampler:
        return DefaultBatchSampler(SequentialSampler(dataset), batch_size=batch_size, drop_last=drop_last)

    args = SentenceTransformerTrainingArguments(
        output_dir=job["output_dir"],
        max_steps=job["steps"],
        per_device_train_batch_size=size,
        learning_rate=run["learning_rate"],
        lr_scheduler_type=SCHEDULE,
        warmup_steps=WARMUP,
        seed=run["seed"],
        prompts=run.get("prompt") or None,
        batch_sampler=in_given_order,
        save_strategy="no",
        logging_steps=20,
        report_to="none",
        use_cpu=True,
    )
    times = StepTimes()
    SentenceTransformerTrainer(
        model=model, args=args, train_dataset=Dataset.from_dict(columns), loss=loss, callbacks=[times]
    ).train()
    if job["save"]:
        model.save_pretrained(str(Path(job["output_dir"]) / "encoder"), create_model_card=False)
    return record(times, preparation)


def columns_of(job: Mapping[str, Any], run: Mapping[str, Any], drawn: list[Pair], model: Any) -> dict[str, Any]:
    """Return what the loss reads of drawn pairs: English, translation, and what the row adds to them."""
    size, prompt, harder = run["per_device_train_batch_size"], run.get("prompt"), job.get("harder")
    if harder == SIMILAR:
        drawn = by_similarity(drawn, model, prompt, size, run["seed"])
    elif harder == MINED:
        negatives = mined_negatives(drawn, model, prompt)
        drawn = [pair for pair in drawn if in_order(pair) in negatives]
    pairs = [*map(in_order, without_repetitions(drawn, size)[: job["steps"] * size])]
    if len(pairs) < job["steps"] * size:
        raise RuntimeError(f"{len(pairs)} pairs for {job['steps']} steps of {size}: SPARE is too small")
    english, translations = zip(*pairs)
    columns: dict[str, Any] = {"english": english, "translation": translations}
    if harder == MINED:
        columns["negative"] = [negatives[pair] for pair in pairs]
    if job["loss"] == "MSELoss":  # the vectors of the start, which is the teacher
        columns["label"] = model.encode(list(english), prompt=prompt, show_progress_bar=False)
    return columns


def by_similarity(drawn: Sequence[Pair], model: Any, prompt: str | None, size: int, seed: int) -> list[Pair]:
    """Return drawn pairs by groups whose English is similar, as `--group_by_similarity sentences` makes them."""
    english = [pair["en"] for pair in drawn[: len(drawn) // size * size]]
    vectors = model.encode(english, prompt=prompt, normalize_embeddings=True, show_progress_bar=False)
    _, texts = np.unique(english, return_inverse=True)
    return [drawn[index] for index in groups_of_similar(vectors, texts, size, np.random.default_rng(seed))]


def mined_negatives(drawn: Sequence[Pair], model: Any, prompt: str | None) -> dict[tuple[str, str], str]:
    """Return by pair a translation of another one: the nearest to its English, of 100, that its documentation's margin
    allows. A pair without one is left out.
    """
    from sentence_transformers.util import mine_hard_negatives

    english, translations = zip(*map(in_order, drawn))
    mined = mine_hard_negatives(
        Dataset.from_dict({"english": english, "translation": translations}),
        model,
        range_max=100,
        relative_margin=0.05,
        num_negatives=1,
        sampling_strategy="top",
        query_prompt=prompt,
        corpus_prompt=prompt,
        verbose=False,
    )
    return {(row["english"], row["translation"]): row["negative"] for row in mined}


def sentence_encoder(folder: str, max_length: int, dropout: float | None = None) -> Any:
    """Return an encoder of sentence-transformers in fp32, read at the mean of the last layer.

    Args:
        dropout: of training; its configuration's by default.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    transformer = Transformer(folder, max_seq_length=max_length, model_kwargs={"dtype": "float32"})
    if dropout is not None:
        set_dropout(transformer, dropout)
    size = transformer.model.config.hidden_size
    return SentenceTransformer(modules=[transformer, Pooling(size, pooling_mode="mean")], device="cpu")


if __name__ == "__main__":
    main()
