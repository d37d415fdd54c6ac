"""The model cards: their metadata, how a model was made, its code, and no text trusted."""

import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from test_results import ATTACK, ATTACKED, INCOMPLETE, RESULTS

from hictl_hf.hub.cards import encoder_card, model_card, translation_card


def test_the_card_carries_its_score_as_metadata() -> None:
    data: Any = ModelCard(model_card(RESULTS, "someone/small-hictl")).data
    assert (data.license, data.library_name, data.pipeline_tag) == (None, "transformers", "fill-mask")
    assert data.language == ["de", "en", "sw"]
    assert data.model_name == "small-hictl"
    assert [(score.metric_type, score.metric_value) for score in data.eval_results or []] == [("accuracy", 52.5)]


def test_the_card_names_the_model_it_began_from_if_the_hub_knows_it(tmp_path: Path) -> None:
    """A folder is nobody's base model, and neither is a name that the Hub would refuse."""

    def base_of(encoder: str | None) -> Any:
        settings = {"settings": {"training": {"encoder": encoder}}}
        cards = (model_card(RESULTS | settings, "a/b"), translation_card(TRANSLATED | {"encoder": encoder}, "a/c"))
        one, other = (ModelCard(card).data.get("base_model") for card in cards)
        assert one == other
        return one

    assert base_of("xlm-roberta-base") == "xlm-roberta-base"
    assert base_of("microsoft/infoxlm-base") == "microsoft/infoxlm-base"
    assert base_of(str(tmp_path)) is base_of("runs/that/is/gone") is base_of(ATTACK) is base_of(None) is None
    assert ModelCard(encoder_card(RESULTS, "a/b", "a/encoder")).data.get("base_model") == "a/b"


def test_the_card_tells_how_the_model_was_made() -> None:
    text = model_card(RESULTS)
    assert "| de | 1,000 | 8.0 | 100.0 | +92.0 |" in text
    assert "| en-sw | 1234 |" in text
    assert "L_LM | 1.0 | – | 2.125 |" in text and "L_W | 0 (off) |" in text
    assert "126 negatives for each sentence" in text
    # Half of 250 sentences: 1.96 * sqrt(0.25 / 250) = 6.2 points.
    assert "by up to 6 points" in text
    assert "2007.15960" in text and "$" not in text


def snippets_of(card: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", card, flags=re.DOTALL)


def test_the_python_of_the_cards_compiles() -> None:
    for card, number in ((model_card, 3), (encoder_card, 2), (translation_card, 1)):
        snippets = snippets_of(card(TRANSLATED if card is translation_card else RESULTS, "someone/hictl"))
        assert len(snippets) == number
        for snippet in snippets:
            compile(snippet, "card", "exec")
    assert "".join(snippets_of(model_card(RESULTS, "someone/hictl"))).count('"someone/hictl"') == 5


def test_the_card_says_how_sentences_are_read() -> None:
    text = model_card(RESULTS)
    assert "A vector is the projection at layer 4, as was best on dev, divided by its length." in text
    assert "A vector is the state of the first token in the last layer" in model_card({})
    config = {"embedding_pooling": "projection", "embedding_layer": 2}  # of a run that measured nothing
    assert "A vector is the projection at layer 2, divided" in model_card({"settings": {"config": config}})


def test_the_card_names_languages_by_codes_the_hub_knows() -> None:
    codes = {"language_codes": ["pt-br", "sr-Latn", "zh_TW", "en"], "corpus": {"kept": {"en-pt-br": 10, "sr-Latn": 2}}}
    assert ModelCard(model_card(codes, "a/b")).data.get("language") == ["en", "pt", "sr", "zh"]


def test_pictures_are_shown_by_the_paths_they_are_given() -> None:
    text = model_card(RESULTS, pictures=["pictures/retrieval.png", "pictures/other.png"])
    assert "![Accuracy of each language before and after](pictures/retrieval.png)" in text
    assert "![A picture of the run](pictures/other.png)" in text and "![" not in model_card(RESULTS)


def test_the_encoder_is_loaded_from_where_it_is() -> None:
    within, apart = model_card(RESULTS, "a/b"), model_card(RESULTS, "a/b", "a/encoder")
    assert 'AutoModel.from_pretrained("a/b", subfolder="encoder")' in within
    assert 'AutoModel.from_pretrained("a/encoder")' in apart and "subfolder" not in apart
    data: Any = ModelCard(encoder_card(RESULTS, "a/b", "a/encoder")).data
    assert (data.base_model, data.library_name, data.language) == ("a/b", "sentence-transformers", ["de", "en", "sw"])
    assert ModelCard(encoder_card(RESULTS, "a/b")).data.to_dict().get("base_model") is None


SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
TRANSLATED: dict[str, Any] = {
    "encoder": "xlm-roberta-base",
    "rows": {"train": {"de-en": 90000}, "test": {"de-en": 500}},
    "test": {"de-en": {"sacrebleu": {"value": 31.876, "signature": SIGNATURE}}},
    "decoding": {"beams": 5, "length_penalty": 1.0},
    "chosen": {"state": "step 80, the best on validation"},
    "settings": {
        "config": {"target_languages": ["en", "fr"]}, "training": {"source_lang": ["de"], "target_lang": ["en"]},
    },
    "versions": {"torch": "2.13.0"},
    "command": "python run_translation.py --train 'x.{de,en}'",
}  # fmt: skip


def test_a_translation_model_tells_its_scores_with_their_signatures() -> None:
    card = ModelCard(translation_card(TRANSLATED, "someone/de-en"))
    data: Any = card.data
    assert (data.pipeline_tag, data.language, data.model_name) == ("translation", ["de", "en"], "de-en")
    assert [(score.metric_type, score.metric_value) for score in data.eval_results] == [("bleu", 31.88)]
    escaped = SIGNATURE.replace("|", r"\|")
    assert f"| de-en | sacrebleu | 31.88 | {escaped} |" in card.text and "| train | de-en | 90,000 |" in card.text
    assert "beams 5, length_penalty 1.0" in card.text and "step 80, the best on validation" in card.text
    assert 'target_language="en"' in card.text and "--target_language en" in card.text  # it has two
    assert "begun from xlm-roberta-base" in card.text and "$" not in card.text


@pytest.mark.parametrize("missing", [*TRANSLATED, "all"])
def test_a_missing_key_of_a_translation_is_survived(missing: str) -> None:
    known = {key: value for key, value in TRANSLATED.items() if missing not in (key, "all")}
    data: Any = ModelCard(translation_card(known)).data
    assert data.library_name


def test_text_from_the_data_never_becomes_markup() -> None:
    for make in (model_card, encoder_card, translation_card):
        attacked = ATTACKED | {"test": {ATTACK: {ATTACK: {"value": 1.0, "signature": ATTACK}}}, "encoder": ATTACK}
        card = ModelCard(make(attacked), ignore_metadata_errors=True).text
        assert "<script>" not in re.sub(r"```.*?```", "", card, flags=re.DOTALL)
        assert make is encoder_card or "&lt;script&gt;alert" in card


@pytest.mark.parametrize("missing", INCOMPLETE)
def test_a_missing_key_is_survived(missing: str) -> None:
    for card in (model_card, encoder_card):
        data: Any = ModelCard(card(INCOMPLETE[missing])).data
    assert data.library_name
