"""A Hugging Face Space: the nearest sentences and words of two encoders side by side; README.md says how to upload it.

Variables of the Space choose the encoders, MODEL_A and MODEL_B: names on the Hub of encoders.
"""

import os
from pathlib import Path
from typing import Any

from hictl_hf.embedding import Explainer, load_encoder
from hictl_hf.embedding.page import STYLE, make_page

DEFAULTS = {"MODEL_A": "xlm-roberta-base", "MODEL_B": "intfloat/multilingual-e5-base"}
SENTENCES = Path(__file__).with_name("sentences.txt")  # to search in, one a line


def main() -> Any:
    names = [os.environ.get(variable) or default for variable, default in DEFAULTS.items()]
    among = SENTENCES.read_text("utf-8").splitlines()
    return make_page(*(Explainer(*load_encoder(name), among=among) for name in names), names=names)


if __name__ == "__main__":
    main().launch(css=STYLE)
