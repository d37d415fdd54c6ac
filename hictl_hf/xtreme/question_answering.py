"""Questions about a context: how a long context is cut into windows, and which of its characters are the answer.

Windows and candidates are those of XTREME's scripts. An answer is what stands in the context between the characters of
its first and its last token, also where no spaces part words. The scripts took another way, by BERT's tokeniser, that
fails on Chinese and other such text; `compat` takes it too, to compare with numbers made so. Which answers are right
is left to `metrics`.
"""

import re
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

from ..errors import BadInput
from .sentence_pairs import NUMBER, NUMBERS, Logits, input_columns, map_examples

Ints = Sequence[int] | NDArray[np.integer[Any]]
OFFICIAL_WORD = re.compile("[^ \t\r\n\u202f]+")  # other spaces do not part words there


class Span(NamedTuple):
    """A candidate: the sum of its logits, its window, and its first and last token in the context of that window."""

    score: float
    window: int
    first: int
    last: int


@dataclass(frozen=True)
class QuestionAnswering:
    """What part of the context answers a question; examples have the columns id, question, context and answers.

    Attributes:
        stride: tokens between the beginnings of two windows (where HF's tokenizers want what two windows share).
        question_length: tokens of a question that are read.
        candidates: so many first and last tokens, the best ones of each window, are combined.
        answer_length: longest answer, in tokens.
        compat: find answers in the context as XTREME's scripts do.
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
    shortest: ClassVar[int] = 128 + 64 + 30 + 4  # stride, question, an answer that two windows share, special tokens

    @staticmethod
    def label_names(train: Dataset) -> tuple[str, ...]:
        return ("start", "end")

    # --- text to windows ----------------------------------------------------------------------------------------------

    def encode(self, examples: Dataset, training: bool = False) -> Dataset:
        """One row or more for each question. For training with the places of the first gold answer's first and last
        token, 0 where it does not lie in the window as a whole; else with the number of the question (`example`), the
        place of the first token of the context (`first`), and of each of its tokens where its characters begin and end
        (`begins`, `ends`) and whether no other window has more context around it (`most_context`)."""
        columns = dict.fromkeys(input_columns(self.tokenizer), NUMBERS)
        if training:
            columns |= dict.fromkeys(("start_positions", "end_positions"), NUMBER)
        else:
            columns |= dict.fromkeys(("example", "first"), NUMBER) | dict.fromkeys(("begins", "ends"), NUMBERS)
            columns["most_context"] = List(Value("bool"))
        return map_examples(examples, self.tokenize, columns, training)

    def tokenize(self, batch: Mapping[str, list[Any]], numbers: list[int], training: bool) -> dict[str, Any]:
        encoded = self.tokenizer(
            batch["question"], batch["context"], return_offsets_mapping=True, return_attention_mask=False, verbose=False
        )
        rows: dict[str, list[Any]] = defaultdict(list)
        for row, number in enumerate(numbers):
            sides = np.array([-1 if side is None else side for side in encoded.sequence_ids(row)])
            context = np.flatnonzero(sides == 1)
            if not len(context):
                raise BadInput(
                    f"question {batch['id'][row]!r}: its context {batch['context'][row]!r} has no token; allowed is a "
                    "text. Correct or remove the question."
                )
            kept = np.setdiff1d(np.flatnonzero(sides != 1), np.flatnonzero(sides == 0)[self.question_length :])
            before, after = kept[kept < context[0]], kept[kept > context[-1]]
            begins, ends = np.array(encoded["offset_mapping"][row])[context].T
            windows = context_windows(len(context), self.max_length - len(kept), self.stride)
            answer = answer_tokens(batch["id"][row], batch["answers"][row], begins, ends) if training else None
            for window, most_context in zip(windows, most_context_in(windows)):
                inside = slice(window.start, window.stop)
                places = np.concatenate([before, context[inside], after])
                for name in input_columns(self.tokenizer):
                    rows[name].append(np.array(encoded[name][row])[places])
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
        """All candidates of a question, best first; of equals the first.

        Args:
            windows: logits (T, 2) of first and last tokens, the place of the context's first token, and for each of its
                tokens whether no other window has more context around it: answers begin only with such.
        """
        spans = []
        for window, (logits, first, most_context) in enumerate(windows):
            best = np.argsort(-logits, axis=0, kind="stable")[: self.candidates]  # of all tokens, as officially
            places = np.stack(np.meshgrid(*best.T, indexing="ij"), -1).reshape(-1, 2)  # (candidates^2, 2)
            scores = logits[places[:, 0], 0].astype(float) + logits[places[:, 1], 1]
            starts, ends = (places - first).T
            allowed = (starts >= 0) & (starts <= ends) & (ends < len(most_context))
            allowed &= ends < starts + self.answer_length
            allowed[allowed] = most_context[starts[allowed]]
            chosen = (values[allowed].tolist() for values in (scores, starts, ends))
            spans += [Span(score, window, start, end) for score, start, end in zip(*chosen)]
        return sorted(spans, key=lambda span: -span.score)

    def answer(self, context: str, begins: Ints, ends: Ints, ids: Ints) -> str:
        """The text of an answer.

        Args:
            begins, ends: characters of the context where each of its tokens begins and ends.
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
        return official_answer(" ".join(found.split()), chunk)

    @staticmethod
    def references(examples: Dataset) -> dict[str, list[str]]:
        rows = zip(examples["id"], examples["answers"])
        return {name: [answer["text"] for answer in answers] for name, answers in rows}


def context_windows(tokens: int, room: int, stride: int) -> list[range]:
    """Of a context of so many tokens those of each window, which holds up to `room` of them.

    >>> context_windows(tokens=10, room=6, stride=3)
    [range(0, 6), range(3, 9), range(6, 10)]
    """
    if room < stride:
        raise BadInput(f"stride: is {stride}; allowed are up to {room} tokens, which a window holds. Lower it.")
    last = max(0, -(-(tokens - room) // stride))
    return [range(start, min(start + room, tokens)) for start in range(0, last * stride + 1, stride)]


def most_context_in(windows: Sequence[range]) -> list[NDArray[np.bool_]]:
    """For each token of each window whether it has the most context there: on the side where it has less of it."""
    scores = np.full((len(windows), windows[-1].stop), -np.inf)
    for row, window in zip(scores, windows):
        tokens = np.arange(len(window))
        row[window.start : window.stop] = np.minimum(tokens, tokens[::-1]) + 0.01 * len(window)
    best = scores.argmax(0)  # of equals the first
    return [best[window.start : window.stop] == number for number, window in enumerate(windows)]


def answer_tokens(name: str, answers: Sequence[Mapping[str, Any]], begins: Ints, ends: Ints) -> tuple[int, int]:
    """First and last token of the first gold answer; (-1, -1) if its characters are in no token."""
    if not answers:
        raise BadInput(f"question {name!r}: has no answer; allowed for training are questions with one. Remove it.")
    start = answers[0]["start"]
    end = start + len(answers[0]["text"])
    first = int(np.searchsorted(ends, start, "right"))  # the first token that ends after the answer's begin
    if first == len(ends) or begins[first] >= end:
        return -1, -1
    # a lone ▁ has the same first character as the piece after it
    first = int(np.searchsorted(begins, max(start, begins[first]), "right")) - 1
    return first, int(np.searchsorted(begins, end, "left")) - 1


def official_answer(found: str, chunk: str, lowercase: bool = False) -> str:
    """What XTREME's scripts answer: the part of a chunk of whole words that BERT's tokeniser would write as `found`, or
    all of the chunk where it would not, as always in Chinese.

    >>> official_answer("Smith", "Smith's"), official_answer("东京", "日本东京都")
    ('Smith', '日本东京都')
    """
    written = normalizers.BertNormalizer(lowercase=lowercase).normalize_str(chunk)
    spaced = " ".join(token for token, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(written))
    start = spaced.find(found)
    letters = [place for place, letter in enumerate(chunk) if letter != " "]
    if not found or start < 0 or len(letters) != len(spaced.replace(" ", "")):
        return chunk
    before = len(spaced[:start].replace(" ", ""))
    return chunk[letters[before] : letters[before + len(found.replace(" ", "")) - 1] + 1]
