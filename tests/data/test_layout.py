"""What pre-training reads from a tokenizer, for each family's: special ids, words, characters, and text as data."""

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest
from tokenizers import processors
from toy_families import TOKENIZERS
from transformers import PreTrainedTokenizerBase

from hictl_hf.data.collator import PretrainingCollator
from hictl_hf.data.layout import (
    Layout,
    character_starts,
    layout_of,
    marked_starts,
    pieces_shown,
    word_starts,
    words_never_sampled,
)  # fmt: skip
from hictl_hf.data.text_encoding import encode_texts
from hictl_hf.errors import BadInput

MakeTokenizer = Callable[[str], PreTrainedTokenizerBase]
each_family = pytest.mark.parametrize("name", ["xlm-roberta", "bert", "modernbert", "eurobert", "deberta-v2"])


@pytest.fixture(scope="module")
def tokenizer_of(sentences: dict[str, list[str]]) -> MakeTokenizer:
    """`tokenizer_of(name)`: a small tokenizer in the layout of a family, learned from the toy sentences."""
    texts, made = [text for several in sentences.values() for text in several], {}

    def make(name: str) -> PreTrainedTokenizerBase:
        if name not in made:
            made[name] = TOKENIZERS[name](texts)
        return made[name]

    return make


def ids(tokenizer: PreTrainedTokenizerBase, *pieces: str) -> tuple[int, ...]:
    return tuple(tokenizer.convert_tokens_to_ids(list(pieces)))


def test_special_ids_are_those_that_the_tokenizer_writes(tokenizer_of: MakeTokenizer) -> None:
    assert layout_of(tokenizer_of("xlm-roberta")) == Layout((0,), (2, 2), (2,))
    assert layout_of(tokenizer_of("bert")) == Layout((3,), (4,), (4,))
    assert layout_of(tokenizer_of("modernbert")) == Layout((2,), (1,), (1,))
    begin, end = ids(tokenizer_of("eurobert"), "<|begin_of_text|>", "<|end_of_text|>")
    assert begin > 200 and layout_of(tokenizer_of("eurobert")) == Layout((begin,), (end, begin), (end,))
    assert layout_of(tokenizer_of("deberta-v2")) == Layout((1,), (2,), (2,))


@each_family
def test_a_batch_joins_texts_as_the_tokenizer_does(
    name: str, tokenizer_of: MakeTokenizer, sentences: dict[str, list[str]]
) -> None:
    tokenizer, (x, y) = tokenizer_of(name), (sentences["en"][5], sentences["de"][5])
    plain = [encode_texts(tokenizer, text, add_special_tokens=False)["input_ids"] for text in (x, y)]
    collator = PretrainingCollator(tokenizer, mlm_probability=0, tlm_probability=0)
    batch = collator([{"x": plain[0], "y": plain[1], "seed": 1}])
    assert batch["input_ids"].tolist() == [tokenizer(x, y)["input_ids"]]
    for row, mask, text in zip(batch["sentence_input_ids"], batch["sentence_attention_mask"], (x, y)):
        assert row[mask.bool()].tolist() == tokenizer(text)["input_ids"]
    assert set(batch["bag"].flatten().tolist()) <= {-1, *plain[0], *plain[1]}
    one = PretrainingCollator(tokenizer, pair_separators=1).join([7], [8])
    assert one == [*collator.layout.before, 7, collator.layout.between[0], 8, *collator.layout.after]


@pytest.mark.parametrize("lacks", ["mask_token", "pad_token", "first token"])
@each_family
def test_what_a_tokenizer_lacks_is_refused_in_one_line(name: str, lacks: str, tokenizer_of: MakeTokenizer) -> None:
    tokenizer = deepcopy(tokenizer_of(name))
    if lacks == "first token":
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing("$A", "$A $B:1", [])
    else:
        setattr(tokenizer, lacks, None)
    with pytest.raises(BadInput, match=f"no {lacks}|no token before a text") as refusal:
        layout_of(tokenizer)
    assert "\n" not in str(refusal.value) and "allowed is one" in str(refusal.value)


@each_family
def test_words_begin_where_the_tokenizer_begins_them(name: str, tokenizer_of: MakeTokenizer) -> None:
    tokenizer, text = tokenizer_of(name), "my sister likes two books"
    encoding = encode_texts(tokenizer, text, add_special_tokens=False)
    starts = np.array(word_starts(tokenizer))[encoding["input_ids"]]
    words = encoding.word_ids()
    expected = [word != before for word, before in zip(words, [None, *words])]
    assert sum(expected) == 5 and starts.tolist()[1:] == expected[1:]  # the first needs no mark


@each_family
def test_reordered_text_has_whole_words_and_whole_characters(name: str, tokenizer_of: MakeTokenizer) -> None:
    tokenizer = tokenizer_of(name)
    for text, parts in {"my sister likes two books": str.split, "老人看见一个红苹果": list}.items():
        plain = encode_texts(tokenizer, text, add_special_tokens=False)["input_ids"]
        for seed in range(9):  # in some the first word moves
            moved = PretrainingCollator(tokenizer).reorder(plain, seed)
            assert moved.tolist() != plain and len(moved) == len(plain)
            written = tokenizer.decode(moved)
            if "unk" not in written.lower():  # of Chinese in the toy vocabulary of BERT
                assert sorted(parts(written.replace(" ", "") if parts is list else written)) == sorted(parts(text))


@pytest.mark.parametrize("name", ["modernbert", "eurobert"])
def test_the_first_word_is_parted_from_the_word_that_comes_before_it(name: str, tokenizer_of: MakeTokenizer) -> None:
    tokenizer = tokenizer_of(name)
    ids_with_space = marked_starts(tokenizer)
    (plain,) = encode_texts(tokenizer, ["a"], add_special_tokens=False)["input_ids"]
    assert tokenizer.decode([plain[0], ids_with_space[plain[0]]]) == "a a"
    (of_xlm_r,) = encode_texts(tokenizer_of("xlm-roberta"), ["a"], add_special_tokens=False)["input_ids"]
    assert word_starts(tokenizer_of("xlm-roberta"))[of_xlm_r[0]], "which has its space already"


def test_a_character_of_several_tokens_begins_at_its_first_byte(tokenizer_of: MakeTokenizer) -> None:
    for name, text in {"eurobert": "€ß", "modernbert": "€ß"}.items():
        tokenizer = tokenizer_of(name)
        plain = encode_texts(tokenizer, text, add_special_tokens=False)["input_ids"]
        assert len(plain) > 3, "the toy vocabulary has neither"
        assert sum(np.array(character_starts(tokenizer))[plain]) == 2
    assert all(character_starts(tokenizer_of("xlm-roberta")))


@each_family
def test_special_and_reserved_tokens_and_lone_spaces_are_no_words(name: str, tokenizer_of: MakeTokenizer) -> None:
    tokenizer = tokenizer_of(name)
    found = tokenizer.convert_ids_to_tokens(words_never_sampled(tokenizer, len(tokenizer)))
    assert {tokenizer.mask_token, tokenizer.pad_token} <= {*found}
    assert ("<|reserved_special_token_0|>" in found) == (name == "eurobert")
    assert ("[unused1]" in found) == (name == "bert") and ("<unused0>" in found) == (name == "modernbert")
    assert len(found) < 8
    assert words_never_sampled(tokenizer, len(tokenizer) + 1)[-1] == len(tokenizer)


@each_family
def test_special_tokens_in_a_text_stay_text(name: str, tokenizer_of: MakeTokenizer) -> None:
    tokenizer = tokenizer_of(name)
    special = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    for token in tokenizer.all_special_tokens:
        text = f"the {token} house"
        assert special.isdisjoint(encode_texts(tokenizer, text, add_special_tokens=False)["input_ids"]), token
        joined = encode_texts(tokenizer, text, text)["input_ids"]
        layout = layout_of(tokenizer)
        assert sum(number in special for number in joined) == sum(map(len, layout))


def test_pieces_are_shown_as_text(tokenizer_of: MakeTokenizer) -> None:
    tokenizer = tokenizer_of("eurobert")
    shown = pieces_shown(tokenizer)
    plain = encode_texts(tokenizer, "two books", add_special_tokens=False)["input_ids"]
    assert "".join(shown[number] for number in plain) == "two▁books"
    assert pieces_shown(tokenizer_of("bert")) == tokenizer_of("bert").convert_ids_to_tokens(
        range(len(tokenizer_of("bert")))
    )
