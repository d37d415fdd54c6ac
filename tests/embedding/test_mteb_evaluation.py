"""MTEB's scores are those of our own vectors and search, from local files, without a network."""

import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf.cli.mteb import main
from hictl_hf.embedding.encoder import embed_sentences, load_encoder
from hictl_hf.embedding.mteb_evaluation import MtebEncoder, evaluate_mteb, load_task
from hictl_hf.embedding.pooling import Pooling
from hictl_hf.errors import BadInput
from hictl_hf.retrieval.bitext import retrieval_accuracy

if find_spec("mteb") is None:  # one that cannot be imported is no reason to skip
    pytest.skip("pip install 'hictl_hf[mteb]'", allow_module_level=True)
CODES = {"de": "deu", "sw": "swh"}


@pytest.fixture(scope="module")
def data(sentences: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The English side repeats the other one, so many sentences find their own with random weights, and not all."""
    folder = tmp_path_factory.mktemp("tatoeba")
    for language, code in CODES.items():
        english = [f"{sentences[language][at]} {text[:9]}" for at, text in enumerate(sentences["en"])]
        for side, lines in ((code, sentences[language]), ("eng", english)):
            (folder / f"tatoeba.{code}-eng.{side}").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return folder


@pytest.fixture(scope="module")
def checkpoint(saved_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return saved_model(folder, initializer_range=0.3, embedding_layer=1, embedding_pooling="mean")


def test_the_accuracies_are_those_of_our_own_search(
    checkpoint: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = main(["--model", str(checkpoint), "--data", str(data), "--output", str(tmp_path)])
    model, tokenizer = load_encoder(checkpoint)
    found = results["tasks"]["Tatoeba"]["subsets"]
    assert list(found) == ["deu-eng", "swh-eng"]
    differ = False
    for code in CODES.values():
        foreign, english = (
            embed_sentences(model, tokenizer, (data / f"tatoeba.{code}-eng.{side}").read_text("utf-8").splitlines())
            for side in (code, "eng")
        )
        there, back = retrieval_accuracy(foreign, english)
        assert found[f"{code}-eng"]["accuracy"] == pytest.approx(there) and 0 < there < 100
        differ |= abs(there - back) > 1
    assert differ, "a search in the other direction would be seen"
    mean = results["tasks"]["Tatoeba"]["mean"]
    assert mean["f1"] == pytest.approx(sum(each["f1"] for each in found.values()) / 2)
    assert json.loads((tmp_path / "results.json").read_text("utf-8"))["tasks"] == results["tasks"]
    assert results["protocol"]["pooling"] == {"mode": "mean", "layer": 1}
    assert (results["protocol"]["max_length"], results["protocol"]["prompt"]) == (64, "")
    of_mteb = json.loads((tmp_path / "Tatoeba.json").read_text("utf-8"))
    assert {each["hf_subset"]: 100 * each["main_score"] for each in of_mteb["scores"]["test"]} == pytest.approx(
        {name: each["f1"] for name, each in found.items()}, abs=1e-3
    )
    assert "deu-eng" in capsys.readouterr().out


def test_vectors_are_of_length_one_with_the_default_prompt(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> None:
    model = model_for_text(embedding_normalize=False, embedding_prompt="a dog ", embedding_max_length=7)
    encoder = MtebEncoder(model, tokenizer)
    found = encoder.encode([{"text": ["the cat"]}, {"text": ["das Haus"]}])
    expected = embed_sentences(
        model, tokenizer, ["a dog the cat", "a dog das Haus"], prompt="", normalize=True, max_length=7
    )
    np.testing.assert_array_equal(found, expected)
    assert encoder.max_length == 7
    assert MtebEncoder(model, tokenizer, 1000).max_length == 64, "what is read, not more than the positions"


def test_layer_pooling_and_length_are_those_asked_for(checkpoint: Path, data: Path, tmp_path: Path) -> None:
    given = {"layer": "2", "pooling": "cls", "max_seq_length": "14", "subsets": "swh-eng", "data": str(data)}
    flags = [word for name, value in given.items() for word in (f"--{name}", value)]
    results = main(["--model", str(checkpoint), "--output", str(tmp_path), *flags])
    encoder = load_encoder(checkpoint)
    foreign, english = (
        embed_sentences(
            *encoder, (data / f"tatoeba.swh-eng.{side}").read_text("utf-8").splitlines(), Pooling("cls", 2),
            max_length=14,
        )
        for side in ("swh", "eng")
    )  # fmt: skip
    expected = retrieval_accuracy(foreign, english)[0]
    assert results["tasks"]["Tatoeba"]["subsets"]["swh-eng"]["accuracy"] == pytest.approx(expected)
    assert results["protocol"]["pooling"] == {"mode": "cls", "layer": 2}
    with pytest.raises(BadInput, match="the layer read for 'mean' is 3; allowed is 0 to 2"):
        main(["--model", str(checkpoint), "--output", str(tmp_path), "--data", str(data), "--layer", "3"])


def test_all_splits_of_a_task_are_scored_and_counted(checkpoint: Path, data: Path, tmp_path: Path) -> None:
    """IndicGenBenchFloresBitextMining has two."""
    task = load_task("Tatoeba", ["deu-eng"], data)
    test = task.dataset["deu-eng"]["test"]
    task.dataset["deu-eng"]["validation"] = test.select(range(len(test) // 2))
    task.filter_eval_splits(["validation", "test"])
    found = evaluate_mteb(*load_encoder(checkpoint), [task], tmp_path)["tasks"]["Tatoeba"]
    assert [*found["subsets"]] == ["deu-eng, validation", "deu-eng, test"]
    first, second = (each["accuracy"] for each in found["subsets"].values())
    assert first != second and found["mean"]["accuracy"] == pytest.approx((first + second) / 2)


def test_subsets_are_those_asked_for(data: Path) -> None:
    task = load_task("Tatoeba", ["swh-eng"], data)
    assert task.hf_subsets == ["swh-eng"] and list(task.dataset) == ["swh-eng"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Tatoebra",), "Tatoebra: cannot be read"),
        (("STS22",), "STS22: is a task of the type STS; allowed is BitextMining"),
        (("BUCC.v2", [], "."), r"BUCC\.v2: was asked for from \.; allowed there is Tatoeba"),
        (("Tatoeba", [], "nowhere"), r"nowhere: has no tatoeba\.deu-eng\.eng"),
    ],
)
def test_what_is_no_bitext_mining_or_not_there_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load_task(*arguments)


def test_an_output_that_cannot_be_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(BadInput, match=r"taken: is a file; allowed is a path where a folder can be written"):
        main(["--model", "nowhere", "--tasks", "Tatoebra", "--output", str(tmp_path / "taken")])


def test_the_results_of_a_run_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"history": []}')
    with pytest.raises(BadInput, match="has the results.json of something else"):
        main(["--model", "nowhere", "--output", str(tmp_path)])


def test_a_subset_of_no_task_is_refused_before_the_model_is_read(tmp_path: Path) -> None:
    tasks = ["--tasks", "Tatoeba", "BUCC.v2", "--subsets", "deu-eng", "de-en"]
    given = ["--model", str(tmp_path), "--output", str(tmp_path / "out"), *tasks]
    with pytest.raises(BadInput, match="subsets has foo, which no task has; allowed are those of Tatoeba, BUCC.v2"):
        main([*given, "foo"])
    with pytest.raises(BadInput, match="config.json"):
        main(given)


def test_sides_of_unequal_length_are_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "tatoeba.deu-eng.deu").write_text("eins\n")
    (tmp_path / "tatoeba.deu-eng.eng").write_text("one\ntwo\n")
    with pytest.raises(BadInput, match=r"deu has 1 lines.*eng has 2 lines"):
        load_task("Tatoeba", [], tmp_path)
    with pytest.raises(BadInput, match=r"has no tatoeba\.fra-eng\.eng"):
        load_task("Tatoeba", ["fra-eng"], data)


def test_the_reason_why_mteb_cannot_be_imported_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(BadInput, match="mteb cannot be imported .import of mteb halted.*pip install --upgrade"):
        load_task("Tatoeba")
