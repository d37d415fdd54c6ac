"""The cards of a pre-training run: metadata, how the model was made, code that compiles, and no text trusted."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard
from recorded_run import ADAPTED, ATTACK, ATTACKED, INCOMPLETE, REQUIRED, RESULTS, typed
from transformers import PreTrainedTokenizerBase

from hictl_hf import HictlConfig
from hictl_hf.embedding.encoder import embed_sentences
from hictl_hf.embedding.pooling import Pooling
from hictl_hf.embedding.sentence_transformers_files import save_sentence_encoder
from hictl_hf.hub.cards import YOUR_FOLDER
from hictl_hf.models.encoder_export import has_pooler
from hictl_hf.pretraining.card import encoder_card, model_card, run_snippet
from hictl_hf.pretraining.results import PretrainingResults

MakeModel = Callable[..., Any]
LAST = 2


def plain_card(results: PretrainingResults) -> str:
    """The card of the encoder of a model with the usual settings."""
    return encoder_card(results, HictlConfig(), pooler=True)


def test_the_card_carries_its_score_as_metadata() -> None:
    data: Any = ModelCard(model_card(typed(RESULTS))).data
    assert (data.license, data.library_name, data.pipeline_tag) == (None, "transformers", "fill-mask")
    assert data.language == ["de", "en", "sw"]
    assert data.model_name == "hictl"
    assert [(score.metric_type, score.metric_value) for score in data.eval_results or []] == [("accuracy", 52.5)]


def test_the_card_has_the_scores_of_the_guard() -> None:
    text = model_card(typed(ADAPTED))
    assert "| hi | 250 | 70.0 | 71.5 | +1.5 |" in text and "Guard pairs, of languages or domains" in text
    assert "Guard pairs" not in model_card(typed(RESULTS))


def test_pairs_of_other_files_are_not_said_to_be_held_out_of_the_training_corpus() -> None:
    given = {"settings": {"training": {"validation_file": ["news.{en,de}"]}}}
    assert "Retrieval among held-out sentences of the training corpus says" in model_card(typed(RESULTS))
    assert "Retrieval among the sentences given for it (validation_file) says" in model_card(typed(RESULTS | given))


def test_the_card_names_the_model_it_began_from_if_the_hub_knows_it(tmp_path: Path) -> None:
    """A folder is nobody's base model, and neither is a name that the Hub would refuse."""

    def base_of(encoder: str | None) -> Any:
        settings = {"settings": {"training": {"model_name_or_path": encoder}}}
        return ModelCard(model_card(typed(RESULTS | settings))).data.get("base_model")

    assert base_of("xlm-roberta-base") == "xlm-roberta-base"
    assert base_of("microsoft/infoxlm-base") == "microsoft/infoxlm-base"
    assert base_of(str(tmp_path)) is base_of("runs/that/is/gone") is base_of(ATTACK) is base_of(None) is None


def test_the_card_tells_how_the_model_was_made() -> None:
    text = model_card(typed(RESULTS))
    assert "| de | 1,000 | 8.0 | 100.0 | +92.0 |" in text
    assert "| en-sw | 1234 |" in text
    assert "L_LM | 1.0 | – | 2.125 |" in text and "L_W | 0 (off) |" in text
    assert "126 negatives for each sentence" in text
    # Half of 250 sentences: 1.96 * sqrt(0.25 / 250) = 6.2 points.
    assert "by up to 6 points" in text
    assert "2007.15960" in text and "$" not in text


def snippets_of(card: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", card, flags=re.DOTALL)


def test_the_card_promises_no_head_or_negatives_that_the_run_had_off() -> None:
    config = {"lm_weight": 0.0, "word_weight": 0, "word_negatives": 512, "hard_negatives": False}
    history = [{"step": 10, "negatives_per_anchor": 126, "hard_negative_lambda": 1.0}]
    off = model_card(typed(RESULTS | {"history": history, "settings": {"config": config}}))
    on = model_card(typed(RESULTS | {"history": history, "settings": {"config": {"word_negatives": 512}}}))
    promises = "pipeline_tag: fill-mask", "to fill masks", "with hard negatives", "512 words outside", "mean λ 1.00"
    assert all(promise in on and promise not in off for promise in promises)
    assert "pipeline_tag: sentence-similarity" in off and "use it to find translations" in off


def test_the_python_of_the_cards_compiles() -> None:
    for card, number in ((model_card, 3), (plain_card, 2)):
        snippets = snippets_of(card(typed(RESULTS)))
        assert len(snippets) == number
        for snippet in snippets:
            compile(snippet, "card", "exec")
    assert "".join(snippets_of(model_card(typed(RESULTS)))).count('"your-name/hictl"') == 5


@pytest.mark.parametrize(
    "pooling", [Pooling("mean", LAST), Pooling("cls", 1), Pooling("projection", LAST), Pooling("mean", 0)], ids=str
)
@pytest.mark.parametrize("settings", [{}, {"embedding_normalize": False, "embedding_lower_case": True}], ids=str)
def test_the_code_of_the_encoders_card_gives_its_vectors(
    pooling: Pooling,
    settings: dict[str, Any],
    model_for_text: MakeModel,
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
) -> None:
    model = model_for_text(seed=5, initializer_range=0.5, embedding_prompt="Query: ", **settings)
    model.config.embedding_pooling, model.config.embedding_layer = pooling
    save_sentence_encoder(model, tokenizer, tmp_path)
    *_, snippet = snippets_of(encoder_card(typed(RESULTS), model.config, has_pooler(model)))
    found: dict[str, Any] = {}
    exec(snippet.replace(YOUR_FOLDER, str(tmp_path)), found)
    expected = embed_sentences(model, tokenizer, ["Good morning.", "Guten Morgen."])
    np.testing.assert_allclose(found["vectors"].numpy(), expected, rtol=0, atol=1e-5)


def test_the_code_of_the_card_puts_the_prompt_before_texts() -> None:
    for prompt, text in (
        ("query: ", '["query: Good morning.", "query: Guten Morgen."]'),
        (None, '["Good morning.", "G'),
    ):
        results = typed(RESULTS | {"settings": {"config": {"embedding_prompt": prompt}}})
        assert f"tokenizer({text}" in snippets_of(model_card(results))[0]
        assert f"tokenizer({text}" in run_snippet("runs/a", results)


def test_the_code_of_the_encoders_card_ends_at_the_states_if_the_encoder_lacks_the_projection() -> None:
    config = HictlConfig(embedding_pooling="projection", projection_size=20)
    card = encoder_card(typed(RESULTS), config, pooler=False)
    *_, snippet = snippets_of(card)
    assert snippet.endswith(".last_hidden_state  # (sentences, tokens, d)\n") and "pooler" not in card


def test_the_card_says_how_sentences_are_read() -> None:
    text = model_card(typed(RESULTS))
    assert "A vector is the projection at layer 4, as was best on dev, divided by its length." in text
    assert "A vector is the state of the first token in the last layer" in model_card(typed(REQUIRED))
    raw = {**RESULTS["settings"], "config": {**RESULTS["settings"]["config"], "embedding_normalize": False}}
    assert "at layer 4, as was best on dev." in model_card(typed(RESULTS | {"settings": raw}))
    config = {"embedding_pooling": "projection", "embedding_layer": 2}  # of a run that measured nothing
    assert "A vector is the projection at layer 2, divided" in model_card(
        typed(REQUIRED | {"settings": {"config": config}})
    )


def test_the_card_of_an_adapted_encoder_names_its_prompt_and_no_choice() -> None:
    retrieval = {**RESULTS["retrieval"], "by_layer": {"projection": [None, None, None, None, 9.0]}}
    text = plain_card(typed(ADAPTED | {"retrieval": retrieval}))
    assert "the projection at layer 4, divided by its length. 'query: ' is put before each text." in text
    assert "chosen on dev" not in model_card(typed(RESULTS | {"retrieval": retrieval}))


def test_the_limits_name_the_tasks_that_the_paper_has() -> None:
    assert "the tasks\n  of the paper (XTREME, translation), which were not measured" in model_card(typed(RESULTS))


def test_the_card_names_languages_by_codes_the_hub_knows() -> None:
    codes = REQUIRED | {"language_codes": ["pt-br", "sr-Latn", "zh_TW", "en"]}
    assert ModelCard(model_card(typed(codes))).data.get("language") == ["en", "pt", "sr", "zh"]


def test_text_from_the_data_never_becomes_markup() -> None:
    for make in (model_card, plain_card):
        card = ModelCard(make(typed(ATTACKED)), ignore_metadata_errors=True).text
        assert "<script>" not in re.sub(r"```.*?```", "", card, flags=re.DOTALL)
        assert make is plain_card or "&lt;script&gt;alert" in card


@pytest.mark.parametrize("missing", sorted(INCOMPLETE))
def test_a_missing_key_is_survived(missing: str) -> None:
    for card in (model_card, plain_card):
        data: Any = ModelCard(card(typed(INCOMPLETE[missing]))).data
    assert data.library_name
