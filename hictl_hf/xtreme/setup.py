"""Inputs of a run on XTREME: the encoder's configuration and tokenizer, and the examples of the tasks."""

import logging
from collections.abc import Sequence
from pathlib import Path

from transformers import AutoConfig, PreTrainedConfig, PreTrainedTokenizerBase

from ..errors import BadInput
from ..files import digest
from ..hub.loading import check_weights, load_tokenizer, place_of, warn_of_other_ids, weights_of
from .arguments import XtremeArguments
from .data import TaskData, read_task
from .files import data_hash
from .tasks import XtremeTask

logger = logging.getLogger(__name__)

LARGE_FROM = 24  # layers from which on an encoder has the settings of "large"


def load_config_and_tokenizer(args: XtremeArguments) -> tuple[PreTrainedConfig, PreTrainedTokenizerBase]:
    """Load configuration and tokenizer of the encoder, from a folder or the Hub.

    Raises:
        BadInput: loading fails.
    """
    try:
        encoder = str(args.checkpoint)
        config, tokenizer = AutoConfig.from_pretrained(encoder), load_tokenizer(str(args.tokenizer_source))
    except (OSError, ValueError) as error:
        name = args.model_name_or_path
        raise BadInput(f"--model_name_or_path {name}: no encoder with a tokenizer that loads: {error}") from error
    check_weights(encoder)
    warn_of_other_ids(encoder, str(args.tokenizer_source), tokenizer)
    return config, tokenizer


def encoder_hash(args: XtremeArguments) -> str:
    """Hash of the encoder's weights and its tokenizer."""
    tokenizer = place_of(str(args.tokenizer_source), "tokenizer.json")
    return data_hash([*map(digest, weights_of(str(args.checkpoint))), digest(tokenizer) if tokenizer else ""])


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
