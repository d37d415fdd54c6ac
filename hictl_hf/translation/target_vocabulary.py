"""The token ids a decoder can produce: tokens of the target side, every single character of its scripts and every byte
that is a token, and special tokens. A 16th of XLM-R's 250,002 ids makes decoding several times as fast. Other tokens of
train become `<unk>`; they are counted, and `BadInput` is raised if they are so many that the vocabulary cannot be meant
for the language."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np
import pyarrow.compute
from datasets import Dataset
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from ..data.languages import script_of
from ..data.layout import (
    bare_pieces,
    end_of_text,
    layout_of,
    lone_space,
    pieces_shown,
    reserved_ids,
    single_bytes,
)  # fmt: skip
from ..data.text_encoding import encode_texts
from ..data.tokenization import list_of_texts
from ..errors import BadInput

Counts = NDArray[np.int64]  # (vocabulary,) how often each id occurs
SCRIPT_SHARE = 0.001  # scripts with a smaller share of the letters only occur in names
UNKNOWN_SHARE = 0.1  # of a language's tokens; a vocabulary made for it lacks almost none
CHUNK = 50_000  # examples, or texts, counted at a time


def choose_target_ids(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, size: int | None = None) -> list[int]:
    """The ids for translations like these texts; see `ids_to_keep`."""
    counts, written = np.zeros(len(tokenizer), np.int64), list_of_texts(texts)
    for start in range(0, len(written), CHUNK):
        ids = encode_texts(tokenizer, written[start : start + CHUNK], add_special_tokens=False)["input_ids"]
        counts += np.bincount([number for row in ids for number in row], minlength=len(counts))
    return ids_to_keep(counts, tokenizer, size)


def ids_to_keep(counts: Counts, tokenizer: PreTrainedTokenizerBase, size: int | None = None) -> list[int]:
    """Ids for a decoder of these languages: `special_ids`, then others, ascending.

    Args:
        counts: (vocabulary,) how often the target side has each id.
        size: number of ids; tokens that are not single characters are then the most frequent. `None`: all that occur.
    """
    counts, special = counts.copy(), special_ids(tokenizer)
    counts[[*reserved_ids(tokenizer)]] = 0  # the letters of "</s>" are not the language's
    scripts = scripts_of(pieces_shown(tokenizer), counts)
    characters = enumerate(bare_pieces(tokenizer))
    needed = {number for number, piece in characters if len(piece) == 1 and script_of(piece) in scripts}
    needed |= lone_space(tokenizer) | single_bytes(tokenizer)
    needed = (needed - reserved_ids(tokenizer)) | {*special}
    others = [int(number) for number in np.argsort(-counts, kind="stable") if counts[number] and number not in needed]
    if size is None:
        return in_order(special, needed | {*others})
    if size < len(needed):
        raise BadInput(
            f"{size} target ids are asked for (size, --trim_target_vocab): the special tokens and the characters of "
            f"{', '.join(sorted(scripts - {''}))} are already {len(needed)} of {len(counts)} ids; allowed is "
            f"{len(needed)} or more, or no size (None, auto)"
        )
    return in_order(special, needed | {*others[: size - len(needed)]})


def every_id(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids of a decoder that can produce every word of a tokenizer: `special_ids`, then others, ascending."""
    words = {*range(len(tokenizer))} - reserved_ids(tokenizer)
    return in_order(special_ids(tokenizer), words)


def in_order(special: Sequence[int], ids: Set[int]) -> list[int]:
    return [*special, *sorted(ids - {*special})]


def special_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids that a tokenizer has for begin, padding, end and unknown, as XLM-R's `<s> <pad> </s> <unk>`.

    Byte-level tokenizers know everything; a trimmed vocabulary does not, so `<mask>` stands for what it lacks.
    """
    unknown = tokenizer.mask_token_id if tokenizer.unk_token_id is None else tokenizer.unk_token_id
    return [layout_of(tokenizer).before[0], tokenizer.pad_token_id, end_of_text(tokenizer), unknown]


def scripts_of(pieces: Sequence[str], counts: Counts) -> set[str]:
    """Scripts of the letters that occur, without those of a few names; and "", of digits and punctuation."""
    letters = Counter[str]()
    for number in np.flatnonzero(counts).tolist():
        for character in pieces[number]:
            letters[script_of(character)] += int(counts[number])
    del letters[""]
    return {"", *(script for script, number in letters.items() if number >= SCRIPT_SHARE * letters.total())}


def count_pieces(tokens: Dataset, vocabulary: int) -> dict[str, Counts]:
    """How often each id occurs on the target side of tokenized examples, by target language."""
    counts: dict[str, Counts] = defaultdict(lambda: np.zeros(vocabulary, np.int64))
    for batch in tokens.with_format("arrow").iter(CHUNK):
        for language in batch["target_language"].unique().to_pylist():
            rows = batch["labels"].filter(pyarrow.compute.equal(batch["target_language"], language))
            counts[language] += np.bincount(rows.combine_chunks().flatten().to_numpy(), minlength=vocabulary)
    return dict(counts)


def count_unknown(counts: Mapping[str, Counts], kept: Sequence[int], unknown_id: int) -> dict[str, int]:
    """The number of tokens of each language that are not kept, or are `<unk>`; `BadInput` if tokenizer or vocabulary
    were made for other languages."""
    known = sorted({*kept} - {unknown_id})
    unknown = {language: int(np.delete(number, known).sum()) for language, number in counts.items()}
    for language, number in unknown.items():
        share = number / counts[language].sum()
        if share > UNKNOWN_SHARE:
            if counts[language][unknown_id] > UNKNOWN_SHARE * counts[language].sum():
                lacking, fix = "tokenizer", f"Take an encoder whose tokenizer knows the script of {language}"
            else:
                lacking = f"target vocabulary of {len(kept)} ids"
                fix = (
                    f"Train a model for {language} from --model_name_or_path, with a larger --trim_target_vocab, or off"
                )
            raise BadInput(
                f"the model's {lacking} lacks {share:.0%} of the {language} tokens; allowed are {UNKNOWN_SHARE:.0%}. "
                f"{fix}"
            )
    return unknown
