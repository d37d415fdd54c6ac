"""Tables as text, Markdown, LaTeX and HTML, with notes at their foot. What is in them is left to whoever makes them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

NONE = "–"
FROM_MEMORY = "†"


@dataclass(frozen=True)
class Cell:
    """A text, with the notes that the foot of the table has on it."""

    text: str
    notes: tuple[str, ...] = ()
    strong: bool = False


@dataclass(frozen=True)
class Table:
    """Rows under headings, the first cell of a row naming it; a heading may be empty."""

    title: str
    caption: str
    heads: Sequence[Cell]
    sections: Mapping[str, Sequence[Sequence[Cell]]]


def plain(table: Table) -> str:
    """The table as aligned text for the terminal."""
    heads, sections, notes = _rendered(table, str, "{}", " [{}]")
    rows = [heads, *(row for section in sections.values() for row in section)]
    widths = [max(map(len, column)) for column in zip(*rows)]

    def line(row: Sequence[str]) -> str:
        return "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))])

    lines = [line(heads)]
    for heading, section in sections.items():
        lines += [(heading and f"{heading} ").ljust(len(lines[0]), "-"), *map(line, section)]
    return "\n".join(text.rstrip() for text in [*lines, "", *(f"[{n}] {note}" for n, note in enumerate(notes, 1))])


def markdown(table: Table) -> str:
    """The table in Markdown, its notes below it."""
    heads, sections, notes = _rendered(table, escape_markdown, "**{}**", " [{}]")
    lines = [_line(heads), "|---" + "|---:" * (len(heads) - 1) + "|"]
    for heading, rows in sections.items():
        lines += [_line([f"*{heading}*", *[""] * (len(heads) - 1)])] if heading else []
        lines += map(_line, rows)
    return "\n".join(
        [*lines, "", escape_markdown(table.caption), *(f"\n[{n}] {note}" for n, note in enumerate(notes, 1))]
    )


def latex(table: Table) -> str:
    r"""The table as a LaTeX float for `\usepackage{booktabs}`, its notes below it."""
    heads, sections, notes = _rendered(table, escape_latex, r"\textbf{{{}}}", r"\textsuperscript{{{}}}")
    body = []
    for heading, rows in sections.items():
        body.append(r"\midrule")
        body += [rf"\multicolumn{{{len(heads)}}}{{l}}{{\emph{{{heading}}}}} \\"] if heading else []
        body += [" & ".join(row) + r" \\" for row in rows]
    foot = [rf"\textsuperscript{{{number}}}~{note}\par" for number, note in enumerate(notes, 1)]
    return "\n".join(
        [
            r"\begin{table*}",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\caption{{{escape_latex(f'{table.title}. {table.caption}')}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
            r"\toprule",
            " & ".join(heads) + r" \\",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            *([r"\par\smallskip\raggedright", *foot] if foot else []),
            r"\end{table*}",
        ]
    )


def html(table: Table) -> str:
    """The table in HTML, its caption above and its notes below it."""
    heads, sections, notes = _rendered(table, _html, "<b>{}</b>", "<sup>{}</sup>")
    body = []
    for heading, rows in sections.items():
        body += [f'<tr class="setting"><td colspan="{len(heads)}">{heading}</td></tr>'] if heading else []
        body += ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows]
    head = "".join(f'<th scope="col">{cell}</th>' for cell in heads)
    foot = "".join(f"<li>{note}</li>" for note in notes)
    return (
        f'<p>{escape(table.caption)}</p><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>" + (f"<ol>{foot}</ol>" if foot else "")
    )


def _rendered(
    table: Table, escaped: Callable[[str], str], strong: str, mark: str
) -> tuple[list[str], dict[str, list[list[str]]], list[str]]:
    """Heads, rows by heading, and notes in the order they first come up, equal ones once."""
    notes: dict[str, int] = {}

    def text(cell: Cell) -> str:
        numbers = ", ".join(str(notes.setdefault(note, len(notes) + 1)) for note in cell.notes)
        words = strong.format(escaped(cell.text)) if cell.strong else escaped(cell.text)
        return words + (mark.format(numbers) if numbers else "")

    heads = list(map(text, table.heads))
    sections = {escaped(heading): [list(map(text, row)) for row in rows] for heading, rows in table.sections.items()}
    return heads, sections, list(map(escaped, notes))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", text.replace("\n", " "))


def escape_latex(text: str) -> str:
    special: dict[str, str | int | None] = {character: f"\\{character}" for character in "&%$#_{}"}
    special |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}"}
    special |= {">": r"\textgreater{}", "|": r"\textbar{}", "[": "{[}", "\n": " ", NONE: "--", FROM_MEMORY: r"\dag{}"}
    return text.translate(str.maketrans(special))


def _html(text: str) -> str:
    return re.sub(r"(\d) of (\d)", r"\1&nbsp;of&nbsp;\2", escape(text))  # of "(12 of 40)"
