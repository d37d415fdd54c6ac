"""Configuration of a HiCTL model: XLM-R's fields, those of the paper's contrastive objectives and of the decoder.

What the paper leaves open is a field with a reasoned default; `docs/choices.md` compares each with the paper's setting.
Masking, reordering and the mixture of languages are not fields: they are arguments of the data modules.
"""

import copy
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import XLMRobertaConfig

CODE_ON_THE_HUB = {
    "AutoConfig": "configuration_hictl.HictlConfig",
    "AutoModel": "modeling_hictl.HictlModel",
    "AutoModelForPreTraining": "modeling_hictl.HictlForPreTraining",
    "AutoModelForMaskedLM": "modeling_hictl.HictlForMaskedLM",
    "AutoModelForSequenceClassification": "modeling_hictl.HictlForSequenceClassification",
    "AutoModelForTokenClassification": "modeling_hictl.HictlForTokenClassification",
    "AutoModelForQuestionAnswering": "modeling_hictl.HictlForQuestionAnswering",
}
CHOICES = {
    "hard_negative_space": ("unit", "raw"),
    "duplicates": ("pair", "text", "keep"),
    "word_level_input": ("masked", "clean"),
    "cls_bias": ("none", "dot", "cosine"),
    "cls_bias_scale": ("learned", "fixed"),
    "embedding_pooling": ("cls", "mean", "projection"),
    "sentence_pooling": ("cls", "mean"),
}
TEMPERATURES = ("sentence_temperature", "word_temperature", "word_sampling_temperature", "cls_bias_temperature")
ZETA = "it must be above 0 and below 1 (the paper's value is 0.9)"
LEAST = {
    **dict.fromkeys(("word_negatives", "hard_negative_window", "projection_size"), 1),
    **dict.fromkeys(("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"), 1),
    "decoder_vocab_size": 4,  # <s> <pad> </s> <unk>
    "embedding_max_length": 3,  # <s>, a token, </s>
}


@strict
class HictlConfig(XLMRobertaConfig):
    """XLM-R's configuration with the contrastive objectives of HiCTL (Wei et al., 2021).

    Args:
        lm_weight, sentence_weight, word_weight: weights of L_LM, L_S and L_W in the total loss (paper: 1, 1, 1); an
            objective with weight 0 is not computed.
        sentence_pooling: g, what L_S reads of M(x): "cls", the state of the first token (the paper), or "mean" over all
            tokens, as many sentence encoders are read.
        sentence_projection: whether r = f(g(M(x))) (the paper), or r = g(M(x)), so that L_S trains the very vector that
            a sentence encoder is read at.
        projection_size: size of the sentence representation r = f(g(M(x))); `None`: the hidden size.
        sentence_temperature: τ of the sentence-level contrast (none in the paper, so 1).
        word_temperature: τ of the word-level contrast (none in the paper, so 1).
        word_sampling_temperature: τ of the softmax from which word negatives are drawn; `None`: `word_temperature`.
        word_negatives: m, the number of sampled words outside the bag that each pair is contrasted with.
        word_level_input: input of the word-level query: "masked" x∘y, in the forward pass of the language model, or
            "clean" (unmasked) x∘y, in an additional one.
        hard_negatives: interpolate negatives towards their query by λ.
        hard_negative_space: "unit" interpolates unit vectors without renormalising, ŝ = 1 − λ(1 − s); "raw", the
            paper's setting, interpolates the representations and then takes the cosine.
        hard_negative_zeta: ζ, the largest exponent of λ, above 0 and below 1; a saved configuration may have another.
        hard_negative_lambda_gradient: whether the gradient passes through λ; the paper does not say.
        hard_negative_window: number of optimiser steps over which p_avg is the mean of exp(−L_S).
        duplicates: sentences of a batch that are not negatives of each other: those whose pairs share a text ("pair"),
            those with equal texts ("text"), or none ("keep", the paper's setting).
        same_side_negatives: also take the other sentences of the query's side as negatives (the paper's setting), not
            only those of the other side (InfoXLM).
        embedding_layer: layer from which sentence vectors are read, 0 for the embeddings; `None`: the last.
        embedding_pooling: "cls" (state of the first token), "mean" (over tokens) or "projection" (r, last layer only).
            A pre-training run stores the layer and pooling that were best on its dev set.
        embedding_max_length: tokens of a sentence that are read, special tokens included; `None`: 256.
        embedding_prompt: text that is put before each sentence by default; `None`: none.
        embedding_prompts: prompts by name, such as {"query": "query: "}; `None`: none.
        embedding_normalize: whether sentence vectors are scaled to length 1.
        embedding_lower_case: whether sentences are lower-cased.
        special_token_ids: ids that are never in a bag of words and never sampled; `None`: XLM-R's
            `<s> <pad> </s> <unk>` and the last id, `<mask>`.
        decoder_layers: layers of the decoder of a translation model (paper: 4, or 6 with an encoder of 24).
        decoder_attention_heads, decoder_ffn_dim: other sizes of the decoder; `None`: the encoder's.
        decoder_vocab_size: W, the number of tokens the decoder can generate; `None`: all tokens of the encoder.
        target_languages: languages to translate into, each with a separate start token; `None`: one unnamed language
            with the start token `</s>`.
        cls_bias: what is added to the logit of a target word: nothing ("none"), or the similarity of its embedding to
            the encoder's `[CLS]` state, as a product ("dot") or as a cosine over a temperature ("cosine", the paper).
        cls_bias_scale: γ, the factor of the similarity: "learned" from 0, or "fixed" at 1 (the paper).
        cls_bias_temperature: τ of the cosine; `None`: `word_temperature`.

    Example:
        >>> from hictl_hf import HictlConfig
        >>> HictlConfig(vocab_size=1000, sentence_temperature=1.0).special_token_ids
        [0, 1, 2, 3, 999]
    """

    model_type = "hictl"

    lm_weight: float | int = 1.0
    sentence_weight: float | int = 1.0
    word_weight: float | int = 1.0
    sentence_pooling: str = "cls"
    sentence_projection: bool = True
    projection_size: int | None = None
    sentence_temperature: float | int = 0.05
    word_temperature: float | int = 0.05
    word_sampling_temperature: float | int | None = None
    word_negatives: int = 512
    word_level_input: str = "masked"
    hard_negatives: bool = True
    hard_negative_space: str = "unit"
    hard_negative_zeta: float | int = 0.9
    hard_negative_lambda_gradient: bool = False
    hard_negative_window: int = 100
    duplicates: str = "pair"
    same_side_negatives: bool = True
    embedding_layer: int | None = None
    embedding_pooling: str = "cls"
    embedding_max_length: int | None = None
    embedding_prompt: str | None = None
    embedding_prompts: dict[str, str] | None = None
    embedding_normalize: bool = True
    embedding_lower_case: bool = False
    special_token_ids: list[int] | None = None
    decoder_layers: int = 4
    decoder_attention_heads: int | None = None
    decoder_ffn_dim: int | None = None
    decoder_vocab_size: int | None = None
    target_languages: list[str] | None = None
    cls_bias: str = "dot"
    cls_bias_scale: str = "learned"
    cls_bias_temperature: float | int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.special_token_ids is None:
            self.special_token_ids = [0, 1, 2, 3, self.vocab_size - 1]
        if self.embedding_pooling == "first token":  # as releases before 0.8 wrote it
            self.embedding_pooling = "cls"
        if not getattr(self, "auto_map", None):
            self.auto_map = dict(CODE_ON_THE_HUB)

    def validate_architecture(self) -> None:
        """Raise `ValueError` for a value that the objectives or the decoder do not support."""
        super().validate_architecture()
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(map(repr, allowed))}"
                )
        for name in ("lm_weight", "sentence_weight", "word_weight"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or a positive number")
        if not 0 < self.hard_negative_zeta < 1 and self.transformers_version is None:  # releases before 0.10 saved any
            raise ValueError(f"hard_negative_zeta is {self.hard_negative_zeta}; {ZETA}")
        for name in TEMPERATURES:
            if getattr(self, name) is not None and not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0 (the paper's value is 1)")
        for name, least in LEAST.items():
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if self.projection_size and not self.sentence_projection:
            raise ValueError(
                f"projection_size is {self.projection_size} without a projection; leave it out, or set "
                "sentence_projection to true"
            )
        if self.embedding_pooling == "projection" and not self.projects_first_token:
            raise ValueError(
                "embedding_pooling is 'projection'; it must be 'cls' or 'mean' where sentence_projection is false or "
                "sentence_pooling is 'mean'"
            )
        layer, pooling, last = self.embedding_layer, self.embedding_pooling, self.num_hidden_layers
        least = last if pooling == "projection" else 0
        if layer is not None and not least <= layer <= last:
            raise ValueError(
                f"embedding_layer is {layer}; with the pooling {pooling!r} it must be from {least} to {last}"
            )
        languages = self.target_languages
        if languages is not None and not 0 < len(set(languages)) == len(languages):
            raise ValueError(f"target_languages is {languages}; it must name at least one language, and none twice")

    @property
    def projects_first_token(self) -> bool:
        """Whether r, the projection of the first token, can be read as a sentence vector."""
        return self.sentence_projection and self.sentence_pooling == "cls"

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> "HictlConfig":
        """Return this configuration; with `decoder=True`, as in `generate`, that of a translation model's decoder."""
        if not decoder or encoder or not self.is_encoder_decoder:
            return self
        config = copy.deepcopy(self)
        config.is_decoder, config.add_cross_attention, config.is_encoder_decoder = True, True, False
        config.num_hidden_layers = self.decoder_layers
        config.num_attention_heads = self.decoder_attention_heads or self.num_attention_heads
        config.intermediate_size = self.decoder_ffn_dim or self.intermediate_size
        config.vocab_size = self.decoder_vocab_size or self.vocab_size
        return config

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read a `config.json`; that of an XLM-R model becomes a HiCTL configuration with the defaults above."""
        values, unused = super().get_config_dict(*args, **kwargs)
        if values.get("model_type") == XLMRobertaConfig.model_type:
            values = {**values, "model_type": cls.model_type}
        return values, unused

    @classmethod
    def from_pretrained(cls, name: Any, *args: Any, **kwargs: Any) -> "HictlConfig":
        """Read the configuration of a HiCTL or XLM-R model.

        Raises:
            ValueError: it is of another architecture, whose weights may have the same names and another meaning.
        """
        kind = cls.get_config_dict(name, *args, **dict(kwargs))[0].get("model_type", cls.model_type)
        if kind != cls.model_type:
            raise ValueError(f"{name} is a model of type {kind!r}; HiCTL's classes load hictl and xlm-roberta")
        return super().from_pretrained(name, *args, **kwargs)


__all__ = ["HictlConfig"]
