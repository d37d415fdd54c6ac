"""Fine-tuning for one task: the order of examples, the loss of a batch, the best state on dev, and logits.

"Rows" are tokenized examples, or windows of them, as `sentence_pairs`, `tagging` and `question_answering` make them.
"""

import copy
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute
import torch
from datasets import Dataset
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Sampler
from tqdm.auto import tqdm
from transformers import (
    AutoConfig,
    AutoModel,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)

from ..data.sampling import Languages, TemperatureSampler
from ..errors import BadInput
from ..files import let_others_read
from ..hub.loading import FIX, refuse_lacking
from ..models.supported_versions import overrides_private
from ..processes import hides_progress
from ..training.arguments import gpu_is_used
from ..training.checkpoints import last_complete_checkpoint, newest_first, verify_checkpoint, write_manifest
from ..training.eval_mode import eval_mode
from ..training.trainer import TERMINATED, RobustTrainer, nan_unless_finite
from .sentence_pairs import input_columns

POOLER = "pooler."  # in the names of weights that masked language models lack; heads make new ones
ScoreOnDev = Callable[[PreTrainedModel], float]  # higher is better


@dataclass(frozen=True)
class FineTuningConfig:
    """Hyperparameters of fine-tuning with Adam (epsilon 1e-8), gradients clipped to norm 1.

    Attributes:
        learning_rate: the peak, after warm-up; it decays linearly to 0.
        batch_size: rows of an optimizer step, over all its micro-batches and processes.
        max_length: tokens of a row.
        warmup: steps of warm-up; below 1 their share of all steps.
        weight_decay: of all weights but biases and LayerNorms.
        evaluate_every: steps between evaluations on dev, of which the best state is kept; 0: the last state is kept.
    """

    learning_rate: float
    batch_size: int
    epochs: float
    max_length: int
    warmup: float = 0
    weight_decay: float = 0
    evaluate_every: int = 0


def longest_row(config: PreTrainedConfig) -> int:
    """The most tokens an encoder reads; XLM-R's positions begin after the id of its padding."""
    lengths = [
        embeddings.num_embeddings - (0 if embeddings.padding_idx is None else embeddings.padding_idx + 1)
        for embeddings in position_embeddings(config)
    ]
    return min(lengths, default=getattr(config, "max_position_embeddings", sys.maxsize))


def position_embeddings(config: PreTrainedConfig) -> list[nn.Embedding]:
    """The embeddings of positions of an encoder, without values."""
    modules = dict(empty_encoder(config).named_modules()).items()
    return [each for name, each in modules if name.endswith("position_embeddings") and isinstance(each, nn.Embedding)]


def empty_encoder(config: PreTrainedConfig) -> PreTrainedModel:
    """An encoder without values of its weights."""
    with torch.device("meta"):
        encoder: PreTrainedModel = AutoModel.from_config(config)
    return encoder


def load_model(model_class: Any, encoder: str, labels: Sequence[str], seed: int = 42) -> PreTrainedModel:
    """Load an encoder in float32 with a head for these labels: that of the files if it has as many outputs, put in
    the order of the labels if it names the same ones; else a new one, initialized by the seed.

    Args:
        model_class: an Auto class, or a class of models.
        encoder: folder or name on the Hub of an XLM-R, HiCTL or BERT-like model.
        labels: names of the outputs.

    Raises:
        BadInput: the files lack weights of the encoder, or have others than their configuration says.
    """
    names: dict[str, Any] = {"id2label": dict(enumerate(labels))}
    names |= {"label2id": {name: index for index, name in enumerate(labels)}, "problem_type": None}
    set_seed(seed)
    model, report = model_class.from_pretrained(
        encoder, dtype=torch.float32, use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True,
        trust_remote_code=False, **names,
    )  # fmt: skip
    of_encoder, prefix = empty_encoder(model.config).state_dict(), f"{model.base_model_prefix}."
    missing = [name for name in report["missing_keys"] if name.removeprefix(prefix) in of_encoder]
    refuse_lacking(encoder, [name for name in missing if POOLER not in name])
    for name, found, expected in sorted(report["mismatched_keys"]):
        if name.removeprefix(prefix) in of_encoder:
            allowed = f"allowed is {tuple(expected)}, as its config.json says"
            raise BadInput(f"{encoder}: has {name} as {tuple(found)}; {allowed}. {FIX}")
    reorder_outputs(model, AutoConfig.from_pretrained(encoder).id2label or {}, labels)
    loaded: PreTrainedModel = model
    return loaded


def reorder_outputs(model: PreTrainedModel, names: Mapping[int, str], labels: Sequence[str]) -> None:
    """Order the outputs of a head like `labels`, if they have the same names in another order, or in capitals."""
    places = {str(name): place for place, name in names.items()}
    if places.keys() != {*labels}:
        places, labels = {name.lower(): place for name, place in places.items()}, [name.lower() for name in labels]
    if not len(names) == len(places) == len(labels) or places.keys() != {*labels}:
        return
    order = [places[label] for label in labels]
    of_encoder = {id(weight) for weight in model.base_model.parameters()}
    for weight in model.parameters():
        if id(weight) not in of_encoder and weight.shape[:1] == (len(order),):
            weight.data = weight.data[order]


def fine_tune(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    features: Dataset,
    settings: FineTuningConfig,
    output_dir: str | Path,
    score: ScoreOnDev | None = None,
    *,
    seed: int = 42,
    bf16: bool = False,
    micro_batches: int = 1,
    save_every: int = 500,
    similar_lengths: bool = False,
) -> PreTrainedModel:
    """Train a model, or continue an interrupted call with the same arguments and folder.

    On SIGTERM the running step is saved and the process exits with 143. The final model is in `output_dir/model`, its
    checkpoints are removed; a later call only loads it.

    Args:
        features: rows for training, as `TaskFeatures.encode` returns them.
        score: returns the score of a model on dev; `None`: no state is chosen.
        micro_batches: parts of a batch that are computed one after another, for less memory.
        save_every: steps between two checkpoints; rounded up to a multiple of `evaluate_every`.
        similar_lengths: batch rows of similar length (see `TrainingOrder`); not the official order.

    Returns:
        The state that is best on dev, the first of equals; without `score` the last one.
    """
    finished = Path(output_dir) / "model"
    if verify_checkpoint(finished) is None:
        remove_checkpoints(output_dir)  # of a call that was killed before it did
        return type(model).from_pretrained(finished, dtype=torch.float32).to(model.device)
    every = settings.evaluate_every if score is not None else 0
    args = TrainingArguments(
        str(output_dir), learning_rate=settings.learning_rate, num_train_epochs=settings.epochs,
        gradient_accumulation_steps=micro_batches, warmup_steps=settings.warmup, weight_decay=settings.weight_decay,
        adam_epsilon=1e-8, max_grad_norm=1.0, lr_scheduler_type="linear",
        seed=seed, bf16=bf16, use_cpu=not gpu_is_used(), remove_unused_columns=False,
        save_steps=-(-save_every // every) * every if every else save_every, save_total_limit=1, logging_steps=50,
        eval_strategy="steps" if every else "no", eval_steps=every or None, load_best_model_at_end=bool(every),
        metric_for_best_model="score" if every else None, greater_is_better=True if every else None,
        report_to="none",
    )  # fmt: skip
    args.per_device_train_batch_size = rows_at_once(settings.batch_size, micro_batches, args.world_size)
    trainer = FineTuningTrainer(
        model, args, train_dataset=features, processing_class=tokenizer, score=score, similar_lengths=similar_lengths
    )
    trainer.train(resume_from_checkpoint=last_complete_checkpoint(output_dir))
    if trainer.terminated:
        raise SystemExit(TERMINATED)
    trainer.save_model(str(finished))
    trainer.accelerator.wait_for_everyone()  # others may still read the best checkpoint
    if args.should_save:
        let_others_read(finished)
        write_manifest(finished)
        remove_checkpoints(output_dir)
    trainer.accelerator.wait_for_everyone()
    return trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)


def remove_checkpoints(folder: str | Path) -> None:
    for checkpoint in newest_first(folder):
        shutil.rmtree(checkpoint, ignore_errors=True)


def rows_at_once(batch_size: int, micro_batches: int, processes: int) -> int:
    """Rows of a micro-batch of one process."""
    rows, rest = divmod(batch_size, micro_batches * processes)
    if rest or rows < 1:
        raise BadInput(
            f"per_device_train_batch_size is {batch_size}; allowed are multiples of {micro_batches} micro-batches "
            f"times {processes} processes. Change one of them."
        )
    return rows


class FineTuningTrainer(RobustTrainer):
    """Trainer of a model with a stock head on the mean loss of the full batch of an optimizer step.

    The mean is over rows, in tagging over tagged words, however the batch is divided. XTREME's scripts take the same
    mean for a batch of one part, and the mean of such means for several. (HF's Trainer passes the number of items to
    the model, and stock heads ignore it.)

    Args (in addition to the Trainer's):
        score: evaluates a model; chooses the best state where the Trainer's arguments say so.
        similar_lengths: batch rows of similar length.
    """

    loss_is_scaled_for_ga = True
    how_to_continue = "give the same command again, or one with other settings and another --output_dir"

    def __init__(
        self, *args: Any, score: ScoreOnDev | None = None, similar_lengths: bool = False, **kwargs: Any
    ) -> None:
        features, tokenizer = kwargs["train_dataset"], copy.copy(kwargs["processing_class"])
        tokenizer.padding_side = "right"  # heads read the first token, and token positions stay valid
        kwargs["processing_class"] = tokenizer
        of_words = isinstance(features[0].get("labels"), list)
        collator = DataCollatorForTokenClassification if of_words else DataCollatorWithPadding
        super().__init__(*args, data_collator=collator(tokenizer), eval_dataset=(), **kwargs)
        self.score, self.similar_lengths = score, similar_lengths

    @overrides_private(Trainer)
    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> "TrainingOrder":
        """Use the order of XTREME's scripts; the Trainer has no argument for a sampler."""
        args = self.args
        batch_size = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        return TrainingOrder(row_lengths(self.train_dataset), batch_size, args.seed, self.similar_lengths)

    @staticmethod
    def count_items(batch: dict[str, Any]) -> int:
        """The number of items that the loss of a batch averages: rows, or tagged words."""
        return int((batch["labels"] != -100).sum()) if "labels" in batch else len(batch["input_ids"])

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(**inputs)
        mean = answer_loss(outputs, inputs) if "start_positions" in inputs else outputs.loss
        if not (items := self.count_items(inputs)):  # the mean over no label is NaN
            mean = outputs.logits.sum() * 0
        # DDP averages gradients over processes; here they are to be summed
        share = items / num_items_in_batch.clamp_min(1) * self.accelerator.num_processes
        loss = nan_unless_finite(mean * share)
        return (loss, outputs) if return_outputs else loss

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        assert self.score is not None
        score = self.score(self.accelerator.unwrap_model(self.model))
        return self.finish_evaluation({"eval_score": self.from_main(score)})


def answer_loss(outputs: Any, batch: dict[str, Tensor]) -> Tensor:
    """Loss of question answering, (): mean over rows and over start and end, softmax over the row's own tokens.

    The stock head includes the padding, so its loss depends on the other rows of the batch.
    """
    padding, losses = batch["attention_mask"] == 0, []
    for logits, name in ((outputs.start_logits, "start_positions"), (outputs.end_logits, "end_positions")):
        losses.append(F.cross_entropy(logits.masked_fill(padding, -torch.inf), batch[name]))
    return (losses[0] + losses[1]) / 2


class TrainingOrder(Sampler[int]):
    """Sampler of every row once an epoch, in an order that depends on seed and epoch only.

    Of several processes, accelerate fills up the last batch of each with the first rows of the epoch.

    Args:
        lengths: (rows,) tokens of each row.
        batch_size: rows of an optimizer step.
        similar_lengths: fill batches with rows of similar length, like `TemperatureSampler`: less padding, but words in
            long sentences then weigh less than those in short ones. Otherwise rows are in random order.
    """

    def __init__(self, lengths: NDArray[np.integer[Any]], batch_size: int, seed: int, similar_lengths: bool) -> None:
        lengths = lengths if similar_lengths else np.zeros_like(lengths)
        alone: dict[Languages, NDArray[Any]] = {("all", None): np.arange(len(lengths))}
        self.mixture = TemperatureSampler(lengths, alone, dict.fromkeys(alone, 1.0), batch_size, seed)

    def __len__(self) -> int:
        return len(self.mixture.lengths)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; the Trainer calls it."""
        self.mixture.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        return iter(self.mixture.draws_of_epoch(self.mixture.epoch)[:, 0].tolist())


def row_lengths(features: Dataset) -> NDArray[np.int32]:
    """(rows,) tokens of each row."""
    return pyarrow.compute.list_value_length(features.with_format("arrow")[:]["input_ids"]).to_numpy()


@torch.inference_mode()
def predict_logits(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    features: Dataset,
    batch_size: int = 64,
    bf16: bool = False,
    progress: bool = False,
) -> list[NDArray[np.float32]]:
    """Logits of each row, in order; computed longest first, with little padding and without dropout.

    The model keeps its mode.

    Returns:
        For each row of T tokens: (labels,); of token classification (T, labels); of question answering (T, 2), the
        logits of being the first and the last token of the answer.
    """
    if not len(features):
        return []
    lengths = row_lengths(features)
    order = np.argsort(-lengths, kind="stable")
    features = features.select_columns([name for name in input_columns(tokenizer) if name in features.column_names])
    logits: list[Any] = [None] * len(order)
    starts = range(0, len(order), batch_size)
    bar = tqdm(starts, desc="predict", disable=hides_progress() if progress else True, leave=False)
    with eval_mode(model):
        for start in bar:
            rows = order[start : start + batch_size]
            batch = tokenizer.pad(features[rows], padding_side="right", return_tensors="pt").to(model.device)
            with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
                outputs = model(**batch)
            both = "logits" not in outputs  # of the first and the last token of an answer
            values = torch.stack((outputs.start_logits, outputs.end_logits), -1) if both else outputs.logits
            for row, of_row in zip(rows, values.float().cpu().numpy()):
                logits[row] = of_row[: lengths[row]].copy() if of_row.ndim == 2 else of_row
    return logits
