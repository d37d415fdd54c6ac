"""Arguments of the model and of the data, under the names of transformers' example scripts, for all kinds of run."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from huggingface_hub import snapshot_download

from ..errors import BadInput, as_bad_input, short_repr

MAIN = "main"
FILES = ("*.json", "*.txt", "*.model", "*.safetensors")  # of a checkpoint: no exports, no pickles
OF_THE_WEIGHTS = (  # fields that change what weights of the same shape compute
    "num_attention_heads", "num_key_value_heads", "head_dim", "is_decoder", "add_cross_attention", "is_encoder_decoder",
    "hidden_act", "hidden_activation", "layer_norm_eps", "norm_eps", "rms_norm_eps", "tie_word_embeddings", "legacy",
    "relative_attention", "max_relative_positions", "pos_att_type", "position_biased_input",
)  # fmt: skip


def make_lists(args: Any, names: Iterable[str]) -> None:
    """Make each of these arguments a list of texts, as flags do: the letters of one text would be sources."""
    for name in names:
        value = getattr(args, name)
        try:
            values = [value] if isinstance(value, str | os.PathLike) and value else value or []
            setattr(args, name, [os.fspath(each) for each in values])
        except (TypeError, ValueError) as error:  # of a table, which is neither true nor false
            found = f"{name} is {' '.join(short_repr(value).split())}, of type {type(value).__name__}"
            fix = "Write rows in memory first to a file: datasets.Dataset.to_parquet('corpus.parquet')"
            raise BadInput(f"{found}; allowed is a list of names. {fix}.") from error


@dataclass
class ModelArguments:
    """What a run starts from."""

    model_name_or_path: str | None = field(default=None, metadata={"help": "Folder or Hub name of the model."})
    tokenizer_name: str | None = field(
        default=None, metadata={"help": "Folder or Hub name of a tokenizer; by default that of model_name_or_path."}
    )
    model_revision: str = field(
        default=MAIN,
        metadata={"help": "Branch, tag or commit of what is loaded from the Hub: model, tokenizer, config."},
    )

    def check_revision(self) -> None:
        """Raise `BadInput` for the revision of a folder, which has one state."""
        if self.model_revision != MAIN and self.model_name_or_path and Path(self.model_name_or_path).exists():
            raise BadInput(
                f"model_revision is {self.model_revision}, and model_name_or_path {self.model_name_or_path} a folder; "
                "allowed is a revision of a name on the Hub. Leave it out, or give the name on the Hub"
            )

    @property
    def checkpoint(self) -> str | None:
        """What to load the model from: `model_name_or_path`, or a folder of its files at `model_revision`."""
        return at_revision(self.model_name_or_path, self.model_revision)

    @property
    def tokenizer_source(self) -> str | None:
        """What to load the tokenizer from; `None` for a new one."""
        return at_revision(self.tokenizer_name or self.model_name_or_path, self.model_revision)


@dataclass
class DataArguments:
    """What a run reads."""

    train_file: list[str] = field(default_factory=list, metadata={"help": "Sources to train on."})
    validation_file: list[str] = field(default_factory=list, metadata={"help": "Sources to choose the best state on."})
    dataset_name: str | None = field(
        default=None, metadata={"help": "Dataset on the Hub to train on, in place of --train_file hub:NAME."}
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "Configuration of dataset_name."})
    max_train_samples: int | None = field(
        default=None,
        metadata={"help": "Most examples to train on, spread evenly over those that are left after cleaning."},
    )
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Processes that tokenize; by default this one."}
    )
    cleaning: dict[str, Any] | str | None = field(default=None, metadata={"help": "Fields of Cleaning as JSON."})
    strict: bool = field(
        default=False, metadata={"help": "Stop at the first broken row instead of skipping and counting it."}
    )

    def check_data_arguments(self, splits: Mapping[str, str] = MappingProxyType({})) -> None:
        """Turn `dataset_name` into sources where none are given; `BadInput` for values that cannot be.

        Args:
            splits: further arguments without sources -> the split of the dataset that they get.
        """
        for name in ("max_train_samples", "preprocessing_num_workers"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise BadInput(f"{name} is {value}; allowed is 1 or more. Leave it out for no limit")
        if self.dataset_config_name and not self.dataset_name:
            raise BadInput("dataset_config_name needs a dataset; give --dataset_name, or --train_file hub:NAME:CONFIG")
        if self.dataset_name and self.train_file:
            raise BadInput(
                f"dataset_name is {self.dataset_name} and train_file {', '.join(self.train_file)}; allowed is one of "
                "them. To train on both give --train_file hub:NAME and the files"
            )
        if self.dataset_name:
            for name, split in {"train_file": "", **splits}.items():
                parts = ("hub", self.dataset_name, self.dataset_config_name or "", split)
                setattr(self, name, getattr(self, name) or [":".join(parts).rstrip(":")])
            self.dataset_name = self.dataset_config_name = None  # the same run as with its sources


@cache
def at_revision(name: str | None, revision: str) -> str | None:
    """A folder with the files of a name on the Hub at a revision; the name itself for `MAIN`, and any folder.

    Loading goes through a dozen functions of libraries and ours, of which some have no revision.
    """
    if not name or revision == MAIN or Path(name).is_dir():
        return name
    with as_bad_input(f"{name} at {revision}", "a name on the Hub and its revision", "Check both, and the connection."):
        return snapshot_download(name, revision=revision, allow_patterns=list(FILES))
