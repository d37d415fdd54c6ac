"""The model card of a translation model: the README with its scores and their signatures, data, settings and use."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from ..hub.cards import (
    TAGS,
    YOUR_TRANSLATION_REPOSITORY,
    escape_markdown,
    how_it_was_made,
    language_codes,
    licence_and_citation,
    markdown_table,
    name_on_the_hub,
    render_card,
)
from ..reports.results import RunResults

TEMPLATE = Path(__file__).with_name("model_card.md")
METRICS = {"sacrebleu": "bleu", "multi-bleu": "bleu", "chrf": "chrf", "comet": "comet"}  # as the Hub calls them


def translation_card(results: Mapping[str, Any], repository: str = YOUR_TRANSLATION_REPOSITORY) -> str:
    """The README of a translation model on the Hub, from its `results.json`; any key may be missing."""
    settings = results.get("settings") or {}
    config, training = settings.get("config") or {}, settings.get("training") or {}
    test, encoder = results.get("test") or {}, results.get("encoder") or results.get("model")
    scores = [
        (direction, metric, f"{score['value']:.2f}", score["signature"])
        for direction, of_one in test.items()
        for metric, score in of_one.items()
    ]
    targets = config.get("target_languages") or [None]
    target = f", target_language={json.dumps(targets[0])}" if len(targets) > 1 else ""
    counts = [
        (name, direction, f"{number:,}")
        for name, of_one in (results.get("rows") or {}).items()
        for direction, number in of_one.items()
    ]
    decoding = ", ".join(f"{name} {value}" for name, value in (results.get("decoding") or {}).items())
    languages = [code for key in ("source_lang", "target_lang") for code in training.get(key) or ()]
    about = RunResults(
        settings=settings, versions=results.get("versions") or {}, seed=results.get("seed"),
        data_hash=results.get("data_hash"), command=results.get("command") or "",
    )  # fmt: skip
    return render_card(
        TEMPLATE,
        card_metadata(scores, languages, encoder, repository),
        directions=escape_markdown(", ".join(test) or "between the languages of its training"),
        begun=escape_markdown(encoder or "an encoder that was not recorded"),
        scores=markdown_table(("direction", "score", "value", "signature"), scores)
        if scores
        else "No test set was scored.",
        decoding=escape_markdown(decoding or "not recorded"),
        chosen=escape_markdown((results.get("chosen") or {}).get("state", "not recorded")),
        rows=markdown_table(("part", "direction", "pairs"), counts),
        name=json.dumps(repository),
        repository=repository,
        target=target,
        flag=f" --target_language {targets[0]}" if target else "",
        made=how_it_was_made(about),
        citation=licence_and_citation(),
    )


def card_metadata(
    scores: list[tuple[str, str, str, str]], languages: list[str], encoder: str | None, repository: str
) -> ModelCardData:
    """The metadata of the card; scores are rows of direction, metric, value and signature."""
    evaluations = [
        EvalResult(
            task_type="translation", task_name=f"Translation {direction}", dataset_type="test-set-of-the-run",
            dataset_name=f"test set of the run, {direction}", metric_type=METRICS.get(metric, metric),
            metric_name=f"{metric} {signature}", metric_value=round(float(value), 2),
        )
        for direction, metric, value, signature in scores
    ]  # fmt: skip
    return ModelCardData(
        library_name="transformers", pipeline_tag="translation", language=language_codes(languages) or None,
        tags=[*TAGS, "translation"], model_name=repository.split("/")[-1], eval_results=evaluations or None,
        base_model=name_on_the_hub(encoder),
    )  # fmt: skip
