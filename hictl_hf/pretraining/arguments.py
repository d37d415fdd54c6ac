"""Arguments of a pre-training run: HF's `TrainingArguments` and HiCTL's, as flags or as a recipe."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from ..data.cleaning import Cleaning
from ..data.collator import REORDERINGS, SEPARATORS, SHORTEST_PAIR
from ..data.streaming import BUFFER
from ..errors import BadInput
from ..models.configuration_hictl import CONFIGS, config_class
from ..parsing import read_overrides
from ..training.arguments import (
    RunArguments,
    fields_with_default,
    read_dictionaries,
    read_dictionary,
    refuse_impossible,
    refuse_unknown_keys,
    repository_to_publish_to,
)
from ..training.fields import NO_SLICES, UNUSED, differs, refuse_unused
from ..training.model_and_data import DataArguments, ModelArguments, make_lists

UNUSED_HERE = UNUSED | {
    "label_smoothing_factor": "the language model predicts the original tokens",
    "train_sampling_strategy": "languages are sampled by their shares, in batches of similar length",
    "per_device_eval_batch_size": "sentences are embedded in batches of a fixed number of tokens",
    "include_num_input_tokens_seen": "tokens_per_second in the logs counts all inputs of the three losses",
}
OF_DDP = ("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph")
SIMILAR_BY = ("no", "sentences", "words")
IN_SHARDS = "--shard_parameters replaces DDP"
DECISIVE = (  # must stay the same when a run is resumed, as the examples and the batch; length and device may change
    "config_name", "config_overrides", "text_alpha", "pair_alpha", "text_share", "max_seq_length", "max_train_samples",
    "mlm_probability", "tlm_probability", "reordering", "gather_sentences", "gradient_cache", "seed", "prompt",
    "dropout", "lm_head_warmup_steps", "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps",
    "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm",
)  # fmt: skip
DECISIVE_SINCE_0_17 = ("optim", "optim_args", "optim_target_modules")
NO_END = "a stream has no end and no held-out pairs: with --streaming give --max_steps and --validation_file"
WORKERS = "--dataloader_num_workers says how many processes read and tokenize it"
NOT_OVERRIDDEN = {  # fields of the configuration that the run sets itself
    "embedding_prompt": "give --prompt",
    "special_token_ids": "they follow from the tokenizer",
    "embedding_lower_case": "texts are trained on as they are",
}
LISTS = ("train_file", "validation_file", "guard_data", "guard_languages")
MIXING = ("text_alpha", "pair_alpha", "text_share")


@dataclass
class PretrainingModelArguments(ModelArguments):
    """What a pre-training run starts from."""

    model_name_or_path: str | None = field(
        default=None,
        metadata={
            "help": "XLM-R, sentence encoder or HiCTL checkpoint to begin from, a folder or Hub name; by default a new "
            "model."
        },
    )
    config_name: str | None = field(
        default=None, metadata={"help": "Folder or Hub name of a checkpoint whose configuration a new model gets."}
    )
    config_overrides: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": 'Fields of HictlConfig, as JSON such as {"sentence_temperature": 1.0}, or as a=1,b=2; also of '
            'model_name_or_path. "model_type" is the family of a new model.'
        },
    )
    tokenizer_name: str | None = field(
        default=None,
        metadata={
            "help": "Folder or Hub name of a tokenizer; by default that of model_name_or_path, or for a new model a "
            "new one of vocab_size ids."
        },
    )
    prompt: str | None = field(
        default=None,
        metadata={
            "help": 'Text before each sentence, such as "query: ", in training and wherever sentences are embedded; by '
            'default that of the encoder; "" for none.'
        },
    )
    keep_start: str | None = field(
        default=None,
        metadata={
            "help": "Average the trained weights with those of the start: the share of the start, from 0, the trained "
            "weights alone, to 1; or auto: chosen on held-out and guard pairs."
        },
    )
    freeze_word_embeddings: bool = field(
        default=False,
        metadata={
            "help": "Do not train the word embeddings of the start, by which L_LM also predicts words; saves memory."
        },
    )

    def check_start(self) -> None:
        """Raise `BadInput` for settings of the start that cannot work."""
        self.check_revision()
        if self.config_name and self.model_name_or_path:
            raise BadInput(
                f"config_name is {self.config_name} and model_name_or_path {self.model_name_or_path}, which has its "
                "own configuration; give one of them, and --config_overrides for single fields"
            )
        if self.keep_start is not None:
            self.keep_start = str(self.keep_start)
            if self.keep_start != "auto" and not is_share(self.keep_start):
                raise BadInput(f"keep_start is {self.keep_start!r}; allowed is auto, or a number from 0 to 1")
            if not self.model_name_or_path:
                raise BadInput("keep_start needs an encoder to keep; give --model_name_or_path, or leave it out")
        if self.freeze_word_embeddings and not self.model_name_or_path:
            raise BadInput(
                "freeze_word_embeddings is true, and those of a new model are random; give --model_name_or_path, or "
                "leave it out"
            )


@dataclass
class PretrainingDataArguments(DataArguments):
    """What a pre-training run reads."""

    train_file: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Sources of pairs and monolingual text, in any combination: files, folders, corpus.{en,de}, "
            "de:text.txt, package:django, hub:name:config:split (docs/data_formats.md)."
        },
    )
    validation_file: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Sources of pairs for the retrieval evaluation; by default pairs are held out of train_file."
        },
    )
    held_out_sentences: int = field(
        default=250, metadata={"help": "Pairs of each language to choose by (dev), and as many to score (test)."}
    )
    guard_data: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Sources of pairs in other languages or domains that must not get worse: measured before and after "
            "training, and counted when keep_start chooses; their texts are not trained on."
        },
    )
    guard_languages: list[str] = field(
        default_factory=list,
        metadata={"help": "Languages of train_file that are not trained on, and whose pairs are a guard."},
    )
    cleaning: dict[str, Any] | str | None = field(
        default=None, metadata={"help": 'Fields of Cleaning as JSON, such as {"languages": ["en", "de"]}.'}
    )
    streaming: bool = field(
        default=False, metadata={"help": "Read train_file during training; needs max_steps and validation_file."}
    )
    stream_shares: list[float] = field(
        default_factory=list,
        metadata={"help": "Share of each source in a stream; by default by languages and bytes on disk."},
    )
    stream_buffer: int = field(
        default=BUFFER, metadata={"help": "Examples in the shuffle buffer of each process, or of each of its workers."}
    )
    text_alpha: float = field(
        default=0.3, metadata={"help": "Exponent of language sampling, p^alpha, for monolingual text."}
    )
    pair_alpha: float = field(default=0.7, metadata={"help": "Exponent of language sampling, p^alpha, for pairs."})
    text_share: float = field(
        default=0.5, metadata={"help": "Share of monolingual text in the batches, if there are also pairs."}
    )
    max_seq_length: int = field(
        default=256, metadata={"help": "Maximum input length in tokens, of a sentence and of a pair."}
    )

    @property
    def cleaning_rules(self) -> Cleaning:
        """The rules of `cleaning`."""
        return Cleaning(**read_dictionary("cleaning", self.cleaning))

    def check_data(self) -> None:
        """Raise `BadInput` for sources that are missing, or that do not go together."""
        make_lists(self, LISTS)
        self.check_data_arguments()
        if not self.train_file:
            raise BadInput(
                "train_file is empty; name your pairs: --train_file pairs.tsv, or 'news.{en,de}' with its quotes"
            )
        if self.held_out_sentences < bool(self.validation_file):
            raise BadInput(
                f"held_out_sentences is {self.held_out_sentences}; it must be 1 or more with validation_file; "
                "without it 0 holds out nothing"
            )
        if not self.streaming:
            if self.stream_shares:
                raise BadInput(
                    f"stream_shares is {self.stream_shares}, which only a stream has; add --streaming true, or leave "
                    "it out: without it languages are mixed by --text_alpha, --pair_alpha and --text_share"
                )
            if self.stream_buffer != BUFFER:
                raise BadInput(
                    f"stream_buffer is {self.stream_buffer}, which only a stream has; add --streaming true, or leave "
                    "it out"
                )
            return
        if self.stream_buffer < 1:
            raise BadInput(f"stream_buffer is {self.stream_buffer}; allowed is 1 or more examples, by default 20000")
        if not self.validation_file:
            raise BadInput(NO_END)
        if self.guard_languages:
            raise BadInput(
                "guard_languages needs all of train_file before training; with --streaming give --guard_data"
            )
        for name, fix in {"max_train_samples": "--max_steps ends it", "preprocessing_num_workers": WORKERS}.items():
            if getattr(self, name) is not None:
                raise BadInput(f"{name} has no effect on a stream, which is read while training: {fix}; leave it out")


@dataclass
class PretrainingArguments(PretrainingDataArguments, PretrainingModelArguments, RunArguments):
    """HF's training arguments, with the paper's optimiser as defaults, and those of HiCTL's model, data and losses."""

    REFUSED: ClassVar[Mapping[str, str]] = UNUSED_HERE | {"fsdp": NO_SLICES}

    mlm_probability: float = field(default=0.15, metadata={"help": "Share of masked tokens in monolingual text."})
    tlm_probability: float = field(default=0.25, metadata={"help": "Share of masked tokens in pairs."})
    dropout: float | None = field(
        default=None,
        metadata={
            "help": "Dropout during training, which config.json does not record; by default that of the model. 0 is "
            "faster on a CPU."
        },
    )
    reordering: str = field(
        default="words",
        metadata={"help": "How the positive of monolingual text is reordered: words, subwords or local."},
    )
    join_reordered: bool = field(
        default=False,
        metadata={
            "help": "Let the word level of monolingual text read it joined to its reordering, as the paper; needs the "
            "word_level_input clean."
        },
    )
    pair_separators: int = field(
        default=2,
        metadata={"help": "Separators </s> between the sentences of a pair: 2, as XLM-R, or 1, as the paper."},
    )
    lm_head_warmup_steps: int | None = field(
        default=None,
        metadata={
            "help": "Steps in which L_LM trains only its head; by default 100 if a sentence encoder has none, else 0."
        },
    )
    gather_sentences: bool = field(
        default=True, metadata={"help": "Take negatives from the sentences of all processes."}
    )
    gradient_cache: bool = field(
        default=False,
        metadata={"help": "Take negatives from all micro-batches of a step, in the memory of one (GradCache)."},
    )
    group_by_similarity: str = field(
        default="no",
        metadata={
            "help": "Make batches of similar pairs, whose negatives are harder, by their sentences in the commonest "
            "language: no, sentences (by the vectors of the start, which are computed first) or words (by its word "
            "embeddings)."
        },
    )
    shard_parameters: bool = field(
        default=False, metadata={"help": "Divide weights, gradients and optimizer states among the processes (FSDP2)."}
    )
    evaluate_layers: list[int] = field(
        default_factory=list,
        metadata={
            "help": "Layers whose sentence vectors are evaluated, 0 being the embeddings; by default all, or the one "
            "that is trained and read."
        },
    )

    dry_run: bool = field(
        default=False,
        metadata={
            "help": "Only resolve all names, and print shares, sizes, steps, and the memory and time to expect; exit "
            "with status 1 if a name does not resolve."
        },
    )
    auto_find_batch_size: bool = field(
        default=False,
        metadata={
            "help": "Halve per_device_train_batch_size until it fits in memory; the batch of a step stays the same."
        },
    )
    output_dir: str = field(default="runs/hictl", metadata={"help": "Folder of all output."})
    per_device_train_batch_size: int = field(
        default=64, metadata={"help": "Pairs or texts of a micro-batch on one device."}
    )
    learning_rate: float | None = field(  # a number once the start is known
        default=None,
        metadata={"help": "Peak learning rate; by default 5e-5 for a sentence encoder, else the paper's base: 2.5e-4."},
    )
    adam_beta2: float = field(default=0.98, metadata={"help": "The paper: 0.98 for base, 0.999 for large."})
    adam_epsilon: float = field(default=1e-6, metadata={"help": "Adam's epsilon, as in the paper."})
    weight_decay: float = field(default=0.01, metadata={"help": "Weight decay; the paper names none."})
    warmup_steps: float = field(
        default=0.05, metadata={"help": "Warm-up steps, or below 1 their share of all steps; the paper: 10,000."}
    )
    logging_steps: float = field(default=20, metadata={"help": "Steps between logs."})
    dataloader_pin_memory: bool = field(
        default_factory=torch.cuda.is_available,
        metadata={"help": "Copy batches to pinned memory, which speeds up a GPU."},
    )
    dataloader_num_workers: int = field(
        default_factory=lambda: 2 * torch.cuda.is_available(),
        metadata={"help": "Worker processes that prepare batches; by default 2 with a GPU, else 0."},
    )
    remove_unused_columns: bool = field(
        default=False, metadata={"help": "Must stay false: the collator reads all columns."}
    )
    save_total_limit: int | None = field(
        default=2, metadata={"help": "Checkpoints to keep, including the best one; 0: all."}
    )
    load_best_model_at_end: bool = field(
        default=False, metadata={"help": "Load the checkpoint with the best retrieval at the end."}
    )
    metric_for_best_model: str | None = field(
        default="eval_retrieval", metadata={"help": "Metric that chooses the best checkpoint."}
    )
    publish_to: str | None = field(default=None, init=False)  # set from push_to_hub and hub_model_id

    def __post_init__(self) -> None:
        read_dictionaries(self, {"cleaning": Cleaning})
        self.read_config_overrides()
        self.publish_to = repository_to_publish_to(self)
        self.check_data()
        if self.group_by_similarity not in SIMILAR_BY:
            raise BadInput(
                f"group_by_similarity is {self.group_by_similarity!r}; it must be one of {', '.join(SIMILAR_BY)}"
            )
        if self.streaming:
            self.check_stream()
        refuse_unused(self, UNUSED_HERE | dict.fromkeys(OF_DDP if self.shard_parameters else (), IN_SHARDS))
        for name, least in (("max_seq_length", SHORTEST_PAIR), ("per_device_train_batch_size", 1)):
            if getattr(self, name) < least:
                raise BadInput(f"{name} is {getattr(self, name)}; allowed is {least} or more")
        for name in ("text_alpha", "pair_alpha", "text_share", "mlm_probability", "tlm_probability", "dropout"):
            if not 0 <= (getattr(self, name) or 0) <= 1:
                raise BadInput(f"{name} is {getattr(self, name)}; it must be between 0 and 1")
        if self.dropout == 1:
            raise BadInput("dropout is 1, which leaves nothing; allowed is 0 or more and below 1")
        self.check_start()
        self.check_what_to_do()
        evaluates = self.early_stopping_patience or self.eval_on_start
        if evaluates and not (self.held_out_sentences or self.validation_file):
            raise BadInput(
                "held_out_sentences is 0, so no pairs are held out, and early_stopping_patience and eval_on_start need "
                "an evaluation; give 1 or more, or --validation_file, or leave them out"
            )
        if self.keep_start is not None and self.shard_parameters:
            raise BadInput("keep_start averages complete weights; leave it out, or shard_parameters")
        if (self.lm_head_warmup_steps or 0) < 0:
            raise BadInput(f"lm_head_warmup_steps is {self.lm_head_warmup_steps}; allowed is 0 or more")
        if self.auto_find_batch_size and not self.gradient_cache:
            raise BadInput(
                "auto_find_batch_size changes the micro-batch, and without the gradient cache its negatives; "
                "add --gradient_cache true, or choose per_device_train_batch_size yourself"
            )
        if self.reordering not in REORDERINGS:
            raise BadInput(f"reordering is {self.reordering!r}; it must be one of {', '.join(REORDERINGS)}")
        if self.pair_separators not in SEPARATORS:
            raise BadInput(f"pair_separators is {self.pair_separators}; allowed are 1 and 2")
        super().__post_init__()
        refuse_impossible(self)

    def check_stream(self) -> None:
        """Raise `BadInput` for arguments that have no effect on a stream."""
        if self.max_steps <= 0:
            raise BadInput(NO_END)
        if self.group_by_similarity != "no":
            raise BadInput("group_by_similarity looks among examples that are read before training; give no")
        for name in ("eval_strategy", "save_strategy", "logging_strategy"):
            if getattr(self, name) == "epoch":
                raise BadInput(f"{name} is epoch, and a stream has no end of an epoch; give steps")
        for name in MIXING if self.stream_shares else ():
            if differs(self, name):
                raise BadInput(
                    f"{name} is {getattr(self, name)}, and stream_shares has the shares of all sources; leave out one "
                    "of them"
                )

    def read_config_overrides(self) -> None:
        """Parse `config_overrides`, whose keys must be fields of the configuration of a family, or its `model_type`."""
        given = self.config_overrides = read_dictionary("config_overrides", read_overrides(self.config_overrides))
        if self.model_name_or_path or self.config_name:  # its family is known when it is loaded
            known = {name for kind in CONFIGS.values() for name in fields_with_default(kind)}
        else:
            try:
                known = {"model_type", *fields_with_default(config_class(given.get("model_type")))}
            except ValueError as error:
                raise BadInput(f"config_overrides: {error}; leave it out for XLM-R") from error
        refuse_unknown_keys("config_overrides", given, known)
        for name, reason in NOT_OVERRIDDEN.items():
            if given.get(name) not in (None, False):
                raise BadInput(
                    f"config_overrides: {name} is {given[name]!r}, which has no effect: {reason}; leave it out"
                )

    def check_what_to_do(self) -> None:
        """Raise `BadInput` for `do_train`, `do_eval` and `do_predict` where they would have no effect.

        Without them a run trains, and evaluates if pairs are held out.
        """
        if self.do_predict:
            raise BadInput("do_predict is true, but pre-training predicts nothing: --do_eval scores the test pairs")
        if self.do_eval and not self.do_train:
            raise BadInput("do_eval is true without do_train, but pre-training trains: add --do_train true")
        if self.do_train is False:
            raise BadInput("do_train is false, but pre-training trains; leave it out")
        if self.do_eval is False and (self.held_out_sentences or self.validation_file):
            raise BadInput(
                "do_eval is false, but held-out pairs are scored; give --held_out_sentences 0, or leave it out"
            )
        if self.do_eval and not self.held_out_sentences:
            raise BadInput("do_eval is true, but held_out_sentences is 0, so no pairs are held out; give 1 or more")


def is_share(text: str) -> bool:
    """Whether a text is a number from 0 to 1."""
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False
