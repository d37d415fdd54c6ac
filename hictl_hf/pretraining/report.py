"""The page of a run, `report.html`: one file for a reader, with its pictures inside, that needs no network. This module
decides what stands where on it; the sentences and numbers come from `reporting.py`, the pictures from `plotting.py`.
"""

from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from ..reports.results import (
    Results,
    before_label,
    duration,
    headline,
    language_scores,
    lead,
    mean_scores,
    part,
    setting_groups,
    signature,
    snippet,
    write_text,
)

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


def write_report(results: Results, folder: str | Path, pictures: Mapping[str, str | Path]) -> Path:
    """Write `report.html`, one page that needs no other file and no network; returns its path."""
    page = Template(PAGE).substitute(
        headline=escape(headline(results)),
        lead=escape(lead(results)),
        facts="".join(f"<div><b>{escape(value)}</b>{escape(name)}</div>" for name, value in _facts(results) if value),
        pictures="".join(_figure(name, Path(path)) for name, path in pictures.items()),
        languages=_languages(results),
        corpus=_corpus(results),
        details=_details(results),
        snippet=escape(snippet("path/to/this/folder")),
        signature=escape(signature(results)),
    )
    return write_text(Path(folder) / "report.html", page)


def _facts(results: Results) -> list[tuple[str, str]]:
    before, after = mean_scores(results)
    number, unit = duration(results["train_seconds"]).split() if results.get("train_seconds") else ("", "")
    return [
        (before_label(results), "" if before is None else f"{before:.1f}%"),
        ("HiCTL", "" if after is None else f"{after:.1f}%"),
        ("languages", str(results.get("languages") or "")),
        ("sentence pairs", f"{results['pairs']:,}" if results.get("pairs") else ""),
        (f"{unit} of training", number),
    ]


def _figure(name: str, path: Path) -> str:
    title, caption = map(escape, CAPTIONS.get(name, (name, "")))
    image = f"data:image/png;base64,{b64encode(path.read_bytes()).decode()}"
    return (
        f'<section><h2>{title}</h2><figure><img alt="{title}" src="{image}"><figcaption>{caption}</figcaption>'
        "</figure></section>\n"
    )


def _languages(results: Results) -> str:
    names = ("language", "sentences", before_label(results), "HiCTL", "gain")
    heads = "".join(f'<th scope="col"><button>{escape(name)}</button></th>' for name in names)
    rows = []
    for score in language_scores(results):
        gain = score.gain or 0.0
        bar = f'class="{"fall" if gain < 0 else "rise"}" style="--width:{min(100.0, abs(gain)):.1f}%" '
        values = ["" if value is None else str(value) for value in (*astuple(score), score.gain)]
        rows.append("<tr>")
        for style, value, text in zip(("", "", "", "", bar), values, score.cells):
            rows.append(f'<td {style}data-value="{escape(value)}">{escape(text)}</td>')
        rows.append("</tr>")
    table = (
        "<section><h2>All languages</h2><p>Accuracy in per cent; a click on a heading sorts.</p>"
        f'<div class="scroll"><table class="sortable"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )
    return table if rows else ""


def _corpus(results: Results) -> str:
    parts = []
    for key, title, head in (("kept", "Kept", "languages"), ("skipped", "Skipped", "reason")):
        if counts := part(results, "corpus", key):
            rows = [(name, f"{count:,}") for name, count in sorted(counts.items(), key=lambda row: -row[1])]
            title = f"{title}: {sum(counts.values()):,} rows"
            parts.append(f'<div><h3>{title}</h3><div class="scroll">{_table((head, "rows"), rows)}</div></div>')
    return f'<section><h2>Corpus</h2><div class="columns">{"".join(parts)}</div></section>' if parts else ""


def _details(results: Results) -> str:
    folds = []
    if evaluations := results.get("evaluations"):
        scored = [row for row in evaluations if row.get("retrieval") is not None]
        rows = [(row.get("step", "–"), f"{row['retrieval']:.1f}") for row in scored]
        folds.append(("Accuracy during training", _table(("step", "mean accuracy (%)"), rows)))
    for group, values in setting_groups(results).items():
        folds.append((f"Settings: {group}", _table(("setting", "value"), values.items())))
    if results.get("command"):
        folds.append(("Command", f"<pre>{escape(str(results['command']))}</pre>"))
    folded = "".join(f"<details><summary>{escape(name)}</summary>{body}</details>" for name, body in folds)
    return f"<section><h2>How it was made</h2>{folded}</section>" if folds else ""


def _table(heads: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


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
