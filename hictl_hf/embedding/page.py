"""The nearest words and sentences as a Gradio page for this machine only: bound to 127.0.0.1, no public link, no
telemetry."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..reports.page import render
from .nearest_words import Explainer, NearWord, sentence_table, word_table

HOST = "127.0.0.1"
STYLE = """.groups { display: flex; flex-wrap: wrap; gap: 1rem 2rem }
td, th { text-align: left; unicode-bidi: plaintext }
.setting td { font-style: italic }
"""


def make_page(*explainers: Explainer, names: Sequence[str] = ()) -> Any:
    """Build the page, a `gradio.Blocks`, without serving it; several models stand side by side.

    Args:
        names: titles of the models' columns, if there are several.

    Raises:
        BadInput: Gradio is not installed.
    """
    gradio = import_gradio()

    def show(sentence: str, translation: str, number: float) -> list[str]:
        try:
            return tables(explainers, sentence, translation, int(number))
        except BadInput as error:
            raise gradio.Error(str(error), print_exception=False) from error

    with gradio.Blocks(title="HiCTL: nearest words", analytics_enabled=False) as page:
        gradio.Markdown("# Nearest words\nThe words of the vocabulary and the sentences of a file nearest to yours.")
        with gradio.Row():
            sentence = gradio.Textbox(label="Sentence", autofocus=True, max_length=10_000)
            translation = gradio.Textbox(label="Translation (optional)", max_length=10_000)
            number = gradio.Slider(1, 50, 10, step=1, label="Number of each")
        button = gradio.Button("Show", variant="primary")
        outputs = []
        with gradio.Row():
            for name in names or [""] * len(explainers):
                with gradio.Column():
                    if name:
                        gradio.Markdown(f"## {name}")
                    outputs += [gradio.HTML(), gradio.HTML()]
        gradio.on(
            [button.click, sentence.submit, translation.submit], show, [sentence, translation, number], outputs,
            api_visibility="private",
        )  # fmt: skip
    return page


def tables(explainers: Sequence[Explainer], sentence: str, translation: str, number: int) -> list[str]:
    """Return two tables as HTML for each model: its nearest sentences, empty without sentences to search, and words."""
    found = []
    for explainer in explainers:
        words = explainer.words(sentence, translation.strip() or None, number)
        sentences = explainer.sentences(sentence, number)
        found += [sentence_table(sentences).html() if sentences else "", word_groups(words, explainer.caution)]
    return found


def word_groups(words: Mapping[str, Sequence[NearWord]], caution: str) -> str:
    """Return the table of nearest words as HTML, one column per language."""
    table = word_table(words)
    texts = [text for text in (caution, table.caption) if text]
    groups = [replace(table, caption="", sections={name: rows}) for name, rows in table.sections.items()]
    return render(Path(__file__).with_name("word_groups.html"), texts=texts, groups=groups)


def serve(page: Any, port: int | None = None, block: bool = True) -> str:
    """Serve a page of `make_page`, print its address and return it.

    Args:
        port: by default the first free one from 7860 on.
        block: whether to wait for Ctrl-C.

    Raises:
        BadInput: the port is in use.
    """
    gradio = import_gradio()
    try:
        _, address, _ = page.launch(
            server_name=HOST, server_port=port, share=False, inbrowser=False, ssr_mode=False, css=STYLE, quiet=True,
            theme=gradio.themes.Base(font=["system-ui", "sans-serif"], font_mono=["monospace"]), footer_links=[],
            prevent_thread_lock=True,
        )  # fmt: skip
    except OSError as error:
        raise BadInput(f"port {port}: is not free ({error}); choose another --port, or omit it") from error
    print(f"open {address} in a browser; stop with Ctrl-C", flush=True)
    if block:
        page.block_thread()
    return address


def import_gradio() -> Any:
    """Import Gradio with its telemetry off; `BadInput` if it is not installed."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before the import, which already sends a message
    try:
        import gradio
    except ImportError as error:
        raise BadInput("the page needs Gradio; install it: pip install 'hictl_hf[page]'") from error
    return gradio
