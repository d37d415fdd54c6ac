"""The model card: its metadata, how the model was made, its code, and no text trusted."""

import re
from typing import Any

import pytest
from huggingface_hub import ModelCard
from test_reporting import ATTACKED, INCOMPLETE, RESULTS

from hictl_hf.model_cards import model_card


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


def test_text_from_the_data_never_becomes_markup() -> None:
    card = ModelCard(model_card(ATTACKED), ignore_metadata_errors=True).text
    assert "&lt;script&gt;alert" in card
    assert "<script>" not in re.sub(r"```.*?```", "", card, flags=re.DOTALL)


@pytest.mark.parametrize("missing", INCOMPLETE)
def test_a_missing_key_is_survived(missing: str) -> None:
    data: Any = ModelCard(model_card(INCOMPLETE[missing])).data
    assert data.license == "apache-2.0"
