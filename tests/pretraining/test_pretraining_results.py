"""Results of a pre-training run: files of this and the last release, and tables."""

import json
from pathlib import Path

import pytest
from recorded_run import ADAPTED, INCOMPLETE, REQUIRED, RESULTS, typed

from hictl_hf.embedding.pooling import Pooling
from hictl_hf.errors import BadInput
from hictl_hf.files import write_json
from hictl_hf.pretraining.results import (
    Evaluation,
    LanguageAccuracy,
    PretrainingResults,
    comparison_table,
    data_sentence,
    headline,
    lead,
    retrieval_table,
)


def test_results_are_read_as_dataclasses_and_written_back() -> None:
    results = typed(RESULTS)
    assert results.retrieval and results.protocol and results.protocol.hictl == Pooling("projection", 4)
    assert results.retrieval.per_language["sw"] == LanguageAccuracy(untrained=10.0, hictl=5.0, sentences=250)
    assert results.evaluations == [Evaluation(step=10, retrieval=20.1)]
    assert results.corpus.changed == {"mnemonics": 7}
    assert (results.config["word_weight"], results.training["seed"], results.last("lm_loss")) == (0, 42, 2.125)
    assert results.last("negatives_per_anchor") == 126 and results.last("p_avg") is None
    assert PretrainingResults.from_dict(json.loads(json.dumps(results.as_dict()))) == results
    written = results.as_dict()
    for name in RESULTS.keys() - {"retrieval", "evaluations", "corpus"}:
        assert written[name] == RESULTS[name]
    assert written["retrieval"]["protocol"] == RESULTS["retrieval"]["protocol"]


def test_results_of_0_7_5_are_read_with_the_new_names_of_poolings(tmp_path: Path) -> None:
    old = json.loads(json.dumps(RESULTS))
    old["retrieval"]["protocol"] |= {
        "untrained": {"pooling": "first token", "layer": 0}, "hictl": {"pooling": "mean", "layer": 2}
    }  # fmt: skip
    del old["corpus"]["changed"]
    old["retrieval"]["by_layer"] = {"first token": [None, 1.0], "mean": [2.0, 3.0]}
    write_json(tmp_path / "results.json", old)
    results = PretrainingResults.read(tmp_path)
    assert results.retrieval and results.protocol and results.corpus.changed == {}
    assert (results.protocol.untrained, results.protocol.hictl) == (Pooling("cls", 0), Pooling("mean", 2))
    assert results.retrieval.by_layer == {"cls": [None, 1.0], "mean": [2.0, 3.0]}
    assert headline(results) == headline(typed(RESULTS))


@pytest.mark.parametrize("missing", REQUIRED)
def test_results_of_another_kind_of_run_are_refused(missing: str, tmp_path: Path) -> None:
    write_json(tmp_path / "results.json", {key: value for key, value in RESULTS.items() if key != missing})
    with pytest.raises(BadInput, match=f"{missing} is missing; .*of a pre-training run"):
        PretrainingResults.read(tmp_path)


def test_a_run_without_held_out_pairs_has_no_retrieval() -> None:
    results = typed(INCOMPLETE["retrieval"])
    assert results.retrieval is results.protocol is None and "retrieval" not in results.as_dict()
    assert results.means() == (None, None) and results.by_accuracy() == []
    assert headline(results) == "A HiCTL pre-training run" and retrieval_table(results) == "no retrieval score"


def test_the_table_is_aligned_best_first_and_ends_with_the_mean() -> None:
    assert retrieval_table(typed(RESULTS)).splitlines() == [
        "nearest-neighbour accuracy, cosine, mean of both directions, in percent",
        "language  sentences  before  after   gain",
        "-----------------------------------------",
        "de            1,000     8.0  100.0  +92.0",
        "sw              250    10.0    5.0   -5.0",
        "-----------------------------------------",
        "mean          1,250     9.0   52.5  +43.5",
    ]


def test_the_mean_is_taken_over_languages_when_it_was_not_recorded() -> None:
    retrieval = {"per_language": RESULTS["retrieval"]["per_language"]}
    assert retrieval_table(typed(REQUIRED | {"retrieval": retrieval})) == retrieval_table(typed(RESULTS))


@pytest.mark.parametrize(
    ("before", "after", "end"),
    [
        (51.21, 51.24, "51.2% of the time, unchanged from 51.2%"),
        (51.24, 51.26, "51.3% of the time, up from 51.2%"),
        (51.26, 51.24, "51.2% of the time, down from 51.3%"),
    ],
)
def test_the_headline_agrees_with_the_numbers_it_prints(before: float, after: float, end: str) -> None:
    results = typed(REQUIRED | {"retrieval": {"untrained": before, "hictl": after}})
    assert headline(results) == f"Translations are found {end}"


@pytest.mark.parametrize(("examples", "drawn"), [(6, "6 examples drawn from "), (7, ""), (900, ""), (None, "")])
def test_a_run_of_few_steps_is_not_said_to_be_trained_on_all_pairs(examples: int | None, drawn: str) -> None:
    counts = {"pairs": 4, "texts": 3, "languages": 2, "train_seconds": 3.0, "examples": examples}
    found = data_sentence(typed(REQUIRED | counts))
    assert found == f"Trained on {drawn}4 sentence pairs and 3 texts in 2 languages for 3 seconds."


def test_a_guard_without_scores_is_not_said_to_have_0() -> None:
    assert "Guard" not in lead(typed(RESULTS | {"guard": {}}))


def test_runs_are_compared_by_their_means_in_the_order_given() -> None:
    lm_only = typed(REQUIRED | {"retrieval": {"untrained": 9.0, "hictl": 4.5}})
    unknown = typed(INCOMPLETE["retrieval"])
    assert comparison_table({"hictl": typed(RESULTS), "lm": lm_only, "none": unknown}).splitlines() == [
        "nearest-neighbour accuracy, cosine, mean of both directions, in percent",
        "run    before   after    gain",
        "hictl     9.0    52.5   +43.5",
        "lm        9.0     4.5    -4.5",
        "none        –       –       –",
    ]


def test_runs_that_are_scored_on_other_pairs_are_named_below_the_table() -> None:
    def run(**sentences: int) -> PretrainingResults:
        rows = {name: {"untrained": 1.0, "hictl": 2.0, "sentences": number} for name, number in sentences.items()}
        return typed(REQUIRED | {"retrieval": {"untrained": 1.0, "hictl": 2.0, "per_language": rows}})

    runs = {"a": run(de=250, sw=90), "b": run(sw=90, de=250), "c": run(de=250), "d": run(de=1000, sw=90)}
    assert comparison_table({"none": typed(REQUIRED), **runs}).splitlines()[7:] == [
        "c: its mean is over de (250), that of a over de (250), sw (90)",
        "d: its mean is over de (1,000), sw (90), that of a over de (250), sw (90)",
    ]
    many = run(**{f"l{number:02}": 5 for number in range(12)})
    note = comparison_table({"a": runs["a"], "b": many}).splitlines()[-1]
    assert note.startswith("b: its mean is over l00 (5), ") and " l07 (5) and 4 others, that of a over " in note


def test_runs_that_hold_out_other_pairs_are_named_below_the_table() -> None:
    def run(**training: object) -> PretrainingResults:
        rows = {"de": {"untrained": 1.0, "hictl": 2.0, "sentences": 9}}
        retrieval = {"untrained": 1.0, "hictl": 2.0, "per_language": rows}
        return typed(REQUIRED | {"retrieval": retrieval, "settings": {"training": {"seed": 1, **training}}})

    runs = {"a": run(train_file=["x"]), "b": run(train_file=["x"], lm_weight=0.0), "c": run(train_file=["y"], seed=2)}
    assert comparison_table(runs).splitlines()[5:] == [
        "c: may be scored on other pairs than a, whose train_file was ['x'] and is ['y']; seed was 1 and is 2 here"
    ]
    one, other = run(train_file=["x"], validation_file=["v"]), run(train_file=["y"], validation_file=["v"])
    assert len(comparison_table({"one": one, "other": other}).splitlines()) == 4, "held out of the same file"


@pytest.mark.parametrize("missing", sorted(INCOMPLETE))
def test_tables_and_sentences_survive_a_missing_key(missing: str) -> None:
    results = typed(INCOMPLETE[missing])
    assert retrieval_table(results) and headline(results) and lead(results).startswith(data_sentence(results))


def test_guard_and_share_of_the_start_are_told_in_table_and_sentences() -> None:
    results = typed(ADAPTED)
    first, _, second = retrieval_table(results).partition("\n\nguard, not trained on\n")
    assert first == retrieval_table(typed(RESULTS)) and "hi" not in first
    assert second.splitlines()[-1].split() == ["mean", "250", "70.0", "71.5", "+1.5"]
    assert "Guard pairs, not trained on: 70.0% before, 71.5% after." in lead(results)
    assert "The weights are 75% trained and 25% those of the start, chosen on dev and guard pairs." in lead(results)
    started = "Started from someone/encoder, a sentence encoder, read by mean at layer 4, with the prompt 'query: '."
    assert started in lead(results)
    assert "Guard" not in lead(typed(RESULTS)) and "start" not in lead(typed(RESULTS))


def test_what_a_run_started_from_is_written_and_read(tmp_path: Path) -> None:
    typed(ADAPTED).write(tmp_path)
    read = PretrainingResults.read(tmp_path)
    assert read == typed(ADAPTED)
    assert read.start is not None and read.start.pooling == Pooling("mean", 4) and read.start.prompt == "query: "
