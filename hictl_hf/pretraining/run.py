"""A pre-training run from sources to report: each step is a function, `pretrain` is their order."""

import logging
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
import transformers
from datasets import Dataset
from huggingface_hub.errors import StrictDataclassError
from numpy.typing import NDArray
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase, set_seed

from ..data.cleaning import Cleaning, CorpusReport
from ..data.collator import PretrainingCollator
from ..data.corpus import load_corpus
from ..data.held_out import comparable, split_held_out
from ..data.sampling import PretrainingExamples, TemperatureSampler, language_shares
from ..data.streaming import StreamedBatches, source_shares
from ..data.tokenization import tokenize_corpus, train_tokenizer, words_never_sampled
from ..embedding.encoder import Pooling, all_poolings, check_model_type, embed_sentences
from ..embedding.sentence_transformers_files import write_sentence_transformers_files
from ..errors import BadInput
from ..files import atomic_directory, write_json, write_text
from ..hub.cards import encoder_card, model_card
from ..hub.loading import check_sizes
from ..hub.publishing import push, reserve
from ..models.configuration_hictl import HictlConfig
from ..models.modeling_hictl import HictlForPreTraining, export_encoder
from ..reports.plots import plot_layers
from ..reports.results import part, retrieval_table
from ..retrieval.held_out import RetrievalAccuracy, best_pooling, evaluate_retrieval, mean_accuracies, pair_names
from ..training.arguments import plain_settings, read_dictionary
from ..training.checkpoints import check_checkpoint, last_whole_checkpoint, newest_first
from ..training.sharding import gather_model
from ..training.trainer import TERMINATED, ExamplesFingerprint, SettingsFingerprint, TrainingTime
from ..version import __version__
from .arguments import DECISIVE, PretrainingArguments, parse_arguments
from .batch_size import fit_micro_batch
from .plots import plot_losses, plot_retrieval, plot_tsne
from .report import write_report
from .trainer import HictlTrainer, metric_name

logger = logging.getLogger(__name__)

SENTENCES_FOR_VOCABULARY = 200_000  # a vocabulary is learned from a sample of the corpus of this size
PICTURED_SENTENCES, PICTURED_LANGUAGES = 12, 5  # of the t-SNE figure


@dataclass
class Corpora:
    """The texts of a run. Held-out parts are `None` where nothing could be or was to be held out."""

    train: Dataset | None
    dev: Dataset | None
    test: Dataset | None
    report: CorpusReport

    @property
    def hash(self) -> str:
        """Of what is trained on, which follows from what was read and what is held out of it, and of what is scored."""
        digest = blake2b(self.report.hash.encode(), digest_size=16)
        for pairs in filter(None, (self.dev, self.test)):
            for text in chain(pairs["x"], pairs["y"]):
                digest.update(text.encode() + b"\0")
        return digest.hexdigest()


def main(argv: Sequence[str] | None = None, program: str = "hictl pretrain") -> dict[str, Any]:
    """Run with these arguments, those of the command line by default; returns what is in `results.json`."""
    argv = sys.argv[1:] if argv is None else list(argv)
    args = parse_arguments(argv)
    logging.basicConfig(level=args.get_process_log_level(), format="%(message)s")
    logging.getLogger("hictl_hf").setLevel(logging.INFO if args.should_log else logging.WARNING)
    results = pretrain(args, command=shlex.join([*program.split(), *argv]))
    if args.should_log:
        print(retrieval_table(results))
        print(f"\nreport: {args.output_dir}/report.html   checkpoint: {args.output_dir}/checkpoint")
    return results


def pretrain(args: PretrainingArguments, command: str = "") -> dict[str, Any]:
    """Train, evaluate, save and report; returns what is in `results.json`."""
    refuse_to_overwrite(args)
    if args.publish_to and args.process_index == 0:
        reserve(args.publish_to, args.hub_private_repo)
    set_seed(args.seed)
    corpora = read_corpora(args)
    tokenizer = load_or_train_tokenizer(args, corpora)
    model = load_or_make_model(args, tokenizer)
    training_time = TrainingTime()
    trainer = make_trainer(args, model, tokenizer, corpora, training_time)
    before = trainer.run_inside(lambda: score(trainer, corpora))
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    if trainer.terminated:
        raise SystemExit(TERMINATED)
    after = trainer.run_inside(lambda: score(trainer, corpora))
    results = collect_results(args, trainer, corpora, before, after, training_time.seconds, command)
    whole = gather_model(trainer.model, keep=trainer.is_world_process_zero())
    if trainer.is_world_process_zero():
        save(args, whole, tokenizer, results)
        report(args, results, before, after)
        if args.publish_to:
            push(args.output_dir, args.publish_to)
    return results


def refuse_to_overwrite(args: PretrainingArguments) -> None:
    """A folder with checkpoints is continued or left alone; "true" stands for its last whole checkpoint."""
    if args.resume_from_checkpoint and args.resume_from_checkpoint.lower() == "true":
        found = [last_whole_checkpoint(args.output_dir) if args.process_index == 0 else None]
        if args.world_size > 1:
            torch.distributed.broadcast_object_list(found, device=args.device)  # all go on from the same one
        args.resume_from_checkpoint = found[0]
        if args.resume_from_checkpoint is None and args.should_log:
            logger.warning("%s: no whole checkpoint to resume from, starting at the beginning", args.output_dir)
    elif args.resume_from_checkpoint:
        check_checkpoint(args.resume_from_checkpoint)
    elif newest_first(args.output_dir):
        raise BadInput(
            f"{args.output_dir}: holds the checkpoints of another run; continue it with --resume_from_checkpoint true, "
            "or choose another --output_dir"
        )
    if not args.resume_from_checkpoint and (Path(args.output_dir) / "results.json").exists():
        raise BadInput(f"{args.output_dir}: holds a run that has ended; choose another --output_dir, or remove it")


def read_corpora(args: PretrainingArguments) -> Corpora:
    """Read, clean and split the sources; what was skipped is told."""
    cleaning = Cleaning(**read_dictionary("cleaning", args.cleaning))
    held_out: dict[str, Dataset] = {}
    if args.held_out_data:
        pairs, _ = load_corpus(args.held_out_data, cleaning, args.strict)
        held_out = split_held_out(pairs, args.held_out_sentences, args.seed, keep_half=False)
        if not (len(held_out["dev"]) and len(held_out["test"])):
            raise BadInput(
                f"held_out_data is {', '.join(args.held_out_data)}, which has no sentence pair to choose by (dev) and "
                "another to score (test); give two or more pairs that share no text"
            )
    if args.streaming:
        return Corpora(None, held_out["dev"] or None, held_out["test"] or None, CorpusReport())
    train, corpus_report = load_corpus(args.train_data, cleaning, args.strict)
    if held_out:
        read = len(train)
        train = without_texts(train, held_out["dev"], held_out["test"])
        logger.info("%d of %d rows share a text with held-out data and are not trained on", read - len(train), read)
        if not len(train):
            raise BadInput(
                f"held_out_data is {', '.join(args.held_out_data)}, with which all {read} rows of train_data share a "
                "text; give other pairs, or hold out fewer by --held_out_sentences"
            )
        parts = {"train": train, "dev": held_out["dev"], "test": held_out["test"]}
    elif args.held_out_sentences:
        parts = split_held_out(train, args.held_out_sentences, args.seed)
    else:
        parts = {"train": train}
    logger.info("%s", corpus_report.summary())
    return Corpora(parts["train"], parts.get("dev") or None, parts.get("test") or None, corpus_report)


def without_texts(train: Dataset, *held_out: Dataset) -> Dataset:
    """Train without the rows that share a text with a held-out part, on either side."""
    texts = {comparable(text) for part in held_out for side in ("x", "y") for text in part[side]}
    sides = zip(train["x"], train["y"], strict=True)
    keep = [comparable(x) not in texts and (y is None or comparable(y) not in texts) for x, y in sides]
    return train.select(np.flatnonzero(keep))


def load_or_train_tokenizer(args: PretrainingArguments, corpora: Corpora) -> PreTrainedTokenizerBase:
    """The tokenizer of the checkpoint, the named one, or a new one; a new one is kept for resuming."""
    kept = Path(args.output_dir) / "tokenizer"
    if source := args.tokenizer or args.encoder:
        try:
            tokenizer = AutoTokenizer.from_pretrained(source)
        except (OSError, ValueError) as error:
            raise BadInput(f"{source}: holds no tokenizer that loads: {error}") from error
        check_special_tokens(source, tokenizer)
        return tokenizer
    if corpora.train is None:
        raise BadInput("a stream cannot be gone through to learn a vocabulary; give --tokenizer or --encoder")
    with args.main_process_first(local=False, desc="learning a vocabulary"):
        if not (args.resume_from_checkpoint and kept.exists()) and args.process_index == 0:
            sentences = sample_sentences(corpora.train, args.seed)
            train_tokenizer(sentences, vocabulary_size(args), args.max_length).save_pretrained(kept)
        return AutoTokenizer.from_pretrained(kept)


def check_special_tokens(source: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `BadInput` for a tokenizer that is not laid out as XLM-R's, whose positions begin after the id of <pad>."""
    names = ("cls_token", "pad_token", "sep_token", "unk_token")
    found = {name: getattr(tokenizer, f"{name}_id") for name in (*names, "mask_token")}
    if [found[name] for name in names] != [0, 1, 2, 3] or found["mask_token"] is None:
        told = ", ".join(f"{name} {number}" for name, number in found.items())
        raise BadInput(
            f"{source}: its tokenizer has {told}; allowed is XLM-R's layout, ids 0, 1, 2, 3 in this order, and a mask; "
            "give one of that layout, or neither --tokenizer nor --encoder, and one is learned"
        )


def vocabulary_size(args: PretrainingArguments) -> int:
    """The size of a new vocabulary, which has to be said."""
    settings = read_dictionary("model_config", args.model_config)
    if "vocab_size" not in settings:
        raise BadInput(
            "a new model needs the size of its vocabulary: --model_config '{\"vocab_size\": 12000, ...}'; or continue "
            "a checkpoint with --encoder xlm-roberta-base"
        )
    if type(size := settings["vocab_size"]) is not int:
        raise BadInput(f"model_config: vocab_size is {size!r}; allowed is a whole number, for example 12000")
    return size


def sample_sentences(train: Dataset, seed: int) -> Iterator[str]:
    """A sample of the texts of a corpus, both sides, in random order."""
    rows = np.random.default_rng(seed).permutation(len(train))[:SENTENCES_FOR_VOCABULARY]
    for row in train.select(rows):
        yield row["x"]
        if row["y"] is not None:
            yield row["y"]


def load_or_make_model(args: PretrainingArguments, tokenizer: PreTrainedTokenizerBase) -> HictlForPreTraining:
    """The checkpoint with our settings, or a new model of these settings."""
    settings = read_dictionary("model_config", args.model_config)
    try:
        if args.encoder:
            kept = {name: value for name, value in settings.items() if name != "vocab_size"}
            check_model_type(args.encoder)
            check_sizes(args.encoder)
            config = HictlConfig.from_pretrained(args.encoder, **kept)
            refuse_other_shapes(args.encoder, kept)
            model = HictlForPreTraining.from_pretrained(args.encoder, config=config, dtype=torch.float32)
        else:
            model = HictlForPreTraining(HictlConfig(**{**settings, "vocab_size": len(tokenizer)}))
    except BadInput:
        raise
    except KeyError as error:
        raise BadInput(f"{args.encoder or 'model_config'}: transformers has nothing called {error}") from error
    except (StrictDataclassError, ValueError, OSError, RuntimeError, UnpicklingError) as error:
        raise BadInput(f"{args.encoder or 'model_config'}: {error}") from error
    if settings.get("vocab_size", model.config.vocab_size) != model.config.vocab_size:
        logger.info("the vocabulary has %d ids, not model_config's %s", model.config.vocab_size, settings["vocab_size"])
    if len(tokenizer) > model.config.vocab_size:
        raise BadInput(
            f"the tokenizer has {len(tokenizer)} ids, the model {model.config.vocab_size}; they do not belong together"
        )
    if args.max_length > model.config.max_position_embeddings - 2:
        raise BadInput(
            f"max_length is {args.max_length}, but the model reads {model.config.max_position_embeddings - 2} tokens "
            f"(max_position_embeddings - 2); give --max_length {model.config.max_position_embeddings - 2}, or less"
        )
    model.config.special_token_ids = words_never_sampled(tokenizer, model.config.vocab_size)
    return model


def refuse_other_shapes(encoder: str, settings: Mapping[str, Any]) -> None:
    """What a HiCTL checkpoint holds in a certain shape stays as it is."""
    before = AutoConfig.from_pretrained(encoder).to_dict()
    for name in ("hard_negative_window", "projection_size"):
        if name in settings and before.get(name, settings[name]) != settings[name]:
            raise BadInput(
                f"model_config: {name} is {settings[name]}, but {encoder} was trained with {before[name]}, and has its "
                "state in that shape; leave it out, or begin from the plain encoder of that run (encoder/)"
            )


def make_trainer(
    args: PretrainingArguments,
    model: HictlForPreTraining,
    tokenizer: PreTrainedTokenizerBase,
    corpora: Corpora,
    training_time: TrainingTime,
) -> HictlTrainer:
    """The trainer with its rows, their order and the collator."""
    weights = {"lm": model.config.lm_weight, "sentence": model.config.sentence_weight, "word": model.config.word_weight}
    collator = PretrainingCollator(
        tokenizer, args.mlm_probability, args.tlm_probability, args.max_length, args.reordering,
        objectives=[name for name, weight in weights.items() if weight],
        clean_word_level=model.config.word_level_input == "clean",
    )  # fmt: skip
    if args.ddp_find_unused_parameters is None:
        args.ddp_find_unused_parameters = not all(weights.values())  # else every parameter is used
    if args.auto_find_batch_size:
        fit_micro_batch(model, collator, args, args.shard_parameters)
        args.auto_find_batch_size = False  # HF's would change the batch
    rows: StreamedBatches | PretrainingExamples
    if corpora.train is None:
        rows, sampler = stream_of_batches(args, tokenizer), None
    else:
        rows, sampler = rows_and_sampler(args, tokenizer, corpora.train)
    last = model.config.num_hidden_layers
    if corpora.dev is None:
        if args.eval_strategy != "no" or args.load_best_model_at_end:
            logger.warning("no pairs are held out: nothing is evaluated, and the last state is kept, not the best one")
        args.eval_strategy, args.load_best_model_at_end = "no", False
    poolings = all_poolings(args.evaluate_layers or range(last + 1), last, projection=True)
    check_metric(args, corpora.dev, poolings)
    return HictlTrainer(
        model, args, train_dataset=rows, eval_dataset=corpora.dev, data_collator=collator, processing_class=tokenizer,
        callbacks=[ExamplesFingerprint(corpora.hash), SettingsFingerprint(decisive_settings(args)), training_time],
        batches=sampler, gather_sentences=args.gather_sentences, gradient_cache=args.gradient_cache,
        shard_parameters=args.shard_parameters,
        poolings=poolings,
    )  # fmt: skip


def decisive_settings(args: PretrainingArguments) -> dict[str, Any]:
    """What a run that goes on has to have in common with the one that was interrupted, as plain values."""
    plain = plain_settings(args)
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    return {name: plain[name] for name in DECISIVE} | {"pairs of a step": batch}


def check_metric(args: PretrainingArguments, dev: Dataset | None, poolings: Sequence[Pooling]) -> None:
    """Raise `BadInput` where the best state is to be the best in what no evaluation measures."""
    if dev is None or args.eval_strategy == "no":
        return
    allowed = ["retrieval", *(f"retrieval_{name}" for name in sorted({*pair_names(dev)})), *map(metric_name, poolings)]
    if (given := str(args.metric_for_best_model)).removeprefix("eval_") not in allowed:
        raise BadInput(
            f"metric_for_best_model is {given!r}; allowed are {', '.join(allowed)}; leave it out, or name one"
        )


def rows_and_sampler(
    args: PretrainingArguments, tokenizer: PreTrainedTokenizerBase, train: Dataset
) -> tuple[PretrainingExamples, TemperatureSampler]:
    """Tokenised rows, and the order that mixes their languages."""
    tokens, cut = tokenize_corpus(train, tokenizer, args.max_length)
    if cut:
        logger.info("%d of %d rows are longer than %d tokens and will be cut", cut, len(tokens), args.max_length)
    languages = tokens.select_columns(["x_lang", "y_lang"]).to_pandas().fillna("")
    groups = {
        (x_lang, y_lang or None): np.asarray(rows)
        for (x_lang, y_lang), rows in languages.groupby(["x_lang", "y_lang"]).indices.items()
    }
    sizes = {key: len(rows) for key, rows in groups.items()}
    shares = language_shares(sizes, args.text_alpha, args.pair_alpha, args.text_share)
    micro_batches = args.gradient_accumulation_steps
    sampler = TemperatureSampler(
        np.asarray(tokens["length"]), groups, shares, args.train_batch_size * micro_batches * args.world_size,
        args.seed, micro_batches, args.process_index, args.world_size,
    )  # fmt: skip
    return PretrainingExamples(tokens, args.seed), sampler


def stream_of_batches(args: PretrainingArguments, tokenizer: PreTrainedTokenizerBase) -> StreamedBatches:
    """The sources read while training, mixed by their shares, or by their languages' sizes on disk."""
    cleaning = Cleaning(**read_dictionary("cleaning", args.cleaning))
    sources, shares = args.train_data, args.stream_shares
    if not shares:
        shares = source_shares(sources, cleaning, args.text_alpha, args.pair_alpha, args.text_share)
        sources, shares = [list(kept) for kept in zip(*(both for both in zip(sources, shares) if both[1] > 0))]
    return StreamedBatches(
        sources, shares, tokenizer, args.train_batch_size, args.seed, cleaning, args.strict, args.stream_buffer,
        max(args.dataloader_num_workers, 1), args.process_index, args.world_size,
    )  # fmt: skip


@dataclass
class Scores:
    """What a model scores on the held-out pairs, at the pooling that is best on dev."""

    pooling: Pooling
    dev: Mapping[Pooling, RetrievalAccuracy]
    test: RetrievalAccuracy
    pictured: dict[str, NDArray[np.float32]]


def score(trainer: HictlTrainer, corpora: Corpora) -> Scores | None:
    """Choose the pooling on dev, score it on test, and embed the sentences of the t-SNE figure."""
    if corpora.dev is None or corpora.test is None:
        return None
    model, tokenizer = trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class
    dev = evaluate_retrieval(model, tokenizer, corpora.dev, trainer.poolings, progress=True)
    best = best_pooling(dev)
    test = evaluate_retrieval(model, tokenizer, corpora.test, [best], progress=True)[best]
    sentences = pictured_sentences(corpora.test)
    pictured = {
        language: embed_sentences(model, tokenizer, texts, best, normalize=False)
        for language, texts in sentences.items()
    }
    return Scores(best, dev, test, pictured)


def pictured_sentences(test: Dataset) -> dict[str, list[str]]:
    """Sentences of one language and their translations in the most frequent others, row i the same sentence in each."""
    translations: dict[tuple[str, str], dict[str, str]] = {}
    for row in test:
        translations.setdefault((row["x_lang"], row["x"]), {})[row["y_lang"]] = row["y"]
    frequent = [language for language, _ in Counter(test["y_lang"]).most_common(PICTURED_LANGUAGES)]
    shared = [
        (source, texts) for source, texts in translations.items() if all(language in texts for language in frequent)
    ]
    shared = [(source, texts) for source, texts in shared if source[0] == shared[0][0][0]]
    shared = sorted(shared, key=lambda item: -len(item[0][1]))[:PICTURED_SENTENCES]  # the longest say most
    if len(shared) < 2:
        return {}
    return {shared[0][0][0]: [text for (_, text), _ in shared]} | {
        name: [texts[name] for _, texts in shared] for name in frequent
    }


def collect_results(
    args: PretrainingArguments,
    trainer: HictlTrainer,
    corpora: Corpora,
    before: Scores | None,
    after: Scores | None,
    train_seconds: float,
    command: str,
) -> dict[str, Any]:
    """Everything worth keeping of a run, as plain values."""
    log = trainer.state.log_history
    results: dict[str, Any] = {"retrieval": retrieval_results(before, after)} if before and after else {}
    if corpora.train is not None:
        texts = sum(y is None for y in corpora.train["y_lang"])
        languages = set(corpora.train["x_lang"]) | (set(corpora.train["y_lang"]) - {None})
        pairs = len(corpora.train) - texts
        results["pairs"] = pairs * (args.text_share < 1 or not texts)  # rows that are never drawn are not trained on
        results["texts"] = texts * (args.text_share > 0 or not pairs)
        results |= {"languages": len(languages), "language_codes": sorted(languages)}
        results["data_hash"] = corpora.report.hash
    return results | {
        "train_seconds": round(train_seconds, 1),
        "before_label": "starting checkpoint" if args.encoder else "untrained model",
        "history": [entry for entry in log if "loss" in entry],
        "evaluations": [evaluation_entry(entry) for entry in log if "eval_retrieval" in entry],
        "corpus": corpora.report.as_dict(),
        "settings": {"config": trainer.model.config.to_dict(), "training": plain_settings(args)},
        "versions": {"hictl_hf": __version__, "torch": torch.__version__, "transformers": transformers.__version__},
        "seed": args.seed,
        "command": command,
    }


def retrieval_results(before: Scores, after: Scores) -> dict[str, Any]:
    """Means and per language, with the protocol that makes them comparable."""
    were, are = mean_accuracies(before.test), mean_accuracies(after.test)
    both, sentences = after.test.both_directions, after.test.sentences
    by_layer: dict[str, list[float | None]] = {}
    layers = 1 + max(pooling.layer for pooling in after.dev)
    for pooling, accuracy in after.dev.items():
        by_layer.setdefault(pooling.mode, [None] * layers)[pooling.layer] = accuracy.mean
    return {
        "untrained": before.test.mean,
        "hictl": after.test.mean,
        "per_language": {
            name: {"untrained": were[name], "hictl": are[name], "forward": both[name][0], "backward": both[name][1],
                   "sentences": sentences[name]}
            for name in are
        },
        "protocol": {
            "metric": "nearest-neighbour accuracy, cosine, mean of both directions",
            "untrained": before.pooling._asdict(), "hictl": after.pooling._asdict(), "selected_on": "dev",
        },
        "by_layer": by_layer,
    }  # fmt: skip


def evaluation_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """One evaluation of the trainer's log, with its languages apart."""
    prefix = "eval_retrieval_"
    languages = {name.removeprefix(prefix): value for name, value in entry.items() if name.startswith(prefix)}
    return {"step": entry["step"], "retrieval": entry["eval_retrieval"], "per_language": languages}


def save(
    args: PretrainingArguments, model: HictlForPreTraining, tokenizer: PreTrainedTokenizerBase, results: dict[str, Any]
) -> None:
    """The checkpoint and the plain encoder, each with its card and a folder of sentence-transformers, and the results;
    each appears whole or not at all."""
    if read := part(results, "retrieval", "protocol", "hictl"):
        model.config.embedding_pooling, model.config.embedding_layer = read["mode"], read["layer"]
        results["settings"]["config"] |= {"embedding_pooling": read["mode"], "embedding_layer": read["layer"]}
    projection = model.projection.weight
    with atomic_directory(Path(args.output_dir) / "checkpoint") as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_sentence_transformers_files(folder, model.config, projection)
        write_text(folder / "README.md", model_card(results))
    with atomic_directory(Path(args.output_dir) / "encoder") as folder:
        export_encoder(model, folder)
        tokenizer.save_pretrained(folder)
        pooler = len(projection) == model.config.hidden_size
        write_sentence_transformers_files(folder, model.config, projection, pooler)
        write_text(folder / "README.md", encoder_card(results))
    write_json(Path(args.output_dir) / "results.json", results)


def report(args: PretrainingArguments, results: dict[str, Any], before: Scores | None, after: Scores | None) -> None:
    """Pictures and the page that holds them."""
    pictures, folder = {}, Path(args.output_dir) / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    if before and after:
        labels = (results["before_label"], "HiCTL")
        pictures["retrieval"] = plot_retrieval(results["retrieval"]["per_language"], folder / "retrieval.png", labels)
    pictures["losses"] = plot_losses(results["history"], folder / "losses.png")
    if before and after:
        if after.pictured:
            pictures["tsne"] = plot_tsne(before.pictured, after.pictured, folder / "tsne.png", args.seed)
        pictures["layers"] = plot_layers(results["retrieval"]["by_layer"], folder / "layers.png")
    write_report(results, args.output_dir, pictures)
