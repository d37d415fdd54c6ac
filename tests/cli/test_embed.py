"""Lines become vectors, each in its place, whatever the file and whenever the work is stopped; faults are told."""

import hashlib
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from toy_files import write_lines

from hictl_hf.cli.embed import EmbedArguments, main
from hictl_hf.embedding import to_file
from hictl_hf.embedding.encoder import embed_sentences, load_encoder
from hictl_hf.embedding.pooling import Pooling
from hictl_hf.errors import BadInput
from hictl_hf.training import partial_output
from hictl_hf.training.fingerprint import VERSION
from hictl_hf.training.partial_output import as_bytes
from hictl_hf.version import __version__


@pytest.fixture(scope="module")
def checkpoint(saved_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is to be read at the mean of its first layer."""
    folder = tmp_path_factory.mktemp("model")
    return saved_model(folder, initializer_range=0.3, embedding_layer=1, embedding_pooling="mean")


@pytest.fixture(scope="module")
def texts(sentences: dict[str, list[str]]) -> list[str]:
    return [*sentences["en"][:7], "", *sentences["zh"][:5], *sentences["en"][2:9]]


@pytest.fixture(scope="module")
def expected(checkpoint: Path, texts: list[str]) -> np.ndarray:
    return embed_sentences(*load_encoder(checkpoint), texts)


def run(checkpoint: Path, output: Path, *inputs: Path, **settings: Any) -> Path:
    extra = [str(part) for name, value in settings.items() for part in (f"--{name}", value)]
    main(
        [
            "--model",
            str(checkpoint),
            "--output",
            str(output),
            *(["--input", *map(str, inputs)] if inputs else []),
            *extra,
        ]
    )
    return output


CLOSE = {"rtol": 1e-4, "atol": 1e-6}


# --- what comes out ---------------------------------------------------------------------------------------------------


def test_row_i_is_line_i_of_all_files_by_the_models_own_pooling(
    checkpoint: Path, texts: list[str], expected: np.ndarray, tmp_path: Path
) -> None:
    files = write_lines(tmp_path / "a.txt", texts[:8]), write_lines(tmp_path / "b.txt.gz", texts[8:])
    found = np.load(run(checkpoint, tmp_path / "vectors.npy", *files, lines_at_once=3))
    assert found.dtype == np.float32 and found.shape == (len(texts), 32)
    np.testing.assert_allclose(found, expected, **CLOSE)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt.gz", "vectors.npy"]


def test_parquet_holds_the_texts_too(checkpoint: Path, texts: list[str], expected: np.ndarray, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.txt", texts)
    table = pyarrow.parquet.read_table(run(checkpoint, tmp_path / "vectors.parquet", source, lines_at_once=6))
    assert table["text"].to_pylist() == texts
    np.testing.assert_allclose(np.stack(table["vector"].to_numpy()), expected, **CLOSE)


def test_pooling_length_and_numbers_are_those_asked_for(checkpoint: Path, texts: list[str], tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.txt", texts)
    model, tokenizer = load_encoder(checkpoint)
    raw = embed_sentences(model, tokenizer, texts, Pooling("projection", 2), normalize=False, max_length=5)
    settings = {"pooling": "projection", "normalize": "false", "max_seq_length": 5, "max_tokens": 40}
    found = np.load(run(checkpoint, tmp_path / "a.npy", source, **settings))
    np.testing.assert_allclose(found, raw, **CLOSE)
    half = np.load(run(checkpoint, tmp_path / "b.npy", source, stored="float16", **settings))
    assert half.dtype == np.float16 and np.array_equal(half, found.astype(np.float16))
    first = np.load(run(checkpoint, tmp_path / "c.npy", source, pooling="cls", layer=2, precision="bf16"))
    wanted = embed_sentences(model, tokenizer, texts, Pooling("cls", 2))
    assert (np.abs(first - wanted).max() > 1e-5) and ((first * wanted).sum(1) > 0.999).all()


@pytest.fixture(scope="module")
def prompted(saved_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says all about how it is to be read."""
    return saved_model(
        tmp_path_factory.mktemp("prompted"), initializer_range=0.3, embedding_pooling="mean", embedding_max_length=9,
        embedding_normalize=False, embedding_prompt="the cat ",
        embedding_prompts={"query": "a dog ", "passage": ""},
    )  # fmt: skip


def test_prompt_length_and_normalisation_are_the_models_or_those_asked_for(
    prompted: Path, texts: list[str], tmp_path: Path
) -> None:
    source, (model, tokenizer) = write_lines(tmp_path / "a.txt", texts), load_encoder(prompted)
    asked: list[tuple[dict[str, Any], str]] = [
        ({}, "the cat "), ({"prompt": "meine "}, "meine "), ({"prompt": ""}, ""), ({"prompt_name": "query"}, "a dog "),
    ]  # fmt: skip
    for given, prompt in asked:
        found = np.load(run(prompted, tmp_path / "a.npy", source, **given))
        expected = embed_sentences(
            model, tokenizer, [prompt + text for text in texts], prompt="", normalize=False, max_length=9
        )
        np.testing.assert_allclose(found, expected, **CLOSE)
    found = np.load(run(prompted, tmp_path / "a.npy", source, normalize="true", max_seq_length=20))
    np.testing.assert_allclose(found, embed_sentences(model, tokenizer, texts, normalize=True, max_length=20), **CLOSE)


def test_a_prompt_that_the_model_does_not_have_is_refused(prompted: Path, texts: list[str], tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.txt", texts)
    with pytest.raises(BadInput, match="prompt_name is 'document'; allowed are 'passage', 'query'"):
        run(prompted, tmp_path / "a.npy", source, prompt_name="document")
    with pytest.raises(BadInput, match="prompt is 'a' and prompt_name 'query'; allowed is one of them"):
        run(prompted, tmp_path / "a.npy", source, prompt_name="query", prompt="a")


def test_standard_input_is_read(
    checkpoint: Path, texts: list[str], expected: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped = io.TextIOWrapper(io.BytesIO("".join(f"{text}\n" for text in texts).encode()))
    monkeypatch.setattr(sys, "stdin", piped)
    np.testing.assert_allclose(np.load(run(checkpoint, tmp_path / "a.npy")), expected, **CLOSE)


def test_a_pipe_is_read_once(checkpoint: Path, texts: list[str], expected: np.ndarray, tmp_path: Path) -> None:
    there, here = os.pipe()
    os.write(here, "".join(f"{text}\n" for text in texts).encode())
    os.close(here)
    found = np.load(run(checkpoint, tmp_path / "a.npy", Path(f"/dev/fd/{there}")))
    os.close(there)
    np.testing.assert_allclose(found, expected, **CLOSE)


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_an_empty_line_of_one_column_is_an_empty_text(checkpoint: Path, tmp_path: Path, ending: str) -> None:
    write_lines(tmp_path / f"one{ending}", ["text", "the cat", "", "a dog"])
    write_lines(tmp_path / "lines.txt", ["the cat", "", "a dog"])
    of_table = np.load(run(checkpoint, tmp_path / "a.npy", tmp_path / f"one{ending}", column="text"))
    assert np.array_equal(of_table, np.load(run(checkpoint, tmp_path / "b.npy", tmp_path / "lines.txt")))
    write_lines(tmp_path / f"two{ending}", ["text,text".replace(",", "," if ending == ".csv" else "\t"), "a,b"])
    with pytest.raises(BadInput, match=f"two{ending}:1: has 2 columns 'text'; allowed is one"):
        run(checkpoint, tmp_path / "c.npy", tmp_path / f"two{ending}", column="text")


@pytest.mark.parametrize("ending", [".jsonl.gz", ".csv", ".tsv", ".parquet"])
def test_a_column_of_a_table_is_read(
    checkpoint: Path, texts: list[str], expected: np.ndarray, tmp_path: Path, ending: str
) -> None:
    source, column = tmp_path / f"rows{ending}", "text of x"
    rows = [{"number": str(at), column: text} for at, text in enumerate(texts)]
    if ending == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), source)
    elif ending == ".jsonl.gz":
        write_lines(source, [json.dumps(row) for row in rows])
    else:
        between = "," if ending == ".csv" else "\t"
        write_lines(source, [between.join(values) for values in ([*rows[0]], *(row.values() for row in rows))])
    found = np.load(run(checkpoint, tmp_path / "a.npy", source, column=column))
    np.testing.assert_allclose(found, expected, **CLOSE)


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_a_column_may_be_within_another(checkpoint: Path, tmp_path: Path, ending: str) -> None:
    rows = [{"translation": {"en": "the cat", "de": "die Katze"}}, {"translation": {"en": "a dog", "de": "ein Hund"}}]
    source = tmp_path / f"rows{ending}"
    if ending == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), source)
    else:
        write_lines(source, list(map(json.dumps, rows)))
    table = pyarrow.parquet.read_table(run(checkpoint, tmp_path / "a.parquet", source, column="translation.de"))
    assert table["text"].to_pylist() == ["die Katze", "ein Hund"]


# --- stopped and started again ----------------------------------------------------------------------------------------


def stop_after(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first vectors are those of the sentence by which a model is known again."""
    calls = 0

    def counted(*arguments: Any, **settings: Any) -> np.ndarray:
        nonlocal calls
        if calls > blocks:
            raise KeyboardInterrupt
        calls += 1
        return embed_sentences(*arguments, **settings)

    monkeypatch.setattr(to_file, "embed_sentences", counted)


@pytest.mark.parametrize("ending", ["npy", "parquet"])
@pytest.mark.parametrize("blocks", [0, 1, 4])
def test_work_that_was_stopped_goes_on_and_ends_the_same_to_the_byte(
    checkpoint: Path, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, blocks: int
) -> None:
    source, settings = write_lines(tmp_path / "a.txt", texts), {"lines_at_once": 4, "precision": "int8"}
    whole = run(checkpoint, tmp_path / f"whole.{ending}", source, **settings).read_bytes()
    output = tmp_path / f"stopped.{ending}"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        stop_after(blocks, patched)
        run(checkpoint, output, source, **settings)
    assert not output.exists() and (tmp_path / f"stopped.{ending}.partial").is_dir()

    embedded: list[int] = []

    def embed_again(model: Any, tokenizer: Any, block: Sequence[str], *rest: Any, **settings: Any) -> np.ndarray:
        embedded.append(len(block))
        return embed_sentences(model, tokenizer, block, *rest, **settings)

    monkeypatch.setattr(to_file, "embed_sentences", embed_again)
    assert run(checkpoint, output, source, **settings).read_bytes() == whole
    assert sum(embedded) == 1 + len(texts) - 4 * blocks, "what was done is not done again"
    assert not (tmp_path / f"stopped.{ending}.partial").exists()


def test_work_goes_on_only_with_the_same_lines_settings_and_model(
    checkpoint: Path,
    texts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    saved_model: Callable[..., Path],
) -> None:
    source, output = write_lines(tmp_path / "a.txt", texts), tmp_path / "a.npy"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        stop_after(2, patched)
        run(checkpoint, output, source, lines_at_once=4)
    with pytest.raises(BadInput, match=r"a\.npy\.partial: was begun .*: normalize was True and is False; .* remove"):
        run(checkpoint, output, source, lines_at_once=4, normalize="false")
    with pytest.raises(BadInput, match=r"prompt was None and is 'query: '"):
        run(checkpoint, output, source, lines_at_once=4, prompt="query: ")
    with pytest.raises(BadInput, match=r"pooling was \['mean', 1\] and is \['mean', 2\]"):
        run(checkpoint, output, source, lines_at_once=4, layer=2)
    other = saved_model(tmp_path / "other", seed=1, embedding_layer=1, embedding_pooling="mean")
    with pytest.raises(BadInput, match="model was 'one whose vectors are"):
        run(other, output, source, lines_at_once=4)
    write_lines(source, ["another", *texts[1:]])
    with pytest.raises(BadInput, match="was begun with other lines"):
        run(checkpoint, output, source, lines_at_once=4)
    write_lines(source, texts[:5])
    with pytest.raises(BadInput, match="was begun with other lines"):
        run(checkpoint, output, source, lines_at_once=4)
    write_lines(source, texts)
    np.testing.assert_array_equal(
        np.load(run(checkpoint, output, source, lines_at_once=4)),
        np.load(run(checkpoint, tmp_path / "b.npy", source, lines_at_once=4)),
    )


def test_work_of_release_0_7_5_is_continued(
    checkpoint: Path, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, state = write_lines(tmp_path / "a.txt", texts), tmp_path / "a.npy.partial" / "state.json"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        stop_after(2, patched)
        run(checkpoint, tmp_path / "a.npy", source, lines_at_once=4)
    kept = json.loads(state.read_text("utf-8"))
    assert kept["settings"].pop(VERSION) == __version__
    kept["settings"]["readout"] = kept["settings"].pop("pooling")  # as 0.7.5 wrote it
    kept["done"] = {"lines": [4, 4], "digest": hashlib.blake2b(as_bytes(texts[:8])).hexdigest()}
    for part in sorted(state.parent.glob("*.npy")):
        part.rename(part.with_name(f"{part.name[:6]}.npy"))
    state.write_text(json.dumps(kept), "utf-8")
    with pytest.raises(BadInput, match=r"by hictl_hf 0\.7 or older: normalize was True and is False"):
        run(checkpoint, tmp_path / "a.npy", source, lines_at_once=4, normalize="false")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        stop_after(1, patched)  # a block after those that were kept
        run(checkpoint, tmp_path / "a.npy", source, lines_at_once=4)
    assert len(list(state.parent.glob("*.npy"))) == 3
    np.testing.assert_array_equal(
        np.load(run(checkpoint, tmp_path / "a.npy", source, lines_at_once=4)),
        np.load(run(checkpoint, tmp_path / "b.npy", source, lines_at_once=4)),
    )


def test_a_folder_of_somebody_else_is_left_alone(checkpoint: Path, texts: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.npy.partial").mkdir()
    (tmp_path / "a.npy.partial" / "thesis.txt").write_text("all of it")
    with pytest.raises(BadInput, match=r"a\.npy\.partial: is not partial output of hictl embed"):
        run(checkpoint, tmp_path / "a.npy", write_lines(tmp_path / "a.txt", texts))
    assert (tmp_path / "a.npy.partial" / "thesis.txt").read_text() == "all of it"


# --- hostile input ----------------------------------------------------------------------------------------------------


def test_blocks_of_long_lines_have_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_output, "CHARACTERS_AT_ONCE", 10)
    assert list(partial_output.blocks(iter(["a", "b" * 9, "c" * 50, "", "d", "e"]), lines=3)) == [
        ["a", "b" * 9],
        ["c" * 50],
        ["", "d", "e"],
    ]


def test_a_line_of_five_megabytes_and_control_characters_are_survived(checkpoint: Path, tmp_path: Path) -> None:
    lines = ["the cat " * 600_000, "\x1b[31m\x07\x08\u202e", "\u2028 one line \r still", "a dog"]
    found = np.load(run(checkpoint, tmp_path / "a.npy", write_lines(tmp_path / "a.txt", lines)))
    alone = embed_sentences(*load_encoder(checkpoint), ["the cat " * 100, "a dog"])  # more than are read
    assert found.shape == (4, 32) and np.isfinite(found).all()
    np.testing.assert_allclose(found[[0, 3]], alone, **CLOSE)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"the cat\n\xff\xfe\xfa\n", r"a\.txt:2: has invalid UTF-8"),
        ("a.txt", b"the cat\na\0dog\n", r"a\.txt:2: has a NUL byte"),
        ("a.txt", b"", r"a\.txt: has no line; allowed is one"),
        ("a.txt.gz", b"no archive", r"a\.txt\.gz: is not compressed; .* Name it without \.gz"),
        ("a.jsonl", b'{"text": "the cat"}\n{"txt": "a dog"}\n', r"a\.jsonl:2: has the columns \['txt'\]"),
        ("a.jsonl", b'{"text": 3}\n', r"a\.jsonl:1: has 3 as its 'text' text"),
        ("a.jsonl", b"[1]\n", "one JSON array"),
        ("a.csv", b"text,b\nthe cat,1\na dog\n", r"a\.csv:3: has 1 columns; allowed are 2"),
        ("a.parquet", b"PAR1", r"a\.parquet: cannot be read"),
    ],
)
def test_what_cannot_be_read_is_one_clear_error_before_anything_is_written(
    checkpoint: Path, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    settings = {} if name.startswith("a.txt") else {"column": "text"}
    with pytest.raises(BadInput, match=message):
        run(checkpoint, tmp_path / "a.npy", tmp_path / name, **settings)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_folder_is_no_input(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no file that can be read; allowed is UTF-8 text. Name another input"):
        run(checkpoint, tmp_path / "a.npy", tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"output": "a.txt"}, r"output is a\.txt; allowed are names that end in \.npy or \.parquet"),
        ({"stored": "int8"}, "stored is 'int8'; allowed are float32, float16"),
        ({"lines_at_once": "0"}, "lines_at_once is 0; allowed is 1 or more"),
        ({"column": "text"}, "is no table by its name, and column is text"),
        ({"precision": "fp8"}, "precision is 'fp8'; allowed are fp32, bf16, int8"),
        ({"pooling": "max"}, "the pooling is 'max'; allowed are cls, mean"),
        ({"layer": "3"}, "is 3; allowed is 0 to 2"),
        ({"pooling": "projection", "layer": "1"}, "is 1; allowed is 2 to 2"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    checkpoint: Path, tmp_path: Path, settings: dict[str, str], message: str
) -> None:
    source = write_lines(tmp_path / "a.txt", ["the cat"])
    given = {"model": str(checkpoint), "output": str(tmp_path / "a.npy"), "input": str(source)} | settings
    with pytest.raises(BadInput, match=message):
        main([part for name, value in given.items() for part in (f"--{name}", value)])
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_standard_input_has_no_column() -> None:
    """It was read as no line at all: `hictl translate` wrote nothing, with status 0."""
    with pytest.raises(BadInput, match="column is text, and input is not given"):
        EmbedArguments(model="m", output="a.npy", column="text")


def test_what_no_encoder_has_is_refused_before_the_text_is_read() -> None:
    for value, message in (
        ({"precision": "fp16"}, "precision is 'fp16'"),
        ({"pooling": "max"}, "the pooling is 'max'"),
    ):
        with pytest.raises(BadInput, match=message):
            EmbedArguments(model="m", output="a.npy", **value)
