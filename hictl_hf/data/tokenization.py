"""Tokenize a corpus, train a vocabulary in XLM-R's format, group texts into batches of similar length."""

import importlib
import json
import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
import sentencepiece
from datasets import Dataset, Features, List, Value
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase, XLMRobertaTokenizer

from ..errors import BadInput, short_repr
from ..files import write_json
from ..version import __version__
from .text_encoding import encode_texts

logger = logging.getLogger(__name__)

UNKNOWN_SHARE = 0.2  # of the tokens of a language; above it a warning is logged


def train_tokenizer(sentences: Iterable[str], vocab_size: int, max_length: int = 512) -> PreTrainedTokenizerBase:
    """Train a SentencePiece unigram vocabulary and return it as an XLM-R tokenizer; needs no network.

    The special tokens have XLM-R's ids: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, `<mask>` the last one.

    Args:
        sentences: text in all languages of the model, in the proportions that the vocabulary should reflect.
        vocab_size: number of ids, special tokens included; there are fewer if the text has fewer distinct pieces.
        max_length: longest input of the model, in tokens.

    Raises:
        ValueError: no sentence has text.
        BadInput: `vocab_size` is too small for the characters of the text.

    Example:
        >>> tokenizer = train_tokenizer(["a small house", "ein kleines Haus"] * 9, vocab_size=40)
        >>> tokenizer.convert_ids_to_tokens(tokenizer("Haus")["input_ids"])[0]
        '<s>'
    """
    check_protobuf()
    if isinstance(sentences, str):
        list_of_texts(sentences)  # refuses it: its characters would be the sentences
    # SentencePiece leaves out sentences of more than 4192 bytes, and a character has at most 4
    parts = chain.from_iterable(
        wrap(text, 1000, break_on_hyphens=False) if len(text) > 1000 else [text] for text in sentences
    )
    nonempty = (text for text in parts if text.strip())
    first = next(nonempty, None)
    if first is None:
        raise ValueError("sentences has no text; allowed is one or more sentences with a word. Add some.")
    with tempfile.TemporaryDirectory() as folder:
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=chain([first], nonempty), model_prefix=str(Path(folder) / "sentencepiece.bpe"),
                vocab_size=vocab_size - 2, model_type="unigram", unk_id=0, bos_id=1, eos_id=2, pad_id=-1,
                normalization_rule_name="nmt_nfkc", character_coverage=0.9998, hard_vocab_limit=False, minloglevel=2,
            )  # fmt: skip
        except RuntimeError as error:
            if "required_chars" not in str(error):
                raise
            raise BadInput(
                f"vocab_size is {vocab_size}; allowed is enough for an id of each character of the text ({error}); "
                "raise it"
            ) from error
        tokenizer = XLMRobertaTokenizer.from_pretrained(folder)
    tokenizer.model_max_length = max_length
    return tokenizer


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> None:
    """Save a tokenizer so that transformers 4 encodes alike: it has other names for two settings, and another default
    of the third. Neither cut nor padding of its last call is in `tokenizer.json`, which `tokenizers` would repeat."""
    if tokenizer.is_fast:
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(folder)
    path = Path(folder, "tokenizer_config.json")
    settings = json.loads(path.read_text("utf-8"))
    if settings["tokenizer_class"] == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        settings["model_input_names"] = list(tokenizer.model_input_names)  # 4 adds token types
    if isinstance(settings.get("extra_special_tokens"), list):  # 4 allows a mapping only
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
    write_json(path, settings)


def check_protobuf() -> None:
    """Raise `BadInput` if the installed protobuf cannot read vocabularies: transformers' error would name tiktoken."""
    try:
        importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    except Exception as error:  # protobuf raises several types, TypeError among them
        found = ", ".join(f"{name} {version(name)}" for name in ("sentencepiece", "protobuf"))
        raise BadInput(
            f"{found}: are not compatible ({' '.join(str(error).split())}); allowed are a sentencepiece and a "
            "protobuf of about the same date: pip install --upgrade sentencepiece protobuf"
        ) from error


def prompt_tokens(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """Ids of a prompt, such that those of prompt + text are these and then those of `space_of(tokenizer, prompt)` +
    text.

    Raises:
        BadInput: the last word of the prompt and the first of the text share a token.
    """
    space = space_of(tokenizer, prompt)
    found = ids_before_text(tokenizer, prompt.removesuffix(space), space) if prompt else []
    if found is None:
        raise BadInput(
            f"prompt is {short_repr(prompt)}; allowed is one whose tokens do not change with the text after it. End it "
            "with a space."
        )
    return found


def space_of(tokenizer: PreTrainedTokenizerBase, prompt: str) -> str:
    """A space if the one that ends the prompt is part of the text's first token, as with bytes or Gemma's, else ""."""
    if not prompt.endswith(" ") or ids_before_text(tokenizer, prompt, "") is not None:
        return ""
    return "" if ids_before_text(tokenizer, prompt[:-1], " ") is None else " "


def ids_before_text(tokenizer: PreTrainedTokenizerBase, prompt: str, space: str) -> list[int] | None:
    """The ids that a prompt puts before those of space + text; `None` if they depend on the text."""
    found = set()
    for text in ("a", "Haus", "12", "дом", "家", "घर", "(a)"):
        texts = [prompt + space + text, space + text]
        joint, alone = encode_texts(tokenizer, texts, add_special_tokens=False)["input_ids"]
        found.add(tuple(joint[: -len(alone)]) if joint[-len(alone) :] == alone else None)
    ids = found.pop()
    return None if ids is None or found else [*ids]


def tokenize_corpus(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    workers: int | None = None,
    space: str = "",
) -> tuple[Dataset, int]:
    """Tokenize a corpus without special tokens, and count the examples that `max_length` will cut.

    Args:
        dataset: text columns `x`, `y` (`None` in monolingual text), `x_lang`, `y_lang`.
        workers: processes; `None`: this one.
        space: put before each text, by `space_of`.

    Returns:
        The dataset with ids in `x` and `y` and the tokens of the joined example, x∘y, in `length`; and the count.
    """
    if not {"x", "y"} <= {*dataset.column_names}:
        raise BadInput(
            f"a corpus has the columns {', '.join(dataset.column_names)}; needed are the texts x and y, y None for "
            'monolingual text: dataset.rename_columns({"anchor": "x", "positive": "y"})'
        )
    ids = List(Value("int32"))
    features = Features({**dataset.features, "x": ids, "y": ids, "length": Value("int32")})
    function = partial(tokenize_rows, tokenizer=tokenizer, space=space, made_by=releases())
    tokens = dataset.map(function, batched=True, features=features, num_proc=workers, desc="tokenize")
    return tokens, int((lengths_of(tokens) > max_length).sum())


def lengths_of(tokens: Dataset) -> NDArray[np.int64]:
    """(rows,) the column `length` of a tokenized corpus."""
    column = tokens.with_format("arrow", columns=["length"])[:]["length"]
    return np.asarray(column.to_numpy(), dtype=np.int64)


def releases() -> str:
    """The releases that decide the tokens of a text, as the tokenizer does: an argument of functions whose result
    `datasets` caches, as it compares their names and arguments, not their code."""
    return f"hictl_hf {__version__}, tokenizers {version('tokenizers')}"


def tokenize_rows(
    batch: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase, space: str = "", made_by: str = ""
) -> dict[str, list[Any]]:
    """Return the columns `x` and `y` of a batch as ids, and the `length` of each joined example in tokens.

    Args:
        made_by: as of `releases`; it only names the cached result.
    """
    translated = [text is not None for text in batch["y"]]
    texts = [space + text for text in (*batch["x"], *batch["y"]) if text is not None]
    settings: dict[str, Any] = {"add_special_tokens": False, "return_attention_mask": False}
    ids = encode_texts(tokenizer, texts, **settings)["input_ids"] if texts else []
    x, translations = ids[: len(translated)], iter(ids[len(translated) :])
    y = [next(translations) if known else None for known in translated]
    around, in_pair = (tokenizer.num_special_tokens_to_add(pair=pair) for pair in (False, True))
    lengths = [len(a) + (around if b is None else len(b) + in_pair) for a, b in zip(x, y, strict=True)]
    return {"x": x, "y": y, "length": lengths}


def warn_of_unknown_tokens(ids: Mapping[str, Sequence[int]], tokenizer: PreTrainedTokenizerBase) -> None:
    """Warn of languages whose letters the tokenizer does not know: many of their texts have the same token ids.

    Args:
        ids: of some texts of each language.
    """
    for language, tokens in sorted(ids.items()):
        if (share := tokens.count(tokenizer.unk_token_id) / max(len(tokens), 1)) > UNKNOWN_SHARE:
            logger.warning(
                "%.0f %% of the tokens of the first texts in '%s' are unknown to the tokenizer, so that different "
                "texts are read as the same one; give an encoder that knows its letters, or leave the language out",
                100 * share, language,
            )  # fmt: skip


def list_of_texts(sentences: Iterable[str]) -> list[str]:
    """Return the sentences, which may be the keys of a dictionary, as a list; `BadInput` unless all are strings, and
    for a dictionary with texts as its values, such as a row of a data set."""
    is_row = isinstance(sentences, Mapping) and any(isinstance(value, str | list) for value in sentences.values())
    is_list = isinstance(sentences, Iterable) or hasattr(sentences, "__getitem__")  # as KeyDataset of transformers has
    if is_row or isinstance(sentences, str | bytes) or not is_list:
        found = f"sentences is {short_repr(sentences)}, of type {type(sentences).__name__}"
        raise BadInput(f"{found}; allowed is a list of texts. Give one text as a list of one.")
    texts = list(sentences)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            found = f"sentence {number} is {short_repr(text)}, of type {type(text).__name__}"
            raise BadInput(f"{found}; allowed are texts. Leave it out, or give its text.")
    return texts


def token_batches(lengths: list[int], max_tokens: int) -> Iterator[list[int]]:
    """Yield batches of indices of texts, longest first: at most `max_tokens` with padding, or one text."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > max_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
