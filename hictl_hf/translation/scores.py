"""Scores of translations over plain lists of sentences: multi-bleu.perl's BLEU, sacreBLEU, chrF and COMET, each with
its full signature, and paired bootstrap tests of two systems. The arithmetic is sacrebleu's.

multi-bleu.perl is sacreBLEU without tokenizer and smoothing, but it reads bytes: it does not split words at spaces
beyond ASCII, and -lc lowercases ASCII only. Here all spaces split words and all letters are lowercased, in translations
and references; the signature says text:unicode, and such a character logs a warning. `strict` does what the script
does, with text:bytes. The score is 0 where the script fails, with only empty translations.
"""

import importlib
import importlib.metadata
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest, Result, _bootstrap_resample

from ..data.languages import LANGUAGE, main_part, standard_code
from ..errors import BadInput, short_repr
from ..reports.tables import NONE
from .moses import MosesTokenizer

logger = logging.getLogger(__name__)

METRICS = ("sacrebleu", "multi-bleu", "chrf", "comet")
COMET = "Unbabel/wmt22-comet-da"
MISTAKEN_CODES = {  # codes for which sacreBLEU would not use the language's tokenizer
    "cn": "zh", "zho": "zh", "chi": "zh", "cmn": "zh", "jp": "ja", "jpn": "ja", "kr": "ko", "kor": "ko",
}  # fmt: skip
WITHOUT_SPACES = {"bo", "dz", "gan", "hak", "hsn", "ja", "km", "lo", "lzh", "my", "shn", "th", "wuu", "yue", "zh"}
ASCII_SPACES = " \t\n\r\f\v"
# Characters that split() takes for spaces and perl, reading bytes, does not -> a private one that nothing splits at.
NO_SPACES_IN_PERL = {
    code: chr(0xF0000 + code) for code in range(0x3001) if chr(code).isspace() and chr(code) not in ASCII_SPACES
}

Streams = Sequence[Sequence[str]]
Tokenised = Literal["tokenised"]


def score_text(metric: str, value: float | None) -> str:
    """A score with two decimals; COMET, which is out of 1, with four.

    >>> score_text("chrf", 51.25), score_text("comet", 0.81234)
    ('51.25', '0.8123')
    """
    return NONE if value is None else f"{value:.{4 if metric == 'comet' else 2}f}"


@dataclass(frozen=True)
class Score:
    """A value and the signature that reproduces it; BLEU and chrF out of 100, COMET out of 1.

    >>> print(Score("sacrebleu", 31.876, "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"))
    sacrebleu = 31.88 nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0
    """

    name: str
    """As in `METRICS`."""
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} = {score_text(self.name, self.value)} {self.signature}"


@dataclass(frozen=True)
class Comparison:
    """Two systems by one metric; the second is better with 95 % confidence if `low` is above 0."""

    name: str
    baseline: float
    system: float
    low: float
    """Of the interval of the difference, system minus baseline, in 95 % of the samples."""
    high: float
    p_value: float
    """sacrebleu's, and 1 for two systems with the same translations, where sacrebleu's is the smallest."""
    signature: str

    def __str__(self) -> str:
        gain = f"{self.system - self.baseline:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"
        return (
            f"{self.name} = {self.system:.2f}, {gain} over {self.baseline:.2f}, p = {self.p_value:.4f} {self.signature}"
        )


@dataclass(frozen=True)
class Measure:
    """sacrebleu's metric, the preparation of sentences for it, and its entries of the signature."""

    name: str
    metric: Metric
    prepare: Callable[[Sequence[str]], Sequence[str]] = list
    notes: Mapping[str, str] = field(default_factory=dict)

    def signature(self, about: Mapping[str, str]) -> str:
        """sacrebleu's signature, which is known after scoring, with more entries."""
        return signed(str(self.metric.get_signature()), {**self.notes, **about})


def score_translations(
    hypotheses: Sequence[str],
    references: Streams,
    language: str,
    metrics: Sequence[str] = ("sacrebleu", "chrf"),
    *,
    sources: Sequence[str] | None = None,
    tokenizer: MosesTokenizer | Tokenised | None = None,
    tokenize: str | None = None,
    lowercase: bool = False,
    strict: bool = False,
    about: Mapping[str, str] | None = None,
) -> list[Score]:
    """One score for each metric, in their order.

    Args:
        references: one or more streams, each with a sentence for every translation.
        language: of the translations; sacreBLEU has special tokenizers for zh, ja and ko.
        metrics: some of `METRICS`.
        sources: the source sentences, for COMET only.
        tokenizer: of multi-bleu, by default sacremoses; "tokenised": the text is tokenized already.
        tokenize: tokenizer of sacreBLEU, instead of the language's.
        lowercase: both sides, in all metrics but COMET; multi-bleu's -lc.
        strict: multi-bleu of bytes, as the perl script: spaces and -lc are those of ASCII.
        about: more entries of the signatures, such as `prepare.preparation_signature`.

    Raises:
        ValueError: there is nothing to score, line numbers differ, or COMET has no sources.
        BadInput: a metric or the language is unknown, or a package of it is not installed.
    """
    check_lines(hypotheses, references)
    how = tokenizer, tokenize, lowercase, strict
    measures = {name: measure_of(name, language, *how) for name in metrics if name != "comet"}  # before COMET is loaded
    scores = []
    for name in metrics:
        if name == "comet":
            scores.append(score_by_comet(hypotheses, references, sources, about or {}))
            continue
        measure = measures[name]
        prepared = [list(measure.prepare(stream)) for stream in references]
        value = measure.metric.corpus_score(list(measure.prepare(hypotheses)), prepared).score
        scores.append(Score(measure.name, value, measure.signature(about or {})))
    return scores


def paired_bootstrap(
    baseline: Sequence[str],
    system: Sequence[str],
    references: Streams,
    language: str,
    metrics: Sequence[str] = ("sacrebleu", "chrf"),
    *,
    samples: int = 1000,
    tokenizer: MosesTokenizer | Tokenised | None = None,
    tokenize: str | None = None,
    lowercase: bool = False,
    strict: bool = False,
    about: Mapping[str, str] | None = None,
) -> list[Comparison]:
    """Paired bootstrap resampling (Koehn, 2004), sacrebleu's: both systems are scored on the same samples of the test
    set, drawn with the seed in SACREBLEU_SEED, 12345 without it.

    Raises:
        ValueError: there is nothing to score, numbers of lines differ, or a metric is COMET.
        BadInput: a metric or the language is unknown, or a package of it is not installed.
    """
    check_lines(baseline, references)
    check_lines(system, references)
    if "comet" in metrics:
        raise ValueError("COMET has no sums to sample; compare by other metrics.")
    how = tokenizer, tokenize, lowercase, strict
    measures = [(name, measure_of(name, language, *how)) for name in metrics]  # none is unknown
    found = []
    for name, measure in measures:
        prepared = [list(measure.prepare(stream)) for stream in references]
        systems = [list(measure.prepare(texts)) for texts in (baseline, system)]
        named: list[tuple[str, Sequence[str]]] = [("baseline", systems[0]), ("system", systems[1])]
        tested = PairedTest(named, {name: measure.metric}, prepared, test_type="bs", n_samples=samples)()[1]
        first, second = (result for results in tested.values() for result in results if isinstance(result, Result))
        # sacrebleu returns p and the interval of each system; its samples, shared by both, give that of the difference
        drawn = []
        for texts in systems:
            statistics = measure.metric._extract_corpus_statistics(texts, prepared)
            seed, scores = _bootstrap_resample(statistics, measure.metric, samples)
            drawn.append([score.score for score in scores])
        low, high = map(float, np.percentile(np.subtract(drawn[1], drawn[0]), (2.5, 97.5)))
        signature = signed(measure.signature(about or {}), {"bs": str(samples), "seed": seed})
        p_value = 1.0 if systems[0] == systems[1] else float(second.p_value or 0)
        found.append(Comparison(measure.name, first.score, second.score, low, high, p_value, signature))
    return found


def measure_of(
    name: str,
    language: str,
    tokenizer: MosesTokenizer | Tokenised | None,
    tokenize: str | None,
    lowercase: bool,
    strict: bool,
) -> Measure:
    if name != "chrf":
        check_language(language)
    if name == "multi-bleu":
        words = tokenizer or MosesTokenizer(language)
        if isinstance(words, str) and words != "tokenised":
            raise BadInput(f"tokenizer is {words!r}; allowed are a MosesTokenizer and 'tokenised'")
        if words != "tokenised":
            warn_of_unspaced(language, "Moses' tokenizer")
        return multi_bleu(words if isinstance(words, MosesTokenizer) else None, lowercase, strict)
    if name == "chrf":
        return Measure("chrf", CHRF(lowercase=lowercase))
    if name != "sacrebleu":
        raise BadInput(f"the metric is {name!r}; allowed here are {', '.join(METRICS)}. Choose one of them.")
    try:
        metric = BLEU(lowercase=lowercase, tokenize=tokenize, trg_lang=main_part(language))
        if tokenize is None and metric.tokenizer.signature() == BLEU.TOKENIZER_DEFAULT:
            warn_of_unspaced(language, f"sacreBLEU's {BLEU.TOKENIZER_DEFAULT}")
        return Measure("sacrebleu", metric)
    except (ImportError, RuntimeError) as error:  # MeCab is missing
        fix = f'Install it: pip install "sacrebleu[{language}]", or choose another tokenizer, such as char'
        raise BadInput(
            f"sacreBLEU has no tokenizer for {language} here ({' '.join(str(error).split())}). {fix}."
        ) from error
    except OSError as error:  # the model of a SentencePiece tokenizer cannot be downloaded
        fix = f"Connect to the internet once, or choose another tokenizer, such as {BLEU.TOKENIZER_DEFAULT}"
        raise BadInput(
            f"sacreBLEU downloads a model for the tokenizer {tokenize}, which fails here "
            f"({' '.join(str(error).split())}). {fix}."
        ) from error
    except KeyError as error:
        allowed = ", ".join(BLEU.TOKENIZERS)
        raise BadInput(f"sacreBLEU's tokenizer is {tokenize!r}; allowed are {allowed}. Choose one of them.") from error


@cache
def warn_of_unspaced(language: str, tokenizer: str) -> None:
    """Warn once of a language without spaces between words, of which a tokenizer makes a word of each phrase: BLEU is
    then near 0 for any translation."""
    if {main_part(language), main_part(standard_code(language))} & WITHOUT_SPACES:
        logger.warning(
            "%s has no spaces between words, and %s makes a word of each phrase, so BLEU is near 0 whatever the "
            "translation; choose the metric chrf, or score by sacrebleu with a tokenizer such as zh, char or flores200",
            language, tokenizer,
        )  # fmt: skip


def check_language(language: str) -> None:
    """Raise `BadInput` for an unknown language code, with which text would be tokenized wrongly."""
    code = main_part(language)
    if not LANGUAGE.fullmatch(language) or code in MISTAKEN_CODES:
        fix = (
            f"Write {MISTAKEN_CODES[code]}"
            if code in MISTAKEN_CODES
            else "Look it up: zh is Chinese, ja Japanese, ko Korean"
        )
        raise BadInput(
            f"the language is {short_repr(language)}; allowed are codes of ISO 639, such as de or pt-BR. {fix}."
        )


def multi_bleu(tokenizer: MosesTokenizer | None, lowercase: bool, strict: bool) -> Measure:
    """BLEU of tokenized text with the script's arithmetic: no smoothing, so 0 without a matching 4-gram."""

    def prepare(texts: Sequence[str]) -> Sequence[str]:
        words = tokenizer.tokenize(texts) if tokenizer else texts
        if strict:
            words = [line.translate(NO_SPACES_IN_PERL) for line in words]
            return [line.encode().lower().decode() for line in words] if lowercase else words  # bytes: ASCII alone
        if any(differs(line, lowercase) for line in words):
            logger.warning("multi-bleu.perl scores this text otherwise: see the signature's text:unicode, and --strict")
        return words

    metric = BLEU(tokenize="none", smooth_method="none", force=True, lowercase=lowercase and not strict)
    notes = {"moses": tokenizer.signature if tokenizer else "none", "text": "bytes" if strict else "unicode"}
    return Measure("multi-bleu", metric, prepare, notes | ({"lc": "ascii"} if strict and lowercase else {}))


def differs(line: str, lowercase: bool) -> bool:
    """Whether multi-bleu.perl, reading bytes, would read a line differently."""
    if line.isascii():
        return any(character in line for character in "\x1c\x1d\x1e\x1f")
    return line.translate(NO_SPACES_IN_PERL) != line or (lowercase and line.encode().lower() != line.lower().encode())


def score_by_comet(
    hypotheses: Sequence[str], references: Streams, sources: Sequence[str] | None, about: Mapping[str, str]
) -> Score:
    """Mean of COMET over the sentences, with the first stream of references. The model is downloaded."""
    if sources is None:
        raise ValueError("COMET needs the source sentences; give sources.")
    check_lines(sources, references)
    try:
        comet = importlib.import_module("comet")
    except ImportError as error:
        fix = "Score by its own comet-score in another environment (docs/translation.md), or choose other metrics"
        raise BadInput(f"the metric comet needs the package unbabel-comet, which is not installed. {fix}.") from error
    model = comet.load_from_checkpoint(comet.download_model(COMET))
    rows = [{"src": a, "mt": b, "ref": c} for a, b, c in zip(sources, hypotheses, references[0], strict=True)]
    version = importlib.metadata.version("unbabel-comet")
    return Score("comet", float(model.predict(rows).system_score), signed(f"model:{COMET}|version:{version}", about))


def check_lines(hypotheses: Sequence[str], references: Streams) -> None:
    if isinstance(hypotheses, str) or any(isinstance(stream, str) for stream in references):
        raise ValueError(
            "a text is given in place of texts; allowed is a list of translations, and of references a list of such "
            "lists: one reference of each as [references]"
        )
    if not references or not len(hypotheses):
        raise ValueError("no translations or no references; allowed is one or more of each.")
    for number, stream in enumerate(references, start=1):
        if len(stream) != len(hypotheses):
            found = f"{len(hypotheses)} translations for {len(stream)} lines of reference {number}"
            raise ValueError(f"{found}; allowed is one for each.")


def signed(signature: str, notes: Mapping[str, str]) -> str:
    """The signature with more entries; separators within an entry are replaced."""
    values = (f"{name}:{value.replace('|', '/').replace(':', '=')}" for name, value in notes.items())
    return "|".join([signature, *values])
