"""Pairs keep their direction and their tags, batches hold every row once and never too many tokens."""

import copy
import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

import run_translation
from hictl_hf.data.cleaning import Cleaning, CorpusReport
from hictl_hf.errors import BadInput
from hictl_hf.hub.loading import load_tokenizer
from hictl_hf.processes import Processes
from hictl_hf.translation.corpus import (
    Direction,
    Pair,
    TokenBudgetBatchSampler,
    TranslationCollator,
    directions_between,
    found_in_train,
    load_pairs,
    read_pairs,
    sample_pairs,
    side_lengths,
    tokenize_pairs,
)

DE_EN, EN_DE = Direction("de", "en"), Direction("en", "de")


def jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return str(path)


def loaded(source: str, directions: Sequence[Direction], folder: Path, **how: Any) -> tuple[Any, CorpusReport]:
    pairs, report = load_pairs([source], directions, cache_dir=folder, **how)
    rows = {
        direction: list(zip(columns["source"], columns["target"], strict=True)) for direction, columns in pairs.items()
    }
    return rows, report


# --- pairs ------------------------------------------------------------------------------------------------------------

ROWS = (
    {"en": "one", "de": "eins"},
    {"de": "zwei", "en": "two"},  # the order of a row's languages says nothing
    {"en": "three", "fr": "trois"},
    {"en": "four", "de": ""},
    {"text": "five", "lang": "en"},
    {"en": "six", "de": "sechs", "fr": "six"},
    {"en": 7, "de": "sieben"},
    {"pt-BR": "oito", "en": "eight"},
)


def test_rows_are_turned_as_asked_and_all_others_are_counted(tmp_path: Path) -> None:
    rows, report = loaded(jsonl(tmp_path / "a.jsonl", ROWS), [DE_EN], tmp_path)
    assert rows == {DE_EN: [("zwei", "two"), ("eins", "one"), ("sechs", "six")]}
    assert report.kept == {"de-en": 3}
    # of the row of three languages, en-fr is another pair
    assert report.skipped == {"other language": 3, "empty": 1, "untranslated": 1, "broken": 1}
    assert "a.jsonl:7: has 7 as its en text" in report.messages[0]


def test_several_directions_are_read_at_once_and_a_row_may_serve_two(tmp_path: Path) -> None:
    directions = [DE_EN, EN_DE, Direction("en", "fr"), Direction("en", "pt")]
    rows, report = loaded(jsonl(tmp_path / "a.jsonl", ROWS), directions, tmp_path)
    assert list(rows) == directions and sorted(rows[EN_DE]) == sorted((b, a) for a, b in rows[DE_EN])
    assert rows[Direction("en", "pt")] == [("eight", "oito")]
    assert report.kept == {"de-en": 3, "en-de": 3, "en-fr": 2, "en-pt": 1} and report.skipped["other language"] == 0


def test_a_sample_is_of_all_directions_and_the_rest_is_counted(tmp_path: Path) -> None:
    pairs, report = load_pairs([jsonl(tmp_path / "a.jsonl", ROWS)], [DE_EN, EN_DE], cache_dir=tmp_path)
    assert [len(rows) for rows in pairs.values()] == [3, 3] and sample_pairs(pairs, 6, report) is pairs
    taken = sample_pairs(pairs, 4, report)  # of six: the first, second, fourth and fifth
    assert {direction: rows["source"] for direction, rows in taken.items()} == {
        DE_EN: pairs[DE_EN]["source"][:2], EN_DE: pairs[EN_DE]["source"][:2],
    }  # fmt: skip
    assert report.skipped["beyond max_train_samples"] == 2
    with pytest.raises(BadInput, match="max_train_samples is 1, which leaves no pair of en-de; give more"):
        sample_pairs(pairs, 1, report)


def test_nothing_whole_is_dropped_unless_cleaning_says_so(tmp_path: Path) -> None:
    same, unequal = {"en": "OK", "de": "OK"}, {"en": "a", "de": "viele Worte " * 100}
    source = jsonl(tmp_path / "a.jsonl", [same, same, unequal])
    assert loaded(source, [EN_DE], tmp_path)[1].kept == {"en-de": 3}
    rows, report = loaded(source, [EN_DE], tmp_path, cleaning=Cleaning(drop_equal_sides=False))
    assert rows == {EN_DE: [("OK", "OK")]} and report.skipped == {"duplicate": 1, "too long": 1}


@pytest.mark.parametrize("read", [lambda *given: load_pairs(*given), read_pairs], ids=["train", "test"])
def test_tags_that_fit_no_language_asked_for_are_told(read: Any, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", [{"en": "one", "gsw": "eins"}, {"en": "two", "gsw": "zwei"}])
    with pytest.raises(BadInput, match=r"no row has de as its source.*here en-gsw \(2\).*or --source_lang"):
        read([source], [DE_EN])
    more = jsonl(tmp_path / "b.jsonl", [{"en": "one", "de": "eins"}])
    with pytest.raises(BadInput, match=r"no row has fr as its target.*en-gsw \(2\), en-de \(1\)"):
        read([source, more], [EN_DE, Direction("en", "fr")])


def test_test_sets_keep_every_line_in_order(tmp_path: Path) -> None:
    (tmp_path / "t.de").write_text("eins\n\n  drei  \neins\n", "utf-8")
    (tmp_path / "t.en").write_text("one\ntwo\n\none\n", "utf-8")
    pairs = read_pairs([f"{tmp_path}/t.{{de,en}}"], [DE_EN])
    expected = [("eins", "one"), ("", "two"), ("  drei  ", ""), ("eins", "one")]
    places = [f"{tmp_path}/t.{{de,en}}:{line}" for line in (1, 2, 3, 4)]
    assert pairs == [Pair(*texts, DE_EN, place) for texts, place in zip(expected, places)]


def test_rows_of_a_test_set_in_other_languages_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A set of Taiwan's Chinese among Chinese would otherwise be scored in part without a word."""
    some = [{"en": "one", "zh": "一"}, {"en": "two", "zh-CN": "二"}]
    assert len(read_pairs([jsonl(tmp_path / "a.jsonl", some)], [Direction("en", "zh")])) == 2 and not caplog.text
    source = jsonl(tmp_path / "b.jsonl", [*some, {"en": "three", "zh-TW": "三"}, {"en": "four", "zh-TW": "四"}])
    assert len(read_pairs([source], [Direction("en", "zh")])) == 2
    assert "b.jsonl: rows that are not read: en-zh-TW (2)" in caplog.text


def test_pairs_of_a_test_set_that_are_trained_on_are_counted_worked_by_hand(tmp_path: Path) -> None:
    some = [{"de": "eins", "en": "one"}, {"de": "zwei ", "en": "two  2"}, {"de": "drei", "en": "three"}]
    train, _ = load_pairs([jsonl(tmp_path / "train.jsonl", some)], [DE_EN, EN_DE], cache_dir=tmp_path)
    held_out = [
        {"de": "zwei", "en": "two 2"}, {"de": "zwei", "en": "two 2"},  # both lines count
        {"de": "eins", "en": "a"}, {"de": "ein", "en": "one"}, {"de": "", "en": ""},
    ]  # fmt: skip
    test = read_pairs([jsonl(tmp_path / "test.jsonl", held_out)], [DE_EN])
    assert found_in_train(test, train) == 2 and found_in_train([], train) == 0
    assert found_in_train([*test, *read_pairs([str(tmp_path / "test.jsonl")], [EN_DE])], train) == 4
    assert found_in_train(test, {EN_DE: train[EN_DE]}) == 0  # trained in the other direction only


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("a.jsonl", ['{"en": "one", "de": "eins"}', '{"en": "two", "de": null}'], r"a.jsonl:2: has None as its de"),
        ("a.jsonl", ['{"en": "one", "de": "eins"}', "{"], r"a.jsonl:2: is not JSON"),
        ("a.jsonl", ['{"text": "one", "lang": "en"}'], r"a.jsonl:1: has no translation to score with"),
        ("a.tsv", ["en\tde", "one"], r"a.tsv:2: has 1 columns; allowed are 2"),
    ],
)
def test_a_broken_row_of_a_test_set_is_an_error(name: str, lines: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("\n".join(lines), "utf-8")
    with pytest.raises(BadInput, match=message):
        read_pairs([str(tmp_path / name)], [EN_DE])


def test_the_first_command_of_the_script_names_files_that_are_paired_as_it_asks(tmp_path: Path) -> None:
    for language, text in (("en", "one\n"), ("de", "eins\n"), ("fr", "un\n")):
        (tmp_path / f"corpus.{language}").write_text(text, "utf-8")
    command = re.search(
        r"--train_file '(\S+)'\s+--source_lang ([\w ]+?)\s+--target_lang (\w+)", run_translation.__doc__
    )
    assert command
    directions = directions_between(command[2].split(), [command[3]])
    pairs = read_pairs([f"{tmp_path}/{command[1]}"], directions)
    assert [(str(pair.direction), pair.source, pair.target) for pair in pairs] == [
        ("de-en", "eins", "one"),
        ("fr-en", "un", "one"),
    ]


def test_sides_of_unequal_length_are_an_error(tmp_path: Path) -> None:
    for language, lines in (("de", "eins\nzwei\n"), ("en", "one\n")):
        (tmp_path / f"t.{language}").write_text(lines, "utf-8")
    for read in (load_pairs, read_pairs):
        with pytest.raises(BadInput, match=r"t.de has 2 lines, .*t.en has 1 lines; allowed are files of equal length"):
            read([f"{tmp_path}/t.{{de,en}}"], [DE_EN])


# --- token ids --------------------------------------------------------------------------------------------------------


def test_ids_are_the_tokenizers_and_what_is_too_long_or_nothing_is_counted(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    rows = [
        {"en": "the cat", "de": "die Katze"},
        {"en": "the cat " * 9, "de": "die Katze"},
        {"en": "the cat", "de": "die Katze " * 9},
        {"en": "\u2581", "de": "die Katze"},  # what SentencePiece writes for a blank
        {"en": "the cat", "de": "\u2581"},
        {"en": "two books", "de": "zwei Bücher"},
    ]
    pairs, report = load_pairs([jsonl(tmp_path / "a.jsonl", rows)], [EN_DE, DE_EN], cache_dir=tmp_path)
    tokens = tokenize_pairs(pairs, tokenizer, 12, report)
    both = [("the cat", "die Katze"), ("two books", "zwei Bücher")]
    expected = both + [(b, a) for a, b in both]
    assert tokens["target_language"] == ["de", "de", "en", "en"]
    for row, (source, target) in zip(tokens, expected):
        words = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(target))
        assert row["input_ids"] == tokenizer(source)["input_ids"] and row["labels"] == [*words, 2]
        assert tokenizer.decode(row["input_ids"]) == f"<s> {source}</s>"
    assert report.kept == {"en-de": 2, "de-en": 2} and report.skipped == {"too long": 4, "empty": 4}
    assert [list(side) for side in side_lengths(tokens)] == [
        [len(row[name]) for row in tokens] for name in ("input_ids", "labels")
    ]
    assert tokens._indices is None  # else rows are read one by one, and their lengths take hours
    with pytest.raises(BadInput, match="no pair is left: 8 have a side without a token, 12 one of more than 1 tokens"):
        tokenize_pairs(pairs, tokenizer, 1, report)


def test_a_batch_is_padded_with_a_start_for_each_row(tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [
        {"input_ids": [0, 5, 6, 2], "labels": [7, 2], "target_language": "fr"},
        {"input_ids": [0, 8, 2], "labels": [9, 10, 2], "target_language": "de"},
    ]
    batch = TranslationCollator(tokenizer, {"de": torch.tensor(100), "fr": torch.tensor(101)})(rows)
    assert {name: values.tolist() for name, values in batch.items()} == {
        "input_ids": [[0, 5, 6, 2], [0, 8, 2, 1]],
        "attention_mask": [[1, 1, 1, 1], [1, 1, 1, 0]],
        "labels": [[7, 2, -100], [9, 10, 2]],
        "start_ids": [101, 100],
    }


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_tokenizer_that_pads_on_the_left_does_not_shift_targets(
    side: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.padding_side = side
    rows = [
        {"input_ids": [0, 5, 2], "labels": [6, 2], "target_language": "de"},
        {"input_ids": [0, 5, 6, 7, 2], "labels": [6, 7, 8, 2], "target_language": "de"},
    ]
    batch = TranslationCollator(tokenizer, {"de": torch.tensor(100)})(rows)
    assert batch["labels"].tolist() == [[6, 2, -100, -100], [6, 7, 8, 2]]
    assert batch["input_ids"][0].tolist() == [0, 5, 2, 1, 1] and batch["attention_mask"][0].tolist() == [1, 1, 1, 0, 0]
    assert tokenizer.padding_side == side
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path).padding_side == "right"


# --- batches ----------------------------------------------------------------------------------------------------------


def lengths(rows: int = 1000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    source = np.clip(random.geometric(1 / 15, rows) + 2, 3, 64)
    return source, np.clip(source + random.integers(-4, 5, rows), 2, 64)


def of_epoch(batches: TokenBudgetBatchSampler, epoch: int) -> list[list[int]]:
    batches.set_epoch(epoch)
    found = [batch.tolist() for batch in batches]
    assert len(found) == len(batches)
    return found


def test_batches_worked_by_hand() -> None:
    """Widths 2 3 3 4 5 6 8 with 12 tokens: 2+3+3+... 4 rows of 4 are 16, so three rows of 3; then 4 and 5; 6; 8."""
    source, target = np.array([8, 3, 2, 5, 2, 3, 6]), np.array([4, 3, 2, 2, 4, 1, 6])
    batches = TokenBudgetBatchSampler(source, target, 12, seed=0)
    assert sorted(map(sorted, of_epoch(batches, 0))) == [[0], [1, 2, 5], [3, 4], [6]]


@pytest.mark.parametrize(("rows", "max_tokens"), [(1000, 64), (1000, 65), (1000, 500), (37, 10_000), (1, 64)])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_every_row_comes_once_and_no_batch_has_too_many_tokens(rows: int, max_tokens: int, processes: int) -> None:
    if rows < processes:
        with pytest.raises(BadInput, match="1 rows of up to .* for . processes; add rows"):
            TokenBudgetBatchSampler(*lengths(rows), max_tokens, 7, Processes(0, processes))
        return
    source, target = lengths(rows)
    shares = [
        TokenBudgetBatchSampler(source, target, max_tokens, 7, Processes(at, processes)) for at in range(processes)
    ]
    for epoch in (0, 1, 5):
        found = [of_epoch(share, epoch) for share in shares]
        assert len({len(batches) for batches in found}) == 1  # none waits for another
        every = [batch for batches in found for batch in batches]
        assert sorted(row for batch in every for row in batch) == list(range(rows))
        assert all(
            batch and len(batch) * max(source[batch].max(), target[batch].max()) <= max_tokens for batch in every
        )


@pytest.mark.parametrize(("rows", "processes"), [(3, 2), (4, 3), (5, 3), (7, 4)])
def test_batches_of_one_row_are_not_halved(rows: int, processes: int) -> None:
    width = np.full(rows, 10)
    with pytest.raises(BadInput, match=f"{rows} rows of up to 10 tokens .* of 19 tokens for {processes} processes"):
        TokenBudgetBatchSampler(width, width, 19, 0, Processes(0, processes))
    assert np.diff(TokenBudgetBatchSampler(width, width, 20, 0, Processes(0, processes)).borders).min() == 1


def test_batches_are_as_full_as_one_row_after_another_makes_them() -> None:
    source, target = lengths()
    widths, slow, batch = sorted(np.maximum(source, target).tolist()), [], 0
    for width in widths:
        if (batch + 1) * width > 300:
            slow.append(batch)
            batch = 0
        batch += 1
    batches = TokenBudgetBatchSampler(source, target, 300, seed=3)
    assert sorted(map(len, of_epoch(batches, 0))) == sorted([*slow, batch])
    used = sum(len(rows) * np.maximum(source, target)[rows].max() for rows in of_epoch(batches, 0))
    assert sum(widths) / used > 0.95


def test_the_order_follows_from_seed_and_epoch_alone() -> None:
    given = *lengths(5000), 300
    one, again, other = (TokenBudgetBatchSampler(*given, seed=seed) for seed in (1, 1, 2))
    first, second = of_epoch(one, 0), of_epoch(one, 1)
    assert of_epoch(again, 1) == second and of_epoch(again, 0) == first  # whatever was gone through before
    assert of_epoch(other, 0) != first and first != second
    together = [{frozenset(batch) for batch in batches} for batches in (first, second)]
    assert len(together[0] & together[1]) < len(first) / 2  # rows meet others
    widths = [[len(batch) for batch in batches] for batches in (first, second)]
    assert widths[0] != widths[1] and sorted(widths[0]) == sorted(widths[1])


@pytest.mark.parametrize(("process", "recorded"), [(0, "bf499749a73c20b7"), (1, "a4b7b38c5bb0497e")])
def test_batches_are_those_recorded_with_0_7_5(process: int, recorded: str) -> None:
    random = np.random.default_rng(0)
    source, target = random.integers(3, 60, 700), random.integers(2, 50, 700)
    batches = TokenBudgetBatchSampler(source, target, 512, 3, Processes(process, 2))
    batches.set_epoch(2)
    assert sha256(np.concatenate([*batches]).tobytes()).hexdigest()[:16] == recorded


def test_processes_and_micro_batches_make_the_same_steps() -> None:
    """Two processes with a batch each see in a step what one process sees in two micro-batches."""
    source, target = lengths(1001)
    alone = of_epoch(TokenBudgetBatchSampler(source, target, 300, 4), 2)
    assert len(alone) % 2 == 0
    shared = [of_epoch(TokenBudgetBatchSampler(source, target, 300, 4, Processes(at, 2)), 2) for at in range(2)]
    assert [list(step) for step in zip(*shared)] == [alone[at : at + 2] for at in range(0, len(alone), 2)]
