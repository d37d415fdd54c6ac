"""What cards share: escaping, tables, codes of languages, and a card completed for its repository."""

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from recorded_run import RESULTS, typed

from hictl_hf import HictlConfig
from hictl_hf.errors import BadInput
from hictl_hf.hub.cards import (
    card_for_repository,
    encoder_card_for_repository,
    language_codes,
    markdown_table,
    name_on_the_hub,
)
from hictl_hf.pretraining.card import encoder_card, model_card
from hictl_hf.reports.tables import escape_markdown


@pytest.fixture
def card(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_text(model_card(typed(RESULTS)), "utf-8")
    return tmp_path / "README.md"


@pytest.fixture
def card_of_encoder(tmp_path: Path) -> Path:
    (tmp_path / "encoder.md").write_text(encoder_card(typed(RESULTS), HictlConfig(), pooler=True), "utf-8")
    return tmp_path / "encoder.md"


def test_cells_are_one_line_without_markup() -> None:
    assert escape_markdown("a|b\n<i> [x] `c`") == r"a\|b &lt;i&gt; \[x\] \`c\`"
    assert escape_markdown("_q_ ~z~ &amp; max_steps") == r"\_q\_ \~z\~ &amp;amp; max_steps"
    assert markdown_table(("a", "b"), [(1, "|")]) == "| a | b |\n| --- | --- |\n| 1 | \\| |"


def test_languages_and_names_are_those_the_hub_accepts(tmp_path: Path) -> None:
    assert language_codes(["pt-br", "sr-Latn", "zh_TW", "en", "x", "emoji"]) == ["en", "pt", "sr", "zh"]
    assert language_codes(["xx", "cb-iq", "iw", "deu", "und"]) == ["de", "he"]  # it refuses a card with others
    assert name_on_the_hub("microsoft/infoxlm-base") == "microsoft/infoxlm-base"
    assert name_on_the_hub(str(tmp_path)) is name_on_the_hub("a/b/c") is name_on_the_hub("") is None


def test_a_card_is_completed_for_its_repository(card: Path) -> None:
    published = ModelCard(card_for_repository(card, "me/x", license="mit").decode())
    data: Any = published.data
    assert (data.license, data.model_name, data.language) == ("mit", "x", ["de", "en", "sw"])
    assert data.eval_results[0].metric_value == 52.5
    assert published.text.count("me/x") == 6 and "your-name" not in published.text
    assert published.text == ModelCard(card.read_text("utf-8")).text.replace("your-name/hictl", "me/x")
    assert card_for_repository(card, r"me/\1").decode().count(r"me/\1") == 6


def test_a_licence_of_the_card_is_kept_unless_another_is_given(card: Path) -> None:
    card.write_text(card.read_text("utf-8").replace("---\n", "---\nlicense: mit\n", 1), "utf-8")
    for given, expected in ((None, "mit"), ("apache-2.0", "apache-2.0")):
        data: Any = ModelCard(card_for_repository(card, "me/x", license=given).decode()).data
        assert data.license == expected


def test_pictures_are_shown_by_the_paths_they_are_given(card: Path) -> None:
    text = card_for_repository(card, "me/x", pictures=["pictures/retrieval.png", "pictures/other.png"]).decode()
    assert "![Accuracy of each language before and after](pictures/retrieval.png)" in text
    assert "![A picture of the run](pictures/other.png)\n\n## Use\n" in text
    assert "![" not in card_for_repository(card, "me/x").decode()


def test_the_encoder_is_loaded_from_where_it_is(card: Path, card_of_encoder: Path) -> None:
    within = card_for_repository(card, "a/b").decode()
    apart = card_for_repository(card, "a/b", encoder_repository="a/encoder").decode()
    assert 'AutoModel.from_pretrained("a/b", subfolder="encoder")' in within
    assert 'AutoModel.from_pretrained("a/encoder")' in apart and "subfolder" not in apart
    published = ModelCard(encoder_card_for_repository(card_of_encoder, "a/b", encoder_repository="a/encoder").decode())
    data: Any = published.data
    assert (data.base_model, data.library_name, data.language) == ("a/b", "sentence-transformers", ["de", "en", "sw"])
    assert 'SentenceTransformer("a/encoder")' in published.text and "path/to" not in published.text
    assert ModelCard(encoder_card_for_repository(card_of_encoder, "a/b").decode()).data.get("base_model") is None


def test_a_card_that_cannot_be_read_is_refused(card: Path) -> None:
    card.write_text("---\n[\n---\n", "utf-8")
    for path, fault in ((card, "cannot be read .*"), (card.with_name("none.md"), "no such file")):
        with pytest.raises(BadInput, match=f"{path.name}: {fault}; allowed is the model card that the run"):
            card_for_repository(path, "me/x")
