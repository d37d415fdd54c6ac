"""A translation pipeline like those of Hugging Face, `[{"translation_text": ...}]`, which transformers 5 lacks; and the
loading of a model for translation in fp32, bf16 or int8.

    from hictl_hf import translation_pipeline
    translator = translation_pipeline("runs/translation/model", target_language="de")
    translator("The house is small.")
    translator(["One.", "Two."], num_beams=4, length_penalty=0.6)

or, with the package imported, `transformers.pipeline("hictl-translation", "runs/translation/model")`.
"""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, Pipeline, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.pipelines import PIPELINE_REGISTRY

from ..data.tokenization import list_of_texts
from ..dtypes import has_fast_bf16, warn_where_slow
from ..errors import BadInput, as_bad_input
from ..hub.loading import check_sizes, refuse_lacking
from ..models.families import family_of, refuse_adapters
from ..models.modeling_hictl_translation import HictlForConditionalGeneration
from ..parsing import refuse_run
from .beam_search import BeamSearchConfig
from .decoding import refuse_offloaded, translate

TASK = "hictl-translation"
DTYPES = ("float32", "bfloat16", "int8")
SEARCH = tuple(field.name for field in fields(BeamSearchConfig))
KIND, TRAIN = "a folder or Hub name of a translation model", "Train one by run_translation.py."
OTHERS = ("target_language", "max_tokens", "progress", "cut")


class TranslationPipeline(Pipeline):
    """Translates texts to `{"translation_text": ...}`; with `best` above 1 to a list of these for each, with scores.

    Call it with a text or a sequence of texts, and with any setting of `BeamSearchConfig` and `translate`. A call
    overrides settings of the constructor; the defaults of beams and length penalty are those saved with the model.
    """

    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True

    def _sanitize_parameters(self, **settings: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if unknown := [name for name in settings if name not in SEARCH + OTHERS]:
            raise BadInput(f"translation has no setting {', '.join(unknown)}; allowed are {', '.join(SEARCH + OTHERS)}")
        return {}, settings, {}

    def __call__(self, texts: str | Sequence[str], **settings: Any) -> list[Any]:
        chosen = {"progress": False} | self._forward_params | self._sanitize_parameters(**settings)[1]
        return self._forward([texts] if isinstance(texts, str) else list_of_texts(texts), **chosen)

    def _forward(self, texts: list[str], **settings: Any) -> list[Any]:
        search = BeamSearchConfig.of(self.model, **{name: settings.pop(name) for name in SEARCH if name in settings})
        translations = translate(self.model, self.tokenizer, texts, search, **settings)
        if search.best == 1:
            return [{"translation_text": best.text} for (best,) in translations]
        return [[{"translation_text": each.text, "score": each.score} for each in found] for found in translations]

    def preprocess(self, texts: Any, **_: Any) -> Any:
        """Pass texts on: they are tokenized in batches."""
        return texts

    def postprocess(self, found: Any, **_: Any) -> Any:
        return found


def translation_pipeline(
    model: str | Path | HictlForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase | None = None,
    dtype: str | None = None,
    device: str | torch.device | None = None,
    **settings: Any,
) -> TranslationPipeline:
    """A translation pipeline of a model.

    Args:
        model: a folder or Hub name; or a model, which is converted in place to `dtype` and `device`.
        tokenizer: by default the model's; required for a loaded model.
        dtype: "float32", "bfloat16" or, on CPUs, "int8": linear layers quantized with one scale for a batch, so that a
            translation depends a little on the others of its batch (not in CTranslate2's int8). `None`: bfloat16 on a
            GPU that has it, float32 elsewhere; a loaded model keeps its own.
        device: by default a GPU if there is one.
        settings: of `BeamSearchConfig` and of `translate`, for all calls.
    """
    network, tokenizer = load_translator(model, tokenizer, dtype, device)
    return TranslationPipeline(model=network, tokenizer=tokenizer, task=TASK, device=network.device, **settings)


def load_translator(
    model: str | Path | HictlForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase | None = None,
    dtype: str | None = None,
    device: str | torch.device | None = None,
) -> tuple[HictlForConditionalGeneration, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer for translation; arguments as in `translation_pipeline`."""
    if dtype is not None and dtype not in DTYPES:
        raise BadInput(f"dtype is {dtype!r}; allowed are {', '.join(DTYPES)}")
    if device is None:
        device = "cuda" if torch.cuda.is_available() and dtype != "int8" else "cpu"
    if dtype == "int8" and torch.device(device).type != "cpu":
        raise BadInput(f"dtype is int8 and the device {device}; allowed is int8 on a CPU. Use bfloat16 on a GPU")
    if isinstance(model, str | Path):
        dtype = dtype or choose_dtype(torch.device(device))
        with as_bad_input(str(model), KIND, TRAIN):
            check_translator(model)
            if tokenizer is None:
                tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False, padding_side="right")
            network, report = HictlForConditionalGeneration.from_pretrained(
                model, dtype=torch.float32, use_safetensors=True, output_loading_info=True
            )
        refuse_lacking(str(model), report["missing_keys"], KIND)
    else:
        network = model
        refuse_offloaded(network)
        if dtype not in (None, "int8") and isinstance(network.lm_head, QuantizedHead):
            raise BadInput(f"dtype is {dtype!r}, and the model is in int8; load it anew")
    if tokenizer is None:
        raise BadInput("a loaded model was given without its tokenizer; give both")
    network = network.to(device)
    if dtype == "bfloat16":
        warn_where_slow("bf16", torch.device(device))
    if dtype == "int8":
        return quantize(network), tokenizer
    return network if dtype is None else network.to(getattr(torch, dtype)), tokenizer


def choose_dtype(device: torch.device) -> str:
    return "bfloat16" if has_fast_bf16(device) else "float32"


def check_translator(model: str | Path) -> None:
    """Raise `BadInput` for a path without a folder, which the Hub would be asked for, and a model without decoder."""
    name = str(model)
    refuse_run(name)
    path_like = isinstance(model, Path) or name.startswith((".", "/", "runs/")) or name.count("/") > 1
    if path_like and not Path(name).is_dir():
        raise BadInput(f"{name}: is no folder; allowed is {KIND}. {TRAIN}")
    config, _ = PreTrainedConfig.get_config_dict(model)
    if family_of(config.get("model_type")) is None or not config.get("is_encoder_decoder"):
        found = ", ".join(config.get("architectures") or []) or f"a model of type {config.get('model_type')!r}"
        lack = "" if config.get("is_encoder_decoder") else ", without a decoder"
        raise BadInput(f"{name}: is {found}{lack}; allowed is {KIND}. {TRAIN}")
    check_sizes(name)


class QuantizedHead(nn.Module):
    """An output layer in int8, with its float weights, by which the tokens it proposes are scored again."""

    only_proposes = True

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = head.weight, head.bias
        self.proposals = quantize_dynamic(nn.Sequential(head))

    def forward(self, states: Tensor) -> Tensor:
        return self.proposals(states)


def quantize(model: HictlForConditionalGeneration) -> HictlForConditionalGeneration:
    """Quantize the linear layers of a model to int8, in place."""
    if not isinstance(model.lm_head, QuantizedHead):
        refuse_adapters(model)
        quantize_dynamic(model.get_encoder(), inplace=True)
        quantize_dynamic(model.decoder, inplace=True)
        model.add_module("lm_head", QuantizedHead(model.lm_head))
    return model


# Not `dtypes.with_int8_linear_layers`: for a few rows at a time PyTorch's kernels are 2 to 4 times as fast as fp32 even
# on a processor without int8 instructions, where `torch._int_mm` is 8 to 25 times slower than fp32. One scale for all
# rows is less exact; `QuantizedHead` scores the best tokens again.
def quantize_dynamic(module: nn.Module, inplace: bool = False) -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(module, {nn.Linear}, torch.qint8, inplace=inplace)


PIPELINE_REGISTRY.register_pipeline(TASK, TranslationPipeline, pt_model=AutoModelForSeq2SeqLM)
