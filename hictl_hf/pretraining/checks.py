"""What can be said of a run before its data is read, which may take hours: settings that cannot work are refused."""

import logging
import math
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ..errors import BadInput
from ..hub.loading import check_vocabulary, model_errors, refuse_not_finite
from ..models.modeling_hictl import new_model
from ..training.arguments import read_dictionary
from ..training.fields import BY_METRIC, differs
from ..training.model_and_data import OF_THE_WEIGHTS
from .arguments import PretrainingArguments
from .setup import (
    check_positions,
    check_zeta,
    config_of_start,
    config_settings,
    make_collator,
    named_ids,
    new_config,
    poolings_to_evaluate,
    vocabulary_size,
)
from .start import Start
from .trainer import NO_NEGATIVES, metric_name, pairs_contrasted

logger = logging.getLogger(__name__)

OF_A_NEW_VOCABULARY = {"bos_token_id": 0, "cls_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}
SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings",
)  # fmt: skip


def check_before_reading(args: PretrainingArguments, start: Start, tokenizer: PreTrainedTokenizerBase | None) -> None:
    """Raise `BadInput` for settings that cannot work with the model, or the tokenizer.

    Args:
        tokenizer: `None` if a vocabulary is learned from the data.
    """
    config = config_of_run(args, start, tokenizer)
    place = args.model_name_or_path or args.config_name or "config_overrides"
    padding = config.pad_token_id if tokenizer is None else tokenizer.pad_token_id
    check_positions(args, place, config, padding)
    check_zeta(place, config)
    if not (config.lm_weight or config.sentence_weight or config.word_weight):
        raise BadInput(
            "lm_weight, sentence_weight and word_weight are 0, which leaves no loss to train; allowed is 0 for two of "
            "them; set one in config_overrides"
        )
    if config.lm_weight and not (args.mlm_probability or args.tlm_probability):
        logger.warning(
            "mlm_probability and tlm_probability are 0: no token is masked, so the language model learns nothing; "
            "lm_weight 0 in config_overrides saves its computation"
        )
    if args.join_reordered and config.word_level_input != "clean":
        raise BadInput(
            f"join_reordered is true, but word_level_input is {config.word_level_input!r}; set it to 'clean' in "
            "config_overrides, or leave join_reordered out"
        )
    if args.group_by_similarity == "sentences" and not start.is_read:
        raise BadInput(
            f"group_by_similarity is sentences, and the start, a {start.kind}, is not used for sentence vectors; give "
            "words, no, or a sentence encoder"
        )
    last = config.num_hidden_layers
    if wrong := [layer for layer in args.evaluate_layers if not 0 <= layer <= last]:
        raise BadInput(f"evaluate_layers has {wrong[0]}; the model has the layers 0 (embeddings) to {last}; name these")
    if config.has_dense_layer and args.evaluate_layers:
        raise BadInput(
            f"evaluate_layers is {args.evaluate_layers}, but the model is evaluated at its dense layer alone "
            "(projection_bias or projection_activation in its configuration); leave it out"
        )
    warn_of_idle(args, config, start)
    warn_of_inner_layer(args, config, start)
    check_name_of_metric(args, config)
    if config.sentence_weight > 0 and pairs_contrasted(args, args.gather_sentences, args.gradient_cache)[0] == 1:
        raise BadInput(NO_NEGATIVES)
    if tokenizer is not None:
        check_vocabulary(place, tokenizer, config.vocab_size)
        make_collator(args, config, tokenizer)  # refuses a prompt without room for text


def warn_of_idle(args: PretrainingArguments, config: Any, start: Start) -> None:
    """Log settings that are given and that nothing reads."""
    given = read_dictionary("config_overrides", args.config_overrides)
    masked = config.lm_weight or config.word_weight and config.word_level_input == "masked"
    warmup = args.lm_head_warmup_steps not in (None, 0, start.lm_head_warmup_steps)
    idle = {"lm_head_warmup_steps": "lm_weight is 0"} if warmup and not config.lm_weight else {}
    if not masked:
        rates = ("mlm_probability", "tlm_probability")
        idle |= {name: "no loss reads masked tokens" for name in rates if differs(args, name)}
    if not config.hard_negatives and "hard_negatives" not in given:
        why = "hard_negatives is false with this start; set it to true in config_overrides"
        names = ("hard_negative_space", "hard_negative_zeta", "hard_negative_lambda_gradient")
        idle |= {name: why for name in names if name in given}
    for name, why in idle.items():
        logger.warning("%s has no effect: %s", name, why)


def warn_of_inner_layer(args: PretrainingArguments, config: Any, start: Start) -> None:
    """Log a start that is read below the last layer, whose vectors are those that training acts on."""
    layer, last = start.pooling.layer if start.pooling else 0, config.num_hidden_layers
    if 0 < layer < last and config.sentence_weight > 0:
        logger.warning(
            "%s is read at layer %d, and training acts on that of layer %d, the last; to train the vector that is "
            "read, leave out the layers above it: --config_overrides num_hidden_layers=%d",
            args.model_name_or_path, layer, last, layer,
        )  # fmt: skip


def config_of_run(args: PretrainingArguments, start: Start, tokenizer: PreTrainedTokenizerBase | None) -> Any:
    """The configuration of the model that the run will have; `BadInput` if no model can be made of it."""
    settings = config_settings(args)
    place = args.model_name_or_path or args.config_name
    if args.config_overrides:
        given = f"config_overrides {args.config_overrides}"
        place = f"{place} with {given}" if place else given
    with model_errors(str(place)):
        if args.checkpoint:
            config = config_of_start(args.checkpoint, settings, start)
        elif tokenizer is not None:
            config = new_config(settings, len(tokenizer), named_ids(tokenizer))
        else:
            size = vocabulary_size(settings)
            config = new_config(settings, size, {**OF_A_NEW_VOCABULARY, "unk_token_id": 3, "mask_token_id": size - 1})
        check_numbers(config)
        shapes = shapes_of_encoder(config)
        of_start = config_of_start(args.checkpoint, {}, start) if args.checkpoint else config
        kept = shapes_of_encoder(of_start) if args.checkpoint else shapes
    changed = [name for name, shape in shapes.items() if kept.get(name) != shape]
    if changed:
        name = changed[0]
        has = f"has it as {tuple(kept[name])}" if name in kept else "does not have it"
        raise BadInput(
            f"{place}: {name} would be {tuple(shapes[name])}, and the checkpoint {has}; leave out what changes it, or "
            "train a new model (--config_name)"
        )
    refuse_other_weights(str(place), config, of_start)
    if args.checkpoint and args.process_index == 0:
        refuse_not_finite(args.checkpoint, shapes.keys())
    return config


def refuse_other_weights(place: str, config: Any, of_start: Any) -> None:
    """Raise `BadInput` for fields with which the start's weights would be another model; log layers left out."""
    for name in OF_THE_WEIGHTS:
        wanted, found = getattr(config, name, None), getattr(of_start, name, None)
        if wanted != found:
            raise BadInput(
                f"{place}: {name} is {wanted}, and the checkpoint was trained with {found}, so its weights would be "
                "another model; leave it out, or train a new model (--config_name)"
            )
    if (layers := config.num_hidden_layers) < of_start.num_hidden_layers:
        logger.warning("%s: of the %d layers the first %d are kept", place, of_start.num_hidden_layers, layers)


def check_numbers(config: Any) -> None:
    """Raise `ValueError` for numbers in a configuration of which a model can be made, but none that computes."""
    for name in SIZES:
        if (size := getattr(config, name, 1)) < 1:
            raise ValueError(f"{name} is {size}; allowed is 1 or more")
    if chunk := getattr(config, "chunk_size_feed_forward", 0):
        raise ValueError(f"chunk_size_feed_forward is {chunk}; allowed is 0, as sentences of any length are packed")
    for name, value in vars(config).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is {value}; allowed is a finite number")


def shapes_of_encoder(config: Any) -> dict[str, torch.Size]:
    """The shapes of an encoder's weights by name, without memory for them; other errors if no model can be made."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):  # random numbers later do not depend on it
        return {name: weight.shape for name, weight in new_model(config).base_model.state_dict().items()}


def check_name_of_metric(args: PretrainingArguments, config: Any) -> None:
    """Raise `BadInput` for a metric that no evaluation has, whatever its languages are; log one that nothing reads."""
    chooses = args.load_best_model_at_end or args.early_stopping_patience or args.save_strategy == "best"
    if differs(args, "metric_for_best_model") and not (chooses or args.lr_scheduler_type.value in BY_METRIC):
        logger.warning(
            "metric_for_best_model is %s, which chooses nothing; add --load_best_model_at_end true",
            args.metric_for_best_model,
        )
    if args.eval_strategy == "no" or not (args.validation_file or args.held_out_sentences):
        return
    names = ["retrieval", *map(metric_name, poolings_to_evaluate(args, config))]
    given = str(args.metric_for_best_model)
    if (name := given.removeprefix("eval_")) not in names and not name.startswith("retrieval_"):
        raise BadInput(
            f"metric_for_best_model is {given!r}; allowed are {', '.join(names)}, retrieval_ and a pair of languages; "
            "leave it out, or name one"
        )
