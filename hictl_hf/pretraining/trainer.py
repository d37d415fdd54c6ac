"""Trainer of HiCTL: its losses and their logs, the sampler's batches, retrieval as the evaluation."""

import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from time import time
from typing import Any

import torch
from accelerate.utils import send_to_device
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler
from transformers import (
    DataCollatorWithPadding,
    PreTrainedModel,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)
from transformers.trainer_utils import PredictionOutput, TrainOutput, speed_metrics

from ..data.collator import OBJECTIVES, tokens_read
from ..data.sampling import PretrainingExamples, TemperatureSampler
from ..data.streaming import StreamedBatches, collate_streamed
from ..embedding.pooling import Pooling, all_poolings
from ..embedding.sentence_transformers_files import write_files_of_checkpoint
from ..errors import BadInput, short_repr
from ..hub.loading import check_vocabulary
from ..models.families import longest_input
from ..models.gathering import stack_pairs, unstack_pairs
from ..models.losses import in_full_precision
from ..models.outputs import CachedSentenceLevel
from ..models.sentence_probability import SentenceProbability
from ..retrieval.held_out import best_pooling, evaluate_retrieval, mean_accuracies
from ..training.sharding import ShardingMixin
from ..training.trainer import RobustTrainer, nan_unless_finite

logger = logging.getLogger(__name__)
NO_NEGATIVES = (
    "a contrastive batch has one pair, which leaves its sentences without negatives; raise "
    "per_device_train_batch_size, or use gather_sentences (several processes) or gradient_cache"
)

LOSSES = ("lm_loss", "sentence_loss", "word_loss")
WATCHED = ("hard_negative_lambda", "negatives_per_anchor")
COUNTED = ("sentence_input_ids", "bag")
SENTENCE_PROBABILITY = "sentence_probability.json"
PAIR_COLUMNS = ("x", "y", "x_lang", "y_lang")


@cache
def log_unwatched(trainer: str) -> None:
    """Log once that an overridden `compute_loss` leaves the parent's out."""
    logger.warning(
        "%s.compute_loss does not call super().compute_loss: p_avg does not change, no part of the loss is logged, and "
        "micro-batches of a step are added up, not averaged; add to what the parent returns",
        trainer,
    )


class HictlTrainer(ShardingMixin, RobustTrainer):
    """Trains `HictlForPreTraining`; losses are means over all examples of an optimiser step.

    Args (in addition to the Trainer's):
        train_dataset: examples, or `StreamedBatches`.
        batches: sampler of this process's batches of examples, such as a `TemperatureSampler`; `None`: the parent's.
        gather_sentences: take negatives from the sentences of all processes, as one process with all examples would.
        gradient_cache: take negatives from all micro-batches of an optimiser step, too (GradCache, Gao et al., 2021):
            all sentences are encoded once without gradient before the micro-batches are.
        poolings: poolings to evaluate, all if empty; the best one on the held-out pairs counts.
        lm_head_warmup_steps: first steps in which L_LM trains its head only.
        eval_dataset: held-out pairs, text columns `x`, `y`, `x_lang`, `y_lang`, or several such sets by name.
    """

    how_to_save_memory = "gradient_cache, activation_checkpointing, or shard_parameters (FSDP2 for this model)"
    loss_is_scaled_for_ga = True  # the model divides by the items of all micro-batches and processes

    def __init__(
        self,
        *args: Any,
        batches: Sampler[Any] | None = None,
        gather_sentences: bool = True,
        gradient_cache: bool = False,
        poolings: Sequence[Pooling] = (),
        lm_head_warmup_steps: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if self.args.remove_unused_columns:
            raise BadInput(
                "remove_unused_columns would remove x, y and seed, which the collator needs; set it to False"
            )
        if not hasattr(self.model.config, "projects_first_token"):
            raise BadInput(
                f"model is {type(self.model).__name__}, without HiCTL's losses; allowed is HictlForPreTraining or that "
                "of another family, whose from_pretrained also reads the folder of a plain encoder"
            )
        self.refuse_ignored()
        config = self.model.config
        last = config.num_hidden_layers
        self.batches, self.lm_head_warmup_steps = batches, lm_head_warmup_steps
        self.poolings = poolings or all_poolings(range(last + 1), last, projection=config.projects_first_token)
        self.stream = self.train_dataset if isinstance(self.train_dataset, StreamedBatches) else None
        self.gather_sentences, self.gradient_cache = gather_sentences and self.args.world_size > 1, gradient_cache
        self.stream_start = self.stream.state_dict() if self.stream is not None else {}
        self.check_objectives()
        self.check_negatives()
        self.step_sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=self.args.device))
        self.log_sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=self.args.device))
        self.steps_since_log = 0
        self.log_started: float | None = None
        self.add_callback(StreamPosition(self))

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        # of an IterableDataset accelerate would cut every tensor to one row an example, and sentences are two
        self.accelerator.dataloader_config.dispatch_batches = False

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Like the parent; a stream resumes at its position, where HF would read all examples before it again."""
        self.step_sums.clear()  # of a trial before this one
        self.log_sums.clear()
        self.steps_since_log, self.log_started = 0, None
        before = self.args.ignore_data_skip
        self.args.ignore_data_skip = before or self.stream is not None
        try:
            return super().train(*args, **kwargs)
        finally:
            self.args.ignore_data_skip = before

    def refuse_ignored(self) -> None:
        """Raise `BadInput` for arguments of HF's Trainer that neither losses nor evaluation of this class read."""
        ignored = {
            "compute_loss_func": (self.compute_loss_func, "the model computes its losses; override compute_loss"),
            "label_smoothing_factor": (self.args.label_smoothing_factor, "the model computes its losses"),
            "neftune_noise_alpha": (self.args.neftune_noise_alpha, "embeddings of packed tokens get no noise"),
        }
        if type(self).evaluate is HictlTrainer.evaluate:
            metric, retrieves = self.args.metric_for_best_model, "evaluate retrieves translations; override it"
            by_loss = self.args.load_best_model_at_end and metric in ("loss", "eval_loss") and metric
            ignored |= {
                "compute_metrics": (self.compute_metrics, retrieves),
                "preprocess_logits_for_metrics": (self.preprocess_logits_for_metrics, retrieves),
                "metric_for_best_model": (by_loss, "evaluate has no loss; give 'retrieval', greater_is_better=True"),
            }
        for name, (given, reason) in ignored.items():
            if given:
                raise BadInput(f"{name} is {given!r}, which has no effect here: {reason}, or leave it out")

    def check_objectives(self) -> None:
        """Log objectives without input from the collator, inputs too long for the model; `BadInput` for other ids."""
        made = getattr(self.data_collator, "objectives", OBJECTIVES)
        if absent := [name for name in OBJECTIVES if name not in made and self.weight_of(name) > 0]:
            logger.warning("not trained, as the collator makes no input for it: %s", ", ".join(absent))
        if tokenizer := getattr(self.data_collator, "tokenizer", None):
            check_vocabulary("data_collator", tokenizer, self.model.config.vocab_size)
        cut, reads = getattr(self.data_collator, "max_length", None) or 0, longest_input(self.model.config)
        if cut > reads:
            logger.warning(
                "the collator cuts at %d tokens, but the model reads %d: give it max_length=%d", cut, reads, reads
            )

    def weight_of(self, objective: str) -> float:
        return float(getattr(self.model.config, f"{objective}_weight"))

    def check_negatives(self) -> None:
        """Log the number of negatives of a sentence; `BadInput` if there are none."""
        pairs, factors = pairs_contrasted(self.args, self.gather_sentences, self.gradient_cache)
        if pairs == 1 and self.weight_of("sentence") > 0:
            raise BadInput(NO_NEGATIVES)
        negatives = (1 + self.model.config.same_side_negatives) * (pairs - 1)
        logger.info("negatives per anchor: %d (%s) at most, less where texts are equal", negatives, " x ".join(factors))

    def get_train_dataloader(self) -> DataLoader[Any]:
        """A loader of the sampler's or the stream's batches, which are divided among the processes already.

        Raises:
            BadInput: they were made for another batch size, as a trial of a search would set it, or are no batches of
                these examples; or no collator was given.
        """
        by_default = type(self.data_collator) is DataCollatorWithPadding or self.data_collator is default_data_collator
        if by_default and {"x", "y"} <= {*(getattr(self.train_dataset, "column_names", None) or ())}:
            raise BadInput("data_collator is left out; give data_collator=PretrainingCollator(tokenizer)")
        if isinstance(self.train_dataset, PretrainingExamples) and self.batches is None:
            raise BadInput("PretrainingExamples are drawn by a sampler; give batches=TemperatureSampler(...)")
        if isinstance(self.batches, TemperatureSampler) and isinstance(self.train_dataset, Dataset | list):
            kind = type(self.train_dataset).__name__
            raise BadInput(
                f"train_dataset is a {kind}, and batches are draws of PretrainingExamples; give "
                "PretrainingExamples(dataset, seed), or leave batches out"
            )
        micro_batch = self.args.train_batch_size
        batch = micro_batch * self.args.gradient_accumulation_steps * self.args.world_size
        for made, size in ((self.stream, micro_batch), (self.batches, batch)):
            if (found := getattr(made, "batch_size", size)) != size:
                raise BadInput(
                    f"the batches have {found} examples, and the arguments {size}: per_device_train_batch_size and "
                    "gradient_accumulation_steps cannot change once the batches are made; leave them out of the search"
                )
        if self.stream is not None:
            # the loader draws a random number when it starts, and a resumed run starts it again after its random state
            # was restored: a generator of its own keeps the state the same; the stream has its own seeds
            return self.make_loader(
                batch_size=None, collate_fn=partial(collate_streamed, collator=self.data_collator),
                generator=torch.Generator(),
            )  # fmt: skip
        if self.batches is None:
            return super().get_train_dataloader()
        return self.make_loader(batch_sampler=self.batches, collate_fn=self.data_collator)

    def resume_stream(self) -> None:
        """Set the stream, if there is one, to its start, or to the position of this process in the checkpoint."""
        if self.stream is None:
            return
        if self.resumed_from is None:
            self.stream.load_state_dict(self.stream_start)
            return
        path = self.stream_file(self.resumed_from)
        if not path.is_file():
            raise BadInput(f"{path}: does not exist; this checkpoint is of a run of fewer processes, or of no stream")
        self.stream.load_state_dict(json.loads(path.read_text(encoding="utf-8")))

    def save_process_state(self, folder: Path) -> None:
        """Save the position of this process in the stream, how sentences are read, and p_avg of an adapter."""
        if self.stream is not None:
            self.stream_file(folder).write_text(json.dumps(self.stream.state_dict()), encoding="utf-8")
        if self.args.should_save and self.is_adapter():
            state = {name: values.tolist() for name, values in self.sentence_probability.state_dict().items()}
            (folder / SENTENCE_PROBABILITY).write_text(json.dumps(state), encoding="utf-8")
        elif self.args.should_save:
            write_files_of_checkpoint(folder, self.accelerator.unwrap_model(self.model), self.is_sharded)

    def resume_adapter(self) -> None:
        """Set p_avg to that of the checkpoint of an adapter; those of earlier releases have none."""
        file = self.resumed_from / SENTENCE_PROBABILITY if self.resumed_from and self.is_adapter() else None
        if file is not None and file.is_file():
            state = json.loads(file.read_text(encoding="utf-8"))
            self.sentence_probability.load_state_dict({name: torch.tensor(values) for name, values in state.items()})

    def is_adapter(self) -> bool:
        """Whether the model is peft's, whose checkpoints hold only the adapter."""
        return not isinstance(self.accelerator.unwrap_model(self.model), PreTrainedModel)

    @property
    def sentence_probability(self) -> SentenceProbability:
        """The p_avg of the model."""
        found: SentenceProbability = self.accelerator.unwrap_model(self.model).sentence_probability
        return found

    def stream_file(self, checkpoint: str | Path) -> Path:
        """File of the position of this process in the stream."""
        return Path(checkpoint) / f"stream_{self.args.process_index}.json"

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], dict[str, Tensor] | None]:
        """Return the micro-batches of one optimiser step, and the number of items of each loss over all of them."""
        self.log_started = time() if self.log_started is None else self.log_started
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self.stream is not None:
            for batch in batches:
                self.stream.consumed(batch)
        masked = [(batch["labels"] != -100).sum().to(device) for batch in batches if "labels" in batch]
        counts = [torch.full((), sum(len(batch.get(name, ())) for batch in batches), device=device) for name in COUNTED]
        counts.insert(0, torch.stack(masked).sum() if masked else torch.zeros_like(counts[0]))
        reduced = self.accelerator.reduce(torch.stack(counts), "sum").clamp_min(1)
        items = dict(zip(("lm", "sentence", "word"), reduced))
        if self.gradient_cache and any("sentence_input_ids" in batch for batch in batches):
            self.cache_sentence_level(batches, items["sentence"])
        return batches, items

    def cache_sentence_level(self, batches: list[dict[str, Any]], items: Tensor) -> None:
        """Compute L_S over all micro-batches; each gets an equal share of it, and the gradient of its sentences."""
        model = self.accelerator.unwrap_model(self.model_wrapped)
        model.train()

        def encode(batch: dict[str, Any]) -> Tensor:
            ids, mask = batch["sentence_input_ids"], batch["sentence_attention_mask"]
            return model.encode_sentences(ids, mask, batch["example_seeds"])

        with torch.no_grad(), self.accelerator.autocast():
            parts = self.run_inside(lambda: [encode(send_to_device(batch, self.args.device)) for batch in batches])
        sentences = in_full_precision(stack_pairs(parts)).requires_grad_()
        texts = stack_pairs([batch["sentence_hashes"].to(sentences.device) for batch in batches])
        level = model.sentence_level(sentences, texts, items, self.gather_sentences)
        (gradients,) = torch.autograd.grad(level.loss, sentences)
        share = level.loss.detach() / len(batches)
        for batch, own in zip(batches, unstack_pairs(gradients, [len(part) for part in parts])):
            batch["cached"] = CachedSentenceLevel(share, level.hard_negative_lambda, level.negatives_per_anchor, own)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        # before transformers 5.19 the parent's prediction_step has counted labels
        items = num_items_in_batch if isinstance(num_items_in_batch, dict) else None
        outputs = model(
            **inputs, items_in_batch=items, gather=self.gather_sentences and model.training,
            lm_head_only=self.state.global_step < self.lm_head_warmup_steps,
        )  # fmt: skip
        if items is not None:
            self.watch(inputs, outputs)
        # DDP averages what is to be a sum over processes
        loss = nan_unless_finite(outputs.loss * self.accelerator.num_processes)
        return (loss, outputs) if return_outputs else loss

    def watch(self, inputs: dict[str, Tensor], outputs: Any) -> None:
        """Add up the losses and statistics of the micro-batches of a step."""
        for name in LOSSES:
            if outputs.get(name) is not None:
                self.step_sums[name] += outputs[name].detach()
        for name in WATCHED:
            if outputs.get(name) is not None:
                self.step_sums[name] += outputs[name].detach() * len(inputs["example_seeds"])
        self.step_sums["rows"] += len(inputs["example_seeds"])
        self.step_sums["tokens"] += tokens_read(inputs)

    def stop_requested(self) -> bool:
        """Whether any process received SIGTERM, from the same all-reduce as the sums of the step."""
        sums = dict(sorted(self.step_sums.items()))
        self.step_sums.clear()
        if self.step_was_skipped:
            return super().stop_requested()
        sums["sigterm"] = torch.full((), float(self.sigterm_received), device=self.args.device)
        step = dict(zip(sums, self.accelerator.reduce(torch.stack([*sums.values()]), "sum")))
        received = step.pop("sigterm")
        self.finish_step(step)
        return self.sigterm_received if self.args.world_size == 1 else bool(received)

    def finish_step(self, step: dict[str, Tensor]) -> None:
        """After an optimiser step: record L_S for p_avg, add its sums over all processes to those of the next log."""
        for name in WATCHED:
            if name in step:
                step[name] = step[name] / step["rows"]
        if "negatives_per_anchor" in step:
            probability = self.sentence_probability
            probability.record(step["sentence_loss"], step["negatives_per_anchor"] > 0)
        for name, value in step.items():
            self.log_sums[name] += value
        self.steps_since_log += 1

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self.steps_since_log and self.log_started is not None:
            p_avg = self.sentence_probability.mean()
            *values, logs["p_avg"] = torch.stack([*self.log_sums.values(), p_avg]).tolist()
            sums = dict(zip(self.log_sums, values))
            self.log_sums.clear()
            logs |= {name: sums[name] / self.steps_since_log for name in (*LOSSES, *WATCHED) if name in sums}
            if "tokens" in sums:
                logs["tokens_per_second"] = round(sums["tokens"] / (time() - self.log_started))
            else:
                log_unwatched(type(self).__name__)
            self.steps_since_log, self.log_started = 0, time()
        super().log(logs, start_time)

    def evaluate(
        self,
        eval_dataset: Dataset | Mapping[str, Dataset] | str | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Retrieval accuracy of held-out pairs: the mean for each pooling, and each language for the best one."""
        started = time()
        pairs = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(pairs, str) and isinstance(self.eval_dataset, Mapping):  # the name of one, as HF's Trainer takes
            pairs = self.eval_dataset.get(pairs, pairs)
        if isinstance(pairs, Mapping):
            several = [self.evaluate(each, ignore_keys, f"{metric_key_prefix}_{name}") for name, each in pairs.items()]
            return {name: value for metrics in several for name, value in metrics.items()}
        self.check_pairs(pairs)
        model = self.accelerator.unwrap_model(self.model)
        # a CPU, which may emulate half precision, embeds in fp32
        half = self.accelerator.autocast if self.args.device.type != "cpu" else nullcontext
        with half():
            found = self.run_inside(lambda: evaluate_retrieval(model, self.processing_class, pairs, self.poolings))
        accuracies = self.from_main(found)
        best = best_pooling(accuracies)
        metrics: dict[str, Any] = {
            f"retrieval_{name}": both for name, both in mean_accuracies(accuracies[best]).items()
        }
        metrics |= {metric_name(place): accuracies[place].mean for place in accuracies}
        metrics |= {"retrieval": accuracies[best].mean, "layer": best.layer, "pooling": best.mode}
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        metrics = self.finish_evaluation(metrics | speed_metrics(metric_key_prefix, started, len(pairs)))
        if self.log_started is not None:  # else it is before the first step
            self.log_started += time() - started
        return metrics

    def predict(self, test_dataset: Any, *args: Any, **kwargs: Any) -> PredictionOutput:
        """Like the parent, for single examples that the collator takes; `BadInput` for texts and for a sampler's."""
        columns = test_dataset.column_names if isinstance(test_dataset, Dataset) else ["seed"]
        found = ", ".join(columns) if isinstance(test_dataset, Dataset) else type(test_dataset).__name__
        if "seed" not in columns or isinstance(test_dataset, PretrainingExamples | StreamedBatches):
            raise BadInput(
                f"test_dataset is {found}; allowed are examples of tokens, each with a seed. "
                "evaluate scores pairs of texts, and hictl_hf.embedding.embed_sentences gives their vectors"
            )
        return super().predict(test_dataset, *args, **kwargs)

    def check_pairs(self, pairs: Any) -> None:
        """Raise `BadInput` for what is no dataset of sentence pairs, or without a tokenizer to read them."""
        if not isinstance(pairs, Dataset) or not {*PAIR_COLUMNS} <= {*pairs.column_names}:
            found = ", ".join(pairs.column_names) if isinstance(pairs, Dataset) else short_repr(pairs)
            raise BadInput(
                f"eval_dataset is {found}; allowed is a datasets.Dataset of held-out pairs with the text columns "
                f"{', '.join(PAIR_COLUMNS)}, or several by name"
            )
        if None in pairs["y"]:
            raise BadInput("eval_dataset has rows without y, and only pairs can be retrieved; remove these rows")
        if self.processing_class is None:
            raise BadInput("the held-out pairs are texts, and no tokenizer was given; give it as processing_class")


def pairs_contrasted(args: TrainingArguments, gather_sentences: bool, gradient_cache: bool) -> tuple[int, list[str]]:
    """Return how many pairs are contrasted with each other, and the factors of this number."""
    pairs, factors = args.train_batch_size, [f"{args.train_batch_size} pairs"]
    for used, number, name in (
        (gather_sentences, args.world_size, "processes"),
        (gradient_cache, args.gradient_accumulation_steps, "micro-batches"),
    ):
        if used and number > 1:
            pairs, factors = pairs * number, [*factors, f"{number} {name}"]
    return pairs, factors


def metric_name(pooling: Pooling) -> str:
    """Name of the accuracy of a pooling in the logs, without the prefix.

    >>> metric_name(Pooling("cls", 3))
    'cls_3'
    """
    return f"{pooling.mode}_{pooling.layer}"


class StreamPosition(TrainerCallback):
    """Keeps the position in a stream, and p_avg of an adapter."""

    def __init__(self, trainer: HictlTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.resume_stream()
        self.trainer.resume_adapter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.stream is not None:
            state.epoch = state.global_step / state.max_steps  # HF counts from where it resumed
