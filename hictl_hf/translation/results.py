"""Typed results of a translation run, the content of its `results.json`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from ..reports.results import RESULTS_FILE, RunResults
from .beam_search import BeamSearchConfig

Counts = dict[str, int]


@dataclass(kw_only=True)
class PairCounts:
    """Number of sentence pairs by direction."""

    train: Counts = field(default_factory=dict)
    validation: Counts = field(default_factory=dict)
    test: Counts = field(default_factory=dict)


@dataclass(kw_only=True)
class TargetVocabulary:
    """The ids a decoder can produce.

    Attributes:
        size: their number.
        unknown_tokens: by target language, tokens of train that it cannot produce.
        tokens: by target language, all tokens of train.
    """

    size: int | None = None
    unknown_tokens: Counts = field(default_factory=dict)
    tokens: Counts = field(default_factory=dict)


@dataclass(kw_only=True)
class ReportedScore:
    """The value of a metric, and the signature that reproduces it."""

    value: float | None
    signature: str


@dataclass(frozen=True, kw_only=True)
class ChosenState:
    """The state of the model that a run keeps.

    Attributes:
        state: in words, such as "step 20, the best on validation".
        seconds: of training.
        validation: its score on the validation set.
        validation_of_mean: that of the mean of checkpoints, which was not better.
    """

    state: str = ""
    seconds: float | None = None
    validation: float | None = None
    validation_of_mean: float | None = None


@dataclass(kw_only=True)
class TranslationResults(RunResults):
    """Results of a translation run.

    Attributes:
        step: 1 or 2, of the paper; `None` without training.
        encoder, model: folder or name on the Hub that the run began from; one of them is `None`.
        random_encoder: whether the encoder began with random weights.
        rows: number of sentence pairs.
        skipped: training pairs that were left out, by reason.
        messages: about broken rows of train, and validation or test pairs in it.
        cut_sources: by split, the number of sources longer than the model reads.
        empty_lines: of the test set, by side.
        chosen: the state of the model that was tested.
        test: by direction and metric.
        history, evaluations: logs of training and of validation, each with its `step`.
    """

    WRITTEN_BY: ClassVar[str] = "run_translation.py"

    step: int | None
    encoder: str | None
    model: str | None
    random_encoder: bool = False
    rows: PairCounts = field(default_factory=PairCounts)
    skipped: Counts = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    cut_sources: Counts = field(default_factory=dict)
    empty_lines: Counts = field(default_factory=dict)
    target_vocabulary: TargetVocabulary = field(default_factory=TargetVocabulary)
    chosen: ChosenState = field(default_factory=ChosenState)
    test: dict[str, dict[str, ReportedScore]]
    decoding: BeamSearchConfig
    history: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def from_dict(cls, values: Any, place: str = RESULTS_FILE) -> Self:
        """As the parent; the beams of releases up to 0.10 have their name of today."""
        decoding = values.get("decoding") if isinstance(values, Mapping) else None
        if isinstance(decoding, Mapping) and "beams" in decoding:
            values = {**values, "decoding": {"num_beams": decoding["beams"], **decoding}}
        return super().from_dict(values, place)

    @classmethod
    def upgrade(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Convert the values of 0.7.5; fields they lack are `None`."""
        return {"step": None, "encoder": None, "model": None, **values}

    @property
    def began_from(self) -> str | None:
        return self.encoder or self.model

    @property
    def metric(self) -> str:
        """The metric the state was chosen by."""
        return str(self._training.get("metric") or "sacrebleu")

    @property
    def languages(self) -> list[str]:
        """Source languages, then target languages."""
        return self.source_languages + self.target_languages

    @property
    def source_languages(self) -> list[str]:
        """Those the run translated from."""
        return [*(self._training.get("source_lang") or ())]

    @property
    def target_languages(self) -> list[str]:
        """Those the run translated into."""
        return [*(self._training.get("target_lang") or ())]

    def target_language(self, direction: str) -> str:
        """The target language of a direction such as "en-zh-Hans", one of those the run translated into."""
        ends = [language for language in self.target_languages if direction.endswith(f"-{language}")]
        return max(ends, key=len, default=direction.partition("-")[2])

    @property
    def _training(self) -> Mapping[str, Any]:
        return self.settings.get("training") or {}
