"""Arguments of a translation run: HF's `TrainingArguments` and those of this package, as flags or as a recipe."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar

import torch
from transformers import GenerationConfig, PreTrainedConfig

from ..data.cleaning import Cleaning
from ..data.languages import language_code, parse_tag
from ..errors import BadInput
from ..models.configuration_decoder import DecoderConfig
from ..models.configuration_hictl import CONFIGS
from ..parsing import read_overrides
from ..training.arguments import (
    RunArguments,
    fields_with_default,
    read_dictionaries,
    read_dictionary,
    refuse_impossible,
    refuse_unknown_keys,
    repository_to_publish_to,
)  # fmt: skip
from ..training.checkpoints import resume_choice
from ..training.fields import NO_SLICES, UNUSED, refuse_unused
from ..training.model_and_data import DataArguments, ModelArguments, make_lists
from .beam_search import BeamSearchConfig
from .corpus import Direction, directions_between
from .moses import MosesTokenizer
from .scores import METRICS, check_language

logger = logging.getLogger(__name__)

LEARNING_RATES = {1: 5e-4, 2: 2e-5}
DICTIONARIES = {"cleaning": Cleaning, "multi_bleu": MosesTokenizer}
OF_A_CONFIG = ("config_overrides", "encoder_config")
OF_A_NEW_MODEL = (
    "decoder_layers", "cls_bias", "cls_bias_scale", "config_overrides", "random_encoder", "encoder_config",
    "trim_target_vocab",
)  # fmt: skip
BY_TOKENS = "batches have as many tokens as --max_tokens says"
BY_METRIC = "--metric chooses the best state"
UNUSED_HERE = UNUSED | {
    "per_device_train_batch_size": BY_TOKENS,
    "per_device_eval_batch_size": BY_TOKENS,
    "auto_find_batch_size": BY_TOKENS,
    "train_sampling_strategy": "pairs of similar length share a batch",
    "metric_for_best_model": BY_METRIC,
    "greater_is_better": BY_METRIC,
    "ddp_find_unused_parameters": "each step uses all parameters that are trained",
}
LISTS = ("train_file", "validation_file", "test_file", "source_lang", "target_lang")


@dataclass
class TranslationModelArguments(ModelArguments):
    """What a translation run starts from."""

    model_name_or_path: str | None = field(
        default=None,
        metadata={
            "help": "Folder or Hub name: an encoder of a family that HiCTL trains, which gets a new decoder (step 1), "
            "or a translation model to continue (step 2) or to test, such as runs/step1/model."
        },
    )
    tokenizer_name: str | None = field(
        default=None, metadata={"help": "Folder or Hub name of the tokenizer; by default that of model_name_or_path."}
    )
    step: int | None = field(
        default=None,
        metadata={
            "help": "1: train a new decoder on the frozen encoder; 2: train all weights, on one pair; by default 2 to "
            "train a translation model, else 1."
        },
    )
    freeze_encoder: bool | None = field(
        default=None, metadata={"help": "Train only the decoder; the default in step 1."}
    )
    decoder_layers: int | None = field(
        default=None, metadata={"help": "Layers of a new decoder; the paper: 4, and 6 with 24 encoder layers."}
    )
    cls_bias: str | None = field(
        default=None, metadata={"help": "Bias of [CLS] on the logits: none, dot (default) or cosine (the paper)."}
    )
    cls_bias_scale: str | None = field(
        default=None, metadata={"help": "Scale of that bias: learned, from 0 (default), or fixed at 1 (the paper)."}
    )
    config_overrides: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": 'More fields of the configuration for a new decoder, as JSON such as {"decoder_dropout": 0.3}, or '
            "as a=1,b=2."
        },
    )
    trim_target_vocab: str = field(
        default="auto",
        metadata={"help": "Ids a new decoder can produce: auto, those of the targets in train; a number; off, all."},
    )
    random_encoder: bool = field(
        default=False,
        metadata={
            "help": "Encoder of the same sizes with random weights: the baseline of a pre-trained one; of "
            "model_name_or_path only configuration and tokenizer are read."
        },
    )
    encoder_config: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": 'Other sizes of a random encoder, fields of its config as JSON: {"num_hidden_layers": 6}.'},
    )

    @cached_property
    def is_continued(self) -> bool | None:
        """Whether `model_name_or_path` is a translation model; `None` if its configuration cannot be read."""
        try:
            values, _ = PreTrainedConfig.get_config_dict(self.model_name_or_path, revision=self.model_revision)
            return bool(values.get("is_encoder_decoder"))
        except (OSError, ValueError, AttributeError):
            return None  # `setup.config_of_run` says why

    def check_model(self) -> None:
        """Raise `BadInput` without a model, and for settings of a new decoder if the model has one."""
        if not self.model_name_or_path:
            raise BadInput(
                "there is no model; give --model_name_or_path: an encoder, which gets a new decoder (step 1), or a "
                "translation model to go on with (step 2, or a test)"
            )
        self.check_revision()
        defaults = {item.name: item.default for item in fields(type(self))} | {"config_overrides": {}}
        given = [name for name in OF_A_NEW_MODEL if getattr(self, name) != defaults[name]]
        if self.is_continued and given:
            raise BadInput(
                f"{', '.join(given)} is decided when a decoder is made, and {self.model_name_or_path} has one: leave "
                "it out, or give an encoder"
            )
        if self.encoder_config and not self.random_encoder:
            raise BadInput(
                "encoder_config gives a random encoder its sizes; add --random_encoder true, or leave it out"
            )


@dataclass
class TranslationDataArguments(DataArguments):
    """What a translation run reads."""

    train_file: list[str] = field(
        default_factory=list,
        metadata={"help": "Sources of pairs: files, folders, corpus.{en,de}, hub:name:config:split; none: only test."},
    )
    validation_file: list[str] = field(
        default_factory=list, metadata={"help": "Sources of pairs to choose the best state on."}
    )
    test_file: list[str] = field(
        default_factory=list, metadata={"help": "Sources of pairs to translate and score at the end."}
    )
    dataset_name: str | None = field(
        default=None,
        metadata={
            "help": "Dataset on the Hub to train on, in place of --train_file hub:NAME; with --do_eval and "
            "--do_predict also its validation and test."
        },
    )
    source_lang: list[str] = field(default_factory=list, metadata={"help": "Languages to translate from."})
    target_lang: list[str] = field(
        default_factory=list,
        metadata={"help": "Languages to translate into, each from all others of source_lang."},
    )
    cleaning: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Fields of Cleaning as JSON; by default all unbroken rows of train are kept."}
    )
    strict: bool = field(
        default=False, metadata={"help": "Stop at the first broken row of train instead of counting them."}
    )
    max_tokens: int = field(
        default=4096, metadata={"help": "Tokens of a batch on a device, on its longer side, padding included."}
    )
    max_seq_length: int = field(
        default=512, metadata={"help": "Most tokens of a side; longer pairs are left out of training and counted."}
    )

    def check_languages(self) -> None:
        """Write the languages as rows have them; `BadInput` for other codes, or none to translate between."""
        for name in ("source_lang", "target_lang"):
            for language in getattr(self, name):
                check_language(language)
            languages = [language_code(language) for language in getattr(self, name)]  # as rows have them
            if len({*map(parse_tag, languages)}) < len(languages):
                raise BadInput(f"{name} is {' '.join(languages)}; allowed is each language once")
            setattr(self, name, languages)
        if not self.directions:
            raise BadInput(
                f"source_lang is {self.source_lang} and target_lang {self.target_lang}; allowed are one or more "
                "languages each, and two that differ, such as --source_lang de --target_lang en"
            )
        if untrained := [name for name in self.target_lang if name not in {each.target for each in self.directions}]:
            raise BadInput(
                f"target_lang is {' '.join(self.target_lang)}, and no other language is translated into "
                f"{', '.join(untrained)}; allowed are targets of another source_lang. Leave it out, or add a source"
            )

    @property
    def directions(self) -> list[Direction]:
        """All directions from a source into a different target language."""
        return directions_between(self.source_lang, self.target_lang)


@dataclass
class TranslationArguments(TranslationDataArguments, TranslationModelArguments, RunArguments):
    """HF's training arguments with defaults for translation, and those of the model, its two steps, and the data."""

    REFUSED: ClassVar[Mapping[str, str]] = UNUSED_HERE | {"fsdp": NO_SLICES}

    average_checkpoints: int = field(
        default=1,
        metadata={"help": "Use the mean of the last n checkpoints, with validation if it is better; 1: never."},
    )
    metric: str = field(
        default="sacrebleu", metadata={"help": f"Metric that chooses the best state: {', '.join(METRICS)}."}
    )
    multi_bleu: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": 'Tokenizer of multi-bleu, fields of MosesTokenizer as JSON, such as {"aggressive": true}.'},
    )
    num_beams: int | None = field(
        default=None,
        metadata={
            "help": "Beams of the search; default: the model's, of a new decoder 5. The paper: 5, 4 on WMT14 en-de."
        },
    )
    predict_with_generate: bool = field(
        default=True, metadata={"help": "Must stay true: validation and test are translated, by beam search."}
    )
    length_penalty: float | None = field(
        default=None,
        metadata={
            "help": "log-probability / length ** this; default: the model's, of a new decoder 1.0. The paper: 1.0, 0.6 "
            "on WMT14 en-de."
        },
    )
    max_length_a: float = field(default=1.2, metadata={"help": "A translation has at most a * source tokens + b ..."})
    max_length_b: int = field(default=10, metadata={"help": "... tokens, this being b, and never more than 200."})

    output_dir: str = field(
        default="runs/translation", metadata={"help": "Folder of the run; an interrupted run goes on."}
    )
    learning_rate: float | None = field(
        default=None, metadata={"help": "Peak learning rate; 5e-4 in step 1, 2e-5 (the paper) in step 2."}
    )
    lr_scheduler_type: str = field(default="inverse_sqrt", metadata={"help": "Learning rate schedule after warm-up."})
    warmup_steps: float = field(default=0.1, metadata={"help": "Steps of warm-up, or below 1 a share of all steps."})
    adam_beta2: float = field(default=0.98, metadata={"help": "β2 of Adam, as in the original Transformer."})
    weight_decay: float = field(default=0.01, metadata={"help": "Weight decay; the paper names none."})
    label_smoothing_factor: float = field(default=0.1, metadata={"help": "ε of label smoothing, over all tokens."})
    eval_strategy: str = field(default="epoch", metadata={"help": "When to validate: no, steps or epoch."})
    save_strategy: str | None = field(
        default=None,
        metadata={
            "help": "When to save a checkpoint: no, steps or epoch; by default like --eval_strategy, else epoch."
        },
    )
    save_steps: float | None = field(
        default=None, metadata={"help": "Steps between checkpoints; by default --eval_steps, else 500."}
    )
    save_total_limit: int | None = field(
        default=None,
        metadata={
            "help": "Checkpoints to keep, including the best one, 0: all; by default 2, or one more than are averaged."
        },
    )
    load_best_model_at_end: bool | None = field(
        default=None, metadata={"help": "Decided by --eval_strategy: the best state is kept, or without it the last."}
    )
    logging_steps: float = field(default=50, metadata={"help": "Steps between logs."})
    dataloader_pin_memory: bool = field(
        default_factory=torch.cuda.is_available, metadata={"help": "Pin batches in memory; useful with a GPU."}
    )
    dataloader_num_workers: int = field(
        default_factory=lambda: 2 * torch.cuda.is_available(),
        metadata={"help": "Processes that load batches; by default 2 with a GPU, else 0."},
    )
    remove_unused_columns: bool = field(default=False, metadata={"help": "Must stay false: the collator reads all."})
    publish_to: str | None = field(default=None, init=False)  # what push_to_hub and hub_model_id say

    def __post_init__(self) -> None:
        self.publish_to = repository_to_publish_to(self)
        refuse_unused(self, UNUSED_HERE)
        make_lists(self, LISTS)
        self.trim_target_vocab = str(self.trim_target_vocab)
        self.config_overrides = read_overrides(self.config_overrides)
        read_dictionaries(self, DICTIONARIES)
        for name in OF_A_CONFIG:  # the family is known when the encoder is loaded
            setattr(self, name, read_dictionary(name, getattr(self, name)))
            refuse_unknown_keys(name, getattr(self, name), {*chain(*map(fields_with_default, CONFIGS.values()))})
        self.encoder_config = self.encoder_config or None  # as runs before 0.10 recorded it
        self.check_what_to_do()
        self.check_model()
        self.choose_search()
        self.check_choices()
        self.check_data()
        if self.step is None:
            self.step = 2 if self.is_continued and self.train_file else 1
        if self.learning_rate is None:
            self.learning_rate = LEARNING_RATES[self.step]
        if self.freeze_encoder is None:
            self.freeze_encoder = self.step == 1
        if self.random_encoder and self.freeze_encoder:
            logger.warning("the random weights of the encoder are not trained: add --freeze_encoder false")
        if self.save_total_limit is None:
            self.save_total_limit = 2
        if self.average_checkpoints > 1 and self.save_total_limit > 0:  # the best one is among them
            self.save_total_limit = max(self.save_total_limit, self.average_checkpoints + 1)
        self.choose_state()
        self.choose_saving()
        self.metric_for_best_model, self.greater_is_better = f"eval_{self.metric}", True
        self.ddp_find_unused_parameters = False  # all are used
        super().__post_init__()
        refuse_impossible(self)
        if self.debug:
            raise BadInput(
                "debug is underflow_overflow, which cannot read the boolean masks of a decoder; leave it out"
            )

    def choose_search(self) -> None:
        """Search as the model does, and with a new decoder as in the paper, unless the arguments say otherwise."""
        saved = None
        if self.is_continued:
            with suppress(OSError, TypeError, ValueError):  # no file, or one that `setup.load_or_make_model` refuses
                saved = GenerationConfig.from_pretrained(self.model_name_or_path, revision=self.model_revision)
        for name in ("num_beams", "length_penalty"):
            if getattr(self, name) is None:
                own = getattr(saved, name, None)
                setattr(self, name, getattr(BeamSearchConfig, name) if own is None else own)

    def choose_state(self) -> None:
        """Keep the best state on validation, or the last one without validation."""
        if self.eval_strategy == "steps" and self.train_file and not self.validation_file:
            raise BadInput("eval_strategy is steps, but there are no pairs to validate on; give --validation_file")
        if not self.validation_file or not self.train_file:
            self.eval_strategy = "no"
        evaluates = self.eval_strategy != "no"
        if self.load_best_model_at_end not in (None, evaluates):
            raise BadInput(
                f"load_best_model_at_end is {self.load_best_model_at_end}, and eval_strategy {self.eval_strategy}: the "
                "best state on --validation_file is kept, and with --eval_strategy no the last one; leave it out"
            )
        self.load_best_model_at_end = evaluates
        if self.eval_on_start and not evaluates:
            raise BadInput("eval_on_start is true, and nothing is evaluated; give --validation_file, or leave it out")

    def choose_saving(self) -> None:
        """Save when the model is validated, unless the arguments say otherwise."""
        if self.save_strategy is None:
            self.save_strategy = self.eval_strategy if self.load_best_model_at_end else "epoch"
        if self.save_steps is None:
            with_eval = self.save_strategy == self.eval_strategy == "steps"
            self.save_steps = (with_eval and (self.eval_steps or self.logging_steps)) or 500
        if self.load_best_model_at_end and self.save_strategy not in (self.eval_strategy, "best"):
            raise BadInput(
                f"save_strategy is {self.save_strategy} and eval_strategy {self.eval_strategy}: the best state on "
                f"validation is kept as a checkpoint, so they have to be the same; give --save_strategy "
                f"{self.eval_strategy}, or --eval_strategy no"
            )

    def check_choices(self) -> None:
        for name, allowed in (("step", (None, *LEARNING_RATES)), ("metric", METRICS)):
            if getattr(self, name) not in allowed:
                raise BadInput(
                    f"{name} is {getattr(self, name)!r}; allowed are {', '.join(str(each) for each in allowed if each)}"
                )
        if self.multi_bleu and self.metric != "multi-bleu":  # a recipe may have it for other flags
            logger.warning("multi_bleu has no effect with --metric %s; it is read by multi-bleu alone", self.metric)
        overrides = read_dictionary("config_overrides", self.config_overrides)
        bias = overrides.get("cls_bias") or self.cls_bias or DecoderConfig.cls_bias
        if bias == "none" and self.cls_bias_scale:
            logger.warning("cls_bias_scale has no effect with --cls_bias none")
        if bias != "cosine" and "cls_bias_temperature" in overrides:
            logger.warning("cls_bias_temperature has no effect with --cls_bias %s; it is read by cosine alone", bias)
        MosesTokenizer("", **read_dictionary("multi_bleu", self.multi_bleu))  # raises `BadInput` for other values
        if not self.predict_with_generate:
            raise BadInput("predict_with_generate is false, but scores are those of translations; leave it out")
        if self.trim_target_vocab not in ("auto", "off") and not self.trim_target_vocab.isdecimal():
            raise BadInput(
                f"trim_target_vocab is {self.trim_target_vocab!r}; allowed are auto, off, or a number of ids"
            )
        for name in ("max_tokens", "max_seq_length", "average_checkpoints", "num_beams"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} is {getattr(self, name)}; allowed is 1 or more")
        if resume_choice(self.resume_from_checkpoint) is False:
            raise BadInput(
                f"resume_from_checkpoint is {self.resume_from_checkpoint!r}; a run goes on by itself where it was "
                "interrupted: leave it out, and to begin anew name another --output_dir"
            )
        if not 0 <= self.label_smoothing_factor < 1:
            raise BadInput(f"label_smoothing_factor is {self.label_smoothing_factor}; allowed is 0 to below 1")
        assert self.beam  # raises `BadInput` for impossible lengths

    def check_what_to_do(self) -> None:
        """Apply `do_train`, `do_eval` and `do_predict`: the sources of one that is false are not read. If any is true,
        those of training and test are read only where theirs is.

        Without them the sources decide. `BadInput` for one that has no sources, or is without effect.
        """
        sources = {"do_eval": ("validation_file", "validation"), "do_predict": ("test_file", "test")}
        asked = [flag for flag in ("do_train", *sources) if getattr(self, flag)]
        self.check_data_arguments({name: split for flag, (name, split) in sources.items() if flag in asked})
        for flag, name in {"do_train": "train_file", **{flag: name for flag, (name, _) in sources.items()}}.items():
            if flag in asked and not getattr(self, name):
                raise BadInput(f"{flag} is true, but there is no --{name}; give one, or leave {flag} out")
        if "do_eval" in asked and ("do_train" not in asked or self.eval_strategy == "no"):
            raise BadInput(
                "do_eval chooses the best state of a training; add --do_train true and an --eval_strategy, or score "
                "the model by --do_predict true and --test_file"
            )
        if self.do_train is False or asked and "do_train" not in asked:
            self.train_file = self.validation_file = []
        if self.do_eval is False:
            self.validation_file = []
        if self.do_predict is False or asked and "do_predict" not in asked:
            self.test_file = []

    def check_data(self) -> None:
        if not (self.train_file or self.test_file):
            raise BadInput("there is neither --train_file nor --test_file; name at least one source of pairs")
        if self.publish_to and not self.train_file:
            raise BadInput("push_to_hub shares the model that a run has trained; give --train_file, or leave it out")
        if self.is_continued is False and not self.train_file:
            raise BadInput(
                f"{self.model_name_or_path} has no decoder, and a new one has to be trained: give --train_file, or a "
                "translation model"
            )
        if self.validation_file and not self.train_file:
            raise BadInput(
                "--validation_file chooses among the states of a training; give --train_file, or name it as --test_file"
            )
        if self.average_checkpoints > 1 and self.save_strategy == "no":
            raise BadInput(
                "average_checkpoints needs checkpoints; give --save_strategy steps or epoch, or leave it out"
            )
        self.check_languages()

    @property
    def beam(self) -> BeamSearchConfig:
        names = ("num_beams", "length_penalty", "max_length_a", "max_length_b")
        return BeamSearchConfig(**{name: getattr(self, name) for name in names})
