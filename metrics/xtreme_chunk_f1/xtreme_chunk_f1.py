"""XTREME's F1 of UD POS and PANX for `evaluate.load("metrics/xtreme_chunk_f1")`."""

import datasets
import evaluate

from hictl_hf.xtreme.metrics import chunk_f1

TAGS = datasets.List(datasets.Value("string"))


class XtremeChunkF1(evaluate.Metric):
    """Computes {"f1", "precision", "recall"} in percent from one list of tags for each sentence."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=chunk_f1.__doc__,
            citation="",
            inputs_description="predictions, references: for each sentence the list of its tags.",
            features=datasets.Features({"predictions": TAGS, "references": TAGS}),
        )

    def _compute(self, predictions: list[list[str]], references: list[list[str]]) -> dict[str, float]:
        return chunk_f1(predictions, references)
