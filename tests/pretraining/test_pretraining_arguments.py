"""Arguments of pre-training: a recipe and flags agree, and what cannot work is refused with the fix."""

import json
from pathlib import Path
from typing import Any

import pytest
from parsers import parse_arguments

from hictl_hf.errors import BadInput
from hictl_hf.pretraining import PretrainingArguments

NEEDED = ["--train_file", "corpus.jsonl"]


def test_a_recipe_and_flags_give_the_same_arguments_and_flags_win(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.json"
    settings = {"train_file": ["corpus.jsonl"], "output_dir": str(tmp_path), "max_steps": 7, "mlm_probability": 0.2}
    recipe.write_text(json.dumps(settings))
    flags = [*NEEDED, "--output_dir", str(tmp_path), "--max_steps", "7", "--mlm_probability", "0.2"]
    one, other = parse_arguments([str(recipe)]), parse_arguments(flags)
    assert (one.train_file, one.max_steps, one.mlm_probability) == (["corpus.jsonl"], 7, 0.2)
    assert (other.train_file, other.max_steps, other.mlm_probability) == (one.train_file, 7, 0.2)
    assert parse_arguments([str(recipe), "--max_steps", "9"]).max_steps == 9


def test_one_text_or_path_is_a_list_of_one(tmp_path: Path) -> None:
    pairs: Any = {"train_file": tmp_path / "a.tsv", "validation_file": "b.tsv"}
    guard: Any = {"guard_languages": "de", "guard_data": ("c",)}
    found = PretrainingArguments(output_dir=str(tmp_path), **pairs, **guard)
    assert (found.train_file, found.validation_file) == ([str(tmp_path / "a.tsv")], ["b.tsv"])
    assert (found.guard_languages, found.guard_data) == (["de"], ["c"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--max_seq_length 5", "max_seq_length is 5; allowed is 6 or more"),
        ("--tlm_probability 1.5", "tlm_probability is 1.5; it must be between 0 and 1"),
        ("--reordering letters", "reordering is 'letters'; it must be one of words, subwords, local"),
        ("--streaming true", "with --streaming give --max_steps and --validation_file"),
        ("--validation_file dev.jsonl --held_out_sentences 0", "it must be 1 or more with validation_file"),
        ("--auto_find_batch_size true --gradient_cache false", "add --gradient_cache true"),
    ],
)
def test_what_cannot_work_is_refused(flags: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        parse_arguments([*NEEDED, "--output_dir", str(tmp_path), *flags.split()])
