"""Embed sentences: choose layer, pooling and precision of an encoder, and batch sentences by length.

`retrieval` compares the vectors.

    from hictl_hf.embedding.encoder import embed_sentences, load_encoder
    model, tokenizer = load_encoder("runs/demo/checkpoint")
    vectors = embed_sentences(model, tokenizer, ["the house", "das Haus"])
"""

import copy
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    RobertaModel,
    XLMRobertaModel,
)
from transformers.masking_utils import create_bidirectional_mask
from transformers.utils import CONFIG_NAME
from transformers.utils import logging as transformers_logging

from ..data.text_encoding import encode_texts, special_tokens_around
from ..data.tokenization import list_of_texts, token_batches
from ..dtypes import QuantizedLinear, device_of, has_fast_bf16, warn_where_slow, with_int8_linear_layers
from ..errors import BadInput, as_bad_input, short_repr
from ..hub.loading import (
    ADAPTER,
    KIND,
    check_ids_of_text,
    check_sizes,
    check_words,
    place_of,
    problem_of_files,
    refuse_lacking,
)
from ..models.families import OURS, families_named, family_of, refuse_adapters
from ..models.modeling_hictl import HictlForPreTraining
from ..parsing import refuse_run
from ..processes import hides_progress
from ..training.eval_mode import eval_mode
from .pooling import (
    POOLINGS,
    Pooling,
    check_is_encoder,
    check_poolings,
    chosen_prompt,
    encoder_of,
    length_read,
    own_normalize,
    own_pooling,
    own_text,
    pool,
)
from .sentence_transformers_settings import (
    SHORTEST,
    apply_settings,
    read_sentence_transformers_files,
    transformer_place,
)

Precision = Literal["fp32", "bf16", "int8"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
NEEDED = re.compile(r"embed|\blayers?\.|[Nn]orm\.|projection\.")
CHARACTERS = 100  # tokenized per token that is kept; a token of XLM-R has at most 16, a text any number
BY_LAYER = (XLMRobertaModel, RobertaModel, BertModel)  # and HictlModel: their layers are called one by one
TOKENS_AT_ONCE = {"cpu": 1024, "cuda": 32768}  # larger batches are slower on a CPU, whose caches are small


def load_encoder(
    name_or_folder: str | Path, precision: Precision = "fp32", device: str | torch.device | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a HiCTL model, or an encoder of a family that HiCTL trains, for embedding, and its tokenizer.

    Weights are read from safetensors only, and no code of the checkpoint is run. Layer, pooling, length, prompt and
    normalisation are set in `model.config`: by the files for sentence-transformers if there is a `modules.json`, else
    by the `embedding_...` entries of `config.json`, else the mean of the last layer is read.

    Args:
        name_or_folder: a HiCTL checkpoint or a plain encoder, as a folder or a name on the Hub.
        precision: "int8" works on CPUs only.
        device: `None`: a GPU if there is one, except for int8.

    Raises:
        BadInput: the model cannot be used, or not as its folder says; the message has the reason.
    """
    check_device(device)
    device = torch.device(device or ("cuda" if torch.cuda.is_available() and precision != "int8" else "cpu"))
    name = str(name_or_folder)
    refuse_run(name)
    with as_bad_input(name, KIND, "Check the name; write other weights anew by model.save_pretrained(folder)."):
        settings = read_sentence_transformers_files(name)
        place = transformer_place(name, settings)
        model = load_model(place)
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False, padding_side="right")
        check_words(place, tokenizer)
        check_ids_of_text(place, tokenizer, model.get_input_embeddings().num_embeddings)
        if settings is None:
            tokenizer.truncation_side = "right"
        else:  # sentence-transformers cuts where the tokenizer says
            apply_settings(name, model, tokenizer, settings)
        model = model.to(device).eval()
    convert_encoder(encoder_of(model), precision)
    return model, tokenizer


def check_reading(precision: str | None = None, pooling: str | None = None, max_length: int | None = None) -> None:
    """Raise `BadInput` for what no encoder can be read with, before texts are read; `None`: not given."""
    if precision not in (None, *get_args(Precision)):
        raise BadInput(f"precision is {short_repr(precision)}; allowed are {', '.join(get_args(Precision))}.")
    if pooling not in (None, *POOLINGS):
        raise BadInput(f"the pooling is {short_repr(pooling)}; allowed are {', '.join(POOLINGS)}.")
    if max_length is not None and max_length < SHORTEST:
        raise BadInput(f"max_seq_length is {max_length}; allowed is {SHORTEST} or more")


def default_precision(device: str | None) -> Precision:
    """bf16 on a GPU that has it, else fp32; `None` is the device that `load_encoder` chooses."""
    return "bf16" if has_fast_bf16(device or ("cuda" if torch.cuda.is_available() else "cpu")) else "fp32"


def load_model(name: str) -> PreTrainedModel:
    """A model with all weights of its encoder."""
    values = check_model_type(name)
    check_sizes(name)
    is_pretraining = is_pretraining_model(values)
    with without_load_report():
        model, report = (HictlForPreTraining if is_pretraining else AutoModel).from_pretrained(
            name, dtype=torch.float32, use_safetensors=True, output_loading_info=True, trust_remote_code=False
        )
    if "pooler.dense.weight" in report["missing_keys"]:
        encoder_of(model).pooler = None  # its random weights are no projection
    refuse_lacking(name, [weight for weight in report["missing_keys"] if NEEDED.search(weight)])
    return model


def check_model_type(name: str, revision: str | None = None) -> dict[str, Any]:
    """The configuration of a model; `BadInput` if it cannot be read, or is of no family that HiCTL trains."""
    with as_bad_input(name, KIND, "Check the name, and the connection to the Hub."):
        values, _ = PreTrainedConfig.get_config_dict(name, revision=revision)
    if family_of(found := values.get("model_type")) is None:
        if found is None and place_of(name, ADAPTER):
            raise BadInput(f"{name}: {problem_of_files([ADAPTER])}")
        kind = f"is a model of type {short_repr(found)}" if found else "has no config.json that names a model_type"
        raise BadInput(f"{name}: {kind}; allowed are {OURS}, {families_named()}.")
    if values.get("is_decoder"):  # each token would see only those before it
        raise BadInput(f"{name}/{CONFIG_NAME}: is_decoder is true; allowed is false. Give an encoder.")
    return values


def is_pretraining_model(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is that of a HiCTL pre-training model."""
    names = config.get("architectures") or ()
    return any(name.startswith("Hictl") and name.endswith("ForPreTraining") for name in names)


def check_device(device: str | torch.device | None) -> None:
    """Raise `BadInput` for a device that is not available."""
    try:
        torch.empty(0, device=device)
    except Exception as error:  # AssertionError in a PyTorch without CUDA
        found = f"device is {short_repr(str(device))}, which cannot be used ({' '.join(str(error).split())[:200]})"
        allowed = "allowed are cpu and cuda" if torch.cuda.is_available() else "allowed here is cpu"
        raise BadInput(f"{found}; {allowed}. Choose that, or leave it out.") from error


@contextmanager
def without_load_report() -> Iterator[None]:
    """Silence transformers' report about unused or missing heads and poolers."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)


def embed_sentences(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Iterable[str],
    pooling: Pooling | None = None,
    *,
    prompt: str | None = None,
    normalize: bool | None = None,
    precision: Precision | None = None,
    max_tokens: int | None = None,
    max_length: int | None = None,
    progress: bool = False,
) -> NDArray[np.float32]:
    """Embed sentences as vectors.

    Args:
        model: an encoder, or a model that has one; "projection" needs a pre-training model. Of encoders other than
            XLM-R, RoBERTa and BERT all layers are computed, even if an inner one is read.
        sentences: texts, in any order; each distinct text is encoded once.
        pooling: `None`: the model's own.
        prompt: text put before each sentence, "" for none; `None`: the model's default prompt.
        normalize: to length 1, so that products are cosines; `None`: as the model says, by default yes.
        precision: of the layers: "fp32", "bf16" or, on a CPU, "int8"; `None`: the model's. Each call converts a copy of
            the layers; `load_encoder` converts them once.
        max_tokens: of a batch, padding included; `None`: 32768 on a GPU, else 1024.
        max_length: in tokens, the two special ones included, at least 3; the rest of a sentence is cut. `None`: the
            model's, by default 256.
        progress: show a progress bar.

    Returns:
        (sentences, d), in the order given.

    Raises:
        BadInput: there is no sentence, an argument is out of range, or the model is none of transformers.
    """
    check_is_encoder(model)
    pooling = pooling or own_pooling(model.config)
    vectors = embed_at_poolings(
        model, tokenizer, sentences, [pooling], prompt=prompt, precision=precision, max_tokens=max_tokens,
        max_length=max_length, progress=progress,
    )[pooling]  # fmt: skip
    if own_normalize(model.config) if normalize is None else normalize:
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return vectors


def embed_at_poolings(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Iterable[str],
    poolings: Sequence[Pooling],
    *,
    prompt: str | None = None,
    precision: Precision | None = None,
    max_tokens: int | None = None,
    max_length: int | None = None,
    progress: bool = False,
) -> dict[Pooling, NDArray[np.float32]]:
    """Embed sentences at several poolings in one pass: an array (sentences, d) for each, not normalised.

    Other arguments as in `embed_sentences`. In XLM-R, RoBERTa and BERT no layer above the highest one read is computed.
    """
    if not (sentences := list_of_texts(sentences)):
        raise BadInput("there is no sentence to embed; give at least one.")
    for name, limit, least in (("max_length", max_length, SHORTEST), ("max_tokens", max_tokens, 1)):
        if limit is not None and limit < least:
            raise BadInput(f"{name} is {limit}; allowed is {least} or more.")
    check_poolings(model, poolings)
    before = chosen_prompt(model.config, prompt)
    distinct = list(dict.fromkeys(sentences))
    texts_read = [own_text(model.config, before + text) for text in distinct]
    tokens = tokenize(tokenizer, texts_read, length_read(model.config, max_length))
    around = special_tokens_around(tokenizer)
    vectors = embed_tokens(model, tokens, poolings, around, precision, max_tokens, progress)
    position = {text: number for number, text in enumerate(distinct)}
    wanted = [position[text] for text in sentences]
    return {pooling: found[wanted] for pooling, found in vectors.items()}


@torch.inference_mode()
def embed_tokens(
    model: PreTrainedModel,
    tokens: Sequence[Sequence[int]],
    poolings: Sequence[Pooling],
    special_tokens: tuple[int, int],
    precision: Precision | None = None,
    max_tokens: int | None = None,
    progress: bool = False,
) -> dict[Pooling, NDArray[np.float32]]:
    """Embed sentences of token ids, which have a prompt and the special tokens already, as `embed_at_poolings` does.

    Args:
        special_tokens: how many are before and after a sentence.
    """
    encoder, device, poolings = encoder_of(model), device_of(model), list(dict.fromkeys(poolings))
    batches = list(token_batches(list(map(len, tokens)), max_tokens or TOKENS_AT_ONCE.get(device.type, 1024)))
    first, after = special_tokens
    parts: dict[Pooling, list[Tensor]] = {pooling: [] for pooling in poolings}
    read = {pooling.layer for pooling in poolings}
    with eval_mode(model):
        layers = layers_of(encoder, max(read), precision)
        with tqdm(total=len(tokens), desc="embed", disable=hides_progress() if progress else True, leave=False) as bar:
            for batch in batches:
                rows = [torch.tensor(tokens[number]) for number in batch]
                padding = encoder.config.pad_token_id or 0  # a configuration may name none; padding is masked
                ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding)
                lengths = torch.tensor([[len(row)] for row in rows])
                number = torch.arange(ids.shape[1])  # of a token in its sentence
                masks = {"mean without special tokens": ((number >= first) & (number < lengths - after)).to(device)}
                mask = (number < lengths).to(device)
                for layer, hidden in hidden_states(encoder, layers, ids.to(device), mask, read):
                    for pooling in poolings:
                        if pooling.layer == layer:
                            taking_part = masks.get(pooling.mode, mask)
                            parts[pooling].append(pool(model, hidden, taking_part, pooling.mode).float())
                bar.update(len(batch))
    in_order = np.argsort([number for batch in batches for number in batch])
    return {pooling: torch.cat(part).cpu().numpy()[in_order] for pooling, part in parts.items()}


def tokenize(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], longest: int) -> list[list[int]]:
    """Token ids of texts, cut to `longest`.

    Of a very long text only a part is read, unless that gives fewer tokens, as many spaces or an unknown word do.
    """
    characters = longest * CHARACTERS
    settings: dict[str, Any] = {"truncation": True, "max_length": longest, "return_attention_mask": False}
    read = slice(-characters, None) if tokenizer.truncation_side == "left" else slice(characters)
    tokens: list[list[int]] = encode_texts(tokenizer, [text[read] for text in texts], **settings)["input_ids"]
    for row, text in enumerate(texts):
        if len(text) > characters and len(tokens[row]) < longest:
            tokens[row] = encode_texts(tokenizer, text, **settings)["input_ids"]
    return tokens


def hidden_states(
    encoder: PreTrainedModel, layers: nn.ModuleList, ids: Tensor, mask: Tensor, read: Collection[int]
) -> Iterator[tuple[int, Tensor]]:
    """Yield 0 and (n, T, d) the embeddings of padded sentences (n, T), then the number and output of each layer, at
    least of those that are `read`."""
    if not isinstance(encoder, BY_LAYER):
        last = encoder.config.num_hidden_layers
        inner = {*read} != {last}  # asked for them, transformers keeps all and leaves hooks that cannot be pickled
        inputs = {"input_ids": ids, "attention_mask": mask.long(), "output_hidden_states": inner, "return_dict": True}
        found = layers[0](**inputs)
        if inner and found.hidden_states is None:  # unpickled: transformers asks the first model that a process makes
            with torch.device("meta"):
                type(encoder)(copy.deepcopy(encoder.config))
            found = layers[0](**inputs)
        yield from enumerate(found.hidden_states) if inner else [(last, found.last_hidden_state)]
        return
    hidden = encoder.embeddings(input_ids=ids)
    yield 0, hidden
    if layers:
        hidden = hidden.to(dtype_of(layers))
    attention_mask = None if mask.all() else create_bidirectional_mask(encoder.config, hidden, mask)
    for number, layer in enumerate(layers, 1):
        hidden = layer(hidden, attention_mask)
        yield number, hidden


# --- precision --------------------------------------------------------------------------------------------------------


def convert_encoder(encoder: Any, precision: Precision) -> None:
    """Convert the layers of an encoder in place, with bf16 all of an encoder that is not called layer by layer."""
    if not isinstance(encoder, BY_LAYER) and precision != "int8":
        convert_weights(encoder, DTYPES[precision])
        return
    family = family_of(encoder.config.model_type)
    place, _, name = ("encoder.layer" if family is None else family.layers).rpartition(".")
    parent = encoder.get_submodule(place)
    setattr(parent, name, converted(getattr(parent, name), precision))


def layers_of(encoder: Any, last: int, precision: Precision | None) -> nn.ModuleList:
    """The layers up to the last one read, in this precision; of an encoder not called layer by layer, itself."""
    by_layer = isinstance(encoder, BY_LAYER)
    if precision == "int8" and not by_layer:
        known = ", ".join(kind.__name__ for kind in BY_LAYER)
        raise BadInput(
            f"precision is int8 and the model a {type(encoder).__name__}; allowed are {known}, or fp32 and bf16."
        )
    layers = encoder.encoder.layer[:last] if by_layer else nn.ModuleList([encoder])
    return layers if precision is None else converted(layers, precision)


def converted(layers: nn.ModuleList, precision: Precision) -> nn.ModuleList:
    """The layers in this precision: themselves if they have it, else a converted copy.

    Raises:
        BadInput: an unknown precision, int8 on a GPU, or layers that are in int8, or quantised by torchao, already.
    """
    check_reading(precision)
    found = set(map(format_of, layers))
    if found <= {precision}:
        return layers
    if "int8" in found:
        raise BadInput(f"precision is {precision}, and the model is in int8; load it anew.")
    if others := {kind.__name__ for kind in map(type, layers.parameters()) if kind.__module__.startswith("torchao.")}:
        stored = ", ".join(sorted(others))
        raise BadInput(f"precision is {precision}, and weights are quantised as {stored}; allowed here is fp32.")
    device = next(layers.parameters()).device
    if device.type == "meta":
        raise BadInput(f"precision is {precision}, and weights of the model are offloaded; load it in that precision.")
    warn_where_slow(precision, device)
    if precision != "int8":
        layers = copy.deepcopy(layers)
        convert_weights(layers, DTYPES[precision])
        return layers
    if device.type != "cpu":
        raise BadInput(f"precision is int8 and the device {device}; allowed is int8 on a CPU. Use bf16 on a GPU.")
    refuse_adapters(layers)
    return with_int8_linear_layers(copy.deepcopy(layers).float())


def convert_weights(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert the weights in place, and not the frequencies of rotary positions, which are buffers."""
    for child in module.modules():
        for name, weight in list(child.named_parameters(recurse=False)):
            setattr(child, name, nn.Parameter(weight.detach().to(dtype), weight.requires_grad))


def format_of(layer: nn.Module) -> str:
    if any(isinstance(module, QuantizedLinear) for module in layer.modules()):
        return "int8"
    return next((name for name, dtype in DTYPES.items() if dtype == dtype_of(layer)), "another")


def dtype_of(layer: nn.Module) -> torch.dtype:
    return next(layer.parameters()).dtype
