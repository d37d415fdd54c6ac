"""What a run starts from, and the settings that follow from it."""

import logging
from dataclasses import dataclass, replace
from typing import Any

from safetensors import safe_open
from transformers.utils import CONFIG_NAME

from ..embedding.encoder import check_model_type, is_pretraining_model
from ..embedding.pooling import Pooling, own_pooling
from ..embedding.sentence_transformers_settings import SentenceTransformersSettings, read_sentence_transformers_files
from ..errors import BadInput
from ..hub.loading import check_weights, load_tokenizer, place_of, weights_of
from ..models.configuration_hictl import load_config
from ..models.families import longest_input
from .arguments import PretrainingArguments

logger = logging.getLogger(__name__)

NEW = "new model"
MASKED_LM = "masked language model"
HICTL = "HiCTL model"
SENTENCE_ENCODER = "sentence encoder"
ENCODER = "encoder without a language-model head"


@dataclass(frozen=True)
class Start:
    """The checkpoint that a run starts from.

    Attributes:
        kind: one of the constants above.
        pooling: how its folder says that its sentence vectors are read; `None` for a model that has none yet: a new
            one, a masked language model, and a HiCTL model whose vectors are a projection in training.
        lm_head: whether it has a trained language-model head.
        prompt: the text that it has before each sentence by default.
        settings: what its files for sentence-transformers say; `None` without such files.
    """

    kind: str = NEW
    pooling: Pooling | None = None
    lm_head: bool = False
    prompt: str | None = None
    settings: SentenceTransformersSettings | None = None

    @property
    def is_read(self) -> bool:
        """Whether the start is used for its sentence vectors: then the run trains the vector that is read."""
        return self.pooling is not None

    @property
    def learning_rate(self) -> float:
        """The peak learning rate by default: the paper's for XLM-R base, a small one for sentence vectors to keep."""
        return 5e-5 if self.is_read else 2.5e-4

    @property
    def config_overrides(self) -> dict[str, Any]:
        """Default settings of the model: a sentence encoder is trained at the vector that it is read at, and a HiCTL
        model has its own."""
        if self.pooling is None or self.kind == HICTL:
            return {}
        mode, layer = self.pooling
        values: dict[str, Any] = {"embedding_pooling": mode, "embedding_layer": layer}
        if mode != "projection":
            values |= {"sentence_pooling": mode, "sentence_projection": False}
        values["hard_negatives"] = False  # they move a trained sentence encoder too far (docs/choices.md)
        if self.settings is not None:
            values |= {
                "embedding_max_length": self.settings.max_length, "embedding_normalize": self.settings.normalize,
                "embedding_prompts": self.settings.prompts or None,
            }  # fmt: skip
            for dense in self.settings.dense:  # one at most, as `check_trainable` allows
                activation = "linear" if dense.activation == "Identity" else dense.activation.lower()
                values |= {"projection_bias": dense.bias, "projection_activation": activation}
        return values

    @property
    def lm_head_warmup_steps(self) -> int:
        """Steps in which a new language-model head is taught, before its loss moves a trained encoder."""
        return 100 if self.is_read and not self.lm_head else 0


def apply_defaults(args: PretrainingArguments, start: Start) -> None:
    """Set the arguments that were left open by the kind of start, and log what it was taken for."""
    if args.learning_rate is None:
        args.learning_rate = start.learning_rate
    if args.lm_head_warmup_steps is None:
        args.lm_head_warmup_steps = start.lm_head_warmup_steps or None
    if args.prompt is None:
        args.prompt = start.prompt
    if args.should_log and args.model_name_or_path:
        read = f", read by {start.pooling.mode} at layer {start.pooling.layer}" if start.pooling else ""
        prompt = f", prompt {args.prompt!r}" if args.prompt else ""
        logger.info(
            "%s: %s%s%s; learning rate %g", args.model_name_or_path, start.kind, read, prompt, args.learning_rate
        )


def recognise(encoder: str | None) -> Start:
    """What the checkpoint is, from its configuration, the names of its weights and its files for sentence-transformers.

    Raises:
        BadInput: it is of no family that HiCTL trains, or its files for sentence-transformers cannot be honoured.
    """
    if encoder is None:
        return Start()
    if not place_of(encoder, CONFIG_NAME) and (settings := read_sentence_transformers_files(encoder)):
        check_trainable(encoder, settings)  # refuses weights in a sub-folder
    values = check_model_type(encoder)
    check_weights(encoder)
    if any(name.endswith("ForConditionalGeneration") for name in values.get("architectures") or ()):
        raise BadInput(
            f"{encoder}: is a translation model, whose decoder would be taken for a language-model head; allowed are "
            "encoders. Write its encoder by hictl_hf.export_encoder(model, folder), and save the tokenizer there, too"
        )
    config = load_config(encoder)
    if is_pretraining_model(values):
        adapted = not config.sentence_projection or config.has_dense_layer
        return Start(HICTL, own_pooling(config) if adapted else None, lm_head=True, prompt=config.embedding_prompt)
    lm_head = has_lm_head(encoder, config)
    if settings := read_sentence_transformers_files(encoder):
        pooling = trainable_pooling(encoder, settings, config)
        if settings.max_length is None:  # as sentence-transformers 6.2 writes it
            longest = min(load_tokenizer(encoder).model_max_length, longest_input(config))
            settings = replace(settings, max_length=longest)
        return Start(SENTENCE_ENCODER, pooling, lm_head, settings.default_prompt, settings)
    if "embedding_pooling" in values:  # an encoder that a run of ours exported
        return Start(SENTENCE_ENCODER, own_pooling(config), lm_head, config.embedding_prompt)
    return Start(MASKED_LM, lm_head=True) if lm_head else Start(ENCODER, Pooling("mean", config.num_hidden_layers))


def trainable_pooling(encoder: str, settings: SentenceTransformersSettings, config: Any) -> Pooling:
    """The pooling of a sentence encoder, `BadInput` for one that can be read and not trained here."""
    check_trainable(encoder, settings)
    if settings.dense:
        return Pooling("projection", config.num_hidden_layers)
    layer = config.num_hidden_layers if settings.layer is None else settings.layer
    return Pooling(settings.pooling, layer + (config.num_hidden_layers + 1 if layer < 0 else 0))


def check_trainable(encoder: str, settings: SentenceTransformersSettings) -> None:
    """Raise `BadInput` for a sentence encoder that can be read and not trained here."""
    found = {
        "dense layers other than one of the first token": settings.dense and not settings.has_projection,
        "weights in a sub-folder": settings.transformer_folder,
        "texts in lower case": settings.lower_case,
        "a mean without the tokens of the prompt": not settings.include_prompt,
    }
    if refused := [name for name, value in found.items() if value]:
        raise BadInput(
            f"{encoder}: its files for sentence-transformers ask for {', '.join(refused)}, which training does not "
            "support; allowed is Transformer, Pooling by cls or mean, after cls one Dense or none, Normalize. Give "
            "another encoder"
        )


def has_lm_head(encoder: str, config: Any) -> bool:
    """Whether the weights of a checkpoint include a language-model head."""
    names: list[str] = []
    for path in weights_of(encoder):
        with safe_open(path, "pt") as weights:
            names += weights.keys()
    return bool(config.family.has_head(config, names))
