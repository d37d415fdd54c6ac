"""The model cards: the READMEs of a checkpoint, of its plain encoder and of a translation model on the Hub, with their
scores as metadata. This module decides what a card says and what it warns of; the sentences and numbers it shares with
the page come from `reporting.py`, which files are beside it is decided by `publishing`.
"""

import json
import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from ..reports.results import (
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
PICTURES = {
    "retrieval": "Accuracy of each language before and after",
    "losses": "The losses during training",
    "layers": "Accuracy by layer and pooling, on the dev set",
    "tsne": "Sentences and their translations in two dimensions",
}
METRICS = {"sacrebleu": "bleu", "multi-bleu": "bleu", "chrf": "chrf", "comet": "comet"}  # as the Hub calls them
TAGS = ["hictl", "xlm-roberta", "multilingual"]


def model_card(
    results: Results,
    repository: str = "your-name/hictl",
    encoder_repository: str | None = None,
    pictures: Sequence[str] = (),
) -> str:
    """The README of the model on the Hub: metadata, scores with their protocol, data, settings, limits and use.

    Args:
        encoder_repository: where the plain encoder is; `None`: in `encoder/` of the same one.
        pictures: their paths in the repository.
    """
    use = snippet(repository)
    if encoder_repository:
        use = use.replace(f'{json.dumps(repository)}, subfolder="encoder"', json.dumps(encoder_repository))
    return Template(CARD).substitute(
        metadata=_metadata(results, repository).to_yaml(),
        headline=_cell(headline(results)),
        lead=_cell(lead(results)),
        before=_cell(before_label(results)),
        scores=_table(HEADS, (score.cells for score in language_scores(results))),
        pictures=_pictures(pictures),
        data=_cell(data_sentence(results)),
        rows=_table(("languages", "rows"), part(results, "corpus", "kept").items()),
        objectives=_table(("objective", "weight", "temperature", "loss at the end"), _objectives(results)),
        negatives=_cell(_negatives(results)),
        noise=_cell(_noise(results)),
        snippet=use,
        pooling=_cell(_pooling(results)),
        sentence_transformers=_sentence_transformers(repository, ", trust_remote_code=True"),
        name=json.dumps(repository),
        repository=repository,
        made=_how_it_was_made(results),
        citation=CITATION,
    )


def encoder_card(results: Results, repository: str = "your-name/hictl", encoder_repository: str | None = None) -> str:
    """The README of the plain encoder, in a repository of its own or in `encoder/` of that of the model."""
    name = encoder_repository or "path/to/this/folder"
    metadata = ModelCardData(
        license=results.get("license"), library_name="sentence-transformers", pipeline_tag="sentence-similarity",
        language=_languages(results) or None, tags=[*TAGS, "sentence-transformers", "feature-extraction"],
        base_model=repository if encoder_repository else None,
    )  # fmt: skip
    return Template(ENCODER_CARD).substitute(
        metadata=metadata.to_yaml(), repository=repository, headline=_cell(headline(results)), name=json.dumps(name),
        pooling=_cell(_pooling(results)), sentence_transformers=_sentence_transformers(name), citation=CITATION,
    )  # fmt: skip


def translation_card(results: Results, repository: str = "your-name/hictl-translation") -> str:
    """The README of a translation model on the Hub: its scores with their signatures, data, settings and use."""
    test = part(results, "test")
    scores = [
        (direction, metric, f"{score['value']:.2f}", score["signature"])
        for direction, of_one in test.items()
        for metric, score in of_one.items()
    ]
    evaluations = [
        EvalResult(
            task_type="translation", task_name=f"Translation {direction}", dataset_type="test-set-of-the-run",
            dataset_name=f"test set of the run, {direction}", metric_type=METRICS.get(metric, metric),
            metric_name=f"{metric} {signature}", metric_value=round(float(value), 2),
        )
        for direction, metric, value, signature in scores
    ]  # fmt: skip
    languages = part(results, "settings", "training")
    codes = [code for key in ("source_lang", "target_lang") for code in languages.get(key) or ()]
    metadata = ModelCardData(
        license=results.get("license"), library_name="transformers", pipeline_tag="translation",
        language=_bases(codes) or None,
        tags=[*TAGS, "translation"], model_name=repository.split("/")[-1], eval_results=evaluations or None,
        base_model=_name_on_the_hub(results.get("encoder") or results.get("model")),
    )  # fmt: skip
    targets = part(results, "settings", "config").get("target_languages") or [None]
    target = f", target_language={json.dumps(targets[0])}" if len(targets) > 1 else ""
    directions = ", ".join(test) or "between the languages of its training"
    rows = [
        (name, direction, f"{number:,}")
        for name, counts in part(results, "rows").items()
        for direction, number in counts.items()
    ]
    return Template(TRANSLATION_CARD).substitute(
        metadata=metadata.to_yaml(),
        directions=_cell(directions),
        begun=_cell(results.get("encoder") or results.get("model") or "an encoder that was not recorded"),
        scores=_table(("direction", "score", "value", "signature"), scores) if scores else "No test set was scored.",
        decoding=_cell(_listed(part(results, "decoding")) or "not recorded"),
        chosen=_cell(part(results, "chosen").get("state", "not recorded")),
        rows=_table(("part", "direction", "pairs"), rows),
        name=json.dumps(repository),
        repository=repository,
        target=target,
        flag=f" --target_language {targets[0]}" if target else "",
        made=_how_it_was_made(results),
        citation=CITATION,
    )


def _how_it_was_made(results: Results) -> str:
    """All settings, the command, and what else a number needs to be found again."""
    settings = "\n\n".join(
        f"**{_cell(group)}**\n\n{_table(('setting', 'value'), values.items())}"
        for group, values in setting_groups(results).items()
    )
    return Template(HOW_IT_WAS_MADE).substitute(
        settings=settings or "Not recorded.",
        command=str(results.get("command", "not recorded")).replace("```", "'''"),
        signature=_cell(signature(results)),
    )


def _pictures(paths: Sequence[str]) -> str:
    alternatives = {path: PICTURES.get(re.sub(r".*/|\.\w+$", "", path), "A picture of the run") for path in paths}
    return "\n\n".join(f"![{text}]({path})" for path, text in alternatives.items())


def _pooling(results: Results) -> str:
    protocol, config = part(results, "retrieval", "protocol"), part(results, "settings", "config")
    own = {"mode": config.get("embedding_pooling"), "layer": config.get("embedding_layer")}
    read = part(protocol, "hictl") or own
    pooling, layer = read["mode"] or "cls", read["layer"]
    how = {"cls": "the state of the first token", "mean": "the mean of all tokens"}
    place = "in the last layer" if layer is None else f"at layer {layer}"
    chosen = f", as was best on {protocol.get('selected_on', 'dev')}" if "hictl" in protocol else ""
    return f"A vector is {how.get(pooling, f'the {pooling}')} {place}{chosen}, divided by its length"


def _sentence_transformers(name: str, more: str = "") -> str:
    return f"""from sentence_transformers import SentenceTransformer

model = SentenceTransformer({json.dumps(name)}{more})
vectors = model.encode(["Good morning.", "Guten Morgen."])  # (sentences, d)
print(model.similarity(vectors, vectors))"""


def _listed(settings: Results) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


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
        license=results.get("license"),
        library_name="transformers",
        pipeline_tag="fill-mask",
        language=_languages(results) or None,
        tags=[*TAGS, "contrastive-learning", "sentence-embeddings", "sentence-transformers", "feature-extraction"],
        model_name=repository.split("/")[-1],
        base_model=_name_on_the_hub(part(results, "settings", "training").get("encoder")),
        eval_results=None if after is None else [score],
    )


def _name_on_the_hub(begun_from: Any) -> str | None:
    """What training began from, unless that was a folder."""
    name = str(begun_from or "")
    try:
        validate_repo_id(name)
    except HFValidationError:
        return None
    return None if not name or Path(name).exists() else name


def _languages(results: Results) -> list[str]:
    """Codes the Hub accepts: two or three letters, without script or region."""
    return _bases([score.language for score in language_scores(results)] + [*results.get("language_codes", ())])


def _bases(codes: Iterable[str]) -> list[str]:
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

$pictures

## Use

With transformers alone:

```python
$snippet
```

With sentence-transformers, 5.4 or above:

```python
$sentence_transformers
```

$pooling. With `hictl_hf` the same vectors, and faster:

```python
from hictl_hf.embedding.encoder import embed_sentences, load_encoder

model, tokenizer = load_encoder($name)
vectors = embed_sentences(model, tokenizer, ["Good morning.", "Guten Morgen."])  # (sentences, d)
```

```bash
hictl mine english.txt german.txt --model $repository --output pairs.tsv
```

## Training data

$data

<details><summary>Rows read, before any were held out</summary>

$rows

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

$made

$citation
"""

ENCODER_CARD = """---
$metadata
---

# The plain encoder of $repository

$headline. This is its encoder as plain XLM-R, which needs no code of ours: to embed sentences, or to fine-tune. How it
was trained, on what, its limits and all scores are told by the card of $repository.

## Use

```python
$sentence_transformers
```

$pooling. With transformers, any `AutoModelFor...`:

```python
from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained($name)
encoder = AutoModel.from_pretrained($name)
words = encoder(**tokenizer(["Guten Morgen."], return_tensors="pt")).last_hidden_state  # (sentences, tokens, d)
```

Where the projection of the run keeps the hidden size it is the pooler, so that `pooler_output` is tanh(r), r being the
vector that training contrasted.

$citation
"""

TRANSLATION_CARD = """---
$metadata
---

# HiCTL: translation, $directions

A translation model: an encoder pre-trained with HiCTL's objectives or XLM-R, begun from $begun, and a decoder that is
told by the encoder's first token which words to expect (Wei et al., ICLR 2021). Made by `hictl_hf`, an open
implementation that is not the authors' own.

## Results

$scores

Decoding: $decoding. The state of the model: $chosen.

## Use

```python
import hictl_hf

translator = hictl_hf.translation_pipeline($name$target)
print(translator(["Guten Morgen."])[0]["translation_text"])
```

```bash
hictl translate --model $repository$flag --input source.txt --output translation.txt
```

## Data

$rows

## Limits

- The scores hold for this test set and its domain. This is one run with one seed.
- It translates into the languages it was trained on, whatever language it is given, and says something for every input.
- The model repeats what its corpus says, biases and errors of translation included.

$made

$citation
"""

HOW_IT_WAS_MADE = """## Settings

<details><summary>All of them</summary>

$settings

</details>

```
$command
```

$signature"""

CITATION = """## Licence

The licence of the weights is the one in the metadata of this page. Where that names none, its author has not stated
one: it follows from the data and from the model that training began with. The code is Apache-2.0.

## Citation

```bibtex
@inproceedings{wei2021hictl,
  title     = {On Learning Universal Representations Across Languages},
  author    = {Xiangpeng Wei and Rongxiang Weng and Yue Hu and Luxi Xing and Heng Yu and Weihua Luo},
  booktitle = {International Conference on Learning Representations},
  year      = {2021},
  url       = {https://arxiv.org/abs/2007.15960}
}
```"""
