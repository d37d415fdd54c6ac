"""XTREME's tasks from the Hugging Face Hub: one function for each, from language and split to examples.

Splits are "train", "dev", "test" and "translated", a training set in another language; a missing one raises `NotOnHub`.
The Hub's copy of XTREME lacks rows of PAWS-X and the training set of XNLI, which come from other datasets, and has only
the pairs of BUCC, which is refused. Its test sets have labels.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import datasets
from datasets import Dataset

from ..errors import BadInput, as_bad_input, short_repr
from ..retrieval.bitext import Bitext
from .examples import (
    PAIRS,
    TAGGED,
    Question,
    check_label,
    parse_question,
    question_dataset,
    sorted_bitext,
    text_at,
)

logger = logging.getLogger(__name__)

XTREME = "google/xtreme"
XNLI_LABELS = ("entailment", "neutral", "contradiction")  # 0, 1, 2 on the Hub; other numbers in XTREME's scripts
PAWSX_LABELS = ("0", "1")
QUESTION_COLUMNS = ("id", "question", "context", "answers")
SPLITS = {"train": "train", "dev": "validation", "test": "test"}
FOLDER = "Load it online once, or use the folder that XTREME's download script makes."
TYDIQA_LANGUAGES = {
    "ar": "arabic", "bn": "bengali", "en": "english", "fi": "finnish", "id": "indonesian", "ko": "korean",
    "ru": "russian", "sw": "swahili", "te": "telugu",
}  # fmt: skip
UDPOS_LANGUAGES = {
    "af": "Afrikaans", "ar": "Arabic", "bg": "Bulgarian", "de": "German", "el": "Greek", "en": "English",
    "es": "Spanish", "et": "Estonian", "eu": "Basque", "fa": "Persian", "fi": "Finnish", "fr": "French",
    "he": "Hebrew", "hi": "Hindi", "hu": "Hungarian", "id": "Indonesian", "it": "Italian", "ja": "Japanese",
    "kk": "Kazakh", "ko": "Korean", "mr": "Marathi", "nl": "Dutch", "pt": "Portuguese", "ru": "Russian",
    "ta": "Tamil", "te": "Telugu", "th": "Thai", "tl": "Tagalog", "tr": "Turkish", "ur": "Urdu",
    "vi": "Vietnamese", "yo": "Yoruba", "zh": "Chinese",
}  # fmt: skip
TATOEBA_CODES = {
    "af": "afr", "ar": "ara", "bg": "bul", "bn": "ben", "de": "deu", "el": "ell", "es": "spa", "et": "est",
    "eu": "eus", "fa": "pes", "fi": "fin", "fr": "fra", "he": "heb", "hi": "hin", "hu": "hun", "id": "ind",
    "it": "ita", "ja": "jpn", "jv": "jav", "ka": "kat", "kk": "kaz", "ko": "kor", "ml": "mal", "mr": "mar",
    "nl": "nld", "pt": "por", "ru": "rus", "sw": "swh", "ta": "tam", "te": "tel", "th": "tha", "tl": "tgl",
    "tr": "tur", "ur": "urd", "vi": "vie", "zh": "cmn",
}  # fmt: skip


class NotOnHub(BadInput):
    """The Hub lacks a task, language or split."""


class Source(NamedTuple):
    """Rows of the Hub, and their place as messages name it."""

    place: str
    rows: Dataset


# --- a function for each task ---------------------------------------------------------------------------------------


def load_xnli(language: str, split: str) -> Dataset:
    """Load XNLI or PAWS-X; the training set of a language other than English is a translation."""
    if split in ("train", "translated"):
        columns = ("premise", "hypothesis", "label")
        return pair_dataset(load("facebook/xnli", language, "train", columns), columns, XNLI_LABELS)
    columns = ("sentence1", "sentence2", "gold_label")
    source = load(XTREME, "XNLI", allowed("split of XNLI", SPLITS, split), (*columns, "language"))
    return pair_dataset(only(source, source.rows["language"], language), columns, XNLI_LABELS)


def load_pawsx(language: str, split: str) -> Dataset:
    """Load XNLI or PAWS-X; the training set of a language other than English is a translation."""
    columns = ("sentence1", "sentence2", "label")
    name, splits = "google-research-datasets/paws-x", SPLITS | {"translated": "train"}  # XTREME's copy has fewer rows
    return pair_dataset(load(name, language, allowed("split of PAWS-X", splits, split), columns), columns, PAWSX_LABELS)


def load_udpos(language: str, split: str) -> Dataset:
    """Load words as treebanks split them; scores on them are not XTREME's, whose words are those of the text."""
    logger.warning(
        "google/xtreme has the words of treebanks (de + el), XTREME those of the text (del): scores on it are others in"
        " ar, de, es, fr, he, it, pt and more. For XTREME's convert Universal Dependencies 2.5: see"
        " hictl_hf.xtreme.prepare."
    )
    config = f"udpos.{allowed('language of UD-POS', UDPOS_LANGUAGES, language)}"
    source = load(XTREME, config, allowed("split of UD-POS", SPLITS, split), ("tokens", "pos_tags"))
    return tagged_dataset(source, "tokens", "pos_tags")


def load_panx(language: str, split: str) -> Dataset:
    columns = ("tokens", "ner_tags")
    return tagged_dataset(
        load(XTREME, f"PAN-X.{language}", allowed("split of PAN-X", SPLITS, split), columns), *columns
    )


def load_squad(language: str, split: str) -> Dataset:
    """Load SQuAD 1.1, on which models for XQuAD and MLQA are trained; English only."""
    allowed("language of SQuAD", {"en": "en"}, language)
    return load_questions("SQuAD", allowed("split of SQuAD", {"train": "train", "dev": "validation"}, split))


def load_xquad(language: str, split: str) -> Dataset:
    return load_questions(f"XQuAD.{language}", allowed("split of XQuAD", {"test": "validation"}, split))


def load_mlqa(language: str, split: str) -> Dataset:
    """Load questions and contexts of the same language."""
    splits = {"dev": "validation", "test": "test"}
    return load_questions(f"MLQA.{language}.{language}", allowed("split of MLQA", splits, split))


def load_tydiqa(language: str, split: str) -> Dataset:
    """Load TyDiQA, whose one config has all languages; its "dev" set is XTREME's test set."""
    splits = {"train": "train", "test": "validation"}
    name = allowed("language of TyDiQA-GoldP", TYDIQA_LANGUAGES, language)
    source = load(XTREME, "tydiqa", allowed("split of TyDiQA-GoldP", splits, split), QUESTION_COLUMNS)
    source = only(source, [question.split("-")[0] for question in source.rows["id"]], name)
    return question_dataset(source.place, read_questions(source), training=split == "train")


def load_bucc(language: str, split: str) -> Bitext:
    """Raise `NotOnHub`: the Hub has only the pairs."""
    pair = f"{language}-en"
    raise NotOnHub(
        f"hub:{XTREME}:bucc18.{language}: has the gold pairs alone; allowed are all sentences of both languages, among "
        f"which XTREME searches. Download bucc2018-{pair}.sample-gold (dev) and .training-gold (test) of the BUCC 2018 "
        f"shared task, and name their files bucc2018/{pair}.{{dev,test}}.{{{language},en,gold}} in XTREME's folder."
    )


def load_tatoeba(language: str, split: str) -> Bitext:
    config = f"tatoeba.{allowed('language of Tatoeba', TATOEBA_CODES, language)}"
    columns = ("source_sentence", "target_sentence")
    rows = load(XTREME, config, allowed("split of Tatoeba", {"test": "validation"}, split), columns).rows
    foreign, english = ([text.strip() for text in rows[column]] for column in columns)
    return sorted_bitext(english, foreign)


# --- a function for each format -------------------------------------------------------------------------------------


def load(name: str, config: str, split: str, columns: Sequence[str]) -> Source:
    """Load rows that have at least these columns."""
    place = f"hub:{name}:{config}:{split}"
    with as_bad_input(place, "a dataset on the Hub, or in its cache here", FOLDER):
        rows = datasets.load_dataset(name, config, split=split)
    if not set(columns) <= set(rows.column_names):
        raise BadInput(f"{place}: has the columns {rows.column_names}; allowed are {', '.join(columns)}. {FOLDER}")
    return Source(place, rows)


def allowed(what: str, names: Mapping[str, str], name: str) -> str:
    """The Hub's name of a language or split; `NotOnHub` without one."""
    if name not in names:
        raise NotOnHub(f"hub: has no {what} {short_repr(name)}; allowed are {', '.join(names)}. Choose one of them.")
    return names[name]


def only(source: Source, languages: Sequence[str], language: str) -> Source:
    """The rows in a language; `languages` has the language of each row."""
    numbers = [number for number, found in enumerate(languages) if found == language]
    if not numbers:
        found = ", ".join(sorted(set(languages)))
        raise NotOnHub(
            f"{source.place}: has no row in {short_repr(language)}; allowed are {found}. Choose one of them."
        )
    return Source(source.place, source.rows.select(numbers))


def pair_dataset(source: Source, columns: Sequence[str], labels: Sequence[str]) -> Dataset:
    """Sentence pairs; labels are words, or indices of the dataset's names or of `labels`."""
    first, second, label = (list(source.rows[column]) for column in columns)
    names = dict(enumerate(getattr(source.rows.features[columns[-1]], "names", labels)))
    words = [
        check_label(f"{source.place}, row {row}", str(names.get(value, value)), labels)
        for row, value in enumerate(label)
    ]
    for row, pair in enumerate(zip(first, second)):
        for column, text in zip(columns, pair):
            text_at(f"{source.place}, row {row}", {column: text}, column)
    return Dataset.from_dict({"first": first, "second": second, "label": words}, features=PAIRS)


def tagged_dataset(source: Source, words: str, tags: str) -> Dataset:
    """Tagged words; tags are words, or indices of the dataset's names."""
    names = getattr(source.rows.features[tags].feature, "names", ())
    named = [
        [tag_name(f"{source.place}, row {row}", tag, names) for tag in sentence]
        for row, sentence in enumerate(source.rows[tags])
    ]
    return Dataset.from_dict({"words": list(source.rows[words]), "tags": named}, features=TAGGED)


def tag_name(place: str, tag: Any, names: Sequence[str]) -> str:
    if isinstance(tag, str):
        return tag
    if not (isinstance(tag, int) and 0 <= tag < len(names)):
        allowed = f"allowed are words, or numbers of the {len(names)} tags that the dataset names"
        raise BadInput(f"{place}: has {short_repr(tag)} as a tag; {allowed}. {FOLDER}")
    return names[tag]


def load_questions(config: str, split: str) -> Dataset:
    source = load(XTREME, config, split, QUESTION_COLUMNS)
    return question_dataset(source.place, read_questions(source), training=split == "train")


def read_questions(source: Source) -> Iterator[Question]:
    """Questions; answers are lists in a dictionary or dictionaries in a list, by the version of `datasets`."""
    for number, row in enumerate(source.rows):
        place, answers = f"{source.place}, row {number}", row["answers"]
        if isinstance(answers, Mapping):
            answers = [dict(zip(answers, values, strict=True)) for values in zip(*answers.values(), strict=True)]
        yield parse_question(place, {**row, "answers": answers}, text_at(place, row, "context"))
