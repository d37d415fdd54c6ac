"""Texts to translations: batches of similar length, distinct texts once, results in the order of the texts."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..data.languages import find_language
from ..data.layout import end_of_text
from ..data.text_encoding import decode_texts, encode_texts
from ..data.tokenization import list_of_texts, token_batches
from ..errors import BadInput, short_repr
from ..models.families import longest_input
from ..models.modeling_hictl_translation import HictlForConditionalGeneration
from ..processes import hides_progress
from ..training.eval_mode import eval_mode
from .beam_search import BeamSearchConfig, search

logger = logging.getLogger(__name__)

TOKENS_AT_ONCE = 512  # on a CPU; more is not faster there, and costs memory


class LongText(BadInput):
    """A text is longer than the model reads."""

    text = ""


@dataclass(frozen=True)
class Translation:
    """A text, its score (log-probability of base e / length ** length_penalty) and its length, `</s>` included."""

    text: str
    score: float
    tokens: int


def translate(
    model: HictlForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    settings: BeamSearchConfig | None = None,
    target_language: str | Sequence[str] | None = None,
    max_tokens: int | None = None,
    progress: bool = True,
    cut: bool = False,
) -> list[list[Translation]]:
    """Translate texts: the `settings.best` translations of each, best first, in the order of the texts.

    Each distinct text is translated once; a text without words has one empty translation. The model keeps its mode. A
    warning counts translations that are not complete at the most tokens, of the settings or of the model.

    Args:
        settings: `None`: those saved with the model, one translation each.
        target_language: of all texts, or one for each; required if the model has several.
        max_tokens: source tokens of a batch, padding included; `None`: 512 on a CPU, 8192 elsewhere.
        cut: truncate texts that are longer than the model reads (512 tokens with XLM-R), and log their number;
            otherwise they raise `BadInput`.
    """
    texts, settings = list_of_texts(texts), settings or BeamSearchConfig.of(model)
    refuse_offloaded(model)
    if tokenizer.pad_token_id is None:
        lack = f"{tokenizer.name_or_path}: its tokenizer has no pad_token, which tokenizer_config.json names"
        raise BadInput(f"{lack}; allowed is the complete tokenizer that was saved with the model")
    if max_tokens is not None and max_tokens < 1:
        raise BadInput(f"max_tokens is {max_tokens}; allowed is 1 or more")
    languages: list[str | None]
    if target_language is None or isinstance(target_language, str):
        languages = [target_language] * len(texts)
    else:
        languages = list(target_language)
    if len(languages) != len(texts):
        raise BadInput(f"there are {len(languages)} target languages for {len(texts)} texts; give one, or one each")
    jobs = list(dict.fromkeys(job for job in zip(texts, languages) if job[0] and not job[0].isspace()))
    sources = tokenize([text for text, _ in jobs], tokenizer, longest_input(model.config), cut)
    least = tokenizer.num_special_tokens_to_add() + 1  # a zero-width character may leave no token
    worded = [(job, source) for job, source in zip(jobs, sources) if len(source) >= least]
    jobs, sources = [job for job, _ in worded], [source for _, source in worded]
    starts = start_ids(model, [language for _, language in jobs])
    most = min(settings.max_length, model.decoder.config.max_position_embeddings - model.first_position)
    end, stopped = end_of_text(tokenizer), 0
    found = {}
    bar = tqdm(total=len(jobs), desc="translate", unit=" texts", disable=hides_progress() if progress else True)
    with eval_mode(model), bar:
        for batch in token_batches([len(source) for source in sources], max_tokens or tokens_at_once(model)):
            ids = {"input_ids": [sources[number] for number in batch]}
            rows = tokenizer.pad(ids, padding_side="right", return_tensors="pt").to(model.device)
            hypotheses = search(model, rows["input_ids"], rows["attention_mask"], starts[batch], settings)
            stopped += sum(len(best[0].tokens) >= most and best[0].tokens[-1] != end for best in hypotheses)
            for number, best in zip(batch, hypotheses):
                decoded = decode_texts(tokenizer, [each.tokens for each in best])
                found[jobs[number]] = [Translation(text, h.score, len(h.tokens)) for text, h in zip(decoded, best)]
            bar.update(len(batch))
    if stopped:
        logger.warning(
            "%d of %d translations were stopped at %d tokens, the most that max_length and the model allow; split "
            "their sources into sentences, or raise max_length", stopped, len(jobs), most,
        )  # fmt: skip
    return [list(found.get(job, [Translation("", 0.0, 0)])) for job in zip(texts, languages)]


def tokenize(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, longest: int, cut: bool = False
) -> list[list[int]]:
    """The token ids of texts; longer ones raise `BadInput`, or are truncated and counted in a warning."""
    sources = encode_texts(tokenizer, list(texts))["input_ids"] if texts else []
    too_long = [number for number, source in enumerate(sources) if len(source) > longest]
    if too_long and not cut:
        error = LongText(
            f"{len(too_long)} of {len(texts)} texts are too long for the model: {short_repr(texts[too_long[0]])} has "
            f"{len(sources[too_long[0]])} tokens; allowed are {longest}. Split them into sentences, or have them cut: "
            "cut=True, --cut true."
        )
        error.text = texts[too_long[0]]
        raise error
    for number in too_long:
        sources[number] = [*sources[number][: longest - 1], end_of_text(tokenizer)]
    if too_long:
        logger.warning("%d of %d texts were cut after %d tokens", len(too_long), len(texts), longest)
    return sources


@contextmanager
def naming_lines(block: Sequence[str], before: int) -> Iterator[None]:
    """Add the number of its line to the error of a text that is too long; `before` is how many are before the block."""
    try:
        yield
    except LongText as error:
        raise BadInput(f"line {before + 1 + block.index(error.text):,} of the input: {error}") from error


def refuse_long_texts(texts: Iterable[tuple[str, str]], tokenizer: PreTrainedTokenizerBase, longest: int) -> None:
    """Raise `BadInput` for the first text, given after its place, that is longer than the model reads.

    A text with no more bytes than tokens are allowed is not tokenized; the few that have more tokens than bytes are
    found when they are translated.
    """
    for place, text in texts:
        if len(text.encode()) > longest - tokenizer.num_special_tokens_to_add():
            (ids,) = encode_texts(tokenizer, [text])["input_ids"]
            if len(ids) > longest:
                raise BadInput(
                    f"{place}: has {len(ids)} tokens; allowed are {longest}, which the model reads. Split it into "
                    "sentences, or have such lines cut: --cut true."
                )


def start_ids(model: HictlForConditionalGeneration, languages: Sequence[str | None]) -> Tensor:
    """(n,) the start id of each language; `None`: the only language, or the model's default."""
    try:
        own = model.config.target_languages or []
        known = {
            name: int(model.start_ids_of([find_language(name, own) or name]))
            for name in set(languages)
            if name is not None
        }
        default = model.default_start_id() if None in languages else 0
    except ValueError as error:
        raise BadInput(str(error)) from error
    ids = [default if name is None else known[name] for name in languages]
    return torch.tensor(ids, dtype=torch.long, device=model.device)


def refuse_offloaded(model: HictlForConditionalGeneration) -> None:
    """Raise `BadInput` for a model without weights in memory, which this beam search reads itself."""
    if model.device.type == "meta":
        raise BadInput(
            "weights of the model are offloaded by device_map; allowed is a model on one device. Load it without "
            "device_map, or call model.generate."
        )


def tokens_at_once(model: HictlForConditionalGeneration) -> int:
    return TOKENS_AT_ONCE if model.device.type == "cpu" else 16 * TOKENS_AT_ONCE
