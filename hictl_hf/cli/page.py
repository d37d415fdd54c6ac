"""The tables of `explanation` on a page in the browser, for this machine alone: Gradio, bound to 127.0.0.1, without a
public link, without telemetry. What is near is left to `explanation`.

    hictl page --model runs/demo/checkpoint --among news.de.txt
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..embedding.nearest_words import Explainer, NearWord, sentence_table, word_table
from ..errors import BadInput
from ..parsing import CommandParser, parse_flags
from ..reports.page import render
from .explain import ExplainerArguments
from .logs import log_to_terminal

GROUPS = {"input": ("model", "among", "language_texts"), "page": ("port",)}
HOST = "127.0.0.1"
STYLE = """.groups { display: flex; flex-wrap: wrap; gap: 1rem 2rem }
td, th { text-align: left }
.setting td { font-style: italic }
"""


@dataclass
class PageArguments(ExplainerArguments):
    """Settings of `hictl page`."""

    port: int | None = field(default=None, metadata={"help": "Port of 127.0.0.1; the first free one from 7860 on."})


def make_parser() -> CommandParser:
    return CommandParser(PageArguments, "Show the same as `hictl explain` on a local page.", GROUPS)


def main(argv: Sequence[str] | None = None) -> None:
    """Serve the page until it is interrupted; the arguments are by default those of the command line."""
    args = parse_flags(make_parser(), argv)
    log_to_terminal()
    serve(make_page(args.load()), args.port)


def make_page(explainer: Explainer) -> Any:
    """The page, a `gradio.Blocks`, not yet served."""
    gradio = import_gradio()

    def show(sentence: str, translation: str, number: float) -> tuple[str, str]:
        try:
            words = explainer.words(sentence, translation.strip() or None, int(number))
            sentences = explainer.sentences(sentence, int(number))
        except BadInput as error:
            raise gradio.Error(str(error), print_exception=False) from error
        return word_groups(words, explainer.caution), sentence_table(sentences).html() if sentences else ""

    with gradio.Blocks(title="HiCTL: look inside", analytics_enabled=False) as page:
        gradio.Markdown(
            "# Look inside\nThe words of the vocabulary and the sentences of a file that are near to yours."
        )
        with gradio.Row():
            sentence = gradio.Textbox(label="Sentence", autofocus=True, max_length=10_000)
            translation = gradio.Textbox(label="Its translation, or nothing", max_length=10_000)
            number = gradio.Slider(1, 50, 10, step=1, label="Of each")
        button = gradio.Button("Show", variant="primary")
        sentences, words = gradio.HTML(), gradio.HTML()
        gradio.on(
            [button.click, sentence.submit, translation.submit], show, [sentence, translation, number],
            [words, sentences], api_visibility="private",
        )  # fmt: skip
    return page


def word_groups(words: Mapping[str, Sequence[NearWord]], caution: str) -> str:
    """The table of near words in HTML, its languages side by side."""
    table = word_table(words)
    texts = [text for text in (caution, table.caption) if text]
    groups = [replace(table, caption="", sections={name: rows}) for name, rows in table.sections.items()]
    return render(Path(__file__).with_name("word_groups.html"), texts=texts, groups=groups)


def serve(page: Any, port: int | None = None, block: bool = True) -> str:
    """Serve a page; the address where it is."""
    gradio = import_gradio()
    try:
        _, address, _ = page.launch(
            server_name=HOST, server_port=port, share=False, inbrowser=False, ssr_mode=False, css=STYLE, quiet=True,
            theme=gradio.themes.Base(font=["system-ui", "sans-serif"], font_mono=["monospace"]), footer_links=[],
            prevent_thread_lock=True,
        )  # fmt: skip
    except OSError as error:
        raise BadInput(f"port {port}: is not free ({error}); choose another --port, or leave it out") from error
    print(f"open {address} in a browser; end with Ctrl-C", flush=True)
    if block:
        page.block_thread()
    return address


def import_gradio() -> Any:
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # of what is sent as it is imported, too
    try:
        import gradio
    except ImportError as error:
        raise BadInput("the page needs Gradio; install it: pip install 'hictl_hf[page]'") from error
    return gradio
