"""The page of a run, `report.html`: one file with its pictures inside, that needs no network."""

from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ..files import write_text
from ..reports.page import data_uri, render
from ..reports.plots import plot_layers
from ..reports.results import duration, to_json
from ..retrieval.plots import plot_retrieval
from .card import run_snippet
from .plots import plot_losses, plot_shares, plot_tsne
from .results import PretrainingResults, RetrievalResults, headline, lead
from .scoring import Scores

CAPTIONS = {
    "retrieval": (
        "Languages",
        (
            "One row for each language, best first: grey is the model before, blue the model after, orange a language "
            "that lost. The longer the bar, the larger the change; the dashed lines are the means over languages."
        ),
    ),
    "guard": ("Languages and domains not trained on", "The same for the guard: what was to stay as it is."),
    "shares": (
        "How much of the start is kept",
        (
            "Accuracy on dev pairs by the share of the trained weights in the average with those of the start. The "
            "dashed line marks the chosen share: of those at which the guard is not below the start's, the one with "
            "the best mean of dev and guard."
        ),
    ),
    "losses": (
        "Training",
        (
            "The total loss and each of its terms. In the last panel: with λ near 1 hard negatives are unchanged; the "
            "more confident the model (p_avg), the smaller λ, and the closer negatives are moved to their query."
        ),
    ),
    "layers": (
        "Layers",
        (
            "Accuracy on the dev set by layer and pooling. The ring marks the best, which is chosen here; the scores "
            "reported come from other sentences (test)."
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


def report(
    folder: str | Path, results: PretrainingResults, before: Scores | None = None, after: Scores | None = None
) -> Path:
    """Draw the pictures of a run and write the page that holds them; returns its path."""
    drawn: dict[str, Path] = {}
    pictures = Path(folder) / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    for name, retrieval in (("retrieval", results.retrieval), ("guard", results.guard)):
        if retrieval:
            languages = retrieval.per_language.items()
            accuracies = {key: (row.untrained, row.hictl) for key, row in languages if row.hictl is not None}
            drawn[name] = plot_retrieval(accuracies, pictures / f"{name}.png", (results.before_label, "HiCTL"))
    if (interpolation := results.interpolation) and interpolation.grid:
        drawn["shares"] = plot_shares(to_json(interpolation.grid), interpolation.share, pictures / "shares.png")
    drawn["losses"] = plot_losses(results.history, pictures / "losses.png")
    if before and after and after.pictured:
        drawn["tsne"] = plot_tsne(before.pictured, after.pictured, pictures / "tsne.png", results.seed or 0)
    if results.retrieval and results.retrieval.poolings_compared() > 1:
        drawn["layers"] = plot_layers(
            results.retrieval.by_layer, pictures / "layers.png", chosen=results.retrieval.protocol.hictl
        )
    return write_report(results, folder, drawn)


def write_report(results: PretrainingResults, folder: str | Path, pictures: Mapping[str, str | Path]) -> Path:
    """Write `report.html`, one page that needs no other file and no network; returns its path."""
    page = render(
        Path(__file__).with_name("report.html"),
        headline=headline(results),
        lead=lead(results),
        facts=_facts(results),
        pictures=Markup("".join(_figure(name, Path(path)) for name, path in pictures.items())),
        languages=Markup(
            _languages(results, results.retrieval, "All languages")
            + _languages(results, results.guard, "All languages of the guard")
        ),
        corpus=Markup(_corpus(results)),
        details=Markup(_details(results)),
        snippet=run_snippet("path/to/this/folder", results),
        signature=results.signature(),
    )
    return write_text(Path(folder) / "report.html", page)


def _facts(results: PretrainingResults) -> list[tuple[str, str]]:
    before, after = results.means()
    number, unit = duration(results.train_seconds).split() if results.train_seconds else ("", "")
    return [
        (results.before_label, "" if before is None else f"{before:.1f}%"),
        ("HiCTL", "" if after is None else f"{after:.1f}%"),
        ("language" if results.languages == 1 else "languages", str(results.languages or "")),
        (f"sentence pairs{' to draw from' * results.is_part}", f"{results.pairs:,}" if results.pairs else ""),
        (f"{unit} of training", number),
    ]


def _figure(name: str, path: Path) -> str:
    title, caption = map(escape, CAPTIONS.get(name, (name, "")))
    return (
        f'<section><h2>{title}</h2><figure><img alt="{title}" src="{data_uri(path)}"><figcaption>{caption}</figcaption>'
        "</figure></section>\n"
    )


def _languages(results: PretrainingResults, retrieval: RetrievalResults | None, title: str) -> str:
    """A table of the languages of a retrieval, best first; empty if none was scored."""
    names = ("language", "sentences", results.before_label, "HiCTL", "gain")
    heads = "".join(f'<th scope="col"><button>{escape(name)}</button></th>' for name in names)
    rows = []
    for name, accuracy in retrieval.by_accuracy() if retrieval else []:
        gain = accuracy.gain or 0.0
        bar = f'class="{"fall" if gain < 0 else "rise"}" style="--width:{min(100.0, abs(gain)):.1f}%" '
        values = [
            "" if value is None else str(value)
            for value in (name, accuracy.sentences, accuracy.untrained, accuracy.hictl, accuracy.gain)
        ]
        rows.append("<tr>")
        for style, value, text in zip(("", "", "", "", bar), values, accuracy.cells(name)):
            rows.append(f'<td {style}data-value="{escape(value)}">{escape(text)}</td>')
        rows.append("</tr>")
    table = (
        f"<section><h2>{escape(title)}</h2><p>Accuracy in per cent; a click on a heading sorts.</p>"
        f'<div class="scroll"><table class="sortable"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )
    return table if rows else ""


def _corpus(results: PretrainingResults) -> str:
    parts = []
    corpus = results.corpus
    for counts, title, head, unit in (
        (corpus.kept, "Kept", "languages", "rows"),
        (corpus.skipped, "Skipped", "reason", "rows"),
        (corpus.changed, "Changed", "kind", "texts"),
    ):
        if counts:
            rows = [(name, f"{count:,}") for name, count in sorted(counts.items(), key=lambda row: -row[1])]
            title = f"{title}: {sum(counts.values()):,} {unit}"
            parts.append(f'<div><h3>{title}</h3><div class="scroll">{_table((head, unit), rows)}</div></div>')
    return f'<section><h2>Corpus</h2><div class="columns">{"".join(parts)}</div></section>' if parts else ""


def _details(results: PretrainingResults) -> str:
    folds = []
    if results.evaluations:
        scored = [row for row in results.evaluations if row.retrieval is not None]
        rows = [(row.step, f"{row.retrieval:.1f}") for row in scored]
        folds.append(("Accuracy during training", _table(("step", "mean accuracy (%)"), rows)))
    for group, values in results.setting_groups().items():
        folds.append((f"Settings: {group}", _table(("setting", "value"), values.items())))
    if results.command:
        folds.append(("Command", f"<pre>{escape(results.command)}</pre>"))
    folded = "".join(f"<details><summary>{escape(name)}</summary>{body}</details>" for name, body in folds)
    return f"<section><h2>How it was made</h2>{folded}</section>" if folds else ""


def _table(heads: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
