"""What a run says at its end: `results.json`, the tables for the terminal, and the sentences that the page
(`pretraining/report.py`) and the card (`hub/cards.py`) share. Results are a plain dictionary in which any key may be
missing; what was measured is decided by the driver that filled it. `hictl compare` prints
the means of several runs side by side.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Results = Mapping[str, Any]
HEADS = ("language", "sentences", "before", "after", "gain")


@dataclass(frozen=True)
class LanguageScore:
    """One row of the table: accuracy (%) of a language before and after training."""

    language: str
    sentences: int | None
    before: float | None
    after: float

    @property
    def gain(self) -> float | None:
        return None if self.before is None else self.after - self.before

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text, under `HEADS`."""
        sentences = "–" if self.sentences is None else f"{self.sentences:,}"
        before, gain = ("–", "–") if self.gain is None else (f"{self.before:.1f}", f"{self.gain:+.1f}")
        return self.language, sentences, before, f"{self.after:.1f}", gain


def retrieval_table(results: Results) -> str:
    """Accuracy of each language before and after training as aligned text, best first, the mean last."""
    scores = language_scores(results)
    if not scores:
        return "no retrieval score"
    before, after = mean_scores(results)
    total = LanguageScore("mean", sum(score.sentences or 0 for score in scores) or None, before, after or 0.0)
    rows = [HEADS, *(score.cells for score in (*scores, total))]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, "<>>>>", widths)) for row in rows]
    rule = "-" * len(lines[0])
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])


def comparison_table(runs: Mapping[str, Results]) -> str:
    """The means of several runs as aligned text, in the order given."""
    width = max(map(len, runs))
    lines = [f"{'run'.ljust(width)}  before   after    gain"]
    for name, results in runs.items():
        before, after = (mean or 0 for mean in mean_scores(results))
        lines.append(f"{name.ljust(width)}  {before:6.1f}  {after:6.1f}  {after - before:+6.1f}")
    return "\n".join(lines)


def part(results: Results, *keys: str) -> Mapping[str, Any]:
    """The dictionary below these keys; empty where one is missing."""
    for key in keys:
        results = results.get(key) or {}
    return results


def language_scores(results: Results) -> list[LanguageScore]:
    """A row for each language that was scored, best first."""
    scores = [
        LanguageScore(str(language), row.get("sentences"), row.get("untrained"), row["hictl"])
        for language, row in part(results, "retrieval", "per_language").items()
        if row.get("hictl") is not None
    ]
    return sorted(scores, key=lambda score: score.after, reverse=True)


def mean_scores(results: Results) -> tuple[float | None, float | None]:
    """Mean accuracy before and after: as recorded, else over the languages."""
    retrieval, scores = part(results, "retrieval"), language_scores(results)
    before, after = retrieval.get("untrained"), retrieval.get("hictl")
    return (
        _mean([score.before for score in scores]) if before is None else before,
        _mean([score.after for score in scores]) if after is None else after,
    )


def before_label(results: Results) -> str:
    """The name of the model before training."""
    return str(results.get("before_label", "untrained model"))


def headline(results: Results) -> str:
    """The mean accuracy in one sentence."""
    before, after = mean_scores(results)
    if after is None:
        return "A HiCTL pre-training run"
    if before is None:
        return f"Translations are found {after:.1f}% of the time"
    direction = "up" if after > before else "down" if after < before else "unchanged"
    return f"Translations are found {after:.1f}% of the time, {direction} from {before:.1f}%"


def lead(results: Results) -> str:
    """On what the model was trained, and how it was scored."""
    protocol = part(results, "retrieval", "protocol")
    before, after, metric, chosen = map(protocol.get, ("untrained", "hictl", "metric", "selected_on"))
    sentences = [data_sentence(results)]
    if metric:
        sentences.append(f"Score: {metric}.")
    if after and before:
        places = f"by {_place(after)} (HiCTL) and by {_place(before)} ({before_label(results)})"
        sentences.append(f"Sentences are read off {places}" + (f", each chosen on {chosen}." if chosen else "."))
    return " ".join(sentences)


def data_sentence(results: Results) -> str:
    """On how much the model was trained, and for how long."""
    known = (("pairs", "sentence pairs"), ("texts", "texts"))
    amounts = [f"{results[key]:,} {words}" for key, words in known if results.get(key)]
    sentence = "Trained on " + (" and ".join(amounts) or "a corpus whose size was not recorded")
    if results.get("languages"):
        sentence += f" in {results['languages']} language{'s' * (results['languages'] > 1)}"
    return sentence + (f" for {duration(results['train_seconds'])}." if results.get("train_seconds") else ".")


def duration(seconds: float) -> str:
    """A number and its unit."""
    for unit, length in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def setting_groups(results: Results) -> dict[str, Mapping[str, Any]]:
    """The settings by group, such as those of the model and those of the training."""
    groups = part(results, "settings")
    return {name: values for name, values in groups.items() if isinstance(values, Mapping) and values}


def signature(results: Results) -> str:
    """What a number needs beside its settings to be found again: versions, seed, data."""
    parts = [f"{name} {version}" for name, version in part(results, "versions").items()]
    parts += [f"{name} {results[key]}" for key, name in (("seed", "seed"), ("data_hash", "data")) if key in results]
    return " · ".join(parts)


def snippet(repository: str) -> str:
    """Python that loads the model from a folder or from the Hub."""
    name = json.dumps(repository)
    return f"""from transformers import AutoModel, AutoModelForPreTraining, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({name})
batch = tokenizer(["Good morning.", "Guten Morgen."], padding=True, return_tensors="pt")

# The plain XLM-R encoder, to fine-tune or to pool; it needs none of our code.
encoder = AutoModel.from_pretrained({name}, subfolder="encoder")
words = encoder(**batch).last_hidden_state  # (sentences, tokens, hidden size)

# The HiCTL model with its projection of sentences; its code travels with the weights.
model = AutoModelForPreTraining.from_pretrained({name}, trust_remote_code=True)
sentences = model.encode_sentences(batch["input_ids"], batch["attention_mask"])  # (sentences, r)"""


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _place(where: Any) -> str:
    return f"{where.get('mode')} at layer {where.get('layer')}" if isinstance(where, Mapping) else str(where)
