"""The model card: the README of a checkpoint on the Hub, with its score as metadata. This module decides what the card
says and what it warns of; the sentences and numbers it shares with the page come from `reporting.py`.
"""

import math
import re
from collections.abc import Iterable
from html import escape
from string import Template
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from .reporting import (
    HEADS,
    Results,
    before_label,
    data_sentence,
    headline,
    language_scores,
    lead,
    mean_scores,
    part,
    setting_groups,
    signature,
    snippet,
)

OBJECTIVES = (
    ("lm", "masked and translation language model, L_LM", None),
    ("sentence", "sentence-level contrast with hard negatives, L_S", "sentence_temperature"),
    ("word", "word-level contrast, L_W", "word_temperature"),
)


def model_card(results: Results, repository: str = "your-name/hictl") -> str:
    """The README of the model on the Hub: metadata, scores with their protocol, data, settings, limits and use."""
    settings = "\n\n".join(
        f"**{_cell(group)}**\n\n{_table(('setting', 'value'), values.items())}"
        for group, values in setting_groups(results).items()
    )
    return Template(CARD).substitute(
        metadata=_metadata(results, repository).to_yaml(),
        headline=_cell(headline(results)),
        lead=_cell(lead(results)),
        before=_cell(before_label(results)),
        scores=_table(HEADS, (score.cells for score in language_scores(results))),
        data=_cell(data_sentence(results)),
        pairs=_table(("languages", "pairs"), part(results, "corpus", "kept").items()),
        objectives=_table(("objective", "weight", "temperature", "loss at the end"), _objectives(results)),
        negatives=_cell(_negatives(results)),
        settings=settings or "Not recorded.",
        noise=_cell(_noise(results)),
        snippet=snippet(repository),
        command=str(results.get("command", "not recorded")).replace("```", "'''"),
        signature=_cell(signature(results)),
    )


def _metadata(results: Results, repository: str) -> ModelCardData:
    after = mean_scores(results)[1]
    score = EvalResult(
        task_type="sentence-similarity",
        task_name="Bitext retrieval",
        dataset_type="held-out-sentence-pairs",
        dataset_name="held-out sentence pairs",
        dataset_args={"hash": results["data_hash"]} if "data_hash" in results else None,
        metric_type="accuracy",
        metric_name=str(part(results, "retrieval", "protocol").get("metric", "nearest-neighbour accuracy")),
        metric_value=None if after is None else round(float(after), 2),
    )
    return ModelCardData(
        license="apache-2.0",
        library_name="transformers",
        pipeline_tag="fill-mask",
        language=_languages(results) or None,
        tags=["hictl", "xlm-roberta", "multilingual", "contrastive-learning", "sentence-embeddings"],
        model_name=repository.split("/")[-1],
        eval_results=None if after is None else [score],
    )


def _languages(results: Results) -> list[str]:
    """Codes the Hub accepts: two or three letters, without script or region."""
    pairs = part(results, "corpus", "kept")
    codes = [score.language for score in language_scores(results)] + [
        code for pair in pairs for code in str(pair).split("-")
    ]
    bases = {re.split("[-_]", code)[0] for code in codes}
    return sorted(base for base in bases if re.fullmatch("[a-z]{2,3}", base))


def _objectives(results: Results) -> list[tuple[Any, ...]]:
    config = part(results, "settings", "config")
    rows = []
    for key, name, temperature in OBJECTIVES:
        weight, last = config.get(f"{key}_weight", "–"), _last(results, f"{key}_loss")
        tau = config.get(temperature, "–") if temperature else "–"
        rows.append((name, "0 (off)" if weight == 0 else weight, tau, "–" if last is None else f"{last:.3f}"))
    return rows


def _negatives(results: Results) -> str:
    known = [
        (_last(results, "negatives_per_anchor"), "{:.0f} negatives for each sentence"),
        (part(results, "settings", "config").get("word_negatives"), "{} words outside the bag for each pair"),
        (_last(results, "hard_negative_lambda"), "mean λ {:.2f} at the end"),
        (_last(results, "p_avg"), "p_avg {:.2f}"),
    ]
    phrases = [phrase.format(value) for value, phrase in known if value is not None]
    return "; ".join(phrases) or "Negatives were not recorded"


def _last(results: Results, key: str) -> float | None:
    return next((row[key] for row in reversed(results.get("history") or []) if row.get(key) is not None), None)


def _noise(results: Results) -> str:
    smallest = min((score.sentences for score in language_scores(results) if score.sentences), default=None)
    if smallest is None:
        return "The size of the test sets was not recorded."
    return (
        f"The smallest test set has {smallest} sentences: chance is {100 / smallest:.1f}%, and one language may be off "
        f"by up to {98 / math.sqrt(smallest):.0f} points (95%) by the choice of sentences alone."
    )


def _table(heads: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(value: Any) -> str:
    """One line of Markdown in which nothing is markup."""
    text = escape(" ".join(str(value).split()), quote=False)
    return re.sub(r"([\\|`*\[\]])", r"\\\1", text)


CARD = """---
$metadata
---

# HiCTL: $headline

$lead

This is a multilingual encoder with the architecture of XLM-R, trained with the objectives of HiCTL (Wei et al., ICLR
2021) by `hictl_hf`, an open implementation that is not the authors' own. Training draws translations together: use
it to fill masks, to find translations, or as a starting point for cross-lingual fine-tuning.

## Results

Accuracy (%) on held-out sentence pairs: before is the $before, after is HiCTL.

$scores

## Training data

$data

<details><summary>Pairs by language</summary>

$pairs

</details>

## Objectives

L = L_LM + L_S + L_W, each with its weight.

$objectives

$negatives.

## Limits

- $noise
- This is one run with one seed; another seed gives other numbers.
- Retrieval among held-out sentences of the training corpus says little about other domains, and nothing about the tasks
  of the paper (XTREME, GLUE, translation), which were not measured here.
- The model repeats what its corpus says, biases and errors of translation included.

## Use

```python
$snippet
```

## Settings

<details><summary>All of them</summary>

$settings

</details>

```
$command
```

$signature

## Citation

```bibtex
@inproceedings{wei2021hictl,
  title     = {On Learning Universal Representations Across Languages},
  author    = {Xiangpeng Wei and Rongxiang Weng and Yue Hu and Luxi Xing and Heng Yu and Weihua Luo},
  booktitle = {International Conference on Learning Representations},
  year      = {2021},
  url       = {https://arxiv.org/abs/2007.15960}
}
```
"""
