"""Tables with footnotes, rendered as text, Markdown, LaTeX or HTML. The text of cells is escaped."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Self

NONE = "–"  # a score that was not measured
FROM_MEMORY = "†"


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, its footnotes, and whether it is bold."""

    text: str
    notes: tuple[str, ...] = ()
    strong: bool = False


@dataclass(frozen=True)
class Table:
    """A table: section heading (may be empty) -> rows. The first cell of a row is its name.

    Equal footnotes are written once, numbered by first occurrence.
    """

    title: str
    caption: str
    heads: Sequence[Cell]
    sections: Mapping[str, Sequence[Sequence[Cell]]]

    @classmethod
    def of(cls, heads: Iterable[str], rows: Iterable[Iterable[Any]], title: str = "", caption: str = "") -> Self:
        """Make a table of one section without footnotes from plain values.

        >>> print(Table.of(["run", "BLEU"], [["base", 31.5], ["ours", 33]]).text().rstrip())
        run   BLEU
        ----------
        base  31.5
        ours    33
        """
        return cls(title, caption, [Cell(head) for head in heads], {"": [[Cell(str(x)) for x in row] for row in rows]})

    def text(self) -> str:
        """Return the rows and footnotes as aligned text for the terminal, without title and caption."""
        heads, sections, notes = self._rendered(str, "{}", " [{}]")
        rows = [heads, *(row for section in sections.values() for row in section)]
        widths = [max(map(len, column)) for column in zip(*rows)]

        def line(row: Sequence[str]) -> str:
            return "  ".join(
                [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
            )

        lines = [line(heads)]
        for heading, section in sections.items():
            lines += [(heading and f"{heading} ").ljust(len(lines[0]), "-"), *map(line, section)]
        return "\n".join(text.rstrip() for text in [*lines, "", *(f"[{n}] {note}" for n, note in enumerate(notes, 1))])

    def markdown(self) -> str:
        """Return the table in Markdown, followed by its caption and footnotes, without the title."""
        heads, sections, notes = self._rendered(escape_markdown, "**{}**", " [{}]")
        lines = [_markdown_row(heads), "|---" + "|---:" * (len(heads) - 1) + "|"]
        for heading, rows in sections.items():
            lines += [_markdown_row([f"*{heading}*", *[""] * (len(heads) - 1)])] if heading else []
            lines += map(_markdown_row, rows)
        foot = ["", escape_markdown(self.caption), *(f"\n[{n}] {note}" for n, note in enumerate(notes, 1))]
        return "\n".join([*lines, *foot])

    def latex(self) -> str:
        r"""Return a LaTeX float with title, caption and footnotes; it needs `\usepackage{booktabs}`."""
        heads, sections, notes = self._rendered(escape_latex, r"\textbf{{{}}}", r"\textsuperscript{{{}}}")
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
                rf"\caption{{{escape_latex(f'{self.title}. {self.caption}')}}}",
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

    def html(self) -> str:
        """Return the caption, the table and its footnotes in HTML, without the title."""
        heads, sections, notes = self._rendered(_escape_html, "<b>{}</b>", "<sup>{}</sup>")
        body = []
        for heading, rows in sections.items():
            body += [f'<tr class="setting"><td colspan="{len(heads)}">{heading}</td></tr>'] if heading else []
            body += ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows]
        head = "".join(f'<th scope="col">{cell}</th>' for cell in heads)
        foot = "".join(f"<li>{note}</li>" for note in notes)
        return (
            f'<p>{escape(self.caption)}</p><div class="scroll"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{''.join(body)}</tbody></table></div>" + (f"<ol>{foot}</ol>" if foot else "")
        )

    def _rendered(
        self, escaped: Callable[[str], str], strong: str, mark: str
    ) -> tuple[list[str], dict[str, list[list[str]]], list[str]]:
        """Return heads, rows by heading, and footnotes in the order of first occurrence, all escaped.

        Args:
            strong, mark: formats of bold text and of footnote numbers.
        """
        notes: dict[str, int] = {}

        def text(cell: Cell) -> str:
            numbers = ", ".join(str(notes.setdefault(note, len(notes) + 1)) for note in cell.notes)
            shown = strong.format(escaped(cell.text)) if cell.strong else escaped(cell.text)
            return shown + (mark.format(numbers) if numbers else "")

        heads = list(map(text, self.heads))
        sections = {escaped(heading): [list(map(text, row)) for row in rows] for heading, rows in self.sections.items()}
        return heads, sections, list(map(escaped, notes))


def escape_markdown(value: Any) -> str:
    """Return a value on one line of Markdown without markup; an underscore within a word is none.

    Dollars are: GitHub reads formulas between them.
    """
    text = escape(" ".join(str(value).split()), quote=False)
    return re.sub(r"[\\`*~|$\[\]]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", text)


def fenced(text: str) -> str:
    """Return a text as a code block of Markdown, in more backquotes than it has in succession."""
    fence = "`" * max([3, *(1 + len(run) for run in re.findall("`+", text))])
    return f"{fence}\n{text}\n{fence}"


def escape_latex(text: str) -> str:
    """Return the text on one line, its LaTeX characters escaped."""
    special: dict[str, str | int | None] = {character: f"\\{character}" for character in "&%$#_{}"}
    special |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}"}
    special |= {">": r"\textgreater{}", "|": r"\textbar{}", "[": "{[}", "\n": " ", NONE: "--", FROM_MEMORY: r"\dag{}"}
    return text.translate(str.maketrans(special))


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape_html(text: str) -> str:
    return re.sub(r"(\d) of (\d)", r"\1&nbsp;of&nbsp;\2", escape(text))  # keeps "(12 of 40)" on one line
