"""What a pre-training run would read and cost, without reading data, loading weights or training: `--dry_run`."""

import contextlib
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, is_offline_mode, snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from transformers.utils import CONFIG_NAME

from ..data.sources import list_shards
from ..data.stream_parts import NothingLeft, StreamPart, bytes_of, normalized_shares, source_shares, stream_parts
from ..embedding.encoder import check_model_type
from ..errors import BadInput, as_bad_input
from ..files import readable
from ..hub.loading import model_errors, problem_of_files
from ..models.configuration_hictl import config_class, load_config
from ..models.modeling_hictl import new_model
from ..reports.tables import NONE, Table
from ..training.model_and_data import MAIN
from .arguments import PretrainingArguments
from .estimates import GPUS, PAIR, Shape, gigabytes, milliseconds
from .setup import config_settings

logger = logging.getLogger(__name__)

SCRIPT, DATA = ".py", (".parquet", ".arrow", ".json", ".jsonl", ".csv", ".tsv", ".txt", ".gz", ".zst", ".zip", ".tar")
MODELS = ("model_name_or_path", "config_name", "tokenizer_name")
ON_THE_HUB = "on the Hub"


@dataclass(frozen=True)
class Resolved:
    """A name of the arguments: what it is for, its size ("1.5 GB", "on the Hub"), and why it does not resolve."""

    role: str
    name: str
    size: str = NONE
    problem: str = ""


@dataclass(frozen=True)
class RunPlan:
    """What a run would do.

    Attributes:
        names: every source, held-out source, encoder and tokenizer.
        shares: of each source of `train_file` in the examples, in their order; empty if only reading it would tell.
        shape: of the encoder; `None` if its configuration does not resolve.
        steps: `None` if the number of examples decides.
        longest: tokens of the longest input.
        parts: of the sources, by the languages of their files; empty with `stream_shares`.
    """

    names: Sequence[Resolved]
    shares: Sequence[float]
    shape: Shape | None
    steps: int | None
    micro_batch: int
    micro_batches: int
    processes: int
    gradient_cache: bool = False
    gather_sentences: bool = True
    longest: int = 256
    parts: Sequence[StreamPart] = ()

    @property
    def unresolved(self) -> list[Resolved]:
        return [each for each in self.names if each.problem]

    def tables(self) -> Iterator[Table]:
        """Shares and sizes of the sources, the other names, the steps, memory and time."""
        sources = [each for each in self.names if each.role == "train_file"]
        shares = [f"{100 * share:.4f}" for share in self.shares] or [NONE] * len(sources)
        rows = []
        for number, (each, share) in enumerate(zip(sources, shares)):
            rows.append([each.name, share, each.size])
            parts = [part for part in self.parts if part.number == number]
            if len(parts) > 1:
                rows += [[str(part), f"{100 * part.share:.4f}", readable(round(part.size))] for part in parts]
        if self.shares:
            rows.append([f"{len(sources)} sources", f"{100 * sum(self.shares):.4f}", ""])
        yield Table.of(["train_file", "share, %", "size"], rows)
        others = [[each.role, each.name, each.size] for each in self.names if each.role != "train_file"]
        yield Table.of(["argument", "name", "size"], others)
        yield Table.of(["steps", ""], self.about_steps())
        if self.shape:
            yield self.costs(self.shape)

    def about_steps(self) -> list[list[str]]:
        """Names and values: the examples of a step, and of the run."""
        batch = self.micro_batch * self.micro_batches * self.processes
        parts = f"{self.micro_batch} x {self.micro_batches} micro-batches x {self.processes} processes"
        rows = [["examples of a step", f"{batch:,} = {parts}"]]
        if self.processes == 1:
            rows.append(["on 8 GPUs", f"{8 * batch:,}"])
        if self.steps is None:
            return [*rows, ["optimiser steps", "by num_train_epochs and the number of examples"]]
        rows.append(["optimiser steps", f"{self.steps:,}"])
        gpus = [("examples of the run", batch)] + ([("on 8 GPUs", 8 * batch)] if self.processes == 1 else [])
        return rows + [[name, f"{self.steps * examples:,}"] for name, examples in gpus]

    def costs(self, shape: Shape) -> Table:
        """Memory and time on 8 GPUs, or on as many as there are processes, as docs/scale.md computes them."""
        gpus = self.processes if self.processes > 1 else 8
        rows = [["parameters", f"{shape.parameters:,}"]]
        lengths = {"pairs of 25 words": (PAIR[0], PAIR[-1]), f"{self.longest} tokens": (self.longest,) * 2}
        for name, (alone, joined) in lengths.items():
            parts = gigabytes(shape, shape.row(alone, joined), self.micro_batch, gpus, self.contrasted(gpus))
            state, head, plain, checkpointed, level = parts
            both = [f"{state + head + acts + level:.1f}" for acts in (plain, checkpointed)]
            rows.append([f"GB on one GPU, {name}", f"{both[0]}; {both[1]} with --activation_checkpointing true"])
        for gpu in GPUS if self.steps else ():
            step = self.step_milliseconds(shape, gpu, gpus)
            least = timedelta(seconds=math.ceil((self.steps or 0) * step / 1000))
            rows.append([f"time on {gpus} x {gpu}", f"{least} or more ({step:,.1f} ms a step)"])
        return Table.of(["computed, not measured (docs/scale.md)", ""], rows)

    def contrasted(self, gpus: int) -> int:
        """Pairs whose sentences are contrasted at once."""
        together = self.micro_batches if self.gradient_cache else 1
        return self.micro_batch * together * (gpus if self.gather_sentences else 1)

    def step_milliseconds(self, shape: Shape, gpu: str, gpus: int) -> float:
        """Milliseconds of an optimiser step: its micro-batches, and once AdamW and the all-reduce.

        The gradient cache contrasts once, and encodes all sentences, by default half of the tokens, forward once more.
        """
        parts = milliseconds(shape, gpu, self.micro_batch, gpus, contrasted=self.contrasted(gpus))
        compute, contrast, adam, late = parts
        if self.gradient_cache and self.micro_batches > 1:
            sentences = shape.inputs[0] * PAIR[0] / max(sum(shape.row(PAIR[0], PAIR[-1])), 1)
            return self.micro_batches * compute * (1 + sentences / 3) + contrast + adam + late
        return self.micro_batches * (compute + contrast) + adam + late


def plan(args: PretrainingArguments) -> RunPlan:
    """Resolve every name of the arguments, and compute shares, steps, memory and time; nothing is downloaded but
    configurations, and nothing is written."""
    roles = ("train_file", "validation_file", "guard_data")
    names = [resolve_source(role, name) for role in roles for name in getattr(args, role)]
    models = [(role, str(getattr(args, role))) for role in MODELS if getattr(args, role)]
    names += [resolve_model(role, name, args.model_revision) for role, name in models]
    parts = [] if args.stream_shares else parts_to_read(args, names)
    shares = normalized_shares(args.stream_shares, args.train_file) if args.stream_shares else source_shares(parts)
    return RunPlan(
        names, shares, shape_of(args), args.max_steps if args.max_steps > 0 else None,
        micro_batch=args.per_device_train_batch_size, micro_batches=args.gradient_accumulation_steps,
        processes=args.world_size, gradient_cache=args.gradient_cache, gather_sentences=args.gather_sentences,
        longest=args.max_seq_length, parts=parts,
    )  # fmt: skip


def parts_to_read(args: PretrainingArguments, names: Sequence[Resolved]) -> list[StreamPart]:
    """The parts of all sources with their shares, by language with bytes in place of rows, if all are files."""
    sources = [each for each in names if each.role == "train_file"]
    if any(each.problem or "hub:" in each.name for each in sources):
        return []
    try:
        return stream_parts(args.train_file, args.cleaning_rules, args.text_alpha, args.pair_alpha, args.text_share)
    except NothingLeft as error:
        if args.streaming:
            raise
        logger.warning("%s", error)  # the run reads on
        return []


def shape_of(args: PretrainingArguments) -> Shape | None:
    """The sizes of the encoder, or of a new model of `config_name` and `config_overrides`, and what it encodes.

    `None` if they cannot be read, or are those of an encoder that HiCTL does not train.
    """
    try:
        settings = config_settings(args)
        if args.model_name_or_path:
            settings.pop("vocab_size", None)
            config: Any = load_config(args.model_name_or_path, revision=args.model_revision, **settings)
        else:
            config = config_class(settings.pop("model_type", None))(**settings)
    except (OSError, ValueError):
        return None
    config.pad_token_id = 0  # that of the tokenizer may be beyond a new vocabulary, and no size follows from it
    place = args.model_name_or_path or args.config_name or f"config_overrides {args.config_overrides}"
    with model_errors(place), torch.device("meta"):  # without memory for weights
        model = new_model(config)
    layers = model.base_model.get_submodule(model.family.layers)
    counted = [sum(weight.numel() for weight in part.parameters()) for part in (layers, model)]
    sizes = config.num_hidden_layers, config.hidden_size, config.intermediate_size, config.vocab_size
    clean = config.word_level_input == "clean"
    masked = config.lm_weight > 0 or (config.word_weight > 0 and not clean)
    inputs = 2 * (config.sentence_weight > 0), masked + (config.word_weight > 0 and clean)
    return Shape(*sizes, (counted[0], counted[1]), inputs, config.lm_weight > 0)


# --- names ------------------------------------------------------------------------------------------------------------


def resolve_source(role: str, source: str) -> Resolved:
    """Whether a source exists: files or a folder, with their size; on the Hub, a repository with the configuration."""
    try:
        shards = list(list_shards(source))
        if "hub:" not in source:
            return Resolved(role, source, readable(bytes_of(shards)))
        name, config, *_ = [*source.partition("hub:")[2].split(":"), ""]
        if os.path.isdir(name):
            files = [path for path in Path(name).rglob("*") if path.is_file()]
            return Resolved(role, source, readable(sum(path.stat().st_size for path in files)))
        return Resolved(role, source, ON_THE_HUB, problem_of_dataset(name, config))
    except BadInput as error:
        return Resolved(role, source, problem=str(error))


def resolve_model(role: str, name: str, revision: str = MAIN) -> Resolved:
    """Whether a checkpoint exists: a folder, or at this revision on the Hub; offline, in the cache."""
    folder = Path(name)
    if not folder.is_dir() and is_offline_mode():
        with contextlib.suppress(LocalEntryNotFoundError, HFValidationError):
            folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
    if folder.is_dir():
        files = [path.name for path in folder.iterdir()]
        size = readable(sum(path.stat().st_size for path in folder.iterdir()))
    else:
        try:
            found = on_the_hub(name, dataset=False, revision=revision)
        except BadInput as error:
            return Resolved(role, name, problem=str(error))
        files, size = [file.rfilename for file in found.siblings or ()], ON_THE_HUB
    problem = problem_of_files(files) if role == "model_name_or_path" else ""
    if not problem and role != "tokenizer_name" and CONFIG_NAME in files:
        try:
            check_model_type(name, revision)
        except BadInput as error:
            problem = str(error)
    return Resolved(role, name, size, problem)


def problem_of_dataset(name: str, config: str) -> str:
    """Why a dataset cannot be read from the Hub; empty if it can, as far as its card and its list of files show."""
    found = on_the_hub(name, dataset=True)
    files = [file.rfilename for file in found.siblings or ()]
    if any(file.endswith(SCRIPT) for file in files) and not any(file.endswith(DATA) for file in files):
        return "has only a loading script, which datasets no longer runs; take its files, or another copy"
    known = configurations(found.card_data or {})
    if config and known and config not in known:
        return f"has no configuration {config}; allowed are {', '.join(known)}"
    return ""


def configurations(card: Mapping[str, Any]) -> list[str]:
    """The configurations that the card of a dataset names."""
    rows = [row for key in ("configs", "dataset_info") for row in listed(card.get(key))]
    return list(dict.fromkeys(str(row["config_name"]) for row in rows if "config_name" in row))


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value else []


def on_the_hub(name: str, dataset: bool, revision: str = MAIN) -> Any:
    """What the Hub says of a repository; `BadInput` if it does not answer, or shows none."""
    kind = "dataset" if dataset else "model"
    with as_bad_input(name, f"a {kind} on the Hub", "Check its name, the connection, and that you are logged in."):
        if dataset:
            return HfApi().dataset_info(name)
        return HfApi().model_info(name, revision=None if revision == MAIN else revision)
