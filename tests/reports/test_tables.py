"""One table says the same as text, Markdown, LaTeX and HTML, and its text never becomes markup."""

import pytest

from hictl_hf.reports.tables import NONE, Cell, Table, escape_latex, escape_markdown

NOTE, OTHER = "with a|b", "from 5 of 10"
TABLE = Table(
    "Scores", "In %.", [Cell("run"), Cell("BLEU", (OTHER,))],
    {"": [[Cell("base"), Cell("31.5", (NOTE, OTHER))]], "ours": [[Cell("a_b", strong=True), Cell(NONE, (NOTE,))]]},
)  # fmt: skip


def test_text_is_aligned_and_notes_are_numbered_as_they_come_up() -> None:
    assert TABLE.text().splitlines() == [
        "run      BLEU [1]",
        "-----------------",
        "base  31.5 [2, 1]",
        "ours ------------",
        "a_b         – [2]",
        "",
        "[1] from 5 of 10",
        "[2] with a|b",
    ]


def test_markdown_has_the_caption_and_the_notes_below() -> None:
    assert TABLE.markdown().splitlines() == [
        *("| run | BLEU [1] |", "|---|---:|", "| base | 31.5 [2, 1] |", "| *ours* |  |", r"| **a_b** | – [2] |", ""),
        *("In %.", "", "[1] from 5 of 10", "", r"[2] with a\|b"),
    ]


def test_latex_is_a_float_with_its_notes() -> None:
    lines = TABLE.latex().splitlines()
    assert lines[0] == r"\begin{table*}" and lines[-1] == r"\end{table*}"
    assert r"\caption{Scores. In \%.}" in lines and r"\begin{tabular}{lr}" in lines
    assert r"base & 31.5\textsuperscript{2, 1} \\" in lines and r"\textbf{a\_b} & --\textsuperscript{2} \\" in lines
    assert lines.count(r"\midrule") == 2 and r"\multicolumn{2}{l}{\emph{ours}} \\" in lines
    assert lines[-3:-1] == [
        r"\textsuperscript{1}~from 5 of 10\par", r"\textsuperscript{2}~with a\textbar{}b\par",
    ]  # fmt: skip


def test_html_has_the_caption_above_and_the_notes_below() -> None:
    assert TABLE.html() == (
        '<p>In %.</p><div class="scroll"><table><thead><tr><th scope="col">run</th>'
        '<th scope="col">BLEU<sup>1</sup></th></tr></thead>'
        "<tbody><tr><td>base</td><td>31.5<sup>2, 1</sup></td></tr>"
        '<tr class="setting"><td colspan="2">ours</td></tr><tr><td><b>a_b</b></td><td>–<sup>2</sup></td></tr>'
        "</tbody></table></div><ol><li>from 5&nbsp;of&nbsp;10</li><li>with a|b</li></ol>"
    )


def test_plain_values_become_a_table_without_notes() -> None:
    table = Table.of(["n", "share"], [[1, 0.5], ["two", None]], caption="x")
    assert table.markdown().splitlines()[2:] == ["| 1 | 0.5 |", "| two | None |", "", "x"]


@pytest.mark.parametrize(
    ("text", "in_markdown", "in_latex"),
    [
        ("a|b\n*c*", r"a\|b \*c\*", r"a\textbar{}b *c*"),
        ("<b> [x]", r"&lt;b&gt; \[x\]", r"\textless{}b\textgreater{} {[}x]"),
        ("$5 to $6", r"\$5 to \$6", r"\$5 to \$6"),
        ("50% – \\", "50% – \\\\", r"50\% -- \textbackslash{}"),
    ],
)
def test_what_is_special_is_escaped(text: str, in_markdown: str, in_latex: str) -> None:
    assert (escape_markdown(text), escape_latex(text)) == (in_markdown, in_latex)
