"""The translation model for encoders of any family: encoder, decoder, and the [CLS] bias on logits of target words.

The similarity of the encoder's `[CLS]` to each target word is added to the logits of every step, before the softmax, in
training and in decoding (machine translation with HiCTL; `cls_bias`). `target_ids` explains the kinds of ids and has
the target languages, `generation` has `generate`; `hictl_hf.translation` has a faster beam search.
Shapes: n sentences, S source tokens, T target tokens, W tokens of the target vocabulary, d dimensions.
"""

import copy
import inspect
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel, XLMRobertaModel
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils import ModelOutput, can_return_tuple

from .cls_bias import ClsBias
from .configuration_hictl import LoadsItsFamily
from .generation import CACHE, TargetIdGenerationMixin, the_cache
from .head_loss import IGNORED
from .linear_cross_entropy import can_tie, linear_cross_entropy, tied_embedding
from .masked_language_model import refuse_unknown
from .modeling_hictl import encoder_class
from .modeling_hictl_families import OF_PRETRAINING
from .supported_versions import overrides_private, require_parameters

require_parameters(
    XLMRobertaModel.forward,
    "attention_mask", "position_ids", "inputs_embeds", "encoder_hidden_states", "encoder_attention_mask", "use_cache",
)  # fmt: skip
LOSS_ELSEWHERE = (
    "the model is trained by a loss of its logits, which are of target ids: convert labels by model.target_ids, or "
    "give them to the model, with label_smoothing; label_smoothing_factor of HF's Trainer takes those of the "
    "tokenizer, and would train other words"
)
PASSED_ON = ("output_attentions", "output_hidden_states")  # to encoder and decoder
# Arguments that transformers' `generate` hands on where its mode, such as beam search, does not read them
TAKEN_BY_GENERATE = ("tokenizer", "assistant_model")


class TranslationModel(LoadsItsFamily, ClsBias, TargetIdGenerationMixin):
    """Encoder and decoder with the [CLS] bias on target words.

    The encoder is transformers' own of its family. The decoder has XLM-R's layers with cross-attention and post-norm,
    whatever the encoder is: with 4 to 6 layers and warm-up it trains well, and other engines can run it. Its word
    embeddings are tied to the output layer and separate from the encoder's, so the encoder can be frozen while they are
    trained, and the target vocabulary can be smaller.
    """

    accepts_loss_kwargs = True  # the loss is divided by `num_items_in_batch`
    reads_own_fields = True
    _tied_weights_keys = {"lm_head.weight": "decoder.embeddings.word_embeddings.weight"}
    _keys_to_ignore_on_load_unexpected = [*OF_PRETRAINING, r"lm_head\.(?!weight|bias)"]
    _keys_to_ignore_on_load_missing = [r"target_token_ids"]

    def __init__(self, config: Any) -> None:
        if not config.is_encoder_decoder:
            config = copy.deepcopy(config)
            config.is_encoder_decoder = True
        super().__init__(config)
        self.set_encoder(encoder_class(self.family)(config))
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
        self.set_default_ids()

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load a saved translation model of this class."""
        loaded = super().from_pretrained(*args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded  # with `output_loading_info`
        model.allow_lone_space()
        return loaded

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save the model; its configuration says that the output layer is the decoder's word embeddings, if it is.

        PEFT, merging an adapter, compares it with those of the encoder, and says that it is not.
        """
        if getattr(self.lm_head, "weight", None) is self.decoder.get_input_embeddings().weight:
            self.config.tie_word_embeddings = True
        super().save_pretrained(*args, **kwargs)

    @torch.no_grad()
    @overrides_private(PreTrainedModel)
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise the added weights and buffers, too: when a model is loaded, the values of `__init__` are lost."""
        super()._init_weights(module)
        if isinstance(module, TranslationModel):
            init.copy_(module.target_token_ids, torch.arange(len(module.target_token_ids)))
            if module.cls_bias_scale is not None:
                init.zeros_(module.cls_bias_scale)

    # --- forward ------------------------------------------------------------------------------------------------------

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
        num_items_in_batch: Tensor | int | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Compute the logits of the next target token at each position, and with labels their cross-entropy.

        In training the loss needs no logits, and they are `None`, except with the "cosine" bias. Smooth labels by
        `label_smoothing`, not by `label_smoothing_factor` of HF's Trainer, which reads tokenizer ids as target ids.

        Args:
            input_ids, token_type_ids: (n, S) source, tokenizer ids; a family without token types ignores them.
            attention_mask: (n, S) 1 on tokens, 0 on padding: on either side; on the right with `inputs_embeds`, and
                with an encoder of BERT, whose positions count padding.
            decoder_input_ids, decoder_attention_mask: (n, T) target and start ids; by default the labels shifted right.
            encoder_outputs: the output of `get_encoder()`, in place of a source.
            labels: (n, T) tokenizer ids, -100 where there is none; tokens outside the target vocabulary become `<unk>`.
            start_ids: (n,) start id of each example, for labels; by default that of `generation_config`.
            num_items_in_batch: what the summed loss is divided by; `None`: the number of labels of this call.
            cache, past_key_values: keys and values of the previous target tokens; two names of one argument.
            kwargs: `label_smoothing`, ε, spread evenly over all W tokens (a parameter of that name would be a label to
                transformers' Trainer, which would then evaluate no loss); `output_attentions`, `output_hidden_states`.

        Raises:
            TypeError, ValueError: unknown or contradictory arguments; a missing or too long target.
        """
        for name in TAKEN_BY_GENERATE:
            kwargs.pop(name, None)
        smoothing: float = kwargs.pop("label_smoothing", 0.0)
        refuse_unknown(type(self), kwargs, ("label_smoothing", *PASSED_ON))
        cache = the_cache(cache, past_key_values)
        if decoder_input_ids is not None and decoder_inputs_embeds is not None:
            raise ValueError("decoder_input_ids and decoder_inputs_embeds are both given; allowed is one of them")
        if start_ids is not None and (decoder_input_ids is not None or decoder_inputs_embeds is not None):
            raise ValueError(
                "start_ids have no effect on given decoder inputs; leave one of them out. DataCollatorForSeq2Seq makes "
                "decoder_input_ids, all with one start id, where it is given a model: give it none"
            )
        encoded = self.encode(input_ids, attention_mask, inputs_embeds, encoder_outputs, token_type_ids, **kwargs)
        if labels is not None:
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels, start_ids)
            labels, use_cache = self.target_ids(labels), False
        without_logits = labels is not None and self.trains_without_logits()
        embeddings = self.lm_head.weight
        if decoder_inputs_embeds is None:
            decoder_inputs_embeds, embeddings = self.embed_target(decoder_input_ids, share_gradient=without_logits)
        hidden, decoded = self.decode(
            encoded, attention_mask, decoder_inputs_embeds, decoder_attention_mask, cache, use_cache, **kwargs
        )
        logits = None if without_logits else self.logits(hidden, encoded, attention_mask)
        loss = self.token_loss(logits, hidden, embeddings, labels, num_items_in_batch, smoothing)
        return self.output_of(encoded, decoded, loss, logits)

    def encode(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        inputs_embeds: Tensor | None,
        encoder_outputs: Any,
        token_type_ids: Tensor | None,
        **kwargs: Any,
    ) -> Any:
        """The encoder's output: computed from a source, or the given one."""
        if encoder_outputs is None:
            encoder = self.get_encoder()
            if token_type_ids is not None and "token_type_ids" in inspect.signature(encoder.forward).parameters:
                kwargs["token_type_ids"] = token_type_ids
            return encoder(input_ids, attention_mask, inputs_embeds=inputs_embeds, return_dict=True, **kwargs)
        return encoder_outputs if isinstance(encoder_outputs, ModelOutput) else BaseModelOutput(*encoder_outputs)

    def embed_target(self, ids: Tensor | None, share_gradient: bool) -> tuple[Tensor, Tensor]:
        """(n, T, d) embeddings of target and start ids (n, T), and (W, d) the embeddings for the loss.

        With `share_gradient` both have one gradient matrix, where the weights are tied (`tied_embedding`).

        Raises:
            ValueError: there are no ids.
        """
        if ids is None:
            raise ValueError("the decoder has no input; give labels or decoder_input_ids, or call generate")
        if not (share_gradient and self.can_share_gradient()):
            return self.embed(ids), self.lm_head.weight
        embedded, embeddings = tied_embedding(self.lm_head.weight, self.without_starts(ids), self.padding_id)
        return self.with_starts(ids, embedded), embeddings

    def decode(
        self,
        encoded: Any,
        attention_mask: Tensor | None,
        embedded: Tensor,
        decoder_attention_mask: Tensor | None,
        cache: Cache | None,
        use_cache: bool | None,
        **kwargs: Any,
    ) -> tuple[Tensor, Any]:
        """(n, T, d) input of the output layer, and the decoder's output; the target continues that of the cache.

        Raises:
            ValueError: the target is longer than the decoder's table of positions.
        """
        past = 0 if cache is None else cache.get_seq_length()
        length, limit = embedded.shape[1], self.decoder.config.max_position_embeddings - self.first_position
        if isinstance(past, int) and past + length > limit:  # a static cache counts in a tensor
            raise ValueError(f"the target has {past + length} tokens; the decoder has positions for {limit}: cut it")
        positions = torch.arange(length, device=embedded.device) + past + self.first_position
        decoded = self.decoder(
            attention_mask=decoder_attention_mask,
            position_ids=positions[None],
            inputs_embeds=embedded,
            encoder_hidden_states=encoded[0],
            encoder_attention_mask=attention_mask,
            use_cache=use_cache,
            return_dict=True,
            **{CACHE: cache},
            **kwargs,
        )
        hidden = decoded.last_hidden_state
        shift = self.state_bias(encoded[0], attention_mask)
        return hidden if shift is None else hidden + shift[:, None].to(hidden.device), decoded

    def logits(self, hidden: Tensor, encoded: Any, attention_mask: Tensor | None) -> Tensor:
        """(n, T, W) logits of the states (n, T, d), with the "cosine" bias; the states have the "dot" bias."""
        logits: Tensor = self.lm_head(hidden)
        if self.config.cls_bias != "cosine":
            return logits
        bias = encoded.get("word_bias")
        if bias is None:
            bias = self.word_bias(encoded[0], attention_mask)
        return logits + bias[:, None].to(logits.device)

    def token_loss(
        self,
        logits: Tensor | None,
        hidden: Tensor,
        embeddings: Tensor,
        labels: Tensor | None,
        items: Tensor | int | None,
        smoothing: float,
    ) -> Tensor | None:
        """() summed cross-entropy divided by `items`; `None`: the number of labels. Without labels `None`.

        From logits (n, T, W), or without them from states (n, T, d) and embeddings (W, d), some logits at a time.
        """
        if labels is None:
            if self.training and torch.is_grad_enabled() and self.config.decoder_vocab_size is not None:
                warnings.warn(LOSS_ELSEWHERE, stacklevel=2)
            return None
        if not 0 <= smoothing <= 1:
            raise ValueError(f"label_smoothing is {smoothing}; allowed are numbers from 0 to 1")
        labels = labels.to(hidden.device if logits is None else logits.device)
        read = labels != IGNORED
        items = read.sum().clamp_min(1) if items is None else items
        if logits is None:
            return linear_cross_entropy(hidden[read], embeddings, self.lm_head.bias, labels[read], items, smoothing)
        full = torch.promote_types(logits.dtype, torch.float32)
        loss = F.cross_entropy(
            logits.flatten(0, 1).to(full), labels.flatten(), reduction="sum", label_smoothing=smoothing
        )
        return loss / (items.to(loss.device) if isinstance(items, Tensor) else items)

    def trains_without_logits(self) -> bool:
        """Whether the loss needs no logits: in training, without a cosine bias and with an unchanged output layer."""
        return self.training and self.config.cls_bias != "cosine" and type(self.lm_head) is nn.Linear

    def can_share_gradient(self) -> bool:
        """Return whether look-ups and output layer can share a gradient matrix: their weights are tied."""
        words = self.decoder.get_input_embeddings()
        return can_tie(words) and words.weight is self.lm_head.weight

    def output_of(self, encoded: Any, decoded: Any, loss: Tensor | None, logits: Tensor | None) -> Seq2SeqLMOutput:
        """Name the outputs of encoder and decoder as transformers does."""
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            **{CACHE: decoded.get(CACHE)},
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=encoded[0],
            encoder_hidden_states=encoded.get("hidden_states"),
            encoder_attentions=encoded.get("attentions"),
        )

    def embed(self, ids: Tensor) -> Tensor:
        """(n, T, d) embeddings of target and start ids (n, T)."""
        return self.with_starts(ids, self.decoder.get_input_embeddings()(self.without_starts(ids)))

    def without_starts(self, ids: Tensor) -> Tensor:
        """(n, T) target ids, with padding in place of start ids."""
        return ids.masked_fill(ids >= len(self.target_token_ids), self.padding_id)

    def with_starts(self, ids: Tensor, embedded: Tensor) -> Tensor:
        """(n, T, d) embeddings of words, with those of start tokens filled in."""
        if self.start_embeddings is None:
            return embedded
        index = (ids - len(self.target_token_ids)).to(embedded.device)
        return torch.where(index[..., None] >= 0, self.start_embeddings(index.clamp_min(0)).to(embedded), embedded)

    # --- the interface of transformers --------------------------------------------------------------------------------

    def set_attn_implementation(self, attn_implementation: Any, **kwargs: Any) -> None:
        """Set it in encoder and decoder; transformers before 5.20 skips the decoder, as it has the encoder's class."""
        super().set_attn_implementation(attn_implementation, **kwargs)
        self.decoder.set_attn_implementation(attn_implementation, **kwargs)

    def get_encoder(self, modality: str | None = None) -> PreTrainedModel:
        encoder: PreTrainedModel = getattr(self, self.base_model_prefix)
        return encoder

    def set_encoder(self, encoder: PreTrainedModel, modality: str | None = None) -> None:
        setattr(self, self.base_model_prefix, encoder)

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head = new_embeddings

    @overrides_private(PreTrainedModel)
    def _resize_token_embeddings(
        self, new_num_tokens: int, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Module:
        """Resize the encoder's embeddings, and the decoder's unless its target vocabulary was chosen.

        `resize_token_embeddings` assumes one vocabulary, and calls this method before it ties weights.
        """
        how = new_num_tokens, pad_to_multiple_of, mean_resizing
        if self.config.decoder_vocab_size is not None:
            return self.get_encoder().resize_token_embeddings(*how)
        embeddings = super()._resize_token_embeddings(*how)  # of the encoder, and the output layer
        before, words = len(self.target_token_ids), embeddings.num_embeddings
        self.decoder.resize_token_embeddings(words, mean_resizing=mean_resizing)
        self.target_token_ids = torch.arange(words, device=self.target_token_ids.device)
        start = self.generation_config.decoder_start_token_id
        if start is not None and start >= before:  # start ids follow those of words
            self.generation_config.decoder_start_token_id = start + words - before
        return embeddings
