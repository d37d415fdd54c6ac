"""Reports made of sections: a page that needs no other file and no network, and the same in Markdown. This module
decides how tables, pictures and text to be copied look there; what a report has is left to whoever makes it.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

from ..files import write_text
from .tables import Table, escape_markdown, html, markdown

STYLE = """main { max-width: 74rem; }
th, td { padding: .35rem .6rem; min-width: 5.2rem; }
td:first-child { min-width: 9rem; }
figure { max-width: 56rem; }
.facts div:nth-child(2) b { color: var(--ink); }
.scroll { max-height: none; }
.setting td { color: var(--soft); font-style: italic; padding-top: .8rem; text-align: left; }
sup { color: var(--soft); padding-left: .15em; }
ol { color: var(--soft); font-size: .86rem; margin: .6rem 0; padding-left: 1.4rem; }
details p, details ol { margin: .4rem 1rem .8rem; }
"""


@dataclass(frozen=True)
class Picture:
    """A picture with what it shows."""

    title: str
    caption: str
    path: Path


@dataclass(frozen=True)
class Listing:
    """Text to be copied as it is."""

    title: str
    text: str


Block = Table | Picture | Listing


def write_sections(
    folder: str | Path,
    headline: str,
    facts: Sequence[tuple[str, str]],
    sections: Mapping[str, Sequence[Block]],
    footer: str,
    style: str = "",
) -> Path:
    """Write `report.md` and `report.html`; returns the path of the page.

    Args:
        facts: numbers, each with what it is.
        sections: blocks by heading; one that is not called like its section is folded.
        style: CSS beside that of all reports.
    """
    folder = Path(folder)
    text = [f"# {escape_markdown(headline)}"]
    boxes = "".join(f"<div><b>{escape(number)}</b>{escape(name)}</div>" for number, name in facts)
    page = [f"<h1>{escape(headline)}</h1>", f'<div class="facts">{boxes}</div>']
    for title, blocks in sections.items():
        text += [f"## {escape_markdown(title)}", *(_markdown_block(block, title) for block in blocks)]
        body = "".join(_html_block(block, title) for block in blocks)
        page.append(f"<section><h2>{escape(title)}</h2>{body}</section>")
    write_text(folder / "report.md", "\n\n".join(text) + "\n")
    head = Template(PAGE.partition("<body>")[0]).substitute(headline=escape(headline))
    head = head.replace("</style>", f"{STYLE}{style}</style>")
    page.append(f"<footer>{escape(footer)}</footer>")
    body = "\n".join(["<body>", "<main>", *page, "</main>", "</body>", "</html>\n"])
    return write_text(folder / "report.html", head + body)


def _markdown_block(block: Block, section: str) -> str:
    if isinstance(block, Table):
        body = markdown(block)
    elif isinstance(block, Picture):
        body = f"![{escape_markdown(block.title)}]({block.path.name})\n\n{escape_markdown(block.caption)}"
    else:
        body = "```\n" + block.text.replace("```", "'''") + "\n```"
    return body if block.title == section else f"### {escape_markdown(block.title)}\n\n{body}"


def _html_block(block: Block, section: str) -> str:
    if isinstance(block, Table):
        body = html(block)
    elif isinstance(block, Picture):
        image = f"data:image/png;base64,{b64encode(block.path.read_bytes()).decode()}"
        picture = f'<img alt="{escape(block.title)}" src="{image}"><figcaption>{escape(block.caption)}</figcaption>'
        body = f"<figure>{picture}</figure>"
    else:
        body = f"<pre>{escape(block.text)}</pre>"
    return body if block.title == section else f"<details><summary>{escape(block.title)}</summary>{body}</details>"


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
