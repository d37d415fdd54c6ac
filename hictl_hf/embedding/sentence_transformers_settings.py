"""Read the files of a sentence-transformers folder, and set a model to be read as they say.

`modules.json` lists the modules through which a sentence passes. Supported are Transformer, Pooling (cls or mean), any
number of Dense, and Normalize; other modules and settings are refused, as the vectors would not be those of
sentence-transformers. The library is not needed; the formats of its releases 2 to 6 are understood.
"""

import json
import logging
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import CONFIG_NAME

from ..data.text_encoding import special_tokens
from ..errors import BadInput, as_bad_input, short_repr
from ..hub.loading import IN_SAFETENSORS, place_of
from ..models.families import longest_input
from .pooling import DenseLayers, own_pooling

logger = logging.getLogger(__name__)

ORDER = re.compile(r"Transformer Pooling(?: Dense)*(?: Normalize)*")  # and Dropout anywhere, which inference skips
KNOWN = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout")
POOLING_FLAGS = {  # of releases up to 5.3; newer ones write a `pooling_mode`
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
TRANSFORMER_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
PROMPTS_FILE = "config_sentence_transformers.json"
WITHOUT_EFFECT = {"unpad_inputs", "query_length", "document_length", "query_expansion"}  # on `encode`
MODEL_ARGUMENTS = {"add_pooling_layer", "dtype", "torch_dtype", "attn_implementation", "trust_remote_code"}
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")  # of torch.nn, without arguments
NAMES: dict[type, str] = {dict: "dictionary", list: "list"}
SHORTEST = 3  # tokens: the two special ones and one more
FIX = "Embed with sentence-transformers, or give another model."


@dataclass(frozen=True)
class DenseSettings:
    """A module Dense: a linear layer, whose sizes are those of its weights, and its activation function."""

    folder: str
    bias: bool
    activation: str
    """A class of `torch.nn`, one of `ACTIVATIONS`."""


@dataclass(frozen=True)
class SentenceTransformersSettings:
    """How the sentences of a folder are read, by its files for sentence-transformers."""

    pooling: str
    """What is read of the states, "cls" or "mean", before the dense layers."""
    layer: int | None
    """The layer that is pooled, 0 for the embeddings, -1 for the last; `None`: the last."""
    max_length: int | None
    """Tokens of a sentence, special tokens included; `None`: the `model_max_length` of the tokenizer."""
    normalize: bool
    prompts: dict[str, str]
    default_prompt_name: str | None
    dense: tuple[DenseSettings, ...] = ()
    lower_case: bool = False
    """Lower-case texts before they are tokenized."""
    include_prompt: bool = True
    """Whether the tokens of a prompt are pooled too."""
    similarity: str = "cosine"
    """The similarity that sentence-transformers compares vectors by."""
    transformer_folder: str = ""
    """The sub-folder with weights, configuration and tokenizer; empty: the folder itself."""

    @property
    def default_prompt(self) -> str | None:
        """The text that is put before each sentence, `None` for none."""
        return self.prompts.get(self.default_prompt_name or "") or None

    @property
    def has_projection(self) -> bool:
        """Whether the dense layers can be HiCTL's f: one, of the first token."""
        return self.pooling == "cls" and len(self.dense) == 1

    @property
    def has_plain_projection(self) -> bool:
        """Whether they are the paper's f, which is linear, without bias."""
        return self.has_projection and not self.dense[0].bias and self.dense[0].activation == "Identity"


def read_sentence_transformers_files(name_or_folder: str | Path) -> SentenceTransformersSettings | None:
    """Read the settings of a folder or Hub name; `None` if it has no `modules.json`.

    Raises:
        BadInput: a file has a module or setting that is not supported; the message names it.
    """
    files = ModelFiles(str(name_or_folder))
    if not files.has("modules.json"):
        files.warn_if_unknown("modules.json")
        return None
    with as_bad_input(f"{files.name}/modules.json", "what sentence-transformers writes, in each file it names", FIX):
        modules = read_modules(files)
        (transformer,), (pooling,) = modules["Transformer"], modules["Pooling"]
        for folder in modules["Normalize"]:
            check_place_in_chain(files, folder, files.read(folder, "config.json") or {})
        mode, include_prompt = read_pooling(files, pooling)
        return SentenceTransformersSettings(
            pooling=mode,
            **read_transformer(files, transformer),
            normalize=bool(modules["Normalize"]),
            **read_prompts(files, include_prompt),
            dense=tuple(read_dense(files, folder) for folder in modules["Dense"]),
            include_prompt=include_prompt,
            transformer_folder=transformer,
        )


@dataclass(frozen=True)
class ModelFiles:
    """The JSON files of a folder or Hub name, and the error for a value in one of them."""

    name: str

    def path(self, folder: str, file: str) -> Path | None:
        """Path of a file, downloaded from the Hub if needed; `None` if there is none."""
        return place_of(self.name, f"{folder}/{file}" if folder else file)

    def has(self, file: str) -> bool:
        return self.path("", file) is not None

    def warn_if_unknown(self, file: str) -> None:
        """Log if it is not known whether a missing file is on the Hub, as there is no connection."""
        if Path(self.name).is_dir() or try_to_load_from_cache(self.name, CONFIG_NAME) is None:
            return
        if try_to_load_from_cache(self.name, file) is not None:  # the cache knows that there is none
            return
        try:
            hf_hub_download(self.name, file)
        except LocalEntryNotFoundError:
            logger.warning("%s: without a connection it is read as a model without %s", self.name, file)
        except EntryNotFoundError:
            pass

    def read(self, folder: str, file: str, kind: type = dict) -> Any:
        """Content of a JSON file, of a dictionary or of another kind; `None` if there is none."""
        path = self.path(folder, file)
        if path is None:
            return None
        place = self.place(folder, file)
        with as_bad_input(place, "JSON as sentence-transformers writes it", FIX):
            value = json.loads(path.read_text("utf-8"))
        if not isinstance(value, kind):
            raise self.refusal(folder, file, f"is {short_repr(value)}", f"is a {NAMES[kind]}")
        return value

    def config_of(self, folder: str) -> dict[str, Any]:
        """The `config.json` of a module; `BadInput` if there is none."""
        if (values := self.read(folder, "config.json")) is None:
            raise self.refusal(folder, "config.json", "is missing", "is a folder with all its files")
        return values

    def place(self, folder: str, file: str) -> str:
        return "/".join(filter(None, (self.name, folder, file)))

    def refusal(self, folder: str, file: str, found: str, allowed: str, fix: str = FIX) -> BadInput:
        """The error for a value: "NAME/FOLDER/FILE: found; allowed ...", with what to do."""
        return BadInput(f"{self.place(folder, file)}: {found}; allowed {allowed}. {fix}")


def read_modules(files: ModelFiles) -> dict[str, list[str]]:
    """The folders of the modules by the name of their class; `BadInput` for a chain that is not supported."""
    modules = files.read("", "modules.json", list)
    found: dict[str, list[str]] = {kind: [] for kind in KNOWN}
    order = []
    for module in modules:
        if not (isinstance(module, dict) and {str} == {type(module.get(key)) for key in ("type", "path")}):
            allowed = "are entries with name, path and type, which are text"
            raise files.refusal("", "modules.json", f"has the entry {short_repr(module)}", allowed)
        kind, folder = module["type"], module["path"]
        package, _, short = kind.rpartition(".")
        if package.partition(".")[0] != "sentence_transformers" or short not in KNOWN:
            allowed = f"are {', '.join(KNOWN)} of sentence_transformers"
            raise files.refusal("", "modules.json", f"has a module {kind[:120]!r}", allowed)
        folder = "" if (plain := posixpath.normpath(folder)) == "." else plain  # "./1_Pooling/" is 1_Pooling
        if folder.startswith(("/", "..")):
            found_path = f"has the path {short_repr(module['path'])}"
            raise files.refusal("", "modules.json", found_path, "is a folder in this one, such as 1_Pooling")
        found[short].append(folder)
        order.append(short)
    names = Counter(str(module["name"]) for module in modules if "name" in module)
    if twice := [name for name, number in names.items() if number > 1]:  # the library keeps the last one only
        raise files.refusal("", "modules.json", f"has more than one module of name {twice[0]!r}", "are different names")
    if not ORDER.fullmatch(" ".join(kind for kind in order if kind != "Dropout")):
        allowed = "is Transformer, Pooling, then any Dense, then Normalize or not"
        raise files.refusal("", "modules.json", f"lists {', '.join(order) or 'no module'}", allowed)
    return found


def settings_files(folder: str | Path) -> list[Path]:
    """`modules.json` of a folder, and the files that it or its modules are read from; none without it."""
    folder = Path(folder)
    if not (folder / "modules.json").is_file():
        return []
    names = ("modules.json", PROMPTS_FILE, *TRANSFORMER_FILES)
    modules = sorted({name for names in read_modules(ModelFiles(str(folder))).values() for name in names if name})
    of_modules = [sorted((folder / name).glob(f"*.{ending}")) for name in modules for ending in ("json", "safetensors")]
    return [folder / name for name in names if (folder / name).is_file()] + sum(of_modules, [])


# --- modules ----------------------------------------------------------------------------------------------------------


def read_transformer(files: ModelFiles, folder: str) -> dict[str, Any]:
    """Layer, length and lower-casing of the module Transformer."""
    file = next((file for file in TRANSFORMER_FILES if files.read(folder, file)), TRANSFORMER_FILES[0])  # not empty
    values = files.read(folder, file) or {}
    refuse = partial(files.refusal, folder, file)
    if (task := values.pop("transformer_task", "feature-extraction")) != "feature-extraction":
        raise refuse(f"transformer_task is {short_repr(task)}", "is 'feature-extraction'")
    length = values.pop("max_seq_length", None)
    if length is not None and not (type(length) is int and length >= SHORTEST):
        raise refuse(f"max_seq_length is {short_repr(length)}", f"is a number of tokens, {SHORTEST} or more")
    layer = read_layer(values.pop("modality_config", None), values.pop("module_output_name", None), refuse)
    lower_case = bool(values.pop("do_lower_case", False))
    for name in ("model_args", "model_kwargs"):
        if unknown := sorted(dictionary(values.pop(name, None), name, refuse).keys() - MODEL_ARGUMENTS):
            raise refuse(f"{name} has {', '.join(unknown)}", f"are {', '.join(sorted(MODEL_ARGUMENTS))}")
    if other := [name for name in sorted(values.keys() - WITHOUT_EFFECT) if values[name]]:
        raise refuse(f"{other[0]} is {short_repr(values[other[0]])}", "is none")
    return {"layer": layer, "max_length": length, "lower_case": lower_case}


def dictionary(value: Any, name: str, refuse: Callable[[str, str], BadInput]) -> dict[str, Any]:
    """A dictionary in a file, empty for `None`; `BadInput` for another value."""
    if not isinstance(value, dict | None):
        raise refuse(f"{name} is {short_repr(value)}", "is a dictionary")
    return value or {}


def read_layer(modalities: Any, output_name: str | None, refuse: Callable[[str, str], BadInput]) -> int | None:
    """The layer of the states that a Transformer passes on, `None` for the last; releases up to 5.3 name none."""
    if modalities is None:
        return None
    modalities = dictionary(modalities, "modality_config", refuse)
    text = dictionary(modalities.get("text"), "modality_config of text", refuse)
    output = text.get("method_output_name")
    path = [output] if isinstance(output, str) else output
    plain = "message" not in modalities and text.get("method") == "forward" and output_name == "token_embeddings"
    if plain and path == ["last_hidden_state"]:
        return None
    if plain and isinstance(path, list) and len(path) == 2 and path[0] == "hidden_states" and type(path[1]) is int:
        return path[1]
    allowed = "is last_hidden_state or one of the hidden_states of forward as token_embeddings, for text"
    found = f"passes on {short_repr(output)} of {text.get('method')} as {output_name}, for {', '.join(modalities)}"
    raise refuse(found, allowed)


def read_pooling(files: ModelFiles, folder: str) -> tuple[str, bool]:
    """Mode of the module Pooling, and whether it includes the tokens of a prompt."""
    values = files.config_of(folder)
    flags = [mode for flag, mode in POOLING_FLAGS.items() if values.get(flag)]
    modes = values.get("pooling_mode", flags or "mean")
    modes = modes if isinstance(modes, list) else [modes]
    if modes not in (["cls"], ["mean"]):
        found = f"the pooling is {' and '.join(map(str, modes)) or 'an empty list'}"
        raise files.refusal(folder, "config.json", found, "is cls or mean")
    return modes[0], bool(values.get("include_prompt", True))


def read_dense(files: ModelFiles, folder: str) -> DenseSettings:
    """A module Dense, without its weights."""
    values = files.config_of(folder)
    check_place_in_chain(files, folder, values)
    if values.get("use_residual"):
        raise files.refusal(folder, "config.json", "use_residual is true", "is false")
    activation = values.get("activation_function", "torch.nn.modules.activation.Tanh")
    package, _, name = str(activation).rpartition(".")
    if not package.startswith("torch.nn") or name not in ACTIVATIONS:
        found = f"activation_function is {short_repr(activation)}"
        raise files.refusal(folder, "config.json", found, f"are {', '.join(ACTIVATIONS)} of torch.nn")
    return DenseSettings(folder, bool(values.get("bias", True)), name)


def check_place_in_chain(files: ModelFiles, folder: str, values: Mapping[str, Any]) -> None:
    """Raise `BadInput` if a module after Pooling reads or writes anything but the sentence's vector."""
    for name in ("module_input_name", "module_output_name"):
        if (found := values.get(name)) not in (None, "sentence_embedding"):
            raise files.refusal(folder, "config.json", f"{name} is {short_repr(found)}", "is 'sentence_embedding'")


def read_prompts(files: ModelFiles, include_prompt: bool) -> dict[str, Any]:
    """Prompts and similarity of `config_sentence_transformers.json`."""
    values = files.read("", PROMPTS_FILE) or {}
    refuse = partial(files.refusal, "", PROMPTS_FILE)
    for name, allowed in (("model_type", "SentenceTransformer"), ("truncate_dim", None)):
        if (found := values.get(name)) not in (None, allowed):
            raise refuse(f"{name} is {short_repr(found)}", f"is {allowed or 'none'}")
    stated = dictionary(values.get("prompts"), "prompts", refuse)
    prompts = {name: text or "" for name, text in stated.items()}
    if wrong := [text for text in prompts.values() if not isinstance(text, str)]:
        raise refuse(f"a prompt is {short_repr(wrong[0])}", "is text")
    default = values.get("default_prompt_name")
    if default not in (None, "query", "document", *prompts):  # these two are always known, and empty
        known = ", ".join({**prompts, "query": "", "document": ""})
        raise refuse(f"default_prompt_name is {short_repr(default)}", f"are {known}")
    if not include_prompt and prompts.get(default or ""):
        found = f"default_prompt_name is {short_repr(default)}, whose tokens are not pooled (include_prompt is false)"
        raise refuse(found, "is a prompt that is pooled, or none")
    similarity = values.get("similarity_fn_name") or "cosine"
    return {"prompts": prompts, "default_prompt_name": default, "similarity": similarity}


# --- to a model -------------------------------------------------------------------------------------------------------


def transformer_place(name: str, settings: SentenceTransformersSettings | None) -> str:
    """The folder or Hub name with the weights; those in a sub-folder on the Hub are downloaded."""
    if settings is None or not settings.transformer_folder:
        return name
    if not Path(name).is_dir():
        wanted = [f"{settings.transformer_folder}/*.{ending}" for ending in ("json", "safetensors", "model", "txt")]
        name = snapshot_download(name, allow_patterns=wanted)
    return str(Path(name, settings.transformer_folder))


def apply_settings(
    name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: SentenceTransformersSettings
) -> None:
    """Set the configuration of a model and its dense layers, so that it is read by these settings.

    Args:
        name: folder or Hub name, for the weights of dense layers and for messages.
        tokenizer: says where sentences are cut if the settings do not.
    """
    files, config = ModelFiles(name), model.config
    last, layer = config.num_hidden_layers, -1 if settings.layer is None else settings.layer
    layer += last + 1 if layer < 0 else 0
    if not 0 <= layer <= last or settings.dense and layer != last:
        allowed = f"is {last if settings.dense else f'0 to {last}'}"
        raise files.refusal("", TRANSFORMER_FILES[0], f"the layer read is {settings.layer}", allowed)
    refuse_special_tokens(files, settings.prompts, tokenizer)
    if settings.dense:
        model.projection = load_dense(files, settings, config.hidden_size)
    stated = own_pooling(config) if getattr(config, "embedding_pooling", None) else None
    if stated is None and hasattr(model, "pooler"):
        model.pooler = None  # of others; with a bias of 0, as an unused one has, it would be taken for a projection
    config.embedding_pooling = "projection" if settings.dense else settings.pooling
    config.embedding_layer = layer
    if stated not in (None, own_pooling(config)):
        found = "%s: config.json names the pooling %s of layer %d, modules.json %s of layer %d; the latter is used"
        logger.warning(found, name, *stated, *own_pooling(config))
    longest = settings.max_length or min(tokenizer.model_max_length, longest_input(config))
    config.embedding_max_length = longest
    config.embedding_prompts, config.embedding_prompt = settings.prompts or None, settings.default_prompt
    config.embedding_normalize, config.embedding_lower_case = settings.normalize, settings.lower_case
    if not settings.include_prompt:
        config.embedding_include_prompt = False
    if settings.similarity != "cosine" and not settings.normalize:
        message = "%s: its vectors are meant to be compared by %s; hictl's commands compare by cosine"
        logger.warning(message, name, settings.similarity)


def refuse_special_tokens(files: ModelFiles, prompts: Mapping[str, str], tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `BadInput` for a prompt with a special token, which is text here."""
    special = special_tokens(tokenizer).values()
    for prompt in prompts.values():
        if found := [token for token in special if token in prompt]:
            stated = f"the prompt {short_repr(prompt)} has the special token {found[0]!r}"
            raise files.refusal("", PROMPTS_FILE, stated, "are prompts of text only")


def load_dense(files: ModelFiles, settings: SentenceTransformersSettings, size: int) -> nn.Module:
    """The dense layers: a linear layer where they are HiCTL's f, else `DenseLayers`."""
    layers: list[nn.Module] = []
    for dense in settings.dense:
        file = "model.safetensors"
        path = files.path(dense.folder, file)
        if path is None:
            allowed = "are weights in safetensors, as pickles can hold code"
            raise files.refusal(dense.folder, file, "is missing", allowed, IN_SAFETENSORS)
        with as_bad_input(files.place(dense.folder, file), "a file of safetensors", FIX):
            weights = {name.removeprefix("linear."): weight.float() for name, weight in load_file(path).items()}
        expected = {"weight", "bias"} if dense.bias else {"weight"}
        if weights.keys() != expected or weights["weight"].dim() != 2 or weights["weight"].shape[1] != size:
            found = ", ".join(f"{name} {tuple(weight.shape)}" for name, weight in sorted(weights.items()))
            allowed = f"are {' and '.join(sorted(expected))} of a linear layer of {size} numbers"
            raise files.refusal(dense.folder, file, f"has {found}", allowed)
        size = len(weights["weight"])
        layer = nn.Linear(weights["weight"].shape[1], size, bias=dense.bias)
        layer.load_state_dict(weights)
        layers += [layer, getattr(nn, dense.activation)()]
    if settings.has_plain_projection:
        return layers[0]
    return DenseLayers(settings.pooling, *layers)
