"""Modules of 0.7.5 and arguments of 0.10 under their former names.

Importing a module of 0.7.5 warns and gives the names of the module that replaced it:

`hictl_hf.readers.BadInput` is that of `hictl_hf.errors`. Modules whose former name is that of a package today
(`hictl_hf.embedding`) are not here: what the package exports is found there.
"""

import warnings
from collections.abc import Collection, Mapping
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

MODULES = {
    "arguments": "pretraining.arguments", "beam_search": "translation.beam_search", "checkpoint_sizes": "hub.loading",
    "checkpoints": "training.checkpoints", "collators": "data.collator", "completion": "cli.completion",
    "configuration_hictl": "models.configuration_hictl", "corpus": "data.corpus",
    "ctranslate2_export": "translation.ctranslate2_export", "decoding": "translation.decoding", "embed": "cli.embed",
    "evaluation": "retrieval.held_out", "explain": "cli.explain", "explanation": "embedding.nearest_words",
    "fine_tuning": "xtreme.fine_tuning", "flags": "parsing", "gathering": "models.gathering", "lines": "data.lines",
    "losses": "models.losses", "metrics": "xtreme.metrics", "micro_batches": "pretraining.batch_size",
    "mine": "cli.mine", "mining": "retrieval.mining", "mining_report": "retrieval.report", "mixture": "data.sampling",
    "model_cards": "hub.cards", "modeling_hictl": "models.modeling_hictl",
    "modeling_hictl_translation": "models.modeling_hictl_translation", "moses": "translation.moses",
    "mteb_evaluation": "embedding.mteb_evaluation", "negatives": "models.negatives",
    "neighbours": "retrieval.nearest_neighbours", "number_formats": "dtypes", "onnx_export": "embedding.onnx_export",
    "output_layer": "translation.output_layer", "packing": "models.packing", "page": "cli.page",
    "paper_corpora": "translation.paper_corpora", "plotting": "reports.plots", "publishing": "hub.publishing",
    "question_answering": "xtreme.question_answering", "raw_bitext": "translation.raw_bitext",
    "readers": "data.formats", "report_page": "pretraining.report", "report_sections": "reports.page",
    "reporting": "reports.results", "robust_training": "training.trainer", "score": "cli.score",
    "sentence_transformers_files": "embedding.sentence_transformers_files", "settings": "training.arguments",
    "sharding": "training.sharding", "streams": "data.streaming", "supported_versions": "models.supported_versions",
    "tables": "reports.tables", "tagging": "xtreme.tagging", "target_vocabulary": "translation.target_vocabulary",
    "tokenization": "data.tokenization", "trainers": "pretraining.trainer", "translate": "cli.translate",
    "translation_arguments": "translation.arguments", "translation_corpus": "translation.corpus",
    "translation_data": "translation.prepare", "translation_inspection": "translation.inspection",
    "translation_pipeline": "translation.pipeline", "translation_report": "translation.report",
    "translation_scores": "translation.scores", "translation_setup": "translation.setup",
    "translation_training": "translation.trainer", "vocabulary": "models.linear_cross_entropy",
    "xtreme_arguments": "xtreme.arguments", "xtreme_conversion": "xtreme.prepare", "xtreme_data": "xtreme.data",
    "xtreme_examples": "xtreme.examples", "xtreme_features": "xtreme.sentence_pairs", "xtreme_files": "xtreme.files",
    "xtreme_hub": "xtreme.hub", "xtreme_kinds": "xtreme.predictions", "xtreme_models": "xtreme.fine_tuned_models",
    "xtreme_report": "xtreme.report", "xtreme_scores": "xtreme.scores", "xtreme_tasks": "xtreme.tasks",
}  # fmt: skip
NAMES = {
    "Readout": "Pooling", "own_readout": "own_pooling", "all_readouts": "all_poolings",
    "embed_at_readouts": "embed_at_poolings", "BeamSearch": "BeamSearchConfig", "Mining": "MiningConfig",
    "FineTuning": "FineTuningConfig", "MixtureSampler": "TemperatureSampler", "TokenBatches": "TokenBudgetBatchSampler",
    "PretrainingRows": "PretrainingExamples", "SameRows": "RunFingerprint", "find_fault": "verify_checkpoint",
    "last_whole_checkpoint": "last_complete_checkpoint", "Kind": "PredictionFormat", "teaching": "as_bad_input",
    "shown": "short_repr", "whole_folder": "atomic_directory", "look_up": "tied_embedding",
}  # fmt: skip

ARGUMENTS = {  # until 0.10 -> today's, as in transformers' example scripts
    "encoder": "model_name_or_path", "model": "model_name_or_path", "tokenizer": "tokenizer_name",
    "model_config": "config_overrides", "train_data": "train_file", "train": "train_file",
    "held_out_data": "validation_file", "validation": "validation_file", "test": "test_file",
    "max_length": "max_seq_length", "beams": "num_beams", "batch_size": "per_device_train_batch_size",
    "epochs": "num_train_epochs", "predict_batch_size": "per_device_eval_batch_size", "target_language": "target_lang",
}  # fmt: skip
ADDED: Mapping[str, Any] = {  # arguments since 0.11 -> what earlier releases did
    "model_revision": "main", "do_train": True, "do_eval": True, "do_predict": True,
}  # fmt: skip


def with_names_of_today(settings: Mapping[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
    """Return stored arguments under today's names.

    Args:
        names: those that are asked for: others keep their names, and those that are missing get what `ADDED` says.

    >>> with_names_of_today({"encoder": None, "model": "a", "seed": 1})
    {'seed': 1, 'model_name_or_path': 'a'}
    """
    given = {old: new for old, new in ARGUMENTS.items() if old in settings and (not names or new in names)}
    today = {name: value for name, value in settings.items() if name not in given}
    for old, new in given.items():
        if today.get(new) is None:
            today[new] = settings[old]
    return {**{name: value for name, value in ADDED.items() if name in names}, **today}


class FormerModules(MetaPathFinder, Loader):
    """Finder of the modules of 0.7.5; the last one asked, so that it costs nothing where a module exists."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        package, _, module = name.partition(".")
        return spec_from_loader(name, self) if package == __package__ and module in MODULES else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave the creation of the module to Python."""

    def exec_module(self, module: ModuleType) -> None:
        main = f"{__package__}.{MODULES[module.__name__.partition('.')[2]]}"
        warnings.warn(f"{module.__name__} is {main} since release 0.7.6", DeprecationWarning, stacklevel=2)
        module.__getattr__ = lambda name: find_name(module.__name__, main, NAMES.get(name, name))  # type: ignore


def find_name(former: str, main: str, name: str) -> Any:
    """Return a name of the module `main`, of another one of its package, or of `errors`.

    Raises:
        AttributeError: none of them has it; an import then says that the name cannot be imported.
    """
    if not name.startswith("__"):
        package = main.rpartition(".")[0]
        siblings = [f"{package}.{item.name}" for item in iter_modules(import_module(package).__path__)]
        for place in (main, *siblings, f"{__package__}.errors"):
            if hasattr(module := import_module(place), name):
                return getattr(module, name)
    raise AttributeError(f"module {former!r} has no {name}, nor has {main}, which replaced it")
