"""XTREME's F1 and exact match of answers for `evaluate.load("metrics/xtreme_answers", "squad")` (XQuAD, TyDiQA) and
`evaluate.load("metrics/xtreme_answers", "mlqa")`, whose `compute` needs the `language`, too."""

from typing import Any

import datasets
import evaluate

from hictl_hf.xtreme.metrics import answer_scores, mlqa_words, squad_words

TEXT = datasets.Value("string")
ANSWERS = {"text": datasets.List(TEXT), "answer_start": datasets.List(datasets.Value("int32"))}


class XtremeAnswers(evaluate.Metric):
    """Computes {"f1", "exact_match"} in percent; predictions and references look as for the metric `squad`."""

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in ("squad", "mlqa"):
            raise ValueError(f"there is no configuration {self.config_name!r}; allowed are 'squad' and 'mlqa'.")
        return evaluate.MetricInfo(
            description=answer_scores.__doc__,
            citation="",
            inputs_description="predictions, references: as for the metric squad.",
            features=datasets.Features(
                {"predictions": {"id": TEXT, "prediction_text": TEXT}, "references": {"id": TEXT, "answers": ANSWERS}}
            ),
        )

    def _compute(
        self, predictions: list[dict[str, Any]], references: list[dict[str, Any]], language: str = ""
    ) -> dict[str, float]:
        for given in (predictions, references):
            if len({each["id"] for each in given}) < len(given):
                raise ValueError("an id occurs twice in predictions or references; allowed is each id once.")
        answers = {prediction["id"]: prediction["prediction_text"] for prediction in predictions}
        golds = {reference["id"]: reference["answers"]["text"] for reference in references}
        return answer_scores(answers, golds, mlqa_words(language) if self.config_name == "mlqa" else squad_words)
