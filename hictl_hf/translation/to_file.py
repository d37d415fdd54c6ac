"""Translate a text of any size to a file; an interrupted run continues and gives the same bytes.

Lines are translated in blocks; each block is a part in the folder OUTPUT.partial until all are done. Several processes
(`processes.join`) share the blocks.
"""

import gzip
import hashlib
import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..data.compression import compression_of, opener
from ..data.lines import one_line
from ..files import partial_file
from ..models.modeling_hictl_translation import HictlForConditionalGeneration
from ..processes import ALONE, Processes, hides_progress
from ..training.partial_output import PartialOutput, blocks
from .beam_search import BeamSearchConfig
from .decoding import Translation, naming_lines, translate

logger = logging.getLogger(__name__)

LINES_AT_ONCE = 8192
PROBE = "Do these translations come from the same model?"


@dataclass(frozen=True)
class TranslationFileConfig:
    """Settings of a file of translations."""

    search: BeamSearchConfig
    target_language: str | None = None
    max_tokens: int | None = None
    """Source tokens of a batch; `None`: the default of `translate`."""
    scores: bool = False
    """Write "number<TAB>score<TAB>text", not only the text."""
    lines_at_once: int = LINES_AT_ONCE
    """Lines of a block, which are sorted by length and stored together."""


def translate_to_file(
    model: HictlForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterator[str],
    output: str | Path,
    config: TranslationFileConfig,
    *,
    cut: bool = False,
    total: int | None = None,
    processes: Processes = ALONE,
) -> None:
    """Write the translations of texts to a file, continuing an interrupted call with the same arguments.

    Args:
        output: compressed if its name says so.
        cut: truncate texts that are too long for the model; otherwise they raise `BadInput`.
        total: number of texts, for the progress bar.
        processes: that share the blocks; each of them makes the same call.

    Raises:
        BadInput: OUTPUT.partial was begun with other texts, another model or other settings.
    """

    def translations(block: list[str]) -> list[list[Translation]]:
        return translate(
            model, tokenizer, block, config.search, config.target_language, config.max_tokens,
            progress=processes.is_main, cut=cut,
        )  # fmt: skip

    def write_part(block: list[str], path: Path) -> None:
        with path.open("w", encoding="utf-8", newline="\n") as file:
            with naming_lines(block, parts.lines):
                translated = translations(block)
            for number, found in enumerate(translated, start=parts.lines + 1):
                file.writelines(f"{line}\n" for line in written(number, found, config.scores))

    output = Path(output).resolve()
    folder = partial_file(output)
    probe = repr([(each.text, each.score) for each in translations([PROBE])[0]])
    made = hashlib.blake2b(probe.encode("utf-8", "surrogateescape")).hexdigest()
    if processes.is_main and folder.is_file():
        folder.unlink()  # what release 0.10 left, which did not continue
    settings = {**asdict(config), "model": f"one whose translations are {made}"}
    parts = PartialOutput(folder, ".txt", settings, "hictl translate", processes)
    try:
        with tqdm(total=total, desc="lines", unit=" lines", disable=hides_progress()) as bar:
            parts.write(blocks(texts, config.lines_at_once), write_part, bar.update)
        parts.finish(output, join_texts)
    except BaseException:
        if folder.exists():
            logger.warning("%s: not written; the same command continues with what is in %s", output, folder)
        raise


def join_texts(parts: Sequence[Path], output: Path) -> None:
    """Concatenate text files, compressed as the name of the output says; the same bytes at any time."""
    opened = partial(gzip.GzipFile, mtime=0) if compression_of(output.name) == ".gz" else opener(output.name)
    with opened(output, "wb") as joined:
        for part in parts:
            with part.open("rb") as file:
                shutil.copyfileobj(file, joined)


def written(number: int, found: Sequence[Translation], scores: bool) -> Iterator[str]:
    """Yield the output lines of an input line, which has this number: one for each translation, whatever it holds."""
    for translation in found:
        text = one_line(translation.text)
        yield "\t".join([str(number), f"{translation.score:.4f}", text.replace("\t", " ")]) if scores else text
