"""Arguments of a pre-training run: HF's `TrainingArguments` and those of HiCTL, as flags or as a recipe."""

from dataclasses import dataclass, field
from typing import Any

import torch

from ..data.collator import REORDERINGS, SHORTEST_PAIR
from ..data.corpus import Cleaning
from ..errors import BadInput
from ..models.configuration_hictl import HictlConfig
from ..parsing import parse_flags_or_recipe
from ..training.arguments import (
    UNUSED,
    RunArguments,
    read_dictionaries,
    refuse_impossible,
    refuse_unused,
    repository_to_publish_to,
)
from ..training.fingerprint import RENAMED

UNUSED_HERE = UNUSED | {
    "label_smoothing_factor": "the language model's targets are not smoothed",
    "train_sampling_strategy": "languages are sampled by their shares, in batches of similar length",
    "per_device_eval_batch_size": "the number of sentences embedded at a time is chosen for speed",
}
DECISIVE = (  # settings that, with the examples and the batch, decide the weights; length and device may change
    "model_config", "text_alpha", "pair_alpha", "text_share", "max_length", "mlm_probability", "tlm_probability",
    "reordering", "gather_sentences", "gradient_cache", "seed", "learning_rate", "lr_scheduler_type",
    "lr_scheduler_kwargs", "warmup_steps", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm",
)  # fmt: skip
DICTIONARIES = {"model_config": HictlConfig, "cleaning": Cleaning}


@dataclass
class PretrainingArguments(RunArguments):
    """HF's training arguments with the paper's optimiser as defaults, and the data and objectives of HiCTL."""

    train_data: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Sources of sentence pairs and of monolingual text: files, folders, corpus.{en,de}, "
            "de:text.txt, package:django, hub:name:config:split (docs/data_formats.md)."
        },
    )
    held_out_data: list[str] = field(
        default_factory=list,
        metadata={"help": "Sources of pairs to measure retrieval on (default: pairs held out of train_data)."},
    )
    held_out_sentences: int = field(
        default=250, metadata={"help": "Sentences of each language for dev, and as many for test; 0: none."}
    )
    encoder: str | None = field(
        default=None,
        metadata={"help": "XLM-R or HiCTL checkpoint to begin from (default: a new model of model_config)."},
    )
    tokenizer: str | None = field(
        default=None,
        metadata={"help": "Tokenizer of a new model (default: one of model_config.vocab_size ids is trained)."},
    )
    model_config: dict[str, Any] | str | None = field(
        default=None, metadata={"help": 'Fields of HictlConfig as JSON, such as {"sentence_temperature": 1.0}.'}
    )
    cleaning: dict[str, Any] | str | None = field(
        default=None, metadata={"help": 'Fields of Cleaning as JSON, such as {"languages": ["en", "de"]}.'}
    )
    strict: bool = field(
        default=False,
        metadata={"help": "Stop at the first broken row; by default broken rows are skipped and counted."},
    )
    streaming: bool = field(
        default=False, metadata={"help": "Read train_data during training; needs max_steps and held_out_data."}
    )
    stream_shares: list[float] = field(
        default_factory=list,
        metadata={"help": "Sampling weight of each source of a stream (default: by language and bytes on disk)."},
    )
    stream_buffer: int = field(
        default=20_000, metadata={"help": "Rows in the shuffle buffer of each process (or data worker) of a stream."}
    )
    text_alpha: float = field(default=0.3, metadata={"help": "Language sampling p^alpha of monolingual text."})
    pair_alpha: float = field(default=0.7, metadata={"help": "Language sampling p^alpha of pairs."})
    text_share: float = field(
        default=0.5, metadata={"help": "Share of monolingual text in the batches, if there are also pairs."}
    )
    max_length: int = field(
        default=256, metadata={"help": "Maximum length in tokens of a sentence and of a joined pair."}
    )
    mlm_probability: float = field(default=0.15, metadata={"help": "Share of tokens masked in monolingual text."})
    tlm_probability: float = field(default=0.25, metadata={"help": "Share of tokens masked in pairs."})
    reordering: str = field(
        default="words", metadata={"help": "How monolingual text becomes its positive: words, subwords or local."}
    )
    gather_sentences: bool = field(default=True, metadata={"help": "Use the sentences of all processes as negatives."})
    gradient_cache: bool = field(
        default=False,
        metadata={
            "help": "Use the sentences of all gradient_accumulation_steps micro-batches as negatives, in the memory "
            "of one (GradCache)."
        },
    )
    shard_parameters: bool = field(
        default=False, metadata={"help": "Shard weights, gradients and optimiser state over the processes (FSDP2)."}
    )
    evaluate_layers: list[int] = field(
        default_factory=list, metadata={"help": "Layers at which retrieval is evaluated, 0: embeddings (default: all)."}
    )

    auto_find_batch_size: bool = field(
        default=False,
        metadata={"help": "Halve per_device_train_batch_size until it fits in memory, with as many examples per step."},
    )
    output_dir: str = field(default="runs/hictl", metadata={"help": "Output folder of the run."})
    per_device_train_batch_size: int = field(default=64, metadata={"help": "Pairs or texts in a batch of a device."})
    learning_rate: float = field(
        default=2.5e-4, metadata={"help": "Peak learning rate; the paper's base size: 2.5e-4."}
    )
    adam_beta2: float = field(default=0.98, metadata={"help": "The paper: 0.98 for base, 0.999 for large."})
    adam_epsilon: float = field(default=1e-6, metadata={"help": "The paper's ε."})
    weight_decay: float = field(default=0.01, metadata={"help": "Weight decay; the paper names none."})
    warmup_steps: float = field(
        default=0.05, metadata={"help": "Warm-up steps; below 1 a fraction of all steps; the paper: 10,000."}
    )
    logging_steps: float = field(default=20, metadata={"help": "Steps between logs."})
    dataloader_pin_memory: bool = field(
        default_factory=torch.cuda.is_available, metadata={"help": "Pin batches in memory (default: with a GPU)."}
    )
    dataloader_num_workers: int = field(
        default_factory=lambda: 2 * torch.cuda.is_available(),
        metadata={"help": "Worker processes that prepare batches (default: 2 with a GPU, else 0)."},
    )
    remove_unused_columns: bool = field(
        default=False, metadata={"help": "Must be false: the collator reads all columns."}
    )
    save_total_limit: int | None = field(default=2, metadata={"help": "Checkpoints to keep, the best one included."})
    load_best_model_at_end: bool = field(
        default=False, metadata={"help": "End with the best checkpoint by metric_for_best_model."}
    )
    metric_for_best_model: str | None = field(
        default="eval_retrieval", metadata={"help": "Metric that selects the best checkpoint."}
    )
    publish_to: str | None = field(default=None, init=False)  # from push_to_hub and hub_model_id

    def __post_init__(self) -> None:
        read_dictionaries(self, DICTIONARIES)
        self.publish_to = repository_to_publish_to(self)
        if not self.train_data:
            raise BadInput("train_data is empty; name at least one source of text or pairs (docs/data_formats.md)")
        if self.streaming and not (self.max_steps > 0 and self.held_out_data):
            raise BadInput(
                "a stream has no end and holds nothing out: with --streaming give --max_steps and --held_out_data"
            )
        refuse_unused(self, UNUSED_HERE)
        for name, least in (
            ("max_length", SHORTEST_PAIR), ("per_device_train_batch_size", 1), ("gradient_accumulation_steps", 1),
        ):  # fmt: skip
            if getattr(self, name) < least:
                raise BadInput(f"{name} is {getattr(self, name)}; allowed is {least} or more")
        for name in ("text_alpha", "pair_alpha", "text_share", "mlm_probability", "tlm_probability"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadInput(f"{name} is {getattr(self, name)}; it must be between 0 and 1")
        if self.held_out_sentences < bool(self.held_out_data):
            raise BadInput(
                f"held_out_sentences is {self.held_out_sentences}; it must be 1 or more, or 0 to hold out nothing, "
                "which excludes held_out_data"
            )
        if self.auto_find_batch_size and not self.gradient_cache:
            raise BadInput(
                "auto_find_batch_size changes the micro-batch, and without the gradient cache its negatives; "
                "add --gradient_cache true, or choose per_device_train_batch_size yourself"
            )
        if self.reordering not in REORDERINGS:
            raise BadInput(f"reordering is {self.reordering!r}; it must be one of {', '.join(REORDERINGS)}")
        if not torch.accelerator.is_available():
            self.use_cpu = True  # without it bf16 is refused on a machine without accelerator
        super().__post_init__()
        refuse_impossible(self)


def parse_arguments(argv: list[str]) -> PretrainingArguments:
    """Parse flags, or a recipe (JSON or YAML) and flags that change it: `recipes/demo.json --max_steps 10`."""
    try:
        return parse_flags_or_recipe(argv, PretrainingArguments)
    except BadInput as error:
        renamed = [f"{old} is called {new} since release 0.8" for old, new in RENAMED.items() if old in str(error)]
        raise BadInput("; ".join([str(error), *renamed])) from error
