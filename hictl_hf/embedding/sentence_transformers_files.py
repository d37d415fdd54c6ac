"""Write the files that sentence-transformers needs to load an encoder's folder.

Its vectors are then those of `embed_sentences`: same layer, pooling, length, prompt and normalisation. The folder must
have weights and tokenizer. The library is not needed to write the files; models that read an inner layer need its
version 5.4 or above. Layers above the one read are kept and computed: fine-tuning needs them, and transformers would
report the weights of skipped layers as "unexpected".
"""

import copy
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..data.tokenization import save_tokenizer
from ..errors import BadInput
from ..files import let_others_read, write_json
from ..models.encoder_export import export_encoder, pooling_of_encoder
from .pooling import chosen_prompt, own_max_length, own_normalize, own_pooling
from .sentence_transformers_settings import ACTIVATIONS

MODES = {"cls": "cls", "mean": "mean", "projection": "cls"}


def save_sentence_encoder(model: Any, tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> None:
    """Write the encoder of a model, alone, for `load_encoder`, `AutoModel` and `SentenceTransformer`.

    Args:
        model: as `export_encoder` takes it.
    """
    export_encoder(model, folder)
    save_tokenizer(tokenizer, folder)
    config = copy.copy(model.config)
    config.embedding_pooling = pooling_of_encoder(model)
    write_sentence_transformers_files(folder, config, getattr(model, "projection", None))
    let_others_read(Path(folder))


def write_files_of_checkpoint(folder: str | Path, model: Any, sharded: bool) -> None:
    """Write the files for a model in training, if it is read as sentence-transformers can read it; without them that
    takes the mean of the last layer, without a word. Of a projection in shards there are no weights to write."""
    mode = own_pooling(model.config).mode
    if mode in MODES and not (sharded and mode == "projection"):
        write_sentence_transformers_files(folder, model.config, getattr(model, "projection", None))


def write_sentence_transformers_files(
    folder: str | Path, config: PreTrainedConfig, projection: nn.Linear | None = None
) -> None:
    """Write the files that sentence-transformers reads in addition to weights and tokenizer.

    Args:
        config: configuration of the model in the folder, which names its pooling.
        projection: f of a pre-training model, required for the pooling "projection".
    """
    folder, pooling = Path(folder), own_pooling(config)
    if pooling.mode not in MODES:
        raise BadInput(f"embedding_pooling is {pooling.mode!r}; allowed in this format are {', '.join(MODES)}")
    reading: dict[str, Any] = {"max_seq_length": own_max_length(config)}
    reading["do_lower_case"] = getattr(config, "embedding_lower_case", False)
    if pooling.layer != config.num_hidden_layers:
        outputs = {"text": {"method": "forward", "method_output_name": ["hidden_states", pooling.layer]}}
        reading |= {"modality_config": outputs, "module_output_name": "token_embeddings"}
    write_json(folder / "sentence_bert_config.json", reading)
    size, modules = config.hidden_size, {"": "Transformer", "1_Pooling": "Pooling"}
    mode = MODES[pooling.mode]
    flags = {"pooling_mode_cls_token": mode == "cls", "pooling_mode_mean_tokens": mode == "mean"}
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": size, **flags})
    if pooling.mode == "projection":
        if projection is None:
            raise ValueError("the model is read at its projection; give its linear layer")
        modules["2_Dense"] = "Dense"
        values = {
            "in_features": size, "out_features": projection.out_features, "bias": projection.bias is not None,
            "activation_function": activation_class(getattr(config, "projection_activation", "linear")),
        }  # fmt: skip
        write_json(folder / "2_Dense" / "config.json", values)
        weights = {f"linear.{name}": each.detach().cpu().contiguous() for name, each in projection.named_parameters()}
        save_file(weights, folder / "2_Dense" / "model.safetensors", {"format": "pt"})
    if own_normalize(config):
        modules[f"{len(modules)}_Normalize"] = "Normalize"
        write_json(folder / f"{len(modules) - 1}_Normalize" / "config.json", {})
    prompts, default = prompts_of(config)
    write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": prompts, "default_prompt_name": default, "similarity_fn_name": "cosine"},
    )
    write_json(  # last: the library reads the others if it finds this one
        folder / "modules.json",
        [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for number, (path, kind) in enumerate(modules.items())
        ],
    )


def activation_class(name: str) -> str:
    """The class of `torch.nn` of an activation function, as sentence-transformers writes it.

    >>> activation_class("linear"), activation_class("tanh")
    ('torch.nn.modules.linear.Identity', 'torch.nn.modules.activation.Tanh')
    """
    if name == "linear":
        return "torch.nn.modules.linear.Identity"
    kind = next(each for each in ACTIVATIONS if each.lower() == name)
    return f"torch.nn.modules.activation.{kind}"


def prompts_of(config: PreTrainedConfig) -> tuple[dict[str, str], str | None]:
    """The prompts of a configuration by name, and the name of the default one.

    If all named prompts are empty, those called "query" and "document" become the default one.
    """
    prompts = dict(getattr(config, "embedding_prompts", None) or {})
    if not (prompt := chosen_prompt(config)):
        return prompts, None
    if not any(prompts.values()):  # else sentence-transformers' `encode_query` and `encode_document` would use none
        prompts |= {"query": prompt, "document": prompt}
    name = next((name for name, text in prompts.items() if text == prompt), "default")
    return {**prompts, name: prompt}, name
