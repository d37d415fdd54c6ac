"""`hictl mine`: from files to files, whatever was found before it was stopped, and every fault in one line."""

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_files import write_lines
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf.cli.mine import MineArguments, main
from hictl_hf.embedding.encoder import embed_sentences, load_encoder
from hictl_hf.embedding.pooling import Pooling, chosen_pooling
from hictl_hf.embedding.sentence_transformers_files import write_sentence_transformers_files
from hictl_hf.embedding.to_file import embed_to_file
from hictl_hf.errors import BadInput
from hictl_hf.retrieval import mining, mining_files, workdir
from hictl_hf.retrieval.mining import MiningConfig, mine, mine_vectors
from hictl_hf.retrieval.nearest_neighbours import Search
from hictl_hf.training.fingerprint import VERSION
from hictl_hf.version import __version__


@pytest.fixture(scope="module")
def checkpoint(saved_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("model"), initializer_range=0.3)


@pytest.fixture
def files(tmp_path: Path, sentences: dict[str, list[str]]) -> tuple[Path, Path]:
    """Two texts, a third of whose lines are the same, with an empty and two repeated lines."""
    english = sentences["en"]
    x, y = [*english[:10], "", english[0], *sentences["de"][:3]], [*english[5:14], english[6]]
    return write_lines(tmp_path / "x.txt", x), write_lines(tmp_path / "y.txt", y)


def read_lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


def run(output: Path, *files: Path, **settings: Any) -> list[list[str]]:
    main([*map(str, files), "--output", str(output), *(str(p) for n, v in settings.items() for p in (f"--{n}", v))])
    return [line.split("\t") for line in read_lines(output)]


@contextmanager
def unfinished() -> Iterator[None]:
    """A command in this block ends where it would write its output, so that its partial output stays."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(mining_files, "write_text", lambda *_: 1 / 0)
        yield


def test_pairs_of_two_files(
    checkpoint: Path,
    files: tuple[Path, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with caplog.at_level(logging.INFO):
        found = run(tmp_path / "pairs.tsv", *files, model=checkpoint, margin="absolute")
    scores = [float(score) for score, _, _ in found]
    assert scores == sorted(scores, reverse=True)
    same = [pair for pair in found if pair[1] == pair[2]]
    assert len(same) == 5 and {float(pair[0]) for pair in same} == {1.0}
    x, y = ([*dict.fromkeys(line for line in read_lines(file) if line)] for file in files)
    encoder = load_encoder(checkpoint)
    pairs, expected = mine_vectors(
        embed_sentences(*encoder, x), embed_sentences(*encoder, y), MiningConfig(margin="absolute")
    )
    assert {(a, b) for _, a, b in found} == {(x[i], y[j]) for i, j in pairs.tolist()}
    assert scores == pytest.approx(expected.tolist(), abs=1e-5)
    said = capsys.readouterr().out
    assert said.startswith("exact search of 13 x 9 vectors of 32 numbers: 117 comparisons, at most ")
    for words in (
        "x.txt: 1 empty lines are left out",
        *(f"{name}.txt: 1 repeated lines are read once" for name in "xy"),
    ):
        assert words in caplog.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs.tsv", "x.txt", "y.txt"]


def test_standard_output_has_the_pairs_alone(
    checkpoint: Path, files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run(tmp_path / "pairs.tsv", *files, model=checkpoint)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    for name in ("-", "/dev/stdout"):
        main([*map(str, files), "--output", name, "--model", str(checkpoint)])
        said = capsys.readouterr()
        assert said.out == (tmp_path / "pairs.tsv").read_text("utf-8") and "comparisons" in said.err
        with pytest.raises(BadInput, match=f"gold is given, and output is {name}; allowed with --gold is a file"):
            main([*map(str, files), "--output", name, "--model", str(checkpoint), "--gold", str(files[0])])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs.tsv", "x.txt", "y.txt"]


def test_settings_reach_the_search(checkpoint: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    forward = run(tmp_path / "a", *files, model=checkpoint, direction="forward")
    assert len(forward) == 13
    once = run(tmp_path / "b", *files, model=checkpoint, direction="forward", one_to_one=True)
    assert len(once) == len({y for _, _, y in forward}) < 13
    few = run(tmp_path / "c", *files, model=checkpoint, direction="forward", threshold=once[2][0])
    assert 0 < len(few) <= 3
    other = run(tmp_path / "d", *files, model=checkpoint, direction="forward", neighbours=1, margin="distance")
    assert [pair[0] for pair in other] != [pair[0] for pair in forward]
    pytest.importorskip("faiss")
    approximate = run(tmp_path / "e", *files, model=checkpoint, direction="forward", index="HNSW32")
    assert {tuple(pair[1:]) for pair in approximate} == {tuple(pair[1:]) for pair in forward}


def test_vectors_are_used_where_they_are_given(checkpoint: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    encoder = load_encoder(checkpoint)
    paths = []
    for file in files:
        paths.append(file.with_suffix(".npy"))
        np.save(paths[-1], embed_sentences(*encoder, read_lines(file)).astype(np.float16))
    expected = run(tmp_path / "a", *files, model=checkpoint)
    for given in ({"x_vectors": paths[0], "y_vectors": paths[1]}, {"y_vectors": paths[1], "model": checkpoint}):
        found = run(tmp_path / "b", *files, **given)
        assert {tuple(pair[1:]) for pair in found} == {tuple(pair[1:]) for pair in expected}
        assert [float(p[0]) for p in found] == pytest.approx([float(p[0]) for p in expected], abs=0.01)


def test_given_vectors_stay_with_their_lines(tmp_path: Path) -> None:
    texts = [["", "a", "b", "a", "c"], ["d", "d", "", "c", "b"]]  # a, b, c, d along the axes; and what is not read
    vectors = [[[9, 9, 9, 9], [1, 0, 0, 0], [0, 1, 0, 0], [9, 9, 9, 9], [0, 0, 1, 0]]]
    vectors += [[[0, 0, 0, 1], [9, 9, 9, 9], [9, 9, 9, 9], [0, 0, 1, 0], [0, 1, 0, 0]]]
    files = [write_lines(tmp_path / f"{side}.txt", lines) for side, lines in zip("xy", texts)]
    paths = [tmp_path / f"{side}.npy" for side in "xy"]
    for path, rows in zip(paths, vectors):
        np.save(path, np.array(rows, np.float32))
    found = run(
        tmp_path / "pairs.tsv", *files, x_vectors=paths[0], y_vectors=paths[1], margin="absolute", threshold=0.5
    )
    assert sorted(found) == [["1.000000", "b", "b"], ["1.000000", "c", "c"]]


def test_given_pairs_are_scored_and_filtered(
    checkpoint: Path, files: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mined = run(tmp_path / "mined.tsv", *files, model=checkpoint)
    two = write_lines(tmp_path / "two.tsv", ["\t".join(pair[1:]) for pair in mined[::-1]] + ["alone\t "])
    with caplog.at_level(logging.INFO):
        scored = run(tmp_path / "scored.tsv", pairs=two, model=checkpoint)
    assert [pair[1:] for pair in scored] == [pair[1:] for pair in mined[::-1]]  # their order is kept
    assert "1 pairs with an empty side are left out" in caplog.text
    threshold = sorted(float(pair[0]) for pair in scored)[3]
    kept = run(tmp_path / "kept.tsv", pairs=tmp_path / "scored.tsv", model=checkpoint, threshold=threshold + 1e-9)
    assert kept == [pair for pair in scored if float(pair[0]) > threshold]


def test_near_duplicates_are_removed(checkpoint: Path, tmp_path: Path, sentences: dict[str, list[str]]) -> None:
    lines = [*sentences["en"][:6], sentences["en"][1], f"{sentences['en'][2]} ", "", *sentences["zh"][:3]]
    file = write_lines(tmp_path / "x.txt", lines)
    run(tmp_path / "distinct.txt", file, deduplicate=0.99999, model=checkpoint)
    assert read_lines(tmp_path / "distinct.txt") == [*lines[:6], *lines[9:]]  # white space makes no other vector
    run(tmp_path / "distinct.txt", file, deduplicate=-1, model=checkpoint)
    assert read_lines(tmp_path / "distinct.txt") == lines[:1]


def test_gold_pairs_make_a_report(checkpoint: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    shared = sorted({*read_lines(files[0])} & {*read_lines(files[1])})
    gold = write_lines(tmp_path / "gold.tsv", [f"{text}\t{text}" for text in shared])
    x, y = files[0].rename(tmp_path / "x in 2026.txt"), files[1]
    run(tmp_path / "pairs.tsv", x, y, model=checkpoint, margin="absolute", gold=gold)
    results = json.loads((tmp_path / "pairs-report" / "results.json").read_text("utf-8"))
    assert results["gold"] == 5 and results["best"]["f1"] == 100
    assert f"--margin absolute --gold {gold}" in results["command"]
    assert results["command"].startswith(f"hictl mine '{x}' {y} --"), "as a shell reads it"
    assert (tmp_path / "pairs-report" / "report.html").is_file()


class Stopped(BaseException):
    """As if the process had ended."""


@pytest.mark.parametrize("place", ["vectors", "search"])
def test_a_command_that_was_stopped_goes_on(
    place: str, checkpoint: Path, files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, output = run(tmp_path / "expected", *files, model=checkpoint), tmp_path / "pairs.tsv"
    monkeypatch.setattr(mining, "SAVED_EVERY", 0)

    def stop(*_: Any, **__: Any) -> None:
        raise Stopped

    with monkeypatch.context() as patch:
        if place == "search":
            patch.setattr(mining_files, "write_text", stop)
        else:
            done: list[str] = []

            def embed_one_side(*given: Any, **settings: Any) -> None:
                if done:
                    raise Stopped
                embed_to_file(*given, **settings)
                done.append(given[3].name)

            patch.setattr(workdir, "embed_to_file", embed_one_side)
        with pytest.raises(Stopped):
            run(output, *files, model=checkpoint)
    assert not output.exists()
    left = {path.name for path in (tmp_path / "pairs.tsv.partial").iterdir()}
    assert left == {"settings.json", "x.npy"} | ({"y.npy", "neighbours.npz"} if place == "search" else set())
    with pytest.raises(BadInput, match="prompt was None and is 'q: '; continue with what it was begun with, or remove"):
        run(output, *files, model=checkpoint, prompt="q: ")
    embedded: list[str] = []
    strips, compare = 0, Search._compare

    def embed_again(*given: Any, **settings: Any) -> None:
        embedded.append(given[3].name)
        embed_to_file(*given, **settings)

    def compare_again(*given: Any) -> None:
        nonlocal strips
        strips += 1
        compare(*given)

    monkeypatch.setattr(workdir, "embed_to_file", embed_again)
    monkeypatch.setattr(Search, "_compare", compare_again)
    assert run(output, *files, model=checkpoint) == expected
    assert embedded == ([] if place == "search" else ["y.npy"])
    assert strips == (0 if place == "search" else 1)
    assert not (tmp_path / "pairs.tsv.partial").exists()


def test_other_lines_are_not_taken_for_those_of_before(
    checkpoint: Path, files: tuple[Path, Path], tmp_path: Path
) -> None:
    with unfinished():
        run(tmp_path / "pairs.tsv", *files, model=checkpoint)
    write_lines(files[0], ["another line"])
    with pytest.raises(BadInput, match=r"digests\..* was .* continue with what it was begun with, or remove"):
        run(tmp_path / "pairs.tsv", *files, model=checkpoint)
    shutil.rmtree(tmp_path / "pairs.tsv.partial")
    assert len(run(tmp_path / "pairs.tsv", *files, model=checkpoint)) == 1
    (tmp_path / "other.tsv.partial").mkdir()
    (tmp_path / "other.tsv.partial" / "thesis.tex").touch()
    with pytest.raises(BadInput, match="is not partial output of hictl mine"):
        run(tmp_path / "other.tsv", *files, model=checkpoint)
    assert (tmp_path / "other.tsv.partial" / "thesis.tex").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embedding_pooling": "cls"}, r"pooling was \['mean', 2\] and is \['cls', 2\]"),
        ({"embedding_max_length": 5}, "max_length was 64 and is 5"),
        ({"layer_norm_eps": 0.5}, "encoder was 'one whose vectors are .* and is 'one whose"),
    ],
)
def test_vectors_of_an_encoder_that_is_read_otherwise_are_not_mixed(
    changes: dict[str, Any],
    message: str,
    saved_model: Callable[..., Path],
    files: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    saved_model(tmp_path / "model", embedding_pooling="mean")
    with unfinished():
        run(tmp_path / "pairs.tsv", *files, model=tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text("utf-8")) | changes), "utf-8")
    with pytest.raises(BadInput, match=message):
        run(tmp_path / "pairs.tsv", *files, model=tmp_path / "model")


UNTIL_017 = ("pooling", "max_length", "encoder")  # what its partial output did not remember
READINGS = [
    ({"pooling": "cls"}, r"pooling was \['mean', 2\] and is \['cls', 2\]"),
    ({"layer": 1}, r"pooling was \['mean', 2\] and is \['mean', 1\]"),
    ({"max_seq_length": 5}, "max_length was 64 and is 5"),
    ({"pooling": "projection"}, r"pooling was \['mean', 2\] and is \['projection', 2\]"),
]


@pytest.mark.parametrize(("given", "message"), READINGS)
def test_layer_pooling_and_length_are_those_asked_for(
    given: dict[str, Any], message: str, saved_model: Callable[..., Path], files: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = saved_model(tmp_path / "model", initializer_range=0.3, embedding_pooling="mean", projection_size=20)
    found = run(tmp_path / "a.tsv", *files, model=folder, margin="absolute", **given)
    model, tokenizer = load_encoder(folder)
    mode, layer = chosen_pooling(model.config, given.get("pooling"), given.get("layer"))
    length = given.get("max_seq_length")
    x, y = ([*dict.fromkeys(line for line in read_lines(file) if line)] for file in files)
    vectors = [embed_sentences(model, tokenizer, side, Pooling(mode, layer), max_length=length) for side in (x, y)]
    scores = mine_vectors(vectors[0], vectors[1], MiningConfig(margin="absolute"))[1].tolist()
    assert [float(pair[0]) for pair in found] == pytest.approx(scores, abs=1e-5)
    own = mine(x, y, model, tokenizer, MiningConfig(margin="absolute"))
    asked = mine(x, y, model, tokenizer, MiningConfig(margin="absolute"), Pooling(mode, layer), max_length=length)
    assert [pair.score for pair in asked] == pytest.approx(scores, abs=1e-5) != [pair.score for pair in own]
    with unfinished():
        run(tmp_path / "b.tsv", *files, model=folder)
    with pytest.raises(BadInput, match=message):
        run(tmp_path / "b.tsv", *files, model=folder, **given)
    state = tmp_path / "b.tsv.partial" / "settings.json"
    begun_by_017 = {key: value for key, value in json.loads(state.read_text()).items() if key not in UNTIL_017}
    state.write_text(json.dumps(begun_by_017))
    with pytest.raises(BadInput, match=r"(pooling|max_length) was None and is"):
        run(tmp_path / "b.tsv", *files, model=folder, **given)


def test_lines_of_a_pipe_are_compared_too(checkpoint: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(write)

    def piped(*lines: str) -> list[list[str]]:
        source, write = os.pipe()
        os.write(write, "".join(f"{line}\n" for line in lines).encode())
        os.close(write)
        os.dup2(source, read)
        os.close(source)
        return run(tmp_path / "pairs.tsv", Path(f"/dev/fd/{read}"), files[1], model=checkpoint)

    with unfinished():
        piped("das Haus", "der Hund")
    with pytest.raises(BadInput, match="lines was .* and is .*; continue with what it was begun with, or remove"):
        piped("das Haus", "die Katze")
    assert {line[1] for line in piped("das Haus", "der Hund")} == {"das Haus", "der Hund"}
    os.close(read)


def test_a_prompt_is_put_before_each_sentence_and_work_goes_on_only_with_it(
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    files: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "model"
    model = model_for_text(
        initializer_range=0.3, embedding_prompt="a dog ", embedding_prompts={"none": ""}, embedding_pooling="mean"
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_sentence_transformers_files(folder, model.config)
    with_prompt, without = (
        run(tmp_path / name, *files, model=folder, margin="absolute", **given)
        for name, given in (("with", {}), ("without", {"prompt_name": "none"}))
    )
    x, y = ([*dict.fromkeys(line for line in read_lines(file) if line)] for file in files)
    for found, prompt in ((with_prompt, "a dog "), (without, "")):
        vectors = (embed_sentences(model, tokenizer, [prompt + text for text in side], prompt="") for side in (x, y))
        scores = mine_vectors(*vectors, MiningConfig(margin="absolute"))[1]
        assert [float(pair[0]) for pair in found] == pytest.approx(scores.tolist(), abs=1e-5)
    assert with_prompt != without
    with unfinished():
        run(tmp_path / "pairs.tsv", *files, model=folder)
    with pytest.raises(BadInput, match="prompt was 'a dog ' and is 'meine '; continue with what it was begun with"):
        run(tmp_path / "pairs.tsv", *files, model=folder, prompt="meine ")
    stated = folder / "config_sentence_transformers.json"
    content = stated.read_text("utf-8")
    stated.write_text(content.replace("a dog", "the cat"), "utf-8")
    with pytest.raises(BadInput, match=r"digests\..*config_sentence_transformers\.json was .* and is"):
        run(tmp_path / "pairs.tsv", *files, model=folder)
    stated.write_text(content, "utf-8")
    monkeypatch.setattr(workdir, "embed_to_file", lambda *_, **__: 1 / 0)  # vectors are there
    assert len(run(tmp_path / "pairs.tsv", *files, model=folder, prompt="a dog ")) > 1


def test_work_of_release_0_7_5_is_continued(
    checkpoint: Path, files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unfinished():
        run(tmp_path / "pairs.tsv", *files, model=checkpoint)
    state = tmp_path / "pairs.tsv.partial" / "settings.json"
    kept = json.loads(state.read_text("utf-8"))
    assert kept.pop(VERSION) == __version__ and kept.pop("prompt") is None
    for name in ("pooling", "max_length", "encoder"):
        kept.pop(name)
    state.write_text(json.dumps(kept), "utf-8")  # as 0.7.5 wrote it
    with pytest.raises(BadInput, match=r"by hictl_hf 0\.7 or older: precision was 'fp32' and is 'bf16'"):
        run(tmp_path / "pairs.tsv", *files, model=checkpoint, precision="bf16")
    monkeypatch.setattr(workdir, "embed_to_file", lambda *_, **__: 1 / 0)  # vectors are there
    assert len(run(tmp_path / "pairs.tsv", *files, model=checkpoint)) > 1


def test_tabs_in_a_line_are_written_as_spaces(checkpoint: Path, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "x.txt", ["the cat\tsees"])
    assert run(tmp_path / "pairs.tsv", file, file, model=checkpoint)[0][1:] == ["the cat sees"] * 2


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "one file": ({"files": ["x.txt"]}, "1 files are given; allowed are two to mine, one with --deduplicate"),
    "files and pairs": ({"pairs": "x.txt"}, "2 files are given; .* none with --pairs"),
    "both modes": ({"pairs": "x.txt", "deduplicate": 0.9}, "pairs and deduplicate are both given"),
    "no cosine": ({"files": ["x.txt"], "deduplicate": 1.5}, "deduplicate is 1.5; allowed are cosines from -1"),
    "gold without mining": (
        {"files": ["x.txt"], "deduplicate": 0.9, "gold": "x.txt"},
        "gold is given with --pairs or --deduplicate; allowed is",
    ),
    "a way to mine pairs that are given": (
        {"files": [], "pairs": "behind.tsv", "direction": "forward"},
        "direction is given, which has no effect with --pairs; leave it out",
    ),
    "a search for cosines of pairs": (
        {"files": [], "pairs": "behind.tsv", "margin": "absolute", "neighbours": 9, "index": "Flat"},
        "neighbours, index is given, which has no effect with --pairs and --margin absolute; leave it out",
    ),
    "a way to mine one file": (
        {"files": ["x.txt"], "deduplicate": 0.9, "index": "HNSW32", "threshold": 7},
        "threshold, index is given, which has no effect with --deduplicate",
    ),
    "no threshold": ({"threshold": "nan"}, "threshold is nan; allowed are numbers"),
    "gzip": ({"output": "pairs.tsv.gz"}, "output is pairs.tsv.gz; allowed are names without .gz"),
    "no gold": ({"gold": "empty.txt", "output": "other.tsv"}, "empty.txt: has no pair; allowed is one or more"),
    "too many vectors": ({"files": ["x.txt"], "deduplicate": 0.9, "y_vectors": "v.npy"}, "y_vectors is given"),
    "a prompt without a model": ({"model": None, "prompt": "a"}, "a prompt is given without a model; allowed is"),
    "a prompt of vectors": (
        {"x_vectors": "v.npy", "y_vectors": "v.npy", "prompt": "query: "},
        "prompt is given, which has no effect on vectors from files; leave it out",
    ),
    "a precision of vectors": (
        {"model": None, "x_vectors": "v.npy", "y_vectors": "v.npy", "precision": "int8"},
        "precision is given, which has no effect on vectors from files",
    ),
    "a reading of vectors": (
        {"x_vectors": "v.npy", "y_vectors": "v.npy", "pooling": "cls", "layer": 1, "max_seq_length": 9},
        "layer, pooling, max_seq_length is given, which has no effect on vectors from files; leave it out",
    ),
    "a pooling": ({"pooling": "max"}, "the pooling is 'max'; allowed are cls, mean"),
    "a layer": ({"layer": 3}, "the layer read for 'cls' is 3; allowed is 0 to 2"),
    "no tokens": ({"max_seq_length": 2}, "max_seq_length is 2; allowed is 3 or more"),
    "an unknown prompt": ({"prompt_name": "query"}, "prompt_name is 'query'; allowed are none, as the model has no"),
    "no model": ({"model": None}, "model is not given; allowed without it are vectors for all files"),
    "no such file": ({"files": ["x.txt", "absent.txt"]}, "absent.txt: no such file"),
    "an empty file": ({"files": ["x.txt", "empty.txt"]}, "empty.txt: has no line with text"),
    "not UTF-8": ({"files": ["latin.txt", "x.txt"]}, "latin.txt:2: has invalid UTF-8"),
    "a margin": ({"margin": "cosine"}, "'cosine' is no way to mine; allowed are ratio, distance, absolute"),
    "memory": ({"max_memory": 1000}, r"max_memory is 1000 bytes; allowed are \d+ or more"),
    "columns": ({"files": [], "pairs": "x.txt"}, 'x.txt:1: has 1 columns; allowed are "x<TAB>y"'),
    "a score behind": ({"files": [], "pairs": "behind.tsv"}, "behind.tsv:2: has 'der Hund' as its score; allowed is"),
    "a table": (
        {"files": ["x.txt", "v.jsonl.gz"]},
        "v.jsonl.gz: is a table by its name; allowed are files of one sentence per line",
    ),
    "a place of the report": ({"gold": "behind.tsv"}, "pairs-report: is a file; allowed is a path where a folder"),
    "number of vectors": (
        {"x_vectors": "v.npy"},
        "v.npy: has 2 vectors, and .*x.txt 15 lines; allowed is one for each",
    ),
    "shape of vectors": ({"x_vectors": "flat.npy"}, r"flat.npy: is an array \(3,\) of int64; allowed is an array"),
    "long vectors": ({"x_vectors": "long.npy"}, r"long.npy: is an array .* of .*; allowed is an array .* 64 bits"),
    "pickled vectors": ({"x_vectors": "pickle.npy"}, "pickle.npy: cannot be read"),
    "width of vectors": ({"x_vectors": "wide.npy"}, "vectors have .* numbers; allowed are those of one model"),
    "vectors that are no numbers": (
        {"x_vectors": "nan.npy"},
        "nan.npy: vector 14 has infinity or NaN; allowed are finite numbers. Embed line 14 again",
    ),
    "output over input": ({"output": "x.txt"}, "which writing it would destroy, is an input"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_told_in_one_line(
    fault: str, checkpoint: Path, files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "pairs-report").touch()
    write_lines(tmp_path / "behind.tsv", ["1.1\tdas Haus\tthe house", "der Hund\tthe dog\t1.06"])
    (tmp_path / "latin.txt").write_bytes("gut\nschön\n".encode("latin-1"))
    arrays: dict[str, Any] = {"v": np.ones((2, 32)), "flat": np.arange(3), "wide": np.ones((15, 7), np.float32)}
    arrays |= {"nan": np.where(np.arange(15) == 13, np.nan, np.ones((32, 15))).T, "pickle": np.array([{}], object)}
    arrays["long"] = np.ones((2, 3), np.longdouble)
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    settings, message = FAULTS[fault]
    settings = {"model": checkpoint, "output": "pairs.tsv", "files": ["x.txt", "y.txt"], **settings}
    before = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    given = [f"--{name}={value}" for name, value in settings.items() if name != "files" and value is not None]
    with pytest.raises(BadInput, match=message) as error:
        main([*settings["files"], *given])
    assert "\n" not in str(error.value)
    after = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    after.pop("pairs.tsv.partial", None)
    assert after == before


def test_what_cannot_work_is_refused_before_a_file_is_read() -> None:
    with pytest.raises(BadInput, match="precision is 'fp16'; allowed are fp32, bf16, int8"):
        MineArguments(output="a.tsv", model="m", precision="fp16")
    cases: list[tuple[list[str], dict[str, Any]]] = [
        (["a", "b"], {"x_vectors": "v.npy"}), (["a"], {"deduplicate": 0.9}), ([], {"pairs": "a"}),
    ]  # fmt: skip
    for files, given in cases:
        with pytest.raises(BadInput, match="model is not given; allowed without it are vectors for all files"):
            MineArguments(output="a.tsv", **given).check(files)
    MineArguments(output="a.tsv", deduplicate=0.9, x_vectors="v.npy").check(["a"])
