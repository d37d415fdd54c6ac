"""Shared parts of all model cards: templates, tables, escaping, metadata, repository names.

Each kind of run writes its card into the folder of its model (`pretraining/card.py`, `translation/card.py`);
`card_for_repository` completes it when the run is published.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from langcodes import Language

from ..data.languages import is_code, main_part
from ..errors import as_bad_input
from ..models.families import Family
from ..reports.results import RunResults
from ..reports.tables import escape_markdown, fenced

TAGS = ["hictl", "xlm-roberta", "multilingual"]
YOUR_REPOSITORY = "your-name/hictl"  # in a card that is not published yet
YOUR_TRANSLATION_REPOSITORY = "your-name/hictl-translation"
YOUR_FOLDER = "path/to/this/folder"
PICTURES = {
    "retrieval": "Accuracy of each language before and after",
    "guard": "Accuracy of languages and domains that were not trained on, before and after",
    "shares": "Accuracy by the share of the trained weights",
    "losses": "The losses during training",
    "layers": "Accuracy by layer and pooling, on the dev set",
    "tsne": "Sentences and their translations in two dimensions",
}


def tags_of(family: Family) -> list[str]:
    """`TAGS` for an encoder of a family."""
    return [family.model_type if tag == "xlm-roberta" else tag for tag in TAGS]


def render_card(template: Path, metadata: ModelCardData, **values: str) -> str:
    """Render a README from a Jinja template, in which `card_data` is the metadata."""
    return str(ModelCard.from_template(metadata, template_path=str(template), **values).content).rstrip("\n") + "\n"


def card_for_repository(
    card: Path,
    repository: str,
    *,
    encoder_repository: str | None = None,
    license: str | None = None,
    pictures: Sequence[str] = (),
) -> bytes:
    """Complete the card of a model for publication: names of repositories, licence, pictures.

    Args:
        card: the README.md in the folder of the model; changes by its author are kept.
        encoder_repository: where the plain encoder is; `None`: in `encoder/` of the same repository.
        pictures: their paths in the repository.
    """
    content = _read_card(card)
    text = content.text
    if encoder_repository:
        text = text.replace(f'"{YOUR_REPOSITORY}", subfolder="encoder"', json.dumps(encoder_repository))
    text = re.sub(f"{YOUR_TRANSLATION_REPOSITORY}|{YOUR_REPOSITORY}", lambda _: repository, text)
    if pictures:
        text = text.replace("\n## Use\n", f"\n{_pictures(pictures)}\n\n## Use\n", 1)
    content.text = text
    content.data["model_name"] = repository.split("/")[-1]
    if license:
        content.data["license"] = license
    return str(content.content).encode()


def encoder_card_for_repository(
    card: Path, repository: str, *, encoder_repository: str | None = None, license: str | None = None
) -> bytes:
    """Complete the card of the plain encoder, in a separate repository or in `encoder/` of the model's."""
    content = _read_card(card)
    content.text = content.text.replace(YOUR_REPOSITORY, repository)
    if encoder_repository:
        content.text = content.text.replace(YOUR_FOLDER, encoder_repository)
        content.data["base_model"] = repository
    if license:
        content.data["license"] = license
    return str(content.content).encode()


def _read_card(path: Path) -> ModelCard:
    with as_bad_input(str(path), "the model card that the run wrote", "Restore it, or repeat the run."):
        return ModelCard(path.read_text("utf-8"), ignore_metadata_errors=True)


def _pictures(paths: Sequence[str]) -> str:
    alternatives = {path: PICTURES.get(re.sub(r".*/|\.\w+$", "", path), "A picture of the run") for path in paths}
    return "\n\n".join(f"![{text}]({path})" for path, text in alternatives.items())


# --- parts of a card --------------------------------------------------------------------------------------------------


def how_it_was_made(results: RunResults) -> str:
    """The section of the card with all settings, the command, versions and seed."""
    settings = "\n\n".join(
        f"**{escape_markdown(group)}**\n\n{markdown_table(('setting', 'value'), values.items())}"
        for group, values in results.setting_groups().items()
    )
    template = jinja2.Template(Path(__file__).with_name("how_it_was_made.md").read_text("utf-8"))
    return template.render(
        settings=settings or "Not recorded.",
        command=fenced(results.command or "not recorded"),
        signature=escape_markdown(results.signature()),
    )


def licence_and_citation() -> str:
    """The sections on licence and citation, the last ones of every card."""
    return Path(__file__).with_name("licence_and_citation.md").read_text("utf-8").rstrip("\n")


def sentence_transformers_snippet(name: str, more: str = "") -> str:
    """Example code that embeds sentences with sentence-transformers; `more` are further arguments."""
    return f"""from sentence_transformers import SentenceTransformer

model = SentenceTransformer({json.dumps(name)}{more})
vectors = model.encode(["Good morning.", "Guten Morgen."])  # (sentences, d)
print(model.similarity(vectors, vectors))"""


def name_on_the_hub(encoder: str | None) -> str | None:
    """The Hub name of the checkpoint that training started from; `None` for a folder or an invalid name."""
    try:
        validate_repo_id(encoder or "")
    except HFValidationError:
        return None
    return None if not encoder or Path(encoder).exists() else encoder


def language_codes(codes: Iterable[str]) -> list[str]:
    """Language codes as the Hub accepts them: assigned ones of two or three letters, without script or region, sorted.

    >>> language_codes(["zh_TW", "pt-br", "sr-Latn", "iw", "xx", "emoji"])
    ['he', 'pt', 'sr', 'zh']
    """
    languages = [Language.get(main_part(code)) for code in codes if is_code(code)]
    return sorted({each.language for each in languages if each.language and each.is_valid()})


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown; markup in its cells is escaped."""
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(escape_markdown, line)) + " |" for line in lines)
