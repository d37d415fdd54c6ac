"""The five forms of predictions of XTREME's tasks: labels, tags, answers, mined pairs, lines. A kind says how they are
written, read and made, from a fine-tuned model or from sentence vectors. Which task is of which kind is in
`xtreme_tasks`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset

from .neighbours import Vectors
from .question_answering import QuestionAnswering
from .retrieval import Bitext, IdPair, best_threshold, extract_pairs, mine_id_pairs, nearest
from .tagging import Tagging
from .xtreme_features import SentencePairs
from .xtreme_files import (
    read_answers,
    read_gold_answers,
    read_id_pairs,
    read_tags,
    read_translations,
    read_values,
    write_answers,
    write_id_pairs,
    write_tags,
    write_values,
)

Embedded = tuple[Bitext, Vectors, Vectors]  # with vectors of its queries and of its candidates


@dataclass(frozen=True)
class Kind:
    """What tasks with the same form of predictions share: the files of a submission, and who predicts.

    Attributes:
        ending: of the files of a submission.
        read_predictions, write_predictions, read_golds: of these files.
        golds: of examples that have labels, in the form of predictions; `None` for those that have not.
        features: the `TaskFeatures` between texts and a fine-tuned model; `None`: nothing is trained.
        retrieve: predictions from sentence vectors of the split that is scored and of dev.
        tuned_on_dev: whether it needs the golds of dev for that.
        other_direction: score, in percent, of looking for the queries with the candidates, which others report.
        labelled: translated training examples with what a model predicts for them, where translations have no labels.
        compat: what the official scripts do otherwise: "reading" or "answers".
    """

    ending: str
    read_predictions: Callable[[Path], Any]
    write_predictions: Callable[[Path, Any], Path]
    read_golds: Callable[[Path], Any]
    golds: Callable[[Any], Any]
    features: Any = None
    retrieve: Callable[[Embedded, Embedded | None], Any] | None = None
    tuned_on_dev: bool = False
    other_direction: Callable[[Embedded], float] | None = None
    labelled: Callable[[Dataset, Any], Dataset] | None = None
    compat: str = ""


def labels_of(examples: Dataset) -> list[str] | None:
    return None if None in (golds := SentencePairs.golds(examples)) else golds


def tags_of(examples: Dataset) -> list[list[str]] | None:
    return None if None in (golds := Tagging.golds(examples)) else golds


def answers_of(examples: Dataset) -> dict[str, list[str]] | None:
    return golds if any((golds := QuestionAnswering.golds(examples)).values()) else None


def pairs_of(bitext: Bitext) -> set[IdPair] | None:
    return None if bitext.gold is None else set(bitext.gold)


def lines_of(bitext: Bitext) -> list[str] | None:
    return None if bitext.gold is None else [dict(bitext.gold)[name] for name in bitext.query_ids]


def mine_pairs(test: Embedded, dev: Embedded | None) -> set[IdPair]:
    """Translations among two corpora, scored by margin, from the threshold on that is best on dev."""
    assert dev is not None and dev[0].gold is not None
    threshold = best_threshold(mine_id_pairs(*dev), dev[0].gold)
    return set(extract_pairs(mine_id_pairs(*test), threshold))


def find_lines(test: Embedded, dev: Embedded | None) -> list[str]:
    """The id of the nearest candidate of each query."""
    bitext, queries, candidates = test
    return [bitext.candidate_ids[row] for row in nearest(queries, candidates)]


def other_way_round(test: Embedded) -> float:
    """Accuracy from foreign to English, the direction of MTEB and LASER."""
    bitext, queries, candidates = test
    found = nearest(candidates, queries)
    pairs = {(bitext.query_ids[row], name) for row, name in zip(found, bitext.candidate_ids)}
    return 100 * len(pairs & (bitext.gold or frozenset())) / len(found)


def with_tags(translations: Dataset, tags: Sequence[Sequence[str]]) -> Dataset:
    """Translated sentences as training examples."""
    return Dataset.from_dict({"words": translations["words"][:], "tags": tags})


def translations_into(language: str, path: Path) -> Dataset:
    """Those of a file of translations into many languages."""
    return read_translations(path).filter(lambda to: to == language, input_columns="language")


# --- the kinds --------------------------------------------------------------------------------------------------------

VALUES = Kind(
    "tsv", read_values, write_values, read_values, labels_of, SentencePairs, compat="reading"
)  # fmt: skip
TAGS = Kind("tsv", read_tags, write_tags, read_tags, tags_of, Tagging, labelled=with_tags)
ANSWERS = Kind(
    "json", read_answers, write_answers, read_gold_answers, answers_of, QuestionAnswering,
    compat="answers",
)  # fmt: skip
MINED = Kind("tsv", read_id_pairs, write_id_pairs, read_id_pairs, pairs_of, retrieve=mine_pairs, tuned_on_dev=True)
LINES = Kind(
    "tsv", read_values, write_values, read_values, lines_of, retrieve=find_lines, other_direction=other_way_round
)  # fmt: skip
