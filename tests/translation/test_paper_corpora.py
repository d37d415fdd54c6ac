"""The table of the paper's corpora is consistent: names, languages, splits and patterns of files."""

from string import Formatter

import pytest

from hictl_hf.translation.paper_corpora import CORPORA, ROWS, PaperCorpus, ted

PLACEHOLDERS = {"language", "other", "role"}


def files_of(corpus: PaperCorpus) -> list[str]:
    validation = corpus.validation if isinstance(corpus.validation, tuple) else ()
    return [*corpus.train, *validation, *corpus.test, *(name for names in corpus.more_tests.values() for name in names)]


def test_names_are_unique_and_end_with_the_languages() -> None:
    assert len(CORPORA) == len(ROWS)
    for name, corpus in CORPORA.items():
        assert name.endswith("-".join(corpus.pair)) and corpus.source != corpus.target


def test_files_of_ted_talks_worked_by_hand() -> None:
    assert ted("14", "de-en", "dev2010", "TEDX.dev2012") == (
        "IWSLT14.TED.dev2010.de-en.{language}.xml", "IWSLT14.TEDX.dev2012.de-en.{language}.xml",
    )  # fmt: skip


@pytest.mark.parametrize("corpus", ROWS, ids=lambda corpus: corpus.name)
def test_patterns_name_one_file_for_each_side(corpus: PaperCorpus) -> None:
    for pattern in files_of(corpus):
        assert {field for _, field, _, _ in Formatter().parse(pattern) if field} <= PLACEHOLDERS
        source, target = (
            pattern.format(language=one, other=other, role=role)
            for one, other, role in ((*corpus.pair, "src"), (*reversed(corpus.pair), "ref"))
        )
        assert (source != target) == ("{language}" in pattern), "without {language} one table has both sides"


@pytest.mark.parametrize("corpus", ROWS, ids=lambda corpus: corpus.name)
def test_exact_numbers_are_of_its_splits_and_fit_the_rounded_one(corpus: PaperCorpus) -> None:
    splits = {"train", "validation", "test", *(f"test-{language}" for language in corpus.more_tests)}
    assert set(corpus.exact_lines) <= splits
    if "train" in corpus.exact_lines:
        assert abs(corpus.exact_lines["train"] / corpus.rounded_train - 1) < 0.03
    if isinstance(corpus.validation, int):  # every n-th of what train and validation have together
        both = corpus.exact_lines["train"] + corpus.exact_lines["validation"]
        assert corpus.exact_lines["validation"] == both // corpus.validation


def test_both_directions_of_the_german_talks_are_the_same_corpus() -> None:
    one, other = CORPORA["iwslt14-en-de"], CORPORA["iwslt14-de-en"]
    assert one.pair == tuple(reversed(other.pair)) and files_of(one) == files_of(other)
