"""Texts come back translated in their order, each as if it had been alone; by function, pipeline and command alike."""

import gzip
import io
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hictl_hf.cli.translate import main
from hictl_hf.errors import BadInput
from hictl_hf.models.modeling_hictl_translation import HictlForConditionalGeneration
from hictl_hf.translation import decoding
from hictl_hf.translation.beam_search import BeamSearchConfig
from hictl_hf.translation.decoding import Translation, refuse_long_texts, tokenize, translate
from hictl_hf.translation.pipeline import translation_pipeline

END = 2
SHORT = BeamSearchConfig(num_beams=3, max_length=9)


# --- the function -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [1, 40, None])
def test_translations_come_back_in_order_each_as_generate_gives_it_alone(
    translator: HictlForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    texts_to_translate: list[str],
    max_tokens: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shapes, search = [], decoding.search
    monkeypatch.setattr(
        decoding, "search", lambda model, ids, *more: shapes.append(ids.shape) or search(model, ids, *more)
    )
    languages = ["de" if number % 2 else "fr" for number in range(len(texts_to_translate))]
    found = translate(translator, tokenizer, texts_to_translate, SHORT, languages, max_tokens, progress=False)
    assert len({row[0].text for row in found}) > 4, "the toy translator says the same of everything"
    assert all(rows == 1 or rows * width <= (max_tokens or 512) for rows, width in shapes)
    assert (max(rows for rows, _ in shapes) > 1) == (max_tokens != 1)
    for text, language, (best,) in zip(texts_to_translate, languages, found, strict=True):
        if not text.strip():
            assert best == Translation("", 0.0, 0)
            continue
        source = tokenizer(text, return_tensors="pt")
        limit = min(9, int(1.2 * source["input_ids"].shape[1]) + 10)
        outputs = translator.generate(
            **source, target_language=language, num_beams=3, early_stopping=True, max_new_tokens=limit,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        assert best.text == tokenizer.decode(outputs.sequences[0], skip_special_tokens=True)
        assert best.score == pytest.approx(float(outputs.sequences_scores), abs=2e-5)
        assert best.tokens == outputs.sequences.shape[1] - 1


def test_a_text_is_translated_once_for_each_language_asked_for(
    translator: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded, encode = [], translator.roberta.forward
    monkeypatch.setattr(
        translator.roberta, "forward", lambda ids, *a, **k: (encoded.append(len(ids)), encode(ids, *a, **k))[1]
    )
    found = translate(
        translator, tokenizer, ["the cat", "a dog", "the cat", "the cat"], SHORT, ["de", "de", "de", "fr"]
    )
    assert sum(encoded) == 3
    assert found[0] == found[2] and found[0][0].score != found[3][0].score


def test_several_translations_are_best_first_and_batches_do_not_matter(
    translator: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, texts_to_translate: list[str]
) -> None:
    settings = BeamSearchConfig(num_beams=4, best=4, max_length=9)
    together = translate(translator, tokenizer, texts_to_translate, settings, "de")
    for text, found in zip(texts_to_translate, together, strict=True):
        assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
        assert len(found) == (4 if text.strip() else 1)
        (alone,) = translate(translator, tokenizer, [text], settings, "de")
        assert [(each.text, each.tokens) for each in found] == [(each.text, each.tokens) for each in alone]


def test_what_is_too_long_is_refused_or_cut_and_counted(
    translator: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, caplog: pytest.LogCaptureFixture
) -> None:
    long, cut_ids = "the cat sees a dog " * 20, slice(0, 63)
    with pytest.raises(BadInput, match="1 of 2 texts are too long.*the cat sees.*allowed are 64.*cut"):
        translate(translator, tokenizer, ["a dog", long], SHORT, "de")
    with caplog.at_level(logging.WARNING, logger="hictl_hf"):
        found = translate(translator, tokenizer, ["a dog", long], SHORT, "de", cut=True)
    assert "1 of 2 texts were cut after 64 tokens" in caplog.text
    source = torch.tensor([[*tokenizer(long, verbose=False)["input_ids"][cut_ids], END]])
    ids = translator.generate(source, target_language="de", num_beams=3, early_stopping=True, max_new_tokens=9)
    assert found[1][0].text == tokenizer.decode(ids[0], skip_special_tokens=True)


def test_a_text_that_fills_the_model_is_read(tokenizer: PreTrainedTokenizerBase) -> None:
    texts = {len(tokenizer(text)["input_ids"]): text for text in (" ".join("a" * number) for number in range(1, 70))}
    assert len(tokenize([texts[64]], tokenizer, 64)[0]) == 64
    refuse_long_texts([("a:1", texts[64])], tokenizer, 64)
    with pytest.raises(BadInput, match="has 65 tokens; allowed are 64"):
        tokenize([texts[65]], tokenizer, 64)
    for text in (texts[65], "\ufdfa" * 25):  # 25 characters, of which each is 18 letters
        with pytest.raises(BadInput, match=r"a:1: has \d+ tokens; allowed are 64"):
            refuse_long_texts([("a:1", text)], tokenizer, 64)


def test_translations_that_the_limit_ends_are_counted(
    translator: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, caplog: pytest.LogCaptureFixture
) -> None:
    for never, told in ((False, False), (True, True)):
        with torch.no_grad():
            translator.lm_head.bias[END] = -1e6 if never else 1e6
        found = translate(translator, tokenizer, ["a dog", "", "the cat"], SHORT, "de", progress=False)
        assert [best.tokens for (best,) in found] == ([9, 0, 9] if never else [1, 0, 1])
        assert ("2 of 2 translations were stopped at 9 tokens" in caplog.text) == told
    caplog.clear()  # a short source has a lower limit, which only a translation that repeats itself reaches
    low = BeamSearchConfig(num_beams=3, max_length_a=0, max_length_b=5, max_length=9)
    translate(translator, tokenizer, ["a dog"], low, "de", progress=False)
    assert not caplog.text
    translate(translator, tokenizer, ["a dog"], BeamSearchConfig(num_beams=1, max_length_b=100), "de", progress=False)
    assert "1 of 1 translations were stopped at 64 tokens" in caplog.text, "the positions of the model"
    caplog.clear()
    with torch.no_grad():
        translator.lm_head.bias[END] = 1e6
    ((best,),) = translate(translator, tokenizer, ["a dog"], BeamSearchConfig(num_beams=3, max_length=1), "de")
    assert best.tokens == 1 and not caplog.text, "it is complete"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("the cat", "sentences is 'the cat', of type str; allowed is a list of texts"),
        ({"text": "the cat"}, "sentences is {'text': 'the cat'}, of type dict; allowed is a list of texts"),
        (["the cat", None], "sentence 1 is None, of type NoneType; allowed are texts"),
        ([float("nan")], "sentence 0 is nan, of type float; allowed are texts"),
    ],
)
def test_what_is_no_text_is_refused(
    translator: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, given: Any, told: str
) -> None:
    with pytest.raises(BadInput, match=told):
        translate(translator, tokenizer, given, SHORT, "de")
    assert translate(translator, tokenizer, [], SHORT, "de") == []


def test_offloaded_weights_are_refused(translator_folder: str, tokenizer: PreTrainedTokenizerBase) -> None:
    model = accelerate.cpu_offload(HictlForConditionalGeneration.from_pretrained(translator_folder))
    for call in (translate, translation_pipeline):
        with pytest.raises(BadInput, match="offloaded by device_map; .* without device_map, or call model.generate"):
            call(model, tokenizer, ["ein Hund"]) if call is translate else call(model, tokenizer)


def test_a_tokenizer_without_padding_is_refused(
    translator: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase
) -> None:
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)  # tokenizer.json alone
    with pytest.raises(BadInput, match="has no pad_token, which tokenizer_config.json names; allowed is the complete"):
        translate(translator, bare, ["the cat"], SHORT, "de")


def test_a_text_that_leaves_no_word_is_translated_by_none(
    translator: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase
) -> None:
    found = translate(translator, tokenizer, ["\u200b\u200b", "the cat", "\u200b"], SHORT, "de")
    assert [best.text == "" for best, *_ in found] == [True, False, True]


def test_languages_are_asked_for_and_known(
    translator: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase
) -> None:
    for language, told in (
        (None, "choose one"),
        ("sw", r"no target language sw.*de.*fr.*\. Write one of them as it is\."),
    ):
        with pytest.raises(BadInput, match=told):
            translate(translator, tokenizer, ["a dog"], SHORT, language)
    assert translate(translator, tokenizer, ["a dog"], SHORT, "deu") == translate(
        translator, tokenizer, ["a dog"], SHORT, "de"
    )
    with pytest.raises(BadInput, match="2 target languages for 1 texts"):
        translate(translator, tokenizer, ["a dog"], SHORT, ["de", "fr"])


def test_each_module_is_again_in_the_mode_it_was_in(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> None:
    model = model_for_text(HictlForConditionalGeneration, decoder_layers=1, hidden_dropout_prob=0.5).train()
    model.roberta.eval()  # a frozen encoder
    one, other = (translate(model, tokenizer, ["a dog", "the cat"], SHORT) for _ in range(2))
    assert one == other, "dropout was on"
    assert model.training and model.decoder.training and not any(each.training for each in model.roberta.modules())
    assert translate(model, tokenizer, []) == []


def test_each_module_is_again_in_its_mode_after_an_error(
    translator: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(decoding, "search", out_of_memory)
    with pytest.raises(RuntimeError, match="out of memory"):
        translate(translator.train(), tokenizer, ["a dog"], SHORT, "de")
    assert all(module.training for module in translator.modules())


# --- the pipeline -----------------------------------------------------------------------------------------------------


def test_the_model_says_how_it_is_searched_unless_the_call_does(
    translator: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    translator.generation_config.update(num_beams=4, length_penalty=0.6)
    translator.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    searched, search = [], decoding.search

    def recorded(*arguments: Any) -> Any:
        searched.append((arguments[-1].num_beams, arguments[-1].length_penalty))
        return search(*arguments)

    monkeypatch.setattr(decoding, "search", recorded)
    same = ["--model", str(tmp_path), "--target_lang", "de", "--device", "cpu"]
    for flags in ([], ["--num_beams", "2"], ["--length_penalty", "1.0"]):
        typed(monkeypatch, "a dog\n")
        main([*same, *flags])
    named = translation_pipeline(tmp_path, target_language="de", device="cpu")
    for settings in ({}, {"num_beams": 2}, {"length_penalty": 1.0}):
        named("a dog", **settings)
    translate(translator, tokenizer, ["a dog"], target_language="de")
    assert searched == [(4, 0.6), (2, 0.6), (4, 1.0)] * 2 + [(4, 0.6)]


# --- the command ------------------------------------------------------------------------------------------------------


def german(folder: str, flags: str = "") -> list[str]:
    """Flags for translations into German by the model in a folder, with others that have no spaces."""
    return ["--model", folder, "--target_lang", "de", *flags.split()]


def typed(monkeypatch: pytest.MonkeyPatch, text: str, terminal: bool = False) -> None:
    """Standard input with this text, as a terminal or as a file."""
    lines = io.TextIOWrapper(io.BytesIO(text.encode("utf-8", "surrogateescape")))
    monkeypatch.setattr(lines, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stdin", lines)


def test_standard_input_files_and_typed_lines_are_translated_alike(
    translator_folder: str, translator: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase,
    texts_to_translate: list[str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    expected = [row[0].text for row in translate(translator, tokenizer, texts_to_translate, SHORT, "de")]
    written = "".join(f"{text}\n" for text in texts_to_translate)
    same = german(translator_folder, "--num_beams 3 --max_length 9 --device cpu")
    (tmp_path / "one.txt").write_text(written[: written.index(texts_to_translate[4])], "utf-8")
    with gzip.open(tmp_path / "two.txt.gz", "wt", encoding="utf-8", newline="\r\n") as file:
        file.write(written[written.index(texts_to_translate[4]) :])
    main([*same, "--input", str(tmp_path / "one.txt"), str(tmp_path / "two.txt.gz"), "--output", str(tmp_path / "out")])
    assert (tmp_path / "out").read_text("utf-8") == "".join(f"{text}\n" for text in expected)
    for more, terminal in (([], False), ([], True), (["--lines_at_once", "4", "--max_tokens", "30"], False)):
        typed(monkeypatch, written, terminal)
        main([*same, *more])
        assert capsys.readouterr().out == "".join(f"{text}\n" for text in expected)


def test_a_column_of_a_table_is_translated_and_a_table_without_one_is_refused(
    translator_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["the cat sees a dog", "", "a dog"]
    table, lines = tmp_path / "a.jsonl", tmp_path / "a.txt"
    table.write_text("".join(f"{json.dumps({'translation': {'en': text}})}\n" for text in texts))
    lines.write_text("".join(f"{text}\n" for text in texts))
    same = german(translator_folder, "--max_length 9 --device cpu --input")
    column = ["--column", "translation.en"]
    main([*same, str(lines)])
    expected = capsys.readouterr().out
    main([*same, str(table), *column])
    assert capsys.readouterr().out == expected
    main([*same, str(table), *column, "--output", str(tmp_path / "out")])
    assert (tmp_path / "out").read_text("utf-8") == expected
    for flags, found in (([str(table)], "a.jsonl: is a table by its name"), ([str(lines), *column], "is no table")):
        with pytest.raises(BadInput, match=f"{found}.*allowed are tables .* with --column, or files of lines without"):
            main([*same, *flags])
    with pytest.raises(BadInput, match=r"a.jsonl:1: has the columns \['translation'\]; allowed are rows with 'de'"):
        main([*same, str(table), "--column", "de"])


def test_a_typed_line_is_answered_before_the_next_is_read(
    translator_folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answered = []

    class Keyboard(io.BytesIO):
        def __iter__(self) -> "Keyboard":
            return self

        def __next__(self) -> bytes:
            answered.append(len(capsys.readouterr().out.splitlines()))
            return super().__next__()

    lines = io.TextIOWrapper(Keyboard(b"the cat\na dog\n"))
    monkeypatch.setattr(lines, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", lines)
    main(german(translator_folder, "--max_length 4 --device cpu"))
    assert answered == [0, 1, 1]


def test_scores_and_several_translations_are_written_with_the_number_of_the_line(
    translator_folder: str, translator: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    settings = BeamSearchConfig(num_beams=3, best=2, length_penalty=0.6, max_length_a=0.5, max_length_b=2)
    cat, dog = translate(translator, tokenizer, ["the cat sees cold water", "a dog"], settings, "de")
    typed(monkeypatch, "the cat sees cold water\n\na dog\n")
    flags = "--num_beams 3 --best 2 --length_penalty 0.6 --max_length_a 0.5 --max_length_b 2 --lines_at_once 2"
    main(german(translator_folder, f"{flags} --device cpu"))
    rows = [(1, cat[0]), (1, cat[1]), (2, Translation("", 0.0, 0)), (3, dog[0]), (3, dog[1])]
    assert capsys.readouterr().out == "".join(f"{n}\t{each.score:.4f}\t{each.text}\n" for n, each in rows)
    typed(monkeypatch, "a dog\n")
    main(german(translator_folder, "--scores true --max_length 5 --dtype bfloat16"))
    number, score, _ = capsys.readouterr().out.split("\t")
    assert number == "1" and float(score) < 0


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--input", __file__, "nowhere.txt"], "^nowhere.txt: no file that can be read; allowed is UTF-8"),
        (["--input", "."], "^.: no file that can be read"),
        (["--num_beams", "100000"], "beams is 100000; allowed is up to .*, half the decoder's .* words"),
        (["--best", "6"], "best is 6 and num_beams is 5"),
        (["--lines_at_once", "0"], "lines_at_once is 0"),
        (["--dtype", "int4"], "dtype is 'int4'"),
        (["--length_penalty", "nan"], "length_penalty is nan; allowed are numbers"),
        (["--max_tokens", "0", "--input", __file__], "max_tokens is 0; allowed is 1 or more"),
    ],
)
def test_the_command_refuses_in_words_before_it_translates(
    translator_folder: str,
    flags: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed(monkeypatch, "a dog\n")
    with pytest.raises(BadInput, match=told):
        main([*german(translator_folder), *flags])
    assert capsys.readouterr().out == ""


def test_broken_bytes_are_named_by_their_line(translator_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, "a dog\n\udcff\udcfe\n")
    with pytest.raises(BadInput, match="standard input:2: has invalid UTF-8"):
        main(german(translator_folder))


def test_a_long_text_is_named_by_its_place_before_others_are_translated(
    translator_folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    long, command = "the cat sees a dog " * 20, german(translator_folder, "--num_beams 1")
    for name, text in (("a.txt", "a dog\na dog\n"), ("b.txt", f"\n{long}\n"), ("c.csv", f"id,en\n1,a dog\n2,{long}\n")):
        (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises(BadInput, match=r"b.txt:2: has \d+ tokens; allowed are 64.*--cut true"):
        main([*command, "--input", str(tmp_path / "a.txt"), str(tmp_path / "b.txt")])
    with pytest.raises(BadInput, match=r"c.csv:3: has \d+ tokens"):
        main([*command, "--input", str(tmp_path / "c.csv"), "--column", "en"])
    assert capsys.readouterr().out == ""
    typed(monkeypatch, f"a dog\n\n{long}\n")
    with pytest.raises(BadInput, match="line 3 of the input: 1 of 1 texts are too long"):
        main([*command, "--max_length", "4", "--lines_at_once", "1"])


def test_a_long_line_is_cut_when_the_command_says_so(
    translator_folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "the cat sees a dog " * 20)
    main(german(translator_folder, "--max_length 4 --cut true --device cpu"))
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize(("source", "output"), [("text", "text"), ("text", "sub/../text"), ("text.partial", "text")])
def test_an_input_is_never_written_over(translator_folder: str, tmp_path: Path, source: str, output: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / source).write_text("a dog\n")
    flags = ["--input", str(tmp_path / source), "--output", str(tmp_path / output)]
    with pytest.raises(BadInput, match=f"{output}.*is an input.*another"):
        main([*german(translator_folder), *flags])
    assert (tmp_path / source).read_text() == "a dog\n"


def test_a_run_that_fails_leaves_the_old_output_and_says_where_its_own_is(
    translator_folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, output, link = tmp_path / "source", tmp_path / "output", tmp_path / "link"
    output.write_text("old\n")
    link.symlink_to(output)
    same = [*german(translator_folder, "--max_length 4 --lines_at_once 1"), "--input", str(source), "--output"]
    source.write_bytes(b"\xff\n")
    with pytest.raises(BadInput, match="source:1"):
        main([*same, str(output)])
    partial = Path(f"{output}.partial")
    assert output.read_text() == "old\n" and not partial.exists() and "partial" not in caplog.text
    source.write_text("a dog\n" + "the cat sees a dog " * 20)
    with pytest.raises(BadInput, match=r"source:2: has \d+ tokens; allowed are 64, which the model reads"):
        main([*same, str(output)])
    assert not partial.exists()
    source.write_text("a dog\n" + "\ufdfa" * 20, "utf-8")  # more tokens than bytes
    with pytest.raises(BadInput, match="line 2 of the input: 1 of 1 texts are too long for the model"):
        main([*same, str(output)])
    assert output.read_text() == "old\n" and len(list(partial.glob("000000-*.txt"))) == 1
    assert f"continues with what is in {output}.partial" in caplog.text
    with pytest.raises(BadInput, match="length_penalty was .* and is 0.5"):
        main([*same, str(output), "--length_penalty", "0.5"])
    source.write_text("a dog\nthe cat sees cold water\n")
    main([*same, str(link)])
    assert link.is_symlink() and len(output.read_text().splitlines()) == 2 and not partial.exists()
    partial.write_text("a line that release 0.10 left")
    main([*same, str(output)])
    assert not partial.exists()


def test_a_name_in_gz_is_packed(translator_folder: str, tmp_path: Path) -> None:
    (tmp_path / "source").write_text("a dog\nthe cat\n")
    same = [*german(translator_folder, "--max_length 4 --input"), str(tmp_path / "source")]
    main([*same, "--output", str(tmp_path / "plain")])
    main([*same, "--output", str(tmp_path / "packed.gz")])
    assert gzip.decompress((tmp_path / "packed.gz").read_bytes()) == (tmp_path / "plain").read_bytes()


def test_what_is_no_regular_file_is_written_at_once(translator_folder: str, tmp_path: Path) -> None:
    (tmp_path / "source").write_text("a dog\n")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    flags = ["--input", str(tmp_path / "source"), "--output", str(tmp_path / "pipe"), "--max_length", "4"]
    main([*german(translator_folder), *flags])
    assert os.read(reader, 1000).endswith(b"\n")
    os.close(reader)
