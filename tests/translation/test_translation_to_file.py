"""Files of translations: shared by processes and resumed, they have the bytes that one process writes at once."""

import gzip
import lzma
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from hictl_hf.errors import BadInput
from hictl_hf.models.modeling_hictl_translation import HictlForConditionalGeneration
from hictl_hf.processes import ALONE, Processes
from hictl_hf.translation import to_file
from hictl_hf.translation.beam_search import BeamSearchConfig
from hictl_hf.translation.decoding import Translation, translate
from hictl_hf.translation.to_file import TranslationFileConfig, join_texts, translate_to_file, written

CONFIG = TranslationFileConfig(BeamSearchConfig(num_beams=2, max_length=6, best=2), "de", scores=True, lines_at_once=3)


class Killed(Exception):
    """Raised where a process is killed."""


def test_any_number_of_processes_writes_what_one_does_at_once(
    translator: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]],
    shared_by: Callable[..., list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    texts, asked = [*sentences["en"][:8], "", sentences["zh"][0]], list[int]()

    def write(name: str, processes: Processes = ALONE, given: TranslationFileConfig = CONFIG) -> bytes:
        translate_to_file(translator, tokenizer, iter(texts), tmp_path / name, given, processes=processes)
        return (tmp_path / name).read_bytes()

    expected = write("whole")
    rows = [line.split("\t") for line in expected.decode().splitlines()]
    assert [int(row[0]) for row in rows[::2]] == [*range(1, 11)]
    answer = translate(translator, tokenizer, texts[:1], CONFIG.search, "de", progress=False)[0]
    assert [row[1:] for row in rows[:2]] == [[f"{each.score:.4f}", each.text] for each in answer]

    def counted(model: Any, tokenizer: Any, block: list[str], *rest: Any, **settings: Any) -> Any:
        if len(block) > 1 and len(asked) == 2:
            raise Killed
        asked.extend([len(block)] * (block != [to_file.PROBE] and texts[9] not in block))
        return translate(model, tokenizer, block, *rest, **settings)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(to_file, "translate", counted)
        write("shared")
    done = sorted((tmp_path / "shared.partial").glob("0*.txt"))
    assert asked == [3, 3] and len(done) == 2
    with pytest.raises(BadInput, match="search.num_beams was 2 and is 3"):
        write("shared", given=replace(CONFIG, search=replace(CONFIG.search, num_beams=3)))
    for other in (1, 2):
        with pytest.raises(BadInput, match="target_language was 'de' and is 'fr'; .*model was 'one whose"):
            shared_by(other, lambda processes: write("shared", processes, replace(CONFIG, target_language="fr")))
    assert shared_by(2, lambda processes: write("shared", processes)) == [expected] * 2
    assert sorted(path.name for path in tmp_path.glob("*shared*")) == ["shared"]


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
def test_a_line_break_in_a_translation_does_not_begin_another_line(end: str) -> None:
    found = [Translation(f"one{end}two", -1.0, 5), Translation(f"{end}a\tb{end}", -2.0, 5)]
    assert list(written(7, found, scores=False)) == ["one two", " a\tb"]
    assert list(written(7, found, scores=True)) == ["7\t-1.0000\tone two", "7\t-2.0000\t a b"]


def test_no_line_is_no_translation_and_joined_files_are_packed_as_they_are_named(
    translator: HictlForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    translate_to_file(translator, tokenizer, iter([]), tmp_path / "none", CONFIG)
    assert (tmp_path / "none").read_bytes() == b""
    parts = [tmp_path / "a", tmp_path / "b"]
    for part, text in zip(parts, (b"one\r\n", b"two\n")):
        part.write_bytes(text)
    for name, unpack in (("all", bytes), ("all.gz", gzip.decompress), ("all.xz", lzma.decompress)):
        join_texts(parts, tmp_path / name)
        assert unpack((tmp_path / name).read_bytes()) == b"one\r\ntwo\n"
    assert (tmp_path / "all.gz").read_bytes()[4:8] == bytes(4), "the time in the header would differ"
