"""The model card of a translation model: the README with its scores and their signatures, data, settings and use."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from ..hub.cards import (
    YOUR_TRANSLATION_REPOSITORY,
    how_it_was_made,
    language_codes,
    licence_and_citation,
    markdown_table,
    name_on_the_hub,
    render_card,
    tags_of,
)
from ..models.families import family_recorded
from ..reports.tables import escape_markdown
from .results import ReportedScore, TranslationResults
from .scores import score_text

TEMPLATE = Path(__file__).with_name("model_card.md")
HEADS = ("direction", "score", "value", "signature")
METRICS = {"sacrebleu": "bleu", "multi-bleu": "bleu", "chrf": "chrf", "comet": "comet"}  # as the Hub calls them


def translation_card(results: TranslationResults) -> str:
    """The README of a translation model on the Hub."""
    scores = [
        (direction, metric, score)
        for direction, of_one in results.test.items()
        for metric, score in of_one.items()
        if score.value is not None
    ]
    rows = [
        (direction, metric, score_text(metric, score.value), score.signature) for direction, metric, score in scores
    ]
    counts = [
        (split, direction, f"{number:,}")
        for split, of_one in vars(results.rows).items()
        for direction, number in of_one.items()
    ]
    config = results.settings.get("config") or {}
    targets = config.get("target_languages") or [None]
    trained = [language for language in results.target_languages if language in targets]  # in step 2 not all
    language = (trained or targets)[0]
    target = f", target_language={json.dumps(language)}" if len(targets) > 1 else ""
    source = next(iter(results.source_languages), "de")
    sentence = "Guten Morgen." if source == "de" else f"A sentence in {source}."
    bias = "" if config.get("cls_bias") == "none" else ", whose logits get a bias from the encoder's first token"
    begun = escape_markdown(results.began_from or "an encoder that was not recorded")
    return render_card(
        TEMPLATE,
        card_metadata(results, scores),
        directions=escape_markdown(", ".join(results.test) or "between the languages of its training"),
        architecture=family_recorded(results.settings.get("config")).title,
        begun=f"random weights, in the form of {begun}" if results.random_encoder else begun,
        bias=bias,
        scores=markdown_table(HEADS, rows) if rows else "No test set was scored.",
        decoding=escape_markdown(", ".join(f"{name} {value}" for name, value in asdict(results.decoding).items())),
        chosen=escape_markdown(results.chosen.state or "not recorded"),
        rows=markdown_table(("part", "direction", "pairs"), counts),
        name=json.dumps(YOUR_TRANSLATION_REPOSITORY),
        repository=YOUR_TRANSLATION_REPOSITORY,
        target=target,
        sentence=json.dumps(sentence),
        flag=f" --target_lang {language}" if target else "",
        made=how_it_was_made(results),
        citation=licence_and_citation(),
    )


def card_metadata(results: TranslationResults, scores: Sequence[tuple[str, str, ReportedScore]]) -> ModelCardData:
    """The metadata of the card, with these scores by direction and metric."""
    evaluations = [
        EvalResult(
            task_type="translation", task_name=f"Translation {direction}", dataset_type="test-set-of-the-run",
            dataset_name=f"test set of the run, {direction}",
            dataset_config=direction,  # or the Hub's library puts the scores of all directions under the first
            metric_type=METRICS.get(metric, metric), metric_name=f"{metric} {score.signature}",
            metric_value=float(score_text(metric, score.value)),
        )
        for direction, metric, score in scores
    ]  # fmt: skip
    return ModelCardData(
        library_name="transformers", pipeline_tag="translation", language=language_codes(results.languages) or None,
        tags=[*tags_of(family_recorded(results.settings.get("config"))), "translation"],
        model_name=YOUR_TRANSLATION_REPOSITORY.split("/")[-1], eval_results=evaluations or None,
        base_model=None if results.random_encoder else name_on_the_hub(results.began_from),
    )  # fmt: skip
