"""Reports of tables, pictures and listings: a self-contained `report.html`, and `report.md`.

The packages of the tasks choose the content; the Jinja templates `page.html` and `sections.html` are the layout.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..files import write_text
from .tables import Table, escape_markdown, fenced


@dataclass(frozen=True)
class Picture:
    """A picture file with its caption."""

    title: str
    caption: str
    path: Path


@dataclass(frozen=True)
class Listing:
    """Preformatted text, such as a command."""

    title: str
    text: str


Block = Table | Picture | Listing

# style of a page whose tables have sentences, in any direction of writing; numbers alone are aligned at the right
OF_SENTENCES = "th, td { text-align: left; unicode-bidi: plaintext; vertical-align: top; }\n"


def write_sections(
    folder: str | Path,
    headline: str,
    facts: Sequence[tuple[str, str]],
    sections: Mapping[str, Sequence[Block]],
    footer: str,
    style: str = "",
) -> Path:
    """Write `report.md` and `report.html`; return the path of the latter.

    Args:
        facts: (number, name) pairs, shown in large print at the top of the page.
        sections: heading -> blocks; a block whose title differs from the heading is folded.
        style: additional CSS.
    """
    folder = Path(folder)
    text = [f"# {escape_markdown(headline)}"]
    for title, blocks in sections.items():
        text += [f"## {escape_markdown(title)}", *(_markdown_block(block, title) for block in blocks)]
    write_text(folder / "report.md", "\n\n".join(text) + "\n")
    template = Path(__file__).with_name("sections.html")
    page = render(template, headline=headline, facts=facts, sections=sections, footer=footer, style=style)
    return write_text(folder / "report.html", page)


def render(template: Path, **values: Any) -> str:
    """Render an HTML template, which may extend `page.html`. Values are escaped unless they are `markupsafe.Markup`."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, Path(__file__).parent]), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["data_uri"] = data_uri
    return environment.get_template(template.name).render(values)


def data_uri(picture: Path) -> str:
    """Return a PNG file as a data URI, to embed it in a page."""
    return f"data:image/png;base64,{b64encode(picture.read_bytes()).decode()}"


def _markdown_block(block: Block, section: str) -> str:
    if isinstance(block, Table):
        body = block.markdown()
    elif isinstance(block, Picture):
        body = f"![{escape_markdown(block.title)}]({block.path.name})\n\n{escape_markdown(block.caption)}"
    else:
        body = fenced(block.text)
    return body if block.title == section else f"### {escape_markdown(block.title)}\n\n{body}"
