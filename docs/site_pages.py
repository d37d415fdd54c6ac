"""Pages of the site made from other files: the notebooks, and files of the repository that pages link to.

Links in docs/ are relative, so that they also lead somewhere in the repository itself. On the site a link that names a
public function or class leads to its entry in the API reference; other files outside of docs/ get a page under
source/.
"""

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PACKAGE = "hictl_hf"
PICTURES = (".png", ".svg")
NOT_SEARCHED = "---\nsearch: {exclude: true}\n---\n\n"
LINK = re.compile(r"(?P<label>!?\[[^\]]*\])\((?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")
NAMES: dict[str, str] = {}  # of the files in the repository that pages under source/ are made of
FENCE = re.compile(r"^(?:```.*?^```|~~~~.*?^~~~~)$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for each notebook and for each file that some page links to."""
    for path in sorted((ROOT / "docs").rglob("*.ipynb")):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, place(name), content=notebook_page(path)))
    waiting = {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    while waiting:
        for name in linked(*waiting.popitem()):
            if not name.startswith("docs/") and place(name) not in files.src_uris:
                if name.endswith(PICTURES):
                    files.append(File.generated(config, place(name), abs_src_path=str(ROOT / name)))
                else:
                    NAMES[place(name)], text = name, source_page(name)
                    files.append(File.generated(config, place(name), content=NOT_SEARCHED + text))
                    waiting[name] = text
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with its links as they are on the site."""
    return with_site_links(markdown, NAMES.get(page.file.src_uri, f"docs/{page.file.src_uri}"))


def with_site_links(markdown: str, here: str) -> str:
    """This text of a file of the repository with links that work on the site, those in code left alone."""

    def lead(link: re.Match[str]) -> str:
        name = target(here, link["path"])
        if entry := public_name(name, link["label"].strip("[]`")):
            return f"{link['label']}[{entry}]"
        path = posixpath.relpath(place(name), posixpath.dirname(place(here)) or ".")
        return f"{link['label']}({path}{link['anchor'] or ''})"

    parts = re.split(f"({FENCE.pattern})", markdown, flags=FENCE.flags)
    return "".join(part if FENCE.fullmatch(part) else LINK.sub(lead, part) for part in parts)


def linked(here: str, markdown: str) -> Iterator[str]:
    """What the text of this file links to, as names in the repository."""
    for link in LINK.finditer(FENCE.sub("", markdown)):
        yield target(here, link["path"])


def target(here: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(here), path))


def place(name: str) -> str:
    """Where a file of the repository is on the site."""
    if name.startswith("docs/"):
        return re.sub(r"\.ipynb$", ".md", name.removeprefix("docs/"))
    if name.endswith((".md", *PICTURES)):
        return f"source/{name}"
    return f"source/{name}/index.md" if (ROOT / name).is_dir() else f"source/{name}.md"


def public_name(name: str, label: str) -> str | None:
    """The entry in the API reference of what the label names in this file, such as `losses.word_contrast`, if any."""
    found = re.fullmatch(rf"{PACKAGE}/(\w+)/(\w+)\.py", name)
    if not found:
        return None
    own = label.removeprefix(f"{found[2]}.").removesuffix("()")
    public: list[str] = import_module(f"{PACKAGE}.{found[1]}").__dict__.get("__all__", [])
    return f"{PACKAGE}.{found[1]}.{own}" if own.split(".")[0] in public else None


def source_page(name: str) -> str:
    """A file, or what is in a folder, as Markdown."""
    path = ROOT / name
    if path.is_dir():
        files = sorted(file.name for file in path.iterdir() if file.is_file())
        return f"# {name}\n\n" + "".join(f"- [{file}]({path.name}/{file})\n" for file in files)
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        return text
    language = {".py": "python", ".json": "json", ".yaml": "yaml", ".sbatch": "bash"}.get(path.suffix, "text")
    return f"# {name}\n\n~~~~{language}\n{text}\n~~~~\n"


def notebook_page(path: Path) -> str:
    """A notebook with what it printed and drew when it was last run."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return "\n\n".join(part for cell in cells for part in cell_parts(cell)) + "\n"


def cell_parts(cell: Mapping[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])  # a string, or a list of lines
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {"text/plain": output.get("text", "")})
        if "image/png" in data:
            yield f"![What the cell above drew](data:image/png;base64,{''.join(data['image/png']).strip()})"
        else:
            yield f"```text\n{''.join(data['text/plain']).rstrip()}\n```"
