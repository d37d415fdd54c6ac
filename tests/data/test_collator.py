"""What a row becomes: joined, cut, masked at the stated rates, reordered by words, its bag filled; all by its seed."""

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hictl_hf.data.collator import LOCAL_WINDOW, PretrainingCollator, text_hash, tokens_read
from hictl_hf.data.tokenization import prompt_tokens
from hictl_hf.errors import BadInput
from hictl_hf.models.configuration_hictl import HictlConfig
from hictl_hf.models.outputs import PreTrainingBatch
from hictl_hf.models.word_sampling import UniformNumbers

Row = dict[str, Any]
LONE = "▁"


def ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.fixture
def rows(tokenizer: PreTrainedTokenizerBase, sentences: dict[str, list[str]]) -> list[Row]:
    """Four pairs and four monolingual texts, two of them Chinese."""
    pairs = [(sentences["en"][at], sentences[name][at]) for at, name in enumerate(("de", "sw", "zh", "de"))]
    texts = [sentences[name][at] for at, name in enumerate(("en", "sw", "zh", "zh"), 20)]
    both = [*pairs, *((text, None) for text in texts)]
    return [
        {"x": ids(tokenizer, x), "y": None if y is None else ids(tokenizer, y), "seed": 70 + at}
        for at, (x, y) in enumerate(both)
    ]


def unpadded(batch: dict[str, Any], name: str, mask: str) -> list[list[int]]:
    return [row[seen == 1].tolist() for row, seen in zip(batch[name], batch[mask], strict=True)]


# --- examples that are none -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda row, _: row.pop("y"), "an example has no y, but x, seed; allowed are x and y, token ids without"),
        (lambda row, _: row.update(x="the cat"), "x of an example is 'the cat'; .* tokenize texts first"),
        (
            lambda row, _: row.update(y=torch.tensor(float("nan"))),
            r"y of an example is tensor.nan.; .*with_format.None",
        ),
        (lambda row, tokenizer: row.update(x=tokenizer("the cat")["input_ids"]), "x of an example is <s> … </s>; "),
        (lambda row, _: row.update(y=[*row["y"], 1, 1]), "y of an example is .* … <pad>; allowed"),
        (lambda row, _: row.update(y=np.array([1, *row["y"]])), "y of an example is <pad> … .*; allowed"),
    ],
)
def test_examples_that_are_no_tokens_of_texts_are_refused(
    change: Callable[..., Any], found: str, at: int, tokenizer: PreTrainedTokenizerBase, rows: list[Row]
) -> None:
    """Special tokens and padding of an own call of the tokenizer would be trained on as text."""
    change(rows[at], tokenizer)
    with pytest.raises(BadInput, match=found):
        PretrainingCollator(tokenizer)(rows)


def test_a_text_may_begin_with_an_unknown_word_where_that_is_also_the_padding(
    tokenizer: PreTrainedTokenizerBase, rows: list[Row]
) -> None:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.pad_token = tokenizer.unk_token
    rows[0].update(x=[tokenizer.unk_token_id, *rows[0]["x"]])
    assert tokenizer.pad_token_id in PretrainingCollator(tokenizer)(rows)["sentence_input_ids"][0]


def test_masks_do_not_follow_the_numbers_that_word_negatives_are_drawn_by(
    tokenizer: PreTrainedTokenizerBase, rows: list[Row]
) -> None:
    batch = PretrainingCollator(tokenizer, mlm_probability=0.5, tlm_probability=0.5)(rows)
    masked, seen = batch["labels"] != -100, batch["attention_mask"].bool()
    numbers = UniformNumbers(batch["example_seeds"]).next(3 * masked.shape[1]).view(*masked.shape, 3)
    assert 0.3 < ((numbers[..., 0] < 0.5) == masked)[seen].double().mean() < 0.7


def test_examples_without_a_seed_are_masked_anew_in_each_call(
    tokenizer: PreTrainedTokenizerBase, rows: list[Row]
) -> None:
    """A dataset of `tokenize_corpus` has none."""
    for row in rows:
        del row["seed"]
    torch.manual_seed(1)
    first, second = (PretrainingCollator(tokenizer)(rows) for _ in range(2))
    assert not first["labels"].equal(second["labels"])
    torch.manual_seed(1)
    again = PretrainingCollator(tokenizer)(rows)
    assert all(again[name].equal(first[name]) for name in first)


def test_formats_of_datasets_give_the_same_batch(tokenizer: PreTrainedTokenizerBase, rows: list[Row]) -> None:
    plain = Dataset.from_list(rows[:4])
    batches = [
        PretrainingCollator(tokenizer)([*given])
        for given in (rows[:4], plain, plain.with_format("torch"), plain.with_format("numpy"))
    ]
    assert all(batch[name].equal(batches[0][name]) for batch in batches for name in batches[0])


# --- joining and cutting --------------------------------------------------------------------------------------------


def test_joined_rows_are_those_of_the_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    collator = PretrainingCollator(tokenizer, mlm_probability=0, tlm_probability=0)
    texts = [("the cat sees", "die Katze"), ("我的妹妹", "paka"), ("a dog", None)]
    rows = [{"x": ids(tokenizer, x), "y": None if y is None else ids(tokenizer, y), "seed": 1} for x, y in texts]
    batch = collator(rows)
    joined = [tokenizer(x)["input_ids"] if y is None else tokenizer(x, y)["input_ids"] for x, y in texts]
    assert unpadded(batch, "input_ids", "attention_mask") == joined
    single = [tokenizer(text)["input_ids"] for text in ("the cat sees", "我的妹妹", "a dog", "die Katze", "paka")]
    assert unpadded(batch, "sentence_input_ids", "sentence_attention_mask")[:5] == single
    for name, mask in (("input_ids", "attention_mask"), ("sentence_input_ids", "sentence_attention_mask")):
        assert (batch[mask] == 0).any()  # rows differ in length, so there is padding to look at
        assert batch[name][batch[mask] == 0].unique().tolist() == [tokenizer.pad_token_id]


def test_a_prompt_comes_before_the_sentences_of_the_sentence_level_alone(
    tokenizer: PreTrainedTokenizerBase, rows: list[Row]
) -> None:
    prompt = prompt_tokens(tokenizer, "the dog: ")
    plain, prompted = (PretrainingCollator(tokenizer, prompt=given)(rows) for given in ((), prompt))
    names = "sentence_input_ids", "sentence_attention_mask"
    before, after = unpadded(plain, *names), unpadded(prompted, *names)
    assert after == [[row[0], *prompt, *row[1:]] for row in before]
    for name in plain.keys() - set(names):
        assert plain[name].equal(prompted[name])


def test_a_prompt_and_its_sentence_are_cut_to_the_longest_input(tokenizer: PreTrainedTokenizerBase) -> None:
    collator = PretrainingCollator(tokenizer, max_length=8, prompt=(7, 8))
    batch = collator([{"x": [10, 11, 12, 13, 14, 15, 16], "y": None, "seed": 1}])
    assert batch["sentence_input_ids"][0].tolist() == [0, 7, 8, 10, 11, 12, 13, 2]
    with pytest.raises(ValueError, match="prompt has 6 tokens; allowed are 5 with a max_seq_length of 8"):
        PretrainingCollator(tokenizer, max_length=8, prompt=range(6))


@pytest.mark.parametrize(
    ("sides", "max_length", "kept"),
    [  # max_length has 4 special tokens in a pair, 2 in a text
        ((6, 3), 20, (6, 3)),  # nothing to cut
        ((6, 3), 13, (6, 3)),  # 6 + 3 + 4 is just 13
        ((6, 3), 11, (4, 3)),  # the longer side pays for both
        ((3, 6), 11, (3, 4)),
        ((6, 3), 8, (2, 2)),  # 3 come off x until both have 3, the last two one from each
        ((6, 3), 9, (3, 2)),  # an odd rest comes off y
        ((40, 3), 12, (5, 3)),  # x alone is cut to 12 - 2 = 10 for the sentence level; of 10 + 3 + 4, 5 are too many
        ((9, None), 9, (7, None)),
        ((7, None), 9, (7, None)),
    ],
)
def test_of_a_pair_the_longer_side_is_cut_first(
    tokenizer: PreTrainedTokenizerBase,
    sides: tuple[int, int | None],
    max_length: int,
    kept: tuple[int, int | None],
) -> None:
    x, y = (None if number is None else np.arange(10, 10 + number) for number in sides)
    row = PretrainingCollator(tokenizer, max_length=max_length).cut({"x": x, "y": y, "seed": 5})
    assert row["seed"] == 5
    assert tuple(None if row[side] is None else row[side].tolist() for side in ("x", "y")) == tuple(
        None if number is None else list(range(10, 10 + number)) for number in kept
    )


@pytest.mark.parametrize("objectives", [("sentence",), ("lm", "sentence", "word")])
@pytest.mark.parametrize("prompt", [(), (7, 8)])
def test_the_sentence_level_reads_each_side_of_a_pair_alone(
    tokenizer: PreTrainedTokenizerBase, objectives: tuple[str, ...], prompt: tuple[int, ...]
) -> None:
    """A sentence with two translations, each too long beside it: it is read whole, and both pairs share its text."""
    common = list(range(10, 18))
    rows = [{"x": common, "y": [20 + at] * (6 * at + 6), "seed": at} for at in range(2)]
    collator = PretrainingCollator(tokenizer, max_length=12, objectives=objectives, prompt=prompt)
    batch = collator(rows)
    assert unpadded(batch, "sentence_input_ids", "sentence_attention_mask") == [
        *[[0, *prompt, *common, 2]] * 2, [0, *prompt, *[20] * 6, 2], [0, *prompt, *[21] * (10 - len(prompt)), 2],
    ]  # fmt: skip
    x, again, y, other = batch["sentence_hashes"].tolist()
    assert x == again and len({x, y, other}) == 3
    beyond = collator([{"x": [*common, 18, 19, 30], "y": common, "seed": at} for at in range(2)])["sentence_hashes"]
    cut = collator([{"x": [*common, 18, 19, 31], "y": common, "seed": at} for at in range(2)])["sentence_hashes"]
    assert beyond.equal(cut), "what is not read makes no difference"


def test_the_positive_of_a_text_cut_for_a_prompt_has_the_words_that_are_read(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    collator = PretrainingCollator(tokenizer, max_length=12, prompt=(7, 8, 9), reordering="subwords")
    batch = collator([{"x": range(20, 40), "y": None, "seed": seed} for seed in range(9)])
    for x, y in zip(*batch["sentence_input_ids"].view(2, 9, 12).tolist(), strict=True):
        assert x != y and sorted(x) == sorted(y)


def test_no_input_is_longer_than_max_length(tokenizer: PreTrainedTokenizerBase) -> None:
    random = np.random.default_rng(3)
    lengths = random.integers(1, 40, (60, 2))
    rows = [{"x": [20] * a, "y": [21] * b if a % 3 else None, "seed": 0} for a, b in lengths.tolist()]
    collator = PretrainingCollator(tokenizer, max_length=23)
    batch = collator(rows)
    assert batch["input_ids"].shape[1] == batch["sentence_input_ids"].shape[1] == 23
    for row, seen in zip(rows, batch["attention_mask"].sum(-1).tolist(), strict=True):
        whole = len(row["x"]) + (2 if row["y"] is None else len(row["y"]) + 4)
        assert seen == min(whole, 23)  # nothing is cut that would have fitted


# --- masking --------------------------------------------------------------------------------------------------------

NUMBER = 30_000  # words of each kind
BOUND = 4 * np.sqrt(0.25 / NUMBER)  # 4 standard deviations of a share in the worst case: 1.2 %


@pytest.fixture(scope="module")
def masked(tokenizer: PreTrainedTokenizerBase) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Original ids, masked ids and labels, padding left out, of 30,000 words of monolingual text and of pairs."""
    random = np.random.default_rng(1)
    words = random.integers(5, len(tokenizer) - 1, (NUMBER // 50, 50))
    collator = PretrainingCollator(tokenizer, objectives=["lm"])
    text = [{"x": row, "y": None, "seed": at} for at, row in enumerate(words)]
    pairs = [{"x": row[:30], "y": row[30:], "seed": at + 9999} for at, row in enumerate(words)]
    results = {}
    for kind, rows in (("text", text), ("pair", pairs)):
        batch = collator(rows)
        seen = batch["attention_mask"].bool().numpy()
        original = np.concatenate([collator.join(row["x"], row["y"]) for row in rows])
        results[kind] = (original, batch["input_ids"].numpy()[seen], batch["labels"].numpy()[seen])
    return results


@pytest.mark.parametrize(("kind", "rate"), [("text", 0.15), ("pair", 0.25)])
def test_as_many_words_are_chosen_as_the_paper_says(masked: dict[str, Any], kind: str, rate: float) -> None:
    original, _, labels = masked[kind]
    words = original >= 4
    assert words.sum() == NUMBER
    assert abs((labels != -100).sum() / NUMBER - rate) < BOUND
    assert BOUND < 0.25 - 0.15  # the two rates can be told apart


@pytest.mark.parametrize("kind", ["text", "pair"])
def test_of_the_chosen_words_80_percent_become_the_mask_10_another_word_and_10_stay(
    masked: dict[str, Any], tokenizer: PreTrainedTokenizerBase, kind: str
) -> None:
    original, inputs, labels = masked[kind]
    chosen = labels != -100
    bound = 4 * np.sqrt(0.25 / chosen.sum())
    assert chosen.sum() > 4_000 and bound < 0.04
    hidden = inputs[chosen] == tokenizer.mask_token_id
    same = inputs[chosen] == original[chosen]
    by_chance = 0.1 / (len(tokenizer) - 6)  # the random word is now and then the original
    assert abs(hidden.mean() - 0.8) < bound
    assert abs(same.mean() - 0.1 - by_chance) < bound
    assert abs((~hidden & ~same).mean() - 0.1 + by_chance) < bound


@pytest.mark.parametrize("kind", ["text", "pair"])
def test_labels_are_the_original_words_and_the_rest_is_untouched(masked: dict[str, Any], kind: str) -> None:
    original, inputs, labels = masked[kind]
    chosen = labels != -100
    assert (labels[chosen] == original[chosen]).all()
    assert (inputs[~chosen] == original[~chosen]).all()


def test_special_tokens_are_never_chosen_even_where_everything_is(tokenizer: PreTrainedTokenizerBase) -> None:
    collator = PretrainingCollator(tokenizer, mlm_probability=1, tlm_probability=1)
    words = [20, tokenizer.unk_token_id, 21]
    batch = collator([{"x": words, "y": words, "seed": 3}, {"x": words, "y": None, "seed": 4}])
    assert batch["labels"].tolist() == [
        [-100, 20, -100, 21, -100, -100, 20, -100, 21, -100],  # <s> 20 <unk> 21 </s> </s> 20 <unk> 21 </s>
        [-100, 20, -100, 21, -100, -100, -100, -100, -100, -100],  # … and padding
    ]


def test_words_put_in_place_of_others_are_any_real_words(
    masked: dict[str, Any], tokenizer: PreTrainedTokenizerBase
) -> None:
    found = set()
    for original, inputs, _ in masked.values():
        found |= set(inputs[(inputs != original) & (inputs != tokenizer.mask_token_id)].tolist())
    no_words = {*tokenizer.all_special_ids, tokenizer.convert_tokens_to_ids(LONE)}
    assert found == set(range(len(tokenizer))) - no_words


# --- seeds ----------------------------------------------------------------------------------------------------------


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


def test_equal_seeds_give_equal_batches_and_other_seeds_others(
    tokenizer: PreTrainedTokenizerBase, rows: list[Row]
) -> None:
    first, again = (PretrainingCollator(tokenizer)(rows) for _ in range(2))
    assert same(first, again)
    other = PretrainingCollator(tokenizer)([{**row, "seed": row["seed"] + 1000} for row in rows])
    for name in ("input_ids", "labels", "sentence_input_ids", "example_seeds"):
        assert not first[name].equal(other[name]), name
    for name in ("attention_mask", "sentence_attention_mask", "sentence_hashes", "bag"):
        assert first[name].equal(other[name]), name  # not a matter of chance


def test_what_becomes_of_a_row_does_not_depend_on_its_neighbours(
    tokenizer: PreTrainedTokenizerBase, rows: list[Row]
) -> None:
    collator = PretrainingCollator(tokenizer, clean_word_level=True)
    together = collator(rows)
    number = len(rows)
    for at, row in enumerate(rows):
        alone = collator([row])
        for name in together:
            places = [at, at + number] if name.startswith("sentence") else [at]
            wide = together[name][places].reshape(len(places), -1)
            narrow = alone[name].reshape(len(places), -1)
            assert wide[:, : narrow.shape[1]].equal(narrow), name
            assert wide[:, narrow.shape[1] :].unique().numel() <= 1  # nothing but padding beyond


# --- reordering -----------------------------------------------------------------------------------------------------


def words_of(tokenizer: PreTrainedTokenizerBase, tokens: list[int]) -> list[str]:
    return tokenizer.convert_tokens_to_string(tokenizer.convert_ids_to_tokens(tokens)).split()


def reordered(tokenizer: PreTrainedTokenizerBase, text: str, reordering: str, seed: int) -> list[int]:
    collator = PretrainingCollator(tokenizer, reordering=reordering)
    return collator.reorder(np.array(ids(tokenizer, text)), seed).tolist()


LONG = "the old man likes cold water the cat buys two books my sister sees a red apple"


@pytest.mark.parametrize("reordering", ["words", "subwords", "local"])
def test_reordered_text_has_the_same_tokens_in_another_order(
    tokenizer: PreTrainedTokenizerBase, reordering: str
) -> None:
    original = ids(tokenizer, LONG)
    others = [reordered(tokenizer, LONG, reordering, seed) for seed in range(20)]
    assert all(Counter(other) == Counter(original) for other in others)
    assert original not in others
    assert len(set(map(tuple, others))) > 10  # the seed decides


@pytest.mark.parametrize("reordering", ["words", "local"])
def test_whole_words_are_moved(tokenizer: PreTrainedTokenizerBase, reordering: str) -> None:
    assert len(ids(tokenizer, LONG)) > 1.5 * len(LONG.split())  # words of several pieces
    for seed in range(20):
        words = words_of(tokenizer, reordered(tokenizer, LONG, reordering, seed))
        assert sorted(words) == sorted(LONG.split())


def test_subwords_are_moved_one_by_one(tokenizer: PreTrainedTokenizerBase) -> None:
    words = words_of(tokenizer, reordered(tokenizer, LONG, "subwords", seed=0))
    assert sorted(words) != sorted(LONG.split())


def test_words_go_anywhere_but_locally_only_within_the_window(tokenizer: PreTrainedTokenizerBase) -> None:
    text = "the cat buys two books my sister sees a red apple"  # eleven different words
    place = {word: at for at, word in enumerate(text.split())}
    assert len(place) == 11

    def farthest(reordering: str) -> int:
        orders = [words_of(tokenizer, reordered(tokenizer, text, reordering, seed)) for seed in range(200)]
        return max(abs(place[word] - at) for words in orders for at, word in enumerate(words))

    assert farthest("local") == LOCAL_WINDOW - 1
    assert farthest("words") == 10


@pytest.mark.parametrize("reordering", ["words", "local"])
def test_text_written_without_spaces_is_reordered_by_its_pieces(
    tokenizer: PreTrainedTokenizerBase, reordering: str
) -> None:
    text = "我的妹妹买一个红苹果"
    original = ids(tokenizer, text)
    pieces = tokenizer.convert_ids_to_tokens(original)
    assert (
        sum(piece.startswith(LONE) for piece in pieces) == 1 and len(pieces) > 5
    )  # one "word" to a splitter by spaces
    others = [reordered(tokenizer, text, reordering, seed) for seed in range(20)]
    assert all(Counter(other) == Counter(original) for other in others)
    assert sum(other != original for other in others) > 10


@pytest.mark.parametrize("reordering", ["words", "local"])
def test_even_a_short_text_without_spaces_is_reordered(tokenizer: PreTrainedTokenizerBase, reordering: str) -> None:
    """A positive that equals its query would be at distance 0 and draw every negative onto the query."""
    text = "老人喜欢冷水"
    original = ids(tokenizer, text)
    assert len(original) == 3  # the first piece begins a word, as in any text: one in three, but no space anywhere
    others = [reordered(tokenizer, text, reordering, seed) for seed in range(20)]
    assert all(Counter(other) == Counter(original) for other in others)
    assert sum(other != original for other in others) > 5


def test_the_positive_of_a_pair_is_its_translation_and_that_of_a_text_the_reordered_text(
    tokenizer: PreTrainedTokenizerBase, rows: list[Row]
) -> None:
    collator = PretrainingCollator(tokenizer)
    sentences = unpadded(collator(rows), "sentence_input_ids", "sentence_attention_mask")
    for row, x, y in zip(rows, sentences[: len(rows)], sentences[len(rows) :], strict=True):
        assert x == [0, *row["x"], 2]
        if row["y"] is not None:
            assert y == [0, *row["y"], 2]
        else:
            assert y == [0, *collator.reorder(np.array(row["x"]), row["seed"]), 2]


@pytest.mark.parametrize("reordering", ["words", "subwords", "local"])
def test_one_word_stays_as_it_is(tokenizer: PreTrainedTokenizerBase, reordering: str) -> None:
    one = ids(tokenizer, "the")[:1]
    collator = PretrainingCollator(tokenizer, reordering=reordering)
    assert collator.reorder(np.array(one), 3).tolist() == one
    batch = collator([{"x": one, "y": None, "seed": 3}])
    assert batch["sentence_input_ids"].tolist() == [[0, *one, 2]] * 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("y", [None, [], [20, 21]], ids=["text", "pair of nothing", "pair"])
@pytest.mark.parametrize("reordering", ["words", "subwords", "local"])
def test_a_text_without_tokens_is_an_empty_sentence(
    tokenizer: PreTrainedTokenizerBase, reordering: str, y: list[int] | None
) -> None:
    assert ids(tokenizer, "\u0007") == []  # such texts exist: control characters leave nothing behind
    batch = PretrainingCollator(tokenizer, reordering=reordering)([{"x": [], "y": y, "seed": 3}])
    assert unpadded(batch, "sentence_input_ids", "sentence_attention_mask") == [[0, 2], [0, *(y or []), 2]]
    assert batch["bag"].tolist() == [y or []]


# --- bags and hashes ------------------------------------------------------------------------------------------------


def test_the_bag_holds_the_unique_words_of_the_unmasked_pair(tokenizer: PreTrainedTokenizerBase) -> None:
    lone = tokenizer.convert_tokens_to_ids(LONE)
    rows = [
        {"x": [30, lone, 31, 30], "y": [31, tokenizer.unk_token_id, 29, lone], "seed": 1},
        {"x": [40, 40, 40], "y": None, "seed": 2},
    ]
    collator = PretrainingCollator(tokenizer, mlm_probability=1, tlm_probability=1)
    batch = collator(rows)
    assert batch["bag"].tolist() == [[29, 30, 31], [40, -1, -1]]
    assert (
        batch["input_ids"] == tokenizer.mask_token_id
    ).sum() > 2  # words were hidden from the model, not from the bag


def test_bags_agree_with_sets_of_words(tokenizer: PreTrainedTokenizerBase, rows: list[Row]) -> None:
    bag = PretrainingCollator(tokenizer)(rows)["bag"]
    never = {*tokenizer.all_special_ids, tokenizer.convert_tokens_to_ids(LONE)}
    for row, words in zip(rows, bag.tolist(), strict=True):
        expected = {*row["x"], *(row["y"] or [])} - never
        assert sorted(word for word in words if word >= 0) == sorted(expected)
    assert never & {word for row in rows for word in [*row["x"], *(row["y"] or [])]}  # there was something to leave out


def test_equal_texts_have_equal_hashes_and_reordered_text_that_of_its_original(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    rows = [
        {"x": [20, 21, 22, 23], "y": [30, 31], "seed": 1},
        {"x": [20, 21, 22, 23], "y": [32], "seed": 2},  # x as above
        {"x": [30, 31], "y": None, "seed": 3},  # the y of the first
        {"x": [31, 30], "y": None, "seed": 4},  # the same words, but another text
    ]
    hashes = PretrainingCollator(tokenizer)(rows)["sentence_hashes"].tolist()
    assert len(hashes) == 8 and min(hashes) >= 0
    a, b, c, d, e = hashes[0], hashes[4], hashes[5], hashes[2], hashes[3]
    assert hashes == [a, a, d, e, b, c, d, e]
    assert d == b and len({a, b, c, e}) == 4


def test_a_hash_depends_on_the_tokens_alone() -> None:
    as_array = np.array([5, 6], np.int32)
    assert text_hash([5, 6]) == text_hash(as_array) == 9149683750020592361
    assert text_hash([5, 6]) != text_hash([5, 6, 0]) != text_hash([6, 5])


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objectives", "inputs"),
    [
        (["lm"], {"input_ids", "attention_mask", "labels"}),
        (["sentence"], {"sentence_input_ids", "sentence_attention_mask", "sentence_hashes"}),
        (["word"], {"input_ids", "attention_mask", "bag"}),
        (
            ["lm", "sentence"],
            {
                "input_ids",
                "attention_mask",
                "labels",
                "sentence_input_ids",
                "sentence_attention_mask",
                "sentence_hashes",
            },
        ),
    ],
)
def test_objectives_that_are_off_leave_their_inputs_out(
    tokenizer: PreTrainedTokenizerBase, rows: list[Row], objectives: list[str], inputs: set[str]
) -> None:
    batch = PretrainingCollator(tokenizer, objectives=objectives)(rows)
    assert batch.keys() == inputs | {"example_seeds"}
    everything = PretrainingCollator(tokenizer)(rows)
    assert all(batch[name].equal(everything[name]) for name in batch)  # and change nothing else


def test_the_clean_word_level_also_gets_the_unmasked_pair(tokenizer: PreTrainedTokenizerBase, rows: list[Row]) -> None:
    assert "clean_input_ids" not in PretrainingCollator(tokenizer)(rows)
    batch = PretrainingCollator(tokenizer, clean_word_level=True)(rows)
    unmasked = batch["input_ids"].where(batch["labels"] == -100, batch["labels"])
    assert batch["clean_input_ids"].equal(unmasked)
    assert not batch["clean_input_ids"].equal(batch["input_ids"])


def test_the_papers_word_level_of_text_reads_it_joined_to_its_reordering(tokenizer: PreTrainedTokenizerBase) -> None:
    """x is six tokens, and `max_length` leaves three of x and two of y: <s> x </s> y </s>."""
    rows = [{"x": [11, 12, 13, 14, 15, 16], "y": None, "seed": 3}, {"x": [20, 21], "y": [22], "seed": 4}]
    settings = {"reordering": "subwords", "join_reordered": True, "clean_word_level": True, "pair_separators": 1}
    for longest in (15, 8):
        batch = PretrainingCollator(tokenizer, max_length=longest, mlm_probability=0, tlm_probability=0, **settings)(
            rows
        )
        (text, pair), seen = batch["clean_input_ids"].tolist(), batch["clean_attention_mask"]
        reordered = batch["sentence_input_ids"][2, 1:-1].tolist()
        x, y = ([11, 12, 13, 14, 15, 16], reordered) if longest == 15 else ([11, 12, 13], reordered[:2])
        assert sorted(reordered) == [11, 12, 13, 14, 15, 16] and reordered != [11, 12, 13, 14, 15, 16]
        assert text == [0, *x, 2, *y, 2] and pair[: seen[1].sum()] == [0, 20, 21, 2, 22, 2]
        assert seen.sum(-1).tolist() == [len(text), 6]
        assert [word for word in batch["bag"][0].tolist() if word >= 0] == sorted({*x, *y})
        assert batch["input_ids"][0, : batch["attention_mask"][0].sum()].tolist() == [0, *range(11, 17), 2], (
            "MLM: x alone"
        )


def test_one_separator_leaves_room_for_one_more_token(tokenizer: PreTrainedTokenizerBase) -> None:
    row = {"x": [*range(10, 20)], "y": [*range(20, 30)], "seed": 0}
    two, one = (PretrainingCollator(tokenizer, max_length=15, pair_separators=number) for number in (2, 1))
    for collator, tokens in ((two, 11), (one, 12)):
        pair = collator.cut(row)
        joined = collator.join(pair["x"], pair["y"])
        assert len(pair["x"]) + len(pair["y"]) == tokens and len(joined) == 15 and joined.count(2) == 15 - 1 - tokens


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pair_separators": 3}, "pair_separators is 3; it must be 1 or 2"),
        ({"join_reordered": True}, "set clean_word_level"),
        ({"reordering": "sentences"}, "'sentences'.*words, subwords, local"),
        ({"mlm_probability": 15}, "mlm_probability is 15.*between 0 and 1"),
        ({"tlm_probability": -0.1}, "tlm_probability is -0.1.*between 0 and 1"),
        ({"objectives": ["lm", "sentences"]}, "'sentences'.*lm, sentence, word"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_the_values_allowed(
    tokenizer: PreTrainedTokenizerBase, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        PretrainingCollator(tokenizer, **settings)


@pytest.mark.parametrize(("clean", "join_reordered"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("objectives", [("lm",), ("word",), ("lm", "word"), ("word", "sentence"), ("sentence",)])
def test_the_tokens_of_a_batch_are_those_that_the_encoder_reads(
    tokenizer: PreTrainedTokenizerBase, rows: list[Row], objectives: tuple[str, ...], clean: bool, join_reordered: bool
) -> None:
    collator = PretrainingCollator(
        tokenizer, objectives=objectives, clean_word_level=clean, join_reordered=join_reordered
    )
    weights = {f"{name}_weight": float(name in objectives) for name in ("lm", "sentence", "word")}
    config = HictlConfig(word_level_input="clean" if clean else "masked", **weights)
    given = dict.fromkeys(PreTrainingBatch._fields[:10]) | {"items": {}} | collator(rows)
    inputs = PreTrainingBatch(**given).of_objectives(config).encoder_inputs(config)
    assert tokens_read(collator(rows)) == sum(int(mask.sum()) for _, mask in inputs.values() if mask is not None)
