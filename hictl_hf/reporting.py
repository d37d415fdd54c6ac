"""What a pre-training run says at its end: a table for the terminal, a page for a reader, a card for the Hub. This
module decides the words and the layout. It reads the results of a run as a plain dictionary (`results.json`), in which
any key may be missing; what was measured is decided by the driver that filled it, the pictures by `plotting.py`.
"""

import json
import math
import os
import re
import sys
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

Results = Mapping[str, Any]

CAPTIONS = {
    "retrieval": (
        "Languages",
        (
            "One row for each language, best first: grey is the model before, blue the model after, orange a language "
            "that lost. The longer the bar, the larger the change; the dashed lines are the means over languages."
        ),
    ),
    "losses": (
        "Training",
        (
            "The total and each of its terms. In the last panel λ near 1 leaves hard negatives where they are; the "
            "surer the model (p_avg), the smaller λ and the closer negatives are pulled to their query."
        ),
    ),
    "layers": (
        "Layers",
        (
            "Accuracy on the dev set when sentences are read off at each layer, by pooling. The ring marks the best. "
            "The choice was made here; the scores reported come from other sentences."
        ),
    ),
    "tsne": (
        "The space of sentences",
        (
            "Each colour is one meaning, each shape one language, each thin line leads to the centre of its meaning. "
            "Where languages agree, shapes of one colour gather. t-SNE bends distances, the percentages do not."
        ),
    ),
}
OBJECTIVES = (
    ("lm", "masked and translation language model, L_LM", None),
    ("sentence", "sentence-level contrast with hard negatives, L_S", "sentence_temperature"),
    ("word", "word-level contrast, L_W", "word_temperature"),
)
CITATION = """@inproceedings{wei2021hictl,
  title     = {On Learning Universal Representations Across Languages},
  author    = {Xiangpeng Wei and Rongxiang Weng and Yue Hu and Luxi Xing and Heng Yu and Weihua Luo},
  booktitle = {International Conference on Learning Representations},
  year      = {2021},
  url       = {https://arxiv.org/abs/2007.15960}
}"""


@dataclass(frozen=True)
class LanguageScore:
    """One row of the table: accuracy (%) of a language before and after training."""

    language: str
    sentences: int | None
    before: float | None
    after: float

    @property
    def gain(self) -> float | None:
        return None if self.before is None else self.after - self.before


def write_json(path: str | Path, value: Any) -> Path:
    """Write a value as JSON, keys in their order and NaN as null; a value that cannot be written changes no file."""
    return _write(Path(path), json.dumps(_without_nan(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def retrieval_table(results: Results) -> str:
    """Accuracy of each language before and after training as aligned text, best first, the mean last."""
    scores = _scores(results)
    if not scores:
        return "no retrieval score"
    before, after = _means(results)
    total = LanguageScore("mean", sum(score.sentences or 0 for score in scores) or None, before, after or 0.0)
    head = ("language", "sentences", "before", "after", "gain")
    lines = [head, *(_shown(score) for score in (*scores, total))]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    texts = [
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    ]
    rule = "-" * len(texts[0])
    return "\n".join([texts[0], rule, *texts[1:-1], rule, texts[-1]])


def comparison_table(runs: Mapping[str, Results]) -> str:
    """The means of several runs as aligned text, in the order given."""
    means = {name: _means(results) for name, results in runs.items()}
    width = max(map(len, runs))
    lines = [f"{'run'.ljust(width)}  before   after    gain"]
    for name, (before, after) in means.items():
        lines.append(
            f"{name.ljust(width)}  {before or 0:6.1f}  {after or 0:6.1f}  {(after or 0) - (before or 0):+6.1f}"
        )
    return "\n".join(lines)


def write_report(results: Results, folder: str | Path, pictures: Mapping[str, str | Path]) -> Path:
    """Write `report.html`, one page that needs no other file and no network; returns its path."""
    page = Template(PAGE).substitute(
        headline=escape(_headline(results)),
        lead=escape(_lead(results)),
        facts="".join(f"<div><b>{escape(value)}</b>{escape(name)}</div>" for name, value in _facts(results)),
        pictures="".join(_figure(name, Path(path)) for name, path in pictures.items()),
        languages=_language_table(results),
        corpus=_corpus(results.get("corpus") or {}),
        details=_details(results),
        snippet=escape(_snippet("path/to/this/folder")),
        signature=escape(_signature(results)),
    )
    return _write(Path(folder) / "report.html", page)


def model_card(results: Results, repository: str = "your-name/hictl") -> str:
    """The README of the model on the Hub: metadata, scores with their protocol, data, settings, limits and use."""
    kept = (results.get("corpus") or {}).get("kept") or {}
    settings = "\n\n".join(
        f"**{_cell(group)}**\n\n{_markdown_table(('setting', 'value'), values.items())}"
        for group, values in (results.get("settings") or {}).items()
        if isinstance(values, Mapping) and values
    )
    return Template(CARD).substitute(
        metadata=_metadata(results, repository).to_yaml(),
        headline=_cell(_headline(results)),
        lead=_cell(_lead(results)),
        before=_cell(_before_label(results)),
        scores=_markdown_table(("language", "sentences", "before", "after", "gain"), map(_shown, _scores(results))),
        data=_cell(_data_sentence(results)),
        pairs=_markdown_table(("languages", "pairs"), kept.items()),
        objectives=_markdown_table(("objective", "weight", "temperature", "loss at the end"), _objectives(results)),
        negatives=_cell(_negatives_sentence(results)),
        settings=settings or "Not recorded.",
        noise=_cell(_noise_sentence(results)),
        snippet=_snippet(repository),
        command=str(results.get("command", "not recorded")).replace("```", "'''"),
        signature=_cell(_signature(results)),
        citation=CITATION,
    )


def _scores(results: Results) -> list[LanguageScore]:
    per_language = (results.get("retrieval") or {}).get("per_language") or {}
    scores = [
        LanguageScore(str(language), row.get("sentences"), row.get("untrained", row.get("before")), row["hictl"])
        for language, row in per_language.items()
        if row.get("hictl") is not None
    ]
    return sorted(scores, key=lambda score: score.after, reverse=True)


def _means(results: Results) -> tuple[float | None, float | None]:
    """Mean accuracy before and after: as recorded, else over the languages."""
    retrieval = results.get("retrieval") or {}
    before, after = retrieval.get("untrained", retrieval.get("before")), retrieval.get("hictl")
    scores = _scores(results)
    if after is None and scores:
        after = sum(score.after for score in scores) / len(scores)
    known = [score.before for score in scores if score.before is not None]
    if before is None and scores and len(known) == len(scores):
        before = sum(known) / len(known)
    return before, after


def _headline(results: Results) -> str:
    before, after = _means(results)
    if after is None:
        return "A HiCTL pre-training run"
    if before is None:
        return f"Translations are found {after:.1f}% of the time"
    direction = "up" if after > before else "down" if after < before else "unchanged"
    return f"Translations are found {after:.1f}% of the time, {direction} from {before:.1f}%"


def _lead(results: Results) -> str:
    protocol = (results.get("retrieval") or {}).get("protocol") or {}
    before, after = protocol.get("untrained", protocol.get("before")), protocol.get("hictl")
    sentences = [_data_sentence(results)]
    if protocol.get("metric"):
        sentences.append(f"Score: {protocol['metric']}.")
    if after and before:
        sentences.append(
            f"Sentences are read off by {_place(after)} (HiCTL) and by {_place(before)} ({_before_label(results)})"
            + (f", each chosen on {protocol['selected_on']}." if protocol.get("selected_on") else ".")
        )
    return " ".join(sentences)


def _before_label(results: Results) -> str:
    return str(results.get("before_label", "untrained model"))


def _place(where: Any) -> str:
    return f"{where.get('pooling')} at layer {where.get('layer')}" if isinstance(where, Mapping) else str(where)


def _data_sentence(results: Results) -> str:
    parts = [
        f"{results[key]:,} {words}"
        for key, words in (("pairs", "sentence pairs"), ("texts", "texts"))
        if results.get(key)
    ]
    sentence = "Trained on " + (" and ".join(parts) or "a corpus whose size was not recorded")
    if results.get("languages"):
        sentence += f" in {results['languages']} languages"
    return sentence + (f" for {_duration(results['train_seconds'])}." if results.get("train_seconds") else ".")


def _duration(seconds: float) -> str:
    for unit, length in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def _facts(results: Results) -> list[tuple[str, str]]:
    before, after = _means(results)
    label = _before_label(results)
    number, unit = _duration(results["train_seconds"]).split() if results.get("train_seconds") else ("", "")
    facts = [
        (label, "" if before is None else f"{before:.1f}%"),
        ("HiCTL", "" if after is None else f"{after:.1f}%"),
        ("languages", f"{results['languages']}" if results.get("languages") else ""),
        ("sentence pairs", f"{results['pairs']:,}" if results.get("pairs") else ""),
        (f"{unit} of training", number),
    ]
    return [(name, value) for name, value in facts if value]


def _shown(score: LanguageScore) -> tuple[str, str, str, str, str]:
    before, gain = ("–", "–") if score.gain is None else (f"{score.before:.1f}", f"{score.gain:+.1f}")
    return (
        score.language,
        "–" if score.sentences is None else f"{score.sentences:,}",
        before,
        f"{score.after:.1f}",
        gain,
    )


def _noise_sentence(results: Results) -> str:
    sizes = [score.sentences for score in _scores(results) if score.sentences]
    if not sizes:
        return "The size of the test sets was not recorded."
    smallest = min(sizes)
    return (
        f"The smallest test set has {smallest} sentences: chance is {100 / smallest:.1f}%, and one language may be off "
        f"by up to {98 / math.sqrt(smallest):.0f} points (95%) by the choice of sentences alone."
    )


def _objectives(results: Results) -> list[tuple[str, str, str, str]]:
    config = (results.get("settings") or {}).get("config") or {}
    rows = []
    for key, name, temperature in OBJECTIVES:
        last = _last(results, f"{key}_loss")
        weight, tau = config.get(f"{key}_weight", "–"), config.get(temperature, "–") if temperature else "–"
        rows.append((name, "0 (off)" if weight == 0 else str(weight), str(tau), "–" if last is None else f"{last:.3f}"))
    return rows


def _negatives_sentence(results: Results) -> str:
    config = (results.get("settings") or {}).get("config") or {}
    known = [
        (_last(results, "negatives_per_anchor"), "{:.0f} negatives for each sentence"),
        (config.get("word_negatives"), "{} words outside the bag for each pair"),
        (_last(results, "hard_negative_lambda"), "mean λ {:.2f} at the end"),
        (_last(results, "p_avg"), "p_avg {:.2f}"),
    ]
    return (
        "; ".join(words.format(value) for value, words in known if value is not None) or "Negatives were not recorded"
    )


def _last(results: Results, key: str) -> float | None:
    return next((row[key] for row in reversed(results.get("history") or []) if row.get(key) is not None), None)


def _signature(results: Results) -> str:
    parts = [f"{name} {version}" for name, version in (results.get("versions") or {}).items()]
    parts += [f"{name} {results[key]}" for key, name in (("seed", "seed"), ("data_hash", "data")) if key in results]
    return " · ".join(parts)


def _snippet(repository: str) -> str:
    name = json.dumps(repository)
    return f"""from transformers import AutoModel, AutoModelForPreTraining, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({name})
batch = tokenizer(["Good morning.", "Guten Morgen."], padding=True, return_tensors="pt")

# The plain XLM-R encoder, to fine-tune or to pool; it needs none of our code.
encoder = AutoModel.from_pretrained({name}, subfolder="encoder")
words = encoder(**batch).last_hidden_state  # (sentences, tokens, hidden size)

# The HiCTL model with its projection of sentences; its code travels with the weights.
model = AutoModelForPreTraining.from_pretrained({name}, trust_remote_code=True)
sentences = model.encode_sentences(batch["input_ids"], batch["attention_mask"])  # (sentences, r)"""


def _figure(name: str, path: Path) -> str:
    title, caption = CAPTIONS.get(name, (name, ""))
    image = b64encode(path.read_bytes()).decode()
    return (
        f"<section><h2>{escape(title)}</h2><figure>"
        f'<img alt="{escape(title)}" src="data:image/png;base64,{image}"><figcaption>{escape(caption)}</figcaption>'
        "</figure></section>\n"
    )


def _language_table(results: Results) -> str:
    scores = _scores(results)
    if not scores:
        return ""
    label = _before_label(results)
    heads = "".join(
        f'<th scope="col"><button>{escape(head)}</button></th>'
        for head in ("language", "sentences", label, "HiCTL", "gain")
    )
    rows = []
    for score in scores:
        values = (score.language, score.sentences, score.before, score.after, score.gain)
        cells = [
            f'<td data-value="{"" if value is None else escape(str(value))}">{escape(text)}</td>'
            for value, text in zip(values, _shown(score), strict=True)
        ]
        width, colour = min(100.0, abs(score.gain or 0.0)), "fall" if (score.gain or 0.0) < 0 else "rise"
        cells[-1] = cells[-1].replace("<td ", f'<td class="{colour}" style="--width:{width:.1f}%" ', 1)
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return (
        "<section><h2>All languages</h2><p>Accuracy in per cent; a click on a heading sorts.</p>"
        f'<div class="scroll"><table class="sortable"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _corpus(corpus: Mapping[str, Any]) -> str:
    parts = []
    for key, title, head in (("kept", "Kept", "languages"), ("skipped", "Skipped", "reason")):
        if counts := corpus.get(key):
            rows = [(name, f"{count:,}") for name, count in sorted(counts.items(), key=lambda row: -row[1])]
            title = f"{title}: {sum(counts.values()):,} rows"
            parts.append(f'<div><h3>{title}</h3><div class="scroll">{_html_table((head, "rows"), rows)}</div></div>')
    return f'<section><h2>Corpus</h2><div class="columns">{"".join(parts)}</div></section>' if parts else ""


def _details(results: Results) -> str:
    folds = [
        (f"Settings: {group}", _html_table(("setting", "value"), values.items()))
        for group, values in (results.get("settings") or {}).items()
        if isinstance(values, Mapping) and values
    ]
    if evaluations := results.get("evaluations"):
        rows = [
            (row.get("step", "–"), f"{row['retrieval']:.1f}") for row in evaluations if row.get("retrieval") is not None
        ]
        folds.insert(0, ("Accuracy during training", _html_table(("step", "mean accuracy (%)"), rows)))
    if results.get("command"):
        folds.append(("Command", f"<pre>{escape(str(results['command']))}</pre>"))
    folded = "".join(f"<details><summary>{escape(name)}</summary>{body}</details>" for name, body in folds)
    return f"<section><h2>How it was made</h2>{folded}</section>" if folds else ""


def _html_table(heads: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _markdown_table(heads: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(value: Any) -> str:
    """One line of Markdown in which nothing is markup."""
    text = escape(" ".join(str(value).split()), quote=False)
    return re.sub(r"([\\|`*\[\]])", r"\\\1", text)


def _metadata(results: Results, repository: str) -> ModelCardData:
    protocol = (results.get("retrieval") or {}).get("protocol") or {}
    after = _means(results)[1]
    score = EvalResult(
        task_type="sentence-similarity",
        task_name="Bitext retrieval",
        dataset_type="held-out-sentence-pairs",
        dataset_name="held-out sentence pairs",
        dataset_args={"hash": results["data_hash"]} if "data_hash" in results else None,
        metric_type="accuracy",
        metric_name=str(protocol.get("metric", "nearest-neighbour accuracy")),
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
    pairs = (results.get("corpus") or {}).get("kept") or {}
    codes = [score.language for score in _scores(results)] + [code for pair in pairs for code in str(pair).split("-")]
    bases = {re.split("[-_]", code)[0] for code in codes}
    return sorted(base for base in bases if re.fullmatch("[a-z]{2,3}", base))


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, list | tuple) else value


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>$headline</title>
<style>
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1d2127; --soft: #5b636e; --line: #e1e4e8;
  --blue: #0072b2; --rise: #cfe5f3; --fall: #f6d9c6; }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --card: #1d2127; --ink: #e8eaed; --soft: #a2abb6;
  --line: #343a42; --blue: #6cbcee; --rise: #1f4a66; --fall: #6b3a1c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: clamp(1.5rem, 5vw, 4rem) clamp(1rem, 4vw, 2rem); }
h1 { font-size: clamp(1.7rem, 4.5vw, 2.7rem); line-height: 1.15; letter-spacing: -.02em; margin: 0 0 1rem;
  text-wrap: balance; }
h2 { font-size: 1.3rem; margin: 2.8rem 0 .7rem; }
h3 { font-size: 1rem; margin: 0 0 .5rem; }
p, figcaption { color: var(--soft); max-width: 46rem; margin: 0 0 .9rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .8rem; margin: 1.6rem 0; }
.facts div { background: var(--card); border: 1px solid var(--line); border-radius: .7rem; padding: .8rem 1rem;
  color: var(--soft); font-size: .9rem; }
.facts b { display: block; color: var(--ink); font-size: 1.7rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.facts div:nth-child(2) b { color: var(--blue); }
figure { margin: 0; }
img { display: block; width: 100%; height: auto; background: #fff; border: 1px solid var(--line); border-radius: .7rem;
  padding: 1rem; margin-bottom: .7rem; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: 1.5rem; }
.scroll { max-height: 32rem; overflow: auto; border: 1px solid var(--line); border-radius: .7rem;
  background: var(--card); }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .9rem; text-align: right; border-bottom: 1px solid var(--line); }
tbody tr:last-child td { border-bottom: 0; }
th:first-child, td:first-child { text-align: left; }
thead th { position: sticky; top: 0; background: var(--card); color: var(--soft); font-weight: 600; }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; }
th[aria-sort=ascending] button::after { content: " ↑"; }
th[aria-sort=descending] button::after { content: " ↓"; }
td.rise, td.fall { min-width: 9rem; }
.rise { background: linear-gradient(to left, var(--rise) var(--width), transparent 0); }
.fall { background: linear-gradient(to left, var(--fall) var(--width), transparent 0); }
details { border: 1px solid var(--line); border-radius: .7rem; background: var(--card); margin: .6rem 0;
  overflow: hidden; }
summary { cursor: pointer; padding: .7rem 1rem; font-weight: 600; }
details td { overflow-wrap: anywhere; }
pre { margin: 0; padding: 1rem; overflow-x: auto; font-size: .86rem; line-height: 1.5; }
section > pre { background: var(--card); border: 1px solid var(--line); border-radius: .7rem; }
footer { margin-top: 3rem; color: var(--soft); font-size: .86rem; overflow-wrap: anywhere; }
</style>
</head>
<body>
<main>
<h1>$headline</h1>
<p>$lead</p>
<div class="facts">$facts</div>
$pictures
$languages
$corpus
<section><h2>Use the model</h2><pre>$snippet</pre></section>
$details
<footer>$signature<br>HiCTL: Wei et al., On Learning Universal Representations Across Languages, ICLR 2021.</footer>
</main>
<script>
for (const button of document.querySelectorAll(".sortable button")) button.onclick = () => {
  const head = button.parentNode, body = head.closest("table").tBodies[0];
  const order = head.getAttribute("aria-sort") === "descending" ? "ascending" : "descending";
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", order);
  const value = row => row.cells[head.cellIndex].dataset.value;
  const compare = (a, b) => (value(a) - value(b)) || value(a).localeCompare(value(b));
  const rows = [...body.rows].sort(compare);
  body.append(...(order === "ascending" ? rows : rows.reverse()));
};
</script>
</body>
</html>
"""

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
$citation
```
"""


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python -m hictl_hf.reporting RUN/results.json ANOTHER/results.json ...")
    runs = {Path(path).parent.name: json.loads(Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:]}
    print(comparison_table(runs))
