"""Reports made of sections: a page that needs no other file and no network, and the same in Markdown. This module
decides how tables, pictures and text to be copied look there; what a report has is left to whoever makes it.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

from ..pretraining.report import PAGE
from .results import write_text
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
