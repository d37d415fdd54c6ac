"""`hictl page` in a real browser, without anything from the network."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hictl_hf.cli.page import main
from hictl_hf.embedding.nearest_words import ALL_LANGUAGES
from hictl_hf.errors import BadInput

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SENTENCE = "die Katze sieht das Haus"
HOSTILE = '<img src=x onerror="document.title=1"> the cat'


@pytest.fixture(scope="module")
def address(
    saved_model: Callable[..., Path], sentences: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Where `hictl page` serves a toy model and a file with a hostile line."""
    pytest.importorskip("gradio")
    folder = tmp_path_factory.mktemp("page")
    saved_model(folder / "model")
    (folder / "de.txt").write_text("\n".join([HOSTILE, *sentences["de"]]), "utf-8")
    command = [
        sys.executable,
        "-c",
        "from hictl_hf.cli.main import main; main()",
        "page",
        "--model",
        folder / "model",
        "--among",
        folder / "de.txt",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            found = re.search(r"open (http://\S+) in", process.stdout.readline())
            assert found
            yield found[1]
        finally:
            process.terminate()


@pytest.mark.parametrize("port", ["0", "-1", "99999"])
def test_a_port_that_cannot_be_is_refused_before_the_model_is_loaded(port: str) -> None:
    with pytest.raises(BadInput, match=f"port is {port}; allowed are 1 to 65535"):
        main(["--model", "m", "--port", port])


@pytest.fixture
def browser() -> Iterator[Any]:
    """An installed Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="there is no Playwright")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser is installed: {', '.join(BROWSERS)}")
    with playwright.sync_playwright() as driver:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []  # root has to say so
        browser = driver.chromium.launch(executable_path=path, args=options)
        yield browser
        browser.close()


@pytest.mark.slow
def test_a_sentence_is_typed_and_its_neighbours_are_seen(browser: Any, address: str, tmp_path: Path) -> None:
    page, asked, failed = browser.new_page(viewport={"width": 1200, "height": 900}), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: failed.append(error))
    page.goto(address)
    page.get_by_label("Sentence", exact=True).fill(SENTENCE)
    page.get_by_role("button", name="Show").click()
    nearest = page.locator("tr", has_text=SENTENCE).first
    nearest.wait_for()
    assert nearest.inner_text().split() == [*SENTENCE.split(), "2", "1.000"]
    for language in (ALL_LANGUAGES, "Latin", "CJK"):
        assert page.get_by_role("cell", name=language, exact=True).is_visible()
    assert page.get_by_text("in the sentence", exact=True).count() > 0
    page.screenshot(path=Path(os.environ.get("ARTIFACTS", tmp_path)) / "page.png", full_page=True)

    page.get_by_label("Sentence", exact=True).fill(HOSTILE)
    page.get_by_label("Sentence", exact=True).press("Enter")
    page.locator("tr", has_text=HOSTILE).first.wait_for()
    assert page.title() == "HiCTL: nearest words"

    page.get_by_label("Sentence", exact=True).fill(" ")
    page.get_by_role("button", name="Show").click()
    page.get_by_text("the sentence is empty").wait_for()

    assert failed == []
    assert asked and all(url.startswith((address, "data:", "blob:")) for url in asked), asked


def test_two_models_are_shown_with_their_names(
    saved_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr("hictl_hf.cli.page.make_page", lambda *explainers, names: made.append((explainers, names)))
    monkeypatch.setattr("hictl_hf.cli.page.serve", lambda page, port: None)
    for number, name in enumerate("ab"):
        saved_model(tmp_path / name, seed=number)
    (tmp_path / "de.txt").write_text("die Katze\n", "utf-8")
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    main(["--model", a, "--compare_with", b, "--among", str(tmp_path / "de.txt")])
    main(["--model", b])
    (two, names), (one, no_names) = made
    assert names == [a, b] and [each.texts for each in two] == [["die Katze"]] * 2
    weights = [each.model.get_input_embeddings().weight for each in (*two, *one)]
    assert not weights[0].equal(weights[1]) and weights[1].equal(weights[2]) and not no_names
