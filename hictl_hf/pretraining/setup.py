"""The parts of a pre-training run: corpora, tokenizer, model and trainer, each checked before the training begins."""

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..data.collator import OBJECTIVES, PretrainingCollator
from ..data.layout import layout_of, words_never_sampled
from ..data.sampling import PretrainingExamples, TemperatureSampler, language_shares
from ..data.stream_parts import stream_parts
from ..data.streaming import StreamedBatches
from ..data.tokenization import (
    lengths_of,
    prompt_tokens,
    space_of,
    tokenize_corpus,
    train_tokenizer,
    warn_of_unknown_tokens,
)
from ..embedding.encoder import check_model_type, load_encoder, without_load_report
from ..embedding.pooling import DenseLayers, Pooling, all_poolings, own_pooling, projection_of
from ..errors import BadInput
from ..files import atomic_directory
from ..hub.during_training import push_during_training
from ..hub.loading import check_sizes, check_vocabulary, load_tokenizer, model_errors, warn_of_other_ids
from ..models.configuration_hictl import config_class, load_config
from ..models.configuration_objective import NAMED_IDS, ZETA
from ..models.families import longest_input
from ..models.modeling_hictl import HictlForPreTraining, new_model
from ..models.objective import HictlObjective
from ..retrieval.held_out import pair_names
from ..training.arguments import plain_settings, read_dictionary, refuse_unknown_fields
from ..training.callbacks import RunFingerprint, TrainingTime, early_stopping
from .arguments import DECISIVE, DECISIVE_SINCE_0_17, PretrainingArguments
from .batch_size import fit_micro_batch
from .corpora import Corpora, comparable_texts, first_tokens, leave_out_same_ids, log_cut_rows, warn_of_repeats
from .interpolation import Weights, hash_of_weights
from .similar_pairs import group_by_similarity
from .start import SENTENCE_ENCODER, Start
from .trainer import HictlTrainer, metric_name, pairs_contrasted

logger = logging.getLogger(__name__)

OF_WEIGHTS = {  # what a config.json says of its weights: by which class and how they are read, not how they are built
    "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "_name_or_path",
    "is_encoder_decoder", "embedding_pooling", "embedding_layer", "embedding_prompt", "embedding_max_length",
    "embedding_normalize", "embedding_prompts", "embedding_lower_case", "special_token_ids",
}  # fmt: skip
OUTPUTS = {"output_attentions": False, "output_hidden_states": False, "return_dict": True}  # whatever a start says
SENTENCES_FOR_VOCABULARY = 200_000  # rows sampled from the corpus to learn a vocabulary


# --- tokenizer --------------------------------------------------------------------------------------------------------


def load_or_train_tokenizer(args: PretrainingArguments, train: Dataset | None) -> PreTrainedTokenizerBase:
    """The tokenizer named in the arguments, that of the checkpoint, or a new one, which is saved for resuming."""
    kept = Path(args.output_dir) / "tokenizer"
    if source := args.tokenizer_source:
        tokenizer = load_tokenizer(source)
        layout_of(tokenizer)  # refuses what cannot be trained with
        warn_of_other_ids(args.checkpoint, source, tokenizer)
        return tokenizer
    if train is None:
        raise BadInput("no vocabulary can be learned from a stream; give --tokenizer_name or --model_name_or_path")
    with args.main_process_first(local=False, desc="learning a vocabulary"):
        if not (args.resume_from_checkpoint and kept.exists()) and args.process_index == 0:
            sentences = sample_sentences(train, args.seed)
            size = vocabulary_size(config_settings(args))
            with atomic_directory(kept) as draft:
                train_tokenizer(sentences, size, args.max_seq_length).save_pretrained(draft)
        if not kept.exists():
            raise BadInput(
                f"{kept}: the first process has written it, and process {args.process_index} does not see it; allowed "
                "is an output_dir that all machines share"
            )
        return AutoTokenizer.from_pretrained(kept)


def vocabulary_size(settings: Mapping[str, Any]) -> int:
    """The size of a new vocabulary, a required setting of a new model."""
    if "vocab_size" not in settings:
        raise BadInput(
            "a new model needs the size of its vocabulary: --config_overrides vocab_size=12000,... or --config_name; "
            "or continue a checkpoint with --model_name_or_path xlm-roberta-base"
        )
    if type(size := settings["vocab_size"]) is not int:
        raise BadInput(f"config_overrides: vocab_size is {size!r}; allowed is an integer, for example 12000")
    return size


def config_settings(args: PretrainingArguments) -> dict[str, Any]:
    """A copy of the fields of `config_overrides`, over those of the configuration of `config_name`."""
    settings = dict(read_dictionary("config_overrides", args.config_overrides))
    if not args.config_name:
        return settings
    with model_errors(f"config_name {args.config_name}"):
        values = check_model_type(args.config_name, args.model_revision)
    return {name: value for name, value in values.items() if name not in OF_WEIGHTS} | settings


def sample_sentences(train: Dataset, seed: int) -> Iterator[str]:
    """Both sides of a random sample of `SENTENCES_FOR_VOCABULARY` rows."""
    rows = np.random.default_rng(seed).permutation(len(train))[:SENTENCES_FOR_VOCABULARY]
    for row in train.select(rows):
        yield row["x"]
        if row["y"] is not None:
            yield row["y"]


# --- model ------------------------------------------------------------------------------------------------------------


def load_or_make_model(
    args: PretrainingArguments, tokenizer: PreTrainedTokenizerBase, start: Start
) -> tuple[HictlObjective, list[str]]:
    """The model of the checkpoint with `config_overrides` applied, or a new model of these settings; in float32.

    Also returns the names of the weights that the checkpoint does not have.
    """
    new: list[str] = []
    settings = config_settings(args)
    place = args.model_name_or_path or args.config_name or "config_overrides"
    with model_errors(place):
        if checkpoint := args.checkpoint:
            check_sizes(checkpoint)
            projection = projection_of_start(checkpoint, start)
            shape = {} if projection is None else {"projection_size": len(projection["weight"])}
            config = config_of_start(checkpoint, settings, start, **shape)
            with without_load_report():  # `apply_defaults` logs a new head, and what must be there is refused
                model, report = HictlForPreTraining.from_pretrained(
                    checkpoint, config=config, dtype=torch.float32, use_safetensors=True, output_loading_info=True
                )
            new = sorted(report["missing_keys"])
            if lacking := [name for name in new if name.startswith(f"{model.base_model_prefix}.")]:
                kind = f"an encoder of the type of its config.json, {config.family.model_type}"
                raise BadInput(f"{checkpoint}: lacks {len(lacking)} weights, such as {lacking[0]}; allowed is {kind}")
            if projection is not None and config.sentence_projection:
                model.projection.load_state_dict(projection)
                new = [name for name in new if not name.startswith("projection.")]
        else:
            model = new_model(new_config(settings, len(tokenizer), named_ids(tokenizer)))
    if settings.get("vocab_size", model.config.vocab_size) != model.config.vocab_size:
        logger.info("the vocabulary has %d ids, not %s as configured", model.config.vocab_size, settings["vocab_size"])
    check_vocabulary(place, tokenizer, model.config.vocab_size)
    check_positions(args, place, model.config, tokenizer.pad_token_id)
    if args.dropout is not None:
        set_dropout(model, args.dropout)
    if args.freeze_word_embeddings:
        model.get_input_embeddings().requires_grad_(False)
    check_zeta(place, model.config)
    model.config.embedding_prompt = args.prompt or None
    model.config.special_token_ids = words_never_sampled(tokenizer, model.config.vocab_size)
    if model.family.token_types:  # multilingual-e5-small is a BERT whose tokenizer writes none
        typed = "token_type_ids" in tokenizer.model_input_names
        model.config.sep_token_id = layout_of(tokenizer).between[0] if typed else None
    return model, new


def config_of_start(checkpoint: str, settings: Mapping[str, Any], start: Start, **shape: int) -> Any:
    """The configuration of a checkpoint with `config_overrides` applied; `BadInput` for fields that it cannot have."""
    kept = {name: value for name, value in settings.items() if name != "vocab_size"}
    of_start = {**start.config_overrides, **shape}
    config = load_config(checkpoint, **{**OUTPUTS, **of_start, **kept})
    refuse_unknown_fields(checkpoint, config, kept)
    refuse_other_shapes(checkpoint, kept)
    refuse_another_projection(checkpoint, kept, of_start)
    config.validate()  # transformers sets what it is given in addition without a look
    config.auto_map = dict(config.code_on_the_hub)  # whatever code the start names, readers of this model run its own
    return config


def named_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, int | None]:
    """The special ids of a tokenizer by the names that a configuration has for them."""
    return {name: getattr(tokenizer, name, None) for name in (f"{token}_token_id" for token in NAMED_IDS)}


def new_config(settings: Mapping[str, Any], size: int, ids: Mapping[str, int | None]) -> Any:
    """The configuration of a new model of the family `model_type`, XLM-R by default, with a tokenizer's ids."""
    kind = config_class(settings.get("model_type"))
    known = {item.name for item in fields(kind)}
    given = {name: value for name, value in settings.items() if name != "model_type"}
    named = {name: number for name, number in ids.items() if number is not None and name in known}
    return kind(**{**named, **given, "vocab_size": size})


def check_positions(args: PretrainingArguments, place: str, config: Any, padding_of_tokenizer: int | None) -> None:
    """Raise `BadInput` if texts may be longer than the model's positions, or padding is another id where they begin."""
    longest = longest_input(config)
    if args.max_seq_length > longest:
        raise BadInput(
            f"max_seq_length is {args.max_seq_length}, but the model reads {longest} tokens; give --max_seq_length "
            f"{longest}, or less"
        )
    padding = config.pad_token_id
    if config.family.positions_after_padding and padding_of_tokenizer != padding:
        raise BadInput(
            f"{place}: its positions begin after the id of padding, {padding}, and the tokenizer's is "
            f"{padding_of_tokenizer}; allowed are equal ones. Give the tokenizer that was saved with the model"
        )


def check_zeta(place: str, config: Any) -> None:
    """Raise `BadInput` for an exponent of λ with which no negative is harder."""
    if config.hard_negatives and not 0 < config.hard_negative_zeta < 1:
        raise BadInput(
            f"{place}: hard_negative_zeta is {config.hard_negative_zeta}; {ZETA}; set it in config_overrides"
        )


def set_dropout(model: nn.Module, probability: float) -> None:
    """Set all dropout of a model; its configuration keeps its own: who fine-tunes the encoder later expects it."""
    for part in model.modules():
        module: Any = part
        if isinstance(module, nn.Dropout):
            module.p = probability
        if isinstance(getattr(module, "attention_dropout", None), float | int):  # of ModernBERT and EuroBERT
            module.attention_dropout = probability
        if probability and isinstance(getattr(module, "out_drop", None), nn.Identity):  # of ModernBERT without dropout
            module.out_drop = nn.Dropout(probability)


def projection_of_start(encoder: str, start: Start) -> dict[str, Tensor] | None:
    """Weight (r, d), and bias (r,) if any, of the projection that an encoder is read at; `None`: read otherwise."""
    if start.kind != SENTENCE_ENCODER or start.pooling is None or start.pooling.mode != "projection":
        return None
    found = projection_of(load_encoder(encoder, device="cpu")[0])
    layer = found[0] if isinstance(found, DenseLayers) else found
    return {name: values.detach() for name, values in layer.named_parameters()}


def refuse_other_shapes(encoder: str, settings: Mapping[str, Any]) -> None:
    """Raise `BadInput` for settings that would change the shape of a HiCTL checkpoint's weights or state."""
    before = AutoConfig.from_pretrained(encoder).to_dict()
    for name in ("hard_negative_window", "projection_size", "projection_bias"):
        if name in settings and before.get(name, settings[name]) != settings[name]:
            raise BadInput(
                f"config_overrides: {name} is {settings[name]}, but {encoder} was trained with {before[name]}, and has "
                "its state in that shape; leave it out, or begin from the plain encoder of that run (encoder/)"
            )


def refuse_another_projection(encoder: str, settings: Mapping[str, Any], of_start: Mapping[str, Any]) -> None:
    """Raise `BadInput` for settings that are not those of the dense layer that a sentence encoder is read at."""
    for name in ("projection_size", "projection_bias", "projection_activation"):
        if name in settings and (found := of_start.get(name, settings[name])) != settings[name]:
            raise BadInput(
                f"config_overrides: {name} is {settings[name]}, but {encoder} has {found} and is read at that "
                "projection; leave it out"
            )


# --- trainer ----------------------------------------------------------------------------------------------------------


def make_trainer(
    args: PretrainingArguments,
    model: HictlObjective,
    tokenizer: PreTrainedTokenizerBase,
    corpora: Corpora,
    training_time: TrainingTime,
    start: Weights | None = None,
) -> HictlTrainer:
    """The trainer with its examples, their order and the collator; `start` are weights to be kept in part."""
    collator = make_collator(args, model.config, tokenizer)
    if args.ddp_find_unused_parameters is None:
        # with all objectives, every parameter is used
        args.ddp_find_unused_parameters = len(collator.objectives) < len(OBJECTIVES) or bool(args.lm_head_warmup_steps)
    warn_of_untrained_encoder(args, collator.objectives)
    if args.auto_find_batch_size:
        fit_micro_batch(model, collator, args, args.shard_parameters)
        args.auto_find_batch_size = False  # the Trainer's own search would change the batch
    examples: StreamedBatches | PretrainingExamples
    if corpora.train is None:
        examples, sampler = stream_of_batches(args, tokenizer, comparable_texts(*corpora.held_out)), None
    else:
        examples, sampler = examples_and_sampler(args, tokenizer, corpora)
        log_cut_rows(examples.dataset, sampler.lengths, collator)
    if corpora.dev is None:
        if args.eval_strategy != "no" or args.load_best_model_at_end:
            logger.warning("no pairs are held out: nothing is evaluated, and the last state is kept, not the best one")
        if args.early_stopping_patience or args.eval_on_start:
            raise BadInput(
                "no pairs are held out, and early_stopping_patience and eval_on_start need an evaluation; give "
                "--validation_file, or leave them out"
            )
        args.eval_strategy, args.load_best_model_at_end = "no", False
    poolings = poolings_to_evaluate(args, model.config)
    check_metric(args, corpora.dev, poolings)
    decisive = decisive_settings(args) | {"pairs in both directions": both_directions(sampler)}
    run = RunFingerprint(decisive, corpora.hash, newer_settings(args, tokenizer, start, model))
    trainer = HictlTrainer(
        model, args, train_dataset=examples, eval_dataset=corpora.dev, data_collator=collator,
        processing_class=tokenizer, callbacks=[
            run, training_time,
            *early_stopping(args.early_stopping_patience, args.early_stopping_threshold),
            *push_during_training(args.publish_to, args.hub_strategy, args.hub_always_push),
        ],
        batches=sampler, gather_sentences=args.gather_sentences, gradient_cache=args.gradient_cache,
        shard_parameters=args.shard_parameters, poolings=poolings, lm_head_warmup_steps=args.lm_head_warmup_steps or 0,
    )  # fmt: skip
    if args.group_by_similarity != "no":  # by the weights of the start, also where a checkpoint is loaded later
        group_by_similarity(trainer, args.group_by_similarity)
    return trainer


def warn_of_untrained_encoder(args: PretrainingArguments, objectives: Collection[str]) -> None:
    """Warn of a run of L_LM alone that ends within the steps that train its new head only."""
    if {*objectives} == {"lm"} and 0 < args.max_steps <= (args.lm_head_warmup_steps or 0):
        logger.warning(
            "max_steps %d: the first %d train the new head of L_LM only, and no other loss counts: the encoder "
            "stays as it is; take more steps, or --lm_head_warmup_steps 0",
            args.max_steps, args.lm_head_warmup_steps,
        )  # fmt: skip


def make_collator(args: PretrainingArguments, config: Any, tokenizer: PreTrainedTokenizerBase) -> PretrainingCollator:
    """The collator of the run; `BadInput` for a prompt that leaves no room for text."""
    weights = {"lm": config.lm_weight, "sentence": config.sentence_weight, "word": config.word_weight}
    return PretrainingCollator(
        tokenizer, args.mlm_probability, args.tlm_probability, args.max_seq_length, args.reordering,
        objectives=[name for name, weight in weights.items() if weight],
        clean_word_level=config.word_level_input == "clean", join_reordered=args.join_reordered,
        pair_separators=args.pair_separators, prompt=prompt_tokens(tokenizer, args.prompt or ""),
    )  # fmt: skip


def poolings_to_evaluate(args: PretrainingArguments, config: Any) -> list[Pooling]:
    """All poolings of the layers in question; only the trained one, and that of the start, if r is what is read."""
    last = config.num_hidden_layers
    if config.has_dense_layer:
        return [Pooling("projection", last)]
    if config.sentence_projection or args.evaluate_layers:
        layers = args.evaluate_layers or range(last + 1)
        return all_poolings(layers, last, projection=config.projects_first_token)
    return list(dict.fromkeys([Pooling(config.sentence_pooling, last), own_pooling(config)]))


def decisive_settings(args: PretrainingArguments) -> dict[str, Any]:
    """The settings that a resumed run must share with the interrupted one, as plain values."""
    plain = plain_settings(args)
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    since_0_10 = {  # `None` where it is as before
        "join_reordered": args.join_reordered or None,
        "freeze_word_embeddings": args.freeze_word_embeddings or None,
        "group_by_similarity": None if args.group_by_similarity == "no" else args.group_by_similarity,
        "pair_separators": None if args.pair_separators == 2 else args.pair_separators,
    }
    return {name: plain[name] for name in DECISIVE} | since_0_10 | {"pairs of a step": batch}


def both_directions(sampler: TemperatureSampler | None) -> list[str] | None:
    """Pairs of languages that have both directions, which releases until 0.19 drew as two pairs; `None` if none has."""
    groups = sampler.groups if sampler is not None else {}
    return sorted(f"{x}-{y}" for x, y in groups if y is not None and x < y and (y, x) in groups) or None


def newer_settings(
    args: PretrainingArguments, tokenizer: PreTrainedTokenizerBase, start: Weights | None, model: PreTrainedModel
) -> dict[str, Any]:
    """Decisive settings that checkpoints of releases before 0.17, or 0.29.2, did not store."""
    grouped = args.group_by_similarity != "no"
    by = {name: weight.detach().cpu() for name, weight in model.base_model.named_parameters()} if grouped else None
    plain, vocabulary = plain_settings(args), sorted(tokenizer.get_vocab().items())
    return {name: plain[name] for name in DECISIVE_SINCE_0_17} | {
        "pairs contrasted together": pairs_contrasted(args, args.gather_sentences, args.gradient_cache)[0],
        "hash of the vocabulary": blake2b(json.dumps(vocabulary).encode(), digest_size=16).hexdigest(),
        "hash of the start, which is kept in part": hash_of_weights(start) if start else None,
        "hash of the start, by which pairs are grouped": hash_of_weights(by) if by else None,
        "metric and layers of the best state": (
            [args.metric_for_best_model, args.evaluate_layers] if args.load_best_model_at_end else None
        ),
    }


def check_metric(args: PretrainingArguments, dev: Dataset | None, poolings: Sequence[Pooling]) -> None:
    """Raise `BadInput` if no evaluation measures `metric_for_best_model`."""
    if dev is None or args.eval_strategy == "no":
        return
    allowed = ["retrieval", *(f"retrieval_{name}" for name in sorted({*pair_names(dev)})), *map(metric_name, poolings)]
    if (given := str(args.metric_for_best_model)).removeprefix("eval_") not in allowed:
        raise BadInput(
            f"metric_for_best_model is {given!r}; allowed are {', '.join(allowed)}; leave it out, or name one"
        )


def examples_and_sampler(
    args: PretrainingArguments, tokenizer: PreTrainedTokenizerBase, corpora: Corpora
) -> tuple[PretrainingExamples, TemperatureSampler]:
    """Tokenised examples, and the sampler that mixes their languages."""
    space = space_of(tokenizer, args.prompt or "")
    tokens, _ = tokenize_corpus(corpora.train, tokenizer, args.max_seq_length, args.preprocessing_num_workers, space)
    warn_of_unknown_tokens(first_tokens(tokens), tokenizer)
    tokens = leave_out_same_ids(corpora, tokens, tokenizer, space)
    if len(tokens) < args.world_size:
        raise BadInput(
            f"the training data has {len(tokens)} rows, and {args.world_size} processes share each step; allowed are "
            "as many rows or more; start fewer processes, or give more data"
        )
    languages = tokens.select_columns(["x_lang", "y_lang"]).to_pandas().fillna("")
    groups = {
        (x_lang, y_lang or None): np.asarray(rows)
        for (x_lang, y_lang), rows in languages.groupby(["x_lang", "y_lang"]).indices.items()
    }
    sizes = {key: len(rows) for key, rows in groups.items()}
    shares = language_shares(sizes, args.text_alpha, args.pair_alpha, args.text_share)
    micro_batches = args.gradient_accumulation_steps
    sampler = TemperatureSampler(
        lengths_of(tokens), groups, shares, args.train_batch_size * micro_batches * args.world_size,
        args.seed, micro_batches, args.process_index, args.world_size,
    )  # fmt: skip
    if idle := ["-".join(filter(None, key)) for key, draws in zip(groups, sampler.draws) if not draws]:
        logger.warning(
            "text_share is %g: never drawn is %s, with a share of less than one of the %d examples of an epoch",
            args.text_share, ", ".join(idle), len(tokens),
        )  # fmt: skip
    warn_of_repeats(sampler, args.text_share)
    return PretrainingExamples(tokens, args.seed), sampler


def stream_of_batches(
    args: PretrainingArguments, tokenizer: PreTrainedTokenizerBase, held_out: Set[str]
) -> StreamedBatches:
    """Batches read from the sources during training, mixed by `stream_shares`, else by language and size on disk."""
    sources, shares, cleaning, parts = args.train_file, args.stream_shares, args.cleaning_rules, None
    if not shares:
        found = stream_parts(sources, cleaning, args.text_alpha, args.pair_alpha, args.text_share)
        if idle := [str(part) for part in found if not part.share]:
            logger.warning("text_share is %g: never read is %s", args.text_share, ", ".join(idle))
        parts = [part for part in found if part.share]
        sources, shares = [part.source for part in parts], [part.share for part in parts]
    stream = StreamedBatches(
        sources, shares, tokenizer, args.train_batch_size, args.seed, cleaning, args.strict, args.stream_buffer,
        max(args.dataloader_num_workers, 1), args.process_index, args.world_size, held_out,
        space_of(tokenizer, args.prompt or ""), parts,
    )  # fmt: skip
    if not args.resume_from_checkpoint:
        stream.refuse_unequal_files()
    return stream
