"""Typed results of a pre-training run, and the tables and sentences that the terminal, the page and the card share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any, ClassVar

from ..embedding.pooling import Pooling
from ..reports.results import RunResults, duration
from ..training.fingerprint import differences, upgraded

HEADS = ("language", "sentences", "before", "after", "gain")
METRIC = "nearest-neighbour accuracy, cosine, mean of both directions"
PERCENT = f"{METRIC}, in percent"
SHOWN = 8  # languages of a note


@dataclass(kw_only=True)
class Protocol:
    """How retrieval was measured: the metric, and the pooling before and after training, chosen on `selected_on`."""

    untrained: Pooling | None = None
    hictl: Pooling | None = None
    metric: str = METRIC
    selected_on: str | None = "dev"


@dataclass(kw_only=True)
class LanguageAccuracy:
    """Accuracy (%) of a language pair before ("untrained") and after training ("hictl"), among `sentences` candidates.

    `forward` and `backward` are the two directions of "hictl", which is their mean.
    """

    untrained: float | None = None
    hictl: float | None
    forward: float | None = None
    backward: float | None = None
    sentences: int | None = None

    @property
    def gain(self) -> float | None:
        return None if self.untrained is None or self.hictl is None else self.hictl - self.untrained

    def cells(self, name: str) -> tuple[str, ...]:
        """The accuracy as a row of text under `HEADS`."""
        sentences = "–" if self.sentences is None else f"{self.sentences:,}"
        before, gain = ("–", "–") if self.gain is None else (f"{self.untrained:.1f}", f"{self.gain:+.1f}")
        after = "–" if self.hictl is None else f"{self.hictl:.1f}"
        return name, sentences, before, after, gain


@dataclass(kw_only=True)
class RetrievalResults:
    """Retrieval on held-out test pairs.

    Attributes:
        untrained: mean accuracy (%) before training; `hictl`: after it.
        by_layer: mean accuracy on dev by pooling mode, then by layer; `None` where it was not measured.
    """

    untrained: float | None = None
    hictl: float | None = None
    per_language: dict[str, LanguageAccuracy] = field(default_factory=dict)
    protocol: Protocol = field(default_factory=Protocol)
    by_layer: dict[str, list[float | None]] = field(default_factory=dict)

    def by_accuracy(self) -> list[tuple[str, LanguageAccuracy]]:
        """The languages that were scored, best first."""
        scored = [(name, accuracy) for name, accuracy in self.per_language.items() if not _is_missing(accuracy.hictl)]
        return sorted(scored, key=lambda row: row[1].hictl or 0, reverse=True)

    def poolings_compared(self) -> int:
        """How many layers and pooling modes were scored on dev."""
        return sum(score is not None for scores in self.by_layer.values() for score in scores)

    def means(self) -> tuple[float | None, float | None]:
        """Mean accuracy (%) before and after training: as recorded, else over the languages."""
        rows = [accuracy for _, accuracy in self.by_accuracy()]
        return (
            _mean([row.untrained for row in rows]) if _is_missing(self.untrained) else self.untrained,
            _mean([row.hictl for row in rows]) if _is_missing(self.hictl) else self.hictl,
        )


@dataclass(kw_only=True)
class StartInfo:
    """What the run started from: the kind of checkpoint, how its folder says that it is read, and the prompt."""

    kind: str
    pooling: Pooling | None = None
    prompt: str | None = None


@dataclass(kw_only=True)
class ShareAccuracy:
    """Mean accuracy (%) on the dev pairs and on the guard's with this share of the trained weights."""

    share: float
    dev: float | None = None
    guard: float | None = None


@dataclass(kw_only=True)
class Interpolation:
    """The weights are (1 - share) start + share trained; `grid` has the shares it was chosen from, if it was chosen."""

    share: float
    grid: list[ShareAccuracy] = field(default_factory=list)


@dataclass(kw_only=True)
class Evaluation:
    """Mean accuracy (%) on the held-out dev pairs during training, and that of each language."""

    step: int
    retrieval: float | None
    per_language: dict[str, float | None] = field(default_factory=dict)


@dataclass(kw_only=True)
class CorpusCounts:
    """Rows kept by language or language pair, rows skipped by reason, texts changed by kind, messages about the first
    broken rows."""

    kept: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class PretrainingResults(RunResults):
    """Results of a pre-training run.

    Attributes:
        retrieval: `None` if no pairs were held out.
        pairs: sentence pairs trained on; `None` for a stream.
        texts: monolingual texts trained on; `None` for a stream.
        examples: pairs and texts in all steps, the same one as often as it was drawn.
        languages: number of languages in the training data, regions and scripts aside; of a stream those that its files
            begin in, `None` with `stream_shares`. `language_codes` names them.
        before_label: the name of the model before training.
        history: the logs of the training, a dictionary for each `logging_steps` steps.
        evaluations: retrieval during the training.
        corpus: what was read.
        start: what the run started from; `None` in files of 0.8 or older.
        guard: retrieval on the pairs that were to stay as they are; `None` without such pairs.
        interpolation: with which share of the start the trained weights were averaged; `None` without `keep_start`.
    """

    WRITTEN_BY: ClassVar[str] = "a pre-training run"

    retrieval: RetrievalResults | None = None
    pairs: int | None = None
    texts: int | None = None
    examples: int | None = None
    languages: int | None = None
    language_codes: list[str] | None = None
    before_label: str = "untrained model"
    history: list[dict[str, Any]]
    evaluations: list[Evaluation] = field(default_factory=list)
    corpus: CorpusCounts
    start: StartInfo | None = None
    guard: RetrievalResults | None = None
    interpolation: Interpolation | None = None

    @classmethod
    def upgrade(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Values of 0.7.5: in the protocol "pooling" is "mode", and the pooling "first token" is "cls"."""
        retrieval = values.get("retrieval")
        if not isinstance(retrieval, dict):
            return values
        retrieval = dict(retrieval)
        if isinstance(protocol := retrieval.get("protocol"), dict):
            retrieval["protocol"] = {name: _upgraded_pooling(value) for name, value in protocol.items()}
        if isinstance(by_layer := retrieval.get("by_layer"), dict):
            retrieval["by_layer"] = upgraded(by_layer)
        return {**values, "retrieval": retrieval}

    @property
    def is_part(self) -> bool:
        """True if the steps were too few for all pairs and texts."""
        return self.examples is not None and self.examples < (self.pairs or 0) + (self.texts or 0)

    @property
    def config(self) -> dict[str, Any]:
        """The settings of the model, as in its `config.json`."""
        return self.settings.get("config") or {}

    @property
    def training(self) -> dict[str, Any]:
        """The settings of the training: `PretrainingArguments` as plain values."""
        return self.settings.get("training") or {}

    @property
    def protocol(self) -> Protocol | None:
        """How retrieval was measured; `None` if it was not."""
        return self.retrieval.protocol if self.retrieval else None

    def by_accuracy(self) -> list[tuple[str, LanguageAccuracy]]:
        """The languages that were scored, best first."""
        return self.retrieval.by_accuracy() if self.retrieval else []

    def means(self) -> tuple[float | None, float | None]:
        """Mean accuracy (%) before and after training: as recorded, else over the languages."""
        return self.retrieval.means() if self.retrieval else (None, None)

    def last(self, name: str) -> float | None:
        """The last value of a name in the history, such as "lm_loss"."""
        return next((entry[name] for entry in reversed(self.history) if entry.get(name) is not None), None)


def _upgraded_pooling(value: Any) -> Any:
    if not isinstance(value, dict) or "pooling" not in value:
        return value
    return {"mode": upgraded(value["pooling"]), "layer": value.get("layer")}


def _is_missing(value: float | None) -> bool:
    return value is None or isnan(value)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


# --- tables -----------------------------------------------------------------------------------------------------------


def retrieval_table(results: PretrainingResults) -> str:
    """Accuracy of each language before and after training as aligned text, that of the guard in a second table."""
    if not results.by_accuracy() or results.retrieval is None:
        return "no retrieval score"
    guard = f"\n\nguard, not trained on\n{_text_table(results.guard)}" if results.guard else ""
    return f"{PERCENT}\n{_text_table(results.retrieval)}{guard}"


def _text_table(retrieval: RetrievalResults) -> str:
    """Accuracy of each language, best first, the mean last."""
    languages = retrieval.by_accuracy()
    before, after = retrieval.means()
    sentences = sum(accuracy.sentences or 0 for _, accuracy in languages) or None
    mean = LanguageAccuracy(untrained=before, hictl=after, sentences=sentences)
    rows = [HEADS, *(accuracy.cells(name) for name, accuracy in (*languages, ("mean", mean)))]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, "<>>>>", widths)) for row in rows]
    rule = "-" * len(lines[0])
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])


def comparison_table(runs: Mapping[str, PretrainingResults]) -> str:
    """The means of several runs as aligned text, in the order given; with a note where the pairs that were scored are
    not the same."""
    width = max(map(len, runs))
    lines = [PERCENT, f"{'run'.ljust(width)}  before   after    gain"]
    for name, results in runs.items():
        before, after = results.means()
        cells = LanguageAccuracy(untrained=before, hictl=after).cells(name)[2:]
        lines.append("  ".join([name.ljust(width), *(cell.rjust(6) for cell in cells)]))
    scored = {name: {of: each.sentences for of, each in results.by_accuracy()} for name, results in runs.items()}
    (first, tests), *others = [(name, found) for name, found in scored.items() if found] or [("", {})]
    for name, found in others:
        if found != tests:
            lines.append(f"{name}: its mean is over {_tests(found)}, that of {first} over {_tests(tests)}")
        elif changed := [*differences(_choice_of_tests(runs[first]), _choice_of_tests(runs[name]))]:
            lines.append(f"{name}: may be scored on other pairs than {first}, whose {'; '.join(changed)} here")
    return "\n".join(lines)


def _choice_of_tests(results: PretrainingResults) -> dict[str, Any]:
    """The settings that decide which pairs are held out."""
    source = "validation_file" if results.training.get("validation_file") else "train_file"
    return {name: results.training.get(name) for name in (source, "held_out_sentences", "cleaning", "seed")}


def _tests(sentences: Mapping[str, int | None]) -> str:
    """Name the languages of a mean, with their numbers of sentences."""
    named = [f"{language} ({number:,})" if number else language for language, number in sorted(sentences.items())]
    return ", ".join(named[:SHOWN]) + (f" and {len(named) - SHOWN} others" if len(named) > SHOWN else "")


# --- sentences --------------------------------------------------------------------------------------------------------


def headline(results: PretrainingResults) -> str:
    """The mean accuracy in one sentence."""
    before, after = results.means()
    if after is None:
        return "A HiCTL pre-training run"
    if before is None:
        return f"Translations are found {after:.1f}% of the time"
    change = round(after, 1) - round(before, 1)  # of the numbers as they are printed
    direction = "up" if change > 0 else "down" if change < 0 else "unchanged"
    return f"Translations are found {after:.1f}% of the time, {direction} from {before:.1f}%"


def lead(results: PretrainingResults) -> str:
    """The training data and how the model was scored, in up to three sentences."""
    sentences = [data_sentence(results)]
    if protocol := results.protocol:
        sentences.append(f"Score: {protocol.metric}.")
        if protocol.hictl and protocol.untrained:
            before = f"{_pooling(protocol.untrained)} ({results.before_label})"
            had_a_choice = results.retrieval and results.retrieval.poolings_compared() != 1
            chosen = f", each chosen on {protocol.selected_on}" if protocol.selected_on and had_a_choice else ""
            sentences.append(f"Sentences are read off by {_pooling(protocol.hictl)} (HiCTL) and by {before}{chosen}.")
    return " ".join([*sentences, *start_sentences(results)])


def start_sentences(results: PretrainingResults) -> list[str]:
    """What the run started from, what became of the guard, how much of the start is in the weights, where known."""
    sentences = []
    if (start := results.start) and (name := results.training.get("model_name_or_path")):
        read = f", read by {_pooling(start.pooling)}" if start.pooling else ""
        prompt = f", with the prompt {start.prompt!r}" if start.prompt else ""
        article = "an" if start.kind[0] in "aeiou" else "a"
        sentences.append(f"Started from {name}, {article} {start.kind}{read}{prompt}.")
    before, after = results.guard.means() if results.guard else (None, None)
    if before is not None and after is not None:
        sentences.append(f"Guard pairs, not trained on: {before:.1f}% before, {after:.1f}% after.")
    if results.interpolation:
        trained = 100 * results.interpolation.share
        guarded = any(row.guard is not None for row in results.interpolation.grid)
        chosen = f", chosen on dev{' and guard pairs' * guarded}" if results.interpolation.grid else ""
        sentences.append(f"The weights are {trained:.0f}% trained and {100 - trained:.0f}% those of the start{chosen}.")
    return sentences


def data_sentence(results: PretrainingResults) -> str:
    """The amount of training data, and the time of training."""
    amounts = [
        f"{number:,} {unit}" for number, unit in ((results.pairs, "sentence pairs"), (results.texts, "texts")) if number
    ]
    drawn = f"{results.examples:,} examples drawn from " if results.is_part else ""
    unknown = (
        f"{results.examples:,} examples of a stream" if results.examples else "a corpus whose size was not recorded"
    )
    sentence = f"Trained on {drawn}" + (" and ".join(amounts) or unknown)
    if results.languages:
        sentence += f" in {results.languages} language{'s' * (results.languages > 1)}"
    return sentence + (f" for {duration(results.train_seconds)}." if results.train_seconds else ".")


def _pooling(pooling: Pooling) -> str:
    return f"{pooling.mode} at layer {pooling.layer}"
