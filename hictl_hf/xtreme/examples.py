"""The examples of XTREME's tasks, from files or from the Hub: their columns and checks."""

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset, Features, List, Value

from ..data.records import checked_text
from ..errors import BadInput, BrokenRow, short_repr
from ..retrieval.bitext import Bitext

logger = logging.getLogger(__name__)

TEXT = Value("string")
PAIRS = Features({"first": TEXT, "second": TEXT, "label": TEXT})
TAGGED = Features({"words": List(TEXT), "tags": List(TEXT)})
TRANSLATIONS = Features({"source_words": List(TEXT), "language": TEXT, "words": List(TEXT)})
ANSWERS = List({"text": TEXT, "start": Value("int32")})
QUESTIONS = Features({"id": TEXT, "question": TEXT, "context": TEXT, "answers": ANSWERS})
OTHER_LABELS = {"contradictory": "contradiction"}  # in the translated training sets of XNLI
FIX = "Download or write it again."


@dataclass(frozen=True)
class Question:
    """A question as in its source.

    Attributes:
        place: the name of the question in messages.
        answers: texts, each with the index of the character where it is said to start.
    """

    place: str
    id: str
    question: str
    context: str
    answers: Sequence[tuple[str, int]]


def parse_question(place: str, record: Any, context: str) -> Question:
    """Check one entry of "qas"; it may lack "answers"."""
    name, question = text_at(place, record, "id"), text_at(place, record, "question")
    place = f"{place} (id {short_repr(name)})"
    answers = []
    for answer in list_at(place, {"answers": [], **record}, "answers"):
        text = text_at(place, answer, "text")
        if not isinstance(start := answer.get("answer_start"), int):
            raise BadInput(f"{place}: has {short_repr(start)} as 'answer_start'; allowed are integers. Correct it.")
        answers.append((text, start))
    return Question(place, name, question, context, answers)


def question_dataset(source: str, questions: Iterable[Question], training: bool) -> Dataset:
    """Questions with their answers at the nearest occurrence in the context, one given twice where it is first said to
    be; empty answers, as in XTREME's test files, are dropped.

    Predictions are stored by id, so a repeated id raises `BadInput`, as does an answer that is not in its context. In
    training, questions are numbered instead, and those without an answer in the context are left out.
    """
    examples: list[dict[str, Any]] = []
    places: dict[str, str] = {}
    left_out = 0
    for question in questions:
        starts: dict[str, int | None] = {}
        for text, start in question.answers:
            if text and text not in starts:
                starts[text] = nearest_start(question.context, text, start)
        answers = [{"text": text, "start": start} for text, start in starts.items() if start is not None]
        if not training:
            refuse_repeated(places, question.id, question.place)
            if not question.context.strip():
                raise BadInput(f"{question.place}: has no text as its context; allowed is one. Correct or remove it.")
            if lost := [text for text, start in starts.items() if start is None]:
                allowed = "allowed are answers that occur in the context"
                raise BadInput(f"{question.place}: has the answer {short_repr(lost[0])}; {allowed}. Correct it.")
        elif not answers:
            left_out += 1
            continue
        name = str(len(examples)) if training else question.id
        examples.append({"id": name, "question": question.question, "context": question.context, "answers": answers})
    if not examples:
        wanted = "a question with an answer in its context" if training else "a question"
        raise BadInput(f"{source}: has no row to use; allowed is {wanted} or more. {FIX}")
    if left_out:
        logger.warning("%s: left out %d questions without an answer in their context.", source, left_out)
    return Dataset.from_list(examples, features=QUESTIONS)


def nearest_start(context: str, text: str, start: int) -> int | None:
    """The occurrence of a text in the context that is nearest to `start`; `None` without any.

    >>> nearest_start("a cat, a dog, a cat", "cat", 10), nearest_start("a cat", "dog", 2)
    (16, None)
    """
    if start >= 0 and context.startswith(text, start):
        return start
    found = (match.start() for match in re.finditer(f"(?={re.escape(text)})", context))
    return min(found, key=lambda index: abs(index - start), default=None)


def sorted_bitext(english: Sequence[str], foreign: Sequence[str]) -> Bitext:
    """XTREME's Tatoeba from parallel sentences: the English ones are sorted; each is to find its original line."""
    order = sorted(range(len(english)), key=english.__getitem__)
    ids = [str(number) for number in range(len(english))]
    return Bitext([english[line] for line in order], foreign, ids, ids, frozenset(zip(ids, map(str, order))))


def check_label(place: str, label: str, labels: Collection[str]) -> str:
    """The label under its usual name; without `labels` any label but an empty one is allowed."""
    label = OTHER_LABELS.get(label.strip(), label.strip())
    if not label or (labels and label not in labels):
        allowed = ", ".join(labels) or "all but empty ones"
        raise BadInput(f"{place}: has {short_repr(label)} as its label; allowed are {allowed}. Correct the label.")
    return label


def refuse_repeated(places: dict[str, str], name: str, place: str) -> None:
    """Record the place of an id; raise `BadInput` if it was recorded before."""
    if name in places:
        allowed = f"allowed is each id once, and {places[name]} has it"
        raise BadInput(f"{place}: has the id {short_repr(name)} again; {allowed}. Remove or rename one of them.")
    places[name] = place


def list_at(place: str, record: Any, key: str) -> list[Any]:
    value = record.get(key) if isinstance(record, Mapping) else None
    if not isinstance(value, list):
        raise BadInput(f"{place}: has {short_repr(value)} as '{key}'; allowed is a list, as in SQuAD's format. {FIX}")
    return value


def text_at(place: str, record: Any, key: str) -> str:
    try:
        return checked_text(key, record.get(key) if isinstance(record, Mapping) else None)
    except BrokenRow as problem:
        raise BadInput(f"{place}: {problem}") from problem
