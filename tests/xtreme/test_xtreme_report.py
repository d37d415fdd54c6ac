"""What is called an XTREME score, what is marked as less, and that every table says it in every markup."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from recorded_run import ATTACK

from hictl_hf.cli import compare
from hictl_hf.errors import BadInput
from hictl_hf.reports.tables import Cell, Table
from hictl_hf.xtreme import report as xtreme_report
from hictl_hf.xtreme import tables as xtreme_tables
from hictl_hf.xtreme.paper import COLUMNS, PAPER, paper_name
from hictl_hf.xtreme.results import XtremeResults
from hictl_hf.xtreme.tables import TaskScores
from hictl_hf.xtreme.tasks import TASKS

NASTY = r"[50% of a_b & #1 $x^2$ {~} \emph |"


def task(name: str, score: float, **changes: Any) -> dict[str, Any]:
    """A task whose score is the one given, in all languages; in question answering F1 is 6 above it and EM 6 below."""
    column = COLUMNS[name]
    numbers = [score] if len(column["metrics"]) == 1 else [score + 6, score - 6]
    rows = {language: dict(zip(column["metrics"], numbers)) for language in column["languages"]}
    return {**column, "languages": rows, "train": "train en, 7 rows", "model_selection": "en dev", **changes}


def run(**tasks: Any) -> dict[str, Any]:
    """Nine complete tasks with scores 10, 20, ..., 90 in the paper's order, but for those given; None: not run."""
    nine = {name: task(name, 10.0 * number) for number, name in enumerate(COLUMNS, 1)} | tasks
    return {
        "encoder": "toy",
        "setting": "zero-shot",
        "size": "base",
        "seed": 42,
        "command": "python run_xtreme.py --model_name_or_path toy",
        "tasks": {name: made for name, made in nine.items() if made is not None},
    }


# The report's functions on the values of results files.


def typed(runs: dict[str, dict[str, Any]]) -> dict[str, XtremeResults]:
    return {name: XtremeResults.from_dict(values) for name, values in runs.items()}


def task_scores(values: dict[str, Any]) -> dict[str, TaskScores]:
    return xtreme_tables.task_scores(XtremeResults.from_dict(values))


def all_tables(runs: dict[str, dict[str, Any]]) -> list[Table]:
    return xtreme_tables.all_tables(typed(runs))


def main_table(runs: dict[str, dict[str, Any]]) -> Table:
    return xtreme_tables.main_table(typed(runs))


def group_table(runs: dict[str, dict[str, Any]]) -> Table:
    return xtreme_tables.group_table(typed(runs))


def gap_table(runs: dict[str, dict[str, Any]]) -> Table:
    return xtreme_tables.gap_table(typed(runs))


def language_tables(runs: dict[str, dict[str, Any]]) -> list[Table]:
    return xtreme_tables.language_tables(typed(runs))


def protocol_table(name: str, values: dict[str, Any]) -> Table:
    return xtreme_tables.protocol_table(name, XtremeResults.from_dict(values))


def write_report(runs: dict[str, dict[str, Any]], folder: Path) -> Path:
    return xtreme_report.write_report(typed(runs), folder)


def headline(runs: dict[str, dict[str, Any]]) -> str:
    return xtreme_report.headline(typed(runs))


def rows(table: Table) -> dict[str, list[str]]:
    """The texts of the cells of each row, by the text of its first."""
    return {row[0].text: [cell.text for cell in row[1:]] for section in table.sections.values() for row in section}


def notes(table: Table, name: str) -> list[tuple[str, ...]]:
    [row] = [row for section in table.sections.values() for row in section if row[0].text == name]
    return [cell.notes for cell in row[1:]]


# --- the published numbers ------------------------------------------------------------------------------------------


def test_columns_are_the_tasks_of_the_driver() -> None:
    known = [(task.name, task.title, task.group, task.metrics, task.languages) for task in TASKS[: len(COLUMNS)]]
    assert known == [
        (name, column["title"], column["group"], tuple(column["metrics"]), tuple(column["languages"]))
        for name, column in COLUMNS.items()
    ]


def test_a_number_from_memory_is_never_shown_without_its_mark() -> None:
    runs = {"toy": {**run(), "size": "large"}}
    marked = 0
    for table in language_tables(runs):
        for place, head in enumerate(table.heads):
            if any("From memory" in note for note in head.notes):
                for row in rows(table).values():
                    assert row[place - 1] == "–" or row[place - 1].endswith("†")
                    marked += row[place - 1].endswith("†")
    assert marked == 15 + 7 + 3 + 3 + 11 + 7 + 9 + 4 + 6  # languages, then the averages that are known


# --- the paper's table ----------------------------------------------------------------------------------------------


def test_the_table_of_a_complete_run_worked_by_hand() -> None:
    # Task scores 10, 20, ..., 90: their mean is 50; 56/44 is the F1 and EM of score 50.
    assert main_table({"toy": run()}).markdown().splitlines() == [
        "| model | XNLI | PAWS-X | POS | NER | XQuAD | MLQA | TyDiQA | BUCC | Tatoeba | average |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        "| *zero-shot* |  |  |  |  |  |  |  |  |  |  |",
        "| mBERT [1, 2] | 65.4 | 81.9 | 70.3 | 62.2 | 64.5/49.4 | 61.4/44.2 | 59.7/43.9 | 56.7 | 38.7 | 59.6 |",
        "| XLM [1, 2] | 69.1 | 80.9 | 70.1 | 61.2 | 59.8/44.3 | 48.5/32.6 | 43.6/29.1 | 56.8 | 32.6 | 55.5 |",
        "| XLM-R, base [1] | 76.2 | – | – | – | – | 63.7/46.3 | – | – | – | – |",
        "| HiCTL, base [1] | 77.3 | 84.5 | 71.4 | 64.1 | 73.5/58.7 | 65.8/47.6 | 61.9/42.8 | – | – | – |",
        "| **toy** | 10.0 | 20.0 | 30.0 | 40.0 | 56.0/44.0 | 66.0/54.0 | 76.0/64.0 | 80.0 | 90.0 | **50.0** |",
        "",
        (
            "In %. Accuracy: XNLI, PAWS-X, Tatoeba; F1: POS, NER, BUCC; F1/EM: XQuAD, MLQA, TyDiQA. "
            "Average: of nine task scores, (F1 + EM) / 2 counting as one. Bold names: our runs."
        ),
        "",
        "[1] As printed in Wei et al., On Learning Universal Representations Across Languages, ICLR 2021, Table 1.",
        "",
        "[2] From XTREME (Hu et al., 2020), says the caption.",
    ]


def test_scores_are_means_over_languages_worked_by_hand() -> None:
    languages = {
        "de": {"f1": 90.0, "precision": 1.0},
        "fr": {"f1": 80.0, "precision": 1.0},
        "ru": {"f1": 40.0, "precision": 1.0},
        "zh": {"f1": 30.0, "precision": 1.0},
    }
    scores = task_scores(run(bucc2018=task("bucc2018", 0.0, languages=languages)))["bucc2018"]
    assert scores.complete and scores.cell.text == "60.0" and scores.score == 60.0


INCOMPLETE = {
    "a language is missing": (
        {
            "languages": {"de": {"f1": 60.0}, "fr": {"f1": 50.0}, "ru": {"f1": 43.0}},
            "missing": {"zh": "no zh-en.test.zh"},
        },
        "51.0 (3 of 4)",
        ("Without zh: no XX-en.test.XX.",),
    ),
    "languages are missing for the same reason": (
        {
            "languages": {"de": {"f1": 60.0}},
            "missing": {code: f"no file b/test-{code}.tsv" for code in ("zh", "fr", "ru")},
        },
        "60.0 (1 of 4)",
        ("Without fr, ru, zh: no file b/test-XX.tsv.",),
    ),
    "languages are missing for different reasons, one without any": (
        {"languages": {"de": {"f1": 60.0}, "fr": None}, "missing": {"ru": "no file"}},
        "60.0 (1 of 4)",
        ("Without fr: no gold labels.", "Without ru: no file.", "Without zh: not run."),
    ),
    "a score was not finite": (
        {"languages": {"de": {"f1": 60.0}, "fr": {"f1": 40.0}, "ru": {"f1": None}, "zh": {"f1": float("nan")}}},
        "50.0 (2 of 4)",
        ("Without ru, zh: not a number.",),
    ),
    "a trial": (
        {"note": "trial: scored on dev"},
        "trial 80.0",
        ("Trial, not an XTREME score: scored on dev.",),
    ),
    "more languages than XTREME's": (
        {"languages": {name: {"f1": 80.0} for name in ("de", "fr", "ru", "zh", "ja", "pl")}},
        "trial 80.0",
        ("Trial, not an XTREME score: also in ja, pl, which XTREME lacks.",),
    ),
    "a trial of some languages": (
        {
            "languages": {"de": {"f1": 60.0}, "fr": {"f1": 50.0}, "ru": {"f1": 43.0}},
            "note": "Threshold of the same set.",
        },
        "trial 51.0 (3 of 4)",
        ("Trial, not an XTREME score: Threshold of the same set.", "Without zh: not run."),
    ),
    "no language": (
        {"languages": {}, "missing": {code: "no translations to train on" for code in ("de", "fr", "ru", "zh")}},
        "–",
        ("No score: no translations to train on.",),
    ),
    "no language, with a note": (
        {"languages": {}, "note": "no translations to train on"},
        "–",
        ("No score: no translations to train on.",),
    ),
    "no language of a trial": (
        {
            "languages": {},
            "missing": dict.fromkeys(("de", "fr", "ru", "zh"), "no file"),
            "note": "trial: scored on dev",
        },
        "–",
        ("No score: no file.",),
    ),
    "no gold at all": (
        {"languages": dict.fromkeys(("de", "fr", "ru", "zh"))},
        "–",
        ("No score: no gold labels.",),
    ),
}


@pytest.mark.parametrize("case", INCOMPLETE)
def test_what_is_no_xtreme_score_is_marked_says_why_and_enters_no_average(case: str) -> None:
    changes, cell, why = INCOMPLETE[case]
    runs = {"toy": run(bucc2018=task("bucc2018", 80.0, **changes))}
    table = main_table(runs)
    assert rows(table)["toy"][-3:] == [cell, "90.0", "–"]
    assert notes(table, "toy")[-3:] == [why, (), ()]
    assert rows(group_table(runs))["toy"] == ["15.0", "35.0", "60.0", "–"]


def test_a_task_that_was_not_run_is_a_dash_with_a_note() -> None:
    table = main_table({"toy": run(udpos=None, panx=None)})
    assert rows(table)["toy"][2:4] == ["–", "–"] and rows(table)["toy"][-1] == "–"
    assert table.markdown().endswith("\n[3] No score: not run.")


def test_a_language_code_is_replaced_in_file_names_only() -> None:
    missing = {"id": "no answer id in mlqa/test-context-id-question-id.json", "tr": "no b/tr-en.dev.tr"}
    scores = task_scores(run(xquad=task("xquad", 5.0, languages={}, missing=missing)))["xquad"]
    assert scores.reason("id") == "no answer id in mlqa/test-context-XX-question-XX.json"
    assert scores.reason("tr") == "no b/XX-en.dev.XX"


def test_settings_come_in_the_papers_order_each_with_its_own_rows() -> None:
    runs = {
        "all": {**run(), "setting": "translate-train-all"},
        "one": {**run(), "setting": "translate-train"},
        "none": run(),
    }
    sections = main_table(runs).sections
    assert list(sections) == ["zero-shot", "translate-train", "translate-train-all"]
    assert [[row[0].text for row in section][-1] for section in sections.values()] == ["none", "one", "all"]
    assert rows(main_table(runs))["HiCTL, base"][0] == "80.0"  # the last one, translate-train-all


def test_a_run_on_other_examples_than_the_first_has_a_note() -> None:
    def signed(version: str = "2", **data: str) -> dict[str, Any]:
        texts = {name: f"language:{name}|data:{of}|layer:8|version:{version}" for name, of in data.items()}
        return run(bucc2018=task("bucc2018", 80.0, signatures=texts))

    runs = {
        "none": run(), "a": signed(de="1", fr="2", ru="3"), "same": signed(de="1", fr="2", zh="9"),
        "other": signed(de="7", fr="2", ru="8"), "older": signed("1", de="7"),
    }  # fmt: skip
    [rows] = main_table(runs).sections.values()
    notes = {row[0].text: row[1 + [*COLUMNS].index("bucc2018")].notes for row in rows if row[0].text in runs}
    assert notes == dict.fromkeys(runs, ()) | {"other": ("In de, ru on other examples or labels than a.",)}
    assert "In de, ru on other examples" in main_table(runs).text()


# --- groups, gap, languages -----------------------------------------------------------------------------------------


def test_groups_are_means_of_task_scores_worked_by_hand() -> None:
    # (10 + 20) / 2, (30 + 40) / 2, (50 + 60 + 70) / 3, (80 + 90) / 2
    assert rows(group_table({"toy": run()})) == {"toy": ["15.0", "35.0", "60.0", "85.0"]}


def test_the_transfer_gap_is_english_minus_the_mean_of_the_others_worked_by_hand() -> None:
    pawsx = {"en": {"accuracy": 90.0}, "de": {"accuracy": 80.0}, "ja": {"accuracy": 50.0}, "fr": None}
    mlqa = {"en": {"f1": 80.0, "exact_match": 60.0}, "de": {"f1": 85.0, "exact_match": 50.0}}
    xnli = {"de": {"accuracy": 50.0}}
    runs = {
        "toy": run(
            pawsx=task("pawsx", 0, languages=pawsx, note="dev"),
            mlqa=task("mlqa", 0, languages=mlqa),
            xnli=task("xnli", 0, languages=xnli),
            tydiqa=task("tydiqa", 0, languages={"en": {"f1": 1.0, "exact_match": 1.0}}),
        )
    }
    table = gap_table(runs)
    assert [head.text for head in table.heads[1:]] == ["XNLI", "PAWS-X", "POS", "NER", "XQuAD", "MLQA", "TyDiQA"]
    # 90 - (80 + 50) / 2; 80 - 85 and 60 - 50; no English in XNLI; nothing but English in TyDiQA
    assert rows(table)["toy"] == ["–", "trial 25.0 (3 of 7)", "0.0", "0.0", "0.0/0.0", "-5.0/10.0 (2 of 7)", "–"]


def test_a_gap_that_rounds_to_zero_has_no_sign() -> None:
    pawsx = {"en": {"accuracy": 50.0}, "de": {"accuracy": 50.04}}
    assert rows(gap_table({"toy": run(pawsx=task("pawsx", 0, languages=pawsx))}))["toy"][1] == "0.0 (2 of 7)"


def test_the_table_by_language_keeps_xtremes_order_worked_by_hand() -> None:
    languages = {"zh": {"f1": 30.0}, "fr": {"f1": 20.0}, "de": {"f1": 13.0}}
    runs = {
        "toy": {**run(bucc2018=task("bucc2018", 0, languages=languages, missing={"ru": "no file"})), "size": "large"},
        "other": {**run(), "size": "large"},
        "third": {**run(bucc2018=None), "size": "large"},
    }
    trial = {"toy": run(bucc2018=task("bucc2018", 1.0, note="dev"))}
    [marked] = [table for table in language_tables(trial) if table.title == "BUCC"]
    assert marked.heads[-1].text == "toy (trial)"
    [table] = [table for table in language_tables(runs) if table.title == "BUCC"]
    assert table.markdown().splitlines() == [
        "| language | XLM-R, large, zero-shot [1] | **toy** [2] | **other** |",
        "|---|---:|---:|---:|",
        "| de | 67.6† | 13.0 | 80.0 |",
        "| fr | 66.5† | 20.0 | 80.0 |",
        "| ru | 73.5† | – | 80.0 |",
        "| zh | 56.7† | 30.0 | 80.0 |",
        "| average | 66.0† | **21.0 (3 of 4)** | **80.0** |",
        "",
        "F1 by language, in %.",
        "",
        "[1] † From memory, to be checked in Hu et al., XTREME, ICML 2020.",
        "",
        "[2] Without ru: no file.",
    ]


def test_tables_by_language_are_those_of_scored_tasks() -> None:
    only = {name: None for name in COLUMNS if name not in ("xnli", "panx")}
    runs = {"toy": run(**only), "other": run(**only, panx=task("panx", 0, languages={}))}
    tables = language_tables(runs)
    own = [table for table in tables if "published" not in table.title]
    assert [table.title for table in own] == ["XNLI", "NER"]
    assert [head.text for head in own[1].heads] == ["language", "toy"]
    assert list(rows(own[1])) == [*COLUMNS["panx"]["languages"], "average"]


@pytest.mark.parametrize("setting", ["zero-shot", "translate-train-all"])
@pytest.mark.parametrize("size", ["base", "large"])
def test_a_run_stands_by_language_next_to_every_published_row(size: str, setting: str) -> None:
    tables = language_tables({"toy": {**run(), "size": size, "setting": setting}})
    found = [head.text for table in tables for head in table.heads if head.text not in ("language", "toy")]
    assert sorted(found) == sorted(f"{paper_name(row)}, {row['setting']}" for row in PAPER["per_language"])
    assert all([head.text for head in table.heads][-1] == "toy" for table in tables)
    [first] = [table for table in tables if table.title == "XNLI"]
    assert {head.text.rpartition(", ")[2] for head in first.heads[1:-1]} == {setting}, "its own setting comes first"


def test_a_tenth_task_has_its_table_and_its_gap_but_no_part_in_xtremes_averages() -> None:
    languages = {"en": {"accuracy": 80.0}, "qu": {"accuracy": 50.0}}
    xcopa = {"title": "XCOPA", "group": "classification", "metrics": ["accuracy"], "languages": languages}
    runs = {"ten": run(xcopa=xcopa), "nine": run()}
    assert rows(main_table(runs))["ten"] == rows(main_table(runs))["nine"]
    assert rows(group_table(runs))["ten"] == rows(group_table(runs))["nine"]
    assert [cells[-1] for cells in rows(gap_table(runs)).values()] == ["30.0", "–"]
    table = language_tables(runs)[-1]
    assert table.title == "XCOPA" and rows(table) == {"en": ["80.0"], "qu": ["50.0"], "average": ["65.0"]}


def test_the_protocol_says_what_a_number_was_made_with() -> None:
    chosen = {"folder": "00", "learning_rate": 2e-5, "batch_size": 32, "epochs": 10, "seed": 1, "dev": 83.25}
    made = task("panx", 1.0, chosen=chosen, candidates=[chosen, chosen], note="a note")
    results = {**run(panx=made), "version": "0.4.0"}
    table = protocol_table("toy", results)
    assert table.caption == "setting zero-shot, size base, seed 42, version 0.4.0"
    assert rows(table)["XNLI"] == ["train en, 7 rows", "en dev", "–", "–"]
    settings = "learning rate 2e-05, batch size 32, epochs 10, seed 1, dev 83.25; best of 2"
    assert rows(table)["NER"] == ["train en, 7 rows", "en dev", settings, "a note"]


# --- markup ---------------------------------------------------------------------------------------------------------


def nasty() -> dict[str, Any]:
    """A run whose every text tries to become markup."""
    made = task("panx", 1.0, note=NASTY + ATTACK, missing={"ar": ATTACK}, train=NASTY, signatures={"de": ATTACK})
    made["languages"].pop("ar")
    other = {"title": NASTY, "group": ATTACK, "metrics": ["f1"], "languages": {NASTY: {"f1": 1.0}}}
    return {**run(panx=made, other=other), "setting": NASTY + ATTACK, "command": ATTACK, "encoder": NASTY, "size": None}


def test_latex_escapes_what_is_special() -> None:
    cells = [[Cell("a_b & 50%", ("#1",), strong=True), Cell(r"$\{~}^ <|> – †")]]
    table = Table("T", "", [Cell("x"), Cell("y")], {"s_1": cells})
    text = table.latex()
    assert r"\textbf{a\_b \& 50\%}\textsuperscript{1} & \$\textbackslash{}\{\textasciitilde{}\}" in text
    assert r"\textasciicircum{} \textless{}\textbar{}\textgreater{} -- \dag{} \\" in text
    assert Table("T", "", [Cell("[x]")], {}).latex().count("{[}x]") == 1  # no option of a \\\\
    assert r"\multicolumn{2}{l}{\emph{s\_1}} \\" in text and r"\textsuperscript{1}~\#1\par" in text


@pytest.mark.parametrize("results", [run(), nasty()], ids=["plain", "nasty"])
def test_latex_is_balanced_and_every_row_has_every_cell(results: dict[str, Any]) -> None:
    for table in all_tables({"toy": results, NASTY: {**results, "size": "large"}}):
        text = table.latex().replace("\\\\", "\n")
        bare = re.sub(r"\\[&%$#_{}]", "", text)
        assert bare.count("{") == bare.count("}") and not re.search(r"[%$#_^~]", bare.replace("}~", ""))
        depth = 0
        for character in bare:
            depth += {"{": 1, "}": -1}.get(character, 0)
            assert depth >= 0
        assert re.findall(r"\\(begin|end)\{(\S+?)\}", bare) == [
            *(("begin", "table*"), ("begin", "tabular"), ("end", "tabular"), ("end", "table*"))
        ]
        lines = [line for line in bare.splitlines() if "&" in line]
        assert len(lines) > 1 and {line.count("&") for line in lines} == {len(table.heads) - 1}


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no LaTeX here")
def test_latex_compiles(tmp_path: Path) -> None:
    tables = "\n\n".join(map(Table.latex, all_tables({NASTY: nasty(), "toy": run()})))
    preamble = r"\documentclass{article}\usepackage[T1]{fontenc}\usepackage{booktabs}\begin{document}"
    (tmp_path / "x.tex").write_text(f"{preamble}\n{tables}\n\\end{{document}}\n", encoding="utf-8")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "x.tex"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)


def test_markdown_rows_have_every_cell_whatever_a_name_holds() -> None:
    for table in all_tables({NASTY: nasty(), ATTACK: nasty()}):
        lines = [line for line in table.markdown().splitlines() if line.startswith("| ")]
        assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(table.heads) + 1}
        assert "<script>" not in table.markdown().replace("\\<", "")


def test_text_for_the_terminal_is_aligned() -> None:
    table = main_table({"toy": run(bucc2018=None), "a longer name": run()})
    heads, rule, *lines = table.text().splitlines()
    assert rule.startswith("zero-shot -----") and len(rule) == len(heads)
    shown, _, foot = "\n".join(lines).partition("\n\n")
    assert {len(line) for line in shown.splitlines()} == {len(heads)}
    assert foot.splitlines()[0].startswith("[1] As printed in") and foot.endswith("[3] No score: not run.")


class Tags(HTMLParser):
    """Checks that tags are closed in the order they were opened, and counts the cells of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


# --- the report -----------------------------------------------------------------------------------------------------


def test_the_report_is_written_whole_and_needs_no_other_file(tmp_path: Path) -> None:
    layers = {"mean": [10.0, 30.0, 20.0], "cls": [5.0, None, 6.0]}
    runs = {"toy": run(tatoeba=task("tatoeba", 90.0, layers=layers)), "other": {**run(panx=None), "size": "large"}}
    page = write_report(runs, tmp_path)
    names = ("languages-1.png", "languages-2.png", "layers-1-tatoeba.png", "report.html", "report.md", "table.tex")
    assert sorted(path.name for path in tmp_path.iterdir()) == list(names)
    text = page.read_text(encoding="utf-8")
    assert "2 runs on XTREME" in text and "<b>50.0</b>on average: toy" in text
    assert "<b>8</b>of 9 tasks complete: other" in text and "--model_name_or_path toy" in text
    assert text.count("data:image/png;base64,") == 3
    assert not re.search(r"<link|<script|@import|url\(|(src|href)=.?http", text) and "$" not in text
    for part in (text, (tmp_path / "report.md").read_text("utf-8"), (tmp_path / "table.tex").read_text("utf-8")):
        assert all(word in part for word in ("66.0/54.0", "HiCTL, large", "transfer gap", "Tatoeba"))
    written = (tmp_path / "report.md").read_text("utf-8")
    assert all(f"]({name})" in written for name in names[:3])


def test_the_heat_map_is_given_scores_by_group_with_trials_and_parts_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, Any] = {}

    def draw(groups: dict[str, Any], path: Path, name: str) -> Path:
        drawn.update(groups)
        path.write_bytes(b"picture")
        return path

    monkeypatch.setattr(xtreme_report, "plot_languages_and_tasks", draw)
    bucc = task("bucc2018", 0, languages={"de": {"f1": 70.0}, "fr": None}, note="dev")
    write_report({"toy": run(bucc2018=bucc, tatoeba=None)}, tmp_path)
    assert list(drawn) == ["classification", "structured prediction", "question answering", "retrieval"]
    assert list(drawn["classification"]) == ["XNLI", "PAWS-X"]
    assert list(drawn["retrieval"]) == ["BUCC\n(trial)\n1 of 4"]  # Tatoeba was not run
    assert drawn["retrieval"]["BUCC\n(trial)\n1 of 4"] == {"de": 70.0, "fr": None, "ru": None, "zh": None}
    assert drawn["question answering"]["MLQA"]["zh"] == 60.0


def test_the_page_is_well_formed_and_text_never_becomes_markup(tmp_path: Path) -> None:
    text = write_report({NASTY: nasty(), ATTACK: nasty()}, tmp_path).read_text(encoding="utf-8")
    assert "<script" not in text and "&lt;script&gt;" in text
    tags = Tags()
    tags.feed(text)
    others = text.count(", other published rows, ")
    assert tags.open == [] and tags.seen.count("table") == 3 + 10 + 2 + others  # main, groups, gap; tasks; protocols


@pytest.mark.parametrize(
    ("results", "words"),
    [
        (run(), "toy on XTREME: 50.0 on average"),
        (run(xnli=None), "toy on XTREME: 8 of 9 tasks complete"),
        ({**run(), "tasks": {}}, "toy on XTREME: 0 of 9 tasks complete"),
    ],
)
def test_the_headline_says_how_far_a_run_is(results: dict[str, Any], words: str, tmp_path: Path) -> None:
    assert headline({"toy": results}) == words
    assert words in write_report({"toy": results}, tmp_path).read_text("utf-8")


# --- the command ----------------------------------------------------------------------------------------------------


def saved(folder: Path, results: Any) -> Path:
    folder.mkdir()
    (folder / "results.json").write_text(results if isinstance(results, str) else json.dumps(results), encoding="utf-8")
    return folder / "results.json"


def test_runs_are_named_by_what_tells_them_apart(tmp_path: Path) -> None:
    one, two = saved(tmp_path / "a", run()), saved(tmp_path / "b", {**run(), "encoder": "mBERT"})
    three, four = saved(tmp_path / "c", {**run(), "setting": "translate-train"}), saved(tmp_path / "d", run())
    assert list(xtreme_report.read_runs([one, two])) == ["toy", "mBERT"]
    assert list(xtreme_report.read_runs([one, three])) == ["toy, zero-shot", "toy, translate-train"]
    found = xtreme_report.read_runs([one, two, three, four])
    folders = [f"toy, zero-shot ({tmp_path / name})" for name in "ad"]
    assert list(found) == [folders[0], "mBERT", "toy, translate-train", folders[1]]
    assert found["mBERT"].encoder == "mBERT"
    other = one.rename(one.with_name("old.json"))
    one.write_text(json.dumps(run()), "utf-8")
    assert list(xtreme_report.read_runs([one, other])) == [f"toy, zero-shot ({path})" for path in (one, other)]


def test_a_task_that_xtreme_knows_needs_no_title(tmp_path: Path) -> None:
    bare = {**run(), "tasks": {"xnli": {"languages": {"de": {"accuracy": 50.0}}}}}
    runs = xtreme_report.read_runs([saved(tmp_path / "a", bare)])
    assert rows(xtreme_tables.main_table(runs))["toy"][0] == "50.0 (1 of 15)"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{\n"a"', r"results.json: cannot be read \(.* line 2"),
        ("[]", "results.json: is .*; allowed is an object"),
        ({"setting": "zero-shot", "tasks": {}}, "encoder is missing"),
        ({"encoder": "toy", "setting": "zero-shot"}, "tasks is missing"),
        ({**run(), "tasks": []}, "tasks is .*; allowed is an object"),
        ({**run(), "tasks": {"xcopa": {"title": "X"}}}, "tasks.xcopa.group is missing"),
        ({**run(), "schema_version": 99}, "schema_version is 99; allowed is 1"),
    ],
)
def test_another_file_gives_one_clear_error(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message) as error:
        xtreme_report.read_runs([saved(tmp_path / "run", content)])
    assert "run_xtreme.py" in str(error.value) or "Read it with the release that wrote it" in str(error.value)


def test_the_command_compares_runs_and_explains_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [saved(tmp_path / "a", run()), saved(tmp_path / "b", {**run(xnli=None), "encoder": "other"})]
    compare.main(list(map(str, paths)))
    printed = capsys.readouterr().out
    assert re.search(r"^toy +10\.0 .* 50\.0$", printed, re.MULTILINE) and "transfer gap" in printed
    assert re.search(r"^other +– \[3\] .* –$", printed, re.MULTILINE)
    with pytest.raises(SystemExit):
        compare.main([])
    with pytest.raises(BadInput, match="nowhere.json: cannot be read"):
        compare.main([str(tmp_path / "nowhere.json")])
