"""`hictl explain`: what it prints, as tables and as JSON, and what it refuses."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf import export_encoder
from hictl_hf.cli.explain import main
from hictl_hf.embedding.encoder import load_encoder
from hictl_hf.embedding.nearest_words import ALL_LANGUAGES, Explainer
from hictl_hf.embedding.pooling import Pooling
from hictl_hf.errors import BadInput

SENTENCE = "die Katze sieht das Haus"


@pytest.fixture(scope="module")
def folder(
    model_for_text: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    sentences: dict[str, list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A checkpoint, the encoder of it, and texts."""
    folder = tmp_path_factory.mktemp("explain")
    model_for_text().save_pretrained(folder / "model")
    export_encoder(model_for_text(), folder / "encoder")
    for name in ("model", "encoder"):
        tokenizer.save_pretrained(folder / name)
    for name, texts in sentences.items():
        (folder / f"{name}.txt").write_text("".join(f"{text}\n" for text in texts), "utf-8")
    return folder


def test_json_holds_what_the_functions_find(
    folder: Path, sentences: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [f"{name}:{folder}/{name}.txt" for name in ("en", "de")]
    main(["the cat", "--model", f"{folder}/model", "--among", f"{folder}/de.txt", "--translation", "die Katze",
          "--language_texts", *sources, "--words", "4", "--sentences", "2", "--json"])  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    rows = [{name: text} for name in ("en", "de") for text in sentences[name]]
    explainer = Explainer(*load_encoder(folder / "model"), rows, sentences["de"])
    words = explainer.words("the cat", "die Katze", 4)
    assert found == {
        "sentence": "the cat",
        "caution": "",
        "words": {name: [near._asdict() for near in group] for name, group in words.items()},
        "sentences": [near._asdict() for near in explainer.sentences("the cat", 2)],
    }
    assert (
        {*found["words"]} == {ALL_LANGUAGES, "en", "de"}
        and len(found["words"]["de"]) == 4
        and len(found["sentences"]) == 2
    )


def test_tables_have_words_by_script_and_the_lines_of_sentences(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([SENTENCE, "--model", f"{folder}/model", "--among", f"{folder}/de.txt", "--words", "3"])
    told = capsys.readouterr().out
    assert "Latin ---" in told and "CJK ---" in told and "above mean" in told
    assert told.partition("sentence  ")[2].splitlines()[2].split() == [
        *SENTENCE.split(),
        "1",
        "1.000",
    ]
    assert "mean little" not in told


def test_layer_and_pooling_are_those_asked_for(
    folder: Path, sentences: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["the cat", "--model", f"{folder}/encoder", "--among", f"{folder}/de.txt", "--words", "0", "--json",
          "--pooling", "mean", "--layer", "1"])  # fmt: skip
    found = json.loads(capsys.readouterr().out)["sentences"]
    explainer = Explainer(*load_encoder(folder / "encoder"), among=sentences["de"], pooling=Pooling("mean", 1))
    assert found == [near._asdict() for near in explainer.sentences("the cat")]


def test_of_a_plain_encoder_it_is_said_that_words_mean_little(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["the cat", "--model", f"{folder}/encoder"])
    told = capsys.readouterr().out
    assert told.startswith("The model's configuration does not say") and "mean little" in told and "Latin ---" in told
    assert "line" not in told


def test_sentences_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["the cat", "--model", f"{folder}/encoder", "--words", "0", "--among", f"{folder}/zh.txt", "--sentences", "2"])
    told = capsys.readouterr().out
    assert told.startswith("sentence") and "Latin" not in told and "mean little" not in told
    assert sum(bool(line) for line in told.splitlines()) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--words", "-1"], "words is -1; allowed is 0 or more"),
        (["--words", "0"], "nothing to show"),
        (
            ["--words", "0", "--sentences", "0", "--among", "empty.txt"],
            "words is 0 and sentences is 0: nothing to show",
        ),
        (["--among", "empty.txt"], "empty.txt: has no line with text; allowed is one or more"),
        (["--sentences", "-2"], "sentences is -2"),
        (["--sentences", "3"], "sentences is 3, and among is not given"),
        (
            ["--among", "zh.txt", "--words", "0", "--translation", "der Hund"],
            "translation is given, which has no effect",
        ),
        (["--among", "zh.txt", "--words", "0", "--language_texts", "de:x"], "language_texts is given, which has no"),
        (["--among", "broken.txt"], "broken.txt:2: has invalid UTF-8"),
        (["--among", "nowhere.txt"], "nowhere.txt"),
        (["--among", "zh.txt", "--layer", "9"], "the layer read for .* is 9; allowed is 0 to 2"),
        (["--among", "zh.txt", "--pooling", "max"], "the pooling is 'max'; allowed are cls, mean"),
        (["--layer", "1"], "layer is 1, and among is not given; .* leave out --layer"),
        (["--pooling", "cls"], "pooling is cls, and among is not given"),
        (["--language_texts", "nowhere.txt"], "nowhere.txt"),
        (["--language_texts", "de:broken.txt"], "broken.txt:2: has invalid UTF-8"),
    ],
)
def test_what_cannot_be_used_is_named(
    changes: list[str], message: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.txt").write_bytes(b"ein Hund\ncaf\xe9\n")
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "zh.txt").write_text((folder / "zh.txt").read_text("utf-8"), "utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=message):
        main(["the cat", "--model", f"{folder}/model", *changes])


def test_a_sentence_has_to_be_given(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["hictl explain"])
    with pytest.raises(SystemExit):
        main(["--model", "m"])
    assert "arguments are required: sentence" in capsys.readouterr().err
