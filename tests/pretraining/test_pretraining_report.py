"""The page of a run: it says the numbers, stands alone, and trusts no text."""

import html
import re
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded_run import ATTACKED, INCOMPLETE, REQUIRED, RESULTS, typed
from transformers import PreTrainedTokenizerBase

from hictl_hf.embedding import save_sentence_encoder
from hictl_hf.pretraining.interpolation import best_share
from hictl_hf.pretraining.report import report, write_report
from hictl_hf.pretraining.results import ShareAccuracy

PIXEL = b"\x89PNG a picture"


def page(results: dict[str, Any], folder: Path) -> str:
    (folder / "losses.png").write_bytes(PIXEL)
    return write_report(typed(results), folder, {"losses": folder / "losses.png"}).read_text(encoding="utf-8")


def test_the_page_says_the_main_numbers(tmp_path: Path) -> None:
    text = page(RESULTS, tmp_path)
    assert "Translations are found 52.5% of the time, up from 9.0%" in text
    assert "91,234 sentence pairs in 2 languages for 5.7 minutes" in text
    assert "projection at layer 4 (HiCTL) and by mean at layer 0 (untrained model), each chosen on dev" in text
    assert all(
        word in text for word in ("+92.0", "duplicate", "sentence_temperature", "--corpus corpus.jsonl", "torch 2.13.0")
    )
    assert "Changed: 7 texts" in text and "mnemonics" in text
    assert "$" not in text.split("<script>")[0]


def test_the_guard_has_a_table_like_the_languages(tmp_path: Path) -> None:
    assert "All languages of the guard" not in page(RESULTS, tmp_path)
    guard = {**RESULTS["retrieval"], "per_language": {"sw": {"sentences": 60, "untrained": 41.5, "hictl": 40.25}}}
    table = page({**RESULTS, "guard": guard}, tmp_path).split("All languages of the guard")[1].split("</table>")[0]
    assert re.findall("<td[^>]*>([^<]*)</td>", table) == ["sw", "60", "41.5", "40.2", "-1.2"]


def test_the_rule_by_which_the_share_is_chosen_is_stated(tmp_path: Path) -> None:
    """Share 1 has the best mean, but a guard below the start's."""
    grid = [{"share": 0.0, "dev": 50.0, "guard": 70.0}, {"share": 1.0, "dev": 90.0, "guard": 69.0}]
    assert best_share([ShareAccuracy(**row) for row in grid]).share == 0
    report(tmp_path, typed({**RESULTS, "interpolation": {"share": 0.0, "grid": grid}}))
    text = (tmp_path / "report.html").read_text("utf-8")
    assert "of those at which the guard is not below the start&#x27;s" in text


@pytest.mark.parametrize("layers", [{"mean": [None, 50.0]}, {"mean": [40.0, 50.0]}, {"mean": [40.0], "cls": [50.0]}])
def test_layers_are_drawn_if_there_was_a_choice(layers: dict[str, list[float | None]], tmp_path: Path) -> None:
    report(tmp_path, typed({**RESULTS, "retrieval": {**RESULTS["retrieval"], "by_layer": layers}}))
    assert (tmp_path / "pictures/layers.png").exists() == (layers != {"mean": [None, 50.0]})


def test_the_page_needs_no_other_file(tmp_path: Path) -> None:
    text = page(RESULTS, tmp_path)
    pictures = re.findall(r'<img [^>]*src="data:image/png;base64,([^"]*)"', text)
    assert [b64decode(picture) for picture in pictures] == [PIXEL]
    assert not re.search(r"<link|<script[^>]+src|@import|url\(|(src|href)=.?http", text)


def test_the_code_of_the_page_loads_what_lies_in_the_folder_of_the_run(
    saved_model: Callable[..., Path], model_for_text: Callable[..., Any], tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
) -> None:  # fmt: skip
    saved_model(tmp_path / "checkpoint")
    save_sentence_encoder(model_for_text(), tokenizer, tmp_path / "encoder")
    code = html.unescape(page(RESULTS, tmp_path).split("<pre>")[1].split("</pre>")[0])
    found: dict[str, Any] = {}
    exec(code.replace("path/to/this/folder", str(tmp_path)), found)
    assert len(found["states"]) == len(found["sentences"]) == 2 and "The plain XLM-R encoder" in code


def test_the_code_of_the_page_names_the_family(tmp_path: Path) -> None:
    assert "The plain BERT encoder" in page({**RESULTS, "settings": {"config": {"model_type": "hictl-bert"}}}, tmp_path)


def test_text_from_the_data_never_becomes_markup(tmp_path: Path) -> None:
    text = page(ATTACKED, tmp_path)
    assert text.count("<script>") == 1 and "&lt;script&gt;alert" in text


def test_the_name_of_the_model_before_is_the_one_given(tmp_path: Path) -> None:
    text = page({**RESULTS, "before_label": "xlm-roberta-base"}, tmp_path)
    assert "xlm-roberta-base" in text and "untrained model" not in text


@pytest.mark.parametrize("missing", sorted(INCOMPLETE))
def test_a_missing_key_is_survived(missing: str, tmp_path: Path) -> None:
    assert "</html>" in page(INCOMPLETE[missing], tmp_path)


def test_values_that_were_nan_are_survived(tmp_path: Path) -> None:
    retrieval = {"untrained": None, "hictl": None, "per_language": {"de": {"untrained": None, "hictl": 3.0}}}
    text = page(REQUIRED | {"retrieval": retrieval, "evaluations": [{"step": 1, "retrieval": None}]}, tmp_path)
    assert "Translations are found 3.0% of the time" in text
