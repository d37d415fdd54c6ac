"""`generate` of the translation model in tokenizer ids, which transformers runs in target ids (`target_ids`)."""

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import GenerationConfig, GenerationMixin, XLMRobertaModel
from transformers.cache_utils import Cache
from transformers.masking_utils import create_masks_for_generate
from transformers.modeling_outputs import BaseModelOutput

from .configuration_decoder import END, PADDING, UNKNOWN
from .supported_versions import overrides_private, parameter_of
from .target_ids import TargetIdsModel

# The key-value cache of XLM-R as a decoder, as argument and in its output: "cache" since transformers 5.24.
CACHE = parameter_of(XLMRobertaModel.forward, "cache", "past_key_values")
# Options of `generate` that hold ids: of tokens that are left out, of sequences, of tokens that must be available.
EXCLUDED_TOKENS = ("suppress_tokens", "begin_suppress_tokens")
SEQUENCES = ("bad_words_ids", "sequence_bias")
REQUIRED_TOKENS = ("forced_bos_token_id", "forced_eos_token_id", "eos_token_id", "pad_token_id")
# Options that read target ids as those of the source or of the tokenizer, each with the value that has no effect.
NEED_ONE_VOCABULARY = {
    "stop_strings": None,
    "encoder_repetition_penalty": 1,
    "encoder_no_repeat_ngram_size": 0,
    "watermarking_config": None,
}


@dataclass
class EncoderOutput(BaseModelOutput):
    """The encoder's output, and (n, W) the [CLS] bias of the logits where it is kept between steps."""

    word_bias: Tensor | None = None


class TargetIdGenerationMixin(TargetIdsModel, GenerationMixin):
    """`GenerationMixin` for a decoder with a separate target vocabulary and start ids."""

    def word_bias(self, encoder_states: Tensor, attention_mask: Tensor | None) -> Tensor | None:
        raise NotImplementedError

    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *args: Any,
        target_language: str | Sequence[str] | None = None,
        start_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Like the parent, in tokenizer ids; the start token is returned as `</s>`.

        `decoder_input_ids`, the first tokens of the translations, are tokenizer ids with or without that `</s>`.
        Options such as `suppress_tokens` are tokenizer ids, too, also those that `prefix_allowed_tokens_fn` gets and
        returns. The values in the model's `generation_config`, and equal values in a configuration passed here, are
        target ids; a `LogitsProcessor` and a `StoppingCriteria` get those. Without `attention_mask` padding is masked.

        Args:
            target_language: of all examples, or one for each.
            start_ids: (n,) start ids, in place of target languages.

        Raises:
            ValueError: more than one of `target_language`, `start_ids`, `decoder_start_token_id` is given; the target
                language is unknown, or one of several was not chosen; an option needs a token that the decoder lacks,
                or does not work with this model; there is no `attention_mask`, and padding is the same token as the
                end.
        """
        if generation_config is not None and generation_config.is_assistant:  # called by another model, in target ids
            prompt = kwargs["decoder_input_ids"]
            kwargs.setdefault("decoder_attention_mask", torch.ones_like(prompt))  # shows which tokens the cache lacks
            return super().generate(inputs, generation_config, *args, **kwargs)
        self.set_default_ids()
        if (assistant := kwargs.get("assistant_model")) is not None and not self.has_target_ids_of(assistant):
            raise ValueError(
                "the decoder of assistant_model has other words or target languages; allowed are the same: make it "
                "with this model's target_token_ids and target_languages"
            )
        past = the_cache(kwargs.pop("cache", None), kwargs.pop("past_key_values", None))
        kwargs |= {} if past is None else {CACHE: past}
        kwargs |= self.in_target_ids(kwargs)
        sources = kwargs.get("input_ids") if inputs is None else inputs
        start = self.chosen_start(kwargs.pop("decoder_start_token_id", None), target_language, start_ids)
        if isinstance(start, list) and sources is not None and len(start) != len(sources):
            found = f"there are {len(start)} target languages for {len(sources)} sources"
            raise ValueError(f"{found}; give one, or one each")
        if start is None:
            given = None if generation_config is None else generation_config.decoder_start_token_id
            start = self.default_start_id() if given is None else given
        if generation_config is None:
            kwargs["decoder_start_token_id"] = start
        else:
            generation_config = copy.deepcopy(generation_config)
            generation_config.update(**self.in_target_ids(vars(generation_config), vars(self.generation_config)))
            generation_config.decoder_start_token_id = start
        if (prompt := kwargs.get("decoder_input_ids")) is not None:
            begun = kwargs["decoder_input_ids"] = self.begin_with(start, prompt)
            mask = kwargs.get("decoder_attention_mask")
            if mask is not None and mask.shape == prompt.shape:  # too short a one is filled up at its end, with 0
                kwargs["decoder_attention_mask"] = F.pad(mask, (begun.shape[1] - prompt.shape[1], 0), value=1)
            elif mask is None and past is not None:  # it shows which of these tokens the cache lacks
                kwargs["decoder_attention_mask"] = torch.ones_like(begun)
        kwargs |= self.with_tokenizer_ids(kwargs)
        if kwargs.get("attention_mask") is None and kwargs.get("encoder_outputs") is None:
            kwargs |= self.without_padding(sources)
        outputs = super().generate(inputs, generation_config, *args, **kwargs)
        if isinstance(outputs, Tensor):
            return self.token_ids(outputs)
        outputs.sequences = self.token_ids(outputs.sequences)
        return outputs

    def chosen_start(
        self, start: Any, target_language: str | Sequence[str] | None, start_ids: Tensor | None
    ) -> int | list[int] | Any:
        """The start id of all examples, or of each, from the arguments of `generate`; `None` if they name none."""
        given = {"decoder_start_token_id": start, "target_language": target_language, "start_ids": start_ids}
        if len(names := [name for name, value in given.items() if value is not None]) > 1:
            raise ValueError(f"{' and '.join(names)} are given; allowed is one of them")
        if start_ids is not None:
            return start_ids.tolist()
        if isinstance(target_language, str):
            return int(self.start_ids_of([target_language]))
        return start if target_language is None else self.start_ids_of(target_language).tolist()

    def begin_with(self, start: int | list[int], token_ids: Tensor) -> Tensor:
        """(n, T) target ids: the start ids, then the tokens (n, T or T - 1)."""
        if (token_ids[:, 0] == self.target_token_ids[self.end_id]).all():
            token_ids = token_ids[:, 1:]
        column = torch.as_tensor(start, device=token_ids.device).expand(len(token_ids))
        return torch.cat([column[:, None], self.target_ids(token_ids)], 1)

    def in_target_ids(self, options: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Convert the options of `generate` that hold tokenizer ids, except those equal to the model's own.

        Tokens that the decoder does not have are dropped.

        Raises:
            ValueError: a required token is not in the target vocabulary.
        """
        converted: dict[str, Any] = {}
        for name in (*EXCLUDED_TOKENS, *SEQUENCES, *REQUIRED_TOKENS):
            value = options.get(name)
            if isinstance(value, Tensor):
                value = value.tolist()
            if value is None or value == (own or {}).get(name):
                continue
            if name in REQUIRED_TOKENS:
                converted[name] = self.known_ids(value)
                if converted[name] is None:
                    raise ValueError(
                        f"{name} is {value}, which this decoder cannot generate; allowed are the ids in "
                        "target_token_ids: choose among them"
                    )
            elif name == "sequence_bias":
                pairs = value.items() if isinstance(value, dict) else value
                known = ((self.known_ids(sequence), bias) for sequence, bias in pairs)
                converted[name] = [[sequence, bias] for sequence, bias in known if sequence is not None] or None
            else:
                known_ids = [ids for each in value if (ids := self.known_ids(each)) is not None]
                converted[name] = known_ids or ([] if name in EXCLUDED_TOKENS else None)
        return converted

    def with_tokenizer_ids(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of `generate` that are called with ids, so that they get tokenizer ids."""
        found: dict[str, Any] = {}
        if (streamer := options.get("streamer")) is not None:
            found["streamer"] = TokenIdStreamer(self, streamer)
        if (allowed := options.get("prefix_allowed_tokens_fn")) is not None:
            found["prefix_allowed_tokens_fn"] = partial(self.allowed_target_ids, allowed)
        return found

    def allowed_target_ids(self, allowed: Callable[[int, Tensor], Any], sentence: int, prefix: Tensor) -> list[int]:
        """The target ids that a `prefix_allowed_tokens_fn` allows; it reads and returns tokenizer ids."""
        asked = torch.as_tensor(allowed(sentence, self.token_ids(prefix)), dtype=torch.long, device=prefix.device)
        ids = self.target_ids(asked)
        known: list[int] = ids[(ids != UNKNOWN) | (asked == self.target_token_ids[UNKNOWN].item())].tolist()
        return known

    def without_padding(self, input_ids: Tensor | None) -> dict[str, Tensor]:
        """The `attention_mask` (n, S) of sources, 0 on padding; empty without ids (n, S).

        Raises:
            ValueError: the tokenizer pads with the token that ends a text, and some have it more than once.
        """
        if input_ids is None or input_ids.is_floating_point():
            return {}
        padding, end = self.target_token_ids[[PADDING, END]].tolist()
        mask = (input_ids != padding).long()
        if padding != end:
            return {"attention_mask": mask}
        if ((1 - mask).sum(-1) > 1).any():
            raise ValueError(
                f"attention_mask is not given, and token {padding} is padding and the end of a text: pass it to "
                "generate, as generate(**tokenizer(...)) does"
            )
        return {"attention_mask": torch.ones_like(mask)}

    @overrides_private(GenerationMixin)
    def _prepare_generation_config(self, *args: Any, **kwargs: Any) -> tuple[GenerationConfig, dict[str, Any]]:
        """Refuse options that cannot work, here because arguments and both configurations are merged only now."""
        settings, others = super()._prepare_generation_config(*args, **kwargs)
        if settings.guidance_scale not in (None, 1):
            raise ValueError(
                f"guidance_scale is {settings.guidance_scale}; it works only for models without an encoder: leave it "
                "out"
            )
        target_size, full_size = len(self.target_token_ids), self.config.vocab_size
        all_ids = torch.arange(full_size, device=self.target_token_ids.device)
        for name, without_effect in NEED_ONE_VOCABULARY.items() if not self.target_token_ids.equal(all_ids) else ():
            if getattr(settings, name, None) not in (None, without_effect):
                raise ValueError(
                    f"{name} needs a decoder with the encoder's {full_size} words in their order, this one has "
                    f"{target_size}; leave it out, or make a model without target_token_ids"
                )
        return settings, others

    @overrides_private(GenerationMixin)
    def _prepare_text_encoder_decoder_kwargs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Add the cosine bias to the encoder's output, once for all steps. It depends on the attention mask, which the
        output of `get_encoder()` does not hold."""
        model_kwargs: dict[str, Any] = super()._prepare_text_encoder_decoder_kwargs_for_generation(*args, **kwargs)
        if self.config.cls_bias == "cosine":
            outputs = model_kwargs["encoder_outputs"]
            bias = self.word_bias(outputs[0], model_kwargs.get("attention_mask"))
            model_kwargs["encoder_outputs"] = EncoderOutput(
                outputs[0], outputs.get("hidden_states"), outputs.get("attentions"), bias
            )
        return model_kwargs

    def create_masks_for_generate(self, config: Any, **kwargs: Any) -> Any:
        """The masks of a compilable cache, by the decoder's configuration: ModernBERT's asks for one of each kind of
        layer."""
        return create_masks_for_generate(self.decoder.config, **kwargs)

    def compute_transition_scores(self, sequences: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Like the parent, for sequences in tokenizer ids and the scores of `generate`."""
        decoder: Any = self.decoder  # the scores are over its vocabulary
        return GenerationMixin.compute_transition_scores(decoder, self.target_ids(sequences), *args, **kwargs)


def the_cache(cache: Cache | None, past_key_values: Cache | None) -> Cache | None:
    """The cache given under either of its names.

    Raises:
        ValueError: it was given under both.
    """
    if past_key_values is not None and CACHE == "cache":
        warnings.warn("`past_key_values` is deprecated, as in transformers; use `cache`", FutureWarning, stacklevel=4)
    if cache is not None and past_key_values is not None:
        raise ValueError("cache and past_key_values are two names of one argument and both given; leave one out")
    return past_key_values if cache is None else cache


class TokenIdStreamer:
    """Pass target ids on to another streamer as tokenizer ids."""

    def __init__(self, model: TargetIdsModel, streamer: Any) -> None:
        self.model, self.streamer = model, streamer

    def put(self, ids: Tensor) -> None:
        self.streamer.put(self.model.token_ids(ids))

    def end(self) -> None:
        self.streamer.end()
