"""The nine tasks of XTREME (Hu et al., ICML 2020) as a table: whatever differs between them is in a row of `TASKS`.

A row names the functions of `files`, `hub`, `predictions` and `metrics` that it needs, and its files. Hyperparameters
are those of XTREME's scripts for XLM-R. A tenth task is one more row (docs/xtreme.md).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from datasets import Dataset

from ..retrieval.accuracy import pair_f1
from ..retrieval.bitext import Bitext
from .files import (
    read_bucc,
    read_pair_examples,
    read_question_examples,
    read_tagged_examples,
    read_tatoeba,
)
from .fine_tuning import FineTuningConfig
from .hub import (
    TATOEBA_CODES,
    load_bucc,
    load_mlqa,
    load_panx,
    load_pawsx,
    load_squad,
    load_tatoeba,
    load_tydiqa,
    load_udpos,
    load_xnli,
    load_xquad,
)
from .metrics import accuracy, answer_scores, chunk_f1, mlqa_words, squad_words
from .predictions import ANSWERS, LINES, MINED, TAGS, VALUES, PredictionFormat, translations_into

Examples: TypeAlias = Dataset | Bitext
Layout = tuple[str, ...]  # files read together, {language} and {code} in their names; "?": may be missing


@dataclass(frozen=True)
class XtremeTask:
    """A row of the table.

    Attributes:
        name: of its folders in the data and in a submission.
        title: of its column in the paper's table.
        group: for whose average it counts.
        languages: all that are scored, in the official order.
        format: how predictions are written, read and made.
        metrics: their mean is the score of a language.
        score: metrics and more, in percent, from predictions, references and the language.
        labels: those that files may have; empty: any.
        read: reads examples from the files of a layout, in its order.
        read_training: the same for the training set, if it is read differently.
        read_translated: the same for translations of the training set into a language.
        files: the layouts of each split, first that of XTREME's download script; the first that exists is read.
        from_hub: loads examples by language and split, if the Hub has the task.
        other_on_hub: why scores on the Hub's examples are not XTREME's; empty if they are.
        train_on: the row whose training set is used; `None`: its own.
        base, large: hyperparameters by the size of the encoder.
        codes: the {code} in names of files, by language.
    """

    name: str
    title: str
    group: str
    languages: tuple[str, ...]
    format: PredictionFormat
    metrics: tuple[str, ...]
    score: Callable[[Any, Any, str], dict[str, float]]
    read: Callable[..., Examples]
    files: Mapping[str, tuple[Layout, ...]]
    from_hub: Callable[[str, str], Examples] | None = None
    train_on: "XtremeTask | None" = None
    base: FineTuningConfig | None = None
    large: FineTuningConfig | None = None
    labels: tuple[str, ...] = ()
    read_training: Callable[..., Dataset] | None = None
    read_translated: Callable[[str, Path], Dataset] | None = None
    codes: Mapping[str, str] = field(default_factory=dict)
    other_on_hub: str = ""

    @property
    def source(self) -> "XtremeTask":
        """The row whose training set is used."""
        return self.train_on or self


# --- shared by several rows -------------------------------------------------------------------------------------------

Scores = dict[str, float]


def names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def anywhere(score: Callable[[Any, Any], Scores]) -> Callable[[Any, Any, str], Scores]:
    """A metric as a function that also takes a language, which it ignores."""
    return lambda predictions, references, language: score(predictions, references)


def squad_scores(predictions: Mapping[str, str], references: Mapping[str, Sequence[str]], language: str) -> Scores:
    """Scores by SQuAD's rules for English in all languages, as XTREME scores XQuAD and TyDiQA."""
    return answer_scores(predictions, references, squad_words)


def mlqa_scores(predictions: Mapping[str, str], references: Mapping[str, Sequence[str]], language: str) -> Scores:
    """Scores by MLQA's rules for the language."""
    return answer_scores(predictions, references, mlqa_words(language))


def tables(task: str) -> dict[str, tuple[Layout, ...]]:
    """Files of a task with a table for each split and language, and of translations as in XTREME's bucket."""
    splits = {split: ((f"{task}/{split}-{{language}}.tsv",),) for split in ("train", "dev", "test")}
    translated = ((f"translate-train/{task}/en-{{language}}-translated.tsv",), *splits["train"])
    return splits | {"translated": translated}


def tagged_tables(task: str) -> dict[str, tuple[Layout, ...]]:
    """Like `tables`, with one file of untagged translations for all languages."""
    return tables(task) | {"translated": ((f"translate-train/translate_train.{task}.txt",),)}


XNLI_LABELS = ("contradiction", "entailment", "neutral")
ENTITIES = ("B-LOC", "B-ORG", "B-PER", "I-LOC", "I-ORG", "I-PER", "O")
PARTS_OF_SPEECH = (
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ", "SYM",
    "VERB", "X", "_",
)  # fmt: skip
PANX_LANGUAGES = names(
    "ar he vi id jv ms tl eu ml ta te af nl en de el bn hi mr ur fa fr it pt es bg ru ja ka ko th sw yo my zh kk tr "
    "et fi hu"
)
UDPOS_LANGUAGES = names(
    "af ar bg de el en es et eu fa fi fr he hi hu id it ja kk ko mr nl pt ru ta te th tl tr ur vi yo zh"
)
TATOEBA_LANGUAGES = tuple(name for name in PANX_LANGUAGES if name not in ("en", "ms", "my", "yo"))

ON_QUESTIONS = FineTuningConfig(3e-5, 32, 3, 384, warmup=500, weight_decay=1e-4)
BUCC_FILES = (("", "{language}"), ("", "en"), ("?", "gold"))

# --- the table --------------------------------------------------------------------------------------------------------

SQUAD = XtremeTask(  # a training set; not scored itself
    "squad", "SQuAD", "question answering", ("en",), ANSWERS, ("f1", "exact_match"), squad_scores,
    read=read_question_examples,
    files={
        "train": (("squad/train-v1.1.json",),),
        "dev": (("squad/dev-v1.1.json",),),
        "translated": (("translate-train/squad/squad.translate.train.en-{language}.json",),),
    },
    from_hub=load_squad,
    base=ON_QUESTIONS, large=ON_QUESTIONS,
    read_training=partial(read_question_examples, training=True),
)  # fmt: skip

TASKS = (
    XtremeTask(
        "xnli", "XNLI", "classification", names("ar bg de el en es fr hi ru sw th tr ur vi zh"), VALUES,
        ("accuracy",), anywhere(accuracy), read=read_pair_examples, labels=XNLI_LABELS,
        files=tables("xnli"), from_hub=load_xnli,
        base=FineTuningConfig(2e-5, 32, 5, 128, evaluate_every=100),
        large=FineTuningConfig(3e-5, 32, 5, 128, evaluate_every=100),
    ),
    XtremeTask(
        "pawsx", "PAWS-X", "classification", names("de en es fr ja ko zh"), VALUES,
        ("accuracy",), anywhere(accuracy), read=read_pair_examples, labels=("0", "1"),
        files=tables("pawsx"), from_hub=load_pawsx,
        base=FineTuningConfig(2e-5, 32, 5, 128, evaluate_every=200),
        large=FineTuningConfig(2e-5, 32, 5, 128, evaluate_every=200),
    ),
    XtremeTask(
        "udpos", "POS", "tagging", UDPOS_LANGUAGES, TAGS, ("f1",), anywhere(chunk_f1),
        read=read_tagged_examples, labels=PARTS_OF_SPEECH, files=tagged_tables("udpos"),
        from_hub=load_udpos,
        base=FineTuningConfig(2e-5, 32, 10, 128, evaluate_every=500),
        large=FineTuningConfig(2e-5, 32, 10, 128, evaluate_every=500),
        read_translated=translations_into,
        other_on_hub="on the Hub's words, which are those of treebanks (de + el), not of the text (del)",
    ),
    XtremeTask(
        "panx", "NER", "tagging", PANX_LANGUAGES, TAGS, ("f1",), anywhere(chunk_f1),
        read=read_tagged_examples, labels=ENTITIES, files=tagged_tables("panx"), from_hub=load_panx,
        base=FineTuningConfig(2e-5, 32, 10, 128, evaluate_every=1000),
        large=FineTuningConfig(2e-5, 32, 10, 128, evaluate_every=1000), read_translated=translations_into,
    ),
    XtremeTask(
        "xquad", "XQuAD", "question answering", names("en es de el ru tr ar vi th zh hi"), ANSWERS,
        ("f1", "exact_match"), squad_scores, read=read_question_examples,
        files={"test": (("xquad/xquad.{language}.json",),)}, from_hub=load_xquad, train_on=SQUAD,
    ),
    XtremeTask(
        "mlqa", "MLQA", "question answering", names("en es de ar hi vi zh"), ANSWERS,
        ("f1", "exact_match"), mlqa_scores, read=read_question_examples,
        files={
            split: ((f"mlqa/MLQA_V1/{split}/{split}-context-{{language}}-question-{{language}}.json",),)
            for split in ("dev", "test")
        },
        from_hub=load_mlqa, train_on=SQUAD,
    ),
    XtremeTask(
        "tydiqa", "TyDiQA", "question answering", names("en ar bn fi id ko ru sw te"), ANSWERS,
        ("f1", "exact_match"), squad_scores, read=read_question_examples,
        files={
            "train": tuple(
                (f"tydiqa/tydiqa-goldp-v1.1-train/{name}.json",)
                for name in ("tydiqa.goldp.{language}.train", "tydiqa.{language}.train")
            ),
            "test": (("tydiqa/tydiqa-goldp-v1.1-dev/tydiqa.goldp.{language}.dev.json",),),
            "translated": (("translate-train/tydiqa/tydiqa.translate.train.en-{language}.json",),),
        },
        from_hub=load_tydiqa,
        base=ON_QUESTIONS, large=ON_QUESTIONS,
        read_training=partial(read_question_examples, training=True),
    ),
    XtremeTask(
        "bucc2018", "BUCC", "retrieval", names("de fr ru zh"), MINED, ("f1",), anywhere(pair_f1),
        read=read_bucc,
        files={
            split: (tuple(f"{mark}bucc2018/{{language}}-en.{split}.{end}" for mark, end in BUCC_FILES),)
            for split in ("dev", "test")
        },
        from_hub=load_bucc,
    ),
    XtremeTask(
        "tatoeba", "Tatoeba", "retrieval", TATOEBA_LANGUAGES, LINES, ("accuracy",), anywhere(accuracy),
        read=read_tatoeba,
        files={
            "test": (
                ("tatoeba/tatoeba.{code}-eng.{code}", "tatoeba/tatoeba.{code}-eng.eng"),
                ("tatoeba/{language}-en.{language}", "tatoeba/{language}-en.en"),
            )
        },
        from_hub=load_tatoeba, codes=TATOEBA_CODES,
    ),
)  # fmt: skip
