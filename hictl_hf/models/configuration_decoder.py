"""The fields of a configuration that a translation model adds: sizes of its decoder, its languages, the [CLS] bias."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from transformers import XLMRobertaConfig

from .configuration_objective import CHOICES, LEAST, TEMPERATURES, ObjectiveConfig
from .families import longest_input

BEGIN, PADDING, END, UNKNOWN = range(4)
"""The first target ids of every decoder, whatever ids the tokenizer has for these tokens."""
SPECIALS = 4
SIZES = (
    "hidden_size", "num_attention_heads", "intermediate_size", "hidden_act", "hidden_dropout_prob",
    "attention_probs_dropout_prob", "layer_norm_eps", "initializer_range",
)  # fmt: skip


@dataclass(kw_only=True, repr=False, eq=False)
class DecoderConfig(ObjectiveConfig):
    """The fields of a translation model with an encoder of any family.

    Args:
        decoder_layers: layers of the decoder of a translation model (paper: 4, or 6 with an encoder of 24).
        decoder_attention_heads, decoder_ffn_dim: other sizes of the decoder; `None`: the encoder's.
        decoder_dropout: dropout of the decoder's states; `None`: the encoder's `hidden_dropout_prob`, or 0.1 in
            families without such a field.
        decoder_vocab_size: W, the number of tokens the decoder can generate; `None`: all tokens of the encoder.
        target_languages: languages to translate into, each with a separate start token; `None`: one unnamed language
            with the start token `</s>`.
        cls_bias: what is added to the logit of a target word: nothing ("none"), or the similarity of its embedding to
            the encoder's `[CLS]` state, as a product ("dot") or as a cosine over a temperature ("cosine", the paper).
        cls_bias_scale: γ, the factor of the similarity: "learned" from 0, or "fixed" at 1 (the paper).
        cls_bias_temperature: τ of the cosine; `None`: `word_temperature`.
    """

    choices: ClassVar[dict[str, tuple[str | None, ...]]] = {
        **CHOICES,
        "cls_bias": ("none", "dot", "cosine"),
        "cls_bias_scale": ("learned", "fixed"),
    }
    temperatures: ClassVar[tuple[str, ...]] = (*TEMPERATURES, "cls_bias_temperature")
    least: ClassVar[dict[str, int]] = {
        **LEAST,
        **dict.fromkeys(("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"), 1),
        "decoder_vocab_size": SPECIALS,
    }

    decoder_layers: int = 4
    decoder_attention_heads: int | None = None
    decoder_ffn_dim: int | None = None
    decoder_dropout: float | int | None = None
    decoder_vocab_size: int | None = None
    target_languages: list[str] | None = None
    cls_bias: str = "dot"
    cls_bias_scale: str = "learned"
    cls_bias_temperature: float | int | None = None

    def validate_architecture(self) -> None:
        """Raise `ValueError` for a value that the objectives or the decoder do not support."""
        super().validate_architecture()
        if self.decoder_dropout is not None and not 0 <= self.decoder_dropout < 1:
            raise ValueError(f"decoder_dropout is {self.decoder_dropout}; it must be 0 or more and below 1")
        languages = self.target_languages
        if languages is not None and not 0 < len(set(languages)) == len(languages):
            raise ValueError(f"target_languages is {languages}; it must name at least one language, and none twice")

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> Any:
        """Return this configuration; with `decoder=True`, as in `generate`, that of a translation model's decoder."""
        if not decoder or encoder or not self.is_encoder_decoder:
            return self
        config = self.like_the_decoder()
        config.is_decoder, config.add_cross_attention, config.is_encoder_decoder = True, True, False
        config.num_hidden_layers = self.decoder_layers
        config.num_attention_heads = self.decoder_attention_heads or config.num_attention_heads
        config.intermediate_size = self.decoder_ffn_dim or config.intermediate_size
        config.vocab_size = self.decoder_vocab_size or self.vocab_size
        if self.decoder_dropout is not None:
            config.hidden_dropout_prob = self.decoder_dropout
        return config

    @property
    def decoder_start_token_id(self) -> int | None:
        """The start id of a model with one target language; transformers' `run_translation.py` reads it here."""
        if not self.is_encoder_decoder or len(self.target_languages or ()) > 1:
            return None
        return (self.decoder_vocab_size or self.vocab_size) if self.target_languages else END

    @decoder_start_token_id.setter
    def decoder_start_token_id(self, start: int | None) -> None:
        if self.is_encoder_decoder and start not in (None, self.decoder_start_token_id):  # of an encoder it is unused
            raise ValueError(
                f"decoder_start_token_id is {start}; allowed is {self.decoder_start_token_id}, by target_languages. "
                "Leave it out, or set it in generation_config"
            )

    def never_translated(self) -> Sequence[int]:
        """Tokenizer ids that are no part of a translation.

        A pre-trained encoder names a lone space, "▁", among its special ids, as it is no word. But translations need
        it, as in "▁ ." of XLM-R's tokenizer. So only ids at both ends of XLM-R's vocabulary count.
        """
        if not self.family.special_ids:
            return self.default_special_ids()
        special, end = {*(self.special_token_ids or ())}, self.vocab_size
        while end - 1 in special:  # <mask>, and rows beyond the vocabulary
            end -= 1
        return sorted(number for number in special if number < SPECIALS or number >= end)

    def like_the_decoder(self) -> Any:
        """A new configuration of XLM-R's layers in the encoder's sizes, and of as many positions as it reads."""
        names = {name: self.family.decoder_sizes.get(name, name) for name in SIZES}
        sizes = {name: getattr(self, own) for name, own in names.items() if hasattr(self, own)}
        ids = {"bos_token_id": BEGIN, "pad_token_id": PADDING, "eos_token_id": END}
        return XLMRobertaConfig(
            **sizes, **ids, max_position_embeddings=longest_input(self) + PADDING + 1, type_vocab_size=1,
            tie_word_embeddings=self.tie_word_embeddings, attn_implementation=self._attn_implementation,
            dtype=self.dtype,
        )  # fmt: skip
