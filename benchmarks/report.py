"""Ratios, tables and the chart of the measured seconds.

A ratio is the median over the rounds of the ratio within a round, so that batches of different length cancel out. Next
to it is the ratio at the counted floor: the floor in place of our step.
"""

from collections.abc import Iterator, Sequence
from operator import truediv
from pathlib import Path
from statistics import mean, median
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from variants import LABELS

from hictl_hf.files import write_json, write_text
from hictl_hf.reports.plots import BLUE, ORANGE, STYLE

Cell = dict[str, Any]
RATIOS = {
    "step_vs_naive_fp32": ("naive_fp32", "ours_fp32"),
    "step_vs_naive_fp32_fused": ("naive_fp32_fused", "ours_fp32"),
    "step_vs_naive_bf16": ("naive_bf16", "ours_bf16"),
    "step_vs_naive_bf16_fused": ("naive_bf16_fused", "ours_bf16"),
    "step_vs_hf_tlm": ("hf_tlm", "ours_fp32"),
    "step_vs_hf_tlm_fused": ("hf_tlm_fused", "ours_fp32"),
    "cost_vs_sentence_transformers": ("ours_fp32", "sentence_transformers"),
    "cost_vs_sentence_transformers_plain": ("ours_fp32", "sentence_transformers_plain"),
    "share_of_floor": ("floor_fp32", "ours_fp32"),
    "share_of_floor_bf16": ("floor_bf16", "ours_bf16"),
    "share_of_floor_dropout": ("floor_fp32", "ours_fp32_dropout"),
    "share_of_least_floor": ("least_floor_fp32", "ours_fp32"),
    "share_of_least_floor_bf16": ("least_floor_bf16", "ours_bf16"),
    "share_of_least_floor_dropout": ("least_floor_fp32", "ours_fp32_dropout"),
}
MEMORY_RATIOS = {
    "memory_vs_naive": ("naive_fp32", "ours_fp32"),
    "memory_vs_naive_bf16": ("naive_bf16", "ours_bf16"),
    "memory_vs_hf_tlm": ("hf_tlm", "ours_fp32"),
}
FLOOR_OF = {"ours_fp32": "floor_fp32", "ours_bf16": "floor_bf16", "ours_fp32_dropout": "floor_fp32"}
FLOORS = {"floor_fp32": "-", "floor_bf16": ":"}
HEADLINE = {"layers": 12, "pairs": 16, "text": "real"}
COLOURS = {
    "ours_bf16": BLUE,
    "ours_fp32": BLUE,
    "sentence_transformers": "#C3C8CF",
    "hf_tlm": "#C3C8CF",
    "naive_bf16": "#9AA1AB",
    "naive_fp32": "#9AA1AB",
}


def add_ratios(results: dict[str, Any]) -> None:
    """Ratios of each cell, and on top those of the headline cell, or of the first one where that was not measured."""
    results["all_ratios"] = [title_of(cell) | ratios_of(cell) for cell in results["cells"]]
    headline = ratios_of(headline_of(results))
    results |= {"headline": title_of(headline_of(results)), "ratios": headline["cpu"], "allowed": headline["allowed"]}


def headline_of(results: dict[str, Any]) -> Cell:
    return next((cell for cell in results["cells"] if title_of(cell) == HEADLINE), results["cells"][0])


def title_of(cell: Cell) -> dict[str, Any]:
    return {name: cell[name] for name in HEADLINE}


def ratios_of(cell: Cell) -> dict[str, dict[str, float | None]]:
    """Each ratio in CPU time, in wall time, and as the floor would allow; memory has one value, and no floor."""
    cpu, wall = (
        {name: ratio(cell, *rows, clock) for name, rows in RATIOS.items()} for clock in ("cpu_rounds", "wall_rounds")
    )
    allowed = {name: ratio(cell, *(FLOOR_OF.get(row, row) for row in rows)) for name, rows in RATIOS.items()}
    memory = {name: memory_ratio(cell, *rows) for name, rows in MEMORY_RATIOS.items()}
    return {"cpu": cpu | memory, "wall": wall | dict.fromkeys(memory), "allowed": allowed | dict.fromkeys(memory)}


def ratio(cell: Cell, over: str, under: str, clock: str = "cpu_rounds") -> float | None:
    variants = cell["variants"]
    if over not in variants or under not in variants:
        return None
    return median(map(truediv, variants[over][clock], variants[under][clock]))


def memory_ratio(cell: Cell, *rows: str) -> float | None:
    over, under = (cell["variants"].get(row, {}).get("transient_mb") for row in rows)
    return over / under if over and under else None


def write_report(results: dict[str, Any], path: Path) -> None:
    """The results as .json, .md and, where a step was measured on the CPU, .png."""
    write_json(path.with_suffix(".json"), results)
    write_text(path.with_suffix(".md"), "\n".join(markdown(results)) + "\n")
    if results["cells"]:
        draw_chart(headline_of(results), path.with_suffix(".png"))


def markdown(results: dict[str, Any]) -> Iterator[str]:
    yield "# Benchmark results\n"
    yield f"`{results['command']}`, {results['date']}\n"
    yield "; ".join(f"{name.replace('_', '-')} {value}" for name, value in results["machine"].items()) + ".\n"
    yield "Random weights, 250,002 words, pairs masked at 25 %, one thread. Seconds are medians over the rounds;"
    yield '"transient" is memory above what is resident when a step begins, "peak" is with it.'
    for cell, ratios in zip(results["cells"], results.get("all_ratios", ())):
        yield from cell_tables(cell, ratios)
    for parts in results.get("parts", ()):
        yield from parts_tables(parts)
    if "hard_negatives" in results:
        yield "\n## Hard negatives, forward and backward (d = 768)\n"
        rows = results["hard_negatives"]
        cells = [(r["pairs"], r["form"], digits(1000 * r["cpu_seconds"]), digits(r.get("transient_mb"))) for r in rows]
        yield from table(("pairs", "form", "CPU ms", "transient MB"), cells)
    if "translation" in results:
        yield from translation_tables(results["translation"])


def cell_tables(cell: Cell, ratios: dict[str, Any]) -> Iterator[str]:
    tokens, padded = (mean(size[name] for size in cell["sizes"]) for name in ("tokens", "padded_tokens"))
    rates = cell["rates"]
    bf16 = f"{rates['bf16'] / 1e9:.0f} in bf16" if rates["bf16"] else "imitates bf16, which is left out"
    yield f"\n## {describe(cell)}\n"
    yield f"{cell['rounds']} rounds; {tokens:,.0f} tokens in a batch, {padded:,.0f} with padding. The machine runs"
    yield f"{rates['fp32'] / 1e9:.0f} GFLOP/s in fp32, {bf16}, and streams {rates['stream'] / 1e9:.0f} GB/s."
    if cell["batches_drawn_again"]:
        yield f"{cell['batches_drawn_again']} batches were drawn again: the naive step would not fit into memory."
    columns = ("cpu_seconds", "wall_seconds", "optimiser_cpu_seconds", "transient_mb", "peak_mb")
    rows = sorted(cell["variants"].items(), key=lambda row: row[1]["cpu_seconds"])
    yield ""
    yield from table(
        ("step", "CPU s", "wall s", "of it AdamW", "transient MB", "peak MB"),
        [(LABELS[row], *(digits(values.get(column)) for column in columns)) for row, values in rows],
    )
    shown = [name for name, value in ratios["cpu"].items() if value is not None]
    yield ""
    yield from table(
        ("ratio", "CPU time", "wall time", "the floor would allow"),
        [(f"`{name}`", *(digits(ratios[kind][name]) for kind in ("cpu", "wall", "allowed"))) for name in shown],
    )


def parts_tables(parts: dict[str, Any]) -> Iterator[str]:
    yield f"\n## Where the time of our step goes: {describe(parts)}\n\nfp32, dropout off; each part timed alone.\n"
    seconds, floor = parts["seconds"], parts["floor"]
    yield from table(
        ("part", "CPU s", "share", "counted floor, s"),
        [
            (part, digits(second), f"{second / seconds['step']:.1%}", digits(floor.get(part)))
            for part, second in seconds.items()
        ],
    )
    yield "\nBoth contrastive losses, encoder passes aside, as a share of the step:\n"
    shares = [(temperature, f"{share:.1%}") for temperature, share in parts["share_of_contrasts"].items()]
    yield from table(("sampling temperature", "share"), shares)


def translation_tables(translation: dict[str, Any]) -> Iterator[str]:
    decoded, rows = translation["decoded"], translation["rows"]
    yield "\n## Translation: encoder 12×384, decoder 4×384, fp32\n"
    yield f"{decoded['sentences']} sentences of {decoded['source_tokens']:,} tokens into {decoded['target_tokens']:,}"
    yield f"by 5 beams; training steps of {translation['pairs_of_a_step']} pairs. `hf` is `EncoderDecoderModel`.\n"
    columns = ("cpu_seconds", "transient_mb", "peak_mb")
    lines = [(f"`{row}`", *(digits(values.get(column)) for column in columns)) for row, values in rows.items()]
    yield from table(("", "CPU s", "transient MB", "peak MB"), lines)
    yield ""
    rows = [(f"`{name}`", digits(value)) for name, value in translation["ratios"].items() if value is not None]
    yield from table(("ratio", "CPU time or memory"), rows)


def describe(cell: Cell) -> str:
    return f"{cell['layers']}×{cell['hidden_size']}, {cell['pairs']} pairs, {cell['text']} text"


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """Lines of a Markdown table, numbers to the right."""
    yield f"| {' | '.join(columns)} |"
    yield f"|---|{'---:|' * (len(columns) - 1)}"
    yield from (f"| {' | '.join(map(str, row))} |" for row in rows)


def digits(value: float | None) -> str:
    """Three digits that count.

    >>> [digits(value) for value in (0.06312, 2.0, 5123.4, None)]
    ['0.0631', '2.00', '5,123', '–']
    """
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def draw_chart(cell: Cell, path: Path) -> None:
    """CPU seconds of a step by variant as bars, the counted floors as lines."""
    variants = cell["variants"]
    rows = [row for row in COLOURS if row in variants]
    seconds = [variants[row]["cpu_seconds"] for row in rows]
    with rc_context({**STYLE, "axes.grid": False, "font.size": 11, "ytick.major.size": 0, "ytick.labelcolor": "black"}):
        picture = Figure(figsize=(9.5, 0.55 * len(rows) + 1.7), layout="constrained")
        axes = picture.add_subplot()
        axes.barh(rows, seconds, 0.66, color=[COLOURS[row] for row in rows])
        for row, style in [(row, style) for row, style in FLOORS.items() if row in variants]:
            floor = variants[row]["cpu_seconds"]
            axes.axvline(floor, color=ORANGE, linestyle=style, label=f"{LABELS[row]}: {floor:.2f} s")
        for row, second in zip(rows, seconds):
            write_beside_bar(axes, row, second, bar_label(cell, row))
        axes.set_yticks(rows, [LABELS[row] for row in rows])
        axes.set(xlim=(0, 1.38 * max(seconds)), xlabel="CPU seconds per training step, one thread")
        axes.invert_yaxis()
        axes.legend(loc="upper right")
        axes.set_title(f"One training step, {describe(cell)}", fontweight="bold", pad=12)
        picture.savefig(path, dpi=150)


def write_beside_bar(axes: Axes, row: str, seconds: float, label: str) -> None:
    weight = "bold" if row in FLOOR_OF else "normal"
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    place: dict[str, Any] = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
    axes.annotate(label, (seconds, row), fontweight=weight, bbox=box, **place)


def bar_label(cell: Cell, row: str) -> str:
    """The seconds, and how many of our steps they are."""
    seconds = f"{digits(cell['variants'][row]['cpu_seconds'])} s"
    ours = ratio(cell, row, "ours_bf16" if "bf16" in row else "ours_fp32")
    return f"{seconds}, all losses" if row in FLOOR_OF or ours is None else f"{seconds} = {ours:.1f}× ours"
