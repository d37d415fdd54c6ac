"""The page of nearest words: its HTML, without Gradio a message, and served for this machine only."""

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from runpy import run_path

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf import __version__
from hictl_hf.embedding.nearest_words import ALL_LANGUAGES, Explainer, NearWord
from hictl_hf.embedding.page import HOST, STYLE, make_page, serve, tables, word_groups
from hictl_hf.errors import BadInput

SPACE = Path(__file__).parents[2] / "examples/space"


def test_the_languages_of_words_stand_side_by_side_and_nothing_is_taken_for_html() -> None:
    words = {ALL_LANGUAGES: [NearWord("<b>", 0.5, None, "")], "de": [NearWord("▁Haus", 0.25, None, "")]}
    page = word_groups(words, "be <careful>")
    assert page.count("<table>") == page.count("</table>") == 2 and page.index("▁Haus") > page.index("</table>")
    assert "&lt;b&gt;" in page and "<b>" not in page and "be &lt;careful&gt;" in page
    assert "unicode-bidi: plaintext" in STYLE, "sentences of Arabic or Hebrew, too"


def test_without_gradio_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(BadInput, match=r"pip install 'hictl_hf\[page\]'"):
        make_page(Explainer.__new__(Explainer))


@pytest.mark.slow
def test_the_page_is_for_this_machine_alone_and_a_port_that_is_taken_is_named(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> None:
    pytest.importorskip("gradio")
    page = make_page(Explainer(model_for_text(), tokenizer))
    try:
        address = serve(page, block=False)
        port = int(address.rstrip("/").rpartition(":")[2])
        assert address == f"http://{HOST}:{port}/" and page.share is False and page.share_url is None
        assert page.analytics_enabled is False and os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
        socket.create_connection((HOST, port), 5).close()
        with pytest.raises(ConnectionRefusedError):  # as a server of all interfaces would not
            socket.create_connection(("127.0.0.2", port), 5)
        with pytest.raises(BadInput, match=f"port {port}: is not free"):
            serve(make_page(Explainer(model_for_text(), tokenizer)), port, block=False)
    finally:
        page.close()


def test_two_models_stand_side_by_side(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> None:
    one, other = (Explainer(model_for_text(seed=seed), tokenizer, among=["the cat", "<b>"]) for seed in (1, 2))
    both = tables([one, other], "the cat", "", 3)
    assert both == [*tables([one], "the cat", "", 3), *tables([other], "the cat", "", 3)]
    sentences, words, others, words_of_other = both
    assert "the cat" in sentences and "<b>" not in sentences + others and "<table>" in words
    assert words != words_of_other, "two models, or the test compares nothing"
    with pytest.raises(BadInput, match="the sentence is empty"):
        tables([one, other], " ", "", 3)


def test_the_space_shows_the_models_that_its_variables_name(
    saved_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gradio")
    for name in ("MODEL_A", "MODEL_B"):
        monkeypatch.setenv(name, str(saved_model(tmp_path / name)))
    page = run_path(str(SPACE / "app.py"))["main"]()
    shown = [block.value for block in page.blocks.values() if isinstance(getattr(block, "value", None), str)]
    assert [f"## {tmp_path / name}" in shown for name in ("MODEL_A", "MODEL_B")] == [True, True]
    (show,) = [function.fn for function in page.fns.values()]
    assert ["<table>" in table for table in show("Der Zug", "", 2)] == [True] * 4
    page.close()


def test_the_space_installs_this_version() -> None:
    assert f"/hictl_hf-{__version__}-py3-none-any.whl" in (SPACE / "requirements.txt").read_text("utf-8")
