"""Text to token ids: a corpus through a tokenizer, a vocabulary of one's own in XLM-R's format, what is no text, and
which texts share a batch."""

import importlib
import tempfile
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from datasets import Dataset, Features, Sequence, Value
from transformers import PreTrainedTokenizerBase, XLMRobertaTokenizer

from ..errors import BadInput, short_repr

WORD_START = "▁"


def train_tokenizer(sentences: Iterable[str], vocab_size: int, max_length: int = 512) -> PreTrainedTokenizerBase:
    """Learn a SentencePiece Unigram vocabulary and return it as an XLM-R tokenizer, all offline.

    Ids are XLM-R's: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, `<mask>` the last one. Fewer than `vocab_size` pieces are
    learned where the sentences do not hold as many.

    Args:
        sentences: text in every language of the model, already mixed as it should weigh.
        vocab_size: number of ids, special tokens included.
        max_length: longest input of the model, in tokens.

    Example:
        >>> tokenizer = train_tokenizer(["a small house", "ein kleines Haus"] * 9, vocab_size=40)
        >>> tokenizer.convert_ids_to_tokens(tokenizer("Haus")["input_ids"])[0]
        '<s>'
    """
    check_protobuf()
    written = (text for text in sentences if text.strip())
    first = next(written, None)
    if first is None:
        raise ValueError("there is no sentence with a word in it; a vocabulary needs some text to be learned from")
    with tempfile.TemporaryDirectory() as folder:
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=chain([first], written), model_prefix=str(Path(folder) / "sentencepiece.bpe"),
                vocab_size=vocab_size - 2, model_type="unigram", unk_id=0, bos_id=1, eos_id=2, pad_id=-1,
                normalization_rule_name="nmt_nfkc", character_coverage=0.9998, hard_vocab_limit=False, minloglevel=2,
            )  # fmt: skip
        except RuntimeError as error:
            if "required_chars" not in str(error):
                raise
            raise BadInput(
                f"vocab_size is {vocab_size}, fewer than the characters of the text have ids of their own ({error}); "
                "raise it"
            ) from error
        tokenizer = XLMRobertaTokenizer.from_pretrained(folder)
    tokenizer.model_max_length = max_length
    return tokenizer


def check_protobuf() -> None:
    """Raise `BadInput` where the installed protobuf cannot read vocabularies: transformers would ask for tiktoken."""
    try:
        importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    except Exception as error:  # protobuf raises errors of its own
        found = ", ".join(f"{name} {version(name)}" for name in ("sentencepiece", "protobuf"))
        raise BadInput(
            f"{found}: do not fit each other ({' '.join(str(error).split())}); allowed are a sentencepiece and a "
            "protobuf of the same time: pip install --upgrade sentencepiece protobuf"
        ) from error


def word_starts(tokenizer: PreTrainedTokenizerBase) -> list[bool]:
    """For each id of the vocabulary, whether the piece begins a word."""
    return [piece.startswith(WORD_START) for piece in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]


def words_never_sampled(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> list[int]:
    """Ids that are no words: special tokens, the lone `▁`, and rows of the embeddings beyond the vocabulary."""
    lone = tokenizer.convert_tokens_to_ids(WORD_START)
    return sorted({*tokenizer.all_special_ids, lone} | set(range(len(tokenizer), vocab_size)))


def tokenize_corpus(dataset: Dataset, tokenizer: PreTrainedTokenizerBase, max_length: int) -> tuple[Dataset, int]:
    """Token ids of a corpus without special tokens, and how many of its rows `max_length` will cut short.

    Args:
        dataset: text columns `x`, `y` (`None` in monolingual rows), `x_lang`, `y_lang`.

    Returns:
        The dataset with ids in `x` and `y`, tokens of the joined row in `length`; and the number of rows to be cut.
    """
    ids = Sequence(Value("int32"))
    features = Features({**dataset.features, "x": ids, "y": ids, "length": Value("int32")})
    tokens = dataset.map(
        tokenize_rows, batched=True, features=features, fn_kwargs={"tokenizer": tokenizer}, desc="tokenize"
    )
    return tokens, int((np.asarray(tokens["length"]) > max_length).sum())


def tokenize_rows(batch: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[Any]]:
    """The columns `x` and `y` of a batch of rows as ids, and the `length` of each joined row in tokens."""
    translated = [text is not None for text in batch["y"]]
    texts = batch["x"] + [text for text in batch["y"] if text is not None]
    ids = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    x, translations = ids[: len(translated)], iter(ids[len(translated) :])
    y = [next(translations) if known else None for known in translated]
    return {"x": x, "y": y, "length": [len(a) + (2 if b is None else len(b) + 4) for a, b in zip(x, y, strict=True)]}


def list_of_texts(sentences: Iterable[str]) -> list[str]:
    """The sentences in a list; raise `BadInput` for what is no text."""
    if isinstance(sentences, str | bytes) or not isinstance(sentences, Iterable):
        found = f"sentences is {short_repr(sentences)}, of type {type(sentences).__name__}"
        raise BadInput(f"{found}; allowed is a list of texts. Give one text as a list of one.")
    texts = list(sentences)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            found = f"sentence {number} is {short_repr(text)}, of type {type(text).__name__}"
            raise BadInput(f"{found}; allowed are texts. Leave it out, or give its text.")
    return texts


def token_batches(lengths: list[int], max_tokens: int) -> Iterator[list[int]]:
    """Numbers of texts of similar length, longest first: as many as there are `max_tokens` for, padded, or one."""
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > max_tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch
