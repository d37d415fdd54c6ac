"""XTREME's metrics over plain lists, dictionaries and sets, in percent and unrounded.

The arithmetic follows its `evaluate.py` step by step, so that scores agree to the last bit.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..retrieval.accuracy import overlap

ASCII_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation))
ENGLISH_ARTICLES = r"\b(a|an|the)\b"
MLQA_SPACES = {  # by language, the pattern that is replaced before words are split at white space
    "en": (ENGLISH_ARTICLES, " "),
    "es": (r"\b(un|una|unos|unas|el|la|los|las)\b", " "),
    "de": (r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b", " "),
    "ar": ("ال", " "),  # inside words, too; the official pattern was meant for their start
    "hi": (r"\s", " "),  # no articles
    "vi": (r"\b(của|là|cái|chiếc|những)\b", " "),
    "zh": (r"([\u4e00-\u9fa5])", r" \1 "),  # no articles; each of these characters is a word
}


@dataclass(frozen=True)
class Score:
    """Values by metric, and the signature that reproduces them.

    >>> print(Score({"f1": 70.2175}, {"task": "panx", "language": "de", "version": "0.4.0"}))
    f1 = 70.2 task:panx|language:de|version:0.4.0
    """

    values: Mapping[str, float]
    signature: Mapping[str, str]

    @property
    def signature_text(self) -> str:
        return "|".join(f"{name}:{value}" for name, value in self.signature.items())

    def __str__(self) -> str:
        values = ", ".join(f"{metric} = {value:.1f}" for metric, value in self.values.items())
        return f"{values} {self.signature_text}"


def accuracy(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Share of predictions that equal their reference as strings (XNLI, PAWS-X, Tatoeba).

    Raises:
        ValueError: there are no examples, or not as many predictions as references.

    >>> accuracy(["neutral", "entailment"], ["neutral", "contradiction"])
    {'accuracy': 50.0}
    """
    check_lengths(predictions, references)
    right = sum(predicted == reference for predicted, reference in zip(predictions, references))
    return {"accuracy": right / len(references) * 100}


def check_lengths(predictions: Sequence[Any], references: Sequence[Any]) -> None:
    if len(predictions) != len(references):
        raise ValueError(f"{len(predictions)} predictions for {len(references)} examples; allowed is one for each.")
    if len(references) == 0:
        raise ValueError("no examples; allowed is one or more.")


def chunk_f1(predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """F1, precision and recall of `chunks`, over all sentences together, as of seqeval 0.0.12 (UD POS, PANX).

    Tags of UD POS are scored by the same rules: adjacent equal tags are one chunk. Later versions of seqeval drop the
    first letter of such tags and give different scores. A sentence with too few or too many predicted tags shifts all
    sentences after it.

    Raises:
        ValueError: there are no sentences, or not as many predictions as references.

    >>> chunk_f1([["B-PER", "I-PER", "O"]], [["B-PER", "I-PER", "B-LOC"]])["recall"]
    50.0
    """
    check_lengths(predictions, references)
    return overlap(chunks(predictions), chunks(references))


def chunks(sentences: Iterable[Sequence[str]]) -> set[tuple[str, int, int]]:
    """(type, first word, last word) of each chunk, numbering words through all sentences and an O after each.

    The first character of a tag is its position in the chunk (B, I, E, S, O), the part after the last "-" its type: of
    NOUN, N and NOUN.

    >>> sorted(chunks([["O", "I-PER", "I-PER"], ["NOUN", "NOUN", "VERB"]]))
    [('NOUN', 4, 5), ('PER', 1, 2), ('VERB', 6, 6)]
    """
    found, place_before, type_before, first = set(), "O", "", 0
    for number, tag in enumerate(tag for sentence in sentences for tag in (*sentence, "O")):
        place, chunk_type = tag[0], tag.split("-")[-1]
        changes = chunk_type != type_before
        if place_before in "ES" or (place_before in "BI" and place in "BSO") or (place_before not in "O." and changes):
            found.add((type_before, first, number - 1))
        if place in "BS" or (place_before in "ESO" and place in "EI") or (place not in "O." and changes):
            first = number
        place_before, type_before = place, chunk_type
    return found


def squad_words(text: str) -> list[str]:
    """The words of an answer as of SQuAD v1.1, which XQuAD and TyDiQA-GoldP use in all languages.

    >>> squad_words("The  Eiffel Tower!"), squad_words("दिल्ली।")
    (['eiffel', 'tower'], ['दिल्ली।'])
    """
    return re.sub(ENGLISH_ARTICLES, " ", text.lower().translate(ASCII_PUNCTUATION)).split()


def mlqa_words(language: str) -> Callable[[str], list[str]]:
    """A function that splits an answer into words by MLQA's rules: without the language's articles and punctuation.

    Raises:
        ValueError: MLQA has no rules for the language.

    >>> mlqa_words("de")("Der Hund, „Rex“"), mlqa_words("zh")("在 IBM工作。")
    (['hund', 'rex'], ['在', 'ibm', '工', '作'])
    """
    if language not in MLQA_SPACES:
        raise ValueError(f"MLQA has no rules for the language {language!r}; allowed are {', '.join(MLQA_SPACES)}.")
    pattern, replacement = MLQA_SPACES[language]

    def words(text: str) -> list[str]:
        characters = text.lower().translate(ASCII_PUNCTUATION)
        text = "".join(character for character in characters if unicodedata.category(character)[0] != "P")
        return re.sub(pattern, replacement, text).split()

    return words


def answer_scores(
    predictions: Mapping[str, str], references: Mapping[str, Collection[str]], words: Callable[[str], list[str]]
) -> dict[str, float]:
    """Mean F1 over words and share of exact matches, each the best over the reference answers of a question.

    Two answers without words match exactly but have no F1, as in the official code.

    Args:
        predictions: answer by question id; a question without one scores 0, ids not in `references` are ignored.
        references: the correct answers of each question.
        words: `squad_words` or `mlqa_words(language)`.

    Raises:
        ValueError: there are no questions, or one has no reference answer.

    >>> answer_scores({"a": "the red house"}, {"a": ["house", "a red house!"], "b": ["x"]}, squad_words)
    {'f1': 50.0, 'exact_match': 50.0}
    """
    if not references:
        raise ValueError("no questions; allowed is one or more.")
    f1 = exact_match = 0.0
    for question, answers in references.items():
        if not answers:
            raise ValueError(f"question {question!r} has no gold answer; allowed is one or more.")
        if question in predictions:
            predicted, accepted = words(predictions[question]), [words(answer) for answer in answers]
            f1 += max(word_f1(predicted, reference) for reference in accepted)
            exact_match += predicted in accepted
    return {"f1": 100.0 * f1 / len(references), "exact_match": 100.0 * exact_match / len(references)}


def word_f1(predicted: list[str], reference: list[str]) -> float:
    """F1 between 0 and 1 of two bags of words."""
    right = (Counter(predicted) & Counter(reference)).total()
    if not right:
        return 0.0
    precision, recall = right / len(predicted), right / len(reference)
    return 2 * precision * recall / (precision + recall)
