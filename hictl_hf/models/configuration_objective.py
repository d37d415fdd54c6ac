"""The fields of a configuration that HiCTL adds to that of an encoder: its objectives, and how vectors are read.

What the paper leaves open is a field with a reasoned default; `docs/choices.md` compares each with the paper's setting.
Masking, reordering and the mixture of languages are not fields: they are arguments of the data modules.
"""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from .families import OURS, Family, families_named, family_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig as Base
else:  # a plain class, or the fields of PreTrainedConfig would come a second time, after those of the encoder
    Base = object

logger = logging.getLogger(__name__)

CHOICES = {
    "hard_negative_space": ("unit", "raw"),
    "duplicates": ("pair", "text", "keep"),
    "word_level_input": ("masked", "clean"),
    "embedding_pooling": ("cls", "mean", "projection", None),
    "sentence_pooling": ("cls", "mean"),
    "projection_activation": ("linear", "tanh", "relu", "gelu", "silu", "sigmoid"),
}
TEMPERATURES = ("sentence_temperature", "word_temperature", "word_sampling_temperature")
ZETA = "it must be above 0 and below 1 (the paper's value is 0.9)"
LEAST = {
    **dict.fromkeys(("word_negatives", "hard_negative_window", "projection_size"), 1),
    "embedding_max_length": 3,  # <s>, a token, </s>
}
NAMED_IDS = ("pad", "bos", "eos", "cls", "sep", "mask", "unk")


def check_choice(name: str, value: str | None, allowed: tuple[str | None, ...]) -> None:
    """Raise `ValueError` for an unknown value."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}")


@dataclass(kw_only=True, repr=False, eq=False)
class ObjectiveConfig(Base):
    """HiCTL's fields (Wei et al., 2021), for the configuration of an encoder of any family.

    Args:
        lm_weight, sentence_weight, word_weight: weights of L_LM, L_S and L_W in the total loss (paper: 1, 1, 1); an
            objective with weight 0 is not computed.
        sentence_pooling: g, what L_S reads of M(x): "cls", the state of the first token (the paper), or "mean" over all
            tokens, as many sentence encoders are read.
        sentence_projection: whether r = f(g(M(x))) (the paper), or r = g(M(x)), so that L_S trains the very vector that
            a sentence encoder is read at.
        projection_size: size of the sentence representation r = f(g(M(x))); `None`: the hidden size.
        projection_bias: whether f adds a bias; the paper's does not, the dense layer of some sentence encoders does.
        projection_activation: of f, by its name in transformers: "linear" (the paper), or that of such a dense layer.
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
        embedding_pooling: "cls" (state of the first token), "mean" (over tokens) or "projection" (r, last layer only);
            `None`: as `sentence_pooling`. A pre-training run stores the layer and pooling that are best on its dev set.
        embedding_max_length: tokens of a sentence that are read, special tokens included; `None`: 256.
        embedding_prompt: text that is put before each sentence by default; `None`: none.
        embedding_prompts: prompts by name, such as {"query": "query: "}; `None`: none.
        embedding_normalize: whether sentence vectors are scaled to length 1.
        embedding_lower_case: whether sentences are lower-cased.
        special_token_ids: ids that are never in a bag of words and never sampled; `None`: XLM-R's
            `<s> <pad> </s> <unk>` and the last id, `<mask>`; in other families the ids that the configuration names.
    """

    family: ClassVar[Family]
    choices: ClassVar[dict[str, tuple[str | None, ...]]] = CHOICES
    temperatures: ClassVar[tuple[str, ...]] = TEMPERATURES
    least: ClassVar[dict[str, int]] = LEAST
    code_on_the_hub: ClassVar[dict[str, str]]
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values", "cache", "lm_loss"]  # no predictions

    lm_weight: float | int = 1.0
    sentence_weight: float | int = 1.0
    word_weight: float | int = 1.0
    sentence_pooling: str = "cls"
    sentence_projection: bool = True
    projection_size: int | None = None
    projection_bias: bool = False
    projection_activation: str = "linear"
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
    embedding_pooling: str | None = None
    embedding_max_length: int | None = None
    embedding_prompt: str | None = None
    embedding_prompts: dict[str, str] | None = None
    embedding_normalize: bool = True
    embedding_lower_case: bool = False
    special_token_ids: list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.special_token_ids is None:
            self.special_token_ids = self.default_special_ids()
        if self.embedding_pooling == "first token":  # as releases before 0.8 wrote it
            self.embedding_pooling = "cls"
        if not getattr(self, "auto_map", None):
            self.auto_map = dict(self.code_on_the_hub)

    def default_special_ids(self) -> list[int]:
        """The ids that the configuration names."""
        named = {getattr(self, f"{name}_token_id", None) for name in NAMED_IDS}
        return sorted(number for number in named if isinstance(number, int))

    def validate_architecture(self) -> None:
        """Raise `ValueError` for a value that the objectives do not support."""
        super().validate_architecture()
        for name, allowed in self.choices.items():
            check_choice(name, getattr(self, name), allowed)
        for name in ("lm_weight", "sentence_weight", "word_weight"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or a positive number")
        if not 0 < self.hard_negative_zeta < 1 and self.transformers_version is None:  # releases before 0.10 saved any
            raise ValueError(f"hard_negative_zeta is {self.hard_negative_zeta}; {ZETA}")
        for name in self.temperatures:
            if getattr(self, name) is not None and not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0 (the paper's value is 1)")
        for name, least in self.least.items():
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        self.validate_reading()

    def validate_reading(self) -> None:
        """Raise `ValueError` for a projection or a layer that the model does not have."""
        for name, without in {"size": None, "bias": False, "activation": "linear"}.items():
            if (found := getattr(self, f"projection_{name}")) != without and not self.sentence_projection:
                raise ValueError(
                    f"projection_{name} is {found} without a projection; leave it out, or set sentence_projection to "
                    "true"
                )
        if self.embedding_pooling == "projection" and not self.projects_first_token:
            raise ValueError(
                "embedding_pooling is 'projection'; it must be 'cls' or 'mean' where sentence_projection is false or "
                "sentence_pooling is 'mean'"
            )
        pooling = self.embedding_pooling or self.sentence_pooling
        layer, last = self.embedding_layer, self.num_hidden_layers
        if layer is not None and layer > last and self.transformers_version is not None:  # saved, and then cut
            logger.warning("embedding_layer is %d, but the model has %d layer(s); the last is read", layer, last)
            self.embedding_layer = layer = None
        least = last if pooling == "projection" else 0
        if layer is not None and not least <= layer <= last:
            raise ValueError(
                f"embedding_layer is {layer}; with the pooling {pooling!r} it must be from {least} to {last}"
            )

    @property
    def projects_first_token(self) -> bool:
        """Whether r, the projection of the first token, can be read as a sentence vector."""
        return self.sentence_projection and self.sentence_pooling == "cls"

    @property
    def has_dense_layer(self) -> bool:
        """Whether f is a sentence encoder's dense layer, with a bias or an activation function, and not the paper's."""
        return self.projects_first_token and (self.projection_bias or self.projection_activation != "linear")

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read a `config.json`; that of the plain encoder becomes a HiCTL configuration with the defaults above, and
        without the names of its code."""
        values, unused = super().get_config_dict(*args, **kwargs)
        if values.get("model_type") == cls.family.model_type:
            values = {name: value for name, value in values.items() if name not in ("auto_map", "custom_pipelines")}
            values["model_type"] = cls.model_type
        return values, unused

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Self:
        """Read the configuration of a HiCTL model or of a plain encoder.

        Raises:
            ValueError: it is of another architecture, whose weights may have the same names and another meaning.
        """
        name = pretrained_model_name_or_path
        kind = cls.get_config_dict(name, *args, **dict(kwargs))[0].get("model_type", cls.model_type)
        if kind != cls.model_type:
            of_family = f"{cls.__name__} loads {cls.model_type} and {cls.family.model_type}"
            allowed = of_family if family_of(kind) else f"HiCTL's classes load {OURS}, {families_named()}"
            raise ValueError(f"{name} is a model of type {kind!r}; {allowed}")
        return super().from_pretrained(name, *args, **kwargs)
