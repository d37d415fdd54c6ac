"""A run on XTREME goes on with its settings and examples, also where 0.7.5 began it."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from hictl_hf.errors import BadInput
from hictl_hf.training.fingerprint import SETTINGS_FILE, refuse_other_settings
from hictl_hf.xtreme.arguments import XtremeArguments
from hictl_hf.xtreme.resuming import EXAMPLES_FILE, Derived, refuse_other_examples

OF_0_7_5: dict[str, Any] = {  # settings.json as release 0.7.5 wrote it
    "encoder": "x", "data": "hub", "tasks": ["tatoeba"], "setting": "zero-shot", "languages": [],
    "output_dir": "runs/xtreme", "size": None, "learning_rate": [], "batch_size": [], "seed": [42], "epochs": None,
    "select_on": "english", "train_split": "train", "select_split": "dev", "score_split": "test", "labels": None,
    "layer": None, "pooling": "first token", "sweep_layers": True, "compat": False, "bf16": False, "micro_batches": 1,
    "similar_lengths": False, "predict_batch_size": 64, "score": None,
}  # fmt: skip


def settings(**changes: Any) -> dict[str, Any]:
    return asdict(
        XtremeArguments(model_name_or_path="x", tasks=["tatoeba"], sweep_layers=True, **{"pooling": "cls", **changes})
    )


def test_settings_of_0_7_5_are_those_of_today(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(json.dumps(OF_0_7_5), "utf-8")
    assert refuse_other_settings(tmp_path / SETTINGS_FILE, settings())
    with pytest.raises(BadInput, match="by hictl_hf 0.7 or older: pooling was 'cls' and is 'mean'"):
        refuse_other_settings(tmp_path / SETTINGS_FILE, settings(pooling="mean"))


def test_a_new_folder_takes_any_settings(tmp_path: Path) -> None:
    assert not refuse_other_settings(tmp_path / SETTINGS_FILE, settings())
    assert refuse_other_examples(tmp_path, []) == {}


def test_files_are_kept_only_with_the_examples_they_were_made_from(tmp_path: Path) -> None:
    made = Derived("panx de", (tmp_path / "missing", tmp_path / "test-de.tsv"), "aaaa")
    (tmp_path / EXAMPLES_FILE).write_text('{"panx de": "bbbb", "panx fr": "cccc"}', "utf-8")
    assert refuse_other_examples(tmp_path, [made]) == {"panx de": "aaaa", "panx fr": "cccc"}  # nothing is kept
    made.paths[1].write_text("O\n", "utf-8")
    with pytest.raises(BadInput, match=r"test-de.tsv: the examples of panx de are not .* \(hash aaaa, not bbbb\)"):
        refuse_other_examples(tmp_path, [made])
    (tmp_path / EXAMPLES_FILE).unlink()  # as before there was a record
    assert refuse_other_examples(tmp_path, [made]) == {"panx de": "aaaa"}
    (tmp_path / EXAMPLES_FILE).write_text('{"panx de": "aaaa"}', "utf-8")
    assert refuse_other_examples(tmp_path, [made]) == {"panx de": "aaaa"} and made.paths[1].exists()
    labels_came = replace(made, hash="dddd", unlabelled="aaaa")
    both = {"panx de": "dddd", "panx de without labels": "aaaa"}
    assert refuse_other_examples(tmp_path, [labels_came]) == both and not made.paths[1].exists()
    made.paths[1].write_text("O\n", "utf-8")
    (tmp_path / EXAMPLES_FILE).write_text(json.dumps(both), "utf-8")
    assert refuse_other_examples(tmp_path, [labels_came]) == both and made.paths[1].exists()
    with pytest.raises(BadInput, match="the examples of panx de are not those"):
        refuse_other_examples(tmp_path, [replace(labels_came, hash="eeee", unlabelled="ffff")])
    labels_changed = replace(labels_came, hash="eeee")
    assert refuse_other_examples(tmp_path, [labels_changed])["panx de"] == "eeee" and not made.paths[1].exists()


def test_what_has_no_labels_to_come_is_never_made_again(tmp_path: Path) -> None:
    """The hash of a tokenizer is empty where its tokenizer.json is hashed with the weights."""
    made = Derived("tokenizer of x", (tmp_path,), "aaaa", "files")
    (tmp_path / EXAMPLES_FILE).write_text('{"tokenizer of x": ""}', "utf-8")
    with pytest.raises(BadInput, match="the files of tokenizer of x are not those that it was made from"):
        refuse_other_examples(tmp_path, [made])


def test_damaged_hashes_are_refused_with_the_file(tmp_path: Path) -> None:
    for content in ("{", "[1]"):
        (tmp_path / EXAMPLES_FILE).write_text(content, "utf-8")
        with pytest.raises(
            BadInput, match=f"{EXAMPLES_FILE}: cannot be read .*; allowed is the hashes of a run as JSON"
        ):
            refuse_other_examples(tmp_path, [])
