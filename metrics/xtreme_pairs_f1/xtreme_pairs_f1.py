"""XTREME's F1 of BUCC 2018 for `evaluate.load("metrics/xtreme_pairs_f1")`."""

from statistics import fmean

import datasets
import evaluate

from hictl_hf.retrieval.accuracy import pair_f1

PAIRS = datasets.List(datasets.List(datasets.Value("string"), length=2))


class XtremePairsF1(evaluate.Metric):
    """Computes {"f1", "precision", "recall"} in percent, each the mean over languages."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=pair_f1.__doc__,
            citation="",
            inputs_description="predictions, references: for each language the list of its pairs of ids.",
            features=datasets.Features({"predictions": PAIRS, "references": PAIRS}),
        )

    def _compute(self, predictions: list[list[list[str]]], references: list[list[list[str]]]) -> dict[str, float]:
        if not references:
            raise ValueError("no languages; allowed is one or more.")
        scores = [
            pair_f1(set(map(tuple, found)), set(map(tuple, gold))) for found, gold in zip(predictions, references)
        ]
        return {metric: fmean(score[metric] for score in scores) for metric in ("f1", "precision", "recall")}
