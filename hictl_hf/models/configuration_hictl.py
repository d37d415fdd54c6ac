"""The settings of a HiCTL model: XLM-R's own, what the contrastive objectives of the paper need, and its decoder.

Everything the paper leaves open is a field here with a reasoned default (`docs/choices.md` compares them with the
paper's letter). How text becomes batches (masking, reordering, mixing of languages) is decided by the data modules.
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
}
TEMPERATURES = ("sentence_temperature", "word_temperature", "word_sampling_temperature", "cls_bias_temperature")
LEAST = {
    **dict.fromkeys(("word_negatives", "hard_negative_window", "projection_size"), 1),
    **dict.fromkeys(("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"), 1),
    "decoder_vocab_size": 4,  # <s> <pad> </s> <unk>
}


@strict
class HictlConfig(XLMRobertaConfig):
    """XLM-R's configuration with the contrastive objectives of HiCTL (Wei et al., 2021).

    Args:
        lm_weight, sentence_weight, word_weight: weights of L_LM, L_S and L_W in the total (paper: 1, 1, 1); 0 switches
            an objective off, its forward passes included.
        projection_size: size of r = f(g(M(x))), the sentence representation; `None`: the hidden size.
        sentence_temperature: τ of the sentence-level contrast (the paper prints none, that is 1).
        word_temperature: τ of the word-level contrast (the paper prints none, that is 1).
        word_sampling_temperature: τ of the softmax that word negatives are drawn from; `None`: `word_temperature`.
        word_negatives: m, how many words outside the bag each pair is contrasted with.
        word_level_input: whether the query of the word level reads the masked x∘y, sharing the pass of the language
            model ("masked"), or the unmasked one ("clean", one more pass).
        hard_negatives: interpolate negatives towards their query by λ.
        hard_negative_space: "unit" mixes unit vectors and does not renormalise, ŝ = 1 − λ(1 − s); "raw" mixes the
            representations themselves and takes the cosine, the paper's letter.
        hard_negative_zeta: ζ, the largest exponent of λ.
        hard_negative_window: over how many optimiser steps p_avg is the mean of exp(−L_S).
        duplicates: which sentences of a batch are no negatives of each other: those whose pairs share a text ("pair"),
            those with equal texts ("text"), or none ("keep", the paper's letter).
        same_side_negatives: whether the other sentences of a query's own side are negatives, too (the paper), or those
            of the other side alone, as in InfoXLM.
        embedding_layer: which layer a sentence vector is read at, 0 being the embeddings; `None`: the last.
        embedding_pooling: how: the state of the first token ("cls"), the "mean" over tokens, or the
            "projection" r, which is of the last layer. A run of pre-training writes here what was best on its dev set.
        special_token_ids: ids that never enter a bag of words nor a sample; `None`: XLM-R's `<s> <pad> </s> <unk>` and
            the last id, `<mask>`.
        decoder_layers: layers of the decoder of a translation model (paper: 4, and 6 above 24 encoder layers).
        decoder_attention_heads, decoder_ffn_dim: its other sizes; `None`: the encoder's.
        decoder_vocab_size: W, how many words it can say; `None`: the whole vocabulary.
        target_languages: the languages it translates into, each with a start token of its own; `None`: one, unnamed,
            that starts with `</s>`.
        cls_bias: what the similarity of the encoder's `[CLS]` to a target word adds to the logit of that word: nothing
            ("none"), their product ("dot"), or their cosine over a temperature ("cosine", the paper).
        cls_bias_scale: γ, which multiplies the similarity: "learned" from 0, or "fixed" at 1 (the paper).
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
    projection_size: int | None = None
    sentence_temperature: float | int = 0.05
    word_temperature: float | int = 0.05
    word_sampling_temperature: float | int | None = None
    word_negatives: int = 512
    word_level_input: str = "masked"
    hard_negatives: bool = True
    hard_negative_space: str = "unit"
    hard_negative_zeta: float | int = 0.9
    hard_negative_window: int = 100
    duplicates: str = "pair"
    same_side_negatives: bool = True
    embedding_layer: int | None = None
    embedding_pooling: str = "cls"
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
        """Refuse values that no objective could be computed with, and no decoder built."""
        super().validate_architecture()
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(map(repr, allowed))}"
                )
        for name in ("lm_weight", "sentence_weight", "word_weight", "hard_negative_zeta"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or a positive number")
        for name in TEMPERATURES:
            if getattr(self, name) is not None and not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0 (1 is the paper's letter)")
        for name, least in LEAST.items():
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        layer, pooling, last = self.embedding_layer, self.embedding_pooling, self.num_hidden_layers
        least = last if pooling == "projection" else 0
        if layer is not None and not least <= layer <= last:
            raise ValueError(
                f"embedding_layer is {layer}; with the pooling {pooling!r} it must be from {least} to {last}"
            )
        languages = self.target_languages
        if languages is not None and not 0 < len(set(languages)) == len(languages):
            raise ValueError(f"target_languages is {languages}; it must name at least one language, and none twice")

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> "HictlConfig":
        """This configuration; of a translation model's decoder alone when that is asked for, as `generate` does."""
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
        """Read a `config.json`; an XLM-R one is a HiCTL one with our defaults."""
        values, unused = super().get_config_dict(*args, **kwargs)
        if values.get("model_type") == XLMRobertaConfig.model_type:
            values = {**values, "model_type": cls.model_type}
        return values, unused


__all__ = ["HictlConfig"]
