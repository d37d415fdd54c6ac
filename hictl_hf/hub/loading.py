"""Load checkpoints safely: compare the stated sizes with the weights first, and name the checkpoint in errors.

transformers creates parameters that the weights lack, so a damaged or hostile `config.json` could take all memory.
"""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file
from transformers.utils.hub import get_checkpoint_shard_files

from ..data.text_encoding import encode_texts, special_tokens
from ..errors import BadInput, as_bad_input, short_repr

logger = logging.getLogger(__name__)

MOST_LAYERS = 1000  # the largest XLM-R has 48
ADAPTER = "adapter_config.json"
WEIGHTS = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME)  # the names that transformers looks for, in this order
KIND = "a folder or Hub name of a model, its weights in safetensors"
IN_SAFETENSORS = "Convert a folder of sentence-transformers by SentenceTransformer(name).save_pretrained(folder)."
FIX = "Take the config.json that was written with the weights."


def check_weights(name_or_folder: str | Path) -> None:
    """Raise `BadInput` unless a folder or Hub name has weights in safetensors and no adapter next to them.

    transformers reads pickles from some places and not from others, and an adapter only where peft is installed.
    """
    name = str(name_or_folder)
    if problem := problem_of_files([file for file in (ADAPTER, *WEIGHTS) if place_of(name, file)]):
        raise BadInput(f"{name}: {problem}")
    weights_of(name)


def refuse_lacking(name: str, lacking: Collection[str], allowed: str = KIND) -> None:
    """Raise `BadInput` if weights of a model are not in its files; transformers makes random ones."""
    if lacking:
        raise BadInput(
            f"{name}: has no weights for {len(lacking)} parts, such as {min(lacking)}; allowed is {allowed}."
        )


def refuse_not_finite(name: str, used: Collection[str]) -> None:
    """Raise `BadInput` if the weights of a folder or Hub name hold NaN or infinity; one tensor is in memory at a time.

    Args:
        used: names of weights without the prefix of the model; others, such as those of a pooler, are not looked at.
    """
    for path in weights_of(name):
        with safe_open(path, "pt") as weights:
            for key in [*weights.keys()]:
                if key not in used and key.partition(".")[2] not in used:
                    continue
                values = weights.get_tensor(key)
                values = values.float() if values.element_size() == 1 else values  # of 8 bits PyTorch finds no least
                if values.is_floating_point() and values.numel() and not torch.stack(values.aminmax()).isfinite().all():
                    raise BadInput(
                        f"{path}: {key} has values that are NaN or infinite; allowed are finite weights. Take an "
                        "earlier checkpoint, or download it again."
                    )


def problem_of_files(names: Collection[str]) -> str:
    """Why a checkpoint with files of these names is refused; empty if it is not."""
    if ADAPTER in names:
        return (
            f"has an adapter ({ADAPTER}); allowed are weights with the adapter merged. Merge it by "
            "peft.PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(folder), or remove it."
        )
    if {*WEIGHTS}.isdisjoint(names):
        return (
            f"has no weights in safetensors, and pickles can hold code; allowed is {KIND}. If you trust its "
            f"source: {IN_SAFETENSORS} Convert a masked language model by AutoModelForMaskedLM (mDeBERTa-v3 with "
            "legacy=False), an encoder without its head by AutoModel: .from_pretrained(name).save_pretrained(folder), "
            "and save the tokenizer there, too."
        )
    return ""


def check_sizes(name_or_folder: str | Path) -> None:
    """Raise `BadInput` if a config (of a folder, Hub name) states more parameters than the weights have bytes, or by
    `check_weights`."""
    name = str(name_or_folder)
    check_weights(name)
    config = AutoConfig.from_pretrained(name, trust_remote_code=False)  # else a user is asked, on standard input
    layers = max(config.num_hidden_layers, decoder_layers(config))
    if layers > MOST_LAYERS:
        raise BadInput(f"{name}: config.json states {layers:,} layers; allowed are {MOST_LAYERS:,}. {FIX}")
    stated = parameters(config)
    size = sum(path.stat().st_size for path in weights_of(name))
    if stated > size:
        raise BadInput(
            f"{name}: config.json states {stated:,} parameters, but the weights have {size:,} bytes; allowed "
            f"is at most one parameter a byte. {FIX}"
        )


def parameters(config: PreTrainedConfig) -> int:
    """The number of parameters in the large matrices of a model, without biases and norms."""
    relative = getattr(config, "rope_parameters", None) or not getattr(config, "position_biased_input", True)
    positions = 0 if relative else config.max_position_embeddings
    size, rows = config.hidden_size, config.vocab_size + positions + getattr(config, "type_vocab_size", 0)
    total = size * rows + config.num_hidden_layers * (4 * size**2 + 2 * size * config.intermediate_size)
    total += size * (getattr(config, "projection_size", 0) or 0) + getattr(config, "hard_negative_window", 0)
    if decoder_layers(config):
        size_within = config.decoder_ffn_dim or config.intermediate_size
        total += decoder_layers(config) * (8 * size**2 + 2 * size * size_within)
        total += size * (config.decoder_vocab_size or config.vocab_size)
    return int(total)


def decoder_layers(config: PreTrainedConfig) -> int:
    """The layers of a translation model's decoder; 0 for other models."""
    return config.decoder_layers if config.is_encoder_decoder and hasattr(config, "decoder_layers") else 0


def weights_of(name: str) -> list[Path]:
    """The safetensors files that transformers loads from a folder, or a Hub name (downloaded to the cache), if any.

    These are `model.safetensors`, else the shards of its index; not other files, such as those of further heads.

    Raises:
        BadInput: the index cannot be read, or a shard is missing.
    """
    single, index = (place_of(name, file) for file in WEIGHTS)
    if single or not index:
        return [single] if single else []
    fix = "Take all files that were written with the weights."
    with as_bad_input(f"{name}: {SAFE_WEIGHTS_INDEX_NAME}", "an index of shards that are all there", fix):
        shards = [Path(shard) for shard in get_checkpoint_shard_files(name, str(index))[0]]
    if missing := [shard.name for shard in shards if not shard.is_file()]:
        raise BadInput(f"{name}: lacks {', '.join(missing)} of {SAFE_WEIGHTS_INDEX_NAME}; allowed is {KIND}. {fix}")
    return shards


def place_of(name: str, file: str) -> Path | None:
    """The path of a file of a folder, or of a Hub name (downloaded to the cache); `None` if there is none."""
    found = cached_file(name, file, _raise_exceptions_for_missing_entries=False)
    return None if found is None else Path(found)


# --- errors of loading ------------------------------------------------------------------------------------------------


@contextmanager
def model_errors(place: str) -> Iterator[None]:
    """Turn the exceptions of transformers on loading or creating a model into `BadInput` with the place."""
    try:
        yield
    except BadInput:
        raise
    except KeyError as error:
        raise BadInput(f"{place}: transformers has nothing called {error}") from error
    except StrictDataclassError as error:  # says only in which validator; its cause says what it found
        raise BadInput(f"{place}: {' '.join(str(error.__cause__ or error).split())}") from error
    except (
        AssertionError, ImportError, OSError, RuntimeError, SafetensorError, TypeError, UnpicklingError, ValueError,
    ) as error:  # fmt: skip
        raise BadInput(f"{place}: {error}") from error


def load_tokenizer(name_or_folder: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a checkpoint, which pads and cuts on the right whatever it says; `BadInput` if that fails.

    Sentence vectors and the bias of the decoder are read at the first token, and targets begin there.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            name_or_folder, trust_remote_code=False, padding_side="right", truncation_side="right"
        )
    except Exception as error:  # tokenizers raises no other type
        reason = " ".join(str(error).split())
        raise BadInput(f"{name_or_folder}: holds no tokenizer that loads: {reason}") from error
    check_words(str(name_or_folder), tokenizer)
    tokenizer.init_kwargs.pop("auto_map", None)  # code that would be named where this tokenizer is saved
    return tokenizer


def warn_of_other_ids(model: str | None, name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Log a tokenizer, of this name, whose ids are other pieces than in that of a trained model, if it has one: they
    would have the embeddings of other words."""
    if not model or model == name:
        return
    try:
        pieces = {number: piece for piece, number in load_tokenizer(model).get_vocab().items()}
    except BadInput:  # it has none, or one that does not load
        return
    vocabulary = tokenizer.get_vocab()
    others = [piece for piece, number in vocabulary.items() if pieces.get(number, piece) != piece]
    if others:
        logger.warning(
            "%s: %d of its %d ids are other pieces in the tokenizer of %s, such as that of %r, so they get the "
            "embeddings of other words; leave it out for the model's own",
            name, len(others), len(vocabulary), model, min(others),
        )  # fmt: skip


def check_words(place: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `BadInput` for a tokenizer of special tokens only: transformers makes one where the files are missing."""
    if tokenizer.get_vocab().keys() <= {*special_tokens(tokenizer).values()}:
        raise BadInput(
            f"{place}: its tokenizer knows special tokens only, so its files are missing; allowed is a folder with the "
            "tokenizer, such as tokenizer.json. Save it there by tokenizer.save_pretrained(folder)."
        )


def check_ids_of_text(place: str, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
    """Raise `BadInput` if a text can have ids beyond the embeddings; a special token that no text has may be there."""
    unused = special_tokens(tokenizer).keys() - {*encode_texts(tokenizer, "a")["input_ids"]}
    beyond = {number: piece for piece, number in tokenizer.get_vocab().items() if number >= vocab_size}
    if found := sorted(beyond.keys() - unused):
        piece = f"the id {found[0]} ({short_repr(beyond[found[0]])})"
        raise BadInput(
            f"{place}: its tokenizer has {piece}, its model {vocab_size} embeddings; they do not belong together. Give "
            "the tokenizer that was saved with the model."
        )


def check_vocabulary(place: str, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
    """Raise `BadInput` if the tokenizer has more ids than the model has embeddings."""
    if len(tokenizer) > vocab_size:
        raise BadInput(
            f"{place}: its tokenizer has {len(tokenizer)} ids, its model {vocab_size}; they do not belong together. "
            "Give the tokenizer that was saved with the model; after adding words to it, resize and save the model, "
            "too: model.resize_token_embeddings(len(tokenizer))."
        )
