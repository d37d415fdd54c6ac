"""What a run says at its end: the file, the table, the page and the card."""

import json
import math
import re
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from hictl_hf.reporting import model_card, retrieval_table, write_json, write_report

RESULTS: dict[str, Any] = {
    "retrieval": {
        "untrained": 9.0,
        "hictl": 52.5,
        "per_language": {
            "sw": {"untrained": 10.0, "hictl": 5.0, "sentences": 250},
            "de": {"untrained": 8.0, "hictl": 100.0, "sentences": 1000},
        },
        "protocol": {
            "metric": "nearest-neighbour accuracy",
            "untrained": {"layer": 0, "pooling": "mean"},
            "hictl": {"layer": 4, "pooling": "projection"},
            "selected_on": "dev",
        },
    },
    "pairs": 91234,
    "languages": 2,
    "train_seconds": 341.2,
    "history": [{"step": 10, "lm_loss": 3.25, "negatives_per_anchor": 126}, {"step": 20, "lm_loss": 2.125}],
    "evaluations": [{"step": 10, "retrieval": 20.1}],
    "corpus": {"kept": {"en-de": 90000, "en-sw": 1234}, "skipped": {"duplicate": 12}},
    "settings": {
        "config": {"lm_weight": 1.0, "word_weight": 0, "sentence_temperature": 0.05},
        "training": {"seed": 42},
    },
    "versions": {"torch": "2.13.0"},
    "seed": 42,
    "command": "python run_pretraining.py --corpus corpus.jsonl",
    "data_hash": "sha256:abc",
}
PIXEL = b"\x89PNG a picture"


def page(results: dict[str, Any], folder: Path) -> str:
    (folder / "losses.png").write_bytes(PIXEL)
    return write_report(results, folder, {"losses": folder / "losses.png"}).read_text(encoding="utf-8")


def test_json_keeps_the_order_of_keys_and_writes_nan_as_null(tmp_path: Path) -> None:
    path = write_json(tmp_path / "new" / "results.json", {"b": [1.5, math.nan], "a": {"λ": -math.inf}})
    assert path.read_text(encoding="utf-8").startswith('{\n  "b"')
    assert json.loads(path.read_text(encoding="utf-8")) == {"b": [1.5, None], "a": {"λ": None}}


def test_a_value_that_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = write_json(tmp_path / "results.json", {"score": 1})
    with pytest.raises(TypeError):
        write_json(path, {"score": object()})
    assert json.loads(path.read_text()) == {"score": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_json(tmp_path / "results.json", {"score": 1})

    def fail(*paths: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("hictl_hf.reporting.os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_json(path, {"score": 2})
    assert json.loads(path.read_text()) == {"score": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_the_table_is_aligned_best_first_and_ends_with_the_mean() -> None:
    assert retrieval_table(RESULTS).splitlines() == [
        "language  sentences  before  after   gain",
        "-----------------------------------------",
        "de            1,000     8.0  100.0  +92.0",
        "sw              250    10.0    5.0   -5.0",
        "-----------------------------------------",
        "mean          1,250     9.0   52.5  +43.5",
    ]


def test_the_mean_is_taken_over_languages_when_it_was_not_recorded() -> None:
    retrieval = {"per_language": RESULTS["retrieval"]["per_language"]}
    assert retrieval_table({"retrieval": retrieval}) == retrieval_table(RESULTS)


def test_the_page_says_the_main_numbers(tmp_path: Path) -> None:
    text = page(RESULTS, tmp_path)
    assert "Translations are found 52.5% of the time, up from 9.0%" in text
    assert "91,234 sentence pairs in 2 languages for 5.7 minutes" in text
    assert "projection at layer 4 (HiCTL) and by mean at layer 0 (untrained model), each chosen on dev" in text
    assert all(
        word in text for word in ("+92.0", "duplicate", "sentence_temperature", "--corpus corpus.jsonl", "torch 2.13.0")
    )
    assert "$" not in text.split("<script>")[0]


def test_the_page_needs_no_other_file(tmp_path: Path) -> None:
    text = page(RESULTS, tmp_path)
    pictures = re.findall(r'<img [^>]*src="data:image/png;base64,([^"]*)"', text)
    assert [b64decode(picture) for picture in pictures] == [PIXEL]
    assert not re.search(r"<link|<script[^>]+src|@import|url\(|(src|href)=.?http", text)


def test_text_from_the_data_never_becomes_markup(tmp_path: Path) -> None:
    attack = '"><script>alert(1)</script>'
    results = {
        **RESULTS,
        "retrieval": {"hictl": 1.0, "per_language": {attack: {"untrained": 1.0, "hictl": 1.0}}},
        "corpus": {"kept": {attack: 1}, "skipped": {attack: 1}},
        "settings": {attack: {attack: attack}},
        "versions": {attack: attack},
        "command": attack,
        "before_label": attack,
        "data_hash": attack,
    }
    text = page(results, tmp_path)
    assert text.count("<script>") == 1 and "&lt;script&gt;alert" in text
    card = ModelCard(model_card(results), ignore_metadata_errors=True).text
    assert "<script>" not in re.sub(r"```.*?```", "", card, flags=re.DOTALL)


def test_the_name_of_the_model_before_is_the_one_given(tmp_path: Path) -> None:
    text = page({**RESULTS, "before_label": "xlm-roberta-base"}, tmp_path)
    assert "xlm-roberta-base" in text and "untrained model" not in text


def test_the_card_carries_its_score_as_metadata() -> None:
    data: Any = ModelCard(model_card(RESULTS, "someone/small-hictl")).data
    assert (data.license, data.library_name, data.pipeline_tag) == ("apache-2.0", "transformers", "fill-mask")
    assert data.language == ["de", "en", "sw"]
    assert data.model_name == "small-hictl"
    assert [(score.metric_type, score.metric_value) for score in data.eval_results or []] == [("accuracy", 52.5)]


def test_the_card_tells_how_the_model_was_made() -> None:
    text = model_card(RESULTS)
    assert "| de | 1,000 | 8.0 | 100.0 | +92.0 |" in text
    assert "| en-sw | 1234 |" in text
    assert "L_LM | 1.0 | – | 2.125 |" in text and "L_W | 0 (off) |" in text
    assert "126 negatives for each sentence" in text
    # Half of 250 sentences: 1.96 * sqrt(0.25 / 250) = 6.2 points.
    assert "by up to 6 points" in text
    assert "2007.15960" in text and "$" not in text


def test_the_python_of_the_card_compiles() -> None:
    snippets = re.findall(r"```python\n(.*?)```", model_card(RESULTS, "someone/hictl"), flags=re.DOTALL)
    assert len(snippets) == 1 and snippets[0].count('"someone/hictl"') == 3
    compile(snippets[0], "card", "exec")


@pytest.mark.parametrize("missing", [*RESULTS, "all"])
def test_a_missing_key_is_survived(missing: str, tmp_path: Path) -> None:
    results = {} if missing == "all" else {key: value for key, value in RESULTS.items() if key != missing}
    assert "</html>" in page(results, tmp_path)
    data: Any = ModelCard(model_card(results)).data
    assert data.license == "apache-2.0"
    assert retrieval_table(results)


def test_values_that_were_nan_are_survived(tmp_path: Path) -> None:
    retrieval = {"untrained": None, "hictl": None, "per_language": {"de": {"untrained": None, "hictl": 3.0}}}
    text = page({"retrieval": retrieval, "evaluations": [{"step": 1, "retrieval": None}]}, tmp_path)
    assert "Translations are found 3.0% of the time" in text
