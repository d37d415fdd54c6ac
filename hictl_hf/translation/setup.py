"""The parts of a translation run: the examples of its sources, the model, loaded or new, and the trainer."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedTokenizerBase
from transformers.utils import CONFIG_NAME

from ..data.cleaning import Cleaning, CorpusReport
from ..data.languages import find_language
from ..data.text_encoding import decode_texts, encode_texts
from ..embedding.sentence_transformers_settings import read_sentence_transformers_files, transformer_place
from ..errors import BadInput, short_repr
from ..hub.during_training import push_during_training
from ..hub.loading import (
    MOST_LAYERS,
    check_sizes,
    check_vocabulary,
    model_errors,
    place_of,
    refuse_lacking,
    refuse_not_finite,
)
from ..models.configuration_decoder import UNKNOWN
from ..models.configuration_hictl import load_config
from ..models.families import Family, longest_input
from ..models.modeling_hictl import encoder_class
from ..models.modeling_hictl_translation import TRANSLATION_CLASSES, HictlForConditionalGeneration
from ..processes import Processes
from ..training.arguments import read_dictionary, refuse_unknown_fields
from ..training.callbacks import RunFingerprint, TrainingTime, early_stopping
from ..training.model_and_data import OF_THE_WEIGHTS
from .arguments import OF_A_CONFIG, TranslationArguments
from .beam_search import check_beams
from .corpus import (
    ONLY_WHOLE,
    Direction,
    Pair,
    TokenBudgetBatchSampler,
    TranslationCollator,
    found_in_train,
    load_pairs,
    read_pairs,
    sample_pairs,
    side_lengths,
    tokenize_pairs,
)
from .prepare import preparation_signature
from .resuming import decisive_settings
from .target_vocabulary import Counts, count_pieces, count_unknown, every_id, ids_to_keep
from .trainer import TranslationTrainer

SAMPLE = 200  # references, about, that are tokenized to look at their spaces
SPACED_SHARE = 0.05
KNOWN_SHARE = 0.01  # of validation or test that is in train, too: short common sentences are in both
OF_A_DECODER = ("decoder_layers", "cls_bias", "cls_bias_scale", "config_overrides")

logger = logging.getLogger(__name__)


@dataclass
class Data:
    """The examples of a run: `train` as token ids (`None` without training), validation and test as text."""

    train: Dataset | None
    validation: list[Pair]
    test: list[Pair]
    report: CorpusReport
    cut: dict[str, int]
    """Sources of validation and test that are longer than the model reads."""
    about: dict[Direction, dict[str, str]]
    """Signature of the preparation of the test set, by direction."""
    counts: dict[str, Counts] = field(default_factory=dict)
    """How often train has each id on its target side, by language."""
    unknown: dict[str, int] = field(default_factory=dict)
    """Target tokens in train that the decoder cannot produce, by language."""


def read_data(args: TranslationArguments, config: Any, tokenizer: PreTrainedTokenizerBase) -> Data:
    """Read the sources; log what was left out of train."""
    longest = longest_input(config)
    validation = read_pairs(args.validation_file, args.directions) if args.validation_file else []
    test = read_pairs(args.test_file, args.directions) if args.test_file else []
    held_out = {"validation": validation, "test": test}
    cut = {name: count_long([pair.source for pair in pairs], tokenizer, longest) for name, pairs in held_out.items()}
    warn_of_spaces([pair.target for pair in (*test, *validation)], tokenizer)
    data = Data(None, validation, test, CorpusReport(), cut, about_preparation(test))
    if args.train_file:
        cleaning = Cleaning(**asdict(ONLY_WHOLE) | read_dictionary("cleaning", args.cleaning))
        pairs, data.report = load_pairs(args.train_file, args.directions, cleaning, args.strict)
        pairs = sample_pairs(pairs, args.max_train_samples, data.report)
        note_held_out(held_out, pairs, data.report)
        longest = min(args.max_seq_length, args.max_tokens, longest)
        data.train = tokenize_pairs(pairs, tokenizer, longest, data.report, args.preprocessing_num_workers)
        data.counts = count_pieces(data.train, len(tokenizer))
        logger.info("%s", data.report.summary())
    return data


def note_held_out(
    splits: Mapping[str, Sequence[Pair]], train: Mapping[Direction, Dataset], report: CorpusReport
) -> None:
    """Warn of validation or test pairs that are also trained on, in the log and among the messages of the report."""
    for name, pairs in splits.items():
        if (number := found_in_train(pairs, train)) > KNOWN_SHARE * len(pairs):
            report.messages.append(
                f"{number:,} of the {len(pairs):,} pairs of {name} are in train, too, so its scores may be too high; "
                "leave them out of train"
            )
            logger.warning("%s", report.messages[-1])


def about_preparation(pairs: Sequence[Pair]) -> dict[Direction, dict[str, str]]:
    """The `preparation_signature`s of the sources of each direction."""
    found: dict[Direction, dict[str, str]] = {}
    for direction, source in dict.fromkeys((pair.direction, pair.origin.rpartition(":")[0]) for pair in pairs):
        of_direction = found.setdefault(direction, {})
        for name, value in preparation_signature(source).items():
            of_direction[name] = f"{of_direction[name]}, {value}" if name in of_direction else value
    return found


def warn_of_spaces(references: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> None:
    """Warn of a tokenizer that gives a share of the references back with other spaces, as BERT's does, or with other
    characters, as XLM-R's does with Chinese punctuation: the best translation scores less than 100 then."""
    some = list(references[:: max(1, len(references) // SAMPLE)])
    ids = encode_texts(tokenizer, some, add_special_tokens=False)["input_ids"] if some else []
    changed: dict[str, list[tuple[str, str]]] = {"spaces": [], "characters": []}
    for before, after in zip(some, decode_texts(tokenizer, ids)):
        if before.split() != after.split():
            same_characters = "".join(before.split()) == "".join(after.split())
            changed["spaces" if same_characters else "characters"].append((before, after))
    for what, fix in (
        ("spaces", "a SentencePiece or byte-level tokenizer keeps the spaces"),
        ("characters", "compare with systems of the same tokenizer only, or score both sides normalised alike"),
    ):
        if len(changed[what]) > SPACED_SHARE * len(some):
            before, after = min(changed[what], key=lambda pair: len(pair[0]))
            logger.warning(
                "the tokenizer writes %d of %d references with other %s, so translations and scores are worse: %s "
                "becomes %s; %s",
                len(changed[what]), len(some), what, short_repr(before), short_repr(after), fix,
            )  # fmt: skip


def count_long(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, longest: int) -> int:
    """The number of texts with more tokens than the model reads."""
    ids = encode_texts(tokenizer, list(texts))["input_ids"] if texts else []
    return sum(len(tokens) > longest for tokens in ids)


# --- model ------------------------------------------------------------------------------------------------------------


def config_of_run(args: TranslationArguments) -> Any:
    """The configuration of the encoder, or of the translation model; `BadInput` where it is neither."""
    name = args.model_name_or_path
    try:
        place = str(args.checkpoint)
        if not place_of(place, CONFIG_NAME) and (files := read_sentence_transformers_files(place)):
            raise OSError(f"its files for sentence-transformers say that it is in {transformer_place(place, files)}")
        settings = read_dictionary("encoder_config", args.encoder_config)
        config = load_config(place, **settings)
        if not args.random_encoder:  # else a configuration without weights is enough
            check_sizes(place)
    except (StrictDataclassError, OSError, ValueError, AttributeError) as error:
        allowed = "an encoder that HiCTL trains, nor a translation model such as runs/step1/model"
        found = " ".join(str(error).split())
        raise BadInput(f"--model_name_or_path {name}: neither {allowed}: {found}") from error
    for argument in OF_A_CONFIG:
        refuse_unknown_fields(str(name), config, getattr(args, argument) or {}, argument)
    if not args.is_continued:
        return config
    if not (languages := config.target_languages):
        raise BadInput(
            f"--model_name_or_path {name}: names no target language; allowed are models with target_languages in their "
            "config.json: train one from an encoder"
        )
    # the model's way to write a language
    args.target_lang = [find_language(language, languages) or language for language in args.target_lang]
    if unknown := sorted({*args.target_lang} - {*languages}):
        raise BadInput(
            f"--target_lang {' '.join(unknown)}: the model translates into {', '.join(languages)}; name "
            "one of these, or train a model for it from an encoder"
        )
    return config


def load_or_make_model(
    args: TranslationArguments, config: Any, tokenizer: PreTrainedTokenizerBase, data: Data
) -> HictlForConditionalGeneration:
    """The translation model, or the encoder with a new decoder for the tokens of train; in float32."""
    place, name = str(args.checkpoint), str(args.model_name_or_path)
    check_vocabulary(name, tokenizer, config.vocab_size)
    with model_errors(name):
        if args.is_continued:
            model, report = HictlForConditionalGeneration.from_pretrained(
                place, dtype=torch.float32, use_safetensors=True, output_loading_info=True
            )
            refuse_lacking(name, report["missing_keys"], "a translation model with all its weights")
        else:
            ids = choose_words(args.trim_target_vocab, tokenizer, data, config.family)
            encoder = encoder_class(config.family)(config) if args.random_encoder else place
            model = HictlForConditionalGeneration.from_encoder(
                encoder, ids, args.target_lang, **new_decoder(args, config)
            )
    search = args.beam
    check_beams(model, search.num_beams)
    known = model.target_token_ids
    kept, unknown = known[known < len(tokenizer)].tolist(), int(known[UNKNOWN])  # a model may have spare rows
    data.unknown = count_unknown(data.counts, kept, unknown)
    beams = {"num_beams": search.num_beams, "length_penalty": search.length_penalty, "early_stopping": True}
    # transformers does not save other values for one beam
    greedy = {"num_beams": 1, "length_penalty": 1.0, "early_stopping": False}
    model.generation_config.update(**(beams if search.num_beams > 1 else greedy))
    return model


def check_new_decoder(args: TranslationArguments, config: Any) -> None:
    """Raise `BadInput` if no decoder can be made by these settings, before data is read; its words follow from data."""
    if args.is_continued:
        return
    refuse_other_overrides(args, config)
    decoder = new_decoder(args, config)
    values = {name: getattr(args, name) for name in OF_A_DECODER}
    given = ", ".join(f"--{name} {value}" for name, value in values.items() if value not in (None, {}))
    with model_errors(given or str(args.model_name_or_path)):
        made = load_config(str(args.checkpoint), **read_dictionary("encoder_config", args.encoder_config), **decoder)
        made.target_languages = args.target_lang
        made.validate()  # transformers sets what it is given in addition without a look
        if (layers := max(made.num_hidden_layers, made.decoder_layers)) > MOST_LAYERS:
            raise ValueError(f"it states {layers:,} layers; allowed are {MOST_LAYERS:,}")
        if made.decoder_dropout is None and not made.like_the_decoder().hidden_dropout_prob:
            logger.warning(
                "the new decoder has no dropout, as %s says 0 for its encoder; to train it with dropout: "
                "--config_overrides decoder_dropout=0.1",
                args.model_name_or_path,
            )  # fmt: skip
        with torch.random.fork_rng(devices=[]), torch.device("meta"):  # neither memory, nor other random numbers later
            TRANSLATION_CLASSES[made.family.model_type](made)


def refuse_other_overrides(args: TranslationArguments, config: Any) -> None:
    """Raise `BadInput` for `config_overrides` that say otherwise than a flag, or with which the encoder's weights would
    be another model: it has one configuration with the decoder."""
    overrides = read_dictionary("config_overrides", args.config_overrides)
    flags = {name: getattr(args, name) for name in OF_A_DECODER if name != "config_overrides"}
    of_encoder = () if args.random_encoder else ("num_hidden_layers", *OF_THE_WEIGHTS)
    for name, value in overrides.items():
        if value != flags.get(name, value) and flags[name] is not None:
            raise BadInput(f"--{name} is {flags[name]}, and in --config_overrides it is {value}; give one of them")
        if name in of_encoder and name != "tie_word_embeddings" and value != getattr(config, name, value):
            raise BadInput(
                f"config_overrides: {name} is {value}, and the encoder was trained with {getattr(config, name)}, so "
                "its weights would be another model; leave it out: sizes of the decoder alone begin with decoder_"
            )


def refuse_weights(args: TranslationArguments, config: Any) -> None:
    """Raise `BadInput` if the start's weights hold NaN or infinity."""
    if args.random_encoder or args.process_index > 0:
        return
    kind = TRANSLATION_CLASSES[config.family.model_type] if args.is_continued else encoder_class(config.family)
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        read = [name for name in kind(config).state_dict() if not name.startswith("pooler.")]
    refuse_not_finite(str(args.checkpoint), read)


def choose_words(size: str, tokenizer: PreTrainedTokenizerBase, data: Data, family: Family) -> list[int] | None:
    """The ids that a new decoder can produce; `None`: all, in the order of the tokenizer."""
    if size == "off":
        return None if family.special_ids else every_id(tokenizer)
    counts = np.sum([*data.counts.values()], axis=0)
    return ids_to_keep(counts, tokenizer, None if size == "auto" else int(size))


def new_decoder(args: TranslationArguments, config: Any) -> dict[str, Any]:
    """The settings of a new decoder that do not come from its encoder."""
    layers = 6 if args.decoder_layers is None and config.num_hidden_layers >= 24 else args.decoder_layers
    given = {"decoder_layers": layers, "cls_bias": args.cls_bias, "cls_bias_scale": args.cls_bias_scale}
    return {name: value for name, value in given.items() if value is not None} | read_dictionary(
        "config_overrides", args.config_overrides
    )


# --- trainer ----------------------------------------------------------------------------------------------------------


def make_trainer(
    args: TranslationArguments, model: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, data: Data
) -> TranslationTrainer:
    """The trainer with its examples, their batches and the collator."""
    languages = list(model.config.target_languages or [])
    start_ids = dict(zip(languages, model.start_ids_of(languages)))
    batches = None
    if data.train is not None:
        processes = Processes(args.process_index, args.world_size)
        batches = TokenBudgetBatchSampler(*side_lengths(data.train), args.max_tokens, args.seed, processes)
    return TranslationTrainer(
        model, args, train_dataset=data.train, data_collator=TranslationCollator(tokenizer, start_ids),
        callbacks=[
            RunFingerprint({}, data.report.hash, decisive_settings(args, data.validation)), TrainingTime(),
            *early_stopping(args.early_stopping_patience, args.early_stopping_threshold),
            *push_during_training(args.publish_to, args.hub_strategy, args.hub_always_push),
        ],
        processing_class=tokenizer, batches=batches, validation=data.validation, metric=args.metric,
        multi_bleu=read_dictionary("multi_bleu", args.multi_bleu), beam=args.beam,
        freeze_encoder=bool(args.freeze_encoder),
    )  # fmt: skip
