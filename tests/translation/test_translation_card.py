"""The card of a translation model: scores with their signatures, metadata, code that compiles, and no text trusted."""

import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from recorded_run import ATTACK, ATTACKED

from hictl_hf.hub.cards import card_for_repository
from hictl_hf.translation.card import translation_card
from hictl_hf.translation.results import TranslationResults

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
    "command": "python run_translation.py --train_file 'x.{de,en}'",
}  # fmt: skip


results_of = TranslationResults.from_dict


def test_a_translation_model_tells_its_scores_with_their_signatures() -> None:
    card = ModelCard(translation_card(results_of(TRANSLATED)))
    data: Any = card.data
    assert (data.pipeline_tag, data.language, data.model_name) == ("translation", ["de", "en"], "hictl-translation")
    assert [(score.metric_type, score.metric_value) for score in data.eval_results] == [("bleu", 31.88)]
    escaped = SIGNATURE.replace("|", r"\|")
    assert f"| de-en | sacrebleu | 31.88 | {escaped} |" in card.text and "| train | de-en | 90,000 |" in card.text
    assert "beams 5, length_penalty 1.0" in card.text and "step 80, the best on validation" in card.text
    assert 'target_language="en"' in card.text and "--target_lang en" in card.text  # it has two
    assert "started from xlm-roberta-base" in card.text and "$" not in card.text


def test_a_card_says_of_a_baseline_and_of_step_two_what_they_are() -> None:
    settings: dict[str, Any] = {
        "config": {"target_languages": ["de", "en", "fr"], "cls_bias": "none"}, "training": {"target_lang": ["fr"]},
    }  # fmt: skip
    card = ModelCard(translation_card(results_of(TRANSLATED | {"settings": settings, "random_encoder": True})))
    assert "started from random weights, in the form of xlm-roberta-base" in card.text
    assert card.data.get("base_model") is None and "bias from" not in card.text
    assert 'target_language="fr"' in card.text and "--target_lang fr" in card.text  # the language that was trained
    assert "layers, whose logits get a bias from" in translation_card(results_of(TRANSLATED))


def test_comet_which_is_out_of_one_has_four_decimals() -> None:
    scores = {"de-en": {"comet": {"value": 0.81234, "signature": "x"}}}
    card = ModelCard(translation_card(results_of(TRANSLATED | {"test": scores})))
    data: Any = card.data
    assert "| de-en | comet | 0.8123 | x |" in card.text and data.eval_results[0].metric_value == 0.8123


def test_each_direction_has_its_scores_in_the_metadata(tmp_path: Path) -> None:
    scores = {f"de-{to}": {"sacrebleu": {"value": value, "signature": to}} for to, value in (("en", 31.0), ("fr", 9.0))}
    (tmp_path / "README.md").write_text(translation_card(results_of(TRANSLATED | {"test": scores})), "utf-8")
    for card in ((tmp_path / "README.md").read_bytes(), card_for_repository(tmp_path / "README.md", "me/x")):
        [model] = ModelCard(card.decode()).data.to_dict()["model-index"]
        found = {row["task"]["name"]: [metric["value"] for metric in row["metrics"]] for row in model["results"]}
        assert found == {"Translation de-en": [31.0], "Translation de-fr": [9.0]}


@pytest.mark.parametrize("missing", sorted(TRANSLATED.keys() - {"test", "decoding"}))
def test_a_missing_key_of_a_translation_is_survived(missing: str) -> None:
    known = {key: value for key, value in TRANSLATED.items() if key != missing}
    data: Any = ModelCard(translation_card(results_of(known))).data
    assert data.library_name


def test_a_translation_model_names_the_encoder_it_began_from_if_the_hub_knows_it(tmp_path: Path) -> None:
    def base_of(encoder: str | None) -> Any:
        return ModelCard(translation_card(results_of(TRANSLATED | {"encoder": encoder}))).data.get("base_model")

    assert base_of("xlm-roberta-base") == "xlm-roberta-base"
    assert base_of(str(tmp_path)) is base_of("runs/that/is/gone") is base_of(ATTACK) is base_of(None) is None


def test_the_python_of_a_translation_card_compiles() -> None:
    [snippet] = re.findall(r"```python\n(.*?)```", translation_card(results_of(TRANSLATED)), flags=re.DOTALL)
    compile(snippet, "card", "exec")
    assert 'translator(["Guten Morgen."])' in snippet
    training = {"source_lang": ["el"], "target_lang": ["en"]}
    greek = TRANSLATED | {"settings": TRANSLATED["settings"] | {"training": training}}
    assert 'translator(["A sentence in el."])' in translation_card(results_of(greek))


def test_text_from_translation_data_never_becomes_markup() -> None:
    attacked = ATTACKED | {
        "decoding": {},
        "test": {ATTACK: {ATTACK: {"value": 1.0, "signature": ATTACK}}},
        "encoder": ATTACK,
    }
    card = ModelCard(translation_card(results_of(attacked)), ignore_metadata_errors=True).text
    assert "<script>" not in re.sub(r"```.*?```", "", card, flags=re.DOTALL) and "&lt;script&gt;alert" in card
