"""The documentation as a site: it builds without a warning, what it links to is there, nothing comes from elsewhere,
and the API reference has all public names."""

import inspect
import io
import os
import posixpath
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from runpy import run_path
from shutil import which
from threading import Thread
from urllib.parse import unquote, urldefrag

import pytest

from hictl_hf.cli.main import COMMANDS, parser_of

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "hictl_hf"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of the site, and what building it said."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return folder, said


@pytest.fixture(scope="module")
def pages(built: tuple[Path, str]) -> dict[str, str]:
    """The HTML of each page by its path on the site."""
    return {path.relative_to(built[0]).as_posix(): path.read_text("utf-8") for path in built[0].rglob("*.html")}


@pytest.mark.slow
def test_the_site_builds_without_a_warning(built: tuple[Path, str]) -> None:
    assert "Documentation built" in built[1] and "WARNING" not in built[1]


@pytest.mark.slow
def test_every_link_and_anchor_on_the_site_leads_somewhere(built: tuple[Path, str], pages: dict[str, str]) -> None:
    anchors = {name: {"", *re.findall(r'\b(?:id|name)="([^"]+)"', html)} for name, html in pages.items()}
    followed, broken = 0, []
    for name, html in pages.items():
        if name == "404.html":  # its links begin at the root of a server
            continue
        for link in set(re.findall(r'<(?:a|img|script|link)\b[^>]*?\b(?:href|src)="([^"]+)"', html)):
            path, anchor = urldefrag(unquote(link))
            if re.match(r"\w+:", link):
                continue
            to = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
            to = posixpath.join(to, "index.html") if (built[0] / to).is_dir() else to
            if not (built[0] / to).is_file() or (to in anchors and anchor.replace("&quot;", '"') not in anchors[to]):
                broken.append((name, link))
            followed += 1
    assert followed > 2000 and broken == []


@pytest.mark.slow
def test_nothing_on_the_site_is_loaded_from_elsewhere(built: tuple[Path, str], pages: dict[str, str]) -> None:
    loaded = re.compile(r'<(?:link|script|img|iframe|source)\b[^>]*?\b(?:href|src)="((?:https?:)?//[^"]+)"')
    assert {link for html in pages.values() for link in loaded.findall(html)} == set()
    styles = "".join(path.read_text("utf-8") for path in built[0].rglob("*.css"))
    assert len(styles) > 10_000 and re.findall(r"url\(['\"]?(?:https?:)?//[^)]*", styles) == []


@pytest.mark.slow
def test_lists_tables_and_doctests_are_set_as_such(pages: dict[str, str]) -> None:
    text = {name: re.sub(r"<pre.*?</pre>|<code>.*?</code>", "", html, flags=re.DOTALL) for name, html in pages.items()}
    raw = re.compile(r"<p>(?:[^<]*\n)?(?:[-*] |\d+\. |\|.*\|)[^<]*")
    assert {name: found for name, html in text.items() if (found := raw.findall(html))} == {}
    assert [name for name, html in text.items() if "&gt;&gt;&gt;" in html] == []
    assert sum("&gt;&gt;&gt;" in html for html in pages.values()) > 3


# --- the API reference ------------------------------------------------------------------------------------------------


def test_the_api_reference_has_each_public_name_once_and_no_other() -> None:
    text = "".join(path.read_text("utf-8") for path in (ROOT / "docs/api").glob("*.md"))
    assert sorted(re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)) == sorted(
        [*public_names(), "hictl_hf.errors.BadInput"]
    )


@pytest.mark.slow
def test_public_names_have_a_docstring_and_stand_on_the_site(pages: dict[str, str]) -> None:
    anchors = {anchor for name, html in pages.items() if name.startswith("api/") for anchor in ids(html)}
    assert sorted(set(public_names()) - anchors) == []
    for name in public_names():
        package, _, own = name.rpartition(".")
        value = getattr(import_module(package), own)
        assert not callable(value) or inspect.getdoc(value), name


def public_names() -> list[str]:
    """The names that each package exports."""
    packages = [path.parent.name for path in PACKAGE.glob("*/__init__.pyi")]
    return [
        f"hictl_hf.{package}.{name}" for package in packages for name in import_module(f"hictl_hf.{package}").__all__
    ]


def ids(html: str) -> list[str]:
    return re.findall(r'\bid="(hictl_hf[\w.]*)"', html)


# --- commands ---------------------------------------------------------------------------------------------------------


def commands() -> Iterator[list[str]]:
    """The arguments of every `hictl …` in a bash block of README and docs."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for block in re.findall(r"^```bash\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                for command in re.findall(r"(?:^ *|\| )hictl ([^|#]+)", line):
                    yield shlex.split(command)


def test_every_hictl_command_on_a_page_is_understood_by_its_parser() -> None:
    shown = [argv for argv in commands() if argv[0] in COMMANDS]
    for name, *argv in shown:
        argv = argv[1:] if argv and argv[0].endswith(".json") else argv  # a recipe, which is read before flags are
        with redirect_stderr(io.StringIO()) as said:
            try:
                parser_of(name).parse_args(argv)
            except SystemExit as ended:
                assert ended.code == 0, f"hictl {name} {shlex.join(argv)}: {said.getvalue()}"
    assert len(shown) > 20 and {name for name, *_ in shown} >= COMMANDS.keys() - {"completion"}


# --- links that work in the repository, too ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_site_links() -> Callable[[str, str], str]:
    pytest.importorskip("mkdocs")
    return run_path(str(ROOT / "docs/site_pages.py"))["with_site_links"]


@pytest.mark.parametrize(
    ("here", "link", "expected"),
    [
        ("docs/faq.md", "[a](choices.md#the-floor)", "[a](choices.md#the-floor)"),
        ("docs/a.md", "[`files.py`](../hictl_hf/files.py)", "[`files.py`](source/hictl_hf/files.py.md)"),
        ("docs/a.md", "[`losses.word_contrast`](../hictl_hf/models/losses.py)",
         "[`losses.word_contrast`][hictl_hf.models.word_contrast]"),
        ("docs/tutorials/a.md", "[`word_contrast`](../../hictl_hf/models/losses.py)",
         "[`word_contrast`][hictl_hf.models.word_contrast]"),
        ("docs/a.md", "[test](../tests/models/test_losses.py)", "[test](source/tests/models/test_losses.py.md)"),
        ("docs/tutorials/a.md", "[r](../../recipes/ablations)", "[r](../source/recipes/ablations/index.md)"),
        ("docs/a.md", "![p](../benchmarks/results.png)", "![p](source/benchmarks/results.png)"),
        ("CONTRIBUTING.md", "[c](docs/choices.md)", "[c](../choices.md)"),
        ("recipes/ablations", "- [x.json](ablations/x.json)", "- [x.json](x.json.md)"),
        ("docs/a.md", "[n](notebooks/n.ipynb)", "[n](notebooks/n.md)"),
        ("docs/a.md", "[w](https://example.org/a.md)", "[w](https://example.org/a.md)"),
        ("docs/a.md", "```\n[a](../tests/x.py)\n```", "```\n[a](../tests/x.py)\n```"),
    ],
)  # fmt: skip
def test_links_of_the_repository_become_links_of_the_site(
    here: str, link: str, expected: str, with_site_links: Callable[[str, str], str]
) -> None:
    assert with_site_links(link, here) == expected


# --- in a browser -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_reader_finds_a_page_by_searching_and_the_browser_asks_nobody_else(built: tuple[Path, str]) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    browser = which("chromium") or which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is installed")
    handler = partial(SimpleHTTPRequestHandler, directory=str(built[0]))
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    address, asked = f"http://127.0.0.1:{server.server_port}/", []
    try:
        with playwright.sync_playwright() as driver:
            page = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"]).new_page()
            page.on("request", lambda request: asked.append(request.url))
            page.goto(address)
            page.get_by_placeholder("Search").fill("retrieval_accuracy")
            found = page.locator(".md-search-result__link").first
            found.wait_for()
            found.click()
            page.wait_for_url(re.compile("/api/"))
    finally:
        server.shutdown()
    assert len(asked) > 5 and [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
