"""Unknown arguments, of other tools, former releases or mistyped: their names here, or why there are none."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from difflib import get_close_matches

from transformers import TrainingArguments

from .data.cleaning import Cleaning
from .former_names import ARGUMENTS
from .models.configuration_objective import ObjectiveConfig

DASHES = re.compile("[-_\u2010-\u2015\u2212]+")  # as word processors write two hyphens
RENAMED = {"text_mask_rate": "mlm_probability", "pair_mask_rate": "tlm_probability"}  # 0.7 -> 0.8
ELSEWHERE = {  # wrong spellings, and names of other tools -> ours, one of which a command has
    "model": ("model_name_or_path",), "model_name": ("model_name_or_path", "model"),
    "model_path": ("model_name_or_path", "model"), "model_name_or_path": ("model",),
    "pretrained_model_name_or_path": ("model_name_or_path", "model"), "tokenizer_path": ("tokenizer_name",),
    "config": ("config_name",), "config_file": ("config_name",), "train_files": ("train_file",),
    "training_file": ("train_file",), "training_data": ("train_file",), "train_data_file": ("train_file",),
    "train_path": ("train_file",), "data_file": ("train_file",), "data_dir": ("data", "train_file"),
    "data": ("train_file",), "guard_file": ("guard_data",),
    "dataset": ("dataset_name", "data"), "dataset_config": ("dataset_config_name",), "dev_file": ("validation_file",),
    "valid_file": ("validation_file",), "eval_file": ("validation_file",), "eval_data_file": ("validation_file",),
    "validation_data": ("validation_file",), "predict_file": ("test_file",), "max_length": ("max_seq_length",),
    "max_seq_len": ("max_seq_length",), "max_sequence_length": ("max_seq_length",),
    "block_size": ("max_seq_length",), "max_source_length": ("max_seq_length",), "beam_size": ("num_beams",),
    "beam": ("num_beams",), "beams": ("num_beams",), "n_beams": ("num_beams",), "lr": ("learning_rate",),
    "train_batch_size": ("per_device_train_batch_size",), "per_gpu_train_batch_size": ("per_device_train_batch_size",),
    "eval_batch_size": ("per_device_eval_batch_size",), "num_epochs": ("num_train_epochs",),
    "n_epochs": ("num_train_epochs",), "warmup_ratio": ("warmup_steps",), "out_dir": ("output_dir",),
    "output_path": ("output_dir", "output"),
    "output_dir": ("output",), "output": ("output_dir",), "output_file": ("output",), "input_file": ("input",),
    "tgt_lang": ("target_lang",), "src_lang": ("source_lang",), "target_language": ("target_lang",),
    "source_language": ("source_lang",), "num_workers": ("preprocessing_num_workers",), "revision": ("model_revision",),
    "evaluation_strategy": ("eval_strategy",), "evaluate_during_training": ("eval_strategy",),
    "approximate": ("index",),
    "gradient_checkpointing": ("activation_checkpointing",), "push_to_hub_model_id": ("hub_model_id",),
    "cpu": ("use_cpu",), "no_cuda": ("use_cpu",), "per_gpu_eval_batch_size": ("per_device_eval_batch_size",),
    "generation_num_beams": ("num_beams",), "num_warmup_steps": ("warmup_steps",),
    "checkpointing_steps": ("save_steps",), "lr_scheduler": ("lr_scheduler_type",), "optimizer": ("optim",),
    "random_seed": ("seed",),
    "clip_grad": ("max_grad_norm",), "grad_clip": ("max_grad_norm",), "gradient_clip_val": ("max_grad_norm",),
    "accumulate_grad_batches": ("gradient_accumulation_steps",), "max_epochs": ("num_train_epochs",),
    "patience": ("early_stopping_patience",), "early_stopping": ("early_stopping_patience",),
    "label_smoothing": ("label_smoothing_factor",), "with_tracking": ("report_to",), "eval_beams": ("num_beams",),
    "resume": ("resume_from_checkpoint",), "torchdynamo": ("torch_compile_backend",),
    "task_name": ("tasks",), "task": ("tasks",),
    "language": ("languages",), "encoder": ("model",),
}  # fmt: skip
KEYS = {  # dictionaries -> an argument of the commands in which they have these keys
    "config_overrides": ("held_out_sentences", {item.name for item in fields(ObjectiveConfig)}),
    "cleaning": ("cleaning", {item.name for item in fields(Cleaning)}),
}
OF_ALL_LANGUAGES = "all languages of train_file are trained on; --cleaning '{\"languages\": [...]}' keeps some"
NO_TRANSLATIONS = {
    "held_out_sentences": "pre-training writes no translations; hictl train-translation does",
    "select_split": "no task of XTREME has translations as answers",
}
IN_A_FOLDER = "XTREME's files are in the folder --data"
BY_XTREME = "each task has the value of XTREME's own script"
IN_FP32 = {"bf16": "weights are in fp32; --bf16 true computes in bf16", "precision": "--precision is that of computing"}
LONG_GONE = {"": "transformers 5 has it no more, and nothing replaces it; leave it out"}
NO_TPU = {"": "GPUs are those of CUDA or ROCm, else it runs on the CPU; leave it out"}
ONE_EACH = {"": "start one process for each GPU, torchrun --nproc_per_node N; CUDA_VISIBLE_DEVICES chooses them"}
UNCHANGED = {"": "weights are used as they are, without adapters and quantization"}
OF_TRAINING = {item.name for item in fields(TrainingArguments)}
REASONS = {  # what transformers' example scripts have -> why a command has not; the first whose argument it has, or ""
    "overwrite_output_dir": {"": "no folder is written over; choose another --output_dir"},
    "cache_dir": {"": "set the environment variable HF_HOME"},
    "overwrite_cache": {"": "a cached result has the hash of its input in its name, so it is never stale"},
    "trust_remote_code": {"": "no code of a checkpoint is run"},
    "token": {"": "it would be stored with the command; log in by `hf auth login`, or set HF_TOKEN"},
    "use_auth_token": {"": "log in by `hf auth login`, or set HF_TOKEN"},
    "use_fast_tokenizer": {"": "tokenizers are fast ones"},
    "model_type": {
        "config_name": "--config_overrides has the model_type of a new model, and with --config_name its sizes",
        "": "it is read from the checkpoint",
    },
    "config_name": {
        "random_encoder": "for an encoder of the sizes of a checkpoint give --random_encoder true, else leave it out",
        "": "it is read from the checkpoint",
    },
    "ignore_mismatched_sizes": {"": "a head of another size is new anyway; other weights must fit"},
    "line_by_line": {"max_seq_length": "each line is one example, always"},
    "pad_to_max_length": {"": "batches are padded to their longest example, which is faster"},
    "validation_split_percentage": {
        "held_out_sentences": "held_out_sentences is a number of pairs of each language",
        "predict_with_generate": "give a --validation_file",
    },
    "max_eval_samples": {
        "held_out_sentences": "held_out_sentences is the number of pairs of each language to choose by, and to score",
        "select_split": "--select_split dev[:1000] takes as many",
        "validation_file": "all of validation_file is translated; give a shorter one",
    },
    "max_predict_samples": {
        "score_split": "--score_split test[:1000] takes as many",
        "held_out_sentences": "held_out_sentences is the number of pairs of each language to choose by, and to score",
        "test_file": "all of test_file is translated; give a shorter one",
    },
    "max_train_samples": {"train_split": "--train_split train[:1000] takes as many"},
    "test_file": {
        "held_out_sentences": "one half of the held-out pairs is the test; validation_file gives both halves",
        "select_split": IN_A_FOLDER,
    },
    **dict.fromkeys(("train_file", "validation_file"), {"select_split": IN_A_FOLDER}),
    **dict.fromkeys(
        ("dataset_name", "dataset_config_name"), {"select_split": "--data hub reads the tasks from the Hub"}
    ),
    "preprocessing_num_workers": {"select_split": "the examples of a task are tokenized in seconds"},
    **dict.fromkeys(
        ("max_seq_length", "max_steps", "warmup_steps", "weight_decay", "lr_scheduler_type", "config_overrides"),
        {"select_split": BY_XTREME},
    ),
    **dict.fromkeys(
        (
            "eval_strategy", "eval_steps", "save_strategy", "save_steps", "save_total_limit", "load_best_model_at_end",
            "metric_for_best_model", "logging_steps",
        ),
        {"select_split": "the state that is best on dev by the task's metric is kept, as XTREME's scripts do"},
    ),
    **dict.fromkeys(
        ("report_to", "push_to_hub", "hub_model_id", "hub_private_repo"),
        {"select_split": "a benchmark is neither tracked nor published; its report is in --output_dir"},
    ),
    "torch_compile": {"select_split": "models are fine-tuned for minutes; --bf16 and --similar_lengths are faster"},
    "resume_from_checkpoint": {"select_split": "the same command goes on where it was interrupted"},
    "text_column_name": {"": "columns are found by their names (docs/data_formats.md); hictl embed has --column"},
    "label_column_name": {"": "XTREME's files have their own layout; see docs/xtreme.md"},
    "label_all_tokens": {"": "the first token of a word has its label, as in XTREME"},
    "return_entity_level_metrics": {"": "F1 is over all entities, as in XTREME"},
    "do_lower_case": {"": "the tokenizer's own setting is used"},
    "max_target_length": {
        "max_seq_length": "max_seq_length is the limit of both sides; max_length_a and _b when decoding"
    },
    "val_max_target_length": {"max_length_b": "max_length_a * source tokens + max_length_b is the limit when decoding"},
    "ignore_pad_token_for_loss": {"": "padding is never part of the loss"},
    "source_prefix": {
        "prompt": "--prompt is put before each text of both languages, also where the vectors are used",
        "num_beams": "the decoder begins with the target language; no prefix is needed",
    },
    "forced_bos_token": {"": "the decoder begins with the target language"},
    "source_lang": {
        "held_out_sentences": OF_ALL_LANGUAGES,
        "target_lang": "a model reads all languages of its encoder; leave it out",
    },
    **dict.fromkeys(("target_lang", "language"), {"held_out_sentences": OF_ALL_LANGUAGES}),
    **dict.fromkeys(("num_beams", "predict_with_generate"), NO_TRANSLATIONS),
    "task_name": {"held_out_sentences": "hictl xtreme fine-tunes on tasks"},
    "streaming": {"predict_with_generate": "the corpus is tokenized once, on disk", "select_split": IN_A_FOLDER},
    "low_cpu_mem_usage": {"": "weights are always loaded so"},
    "fp16": {"micro_batches": "--bf16 true computes in bf16"},
    "train_language": {"setting": "--setting translate-train trains on the translations of each language"},
    "temperature": {"held_out_sentences": "--config_overrides has sentence_temperature and word_temperature"},
    "pooling": {"held_out_sentences": "--config_overrides has sentence_pooling"},
    "batch_size": {"max_tokens": "batches have as many tokens as --max_tokens says"},
    "gradient_accumulation_steps": {"micro_batches": "--micro_batches divides the batch instead of multiplying it"},
    **dict.fromkeys(("dtype", "torch_dtype"), IN_FP32),
    **dict.fromkeys(("mixed_precision", "amp", "half_precision_backend", "fp16_backend", "fp16_opt_level"), IN_FP32),
    "group_by_length": {
        "similar_lengths": "--similar_lengths true does so", "": "batches have examples of similar length, always",
    },
    "sortish_sampler": {"": "batches have examples of similar length, always"},
    "logging_dir": {
        "report_to": "TensorBoard's files are in --output_dir; TENSORBOARD_LOGGING_DIR names another folder",
        "select_split": "a benchmark is not tracked; its report is in --output_dir",
    },
    **dict.fromkeys(("no_cuda", "use_cpu"), {"select_split": "CUDA_VISIBLE_DEVICES= (empty) takes the CPU"}),
    **dict.fromkeys(("use_mps_device", "tpu_num_cores", "tpu_metrics_debug", "tpu", "use_ipex"), NO_TPU),
    "device": {"use_cpu": "CUDA_VISIBLE_DEVICES chooses a GPU; --use_cpu true takes the CPU"},
    **dict.fromkeys(("num_gpus", "n_gpu", "gpus", "devices"), ONE_EACH),
    "save_safetensors": {"": "weights are always saved in safetensors"},
    "adafactor": {"optim": "--optim adafactor", "select_split": BY_XTREME},
    "push_to_hub_organization": {"hub_model_id": "--hub_model_id has both, organization/name", "": "leave it out"},
    "push_to_hub_token": {"": "it would be stored with the command; log in by `hf auth login`, or set HF_TOKEN"},
    **dict.fromkeys(
        ("fsdp_min_num_params", "fsdp_transformer_layer_cls_to_wrap"),
        {"shard_parameters": "--shard_parameters true divides weights", "": "weights are not divided; leave it out"},
    ),
    "include_tokens_per_second": {"held_out_sentences": "tokens_per_second is in the logs, always", **LONG_GONE},
    **dict.fromkeys(
        (
            "jit_mode_eval", "past_index", "mp_parameters", "ray_scope", "use_legacy_prediction_loop",
            "include_inputs_for_metrics", "dispatch_batches", "split_batches",
        ),
        LONG_GONE,
    ),
    "generation_max_length": {"max_length_b": "max_length_a * source tokens + max_length_b is the limit when decoding"},
    "generation_config": {"num_beams": "--num_beams, --max_length_a and _b are the settings of decoding"},
    "keep_linebreaks": {"max_seq_length": "each line is one example, always"},
    **dict.fromkeys(("whole_word_mask", "wwm"), {"mlm_probability": "tokens are masked, as in the paper, not words"}),
    **dict.fromkeys(("attn_implementation", "attn_impl"), {"": "the fastest attention that is installed is taken"}),
    **dict.fromkeys(("use_lora", "lora_rank", "load_in_8bit", "load_in_4bit", "quantization"), UNCHANGED),
    **dict.fromkeys(
        (
            "doc_stride", "max_query_length", "n_best_size", "max_answer_length", "null_score_diff_threshold",
            "version_2_with_negative",
        ),
        {"select_split": BY_XTREME},
    ),
    **dict.fromkeys(
        ("text_column", "summary_column"), {"": "columns are found by their names (docs/data_formats.md)"}
    ),
}  # fmt: skip


def answer(given: Iterable[str], known: Collection[str]) -> str:
    """Say what unknown arguments are called among the known ones, or why there are none; else empty.

    >>> answer(["--train_data=a.jsonl", "--src_lang"], ["train_file", "source_lang"])
    'train_data is called train_file since release 0.11; src_lang is called source_lang here; '
    """
    answers = []
    for name in (word.lstrip("-").partition("=")[0].replace("-", "_") for word in given):
        elsewhere = next((each for each in ELSEWHERE.get(name, ()) if each in known), None)
        reason = next((text for each, text in REASONS.get(name, {}).items() if not each or each in known), None)
        same = {name, *ELSEWHERE.get(name, ())}
        if "select_split" in known and not elsewhere:
            reasons = (text for each in sorted(same) for kind, text in REASONS.get(each, {}).items() if kind in known)
            reason = reason or next(reasons, None) or (BY_XTREME if same & OF_TRAINING else None)
        within = next((each for each, (key, keys) in KEYS.items() if key in known and name in keys), None)
        if reason:
            answers.append(f"{name}: {reason}; ")
        elif ARGUMENTS.get(name) in known:
            answers.append(f"{name} is called {ARGUMENTS[name]} since release 0.11; ")
        elif RENAMED.get(name) in known:
            answers.append(f"{name} is called {RENAMED[name]} since release 0.8; ")
        elif elsewhere:
            answers.append(f"{name} is called {elsewhere} here; ")
        elif within:
            answers.append(f"{name} is a key of --{within} '{{\"{name}\": ...}}'; ")
    return "".join(answers)


def nearest_flag(word: str, known: Sequence[str]) -> str:
    """Return the flag that a word is most like, whatever its case and dashes; else "".

    >>> [nearest_flag(word, ["--tasks", "--bf16"]) for word in ("--taks", "—tasks", "TASKS=xnli", "x.txt", "--no_bf16")]
    ['--tasks', '--tasks', '--tasks', '', '--bf16 false']
    """
    names = {DASHES.sub("_", flag).strip("_"): flag for flag in reversed(known)}  # with underscores, HF's habit
    written = DASHES.sub("_", word.partition("=")[0]).strip("_").lower()
    if (opposite := names.get(written.removeprefix("no_"))) and written.startswith("no_"):
        return f"{opposite} false"
    found = get_close_matches(f"--{written}", [f"--{name}" for name in names], 1, cutoff=0.75)
    return names[found[0].removeprefix("--")] if found else ""
