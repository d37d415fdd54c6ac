"""The corpora behind the rows of the paper's translation tables: the public raw files of training, validation and test
set, the filters, and the expected number of lines.

The paper names the corpora and their rounded sizes, but not their preparation. So each row follows the public recipe
that the paper compares with (docs/translation_data.md). `recipes/translation/` has the training settings of each row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class PaperCorpus:
    """One row. Names of raw files may hold {language} and {other}, the languages of the side and of the other side,
    {role}, src or ref, and * for parts that differ between releases; without {language} it is a table of both sides."""

    name: str
    source: str
    target: str
    train: tuple[str, ...]
    validation: tuple[str, ...] | int
    """Files, or n: every n-th remaining training pair."""
    test: tuple[str, ...]
    rounded_train: int
    """Training pairs as rounded in the paper; 3 % more or less are allowed."""
    exact_lines: Mapping[str, int] = field(default_factory=dict)
    """Lines of splits as printed in a public recipe or data card; other numbers are not allowed."""
    more_tests: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Files of zero-shot test sets, by source language."""
    longest: int | None = None
    """Most tokens, by Moses, of either side of a training pair."""
    ratio: float | None = None
    """Longest over shortest side of a training pair, in Moses' tokens."""
    lowercase: bool = False
    straight_apostrophes: bool = False
    """Replace ’ by ' in validation and test files, as in the public recipes."""
    kept_tags: tuple[str, ...] = ()
    """Keep lines of train.tags files with these tags, as in the public recipe."""
    any_train: bool = False
    """Use the training files that exist; the number of pairs shows whether they are the right ones."""

    @property
    def pair(self) -> tuple[str, str]:
        return self.source, self.target


def ted(year: str, pair: str, *sets: str) -> tuple[str, ...]:
    """Files of IWSLT: TED talks, and of "TEDX.dev2012" those of TEDx."""
    names = (name if "." in name else f"TED.{name}" for name in sets)
    return tuple(f"IWSLT{year}.{name}.{pair}.{{language}}.xml" for name in names)


TWO_WAYS = "{language}-{other}.{language}.xml"  # each side is published as the source of a direction
ENGLISH_GERMAN_TED = PaperCorpus(
    "iwslt14-en-de", "en", "de",
    train=("train.tags.de-en.{language}",),
    validation=23,
    test=ted("14", "de-en", "dev2010", "TEDX.dev2012", "tst2010", "tst2011", "tst2012"),
    rounded_train=160_000,
    exact_lines={"train": 160_239, "validation": 7_283, "test": 6_750},
    longest=175,
    ratio=1.5,
    lowercase=True,
    straight_apostrophes=True,
    kept_tags=("<speaker", "<reviewer", "<translator", "<doc", "</doc"),
)  # fmt: skip
ROWS = (
    ENGLISH_GERMAN_TED,
    replace(ENGLISH_GERMAN_TED, name="iwslt14-de-en", source="de", target="en"),
    PaperCorpus(
        "iwslt14-en-es", "en", "es",
        train=("train.tags.en-es.{language}",),
        validation=ted("14", "en-es", "tst2010", "tst2011", "tst2012"),
        test=(f"IWSLT14.TED.tst2014.{TWO_WAYS}",),
        rounded_train=183_000,
    ),
    PaperCorpus(
        "wmt16-ro-en", "ro", "en",
        train=("europarl-v8.ro-en.{language}", "SETIMES*.en-ro.{language}"),
        validation=("newsdev2016-roen-{role}.{language}.sgm",),
        test=("newstest2016-roen-{role}.{language}.sgm",),
        rounded_train=600_000,
        exact_lines={"validation": 1_999, "test": 1_999},
    ),
    *(
        PaperCorpus(
            f"iwslt17-en-{language}", "en", language,
            train=(f"train.tags.en-{language}.{{language}}",),
            validation=ted("17", f"en-{language}", "tst2013", "tst2014", "tst2015"),
            test=(f"IWSLT17.TED.tst2017.{TWO_WAYS}",),
            rounded_train=rounded_train,
        )
        for language, rounded_train in (("fr", 236_000), ("zh", 235_000))
    ),
    PaperCorpus(
        "wmt14-en-de", "en", "de",
        train=(
            "europarl-v7.de-en.{language}", "commoncrawl.de-en.{language}", "news-commentary-v9.de-en.{language}",
        ),
        validation=("newstest2012.{language}", "newstest2013.{language}"),
        test=("newstest2014-deen-{role}.{language}.sgm",),
        rounded_train=4_500_000,
        exact_lines={"test": 3_003},
    ),
    PaperCorpus(
        "wmt14-en-fr", "en", "fr",
        train=(
            "europarl-v7.fr-en.{language}", "commoncrawl.fr-en.{language}", "undoc.2000.fr-en.{language}",
            "news-commentary-v9.fr-en.{language}", "giga-fren.release2.fixed.{language}",
        ),
        validation=("newstest2012.{language}", "newstest2013.{language}"),
        test=("newstest2014-fren-{role}.{language}.sgm",),
        rounded_train=36_000_000,
        exact_lines={"test": 3_003},
        longest=250,
        ratio=1.5,
    ),
    PaperCorpus(
        "transfer-cs-en", "cs", "en",
        train=(
            "europarl-v9.cs-en.tsv", "news-commentary-v14.cs-en.tsv", "wikititles-v1.cs-en.tsv", "en-cs.bicleaner*.txt",
            "commoncrawl.cs-en.{language}", "czeng*.cs-en.{language}",
        ),
        any_train=True,
        validation=("newstest2017-csen-{role}.{language}.sgm",),
        test=("newstest2018-csen-{role}.{language}.sgm",),
        more_tests={
            "ro": ("newstest2016-roen-{role}.{language}.sgm",),
            "it": ted("17", "it-en", "tst2010"),
            "nl": ted("17", "nl-en", "tst2010"),
        },
        rounded_train=11_000_000,
        exact_lines={"test-ro": 1_999, "test-it": 1_566, "test-nl": 1_777},
    ),
    PaperCorpus(
        "transfer-hi-en", "hi", "en",
        train=("IITB.en-hi.{language}",),
        validation=("dev_test/dev.{language}",),
        test=("dev_test/test.{language}",),
        more_tests={
            "ne": ("wikipedia.devtest.ne-en.{language}",),
            "si": ("wikipedia.devtest.si-en.{language}",),
            "gu": ("newstest2019-guen-{role}.{language}.sgm",),
        },
        rounded_train=1_560_000,
        exact_lines={"validation": 520, "test": 2_507},
    ),
)  # fmt: skip
CORPORA = {corpus.name: corpus for corpus in ROWS}
