"""Tokenize text as data: strings such as "</s>" and "<mask>" in it never become special tokens.

`split_special_tokens` of transformers keeps special tokens from being cut out of a text, but the model behind a
tokenizer (Unigram, WordLevel, also BPE and WordPiece) finds them in its vocabulary again. Here their entries in that
vocabulary are renamed to what no text contains.
"""

import copy
import json
import re
from collections.abc import Sequence
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

from tokenizers import Tokenizer
from transformers import BatchEncoding, PreTrainedTokenizerBase

from ..errors import BadInput, short_repr

BYTE = re.compile("<0x([0-9A-F]{2})>")  # a byte in a SentencePiece vocabulary
NO_TEXT = "\0"  # rows with this character are broken
_COPIES: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[int, PreTrainedTokenizerBase]] = WeakKeyDictionary()


def encode_texts(
    tokenizer: PreTrainedTokenizerBase,
    texts: str | Sequence[str],
    second: str | Sequence[str] | None = None,
    **settings: Any,
) -> BatchEncoding:
    """Tokenize one or more texts, or pairs of them, like `tokenizer(texts, second, **settings)`, but as data.

    Special tokens are those that the tokenizer adds, and unknown tokens.

    Raises:
        BadInput: a text has half a character (a surrogate), as Python reads bytes that are not UTF-8.
    """
    try:
        return _encode(tokenizer, texts, second, settings)
    except (TypeError, UnicodeEncodeError):
        _refuse_half_characters(texts, second)
        raise


def _refuse_half_characters(*given: str | Sequence[str] | None) -> None:
    for text in chain.from_iterable([each] if isinstance(each, str) else each or () for each in given):
        if found := isinstance(text, str) and re.search("[\ud800-\udfff]", text):
            around = short_repr(text[max(0, found.start() - 20) : found.end() + 20])
            raise BadInput(f"a text has {around}; allowed is valid Unicode. Write it in UTF-8, or remove {found[0]!r}.")


def _encode(
    tokenizer: PreTrainedTokenizerBase,
    texts: str | Sequence[str],
    second: str | Sequence[str] | None,
    settings: dict[str, Any],
) -> BatchEncoding:
    settings = {"split_special_tokens": True, "verbose": False, **settings}
    if not getattr(tokenizer, "is_fast", False):  # its model does not find special tokens by itself
        return tokenizer(texts, *(() if second is None else (second,)), **settings)
    size, as_data = _COPIES.get(tokenizer, (0, None))
    if as_data is None or size != len(tokenizer):
        encoding = tokenizer(texts, second, **settings)
        if not has_more_special_tokens(tokenizer, encoding, second is not None, settings):
            return encoding
        as_data = without_special_pieces(tokenizer)
        _COPIES[tokenizer] = (len(tokenizer), as_data)
    for name in ("padding_side", "truncation_side", "model_max_length"):
        setattr(as_data, name, getattr(tokenizer, name))
    return as_data(texts, second, **settings)


def decode_texts(tokenizer: PreTrainedTokenizerBase, rows: Sequence[Sequence[int]]) -> list[str]:
    """The texts of token ids, without special tokens; `skip_special_tokens` skips bytes that are marked as special."""
    special = special_tokens(tokenizer)
    return tokenizer.batch_decode([[number for number in row if number not in special] for row in rows])


def special_tokens_around(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """How many special tokens the tokenizer puts before a text, and how many after it."""
    alone, found = (encode_texts(tokenizer, "a", add_special_tokens=adds)["input_ids"] for adds in (False, True))
    before = next(start for start in range(len(found) + 1) if found[start : start + len(alone)] == alone)
    return before, len(found) - before - len(alone)


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """The special tokens of a tokenizer by id: those with a role, such as padding, and those only marked as special.

    Bytes are text, even if a vocabulary was trained with them as special tokens.
    """
    added = {number: token.content for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    marked = {number: piece for number, piece in added.items() if not BYTE.fullmatch(piece)}
    return marked | dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens))


def has_more_special_tokens(
    tokenizer: PreTrainedTokenizerBase, encoding: BatchEncoding, of_pairs: bool, settings: dict[str, Any]
) -> bool:
    """Whether a text has special tokens, unknown ones included, that the tokenizer did not add around it."""
    adds = settings.get("add_special_tokens", True)
    added = tokenizer.num_special_tokens_to_add(pair=of_pairs) if adds else 0
    rows = encoding["input_ids"]
    rows = rows.tolist() if hasattr(rows, "tolist") else rows
    rows = [rows] if rows and isinstance(rows[0], int) else rows
    is_special = special_tokens(tokenizer).keys().__contains__
    return any(sum(map(is_special, row)) > added for row in rows)


def without_special_pieces(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return a copy of a fast tokenizer whose model cannot find a special token in a text; all ids are the same."""
    as_data, special = copy.deepcopy(tokenizer), {*special_tokens(tokenizer).values()}
    written = json.loads(tokenizer.backend_tokenizer.to_str())
    model = written["model"]
    special -= {model.get("unk_token")}  # of models that need it by name; what they do not know becomes it anyway

    def renamed(piece: str) -> str:
        return NO_TEXT + piece if piece in special else piece

    if isinstance(model["vocab"], dict):
        model["vocab"] = {renamed(piece): number for piece, number in model["vocab"].items()}
    else:  # Unigram: pieces with scores
        model["vocab"] = [[renamed(piece), score] for piece, score in model["vocab"]]
    if "merges" in model:  # of BPE
        merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
        model["merges"] = [merge for merge in merges if special.isdisjoint({*merge, "".join(merge)})]
    without_others = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder")) | {"added_tokens": []}
    as_data.backend_tokenizer.model = Tokenizer.from_str(json.dumps(written | without_others)).model
    return as_data
