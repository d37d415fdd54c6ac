"""The five prediction formats of XTREME's tasks: labels, tags, answers, mined pairs, lines.

A format defines how predictions are written, read and checked, and what makes them: a fine-tuned model or sentence
vectors. The format of each task is in `tasks.TASKS`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset

from ..data.languages import wanted_language
from ..errors import BadInput, short_repr
from ..retrieval.bitext import Bitext, IdPair, best_threshold, extract_pairs, mine_id_pairs, nearest
from ..retrieval.nearest_neighbours import Vectors
from .files import (
    read_answers,
    read_id_pairs,
    read_reference_answers,
    read_tags,
    read_translations,
    read_values,
    write_answers,
    write_id_pairs,
    write_tags,
    write_values,
)
from .question_answering import QuestionAnswering
from .sentence_pairs import SentencePairs
from .tagging import Tagging

Embedded = tuple[Bitext, Vectors, Vectors]  # with the vectors of its queries and of its candidates


@dataclass(frozen=True)
class PredictionFormat:
    """A form of predictions, shared by tasks: its files in a submission, its checks, and the model that predicts.

    Attributes:
        ending: extension of the files of a submission.
        read_predictions, write_predictions, read_references: for these files.
        references: of labelled examples, in the form of predictions; `None` for unlabelled ones.
        check_references: raises `BadInput` unless the references of a file (its name, the references) fit examples with
            these labels.
        features: the `TaskFeatures` class of a fine-tuned model; `None`: nothing is trained.
        retrieve: predictions from the sentence vectors of the scored split and of dev.
        tuned_on_dev: whether `retrieve` needs the references of dev.
        other_direction: score, in percent, of searching the queries with the candidates, as MTEB reports it.
        labelled: adds a model's predictions to translated training examples that have no labels.
        compat: where the official scripts differ: "reading" or "answers".
    """

    ending: str
    read_predictions: Callable[[Path], Any]
    write_predictions: Callable[[Path, Any], Path]
    read_references: Callable[[Path], Any]
    references: Callable[[Any], Any]
    check_references: Callable[[str, Any, Any, Collection[str]], None]
    features: Any = None
    retrieve: Callable[[Embedded, Embedded | None], Any] | None = None
    tuned_on_dev: bool = False
    other_direction: Callable[[Embedded], float] | None = None
    labelled: Callable[[Dataset, Any], Dataset] | None = None
    compat: str = ""


def labels_of(examples: Dataset) -> list[str] | None:
    return None if None in (references := SentencePairs.references(examples)) else references


def tags_of(examples: Dataset) -> list[list[str]] | None:
    return None if None in (references := Tagging.references(examples)) else references


def answers_of(examples: Dataset) -> dict[str, list[str]] | None:
    """The answers by question id; `BadInput` if some questions have answers and others have none."""
    references = QuestionAnswering.references(examples)
    missing = [name for name, answers in references.items() if not answers]
    if missing and len(missing) < len(references):
        allowed = "allowed is an answer to each question, or to none"
        found = f"the question {short_repr(missing[0])} has no answer, as {len(missing)} of {len(references)}"
        raise BadInput(f"{found}; {allowed}. Remove the questions without one.")
    return references if len(missing) < len(references) else None


def pairs_of(bitext: Bitext) -> set[IdPair] | None:
    return None if bitext.gold is None else set(bitext.gold)


def lines_of(bitext: Bitext) -> list[str] | None:
    return None if bitext.gold is None else [dict(bitext.gold)[name] for name in bitext.query_ids]


# --- references of a file ---------------------------------------------------------------------------------------------

FIX = "Give the labels of the examples that are scored"


def check_values(path: str, references: Sequence[str], examples: Dataset | Bitext, labels: Collection[str]) -> None:
    """Raise `BadInput` unless each example has one of the labels, or of a bitext's candidates."""
    if isinstance(examples, Bitext):
        number, labels = len(examples.queries), examples.candidate_ids
    else:
        number = len(examples)
    check_number(path, references, number)
    check_labels(path, references, labels)


def check_tags(path: str, references: Sequence[Sequence[str]], examples: Dataset, labels: Collection[str]) -> None:
    """Raise `BadInput` unless each word has one of the tags."""
    check_number(path, references, len(examples))
    check_labels(path, [tag for tags in references for tag in tags], labels)
    if problem := problem_of_lengths(path, references, examples["words"]):
        raise BadInput(f"{problem}. {FIX}.")


def check_answers(
    path: str, references: Mapping[str, Sequence[str]], examples: Dataset, labels: Collection[str]
) -> None:
    """Raise `BadInput` unless each question has an answer, and no other question has."""
    asked, answered = {*examples["id"]}, {name for name, texts in references.items() if texts}
    for found, names in (("has no answer to", asked - answered), ("has", references.keys() - asked)):
        if names:
            allowed = f"allowed are answers to each of the {len(asked)} that are asked"
            raise BadInput(f"{path}: {found} the question {short_repr(min(names))}; {allowed}. {FIX}.")


def check_pairs(path: str, references: Set[tuple[str, ...]], bitext: Bitext, labels: Collection[str]) -> None:
    """Raise `BadInput` unless the ids of all pairs are in the corpora."""
    queries, candidates = {*bitext.query_ids}, {*bitext.candidate_ids}
    for pair in sorted(references):
        if len(pair) != 2 or pair[0] not in queries or pair[1] not in candidates:
            raise BadInput(
                f"{path}: has {short_repr(pair)}; allowed are two ids, a foreign and an English sentence's. {FIX}."
            )


def check_number(path: str, references: Sequence[Any], number: int) -> None:
    if len(references) != number:
        allowed = f"allowed is one for each of the {number} examples"
        raise BadInput(f"{path}: has {len(references)} labels; {allowed}. {FIX}, in their order.")


def problem_of_lengths(path: str, tags: Sequence[Any], words: Sequence[Any]) -> str:
    """The first sentence of a file that has too few or too many tags, which shift those after it; empty without any,
    and for predictions that are not tags."""
    line = 1
    for number, (found, expected) in enumerate(zip(tags, words), start=1):
        if isinstance(found, list) and len(found) != len(expected):
            allowed = f"allowed is one for each of its {len(expected)} words"
            return f"{path}:{line}: has {len(found)} tags in sentence {number}; {allowed}"
        line += len(found) + 1  # a blank one
    return ""


def check_labels(path: str, references: Sequence[str], labels: Collection[str]) -> None:
    if labels and (unknown := {*references} - {*labels}):
        raise BadInput(f"{path}: has the label {short_repr(min(unknown))}; allowed are {', '.join(labels)}. {FIX}.")


# --- predictions from sentence vectors, and translations --------------------------------------------------------------


def mine_pairs(test: Embedded, dev: Embedded | None) -> set[IdPair]:
    """Mine pairs by margin: those that score the threshold that is best on dev, or more."""
    assert dev is not None and dev[0].gold is not None
    threshold = best_threshold(mine_id_pairs(*dev), dev[0].gold)
    return set(extract_pairs(mine_id_pairs(*test), threshold))


def find_lines(test: Embedded, dev: Embedded | None) -> list[str]:
    """The id of the nearest candidate of each query."""
    bitext, queries, candidates = test
    return [bitext.candidate_ids[index] for index in nearest(queries, candidates)]


def other_way_round(test: Embedded) -> float:
    """Accuracy from foreign to English, the direction of MTEB and LASER."""
    bitext, queries, candidates = test
    assert bitext.gold is not None
    found = nearest(candidates, queries)
    pairs = {(bitext.query_ids[index], name) for index, name in zip(found, bitext.candidate_ids)}
    return 100 * len(pairs & bitext.gold) / len(found)


def with_tags(translations: Dataset, tags: Sequence[Sequence[str]]) -> Dataset:
    """Translated sentences with these tags as training examples."""
    return Dataset.from_dict({"words": translations["words"][:], "tags": tags})


def translations_into(language: str, path: Path) -> Dataset:
    """The translations into a language, whatever code names it, from a file of many languages."""
    return read_translations(path).filter(lambda to: bool(wanted_language(to, [language])), input_columns="language")


# --- the formats ------------------------------------------------------------------------------------------------------

VALUES = PredictionFormat(
    "tsv", read_values, write_values, read_values, labels_of, check_values, SentencePairs, compat="reading"
)  # fmt: skip
TAGS = PredictionFormat("tsv", read_tags, write_tags, read_tags, tags_of, check_tags, Tagging, labelled=with_tags)
ANSWERS = PredictionFormat(
    "json", read_answers, write_answers, read_reference_answers, answers_of, check_answers, QuestionAnswering,
    compat="answers",
)  # fmt: skip
MINED = PredictionFormat(
    "tsv", read_id_pairs, write_id_pairs, read_id_pairs, pairs_of, check_pairs, retrieve=mine_pairs, tuned_on_dev=True
)  # fmt: skip
LINES = PredictionFormat(
    "tsv", read_values, write_values, read_values, lines_of, check_values, retrieve=find_lines,
    other_direction=other_way_round,
)  # fmt: skip
