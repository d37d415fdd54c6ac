"""Export a translation model for CTranslate2, an engine for CPUs and GPUs without PyTorch.

CTranslate2 has no place for the [CLS] bias (CTranslate2#1614): a model with one is refused, unless it may be dropped,
which changes the translations. Suppressed tokens (`suppress_tokens`) get no probability in the export, which changes
scores, and at times the order of hypotheses. Translating:

    translator = ctranslate2.Translator("runs/ct2")
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("The house is small.")["input_ids"])
    settings = {"beam_size": 5, "length_penalty": 1.0, "min_decoding_length": 0, "max_decoding_length": 200}
    result = translator.translate_batch([tokens], **settings)[0]
    tokenizer.decode(tokenizer.convert_tokens_to_ids(result.hypotheses[0]), skip_special_tokens=True)

CTranslate2 fails where a translation outgrows the decoder's positions: `max_decoding_length` is at most
`max_position_embeddings` - 2, which is 512 for XLM-R and 64 for the demo's encoder. With several target languages
`translate_batch(..., target_prefix=[["__de__"]])` chooses one.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, XLMRobertaModel

from ..errors import BadInput
from ..files import atomic_directory, new_folder
from ..models.families import refuse_adapters
from ..models.modeling_hictl_translation import HictlForConditionalGeneration

NEVER = -1e9  # bias of suppressed tokens


def export_ctranslate2(
    model: HictlForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    quantization: str | None = None,
    allow_drop_bias: bool = False,
) -> Path:
    """Write the model for CTranslate2 to a new or empty folder, and return it.

    Args:
        model: in float32, without an adapter that is not merged.
        quantization: "int8", "float16" and others of CTranslate2; `None`: float32.
        allow_drop_bias: export a model with a [CLS] bias without it.
    """
    if not isinstance(encoder := model.get_encoder(), XLMRobertaModel):
        raise BadInput(
            f"the encoder is a {type(encoder).__name__}, which this export does not know; allowed is one of XLM-R. "
            "Translate by hictl translate"
        )
    if model.config.cls_bias != "none" and not allow_drop_bias:
        raise BadInput(
            f"the model has the [CLS] bias {model.config.cls_bias!r}, which CTranslate2 has no place for; allowed is "
            "cls_bias 'none'. Train without it, or drop it, which changes translations: --allow_drop_bias."
        )
    refuse_adapters(model)
    folder = new_folder(folder)
    languages, words = model.config.target_languages or [], len(model.target_token_ids)
    spec = transformer_spec(model)
    with torch.no_grad():
        starts = [model.start_embeddings.weight] if model.start_embeddings is not None else []
        spec.decoder.embeddings.weight = to_numpy(torch.cat([model.decoder.get_input_embeddings().weight, *starts]))
        spec.decoder.projection.weight = to_numpy(
            torch.cat([model.lm_head.weight, *(torch.zeros_like(start) for start in starts)])
        )
        never = torch.tensor([*(model.generation_config.suppress_tokens or []), *range(words, words + len(languages))])
        bias = torch.cat([model.lm_head.bias, model.lm_head.bias.new_zeros(len(languages))])
        spec.decoder.projection.bias = to_numpy(bias.index_fill(0, never.long(), NEVER))
    tokens = tokens_of(tokenizer, model.config.vocab_size)
    targets = [tokens[number] for number in model.target_token_ids.tolist()] + [f"__{name}__" for name in languages]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(targets)
    spec.config.unk_token, spec.config.bos_token = tokenizer.unk_token, tokenizer.bos_token
    spec.config.eos_token = tokenizer.eos_token
    spec.config.decoder_start_token = None if len(languages) > 1 else targets[model.default_start_id()]
    spec.config.layer_norm_epsilon = model.config.layer_norm_eps
    spec.validate()
    try:
        spec.optimize(quantization=quantization)
    except ValueError as error:
        raise BadInput(f"quantization is {quantization!r}; {error}") from error
    with atomic_directory(folder) as draft:
        spec.save(str(draft))
    return folder


def transformer_spec(model: HictlForConditionalGeneration) -> Any:
    """CTranslate2's description of encoder and decoder, without the decoder's embeddings and output layer."""
    try:
        from ctranslate2 import specs
    except ImportError as error:
        raise BadInput("the package ctranslate2 is not installed; install it: pip install ctranslate2") from error
    activations = {"gelu": specs.Activation.GELU, "relu": specs.Activation.RELU}
    if (name := model.config.hidden_act) not in activations:
        raise BadInput(f"the model has the activation {name!r}; allowed are {', '.join(activations)}")
    same = {"pre_norm": False, "activation": activations[name], "layernorm_embedding": True}
    sizes = [
        (part.config.num_hidden_layers, part.config.num_attention_heads)
        for part in (model.get_encoder(), model.decoder)
    ]
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(*sizes[0], **same), specs.TransformerDecoderSpec(*sizes[1], **same)
    )
    spec.encoder.embeddings[0].weight = to_numpy(model.get_encoder().get_input_embeddings().weight)
    for part, network in ((spec.encoder, model.get_encoder()), (spec.decoder, model.decoder)):
        put_network(part, network)
    return spec


def put_network(spec: Any, network: XLMRobertaModel) -> None:
    """Set all weights of an encoder or a decoder but its word embeddings."""
    embeddings = network.embeddings
    positions = embeddings.position_embeddings.weight[embeddings.padding_idx + 1 :]  # the first is unused in XLM-R
    spec.scale_embeddings = False
    spec.position_encodings.encodings = to_numpy(positions + embeddings.token_type_embeddings.weight[0])
    put_norm(spec.layernorm_embedding, embeddings.LayerNorm)
    for part, layer in zip(spec.layer, network.encoder.layer, strict=True):
        own = layer.attention.self
        put_linear(part.self_attention.linear[0], own.query, own.key, own.value)
        put_linear(part.self_attention.linear[1], layer.attention.output.dense)
        put_norm(part.self_attention.layer_norm, layer.attention.output.LayerNorm)
        if hasattr(layer, "crossattention"):
            cross = layer.crossattention.self
            put_linear(part.attention.linear[0], cross.query)
            put_linear(part.attention.linear[1], cross.key, cross.value)
            put_linear(part.attention.linear[2], layer.crossattention.output.dense)
            put_norm(part.attention.layer_norm, layer.crossattention.output.LayerNorm)
        put_linear(part.ffn.linear_0, layer.intermediate.dense)
        put_linear(part.ffn.linear_1, layer.output.dense)
        put_norm(part.ffn.layer_norm, layer.output.LayerNorm)


def put_linear(spec: Any, *layers: nn.Linear) -> None:
    """Set a linear layer; several layers of the same input are concatenated."""
    spec.weight = to_numpy(torch.cat([layer.weight for layer in layers]))
    spec.bias = to_numpy(torch.cat([layer.bias for layer in layers]))


def put_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = to_numpy(norm.weight), to_numpy(norm.bias)


def to_numpy(values: Tensor) -> Any:
    """A copy: CTranslate2 quantises in place."""
    return values.detach().to("cpu", torch.float32, copy=True).numpy()


def tokens_of(tokenizer: PreTrainedTokenizerBase, number: int) -> list[str]:
    """The tokens of all ids; ids that the tokenizer does not know are named <unusedN>."""
    known = tokenizer.convert_ids_to_tokens(range(min(number, len(tokenizer))))
    return [*known, *(f"<unused{index}>" for index in range(len(known), number))]
