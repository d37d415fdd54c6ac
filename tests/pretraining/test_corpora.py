"""What is trained on shares no text with what is held out or guarded."""

import json
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset, Features, Value
from parsers import parse_arguments
from toy_families import word_pieces
from transformers import PreTrainedTokenizerBase

from hictl_hf.data.cleaning import CorpusReport
from hictl_hf.data.collator import PretrainingCollator
from hictl_hf.data.sampling import TemperatureSampler, language_shares
from hictl_hf.data.tokenization import tokenize_corpus
from hictl_hf.errors import BadInput
from hictl_hf.pretraining.corpora import Corpora, leave_out_same_ids, log_cut_rows, read_corpora, warn_of_repeats


def write(path: Path, *languages: str, number: int = 12, word: str = "sentence") -> str:
    rows = [
        {"en": f"{word} {at}", language: f"{language} {word} {at}"} for language in languages for at in range(number)
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


def read(source: str, *flags: str) -> Corpora:
    return read_corpora(parse_arguments(["--train_file", source, "--held_out_sentences", "2", *flags]))


def test_guard_languages_leave_the_training_data_with_the_english_of_their_held_out_pairs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        corpora = read(write(tmp_path / "a.jsonl", "de", "sw"), "--guard_languages", "sw")
    assert "guard_languages sw: 12 of 24 rows are not trained on, of which 4 pairs are the guard" in caplog.messages
    assert corpora.train is not None and corpora.dev is not None
    assert corpora.guard_dev is not None and corpora.guard_test is not None
    assert {*corpora.train["y_lang"]} == {*corpora.dev["y_lang"]} == {"de"}
    assert {*corpora.guard_dev["y_lang"], *corpora.guard_test["y_lang"]} == {"sw"}
    assert len(corpora.guard_dev) == len(corpora.guard_test) == 2
    guarded = {*corpora.guard_dev["x"], *corpora.guard_test["x"]}
    assert guarded.isdisjoint({*corpora.train["x"], *corpora.dev["x"]})


def test_rows_that_held_out_pairs_take_from_training_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"en": f"word {at % 20}", "de": f"Wort {at % 20}{'!' * (at // 20)}"} for at in range(40)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with caplog.at_level("INFO"):
        corpora = read(str(path))
    assert corpora.train is not None and len(corpora.train) == 32
    message = "held out: 2 pairs to choose by, 2 to score; 4 rows share a text with them and are not trained on"
    assert message in caplog.messages


def test_guard_data_is_of_any_language_and_never_trained_on(tmp_path: Path) -> None:
    guard = write(tmp_path / "guard.jsonl", "fr", number=4)  # English sides that train has, too
    corpora = read(
        write(tmp_path / "a.jsonl", "de"), "--guard_data", guard, "--cleaning", '{"languages": ["en", "de"]}'
    )
    assert corpora.train is not None and corpora.guard_dev is not None and corpora.guard_test is not None
    guarded = {*corpora.guard_dev["x"], *corpora.guard_test["x"]}
    assert len(guarded) == 4 and guarded.isdisjoint(corpora.train["x"])
    assert {*corpora.guard_dev["y_lang"]} == {"fr"}  # the languages of the training data are no limit


@pytest.mark.parametrize("flag", ["--validation_file", "--guard_data"])
def test_no_text_of_held_out_files_is_trained_on_however_few_pairs_are_scored(flag: str, tmp_path: Path) -> None:
    source, named = write(tmp_path / "a.jsonl", "de", number=40), write(tmp_path / "b.jsonl", "de", number=20)
    corpora = read(source, flag, named)
    scored = [part for part in corpora.held_out if part not in corpora.unused]
    assert corpora.train is not None and max(map(len, scored)) == 2
    assert {f"sentence {at}" for at in range(20)}.isdisjoint(corpora.train["x"])
    assert len(corpora.train) == 20 - (4 if flag == "--guard_data" else 0)
    streaming = "--streaming", "true", "--max_steps", "2", "--validation_file", named
    assert sum(map(len, read(source, *streaming).held_out)) == 20


@pytest.mark.parametrize("flag", ["--validation_file", "--guard_data"])
def test_monolingual_text_of_held_out_files_is_not_trained_on_either(flag: str, tmp_path: Path) -> None:
    (tmp_path / "sw.txt").write_text("Sentence 11!\n", "utf-8")
    source, named = write(tmp_path / "a.jsonl", "de"), write(tmp_path / "b.jsonl", "fr", number=4)
    corpora = read(source, flag, named, f"sw:{tmp_path / 'sw.txt'}")
    assert corpora.train is not None and "sentence 11" not in corpora.train["x"]
    assert corpora.hash != read(source, flag, named).hash


@pytest.mark.parametrize("flag", ["--validation_file", "--guard_data"])
def test_rows_of_held_out_files_that_are_skipped_are_logged(
    flag: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, named = write(tmp_path / "a.jsonl", "de"), write(tmp_path / "b.jsonl", "de", word="other")
    with caplog.at_level("INFO"):
        read(source, flag, named)
        assert flag.strip("-") not in caplog.text
        (tmp_path / "b.jsonl").write_text(f'{(tmp_path / "b.jsonl").read_text("utf-8")}\n{{"en": "the\n', "utf-8")
        read(source, flag, named)
    (found,) = [message for message in caplog.messages if message.startswith(f"{flag.strip('-')}:")]
    assert "broken" in found and f"{named}:13: is not JSON" in found


def test_a_sample_is_taken_of_what_is_left_to_train_on(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", "de", "sw")
    whole, sample = read(source), read(source, "--max_train_samples", "6")
    assert whole.train is not None and sample.train is not None and len(whole.train) > 6 == len(sample.train)
    assert {*sample.train["y_lang"]} == {"de", "sw"} and {*sample.train["x"]} <= {*whole.train["x"]}
    assert sample.report.skipped["beyond max_train_samples"] == len(whole.train) - 6
    assert sample.dev is not None and whole.dev is not None and sample.dev["x"] == whole.dev["x"]


def test_both_guards_are_one(tmp_path: Path) -> None:
    guard = write(tmp_path / "guard.jsonl", "fr", number=4, word="other")
    source = write(tmp_path / "a.jsonl", "de", "sw")
    corpora = read(source, "--guard_data", guard, "--guard_languages", "sw")
    assert corpora.guard_dev is not None and {*corpora.guard_dev["y_lang"]} == {"fr", "sw"}


def test_the_guard_changes_the_hash_of_the_data(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", "de")
    guard = write(tmp_path / "guard.jsonl", "fr", number=4, word="other")
    assert read(source).hash != read(source, "--guard_data", guard).hash


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        (["xx"], "guard_languages has xx, not in train_file; allowed are de, en, sw"),
        (["en"], "leaves no pairs to train on"),
        (["de", "sw"], "leaves no pairs to train on"),
    ],
)
def test_guard_languages_that_cannot_be_taken_out_are_refused(
    tmp_path: Path, languages: list[str], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        read(write(tmp_path / "a.jsonl", "de", "sw"), "--guard_languages", *languages)


def test_a_guard_needs_pairs_to_choose_by_and_others_to_score(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="guard_data is .*has no sentence pair to choose by"):
        read(write(tmp_path / "a.jsonl", "de"), "--guard_data", write(tmp_path / "g.jsonl", "fr", number=1))


def test_a_guard_needs_held_out_pairs_which_choose_the_pooling(tmp_path: Path) -> None:
    guard = write(tmp_path / "g.jsonl", "fr", number=4)
    with pytest.raises(BadInput, match="a guard is scored by the pooling that is best on held-out pairs"):
        read(write(tmp_path / "a.jsonl", "de"), "--guard_data", guard, "--held_out_sentences", "0")


def pairs_of(*texts: tuple[str, str | None]) -> Dataset:
    languages = {"x_lang": ["en"] * len(texts), "y_lang": [y and "fr" for _, y in texts]}
    text = Value("string")
    features = Features({"x": text, "y": text, "x_lang": text, "y_lang": text})
    return Dataset.from_dict({"x": [x for x, _ in texts], "y": [y for _, y in texts], **languages}, features=features)


@pytest.fixture(scope="module")
def without_accents() -> PreTrainedTokenizerBase:
    """Uncased BERT's layout, of the letters of ASCII."""
    return word_pieces(["the cafe was over there", "abcdefghijklmnopqrstuvwxyz"], lowercase=True)


def test_no_training_row_has_the_token_ids_of_a_held_out_text(
    without_accents: PreTrainedTokenizerBase, caplog: pytest.LogCaptureFixture
) -> None:
    """`comparable` keeps accents and rare characters apart, this tokenizer does not."""
    train = pairs_of(
        ("the cafe", "b"), ("over", "thère"), ("the 龘", "c"), ("the cafe was", "d"), ("was", None), ("wäs over", None)
    )
    dev, test = pairs_of(("the café", "there")), pairs_of(("the café", "a"), ("the 齉", "was over"))
    corpora = Corpora(train, dev, test, CorpusReport(hash="abc"))
    before = corpora.hash
    with caplog.at_level("INFO"):
        left = leave_out_same_ids(corpora, tokenize_corpus(train, without_accents, 62)[0], without_accents)
    assert corpora.test is not None and corpora.test["x"] == ["the 齉"]
    assert caplog.messages[0] == "1 of 2 test pairs have the token ids of dev pairs: not scored"
    assert corpora.train is not None and corpora.train["x"] == ["the cafe was", "was"]
    assert left["x"] == tokenize_corpus(corpora.train, without_accents, 62)[0]["x"]
    assert corpora.same_ids == 4 and corpora.hash != before


def test_nothing_changes_where_no_ids_are_shared(without_accents: PreTrainedTokenizerBase) -> None:
    corpora = Corpora(pairs_of(("the", "b")), pairs_of(("cafe", "c")), pairs_of(("was", "d")), CorpusReport(hash="abc"))
    before, train = corpora.hash, corpora.train
    tokens = tokenize_corpus(pairs_of(("the", "b")), without_accents, 62)[0]
    assert leave_out_same_ids(corpora, tokens, without_accents) is tokens
    assert corpora.train is train and corpora.hash == before


@pytest.mark.parametrize("flag", ["--validation_file", "--guard_data"])
def test_held_out_files_may_be_scored_to_their_last_pair(flag: str, tmp_path: Path) -> None:
    tokenizer = word_pieces(["de sentence pair 0123456789"])
    held_out = write(tmp_path / "b.jsonl", "de", number=8, word="pair")
    corpora = read(write(tmp_path / "a.jsonl", "de"), flag, held_out, "--held_out_sentences", "4")
    assert corpora.train is not None and [len(rows) for rows in corpora.unused] == [0]
    tokens = tokenize_corpus(corpora.train, tokenizer, 62)[0]
    assert leave_out_same_ids(corpora, tokens, tokenizer) is tokens


@pytest.mark.parametrize(("dev", "message"), [("the café", "all training rows"), ("wàs", "all test pairs")])
def test_nothing_left_is_refused(dev: str, message: str, without_accents: PreTrainedTokenizerBase) -> None:
    train = pairs_of(("the cafe", "b"))
    corpora = Corpora(train, pairs_of((dev, "c")), pairs_of(("was", "d")), CorpusReport())
    with pytest.raises(BadInput, match=f"{message} have the token ids"):
        leave_out_same_ids(corpora, tokenize_corpus(train, without_accents, 62)[0], without_accents)


@pytest.mark.parametrize(
    ("texts", "pairs", "text_share", "named"),
    [(1, 60, 0.5, "only 1 monolingual texts, which are 31 of the 61"), (60, 1, 0.5, "only 1 pairs, which are 30 of"),
     (1, 60, 0.1, ""), (20, 60, 0.5, ""), (0, 60, 0.5, ""), (60, 0, 0.5, "")],
)  # fmt: skip
def test_few_texts_that_make_up_much_of_an_epoch_are_named(
    texts: int, pairs: int, text_share: float, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A row of a file of pairs that lacks a side is monolingual text."""
    sizes = {languages: size for languages, size in {("en", None): texts, ("en", "de"): pairs}.items() if size}
    groups = dict(zip(sizes, (np.arange(texts), np.arange(texts, texts + pairs)) if texts else [np.arange(pairs)]))
    shares = language_shares(sizes, text_share=text_share)
    warn_of_repeats(TemperatureSampler(np.ones(texts + pairs), groups, shares, 4, 1), text_share)
    assert bool(caplog.messages) is bool(named) and named in caplog.text


@pytest.mark.parametrize(
    ("objectives", "message"),
    [
        (("lm", "sentence"), "{} of 400 rows, x and y joined, are cut to 14 tokens"),
        (("sentence",), "{} of 400 rows, one of their sentences, are cut to 14 tokens"),
    ],
)
def test_rows_that_are_cut_are_those_that_lose_tokens_in_the_collator(
    objectives: tuple[str, ...], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    random = np.random.default_rng(1)
    lengths = [(int(x), int(y) if at % 4 else None) for at, (x, y) in enumerate(random.integers(1, 14, (400, 2)))]
    rows = [{"x": [9] * x, "y": None if y is None else [9] * y, "seed": 0} for x, y in lengths]
    collator = PretrainingCollator(word_pieces(["a cat"]), max_length=14, objectives=objectives, prompt=[8, 8])
    lost = 0
    for row in rows:
        sides = [row["x"], row["y"] or []]
        if "lm" in objectives:
            kept = collator.cut(row)
            lost += [kept["x"], kept["y"] or []] != sides
        else:
            lost += [collator.read(side) for side in sides] != sides
    with caplog.at_level("INFO"):
        joined = np.array([len(collator.join(row["x"], row["y"])) for row in rows])
        log_cut_rows(Dataset.from_list(rows), joined, collator)
    assert 50 < lost < 350 and caplog.messages == [message.format(lost)]
