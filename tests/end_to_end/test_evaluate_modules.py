"""`evaluate.load` finds the modules in `metrics/`, offline, and they give what `hictl_hf.xtreme.metrics` gives."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import evaluate
import pytest

FOLDER = Path(__file__).parents[2] / "metrics"
Load = Callable[..., evaluate.Metric]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """`evaluate.load` of a module by its name; what it stores is stored in a folder of the tests."""
    cache = tmp_path_factory.mktemp("evaluate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)
        patch.setattr(evaluate.config, "HF_MODULES_CACHE", cache / "modules")
        patch.chdir(FOLDER.parent)
        yield lambda name, *config: evaluate.load(f"metrics/{name}", *config, cache_dir=str(cache))


def test_there_is_a_test_for_each_module() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == ["xtreme_answers", "xtreme_chunk_f1", "xtreme_pairs_f1"]


def test_chunks(load: Load) -> None:
    metric = load("xtreme_chunk_f1")
    predictions, golds = [["B-PER", "I-PER"], [], ["CCONJ"]], [["B-PER", "I-PER"], [], ["SCONJ"]]
    assert metric.compute(predictions=predictions, references=golds) == {"f1": 50, "precision": 50, "recall": 50}
    for prediction, gold in zip(predictions, golds):
        metric.add(prediction=prediction, reference=gold)
    assert metric.compute() == {"f1": 50, "precision": 50, "recall": 50}


def answers(**texts: list[str]) -> list[dict[str, Any]]:
    """References as those of the metric `squad`."""
    return [{"id": name, "answers": {"text": text, "answer_start": [0] * len(text)}} for name, text in texts.items()]


def test_answers(load: Load) -> None:
    predictions = [{"id": "a", "prediction_text": "the house"}, {"id": "b", "prediction_text": "दिल्ली"}]
    golds = answers(a=["red", "House!"], b=["दिल्ली।"])
    squad, mlqa = load("xtreme_answers", "squad"), load("xtreme_answers", "mlqa")
    assert squad.compute(predictions=predictions, references=golds) == {"f1": 50, "exact_match": 50}
    expected = {
        "en": {"f1": 100, "exact_match": 100},
        "hi": pytest.approx({"f1": (200 / 3 + 100) / 2, "exact_match": 50}),
    }
    for language, scores in expected.items():
        assert mlqa.compute(predictions=predictions, references=golds, language=language) == scores


def test_an_id_that_occurs_twice_is_refused(load: Load) -> None:
    """As in TyDiQA's files by language; of both answers only the last would count."""
    predictions = [{"id": "a", "prediction_text": "x"}] * 2
    with pytest.raises(ValueError, match="an id occurs twice in predictions or references"):
        load("xtreme_answers", "squad").compute(predictions=predictions, references=answers(a=["x"]) * 2)


def test_mlqa_needs_a_language_and_a_module_its_configuration(load: Load) -> None:
    with pytest.raises(ValueError, match="no configuration 'default'; allowed are 'squad' and 'mlqa'"):
        load("xtreme_answers")
    predictions = [{"id": "a", "prediction_text": "x"}]
    with pytest.raises(ValueError, match="allowed are en, es, de, ar, hi, vi, zh"):
        load("xtreme_answers", "mlqa").compute(predictions=predictions, references=answers(a=["x"]))


def test_pairs_of_two_languages(load: Load) -> None:
    predictions = [[["de-1", "en-1"], ["de-2", "en-3"]], []]
    golds = [[["de-1", "en-1"]], [["fr-1", "en-1"]]]
    scores = load("xtreme_pairs_f1").compute(predictions=predictions, references=golds)
    assert scores == pytest.approx({"f1": 100 / 3, "precision": 25, "recall": 50})
    with pytest.raises(ValueError, match="no languages; allowed is one or more"):
        load("xtreme_pairs_f1").compute(predictions=[], references=[])
