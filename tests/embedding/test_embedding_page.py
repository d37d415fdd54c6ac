"""The page of nearest words: its HTML, without Gradio a message, and served for this machine only."""

import os
import socket
import sys
from collections.abc import Callable

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf.embedding.nearest_words import ALL_LANGUAGES, Explainer, NearWord
from hictl_hf.embedding.page import HOST, make_page, serve, word_groups
from hictl_hf.errors import BadInput


def test_the_languages_of_words_stand_side_by_side_and_nothing_is_taken_for_html() -> None:
    words = {ALL_LANGUAGES: [NearWord("<b>", 0.5, None, "")], "de": [NearWord("▁Haus", 0.25, None, "")]}
    page = word_groups(words, "be <careful>")
    assert page.count("<table>") == page.count("</table>") == 2 and page.index("▁Haus") > page.index("</table>")
    assert "&lt;b&gt;" in page and "<b>" not in page and "be &lt;careful&gt;" in page


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
