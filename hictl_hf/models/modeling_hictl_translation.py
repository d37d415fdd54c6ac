"""The translation model: HiCTL's encoder, a new decoder, and what [CLS] says about the words of the translation.

The similarity of the encoder's `[CLS]` to each target word is added to the logits of every step, before the softmax, in
training as in decoding (machine translation with HiCTL). How it is trained and which words the decoder can say is
decided by the training modules; beam search is `generate`'s, a faster one is in the decoding module.

Ids: a *tokenizer id* is one of the XLM-R tokenizer; a *target id* is a column of the output layer, 0 … W - 1; a *start
id* is W + the index of a target language. Outside, labels and what `generate` returns are tokenizer ids; within
(logits, `decoder_input_ids` of `forward`, all that sees scores inside of `generate`, the model's `generation_config`)
they are target and start ids.
Shapes: n sentences, S source tokens, T target tokens, W target words, d dimensions.
"""

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    GenerationMixin,
    PreTrainedModel,
    XLMRobertaModel,
    XLMRobertaPreTrainedModel,
)
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils import ModelOutput, can_return_tuple

from .configuration_hictl import HictlConfig
from .linear_cross_entropy import linear_cross_entropy, tied_embedding
from .modeling_hictl import HictlModel, refuse_unknown
from .supported_versions import overrides_private, parameter_of, require_parameters, warn_if_untested

IGNORED = -100  # a label that is no word
# What XLM-R as a decoder calls its key-value cache, as argument and in its output: "cache" since transformers 5.24.
CACHE = parameter_of(XLMRobertaModel.forward, "cache", "past_key_values")
require_parameters(
    XLMRobertaModel.forward,
    "attention_mask", "position_ids", "inputs_embeds", "encoder_hidden_states", "encoder_attention_mask", "use_cache",
)  # fmt: skip
PASSED_ON = ("output_attentions", "output_hidden_states")  # to encoder and decoder
UNKNOWN = 3  # <unk>, in tokenizer ids and in target ids; <s> <pad> </s> are 0, 1, 2 in both
LONGEST = 200  # tokens of a translation that nobody set a limit for
# Options of `generate` that hold ids: of words to leave out, of sequences, and of words that must be there.
WORDS = ("suppress_tokens", "begin_suppress_tokens")
SEQUENCES = ("bad_words_ids", "sequence_bias")
SAID = ("forced_bos_token_id", "forced_eos_token_id", "eos_token_id", "pad_token_id")
# Options that read target ids as those of the source or of the tokenizer, each with a value that has no effect.
OF_ONE_VOCABULARY = {
    "stop_strings": None,
    "encoder_repetition_penalty": 1,
    "encoder_no_repeat_ngram_size": 0,
    "watermarking_config": None,
}


@dataclass
class EncoderOutput(BaseModelOutput):
    """What the encoder gives, and (n, W) what [CLS] adds to the logits where that is worth keeping between steps."""

    word_bias: Tensor | None = None


class HictlForConditionalGeneration(XLMRobertaPreTrainedModel, GenerationMixin):
    """Encoder and decoder with the [CLS] bias on target words.

    The decoder is XLM-R's layer with cross-attention, normalised after each block like the encoder: at 4 to 6 layers
    and with warm-up that trains well, and other engines can run it. Its word embeddings, tied to the output layer, are
    its own, so that the encoder can be frozen while they learn, and so that they may be fewer than the encoder's.

    A new model is made by `from_encoder`. `from_pretrained` is for what is one already: of a masked language model it
    would take the output bias of the masked words.

    Example:
        >>> from hictl_hf import HictlConfig, HictlForConditionalGeneration
        >>> model = HictlForConditionalGeneration(HictlConfig(vocab_size=99, hidden_size=32, num_hidden_layers=1,
        ...     num_attention_heads=2, intermediate_size=64, decoder_layers=1, target_languages=["de", "fr"]))
        >>> model.start_ids_of(["fr", "de"]).tolist()
        [100, 99]
    """

    config: HictlConfig
    config_class = HictlConfig
    accepts_loss_kwargs = True  # the loss is divided by `num_items_in_batch`
    target_token_ids: Tensor
    _tied_weights_keys = {"lm_head.weight": "decoder.embeddings.word_embeddings.weight"}
    _keys_to_ignore_on_load_unexpected = [
        r"pooler",
        r"projection",
        r"sentence_probability",
        r"lm_head\.(?!weight|bias)",
    ]
    _keys_to_ignore_on_load_missing = [r"target_token_ids"]

    def __init__(self, config: HictlConfig) -> None:
        if not config.is_encoder_decoder:
            config = copy.deepcopy(config)
            config.is_encoder_decoder = True
        super().__init__(config)
        self.roberta = HictlModel(config)
        self.decoder = XLMRobertaModel(config.get_text_config(decoder=True), add_pooling_layer=False)
        words = self.decoder.config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, words)
        languages = config.target_languages
        self.start_embeddings = nn.Embedding(len(languages), config.hidden_size) if languages else None
        # "bias" in the name keeps the Trainer from decaying it; one element, as sharding takes no scalars
        learned = config.cls_bias != "none" and config.cls_bias_scale == "learned"
        self.cls_bias_scale = nn.Parameter(torch.zeros(1)) if learned else None
        self.register_buffer("target_token_ids", torch.arange(words))
        self.post_init()
        self.set_default_start_id()

    @torch.no_grad()
    @overrides_private(PreTrainedModel)
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise what is new here, too: models are loaded without running `__init__`'s values."""
        super()._init_weights(module)
        if isinstance(module, HictlForConditionalGeneration):
            init.copy_(module.target_token_ids, torch.arange(len(module.target_token_ids)))
            if module.cls_bias_scale is not None:
                init.zeros_(module.cls_bias_scale)

    @classmethod
    def from_encoder(
        cls,
        encoder: str | Path | PreTrainedModel,
        target_token_ids: Sequence[int] | None = None,
        target_languages: Sequence[str] | None = None,
        **settings: Any,
    ) -> Self:
        """A new translation model in fp32 on the weights of any XLM-R or HiCTL checkpoint; the decoder is random.

        The decoder's word embeddings are the encoder's for the same words.

        Args:
            encoder: a checkpoint's folder or name, or a model.
            target_token_ids: the tokenizer ids the decoder can say, ascending from 0, 1, 2, 3; `None`: all.
            target_languages: what the model translates into; `None`: one language without a name.
            settings: of the configuration, such as `decoder_layers` or `cls_bias`.

        Raises:
            ValueError: the encoder is no XLM-R, or the ids are none that a decoder can be made of.
        """
        if not isinstance(encoder, PreTrainedModel):
            kind = HictlConfig.get_config_dict(encoder)[0].get("model_type")
            if kind != HictlConfig.model_type:
                raise ValueError(f"{encoder} is a model of type {kind!r}; the encoder must be XLM-R or HiCTL")
            encoder = HictlModel.from_pretrained(encoder, dtype=torch.float32)
        source = encoder.base_model
        if not isinstance(source, XLMRobertaModel):
            raise ValueError(f"the encoder is a {type(encoder).__name__}; it must be XLM-R or HiCTL")
        words = list(range(source.config.vocab_size) if target_token_ids is None else target_token_ids)
        ascending = all(a < b for a, b in zip(words, words[1:]))
        if words[: UNKNOWN + 1] != [0, 1, 2, 3] or not ascending or words[-1] >= source.config.vocab_size:
            raise ValueError(
                f"target_token_ids are {words[:5]} … {words[-1:]}; they must be tokenizer ids below "
                f"{source.config.vocab_size}, ascending, each once, and begin with 0, 1, 2, 3 (<s> <pad> </s> <unk>)"
            )
        inherited = source.config.to_dict()
        for name in ("model_type", "architectures", "transformers_version", "auto_map", "dtype", "is_encoder_decoder"):
            inherited.pop(name, None)
        chosen = {
            "decoder_vocab_size": None if target_token_ids is None else len(words),
            "target_languages": None if target_languages is None else list(target_languages),
        }
        model = cls(HictlConfig(**{**inherited, **chosen, **settings}))
        weights = source.state_dict()
        model.roberta.load_state_dict({name: weights[name] for name in weights if not name.startswith("pooler.")})
        with torch.no_grad():
            model.target_token_ids.copy_(torch.tensor(words))
            model.decoder.get_input_embeddings().weight.copy_(source.get_input_embeddings().weight[words])
        unwanted = [word for word in model.config.special_token_ids or () if word > UNKNOWN and word in set(words)]
        model.generation_config.update(
            num_beams=5,
            length_penalty=1.0,
            early_stopping=True,
            max_length=min(LONGEST, model.config.max_position_embeddings - model.first_position),
            suppress_tokens=[
                model.config.pad_token_id,
                *model.target_ids(torch.tensor(unwanted, dtype=torch.long)).tolist(),
            ],
        )
        return model.eval()

    # --- words and languages ------------------------------------------------------------------------------------------

    def target_ids(self, token_ids: Tensor) -> Tensor:
        """Tokenizer ids as target ids, of any shape; words the decoder does not have are `<unk>`; negatives stay."""
        known = self.target_token_ids.to(token_ids.device)
        places = torch.searchsorted(known, token_ids.contiguous()).clamp_max(len(known) - 1)
        places = places.masked_fill(known[places] != token_ids, UNKNOWN)
        return torch.where(token_ids < 0, token_ids, places)

    def token_ids(self, target_ids: Tensor) -> Tensor:
        """Target ids as tokenizer ids, of any shape; start ids become `</s>`."""
        known = self.target_token_ids.to(target_ids.device)
        starts = target_ids >= len(known)
        return known[target_ids.masked_fill(starts, 0)].masked_fill(starts, self.end_id)

    def start_ids_of(self, languages: Sequence[str]) -> Tensor:
        """(n,) the start id of each row's target language.

        Raises:
            ValueError: a language the model does not know.
        """
        known = self.config.target_languages or []
        unknown = sorted({*languages} - {*known})
        if unknown:
            raise ValueError(
                f"no target language {', '.join(unknown)}; this model translates into {known or 'one, unnamed'}"
            )
        places = [len(self.target_token_ids) + known.index(language) for language in languages]
        return torch.tensor(places, dtype=torch.long, device=self.device)

    @property
    def end_id(self) -> int:
        """The id of `</s>`."""
        end = self.config.eos_token_id
        return end if isinstance(end, int) else 2

    @property
    def first_position(self) -> int:
        """The position of the first token in the decoder's table, which is laid out like XLM-R's."""
        return (self.config.pad_token_id or 0) + 1

    def set_default_start_id(self) -> None:
        """Translations start with the only language there is, or with `</s>`; among several, one must be chosen."""
        languages, settings = self.config.target_languages or [], self.generation_config
        if settings.decoder_start_token_id is None and len(languages) < 2:
            settings.decoder_start_token_id = len(self.target_token_ids) if languages else self.end_id

    def adjust_generation_fn(self, *args: Any, **kwargs: Any) -> None:
        """As always; a checkpoint without settings for generation, such as XLM-R's, does not take the start id away."""
        super().adjust_generation_fn(*args, **kwargs)
        self.set_default_start_id()

    def default_start_id(self) -> int:
        """The start id of rows that name no language."""
        start = self.generation_config.decoder_start_token_id
        if start is None:
            raise ValueError(
                f"this model translates into {self.config.target_languages}; say into which: generate(..., "
                "target_language=...), forward(..., start_ids=model.start_ids_of([...])), or once and for all by "
                "generation_config.decoder_start_token_id"
            )
        return int(start)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor, start_ids: Tensor | None = None) -> Tensor:
        """(n, T) target ids: the labels (n, T), tokenizer ids, shifted right behind the start ids (n,)."""
        before = self.target_ids(labels).new_empty(labels.shape)
        before[:, 0] = self.default_start_id() if start_ids is None else start_ids
        before[:, 1:] = self.target_ids(labels[:, :-1])
        return before.masked_fill(before < 0, self.first_position - 1)

    # --- the [CLS] bias -----------------------------------------------------------------------------------------------

    def cls_states(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """(n, d) the states (n, S, d) of first tokens, wherever the padding of the mask (n, S) is."""
        if mask is None:
            return hidden[:, 0]
        return hidden[torch.arange(len(hidden), device=hidden.device), mask.long().argmax(-1)]

    def bias_scale(self) -> Tensor | float:
        """γ."""
        return 1.0 if self.cls_bias_scale is None else self.cls_bias_scale

    def state_bias(self, encoder_states: Tensor, attention_mask: Tensor | None) -> Tensor | None:
        """(n, d) γq, which "dot" adds to every decoder state: W(h + γq) = Wh + γWq, at no cost; else `None`."""
        if self.config.cls_bias != "dot":
            return None
        return self.bias_scale() * self.cls_states(encoder_states, attention_mask)

    def word_bias(self, encoder_states: Tensor, attention_mask: Tensor | None) -> Tensor | None:
        """(n, W) what [CLS] adds to the logit of each target word, in fp32 at least; `None` where it adds nothing."""
        if self.config.cls_bias == "none":
            return None
        queries, words = self.cls_states(encoder_states, attention_mask), self.lm_head.weight
        full = torch.promote_types(queries.dtype, torch.float32)
        with torch.autocast(queries.device.type, enabled=False):
            queries, words = queries.to(full), words.to(full)
            similarities = queries @ words.T
            if self.config.cls_bias == "cosine":
                temperature = self.config.cls_bias_temperature or self.config.word_temperature
                norms = queries.norm(dim=-1, keepdim=True) * words.norm(dim=-1)
                similarities = similarities / norms.clamp_min(torch.finfo(full).eps) / temperature
            return self.bias_scale() * similarities

    # --- one pass -----------------------------------------------------------------------------------------------------

    def embed(self, ids: Tensor) -> Tensor:
        """(n, T, d) embeddings of target and start ids (n, T)."""
        return self.with_starts(ids, self.decoder.get_input_embeddings()(self.without_starts(ids)))

    def without_starts(self, ids: Tensor) -> Tensor:
        """Padding in place of start ids."""
        return ids.masked_fill(ids >= len(self.target_token_ids), self.first_position - 1)

    def with_starts(self, ids: Tensor, embedded: Tensor) -> Tensor:
        """The embeddings (n, T, d) of words, and those of start tokens where these are."""
        if self.start_embeddings is None:
            return embedded
        index = ids - len(self.target_token_ids)
        return torch.where(
            index[..., None] >= 0, self.start_embeddings(index.clamp_min(0)).to(embedded.dtype), embedded
        )

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        start_ids: Tensor | None = None,
        label_smoothing: float = 0.0,
        num_items_in_batch: Tensor | int | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Logits of the next target word at each place, and their cross-entropy where there are labels.

        In training the loss is computed without logits, which are `None`; with "cosine" they are held. Smooth labels by
        `label_smoothing`, never by `label_smoothing_factor` of HF's Trainer, which takes tokenizer ids for target ids.

        Args:
            input_ids: (n, S) source, tokenizer ids.
            attention_mask: (n, S) 1 on tokens, 0 on padding, which may be on either side of ids; of `inputs_embeds`,
                whose positions XLM-R counts from the first column on, behind them.
            decoder_input_ids: (n, T) target and start ids; by default the labels shifted right.
            decoder_attention_mask: (n, T).
            encoder_outputs: what `get_encoder()` gave, in place of a source.
            labels: (n, T) tokenizer ids, -100 where there is none; unknown words become `<unk>`.
            start_ids: (n,) start id of each row; by default that of `generation_config`.
            label_smoothing: ε, spread over all W words alike.
            num_items_in_batch: what the summed loss is divided by; `None`: the number of labels of this call.
            cache, past_key_values: keys and values of the target tokens before; two names of one argument.
            kwargs: `output_attentions` and `output_hidden_states`.

        Raises:
            TypeError: an unknown argument.
            ValueError: two arguments that exclude each other, no target, or one that is too long.
        """
        refuse_unknown(type(self), kwargs, PASSED_ON)
        cache = the_cache(cache, past_key_values)
        if decoder_input_ids is not None and decoder_inputs_embeds is not None:
            raise ValueError("decoder_input_ids and decoder_inputs_embeds are both given; allowed is one of them")
        if encoder_outputs is None:
            encoder_outputs = self.roberta(
                input_ids, attention_mask, inputs_embeds=inputs_embeds, return_dict=True, **kwargs
            )
        elif not isinstance(encoder_outputs, ModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        states = encoder_outputs[0]
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels, start_ids)
            labels = self.target_ids(labels)
        without_logits = (
            labels is not None
            and self.training
            and self.config.cls_bias != "cosine"
            and type(self.lm_head) is nn.Linear
        )
        vocabulary = self.lm_head.weight
        if decoder_inputs_embeds is None:
            if decoder_input_ids is None:
                raise ValueError("the decoder has no input; give labels or decoder_input_ids, or call generate")
            if without_logits and self.shares_gradient():
                known = self.without_starts(decoder_input_ids)
                embedded, vocabulary = tied_embedding(vocabulary, known, self.first_position - 1)
                decoder_inputs_embeds = self.with_starts(decoder_input_ids, embedded)
            else:
                decoder_inputs_embeds = self.embed(decoder_input_ids)
        past = 0 if cache is None else cache.get_seq_length()
        length, limit = decoder_inputs_embeds.shape[1], self.config.max_position_embeddings - self.first_position
        if isinstance(past, int) and past + length > limit:  # a static cache counts in a tensor
            raise ValueError(f"the target has {past + length} tokens; the decoder has positions for {limit}: cut it")
        positions = torch.arange(length, device=decoder_inputs_embeds.device) + past + self.first_position
        decoded = self.decoder(
            attention_mask=decoder_attention_mask,
            position_ids=positions[None],
            inputs_embeds=decoder_inputs_embeds,
            encoder_hidden_states=states,
            encoder_attention_mask=attention_mask,
            use_cache=use_cache,
            return_dict=True,
            **{CACHE: cache},
            **kwargs,
        )
        hidden = decoded.last_hidden_state
        shift = self.state_bias(states, attention_mask)
        if shift is not None:
            hidden = hidden + shift[:, None]
        logits = loss = None
        if not without_logits:
            logits = self.lm_head(hidden)
            if self.config.cls_bias == "cosine":
                bias = encoder_outputs.get("word_bias")
                if bias is None:
                    bias = self.word_bias(states, attention_mask)
                logits = logits + bias[:, None]
        if labels is not None:
            words = labels != IGNORED
            items = words.sum().clamp_min(1) if num_items_in_batch is None else num_items_in_batch
            if logits is None:
                loss = linear_cross_entropy(
                    hidden[words], vocabulary, self.lm_head.bias, labels[words], items, label_smoothing
                )
            else:
                full = torch.promote_types(logits.dtype, torch.float32)
                loss = F.cross_entropy(
                    logits.flatten(0, 1).to(full), labels.flatten(), reduction="sum", label_smoothing=label_smoothing
                )
                loss = loss / items
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            **{CACHE: decoded.get(CACHE)},
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=states,
            encoder_hidden_states=encoder_outputs.get("hidden_states"),
            encoder_attentions=encoder_outputs.get("attentions"),
        )

    def shares_gradient(self) -> bool:
        """Whether look-ups and predictions may have one gradient for both: same weights, and nobody hooked them."""
        words = self.decoder.get_input_embeddings()
        hooks = words._forward_hooks or words._forward_pre_hooks
        tied = words.weight is self.lm_head.weight
        return tied and type(words) is nn.Embedding and words.weight.requires_grad and not hooks

    # --- generation ---------------------------------------------------------------------------------------------------

    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *args: Any,
        target_language: str | Sequence[str] | None = None,
        start_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """As always, in tokenizer ids; the start token comes back as `</s>`.

        `decoder_input_ids`, words that translations have to begin with, are tokenizer ids with or without that `</s>`.
        Options such as `suppress_tokens` are tokenizer ids, too; those of the model's own `generation_config`, and of a
        copy of it where they are the same, are target ids.

        Args:
            target_language: of all rows, or of each.
            start_ids: (n,) the same as start ids.

        Raises:
            ValueError: no target language was chosen among several, or an unknown one; an option asks for a word that
                the decoder does not have, or cannot work with this model.
        """
        if generation_config is not None and generation_config.is_assistant:  # asked by another model, in target ids
            said = kwargs["decoder_input_ids"]
            kwargs.setdefault("decoder_attention_mask", torch.ones_like(said))  # tells what the cache has from the rest
            return super().generate(inputs, generation_config, *args, **kwargs)
        if (assistant := kwargs.get("assistant_model")) is not None and not self.speaks_like(assistant):
            raise ValueError(
                "the decoder of assistant_model has other words or target languages; allowed are the same: make it "
                "with this model's target_token_ids and target_languages"
            )
        past = the_cache(kwargs.pop("cache", None), kwargs.pop("past_key_values", None))
        kwargs |= {} if past is None else {CACHE: past}
        kwargs |= self.in_target_ids(kwargs)
        start: Any = kwargs.pop("decoder_start_token_id", None)
        if start_ids is not None:
            start = start_ids.tolist()
        elif isinstance(target_language, str):
            start = int(self.start_ids_of([target_language]))
        elif target_language is not None:
            start = self.start_ids_of(target_language).tolist()
        elif start is None:
            given = None if generation_config is None else generation_config.decoder_start_token_id
            start = self.default_start_id() if given is None else given
        if generation_config is None:
            kwargs["decoder_start_token_id"] = start
        else:
            generation_config = copy.deepcopy(generation_config)
            generation_config.update(**self.in_target_ids(vars(generation_config), vars(self.generation_config)))
            generation_config.decoder_start_token_id = start
        if kwargs.get("decoder_input_ids") is not None:
            begun = kwargs["decoder_input_ids"] = self.begin_with(start, kwargs["decoder_input_ids"])
            if past is not None:  # a mask tells which of these tokens the cache has not
                kwargs.setdefault("decoder_attention_mask", torch.ones_like(begun))
        if kwargs.get("streamer") is not None:
            kwargs["streamer"] = StreamerOfTokenIds(self, kwargs["streamer"])
        outputs = super().generate(inputs, generation_config, *args, **kwargs)
        if isinstance(outputs, Tensor):
            return self.token_ids(outputs)
        outputs.sequences = self.token_ids(outputs.sequences)
        return outputs

    def speaks_like(self, other: Any) -> bool:
        """Whether the target ids of both models, the start ids among them, mean the same."""
        words = getattr(other, "target_token_ids", torch.empty(0)).to(self.target_token_ids)
        return words.equal(self.target_token_ids) and self.config.target_languages == other.config.target_languages

    def in_target_ids(self, options: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The options of `generate` that hold tokenizer ids, with target ids; not those that the model's own say, too.

        Words that the decoder does not have are left out; where one must be said, it is an error.
        """
        found: dict[str, Any] = {}
        for name in (*WORDS, *SEQUENCES, *SAID):
            value = options.get(name)
            if isinstance(value, Tensor):
                value = value.tolist()
            if value is None or value == (own or {}).get(name):
                continue
            if name in SAID:
                found[name] = self.known_ids(value)
                if found[name] is None:
                    raise ValueError(
                        f"{name} is {value}, which this decoder cannot say; allowed are the ids in target_token_ids: "
                        "choose among them"
                    )
            elif name == "sequence_bias":
                pairs = value.items() if isinstance(value, dict) else value
                known = ((self.known_ids(words), bias) for words, bias in pairs)
                found[name] = [[words, bias] for words, bias in known if words is not None] or None
            else:
                known_words = [ids for words in value if (ids := self.known_ids(words)) is not None]
                found[name] = known_words or ([] if name in WORDS else None)
        return found

    def known_ids(self, token_ids: Any) -> Any:
        """The target ids of one or more tokenizer ids; `None` if the decoder lacks one of them."""
        asked = torch.as_tensor(token_ids, dtype=torch.long)
        ids = self.target_ids(asked)
        return None if ((ids == UNKNOWN) & (asked != UNKNOWN)).any() else ids.tolist()

    @overrides_private(GenerationMixin)
    def _prepare_generation_config(self, *args: Any, **kwargs: Any) -> tuple[GenerationConfig, dict[str, Any]]:
        """Refuse options that cannot work: they come from arguments, from a given configuration and from the model's
        own, and only here are they one."""
        settings, others = super()._prepare_generation_config(*args, **kwargs)
        if settings.guidance_scale not in (None, 1):
            raise ValueError(
                f"guidance_scale is {settings.guidance_scale}; it works without an encoder alone: leave it out"
            )
        words, all_words = len(self.target_token_ids), self.config.vocab_size
        for name, without_effect in OF_ONE_VOCABULARY.items() if words < all_words else ():
            if getattr(settings, name, None) not in (None, without_effect):
                raise ValueError(
                    f"{name} needs a decoder with all {all_words} words of the encoder, this one has {words}; leave it "
                    "out, or make a model without target_token_ids"
                )
        return settings, others

    def begin_with(self, start: int | list[int], token_ids: Tensor) -> Tensor:
        """(n, T) target ids of the words (n, T or T - 1) behind the start ids."""
        if (token_ids[:, 0] == self.end_id).all():
            token_ids = token_ids[:, 1:]
        column = torch.as_tensor(start, device=token_ids.device).expand(len(token_ids))
        return torch.cat([column[:, None], self.target_ids(token_ids)], 1)

    @overrides_private(GenerationMixin)
    def _prepare_text_encoder_decoder_kwargs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The encoder's pass of `generate`, with a bias that the steps need not compute again: it depends on the mask,
        which `get_encoder()` alone could not hand on."""
        model_kwargs: dict[str, Any] = super()._prepare_text_encoder_decoder_kwargs_for_generation(*args, **kwargs)
        if self.config.cls_bias == "cosine":
            outputs = model_kwargs["encoder_outputs"]
            bias = self.word_bias(outputs[0], model_kwargs.get("attention_mask"))
            model_kwargs["encoder_outputs"] = EncoderOutput(
                outputs[0], outputs.get("hidden_states"), outputs.get("attentions"), bias
            )
        return model_kwargs

    def compute_transition_scores(self, sequences: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """As always, for the sequences and scores of `generate`."""
        of_decoder: Any = self.decoder  # whose vocabulary the scores are of
        return GenerationMixin.compute_transition_scores(of_decoder, self.target_ids(sequences), *args, **kwargs)

    # --- what transformers asks for -----------------------------------------------------------------------------------

    def set_attn_implementation(self, attn_implementation: Any, **kwargs: Any) -> None:
        """That of encoder and decoder; before transformers 5.20 the decoder, of the same class, kept its own."""
        super().set_attn_implementation(attn_implementation, **kwargs)
        self.decoder.set_attn_implementation(attn_implementation, **kwargs)

    def get_encoder(self, modality: str | None = None) -> PreTrainedModel:
        return self.roberta

    def set_encoder(self, encoder: PreTrainedModel, modality: str | None = None) -> None:
        self.roberta = encoder

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head = new_embeddings

    @overrides_private(PreTrainedModel)
    def _resize_token_embeddings(
        self, new_num_tokens: int, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Module:
        """Resize the encoder's embeddings, and a decoder with all of its words; a chosen target vocabulary stays.

        `resize_token_embeddings` knows of one vocabulary, and calls this method before it ties weights.
        """
        how = new_num_tokens, pad_to_multiple_of, mean_resizing
        if self.config.decoder_vocab_size is not None:
            return self.roberta.resize_token_embeddings(*how)
        embeddings = super()._resize_token_embeddings(*how)  # of the encoder, and the output layer
        before, words = len(self.target_token_ids), embeddings.num_embeddings
        self.decoder.resize_token_embeddings(words, mean_resizing=mean_resizing)
        self.target_token_ids = torch.arange(words, device=self.target_token_ids.device)
        start = self.generation_config.decoder_start_token_id
        if start is not None and start >= before:  # start ids follow those of words
            self.generation_config.decoder_start_token_id = start + words - before
        return embeddings


def the_cache(cache: Cache | None, past_key_values: Cache | None) -> Cache | None:
    """The cache that was given under either of its names.

    Raises:
        ValueError: it was given under both.
    """
    if past_key_values is not None and CACHE == "cache":
        warnings.warn("`past_key_values` is deprecated, as in transformers; use `cache`", FutureWarning, stacklevel=4)
    if cache is not None and past_key_values is not None:
        raise ValueError("cache and past_key_values are two names of one argument and both given; leave one out")
    return past_key_values if cache is None else cache


class StreamerOfTokenIds:
    """A streamer that is told of target ids and tells another one of tokenizer ids."""

    def __init__(self, model: HictlForConditionalGeneration, streamer: Any) -> None:
        self.model, self.streamer = model, streamer

    def put(self, ids: Tensor) -> None:
        self.streamer.put(self.model.token_ids(ids))

    def end(self) -> None:
        self.streamer.end()


warn_if_untested()
AutoModelForSeq2SeqLM.register(HictlConfig, HictlForConditionalGeneration)
HictlForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = ["HictlForConditionalGeneration"]
