"""Encoders are compared on the same sentences: hits worked by hand, intervals against a slow bootstrap, files."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from pictures import is_picture
from test_held_out import HELD_OUT, Dictionary
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hictl_hf.embedding.pooling import Pooling
from hictl_hf.errors import BadInput
from hictl_hf.retrieval.comparison import (
    Comparison,
    EncoderHits,
    Estimate,
    as_table,
    find_hits,
    read_pairs,
    write_comparison,
)

FIRST = Pooling("cls", 0)


def hits(name: str, **by_language: NDArray[np.bool_]) -> EncoderHits:
    return EncoderHits(name, {"pooling": FIRST._asdict(), "prompt": "", "max_length": 64}, by_language)


def random_hits(seed: int, sentences: int, share: float) -> NDArray[np.bool_]:
    return np.random.default_rng(seed).random((2, sentences)) < share


def test_sentences_find_each_other_as_in_the_accuracy_worked_by_hand(tokenizer: PreTrainedTokenizerBase) -> None:
    pairs: dict[str, tuple[list[str], list[str]]] = {}
    for _, x, language, y in HELD_OUT:
        sides = pairs.setdefault(language, ([], []))
        sides[0].append(x)
        sides[1].append(y)
    found = find_hits("hand", Dictionary(tokenizer), tokenizer, pairs, FIRST)
    assert found.hits["de"].all()
    assert found.hits["sw"].tolist() == [[False, False, True], [False, True, True]]
    assert found.values == pytest.approx({"de": 100, "sw": 50, "mean": 75})
    assert found.protocol == {"pooling": {"mode": "cls", "layer": 0}, "prompt": "", "max_length": 64}
    longer = find_hits("hand", Dictionary(tokenizer), tokenizer, pairs, FIRST, max_length=1000)
    assert longer.protocol["max_length"] == 64  # all that the encoder reads


def test_of_long_sentences_as_much_is_read_as_asked_for(
    model_for_text: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Sentences that differ after that are equal, and a tie with a wrong one is an error."""
    alike = ["a b c d e f g", "a b c d e f h"]
    for longest, is_found in ((4, False), (64, True)):
        found = find_hits("a", model_for_text(), tokenizer, {"de": (alike, alike)}, max_length=longest)
        assert found.protocol["max_length"] == longest and (found.hits["de"] == is_found).all()


def test_intervals_are_those_of_sentences_drawn_one_by_one() -> None:
    """The slow version draws the sentences of each language, 20,000 times, and averages what is drawn."""
    sizes, random, draws = {"de": 200, "sw": 100}, np.random.default_rng(5), 20_000
    first = hits("a", **{name: random_hits(1, size, 0.5) for name, size in sizes.items()})
    second = hits("b", **{name: first.hits[name] | random_hits(2, size, 0.3) for name, size in sizes.items()})
    comparison, by_language = Comparison([first, second]), []
    again = Comparison([first, second]).samples
    assert all((drawn == again[name]).all() for name, drawn in comparison.samples.items())
    for name, size in sizes.items():
        rows = random.integers(size, size=(draws, size))
        by_language.append([100 * each.hits[name].mean(0)[rows].mean(1) for each in (first, second)])
    slow = np.mean(by_language, 0)  # (encoders, draws)
    wanted = {0: slow[1] - slow[0], 1: slow[0]}
    for found, drawn in ((comparison.over_first(1), wanted[0]), (comparison.accuracy(0), wanted[1])):
        assert (found["mean"].low, found["mean"].high) == pytest.approx(np.percentile(drawn, (2.5, 97.5)), abs=0.8)
    assert comparison.over_first(1)["mean"].value == pytest.approx(second.values["mean"] - first.values["mean"])
    assert (comparison.samples["sw"][:, 1] >= comparison.samples["sw"][:, 0]).all()  # drawn together


@pytest.mark.parametrize("sides", ["x", "y", "either", "in turn"])
def test_a_sentence_in_several_languages_is_drawn_for_all_of_them(sides: str) -> None:
    """Ten translations of the same sentences are no ten samples: their mean is as uncertain as each of them, on
    whichever side the sentences are, and where each language is paired with the next one."""
    found, texts = random_hits(7, 200, 0.6), [f"sentence {number}" for number in range(200)]
    names = [f"{letter}z" for letter in "abcdefghij"]
    own = {name: [f"{text} in {name}" for text in texts] for name in names}
    pairs = {}
    for number, name in enumerate(names):
        first = sides == "x" or (sides == "either" and number % 2)
        other = own[names[number - 1]] if sides == "in turn" else texts
        pairs[name] = (other, own[name]) if first else (own[name], other)
    one = Comparison([hits("a", az=found)]).accuracy(0)["az"]
    together = Comparison([hits("a", **dict.fromkeys(names, found))], pairs)
    apart = Comparison([hits("a", **dict.fromkeys(names, found))]).accuracy(0)["mean"]
    mean = together.accuracy(0)["mean"]
    assert (mean.low, mean.high) == pytest.approx((one.low, one.high), abs=0.5)
    assert apart.high - apart.low < (one.high - one.low) / 2


def test_a_language_that_a_sample_lacks_has_what_was_found() -> None:
    found = Comparison([hits("a", de=random_hits(1, 100, 0.5), sw=np.array([[True], [False]]))])
    assert (found.samples["sw"] == 50).all()


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    inside = 0
    for seed in range(200):
        low, high = Comparison([hits("a", de=random_hits(seed, 200, 0.7))]).accuracy(0)["de"][1:]
        inside += low <= 70 <= high
    assert 178 <= inside <= 199  # of 190 expected, four standard deviations


def test_differences_are_paired() -> None:
    one = random_hits(3, 100, 0.5)
    better = one.copy()
    better[:, :10] = True  # about ten hits more, the others as before
    found = Comparison([hits("a", de=one), hits("b", de=better), hits("c", de=one)])
    gap, alone = found.over_first(1)["de"], found.accuracy(1)["de"]
    assert gap.high - gap.low < (alone.high - alone.low) / 2
    assert found.over_first(2)["de"] == Estimate(0, 0, 0)


def write(path: Path, *rows: dict[str, str]) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return str(path)


def test_every_pair_counts_under_the_name_of_its_languages(tmp_path: Path) -> None:
    house, same = {"en": "the house", "de": "das Haus"}, {"en": "OK", "sw": "OK"}
    english_first = write(tmp_path / "a.jsonl", house, house, same)
    assert read_pairs([english_first]) == {"de": (["the house"] * 2, ["das Haus"] * 2), "sw": (["OK"], ["OK"])}
    other = write(tmp_path / "b.jsonl", {"de": "das Haus", "sw": "nyumba"})
    assert list(read_pairs([english_first, other])) == ["en-de", "en-sw", "de-sw"]


def test_each_source_is_a_test_set_of_its_own(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", {"en": "the house", "de": "das Haus"}, {"en": "OK", "sw": "OK"})
    second = write(tmp_path / "b.jsonl", {"en": "the cat", "de": "die Katze"})
    assert read_pairs([first, second]) == {
        f"de, {first}": (["the house"], ["das Haus"]),
        "sw": (["OK"], ["OK"]),
        f"de, {second}": (["the cat"], ["die Katze"]),
    }
    both = read_pairs([str(tmp_path / "*.jsonl")])
    assert both["de"] == (["the house", "the cat"], ["das Haus", "die Katze"])
    with pytest.raises(BadInput, match="b.jsonl: is given more than once; allowed is once"):
        read_pairs([second, first, second])


def test_a_text_without_translation_and_an_empty_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.en.txt").write_text("the cat\n")
    with pytest.raises(BadInput, match="text.en.txt:1: has one text; allowed are two"):
        read_pairs([f"en:{tmp_path / 'text.en.txt'}"])
    with pytest.raises(BadInput, match="empty.jsonl: is empty; allowed is one row or more"):
        read_pairs([write(tmp_path / "empty.jsonl")])
    (tmp_path / "a.po").write_text('msgid ""\nmsgstr "Language: de\\n"\n\nmsgid "House"\nmsgstr ""\n', "utf-8")
    with pytest.raises(BadInput, match="a.po: has no pair; allowed is one or more"):
        read_pairs([str(tmp_path / "a.po")])


def test_tables_and_files_hold_the_numbers(tmp_path: Path) -> None:
    half, most = np.array([[True, False], [True, False]]), np.array([[True, True], [True, False]])
    encoders = [hits("start", de=half), hits("runs/adapted", de=most)]
    comparison = Comparison(encoders)
    (line,) = (line for line in as_table(comparison).text().splitlines() if line.startswith("de"))
    assert re.split(r"\s{2,}", line) == ["de", "2", "50.0 (0.0 to 100.0)", "75.0", "+25.0 (+0.0 to +50.0)"]
    page = write_comparison(tmp_path / "scores", comparison, "hictl score-retrieval 'a b'")
    text = page.read_text("utf-8")
    assert "75.0%" in text and "hictl score-retrieval &#39;a b&#39;" in text and "data:image/png" in text
    found = json.loads((tmp_path / "scores/results.json").read_text("utf-8"))
    assert [each["model"] for each in found["encoders"]] == ["start", "runs/adapted"]
    assert found["encoders"][1]["directions"] == {"de": [100, 50]} and found["sentences"] == {"de": 2}
    assert found["encoders"][1]["difference"]["mean"] == {"value": 25, "low": 0, "high": 50}
    assert is_picture(tmp_path / "scores/retrieval.png")


def test_the_page_is_about_the_first_and_the_last_encoder(tmp_path: Path) -> None:
    found = np.array([[True, True, True, False]] * 2)
    encoders = [hits("start", de=found & False), hits("middle", de=found), hits("end", de=found & (np.arange(4) < 1))]
    text = write_comparison(tmp_path, Comparison(encoders)).read_text("utf-8")
    assert "Retrieval accuracy 25.0%" in text and "Blue: end. Grey: start." in text


def test_one_encoder_has_no_difference(tmp_path: Path) -> None:
    alone = Comparison([hits("start", de=random_hits(0, 20, 0.5))])
    assert "difference" not in as_table(alone).text()
    assert "Orange" not in write_comparison(tmp_path, alone).read_text("utf-8")
