"""Tables and pictures of a study, written into a documentation page between two marks."""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import hictl_hf
from hictl_hf.files import write_json, write_text
from hictl_hf.reports.tables import NONE, Cell, Table

from .intervals import BASELINE, BASELINES, TESTS, TRANSFER, Estimate, find_runs, intervals_of, section_of
from .pictures import draw_pictures
from .runs import read_json

PAPER = {  # rows of the paper's Tables 1 and 3 (large, translate-train-all), by their names in xtreme/paper.json
    "lm": "XLM-R, replication",
    "word": "HiCTL + hard negatives w/o sentence contrast",
    "sentence-hard": "HiCTL + hard negatives w/o word contrast",
    "full-easy": "HiCTL",
    "unpaired": "HiCTL + hard negatives w/o MT data",
    "full": "HiCTL + hard negatives",
    "paper": "HiCTL + hard negatives",
    "paper-without-sentence": "HiCTL + hard negatives w/o sentence contrast",
    "paper-without-word": "HiCTL + hard negatives w/o word contrast",
}
ZERO_SHOT = ("XLM-R", "HiCTL")  # the two rows of the paper's Table 1 in the setting that this study trains in
PAPER_TESTS = {"tatoeba": "tatoeba", "bucc": "bucc2018", "panx": "panx"}
BEGIN, END = "<!-- written by a module of studies/ -->", "<!-- end -->"


def write_study(folder: Path, page: Path, labels: dict[str, str]) -> None:
    """Write the table between the marks of the page, pictures to images/ next to it, paired gains to gains.md.

    The folder holds the runs and gains.md. If it has their arrays, its intervals.json is written first; without them,
    as in studies/evidence/, the tables come from intervals.json.
    """
    runs = find_runs(folder, labels)
    if not runs:
        return
    if next(folder.glob("*/*/hits.npz"), None):
        write_json(folder / "intervals.json", intervals_of(runs))
    found = read_json(folder / "intervals.json")
    labels = {"start": "the starting encoder, unchanged"} | labels
    labels |= {f"continued-{name}": label for name, label in labels.items()}
    pictures = dict(draw_pictures(runs, labels, page.parent / "images"))
    shown = " ".join(f"![{alt}](images/{path.name})" for path, alt in pictures.items())
    replace_block(page, f"{main_table(found, labels)}\n\n{shown}")
    described = "; ".join(f"over {each}" for each in BASELINES.values())
    write_text(folder / "gains.md", f"Gains {described}. Paired, with 95 % intervals:\n\n{gain_table(found, labels)}\n")


def replace_block(page: Path, block: str, begin: str = BEGIN, end: str = END) -> None:
    """Write the block between the marks of the page; a page that does not exist is created."""
    text = page.read_text("utf-8") if page.exists() else f"{begin}\n{end}\n"
    before, _, rest = text.partition(begin)
    write_text(page, before + begin + "\n\n" + block.rstrip() + "\n\n" + end + rest.partition(end)[2])


def main_table(found: Mapping[str, dict[str, Any]], labels: Mapping[str, str]) -> str:
    """Scores with intervals, cost, and gains next to those of the paper."""
    rows = []
    for name, row in found.items():
        minutes = row["cpu_minutes"]
        cells = [spread(row["scores"][test]) for test in TESTS | TRANSFER]
        cells += [NONE if minutes is None else f"{minutes:.0f}"]
        for test, paper in PAPER_TESTS.items():
            own = row["gains"].get(BASELINE, {}).get(test)
            cells += [f"{spread(own and own[:1], sign='+')} / {paper_gain(name, paper)}"]
        rows.append((section_of(name), labels[name], str(row["seeds"]), *cells))
    gains = [f"gain / paper's; zero-shot, {(TESTS | TRANSFER)[test]}" for test in PAPER_TESTS]
    return table(("", "seeds", *TESTS.values(), *TRANSFER.values(), "CPU min", *gains), rows)


def gain_table(found: Mapping[str, dict[str, Any]], labels: Mapping[str, str]) -> str:
    """Differences to each baseline, on the seeds that both have, if any; baselines separated by semicolons."""
    tests = TESTS | TRANSFER
    gains = {
        name: [[spread(row["gains"].get(each, {}).get(test), sign="+") for each in BASELINES] for test in tests]
        for name, row in found.items()
    }
    rows = [(section_of(name), labels[name], *map("; ".join, cells)) for name, cells in gains.items()]
    return table(("", *TESTS.values(), *TRANSFER.values()), rows)


@cache
def paper_rows(setting: str = "translate-train-all") -> dict[str, dict[str, list[float]]]:
    """Return the paper's scores of large models by name, by default in the setting of its ablation."""
    file = json.loads((Path(hictl_hf.__file__).parent / "xtreme/paper.json").read_text("utf-8"))
    rows = [row for row in file["rows"] if (row["size"], row["setting"]) == ("large", setting)]
    return {row["model"]: row["scores"] for row in rows}


def paper_gain(name: str, test: str) -> str:
    """Return the gain of the paper's row over its XLM-R; for full HiCTL also that of zero-shot transfer."""
    name = name.removeprefix("continued-")
    row = PAPER.get(name)
    if row in (None, PAPER[BASELINE]):
        return NONE
    gains = [paper_rows()[row][test][0] - paper_rows()[PAPER[BASELINE]][test][0]]
    if name == "full":
        before, after = (paper_rows("zero-shot")[each][test][0] for each in ZERO_SHOT)
        gains.append(after - before)
    return "; ".join(f"{gain:+.1f}" for gain in gains)


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table; the first cell of a row names its section."""
    sections: dict[str, list[list[Cell]]] = {}
    for section, *cells in rows:
        sections.setdefault(section, []).append([Cell(text) for text in cells])
    return Table("", "", [Cell(head) for head in heads], sections).markdown().rstrip()


def spread(estimate: Estimate | None, sign: str = "") -> str:
    """Format as `5.5 (5.2 to 5.8)`, without an interval as `5.5`."""
    if not estimate:
        return NONE
    value, *bounds = (f"{number:{sign}.1f}" for number in estimate)
    return f"{value} ({' to '.join(bounds)})" if bounds else value
