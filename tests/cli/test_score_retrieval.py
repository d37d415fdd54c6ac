"""`hictl score-retrieval` scores encoders as their folders say, or as its flags do, and refuses before it loads."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from hictl_hf.cli.score_retrieval import main
from hictl_hf.embedding.encoder import embed_sentences, load_encoder
from hictl_hf.embedding.pooling import Pooling
from hictl_hf.errors import BadInput
from hictl_hf.retrieval.bitext import retrieval_accuracy


@pytest.fixture(scope="module")
def checkpoints(saved_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two encoders that are read differently; the second one has a prompt."""
    save = partial(saved_model, initializer_range=0.3)
    return [
        save(tmp_path_factory.mktemp("first"), embedding_layer=1, embedding_pooling="mean"),
        save(tmp_path_factory.mktemp("second"), seed=1, embedding_layer=2, embedding_pooling="cls",
             embedding_prompt="the "),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def sides(sentences: dict[str, list[str]]) -> tuple[list[str], list[str]]:
    size = min(len(sentences["en"]), len(sentences["zh"]), 20)
    return sentences["en"][:size], sentences["zh"][:size]


@pytest.fixture(scope="module")
def source(sides: tuple[list[str], list[str]], tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("pairs")
    for name, texts in zip(("en", "zh"), sides):
        (folder / f"test.{name}").write_text("".join(f"{text}\n" for text in texts), "utf-8")
    return str(folder / "test.{en,zh}")


def test_each_encoder_is_read_as_its_folder_says(
    checkpoints: list[Path], sides: tuple[list[str], list[str]], source: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    found = main([*map(str, checkpoints), "--test_file", source, "--output", str(tmp_path / "scores")]).encoders
    for folder, each in zip(checkpoints, found):
        expected = retrieval_accuracy(*(embed_sentences(*load_encoder(folder), texts) for texts in sides))
        assert tuple(100 * each.hits["zh"].mean(1)) == pytest.approx(expected)
    assert [each.protocol["prompt"] for each in found] == ["", "the "]
    printed = capsys.readouterr().out
    assert all(f"{each.values['mean']:.1f}" in printed for each in found) and "difference" in printed
    results = json.loads((tmp_path / "scores/results.json").read_text("utf-8"))
    assert results["command"].startswith(f"hictl score-retrieval {checkpoints[0]} ")


def test_the_results_of_a_run_are_not_replaced(checkpoints: list[Path], source: str, tmp_path: Path) -> None:
    command = [str(checkpoints[0]), "--test_file", source, "--output", str(tmp_path)]
    for kept in ('{"history": []}', "[", "1"):
        (tmp_path / "results.json").write_text(kept)
        with pytest.raises(BadInput, match="has the results.json of something else, which would be replaced"):
            main(command)
        assert (tmp_path / "results.json").read_text() == kept
    (tmp_path / "results.json").unlink()
    main(command)
    main(command)  # its own


def test_flags_override_what_the_folder_says(
    checkpoints: list[Path], sides: tuple[list[str], list[str]], source: str
) -> None:
    flags = ["--pooling", "mean", "--layer", "0", "--prompt", "", "--max_seq_length", "8"]
    (found,) = main([str(checkpoints[1]), "--test_file", source, *flags]).encoders
    model, tokenizer = load_encoder(checkpoints[1])
    vectors = (embed_sentences(model, tokenizer, texts, Pooling("mean", 0), prompt="", max_length=8) for texts in sides)
    assert tuple(100 * found.hits["zh"].mean(1)) == pytest.approx(retrieval_accuracy(*vectors))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere/at/all", "--test_file", "SOURCE"], "nowhere/at/all"),
        (["a-model", "RUN", "--test_file", "SOURCE"], "is the folder of a run; allowed is a model in it"),  # before any
        (["FIRST", "--test_file", "none.{en,de}"], "none.en: does not exist"),
        (["FIRST", "--test_file", "SOURCE", "--pooling", "max"], "pooling"),
        (["FIRST", "--test_file", "none.jsonl", "--precision", "fp16"], "precision is 'fp16'; allowed are fp32"),
        (["FIRST", "--test_file", "SOURCE", "--max_seq_length", "2"], "max_seq_length is 2; allowed is 3 or more"),
        (["FIRST", "--test_file", "SOURCE", "--prompt_name", "query"], "prompt_name is 'query'"),
        (["FIRST", "--test_file", "SOURCE", "--validation_file", "SOURCE"], "--validation_file .*: unknown argument"),
    ],
)
def test_bad_arguments_are_one_message(
    arguments: list[str], message: str, checkpoints: list[Path], source: str, tmp_path: Path
) -> None:
    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder" / "config.json").touch()
    places = {"FIRST": str(checkpoints[0]), "SOURCE": source, "RUN": str(tmp_path)}
    with pytest.raises(BadInput, match=message):
        main([places.get(word, word) for word in arguments])
