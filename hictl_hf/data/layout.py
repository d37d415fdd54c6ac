"""What a tokenizer writes around texts, and where it begins words: read from the tokenizer, whatever its kind is."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase

from ..errors import BadInput
from .text_encoding import BYTE, encode_texts, special_tokens

WORD_START = "▁"  # of SentencePiece
SPACE_AS_LETTER = "Ġ"  # of byte-level vocabularies
UNUSED = re.compile(r"[\[<]unused\d+[\]>]")  # reserved, though no special tokens, by BERT and Gemma


class Layout(NamedTuple):
    """The special ids that a tokenizer writes: `before x after`, and for a pair `before x between y after`."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def around_text(self) -> int:
        return len(self.before) + len(self.after)


def layout_of(tokenizer: PreTrainedTokenizerBase) -> Layout:
    """How a tokenizer joins texts.

    Raises:
        BadInput: it lacks what pre-training needs: a mask, padding, a first token such as `<s>` or `[CLS]`.
    """
    name = tokenizer.name_or_path or type(tokenizer).__name__
    for token, use in (("mask_token", "to hide words"), ("pad_token", "to pad batches")):
        if getattr(tokenizer, f"{token}_id") is None:
            raise BadInput(f"{name}: its tokenizer has no {token} {use}; allowed is one that has. Give another")
    runs = runs_of_special_ids(tokenizer, "a", "b")
    if len(runs) != 3 or not runs[0]:
        raise BadInput(
            f"{name}: its tokenizer puts no token before a text; allowed is one with a first token, such as <s> or "
            "[CLS], whose state stands for the text; give another tokenizer"
        )
    if (alone := runs_of_special_ids(tokenizer, "a", None)) != [runs[0], runs[2]]:
        raise BadInput(f"{name}: its tokenizer writes {alone} around a text, {runs} in a pair; allowed are equal ends")
    return Layout(*map(tuple, runs))


def runs_of_special_ids(tokenizer: PreTrainedTokenizerBase, first: str, second: str | None) -> list[list[int]]:
    """The special ids before, between and after texts, of which some may be none; without a second text before and
    after it."""
    if tokenizer.is_fast:
        encoding = encode_texts(tokenizer, first, second)
        ids, sides = encoding["input_ids"], encoding.sequence_ids(0)
    else:
        ids = tokenizer.build_inputs_with_special_tokens([-1], None if second is None else [-2])
        sides = [-1 - number if number < 0 else None for number in ids]
    runs: list[list[int]] = [[]]
    for number, side, before in zip(ids, sides, [None, *sides]):
        if side is None:
            runs[-1].append(number)
        elif side != before:
            runs.append([])
    return runs


def end_of_text(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id that a tokenizer writes after a text; `BadInput` if it writes none."""
    if not (after := layout_of(tokenizer).after):
        raise BadInput(
            f"{tokenizer.name_or_path}: its tokenizer puts no token after a text, at which a translation could end; "
            "allowed is one with an end, such as </s> or [SEP]; give another tokenizer"
        )
    return after[-1]


# --- words ------------------------------------------------------------------------------------------------------------


def pieces_of(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The piece of each id."""
    return tokenizer.convert_ids_to_tokens(range(len(tokenizer)))


def pieces_shown(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The piece of each id as text; ▁ is a space before a word, � a part of a character."""
    pieces = pieces_of(tokenizer)
    if not is_byte_level(tokenizer):
        return pieces
    decoder = decoders.ByteLevel()
    return [decoder.decode([piece]).replace(" ", WORD_START) for piece in pieces]


def is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether letters of its pieces stand for bytes."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and isinstance(backend.decoder, decoders.ByteLevel)


def word_start(tokenizer: PreTrainedTokenizerBase) -> str:
    """The mark at the beginning of pieces that begin a word, in place of the space before it."""
    return SPACE_AS_LETTER if is_byte_level(tokenizer) else WORD_START


def mark_within_words(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The prefix of pieces that continue a word, `##` of BERT's WordPiece; `None` of other kinds."""
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    return model.continuing_subword_prefix if isinstance(model, models.WordPiece) else None


def word_starts(tokenizer: PreTrainedTokenizerBase) -> list[bool]:
    """Whether the piece of each id of the vocabulary begins a word."""
    pieces = pieces_of(tokenizer)
    if (mark := mark_within_words(tokenizer)) is not None:
        return [not piece.startswith(mark) for piece in pieces]
    begin = word_start(tokenizer)
    return [piece.startswith(begin) for piece in pieces]


def marked_starts(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """For each id that of its piece with a space before it, itself if there is none.

    Some tokenizers write no space before the first word of a text.
    """
    vocabulary, begin = tokenizer.get_vocab(), word_start(tokenizer)
    return [vocabulary.get(begin + piece, number) for number, piece in enumerate(pieces_of(tokenizer))]


def bare_pieces(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The piece of each id without the mark by which it begins or continues a word; a byte is one letter."""
    within = mark_within_words(tokenizer)
    mark = word_start(tokenizer) if within is None else within
    return [piece.removeprefix(mark) if piece != mark else piece for piece in pieces_of(tokenizer)]


def single_bytes(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """The ids of pieces that are one byte, of which a text is made that has no other pieces."""
    pieces = pieces_of(tokenizer)
    if is_byte_level(tokenizer):
        alphabet = {*pre_tokenizers.ByteLevel.alphabet()}
        return {number for number, piece in enumerate(pieces) if piece in alphabet}
    return {number for number, piece in enumerate(pieces) if BYTE.fullmatch(piece)}


def character_starts(tokenizer: PreTrainedTokenizerBase) -> list[bool]:
    """Whether the piece of each id begins a character: not with a byte that continues one."""
    pieces = pieces_of(tokenizer)
    if is_byte_level(tokenizer):
        continuing = frozenset(letters_of_continuing_bytes())
        return [piece[:1] not in continuing for piece in pieces]
    bytes_found = (BYTE.fullmatch(piece) for piece in pieces)
    return [byte is None or not 0x80 <= int(byte[1], 16) < 0xC0 for byte in bytes_found]


def letters_of_continuing_bytes() -> Iterator[str]:
    """The letters by which byte-level vocabularies write the bytes 0x80 to 0xBF: continuations of a character."""
    written = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for number in range(0x80, 0xC0):  # é is C3 A9: the second letter is that of its second byte
        ((letters, _),) = written.pre_tokenize_str(bytes([0xC3, number]).decode())
        yield letters[1]


def words_never_sampled(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> list[int]:
    """Return the ids that are not words: special and reserved tokens, a lone space, rows beyond the vocabulary."""
    return sorted({*reserved_ids(tokenizer), *lone_space(tokenizer)} | set(range(len(tokenizer), vocab_size)))


def reserved_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """The ids of special, reserved and unused tokens, which no text has."""
    unused = {number for piece, number in tokenizer.get_vocab().items() if UNUSED.fullmatch(piece)}
    return {*special_tokens(tokenizer)} | unused


def lone_space(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """The id of a space without a word, if the vocabulary has it."""
    number = tokenizer.get_vocab().get(word_start(tokenizer))
    return set() if number is None else {number}
