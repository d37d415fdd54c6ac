"""Extractive question answering: a long context as windows, and logits as the characters of the answer.

Windows and candidates are those of XTREME's scripts. An answer is the text of the context from the first character of
its first token to the last of its last token, also in scripts without spaces. XTREME's scripts align it by BERT's
tokenizer instead, which fails on Chinese and similar text; `compat` does the same, to reproduce published numbers.
"""

import re
import unicodedata
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from datasets import Dataset, List, Value
from numpy.typing import NDArray
from tokenizers import decoders, models, normalizers, pre_tokenizers
from transformers import AutoModelForQuestionAnswering, PreTrainedTokenizerBase

from ..data.text_encoding import encode_texts
from ..errors import BadInput
from .sentence_pairs import NUMBER, NUMBERS, Logits, input_columns, map_examples

Ints = Sequence[int] | NDArray[np.integer[Any]]
OFFICIAL_WORD = re.compile("[^ \t\r\n\u202f]+")  # the scripts do not split words at other spaces
OF_A_TOKEN = re.compile("M*(?:C+(?= ))?")  # categories of the characters after a token that belong to it


class Span(NamedTuple):
    """A candidate: the sum of its logits, its window, and its first and last token within that window's context."""

    score: float
    window: int
    first: int
    last: int


@dataclass(frozen=True)
class QuestionAnswering:
    """Extraction of the answer from the context; examples have the columns id, question, context and answers.

    Attributes:
        stride: tokens between the starts of two windows (HF's tokenizers call their overlap stride).
        question_length: tokens to which a question is truncated.
        candidates: number of best first and last tokens of each window that are combined.
        answer_length: tokens of the longest answer.
        compat: align answers like XTREME's scripts.
    """

    tokenizer: PreTrainedTokenizerBase
    max_length: int = 384
    labels: tuple[str, ...] = ("start", "end")
    stride: int = 128
    question_length: int = 64
    candidates: int = 20
    answer_length: int = 30
    compat: bool = False
    model_class: ClassVar[Any] = AutoModelForQuestionAnswering
    shortest: ClassVar[int] = 128 + 64 + 30 + 4  # stride, question, the overlap for an answer, special tokens

    @staticmethod
    def label_names(train: Dataset) -> tuple[str, ...]:
        return ("start", "end")

    # --- text to windows ----------------------------------------------------------------------------------------------

    def encode(self, examples: Dataset, training: bool = False) -> Dataset:
        """One or more rows for each question.

        For training they have the indices of the first and the last token of the first answer, 0 if the window does
        not hold all of it. Otherwise they have the index of the question (`example`), the index of the first token of
        the context (`first`), and for each token of the context where its characters begin and end (`begins`, `ends`),
        and whether no other window has more context around it (`most_context`).
        """
        columns = dict.fromkeys(input_columns(self.tokenizer), NUMBERS)
        if training:
            columns |= dict.fromkeys(("start_positions", "end_positions"), NUMBER)
        else:
            columns |= dict.fromkeys(("example", "first"), NUMBER) | dict.fromkeys(("begins", "ends"), NUMBERS)
            columns["most_context"] = List(Value("bool"))
        return map_examples(examples, self.tokenize, columns, training)

    def tokenize(self, batch: Mapping[str, list[Any]], numbers: list[int], training: bool) -> dict[str, Any]:
        encoded = encode_texts(
            self.tokenizer, batch["question"], batch["context"], return_offsets_mapping=True,
            return_attention_mask=False,
        )  # fmt: skip
        rows: dict[str, list[Any]] = defaultdict(list)
        for row, number in enumerate(numbers):
            sides = np.array([-1 if side is None else side for side in encoded.sequence_ids(row)])
            context = np.flatnonzero(sides == 1)
            if not len(context):
                raise BadInput(no_token(batch["id"][row], batch["context"][row]))
            kept = np.setdiff1d(np.flatnonzero(sides != 1), np.flatnonzero(sides == 0)[self.question_length :])
            before, after = kept[kept < context[0]], kept[kept > context[-1]]
            begins, ends = np.array(encoded["offset_mapping"][row])[context].T
            ends = with_marks(batch["context"][row], begins, ends)
            windows = context_windows(len(context), self.max_length - len(kept), self.stride)
            answer = answer_tokens(batch["id"][row], batch["answers"][row], begins, ends) if training else None
            for window, most_context in zip(windows, most_context_in(windows)):
                inside = slice(window.start, window.stop)
                indices = np.concatenate([before, context[inside], after])
                for name in input_columns(self.tokenizer):
                    rows[name].append(np.array(encoded[name][row])[indices])
                if answer is not None:
                    found = answer[0] in window and answer[1] in window
                    for name, token in zip(("start_positions", "end_positions"), answer):
                        rows[name].append(len(before) + token - window.start if found else 0)
                else:
                    about = (number, len(before), begins[inside], ends[inside], most_context)
                    for name, value in zip(("example", "first", "begins", "ends", "most_context"), about):
                        rows[name].append(value)
        return rows

    # --- logits to answers --------------------------------------------------------------------------------------------

    def decode(self, examples: Dataset, features: Dataset, logits: Logits) -> dict[str, str]:
        windows: dict[int, list[int]] = defaultdict(list)
        for row, number in enumerate(features["example"]):
            windows[number].append(row)
        features = features.with_format("numpy")
        answers = {}
        for number, (name, context) in enumerate(zip(examples["id"], examples["context"])):
            rows = [features[row] for row in windows[number]]
            scored = zip(rows, (logits[row] for row in windows[number]))
            spans = self.rank_spans((scores, row["first"], row["most_context"]) for row, scores in scored)
            if spans:
                row, inside = rows[spans[0].window], slice(spans[0].first, spans[0].last + 1)
                ids = row["input_ids"][row["first"] :][inside]
                answers[name] = self.answer(context, row["begins"][inside], row["ends"][inside], ids)
            else:
                answers[name] = "empty" if self.compat else ""
        return answers

    def rank_spans(self, windows: Iterable[tuple[NDArray[np.float32], int, NDArray[np.bool_]]]) -> list[Span]:
        """All candidates of a question, best first; ties keep their order.

        Args:
            windows: logits (T, 2) of first and last tokens, the index of the context's first token, and for each of
                its tokens whether no other window has more context around it: only such tokens start an answer.
        """
        spans = []
        for window, (logits, first, most_context) in enumerate(windows):
            best = np.argsort(-logits, axis=0, kind="stable")[: self.candidates]  # of all tokens, like XTREME's scripts
            tokens = np.stack(np.meshgrid(*best.T, indexing="ij"), -1).reshape(-1, 2)  # (candidates^2, 2)
            scores = logits[tokens[:, 0], 0].astype(float) + logits[tokens[:, 1], 1]
            starts, ends = (tokens - first).T
            allowed = (starts >= 0) & (starts <= ends) & (ends < len(most_context))
            allowed &= ends < starts + self.answer_length
            allowed[allowed] = most_context[starts[allowed]]
            chosen = (values[allowed].tolist() for values in (scores, starts, ends))
            spans += [Span(score, window, start, end) for score, start, end in zip(*chosen)]
        return sorted(spans, key=lambda span: -span.score)

    def answer(self, context: str, begins: Ints, ends: Ints, ids: Ints) -> str:
        """The text of an answer.

        Args:
            begins, ends: where the characters of each of its tokens begin and end in the context.
            ids: of these tokens.
        """
        if not self.compat:
            return context[begins[0] : ends[-1]].strip()
        words = [word.span() for word in OFFICIAL_WORD.finditer(context)]
        first, last = (bisect_right(words, begin, key=lambda word: word[1]) for begin in (begins[0], begins[-1]))
        chunk = " ".join(context[start:end] for start, end in words[first : last + 1])
        is_word_piece = isinstance(self.tokenizer.backend_tokenizer.model, models.WordPiece)
        decoder = decoders.WordPiece(cleanup=False) if is_word_piece else decoders.Metaspace()
        found = decoder.decode(self.tokenizer.convert_ids_to_tokens(ids))
        normalizer = self.tokenizer.backend_tokenizer.normalizer
        lowercase = normalizer is not None and normalizer.normalize_str("A") == "a"
        return official_answer(" ".join(found.split()), chunk, lowercase)

    @staticmethod
    def references(examples: Dataset) -> dict[str, list[str]]:
        rows = zip(examples["id"], examples["answers"])
        return {name: [answer["text"] for answer in answers] for name, answers in rows}


def no_token(name: str, context: str) -> str:
    """The message for a question whose context has no token."""
    found = f"question {name!r}: its context {context!r} has no token"
    return f"{found}; allowed is a text. Correct or remove the question."


def refuse_contexts_without_token(tokenizer: PreTrainedTokenizerBase, examples: Dataset) -> None:
    """Raise `BadInput` for a question that could not be answered, before any is; letters and digits have tokens."""
    for name, context in zip(examples["id"][:], examples["context"][:]):
        has_text = any(map(str.isalnum, context))
        if not has_text and not encode_texts(tokenizer, context, add_special_tokens=False)["input_ids"]:
            raise BadInput(no_token(name, context))


def context_windows(tokens: int, room: int, stride: int) -> list[range]:
    """The tokens of each window of a context; a window holds up to `room` tokens.

    >>> context_windows(tokens=10, room=6, stride=3)
    [range(0, 6), range(3, 9), range(6, 10)]
    """
    if room < stride:
        raise BadInput(f"stride: is {stride}; allowed are up to {room} tokens, the size of a window. Lower it.")
    last = max(0, -(-(tokens - room) // stride))
    return [range(start, min(start + room, tokens)) for start in range(0, last * stride + 1, stride)]


def with_marks(text: str, begins: NDArray[np.integer[Any]], ends: NDArray[np.integer[Any]]) -> Ints:
    """Where tokens end, with what belongs to none: combining marks, which tokenizers that compose characters skip, and
    characters without width at the end of a word, which MLQA's answers have in Spanish, "[1]\u200b".

    >>> with_marks("cafe\u0301 x", np.array([0, 6]), np.array([4, 7])).tolist()
    [5, 7]
    >>> with_marks("1\u200b x\u200by", np.array([0, 3, 5]), np.array([1, 4, 6])).tolist()
    [2, 4, 6]
    """
    ends, text = ends.copy(), f"{text} "
    following = np.append(begins[1:], len(text))
    for token in np.flatnonzero(following > ends):
        left = text[ends[token] : following[token]]
        if not left.isspace():
            kinds = "".join(" " if letter.isspace() else unicodedata.category(letter)[0] for letter in left)
            ends[token] += len(OF_A_TOKEN.findall(kinds)[0])
    return ends


def most_context_in(windows: Sequence[range]) -> list[NDArray[np.bool_]]:
    """For each token of each window, whether its smaller context, left or right, is the largest of all windows."""
    scores = np.full((len(windows), windows[-1].stop), -np.inf)
    for row, window in zip(scores, windows):
        tokens = np.arange(len(window))
        row[window.start : window.stop] = np.minimum(tokens, tokens[::-1]) + 0.01 * len(window)
    best = scores.argmax(0)  # ties: the first window
    return [best[window.start : window.stop] == number for number, window in enumerate(windows)]


def answer_tokens(name: str, answers: Sequence[Mapping[str, Any]], begins: Ints, ends: Ints) -> tuple[int, int]:
    """First and last token of the first reference answer; (-1, -1) if its characters are in no token."""
    if not answers:
        raise BadInput(f"question {name!r}: has no answer; allowed for training are questions with one. Remove it.")
    start = answers[0]["start"]
    end = start + len(answers[0]["text"])
    first = int(np.searchsorted(ends, start, "right"))  # the first token that ends after the start of the answer
    if first == len(ends) or begins[first] >= end:
        return -1, -1
    # a single ▁ has the same first character as the token after it
    first = int(np.searchsorted(begins, max(start, begins[first]), "right")) - 1
    return first, int(np.searchsorted(begins, end, "left")) - 1


def official_answer(found: str, chunk: str, lowercase: bool = False) -> str:
    """The answer of XTREME's scripts: the part of a chunk of words that BERT's tokenizer, cased or not, writes as
    `found`; all of the chunk if there is none, as always in Chinese.

    >>> official_answer("Smith", "Smith's"), official_answer("东京", "日本东京都")
    ('Smith', '日本东京都')
    """
    written = normalizers.BertNormalizer(lowercase=lowercase).normalize_str(chunk)
    spaced = " ".join(token for token, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(written))
    start = spaced.find(found)
    letters = [index for index, letter in enumerate(chunk) if letter != " "]
    if not found or start < 0 or len(letters) != len(spaced.replace(" ", "")):
        return chunk
    before = len(spaced[:start].replace(" ", ""))
    return chunk[letters[before] : letters[before + len(found.replace(" ", "")) - 1] + 1]
