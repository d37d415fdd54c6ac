"""Inputs of a run on XTREME: the encoder's configuration and tokenizer, and the examples of the tasks."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from transformers import AutoConfig, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.tokenization_utils_base import ADDED_TOKENS_FILE, FULL_TOKENIZER_FILE, TOKENIZER_CONFIG_FILE
from transformers.utils import CONFIG_NAME

from ..data.layout import runs_of_special_ids
from ..data.text_encoding import special_tokens
from ..embedding.sentence_transformers_settings import (
    PROMPTS_FILE,
    TRANSFORMER_FILES,
    read_sentence_transformers_files,
    transformer_place,
)
from ..errors import BadInput
from ..files import digest
from ..hub.loading import (
    check_ids_of_text,
    check_weights,
    load_tokenizer,
    place_of,
    refuse_not_finite,
    warn_of_other_ids,
    weights_of,
)
from .arguments import XtremeArguments
from .data import TaskData, read_task
from .files import data_hash
from .fine_tuning import POOLER, empty_encoder, position_embeddings
from .question_answering import QuestionAnswering
from .sentence_pairs import SentencePairs
from .tasks import XtremeTask

logger = logging.getLogger(__name__)

LARGE_FROM = 24  # layers from which on an encoder has the settings of "large"
OF_FINE_TUNING = (
    "setting", "train_split", "learning_rate", "per_device_train_batch_size", "seed", "num_train_epochs", "select_on",
    "similar_lengths", "micro_batches", "bf16", "per_device_eval_batch_size",
)  # fmt: skip
OF_RETRIEVAL = ("layer", "pooling", "sweep_layers")


def tell_idle(args: XtremeArguments, tasks: Sequence[XtremeTask]) -> None:
    """Warn of arguments that are given and have no effect on any of the tasks, and of `compat` on some of them."""
    usual = XtremeArguments(model_name_or_path="x")
    names = ", ".join(task.name for task in tasks)
    plural = "are" if len(tasks) > 1 else "is"
    for about, kind, is_kind in (
        (OF_FINE_TUNING, "fine-tuned", any(task.format.features for task in tasks)),
        (OF_RETRIEVAL, "retrieval", any(not task.format.features for task in tasks)),
    ):
        given = [name for name in about if getattr(args, name) != getattr(usual, name)]
        if given and not is_kind:
            logger.warning("%s: no effect on %s, which %s not %s", ", ".join(given), names, plural, kind)
    read = [task.name for task in tasks if task.format.compat and (task.format.compat, args.data) != ("reading", "hub")]
    idle = [task.name for task in tasks if task.name not in read and (task.format.compat or not read)]
    if args.compat and idle:
        logger.warning("compat: no effect on %s", ", ".join(idle))


def load_config_and_tokenizer(args: XtremeArguments) -> tuple[PreTrainedConfig, PreTrainedTokenizerBase]:
    """Load configuration and tokenizer of the encoder, from a folder or the Hub.

    Raises:
        BadInput: loading fails.
    """
    try:
        encoder = encoder_place(args.checkpoint)
        config = AutoConfig.from_pretrained(encoder, trust_remote_code=False)
        tokenizer = load_tokenizer(encoder_place(args.tokenizer_source))
    except (OSError, ValueError) as error:
        name = args.model_name_or_path
        raise BadInput(f"--model_name_or_path {name}: no encoder with a tokenizer that loads: {error}") from error
    check_weights(encoder)
    warn_of_other_ids(encoder, str(args.tokenizer_source), tokenizer)
    size = getattr(config, "vocab_size", None)
    if size is not None:  # of most
        check_ids_of_text(str(args.model_name_or_path), tokenizer, size)
    if tokenizer.pad_token is None:  # batches are masked, so any special token will do
        tokenizer.pad_token = special_tokens(tokenizer).get(config.pad_token_id, tokenizer.eos_token)
        logger.info("%s: its tokenizer names no padding; %s pads", args.tokenizer_source, tokenizer.pad_token)
    return config, tokenizer


def encoder_place(checkpoint: str | None) -> str:
    """The folder or Hub name with configuration, weights and tokenizer: the checkpoint, or if these are not there the
    sub-folder that its files for sentence-transformers name."""
    name = str(checkpoint)
    if place_of(name, CONFIG_NAME):
        return name
    return transformer_place(name, read_sentence_transformers_files(name))


def check_encoder(
    args: XtremeArguments, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, data: Sequence[TaskData]
) -> None:
    """Raise `BadInput` for a task that this kind of encoder or tokenizer cannot do, before any is trained."""
    found = f"{args.model_name_or_path} is of the type {config.model_type}"
    fix = "give another encoder, or run other --tasks"
    tasks = [each.task for each in data if each.test]
    for task in tasks:
        if task.format.features is None:
            if config.is_encoder_decoder:
                allowed = "allowed is an encoder alone, whose states are read"
                raise BadInput(f"{task.name}: {found}, an encoder with a decoder; {allowed}; {fix}")
            continue
        kind = task.format.features.model_class
        classes = getattr(kind, "_model_mapping", None)  # of Auto classes
        if classes is not None and type(config) not in classes:
            head = kind.__name__.removeprefix("AutoModel")
            raise BadInput(f"{task.name}: {found}, and transformers has no {head} for it; {fix}")
    if trained := [task for task in tasks if task.format.features]:
        check_tokenizer(args, config, tokenizer, trained)


def check_tokenizer(
    args: XtremeArguments, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, tasks: Sequence[XtremeTask]
) -> None:
    """Raise `BadInput` for a tokenizer that an encoder cannot be trained with; log pairs that nothing separates."""
    place = args.tokenizer_name or args.model_name_or_path
    aligned = [task.name for task in tasks if task.format.features is not SentencePairs]
    if aligned and not tokenizer.is_fast:
        raise BadInput(
            f"{aligned[0]}: the tokenizer of {place} is a {type(tokenizer).__name__}, which does not say where its "
            "tokens are; allowed is a fast tokenizer; give another encoder, or run other --tasks"
        )
    if tokenizer.pad_token is None:
        raise BadInput(
            f"{place}: its tokenizer has no token for padding, and none for the end; allowed is one of them. Name it "
            "in its tokenizer_config.json as pad_token"
        )
    if tokenizer.pad_token_id >= getattr(config, "vocab_size", sys.maxsize):
        raise BadInput(
            f"{place}: its tokenizer pads with the id {tokenizer.pad_token_id}, and the model has {config.vocab_size} "
            "embeddings; allowed is an id below. Name another token in its tokenizer_config.json as pad_token"
        )
    for embeddings in position_embeddings(config):
        if embeddings.padding_idx not in (None, tokenizer.pad_token_id):
            raise BadInput(
                f"{args.model_name_or_path}: its positions begin after the id of padding, {embeddings.padding_idx}, "
                f"and the tokenizer's is {tokenizer.pad_token_id}; allowed are equal ones. Give the tokenizer that was "
                "saved with the model"
            )
    of_pairs = [task.name for task in tasks if task.format.features in (SentencePairs, QuestionAnswering)]
    if of_pairs and tokenizer.is_fast and not runs_of_special_ids(tokenizer, "a", "a")[1]:
        message = "%s: its tokenizer puts nothing between two texts; in %s they are read as one text without a border"
        logger.warning(message, place, ", ".join(of_pairs))


def refuse_weights(args: XtremeArguments, config: PreTrainedConfig) -> None:
    """Raise `BadInput` if weights of the encoder hold NaN or infinity."""
    read = [name for name in empty_encoder(config).state_dict() if POOLER not in name]
    refuse_not_finite(encoder_place(args.checkpoint), read)


def encoder_hash(args: XtremeArguments) -> str:
    """Hash of the encoder's weights and its tokenizer.json."""
    tokenizer = place_of(encoder_place(args.tokenizer_source), FULL_TOKENIZER_FILE)
    weights = weights_of(encoder_place(args.checkpoint))
    return data_hash([*map(digest, weights), digest(tokenizer) if tokenizer else ""])


def tokenizer_hash(args: XtremeArguments, tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash of the files that a tokenizer without tokenizer.json, which `encoder_hash` reads, is made from, such as
    sentencepiece.bpe.model."""
    place = encoder_place(args.tokenizer_source)
    if place_of(place, FULL_TOKENIZER_FILE):
        return ""
    names = sorted({*tokenizer.vocab_files_names.values(), TOKENIZER_CONFIG_FILE, ADDED_TOKENS_FILE})
    return data_hash([(name, digest(path)) for name in names if (path := place_of(place, name))])


def reading_hash(args: XtremeArguments) -> str:
    """Hash of the files that say how the encoder is built and read, such as by a prompt."""
    name, place = str(args.checkpoint), encoder_place(args.checkpoint)
    settings = read_sentence_transformers_files(name)
    places = {"modules.json": name, PROMPTS_FILE: name} | dict.fromkeys((CONFIG_NAME, *TRANSFORMER_FILES), place)
    paths = [place_of(folder, file) for file, folder in places.items()]
    paths.append(place_of(encoder_place(args.tokenizer_source), TOKENIZER_CONFIG_FILE))  # has the greatest length
    return data_hash([digest(path) if path else "" for path in paths] + [str(settings and settings.include_prompt)])


def size_of_settings(args: XtremeArguments, config: PreTrainedConfig) -> str:
    """Return "base" or "large", whose settings of fine-tuning are used."""
    return args.size or ("large" if config.num_hidden_layers >= LARGE_FROM else "base")


def read_data(tasks: Sequence[XtremeTask], args: XtremeArguments) -> list[TaskData]:
    """Read and check the examples of all tasks.

    Raises:
        BadInput: an example cannot be used, or no task has examples to score.
    """
    data = [read_task_data(task, args) for task in tasks]
    if not any(each.test for each in data):
        reasons = "; ".join(f"{each.task.name}: {next(iter(each.missing.values()), '-')}" for each in data)
        raise BadInput(
            f"--data {args.data}: has nothing to score. {reasons}. Give XTREME's folder, or run other tasks."
        )
    return data


def read_task_data(task: XtremeTask, args: XtremeArguments) -> TaskData:
    """Read and check the examples of a task; log the languages that have none."""
    languages = [name for name in task.languages if not args.languages or name in args.languages]
    labels = Path(args.labels) if args.labels else None
    data = read_task(task, args.source, args.setting, args.splits, languages, args.select_on, labels)
    if data.missing:
        logger.info("%s: not scored: %s", task.name, "; ".join(f"{name}: {why}" for name, why in data.missing.items()))
    return data
