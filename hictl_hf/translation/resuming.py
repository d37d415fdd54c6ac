"""Check that a resumed translation run has the settings it was begun with, which its folder records."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ..data.languages import standard_code
from ..errors import BadInput
from ..reports.results import RESULTS_FILE
from ..training.arguments import plain_settings
from ..training.checkpoints import newest_first
from ..training.fingerprint import SETTINGS_FILE, refuse_other_settings, remember_settings
from .arguments import TranslationArguments
from .corpus import Pair

WITHOUT_EFFECT = (  # settings that do not change the results, so that a run may go on with others
    "output_dir", "resume_from_checkpoint", "local_rank", "log_level", "log_level_replica", "log_on_each_node",
    "disable_tqdm", "report_to", "run_name", "use_cpu", "dataloader_num_workers", "dataloader_pin_memory",
    "dataloader_prefetch_factor", "dataloader_persistent_workers", "dataloader_multiprocessing_context",
    "save_total_limit", "skip_memory_metrics",
    "do_train", "do_eval", "do_predict", "predict_with_generate", "preprocessing_num_workers",
    "push_to_hub", "hub_model_id", "hub_private_repo", "hub_strategy", "hub_always_push", "hub_revision", "hub_token",
)  # fmt: skip
NEW = {"early_stopping_patience": None, "early_stopping_threshold": 0.0}  # since 0.11: what runs before it did
DECISIVE = (  # of a checkpoint, wherever it is resumed; length and device may change
    "step", "freeze_encoder", "decoder_layers", "cls_bias", "cls_bias_scale", "config_overrides", "trim_target_vocab",
    "source_lang", "target_lang", "max_tokens", "max_seq_length", "max_train_samples", "seed",
    "gradient_accumulation_steps", "label_smoothing_factor", "learning_rate", "lr_scheduler_type",
    "lr_scheduler_kwargs", "warmup_steps", "optim", "optim_args", "weight_decay", "adam_beta1", "adam_beta2",
    "adam_epsilon", "max_grad_norm",
)  # fmt: skip
RENAMED = {  # setting -> its name in 0.7.5, with transformers before 5.23
    "activation_checkpointing": "gradient_checkpointing",
    "activation_checkpointing_kwargs": "gradient_checkpointing_kwargs",
}


def settings_of(args: TranslationArguments) -> dict[str, Any]:
    """All settings that decide the results, as plain values."""
    plain = plain_settings(args) | {"processes": args.world_size}
    idle = () if args.save_strategy == "steps" else ("save_steps",)
    return {name: value for name, value in plain.items() if name not in (*WITHOUT_EFFECT, *idle)}


def decisive_settings(args: TranslationArguments, validation: Sequence[Pair]) -> dict[str, Any]:
    """The settings that a resumed run must share with its checkpoint, and what its best state was chosen by."""
    plain = with_standard_codes(plain_settings(args))
    found = {name: plain[name] for name in DECISIVE} | {"processes": args.world_size}
    if not args.load_best_model_at_end:
        return found
    texts = json.dumps([(pair.source, pair.target) for pair in validation])
    return found | {
        "metric": [args.metric, plain["multi_bleu"]],
        "search": asdict(args.beam),
        "hash of the validation pairs": blake2b(texts.encode(), digest_size=16).hexdigest(),
    }


def upgrade_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as earlier releases, from 0.7.5 on, recorded them: with today's names and codes of languages."""
    return with_standard_codes(NEW | {new: settings.get(old) for new, old in RENAMED.items()} | dict(settings))


def with_standard_codes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in which languages have their usual codes, however they were written."""
    languages = {name: [*map(standard_code, settings.get(name) or ())] for name in ("source_lang", "target_lang")}
    return dict(settings) | languages


def is_finished(args: TranslationArguments) -> bool:
    """Whether the run has ended.

    Raises:
        BadInput: the folder holds a run with other settings, or of another kind, or a model that would be replaced.
    """
    folder = Path(args.output_dir)
    now, finished = with_standard_codes(settings_of(args)), (folder / RESULTS_FILE).exists()
    is_recorded = refuse_other_settings(folder / SETTINGS_FILE, now, upgrade=upgrade_settings)
    if (newest_first(folder) or finished) and not is_recorded:
        raise BadInput(f"{folder}: holds the files of another kind of run; choose another --output_dir")
    if args.train_file and any((folder / "model").glob("*")) and not is_recorded:
        raise BadInput(
            f"{folder}/model: is there, and the run would replace it; choose another --output_dir, or move it"
        )
    return finished


def record_settings(args: TranslationArguments) -> None:
    """Record the settings, so that only a run with the same ones goes on in the folder."""
    remember_settings(Path(args.output_dir) / SETTINGS_FILE, settings_of(args))
